//! The scan: the records of all written sectors, and which copy of each logical sector counts.
//!
//! Owns: what was found ([`Found`]). Promises: per logical sector the highest stamp, at equal stamps a
//! copy that verifies; what could not be read is kept apart. Never: programs, or decides what is lost.

use flashlane_base::{VECTOR_MAX, mutant};
use flashlane_ocssd::device::{ChunkInfo, ChunkState};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::STAMP_LAST;
use super::super::buffer::NIL;
use super::super::dump::Dump;
use super::super::place::Layout;
use super::super::witness::{Heard, Round};
use super::sectors::{Medium, Record, read_records, records_again, verify};
use super::{Mount, window_of};
use crate::log::format::{LBA_CHECKPOINT, LBA_LIMIT, LBA_LINE_FIRST, LBA_SNAPSHOT};
use crate::patience::read_again;

/// A logical sector and where copies of it are that have the highest stamp.
type Copies = (u32, Vec<u32>);

/// The newest copy of a logical sector that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) stamp: u64,
    /// Physical sector; [`NIL`]: it reads as zeros from this stamp on.
    pub(super) at: u32,
}

pub(super) struct Found {
    /// Logical sectors of the host.
    pub(super) capacity: u64,
    /// Per logical sector, pages included.
    pub(super) newest: Vec<Claim>,
    /// Further copies with the stamp of the newest: (logical sector, stamp, physical sector).
    pub(super) equal: Vec<(u32, u64, u32)>,
    /// Largest stamp of a host's sector.
    pub(super) host_stamp: u64,
    pub(super) unreadable: BTreeSet<u32>,
    /// Newest copies of pages that can't be read, though their records could: so they are not torn.
    pub(super) lost_pages: BTreeSet<u32>,
    /// Per chunk: its last sector that is a copy of a host's sector, + 1. Pages do not count: those
    /// that say what is void are programmed before anything else, maybe behind a torn unit.
    pub(super) data_end: Vec<u32>,
    /// Per chunk: its last sector that is of a snapshot, + 1.
    pub(super) rest_end: Vec<u32>,
    /// Per chunk: its last sector that could be read, + 1.
    pub(super) good: Vec<u32>,
    /// Per chunk: what the others of its line say of it.
    pub(super) heard: Vec<Heard>,
    /// The record of a host's sector has a tag.
    pub(super) tagged: bool,
    /// Per line: largest stamp.
    pub(super) stamp_of_line: Vec<u64>,
    /// The first record that can't be ours: (physical sector, logical sector).
    pub(super) foreign: Option<(u32, u64)>,
}

impl Mount<'_> {
    /// Sectors of a chunk, from its first, that can be read.
    pub(super) fn readable(&self, line: u32, info: &ChunkInfo) -> u32 {
        let region = self.layout.of(line);
        match info.state {
            ChunkState::Free | ChunkState::Offline => 0,
            ChunkState::Closed => info.write_pointer,
            ChunkState::Open => {
                let behind = info.write_pointer.saturating_sub(window_of(region));
                behind / region.grain * region.grain
            }
        }
    }

    /// Reads the records of all written sectors.
    pub(super) async fn scan(&mut self, pages: u32, dump: Option<&Dump>) -> Found {
        let chunks = self.chunks.len();
        let none = Claim { stamp: 0, at: NIL };
        let found = Arc::new(Mutex::new(Found {
            capacity: self.capacity,
            newest: vec![none; self.capacity as usize + pages as usize],
            equal: Vec::new(),
            host_stamp: 0,
            unreadable: BTreeSet::new(),
            lost_pages: BTreeSet::new(),
            data_end: vec![0; chunks],
            rest_end: vec![0; chunks],
            good: vec![0; chunks],
            heard: vec![Heard::default(); chunks],
            tagged: false,
            stamp_of_line: vec![0; self.layout.lines as usize],
            foreign: None,
        }));
        let mut joins = Vec::new();
        for position in 0..self.layout.positions {
            let mut work = Vec::new();
            for line in self.layout.lines_at(position) {
                let info = &self.chunks[self.layout.chunk_index(line, position)];
                let leaving = dump.is_some_and(|d| d.leaving.contains(&line));
                let end = if leaving { 0 } else { self.readable(line, info) };
                if end > 0 {
                    work.push((line, end));
                }
            }
            self.report.scanned_sectors += work.iter().map(|(_, end)| *end as u64).sum::<u64>();
            let job =
                scan_chunks(self.cx.clone(), self.medium.clone(), position, work, found.clone());
            joins.push(self.cx.spawn_join(job));
        }
        for join in joins {
            join.await;
        }
        let found = Arc::into_inner(found).expect("all readers have ended");
        let mut found = found.into_inner();
        let failed: Vec<u32> = found.unreadable.iter().copied().collect();
        for (at, record) in records_again(self.cx, &self.medium, failed).await {
            found.unreadable.remove(&at);
            found.note(&self.layout, at, Some(record));
        }
        found
    }

    /// Where several copies have the highest stamp, one that verifies.
    pub(super) async fn choose_equal(&self, found: &mut Found) {
        let mut equal = found.equal.clone();
        if mutant!("kit.equal-not-verified") {
            equal.clear();
        }
        let user = |lba: u32| (lba as u64) < self.capacity;
        let at_top = |(lba, stamp, _): &(u32, u64, u32)| {
            user(*lba) && found.newest[*lba as usize].stamp == *stamp
        };
        let equal: Vec<_> = equal.into_iter().filter(at_top).collect();
        // Per logical sector its copies, the one that was found first in front.
        let mut copies: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (lba, _, at) in equal {
            copies.entry(lba).or_insert_with(|| vec![found.newest[lba as usize].at]).push(at);
        }
        let left = self.choose(found, copies.into_iter().collect()).await;
        read_again(self.cx, left, async |left| self.choose(found, left).await).await;
    }

    /// Takes for each of these logical sectors the first of its copies that verifies; returns those
    /// that have none.
    async fn choose(&self, found: &mut Found, copies: Vec<Copies>) -> Vec<Copies> {
        let mut left = copies;
        let most = left.iter().map(|(_, ats)| ats.len()).max().unwrap_or(0);
        for i in 0..most {
            let some: Vec<(u32, u32)> =
                left.iter().filter_map(|(lba, ats)| Some((*lba, *ats.get(i)?))).collect();
            let good = verify(self.cx, &self.medium, self.content_bytes, &some).await;
            let mut chosen = BTreeSet::new();
            for ((lba, at), _) in some.into_iter().zip(good).filter(|(_, good)| *good) {
                found.newest[lba as usize].at = at;
                chosen.insert(lba);
            }
            left.retain(|(lba, _)| !chosen.contains(lba));
        }
        left
    }

    /// Physical sectors that a dump holds the content of because they could not be read back yet, and
    /// that can be read now. To program them again would take the room that GC counts on: where
    /// windows are long, most of a chunk.
    pub(super) async fn readable_of(&self, found: &Found, dump: Option<&Dump>) -> BTreeSet<u32> {
        let newest = |lba: u32, stamp: u64, at: u32| {
            let claim = found.newest[lba as usize];
            (claim.stamp, claim.at) == (stamp, at)
        };
        let saved = dump.iter().flat_map(|d| &d.sectors);
        let there =
            saved.filter_map(|s| Some((s.lba, s.at.filter(|at| newest(s.lba, s.stamp, *at))?)));
        let there: Vec<(u32, u32)> = there.collect();
        let good = verify(self.cx, &self.medium, self.content_bytes, &there).await;
        there.iter().zip(good).filter(|(_, good)| *good).map(|((_, at), _)| *at).collect()
    }
}

/// Reads the records of one PU's chunks, (line, sectors) each.
async fn scan_chunks(
    cx: Cx,
    medium: Medium,
    position: u32,
    work: Vec<(u32, u32)>,
    found: Arc<Mutex<Found>>,
) {
    let layout = &medium.layout;
    for (line, end) in work {
        let mut from = 0;
        while from < end {
            let n = (end - from).min(VECTOR_MAX as u32);
            let place = |s: u32| layout.sector_at(line, position, s);
            let ats: Vec<u32> = (from..from + n).map(place).collect();
            let records = read_records(&cx, &medium, &ats).await;
            // A unit that a cut has torn gives neither record nor content: a record that can be read is
            // that of a program that had ended, also at the end of a chunk.
            let mut found = found.lock();
            ats.iter().zip(records).for_each(|(at, record)| found.note(layout, *at, record));
            drop(found);
            from += n;
        }
    }
}

impl Found {
    /// Takes in the record of a sector; `None`: it can't be read.
    pub(super) fn note(&mut self, layout: &Layout, at: u32, record: Option<Record>) {
        let (line, position, sector) = layout.in_chunk(at);
        let chunk = layout.chunk_index(line, position);
        // Of another FTL, or damaged: no copy of ours has such a stamp.
        let is_ours = |r: &Record| r.lba >= LBA_LIMIT || r.stamp <= STAMP_LAST;
        let Some(Record { lba, stamp, tag }) = record.filter(is_ours) else {
            self.unreadable.insert(at);
            return;
        };
        self.good[chunk] = self.good[chunk].max(sector + 1);
        if lba >= LBA_LIMIT {
            if (LBA_CHECKPOINT..=LBA_LINE_FIRST).contains(&lba) {
                self.foreign.get_or_insert((at, lba));
            }
            if lba == LBA_SNAPSHOT {
                self.rest_end[chunk] = self.rest_end[chunk].max(sector + 1);
            }
            return;
        }
        let host = lba < self.capacity;
        let Some(newest) = self.newest.get_mut(lba as usize) else {
            self.foreign.get_or_insert((at, lba));
            return;
        };
        if host {
            self.data_end[chunk] = self.data_end[chunk].max(sector + 1);
            self.host_stamp = self.host_stamp.max(stamp);
            self.tagged |= tag != 0;
        }
        let columns = layout.positions_of(line);
        let column = position - columns.start;
        if let Some(other) = Round::from(sector, column, columns.len() as u32).next() {
            self.heard[layout.chunk_index(line, columns.start + other)].note(tag);
        }
        let of_line = &mut self.stamp_of_line[line as usize];
        *of_line = (*of_line).max(stamp);
        if newest.at == NIL || stamp > newest.stamp || mutant!("kit.stamps-ignored") {
            *newest = Claim { stamp, at };
        } else if stamp == newest.stamp {
            self.equal.push((lba as u32, stamp, at));
        }
    }
}
