//! One row per run: the columns of CSV and Parquet, and those of the course over time.
//!
//! Owns: names, order and types of the columns. Promises: names end in their unit, and no two are
//! the same; both formats have the same names and values; what was not measured is no number; a
//! later version only adds columns at the end. Never: formats.

use super::files::{FilesReport, named};
use super::numbers::{Report, RunReport};
use crate::contention::ContentionReport;
use crate::histogram::LatencyNs;
use crate::personality::{CallKind as Call, FILE_SYSTEM, LEVELS};
use crate::together::Together;
use flashlane_base::counters::Counters;
use flashlane_ftl::kit::TierStats;
use flashlane_ftl::layer::Kind;
use flashlane_ftl::slc::SLC;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Nothing where it was not measured: 0 is a measurement.
    Int(Option<u64>),
    /// Nothing where there is no such number.
    Ratio(Option<f64>),
    Text(String),
    Bool(bool),
}

pub(crate) type Named = (String, Cell);

fn int(name: impl Into<String>, n: impl Into<Option<u64>>) -> Named {
    (name.into(), Cell::Int(n.into()))
}
fn text(name: &str, value: &str) -> Named {
    (name.into(), Cell::Text(value.into()))
}
fn ratio(name: &str, value: f64) -> Named {
    (name.into(), Cell::Ratio(Some(value)))
}

pub(super) fn run(r: &RunReport) -> Vec<Named> {
    let mut cells = vec![
        text("name", &r.name),
        int("requests", r.requests),
        int("read_bytes", r.bytes_read),
        int("written_bytes", r.bytes_written),
        int("discarded_bytes", r.bytes_discarded),
        int("runtime_ns", r.runtime_ns),
    ];
    let l = &r.latency_ns;
    let all = [("read", l.read), ("write", l.write), ("discard", l.discard), ("flush", l.flush)];
    for (op, latency) in all {
        latencies(op, &latency, &mut cells);
    }
    cells.push(("write_amplification_ratio".into(), Cell::Ratio(r.write_amplification_ratio)));
    for (cause, n) in r.programmed_sectors.named() {
        cells.push(int(format!("programmed_{}_sectors", cause.name()), n));
    }
    let counted = |list: Vec<(&'static str, u64)>| list.into_iter().map(|(name, n)| int(name, n));
    cells.extend(counted(r.work.shown("csv")));
    cells.push(int("violations", r.violations));
    cells.push(int("wrong_sectors", r.wrong_sectors));
    cells.push(("steady".into(), Cell::Bool(r.steady)));
    cells.push(text("steady_reason", &r.steady_reason));
    cells.push(ratio("fill_start_ratio", r.fill.at_start_ratio));
    cells.push(ratio("spare_ratio", r.fill.spare_ratio));
    cells.push(text("fingerprint", &r.fingerprint));
    // Columns that came later, at the end.
    let b = &r.latency_breakdown_ns;
    for (op, parts) in [("read", &b.read), ("write", &b.write)] {
        for part in &parts.0 {
            cells.push(int(format!("{op}_{}_sum_ns", part.key), part.ns));
        }
    }
    cells.push(("interrupted".into(), Cell::Bool(r.interrupted)));
    let w = &r.wear;
    let wear = [("least", w.least), ("p50", w.p50), ("p99", w.p99), ("most", w.most)];
    for (name, erases) in wear {
        cells.push(int(format!("chunk_{name}_erases"), u64::from(erases)));
    }
    cells.extend(counted(r.care.named()));
    cells.push(text("costs", &r.cpu.costs));
    cells.push(ratio("cpu_busy_ratio", r.cpu.busy_ratio));
    cells.push(ratio("cpu_lock_ratio", r.cpu.lock_ratio));
    contention(r.contention.as_ref(), &mut cells);
    cells.extend(counted(r.work.shown("column")));
    let of_drive = r.layers.get(SLC.name());
    let slc = TierStats::SCHEMA.iter().map(|field| {
        let n = of_drive.and_then(|all| all.get(field.name)).copied();
        int(format!("slc_part_{}", field.name), n)
    });
    cells.extend(slc);
    latencies("journal_durable", &r.journal_durable_ns.unwrap_or_default(), &mut cells);
    files(r.files.as_ref(), &mut cells);
    cells
}

/// Calls by kind and what a file system counts, where there is one.
fn files(of: Option<&FilesReport>, cells: &mut Vec<Named>) {
    let per_second = of.map(|files| files.calls_per_second);
    cells.push(("calls_per_second".into(), Cell::Ratio(per_second)));
    for kind in Call::ALL {
        let call = of.map(|files| files.call(kind));
        let (word, l) = (kind.word(), call.unwrap_or_default().latency_ns);
        cells.push(int(format!("{word}_calls"), call.map(|call| call.count)));
        // `read_mean_ns` is what requests took, of whatever kind the target is.
        cells.push(int(format!("{word}_calls_mean_ns"), l.of_values(l.mean)));
        cells.push(int(format!("{word}_calls_p99_ns"), l.of_values(l.p99)));
    }
    cells.push(int("written_below_sectors", of.map(|files| files.written_below_sectors)));
    let stats = of.map(|files| files.stats);
    let counted = named(&stats.unwrap_or_default())
        .map(|(name, n)| int(format!("fs_{name}"), stats.map(|_| n)))
        .collect::<Vec<_>>();
    cells.extend(counted);
    cells.push(int("flash_written_sectors", of.map(|files| files.traffic_sectors.flash)));
    let shares = of.map(|files| (files.cleaned_invalid_ratio, files.erased_invalid_ratio));
    let (cleaned, erased) = shares.unwrap_or_default();
    cells.push(("cleaned_invalid_ratio".into(), Cell::Ratio(cleaned)));
    cells.push(("erased_invalid_ratio".into(), Cell::Ratio(erased)));
    let together = of.and_then(|files| files.together.as_ref());
    let mut mean = |name: &str, of: fn(&Together) -> f64| {
        cells.push((name.into(), Cell::Ratio(together.map(of))));
    };
    mean("block_segments_mean", |t| t.segments_mean);
    mean("block_files_mean", |t| t.files_mean);
    mean("block_unused_ratio", |t| t.unused_ratio);
}

/// Sums over rings, pools and kinds, where a layer counts them; all of them are in the JSON.
fn contention(of: Option<&ContentionReport>, cells: &mut Vec<Named>) {
    let none = ContentionReport::default();
    let c = of.unwrap_or(&none);
    let ((locks, lock_ns), (full, full_ns)) = (c.lock_waits(), c.full_waits());
    let (semaphores, semaphore_ns) = (c.semaphore_waits, c.semaphore_wait_ns);
    let named = [
        ("lock_waits", locks),
        ("lock_wait_sum_ns", lock_ns),
        ("exchange_retries", c.exchanges.retries()),
    ];
    let more = [
        ("semaphore_waits", semaphores),
        ("semaphore_wait_sum_ns", semaphore_ns),
        ("ring_full_waits", full),
        ("ring_full_wait_sum_ns", full_ns),
        ("ring_depth_most_slots", c.deepest()),
    ];
    let all = named.into_iter().chain(c.exchanges.shown("column")).chain(more);
    cells.extend(all.map(|(name, n)| int(name, of.map(|_| n))));
    cells.push(("ring_depth_mean_slots".into(), Cell::Ratio(of.map(|c| c.depth_mean()))));
}

fn latencies(op: &str, l: &LatencyNs, cells: &mut Vec<Named>) {
    let named =
        [("mean", l.mean), ("p50", l.p50), ("p99", l.p99), ("p99_9", l.p99_9), ("max", l.max)];
    for (name, value) in named {
        cells.push(int(format!("{op}_{name}_ns"), l.of_values(value)));
    }
}

/// The longest latency of a span, where anything was read or written in it.
fn longest(ns: u64, bytes: u64) -> Option<u64> {
    (ns > 0 || bytes > 0).then_some(ns)
}

/// The course of all runs: a row per run and span of time, all with the same columns.
pub(super) fn timeline(report: &Report) -> Vec<Vec<Named>> {
    let mut rows = Vec::new();
    for r in &report.runs {
        let t = &r.timeline;
        for i in 0..t.operations.len() {
            let start = i as u64 * t.bucket_ns;
            let mut row = vec![
                text("name", &r.name),
                int("start_ns", start),
                int("end_ns", (start + t.bucket_ns).min(r.runtime_ns)),
                int("operations", t.operations[i]),
                int("read_bytes", t.read_bytes[i]),
                int("write_bytes", t.write_bytes[i]),
                int("read_max_ns", longest(t.read_max_ns[i], t.read_bytes[i])),
                int("write_max_ns", longest(t.write_max_ns[i], t.write_bytes[i])),
                int("host_written_sectors", t.host_written_sectors[i]),
            ];
            for (cause, _) in r.programmed_sectors.named() {
                let cause = cause.name();
                let n = t.programmed_by_cause_sectors.get(cause).map_or(0, |list| list[i]);
                row.push(int(format!("programmed_{cause}_sectors"), n));
            }
            for (name, list) in
                [("free_ratio", &t.free_ratio), ("user_share_ratio", &t.user_share_ratio)]
            {
                row.push((name.into(), Cell::Ratio(list.get(i).copied())));
            }
            for (name, list) in [
                ("ring_depth_slots", &t.ring_depth_slots),
                ("ring_depth_most_slots", &t.ring_depth_most_slots),
            ] {
                row.push((name.into(), Cell::Ratio(list.get(i).map(|n| *n as f64))));
            }
            let files = t.layers.get(FILE_SYSTEM);
            for level in LEVELS {
                let each = files.and_then(|files| files.get(level));
                row.push(int(format!("fs_{level}"), each.map(|each| each[i])));
            }
            rows.push(row);
        }
    }
    rows
}

/// What each channel did over time: a row per run, span of time and channel.
pub(super) fn channels(report: &Report) -> Vec<Vec<Named>> {
    let mut rows = Vec::new();
    for r in &report.runs {
        let [read, program, erase] = &r.figures.channels;
        let share = |of: u16| f64::from(of) / 10_000.0;
        for column in 0..read.rows.first().map_or(0, Vec::len) {
            let start = column as u64 * read.column_ns;
            let end = (start + read.column_ns).min(r.runtime_ns);
            for (channel, kinds) in read.rows.iter().zip(&program.rows).zip(&erase.rows).enumerate()
            {
                let ((read, program), erase) = kinds;
                rows.push(vec![
                    text("name", &r.name),
                    int("start_ns", start),
                    int("end_ns", end),
                    int("channel", channel as u64),
                    ratio("read_ratio", share(read[column])),
                    ratio("program_ratio", share(program[column])),
                    ratio("erase_ratio", share(erase[column])),
                ]);
            }
        }
    }
    rows
}
