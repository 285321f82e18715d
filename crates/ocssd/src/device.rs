//! The seam to an Open-Channel SSD: geometry, submit, finish, chunk report.
//!
//! Owns: the vector command, its completion, and the promises each method makes. Promises: a
//! command's content moves once, at `submit`; its result is known to the device then and handed out
//! by `finish` when the device's time for it is over. Never: awaits; `Ssd::io` and friends wait.
//!
//! The emulated SSD is one implementation, the tracing and the scripted-fault wrappers are others.
//! `finish` is a method of its own, beside the three of the design, because under `read_first` and
//! `suspend` an announced time may move later: whoever waits asks again instead of being called.

use flashlane_base::{Geometry, Ns, OOB_BYTES, Ppa, PpaFormat, mutant};
pub use flashlane_media::outcome::{Breakdown, CAUSES_MAX, Cause, CellMode, ChunkState, Status};
pub use flashlane_media::payload::{Gather, Scatter};
use flashlane_rt::Cx;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Sense and transfer sectors.
    Read,
    /// Program sectors: whole write units, at the write pointer.
    Write,
    /// Erase chunks; the sector part of an address is ignored.
    Reset,
    /// Read then write inside the device: addresses are (source, destination) pairs.
    Copy,
    /// Make everything accepted durable: a no-op unless the device is [`Traits::volatile`] or
    /// [`Traits::buffered`].
    Flush,
}

/// Hints and modes of a command (OCSSD 1.2 CDW12, LightNVM paper 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Planes programmed, read or erased at once: 1, 2 or 4.
    pub planes: u8,
    /// A reset to this cell mode; ignored by other operations.
    pub cell: CellMode,
    /// May interrupt a program or erase under the `suspend` policy.
    pub suspend: bool,
    /// Fail fast: no read retries. [`crate::SsdOptions::limited_retry`] sets it for all reads of
    /// the host.
    pub limited_retry: bool,
    /// Scramble the data on the medium. Accepted, without effect on an emulated medium.
    pub scramble: bool,
    /// A write completes when it is durable, whatever buffers the device has (CDW12 bit 30). Without
    /// effect where every write does.
    pub fua: bool,
    /// For whom a read is made or a chunk erased: shown beside it where spans are kept, and tells
    /// which reads are the host's. A write has a cause per sector.
    pub cause: Cause,
}

impl Flags {
    /// No hint, all planes.
    pub const DEFAULT: Flags = Flags {
        planes: 0,
        cell: CellMode::Native,
        suspend: false,
        limited_retry: false,
        scramble: false,
        fua: false,
        cause: Cause::User,
    };

    /// A read that the host waits for: under the `suspend` policy it may interrupt a program or an
    /// erase. Linux pblk sets this hint on every read (OCSSD 1.2, CDW12).
    pub const READ: Flags = Flags { suspend: true, ..Flags::DEFAULT };

    /// No hint, and durable when complete.
    pub const DURABLE: Flags = Flags { fua: true, ..Flags::DEFAULT };
}

impl Default for Flags {
    fn default() -> Flags {
        Flags::DEFAULT
    }
}

/// Payload of a command.
pub enum Data<'a> {
    /// Reset, flush, copy.
    None,
    /// Content, out-of-band record and cause of each sector to be programmed.
    Write {
        content: Gather<'a>,
        /// Out-of-band record per address, in address order.
        oob: &'a [[u8; OOB_BYTES]],
        /// Cause per address.
        cause: &'a [Cause],
    },
    /// Where content and out-of-band records go.
    Read {
        content: Scatter<'a>,
        /// Out-of-band record per address, in address order.
        oob: &'a mut [[u8; OOB_BYTES]],
    },
}

/// A vector command: 1 to 64 addresses.
pub struct Request<'a> {
    pub op: Op,
    /// Hints and modes.
    pub flags: Flags,
    /// Addresses in the device's own layout.
    pub addrs: &'a [Ppa],
    pub data: Data<'a>,
    /// Content is 4096 bytes per sector under every store. Set for metadata, whose content the
    /// layers interpret; false for user data, which `stamps` keeps as 8 bytes.
    pub whole_sectors: bool,
}

/// Commands without a hint, of user data; [`Request::with`] and [`Request::whole`] say otherwise.
impl<'a> Request<'a> {
    #[inline]
    pub fn read(
        addrs: &'a [Ppa],
        content: Scatter<'a>,
        oob: &'a mut [[u8; OOB_BYTES]],
    ) -> Request<'a> {
        Request { data: Data::Read { content, oob }, ..Request::plain(Op::Read, addrs) }
    }

    #[inline]
    pub fn write(
        addrs: &'a [Ppa],
        content: Gather<'a>,
        oob: &'a [[u8; OOB_BYTES]],
        cause: &'a [Cause],
    ) -> Request<'a> {
        Request { data: Data::Write { content, oob, cause }, ..Request::plain(Op::Write, addrs) }
    }

    /// A reset, a copy or a flush.
    #[inline]
    pub fn plain(op: Op, addrs: &'a [Ppa]) -> Request<'a> {
        let flags = Flags::DEFAULT;
        Request { op, flags, addrs, data: Data::None, whole_sectors: false }
    }

    #[inline]
    pub fn with(self, flags: Flags) -> Request<'a> {
        Request { flags, ..self }
    }

    #[inline]
    pub fn whole(self, whole_sectors: bool) -> Request<'a> {
        Request { whole_sectors, ..self }
    }
}

/// A finished command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Bit `i` is set when address `i` has a status other than `Ok`.
    pub failed: u64,
    /// Status per address; empty when `failed` is 0.
    pub status: Vec<Status>,
    /// When the device was done.
    pub finished: Ns,
    /// Where the time went.
    pub breakdown: Breakdown,
}

impl Completion {
    /// Status of address `i`.
    #[inline]
    pub fn status(&self, i: usize) -> Status {
        if self.failed == 0 { Status::Ok } else { self.status[i] }
    }
}

/// A command in flight. Not to be dropped: `finish` must be called until it is done, or the
/// device keeps the command's slot.
#[derive(Debug)]
#[must_use = "a submitted command must be finished"]
pub struct Ticket {
    /// The device's own name for the command.
    pub id: u64,
    /// Not done before this; ask then.
    pub ask_at: Ns,
}

/// One entry of the chunk report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    pub state: ChunkState,
    /// Wear-level index 0..=255.
    pub wear_index: u8,
    pub erases: u32,
    /// Of those, erases of what it held in SLC mode.
    pub slc_erases: u32,
    /// Sectors that the chunk holds in its present cell mode.
    pub length: u32,
    /// Next sector to write, counted from the chunk's start.
    pub write_pointer: u32,
    /// Cell mode since the last reset.
    pub cell: CellMode,
}

/// What chunks in SLC mode are like. Their sectors can be read as soon as they are programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlcMode {
    /// Sectors of a chunk.
    pub chunk_sectors: u32,
    /// Write unit, in sectors.
    pub ws_min: u32,
    /// Write size that uses all planes: one row, which is one array operation where one command has it.
    pub ws_opt: u32,
}

/// What the medium promises beyond its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// A torn upper page may destroy its programmed lower page (no power-loss protection).
    pub pair_damage: bool,
    /// Sectors to which a flush pads so that pairs are closed, per chunk; 0 without `pair_damage`.
    pub pair_sectors: u32,
    /// Content bytes per sector of user data: 4096, or 8 under `stamps`.
    pub content_bytes: usize,
    /// Open chunks allowed on the device and per PU; 0 is no limit.
    pub max_open: (u32, u32),
    /// Reading unwritten data is an error, not zeros.
    pub dulbe: bool,
    /// What was accepted survives the loss of the host only behind an [`Op::Flush`] that completed
    /// well: the contents lie in an image file.
    pub volatile: bool,
    /// A write is acknowledged when it is in a buffer of the device that has no capacitors: a power cut
    /// loses what is not programmed, and not in the order of the acknowledgements, until an
    /// [`Op::Flush`] behind it has completed. [`Flags::fua`] writes are programmed when they complete.
    pub buffered: bool,
    /// Chunks can be reset to SLC mode ([`Flags::cell`]), and are like this then.
    pub slc: Option<SlcMode>,
    /// An open chunk can be reset; elsewhere it has to be filled first.
    pub reset_open: bool,
    /// Typical (read, program, erase) time of one unit, for planning.
    pub typical: (Ns, Ns, Ns),
}

/// An Open-Channel SSD, or a target's part of one.
pub trait Device: Send + Sync {
    fn geometry(&self) -> &Geometry;
    /// Layout of addresses.
    fn format(&self) -> &PpaFormat;
    /// What the medium promises.
    fn traits(&self) -> &Traits;
    /// Accepts a command that reaches the device now.
    #[inline]
    fn submit(&self, cx: &Cx, request: Request<'_>) -> Ticket {
        self.submit_at(cx, request, cx.now())
    }
    /// Accepts a command that reaches the device at `arrives`, after a link; not before `cx.now()`.
    /// State and content change now, in the order of submission, and the payload is copied before
    /// this returns. A malformed command is a completion with `InvalidField`, never a panic.
    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket;
    /// The completion, or when to ask again. Called on the core that submitted.
    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion>;
    /// `n` sectors from this one, of one chunk, are going to be read soon: an emulated device may
    /// bring them into the caches. No effect on results or times; any address will do.
    fn expect(&self, first: Ppa, n: u32);
    /// State of `pu`'s chunks, from `first`, `count` of them.
    fn chunk_report(&self, pu: u32, first: u32, count: u32) -> Vec<ChunkInfo>;
}

/// In an `impl Device` of what stands in front of another device: these methods are that device's, which is
/// in this field. The types are named as where it stands.
#[macro_export]
macro_rules! as_below {
    ($inner:ident:) => {};
    ($inner:ident: geometry $($more:ident)*) => {
        fn geometry(&self) -> &Geometry { self.$inner.geometry() }
        $crate::as_below!($inner: $($more)*);
    };
    ($inner:ident: format $($more:ident)*) => {
        fn format(&self) -> &PpaFormat { self.$inner.format() }
        $crate::as_below!($inner: $($more)*);
    };
    ($inner:ident: traits $($more:ident)*) => {
        fn traits(&self) -> &Traits { self.$inner.traits() }
        $crate::as_below!($inner: $($more)*);
    };
    ($inner:ident: finish $($more:ident)*) => {
        fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
            self.$inner.finish(cx, ticket)
        }
        $crate::as_below!($inner: $($more)*);
    };
    ($inner:ident: expect $($more:ident)*) => {
        fn expect(&self, first: Ppa, n: u32) { self.$inner.expect(first, n); }
        $crate::as_below!($inner: $($more)*);
    };
    ($inner:ident: chunk_report $($more:ident)*) => {
        fn chunk_report(&self, pu: u32, first: u32, count: u32) -> Vec<ChunkInfo> {
            self.$inner.chunk_report(pu, first, count)
        }
        $crate::as_below!($inner: $($more)*);
    };
}

impl<'d> dyn Device + 'd {
    /// Submits a command and waits for it.
    #[inline]
    pub fn io<'a>(&'a self, cx: &'a Cx, request: Request<'_>) -> InFlight<'a> {
        let ticket = self.submit(cx, request);
        self.wait(cx, ticket)
    }

    /// Has everything accepted survive the end of its host and of the power too, where that takes a
    /// command ([`Traits::volatile`], [`Traits::buffered`]). False when the host failed it.
    pub async fn flush(&self, cx: &Cx) -> bool {
        match self.traits().volatile {
            true => self.send_flush(cx).await,
            false => self.settle(cx).await,
        }
    }

    /// Has everything acknowledged on the medium before what comes next, where an acknowledgement does
    /// not say that ([`Traits::buffered`]). False when the host failed it.
    pub async fn settle(&self, cx: &Cx) -> bool {
        !self.traits().buffered || mutant!("device.settle-nothing") || self.send_flush(cx).await
    }

    async fn send_flush(&self, cx: &Cx) -> bool {
        self.io(cx, Request::plain(Op::Flush, &[])).await.status(0).is_ok()
    }

    /// Waits for a command that was submitted before.
    #[inline]
    pub fn wait<'a>(&'a self, cx: &'a Cx, ticket: Ticket) -> InFlight<'a> {
        InFlight { device: self, cx, ticket, armed: Ns::ZERO }
    }
}

/// Future of [`Device`]'s `io`.
pub struct InFlight<'a> {
    device: &'a dyn Device,
    cx: &'a Cx,
    ticket: Ticket,
    armed: Ns,
}

impl Future for InFlight<'_> {
    type Output = Completion;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Completion> {
        let this = &mut *self;
        loop {
            if this.cx.now() >= this.ticket.ask_at
                && let Poll::Ready(done) = this.device.finish(this.cx, &mut this.ticket)
            {
                return Poll::Ready(done);
            }
            // A device may move its announcement to a time that has come meanwhile: ask again.
            if this.cx.now() < this.ticket.ask_at {
                break;
            }
        }
        if this.armed != this.ticket.ask_at {
            this.armed = this.ticket.ask_at;
            this.cx.arm(this.ticket.ask_at);
        }
        Poll::Pending
    }
}
