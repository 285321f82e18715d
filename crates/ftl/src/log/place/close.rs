//! Closing lines: the metadata that says what a line holds, and page pairs closed for a flush.
//!
//! Owns: building and placing the closing metadata, releasing what waited in read-back windows.
//! Promises: closing metadata is built only after every unit of the line has completed (FORMAT.md
//! rule 8); its place is stored in `closed`, never computed; afterwards every living chunk of the
//! line is full, so everything in it is readable. Never: moves data.

use crate::block::BlockResult;
use crate::log::HostFtl;
use crate::log::format::{ClosingHeader, Extent, LBA_LINE_CLOSING, LBA_PADDING, Record};
use crate::log::pool::{LineState, Place, PoolState, Spot, Tell};
use crate::log::unit::Released;
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::Cx;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Closing metadata on its way: whole write units, and which of them are still to be placed.
struct Parts {
    bytes: Vec<u8>,
    /// Bytes of a unit.
    unit: usize,
    todo: RefCell<VecDeque<usize>>,
}

impl HostFtl {
    /// Starts closing a line that takes no more data, once nothing of it is in flight.
    pub(in crate::log) fn close_if_ready(&self, cx: &Cx, line: u32) {
        let Some(me) = self.me.upgrade() else { return };
        {
            let mut p = self.pools.of_line(line).lock();
            if !p.ready_to_close(line) {
                return;
            }
            p.begin_closing(line);
        }
        let their_cx = cx.clone();
        me.clone().background(cx, async move { me.close_line(&their_cx, line).await });
    }

    async fn close_line(self: Arc<Self>, cx: &Cx, line: u32) {
        let (bytes, sequence) = self.build_closing(line);
        let places = self.write_closing(cx, line, sequence, bytes).await;
        self.empty_windows(cx, line).await;
        {
            let mut p = self.pools.of_line(line).lock();
            // The part of the closing metadata that says what a unit holds may be on that unit's
            // die.
            if !mutant!("log.closed-untold") {
                self.tell_line(&mut p, line, Tell::Closing);
            }
            p.closed(line, places.clone(), self.tells);
        }
        self.pool_moved(cx);
        // What its failed chunks held goes out again, and its closing metadata does not name it: until
        // that is programmed recovery has to find it here (FORMAT.md, hole 35).
        let sent = || self.rings.nothing_again() || mutant!("log.closed-before-resent");
        self.rings.progress.wait(cx, || sent() || self.read_only()).await;
        // Nor before all of the line is on the medium: who reads the closing metadata, which is believed
        // from `closed` on, does not look at the sectors.
        let settled = match mutant!("log.closed-unsettled") {
            true => Ok(()),
            false => self.settle_device(cx).await,
        };
        let mut p = self.pools.of_line(line).lock();
        let l = p.line(line);
        if l.sequence == sequence && !l.gone && !self.read_only() && settled.is_ok() {
            // Durable with the next commit; until then recovery scans the line.
            self.journal.append(self.closed_record(line, sequence, &places));
            p.logged(line);
        }
        drop(p);
        self.pool_changed.wake(cx);
    }

    /// The record of a closed line. Places that lie one behind the other are one extent; where they
    /// are too many for a log block there are none, and recovery scans the line.
    pub(in crate::log) fn closed_record(
        &self,
        line: u32,
        sequence: u64,
        places: &[Place],
    ) -> Record {
        let mut extents: Vec<Extent> = Vec::new();
        for (chunk, sector, count) in places.iter().copied() {
            match extents.last_mut() {
                Some(e) if e.chunk == chunk && e.sector + e.count == sector => e.count += count,
                _ => extents.push(Extent { chunk, sector, count }),
            }
        }
        let record = Record::Closed { line, sequence, places: extents };
        if record.encoded_len() <= self.record_max() {
            return record;
        }
        Record::Closed { line, sequence, places: Vec::new() }
    }

    fn build_closing(&self, line: u32) -> (Vec<u8>, u64) {
        let p = self.pools.of_line(line).lock();
        let l = p.line(line);
        let entries = p.closing_entries(line);
        let mut header = ClosingHeader::of(self.journal.uuid, line, l.sequence, &entries);
        header.generation = self.journal.generation;
        let causes = l.open.iter().flat_map(|open| open.causes);
        header.causes.iter_mut().zip(causes).for_each(|(to, sectors)| *to = sectors);
        (header.encode(&entries), l.sequence)
    }

    /// Writes the metadata over the positions that are left, pads the rest: one task per chunk, in
    /// the chunk's order. Returns where it lies; nothing when a part of it could not be placed.
    async fn write_closing(
        self: &Arc<Self>,
        cx: &Cx,
        line: u32,
        sequence: u64,
        bytes: Vec<u8>,
    ) -> Vec<Place> {
        let unit = self.shape.unit as usize * SECTOR_BYTES;
        let mut bytes = bytes;
        bytes.resize(bytes.len().next_multiple_of(unit), 0);
        let whole = bytes.len() / unit;
        let todo = Rc::new(Parts { bytes, unit, todo: RefCell::new((0..whole).collect()) });
        let chunks = self.pools.of_line(line).lock().line(line).chunks.len();
        let tasks: Vec<_> = (0..chunks)
            .map(|at| {
                let (me, cx2, todo) = (self.clone(), cx.clone(), todo.clone());
                cx.spawn_join(async move { me.fill_chunk(&cx2, line, at, sequence, &todo).await })
            })
            .collect();
        let mut placed: Vec<(usize, Place)> = Vec::new();
        for task in tasks {
            placed.extend(task.await);
        }
        placed.sort_unstable();
        if placed.len() < whole {
            return Vec::new();
        }
        placed.into_iter().map(|(_, place)| place).collect()
    }

    /// Fills one chunk of a closing line with metadata, then with padding. A part whose program
    /// failed goes back to the others.
    async fn fill_chunk(
        &self,
        cx: &Cx,
        line: u32,
        at: usize,
        sequence: u64,
        parts: &Parts,
    ) -> Vec<(usize, Place)> {
        let mut placed = Vec::new();
        while let Some(spot) = self.spot_in(cx, line, at).await {
            let part = parts.todo.borrow_mut().pop_front();
            let Some(i) = part else {
                let tag = (LBA_PADDING, sequence);
                self.program_unit(cx, (&spot, 1), &self.zeros, tag, Cause::PaddingGc).await;
                continue;
            };
            let tag = (LBA_LINE_CLOSING, sequence);
            let bytes = &parts.bytes[i * parts.unit..(i + 1) * parts.unit];
            if self.program_unit(cx, (&spot, 1), bytes, tag, Cause::Metadata).await {
                placed.push((i, (spot.chunk, spot.sector, self.shape.unit)));
            } else {
                parts.todo.borrow_mut().push_front(i);
            }
        }
        placed
    }

    /// The next position of a chunk that takes no data, with the PU's semaphore held: nobody else takes
    /// one there, so programs reach it in order.
    pub(in crate::log) async fn spot_in(&self, cx: &Cx, line: u32, at: usize) -> Option<Spot> {
        self.spot_by(cx, (line, at), 1, |p| p.take_at(line, at)).await
    }

    /// The position that `take` gives in a chunk, with so much of the PU's semaphore held. It is
    /// submitted a while after it is taken: where others take positions in between, all of it.
    async fn spot_by(
        &self,
        cx: &Cx,
        (line, at): (u32, usize),
        held: u64,
        take: impl FnOnce(&mut PoolState) -> Option<Spot>,
    ) -> Option<Spot> {
        let pool = self.pools.of_line(line);
        let pu = pool.lock().pu_of(line, at)?;
        self.pu[pu as usize].acquire(cx, held).await;
        let spot = take(&mut pool.lock());
        if spot.is_none() {
            self.pu[pu as usize].release(cx, held);
        }
        spot
    }

    /// Programs one unit of whole sectors at a position that [`Self::spot_by`] gave, and releases what
    /// is held of the PU. What that makes readable in the chunk's window is published.
    async fn program_unit(
        &self,
        cx: &Cx,
        (spot, held): (&Spot, u64),
        bytes: &[u8],
        tag: (u64, u64),
        cause: Cause,
    ) -> bool {
        let entries = [tag; 64];
        self.note_entries(spot, &entries[..self.shape.unit as usize], cause);
        let ticket = self.submit_meta(cx, (spot.chunk, spot.sector), bytes, tag, cause);
        let done = self.flash.device.wait(cx, ticket).await;
        let mut released = Released::default();
        let (again, _) = {
            let mut p = self.pools.of_line(spot.line).lock();
            if done.failed == 0 {
                p.completed(spot, None, &mut released)
            } else {
                p.unit_failed(spot, None, done.failed, &mut released)
            }
        };
        if done.failed != 0 {
            self.note_meta_failure(cx, spot.chunk, &done, cause);
        }
        if !again.is_empty() {
            self.send_again(cx, again);
        }
        // Only now may the next program reach this PU: the pool knows how this one ended.
        self.pu[spot.pu as usize].release(cx, held);
        self.publish_media(cx, released).await;
        self.rings.progress.wake(cx);
        self.pools.of_line(spot.line).lock().published(spot.line);
        if self.shares().users == 0 {
            // A collector may have put off its verdict because of it.
            self.wake_collectors(cx);
        }
        done.failed == 0
    }

    /// Everything programmed in a full line is readable: nothing of it stays in slots. What lies
    /// in the window of a chunk that died short of its end was sent again already.
    async fn empty_windows(&self, cx: &Cx, line: u32) {
        let mut released = Released::default();
        {
            let mut p = self.pools.of_line(line).lock();
            let shape = p.shape;
            let open = p.line_mut(line).open.as_mut().expect("a closing line is open");
            for c in &mut open.chunks {
                c.release(&shape, &mut released);
                assert!(c.window.is_empty(), "a slot would wait for ever in chunk {}", c.chunk);
            }
        }
        self.publish_media(cx, released).await;
        self.rings.progress.wake(cx);
    }

    /// Pads every open chunk until what is programmed in it now is readable, hence safe from a torn
    /// upper page (`pair_damage`): one task per chunk, all of which have ended when this returns.
    pub(in crate::log) async fn close_pairs(&self, cx: &Cx) -> BlockResult {
        let pairs = self.pools.iter().flat_map(|pool| pool.lock().unclosed_pairs());
        let pairs: Vec<OpenPair> = pairs.collect();
        let me = self.me.upgrade().expect("whoever flushes holds the target");
        let tasks: Vec<_> = pairs
            .into_iter()
            .map(|pair| {
                let (me, cx2) = (me.clone(), cx.clone());
                me.task_began();
                cx.spawn_join(async move {
                    let closed = me.close_pair(&cx2, &pair).await;
                    me.task_ended(&cx2);
                    closed
                })
            })
            .collect();
        let mut closed = Ok(());
        for task in tasks {
            closed = closed.and(task.await);
        }
        closed
    }

    /// Pads one chunk, in its order. Whatever is programmed there meanwhile, data or the padding of
    /// another flush, is padding that this one need not write.
    async fn close_pair(&self, cx: &Cx, pair: &OpenPair) -> BlockResult {
        let (line, at) = (pair.line, pair.at);
        let step = || self.pools.of_line(line).lock().pair_step(pair);
        loop {
            match step() {
                PairStep::Done => return Ok(()),
                PairStep::Pad => {
                    let take = |p: &mut PoolState| p.take_padding(pair);
                    let all = self.pu_budget;
                    if let Some(spot) = self.spot_by(cx, (line, at), all, take).await {
                        let (spot, tag) = ((&spot, all), (LBA_PADDING, pair.sequence));
                        self.program_unit(cx, spot, &self.zeros, tag, Cause::PaddingPair).await;
                        self.close_if_ready(cx, line);
                    }
                }
                PairStep::Wait => {
                    self.close_if_ready(cx, line);
                    let moved = || self.read_only() || matches!(step(), PairStep::Done);
                    self.pool_changed.wait(cx, moved).await;
                    self.check_writable()?;
                }
            }
        }
    }
}

/// Units of an open chunk that are programmed but not yet readable.
pub(in crate::log) struct OpenPair {
    pub(in crate::log) line: u32,
    sequence: u64,
    /// Index of the chunk in the line.
    pub(in crate::log) at: usize,
    /// Up to which sector.
    end: u32,
}

/// What a flush has to do about one chunk.
pub(in crate::log) enum PairStep {
    /// What it waits for is readable.
    Done,
    /// Program padding here.
    Pad,
    /// The line is being closed, which fills the chunk.
    Wait,
}

impl PoolState {
    /// Chunks with programmed units that are not readable yet.
    fn unclosed_pairs(&self) -> Vec<OpenPair> {
        let mut out = Vec::new();
        for (id, line) in self.lines() {
            let Some(open) = &line.open else { continue };
            for (at, c) in open.chunks.iter().enumerate() {
                if c.holds_unreadable() {
                    let (line, sequence) = (id, line.sequence);
                    out.push(OpenPair { line, sequence, at, end: c.ended(self.shape.unit) });
                }
            }
        }
        out
    }

    pub(in crate::log) fn pair_step(&self, pair: &OpenPair) -> PairStep {
        let l = self.line(pair.line);
        let Some(open) = l.open.as_ref().filter(|_| l.sequence == pair.sequence) else {
            return PairStep::Done;
        };
        let c = &open.chunks[pair.at];
        let nothing_waits = c.window.is_empty() && !c.holds_early();
        if !c.alive || c.window_end > pair.end || nothing_waits {
            return PairStep::Done;
        }
        match l.state {
            LineState::Open => PairStep::Pad,
            _ => PairStep::Wait,
        }
    }
}
