//! From the ring to the medium: the consumer.
//!
//! Owns: the drain task, building a unit, what happens when its program ends.
//! Promises: units of a chunk are submitted in its order (positions are taken under the PU's
//! semaphore); a failed sector goes out again with its stamp, before anything newer; the map moves
//! from slot to medium by exchange only when the medium can give the sector back.
//! Never: pads unless somebody can't wait for company: a flush, a failed sector, or an erase barrier
//! when the allocator starves, the target stops or a collection was asked for by hand.

use super::HostFtl;
use super::format::{LBA_PADDING, Oob};
use super::map::Entry;
use super::pool::{NO_SLOT, Released, Spot};
use super::ring::{Push, RingState, Taken};
use super::slab::{Origin, SlotState};
use flashlane_base::{OOB_BYTES, Ppa};
use flashlane_ocssd::device::{Cause, Completion, Data, Flags, Gather, Op, Request, Ticket};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use std::sync::Arc;

/// A unit from the ring to the map, with what its program needs. Kept and used again: clearing and
/// allocating these lists for each unit showed in the profile.
#[derive(Default)]
pub(super) struct Unit {
    spot: Spot,
    /// Slots that hold data; the rest of the unit is padding.
    slots: Vec<u32>,
    retries: usize,
    id: u64,
    /// Ring credits that come back: users, GC.
    credits: (u64, u64),
    /// Of each sector: its address, its out-of-band record, what it is counted for, and which of the
    /// slab's sectors its content is.
    addrs: Vec<Ppa>,
    oob: Vec<[u8; OOB_BYTES]>,
    cause: Vec<Cause>,
    index: Vec<u32>,
    /// What its end makes readable.
    released: Released,
}

impl Unit {
    fn clear(&mut self) {
        self.credits = (0, 0);
        self.addrs.clear();
        self.oob.clear();
        self.cause.clear();
        self.index.clear();
        self.released.clear();
    }
}

/// The out-of-band record of a sector whose content is kept in 4096 bytes or in 8 (`stamps`).
#[inline]
fn seal(lba: u64, stamp: u64, content: &[u8]) -> [u8; OOB_BYTES] {
    match <[u8; 8]>::try_from(content) {
        Ok(word) => Oob::encode_word(lba, stamp, u64::from_le_bytes(word)),
        Err(_) => Oob::encode_raw(lba, stamp, Oob::content_crc(content)),
    }
}

/// Was this record written with this content, whichever way the store keeps it?
#[inline]
pub(super) fn is_sealed(oob: &[u8; OOB_BYTES], content: &[u8]) -> bool {
    match <[u8; 8]>::try_from(content) {
        Ok(word) => Oob::verify_word(oob, u64::from_le_bytes(word)),
        Err(_) => Oob::verify(oob, content),
    }
}

impl HostFtl {
    /// The consumer of the ring, until the target stops.
    pub(super) async fn drain_loop(self: Arc<Self>, cx: Cx) {
        let sectors = self.shape.unit as usize;
        loop {
            let wanted = || self.is_stopping() || self.ring.state.now(|r| r.has_work(sectors));
            self.ring.work.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            let Some(spot) = self.place(&cx).await else {
                return;
            };
            cx.cpu(self.costs.drain_unit).await;
            let mut unit = self.units.lock().pop().unwrap_or_default();
            let take = |r: &mut RingState| r.take_unit(&self.slab, sectors, &mut unit.slots);
            let taken = self.ring.state.now(take);
            if let Some(taken) = &taken {
                self.give_back_dropped(&cx, taken);
            }
            let Some(taken) = taken.filter(|_| !unit.slots.is_empty()) else {
                // Everything was dead, or the flush that wanted it was served meanwhile.
                self.untake(&cx, spot);
                self.units.lock().push(unit);
                continue;
            };
            let ticket = self.build_and_submit(&cx, spot, &taken, &mut unit);
            let (me, their_cx) = (self.clone(), cx.clone());
            cx.spawn(async move {
                let done = me.device.wait(&their_cx, ticket).await;
                me.unit_ended(&their_cx, unit, &done).await;
            });
        }
    }

    /// The position of the next data unit, with its PU's semaphore held. Waits for a line; `None`
    /// when the target stops.
    async fn place(&self, cx: &Cx) -> Option<Spot> {
        loop {
            let next = self.pool.lock().next_pu();
            let Some((line, at, pu)) = next else {
                self.ring.set_starving(cx, true);
                self.pool_changed.wake(cx); // the opener may have waited for a free spare place
                if self.is_stranded() {
                    let why = "no chunk is left to write to: bad chunks have eaten the reserve";
                    self.give_up(cx, why);
                }
                let ready = || {
                    self.is_stopping()
                        || self.read_only()
                        || self.pool.lock().next_pu().is_some()
                        || self.is_stranded()
                };
                self.pool_changed.wait(cx, ready).await;
                if self.is_stopping() || self.read_only() {
                    return None;
                }
                continue;
            };
            self.pu[pu as usize].acquire(cx, 1).await;
            let (spot, moved) = {
                let mut p = self.pool.lock();
                let spot = p.take(line, at);
                (spot, p.spare.is_none())
            };
            if moved {
                self.pool_changed.wake(cx);
            }
            if spot.is_some() {
                return spot;
            }
            self.pu[pu as usize].release(cx, 1);
        }
    }

    /// What is in the ring has nowhere to go, ever: no chunk is free, no line is on its way, and
    /// every line to be freed waits for the ring. Bad chunks have eaten the reserve.
    fn is_stranded(&self) -> bool {
        let p = self.pool.lock();
        p.is_cornered() && p.free_chunks() == 0 && !self.gc.is_giving_back()
    }

    /// Returns the room of slots that were dropped.
    fn give_back_dropped(&self, cx: &Cx, taken: &Taken) {
        if taken.dropped != (0, 0) {
            self.ring.admission.release(cx, taken.dropped.0, taken.dropped.1);
            self.ring.progress.wake(cx);
        }
    }

    /// Gives a position back that nothing was written to: possible because its PU is still held.
    fn untake(&self, cx: &Cx, spot: Spot) {
        self.pool.lock().untake(&spot);
        self.pu[spot.pu as usize].release(cx, 1);
        self.close_if_ready(cx, spot.line);
    }

    /// Builds the unit's out-of-band records and hands it to the device.
    fn build_and_submit(&self, cx: &Cx, spot: Spot, taken: &Taken, out: &mut Unit) -> Ticket {
        let n = self.shape.unit;
        out.clear();
        (out.spot, out.retries, out.id) = (spot, taken.retries, taken.unit);
        let base = self.chunk_base[spot.chunk as usize];
        out.addrs.extend((0..n).map(|i| self.format.in_chunk(base, spot.sector + i)));
        let mut stamp_max = 0;
        for (i, slot) in out.slots.iter().enumerate() {
            let (lba, stamp) = (self.slab.lba(*slot), self.slab.stamp(*slot));
            out.oob.push(seal(lba, stamp, self.slab.content(*slot)));
            stamp_max = stamp_max.max(stamp);
            match self.slab.origin(*slot) {
                Origin::User => out.credits.0 += 1,
                Origin::Gc => out.credits.1 += 1,
            }
            out.cause.push(self.cause_of(*slot, i < taken.retries));
            self.slab.set_counted(*slot, true);
        }
        out.index.extend_from_slice(&out.slots);
        if out.slots.len() < n as usize {
            let push = taken.push == Push::Gc;
            self.pad(if push { Cause::PaddingGc } else { Cause::PaddingFlush }, out);
        }
        self.lines.raise_stamp(spot.line, stamp_max);
        self.pool.lock().programmed_unit(&spot, &out.oob, &out.cause);
        let content =
            Gather { base: self.slab.base(), index: &out.index, unit: self.info.content_bytes };
        let request = Request {
            op: Op::Write,
            flags: Flags::default(),
            addrs: &out.addrs,
            data: Data::Write { content, oob: &out.oob, cause: &out.cause },
            whole_sectors: false,
        };
        self.device.submit(cx, request)
    }

    /// Fills the rest of a unit. Padding takes the content of the slab's zero slot.
    #[cold]
    fn pad(&self, of: Cause, out: &mut Unit) {
        let zero = self.layout.slots;
        let sequence = self.pool.lock().lines[out.spot.line as usize].sequence;
        let padding = seal(LBA_PADDING, sequence, self.slab.content(zero));
        let missing = self.shape.unit as usize - out.slots.len();
        super::add(&self.padding_dist[missing], 1);
        for _ in 0..missing {
            out.oob.push(padding);
            out.cause.push(of);
            out.index.push(zero);
        }
    }

    /// A unit's program has ended.
    async fn unit_ended(&self, cx: &Cx, mut unit: Box<Unit>, done: &Completion) {
        let close = match done.failed {
            0 => {
                let Unit { spot, slots, released, .. } = &mut *unit;
                let mut p = self.pool.lock();
                p.completed(spot, slots, released);
                p.ready_to_close(spot.line)
            }
            _ => self.unit_failed(cx, &mut unit, done),
        };
        unit.released.slots().for_each(|slot| self.slab.prefetch_order(slot));
        // Only now may the next program reach this PU: the pool knows how this one ended.
        self.pu[unit.spot.pu as usize].release(cx, 1);
        cx.cpu(self.costs.complete_unit).await;
        self.publish_media(cx, &unit.released).await;
        self.ring.state.now(|r| {
            r.unit_done(unit.id);
            if unit.retries > 0 {
                r.retried(unit.retries);
            }
        });
        self.ring.admission.release(cx, unit.credits.0, unit.credits.1);
        self.ring.progress.wake(cx);
        if self.gc.wanted.load(Ordering::Relaxed) {
            // What is programmed is no longer in the way of the next victim (`gc::fits`).
            self.gc.work.wake(cx);
        }
        if close {
            self.close_if_ready(cx, unit.spot.line);
        }
        self.units.lock().push(unit);
    }

    /// Some of a unit could not be programmed: it goes out again elsewhere. True when its line has
    /// nothing more in flight and can be closed.
    #[cold]
    fn unit_failed(&self, cx: &Cx, unit: &mut Unit, done: &Completion) -> bool {
        let Unit { spot, slots, cause, released, .. } = unit;
        let (again, close) = {
            let mut p = self.pool.lock();
            for (i, cause) in cause.iter().enumerate() {
                if done.status(i).moved_pointer() {
                    continue;
                }
                // The medium never began: neither did we.
                p.programmed[*cause as usize] -= 1;
                if i < slots.len() && *cause != Cause::Retry {
                    self.slab.set_counted(slots[i], false);
                }
            }
            (p.unit_failed(spot, slots, done.failed, released), p.ready_to_close(spot.line))
        };
        self.note_program_failure(done);
        self.send_again(cx, &again);
        close
    }

    /// Why a slot is programmed.
    #[inline]
    fn cause_of(&self, slot: u32, retry: bool) -> Cause {
        match (self.slab.state(slot), self.slab.origin(slot)) {
            // It was counted for its own cause before. A program that the medium never began is not
            // counted, so what follows is no retry.
            _ if retry && self.slab.was_counted(slot) => Cause::Retry,
            (SlotState::Dead, _) => Cause::Dead,
            (_, Origin::User) => Cause::User,
            (_, Origin::Gc) => Cause::Gc,
        }
    }

    /// Queues slots whose program failed, or whose window went away, to be programmed elsewhere.
    /// They take room in the ring again, waiting for none: it was theirs before.
    pub(super) fn send_again(&self, cx: &Cx, slots: &[u32]) {
        if slots.is_empty() {
            return;
        }
        let gc = slots.iter().filter(|s| self.slab.origin(**s) == Origin::Gc).count() as u64;
        self.ring.admission.force(slots.len() as u64 - gc, gc);
        self.ring.state.now(|r| {
            for s in slots {
                r.retry(*s);
            }
        });
        self.ring.work.wake(cx);
    }

    /// Sectors that the medium can give back now: the map moves on from their slots, which are
    /// free then. Whoever overwrote a sector meanwhile has made its copy garbage already.
    pub(super) async fn publish_media(&self, cx: &Cx, released: &Released) {
        if released.is_empty() {
            return;
        }
        let mut sectors = 0;
        for slot in released.slots() {
            self.map.prefetch(self.slab.lba(slot));
            sectors += 1;
        }
        let cost = self.costs.map_update.times(sectors);
        let section = |_: &mut ()| {
            for (first, slots) in released.units(self.shape.unit) {
                self.publish_unit(first, slots);
            }
            self.ring.state.now(|r| r.release(released.slots()));
        };
        self.map.lock.with(cx, cost, section).await;
    }

    /// Valid before it is published: whoever finds an address may invalidate it. The slots belong to
    /// nobody afterwards.
    fn publish_unit(&self, first: u64, slots: &[u32]) {
        let mut current = 0u64;
        for (i, slot) in slots.iter().enumerate().filter(|(_, s)| **s != NO_SLOT) {
            let now = self.map.raw(self.slab.lba(*slot));
            self.slab.set_free(*slot);
            if now == self.map.encode(Entry::Slot(*slot)) {
                current |= 1 << i;
            } else if let Entry::Slot(newer) = self.map.decode(now) {
                self.slab.raise_prev(newer, first + i as u64, self.slab.stamp(*slot));
            }
        }
        if current != 0 {
            self.lines.validate(first, current);
        }
        while current != 0 {
            let i = current.trailing_zeros() as usize;
            current &= current - 1;
            let (slot, addr) = (slots[i], first + i as u64);
            let (from, to) = (Entry::Slot(slot), Entry::Media(addr));
            let (from, to) = (self.map.encode(from), self.map.encode(to));
            if !self.map.exchange(self.slab.lba(slot), from, to) {
                self.lines.invalidate(addr);
            }
        }
    }
}
