//! Chunks that give nothing back: the whole chunk, its PU, or all reads of this moment fail.
//!
//! Owns: [`Mount::find_blind`], the proof that a chunk with unreadable sectors can be read.
//! Promises: a unit counts as torn only in a chunk from which this mount could read something
//! *after* the unit's last read had failed, or which the device had closed early; where nothing was
//! readable this mount programs a unit of padding after the last one and reads that. After a
//! refused mount the next one comes to the same answer. Never: judges a unit.
//!
//! A torn program and a flushed unit that can't be read look the same. But a torn program harms one
//! unit, and what fails for a die, a chunk or a while hits all that the chunk has.

use flashlane_base::{VECTOR_MAX, mutant};
use flashlane_ocssd::device::{ChunkInfo, ChunkState};
use std::collections::{BTreeMap, BTreeSet};

use super::loss::RUN_ALONE;
use super::scan::Found;
use super::sectors::read_records;
use super::{Mount, pad_chunk};

/// Units of padding that are programmed in a chunk, one after the other, until one can be read: a
/// program may fail.
const PROBES: u32 = 3;

/// Chunks and positions of which the last read gave nothing.
#[derive(Default)]
pub(super) struct Blind {
    /// Chunks, (line, position) each.
    pub(super) chunks: BTreeSet<(u32, u32)>,
    /// Positions at which a sector could not be read any more that had been read before: what can't
    /// be read there says nothing of its chunk.
    pub(super) muted: BTreeSet<u32>,
}

impl Mount<'_> {
    /// Looks which chunks with unreadable sectors give nothing back; takes in what can be read by
    /// now in the others. `unnoted`: the scan has found no notes.
    pub(super) async fn find_blind(&mut self, found: &mut Found, unnoted: bool) -> Blind {
        let mut chunks: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for at in &found.unreadable {
            let (line, position, _) = self.layout.in_chunk(*at);
            chunks.entry((line, position)).or_default().push(*at);
        }
        let mut blind = BTreeSet::new();
        if mutant!("kit.blind-chunk-is-torn") {
            return Blind::default();
        }
        for (chunk, failed) in &chunks {
            if !self.gives_back(found, *chunk, failed).await {
                blind.insert(*chunk);
            }
        }
        for _ in 0..PROBES {
            self.probe(found, unnoted, &mut blind).await;
        }
        // Something else at the position first: only then do its chunks show that they are the
        // cause.
        let muted = self.find_muted(found, &blind).await;
        let mut still = BTreeSet::new();
        for chunk in blind {
            // The probes may have closed it: the next mount must say the same of it. On a device
            // with notes, tags outside this chunk say whether it holds what was flushed: `loss.rs`
            // decides by them.
            let decides = unnoted || mutant!("kit.closed-early-is-torn");
            let unprovable =
                decides && self.is_unprovable(found, chunk) && !muted.contains(&chunk.1);
            if !self.gives_back(found, chunk, &chunks[&chunk]).await && !unprovable {
                still.insert(chunk);
            }
        }
        for (_, failed) in chunks.into_iter().filter(|(chunk, _)| !still.contains(chunk)) {
            for part in failed.chunks(VECTOR_MAX) {
                self.read_probe(found, part).await;
            }
        }
        Blind { chunks: still, muted }
    }

    /// True if something can be read in this chunk now: its last sector that could be read, or,
    /// where none could, one of those that `failed`.
    async fn gives_back(
        &self,
        found: &Found,
        (line, position): (u32, u32),
        failed: &[u32],
    ) -> bool {
        let control = match found.good[self.chunk_index(line, position)].checked_sub(1) {
            Some(last) => vec![self.layout.sector_at(line, position, last)],
            None => failed[..failed.len().min(VECTOR_MAX)].to_vec(),
        };
        read_records(self.cx, &self.medium, &control).await.iter().any(Option::is_some)
    }

    /// Positions of these chunks at which the PU itself seems to fail. A sector of another chunk
    /// could be read and can't be now; or no other chunk ever gave one, and no power cut explains
    /// one of these chunks ([`Mount::is_uncut`]).
    async fn find_muted(&self, found: &Found, blind: &BTreeSet<(u32, u32)>) -> BTreeSet<u32> {
        let positions: BTreeSet<u32> = blind.iter().map(|(_, position)| *position).collect();
        let mut muted = BTreeSet::new();
        for position in positions {
            let at = |line: &u32| self.chunk_index(*line, position);
            let good = |line: &u32| found.good[at(line)] > 0 && !blind.contains(&(*line, position));
            let uncut = |line: &u32| self.is_uncut(*line, &self.chunks[at(line)]);
            let gives = match self.layout.lines_at(position).find(good) {
                Some(line) => self.gives_back(found, (line, position), &[]).await,
                None => !blind.iter().any(|(line, p)| *p == position && uncut(line)),
            };
            if !gives {
                muted.insert(position);
            }
        }
        muted
    }

    /// True if no power cut explains that nothing of this chunk can be read. Open: not even what
    /// this mount has just programmed there. Full: an earlier mount may have padded it to its end;
    /// only a torn erase would explain that, and the device reports no erase of it.
    fn is_uncut(&self, line: u32, info: &ChunkInfo) -> bool {
        let region = self.layout.of(line);
        let full = region.chunk_sectors > RUN_ALONE * region.unit
            && info.write_pointer == region.chunk_sectors;
        let never_erased = info.erases == 0 && !mutant!("kit.filled-chunk-is-torn");
        info.state == ChunkState::Open || full && never_erased
    }

    /// True if padding can't prove that this chunk is readable, and a cut may have left it so: the
    /// device closed it early, after a failed program. A chunk that gave a sector before and gives
    /// none now is blind all the same: a torn program harms one unit only. So is a full one: what a
    /// mount has programmed there as a proof is what a later mount would take for torn.
    fn is_unprovable(&self, found: &Found, (line, position): (u32, u32)) -> bool {
        let at = self.chunk_index(line, position);
        let info = &self.chunks[at];
        let region = self.layout.of(line);
        let full = region.chunk_sectors;
        let is_short = info.write_pointer < full
            || full <= RUN_ALONE * region.unit && mutant!("kit.short-chunk-is-torn");
        info.state == ChunkState::Closed && is_short && found.good[at] == 0
    }

    /// Programs a unit of padding in each of these chunks that is open and of which nothing could
    /// be read, all PUs at once. Takes out those of which something can be read since.
    async fn probe(&mut self, found: &mut Found, unnoted: bool, blind: &mut BTreeSet<(u32, u32)>) {
        let mut joins = Vec::new();
        for (line, position) in blind.iter() {
            let (region, at) = (self.layout.of(*line), self.chunk_index(*line, *position));
            let info = self.chunks[at];
            let from = info.write_pointer;
            let end = from + region.unit;
            // A full chunk looks like one whose erase was torn. So a probe fills only a short
            // chunk, which has no unit to spare, and, if there are no notes, one in the native
            // mode: nothing there was erased yet.
            let full = region.chunk_sectors;
            let is_short = full <= RUN_ALONE * region.unit;
            let last = is_short || unnoted && !self.layout.is_slc(*line);
            let fits = end < full || end == full && last;
            if info.state == ChunkState::Open && found.good[at] == 0 && fits {
                let due = (*line, from, end);
                let job = pad_chunk(self.cx.clone(), self.medium.clone(), *position, due);
                let before = self.readable(*line, &info);
                joins.push(((*line, *position), before, self.cx.spawn_join(job)));
            }
        }
        if joins.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        for (chunk, before, join) in joins {
            let (padded, failed) = join.await;
            self.padded = (self.padded.0 + padded.0, self.padded.1 + padded.1);
            self.failed.extend(failed);
            ended.push((chunk, before));
        }
        self.take_stock();
        for ((line, position), before) in ended {
            let end = self.readable(line, &self.chunks[self.chunk_index(line, position)]);
            let sectors = (before..end).map(|s| self.layout.sector_at(line, position, s));
            for part in sectors.collect::<Vec<_>>().chunks(VECTOR_MAX) {
                self.read_probe(found, part).await;
            }
            if found.good[self.chunk_index(line, position)] > 0 {
                blind.remove(&(line, position));
            }
        }
    }

    /// Reads records of these sectors, a vector at most, and takes in what it gets.
    async fn read_probe(&self, found: &mut Found, ats: &[u32]) {
        let records = read_records(self.cx, &self.medium, ats).await;
        for (at, record) in ats.iter().zip(records) {
            if record.is_some() {
                found.unreadable.remove(at);
            }
            found.note(&self.layout, *at, record);
        }
    }
}
