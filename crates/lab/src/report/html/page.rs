//! The page around the figures: head, results, tables, configuration.
//!
//! Owns: the text of a report. Promises: what decides a run stands in it (configuration, seed, fill,
//! spare, fingerprint); a run that was not steady is called so, with the reason, before any figure.
//! Never: draws.

use super::svg::{escape, time};
use crate::histogram::LatencyNs;
use crate::report::groups::Host;
use crate::report::numbers::{Report, RunReport};
use crate::report::{files, jobs};
use crate::words::{grouped, mb_per_s};
use flashlane_base::{Bytes, Ns};
use std::fmt::Write;

/// Colours for stacks; with more stacks they come again.
pub(super) const COLOURS: usize = 6;

/// A table: the first cell of a row is its name.
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Without rows.
    pub(super) fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|cell| (*cell).into()).collect(), rows: Vec::new() }
    }

    /// Without rows, with a column per run.
    pub(super) fn of_runs(name: &str, report: &Report) -> Table {
        let mut table = Table::new(&[name]);
        table.head.extend(report.runs.iter().map(|r| r.name.clone()));
        table
    }

    pub(super) fn html(&self) -> String {
        let mut s = String::from("<table>\n<thead><tr>");
        for cell in &self.head {
            let _ = write!(s, "<th scope=\"col\">{}</th>", escape(cell));
        }
        s += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            s += "<tr>";
            for (i, cell) in row.iter().enumerate() {
                let _ = match i {
                    0 => write!(s, "<th scope=\"row\">{}</th>", escape(cell)),
                    _ => {
                        // On a phone the head of a column stands beside each value.
                        let head = self.head.get(i).map_or("", String::as_str);
                        write!(s, "<td data-h=\"{}\">{}</td>", escape(head), escape(cell))
                    }
                };
            }
            s += "</tr>\n";
        }
        s + "</tbody>\n</table>\n"
    }
}

/// Colours and their names.
pub(super) fn legend(items: impl Iterator<Item = (String, String)>) -> String {
    let mut s = String::from("<ul class=\"legend\">");
    for (class, name) in items {
        let _ = write!(s, "<li><i class=\"{class}\"></i>{}</li>", escape(&name));
    }
    s + "</ul>\n"
}

/// Title, what was run, and how far it may be trusted.
pub(super) fn head(report: &Report) -> String {
    let mut s = format!("<header>\n<h1>{}</h1>\n", escape(&report.experiment));
    if !report.description.is_empty() {
        let _ = writeln!(s, "<p class=\"lead\">{}</p>", escape(&report.description));
    }
    let c = &report.configuration;
    let devices: Vec<&str> = {
        let mut names: Vec<&str> =
            c.targets.iter().filter_map(|t| t["device"]["name"].as_str()).collect();
        names.dedup();
        names
    };
    let facts = [
        ("device", devices.join(", ")),
        ("workload", report.workload_names()),
        ("seed", format!("{} ({})", c.seed, c.rng)),
        ("host CPU costs", report.hosts().iter().map(host).collect::<Vec<_>>().join("; ")),
        ("fingerprint", report.fingerprint.clone()),
        ("program", format!("flashlane {}", report.version)),
    ];
    s += "<dl class=\"facts\">\n";
    for (name, value) in facts {
        let _ = writeln!(s, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    s += "</dl>\n";
    s += &trust(report);
    s + "</header>\n"
}

fn host(h: &Host) -> String {
    format!("{} ({}), {} core(s)", h.costs, h.source, h.cores)
}

/// What the runs of a group have in common.
pub(super) fn group_head(group: &Report) -> String {
    format!(
        "<p class=\"part\"><b>{}</b>; {}</p>\n",
        escape(&group.workload_names()),
        escape(&host(&group.hosts()[0]))
    )
}

/// What a reader must know before any number: what went wrong, what was cut short, what was not
/// steady.
fn trust(report: &Report) -> String {
    let mut s = String::new();
    let mut say = |class: &str, text: &str| {
        let _ = writeln!(s, "<p class=\"notice {class}\">{text}</p>");
    };
    for r in &report.runs {
        let mut bad = |what: &str, text: &str| {
            say("bad", &format!("<b>{}{what}</b> {text}.", escape(&r.name)));
        };
        if r.violations > 0 || r.wrong_sectors > 0 || r.counter_laws != "hold" {
            let (broken, wrong, laws) = (r.violations, r.wrong_sectors, escape(&r.counter_laws));
            let text = format!(
                "{broken} broken rules of the medium, {wrong} sectors with wrong content, counters: {laws}"
            );
            bad(": this result is bad.", &text);
        }
        if let Some(why) = &r.read_only {
            bad(" became read-only:", &escape(why));
        }
        let (requests, sectors) = (r.failed_requests, r.uncorrectable_sectors);
        if requests > 0 || sectors > 0 {
            let text = format!("{requests} requests failed, {sectors} sectors could not be read");
            bad(":", &text);
        }
        let failed = r.faults.layer.read_failures + r.faults.layer.gc_read_failures;
        if r.faults.uncorrectable > failed {
            let sectors = r.faults.uncorrectable - failed;
            let text = format!(
                "the medium could not give {sectors} sectors that the layer read for itself"
            );
            bad(":", &text);
        }
        if r.ended_in_ramp {
            bad(":", "everything ended within the ramp; nothing was measured");
        }
    }
    if report.interrupted {
        say("bad", "<b>Interrupted:</b> the numbers are of what was done so far.");
    }
    let unsteady: Vec<&RunReport> = report.runs.iter().filter(|r| !r.steady).collect();
    if !unsteady.is_empty() {
        let which = match unsteady.len() == report.runs.len() {
            true => "No run here was steady.",
            false => "Not every run here was steady.",
        };
        let mut why: Vec<(&str, Vec<&str>)> = Vec::new();
        for r in &unsteady {
            match why.iter_mut().find(|(reason, _)| *reason == r.steady_reason) {
                Some((_, names)) => names.push(&r.name),
                None => why.push((&r.steady_reason, vec![&r.name])),
            }
        }
        let why = why.iter().map(|(reason, names)| match names.len() == report.runs.len() {
            true => escape(reason),
            false => format!("{}: {}", escape(&names.join("; ")), escape(reason)),
        });
        let why: Vec<String> = why.collect();
        let text = format!(
            "<b>{which}</b> Its numbers describe what happened here, not what the stack settles at. {}.",
            why.join("; ")
        );
        say("warn", &text);
    }
    s
}

/// A share of the host's CPU time, where its work costs anything.
fn cpu_share(r: &RunReport, share: f64) -> Option<String> {
    (r.cpu.busy_ratio > 0.0).then(|| format!("{:.2}%", share * 100.0))
}

/// One of an operation's latencies, where it was asked for.
fn latency(of: &LatencyNs, which: fn(&LatencyNs) -> u64) -> Option<String> {
    (of.count > 0).then(|| time(which(of) as f64))
}

/// The results, a column per stack.
pub(super) fn results(report: &Report) -> String {
    let mut table = Table::of_runs("", report);
    type Cell = fn(&RunReport) -> Option<String>;
    let rows: [(&str, Cell); 19] = [
        ("steady", |r| Some(if r.steady { "yes".into() } else { "no".into() })),
        ("requests", |r| Some(grouped(r.requests))),
        ("virtual time", |r| Some(Ns::from_ns(r.runtime_ns).to_string())),
        ("read, MB/s", |r| rate(r.bytes_read, r.runtime_ns)),
        ("written, MB/s", |r| rate(r.bytes_written, r.runtime_ns)),
        ("requests per s", |r| Some(grouped(per_second(r.requests, r.runtime_ns)))),
        ("mean read", |r| latency(&r.latency_ns.read, |l| l.mean)),
        ("read, 99%", |r| latency(&r.latency_ns.read, |l| l.p99)),
        ("read, 99.9%", |r| latency(&r.latency_ns.read, |l| l.p99_9)),
        ("mean write", |r| latency(&r.latency_ns.write, |l| l.mean)),
        ("write, 99%", |r| latency(&r.latency_ns.write, |l| l.p99)),
        ("write, 99.9%", |r| latency(&r.latency_ns.write, |l| l.p99_9)),
        ("write amplification", |r| r.write_amplification_ratio.map(|w| format!("{w:.3}"))),
        ("host CPU busy", |r| cpu_share(r, r.cpu.busy_ratio)),
        ("of it spinning on locks", |r| cpu_share(r, r.cpu.lock_ratio)),
        ("erases", |r| Some(grouped(r.work.erases))),
        ("capacity", |r| Some(Bytes::new(r.fill.capacity_bytes).to_string())),
        ("spare", |r| Some(spare(r))),
        ("filled, from → to", |r| {
            let percent = |v: f64| format!("{:.1}%", v * 100.0);
            Some(format!("{} → {}", percent(r.fill.at_start_ratio), percent(r.fill.at_end_ratio)))
        }),
    ];
    for (name, of) in rows {
        let cells: Vec<Option<String>> = report.runs.iter().map(of).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = vec![name.to_string()];
            row.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into())));
            table.rows.push(row);
        }
    }
    let keys = report.runs.iter().enumerate().map(|(i, r)| {
        (format!("f{}", i % COLOURS), format!("{}, fingerprint {}", r.name, r.fingerprint))
    });
    format!(
        "<section>\n<h2>Results</h2>\n<div class=\"results\">{}</div>\n{}</section>\n",
        table.html(),
        legend(keys)
    )
}

fn rate(bytes: u64, ns: u64) -> Option<String> {
    (bytes > 0).then(|| format!("{:.1}", mb_per_s(bytes, ns)))
}

fn per_second(n: u64, ns: u64) -> u64 {
    (n as u128 * 1_000_000_000).checked_div(ns as u128).unwrap_or(0) as u64
}

fn spare(r: &RunReport) -> String {
    let nominal = format!("{:.1}%", r.fill.spare_ratio * 100.0);
    match &r.fill.lines {
        Some(l) => format!("{nominal} ({:.1}% effective)", l.effective_spare_ratio * 100.0),
        None => nominal,
    }
}

/// What was done on file systems, where there are some.
pub(super) fn files(report: &Report) -> String {
    let table = |rows: Vec<Vec<String>>| {
        let mut rows = rows.into_iter();
        Table { head: rows.next().unwrap_or_default(), rows: rows.collect() }.html()
    };
    let named = |mut rows: Vec<Vec<String>>| {
        // Each row by itself: the kind, then whose.
        rows.iter_mut().skip(1).for_each(|cells| cells[0] = format!("{}, {}", cells[0], cells[1]));
        rows.iter_mut().for_each(|cells| drop(cells.remove(1)));
        rows
    };
    let calls = files::calls(report).map(|rows| table(named(rows)));
    let more = [files::done(report), files::traffic(report), files::together(report)]
        .into_iter()
        .flatten()
        .map(table);
    match calls.into_iter().chain(more).collect::<String>() {
        none if none.is_empty() => none,
        tables => format!("<section>\n<h2>Files</h2>\n{tables}</section>\n"),
    }
}

/// Per part of the workload, where there are several.
pub(super) fn jobs(report: &Report) -> String {
    let Some(rows) = jobs::table(report) else { return String::new() };
    let mut rows = rows.into_iter();
    let table = Table { head: rows.next().unwrap_or_default(), rows: rows.collect() };
    format!("<section>\n<h2>Jobs</h2>\n{}</section>\n", table.html())
}

/// The configuration as it was run.
pub(super) fn configuration(report: &Report) -> String {
    let pretty = |v: &serde_json::Value| serde_json::to_string_pretty(v).expect("plain data");
    let mut s =
        String::from("<section id=\"configuration\">\n<h2>Configuration as it was run</h2>\n");
    let c = &report.configuration;
    let _ = writeln!(
        s,
        "<p>Defaults and changes from the command line filled in. Prepared with fill <code>{}</code>, \
         overwrite <code>{}</code>. The same configuration and seed give the same fingerprint and the \
         same bytes of every result.</p>",
        escape(&c.fill.to_string()),
        escape(&c.overwrite.to_string())
    );
    for (target, run) in c.targets.iter().zip(report.runs.iter().map(|r| &r.name)) {
        let _ = writeln!(
            s,
            "<details><summary>Stack: {}</summary><pre>{}</pre></details>",
            escape(run),
            escape(&pretty(target))
        );
    }
    for (i, w) in c.workloads.iter().enumerate() {
        let _ = writeln!(
            s,
            "<details><summary>Workload {}</summary><pre>{}</pre></details>",
            i + 1,
            escape(&pretty(w))
        );
    }
    s + "</section>\n"
}
