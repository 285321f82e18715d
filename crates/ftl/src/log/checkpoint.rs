//! Copies of the map on the medium, so that the log can be cut.
//!
//! Owns: writing shards, the two checkpoints that are kept, cutting the log behind the older one.
//! Promises: a checkpoint counts only once `complete` is durable; the log is cut only behind the
//! older of two complete ones (FORMAT.md rule 16); a buffered sector is stored with its last
//! durable address (rule 3); each shard records where a replay begins and its floor (rules 5, 11).
//! Never: stops writers; a shard is a fuzzy copy taken while they go on.

use super::HostFtl;
use super::format::{Extent, LBA_CHECKPOINT, LBA_PADDING, Record, ShardHeader};
use super::front::SECTION;
use super::map::Entry;
use super::pool::LineState;
use super::slab::POISONED;
use crate::block::{BlockError, BlockResult};
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::sync::{Ordering, hesitate};
use flashlane_rt::{Credits, Cx};
use std::sync::Arc;

/// A complete checkpoint that is kept.
pub(super) struct Complete {
    position: u64,
    /// Sequence of the next line when it began.
    next_line: u64,
    pub(super) chunks: Vec<u32>,
}

/// What checkpoints remember between runs.
pub(super) struct Checkpoints {
    pub(super) turn: Credits,
    pub(super) kept: flashlane_rt::sync::Mutex<Vec<Complete>>,
    pub(super) next: flashlane_rt::sync::AtomicU64,
}

impl Checkpoints {
    pub(super) fn new() -> Checkpoints {
        Checkpoints {
            turn: Credits::new(1),
            kept: flashlane_rt::sync::Mutex::new(Vec::new()),
            next: flashlane_rt::sync::AtomicU64::new(1),
        }
    }

    /// The complete ones that recovery found, oldest first: (position, next line, chunks). `next` is
    /// the id of the next one.
    pub(super) fn resume(&self, kept: impl Iterator<Item = (u64, u64, Vec<u32>)>, next: u64) {
        let complete = |(position, next_line, chunks)| Complete { position, next_line, chunks };
        *self.kept.lock() = kept.map(complete).collect();
        self.next.store(next, Ordering::Release);
    }
}

/// One of the two copies: where its next shard goes.
#[derive(Default)]
struct Copy {
    chunk: Option<u32>,
    cursor: u32,
    chunks: Vec<u32>,
    /// Chunks that were left, and where.
    left: Vec<(u32, u32)>,
}

impl Copy {
    /// Up to where each chunk is written that this copy is in.
    fn ends(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let last = self.chunk.map(|chunk| (chunk, self.cursor));
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
    chunks: Vec<u32>,
}

impl HostFtl {
    /// Checkpoints whenever a quarter of the log was written since the last, until the target
    /// stops: the log reaches back to the older of two, so it holds half, and room for what is
    /// written meanwhile.
    pub(super) async fn checkpoint_loop(self: Arc<Self>, cx: Cx) {
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
    pub(super) async fn checkpoint(&self, cx: &Cx) -> Result<u64, BlockError> {
        self.checkpoints.turn.acquire(cx, 1).await;
        let written = self.write_checkpoint(cx).await;
        self.checkpoints.turn.release(cx, 1);
        written
    }

    async fn write_checkpoint(&self, cx: &Cx) -> Result<u64, BlockError> {
        let id = self.checkpoints.next.fetch_add(1, Ordering::AcqRel);
        self.journal.mark();
        // There is room in the log again.
        self.pool_changed.wake(cx);
        let next_line = self.pools.next_sequence();
        let per_shard = self.layout.shard_entries as u64;
        let shards = self.info.capacity.div_ceil(per_shard);
        let me = self.me.upgrade().expect("whoever writes a checkpoint holds the target");
        let lanes = u64::from(self.layout.checkpoint_lanes);
        let tasks: Vec<_> = (0..lanes)
            .map(|lane| {
                let (me, their_cx) = (me.clone(), cx.clone());
                me.task_began();
                cx.spawn_join(async move {
                    let shards = (lane..shards).step_by(lanes as usize);
                    let written = me.write_lane(&their_cx, id, shards).await;
                    me.task_ended(&their_cx);
                    written
                })
            })
            .collect();
        // Bytes of the checkpoint's own records.
        let mut own = 0;
        let mut position = self.journal.next_sequence();
        let (mut chunks, mut failed) = (Vec::new(), None);
        for task in tasks {
            match task.await {
                Ok(lane) => {
                    own += lane.own;
                    position = position.min(lane.position);
                    chunks.extend(lane.chunks);
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)?;
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
        self.keep(cx, Complete { position, next_line, chunks }).await?;
        self.pool_moved(cx);
        Ok(id)
    }

    /// Writes some of the shards, one after the other.
    async fn write_lane(
        &self,
        cx: &Cx,
        id: u64,
        shards: impl Iterator<Item = u64>,
    ) -> Result<Lane, BlockError> {
        let mut copies = [Copy::default(), Copy::default()];
        let mut lane = Lane { own: 0, position: u64::MAX, chunks: Vec::new() };
        let per_shard = self.layout.shard_entries as u64;
        for shard in shards {
            let (header, bytes, count) = self.build_shard(cx, id, shard, per_shard).await;
            lane.position = lane.position.min(header.position);
            let places = self.place_twice(cx, &mut copies, bytes.into(), id).await?;
            let record = Record::CheckpointShard {
                checkpoint: id,
                shard: shard as u32,
                lba: header.lba,
                count,
                places,
                position: header.position,
                floor: header.floor,
                open_sequence: header.open_sequence,
            };
            lane.own += record.encoded_len();
            self.journal.append(record);
        }
        self.close_ends(cx, &copies, id).await;
        lane.chunks = copies.into_iter().flat_map(|c| c.chunks).collect();
        Ok(lane)
    }

    /// Closes the page pairs at the end of each chunk, all at a time: a mount pads there, both copies of
    /// both checkpoints, and when that is cut it may take no shard along (FORMAT.md, hole 38). A chunk
    /// that fails now is written no more.
    async fn close_ends(&self, cx: &Cx, copies: &[Copy; 2], id: u64) {
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
                let n = me.shape.pair_pads.min(me.shape.chunk_sectors - at.1) as usize;
                cx.spawn_join(async move {
                    let (bytes, tag) = (&zeros[..n * SECTOR_BYTES], (LBA_PADDING, id));
                    me.program_meta(&their_cx, at, bytes, tag, Cause::PaddingPair).await
                })
            })
            .collect();
        for pad in pads {
            pad.await;
        }
    }

    /// Records that stay true although the log before this checkpoint is going to be cut: the
    /// configuration, bad chunks, the ceiling, and every line there is (FORMAT.md, hole 21). Returns
    /// their bytes.
    fn carry_forward(&self) -> usize {
        let mut bytes = 0;
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
            let p = pool.lock();
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
        }
        bytes
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
            let old = if kept.len() > most { kept.remove(0).chunks } else { Vec::new() };
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
        // Position first, the floor last before the entries (FORMAT.md, hole 3).
        let position = self.journal.next_sequence();
        let open_sequence = self.pools.lowest_open_sequence();
        let mut header = ShardHeader {
            uuid: self.journal.uuid,
            checkpoint: id,
            shard: shard as u32,
            width,
            lba,
            position,
            floor: match mutant!("log.shard-without-floor") {
                true => 0,
                false => self.floor.load(Ordering::SeqCst),
            },
            open_sequence,
            generation: self.journal.generation,
        };
        // Whoever read a lower floor has published: a sector that is found unmapped now is a tombstone at
        // the floor, and what is written to it later lies above that (FORMAT.md, hole 39).
        if !mutant!("qblk.shard-without-waiting") {
            self.sections.synchronize(cx).await;
        }
        hesitate();
        let (mut words, mut stamps) = (Vec::new(), Vec::new());
        let mut copy = |from: u64, count: u64| {
            self.map.copy_words(from, count, &mut words, |at, entry| {
                let (word, stamp) = self.word_of(at, entry);
                stamps.extend(stamp.map(|stamp| (at, stamp)));
                word
            });
        };
        let cost = self.costs.map_copy.times(count);
        if self.map.is_exclusive() {
            self.map.lock.with(cx, cost, |_| copy(lba, count)).await;
        } else {
            cx.cpu(cost).await;
            for from in (lba..lba + count).step_by(SECTION as usize) {
                let _inside = self.sections.enter(cx);
                copy(from, SECTION.min(lba + count - from));
            }
        }
        hesitate();
        if mutant!("log.shard-position-last") {
            header.position = self.journal.next_sequence();
        }
        if mutant!("log.shard-lines-last") {
            header.open_sequence = self.pools.next_sequence();
        }
        if mutant!("log.shard-floor-last") {
            header.floor = self.floor.load(Ordering::SeqCst);
        }
        let mut bytes = header.encode_words(&words, &stamps);
        bytes
            .resize(bytes.len().next_multiple_of(self.flash.geo.ws_min as usize * SECTOR_BYTES), 0);
        (header, bytes, count as u32)
    }

    /// What a shard stores for an entry that names no place on the medium, and a stamp that is listed.
    fn word_of(&self, lba: u64, mut entry: Entry) -> (u64, Option<u64>) {
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
                    Some(stamp) => return (POISONED, Some(*stamp)),
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
        copy.left.extend(copy.chunk.map(|left| (left, copy.cursor)));
        copy.chunk = Some(chunk);
        copy.chunks.push(chunk);
        copy.cursor = 0;
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
}
