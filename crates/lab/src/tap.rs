//! Where what a stack is asked can be recorded, and is timed.
//!
//! Owns: the clock of a recording, what of a request is recorded, how long requests took. Promises: who
//! neither records nor times pays two looks at flags; a request is what the layer on top was asked, from
//! the call to the answer, whoever asked; a recording that is under way when the stack goes is ended.
//! Never: changes a request.

use crate::metrics::{Latency, Meters};
use crate::trace::{RecordError, Recorded, Recording, Take, Ticket, TraceOp, TraceRecord};
use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{
    BlockDev, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Sectors, Started,
};
use flashlane_rt::Cx;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// How long requests took, where somebody may ask.
    meters: OnceLock<Box<Meters>>,
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
            meters: OnceLock::new(),
        })
    }

    /// Requests are timed from now on.
    pub(crate) fn time(&self) {
        self.meters.get_or_init(|| Box::new(Meters::new()));
    }

    /// How long requests took, by operation; nothing where they are not timed.
    pub(crate) fn requests(&self) -> Vec<Latency> {
        self.meters.get().map_or_else(Vec::new, |meters| meters.counted())
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

    /// Records from now on, if that was prepared. A recording that goes on keeps its clock.
    pub(crate) fn begin(&self, now: Ns) {
        if let Some(running) = &mut *locked(&self.running)
            && !self.on.swap(true, Ordering::Relaxed)
        {
            running.began = now;
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// There is none, or its file could not be written.
    pub(crate) fn end(&self) -> Result<Recorded, TapError> {
        Ok(self.take()?.end()?)
    }

    /// Nothing more is recorded. Whoever gets the recording ends it, which waits for its file.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn take(&self) -> Result<Recording, TapError> {
        self.on.store(false, Ordering::Relaxed);
        let running = locked(&self.running).take().ok_or(TapError::Idle)?;
        Ok(running.recording)
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
        // On another core it may have ended meanwhile, and the next one have begun.
        if !self.is_on() || now < *began {
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
            let at = now.map(|now| now.as_ns().saturating_sub(running.began.as_ns()));
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
        let (meters, on) = (self.tap.meters.get(), self.tap.is_on());
        if meters.is_none() && !on {
            return self.tap.below.start(cx, io);
        }
        let (op, began) = (io.op, cx.now());
        let ticket = if on { self.tap.made(began, self.number, &io) } else { None };
        let noted = ticket.map(|ticket| Noted { tap: self.tap.clone(), ticket: Some(ticket) });
        if let Some(meters) = meters {
            meters.begun(op);
        }
        let end = move |result: &BlockResult, noted: Option<Noted>| {
            let now = cx.now();
            if let Some(meters) = meters {
                meters.ended(op, now - began, result.is_ok());
            }
            if let Some(noted) = noted {
                noted.end(now);
            }
        };
        match self.tap.below.start(cx, io) {
            Started::Done(result) => {
                end(&result, noted);
                Started::Done(result)
            }
            Started::Later(later) => Started::later(async move {
                let result = later.await;
                end(&result, noted);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::scan::scan_to_replay;
    use crate::trace::{Format, Reading, TraceSource};
    use flashlane_rt::{CostTable, Virtual};
    use flashlane_testkit::Ram;

    /// Somebody may record a drive before its run begins to measure.
    #[test]
    fn a_recording_that_goes_on_keeps_its_clock() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("t.parquet");
        let tap = Tap::new(Arc::new(Ram::new(64, SECTOR_BYTES, Ns::from_us(5), 1)));
        let door = tap.door("run");
        let contents = Vec::new();
        tap.prepare(Take { to: to.clone(), format: Format::Parquet, contents }).expect("room");
        let vm = Virtual::new(1, 1, CostTable::zero());
        let (cx, theirs) = (vm.cx(), tap.clone());
        vm.run(async move {
            theirs.begin(cx.now());
            for lba in 0..4 {
                cx.sleep(Ns::from_us(100)).await;
                theirs.begin(cx.now());
                let memory = [7; SECTOR_BYTES];
                let io = Io::write(Lba::new(lba), 1, false, &memory);
                door.start(&cx, io).await.expect("a good device");
            }
        })
        .expect("it does not stall");
        assert_eq!(tap.end().map(|sums| sums.requests).expect("it is written"), 4);
        let scan = scan_to_replay(&TraceSource::File(to), &Reading::default(), false);
        let scan = scan.expect("a trace");
        let mut records = scan.records(None, false).expect("a trace");
        let mut last = 0;
        while let Some(record) = records.advance().expect("a trace") {
            assert!(record.ts_ns >= last + 100_000, "{last}, {}", record.ts_ns);
            assert!(record.latency_ns.is_some_and(|ns| ns < 100_000), "{record:?}");
            last = record.ts_ns;
        }
        assert!(last >= 400_000);
    }
}
