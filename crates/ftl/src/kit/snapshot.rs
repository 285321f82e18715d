//! The snapshot of a clean stop: what it says, byte by byte, and how it is told from anything else.
//!
//! Owns: the words of a snapshot, the bytes of its sectors, the digest of a chunk report. Promises: a
//! sector is believed only if it is intact, of this device, of this snapshot and in its turn; what was
//! read is checked against the device before it is believed, so damage is never more than a scan.
//! Never: decides where a snapshot lies or when it counts (`rest.rs` writes one, `resume.rs` takes it).
//!
//! A snapshot is a row of 32-bit words, cut into *body* sectors; *list* sectors say where those
//! lie; the *root* says where the lists lie, and of which state of the device all this is true,
//! which *info* sectors in front of it say once more chunk by chunk. All are sectors of a type of
//! their own, nobody's data: where they lie they are garbage from the start, for the next life's GC
//! to find. Everything is there twice, on different PUs, where there are two and room: a mount that
//! finds a die dead takes the copies that are left.
//!
//! | words | of a snapshot |
//! |---|---|
//! | capacity | map entries: 0 unmapped, all ones lost, else physical sector + 1 |
//! | pages | where the copy of each page lies, + 1; 0 none; then where the second copy of each page of stamps does |
//! | 2 × lines | number of each line's opening, low half first: their order |
//! | units / 32 | void units, a bit each, lowest first |
//!
//! A sector, body, list, info or root:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic: `FLps` body, `FLpl` list, `FLpi` info, `FLpr` root |
//! | 4 | 4 | CRC32C over bytes 8 .. 4096 |
//! | 8 | 2 | major version, 2; 1 is read |
//! | 10 | 2 | zero |
//! | 12 | 4 | number of the sector among its like, from 0 |
//! | 16 | 8 | capacity of the device, in sectors |
//! | 24 | 8 | stamp of the last write: names the snapshot |
//! | 32 | 32 | zero |
//! | 64 | 4032 | 1008 words: of the snapshot; two places of each body sector, + 1, 0 where one is all zeros, or has no second copy; two words per chunk; of the root |
//!
//! Words of the root: line, position and row of its first copy; units behind that with further
//! copies; digest of the chunk report (4 words); body sectors; list sectors n; open lines, and two
//! words to name them; c: copies of the list sectors, 1 or 2; info sectors, which are the units
//! right before it; place of the other root + 1; from word 16 on c × n places of list sectors, then
//! the open lines beyond two (where a line is a chunk, one is open on each PU).
//!
//! Words of a chunk, by chunk number and position: erases; write pointer, in the bits above it the
//! state (28, two bits: free, open, closed, offline) and whether it is in SLC mode (30).
//!
//! Major version 1 has one copy of everything, one place in a list for each body sector, no info,
//! no pages of notes among the pages, and zeros where the root has c, the info sectors and the
//! other root.

use flashlane_base::mutant;
use flashlane_ocssd::device::{CellMode, ChunkInfo, ChunkState};

use super::STAMP_LAST;
use super::buffer::NIL;
use super::pages::{PAGE_BYTES, Pages};
use super::place::Layout;

const HEADER: usize = 64;
const MAJOR: u16 = 2;
/// The first version: one copy of everything, no infos.
pub(super) const SINGLE: u16 = 1;
/// Words in a sector.
pub(super) const SPAN: usize = (PAGE_BYTES - HEADER) / 4;
/// Words of a root before its lists.
const ROOT_HEAD: usize = 16;
/// List sectors that a root can name.
pub(super) const LISTS_MAX: usize = SPAN - ROOT_HEAD;

/// Which sector of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Body,
    List,
    Info,
    Root,
}

impl Part {
    fn magic(self) -> u32 {
        u32::from_le_bytes(match self {
            Part::Body => *b"FLps",
            Part::List => *b"FLpl",
            Part::Info => *b"FLpi",
            Part::Root => *b"FLpr",
        })
    }
}

/// How many words a snapshot has of each, by the device and its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Major version.
    pub(super) major: u16,
    pub(super) capacity: usize,
    pub(super) pages: usize,
    pub(super) lines: usize,
    /// Words of void units.
    pub(super) voids: usize,
    pub(super) chunks: usize,
}

impl Shape {
    pub(super) fn new(capacity: u32, pages: &Pages, layout: &Layout) -> Shape {
        let units = layout.grains() as usize;
        let (capacity, pages) = (capacity as usize, pages.places() as usize);
        let (lines, voids) = (layout.lines as usize, units.div_ceil(32));
        let chunks = layout.chunk_count() as usize;
        Shape { major: MAJOR, capacity, pages, lines, voids, chunks }
    }

    /// The same of a snapshot of version `major`.
    pub(super) fn of(self, major: u16, pages: &Pages) -> Shape {
        match major {
            SINGLE => Shape { major, pages: pages.count_before_notes() as usize, ..self },
            _ => self,
        }
    }

    pub(super) fn words(&self) -> usize {
        self.capacity + self.pages + 2 * self.lines + self.voids
    }

    pub(super) fn body(&self) -> usize {
        self.words().div_ceil(SPAN)
    }

    pub(super) fn lists(&self) -> usize {
        self.body().div_ceil(self.listed())
    }

    /// Body sectors whose places a list sector has.
    pub(super) fn listed(&self) -> usize {
        if self.major == SINGLE { SPAN } else { SPAN / 2 }
    }

    pub(super) fn infos(&self) -> usize {
        (2 * self.chunks).div_ceil(SPAN)
    }
}

/// Makes the bytes of a sector of these words.
pub(super) fn encode(
    part: Part,
    number: u32,
    (capacity, stamp): (u64, u64),
    words: impl Iterator<Item = u32>,
    out: &mut [u8],
) {
    let (header, room) = out[..PAGE_BYTES].split_at_mut(HEADER);
    header.fill(0);
    room.fill(0);
    room.chunks_exact_mut(4).zip(words).for_each(|(to, w)| to.copy_from_slice(&w.to_le_bytes()));
    header[..4].copy_from_slice(&part.magic().to_le_bytes());
    header[8..10].copy_from_slice(&MAJOR.to_le_bytes());
    header[12..16].copy_from_slice(&number.to_le_bytes());
    header[16..24].copy_from_slice(&capacity.to_le_bytes());
    header[24..32].copy_from_slice(&stamp.to_le_bytes());
    let crc = flashlane_base::crc32c(&out[8..PAGE_BYTES]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Stamp and major version of an intact sector of a snapshot of this device; `None` for anything
/// else.
pub(super) fn check(part: Part, number: u32, capacity: u64, bytes: &[u8]) -> Option<(u64, u16)> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let whole = bytes.len() == PAGE_BYTES && word(0)? == part.magic();
    let sum = flashlane_base::crc32c(&bytes[8..]);
    let intact = whole && (word(4)? == sum || mutant!("kit.snapshot-unverified"));
    let major = [SINGLE, MAJOR].into_iter().find(|major| word(8) == Some(u32::from(*major)))?;
    let ours = word(12)? == number && long(16)? == capacity;
    let stamp = long(24).filter(|stamp| intact && ours && *stamp <= STAMP_LAST)?;
    Some((stamp, major))
}

/// The words of a sector that was checked.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes[HEADER..].chunks_exact(4).map(word)
}

/// What makes a snapshot one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) major: u16,
    pub(super) stamp: u64,
    /// Chunk and unit of its first copy.
    pub(super) line: u32,
    pub(super) position: u32,
    pub(super) row: u32,
    /// Units behind it, copies all, and nothing behind those.
    pub(super) behind: u32,
    /// Of the chunk report when all of it is on the medium.
    pub(super) digest: [u64; 2],
    pub(super) body: u32,
    /// Lines that were open.
    pub(super) open: Vec<u32>,
    /// Info sectors right before it.
    pub(super) infos: u32,
    /// Places of the list sectors, in two copies or one.
    pub(super) lists: Vec<u32>,
    pub(super) copies: u32,
    /// Physical sector of the other root, + 1; 0 if there is none.
    pub(super) other: u32,
}

impl Root {
    pub(super) fn encode(&self, capacity: u64, out: &mut [u8]) {
        let halves = |n: u64| [n as u32, (n >> 32) as u32];
        let [a, b] = self.digest.map(halves);
        let open = |i: usize| self.open.get(i).copied().unwrap_or(0);
        let head = [self.line, self.position, self.row, self.behind, a[0], a[1], b[0], b[1]];
        let lists = self.lists.len() as u32 / self.copies;
        let counts = [self.body, lists, self.open.len() as u32, open(0), open(1)];
        let counts = counts.into_iter().chain([self.copies, self.infos, self.other]);
        let words = head.into_iter().chain(counts);
        let words = words.chain(std::iter::repeat(0)).take(ROOT_HEAD);
        let words = words.chain(self.lists.iter().map(|at| at + 1));
        let words = words.chain(self.open.iter().skip(2).copied());
        encode(Part::Root, 0, (capacity, self.stamp), words, out);
    }

    /// An intact root of a device with this capacity and shape, and the pages that it has.
    pub(super) fn decode(
        capacity: u64,
        shape: &Shape,
        pages: &Pages,
        bytes: &[u8],
    ) -> Option<Root> {
        let (stamp, major) = check(Part::Root, 0, capacity, bytes)?;
        let shape = &shape.of(major, pages);
        let w: Vec<u32> = words(bytes).collect();
        let long = |i: usize| w[i] as u64 | (w[i + 1] as u64) << 32;
        let (body, lists, open) = (w[8], w[9] as usize, w[10] as usize);
        let (copies, infos) = if major == SINGLE { (1, 0) } else { (w[13], w[14]) };
        let fits = (body as usize, lists) == (shape.body(), shape.lists())
            && matches!(copies, 1 | 2)
            && (infos == 0 || infos as usize == shape.infos());
        let beyond = open.saturating_sub(2);
        let lists = lists.checked_mul(copies as usize)?;
        if !fits || lists > LISTS_MAX || beyond > LISTS_MAX - lists {
            return None;
        }
        let here = w[11..11 + open.min(2)].iter();
        let further = &w[ROOT_HEAD + lists..ROOT_HEAD + lists + beyond];
        let places = &w[ROOT_HEAD..ROOT_HEAD + lists];
        let lists = places.iter().map(|at| at.checked_sub(1)).collect::<Option<Vec<u32>>>()?;
        Some(Root {
            major,
            stamp,
            line: w[0],
            position: w[1],
            row: w[2],
            behind: w[3],
            digest: [long(4), long(6)],
            body,
            open: here.chain(further).copied().collect(),
            infos,
            lists,
            copies,
            other: if major == SINGLE { 0 } else { w[15] },
        })
    }
}

/// The words of a snapshot, read back. Nothing in them is believed yet.
#[derive(Debug)]
pub(super) struct Words {
    shape: Shape,
    words: Vec<u32>,
}

impl Words {
    pub(super) fn new(shape: Shape) -> Words {
        Words { words: vec![0; shape.body() * SPAN], shape }
    }

    /// Takes in a body sector that was checked.
    pub(super) fn put(&mut self, number: u32, bytes: &[u8]) {
        let from = number as usize * SPAN;
        self.words[from..from + SPAN].iter_mut().zip(words(bytes)).for_each(|(to, w)| *to = w);
    }

    /// Where the copy of each page lies.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u32, u32)> {
        let from = self.shape.capacity;
        let of = (0u32..).zip(&self.words[from..from + self.shape.pages]);
        of.filter_map(|(page, at)| Some((page, at.checked_sub(1)?)))
    }

    /// Each line's number, the order of their openings.
    pub(super) fn sequences(&self) -> Vec<u64> {
        let from = self.shape.capacity + self.shape.pages;
        let halves = self.words[from..from + 2 * self.shape.lines].chunks_exact(2);
        halves.map(|w| w[0] as u64 | (w[1] as u64) << 32).collect()
    }

    /// Void units below `units`.
    pub(super) fn voids(&self, units: u32) -> impl Iterator<Item = u32> {
        let from = self.shape.capacity + self.shape.pages + 2 * self.shape.lines;
        let words = &self.words[from..from + self.shape.voids];
        (0..units).filter(|unit| words[*unit as usize / 32] >> (unit % 32) & 1 == 1)
    }

    /// The copies that map and pages name.
    fn copies(&self) -> impl Iterator<Item = u32> {
        let named = |entry: &u32| Some(*entry).filter(|e| *e != 0 && *e != NIL).map(|e| e - 1);
        let sectors = self.words[..self.shape.capacity].iter().filter_map(named);
        sectors.chain(self.pages().map(|(_, at)| at))
    }

    /// True when every copy lies where `is_written`, each in a place of its own, below `physical`.
    pub(super) fn is_possible(&self, physical: u64, is_written: impl Fn(u32) -> bool) -> bool {
        if mutant!("kit.snapshot-unchecked") {
            return true;
        }
        let mut taken = vec![0u64; physical.div_ceil(64) as usize];
        self.copies().all(|at| {
            if at as u64 >= physical || !is_written(at) {
                return false;
            }
            let (word, bit) = (&mut taken[at as usize / 64], 1 << (at % 64));
            let free = *word & bit == 0;
            *word |= bit;
            free
        })
    }

    /// The map's entries, as [`super::map::Map`] keeps them.
    pub(super) fn into_entries(mut self) -> Vec<u32> {
        self.words.truncate(self.shape.capacity);
        self.words
    }
}

/// The two words of a chunk.
pub(super) fn words_of(info: &ChunkInfo) -> [u32; 2] {
    let slc = u32::from(info.cell == CellMode::Slc);
    [info.erases, info.write_pointer | state_of(info) << 28 | slc << 30]
}

/// A chunk that had these words is as it was, or is offline now.
pub(super) fn is_as_it_was(then: [u32; 2], now: &ChunkInfo) -> bool {
    now.state == ChunkState::Offline || then == words_of(now)
}

fn state_of(info: &ChunkInfo) -> u32 {
    match info.state {
        ChunkState::Free => 0,
        ChunkState::Open => 1,
        ChunkState::Closed => 2,
        ChunkState::Offline => 3,
    }
}

/// 128 bits over a chunk report, chunk by chunk: no erase and no program leaves it as it was.
pub(super) fn digest<'a>(chunks: impl Iterator<Item = &'a ChunkInfo>) -> [u64; 2] {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
    let mut lanes = ODD;
    let mut add = |word: u64| {
        for (lane, odd) in lanes.iter_mut().zip(ODD) {
            let mixed = (*lane ^ word).wrapping_mul(odd);
            *lane = (mixed ^ mixed >> 32).wrapping_mul(odd).rotate_left(29);
        }
    };
    for info in chunks {
        let state = u64::from(state_of(info));
        add(state | (info.cell as u64) << 8 | (info.length as u64) << 32);
        add(info.erases as u64 | (info.write_pointer as u64) << 32);
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Of 2,000 sectors, 64 units and 30 chunks: a page of each kind.
    fn pages() -> Pages {
        Pages::new(2000, (64, 30), 0)
    }

    fn shape() -> Shape {
        let pages = pages().count() as usize;
        Shape { major: MAJOR, capacity: 2000, pages, lines: 5, voids: 2, chunks: 30 }
    }

    fn decode(capacity: u64, shape: &Shape, bytes: &[u8]) -> Option<Root> {
        Root::decode(capacity, shape, &pages(), bytes)
    }

    fn root() -> Root {
        Root {
            major: MAJOR,
            stamp: 77,
            line: 4,
            position: 3,
            row: 9,
            behind: 2,
            digest: [u64::MAX - 5, 3 << 40],
            body: 2,
            open: vec![4, 1],
            infos: 1,
            lists: vec![0, 9],
            copies: 2,
            other: 77,
        }
    }

    /// A root comes back as it was, and a change of any byte, or another device, makes it none.
    #[test]
    fn a_root_is_whole_or_nothing() {
        assert_eq!((shape().body(), shape().lists()), (2, 1));
        let mut bytes = vec![0xaa; PAGE_BYTES];
        root().encode(2000, &mut bytes);
        assert_eq!(decode(2000, &shape(), &bytes), Some(root()));
        assert_eq!(decode(2001, &shape(), &bytes), None);
        let wider = Shape { capacity: 4000, ..shape() };
        assert_eq!(decode(2000, &wider, &bytes), None);
        for at in 0..PAGE_BYTES {
            bytes[at] ^= 4;
            assert_eq!(decode(2000, &shape(), &bytes), None, "byte {at}");
            bytes[at] ^= 4;
        }
        assert_eq!(decode(2000, &shape(), &bytes[..100]), None);
        // The version before.
        let single = Root { lists: vec![0], copies: 1, infos: 0, other: 0, ..root() };
        single.encode(2000, &mut bytes);
        bytes[8] = SINGLE as u8;
        let crc = flashlane_base::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(2000, &shape(), &bytes), Some(Root { major: SINGLE, ..single }));
        let late = Root { stamp: STAMP_LAST + 1, ..root() };
        late.encode(2000, &mut bytes);
        assert_eq!(decode(2000, &shape(), &bytes), None, "no life could follow");
    }

    /// Words come back by section, and copies that can't be are noticed.
    #[test]
    fn words_are_believed_only_where_they_can_be_true() {
        let mut all = vec![0u32; shape().words()];
        (all[0], all[1999], all[2001]) = (8, NIL, 5);
        (all[2004], all[2005], all[2015]) = (9, 1, 1 << 31);
        let read = |all: &[u32]| {
            let mut words = Words::new(shape());
            for (i, part) in (0u32..).zip(all.chunks(SPAN)) {
                let mut bytes = vec![0; PAGE_BYTES];
                encode(Part::Body, i, (2000, 5), part.iter().copied(), &mut bytes);
                assert_eq!(check(Part::Body, i, 2000, &bytes), Some((5, MAJOR)));
                assert_eq!(check(Part::Body, i + 1, 2000, &bytes), None);
                assert_eq!(check(Part::List, i, 2000, &bytes), None);
                words.put(i, &bytes);
            }
            words
        };
        let words = read(&all);
        assert_eq!(words.pages().collect::<Vec<_>>(), [(1, 4)]);
        assert_eq!(words.sequences(), [9 | 1 << 32, 0, 0, 0, 0]);
        assert_eq!(words.voids(64).collect::<Vec<_>>(), [63]);
        assert!(words.is_possible(100, |at| at == 7 || at == 4));
        assert!(!words.is_possible(100, |at| at == 7), "nothing was written at 4");
        assert!(!words.is_possible(7, |_| true), "beyond the device");
        let entries = words.into_entries();
        assert_eq!((entries.len(), entries[0], entries[1999]), (2000, 8, NIL));
        all[5] = 8;
        assert!(!read(&all).is_possible(100, |_| true), "two owners");
    }

    /// Whatever a program or an erase changes, the digest changes.
    #[test]
    fn a_digest_notices_every_change() {
        let blank = ChunkInfo {
            state: ChunkState::Open,
            wear_index: 0,
            erases: 3,
            slc_erases: 0,
            length: 64,
            write_pointer: 8,
            cell: CellMode::Native,
        };
        let chunks = [blank; 4];
        let whole = digest(chunks.iter());
        for at in 0..4 {
            let changes: [fn(&mut ChunkInfo); 5] = [
                |c| c.state = ChunkState::Closed,
                |c| c.erases += 1,
                |c| c.length = 32,
                |c| c.write_pointer += 1,
                |c| c.cell = CellMode::Slc,
            ];
            for change in changes {
                let mut other = chunks;
                change(&mut other[at]);
                assert_ne!(digest(other.iter()), whole);
            }
        }
        assert_ne!(digest(chunks[1..].iter()), whole);
    }
}
