//! A trace while it is recorded.
//!
//! Owns: the thread that writes the file, what is on its way to it, the order of records. Promises:
//! records are written in the order in which requests were made, each with the time that it took,
//! unless more than [`OPEN_MAX`] came after it before it ended; memory is bounded: who is faster
//! than the file waits for it, and how often is told; the file has its name when it is whole
//! (`flashlane_base::fresh`). Never: looks at a clock.

use super::carries::Shaper;
use super::writer::Writer;
use crate::device::DeviceId;
use crate::format::Format;
use crate::record::{TraceOp, TraceRecord};
use flashlane_base::fresh::{Fresh, Unmade, only_files};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Requests that are remembered until one before them ends.
pub const OPEN_MAX: usize = 1 << 16;
/// Records that go to the thread together, and contents in bytes, at most.
const BATCH_RECORDS: usize = 1 << 12;
const BATCH_BYTES: usize = 4 << 20;
/// Batches on their way.
const BATCHES: usize = 8;

/// What is recorded, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Take {
    pub to: PathBuf,
    /// [`Format::Parquet`] or [`Format::Blkparse`].
    pub format: Format,
    /// Bytes whose content is recorded when they are written; the own format only.
    pub contents: Vec<Range<u64>>,
}

/// Why nothing is recorded, or not to the end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    #[error("{format} is not recorded: record parquet or blkparse, and `trace convert` it")]
    Format { format: Format },
    #[error("{format} has no room for contents: record parquet")]
    Contents { format: Format },
    #[error("cannot record to {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot record to {}: {source}", path.display())]
    Place { path: PathBuf, source: Unmade },
}

/// What a recording came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recorded {
    pub to: PathBuf,
    pub requests: u64,
    /// Requests whose end was not seen: under way when it ended, or longer than [`OPEN_MAX`] others.
    pub unended: u64,
    /// Requests whose content is there.
    pub contents: u64,
    /// How often requests waited for the file.
    pub waits: u64,
}

impl std::fmt::Display for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} requests recorded", self.to.display(), self.requests)?;
        let rest = [
            (self.contents, "with their content"),
            (self.unended, "without an end"),
            (self.waits, "times the requests waited for the file"),
        ];
        let mut rest = rest.iter().filter(|(n, _)| *n > 0);
        rest.try_for_each(|(n, what)| write!(f, ", {n} {what}"))
    }
}

/// A record on its way, and what it wrote.
type Row = (TraceRecord, Option<Box<[u8]>>);

/// A request that was made: its place among all.
#[derive(Clone, Copy, Debug)]
pub struct Ticket(u64);

struct Open {
    row: Row,
    ended: bool,
}

/// A recording that goes on.
pub struct Recording {
    take: Take,
    /// Requests from the first that has not ended on.
    open: VecDeque<Open>,
    /// The place of the first of them.
    first: u64,
    batch: Vec<Row>,
    batch_bytes: usize,
    to: SyncSender<Vec<Row>>,
    /// The file, until it is whole.
    file: Fresh,
    thread: JoinHandle<io::Result<()>>,
    sums: Recorded,
    /// The thread takes nothing more: it says why at the end.
    is_broken: bool,
}

impl Recording {
    /// Begins one of devices with these names. A file of that name is replaced when it ends.
    ///
    /// # Errors
    /// The format has no room for it, or the file can't be made.
    pub fn begin(take: Take, names: &[String]) -> Result<Recording, RecordError> {
        let thread = || std::thread::Builder::new().name("record".into());
        Recording::begin_on(take, names, |work| thread().spawn(work))
    }

    fn begin_on(
        take: Take,
        names: &[String],
        spawn: impl FnOnce(Work) -> io::Result<JoinHandle<io::Result<()>>>,
    ) -> Result<Recording, RecordError> {
        let format = take.format;
        match format {
            Format::Parquet => {}
            Format::Blkparse if take.contents.is_empty() => {}
            Format::Blkparse => return Err(RecordError::Contents { format }),
            _ => return Err(RecordError::Format { format }),
        }
        let failed = |source| RecordError::Io { path: take.to.clone(), source };
        // A pipe takes no recording: its order is known when it ends, and a stop must not wait for
        // a reader.
        let file = Fresh::begin(&take.to, only_files)
            .map_err(|source| RecordError::Place { path: take.to.clone(), source })?;
        let contents = !take.contents.is_empty();
        let written = file.file().try_clone().map_err(failed)?;
        let writer = Writer::with_contents(written, format, names, contents).map_err(failed)?;
        let (to, from) = sync_channel(BATCHES);
        let work = Box::new(move || write(writer, format, &from));
        let thread = spawn(work).map_err(failed)?;
        let sums = Recorded { to: take.to.clone(), requests: 0, unended: 0, contents: 0, waits: 0 };
        Ok(Recording {
            take,
            open: VecDeque::new(),
            first: 0,
            batch: Vec::new(),
            batch_bytes: 0,
            to,
            file,
            thread,
            sums,
            is_broken: false,
        })
    }

    /// The file that it goes to.
    pub fn to(&self) -> &Path {
        &self.take.to
    }

    /// Whether the content of these bytes is wanted.
    pub fn wants(&self, bytes: &Range<u64>) -> bool {
        self.take.contents.iter().any(|want| want.start < bytes.end && bytes.start < want.end)
    }

    /// A request is made. `device` is one of the names.
    pub fn made(&mut self, record: TraceRecord, device: u16, content: Option<Box<[u8]>>) -> Ticket {
        self.sums.requests += 1;
        self.sums.contents += u64::from(content.is_some());
        let record = TraceRecord { device: DeviceId(device), latency_ns: None, ..record };
        self.open.push_back(Open { row: (record, content), ended: false });
        if self.open.len() > OPEN_MAX {
            self.pass_on();
        }
        Ticket(self.first + self.open.len() as u64 - 1)
    }

    /// A request ended; without a time nobody knows when.
    pub fn ended(&mut self, Ticket(place): Ticket, at_ns: Option<u64>) {
        let index = place.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        // It may have been passed on before.
        let Some(open) = index.and_then(|index| self.open.get_mut(index)) else { return };
        open.ended = true;
        open.row.0.latency_ns = at_ns.map(|ns| ns.saturating_sub(open.row.0.ts_ns));
        while self.open.front().is_some_and(|open| open.ended) {
            self.pass_on();
        }
    }

    /// The first of those that are open goes to the file.
    fn pass_on(&mut self) {
        let Some(Open { row, .. }) = self.open.pop_front() else { return };
        self.first += 1;
        self.sums.unended += u64::from(row.0.latency_ns.is_none());
        self.batch_bytes += row.1.as_ref().map_or(0, |content| content.len());
        self.batch.push(row);
        if self.batch.len() >= BATCH_RECORDS || self.batch_bytes >= BATCH_BYTES {
            self.send();
        }
    }

    fn send(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let sent = match self.to.try_send(batch) {
            Err(TrySendError::Full(batch)) => {
                self.sums.waits += 1;
                self.to.send(batch).is_ok()
            }
            tried => tried.is_ok(),
        };
        self.is_broken |= !sent;
    }

    /// Whether the file takes nothing more; [`Recording::end`] says why.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Ends it. The file is whole and has its name.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn end(mut self) -> Result<Recorded, RecordError> {
        while !self.open.is_empty() {
            self.pass_on();
        }
        self.send();
        let Recording { take: Take { to: path, .. }, to, file, thread, sums, .. } = self;
        drop(to);
        let done = thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread ended")));
        match done {
            Ok(()) => file.commit(only_files),
            Err(e) => Err(e.into()),
        }
        .map_err(|source| RecordError::Place { path, source })?;
        Ok(sums)
    }
}

/// What the thread does.
type Work = Box<dyn FnOnce() -> io::Result<()> + Send>;

fn write(mut writer: Writer<File>, format: Format, batches: &Receiver<Vec<Row>>) -> io::Result<()> {
    let mut shaper = Shaper::new(format.carries(), 0);
    let mut shaped = Vec::new();
    while let Ok(batch) = batches.recv() {
        for (record, content) in batch {
            shaped.clear();
            shaper.shape(&record, &mut shaped);
            for piece in &shaped {
                let content = content.as_deref().filter(|_| piece.op == TraceOp::Write);
                writer.write_with(piece, content)?;
            }
        }
    }
    writer.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Reading;
    use crate::scan::scan_to_replay;
    use crate::source::TraceSource;

    fn take(to: PathBuf, format: Format) -> Take {
        Take { to, format, contents: Vec::new() }
    }

    fn write_of(n: u64) -> TraceRecord {
        let (ts_ns, offset_bytes) = (n * 1000, n * 8192);
        TraceRecord {
            ts_ns,
            op: TraceOp::Write,
            offset_bytes,
            len_bytes: 8192,
            ..TraceRecord::EMPTY
        }
    }

    fn read_back(path: &Path) -> Vec<TraceRecord> {
        let source = TraceSource::File(path.into());
        let scan = scan_to_replay(&source, &Reading::default(), false).expect("it is whole");
        let mut records = scan.records(None, false).expect("as before");
        std::iter::from_fn(|| records.advance().expect("as before")).collect()
    }

    /// In the order in which they were made, whatever the order of their ends.
    #[test]
    fn records_are_in_order_and_have_their_times() {
        let folder = tempfile::tempdir().expect("a folder");
        for (format, name) in [(Format::Parquet, "t.parquet"), (Format::Blkparse, "t.blkparse")] {
            let path = folder.path().join(name);
            let names = ["8,0".to_string(), "8,16".to_string()];
            let mut recording = Recording::begin(take(path.clone(), format), &names).expect("room");
            let tickets: Vec<Ticket> =
                (0..4).map(|n| recording.made(write_of(n), (n % 2) as u16, None)).collect();
            for n in [2, 0, 1] {
                recording.ended(tickets[n], Some(5000 + n as u64));
            }
            assert!(!path.exists(), "it is not whole yet");
            let sums = recording.end().expect("it is written");
            assert_eq!((sums.requests, sums.unended, sums.waits), (4, 1, 0));
            let back = read_back(&path);
            assert_eq!(back.len(), 4, "{format}");
            for (n, record) in (0..).zip(&back) {
                assert_eq!((record.ts_ns, record.offset_bytes), (n * 1000, n * 8192));
            }
            if format == Format::Parquet {
                let took: Vec<_> = back.iter().map(|r| r.latency_ns).collect();
                assert_eq!(took, [Some(5000), Some(4001), Some(3002), None]);
            }
        }
    }

    #[test]
    fn where_no_thread_can_be_made_nothing_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let take = take(folder.path().join("t.parquet"), Format::Parquet);
        let none = |_: Work| Err(io::ErrorKind::WouldBlock.into());
        let begun = Recording::begin_on(take, &["d".into()], none);
        assert!(matches!(begun, Err(RecordError::Io { .. })));
        let left = std::fs::read_dir(folder.path()).expect("it is there").count();
        assert_eq!(left, 0, "files that nobody writes");
    }

    /// One that never ends keeps no more than so many others.
    #[test]
    fn a_request_that_hangs_is_passed_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.parquet");
        let mut recording =
            Recording::begin(take(path.clone(), Format::Parquet), &["d".into()]).expect("room");
        let hung = recording.made(write_of(0), 0, None);
        for n in 1..OPEN_MAX as u64 + 10 {
            let ticket = recording.made(write_of(n), 0, None);
            recording.ended(ticket, Some(n * 1000 + 7));
        }
        assert!(recording.open.is_empty());
        recording.ended(hung, Some(1));
        let sums = recording.end().expect("it is written");
        assert_eq!((sums.requests, sums.unended), (OPEN_MAX as u64 + 10, 1));
        assert_eq!(read_back(&path).len(), OPEN_MAX + 10);
    }

    #[test]
    fn contents_are_kept_where_they_are_wanted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.parquet");
        let contents = std::iter::once(8192..8193).collect();
        let take = Take { contents, ..take(path.clone(), Format::Parquet) };
        let mut recording = Recording::begin(take, &["d".into()]).expect("room");
        for n in 0..3u64 {
            let record = write_of(n);
            let bytes = record.offset_bytes..record.offset_bytes + record.len_bytes;
            let content = recording.wants(&bytes).then(|| vec![n as u8; 8192].into());
            let ticket = recording.made(record, 0, content);
            recording.ended(ticket, Some(n * 1000));
        }
        assert_eq!(recording.end().expect("it is written").contents, 1);
        let source = TraceSource::File(path.clone());
        let scan = scan_to_replay(&source, &Reading::default(), false).expect("a trace");
        let mut records = scan.records(None, true).expect("a trace");
        let mut all = Vec::new();
        while records.advance().expect("a trace").is_some() {
            all.push(records.content().map(|bytes| bytes.to_vec()));
        }
        assert_eq!(all, [None, Some(vec![1; 8192]), None]);
        assert_eq!(read_back(&path).len(), 3, "as a trace it is one of many");
    }

    #[test]
    fn what_cannot_be_recorded_is_refused_before_a_file_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t");
        let contents = Take {
            contents: std::iter::once(0..1).collect(),
            ..take(path.clone(), Format::Blkparse)
        };
        let nowhere = take(folder.path().join("no/such"), Format::Parquet);
        for (take, why) in [
            (take(path, Format::Msr), "trace convert"),
            (contents, "record parquet"),
            (nowhere, "No such file"),
        ] {
            let refused = Recording::begin(take, &["d".into()]).map(|_| ()).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
}
