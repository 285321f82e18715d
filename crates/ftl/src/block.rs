//! The seam above every layer that gives 4 KiB logical sectors.
//!
//! Owns: [`BlockDev`] (info, start), the request, its result. Promises: writes are acknowledged
//! when buffered; a flush makes everything acknowledged before it durable; FUA the same for its own
//! sectors; atomicity is one sector; discarded and unwritten sectors read as zeros (FORMAT.md).
//! Never: knows what is below.
//!
//! What needs no waiting is answered in the call to `start`; what does is a future, in memory that the
//! runtime keeps for the next ([`flashlane_rt::Pooled`]): layers stack without a task or an allocation
//! per layer.

use flashlane_base::Lba;
pub use flashlane_media::payload::{Each, Sectors, SectorsMut};
use flashlane_rt::{Cx, Pooled};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockOp {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// The content is not needed any more; reads give zeros.
    Discard,
    /// Everything acknowledged so far becomes durable.
    Flush,
}

/// Content of a request.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Of a discard, a flush.
    None,
    /// Where a read goes to.
    Read(SectorsMut<'a>),
    /// What is written.
    Write(Sectors<'a>),
}

impl<'a> Payload<'a> {
    /// Memory in one piece, for an operation that is known when the program runs only. What is neither
    /// read nor written has no content, whatever the memory is.
    pub fn of(op: BlockOp, memory: &'a mut [u8]) -> Payload<'a> {
        match op {
            BlockOp::Read => Payload::Read(SectorsMut::One(memory)),
            BlockOp::Write => Payload::Write(Sectors::One(memory)),
            BlockOp::Discard | BlockOp::Flush => Payload::None,
        }
    }
}

/// What a host knows of what it writes. No layer has to look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Of which stream; 0 is none (NVMe 1.3, 9.3).
    pub stream: u16,
    /// How soon it will be overwritten or discarded.
    pub lifetime: Lifetime,
    /// It belongs to the journal of a file system or a database.
    pub journal: bool,
}

/// Expected lifetime, as the write hints of Linux have it (`fcntl(2)`, `F_SET_RW_HINT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// Nobody said anything.
    #[default]
    Unknown,
    /// Overwritten soon.
    Short,
    /// Between short and long.
    Medium,
    /// Stays for long.
    Long,
    /// As good as for ever.
    Extreme,
}

/// A request.
pub struct Io<'a> {
    /// What to do.
    pub op: BlockOp,
    /// First sector.
    pub lba: Lba,
    /// Sectors; 0 for a flush.
    pub sectors: u32,
    /// The write is durable when acknowledged.
    pub fua: bool,
    /// What the host knows of what it writes.
    pub hint: Hint,
    /// Content: `sectors` times `info().content_bytes` bytes for reads and writes.
    pub payload: Payload<'a>,
}

impl<'a> Io<'a> {
    /// A read.
    pub fn read(lba: Lba, sectors: u32, memory: &'a mut [u8]) -> Io<'a> {
        Io::of(BlockOp::Read, lba, sectors, false, memory)
    }

    /// A write.
    pub fn write(lba: Lba, sectors: u32, fua: bool, content: &'a [u8]) -> Io<'a> {
        let payload = Payload::Write(Sectors::One(content));
        Io { op: BlockOp::Write, lba, sectors, fua, hint: Hint::default(), payload }
    }

    /// A discard.
    pub fn discard(lba: Lba, sectors: u32) -> Io<'a> {
        Io::of(BlockOp::Discard, lba, sectors, false, &mut [])
    }

    /// A flush.
    pub fn flush() -> Io<'a> {
        Io::of(BlockOp::Flush, Lba::new(0), 0, false, &mut [])
    }

    /// An operation that is known when the program runs only, with its memory in one piece.
    pub fn of(op: BlockOp, lba: Lba, sectors: u32, fua: bool, memory: &'a mut [u8]) -> Io<'a> {
        let (hint, payload) = (Hint::default(), Payload::of(op, memory));
        Io { op, lba, sectors, fua, hint, payload }
    }

    /// Refuses what lies outside of a device, or has content of another size than its sectors.
    ///
    /// # Errors
    /// [`BlockError::Invalid`].
    #[inline]
    pub fn check(&self, info: &BlockInfo) -> BlockResult {
        let fits = match (self.op, &self.payload) {
            (BlockOp::Read, Payload::Read(to)) => to.are(self.sectors, info.content_bytes),
            (BlockOp::Write, Payload::Write(from)) => from.are(self.sectors, info.content_bytes),
            (BlockOp::Discard | BlockOp::Flush, Payload::None) => true,
            _ => false,
        };
        let end = self.lba.get().checked_add(self.sectors.into());
        if fits && end.is_some_and(|end| end <= info.capacity) {
            return Ok(());
        }
        let (op, lba, sectors) = (self.op, self.lba, self.sectors);
        Err(BlockError::Invalid { op, lba, sectors, capacity: info.capacity })
    }
}

/// Why a request failed. The device stays usable unless `ReadOnly`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Outside the device, or a buffer of the wrong size.
    #[error(
        "{op:?} of {sectors} sectors at {lba} is outside the device's {capacity} sectors or its buffer has the wrong size"
    )]
    Invalid {
        /// Request.
        op: BlockOp,
        /// First sector.
        lba: Lba,
        /// Length in sectors.
        sectors: u32,
        /// Sectors of the device.
        capacity: u64,
    },
    /// These sectors could not be read; others of the request are in the buffer.
    #[error("uncorrectable read error at {}", list(.0))]
    Uncorrectable(Vec<Lba>),
    /// The layer can't make data durable any more; reads go on.
    #[error("the device is read-only: {0}")]
    ReadOnly(&'static str),
}

fn list(lbas: &[Lba]) -> String {
    lbas.iter().map(|l| l.to_string()).collect::<Vec<_>>().join(", ")
}

/// What a block device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Logical sectors of 4 KiB.
    pub capacity: u64,
    /// Content bytes per sector: 4096, or 8 when the medium's store is `stamps`.
    pub content_bytes: usize,
    /// Name of the layer, for reports.
    pub layer: &'static str,
}

/// Sectors side by side that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub sectors: u64,
    /// They were written; otherwise nothing is kept for them, and they read as zeros.
    pub holds: bool,
}

impl Extent {
    /// Of at most `most` sectors of a device from `lba` on: those at the beginning that are alike, by what
    /// is known of each. None behind the end.
    pub fn of(info: &BlockInfo, lba: Lba, most: u64, holds: impl Fn(u64) -> bool) -> Extent {
        let end = lba.get().saturating_add(most).min(info.capacity);
        let mut each = (lba.get()..end).map(holds);
        let Some(first) = each.next() else { return Extent { sectors: 0, holds: false } };
        let more = each.take_while(|holds| *holds == first).count() as u64;
        Extent { sectors: 1 + more, holds: first }
    }
}

/// Outcome of a request.
pub type BlockResult = Result<(), BlockError>;

/// A request that was started.
#[must_use = "a request makes progress only when it is polled"]
pub enum Started<'a> {
    /// Nothing had to be waited for.
    Done(BlockResult),
    /// On its way; it makes progress when polled and must not be dropped before its end.
    Later(Pooled<'a, BlockResult>),
}

impl<'a> Started<'a> {
    /// What has to wait.
    #[inline]
    pub fn later(work: impl Future<Output = BlockResult> + 'a) -> Started<'a> {
        Started::Later(Pooled::new(work))
    }
}

impl Future for Started<'_> {
    type Output = BlockResult;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BlockResult> {
        match &mut *self {
            Started::Done(result) => Poll::Ready(std::mem::replace(result, Ok(()))),
            Started::Later(work) => Pin::new(work).poll(context),
        }
    }
}

/// A block device: pblk, QBLK, PFTL, and whatever stands on them.
pub trait BlockDev: Send + Sync {
    /// Capacity and content size.
    fn info(&self) -> &BlockInfo;

    /// True if a write of several sectors that a power cut tears may leave sectors that can't be
    /// read, as NVMe allows it of writes above AWUPF. No layer of this project does.
    fn tears_to_errors(&self) -> bool {
        false
    }
    /// Starts a request: its outcome, or what makes progress when polled.
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a>;
    /// A request of this kind for this sector comes soon: a layer may bring what it knows of it into the
    /// caches. No effect on results; any number will do.
    fn expect(&self, op: BlockOp, lba: Lba);
    /// How many of `most` sectors from `lba` on are alike, and whether they hold anything. A look at each
    /// sector for itself: others may write meanwhile.
    fn extent(&self, lba: Lba, most: u64) -> Extent;
}
