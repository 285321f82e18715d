//! Which line is collected next, and why.
//!
//! Owns: the choice of victims for room, for wear and for data that decays, and the room that each
//! must find. Promises: a line with a failed chunk comes first; a line is never collected for another
//! reason than room while another such line is on its way, nor without free room for everything
//! admitted and all that is valid in it, so that collections for room keep their reserve; what is
//! chosen depends on counts and sequences only. Never: moves anything (that is `gc`: every victim goes
//! the same way, under the same rules).
//!
//! Static wear leveling needs no second stream: a line whose chunks lag behind is collected like any
//! other, its sectors go to whatever line is open, which is made of chunks that were worn by the
//! traffic that passed the cold ones by; and the chunks that come back are the least worn, so they are
//! taken first.

use crate::log::config::worded;
use crate::log::gc::batch_least;
use crate::log::pool::{Line, LineState, PoolState};
use crate::log::pools::Pool;
use crate::log::{HostFtl, add};
use flashlane_base::mutant;
use flashlane_rt::sync::{AtomicBool, AtomicU64, Ordering};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

worded! {
    /// How wear is spread over the chunks.
    pub enum WearLeveling {
        /// Not at all: of a PU's free chunks the one with the lowest number is taken.
        Off = "off",
        /// The least worn free chunk of a PU is taken.
        #[default]
        Dynamic = "dynamic",
        /// And data that lies still on chunks of little wear is moved, so that they are used, too.
        Static = "static",
    }
}

/// Settings of wear leveling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WearConfig {
    pub leveling: WearLeveling,
    /// `static`: a line is moved whose chunks were erased so many times less than the average chunk.
    pub spread: u32,
}

impl Default for WearConfig {
    fn default() -> WearConfig {
        WearConfig { leveling: WearLeveling::Dynamic, spread: 32 }
    }
}

impl WearConfig {
    pub(in crate::log) fn least_worn_first(self) -> bool {
        self.leveling != WearLeveling::Off
    }

    pub(in crate::log) fn check(self) -> Result<(), &'static str> {
        match self.spread {
            0 => Err("a wear spread of 0 erases would move data for ever: at least 1"),
            _ => Ok(()),
        }
    }
}

/// One line in so many is moved for wear at most: what that writes is bounded by as much.
const LEVEL_EVERY: u64 = 8;

/// Why a line is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::log) enum Reason {
    /// Its room, or a bad chunk in it.
    Room,
    /// Its chunks are worn too little.
    Wear,
    /// Its data decays.
    Decay,
}

/// What is collected for other reasons than room.
pub(in crate::log) struct Care {
    wear: WearConfig,
    /// One line at a time.
    under_way: AtomicBool,
    /// Sequence that lines had come to when one was moved for its wear.
    leveled: AtomicU64,
}

impl Care {
    pub(in crate::log) fn new(wear: WearConfig) -> Care {
        Care { wear, under_way: AtomicBool::new(false), leveled: AtomicU64::new(0) }
    }

    /// The line that was collected for such a reason is free.
    pub(in crate::log) fn done(&self) {
        self.under_way.store(false, Ordering::Release);
    }
}

impl HostFtl {
    /// The line to collect next: a line with a failed chunk or nothing valid first; then one that
    /// decays or lags behind in wear, if there is room to spare; then, when the limiter wants it or
    /// `force`, the fewest valid sectors per chunk. For its room a line that is valid throughout is
    /// never worth it.
    pub(in crate::log) fn candidate(&self, pool: &Pool, force: bool) -> Option<(u32, Reason)> {
        let wanted = force || self.is_wanted(pool);
        if !force && !self.gc.enabled.load(Ordering::Acquire) {
            return None;
        }
        let p = pool.lock();
        let closed = p.lines().filter(|(_, l)| l.state == LineState::Closed);
        let mut best: Option<(u64, u64, u32)> = None;
        for (id, l) in closed {
            let valid = self.lines.valid(id) as u64;
            if l.failed || valid == 0 {
                return Some((id, Reason::Room));
            }
            let chunks = l.chunks.len() as u64;
            // Per chunk: a narrow line has few valid sectors however full it is.
            let less = |(v, n, _): (u64, u64, u32)| valid * n < v * chunks;
            if valid < self.shape.line_data(chunks as u32) && best.is_none_or(less) {
                best = Some((valid, chunks, id));
            }
        }
        let cared = if force { None } else { self.cared_for(&p) };
        drop(p);
        let is_affordable = |(id, _): &(u32, Reason)| self.shares().users > 0 && self.has_room(*id);
        if let Some(cared) = cared.filter(is_affordable) {
            return Some(cared);
        }
        best.filter(|_| wanted).map(|(.., id)| (id, Reason::Room))
    }

    /// A line that decays, the oldest first; else the one that lags most behind in wear. Neither is taken
    /// while users have no share of the ring: then room comes first.
    fn cared_for(&self, p: &PoolState) -> Option<(u32, Reason)> {
        let levels = self.care.wear.leveling == WearLeveling::Static;
        if !levels && !self.scrub.is_on() || self.care.under_way.load(Ordering::Acquire) {
            return None;
        }
        let closed = || p.lines().filter(|(_, l)| l.state == LineState::Closed);
        let decays = closed().filter(|(_, l)| l.decay.due).min_by_key(|(_, l)| l.sequence);
        if let Some((id, _)) = decays {
            return Some((id, Reason::Decay));
        }
        let since = p.next_sequence() - self.care.leveled.load(Ordering::Relaxed);
        if !levels || since < LEVEL_EVERY {
            return None;
        }
        // Cold: every other line could have been written again since.
        let lines = p.lines().count() as u64 * self.pools.len() as u64;
        let cold = |l: &Line| p.next_sequence() - l.sequence > lines;
        let lagging = closed().filter(|(_, l)| cold(l)).map(|(id, l)| (p.lag(l), l.sequence, id));
        let (_, _, id) = lagging
            .filter(|(lag, ..)| *lag >= u64::from(self.care.wear.spread))
            .max_by_key(|(lag, sequence, _)| (*lag, std::cmp::Reverse(*sequence)))?;
        Some((id, Reason::Wear))
    }

    /// By the limiter, or by hand.
    pub(in crate::log) fn is_wanted(&self, pool: &Pool) -> bool {
        pool.collector.is_wanted() || self.gc.forced.load(Ordering::Acquire)
    }

    /// Is there room on the medium for everything admitted and the victim's sectors? Moves fill the
    /// ring, whose tail the erase barrier waits for: without this, victim after victim would eat
    /// the chunks that those before them are going to give back. With nothing to come back the
    /// reserve covers one victim by itself.
    pub(in crate::log) fn fits(&self, line: u32) -> bool {
        // Of any pool: the barrier that one waits for is padded in the rings of all, and what one moves
        // goes to any.
        let comes = |p: &PoolState| p.count(LineState::Victim) + p.count(LineState::Freeing) > 0;
        let coming = match mutant!("log.coming-one-pool") {
            true => comes(&self.pools.of_line(line).lock()),
            false => self.pools.any(|p| comes(p)),
        };
        !coming || self.lines.valid(line) == 0 || self.has_room(line)
    }

    /// As [`HostFtl::fits`], whatever is to come back.
    fn has_room(&self, line: u32) -> bool {
        let valid = self.lines.valid(line) as u64;
        // What others have claimed is as good as admitted. First: what is admitted from now on is in both.
        let claims = self.pools.iter().map(|pool| pool.collector.claim.load(Ordering::Acquire));
        let claims: SmallVec<[u64; 8]> = match mutant!("log.room-without-claims") {
            true => SmallVec::new(),
            false => claims.collect(),
        };
        // And before what is in the rings, where these batches go.
        let moving = self.gc.moving.load(Ordering::Acquire);
        let [(users, _), (gc, _)] = self.rings.snapshot();
        let admitted = if mutant!("log.room-without-admitted") { 0 } else { users + gc };
        // A flush or a barrier may pad the tail of each ring, and the one that each batch leaves which is
        // still to come, begun or not; but a line's sectors never take more units than they were in.
        let padding = u64::from(self.shape.unit) - 1;
        let padding = if mutant!("log.room-without-tails") { 0 } else { padding };
        let begun = if mutant!("log.room-without-begun") { 0 } else { moving };
        let tails = (self.rings.len() as u64 + begun) * padding;
        let batched = |sectors: u64| match mutant!("log.room-without-batches") {
            true => sectors,
            false => sectors + sectors.div_ceil(batch_least(self.shape.unit)) * padding,
        };
        let widest = self.shape.line_data(self.widest_line.load(Ordering::Relaxed) as u32);
        let moved = |sectors: &u64| batched(*sectors).min(widest.max(*sectors));
        let moves = claims.iter().chain([&valid]).map(moved).sum::<u64>();
        // Of this victim's barrier and of the one before it.
        let pads = 2 * self.pools.sum(|p| (self.shape.pair_pads * p.width()) as u64);
        let pads = if mutant!("log.room-without-pads") { 0 } else { pads };
        let less = if mutant!("log.room-minus-unit") { u64::from(self.shape.unit) } else { 0 };
        self.pools.sum(|p| p.room()) + less >= admitted + moves + tails + pads
    }

    pub(in crate::log) fn take_victim(&self, pool: &Pool, force: bool) -> Option<(u32, Reason)> {
        let (line, why) = self.candidate(pool, force).filter(|_| !self.read_only())?;
        let _alone = self.gc.choosing.lock();
        if !self.fits(line) {
            return None;
        }
        // Before what the line has valid: what changes from now on is seen next time.
        let changes = self.changes();
        let mut p = pool.lock();
        if p.line(line).state != LineState::Closed {
            return None;
        }
        p.make_victim(line);
        let valid = u64::from(self.lines.valid(line));
        pool.collector.claim.store(valid, Ordering::Release);
        let data = self.shape.line_data(p.line(line).chunks.len() as u32);
        add(&self.counters.gc_victims, 1);
        add(&self.counters.gc_victim_sectors, data);
        add(&self.counters.gc_victim_invalid, data.saturating_sub(valid));
        match why {
            // What has nothing valid costs nothing: its room is won.
            Reason::Room if force => {}
            Reason::Room => {
                let costs = self.lines.valid(line) > 0 || mutant!("log.free-rides-fruitless");
                let collector = &pool.collector;
                if collector.since.swap(changes, Ordering::Relaxed) != changes {
                    collector.fruitless.store(0, Ordering::Relaxed);
                }
                collector.fruitless.fetch_add(u64::from(costs), Ordering::Relaxed);
            }
            Reason::Wear => {
                self.care.leveled.store(p.next_sequence(), Ordering::Relaxed);
                add(&self.counters.leveled_lines, 1);
            }
            Reason::Decay => add(&self.counters.scrubbed_lines, 1),
        }
        if why != Reason::Room {
            self.care.under_way.store(true, Ordering::Release);
        }
        Some((line, why))
    }
}

#[cfg(test)]
mod tests;
