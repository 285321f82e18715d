//! What cores waited for inside the FTL: the table.
//!
//! Promises: it is there only where cores could or did meet (several rings, a lock that was waited for).
//! Never: counts.

use super::numbers::{Report, RunReport};
use crate::contention::ContentionReport;
use crate::words::{aligned, grouped, row, short};

/// Runs whose cores could meet, or did, with all others of the report that count.
pub(super) fn shown(report: &Report) -> Vec<(usize, &RunReport, &ContentionReport)> {
    let all = report.runs.iter().enumerate();
    let all: Vec<_> = all.filter_map(|(i, r)| Some((i, r, r.contention.as_ref()?))).collect();
    if all.iter().any(|(_, _, c)| c.is_shared()) { all } else { Vec::new() }
}

/// How often and how long; nothing is a dash.
pub(super) fn waits((times, ns): (u64, u64)) -> String {
    match times {
        0 => "-".into(),
        _ => format!("{} ({})", grouped(times), short(ns)),
    }
}

/// A row per run: what its cores waited for.
pub(super) fn table(report: &Report) -> String {
    let shown = shown(report);
    if shown.is_empty() {
        return String::new();
    }
    let mut rows = vec![
        [
            row(["waits (summed)", "locks", "exchanges again", "semaphores"]),
            row(["full rings", "ring depth, mean", "most"]),
        ]
        .concat(),
    ];
    for (_, r, c) in shown {
        rows.push(vec![
            r.name.clone(),
            waits(c.lock_waits()),
            if c.exchanges.retries() == 0 { "-".into() } else { grouped(c.exchanges.retries()) },
            waits((c.semaphore_waits, c.semaphore_wait_ns)),
            waits(c.full_waits()),
            format!("{:.1}", c.depth_mean()),
            c.deepest().to_string(),
        ]);
    }
    aligned(&rows) + "\n"
}
