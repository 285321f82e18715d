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
use super::slab::{Head, Origin, SlotState};
use flashlane_base::{OOB_BYTES, Ppa, VECTOR_MAX};
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
        self.addrs.clear();
        self.index.clear();
        self.released.clear();
    }
}

/// Why a slot is programmed.
#[inline(always)]
fn cause_of(slot: Head, retry: bool) -> Cause {
    match slot.origin() {
        // It was counted for its own cause before. A program that the medium never began is not
        // counted, so what follows is no retry.
        _ if retry && slot.counted() => Cause::Retry,
        _ if slot.is(SlotState::Dead) => Cause::Dead,
        origin => origin.cause(),
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
            cx.spawn_at(ticket.ask_at, async move {
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

    /// What is in the ring has nowhere to go, ever: no line can be opened, none is on its way, and
    /// every line to be freed waits for the ring. Bad chunks have eaten the reserve.
    fn is_stranded(&self) -> bool {
        let p = self.pool.lock();
        p.is_cornered() && p.next_width(true).is_none() && !self.gc.is_giving_back()
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
        self.format.extend_in_chunk(base, spot.sector, n, &mut out.addrs);
        let (mut stamp_max, mut gc) = (0, 0);
        out.oob.resize(out.slots.len(), [0; OOB_BYTES]);
        out.cause.resize(out.slots.len(), Cause::User);
        let records = out.oob.iter_mut().zip(&mut out.cause);
        let heads = self.slab.heads();
        let plain = taken.retries == 0 && !taken.dead;
        for ((i, slot), (oob, cause)) in out.slots.iter().enumerate().zip(records) {
            let (head, stamp) = heads.count(*slot);
            *oob = Oob::unsealed(head.lba(), stamp);
            *cause = if plain { head.origin().cause() } else { cause_of(head, i < taken.retries) };
            stamp_max = stamp_max.max(stamp);
            gc += head.origin() as u64;
        }
        out.credits = (out.slots.len() as u64 - gc, gc);
        out.index.extend_from_slice(&out.slots);
        self.seal(&mut out.oob, &out.slots);
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

    /// Completes out-of-band records by the CRC over their slots' content.
    #[inline]
    fn seal(&self, oob: &mut [[u8; OOB_BYTES]], slots: &[u32]) {
        if self.info.content_bytes == 8 {
            let (kept, _) = self.slab.base().as_chunks::<8>();
            for (oob, slots) in oob.chunks_mut(16).zip(slots.chunks(16)) {
                let mut words = [0; 16];
                for (word, slot) in words.iter_mut().zip(slots) {
                    *word = u64::from_le_bytes(kept[*slot as usize]);
                }
                Oob::seal_words(oob, &words[..slots.len()]);
            }
            return;
        }
        for (record, slot) in oob.iter_mut().zip(slots) {
            let (lba, stamp, _) = Oob::decode_raw(record);
            *record = Oob::encode_raw(lba, stamp, Oob::content_crc(self.slab.content(*slot)));
        }
    }

    /// Fills the rest of a unit. Padding takes the content of the slab's zero slot.
    #[cold]
    fn pad(&self, of: Cause, out: &mut Unit) {
        let zero = self.layout.slots;
        let sequence = self.pool.lock().lines[out.spot.line as usize].sequence;
        let mut padding = [Oob::unsealed(LBA_PADDING, sequence)];
        self.seal(&mut padding, &[zero]);
        let missing = self.shape.unit as usize - out.slots.len();
        super::add(&self.padding_dist[missing], 1);
        for _ in 0..missing {
            out.oob.push(padding[0]);
            out.cause.push(of);
            out.index.push(zero);
        }
    }

    /// A unit's program has ended.
    async fn unit_ended(&self, cx: &Cx, mut unit: Box<Unit>, done: &Completion) {
        match done.failed {
            0 => {
                let Unit { spot, slots, released, .. } = &mut *unit;
                self.pool.lock().completed(spot, slots, released);
            }
            _ => self.unit_failed(cx, &mut unit, done),
        }
        // Only now may the next program reach this PU: the pool knows how this one ended.
        self.pu[unit.spot.pu as usize].release(cx, 1);
        cx.cpu(self.costs.complete_unit).await;
        self.publish_media(cx, &unit.released).await;
        // Not before: a line that closed meanwhile could be taken for one without valid sectors.
        let close = self.pool.lock().published(unit.spot.line);
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

    /// Some of a unit could not be programmed: it goes out again elsewhere.
    #[cold]
    fn unit_failed(&self, cx: &Cx, unit: &mut Unit, done: &Completion) {
        let Unit { spot, slots, cause, released, .. } = unit;
        let again = {
            let mut p = self.pool.lock();
            for (i, cause) in cause.iter().enumerate() {
                if done.status(i).moved_pointer() {
                    continue;
                }
                // The medium never began: neither did we.
                p.programmed[*cause as usize] -= 1;
                if i < slots.len() && *cause != Cause::Retry {
                    self.slab.heads().uncount(slots[i]);
                }
            }
            p.unit_failed(spot, slots, done.failed, released)
        };
        self.note_program_failure(done);
        self.send_again(cx, &again);
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
        let cost = self.costs.map_update.times(released.sectors());
        let section = |_: &mut ()| {
            for (first, slots) in released.units(self.shape.unit) {
                self.publish_unit(first, slots);
            }
            self.ring.state.now(|r| r.release(released));
        };
        self.map.lock.with(cx, cost, section).await;
    }

    /// The map moves on from a unit's slots, which belong to nobody afterwards.
    #[inline]
    fn publish_unit(&self, first: u64, slots: &[u32]) {
        match self.map.is_exclusive() {
            true => self.publish_alone(first, slots),
            false => self.publish_among_others(first, slots),
        }
    }

    /// Under the map lock that everybody takes: the order in which map and valid bits change does
    /// not show.
    fn publish_alone(&self, first: u64, slots: &[u32]) {
        let (map, heads) = (self.map.view(), self.slab.heads());
        let mut current = 0u64;
        for (i, slot) in slots.iter().copied().enumerate().filter(|(_, slot)| *slot != NO_SLOT) {
            let (lba, addr) = (heads.set_free(slot), first + i as u64);
            let (from, to) = (map.encode(Entry::Slot(slot)), map.encode(Entry::Media(addr)));
            if map.exchange(lba, from, to) {
                current |= 1 << i;
            } else {
                self.note_superseded(lba, slot, addr);
            }
        }
        if current != 0 {
            self.lines.validate(first, current);
        }
    }

    /// Valid before it is published: whoever finds an address may invalidate it.
    fn publish_among_others(&self, first: u64, slots: &[u32]) {
        let (map, heads) = (self.map.view(), self.slab.heads());
        let mut lbas = [0; VECTOR_MAX];
        let mut current = 0u64;
        for ((i, slot), at) in slots.iter().copied().enumerate().zip(&mut lbas) {
            if slot == NO_SLOT {
                continue;
            }
            *at = heads.set_free(slot);
            if map.raw(*at) == map.encode(Entry::Slot(slot)) {
                current |= 1 << i;
            } else {
                self.note_superseded(*at, slot, first + i as u64);
            }
        }
        if current != 0 {
            self.lines.validate(first, current);
        }
        for ((i, slot), lba) in slots.iter().copied().enumerate().zip(&lbas) {
            let addr = first + i as u64;
            let (from, to) = (map.encode(Entry::Slot(slot)), map.encode(Entry::Media(addr)));
            if current >> i & 1 != 0 && !map.exchange(*lba, from, to) {
                self.lines.invalidate(addr);
            }
        }
    }

    /// A superseded slot became durable at `addr`: that is below a newer slot of its sector now.
    #[cold]
    fn note_superseded(&self, lba: u64, slot: u32, addr: u64) {
        if let Entry::Slot(newer) = self.map.get(lba) {
            self.slab.raise_prev(newer, addr, self.slab.stamp(slot));
        }
    }
}
