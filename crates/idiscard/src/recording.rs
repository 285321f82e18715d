//! Adds to a recording the discards that the layer would have sent.
//!
//! Owns: the replay of a recording through the layer, on a drive that knows what the recording says; the recording that
//! comes of it. Promises: the records stay as they are, in their order, with discards between them at the times at
//! which the layer would have sent them; of contents it keeps those of metadata, unless others are
//! wanted; memory is that of the requests under way, of the discards, and of the places of metadata. Never: takes a write of which the content was not recorded
//! for one that says anything.

use crate::layer::Idiscard;
use crate::{Ghosts, IDISCARD};
use bytes::Bytes;
use flashlane_base::{Lba, Ns, Runs, SECTOR_BYTES};
use flashlane_ext4::SECTOR;
use flashlane_ftl::block::{
    BlockDev, BlockError, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Sectors, Started,
};
use flashlane_ftl::layer::{Counted, Kind, Layer, Stop};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Cx, Stalled, Virtual};
use flashlane_trace::layout::find_device;
use flashlane_trace::pair::Paired;
use flashlane_trace::progress::Progress;
use flashlane_trace::writer::Writer;
use flashlane_trace::{DeviceId, Format, LayoutError, Scan, TraceError, TraceOp, TraceRecord};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;

/// Sectors of the drive that is played: more than any recording has.
const CAPACITY: u64 = 1 << 32;
/// Records between two looks at the watcher.
const WATCH_EVERY: usize = 1 << 12;

/// Which contents the new recording has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// Of sectors in which there is metadata of a file system: of a write that has others, too, these are zeros.
    #[default]
    Metadata,
    All,
    None,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Adding<'a> {
    /// What is discarded.
    pub ghosts: Ghosts,
    /// Device of the recording; the only one without it.
    pub device: Option<&'a str>,
    pub keeps: Keeps,
    /// Which times of the recording the new one has; all of it is played.
    pub times: Range<u64>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Records of the recording.
    pub records: u64,
    /// Discards and flushes that were added.
    pub discards: u64,
    pub flushes: u64,
    /// Sectors of these discards.
    pub sectors: u64,
    /// Writes whose content the new recording has, in whole or in part.
    pub contents: u64,
    /// What the layer has counted.
    pub counted: Vec<Counted>,
    /// What the layer has said.
    pub said: Vec<String>,
}

/// Why discards can't be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Device(#[from] LayoutError),
    #[error(
        "{file} has no contents, and what is dead is told by them: record with \
         `flashlane trace record --content all`"
    )]
    NoContents { file: String },
    #[error("{file} has {devices} devices: choose one with --device, for example `{example}`")]
    Devices { file: String, devices: usize, example: String },
    #[error("what the recording says can't be kept in a file of its own: {0}")]
    Kept(io::Error),
    #[error("cannot write: {0}")]
    Write(io::Error),
    #[error("the replay does not go on: {0}")]
    Stalled(#[from] Stalled),
}

/// Adds discards to a recording and puts it out.
///
/// # Errors
/// It has no contents, can't be read to its end, or what comes of it can't be written.
pub fn add_discards<W: Write + Send>(
    scan: &Scan,
    what: &Adding<'_>,
    monitor: &dyn Progress,
    open: impl FnOnce() -> io::Result<W>,
) -> Result<(W, Added), AddError> {
    let file = scan.source.name();
    if !scan.has_contents {
        return Err(AddError::NoContents { file });
    }
    let devices = &scan.chosen().devices;
    let device = match what.device {
        Some(name) => find_device(scan, name)?,
        None => match devices.keys().next() {
            Some(first) if devices.len() == 1 => *first,
            first => {
                let example = first.map(|id| scan.devices.name(*id)).unwrap_or_default();
                return Err(AddError::Devices { file, devices: devices.len(), example });
            }
        },
    };
    let found = play(scan, device, what.ghosts, monitor)?;
    let mut out = Out {
        writer: Writer::with_contents(
            open().map_err(AddError::Write)?,
            Format::Parquet,
            &[scan.devices.name(device)],
            what.keeps != Keeps::None,
        )
        .map_err(AddError::Write)?,
        keeps: what.keeps,
        times: what.times.clone(),
        metadata: found.metadata,
        added: Added { counted: found.counted, said: found.said, ..Added::default() },
    };
    let mut sent = found.sent.into_iter().peekable();
    let mut records = scan.timed(Some(device), true)?;
    while let Some(record) = records.advance()? {
        while let Some(one) = sent.next_if(|one| one.ts_ns < record.ts_ns) {
            out.sent(&one)?;
        }
        out.record(record, records.content())?;
        watch(scan, "write", out.added.records, monitor)?;
    }
    sent.try_for_each(|one| out.sent(&one))?;
    let writer = out.writer.finish().map_err(AddError::Write)?;
    Ok((writer, out.added))
}

fn watch(scan: &Scan, stage: &str, done: u64, monitor: &dyn Progress) -> Result<(), AddError> {
    if done.is_multiple_of(WATCH_EVERY as u64) {
        monitor.progress(stage, done, Some(scan.chosen().requests()));
        if monitor.interrupted() {
            return Err(TraceError::Interrupted { file: scan.source.name() }.into());
        }
    }
    Ok(())
}

/// The new recording.
struct Out<W: Write + Send> {
    writer: Writer<W>,
    keeps: Keeps,
    times: Range<u64>,
    metadata: Runs,
    added: Added,
}

impl<W: Write + Send> Out<W> {
    fn record(&mut self, record: TraceRecord, content: Option<Bytes>) -> Result<(), AddError> {
        if !self.times.contains(&record.ts_ns) {
            return Ok(());
        }
        let content = content.and_then(|content| self.kept(record.offset_bytes, content));
        self.added.records += 1;
        self.added.contents += u64::from(content.is_some());
        let record = TraceRecord { device: DeviceId(0), ..record };
        self.writer.write_with(&record, content.as_deref()).map_err(AddError::Write)
    }

    /// What stays of the content of a write.
    fn kept(&self, offset: u64, content: Bytes) -> Option<Bytes> {
        let unit = SECTOR as u64;
        match self.keeps {
            Keeps::All => return Some(content),
            Keeps::None => return None,
            Keeps::Metadata => {}
        }
        let (end, mut kept) = (offset + content.len() as u64, vec![0; content.len()]);
        let mut any = false;
        for run in self.metadata.meeting(offset / unit..end.div_ceil(unit)) {
            let from = (run.start * unit).max(offset) - offset;
            let to = (run.end * unit).min(end) - offset;
            let (from, to) = (from as usize, to as usize);
            kept[from..to].copy_from_slice(&content[from..to]);
            any = true;
        }
        any.then(|| kept.into())
    }

    fn sent(&mut self, one: &TraceRecord) -> Result<(), AddError> {
        if !self.times.contains(&one.ts_ns) {
            return Ok(());
        }
        match one.op {
            TraceOp::Flush => self.added.flushes += 1,
            _ => {
                self.added.discards += 1;
                self.added.sectors += one.len_bytes / SECTOR as u64;
            }
        }
        self.writer.write_with(one, None).map_err(AddError::Write)
    }
}

/// What a replay has found.
struct Played {
    /// What the layer has sent, by time.
    sent: Vec<TraceRecord>,
    /// Sectors that said something of a file system at some time.
    metadata: Runs,
    counted: Vec<Counted>,
    said: Vec<String>,
}

/// Replays a recording, at its times, on a drive under the layer.
fn play(
    scan: &Scan,
    device: DeviceId,
    ghosts: Ghosts,
    monitor: &dyn Progress,
) -> Result<Played, AddError> {
    let drive = Arc::new(Drive::new().map_err(AddError::Kept)?);
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, below) = (run.cx(), drive.clone());
    let clock = cx.clone();
    let layer = run.run(async move { Idiscard::start_on(&clock, below, ghosts).await })?;
    let first_ns = scan.chosen().first_ns.unwrap_or(0);
    {
        let mut state = drive.state.lock();
        (state.base, state.first_ns) = (cx.now(), first_ns);
    }
    let player = Rc::new(Player {
        cx: cx.clone(),
        drive: drive.clone(),
        layer: layer.clone(),
        base: cx.now(),
        first_ns,
        open: Cell::new(0),
        marks: Cell::new(0),
    });
    let mut records = scan.timed(Some(device), true)?;
    let (mut said, mut done) = (Vec::new(), 0);
    loop {
        let some = some_of(&mut records)?;
        if some.is_empty() {
            break;
        }
        done += some.len() as u64;
        let playing = player.clone();
        run.run(async move { playing.play(some).await })?;
        said.extend(Layer::said(&*layer));
        watch(scan, "replay", done - done % WATCH_EVERY as u64, monitor)?;
    }
    let (ending, read) = (player.clone(), layer.clone());
    let pages = run.run(async move {
        ending.end().await;
        read.census_reads(&ending.cx).await
    })?;
    said.extend(Layer::said(&*layer));
    let mut all = drive.state.lock();
    if let Some(error) = all.failed.take() {
        return Err(AddError::Kept(error));
    }
    let mut metadata = std::mem::take(&mut all.metadata);
    pages.into_iter().for_each(|sector| metadata.insert(sector..sector + 1));
    let sent = std::mem::take(&mut all.sent);
    Ok(Played { sent, metadata, counted: layer.counted(), said })
}

fn some_of(records: &mut Paired) -> Result<Vec<(TraceRecord, Option<Bytes>)>, TraceError> {
    let (mut some, mut bytes) = (Vec::new(), 0);
    while some.len() < WATCH_EVERY && bytes < 64 << 20 {
        let Some(record) = records.advance()? else { break };
        let content = records.content();
        bytes += content.as_ref().map_or(0, Bytes::len);
        some.push((record, content));
    }
    Ok(some)
}

struct Player {
    cx: Cx,
    drive: Arc<Drive>,
    layer: Arc<Idiscard>,
    base: Ns,
    first_ns: u64,
    /// Requests under way.
    open: Cell<u64>,
    /// Changes of what is looked at that were seen.
    marks: Cell<u64>,
}

impl Player {
    async fn play(self: &Rc<Player>, some: Vec<(TraceRecord, Option<Bytes>)>) {
        for (record, content) in some {
            let since = record.ts_ns.saturating_sub(self.first_ns).min(u64::MAX / 2);
            self.cx.sleep_until(self.base + Ns::from_ns(since)).await;
            self.open.set(self.open.get() + 1);
            let me = self.clone();
            self.cx.spawn(async move {
                me.request(&record, content).await;
                me.open.set(me.open.get() - 1);
                me.note_places();
            });
        }
    }

    /// A record as a request for whole sectors.
    async fn request(&self, record: &TraceRecord, content: Option<Bytes>) {
        let unit = SECTOR as u64;
        let end = record.offset_bytes.saturating_add(record.len_bytes);
        let exact = record.offset_bytes.is_multiple_of(unit) && end.is_multiple_of(unit);
        let (op, first, last) = match record.op {
            TraceOp::Read => (BlockOp::Read, record.offset_bytes / unit, end.div_ceil(unit)),
            TraceOp::Write => (BlockOp::Write, record.offset_bytes / unit, end.div_ceil(unit)),
            TraceOp::Discard => (BlockOp::Discard, record.offset_bytes.div_ceil(unit), end / unit),
            TraceOp::Flush => (BlockOp::Flush, 0, 0),
        };
        let last = last.min(CAPACITY);
        if record.op != TraceOp::Flush && first >= last {
            return;
        }
        // A read says nothing, and a flush before a write is a request of its own.
        if op == BlockOp::Read {
            return;
        }
        if record.preflush {
            self.send(Io::flush(), None).await;
        }
        let mut at = first;
        loop {
            let n = (last - at).min(u64::from(u32::MAX)) as u32;
            let bytes = content.as_ref().filter(|_| exact);
            let zeros;
            let io = match op {
                BlockOp::Write => {
                    let memory = match bytes {
                        Some(bytes) => &bytes[..],
                        None => {
                            zeros = vec![0; n as usize * SECTOR];
                            &zeros[..]
                        }
                    };
                    Io::write(Lba::new(at), n, record.fua, memory)
                }
                BlockOp::Discard => Io::discard(Lba::new(at), n),
                BlockOp::Flush | BlockOp::Read => Io::flush(),
            };
            let known = op != BlockOp::Write || bytes.is_some();
            let latency = Ns::from_ns(record.latency_ns.unwrap_or(0).min(u64::MAX / 2));
            self.send(io, Some((latency, known))).await;
            at += u64::from(n);
            if at >= last {
                break;
            }
        }
    }

    async fn send<'a>(&'a self, io: Io<'a>, how: Option<(Ns, bool)>) {
        let key = (io.op as u8, io.lba.get(), io.sectors);
        let how = how.unwrap_or((Ns::ZERO, true));
        self.drive.state.lock().coming.entry(key).or_default().push_back(how);
        // What can't be known is told to the layer as a failure.
        let _ = self.layer.start(&self.cx, io).await;
    }

    /// What is looked at now is metadata.
    fn note_places(&self) {
        let marks = self.layer.marks();
        if self.marks.replace(marks) != marks {
            let mut state = self.drive.state.lock();
            self.layer.looked_at().into_iter().for_each(|run| state.metadata.insert(run));
        }
    }

    /// All requests end, and the layer with them.
    async fn end(&self) {
        while self.open.get() > 0 {
            self.cx.sleep(Ns::from_ms(1)).await;
        }
        let stopped = self.layer.clone().stop(&self.cx, Stop::Quiet).await;
        debug_assert!(stopped.is_ok());
        self.note_places();
    }
}

/// A drive that holds what a recording says.
struct Drive {
    info: BlockInfo,
    state: Mutex<Kept>,
}

/// Operation, first sector and sectors of a request of the recording.
type Key = (u8, u64, u32);

struct Kept {
    /// Sectors by their place.
    file: File,
    /// Sectors of which it is known what they hold.
    known: Runs,
    /// Sectors that hold something.
    holds: Runs,
    /// Requests of the recording that are on their way: how long each takes, and whether its content is known.
    coming: BTreeMap<Key, VecDeque<(Ns, bool)>>,
    /// What came that is none of these.
    sent: Vec<TraceRecord>,
    metadata: Runs,
    failed: Option<io::Error>,
    /// When the replay began, and the first record's time.
    base: Ns,
    first_ns: u64,
}

impl Drive {
    fn new() -> io::Result<Drive> {
        let info =
            BlockInfo { capacity: CAPACITY, content_bytes: SECTOR_BYTES, layer: IDISCARD.name() };
        let state = Kept {
            file: tempfile::tempfile()?,
            known: Runs::default(),
            holds: Runs::default(),
            coming: BTreeMap::new(),
            sent: Vec::new(),
            metadata: Runs::default(),
            failed: None,
            base: Ns::ZERO,
            first_ns: 0,
        };
        Ok(Drive { info, state: Mutex::new(state) })
    }

    async fn serve(&self, cx: &Cx, mut io: Io<'_>) -> BlockResult {
        let key = (io.op as u8, io.lba.get(), io.sectors);
        let how = {
            let mut state = self.state.lock();
            let how = state.coming.get_mut(&key).and_then(VecDeque::pop_front);
            if state.coming.get(&key).is_some_and(VecDeque::is_empty) {
                state.coming.remove(&key);
            }
            how
        };
        let (latency, known) = how.unwrap_or((Ns::ZERO, true));
        cx.sleep(latency).await;
        let mut state = self.state.lock();
        if how.is_none() {
            let since = cx.now().saturating_sub(state.base);
            state.note(since, &io);
        }
        state.apply(&mut io, known)
    }
}

impl Kept {
    /// A request of the layer's own, so long after the first one of the recording.
    fn note(&mut self, since: Ns, io: &Io<'_>) {
        let op = match io.op {
            BlockOp::Discard => TraceOp::Discard,
            BlockOp::Flush => TraceOp::Flush,
            BlockOp::Read | BlockOp::Write => return,
        };
        self.sent.push(TraceRecord {
            ts_ns: self.first_ns.saturating_add(since.as_ns()),
            op,
            offset_bytes: io.lba.get() * SECTOR as u64,
            len_bytes: u64::from(io.sectors) * SECTOR as u64,
            latency_ns: Some(0),
            ..TraceRecord::EMPTY
        });
    }

    fn apply(&mut self, io: &mut Io<'_>, known: bool) -> BlockResult {
        let sectors = io.lba.get()..io.lba.get() + u64::from(io.sectors);
        let unknown = || Err(BlockError::Uncorrectable(vec![Lba::new(sectors.start)]));
        match &mut io.payload {
            Payload::Read(to) => {
                for (i, at) in (0..).zip(sectors.clone()) {
                    if !self.known.contains(at) {
                        return unknown();
                    }
                    let out = to.sector(i, SECTOR);
                    out.fill(0);
                    if self.holds.contains(at) {
                        let read = self.file.read_exact_at(out, at * SECTOR as u64);
                        read.unwrap_or_else(|error| self.failed = Some(error));
                    }
                }
            }
            Payload::Write(_) if !known => {
                self.known.remove(sectors.clone());
                self.holds.insert(sectors.clone());
                return unknown();
            }
            Payload::Write(from) => {
                self.write(sectors.clone(), from);
                self.known.insert(sectors.clone());
                self.holds.insert(sectors);
            }
            Payload::None => {
                self.known.insert(sectors.clone());
                self.holds.remove(sectors);
            }
        }
        Ok(())
    }

    fn write(&mut self, sectors: Range<u64>, from: &Sectors<'_>) {
        for (at, bytes) in sectors.zip(from.from(0, SECTOR)) {
            if let Err(error) = self.file.write_all_at(bytes, at * SECTOR as u64) {
                self.failed = Some(error);
            }
        }
    }
}

impl BlockDev for Drive {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(self.serve(cx, io))
    }

    fn expect(&self, _: BlockOp, _: Lba) {}

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        let (at, end) = (lba.get(), lba.get().saturating_add(most).min(CAPACITY));
        let state = self.state.lock();
        match state.holds.meeting(at..end).next() {
            Some(run) if run.start <= at => Extent { sectors: run.end.min(end) - at, holds: true },
            Some(run) => Extent { sectors: run.start - at, holds: false },
            None => Extent { sectors: end - at, holds: false },
        }
    }
}
