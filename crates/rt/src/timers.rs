//! Pending timers of one executor, popped in the order (time, arming).
//!
//! Owns: a wheel of 1,024 buckets of 4 µs for what is due within 4 ms, a heap for the rest.
//! Promises: equal times come out in arming order, so a run does not depend on where a timer was
//! kept. Never: drops a timer; a task that no longer waits is polled in vain.
//!
//! Most timers are ends of flash operations, tens to thousands of microseconds ahead and a hundred
//! or two at a time: about one per bucket, where a heap moves seven levels for each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Task ids share a word with the arming sequence: 2^24 tasks alive at once at most (`Local::spawn`
/// asserts it), and 2^40 armings, half a day of CPU time, before ties may
/// change places.
pub(crate) const TASK_BITS: u32 = 24;

/// A bucket is 2^12 ns.
const BUCKET_BITS: u32 = 12;
const BUCKETS: u64 = 1024;
/// A bucket is kept sorted by insertion; what finds it full goes to the heap.
const BUCKET_MAX: usize = 32;
/// No bucket holds anything.
const NONE: u64 = u64::MAX;

/// (time, arming sequence and task): the order of timers.
type Timer = (u64, u64);

pub(crate) struct Timers {
    /// Bucket `b` of time is `wheel[b % BUCKETS]`; latest first, so the next one is the last.
    wheel: Box<[Vec<Timer>]>,
    /// Bit per bucket of the wheel: it holds something.
    occupied: [u64; (BUCKETS / 64) as usize],
    /// Bucket of the last timer that was popped: the wheel holds `BUCKETS` from here on.
    from: u64,
    /// First bucket that holds something.
    first: u64,
    /// Whatever does not fit the wheel.
    far: BinaryHeap<Reverse<Timer>>,
    armed: u64,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            wheel: (0..BUCKETS).map(|_| Vec::new()).collect(),
            occupied: [0; (BUCKETS / 64) as usize],
            from: 0,
            first: NONE,
            far: BinaryHeap::new(),
            armed: 0,
        }
    }
}

impl Timers {
    #[inline]
    pub(crate) fn arm(&mut self, at: u64, task: u32) {
        debug_assert!(task < 1 << TASK_BITS);
        self.armed += 1;
        let timer = (at, self.armed << TASK_BITS | task as u64);
        // What is due already comes first in the first bucket.
        let bucket = (at >> BUCKET_BITS).max(self.from);
        let timers = &mut self.wheel[(bucket % BUCKETS) as usize];
        if bucket - self.from >= BUCKETS || timers.len() >= BUCKET_MAX {
            self.far.push(Reverse(timer));
            return;
        }
        let later = timers.iter().rev().take_while(|t| **t < timer).count();
        timers.insert(timers.len() - later, timer);
        self.occupied[(bucket % BUCKETS / 64) as usize] |= 1 << (bucket % 64);
        self.first = self.first.min(bucket);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE && self.far.is_empty()
    }

    /// The next timer on the wheel.
    #[inline]
    fn near(&self) -> Option<Timer> {
        match self.first {
            NONE => None,
            bucket => self.wheel[(bucket % BUCKETS) as usize].last().copied(),
        }
    }

    #[inline]
    fn next(&self) -> Option<Timer> {
        match (self.near(), self.far.peek()) {
            (Some(near), Some(Reverse(far))) => Some(near.min(*far)),
            (near, far) => near.or(far.map(|Reverse(far)| *far)),
        }
    }

    #[inline]
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.next().map(|(at, _)| at)
    }

    /// The next task due at or before `now`, and when it was due.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<(u64, u32)> {
        let next @ (at, key) = self.next()?;
        if at > now {
            return None;
        }
        if self.near() == Some(next) {
            self.pop_near();
        } else {
            self.far.pop();
        }
        self.from = self.from.max(at >> BUCKET_BITS);
        Some((at, (key & ((1 << TASK_BITS) - 1)) as u32))
    }

    #[inline]
    fn pop_near(&mut self) {
        let place = self.first % BUCKETS;
        let timers = &mut self.wheel[place as usize];
        timers.pop();
        if timers.is_empty() {
            self.occupied[(place / 64) as usize] &= !(1 << (place % 64));
            self.first = self.occupied_after(self.first);
        }
    }

    /// The first bucket behind `bucket` that holds something. The wheel holds none before it.
    fn occupied_after(&self, bucket: u64) -> u64 {
        let words = self.occupied.len() as u64;
        let start = bucket % BUCKETS;
        let rest = self.occupied[(start / 64) as usize] & (u64::MAX << (start % 64));
        if rest != 0 {
            return bucket - start % 64 + rest.trailing_zeros() as u64;
        }
        let line = bucket / 64;
        let held = |n: &u64| self.occupied[((line + n) % words) as usize] != 0;
        match (1..=words).find(held) {
            Some(n) => {
                let word = self.occupied[((line + n) % words) as usize];
                (line + n) * 64 + word.trailing_zeros() as u64
            }
            None => NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_base::Rng;

    /// Against a heap of all of them: bursts at one instant, spans from nothing to seconds, timers
    /// armed in the past, and the wheel's end.
    #[test]
    fn timers_come_in_the_order_of_time_and_arming() {
        for seed in 0..64 {
            let mut rng = Rng::stream(seed, "timers", 0);
            let (mut timers, mut all) = (Timers::default(), BinaryHeap::new());
            let (mut now, mut armed) = (rng.below(1 << 30), 0u64);
            for _ in 0..4000 {
                let spans = [1, 1 << 12, 100_000, BUCKETS << BUCKET_BITS, 1 << 34];
                for _ in 0..rng.below(4) {
                    let span = spans[rng.below(spans.len() as u64) as usize];
                    let at = now + rng.below(span);
                    let at = if rng.below(50) == 0 { at - at.min(5000) } else { at };
                    let burst = if rng.below(100) == 0 { 100 } else { 1 };
                    for _ in 0..burst {
                        armed += 1;
                        timers.arm(at, (armed % 1000) as u32);
                        all.push(Reverse((at, armed)));
                    }
                }
                let next = all.peek().map(|Reverse((at, _))| *at);
                assert_eq!(timers.next_at(), next);
                assert_eq!(timers.is_empty(), next.is_none());
                let Some(next) = next else { continue };
                now = now.max(if rng.below(2) == 0 { next } else { now + rng.below(20_000) });
                while let Some(Reverse((at, nth))) = all.peek().copied().filter(|r| r.0.0 <= now) {
                    assert_eq!(timers.pop_due(now), Some((at, (nth % 1000) as u32)), "{at}");
                    all.pop();
                }
                assert_eq!(timers.pop_due(now), None);
            }
        }
    }
}
