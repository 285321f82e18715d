//! Latencies of a run.
//!
//! Owns: percentiles by HdrHistogram (three digits), the exact sum, least and largest value.
//! Promises: mean and maximum are exact; a percentile is at most 0.1% above the value it names.
//! Never: drops a value; one beyond an hour counts as an hour in the percentiles.

use flashlane_base::mutant;
use hdrhistogram::Histogram;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Values above this share the last bucket; the maximum is kept exactly beside it.
const TRACKED_MAX_NS: u64 = 3_600_000_000_000;

/// A distribution of latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        // It grows with the largest value: a hundred jobs of short latencies take little room.
        let histogram = Histogram::new(3).expect("a constant that the library accepts");
        Latencies { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Latencies {
    /// Adds a value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Adds a value so many times.
    #[inline]
    pub fn record_many(&mut self, ns: u64, times: u64) {
        if times == 0 {
            return;
        }
        let tracked = self.histogram.record_n(ns.min(TRACKED_MAX_NS), times);
        debug_assert!(tracked.is_ok(), "it grows with its values");
        self.sum_ns += u128::from(ns) * u128::from(times);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all values of another distribution.
    pub fn merge(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("it grows with what is added");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Each value that occurs (to a thousandth, the largest of those that count as one), in
    /// ascending order, with how often.
    pub fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let clamp = move |v: u64| v.clamp(self.min_ns, self.max_ns);
        let high = move |v: u64| clamp(self.histogram.highest_equivalent(v));
        self.histogram
            .iter_recorded()
            .map(move |v| (high(v.value_iterated_to()), v.count_since_last_iteration()))
    }

    /// The distribution as the library has it.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }

    /// Standard deviation in ns (of the population), to the precision of the percentiles.
    pub fn stddev_ns(&self) -> f64 {
        self.histogram.stdev()
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Mean in ns; 0 without values.
    pub fn mean_ns(&self) -> u64 {
        match self.count() {
            0 => 0,
            n => ((self.sum_ns + n as u128 / 2) / n as u128) as u64,
        }
    }

    /// Least value in ns; 0 without values.
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min_ns }
    }

    /// Largest value in ns.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The value that `percent` of all values are not above; 0 without values.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        if self.count() == 0 {
            return 0;
        }
        self.histogram.value_at_percentile(percent).clamp(self.min_ns, self.max_ns)
    }
}

/// A distribution, in nanoseconds. Written out, one without values has none: 0 would be a latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyNs {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 90 of 100 are not above it.
    pub p90: u64,
    /// 99 of 100.
    pub p99: u64,
    /// 999 of 1000.
    pub p99_9: u64,
    /// 9999 of 10000.
    pub p99_99: u64,
    /// Largest.
    pub max: u64,
}

impl LatencyNs {
    /// A number of it, where there are values of which it is one.
    pub fn of_values(&self, ns: u64) -> Option<u64> {
        (self.count > 0 || mutant!("results.zero-for-none")).then_some(ns)
    }
}

impl Serialize for LatencyNs {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(8))?;
        map.serialize_entry("count", &self.count)?;
        for (name, ns) in [
            ("mean", self.mean),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99_9", self.p99_9),
            ("p99_99", self.p99_99),
            ("max", self.max),
        ] {
            map.serialize_entry(name, &self.of_values(ns))?;
        }
        map.end()
    }
}

impl From<&Latencies> for LatencyNs {
    fn from(l: &Latencies) -> LatencyNs {
        LatencyNs {
            count: l.count(),
            mean: l.mean_ns(),
            p50: l.percentile_ns(50.0),
            p90: l.percentile_ns(90.0),
            p99: l.percentile_ns(99.0),
            p99_9: l.percentile_ns(99.9),
            p99_99: l.percentile_ns(99.99),
            max: l.max_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Percentiles are those of the sorted list to a thousandth, mean and maximum exact.
        #[test]
        fn agrees_with_a_sorted_list(mut values in prop::collection::vec(0u64..10_000_000_000, 1..300)) {
            let mut h = Latencies::default();
            values.iter().for_each(|v| h.record(*v));
            values.sort_unstable();
            let n = values.len();
            for percent in [50.0, 99.0, 99.9, 100.0] {
                let rank = ((percent / 100.0 * n as f64).ceil() as usize).clamp(1, n);
                let (exact, got) = (values[rank - 1], h.percentile_ns(percent));
                prop_assert!(got >= exact && got <= exact + exact / 900 + 1, "{percent}: {exact} {got}");
            }
            prop_assert_eq!(h.max_ns(), values[n - 1]);
            let sum: u128 = values.iter().map(|v| *v as u128).sum();
            prop_assert_eq!(h.mean_ns() as u128, (sum + n as u128 / 2) / n as u128);
        }
    }

    #[test]
    fn an_empty_distribution_is_all_zeros() {
        let h = Latencies::default();
        assert_eq!((h.count(), h.mean_ns(), h.percentile_ns(99.0), h.max_ns()), (0, 0, 0, 0));
    }

    #[test]
    fn an_empty_distribution_is_written_without_numbers() {
        let written = |h: &Latencies| serde_json::to_value(LatencyNs::from(h)).unwrap();
        let mut h = Latencies::default();
        assert_eq!(
            (&written(&h)["count"], &written(&h)["p99"]),
            (&0.into(), &serde_json::Value::Null)
        );
        h.record(0);
        assert_eq!((&written(&h)["p99"], &written(&h)["max"]), (&0.into(), &0.into()));
    }

    /// Longer than an hour still shows in the maximum.
    #[test]
    fn nothing_is_dropped() {
        let mut h = Latencies::default();
        h.record(u64::MAX);
        assert_eq!((h.count(), h.max_ns()), (1, u64::MAX));
    }
}
