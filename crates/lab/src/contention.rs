//! What cores waited for inside the FTL, as numbers.
//!
//! Owns: names and units of the keys under `contention`. Promises: waits by ring add up to the run's
//! `wait_ns`. Never: counts.

use flashlane_ftl::contention::{Contention, Exchanges, LOCKS};
use serde::Serialize;

/// What was waited for in the measured part, or since the target was mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ContentionReport {
    /// Locks by kind: `ring`, `pool`, `map`, `log`; those of all rings and all pools together.
    pub locks: Vec<LockReport>,
    /// Map entries that were exchanged, or not.
    pub exchanges: Exchanges,
    /// Programs that waited for a semaphore of a PU.
    pub semaphore_waits: u64,
    /// How long, summed.
    pub semaphore_wait_ns: u64,
    /// Busy channels that drainers passed by.
    pub channels_passed: u64,
    /// Each ring.
    pub queues: Vec<QueueReport>,
    /// Each pool of lines: of QBLK a channel.
    pub pools: Vec<PoolReport>,
}

/// A kind of lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LockReport {
    /// Its name.
    pub lock: &'static str,
    /// Times taken (of the log: records added).
    pub acquired: u64,
    /// Times somebody else had it.
    pub contended: u64,
    /// Time until it was free, summed.
    pub wait_ns: u64,
}

/// A ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QueueReport {
    /// Its number.
    pub ring: usize,
    /// Slots it has.
    pub slots: u64,
    /// In use at the end.
    pub depth_now: u64,
    /// In use, mean over time.
    pub depth_mean: f64,
    /// Most in use.
    pub depth_max: u64,
    /// Host writes that waited for room.
    pub full_waits: u64,
    /// How long, summed.
    pub full_wait_ns: u64,
    /// Host writes that waited for a share of the limiter's.
    pub limited_waits: u64,
    /// How long, summed.
    pub limited_wait_ns: u64,
    /// Times somebody else had its lock.
    pub lock_contended: u64,
    /// Time until it was free, summed.
    pub lock_wait_ns: u64,
}

/// A pool of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolReport {
    /// Its number.
    pub pool: usize,
    /// Times somebody else had its lock.
    pub lock_contended: u64,
    /// Time until it was free, summed.
    pub lock_wait_ns: u64,
    /// Programs that waited for a semaphore of one of its PUs.
    pub semaphore_waits: u64,
    /// How long, summed.
    pub semaphore_wait_ns: u64,
}

impl ContentionReport {
    /// The numbers of a span of time, or of all the time so far.
    pub fn of(c: &Contention) -> ContentionReport {
        let lock = |(lock, l): (&&'static str, flashlane_rt::LockStats)| LockReport {
            lock,
            acquired: l.acquired,
            contended: l.contended,
            wait_ns: l.spun.as_ns(),
        };
        let queue = |(ring, q): (usize, &flashlane_ftl::contention::Queue)| QueueReport {
            ring,
            slots: q.capacity,
            depth_now: q.depth,
            // Two digits: a mean of slots needs no more.
            depth_mean: (q.depth_mean(c.time) * 100.0).round() / 100.0,
            depth_max: q.depth_max,
            full_waits: q.full.times,
            full_wait_ns: q.full.time.as_ns(),
            limited_waits: q.limited.times,
            limited_wait_ns: q.limited.time.as_ns(),
            lock_contended: q.lock.contended,
            lock_wait_ns: q.lock.spun.as_ns(),
        };
        let pool = |(pool, p): (usize, &flashlane_ftl::contention::PoolWaits)| PoolReport {
            pool,
            lock_contended: p.lock.contended,
            lock_wait_ns: p.lock.spun.as_ns(),
            semaphore_waits: p.semaphores.times,
            semaphore_wait_ns: p.semaphores.time.as_ns(),
        };
        ContentionReport {
            locks: LOCKS.iter().zip(c.locks()).map(lock).collect(),
            exchanges: c.exchanges,
            semaphore_waits: c.semaphores().times,
            semaphore_wait_ns: c.semaphores().time.as_ns(),
            channels_passed: c.passed,
            queues: c.queues.iter().enumerate().map(queue).collect(),
            pools: c.pools.iter().enumerate().map(pool).collect(),
        }
    }

    /// Locks of all kinds: times waited, ns.
    pub(crate) fn lock_waits(&self) -> (u64, u64) {
        self.locks.iter().fold((0, 0), |(n, ns), l| (n + l.contended, ns + l.wait_ns))
    }

    /// Writes that waited for room in any ring: times, ns.
    pub(crate) fn full_waits(&self) -> (u64, u64) {
        self.queues.iter().fold((0, 0), |(n, ns), q| (n + q.full_waits, ns + q.full_wait_ns))
    }

    /// Most slots in use in a ring.
    pub(crate) fn deepest(&self) -> u64 {
        self.queues.iter().map(|q| q.depth_max).max().unwrap_or(0)
    }

    /// Slots in use, mean over time and rings.
    pub(crate) fn depth_mean(&self) -> f64 {
        // Not `sum`: that of nothing is -0.
        let sum = self.queues.iter().fold(0.0, |sum, q| sum + q.depth_mean);
        sum / self.queues.len().max(1) as f64
    }

    /// Cores could meet, or did.
    pub(crate) fn is_shared(&self) -> bool {
        self.queues.len() > 1 || self.lock_waits().0 > 0 || self.exchanges.retries() > 0
    }
}
