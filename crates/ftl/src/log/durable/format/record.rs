//! The FTL log: records, the blocks they are packed into, and the anchor that finds the log.
//!
//! Promises: a block yields its records in order up to the first that is not intact, never one
//! behind it; a record of an earlier life of the log (generation) or out of sequence counts as not
//! intact; a record type of a later version is told apart from damage.
//! Never knows mirrors, segments' ends or when something is durable (`recover.rs`, the log writer).
//!
//! Log block: envelope of length 64 (its CRC covers the header only, because records carry their
//! own, so a damaged block still gives its beginning), then
//!
//! | offset | size | field |
//! |---|---|---|
//! | 32 | 4 | generation |
//! | 36 | 4 | sectors of the block |
//! | 40 | 8 | sequence of the first record |
//! | 48 | 4 | bytes in use, this header included |
//! | 52 | 4 | number of records |
//! | 56 | 8 | id of the segment pair the block belongs to |
//!
//! Record:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | CRC32C over bytes 4 .. length |
//! | 4 | 4 | length in bytes, header included |
//! | 8 | 4 | generation |
//! | 12 | 1 | type |
//! | 13 | 3 | zero |
//! | 16 | 8 | sequence |
//! | 24 | | payload (table in `docs/FORMAT.md`) |

use super::oob::{LBA_LIMIT, PACKED_BYTES};
use super::{
    FormatError, MINOR_AT, MINOR_TELLS, Reader, SECTOR_BYTES, Section, Uuid, check_envelope,
    open_block, put_u32, put_u64, seal,
};

/// Bytes of a block's header.
const BLOCK_BYTES: usize = 64;
/// Bytes of a record before its payload.
const RECORD_BYTES: usize = 24;
/// Bytes of an anchor that are in use.
const ANCHOR_BYTES: usize = 80;
/// Longest target configuration, in bytes: it shares a one-sector block with its headers.
pub const CONFIG_BYTES_MAX: usize = 3072;

/// A run of sectors inside one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Chunk within the target: pu × chunks per pu + chunk.
    pub chunk: u32,
    /// First sector within the chunk.
    pub sector: u32,
    pub count: u32,
}

/// Two chunks on two dies that carry the same log blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentPair {
    /// Counts the pairs of a target from 1; never used twice.
    pub id: u64,
    /// The chunks, within the target.
    pub chunks: [u32; 2],
}

/// One fact in the log. Stamps are ns, below 2^60.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// The target runs: durable before the first erase or program of this generation.
    Started,
    /// A line's chunks are erased and may be programmed from now on.
    Opened { line: u32, sequence: u64, chunks: Vec<u32> },
    /// All units of a line have completed and its closing metadata is programmed.
    Closed {
        line: u32,
        sequence: u64,
        /// Where the closing metadata lies, in its order; none: it couldn't be written, scan OOB.
        places: Vec<Extent>,
    },
    /// Nothing in this line is needed any more: its chunks may be erased.
    Freed { line: u32, sequence: u64 },
    /// A chunk that is never used again.
    Retired { chunk: u32 },
    /// A range reads as zeros from this stamp on.
    Discarded {
        lba: u64,
        count: u64,
        /// Stamp of the discard; orders like a write.
        stamp: u64,
    },
    /// A sector whose content is lost: reads fail until a later write or discard.
    Poisoned {
        lba: u64,
        /// Stamp of the lost content.
        stamp: u64,
    },
    /// No stamp above this one is given out until a higher one is durable.
    Ceiling {
        /// Stamp, ns.
        stamp: u64,
    },
    /// One shard of a checkpoint is in both places. Where it has not changed since an older checkpoint it was
    /// not written again: the places are those of then, and what is said here of position, floor and lines
    /// counts, not what the shard's header says.
    CheckpointShard {
        checkpoint: u64,
        /// Checkpoint that wrote it: this one, or an older one.
        written: u64,
        /// Index of the shard.
        shard: u32,
        lba: u64,
        count: u32,
        /// The two copies, on two dies.
        places: [Extent; 2],
        /// Sequence of the next log record when the shard began: replay starts here.
        position: u64,
        /// H: largest discard stamp when the shard began.
        floor: u64,
        /// Lowest line sequence open or in flight when the shard began.
        open_sequence: u64,
    },
    /// All shards of a checkpoint are there.
    CheckpointComplete {
        checkpoint: u64,
        shards: u32,
        /// Lowest `position` of its shards.
        position: u64,
    },
    /// Configuration of the target, opaque here, at most [`CONFIG_BYTES_MAX`].
    Config { bytes: Vec<u8> },
    /// A clean stop: everything is in the checkpoint, nothing was programmed since. Only if this is
    /// the last record may a start trust the checkpoint without replay: a checkpoint taken while
    /// running can be last too, with flushed data behind it in lines opened before.
    Stopped { checkpoint: u64 },
    /// Last record of a segment: the log goes on in this pair, whose chunks are erased.
    Segment { next: SegmentPair },
    /// How far the chunks of an open line had been written when the power came back, before recovery
    /// pads any of them: behind that lies nothing of the host's, and only the last unit before it may
    /// be torn, however often recovery itself is cut.
    Frontier {
        line: u32,
        sequence: u64,
        /// Write pointer of each chunk of the line, in stripe order, sectors.
        pointers: Vec<u32>,
    },
    /// First record of every segment but a target's first: names the pair before it. Where a mirror
    /// failed, that pair ends without a [`Record::Segment`], and only this leads to it.
    Follows { previous: SegmentPair },
    /// Tells what durable units of one chunk hold. The log has it on two dies. If the chunk dies
    /// before its line's closing metadata counts, a mount knows from this record which sectors are
    /// lost, and takes no older copy for one.
    Written {
        line: u32,
        sequence: u64,
        chunk: u32,
        /// First sector, where a unit begins.
        sector: u32,
        /// Entries of the sectors from there on, as the line's closing metadata will have them;
        /// whole units.
        entries: Vec<[u8; PACKED_BYTES]>,
    },
}

impl Record {
    /// The type byte. Numbers are never reused.
    const fn kind(&self) -> u8 {
        match self {
            Record::Started => 1,
            Record::Opened { .. } => 2,
            Record::Closed { .. } => 3,
            Record::Freed { .. } => 4,
            Record::Retired { .. } => 5,
            Record::Discarded { .. } => 6,
            Record::Poisoned { .. } => 7,
            Record::Ceiling { .. } => 8,
            Record::CheckpointShard { checkpoint, written, .. } if *checkpoint == *written => 9,
            Record::CheckpointShard { .. } => 16,
            Record::CheckpointComplete { .. } => 10,
            Record::Config { .. } => 11,
            Record::Segment { .. } => 12,
            Record::Stopped { .. } => 13,
            Record::Follows { .. } => 14,
            Record::Frontier { .. } => 15,
            Record::Written { .. } => 17,
        }
    }

    /// Bytes of a checkpoint's shard in a block, where the checkpoint wrote it itself.
    pub const SHARD_BYTES: usize = RECORD_BYTES + 72;

    /// Bytes of a [`Record::Written`] of so many sectors in a block.
    pub const fn written_bytes(sectors: usize) -> usize {
        RECORD_BYTES + 24 + PACKED_BYTES * sectors
    }

    /// Bytes of this record in a block.
    pub fn encoded_len(&self) -> usize {
        RECORD_BYTES
            + match self {
                Record::Started => 0,
                Record::Opened { chunks, .. } => 16 + 4 * chunks.len(),
                Record::Frontier { pointers, .. } => 16 + 4 * pointers.len(),
                Record::Closed { places, .. } => 16 + 12 * places.len(),
                Record::Freed { .. } => 12,
                Record::Retired { .. } => 4,
                Record::Discarded { .. } => 24,
                Record::Poisoned { .. } => 16,
                Record::Ceiling { .. } => 8,
                Record::CheckpointShard { checkpoint, written, .. } => {
                    Record::SHARD_BYTES - RECORD_BYTES + if *checkpoint == *written { 0 } else { 8 }
                }
                Record::CheckpointComplete { .. } => 20,
                Record::Config { bytes } => bytes.len(),
                Record::Segment { .. } | Record::Follows { .. } => 16,
                Record::Stopped { .. } => 8,
                Record::Written { entries, .. } => {
                    Record::written_bytes(entries.len()) - RECORD_BYTES
                }
            }
    }
}

/// A record with its place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Which life of the log wrote it; grows at every start.
    pub generation: u32,
    /// Position in the log, counted over all generations.
    pub sequence: u64,
    pub record: Record,
}

/// Appends a record to `out`.
pub fn encode_record(record: &Record, generation: u32, sequence: u64, out: &mut Vec<u8>) {
    let start = out.len();
    let length = record.encoded_len();
    out.reserve(length);
    put_u32(out, 0);
    put_u32(out, u32::try_from(length).expect("a record fits a block"));
    put_u32(out, generation);
    out.extend_from_slice(&[record.kind(), 0, 0, 0]);
    put_u64(out, sequence);
    put_payload(record, out);
    debug_assert_eq!(out.len(), start + length, "{record:?}");
    let crc = flashlane_base::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

fn put_payload(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::Started => {}
        Record::Opened { line, sequence, chunks: words }
        | Record::Frontier { line, sequence, pointers: words } => {
            put_line(out, *line, *sequence);
            put_u32(out, u32::try_from(words.len()).expect("a record fits a block"));
            words.iter().for_each(|word| put_u32(out, *word));
        }
        Record::Closed { line, sequence, places } => {
            put_line(out, *line, *sequence);
            put_u32(out, u32::try_from(places.len()).expect("a record fits a block"));
            places.iter().for_each(|place| put_extent(out, place));
        }
        Record::Freed { line, sequence } => put_line(out, *line, *sequence),
        Record::Retired { chunk } => put_u32(out, *chunk),
        Record::Discarded { lba, count, stamp } => {
            [*lba, *count, *stamp].into_iter().for_each(|word| put_u64(out, word));
        }
        Record::Poisoned { lba, stamp } => {
            [*lba, *stamp].into_iter().for_each(|word| put_u64(out, word));
        }
        Record::Ceiling { stamp } => put_u64(out, *stamp),
        Record::CheckpointShard { .. } => put_shard(record, out),
        Record::CheckpointComplete { checkpoint, shards, position } => {
            put_u64(out, *checkpoint);
            put_u32(out, *shards);
            put_u64(out, *position);
        }
        Record::Config { bytes } => out.extend_from_slice(bytes),
        Record::Segment { next: pair } | Record::Follows { previous: pair } => put_pair(out, pair),
        Record::Stopped { checkpoint } => put_u64(out, *checkpoint),
        Record::Written { line, sequence, chunk, sector, entries } => {
            put_line(out, *line, *sequence);
            put_extent(
                out,
                &Extent { chunk: *chunk, sector: *sector, count: entries.len() as u32 },
            );
            out.extend_from_slice(entries.as_flattened());
        }
    }
}

fn put_shard(record: &Record, out: &mut Vec<u8>) {
    if let Record::CheckpointShard {
        checkpoint,
        written,
        shard,
        lba,
        count,
        places,
        position,
        floor,
        open_sequence,
    } = record
    {
        put_u64(out, *checkpoint);
        put_u32(out, *shard);
        put_u32(out, *count);
        put_u64(out, *lba);
        places.iter().for_each(|place| put_extent(out, place));
        [*position, *floor, *open_sequence].into_iter().for_each(|word| put_u64(out, word));
        if written != checkpoint {
            put_u64(out, *written);
        }
    }
}

fn put_line(out: &mut Vec<u8>, line: u32, sequence: u64) {
    put_u32(out, line);
    put_u64(out, sequence);
}

fn put_extent(out: &mut Vec<u8>, place: &Extent) {
    [place.chunk, place.sector, place.count].into_iter().for_each(|word| put_u32(out, word));
}

fn put_pair(out: &mut Vec<u8>, pair: &SegmentPair) {
    put_u64(out, pair.id);
    pair.chunks.into_iter().for_each(|chunk| put_u32(out, chunk));
}

/// Decodes the record at the beginning of `bytes`: it, and its length.
///
/// [`FormatError::UnknownRecord`] says that an *intact* record is of a later version's type. Every
/// other error means that no record is here: in a log, its end.
pub fn decode_record(bytes: &[u8]) -> Result<(LogEntry, usize), FormatError> {
    decode_record_at(bytes, 0)
}

/// [`decode_record`] with errors that count from `offset` bytes before.
fn decode_record_at(bytes: &[u8], offset: usize) -> Result<(LogEntry, usize), FormatError> {
    let section = Section::LogRecord;
    let mut at = Reader::new(bytes, section, offset);
    let stored = at.u32()?;
    let length = at.u32()? as usize;
    if length < RECORD_BYTES {
        return Err(at.field(offset + 4, "a length that holds the header", length as u64));
    }
    let Some(covered) = bytes.get(4..length) else {
        let (needed, found) = (length, bytes.len());
        return Err(FormatError::Truncated { section, offset, needed, found });
    };
    let found = flashlane_base::crc32c(covered);
    if found != stored {
        return Err(FormatError::Crc { section, offset: offset + 4, expected: stored, found });
    }
    let generation = at.u32()?;
    let [kind, ..] = at.bytes::<4>()?;
    let sequence = at.u64()?;
    at.rest = bytes.get(RECORD_BYTES..length).unwrap_or_default();
    let record = take_payload(kind, &mut at, offset)?;
    if !at.rest.is_empty() {
        return Err(at.field(at.offset, "the end of the record", at.rest.len() as u64));
    }
    Ok((LogEntry { generation, sequence, record }, length))
}

fn take_payload(kind: u8, at: &mut Reader<'_>, offset: usize) -> Result<Record, FormatError> {
    Ok(match kind {
        1 => Record::Started,
        2 => {
            let (line, sequence) = take_line(at)?;
            let count = at.u32()? as usize;
            Record::Opened { line, sequence, chunks: at.list_u32(count)? }
        }
        3 => {
            let (line, sequence) = take_line(at)?;
            let count = at.u32()? as usize;
            let words = at.list_u32(count.saturating_mul(3))?;
            let places = words.as_chunks::<3>().0.iter();
            let places = places.map(|&[chunk, sector, count]| Extent { chunk, sector, count });
            Record::Closed { line, sequence, places: places.collect() }
        }
        4 => {
            let (line, sequence) = take_line(at)?;
            Record::Freed { line, sequence }
        }
        5 => Record::Retired { chunk: at.u32()? },
        6 => {
            let (lba, count) = take_range(at)?;
            Record::Discarded { lba, count, stamp: at.stamp()? }
        }
        7 => Record::Poisoned { lba: take_lba(at)?, stamp: at.stamp()? },
        8 => Record::Ceiling { stamp: at.stamp()? },
        9 => take_shard(at, false)?,
        10 => Record::CheckpointComplete {
            checkpoint: at.u64()?,
            shards: at.u32()?,
            position: at.u64()?,
        },
        11 => {
            if at.rest.len() > CONFIG_BYTES_MAX {
                let found = at.rest.len() as u64;
                return Err(at.field(at.offset, "at most 3072 bytes of configuration", found));
            }
            Record::Config { bytes: at.slice(at.rest.len())?.to_vec() }
        }
        12 => Record::Segment { next: take_pair(at)? },
        13 => Record::Stopped { checkpoint: at.u64()? },
        14 => Record::Follows { previous: take_pair(at)? },
        15 => {
            let (line, sequence) = take_line(at)?;
            let count = at.u32()? as usize;
            Record::Frontier { line, sequence, pointers: at.list_u32(count)? }
        }
        16 => take_shard(at, true)?,
        17 => {
            let (line, sequence) = take_line(at)?;
            let Extent { chunk, sector, count } = take_extent(at)?;
            let bytes = at.slice((count as usize).saturating_mul(PACKED_BYTES))?;
            let entries = bytes.as_chunks::<PACKED_BYTES>().0.to_vec();
            Record::Written { line, sequence, chunk, sector, entries }
        }
        kind => return Err(FormatError::UnknownRecord { offset, kind }),
    })
}

/// A shard of a checkpoint; `is_kept`: that an older one wrote.
fn take_shard(at: &mut Reader<'_>, is_kept: bool) -> Result<Record, FormatError> {
    let checkpoint = at.u64()?;
    let shard = at.u32()?;
    let count = at.u32()?;
    let lba = take_lba(at)?;
    let places = [take_extent(at)?, take_extent(at)?];
    let (position, floor, open_sequence) = (at.u64()?, at.stamp()?, at.u64()?);
    let offset = at.offset;
    let written = if is_kept { at.u64()? } else { checkpoint };
    if is_kept && written >= checkpoint {
        return Err(at.field(offset, "an older checkpoint", written));
    }
    Ok(Record::CheckpointShard {
        checkpoint,
        written,
        shard,
        lba,
        count,
        places,
        position,
        floor,
        open_sequence,
    })
}

fn take_line(at: &mut Reader<'_>) -> Result<(u32, u64), FormatError> {
    Ok((at.u32()?, at.u64()?))
}

fn take_lba(at: &mut Reader<'_>) -> Result<u64, FormatError> {
    let offset = at.offset;
    let lba = at.u64()?;
    if lba >= LBA_LIMIT {
        return Err(at.field(offset, "a logical sector below 2^36 - 256", lba));
    }
    Ok(lba)
}

/// A range that ends at or below [`LBA_LIMIT`].
fn take_range(at: &mut Reader<'_>) -> Result<(u64, u64), FormatError> {
    let lba = take_lba(at)?;
    let offset = at.offset;
    let count = at.u64()?;
    if count > LBA_LIMIT - lba {
        return Err(at.field(offset, "a range that ends below 2^36 - 256", count));
    }
    Ok((lba, count))
}

fn take_extent(at: &mut Reader<'_>) -> Result<Extent, FormatError> {
    Ok(Extent { chunk: at.u32()?, sector: at.u32()?, count: at.u32()? })
}

fn take_pair(at: &mut Reader<'_>) -> Result<SegmentPair, FormatError> {
    Ok(SegmentPair { id: at.u64()?, chunks: [at.u32()?, at.u32()?] })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBlockHeader {
    /// Target the log belongs to.
    pub uuid: Uuid,
    pub generation: u32,
    /// Sectors of the block: one write unit of the log, the same in all blocks of a target.
    pub sectors: u32,
    /// Sequence of its first record; the others follow without a gap.
    pub first_sequence: u64,
    /// Id of the segment pair it belongs to.
    pub segment: u64,
    /// Flushes of the target tell what they have programmed: minor version 1.
    pub tells: bool,
}

/// A record that doesn't fit: into the rest of a block (finish it, take the next), or into any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTooBig {
    /// Bytes of the record.
    pub needed: usize,
    /// Bytes left in the block.
    pub room: usize,
}

impl std::fmt::Display for RecordTooBig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "log record of {} bytes, the block has {} left", self.needed, self.room)
    }
}

impl std::error::Error for RecordTooBig {}

/// Packs records into one block.
#[derive(Debug)]
pub struct LogBlockBuilder {
    header: LogBlockHeader,
    bytes: Vec<u8>,
    records: u32,
}

impl LogBlockBuilder {
    /// An empty block.
    ///
    /// # Panics
    /// If the block has no sector: a caller's bug.
    pub fn new(header: LogBlockHeader) -> Self {
        assert!(header.sectors > 0, "a log block has at least one sector");
        let capacity = header.sectors as usize * SECTOR_BYTES;
        let mut bytes = open_block(Section::LogBlock, &header.uuid, capacity);
        let minor = if header.tells { MINOR_TELLS } else { 0 };
        bytes[MINOR_AT..MINOR_AT + 2].copy_from_slice(&minor.to_le_bytes());
        bytes.resize(BLOCK_BYTES, 0);
        LogBlockBuilder { header, bytes, records: 0 }
    }

    /// Bytes that a block of `sectors` has for records: bounds `opened` of the widest line.
    pub const fn capacity(sectors: u32) -> usize {
        (sectors as usize * SECTOR_BYTES).saturating_sub(BLOCK_BYTES)
    }

    /// Bytes left for records.
    pub fn room(&self) -> usize {
        self.header.sectors as usize * SECTOR_BYTES - self.bytes.len()
    }

    /// Number of records so far.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Adds a record and says which sequence it got.
    pub fn push(&mut self, record: &Record) -> Result<u64, RecordTooBig> {
        let (needed, room) = (record.encoded_len(), self.room());
        if needed > room {
            return Err(RecordTooBig { needed, room });
        }
        let sequence = self.header.first_sequence + u64::from(self.records);
        encode_record(record, self.header.generation, sequence, &mut self.bytes);
        self.records += 1;
        Ok(sequence)
    }

    /// The whole block, ready to be programmed.
    pub fn finish(mut self) -> Vec<u8> {
        let used = u32::try_from(self.bytes.len()).expect("a block is below 4 GiB");
        let mut fields = Vec::with_capacity(BLOCK_BYTES);
        put_u32(&mut fields, self.header.generation);
        put_u32(&mut fields, self.header.sectors);
        put_u64(&mut fields, self.header.first_sequence);
        put_u32(&mut fields, used);
        put_u32(&mut fields, self.records);
        put_u64(&mut fields, self.header.segment);
        self.bytes[super::ENVELOPE_BYTES..BLOCK_BYTES].copy_from_slice(&fields);
        seal(&mut self.bytes, BLOCK_BYTES);
        self.bytes.resize(self.header.sectors as usize * SECTOR_BYTES, 0);
        self.bytes
    }
}

/// A log block read back: an iterator over its records.
///
/// Ends after the last record, or with the error of the first that is not intact. A caller that
/// got an error other than [`FormatError::UnknownRecord`] has reached a torn or decayed place.
#[derive(Clone, Debug)]
pub struct LogBlock<'a> {
    header: LogBlockHeader,
    records: &'a [u8],
    offset: usize,
    next: u64,
    left: u32,
}

impl<'a> LogBlock<'a> {
    /// Decodes the header of a block that may be damaged behind it.
    pub fn decode(bytes: &'a [u8]) -> Result<LogBlock<'a>, FormatError> {
        let section = Section::LogBlock;
        let envelope = check_envelope(bytes, section, BLOCK_BYTES)?;
        let mut at = Reader::body(bytes, section, envelope.length);
        let generation = at.u32()?;
        let sectors = at.u32()?;
        let first_sequence = at.u64()?;
        let used = at.u32()? as usize;
        let records = at.u32()?;
        let segment = at.u64()?;
        let whole = (sectors as usize).saturating_mul(SECTOR_BYTES);
        if used < envelope.length || used > whole {
            return Err(at.field(48, "bytes in use between header and block", used as u64));
        }
        let used = used.min(bytes.len());
        let (uuid, tells) = (envelope.uuid, envelope.minor >= MINOR_TELLS);
        Ok(LogBlock {
            header: LogBlockHeader { uuid, generation, sectors, first_sequence, segment, tells },
            records: bytes.get(envelope.length..used).unwrap_or_default(),
            offset: envelope.length,
            next: first_sequence,
            left: records,
        })
    }

    pub fn header(&self) -> &LogBlockHeader {
        &self.header
    }

    /// Records not yet taken, as the header counts them.
    pub fn records_left(&self) -> u32 {
        self.left
    }

    fn take(&mut self) -> Result<LogEntry, FormatError> {
        let (entry, length) = decode_record_at(self.records, self.offset)?;
        let at = Reader::new(&[], Section::LogRecord, self.offset);
        if entry.generation != self.header.generation {
            let found = u64::from(entry.generation);
            return Err(at.field(self.offset + 8, "the block's generation", found));
        }
        if entry.sequence != self.next {
            return Err(at.field(self.offset + 16, "the next sequence", entry.sequence));
        }
        self.records = self.records.get(length..).unwrap_or_default();
        self.offset += length;
        self.next = self.next.wrapping_add(1);
        Ok(entry)
    }
}

impl Iterator for LogBlock<'_> {
    type Item = Result<LogEntry, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let taken = self.take();
        self.left = if taken.is_ok() { self.left - 1 } else { 0 };
        Some(taken)
    }
}

/// Where the log is. Of all intact anchors of a target the one with the highest counter counts.
///
/// Envelope, then
///
/// | offset | size | field |
/// |---|---|---|
/// | 32 | 8 | counter |
/// | 40 | 4 | generation |
/// | 44 | 4 | zero |
/// | 48 | 16 | current segment pair: id u64, chunk u32 twice |
/// | 64 | 16 | oldest segment pair that is still needed: replay begins there |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Target whose log it is.
    pub uuid: Uuid,
    /// Grows with every anchor written, starting at 1.
    pub counter: u64,
    pub generation: u32,
    /// The pair the log was in when this anchor was written; `segment` records may lead on.
    pub current: SegmentPair,
    /// The oldest pair still needed; `segment` records lead from it to `current`.
    pub oldest: SegmentPair,
}

impl Anchor {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = open_block(Section::Anchor, &self.uuid, SECTOR_BYTES);
        put_u64(&mut out, self.counter);
        put_u32(&mut out, self.generation);
        put_u32(&mut out, 0);
        put_pair(&mut out, &self.current);
        put_pair(&mut out, &self.oldest);
        out.resize(SECTOR_BYTES, 0);
        seal(&mut out, SECTOR_BYTES);
        out
    }

    /// Decodes from bytes that may be longer.
    pub fn decode(bytes: &[u8]) -> Result<Anchor, FormatError> {
        let envelope = check_envelope(bytes, Section::Anchor, ANCHOR_BYTES)?;
        let mut at = Reader::body(bytes, Section::Anchor, envelope.length);
        let counter = at.u64()?;
        let generation = at.u32()?;
        at.u32()?;
        let current = take_pair(&mut at)?;
        let oldest = take_pair(&mut at)?;
        if oldest.id == 0 || oldest.id > current.id {
            return Err(at.field(64, "a segment pair from 1 to the current one", oldest.id));
        }
        Ok(Anchor { uuid: envelope.uuid, counter, generation, current, oldest })
    }
}
