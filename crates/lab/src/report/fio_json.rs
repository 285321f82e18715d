//! Results as fio prints them with `--output-format=json+`.
//!
//! Owns: fio's names and units, the classes of its latency histogram. Promises: field names and
//! meanings of fio 3.33, so that its own scripts (`fio_jsonplus_clat2csv`) and everybody's parsers
//! read it; what was not measured (CPU time, context switches, depths, bandwidth samples) is not
//! there rather than zero; no wall clock: the times of day are those of 1970. Never: holds what fio
//! has no name for (the other outputs do).
//!
//! A job is a job of the workload with all its copies, as under `group_reporting`; with several
//! stacks each has its own, named `STACK: JOB`, with the number of the stack as `groupid`. All
//! latency is completion latency: a request waits for its submission here.

use super::jobs::{Part, parts, runtime};
use crate::execute::Outcome;
use crate::histogram::Latencies;
use crate::run::jobs::OpRecord;
use crate::workload::{Job, Mix};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A JSON object whose keys stay in this order: numbers as text would be sorted as text.
struct Ordered<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for Ordered<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(k, v)| (k, v)))
    }
}

#[derive(Serialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: &'static str,
    timestamp: u64,
    timestamp_ms: u64,
    time: &'static str,
    jobs: Vec<JobOutput>,
}

#[derive(Serialize)]
struct JobOutput {
    jobname: String,
    groupid: usize,
    error: u32,
    eta: u32,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Ordered<String>,
    read: Direction,
    write: Direction,
    trim: Direction,
    sync: Sync,
    job_runtime: u64,
    latency_ns: Ordered<f64>,
    latency_us: Ordered<f64>,
    latency_ms: Ordered<f64>,
}

#[derive(Serialize)]
struct Direction {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Value,
    clat_ns: Latency,
    lat_ns: Latency,
}

#[derive(Serialize)]
struct Sync {
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Serialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    n: u64,
    /// Both are left out where there is no value, as fio does.
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Ordered<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bins: Option<Ordered<u64>>,
}

/// Percentiles that fio prints unless told otherwise.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// The results of all runs.
pub(super) fn text(outcome: &Outcome) -> String {
    let several = outcome.runs.len() > 1;
    let jobs = outcome.runs.iter().enumerate().flat_map(|(group, run)| {
        let stack = several.then_some(&*run.target.name);
        let failed = run.measured.recorder.failed > 0;
        parts(outcome, run).into_iter().map(move |part| job(&part, stack, group, failed))
    });
    let output = Output {
        version: concat!("fio-3.33, as written by flashlane ", env!("CARGO_PKG_VERSION")),
        timestamp: 0,
        timestamp_ms: 0,
        time: "Thu Jan  1 00:00:00 1970",
        jobs: jobs.collect(),
    };
    serde_json::to_string_pretty(&output).expect("plain data") + "\n"
}

fn job(part: &Part<'_>, stack: Option<&str>, groupid: usize, failed: bool) -> JobOutput {
    let time = runtime(part.record);
    let of = |op| part.record.and_then(|r| r.op(op));
    let mut all = Latencies::default();
    for op in [BlockOp::Read, BlockOp::Write, BlockOp::Discard].into_iter().filter_map(of) {
        all.merge(&op.latency);
    }
    let [latency_ns, latency_us, latency_ms] = classes(&all);
    JobOutput {
        jobname: match stack {
            Some(stack) => format!("{stack}: {}", part.name),
            None => part.name.clone(),
        },
        groupid,
        // EIO, as fio has it for a request that failed.
        error: if failed { 5 } else { 0 },
        eta: 0,
        elapsed: time.as_ns().div_ceil(1_000_000_000),
        options: options(part),
        read: direction(of(BlockOp::Read), time),
        write: direction(of(BlockOp::Write), time),
        trim: direction(of(BlockOp::Discard), time),
        sync: Sync {
            total_ios: of(BlockOp::Flush).map_or(0, |r| r.latency.count()),
            lat_ns: latency(of(BlockOp::Flush)),
        },
        job_runtime: milliseconds(time),
        latency_ns,
        latency_us,
        latency_ms,
    }
}

/// fio counts whole milliseconds, and at least one of what ran at all.
fn milliseconds(time: Ns) -> u64 {
    time.as_ns().div_ceil(1_000_000)
}

fn direction(record: Option<&OpRecord>, time: Ns) -> Direction {
    let (bytes, n) = record.map_or((0, 0), |r| (r.bytes, r.latency.count()));
    let per_second = |v: u64| match time.as_ns() {
        0 => 0.0,
        ns => v as f64 * 1e9 / ns as f64,
    };
    Direction {
        io_bytes: bytes,
        io_kbytes: bytes / 1024,
        bw_bytes: per_second(bytes) as u64,
        bw: (per_second(bytes) / 1024.0) as u64,
        iops: per_second(n),
        runtime: if n > 0 { milliseconds(time) } else { 0 },
        total_ios: n,
        short_ios: 0,
        drop_ios: 0,
        slat_ns: json!({ "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 }),
        clat_ns: latency(record),
        lat_ns: latency(record),
    }
}

fn latency(record: Option<&OpRecord>) -> Latency {
    let none = Latencies::default();
    let l = record.map_or(&none, |r| &r.latency);
    let mut bins: BTreeMap<u64, u64> = BTreeMap::new();
    for (ns, n) in l.values() {
        *bins.entry(bin(ns)).or_default() += n;
    }
    let any = l.count() > 0;
    let percentile = |p: f64| (format!("{p:.6}"), l.percentile_ns(p));
    Latency {
        min: l.min_ns(),
        max: l.max_ns(),
        mean: l.mean_ns() as f64,
        stddev: l.stddev_ns(),
        n: l.count(),
        percentile: any.then(|| Ordered(PERCENTILES.into_iter().map(percentile).collect())),
        bins: any.then(|| Ordered(bins.into_iter().map(|(ns, n)| (ns.to_string(), n)).collect())),
    }
}

/// Significant bits of a class of fio's histogram (`FIO_IO_U_PLAT_BITS`).
const BIN_BITS: u32 = 6;

/// The value by which fio names the class of a latency: itself while it is small, the middle of its
/// class otherwise.
fn bin(ns: u64) -> u64 {
    let width = (ns.max(1).ilog2()).saturating_sub(BIN_BITS);
    match width {
        0 => ns,
        _ => (ns >> width << width) + (1 << (width - 1)),
    }
}

/// Upper ends of the classes of `latency_ns`, in ns; those of `latency_us` are the same in us.
const NS_CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
const MS_CLASSES: [u64; 11] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000];

/// Shares of requests by latency, in hundredths: three scales that follow each other.
fn classes(l: &Latencies) -> [Ordered<f64>; 3] {
    let ends = |list: &[u64], unit: u64| list.iter().map(|v| v * unit).collect::<Vec<u64>>();
    let scales = [
        (ends(&NS_CLASSES, 1), 1u64),
        (ends(&NS_CLASSES, 1_000), 1_000),
        (ends(&MS_CLASSES, 1_000_000), 1_000_000),
    ];
    let all: Vec<u64> = scales.iter().flat_map(|(ends, _)| ends.iter().copied()).collect();
    let mut counts = vec![0u64; all.len() + 1];
    for (ns, n) in l.values() {
        counts[all.partition_point(|end| *end <= ns)] += n;
    }
    let share = |n: u64| n as f64 * 100.0 / l.count().max(1) as f64;
    let mut counts = counts.into_iter();
    let mut scale = |(ends, unit): &(Vec<u64>, u64)| {
        let named = ends.iter().map(|end| (end / unit).to_string());
        Ordered(named.zip(counts.by_ref().map(share)).collect())
    };
    let [ns, us] = [scale(&scales[0]), scale(&scales[1])];
    let mut ms = scale(&scales[2]);
    ms.0.push((">=2000".into(), share(counts.next().unwrap_or(0))));
    [ns, us, ms]
}

fn options(part: &Part<'_>) -> Ordered<String> {
    let mut list = vec![("name".to_string(), part.name.clone())];
    match part.job {
        None => list.push(("read_iolog".into(), part.name.clone())),
        Some(job) => {
            let bytes = |i: usize| (job.bs[i].min() as u64 * SECTOR_BYTES as u64).to_string();
            list.push(("rw".into(), rw(job).into()));
            list.push(("bs".into(), (0..3).map(bytes).collect::<Vec<_>>().join(",")));
            list.push(("iodepth".into(), job.iodepth.to_string()));
            list.push(("numjobs".into(), job.numjobs.to_string()));
            list.push(("group_reporting".into(), "1".into()));
            if job.rw == Mix::Mixed {
                list.push(("rwmixread".into(), job.rwmixread.to_string()));
            }
        }
    }
    Ordered(list)
}

fn rw(job: &Job) -> &'static str {
    match (job.rw, job.random) {
        (Mix::Read, false) => "read",
        (Mix::Read, true) => "randread",
        (Mix::Write, false) => "write",
        (Mix::Write, true) => "randwrite",
        (Mix::Mixed, false) => "rw",
        (Mix::Mixed, true) => "randrw",
        (Mix::Discard, false) => "trim",
        (Mix::Discard, true) => "randtrim",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values and the bins that fio 3.33 itself printed for them.
    #[test]
    fn bins_are_those_of_fio() {
        for (ns, named) in [(30, 30), (127, 127), (128, 129), (181, 181), (12_098, 12_096)] {
            assert_eq!(bin(ns), named, "{ns}");
        }
    }

    #[test]
    fn classes_cover_every_request_once() {
        let mut l = Latencies::default();
        [1, 999, 1_000, 70_000, 3_000_000, 4_000_000_000].into_iter().for_each(|v| l.record(v));
        let shares = classes(&l);
        let sum: f64 = shares.iter().flat_map(|s| s.0.iter().map(|(_, v)| v)).sum();
        assert!((sum - 100.0).abs() < 1e-9, "{sum}");
        let of = |scale: usize, key: &str| {
            let found = shares[scale].0.iter().find(|(k, _)| k == key).expect("a class of fio's");
            (found.1 * 6.0 / 100.0).round()
        };
        assert_eq!((of(0, "2"), of(0, "1000"), of(1, "2"), of(1, "100")), (1.0, 1.0, 1.0, 1.0));
        assert_eq!((of(2, "4"), of(2, ">=2000")), (1.0, 1.0));
    }
}
