//! A few sentences that say where a difference comes from.
//!
//! Owns: which differences are worth a sentence. Promises: a sentence only repeats what was
//! counted, with its numbers; nothing is said about differences below a tenth.
//! Never: guesses a cause that was not measured.

use super::numbers::{Report, RunReport};
use super::table::short;

/// Shares below this are not worth a clause.
const WORTH_SAYING: f64 = 0.02;
/// Two stacks differ when one is this much above the other.
const DIFFERENT: f64 = 1.10;

/// All sentences, one per line, then an empty line; nothing when there is nothing to say.
pub(super) fn sentences(report: &Report) -> String {
    let mut lines: Vec<String> = Vec::new();
    for run in &report.runs {
        lines.extend(amplification(run));
        lines.extend(write_waits(run));
        lines.extend(reads(run));
    }
    lines.extend(compare(report));
    if lines.is_empty() {
        return String::new();
    }
    lines.iter().map(|l| format!("- {l}\n")).collect::<String>() + "\n"
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn amplification(r: &RunReport) -> Option<String> {
    let ratio = r.write_amplification_ratio?;
    let written = r.buffer_sectors.host_written;
    let mut causes: Vec<(f64, &str)> = r
        .programmed_sectors
        .named()
        .into_iter()
        .filter(|(name, _)| *name != "user")
        .map(|(name, n)| (share(n, written), in_words(name)))
        .filter(|(s, _)| *s >= WORTH_SAYING)
        .collect();
    causes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let causes: Vec<String> = causes.iter().map(|(s, what)| format!("{s:.2} {what}")).collect();
    let mut text = format!("{}: {ratio:.2} sectors were programmed per sector written", r.name);
    if !causes.is_empty() {
        text += &format!(", of them {}", causes.join(", "));
    }
    let absorbed = share(r.buffer_sectors.absorbed, written);
    if absorbed >= WORTH_SAYING {
        text += &format!("; {:.0}% were overwritten in the buffer before that", absorbed * 100.0);
    }
    Some(text + ".")
}

fn in_words(cause: &str) -> &'static str {
    match cause {
        "gc" => "moved by garbage collection",
        "fold" => "moved between cell modes",
        "padding_flush" => "fill behind flushes",
        "padding_pair" => "fill up to page pairs",
        "padding_gc" => "fill for erases and closing lines",
        "metadata" => "line metadata and checkpoints",
        "log" => "the log",
        "retry" => "sent again after failed programs",
        "dead" => "overwritten in the buffer, but already promised to a flush",
        _ => "user data",
    }
}

fn write_waits(r: &RunReport) -> Option<String> {
    let l = &r.latency_ns.write;
    let total = l.mean.saturating_mul(l.count);
    let parts = [
        (r.wait_ns.ring_full, "room in the buffer, that is for the flash"),
        (r.wait_ns.limited, "garbage collection, which had the buffer's share"),
    ];
    let said: Vec<String> = parts
        .iter()
        .map(|(ns, what)| (share(*ns, total), what))
        .filter(|(s, _)| *s >= WORTH_SAYING)
        .map(|(s, what)| format!("{:.0}% of their time for {what}", (s * 100.0).min(100.0)))
        .collect();
    (!said.is_empty()).then(|| {
        format!(
            "{}: writes took {} on average; they waited {}.",
            r.name,
            short(l.mean),
            said.join(" and ")
        )
    })
}

fn reads(r: &RunReport) -> Option<String> {
    let l = &r.latency_ns.read;
    if l.count == 0 {
        return None;
    }
    let b = &r.buffer_sectors;
    let parts = r.read_breakdown_ns.named();
    let total: u64 = parts.iter().map(|(_, n)| n).sum();
    let mut said: Vec<(f64, &str)> = parts
        .iter()
        .map(|(what, n)| (share(*n, total), *what))
        .filter(|(s, _)| *s >= 0.05)
        .collect();
    said.sort_by(|a, b| b.0.total_cmp(&a.0));
    let said: Vec<String> =
        said.iter().map(|(s, what)| format!("{:.0}% {what}", s * 100.0)).collect();
    let buffered = share(b.read_from_buffer, b.host_read);
    let mut text = format!("{}: reads took {} on average", r.name, short(l.mean));
    if buffered >= WORTH_SAYING {
        text += &format!(", {:.0}% of their sectors came from the buffer", buffered * 100.0);
    }
    if !said.is_empty() {
        text += &format!("; time on the device went to {}", said.join(", "));
    }
    let unmapped = share(b.read_unmapped, b.host_read);
    if unmapped >= WORTH_SAYING {
        text +=
            &format!("; {:.0}% of their sectors held nothing and cost nothing", unmapped * 100.0);
    }
    Some(text + ".")
}

/// What a number of a run is.
type Pick = fn(&RunReport) -> u64;

fn compare(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let picks: [(&str, Pick); 3] = [
        ("reads at p99.9", |r| r.latency_ns.read.p99_9),
        ("writes at p99.9", |r| r.latency_ns.write.p99_9),
        ("flushes at p99", |r| r.latency_ns.flush.p99),
    ];
    for (what, pick) in picks {
        let mut runs: Vec<&RunReport> = report.runs.iter().filter(|r| pick(r) > 0).collect();
        runs.sort_by_key(|r| pick(r));
        let (Some(best), Some(worst)) = (runs.first(), runs.last()) else {
            continue;
        };
        let ratio = pick(worst) as f64 / pick(best) as f64;
        if runs.len() < 2 || ratio < DIFFERENT {
            continue;
        }
        let mut text = format!(
            "Fastest {what}: {} with {}; slowest: {} with {} ({ratio:.1} times)",
            best.name,
            short(pick(best)),
            worst.name,
            short(pick(worst))
        );
        if what.starts_with("reads") {
            text += &read_cause(best, worst);
        }
        lines.push(text + ".");
    }
    lines
}

/// The part of the read time that grew most from one stack to the other.
fn read_cause(best: &RunReport, worst: &RunReport) -> String {
    let per_read = |r: &RunReport, i: usize| {
        r.read_breakdown_ns.named()[i].1 as f64 / r.latency_ns.read.count.max(1) as f64
    };
    let grew = (0..9)
        .map(|i| (per_read(worst, i) - per_read(best, i), i))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(ns, _)| *ns >= 1000.0);
    match grew {
        None => String::new(),
        Some((_, i)) => format!(
            "; what grew most is the time spent on {} ({} against {} per read)",
            worst.read_breakdown_ns.named()[i].0,
            short(per_read(worst, i) as u64),
            short(per_read(best, i) as u64)
        ),
    }
}
