//! The tables that a person reads.
//!
//! Owns: columns and their order, units for people. Promises: a column without a value in any run
//! is left out; what was not normal (late, failed, interrupted, unsteady) is said below.
//! Never: wider than it must be.

use super::numbers::{FaultCounts, LatencyNs, Report, RunReport};
use flashlane_base::{Bytes, Ns};

/// Aligns columns: the first to the left, the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            match c {
                0 => line += &format!("{cell}{pad}"),
                _ => line += &format!("  {pad}{cell}"),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// A latency with three digits.
pub(crate) fn short(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let places = if value < 9.995 { 2 } else { (value < 99.95) as usize };
    format!("{value:.places$} {unit}")
}

/// Decimal megabytes per second, the unit of the papers and data sheets.
pub(crate) fn mb_per_s(bytes: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { bytes as f64 * 1e3 / ns as f64 }
}

fn rate(bytes: u64, ns: u64) -> String {
    let rate = mb_per_s(bytes, ns);
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

/// What was simulated, in a few lines.
pub(super) fn head(report: &Report) -> String {
    let c = &report.configuration;
    let mut text = String::new();
    let mut last = String::new();
    for (target, run) in c.targets.iter().zip(&report.runs) {
        let (device, g) = (&target["device"], &target["device"]["geometry"]);
        let line = format!(
            "{}: {} channels x {} PUs, {} raw, {} store",
            device["name"].as_str().unwrap_or(""),
            g["channels"],
            g["pus_per_channel"],
            Bytes::new(run.fill.raw_bytes),
            target["store"].as_str().unwrap_or(""),
        );
        if line != last {
            text += &format!("{line}\n");
        }
        last = line;
    }
    text += &format!("{}: seed {}, CPU costs `{}`", report.experiment, c.seed, c.costs);
    text + "\n\n"
}

/// A row per stack.
pub(super) fn results(report: &Report) -> String {
    let any = |pick: fn(&RunReport) -> &LatencyNs| report.runs.iter().any(|r| pick(r).count > 0);
    let (reads, writes, flushes) =
        (any(|r| &r.latency_ns.read), any(|r| &r.latency_ns.write), any(|r| &r.latency_ns.flush));
    let mut header: Vec<&str> = vec!["stack", "requests", "time"];
    let columns = [
        (reads, ["read MB/s", "p50", "p99", "p99.9"].as_slice()),
        (writes, ["write MB/s", "p50", "p99", "p99.9"].as_slice()),
        (flushes, ["flush p50", "p99"].as_slice()),
        (writes, ["WA"].as_slice()),
        (true, ["erases", "steady"].as_slice()),
    ];
    for (_, names) in columns.iter().filter(|(there, _)| *there) {
        header.extend(*names);
    }
    let mut rows = vec![header.into_iter().map(str::to_string).collect::<Vec<_>>()];
    for r in &report.runs {
        let mut row =
            vec![r.name.clone(), grouped(r.requests), Ns::from_ns(r.runtime_ns).to_string()];
        let mut percentiles = |bytes: u64, l: &LatencyNs| {
            row.push(rate(bytes, r.runtime_ns));
            row.extend([l.p50, l.p99, l.p99_9].map(short));
        };
        if reads {
            percentiles(r.bytes_read, &r.latency_ns.read);
        }
        if writes {
            percentiles(r.bytes_written, &r.latency_ns.write);
        }
        if flushes {
            row.extend([r.latency_ns.flush.p50, r.latency_ns.flush.p99].map(short));
        }
        if writes {
            row.push(r.write_amplification_ratio.map_or("-".into(), |w| format!("{w:.2}")));
        }
        row.push(grouped(r.erases));
        row.push(if r.steady { "yes" } else { "no" }.into());
        rows.push(row);
    }
    aligned(&rows) + "\n"
}

/// Programmed sectors per sector written, by cause.
pub(super) fn causes(report: &Report) -> String {
    let wrote: Vec<&RunReport> =
        report.runs.iter().filter(|r| r.buffer_sectors.host_written > 0).collect();
    let used: Vec<usize> =
        (0..10).filter(|i| wrote.iter().any(|r| r.programmed_sectors.named()[*i].1 > 0)).collect();
    if used.is_empty() {
        return String::new();
    }
    let mut header = vec!["programmed per sector written".to_string()];
    let names = wrote[0].programmed_sectors.named();
    header.extend(used.iter().map(|i| names[*i].0.replace('_', " ")));
    header.push("= WA".into());
    header.push("absorbed".into());
    let mut rows = vec![header];
    for r in wrote {
        let written = r.buffer_sectors.host_written as f64;
        let mut row = vec![r.name.clone()];
        let named = r.programmed_sectors.named();
        row.extend(used.iter().map(|i| format!("{:.3}", named[*i].1 as f64 / written)));
        row.push(format!("{:.3}", r.programmed_sectors.total() as f64 / written));
        row.push(format!("{:.3}", r.buffer_sectors.absorbed as f64 / written));
        rows.push(row);
    }
    aligned(&rows) + "\n"
}

/// What else must be known to read the numbers.
pub(super) fn notes(report: &Report) -> String {
    let mut notes: Vec<String> = Vec::new();
    for run in &report.runs {
        state(run, &mut notes);
        troubles(run, &mut notes);
    }
    if let Some(run) = report.runs.first() {
        replays(run, &mut notes);
    }
    if report.interrupted {
        notes.push("INTERRUPTED: the numbers are of what was done so far".into());
    }
    notes.push(format!("fingerprint {}", report.fingerprint));
    notes.join("\n") + "\n"
}

/// How full and how steady, and what was unusual about the run itself.
fn state(r: &RunReport, notes: &mut Vec<String>) {
    let (name, f) = (&r.name, &r.fill);
    notes.push(format!(
        "{name}: {} logical, {:.0}% spare, {:.0}% full at the start and {:.0}% at the end; {}: {}",
        Bytes::new(f.capacity_bytes),
        f.spare_ratio * 100.0,
        f.at_start_ratio * 100.0,
        f.at_end_ratio * 100.0,
        if r.steady { "steady" } else { "not steady" },
        r.steady_reason,
    ));
    if r.ended_in_ramp {
        notes.push(format!("{name}: everything ended within ramp_time, nothing was measured"));
    }
    if r.slip.late > 0 {
        notes.push(format!(
            "{name}: {} of {} requests were issued late (mean {}, at most {})",
            grouped(r.slip.late),
            grouped(r.slip.requests),
            short(r.slip.mean_ns),
            short(r.slip.max_ns)
        ));
    }
}

/// What went wrong, on purpose or not.
fn troubles(r: &RunReport, notes: &mut Vec<String>) {
    let (name, f) = (&r.name, &r.faults);
    if let Some(why) = &r.read_only {
        notes.push(format!("{name}: the device became read-only: {why}"));
    }
    if r.failed_requests > 0 {
        notes.push(format!(
            "{name}: {} requests failed, {} sectors were unreadable",
            grouped(r.failed_requests),
            grouped(r.uncorrectable_sectors)
        ));
    }
    if *f != FaultCounts::default() {
        notes.push(format!(
            "{name}: the medium failed: {} sectors in programs, {} erases, {} sectors in reads of \
             the host and {} of garbage collection; {} reads were heavily corrected",
            f.program_failures, f.erase_failures, f.read_failures, f.gc_read_failures, f.high_ecc
        ));
    }
    if r.violations > 0 {
        notes.push(format!("{name}: {} VIOLATIONS of the medium's rules:", r.violations));
        notes.extend(r.violations_shown.iter().map(|v| format!("  {v}")));
    }
    if r.wrong_sectors > 0 {
        notes.push(format!("{name}: {} sectors had WRONG CONTENT:", r.wrong_sectors));
        notes.extend(r.wrong_shown.iter().map(|v| format!("  {v}")));
    }
    if r.counter_laws != "hold" {
        notes.push(format!("{name}: COUNTERS DISAGREE: {}", r.counter_laws));
    }
}

/// What was done with traces; the same for every stack of a size.
fn replays(r: &RunReport, notes: &mut Vec<String>) {
    for t in &r.replayed {
        let mut text =
            format!("trace {}: {}, {} events, {}", t.trace, t.format, t.action, t.layout);
        for (n, what) in [
            (t.widened, "requests widened to whole 4 KiB sectors"),
            (t.shrunk, "discards shrunk to whole sectors"),
            (t.backwards, "records out of order in time"),
        ] {
            if n > 0 {
                text += &format!("; {} {what}", grouped(n));
            }
        }
        notes.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(grouped(12), "12");
        for (ns, text) in
            [(7, "7 ns"), (1_500, "1.50 us"), (75_000, "75.0 us"), (999_000_000, "999 ms")]
        {
            assert_eq!(short(ns), text);
        }
        assert_eq!(mb_per_s(4096, 1000), 4096.0);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_string(), "1".into()], vec!["bcd".into(), "22".into()]];
        assert_eq!(aligned(&rows), "a     1\nbcd  22\n");
    }
}
