//! The tables that a person reads.
//!
//! Owns: columns and their order, units for people. Promises: a column without a value in any run
//! is left out; what was not normal (late, failed, interrupted, unsteady) is said below.
//! Never: wider than it must be.

use super::numbers::{Parts, Report, RunReport};
use crate::execute::Clock;
use crate::histogram::LatencyNs;
use crate::words::{aligned, aligned_left, grouped, mb_per_s, row, short};
use flashlane_base::{Bytes, Ns, SECTOR_BYTES};
use flashlane_ext4::Holds;
use flashlane_ocssd::device::Cause;

fn rate(bytes: u64, ns: u64) -> String {
    let rate = mb_per_s(bytes, ns);
    if rate >= 100.0 { format!("{rate:.0}") } else { format!("{rate:.1}") }
}

/// What was simulated, in a few lines.
pub(super) fn head(report: &Report) -> String {
    let c = &report.configuration;
    let mut text = match report.description.as_str() {
        "" => format!("{}\n", report.experiment),
        about => format!("{}: {about}\n", report.experiment),
    };
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
    text += &format!("seed {}", c.seed);
    match &report.hosts()[..] {
        [host] => text += &format!(", {host}\n\n"),
        _ => text += "\n\n", // each group says its own
    }
    text
}

/// What the runs of a group have in common.
pub(super) fn group_head(group: &Report) -> String {
    format!("== {}; {}\n\n", group.workload_names(), group.hosts()[0])
}

/// A row per stack: what it did, at what fill and spare.
pub(super) fn results(report: &Report) -> String {
    let any = |pick: fn(&RunReport) -> u64| report.runs.iter().any(|r| pick(r) > 0);
    let (reads, writes) = (any(|r| r.bytes_read), any(|r| r.bytes_written));
    let has_files = report.runs.iter().any(|r| r.files.is_some());
    type Column = (&'static str, fn(&RunReport) -> String);
    let columns: [Option<Column>; 12] = [
        Some(("stack", |r| r.name.clone())),
        Some(("requests", |r| grouped(r.requests))),
        Some(("time", |r| Ns::from_ns(r.runtime_ns).to_string())),
        has_files.then_some(("per s", |r| {
            let files = r.files.as_ref();
            files.map_or("-".into(), |f| grouped(f.calls_per_second as u64))
        })),
        reads.then_some(("read MB/s", |r| rate(r.bytes_read, r.runtime_ns))),
        writes.then_some(("write MB/s", |r| rate(r.bytes_written, r.runtime_ns))),
        writes.then_some(("WA", |r| {
            r.write_amplification_ratio.map_or("-".into(), |w| format!("{w:.2}"))
        })),
        Some(("erases", |r| grouped(r.work.erases))),
        Some(("logical", |r| Bytes::new(r.fill.capacity_bytes).to_string())),
        Some(("spare", |r| percent(r.fill.spare_ratio))),
        Some(("full", |r| {
            format!("{} to {}", percent(r.fill.at_start_ratio), percent(r.fill.at_end_ratio))
        })),
        Some(("steady", |r| if r.steady { "yes" } else { "no" }.into())),
    ];
    let columns = || columns.iter().flatten();
    let mut rows = vec![columns().map(|(head, _)| (*head).into()).collect()];
    rows.extend(report.runs.iter().map(|r| columns().map(|(_, of)| of(r)).collect::<Vec<_>>()));
    aligned(&rows) + "\n"
}

/// A share of 1.
fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// What a run says of one operation's latencies.
type Latency = fn(&RunReport) -> &LatencyNs;

/// A row per operation and stack.
pub(super) fn latencies(report: &Report) -> String {
    let mut rows = vec![row(["latency", "", "requests", "mean", "p50", "p99", "p99.9", "max"])];
    let operations: [(&str, Latency); 4] = [
        ("read", |r| &r.latency_ns.read),
        ("write", |r| &r.latency_ns.write),
        ("discard", |r| &r.latency_ns.discard),
        ("flush", |r| &r.latency_ns.flush),
    ];
    for (operation, pick) in operations {
        let there = report.runs.iter().filter(|r| pick(r).count > 0);
        for (i, r) in there.enumerate() {
            let l = pick(r);
            let name = if i == 0 { operation } else { "" };
            let mut row = vec![name.to_string(), r.name.clone(), grouped(l.count)];
            row.extend([l.mean, l.p50, l.p99, l.p99_9, l.max].map(short));
            rows.push(row);
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    aligned_left(&rows, 2) + "\n"
}

/// Where the mean latency of reads and writes went.
pub(super) fn breakdowns(report: &Report) -> String {
    breakdown("mean read in us", report, |r| (&r.latency_ns.read, &r.latency_breakdown_ns.read))
        + &breakdown("mean write in us", report, |r| {
            (&r.latency_ns.write, &r.latency_breakdown_ns.write)
        })
}

/// An operation's latency, and its parts.
type Spent<'a> = (&'a LatencyNs, &'a Parts);

fn breakdown(title: &str, report: &Report, of: fn(&RunReport) -> Spent<'_>) -> String {
    // Of a call on a file system no part but the host's own work is known.
    let runs = report.runs.iter().filter(|r| r.files.is_none());
    let runs = runs.map(|r| (r, of(r).0, &of(r).1.0));
    let runs: Vec<_> = runs.filter(|(_, l, _)| l.mean > 0).collect();
    let Some((_, _, first)) = runs.first() else {
        return String::new();
    };
    let used: Vec<usize> =
        (0..first.len()).filter(|i| runs.iter().any(|(_, _, p)| p[*i].ns > 0)).collect();
    if used.iter().all(|i| first[*i].key == "rest") {
        return String::new();
    }
    let mut header = vec![title.to_string(), "all".into(), "=".into()];
    header.extend(used.iter().map(|i| first[*i].head.to_string()));
    let mut rows = vec![header];
    for (run, l, parts) in &runs {
        let mut row = vec![run.name.clone(), us(l.mean), String::new()];
        row.extend(used.iter().map(|i| us(parts[*i].ns / l.count)));
        rows.push(row);
    }
    aligned(&rows) + "\n"
}

/// Microseconds with three digits; nothing is a dash.
fn us(ns: u64) -> String {
    match ns {
        0 => "-".into(),
        1..10_000 => format!("{:.2}", ns as f64 / 1e3),
        10_000..100_000 => format!("{:.1}", ns as f64 / 1e3),
        _ => grouped(ns.div_ceil(1000)),
    }
}

/// How busy dies and channels were.
pub(super) fn occupancy(report: &Report) -> String {
    let head = ["busy, share of time", "dies programming", "reading", "erasing", "channels"];
    shares(report, row(head), 1, |r| {
        let b = &r.busy_ratio;
        vec![b.die_program, b.die_read, b.die_erase, b.channel]
    })
}

/// A row per stack: shares of the time, with so many decimals.
fn shares(
    report: &Report,
    head: Vec<String>,
    places: usize,
    of: fn(&RunReport) -> Vec<f64>,
) -> String {
    let mut rows = vec![head];
    for r in &report.runs {
        let cells = of(r).into_iter().map(|x| format!("{:.places$}%", x * 100.0));
        rows.push(std::iter::once(r.name.clone()).chain(cells).collect());
    }
    aligned(&rows) + "\n"
}

/// How busy the host's cores were, where its work costs anything.
pub(super) fn cpu(report: &Report) -> String {
    if report.runs.iter().all(|r| r.cpu.busy_ratio == 0.0) {
        return String::new();
    }
    let head = ["host CPU, share of time", "busy", "of it spinning on locks", "idle"];
    shares(report, row(head), 2, |r| vec![r.cpu.busy_ratio, r.cpu.lock_ratio, r.cpu.idle_ratio])
}

/// Programmed sectors per sector written, by cause.
pub(super) fn causes(report: &Report) -> String {
    let wrote: Vec<&RunReport> =
        report.runs.iter().filter(|r| r.buffer_sectors.host_written > 0).collect();
    let is_used = |c: &Cause| wrote.iter().any(|r| r.programmed_sectors.of(*c) > 0);
    let used: Vec<Cause> = Cause::ALL.into_iter().filter(is_used).collect();
    if used.is_empty() {
        return String::new();
    }
    let mut header = vec!["programmed per sector written".to_string()];
    header.extend(used.iter().map(|cause| cause.name().replace('_', " ")));
    header.push("= WA".into());
    header.push("absorbed".into());
    let mut rows = vec![header];
    for r in wrote {
        let written = r.buffer_sectors.host_written as f64;
        let mut row = vec![r.name.clone()];
        let p = &r.programmed_sectors;
        row.extend(used.iter().map(|cause| format!("{:.3}", p.of(*cause) as f64 / written)));
        row.push(format!("{:.3}", p.total() as f64 / written));
        row.push(format!("{:.3}", r.buffer_sectors.absorbed as f64 / written));
        rows.push(row);
    }
    aligned(&rows) + "\n"
}

/// How each target that lives on a drive was found.
pub(super) fn mounts(report: &Report) -> String {
    let of = |r: &RunReport| r.mount.as_ref().map(|m| format!("{}: {}\n", r.name, m.text));
    report.runs.iter().filter_map(of).collect()
}

/// What else must be known to read the numbers; `groups` are those of the report.
pub(super) fn notes(report: &Report, groups: &[Report]) -> String {
    let mut notes: Vec<String> = Vec::new();
    for run in &report.runs {
        state(run, &mut notes);
        troubles(run, &mut notes);
    }
    for group in groups {
        replays(group, &group.runs[0], &mut notes);
    }
    let is_free = report.configuration.clock == Clock::Virtual.name();
    if is_free
        && report.runs.iter().any(|r| r.latency_ns.write.count > 0 && r.latency_ns.write.p50 == 0)
    {
        notes.push(
            "0 ns: the host's own work costs nothing in this run (`--set run.costs=lightnvm-fast17` \
             charges what was measured)"
                .into(),
        );
    }
    if report.interrupted {
        notes.push("INTERRUPTED: the numbers are of what was done so far".into());
    }
    notes.push(match report.configuration.clock == Clock::Real.name() {
        true => "real clock: no fingerprint, another run comes to other numbers".into(),
        false => format!("fingerprint {}", report.fingerprint),
    });
    notes.join("\n") + "\n"
}

/// Padding of the flush that ends a run is said from this share of what was programmed on.
const PADDING_SHOWN: f64 = 0.05;

/// What garbage collection took, and what there was to win.
fn victims(r: &RunReport) -> Option<String> {
    let of = r.work.gc_victim_sectors;
    (of > 0).then(|| {
        format!(
            "{}: garbage collection took {} victims of {} sectors on average, {:.1}% of them garbage",
            r.name,
            grouped(r.work.gc_victims),
            grouped(of / r.work.gc_victims.max(1)),
            r.work.gc_victim_invalid as f64 * 100.0 / of as f64
        )
    })
}

/// How steady, and what was unusual about the run itself.
fn state(r: &RunReport, notes: &mut Vec<String>) {
    let name = &r.name;
    let steady = if r.steady { "steady" } else { "not steady" };
    notes.push(format!("{name}: {steady}: {}", r.steady_reason));
    prepared(r, notes);
    notes.extend(super::files::note(r));
    if let Some(l) = r.fill.lines.filter(|_| r.work.gc_victims > 0) {
        notes.push(format!(
            "{name}: {} of {} lines stay free for the buffer, the victim and the next line: garbage \
             collection has {:.1}% spare",
            l.kept_free,
            l.all,
            l.effective_spare_ratio * 100.0
        ));
    }
    notes.extend(victims(r));
    for (layer, numbers) in &r.layers {
        let some = numbers.iter().filter(|(_, n)| **n > 0);
        let each = some.map(|(name, n)| format!("{} {}", name.replace('_', " "), grouped(*n)));
        let each: Vec<String> = each.collect();
        if !each.is_empty() {
            notes.push(format!("{name}: {layer}: {}", each.join(", ")));
        }
    }
    if let Some(held) = r.pages.get("held_sectors") {
        let ghosts = r.pages.get("ghost_sectors").copied().unwrap_or(0);
        let of = |ghost: bool| {
            let kinds = Holds::ALL.into_iter().filter(move |kind| kind.is_ghost() == ghost);
            let each = kinds.filter_map(|kind| {
                let n = r.pages.get(&*format!("{}_sectors", kind.name())).filter(|n| **n > 0)?;
                Some(format!("{} {}", kind.name().replace('_', " "), grouped(*n)))
            });
            each.collect::<Vec<_>>().join(", ")
        };
        notes.push(format!("{name}: {} valid pages: {}", grouped(*held), of(false)));
        if ghosts > 0 {
            let kinds = of(true);
            notes.push(format!("{name}: {} of them are ghost pages: {kinds}", grouped(ghosts)));
        }
    }
    let p = &r.programmed_sectors;
    let padding = (p.of(Cause::PaddingFlush) + p.of(Cause::PaddingPair)) as f64;
    if r.requests > 0 && r.work.flushes <= 1 && padding > PADDING_SHOWN * p.total() as f64 {
        notes.push(format!(
            "{name}: nothing in the workload flushes; the padding is of the flush that ends the run"
        ));
    }
    if r.ended_in_ramp && !r.interrupted {
        notes.push(format!("{name}: everything ended within ramp_time, nothing was measured"));
    } else if r.ended_in_ramp {
        notes.push(format!(
            "{name}: it was interrupted before measuring began (preparation, then ramp_time)"
        ));
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

/// What was done before measuring.
fn prepared(r: &RunReport, notes: &mut Vec<String>) {
    let (name, p) = (&r.name, &r.prepared);
    let bytes = |sectors: u64| Bytes::new(sectors * SECTOR_BYTES as u64);
    let mut said = Vec::new();
    if p.filled_sectors > 0 {
        said.push(format!("{} written in order", bytes(p.filled_sectors)));
    }
    if p.overwritten_sectors > 0 {
        said.push(format!("{} at random", bytes(p.overwritten_sectors)));
    }
    if let (Some(settled), Some(last)) = (p.settled, p.last_amplification) {
        let not = if settled { "" } else { "not " };
        let rate = p.last_bytes_per_second.unwrap_or(0.0) / 1e6;
        said.push(format!("write amplification {not}settled at {last:.2}, {rate:.0} MB/s"));
    }
    if p.warm_up_operations > 0 {
        said.push(format!("{} operations of the warm-up", grouped(p.warm_up_operations)));
    }
    if p.rest_ns > 0 {
        said.push(format!("{} of rest", short(p.rest_ns)));
    }
    if !said.is_empty() {
        notes.push(format!("{name}: before measuring: {}", said.join(", ")));
    }
    if let Some(shelf) = &p.shelf {
        notes.push(format!("{name}: prepared device of the shelf: {shelf}"));
    }
    if r.interrupted && r.requests == 0 && !r.ended_in_ramp {
        notes.push(format!("{name}: it was interrupted before measuring began"));
    }
}

/// What went wrong, on purpose or not.
fn troubles(r: &RunReport, notes: &mut Vec<String>) {
    let (name, f) = (&r.name, &r.faults.layer);
    if let Some(why) = &r.read_only {
        notes.push(format!("{name}: the device became read-only: {why}"));
    }
    if r.failed_requests > 0 || r.uncorrectable_sectors > 0 {
        notes.push(format!(
            "{name}: {} requests failed, {} sectors were unreadable",
            grouped(r.failed_requests),
            grouped(r.uncorrectable_sectors)
        ));
    }
    if let Some(first) = r.files.as_ref().and_then(|files| files.refused.as_ref()) {
        notes.push(format!("{name}: the first that found no space left: {first}"));
    }
    if f.any() || r.faults.uncorrectable > 0 {
        notes.push(format!(
            "{name}: the medium failed: {} sectors in programs, {} erases, {} sectors in reads of \
             the host and {} of garbage collection, {} in all reads, the mount's and the log's \
             among them; {} reads were heavily corrected",
            f.program_failures,
            f.erase_failures,
            f.read_failures,
            f.gc_read_failures,
            r.faults.uncorrectable,
            f.high_ecc
        ));
    }
    let (c, w) = (&r.care, &r.wear);
    if c.any() {
        notes.push(format!(
            "{name}: {} lines moved to level wear, {} because they decayed ({} sectors read to \
             find out); chunks were erased {} to {} times, half of them up to {}",
            grouped(c.leveled_lines),
            grouped(c.scrubbed_lines),
            grouped(c.patrol_reads),
            w.least,
            w.most,
            w.p50
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
fn replays(report: &Report, r: &RunReport, notes: &mut Vec<String>) {
    let loops = report.configuration.workloads.iter();
    let loops = loops.filter_map(|w| w["trace"]["loops"].as_u64());
    for (t, loops) in r.replayed.iter().zip(loops) {
        let mut text =
            format!("trace {}: {}, {} events, {}", t.trace, t.format, t.action, t.layout);
        if loops > 1 {
            text += &format!("; replayed {loops} times, one after the other");
        }
        for (n, what) in [
            (t.widened, "requests widened to whole 4 KiB sectors"),
            (t.shrunk, "discards shrunk to whole sectors"),
            (t.backwards, "records out of order in time"),
            (t.without_completion, "requests that nobody waited for, as their end is not in it"),
            (t.pauses_cut, "pauses cut to `max_pause`"),
            (t.with_content, "writes of the content that it has"),
        ] {
            if n > 0 {
                text += &format!("; {} {what}", grouped(n));
            }
        }
        notes.push(text);
        notes.extend(t.remarks.iter().cloned());
    }
}
