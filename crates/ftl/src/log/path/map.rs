//! The logical-to-physical map: one entry per logical sector.
//!
//! Owns: the entries, their encoding, and the lock that pblk keeps around them.
//! Promises: an entry changes only from what the caller took it for ([`View::exchange`], `exchange_each`), so whoever lost a race knows it; untouched
//! entries cost no memory (zero means unmapped). A change of an entry marks its shard behind that, in the same section, so a shard
//! without a mark is as it was when the mark was taken away ([`Map::take_mark`]). An entry that moves on from a slot needs none: its
//! shard is marked (FORMAT.md, rule 24c). Never: counts validity (that is `lines`).
//!
//! Entry (FORMAT.md): 0 unmapped; all ones poisoned; top bit set: slot id; else media address + 1.
//! 32 bits wide while linear physical sectors + 1 and slot ids fit 31 bits, else 64.

use flashlane_base::{FastDiv, mutant};
use flashlane_rt::Lock;
use flashlane_rt::sync::{AtomicU32, AtomicU64, Ordering, zeroed_u32, zeroed_u64};

/// What a map entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Never written, or discarded: reads as zeros.
    Unmapped,
    /// The newest content lies in this slot.
    Slot(u32),
    /// The newest content lies at this linear physical sector of the target.
    Media(u64),
    /// The newest content is lost; reads fail until the sector is written or discarded.
    Poisoned,
}

enum Entries {
    Narrow(Box<[AtomicU32]>),
    Wide(Box<[AtomicU64]>),
}

pub struct Map {
    entries: Entries,
    tag: u64,
    ones: u64,
    /// Entries change under `lock` only, so an exchange need not be one instruction.
    exclusive: bool,
    marks: Marks,
    /// pblk's translation lock: held around every look-up-and-act on the map.
    pub(in crate::log) lock: Lock<()>,
}

/// Which shards have changed since a checkpoint copied them: all of them to begin with.
struct Marks {
    per_shard: FastDiv,
    marks: Box<[AtomicU32]>,
}

const MARKED: u32 = 1;
/// Entries in a shard of a map that nobody takes shards of.
const PER_SHARD: u32 = 1 << 20;

impl Marks {
    fn new(capacity: u64, per_shard: u32) -> Marks {
        assert!(capacity.checked_mul(per_shard.into()).is_some(), "a division by it is exact");
        let shards = capacity.div_ceil(u64::from(per_shard));
        let marks = (0..shards).map(|_| AtomicU32::new(MARKED)).collect();
        Marks { per_shard: FastDiv::new(per_shard), marks }
    }

    #[inline(always)]
    fn of(&self, lba: u64) -> &AtomicU32 {
        &self.marks[self.per_shard.div_long(lba) as usize]
    }

    /// An entry has changed. Most find the mark, and write nothing: whoever takes it away waits for them to
    /// leave their section before it looks at the entries.
    #[inline(always)]
    fn set(&self, lba: u64) {
        let mark = self.of(lba);
        if mark.load(Ordering::Relaxed) != MARKED && !mutant!("log.change-unmarked") {
            mark.store(MARKED, Ordering::Release);
        }
    }
}

/// The entries of a map, held in registers by loops over many of them.
#[derive(Clone, Copy)]
pub(in crate::log) struct View<'a> {
    /// One of them is empty.
    narrow: &'a [AtomicU32],
    wide: &'a [AtomicU64],
    tag: u64,
    ones: u64,
    exclusive: bool,
    marks: &'a Marks,
}

/// Replaces `old` by `new` in an entry that nobody else can change now: the caller has the map's lock.
#[inline(always)]
fn exchange_held(entry: &AtomicU32, old: u32, new: u32) -> bool {
    let same = entry.load(Ordering::Relaxed) == old;
    if same {
        entry.store(new, Ordering::Release);
    }
    same
}

impl View<'_> {
    #[inline(always)]
    pub(in crate::log) fn raw(&self, lba: u64) -> u64 {
        match self.narrow.get(lba as usize) {
            Some(e) => e.load(Ordering::Acquire) as u64,
            None => self.wide[lba as usize].load(Ordering::Acquire),
        }
    }

    /// The raw entry, or that of an unmapped sector if there is none.
    #[inline(always)]
    pub(in crate::log) fn peek(&self, lba: u64) -> u64 {
        match self.narrow.get(lba as usize) {
            Some(e) => e.load(Ordering::Relaxed) as u64,
            None => self.wide.get(lba as usize).map_or(0, |e| e.load(Ordering::Relaxed)),
        }
    }

    /// Asks for the cache line of an entry, if there is one.
    #[inline(always)]
    pub(in crate::log) fn prefetch(&self, lba: u64) {
        match self.narrow.get(lba as usize) {
            Some(e) => flashlane_base::prefetch(e),
            None => self.wide.get(lba as usize).into_iter().for_each(flashlane_base::prefetch),
        }
    }

    #[inline(always)]
    pub(in crate::log) fn decode(&self, raw: u64) -> Entry {
        if raw == 0 {
            Entry::Unmapped
        } else if raw & self.tag == 0 {
            Entry::Media(raw - 1)
        } else if raw == self.ones {
            Entry::Poisoned
        } else {
            Entry::Slot((raw & !self.tag) as u32)
        }
    }

    #[inline(always)]
    pub(in crate::log) fn encode(&self, entry: Entry) -> u64 {
        match entry {
            Entry::Unmapped => 0,
            Entry::Slot(s) => self.tag | s as u64,
            Entry::Media(a) => a + 1,
            Entry::Poisoned => self.ones,
        }
    }

    /// [`View::exchange`] for one (sector, `old`, `new`) after the other, 64 at most: a bit for each that
    /// was replaced. Under the map's lock, which makes a short loop of it.
    #[inline(always)]
    pub(in crate::log) fn exchange_each(
        &self,
        changes: impl Iterator<Item = (u64, u64, u64)>,
    ) -> u64 {
        self.replace_each(changes, |lba| self.marks.set(lba))
    }

    /// [`View::publish`] for one (sector, slot, address) after the other, as [`View::exchange_each`].
    #[inline(always)]
    pub(in crate::log) fn publish_each(
        &self,
        changes: impl Iterator<Item = (u64, u32, u64)>,
    ) -> u64 {
        let raw = |entry| self.encode(entry);
        let changes =
            changes.map(|(lba, slot, addr)| (lba, raw(Entry::Slot(slot)), raw(Entry::Media(addr))));
        self.replace_each(changes, |_| {})
    }

    #[inline(always)]
    fn replace_each(
        &self,
        changes: impl Iterator<Item = (u64, u64, u64)>,
        replaced: impl Fn(u64),
    ) -> u64 {
        assert!(self.exclusive, "for whoever holds the lock");
        let mut done = 0;
        for (i, (lba, old, new)) in changes.enumerate() {
            let changed = match self.narrow.is_empty() {
                true => self.replace(lba, old, new),
                false => exchange_held(&self.narrow[lba as usize], old as u32, new as u32),
            };
            if changed {
                replaced(lba);
            }
            done |= u64::from(changed) << i;
        }
        done
    }

    /// Replaces `old` by `new` unless the entry has changed.
    #[inline(always)]
    pub(in crate::log) fn exchange(&self, lba: u64, old: u64, new: u64) -> bool {
        let changed = self.replace(lba, old, new);
        if changed {
            self.marks.set(lba);
        }
        changed
    }

    /// An entry moves on from a slot to where that was programmed, unless it has changed. It marks nothing:
    /// whoever copied the slot left its shard marked (FORMAT.md, rule 24c).
    #[inline(always)]
    pub(in crate::log) fn publish(&self, lba: u64, slot: u32, addr: u64) -> bool {
        self.replace(lba, self.encode(Entry::Slot(slot)), self.encode(Entry::Media(addr)))
    }

    #[inline(always)]
    fn replace(&self, lba: u64, old: u64, new: u64) -> bool {
        let exclusive = self.exclusive || mutant!("qblk.exchange-in-two-steps");
        match (self.narrow.get(lba as usize), exclusive) {
            (Some(e), true) => exchange_held(e, old as u32, new as u32),
            (Some(e), false) => e
                .compare_exchange(old as u32, new as u32, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok(),
            (None, true) => {
                let e = &self.wide[lba as usize];
                let same = e.load(Ordering::Relaxed) == old;
                if same {
                    e.store(new, Ordering::Release);
                }
                same
            }
            (None, false) => self.wide[lba as usize]
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok(),
        }
    }
}

impl Map {
    /// A map of `capacity` unmapped sectors over `physical` linear sectors and `slots` slots.
    pub fn new(capacity: u64, physical: u64, slots: u32, exclusive: bool) -> Map {
        let marks = Marks::new(capacity, PER_SHARD);
        if Map::is_narrow(physical, slots) {
            Map {
                entries: Entries::Narrow(zeroed_u32(capacity as usize)),
                tag: 1 << 31,
                ones: u32::MAX as u64,
                exclusive,
                marks,
                lock: Lock::new(()),
            }
        } else {
            Map {
                entries: Entries::Wide(zeroed_u64(capacity as usize)),
                tag: 1 << 63,
                ones: u64::MAX,
                exclusive,
                marks,
                lock: Lock::new(()),
            }
        }
    }

    /// The same with so many entries in a shard.
    pub(in crate::log) fn in_shards(self, per_shard: u32) -> Map {
        Map { marks: Marks::new(self.capacity(), per_shard), ..self }
    }

    /// Has a shard changed since its mark was taken away? What changed before the caller began to wait for
    /// sections to end, or took the lock, shows.
    pub(in crate::log) fn is_marked(&self, shard: u64) -> bool {
        self.marks.marks[shard as usize].load(Ordering::Acquire) == MARKED
    }

    /// A shard is going to be copied, behind the sections that are under way, or under the lock: what changes
    /// from now on marks it again.
    pub(in crate::log) fn take_mark(&self, shard: u64) {
        self.marks.marks[shard as usize].store(0, Ordering::Relaxed);
    }

    /// A copy of a shard may not be what a later one would be.
    pub(in crate::log) fn mark(&self, shard: u64) {
        self.marks.marks[shard as usize].store(MARKED, Ordering::Release);
    }

    /// Do 32 bits hold every entry? 31 are left below the tag, all ones is the poison value.
    pub fn is_narrow(physical: u64, slots: u32) -> bool {
        physical < (1 << 31) - 1 && slots < (1 << 31) - 1
    }

    /// Bits of an entry: 32 or 64.
    pub fn width(&self) -> u32 {
        match self.entries {
            Entries::Narrow(_) => 32,
            Entries::Wide(_) => 64,
        }
    }

    /// The entries, for the data path.
    #[inline(always)]
    pub(in crate::log) fn view(&self) -> View<'_> {
        let (narrow, wide): (&[AtomicU32], &[AtomicU64]) = match &self.entries {
            Entries::Narrow(e) => (e, &[]),
            Entries::Wide(e) => (&[], e),
        };
        let marks = &self.marks;
        View { narrow, wide, tag: self.tag, ones: self.ones, exclusive: self.exclusive, marks }
    }

    /// Entries change under `lock` only.
    #[inline]
    pub(in crate::log) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    #[inline]
    pub(in crate::log) fn raw(&self, lba: u64) -> u64 {
        self.view().raw(lba)
    }

    #[inline]
    pub(in crate::log) fn decode(&self, raw: u64) -> Entry {
        self.view().decode(raw)
    }

    /// What the map says of a sector.
    #[inline]
    pub fn get(&self, lba: u64) -> Entry {
        self.decode(self.raw(lba))
    }

    #[inline]
    pub(in crate::log) fn encode(&self, entry: Entry) -> u64 {
        self.view().encode(entry)
    }

    /// As [`View::exchange`].
    #[inline]
    pub(in crate::log) fn exchange(&self, lba: u64, old: u64, new: u64) -> bool {
        self.view().exchange(lba, old, new)
    }

    /// Appends `count` entries from `lba` in their form on the medium (little-endian, FORMAT.md,
    /// Shard). What is no media address is asked of `other`, which gives the word to store.
    pub(in crate::log) fn copy_words(
        &self,
        lba: u64,
        count: u64,
        out: &mut Vec<u8>,
        mut other: impl FnMut(u64, Entry) -> u64,
    ) {
        let range = lba as usize..(lba + count) as usize;
        match &self.entries {
            Entries::Narrow(e) => {
                out.reserve(count as usize * 4);
                let tag = self.tag as u32;
                for (k, some) in e[range].chunks(64).enumerate() {
                    // First all of them as they are, then the few that are no media addresses.
                    let at = out.len();
                    let mut seen = 0;
                    let mut bytes = [0; 4 * 64];
                    for (stored, e) in bytes.chunks_exact_mut(4).zip(some) {
                        let word = e.load(Ordering::Acquire);
                        seen |= word;
                        stored.copy_from_slice(&word.to_le_bytes());
                    }
                    out.extend_from_slice(&bytes[..4 * some.len()]);
                    if seen & tag == 0 {
                        continue;
                    }
                    for (i, stored) in out[at..].chunks_exact_mut(4).enumerate() {
                        let word = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
                        if word & tag != 0 {
                            let lba = lba + (64 * k + i) as u64;
                            let word = other(lba, self.decode(word as u64)) as u32;
                            stored.copy_from_slice(&word.to_le_bytes());
                        }
                    }
                }
            }
            Entries::Wide(e) => {
                for (i, e) in e[range].iter().enumerate() {
                    let mut word = e.load(Ordering::Acquire);
                    if word & self.tag != 0 {
                        word = other(lba + i as u64, self.decode(word));
                    }
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
        }
    }

    /// Logical sectors.
    pub fn capacity(&self) -> u64 {
        match &self.entries {
            Entries::Narrow(e) => e.len() as u64,
            Entries::Wide(e) => e.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P21: at 31, 32 and 33 address bits no two meanings share an encoding, at their edges too.
    #[test]
    fn encodings_never_collide_at_the_edges_of_the_width() {
        for physical in [1u64 << 20, (1 << 31) - 2, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 33] {
            let slots = 1 << 20;
            let m = Map::new(4, physical, slots, false);
            let wide = physical >= (1 << 31) - 1;
            assert_eq!(m.width(), if wide { 64 } else { 32 }, "{physical}");
            let all = [
                Entry::Unmapped,
                Entry::Poisoned,
                Entry::Slot(0),
                Entry::Slot(slots - 1),
                Entry::Media(0),
                Entry::Media(physical - 1),
            ];
            for (i, a) in all.iter().enumerate() {
                assert!(m.exchange(3, m.raw(3), m.encode(*a)));
                assert_eq!(m.get(3), *a);
                for b in &all[..i] {
                    assert_ne!(m.encode(*a), m.encode(*b));
                }
            }
        }
    }

    /// Q01: two threads change one entry at once: whoever loses knows it, so that no change is lost.
    #[test]
    fn q01_of_two_exchanges_at_once_one_fails() {
        let each = if cfg!(miri) { 100 } else { 3_000_000 };
        for physical in [100, 1 << 33] {
            let m = Map::new(1, physical, 10, false);
            let both = std::sync::Barrier::new(2);
            let count = || {
                both.wait();
                for _ in 0..each {
                    let mut old = m.raw(0);
                    while !m.exchange(0, old, old + 1) {
                        old = m.raw(0);
                    }
                }
            };
            std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(count))));
            assert_eq!(m.raw(0), 2 * each);
        }
    }

    #[test]
    fn a_lost_race_changes_nothing() {
        let m = Map::new(1, 100, 10, false);
        assert!(m.exchange(0, 0, m.encode(Entry::Slot(3))));
        assert!(!m.exchange(0, 0, m.encode(Entry::Media(7))));
        assert_eq!(m.get(0), Entry::Slot(3));
    }
}
