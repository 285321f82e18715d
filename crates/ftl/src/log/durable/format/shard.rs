//! A checkpoint shard: one contiguous piece of the logical-to-physical map.
//!
//! Promises: an entry is where the sector was durable when the shard was written, and what has no
//! address keeps the stamp that replay needs to order it against everything else.
//! Never holds a slot: a buffered sector is stored with its last durable address.
//!
//! It is written entry by entry, or, where that is shorter, as runs: sectors that follow each other in the
//! stripe order of a line are one. What was filled in order is a run per line.
//!
//! Envelope, then
//!
//! | offset | size | field |
//! |---|---|---|
//! | 32 | 8 | checkpoint id |
//! | 40 | 4 | shard index |
//! | 44 | 1 | bytes per entry: 4 or 8 |
//! | 45 | 1 | 0: entries, 1: runs |
//! | 46 | 2 | zero |
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
//! With runs there are instead
//!
//! | offset | size | field |
//! |---|---|---|
//! | 92 | 4 | sectors of a write unit |
//! | 96 | 4 | sectors of a chunk |
//! | 100 | 4 | w, words of stripes |
//! | 104 | 4 | r, number of runs |
//! | 108 | 20 | zero |
//! | 128 | 4 × w | stripes, each: n 4, chunk 4 × n |
//! | then | 12 × r | runs, each: entries 4, stripe 4, position 4 |
//! | then | 12 × p | listed (lba, stamp) |
//!
//! The stripe of a run is the word at which it begins; all ones: its entries are unmapped, all ones − 1:
//! poisoned. Position *i* of a stripe of n chunks is: unit `i / u`, sector `i mod u` in it, units going
//! round the chunks. Runs follow each other and make up all entries.
//!
//! An entry is 0 for an unmapped sector, all ones for a poisoned one, else the media address + 1.
//! A poisoned sector lists the stamp of its lost content. An unmapped one is a tombstone at H; but
//! a sector that has nothing durable and a first copy still in slots lists the lowest stamp of
//! those slots − 1 and is a tombstone there: other sectors' discards may have raised H above a
//! write that is going to be durable (holes 4 and 8 of `docs/FORMAT.md`).

use super::oob::{LBA_LIMIT, PACKED_BYTES, pack_entry, unpack_entry};
use super::{
    FormatError, Reader, SECTOR_BYTES, Section, UNIT_PADDING, Uuid, check_envelope, open_block,
    put_u32, put_u64, seal, whole_sectors,
};
use flashlane_base::mutant;
use std::collections::BTreeMap;

/// Bytes before the entries.
const SHARD_BYTES: usize = 128;

/// Most entries that runs may stand for: those of a vector full of the narrow ones. A shard never has more,
/// and a few bytes that claim to be billions of entries keep nobody busy.
const RUN_ENTRIES_MAX: u32 = (flashlane_base::VECTOR_MAX * SECTOR_BYTES / 4) as u32;

/// In place of a stripe: the entries of the run are unmapped.
const UNMAPPED: u32 = u32::MAX;
/// In place of a stripe: the entries of the run are poisoned.
const POISONED: u32 = u32::MAX - 1;
/// Bytes of a run.
const RUN_BYTES: usize = 12;
/// So many bytes longer than the entries that they stand for runs may be before the search is given up: a
/// map of random places costs no more than this. Stripes are told at their first run.
const RUN_SLACK: usize = 2 * SECTOR_BYTES;

/// How sectors of a target follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Sectors of a write unit: so many follow each other in a chunk.
    pub unit: u32,
    /// Sectors of a chunk, whole units.
    pub chunk_sectors: u32,
}

impl Stripes {
    /// Linear sector at a position of a stripe of these chunks (little-endian). `None` behind its end.
    #[inline]
    fn address(self, chunks: &[[u8; 4]], position: u64) -> Option<u64> {
        let unit = u64::from(self.unit);
        let (at, n) = (position.checked_div(unit)?, chunks.len() as u64);
        let sector = at.checked_div(n)? * unit + position % unit;
        let chunk = u32::from_le_bytes(*chunks.get((at % n) as usize)?);
        let within = sector < u64::from(self.chunk_sectors);
        within.then_some(u64::from(chunk) * u64::from(self.chunk_sectors) + sector)
    }
}

/// The entries of a shard as runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    stripes: Stripes,
    /// Number of entries.
    entries: u32,
    /// Stripe after stripe: how many chunks, and which.
    words: Vec<u32>,
    /// Entries, stripe, position.
    runs: Vec<[u32; 3]>,
}

/// Looks for runs.
struct Finder<F> {
    found: Runs,
    /// Where a stripe begins in the words, by its first chunk.
    lists: BTreeMap<u32, u32>,
    /// Of the chunks that were looked for: where their stripe begins, and which of its chunks it is.
    known: BTreeMap<u32, (u32, u32)>,
    stripe_of: F,
    /// The run that has begun, and the entry that would go on with it.
    run: [u32; 3],
    next: Option<u64>,
    /// Entries in the runs before.
    done: usize,
    /// Of a run on the medium: sectors of the unit from there on, and which unit of the stripe it is.
    left: u32,
    at: u64,
}

impl<F: FnMut(u32) -> Option<Vec<u32>>> Finder<F> {
    /// Where a chunk is in its stripe.
    fn place(&mut self, chunk: u32) -> (u32, u32) {
        if let Some(place) = self.known.get(&chunk) {
            return *place;
        }
        let list = (self.stripe_of)(chunk).unwrap_or_default();
        let found = list.iter().position(|each| *each == chunk);
        let (list, i) = found.map_or_else(|| (vec![chunk], 0), |i| (list, i));
        let words = &mut self.found.words;
        let is_there = |from: &u32| {
            let stripe = &words[*from as usize..];
            stripe[0] as usize == list.len() && stripe[1..].starts_with(&list)
        };
        let from = match self.lists.get(&list[0]).copied().filter(is_there) {
            Some(from) => from,
            None => {
                let from = words.len() as u32;
                words.push(list.len() as u32);
                words.extend(&list);
                self.lists.insert(list[0], from);
                from
            }
        };
        self.known.insert(chunk, (from, i as u32));
        (from, i as u32)
    }

    /// The run ends here.
    fn end(&mut self) {
        if self.run[0] > 0 {
            self.found.runs.push(self.run);
        }
        self.done += self.run[0] as usize;
        self.run[0] = 0;
    }

    /// A run begins with an entry. `None` where it can't be said.
    fn begin(&mut self, raw: u64, poison: u64) -> Option<()> {
        if raw == 0 || raw == poison {
            self.run = [1, if raw == 0 { UNMAPPED } else { POISONED }, 0];
            self.next = Some(raw);
            return Some(());
        }
        let Stripes { unit, chunk_sectors } = self.found.stripes;
        let (chunk, sector) =
            ((raw - 1) / u64::from(chunk_sectors), (raw - 1) % u64::from(chunk_sectors));
        let (stripe, i) = self.place(u32::try_from(chunk).ok()?);
        let n = u64::from(self.found.words[stripe as usize]);
        let (row, rest) = (sector / u64::from(unit), (sector % u64::from(unit)) as u32);
        self.at = row * n + u64::from(i);
        let position = self.at * u64::from(unit) + u64::from(rest);
        self.run = [1, stripe, u32::try_from(position).ok()?];
        self.left = unit - rest;
        self.next = Some(raw);
        self.step();
        Some(())
    }

    /// The entry behind the one that was just taken.
    #[inline]
    fn step(&mut self) {
        if self.run[1] >= POISONED {
            return;
        }
        self.left -= 1;
        self.next = match self.left {
            0 => self.next_unit(),
            _ => self.next.map(|raw| raw + 1),
        };
    }

    fn next_unit(&mut self) -> Option<u64> {
        let Stripes { unit, chunk_sectors } = self.found.stripes;
        let stripe = self.run[1] as usize;
        let n = u64::from(self.found.words[stripe]);
        (self.at, self.left) = (self.at + 1, unit);
        let sector = self.at / n * u64::from(unit);
        let chunk = self.found.words[stripe + 1 + (self.at % n) as usize];
        let within = sector < u64::from(chunk_sectors);
        within.then_some(u64::from(chunk) * u64::from(chunk_sectors) + sector + 1)
    }
}

impl Runs {
    /// Finds the runs of entries that are in their form on the medium. `stripe_of` says in which order the
    /// chunks of a chunk's line are written; whatever it says, the entries are these. `None` where
    /// the runs take more than `most` bytes, or are longer than the entries for a while.
    pub fn find(
        words: &[u8],
        width: EntryWidth,
        stripes: Stripes,
        most: usize,
        stripe_of: impl FnMut(u32) -> Option<Vec<u32>>,
    ) -> Option<Runs> {
        let entries = u32::try_from(words.len() / width.bytes()).ok()?;
        let Stripes { unit, chunk_sectors } = stripes;
        if entries > RUN_ENTRIES_MAX || unit == 0 || !chunk_sectors.is_multiple_of(unit) {
            return None;
        }
        let found = Runs { stripes, entries, words: Vec::new(), runs: Vec::new() };
        let (known, run) = (BTreeMap::new(), [0; 3]);
        let (next, done, left, at) = (None, 0, 0, 0);
        let lists = BTreeMap::new();
        let mut finder = Finder { found, lists, known, stripe_of, run, next, done, left, at };
        let mut take = |raw: u64| {
            if finder.next == Some(raw) && finder.run[0] > 0 {
                finder.run[0] += 1;
                finder.step();
                return Some(());
            }
            finder.end();
            finder.begin(raw, width.poison())?;
            let bytes = RUN_BYTES * (finder.found.runs.len() + 1) + 4 * finder.found.words.len();
            let most = most.min(RUN_SLACK + width.bytes() * finder.done);
            (bytes <= most).then_some(())
        };
        match width {
            EntryWidth::Four => {
                let mut words = words.as_chunks::<4>().0.iter();
                words.try_for_each(|word| take(u64::from(u32::from_le_bytes(*word))))?;
            }
            EntryWidth::Eight => {
                let mut words = words.as_chunks::<8>().0.iter();
                words.try_for_each(|word| take(u64::from_le_bytes(*word)))?;
            }
        }
        finder.end();
        Some(finder.found)
    }

    /// Bytes that they take in a shard.
    fn bytes(&self) -> usize {
        4 * self.words.len() + RUN_BYTES * self.runs.len()
    }
}

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
        let entries = u32::try_from(entries).expect("a shard below 2^32 entries");
        let mut out = self.begin(0, entries, stamps.len(), length);
        out.resize(SHARD_BYTES, 0);
        out.extend_from_slice(words);
        ShardHeader::end(out, stamps, length)
    }

    /// Bytes of a shard of these runs and so many listed stamps: whole sectors.
    pub fn encoded_runs_len(runs: &Runs, stamps: usize) -> usize {
        whole_sectors(SHARD_BYTES + runs.bytes() + PACKED_BYTES * stamps)
    }

    /// [`ShardHeader::encode_words`] of entries whose runs were found.
    pub fn encode_runs(&self, runs: &Runs, stamps: &[(u64, u64)]) -> Vec<u8> {
        let length = ShardHeader::encoded_runs_len(runs, stamps.len());
        let mut out = self.begin(1, runs.entries, stamps.len(), length);
        let Stripes { unit, chunk_sectors } = runs.stripes;
        let counts = [unit, chunk_sectors, runs.words.len() as u32, runs.runs.len() as u32];
        counts.into_iter().for_each(|word| put_u32(&mut out, word));
        out.resize(SHARD_BYTES, 0);
        runs.words.iter().chain(runs.runs.as_flattened()).for_each(|word| put_u32(&mut out, *word));
        ShardHeader::end(out, stamps, length)
    }

    /// The fields that every shard has. `form`: 0 entries, 1 runs.
    fn begin(&self, form: u8, entries: u32, stamps: usize, length: usize) -> Vec<u8> {
        let mut out = open_block(Section::Shard, &self.uuid, length + UNIT_PADDING);
        put_u64(&mut out, self.checkpoint);
        put_u32(&mut out, self.shard);
        out.extend_from_slice(&[self.width.bytes() as u8, form, 0, 0]);
        put_u64(&mut out, self.lba);
        put_u32(&mut out, entries);
        put_u32(&mut out, u32::try_from(stamps).expect("a shard below 2^32 entries"));
        [self.position, self.floor, self.open_sequence]
            .into_iter()
            .for_each(|word| put_u64(&mut out, word));
        put_u32(&mut out, self.generation);
        out
    }

    /// Listed stamps, padding, checksum.
    fn end(mut out: Vec<u8>, stamps: &[(u64, u64)], length: usize) -> Vec<u8> {
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

/// Where the entries of a shard are.
#[derive(Clone, Copy, Debug)]
enum Body<'a> {
    Entries(&'a [u8]),
    /// Each run is one of entries that the stripes have.
    Runs {
        stripes: Stripes,
        words: &'a [[u8; 4]],
        runs: &'a [[u8; RUN_BYTES]],
    },
}

/// A run as it is read: entries, stripe, position.
fn run_of(bytes: &[u8; RUN_BYTES]) -> [u32; 3] {
    let words = bytes.as_chunks::<4>().0;
    std::array::from_fn(|i| words.get(i).map_or(0, |word| u32::from_le_bytes(*word)))
}

/// The chunks of the stripe that begins at a word.
fn stripe_at(words: &[[u8; 4]], at: u32) -> Option<&[[u8; 4]]> {
    let (n, rest) = words.get(at as usize..)?.split_first()?;
    rest.get(..u32::from_le_bytes(*n) as usize)
}

/// A shard read back; entries are decoded where they lie.
#[derive(Clone, Debug)]
pub struct ShardView<'a> {
    header: ShardHeader,
    len: usize,
    body: Body<'a>,
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
        let [width, form, ..] = at.bytes::<4>()?;
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
        let body = match form {
            0 => {
                at.bytes::<{ SHARD_BYTES - 92 }>()?;
                Body::Entries(at.slice((count as usize).saturating_mul(width.bytes()))?)
            }
            1 => take_runs(&mut at, count)?,
            other => return Err(at.field(45, "a form of 0 or 1", u64::from(other))),
        };
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
            len: count as usize,
            body,
            stamps: stamps.as_chunks().0,
        })
    }

    pub fn header(&self) -> &ShardHeader {
        &self.header
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there no entry at all?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entry `index`: of logical sector `header().lba + index`. None beyond the end.
    pub fn entry(&self, index: usize) -> Option<ShardEntry> {
        match self.body {
            Body::Entries(bytes) => self.word(bytes, index),
            Body::Runs { .. } => self.entries().nth(index),
        }
    }

    #[inline]
    fn word(&self, entries: &[u8], index: usize) -> Option<ShardEntry> {
        let width = self.header.width;
        let bytes = entries.get(index.checked_mul(width.bytes())?..)?;
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
        let (plain, runs) = match self.body {
            Body::Entries(bytes) => (Some(bytes), None),
            Body::Runs { stripes, words, runs } => (None, Some((stripes, words, runs))),
        };
        let plain = plain.into_iter();
        let plain =
            plain.flat_map(|bytes| (0..self.len).filter_map(|index| self.word(bytes, index)));
        let runs = runs.into_iter().flat_map(|(stripes, words, runs)| {
            runs.iter().flat_map(move |run| run_entries(stripes, words, run_of(run)))
        });
        plain.chain(runs)
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

/// The fields of a shard of runs behind the generation, stripes and runs.
fn take_runs<'a>(at: &mut Reader<'a>, count: u32) -> Result<Body<'a>, FormatError> {
    if count > RUN_ENTRIES_MAX {
        return Err(at.field(56, "no more entries than fit a vector", u64::from(count)));
    }
    let stripes = Stripes { unit: at.u32()?, chunk_sectors: at.u32()? };
    let (listed, runs) = (at.u32()? as usize, at.u32()? as usize);
    at.bytes::<{ SHARD_BYTES - 108 }>()?;
    let words = at.slice(listed.saturating_mul(4))?.as_chunks().0;
    let offset = at.offset;
    let runs = at.slice(runs.saturating_mul(RUN_BYTES))?.as_chunks().0;
    let mut sum = 0u64;
    for (i, run) in runs.iter().map(run_of).enumerate() {
        let [n, stripe, position] = run;
        sum += u64::from(n);
        // Its last entry is in the stripe; those before are, too.
        let last = (u64::from(position) + u64::from(n)).checked_sub(1);
        let is_inside = stripe >= POISONED || {
            let chunks = stripe_at(words, stripe);
            chunks.zip(last).is_some_and(|(chunks, last)| stripes.address(chunks, last).is_some())
        };
        if n == 0 || !is_inside {
            let offset = offset + i * RUN_BYTES;
            return Err(at.field(offset, "a run of entries of its stripe", u64::from(n)));
        }
    }
    if sum != u64::from(count) && !mutant!("log.runs-uncounted") {
        return Err(at.field(offset, "runs of all entries", sum));
    }
    Ok(Body::Runs { stripes, words, runs })
}

/// The entries of a run.
fn run_entries<'a>(
    stripes: Stripes,
    words: &'a [[u8; 4]],
    [n, stripe, position]: [u32; 3],
) -> impl Iterator<Item = ShardEntry> + 'a {
    let chunks = stripe_at(words, stripe).unwrap_or_default();
    (0..u64::from(n)).map(move |i| match stripe {
        UNMAPPED => ShardEntry::Unmapped,
        POISONED => ShardEntry::Poisoned,
        // What is nowhere was refused.
        _ => stripes
            .address(chunks, u64::from(position) + i)
            .map_or(ShardEntry::Poisoned, ShardEntry::Media),
    })
}
