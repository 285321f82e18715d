//! Pages of directories.
//!
//! Owns: the bytes of a page of entries, the hash of a name, which pages a name may be in.
//! Promises: an entry stays in its place as long as it exists, so a place is a position for
//! readdir; bytes from anywhere name no entry outside of the page; a page that was changed on the
//! medium, or is another one, is found by its seal. Never: reads a page.
//!
//! As in F2FS (Documentation/filesystems/f2fs.rst, "Directory Structure") a directory is a hash
//! table of levels: level n has 2^n buckets of two pages, the deep ones four. A name is in the
//! bucket of its hash in one of the levels.

use super::{FormatError, Nid, get16, get32, put, put16, put32};
use flashlane_base::{crc32c, crc32c_append, mutant};

/// Bytes of an entry without its name.
const ENTRY: usize = 12;
/// A name takes as many pieces of this size as it needs.
const PIECE: usize = 8;
/// The level from which on the number of buckets stays: 2^14.
const BUCKETS_LEVEL: u32 = 14;
/// From this level on buckets have four pages: half of the levels that F2FS allows.
const DEEP_LEVEL: u32 = 31;
/// Levels of a directory.
pub(crate) const LEVELS_MAX: u32 = 63;

/// Bytes of a seal, the end of a page: the number of its directory, its own number there,
/// [`SEAL_MAGIC`], a CRC-32C of all bytes before that.
const SEAL: usize = 16;
const SEAL_MAGIC: u32 = u32::from_le_bytes(*b"pDIR");

/// The hash of a name.
pub(crate) fn name_hash(name: &[u8]) -> u32 {
    crc32c(name)
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dentry {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Nid,
    /// The type of the file, as `d_type` has it.
    pub(crate) kind: u8,
}

/// Places for entries in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// How many.
    pub(crate) count: u32,
    entries: usize,
    names: usize,
    /// The sum in a page's seal begins with it. `None`: pages have no seal.
    seed: Option<u32>,
}

impl Slots {
    /// Divides pages of this size. With a `seed` they end in a seal whose sum begins with it.
    pub(crate) fn of(page_bytes: usize, seed: Option<u32>) -> Slots {
        let page_bytes = page_bytes - seed.map_or(0, |_| SEAL);
        // A bit, an entry and a piece of a name each.
        let count = page_bytes * 8 / (1 + 8 * (ENTRY + PIECE));
        let entries = count.div_ceil(8).next_multiple_of(4);
        // The bitmap is rounded up: one place less where that does not fit.
        let count = count.min((page_bytes - entries) / (ENTRY + PIECE));
        Slots { count: count as u32, entries, names: entries + count * ENTRY, seed }
    }

    /// Seals page `index` of a directory that is about to be written.
    pub(crate) fn seal(&self, bytes: &mut [u8], dir: Nid, index: u64) {
        let Some(seed) = self.seed else { return };
        let at = bytes.len() - SEAL;
        put32(bytes, at, dir);
        put32(bytes, at + 4, index as u32);
        put32(bytes, at + 8, SEAL_MAGIC);
        let sum = crc32c_append(seed, &bytes[..at + 12]);
        put32(bytes, at + 12, sum);
    }

    /// Checks that these bytes are page `index` of a directory as it was written.
    pub(crate) fn check(&self, bytes: &[u8], dir: Nid, index: u64) -> Result<(), FormatError> {
        const WHAT: &str = "a page of a directory";
        let Some(seed) = self.seed.filter(|_| !mutant!("parafs.dir-pages-unchecked")) else {
            return Ok(());
        };
        let at = bytes.len() - SEAL;
        if get32(bytes, at + 8) != SEAL_MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if crc32c_append(seed, &bytes[..at + 12]) != get32(bytes, at + 12) {
            return Err(FormatError::Checksum(WHAT));
        }
        let wrong = |field, value| Err(FormatError::Value { what: WHAT, field, value });
        match (get32(bytes, at), get32(bytes, at + 4)) {
            (of, _) if of != dir => wrong("its directory", of.into()),
            (_, number) if number != index as u32 => wrong("its number", number.into()),
            _ => Ok(()),
        }
    }

    /// Places that a name takes.
    pub(crate) fn taken(name: usize) -> u32 {
        name.div_ceil(PIECE).max(1) as u32
    }

    /// The first page and the number of pages in which a name of this hash may be, of a level.
    pub(crate) fn bucket(level: u32, hash: u32) -> (u64, u64) {
        let buckets = |level: u32| 1u64 << level.min(BUCKETS_LEVEL);
        let pages = |level: u32| if level < DEEP_LEVEL { 2 } else { 4 };
        let before: u64 = (0..level).map(|l| buckets(l) * pages(l)).sum();
        let bucket = u64::from(hash) % buckets(level);
        (before + bucket * pages(level), pages(level))
    }

    /// Pages of a directory of so many levels.
    pub(crate) fn pages(levels: u32) -> u64 {
        match levels {
            0 => 0,
            _ => {
                let (first, count) = Slots::bucket(levels - 1, u32::MAX);
                let last = (1u64 << (levels - 1).min(BUCKETS_LEVEL)) - 1;
                let bucket = u64::from(u32::MAX) % (last + 1);
                first + count * (1 + last - bucket)
            }
        }
    }
}

/// A page of entries.
pub(crate) struct Dentries<B> {
    slots: Slots,
    bytes: B,
}

impl<B: AsRef<[u8]>> Dentries<B> {
    pub(crate) fn new(slots: Slots, bytes: B) -> Dentries<B> {
        Dentries { slots, bytes }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    fn is_taken(&self, slot: u32) -> bool {
        self.bytes()[slot as usize / 8] >> (slot % 8) & 1 == 1
    }

    fn entry_at(&self, slot: u32) -> usize {
        self.slots.entries + slot as usize * ENTRY
    }

    fn name_at(&self, slot: u32) -> usize {
        self.slots.names + slot as usize * PIECE
    }

    /// The name of an entry, as far as it lies in the page.
    fn name(&self, slot: u32) -> &[u8] {
        let length = usize::from(get16(self.bytes(), self.entry_at(slot) + 8));
        let room = (self.slots.count - slot) as usize * PIECE;
        &self.bytes()[self.name_at(slot)..][..length.min(room)]
    }

    pub(crate) fn get(&self, slot: u32) -> Dentry {
        let at = self.entry_at(slot);
        Dentry {
            name: self.name(slot).to_vec(),
            ino: get32(self.bytes(), at + 4),
            kind: self.bytes()[at + 10],
        }
    }

    /// What the head of an entry says: the hash and the length of its name.
    pub(crate) fn says(&self, slot: u32) -> (u32, usize) {
        let at = self.entry_at(slot);
        (get32(self.bytes(), at), usize::from(get16(self.bytes(), at + 8)))
    }

    /// What a name of this length would be; nothing where the page ends before.
    pub(crate) fn text(&self, slot: u32, length: usize) -> Option<&[u8]> {
        let room = (self.slots.count - slot) as usize * PIECE;
        (length <= room).then(|| &self.bytes()[self.name_at(slot)..][..length])
    }

    /// Which places are taken, and the heads of entries: all but names.
    pub(crate) fn heads(&self) -> &[u8] {
        &self.bytes()[..self.slots.names]
    }

    /// The first entry at `slot` or behind it.
    pub(crate) fn next(&self, mut slot: u32) -> Option<u32> {
        while slot < self.slots.count {
            // Behind its first place a name has others, whose entries have no length.
            if self.is_taken(slot) && get16(self.bytes(), self.entry_at(slot) + 8) > 0 {
                return Some(slot);
            }
            slot += 1;
        }
        None
    }

    /// Where the entry of this name is.
    pub(crate) fn find(&self, name: &[u8], hash: u32) -> Option<u32> {
        let (entries, hash) =
            (&self.bytes()[self.slots.entries..self.slots.names], hash.to_le_bytes());
        // Few entries have this hash: all else is looked at of those alone.
        let alike = (0..).zip(entries.chunks_exact(ENTRY)).filter(|(_, entry)| entry[..4] == hash);
        let is = |slot: &u32| self.next(*slot) == Some(*slot) && self.name(*slot) == name;
        alike.map(|(slot, _)| slot).find(is)
    }

    /// Places side by side for a name of this length.
    pub(crate) fn room(&self, name: usize) -> Option<u32> {
        let (needed, mut free, mut slot) = (Slots::taken(name), 0, 0);
        while slot < self.slots.count {
            if slot.is_multiple_of(8) && self.bytes()[slot as usize / 8] == u8::MAX {
                (free, slot) = (0, slot + 8);
                continue;
            }
            free = if self.is_taken(slot) { 0 } else { free + 1 };
            slot += 1;
            if free == needed {
                return Some(slot - needed);
            }
        }
        None
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Dentries<B> {
    fn mark(&mut self, slot: u32, taken: bool) {
        let byte = &mut self.bytes.as_mut()[slot as usize / 8];
        match taken {
            true => *byte |= 1 << (slot % 8),
            false => *byte &= !(1 << (slot % 8)),
        }
    }

    /// Adds an entry where there is room for it ([`Dentries::room`]).
    pub(crate) fn insert(&mut self, slot: u32, entry: &Dentry, hash: u32) {
        for more in 0..Slots::taken(entry.name.len()) {
            self.mark(slot + more, true);
            let at = self.entry_at(slot + more);
            put(self.bytes.as_mut(), at, &[0; ENTRY]);
        }
        let (at, name_at) = (self.entry_at(slot), self.name_at(slot));
        let bytes = self.bytes.as_mut();
        put32(bytes, at, hash);
        put32(bytes, at + 4, entry.ino);
        put16(bytes, at + 8, entry.name.len() as u16);
        bytes[at + 10] = entry.kind;
        put(bytes, name_at, &entry.name);
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let taken = Slots::taken(self.name(slot).len());
        let at = self.entry_at(slot);
        put(self.bytes.as_mut(), at, &[0; ENTRY]);
        (slot..slot + taken).for_each(|slot| self.mark(slot, false));
    }

    /// Another file has the name now.
    pub(crate) fn replace(&mut self, slot: u32, ino: Nid, kind: u8) {
        let at = self.entry_at(slot);
        let bytes = self.bytes.as_mut();
        put32(bytes, at + 4, ino);
        bytes[at + 10] = kind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn buckets_follow_each_other() {
        let mut next = 0;
        for level in 0..40 {
            let buckets = 1u32 << level.min(BUCKETS_LEVEL);
            for bucket in [0, buckets / 2, buckets - 1] {
                let (first, pages) = Slots::bucket(level, bucket);
                assert_eq!(first, next + u64::from(bucket) * pages, "{level} {bucket}");
            }
            let (first, pages) = Slots::bucket(level, buckets - 1);
            next = first + pages;
            assert_eq!(Slots::pages(level + 1), next, "{level}");
        }
    }

    #[test]
    fn places_fill_a_page() {
        for (page, seed) in [4096, 8192, 16_384, 65_536].into_iter().zip([None, Some(7)].repeat(2))
        {
            let slots = Slots::of(page, seed);
            let end = slots.names + slots.count as usize * PIECE;
            let page = page - seed.map_or(0, |_| SEAL);
            assert!(end <= page && end + 64 > page, "{page}: {slots:?}");
            assert!(slots.entries * 8 >= slots.count as usize, "{page}: {slots:?}");
        }
    }

    #[test]
    fn a_seal_finds_changed_and_exchanged_pages() {
        let slots = Slots::of(4096, Some(7));
        let mut page = vec![3; 4096];
        slots.seal(&mut page, 5, 9);
        assert_eq!(slots.check(&page, 5, 9), Ok(()));
        assert!(slots.check(&page, 6, 9).is_err() && slots.check(&page, 5, 8).is_err());
        assert!(Slots::of(4096, Some(8)).check(&page, 5, 9).is_err(), "another file system's");
        for at in [0, 52, 2000, 4079, 4080, 4084, 4088, 4092, 4095] {
            page[at] ^= 4;
            assert!(slots.check(&page, 5, 9).is_err(), "{at}");
            page[at] ^= 4;
        }
        assert_eq!(Slots::of(4096, None).check(&[0; 4096], 5, 9), Ok(()));
    }

    proptest! {
        /// A page is a map of names, whatever is done to it.
        #[test]
        fn a_page_is_a_map(steps in prop::collection::vec((0u8..60, 1usize..40, any::<u32>()), 1..400)) {
            let slots = Slots::of(4096, Some(7));
            let mut page = vec![0; 4096];
            let mut model = BTreeMap::new();
            for (key, length, ino) in steps {
                let name: Vec<u8> = (0..length).map(|i| key.wrapping_mul(7) ^ i as u8).collect();
                let hash = name_hash(&name);
                let mut entries = Dentries::new(slots, &mut page[..]);
                let found = entries.find(&name, hash);
                prop_assert_eq!(found.is_some(), model.contains_key(&name));
                match found {
                    Some(slot) if ino % 2 == 0 => {
                        entries.remove(slot);
                        model.remove(&name);
                    }
                    Some(slot) => {
                        entries.replace(slot, ino, 8);
                        model.insert(name, ino);
                    }
                    None => {
                        if let Some(slot) = entries.room(name.len()) {
                            let entry = Dentry { name: name.clone(), ino, kind: 4 };
                            entries.insert(slot, &entry, hash);
                            model.insert(name, ino);
                        }
                    }
                }
                let entries = Dentries::new(slots, &page[..]);
                let (mut at, mut seen) = (0, BTreeMap::new());
                while let Some(slot) = entries.next(at) {
                    let entry = entries.get(slot);
                    at = slot + Slots::taken(entry.name.len());
                    seen.insert(entry.name, entry.ino);
                }
                prop_assert_eq!(&seen, &model);
            }
        }

        /// Any bytes are some entries.
        #[test]
        fn any_bytes_are_read(raw in prop::collection::vec(any::<u8>(), 4096)) {
            let entries = Dentries::new(Slots::of(4096, None), &raw[..]);
            let mut at = 0;
            while let Some(slot) = entries.next(at) {
                prop_assert!(entries.get(slot).name.len() <= 4096);
                at = slot + 1;
            }
            let _ = (entries.find(b"x", 1), entries.room(255));
        }
    }
}
