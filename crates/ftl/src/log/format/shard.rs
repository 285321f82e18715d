//! A checkpoint shard: one contiguous piece of the logical-to-physical map.
//!
//! Promises: an entry is where the sector was durable when the shard was written, and what has no
//! address keeps the stamp that replay needs to order it against everything else.
//! Never holds a slot: a buffered sector is stored with its last durable address.
//!
//! Envelope, then
//!
//! | offset | size | field |
//! |---|---|---|
//! | 32 | 8 | checkpoint id |
//! | 40 | 4 | shard index |
//! | 44 | 1 | bytes per entry: 4 or 8 |
//! | 45 | 3 | zero |
//! | 48 | 8 | first logical sector |
//! | 56 | 4 | number of entries, n |
//! | 60 | 4 | number of listed stamps, p |
//! | 64 | 8 | log position: sequence of the next record when the shard began |
//! | 72 | 8 | H: largest discard stamp when the shard began |
//! | 80 | 8 | lowest line sequence open or in flight when the shard began |
//! | 88 | 4 | generation |
//! | 92 | 36 | zero |
//! | 128 | width × n | entries |
//! | then | 12 × p | listed (lba, stamp), packed as in OOB, ascending by lba |
//!
//! An entry is 0 for an unmapped sector, all ones for a poisoned one, else the media address + 1.
//! A poisoned sector lists the stamp of its lost content. An unmapped one is a tombstone at H; but
//! a sector that has nothing durable and a first copy still in slots lists the lowest stamp of
//! those slots − 1 and is a tombstone there: other sectors' discards may have raised H above a
//! write that is going to be durable (holes 4 and 8 of `docs/FORMAT.md`).

use super::oob::{LBA_LIMIT, PACKED_BYTES, pack_entry, unpack_entry};
use super::{
    FormatError, Reader, Section, UNIT_PADDING, Uuid, check_envelope, open_block, put_u32, put_u64,
    seal, whole_sectors,
};

/// Bytes before the entries.
const SHARD_BYTES: usize = 128;

/// Bytes per map entry, chosen per target by its linear physical sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryWidth {
    /// 32 bits: media addresses up to 2^32 − 3.
    Four,
    /// 64 bits.
    Eight,
}

impl EntryWidth {
    /// Width in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            EntryWidth::Four => 4,
            EntryWidth::Eight => 8,
        }
    }

    /// The value that says poisoned: all ones.
    const fn poison(self) -> u64 {
        match self {
            EntryWidth::Four => u32::MAX as u64,
            EntryWidth::Eight => u64::MAX,
        }
    }

    /// Largest media address (linear physical sector of the target) this width can hold.
    pub const fn address_max(self) -> u64 {
        self.poison() - 2
    }
}

/// What a shard says of one logical sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShardEntry {
    /// Nothing durable: a tombstone at the listed stamp, else at the shard's H.
    Unmapped,
    /// Its content is lost; its stamp is listed.
    Poisoned,
    /// Linear physical sector within the target.
    Media(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHeader {
    /// Target whose map it is.
    pub uuid: Uuid,
    pub checkpoint: u64,
    /// Index of the shard.
    pub shard: u32,
    pub width: EntryWidth,
    pub lba: u64,
    /// Sequence of the next log record when the shard began.
    pub position: u64,
    /// H: largest discard stamp when the shard began, ns.
    pub floor: u64,
    /// Lowest line sequence open or in flight when the shard began.
    pub open_sequence: u64,
    pub generation: u32,
}

impl ShardHeader {
    /// Bytes of a shard of `entries` entries and `stamps` listed stamps: whole sectors.
    pub const fn encoded_len(width: EntryWidth, entries: usize, stamps: usize) -> usize {
        whole_sectors(SHARD_BYTES + width.bytes() * entries + PACKED_BYTES * stamps)
    }

    /// Encodes a shard. `stamps` lists (lba, stamp), ascending by lba: of every poisoned entry, and
    /// of every unmapped one that is a tombstone below H.
    ///
    /// # Panics
    /// If an address is above [`EntryWidth::address_max`] or `stamps` breaks its rule: a caller's
    /// bug, found before it is written.
    pub fn encode(&self, entries: &[ShardEntry], stamps: &[(u64, u64)]) -> Vec<u8> {
        self.assert_listed(entries, stamps);
        let words: Vec<u8> = match self.width {
            EntryWidth::Four => {
                entries.iter().flat_map(|e| (self.raw(*e) as u32).to_le_bytes()).collect()
            }
            EntryWidth::Eight => entries.iter().flat_map(|e| self.raw(*e).to_le_bytes()).collect(),
        };
        self.encode_words(&words, stamps)
    }

    /// [`ShardHeader::encode`] of entries that are in their form on the medium already: a target of
    /// millions of sectors copies its map, it doesn't translate it. The caller vouches for the rule
    /// of the listed stamps.
    ///
    /// # Panics
    /// If `words` is no whole number of entries: a caller's bug.
    pub fn encode_words(&self, words: &[u8], stamps: &[(u64, u64)]) -> Vec<u8> {
        let entries = words.len() / self.width.bytes();
        assert_eq!(entries * self.width.bytes(), words.len(), "shard: whole entries");
        let length = ShardHeader::encoded_len(self.width, entries, stamps.len());
        let mut out = open_block(Section::Shard, &self.uuid, length + UNIT_PADDING);
        put_u64(&mut out, self.checkpoint);
        put_u32(&mut out, self.shard);
        out.extend_from_slice(&[self.width.bytes() as u8, 0, 0, 0]);
        put_u64(&mut out, self.lba);
        put_u32(&mut out, u32::try_from(entries).expect("a shard below 2^32 entries"));
        put_u32(&mut out, u32::try_from(stamps.len()).expect("a shard below 2^32 entries"));
        [self.position, self.floor, self.open_sequence]
            .into_iter()
            .for_each(|word| put_u64(&mut out, word));
        put_u32(&mut out, self.generation);
        out.resize(SHARD_BYTES, 0);
        out.extend_from_slice(words);
        for (lba, stamp) in stamps {
            out.extend_from_slice(&pack_entry(*lba, *stamp));
        }
        out.resize(length, 0);
        seal(&mut out, length);
        out
    }

    fn raw(&self, entry: ShardEntry) -> u64 {
        match entry {
            ShardEntry::Unmapped => 0,
            ShardEntry::Poisoned => self.width.poison(),
            ShardEntry::Media(address) => {
                let bound = self.width.address_max();
                assert!(address <= bound, "media address {address} above {bound}");
                address + 1
            }
        }
    }

    fn assert_listed(&self, entries: &[ShardEntry], stamps: &[(u64, u64)]) {
        let entry = |lba: u64| entries.get(usize::try_from(lba.checked_sub(self.lba)?).ok()?);
        let mut poisons = entries.iter().filter(|entry| **entry == ShardEntry::Poisoned).count();
        for (lba, _) in stamps {
            match entry(*lba) {
                Some(ShardEntry::Poisoned) => poisons -= 1,
                Some(ShardEntry::Unmapped) => {}
                other => panic!("stamp listed for sector {lba}, which is {other:?}"),
            }
        }
        assert!(stamps.is_sorted_by(|a, b| a.0 < b.0), "listed stamps ascend by lba");
        assert_eq!(poisons, 0, "poisoned sectors without a stamp");
    }
}

/// A shard read back; entries are decoded where they lie.
#[derive(Clone, Debug)]
pub struct ShardView<'a> {
    header: ShardHeader,
    entries: &'a [u8],
    stamps: &'a [[u8; PACKED_BYTES]],
}

impl<'a> ShardView<'a> {
    /// Decodes from bytes that may be longer.
    pub fn decode(bytes: &'a [u8]) -> Result<ShardView<'a>, FormatError> {
        let section = Section::Shard;
        let envelope = check_envelope(bytes, section, SHARD_BYTES)?;
        let mut at = Reader::body(bytes, section, envelope.length);
        let checkpoint = at.u64()?;
        let shard = at.u32()?;
        let [width, ..] = at.bytes::<4>()?;
        let width = match width {
            4 => EntryWidth::Four,
            8 => EntryWidth::Eight,
            other => return Err(at.field(44, "an entry width of 4 or 8", u64::from(other))),
        };
        let lba = at.u64()?;
        let count = at.u32()?;
        if lba.checked_add(u64::from(count)).is_none_or(|end| end > LBA_LIMIT) {
            return Err(at.field(48, "a range that ends below 2^36 - 256", lba));
        }
        let listed = at.u32()? as usize;
        let position = at.u64()?;
        let floor = at.stamp()?;
        let open_sequence = at.u64()?;
        let generation = at.u32()?;
        at.bytes::<{ SHARD_BYTES - 92 }>()?;
        let entries = at.slice((count as usize).saturating_mul(width.bytes()))?;
        let stamps = at.slice(listed.saturating_mul(PACKED_BYTES))?;
        Ok(ShardView {
            header: ShardHeader {
                uuid: envelope.uuid,
                checkpoint,
                shard,
                width,
                lba,
                position,
                floor,
                open_sequence,
                generation,
            },
            entries,
            stamps: stamps.as_chunks().0,
        })
    }

    pub fn header(&self) -> &ShardHeader {
        &self.header
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len() / self.header.width.bytes()
    }

    /// Is there no entry at all?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entry `index`: of logical sector `header().lba + index`. None beyond the end.
    #[inline]
    pub fn entry(&self, index: usize) -> Option<ShardEntry> {
        let width = self.header.width;
        let bytes = self.entries.get(index.checked_mul(width.bytes())?..)?;
        let raw = match width {
            EntryWidth::Four => u64::from(u32::from_le_bytes(*bytes.first_chunk()?)),
            EntryWidth::Eight => u64::from_le_bytes(*bytes.first_chunk()?),
        };
        Some(match raw {
            0 => ShardEntry::Unmapped,
            raw if raw == width.poison() => ShardEntry::Poisoned,
            raw => ShardEntry::Media(raw - 1),
        })
    }

    pub fn entries(&self) -> impl Iterator<Item = ShardEntry> + '_ {
        (0..self.len()).filter_map(|index| self.entry(index))
    }

    /// The listed (lba, stamp), ascending by lba.
    pub fn stamps(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.stamps.iter().map(unpack_entry)
    }

    /// The stamp at which the unmapped or poisoned entry `index` orders: the listed one, else H.
    /// A mapped entry's stamp is its copy's, in the line.
    pub fn stamp(&self, index: usize) -> u64 {
        let lba = self.header.lba.saturating_add(index as u64);
        let listed = self.stamps.binary_search_by_key(&lba, |packed| unpack_entry(packed).0);
        let listed = listed.ok().and_then(|at| self.stamps.get(at));
        listed.map_or(self.header.floor, |packed| unpack_entry(packed).1)
    }
}
