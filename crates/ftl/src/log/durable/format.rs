//! What Flashlane's log FTL writes on the medium, byte by byte (tables in `docs/FORMAT.md`).
//!
//! Owns: the out-of-band record of a sector ([`oob`]), the metadata of a line ([`mod@line`]), the
//! blocks and records of the FTL log with its anchor ([`record`]), and the shards of a checkpoint
//! ([`shard`]).
//! Promises: what is decoded was encoded, bit for bit (CRC32C over everything that is interpreted);
//! no input panics, and none makes a decoder allocate more than the input's own size; integers are
//! little-endian on every machine.
//! Never: decides when something is written or in what order (that is `drain.rs`, `recover.rs`), or
//! knows a medium address beyond the numbers it stores.
//!
//! Every block starts with the same 32 bytes, the *envelope*, which stays the same in all versions,
//! so that a reader of any version can tell "damaged" from "newer than me":
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 4 | CRC32C over bytes 8 .. length |
//! | 8 | 4 | length in bytes, itself and the fill included |
//! | 12 | 2 | major version |
//! | 14 | 2 | minor version |
//! | 16 | 16 | target uuid |

#[cfg(test)]
mod documented;
pub mod line;
pub mod oob;
pub mod record;
pub mod shard;
#[cfg(test)]
mod tests;

use std::fmt;

pub use line::{CAUSES, ClosingHeader, ClosingView, LineFirst, SECTION_ENTRIES, closing_sectors};
pub use oob::{
    LBA_ANCHOR, LBA_BITS, LBA_CHECKPOINT, LBA_LIMIT, LBA_LINE_CLOSING, LBA_LINE_FIRST, LBA_LOG,
    LBA_MASK, LBA_NONE, LBA_PADDING, LBA_SNAPSHOT, Oob, OobLba, PACKED_BYTES, STAMP_BITS,
    STAMP_MAX, pack_entry, unpack_entry,
};
pub use record::{
    Anchor, CONFIG_BYTES_MAX, Extent, LogBlock, LogBlockBuilder, LogBlockHeader, LogEntry, Record,
    RecordTooBig, SegmentPair, decode_record, encode_record,
};
pub use shard::{EntryWidth, Runs, ShardEntry, ShardHeader, ShardView, Stripes};

/// Bytes of one sector: the unit of content, of an out-of-band record and of every block's length.
pub const SECTOR_BYTES: usize = 4096;

/// Major version written. A reader refuses a larger one, and reads all that are smaller: 1 has neither shards
/// in runs nor records of shards that an older checkpoint wrote.
pub const MAJOR: u16 = 2;

/// Largest minor version that this program knows. A larger one may add fields after those known,
/// and record types; the stack opens such a target read-only. Blocks that have nothing newer are
/// written with minor version 0, so older programs can go on with them.
pub const MINOR: u16 = MINOR_TELLS;

/// Minor version of the log blocks of a target whose flushes tell what they have programmed.
const MINOR_TELLS: u16 = 1;

/// Offset of the minor version in an envelope, in bytes.
const MINOR_AT: usize = 14;

/// Largest stamp, sequence, id or counter that a mount goes on from. Each has 60 bits in some
/// out-of-band record, and what is above leaves no room for a life (2^50 stamps are 13 days).
pub const COUNT_MAX: u64 = STAMP_MAX - (1 << 50);

/// Identity of a target, drawn when it is created; blocks of another target never mix in.
pub type Uuid = [u8; 16];

pub(crate) const ENVELOPE_BYTES: usize = 32;

/// Which structure an error speaks of, and which a block claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// First metadata of a line.
    LineFirst,
    /// Header sector of a line's closing metadata.
    LineClosing,
    /// One sector of a line's closing metadata that holds entries.
    ClosingEntries,
    /// Header of a log block.
    LogBlock,
    /// One record inside a log block.
    LogRecord,
    /// Anchor block.
    Anchor,
    /// Checkpoint shard.
    Shard,
}

impl Section {
    /// The four bytes a block of this kind begins with. Sections inside a block have none.
    const fn magic(self) -> u32 {
        match self {
            Section::LineFirst => u32::from_le_bytes(*b"FLlf"),
            Section::LineClosing => u32::from_le_bytes(*b"FLlc"),
            Section::LogBlock => u32::from_le_bytes(*b"FLlg"),
            Section::Anchor => u32::from_le_bytes(*b"FLan"),
            Section::Shard => u32::from_le_bytes(*b"FLcs"),
            Section::ClosingEntries | Section::LogRecord => 0,
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Section::LineFirst => "line first metadata",
            Section::LineClosing => "line closing metadata",
            Section::ClosingEntries => "line closing entries",
            Section::LogBlock => "log block",
            Section::LogRecord => "log record",
            Section::Anchor => "anchor",
            Section::Shard => "checkpoint shard",
        })
    }
}

/// Why bytes are not what they should be: which structure, at which byte of the input, and what was
/// expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatError {
    /// The input ends too early.
    Truncated {
        section: Section,
        /// Byte of the input where the missing part begins.
        offset: usize,
        /// Bytes needed from there.
        needed: usize,
        /// Bytes that were there.
        found: usize,
    },
    /// Another structure, or none: an erased sector, user data, another program's bytes.
    Magic { section: Section, expected: u32, found: u32 },
    /// Damaged, torn or half written.
    Crc {
        section: Section,
        /// Byte of the input where the covered part begins.
        offset: usize,
        expected: u32,
        /// The CRC computed over what is there.
        found: u32,
    },
    /// Intact, but written by a later major version: never guess, refuse.
    NewerMajor {
        section: Section,
        found: u16,
        /// Highest version this code reads.
        known: u16,
    },
    /// Intact, but of a kind that this version has no meaning for (a newer minor version).
    UnknownRecord {
        /// Byte of the input where the record begins.
        offset: usize,
        kind: u8,
    },
    /// Intact by its CRC, but a field holds what no writer writes.
    Field {
        section: Section,
        /// Byte of the input where the field begins.
        offset: usize,
        expected: &'static str,
        found: u64,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FormatError::Truncated { section, offset, needed, found } => write!(
                f,
                "{section}: {needed} bytes expected at byte {offset}, the input has {found}"
            ),
            FormatError::Magic { section, expected, found } => {
                write!(
                    f,
                    "{section}: magic {expected:#010x} expected at byte 0, found {found:#010x}"
                )
            }
            FormatError::Crc { section, offset, expected, found } => write!(
                f,
                "{section}: CRC {expected:#010x} stored for the bytes from {offset}, \
                 they have {found:#010x}"
            ),
            FormatError::NewerMajor { section, found, known } => write!(
                f,
                "{section}: major version {found} at byte 12, this program reads up to {known}; \
                 use a newer flashlane"
            ),
            FormatError::UnknownRecord { offset, kind } => write!(
                f,
                "log record: type {kind} at byte {offset} is not known to this program; \
                 use a newer flashlane"
            ),
            FormatError::Field { section, offset, expected, found } => {
                write!(f, "{section}: {expected} expected at byte {offset}, found {found}")
            }
        }
    }
}

impl std::error::Error for FormatError {}

/// Says which structure a block claims to be by its magic: for scans over chunks that no log record
/// names. A claim only; decoding checks it.
pub fn identify(bytes: &[u8]) -> Option<Section> {
    const KINDS: [Section; 5] = [
        Section::LineFirst,
        Section::LineClosing,
        Section::LogBlock,
        Section::Anchor,
        Section::Shard,
    ];
    let magic = u32::from_le_bytes(*bytes.first_chunk()?);
    KINDS.into_iter().find(|kind| kind.magic() == magic)
}

/// Was this block, which decoded without error, written by a later minor version? Then the target
/// opens read-only: it may rest on something this version doesn't know.
pub fn is_newer_minor(bytes: &[u8]) -> bool {
    let minor = bytes.get(MINOR_AT..).and_then(|rest| rest.first_chunk::<2>());
    minor.is_some_and(|minor| u16::from_le_bytes(*minor) > MINOR)
}

/// What an intact envelope says.
#[derive(Clone, Copy, Debug)]
struct Envelope {
    uuid: Uuid,
    minor: u16,
    /// Bytes that the CRC covers, counted from the block's first byte.
    length: usize,
}

/// Bytes rounded up to whole sectors.
pub(crate) const fn whole_sectors(bytes: usize) -> usize {
    bytes.div_ceil(SECTOR_BYTES) * SECTOR_BYTES
}

/// A block to which padding up to a write unit is going to be added finds the memory there, so that
/// it is not copied for that.
const UNIT_PADDING: usize = flashlane_base::VECTOR_MAX * SECTOR_BYTES;

/// Begins a block: the envelope with CRC still open. [`seal`] closes it.
fn open_block(section: Section, uuid: &Uuid, capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    put_u32(&mut out, section.magic());
    put_u64(&mut out, 0);
    out.extend_from_slice(&MAJOR.to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(uuid);
    debug_assert_eq!(out.len(), ENVELOPE_BYTES);
    out
}

/// Writes length and CRC of a block whose first `length` bytes are complete.
fn seal(block: &mut [u8], length: usize) {
    assert!(length >= ENVELOPE_BYTES && length <= block.len(), "seal of {length} bytes");
    let field = u32::try_from(length).expect("a block is below 4 GiB: shards are cut far smaller");
    block[8..12].copy_from_slice(&field.to_le_bytes());
    let crc = flashlane_base::crc32c(&block[8..length]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Checks magic, length, CRC and major version, in this order: only an intact block may say that it
/// is newer, else one flipped bit would refuse a mount. `least` is this kind's shortest length.
fn check_envelope(bytes: &[u8], section: Section, least: usize) -> Result<Envelope, FormatError> {
    let mut at = Reader::new(bytes, section, 0);
    let magic = at.u32()?;
    if magic != section.magic() {
        return Err(FormatError::Magic { section, expected: section.magic(), found: magic });
    }
    let stored = at.u32()?;
    let length = at.u32()? as usize;
    if length < least {
        return Err(FormatError::Field {
            section,
            offset: 8,
            expected: "a length that holds the header",
            found: length as u64,
        });
    }
    let Some(covered) = bytes.get(8..length) else {
        return Err(FormatError::Truncated {
            section,
            offset: bytes.len(),
            needed: length - bytes.len(),
            found: 0,
        });
    };
    let crc = flashlane_base::crc32c(covered);
    if crc != stored {
        return Err(FormatError::Crc { section, offset: 8, expected: stored, found: crc });
    }
    let (major, minor) = (at.u16()?, at.u16()?);
    if major > MAJOR {
        return Err(FormatError::NewerMajor { section, found: major, known: MAJOR });
    }
    if major == 0 {
        return Err(FormatError::Field {
            section,
            offset: 12,
            expected: "major version 1 or more",
            found: 0,
        });
    }
    Ok(Envelope { uuid: at.bytes()?, minor, length })
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Takes integers from bytes that may be anything; every error knows its byte in the whole input.
#[derive(Clone)]
struct Reader<'a> {
    rest: &'a [u8],
    section: Section,
    offset: usize,
}

impl<'a> Reader<'a> {
    /// `offset` is where `bytes` begins in the input that errors speak of.
    fn new(bytes: &'a [u8], section: Section, offset: usize) -> Self {
        Reader { rest: bytes, section, offset }
    }

    /// A reader of a block's body behind the envelope. An envelope checked before makes this exact.
    fn body(bytes: &'a [u8], section: Section, length: usize) -> Self {
        let body = bytes.get(ENVELOPE_BYTES..length).unwrap_or_default();
        Reader::new(body, section, ENVELOPE_BYTES)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(N));
        };
        self.rest = rest;
        self.offset += N;
        Ok(*head)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], FormatError> {
        let Some((head, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.truncated(length));
        };
        self.rest = rest;
        self.offset += length;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.bytes()?))
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A u64 that has to be a stamp.
    fn stamp(&mut self) -> Result<u64, FormatError> {
        let offset = self.offset;
        let stamp = self.u64()?;
        if stamp > STAMP_MAX {
            return Err(self.field(offset, "a stamp of 60 bits", stamp));
        }
        Ok(stamp)
    }

    /// A list of `count` u32. The bytes are there before anything is allocated for them.
    fn list_u32(&mut self, count: usize) -> Result<Vec<u32>, FormatError> {
        let bytes = self.slice(count.saturating_mul(4))?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn truncated(&self, needed: usize) -> FormatError {
        FormatError::Truncated {
            section: self.section,
            offset: self.offset,
            needed,
            found: self.rest.len(),
        }
    }

    fn field(&self, offset: usize, expected: &'static str, found: u64) -> FormatError {
        FormatError::Field { section: self.section, offset, expected, found }
    }
}
