//! Which of a trace's writes go round a journal or log, and the plane of its writes.
//!
//! Owns: the detector's run over a trace ([`Journals::of`]), what it found in words, the address/time
//! plane ([`Plane`]) as text. Promises: memory that does not depend on the trace's length; the same
//! trace gives the same text. Never: decides what a journal's write is (that is `flashlane-detect`).

use super::scan::Scan;
use super::truth::{Judge, Judged, Score, Truth};
use crate::device::DeviceId;
use crate::progress::Progress;
use crate::record::{TraceError, TraceOp, TraceRecord};
use flashlane_base::{Bytes, Lba, SECTOR_BYTES};
use flashlane_detect::{Class, Config, Detector, Region};
use serde::Serialize;
use std::ops::Range;

/// Loops that are told; a trace of years may find more.
const LOOPS_MAX: usize = 100;
/// Records between two looks at the watcher.
const WATCH_EVERY: u64 = 1 << 16;

/// What the detector found on the device that is written most.
#[derive(Clone, Debug, Serialize)]
pub struct Journals {
    pub device: String,
    /// Other devices of the trace, which were not looked at.
    pub other_devices: usize,
    pub written_bytes: u64,
    /// Of these, bytes of a journal's writes.
    pub journal_bytes: u64,
    pub writes: u64,
    pub journal_writes: u64,
    /// In the order in which they were found; the first hundred.
    pub loops: Vec<Loop>,
    /// Compared with where they lie, if that was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    #[serde(skip)]
    pub plane: Plane,
}

/// A loop that was found.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Loop {
    pub first_byte: u64,
    pub end_byte: u64,
    pub laps: u32,
    /// Bytes of journal writes in it.
    pub bytes: u64,
    /// Bytes written on the device when it was found.
    pub found_bytes: u64,
    /// It was none any more when the trace ended.
    pub ended: bool,
}

impl Loop {
    fn of(region: &Region, found_bytes: u64) -> Loop {
        let byte = |lba: Lba| lba.get().saturating_mul(SECTOR_BYTES as u64);
        let (first_byte, end_byte) = (byte(region.first), byte(region.end));
        Loop { first_byte, end_byte, laps: region.laps, bytes: 0, found_bytes, ended: true }
    }

    /// Takes in what is now known of it.
    fn update(&mut self, now: &Loop) {
        self.first_byte = self.first_byte.min(now.first_byte);
        self.end_byte = self.end_byte.max(now.end_byte);
        self.laps = self.laps.max(now.laps);
    }

    fn meets(&self, other: &Loop) -> bool {
        self.first_byte < other.end_byte && other.first_byte < self.end_byte
    }
}

/// Blocks of a write.
fn blocks(r: &TraceRecord) -> Range<u64> {
    let sector = SECTOR_BYTES as u64;
    let end = r.offset_bytes.saturating_add(r.len_bytes);
    r.offset_bytes / sector..end.div_ceil(sector)
}

impl Journals {
    /// Goes through the writes of a scan, and of those before it. None where it has none.
    ///
    /// What came before teaches the detector, and counts in nothing else but a lap of the truth.
    pub fn of(
        before: Option<&Scan>,
        scan: &Scan,
        truth: Option<&Truth>,
        monitor: &dyn Progress,
    ) -> Result<Option<Journals>, TraceError> {
        let devices = &scan.chosen().devices;
        let Some(device) = busiest(scan) else { return Ok(None) };
        let before = before.and_then(|scan| Some((scan, busiest(scan)?)));
        let mut judge = truth.map(|truth| Judge::new(truth.clone()));
        if let Some(judge) = &mut judge {
            for (scan, device) in before.into_iter().chain([(scan, device)]) {
                each(scan, device, monitor, |r| judge.count(blocks(r)))?;
            }
        }
        let (first_ns, at) = (scan.chosen().first_ns.unwrap_or(0), &devices[&device]);
        let mut found = Journals {
            device: scan.devices.name(device),
            other_devices: devices.len() - 1,
            written_bytes: 0,
            journal_bytes: 0,
            writes: 0,
            journal_writes: 0,
            loops: Vec::new(),
            judged: None,
            plane: Plane::new(scan.chosen().duration_ns(), at.first_byte..at.end_byte),
        };
        let mut detector = Detector::new(Config::default());
        if let Some((scan, device)) = before {
            each(scan, device, monitor, |r| {
                let at = blocks(r);
                detector.write(Lba::new(at.start), (at.end - at.start) as u32);
                if let Some(judge) = &mut judge {
                    judge.judge(at, false);
                }
            })?;
            if let Some(judge) = &mut judge {
                judge.begin_again();
            }
        }
        each(scan, device, monitor, |r| {
            let at = blocks(r);
            let class = detector.write(Lba::new(at.start), (at.end - at.start) as u32);
            found.add(r, class, &detector);
            found.plane.add(r.ts_ns.saturating_sub(first_ns), r, class);
            if let Some(judge) = &mut judge {
                judge.judge(at, class == Class::Journal);
            }
        })?;
        found.end(&detector);
        found.judged = judge.map(Judge::end);
        Ok((found.writes > 0).then_some(found))
    }

    fn add(&mut self, r: &TraceRecord, class: Class, detector: &Detector) {
        self.writes += 1;
        self.written_bytes = self.written_bytes.saturating_add(r.len_bytes);
        if class == Class::Normal {
            return;
        }
        self.journal_writes += 1;
        self.journal_bytes = self.journal_bytes.saturating_add(r.len_bytes);
        // A header may lie before the first block.
        let holds = |l: &Loop| {
            (l.first_byte.saturating_sub(16 << 12)..l.end_byte).contains(&r.offset_bytes)
        };
        if let Some(known) = self.loops.iter_mut().rev().find(|l| holds(l)) {
            known.bytes = known.bytes.saturating_add(r.len_bytes);
            return;
        }
        let regions = detector.regions().into_iter();
        let region = regions.map(|region| Loop::of(&region, self.written_bytes)).find(holds);
        if let Some(region) = region.filter(|_| self.loops.len() < LOOPS_MAX) {
            self.loops.push(Loop { bytes: r.len_bytes, ..region });
        }
    }

    /// Takes what is known at the end. Loops that were found apart and have become one are one.
    fn end(&mut self, detector: &Detector) {
        for region in detector.regions() {
            let now = Loop::of(&region, self.written_bytes);
            let mut same = self.loops.iter_mut().filter(|l| l.meets(&now));
            if let Some(first) = same.next() {
                first.update(&now);
                first.ended = false;
                for more in same {
                    first.bytes = first.bytes.saturating_add(std::mem::take(&mut more.bytes));
                    more.end_byte = more.first_byte;
                }
            }
        }
        self.loops.retain(|l| l.end_byte > l.first_byte);
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let share =
            |part: u64, all: u64| format!("{:.1}%", 100.0 * part as f64 / all.max(1) as f64);
        let mut text = format!(
            "\njournals and logs, by addresses alone (device {}): {} of {} writes ({}), {} of {} ({})\n",
            self.device,
            self.journal_writes,
            self.writes,
            share(self.journal_writes, self.writes),
            Bytes::new(self.journal_bytes),
            Bytes::new(self.written_bytes),
            share(self.journal_bytes, self.written_bytes)
        );
        if self.other_devices > 0 {
            text += &format!("  {} other devices were not looked at\n", self.other_devices);
        }
        if self.loops.is_empty() {
            text += "  no loop was found\n";
        }
        for l in &self.loops {
            text += &format!(
                "  bytes {} to {} ({}): {} laps, {} ({}), found after {} of writes{}\n",
                l.first_byte,
                l.end_byte,
                Bytes::new(l.end_byte - l.first_byte),
                l.laps,
                Bytes::new(l.bytes),
                share(l.bytes, self.written_bytes),
                Bytes::new(l.found_bytes),
                if l.ended { "; none any more at the end" } else { "" }
            );
        }
        if let Some(judged) = &self.judged {
            text += &judged.to_text();
        }
        text + &self.plane.to_text()
    }
}

/// The device with the most requests.
fn busiest(scan: &Scan) -> Option<DeviceId> {
    let devices = &scan.chosen().devices;
    devices.keys().copied().max_by_key(|id| (devices[id].requests, u16::MAX - id.0))
}

/// Gives each write of a device.
fn each(
    scan: &Scan,
    device: DeviceId,
    monitor: &dyn Progress,
    mut use_it: impl FnMut(&TraceRecord),
) -> Result<(), TraceError> {
    let (mut records, mut done) = (scan.records(Some(device), false)?, 0u64);
    while let Some(r) = records.advance()? {
        if r.op == TraceOp::Write && r.len_bytes > 0 {
            use_it(&r);
        }
        done += 1;
        if done.is_multiple_of(WATCH_EVERY) {
            monitor.progress("detect", done, Some(scan.chosen().requests()));
            if monitor.interrupted() {
                return Err(TraceError::Interrupted { file: scan.source.name() });
            }
        }
    }
    Ok(())
}

/// A share as people read it; nothing where there is none.
pub fn share_text(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{share:.3}"))
}

impl Judged {
    fn to_text(&self) -> String {
        let both = |s: &Score| {
            format!("precision {}, recall {}", share_text(s.precision()), share_text(s.recall()))
        };
        let mut text = format!(
            "  against the truth: cold {}; warm {}; {} of {} other blocks called a journal's\n",
            both(&self.cold),
            both(&self.warm),
            self.cold.false_alarms,
            self.other_blocks
        );
        for log in &self.logs {
            let after = |bytes: Option<u64>, none: &str| {
                bytes.map_or(none.into(), |b| format!("after {} of writes", Bytes::new(b)))
            };
            text += &format!(
                "    {}: {} blocks, {} written; gone round {}, found {}; recall cold {}, warm {}\n",
                log.name,
                log.blocks,
                log.written_blocks,
                after(log.lap_bytes, "never"),
                after(log.detected_bytes, "never"),
                share_text(log.cold.recall()),
                share_text(log.warm.recall())
            );
        }
        text
    }
}

/// Writes by address and time, in cells.
#[derive(Clone, Debug)]
pub struct Plane {
    pub duration_ns: u64,
    pub bytes: Range<u64>,
    /// Row by row from the lowest address: requests of a journal, and others.
    pub cells: Vec<(u32, u32)>,
}

impl Plane {
    /// Cells of a row, and rows.
    pub const WIDTH: usize = 216;
    pub const HEIGHT: usize = 120;
    /// Cells that are a character.
    const CHARACTER: (usize, usize) = (3, 6);

    fn new(duration_ns: u64, bytes: Range<u64>) -> Plane {
        let bytes = if bytes.start < bytes.end { bytes } else { 0..1 };
        Plane { duration_ns, bytes, cells: vec![(0, 0); Plane::WIDTH * Plane::HEIGHT] }
    }

    fn add(&mut self, ns: u64, r: &TraceRecord, class: Class) {
        let part = |at: u64, of: u64, cells: usize| {
            ((u128::from(at) * cells as u128 / (u128::from(of) + 1)) as usize).min(cells - 1)
        };
        let (low, bytes) = (self.bytes.start, self.bytes.end - self.bytes.start);
        let row = |byte: u64| part(byte.saturating_sub(low), bytes, Plane::HEIGHT);
        let column = part(ns, self.duration_ns, Plane::WIDTH);
        for row in row(r.offset_bytes)..=row(r.offset_bytes.saturating_add(r.len_bytes - 1)) {
            let cell = &mut self.cells[row * Plane::WIDTH + column];
            let count = if class == Class::Journal { &mut cell.0 } else { &mut cell.1 };
            *count = count.saturating_add(1);
        }
    }

    /// In characters, the highest address above.
    fn to_text(&self) -> String {
        let (wide, high) = Plane::CHARACTER;
        let mut text = format!(
            "\nwrites by address (up) and time (right): `#` a journal's, `.` others, `%` both\n  {}\n",
            Bytes::new(self.bytes.end)
        );
        for top in (0..Plane::HEIGHT / high).rev() {
            let mut line = String::from("  |");
            for left in 0..Plane::WIDTH / wide {
                let rows = top * high..(top + 1) * high;
                let cells = rows.flat_map(|row| {
                    let from = row * Plane::WIDTH + left * wide;
                    &self.cells[from..from + wide]
                });
                let sum = |a: (bool, bool), c: &(u32, u32)| (a.0 || c.0 > 0, a.1 || c.1 > 0);
                line.push(match cells.fold((false, false), sum) {
                    (false, false) => ' ',
                    (false, true) => '.',
                    (true, false) => '#',
                    (true, true) => '%',
                });
            }
            text += line.trim_end();
            text.push('\n');
        }
        text += &format!("  {}", Bytes::new(self.bytes.start));
        let ends = flashlane_base::Ns::from_ns(self.duration_ns).to_string();
        let width = Plane::WIDTH / wide + 3;
        text += &format!(
            "{ends:>width$}\n",
            width = width.saturating_sub(text.lines().last().map_or(0, str::len))
        );
        text
    }
}
