//! Where what a stack is asked can be recorded.
//!
//! Owns: the clock of a recording, what of a request is recorded. Promises: who records nothing pays a look
//! at a flag; a request is what the layer on top was asked, from the call to the answer, whoever asked; a
//! recording that is under way when the stack goes is ended. Never: changes a request.

use crate::trace::{RecordError, Recorded, Recording, Take, Ticket, TraceOp, TraceRecord};
use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Payload, Sectors, Started};
use flashlane_rt::Cx;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a recording can't be begun or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    #[error("it is recorded already, to {to}: `trace record --stop` ends that")]
    Busy { to: String },
    #[error("nothing is recorded")]
    Idle,
    #[error("contents can't be recorded: this device keeps stamps in place of them")]
    Stamps,
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A stack's top, and who records what passes there.
pub(crate) struct Tap {
    below: Arc<dyn BlockDev>,
    on: AtomicBool,
    /// Those who ask, by the names that a recording has for them.
    doors: Mutex<Vec<String>>,
    running: Mutex<Option<Running>>,
    /// Recordings so far: requests of an earlier one are none of the next.
    begun: AtomicU64,
}

struct Running {
    recording: Recording,
    /// Times count from here; nothing is recorded before.
    began: Ns,
    number: u64,
}

impl Tap {
    pub(crate) fn new(below: Arc<dyn BlockDev>) -> Arc<Tap> {
        Arc::new(Tap {
            below,
            on: AtomicBool::new(false),
            doors: Mutex::default(),
            running: Mutex::default(),
            begun: AtomicU64::new(0),
        })
    }

    /// The device for somebody who is called so in recordings that begin later.
    pub(crate) fn door(self: &Arc<Tap>, name: &str) -> Arc<dyn BlockDev> {
        let mut doors = locked(&self.doors);
        let known = doors.iter().position(|door| door == name);
        let number = known.unwrap_or_else(|| {
            doors.push(name.into());
            doors.len() - 1
        }) as u16;
        Arc::new(Door { tap: self.clone(), number })
    }

    /// Gets everything ready to record.
    ///
    /// # Errors
    /// Somebody records already, or the file can't be had.
    pub(crate) fn prepare(&self, take: Take) -> Result<(), TapError> {
        let mut running = locked(&self.running);
        if let Some(Running { recording, .. }) = &*running {
            return Err(TapError::Busy { to: recording.to().display().to_string() });
        }
        if !take.contents.is_empty() && self.below.info().content_bytes != SECTOR_BYTES {
            return Err(TapError::Stamps);
        }
        let recording = Recording::begin(take, &locked(&self.doors))?;
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        *running = Some(Running { recording, began: Ns::ZERO, number });
        Ok(())
    }

    /// Records from now on, if that was prepared.
    pub(crate) fn begin(&self, now: Ns) {
        if let Some(running) = &mut *locked(&self.running) {
            running.began = now;
            self.on.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// There is none, or its file could not be written.
    pub(crate) fn end(&self) -> Result<Recorded, TapError> {
        self.on.store(false, Ordering::Relaxed);
        let running = locked(&self.running).take().ok_or(TapError::Idle)?;
        Ok(running.recording.end()?)
    }

    /// Whether something is recorded, or will be.
    pub(crate) fn is_prepared(&self) -> bool {
        locked(&self.running).is_some()
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn made(&self, now: Ns, door: u16, io: &Io<'_>) -> Option<(u64, Ticket)> {
        let mut running = locked(&self.running);
        let Running { recording, began, number } = running.as_mut()?;
        if recording.is_broken() {
            // Whoever ends it is told why.
            self.on.store(false, Ordering::Relaxed);
            return None;
        }
        let (sector, flush) = (SECTOR_BYTES as u64, io.op == BlockOp::Flush);
        let (first, len_bytes) = match flush {
            true => (0, 0),
            false => (io.lba.get() * sector, u64::from(io.sectors) * sector),
        };
        let record = TraceRecord {
            ts_ns: (now - *began).as_ns(),
            op: op_of(io.op),
            offset_bytes: first,
            len_bytes,
            fua: io.fua && io.op == BlockOp::Write,
            ..TraceRecord::EMPTY
        };
        let content = match &io.payload {
            Payload::Write(sectors) if recording.wants(&(first..first + len_bytes)) => {
                Some(content_of(sectors))
            }
            _ => None,
        };
        Some((*number, recording.made(record, door, content)))
    }

    fn ended(&self, now: Option<Ns>, (number, ticket): (u64, Ticket)) {
        let mut running = locked(&self.running);
        if let Some(running) = running.as_mut().filter(|running| running.number == number) {
            let at = now.map(|now| (now - running.began).as_ns());
            running.recording.ended(ticket, at);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = self.end(); // nobody can be told any more
    }
}

/// What fails while it is held leaves no half of anything behind.
fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn op_of(op: BlockOp) -> TraceOp {
    match op {
        BlockOp::Read => TraceOp::Read,
        BlockOp::Write => TraceOp::Write,
        BlockOp::Discard => TraceOp::Discard,
        BlockOp::Flush => TraceOp::Flush,
    }
}

fn content_of(sectors: &Sectors<'_>) -> Box<[u8]> {
    match sectors {
        Sectors::One(bytes) => (*bytes).into(),
        Sectors::Many(pieces) => pieces.iter().flat_map(|piece| piece.iter().copied()).collect(),
    }
}

/// The top of a stack, as one of those who ask sees it.
struct Door {
    tap: Arc<Tap>,
    number: u16,
}

/// A request that is recorded. Where it is given up nobody knows when it would have ended.
struct Noted {
    tap: Arc<Tap>,
    ticket: Option<(u64, Ticket)>,
}

impl Noted {
    fn end(mut self, now: Ns) {
        if let Some(ticket) = self.ticket.take() {
            self.tap.ended(Some(now), ticket);
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.tap.ended(None, ticket);
        }
    }
}

impl BlockDev for Door {
    fn info(&self) -> &BlockInfo {
        self.tap.below.info()
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if !self.tap.is_on() {
            return self.tap.below.start(cx, io);
        }
        let Some(ticket) = self.tap.made(cx.now(), self.number, &io) else {
            return self.tap.below.start(cx, io);
        };
        let noted = Noted { tap: self.tap.clone(), ticket: Some(ticket) };
        match self.tap.below.start(cx, io) {
            Started::Done(result) => {
                noted.end(cx.now());
                Started::Done(result)
            }
            Started::Later(later) => Started::later(async move {
                let result = later.await;
                noted.end(cx.now());
                result
            }),
        }
    }

    fn expect(&self, op: BlockOp, lba: Lba) {
        self.tap.below.expect(op, lba);
    }

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.tap.below.extent(lba, most)
    }
}

/// What a person says of contents: `all`, or ranges as `OFFSET+LENGTH`, with units, separated by commas.
///
/// # Errors
/// It is neither.
pub fn contents_of(text: &str) -> Result<Vec<Range<u64>>, String> {
    use flashlane_base::Bytes;
    if text == "all" {
        return Ok(std::iter::once(0..u64::MAX).collect());
    }
    let range = |part: &str| -> Option<Range<u64>> {
        let (offset, length) = part.split_once('+')?;
        let [offset, length] = [offset, length].map(|n| n.trim().parse::<Bytes>().ok());
        let (offset, length) = (offset?.get(), length?.get());
        Some(offset..offset.checked_add(length).filter(|end| *end > offset)?)
    };
    let each =
        |part| range(part).ok_or(format!("`{part}` is no OFFSET+LENGTH, as in `1MiB+64KiB`"));
    text.split(',').map(each).collect()
}
