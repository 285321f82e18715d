//! What the medium knows about a sector, a chunk and an operation, and how it answers.
//!
//! Owns: the outcome of an access ([`Status`]), the state of a chunk ([`ChunkState`]), why a sector
//! was programmed ([`Cause`]) and where an operation's time went ([`Breakdown`]).
//! Promises: outcomes are data, never errors of this program. Never: decides an outcome.
//!
//! `flashlane_ocssd::device` re-exports all of it: layers above name it from there.

use flashlane_base::Ns;

/// Why a sector was programmed. Every programmed sector has exactly one cause (FORMAT.md, the two
/// counter laws).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// New data of the host.
    User,
    /// A live sector moved by garbage collection.
    Gc,
    /// A sector moved from one cell mode to another.
    Fold,
    /// Fill behind a flush or FUA write.
    PaddingFlush,
    /// Fill up to a page-pair boundary (`pair_damage`).
    PaddingPair,
    /// Fill for an erase barrier, a starving allocator or a line that closes early.
    PaddingGc,
    /// First and closing metadata of lines, checkpoint shards, translation pages.
    Metadata,
    /// The FTL log and its anchor.
    Log,
    /// A sector sent again after a failed program.
    Retry,
    /// A sector overwritten or discarded in the buffer, programmed all the same because a flush or
    /// an erase barrier covers it.
    Dead,
}

/// Causes that images and closing metadata have room for.
pub const CAUSES_MAX: usize = 24;
const _: () = assert!(Cause::ALL.len() <= CAUSES_MAX);

impl Cause {
    /// All causes, in the order of reports. Later ones go to the end: files keep counters in this order.
    pub const ALL: [Cause; 10] = [
        Cause::User,
        Cause::Gc,
        Cause::Fold,
        Cause::PaddingFlush,
        Cause::PaddingPair,
        Cause::PaddingGc,
        Cause::Metadata,
        Cause::Log,
        Cause::Retry,
        Cause::Dead,
    ];

    /// The name in reports (`programmed_sectors.<name>`).
    pub fn name(self) -> &'static str {
        match self {
            Cause::User => "user",
            Cause::Gc => "gc",
            Cause::Fold => "fold",
            Cause::PaddingFlush => "padding_flush",
            Cause::PaddingPair => "padding_pair",
            Cause::PaddingGc => "padding_gc",
            Cause::Metadata => "metadata",
            Cause::Log => "log",
            Cause::Retry => "retry",
            Cause::Dead => "dead",
        }
    }
}

/// How many bits per cell a chunk holds until its next reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CellMode {
    /// What the die is made for.
    #[default]
    Native,
    /// One bit per cell: faster, longer-lived, a fraction of the length.
    Slc,
}

/// Result for one address. Outcomes of the medium are data, not errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Read of something unwritten, not yet readable or offline, with DULBE set. Without DULBE
    /// such a read is `Ok` and gives predefined data (zeros) with an all-ones OOB record.
    Empty = 0x42ff,
    /// Data is good, correction was heavy (D0h).
    HighEcc = 0x2d0,
    /// More bit errors than the code corrects (81h).
    Uncorrectable = 0x281,
    /// Write fault: chunk closed, offline, or past its end (80h).
    WriteFault = 0x280,
    /// Write not at the write pointer (F2h).
    OutOfOrder = 0x2f2,
    /// Not a whole, aligned write unit, or a malformed command (02h).
    InvalidField = 0x002,
    /// The program failed, data lost, the pointer moved on: continue behind it (F0h).
    WriteNextUnit = 0x2f0,
    /// The program failed and the chunk is now closed at its old pointer (F1h).
    ChunkEarlyClose = 0x2f1,
    /// The erase failed; the chunk is offline (C0h).
    OfflineChunk = 0x2c0,
    /// The chunk cannot be reset in its state (C1h).
    InvalidReset = 0x2c1,
    /// The address lies in a hole or outside the device.
    InvalidAddress = 0x080,
    /// Opening one more chunk would break an open-chunk limit.
    TooManyOpen = 0x2f3,
    /// The host under the device could not: its disk is full or failed, or the image is open for
    /// reading only (NVMe: internal error). Nothing changed on the medium; a write may be tried
    /// again, at the same place, when the host can.
    HostFault = 0x006,
}

impl Status {
    /// True when a read's data, or a write's, is good.
    #[inline(always)]
    pub fn is_ok(self) -> bool {
        matches!(self, Status::Ok | Status::HighEcc)
    }

    /// True when a write moved its chunk's pointer, well or not: what the medium counts as
    /// programmed (a refused write and an early close are not).
    #[inline(always)]
    pub fn moved_pointer(self) -> bool {
        matches!(self, Status::Ok | Status::HighEcc | Status::WriteNextUnit)
    }
}

/// Where the time of a command went. Spans of parallel parts are those of the part that ended last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Host link and controller bandwidth.
    pub link: Ns,
    /// Fixed command overhead.
    pub command: Ns,
    /// Die was busy reading.
    pub die_read: Ns,
    /// Die was busy programming.
    pub die_program: Ns,
    /// Die was busy erasing.
    pub die_erase: Ns,
    /// Channel was busy.
    pub channel: Ns,
    /// Bus transfer of this command.
    pub transfer: Ns,
    /// Array operation of this command.
    pub array: Ns,
    /// Read retries.
    pub retry: Ns,
}

impl std::ops::AddAssign for Breakdown {
    fn add_assign(&mut self, part: Breakdown) {
        self.link += part.link;
        self.command += part.command;
        self.die_read += part.die_read;
        self.die_program += part.die_program;
        self.die_erase += part.die_erase;
        self.channel += part.channel;
        self.transfer += part.transfer;
        self.array += part.array;
        self.retry += part.retry;
    }
}

/// State of a chunk (OCSSD 2.0, 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ChunkState {
    /// Erased, nothing written.
    Free = 1,
    /// Full, or closed early.
    Closed = 2,
    /// Partly written.
    Open = 4,
    /// Bad.
    Offline = 8,
}
