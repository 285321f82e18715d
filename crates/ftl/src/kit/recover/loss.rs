//! The judgement of what could not be read: a loss, or nothing that anybody misses.
//!
//! Owns: [`Losses`], how far torn units may reach. Promises: a chunk that may hold data and is
//! offline, or can't be read, is a loss, never taken for an empty one; so is a unit, but for the
//! one in each chunk that the power cut may have torn, and what mounts that were cut have added to
//! it; a verdict depends on what lies on the medium alone, so the next mount gives it again. Never:
//! programs.
//!
//! **Where nothing is missed.** The dump, or the notes (`pages.rs`), name chunks in which nothing
//! is missed. Nor is anything missed in a line that does not count: no logical sector has its only
//! newest copy there. The FTL erases a line only after that is so and durable. So a full chunk of
//! such a line of which no sector can be read has a torn erase, if its tag says that it was erased
//! since it was written. The other chunks of its line have the tag (`witness.rs`), or the pages of
//! counts. Where nothing has it, no more chunks count as torn than the eraser can have at once, in
//! [`LIVES`] lives that were cut. An offline chunk of such a line has failed its erase. In any
//! other line both kinds of chunk are losses. Where all chunks of a PU are offline they are losses
//! in any line. Where there are no notes at all (an older version has used the device last, or it
//! is in its first life) an offline chunk counts as bad from the start; the mount says so
//! ([`super::Recovery::unnoted`]).
//!
//! **Torn units.** When the power goes each PU has one program under way at most. Its unit can't be
//! read, and it is the last one of its chunk, but for padding and pages that later mounts have
//! programmed. A mount that was cut may have left another torn unit. So a unit that can't be read,
//! after the last sector of a host's in its chunk, is torn, in runs of one unit. Mounts pad all
//! chunks of a line at once. So mounts that were cut before any of their padding was whole leave
//! longer runs, on all PUs alike: a run has at most two units more than the longest one on another
//! PU, and [`RUN_MOST`] at most. After a snapshot's root it may be longer by the root's copies and
//! its mark.

use flashlane_base::{Location, mutant};
use flashlane_ocssd::device::ChunkState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::super::buffer::NIL;
use super::super::dump::Dump;
use super::super::map::Entry;
use super::super::pages::Pages;
use super::super::place::{Layout, MAIN, Place};
use super::super::stamps::UNKNOWN;
use super::super::{Controller, LIFE_SHIFT};
use super::blind::Blind;
use super::scan::Found;
use super::{Mount, MountError, window_of};
use crate::layer::{LostCause, LostSectors};

/// Units in a row that may be torn where there is no other PU to compare with: that of a power cut,
/// and of two cut mounts.
pub(super) const RUN_ALONE: u32 = 3;

/// Units in a row that may be torn, whatever other PUs look like.
const RUN_MOST: u32 = 8;

/// Lives in a row that may each have left what they were erasing. One erases a line at a time, or
/// as many single chunks as there are PUs.
const LIVES: u32 = 3;

/// Chunks that an error names at most.
const NAMED: usize = 4;

/// What is missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Physical sectors that can't be read.
    sectors: Vec<u32>,
    /// Chunks that may have held data and are offline, or give nothing back: (line, position).
    chunks: Vec<(u32, u32)>,
    /// Logical sectors whose flushed versions, by the records, were not found, nor younger ones.
    versions: Vec<u32>,
    /// Chunks whose sectors count as lost only because a PU is dead that may have held the tag of
    /// their torn erase.
    silenced: BTreeSet<(u32, u32)>,
}

/// Who says in which chunks nothing is missed.
enum Notes<'a> {
    Dump(&'a [u64]),
    Pages,
    /// There were notes, but not of the life that wrote last: nothing is known of any chunk.
    Lost,
    /// There never were any.
    None,
}

/// What of a chunk can't be read, and nobody has noted: units by their first sector.
type Unread = BTreeMap<(u32, u32), BTreeSet<u32>>;

impl Losses {
    pub(super) fn is_empty(&self) -> bool {
        self.sectors.is_empty() && self.chunks.is_empty() && self.versions.is_empty()
    }

    /// Positions of lost data, without `silenced` chunks: a torn erase explains those, if there was
    /// no second fault.
    pub(super) fn positions(&self, layout: &Layout) -> BTreeSet<u32> {
        let sectors = self.sectors.iter().map(|at| layout.in_chunk(*at));
        let sectors = sectors.map(|(line, position, _)| (line, position));
        let chunks = sectors.chain(self.chunks.iter().copied());
        let missed = chunks.filter(|chunk| !self.silenced.contains(chunk));
        missed.map(|(_, position)| position).collect()
    }
}

impl Mount<'_> {
    /// Decides whether what could not be read is a loss; marks as void what is none, and what is
    /// accepted. Returns losses, where they are accepted.
    pub(super) fn judge_unreadable(
        &mut self,
        pages: &mut Pages,
        (found, blind): (&Found, &Blind),
        dump: Option<&Dump>,
        accept: bool,
    ) -> Result<Losses, MountError> {
        let notes = match (dump, pages.noted()) {
            (Some(dump), _) => Notes::Dump(&dump.unmissed),
            (None, Some(_)) if self.capacitors => Notes::None,
            (None, Some(stamp)) if stamp >> LIFE_SHIFT < found.host_stamp >> LIFE_SHIFT => {
                Notes::Lost
            }
            (None, Some(_)) => Notes::Pages,
            (None, None) => Notes::None,
        };
        self.report.unnoted = matches!(notes, Notes::None);
        let mut losses = Losses::default();
        let mut unread = Unread::new();
        for at in &found.unreadable {
            let (line, position, sector) = self.layout.in_chunk(*at);
            let index = self.chunk_index(line, position);
            let offline = self.chunks[index].state == ChunkState::Offline;
            let void = pages.is_void(self.layout.grain_of(*at)) || self.failed.contains(at);
            if !offline && !void {
                let unit = sector - self.layout.of(line).in_unit(sector);
                unread.entry((line, position)).or_default().insert(unit);
            }
        }
        if !mutant!("kit.unreadable-is-empty") {
            losses.chunks = self.missed_chunks(&notes, pages, found);
        }
        losses.silenced = self.forget_erased(&notes, pages, (found, blind), &mut unread);
        let flushed = |chunk: &&(u32, u32)| {
            let muted = blind.muted.contains(&chunk.1);
            muted || self.may_be_flushed(&notes, pages, (found, blind), **chunk)
        };
        let (lost, empty): (BTreeSet<_>, BTreeSet<_>) = blind.chunks.iter().partition(flushed);
        unread.retain(|chunk, _| !empty.contains(chunk));
        if !empty.is_empty() {
            // Should it be readable later, then what was found to be zeros stays so.
            pages.touch_trims(0, self.capacity as u32);
        }
        self.judge_units((found, &lost), dump, &unread, &mut losses);
        let there = |at: &&u32| {
            let (line, position, _) = self.layout.in_chunk(**at);
            self.chunks[self.chunk_index(line, position)].state != ChunkState::Offline
        };
        losses.sectors.extend(found.lost_pages.iter().filter(there));
        if dump.is_none() && !mutant!("kit.flushed-version-unmissed") {
            let host = 0..pages.stamps().sectors();
            losses.versions = host.filter(|lba| is_superseded(pages, found, *lba)).collect();
        }
        if !losses.is_empty() && !accept && !mutant!("kit.loss-mounted") {
            return Err(self.refusal(&losses));
        }
        let is_heard = |(line, position): &(u32, u32)| {
            let at = self.chunk_index(*line, *position);
            let said = found.heard[at].is_erased_since(self.chunks[at].erases);
            // Whoever told of a chunk that was judged empty would have the next mount miss it.
            said == Some(false) || found.good[at] == 0
        };
        self.heard = self.layout.chunks().filter(is_heard).collect();
        let void = found.unreadable.iter().chain(&self.failed);
        if !mutant!("kit.torn-unit-not-void") {
            void.for_each(|at| pages.set_void(self.layout.grain_of(*at), true));
        }
        Ok(losses)
    }

    /// Offline chunks in which something may be missed.
    fn missed_chunks(&self, notes: &Notes<'_>, pages: &Pages, found: &Found) -> Vec<(u32, u32)> {
        let bit =
            |bits: &[u64], at: usize| bits.get(at / 64).is_some_and(|w| w >> (at % 64) & 1 == 1);
        let dead = |position: u32| self.is_dead(position);
        let dead: Vec<bool> = (0..self.layout.positions).map(dead).collect();
        // Of what was flushed something is on two PUs at least.
        let alive = dead.iter().any(|dead| !dead) && dead.iter().filter(|dead| **dead).count() < 2;
        let blank = self.is_blank(found);
        let counts = self.lines_that_count(found);
        let missed = |(line, position): &(u32, u32)| {
            let at = self.chunk_index(*line, *position);
            self.chunks[at].state == ChunkState::Offline
                && match notes {
                    Notes::Dump(bits) => !bit(bits, at),
                    Notes::Pages if pages.is_noted(at) => false,
                    Notes::Pages | Notes::Lost => {
                        dead[*position as usize] || counts[*line as usize]
                    }
                    Notes::None => dead[*position as usize] && !(blank && alive),
                }
        };
        self.layout.chunks().filter(missed).collect()
    }

    /// True if no chunk that is there holds anything that can be read.
    fn is_blank_but_torn(&self, found: &Found) -> bool {
        let there = |at: usize| self.chunks[at].state != ChunkState::Offline;
        (0..self.chunks.len()).all(|at| found.good[at] == 0 || !there(at))
    }

    /// True if no chunk that is there holds anything.
    fn is_blank(&self, found: &Found) -> bool {
        let offline = |at: &u32| {
            let (line, position, _) = self.layout.in_chunk(*at);
            self.chunks[self.chunk_index(line, position)].state == ChunkState::Offline
        };
        self.is_blank_but_torn(found) && found.unreadable.iter().all(offline)
    }

    /// All chunks of a PU are offline.
    pub(super) fn is_dead(&self, position: u32) -> bool {
        let mut lines = self.layout.lines_at(position);
        let offline =
            |line| self.chunks[self.chunk_index(line, position)].state == ChunkState::Offline;
        lines.all(offline)
    }

    /// Removes from `unread` the chunks in which nothing is missed. Returns those that it keeps
    /// only because a PU is dead.
    fn forget_erased(
        &self,
        notes: &Notes<'_>,
        pages: &Pages,
        (found, blind): (&Found, &Blind),
        unread: &mut Unread,
    ) -> BTreeSet<(u32, u32)> {
        let wholly = |(line, position): &(u32, u32)| {
            let at = self.chunk_index(*line, *position);
            let full = self.chunks[at].write_pointer == self.layout.of(*line).chunk_sectors;
            full && found.good[at] == 0
        };
        if mutant!("kit.unreadable-is-empty") {
            unread.retain(|chunk, _| !wholly(chunk));
            return BTreeSet::new();
        }
        if let Notes::Dump(bits) = notes {
            unread.retain(|(line, p), _| {
                let at = self.chunk_index(*line, *p);
                bits.get(at / 64).is_none_or(|w| w >> (at % 64) & 1 == 0)
            });
            return BTreeSet::new();
        }
        let counts = self.lines_that_count(found);
        let muted = |chunk: &(u32, u32)| blind.muted.contains(&chunk.1);
        let erased =
            |chunk: &(u32, u32)| wholly(chunk) && !counts[chunk.0 as usize] && !muted(chunk);
        let said = |chunk: &(u32, u32)| self.is_erased_since(pages, found, *chunk);
        unread.retain(|chunk, _| !(erased(chunk) && said(chunk) == Some(true)));
        let silenced = |chunk: &(u32, u32)| self.is_silenced(notes, pages, chunk.0);
        let unsaid = |chunk: &(u32, u32)| erased(chunk) && said(chunk).is_none();
        let hidden: BTreeSet<(u32, u32)> =
            unread.keys().copied().filter(|chunk| unsaid(chunk) && silenced(chunk)).collect();
        let erased = |chunk: &(u32, u32)| unsaid(chunk) && !silenced(chunk);
        let lines: BTreeSet<u32> = unread.keys().filter(|c| erased(c)).map(|c| c.0).collect();
        let single = |line: &u32| self.layout.of(*line).width == 1;
        let (alone, wide): (Vec<u32>, Vec<u32>) = lines.into_iter().partition(single);
        // Nothing is erased before the first flush, which writes notes. With capacitors nothing was
        // under way at a clean stop, and at any other end there is a dump.
        let unflushed = matches!(notes, Notes::None);
        // The data of an erased line is elsewhere. If nothing was flushed, or nothing at all can be
        // read, only a creation was cut, which turns one line after the other into SLC mode.
        let created = unflushed || self.is_blank_but_torn(found);
        let slc = |line: u32| u32::from(self.layout.is_slc(line));
        let lives = |line: u32| if created { slc(line) } else { LIVES };
        let few = |chunk: &(u32, u32)| match single(&chunk.0) {
            true => alone.len() <= (lives(chunk.0) * self.layout.positions) as usize,
            false => wide.len() <= lives(chunk.0) as usize,
        };
        unread.retain(|chunk, _| !(erased(chunk) && few(chunk)));
        let lines: BTreeSet<u32> = hidden.iter().map(|chunk| chunk.0).collect();
        if lines.len() <= LIVES as usize { hidden } else { BTreeSet::new() }
    }

    /// Whether a chunk has been erased since it was written, as other chunks of its line or the
    /// pages of counts say; `None`: nothing does.
    fn is_erased_since(
        &self,
        pages: &Pages,
        found: &Found,
        (line, position): (u32, u32),
    ) -> Option<bool> {
        let at = self.chunk_index(line, position);
        let mut heard = found.heard[at];
        heard.note(pages.tag(at));
        let said = heard.is_erased_since(self.chunks[at].erases);
        said.filter(|_| !mutant!("kit.witness-unheard"))
    }

    /// True if what speaks of the chunks of this line may have been on a PU that is dead since.
    fn is_silenced(&self, notes: &Notes<'_>, pages: &Pages, line: u32) -> bool {
        let mut chunks = self.layout.positions_of(line);
        let gone = |p: u32| self.is_dead(p) && !pages.is_noted(self.chunk_index(line, p));
        matches!(notes, Notes::Pages) && chunks.any(gone)
    }

    /// True if a chunk that gives nothing back may hold something that was flushed. A barrier
    /// ends only when something on another PU, or the pages of counts, speak of each open chunk
    /// with content; the first one only when there are notes.
    fn may_be_flushed(
        &self,
        notes: &Notes<'_>,
        pages: &Pages,
        (found, blind): (&Found, &Blind),
        chunk: (u32, u32),
    ) -> bool {
        let mut others = self.layout.positions_of(chunk.0).filter(|p| *p != chunk.1);
        let silent = |position: u32| {
            let at = self.chunk_index(chunk.0, position);
            self.is_silent(found, (chunk.0, position)) && !pages.is_noted(at)
        };
        match notes {
            Notes::Pages => {
                others.any(silent) || self.is_erased_since(pages, found, chunk) == Some(false)
            }
            Notes::None => !self.is_unflushed((found, blind), chunk),
            Notes::Dump(_) | Notes::Lost => true,
        }
    }

    /// True if this chunk was written (it is not free) and no sector of it can be read.
    fn is_silent(&self, found: &Found, (line, position): (u32, u32)) -> bool {
        let at = self.chunk_index(line, position);
        self.chunks[at].state != ChunkState::Free && found.good[at] == 0
    }

    /// For a device without notes: true if no barrier has ended yet, so that nothing was flushed.
    /// `chunk` gives nothing back; the answer can be true only in the SLC buffer.
    ///
    /// Missing notes prove this only in the first life, and only if the version that wrote the
    /// device writes notes: then the records of host sectors have tags. The notes must also be
    /// readable if they exist. Their second copy is always in the main pool: it still exists if no
    /// chunk there was ever erased, and is readable if every chunk there gives something back. A
    /// chunk that is offline counts as bad from the start, unless its PU is dead. The `chunk` was
    /// erased into SLC mode: if its erases are 0, the device counts none.
    fn is_unflushed(&self, (found, blind): (&Found, &Blind), chunk: (u32, u32)) -> bool {
        let is_main = |(line, _): &(u32, u32)| self.layout.of(*line).pool == MAIN;
        let info = |(line, p): (u32, u32)| &self.chunks[self.chunk_index(line, p)];
        let kept = info(chunk).erases > 0
            && self.layout.chunks().filter(is_main).all(|chunk| info(chunk).erases == 0);
        let bad = |chunk| info(chunk).state == ChunkState::Offline && !self.is_dead(chunk.1);
        let hidden =
            |chunk| blind.chunks.contains(&chunk) || self.is_silent(found, chunk) && !bad(chunk);
        let in_sight = !is_main(&chunk) && !self.layout.chunks().filter(is_main).any(hidden);
        let first_life = found.host_stamp >> LIFE_SHIFT <= 1;
        !self.capacitors && first_life && found.tagged && kept && in_sight
    }

    /// Lines that have the only newest copy of some logical sector, of those that can be read.
    fn lines_that_count(&self, found: &Found) -> Vec<bool> {
        let mut others: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (lba, stamp, at) in &found.equal {
            if found.newest[*lba as usize].stamp == *stamp {
                others.entry(*lba).or_default().push(self.layout.line_of(*at));
            }
        }
        let mut counts = vec![false; self.layout.lines as usize];
        for (lba, claim) in (0u32..).zip(&found.newest).filter(|(_, claim)| claim.at != NIL) {
            let line = self.layout.line_of(claim.at);
            let elsewhere = others.get(&lba).is_some_and(|lines| lines.iter().any(|l| *l != line));
            counts[line as usize] |= !elsewhere;
        }
        counts
    }

    /// Which of these units are lost, and which only torn.
    fn judge_units(
        &mut self,
        (found, blind): (&Found, &BTreeSet<(u32, u32)>),
        dump: Option<&Dump>,
        unread: &Unread,
        losses: &mut Losses,
    ) {
        // Of each line and position.
        let mut longest: BTreeMap<(u32, u32), usize> = BTreeMap::new();
        let mut runs = Vec::new();
        for ((line, position), units) in unread {
            if let Some(dump) = dump {
                let reach = window_of(self.layout.of(*line));
                let kept = |unit: &&u32| !self.was_cut(dump, *line, *position, **unit, reach);
                let units: Vec<u32> = units.iter().filter(kept).copied().collect();
                units.iter().for_each(|unit| self.lose(losses, found, (*line, *position), *unit));
                continue;
            }
            if blind.contains(&(*line, *position)) {
                // As a whole: a mount that is refused programs more units of it, and the next one
                // must say the same.
                losses.chunks.push((*line, *position));
                continue;
            }
            let (tail, before) = self.split(found, (*line, *position), units);
            before.iter().for_each(|unit| self.lose(losses, found, (*line, *position), *unit));
            for run in tail {
                let longest = longest.entry((*line, *position)).or_default();
                *longest = run.len().max(*longest);
                runs.push(((*line, *position), run));
            }
        }
        for ((line, position), run) in runs {
            // The unit that the life had under way here, beside what mounts have added everywhere.
            // PUs of a channel get their padding one after the other: the last cut may have met one
            // only.
            let window = window_of(self.layout.of(line)) > 0;
            let mut most = match self.longest_beside(&longest, line, position) {
                Some(beside) => beside + if beside > 1 || window { 2 } else { 1 },
                None => self.longest_alone(line),
            };
            let at = self.chunk_index(line, position);
            most = most.min(if found.good[at] > 0 { RUN_MOST } else { RUN_ALONE });
            // Mounts that were cut have programmed padding here to see whether it can be read.
            if found.good[at] > 0 && found.data_end[at] + found.rest_end[at] == 0 {
                most = most.max(RUN_ALONE);
            }
            let unit = self.layout.of(line).unit;
            let root = found.rest_end[self.chunk_index(line, position)];
            if root > 0 && run.first() == Some(&root.next_multiple_of(unit)) {
                most += self.reach + 1;
            }
            let lost = match mutant!("kit.any-run-is-torn") {
                true => 0,
                false => run.len().saturating_sub(most as usize),
            };
            self.report.torn_units += (run.len() - lost) as u64;
            run[..lost].iter().for_each(|unit| self.lose(losses, found, (line, position), *unit));
        }
    }

    /// The longest run on another PU, in a chunk that a mount pads together with this one, if there
    /// is one.
    fn longest_beside(
        &self,
        longest: &BTreeMap<(u32, u32), usize>,
        line: u32,
        position: u32,
    ) -> Option<u32> {
        if self.layout.of(line).width == 1 {
            let others = longest.iter().filter(|((_, other), _)| *other != position);
            let none = if self.layout.positions == 1 { None } else { Some(0) };
            return others.map(|(_, n)| *n as u32).max().or(none);
        }
        let others = self.layout.positions_of(line).filter(|other| *other != position);
        let open = |other: &u32| {
            let info = &self.chunks[self.chunk_index(line, *other)];
            info.state == ChunkState::Open || longest.contains_key(&(line, *other))
        };
        let runs = others.filter(open).map(|p| longest.get(&(line, p)).map_or(0, |n| *n as u32));
        runs.max()
    }

    /// The longest run that may be torn in a chunk with which no mount pads another. Without a
    /// window none is needed.
    fn longest_alone(&self, line: u32) -> u32 {
        if window_of(self.layout.of(line)) > 0 { RUN_ALONE } else { 1 }
    }

    /// Units that can't be read behind the last host's sector of their chunk, in runs; and those
    /// before it that no torn program can have taken along.
    fn split(
        &self,
        found: &Found,
        (line, position): (u32, u32),
        units: &BTreeSet<u32>,
    ) -> (Vec<Vec<u32>>, Vec<u32>) {
        let region = self.layout.of(line);
        let end = found.data_end[self.chunk_index(line, position)];
        // A unit may fail in parts; nothing is behind it then but the rest of itself.
        let is_behind = |unit: &u32| unit + region.unit >= end;
        let mut runs: Vec<Vec<u32>> = Vec::new();
        for unit in units.iter().copied().filter(is_behind) {
            match runs.last_mut() {
                Some(run) if run.last() == Some(&unit.saturating_sub(region.unit)) => {
                    run.push(unit)
                }
                _ => runs.push(vec![unit]),
            }
        }
        let slack = if region.pairs > 0 { window_of(region) + region.unit } else { 0 };
        let taken_along = |unit: &u32| {
            let near = |torn: &u32| *torn <= unit + region.unit + slack;
            slack > 0 && runs.iter().flatten().any(near) && unit + region.unit + slack >= end
        };
        let before = units.iter().copied().filter(|u| !is_behind(u) && !taken_along(u)).collect();
        (runs, before)
    }

    /// The sectors of a unit that can't be read are lost.
    fn lose(&self, losses: &mut Losses, found: &Found, (line, position): (u32, u32), unit: u32) {
        if mutant!("kit.lost-is-torn") {
            return;
        }
        let sectors = unit..unit + self.layout.of(line).unit;
        let ats = sectors.map(|sector| self.layout.sector_at(line, position, sector));
        losses.sectors.extend(ats.filter(|at| found.unreadable.contains(at)));
    }

    /// Losses by place: the first sector of each, and how many.
    pub(super) fn lost_places(&self, losses: &Losses) -> Vec<(Location, u32)> {
        let chunk = |(line, position): &(u32, u32)| {
            (self.layout.chunk(*line, *position), self.layout.of(*line).chunk_sectors)
        };
        let sectors = losses.sectors.iter().map(|at| (self.layout.location(*at), 1));
        sectors.chain(losses.chunks.iter().map(chunk)).collect()
    }

    /// The error that names losses.
    fn refusal(&self, losses: &Losses) -> MountError {
        let mut places = self.lost_places(losses);
        if let ([], Some(first)) = (&places[..], losses.versions.first()) {
            return MountError::Superseded { sectors: losses.versions.len() as u64, first: *first };
        }
        places.sort_by_key(|(at, _)| (at.pu, at.chunk, at.sector));
        let sectors = places.iter().map(|(_, n)| u64::from(*n)).sum();
        let mut by_chunk: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        places.iter().for_each(|(at, n)| *by_chunk.entry((at.pu, at.chunk)).or_default() += n);
        let dead = (0..self.layout.positions).filter(|p| self.is_dead(*p));
        let dead: BTreeSet<u32> = dead.map(|p| self.layout.pu(p)).collect();
        let mut said: Vec<String> = dead.iter().map(|pu| format!("PU {pu} is dead")).collect();
        by_chunk.retain(|(pu, _), _| !dead.contains(pu));
        for ((pu, chunk), n) in by_chunk.iter().take(NAMED) {
            said.push(format!("{n} in chunk {chunk} of PU {pu}"));
        }
        let mut said = said.join(", ");
        if let Some(more) = by_chunk.len().checked_sub(NAMED + 1) {
            let _ = write!(said, " and in {} more chunks", more + 1);
        }
        let first = places.first().map_or(Location { pu: 0, chunk: 0, sector: 0 }, |(at, _)| *at);
        let (pu, chunk, sector) = (first.pu, first.chunk, first.sector);
        MountError::Lost { sectors, pu, chunk, sector, places: said }
    }
}

/// True if only older versions of this logical sector were found than a flush has recorded.
pub(super) fn is_superseded(pages: &Pages, found: &Found, lba: u32) -> bool {
    let (stamps, claim) = (pages.stamps(), found.newest[lba as usize]);
    let recorded = stamps.true_at(lba).map_or(0, |_| stamps.get(lba));
    recorded != UNKNOWN && claim.stamp < recorded
}

impl Mount<'_> {
    /// Positions at which an open chunk ends in a unit that can't be read, where that is known
    /// without padding. What a mount programs goes elsewhere as long as it may be cut: behind such
    /// a unit another torn one would look like a loss. None, where the mount might find no other
    /// place.
    pub(super) fn torn_ends(&self, found: &Found, place: &Place) -> Vec<u32> {
        let torn = |(line, position): &(u32, u32)| {
            let (region, at) = (self.layout.of(*line), self.chunk_index(*line, *position));
            let info = &self.chunks[at];
            let last = info.write_pointer.checked_sub(1);
            info.state == ChunkState::Open
                && window_of(region) == 0
                && last.is_some_and(|last| {
                    found.unreadable.contains(&self.layout.sector_at(*line, *position, last))
                })
        };
        let torn: BTreeSet<u32> = self.layout.chunks().filter(torn).map(|(_, p)| p).collect();
        let torn: Vec<u32> = torn.into_iter().collect();
        if place.can_do_without(&torn) && !mutant!("kit.mount-behind-torn") {
            torn
        } else {
            Vec::new()
        }
    }
}

impl Controller {
    /// Logical sectors whose content is lost, in ranges.
    /// `why`: the cause, of those that this mount has found to be lost.
    pub(super) fn lost_sectors(&self, why: impl Fn(u32) -> Option<LostCause>) -> Vec<LostSectors> {
        let mut lost: Vec<LostSectors> = Vec::new();
        for lba in 0..self.map.capacity() {
            let cause = match self.map.get(lba) {
                Entry::Poisoned => why(lba).unwrap_or(LostCause::Noted),
                Entry::Media(at) if self.place.is_gone(at) => {
                    let Location { pu, chunk, .. } = self.place.layout.location(at);
                    let (_, position, _) = self.place.layout.in_chunk(at);
                    match self.place.is_dead(position) {
                        true => LostCause::DeadPu(pu),
                        false => LostCause::OfflineChunk { pu, chunk },
                    }
                }
                Entry::Unmapped | Entry::Slot(_) | Entry::Media(_) => continue,
            };
            let first = u64::from(lba);
            match lost.last_mut() {
                Some(last) if last.cause == cause && last.first + last.count == first => {
                    last.count += 1;
                }
                _ => lost.push(LostSectors { first, count: 1, cause }),
            }
        }
        lost
    }
}
