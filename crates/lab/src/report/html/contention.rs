//! What cores waited for: a table per lock and per ring, and how deep the rings were over time.
//!
//! Owns: the figure. Promises: it is there where the report's table is; its numbers are those of the
//! JSON. Never: adds up what the report has not.

use super::charts::Line;
use super::figures::{Course, Figure, course_table, gauge, highest, over_time};
use super::page::Table;
use super::svg::{Axis, time};
use crate::contention::ContentionReport;
use crate::report::contention::{shown, waits};
use crate::report::numbers::{Report, RunReport};
use crate::words::grouped;
use flashlane_base::counters::Counters;
use std::ops::Range;

/// A run that counts what its cores wait for, with its number in the report.
type Run<'a> = (usize, &'a RunReport, &'a ContentionReport);

pub(super) fn figure(report: &Report) -> Option<Figure> {
    let runs = shown(report);
    if runs.is_empty() {
        return None;
    }
    let says = (
        "Slots in use in the deepest ring",
        "slots in use in the deepest ring over time, per stack",
    );
    let y = |lines: &[Line]| Axis::linear(highest(lines).max(1.0), 4, "", "");
    let mut body = over_time(report, says, (210.0, 210.0), y, |i, r, spans| {
        let depths = r.timeline.ring_depth_most_slots.iter().map(|depth| *depth as f64);
        let counts = runs.iter().any(|run| run.0 == i);
        counts.then(|| gauge(i, r, spans, &depths.collect::<Vec<f64>>()))
    });
    body += &locks(&runs).html();
    body += &queues(&runs).html();
    let columns = runs.iter().map(|(i, r, _)| -> Course<'_> {
        let depths = &r.timeline.ring_depth_most_slots;
        let at = |range: Range<usize>| depths.get(range.end - 1).map_or("–".into(), u64::to_string);
        (format!("{}: deepest ring (slots)", r.name), *i, Box::new(at))
    });
    Some(Figure {
        title: "Waiting inside the FTL",
        caption: "What the host's cores waited for, up to the end of the last request: locks, \
                  exchanges of map entries that had to be tried again, semaphores of the PUs, room \
                  in a ring. Waits are summed over all who waited."
            .into(),
        body,
        tables: vec![course_table(report, columns)],
    })
}

/// A row per stack and lock; then exchanges and semaphores.
fn locks(runs: &[Run<'_>]) -> Table {
    let mut table = Table::new(&["", "taken", "waited for", "waited, sum"]);
    for (_, r, c) in runs {
        let name = |what: &str| format!("{}: {what}", r.name);
        for l in &c.locks {
            let [taken, contended] = [l.acquired, l.contended].map(grouped);
            let lock = name(&format!("{} lock", l.lock));
            table.rows.push(vec![lock, taken, contended, time(l.wait_ns as f64)]);
        }
        let none = || "–".to_string();
        let (n, sum) = (grouped(c.semaphore_waits), time(c.semaphore_wait_ns as f64));
        table.rows.push(vec![name("semaphores of PUs"), none(), n, sum]);
        for (what, n) in c.exchanges.shown("what") {
            table.rows.push(vec![name(what), none(), grouped(n), none()]);
        }
    }
    table
}

/// A row per stack and ring.
fn queues(runs: &[Run<'_>]) -> Table {
    let head =
        ["", "slots", "depth, mean", "most", "full: waits", "no share: waits", "lock: waits"];
    let mut table = Table::new(&head);
    for (_, r, c) in runs {
        for q in &c.queues {
            table.rows.push(vec![
                format!("{}: ring {}", r.name, q.ring),
                q.slots.to_string(),
                format!("{:.1}", q.depth_mean),
                q.depth_max.to_string(),
                waits((q.full_waits, q.full_wait_ns)),
                waits((q.limited_waits, q.limited_wait_ns)),
                waits((q.lock_contended, q.lock_wait_ns)),
            ]);
        }
    }
    table
}
