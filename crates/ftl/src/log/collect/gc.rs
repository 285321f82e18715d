//! Reclaims lines: moves a victim's live sectors through the ring, has its chunks freed.
//!
//! Owns: the moves, the erase barrier, forced collection, for whatever reason `victim` chose a line.
//! Promises: an acknowledged sector is readable at every instant of a move; the map changes from
//! old place to slot in one exchange; a line is freed only after, in this order: its last
//! invalidation, the end of every operation of that epoch, a barrier over the ring and the log, a
//! durable `freed` record (FORMAT.md rule 1). An unreadable live sector is poisoned, never
//! rewritten (rule 14). Moves are admitted victim after victim, and only while the medium has room
//! for everything admitted, so the reserve covers them.
//! Never: decides *when* to run (that is `limiter`), *what* to collect (that is `victim`) or *where*
//! data goes (that is `pool`).
//!
//! The life of a GC: victim → its closing metadata read back (what is where) → live sectors read in
//! vectors → each into a slot with its old stamp, unless overwritten meanwhile → drained like any
//! other → barrier → `freed` → chunks free.

use crate::log::contention::bump;
use crate::log::flash::RETRIES;
use crate::log::format::{
    ClosingView, LBA_LIMIT, LBA_LINE_CLOSING, LBA_NONE, Oob, PACKED_BYTES, Record, pack_entry,
    unpack_entry,
};
use crate::log::limiter::Shares;
use crate::log::map::{Entry, View};
use crate::log::pool::{LineState, PoolState};
use crate::log::pools::Pool;
use crate::log::read::whole_sectors;
use crate::log::ring::{RingState, Waited};
use crate::log::slab::Origin;
use crate::log::verdict::Barrier;
use crate::log::victim::Reason;
use crate::log::{HostFtl, add};
use flashlane_base::{OOB_BYTES, Ppa, SECTOR_BYTES, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, ChunkState, Completion, Flags, Request, Scatter, Ticket};
use flashlane_rt::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use flashlane_rt::{Credits, Cx, Notify};
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Switches and queues of garbage collection.
pub(in crate::log) struct Control {
    pub(in crate::log) enabled: AtomicBool,
    /// Collect whatever the limiter says (pblk's `gc_force`).
    pub(in crate::log) forced: AtomicBool,
    hungry: AtomicBool,
    /// Pools choose their victims one after the other: each sees what the others have claimed.
    pub(in crate::log) choosing: Mutex<()>,
    /// Whoever works out whether barriers may be padded for.
    pub(in crate::log) pressing: Mutex<()>,
    /// How far the lines have come that are being freed. Taken before a pool's lock or a ring's.
    pub(in crate::log) barrier: Mutex<Barrier>,
    /// Lines with nothing live, waiting for the barrier.
    freeing: Mutex<Vec<u32>>,
    /// Batches admitted that are not in their ring yet: each may leave a tail there.
    pub(in crate::log) moving: AtomicU64,
    /// Batches that are not in flight, for the next ones.
    #[expect(clippy::vec_box, reason = "a batch moves between tasks as one pointer")]
    batches: Mutex<Vec<Box<Batch>>>,
    /// Memory of the next reverse map.
    reverse: Mutex<Vec<u8>>,
    /// What has changed garbage or room since the mount, but for the host's writes (`changes`).
    changes: AtomicU64,
}

impl Control {
    pub(in crate::log) fn new(enabled: bool) -> Control {
        Control {
            enabled: AtomicBool::new(enabled),
            forced: AtomicBool::new(false),
            hungry: AtomicBool::new(false),
            choosing: Mutex::new(()),
            pressing: Mutex::new(()),
            barrier: Mutex::new(Barrier::Idle),
            freeing: Mutex::new(Vec::new()),
            moving: AtomicU64::new(0),
            batches: Mutex::new(Vec::new()),
            reverse: Mutex::new(Vec::new()),
            changes: AtomicU64::new(0),
        }
    }
}

impl Control {
    /// Collects line after line, while that wins something, until switched off.
    pub(in crate::log) fn force(&self, on: bool) {
        self.forced.store(on, Ordering::SeqCst);
    }
}

/// Garbage collection of one pool.
pub(in crate::log) struct Collector {
    /// The limiter wants victims taken.
    wanted: AtomicBool,
    pub(in crate::log) work: Notify,
    /// It would collect, but no line is worth it: the next garbage is news.
    hungry: AtomicBool,
    /// A victim's sectors are on their way into the ring.
    moving: AtomicBool,
    /// Victims with valid sectors taken while `changes` was `since`.
    pub(in crate::log) fruitless: AtomicU64,
    /// `changes` when the last victim was taken for its room.
    pub(in crate::log) since: AtomicU64,
    /// Valid sectors of that victim that have not been admitted yet.
    pub(in crate::log) claim: AtomicU64,
    /// The moves of one victim are admitted at a time.
    turn: Credits,
}

impl Default for Collector {
    fn default() -> Collector {
        Collector {
            wanted: AtomicBool::new(false),
            work: Notify::new(),
            hungry: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            fruitless: AtomicU64::new(0),
            since: AtomicU64::new(0),
            claim: AtomicU64::new(0),
            turn: Credits::new(1),
        }
    }
}

impl Collector {
    /// The limiter wants victims taken.
    pub(in crate::log) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// New shares: does GC take victims, and may users write?
    pub(in crate::log) fn set_shares(&self, cx: &Cx, shares: Shares) {
        self.wanted.store(shares.collect, Ordering::Release);
        self.work.wake(cx);
    }

    /// Must a barrier not wait for company, because GC wants chunks back and brings none?
    pub(in crate::log) fn is_pressed(&self) -> bool {
        self.wanted.load(Ordering::Acquire) && !self.moving.load(Ordering::Acquire)
    }
}

/// How many units ahead the device hears what will be read: a batch is four or more.
const AHEAD: usize = 8;

/// Sectors that a batch has at least when it is gathered, but for a victim's last: one more unit might
/// not fit.
pub(in crate::log) fn batch_least(unit: u32) -> u64 {
    VECTOR_MAX as u64 + 1 - u64::from(unit)
}

type Slots = SmallVec<[u32; VECTOR_MAX]>;

/// Live sectors of a victim that are read together and moved together.
struct Batch {
    /// Sectors, of 64 at most.
    n: usize,
    /// Linear sectors, and their addresses on the device.
    addrs: [u64; VECTOR_MAX],
    ppas: [Ppa; VECTOR_MAX],
    /// Packed (lba, stamp) by the closing metadata, where that could be read.
    known: [[u8; PACKED_BYTES]; VECTOR_MAX],
    is_known: bool,
    oob: [[u8; OOB_BYTES]; VECTOR_MAX],
    content: Vec<u8>,
    /// Of which sectors content, address and stamp agree with each other and with the closing
    /// metadata.
    whole: u64,
    /// Which could be read in a second try only.
    saved: u64,
    /// Ring slots admitted for it.
    admitted: u64,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            n: 0,
            addrs: [0; VECTOR_MAX],
            ppas: [Ppa(0); VECTOR_MAX],
            known: [[0; PACKED_BYTES]; VECTOR_MAX],
            is_known: false,
            oob: [[0; OOB_BYTES]; VECTOR_MAX],
            content: Vec::new(),
            whole: 0,
            saved: 0,
            admitted: 0,
        }
    }
}

/// A line whose live sectors are being moved.
struct Victim {
    line: u32,
    /// Moves that have not ended, and one while more may begin.
    moves: Cell<u32>,
}

/// The reverse map of a victim: its closing metadata, if it could be read.
struct ReverseMap {
    bytes: Vec<u8>,
    good: bool,
}

impl HostFtl {
    /// What makes garbage or room: as long as this stays the same, what was collected in vain is collected
    /// in vain again. Counts the host's sectors that were written and the entries that it has discarded,
    /// chunks gone bad, lines scrubbed, and new widths of lines. A line moved for its wear is none of them:
    /// wear leveling would wear the flash for ever.
    pub(in crate::log) fn changes(&self) -> u64 {
        let others = self.gc.changes.load(Ordering::Acquire);
        self.rings.sum(|r| r.host_written) + others
    }

    /// Behind what was changed: until then collections may come to nothing.
    pub(in crate::log) fn note_changes(&self, n: u64) {
        if !mutant!("log.stale-vain") {
            self.gc.changes.fetch_add(n, Ordering::AcqRel);
        }
    }

    /// Garbage was made: who found none looks again. A relaxed look is enough: a collector that says that it is
    /// hungry takes every ring's lock behind that (`is_exhausted`), and what makes garbage has its ring's lock
    /// before it comes here, so one of the two sees the other.
    #[inline]
    pub(in crate::log) fn note_garbage(&self, cx: &Cx) {
        if self.gc.hungry.load(Ordering::Relaxed) {
            self.feed(cx);
        }
    }

    #[cold]
    fn feed(&self, cx: &Cx) {
        self.gc.hungry.store(false, Ordering::SeqCst);
        let hungry = self.pools.iter().map(|pool| &pool.collector);
        hungry.filter(|c| c.hungry.load(Ordering::SeqCst)).for_each(|c| c.work.wake(cx));
    }

    /// Has every collector look again.
    pub(in crate::log) fn wake_collectors(&self, cx: &Cx) {
        self.pools.iter().for_each(|pool| pool.collector.work.wake(cx));
    }

    /// Takes a pool's victims while its limiter wants it, until the target stops or is read-only.
    pub(in crate::log) async fn gc_loop(self: Arc<Self>, cx: Cx, pool: usize) {
        let pool = self.pools.get(pool);
        let collector = &pool.collector;
        loop {
            let ready = || {
                let worth = self.worth_collecting(pool);
                let hungry = worth.is_none() && self.is_wanted(pool);
                collector.hungry.store(hungry, Ordering::SeqCst);
                if hungry {
                    self.gc.hungry.store(true, Ordering::SeqCst);
                }
                worth.is_some_and(|(line, _)| self.fits(line)) || self.is_exhausted(worth)
            };
            if !ready() {
                self.press(&cx);
            }
            let ended = || self.is_stopping() || self.read_only();
            collector.work.wait(&cx, || ended() || ready()).await;
            if ended() {
                return;
            }
            if self.is_exhausted(self.worth_collecting(pool)) {
                self.give_up_full(&cx, crate::log::verdict::EXHAUSTED);
            }
            collector.turn.acquire(&cx, 1).await;
            match self.take_victim(pool, false) {
                Some((line, Reason::Room)) => self.move_line(&cx, line).await,
                Some((line, why)) => self.care_for(&cx, line, why).await,
                None => {}
            }
            collector.turn.release(&cx, 1);
        }
    }

    /// One forced collection, from choice to free chunks, of the pool that has most to win. It waits for
    /// its room as any other does.
    pub(in crate::log) async fn collect_one(self: &Arc<Self>, cx: &Cx) -> bool {
        let valid = |pool: &&Pool| {
            let best = self.candidate(pool, true);
            best.map_or(u32::MAX, |(line, _)| self.lines.valid(line))
        };
        let pool = self.pools.iter().min_by_key(valid).expect("a target has a pool");
        pool.collector.turn.acquire(cx, 1).await;
        // Whoever waits behind a barrier can't wait for company.
        self.rings.hurry(cx, 1);
        let victim = loop {
            let best = || self.candidate(pool, true);
            let fits = || best().is_none_or(|(line, _)| self.fits(line));
            self.pool_changed.wait(cx, || self.read_only() || fits()).await;
            let victim = self.take_victim(pool, true);
            // Another pool's victim may have come before it.
            if victim.is_some() || self.read_only() || best().is_none() {
                break victim;
            }
        };
        let collected = match victim {
            Some((line, _)) => self.collect(cx, line).await,
            None => {
                pool.collector.turn.release(cx, 1);
                false
            }
        };
        self.rings.hurry(cx, -1);
        collected
    }

    /// Moves a victim, gives the turn on, and waits until its chunks are free.
    async fn collect(self: &Arc<Self>, cx: &Cx, line: u32) -> bool {
        let pool = self.pools.of_line(line);
        let sequence = pool.lock().line(line).sequence;
        self.move_line(cx, line).await;
        pool.collector.turn.release(cx, 1);
        self.wait_gone(cx, line, sequence).await
    }

    /// Moves a victim that was taken for another reason than room. Nobody waits for its chunks, and
    /// perhaps nobody comes to fill the last unit before its barrier.
    async fn care_for(self: &Arc<Self>, cx: &Cx, line: u32, why: Reason) {
        let sequence = self.pools.of_line(line).lock().line(line).sequence;
        self.move_line(cx, line).await;
        self.rings.hurry(cx, 1);
        let (me, their_cx) = (self.clone(), cx.clone());
        self.background(cx, async move {
            me.wait_gone(&their_cx, line, sequence).await;
            // Not what was moved for its wear (`changes`).
            if why == Reason::Decay {
                me.note_changes(1);
            }
            me.rings.hurry(&their_cx, -1);
            me.care.done();
            me.wake_collectors(&their_cx);
        });
    }

    /// Waits until a victim's chunks are free, or it is closed again; false where that can't be.
    async fn wait_gone(&self, cx: &Cx, line: u32, sequence: u64) -> bool {
        let gone = || {
            let p = self.pools.of_line(line).lock();
            let l = p.line(line);
            l.sequence != sequence || matches!(l.state, LineState::Free | LineState::Closed)
        };
        self.pool_changed.wait(cx, || self.read_only() || gone()).await;
        gone()
    }

    /// Moves what is live; whoever ends the last move hands the line on to be freed.
    async fn move_line(self: &Arc<Self>, cx: &Cx, line: u32) {
        let victim = Rc::new(Victim { line, moves: Cell::new(1) });
        self.task_began();
        if self.lines.valid(line) == 0 {
            add(&self.counters.gc_free_rides, 1);
        } else {
            // Its sectors are company for what waits in the ring: nobody pads for a barrier now.
            let collector = &self.pools.of_line(line).collector;
            collector.moving.store(true, Ordering::Release);
            self.press(cx);
            let reverse = self.reverse_map(cx, line).await;
            let chunks = self.pools.of_line(line).lock().line(line).chunks.clone();
            let view = Some(&reverse.bytes).filter(|_| reverse.good);
            let view = view.and_then(|bytes| ClosingView::decode(bytes).ok());
            let mut batch = self.fresh_batch();
            for row in 0..self.shape.chunk_sectors / self.shape.unit {
                for at in 0..chunks.len() {
                    self.expect_ahead(&chunks, at, row);
                    self.gather(&chunks, at, row, view.as_ref().map(|v| &v.1), &mut batch);
                    if batch.n + self.shape.unit as usize > VECTOR_MAX {
                        self.start_move(cx, batch, &victim).await;
                        batch = self.fresh_batch();
                    }
                }
            }
            self.start_move(cx, batch, &victim).await;
            collector.moving.store(false, Ordering::Release);
            *self.gc.reverse.lock() = reverse.bytes;
        }
        self.pools.of_line(line).collector.claim.store(0, Ordering::Release);
        self.move_ended(cx, &victim);
    }

    fn fresh_batch(&self) -> Box<Batch> {
        let mut batch = self.gc.batches.lock().pop().unwrap_or_default();
        batch.n = 0;
        batch
    }

    fn move_ended(&self, cx: &Cx, victim: &Victim) {
        victim.moves.set(victim.moves.get() - 1);
        if victim.moves.get() == 0 {
            self.moved(cx, victim.line);
            self.task_ended(cx);
        }
    }

    /// All moves of a victim have ended.
    fn moved(&self, cx: &Cx, line: u32) {
        let mut p = self.pools.of_line(line).lock();
        if self.lines.valid(line) == 0 {
            p.make_freeing(line);
            self.gc.freeing.lock().push(line);
        } else {
            p.back_to_closed(line);
        }
        drop(p);
        self.wake_collectors(cx);
        self.pool_changed.wake(cx);
    }

    /// Reads a victim's closing metadata back. Any part that does not verify: none of it. Every
    /// sector's out-of-band CRC covers what the sections' own cover.
    async fn reverse_map(&self, cx: &Cx, line: u32) -> ReverseMap {
        let (places, sequence) = {
            let p = self.pools.of_line(line).lock();
            let l = p.line(line);
            (l.closing.clone(), l.sequence)
        };
        let sectors: u32 = places.iter().map(|(_, _, count)| count).sum();
        let mut bytes = std::mem::take(&mut *self.gc.reverse.lock());
        bytes.resize(sectors as usize * SECTOR_BYTES, 0);
        let mut rest = &mut bytes[..];
        for (chunk, sector, count) in places {
            let part = rest.split_off_mut(..count as usize * SECTOR_BYTES).expect("summed up");
            if !self.flash.read_meta(cx, (chunk, sector), LBA_LINE_CLOSING, part).await {
                return ReverseMap { bytes, good: false };
            }
        }
        let good = ClosingView::decode(&bytes)
            .is_ok_and(|(h, v)| h.line == line && h.sequence == sequence && v.is_in_place());
        ReverseMap { bytes, good }
    }

    /// Says to the device which unit will be read after the batch that is being gathered.
    #[inline]
    fn expect_ahead(&self, chunks: &[u32], at: usize, row: u32) {
        let (mut at, mut row) = (at + AHEAD, row);
        while at >= chunks.len() {
            (at, row) = (at - chunks.len(), row + 1);
        }
        let sector = row * self.shape.unit;
        if sector < self.shape.chunk_sectors {
            let first =
                self.flash.format.in_chunk(self.flash.chunk_base[chunks[at] as usize], sector);
            self.flash.device.expect(first, self.shape.unit);
        }
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
        let base = self.flash.chunk_base[chunks[at] as usize];
        let mut bits = self.lines.bits(first, unit);
        let sectors = batch.n..batch.n + bits.count_ones() as usize;
        batch.n = sectors.end;
        let addrs = &mut batch.addrs[sectors.clone()];
        for (addr, ppa) in addrs.iter_mut().zip(&mut batch.ppas[sectors.clone()]) {
            let i = bits.trailing_zeros();
            bits &= bits - 1;
            *addr = first + i as u64;
            *ppa = self.flash.format.in_chunk(base, row * unit + i);
        }
        batch.is_known = view.is_some();
        if let Some(view) = view {
            let entry = PoolState::entry_index(&self.shape, chunks.len(), at, row * unit);
            let run = view.from(entry);
            for (known, addr) in batch.known[sectors].iter_mut().zip(addrs) {
                let i = (*addr - first) as usize;
                let packed = run.get(i).or_else(|| view.packed(entry + i));
                *known = packed.copied().unwrap_or(pack_entry(LBA_NONE, 0));
            }
        }
    }

    /// Admits a batch under GC's share and starts its read and move.
    async fn start_move(self: &Arc<Self>, cx: &Cx, mut batch: Box<Batch>, victim: &Rc<Victim>) {
        let (admitted, ring) = (batch.n as u64, self.rings.of(cx));
        if admitted > 0 {
            self.serve(cx, ring);
            let waited = ring.admission.acquire(cx, Origin::Gc, admitted).await;
            // Before it is claimed no more: whoever looks sees it here or there (`victim::has_room`).
            self.gc.moving.fetch_add(1, Ordering::AcqRel);
            let claim = &self.pools.of_line(victim.line).collector.claim;
            let left = claim.load(Ordering::Acquire).saturating_sub(admitted);
            claim.store(left, Ordering::Release);
            if waited != Waited::No {
                // What was overwritten meanwhile need not be read.
                batch.retain(|addr| self.lines.is_valid(addr));
            }
        }
        if self.read_only() || batch.n == 0 {
            // Read-only: everybody was let in to be told so, nothing is moved any more.
            if admitted > 0 {
                self.gc.moving.fetch_sub(1, Ordering::AcqRel);
            }
            ring.admission.release(cx, 0, admitted);
            self.gc.batches.lock().push(batch);
            return;
        }
        batch.admitted = admitted;
        let ticket = self.submit_batch(cx, &mut batch);
        victim.moves.set(victim.moves.get() + 1);
        let (me, cx2, victim) = (self.clone(), cx.clone(), victim.clone());
        cx.spawn_at(ticket.ask_at, async move {
            let done = me.flash.device.wait(&cx2, ticket).await;
            if me.scrub.is_on() {
                me.read_again(&cx2, &mut batch, &done).await;
            }
            me.move_batch(&cx2, &batch, &done).await;
            me.gc.batches.lock().push(batch);
            me.move_ended(&cx2, &victim);
        });
    }

    /// Submits the vector read of a batch. Content is there since the submission; whether the
    /// medium vouches for it comes with the completion.
    fn submit_batch(&self, cx: &Cx, batch: &mut Batch) -> Ticket {
        let unit = self.info.content_bytes;
        let n = batch.n;
        batch.content.resize(n * unit, 0);
        let to = Scatter::new(&mut batch.content, &crate::log::flash::IN_ORDER[..n], unit);
        let flags = Flags { cause: Cause::Gc, ..Flags::READ };
        let request = Request::read(&batch.ppas[..n], to, &mut batch.oob[..n]).with(flags);
        let ticket = self.flash.device.submit(cx, request);
        batch.saved = 0;
        batch.whole = self.agreeing(batch, 0..n);
        ticket
    }

    /// Which sectors of a batch are what their records and the closing metadata say; the first of
    /// `which` is bit 0. What is nothing there could not be read when a recovery scanned the line: the
    /// record speaks for itself, and the map, which still leads here.
    #[inline]
    fn agreeing(&self, batch: &Batch, which: Range<usize>) -> u64 {
        let unit = self.info.content_bytes;
        let (map, capacity) = (self.map.view(), self.info.capacity);
        let (oob, content) = (&batch.oob[which.clone()], &batch.content);
        let content = &content[which.start * unit..which.end * unit];
        let mut whole = match mutant!("log.gc-crc-skipped") {
            true => u64::MAX >> (64 - oob.len()),
            false => whole_sectors(oob, content, unit),
        };
        for (i, oob) in oob.iter().enumerate() {
            let (lba, ..) = Oob::decode_raw(oob);
            map.prefetch(lba);
            whole &= !(u64::from(lba >= capacity) << i);
        }
        let known = if batch.is_known { &batch.known[which] } else { &[] };
        for (i, (oob, known)) in oob.iter().zip(known).enumerate() {
            let differs = oob[..PACKED_BYTES] != *known && unpack_entry(known).0 != LBA_NONE;
            whole &= !(u64::from(differs && !mutant!("log.gc-ignores-closing")) << i);
        }
        whole
    }

    /// Reads what could not be read again, each sector by itself: what is given up here is lost for
    /// good.
    async fn read_again(&self, cx: &Cx, batch: &mut Batch, done: &Completion) {
        let unit = self.info.content_bytes;
        let good = |batch: &Batch, i: usize| done.status(i).is_ok() && batch.whole >> i & 1 != 0;
        for i in 0..batch.n {
            let mut left = RETRIES;
            let live = |batch: &Batch| self.lines.is_valid(batch.addrs[i]);
            while !good(batch, i) && batch.saved >> i & 1 == 0 && left > 0 && live(batch) {
                left -= 1;
                let mut oob = [[0u8; OOB_BYTES]; VECTOR_MAX];
                let to = &mut batch.content[i * unit..(i + 1) * unit];
                let ppa = &batch.ppas[i..=i];
                let read = self.flash.read(cx, ppa, to, (unit, false), &mut oob, Cause::Gc);
                let again = read.await;
                batch.oob[i] = oob[0];
                let whole = again.status(0).is_ok() && self.agreeing(batch, i..i + 1) != 0;
                batch.saved |= u64::from(whole) << i;
            }
        }
    }

    /// Puts what is still live into slots.
    async fn move_batch(&self, cx: &Cx, batch: &Batch, done: &Completion) {
        let map = self.map.view();
        for oob in &batch.oob[..batch.n] {
            // Asked for at submission, thousands of events ago.
            map.prefetch(Oob::decode_raw(oob).0);
        }
        let (cost, ring) = (self.costs.map_update.times(batch.n as u64), self.rings.of(cx));
        let section = |_: &mut ()| {
            ring.state.enter(|r| {
                let used = self.move_sectors(cx, (r, ring.at as u32), batch, done);
                (used, r.has_work(self.shape.unit as usize))
            })
        };
        let (used, work) = match self.map.is_exclusive() {
            true => self.map.lock.with(cx, cost, section).await,
            false => {
                cx.cpu(cost).await;
                section(&mut ())
            }
        };
        // From now on its tail is the ring's.
        self.gc.moving.fetch_sub(1, Ordering::AcqRel);
        add(&self.counters.gc_moved, used);
        if used < batch.admitted {
            ring.admission.release(cx, 0, batch.admitted - used);
        }
        if work {
            ring.work.wake(cx);
        }
    }

    /// Moves the sectors of a batch into slots, but for those that are garbage by now. Returns how
    /// many slots were used.
    fn move_sectors(
        &self,
        cx: &Cx,
        (state, ring): (&mut RingState, u32),
        batch: &Batch,
        done: &Completion,
    ) -> u64 {
        let (unit, map) = (self.info.content_bytes, self.map.view());
        let line = self.lines.line_of(batch.addrs[0]);
        let read = |i: &usize| done.status(*i).is_ok();
        let good = match done.failed {
            0 => batch.whole,
            _ => (0..batch.n).filter(read).fold(0, |m, i| m | 1 << i) & batch.whole,
        } | batch.saved;
        let n = batch.n.min(VECTOR_MAX);
        let (addrs, oob, slots) = (&batch.addrs[..n], &batch.oob[..n], self.slab.filler());
        let mut to = [0; VECTOR_MAX];
        let to = &mut to[..n];
        state.offer(to);
        // Into their slots first, which nobody sees yet.
        let contents = batch.content.chunks_exact(unit);
        for (i, (((slot, addr), oob), content)) in
            to.iter().zip(addrs).zip(oob).zip(contents).enumerate()
        {
            if let Some(ahead) = to.get(i + 8) {
                slots.prefetch(*ahead);
            }
            let (lba, stamp, _) = Oob::decode_raw(oob);
            slots.fill_moved((*slot, ring), (lba, stamp), *addr, content);
        }
        // From there on the map goes on, but where a sector was superseded meanwhile.
        let all = u64::MAX >> (u64::BITS as usize - n);
        let change = |i: usize| {
            let (from, to) = (Entry::Media(addrs[i]), Entry::Slot(to[i]));
            (Oob::decode_raw(&oob[i]).0, map.encode(from), map.encode(to))
        };
        let moved = match self.map.is_exclusive() && good & all == all {
            true => map.exchange_each((0..n).map(change)),
            false => self.move_each(cx, &map, good & all, change),
        };
        // Sectors that have left the medium, by the 64 in which they lie.
        let (mut word, mut left) = (0, 0u64);
        for (i, addr) in addrs.iter().enumerate() {
            if addr >> 6 != word {
                self.left(line, word, std::mem::take(&mut left));
                word = addr >> 6;
            }
            left |= (moved >> i & 1) << (addr & 63);
        }
        self.left(line, word, left);
        if moved == all {
            state.insert_offered(n, to, &[]);
        } else {
            let is_moved = |i: &usize| moved >> i & 1 != 0;
            let filled: Slots = (0..n).filter(is_moved).map(|i| to[i]).collect();
            let others: Slots = (0..n).filter(|i| !is_moved(i)).map(|i| to[i]).collect();
            others.iter().for_each(|slot| slots.set_free(*slot));
            state.insert_offered(n, &filled, &others);
        }
        if good & all != all {
            self.poison_lost(cx, batch, all & !good);
        }
        moved.count_ones().into()
    }

    /// Changes the map for the sectors of `good`, among others, or where not all of a batch are good.
    /// Returns those for which it did.
    fn move_each(
        &self,
        cx: &Cx,
        map: &View<'_>,
        good: u64,
        change: impl Fn(usize) -> (u64, u64, u64),
    ) -> u64 {
        let mut moved = 0;
        for i in (0..VECTOR_MAX).filter(|i| good >> i & 1 != 0) {
            // A section of its own: others may wait for sections to end.
            let _inside = self.sections.enter(cx);
            let (lba, from, to) = change(i);
            moved |= u64::from(map.exchange(lba, from, to)) << i;
        }
        if moved != good && !self.map.is_exclusive() {
            bump(&self.counts(cx).gc_lost, (good ^ moved).count_ones().into());
        }
        moved
    }

    /// Sectors of the `word`-th 64 have left the medium.
    #[inline]
    fn left(&self, line: u32, word: u64, sectors: u64) {
        if sectors != 0 {
            self.lines.invalidate_in(line, word, sectors);
        }
    }

    /// Sectors of a batch that could not be read: lost, where nothing newer is there.
    #[cold]
    fn poison_lost(&self, cx: &Cx, batch: &Batch, lost: u64) {
        for i in (0..batch.n).filter(|i| lost >> i & 1 != 0) {
            if self.lines.is_valid(batch.addrs[i]) {
                let known = batch.is_known.then(|| unpack_entry(&batch.known[i]).0);
                self.poison(cx, batch.addrs[i], known.unwrap_or(u64::MAX));
            }
        }
    }

    /// The newest content of a sector can't be read: reads fail from now on until it is written.
    /// Where the closing metadata does not say which sector it is, the map is searched.
    fn poison(&self, cx: &Cx, addr: u64, known_lba: u64) {
        add(&self.counters.gc_read_failures, 1);
        let from = self.map.encode(Entry::Media(addr));
        let lba = if known_lba < LBA_LIMIT && known_lba < self.info.capacity {
            Some(known_lba)
        } else {
            (0..self.info.capacity).find(|lba| self.map.raw(*lba) == from)
        };
        let Some(lba) = lba else { return };
        let stamp = self.lines.stamp_max(self.lines.line_of(addr));
        let _inside = self.sections.enter(cx);
        // Whoever finds it poisoned finds the stamp.
        let mut poisons = self.poisons.lock();
        let lost = if mutant!("log.lost-unmapped") { Entry::Unmapped } else { Entry::Poisoned };
        if self.map.exchange(lba, from, self.map.encode(lost)) {
            poisons.insert(lba, stamp);
            drop(poisons);
            self.lines.invalidate(addr);
            if !mutant!("log.poison-unlogged") {
                self.journal.append(Record::Poisoned { lba, stamp });
            }
        }
    }

    /// Frees emptied lines behind the erase barrier, until the target stops.
    pub(in crate::log) async fn free_loop(self: Arc<Self>, cx: Cx) {
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
            self.all_freed(&cx);
        }
    }

    /// What was behind the barrier is free, and the shares know.
    pub(in crate::log) fn all_freed(&self, cx: &Cx) {
        *self.gc.barrier.lock() = Barrier::Idle;
        // Whoever took that for a reason to go on waiting asks again.
        self.pool_changed.wake(cx);
        self.wake_collectors(cx);
    }

    /// Frees lines behind a barrier; [`HostFtl::all_freed`] comes next.
    pub(in crate::log) async fn free_lines(
        &self,
        cx: &Cx,
        lines: &[u32],
    ) -> crate::block::BlockResult {
        if !mutant!("qblk.freed-under-operations") {
            self.epochs.synchronize(cx).await;
        }
        if !mutant!("qblk.freed-under-sections") {
            self.sections.synchronize(cx).await;
        }
        let to = self.rings.cover(false);
        *self.gc.barrier.lock() = Barrier::Waits(to.clone());
        self.pool_changed.wake(cx); // drainers without a place may wait for that
        if !mutant!("log.free-before-barrier") {
            self.wait_safe(cx, &to, false).await?;
        }
        *self.gc.barrier.lock() = Barrier::Passed;
        if !mutant!("log.freed-unsettled") {
            self.settle_device(cx).await?;
        }
        if self.tells && !mutant!("log.freed-untold") {
            // What made their sectors garbage is behind the barrier, and told before they are gone.
            self.wait_for_log(cx).await?;
            self.tell();
        }
        let mut at = self.journal.appended();
        for line in lines {
            let mut p = self.pools.of_line(*line).lock();
            let l = p.line_mut(*line);
            // Together: a checkpoint that is under way must not carry the line on behind this record.
            l.gone = true;
            at = self.journal.append(Record::Freed { line: *line, sequence: l.sequence });
            for chunk in l.retire.iter().filter(|_| !mutant!("log.freed-without-bad-chunks")) {
                at = self.journal.append(Record::Retired { chunk: *chunk });
            }
        }
        if !mutant!("log.freed-later") {
            self.commit(cx, at).await?;
        }
        for line in lines {
            let pool = self.pools.of_line(*line);
            let chunks = pool.lock().line(*line).chunks.clone();
            // A line that was given up early leaves chunks that were never written.
            let dirty = chunks.iter().map(|c| self.chunk_info(*c).state != ChunkState::Free);
            let dirty: Vec<bool> = dirty.collect();
            pool.lock().freed(*line, &dirty);
            chunks.iter().for_each(|c| self.lines.set_line(*c, crate::log::lines::NO_LINE));
        }
        Ok(())
    }
}

impl Batch {
    fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let Some(mut n) = self.addrs[..self.n].iter().position(|addr| !keep(*addr)) else {
            return;
        };
        for i in n + 1..self.n {
            if keep(self.addrs[i]) {
                self.addrs[n] = self.addrs[i];
                self.ppas[n] = self.ppas[i];
                self.known[n] = self.known[i];
                n += 1;
            }
        }
        self.n = n;
    }
}

#[cfg(test)]
mod tests;
