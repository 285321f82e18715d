//! Knows what every sector may hold, and checks every read against it.
//!
//! Owns: a version per logical sector (2 bytes each, 4 where there were thousands), the stamps that writes carry, the window of
//! versions that a read may see while writes to the same sector are in flight.
//! Promises: no false alarm: overlapping requests may take effect in either order; no miss beyond
//! one: a read that overlaps a discard may also see zeros. A lost, stale, torn or misplaced sector
//! is found. Never: keeps content; a stamp is a function of (sector, version).

use flashlane_base::{SECTOR_BYTES, crc32c, prefetch};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};

/// Version bits; they wrap, windows are compared around the wrap.
const VERSION_BITS: u32 = 28;
const VERSION_MASK: u32 = (1 << VERSION_BITS) - 1;
/// The newest version is data; clear: zeros (never written, or discarded).
const DATA: u32 = 1 << 28;
/// One request that changes the sector is in flight.
const IN_FLIGHT: u32 = 1 << 29;
/// The version before the one in flight is data.
const BEFORE_DATA: u32 = 1 << 30;
/// More than that: see the side table.
const SIDE: u32 = 1 << 31;
/// Logical sectors that one stamp can tell apart.
pub const SECTORS_MAX: u64 = 1 << (64 - VERSION_BITS);

const PAGE: usize = 2048;

/// Words of sectors that lie side by side: version bits and what is said above.
enum Page {
    /// The version is less than [`NARROW`] behind the first one; above it the four bits.
    Narrow(Box<[u16; PAGE]>),
    Wide(Box<[u32; PAGE]>),
}

/// Versions that a narrow word tells apart.
const NARROW: u32 = 1 << (VERSION_BITS - 16);

impl Page {
    /// Nothing was written yet.
    fn new() -> Page {
        Page::Narrow(Box::new([0; PAGE]))
    }

    #[inline]
    fn get(&self, i: usize, first: u32) -> u32 {
        match self {
            Page::Narrow(words) => widen(words[i], first),
            Page::Wide(words) => words[i],
        }
    }

    #[inline]
    fn set(&mut self, i: usize, word: u32, first: u32) {
        match self {
            Page::Narrow(words) => {
                let behind = word.wrapping_sub(first) & VERSION_MASK;
                if behind < NARROW {
                    words[i] = (behind | word >> VERSION_BITS << NARROW.trailing_zeros()) as u16;
                } else {
                    self.set_wide(i, word, first);
                }
            }
            Page::Wide(words) => words[i] = word,
        }
    }

    #[cold]
    fn set_wide(&mut self, i: usize, word: u32, first: u32) {
        let mut words = Box::new(std::array::from_fn(|i| self.get(i, first)));
        words[i] = word;
        *self = Page::Wide(words);
    }
}

#[inline]
fn widen(word: u16, first: u32) -> u32 {
    let word = u32::from(word);
    let version = (word % NARROW).wrapping_add(first) & VERSION_MASK;
    version | (word / NARROW) << VERSION_BITS
}

/// What a sector may hold: a version from `low` on, or zeros.
#[derive(Clone, Copy, Debug)]
struct Window {
    low: u32,
    zero: bool,
}

/// Sectors with several requests in flight at once, or whose order among such is not known yet.
#[derive(Clone, Copy, Debug)]
struct Side {
    /// What a read that starts now may see.
    now: Window,
    in_flight: u32,
    /// From the first version of the requests that overlap each other on; zeros where one is a discard.
    group: Window,
}

impl Side {
    /// Of a sector with the one request in flight that its word knows.
    fn of(word: u32) -> Side {
        let (version, was_data) = (word & VERSION_MASK, word & DATA != 0);
        let low = version.wrapping_sub(1) & VERSION_MASK;
        Side {
            now: Window { low, zero: !was_data || word & BEFORE_DATA == 0 },
            in_flight: 1,
            group: Window { low: version, zero: !was_data },
        }
    }
}

/// Started reads remember their windows here; reused from read to read.
#[derive(Default, Debug)]
pub struct Windows {
    windows: Vec<Window>,
    discards: u64,
}

/// A sector with the wrong content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub lba: u64,
    pub found: u64,
    /// Oldest and newest version that would have been right.
    pub expected: (u32, u32),
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mismatch { lba, found, expected: (low, high) } = self;
        write!(f, "lba {lba}: expected version {low}")?;
        if low != high {
            write!(f, " to {high}")?;
        }
        match decode(*found) {
            None => write!(f, ", found zeros"),
            Some((at, version)) if at == *lba => write!(f, ", found version {version}"),
            Some((at, version)) => {
                write!(f, ", found {found:#018x} (version {version} of lba {at}?)")
            }
        }
    }
}

pub struct Oracle {
    capacity: u64,
    pages: Vec<Option<Page>>,
    side: BTreeMap<u64, Side>,
    discards: u64,
    mapped: u64,
    /// Version of what nobody here has written yet, and whether something may be there all the same.
    first: u32,
    inherited: bool,
    /// Sums of what was written that is not made of stamps, by sector and version.
    given: BTreeMap<(u64, u32), u32>,
    /// A layer discards sectors of its own accord: those that were given may read as zeros.
    discarding: bool,
}

/// Stamp of a version of a sector; never zero.
fn stamp(lba: u64, version: u32) -> u64 {
    (lba + 1) << VERSION_BITS | version as u64
}

fn decode(stamp: u64) -> Option<(u64, u32)> {
    let lba = (stamp >> VERSION_BITS).checked_sub(1)?;
    Some((lba, stamp as u32 & VERSION_MASK))
}

/// Content of a sector that carries `stamp`: 8 bytes, or 4096 in which every word differs.
fn fill(stamp: u64, unit: &mut [u8]) {
    if unit.len() == 8 {
        unit.copy_from_slice(&stamp.to_le_bytes());
        return;
    }
    for (i, word) in unit.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_of(stamp, i).to_le_bytes());
    }
}

/// The `i`-th word of a sector; word 0 is the stamp itself.
fn word_of(stamp: u64, i: usize) -> u64 {
    stamp.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn word_at(unit: &[u8], i: usize) -> u64 {
    let mut word = [0u8; 8];
    word.copy_from_slice(&unit[i * 8..i * 8 + 8]);
    u64::from_le_bytes(word)
}

/// The stamp that a sector carries; a torn one gives the first word that does not belong.
fn stamp_of(unit: &[u8]) -> u64 {
    let stamp = word_at(unit, 0);
    for i in 1..unit.len() / 8 {
        let found = word_at(unit, i);
        let want = if stamp == 0 { 0 } else { word_of(stamp, i) };
        if found != want {
            return found;
        }
    }
    stamp
}

impl Oracle {
    /// An oracle of `capacity` sectors that have never been written.
    pub fn new(capacity: u64) -> Oracle {
        assert!(capacity < SECTORS_MAX, "more sectors than stamps tell apart");
        Oracle {
            capacity,
            pages: (0..capacity.div_ceil(PAGE as u64)).map(|_| None).collect(),
            side: BTreeMap::new(),
            discards: 0,
            mapped: 0,
            first: 0,
            inherited: false,
            given: BTreeMap::new(),
            discarding: false,
        }
    }

    /// A layer discards sectors of its own accord, by what they hold.
    pub fn expect_discards(&mut self) {
        self.discarding = true;
    }

    /// Something was written that was not made here.
    pub fn has_given(&self) -> bool {
        !self.given.is_empty()
    }

    /// An oracle of sectors that may hold anything until they are written here. `life` tells this run
    /// from earlier ones: its versions begin somewhere else, so that what an earlier run left is not
    /// taken for its own.
    pub fn of_used(capacity: u64, life: u64) -> Oracle {
        let first = (life.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 36) as u32 & VERSION_MASK;
        Oracle { first, inherited: true, ..Oracle::new(capacity) }
    }

    /// Logical sectors.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// No request is in flight.
    pub fn is_settled(&self) -> bool {
        self.side.values().all(|side| side.in_flight == 0)
    }

    /// Puts out what a settled oracle knows, numbers little-endian: sectors (8); pages with data (8), and for
    /// each its place (8) and its words (4 each); sectors whose order of overlapping writes is not known (8),
    /// and for each its place (8), two versions (4 each) and what may be zeros (1).
    ///
    /// # Errors
    /// `out` does not take it.
    pub fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        debug_assert!(self.is_settled() && !self.inherited && !self.has_given());
        let pages = || self.pages.iter().enumerate().filter_map(|(i, p)| Some((i, p.as_ref()?)));
        out.write_all(&self.capacity.to_le_bytes())?;
        out.write_all(&(pages().count() as u64).to_le_bytes())?;
        for (place, page) in pages() {
            out.write_all(&(place as u64).to_le_bytes())?;
            let mut bytes = [0; PAGE * 4];
            for (i, to) in bytes.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&page.get(i, self.first).to_le_bytes());
            }
            out.write_all(&bytes)?;
        }
        out.write_all(&(self.side.len() as u64).to_le_bytes())?;
        for (lba, side) in &self.side {
            out.write_all(&lba.to_le_bytes())?;
            out.write_all(&side.now.low.to_le_bytes())?;
            out.write_all(&side.group.low.to_le_bytes())?;
            out.write_all(&[side.now.zero as u8 | (side.group.zero as u8) << 1])?;
        }
        Ok(())
    }

    /// Takes in what [`Oracle::save`] put out, of at most `most` sectors.
    ///
    /// # Errors
    /// `from` ends before, or it makes no sense.
    pub fn load(from: &mut dyn Read, most: u64) -> io::Result<Oracle> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        fn next<const N: usize>(from: &mut dyn Read) -> io::Result<u64> {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes[..N]).map(|()| u64::from_le_bytes(bytes))
        }
        let capacity = next::<8>(from)?;
        if capacity > most || capacity >= SECTORS_MAX {
            return Err(wrong("more sectors than the device has"));
        }
        let (mut oracle, mut marked) = (Oracle::new(capacity), 0);
        for _ in 0..next::<8>(from)? {
            let place = next::<8>(from)?;
            let at = usize::try_from(place).ok().and_then(|i| oracle.pages.get_mut(i));
            let at = at.filter(|p| p.is_none()).ok_or_else(|| wrong("a page has no place"))?;
            let mut bytes = [0; PAGE * 4];
            from.read_exact(&mut bytes)?;
            let mut page = Page::new();
            for (i, from) in bytes.chunks_exact(4).enumerate() {
                let word = from.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
                if word & (IN_FLIGHT | BEFORE_DATA) != 0 {
                    return Err(wrong("a sector is in flight"));
                }
                oracle.mapped += u64::from(word & DATA != 0);
                marked += u64::from(word & SIDE != 0);
                page.set(i, word, oracle.first);
            }
            *at = Some(page);
        }
        for _ in 0..next::<8>(from)? {
            let (lba, low, group) = (next::<8>(from)?, next::<4>(from)?, next::<4>(from)?);
            let zeros = next::<1>(from)?;
            let now = Window { low: low as u32, zero: zeros & 1 != 0 };
            let group = Window { low: group as u32, zero: zeros & 2 != 0 };
            let side = Side { now, in_flight: 0, group };
            let known = lba < capacity && oracle.word(lba) & SIDE != 0;
            if !known || oracle.side.insert(lba, side).is_some() {
                return Err(wrong("a sector without a mark"));
            }
        }
        match oracle.side.len() as u64 == marked {
            true => Ok(oracle),
            false => Err(wrong("marked sectors without an entry")),
        }
    }

    /// Sectors whose newest version is data.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    #[inline]
    fn word(&self, lba: u64) -> u32 {
        let page = &self.pages[lba as usize / PAGE];
        page.as_ref().map_or(self.first, |page| page.get(lba as usize % PAGE, self.first))
    }

    #[inline]
    fn set_word(&mut self, lba: u64, word: u32) {
        let page = self.pages[lba as usize / PAGE].get_or_insert_with(Page::new);
        page.set(lba as usize % PAGE, word, self.first);
    }

    /// A write (or discard) of a sector starts; returns its version.
    #[inline]
    fn begin(&mut self, lba: u64, data: bool) -> u32 {
        let word = self.word(lba);
        self.mapped = self.mapped + data as u64 - (word & DATA != 0) as u64;
        let version = (word + 1) & VERSION_MASK;
        let newest = version | if data { DATA } else { 0 };
        if word & (IN_FLIGHT | SIDE) == 0 {
            let before = if word & DATA != 0 { BEFORE_DATA } else { 0 };
            self.set_word(lba, newest | IN_FLIGHT | before);
            return version;
        }
        let side = self.side.entry(lba).or_insert(Side::of(word));
        if side.in_flight == 0 {
            side.group = Window { low: version, zero: false };
        }
        side.in_flight += 1;
        side.group.zero |= !data;
        side.now.zero |= !data;
        self.set_word(lba, newest | SIDE);
        version
    }

    /// A change of a sector was acknowledged.
    #[inline]
    fn end(&mut self, lba: u64) {
        let word = self.word(lba);
        if word & SIDE == 0 {
            self.set_word(lba, word & !(IN_FLIGHT | BEFORE_DATA));
            return;
        }
        let side = self.side.get_mut(&lba).expect("marked, so it has an entry");
        side.in_flight -= 1;
        // Content is now of this group: what the group follows had been acknowledged before.
        side.now = side.group;
        if side.in_flight == 0 && side.group.low == word & VERSION_MASK {
            self.side.remove(&lba);
            self.set_word(lba, word & !SIDE);
        }
    }

    /// A change of a sector failed: old or new, nobody knows.
    fn fail(&mut self, lba: u64) {
        let word = self.word(lba);
        let side = self.side.entry(lba).or_insert(Side::of(word));
        side.in_flight -= 1;
        self.set_word(lba, word & !(IN_FLIGHT | BEFORE_DATA) | SIDE);
    }

    /// A write starts: versions are taken and `buf` is filled with their stamps.
    pub fn begin_write(&mut self, lba: u64, buf: &mut [u8], unit: usize) {
        debug_assert!(unit == 8 || unit == SECTOR_BYTES);
        for (i, sector) in buf.chunks_exact_mut(unit).enumerate() {
            let at = lba + i as u64;
            let version = self.begin(at, true);
            fill(stamp(at, version), sector);
        }
    }

    /// A write of bytes starts that were not made here.
    pub fn begin_given(&mut self, lba: u64, content: &[u8]) {
        for (at, sector) in (lba..).zip(content.chunks_exact(SECTOR_BYTES)) {
            let low = self.window(at).low;
            // Older ones can't be read any more; versions wrap, and a wrong one is out of any window.
            let old: Vec<u32> =
                self.given.range((at, 0)..(at, low)).map(|((_, version), _)| *version).collect();
            old.into_iter().for_each(|version| _ = self.given.remove(&(at, version)));
            let version = self.begin(at, true);
            self.given.insert((at, version), crc32c(sector));
        }
    }

    pub fn begin_discard(&mut self, lba: u64, sectors: u32) {
        self.discards += 1;
        for at in lba..lba + sectors as u64 {
            self.begin(at, false);
        }
    }

    /// A write or discard ended.
    pub fn finish(&mut self, lba: u64, sectors: u32, ok: bool) {
        for at in lba..lba + sectors as u64 {
            if ok { self.end(at) } else { self.fail(at) }
        }
    }

    /// Asks for what is known of a sector: a request for it comes soon.
    #[inline]
    pub fn expect(&self, lba: u64) {
        match self.pages.get(lba as usize / PAGE) {
            Some(Some(Page::Narrow(words))) => prefetch(&words[lba as usize % PAGE]),
            Some(Some(Page::Wide(words))) => prefetch(&words[lba as usize % PAGE]),
            Some(None) | None => {}
        }
    }

    pub fn begin_read(&mut self, lba: u64, sectors: u32, windows: &mut Windows) {
        windows.windows.clear();
        windows.discards = self.discards;
        for at in lba..lba + sectors as u64 {
            let window = self.window(at);
            windows.windows.push(window);
        }
    }

    #[inline]
    fn window(&mut self, lba: u64) -> Window {
        let word = self.word(lba);
        let (version, data) = (word & VERSION_MASK, word & DATA != 0);
        if word & SIDE != 0 {
            return self.side[&lba].now;
        }
        if word & IN_FLIGHT != 0 {
            return Side::of(word).now;
        }
        Window { low: version, zero: !data }
    }

    /// A read ended: the first sector that is wrong, and how many are. `skip` says which sectors
    /// the device reported as unreadable.
    pub fn check_read(
        &self,
        lba: u64,
        windows: &Windows,
        buf: &[u8],
        unit: usize,
        skip: impl Fn(u64) -> bool,
    ) -> Option<(Mismatch, u64)> {
        let mut first = None;
        let mut wrong = 0;
        for (i, sector) in buf.chunks_exact(unit).enumerate() {
            let at = lba + i as u64;
            let window = windows.windows[i];
            let newest = self.word(at) & VERSION_MASK;
            if self.inherited && window.low == self.first {
                continue; // what was there before this run: the layer's own checksums have to do
            }
            let found = stamp_of(sector);
            let right = match decode(found) {
                _ if found == 0 => window.zero || self.discards != windows.discards,
                Some((of, version)) => {
                    let span = newest.wrapping_sub(window.low) & VERSION_MASK;
                    let age = version.wrapping_sub(window.low) & VERSION_MASK;
                    of == at && age <= span && !(window.zero && age == 0 && span == 0)
                }
                None => false,
            };
            if !right && !self.is_given(at, window, newest, sector) && !skip(at) {
                wrong += 1;
                first.get_or_insert(Mismatch { lba: at, found, expected: (window.low, newest) });
            }
        }
        first.map(|m| (m, wrong))
    }

    /// A sector holds what was given in one of these versions, or what a layer has made of it.
    fn is_given(&self, lba: u64, window: Window, newest: u32, sector: &[u8]) -> bool {
        if self.given.is_empty() {
            return false;
        }
        let span = newest.wrapping_sub(window.low) & VERSION_MASK;
        let of = self.given.range((lba, 0)..=(lba, VERSION_MASK));
        let mut of = of.filter(|((_, version), _)| {
            let age = version.wrapping_sub(window.low) & VERSION_MASK;
            age <= span && !(window.zero && age == 0 && span == 0)
        });
        let zeros = self.discarding && sector.iter().all(|byte| *byte == 0);
        let sum = crc32c(sector);
        of.any(|(_, given)| zeros || *given == sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    /// What was there before is nobody's business; what this run wrote is, though an earlier run of
    /// the same kind has left stamps of its own.
    #[test]
    fn a_used_device_may_hold_anything_until_it_is_written() {
        let mut before = Oracle::of_used(100, 1);
        let old = write(&mut before, 7, 8);
        let mut o = Oracle::of_used(100, 2);
        assert_eq!(read(&mut o, 7, &old), None);
        assert_eq!(read(&mut o, 7, &[0; 8]), None);
        let new = write(&mut o, 7, 8);
        assert_eq!(read(&mut o, 7, &old), None, "in flight");
        o.finish(7, 1, true);
        assert_eq!(read(&mut o, 7, &new), None);
        assert!(read(&mut o, 7, &old).is_some(), "this run's write is lost");
        assert!(read(&mut o, 7, &[0; 8]).is_some());
        o.begin_discard(7, 1);
        o.finish(7, 1, true);
        assert!(read(&mut o, 7, &new).is_some() && read(&mut o, 7, &[0; 8]).is_none());
    }

    /// A sector that is written more often than a narrow page can say takes its page along.
    #[test]
    fn thousands_of_versions_are_told_apart() {
        for life in [0, 1, 7] {
            let mut o = Oracle::of_used(2 * PAGE as u64, life);
            let neighbour = write(&mut o, 8, 8);
            o.finish(8, 1, true);
            let mut old = vec![0; 8];
            for n in 0..2 * NARROW {
                let new = write(&mut o, 9, 8);
                assert_eq!(read(&mut o, 9, &new), None, "in flight, {n}");
                o.finish(9, 1, true);
                assert_eq!(read(&mut o, 9, &new), None, "write {n}");
                assert!(read(&mut o, 9, &old).is_some(), "write {n} is lost");
                old = new;
            }
            assert_eq!(read(&mut o, 8, &neighbour), None);
            assert!(read(&mut o, 8, &[0; 8]).is_some());
            assert_eq!(o.mapped(), 2);
        }
    }

    fn read(oracle: &mut Oracle, lba: u64, content: &[u8]) -> Option<Mismatch> {
        let mut w = Windows::default();
        oracle.begin_read(lba, 1, &mut w);
        oracle.check_read(lba, &w, content, content.len(), |_| false).map(|(m, _)| m)
    }

    fn write(oracle: &mut Oracle, lba: u64, unit: usize) -> Vec<u8> {
        let mut buf = vec![0; unit];
        oracle.begin_write(lba, &mut buf, unit);
        buf
    }

    #[test]
    fn lost_stale_torn_and_misplaced_sectors_are_found() {
        for unit in [8, SECTOR_BYTES] {
            let mut o = Oracle::new(100);
            assert_eq!(read(&mut o, 7, &vec![0; unit]), None, "never written: zeros");
            let one = write(&mut o, 7, unit);
            o.finish(7, 1, true);
            assert_eq!(read(&mut o, 7, &one), None);
            assert!(read(&mut o, 7, &vec![0; unit]).is_some(), "lost");
            assert!(read(&mut o, 8, &one).is_some(), "misplaced");
            let two = write(&mut o, 7, unit);
            assert_eq!(read(&mut o, 7, &one), None, "in flight: old");
            assert_eq!(read(&mut o, 7, &two), None, "in flight: or new");
            o.finish(7, 1, true);
            assert!(read(&mut o, 7, &one).is_some(), "stale");
            if unit > 8 {
                let torn = [&two[..2048], &one[2048..]].concat();
                assert!(read(&mut o, 7, &torn).is_some(), "torn");
            }
            o.begin_discard(7, 1);
            o.finish(7, 1, true);
            assert_eq!(read(&mut o, 7, &vec![0; unit]), None);
            assert!(read(&mut o, 7, &two).is_some(), "a discarded sector came back");
            assert_eq!(o.mapped(), 0);
        }
    }

    #[test]
    fn what_was_given_is_told_from_all_else() {
        let mut o = Oracle::new(10);
        let [one, two, zeros] = [1, 2, 0].map(|byte| vec![byte; SECTOR_BYTES]);
        o.begin_given(3, &one);
        o.finish(3, 1, true);
        assert_eq!(read(&mut o, 3, &one), None);
        assert!(read(&mut o, 3, &two).is_some() && read(&mut o, 3, &zeros).is_some());
        o.begin_given(3, &two);
        assert_eq!((read(&mut o, 3, &one), read(&mut o, 3, &two)), (None, None), "in flight");
        o.finish(3, 1, true);
        assert!(read(&mut o, 3, &one).is_some(), "stale");
        o.expect_discards();
        assert_eq!(read(&mut o, 3, &zeros), None, "a layer has discarded it");
        let stamps = write(&mut o, 3, SECTOR_BYTES);
        o.finish(3, 1, true);
        assert_eq!(read(&mut o, 3, &stamps), None);
        for wrong in [&one, &two, &zeros] {
            assert!(read(&mut o, 3, wrong).is_some());
        }
        o.begin_given(3, &zeros);
        o.finish(3, 1, true);
        assert!(read(&mut o, 3, &zeros).is_none() && read(&mut o, 3, &stamps).is_some());
        assert_eq!(o.given.len(), 1, "what can't be read any more is forgotten");
    }

    #[test]
    fn writes_that_overlap_may_end_in_either_order_but_not_older() {
        let mut o = Oracle::new(10);
        let zero = write(&mut o, 3, 8);
        o.finish(3, 1, true);
        let (one, two) = (write(&mut o, 3, 8), write(&mut o, 3, 8));
        o.finish(3, 1, true);
        o.finish(3, 1, true);
        for content in [&one, &two] {
            assert_eq!(read(&mut o, 3, content), None);
        }
        assert!(read(&mut o, 3, &zero).is_some());
        let three = write(&mut o, 3, 8);
        assert_eq!(read(&mut o, 3, &one), None);
        o.finish(3, 1, true);
        assert_eq!(read(&mut o, 3, &three), None);
        assert!(read(&mut o, 3, &two).is_some());
        assert!(o.side.is_empty(), "nothing is kept once the order is known");
    }

    #[test]
    fn a_failed_write_leaves_either() {
        let mut o = Oracle::new(10);
        let one = write(&mut o, 3, 8);
        o.finish(3, 1, true);
        let two = write(&mut o, 3, 8);
        o.finish(3, 1, false);
        for content in [&one, &two] {
            assert_eq!(read(&mut o, 3, content), None);
        }
        let three = write(&mut o, 3, 8);
        o.finish(3, 1, true);
        assert_eq!(read(&mut o, 3, &three), None);
        assert!(read(&mut o, 3, &one).is_some());
    }

    proptest! {
        /// Against a register that takes each request's effect at some instant between its start
        /// and its end: never a false alarm.
        #[test]
        fn an_honest_device_is_never_accused(steps in prop::collection::vec((0u8..6, any::<u8>()), 1..120)) {
            let mut o = Oracle::new(4);
            let mut content = vec![0u8; 8];
            // (applied, stamp) of requests in flight; reads: (windows, seen).
            let mut changes: Vec<(bool, Vec<u8>)> = Vec::new();
            let mut reads: Vec<(Windows, Vec<u8>)> = Vec::new();
            for (kind, pick) in steps {
                match kind {
                    0 => changes.push((false, write(&mut o, 2, 8))),
                    1 => {
                        o.begin_discard(2, 1);
                        changes.push((false, vec![0; 8]));
                    }
                    2 | 3 if !changes.is_empty() => {
                        let i = pick as usize % changes.len();
                        if !changes[i].0 {
                            changes[i].0 = true;
                            content = changes[i].1.clone();
                        } else {
                            changes.swap_remove(i);
                            o.finish(2, 1, true);
                        }
                    }
                    4 => {
                        let mut w = Windows::default();
                        o.begin_read(2, 1, &mut w);
                        reads.push((w, content.clone()));
                    }
                    5 if !reads.is_empty() => {
                        let i = pick as usize % reads.len();
                        let (w, at_start) = reads.swap_remove(i);
                        let seen = if pick % 2 == 0 { at_start } else { content.clone() };
                        prop_assert_eq!(o.check_read(2, &w, &seen, 8, |_| false), None);
                    }
                    _ => {}
                }
            }
            prop_assert!(o.mapped() <= 1);
        }
    }
}
