//! The SLC part of a drive: a buffer in front of its data at rest, and a place for journals.
//!
//! Owns: which of the host's sectors go where, when the buffer is emptied, what is counted of it.
//! Promises: a sector of a journal goes to the journal region as long as that has room, any other to
//! the buffer, and to the main pool where the buffer is full; a line of either region whose sectors
//! are all dead is erased without a copy; live sectors begin to leave the buffer in idle time only
//! (a line that was begun goes on while GC or a journal waits for it). Never: asks the detector for
//! more than a hint: wherever a sector lies, the one map says where.
//!
//! "An Advanced SLC-buffering for TLC NAND Flash-based Storage", section III: "our scheme divides the
//! SLC write buffer into *journal region* and *buffer region*" (A); "the data written into the SLC
//! buffer must migrate to the TLC region during the idle time", "if the SLC buffer is exhausted …
//! data is written directly to the TLC region", and "only N_data is written directly to the TLC
//! region" (B). How long a drive must have been idle, and how fast it migrates, the paper does not
//! say; both are settings.
//!
//! **The journal region wraps.** A loop that is written again kills what it wrote a lap before, so
//! the oldest line is dead when the next one is needed. Where it is not (the loop stood still for a
//! part of a lap, or flushes have padded the lines), the line with fewest live sectors is *copied*
//! into the buffer, or into the main pool where the buffer is full, and that is counted. A loop that
//! is longer than the region is normal data.

use flashlane_base::counters::Counters;
use flashlane_base::{Lba, Ns, counters, mutant};
use flashlane_detect::{Class, Config, Detector};
use flashlane_ocssd::device::Cause;
use flashlane_rt::{Cx, Waiter};
use std::cmp::Reverse;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::buffer::Kind;
use super::place::{LineState, MAIN};
use super::{Controller, DriveFtl, Phase, Room};
use crate::layer::Counted;

/// The pool of the SLC buffer.
pub(super) const BUFFER: usize = 1;
/// The pool of journals.
pub(super) const JOURNAL: usize = 2;

/// Sectors of journals between two looks at how long the loops are.
const LOOK: u64 = 1024;

/// While somebody waits the drive is not idle; whether that is over is looked at so often at most.
const LOOK_AGAIN: Ns = Ns::from_us(100);

/// What of a drive is SLC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierConfig {
    /// Chunks of each PU that are in SLC mode, the first ones.
    pub slc_chunks: Option<u32>,
    /// Lines of the journal region; 0 is the conventional drive, all of whose SLC is the buffer.
    pub journal_lines: Option<u32>,
    /// PUs of a line of the journal region; they divide the PUs of the drive.
    pub journal_line_pus: Option<u32>,
    /// Live sectors leave the buffer when no request has come for so long.
    pub idle: Ns,
    /// Sectors per second that leave the buffer at most.
    pub migration_rate: Option<u32>,
    /// Whether the drive itself finds journals; else only the host's hints count.
    pub detect: bool,
    /// Thresholds of the detector.
    pub detector: Config,
}

counters! {
    /// What happened in the SLC part, in sectors where nothing else is said.
    pub struct TierStats {
        /// Written by the host, and taken for a journal's.
        journal_sectors: u64, Sum, "sectors", [];
        /// Of the host's, programmed in the journal region.
        to_journal_sectors: u64, Sum, "sectors", [];
        /// Of the host's, programmed in the buffer.
        to_buffer_sectors: u64, Sum, "sectors", [];
        /// Of the host's, programmed in the main pool, because the buffer was full.
        direct_sectors: u64, Sum, "sectors", [];
        /// Of the host's, programmed in SLC before the first went directly to the main pool.
        before_direct_sectors: u64, Sum, "sectors", [];
        /// Of the host's, a journal's that found no room in the journal region.
        journal_overflow_sectors: u64, Sum, "sectors", [];
        /// Live ones that left the buffer.
        migrated_sectors: u64, Sum, "sectors", [];
        /// Live ones that were copied out of the journal region.
        journal_copied_sectors: u64, Sum, "sectors", [];
        /// Lines of both regions that were erased without a copy.
        empty_lines: u64, Sum, "lines", [];
        /// Lines of the buffer that were migrated.
        migrated_lines: u64, Sum, "lines", [];
        /// Lines of the journal region that were copied out of.
        copied_lines: u64, Sum, "lines", [];
        /// Times that the drive was idle for long enough.
        idle_times: u64, Sum, "times", [];
        /// Read by the host from one of the regions.
        slc_read_sectors: u64, Sum, "sectors", [];
        /// Programmed in the native mode: the host's, directly.
        tlc_direct_sectors: u64, Sum, "sectors", [];
        /// What left SLC.
        tlc_migrated_sectors: u64, Sum, "sectors", [];
        /// What was moved within the main pool.
        tlc_gc_sectors: u64, Sum, "sectors", [];
        /// Padding.
        tlc_padding_sectors: u64, Sum, "sectors", [];
        /// Pages, and what a failure or a barrier had programmed once more.
        tlc_other_sectors: u64, Sum, "sectors", [];
    }
}

/// The sizes of the SLC part: what is asked for, or what fits the drive.
pub(super) struct Sizes {
    pub(super) slc_chunks: u32,
    pub(super) journal_lines: u32,
    pub(super) journal_line_pus: u32,
}

impl TierConfig {
    /// Of a drive with so many PUs of so many chunks.
    pub(super) fn sizes(&self, pus: u32, chunks: u32) -> Sizes {
        let divides = |n: &u32| pus.is_multiple_of(*n);
        let narrow = || (1..=4).rev().find(divides).unwrap_or(1);
        let journal_line_pus = self.journal_line_pus.unwrap_or_else(narrow);
        let abreast = pus.checked_div(journal_line_pus).unwrap_or(1).max(1);
        // A third of a chunk's sectors in each: 1% of a TLC drive, as the paper's 640 MB of 64 GB.
        let part = chunks * 3 / 100;
        let asked = self.journal_lines;
        let least = asked.unwrap_or(2).div_ceil(abreast).saturating_add(2);
        let slc_chunks = self.slc_chunks.unwrap_or(part.max(least));
        // The paper's journal region is a fifth; two lines more are what wrapping takes.
        let journal_lines = asked.unwrap_or((slc_chunks.saturating_mul(abreast) / 4).max(2));
        Sizes { slc_chunks, journal_lines, journal_line_pus }
    }
}

/// The state of a drive's SLC part.
pub(super) struct Tier {
    pub(super) config: TierConfig,
    detector: Detector,
    /// Loops that are longer than the journal region has room for: (first, end).
    outgrown: Vec<(u64, u64)>,
    /// Sectors of journals until the loops are looked at again.
    look: u64,
    /// Sectors of loops that the journal region may hold; nothing of a conventional drive.
    journal_room: Option<u64>,
    last_request: Ns,
    /// The drive is idle, and the buffer is emptied.
    migrating: bool,
    /// No sector leaves the buffer before.
    next_read: Ns,
    idler: Option<Waiter>,
    /// Of the idler, and of whoever empties the buffer at a rate.
    alarm: Alarm,
    next_alarm: Alarm,
    /// Lines whose last live sector has died since they were looked at.
    emptied: Vec<u32>,
    pub(super) stats: TierStats,
    /// What they were when the measured part of a run began.
    before: TierStats,
}

/// When a task is polled again in idle time. Who is woken for other reasons sets no second one.
#[derive(Default)]
struct Alarm(Ns);

impl Alarm {
    /// Has the current task polled at `at` or before: then it sets the alarm again.
    fn set(&mut self, cx: &Cx, at: Ns) {
        let is_set = cx.now() < self.0 && self.0 <= at;
        if !is_set {
            cx.arm_idle(at);
            self.0 = at;
        }
    }
}

impl Tier {
    /// `journal_room`: sectors of loops that the journal region may hold, where there is one.
    pub(super) fn new(config: TierConfig, journal_room: Option<u64>) -> Tier {
        Tier {
            detector: Detector::new(config.detector),
            config,
            outgrown: Vec::new(),
            look: 0,
            journal_room,
            last_request: Ns::ZERO,
            migrating: false,
            next_read: Ns::ZERO,
            idler: None,
            alarm: Alarm::default(),
            next_alarm: Alarm::default(),
            emptied: Vec::new(),
            stats: TierStats::default(),
            before: TierStats::default(),
        }
    }

    /// Whose a write is.
    fn kind_of(&mut self, lba: u32, sectors: u32, hint: bool) -> Kind {
        let lba = Lba::new(lba.into());
        // It is told of every write: one that it does not see is a gap.
        let found = match self.config.detect {
            true => self.detector.write(lba, sectors) == Class::Journal,
            false => false,
        };
        if !(found || hint) {
            return Kind::User;
        }
        // The conventional drive counts what it does not keep apart.
        if self.journal_room.is_none() {
            self.stats.journal_sectors += u64::from(sectors);
            return Kind::User;
        }
        self.look = self.look.saturating_sub(sectors.into());
        if self.look == 0 {
            self.look = LOOK;
            self.find_outgrown();
        }
        let outgrown = |(first, end): &(u64, u64)| (*first..*end).contains(&lba.get());
        match self.outgrown.iter().any(outgrown) && !mutant!("slc.outgrown-kept") {
            true => Kind::User,
            false => Kind::Journal,
        }
    }

    /// The loops that are written most get the room that there is.
    fn find_outgrown(&mut self) {
        let mut loops = self.detector.regions();
        loops.sort_by_key(|r| (Reverse(r.blocks), r.first.get()));
        let mut room = self.journal_room.unwrap_or(0);
        self.outgrown.clear();
        for (first, end) in loops.iter().map(|r| (r.first.get(), r.end.get())) {
            match room.checked_sub(end - first) {
                Some(rest) => room = rest,
                None => self.outgrown.push((first, end)),
            }
        }
    }

    /// The loops that are known, for people: first sector, end, rounds, whether there is room.
    pub(super) fn loops(&self) -> Vec<(u64, u64, u32, bool)> {
        let regions = self.detector.regions();
        let fits = |first: u64| !self.outgrown.iter().any(|(from, _)| *from == first);
        let said = |r: &flashlane_detect::Region| {
            (r.first.get(), r.end.get(), r.laps, fits(r.first.get()))
        };
        regions.iter().map(said).collect()
    }
}

/// Empties the buffer in idle time, until the device stops.
pub(super) async fn idler(ftl: Arc<DriveFtl>, cx: Cx) {
    loop {
        let due = poll_fn(|_| {
            let mut c = ftl.controller.lock();
            if c.phase == Phase::Stopped {
                return Poll::Ready(false);
            }
            let any = c.place.greediest(BUFFER).is_some();
            // Who waits for room or for a flush has not gone away.
            let busy = !c.hosts_wait.is_empty() || c.barrier_is_active();
            let Some(tier) = &mut c.tier else {
                return Poll::Ready(false);
            };
            tier.idler = Some(cx.waiter());
            if !any || tier.migrating {
                return Poll::Pending;
            }
            let after = |at: Ns, span: Ns| Ns::from_ns(at.as_ns().saturating_add(span.as_ns()));
            let mut at = after(tier.last_request, tier.config.idle);
            if busy {
                at = at.max(after(cx.now(), tier.config.idle.max(LOOK_AGAIN)));
            }
            if cx.now() < at {
                tier.alarm.set(&cx, at);
                return Poll::Pending;
            }
            Poll::Ready(true)
        });
        if !due.await {
            return;
        }
        let mut c = ftl.controller.lock();
        if let Some(tier) = &mut c.tier {
            tier.migrating = true;
            tier.stats.idle_times += 1;
        }
        ftl.go_on(&cx, c, None, Room::default());
    }
}

impl DriveFtl {
    /// The journals that are known, a line each: first sector, end, rounds seen, whether there is room for
    /// them in the journal region.
    pub(super) fn journals(&self) -> Option<String> {
        let c = self.controller.lock();
        let line = |(first, end, rounds, fits): (u64, u64, u32, bool)| {
            let kept = if fits { "kept apart" } else { "longer than the journal region" };
            format!("{first} to {end}: {rounds} rounds, {kept}\n")
        };
        c.tier.as_ref().map(|tier| tier.loops().into_iter().map(line).collect())
    }
}

impl Controller {
    /// A request of the host has come.
    #[inline]
    pub(super) fn note_request(&mut self, cx: &Cx) {
        if let Some(tier) = &mut self.tier {
            tier.last_request = cx.now();
            if std::mem::take(&mut tier.migrating) {
                self.call_idler(cx);
            }
        }
    }

    /// Whose a write of the host is, which comes now.
    #[inline]
    pub(super) fn kind_of(&mut self, lba: u32, sectors: u32, hint: bool) -> Kind {
        match &mut self.tier {
            None => Kind::User,
            Some(tier) => {
                let kind = tier.kind_of(lba, sectors, hint);
                if kind == Kind::Journal {
                    tier.stats.journal_sectors += u64::from(sectors);
                }
                kind
            }
        }
    }

    /// The host's sectors are not needed any more: neither is what they say of a loop.
    pub(super) fn note_discard(&mut self, lba: u32, sectors: u32) {
        if let Some(tier) = self.tier.as_mut().filter(|tier| tier.config.detect) {
            tier.detector.discard(Lba::new(lba.into()), sectors.into());
        }
    }

    pub(super) fn call_idler(&self, cx: &Cx) {
        if let Some(waiter) = self.tier.as_ref().and_then(|tier| tier.idler) {
            cx.wake(waiter);
        }
    }

    /// Where the next program of the host's sectors of a kind goes, if one is due there: first where
    /// its kind is kept, and where that is full, a step further.
    #[inline]
    pub(super) fn place_of_host(&mut self, kind: Kind) -> Option<(usize, u32)> {
        if self.tier.is_some()
            && let Some(place) = self.place_in_slc(kind)
        {
            return place;
        }
        if !self.is_unit_due(kind, MAIN) || !self.user_may_program() {
            return None;
        }
        let moving = self.moving();
        let mut next = self.place.next_of_host(MAIN, moving);
        if next.is_none() && self.barrier_needs_room() {
            next = self.place.next_of_gc(MAIN);
        }
        if next.is_none() {
            self.check_room(kind);
        }
        next
    }

    /// A place in SLC; or `Some(None)`: one will come.
    fn place_in_slc(&mut self, kind: Kind) -> Option<Option<(usize, u32)>> {
        if kind == Kind::Journal {
            if !self.is_unit_due(kind, JOURNAL) {
                return Some(None);
            }
            let next = self.place.next_of_host(JOURNAL, 0);
            if !self.place.is_host_denied(JOURNAL) {
                return Some(next);
            }
            // A line is about to be erased. A barrier must not wait for one whose erase waits for it.
            let soon = || self.place.has_erase_of(JOURNAL, self.barriers_done());
            if self.place.coming(JOURNAL) > 0 && (!self.place.lend || soon()) {
                return Some(None);
            }
        }
        if !self.is_unit_due(kind, BUFFER) {
            return Some(None);
        }
        let next = self.place.next_of_host(BUFFER, 0);
        (!self.place.is_host_denied(BUFFER)).then_some(next)
    }

    /// Where sectors go that were copied out of the journal region. There is room: it was counted
    /// before the victim was taken.
    pub(super) fn place_of_wrap(&mut self) -> Option<(usize, u32)> {
        if self.is_unit_due(Kind::Wrap, BUFFER) {
            let next = self.place.next_of_host(BUFFER, 0);
            if !self.place.is_host_denied(BUFFER) {
                return next;
            }
        }
        self.is_unit_due(Kind::Wrap, MAIN).then(|| self.place.next_of_gc(MAIN))?
    }

    /// What the buffer can take beside what waits already.
    pub(super) fn room_in_buffer(&self) -> u32 {
        if self.tier.is_none() {
            return 0;
        }
        let waiting = [Kind::User, Kind::Journal, Kind::Wrap].map(|kind| self.buffer.waiting(kind));
        self.place.room_now(BUFFER).saturating_sub(waiting.iter().sum())
    }

    /// The host's sectors may go to the buffer.
    pub(super) fn buffer_has_room(&self) -> bool {
        self.tier.is_some() && self.place.host_may_go_on(BUFFER, 0)
    }

    /// Host sectors of a kind were sent to a pool.
    pub(super) fn note_sent(&mut self, kind: Kind, pool: usize, sectors: u32) {
        if let Some(tier) = &mut self.tier {
            let stats = &mut tier.stats;
            if pool != MAIN && stats.direct_sectors == tier.before.direct_sectors {
                stats.before_direct_sectors += u64::from(sectors);
            }
            let sum = match pool {
                MAIN => &mut stats.direct_sectors,
                BUFFER => &mut stats.to_buffer_sectors,
                _ => &mut stats.to_journal_sectors,
            };
            *sum += u64::from(sectors);
            if kind == Kind::Journal && pool != JOURNAL {
                stats.journal_overflow_sectors += u64::from(sectors);
            }
        }
    }

    /// A line has lost its last live sector, or has closed without one.
    #[cold]
    pub(super) fn note_empty(&mut self, line: u32) {
        let pool = self.place.layout.of(line).pool;
        if let Some(tier) = self.tier.as_mut().filter(|_| pool != MAIN) {
            tier.emptied.push(line);
        }
    }

    /// Lines without a live sector are to be erased.
    #[inline]
    pub(super) fn leave_emptied(&mut self, cx: &Cx) {
        if self.tier.as_ref().is_some_and(|tier| !tier.emptied.is_empty()) {
            self.leave_all_emptied(cx);
        }
    }

    #[cold]
    fn leave_all_emptied(&mut self, cx: &Cx) {
        let Some(tier) = &mut self.tier else { return };
        let emptied = std::mem::take(&mut tier.emptied);
        // What killed its last sectors may be in the buffer only.
        let after = match mutant!("slc.empty-line-erased-at-once") {
            true => 0,
            false => self.barrier_after_now(),
        };
        for line in emptied {
            let l = self.place.line(line);
            // It may have been taken as a victim meanwhile.
            if l.state == LineState::Closed && l.valid == 0 {
                self.place.leave_empty(line, after);
                if let Some(tier) = &mut self.tier {
                    tier.stats.empty_lines += 1;
                }
            }
        }
        self.call_eraser(cx);
    }

    /// A journal had no room in its region, still has none, and none is on its way.
    fn wrap_is_wanted(&self) -> bool {
        let still = || !self.place.host_may_go_on(JOURNAL, 0) || mutant!("slc.denied-for-ever");
        self.place.is_host_denied(JOURNAL) && self.place.coming(JOURNAL) == 0 && still()
    }

    /// The line of the SLC part whose live sectors are to leave it now.
    #[inline]
    pub(super) fn slc_victim(&self) -> Option<u32> {
        let tier = self.tier.as_ref()?;
        let may_be = tier.migrating || self.place.is_host_denied(JOURNAL);
        may_be.then(|| self.find_slc_victim(tier.migrating))?
    }

    fn find_slc_victim(&self, migrating: bool) -> Option<u32> {
        if !matches!(self.phase, Phase::Running | Phase::Draining) {
            return None;
        }
        let takes = |line: &u32| {
            let valid = self.place.line(*line).valid;
            // What is being read counts as valid of its line no more, and does not wait yet.
            let moving = self.moving() + self.gc_reading();
            let barriers = || match mutant!("slc.no-room-for-barriers") {
                true => 0,
                false => self.room_for_barriers(),
            };
            self.place.can_take(MAIN, valid, moving)
                && self.place.room_now(MAIN) >= moving + valid + barriers()
        };
        if self.wrap_is_wanted()
            && let Some(line) = self.place.greediest(JOURNAL).filter(takes)
        {
            return Some(line);
        }
        if !migrating || self.phase != Phase::Running {
            return None;
        }
        self.place.greediest(BUFFER).filter(takes)
    }

    /// The buffer is to be emptied, and the main pool has no room for it.
    #[inline]
    pub(super) fn migration_is_denied(&self) -> bool {
        let migrating = self.tier.as_ref().is_some_and(|tier| tier.migrating);
        migrating && self.slc_victim().is_none() && self.place.greediest(BUFFER).is_some()
    }

    /// Others wait until a line of the buffer has been emptied.
    fn is_migration_hurried(&self) -> bool {
        if mutant!("slc.rests-while-others-wait") {
            return false;
        }
        self.phase != Phase::Running || self.gc_is_wanted() || self.wrap_is_wanted()
    }

    /// The victim is a line of the buffer, and a request of the host has come.
    pub(super) fn victim_rests(&self, victim: u32) -> bool {
        let busy = self.tier.as_ref().is_some_and(|tier| !tier.migrating);
        busy && self.place.layout.of(victim).pool == BUFFER && !self.is_migration_hurried()
    }

    /// Whether a batch may leave the buffer now. If not, the task looks again when it may.
    pub(super) fn may_migrate(&mut self, cx: &Cx) -> bool {
        let hurried = self.is_migration_hurried();
        let Some(tier) = self.tier.as_mut().filter(|_| !hurried) else { return true };
        let waits = tier.config.migration_rate.is_some() && cx.now() < tier.next_read;
        if waits {
            tier.next_alarm.set(cx, tier.next_read);
        }
        !waits
    }

    /// So many sectors leave the buffer now.
    pub(super) fn pay_for_migration(&mut self, cx: &Cx, sectors: u32) {
        if let Some(tier) = &mut self.tier
            && let Some(rate) = tier.config.migration_rate
        {
            let takes = u64::from(sectors) * 1_000_000_000 / u64::from(rate.max(1));
            tier.next_read = cx.now().max(tier.next_read) + Ns::from_ns(takes);
        }
    }

    /// A victim was taken, of whatever pool.
    pub(super) fn note_slc_victim(&mut self, pool: usize) {
        if let Some(tier) = &mut self.tier {
            match pool {
                BUFFER => tier.stats.migrated_lines += 1,
                JOURNAL => tier.stats.copied_lines += 1,
                _ => {}
            }
        }
    }

    /// Live sectors of a victim have been read.
    pub(super) fn note_moved(&mut self, pool: usize, sectors: u32) {
        if let Some(tier) = &mut self.tier {
            match pool {
                BUFFER => tier.stats.migrated_sectors += u64::from(sectors),
                JOURNAL => tier.stats.journal_copied_sectors += u64::from(sectors),
                _ => {}
            }
        }
    }

    /// A line of the buffer has closed: it may be emptied in idle time.
    pub(super) fn note_closed(&mut self, cx: &Cx, line: u32) {
        if self.tier.is_some() {
            if self.place.line(line).valid == 0 {
                self.note_empty(line);
            }
            self.call_idler(cx);
        }
    }

    /// What happened since the drive was brought up.
    fn tier_stats(&self) -> Option<TierStats> {
        let mut stats = self.tier.as_ref()?.stats;
        for cause in Cause::ALL {
            let sum = match cause {
                Cause::User => &mut stats.tlc_direct_sectors,
                Cause::Fold => &mut stats.tlc_migrated_sectors,
                Cause::Gc => &mut stats.tlc_gc_sectors,
                Cause::PaddingFlush | Cause::PaddingPair | Cause::PaddingGc => {
                    &mut stats.tlc_padding_sectors
                }
                _ => &mut stats.tlc_other_sectors,
            };
            *sum += self.stats.native_programmed(cause);
        }
        Some(stats)
    }

    /// The measured part of a run begins.
    pub(super) fn measure_tier(&mut self) {
        if let Some(stats) = self.tier_stats()
            && let Some(tier) = &mut self.tier
        {
            tier.before = stats;
        }
        if let Some(cache) = &mut self.cache {
            cache.measure();
        }
    }

    /// What a report shows of the SLC part, or of a cached map, since the measured part of a run began.
    pub(super) fn counted(&self) -> Vec<Counted> {
        let of_map = || self.cache.as_ref().map_or(Vec::new(), |cache| cache.counted());
        let (Some(tier), Some(stats)) = (&self.tier, self.tier_stats()) else { return of_map() };
        let names = TierStats::SCHEMA.iter().map(|field| field.name);
        let since = stats.since(&tier.before).numbers();
        names.zip(since).map(|(name, value)| Counted { name, value }).collect()
    }

    /// What lies in the journal region says which loops there were before the power went.
    pub(super) fn relearn(&mut self) {
        if !self.tier.as_ref().is_some_and(|tier| tier.config.detect) {
            return;
        }
        let mut kept: Vec<u32> = Vec::new();
        for line in self.place.layout.lines_of(JOURNAL) {
            let sectors = self.place.layout.sectors_of(line);
            let mut from = sectors.start;
            while let Some(at) = self.map.next_valid(from, sectors.end) {
                kept.push(self.map.owner(at));
                from = at + 1;
            }
        }
        let capacity = self.map.capacity();
        kept.retain(|lba| *lba < capacity);
        kept.sort_unstable();
        if let Some(tier) = &mut self.tier {
            tier.detector.rebuild(kept.into_iter().map(|lba| Lba::new(lba.into())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockDev, Io};
    use crate::slc::{Scheme, SlcConfig};
    use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
    use flashlane_rt::{CostTable, Virtual};

    /// Two channels of two dies of two planes; a line of SLC has 64 sectors, a line of TLC 192.
    const DEVICE: &str = "name = \"tier\"\nppa = \"2.0\"\n\
        [geometry]\nchannels = 2\npus_per_channel = 2\nplanes = 2\nchunks_per_pu = 40\n\
        pages_per_block = 12\nsectors_per_page = 2\nws_min = 4\nws_opt = 4\nmw_cunits = 8\n\
        [timing]\nread = [\"50us\"]\nprogram = [\"1ms\"]\nerase = \"3ms\"\n\
        channel_bandwidth = \"400MB\"\n[cells]\nbits = 3\n\
        slc = { read = \"20us\", program = \"200us\", erase = \"2ms\", ws_min = 2 }\n\
        [limits]\nreset_free = true\nreset_open = true\n";

    /// Live sectors leave the SLC buffer while the main pool has room now for them and for what
    /// barriers may program before anything is erased, however much room is on its way.
    #[test]
    fn a_migration_leaves_room_for_barriers() {
        let spec = DeviceSpec::from_toml(DEVICE).expect("a device");
        let ssd = Ssd::new(&spec, SsdOptions::default()).expect("a device");
        let config = SlcConfig {
            scheme: Scheme::Conventional,
            slc_chunks: Some(2),
            idle: Ns::from_secs(1000),
            over_provisioning_percent: 50,
            buffer_sectors: Some(16),
            ..SlcConfig::default()
        };
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        let ended = run.run(async move {
            let ftl = DriveFtl::create(&cx, ssd, config).expect("a drive");
            // The chunks of the SLC part come into their mode.
            cx.sleep(Ns::from_ms(100)).await;
            for lba in 0..72u64 {
                let word = (lba + 1).to_le_bytes();
                ftl.start(&cx, Io::write(Lba::new(lba), 1, false, &word)).await.expect("a write");
            }
            ftl.start(&cx, Io::flush()).await.expect("a flush");
            cx.sleep(Ns::from_ms(100)).await;
            fill_main(&mut ftl.controller.lock());
        });
        ended.expect("nobody waits for ever");
    }

    /// Takes the free lines of the main pool, a unit at a time. A line that is full counts as one
    /// that will be erased. Looks behind each unit whether a line may leave the buffer.
    fn fill_main(c: &mut Controller) {
        let (mut goes, mut short) = (0, 0);
        while let Some((stream, position)) = c.place.next_of_gc(MAIN) {
            let (line, ..) = c.place.claim(stream, position, 1);
            if c.place.landed(line, position) {
                c.place.take_victim(line);
            }
            let first = c.place.greediest(BUFFER).expect("the host has filled a line");
            let (valid, moving) = (c.place.line(first).valid, c.moving() + c.gc_reading());
            let left = c.place.room_now(MAIN).checked_sub(valid + moving);
            let barriers = c.room_for_barriers();
            match (c.find_slc_victim(true), left) {
                (Some(_), left) => {
                    assert!(left >= Some(barriers), "{left:?} left, barriers may take {barriers}");
                    goes += 1;
                }
                (None, Some(_)) => short += u32::from(c.place.can_take(MAIN, valid, moving)),
                (None, None) => {}
            }
        }
        assert!(goes > 0 && short > 0, "{goes} times a line may go, {short} times for itself only");
    }
}
