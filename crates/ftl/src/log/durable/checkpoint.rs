//! Copies of the map on the medium, so that the log can be cut.
//!
//! Owns: writing shards, which of them need not be written again, the two checkpoints that are kept,
//! cutting the log behind the older one.
//! Promises: a checkpoint counts only once `complete` is durable; the log is cut only behind the
//! older of two complete ones (FORMAT.md rule 16); a buffered sector is stored with its last
//! durable address (rule 3); each shard records where a replay begins and its floor (rules 5, 11); a shard
//! that is named where an older checkpoint wrote it is what a fresh copy would be, and its chunks are kept
//! (rule 24).
//! Never: stops writers; a shard is a fuzzy copy taken while they go on.

use crate::block::{BlockError, BlockResult};
use crate::log::HostFtl;
use crate::log::create::{LANE_SECTORS, Layout};
use crate::log::format::{Extent, LBA_CHECKPOINT, LBA_PADDING, Record, Runs, ShardHeader, Stripes};
use crate::log::front::SECTION;
use crate::log::lines::NO_LINE;
use crate::log::map::Entry;
use crate::log::pool::{LineState, Tell};
use crate::log::slab::POISONED;
use flashlane_base::{Ns, SECTOR_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::sync::{Ordering, hesitate};
use flashlane_rt::{Credits, Cx};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A complete checkpoint that is kept.
pub(in crate::log) struct Complete {
    position: u64,
    /// Sequence of the next line when it began.
    next_line: u64,
    /// Those that it names, and those that it took.
    pub(in crate::log) chunks: BTreeSet<u32>,
}

/// Where a shard is, and in which checkpoint it was written.
#[derive(Clone, Copy, Default)]
struct Written {
    checkpoint: u64,
    places: [Extent; 2],
}

/// What the newest checkpoint of this life leaves to the next. Of none, of one that failed and of one that
/// an older life wrote there is nothing: the next one writes everything.
#[derive(Default)]
struct Last {
    shards: Vec<Written>,
    lanes: Vec<[Copy; 2]>,
}

impl Last {
    /// The chunks of all shards.
    fn named(&self) -> BTreeSet<u32> {
        self.shards.iter().flat_map(|shard| shard.places).map(|place| place.chunk).collect()
    }

    /// Chunks more that so many shards may take on so many lanes.
    fn need(&self, shards: usize, lanes: usize, layout: &Layout, chunk_sectors: u32) -> u64 {
        let (longest, listed) = (u64::from(layout.shard_sectors), u64::from(layout.listed_sectors));
        let chunk = u64::from(chunk_sectors);
        let of_lane = |lane: usize| {
            let shards = (shards + lanes - 1 - lane) / lanes;
            let sectors = if shards == 0 { 0 } else { shards as u64 * longest + listed };
            let fresh = sectors.div_ceil(chunk.saturating_sub(longest).max(1)).min(shards as u64);
            let has_room =
                |copy: &Copy| copy.chunk.is_some() && copy.cursor as u64 + sectors <= chunk;
            let copies = self.lanes.get(lane).map(|copies| copies.each_ref().map(has_room));
            let without = copies.unwrap_or_default().into_iter().filter(|room| !room).count();
            fresh * without as u64
        };
        (0..lanes).map(of_lane).sum()
    }
}

/// What checkpoints remember between runs.
pub(in crate::log) struct Checkpoints {
    pub(in crate::log) turn: Credits,
    pub(in crate::log) kept: flashlane_rt::sync::Mutex<Vec<Complete>>,
    last: flashlane_rt::sync::Mutex<Last>,
    pub(in crate::log) next: flashlane_rt::sync::AtomicU64,
}

impl Checkpoints {
    pub(in crate::log) fn new() -> Checkpoints {
        Checkpoints {
            turn: Credits::new(1),
            kept: flashlane_rt::sync::Mutex::new(Vec::new()),
            last: flashlane_rt::sync::Mutex::new(Last::default()),
            next: flashlane_rt::sync::AtomicU64::new(1),
        }
    }

    /// The complete ones that recovery found, oldest first: (position, next line, chunks). `next` is
    /// the id of the next one.
    pub(in crate::log) fn resume(
        &self,
        kept: impl Iterator<Item = (u64, u64, BTreeSet<u32>)>,
        next: u64,
    ) {
        let complete = |(position, next_line, chunks)| Complete { position, next_line, chunks };
        *self.kept.lock() = kept.map(complete).collect();
        self.next.store(next, Ordering::Release);
    }
}

/// One of the two copies: where its next shard goes, be it of the next checkpoint.
#[derive(Default)]
struct Copy {
    chunk: Option<u32>,
    cursor: u32,
    /// This checkpoint has written to it.
    is_written: bool,
    /// Chunks that this checkpoint took.
    taken: Vec<u32>,
    /// Chunks that it wrote to and left, and where.
    left: Vec<(u32, u32)>,
}

impl Copy {
    /// Up to where each chunk is written that this checkpoint wrote to.
    fn ends(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let last = self.chunk.map(|chunk| (chunk, self.cursor)).filter(|_| self.is_written);
        self.left.iter().copied().chain(last)
    }

    /// Does its chunk hold so many bytes more?
    fn has_room(&self, bytes: usize, chunk_sectors: u32) -> bool {
        let count = (bytes / SECTOR_BYTES) as u32;
        self.chunk.is_some() && self.cursor + count <= chunk_sectors
    }
}

/// What a lane has written.
struct Lane {
    /// Bytes of its records.
    own: usize,
    /// Where a replay begins for it.
    position: u64,
    written: Vec<(u64, Written)>,
    copies: [Copy; 2],
}

/// What is true of a shard whose entries are looked at behind it.
#[derive(Clone, Copy)]
struct Base {
    position: u64,
    open_sequence: u64,
    floor: u64,
}

impl HostFtl {
    /// Checkpoints whenever a quarter of the log was written since the last, until the target
    /// stops: the log reaches back to the older of two, so it holds half, and room for what is
    /// written meanwhile.
    pub(in crate::log) async fn checkpoint_loop(self: Arc<Self>, cx: Cx) {
        loop {
            let due = || self.journal.is_thin() || self.journal.is_full(self.log_quarter());
            let wanted = || self.is_stopping() || self.read_only() || due();
            self.pool_changed.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            self.close_oldest(&cx);
            if self.checkpoint(&cx).await.is_err() {
                return;
            }
        }
    }

    /// Closes the oldest open line if it was open before the older of the two checkpoints that are
    /// kept: the log is more than half full then, its cut is going to pass the line's records, and a
    /// replay would begin at that line for ever (FORMAT.md rule 20). One at a time, while another can
    /// take its place, and not under GC's levels, where lines fill and close by themselves: the
    /// padding is no part of the reserve.
    fn close_oldest(&self, cx: &Cx) {
        let before = {
            let kept = self.checkpoints.kept.lock();
            (kept.len() == 2).then(|| kept[0].next_line)
        };
        let Some(before) = before.filter(|_| !mutant!("log.oldest-line-open")) else { return };
        for pool in self.pools.iter().filter(|pool| !pool.collector.is_wanted()) {
            let oldest = {
                let mut p = pool.lock();
                let old = |line: &u32| p.line(*line).sequence < before;
                let oldest = p.current.filter(old).filter(|_| p.spare.is_some());
                oldest.inspect(|line| p.stop_filling(*line))
            };
            if let Some(line) = oldest {
                self.close_if_ready(cx, line);
                self.pool_changed.wake(cx);
            }
        }
    }

    /// Writes one checkpoint and cuts the log behind the one before it. Returns its id.
    pub(in crate::log) async fn checkpoint(&self, cx: &Cx) -> Result<u64, BlockError> {
        self.checkpoint_in_turn(cx, false).await
    }

    /// A checkpoint that names nothing of older ones.
    pub(in crate::log) async fn checkpoint_anew(&self, cx: &Cx) -> Result<u64, BlockError> {
        self.checkpoint_in_turn(cx, !mutant!("log.decayed-shards-kept")).await
    }

    async fn checkpoint_in_turn(&self, cx: &Cx, anew: bool) -> Result<u64, BlockError> {
        self.checkpoints.turn.acquire(cx, 1).await;
        let written = self.write_checkpoint(cx, anew).await;
        self.checkpoints.turn.release(cx, 1);
        written
    }

    async fn write_checkpoint(&self, cx: &Cx, anew: bool) -> Result<u64, BlockError> {
        let id = self.checkpoints.next.fetch_add(1, Ordering::AcqRel);
        self.journal.mark();
        // There is room in the log again.
        self.pool_changed.wake(cx);
        let next_line = self.pools.next_sequence();
        let (base, mut last, changed) = self.choose_shards(cx, anew).await;
        let shards = self.shards();
        let me = self.me.upgrade().expect("whoever writes a checkpoint holds the target");
        let lanes = self.lanes_for(changed.len());
        last.shards.resize(shards as usize, Written::default());
        last.lanes.resize_with(lanes.max(last.lanes.len()), Default::default);
        let tasks: Vec<_> = (0..lanes)
            .map(|lane| {
                let (me, their_cx) = (me.clone(), cx.clone());
                let copies = std::mem::take(&mut last.lanes[lane]);
                let shards: Vec<u64> = changed.iter().copied().skip(lane).step_by(lanes).collect();
                me.task_began();
                cx.spawn_join(async move {
                    let written = me.write_lane(&their_cx, id, shards, copies).await;
                    me.task_ended(&their_cx);
                    written
                })
            })
            .collect();
        // Bytes of the checkpoint's own records.
        let mut own = 0;
        let mut position = base.position;
        let (mut chunks, mut failed) = (BTreeSet::new(), None);
        for (at, task) in tasks.into_iter().enumerate() {
            match task.await {
                Ok(mut lane) => {
                    own += lane.own;
                    position = position.min(lane.position);
                    for (shard, written) in lane.written {
                        last.shards[shard as usize] = written;
                    }
                    for copy in &mut lane.copies {
                        copy.left.clear();
                        copy.is_written = false;
                        chunks.extend(copy.taken.drain(..));
                    }
                    last.lanes[at] = lane.copies;
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)?;
        own += self.name_older(id, base, &last.shards);
        // The shards name places; `complete` makes them count instead of the ones before.
        if !mutant!("log.checkpoint-unsettled") {
            self.settle_device(cx).await?;
        }
        own += self.carry_forward();
        let complete =
            Record::CheckpointComplete { checkpoint: id, shards: shards as u32, position };
        let at = self.journal.append(complete);
        if !mutant!("log.complete-later") {
            self.commit(cx, at).await?;
        }
        self.journal.set_carried(own.div_ceil(self.segment_bytes()) as u64);
        let named = last.named();
        // In a chunk that nothing names any more the next checkpoint writes no further: it comes back.
        for copy in last.lanes.iter_mut().flatten() {
            let is_named = |chunk: &u32| named.contains(chunk) || mutant!("log.unnamed-goes-on");
            copy.chunk = copy.chunk.filter(is_named);
        }
        chunks.extend(named);
        *self.checkpoints.last.lock() = last;
        self.keep(cx, Complete { position, next_line, chunks }).await?;
        self.pool_moved(cx);
        Ok(id)
    }

    fn shards(&self) -> u64 {
        self.info.capacity.div_ceil(self.layout.shard_entries as u64)
    }

    /// Lanes that write so many shards.
    fn lanes_for(&self, shards: usize) -> usize {
        let sectors = shards as u64 * u64::from(self.layout.shard_sectors);
        (sectors / LANE_SECTORS).clamp(1, u64::from(self.layout.checkpoint_lanes)) as usize
    }

    /// The shards that have changed since they were written, and what is true of the others. All, where the
    /// chunks that the others are in, and those that are written now, may be more than a whole checkpoint
    /// takes: the reserve is for three of those (FORMAT.md rule 24).
    async fn choose_shards(&self, cx: &Cx, anew: bool) -> (Base, Last, Vec<u64>) {
        let last = std::mem::take(&mut *self.checkpoints.last.lock());
        let mut base = self.base();
        // Whoever changed an entry before has marked its shard.
        if !mutant!("qblk.marks-without-waiting") {
            self.sections.synchronize(cx).await;
        }
        hesitate();
        let marked = || (0..self.shards()).filter(|s| self.map.is_marked(*s)).collect();
        let changed: Vec<u64> = match self.map.is_exclusive() {
            true => self.map.lock.with(cx, Ns::ZERO, |_| marked()).await,
            false => marked(),
        };
        hesitate();
        if mutant!("log.named-base-late") {
            base = self.base();
        }
        let (lanes, chunk) = (self.lanes_for(changed.len()), self.shape.chunk_sectors);
        let open = last.lanes.iter().flatten().filter_map(|copy| copy.chunk);
        let pinned = last.named().into_iter().chain(open).collect::<BTreeSet<_>>().len() as u64;
        let most = pinned + last.need(changed.len(), lanes, &self.layout, chunk);
        let fits = most <= self.layout.checkpoint_chunks || mutant!("log.pins-unbounded");
        if anew || last.shards.is_empty() || !fits {
            return (base, Last::default(), (0..self.shards()).collect());
        }
        (base, last, changed)
    }

    /// What is true now. Position first, the floor last before the entries (FORMAT.md, hole 3).
    fn base(&self) -> Base {
        let position = self.journal.next_sequence();
        let open_sequence = self.pools.lowest_open_sequence();
        Base { position, open_sequence, floor: self.floor.load(Ordering::SeqCst) }
    }

    /// Records of the shards that have not changed since an older checkpoint wrote them. They say what is true
    /// of them now: a copy would be the same. Returns their bytes.
    fn name_older(&self, id: u64, base: Base, shards: &[Written]) -> usize {
        let per_shard = self.layout.shard_entries as u64;
        let mut bytes = 0;
        for (shard, Written { checkpoint, places }) in (0..).zip(shards) {
            if *checkpoint == id {
                continue;
            }
            let lba = shard * per_shard;
            let record = Record::CheckpointShard {
                checkpoint: id,
                written: *checkpoint,
                shard: shard as u32,
                lba,
                count: per_shard.min(self.info.capacity - lba) as u32,
                places: *places,
                position: base.position,
                floor: base.floor,
                open_sequence: base.open_sequence,
            };
            bytes += record.encoded_len();
            self.journal.append(record);
        }
        bytes
    }

    /// Writes some of the shards, one after the other.
    async fn write_lane(
        &self,
        cx: &Cx,
        id: u64,
        shards: Vec<u64>,
        mut copies: [Copy; 2],
    ) -> Result<Lane, BlockError> {
        let (mut own, mut position, mut written) = (0, u64::MAX, Vec::new());
        let per_shard = self.layout.shard_entries as u64;
        for shard in shards {
            let (header, bytes, count) = self.build_shard(cx, id, shard, per_shard).await;
            position = position.min(header.position);
            let places = self.place_twice(cx, &mut copies, bytes.into(), id).await?;
            let record = Record::CheckpointShard {
                checkpoint: id,
                written: id,
                shard: shard as u32,
                lba: header.lba,
                count,
                places,
                position: header.position,
                floor: header.floor,
                open_sequence: header.open_sequence,
            };
            own += record.encoded_len();
            self.journal.append(record);
            written.push((shard, Written { checkpoint: id, places }));
        }
        self.close_ends(cx, &mut copies, id).await;
        Ok(Lane { own, position, written, copies })
    }

    /// Closes the page pairs at the end of each chunk, all at a time: a mount pads there, both copies of
    /// both checkpoints, and when that is cut it may take no shard along (FORMAT.md, hole 38). A chunk
    /// that fails now is written no more.
    async fn close_ends(&self, cx: &Cx, copies: &mut [Copy; 2], id: u64) {
        if self.shape.pair_pads == 0 || mutant!("log.checkpoint-ends-open") {
            return;
        }
        let me = self.me.upgrade().expect("whoever writes a checkpoint holds the target");
        let zeros: Arc<[u8]> = vec![0; self.shape.pair_pads as usize * SECTOR_BYTES].into();
        let pads: Vec<_> = copies
            .iter()
            .flat_map(Copy::ends)
            .map(|at| {
                let (me, their_cx, zeros) = (me.clone(), cx.clone(), zeros.clone());
                let n = me.shape.pair_pads.min(me.shape.chunk_sectors - at.1);
                let padded = cx.spawn_join(async move {
                    let (bytes, tag) = (&zeros[..n as usize * SECTOR_BYTES], (LBA_PADDING, id));
                    me.program_meta(&their_cx, at, bytes, tag, Cause::PaddingPair).await
                });
                (at.0, n, padded)
            })
            .collect();
        for (chunk, n, padded) in pads {
            let is_good = padded.await;
            for copy in copies.iter_mut().filter(|copy| copy.chunk == Some(chunk)) {
                copy.cursor += n;
                copy.chunk = copy.chunk.filter(|_| is_good);
            }
        }
    }

    /// Records that stay true although the log before this checkpoint is going to be cut: the
    /// configuration, bad chunks, the ceiling, every line there is, and what is told of open ones
    /// (FORMAT.md, hole 21). Returns their bytes.
    fn carry_forward(&self) -> usize {
        let (mut bytes, mut told) = (0, 0);
        let mut append = |record: Record| {
            bytes += record.encoded_len();
            self.journal.append(record);
        };
        if !mutant!("log.config-uncarried") {
            append(Record::Config { bytes: self.config.lock().clone() });
        }
        let asked = self.ceiling_asked.load(Ordering::SeqCst);
        let asked = if mutant!("log.asked-ceiling-uncarried") { 0 } else { asked };
        if !mutant!("log.ceiling-uncarried") {
            append(Record::Ceiling { stamp: self.stamp_ceiling().max(asked) });
        }
        for pool in self.pools.iter() {
            let mut p = pool.lock();
            let none = usize::from(mutant!("log.retired-uncarried")) * p.retired_chunks.len();
            let none = none.max(mutant!("log.one-retired-uncarried").into());
            for chunk in p.retired_chunks.iter().copied().skip(none) {
                append(Record::Retired { chunk });
            }
            for (line, l) in p.lines() {
                let sequence = l.sequence;
                if l.gone && !mutant!("log.gone-bad-chunks-uncarried") {
                    l.retire.iter().for_each(|chunk| append(Record::Retired { chunk: *chunk }));
                }
                // Not yet in the log; one that is may be cut off while its opener waits to go on (hole 40).
                let unrecorded = l.state == LineState::Opening
                    && (l.chunks.is_empty() || mutant!("log.opening-uncarried"));
                // Nor one whose `freed` is in the log: that may be cut before this (FORMAT.md, hole 26).
                let gone = l.gone && !mutant!("log.gone-carried");
                if l.state == LineState::Free || unrecorded || gone {
                    continue;
                }
                if mutant!("log.opened-uncarried") {
                    continue;
                }
                append(Record::Opened { line, sequence, chunks: l.chunks.clone() });
                let has_frontier = !l.frontier.is_empty() && !mutant!("log.frontier-uncarried");
                if has_frontier && (!l.logged || l.closing.is_empty()) {
                    append(Record::Frontier { line, sequence, pointers: l.frontier.clone() });
                }
                if l.logged && !mutant!("log.closed-uncarried") {
                    append(self.closed_record(line, sequence, &l.closing));
                }
            }
            for line in p.unsaid() {
                told += self.tell_line(&mut p, line, Tell::Again);
            }
        }
        bytes + told
    }

    /// Keeps this checkpoint and the one before; gives up the one before that, and the log that
    /// only it needed.
    async fn keep(&self, cx: &Cx, complete: Complete) -> BlockResult {
        // Everything the log has to say is in pairs with two good mirrors again once the older of
        // two checkpoints lies behind the failure; until then each checkpoint brings it nearer.
        self.journal.set_thin(false);
        let (mut give_back, cut) = {
            let mut kept = self.checkpoints.kept.lock();
            kept.push(complete);
            let most = if mutant!("log.one-checkpoint") { 1 } else { 2 };
            let mut old = if kept.len() > most { kept.remove(0).chunks } else { BTreeSet::new() };
            // What a younger one names is needed.
            if !mutant!("log.named-chunks-given-back") {
                old.retain(|chunk| kept.iter().all(|other| !other.chunks.contains(chunk)));
            }
            let old: Vec<u32> = old.into_iter().collect();
            let behind = usize::from(mutant!("log.cut-behind-newest"));
            (old, (kept.len() == 2).then(|| kept[behind].position))
        };
        if let Some(position) = cut {
            give_back.extend(self.cut_journal(cx, position).await?);
        }
        self.give_meta_back(&give_back);
        Ok(())
    }

    /// A fuzzy copy of one shard's entries.
    async fn build_shard(
        &self,
        cx: &Cx,
        id: u64,
        shard: u64,
        per_shard: u64,
    ) -> (ShardHeader, Vec<u8>, u32) {
        let width = self.layout.entry_width;
        let lba = shard * per_shard;
        let count = per_shard.min(self.info.capacity - lba);
        let base = self.base();
        let mut header = ShardHeader {
            uuid: self.journal.uuid,
            checkpoint: id,
            shard: shard as u32,
            width,
            lba,
            position: base.position,
            floor: if mutant!("log.shard-without-floor") { 0 } else { base.floor },
            open_sequence: base.open_sequence,
            generation: self.journal.generation,
        };
        // What changes from now on marks it again, and what has changed is seen behind the sections that
        // are under way.
        let marks_late = mutant!("log.mark-taken-late");
        if !marks_late && !self.map.is_exclusive() {
            self.map.take_mark(shard);
        }
        // Whoever read a lower floor has published: a sector that is found unmapped now is a tombstone at
        // the floor, and what is written to it later lies above that (FORMAT.md, hole 39).
        if !mutant!("qblk.shard-without-waiting") {
            self.sections.synchronize(cx).await;
        }
        hesitate();
        let (mut words, mut stamps, mut is_buffered) = (Vec::new(), Vec::new(), false);
        let mut copy = |from: u64, count: u64| {
            self.map.copy_words(from, count, &mut words, |at, entry| {
                is_buffered |= matches!(entry, Entry::Slot(_));
                let (word, stamp) = self.word_of(at, entry, header.floor);
                stamps.extend(stamp.map(|stamp| (at, stamp)));
                word
            });
        };
        let cost = self.costs.map_copy.times(count);
        if self.map.is_exclusive() {
            let section = |_: &mut ()| {
                if !marks_late {
                    self.map.take_mark(shard);
                }
                copy(lba, count);
            };
            self.map.lock.with(cx, cost, section).await;
        } else {
            cx.cpu(cost).await;
            for from in (lba..lba + count).step_by(SECTION as usize) {
                let _inside = self.sections.enter(cx);
                copy(from, SECTION.min(lba + count - from));
            }
        }
        hesitate();
        if marks_late {
            self.map.take_mark(shard);
        }
        // What is durable below a slot changes without its entry.
        if is_buffered && !mutant!("log.buffered-shard-kept") {
            self.map.mark(shard);
        }
        if mutant!("log.shard-position-last") {
            header.position = self.journal.next_sequence();
        }
        if mutant!("log.shard-lines-last") {
            header.open_sequence = self.pools.next_sequence();
        }
        if mutant!("log.shard-floor-last") {
            header.floor = self.floor.load(Ordering::SeqCst);
        }
        let write = self.flash.geo.ws_min as usize * SECTOR_BYTES;
        let mut bytes = match self.runs_of(&words, stamps.len(), write) {
            Some(runs) => header.encode_runs(&runs, &stamps),
            None => header.encode_words(&words, &stamps),
        };
        bytes.resize(bytes.len().next_multiple_of(write), 0);
        (header, bytes, count as u32)
    }

    /// The runs of a shard's entries where they save at least a write of `write` bytes.
    fn runs_of(&self, words: &[u8], stamps: usize, write: usize) -> Option<Runs> {
        let (width, unit) = (self.layout.entry_width, self.shape.unit);
        let entries = words.len() / width.bytes();
        let plain = ShardHeader::encoded_len(width, entries, stamps).next_multiple_of(write);
        let frame = ShardHeader::encoded_len(width, 0, stamps);
        let most = plain.checked_sub(write + frame)?;
        let stripes = Stripes { unit, chunk_sectors: self.shape.chunk_sectors };
        Runs::find(words, width, stripes, most, |chunk| {
            let first = u64::from(chunk) * u64::from(self.shape.chunk_sectors);
            let line = (first < self.flash.geo.sectors()).then(|| self.lines.line_of(first))?;
            let pool = (line != NO_LINE).then(|| self.pools.of_line(line))?;
            Some(pool.lock().line(line).chunks.clone())
        })
    }

    /// What a shard stores for an entry that names no place on the medium, and a stamp that is listed.
    /// A poisoned one at the floor or below is one at the floor: nothing between them is alive.
    fn word_of(&self, lba: u64, mut entry: Entry, floor: u64) -> (u64, Option<u64>) {
        loop {
            match entry {
                // The last durable copy, never the slot (rule 3). Where there is none, a tombstone
                // below every slot that may become durable, since others' discards may have raised
                // the floor above them.
                Entry::Slot(slot) => match self.slab.prev(slot) {
                    (0, _) if mutant!("log.tombstone-unlisted") => return (0, None),
                    (prev @ (0 | POISONED), stamp) => return (prev, Some(stamp)),
                    _ if mutant!("log.buffered-unmapped") => return (0, None),
                    (prev, _) => return (prev, None),
                },
                Entry::Poisoned => match self.poisons.lock().get(&lba) {
                    Some(stamp) => return (POISONED, Some(*stamp).filter(|s| *s > floor)),
                    None if self.map.is_exclusive() => return (POISONED, Some(0)),
                    None => {}
                },
                // Only where the entry has changed since.
                Entry::Unmapped | Entry::Media(_) => return (self.map.encode(entry), None),
            }
            // It was written or discarded meanwhile.
            entry = self.map.get(lba);
        }
    }

    /// Programs both copies of a shard, side by side; each takes its chunk with an eye to the other's.
    async fn place_twice(
        &self,
        cx: &Cx,
        copies: &mut [Copy; 2],
        bytes: Arc<[u8]>,
        id: u64,
    ) -> Result<[Extent; 2], BlockError> {
        let me = self.me.upgrade().expect("whoever writes a checkpoint holds the target");
        let pu = |copy: &Copy| copy.chunk.map(|c| c / self.shape.chunks_per_pu);
        let mut tasks = Vec::new();
        for i in 0..2 {
            let not = pu(&copies[1 - i]);
            let mut copy = std::mem::take(&mut copies[i]);
            // Where a chunk is to be taken, the other copy's next one is not known yet: one by one.
            if !copy.has_room(bytes.len(), self.flash.geo.sectors_per_chunk()) {
                self.take_chunk(cx, &mut copy, not).await?;
            }
            copies[i] = copy;
        }
        for i in 0..2 {
            let not = pu(&copies[1 - i]);
            let mut copy = std::mem::take(&mut copies[i]);
            let (me, their_cx, bytes) = (me.clone(), cx.clone(), bytes.clone());
            tasks.push(cx.spawn_join(async move {
                let place = me.place_shard(&their_cx, &mut copy, not, &bytes, id).await;
                (copy, place)
            }));
        }
        let mut places = [Ok(Extent::default()), Ok(Extent::default())];
        for (i, task) in tasks.into_iter().enumerate() {
            (copies[i], places[i]) = task.await;
        }
        let [a, b] = places;
        Ok([a?, b?])
    }

    /// A fresh chunk for a copy, on another PU than `not` where there is one.
    async fn take_chunk(&self, cx: &Cx, copy: &mut Copy, not: Option<u32>) -> BlockResult {
        let Some(chunk) = self.fresh_meta_chunk(cx, not).await else {
            return Err(self.give_up(cx, "no good chunk left for a checkpoint"));
        };
        let left = copy.chunk.filter(|_| copy.is_written);
        copy.left.extend(left.map(|left| (left, copy.cursor)));
        copy.chunk = Some(chunk);
        copy.taken.push(chunk);
        (copy.cursor, copy.is_written) = (0, false);
        Ok(())
    }

    /// Programs one copy of a shard, whole write units; a chunk that fails is left for the next.
    async fn place_shard(
        &self,
        cx: &Cx,
        copy: &mut Copy,
        not: Option<u32>,
        bytes: &[u8],
        id: u64,
    ) -> Result<Extent, BlockError> {
        let count = (bytes.len() / SECTOR_BYTES) as u32;
        loop {
            let fits = copy.has_room(bytes.len(), self.flash.geo.sectors_per_chunk());
            let Some(chunk) = copy.chunk.filter(|_| fits) else {
                self.take_chunk(cx, copy, not).await?;
                continue;
            };
            let at = (chunk, copy.cursor);
            let tag = (LBA_CHECKPOINT, id);
            copy.is_written = true;
            if self.program_meta(cx, at, bytes, tag, Cause::Metadata).await {
                copy.cursor += count;
                return Ok(Extent { chunk, sector: at.1, count });
            }
            copy.chunk = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogConfig;
    use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
    use flashlane_rt::{CostTable, Virtual};

    /// FORMAT.md, hole 40: who appended a record may still wait for the log, and the log may be cut behind it
    /// before that goes on.
    #[test]
    fn a_checkpoint_carries_what_is_on_its_way() {
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        run.run(async move {
            let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(60);
            let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
            let config = LogConfig { over_provisioning_percent: 60, ..LogConfig::default() };
            let ftl = HostFtl::create(&cx, ssd.expect("a device"), config).await.expect("fits");
            cx.sleep(flashlane_base::Ns::from_ms(10)).await;
            let carried = |ftl: &HostFtl| {
                let before = ftl.journal.backlog();
                ftl.carry_forward();
                ftl.journal.waiting_from(before)
            };
            let opened = |records: &[Record], id: u32| {
                let is = |r: &&Record| matches!(r, Record::Opened { line, .. } if *line == id);
                records.iter().filter(is).count()
            };
            // A line that is being opened: not before its record is in the log, then at once.
            let (id, chunks) = ftl.pools.get(0).lock().begin_line(false).expect("there is room");
            assert_eq!(opened(&carried(&ftl), id), 0, "its chunks may be bad");
            let chunks: Vec<u32> = chunks.iter().map(|c| c.0).collect();
            ftl.pools.get(0).lock().line_mut(id).chunks.clone_from(&chunks);
            assert_eq!(opened(&carried(&ftl), id), 1);
            // A line whose `freed` is in the log, and the bad chunk of it with it.
            {
                let mut p = ftl.pools.get(0).lock();
                let l = p.line_mut(id);
                (l.gone, l.retire) = (true, vec![chunks[0]]);
            }
            let records = carried(&ftl);
            assert_eq!(opened(&records, id), 0);
            assert!(records.contains(&Record::Retired { chunk: chunks[0] }), "{records:?}");
            // A ceiling that was asked for.
            let higher = ftl.stamp_ceiling() + 5;
            ftl.ceiling_asked.store(higher, Ordering::SeqCst);
            assert!(carried(&ftl).contains(&Record::Ceiling { stamp: higher }));
        })
        .expect("no stall");
    }

    /// Another core logs a discard and raises the floor while a shard is copied, before its entries are read or behind
    /// them. The shard names a position and a floor from before, so a replay sees the discard (FORMAT.md, hole 3).
    #[test]
    #[cfg(debug_assertions)] // others' steps can be taken in such builds only
    fn a_shard_says_what_was_true_before_its_entries() {
        use flashlane_rt::sync::rehearse;
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        run.run(async move {
            let spec = DeviceSpec::preset("tiny").expect("built in");
            let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
            let config = LogConfig { gc: false, ..LogConfig::default() };
            let ftl = HostFtl::create(&cx, ssd.expect("a device"), config).await.expect("fits");
            for at in 0.. {
                let position = ftl.journal.next_sequence();
                let floor = ftl.floor.load(Ordering::SeqCst);
                let (other, mut hesitations) = (ftl.clone(), 0);
                rehearse(move || {
                    if hesitations == at {
                        other.journal.append(Record::Discarded {
                            lba: 0,
                            count: 1,
                            stamp: floor + 7,
                        });
                        other.floor.store(floor + 7, Ordering::SeqCst);
                    }
                    hesitations += 1;
                    hesitations <= at
                });
                let per_shard = u64::from(ftl.layout.shard_entries);
                let (header, ..) = ftl.build_shard(&cx, 1, 0, per_shard).await;
                if ftl.floor.load(Ordering::SeqCst) == floor {
                    assert!(at >= 2, "before the entries and behind them");
                    break;
                }
                assert_eq!((header.position, header.floor), (position, floor), "hesitation {at}");
            }
        })
        .expect("no stall");
    }

    /// A small target of many shards.
    async fn in_small_shards(cx: &Cx, chunks: u32, base: LogConfig) -> Arc<HostFtl> {
        let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(chunks);
        let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
        let config = LogConfig { shard_entries: 64, over_provisioning_percent: 60, ..base };
        HostFtl::create(cx, ssd.expect("a device"), config).await.expect("fits")
    }

    /// Writes these sectors, so that they are on the medium, and named there.
    async fn write(cx: &Cx, ftl: &Arc<HostFtl>, lbas: impl Iterator<Item = u64>) {
        use crate::block::{BlockDev, BlockOp, Io};
        use flashlane_base::Lba;
        for lba in lbas {
            let mut buf = vec![1; ftl.info.content_bytes];
            let io = Io::of(BlockOp::Write, Lba::new(lba), 1, false, &mut buf);
            BlockDev::start(&**ftl, cx, io).await.expect("it is healthy");
        }
        let flush = Io::of(BlockOp::Flush, Lba::new(0), 0, false, &mut []);
        BlockDev::start(&**ftl, cx, flush).await.expect("it is healthy");
    }

    /// It does nothing by itself.
    fn quiet() -> LogConfig {
        LogConfig { gc: false, ..LogConfig::default() }
    }

    fn run(test: impl AsyncFnOnce(Cx) + 'static) {
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        run.run(async move { test(cx).await }).expect("no stall");
    }

    /// Rule 24a to 24c: another core changes an entry at any moment while its shard is copied. The copy has it, or the
    /// next checkpoint writes the shard again. So it does where a slot was found.
    #[test]
    #[cfg(debug_assertions)] // others' steps can be taken in such builds only
    fn a_change_is_copied_or_marked() {
        use crate::log::format::{ShardEntry, ShardView};
        use flashlane_rt::sync::rehearse;
        run(async |cx| {
            let ftl = in_small_shards(&cx, 60, quiet()).await;
            for at in 0.. {
                let (other, mut hesitations) = (ftl.clone(), 0);
                let before = ftl.map.raw(0);
                rehearse(move || {
                    if hesitations == at {
                        let now = other.map.encode(Entry::Media(1000 + at));
                        assert!(other.map.exchange(0, before, now));
                    }
                    hesitations += 1;
                    hesitations <= at
                });
                let (_, bytes, _) = ftl.build_shard(&cx, 1, 0, 64).await;
                if ftl.map.raw(0) == before {
                    assert!(at >= 2, "before the entries and behind them");
                    assert!(!ftl.map.is_marked(0), "nothing has changed");
                    break;
                }
                let view = ShardView::decode(&bytes).expect("a shard");
                let is_copied = view.entry(0) == Some(ShardEntry::Media(1000 + at));
                assert!(is_copied || ftl.map.is_marked(0), "hesitation {at}");
                assert!(!ftl.map.is_marked(1) || at == 0, "of another shard");
                ftl.build_shard(&cx, 1, 1, 64).await;
            }
            let slot = ftl.map.encode(Entry::Slot(3));
            ftl.slab.fill(3, 64, 0, &[1; 8]);
            ftl.slab.set_order(3, 10, (1000, 9));
            assert!(ftl.map.exchange(64, 0, slot));
            ftl.build_shard(&cx, 1, 1, 64).await;
            assert!(ftl.map.is_marked(1), "what is durable below a slot changes without its entry");
        });
    }

    /// Rule 24d: another core discards at any moment while the shards are chosen. A shard that is not written again is
    /// said to be as it was before.
    #[test]
    #[cfg(debug_assertions)] // others' steps can be taken in such builds only
    fn what_is_said_of_a_shard_that_stays_is_from_before() {
        use flashlane_rt::sync::rehearse;
        run(async |cx| {
            let ftl = in_small_shards(&cx, 60, quiet()).await;
            for at in 0.. {
                ftl.checkpoint(&cx).await.expect("it is healthy");
                let before = ftl.base();
                let (other, mut hesitations) = (ftl.clone(), 0);
                rehearse(move || {
                    if hesitations == at {
                        other.floor.store(before.floor + 7, Ordering::SeqCst);
                        other.journal.append(Record::Started);
                        other.map.mark(0);
                    }
                    hesitations += 1;
                    hesitations <= at
                });
                let (base, last, changed) = ftl.choose_shards(&cx, false).await;
                *ftl.checkpoints.last.lock() = last;
                if ftl.floor.load(Ordering::SeqCst) == before.floor {
                    assert!(at >= 2, "before the marks are looked at and behind that");
                    break;
                }
                let is_before = (base.position, base.floor) == (before.position, before.floor);
                assert!(changed.contains(&0) || is_before, "hesitation {at}");
            }
        });
    }

    /// Rule 24d on two cores: while one of them is between an entry and its mark, in a section, the other does not choose:
    /// what it has read of the log may be younger than the entry.
    #[test]
    fn shards_are_chosen_behind_the_sections_under_way() {
        use flashlane_rt::{Notify, Threads};
        use std::sync::OnceLock;
        use std::sync::atomic::AtomicBool;
        #[derive(Default)]
        struct Shared {
            ftl: OnceLock<Arc<HostFtl>>,
            is_inside: AtomicBool,
            chooses: AtomicBool,
            changed: Notify,
        }
        let shared = Arc::new(Shared::default());
        let core = async |cx: Cx, shared: Arc<Shared>| {
            if cx.core().0 == 0 {
                let config = LogConfig { gc: false, ..LogConfig::qblk() };
                let ftl = in_small_shards(&cx, 60, config).await;
                ftl.checkpoint(&cx).await.expect("it is healthy");
                assert!(shared.ftl.set(ftl).is_ok());
                shared.changed.wake(&cx);
                shared.changed.wait(&cx, || shared.is_inside.load(Ordering::SeqCst)).await;
                let ftl = shared.ftl.get().expect("set above");
                shared.chooses.store(true, Ordering::SeqCst);
                let (_, _, changed) = ftl.choose_shards(&cx, false).await;
                assert!(changed.contains(&0), "{changed:?}");
                return;
            }
            shared.changed.wait(&cx, || shared.ftl.get().is_some()).await;
            let ftl = shared.ftl.get().expect("waited for");
            let inside = ftl.sections.enter(&cx);
            shared.is_inside.store(true, Ordering::SeqCst);
            shared.changed.wake(&cx);
            while !shared.chooses.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            // However long it takes.
            (0..10_000_000).for_each(|_| std::hint::spin_loop());
            assert!(ftl.map.exchange(0, 0, ftl.map.encode(Entry::Media(1000))));
            drop(inside);
        };
        Threads::new(2, 1).run(|cx| core(cx, shared.clone()));
    }

    /// Rule 24e and 24f: however shards change, the chunks that a checkpoint names and took are no more than a whole one
    /// may take; what one names is nobody else's; the next one writes on only in what this one names.
    #[test]
    fn what_is_pinned_stays_within_the_reserve() {
        run(async |cx| {
            let ftl = in_small_shards(&cx, 250, LogConfig::default()).await;
            let (shards, most) = (ftl.shards(), ftl.layout.checkpoint_chunks);
            assert!(ftl.layout.checkpoint_lanes > 1, "{:?}", ftl.layout);
            let mut rng = flashlane_base::Rng::new(5);
            let (mut named_older, mut anew) = (0, 0);
            for round in 0..150u64 {
                let some = if round % 10 == 0 { shards / 4 } else { 1 + rng.below(6) };
                let mut lbas: Vec<u64> = (0..some).map(|_| rng.below(ftl.info.capacity)).collect();
                if round % 4 == 3 {
                    // All that the last chunks of the other lanes hold, on the first one.
                    let last = ftl.checkpoints.last.lock();
                    let others = last.lanes.iter().skip(1).flatten();
                    let chunks: Vec<u32> = others.filter_map(|copy| copy.chunk).collect();
                    let is_there = |at: &(u64, &Written)| {
                        at.1.places.iter().any(|place| chunks.contains(&place.chunk))
                    };
                    let there = (0..).zip(&last.shards).filter(is_there);
                    lbas.extend(there.map(|(shard, _)| 64 * shard));
                }
                write(&cx, &ftl, lbas.into_iter()).await;
                let id = ftl.checkpoint(&cx).await.expect("it is healthy");
                let last = ftl.checkpoints.last.lock();
                let older = last.shards.iter().filter(|shard| shard.checkpoint < id).count();
                named_older += older;
                anew += u32::from(older == 0);
                let named = last.named();
                let mut open = last.lanes.iter().flatten().filter_map(|copy| copy.chunk);
                assert!(open.all(|chunk| named.contains(&chunk)), "round {round}");
                drop(last);
                let kept = ftl.checkpoints.kept.lock();
                let chunks = kept.last().expect("just written").chunks.len() as u64;
                assert!(chunks <= most, "round {round}: {chunks} of {most}");
                drop(kept);
                ftl.check_consistency().expect("the walk");
            }
            assert!(named_older > 100 && anew > 1, "{named_older} of older ones, {anew} anew");
            // Where a copy decays nothing older is named, nor written on to.
            let before = ftl.checkpoints.last.lock().named();
            let id = ftl.checkpoint_anew(&cx).await.expect("it is healthy");
            let last = ftl.checkpoints.last.lock();
            assert!(last.shards.iter().all(|shard| shard.checkpoint == id));
            assert!(last.named().is_disjoint(&before));
        });
    }
}
