//! What a trace holds, in words and as JSON.
//!
//! Owns: the summary that `trace info` prints and the verdict of `trace validate`. Promises: what
//! is unusual (order, alignment, losses) is said with its number. Never: reads the trace again.

use super::journals::Journals;
use super::scan::{OpCount, Scan, Summary, WHOLE_SECONDS};
use crate::device::Devices;
use crate::histogram::LatencyNs;
use crate::record::Action;
use crate::record::TraceOp;
use flashlane_base::{Bytes, Ns};
use serde::Serialize;
use std::collections::BTreeMap;

/// A trace's summary.
#[derive(Clone, Debug, Serialize)]
pub struct Info {
    /// Where it is.
    pub file: String,
    /// Format.
    pub format: String,
    /// The format was told by numbers alone, which other formats have, too.
    pub guessed: bool,
    /// Files that it is kept in: more than one where each CPU has its own.
    pub files: usize,
    /// Lines, or records of a binary format.
    pub lines: u64,
    /// What they are called: `lines` or `records`.
    pub parts: &'static str,
    /// Lines that are no requests, by kind.
    pub passed_over: BTreeMap<char, u64>,
    /// The last line has no line feed: if the file was cut there, what it says may be wrong.
    pub unended: bool,
    /// It is a recording with the contents of some writes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub contents: bool,
    /// Events of each action; the replayed one first.
    pub actions: Vec<ActionInfo>,
    /// Issue to completion as recorded.
    pub recorded_latency_ns: LatencyNs,
    /// Notes in the trace: seconds and text.
    pub notes: Vec<(f64, String)>,
    /// Which writes are a journal's, where that was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journals: Option<Journals>,
}

/// Events of one action.
#[derive(Clone, Debug, Serialize)]
pub struct ActionInfo {
    /// Action.
    pub action: String,
    /// It is the one that is replayed.
    pub replayed: bool,
    /// Requests.
    pub requests: u64,
    /// From the first to the last.
    pub duration_ns: u64,
    /// By operation.
    pub ops: Vec<OpInfo>,
    /// Writes that are FUA.
    pub fua_writes: u64,
    /// Writes that have a flush before them.
    pub preflush_writes: u64,
    /// Requests off 4 KiB boundaries.
    pub unaligned_requests: u64,
    /// Longest request.
    pub longest_bytes: u64,
    /// Records earlier than the one before them.
    pub backwards_records: u64,
    /// By how much at most.
    pub backwards_max_ns: u64,
    /// Requests at the second of the one before, where times are whole seconds.
    pub whole_second_requests: u64,
    /// Bytes of distinct places touched by reads and writes (rounded up to `place_bytes`).
    pub footprint_bytes: u64,
    /// Unit of that.
    pub place_bytes: u64,
    /// By device.
    pub devices: Vec<DeviceInfo>,
}

/// Requests of one operation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OpInfo {
    /// read, write, discard or flush.
    pub op: &'static str,
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

/// One device of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceInfo {
    /// As the trace names it.
    pub device: String,
    /// Requests.
    pub requests: u64,
    /// First byte touched.
    pub first_byte: u64,
    /// Behind the last byte touched.
    pub end_byte: u64,
}

impl Info {
    /// The summary of a scan.
    pub fn of(scan: &Scan) -> Info {
        let mut actions = vec![action(scan.action, scan.chosen(), &scan.devices, true)];
        for (a, summary) in scan.actions.iter().filter(|(a, _)| **a != scan.action) {
            actions.push(action(*a, summary, &scan.devices, false));
        }
        Info {
            file: scan.source.name(),
            format: scan.format.to_string(),
            guessed: scan.guessed,
            files: scan.files,
            lines: scan.counts.lines,
            parts: scan.format.part(),
            passed_over: scan.counts.passed_over.clone(),
            unended: scan.counts.unended,
            contents: scan.has_contents,
            actions,
            recorded_latency_ns: (&scan.recorded).into(),
            notes: scan.notes.iter().map(|(ns, t)| (*ns as f64 / 1e9, t.clone())).collect(),
            journals: None,
        }
    }

    /// As JSON, with a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let guessed = if self.guessed { " (guessed of numbers alone)" } else { "" };
        let (format, lines) = (&self.format, self.lines);
        let mut text = format!("{}: {format}{guessed}, {lines} {}", self.file, self.parts);
        if self.files > 1 {
            text += &format!(" in {} files, one per CPU", self.files);
        }
        text.push('\n');
        let passed_over = self.passed_over.iter().map(|(k, n)| format!("{} {n}", passed_over(*k)));
        let passed_over: Vec<String> = passed_over.collect();
        if !passed_over.is_empty() {
            text += &format!("  {} passed over: {}\n", self.parts, passed_over.join("; "));
        }
        if self.unended {
            text += &format!("  {UNENDED}\n");
        }
        if self.contents {
            text += "  it has the contents of some writes\n";
        }
        for a in &self.actions {
            let is = if a.replayed { "replayed" } else { "not replayed" };
            text += &format!("\n{} events, {is}: {} requests", a.action, a.requests);
            text += &format!(" in {}\n", Ns::from_ns(a.duration_ns));
            if a.replayed {
                text += &details(a);
            }
        }
        let l = &self.recorded_latency_ns;
        if l.count > 0 {
            text += &format!(
                "\nlatency as recorded ({} requests): mean {}, p50 {}, p99 {}, max {}\n",
                l.count,
                Ns::from_ns(l.mean),
                Ns::from_ns(l.p50),
                Ns::from_ns(l.p99),
                Ns::from_ns(l.max)
            );
        }
        if !self.notes.is_empty() {
            text += "\nnotes in the trace:\n";
            for (seconds, note) in &self.notes {
                text += &format!("  {seconds:>10.3} s  {note}\n");
            }
        }
        text + &self.journals.as_ref().map(Journals::to_text).unwrap_or_default()
    }

    /// One line: good, with what is unusual about it. What was guessed is plausible at most.
    pub fn verdict(&self) -> String {
        let a = &self.actions[0];
        let mut text = format!(
            "{}: {}: {}, {} {}, {} requests ({} events), {} device(s)",
            self.file,
            if self.guessed {
                "plausible, but its format was guessed of numbers alone"
            } else {
                "good"
            },
            self.format,
            self.lines,
            self.parts,
            a.requests,
            a.action,
            a.devices.len()
        );
        for (n, what) in [
            (a.backwards_records, "records earlier than the one before them"),
            (a.unaligned_requests, "requests off 4 KiB boundaries (they will be widened)"),
            (a.whole_second_requests, WHOLE_SECONDS),
        ] {
            if n > 0 {
                text += &format!("; {n} {what}");
            }
        }
        if self.unended {
            text += &format!("; {UNENDED}");
        }
        for d in a.devices.iter().take(DEVICES_SHOWN) {
            text += &format!("\n  device {}: bytes {} to {}", d.device, d.first_byte, d.end_byte);
        }
        if a.devices.len() > DEVICES_SHOWN {
            text += &format!("\n  ... and {} more devices", a.devices.len() - DEVICES_SHOWN);
        }
        text + "\n"
    }
}

/// What a letter of [`super::reader::Counts::passed_over`] stands for.
fn passed_over(kind: char) -> String {
    match kind {
        's' => "headers, summaries, comments or empty".into(),
        'm' => "notes".into(),
        'n' => "no data and no flush".into(),
        'p' => "commands that bypass the block layer".into(),
        'o' => "files added, opened, closed".into(),
        'w' => "waits".into(),
        'b' => "neither read nor write".into(),
        'r' => "sync_file_range".into(),
        other => format!("events `{other}`"),
    }
}

/// Of a line that is good as it is, and would be if half of its last number were missing.
const UNENDED: &str = "the last line has no end: was the file cut? then its last field is wrong";

/// Devices that are listed for people; JSON has all.
const DEVICES_SHOWN: usize = 20;

fn action(action: Action, s: &Summary, names: &Devices, replayed: bool) -> ActionInfo {
    let places = s.places.as_ref().expect("a scan that is shown has noted places");
    let op = |(op, OpCount { requests, bytes }): (TraceOp, OpCount)| OpInfo {
        op: op.name(),
        requests,
        bytes,
    };
    ActionInfo {
        action: action.to_string(),
        replayed,
        requests: s.requests(),
        duration_ns: s.duration_ns(),
        ops: TraceOp::ALL.into_iter().zip(s.ops).map(op).collect(),
        fua_writes: s.fua,
        preflush_writes: s.preflush,
        unaligned_requests: s.unaligned,
        longest_bytes: s.longest_bytes,
        backwards_records: s.backwards,
        backwards_max_ns: s.backwards_max_ns,
        whole_second_requests: s.whole_seconds.shared(),
        footprint_bytes: (places.iter().count() as u64) << places.shift(),
        place_bytes: 1 << places.shift(),
        devices: devices(s, names),
    }
}

/// Its devices; numbers in order, before other names.
fn devices(s: &Summary, names: &Devices) -> Vec<DeviceInfo> {
    let one = |(id, d): (&super::DeviceId, &super::scan::DeviceSummary)| DeviceInfo {
        device: names.name(*id),
        requests: d.requests,
        first_byte: if d.end_byte == 0 { 0 } else { d.first_byte },
        end_byte: d.end_byte,
    };
    let mut all: Vec<DeviceInfo> = s.devices.iter().map(one).collect();
    all.sort_by_cached_key(|d| (d.device.parse::<u64>().unwrap_or(u64::MAX), d.device.clone()));
    all
}

fn details(a: &ActionInfo) -> String {
    let mut text = String::new();
    for op in a.ops.iter().filter(|op| op.requests > 0) {
        text += &format!("  {:<8} {:>9} requests", op.op, op.requests);
        if op.bytes > 0 {
            text += &format!(
                ", {}, {} on average",
                Bytes::new(op.bytes),
                Bytes::new(op.bytes / op.requests)
            );
        }
        text.push('\n');
    }
    if a.fua_writes + a.preflush_writes > 0 {
        text += &format!(
            "  {} writes are FUA, {} have a flush before them\n",
            a.fua_writes, a.preflush_writes
        );
    }
    text += &format!(
        "  touches {} in places of {}; longest request {}\n",
        Bytes::new(a.footprint_bytes),
        Bytes::new(a.place_bytes),
        Bytes::new(a.longest_bytes)
    );
    text += &match a.unaligned_requests {
        0 => "  every request lies on 4 KiB boundaries\n".to_string(),
        n => format!("  {n} requests do not lie on 4 KiB boundaries: they will be widened\n"),
    };
    text += &match a.backwards_records {
        0 => "  in order of time\n".to_string(),
        n => format!(
            "  {n} records are earlier than the one before them, by {} at most\n",
            Ns::from_ns(a.backwards_max_ns)
        ),
    };
    if a.whole_second_requests > 0 {
        text += &format!("  {} {WHOLE_SECONDS}\n", a.whole_second_requests);
    }
    for d in a.devices.iter().take(DEVICES_SHOWN) {
        text += &format!(
            "  device {}: {} requests, bytes {} to {} ({})\n",
            d.device,
            d.requests,
            d.first_byte,
            d.end_byte,
            Bytes::new(d.end_byte)
        );
    }
    if a.devices.len() > DEVICES_SHOWN {
        text += &format!("  ... and {} more devices\n", a.devices.len() - DEVICES_SHOWN);
    }
    text
}
