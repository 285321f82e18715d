//! When a target gives up for want of room, and what it says then.
//!
//! Owns: the two verdicts (what is in the rings has nowhere to go; nothing is left to collect), and the
//! accounting that they are told with. Promises: a verdict is about one state of the target, not about
//! parts of several: while it is made no barrier passes, no line is freed and no victim is taken, and
//! what is still on its way (a program, a line that opens or closes, chunks behind a barrier that has
//! passed) speaks against it. What was collected in vain is so only until something changes garbage or
//! room. Bad chunks are blamed only where there are some.
//! Never: opens, collects or frees anything.

use crate::log::HostFtl;
use crate::log::pool::{LineState, PoolState};
use crate::log::pools::Pool;
use crate::log::ring::{Ring, RingState};
use crate::log::rings::Positions;
use crate::log::victim::Reason;
use flashlane_base::mutant;
use flashlane_rt::Cx;
use flashlane_rt::sync::{Ordering, hesitate};

/// How far the lines have come that are being freed.
pub(in crate::log) enum Barrier {
    /// There are none.
    Idle,
    /// They wait until the rings have come to these positions.
    Waits(Positions),
    /// The rings have: the chunks come back by themselves.
    Passed,
}

/// Why a drainer gives up.
pub(in crate::log) const STRANDED: &str = "no chunk is left to write to";
/// Why a collector does.
pub(in crate::log) const EXHAUSTED: &str = "no spare is left to write to";

impl HostFtl {
    /// What is in the rings has nowhere to go, ever: no line can be opened, none is on its way, and
    /// every line to be freed waits for the rings.
    pub(in crate::log) fn is_stranded(&self) -> bool {
        // Held throughout: nothing comes back meanwhile. So a pool that is cornered stays cornered, and
        // they can be looked at one after the other.
        let alone = (!mutant!("log.stranded-unlocked")).then(|| self.gc.barrier.lock());
        let is_over = |p: &mut PoolState| p.is_cornered() && p.next_width(true).is_none();
        let are_over = || self.pools.all(|p| is_over(p));
        let is_first = mutant!("log.stranded-pools-last") || are_over();
        hesitate();
        let barrier = alone.unwrap_or_else(|| self.gc.barrier.lock());
        // Last: a unit is done before its line may close, so whatever was under way has ended by now.
        let waits = match &*barrier {
            Barrier::Idle => self.pools.count(LineState::Freeing) == 0,
            Barrier::Waits(to) => !self.rings.are_durable(to),
            Barrier::Passed => mutant!("log.passed-barrier-strands"),
        };
        hesitate();
        is_first && waits && (!mutant!("log.stranded-pools-last") || are_over())
    }

    /// The spare that was checked at creation is gone: users have no share, nothing is on its way, and no
    /// line (`worth` of one pool) is worth collecting.
    pub(in crate::log) fn is_exhausted(&self, worth: Option<(u32, Reason)>) -> bool {
        let may_be = || self.shares().users == 0 && worth.is_none();
        self.gc.enabled.load(Ordering::Acquire) && !self.read_only() && may_be() && {
            // Held throughout: no line becomes a victim, no barrier passes.
            let _alone = (!mutant!("log.exhausted-beside-choice")).then(|| self.gc.choosing.lock());
            let barrier = self.gc.barrier.lock();
            // Shares follow the chunks that came back a moment later.
            let passed =
                matches!(&*barrier, Barrier::Passed) && !mutant!("log.passed-barrier-strands");
            !passed && may_be() && self.is_over()
        }
    }

    /// Nothing is on its way, and no line is worth collecting.
    fn is_over(&self) -> bool {
        use LineState::{Closing, Freeing, Opening, Victim};
        let opens = |p: &PoolState| match mutant!("log.verdict-without-opened") {
            false => p.is_opening(),
            true => p.count(Opening) > 0,
        };
        let frees = |p: &PoolState| {
            p.count(Victim) + p.count(Freeing) > 0 && !mutant!("log.verdict-over-freeing")
        };
        let comes =
            |p: &mut PoolState| opens(p) || frees(p) || p.count(Closing) > 0 || p.is_programmed();
        let unit = self.shape.unit as usize;
        // A unit is its ring's until it is programmed or waits there again.
        let works = |r: &RingState| {
            r.has_work(unit) || !r.all_ended() && !mutant!("log.verdict-without-units")
        };
        let drains = || self.rings.iter().any(|ring| ring.state.now(|r| works(r)));
        // Who was admitted and is in no ring yet comes with sectors that may make garbage.
        let arrives = |ring: &Ring| {
            let [(users, _), (gc, _)] = ring.admission.snapshot();
            let is_more = |r: &mut RingState| r.all_ended() && users + gc > r.waiting() as u64;
            ring.state.now(is_more) && !mutant!("log.verdict-without-admitted")
        };
        let has_place = || {
            let cornered = self.pools.all(|p| p.is_cornered());
            let opens =
                |p: &PoolState| p.may_open(cornered) && !mutant!("log.verdict-without-openable");
            self.pools.any(|p| p.has_room() || opens(p))
        };
        let taken = || self.rings.sum(RingState::units_taken);
        loop {
            let before = taken();
            let comes = self.pools.any(comes);
            hesitate();
            let moves = comes || self.rings.iter().any(arrives) || drains() && has_place();
            hesitate();
            // What was taken meanwhile may have gone to a pool that had been looked at.
            if moves || taken() == before || mutant!("log.verdict-of-two-states") {
                let nothing = |pool: &Pool| self.worth_collecting(pool).is_none();
                return !moves && self.pools.iter().all(nothing);
            }
        }
    }

    /// The line to collect next, where collecting still wins something. A pool that has collected each of
    /// its lines twice since anything changed (`changes`) wins nothing more: padding before barriers
    /// takes as much as collections bring, and to go on would only wear the flash. What has nothing valid
    /// or a failed chunk is worth it always.
    pub(in crate::log) fn worth_collecting(&self, pool: &Pool) -> Option<(u32, Reason)> {
        self.candidate(pool, false).filter(|(line, why)| {
            let (lines, failed) = {
                let p = pool.lock();
                (p.lines().count() as u64, p.line(*line).failed)
            };
            let is_free =
                self.lines.valid(*line) == 0 && !mutant!("log.garbage-is-collected-in-vain");
            *why != Reason::Room
                || failed
                || is_free
                || !self.collected_all_twice(pool, lines)
                || mutant!("log.collects-in-vain")
        })
    }

    fn collected_all_twice(&self, pool: &Pool, lines: u64) -> bool {
        let collector = &pool.collector;
        collector.fruitless.load(Ordering::Relaxed) > 2 * lines
            && (collector.since.load(Ordering::Relaxed) == self.changes()
                || mutant!("log.vain-behind-the-host"))
    }

    /// Gives up for want of room, with the accounting.
    pub(in crate::log) fn give_up_full(&self, cx: &Cx, what: &str) {
        if !self.read_only() {
            // A target says so once in its life: that this text stays is no leak that grows.
            self.give_up(cx, Box::leak(self.room_report(what).into_boxed_str()));
        }
    }

    /// What there is, and where it is: chunks, lines, the reserve, the barrier, the rings.
    pub(in crate::log) fn room_report(&self, what: &str) -> String {
        use LineState::{Closed, Closing, Freeing, Open, Opening, Victim};
        let sum = |of: &dyn Fn(&PoolState) -> u64| self.pools.sum(of);
        let states = [Opening, Open, Closing, Closed, Victim, Freeing];
        let lines = states.map(|s| format!("{} {s:?}", self.pools.count(s)).to_lowercase());
        let in_lines = sum(&|p| p.lines().map(|(_, l)| l.chunks.len() as u64).sum());
        let failing = sum(&|p| p.lines().map(|(_, l)| l.retire.len() as u64).sum());
        let bad = failing + sum(&|p| p.retired_chunks.len() as u64);
        let blame = match bad {
            0 => "no chunk has gone bad".into(),
            n => format!("{n} chunks have gone bad since the target was created"),
        };
        let levels = self.pools.iter().map(|pool| pool.limiter.lock().levels().reserve);
        let barrier = match &*self.gc.barrier.lock() {
            Barrier::Idle => "none".into(),
            Barrier::Passed => "passed".into(),
            Barrier::Waits(to) => {
                format!("at {}", to.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
            }
        };
        let rings = self.rings.iter().map(|ring| {
            let (end, durable, again) =
                ring.state.now(|r| (r.tail(), r.durable_to(), !r.nothing_again()));
            let [(users, user_share), (gc, gc_share)] = ring.admission.snapshot();
            let again = if again { ", some again" } else { "" };
            format!("{durable} of {end} programmed{again}, users {users}/{user_share}, GC {gc}/{gc_share}")
        });
        format!(
            "{what}: {blame}; chunks {} free, {} kept for metadata, {in_lines} in lines, reserve {}; \
             lines {}; room for {} sectors; barrier {barrier}; rings {}",
            sum(&|p| p.free_chunks()),
            sum(&|p| p.meta_reserve),
            levels.sum::<u64>(),
            lines.join(", "),
            sum(&|p| p.room()),
            rings.collect::<Vec<_>>().join("; "),
        )
    }
}
