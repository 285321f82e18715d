//! Reclaims lines: picks a victim, moves live sectors through the ring, has its chunks freed.
//!
//! Owns: the choice (fewest valid sectors), the moves, the erase barrier, forced collection.
//! Promises: an acknowledged sector is readable at every instant of a move; the map changes from
//! old place to slot in one exchange; a line is freed only after, in this order: its last
//! invalidation, the end of every operation of that epoch, a barrier over the ring and the log, a
//! durable `freed` record (FORMAT.md rule 1). An unreadable live sector is poisoned, never
//! rewritten (rule 14). Moves are admitted victim after victim, and only while the medium has room
//! for everything admitted, so the reserve covers them.
//! Never: decides *when* to run (that is `limiter`) or *where* data goes (that is `pool`).
//!
//! The life of a GC: victim → its closing metadata read back (what is where) → live sectors read in
//! vectors → each into a slot with its old stamp, unless overwritten meanwhile → drained like any
//! other → barrier → `freed` → chunks free.

use super::format::{ClosingView, LBA_LIMIT, LBA_LINE_CLOSING, Oob, Record};
use super::map::Entry;
use super::pool::{LineState, PoolState};
use super::ring::RingState;
use super::slab::Origin;
use super::{HostFtl, add};
use flashlane_base::{OOB_BYTES, Ppa, SECTOR_BYTES, VECTOR_MAX};
use flashlane_ocssd::device::{Completion, Data, Flags, Op, Request, Scatter, Ticket};
use flashlane_rt::sync::{AtomicBool, Mutex, Ordering};
use flashlane_rt::{Credits, Cx, Join, Notify};
use std::sync::Arc;

/// Switches and queues of garbage collection.
pub(super) struct Control {
    pub(super) enabled: AtomicBool,
    /// The limiter wants victims taken.
    pub(super) wanted: AtomicBool,
    pub(super) work: Notify,
    /// Collect whatever the limiter says (pblk's `gc_force`).
    forced: AtomicBool,
    /// The moves of one victim are admitted at a time.
    turn: Credits,
    /// Lines whose erase barrier has passed: their chunks are about to come back.
    past_barrier: AtomicBool,
    /// Lines with nothing live, waiting for the barrier.
    freeing: Mutex<Vec<u32>>,
}

impl Control {
    pub(super) fn new(enabled: bool) -> Control {
        Control {
            enabled: AtomicBool::new(enabled),
            wanted: AtomicBool::new(false),
            work: Notify::new(),
            forced: AtomicBool::new(false),
            turn: Credits::new(1),
            past_barrier: AtomicBool::new(false),
            freeing: Mutex::new(Vec::new()),
        }
    }
}

impl Control {
    /// Is the free task between a barrier and the chunks that come back behind it?
    pub(super) fn is_giving_back(&self) -> bool {
        self.past_barrier.load(Ordering::Acquire)
    }

    /// Garbage was made: a forced collection looks again.
    #[inline]
    pub(super) fn note_garbage(&self, cx: &Cx) {
        if self.forced.load(Ordering::Relaxed) {
            self.work.wake(cx);
        }
    }

    /// Collects line after line until switched off.
    pub(super) fn force(&self, on: bool) {
        self.forced.store(on, Ordering::SeqCst);
    }
}

/// Live sectors of a victim that are read together.
#[derive(Default)]
struct Batch {
    addrs: Vec<u64>,
    /// (lba, stamp) by the closing metadata; [`UNKNOWN`] where that could not be read.
    known: Vec<(u64, u64)>,
    ppas: Vec<Ppa>,
    oob: Vec<[u8; OOB_BYTES]>,
}

/// No closing metadata says what a sector is.
const UNKNOWN: (u64, u64) = (u64::MAX, 0);

/// A sector read from a victim, on its way into a slot.
struct Moving {
    addr: u64,
    lba: u64,
    stamp: u64,
    /// By the closing metadata.
    known_lba: u64,
    /// Content, address and stamp agree with each other and with the closing metadata.
    whole: bool,
}

/// The reverse map of a victim: its closing metadata, if it could be read.
struct ReverseMap {
    bytes: Option<Vec<u8>>,
}

impl HostFtl {
    /// Takes victims while the limiter wants it, until the target stops.
    pub(super) async fn gc_loop(self: Arc<Self>, cx: Cx) {
        loop {
            let ready = || self.candidate(false).is_some_and(|line| self.fits(line));
            let wanted = || self.is_stopping() || ready();
            self.gc.work.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            self.gc.turn.acquire(&cx, 1).await;
            if let Some(line) = self.take_victim(false) {
                self.move_line(&cx, line).await;
            }
            self.gc.turn.release(&cx, 1);
        }
    }

    /// One forced collection, from choice to free chunks.
    pub(super) async fn collect_one(self: &Arc<Self>, cx: &Cx) -> bool {
        self.gc.turn.acquire(cx, 1).await;
        let victim = self.take_victim(true);
        let Some(line) = victim else {
            self.gc.turn.release(cx, 1);
            return false;
        };
        let sequence = self.pool.lock().lines[line as usize].sequence;
        self.move_line(cx, line).await;
        self.gc.turn.release(cx, 1);
        self.ring.state.now(|r| r.urgent += 1);
        self.ring.work.wake(cx);
        let gone = || {
            let p = self.pool.lock();
            let l = &p.lines[line as usize];
            l.sequence != sequence || matches!(l.state, LineState::Free | LineState::Closed)
        };
        self.pool_changed.wait(cx, || self.read_only() || gone()).await;
        self.ring.state.now(|r| r.urgent -= 1);
        gone()
    }

    /// The line to collect next: a line with a failed chunk first, then one with nothing valid,
    /// then, when the limiter wants it or `force`, the fewest valid sectors. A line that is valid
    /// throughout is never worth it.
    fn candidate(&self, force: bool) -> Option<u32> {
        let wanted = force
            || self.gc.wanted.load(Ordering::Acquire)
            || self.gc.forced.load(Ordering::Acquire);
        if !force && !self.gc.enabled.load(Ordering::Acquire) {
            return None;
        }
        let p = self.pool.lock();
        let closed = p.lines.iter().enumerate().filter(|(_, l)| l.state == LineState::Closed);
        let mut best: Option<(u32, u32)> = None;
        for (id, l) in closed {
            let valid = self.lines.valid(id as u32);
            if l.failed || valid == 0 {
                return Some(id as u32);
            }
            let data = self.shape.line_data(l.chunks.len() as u32);
            if (valid as u64) < data && best.is_none_or(|(v, _)| valid < v) {
                best = Some((valid, id as u32));
            }
        }
        best.filter(|_| wanted).map(|(_, id)| id)
    }

    /// Is any line worth collecting?
    pub(super) fn has_candidate(&self) -> bool {
        self.candidate(false).is_some()
    }

    /// Is there room on the medium for everything admitted and the victim's sectors? Moves fill the
    /// ring, whose tail the erase barrier waits for: without this, victim after victim would eat
    /// the chunks that those before them are going to give back. With nothing to come back the
    /// reserve covers one victim by itself.
    fn fits(&self, line: u32) -> bool {
        let valid = self.lines.valid(line) as u64;
        let ([users, gc], _) = self.ring.admission.snapshot();
        let p = self.pool.lock();
        let coming = p.count(LineState::Victim) + p.count(LineState::Freeing) > 0;
        !coming || valid == 0 || p.room() >= users.0 + gc.0 + valid
    }

    fn take_victim(&self, force: bool) -> Option<u32> {
        let line = self.candidate(force)?;
        if !force && !self.fits(line) {
            return None;
        }
        let mut p = self.pool.lock();
        if p.lines[line as usize].state != LineState::Closed {
            return None;
        }
        p.make_victim(line);
        add(&self.counters.gc_victims, 1);
        Some(line)
    }

    /// Moves what is live; hands the line on to be freed when the last move has ended.
    async fn move_line(self: &Arc<Self>, cx: &Cx, line: u32) {
        let mut moves: Vec<Join<()>> = Vec::new();
        if self.lines.valid(line) == 0 {
            add(&self.counters.gc_free_rides, 1);
        } else {
            let reverse = self.reverse_map(cx, line).await;
            let chunks = self.pool.lock().lines[line as usize].chunks.clone();
            let view = reverse.bytes.as_deref().and_then(|b| ClosingView::decode(b).ok());
            let mut batch = Batch::default();
            for row in 0..self.shape.chunk_sectors / self.shape.unit {
                for at in 0..chunks.len() {
                    self.gather(&chunks, at, row, view.as_ref().map(|v| &v.1), &mut batch);
                    if batch.addrs.len() + self.shape.unit as usize > VECTOR_MAX {
                        self.start_move(cx, &mut batch, &mut moves).await;
                    }
                }
            }
            self.start_move(cx, &mut batch, &mut moves).await;
        }
        let (me, cx2) = (self.clone(), cx.clone());
        self.background(cx, async move {
            for m in moves {
                m.await;
            }
            me.moved(&cx2, line);
        });
    }

    /// All moves of a victim have ended.
    fn moved(&self, cx: &Cx, line: u32) {
        let mut p = self.pool.lock();
        if self.lines.valid(line) == 0 {
            p.make_freeing(line);
            self.gc.freeing.lock().push(line);
        } else {
            p.back_to_closed(line);
        }
        drop(p);
        self.pool_changed.wake(cx);
    }

    /// Reads a victim's closing metadata back. Any part that does not verify: none of it.
    async fn reverse_map(&self, cx: &Cx, line: u32) -> ReverseMap {
        let (places, sequence) = {
            let p = self.pool.lock();
            let l = &p.lines[line as usize];
            (l.closing.clone(), l.sequence)
        };
        let mut bytes = Vec::with_capacity(places.len() * self.shape.unit as usize * SECTOR_BYTES);
        for (chunk, sector, count) in places {
            match self.read_meta(cx, (chunk, sector), count as usize, LBA_LINE_CLOSING).await {
                Some(part) => bytes.extend(part),
                None => return ReverseMap { bytes: None },
            }
        }
        let good = ClosingView::decode(&bytes)
            .is_ok_and(|(h, v)| h.line == line && h.sequence == sequence && v.check().is_ok());
        ReverseMap { bytes: good.then_some(bytes) }
    }

    /// Adds the live sectors of one unit to a batch.
    #[inline]
    fn gather(
        &self,
        chunks: &[u32],
        at: usize,
        row: u32,
        view: Option<&ClosingView<'_>>,
        batch: &mut Batch,
    ) {
        let unit = self.shape.unit;
        let first = chunks[at] as u64 * self.shape.chunk_sectors as u64 + (row * unit) as u64;
        let mut bits = self.lines.bits(first, unit);
        let entry = PoolState::entry_index(&self.shape, chunks.len(), at, row * unit);
        while bits != 0 {
            let i = bits.trailing_zeros();
            bits &= bits - 1;
            batch.known.push(view.map_or(UNKNOWN, |v| v.entry(entry + i as usize)));
            batch.addrs.push(first + i as u64);
        }
    }

    /// Admits a batch under GC's share and starts its read and move.
    async fn start_move(self: &Arc<Self>, cx: &Cx, batch: &mut Batch, moves: &mut Vec<Join<()>>) {
        let admitted = batch.addrs.len() as u64;
        if admitted == 0 {
            return;
        }
        self.ring.admission.acquire(cx, Origin::Gc, admitted).await;
        // Waiting took time: what was overwritten meanwhile need not be read.
        batch.retain(|addr| self.lines.is_valid(addr));
        if self.read_only() || batch.addrs.is_empty() {
            // Read-only: everybody was let in to be told so, nothing is moved any more.
            self.ring.admission.release(cx, 0, admitted);
            batch.clear();
            return;
        }
        let (ticket, moving, content) = self.submit_batch(cx, batch);
        batch.clear();
        let (me, cx2) = (self.clone(), cx.clone());
        moves.push(cx.spawn_join(async move {
            let done = me.device.wait(&cx2, ticket).await;
            me.move_batch(&cx2, moving, content, &done, admitted).await;
        }));
    }

    /// Submits the vector read of a batch. Content is there since the submission; whether the
    /// medium vouches for it comes with the completion.
    fn submit_batch(&self, cx: &Cx, batch: &mut Batch) -> (Ticket, Vec<Moving>, Vec<u8>) {
        let unit = self.info.content_bytes;
        let n = batch.addrs.len();
        batch.ppas.extend(batch.addrs.iter().map(|addr| {
            let (chunk, sector) = self.lines.chunk_of(*addr);
            self.format.in_chunk(self.chunk_base[chunk as usize], sector)
        }));
        batch.oob.resize(n, [0; OOB_BYTES]);
        let mut content = vec![0u8; n * unit];
        let to = Scatter { base: &mut content, index: &super::meta::IN_ORDER[..n], unit };
        let request = Request {
            op: Op::Read,
            flags: Flags::default(),
            addrs: &batch.ppas,
            data: Data::Read { content: to, oob: &mut batch.oob },
            whole_sectors: false,
        };
        let ticket = self.device.submit(cx, request);
        let sectors = batch.addrs.iter().zip(&batch.known).zip(&batch.oob);
        let moving = sectors
            .zip(content.chunks_exact(unit))
            .map(|(((addr, known), oob), content)| {
                let (lba, stamp, _) = Oob::decode_raw(oob);
                let agrees = *known == UNKNOWN || *known == (lba, stamp);
                let whole = agrees
                    && lba < self.info.capacity
                    && Oob::verify_crc(oob, self.content_crc(content));
                if whole {
                    self.map.prefetch(lba);
                }
                Moving { addr: *addr, lba, stamp, known_lba: known.0, whole }
            })
            .collect();
        (ticket, moving, content)
    }

    async fn move_batch(
        &self,
        cx: &Cx,
        moving: Vec<Moving>,
        content: Vec<u8>,
        done: &Completion,
        admitted: u64,
    ) {
        let unit = self.info.content_bytes;
        moving.iter().filter(|m| m.whole).for_each(|m| self.map.prefetch(m.lba));
        let cost = self.costs.map_update.times(moving.len() as u64);
        let section = |_: &mut ()| {
            self.ring.state.now(|r| {
                let sectors = moving.iter().zip(content.chunks_exact(unit)).enumerate();
                let mut used = 0;
                for (i, (m, content)) in sectors {
                    used += self.move_sector(r, m, content, done.status(i).is_ok()) as u64;
                }
                (used, r.has_work(self.shape.unit as usize))
            })
        };
        let (used, work) = self.map.lock.with(cx, cost, section).await;
        add(&self.counters.gc_moved, used);
        if used < admitted {
            self.ring.admission.release(cx, 0, admitted - used);
        }
        if work {
            self.ring.work.wake(cx);
        }
    }

    /// Moves one sector into a slot, unless it is garbage by now. True when a slot was used.
    fn move_sector(&self, ring: &mut RingState, m: &Moving, content: &[u8], read: bool) -> bool {
        if !self.lines.is_valid(m.addr) {
            return false;
        }
        if !read || !m.whole {
            self.poison(m.addr, m.known_lba);
            return false;
        }
        let from = self.map.encode(Entry::Media(m.addr));
        if self.map.raw(m.lba) != from {
            return false;
        }
        let slot = ring.take_free();
        self.slab.fill(slot, m.lba, Origin::Gc, content);
        self.slab.set_order(slot, m.stamp, (m.addr + 1, m.stamp));
        if !self.map.exchange(m.lba, from, self.map.encode(Entry::Slot(slot))) {
            ring.release(&self.slab, [slot]);
            return false;
        }
        self.lines.invalidate(m.addr);
        ring.insert(slot);
        true
    }

    /// The newest content of a sector can't be read: reads fail from now on until it is written.
    /// Where the closing metadata does not say which sector it is, the map is searched.
    fn poison(&self, addr: u64, known_lba: u64) {
        add(&self.counters.gc_read_failures, 1);
        let from = self.map.encode(Entry::Media(addr));
        let lba = if known_lba < LBA_LIMIT && known_lba < self.info.capacity {
            Some(known_lba)
        } else {
            (0..self.info.capacity).find(|lba| self.map.raw(*lba) == from)
        };
        let Some(lba) = lba else { return };
        let stamp = self.lines.stamp_max(self.lines.line_of(addr));
        if self.map.exchange(lba, from, self.map.encode(Entry::Poisoned)) {
            self.poisons.lock().insert(lba, stamp);
            self.lines.invalidate(addr);
            self.journal.append(Record::Poisoned { lba, stamp });
        }
    }

    /// Frees emptied lines behind the erase barrier, until the target stops.
    pub(super) async fn free_loop(self: Arc<Self>, cx: Cx) {
        loop {
            let wanted = || self.is_stopping() || !self.gc.freeing.lock().is_empty();
            self.pool_changed.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            let lines = std::mem::take(&mut *self.gc.freeing.lock());
            if self.free_lines(&cx, &lines).await.is_err() {
                return; // read-only: the lines stay as they are, for recovery
            }
            self.pool_moved(&cx);
        }
    }

    async fn free_lines(&self, cx: &Cx, lines: &[u32]) -> crate::block::BlockResult {
        self.epochs.synchronize(cx).await;
        let to = self.ring.state.now(|r| r.tail());
        self.wait_programmed(cx, to, false).await?;
        if self.traits.pair_damage {
            self.close_pairs(cx).await?;
        }
        self.gc.past_barrier.store(true, Ordering::Release);
        let mut at = self.journal.appended();
        for line in lines {
            let sequence = self.pool.lock().lines[*line as usize].sequence;
            at = self.journal.append(Record::Freed { line: *line, sequence });
            let retired = self.pool.lock().lines[*line as usize].retire.clone();
            for chunk in retired {
                at = self.journal.append(Record::Retired { chunk });
            }
        }
        self.commit(cx, at).await?;
        for line in lines {
            let chunks = self.pool.lock().freed(*line);
            chunks.iter().for_each(|c| self.lines.set_line(*c, super::lines::NO_LINE));
        }
        self.gc.past_barrier.store(false, Ordering::Release);
        Ok(())
    }
}

impl Batch {
    fn clear(&mut self) {
        self.addrs.clear();
        self.known.clear();
        self.ppas.clear();
        self.oob.clear();
    }

    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let mut n = 0;
        for i in 0..self.addrs.len() {
            if keep(self.addrs[i]) {
                self.addrs[n] = self.addrs[i];
                self.known[n] = self.known[i];
                n += 1;
            }
        }
        self.addrs.truncate(n);
        self.known.truncate(n);
    }
}
