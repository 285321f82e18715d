//! How late real timers are.
//!
//! Owns: for each core, how many timers ended how long behind their time. Promises: to count one is two
//! stores of the core itself; any core may look at all of them. Never: decides how a core waits.
//!
//! Device times on the real clock are timers: the core sleeps short of one, and spins the rest. So
//! this is the error of a served device's latencies.

use crate::platform::{AtomicU64, Ordering};
use flashlane_base::Ns;

/// Doublings from 1 ns on; the last one has all that is longer than 9 minutes.
const BUCKETS: usize = 40;

/// Of one core. Only that core counts.
pub(crate) struct Counted {
    buckets: [AtomicU64; BUCKETS],
    most: AtomicU64,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted { buckets: std::array::from_fn(|_| AtomicU64::new(0)), most: AtomicU64::new(0) }
    }
}

impl Counted {
    #[inline]
    pub(crate) fn count(&self, late: u64) {
        let bucket = &self.buckets[((u64::BITS - late.leading_zeros()) as usize).min(BUCKETS - 1)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if late > self.most.load(Ordering::Relaxed) {
            self.most.store(late, Ordering::Relaxed);
        }
    }
}

/// How late the timers of a run were, by doublings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    buckets: Vec<u64>,
    /// The latest of them.
    pub most: Ns,
}

impl Lateness {
    pub(crate) fn of<'a>(cores: impl Iterator<Item = &'a Counted>) -> Lateness {
        let (mut buckets, mut most) = (vec![0; BUCKETS], 0);
        for core in cores {
            for (sum, n) in buckets.iter_mut().zip(&core.buckets) {
                *sum += n.load(Ordering::Relaxed);
            }
            most = most.max(core.most.load(Ordering::Relaxed));
        }
        Lateness { buckets, most: Ns::from_ns(most) }
    }

    /// Timers that have ended.
    pub fn timers(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// This share of the timers was no later: a doubling's upper end, or the latest where that is less.
    /// Nothing where none has ended.
    pub fn quantile(&self, share: f64) -> Option<Ns> {
        let wanted = ((self.timers() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|n| {
            seen += n;
            seen >= wanted
        })?;
        Some(Ns::from_ns((1 << bucket) - 1).min(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_upper_end_of_a_doubling() {
        let (one, other) = (Counted::default(), Counted::default());
        (0..98).for_each(|_| one.count(300));
        other.count(0);
        other.count(70_000);
        let late = Lateness::of([&one, &other].into_iter());
        assert_eq!((late.timers(), late.most), (100, Ns::from_ns(70_000)));
        let at = |share| late.quantile(share).map(Ns::as_ns);
        assert_eq!((at(0.001), at(0.5), at(0.99)), (Some(0), Some(511), Some(511)));
        assert_eq!(at(1.0), Some(70_000), "no later than the latest");
        assert_eq!(Lateness::of(std::iter::empty()).quantile(0.5), None);
        one.count(u64::MAX);
        assert_eq!(Lateness::of(std::iter::once(&one)).timers(), 99);
    }
}
