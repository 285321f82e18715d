//! From the buffer to the medium: forming units, programming them, settling what came back.
//!
//! Owns: one worker per PU, the unit each has in hand, the windows of chunks that can't be read
//! back yet. Promises: one program at a time per PU; the map names the medium only when the medium
//! can give the sector back; a sector whose program failed waits again, in front, with the stamp it
//! has. Never: chooses a PU or a line (that is `place.rs`), or starts GC (that is `gc.rs`).
//!
//! A unit is formed and addressed by whoever notices that one is due ([`Controller::dispatch`]), so
//! data leaves in order whatever the executor polls first; the worker of the PU only submits it and
//! waits. Units of GC go first: host data can wait in the buffer, GC makes the room it waits for.
//!
//! After a failed program the failed sectors wait again, and the chunk is retired when its line is
//! next erased. Where the device closed the chunk (F1h) or its die is dead, the sectors in the
//! chunk's window wait again too, with cause `Retry`; after F0h the chunk is written on. A failed
//! sector that moved the write pointer (F0h) was programmed once for all who count; one that did
//! not was not, and keeps its cause.

use flashlane_base::{OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, Completion, Device, Flags, Gather, InFlight};
use flashlane_ocssd::device::{Request, Status};
use flashlane_rt::{Cx, Waiter};
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::buffer::{Kind, NIL, Stage};
use super::map::Entry;
use super::place::{LineState, MAIN};
use super::witness::Round;
use super::{Controller, DriveFtl, Phase, Room, read};
use crate::log::format::{LBA_PADDING, Oob};

/// What a unit is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Slots of the buffer.
    Sectors(Kind),
    /// Pages ([`super::pages`]).
    Pages,
    /// Sectors of a snapshot ([`super::rest`]).
    Snapshot,
    /// Nothing: it closes pairs and windows.
    Padding,
}

/// A unit on its way to the medium.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    stream: usize,
    pub(super) line: u32,
    /// First sector in the chunk, and how many.
    pub(super) from: u32,
    pub(super) n: u32,
    pub(super) load: Load,
}

#[derive(Default)]
pub(super) struct Worker {
    waiter: Option<Waiter>,
    job: Option<Job>,
    /// The job has gone to the medium.
    submitted: bool,
    /// Slots of the job, in the order of its addresses; of a job of pages, [`NIL`] for each.
    pub(super) slots: Vec<u32>,
    /// Pages of the job, likewise.
    pub(super) pages: Vec<u32>,
}

impl Worker {
    /// It has a unit.
    pub(super) fn is_at_work(&self) -> bool {
        self.job.is_some()
    }

    /// Its job has gone to the medium, and has not ended.
    pub(super) fn is_awaited(&self) -> bool {
        self.job.is_some() && self.submitted
    }

    /// Slots of its job, submitted or not.
    pub(super) fn flying(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().copied().filter(|_| self.job.is_some())
    }
}

/// Programmed slots that their chunk can't give back yet, the oldest first; [`NIL`] where a sector
/// was dead, lost or padding.
pub(super) type Window = VecDeque<u32>;

/// Where commands are put together: arrays that need not be cleared for each.
pub(super) struct Scratch {
    pub(super) addrs: [Ppa; VECTOR_MAX],
    pub(super) oob: [[u8; OOB_BYTES]; VECTOR_MAX],
    pub(super) cause: [Cause; VECTOR_MAX],
}

impl Scratch {
    pub(super) fn new() -> Box<Scratch> {
        Box::new(Scratch {
            addrs: [Ppa(0); VECTOR_MAX],
            oob: [[0; OOB_BYTES]; VECTOR_MAX],
            cause: [Cause::User; VECTOR_MAX],
        })
    }
}

/// Programs what is due on one PU until the device stops.
pub(super) async fn worker(ftl: Arc<DriveFtl>, cx: Cx, position: u32) {
    loop {
        let next = poll_fn(|_| {
            let mut c = ftl.controller.lock();
            if c.phase == Phase::Stopped {
                return Poll::Ready(None);
            }
            match c.submit_program(&cx, &*ftl.device, position) {
                Some(flight) => Poll::Ready(Some(flight)),
                None => Poll::Pending,
            }
        });
        let Some(flight) = next.await else {
            return;
        };
        let done = flight.await;
        let mut c = ftl.controller.lock();
        let room = c.settle(&cx, position, &done);
        ftl.go_on(&cx, c, Some(position), room);
    }
}

impl Controller {
    /// Gives every unit that is due to a PU and wakes that PU's worker, unless it is `me`, who is
    /// about to look. Called after everything that may have made a unit due.
    pub(super) fn dispatch(&mut self, cx: &Cx, me: Option<u32>) {
        self.give_out(cx, me);
        self.call_gc(cx);
    }

    /// As [`Controller::dispatch`], for a mover that has found nothing to do: two that call each other
    /// would go on for ever.
    pub(super) fn give_out(&mut self, cx: &Cx, me: Option<u32>) {
        while let Some((load, stream, position)) = self.next_unit() {
            self.assign(load, stream, position);
            let worker = &self.workers[position as usize];
            if me != Some(position)
                && let Some(waiter) = worker.waiter
            {
                cx.wake(waiter);
            }
        }
    }

    /// The next unit to form, with the stream and position it goes to.
    #[inline]
    fn next_unit(&mut self) -> Option<(Load, usize, u32)> {
        if self.writer.is_some()
            && let Some(next) = self.next_of_snapshot()
        {
            return Some(next);
        }
        if self.barriers.is_closing()
            && let Some((stream, position)) = self.next_padding()
        {
            return Some((Load::Padding, stream, position));
        }
        if self.is_unit_due(Kind::Gc, MAIN) {
            if let Some((stream, position)) = self.place.next_of_gc(MAIN) {
                return Some((Load::Sectors(Kind::Gc), stream, position));
            }
            self.check_room(Kind::Gc);
        }
        if self.buffer.waiting(Kind::Wrap) > 0
            && let Some((stream, position)) = self.place_of_wrap()
        {
            return Some((Load::Sectors(Kind::Wrap), stream, position));
        }
        if (self.pages.waiting() > 0 || self.barriers.holds_pages())
            && let Some(next) = self.next_pages()
        {
            return Some(next);
        }
        if self.buffer.waiting(Kind::Journal) > 0
            && let Some((stream, position)) = self.place_of_host(Kind::Journal)
        {
            return Some((Load::Sectors(Kind::Journal), stream, position));
        }
        if let Some((stream, position)) = self.place_of_host(Kind::User) {
            return Some((Load::Sectors(Kind::User), stream, position));
        }
        if !self.capacitors && self.no_program_flies() && self.check_standstill() {
            return self.next_unit();
        }
        None
    }

    /// A whole unit of a pool waits; when the device stops, the rest that fills none counts as one.
    #[inline]
    pub(super) fn is_unit_due(&self, kind: Kind, pool: usize) -> bool {
        let waiting = self.buffer.waiting(kind);
        if waiting >= self.place.unit(pool) || self.buffer.covered_waiting(kind) > 0 {
            return true;
        }
        let rest = self.phase == Phase::Draining && waiting > 0;
        rest && (kind.is_host() || self.gc.is_quiet())
    }

    fn assign(&mut self, load: Load, stream: usize, position: u32) {
        let want = match load {
            Load::Sectors(kind) => self.buffer.waiting(kind).max(1),
            Load::Pages => self.pages_to_send().max(1),
            Load::Snapshot | Load::Padding => u32::MAX / 2,
        };
        let (line, from, n) = self.place.claim(stream, position, want);
        let worker = &mut self.workers[position as usize];
        assert!(worker.job.is_none(), "a busy PU was called idle");
        worker.job = Some(Job { stream, line, from, n, load });
        worker.submitted = false;
        worker.slots.clear();
        match load {
            Load::Sectors(kind) => {
                let held = self.buffer.waiting(kind).min(n);
                self.buffer.pop_unit(kind, n, &mut worker.slots);
                let pool = self.place.layout.of(line).pool;
                if kind.is_host() {
                    self.note_sent(kind, pool, held);
                    if pool == MAIN {
                        self.note_user_unit(n);
                    }
                }
            }
            Load::Padding => worker.slots.resize(n as usize, NIL),
            Load::Snapshot => {
                worker.slots.resize(n as usize, NIL);
                self.take_snapshot_unit(position);
            }
            Load::Pages => {
                let pages = self.take_pages(n);
                self.note_pages_at(position, &pages);
                self.workers[position as usize].pages = pages;
            }
        }
    }

    /// Submits the job of a PU, if it has one, and notes who waits for the next.
    fn submit_program<'a>(
        &mut self,
        cx: &'a Cx,
        device: &'a (dyn Device + 'static),
        position: u32,
    ) -> Option<InFlight<'a>> {
        let worker = &mut self.workers[position as usize];
        worker.waiter = Some(cx.waiter());
        let job = worker.job.filter(|_| !worker.submitted)?;
        worker.submitted = true;
        if !matches!(job.load, Load::Sectors(_)) {
            return Some(self.submit_pages(cx, device, position, job));
        }
        let slots = std::mem::take(&mut worker.slots);
        let format = device.format();
        let chunk = format.pack(self.place.layout.chunk(job.line, position));
        let n = slots.len();
        let slc = self.place.layout.is_slc(job.line);
        let mut user = 0;
        for (i, slot) in slots.iter().enumerate() {
            let (oob, cause) = self.seal(*slot);
            self.scratch.addrs[i] = format.in_chunk(chunk, job.from + i as u32);
            self.scratch.oob[i] = oob;
            self.scratch.cause[i] = cause;
            self.stats.count(cause, slc);
            user += (cause == Cause::User) as u64;
            if cause == Cause::Metadata
                && let Some(cache) = &mut self.cache
            {
                cache.note_programmed();
            }
        }
        self.stats.ftl.buffered_now -= user;
        if !self.capacitors {
            let padding = self.buffer.padding();
            self.bear_witness(position, job, |i| slots[i] != padding);
        }
        let content = Gather::new(self.buffer.slab(), &slots, self.content_bytes);
        let (oob, cause) = (&self.scratch.oob[..n], &self.scratch.cause[..n]);
        let flags = Flags { fua: !mutant!("kit.program-not-fua"), ..Flags::DEFAULT };
        let request = Request::write(&self.scratch.addrs[..n], content, oob, cause);
        let flight = device.io(cx, request.with(flags));
        self.workers[position as usize].slots = slots;
        Some(flight)
    }

    /// The out-of-band record and the cause of a slot that is about to be programmed.
    #[inline]
    fn seal(&mut self, slot: u32) -> ([u8; OOB_BYTES], Cause) {
        if slot == self.buffer.padding() {
            let crc = read::content_crc(self.buffer.content(slot));
            let sequence = self.place.opened();
            return (Oob::encode_raw(LBA_PADDING, sequence, crc), Cause::PaddingFlush);
        }
        let s = self.buffer.slot(slot);
        if s.sealed {
            return (s.oob, s.cause);
        }
        let crc = read::content_crc(self.buffer.content(slot));
        let s = self.buffer.slot_mut(slot);
        s.oob = Oob::encode_raw(s.lba as u64, s.stamp, crc);
        s.sealed = true;
        (s.oob, s.cause)
    }

    /// Has the records of a unit speak of the other chunks of its line, but for those of a type
    /// (`witness.rs`).
    pub(super) fn bear_witness(
        &mut self,
        position: u32,
        job: Job,
        has_lba: impl Fn(usize) -> bool,
    ) {
        let line = self.place.layout.positions_of(job.line);
        let tags = self.place.tags_of(job.line);
        let mut round = Round::from(job.from, position - line.start, line.len() as u32);
        for (i, oob) in self.scratch.oob[..job.n as usize].iter_mut().enumerate() {
            let tag = round.next().map_or(0, |column| tags[column as usize]);
            if has_lba(i) {
                Oob::set_tag(oob, tag);
            }
        }
    }

    /// Takes in the result of a PU's program. Returns the host room that became free.
    fn settle(&mut self, cx: &Cx, position: u32, done: &Completion) -> Room {
        let worker = &mut self.workers[position as usize];
        let job = worker.job.take();
        let job = job.expect("a program ended that nobody started");
        let mut slots = std::mem::take(&mut worker.slots);
        let window = job.stream * self.workers.len() + position as usize;
        let mut room = Room::default();
        let mut over = false;
        if !matches!(job.load, Load::Sectors(_)) {
            over = self.settle_pages(&mut slots, position, job, done);
        } else {
            self.ask_for_entries(&slots, window, position, job);
            if done.failed != 0 {
                over = self.program_failed(&mut slots, position, job, done, &mut room);
            }
            let padding = self.buffer.padding();
            let says = slots.iter().map(|slot| *slot != NIL && *slot != padding);
            self.place.hear((job.line, position), job.from, says);
            self.programmed(&mut slots, position, job, &mut room);
        }
        self.windows[window].extend(&slots);
        if self.barriers.has_pairs() {
            let over = self.place.is_over(job.stream, job.line, position);
            let padding = matches!(job.load, Load::Padding | Load::Snapshot);
            let programmed = (job.from, job.from + job.n);
            self.note_pairs(window, job.line, programmed, padding, over);
        }
        if over {
            if !mutant!("kit.pages-of-lost-chunk-kept") {
                self.pages_in_lost_chunk(job.line, position);
            }
            self.place.forget_heard(job.line);
            self.empty_window(window, &mut room);
        } else {
            self.advance_window(window, position, job);
        }
        if self.place.landed(job.line, position) {
            self.note_closed(cx, job.line);
        }
        self.workers[position as usize].slots = slots;
        room
    }

    /// The sectors of a unit are on the medium, but for those that were taken out as [`NIL`].
    #[inline]
    fn programmed(&mut self, slots: &mut [u32], position: u32, job: Job, room: &mut Room) {
        let base = self.place.layout.sector_at(job.line, position, job.from);
        if self.buffer.covered() > 0 {
            let programmed = slots.iter().filter(|slot| **slot != NIL);
            programmed.for_each(|slot| self.buffer.uncover(*slot));
        }
        let mut valid = 0;
        for (at, slot) in (base..).zip(slots) {
            if *slot == NIL || *slot == self.buffer.padding() {
                *slot = NIL;
                continue;
            }
            let kind = self.buffer.kind(*slot);
            let s = self.buffer.slot_mut(*slot);
            if std::mem::take(&mut s.holds_room) {
                room.add(kind);
            }
            if s.live {
                (s.at, s.stage) = (at, Stage::Window);
                self.map.take(at, s.lba);
                if let Some(cache) = &mut self.cache {
                    cache.changed(s.lba, s.cause);
                }
                valid += 1;
            } else {
                self.buffer.free(*slot);
                *slot = NIL;
            }
        }
        self.place.line_mut(job.line).valid += valid;
    }

    /// Brings the map entries near that will change when `job` is settled, each a cache miss of its
    /// own: those of the window's oldest unit, or of the job itself where there is no window.
    #[inline]
    fn ask_for_entries(&self, slots: &[u32], window: usize, position: u32, job: Job) {
        let keep = self.place.layout.of(job.line).window;
        if keep == 0 {
            slots.iter().for_each(|slot| self.map.prefetch(self.buffer.slot(*slot).lba));
            return;
        }
        let held = self.windows[window].len() as u32;
        if held >= keep {
            let base = self.place.layout.sector_at(job.line, position, job.from - held);
            (base..base + job.n).for_each(|at| self.map.prefetch(self.map.owner(at)));
        }
    }

    /// Lets go of the units that the chunk can give back now that `job` is programmed: those with
    /// `mw_cunits` sectors written behind their last one, or all when the chunk is full.
    fn advance_window(&mut self, window: usize, position: u32, job: Job) {
        let region = self.place.layout.of(job.line);
        let (unit, end) = (region.unit, job.from + job.n);
        let held = self.windows[window].len() as u32;
        let keep = match end == region.chunk_sectors || mutant!("kit.window-ignored") {
            true => 0,
            false => held.min(region.window.next_multiple_of(unit)),
        };
        let mut from = end - held;
        while from < end - keep {
            let n = (unit - self.place.layout.of(job.line).in_unit(from)).min(end - keep - from);
            self.let_go(window, self.place.layout.sector_at(job.line, position, from), n);
            from += n;
        }
    }

    /// The medium can give the oldest `n` sectors of a window back: the map names them where it named
    /// the slots. The slots themselves are not looked at, they have gone cold.
    #[inline]
    fn let_go(&mut self, window: usize, base: u32, n: u32) {
        let window = &mut self.windows[window];
        for (at, slot) in (base..).zip(window.drain(..n as usize)) {
            if slot == NIL {
                continue;
            }
            let lba = self.map.owner(at);
            if self.map.get(lba) == Entry::Slot(slot) || mutant!("kit.window-overwrites") {
                self.map.set(lba, Entry::Media(at));
            }
            self.buffer.free(slot);
        }
    }

    /// The chunk is over before it can give back what its window holds: all of that waits again.
    #[cold]
    fn empty_window(&mut self, window: usize, room: &mut Room) {
        while let Some(slot) = self.windows[window].pop_back() {
            if slot == NIL {
                continue;
            }
            let s = *self.buffer.slot(slot);
            if mutant!("kit.window-of-lost-chunk-kept") {
                if s.live {
                    self.map.set(s.lba, Entry::Media(s.at));
                }
                self.buffer.free(slot);
                continue;
            }
            if s.live {
                self.forget_copy(s.at);
            }
            self.wait_again(slot, room);
        }
    }

    /// Takes the sectors that a program lost out of its unit; they wait again. Returns whether the
    /// chunk is over.
    #[cold]
    fn program_failed(
        &mut self,
        slots: &mut [u32],
        position: u32,
        job: Job,
        done: &Completion,
        room: &mut Room,
    ) -> bool {
        let mut over = false;
        for (i, slot) in slots.iter_mut().enumerate().rev() {
            let status = done.status(i);
            if status.is_ok() || mutant!("kit.failure-ignored") {
                continue;
            }
            assert!(
                matches!(
                    status,
                    Status::WriteNextUnit
                        | Status::ChunkEarlyClose
                        | Status::WriteFault
                        | Status::HostFault
                ),
                "a program at the write pointer of line {} gave {status:?}",
                job.line
            );
            let programmed = status == Status::WriteNextUnit;
            over |= self.note_failure(position, job, status);
            if *slot == self.buffer.padding() {
                if !programmed {
                    let slc = self.place.layout.is_slc(job.line);
                    self.stats.uncount(Cause::PaddingFlush, slc);
                }
            } else if programmed {
                self.wait_again(*slot, room);
            } else {
                self.uncount(*slot, job.line);
                self.put_back(*slot, room);
            }
            *slot = NIL;
        }
        self.check_spare();
        over
    }

    /// A sector's program failed: of the chunk, the unit and the counters. Returns whether the
    /// chunk is over. One that the host of an image did not take says nothing of the chunk, but
    /// what was programmed there before can't be padded: the device takes no more writes.
    #[cold]
    pub(super) fn note_failure(&mut self, position: u32, job: Job, status: Status) -> bool {
        self.stats.ftl.program_failures += 1;
        self.fail_snapshot();
        if status == Status::WriteNextUnit && !mutant!("kit.failed-unit-not-void") {
            let base = self.place.layout.sector_at(job.line, position, job.from);
            let grains = self.place.layout.grains_of(base, job.n);
            grains.for_each(|grain| self.pages.set_void(grain, true));
        }
        if status == Status::HostFault && !self.capacitors && !mutant!("kit.host-is-a-bad-chunk") {
            self.read_only = Some(super::HOST_TROUBLE);
        }
        // Without capacitors nobody would know of the void unit behind later ones.
        let abandon = !self.capacitors && !mutant!("kit.failed-chunk-written-on");
        self.place.program_failed(job.line, position, status, abandon)
    }

    /// Grains in a program that has not ended.
    pub(super) fn grains_under_way(&self) -> BTreeSet<u32> {
        let layout = &self.place.layout;
        let jobs = (0u32..).zip(&self.workers).filter_map(|(p, w)| Some((p, w.job?)));
        let grains =
            |(p, job): (u32, Job)| layout.grains_of(layout.sector_at(job.line, p, job.from), job.n);
        jobs.flat_map(grains).collect()
    }

    /// A sector was counted as programmed when it was sent, but never was.
    fn uncount(&mut self, slot: u32, line: u32) {
        let s = *self.buffer.slot(slot);
        self.stats.uncount(s.cause, self.place.layout.is_slc(line));
        let ftl = &mut self.stats.ftl;
        if s.cause != Cause::User {
            return;
        }
        match (s.live, s.discarded) {
            (true, _) => ftl.buffered_now += 1,
            (false, true) => ftl.discarded_in_buffer += 1,
            (false, false) => ftl.absorbed += 1,
        }
    }

    /// A slot whose content was programmed, and lost, waits for another program.
    fn wait_again(&mut self, slot: u32, room: &mut Room) {
        self.buffer.slot_mut(slot).cause = Cause::Retry;
        if mutant!("kit.retry-with-new-stamp") {
            self.stamp += 1;
            let s = self.buffer.slot_mut(slot);
            (s.stamp, s.sealed) = (self.stamp, false);
        }
        self.put_back(slot, room);
    }

    /// Puts a slot back to the front of its queue, or frees it if its content is garbage by now.
    fn put_back(&mut self, slot: u32, room: &mut Room) {
        let live = self.buffer.slot(slot).live;
        if live || self.buffer.is_kept(slot) {
            let s = self.buffer.slot_mut(slot);
            if !live && s.cause == Cause::User {
                s.cause = Cause::Dead;
            }
            self.buffer.push_front(slot);
            return;
        }
        self.buffer.uncover(slot);
        if std::mem::take(&mut self.buffer.slot_mut(slot).holds_room) {
            room.add(self.buffer.kind(slot));
        }
        self.buffer.free(slot);
    }

    /// The copy at `at` is not the newest any more.
    #[inline]
    pub(super) fn forget_copy(&mut self, at: u32) {
        self.map.drop_copy(at);
        let line = self.place.layout.line_of(at);
        let l = self.place.line_mut(line);
        l.valid -= 1;
        if l.valid == 0 && l.state == LineState::Closed {
            self.note_empty(line);
        }
    }

    /// Wakes all workers: the device has stopped.
    pub(super) fn wake_workers(&self, cx: &Cx) {
        for worker in &self.workers {
            if let Some(waiter) = worker.waiter {
                cx.wake(waiter);
            }
        }
    }

    /// No unit is in a worker's hand.
    pub(super) fn no_program_flies(&self) -> bool {
        self.workers.iter().all(|w| w.job.is_none())
    }
}
