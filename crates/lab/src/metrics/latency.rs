//! How long requests take, as a histogram that every request may be put into.
//!
//! Owns: the buckets, four to a doubling. Promises: to count a request is three additions, and no memory is
//! taken; a bucket holds what is at most its bound. Never: reads a clock.

use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Everything up to 2^10 ns, about a microsecond, is in the first bucket.
const FIRST: u32 = 10;
/// Doublings with buckets of their own: up to 2^35 ns, about 34 seconds.
const DOUBLINGS: u32 = 25;
/// Buckets of a doubling.
const PARTS: u32 = 4;
/// With the first one, and one for what is longer than all bounds.
const BUCKETS: usize = (2 + DOUBLINGS * PARTS) as usize;

/// What requests are told apart by, in the order of [`BlockOp`], with the name that outputs have for it.
pub const OPS: [(BlockOp, &str); 4] = [
    (BlockOp::Read, "read"),
    (BlockOp::Write, "write"),
    (BlockOp::Discard, "discard"),
    (BlockOp::Flush, "flush"),
];

/// The longest time in ns that a bucket holds; nothing for the last one.
pub fn bound_ns(bucket: usize) -> Option<u64> {
    let Some(behind) = (bucket as u32).checked_sub(1) else { return Some(1 << FIRST) };
    let (doubling, part) = (FIRST + behind / PARTS, u64::from(behind % PARTS));
    (behind < DOUBLINGS * PARTS).then(|| (1 << doubling) + ((part + 1) << (doubling - 2)))
}

fn bucket_of(ns: u64) -> usize {
    // One less, so that a bound is within its bucket.
    let below = ns.saturating_sub(1);
    if below < 1 << FIRST {
        return 0;
    }
    let doubling = below.ilog2();
    let part = (below >> (doubling - 2)) as u32 % PARTS;
    (1 + (doubling - FIRST) * PARTS + part).min(BUCKETS as u32 - 1) as usize
}

/// Requests of one kind, while they are counted.
struct Meter {
    begun: AtomicU64,
    failed: AtomicU64,
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Requests of all kinds, while they are counted.
pub(crate) struct Meters([Meter; OPS.len()]);

impl Meters {
    pub(crate) fn new() -> Meters {
        Meters(std::array::from_fn(|_| Meter {
            begun: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
        }))
    }

    fn of(&self, op: BlockOp) -> &Meter {
        &self.0[op as usize]
    }

    pub(crate) fn begun(&self, op: BlockOp) {
        self.of(op).begun.fetch_add(1, Relaxed);
    }

    pub(crate) fn ended(&self, op: BlockOp, took: Ns, good: bool) {
        let meter = self.of(op);
        meter.buckets[bucket_of(took.as_ns())].fetch_add(1, Relaxed);
        meter.sum_ns.fetch_add(took.as_ns(), Relaxed);
        if !good {
            meter.failed.fetch_add(1, Relaxed);
        }
    }

    /// What was counted so far, in the order of [`OPS`].
    pub(crate) fn counted(&self) -> Vec<Latency> {
        let counted = |(meter, (_, name)): (&Meter, (BlockOp, &str))| {
            let buckets: Vec<u64> = meter.buckets.iter().map(|n| n.load(Relaxed)).collect();
            let ended = buckets.iter().sum();
            Latency {
                op: name.into(),
                ended,
                in_flight: meter.begun.load(Relaxed).saturating_sub(ended),
                failed: meter.failed.load(Relaxed),
                sum_ns: meter.sum_ns.load(Relaxed),
                buckets,
            }
        };
        self.0.iter().zip(OPS).map(counted).collect()
    }
}

/// Requests of one kind, as they were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// `read`, `write`, `discard`, `flush`.
    pub op: String,
    pub ended: u64,
    /// Begun and not ended: a state.
    pub in_flight: u64,
    /// Of those that ended, those with an error.
    pub failed: u64,
    pub sum_ns: u64,
    /// How many took how long; [`bound_ns`] has the bounds.
    pub buckets: Vec<u64>,
}

impl Latency {
    /// What came since an earlier look.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let earlier_in = |i: usize| earlier.buckets.get(i).copied().unwrap_or(0);
        let buckets = self.buckets.iter().enumerate();
        Latency {
            op: self.op.clone(),
            ended: self.ended.saturating_sub(earlier.ended),
            in_flight: self.in_flight,
            failed: self.failed.saturating_sub(earlier.failed),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets: buckets.map(|(i, n)| n.saturating_sub(earlier_in(i))).collect(),
        }
    }

    /// The time within which this share of the requests ended, to a quarter of a doubling; nothing where
    /// none did.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let all: u64 = self.buckets.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        for (i, n) in self.buckets.iter().enumerate() {
            if seen + n >= wanted && *n > 0 {
                let to = bound_ns(i)?;
                let from = i.checked_sub(1).and_then(bound_ns).unwrap_or(0);
                // As if they lay evenly in the bucket.
                let into = (wanted - seen) as f64 / *n as f64;
                return Some(from + ((to - from) as f64 * into) as u64);
            }
            seen += n;
        }
        None
    }

    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_is_within_its_bound() {
        assert_eq!((bound_ns(0), bound_ns(BUCKETS - 1)), (Some(1024), None));
        assert_eq!(bound_ns(BUCKETS - 2), Some(1 << 35));
        let mut last = 0;
        for bucket in 0..BUCKETS - 1 {
            let bound = bound_ns(bucket).expect("all but the last have one");
            assert!(bound > last, "{bucket}");
            assert_eq!(bucket_of(bound), bucket, "{bound}");
            assert_eq!(bucket_of(bound + 1), bucket + 1, "{bound}");
            assert_eq!(bucket_of(last + 1), bucket, "{last}");
            last = bound;
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn what_was_counted_comes_out_since_an_earlier_look() {
        let meters = Meters::new();
        for us in 1..=100 {
            meters.begun(BlockOp::Write);
            meters.ended(BlockOp::Write, Ns::from_us(us), us != 7);
        }
        let before = meters.counted();
        meters.begun(BlockOp::Write);
        meters.begun(BlockOp::Write);
        meters.ended(BlockOp::Write, Ns::from_ms(3), true);
        let after = meters.counted();
        let write = &before[1];
        assert_eq!((&*write.op, write.ended, write.failed, write.in_flight), ("write", 100, 1, 0));
        assert_eq!(write.mean_ns(), Some(50_500));
        for (share, us) in [(0.5, 50.0), (0.99, 99.0)] {
            let found = write.quantile_ns(share).expect("some ended") as f64 / 1e3;
            assert!((found / us - 1.0).abs() < 0.25, "{share}: {found}");
        }
        let since = after[1].since(write);
        assert_eq!((since.ended, since.in_flight, since.sum_ns), (1, 1, 3_000_000));
        assert!(since.quantile_ns(0.5).expect("one") >= 2_500_000);
        assert_eq!(after[0].quantile_ns(0.5), None, "no reads");
    }
}
