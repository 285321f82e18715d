//! A set of numbers as runs: sectors, blocks.
//!
//! Owns: [`Runs`]. Promises: runs ascend, and none meets the next; memory is that of the runs, however long they
//! are. Never: says why a number is in it.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(BTreeMap<u64, u64>);

impl Runs {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How many numbers.
    pub fn sum(&self) -> u64 {
        self.iter().map(|run| run.end - run.start).sum()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Runs that meet this range, each as a whole.
    pub fn meeting(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.0.range(..range.start).next_back().map_or(range.start, |(s, _)| *s);
        let from = self.0.range(before..range.end.max(before));
        from.map(|(start, end)| *start..*end).filter(move |run| run.end > range.start)
    }

    pub fn contains(&self, number: u64) -> bool {
        self.meeting(number..number + 1).next().is_some()
    }

    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Those that it touches become one with it.
        while let Some((s, e)) = self.0.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let met: Vec<Range<u64>> = self.meeting(range.clone()).collect();
        for run in met {
            self.0.remove(&run.start);
            if run.start < range.start {
                self.0.insert(run.start, range.start);
            }
            if range.end < run.end {
                self.0.insert(range.end, run.end);
            }
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes all of another set over, which is empty then.
    pub fn append(&mut self, other: &mut Runs) {
        std::mem::take(other).iter().for_each(|run| self.insert(run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    proptest! {
        /// Beside a set that keeps each number.
        #[test]
        fn runs_are_the_numbers(steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 0..60)) {
            let (mut runs, mut all) = (Runs::default(), BTreeSet::new());
            for (adds, start, n) in steps {
                if adds {
                    runs.insert(start..start + n);
                    all.extend(start..start + n);
                } else {
                    runs.remove(start..start + n);
                    all.retain(|number| !(start..start + n).contains(number));
                }
                let mut last = None;
                for run in runs.iter() {
                    prop_assert_eq!(run.is_empty() || last.is_some_and(|end| run.start <= end), false);
                    last = Some(run.end);
                }
                prop_assert_eq!(runs.iter().flatten().collect::<BTreeSet<u64>>(), all.clone());
                prop_assert_eq!(runs.sum(), all.len() as u64);
                for number in 0..80 {
                    prop_assert_eq!(runs.contains(number), all.contains(&number));
                }
                let met: Vec<u64> = runs.meeting(20..30).flatten().filter(|n| (20..30).contains(n)).collect();
                prop_assert_eq!(met, all.range(20..30).copied().collect::<Vec<_>>());
            }
        }
    }
}
