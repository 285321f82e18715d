//! Latency histograms over time.
//!
//! Owns: intervals of equal width from the start of the measured part, which double when there are
//! too many. Promises: memory does not grow with the length of a run; joining loses no value; the
//! sum over the intervals is the run's own distribution. Never: formats.

use super::jobs::OPS;
use crate::histogram::Latencies;
use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;

/// Intervals kept; with more, neighbours are joined.
const INTERVALS_MAX: usize = 64;
/// Width of the first intervals: the shortest that common log viewers draw.
const FIRST_WIDTH: Ns = Ns::from_ms(1);

/// One interval: a distribution by operation, in the order of [`OPS`]; `None` without any.
pub type Interval = [Option<Box<Latencies>>; OPS.len()];

#[derive(Clone, Debug)]
pub struct Intervals {
    start: Ns,
    width: Ns,
    list: Vec<Interval>,
}

impl Intervals {
    /// Starts at `start`.
    pub fn new(start: Ns) -> Intervals {
        Intervals { start, width: FIRST_WIDTH, list: Vec::new() }
    }

    pub fn width(&self) -> Ns {
        self.width
    }

    /// The intervals in order; the last one may be open.
    pub fn list(&self) -> &[Interval] {
        &self.list
    }

    /// An operation ended at `now`.
    #[inline]
    pub fn record(&mut self, op: BlockOp, took: Ns, now: Ns) {
        let mut at = self.at(now);
        while at >= INTERVALS_MAX {
            self.halve();
            at = self.at(now);
        }
        if at >= self.list.len() {
            self.list.resize_with(at + 1, Interval::default);
        }
        let of = OPS.iter().position(|o| *o == op).expect("all operations are listed");
        self.list[at][of].get_or_insert_default().record(took.as_ns());
    }

    fn at(&self, now: Ns) -> usize {
        ((now - self.start).as_ns() / self.width.as_ns()).try_into().unwrap_or(usize::MAX)
    }

    fn halve(&mut self) {
        let mut joined: Vec<Interval> = Vec::with_capacity(INTERVALS_MAX);
        let mut all = std::mem::take(&mut self.list).into_iter();
        while let Some(mut first) = all.next() {
            for (mine, theirs) in first.iter_mut().zip(all.next().unwrap_or_default()) {
                match (mine.as_mut(), theirs) {
                    (Some(mine), Some(theirs)) => mine.merge(&theirs),
                    (None, theirs) => *mine = theirs,
                    (Some(_), None) => {}
                }
            }
            joined.push(first);
        }
        self.list = joined;
        self.width = self.width.times(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    proptest! {
        /// However long a run is, intervals stay few and the values are all there, where they ended.
        #[test]
        fn joining_loses_nothing(gaps in prop::collection::vec(0u64..30_000_000_000, 1..200)) {
            let start = Ns::from_us(3);
            let mut intervals = Intervals::new(start);
            let (mut now, mut all) = (start, Latencies::default());
            for gap in &gaps {
                now += Ns::from_ns(*gap);
                intervals.record(BlockOp::Write, Ns::from_ns(gap / 7), now);
                all.record(gap / 7);
            }
            prop_assert!(intervals.list().len() <= INTERVALS_MAX);
            let span = intervals.width().times(intervals.list().len() as u64);
            prop_assert!(now - start < span);
            let mut sum = Latencies::default();
            for l in intervals.list().iter().flat_map(|i| i.iter().flatten()) {
                sum.merge(l);
            }
            prop_assert_eq!(sum.count(), all.count());
            prop_assert_eq!(sum.mean_ns(), all.mean_ns());
            prop_assert_eq!(sum.percentile_ns(99.0), all.percentile_ns(99.0));
        }
    }
}
