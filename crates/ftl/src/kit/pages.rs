//! What the medium must remember beside the host's sectors: trims, lost sectors, void units, chunks
//! in which nothing is missed, erases of single chunks, versions that were flushed.
//!
//! Owns: the pages of this memory (which exist, which differ from their copy on the medium) and
//! their bytes. Promises: a page stands alone and says all about its range at one stamp, so the
//! newest page that can be read is the truth and nothing has to be replayed; a page from the medium
//! is believed only if it is intact. Never: decides when a page is programmed (`drain.rs`,
//! `sync.rs`), or holds state that the map has (a page of trims is made from the map when it goes
//! out).
//!
//! A page is one sector. It has a logical number behind the host's capacity and is placed, moved,
//! ordered by its stamp and found again like any other sector; so it wears no place out, and needs
//! no anchor, segments or mirrors. Garbage collection makes a new one instead of moving the old.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic `FLpp` |
//! | 4 | 4 | CRC32C over bytes 8 .. 4096 |
//! | 8 | 2 | major version, 1 |
//! | 10 | 2 | zero |
//! | 12 | 4 | number of the page |
//! | 16 | 8 | capacity of the device, in sectors |
//! | 24 | 8 | first sector, unit or chunk it speaks of |
//! | 32 | 8 | stamp at which it is true |
//! | 40 | 24 | zero |
//! | 64 | 4032 | trims: two bits per logical sector; void units: one bit per unit; notes: one bit per chunk; counts: four bits per chunk; stamps: 64 bits per logical sector |
//!
//! Two bits: 0 nothing, 1 reads as zeros (a copy below the page's stamp is void), 2 its content is
//! lost (reads fail until a copy above the stamp). Bits count from the lowest of each byte.
//!
//! **Notes** say which chunks are bad: nothing in them is missed, for what they held is elsewhere,
//! or noted as lost. So a mount tells a chunk that was bad before from one that held data and is
//! offline now. Chunks are counted by chunk number and position in the stripe. Notes are for a
//! device without capacitors: a dump says as much. A page of them is programmed twice, on two PUs
//! where there are two: one of them may be on the die that is dead. Both copies are kept: before
//! the line of one is erased, both are written anew.
//!
//! **Counts** are notes as well, behind the others. They say how often each chunk that is the only
//! good one of its line had been erased, as a tag (`witness.rs`): in other lines the records of the
//! other chunks say so. A barrier writes them when such a chunk was opened that was erased since
//! they were written, so they are durable before anything in that chunk is. 0: nobody knows.
//!
//! **Stamps** say which version of each logical sector counts (`stamps.rs`), on a device whose
//! flushes leave records. They are programmed twice and kept, as notes are.

use super::STAMP_LAST;
use super::buffer::NIL;
use super::map::{Entry, Map};
use super::place::Layout;
use super::stamps::Stamps;
use flashlane_base::mutant;

/// Bytes of a page, and of the content of its sector under every store.
pub(super) const PAGE_BYTES: usize = flashlane_base::SECTOR_BYTES;
pub(super) const HEADER: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"FLpp");
const MAJOR: u16 = 1;
/// Logical sectors that a page of trims speaks of.
pub(super) const TRIM_SPAN: u32 = ((PAGE_BYTES - HEADER) * 4) as u32;
/// Units that a page of void units speaks of, and chunks that a page of notes does.
pub(super) const VOID_SPAN: u32 = ((PAGE_BYTES - HEADER) * 8) as u32;

/// Chunks that a page of counts speaks of.
pub(super) const COUNT_SPAN: u32 = ((PAGE_BYTES - HEADER) * 2) as u32;

/// What a page says of a logical sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nothing: ask the copies.
    Nothing,
    /// It reads as zeros.
    Trimmed,
    /// Its content is lost.
    Lost,
}

/// Where a page stands.
#[derive(Clone, Copy, Debug)]
struct State {
    /// What it would say now is not what the newest copy says, or there is no copy.
    dirty: bool,
    /// A copy is being programmed.
    flying: bool,
    /// Physical sector of its newest programmed copy.
    at: u32,
}

/// All pages of a device, and the void units that nothing else remembers.
pub(super) struct Pages {
    capacity: u32,
    states: Vec<State>,
    trims: u32,
    /// A bit per unit: unreadable sectors in it are no loss, whatever was there is elsewhere.
    void: Vec<u64>,
    voids: u64,
    /// First page of notes.
    notes_from: u32,
    /// A bit per chunk, as the newest page of notes says: nothing in it is missed.
    notes: Vec<u64>,
    /// Where the second copy lies of each page of notes, those of counts included.
    second_notes: Vec<Option<u32>>,
    /// First page of counts.
    counts_from: u32,
    /// First page of stamps, the last kind.
    stamps_from: u32,
    stamps: Stamps,
    /// Per chunk its tag, as the newest page of counts says.
    tags: Vec<u8>,
    /// Stamp of the newest page of notes that a mount has read.
    noted: Option<u64>,
    dirty: u32,
    /// Pages of notes that differ from the medium. Only a barrier programs them.
    dirty_notes: u32,
    /// Pages of stamps of which a copy is missing.
    dirty_stamps: u32,
    flying: u32,
    /// Page to look at first when some are written.
    cursor: u32,
}

impl Pages {
    /// The pages of a blank device.
    /// `recorded`: logical sectors of whose flushed versions it keeps records.
    pub(super) fn of(capacity: u32, layout: &Layout, recorded: u32) -> Pages {
        Pages::new(capacity, (layout.grains(), layout.chunk_count()), recorded)
    }

    /// No page differs from the medium, which has none. `units` and `chunks` of the device.
    pub(super) fn new(capacity: u32, (units, chunks): (u32, u32), recorded: u32) -> Pages {
        let stamps = Stamps::new(recorded);
        let (trims, voids) = Pages::numbers(capacity, units);
        let (notes, counts) = (chunks.div_ceil(VOID_SPAN), chunks.div_ceil(COUNT_SPAN));
        let clean = State { dirty: false, flying: false, at: NIL };
        Pages {
            capacity,
            states: vec![clean; (trims + voids + notes + counts + stamps.count()) as usize],
            trims,
            void: vec![0; units.div_ceil(64) as usize],
            voids: 0,
            notes_from: trims + voids,
            notes: vec![0; chunks.div_ceil(64) as usize],
            counts_from: trims + voids + notes,
            second_notes: vec![None; (notes + counts) as usize],
            stamps_from: trims + voids + notes + counts,
            stamps,
            tags: vec![0; chunks as usize],
            noted: None,
            dirty: 0,
            dirty_notes: 0,
            dirty_stamps: 0,
            flying: 0,
            cursor: 0,
        }
    }

    /// Pages of trims and of void units.
    fn numbers(capacity: u32, units: u32) -> (u32, u32) {
        (capacity.div_ceil(TRIM_SPAN), units.div_ceil(VOID_SPAN))
    }

    pub(super) fn count(&self) -> u32 {
        self.states.len() as u32
    }

    /// Number of copies that can exist: one of each page, then a second one of each page of stamps.
    pub(super) fn places(&self) -> u32 {
        self.count() + self.stamps.count()
    }

    /// Physical sector of copy `number`, which is below [`Pages::places`], if the copy exists.
    pub(super) fn place(&self, number: u32) -> Option<u32> {
        match number.checked_sub(self.count()) {
            None => self.at(number),
            Some(second) => self.stamps.second(second),
        }
    }

    /// A mount has found the newest copy of a page, by its number among [`Pages::places`].
    pub(super) fn found_place(&mut self, number: u32, at: u32) {
        match number.checked_sub(self.count()) {
            None => self.found(number, at),
            Some(second) => drop(self.stamps.set_second(second, Some(at))),
        }
    }

    /// Pages of trims and void units: all that a snapshot of major version 1 knows.
    pub(super) fn count_before_notes(&self) -> u32 {
        self.notes_from
    }

    /// It is programmed twice, on two PUs where there are two: a page of notes, counts or stamps.
    pub(super) fn is_twofold(&self, page: u32) -> bool {
        page >= self.notes_from
    }

    pub(super) fn is_notes(&self, page: u32) -> bool {
        (self.notes_from..self.stamps_from).contains(&page)
    }

    pub(super) fn is_stamps(&self, page: u32) -> bool {
        page >= self.stamps_from
    }

    /// Pages of notes wait for a barrier.
    pub(super) fn notes_wait(&self) -> bool {
        self.dirty_notes > 0
    }

    pub(super) fn lba(&self, page: u32) -> u32 {
        self.capacity + page
    }

    /// The page of a logical sector behind the capacity.
    #[inline]
    pub(super) fn page_of(&self, lba: u32) -> Option<u32> {
        lba.checked_sub(self.capacity).filter(|page| *page < self.count())
    }

    /// Pages that wait to be written.
    #[inline]
    pub(super) fn dirty(&self) -> u32 {
        self.dirty
    }

    /// Pages that wait to be written, or are held by a barrier until its slots are programmed.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.dirty + self.flying
    }

    /// True if a flush would have nothing to write: all pages and stamps are on the medium.
    pub(super) fn is_saved(&self) -> bool {
        self.waiting() + self.stamps.behind() + self.dirty_stamps == 0
    }

    pub(super) fn flying(&self) -> u32 {
        self.flying
    }

    pub(super) fn is_dirty(&self, page: u32) -> bool {
        self.states[page as usize].dirty
    }

    pub(super) fn is_flying(&self, page: u32) -> bool {
        self.states[page as usize].flying
    }

    /// Where the newest programmed copy lies.
    pub(super) fn at(&self, page: u32) -> Option<u32> {
        Some(self.states[page as usize].at).filter(|at| *at != NIL)
    }

    /// What the page would say has changed.
    pub(super) fn touch(&mut self, page: u32) {
        let state = &mut self.states[page as usize];
        let dirty = match page {
            page if page >= self.stamps_from => &mut self.dirty_stamps,
            page if page >= self.notes_from => &mut self.dirty_notes,
            _ => &mut self.dirty,
        };
        *dirty += !state.dirty as u32;
        state.dirty = true;
    }

    /// What the pages would say of these logical sectors has changed.
    pub(super) fn touch_trims(&mut self, lba: u32, end: u32) {
        if lba < end {
            (lba / TRIM_SPAN..=(end - 1) / TRIM_SPAN).for_each(|page| self.touch(page));
        }
    }

    /// Takes up to `most` dirty pages that are not being programmed: they fly from now on. Notes
    /// are none of them.
    pub(super) fn take(&mut self, most: u32) -> Vec<u32> {
        let n = self.notes_from;
        let all = (0..n).map(|i| (self.cursor + i) % n);
        let due = all.filter(|page| {
            let state = &self.states[*page as usize];
            state.dirty && !state.flying
        });
        let taken: Vec<u32> = due.take(most as usize).collect();
        for page in &taken {
            let state = &mut self.states[*page as usize];
            (state.dirty, state.flying) = (false, true);
            self.dirty -= 1;
            self.flying += 1;
            self.cursor = (page + 1) % n;
        }
        taken
    }

    /// All pages of notes from now on say this.
    pub(super) fn set_notes(&mut self, bits: Vec<u64>) {
        let (before, per_page) =
            (std::mem::replace(&mut self.notes, bits), VOID_SPAN as usize / 64);
        for (i, (old, new)) in before.iter().zip(self.notes.clone()).enumerate() {
            if *old != new {
                self.touch(self.notes_from + (i / per_page) as u32);
            }
        }
    }

    /// All pages of counts from now on say this, where there are any.
    pub(super) fn set_tags(&mut self, tags: &[u8]) {
        let spans = self.tags.chunks_mut(COUNT_SPAN as usize).zip(tags.chunks(COUNT_SPAN as usize));
        let mut changed = Vec::new();
        for (page, (old, new)) in (self.counts_from..).zip(spans) {
            if *old != *new {
                old.copy_from_slice(new);
                changed.push(page);
            }
        }
        changed.into_iter().for_each(|page| self.touch(page));
    }

    /// What the newest page of counts says of a chunk; 0: nothing.
    pub(super) fn tag(&self, chunk: usize) -> u8 {
        self.tags.get(chunk).copied().unwrap_or(0)
    }

    /// Pages of counts.
    #[cfg(test)]
    fn counts(&self) -> u32 {
        self.stamps_from - self.counts_from
    }

    /// All pages of notes are to be written, but for those of counts that say nothing and are
    /// nowhere.
    pub(super) fn touch_notes(&mut self) {
        for page in self.notes_from..self.stamps_from {
            let chunks = page.checked_sub(self.counts_from).map(|counts| counts * COUNT_SPAN);
            let said = |first: u32| {
                let tags = self.tags.iter().skip(first as usize).take(COUNT_SPAN as usize);
                tags.copied().any(|tag| tag != 0) || self.at(page).is_some()
            };
            if chunks.is_none_or(said) {
                self.touch(page);
            }
        }
    }

    /// Takes the pages of notes that wait: they fly from now on.
    pub(super) fn take_notes(&mut self) -> Vec<u32> {
        self.take_from(self.notes_from)
    }

    /// Takes the pages of counts among them.
    pub(super) fn take_counts(&mut self) -> Vec<u32> {
        self.take_from(self.counts_from)
    }

    fn take_from(&mut self, first: u32) -> Vec<u32> {
        let mut taken = Vec::new();
        for page in first..self.stamps_from {
            let state = &mut self.states[page as usize];
            if state.dirty && !state.flying {
                (state.dirty, state.flying) = (false, true);
                self.dirty_notes -= 1;
                self.flying += 1;
                taken.push(page);
            }
        }
        taken
    }

    pub(super) fn is_counts(&self, page: u32) -> bool {
        (self.counts_from..self.stamps_from).contains(&page)
    }

    /// Flushes leave records.
    #[inline]
    pub(super) fn has_stamps(&self) -> bool {
        self.stamps_from < self.count()
    }

    pub(super) fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// The version of this sector that counts from now on has this stamp; 0: it reads as zeros.
    #[inline]
    pub(super) fn set_stamp(&mut self, lba: u32, stamp: u64) {
        if self.has_stamps() && !mutant!("kit.version-unrecorded") {
            self.stamps.set(lba, stamp);
        }
    }

    /// Pages of stamps.
    fn all_stamps(&self) -> impl Iterator<Item = u32> + use<> {
        self.stamps_from..self.count()
    }

    /// True if the next barrier must write this page of stamps: one of its copies is missing, or,
    /// with `changed` (set for flushes), one of its stamps has changed.
    fn stamps_wait(&self, page: u32, changed: bool) -> bool {
        let state = &self.states[page as usize];
        !state.flying && (state.dirty || changed && self.stamps.is_behind(page - self.stamps_from))
    }

    /// Most copies of pages of stamps that a barrier may have to program.
    pub(super) fn stamps_room(&self) -> u32 {
        2 * (self.stamps.behind() + self.dirty_stamps).min(self.stamps.count())
    }

    /// The pages that [`Pages::take_stamps`] would take and that must be read from the medium
    /// before, each with its copies.
    pub(super) fn unread_stamps(&self, changed: bool) -> Vec<(u32, Vec<u32>)> {
        if self.stamps.behind() + self.dirty_stamps == 0 {
            return Vec::new();
        }
        let copies = |page: u32| self.stamps.unread(page - self.stamps_from);
        let unread = |page: &u32| !copies(*page).is_empty() && self.stamps_wait(*page, changed);
        self.all_stamps().filter(unread).map(|page| (page, copies(page).to_vec())).collect()
    }

    /// Takes the pages of stamps that wait: they fly from now on. See [`Pages::stamps_wait`].
    pub(super) fn take_stamps(&mut self, changed: bool) -> Vec<u32> {
        if self.stamps.behind() + self.dirty_stamps == 0 {
            return Vec::new();
        }
        let due = self.all_stamps().filter(|page| self.stamps_wait(*page, changed));
        let taken: Vec<u32> = due.collect();
        for page in &taken {
            let state = &mut self.states[*page as usize];
            self.dirty_stamps -= u32::from(std::mem::take(&mut state.dirty));
            state.flying = true;
            self.flying += 1;
        }
        taken
    }

    /// The page, of stamps, is made: what changes from now on is not in it.
    pub(super) fn stamps_made(&mut self, page: u32) {
        self.stamps.made(page - self.stamps_from);
    }

    /// Where the second copy of a page lies: of stamps, or of notes that this life has written.
    pub(super) fn second(&self, page: u32) -> Option<u32> {
        match page.checked_sub(self.stamps_from) {
            Some(stamps) => self.stamps.second(stamps),
            None => self.second_notes[page.checked_sub(self.notes_from)? as usize],
        }
    }

    /// All copies of pages beside the first ones that count: (page, place).
    pub(super) fn seconds(&self) -> impl Iterator<Item = (u32, u32)> {
        let before = |page: u32| self.stamps.before(page - self.stamps_from).iter().copied();
        let stamps = self.all_stamps().flat_map(move |page| before(page).map(move |at| (page, at)));
        let second = |page: u32| Some((page, self.second(page)?));
        (self.notes_from..self.count()).filter_map(second).chain(stamps)
    }

    /// The second copy of a page lies at `at`. Returns where the one before lay.
    pub(super) fn set_second(&mut self, page: u32, at: u32) -> Option<u32> {
        self.replace_second(page, Some(at))
    }

    fn replace_second(&mut self, page: u32, at: Option<u32>) -> Option<u32> {
        match page.checked_sub(self.stamps_from) {
            Some(stamps) => self.stamps.set_second(stamps, at),
            None => {
                let second = &mut self.second_notes[(page - self.notes_from) as usize];
                std::mem::replace(second, at)
            }
        }
    }

    /// A copy of a page of stamps was replaced, and counts until both copies of the new version are
    /// on two PUs.
    pub(super) fn keep_before(&mut self, page: u32, before: Option<u32>) {
        self.stamps.before_mut(page - self.stamps_from).extend(before);
    }

    /// Copies of a page of stamps that count no more: both copies of its new version are on two
    /// PUs.
    pub(super) fn take_before(&mut self, page: u32) -> Vec<u32> {
        std::mem::take(self.stamps.before_mut(page - self.stamps_from))
    }

    /// Marks the pages of stamps that a snapshot has named as unread: a barrier reads them before
    /// it writes them.
    pub(super) fn leave_stamps_unread(&mut self) {
        for page in self.all_stamps() {
            let copies = [self.at(page), self.second(page)].into_iter().flatten().collect();
            self.stamps.leave_unread(page - self.stamps_from, copies);
        }
    }

    /// Takes in a copy of a page of stamps; `None`: none can be read.
    pub(super) fn read_stamps(&mut self, page: u32, copy: Option<&[u8]>) {
        let checked = copy.and_then(|bytes| Some((self.check(page, bytes)?, bytes)));
        match checked {
            Some((stamp, bytes)) => {
                self.stamps.read(page - self.stamps_from, stamp, &bytes[HEADER..]);
            }
            None => self.stamps.give_up(page - self.stamps_from),
        }
    }

    /// Marks for rewriting each page of stamps that has only one copy, or two that are not
    /// `are_apart` (on two PUs).
    pub(super) fn complete_stamps(&mut self, are_apart: impl Fn(u32, u32) -> bool) {
        for page in self.all_stamps() {
            let is_complete = match (self.at(page), self.second(page)) {
                (Some(first), Some(second)) => are_apart(first, second),
                (None, None) => true,
                _ => false,
            };
            if !is_complete {
                self.touch(page);
            }
        }
    }

    /// The stamp of the notes that a mount has found, if there are any.
    pub(super) fn noted(&self) -> Option<u64> {
        self.noted
    }

    /// Nothing in this chunk is missed, by the notes that were found.
    pub(super) fn is_noted(&self, chunk: usize) -> bool {
        self.notes.get(chunk / 64).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    /// A page's program has ended well: its copy lies at `at`. Returns where the one before lay.
    pub(super) fn landed(&mut self, page: u32, at: u32) -> Option<u32> {
        let state = &mut self.states[page as usize];
        state.flying = false;
        self.flying -= 1;
        let before = std::mem::replace(&mut state.at, at);
        Some(before).filter(|at| *at != NIL)
    }

    /// A page's program has failed: it waits again.
    pub(super) fn failed(&mut self, page: u32) {
        self.states[page as usize].flying = false;
        self.flying -= 1;
        self.touch(page);
    }

    /// Its copy at `at` is going to be erased: another must be written.
    pub(super) fn lose_copy(&mut self, page: u32, at: u32) {
        if self.at(page) == Some(at) {
            self.states[page as usize].at = NIL;
        } else if self.second(page) == Some(at) {
            self.replace_second(page, None);
        } else if self.is_stamps(page) {
            self.stamps.before_mut(page - self.stamps_from).retain(|before| *before != at);
        }
        if !mutant!("kit.page-erased-with-its-line") {
            self.touch(page);
        }
    }

    /// A mount has found the newest copy.
    pub(super) fn found(&mut self, page: u32, at: u32) {
        self.states[page as usize].at = at;
    }

    /// A mount has found a unit marked.
    pub(super) fn found_void(&mut self, unit: u32) {
        if !self.is_void(unit) {
            self.void[unit as usize / 64] |= 1 << (unit % 64);
            self.voids += 1;
        }
    }

    /// Unreadable sectors of this unit are no loss.
    pub(super) fn is_void(&self, unit: u32) -> bool {
        self.void[unit as usize / 64] >> (unit % 64) & 1 == 1
    }

    /// Sets or clears the mark of a unit whose program failed or was torn.
    pub(super) fn set_void(&mut self, unit: u32, on: bool) {
        if self.is_void(unit) == on || !on && self.voids == 0 {
            return;
        }
        self.void[unit as usize / 64] ^= 1 << (unit % 64);
        self.voids = if on { self.voids + 1 } else { self.voids - 1 };
        self.touch(self.trims + unit / VOID_SPAN);
    }

    /// Some unit is marked.
    pub(super) fn any_void(&self) -> bool {
        self.voids > 0
    }

    /// The bytes of a page as it would be now, true at `stamp`.
    /// `is_gone`: the copy at this place can't be read any more.
    pub(super) fn build(
        &self,
        page: u32,
        map: &Map,
        stamp: u64,
        is_gone: impl Fn(u32) -> bool,
        out: &mut [u8],
    ) {
        let (header, bits) = out[..PAGE_BYTES].split_at_mut(HEADER);
        header.fill(0);
        bits.fill(0);
        let first = match page.checked_sub(self.trims) {
            None => {
                let first = page * TRIM_SPAN;
                let end = self.capacity.min(first + TRIM_SPAN);
                for (i, lba) in (first..end).enumerate() {
                    let said = match map.get(lba) {
                        Entry::Unmapped => 1,
                        Entry::Poisoned => 2,
                        Entry::Media(at) if is_gone(at) => 2,
                        Entry::Slot(_) | Entry::Media(_) => continue,
                    };
                    bits[i / 4] |= said << (i % 4 * 2);
                }
                first
            }
            Some(_) if self.is_stamps(page) => {
                let page = page - self.stamps_from;
                self.stamps.write(page, bits);
                Stamps::first(page)
            }
            Some(_) if page >= self.counts_from => {
                let first = (page - self.counts_from) * COUNT_SPAN;
                let tags = self.tags.iter().skip(first as usize).take(COUNT_SPAN as usize);
                for (i, tag) in tags.enumerate() {
                    bits[i / 2] |= tag << (i % 2 * 4);
                }
                first
            }
            Some(_) => {
                let (all, first) = match page.checked_sub(self.notes_from) {
                    Some(notes) => (&self.notes, notes * VOID_SPAN),
                    None => (&self.void, (page - self.trims) * VOID_SPAN),
                };
                let words = all.iter().skip(first as usize / 64);
                for (eight, word) in bits.chunks_exact_mut(8).zip(words) {
                    eight.copy_from_slice(&word.to_le_bytes());
                }
                first
            }
        };
        header[..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..10].copy_from_slice(&MAJOR.to_le_bytes());
        header[12..16].copy_from_slice(&page.to_le_bytes());
        header[16..24].copy_from_slice(&(self.capacity as u64).to_le_bytes());
        header[24..32].copy_from_slice(&(first as u64).to_le_bytes());
        header[32..40].copy_from_slice(&stamp.to_le_bytes());
        let crc = flashlane_base::crc32c(&out[8..PAGE_BYTES]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The stamp of an intact page of this device; `None` for anything else.
    pub(super) fn check(&self, page: u32, bytes: &[u8]) -> Option<u64> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let whole = bytes.len() == PAGE_BYTES && word(0)? == MAGIC;
        let sum = flashlane_base::crc32c(&bytes[8..]);
        let intact = whole && (word(4)? == sum || mutant!("kit.page-unverified"));
        let ours = word(8)? == MAJOR as u32 && word(12)? == page;
        let stamp = long(32).filter(|stamp| *stamp <= STAMP_LAST)?;
        (intact && ours && long(16)? == self.capacity as u64).then_some(stamp)
    }

    /// What an intact page of trims says of each logical sector of its range; nothing for a page of
    /// void units, whose units are marked instead.
    pub(super) fn read(&mut self, page: u32, bytes: &[u8], mut say: impl FnMut(u32, Said)) {
        let bits = &bytes[HEADER..];
        if self.is_stamps(page) {
            self.read_stamps(page, Some(bytes));
            return;
        }
        if let Some(counts) = page.checked_sub(self.counts_from) {
            let tags = self.tags.iter_mut().skip((counts * COUNT_SPAN) as usize);
            for (i, tag) in tags.take(COUNT_SPAN as usize).enumerate() {
                *tag = bits[i / 2] >> (i % 2 * 4) & 15;
            }
            return;
        }
        if let Some(notes) = page.checked_sub(self.notes_from) {
            let from = notes as usize * VOID_SPAN as usize / 64;
            let words =
                bits.chunks_exact(8).filter_map(|b| Some(u64::from_le_bytes(*b.first_chunk()?)));
            self.notes.iter_mut().skip(from).zip(words).for_each(|(to, word)| *to = word);
            let stamp = self.check(page, bytes).unwrap_or(0);
            self.noted = Some(self.noted.map_or(stamp, |noted| noted.min(stamp)));
            return;
        }
        if let Some(voids) = page.checked_sub(self.trims) {
            let units = self.void.len() as u32 * 64;
            let first = voids * VOID_SPAN;
            for unit in first..units.min(first + VOID_SPAN) {
                let i = unit - first;
                if bits[i as usize / 8] >> (i % 8) & 1 == 1 {
                    self.found_void(unit);
                }
            }
            return;
        }
        let first = page * TRIM_SPAN;
        for (i, lba) in (first..self.capacity.min(first + TRIM_SPAN)).enumerate() {
            match bits[i / 4] >> (i % 4 * 2) & 3 {
                1 => say(lba, Said::Trimmed),
                2 => say(lba, Said::Lost),
                _ => say(lba, Said::Nothing),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a page says is what the map said when it was made, and nothing else passes for it.
    #[test]
    fn a_page_says_what_the_map_said() {
        let capacity = TRIM_SPAN + 100;
        let mut map = Map::new(capacity as u64, capacity as u64);
        for lba in (0..capacity).step_by(3) {
            map.set(lba, Entry::Media(lba));
        }
        map.set(TRIM_SPAN + 7, Entry::Poisoned);
        let mut pages = Pages::new(capacity, (1000, 50), 0);
        assert_eq!(pages.count(), 5);
        let mut bytes = vec![0xaa; PAGE_BYTES];
        for page in 0..2 {
            pages.build(page, &map, 77, |_| false, &mut bytes);
            assert_eq!(pages.check(page, &bytes), Some(77));
            assert_eq!(pages.check(page + 1, &bytes), None);
            pages.read(page, &bytes, |lba, said| {
                let expected = match map.get(lba) {
                    Entry::Unmapped => Said::Trimmed,
                    Entry::Poisoned => Said::Lost,
                    _ => Said::Nothing,
                };
                assert_eq!(said, expected, "lba {lba}");
            });
        }
        bytes[4000] ^= 1;
        assert_eq!(pages.check(1, &bytes), None);
        pages.build(1, &map, STAMP_LAST, |_| false, &mut bytes);
        assert_eq!(pages.check(1, &bytes), Some(STAMP_LAST));
        pages.build(1, &map, STAMP_LAST + 1, |_| false, &mut bytes);
        assert_eq!(pages.check(1, &bytes), None, "no life could follow");
        assert_eq!(pages.check(1, &bytes[..100]), None);
    }

    #[test]
    fn void_units_survive_the_trip() {
        let mut pages = Pages::new(100, (VOID_SPAN + 5, 9), 0);
        assert_eq!(pages.count(), 5);
        pages.set_void(3, true);
        pages.set_void(VOID_SPAN + 4, true);
        pages.set_void(9, true);
        pages.set_void(9, false);
        assert_eq!(pages.take(9), [1, 2]);
        let map = Map::new(100, 100);
        let mut other = Pages::new(100, (VOID_SPAN + 5, 9), 0);
        let mut bytes = vec![0; PAGE_BYTES];
        for page in [1, 2] {
            pages.build(page, &map, 5, |_| false, &mut bytes);
            assert_eq!(other.check(page, &bytes), Some(5));
            other.read(page, &bytes, |_, _| panic!("no trims here"));
        }
        let marked: Vec<u32> = (0..VOID_SPAN + 5).filter(|u| other.is_void(*u)).collect();
        assert_eq!(marked, [3, VOID_SPAN + 4]);
        assert!(other.any_void());
    }

    #[test]
    fn counts_survive_the_trip() {
        let chunks = COUNT_SPAN + 3;
        let mut pages = Pages::new(100, (10, chunks), 0);
        assert_eq!((pages.count(), pages.counts()), (5, 2));
        let tags: Vec<u8> = (0..chunks).map(|chunk| (chunk % 15) as u8).collect();
        pages.set_tags(&tags);
        assert_eq!((pages.take(9), pages.take_notes()), (vec![], vec![3, 4]));
        let map = Map::new(100, 100);
        let mut other = Pages::new(100, (10, chunks), 0);
        let mut bytes = vec![0; PAGE_BYTES];
        for page in [3, 4] {
            assert!(pages.is_twofold(page));
            pages.build(page, &map, 5, |_| false, &mut bytes);
            assert_eq!(other.check(page, &bytes), Some(5));
            other.read(page, &bytes, |_, _| panic!("no trims here"));
        }
        assert!((0..chunks as usize).all(|chunk| other.tag(chunk) == tags[chunk]));
        assert_eq!(other.noted(), None, "they say nothing of bad chunks");
        pages.set_tags(&tags);
        assert!(!pages.notes_wait(), "nothing has changed");
    }

    /// A page that changes while it flies is written again; one that failed, too.
    #[test]
    fn a_page_is_taken_once_until_it_changes() {
        let mut pages = Pages::new(3 * TRIM_SPAN, (10, 9), 0);
        pages.touch_trims(0, 3 * TRIM_SPAN);
        assert_eq!(pages.take(2), [0, 1]);
        pages.touch(0);
        assert_eq!(pages.take(9), [2]);
        assert_eq!(pages.landed(0, 40), None);
        assert_eq!(pages.take(9), [0]);
        assert_eq!(pages.landed(0, 50), Some(40));
        pages.failed(1);
        assert_eq!((pages.dirty(), pages.flying()), (1, 1));
        pages.lose_copy(0, 50);
        assert_eq!(pages.take(9), [1, 0], "the one that waits longest first");
    }
}
