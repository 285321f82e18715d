//! Where requests enter: writes, discards, flushes.
//!
//! Owns: the order of one request's steps. Promises: a write is acknowledged when its sectors are
//! in the ring and the map says so; its stamp orders it behind every earlier write or discard of
//! the same sector (FORMAT.md, Stamps, rules 4 and 13). Never: talks to the medium.
//!
//! The life of a write: admission under the user share → slots from the free list, content copied
//! → under the map lock, for each sector: stamp, publish by exchange, invalidate what was there →
//! into the ring → acknowledged. From here `drain` goes on.

use crate::block::{BlockError, BlockResult, Each, Sectors, Started};
use crate::log::contention::bump;
use crate::log::format::{Record, STAMP_MAX};
use crate::log::map::Entry;
use crate::log::ring::{Ring, RingState};
use crate::log::rings::Positions;
use crate::log::slab::{Origin, POISONED};
use crate::log::{HostFtl, add};
use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::{Ordering, hesitate};
use flashlane_rt::{Cx, Pooled};
use smallvec::SmallVec;
use std::ops::Range;

/// Entries that are looked at in one section: others may wait for its end.
pub(in crate::log) const SECTION: u64 = 2048;

/// After which blk-mq asks a driver again that was out of resources (`BLK_MQ_RESOURCE_DELAY` of
/// Linux 4.16).
const FULL_RING_RETRY: Ns = Ns::from_ms(3);

/// Slots of one piece of a write.
type Slots = SmallVec<[u32; 16]>;

impl HostFtl {
    /// A write of a sector begins, whose map entry was asked for when it was expected: now for what
    /// the entry names. Most writes wait to be admitted, and it may come meanwhile.
    #[inline]
    pub(in crate::log) fn approach(&self, lba: u64) {
        let map = self.map.view();
        match map.decode(map.peek(lba)) {
            Entry::Media(addr) => self.lines.prefetch(addr),
            Entry::Slot(slot) => self.slab.prefetch(slot),
            Entry::Unmapped | Entry::Poisoned => {}
        }
    }

    /// A write, answered at once where nothing costs time, the ring has room, and its acknowledgement is
    /// all that is asked for.
    pub(in crate::log) fn write<'a>(
        &'a self,
        cx: &'a Cx,
        lba: u64,
        sectors: u32,
        content: Sectors<'a>,
        fua: bool,
    ) -> Started<'a> {
        if let Err(error) = self.check_writable() {
            return Started::Done(Err(error));
        }
        let home = self.rings.of(cx);
        let free = self.costs.sections_are_free && self.costs.front_write == Ns::ZERO;
        let whole = !fua && !self.borrow && (1..=self.layout.piece_sectors).contains(&sectors);
        if !free || !whole || !home.admission.try_user(cx, sectors.into(), true) {
            return Started::later(self.write_in_pieces(cx, lba, sectors, content, fua, None));
        }
        if let Err(error) = self.admitted(cx, home, sectors) {
            return Started::Done(Err(error));
        }
        if self.needs_stamps(cx) {
            let work = self.write_in_pieces(cx, lba, sectors, content, fua, Some(home));
            return Started::later(work);
        }
        self.buffer_at_once(cx, home, lba, sectors, content.from(0, self.unit()), fua);
        Started::Done(Ok(()))
    }

    /// Bytes of a sector's content.
    #[inline]
    fn unit(&self) -> usize {
        self.info.content_bytes
    }

    /// Writes sectors; with `fua` returns when they are durable. The first piece may be admitted to a ring
    /// already.
    async fn write_in_pieces(
        &self,
        cx: &Cx,
        lba: u64,
        sectors: u32,
        content: Sectors<'_>,
        fua: bool,
        mut admitted: Option<&Ring>,
    ) -> BlockResult {
        let home = self.rings.of(cx);
        if admitted.is_none() {
            cx.cpu(self.costs.front_write).await;
        }
        let mut ends: SmallVec<[(usize, u64); 1]> = SmallVec::new();
        let mut at = 0;
        while at < sectors {
            let n = self.layout.piece_sectors.min(sectors - at);
            let ring = match admitted.take() {
                Some(ring) => ring,
                None => {
                    let ring = self.admit_user(cx, home, n.into()).await;
                    self.admitted(cx, ring, n)?;
                    ring
                }
            };
            let (lba, content) = (lba + at as u64, content.from(at, self.unit()));
            let end = match self.costs.sections_are_free && !self.needs_stamps(cx) {
                true => self.buffer_at_once(cx, ring, lba, n, content, fua),
                false => Pooled::new(self.buffer(cx, ring, lba, n, content, fua)).await?,
            };
            if fua {
                ends.push((if mutant!("qblk.fua-waits-at-home") { home.at } else { ring.at }, end));
            }
            at += n;
        }
        if fua && sectors > 0 {
            add(&self.counters.flushes, 1);
            let from = cx.now();
            Pooled::new(self.wait_flushed(cx, self.rings.positions(&ends))).await?;
            add(&self.counters.fua_wait_ns, (cx.now() - from).as_ns());
        }
        Ok(())
    }

    /// A ring has taken somebody in: somebody serves it, unless the target became read-only meanwhile.
    fn admitted(&self, cx: &Cx, ring: &Ring, sectors: u32) -> BlockResult {
        self.serve(cx, ring);
        self.check_writable().inspect_err(|_| ring.admission.release(cx, sectors.into(), 0))
    }

    /// Waits for room in the ring of the caller's core; where idle rings' room may be borrowed, takes
    /// what one of them has first. Returns the ring.
    async fn admit_user<'a>(&'a self, cx: &Cx, home: &'a Ring, n: u64) -> &'a Ring {
        if self.borrow
            && let Some(ring) = self.rings.with_room(cx, home, n)
        {
            return ring;
        }
        if !self.full_ring_retry || !self.try_again(cx, home, n).await {
            home.admission.acquire(cx, Origin::User, n).await;
        }
        home
    }

    /// Asks for room again and again, as blk-mq does for a driver that is out of resources. False where
    /// nobody gets any more: the target became read-only.
    async fn try_again(&self, cx: &Cx, home: &Ring, n: u64) -> bool {
        let from = cx.now();
        loop {
            if home.admission.try_user(cx, n, true) {
                if cx.now() > from {
                    home.admission.note_wait(cx.now() - from);
                }
                return true;
            }
            if self.read_only() {
                return false;
            }
            cx.sleep(FULL_RING_RETRY).await;
        }
    }

    /// Puts admitted sectors into slots, the map and the ring. Returns the ring position behind
    /// them. Without a stamp for them (rule 6) nothing of that happens, and their room is given back.
    async fn buffer(
        &self,
        cx: &Cx,
        ring: &Ring,
        lba: u64,
        sectors: u32,
        content: Each<'_>,
        fua: bool,
    ) -> Result<u64, BlockError> {
        let n = sectors as usize;
        let slots = ring.state.with(cx, self.costs.reserve, |r| self.take_slots(r, n)).await;
        cx.cpu(self.costs.copy.times(n as u64)).await;
        self.fill(&slots, ring, lba, content);
        if self.needs_stamps(cx) {
            let raised = self.raise_ceiling(cx).await;
            raised.inspect_err(|_| self.give_back_unpublished(cx, ring, &slots))?;
        }
        let cost = self.costs.map_update.times(n as u64);
        let (end, wake) = match self.map.is_exclusive() {
            true => {
                let insert = |_: &mut ()| self.insert(cx, ring, lba, &slots, fua);
                self.map.lock.with(cx, cost, insert).await
            }
            false => {
                let seen = cx.cpu_seeing(cost, || self.look_ahead(cx, lba, n)).await;
                self.note_races(cx, lba, &seen);
                self.insert(cx, ring, lba, &slots, fua)
            }
        };
        self.inserted(cx, ring, wake);
        Ok(end)
    }

    /// [`HostFtl::buffer`] where sections are free and stamps are leased: there is nothing to wait for
    /// between the same steps.
    fn buffer_at_once(
        &self,
        cx: &Cx,
        ring: &Ring,
        lba: u64,
        sectors: u32,
        content: Each<'_>,
        fua: bool,
    ) -> u64 {
        let slots = ring.state.enter(|r| self.take_slots(r, sectors as usize));
        self.fill(&slots, ring, lba, content);
        let (end, wake) = match self.map.is_exclusive() {
            true => self.map.lock.enter(|()| self.insert(cx, ring, lba, &slots, fua)),
            false => self.insert(cx, ring, lba, &slots, fua),
        };
        self.inserted(cx, ring, wake);
        end
    }

    #[inline(always)]
    fn take_slots(&self, r: &mut RingState, n: usize) -> Slots {
        let mut slots = Slots::with_capacity(n);
        (0..n).for_each(|_| slots.push(r.free.take(&self.slab)));
        slots
    }

    #[inline(always)]
    fn fill(&self, slots: &[u32], ring: &Ring, lba: u64, content: Each<'_>) {
        for ((slot, content), lba) in slots.iter().zip(content).zip(lba..) {
            self.slab.fill(*slot, lba, ring.at as u32, content);
        }
    }

    /// Publishes slots and puts them into the ring ([`Ring::insert`]), under the map lock or with each
    /// sector's publication as a section (rules 12 and 13). Returns the ring position behind the slots, and
    /// whether the drainer has work.
    #[inline(always)]
    fn insert(&self, cx: &Cx, ring: &Ring, lba: u64, slots: &[u32], fua: bool) -> (u64, bool) {
        let publish = || {
            let mut absorbed = 0;
            for (slot, lba) in slots.iter().zip(lba..) {
                let _inside = (!mutant!("qblk.written-outside")).then(|| self.sections.enter(cx));
                absorbed += self.publish(cx, lba, *slot) as u64;
            }
            absorbed
        };
        ring.insert(publish, slots, fua, self.shape.unit as usize)
    }

    #[inline(always)]
    fn inserted(&self, cx: &Cx, ring: &Ring, wake: bool) {
        if wake {
            ring.work.wake(cx);
        }
        self.note_garbage(cx);
    }

    /// Slots that were filled and nobody has seen are free again, and their room in the ring with
    /// them.
    #[cold]
    fn give_back_unpublished(&self, cx: &Cx, ring: &Ring, slots: &[u32]) {
        ring.state.now(|r| r.free.put_back(slots));
        ring.admission.release(cx, slots.len() as u64, 0);
        self.note_garbage(cx);
    }

    /// Makes a filled slot the newest content of its sector. Returns whether that killed a user
    /// sector in the buffer.
    fn publish(&self, cx: &Cx, lba: u64, slot: u32) -> bool {
        let new = self.map.encode(Entry::Slot(slot));
        loop {
            let old = self.map.raw(lba);
            let entry = self.map.decode(old);
            let floor = self.floor.load(Ordering::SeqCst);
            let floor = if mutant!("log.stamp-below-floor") { 0 } else { floor };
            let before = self.stamp_of(lba, entry);
            let above = if mutant!("log.stamp-below-replaced") { 0 } else { before + 1 };
            let stamp = cx.now().as_ns().max(above).max(floor + 1);
            let prev = match entry {
                Entry::Unmapped => (0, stamp - 1),
                Entry::Slot(_) if mutant!("log.prev-forgotten") => (0, stamp - 1),
                Entry::Slot(s) => self.slab.prev(s),
                Entry::Media(a) => (a + 1, before),
                Entry::Poisoned if mutant!("log.prev-poison-forgotten") => (0, stamp - 1),
                Entry::Poisoned => (POISONED, before),
            };
            self.slab.set_order(slot, stamp, prev);
            hesitate();
            if !self.map.exchange(lba, old, new) {
                bump(&self.counts(cx).user_retries, 1);
                continue;
            }
            if let Entry::Slot(older) = entry
                && !self.map.is_exclusive()
            {
                self.slab.take_over(&self.map, lba, (slot, older));
            }
            return self.supersede(lba, (entry, before));
        }
    }

    /// Upper bound of the stamp of a sector's present content.
    fn stamp_of(&self, lba: u64, entry: Entry) -> u64 {
        match entry {
            Entry::Unmapped => 0,
            Entry::Slot(s) => self.slab.stamp(s),
            Entry::Media(a) => self.lines.stamp_max(self.lines.line_of(a)),
            Entry::Poisoned => self.poisons.lock().get(&lba).copied().unwrap_or(0),
        }
    }

    /// Somebody replaced an entry, of at most that stamp: its sector or slot is garbage. True when a
    /// host sector died in the buffer before it was programmed.
    pub(in crate::log) fn supersede(&self, lba: u64, (entry, stamp): (Entry, u64)) -> bool {
        match entry {
            Entry::Unmapped => false,
            Entry::Media(a) => {
                self.lines.invalidate(a);
                false
            }
            Entry::Slot(s) => self.slab.kill(s) == Some(Origin::User),
            Entry::Poisoned => {
                let mut poisons = self.poisons.lock();
                if poisons.get(&lba) == Some(&stamp) {
                    poisons.remove(&lba);
                }
                false
            }
        }
    }

    /// Up to where stamps must be leased now.
    #[inline]
    fn stamps_needed(&self, cx: &Cx) -> u64 {
        cx.now().as_ns().max(self.floor.load(Ordering::Relaxed)) + crate::log::create::STAMP_SLACK
    }

    /// Stamps are leased: true when the durable ceiling must be raised first (rule 6). That it need
    /// not be, it is raised in the background when half of the lease is left.
    #[inline]
    fn needs_stamps(&self, cx: &Cx) -> bool {
        let (need, ceiling) = (self.stamps_needed(cx), self.ceiling.load(Ordering::Acquire));
        if need + crate::log::create::STAMP_LEASE / 2 > ceiling {
            self.raise_ahead(cx);
        }
        need > ceiling && !mutant!("log.stamps-above-ceiling")
    }

    #[cold]
    fn raise_ahead(&self, cx: &Cx) {
        let Some(me) = self.me.upgrade().filter(|_| !self.read_only()) else { return };
        if !self.ceiling_raising.swap(true, Ordering::AcqRel) {
            let their_cx = cx.clone();
            me.clone().background(cx, async move { me.raise_once(&their_cx).await });
        }
    }

    /// Waits while the clock is above the durable ceiling; an error when it will stay there.
    #[cold]
    pub(in crate::log) async fn raise_ceiling(&self, cx: &Cx) -> BlockResult {
        let need = self.stamps_needed(cx);
        while self.ceiling.load(Ordering::Acquire) < need {
            self.check_writable()?;
            if !self.ceiling_raising.swap(true, Ordering::AcqRel) {
                self.raise_once(cx).await;
                continue;
            }
            let done = || {
                !self.ceiling_raising.load(Ordering::Acquire)
                    || self.ceiling.load(Ordering::Acquire) >= need
            };
            self.ceiling_raised.wait(cx, done).await;
        }
        Ok(())
    }

    /// One more lease; by whoever has set `ceiling_raising`.
    async fn raise_once(&self, cx: &Cx) {
        let ceiling = (self.stamps_needed(cx) + crate::log::create::STAMP_LEASE).min(STAMP_MAX);
        // A checkpoint that cuts the log behind the record must carry it (FORMAT.md, hole 40).
        self.ceiling_asked.fetch_max(ceiling, Ordering::SeqCst);
        let at = self.journal.append(Record::Ceiling { stamp: ceiling });
        if mutant!("log.ceiling-before-durable") {
            self.ceiling.fetch_max(ceiling, Ordering::AcqRel);
        }
        if self.commit(cx, at).await.is_ok() {
            self.ceiling.fetch_max(ceiling, Ordering::AcqRel);
        }
        self.ceiling_raising.store(false, Ordering::Release);
        self.ceiling_raised.wake(cx);
    }

    /// Everything acknowledged before this call is durable when it returns.
    pub(in crate::log) async fn flush(&self, cx: &Cx) -> BlockResult {
        self.check_writable()?;
        add(&self.counters.flushes, 1);
        let to = self.rings.cover(true);
        self.wait_flushed(cx, to).await
    }

    async fn wait_flushed(&self, cx: &Cx, to: Positions) -> BlockResult {
        let from = cx.now();
        let discards = self.journal.appended();
        if !mutant!("log.flush-without-data") {
            self.wait_safe(cx, &to, true).await?;
        }
        let records = match self.tells {
            true => self.tell_flushed(cx).await?,
            false => discards,
        };
        if !mutant!("log.flush-without-discards") {
            let untold = mutant!("log.flush-untold");
            self.commit(cx, if untold { discards } else { records }).await?;
        }
        if !mutant!("log.flush-leaves-device-cache") {
            self.outlive_host(cx).await?;
        }
        add(&self.counters.flush_wait_ns, (cx.now() - from).as_ns());
        self.check_writable()
    }

    /// Has the log tell what is programmed. Returns the position up to which it has to be durable.
    async fn tell_flushed(&self, cx: &Cx) -> Result<u64, BlockError> {
        self.wait_for_log(cx).await?;
        self.tell();
        Ok(self.journal.appended())
    }

    /// What the device has survives the end of its host (a drive in an image) and of the power (a write
    /// buffer without capacitors), too.
    pub(in crate::log) async fn outlive_host(&self, cx: &Cx) -> BlockResult {
        let survives = self.flash.device.flush(cx).await;
        self.check_host(cx, survives)
    }

    /// What the device has acknowledged is on the medium before what comes next. Nothing to do unless it
    /// acknowledges from a buffer without capacitors, which may lose the earlier and keep the later.
    pub(in crate::log) async fn settle_device(&self, cx: &Cx) -> BlockResult {
        let survives = self.flash.device.settle(cx).await;
        self.check_host(cx, survives)
    }

    fn check_host(&self, cx: &Cx, survives: bool) -> BlockResult {
        if survives {
            return Ok(());
        }
        if mutant!("log.host-trouble-forgotten") {
            return Err(BlockError::ReadOnly(crate::log::meta::HOST_TROUBLE));
        }
        self.give_up(cx, crate::log::meta::HOST_TROUBLE);
        self.check_writable()
    }

    /// Waits until the rings are programmed up to their positions. `flush` lets the drainers pad for it.
    async fn wait_programmed(&self, cx: &Cx, to: &Positions, flush: bool) -> BlockResult {
        self.rings.wait_durable(cx, to, flush, || self.read_only()).await;
        self.check_writable()
    }

    /// Waits until everything before the rings' positions is programmed and no torn page can take it
    /// along.
    pub(in crate::log) async fn wait_safe(
        &self,
        cx: &Cx,
        to: &Positions,
        flush: bool,
    ) -> BlockResult {
        let pairs = self.traits.pair_damage && !mutant!("log.flush-leaves-pairs-open");
        self.wait_closed(cx, to, flush, pairs).await
    }

    /// Waits until the medium gives back whatever is in the ring or has left it: nothing is in a slot
    /// any more. For a target that nobody writes to.
    pub(in crate::log) async fn wait_empty(&self, cx: &Cx) -> BlockResult {
        let slots = self.layout.slots as usize;
        let empty = || self.rings.is_empty(slots);
        loop {
            let (to, before) = (self.rings.cover(true), self.rings.sent_again());
            self.wait_closed(cx, &to, true, true).await?;
            let sent_again = || self.rings.sent_again() != before;
            let done = || empty() || sent_again() || self.read_only();
            self.rings.progress.wait(cx, done).await;
            self.check_writable()?;
            if empty() {
                return Ok(());
            }
        }
    }

    /// Waits until everything before the rings' positions is programmed, and with `pairs` readable. What
    /// goes out again because a program failed while pairs were closed is waited for, too.
    async fn wait_closed(&self, cx: &Cx, to: &Positions, flush: bool, pairs: bool) -> BlockResult {
        loop {
            let sent_again = || self.rings.sent_again();
            let before = sent_again();
            self.wait_programmed(cx, to, flush).await?;
            if !pairs {
                return Ok(());
            }
            self.close_pairs(cx).await?;
            if sent_again() == before || mutant!("log.flush-forgets-resent") {
                return Ok(());
            }
        }
    }

    /// The sectors read as zeros from now on, and after a flush for ever.
    pub(in crate::log) async fn discard(&self, cx: &Cx, lba: u64, count: u64) -> BlockResult {
        self.check_writable()?;
        if count == 0 {
            return Ok(());
        }
        let mut at = lba;
        while at < lba + count {
            // In pieces, so that a discard of a whole drive does not hold the map for ever.
            let n = (lba + count - at).min(crate::log::create::DISCARD_PIECE);
            if !mutant!("log.discard-fills-log") {
                self.wait_for_log(cx).await?;
            }
            if self.needs_stamps(cx) {
                self.raise_ceiling(cx).await?;
            }
            self.discard_piece(cx, at, n).await;
            add(&self.counters.host_discarded, n);
            at += n;
        }
        Ok(())
    }

    async fn discard_piece(&self, cx: &Cx, lba: u64, count: u64) {
        let cost = self.costs.map_update.times(count);
        if self.map.is_exclusive() {
            let clear = |_: &mut ()| self.clear_alone(cx, lba, count);
            self.map.lock.with(cx, cost, clear).await;
        } else {
            cx.cpu(cost).await;
            // One at a time: what another has cleared is in the log before this one finds nothing there
            // (FORMAT.md, hole 11).
            let alone = !mutant!("qblk.discards-together");
            if alone {
                self.discarding.acquire(cx, 1).await;
            }
            self.clear_among_others(cx, lba, count).await;
            if alone {
                self.discarding.release(cx, 1);
            }
        }
        // Lines may be empty now, which is worth a look whatever the limiter wants.
        self.wake_collectors(cx);
    }

    /// Under the map lock: nothing is written between the choice of the stamp and the last entry.
    fn clear_alone(&self, cx: &Cx, lba: u64, count: u64) {
        let (stamp, any) = self.discard_stamp(cx, lba..lba + count);
        if !mutant!("log.discard-leaves-floor") {
            self.floor.fetch_max(stamp, Ordering::SeqCst);
        }
        if !any {
            return;
        }
        // First: what dies here in the buffer is not programmed any more.
        if !mutant!("log.discard-unlogged") {
            self.journal.append(Record::Discarded { lba, count, stamp });
        }
        let (mut cleared, mut killed) = (0, 0);
        for at in lba..lba + count {
            let old = self.map.raw(at);
            if old == 0 {
                continue;
            }
            let changed = self.map.exchange(at, old, 0);
            debug_assert!(changed, "entries change under the lock");
            cleared += 1;
            killed += self.supersede(at, self.seen(at, old)) as u64;
        }
        self.note_cleared(cx, cleared, killed);
    }

    /// The floor first; then who read the old one has published; then the entries: whatever has a
    /// stamp above the discard's was written meanwhile and stays (rule 4). Of a sector on the medium
    /// only a bound of its stamp is known, which may have grown since: it is looked at again under a
    /// stamp of its own. Nobody is waited for then: the entry was not clear, so who has read the old floor
    /// comes first, and shows by its stamp, or loses the exchange and reads the floor again.
    ///
    /// The log says so before the first entry is cleared, since what dies here in the buffer is not
    /// programmed any more and a flush may end meanwhile; and again behind the last, for a shard that was
    /// copied in between.
    async fn clear_among_others(&self, cx: &Cx, lba: u64, count: u64) {
        let pieces = || (lba..lba + count).step_by(SECTION as usize);
        let end = |from: u64| (from + SECTION).min(lba + count);
        let (mut stamp, mut any) = (0, false);
        for from in pieces() {
            let _inside = self.sections.enter(cx);
            let (above, found) = self.discard_stamp(cx, from..end(from));
            (stamp, any) = (stamp.max(above), any | found);
        }
        if !mutant!("qblk.discard-floor-late") {
            self.floor.fetch_max(stamp, Ordering::SeqCst);
        }
        if !mutant!("qblk.discard-without-waiting") {
            self.sections.synchronize(cx).await;
        }
        hesitate();
        if any && !mutant!("qblk.discard-logged-late") {
            self.journal.append(Record::Discarded { lba, count, stamp });
        }
        hesitate();
        // Who collects meanwhile must not take for vain what this makes worth it.
        self.note_changes(u64::from(any));
        let (mut cleared, mut killed) = (0, 0);
        let mut again: Vec<(u64, u64)> = Vec::new();
        for from in pieces() {
            let _inside = self.sections.enter(cx);
            for at in from..end(from) {
                match self.clear_below(cx, at, stamp, None) {
                    Cleared::Nothing => {}
                    Cleared::Garbage(in_buffer) => {
                        cleared += 1;
                        killed += in_buffer as u64;
                    }
                    Cleared::Unsure(raw) => again.push((at, raw)),
                }
            }
        }
        hesitate();
        if mutant!("qblk.discard-floor-late") {
            self.floor.fetch_max(stamp, Ordering::SeqCst);
        }
        if cleared > 0 && !mutant!("qblk.discard-logged-once") {
            self.journal.append(Record::Discarded { lba, count, stamp });
        }
        while !again.is_empty() {
            let stamp = {
                let _inside = self.sections.enter(cx);
                let above = again.iter().map(|(at, _)| self.discard_stamp(cx, *at..*at + 1).0);
                above.fold(0, u64::max)
            };
            self.floor.fetch_max(stamp, Ordering::SeqCst);
            let mut unsure = Vec::new();
            for (at, raw) in again {
                self.journal.append(Record::Discarded { lba: at, count: 1, stamp });
                hesitate();
                let outcome = {
                    let _inside = self.sections.enter(cx);
                    self.clear_below(cx, at, stamp, Some(raw))
                };
                match outcome {
                    Cleared::Nothing => {}
                    Cleared::Garbage(in_buffer) => {
                        cleared += 1;
                        killed += in_buffer as u64;
                        self.journal.append(Record::Discarded { lba: at, count: 1, stamp });
                    }
                    Cleared::Unsure(raw) => unsure.push((at, raw)),
                }
            }
            again = unsure;
        }
        self.note_cleared(cx, cleared, killed);
    }

    /// Clears an entry unless what it names was written behind a discard of that stamp. `seen`: what it
    /// was when the stamp was chosen.
    fn clear_below(&self, cx: &Cx, lba: u64, stamp: u64, seen: Option<u64>) -> Cleared {
        loop {
            let old = self.map.raw(lba);
            if old == 0 {
                return Cleared::Nothing;
            }
            let (entry, bound) = self.seen(lba, old);
            if bound > stamp && seen != Some(old) && !mutant!("qblk.discard-over-newer") {
                return match entry {
                    Entry::Media(_) | Entry::Poisoned => Cleared::Unsure(old),
                    _ => Cleared::Nothing,
                };
            }
            if self.map.exchange(lba, old, 0) {
                return Cleared::Garbage(self.supersede(lba, (entry, bound)));
            }
            bump(&self.counts(cx).discard_retries, 1);
        }
    }

    /// A discard has cleared so many entries, of which so many sectors died in the buffer.
    fn note_cleared(&self, cx: &Cx, cleared: u64, in_buffer: u64) {
        self.rings.of(cx).state.now(|r| r.discarded_in_buffer += in_buffer);
        self.note_changes(cleared);
    }

    /// An entry, and an upper bound of the stamp of what it names.
    fn seen(&self, lba: u64, raw: u64) -> (Entry, u64) {
        let entry = self.map.decode(raw);
        (entry, self.stamp_of(lba, entry))
    }

    /// A stamp above everything that the range holds, and whether it holds anything.
    fn discard_stamp(&self, cx: &Cx, range: Range<u64>) -> (u64, bool) {
        let floor = self.floor.load(Ordering::SeqCst) + 1;
        let mut stamp = cx.now().as_ns().max(floor);
        let mut any = false;
        for at in range {
            let old = self.map.raw(at);
            if old != 0 {
                any = true;
                let above = self.seen(at, old).1 + 1;
                stamp = if mutant!("log.discard-stamp-low") { stamp } else { stamp.max(above) };
            }
        }
        (stamp, any)
    }
}

/// What became of an entry that was to be cleared.
enum Cleared {
    /// It was clear, or written behind the discard.
    Nothing,
    /// What it named is garbage; true when that is a host sector that was never programmed.
    Garbage(bool),
    /// It names this, which may be older or newer.
    Unsure(u64),
}

#[cfg(all(test, debug_assertions))] // others' steps can be taken in such builds only
mod tests;
