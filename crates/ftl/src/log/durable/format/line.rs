//! The metadata a line carries about itself: what it is (first) and what it holds (closing).
//!
//! Promises: the first metadata names every chunk of the line, so a line is found without the log;
//! the closing metadata gives (lba, stamp) of every sector without reading out-of-band bytes, and
//! one damaged sector of it costs the entries of that sector only.
//! Never says where closing metadata lies: that is in the log's `closed` record, because a failed
//! unit moves it.
//!
//! Their bytes are in `docs/FORMAT.md`, "Line"; a test compares them.

use super::oob::{LBA_LIMIT, LBA_NONE, LBA_PADDING, PACKED_BYTES, pack_entry, unpack_entry};
use super::{
    FormatError, Reader, SECTOR_BYTES, Section, UNIT_PADDING, Uuid, check_envelope, open_block,
    put_u32, put_u64, seal, whole_sectors,
};

/// Bytes before the chunk list of the first metadata.
const FIRST_BYTES: usize = 64;
/// Bytes of the closing header that are in use.
const CLOSING_BYTES: usize = 176;
/// Bytes before the entries of an entry sector.
const SECTION_BYTES: usize = 16;
/// Entries in one sector of closing metadata: (4096 − 16) / 12, without a byte left over.
pub const SECTION_ENTRIES: usize = (SECTOR_BYTES - SECTION_BYTES) / PACKED_BYTES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFirst {
    /// Target the line belongs to.
    pub uuid: Uuid,
    /// Line id within the target; ids are reused, sequences never.
    pub line: u32,
    pub generation: u32,
    /// Position in the one order of all lines of a target.
    pub sequence: u64,
    /// Chunks in stripe order: pu × chunks per pu + chunk.
    pub chunks: Vec<u32>,
}

impl LineFirst {
    /// Sectors needed for `chunks` chunks: one holds 1008, more than most lines have.
    pub const fn sectors_needed(chunks: usize) -> usize {
        (FIRST_BYTES + 4 * chunks).div_ceil(SECTOR_BYTES)
    }

    /// Encodes to [`LineFirst::sectors_needed`] whole sectors.
    pub fn encode(&self) -> Vec<u8> {
        let length = LineFirst::sectors_needed(self.chunks.len()) * SECTOR_BYTES;
        let mut out = open_block(Section::LineFirst, &self.uuid, length);
        put_u32(&mut out, self.line);
        put_u32(&mut out, self.generation);
        put_u64(&mut out, self.sequence);
        put_u32(&mut out, u32::try_from(self.chunks.len()).expect("fewer chunks than 2^32"));
        out.resize(FIRST_BYTES, 0);
        self.chunks.iter().for_each(|chunk| put_u32(&mut out, *chunk));
        out.resize(length, 0);
        seal(&mut out, length);
        out
    }

    /// Decodes from bytes that may be longer (padding of the write unit follows).
    pub fn decode(bytes: &[u8]) -> Result<LineFirst, FormatError> {
        let envelope = check_envelope(bytes, Section::LineFirst, FIRST_BYTES)?;
        let mut at = Reader::body(bytes, Section::LineFirst, envelope.length);
        let line = at.u32()?;
        let generation = at.u32()?;
        let sequence = at.u64()?;
        let count = at.u32()? as usize;
        at.bytes::<12>()?;
        Ok(LineFirst {
            uuid: envelope.uuid,
            line,
            generation,
            sequence,
            chunks: at.list_u32(count)?,
        })
    }
}

/// Number of causes that there is room for. Order of the counters: user, gc, fold, padding.flush,
/// padding.pair, padding.gc, metadata, log, retry, dead, then later ones.
pub const CAUSES: usize = 24;
/// Those that stand in front of the counts by type; the others stand behind them.
const FIRST_CAUSES: usize = 10;

/// Header of a line's closing metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosingHeader {
    /// Target the line belongs to.
    pub uuid: Uuid,
    /// Line id within the target.
    pub line: u32,
    pub generation: u32,
    pub sequence: u64,
    /// Largest stamp among the line's user sectors; 0 where there are none.
    pub stamp_max: u64,
    /// Number of entries: sectors of the line in stripe order, up to where its data ended.
    pub entries: u32,
    /// Sectors programmed per cause, in the order of [`CAUSES`].
    pub causes: [u32; CAUSES],
    /// Entries that hold user data.
    pub user: u32,
    /// Entries that hold padding.
    pub padding: u32,
    /// Entries that hold metadata.
    pub metadata: u32,
    /// Entries that hold nothing: failed, or never reached before an early close.
    pub none: u32,
}

/// Sectors of closing metadata for a line with `entries` entries: one header and an entry sector
/// per 340. A line of 16,384 sectors needs 50 (0.3 %).
pub const fn closing_sectors(entries: usize) -> usize {
    1 + entries.div_ceil(SECTION_ENTRIES)
}

impl ClosingHeader {
    /// A header with `stamp_max` and the counts by type taken from the entries; causes are zero.
    pub fn of(uuid: Uuid, line: u32, sequence: u64, entries: &[[u8; PACKED_BYTES]]) -> Self {
        let mut header = ClosingHeader {
            uuid,
            line,
            generation: 0,
            sequence,
            stamp_max: 0,
            entries: u32::try_from(entries.len()).expect("a line has fewer than 2^32 sectors"),
            causes: [0; CAUSES],
            user: 0,
            padding: 0,
            metadata: 0,
            none: 0,
        };
        for some in entries.chunks(64) {
            // Without a branch over what is nearly always user data; then the few others by type.
            let (mut user, mut stamp_max) = (0, 0);
            for entry in some {
                let (lba, stamp) = unpack_entry(entry);
                let is_user = lba < LBA_LIMIT;
                user += u32::from(is_user);
                stamp_max = stamp_max.max(if is_user { stamp } else { 0 });
            }
            header.user += user;
            header.stamp_max = header.stamp_max.max(stamp_max);
            if user as usize == some.len() {
                continue;
            }
            for entry in some {
                match unpack_entry(entry).0 {
                    LBA_NONE => header.none += 1,
                    LBA_PADDING => header.padding += 1,
                    user if user < LBA_LIMIT => {}
                    _ => header.metadata += 1,
                }
            }
        }
        header
    }

    /// Encodes header and entries to [`closing_sectors`] whole sectors.
    ///
    /// # Panics
    /// If `entries` has not as many elements as the header says: a caller's bug.
    pub fn encode(&self, entries: &[[u8; PACKED_BYTES]]) -> Vec<u8> {
        assert_eq!(self.entries as usize, entries.len(), "closing metadata: entries");
        let length = closing_sectors(entries.len()) * SECTOR_BYTES;
        let mut out = open_block(Section::LineClosing, &self.uuid, length + UNIT_PADDING);
        put_u32(&mut out, self.line);
        put_u32(&mut out, self.generation);
        put_u64(&mut out, self.sequence);
        put_u64(&mut out, self.stamp_max);
        put_u32(&mut out, self.entries);
        put_u32(&mut out, 0);
        let (first, further) = self.causes.split_at(FIRST_CAUSES);
        let types = [self.user, self.padding, self.metadata, self.none];
        for count in first.iter().chain(&types).chain(further) {
            put_u32(&mut out, *count);
        }
        out.resize(SECTOR_BYTES, 0);
        seal(&mut out, SECTOR_BYTES);
        for (index, section) in entries.chunks(SECTION_ENTRIES).enumerate() {
            self.encode_section(index, section, &mut out);
        }
        out
    }

    fn encode_section(&self, index: usize, entries: &[[u8; PACKED_BYTES]], out: &mut Vec<u8>) {
        const UNUSED: [u8; PACKED_BYTES] = pack_entry(LBA_NONE, 0);
        let start = out.len();
        put_u32(out, 0);
        put_u32(out, u32::try_from(index).expect("fewer sections than sectors"));
        put_u64(out, self.sequence);
        out.extend_from_slice(entries.as_flattened());
        for _ in entries.len()..SECTION_ENTRIES {
            out.extend_from_slice(&UNUSED);
        }
        let crc = section_crc(&self.uuid, &out[start..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        debug_assert_eq!(out.len(), start + SECTOR_BYTES);
    }

    pub fn decode(bytes: &[u8]) -> Result<ClosingHeader, FormatError> {
        let envelope = check_envelope(bytes, Section::LineClosing, CLOSING_BYTES)?;
        let mut at = Reader::body(bytes, Section::LineClosing, envelope.length);
        let line = at.u32()?;
        let generation = at.u32()?;
        let sequence = at.u64()?;
        let stamp_max = at.stamp()?;
        let entries = at.u32()?;
        at.u32()?;
        let mut causes = [0; CAUSES];
        let (first, further) = causes.split_at_mut(FIRST_CAUSES);
        for count in first {
            *count = at.u32()?;
        }
        let [user, padding, metadata, none] = [at.u32()?, at.u32()?, at.u32()?, at.u32()?];
        for count in further {
            *count = at.u32()?;
        }
        Ok(ClosingHeader {
            uuid: envelope.uuid,
            line,
            generation,
            sequence,
            stamp_max,
            entries,
            causes,
            user,
            padding,
            metadata,
            none,
        })
    }
}

/// CRC of an entry sector. It begins with the target's uuid, which the sector has no room for, so
/// that entries of another target with the same line sequence never verify.
fn section_crc(uuid: &Uuid, section: &[u8]) -> u32 {
    flashlane_base::crc32c_append(
        flashlane_base::crc32c(uuid),
        section.get(4..).unwrap_or_default(),
    )
}

/// Closing metadata read back: a header and the entry sectors, which are checked one by one and
/// never copied.
#[derive(Clone, Copy, Debug)]
pub struct ClosingView<'a> {
    sectors: &'a [[u8; SECTOR_BYTES]],
    uuid: Uuid,
    sequence: u64,
    entries: usize,
}

impl<'a> ClosingView<'a> {
    /// Decodes the header and takes the entry sectors behind it, not yet checked. Input may be
    /// longer (padding of the write unit follows).
    pub fn decode(bytes: &'a [u8]) -> Result<(ClosingHeader, ClosingView<'a>), FormatError> {
        let header = ClosingHeader::decode(bytes)?;
        let entries = header.entries as usize;
        let needed = entries.div_ceil(SECTION_ENTRIES);
        let (sectors, _) = bytes.get(SECTOR_BYTES..).unwrap_or_default().as_chunks();
        let Some(sectors) = sectors.get(..needed) else {
            return Err(FormatError::Truncated {
                section: Section::ClosingEntries,
                offset: (1 + sectors.len()) * SECTOR_BYTES,
                needed: (needed - sectors.len()) * SECTOR_BYTES,
                found: 0,
            });
        };
        let view = ClosingView { sectors, uuid: header.uuid, sequence: header.sequence, entries };
        Ok((header, view))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Is there no entry at all?
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of entry sectors.
    pub fn sections(&self) -> usize {
        self.sectors.len()
    }

    /// Checks entry sector `index` (entries `340 × index ..`): its CRC, place and line. A caller
    /// falls back to the out-of-band records for the entries of a section that fails.
    pub fn check_section(&self, index: usize) -> Result<(), FormatError> {
        let section = Section::ClosingEntries;
        let start = (1 + index) * SECTOR_BYTES;
        let Some(sector) = self.sectors.get(index) else {
            return Err(FormatError::Truncated {
                section,
                offset: start,
                needed: SECTOR_BYTES,
                found: 0,
            });
        };
        let mut at = Reader::new(sector, section, start);
        let stored = at.u32()?;
        let found = section_crc(&self.uuid, sector);
        if stored != found {
            return Err(FormatError::Crc { section, offset: start + 4, expected: stored, found });
        }
        let place = at.u32()?;
        if place as usize != index {
            return Err(at.field(start + 4, "the section's own number", u64::from(place)));
        }
        let sequence = at.u64()?;
        if sequence != self.sequence {
            return Err(at.field(start + 8, "the header's line sequence", sequence));
        }
        Ok(())
    }

    /// Is every entry sector the one of its place and of this line? Without their CRCs, for who has
    /// verified the out-of-band records of all of them.
    pub fn is_in_place(&self) -> bool {
        self.sectors.iter().enumerate().all(|(index, sector)| {
            let mut at = Reader::new(&sector[4..], Section::ClosingEntries, 4);
            at.u32().is_ok_and(|place| place as usize == index)
                && at.u64().is_ok_and(|sequence| sequence == self.sequence)
        })
    }

    /// Checks all entry sectors; the first that fails is the error.
    pub fn check(&self) -> Result<(), FormatError> {
        (0..self.sections()).try_for_each(|index| self.check_section(index))
    }

    /// Entry `index` as (raw lba, stamp), without a check: [`ClosingView::check_section`] comes
    /// first. Beyond the end: nothing is there, which is [`LBA_NONE`].
    #[inline]
    pub fn entry(&self, index: usize) -> (u64, u64) {
        self.packed(index).map_or((LBA_NONE, 0), unpack_entry)
    }

    /// [`ClosingView::entry`] as it is stored; `None` beyond the end.
    #[inline]
    pub fn packed(&self, index: usize) -> Option<&'a [u8; PACKED_BYTES]> {
        if index >= self.entries {
            return None;
        }
        let at = SECTION_BYTES + index % SECTION_ENTRIES * PACKED_BYTES;
        self.sectors.get(index / SECTION_ENTRIES)?.get(at..)?.first_chunk::<PACKED_BYTES>()
    }

    /// The entries from `index` to the end of its section, as they are stored.
    #[inline]
    pub fn from(&self, index: usize) -> &'a [[u8; PACKED_BYTES]] {
        let (first, section) = self.section(index / SECTION_ENTRIES);
        section.get(index - first..).unwrap_or_default()
    }

    /// The entries of section `index` with the position of the first: for a replay over a line.
    pub fn section(&self, index: usize) -> (usize, &'a [[u8; PACKED_BYTES]]) {
        let first = index * SECTION_ENTRIES;
        let count = self.entries.saturating_sub(first).min(SECTION_ENTRIES);
        let packed = self.sectors.get(index).and_then(|sector| sector.get(SECTION_BYTES..));
        let (entries, _) = packed.unwrap_or_default().as_chunks();
        (first, entries.get(..count).unwrap_or_default())
    }
}

// The entry sector has no byte left over, and the first metadata's list starts in its first sector.
const _: () = assert!(SECTION_BYTES + SECTION_ENTRIES * PACKED_BYTES == SECTOR_BYTES);
const _: () = assert!(whole_sectors(FIRST_BYTES) == SECTOR_BYTES);
