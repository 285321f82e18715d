//! What is made of a scan: pages, losses, void units, what stands in windows, and the controller.
//!
//! Owns: what is taken out of a scan, and what fills the controller; what could not be read is
//! judged in `loss.rs`. Promises: the newest page of each number that can be read counts. Never:
//! programs.

use flashlane_base::mutant;
use flashlane_ocssd::device::ChunkState;
use std::collections::{BTreeMap, BTreeSet};

use super::super::buffer::NIL;
use super::super::dump::Dump;
use super::super::map::Entry;
use super::super::pages::{Pages, Said};
use super::super::place::Place;
use super::super::stamps::UNKNOWN;
use super::super::{Controller, Room};
use super::older::Older;
use super::scan::{Claim, Found};
use super::sectors::read_page;
use super::{Mount, window_of};
use crate::patience::read_again;

/// Further copies of pages, by their logical sectors: (stamp, physical sector).
type Copies = BTreeMap<u32, Vec<(u64, u32)>>;

/// Units that a former life has programmed and the medium can't give back yet.
#[derive(Default)]
pub(super) struct Standing {
    /// First physical sector of a unit → its window, and its first sector in that.
    units: BTreeMap<u32, (usize, u32)>,
    /// (window, sectors in it), those that do not stand included.
    windows: Vec<(usize, u32)>,
}

impl Mount<'_> {
    /// Takes in what the newest pages say; returns the sectors whose content is lost. A page of
    /// which no copy can be read counts as unreadable like any other sector.
    pub(super) async fn read_pages(
        &self,
        pages: &mut Pages,
        found: &mut Found,
        dump: Option<&Dump>,
    ) -> Vec<u32> {
        let mut lost = Vec::new();
        let mut left = Vec::new();
        let mut copies = Copies::new();
        for (lba, stamp, at) in found.equal.iter().filter(|e| u64::from(e.0) >= self.capacity) {
            copies.entry(*lba).or_default().push((*stamp, *at));
        }
        for page in 0..pages.count() {
            let saved = dump.and_then(|d| d.pages.iter().find(|(of, _)| *of == page));
            let read =
                self.read_newest(pages, found, page, (saved.is_some(), &copies), &mut lost).await;
            if !read && saved.is_none() {
                left.push(page);
            }
            if let Some((_, saved)) = saved {
                pages.touch(page);
                take_page(pages, found, page, saved, &mut lost);
            }
        }
        let again = async |left: Vec<u32>| {
            let mut still = Vec::new();
            for page in left {
                if !self.read_newest(pages, found, page, (false, &copies), &mut lost).await {
                    still.push(page);
                }
            }
            still
        };
        let left = match mutant!("kit.mount-without-patience") {
            true => left,
            false => read_again(self.cx, left, again).await,
        };
        for page in left {
            // A page of stamps says nothing of lost data: if no data is lost, it is made anew.
            if pages.is_stamps(page) {
                pages.read_stamps(page, None);
                continue;
            }
            let at = found.newest[pages.lba(page) as usize].at;
            match mutant!("kit.lost-page-is-torn") {
                true => found.unreadable.insert(at),
                false => found.lost_pages.insert(at),
            };
        }
        lost
    }

    /// Forgets copies of sectors that read as zeros when a flush recorded that, unless they are
    /// younger.
    pub(super) fn forget_discarded(&self, pages: &mut Pages, found: &mut Found) {
        for lba in 0..pages.stamps().sectors() {
            let claim = &mut found.newest[lba as usize];
            if let Some(stamp) = pages.stamps().true_at(lba).filter(|at| claim.stamp <= *at)
                && pages.stamps().get(lba) == 0
                && claim.at != NIL
                && !mutant!("kit.recorded-zeros-ignored")
            {
                *claim = Claim { stamp, at: NIL };
                pages.touch_trims(lba, lba + 1);
            }
        }
    }

    /// Reads the newest page of a number, from the first of its copies that is whole, and takes in
    /// what it says, unless a newer one was `saved`. False if there are copies and none can be
    /// read.
    async fn read_newest(
        &self,
        pages: &mut Pages,
        found: &mut Found,
        page: u32,
        (saved, copies): (bool, &Copies),
        lost: &mut Vec<u32>,
    ) -> bool {
        let lba = pages.lba(page);
        let claim = found.newest[lba as usize];
        if claim.at == NIL {
            return true;
        }
        let equal = copies.get(&lba).into_iter().flatten().filter(|e| e.0 == claim.stamp);
        let all: Vec<u32> = std::iter::once(claim.at).chain(equal.map(|e| e.1)).collect();
        for at in all.iter().copied() {
            let whole = read_page(self.cx, &self.medium, at).await;
            let Some(bytes) = whole.filter(|bytes| pages.check(page, bytes).is_some()) else {
                continue;
            };
            pages.found(page, at);
            if pages.is_stamps(page)
                && let Some(other) = all.iter().copied().find(|other| *other != at)
            {
                pages.set_second(page, other);
            }
            found.newest[lba as usize].at = at;
            if !saved {
                take_page(pages, found, page, &bytes, lost);
            }
            return true;
        }
        false
    }

    /// The highest stamp that is known of.
    pub(super) fn last_stamp(&self, found: &Found, dump: Option<&Dump>) -> u64 {
        let seen = found.newest.iter().map(|claim| claim.stamp).max().unwrap_or(0);
        let lines = found.stamp_of_line.iter().copied().max().unwrap_or(0);
        seen.max(lines).max(dump.map_or(0, |d| d.stamp))
    }

    /// Was this unit's program cut, or one that may have taken it along? Either way the dump holds
    /// what was in it: a buffer lets go of a unit when the window behind it is programmed.
    pub(super) fn was_cut(
        &self,
        dump: &Dump,
        line: u32,
        position: u32,
        unit: u32,
        reach: u32,
    ) -> bool {
        let region = self.layout.of(line);
        let end = unit + reach.next_multiple_of(region.unit) + region.unit;
        let behind = (unit..end.min(region.chunk_sectors)).step_by(region.grain as usize);
        let mut behind = behind.map(|sector| self.layout.sector_at(line, position, sector));
        behind.any(|at| dump.cut.contains(&self.layout.grain_of(at)))
    }

    /// Units in the windows of chunks that are written on, which no cut program can have harmed:
    /// what the dump holds of them is programmed already. Not to program it again is more than
    /// thrift: where windows are long it would take the room that GC needs.
    pub(super) fn standing(&self, place: &Place, dump: Option<&Dump>) -> Standing {
        let mut standing = Standing::default();
        let Some(dump) = dump else {
            return standing;
        };
        for line in &dump.open {
            let Some(stream) = place.stream_of(*line) else {
                continue;
            };
            let region = self.layout.of(*line);
            for position in self.layout.positions_of(*line) {
                let info = &self.chunks[self.layout.chunk_index(*line, position)];
                let whole = info.write_pointer.is_multiple_of(region.unit);
                if info.state != ChunkState::Open || !whole {
                    continue;
                }
                let end = info.write_pointer;
                let first = end.saturating_sub(window_of(region));
                let window = stream * self.layout.positions as usize + position as usize;
                standing.windows.push((window, end - first));
                for unit in (first..end).step_by(region.unit as usize) {
                    let cut = self.was_cut(dump, *line, position, unit, region.pairs);
                    if cut && !mutant!("kit.cut-unit-stands") {
                        continue;
                    }
                    let at = self.layout.sector_at(*line, position, unit);
                    standing.units.insert(at, (window, unit - first));
                }
            }
        }
        standing
    }

    /// Nothing in an erased chunk is void: the page that says so of what was there before the erase may
    /// be the newest one that is durable.
    pub(super) fn forget_erased_voids(&self, pages: &mut Pages) {
        if !pages.any_void() || mutant!("kit.void-beyond-erase") {
            return;
        }
        for (line, position) in self.layout.chunks() {
            let info = &self.chunks[self.layout.chunk_index(line, position)];
            if info.state == ChunkState::Free {
                self.layout.each_grain(line, position, |grain| pages.set_void(grain, false));
            }
        }
    }

    /// What could not be read yet and does not stand is in the dump, and will be programmed again.
    pub(super) fn void_the_rest(
        &self,
        pages: &mut Pages,
        dump: Option<&Dump>,
        standing: &Standing,
    ) {
        for line in dump.iter().flat_map(|d| &d.open) {
            let region = self.layout.of(*line);
            for position in self.layout.positions_of(*line) {
                let info = &self.chunks[self.layout.chunk_index(*line, position)];
                let end = info.write_pointer.min(region.chunk_sectors);
                let from = self.readable(*line, info) / region.unit * region.unit;
                for unit in (from..end).step_by(region.unit as usize) {
                    let at = self.layout.sector_at(*line, position, unit);
                    if !standing.units.contains_key(&at) && !mutant!("kit.rest-not-void") {
                        let grains = self.layout.grains_of(at, region.unit);
                        grains.for_each(|grain| pages.set_void(grain, true));
                    }
                }
            }
        }
    }
}

/// Takes in what an intact page says.
fn take_page(pages: &mut Pages, found: &mut Found, page: u32, bytes: &[u8], lost: &mut Vec<u32>) {
    let Some(stamp) = pages.check(page, bytes) else {
        return;
    };
    pages.read(page, bytes, |lba, said| {
        let claim = &mut found.newest[lba as usize];
        let older = claim.stamp > stamp && !mutant!("kit.old-trim-counts");
        if said == Said::Nothing || older || mutant!("kit.trims-not-read") {
            return;
        }
        *claim = Claim { stamp, at: NIL };
        if said == Said::Lost && !mutant!("kit.loss-read-as-trim") {
            lost.push(lba);
        }
    });
}

impl Controller {
    /// Sets the stamps to the versions that this mount found: at its end they count as flushed.
    fn relearn_stamps(&mut self, found: &Found) {
        let recorded = self.pages.stamps().sectors() as usize;
        for (lba, claim) in (0u32..).zip(&found.newest[..recorded]) {
            let stamp = match self.map.get(lba) {
                Entry::Media(_) => claim.stamp,
                Entry::Unmapped => 0,
                // Nobody knows which version is lost.
                Entry::Poisoned => UNKNOWN,
                Entry::Slot(_) => continue,
            };
            if self.pages.stamps().get(lba) != stamp && !mutant!("kit.found-unrecorded") {
                self.pages.set_stamp(lba, stamp);
            }
        }
    }

    /// Fills map and buffer with what was found. Returns the room that the dump's sectors hold. A
    /// host's sector of which the version that was found is `older` than what was lost, or may be,
    /// is lost.
    pub(super) fn take_in(
        &mut self,
        found: &Found,
        (lost, older): (&[u32], Option<&Older>),
        (dump, readable): (Option<&Dump>, &BTreeSet<u32>),
        standing: &Standing,
    ) -> Room {
        let mut room = Room::default();
        for (window, sectors) in &standing.windows {
            self.windows[*window].resize(*sectors as usize, NIL);
        }
        for lba in lost {
            if found.newest[*lba as usize].at == NIL {
                self.map.set(*lba, Entry::Poisoned);
            }
        }
        for saved in dump.iter().flat_map(|d| &d.sectors) {
            // Nothing on the medium is younger: the map named this slot when the power went.
            if saved.at.is_some_and(|at| readable.contains(&at)) {
                continue;
            }
            let (kind, lba, stamp) = (saved.kind, saved.lba, saved.stamp);
            let stands = saved.at.and_then(|at| {
                let (unit, _) = self.place.layout.unit_around(at);
                let (window, first) = standing.units.get(&unit)?;
                Some((at, *window, (first + at - unit) as usize))
            });
            let slot = match stands {
                Some((at, window, i)) => {
                    let slot = self.buffer.restore_window(kind, lba, stamp, at);
                    self.windows[window][i] = slot;
                    self.map.take(at, lba);
                    let line = self.place.layout.line_of(at);
                    self.place.line_mut(line).valid += 1;
                    slot
                }
                None => self.buffer.restore(kind, lba, stamp, saved.holds_room),
            };
            if saved.holds_room {
                room.add(kind);
            }
            self.buffer.content_mut(slot).copy_from_slice(&saved.content);
            self.map.set(saved.lba, Entry::Slot(slot));
        }
        let taken = self.buffer.take_gc_room(room.gc);
        assert!(taken, "the dump was checked against the buffer");
        for (lba, claim) in (0u32..).zip(&found.newest) {
            if claim.at == NIL {
                continue;
            }
            let host = lba < self.map.capacity();
            if older.is_some_and(|older| older.has(lba)) {
                continue;
            }
            if !host && self.pages.at(lba - self.map.capacity()) != Some(claim.at) {
                continue;
            }
            if host {
                if self.map.get(lba) != Entry::Unmapped {
                    continue;
                }
                self.map.set(lba, Entry::Media(claim.at));
            }
            self.map.take(claim.at, lba);
            let line = self.place.layout.line_of(claim.at);
            self.place.line_mut(line).valid += 1;
        }
        self.take_seconds();
        if let Some(older) = older {
            for lba in older.all() {
                if matches!(self.map.get(lba), Entry::Unmapped) {
                    self.map.set(lba, Entry::Poisoned);
                    self.pages.touch_trims(lba, lba + 1);
                }
            }
        }
        self.relearn_stamps(found);
        // All that counts was found elsewhere, on the medium: such lines may be all the room there is.
        self.place.erase_empty_lines(self.barrier_after_now());
        room
    }
}
