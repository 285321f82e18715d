//! One look at a whole trace: what is in it, before anything runs.
//!
//! Owns: counts by operation and device, ranges, order in time, alignment, latencies as recorded,
//! the set of touched places that [`super::layout`] packs where it does, the records themselves where
//! they are few enough. Promises: bounded memory; the places are kept coarser when there are many. Never: decides
//! where anything lies.

use super::doubt;
use super::kept::{self, Kept};
use super::pair::{Open, Paired, WINDOW_MAX};
use super::reader::{Counts, Reader, Reading};
use crate::device::{DeviceId, Devices};
use crate::format::Format;
use crate::histogram::Latencies;
use crate::progress::{Progress, Unwatched};
use crate::record::Action;
use crate::record::{TraceError, TraceOp, TraceRecord};
use crate::source::TraceSource;
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Places kept at most before they are kept 16 times as coarse: some 30 MiB.
const PLACES_MAX: u64 = 1 << 20;
/// Rows of places that are noted before they are put in order.
const FRESH_MAX: usize = 1 << 16;
/// Rows that are remembered as noted, so that one that comes again is known at once.
const KNOWN: usize = 1 << 15;
/// 2^64 divided by the golden ratio: neighbours are spread.
const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// Records between two looks at the watcher.
const WATCH_EVERY: u64 = 1 << 16;

/// Places in a row on a device: first and last unit.
type Row = (DeviceId, u64, u64);

/// The order of places, as one number: a comparison of pairs is a branch more, and there are many.
fn order(device: DeviceId, place: u64) -> u128 {
    u128::from(device.0) << 64 | u128::from(place)
}

/// Some of the rows that were noted, each at its hash, as device, units, and first unit in one word.
/// Those that have no room in a word are noted again and again.
#[derive(Clone, Debug)]
struct Known(Vec<u64>);

impl Default for Known {
    fn default() -> Known {
        Known(vec![u64::MAX; KNOWN])
    }
}

impl Known {
    /// Whether this row was noted; from now on it is.
    #[inline]
    fn has(&mut self, (device, first, last): Row) -> bool {
        let (device, units) = (u64::from(device.0), last - first);
        if first >= 1 << 40 || units >= 1 << 8 || device >= 1 << 15 {
            return false;
        }
        let row = device << 48 | units << 40 | first;
        let slot = row.wrapping_mul(HASH) >> (u64::BITS - KNOWN.ilog2());
        std::mem::replace(&mut self.0[slot as usize], row) == row
    }
}

/// Touched places: units of 4 KiB × 16^n, coarse enough to fit the memory.
#[derive(Clone, Debug)]
pub struct Places {
    shift: u32,
    /// In order, apart from each other.
    rows: Vec<Row>,
    /// Noted since.
    fresh: Vec<Row>,
    /// Noted before: what a trace touches it touches again.
    known: Known,
}

impl Default for Places {
    fn default() -> Places {
        Places { shift: 12, rows: Vec::new(), fresh: Vec::new(), known: Known::default() }
    }
}

impl Places {
    /// log2 of a unit in bytes.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Touched units as (device, unit number), in order, of a trace that was read to its end.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceId, u64)> + '_ {
        debug_assert!(self.fresh.is_empty(), "the scan has ended");
        self.rows.iter().flat_map(|(device, first, last)| (*first..=*last).map(|u| (*device, u)))
    }

    /// Notes what a read or a write touches.
    fn note(&mut self, record: &TraceRecord) {
        if !matches!(record.op, TraceOp::Read | TraceOp::Write) {
            return;
        }
        let end = record.offset_bytes + record.len_bytes - 1;
        let (first, last) = (record.offset_bytes >> self.shift, end >> self.shift);
        if self.known.has((record.device, first, last)) {
            return;
        }
        match self.fresh.last_mut() {
            // The most frequent order, without a row of its own.
            Some(row) if row.0 == record.device && (row.1..=row.2 + 1).contains(&first) => {
                row.2 = row.2.max(last);
            }
            _ => self.fresh.push((record.device, first, last)),
        }
        if self.fresh.len() == FRESH_MAX {
            self.settle();
        }
    }

    /// Puts in order what was noted.
    fn settle(&mut self) {
        self.fresh.sort_unstable_by_key(|row| order(row.0, row.1));
        self.rows.append(&mut self.fresh);
        self.join();
        let count =
            |rows: &[Row]| rows.iter().map(|(_, first, last)| last - first + 1).sum::<u64>();
        while count(&self.rows) > PLACES_MAX {
            self.shift += 4;
            self.known = Known::default();
            self.rows.iter_mut().for_each(|row| (row.1, row.2) = (row.1 >> 4, row.2 >> 4));
            self.join();
        }
    }

    /// Sorts the rows, and makes one of those that meet.
    fn join(&mut self) {
        // All of it is in order already, in two runs at most: they are merged.
        self.rows.sort_by_key(|row| order(row.0, row.1));
        self.rows.dedup_by(|next, row| {
            let meets = next.0 == row.0 && next.1 <= row.2.saturating_add(1);
            if meets {
                row.2 = row.2.max(next.2);
            }
            meets
        });
    }
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCount {
    pub requests: u64,
    pub bytes: u64,
}

/// What a trace does to one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    pub requests: u64,
    /// First byte touched; `u64::MAX` when only flushes were seen.
    pub first_byte: u64,
    /// Behind the last byte touched.
    pub end_byte: u64,
}

impl DeviceSummary {
    const NONE: DeviceSummary = DeviceSummary { requests: 0, first_byte: u64::MAX, end_byte: 0 };
}

/// All records of one action.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// By operation, in the order of [`TraceOp`].
    pub ops: [OpCount; 4],
    pub fua: u64,
    /// Writes that have a flush before them.
    pub preflush: u64,
    /// Reads, writes and discards that do not lie on 4 KiB boundaries.
    pub unaligned: u64,
    pub longest_bytes: u64,
    /// Earliest and latest time.
    pub first_ns: Option<u64>,
    /// Latest time.
    pub last_ns: u64,
    /// Records that are earlier than the one before them.
    pub backwards: u64,
    pub backwards_max_ns: u64,
    pub devices: BTreeMap<DeviceId, DeviceSummary>,
    /// What reads and writes touched, if it was noted.
    pub(super) places: Option<Places>,
    /// Of requests with data, if there was one.
    pub(super) varies: Option<Varies>,
    /// Times are whole seconds, all of them, and some requests have the same.
    pub whole_seconds: WholeSeconds,
    previous_ns: u64,
}

/// What differs between requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Varies {
    first: (u64, u64),
    /// First bytes.
    pub(super) offset: bool,
    pub(super) length: bool,
}

/// Whether a trace's clock ticks once a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeSeconds {
    /// Some time was none.
    parts: bool,
    /// Requests at the time of the one before.
    same: u64,
}

impl WholeSeconds {
    fn note(&mut self, ns: u64, previous_ns: u64) {
        self.parts |= !ns.is_multiple_of(1_000_000_000);
        self.same += u64::from(ns == previous_ns);
    }

    /// Requests that share their second with the one before, where a second is all that the times
    /// say.
    pub fn shared(&self) -> u64 {
        if self.parts { 0 } else { self.same }
    }
}

impl Summary {
    pub fn requests(&self) -> u64 {
        self.ops.iter().map(|o| o.requests).sum()
    }

    /// From the first to the last request.
    pub fn duration_ns(&self) -> u64 {
        self.last_ns - self.first_ns.unwrap_or(self.last_ns)
    }

    /// Adds a record, also to what is known of its device.
    fn add(&mut self, r: &TraceRecord, device: &mut DeviceSummary) {
        let count = &mut self.ops[r.op as usize];
        count.requests += 1;
        count.bytes = count.bytes.saturating_add(r.len_bytes);
        self.fua += r.fua as u64;
        self.preflush += r.preflush as u64;
        self.longest_bytes = self.longest_bytes.max(r.len_bytes);
        self.first_ns = Some(self.first_ns.unwrap_or(u64::MAX).min(r.ts_ns));
        self.last_ns = self.last_ns.max(r.ts_ns);
        if r.ts_ns < self.previous_ns {
            self.backwards += 1;
            self.backwards_max_ns = self.backwards_max_ns.max(self.previous_ns - r.ts_ns);
        }
        self.whole_seconds.note(r.ts_ns, self.previous_ns);
        self.previous_ns = r.ts_ns;
        device.requests += 1;
        if let Some(places) = &mut self.places {
            places.note(r);
        }
        if r.op == TraceOp::Flush {
            return;
        }
        let place = (r.offset_bytes, r.len_bytes);
        let varies =
            self.varies.get_or_insert(Varies { first: place, offset: false, length: false });
        varies.offset |= varies.first.0 != place.0;
        varies.length |= varies.first.1 != place.1;
        let sector = flashlane_base::SECTOR_BYTES as u64;
        let aligned = r.offset_bytes.is_multiple_of(sector) && r.len_bytes.is_multiple_of(sector);
        self.unaligned += !aligned as u64;
        device.first_byte = device.first_byte.min(r.offset_bytes);
        device.end_byte = device.end_byte.max(r.offset_bytes + r.len_bytes);
    }
}

/// What a trace holds.
pub struct Scan {
    pub source: TraceSource,
    /// What the user said about it.
    pub reading: Reading,
    pub format: Format,
    /// Files that it is kept in.
    pub files: usize,
    pub devices: Devices,
    /// Lines, and those that are no requests.
    pub counts: Counts,
    pub actions: BTreeMap<Action, Summary>,
    pub action: Action,
    /// The format was told by numbers alone, and the user did not name it.
    pub guessed: bool,
    /// Notes in it, with their times.
    pub notes: Vec<(u64, String)>,
    /// Issue (or queue) to completion as recorded, where both are there.
    pub recorded: Latencies,
    /// It is a recording with contents; who wants them asks [`Scan::records`] for them.
    pub has_contents: bool,
    /// The records that are replayed, when they are few enough to keep: parsing is most of a
    /// replay.
    kept: Option<Kept>,
}

impl Scan {
    /// What somebody who uses the trace should know about how it was read.
    pub fn remarks(&self) -> Vec<String> {
        let (name, format) = (self.source.name(), self.format);
        let guessed = self.guessed.then(|| {
            let word = format.word();
            format!("trace {name}: {format}, guessed of numbers alone (`format = \"{word}\"` says that it is so)")
        });
        let shared = self.chosen().whole_seconds.shared();
        let bursts = (shared > 0).then(|| format!("trace {name}: {shared} {WHOLE_SECONDS}"));
        guessed.into_iter().chain(bursts).collect()
    }

    /// The records that are replayed.
    pub fn chosen(&self) -> &Summary {
        &self.actions[&self.action]
    }

    /// What reads and writes of the replayed records touched. Where the scan has not noted it, the
    /// records are gone through once more.
    pub fn places(&self) -> Result<Cow<'_, Places>, TraceError> {
        if let Some(places) = &self.chosen().places {
            return Ok(Cow::Borrowed(places));
        }
        let (mut places, mut records) = (Places::default(), self.records(None, false)?);
        while let Some(record) = records.advance()? {
            places.note(&record);
        }
        places.settle();
        Ok(Cow::Owned(places))
    }

    /// Goes through the records that are replayed, once more from the start; with `contents` through
    /// what they wrote, too, where that was recorded.
    pub fn records(
        &self,
        device: Option<DeviceId>,
        contents: bool,
    ) -> Result<Records<'_>, TraceError> {
        let from = match &self.kept {
            Some(kept) if !(contents && self.has_contents) => From::Memory(kept.iter()),
            _ => From::File(self.reader(contents)?.into(), self.action),
        };
        Ok(Records { from, device })
    }

    /// The same with the latencies that completions tell, once more from the file.
    pub fn timed(&self, device: Option<DeviceId>, contents: bool) -> Result<Paired, TraceError> {
        Ok(Paired::new(self.reader(contents)?, self.action, device))
    }

    fn reader(&self, contents: bool) -> Result<Reader, TraceError> {
        Reader::open(&self.source, &Reading { contents, ..self.reading })
    }
}

enum From<'a> {
    Memory(kept::Iter<'a>),
    File(Box<Reader>, Action),
}

/// Records of a trace, one after the other.
pub struct Records<'a> {
    from: From<'a>,
    device: Option<DeviceId>,
}

impl Records<'_> {
    /// The next record, `None` at the end.
    pub fn advance(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        match &mut self.from {
            From::File(reader, action) => reader.next_of(*action, self.device),
            From::Memory(kept) => Ok(match self.device {
                None => kept.next(),
                Some(device) => kept.find(|r| r.device == device),
            }),
        }
    }

    /// What the record wrote that was given out last, where that was asked for and recorded.
    pub fn content(&mut self) -> Option<Bytes> {
        match &mut self.from {
            From::File(reader, _) => reader.content(),
            From::Memory(_) => None,
        }
    }
}

/// Of requests.
pub(super) const WHOLE_SECONDS: &str = "requests have the time of the one before: its clock ticks once a second, so each second is one burst";

/// Recordings are hours, or days. What spans more than a century has a damaged time in it.
const YEARS_MAX: u64 = 100;
const YEAR_NS: u64 = 31_557_600 * 1_000_000_000;

/// Reads a trace once. Without an action in `reading` queued requests are taken, or issued ones
/// where none was queued.
pub fn scan(source: &TraceSource, reading: &Reading) -> Result<Scan, TraceError> {
    scan_watched(source, reading, &Unwatched)
}

/// The same while somebody looks on, who may end it.
pub fn scan_watched(
    source: &TraceSource,
    reading: &Reading,
    monitor: &dyn Progress,
) -> Result<Scan, TraceError> {
    scan_with(source, reading, monitor, Noted { records: false, places: true })
}

/// The same for who goes through the records again: they are kept, if they are not too many.
pub fn scan_kept(
    source: &TraceSource,
    reading: &Reading,
    monitor: &dyn Progress,
) -> Result<Scan, TraceError> {
    scan_with(source, reading, monitor, Noted { records: true, places: true })
}

/// As [`scan`], for a run that goes through the records next, perhaps more than once: they are kept,
/// if they are not too many. With `places` what they touch is noted at once, as a run that may pack
/// them wants it, and otherwise when [`Scan::places`] asks for it.
pub fn scan_to_replay(
    source: &TraceSource,
    reading: &Reading,
    places: bool,
) -> Result<Scan, TraceError> {
    scan_with(source, reading, &Unwatched, Noted { records: true, places })
}

/// What of a trace is noted beside its sums.
struct Noted {
    records: bool,
    places: bool,
}

/// The records of one action.
struct Part {
    action: Action,
    summary: Summary,
    /// By device, also those of which there is no record.
    devices: Vec<DeviceSummary>,
    kept: Option<Kept>,
}

impl Part {
    fn new(action: Action, noted: &Noted) -> Part {
        let places = noted.places.then(Places::default);
        let kept = (noted.records && action != Action::Completed).then(Kept::default);
        let summary = Summary { places, ..Summary::default() };
        Part { action, summary, devices: Vec::new(), kept }
    }

    fn add(&mut self, record: &TraceRecord) {
        let index = record.device.index();
        if index >= self.devices.len() {
            self.devices.resize(index + 1, DeviceSummary::NONE);
        }
        self.summary.add(record, &mut self.devices[index]);
        if let Some(kept) = &mut self.kept {
            kept.push(record);
        }
    }

    /// There are no more.
    fn end(&mut self) {
        self.summary.places.iter_mut().for_each(Places::settle);
        let devices = self.devices.iter().enumerate().filter(|(_, device)| device.requests > 0);
        let numbered = |(index, device): (usize, &_)| (DeviceId(index as u16), *device);
        self.summary.devices = devices.map(numbered).collect();
    }
}

fn scan_with(
    source: &TraceSource,
    reading: &Reading,
    monitor: &dyn Progress,
    noted: Noted,
) -> Result<Scan, TraceError> {
    let mut reader = Reader::open(source, reading)?;
    // A handful at most: looking through them is faster than a tree.
    let mut parts: Vec<Part> = Vec::new();
    let mut recorded = Recorded::default();
    let mut done = 0u64;
    while let Some((action, record)) = reader.next_event()? {
        done += 1;
        if done.is_multiple_of(WATCH_EVERY) {
            monitor.progress("read", done, None);
            if monitor.interrupted() {
                return Err(TraceError::Interrupted { file: reader.file().into() });
            }
        }
        recorded.add(action, &record);
        let index = parts.iter().position(|part| part.action == action).unwrap_or_else(|| {
            parts.push(Part::new(action, &noted));
            parts.len() - 1
        });
        parts[index].add(&record);
    }
    let mut actions: BTreeMap<Action, Summary> = BTreeMap::new();
    let mut kept: BTreeMap<Action, Kept> = BTreeMap::new();
    for mut part in parts {
        part.end();
        actions.insert(part.action, part.summary);
        kept.extend(part.kept.map(|kept| (part.action, kept)));
    }
    let action = choose(&reader, &actions, reading.action)?;
    let chosen = &actions[&action];
    let years = chosen.duration_ns() / YEAR_NS;
    if years > YEARS_MAX {
        let second = 1_000_000_000;
        let first = chosen.first_ns.unwrap_or(0) / second;
        let file = reader.file().into();
        return Err(TraceError::Times { file, years, first, last: chosen.last_ns / second });
    }
    let (format, guessed, clock) = (reader.format(), reader.is_guessed(), reader.clock());
    let read = doubt::Read { format, guessed, clock };
    if let Some(why) = doubt::question(chosen, &read).filter(|_| !reading.take_as_is) {
        return Err(TraceError::Implausible { file: reader.file().into(), format, why });
    }
    Ok(Scan {
        source: source.clone(),
        reading: Reading { format: Some(reader.format()), action: Some(action), ..*reading },
        format,
        guessed,
        files: reader.files(),
        devices: reader.devices().clone(),
        counts: reader.counts().clone(),
        action,
        actions,
        notes: reader.notes().to_vec(),
        recorded: recorded.latencies,
        has_contents: reader.has_contents(),
        kept: kept.remove(&action).and_then(Kept::complete),
    })
}

fn choose(
    reader: &Reader,
    actions: &BTreeMap<Action, Summary>,
    want: Option<Action>,
) -> Result<Action, TraceError> {
    let order: &[Action] = match &want {
        Some(action) if !actions.contains_key(&Action::Only) => std::slice::from_ref(action),
        _ => &[Action::Queued, Action::Issued, Action::Only],
    };
    if let Some(action) = order.iter().find(|a| actions.contains_key(a)) {
        return Ok(*action);
    }
    let wanted: Vec<String> = order[..order.len().min(2)].iter().map(Action::to_string).collect();
    let found: Vec<String> = actions
        .iter()
        .map(|(a, s)| format!("{} {a}", s.requests()))
        .chain(reader.counts().passed_over.iter().map(|(k, n)| format!("{n} of kind `{k}`")))
        .collect();
    Err(TraceError::NothingMatched {
        file: reader.file().into(),
        lines: reader.counts().lines,
        why: format!(
            "no event {} with sectors (found: {})",
            wanted.join(" or "),
            if found.is_empty() { "nothing".into() } else { found.join(", ") }
        ),
    })
}

/// Latencies as recorded: from the same line, or from issue (or queueing where issues were not
/// recorded) to completion.
#[derive(Default)]
struct Recorded {
    latencies: Latencies,
    open: BTreeMap<Action, Open>,
    made: u64,
}

impl Recorded {
    fn add(&mut self, action: Action, r: &TraceRecord) {
        match action {
            Action::Completed => {
                let of = |a| self.open.get_mut(&a).and_then(|open| open.completed(r));
                let [issued, queued] = [Action::Issued, Action::Queued].map(of);
                if let Some((_, latency)) = issued.or(queued) {
                    self.latencies.record(latency);
                }
            }
            Action::Queued | Action::Issued => {
                let open = self.open.entry(action).or_default();
                // A request that was merged never completes under its own extent: forget them all
                // when too many have gathered.
                if open.len() == WINDOW_MAX {
                    *open = Open::default();
                }
                self.made += 1;
                open.made(r, self.made);
            }
            Action::Only => {
                if let Some(ns) = r.latency_ns {
                    self.latencies.record(ns);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TraceError;
    use proptest::prelude::*;
    use std::io::Write;

    fn bundled(bytes: Vec<u8>) -> TraceSource {
        TraceSource::Bundled { name: "t", bytes: bytes.leak() }
    }

    fn of(text: &str) -> Result<Scan, TraceError> {
        scan(&bundled(text.as_bytes().to_vec()), &Reading::default())
    }

    const FEW: &str = "  8,0 0 1 0.000000000 9 m N phase one\n  8,0 0 2 0.000001000 9 Q FWFS 8 + 8 [a]\n\
        \x20 8,0 0 3 0.000002000 9 D WS 8 + 8 [a]\n  8,0 0 4 0.000005000 9 C WS 8 + 8 [0]\n\
        \x20 8,16 0 5 0.000004000 9 Q R 3 + 2 [a]\nCPU0 (8,0):\n Reads Queued: 1, 1KiB\n";

    #[test]
    fn a_scan_counts_everything_once() {
        let s = of(FEW).unwrap();
        let q = s.chosen();
        assert_eq!((s.format, s.action), (Format::Blkparse, Action::Queued));
        assert_eq!((q.requests(), q.fua, q.preflush, q.unaligned), (2, 1, 1, 1));
        assert_eq!(q.devices.len(), 2);
        assert_eq!(
            (s.counts.lines, s.counts.passed_over[&'m'], s.counts.passed_over[&'s']),
            (7, 1, 2)
        );
        assert_eq!(s.notes, [(0, "phase one".to_string())]);
        assert_eq!((s.recorded.count(), s.recorded.max_ns()), (1, 3000));
        let d = scan(&s.source, &Reading { action: Some(Action::Issued), ..Reading::default() })
            .unwrap();
        assert_eq!(d.chosen().requests(), 1);
    }

    #[test]
    fn packed_files_are_unpacked_and_truncated_ones_refused() {
        let zst = ruzstd::encoding::compress_to_vec(
            FEW.as_bytes(),
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(FEW.as_bytes()).unwrap();
        let gz = gz.finish().unwrap();
        for packed in [zst, gz] {
            let twice = [packed.clone(), packed.clone()].concat();
            assert_eq!(
                scan(&bundled(packed.clone()), &Reading::default()).unwrap().chosen().requests(),
                2
            );
            assert_eq!(scan(&bundled(twice), &Reading::default()).unwrap().chosen().requests(), 4);
            let cut = packed[..packed.len() - 9].to_vec();
            let said =
                scan(&bundled(cut), &Reading::default()).map(|_| ()).unwrap_err().to_string();
            assert!(said.contains("truncated"), "{said}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let said = |text: &str| of(text).map(|_| ()).unwrap_err().to_string();
        let line = said("1 0 0 8 0\n2 0 x 8 0\n");
        assert!(line.contains("t (bundled):2:5") && line.contains("2 0 x 8 0\n      ^"), "{line}");
        assert!(said("1 0 0 8 0\n2 0 1").contains("middle of a line"));
        assert!(said("").contains("empty"));
        assert!(
            said("128166372003061629,hm,1,Raed,383496192,32768,413\n").contains("--format msr")
        );
        assert!(said("\x08tae\0\0\0").contains("blkparse -i"));
        assert!(said("\x07tae\0\0\0").contains("record 1 (byte 0)"));
        assert!(said("fio version 1 iolog\n").contains("another version"));
        assert!(said("fio version 2 iolog\n/dev/sda add\n").contains("0 of 2 lines matched"));
        let nothing = said("8,0 0 1 0.0 9 P N [x]\n8,0 0 2 0.0 9 C WS 8 + 8 [0]\n");
        assert!(
            nothing.contains("0 of 2 lines matched") && nothing.contains("C (completed)"),
            "{nothing}"
        );
        assert!(said(&format!("1 0 0 8 0\n{}", "7".repeat(5000))).contains("longer than"));
    }

    /// DiskSim's milliseconds are good nanoseconds of MQSim: what no device does is asked about.
    #[test]
    fn what_no_device_does_is_asked_about() {
        let lines = |line: &dyn Fn(u64) -> String| (0..40).map(line).collect::<String>();
        let said = |text: &str, reading: &Reading| {
            let source = bundled(text.as_bytes().to_vec());
            scan(&source, reading).map(|s| s.guessed).map_err(|e| e.to_string())
        };
        let plain = Reading::default();
        let named = Reading { format: Some(Format::Mqsim), ..plain };
        let as_is = Reading { take_as_is: true, ..plain };
        let at_once = lines(&|i| format!("7 0 {} 8 {}\n", i * 8, i % 2));
        let too_fast = lines(&|i| format!("{} 0 {} 8 {}\n", i, i * 8, i % 2));
        let one_place = lines(&|i| format!("{} 0 64 8 {}\n", i * 10_000, i % 2));
        for (text, says) in
            [(&at_once, "same time"), (&too_fast, "none does"), (&one_place, "the same byte")]
        {
            for reading in [&plain, &named] {
                let why = said(text, reading).unwrap_err();
                assert!(why.contains(says) && why.contains("--take-as-is"), "{why}");
            }
            assert_eq!(said(text, &as_is), Ok(true));
        }
        assert!(said(&too_fast, &plain).unwrap_err().contains("--format disksim"));
        let ms = Reading { format: Some(Format::Disksim), ..plain };
        assert_eq!(said(&too_fast, &ms), Ok(false));
        // Writes alone are plausible, but not what says so.
        let writes = lines(&|i| format!("{} 0 {} 8 0\n", i * 10_000, i * 8));
        assert!(said(&writes, &plain).unwrap_err().contains("guessed of numbers alone"));
        assert_eq!(said(&writes, &named), Ok(false));
        // Few requests may be anything; a mixture of MQSim's is believed, and called a guess.
        assert_eq!(said("1 0 0 8 0\n1 0 0 8 0\n", &plain), Ok(true));
        let good = lines(&|i| format!("{} 0 {} 8 {}\n", i * 10_000, i * 8, i % 2));
        assert_eq!((said(&good, &plain), said(&good, &named)), (Ok(true), Ok(false)));
    }

    #[test]
    fn a_fraction_of_a_whole_unit_is_asked_about() {
        let said = |text: &str, reading: &Reading| {
            let source = bundled(text.as_bytes().to_vec());
            scan(&source, reading).map(|s| s.chosen().last_ns).map_err(|e| e.to_string())
        };
        let plain = Reading::default();
        let format = |format| Reading { format: Some(format), ..plain };
        let disksim = "1.295331 0 39544 16 0\n1.585076 0 140472 8 1\n";
        let why = said(disksim, &plain).unwrap_err();
        assert!(why.contains("--format disksim") && why.contains("MiDAS"), "{why}");
        assert_eq!(said(disksim, &format(Format::Disksim)), Ok(1_585_076));
        let why = said(disksim, &format(Format::Mqsim)).unwrap_err();
        assert!(why.contains("t (bundled):1:1") && why.contains("whole nanoseconds"), "{why}");
        let ms = Reading { time_unit: Some(crate::number::MS), ..format(Format::Mqsim) };
        assert_eq!(said(disksim, &ms), Ok(1_585_076));
        let later = "1,R,0,4096,7\n1,W,4096,4096,8.25\n";
        assert!(said(later, &plain).unwrap_err().contains("t (bundled):2:"));
        assert_eq!(said(later, &Reading { take_as_is: true, ..plain }), Ok(8_250));
    }

    #[test]
    fn a_clock_of_32_bits_goes_on_where_it_begins_anew() {
        let at = |i: u64| ((1 << 32) - 20_000 + i * 1_000) % (1 << 32);
        let line = |i: u64| format!("{},0,{},4096,{}\n", at(i), i * 4096, i % 2);
        let text: String = (0..40).map(line).collect();
        let source = bundled(text.into_bytes());
        let us = Some(crate::number::US);
        let said = |unwrap| {
            let reading = Reading { time_unit: us, unwrap, ..Reading::default() };
            scan(&source, &reading).map(|s| s.chosen().duration_ns()).map_err(|e| e.to_string())
        };
        assert!(said(false).unwrap_err().contains("--unwrap"));
        assert_eq!(said(true), Ok(39_000_000));
    }

    /// Whether records come from memory or from the file again is no difference.
    #[test]
    fn kept_and_read_records_are_the_same() {
        let mut s = scan_to_replay(&of(FEW).unwrap().source, &Reading::default(), false).unwrap();
        let all = |s: &Scan| {
            let mut records = s.records(s.devices.find("8,0"), false).unwrap();
            std::iter::from_fn(|| records.advance().unwrap()).collect::<Vec<_>>()
        };
        let kept = all(&s);
        assert!(s.kept.take().is_some());
        assert_eq!(kept, all(&s));
        assert_eq!(kept.len(), 1);
    }

    #[test]
    fn time_that_goes_back_is_counted() {
        let s = of("50 0 0 8 0\n20 0 8 8 0\n60 0 8 8 1\n").unwrap();
        let c = s.chosen();
        assert_eq!((c.backwards, c.backwards_max_ns), (1, 30));
        assert_eq!((c.first_ns, c.last_ns, c.duration_ns()), (Some(20), 60, 40));
    }

    proptest! {
        /// However often, and in which order, it was touched.
        #[test]
        fn places_are_the_units_that_were_touched(
            touched in prop::collection::vec((0u16..3, 0u64..40, 1u64..6, any::<bool>()), 0..200),
            settled in prop::collection::vec(any::<bool>(), 200),
        ) {
            let (mut places, mut units) = (Places::default(), std::collections::BTreeSet::new());
            for ((device, first, n, far), settle) in touched.into_iter().zip(settled) {
                let (device, first) = (DeviceId(device), first | u64::from(far) << 41);
                let (offset_bytes, len_bytes) = (first << 12, n << 12);
                places.note(&TraceRecord { device, offset_bytes, len_bytes, ..TraceRecord::EMPTY });
                units.extend((first..first + n).map(|unit| (device, unit)));
                if settle {
                    places.settle();
                }
            }
            places.settle();
            prop_assert!(places.iter().eq(units));
        }

        /// Nothing that a file may hold makes the reader panic or run away.
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600), head in 0usize..6) {
            let heads: [&[u8]; 6] = [b"", b"8,0 0 1 0.1 2 Q W 8 + 8\n", b"1 2 3 4 1\n",
                &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], b"  8,0 1 1 0.5 4 "];
            bytes.splice(0..0, heads[head].iter().copied());
            let _ = scan(&bundled(bytes), &Reading::default()).map(|s| s.chosen().requests());
        }

        /// Neither do lines made of the alphabet of traces.
        #[test]
        fn arbitrary_words_never_panic(words in prop::collection::vec("[0-9,.+\\[\\]QDCRWFSNMm ]{0,12}", 0..40)) {
            let text = format!("8,0 0 1 0.1 2 Q W 8 + 8\n{}", words.join(" ").replace("  ", "\n"));
            let _ = scan(&bundled(text.into_bytes()), &Reading::default()).map(|s| s.chosen().requests());
        }
    }
}
