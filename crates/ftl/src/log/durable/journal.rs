//! The FTL log: what happened to lines, discards, stamps, in order, on two dies.
//!
//! Owns: the records not yet durable, the segment pairs, the anchor. Promises: `commit` returns when
//! every record appended before is on both mirrors; blocks go out one at a time per mirror; a
//! segment ends with the record that names the next, whose chunks are erased, and the anchor names
//! the oldest and the current pair (FORMAT.md, rules 10, 15, 20–22).
//! Never: reads (recovery does), nor decides when to checkpoint (that is `checkpoint`).

use crate::block::{BlockError, BlockResult};
use crate::log::HostFtl;
use crate::log::format::{
    Anchor, LBA_ANCHOR, LBA_LOG, LBA_PADDING, LogBlockBuilder, LogBlockHeader, Record, SegmentPair,
    Uuid,
};
use crate::log::pool::Shape;
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::sync::{Mutex, MutexGuard};
use flashlane_rt::{Contended, Cx, LockStats, Notify};
use std::collections::VecDeque;
use std::sync::Arc;

/// A pair with the first record it holds.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct Segment {
    pub(in crate::log) pair: SegmentPair,
    pub(in crate::log) first_sequence: u64,
    /// Both copies have its first block.
    pub(in crate::log) is_begun: bool,
}

/// How the anchor is written after the log has left a pair before its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anew {
    InPlace,
    InFreshChunks,
}

pub(in crate::log) struct JournalState {
    pending: VecDeque<Record>,
    /// Sequence of the first pending record.
    first_pending: u64,
    /// Records ever appended, and of those durable: what `commit` compares. Sequences run ahead of
    /// these counts, since a segment's last record has one too.
    appended: u64,
    durable: u64,
    writing: bool,
    /// A mirror failed: what only its pair holds is on one die, until a checkpoint.
    thin: bool,
    pub(in crate::log) segments: VecDeque<Segment>,
    cursor: u32,
    next_segment: u64,
    /// `next_segment` when the last checkpoint began.
    marked: u64,
    /// Segments that a checkpoint's own records take: not what makes the next one due.
    carried: u64,
    /// None before the first is written in this life.
    anchor: Option<[u32; 2]>,
    anchor_cursor: u32,
    anchor_counter: u64,
}

pub(in crate::log) struct Journal {
    pub(in crate::log) uuid: Uuid,
    pub(in crate::log) generation: u32,
    /// Flushes tell what they have programmed: its blocks say so.
    tells: bool,
    state: Mutex<JournalState>,
    contended: Contended,
    progress: Notify,
}

/// Sectors of a log block: the medium's smallest write, or what the `opened` record of the widest
/// line needs.
pub(in crate::log) fn block_sectors(shape: &Shape, ws_min: u32) -> u32 {
    let chunks = vec![0; shape.pus as usize];
    let widest = Record::Opened { line: 0, sequence: 0, chunks }.encoded_len();
    let links = 2 * Record::Segment { next: SegmentPair::default() }.encoded_len();
    let mut sectors = ws_min;
    while LogBlockBuilder::capacity(sectors) < widest + links {
        sectors += ws_min;
    }
    sectors
}

/// Sectors that a block takes in its chunk, with what closes its page pairs behind it.
pub(in crate::log) fn block_room(shape: &Shape, ws_min: u32) -> u32 {
    block_sectors(shape, ws_min) + shape.pair_pads
}

/// Bytes of records that a segment holds when its blocks are full.
pub(in crate::log) fn segment_bytes(shape: &Shape, ws_min: u32) -> usize {
    let blocks = (shape.chunk_sectors / block_room(shape, ws_min)).max(1) as usize;
    blocks * LogBlockBuilder::capacity(block_sectors(shape, ws_min))
}

impl Journal {
    /// The log of a new target.
    pub(in crate::log) fn new(uuid: Uuid, tells: bool) -> Journal {
        Journal::resume((uuid, tells), 1, VecDeque::new(), (1, 1), 0)
    }

    /// The log that recovery found: its pairs, the next record's sequence and the next pair's id, the
    /// highest counter of an anchor. [`HostFtl::renew_log`] comes before anything else.
    pub(in crate::log) fn resume(
        (uuid, tells): (Uuid, bool),
        generation: u32,
        segments: VecDeque<Segment>,
        (next_sequence, next_segment): (u64, u64),
        anchor_counter: u64,
    ) -> Journal {
        Journal {
            uuid,
            generation,
            tells,
            state: Mutex::new(JournalState {
                pending: VecDeque::new(),
                first_pending: next_sequence,
                appended: 0,
                durable: 0,
                writing: false,
                thin: false,
                segments,
                cursor: 0,
                next_segment,
                marked: next_segment + 1,
                carried: 0,
                anchor: None,
                anchor_cursor: 0,
                anchor_counter,
            }),
            contended: Contended::new(),
            progress: Notify::new(),
        }
    }

    #[inline]
    fn locked(&self) -> MutexGuard<'_, JournalState> {
        self.contended.lock(&self.state)
    }

    /// What was waited for at the log's lock, and the records that were added.
    pub(in crate::log) fn waits(&self) -> LockStats {
        self.contended.stats(self.state.lock().appended)
    }

    /// Adds a record; durable once `commit` of the returned position has returned.
    pub(in crate::log) fn append(&self, record: Record) -> u64 {
        let mut s = self.locked();
        s.pending.push_back(record);
        s.appended += 1;
        s.appended
    }

    /// Position behind the last record appended, for `commit`.
    pub(in crate::log) fn appended(&self) -> u64 {
        self.locked().appended
    }

    /// Sequence that the next record will have, or a lower one: where a replay may begin.
    pub(in crate::log) fn next_sequence(&self) -> u64 {
        let s = self.locked();
        s.first_pending + s.pending.len() as u64
    }

    /// Records that wait to be written, but for the first `before`.
    #[cfg(test)]
    pub(in crate::log) fn waiting_from(&self, before: usize) -> Vec<Record> {
        self.locked().pending.iter().skip(before).cloned().collect()
    }

    /// Records that wait to be written.
    pub(in crate::log) fn backlog(&self) -> usize {
        self.locked().pending.len()
    }

    /// The chunks of log and anchor.
    pub(in crate::log) fn chunks(&self) -> Vec<u32> {
        let s = self.locked();
        let pairs = s.segments.iter().flat_map(|segment| chunks_of(&segment.pair));
        pairs.chain(s.anchor.into_iter().flatten()).collect()
    }

    /// A mirror has failed since the last checkpoint.
    pub(in crate::log) fn is_thin(&self) -> bool {
        self.locked().thin
    }

    pub(in crate::log) fn set_thin(&self, thin: bool) {
        self.locked().thin = thin;
    }

    /// The log has grown by `quarter` segments, and what a checkpoint carries, since the last
    /// checkpoint began: a new one is due, and what users and GC add waits until it begins (FORMAT.md rule 21).
    pub(in crate::log) fn is_full(&self, quarter: u64) -> bool {
        let s = self.locked();
        s.next_segment - s.marked >= quarter + s.carried
    }

    /// A checkpoint is complete, with this many segments of records of its own.
    pub(in crate::log) fn set_carried(&self, segments: u64) {
        self.locked().carried = segments;
    }

    /// A checkpoint begins: growth counts from here.
    pub(in crate::log) fn mark(&self) {
        let mut s = self.locked();
        s.marked = s.next_segment;
    }

    /// Gives up the pairs that hold nothing at or above `position`; returns their chunks.
    fn cut(&self, position: u64) -> Vec<u32> {
        let mut s = self.locked();
        let mut chunks = Vec::new();
        while s.segments.len() > 1 && s.segments[1].first_sequence <= position {
            let old = s.segments.pop_front().expect("more than one");
            chunks.extend(chunks_of(&old.pair));
        }
        chunks
    }
}

/// The chunks of a pair; of one that recovery found in a single copy, that one.
fn chunks_of(pair: &SegmentPair) -> impl Iterator<Item = u32> {
    let [a, b] = pair.chunks;
    std::iter::once(a).chain((b != a).then_some(b))
}

impl HostFtl {
    /// Waits until everything appended before `position` is durable.
    pub(in crate::log) async fn commit(&self, cx: &Cx, position: u64) -> BlockResult {
        let is_durable = || self.journal.locked().durable >= position;
        while !is_durable() {
            self.check_writable()?;
            let is_mine = {
                let mut s = self.journal.locked();
                s.durable < position && !std::mem::replace(&mut s.writing, true)
            };
            // One writer at a time: the first who needs it writes for all who came meanwhile. Those do not
            // wait for a turn of their own.
            if is_mine {
                let written = self.write_block(cx).await;
                self.release_log(cx);
                written?;
            } else {
                let over = || {
                    let s = self.journal.locked();
                    s.durable >= position || !s.writing
                };
                self.journal.progress.wait(cx, over).await;
            }
        }
        Ok(())
    }

    /// Waits for room in the log, before anything is changed that a record is to be appended about:
    /// until no checkpoint is due (FORMAT.md rule 21, hole 14). The log reaches back to the older of
    /// two checkpoints and holds three spans of a quarter each with what they carry. The checkpoint
    /// itself never waits here, nor does what it depends on. Also bounds the records in memory.
    pub(in crate::log) async fn wait_for_log(&self, cx: &Cx) -> BlockResult {
        loop {
            let full = || self.journal.is_full(self.log_quarter());
            // Nobody writes a checkpoint any more when the tasks of a target that stops end.
            let ready = || !full() || self.read_only() || self.is_stopping();
            if !ready() {
                // An anchor that moved, too, makes a checkpoint due.
                self.pool_changed.wake(cx);
                self.pool_changed.wait(cx, ready).await;
            }
            self.check_writable()?;
            if self.journal.backlog() <= crate::log::create::BACKLOG_MAX {
                return Ok(());
            }
            self.commit(cx, self.journal.appended()).await?;
        }
    }

    pub(in crate::log) fn segment_bytes(&self) -> usize {
        segment_bytes(&self.shape, self.flash.geo.ws_min)
    }

    /// Segments between checkpoints.
    pub(in crate::log) fn log_quarter(&self) -> u64 {
        (self.layout.log_segments as u64 / 4).max(1)
    }

    /// Waits for the turn to write the log.
    async fn take_log(&self, cx: &Cx) {
        loop {
            if !std::mem::replace(&mut self.journal.locked().writing, true) {
                return;
            }
            let free = || !self.journal.locked().writing;
            self.journal.progress.wait(cx, free).await;
        }
    }

    fn release_log(&self, cx: &Cx) {
        self.journal.locked().writing = false;
        self.journal.progress.wake(cx);
    }

    /// Cuts the log behind `position`. The chunks that come back may be erased: an anchor that
    /// names the new oldest pair is durable (FORMAT.md, hole 20).
    pub(in crate::log) async fn cut_journal(
        &self,
        cx: &Cx,
        position: u64,
    ) -> Result<Vec<u32>, BlockError> {
        self.take_log(cx).await;
        let chunks = self.journal.cut(position);
        let unneeded = chunks.is_empty() || mutant!("log.cut-before-anchor");
        let written = if unneeded { Ok(()) } else { self.write_anchor(cx, false).await };
        self.release_log(cx);
        written.map(|()| chunks)
    }

    /// Goes on in a fresh pair, with an anchor in fresh chunks. What the pairs before hold is needed
    /// until two checkpoints have followed.
    pub(in crate::log) async fn move_log(&self, cx: &Cx) -> BlockResult {
        self.take_log(cx).await;
        let moved = match self.next_pair(cx).await {
            Ok(pair) => {
                self.begin_segment(pair);
                self.write_block_to(cx, Some(Anew::InFreshChunks)).await
            }
            Err(e) => Err(e),
        };
        self.release_log(cx);
        moved
    }

    /// What comes goes to this pair.
    fn begin_segment(&self, pair: SegmentPair) {
        let mut s = self.journal.locked();
        let first_sequence = s.first_pending;
        s.segments.push_back(Segment { pair, first_sequence, is_begun: false });
        s.cursor = 0;
    }

    /// Runs while the log is not written.
    pub(in crate::log) async fn with_log_at_rest<T>(
        &self,
        cx: &Cx,
        work: impl Future<Output = T>,
    ) -> T {
        self.take_log(cx).await;
        let out = work.await;
        self.release_log(cx);
        out
    }

    fn block_sectors(&self) -> u32 {
        block_sectors(&self.shape, self.flash.geo.ws_min)
    }

    /// Longest record that fits a block beside the links to other segments.
    pub(in crate::log) fn record_max(&self) -> usize {
        let links = 2 * Record::Segment { next: SegmentPair::default() }.encoded_len();
        LogBlockBuilder::capacity(self.block_sectors()) - links
    }

    fn block_room(&self) -> u32 {
        block_room(&self.shape, self.flash.geo.ws_min)
    }

    /// Writes as many pending records as fit one block, on both mirrors. A block that a mirror
    /// could not take goes to a fresh pair before anything is acknowledged; what the pair left
    /// behind holds stays readable below its write pointers until a checkpoint cuts it off.
    async fn write_block(&self, cx: &Cx) -> BlockResult {
        self.write_block_to(cx, None).await
    }

    /// As [`Self::write_block`]. `anchor`: the log has left a pair before its end, so the anchor has to
    /// name the current one. Not before that leads back: the chunks left behind may not be readable yet,
    /// and recovery pads only what is named (FORMAT.md, hole 37).
    async fn write_block_to(&self, cx: &Cx, mut anchor: Option<Anew>) -> BlockResult {
        loop {
            let last = {
                let s = self.journal.locked();
                s.cursor + 2 * self.block_room() > self.flash.geo.sectors_per_chunk()
            };
            // The last block of a segment names the next pair, which must be erased by then.
            let next = if last { Some(self.next_pair(cx).await?) } else { None };
            let (block, pair, cursor, count, links) = {
                let mut s = self.journal.locked();
                let (block, count) = self.build_block(&s, next);
                let links = self.link_back(&s).is_some() as u64 + next.is_some() as u64;
                let cursor = s.cursor;
                s.cursor += self.block_room();
                let pair = s.segments.back().expect("created with one").pair;
                (block, pair, cursor, count, links)
            };
            let written = self.write_mirrors(cx, &pair, cursor, &block).await;
            if !written {
                self.journal.set_thin(!mutant!("log.thin-log-kept"));
                let pair = match next {
                    Some(pair) => pair,
                    None => self.next_pair(cx).await?,
                };
                self.begin_segment(pair);
                // A checkpoint is due.
                self.pool_changed.wake(cx);
                anchor.get_or_insert(Anew::InPlace);
                if mutant!("log.anchor-before-first-block") {
                    self.write_anchor(cx, false).await?;
                }
                continue;
            }
            if let Some(segment) = self.journal.locked().segments.back_mut() {
                segment.is_begun = true;
            }
            if let Some(anew) = anchor.filter(|_| !mutant!("log.anchor-unmoved")) {
                self.write_anchor(cx, anew == Anew::InFreshChunks).await?;
            }
            {
                let mut s = self.journal.locked();
                s.pending.drain(..count);
                s.durable += count as u64;
                s.first_pending += count as u64 + links;
            }
            let Some(pair) = next else { return Ok(()) };
            self.begin_segment(pair);
            // A checkpoint may be due.
            self.pool_changed.wake(cx);
            let is_kept = mutant!("log.anchor-of-before");
            return if is_kept { Ok(()) } else { self.write_anchor(cx, false).await };
        }
    }

    /// Packs pending records; `next` adds the record that ends the segment. Returns the block and
    /// how many pending records are in it.
    fn build_block(&self, s: &JournalState, next: Option<SegmentPair>) -> (Vec<u8>, usize) {
        let header = LogBlockHeader {
            uuid: self.journal.uuid,
            generation: self.journal.generation,
            sectors: self.block_sectors(),
            first_sequence: s.first_pending,
            segment: s.segments.back().map_or(0, |p| p.pair.id),
            tells: self.journal.tells,
        };
        let mut block = LogBlockBuilder::new(header);
        if let Some(previous) = self.link_back(s) {
            block.push(&Record::Follows { previous }).expect("a block holds its links");
        }
        let end = Record::Segment { next: next.unwrap_or_default() };
        let keep = if next.is_some() { end.encoded_len() } else { 0 };
        let mut count = 0;
        for record in &s.pending {
            if record.encoded_len() + keep > block.room() || block.push(record).is_err() {
                break;
            }
            count += 1;
        }
        if next.is_some() {
            block.push(&end).expect("room was kept for it");
        }
        (block.finish(), count)
    }

    /// The pair before that holds anything, when a segment is about to get its first block: a chain from
    /// the current pair back holds even where a failed mirror took the forward link along.
    fn link_back(&self, s: &JournalState) -> Option<SegmentPair> {
        let mut before = s.segments.iter().rev().skip(1);
        let before = before.find(|segment| segment.is_begun)?.pair;
        (s.cursor == 0 && !mutant!("log.no-way-back")).then_some(before)
    }

    async fn write_mirrors(&self, cx: &Cx, pair: &SegmentPair, cursor: u32, block: &[u8]) -> bool {
        // The pair's id is the stamp of its sectors: two lives of a chunk are told apart.
        let tag = (LBA_LOG, pair.id);
        let tag_of = |i: usize| match i == 1 && mutant!("log.mirror-unwritten") {
            true => (LBA_PADDING, pair.id),
            false => tag,
        };
        let submit = |i: usize| {
            let at = (pair.chunks[i], cursor);
            self.submit_meta(cx, at, block, tag_of(i), Cause::Log)
        };
        let mut good = true;
        for (ticket, chunk) in [submit(0), submit(1)].into_iter().zip(pair.chunks) {
            let done = self.flash.device.wait(cx, ticket).await;
            if done.failed != 0 {
                good = mutant!("log.mirror-failure-ignored");
                self.note_meta_failure(cx, chunk, &done, Cause::Log);
            }
        }
        if self.traits.pair_damage && good {
            // Both at a time: a cut can take this block only, which nobody was told of; the padding behind
            // the one before is complete.
            let zeros = vec![0u8; self.shape.window as usize * SECTOR_BYTES];
            let behind = cursor + self.block_sectors();
            let (places, tag) = (pair.chunks.map(|chunk| (chunk, behind)), (LBA_PADDING, pair.id));
            let padded = self.program_both(cx, places, zeros.into(), tag, Cause::PaddingPair).await;
            good = padded == [true; 2];
        }
        good
    }

    /// Two erased chunks on two dies.
    async fn next_pair(&self, cx: &Cx) -> Result<SegmentPair, BlockError> {
        let lost = || self.give_up(cx, "no two good chunks left for the FTL log");
        let chunks = self.fresh_meta_pair(cx).await.ok_or_else(lost)?;
        let mut s = self.journal.locked();
        s.next_segment += 1;
        Ok(SegmentPair { id: s.next_segment - 1, chunks })
    }

    /// First pair and anchor of a new target; then the records that a new life begins with.
    pub(in crate::log) async fn begin_journal(&self, cx: &Cx) -> BlockResult {
        let pair = self.next_pair(cx).await?;
        {
            let mut s = self.journal.locked();
            let first_sequence = s.first_pending;
            s.segments.push_back(Segment { pair, first_sequence, is_begun: false });
        }
        self.journal.append(Record::Started);
        let config = self.config.lock().clone();
        let at = self.journal.append(Record::Config { bytes: config });
        self.commit(cx, at).await?;
        self.write_anchor(cx, false).await
    }

    /// The log goes on in a new life: `tail`, the valid records of the last pair unless that is complete,
    /// is copied to a fresh one before anything is acted on; then an anchor names that, and `started` is
    /// durable (FORMAT.md rules 15 and 22). `anchors`: chunks that hold anchors of before.
    pub(in crate::log) async fn renew_log(
        &self,
        cx: &Cx,
        tail: Option<Vec<Record>>,
        anchors: Vec<u32>,
    ) -> BlockResult {
        let mut old = anchors;
        let (first_sequence, records) = match tail {
            Some(records) => {
                let last = self.journal.locked().segments.pop_back().expect("it has a tail");
                old.extend(chunks_of(&last.pair));
                (last.first_sequence, records)
            }
            None => (self.journal.locked().first_pending, Vec::new()),
        };
        // A pair that fails is nobody's: the next recovery takes it for free.
        let (pair, cursor) = loop {
            let pair = self.next_pair(cx).await?;
            if let Some(cursor) = self.copy_records(cx, &pair, first_sequence, &records).await {
                break (pair, cursor);
            }
        };
        {
            let mut s = self.journal.locked();
            let is_begun = !records.is_empty();
            s.segments.push_back(Segment { pair, first_sequence, is_begun });
            s.cursor = cursor;
        }
        let is_early = mutant!("log.old-log-given-back");
        if is_early {
            self.give_meta_back(&old);
        }
        self.write_anchor(cx, false).await?;
        if !is_early {
            self.give_meta_back(&old);
        }
        let at = self.journal.append(Record::Started);
        self.commit(cx, at).await
    }

    /// Writes records that have their sequences already to a fresh pair, as one block of as many places as
    /// it takes: nothing is acknowledged in between. Returns where the pair goes on; `None` when a mirror
    /// failed.
    async fn copy_records(
        &self,
        cx: &Cx,
        pair: &SegmentPair,
        first_sequence: u64,
        records: &[Record],
    ) -> Option<u32> {
        if records.is_empty() {
            return Some(0);
        }
        let bytes: usize = records.iter().map(Record::encoded_len).sum();
        let mut sectors = self.block_sectors();
        while LogBlockBuilder::capacity(sectors) < bytes {
            sectors += self.block_room();
        }
        let mut block = LogBlockBuilder::new(LogBlockHeader {
            uuid: self.journal.uuid,
            generation: self.journal.generation,
            sectors,
            first_sequence,
            segment: pair.id,
            tells: self.journal.tells,
        });
        for record in records {
            block.push(record).expect("sized for all of them");
        }
        let block = block.finish();
        let cursor = sectors + self.shape.pair_pads;
        let tag = (LBA_LOG, pair.id);
        let mut padded = block;
        padded.resize(cursor as usize * SECTOR_BYTES, 0);
        // Both at a time: nobody reads this pair before an anchor names it.
        let places = pair.chunks.map(|chunk| (chunk, 0));
        let good = self.program_both(cx, places, padded.into(), tag, Cause::Log).await;
        (good == [true; 2]).then_some(cursor)
    }

    /// Rewrites the anchor; `afresh`, in other chunks. Behind the ones of before both copies go out at a
    /// time; where their chunks are full one is erased and written after the other, so that one is whole
    /// at any moment.
    async fn write_anchor(&self, cx: &Cx, afresh: bool) -> BlockResult {
        // Where an attempt has failed for good, nobody knows how far its chunks are written.
        if !mutant!("log.anchor-after-giving-up") {
            self.check_writable()?;
        }
        let (anchor, chunks, cursor) = {
            let mut s = self.journal.locked();
            s.anchor_counter += u64::from(!mutant!("log.anchor-counter-stands"));
            let cursor = s.anchor_cursor;
            s.anchor_cursor += self.block_room();
            let anchor = Anchor {
                uuid: self.journal.uuid,
                counter: s.anchor_counter,
                generation: self.journal.generation,
                current: s.segments.back().expect("created with one").pair,
                oldest: s.segments.front().expect("created with one").pair,
            };
            if mutant!("log.anchor-without-oldest") {
                (Anchor { oldest: anchor.current, ..anchor }, s.anchor, cursor)
            } else {
                (anchor, s.anchor, cursor)
            }
        };
        let mut block = anchor.encode();
        block.resize(self.block_room() as usize * SECTOR_BYTES, 0);
        let Some(chunks) = chunks.filter(|_| !afresh) else {
            return self.replace_anchor(cx, block, anchor.counter).await;
        };
        // Never written to its end: a full chunk that can't be read is one whose erase was cut.
        let full = cursor + self.block_room() >= self.flash.geo.sectors_per_chunk();
        if full {
            self.journal.locked().anchor_cursor = self.first_anchor_room();
        }
        let good = match full {
            true => {
                let mut good = true;
                if mutant!("log.anchors-erased-at-once") {
                    let erased = (self.erase(cx, chunks[1]).await, self.erase(cx, chunks[0]).await);
                    let put = (true, true) == erased;
                    let put = put && self.put_anchors(cx, chunks, 0, &block, anchor.counter).await;
                    return if put {
                        Ok(())
                    } else {
                        self.replace_anchor(cx, block, anchor.counter).await
                    };
                }
                for chunk in chunks {
                    // Not the second where the first is lost: it holds the highest counter.
                    good = good
                        && self.erase(cx, chunk).await
                        && self.put_anchor(cx, (chunk, 0), &block, anchor.counter).await;
                }
                good
            }
            false => self.put_anchors(cx, chunks, cursor, &block, anchor.counter).await,
        };
        if good {
            return Ok(());
        }
        self.replace_anchor(cx, block, anchor.counter).await
    }

    /// Programs both copies of an anchor.
    async fn put_anchors(
        &self,
        cx: &Cx,
        chunks: [u32; 2],
        cursor: u32,
        block: &[u8],
        counter: u64,
    ) -> bool {
        let me = self.me.upgrade().expect("whoever writes the log holds the target");
        let block: Arc<[u8]> = block.into();
        let [a, b] = chunks.map(|chunk| {
            let (me, cx2, block) = (me.clone(), cx.clone(), block.clone());
            let put = async move { me.put_anchor(&cx2, (chunk, cursor), &block, counter).await };
            cx.spawn_join(put)
        });
        let (a, b) = (a.await, b.await);
        a && b
    }

    /// Sectors that the first anchor of a chunk takes, with the padding that makes it readable: by its
    /// first sector recovery tells what a chunk is, and it can't pad what it does not know.
    fn first_anchor_room(&self) -> u32 {
        let behind = self.shape.window - self.shape.pair_pads;
        let behind = if mutant!("log.first-anchor-unreadable") { 0 } else { behind };
        let room = self.block_room() + behind;
        room.next_multiple_of(self.shape.unit).min(self.shape.chunk_sectors)
    }

    /// Programs one copy of an anchor.
    async fn put_anchor(&self, cx: &Cx, at: (u32, u32), block: &[u8], counter: u64) -> bool {
        let is_second = self.journal.locked().anchor.is_some_and(|a| a[1] == at.0);
        let is_none = is_second && mutant!("log.anchor-on-one-die");
        let tag = (if is_none { LBA_PADDING } else { LBA_ANCHOR }, counter);
        if !self.program_meta(cx, at, block, tag, Cause::Log).await {
            return false;
        }
        let behind = self.first_anchor_room() - self.block_room();
        if at.1 > 0 || behind == 0 {
            return true;
        }
        let zeros = vec![0u8; behind as usize * SECTOR_BYTES];
        let tag = (LBA_PADDING, counter);
        let at = (at.0, self.block_room());
        self.program_meta(cx, at, &zeros, tag, Cause::PaddingPair).await
    }

    /// An anchor copy is lost: both move to fresh chunks, which recovery finds by scan. Once they hold
    /// the highest counter the old ones come back: one that can't be erased is retired then.
    async fn replace_anchor(&self, cx: &Cx, block: Vec<u8>, counter: u64) -> BlockResult {
        let mut old: Vec<u32> = self.journal.locked().anchor.into_iter().flatten().collect();
        let is_early = mutant!("log.old-anchors-given-back");
        if is_early {
            self.give_meta_back(&std::mem::take(&mut old));
        }
        loop {
            let pair = self.next_pair(cx).await?;
            if self.put_anchors(cx, pair.chunks, 0, &block, counter).await {
                let mut s = self.journal.locked();
                s.anchor = Some(pair.chunks);
                s.anchor_cursor = self.first_anchor_room();
                drop(s);
                self.give_meta_back(&old);
                return Ok(());
            }
            old.extend(pair.chunks);
        }
    }
}
