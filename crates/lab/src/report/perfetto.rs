//! What dies and channels did, as a trace for Perfetto (<https://ui.perfetto.dev>) and Chrome.
//!
//! Owns: the tracks and their names. Promises: the JSON of Chrome's trace event format; a group of
//! tracks for the channels and one for the dies of each stack, with user data, garbage collection and
//! metadata on tracks of their own; on a track nothing overlaps; times are virtual, 0 is the start of
//! the measured part; where the room was used up, the trace ends everywhere at one moment and says
//! so. Never: leaves something out before that moment.

use crate::execute::{Outcome, RunOutcome};
use flashlane_base::Ns;
use flashlane_ocssd::device::Cause;
use flashlane_ocssd::ssd::spans::{Phase, Span};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Spans in one trace, over all its stacks: about 60 MB, which a browser still opens.
pub const SPANS_MAX: usize = 500_000;

/// A trace, and what there is to say about it.
pub struct PerfettoTrace {
    pub json: String,
    /// A sentence per stack whose trace had to end before its run.
    pub cuts: Vec<String>,
}

/// For whom something was done: a track of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    User,
    Gc,
    Metadata,
}

impl Who {
    fn of(span: &Span) -> Who {
        match (span.phase, span.cause) {
            // Chunks are erased to be written again: that is collection's work.
            (Phase::Erase, _) => Who::Gc,
            (_, Cause::Gc | Cause::Fold | Cause::PaddingGc) => Who::Gc,
            (_, Cause::Metadata | Cause::Log) => Who::Metadata,
            _ => Who::User,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Who::User => "user",
            Who::Gc => "GC",
            Who::Metadata => "metadata",
        }
    }
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Sense => "sense",
        Phase::Program => "program",
        Phase::Erase => "erase",
        Phase::ReadTransfer => "read transfer",
        Phase::WriteTransfer => "write transfer",
    }
}

pub(super) fn trace(outcome: &Outcome) -> PerfettoTrace {
    let mut json = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    let mut cuts = Vec::new();
    for (i, run) in outcome.runs.iter().enumerate() {
        one(i, run, &mut json);
        if let Some(cut) = run.spans.cut {
            let r = &run.measured.recorder;
            cuts.push(format!(
                "{}: the trace has the first {} of {}, {} spans; a shorter run or fewer stacks show \
                 all of it",
                run.target.name,
                cut.saturating_sub(r.start),
                r.end - r.start,
                run.spans.spans.len()
            ));
        }
    }
    // The last event has a comma behind it.
    json.truncate(json.trim_end_matches(['\n', ',']).len());
    let _ = write!(
        json,
        "\n],\"otherData\":{{\"program\":\"flashlane {}\",\"experiment\":{},\"fingerprint\":\
         \"{:016x}\"}}}}\n",
        env!("CARGO_PKG_VERSION"),
        quoted(&outcome.experiment.name),
        outcome.fingerprint
    );
    PerfettoTrace { json, cuts }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string")
}

/// ns as the format's microseconds.
fn us(ns: Ns) -> String {
    format!("{}.{:03}", ns.as_ns() / 1000, ns.as_ns() % 1000)
}

fn one(number: usize, run: &RunOutcome, json: &mut String) {
    let start = run.measured.recorder.start;
    let [stack, channels, dies] = [1, 2, 3].map(|n| number * 3 + n);
    let stack_name = &run.target.name;
    for (pid, what) in [(stack, "over time"), (channels, "channels"), (dies, "dies")] {
        let name = quoted(&format!("{stack_name}: {what}"));
        let _ = writeln!(
            json,
            "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":{name}}}}},\n\
             {{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{pid},\"args\":{{\"sort_index\":{pid}}}}},"
        );
    }
    counters(run, stack, json);
    let per_channel = run.geometry.pus_per_channel;
    let mut tracks = BTreeSet::new();
    let mut events = String::new();
    for (channel, span) in &run.spans.spans {
        // What was under way when measuring began is shown from there on.
        let from = span.from.max(start);
        if span.to <= from {
            continue;
        }
        let (pid, row) = match span.phase.on_bus() {
            true => (channels, *channel),
            false => (dies, channel * per_channel + span.die),
        };
        let who = Who::of(span);
        let tid = row * 3 + who as u32 + 1;
        tracks.insert((pid, tid, row, who));
        let _ = writeln!(
            events,
            "{{\"ph\":\"X\",\"name\":\"{}\",\"cat\":\"{}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{},\
             \"dur\":{},\"args\":{{\"die\":{},\"chunk\":{},\"sector\":{},\"sectors\":{}}}}},",
            name(span.phase),
            span.cause.name(),
            us(from - start),
            us(span.to - from),
            channel * per_channel + span.die,
            span.chunk,
            span.sector,
            span.count
        );
    }
    for (pid, tid, row, who) in tracks {
        let what = if pid == channels { "channel" } else { "die" };
        let _ = writeln!(
            json,
            "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{tid},\"args\":{{\"name\":\
             \"{what} {row}: {}\"}}}},\n{{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":{pid},\
             \"tid\":{tid},\"args\":{{\"sort_index\":{tid}}}}},",
            who.name()
        );
    }
    *json += &events;
    if let Some(cut) = run.spans.cut {
        let _ = writeln!(
            json,
            "{{\"ph\":\"i\",\"s\":\"g\",\"name\":{},\"pid\":{dies},\"tid\":0,\"ts\":{}}},",
            quoted(&format!("the trace of {stack_name} ends here")),
            us(cut.saturating_sub(start))
        );
    }
}

/// Throughput, free room and the limiter's share as counter tracks.
fn counters(run: &RunOutcome, pid: usize, json: &mut String) {
    let t = super::course::timeline(run);
    let mut say = |name: &str, at: u64, value: f64| {
        let _ = writeln!(
            json,
            "{{\"ph\":\"C\",\"name\":\"{name}\",\"pid\":{pid},\"ts\":{},\"args\":{{\"value\":{value:.3}}}}},",
            us(Ns::from_ns(at))
        );
    };
    for i in 0..t.operations.len() {
        let at = i as u64 * t.bucket_ns;
        say("read MB/s", at, crate::words::mb_per_s(t.read_bytes[i], t.bucket_ns));
        say("written MB/s", at, crate::words::mb_per_s(t.write_bytes[i], t.bucket_ns));
        // States at the end of the span.
        let end = at + t.bucket_ns;
        if let Some(free) = t.free_ratio.get(i) {
            say("free, %", end, free * 100.0);
        }
        if let Some(share) = t.user_share_ratio.get(i) {
            say("users' share of the buffer, %", end, share * 100.0);
        }
    }
}
