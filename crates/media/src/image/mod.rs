//! What an image file is made of, below its header: the table with its journal, and the slots.
//!
//! Owns: the regions of the file ([`Layout`]), the errors of an image ([`ImageFault`]), what the
//! channels of a device share of it ([`Shared`]). Promises: after a loss of the host's power at any
//! moment the table is that of one commit, and every byte it names is there. Never: knows a device
//! spec or a header; those are the device's (`docs/IMAGE.md` has all bytes).
//!
//! [`table`] keeps rows of 56 bytes with atomic commits, `journal` reads what a loss left of them,
//! [`slots`] holds the content of chunks, [`sectors`] what is kept beside a sector.

mod journal;
pub mod sectors;
pub mod slots;
pub mod table;

use crate::host::HostFile;
use flashlane_base::SECTOR_BYTES;
use std::io;
use std::sync::Arc;
use table::{FRAME_BYTES, ROW_BYTES, ROWS_PER_FRAME, STORED_ROW_BYTES};

/// What regions and slots are aligned to.
pub const PAGE: u64 = 4096;
/// Bytes of a copy of the header.
pub const HEADER_BYTES: u64 = 16 << 10;
/// Where the holder of the lock says who it is, behind both copies of the header.
pub const HOLDER_AT: u64 = 2 * HEADER_BYTES;
/// Where the mark lies: how far the journal has come. In the holder's page, in a piece of its own.
pub const MARK_AT: u64 = HOLDER_AT + FRAME_BYTES as u64;
/// Where the table begins.
const TABLE_AT: u64 = HOLDER_AT + PAGE;
/// Most bytes of target settings.
pub const TARGETS_MAX: usize = 64 << 10;
/// Room for table and journal up to this many bytes is reserved when an image is created, so that
/// no commit meets a full disk. What is larger takes room as it is written.
pub const RESERVED_MAX: u64 = 16 << 20;
/// A half of the journal has this many frames at least.
const FRAMES_MIN: u64 = 64;

/// Rows of a channel: its counters.
pub const CHANNEL_ROWS: u32 = 3;
/// Rows of a die: its random numbers, and whether it works.
pub const DIE_ROWS: u32 = 2;

/// Why an image could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFault {
    /// The host failed.
    #[error("cannot {action} the image: {source}{}", hint(source))]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the host said.
        source: io::Error,
    },
    /// The file ends too early.
    #[error(
        "the image is cut short: {len} bytes of at least {needed}; copy it again from where it came"
    )]
    Short {
        /// Its length.
        len: u64,
        /// Bytes it must have.
        needed: u64,
    },
    /// A row of the table does not match its checksum.
    #[error(
        "the image is damaged: table row {row}{} at byte {at} does not match its checksum; go \
             back to a snapshot", of_chunk(*place)
    )]
    Row {
        /// Which row.
        row: u32,
        /// PU and chunk that it is about; `None` where it is about more or less than a chunk.
        place: Option<(u32, u32)>,
        /// Where it lies.
        at: u64,
    },
    /// A frame of the journal does not match its checksum.
    #[error(
        "the image is damaged: the journal frame at byte {at} does not match its checksum; go \
             back to a snapshot"
    )]
    Frame {
        /// Where it lies.
        at: u64,
    },
    /// A frame of the journal lies where no loss of power leaves it: commits before it are gone.
    #[error(
        "the image is damaged: the journal ends at byte {end}, but the frame at byte {at} is of a later \
         commit, or of none that can be there; go back to a snapshot"
    )]
    Stray {
        /// Where it lies.
        at: u64,
        /// Where the commits end that lie where they should.
        end: u64,
    },
    /// The mark names a commit that is not there.
    #[error(
        "the image is damaged: commit {marked} was durable, but the journal ends with commit {last}; go \
         back to a snapshot"
    )]
    Lost {
        /// The commit that was durable.
        marked: u64,
        /// The last one that is there.
        last: u64,
    },
    /// The mark does not match its checksum.
    #[error(
        "the image is damaged: the mark at byte {MARK_AT}, which says how far the journal has come, does \
         not match its checksum; go back to a snapshot"
    )]
    Mark,
    /// Each row is sound, but together they are not those of the last commit.
    #[error(
        "the image is damaged: the rows of its table are not those of commit {last}: some are older, or \
         in a commit that is gone; go back to a snapshot"
    )]
    Sum {
        /// The last commit.
        last: u64,
    },
    /// Intact, but nothing that this program writes.
    #[error("the image is damaged: {0}; go back to a snapshot")]
    Value(String),
    /// More bad-block marks, lost sectors, target settings and faults than the table has room for.
    #[error(
        "the image has room for {room} bytes of marks, lost sectors, target settings and faults, not \
         {needed}; erase chunks that hold lost sectors, or clear faults"
    )]
    Room {
        /// Bytes there are.
        room: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Some write was not made durable, and nobody knows which.
    #[error(
        "the host failed to make the image durable before, and what it lost is unknown; open the \
         image again: it is as at its last commit"
    )]
    Broken,
    /// The image was opened for reading.
    #[error("the image is open for reading only")]
    ReadOnly,
}

fn of_chunk(place: Option<(u32, u32)>) -> String {
    place.map_or_else(String::new, |(pu, chunk)| format!(" (chunk {chunk} on PU {pu})"))
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room on the host's disk, then try again"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; open it for reading only, or change its rights"
        }
        _ => "",
    }
}

impl ImageFault {
    /// An error of the host, with what was tried.
    pub fn io(action: &'static str) -> impl Fn(io::Error) -> ImageFault {
        move |source| ImageFault::Io { action, source }
    }
}

/// The regions of an image. They follow from the device's dimensions alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Channels.
    pub channels: u32,
    /// Dies of all channels.
    pub dies: u32,
    /// Chunks of all dies.
    pub chunks: u32,
    /// Sectors per chunk.
    pub sectors: u32,
    /// Sectors have checksums.
    pub checked: bool,
    /// A row of the table that is zero need not be written: its bytes may be zero with its
    /// checksum's.
    pub holes: bool,
}

impl Layout {
    /// First row of a channel; row 0 is the device's.
    pub fn channel_row(&self, channel: u32) -> u32 {
        1 + channel * CHANNEL_ROWS
    }

    /// First row of a die, counted over the device.
    pub fn die_row(&self, die: u32) -> u32 {
        self.channel_row(self.channels) + die * DIE_ROWS
    }

    /// Row of a chunk, counted over the device.
    pub fn chunk_row(&self, chunk: u32) -> u32 {
        self.die_row(self.dies) + chunk
    }

    /// A chunk, counted over the device, as PU and chunk of it.
    pub fn place_of(&self, chunk: u32) -> (u32, u32) {
        let per_die = self.chunks / self.dies;
        (chunk / per_die, chunk % per_die)
    }

    /// PU and chunk that a row is about.
    pub fn place_of_row(&self, row: u32) -> Option<(u32, u32)> {
        (self.chunk_row(0)..self.extra_row())
            .contains(&row)
            .then(|| self.place_of(row - self.chunk_row(0)))
    }

    /// First of the rows that hold what has no fixed size.
    pub fn extra_row(&self) -> u32 {
        self.chunk_row(self.chunks)
    }

    /// Bytes of what has no fixed size: target settings, bad-block marks, lost and kept sectors, faults,
    /// counters of further causes.
    pub fn extra_bytes(&self) -> usize {
        let rows = (TARGETS_MAX + (16 << 10) + 16 * self.chunks as usize).div_ceil(ROW_BYTES);
        rows * ROW_BYTES
    }

    /// Rows of the table.
    pub fn rows(&self) -> u32 {
        self.extra_row() + (self.extra_bytes() / ROW_BYTES) as u32
    }

    /// Where the table begins.
    pub fn table_at(&self) -> u64 {
        TABLE_AT
    }

    /// Where the journal begins: two halves, one behind the other.
    pub fn journal_at(&self) -> u64 {
        TABLE_AT + (self.rows() as u64 * STORED_ROW_BYTES as u64).next_multiple_of(PAGE)
    }

    /// Frames of a half of the journal: a commit of every row fits.
    pub fn half_frames(&self) -> u64 {
        let all = (self.rows() as u64).div_ceil(ROWS_PER_FRAME as u64);
        let page = PAGE / FRAME_BYTES as u64;
        all.max(FRAMES_MIN).next_multiple_of(page)
    }

    /// Where a frame of a half of the journal lies.
    pub fn frame_at(&self, half: u64, frame: u64) -> u64 {
        self.journal_at() + (half * self.half_frames() + frame) * FRAME_BYTES as u64
    }

    /// Where the slots begin.
    pub fn slots_at(&self) -> u64 {
        self.journal_at() + 2 * self.half_frames() * FRAME_BYTES as u64
    }

    /// Whether an image that is created with these regions reserves the room for table and journal.
    pub fn is_reserved(&self) -> bool {
        self.slots_at() - self.table_at() <= RESERVED_MAX
    }

    /// Bytes of a slot: a chunk's content, then its records, in whole pages.
    pub fn slot_bytes(&self) -> u64 {
        let records = self.sectors as u64 * self.record_bytes() as u64;
        self.sectors as u64 * SECTOR_BYTES as u64 + records.next_multiple_of(PAGE)
    }
}

/// What the channels of a device share of its image.
pub struct Shared {
    /// The file.
    pub file: Arc<dyn HostFile>,
    /// Its regions.
    pub layout: Layout,
    /// Nothing may be written.
    pub read_only: bool,
    /// Which slots are whose.
    pub slots: slots::Slots,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("layout", &self.layout).finish_non_exhaustive()
    }
}
