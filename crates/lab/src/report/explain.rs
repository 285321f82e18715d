//! A few sentences that say where a difference comes from.
//!
//! Owns: which differences are worth a sentence. Promises: a sentence only repeats what was
//! counted, with its numbers; nothing is said about differences below a tenth.
//! Never: guesses a cause that was not measured.

use super::numbers::{Part, Report, RunReport};
use crate::words::{grouped, mb_per_s, short};
use flashlane_base::counters::Counters;
use flashlane_ocssd::device::Cause;

/// Shares below this are not worth a clause.
const WORTH_SAYING: f64 = 0.02;
/// Two stacks differ when one is this much above the other.
const DIFFERENT: f64 = 1.10;

/// Columns of a terminal that text is broken at.
const COLUMNS: usize = 100;

/// What differs between the stacks, then what each did, then an empty line; nothing when there is
/// nothing to say.
pub(super) fn sentences(report: &Report) -> String {
    let mut items = compare(report);
    for run in &report.runs {
        let said =
            [amplification(run), write_waits(run), reads(run), device_buffer(run), slc_mode(run)];
        let said: Vec<String> = said.into_iter().flatten().collect();
        if !said.is_empty() {
            items.push(format!("{}: {}", run.name, said.join(" ")));
        }
    }
    if items.is_empty() {
        return String::new();
    }
    items.iter().map(|item| wrapped(item)).collect::<String>() + "\n"
}

/// A list item, broken between words.
fn wrapped(item: &str) -> String {
    let mut text = String::new();
    let mut line = String::from("-");
    for word in item.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > COLUMNS {
            text += &line;
            text.push('\n');
            line = String::from(" ");
        }
        line.push(' ');
        line += word;
    }
    text + &line + "\n"
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn amplification(r: &RunReport) -> Option<String> {
    if r.files.is_some() {
        return super::files::amplification(r);
    }
    let ratio = r.write_amplification_ratio?;
    let written = r.buffer_sectors.host_written;
    let mut causes: Vec<(f64, &str)> = r
        .programmed_sectors
        .named()
        .filter(|(cause, _)| *cause != Cause::User)
        .map(|(cause, n)| (share(n, written), cause.words()))
        .filter(|(s, _)| *s >= WORTH_SAYING)
        .collect();
    causes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let causes: Vec<String> = causes.iter().map(|(s, what)| format!("{s:.2} {what}")).collect();
    let mut text = format!("{ratio:.2} sectors were programmed per sector written");
    if !causes.is_empty() {
        text += &format!(", of them {}", causes.join(", "));
    }
    let absorbed = share(r.buffer_sectors.absorbed, written);
    if absorbed >= WORTH_SAYING {
        text += &format!("; {:.0}% were overwritten in the buffer before that", absorbed * 100.0);
    }
    Some(text + ".")
}

fn write_waits(r: &RunReport) -> Option<String> {
    let said = largest(&r.latency_breakdown_ns.write.0, 0.1);
    let waited = !said.is_empty() && r.latency_ns.write.mean > 0 && r.files.is_none();
    waited.then(|| format!("Writes took {} on average: {said}.", short(r.latency_ns.write.mean)))
}

/// The two largest parts, if they are at least `least` of all; nothing where nothing is known but
/// a rest.
fn largest(parts: &[Part], least: f64) -> String {
    if parts.iter().all(|p| p.ns == 0 || p.key == "rest") {
        return String::new();
    }
    let all: u64 = parts.iter().map(|p| p.ns).sum();
    let mut said: Vec<(f64, &str)> =
        parts.iter().map(|p| (share(p.ns, all), p.what)).filter(|(s, _)| *s >= least).collect();
    said.sort_by(|a, b| b.0.total_cmp(&a.0));
    let said: Vec<String> =
        said.iter().take(2).map(|(s, what)| format!("{:.0}% {what}", s * 100.0)).collect();
    said.join(", ")
}

fn reads(r: &RunReport) -> Option<String> {
    let (l, b) = (&r.latency_ns.read, &r.buffer_sectors);
    if l.mean == 0 || r.files.is_some() {
        return None;
    }
    let said = largest(&r.latency_breakdown_ns.read.0, 0.05);
    let mut text = format!("Reads took {} on average", short(l.mean));
    if !said.is_empty() {
        text += &format!(": {said}");
    }
    let sources = [
        (b.read_from_buffer, "came from the buffer"),
        (b.read_unmapped, "held nothing and cost nothing"),
    ];
    for (n, what) in sources {
        let s = share(n, b.host_read);
        if s >= WORTH_SAYING {
            text += &format!("; {:.0}% of their sectors {what}", s * 100.0);
        }
    }
    Some(text + ".")
}

/// What the write buffer of the device did.
fn device_buffer(r: &RunReport) -> Option<String> {
    let b = r.device_buffer.filter(|b| b.accepted > 0)?;
    let mut text = format!(
        "The device acknowledged {} sectors from its own write buffer",
        grouped(b.accepted)
    );
    for (what, n) in b.shown("said").into_iter().filter(|(_, n)| *n > 0) {
        text += &format!("; {} {what}", grouped(n));
    }
    Some(text + ".")
}

/// What the medium did in SLC mode.
fn slc_mode(r: &RunReport) -> Option<String> {
    let counts = r.slc_mode?.shown("said").into_iter().filter(|(_, n)| *n > 0);
    let said: Vec<String> = counts.map(|(what, n)| format!("{} {what}", grouped(n))).collect();
    (!said.is_empty()).then(|| format!("{}.", said.join("; ")))
}

/// What a number of a run is, and the parts that explain it.
type Pick = fn(&RunReport) -> u64;
type Parts = fn(&RunReport) -> Vec<Part>;

fn compare(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(compare_rates(report));
    lines.extend(compare_amplification(report));
    let picks: [(&str, Pick, Parts); 3] = [
        (
            "reads at p99.9",
            |r| r.latency_ns.read.p99_9,
            |r| each(&r.latency_breakdown_ns.read.0, r.latency_ns.read.count),
        ),
        (
            "writes at p99.9",
            |r| r.latency_ns.write.p99_9,
            |r| each(&r.latency_breakdown_ns.write.0, r.latency_ns.write.count),
        ),
        ("flushes at p99", |r| r.latency_ns.flush.p99, |_| Vec::new()),
    ];
    for (what, pick, parts) in picks {
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
            "Fastest {what}: {} with {}; slowest: {} with {} ({} times)",
            best.name,
            short(pick(best)),
            worst.name,
            short(pick(worst)),
            times(ratio)
        );
        if best.files.is_none() && worst.files.is_none() {
            text += &grown(&parts(best), &parts(worst));
        }
        if what.starts_with("flushes") && is_block_ssd(report, best) {
            text += &format!(
                "; the buffer of {} is on capacitors, so its flush programs nothing",
                best.name
            );
        }
        lines.push(text + ".");
    }
    lines
}

/// Who wrote and read most, and how long the slower one's cores spun on locks. Under a trace's own times
/// all are as fast, and nothing is said.
fn compare_rates(report: &Report) -> Vec<String> {
    let sides: [(&str, Pick); 2] = [("read", |r| r.bytes_read), ("written", |r| r.bytes_written)];
    let mut lines = Vec::new();
    for (side, bytes) in sides {
        let rate = |r: &RunReport| mb_per_s(bytes(r), r.runtime_ns);
        let mut runs: Vec<&RunReport> = report.runs.iter().filter(|r| rate(r) > 0.0).collect();
        runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        let (Some(least), Some(most)) = (runs.first(), runs.last()) else {
            continue;
        };
        let ratio = rate(most) / rate(least);
        if ratio < DIFFERENT {
            continue;
        }
        let mb =
            |r: &RunReport| format!("{} with {} MB/s", r.name, grouped(rate(r).round() as u64));
        let mut text =
            format!("Most {side}: {}, {} times as much as {}", mb(most), times(ratio), mb(least));
        let spun = [most, least].map(|r| r.cpu.lock_ratio);
        if spun[1] >= spun[0] + WORTH_SAYING {
            text += &format!(
                "; cores spun on locks {:.0}% of the time, against {:.0}%",
                spun[1] * 100.0,
                spun[0] * 100.0
            );
        }
        lines.push(text + ".");
    }
    lines
}

/// Sums over so many requests as means.
fn each(parts: &[Part], count: u64) -> Vec<Part> {
    parts.iter().map(|p| Part { ns: p.ns / count.max(1), ..*p }).collect()
}

fn times(ratio: f64) -> String {
    if ratio < 100.0 { format!("{ratio:.1}") } else { grouped(ratio.round() as u64) }
}

/// The part of the mean that grew most from one stack to the other, if it is worth saying.
fn grown(best: &[Part], worst: &[Part]) -> String {
    const WORTH_NS: u64 = 1000;
    let grew = best
        .iter()
        .zip(worst)
        .map(|(b, w)| (w.ns.saturating_sub(b.ns), b.ns, w.ns, w.what))
        .max()
        .filter(|(ns, ..)| *ns >= WORTH_NS);
    grew.map_or(String::new(), |(_, before, after, what)| {
        format!(
            "; in the mean, what grew most is {what} ({} against {})",
            short(after),
            short(before)
        )
    })
}

fn is_block_ssd(report: &Report, run: &RunReport) -> bool {
    let found = report.configuration.targets.iter().find(|t| t["name"] == run.name.as_str());
    found.is_some_and(|t| t["layer"]["kind"] == "pftl")
}

/// Whose write amplification is lowest and highest, and the cause that grew most.
fn compare_amplification(report: &Report) -> Option<String> {
    let ratio = |r: &RunReport| r.write_amplification_ratio.unwrap_or(0.0);
    let mut runs: Vec<&RunReport> = report.runs.iter().filter(|r| ratio(r) > 0.0).collect();
    runs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let (best, worst) = (runs.first()?, runs.last()?);
    if runs.len() < 2 || ratio(worst) / ratio(best) < DIFFERENT {
        return None;
    }
    let parts = |r: &RunReport| {
        let written = r.buffer_sectors.host_written;
        r.programmed_sectors.named().map(move |(cause, n)| (share(n, written), cause))
    };
    let (_, before, after, cause) = parts(best)
        .zip(parts(worst))
        .map(|(b, w)| (w.0 - b.0, b.0, w.0, w.1))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    let why = match cause {
        // A file system writes more than its users, nodes and what it cleans.
        Cause::User if after.max(before) > 1.0 => format!(
            "what grew most is what the file system wrote ({after:.2} against {before:.2} per sector of \
             its users)"
        ),
        // User data grows when less of it is overwritten or discarded in the buffer.
        Cause::User => format!(
            "of its sectors {:.0}% were overwritten or discarded before they were programmed, against \
             {:.0}%",
            (1.0 - after) * 100.0,
            (1.0 - before) * 100.0
        ),
        _ => format!(
            "what grew most is what was {} ({after:.2} against {before:.2} per sector written)",
            cause.words()
        ),
    };
    Some(format!(
        "Least write amplification: {} with {:.2}; most: {} with {:.2}; {why}.",
        best.name,
        ratio(best),
        worst.name,
        ratio(worst),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_broken_between_words() {
        let words = vec!["seven77"; 40].join(" ");
        let text = wrapped(&words);
        assert!(text.lines().all(|l| l.chars().count() <= COLUMNS), "{text}");
        assert!(
            text.starts_with("- seven77") && text.lines().skip(1).all(|l| l.starts_with("  s"))
        );
        assert_eq!(text.matches("seven77").count(), 40);
    }

    #[test]
    fn the_part_that_grew_most_is_named_with_both_values() {
        let part = |ns, what| Part { key: "", head: "", ns, what };
        let parts = |a, b| [part(a, "waiting"), part(b, "sensing")];
        let said = grown(&parts(1_000, 30_000), &parts(90_000, 31_000));
        assert_eq!(said, "; in the mean, what grew most is waiting (90.0 us against 1.00 us)");
        assert_eq!(grown(&parts(5, 5), &parts(900, 5)), "", "less than a microsecond");
        assert_eq!(largest(&parts(75, 25), 0.1), "75% waiting, 25% sensing");
        assert_eq!(times(12.34), "12.3");
        assert_eq!(times(13_320.2), "13,320");
    }
}
