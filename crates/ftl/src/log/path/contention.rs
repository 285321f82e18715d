//! Counting what cores do to each other where no lock covers it, and the look at all of it.
//!
//! Owns: the counters of each core, and [`HostFtl::contention`], which adds up what stages have counted.
//! Promises: a counter is written by one core only, in a cache line of its own, without an atomic
//! read-modify-write; a look changes no number. Never: is asked on the data path.

use crate::contention::{Contention, Exchanges, PoolWaits};
use crate::log::{HostFtl, get};
use flashlane_base::Ns;
use flashlane_rt::sync::{AtomicU64, Ordering};
use flashlane_rt::{Cx, Waits};
use smallvec::SmallVec;

#[derive(Default)]
#[repr(align(128))]
pub(in crate::log) struct CoreCounts {
    pub(in crate::log) user_retries: AtomicU64,
    pub(in crate::log) discard_retries: AtomicU64,
    pub(in crate::log) drain_lost: AtomicU64,
    pub(in crate::log) gc_lost: AtomicU64,
    pub(in crate::log) passed: AtomicU64,
}

/// Counts for the core that runs this: nobody else writes its counters.
pub(in crate::log) fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Raw map entries of a piece of a write.
pub(in crate::log) type Seen = SmallVec<[u64; 4]>;

impl HostFtl {
    #[inline]
    pub(in crate::log) fn counts(&self, cx: &Cx) -> &CoreCounts {
        &self.core_counts[cx.core().0 as usize]
    }

    /// The entries that a host write looks at before it pays for their exchange. Nothing on real threads,
    /// where an exchange that fails shows itself.
    pub(in crate::log) fn look_ahead(&self, cx: &Cx, lba: u64, n: usize) -> Seen {
        match cx.is_virtual() && self.costs.map_update != Ns::ZERO {
            true => (lba..lba + n as u64).map(|lba| self.map.raw(lba)).collect(),
            false => Seen::new(),
        }
    }

    /// It has paid: those that changed meanwhile a real core would have tried again.
    pub(in crate::log) fn note_races(&self, cx: &Cx, lba: u64, seen: &Seen) {
        let lost = seen.iter().zip(lba..).filter(|(raw, lba)| **raw != self.map.raw(*lba)).count();
        if lost > 0 {
            bump(&self.counts(cx).user_retries, lost as u64);
        }
    }

    /// What was waited for since the target was made; `now` is the time of the clock that it runs by.
    pub fn contention(&self, now: Ns) -> Contention {
        let sum = |of: fn(&CoreCounts) -> &AtomicU64| {
            self.core_counts.iter().map(|core| get(of(core))).sum::<u64>()
        };
        let per_pool = self.pu.len() / self.pools.len();
        let pool = |(pool, pus): (&crate::log::pools::Pool, &[crate::log::Credits])| PoolWaits {
            lock: pool.waits(),
            semaphores: pus.iter().fold(Waits::default(), |sum, pu| sum.and(pu.waits())),
        };
        Contention {
            time: now,
            map: self.map.lock.stats(),
            log: self.journal.waits(),
            exchanges: Exchanges {
                user_retries: sum(|c| &c.user_retries),
                discard_retries: sum(|c| &c.discard_retries),
                drain_lost: sum(|c| &c.drain_lost),
                gc_lost: sum(|c| &c.gc_lost),
            },
            passed: sum(|c| &c.passed),
            queues: self.rings.iter().map(|ring| ring.queue(now)).collect(),
            pools: self.pools.iter().zip(self.pu.chunks(per_pool)).map(pool).collect(),
        }
    }

    /// From now on `depth_max` of a ring is the most since now.
    pub fn forget_peaks(&self) {
        self.rings.iter().for_each(|ring| ring.admission.forget_peak());
    }
}
