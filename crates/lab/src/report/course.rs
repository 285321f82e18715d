//! What a run did over time and where on the device: the numbers behind the figures.
//!
//! Owns: the timeline, the occupancy of dies, erases and wear by channel, points of latency curves.
//! Promises: every list of a timeline has one item per span; sums over it are the run's own.
//! Never: draws, and never fills a gap with a number that was not measured: what a layer does not
//! have (a limiter) is an empty list.

use crate::execute::RunOutcome;
use crate::histogram::Latencies;
use crate::run::record::Recorder;
use crate::run::{Bucket, Sample};
use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;
use flashlane_ocssd::device::Cause;
use serde::Serialize;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The course of a run, in spans of equal length from the start of the measured part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TimelineReport {
    /// Length of a span.
    pub bucket_ns: u64,
    pub read_bytes: Vec<u64>,
    /// Bytes written in each.
    pub write_bytes: Vec<u64>,
    pub read_max_ns: Vec<u64>,
    pub write_max_ns: Vec<u64>,
    pub programmed_sectors: Vec<u64>,
    pub operations: Vec<u64>,
    /// Sectors that the layer took from the host in each.
    pub host_written_sectors: Vec<u64>,
    /// Sectors programmed in each, by cause; causes that never occurred are not there.
    pub programmed_by_cause_sectors: BTreeMap<&'static str, Vec<u64>>,
    /// Share of the chunks (pblk) or lines (block SSD) that were free at the end of each.
    pub free_ratio: Vec<f64>,
    /// Share of the write buffer that users may hold at the end of each; empty without a limiter.
    pub user_share_ratio: Vec<f64>,
    /// Slots in use in all rings at the end of each; empty without rings.
    pub ring_depth_slots: Vec<u64>,
    /// Slots in use in the deepest ring at the end of each.
    pub ring_depth_most_slots: Vec<u64>,
    /// What layers count that is theirs alone, in each, by layer and name; what never occurred is not
    /// there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<&'static str, BTreeMap<&'static str, Vec<u64>>>,
    /// What the sectors that the stack holds are to a file system at the end of each, by kind; only where a
    /// layer says it, and what never occurred is not there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pages: BTreeMap<&'static str, Vec<u64>>,
}

/// How often chunks of the target were erased, since the device was new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WearReport {
    /// Erases in the measured part, per channel of the device.
    pub channel_erases: Vec<u64>,
    /// Least and most erases of a chunk, per channel.
    pub channel_min_max: Vec<(u32, u32)>,
    /// Numbers of erases that occur ...
    pub erases: Vec<u32>,
    pub chunks: Vec<u64>,
    /// Erases of the least worn chunk, of the median, of the chunk that 99 of 100 are not above, of the
    /// most worn one.
    pub least: u32,
    /// See `least`.
    pub p50: u32,
    /// See `least`.
    pub p99: u32,
    /// See `least`.
    pub most: u32,
}

/// Shares of the measured time, per die in PU order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DieReport {
    pub read_ratio: Vec<f64>,
    pub program_ratio: Vec<f64>,
    pub erase_ratio: Vec<f64>,
}

/// What only the figures show: too much for a file of results.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Points of the latency distributions of reads and writes: share not above, latency in ns.
    pub curves: [Vec<(f64, u64)>; 2],
    /// Occupancy of dies over time.
    pub heat: Heat,
    /// What the dies of each channel did over time: read, program, erase; a row per channel.
    pub channels: [Heat; 3],
    pub pus_per_channel: u32,
}

/// Occupancy: a row per die or channel, a column per span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    pub column_ns: u64,
    /// Ten-thousandths of the time that a die was busy, per row and column; the mean of a channel's dies.
    pub rows: Vec<Vec<u16>>,
}

/// Columns of the occupancy at most.
const HEAT_COLUMNS_MAX: usize = 96;
/// Points of a latency curve at most: more than a screen shows.
const CURVE_POINTS_MAX: usize = 240;

/// What each step adds to a sum that was `first`.
///
/// What is taken back later (a program that the medium refuses is counted when it is sent, and not any more when it
/// comes back) stays with its step, and the next ones have less.
fn differences_of(sums: impl Iterator<Item = u64>, first: u64) -> Vec<u64> {
    let mut last = first;
    let step = |sum: u64| {
        let now = sum.max(last);
        now - std::mem::replace(&mut last, now)
    };
    sums.map(step).collect()
}

pub(super) fn timeline(o: &RunOutcome) -> TimelineReport {
    let (r, before) = (&o.measured.recorder, &o.measured.before);
    let t = &r.timeline;
    let list = |of: fn(&Bucket) -> u64| -> Vec<u64> { t.buckets().iter().map(of).collect() };
    let differences = |first: u64, of: &dyn Fn(&Bucket) -> u64| -> Vec<u64> {
        differences_of(t.buckets().iter().map(of), first)
    };
    let mut causes = BTreeMap::new();
    for cause in Cause::ALL {
        let i = cause as usize;
        let each = differences(before.programmed[i], &|b| b.state.causes[i]);
        if each.iter().any(|n| *n > 0) {
            causes.insert(cause.name(), each);
        }
    }
    let ends = t.samples().get(1..).unwrap_or_default();
    let ratio = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let has_room = ends.iter().any(|s| s.gauges.of > 0);
    let free = |s: &Rc<Sample>| ratio(s.gauges.free, s.gauges.of);
    let share = |s: &Rc<Sample>| {
        let (users, all) = s.gauges.user_slots?;
        Some(ratio(users, all))
    };
    let mut layers = BTreeMap::<_, BTreeMap<_, Vec<u64>>>::new();
    let first = t.samples().first().into_iter().flat_map(|sample| &sample.counted);
    for (n, (layer, counted)) in first.enumerate() {
        for (i, number) in counted.iter().enumerate() {
            let sums = ends.iter().filter_map(|s| Some(s.counted.get(n)?.1.get(i)?.value));
            let each = differences_of(sums, number.value);
            layers.entry(*layer).or_default().insert(number.name, each);
        }
    }
    layers.values_mut().for_each(|all| all.retain(|_, each| each.iter().any(|n| *n > 0)));
    let mut pages = BTreeMap::<&str, Vec<u64>>::new();
    // The file system may come to be followed in the midst of the run.
    let names = ends.iter().flat_map(|s| &s.pages).map(|kind| kind.name);
    let names: std::collections::BTreeSet<&'static str> = names.collect();
    for name in names {
        let of =
            |s: &Rc<Sample>| s.pages.iter().find(|kind| kind.name == name).map_or(0, |k| k.value);
        pages.insert(name, ends.iter().map(of).collect());
    }
    pages.retain(|_, each| each.iter().any(|n| *n > 0));
    let depths: Vec<(u64, u64)> = ends.iter().map_while(|s| s.gauges.ring_slots).collect();
    TimelineReport {
        ring_depth_slots: depths.iter().map(|(all, _)| *all).collect(),
        ring_depth_most_slots: depths.iter().map(|(_, most)| *most).collect(),
        layers,
        pages,
        bucket_ns: t.width().as_ns(),
        programmed_sectors: differences(before.programmed_total(), &|b| b.state.programmed),
        host_written_sectors: differences(before.host_written, &|b| b.state.host_written),
        programmed_by_cause_sectors: causes,
        read_bytes: list(|b| b.read_bytes),
        write_bytes: list(|b| b.write_bytes),
        operations: list(|b| b.requests),
        read_max_ns: list(|b| b.read_max_ns),
        write_max_ns: list(|b| b.write_max_ns),
        free_ratio: if has_room { ends.iter().map(free).collect() } else { Vec::new() },
        user_share_ratio: ends.iter().map_while(share).collect(),
    }
}

pub(super) fn wear(o: &RunOutcome) -> WearReport {
    let mut all: BTreeMap<u32, u64> = BTreeMap::new();
    for (erases, chunks) in o.wear.iter().flatten() {
        *all.entry(*erases).or_default() += chunks;
    }
    let ends = |channel: &BTreeMap<u32, u64>| {
        let first = channel.first_key_value().map_or(0, |(e, _)| *e);
        (first, channel.last_key_value().map_or(0, |(e, _)| *e))
    };
    let total: u64 = all.values().sum();
    // The chunk with so many of a hundred not above it.
    let of_hundred = |percent: u64| {
        let mut seen = 0;
        let found = all.iter().find(|(_, chunks)| {
            seen += **chunks;
            seen * 100 >= total * percent
        });
        found.map_or(0, |(erases, _)| *erases)
    };
    let (least, most) = ends(&all);
    WearReport {
        least,
        p50: of_hundred(50),
        p99: of_hundred(99),
        most,
        channel_erases: o.media.channel_erases.clone(),
        channel_min_max: o.wear.iter().map(ends).collect(),
        erases: all.keys().copied().collect(),
        chunks: all.values().copied().collect(),
    }
}

pub(super) fn dies(o: &RunOutcome) -> DieReport {
    let all = o.media.time.as_ns().max(1) as f64;
    let of = |kind: usize| -> Vec<f64> {
        let shares = o.media.die_spans.iter().map(|d| d[kind].as_ns() as f64 / all);
        // Four digits: a ten-thousandth of the time.
        shares.map(|s| (s * 1e4).round() / 1e4).collect()
    };
    DieReport { read_ratio: of(0), program_ratio: of(1), erase_ratio: of(2) }
}

pub(super) fn figures(o: &RunOutcome) -> Figures {
    let r = &o.measured.recorder;
    Figures {
        curves: [BlockOp::Read, BlockOp::Write].map(|op| curve(&r.latencies(op))),
        heat: heat(r, of_dies, 1),
        channels: channels(r, o.geometry.pus_per_channel),
        pus_per_channel: o.geometry.pus_per_channel,
    }
}

/// Points of a distribution, few where they are close together: on a scale of nines, or of the
/// logarithm of the latency.
fn curve(l: &Latencies) -> Vec<(f64, u64)> {
    let total = l.count();
    let nines = |q: f64| -(1.0 - q).max(1e-9).log10();
    let mut points: Vec<(f64, u64)> = Vec::new();
    let mut seen = 0;
    let step = 1.0 / CURVE_POINTS_MAX as f64;
    for (ns, n) in l.values() {
        seen += n;
        let q = seen as f64 / total as f64;
        let far = points.last().is_none_or(|(last, at)| {
            let right = (ns.max(1) as f64 / (*at).max(1) as f64).log10() / 6.0;
            right >= step || (nines(q) - nines(*last)) / 6.0 >= step
        });
        if far || seen == total {
            points.push((q, ns));
        }
    }
    points
}

/// Busy time of each die up to a sample, in ns.
fn of_dies(s: &Sample) -> Vec<u64> {
    s.dies.iter().map(|d| d.iter().map(|t| t.as_ns()).sum()).collect()
}

/// Busy time at the end of each bucket (one more row for the start), `total` up to a sample. Buckets that
/// share a sample had no end of a request in them: their part of the time is spread evenly.
fn busy_at_ends(samples: &[Rc<Sample>], total: impl Fn(&Sample) -> Vec<u64>) -> Vec<Vec<u64>> {
    let mut rows: Vec<Vec<u64>> = samples.first().map(|s| total(s)).into_iter().collect();
    let mut at = 1;
    while at < samples.len() {
        let together = samples[at..].iter().take_while(|s| Rc::ptr_eq(s, &samples[at])).count();
        let (from, to) = (rows[at - 1].clone(), total(&samples[at]));
        for k in 1..=together as u64 {
            let mix = |(a, b): (&u64, &u64)| a + b.saturating_sub(*a) * k / together as u64;
            rows.push(from.iter().zip(&to).map(mix).collect());
        }
        at += together;
    }
    rows
}

/// What the dies of each channel did: time of one kind, summed over `pus` dies each.
fn channels(r: &Recorder, pus: u32) -> [Heat; 3] {
    let pus = pus.max(1);
    [0, 1, 2].map(|kind| heat(r, |s| of_channels(s, kind, pus), pus))
}

/// The same of one kind of work, for each channel of `pus` dies.
fn of_channels(s: &Sample, kind: usize, pus: u32) -> Vec<u64> {
    let sum = |dies: &[[Ns; 3]]| dies.iter().map(|die| die[kind].as_ns()).sum();
    s.dies.chunks(pus as usize).map(sum).collect()
}

/// Occupancy by busy time up to a sample, each of so many dies.
fn heat(r: &Recorder, total: impl Fn(&Sample) -> Vec<u64>, dies: u32) -> Heat {
    let t = &r.timeline;
    let ends = busy_at_ends(t.samples(), total);
    let buckets = ends.len().saturating_sub(1);
    let (Some(first), true) = (ends.first(), buckets > 0) else {
        return Heat::default();
    };
    let each = buckets.div_ceil(HEAT_COLUMNS_MAX);
    let width = t.width().as_ns();
    let measured = (r.end - r.start).as_ns();
    let rows = (0..first.len()).map(|row| {
        (0..buckets)
            .step_by(each)
            .map(|from| {
                let to = (from + each).min(buckets);
                // The last bucket ends with the run.
                let time = (to as u64 * width).min(measured).saturating_sub(from as u64 * width);
                let busy = ends[to][row].saturating_sub(ends[from][row]);
                (busy * 10_000).checked_div(time * u64::from(dies)).unwrap_or(0).min(10_000) as u16
            })
            .collect()
    });
    Heat { column_ns: each as u64 * width, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(busy: u64) -> Rc<Sample> {
        let die = [Ns::from_ns(busy), Ns::ZERO, Ns::ZERO];
        Rc::new(Sample { dies: vec![die], ..Sample::default() })
    }

    #[test]
    fn what_one_look_found_is_spread_over_the_buckets_it_closed() {
        let late = sample(40);
        let samples = [sample(10), sample(20), late.clone(), late.clone(), late, sample(50)];
        let ends: Vec<u64> =
            busy_at_ends(&samples, of_dies).into_iter().map(|row| row[0]).collect();
        assert_eq!(ends, [10, 20, 26, 33, 40, 50]);
        assert!(busy_at_ends(&[], of_dies).is_empty());
    }

    #[test]
    fn channels_have_the_time_of_their_dies_by_kind() {
        let die = |read: u64, program: u64| [Ns::from_ns(read), Ns::from_ns(program), Ns::ZERO];
        let dies = vec![die(1, 10), die(2, 20), die(4, 40), die(8, 80)];
        let s = Sample { dies, ..Sample::default() };
        assert_eq!(of_channels(&s, 0, 2), [3, 12]);
        assert_eq!(of_channels(&s, 1, 2), [30, 120]);
        assert_eq!(of_channels(&s, 2, 4), [0]);
        assert_eq!(of_dies(&s), [11, 22, 44, 88]);
    }

    #[test]
    fn a_curve_ends_at_the_largest_value_and_rises() {
        let mut l = Latencies::default();
        (1..100_000u64).for_each(|i| l.record(i * i));
        let points = curve(&l);
        assert!(points.len() <= 2 * CURVE_POINTS_MAX, "{}", points.len());
        assert_eq!(points.last(), Some(&(1.0, l.max_ns())));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        let median = points.iter().find(|(q, _)| *q >= 0.5).expect("half of them").1 as f64;
        assert!((median / l.percentile_ns(50.0) as f64 - 1.0).abs() < 0.1, "{median}");
        assert!(curve(&Latencies::default()).is_empty());
    }
}
