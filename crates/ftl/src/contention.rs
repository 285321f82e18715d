//! What the cores of a host waited for inside its FTL: locks, map entries, semaphores, room in a ring.
//!
//! Owns: the plain numbers that reports, `lnvm info` and tests read; names of the locks. Promises:
//! numbers only grow, but for what is said to be a state; waits are virtual time in virtual time and real
//! time on real threads. Never: counts (each stage counts where it waits: DECISIONS.md, QBLK).

use flashlane_base::{Ns, counters};
use flashlane_rt::{LockStats, Waits};

/// What was waited for since a target was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// When this was looked at, or how long a span is.
    pub time: Ns,
    /// pblk's lock around the map; nothing where entries change by exchange.
    pub map: LockStats,
    /// The lock of the target's log; `acquired` counts records. In virtual time nobody waits for it.
    pub log: LockStats,
    /// What became of exchanges of map entries; all zero under the map's lock.
    pub exchanges: Exchanges,
    /// Busy channels that drainers passed by, because another had a free PU.
    pub passed: u64,
    /// Each ring, in their order.
    pub queues: Vec<Queue>,
    /// Each pool, in their order.
    pub pools: Vec<PoolWaits>,
}

counters! {
    /// Exchanges of map entries that found another entry than the one that was looked at.
    ///
    /// In virtual time a step of the host is never interrupted. There a writer has lost the race if the entry
    /// changed while it paid for the exchange (stage `map.exchange`): that is when a real one would try again.
    pub struct Exchanges {
        /// Publications of a host write that were tried again.
        user_retries: u64, Sum, "times", [info "again", what "exchanges tried again by writes"];
        /// Entries that a discard tried again to clear.
        discard_retries: u64, Sum, "times",
            [info "discard_again", what "exchanges tried again by discards"];
        /// Sectors overwritten or discarded while they were programmed: the map stays where it is (QBLK,
        /// II-C, situation 2).
        drain_lost: u64, Sum, "sectors", [info "drain_lost", column "exchange_drain_lost_sectors",
            what "sectors overwritten while programmed"];
        /// Sectors overwritten or discarded while garbage collection read them.
        gc_lost: u64, Sum, "sectors", [info "gc_lost", column "exchange_gc_lost_sectors",
            what "sectors overwritten while moved"];
    }
}

/// A ring: how full it is, who waited for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Slots that its writers and garbage collection may have.
    pub capacity: u64,
    /// Slots admitted and not yet given back: a state.
    pub depth: u64,
    /// Most of them since [`crate::log::HostFtl::forget_peaks`]: a state.
    pub depth_max: u64,
    /// Depth summed over time: slots × ns. Wraps after 2^63.
    pub slot_ns: u64,
    /// Host writes that waited for room.
    pub full: Waits,
    /// Host writes that waited for a share of the limiter's.
    pub limited: Waits,
    /// The ring's own lock.
    pub lock: LockStats,
}

/// A pool of lines: one of pblk, one per channel of QBLK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolWaits {
    /// Its lock, `acquired` once for each request of a drainer.
    pub lock: LockStats,
    /// The semaphores of its PUs: programs beyond the budget.
    pub semaphores: Waits,
}

/// Names of the kinds of locks, in the order of [`Contention::locks`].
pub const LOCKS: [&str; 4] = ["ring", "pool", "map", "log"];

impl Contention {
    /// Locks by kind, those of all rings and of all pools together.
    pub fn locks(&self) -> [LockStats; LOCKS.len()] {
        let none = LockStats::default();
        let rings = self.queues.iter().fold(none, |sum, q| sum.and(q.lock));
        let pools = self.pools.iter().fold(none, |sum, p| sum.and(p.lock));
        [rings, pools, self.map, self.log]
    }

    /// Semaphores of all PUs together.
    pub fn semaphores(&self) -> Waits {
        self.pools.iter().fold(Waits::default(), |sum, p| sum.and(p.semaphores))
    }

    /// Waits for room in all rings together.
    pub fn full(&self) -> Waits {
        self.queues.iter().fold(Waits::default(), |sum, q| sum.and(q.full))
    }

    /// Waits for a share in all rings together.
    pub fn limited(&self) -> Waits {
        self.queues.iter().fold(Waits::default(), |sum, q| sum.and(q.limited))
    }

    /// What came since an earlier look at the same target; states are the later ones.
    pub fn since(&self, earlier: &Contention) -> Contention {
        Contention {
            time: self.time.saturating_sub(earlier.time),
            map: self.map.since(earlier.map),
            log: self.log.since(earlier.log),
            exchanges: self.exchanges.since(&earlier.exchanges),
            passed: self.passed - earlier.passed,
            queues: self.queues.iter().zip(&earlier.queues).map(|(l, e)| l.since(e)).collect(),
            pools: self.pools.iter().zip(&earlier.pools).map(|(l, e)| l.since(e)).collect(),
        }
    }
}

impl Exchanges {
    /// Exchanges that somebody had to try again.
    pub fn retries(&self) -> u64 {
        self.user_retries + self.discard_retries
    }
}

impl Queue {
    fn since(&self, earlier: &Queue) -> Queue {
        Queue {
            slot_ns: self.slot_ns.wrapping_sub(earlier.slot_ns),
            full: self.full.since(earlier.full),
            limited: self.limited.since(earlier.limited),
            lock: self.lock.since(earlier.lock),
            ..*self
        }
    }

    /// Mean depth over a span of time; 0 where there is none.
    pub fn depth_mean(&self, time: Ns) -> f64 {
        // Cores' clocks differ by some ns: an empty ring may be a little less than empty.
        let sum = (self.slot_ns as i64).max(0) as f64;
        if time == Ns::ZERO { 0.0 } else { sum / time.as_ns() as f64 }
    }
}

impl PoolWaits {
    fn since(&self, earlier: &PoolWaits) -> PoolWaits {
        PoolWaits {
            lock: self.lock.since(earlier.lock),
            semaphores: self.semaphores.since(earlier.semaphores),
        }
    }
}
