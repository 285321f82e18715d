//! Latencies over time as an HdrHistogram log.
//!
//! Owns: tags and times of the lines. Promises: format version 1.3 with V2 histograms, readable by
//! HistogramLogAnalyzer and every HdrHistogram library; times are virtual and start at 0; the sum of
//! the lines of a tag is that run's distribution. Never: writes an empty histogram.

use super::numbers::fingerprint;
use crate::execute::Outcome;
use crate::run::jobs::OPS;
use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::time::{Duration, SystemTime};

/// The log of all runs; a line per run, operation and interval, in the order of time within a run.
pub(super) fn log(outcome: &Outcome) -> Vec<u8> {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment("[Histogram log format version 1.3]");
    builder.add_comment(&format!(
        "flashlane {}, {}, fingerprint {}: latencies in ns, {} time",
        env!("CARGO_PKG_VERSION"),
        one_line(&outcome.experiment.name),
        fingerprint(outcome, outcome.fingerprint),
        outcome.clock.name()
    ));
    builder.with_start_time(SystemTime::UNIX_EPOCH);
    // The third field of a line is for people: milliseconds, as in all logs of the library.
    builder.with_max_value_divisor(1e6);
    let mut writer = builder
        .begin_log_with(&mut text, &mut serializer)
        .expect("writing to memory does not fail");
    let since = |ns: Ns| Duration::from_nanos(ns.as_ns());
    for run in &outcome.runs {
        let recorder = &run.measured.recorder;
        let Some(intervals) = &recorder.intervals else {
            continue;
        };
        let measured = recorder.end - recorder.start;
        for (i, interval) in intervals.list().iter().enumerate() {
            let start = intervals.width().times(i as u64);
            let length = intervals.width().min(measured.saturating_sub(start));
            for (op, latencies) in OPS.iter().zip(interval) {
                let Some(latencies) = latencies else {
                    continue;
                };
                let name = format!("{}.{}", tag_of(&run.target.name), name(*op));
                let tag = Tag::new(&name);
                writer
                    .write_histogram(latencies.histogram(), since(start), since(length), tag)
                    .expect("a histogram of the library, written to memory");
            }
        }
    }
    text
}

fn name(op: BlockOp) -> &'static str {
    match op {
        BlockOp::Read => "read",
        BlockOp::Write => "write",
        BlockOp::Discard => "discard",
        BlockOp::Flush => "flush",
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A name as a tag: no comma, no space, no line break.
fn tag_of(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { ' ' };
    let words: String = name.chars().map(plain).collect();
    words.split_whitespace().collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_have_no_separator_in_them() {
        assert_eq!(tag_of("pblk, 4 PUs"), "pblk_4_PUs");
        assert!(Tag::new(&tag_of("a,b c\nd")).is_some());
    }
}
