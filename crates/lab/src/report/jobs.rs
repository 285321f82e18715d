//! Results per part of the workload.
//!
//! Owns: the names of the parts, their numbers, their table. Promises: one item per job of the plan, in order,
//! also of a job that did nothing; replayed traces together are one more. Never: adds up parts.

use super::numbers::Report;
use crate::execute::{Outcome, RunOutcome};
use crate::experiment::Workload;
use crate::histogram::LatencyNs;
use crate::run::jobs::{JobRecord, OpRecord};
use crate::words::{grouped, mb_per_s, row, short};
use crate::workload::Job;
use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;
use serde::Serialize;

/// What one part of the workload did; all copies (`numjobs`) of a job together.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    /// The job's name; a trace's is its file.
    pub name: String,
    /// From the issue of its first measured operation to the end of its last.
    pub runtime_ns: u64,
    pub read: JobOpReport,
    pub write: JobOpReport,
    pub discard: JobOpReport,
    pub flush: JobOpReport,
}

/// Operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobOpReport {
    /// Bytes; 0 for flushes.
    pub bytes: u64,
    /// Latencies; `count` is the number of operations.
    pub latency_ns: LatencyNs,
}

/// A part of the workload and what it did; `None` where it did nothing.
pub(super) struct Part<'a> {
    pub(super) name: String,
    /// The job; none for traces.
    pub(super) job: Option<&'a Job>,
    pub(super) record: Option<&'a JobRecord>,
}

/// The parts of the workload of a run.
pub(super) fn parts<'a>(outcome: &'a Outcome, run: &'a RunOutcome) -> Vec<Part<'a>> {
    let recorder = &run.measured.recorder;
    let mut parts = Vec::new();
    let mut traces: Vec<String> = Vec::new();
    let workloads = outcome.experiment.workloads_of(&run.target);
    for (i, (_, workload)) in workloads.enumerate() {
        match workload {
            Workload::Job(job) => parts.push(Part {
                name: job.name.clone(),
                job: Some(job),
                record: recorder.job(Some(i)),
            }),
            Workload::Files(job) => parts.push(Part {
                name: job.name.clone(),
                job: None,
                record: recorder.job(Some(i)),
            }),
            Workload::Trace(spec) => traces.push(spec.source.name()),
        }
    }
    if !traces.is_empty() {
        let name = traces.join(" + ");
        parts.push(Part { name, job: None, record: recorder.job(None) });
    }
    parts
}

pub(super) fn reports(outcome: &Outcome, run: &RunOutcome) -> Vec<JobReport> {
    let op = |record: Option<&OpRecord>| {
        record.map_or(JobOpReport::default(), |r| JobOpReport {
            bytes: r.bytes,
            latency_ns: (&r.latency).into(),
        })
    };
    let report = |part: Part<'_>| {
        let of = |kind| op(part.record.and_then(|r| r.op(kind)));
        JobReport {
            runtime_ns: runtime(part.record).as_ns(),
            read: of(BlockOp::Read),
            write: of(BlockOp::Write),
            discard: of(BlockOp::Discard),
            flush: of(BlockOp::Flush),
            name: part.name,
        }
    };
    parts(outcome, run).into_iter().map(report).collect()
}

/// A row per stack and part of the workload, below a head, by each part's own time; nothing where no
/// stack has several.
pub(super) fn table(report: &Report) -> Option<Vec<Vec<String>>> {
    if report.runs.iter().all(|r| r.jobs.len() < 2) {
        return None;
    }
    type Pick = fn(&JobReport) -> &JobOpReport;
    let operations: [(&str, &str, Pick); 4] = [
        ("reads", "read MB/s", |job| &job.read),
        ("writes", "write MB/s", |job| &job.write),
        ("discards", "", |job| &job.discard),
        ("flushes", "", |job| &job.flush),
    ];
    let all = || report.runs.iter().flat_map(|r| r.jobs.iter().map(move |job| (r, job)));
    let there = |pick: Pick| all().any(|(_, job)| pick(job).latency_ns.count > 0);
    let operations: Vec<_> = operations.into_iter().filter(|(.., pick)| there(*pick)).collect();
    let mut head = row(["part of the workload", "time"]);
    for (count, rate, _) in &operations {
        head.extend([count, "per s", rate, "p99"].map(String::from));
    }
    let mut rows = vec![head];
    for (r, job) in all() {
        let mut cells = vec![format!("{}: {}", r.name, job.name), short(job.runtime_ns)];
        for (.., pick) in &operations {
            let JobOpReport { bytes, latency_ns: l } = pick(job);
            let per_second = l.count as f64 * 1e9 / job.runtime_ns.max(1) as f64;
            cells.extend(match l.count {
                0 => row(["-", "-", "-", "-"]),
                n => vec![
                    grouped(n),
                    grouped(per_second as u64),
                    format!("{:.1}", mb_per_s(*bytes, job.runtime_ns)),
                    short(l.p99),
                ],
            });
        }
        rows.push(cells);
    }
    // Discards and flushes have no column of bytes.
    for column in (0..rows[0].len()).rev().filter(|c| rows[0][*c].is_empty()).collect::<Vec<_>>() {
        rows.iter_mut().for_each(|cells| drop(cells.remove(column)));
    }
    Some(rows)
}

/// How long a part was at work; 0 when it never was.
pub(super) fn runtime(record: Option<&JobRecord>) -> Ns {
    let of = |r: &JobRecord| r.start.map_or(Ns::ZERO, |start| r.end.saturating_sub(start));
    record.map_or(Ns::ZERO, of)
}
