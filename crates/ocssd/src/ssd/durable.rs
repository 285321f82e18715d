//! A device whose chunks outlive the process: commits, and coming back.
//!
//! Owns: what of a device is in its image's table, the moment of a commit, the return to the last
//! one. Promises: a commit is the device at one moment, with everything that it had accepted then
//! carried out; it contains no part of a command's unit; when nothing changed a flush costs nothing.
//! Reads alone change nothing: their counts go along with the next commit. Never: waits for the medium; where a
//! thread commits ([`Desk`]), a flush on a real core does not wait for the host either.
//!
//! Order of locks: the table, then all channels in order, then marks and targets. Nobody who has a
//! channel takes the table.

use super::inject::KEEPS_FAULTS;
use super::{Chan, Command, Ssd};
use crate::device::{ChunkState, Op, Request, Status, Ticket};
use crate::image::{self, CreateImage, HAS_MARK, Header, ImageError, OpenImage, VERSION, Version};
use crate::spec::{DeviceSpec, FaultPlan};
use flashlane_base::{Ns, Rng, mutant};
use flashlane_media::cells::{Cells, Lost};
use flashlane_media::counters::Counters;
use flashlane_media::host::{DiskFile, HostFile};
use flashlane_media::image::slots::Slots;
use flashlane_media::image::table::{ROW_BYTES, Row, Table};
use flashlane_media::image::{HOLDER_AT, ImageFault, Layout, Shared, TARGETS_MAX};
use flashlane_media::store::{Elsewhere, Store, Trouble};
use flashlane_rt::sync::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Causes whose counters are in the rows of a channel.
const FIRST_CAUSES: usize = 10;
/// From this version on those of others are kept, too.
const KEEPS_FURTHER: (u16, u16) = (2, 1);
/// From this version on erases and counters are kept per cell mode.
const KEEPS_MODES: (u16, u16) = (2, 2);

/// Device time that no device comes near, 146 years: an image that says more is none of ours.
const CLOCK_MAX: u64 = 1 << 62;

/// The image that a device lives in.
pub(super) struct Durable {
    header: Header,
    shared: Arc<Shared>,
    disk: Option<Arc<DiskFile>>,
    desk: Mutex<Desk>,
    /// Something changed since the last commit.
    changed: AtomicBool,
    /// The medium took back what the last commit names: nothing is programmed before the next.
    overdue: AtomicBool,
    closed: AtomicBool,
    /// Latest device time seen.
    clock: AtomicU64,
    life: Life,
    targets: Mutex<Vec<u8>>,
}

/// Where commits are made: the table, or the thread that has it.
struct Desk {
    /// Not here while the thread commits.
    table: Option<Table>,
    /// Commits that have ended, and which of them have failed.
    ended: u64,
    failed: BTreeSet<u64>,
    /// Of the commit that is under way.
    left: Left,
    /// Makes commits that flushes wait for, where that is asked for.
    writer: Option<Writer>,
}

/// A thread that commits.
struct Writer {
    /// What is to be committed. The thread ends when this goes.
    jobs: Option<Sender<Job>>,
    tried: Receiver<Tried>,
    thread: Option<JoinHandle<()>>,
}

/// A commit to be made.
type Job = (Table, Vec<(u32, Row)>);

/// A commit that was tried.
type Tried = (Table, Result<(), ImageFault>);

/// Rows of the table that have changed, by their number.
type Rows = Result<Vec<(u32, Row)>, ImageFault>;

/// What goes with a commit, and comes back when it fails: slots that were left before it, and whose rows it saw.
#[derive(Default)]
struct Left {
    freed: Vec<u32>,
    touched: Vec<Vec<bool>>,
}

impl Desk {
    fn new(table: Table, behind: bool) -> Desk {
        let writer = if behind { Writer::begin() } else { None };
        let (table, failed, left) = (Some(table), BTreeSet::new(), Left::default());
        Desk { table, ended: 0, failed, left, writer }
    }

    /// The table, which is here.
    fn table(&mut self) -> &mut Table {
        self.table.as_mut().expect("whoever needs it waits for it first")
    }

    /// Has the thread commit.
    fn send(&mut self, rows: Vec<(u32, Row)>, left: Left) {
        let (Some(writer), Some(table)) = (&self.writer, self.table.take()) else { return };
        self.left = left;
        let sent = writer.jobs.as_ref().is_some_and(|jobs| jobs.send((table, rows)).is_ok());
        assert!(sent, "the thread goes on until it is told");
    }

    /// What the thread was asked to commit, if it has tried since.
    fn take_back(&mut self, waits: bool) -> Option<Tried> {
        let writer = self.writer.as_ref().filter(|_| self.table.is_none())?;
        match waits {
            true => writer.tried.recv().ok(),
            false => writer.tried.try_recv().ok(),
        }
    }
}

impl Writer {
    /// Without a thread commits are made by who needs them.
    fn begin() -> Option<Writer> {
        let (jobs, theirs) = channel::<Job>();
        let (done, tried) = channel();
        let thread = std::thread::Builder::new().name("image commits".into());
        let thread = thread.spawn(move || {
            for (mut table, rows) in theirs {
                let result = table.commit(rows);
                // Nobody may be there any more who wants it.
                let _ = done.send((table, result));
            }
        });
        thread.ok().map(|thread| Writer { jobs: Some(jobs), tried, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The file is not written any more when its lock is given back.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Durable {
    /// In a file without a name nothing is durable: it goes when it is closed.
    fn must_have_a_name(&self) -> Result<(), ImageFault> {
        match self.disk.as_ref().is_some_and(|disk| disk.is_removed()) {
            true if !mutant!("image.removed-unseen") => Err(ImageFault::io("keep")(
                io::Error::other("the file was removed or replaced while it was in use"),
            )),
            _ => Ok(()),
        }
    }
}

/// What became of the name of an image that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePlace {
    /// The path still leads to it.
    There,
    /// It has another name: it was moved, and everything in it stays durable.
    Moved,
    /// It has no name left: it was removed, or another file took its place. Flushes fail from then
    /// on.
    Removed,
}

/// Counts of a drive's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    power_cycles: u64,
    unsafe_shutdowns: u64,
}

/// What is known of an image.
#[derive(Clone, Debug)]
pub struct ImageInfo {
    /// Format version, (major, minor).
    pub version: (u16, u16),
    pub uuid: [u8; 16],
    pub seed: u64,
    /// It is open for reading only.
    pub read_only: bool,
    pub commits: u64,
    /// How often it was opened for writing.
    pub power_cycles: u64,
    /// How often it was not closed before.
    pub unsafe_shutdowns: u64,
    pub power_cuts: u64,
    /// Device time at the last commit, or later.
    pub clock: Ns,
    /// Bytes of the host's disk that chunks with content take.
    pub slot_bytes: u64,
}

/// Bytes one after the other.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|b| b.iter().rev().fold(0, |n, b| n << 8 | *b as u32))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|b| b.iter().rev().fold(0, |n, b| n << 8 | *b as u64))
    }
}

fn rows_of(numbers: impl IntoIterator<Item = u64>) -> Vec<Row> {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    rows_of_bytes(&bytes)
}

fn rows_of_bytes(bytes: &[u8]) -> Vec<Row> {
    let row = |part: &[u8]| {
        let mut row = [0; ROW_BYTES];
        row[..part.len()].copy_from_slice(part);
        row
    };
    bytes.chunks(ROW_BYTES).map(row).collect()
}

fn wrong(what: impl Into<String>) -> ImageFault {
    ImageFault::Value(what.into())
}

/// A channel's counters, in the order of their fields.
fn counter_fields(c: &mut Counters) -> [&mut u64; 11] {
    [
        &mut c.read_sectors,
        &mut c.early_reads,
        &mut c.erases,
        &mut c.program_failures,
        &mut c.erase_failures,
        &mut c.corrected_bits,
        &mut c.high_ecc,
        &mut c.uncorrectable,
        &mut c.retries,
        &mut c.sent_sectors,
        &mut c.received_sectors,
    ]
}

impl Ssd {
    /// Writes the image of a new device to an empty file, and syncs it. The header comes last: what
    /// was interrupted is no image.
    ///
    /// # Errors
    /// The spec is impossible, or the host failed.
    pub fn create_on(
        file: Arc<dyn HostFile>,
        spec: &DeviceSpec,
        options: &CreateImage,
    ) -> Result<(), ImageError> {
        let uuid = options.uuid.unwrap_or_default();
        let version = image::version_for(spec);
        let header = Header { version, uuid, seed: options.seed, spec: spec.clone() };
        let bytes = header.to_bytes()?;
        let image = Shared {
            file: file.clone(),
            layout: image::layout(spec),
            read_only: false,
            slots: Slots::default(),
        };
        let layout = image.layout;
        let ssd = Ssd::build_on(spec, &OpenImage::default(), options.seed, &Arc::new(image))?;
        ssd.mark_factory_bad();
        Table::create(&*file, &layout, ssd.new_rows(&layout, Ns::ZERO)?)?;
        if !mutant!("image.header-early") {
            file.sync().map_err(ImageFault::io("sync"))?;
        }
        file.write_at(0, &bytes).map_err(ImageFault::io("write"))?;
        file.sync().map_err(ImageFault::io("sync"))?;
        Ok(())
    }

    /// Opens an image in any file; nobody else may have it.
    ///
    /// # Errors
    /// It is no image, damaged, newer, or the host failed. Nothing was written to it.
    pub fn open_on(file: Arc<dyn HostFile>, options: &OpenImage) -> Result<Arc<Ssd>, ImageError> {
        Ssd::open_held(file, None, options)
    }

    pub(crate) fn open_held(
        file: Arc<dyn HostFile>,
        disk: Option<Arc<DiskFile>>,
        options: &OpenImage,
    ) -> Result<Arc<Ssd>, ImageError> {
        let header = Header::read(&*file)?;
        let read_only = options.read_only || header.is_newer();
        let layout = header.layout();
        let mut table = Table::open(file.clone(), layout, header.version >= HAS_MARK)?;
        let taken = taken_slots(&table, &layout)?;
        let end = taken.last().map_or(layout.slots_at(), |last| layout.slot_at(last + 1));
        let len = file.len().map_err(ImageFault::io("measure"))?;
        if len < end {
            return Err(ImageFault::Short { len, needed: end }.into());
        }
        let slots = Slots::new(&taken);
        let shared = Arc::new(Shared { file, layout, read_only, slots });
        let mut ssd = Ssd::build_on(&header.spec, options, header.seed, &shared)?;
        let restored = ssd.restore(table.rows(), &layout, header.version)?;
        // Who only looks meets no injected fault: what is not written back has not happened.
        let kept = !read_only && !options.quiet && !ssd.faults.get_mut().is_empty();
        let armed = !options.faults.is_empty() || kept;
        ssd.armed = AtomicBool::new(armed);
        if !read_only {
            // What a killed process wrote may be in the host's memory only, and is built on now.
            table.settle()?;
            shared.slots.tidy(&*shared.file, &layout).map_err(ImageFault::io("tidy"))?;
        }
        let life = Life {
            power_cycles: restored.life.power_cycles.saturating_add(!read_only as u64),
            unsafe_shutdowns: (restored.life.unsafe_shutdowns)
                .saturating_add((!read_only && !restored.clean) as u64),
        };
        ssd.image = Some(Box::new(Durable {
            header,
            shared,
            disk,
            desk: Mutex::new(Desk::new(table, options.commits_behind && !read_only)),
            changed: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            clock: AtomicU64::new(restored.clock),
            life,
            targets: Mutex::new(restored.targets),
        }));
        Ok(Arc::new(ssd))
    }

    fn build_on(
        spec: &DeviceSpec,
        options: &OpenImage,
        seed: u64,
        shared: &Arc<Shared>,
    ) -> Result<Ssd, ImageError> {
        let trouble = Arc::new(Trouble::default());
        let sectors = shared.layout.sectors;
        let place = || Elsewhere::File(shared.clone(), trouble.clone());
        let ssd = Ssd::build(spec, options.options(seed), || Store::elsewhere(place(), sectors))?;
        Ok(Ssd { trouble, ..ssd })
    }

    /// True when nothing that is sent to this device can change it.
    pub fn is_read_only(&self) -> bool {
        self.image.as_ref().is_some_and(|i| i.shared.read_only || i.closed.load(Ordering::Relaxed))
    }

    /// What the host could not do last, for people.
    pub fn host_trouble(&self) -> Option<String> {
        self.trouble.last()
    }

    /// Sectors of a chunk that the image does not give as they were written: how many, and of the first
    /// `most` which and what is wrong; those too that no command can read yet. None for a device in memory.
    pub fn unsound_sectors(&self, pu: u32, chunk: u32, most: usize) -> (u64, Vec<(u32, String)>) {
        let pus = self.geo.pus_per_channel;
        let (mut count, mut first) = (0, Vec::new());
        let Some(channel) = self.channels.get((pu / pus) as usize) else { return (count, first) };
        let chan = channel.lock();
        if self.image.is_none() || chunk >= self.geo.chunks_per_pu {
            return (count, first);
        }
        let index = chan.cells.index(pu % pus, chunk);
        for sector in 0..chan.cells.chunk(index).wp {
            if chan.cells.look_through(index, sector).is_err() {
                count += 1;
                if first.len() < most {
                    first.push((sector, self.host_trouble().unwrap_or_default()));
                }
            }
        }
        (count, first)
    }

    /// Dies that have stopped working: the PU, and how many sectors lie there that no command reads any
    /// more.
    pub fn dead_dies(&self) -> Vec<(u32, u64)> {
        let (luns, chunks) = (self.geo.pus_per_channel, self.geo.chunks_per_pu);
        let mut dead = Vec::new();
        for (channel, first) in self.channels.iter().zip((0..).step_by(luns as usize)) {
            let chan = channel.lock();
            for lun in (0..luns).filter(|lun| chan.dead[*lun as usize]) {
                let all = (0..chunks).map(|chunk| chan.cells.chunk(chan.cells.index(lun, chunk)));
                let held = all.filter(|chunk| chunk.state != ChunkState::Offline);
                dead.push((first + lun, held.map(|chunk| chunk.wp as u64).sum()));
            }
        }
        dead
    }

    /// The image's own data; `None` for a device in memory.
    pub fn image_info(&self) -> Option<ImageInfo> {
        let image = self.image.as_ref()?;
        Some(ImageInfo {
            version: image.header.version,
            uuid: image.header.uuid,
            seed: image.header.seed,
            read_only: image.shared.read_only,
            commits: self.desk(image).table().sequence(),
            power_cycles: image.life.power_cycles,
            unsafe_shutdowns: image.life.unsafe_shutdowns,
            power_cuts: self.cuts.load(Ordering::Relaxed),
            clock: Ns::from_ns(image.clock.load(Ordering::Relaxed)),
            slot_bytes: image.shared.slots.bytes(&image.shared.layout),
        })
    }

    /// Settings of targets, as they were given; empty without an image.
    pub fn targets(&self) -> Vec<u8> {
        self.image.as_ref().map_or_else(Vec::new, |image| image.targets.lock().clone())
    }

    /// Keeps settings of targets, at most [`TARGETS_MAX`] bytes, in place of the ones before: durable
    /// when this returns, with everything else that the device has accepted.
    ///
    /// # Errors
    /// They are too long, the device has no image, or the host failed: then the old ones stay.
    pub fn set_targets(&self, bytes: &[u8]) -> Result<(), ImageError> {
        let image = self.image.as_ref().ok_or(ImageError::InMemory)?;
        if bytes.len() > TARGETS_MAX {
            return Err(ImageError::Targets { len: bytes.len(), most: TARGETS_MAX });
        }
        if self.is_read_only() {
            return Err(ImageFault::ReadOnly.into());
        }
        let old = std::mem::replace(&mut *image.targets.lock(), bytes.into());
        image.changed.store(true, Ordering::Relaxed);
        self.commit(image, false).map_err(|e| {
            *image.targets.lock() = old;
            e.into()
        })
    }

    /// Makes everything that the device has accepted, and what was changed outside of commands,
    /// durable.
    ///
    /// # Errors
    /// The device has no image, or the host failed.
    pub fn make_durable(&self) -> Result<(), ImageError> {
        let image = self.image.as_ref().ok_or(ImageError::InMemory)?;
        image.changed.store(true, Ordering::Relaxed);
        Ok(self.commit(image, false)?)
    }

    /// Commits and gives the file to others; nothing changes on the device from then on. Without it
    /// the device is as at its last flush when it is opened again. For a device in memory, nothing.
    ///
    /// # Errors
    /// The host failed; it may be tried again.
    pub fn close(&self) -> Result<(), ImageError> {
        let Some(image) = self.image.as_ref().filter(|_| !self.is_read_only()) else {
            return Ok(());
        };
        for channel in &self.channels {
            let mut chan = channel.lock();
            let all = vec![true; chan.dead.len()];
            chan.cells.touch_again(&all); // read counts, too
        }
        self.commit(image, true)?;
        image.must_have_a_name()?;
        let shared = &image.shared;
        // That it can't be given back is no loss: the next who opens the image does it.
        let _ = shared.slots.give_back_room(&*shared.file, &shared.layout);
        if !mutant!("image.close-unmarked") {
            self.desk(image).table().sync()?; // the mark, too
        }
        image.closed.store(true, Ordering::Relaxed);
        if let Some(disk) = &image.disk {
            let _ = disk.write_at(HOLDER_AT, &[0; 16]); // the lock is what counts
            disk.unlock().map_err(ImageFault::io("unlock"))?;
        }
        Ok(())
    }

    /// What became of its image, which was opened at this path.
    pub fn image_place(&self, path: &Path) -> ImagePlace {
        match self.image.as_ref().and_then(|image| image.disk.as_ref()) {
            Some(disk) if disk.is_removed() => ImagePlace::Removed,
            Some(disk) if !disk.is_at(path) => ImagePlace::Moved,
            _ => ImagePlace::There,
        }
    }

    /// Commits, and calls `body` with the file while no other commit can begin.
    pub(crate) fn while_committed(
        &self,
        body: impl FnOnce(&DiskFile) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let Some((image, disk)) = self.image.as_ref().and_then(|i| Some((i, i.disk.as_ref()?)))
        else {
            return Err(ImageError::InMemory);
        };
        if !mutant!("image.copy-uncommitted") {
            self.commit(image, false)?;
        }
        let held = self.desk(image);
        let done = body(disk);
        drop(held);
        done
    }

    /// A command to a device with an image.
    pub(super) fn accept_durable(&self, image: &Durable, now: Ns, request: Request<'_>) -> Ticket {
        image.clock.fetch_max(self.device_time(now).as_ns(), Ordering::Relaxed);
        let changes = matches!(request.op, Op::Write | Op::Reset | Op::Copy);
        if changes && let Err(e) = self.make_ready(image) {
            self.trouble.note(e);
            return self.answer(&mut Command::new(now, &request), Status::HostFault);
        }
        let ticket = self.carry_out(now, request);
        if changes {
            // Behind the change: a commit either sees it, or is followed by another one.
            image.changed.store(true, Ordering::Relaxed);
        }
        ticket
    }

    /// Before something changes: no commit is overdue, and not too much room waits for one.
    fn make_ready(&self, image: &Durable) -> Result<(), ImageFault> {
        if self.is_read_only() {
            return Err(ImageFault::ReadOnly);
        }
        let most = 64 + image.shared.layout.chunks as usize / 16;
        if image.shared.slots.waiting() >= most {
            // Only room is at stake; who flushes hears what is wrong.
            let _ = self.commit(image, false);
        }
        match image.overdue.load(Ordering::Relaxed) && !mutant!("image.overdue-ignored") {
            true => self.commit(image, false),
            false => Ok(()),
        }
    }

    /// Completes when everything accepted is durable: the file has it, and no buffer.
    pub(super) fn flush(&self, cmd: &mut Command<'_>) -> Ticket {
        if let Some(image) = &self.image {
            match self.begin_flush(image) {
                Ok(commit) => cmd.commit = commit,
                Err(e) => {
                    self.trouble.note(e);
                    return self.answer(cmd, Status::HostFault);
                }
            }
        }
        if let Some(buffer) = &self.buffer {
            let mut state = buffer.state.lock();
            self.settle_buffer(buffer, &mut state, cmd.now);
            cmd.waits.extend(state.flush());
        }
        self.seal(cmd)
    }

    /// Something changed that no command did.
    pub(super) fn changed_outside(&self) {
        if let Some(image) = &self.image {
            image.changed.store(true, Ordering::Relaxed);
        }
    }

    /// A power cut took back what the last commit may name: commits, or has it done before the next
    /// program.
    pub(super) fn settle_image(&self) {
        if mutant!("image.cut-uncommitted") {
            return self.changed_outside();
        }
        if let Some(image) = self.image.as_ref().filter(|_| !self.is_read_only()) {
            image.overdue.store(true, Ordering::Relaxed);
            image.changed.store(true, Ordering::Relaxed);
            let _ = self.commit(image, false); // whoever programs next tries again, and hears
        }
    }

    /// Makes the device durable as it is now.
    fn commit(&self, image: &Durable, clean: bool) -> Result<(), ImageFault> {
        if self.is_read_only() {
            return Ok(());
        }
        let mut desk = self.desk(image);
        let Some((rows, left)) = self.collect(image, &mut desk, clean) else { return Ok(()) };
        let done = rows.and_then(|rows| desk.table().commit(rows));
        self.conclude(image, &mut desk, &done, left);
        done
    }

    /// The desk with the table on it: waits for a commit that is under way.
    fn desk<'a>(&self, image: &'a Durable) -> MutexGuard<'a, Desk> {
        let mut desk = image.desk.lock();
        self.await_commit(image, &mut desk, true);
        desk
    }

    /// Whether no commit is under way any more; with `waits` it is so when this returns.
    fn await_commit(&self, image: &Durable, desk: &mut Desk, waits: bool) -> bool {
        let Some((table, done)) = desk.take_back(waits) else { return desk.table.is_some() };
        desk.table = Some(table);
        let left = std::mem::take(&mut desk.left);
        self.conclude(image, desk, &done, left);
        true
    }

    /// What a flush waits for: the number of a commit, or 0 where it has nothing to wait for.
    fn begin_flush(&self, image: &Durable) -> Result<u64, ImageFault> {
        image.must_have_a_name()?;
        if self.is_read_only() || image.desk.lock().writer.is_none() {
            return self.commit(image, false).map(|()| 0);
        }
        let mut desk = image.desk.lock();
        if desk.table.is_none() {
            // What changed since it began is in the next one, which begins when this one has ended.
            let more =
                image.changed.load(Ordering::Relaxed) && !mutant!("image.next-commit-forgotten");
            let early = mutant!("image.second-flush-early");
            return Ok(if early { 0 } else { desk.ended + 1 + u64::from(more) });
        }
        self.begin_commit(image, &mut desk)
    }

    /// Has the desk's thread commit, where there is something to commit: the number, or 0.
    fn begin_commit(&self, image: &Durable, desk: &mut Desk) -> Result<u64, ImageFault> {
        let Some((rows, left)) = self.collect(image, desk, false) else { return Ok(0) };
        match rows {
            Ok(rows) => {
                desk.send(rows, left);
                Ok(desk.ended + 1)
            }
            Err(e) => {
                let done = Err(e);
                self.conclude(image, desk, &done, left);
                done.map(|()| 0)
            }
        }
    }

    /// How the commit of this number ended; `None` where it has not and `waits` is false.
    pub(super) fn commit_ended(&self, number: u64, waits: bool) -> Option<bool> {
        let image = self.image.as_ref()?;
        let mut desk = image.desk.lock();
        while desk.ended < number {
            if !self.await_commit(image, &mut desk, waits) {
                return None;
            }
            // It was to begin when the one before had ended.
            if desk.ended < number && !matches!(self.begin_commit(image, &mut desk), Ok(1..)) {
                // Another has committed the same, or it has failed: then its failure is the last one.
                break;
            }
        }
        Some(!desk.failed.contains(&number.min(desk.ended)))
    }

    /// What a commit of now writes, or why it can't, and what it leaves; nothing where nothing has changed.
    fn collect(&self, image: &Durable, desk: &mut Desk, clean: bool) -> Option<(Rows, Left)> {
        if !image.changed.swap(false, Ordering::Relaxed) && !clean {
            return None;
        }
        let mut freed = image.shared.slots.take_waiting();
        if mutant!("image.slots-freed-early") {
            let early = std::mem::take(&mut freed);
            image.shared.slots.release(early, &*image.shared.file, &image.shared.layout);
        }
        let mut touched = Vec::new();
        let rows = self.changed_rows(image, desk.table(), clean, &mut touched);
        Some((rows, Left { freed, touched }))
    }

    /// A commit has ended.
    fn conclude(
        &self,
        image: &Durable,
        desk: &mut Desk,
        done: &Result<(), ImageFault>,
        left: Left,
    ) {
        desk.ended += 1;
        match done {
            Ok(()) => {
                image.overdue.store(false, Ordering::Relaxed);
                let mut freed = left.freed;
                if mutant!("image.slots-noted-late") {
                    freed.extend(image.shared.slots.take_waiting());
                }
                image.shared.slots.release(freed, &*image.shared.file, &image.shared.layout);
            }
            Err(e) => {
                self.trouble.note(e);
                if !mutant!("image.commit-outcome-lost") {
                    desk.failed.insert(desk.ended);
                }
                image.changed.store(!mutant!("image.failure-forgotten"), Ordering::Relaxed);
                if mutant!("image.slots-of-a-failed-commit-freed") {
                    let file = &*image.shared.file;
                    image.shared.slots.release(left.freed, file, &image.shared.layout);
                } else {
                    image.shared.slots.wait_again(left.freed);
                }
                for (channel, dies) in self.channels.iter().zip(&left.touched) {
                    channel.lock().cells.touch_again(dies);
                }
            }
        }
    }

    /// The rows that differ from the table's, at one moment of all channels.
    fn changed_rows(
        &self,
        image: &Durable,
        table: &Table,
        clean: bool,
        touched: &mut Vec<Vec<bool>>,
    ) -> Rows {
        let layout = &image.shared.layout;
        let mut chans: Vec<_> = self.channels.iter().map(Mutex::lock).collect();
        touched.extend(chans.iter_mut().map(|chan| chan.cells.take_touched()));
        let mut rows = self.state_rows(layout, &mut chans, image, clean)?;
        let dies = touched.iter().flatten();
        for (die, _) in (0..).zip(dies).filter(|(_, touched)| **touched) {
            let chan = &chans[self.geo.channel_of(die) as usize];
            rows.extend(chunk_rows(layout, chan, die));
        }
        rows.retain(|(number, row)| table.row(*number) != row);
        Ok(rows)
    }

    /// All rows that are not zero, of a device without an image, whose own time it is.
    pub(super) fn new_rows(&self, layout: &Layout, clock: Ns) -> Rows {
        let mut chans: Vec<_> = self.channels.iter().map(Mutex::lock).collect();
        let (clean, version, clock) = (true, VERSION, clock.as_ns());
        let state = State { clean, version, clock, ..State::default() };
        let mut rows = self.rows_of_state(layout, &mut chans, &state)?;
        for die in 0..layout.dies {
            let chan = &chans[self.geo.channel_of(die) as usize];
            rows.extend(chunk_rows(layout, chan, die).filter(|(_, row)| *row != [0; ROW_BYTES]));
        }
        Ok(rows)
    }

    fn state_rows(
        &self,
        layout: &Layout,
        chans: &mut [MutexGuard<'_, Chan>],
        image: &Durable,
        clean: bool,
    ) -> Rows {
        let state = State {
            clock: image.clock.load(Ordering::Relaxed),
            life: image.life,
            clean,
            targets: image.targets.lock().clone(),
            faults: match image.header.version >= KEEPS_FAULTS {
                true => self.faults.lock().encode(),
                false => Vec::new(),
            },
            version: image.header.version,
        };
        self.rows_of_state(layout, chans, &state)
    }

    /// Rows of the device, its channels, its dies, and of what has no fixed size.
    fn rows_of_state(
        &self,
        layout: &Layout,
        chans: &mut [MutexGuard<'_, Chan>],
        state: &State,
    ) -> Rows {
        let mut extra = self.extra(chans, layout.chunks / layout.channels, &state.targets);
        let extra_len = extra.len() as u64;
        // Behind what format 1.0 reads, and then behind what 1.1 reads.
        extra.extend(&state.faults);
        let further = kept_counts(state.version >= KEEPS_FURTHER, chans, |chan| {
            (0..).zip(chan.count.programmed).skip(FIRST_CAUSES).collect()
        });
        let of_modes = kept_counts(state.version >= KEEPS_MODES, chans, |chan| {
            (0..).zip([chan.slc.programmed_sectors, chan.slc.erases]).collect()
        });
        extra.extend(further.iter().chain(&of_modes));
        if extra.len() > layout.extra_bytes() {
            return Err(ImageFault::Room { room: layout.extra_bytes(), needed: extra.len() });
        }
        let device = rows_of([
            state.clock,
            self.cuts.load(Ordering::Relaxed),
            state.life.power_cycles,
            state.life.unsafe_shutdowns,
            extra_len | (state.clean as u64) << 32,
            state.faults.len() as u64,
            further.len() as u64 | (of_modes.len() as u64) << 32,
        ]);
        let mut rows = vec![(0, device[0])];
        for (number, chan) in (0..).zip(chans.iter_mut()) {
            let others = counter_fields(&mut chan.count).map(|c| *c);
            let first: [u64; FIRST_CAUSES] = std::array::from_fn(|n| chan.count.programmed[n]);
            let counts = rows_of(first.into_iter().chain(others));
            rows.extend((layout.channel_row(number)..).zip(counts));
            let pus = number * self.geo.pus_per_channel;
            for (die, lun) in (pus..).zip(0..chan.dead.len()) {
                let read = chan.read_rng[lun].state().into_iter().chain([chan.dead[lun] as u64]);
                let both = [rows_of(read), rows_of(chan.wear_rng[lun].state())].concat();
                rows.extend((layout.die_row(die)..).zip(both));
            }
        }
        rows.extend((layout.extra_row()..).zip(rows_of_bytes(&extra)));
        Ok(rows)
    }

    /// Target settings, lost sectors, bad-block marks; sectors that the device keeps, where it does.
    fn extra(&self, chans: &[MutexGuard<'_, Chan>], per_channel: u32, targets: &[u8]) -> Vec<u8> {
        let ranges = |of: fn(&Cells) -> Vec<Lost>| -> Vec<u32> {
            let of_channel = |(channel, chan): (u32, &MutexGuard<'_, Chan>)| {
                let first = channel * per_channel;
                of(&chan.cells)
                    .into_iter()
                    .flat_map(move |(chunk, from, end)| [first + chunk, from, end])
            };
            let words: Vec<u32> = (0..).zip(chans).flat_map(of_channel).collect();
            [vec![words.len() as u32 / 3], words].concat()
        };
        let mut bytes = (targets.len() as u32).to_le_bytes().to_vec();
        bytes.extend(targets);
        bytes.extend(ranges(|cells| cells.lost().collect()).into_iter().flat_map(u32::to_le_bytes));
        let marks = self.marks.lock();
        bytes.extend((marks.all().len() as u32).to_le_bytes());
        for ((pu, chunk), planes) in marks.all() {
            bytes.extend(pu.to_le_bytes().iter().chain(&chunk.to_le_bytes()).chain(planes));
        }
        let kept = ranges(|cells| cells.kept().collect());
        if kept[0] > 0 {
            bytes.extend(kept.into_iter().flat_map(u32::to_le_bytes));
        }
        bytes
    }

    /// Makes a device without a history the one that the table's rows say, all of the layout.
    pub(super) fn restore(
        &mut self,
        rows: &[Row],
        layout: &Layout,
        version: (u16, u16),
    ) -> Result<State, ImageFault> {
        let mut device = Reader { bytes: &rows[0] };
        let mut next = || device.u64().unwrap_or(0);
        let (clock, cuts, power_cycles, unsafe_shutdowns, rest, faults_len, further_len) =
            (next(), next(), next(), next(), next(), next(), next());
        if clock > CLOCK_MAX {
            return Err(wrong(format!("its clock says {clock} ns")));
        }
        self.epoch = AtomicU64::new(clock);
        self.cuts = AtomicU64::new(cuts);
        let mut open = 0;
        for (number, channel) in (0..).zip(&mut self.channels) {
            let chan = channel.get_mut();
            restore_channel(rows, layout, chan, number)?;
            if version < KEEPS_MODES {
                chan.cells.count_for_present_mode();
            }
            open += (0..chan.dead.len() as u32).map(|d| chan.cells.open_on(d) as u64).sum::<u64>();
        }
        self.open = AtomicU64::new(open);
        let extra_len = (rest as u32 as usize).min(layout.extra_bytes());
        // Where each part ends that this version has, one behind the other.
        let end_of = |from: usize, len: u64, since: Version| match version >= since {
            true => (from + len as u32 as usize).min(layout.extra_bytes()),
            false => from,
        };
        let faults = end_of(extra_len, faults_len, KEEPS_FAULTS);
        let further = end_of(faults, further_len, KEEPS_FURTHER);
        let of_modes = end_of(further, further_len >> 32, KEEPS_MODES);
        let end = of_modes.div_ceil(ROW_BYTES) as u32;
        let from = layout.extra_row() as usize;
        let extra = rows[from..from + end as usize].as_flattened();
        self.restore_faults(&extra[extra_len..faults])
            .ok_or_else(|| wrong("its faults make no sense"))?;
        self.restore_counts(&extra[faults..further], |chan, cause| {
            chan.count.programmed.get_mut(cause).filter(|_| cause >= FIRST_CAUSES)
        })
        .and_then(|()| {
            self.restore_counts(&extra[further..of_modes], |chan, what| {
                let fields = [&mut chan.slc.programmed_sectors, &mut chan.slc.erases];
                fields.into_iter().nth(what)
            })
        })
        .ok_or_else(|| wrong("its counters make no sense"))?;
        let targets = self
            .restore_extra(layout, &extra[..extra_len])
            .ok_or_else(|| wrong("marks, lost sectors or target settings make no sense"))?;
        let kept = self.count_kept();
        if let Some(buffer) = &self.buffer {
            buffer.restart(&mut buffer.state.lock(), kept);
        }
        Ok(State {
            clock,
            life: Life { power_cycles, unsafe_shutdowns },
            clean: rest >> 32 & 1 == 1,
            targets,
            ..State::default()
        })
    }

    /// What [`kept_counts`] made; `place` gives a counter by its number.
    fn restore_counts(
        &mut self,
        bytes: &[u8],
        place: impl Fn(&mut Chan, usize) -> Option<&mut u64>,
    ) -> Option<()> {
        let mut from = Reader { bytes };
        while !from.bytes.is_empty() {
            let (channel, number, count) = (from.u16()?, from.u16()?, from.u64()?);
            let chan = self.channels.get_mut(usize::from(channel))?.get_mut();
            *place(chan, usize::from(number))? = count;
        }
        Some(())
    }

    /// Has the faults that were injected go on.
    fn restore_faults(&mut self, bytes: &[u8]) -> Option<()> {
        let geo = self.geo;
        let faults = self.faults.get_mut();
        faults.restore(bytes)?;
        let plan = FaultPlan { faults: faults.states().into_iter().map(|s| s.fault).collect() };
        plan.check(geo.pus(), geo.chunks_per_pu, geo.sectors_per_chunk()).ok()
    }

    fn restore_extra(&mut self, layout: &Layout, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut from = Reader { bytes };
        let len = from.u32()? as usize;
        let targets = from.take(len).filter(|t| t.len() <= TARGETS_MAX)?.to_vec();
        let per_channel = layout.chunks / layout.channels;
        for _ in 0..from.u32()? {
            let (chunk, first, end) = (from.u32()?, from.u32()?, from.u32()?);
            let chan = self.channels.get_mut((chunk / per_channel) as usize)?.get_mut();
            chan.cells.restore_lost((chunk % per_channel, first, end)).ok()?;
        }
        let marks = self.marks.get_mut();
        for _ in 0..from.u32()? {
            let (pu, chunk) = (from.u32()?, from.u32()?);
            let known = pu < self.geo.pus() && chunk < self.geo.chunks_per_pu;
            let planes = from.take(self.geo.planes as usize).filter(|_| known)?;
            marks.of(pu, chunk).copy_from_slice(planes);
        }
        let kept = if from.bytes.is_empty() { 0 } else { from.u32()? };
        for _ in 0..kept {
            let (chunk, first, end) = (from.u32()?, from.u32()?, from.u32()?);
            let chan = self.channels.get_mut((chunk / per_channel) as usize)?.get_mut();
            chan.cells.restore_kept((chunk % per_channel, first, end)).ok()?;
        }
        from.bytes.is_empty().then_some(targets)
    }
}

/// What of a device is in its first row and in what has no fixed size.
#[derive(Default)]
pub(super) struct State {
    clock: u64,
    life: Life,
    clean: bool,
    targets: Vec<u8>,
    /// Injected faults; behind the rest, from format 1.1 on.
    faults: Vec<u8>,
    /// Whose rows they are.
    version: Version,
}

/// Counters that rows have no room for, those that are not 0, where the format keeps them: channel, number, count.
fn kept_counts(
    keeps: bool,
    chans: &[MutexGuard<'_, Chan>],
    of: impl Fn(&Chan) -> Vec<(u16, u64)>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (channel, chan) in (0u16..).zip(chans).filter(|_| keeps) {
        for (number, count) in of(chan).into_iter().filter(|(_, count)| *count > 0) {
            bytes.extend([channel, number].into_iter().flat_map(u16::to_le_bytes));
            bytes.extend(count.to_le_bytes());
        }
    }
    bytes
}

/// Rows of a die's chunks; the die is counted over the device.
fn chunk_rows<'c>(
    layout: &Layout,
    chan: &'c Chan,
    die: u32,
) -> impl Iterator<Item = (u32, Row)> + 'c {
    let per_die = layout.chunks / layout.dies;
    let lun = die % (layout.dies / layout.channels);
    let first = layout.chunk_row(die * per_die);
    (0..per_die).map(move |c| (first + c, chan.cells.row(chan.cells.index(lun, c))))
}

fn restore_channel(
    rows: &[Row],
    layout: &Layout,
    chan: &mut Chan,
    number: u32,
) -> Result<(), ImageFault> {
    let counts = &rows[layout.channel_row(number) as usize..][..3];
    let mut counts = Reader { bytes: counts.as_flattened() };
    let mut next = || counts.u64().unwrap_or(0);
    chan.count.programmed[..FIRST_CAUSES].iter_mut().for_each(|count| *count = next());
    counter_fields(&mut chan.count).into_iter().for_each(|c| *c = next());
    let (luns, per_die) = (chan.dead.len() as u32, layout.chunks / layout.dies);
    for lun in 0..luns {
        let die = number * luns + lun;
        let rng = |row: &Row| {
            let mut from = Reader { bytes: row };
            let state = std::array::from_fn(|_| from.u64().unwrap_or(0));
            let rng = Rng::from_state(state);
            rng.ok_or_else(|| wrong(format!("die {die} has no random numbers")))
        };
        let at = layout.die_row(die) as usize;
        let (first, second) = (&rows[at], &rows[at + 1]);
        chan.read_rng[lun as usize] = rng(first)?;
        chan.wear_rng[lun as usize] = rng(second)?;
        chan.dead[lun as usize] = first[32] & 1 == 1;
        for chunk in 0..per_die {
            let row = &rows[layout.chunk_row(die * per_die + chunk) as usize];
            let restored = chan.cells.restore(chan.cells.index(lun, chunk), row);
            restored.map_err(|e| wrong(format!("chunk {chunk} of PU {die}: {e}")))?;
        }
    }
    chan.cells.take_touched(); // nothing changed yet
    Ok(())
}

/// Slots that chunks have; each has its own.
fn taken_slots(table: &Table, layout: &Layout) -> Result<BTreeSet<u32>, ImageFault> {
    let mut taken = BTreeSet::new();
    for chunk in 0..layout.chunks {
        let row = table.row(layout.chunk_row(chunk));
        let mut from = Reader { bytes: &row[12..] };
        let Some(slot) = from.u32().and_then(|slot| slot.checked_sub(1)) else { continue };
        if slot as u64 >= layout.slots() || !taken.insert(slot) {
            return Err(wrong(format!("chunk {chunk} names slot {slot}, which it can't have")));
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_media::host::memory::MemoryFile;

    /// Sectors of causes that only a later program has are counted, and kept from version 2.1 on.
    #[test]
    fn counters_of_further_causes_are_kept() {
        let spec = DeviceSpec::preset("tiny").expect("a preset").with_chunks_per_pu(8);
        let file = Arc::new(MemoryFile::default());
        Ssd::create_on(file.clone(), &spec, &CreateImage::default()).expect("an image");
        let open = || Ssd::open_on(file.clone(), &OpenImage::default()).expect("it opens");
        let counted = |ssd: &Ssd| ssd.counters().programmed[9..].to_vec();
        let ssd = open();
        ssd.channels[1].lock().count.programmed[9..].fill(1 << 40);
        ssd.channels[0].lock().count.programmed[23] = 7;
        let before = counted(&ssd);
        assert_eq!((before[0], before[14]), (1 << 40, (1 << 40) + 7));
        ssd.close().expect("the host keeps it");
        assert_eq!(counted(&open()), before);
        // An image of 2.0 has room for ten; the others last as long as it is open.
        let header = Header { version: (2, 0), ..Header::read(&*file).expect("a header") };
        file.write_at(0, &header.to_bytes().expect("a short text")).expect("the host keeps it");
        let older = open();
        let first = |n: u64| [vec![n], vec![0; 14]].concat();
        assert_eq!(counted(&older), first(1 << 40));
        older.channels[0].lock().count.programmed[23] = 7;
        older.close().expect("the host keeps it");
        assert_eq!(counted(&open()), first(1 << 40));
        assert_eq!(Ssd::upgrade_on(file.clone()).expect("it can be"), ((2, 0), (2, 2)));
        assert_eq!(counted(&open()), first(1 << 40));
    }
}
