//! Which numbers become which figure.
//!
//! Owns: the figures of a report, in order, with caption, drawing and table. Promises: every figure
//! has a table with the same numbers (a course over time in at most 24 rows); what is not there (a
//! limiter, flushes) gives no empty figure. Never: changes a number but for its unit.

use super::charts::{self, Line};
use super::page::{self, Table};
use super::svg::{Axis, Size, escape, time, time_unit};
use crate::report::numbers::{Report, RunReport};
use crate::words::grouped;
use std::ops::Range;

/// Rows of a table of a course.
const TABLE_ROWS: usize = 24;

pub(super) struct Figure {
    pub(super) title: &'static str,
    pub(super) caption: String,
    /// HTML: panels.
    pub(super) body: String,
    pub(super) tables: Vec<Table>,
}

/// The same drawing for wide and for narrow pages; exactly one of them is shown.
pub(super) fn both(wide: f64, narrow: f64, draw: impl Fn(&Size) -> String) -> String {
    in_sizes(&Size::wide(wide), &Size::narrow(narrow), draw)
}

/// As [`both`], for a drawing that is half as wide as the page.
pub(super) fn half(height: f64, draw: impl Fn(&Size) -> String) -> String {
    in_sizes(&Size::half(height), &Size { right: 8.0, ..Size::narrow(height) }, draw)
}

fn in_sizes(wide: &Size, narrow: &Size, draw: impl Fn(&Size) -> String) -> String {
    let (wide, narrow) = (draw(wide), draw(narrow));
    format!("<div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div>\n")
}

pub(super) fn panel(title: &str, drawing: &str) -> String {
    format!("<div class=\"panel\"><h3>{}</h3>\n{drawing}</div>\n", escape(title))
}

pub(super) fn run_class(i: usize) -> String {
    format!("r{}", i % page::COLOURS)
}

/// As [`run_class`], with dashes: those of a colour that comes again differ.
pub(super) fn dashed(i: usize) -> String {
    format!("{} d{}", run_class(i), (i + i / page::COLOURS) % page::COLOURS)
}

/// The longest course, in ns: the common axis of time.
pub(super) fn longest(report: &Report) -> f64 {
    report.runs.iter().map(|r| r.runtime_ns).max().unwrap_or(0).max(1) as f64
}

pub(super) fn time_axis(ns: f64, size: &Size) -> (Axis, f64) {
    let (factor, unit) = time_unit(ns);
    let title = format!("virtual time since the measured part began ({unit})");
    let title = if size.width < 500.0 { format!("virtual time ({unit})") } else { title };
    (Axis::exact(ns / factor, size.x_ticks, &title, unit), factor)
}

/// Ends of the buckets of a run, in ns; the last ends with the run.
pub(super) fn ends(r: &RunReport) -> Vec<f64> {
    let (width, n) = (r.timeline.bucket_ns as f64, r.timeline.operations.len());
    (1..=n).map(|i| (i as f64 * width).min(r.runtime_ns as f64)).collect()
}

/// Consecutive items in at most `most` groups of equal size: index ranges.
pub(super) fn groups(n: usize, most: usize) -> Vec<Range<usize>> {
    let each = n.div_ceil(most.max(1)).max(1);
    (0..n).step_by(each).map(|from| from..(from + each).min(n)).collect()
}

/// All figures of a group that there is something for; `part` names the group in the document.
pub(super) fn all(report: &Report, part: &str) -> Vec<Figure> {
    let mut figures = vec![throughput(report)];
    figures.extend(curves(report));
    figures.extend(slowest(report));
    figures.extend(super::parts::breakdown(report));
    figures.extend(super::causes::of_file_system(report));
    figures.extend(super::causes::amplification(report));
    figures.extend(super::slc::figure(report));
    figures.extend(super::ghosts::figure(report));
    figures.extend(super::together::figure(report));
    figures.push(super::parts::erases(report));
    figures.extend(super::parts::occupancy(report, part));
    figures.extend(room(report));
    figures.extend(super::contention::figure(report));
    figures
}

/// A column of a course: its head, the run, the text for a range of its spans.
pub(super) type Course<'a> = (String, usize, Box<dyn Fn(Range<usize>) -> String + 'a>);

/// A table over time: one column per name, rows that cover the longest run.
pub(super) fn course_table<'a>(
    report: &Report,
    columns: impl IntoIterator<Item = Course<'a>>,
) -> Table {
    let columns: Vec<Course<'_>> = columns.into_iter().collect();
    let total = longest(report);
    let (factor, unit) = time_unit(total);
    let step = total / TABLE_ROWS as f64;
    let mut table = Table::new(&[&format!("up to ({unit})")]);
    table.head.extend(columns.iter().map(|(name, ..)| name.clone()));
    let all_ends: Vec<Vec<f64>> = report.runs.iter().map(ends).collect();
    let mut from = vec![0; report.runs.len()];
    for row in 1..=TABLE_ROWS {
        let until = step * row as f64 * (1.0 + 1e-9);
        let to: Vec<usize> = all_ends
            .iter()
            .map(|ends| match row == TABLE_ROWS {
                true => ends.len(),
                false => ends.partition_point(|end| *end <= until),
            })
            .collect();
        if to == from && row < TABLE_ROWS {
            continue;
        }
        let mut cells = vec![format!("{:.2}", step * row as f64 / factor)];
        for (_, run, of) in &columns {
            let range = from[*run]..to[*run];
            cells.push(if range.is_empty() { "–".into() } else { of(range) });
        }
        table.rows.push(cells);
        from = to;
    }
    table
}

/// Bytes of a range of buckets per second, in MB/s.
pub(super) fn rate(bytes: &[u64], ends: &[f64], range: &Range<usize>) -> f64 {
    let from = if range.start == 0 { 0.0 } else { ends[range.start - 1] };
    let time = ends[range.end - 1] - from;
    let sum: u64 = bytes[range.clone()].iter().sum();
    if time > 0.0 { sum as f64 * 1e3 / time } else { 0.0 }
}

/// A step line from spans: each value holds until the end of its span.
fn steps(values: &[f64], ends: &[f64]) -> Vec<(f64, f64)> {
    let Some(first) = values.first() else {
        return Vec::new();
    };
    // `H` to the end of a span, then `V` to the next one's value: the value leads, its end follows.
    let mut points = vec![(0.0, *first)];
    for (i, end) in ends.iter().enumerate() {
        points.push((*end, values.get(i + 1).copied().unwrap_or(values[i])));
    }
    points
}

/// How a run lies on an axis of time.
pub(super) struct Spans {
    /// Ends of its spans, in ns.
    pub(super) ends: Vec<f64>,
    /// The axis counts in so many ns.
    pub(super) factor: f64,
    /// Points of a line at most.
    pub(super) points: usize,
}

impl Spans {
    /// Where a group of spans ends.
    fn end(&self, group: &Range<usize>) -> f64 {
        self.ends[group.end - 1] / self.factor
    }
}

/// A panel over time: a line per run, on an axis of time and the one that `y` makes of the lines.
pub(super) fn over_time(
    report: &Report,
    (title, alt): (&str, &str),
    heights: (f64, f64),
    y: impl Fn(&[Line]) -> Axis,
    line: impl Fn(usize, &RunReport, &Spans) -> Option<Line>,
) -> String {
    let draw = |size: &Size| {
        let (x, factor) = time_axis(longest(report), size);
        let spans = |r| Spans { ends: ends(r), factor, points: size.points };
        let runs = report.runs.iter().enumerate();
        let lines: Vec<Line> = runs.filter_map(|(i, r)| line(i, r, &spans(r))).collect();
        charts::lines(size, &x, &y(&lines), &lines, alt)
    };
    panel(title, &both(heights.0, heights.1, draw))
}

/// A line of what holds at the end of each span, as far as there are values.
pub(super) fn gauge(i: usize, r: &RunReport, spans: &Spans, values: &[f64]) -> Line {
    let groups = groups(values.len().min(spans.ends.len()), spans.points).into_iter();
    let points = groups.map(|g| (spans.end(&g), values[g.end - 1])).collect();
    Line { name: r.name.clone(), class: dashed(i), points, steps: true }
}

/// Columns of a course: of each run, one per side.
pub(super) fn columns<'a, S: Copy>(
    report: &'a Report,
    sides: impl IntoIterator<Item = S> + Copy,
    column: impl Fn(&'a RunReport, S) -> Option<(String, Box<dyn Fn(Range<usize>) -> String + 'a>)>,
) -> Vec<Course<'a>> {
    let mut all = Vec::new();
    for (i, r) in report.runs.iter().enumerate() {
        let of_run = sides.into_iter().filter_map(|side| column(r, side));
        all.extend(of_run.map(|(head, text)| (format!("{}: {head}", r.name), i, text)));
    }
    all
}

fn throughput(report: &Report) -> Figure {
    type Bytes = fn(&RunReport) -> &[u64];
    let sides: [(&str, Bytes); 2] =
        [("Reads", |r| &r.timeline.read_bytes), ("Writes", |r| &r.timeline.write_bytes)];
    let paced = report.configuration.workloads.iter().any(|w| w.get("trace").is_some());
    let mut body = String::new();
    for (side, bytes) in sides {
        if report.runs.iter().all(|r| bytes(r).iter().all(|b| *b == 0)) {
            continue;
        }
        let says = (format!("{side}, MB/s"), format!("{side} over time in MB/s, per stack"));
        let y = |lines: &[Line]| Axis::linear(highest(lines), 4, "", "MB/s");
        let line = |i: usize, r: &RunReport, spans: &Spans| {
            let groups = groups(spans.ends.len(), spans.points / 2);
            let values: Vec<f64> = groups.iter().map(|g| rate(bytes(r), &spans.ends, g)).collect();
            let ends: Vec<f64> = groups.iter().map(|g| spans.end(g)).collect();
            // Under a trace's pace they coincide: the first are the widest.
            let under = match paced {
                true => (report.runs.len() - 1 - i).min(page::COLOURS - 1),
                false => 0,
            };
            let class = format!("{} w{under}", run_class(i));
            let points = steps(&values, &ends);
            Some(Line { name: r.name.clone(), class, points, steps: true })
        };
        body += &over_time(report, (&says.0, &says.1), (230.0, 220.0), y, line);
    }
    let columns = columns(report, sides, |r, (side, bytes)| {
        let ends = ends(r);
        let text = move |range| format!("{:.2}", rate(bytes(r), &ends, &range));
        Some((format!("{} MB/s", side.to_lowercase()), Box::new(text)))
    });
    Figure {
        title: "Throughput over time",
        caption:
            "Data moved between host and device, averaged over each step. MB is 10<sup>6</sup> \
                  bytes. Where a trace sets the pace, lines coincide as long as a stack keeps up."
                .into(),
        body,
        tables: vec![course_table(report, columns)],
    }
}

pub(super) fn highest(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)).fold(0.0, f64::max)
}

fn curves(report: &Report) -> Option<Figure> {
    let mut body = String::new();
    for (side, name) in ["Reads", "Writes"].into_iter().enumerate() {
        let of = |r: &RunReport| r.figures.curves[side].clone();
        let counts = report.runs.iter().map(|r| of(r).len()).max().unwrap_or(0);
        if counts < 2 {
            continue;
        }
        let points = || report.runs.iter().flat_map(of);
        let low = points().map(|p| p.1).min().unwrap_or(1).max(1) as f64;
        let high = points().map(|p| p.1).max().unwrap_or(10) as f64;
        let requests = report
            .runs
            .iter()
            .map(|r| [r.latency_ns.read.count, r.latency_ns.write.count][side])
            .max()
            .unwrap_or(0);
        let nines = (requests.max(1) as f64).log10().ceil() as usize;
        let draw = |size: &Size| {
            let size = &size.long_labels();
            let x = Axis::latency(low, high, size.x_ticks, "latency");
            let y = Axis::nines(nines, "");
            let line = |(i, r): (usize, &RunReport)| Line {
                name: r.name.clone(),
                class: dashed(i),
                points: of(r).iter().map(|(q, ns)| (*ns as f64, *q)).collect(),
                steps: false,
            };
            let lines: Vec<Line> = report.runs.iter().enumerate().map(line).collect();
            let alt = format!("Distribution of the latency of {}", name.to_lowercase());
            charts::lines(size, &x, &y, &lines, &alt)
        };
        body += &panel(&format!("{name}: share not slower than"), &both(300.0, 280.0, draw));
    }
    let head = ["", "requests", "mean", "50%", "90%", "99%", "99.9%", "99.99%", "longest"];
    let mut table = Table::new(&head);
    for r in &report.runs {
        let l = &r.latency_ns;
        for (op, l) in
            [("reads", l.read), ("writes", l.write), ("discards", l.discard), ("flushes", l.flush)]
        {
            if l.count > 0 {
                let times = [l.mean, l.p50, l.p90, l.p99, l.p99_9, l.p99_99, l.max];
                let mut row = vec![format!("{}: {op}", r.name), grouped(l.count)];
                row.extend(times.iter().map(|ns| time(*ns as f64)));
                table.rows.push(row);
            }
        }
    }
    (!body.is_empty()).then(|| Figure {
        title: "Latency distribution",
        caption: "Cumulative distribution of the latency that the host sees, queueing included. The \
                  vertical axis counts nines, so that the slowest requests have as much room as the \
                  others; the horizontal one is logarithmic. Percentiles are exact to a thousandth."
            .into(),
        body,
        tables: vec![table],
    })
}

fn slowest(report: &Report) -> Option<Figure> {
    type Times = fn(&RunReport) -> &[u64];
    let sides: [(&str, Times); 2] =
        [("reads", |r| &r.timeline.read_max_ns), ("writes", |r| &r.timeline.write_max_ns)];
    let mut body = String::new();
    for (side, times) in sides {
        let values = || report.runs.iter().flat_map(times).copied().filter(|ns| *ns > 0);
        let (Some(low), Some(high)) = (values().min(), values().max()) else {
            continue;
        };
        let title = format!("Longest latency of {side}");
        let alt = format!("{title} over time, per stack");
        let y = |_: &[Line]| Axis::latency(low as f64, high as f64, 6, "");
        let line = |i: usize, r: &RunReport, spans: &Spans| {
            // A span without such a request has no longest one: the line goes on to the next.
            let points = groups(spans.ends.len(), spans.points).into_iter().filter_map(|g| {
                let longest = times(r)[g.clone()].iter().copied().max().unwrap_or(0);
                (longest > 0).then(|| (spans.end(&g), longest as f64))
            });
            let (name, points) = (r.name.clone(), points.collect());
            Some(Line { name, class: run_class(i), points, steps: false })
        };
        body += &over_time(report, (&title, &alt), (210.0, 210.0), y, line);
    }
    let columns = columns(report, sides, |r, (side, times)| {
        let text = move |range: Range<usize>| match times(r)[range].iter().max() {
            Some(0) | None => "–".into(),
            Some(ns) => time(*ns as f64),
        };
        Some((side.to_string(), Box::new(text)))
    });
    (!body.is_empty()).then(|| Figure {
        title: "Slowest request over time",
        caption: "Longest latency in each step of time: what garbage collection, flushes and full \
                  buffers do to the unlucky."
            .into(),
        body,
        tables: vec![course_table(report, columns)],
    })
}

fn room(report: &Report) -> Option<Figure> {
    let mut body = String::new();
    type Series = fn(&RunReport) -> &[f64];
    let sides: [(&str, &str, Series); 2] = [
        ("Free room, % of chunks or lines", "free", |r| &r.timeline.free_ratio),
        ("Users' share of the write buffer, %", "users' share", |r| &r.timeline.user_share_ratio),
    ];
    for (title, alt, of) in sides {
        if report.runs.iter().all(|r| of(r).is_empty()) {
            continue;
        }
        let alt = format!("{alt} over time, per stack");
        let y = |lines: &[Line]| Axis::linear(highest(lines).max(1.0), 4, "", "%");
        body += &over_time(report, (title, &alt), (210.0, 210.0), y, |i, r, spans| {
            let percent: Vec<f64> = of(r).iter().map(|v| v * 100.0).collect();
            Some(gauge(i, r, spans, &percent))
        });
    }
    let columns = columns(report, sides, |r, (_, name, of)| {
        let text = move |range: Range<usize>| {
            of(r).get(range.end - 1).map_or("–".into(), |v| format!("{:.2}", v * 100.0))
        };
        (!of(r).is_empty()).then(|| (format!("{name} (%)"), Box::new(text) as _))
    });
    (!body.is_empty()).then(|| Figure {
        title: "Free room and the limiter",
        caption: "Chunks (pblk) or lines (block SSD) that are free for new data, and how much of \
                  pblk's write buffer its limiter leaves to users; garbage collection has the rest. \
                  A line that stays at 100% means that garbage collection was not needed."
            .into(),
        body,
        tables: vec![course_table(report, columns)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_holds_to_the_end_of_its_span() {
        assert_eq!(steps(&[5.0, 7.0], &[1.0, 2.0]), [(0.0, 5.0), (1.0, 7.0), (2.0, 7.0)]);
    }
}
