//! What cores waited for: a table per lock and per ring, and how deep the rings were over time.
//!
//! Owns: the figure. Promises: it is there where the report's table is; its numbers are those of the
//! JSON. Never: adds up what the report has not.

use super::charts::{self, Line};
use super::figures::{
    Course, Figure, both, course_table, ends, groups, highest, longest, panel, run_class, time_axis,
};
use super::page::{self, Table};
use super::svg::{Axis, Size, time};
use crate::contention::ContentionReport;
use crate::report::contention::{shown, waits};
use crate::report::numbers::{Report, RunReport};
use crate::words::grouped;
use flashlane_base::counters::Counters;

/// A run that counts what its cores wait for, with its number in the report.
type Run<'a> = (usize, &'a RunReport, &'a ContentionReport);

pub(super) fn figure(report: &Report) -> Option<Figure> {
    let runs = shown(report);
    if runs.is_empty() {
        return None;
    }
    let total = longest(report);
    let draw = |size: &Size| {
        let (x, factor) = time_axis(total, size);
        let line = |(i, r, _): &Run<'_>| {
            let (ends, depths) = (ends(r), &r.timeline.ring_depth_most_slots);
            let points = groups(depths.len().min(ends.len()), size.points).into_iter();
            let points = points.map(|g| (ends[g.end - 1] / factor, depths[g.end - 1] as f64));
            let class = format!("{} d{}", run_class(*i), i % page::COLOURS);
            Line { name: r.name.clone(), class, points: points.collect(), steps: true }
        };
        let lines: Vec<Line> = runs.iter().map(line).collect();
        let y = Axis::linear(highest(&lines).max(1.0), 4, "", "");
        charts::lines(size, &x, &y, &lines, "slots in use in the deepest ring over time, per stack")
    };
    let mut body = panel("Slots in use in the deepest ring", &both(210.0, 210.0, draw));
    body += &locks(&runs).html();
    body += &queues(&runs).html();
    let columns = runs.iter().map(|(i, r, _)| -> Course {
        let list = r.timeline.ring_depth_most_slots.clone();
        let at = move |range: std::ops::Range<usize>| {
            list.get(range.end - 1).map_or("–".into(), u64::to_string)
        };
        (format!("{}: deepest ring (slots)", r.name), *i, Box::new(at))
    });
    Some(Figure {
        title: "Waiting inside the FTL",
        caption: "What the host's cores waited for, up to the end of the last request: locks, \
                  exchanges of map entries that had to be tried again, semaphores of the PUs, room \
                  in a ring. Waits are summed over all who waited."
            .into(),
        body,
        tables: vec![course_table(report, columns.collect())],
    })
}

/// A row per stack and lock; then exchanges and semaphores.
fn locks(runs: &[Run<'_>]) -> Table {
    let head = ["", "taken", "waited for", "waited, sum"].map(String::from).to_vec();
    let mut rows = Vec::new();
    for (_, r, c) in runs {
        let name = |what: &str| format!("{}: {what}", r.name);
        for l in &c.locks {
            let [taken, contended] = [l.acquired, l.contended].map(grouped);
            let lock = name(&format!("{} lock", l.lock));
            rows.push(vec![lock, taken, contended, time(l.wait_ns as f64)]);
        }
        let none = || "–".to_string();
        let semaphores = [grouped(c.semaphore_waits), time(c.semaphore_wait_ns as f64)];
        let [n, sum] = semaphores;
        rows.push(vec![name("semaphores of PUs"), none(), n, sum]);
        for (what, n) in c.exchanges.shown("what") {
            rows.push(vec![name(what), none(), grouped(n), none()]);
        }
    }
    Table { head, rows }
}

/// A row per stack and ring.
fn queues(runs: &[Run<'_>]) -> Table {
    let head =
        ["", "slots", "depth, mean", "most", "full: waits", "no share: waits", "lock: waits"];
    let mut rows = Vec::new();
    for (_, r, c) in runs {
        for q in &c.queues {
            rows.push(vec![
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
    Table { head: head.map(String::from).to_vec(), rows }
}
