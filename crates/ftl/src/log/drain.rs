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
use super::pool::Spot;
use super::ring::{Push, RingState, Taken};
use super::slab::{Head, Origin, SlotState};
use super::unit::{Released, Unit};
use flashlane_base::{OOB_BYTES, Ppa};
use flashlane_ocssd::device::{Cause, Completion, Data, Flags, Gather, Op, Request, Ticket};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use std::sync::Arc;

/// A unit whose program is under way.
struct Program {
    spot: Spot,
    unit: Box<Unit>,
    retries: usize,
    /// Its place in the order of the ring.
    id: u64,
    /// Ring credits that come back: users, GC.
    credits: (u64, u64),
}

/// What the device is told of each sector of a unit: its address, its out-of-band record, and which
/// of the slab's sectors its content is. For one unit after the other.
#[derive(Default)]
struct Vectors {
    addrs: Vec<Ppa>,
    oob: Vec<[u8; OOB_BYTES]>,
    index: Vec<u32>,
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
        let mut vectors = Vectors::default();
        loop {
            let wanted = || self.is_stopping() || self.ring.state.now(|r| r.has_work(sectors));
            self.ring.work.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            let Some(spot) = self.place(&cx).await else {
                return;
            };
            cx.floating().cpu(self.costs.drain_unit).await;
            let mut unit = self.units.lock().pop().unwrap_or_default();
            let take = |r: &mut RingState| r.take_unit(&self.slab, sectors, &mut unit);
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
            let (ticket, program) = self.build_and_submit(&cx, spot, &taken, unit, &mut vectors);
            let (me, their_cx) = (self.clone(), cx.clone());
            cx.spawn_at(ticket.ask_at, async move {
                let done = me.flash.device.wait(&their_cx, ticket).await;
                let served_by = their_cx.interrupt(program.spot.pu as u64);
                me.unit_ended(&served_by, program, &done).await;
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
    fn build_and_submit(
        &self,
        cx: &Cx,
        spot: Spot,
        taken: &Taken,
        mut unit: Box<Unit>,
        out: &mut Vectors,
    ) -> (Ticket, Program) {
        let n = self.shape.unit as usize;
        let used = unit.slots.len();
        unit.first = spot.chunk as u64 * self.shape.chunk_sectors as u64 + spot.sector as u64;
        let base = self.flash.chunk_base[spot.chunk as usize];
        out.addrs.clear();
        self.flash.format.extend_in_chunk(base, spot.sector, self.shape.unit, &mut out.addrs);
        let (slots, mut stamp_max) = (self.slab.heads(), 0);
        out.oob.resize(used, [0; OOB_BYTES]);
        for (oob, (slot, head)) in out.oob.iter_mut().zip(unit.slots.iter().zip(&unit.heads)) {
            let stamp = slots.stamp(*slot);
            *oob = Oob::unsealed(head.lba(), stamp);
            stamp_max = stamp_max.max(stamp);
        }
        let gc = unit.heads.iter().map(|head| head.origin() as u64).sum();
        let credits = (used as u64 - gc, gc);
        let retry = (0..used).map(|i| i < taken.retries);
        match taken.retries == 0 && !taken.dead {
            true => unit.cause.extend(unit.heads.iter().map(|head| head.origin().cause())),
            false => unit.cause.extend(unit.heads.iter().zip(retry).map(|(h, r)| cause_of(*h, r))),
        }
        self.seal(&mut out.oob, &unit.slots);
        if used < n {
            let push = taken.push == Push::Gc;
            self.pad(
                if push { Cause::PaddingGc } else { Cause::PaddingFlush },
                &spot,
                &mut unit,
                out,
            );
        }
        let index = if used < n { &out.index } else { &unit.slots };
        self.lines.raise_stamp(spot.line, stamp_max);
        self.pool.lock().programmed_unit(&spot, &out.oob, &unit.cause);
        let content = Gather { base: self.slab.base(), index, unit: self.info.content_bytes };
        let request = Request {
            op: Op::Write,
            flags: Flags::default(),
            addrs: &out.addrs,
            data: Data::Write { content, oob: &out.oob, cause: &unit.cause },
            whole_sectors: false,
        };
        let ticket = self.flash.device.submit(cx, request);
        (ticket, Program { spot, unit, retries: taken.retries, id: taken.unit, credits })
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
    fn pad(&self, of: Cause, spot: &Spot, unit: &mut Unit, out: &mut Vectors) {
        let zero = self.layout.slots;
        let sequence = self.pool.lock().lines[spot.line as usize].sequence;
        let mut padding = [Oob::unsealed(LBA_PADDING, sequence)];
        self.seal(&mut padding, &[zero]);
        let n = self.shape.unit as usize;
        super::add(&self.padding_dist[n - unit.slots.len()], 1);
        out.index.clear();
        out.index.extend_from_slice(&unit.slots);
        out.index.resize(n, zero);
        out.oob.resize(n, padding[0]);
        unit.cause.resize(n, of);
    }

    /// A unit's program has ended.
    async fn unit_ended(&self, cx: &Cx, program: Program, done: &Completion) {
        let Program { spot, unit, retries, id, credits } = program;
        let mut released = Released::new();
        match done.failed {
            0 => self.pool.lock().completed(&spot, Some(unit), &mut released),
            _ => self.unit_failed(cx, &spot, unit, done, &mut released),
        }
        // Only now may the next program reach this PU: the pool knows how this one ended.
        self.pu[spot.pu as usize].release(cx, 1);
        cx.cpu(self.costs.complete_unit).await;
        self.publish_media(cx, released).await;
        // Not before: a line that closed meanwhile could be taken for one without valid sectors.
        let close = self.pool.lock().published(spot.line);
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

    /// Some of a unit could not be programmed: it goes out again elsewhere.
    #[cold]
    fn unit_failed(
        &self,
        cx: &Cx,
        spot: &Spot,
        unit: Box<Unit>,
        done: &Completion,
        released: &mut Released,
    ) {
        let again = {
            let mut p = self.pool.lock();
            for (i, cause) in unit.cause.iter().enumerate() {
                if done.status(i).moved_pointer() {
                    continue;
                }
                // The medium never began: neither did we.
                p.programmed[*cause as usize] -= 1;
                if i < unit.slots.len() && *cause != Cause::Retry {
                    self.slab.heads().uncount(unit.slots[i]);
                }
            }
            p.unit_failed(spot, Some(unit), done.failed, released)
        };
        self.note_program_failure(cx, done);
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

    /// Units that the medium can give back now: the map moves on from their slots, which are free
    /// then. Whoever overwrote a sector meanwhile has made its copy garbage already.
    pub(super) async fn publish_media(&self, cx: &Cx, released: Released) {
        if released.is_empty() {
            return;
        }
        let sectors = released.iter().map(|unit| unit.published()).sum();
        let cost = self.costs.map_update.times(sectors);
        let section = |_: &mut ()| {
            for unit in &released {
                match self.map.is_exclusive() {
                    true => self.publish_alone(unit),
                    false => self.publish_among_others(unit),
                }
            }
            self.ring.state.now(|r| released.iter().for_each(|unit| r.release(unit)));
        };
        self.map.lock.with(cx, cost, section).await;
        self.units.lock().extend(released);
    }

    /// Under the map lock that everybody takes: the order in which map and valid bits change does
    /// not show.
    fn publish_alone(&self, unit: &Unit) {
        let map = self.map.view();
        let mut current = 0u64;
        for (addr, slot, lba) in unit.sectors() {
            let (from, to) = (map.encode(Entry::Slot(slot)), map.encode(Entry::Media(addr)));
            if map.exchange(lba, from, to) {
                current |= 1 << (addr - unit.first);
            } else {
                self.note_superseded(lba, slot, addr);
            }
        }
        if current != 0 {
            self.lines.validate(unit.first, current);
        }
    }

    /// Valid before it is published: whoever finds an address may invalidate it.
    fn publish_among_others(&self, unit: &Unit) {
        let map = self.map.view();
        let mut current = 0u64;
        for (addr, slot, lba) in unit.sectors() {
            if map.raw(lba) == map.encode(Entry::Slot(slot)) {
                current |= 1 << (addr - unit.first);
            } else {
                self.note_superseded(lba, slot, addr);
            }
        }
        if current != 0 {
            self.lines.validate(unit.first, current);
        }
        for (addr, slot, lba) in unit.sectors() {
            let (from, to) = (map.encode(Entry::Slot(slot)), map.encode(Entry::Media(addr)));
            if current >> (addr - unit.first) & 1 != 0 && !map.exchange(lba, from, to) {
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
