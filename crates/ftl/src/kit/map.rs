//! The page map: where the newest content of each logical sector lies, and who owns each physical
//! sector.
//!
//! Owns: the forward entries, the reverse map, the validity bits. Promises: one entry per logical
//! sector, so a sector has at most one valid copy; untouched entries cost no memory (zero means
//! unmapped). Never: counts the valid sectors of a line (that is `place.rs`), or locks anything.
//!
//! Entry, 32 bits: 0 unmapped; all ones poisoned; top bit set: slot id; else linear physical
//! sector + 1. A device of more than 2^31 - 2 sectors (8 TiB) is refused at create.

use super::buffer::NIL;

const TAG: u32 = 1 << 31;
const POISONED: u32 = u32::MAX;

/// Physical sectors at most: what an entry can name.
pub(super) const PHYSICAL_MAX: u64 = TAG as u64 - 1;

/// What a map entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Never written, or discarded: reads as zeros.
    Unmapped,
    /// The newest content lies in this slot of the buffer.
    Slot(u32),
    /// The newest content lies at this linear physical sector.
    Media(u32),
    /// The newest content was lost by a failed GC read; reads fail until the sector is rewritten.
    Poisoned,
}

/// Forward map, reverse map and validity of a device.
pub(super) struct Map {
    entries: Vec<u32>,
    /// Logical sector last programmed at each physical sector; means something where `valid` is.
    owner: Vec<u32>,
    /// A bit per physical sector: holds the newest programmed copy of its owner.
    valid: Vec<u64>,
}

impl Map {
    /// A map of `capacity` unmapped sectors over `physical` sectors. The zeroed tables are memory
    /// that the kernel hands out page by page when touched.
    pub(super) fn new(capacity: u64, physical: u64) -> Map {
        assert!(physical <= PHYSICAL_MAX && capacity <= physical);
        Map {
            entries: vec![0; capacity as usize],
            owner: vec![0; physical as usize],
            valid: vec![0; physical.div_ceil(64) as usize],
        }
    }

    /// A map with these entries, as [`Map::word`] gave them; nothing is valid yet.
    pub(super) fn of(entries: Vec<u32>, physical: u64) -> Map {
        assert!(physical <= PHYSICAL_MAX && entries.len() as u64 <= physical);
        Map { entries, ..Map::new(0, physical) }
    }

    /// An entry as it is kept.
    #[inline]
    pub(super) fn word(&self, lba: u32) -> u32 {
        self.entries[lba as usize]
    }

    #[inline]
    pub(super) fn get(&self, lba: u32) -> Entry {
        match self.entries[lba as usize] {
            0 => Entry::Unmapped,
            POISONED => Entry::Poisoned,
            e if e & TAG != 0 => Entry::Slot(e & !TAG),
            e => Entry::Media(e - 1),
        }
    }

    #[inline]
    pub(super) fn set(&mut self, lba: u32, entry: Entry) {
        self.entries[lba as usize] = match entry {
            Entry::Unmapped => 0,
            Entry::Poisoned => POISONED,
            Entry::Slot(slot) => slot | TAG,
            Entry::Media(at) => at + 1,
        };
    }

    /// How many sectors from `lba` on, `most` at most, are all unmapped or all not, and which.
    pub(super) fn alike(&self, lba: u64, most: u64) -> (u64, bool) {
        let from = (self.entries.len() as u64).min(lba) as usize;
        let rest = &self.entries[from..];
        let rest = &rest[..(rest.len() as u64).min(most) as usize];
        let Some(first) = rest.first().map(|entry| *entry != 0) else { return (0, false) };
        // Without a branch per entry: most of a map is empty.
        const STEP: usize = 256;
        let same = |part: &&[u32]| match first {
            true => part.iter().all(|entry| *entry != 0),
            false => part.iter().fold(0, |any, entry| any | entry) == 0,
        };
        let whole = rest.chunks(STEP).take_while(same).map(<[u32]>::len).sum::<usize>();
        let more = rest[whole..].iter().take_while(|e| (**e != 0) == first).count();
        ((whole + more) as u64, first)
    }

    /// Logical sectors.
    pub(super) fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    #[inline]
    pub(super) fn owner(&self, at: u32) -> u32 {
        self.owner[at as usize]
    }

    #[inline]
    pub(super) fn is_valid(&self, at: u32) -> bool {
        self.valid[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// A sector of `lba` was programmed at `at` and is its newest copy.
    #[inline]
    pub(super) fn take(&mut self, at: u32, lba: u32) {
        debug_assert!(!self.is_valid(at), "two owners of physical sector {at}");
        self.owner[at as usize] = lba;
        self.valid[at as usize / 64] |= 1 << (at % 64);
    }

    /// The copy at `at` is not the newest any more.
    #[inline]
    pub(super) fn drop_copy(&mut self, at: u32) {
        assert!(self.is_valid(at), "physical sector {at} was garbage already");
        self.valid[at as usize / 64] &= !(1 << (at % 64));
    }

    /// Valid sectors, counted bit by bit: for the walk.
    pub(super) fn count_valid(&self) -> u64 {
        self.valid.iter().map(|w| w.count_ones() as u64).sum()
    }

    /// The first valid sector in `from..end`.
    #[inline]
    pub(super) fn next_valid(&self, from: u32, end: u32) -> Option<u32> {
        let mut at = from;
        while at < end {
            let word = self.valid[at as usize / 64] >> (at % 64);
            if word != 0 {
                let found = at + word.trailing_zeros();
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Brings the entry of `lba` near; its change is some 100 ns of cache miss away otherwise.
    #[inline]
    pub(super) fn prefetch(&self, lba: u32) {
        if lba != NIL {
            super::prefetch(&self.entries, lba as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_trip_and_their_extremes_stay_apart() {
        let mut map = Map::new(4, 8);
        assert_eq!(map.get(0), Entry::Unmapped);
        for entry in [
            Entry::Media(0),
            Entry::Media(PHYSICAL_MAX as u32 - 1),
            Entry::Slot(0),
            Entry::Slot(TAG - 2),
            Entry::Poisoned,
            Entry::Unmapped,
        ] {
            map.set(3, entry);
            assert_eq!(map.get(3), entry);
        }
    }

    #[test]
    fn sectors_that_are_alike_are_counted_to_the_last() {
        let mut map = Map::new(2000, 2000);
        (700..1500).for_each(|lba| map.set(lba, Entry::Media(lba)));
        assert_eq!(map.alike(0, 9999), (700, false));
        assert_eq!(map.alike(699, 9999), (1, false));
        assert_eq!(map.alike(700, 9999), (800, true));
        assert_eq!(map.alike(900, 300), (300, true));
        assert_eq!(map.alike(1500, 9999), (500, false));
        assert_eq!(map.alike(2000, 1), (0, false));
    }

    #[test]
    fn the_scan_finds_valid_sectors_across_words_and_stops_at_the_end() {
        let mut map = Map::new(200, 200);
        for at in [3, 63, 64, 150] {
            map.take(at, at);
        }
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(at) = map.next_valid(from, 150) {
            found.push(at);
            from = at + 1;
        }
        assert_eq!(found, [3, 63, 64]);
        assert_eq!(map.next_valid(65, 151), Some(150));
        map.drop_copy(64);
        assert_eq!(map.next_valid(64, 100), None);
    }
}
