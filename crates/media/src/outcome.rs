//! What the medium knows about a sector, a chunk and an operation, and how it answers.
//!
//! Owns: the outcome of an access ([`Status`]), the state of a chunk ([`ChunkState`]), why a sector
//! was programmed ([`Cause`]) and where an operation's time went ([`Breakdown`]).
//! Promises: outcomes are data, never errors of this program. Never: decides an outcome.
//!
//! `flashlane_ocssd::device` re-exports all of it: layers above name it from there.

use flashlane_base::{Ns, counters, listed};

listed! {
    /// Why a sector was programmed. Every programmed sector has exactly one cause (FORMAT.md, the two
    /// counter laws). Each with its name, in words, and as figures call it; in the order of reports. Later
    /// ones go to the end: files keep counters in this order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Cause: (&'static str, &'static str, &'static str) {
        /// New data of the host.
        User: "user", "user data", "user data";
        /// A live sector moved by garbage collection.
        Gc: "gc", "moved by garbage collection", "moved by garbage collection";
        /// A sector moved from one cell mode to another.
        Fold: "fold", "moved between cell modes", "moved to another cell mode";
        /// Fill behind a flush or FUA write.
        PaddingFlush: "padding_flush", "padded behind flushes", "padding for flushes";
        /// Fill up to a page-pair boundary (`pair_damage`).
        PaddingPair: "padding_pair", "padded up to page pairs", "padding for page pairs";
        /// Fill for an erase barrier, a starving allocator or a line that closes early.
        PaddingGc: "padding_gc", "padded for erases and closing lines",
            "padding for line ends and erases";
        /// First and closing metadata of lines, checkpoint shards, translation pages.
        Metadata: "metadata", "written as line metadata and checkpoints", "metadata";
        /// The FTL log and its anchor.
        Log: "log", "written to the log", "log";
        /// A sector sent again after a failed program.
        Retry: "retry", "sent again after failed programs", "sent again";
        /// A sector overwritten or discarded in the buffer, programmed all the same because a flush or
        /// an erase barrier covers it.
        Dead: "dead", "overwritten in the buffer but already promised to a flush",
            "overwritten in the buffer";
    }
}

impl Cause {
    /// The name in reports (`programmed_sectors.<name>`).
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// What was done with such a sector, in a sentence.
    pub fn words(self) -> &'static str {
        self.row().1
    }

    /// What figures call it.
    pub fn title(self) -> &'static str {
        self.row().2
    }
}

/// Causes that images and closing metadata have room for.
pub const CAUSES_MAX: usize = 24;
const _: () = assert!(Cause::ALL.len() <= CAUSES_MAX);

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

counters! {
    /// Where the time of a command went. Spans of parallel parts are those of the part that ended last.
    pub struct Breakdown {
        /// Host link and controller bandwidth.
        link: Ns, Sum, "ns", [reads "link", head "link", what "the link"];
        /// Fixed command overhead.
        command: Ns, Sum, "ns", [reads "command", head "command", what "command overhead"];
        /// Channel was busy.
        channel: Ns, Sum, "ns", [reads "channel", head "channel busy", what "busy channels"];
        /// Die was busy reading.
        die_read: Ns, Sum, "ns", [reads "die_read", head "die reading", what "dies busy reading"];
        /// Die was busy programming.
        die_program: Ns, Sum, "ns",
            [reads "die_program", head "programming", what "dies busy programming"];
        /// Die was busy erasing.
        die_erase: Ns, Sum, "ns", [reads "die_erase", head "erasing", what "dies busy erasing"];
        /// Array operation of this command.
        array: Ns, Sum, "ns", [reads "array", head "sense", what "their own sensing"];
        /// Bus transfer of this command.
        transfer: Ns, Sum, "ns", [reads "transfer", head "transfer", what "their own transfer"];
        /// Read retries.
        retry: Ns, Sum, "ns", [reads "retry", head "retry", what "read retries"];
    }
}

impl std::ops::AddAssign for Breakdown {
    fn add_assign(&mut self, part: Breakdown) {
        *self = self.and(&part);
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
