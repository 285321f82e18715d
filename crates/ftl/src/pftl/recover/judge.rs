//! What is made of a scan: pages, losses, void units, what stands in windows, and the controller.
//!
//! Owns: the judgement of what could not be read. Promises: what once was good and can't be read is a
//! loss that refuses the mount, unless it is accepted; a unit that a program or its failure left
//! unreadable is void. Never: programs.

use flashlane_base::{Location, mutant};
use flashlane_ocssd::device::ChunkState;
use std::collections::{BTreeMap, BTreeSet};

use super::super::buffer::NIL;
use super::super::dump::Dump;
use super::super::map::Entry;
use super::super::pages::{Pages, Said};
use super::super::place::Place;
use super::super::{Controller, Room};
use super::scan::{Claim, Found};
use super::sectors::read_page;
use super::{Mount, MountError};

/// Units that a former life has programmed and the medium can't give back yet.
#[derive(Default)]
pub(super) struct Standing {
    /// Unit → its window, and its first sector in that.
    units: BTreeMap<u32, (usize, u32)>,
    /// (window, units in it), those that do not stand included.
    windows: Vec<(usize, u32)>,
}

impl Mount<'_> {
    /// Takes in what the newest pages say; returns the sectors whose content is lost. A page that
    /// can't be read counts as unreadable like any other sector.
    pub(super) async fn read_pages(
        &self,
        pages: &mut Pages,
        found: &mut Found,
        dump: Option<&Dump>,
    ) -> Vec<u32> {
        let mut lost = Vec::new();
        for page in 0..pages.count() {
            let claim = found.newest[pages.lba(page) as usize];
            let saved = dump.and_then(|d| d.pages.iter().find(|(of, _)| *of == page));
            let mut bytes = None;
            if claim.at != NIL {
                let whole = read_page(self.cx, &self.medium, claim.at).await;
                let whole = whole.filter(|bytes| pages.check(page, bytes).is_some());
                match whole {
                    Some(_) => pages.found(page, claim.at),
                    None => drop(found.unreadable.insert(claim.at)),
                }
                bytes = whole;
            }
            if let Some((_, saved)) = saved {
                bytes = Some(saved.clone());
                pages.touch(page);
            }
            let Some(bytes) = bytes else {
                continue;
            };
            let Some(stamp) = pages.check(page, &bytes) else {
                continue;
            };
            pages.read(page, &bytes, |lba, said| {
                let claim = &mut found.newest[lba as usize];
                let older = claim.stamp > stamp && !mutant!("pftl.old-trim-counts");
                if said == Said::Nothing || older || mutant!("pftl.trims-not-read") {
                    return;
                }
                *claim = Claim { stamp, at: NIL };
                if said == Said::Lost && !mutant!("pftl.loss-read-as-trim") {
                    lost.push(lba);
                }
            });
        }
        lost
    }

    /// The highest stamp that is known of.
    pub(super) fn last_stamp(&self, found: &Found, dump: Option<&Dump>) -> u64 {
        let seen = found.newest.iter().map(|claim| claim.stamp).max().unwrap_or(0);
        let lines = found.stamp_of_line.iter().copied().max().unwrap_or(0);
        seen.max(lines).max(dump.map_or(0, |d| d.stamp))
    }

    /// Was this unit's program cut, or one that may have taken it along? Either way the dump holds
    /// what was in it: a buffer lets go of a unit when the window behind it is programmed.
    fn was_cut(&self, dump: &Dump, line: u32, position: u32, row: u32, reach: u32) -> bool {
        let last = self.layout.rows.min(row + reach.div_ceil(self.layout.unit) + 1);
        let mut behind = (row..last).map(|row| self.layout.unit_at(line, row, position));
        behind.any(|at| dump.cut.contains(&self.layout.unit_of(at)))
    }

    /// Decides whether what could not be read is a loss; marks what is none as void. Returns losses, where they
    /// are accepted.
    pub(super) fn judge_unreadable(
        &self,
        pages: &mut Pages,
        found: &Found,
        dump: Option<&Dump>,
        slack: u32,
        accept: bool,
    ) -> Result<Vec<Location>, MountError> {
        let layout = &self.layout;
        let mut lost = Vec::new();
        for at in &found.unreadable {
            let unit = layout.unit_of(*at);
            let (line, position, sector) = layout.in_chunk(*at);
            let chunk = self.chunk_index(line, position);
            // A unit may fail in parts; nothing is behind it then but the rest of itself.
            let end = sector / layout.unit * layout.unit + layout.unit;
            let torn = dump.is_none() && end + slack >= found.data_end[chunk];
            let row = sector / layout.unit;
            let cut = dump.is_some_and(|d| self.was_cut(d, line, position, row, self.window));
            if !(torn || cut || !found.any[chunk] || pages.is_void(unit)) {
                lost.push(*at);
            }
        }
        if let Some(first) = lost.first()
            && !accept
            && !mutant!("pftl.loss-mounted")
        {
            let place = layout.location(*first);
            return Err(MountError::Lost {
                sectors: lost.len() as u64,
                pu: place.pu,
                chunk: place.chunk,
                sector: place.sector,
            });
        }
        let void = found.unreadable.iter().chain(&self.failed);
        if !mutant!("pftl.torn-unit-not-void") {
            void.for_each(|at| pages.set_void(layout.unit_of(*at), true));
        }
        Ok(lost.into_iter().map(|at| layout.location(at)).collect())
    }

    /// Units in the windows of chunks that are written on, which no cut program can have harmed:
    /// what the dump holds of them is programmed already. Not to program it again is more than
    /// thrift: where windows are long it would take the room that GC needs. `reach`: sectors that
    /// a program may take along.
    pub(super) fn standing(&self, place: &Place, dump: Option<&Dump>, reach: u32) -> Standing {
        let (unit, keep) = (self.layout.unit, self.window / self.layout.unit);
        let mut standing = Standing::default();
        let Some(dump) = dump else {
            return standing;
        };
        for line in &dump.open {
            let Some(stream) = place.stream_of(*line) else {
                continue;
            };
            for position in 0..self.layout.positions {
                let info = &self.chunks[self.chunk_index(*line, position)];
                let whole = info.write_pointer.is_multiple_of(unit);
                if info.state != ChunkState::Open || !whole {
                    continue;
                }
                let end = info.write_pointer / unit;
                let first = end.saturating_sub(keep);
                let window = stream * self.layout.positions as usize + position as usize;
                standing.windows.push((window, end - first));
                for row in first..end {
                    let cut = self.was_cut(dump, *line, position, row, reach);
                    if cut && !mutant!("pftl.cut-unit-stands") {
                        continue;
                    }
                    let at = self.layout.unit_at(*line, row, position);
                    let place = (window, (row - first) * unit);
                    standing.units.insert(self.layout.unit_of(at), place);
                }
            }
        }
        standing
    }

    /// Nothing in an erased chunk is void: the page that says so of what was there before the erase may
    /// be the newest one that is durable.
    pub(super) fn forget_erased_voids(&self, pages: &mut Pages) {
        if !pages.any_void() || mutant!("pftl.void-beyond-erase") {
            return;
        }
        let chunks = (0..self.layout.lines)
            .flat_map(|line| (0..self.layout.positions).map(move |position| (line, position)));
        let erased = |(line, position): &(u32, u32)| {
            self.chunks[self.chunk_index(*line, *position)].state == ChunkState::Free
        };
        for (line, position) in chunks.filter(erased) {
            for row in 0..self.layout.rows {
                let at = self.layout.unit_at(line, row, position);
                pages.set_void(self.layout.unit_of(at), false);
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
            for position in 0..self.layout.positions {
                let info = &self.chunks[self.chunk_index(*line, position)];
                let written = info.write_pointer.min(self.layout.chunk_sectors);
                let unit = self.layout.unit;
                for row in self.readable(info) / unit..written.div_ceil(unit) {
                    let unit = self.layout.unit_of(self.layout.unit_at(*line, row, position));
                    let stands = standing.units.contains_key(&unit);
                    if !stands && !mutant!("pftl.rest-not-void") {
                        pages.set_void(unit, true);
                    }
                }
            }
        }
    }
}

impl Controller {
    /// Fills map and buffer with what was found. Returns the room that the dump's sectors hold.
    pub(super) fn take_in(
        &mut self,
        found: &Found,
        lost: &[u32],
        (dump, readable): (Option<&Dump>, &BTreeSet<u32>),
        standing: &Standing,
    ) -> Room {
        let mut room = Room::default();
        let unit = self.place.layout.unit;
        for (window, units) in &standing.windows {
            self.windows[*window].resize((units * unit) as usize, NIL);
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
                let (window, first) = standing.units.get(&self.place.layout.unit_of(at))?;
                Some((at, *window, (first + at % unit) as usize))
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
        // All that counts was found elsewhere, on the medium: such lines may be all the room there is.
        self.place.erase_empty_lines();
        room
    }
}
