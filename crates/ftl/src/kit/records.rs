//! Pages of records: whose newest copy each sector of a chunk holds, told outside its PU.
//!
//! Owns: what a page of records says, when it is due, and how many there may be. Promises: when a
//! barrier has ended, each sector that it made durable is told, with the place of its newest copy,
//! by a page on another PU than that place, or by one that says so of a newer state; a device that
//! can't keep that promise says so in its notes. Never: runs where there are capacitors; is asked
//! for by a mount that has lost nothing.
//!
//! A die that is lost takes the records of its sectors along. Without these pages a mount can't
//! know which sectors had a newer copy there, so any sector that it finds elsewhere may be older.
//! With them it knows, and an accepted loss costs what was lost and no more (`recover/told.rs`).
//!
//! **What a page says.** It is true at the stamp at which its barrier began: each logical sector
//! that was mapped then is listed at one place, where that content is. The
//! page is made later, when the covered sectors and the pages of trims are out. So the barrier
//! notes at its begin which sectors of a chunk count ([`Begun`]), and then where what it covers
//! goes; pages list both, whatever the host does meanwhile. A page that lacks a younger copy stays
//! due. Pages of trims are listed like sectors.
//!
//! **When.** A page is due when something was programmed into its part of a chunk, and when the
//! line of its copy is collected. More than [`most`] due pages ask for a barrier, so that none has
//! to make many. A page of an erased chunk is dropped.
//!
//! **Completeness.** A mount makes pages due that do not list what it found: all of them after a
//! stop that has left a snapshot, or where an older version has used the device last. As long as a
//! barrier leaves some out for want of room, or has to put one on the PU of which it speaks, the
//! notes say that records are not complete, and a mount does without them. So it is where spare is
//! short: a device with too little beside its capacity keeps pages as long as it is not full, drops
//! them all when it is, and makes them anew when enough was discarded.

use flashlane_base::mutant;
use flashlane_rt::Cx;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::buffer::{NIL, Sizes};
use super::pages::{PAGE_BYTES, RECORD_SPAN};
use super::place::{Layout, MAIN, SPARE_LINES_MIN};
use super::sync::{reserve, spare_for_padding};
use super::{Controller, Phase};

/// A bit per sector that a page speaks of.
type Bits = [u64; RECORD_SPAN.div_ceil(64) as usize];

/// The state at which a barrier began.
#[derive(Default)]
pub(super) struct Begun {
    stamp: u64,
    /// Lines opened before.
    opened: u64,
    /// Per page that may be made: the sectors that counted.
    counted: BTreeMap<u32, Bits>,
    /// Slots that were in a program and whose content had been overwritten.
    dead: BTreeSet<u32>,
    /// What it covers, as it is programmed: (physical, logical sector).
    covered: Vec<(u32, u32)>,
    /// Pages that are due and not to be made.
    skips: bool,
}

#[derive(Default)]
pub(super) struct Records {
    begun: Begun,
    /// Pages of this barrier that went to the PU of which they speak.
    misplaced: Vec<u32>,
    /// The last barrier had such pages: another one may help no more.
    stuck: bool,
    /// Spare that keeping pages takes, in sectors, of a device that has it beside its capacity only
    /// as long as it is not full; 0 where it always has.
    needed: u64,
    /// None are kept, for want of spare.
    rests: bool,
}

impl Records {
    /// For a device that needs so much spare to keep pages of records, and has so much beside its
    /// capacity.
    pub(super) fn new(needed: u64, spare: u64) -> Records {
        Records { needed: if spare < needed { needed } else { 0 }, ..Records::default() }
    }

    /// There is spare for pages, whatever the device holds.
    pub(super) fn are_always_kept(&self) -> bool {
        self.needed == 0
    }
}

/// Barriers in the time in which a chunk of each PU is erased, where victims are chunks.
const BARRIERS_OF_BLOCKS: u64 = 4;

/// Pages of records that one barrier makes at most as long as they are not complete.
const MADE_MOST: usize = 1024;

/// Due pages beyond which a barrier is asked for, and that are made where not all can be.
fn most(layout: &Layout, streams: u32) -> u32 {
    (2 * streams * layout.positions).max(16)
}

/// Sectors that the pages of records of one barrier may take: those that were due, and those of
/// open chunks; a unit more for what may not lie on the same PU.
fn room_for(layout: &Layout, pages: u32) -> u32 {
    let main = layout.main();
    let pairs = if main.pairs == 0 { 0 } else { main.pairs * main.positions() };
    pages.next_multiple_of(main.unit) + main.unit + pairs.min(main.stripe_sectors())
}

/// Sectors that a barrier may take at most for pages of records.
pub(super) fn room(layout: &Layout, streams: usize) -> u32 {
    let streams = streams as u32;
    room_for(layout, most(layout, streams) + streams * layout.positions)
}

/// Spare that a device needs to keep pages of records, in sectors, all else included: for the pages,
/// and for what barriers for erases program of them, which each victim must win besides.
pub(super) fn spare_needed(layout: &Layout, sizes: &Sizes, streams: usize) -> u64 {
    let main = layout.main();
    let parts = layout.longest_chunk().div_ceil(RECORD_SPAN);
    let pages = u64::from(layout.chunk_count()) * u64::from(parts);
    let once = u64::from(reserve(layout, sizes)) + u64::from(room(layout, streams));
    // Single chunks are erased a few at a time, each time behind a barrier.
    let barriers = if main.width == 1 { BARRIERS_OF_BLOCKS } else { 1 };
    let each = barriers * u64::from(room_for(layout, streams as u32 * layout.positions));
    let needed = SPARE_LINES_MIN * u64::from(main.stripe_sectors()) + once + pages;
    let for_erases = spare_for_padding(layout) + each * u64::from(main.stripes());
    needed + for_erases
}

impl Controller {
    /// Pages of records that speak of a chunk from one of its sectors on.
    fn records_in(&self, line: u32, position: u32, from: u32) -> RangeInclusive<u32> {
        let chunk = self.place.layout.chunk_index(line, position);
        let last = self.place.layout.of(line).chunk_sectors - 1;
        self.pages.record_of(chunk, from)..=self.pages.record_of(chunk, last)
    }

    fn most_records(&self) -> u32 {
        most(&self.place.layout, self.place.streams() as u32)
    }

    /// There is spare for pages of records beside what the device holds.
    fn has_spare_for_records(&self) -> bool {
        if self.records.are_always_kept() {
            return true;
        }
        let valid: u64 = self.place.lines().map(|(_, line)| u64::from(line.valid)).sum();
        let line = u64::from(self.place.layout.main().stripe_sectors());
        // So that it does not change with each barrier.
        let margin = if self.records.rests { 2 * line } else { 0 };
        self.place.usable() >= valid + self.records.needed + margin
    }

    /// Keeps no pages of records any more: those that there are become garbage.
    fn abandon_records(&mut self) {
        self.pages.set_complete(false);
        for page in self.pages.all_records() {
            if let Some(at) = self.pages.drop_record(page) {
                self.forget_copy(at);
            }
        }
    }

    /// Something was programmed in `n` sectors of a chunk that pages of records tell.
    #[cold]
    pub(super) fn touch_records(&mut self, line: u32, position: u32, (from, n): (u32, u32)) {
        if self.records.rests {
            return;
        }
        let chunk = self.place.layout.chunk_index(line, position);
        let pages = self.pages.record_of(chunk, from)..=self.pages.record_of(chunk, from + n - 1);
        pages.for_each(|page| self.pages.touch(page));
    }

    /// Calls `see` for each sector that a page of records speaks of: its number in the page, and
    /// the physical one.
    fn each_record(&self, page: u32, see: impl FnMut(usize, u32)) {
        each_of(&self.place.layout, self.pages.chunk_of_record(page), see);
    }

    /// Whose copy pages of records list: a sector's, or that of a page of trims.
    fn is_told(&self, lba: u32) -> bool {
        let page = lba.checked_sub(self.map.capacity());
        page.is_none_or(|page| self.pages.is_trims(page))
    }

    fn counted_in(&self, page: u32) -> Bits {
        let mut bits = Bits::default();
        self.each_record(page, |i, at| {
            bits[i / 64] |= u64::from(self.map.is_valid(at)) << (i % 64);
        });
        bits
    }

    /// A barrier begins: notes the state that its pages of records are to tell.
    pub(super) fn begin_records(&mut self) {
        if !self.pages.has_records() {
            return;
        }
        let rested = self.records.rests;
        self.records.rests = !self.has_spare_for_records();
        if self.records.rests {
            if !rested {
                self.abandon_records();
            }
            return;
        }
        if rested {
            self.check_records(None);
        }
        let (most, due) = (self.most_records() as usize, self.pages.due_records());
        let moving = self.moving() + self.gc_reading();
        let beside = self.place.room_now(MAIN).saturating_sub(moving + self.room_for_barriers());
        let take = match self.pages.is_complete() {
            true => usize::MAX,
            false if self.has_room_for_records() => most.max(MADE_MOST.min(beside as usize)),
            false => 0,
        };
        let skips = due.len() > take;
        let mut pages: BTreeSet<u32> = due.iter().copied().take(take).collect();
        // What is under way, and what may follow.
        let ahead = self.place.open_chunks().map(|c| (c.line, c.position, c.next));
        for (line, position, from) in self.jobs().chain(ahead) {
            pages.extend(self.records_in(line, position, from));
        }
        let flying = self.workers.iter().flat_map(|w| w.flying());
        let padding = self.buffer.padding();
        let slots = flying.filter(|slot| *slot != NIL && *slot != padding);
        self.records.begun = Begun {
            stamp: self.stamp,
            opened: self.place.opened(),
            dead: slots.filter(|slot| !self.buffer.slot(*slot).live).collect(),
            counted: pages.into_iter().map(|page| (page, self.counted_in(page))).collect(),
            covered: Vec::new(),
            skips,
        };
    }

    /// Notes where those of the slots programmed from `base` on are that counted at the begin of the
    /// barrier.
    #[cold]
    pub(super) fn note_covered(&mut self, slots: &[u32], base: u32) {
        for (at, slot) in (base..).zip(slots) {
            if *slot == NIL || *slot == self.buffer.padding() {
                continue;
            }
            let s = self.buffer.slot(*slot);
            if self.buffer.is_kept(*slot) && !self.records.begun.dead.remove(slot) {
                self.records.begun.covered.push((at, s.lba));
            }
        }
    }

    /// A page of a barrier was programmed.
    pub(super) fn note_covered_page(&mut self, page: u32, at: u32) {
        if self.pages.has_records() && self.pages.is_trims(page) {
            self.records.begun.covered.push((at, self.pages.lba(page)));
        }
    }

    /// Makes the pages of records that are due. False if there is none.
    pub(super) fn make_records(&mut self) -> bool {
        if !self.pages.has_records() || self.records.rests || self.phase == Phase::Stopped {
            return false;
        }
        let begun = std::mem::take(&mut self.records.begun);
        let fresh = |page: &u32| {
            let (chunk, _) = self.pages.chunk_of_record(*page);
            let layout = &self.place.layout;
            let (number, position) =
                (chunk as u32 / layout.positions, chunk as u32 % layout.positions);
            let line = layout.line_at(number, position);
            line.is_some_and(|line| self.place.line(line).sequence > begun.opened)
        };
        let due = self.pages.due_records().iter().copied();
        let due: Vec<u32> =
            due.filter(|page| begun.counted.contains_key(page) || fresh(page)).collect();
        let covered: BTreeMap<u32, u32> = begun.covered.iter().copied().collect();
        let mut lacking = Vec::new();
        for page in &due {
            let counted = begun.counted.get(page).copied().unwrap_or_default();
            let mut lacks = false;
            let mut sectors = Vec::with_capacity(RECORD_SPAN as usize);
            self.each_record(*page, |i, at| {
                let (valid, owner) = (self.map.is_valid(at), self.map.owner(at));
                let counted = match mutant!("kit.records-of-now") {
                    true => valid,
                    false => counted[i / 64] >> (i % 64) & 1 == 1,
                };
                let lba = if counted { Some(owner) } else { covered.get(&at).copied() };
                lacks |= valid && lba.is_none() && self.is_told(owner);
                sectors.push(lba.filter(|lba| self.is_told(*lba)).unwrap_or(NIL));
            });
            if lacks && !mutant!("kit.lacking-record-not-due") {
                lacking.push(*page);
            }
            let mut bytes = vec![0; PAGE_BYTES];
            self.pages.build_record(*page, sectors.into_iter(), begun.stamp, &mut bytes);
            self.hold_made(*page, begun.stamp, bytes);
        }
        due.iter().for_each(|page| self.pages.take_record(*page));
        lacking.into_iter().for_each(|page| self.pages.touch(page));
        self.records.begun.skips = begun.skips;
        !due.is_empty()
    }

    /// The pages of records of a barrier are out.
    pub(super) fn end_records(&mut self) {
        if !self.pages.has_records() || self.records.rests {
            return;
        }
        let misplaced = std::mem::take(&mut self.records.misplaced);
        self.records.stuck = !misplaced.is_empty();
        self.pages.set_complete(!self.records.begun.skips && misplaced.is_empty());
        misplaced.into_iter().for_each(|page| self.pages.touch(page));
    }

    /// The position of the chunk that a page of records speaks of.
    pub(super) fn told_position(&self, page: u32) -> Option<u32> {
        let record = self.pages.is_record(page) && !mutant!("kit.records-on-their-own-die");
        record.then(|| self.pages.chunk_of_record(page).0 as u32 % self.place.layout.positions)
    }

    /// These pages of records go to the PU of which they speak: no other has room.
    pub(super) fn note_misplaced(&mut self, pages: impl IntoIterator<Item = u32>) {
        self.records.misplaced.extend(pages);
    }

    /// Sectors that pages of records of a barrier which begins from now on may take.
    pub(super) fn room_for_records(&self) -> u32 {
        if !self.pages.has_records() || self.records.rests {
            return 0;
        }
        let due = self.pages.due_records().len() as u32;
        let due = if self.pages.is_complete() { due } else { due.min(self.most_records()) };
        let open = self.place.streams() as u32 * self.place.layout.positions;
        room_for(&self.place.layout, due + open)
    }

    /// Asks for a barrier when many pages of records are due, or some are that were left out.
    pub(super) fn ask_for_records(&mut self, cx: &Cx) {
        let due = self.pages.due_records().len() as u32;
        let many = due > self.most_records();
        let left = due > 0 && !self.pages.is_complete() && !self.records.stuck;
        if !(many || left) || self.phase != Phase::Running || self.read_only.is_some() {
            return;
        }
        if self.barrier_is_active() || self.is_barrier_asked() || self.place.is_host_denied(MAIN) {
            return;
        }
        if self.has_room_for_records() {
            self.ask_for_barrier(cx);
        }
    }

    /// Pages of records that nobody needs yet take nothing that GC needs: they have a part of its
    /// reserve, or there is room now.
    fn has_room_for_records(&self) -> bool {
        let moving = self.moving() + self.gc_reading();
        self.records.are_always_kept()
            || self.place.room_now(MAIN) >= moving + self.room_for_barriers()
    }

    /// The chunks at these positions of a line were erased: nothing in them is to be told.
    pub(super) fn drop_records(&mut self, line: u32, positions: &[u32]) {
        if !self.pages.has_records() {
            return;
        }
        for position in positions {
            for page in self.records_in(line, *position, 0) {
                if let Some(at) = self.pages.drop_record(page) {
                    self.forget_copy(at);
                }
            }
        }
    }

    /// A mount has filled the map: pages of records are due that do not tell what it has found.
    /// `listed`: what those on the medium list of each physical sector, + 1; none where they are not
    /// complete.
    pub(super) fn check_records(&mut self, listed: Option<&[u32]>) {
        if !self.pages.has_records() {
            return;
        }
        let layout = &self.place.layout;
        let chunks = (0..layout.lines).filter(|line| self.place.line(*line).valid > 0);
        let chunks = chunks.flat_map(|line| layout.positions_of(line).map(move |p| (line, p)));
        let pages = chunks.flat_map(|(line, position)| self.records_in(line, position, 0));
        for page in pages.collect::<Vec<_>>() {
            let mut told = true;
            self.each_record(page, |_, at| {
                let (valid, lba) = (self.map.is_valid(at), self.map.owner(at));
                let is_listed = listed.is_some_and(|listed| listed[at as usize] == lba + 1);
                told &= !valid || !self.is_told(lba) || is_listed;
            });
            if !told && !mutant!("kit.found-untold") {
                self.pages.touch(page);
            }
        }
        self.pages.set_complete(self.pages.due_records().is_empty());
    }
}

/// Calls `see` for each sector of a chunk, by [`Layout::chunk_index`], from one of them on, as far
/// as a page of records goes.
pub(super) fn each_of(
    layout: &Layout,
    (chunk, first): (usize, u32),
    mut see: impl FnMut(usize, u32),
) {
    let (number, position) = (chunk as u32 / layout.positions, chunk as u32 % layout.positions);
    let Some(line) = layout.line_at(number, position) else {
        return;
    };
    let region = layout.of(line);
    let mut at = NIL;
    for sector in first..region.chunk_sectors.min(first + RECORD_SPAN) {
        at = match at != NIL && region.in_unit(sector) != 0 {
            true => at + 1,
            false => layout.sector_at(line, position, sector),
        };
        see((sector - first) as usize, at);
    }
}
