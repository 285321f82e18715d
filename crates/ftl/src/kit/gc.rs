//! Garbage collection inside the device: victims, moves, erases, and how fast the host may go on.
//!
//! Owns: the victim and the scan through it, the movers (each one read command in flight), the
//! eraser, the pace of host programs. Promises: a live sector is readable at every instant of its
//! move, from the victim until its content is in the buffer and from the buffer until it is
//! programmed; a line is erased only when no sector in it is live and no read holds an address in
//! it; a live sector that can't be read is poisoned, never dropped. Never: forms units
//! (`drain.rs`), or picks a free line (`place.rs`).
//!
//! The life of a victim: `Closed → Victim` when fewer lines are free or on their way than the low
//! water (`set_low_water`); movers read its valid sectors in stripe order, a vector command each,
//! into slots of GC's own; a sector that was overwritten or discarded meanwhile is dropped; when the last read is
//! back the line is `Leaving`, when the last reader has left it is erased and `Free`. The moved
//! sectors may still wait in the buffer then: capacitors make it as durable as the medium. Without
//! them the line waits for a barrier (`sync.rs`), and some more gather meanwhile.
//!
//! Pace: while GC is wanted, host programs are paid with garbage found. Each dead sector of a
//! victim buys one, so the host goes on at just the rate at which room comes back, instead of
//! stopping until it has. GC itself is never held up by the host: its units go first, its slots are
//! its own, and the last free line is kept for it.

use flashlane_base::{Location, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{
    Cause, CellMode, ChunkState, Completion, Device, Flags, InFlight, Op, Request,
};
use flashlane_ocssd::device::{Scatter, Status};
use flashlane_rt::{Cx, Waiter};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::buffer::{Kind, NIL};
use super::map::Entry;
use super::place::MAIN;
use super::recover::pad;
use super::stats::note_victim;
use super::tier::BUFFER;
use super::{Controller, DriveFtl, Phase, Room, read};

/// Lines over all PUs beyond the low water that wait for one barrier, where there are no capacitors.
/// Fewer would let the padding of a barrier eat what a victim of a short line wins.
const GATHERED: u32 = 3;

/// Why a device without any failure turns read-only.
const IN_VAIN: &str = "GC wins no room any more, and the host may take none";

/// One read command of GC and the task that waits for it.
#[derive(Default)]
struct Mover {
    waiter: Option<Waiter>,
    idle: bool,
    /// Slots being filled, in the order of the command's addresses.
    slots: Vec<u32>,
    /// Physical and logical sector of each, and the record read with it: kept together here, the
    /// slots themselves are touched when the content is known to be good.
    from: Vec<(u32, u32)>,
    oob: Vec<[u8; OOB_BYTES]>,
    victim: u32,
}

pub(super) struct Gc {
    /// Fewer free lines than this, and GC works; what was asked for.
    low_water: u32,
    asked: u32,
    /// Sectors per read command.
    pub(super) batch: u32,
    victim: Option<u32>,
    /// Next physical sector of the victim to look at.
    scan: u32,
    scan_end: u32,
    /// Victims that were begun beside it, where lines lie abreast: (line, scan, its end).
    beside: VecDeque<(u32, u32, u32)>,
    movers: Vec<Mover>,
    idle: Vec<u32>,
    reads: u32,
    eraser: Option<Waiter>,
    /// Lines are being erased.
    erasing: bool,
    /// Programs that the host may do while GC is wanted, in sectors.
    pace: u32,
    /// No line is worth collecting: pointless to pace the host, try again at the next change.
    hopeless: bool,
    /// Victims with valid sectors taken while `host_did` was `since`.
    fruitless: u64,
    since: u64,
    /// Mapped sectors that the host has discarded.
    unmapped: u64,
}

impl Gc {
    pub(super) fn new(low_water: u32, movers: u32) -> Gc {
        Gc {
            low_water,
            asked: low_water,
            batch: VECTOR_MAX as u32,
            victim: None,
            scan: 0,
            scan_end: 0,
            beside: VecDeque::new(),
            movers: (0..movers).map(|_| Mover::default()).collect(),
            idle: Vec::new(),
            reads: 0,
            eraser: None,
            erasing: false,
            pace: 0,
            hopeless: false,
            fruitless: 0,
            since: 0,
            unmapped: 0,
        }
    }

    /// In a few words.
    pub(super) fn standing(&self) -> String {
        let Gc { victim, reads, erasing, pace, hopeless, .. } = self;
        format!(
            "(victim {victim:?}, {reads} reads, erasing {erasing}, pace {pace}, hopeless {hopeless})"
        )
    }

    /// Lines are being erased.
    pub(super) fn is_erasing(&self) -> bool {
        self.erasing
    }

    /// No victim is being read.
    pub(super) fn is_quiet(&self) -> bool {
        self.victim.is_none() && self.reads == 0
    }
}

/// Moves live sectors, a command at a time, until the device stops.
pub(super) async fn mover(ftl: Arc<DriveFtl>, cx: Cx, me: u32) {
    loop {
        let next = poll_fn(|_| {
            let mut c = ftl.controller.lock();
            if c.phase == Phase::Stopped {
                return Poll::Ready(None);
            }
            if let Some(flight) = c.next_move(&cx, &*ftl.device, me) {
                return Poll::Ready(Some(flight));
            }
            let quiet = mutant!("kit.mover-tells-nobody");
            match c.is_verdict_untold() {
                // Units that a mover could not give out may be what a verdict was about.
                true if !quiet => ftl.go_on(&cx, c, None, Room::default()),
                // GC may rest since this look: a stop or a barrier may be waiting for that.
                false if c.phase != Phase::Running || c.barrier_is_active() => {
                    drop(c);
                    ftl.settled.wake(&cx);
                }
                _ => {}
            }
            Poll::Pending
        });
        let Some(flight) = next.await else {
            return;
        };
        let done = flight.await;
        let mut c = ftl.controller.lock();
        c.moved(&cx, me, &done);
        ftl.go_on(&cx, c, None, Room::default());
    }
}

/// Erases lines that nobody needs any more until the device stops: one at a time or, where lines lie
/// abreast, as many at once as there are PUs.
pub(super) async fn eraser(ftl: Arc<DriveFtl>, cx: Cx) {
    loop {
        let next = poll_fn(|_| {
            let mut c = ftl.controller.lock();
            c.gc.eraser = Some(cx.waiter());
            if c.phase == Phase::Stopped {
                return Poll::Ready(None);
            }
            match c.next_erases() {
                lines if lines.is_empty() => Poll::Pending,
                lines => Poll::Ready(Some(lines)),
            }
        });
        let Some(mut lines) = next.await else {
            return;
        };
        if !mutant!("kit.open-chunk-erased") {
            let mut full = Vec::new();
            for (line, positions) in lines {
                if finish(&ftl, &cx, line).await {
                    full.push((line, positions));
                }
            }
            lines = full;
        }
        let (failed, refused) = erase(&ftl, &cx, &lines).await;
        let mut c = ftl.controller.lock();
        if refused {
            c.read_only.get_or_insert(super::HOST_TROUBLE);
        }
        for ((line, positions), failed) in lines.iter().zip(&failed) {
            c.stats.ftl.erases += positions.len() as u64;
            c.stats.ftl.erase_failures += failed.len() as u64;
            if !mutant!("kit.void-beyond-erase") {
                c.forget_voids(*line, positions);
            }
            if !c.capacitors {
                let number = ftl.layout.chunk_number(*line);
                for position in positions {
                    let report = ftl.device.chunk_report(ftl.layout.pu(*position), number, 1);
                    c.place.note_erases(*line, *position, report[0].erases);
                }
            }
            let noted = if c.capacitors { 0 } else { c.barrier_after_now() };
            c.place.erased(*line, positions, failed, noted);
        }
        c.gc.erasing = false;
        c.check_spare();
        ftl.go_on(&cx, c, None, Room::default());
    }
}

/// Fills chunks of `line` that a former life left open: not every device erases an open chunk.
/// False if the line has to wait for another barrier. One unit of padding that failed looks like a
/// torn one to a mount, several in a row like a loss. So without capacitors a chunk gets no more
/// behind one that failed before that is noted as void.
async fn finish(ftl: &DriveFtl, cx: &Cx, line: u32) -> bool {
    let unfinished = ftl.controller.lock().place.unfinished(line);
    let (number, unit) = (ftl.layout.chunk_number(line), ftl.layout.of(line).unit);
    let mut waits = false;
    for position in unfinished {
        let report = || ftl.device.chunk_report(ftl.layout.pu(position), number, 1);
        while let Some(info) = report().first().copied()
            && info.state == ChunkState::Open
        {
            let (layout, from) = (&ftl.layout, info.write_pointer);
            let n = unit - from % unit;
            let done = pad(cx, &*ftl.device, layout, line, position, from, n).await;
            let moved = (0..n).filter(|i| done.status(*i as usize).moved_pointer()).count();
            let mut c = ftl.controller.lock();
            (0..moved).for_each(|_| c.stats.count(Cause::PaddingPair, layout.is_slc(line)));
            if moved == 0 {
                break;
            }
            let failed = done.failed != 0 && from + n < layout.of(line).chunk_sectors;
            if failed && !c.capacitors && !mutant!("kit.filled-behind-failed-padding") {
                let grains = layout.grains_of(layout.sector_at(line, position, from), n);
                grains.for_each(|grain| c.pages.set_void(grain, true));
                waits = true;
                break;
            }
        }
    }
    if waits {
        let mut c = ftl.controller.lock();
        let noted = c.barrier_after_now();
        c.place.leave_later(line, noted);
    }
    !waits
}

/// Erases the chunks of lines at these positions, all at once. Returns the positions that failed,
/// by line, and whether the host of the image refused one of them.
async fn erase(ftl: &DriveFtl, cx: &Cx, lines: &[(u32, Vec<u32>)]) -> (Vec<Vec<u32>>, bool) {
    let format = ftl.device.format();
    let parts = (0..).zip(lines).flat_map(|(i, (line, positions))| {
        positions.chunks(VECTOR_MAX).map(move |part| (i, *line, part))
    });
    let flights: Vec<_> = parts
        .map(|(i, line, part)| {
            let at = |p: &u32| format.pack(ftl.layout.chunk(line, *p));
            let addrs: Vec<Ppa> = part.iter().map(at).collect();
            let cell = match mutant!("slc.erased-into-tlc") {
                true => CellMode::Native,
                false => ftl.layout.of(line).mode,
            };
            let flags = Flags { cause: Cause::Gc, cell, ..Flags::default() };
            (i, line, part, ftl.device.io(cx, Request::plain(Op::Reset, &addrs).with(flags)))
        })
        .collect();
    let (mut failed, mut refused) = (vec![Vec::new(); lines.len()], false);
    for (of, line, part, flight) in flights {
        let done = flight.await;
        for (i, position) in part.iter().enumerate() {
            match done.status(i) {
                Status::Ok => {}
                Status::OfflineChunk | Status::InvalidReset => failed[of].push(*position),
                Status::HostFault => {
                    failed[of].push(*position);
                    refused = true;
                }
                other => panic!("erase of line {line}, position {position} gave {other:?}"),
            }
        }
    }
    (failed, refused)
}

impl Controller {
    /// The next lines to be erased, with the positions of their chunks: what a line over all PUs has
    /// at most.
    fn next_erases(&mut self) -> Vec<(u32, Vec<u32>)> {
        let (most, done) = (self.place.abreast(MAIN), self.barriers_done());
        let lines: Vec<u32> = (0..most).map_while(|_| self.place.next_erase(done)).collect();
        self.gc.erasing = !lines.is_empty();
        lines.into_iter().map(|line| (line, self.place.to_erase(line))).collect()
    }

    /// Free lines below which GC works. Of single blocks GC wins little at a time, so it begins before
    /// the host stops at its reserve ([`super::sync::reserve`]), as far as that leaves half of the spare:
    /// on less GC would never rest, and victims would take the room of barriers.
    pub(super) fn set_low_water(&mut self) {
        let (asked, abreast) = (self.gc.asked, self.place.abreast(MAIN));
        if abreast == 1 || mutant!("kit.begins-behind-reserve") {
            self.gc.low_water = asked;
            return;
        }
        let block = u64::from(self.place.layout.main().line_sectors);
        let blocks = |sectors: u64| (sectors / block) as u32;
        let spare = blocks(self.place.usable().saturating_sub(self.map.capacity().into()));
        let wanted = asked + blocks(self.place.reserve().into());
        self.gc.low_water = wanted.min((spare / 2).max(asked));
    }

    #[inline]
    pub(super) fn gc_is_wanted(&self) -> bool {
        if self.phase == Phase::Mounting {
            return false;
        }
        // A device that stops needs room for what waits, no stock of free lines: each victim would
        // end in a padded unit, which is garbage for the next.
        let stocks = self.phase == Phase::Running;
        // Lines that wait for a barrier share its padding: some may gather.
        let coming = self.place.coming(MAIN);
        let gathered = GATHERED * self.place.abreast(MAIN);
        let gathering = if self.capacitors { 0 } else { gathered.min(coming) };
        // Those that were begun beside a victim are as good as on their way.
        let coming = coming - gathering + self.gc.beside.len() as u32;
        let low = stocks && self.place.free_lines(MAIN) + coming < self.gc.low_water;
        // Enough free lines by number, but short ones, or spoken for by what waits to be moved.
        let denied = self.place.is_host_denied(MAIN) || self.migration_is_denied();
        let starved = denied && self.place.reclaims_nothing();
        low || starved
    }

    /// True when host data may be programmed: always, but when GC is wanted each sector has to be
    /// paid with one that GC found dead.
    #[inline]
    pub(super) fn user_may_program(&self) -> bool {
        !self.gc_is_wanted()
            || self.gc.hopeless
            || self.gc.pace >= self.place.layout.main().unit
            || self.barrier_needs_room()
    }

    /// So many sectors of host data were placed.
    #[inline]
    pub(super) fn note_user_unit(&mut self, sectors: u32) {
        if self.gc_is_wanted() {
            self.gc.pace = self.gc.pace.saturating_sub(sectors);
        }
    }

    /// Pays for host programs, at most for a line: what was saved up while nobody wrote must not
    /// let the host run into the reserve.
    fn earn(&mut self, sectors: u32) {
        let most = self.place.layout.main().stripe_sectors();
        self.gc.pace = (self.gc.pace + sectors).min(most);
    }

    /// Wakes a mover if there is work for it. It calls the next itself if there is more.
    #[inline]
    pub(super) fn call_gc(&mut self, cx: &Cx) {
        let work = match self.gc.victim {
            Some(victim) => !self.victim_rests(victim),
            None => self.gc_is_wanted() || self.slc_victim().is_some(),
        };
        if !work || self.buffer.gc_room() < self.room_to_go_on() {
            return;
        }
        if let Some(m) = self.gc.idle.pop() {
            let mover = &mut self.gc.movers[m as usize];
            mover.idle = false;
            if let Some(waiter) = mover.waiter {
                cx.wake(waiter);
            }
        }
    }

    /// Room in the buffer that the next read needs: a batch, or all that is left of the victim. With
    /// less than a batch a line could be freed that GC needs to program what takes the room.
    #[inline]
    fn room_to_go_on(&self) -> u32 {
        match self.gc.victim {
            // What is being read is not left, but counts as valid.
            Some(victim) if self.gc.reads == 0 => self.gc.batch.min(self.place.line(victim).valid),
            _ => self.gc.batch,
        }
    }

    /// No victim is being read, and none can be read on before something is programmed.
    pub(super) fn gc_rests(&self) -> bool {
        let waits = || self.buffer.gc_room() < self.room_to_go_on();
        self.gc.is_quiet() || self.gc.reads == 0 && waits()
    }

    pub(super) fn call_eraser(&self, cx: &Cx) {
        if let Some(waiter) = self.gc.eraser {
            cx.wake(waiter);
        }
    }

    /// Wakes every task of GC: the device has stopped.
    pub(super) fn wake_gc(&self, cx: &Cx) {
        self.call_eraser(cx);
        for waiter in self.gc.movers.iter().filter_map(|m| m.waiter) {
            cx.wake(waiter);
        }
    }

    /// Reads the next live sectors of a victim; takes a victim if there is none. `None` when there
    /// is nothing to do or no room to read into; the mover is on the idle list then.
    fn next_move<'a>(
        &mut self,
        cx: &'a Cx,
        device: &'a (dyn Device + 'static),
        me: u32,
    ) -> Option<InFlight<'a>> {
        let mover = &mut self.gc.movers[me as usize];
        mover.waiter = Some(cx.waiter());
        let before = (self.place.leaving(), self.gc.hopeless);
        while let Some(victim) = self.victim_to_read() {
            let room = self.room_to_go_on();
            let slow = self.place.layout.of(victim).pool == BUFFER;
            if slow && (self.victim_rests(victim) || !self.may_migrate(cx)) {
                break;
            }
            if !self.buffer.take_gc_room(room) {
                break;
            }
            let found = self.collect(me, victim);
            self.buffer.give_gc_room(room - found);
            if found > 0 {
                if slow {
                    self.pay_for_migration(cx, found);
                }
                // There may be more to read, and room for it.
                self.call_gc(cx);
                return Some(self.submit_move(cx, device, me));
            }
            self.gc.victim = None;
            self.resume_beside(0);
            self.place.will_come(victim);
            if self.place.line(victim).moving == 0 {
                self.victim_done(cx, victim);
            }
        }
        self.ask_for_erases(cx);
        let found = before != (self.place.leaving(), self.gc.hopeless);
        let found = found && !mutant!("kit.mover-finds-for-itself");
        if found || self.barrier_needs_room() {
            // A line has begun to wait for a barrier that waits for room: it may take GC's now.
            // Or there is nothing to collect: the host need not be paced.
            // Or what waits will never have room.
            self.give_out(cx, None);
            if mutant!("kit.movers-call-each-other") {
                self.call_gc(cx);
            }
        }
        let mover = &mut self.gc.movers[me as usize];
        if !mover.idle {
            mover.idle = true;
            self.gc.idle.push(me);
        }
        None
    }

    /// The victim to read from next. A single chunk is on one die: where that is reading for GC, another
    /// victim is, that was begun or is begun now, as many as there are PUs.
    fn victim_to_read(&mut self) -> Option<u32> {
        let Some(victim) = self.gc.victim else {
            return self.take_victim();
        };
        if self.place.abreast(MAIN) == 1 || self.place.line(victim).moving == 0 {
            return Some(victim);
        }
        let rests = |(line, ..): &(u32, u32, u32)| self.place.line(*line).moving == 0;
        if let Some(at) = self.gc.beside.iter().position(rests) {
            self.set_beside(victim);
            self.resume_beside(at);
        } else if let Some(other) = self.may_begin_beside() {
            self.set_beside(victim);
            self.begin_counted(other);
        }
        self.gc.victim
    }

    /// A victim to begin beside others: free lines are still few with those, and there is room for all that
    /// they have to move before any of them is erased.
    fn may_begin_beside(&self) -> Option<u32> {
        let few = self.gc.beside.len() as u32 + 1 < self.place.abreast(MAIN);
        if !few || self.read_only.is_some() || !self.gc_is_wanted() {
            return None;
        }
        let other = self.worth_collecting()?;
        let valid = self.place.line(other).valid;
        let fits = self.place.room_now(MAIN)
            >= self.moving()
                + self.gc_reading()
                + self.victims_valid()
                + valid
                + self.room_beside_moves();
        (fits || mutant!("kit.victims-beside-without-room")).then_some(other)
    }

    /// Sectors of victims that are still to be read.
    fn victims_valid(&self) -> u32 {
        let lines = self.gc.beside.iter().map(|(line, ..)| *line).chain(self.gc.victim);
        lines.map(|line| self.place.line(line).valid).sum()
    }

    /// What barriers may program, where there are barriers.
    fn room_beside_moves(&self) -> u32 {
        if self.capacitors { 0 } else { self.room_for_barriers() }
    }

    /// Victims that are being read from.
    #[cfg(test)]
    pub(super) fn victims_begun(&self) -> usize {
        self.gc.beside.len() + usize::from(self.gc.victim.is_some())
    }

    fn set_beside(&mut self, victim: u32) {
        self.gc.beside.push_back((victim, self.gc.scan, self.gc.scan_end));
    }

    /// Goes on with one of the victims that were begun, if there is one.
    fn resume_beside(&mut self, at: usize) {
        if let Some((line, scan, end)) = self.gc.beside.remove(at) {
            (self.gc.victim, self.gc.scan, self.gc.scan_end) = (Some(line), scan, end);
        }
    }

    /// There is more to be read of a victim.
    fn is_being_read(&self, victim: u32) -> bool {
        self.gc.victim == Some(victim) || self.gc.beside.iter().any(|(line, ..)| *line == victim)
    }

    /// Starts on the closed line with most garbage, if GC is wanted; else on what is to leave SLC.
    fn take_victim(&mut self) -> Option<u32> {
        if self.read_only.is_some() {
            return None;
        }
        if self.gc_is_wanted() {
            if self.worth_collecting().is_none() {
                self.gc.hopeless = true;
            } else if let Some(victim) = self.begin_victim() {
                return Some(victim);
            }
        }
        let victim = self.slc_victim()?;
        self.begin_on(victim);
        Some(victim)
    }

    /// GC is wanted, reclaims nothing, and wins nothing if it collects: nobody needs its reserve.
    pub(super) fn is_gc_over(&self) -> bool {
        let wins_nothing = || self.worth_collecting().is_none();
        let reclaims = !self.place.reclaims_nothing() && !mutant!("kit.over-while-reclaiming");
        self.gc_is_wanted() && !reclaims && wins_nothing()
    }

    /// The closed line with most garbage, where collecting still wins something. When each line has been
    /// collected twice since the host last wrote or discarded, it does not: padding before barriers takes
    /// as much as it brings. A line with nothing valid or a failed chunk is worth it always.
    pub(super) fn worth_collecting(&self) -> Option<u32> {
        let line = self.place.greediest(MAIN)?;
        let l = self.place.line(line);
        let in_vain = self.gc.since == self.host_did()
            && self.gc.fruitless > 2 * self.place.lines().count() as u64
            && !mutant!("kit.collects-in-vain");
        let empty = l.valid == 0 && !mutant!("kit.garbage-is-collected-in-vain");
        let failed = l.suspects > 0 && !mutant!("kit.failed-chunks-are-collected-in-vain");
        (!in_vain || empty || failed).then_some(line)
    }

    /// As if what the host did since had made no garbage in closed lines.
    #[cfg(test)]
    pub(super) fn nothing_to_collect(&mut self) {
        self.gc.since = self.host_did();
    }

    /// Sectors that the host has written, and mapped ones that it has discarded: only the host makes
    /// garbage of what is valid. A discard of what is not mapped makes none.
    fn host_did(&self) -> u64 {
        let unmapped = match mutant!("kit.trim-of-nothing-is-garbage") {
            true => self.stats.ftl.host_discarded,
            false => self.gc.unmapped,
        };
        let of_map = self.cache.as_ref().map_or(0, |cache| cache.write_backs());
        self.stats.ftl.host_written + of_map + unmapped
    }

    /// The host has discarded mapped sectors.
    pub(super) fn note_unmapped(&mut self, sectors: u32) {
        if !mutant!("kit.trim-makes-no-garbage") {
            self.gc.unmapped += u64::from(sectors);
        }
    }

    /// Starts on the closed line with most garbage.
    pub(super) fn begin_victim(&mut self) -> Option<u32> {
        let victim = self.place.greediest(MAIN);
        self.gc.hopeless = victim.is_none();
        let victim = victim?;
        if !self.has_room_beside_barrier(victim) {
            return None;
        }
        self.begin_counted(victim);
        Some(victim)
    }

    /// Starts on a closed line of the main pool, and notes whether the host made its garbage.
    fn begin_counted(&mut self, victim: u32) {
        let valid = self.begin_on(victim);
        let host_did = self.host_did();
        if std::mem::replace(&mut self.gc.since, host_did) != host_did {
            self.gc.fruitless = 0;
        }
        self.gc.fruitless += u64::from(valid > 0);
    }

    /// Starts on a closed line; returns how many live sectors it has.
    fn begin_on(&mut self, victim: u32) -> u32 {
        let sectors = self.place.layout.sectors_of(victim);
        (self.gc.scan, self.gc.scan_end) = (sectors.start, sectors.end);
        let region = self.place.layout.of(victim);
        let (chunk_sectors, pool) = (region.chunk_sectors, region.pool);
        self.place.take_victim(victim);
        let line = self.place.line(victim);
        let (valid, sectors) = (line.valid, line.chunks * chunk_sectors);
        note_victim(&mut self.stats, valid, sectors);
        self.note_slc_victim(pool);
        self.gc.victim = Some(victim);
        valid
    }

    /// True when a victim leaves room for the barriers that lines are waiting for: lines that gather
    /// are of no use until those have ended.
    fn has_room_beside_barrier(&self, victim: u32) -> bool {
        if self.capacitors || self.place.coming(MAIN) == 0 {
            return true;
        }
        let moving = self.moving() + self.gc_reading();
        let valid = self.place.line(victim).valid;
        self.place.room_now(MAIN) >= moving + valid + self.room_for_barriers()
    }

    /// Scans on through the victim until a batch of live sectors is found, and takes slots for them.
    /// Returns how many; what was passed over pays for host programs.
    fn collect(&mut self, me: u32, victim: u32) -> u32 {
        let from = self.gc.scan;
        let capacity = self.map.capacity();
        let mover = &mut self.gc.movers[me as usize];
        mover.victim = victim;
        mover.slots.clear();
        mover.from.clear();
        let mut pages = Vec::new();
        while mover.slots.len() < self.gc.batch as usize {
            let Some(at) = self.map.next_valid(self.gc.scan, self.gc.scan_end) else {
                self.gc.scan = self.gc.scan_end;
                break;
            };
            self.gc.scan = at + 1;
            let lba = self.map.owner(at);
            if lba >= capacity {
                pages.push((lba, at));
                continue;
            }
            mover.slots.push(self.buffer.alloc(Kind::Gc));
            mover.from.push((at, lba));
        }
        let found = mover.slots.len() as u32;
        for (lba, at) in pages {
            let page = self.pages.page_of(lba).expect("behind the capacity there are pages only");
            self.lose_page_copy(page, at);
        }
        if self.place.layout.of(victim).pool == MAIN {
            self.earn(self.gc.scan - from - found);
        }
        found
    }

    fn submit_move<'a>(
        &mut self,
        cx: &'a Cx,
        device: &'a (dyn Device + 'static),
        me: u32,
    ) -> InFlight<'a> {
        let format = device.format();
        let layout = &self.place.layout;
        let mover = &mut self.gc.movers[me as usize];
        // Live sectors of a unit are neighbours: its chunk and first sector are worked out once.
        let (mut unit, mut end, mut chunk, mut sector) = (0, 0, Ppa(0), 0);
        for (addr, (at, _)) in self.scratch.addrs.iter_mut().zip(&mover.from) {
            if *at >= end {
                let (first, n) = layout.unit_around(*at);
                let place = layout.location(first);
                (unit, end, sector) = (first, first + n, place.sector);
                chunk = format.pack(Location { sector: 0, ..place });
            }
            *addr = format.in_chunk(chunk, sector + at - unit);
        }
        let n = mover.slots.len();
        mover.oob.resize(n, [0; OOB_BYTES]);
        // Content and records are here after `submit`; whether they are good, `finish` will say.
        let content = Scatter::new(self.buffer.slab_mut(), &mover.slots, self.content_bytes);
        let request = Request::read(&self.scratch.addrs[..n], content, &mut mover.oob);
        let flight = device.io(cx, request.with(Flags { cause: Cause::Gc, ..Flags::default() }));
        self.gc.reads += 1;
        self.place.line_mut(mover.victim).moving += 1;
        flight
    }

    /// Takes in what a mover has read.
    fn moved(&mut self, cx: &Cx, me: u32, done: &Completion) {
        let mover = &mut self.gc.movers[me as usize];
        let (slots, from) = (std::mem::take(&mut mover.slots), std::mem::take(&mut mover.from));
        let oob = std::mem::take(&mut mover.oob);
        let victim = std::mem::replace(&mut mover.victim, NIL);
        let pool = self.place.layout.of(victim).pool;
        let moves = match pool {
            MAIN => (Kind::Gc, Cause::Gc),
            BUFFER => (Kind::Gc, Cause::Fold),
            _ => (Kind::Wrap, Cause::Gc),
        };
        for (slot, (_, lba)) in slots.iter().zip(&from) {
            self.buffer.prefetch(*slot);
            self.map.prefetch(*lba);
        }
        let mut left = 0;
        let mut moved = 0;
        for (i, (slot, (at, lba))) in slots.iter().zip(&from).enumerate() {
            if !self.map.is_valid(*at) && !mutant!("kit.move-undoes-write") {
                // Overwritten or discarded while it was read: garbage already.
                self.drop_moved(*slot);
                continue;
            }
            left += 1;
            self.map.drop_copy(*at);
            let status = done.status(i);
            let is_of = || read::is_of(&oob[i], *lba, self.buffer.content(*slot));
            if status.is_ok() && (mutant!("kit.move-unverified") || is_of()) {
                self.stats.ftl.high_ecc += (status == Status::HighEcc) as u64;
                self.buffer.take_over(*slot, moves, *lba, oob[i]);
                self.map.set(*lba, Entry::Slot(*slot));
                if let Some(cache) = &mut self.cache {
                    cache.note_move(*lba);
                }
                moved += 1;
            } else {
                match mutant!("kit.unreadable-dropped") {
                    true => self.map.set(*lba, Entry::Unmapped),
                    false => self.map.set(*lba, Entry::Poisoned),
                }
                if !mutant!("kit.loss-not-noted") {
                    self.pages.touch_trims(*lba, *lba + 1);
                }
                self.drop_moved(*slot);
            }
        }
        self.note_moved(pool, moved);
        self.stats.ftl.gc_moved += moved as u64;
        self.stats.ftl.gc_read_failures += (left - moved) as u64;
        self.stats.poisoned += (left - moved) as u64;
        if pool == MAIN {
            self.earn(slots.len() as u32 - left);
        }
        self.gc.reads -= 1;
        let mover = &mut self.gc.movers[me as usize];
        (mover.slots, mover.from, mover.oob) = (slots, from, oob);
        let line = self.place.line_mut(victim);
        line.valid -= left;
        line.moving -= 1;
        let moving = line.moving;
        if moving == 0 && !self.is_being_read(victim) {
            self.victim_done(cx, victim);
        }
    }

    /// What is left to move is in a line of the buffer, and the host is busy.
    pub(super) fn gc_rests_for_host(&self) -> bool {
        self.gc.reads == 0 && self.gc.victim.is_some_and(|victim| self.victim_rests(victim))
    }

    /// Sectors that GC reads at most now.
    pub(super) fn gc_reading(&self) -> u32 {
        self.gc.reads * self.gc.batch
    }

    /// Moved sectors that wait for a place in the main pool, or may come to.
    #[inline]
    pub(super) fn moving(&self) -> u32 {
        self.buffer.waiting(Kind::Gc) + self.buffer.waiting(Kind::Wrap)
    }

    fn drop_moved(&mut self, slot: u32) {
        self.buffer.free(slot);
        self.buffer.give_gc_room(1);
    }

    /// The scan is through and all reads are back.
    fn victim_done(&mut self, cx: &Cx, victim: u32) {
        self.place.leave(victim, self.barrier_after_now());
        self.call_eraser(cx);
    }

    /// Becomes read-only when too few good chunks are left for the capacity; GC goes by what is left.
    pub(super) fn check_spare(&mut self) {
        self.set_low_water();
        if self.read_only.is_none() && !self.place.has_spare_for(self.map.capacity() as u64) {
            self.read_only = Some(super::NO_SPARE);
        }
    }

    /// Becomes read-only when a unit has nowhere to go and nothing under way will change that: GC
    /// has no line to write to and no slots to read into, or the host is denied and GC is over.
    /// Without capacitors a denied host is no verdict: its units may wait for a flush, to which
    /// GC's reserve is open. [`Controller::check_standstill`] decides there. What waits stays in
    /// the buffer, readable.
    #[cold]
    pub(super) fn check_room(&mut self, kind: Kind) {
        // A line that waits for a barrier comes only if the barrier finds room.
        let coming = match self.capacitors {
            true => self.place.coming(MAIN) > 0,
            false => self.gc.erasing,
        };
        let quiet = self.gc.reads == 0 && !coming && self.no_program_flies();
        if !quiet || self.read_only.is_some() {
            return;
        }
        let garbage = self.place.greediest(MAIN).is_some();
        let over = self.worth_collecting().is_none();
        let full = self.buffer.gc_room() < self.room_to_go_on();
        let stuck = match kind {
            Kind::Gc | Kind::Wrap => {
                let ends = self.gc.victim.is_none() && over;
                self.place.is_out_of_room() && (full || ends)
            }
            Kind::User | Kind::Journal => {
                let decides = self.capacitors || mutant!("kit.denied-is-over");
                decides && self.place.is_host_denied(MAIN) && self.place.reclaims_nothing() && over
            }
        };
        if stuck {
            self.read_only = Some(match garbage {
                true if over => IN_VAIN,
                _ => "failed chunks have taken the room that GC needs",
            });
        }
    }

    /// Becomes read-only when something is due, nothing of it has a place, no program flies, and nobody will
    /// ever make room. Due are units, what a barrier holds, and, while GC is over, what a host waits for. Two ways
    /// lead here. What GC has emptied waits for a barrier, the barrier for room, and so does the next victim:
    /// power cuts in a row do that, each costs the rest of what was open and what GC had moved. Or GC is over,
    /// and what is left is its reserve.
    ///
    /// Before that, programs may go to PUs again that a mount has set aside: true if there were any,
    /// and the caller looks for a place once more.
    #[cold]
    pub(super) fn check_standstill(&mut self) -> bool {
        let held = Kind::ALL.iter().any(|kind| self.buffer.covered_waiting(*kind) > 0)
            || self.held_pages_wait();
        let moving = self.moving();
        let denied = !self.place.host_may_go_on(MAIN, moving) && self.place.is_host_denied(MAIN);
        let over = denied && self.is_gc_over();
        // A unit of the host that nobody waits for may wait: for a flush, a stop, or a discard. A
        // rest of the SLC buffer is no hope for a write that it can't hold.
        let host = match over && self.phase == Phase::Running {
            true if mutant!("kit.waiter-waits-on") => false,
            true if mutant!("kit.verdict-without-waiter") => true,
            true => !self.hosts_get_room(),
            false => self.is_unit_due(Kind::User, MAIN) || self.is_unit_due(Kind::Journal, MAIN),
        };
        let gc = self.is_unit_due(Kind::Gc, MAIN) || self.is_unit_due(Kind::Wrap, MAIN);
        let due = held || host || gc;
        let reclaims = self.gc.reads > 0 || self.gc.erasing;
        if self.read_only.is_some() || self.writer.is_some() || !due || reclaims {
            return false;
        }
        // A barrier will begin, or go on without us; an erase is due, or will ask for a barrier.
        // None begins before the one that is under way has ended.
        let stands = self.barrier_is_active() && held;
        let barrier = match self.barrier_is_active() {
            true => !held,
            false => self.is_barrier_asked(),
        };
        let next = !stands || mutant!("kit.hopes-for-the-next-barrier");
        let next = next && self.has_time_for_erases() && self.wants_barrier();
        let erases = self.place.has_erase(self.barriers_done()) || next;
        // Who waits keeps the host from being idle, and a victim of the buffer resting.
        let waits = !self.hosts_wait.is_empty() || self.barrier_is_active();
        let waits = waits && !mutant!("kit.resting-victim-is-hope");
        let rests = |victim| waits && self.victim_rests(victim);
        // Without slots to read into no mover is called, whatever there is to collect.
        let slots = self.buffer.gc_room() >= self.room_to_go_on();
        let collects = match self.gc.victim {
            Some(victim) => slots && !rests(victim),
            None if !slots && !mutant!("kit.collects-without-slots") => false,
            None if self.slc_victim().is_some() => true,
            None if !self.gc_is_wanted() => false,
            // A mover that has not found out yet that there is nothing to collect will, and gives out again.
            None => match self.worth_collecting() {
                Some(line) => self.has_room_beside_barrier(line),
                None => !self.gc.hopeless && !mutant!("kit.mover-may-not-look"),
            },
        };
        if barrier || erases || collects {
            return false;
        }
        if !mutant!("kit.aside-is-no-room") && self.place.use_again() {
            return true;
        }
        self.read_only = Some(match over {
            true => IN_VAIN,
            false => "power cuts have taken the room that GC and its barriers need",
        });
        false
    }
}
