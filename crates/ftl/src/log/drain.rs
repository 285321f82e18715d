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
use super::pool::{NO_SLOT, Spot};
use super::ring::{Push, Taken};
use super::slab::{Origin, SlotState};
use flashlane_base::{OOB_BYTES, Ppa};
use flashlane_ocssd::device::{Cause, Completion, Data, Flags, Gather, Op, Request, Ticket};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use std::sync::Arc;

/// What is left of a unit once it is submitted.
struct Unit {
    spot: Spot,
    /// Slots that hold data; the rest of the unit is padding.
    slots: Vec<u32>,
    retries: usize,
    id: u64,
    /// Ring credits that come back: users, GC.
    credits: (u64, u64),
    /// What each sector was counted for.
    cause: Vec<Cause>,
}

/// What the device is given about a unit's sectors; kept by the drainer and used again, since
/// clearing 3 KiB of arrays for each unit showed in the profile.
#[derive(Default)]
struct Scratch {
    addrs: Vec<Ppa>,
    oob: Vec<[u8; OOB_BYTES]>,
    cause: Vec<Cause>,
    index: Vec<u32>,
    entries: Vec<(u64, u64)>,
}

impl Scratch {
    fn clear(&mut self) {
        self.addrs.clear();
        self.oob.clear();
        self.cause.clear();
        self.index.clear();
        self.entries.clear();
    }
}

impl HostFtl {
    /// The consumer of the ring, until the target stops.
    pub(super) async fn drain_loop(self: Arc<Self>, cx: Cx) {
        let unit = self.shape.unit as usize;
        let mut scratch = Scratch::default();
        loop {
            let wanted = || self.is_stopping() || self.ring.state.now(|r| r.has_work(unit));
            self.ring.work.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            let Some(spot) = self.place(&cx).await else {
                return;
            };
            cx.cpu(self.costs.drain_unit).await;
            let taken = self.ring.state.now(|r| r.take_unit(&self.slab, unit));
            let Some(taken) = self.give_back_dropped(&cx, taken) else {
                // Everything was dead, or the flush that wanted it was served meanwhile.
                self.untake(&cx, spot);
                continue;
            };
            let (unit, ticket) = self.build_and_submit(&cx, spot, taken, &mut scratch);
            let (me, their_cx) = (self.clone(), cx.clone());
            cx.spawn(async move {
                let done = me.device.wait(&their_cx, ticket).await;
                me.unit_ended(&their_cx, unit, done).await;
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

    /// Returns the room of slots that were dropped; `None` when nothing else was taken.
    fn give_back_dropped(&self, cx: &Cx, taken: Option<Taken>) -> Option<Taken> {
        let taken = taken?;
        if taken.dropped != (0, 0) {
            self.ring.admission.release(cx, taken.dropped.0, taken.dropped.1);
            self.ring.progress.wake(cx);
        }
        (!taken.slots.is_empty()).then_some(taken)
    }

    /// Gives a position back that nothing was written to: possible because its PU is still held.
    fn untake(&self, cx: &Cx, spot: Spot) {
        self.pool.lock().untake(&spot);
        self.pu[spot.pu as usize].release(cx, 1);
        self.close_if_ready(cx, spot.line);
    }

    /// Builds the unit's out-of-band records and hands it to the device.
    fn build_and_submit(
        &self,
        cx: &Cx,
        spot: Spot,
        taken: Taken,
        out: &mut Scratch,
    ) -> (Unit, Ticket) {
        let n = self.shape.unit;
        out.clear();
        let base = self.chunk_base[spot.chunk as usize];
        out.addrs.extend((0..n).map(|i| self.format.in_chunk(base, spot.sector + i)));
        let mut credits = (0, 0);
        let mut stamp_max = 0;
        for (i, slot) in taken.slots.iter().enumerate() {
            let (lba, stamp) = (self.slab.lba(*slot), self.slab.stamp(*slot));
            let crc = self.content_crc(self.slab.content(*slot));
            out.oob.push(Oob::encode_raw(lba, stamp, crc));
            out.entries.push((lba, stamp));
            out.index.push(*slot);
            stamp_max = stamp_max.max(stamp);
            match self.slab.origin(*slot) {
                Origin::User => credits.0 += 1,
                Origin::Gc => credits.1 += 1,
            }
            out.cause.push(self.cause_of(*slot, i < taken.retries));
            self.slab.set_counted(*slot, true);
        }
        let pad = if taken.push == Push::Gc { Cause::PaddingGc } else { Cause::PaddingFlush };
        if taken.slots.len() < n as usize {
            self.pad(taken.slots.len(), spot, pad, out);
        }
        self.lines.raise_stamp(spot.line, stamp_max);
        self.pool.lock().programmed_unit(&spot, &out.entries, &out.cause);
        let content =
            Gather { base: self.slab.base(), index: &out.index, unit: self.info.content_bytes };
        let request = Request {
            op: Op::Write,
            flags: Flags::default(),
            addrs: &out.addrs,
            data: Data::Write { content, oob: &out.oob, cause: &out.cause },
            whole_sectors: false,
        };
        let ticket = self.device.submit(cx, request);
        let (slots, retries, id) = (taken.slots, taken.retries, taken.unit);
        let cause = std::mem::take(&mut out.cause);
        (Unit { spot, slots, retries, id, credits, cause }, ticket)
    }

    /// Fills the rest of a unit. Padding takes the content of the slab's zero slot.
    fn pad(&self, from: usize, spot: Spot, of: Cause, out: &mut Scratch) {
        let zero = self.layout.slots;
        let sequence = self.pool.lock().lines[spot.line as usize].sequence;
        let crc = self.content_crc(self.slab.content(zero));
        let missing = self.shape.unit as usize - from;
        super::add(&self.padding_dist[missing], 1);
        for _ in 0..missing {
            out.oob.push(Oob::encode_raw(LBA_PADDING, sequence, crc));
            out.cause.push(of);
            out.index.push(zero);
            out.entries.push((LBA_PADDING, sequence));
        }
    }

    /// CRC of a sector's content as its store keeps it.
    #[inline]
    pub(super) fn content_crc(&self, content: &[u8]) -> u32 {
        match content.first_chunk::<8>() {
            Some(word) if content.len() == 8 => Oob::content_crc_word(u64::from_le_bytes(*word)),
            _ => Oob::content_crc(content),
        }
    }

    /// A unit's program has ended.
    async fn unit_ended(&self, cx: &Cx, unit: Unit, done: Completion) {
        let Unit { spot, mut slots, retries, id, credits, cause } = unit;
        let data = slots.len();
        slots.resize(self.shape.unit as usize, NO_SLOT);
        let mut released: Vec<(u64, u32)> = Vec::with_capacity(self.shape.unit as usize);
        let mut again = Vec::new();
        let close = {
            let mut p = self.pool.lock();
            if done.failed == 0 {
                p.completed(&spot, &slots, &mut released);
            } else {
                for (i, slot) in slots.iter().enumerate() {
                    if done.status(i).moved_pointer() {
                        continue;
                    }
                    // The medium never began: neither did we.
                    p.programmed[cause[i] as usize] -= 1;
                    if i < data && cause[i] != Cause::Retry {
                        self.slab.set_counted(*slot, false);
                    }
                }
                again = p.unit_failed(&spot, &slots, done.failed, &mut released);
            }
            p.ready_to_close(spot.line)
        };
        // Only now may the next program reach this PU: the pool knows how this one ended.
        self.pu[spot.pu as usize].release(cx, 1);
        if done.failed != 0 {
            self.note_program_failure(&done);
            self.send_again(cx, &again);
        }
        cx.cpu(self.costs.complete_unit).await;
        self.publish_media(cx, &released).await;
        self.ring.state.now(|r| {
            r.unit_done(id);
            if retries > 0 {
                r.retried(retries);
            }
        });
        self.ring.admission.release(cx, credits.0, credits.1);
        self.ring.progress.wake(cx);
        if self.gc.wanted.load(Ordering::Relaxed) {
            // What is programmed is no longer in the way of the next victim (`gc::fits`).
            self.gc.work.wake(cx);
        }
        if close {
            self.close_if_ready(cx, spot.line);
        }
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
    pub(super) async fn publish_media(&self, cx: &Cx, released: &[(u64, u32)]) {
        if released.is_empty() {
            return;
        }
        let cost = self.costs.map_update.times(released.len() as u64);
        released.iter().for_each(|(_, slot)| self.map.prefetch(self.slab.lba(*slot)));
        let section = |_: &mut ()| {
            for (addr, slot) in released {
                let lba = self.slab.lba(*slot);
                let (from, to) =
                    (self.map.encode(Entry::Slot(*slot)), self.map.encode(Entry::Media(*addr)));
                let now = self.map.raw(lba);
                if now == from {
                    // Valid before it is published: whoever finds the address may invalidate it.
                    self.lines.validate(*addr);
                    if !self.map.exchange(lba, from, to) {
                        self.lines.invalidate(*addr);
                    }
                } else if let Entry::Slot(newer) = self.map.decode(now) {
                    self.slab.raise_prev(newer, *addr, self.slab.stamp(*slot));
                }
            }
            let slots = released.iter().map(|(_, slot)| *slot);
            self.ring.state.now(|r| r.release(&self.slab, slots));
        };
        self.map.lock.with(cx, cost, section).await;
    }
}
