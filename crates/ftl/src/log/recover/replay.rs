//! The map from checkpoint, lines and log: per sector the highest claim counts.
//!
//! Owns: loading shards, the order of claims (FORMAT.md, section 10, step 8). Promises: a claim is compared
//! by stamp always; an entry of the checkpoint that leads nowhere becomes an error, never zeros or other
//! data. Never: writes to the medium.
//!
//! Memory: 8 bytes per logical sector of those 4096-sector pages that a replayed line or record touches;
//! nothing else grows with the target.

use super::super::HostFtl;
use super::super::format::{
    LBA_CHECKPOINT, LBA_LIMIT, ShardEntry, ShardView, pack_entry, unpack_entry,
};
use super::super::map::Entry;
use super::super::pool::PoolState;
use super::facts::{Checkpoint, Event, Facts, ShardPlace};
use super::scan::{Content, Place, Span};
use crate::layer::{LostCause, LostSectors};
use crate::patience::read_again;
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_ocssd::device::{ChunkInfo, ChunkState};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a shard says of all its sectors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    /// Where replay of the log begins.
    pub(super) position: u64,
    /// An unmapped entry is a tombstone at this stamp.
    floor: u64,
    /// Lines from this sequence on are replayed whole: what the shard says of them is void.
    pub(super) open_sequence: u64,
}

/// A claim on a sector: by stamp, then by [`Rank`]. Zero is no claim yet.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Claim(u64);

/// What decides between claims of one stamp.
#[derive(Clone, Copy)]
enum Rank {
    /// A copy whose content is bad.
    Unverified,
    Poison,
    Copy,
    Tombstone,
}

impl Claim {
    fn new(stamp: u64, rank: Rank) -> Claim {
        Claim(stamp << 2 | rank as u64)
    }
    fn is_known(self) -> bool {
        self.0 != 0
    }
    fn stamp(self) -> u64 {
        self.0 >> 2
    }
    fn is_unverified(self) -> bool {
        self.0 & 3 == Rank::Unverified as u64
    }
}

/// Logical sectors that are lost, in ascending order.
#[derive(Default)]
struct Lost {
    ranges: Vec<LostSectors>,
}

impl Lost {
    fn add(&mut self, lba: u64, cause: LostCause) {
        match self.ranges.last_mut() {
            Some(last) if last.cause == cause && last.first + last.count == lba => last.count += 1,
            _ => self.ranges.push(LostSectors { first: lba, count: 1, cause }),
        }
    }
}

impl HostFtl {
    /// By chunk, why what lies in it is lost, if it is.
    fn offline_chunks(&self) -> Vec<Option<LostCause>> {
        let per_pu = self.shape.chunks_per_pu;
        let of_pu = |pu| {
            let report = self.flash.device.chunk_report(pu, 0, per_pu);
            let is_offline = |info: &ChunkInfo| info.state == ChunkState::Offline;
            let is_dead = report.iter().all(is_offline);
            let cause = move |(chunk, info): (u32, ChunkInfo)| match (is_offline(&info), is_dead) {
                (false, _) => None,
                (true, true) => Some(LostCause::DeadPu(pu)),
                (true, false) => Some(LostCause::OfflineChunk { pu, chunk }),
            };
            (0..per_pu).zip(report).map(cause)
        };
        (0..self.shape.pus).flat_map(of_pu).collect()
    }
}

/// Sectors in a page of claims.
const PAGE: u64 = 4096;

/// The claims that won so far.
struct Claims {
    pages: Vec<Option<Box<[Claim]>>>,
}

impl Claims {
    fn new(capacity: u64) -> Claims {
        let mut pages = Vec::new();
        pages.resize_with(capacity.div_ceil(PAGE) as usize, || None);
        Claims { pages }
    }
    fn get(&self, lba: u64) -> Claim {
        let page = self.pages[(lba / PAGE) as usize].as_ref();
        page.map_or(Claim::default(), |page| page[(lba % PAGE) as usize])
    }
    fn of(&mut self, lba: u64) -> &mut Claim {
        let page = self.pages[(lba / PAGE) as usize]
            .get_or_insert_with(|| vec![Claim::default(); PAGE as usize].into());
        &mut page[(lba % PAGE) as usize]
    }
}

/// The state of a replay; the map itself is the target's.
pub(super) struct Replay<'a> {
    ftl: &'a HostFtl,
    bases: Vec<Base>,
    /// Stamps that shards list for single sectors.
    listed: BTreeMap<u64, u64>,
    claims: Claims,
    /// Sequence of the line that each chunk belongs to.
    sequences: Vec<u64>,
    /// Sectors that the checkpoint names in a unit whose records can't be read: of their stamps
    /// only the largest is known that there can be.
    bounded: BTreeSet<u64>,
    /// Of those, the ones of which there is another copy that may be older or newer.
    contested: BTreeSet<u64>,
    /// All that has a smaller stamp may have been lost in a newer copy.
    older: Option<u64>,
}

const NONE: u64 = 0;

impl<'a> Replay<'a> {
    pub(super) fn new(
        ftl: &'a HostFtl,
        facts: &Facts,
        FromCheckpoint { bases, listed, .. }: FromCheckpoint,
    ) -> Replay<'a> {
        let mut sequences = vec![NONE; ftl.flash.geo.chunks() as usize];
        for told in facts.lines.values() {
            told.chunks.iter().for_each(|c| sequences[*c as usize] = told.sequence);
        }
        Replay {
            ftl,
            bases,
            listed,
            claims: Claims::new(ftl.info.capacity),
            sequences,
            bounded: BTreeSet::new(),
            contested: BTreeSet::new(),
            older: None,
        }
    }

    /// Lowest sequence of a line that is replayed, and the lowest position in the log.
    pub(super) fn begins(&self) -> (u64, u64) {
        let line = self.bases.iter().map(|b| b.open_sequence);
        let line = match mutant!("log.replay-late-in-lines") {
            true => line.max().unwrap_or(0),
            false => line.min().unwrap_or(0),
        };
        let position = self.bases.iter().map(|b| b.position);
        let position = match mutant!("log.replay-late-in-log") {
            true => position.max().unwrap_or(0),
            false => position.min().unwrap_or(0),
        };
        (line, position)
    }

    fn base(&self, lba: u64) -> Base {
        self.bases[(lba / self.ftl.layout.shard_entries as u64) as usize]
    }

    fn sequence_of(&self, addr: u64) -> u64 {
        self.sequences[self.ftl.lines.chunk_of(addr).0 as usize]
    }

    /// The lines whose closing metadata must be asked for the stamps of sectors that the checkpoint
    /// names, since these sectors are claimed by others, too.
    pub(super) fn note_conflicts(
        &self,
        lbas: impl Iterator<Item = u64>,
        lines: &mut BTreeSet<u64>,
    ) {
        for lba in lbas.filter(|lba| *lba < self.ftl.info.capacity) {
            if let Entry::Media(addr) = self.ftl.map.get(lba) {
                let sequence = self.sequence_of(addr);
                if sequence != NONE && sequence < self.base(lba).open_sequence {
                    lines.insert(sequence);
                }
            }
        }
    }

    /// A line gives the stamps of those of its sectors that the checkpoint names.
    pub(super) fn give_stamps(&mut self, chunks: &[u32], content: &Content) {
        let width = chunks.len();
        for (i, entry) in content.entries.iter().enumerate() {
            let (lba, stamp) = unpack_entry(entry);
            if lba >= self.ftl.info.capacity {
                continue;
            }
            let addr = self.address(chunks, width, i);
            if self.ftl.map.get(lba) == Entry::Media(addr) {
                let rank = match content.unverified.contains(&(i as u32)) {
                    true => Rank::Unverified,
                    false => Rank::Copy,
                };
                *self.claims.of(lba) = Claim::new(stamp, rank);
            }
        }
    }

    /// Sectors that the checkpoint names in units of a line of which no record can be read: their
    /// stamps are at most `bound`. A copy elsewhere with a larger one is newer; with any other it
    /// is not known which of the two is.
    pub(super) fn bound_stamps(&mut self, lost: &[Place], bound: u64) {
        if lost.is_empty() {
            return;
        }
        let (unit, chunk_sectors) = (self.ftl.shape.unit, u64::from(self.ftl.shape.chunk_sectors));
        let sectors = lost.iter().flat_map(|(chunk, first)| {
            let first = u64::from(*chunk) * chunk_sectors + u64::from(*first);
            first..first + u64::from(unit)
        });
        let sectors: BTreeSet<u64> = sectors.collect();
        for lba in 0..self.ftl.info.capacity {
            if let Entry::Media(addr) = self.ftl.map.get(lba)
                && sectors.contains(&addr)
                && !self.claims.get(lba).is_known()
            {
                *self.claims.of(lba) = Claim::new(bound, Rank::Tombstone);
                self.bounded.insert(lba);
            }
        }
    }

    /// A claim that does not win over a sector of which only a bound is known: an error from now
    /// on.
    fn contest(&mut self, lba: u64) {
        if self.bounded.contains(&lba) && !mutant!("log.contested-served") {
            self.contested.insert(lba);
            self.set(lba, Entry::Poisoned);
        }
    }

    /// Sectors of which it is not known which copy is the newest.
    pub(super) fn contested(&self) -> usize {
        self.contested.len()
    }

    /// Units are lost, and nothing says which sectors they held: whatever may be older than a copy
    /// in them, of stamps up to `bound`, is an error until it is written or discarded.
    pub(super) fn poison_older(&mut self, bound: u64) {
        let floor = self.ftl.floor.load(Ordering::SeqCst);
        self.older = Some(bound);
        for lba in 0..self.ftl.info.capacity {
            let known = self.claims.get(lba);
            let is_newer = known.is_known() && known.stamp() > bound;
            if !is_newer && self.ftl.map.get(lba) != Entry::Poisoned {
                self.set(lba, Entry::Poisoned);
                *self.claims.of(lba) = Claim::new(floor, Rank::Poison);
            }
        }
    }

    /// Linear sector of the `i`-th in stripe order.
    fn address(&self, chunks: &[u32], width: usize, i: usize) -> u64 {
        let unit = self.ftl.shape.unit as usize;
        let (row, rest) = (i / (unit * width), i % (unit * width));
        let sector = row * unit + rest % unit;
        chunks[rest / unit] as u64 * self.ftl.shape.chunk_sectors as u64 + sector as u64
    }

    /// The claim that a sector has now, be it only the checkpoint's. An entry of the checkpoint into a
    /// line that is replayed, or into none, claims nothing.
    fn present(&mut self, lba: u64) -> Claim {
        let known = self.claims.get(lba);
        if known.is_known() {
            return known;
        }
        let base = self.base(lba);
        let listed = self.listed.get(&lba).copied();
        let listed = listed.filter(|_| !mutant!("log.listed-ignored"));
        let claim = match self.ftl.map.get(lba) {
            Entry::Unmapped if mutant!("log.tombstones-ignored") => Claim::new(0, Rank::Poison),
            Entry::Unmapped => Claim::new(listed.unwrap_or(base.floor), Rank::Tombstone),
            Entry::Poisoned => Claim::new(listed.unwrap_or(base.floor), Rank::Poison),
            Entry::Media(_) | Entry::Slot(_) => {
                self.set(lba, Entry::Unmapped);
                Claim::new(0, Rank::Poison)
            }
        };
        *self.claims.of(lba) = claim;
        claim
    }

    fn set(&self, lba: u64, entry: Entry) {
        let map = &self.ftl.map;
        let changed = map.exchange(lba, map.raw(lba), map.encode(entry));
        debug_assert!(changed, "nobody else is here");
    }

    /// A line's copies claim their sectors. Lines come in the order of their sequence.
    pub(super) fn claim_line(&mut self, chunks: &[u32], content: &Content) {
        let width = chunks.len();
        for (i, entry) in content.entries.iter().enumerate() {
            let (lba, stamp) = unpack_entry(entry);
            if lba >= LBA_LIMIT || lba >= self.ftl.info.capacity {
                continue;
            }
            let is_bad = content.unverified.contains(&(i as u32));
            let rank = match is_bad && !mutant!("log.bad-copy-wins-ties") {
                true => Rank::Unverified,
                false => Rank::Copy,
            };
            let claim = Claim::new(stamp, rank);
            // Equal claims: the later line, then the later stripe position: this one.
            let wins = claim >= self.present(lba) || mutant!("log.stamps-ignored");
            if wins {
                self.set(lba, Entry::Media(self.address(chunks, width, i)));
                *self.claims.of(lba) = claim;
            } else {
                self.contest(lba);
            }
        }
    }

    /// Discards and poisoned sectors that the checkpoint may not know.
    pub(super) fn claim_records(&mut self, discards: &[(u64, u64, u64)], poisons: &[Event]) {
        for (lba, end, stamp) in discards.iter().copied() {
            let claim = Claim::new(stamp, Rank::Tombstone);
            for lba in lba..end {
                if claim > self.present(lba) && !mutant!("log.discards-unreplayed") {
                    self.set(lba, Entry::Unmapped);
                    *self.claims.of(lba) = claim;
                } else {
                    self.contest(lba);
                }
            }
        }
        for poison in poisons.iter().filter(|p| p.lba < self.ftl.info.capacity) {
            let claim = Claim::new(poison.stamp, Rank::Poison);
            if claim > self.present(poison.lba) && !mutant!("log.poisons-unreplayed") {
                self.set(poison.lba, Entry::Poisoned);
                *self.claims.of(poison.lba) = claim;
            }
        }
    }

    /// The map is complete: valid bits, counts and poisons follow from it. Returns how many sectors
    /// lead nowhere, which is damage: they are errors from now on; and all sectors that are.
    pub(super) fn finish(self, clean: bool) -> (u64, Vec<LostSectors>) {
        let (ftl, mut astray) = (self.ftl, 0);
        let mut poisons = BTreeMap::new();
        let (mut lost, offline) = (Lost::default(), ftl.offline_chunks());
        for lba in 0..ftl.info.capacity {
            match ftl.map.get(lba) {
                Entry::Media(addr) => {
                    let sequence = match self.is_on_medium(addr) {
                        true => self.sequence_of(addr),
                        false => NONE,
                    };
                    let void = !mutant!("log.void-entries-kept")
                        && !clean
                        && !self.claims.get(lba).is_known()
                        && sequence >= self.base(lba).open_sequence;
                    if sequence == NONE || void || ftl.lines.is_valid(addr) {
                        self.set(lba, Entry::Poisoned);
                        poisons.insert(lba, ftl.floor.load(Ordering::SeqCst));
                        lost.add(lba, LostCause::MayBeOlder);
                        astray += 1;
                    } else {
                        ftl.lines.validate(addr, 1);
                        let (chunk, _) = ftl.lines.chunk_of(addr);
                        let place =
                            (chunk / ftl.shape.chunks_per_pu, chunk % ftl.shape.chunks_per_pu);
                        let claim = self.claims.get(lba);
                        if let Some(cause) = offline[chunk as usize] {
                            lost.add(lba, cause);
                        } else if claim.is_known() && claim.is_unverified() {
                            lost.add(lba, LostCause::Unreadable { pu: place.0, chunk: place.1 });
                        }
                    }
                }
                Entry::Poisoned => {
                    let claim = self.claims.get(lba);
                    let listed = || self.listed.get(&lba).copied().unwrap_or(self.base(lba).floor);
                    let stamp = if claim.is_known() { claim.stamp() } else { listed() };
                    poisons.insert(lba, stamp);
                    let is_new = self.older.is_some() || self.contested.contains(&lba);
                    lost.add(lba, if is_new { LostCause::MayBeOlder } else { LostCause::Noted });
                }
                Entry::Unmapped | Entry::Slot(_) => {}
            }
        }
        *ftl.poisons.lock() = poisons;
        (astray, lost.ranges)
    }

    fn is_on_medium(&self, addr: u64) -> bool {
        addr < self.ftl.flash.geo.sectors()
    }
}

/// Gives the entries of units of a line whose chunks are gone what the map says of them. Their
/// stamps are not known: as high as any of before, and no copy in a later life is below that.
pub(super) fn entries_of_map(ftl: &HostFtl, spans: &[Span], content: &mut Content, ceiling: u64) {
    let gone: BTreeSet<u32> = spans.iter().filter(|s| s.is_gone).map(|s| s.chunk).collect();
    let units = content.lost.iter().filter(|(chunk, _)| gone.contains(chunk));
    let units: BTreeSet<Place> = units.copied().collect();
    if units.is_empty() || mutant!("log.lost-entries-empty") {
        return;
    }
    let (unit, chunk_sectors) = (ftl.shape.unit, u64::from(ftl.shape.chunk_sectors));
    let column: BTreeMap<u32, usize> = spans.iter().map(|s| s.chunk).zip(0..).collect();
    for lba in 0..ftl.info.capacity {
        let Entry::Media(addr) = ftl.map.get(lba) else { continue };
        let (chunk, sector) = ((addr / chunk_sectors) as u32, (addr % chunk_sectors) as u32);
        if let Some(at) = column.get(&chunk)
            && units.contains(&(chunk, sector / unit * unit))
        {
            let i = PoolState::entry_index(&ftl.shape, spans.len(), *at, sector);
            content.entries[i] = pack_entry(lba, ceiling);
        }
    }
}

/// Ranges with the largest stamp that any of these discards has there, none over another:
/// (first, end, stamp).
pub(super) fn merge(discards: &[Event], capacity: u64) -> Vec<(u64, u64, u64)> {
    let mut edges: Vec<(u64, bool, u64)> = Vec::new();
    for d in discards {
        let (from, to) = (d.lba.min(capacity), d.lba.saturating_add(d.count).min(capacity));
        if from < to {
            edges.push((from, true, d.stamp));
            edges.push((to, false, d.stamp));
        }
    }
    edges.sort_unstable();
    let mut active: BTreeMap<u64, u32> = BTreeMap::new();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    let mut at = 0;
    for (edge, begins, stamp) in edges {
        let largest = match mutant!("log.smallest-discard") {
            true => active.first_key_value(),
            false => active.last_key_value(),
        };
        if let Some((stamp, _)) = largest
            && at < edge
        {
            match out.last_mut() {
                Some(last) if last.1 == at && last.2 == *stamp => last.1 = edge,
                _ => out.push((at, edge, *stamp)),
            }
        }
        at = edge;
        if begins {
            *active.entry(stamp).or_default() += 1;
        } else if let Some(n) = active.get_mut(&stamp) {
            *n -= 1;
            if *n == 0 {
                active.remove(&stamp);
            }
        }
    }
    out
}

/// A shard that was read: its base, its listed stamps.
type Loaded = (Base, Vec<(u64, u64)>);

/// Shards read at a time.
const AT_A_TIME: usize = 64;

/// What [`load`] found.
#[derive(Default)]
pub(super) struct FromCheckpoint {
    /// What each shard says of itself.
    pub(super) bases: Vec<Base>,
    /// Stamps that shards list for single sectors.
    pub(super) listed: BTreeMap<u64, u64>,
    /// Shards that came from nowhere.
    pub(super) missing: usize,
    /// Shards that came from the older checkpoint.
    pub(super) older: usize,
}

/// Loads the newest checkpoint into the map; a shard that neither of its copies gives comes from the
/// older one.
pub(super) async fn load(
    ftl: &Arc<HostFtl>,
    cx: &Cx,
    checkpoints: &[Checkpoint],
) -> FromCheckpoint {
    let per_shard = ftl.layout.shard_entries as u64;
    let shards = ftl.info.capacity.div_ceil(per_shard);
    let mut map = FromCheckpoint::default();
    let newest = checkpoints.first().map(|c| c.id);
    let candidates = |shard: u64| -> Vec<(u64, ShardPlace)> {
        let of = |c: &Checkpoint| Some((c.id, c.shards.get(shard as usize).copied()??));
        let kept = if mutant!("log.older-checkpoint-unread") { 1 } else { 2 };
        checkpoints.iter().take(kept).filter_map(of).collect()
    };
    let all: Vec<u64> = (0..shards).collect();
    for some in all.chunks(AT_A_TIME) {
        let tasks: Vec<_> = some
            .iter()
            .map(|shard| {
                let (ftl, their_cx, shard) = (ftl.clone(), cx.clone(), *shard);
                let candidates = candidates(shard);
                cx.spawn_join(async move {
                    for (id, place) in candidates {
                        let loaded = ftl.load_shard_over_time(&their_cx, (id, shard), &place);
                        if let Some(loaded) = loaded.await {
                            return Some((id, loaded));
                        }
                    }
                    None
                })
            })
            .collect();
        for task in tasks {
            match task.await {
                Some((id, (base, stamps))) => {
                    map.bases.push(base);
                    map.listed.extend(stamps);
                    map.older += usize::from(Some(id) != newest);
                }
                None => {
                    map.bases.push(Base::default());
                    map.missing += 1;
                }
            }
        }
    }
    map
}

impl HostFtl {
    /// One shard into the map; where neither copy can be read, they are tried again over time.
    async fn load_shard_over_time(
        &self,
        cx: &Cx,
        (id, shard): (u64, u64),
        place: &ShardPlace,
    ) -> Option<Loaded> {
        let mut loaded = self.load_shard(cx, id, shard, place).await;
        let chunks = place.places.map(|extent| extent.chunk);
        let is_hopeless = chunks.iter().all(|chunk| self.flash.is_hopeless(*chunk));
        if loaded.is_some() || is_hopeless || mutant!("log.shards-read-at-once") {
            return loaded;
        }
        read_again(cx, vec![()], async |left| {
            loaded = self.load_shard(cx, id, shard, place).await;
            if loaded.is_some() { Vec::new() } else { left }
        })
        .await;
        if loaded.is_none() {
            chunks.iter().for_each(|chunk| self.flash.give_up_on(*chunk));
        }
        loaded
    }

    /// One shard, from either copy, into the map.
    async fn load_shard(&self, cx: &Cx, id: u64, shard: u64, place: &ShardPlace) -> Option<Loaded> {
        let (lba, count) = (shard * self.layout.shard_entries as u64, u64::from(place.count));
        let is_other = place.lba != lba || lba + count > self.info.capacity;
        if is_other && !mutant!("log.shard-bounds-skipped") {
            return None;
        }
        let copies = if mutant!("log.one-shard-copy-read") { 1 } else { 2 };
        for extent in place.places.into_iter().take(copies) {
            let mut bytes = vec![0; extent.count as usize * SECTOR_BYTES];
            let at = (extent.chunk, extent.sector);
            if !self.flash.read_meta_again(cx, at, LBA_CHECKPOINT, &mut bytes).await {
                continue;
            }
            let Ok(view) = ShardView::decode(&bytes) else { continue };
            let h = view.header();
            let same = (h.uuid, h.checkpoint, u64::from(h.shard), h.lba, view.len() as u64)
                == (self.journal.uuid, place.written, shard, lba, count)
                || mutant!("log.shard-of-others");
            // No stamp lies above the ceiling that was durable when the shard was written (rule 6): a shard
            // with one is not what we wrote, whatever its checksum says.
            let ceiling = self.ceiling.load(Ordering::Acquire);
            let listed = view.stamps().map(|s| s.1).max().unwrap_or(0);
            let highest = h.floor.max(place.floor).max(listed);
            if !same || highest > ceiling && !mutant!("log.shard-above-ceiling") {
                continue;
            }
            for (lba, entry) in (lba..).zip(view.entries()) {
                let entry = match entry {
                    ShardEntry::Unmapped => continue,
                    ShardEntry::Poisoned => Entry::Poisoned,
                    ShardEntry::Media(addr) if addr >= self.flash.geo.sectors() => Entry::Poisoned,
                    ShardEntry::Media(addr) => Entry::Media(addr),
                };
                self.map.exchange(lba, 0, self.map.encode(entry));
            }
            // A shard that has not changed since an older checkpoint is as one of this checkpoint.
            let base = match place.written == id || mutant!("log.named-as-written") {
                true => (h.position, h.floor, h.open_sequence),
                false => (place.position, place.floor, place.open_sequence),
            };
            let (position, floor, open_sequence) = base;
            let base = Base { position, floor, open_sequence };
            return Some((base, view.stamps().collect()));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogConfig;
    use crate::log::format::PACKED_BYTES;
    use flashlane_base::Ns;
    use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
    use flashlane_rt::{CostTable, Virtual};

    /// Hole 43: closing metadata that a mount writes names what the map has in lost units of a
    /// chunk that is gone, with a stamp that is above any older copy's; of other chunks the records
    /// on the medium speak.
    #[test]
    fn closing_metadata_of_a_mount_names_what_is_gone() {
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        run.run(async move {
            let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(60);
            let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
            let config =
                LogConfig { over_provisioning_percent: 60, gc: false, ..LogConfig::qblk() };
            let ftl = HostFtl::create(&cx, ssd.expect("a device"), config).await.expect("fits");
            cx.sleep(Ns::from_ms(10)).await;
            let (gone, there, end) = (5, 65, ftl.shape.chunk_sectors);
            let span = |chunk: u32, is_gone: bool| {
                let (frontier, written) = (end, end);
                Span { chunk, end, pointer: end, frontier, written, is_gone }
            };
            let spans = [span(gone, true), span(there, false)];
            let at = |chunk: u32, sector: u32| u64::from(chunk * end + sector);
            for (lba, addr) in [(7, at(gone, 9)), (8, at(gone, 20)), (9, at(there, 9))] {
                let (old, new) = (ftl.map.raw(lba), ftl.map.encode(Entry::Media(addr)));
                assert!(ftl.map.exchange(lba, old, new));
            }
            let nothing = [0; PACKED_BYTES];
            let mut content = Content {
                entries: vec![nothing; 2 * end as usize],
                lost: vec![(gone, 8), (there, 8)],
                ..Content::default()
            };
            entries_of_map(&ftl, &spans, &mut content, 77);
            let named = (0..).zip(&content.entries).filter(|(_, entry)| **entry != nothing);
            let named: Vec<(usize, (u64, u64))> =
                named.map(|(i, entry)| (i, unpack_entry(entry))).collect();
            assert_eq!(named, [(PoolState::entry_index(&ftl.shape, 2, 0, 9), (7, 77))]);
        })
        .expect("no stall");
    }
}
