//! From a ring to the medium: the consumer.
//!
//! Owns: the drain tasks, building a request, what happens when its programs end. A request is one
//! unit (pblk), or as many as there are, one for each PU of a channel (QBLK, II-D).
//! Promises: units of a chunk are submitted in its order (positions are taken and submitted in one
//! section of the pool, under the PUs' semaphores, which are taken in ascending order); a failed
//! sector goes out again with its stamp, before anything newer; the map moves from slot to medium by
//! exchange only when the medium can give the sector back.
//! Never: pads unless somebody can't wait for company: a flush, a failed sector, or an erase barrier
//! when the allocator starves, the target stops or a collection was asked for by hand.

use crate::log::contention::bump;
use crate::log::format::{LBA_PADDING, Oob};
use crate::log::lines::Lines;
use crate::log::map::{Entry, Map};
use crate::log::pool::{Chosen, Spot};
use crate::log::ring::{Ring, RingState, Room};
use crate::log::sections::Sections;
use crate::log::slab::{Head, Origin, Slab, SlotState};
use crate::log::unit::{Released, UNITS_INLINE, Unit};
use crate::log::{ChannelChoice, Drain, Drainers, HostFtl};
use flashlane_base::{Ns, OOB_BYTES, Ppa, mutant};
use flashlane_ocssd::device::{Cause, Completion, Data, Flags, Op, Request};
use flashlane_rt::sync::hesitate;
use flashlane_rt::{CoreId, Cx, Lock};
use smallvec::SmallVec;
use std::sync::Arc;

/// Units on their way to a place.
type Units = SmallVec<[Box<Unit>; UNITS_INLINE]>;

/// Units with their places.
type Placed = SmallVec<[(Spot, Box<Unit>); UNITS_INLINE]>;

/// A request whose programs are under way: one unit, or several of one channel (QBLK, II-D).
struct Program {
    units: Placed,
    ring: usize,
    /// Ring credits that come back.
    credits: Room,
}

/// Chunks that are to take the next units, their PUs' semaphores held.
struct Places {
    pool: usize,
    chosen: Chosen,
}

/// What the device is told of each sector of a request: its address, its out-of-band record, and
/// which of the slab's sectors its content is. For one request after the other.
#[derive(Default)]
struct Vectors {
    addrs: Vec<Ppa>,
    oob: Vec<[u8; OOB_BYTES]>,
    cause: Vec<Cause>,
    index: Vec<u32>,
    units: Vec<Described>,
    /// Requests until now.
    requests: u64,
}

/// A unit among [`Vectors`].
struct Described {
    stamp: u64,
    /// Slots that GC has filled.
    gc: u64,
    /// How many of its sectors are programmed for what.
    causes: SmallVec<[(Cause, u32); 2]>,
}

impl HostFtl {
    /// The consumer of a ring, until the target stops.
    pub(in crate::log) async fn drain_loop(self: Arc<Self>, cx: Cx, ring: usize) {
        let sectors = self.shape.unit as usize;
        let ring = self.rings.get(ring);
        let mut vectors = Vectors::default();
        loop {
            let wanted = || self.is_stopping() || ring.state.enter(|r| r.has_work(sectors));
            ring.work.wait(&cx, wanted).await;
            if self.is_stopping() {
                return;
            }
            let want = match self.drain {
                Drain::Minimum => 1,
                Drain::Large => {
                    ring.state.enter(|r| r.waiting() / sectors).clamp(1, self.request_units)
                }
            };
            // Its place first: until there is one, what is overwritten need not be programmed.
            let Some(mut places) = self.places(&cx, ring, want).await else {
                return;
            };
            let worker = self.worker(&cx);
            let units = self.costs.drain_unit.times(places.chosen.chunks.len() as u64);
            let cost = self.costs.drain_request + units;
            if !self.costs.sections_are_free || cost != Ns::ZERO {
                worker.cpu(cost).await;
            }
            let mut units = self.take_units(&cx, ring, places.chosen.chunks.len());
            if units.is_empty() {
                // Everything was dead, or the flush that wanted it was served meanwhile.
                self.pools.get(places.pool).lock().unchoose(&places.chosen);
                self.release_pus(&cx, &places.chosen.chunks);
                continue;
            }
            while !units.is_empty() {
                let taking = &self.pools.get(places.pool).taking;
                match self.costs.sections_are_free {
                    true => taking.enter(|()| ()), // counted all the same
                    false => {
                        let worker = self.worker(&cx);
                        let taken = taking.with(&worker, self.costs.pool_take, |()| ());
                        self.while_in_hand(ring, &units, taken).await;
                    }
                }
                self.program(&cx, &worker, ring, &places, &mut units, &mut vectors);
                if units.is_empty() {
                    break;
                }
                // The line moved on before these had a place in it.
                let wait = self.places(&cx, ring, units.len());
                match self.while_in_hand(ring, &units, wait).await {
                    Some(others) => places = others, // another request, without another price
                    None => return self.leave_unprogrammed(&ring.state, &units),
                }
            }
        }
    }

    /// Waits while the drainer has units that it took and did not program yet. Their sectors count
    /// as buffered meanwhile.
    async fn while_in_hand<T>(
        &self,
        ring: &Ring,
        units: &[Box<Unit>],
        wait: impl Future<Output = T>,
    ) -> T {
        // A sector that is programmed a second time was counted the first time.
        let is_users = |head: &&Head| {
            head.origin() == Origin::User && !head.is(SlotState::Dead) && !head.counted()
        };
        let users = units.iter().flat_map(|unit| &unit.heads).filter(is_users).count() as u64;
        ring.state.now(|r| r.in_hand = if mutant!("qblk.in-hand-uncounted") { 0 } else { users });
        let ended = wait.await;
        ring.state.now(|r| r.in_hand = 0);
        ended
    }

    /// Nothing is programmed any more: what the units hold is still buffered.
    fn leave_unprogrammed(&self, ring: &Lock<RingState>, units: &[Box<Unit>]) {
        let slots = units.iter().flat_map(|unit| unit.slots.iter().zip(&unit.heads));
        ring.now(|r| {
            for (slot, before) in slots {
                // What goes out again was counted when it was programmed first, and stays so.
                if !before.counted() && !mutant!("qblk.left-counted") {
                    self.slab.heads().uncount(*slot);
                }
                r.retry(*slot);
            }
        });
    }

    /// Takes up to `most` units out of the ring.
    fn take_units(&self, cx: &Cx, ring: &Ring, most: usize) -> Units {
        let sectors = self.shape.unit as usize;
        let mut units = Units::new();
        while units.len() < most {
            let mut unit = self.units.lock().pop().unwrap_or_default();
            let dropped = ring.state.enter(|r| r.take_unit(&self.slab, sectors, &mut unit));
            self.give_back_dropped(cx, ring, dropped.unwrap_or_default());
            if unit.slots.is_empty() {
                self.units.lock().push(unit);
                break;
            }
            units.push(unit);
        }
        units
    }

    /// Places for up to `want` units of one channel, with the semaphores of their PUs held. Waits for a
    /// line; `None` when the target stops.
    async fn places(&self, cx: &Cx, ring: &Ring, want: usize) -> Option<Places> {
        loop {
            let first = self.rings.next_pool(ring, self.pools.len(), self.channel_choice);
            if self.channel_choice == ChannelChoice::PassBusy
                && self.pools.len() > 1
                && let Some(places) = self.free_places(cx, first, want)
            {
                return Some(places);
            }
            let Some(places) = self.pools.from(first).find_map(|pool| self.places_in(pool, want))
            else {
                self.starve(cx);
                self.pool_changed.wake(cx); // the opener may have waited for a free spare place
                if self.is_stranded() {
                    self.give_up_full(cx, crate::log::verdict::STRANDED);
                }
                let ready = || {
                    self.is_stopping()
                        || self.read_only()
                        || self.pools.any(|p| p.has_room())
                        || self.is_stranded()
                };
                self.pool_changed.wait(cx, ready).await;
                if self.is_stopping() || self.read_only() {
                    return None;
                }
                continue;
            };
            self.acquire_pus(cx, &places.chosen.chunks).await;
            return Some(places);
        }
    }

    /// Chunks of a pool for up to `want` units; `None` where there is room for none.
    fn places_in(&self, pool: usize, want: usize) -> Option<Places> {
        let chosen = self.pools.get(pool).lock().choose(want)?;
        Some(Places { pool, chosen })
    }

    /// The first pool from `first` on whose PUs have nothing to wait for, with their semaphores.
    fn free_places(&self, cx: &Cx, first: usize, want: usize) -> Option<Places> {
        for pool in self.pools.from(first) {
            let Some(places) = self.places_in(pool, want) else {
                continue;
            };
            if self.try_acquire_pus(cx, &places.chosen.chunks) {
                return Some(places);
            }
            bump(&self.counts(cx).passed, 1);
            self.pools.get(pool).lock().unchoose(&places.chosen);
        }
        None
    }

    /// Takes the semaphores of some PUs in ascending order, so that drainers who want some of the same
    /// never wait for each other in a circle (QBLK, II-D and Figure 5).
    async fn acquire_pus(&self, cx: &Cx, chunks: &[(usize, u32)]) {
        if let [(_, pu)] = chunks {
            return self.pu[*pu as usize].acquire(cx, 1).await;
        }
        let mut pus: SmallVec<[u32; 8]> = chunks.iter().map(|(_, pu)| *pu).collect();
        if !mutant!("qblk.pus-unsorted") {
            pus.sort_unstable();
        }
        for pu in pus {
            self.pu[pu as usize].acquire(cx, 1).await;
        }
    }

    /// As [`HostFtl::acquire_pus`], where none has to be waited for; or takes none.
    fn try_acquire_pus(&self, cx: &Cx, chunks: &[(usize, u32)]) -> bool {
        let is_busy = |(_, pu): &(usize, u32)| !self.pu[*pu as usize].try_acquire(1);
        match chunks.iter().position(is_busy) {
            None => true,
            Some(busy) => {
                self.release_pus(cx, &chunks[..busy]);
                false
            }
        }
    }

    /// Who does a drainer's work for one request: the one kernel thread of pblk runs wherever there is
    /// room, each of QBLK's on the core whose ring it drains, or wherever there is room, too.
    fn worker(&self, cx: &Cx) -> Cx {
        match self.rings.len() == 1 || self.drainers == Drainers::Floating {
            true => cx.floating(),
            false => cx.clone().urgent(),
        }
    }

    /// Who completes the `n`-th request of a drainer. NVMe under blk-mq has a queue per core, whose
    /// interrupt that core serves: a bound drainer's requests complete on its core. Where a thread that
    /// floats has run is the model's guess, so its requests take the cores by turns. A device with fewer
    /// queues has several cores share one, which one of them serves.
    fn served_by(&self, worker: &Cx, n: u64) -> Cx {
        if !worker.is_virtual() {
            return worker.clone();
        }
        let serve = match self.completion_cores {
            0 => worker.cores(),
            some => some.min(worker.cores()),
        };
        let queue = if self.rings.len() == 1 { n } else { u64::from(worker.core().0) };
        worker.on_core(CoreId((queue % u64::from(serve)) as u32))
    }

    fn release_pus(&self, cx: &Cx, chunks: &[(usize, u32)]) {
        chunks.iter().for_each(|(_, pu)| self.pu[*pu as usize].release(cx, 1));
    }

    /// Returns the room of slots that were dropped.
    fn give_back_dropped(&self, cx: &Cx, ring: &Ring, (users, gc): Room) {
        if (users, gc) != (0, 0) {
            ring.admission.release(cx, users, gc);
            self.rings.progress.wake(cx);
            if self.shares().users == 0 {
                // A collector may have put off its verdict because of them.
                self.wake_collectors(cx);
            }
        }
    }

    /// Programs as many of the units as find a place in the line that was chosen; those stay in
    /// `units` that do not. The core of `worker` submits them.
    fn program(
        &self,
        cx: &Cx,
        worker: &Cx,
        ring: &Ring,
        places: &Places,
        units: &mut Units,
        out: &mut Vectors,
    ) {
        let (n, chosen) = (self.shape.unit as usize, &places.chosen);
        let single = units.len() == 1;
        let mut credits = (0, 0);
        out.oob.clear();
        out.cause.clear();
        out.index.clear();
        out.units.clear();
        for unit in units.iter_mut() {
            self.describe(unit, chosen.sequence, single, out);
        }
        let mut placed = Placed::new();
        // In one section: programs reach a chunk in the order of its positions (FORMAT.md rule 23).
        let mut p = self.pools.get(places.pool).lock();
        out.addrs.clear();
        for (at, pu) in &chosen.chunks {
            let spot = match units.is_empty() {
                true => None,
                false => p.take_chosen(chosen.line, *at),
            };
            let Some(spot) = spot else {
                self.pu[*pu as usize].release(cx, 1);
                continue;
            };
            let mut unit = units.remove(0);
            unit.first = spot.chunk as u64 * self.shape.chunk_sectors as u64 + spot.sector as u64;
            let base = self.flash.chunk_base[spot.chunk as usize];
            self.flash.format.extend_in_chunk(base, spot.sector, self.shape.unit, &mut out.addrs);
            let at = placed.len() * n;
            let Described { stamp, gc, causes } = &out.units[placed.len()];
            self.lines
                .raise_stamp(spot.line, if mutant!("log.line-stamp-low") { 0 } else { *stamp });
            p.programmed_unit(&spot, &out.oob[at..at + n], causes);
            credits = (credits.0 + unit.slots.len() as u64 - gc, credits.1 + gc);
            placed.push((spot, unit));
        }
        let moved = p.spare.is_none();
        let p = (!mutant!("qblk.submitted-late")).then_some(p);
        if !placed.is_empty() {
            let sectors = placed.len() * n;
            let index = match out.index.is_empty() {
                true => &placed[0].1.slots[..],
                false => &out.index[..sectors],
            };
            let content = self.slab.gather(index);
            let (oob, cause) = (&out.oob[..sectors], &out.cause[..sectors]);
            let request = Request {
                op: Op::Write,
                flags: Flags::default(),
                addrs: &out.addrs,
                data: Data::Write { content, oob, cause },
                whole_sectors: false,
            };
            let ticket = self.flash.device.submit(cx, request);
            let me = self.me.upgrade().expect("it drains");
            let (their_cx, served_by) = (cx.clone(), self.served_by(worker, out.requests));
            out.requests += 1;
            let mut program = Program { units: placed, ring: ring.at, credits };
            // A stop waits for it: what the medium refuses is taken back from the counters.
            let awaited = !mutant!("log.stop-beside-programs");
            if awaited {
                self.task_began();
            }
            cx.spawn_at(ticket.ask_at, async move {
                let done = me.flash.device.wait(&their_cx, ticket).await;
                me.program_ended(&served_by, &mut program, &done).await;
                if awaited {
                    me.task_ended(&their_cx);
                }
            });
        }
        drop(p);
        if moved {
            self.pool_changed.wake(cx);
        }
    }

    /// Adds a unit to what the device is told: records, causes, and, unless it is the only one and
    /// full, whose slots they are.
    fn describe(&self, unit: &Unit, sequence: u64, single: bool, out: &mut Vectors) {
        let n = self.shape.unit as usize;
        let (used, from) = (unit.slots.len(), out.oob.len());
        let (slots, mut stamp, mut gc) = (self.slab.heads(), 0, 0);
        out.oob.resize(from + used, [0; OOB_BYTES]);
        for ((record, slot), head) in out.oob[from..].iter_mut().zip(&unit.slots).zip(&unit.heads) {
            let own = slots.stamp(*slot);
            stamp = stamp.max(own);
            gc += head.origin() as u64;
            *record = Oob::unsealed(head.lba(), own);
        }
        self.seal(&mut out.oob[from..], &unit.slots);
        if !single || used < n {
            out.index.extend_from_slice(&unit.slots);
        }
        if used < n {
            self.pad(sequence, used, out);
        }
        let causes = if unit.retries == 0 && !unit.dead && used == n {
            let (user, gc) = (n as u32 - gc as u32, gc as u32);
            match (user, gc) {
                (0, _) => out.cause.resize(from + n, Cause::Gc),
                (_, 0) => out.cause.resize(from + n, Cause::User),
                _ => out.cause.extend(unit.heads.iter().map(|head| head.origin().cause())),
            }
            SmallVec::from_buf([(Cause::User, user), (Cause::Gc, gc)])
        } else {
            out.cause.extend((0..n).map(|i| unit.cause(i)));
            let of = |cause: Cause| (0..n).filter(|i| unit.cause(*i) == cause).count() as u32;
            Cause::ALL.iter().map(|cause| (*cause, of(*cause))).collect()
        };
        out.units.push(Described { stamp, gc, causes });
    }

    /// Completes out-of-band records by the CRC over their slots' content.
    #[inline]
    fn seal(&self, oob: &mut [[u8; OOB_BYTES]], slots: &[u32]) {
        if self.info.content_bytes == 8 {
            return Oob::seal_words(oob, &self.slab.gather(slots));
        }
        for (record, slot) in oob.iter_mut().zip(slots) {
            let (lba, stamp, _) = Oob::decode_raw(record);
            *record = Oob::encode_raw(lba, stamp, Oob::content_crc(self.slab.content(*slot)));
        }
    }

    /// Fills the rest of a unit, of which `used` sectors are there. Padding takes the content of the
    /// slab's zero slot.
    #[cold]
    fn pad(&self, sequence: u64, used: usize, out: &mut Vectors) {
        let zero = self.layout.slots;
        let mut padding = [Oob::unsealed(LBA_PADDING, sequence)];
        self.seal(&mut padding, &[zero]);
        let rest = self.shape.unit as usize - used;
        crate::log::add(&self.padding_dist[rest], 1);
        out.index.resize(out.index.len() + rest, zero);
        out.oob.resize(out.oob.len() + rest, padding[0]);
    }

    async fn program_ended(&self, cx: &Cx, program: &mut Program, done: &Completion) {
        let Program { units, ring, credits } = program;
        let n = self.shape.unit as usize;
        let ring = self.rings.get(*ring);
        let mut released = Released::new();
        // (line, unit of the ring, how many of its slots went out again)
        let mut ended: SmallVec<[(u32, u64, usize); UNITS_INLINE]> = SmallVec::new();
        for (i, (spot, unit)) in units.drain(..).enumerate() {
            ended.push((spot.line, unit.id, unit.retries));
            let failed = done.failed >> (i * n) & (u64::MAX >> (64 - n));
            let failed = if mutant!("log.program-failure-ignored") { 0 } else { failed };
            let (again, units) = match failed {
                0 => {
                    self.pools.of_line(spot.line).lock().completed(&spot, Some(unit), &mut released)
                }
                _ => self.unit_failed(&spot, unit, (done, i * n, failed), &mut released),
            };
            if !again.is_empty() {
                self.send_again(cx, again);
            }
            // Only now may the next program reach this PU: the pool knows how this one ended.
            self.pu[spot.pu as usize].release(cx, units);
        }
        if done.failed != 0 {
            self.note_program_failure(cx, done);
        }
        let units = self.costs.complete_unit.times(ended.len() as u64);
        cx.cpu(self.costs.complete_request + units).await;
        self.publish_media(cx, released).await;
        // Before its line may close: what is not done yet is in a line that takes data or is closing, and
        // a barrier that waits for it is not taken for one that waits for ever (`is_stranded`).
        let done = || {
            ring.state.enter(|r| {
                if self.in_ring_order {
                    // Units of a request are neighbours in the ring: its room is its first one's.
                    r.keep_room(ended[0].1, *credits);
                }
                for (_, unit, retries) in &ended {
                    r.unit_done(*unit);
                    r.retried(*retries);
                }
                if self.in_ring_order { r.room_in_order() } else { *credits }
            })
        };
        let late = mutant!("log.done-behind-close");
        let early = (!late).then(done);
        // Not before: a line that closed meanwhile could be taken for one without valid sectors.
        let published = |line: &u32| self.pools.of_line(*line).lock().published(*line);
        let close: SmallVec<[u32; 1]> =
            ended.iter().map(|(line, ..)| *line).filter(published).collect();
        let (users, gc) = early.unwrap_or_else(|| {
            hesitate();
            done()
        });
        ring.admission.release(cx, users, gc);
        self.rings.progress.wake(cx);
        // What is programmed is no longer in the way of the next victim (`gc::fits`).
        let wanting = self.pools.iter().map(|pool| &pool.collector).filter(|c| c.is_wanted());
        wanting.for_each(|collector| collector.work.wake(cx));
        close.iter().for_each(|line| self.close_if_ready(cx, *line));
    }

    /// Slots wait in their rings to be programmed elsewhere. Called before the unit that held them
    /// counts as done: between the two a flush could end.
    #[cold]
    pub(in crate::log) fn send_again(&self, cx: &Cx, slots: Vec<u32>) {
        if mutant!("log.sent-again-late") {
            let (me, their_cx) = (self.me.upgrade().expect("it drains"), cx.clone());
            cx.spawn(async move {
                their_cx.sleep(Ns::from_ms(50)).await;
                me.rings.send_again(&their_cx, &slots, &me.slab);
            });
            return;
        }
        self.rings.send_again(cx, &slots, &self.slab);
    }

    /// Some of a unit could not be programmed: `failed`, where its sector `i` is the `first + i`-th of
    /// the request. Returns the slots that go out again elsewhere.
    #[cold]
    fn unit_failed(
        &self,
        spot: &Spot,
        unit: Box<Unit>,
        (done, first, failed): (&Completion, usize, u64),
        released: &mut Released,
    ) -> (Vec<u32>, u64) {
        let mut p = self.pools.of_line(spot.line).lock();
        for i in 0..self.shape.unit as usize {
            if done.status(first + i).moved_pointer() {
                continue;
            }
            // The medium never began: neither did we.
            let cause = unit.cause(i);
            p.programmed[cause as usize] -= 1;
            if i < unit.slots.len() && cause != Cause::Retry {
                self.slab.heads().uncount(unit.slots[i]);
            }
        }
        p.unit_failed(spot, Some(unit), failed, released)
    }

    /// Units that the medium can give back now: the map moves on from their slots, which are free
    /// then. Whoever overwrote a sector meanwhile has made its copy garbage already.
    pub(in crate::log) async fn publish_media(&self, cx: &Cx, released: Released) {
        if released.is_empty() {
            return;
        }
        let sectors = released.iter().map(|unit| unit.published()).sum();
        let cost = self.costs.map_update.times(sectors);
        let give_back = || self.rings.of(cx).state.enter(|r| r.free.release(&released));
        if self.map.is_exclusive() {
            let section = |_: &mut ()| {
                released.iter().for_each(|unit| self.publish_alone(unit));
                give_back();
            };
            self.map.lock.with(cx, cost, section).await;
        } else {
            cx.cpu(cost).await;
            if mutant!("qblk.slots-free-early") {
                give_back();
                released.iter().for_each(|unit| self.publish_among_others(cx, unit));
            } else {
                released.iter().for_each(|unit| self.publish_among_others(cx, unit));
                give_back();
            }
        }
        self.units.lock().extend(released);
    }

    /// Under the map lock that everybody takes: the order in which map and valid bits change does
    /// not show.
    fn publish_alone(&self, unit: &Unit) {
        let map = self.map.view();
        // Their misses pass side by side.
        unit.heads.iter().for_each(|head| map.prefetch(head.lba()));
        let current = if unit.torn {
            unit.sectors().fold(0, |current, (addr, slot, lba)| {
                current | u64::from(map.publish(lba, slot, addr)) << (addr - unit.first)
            })
        } else {
            let slots = unit.slots.iter().zip(&unit.heads).zip(unit.first..);
            map.publish_each(slots.map(|((slot, head), addr)| (head.lba(), *slot, addr)))
        };
        if current != 0 {
            self.lines.validate(unit.first, current);
        }
        if u64::from(current.count_ones()) != unit.published() {
            let is_current = |addr: u64| current >> (addr - unit.first) & 1 != 0;
            let superseded = unit.sectors().filter(|(addr, ..)| !is_current(*addr));
            superseded
                .for_each(|(addr, slot, lba)| self.slab.note_below(&self.map, lba, (slot, addr)));
        }
    }

    fn publish_among_others(&self, cx: &Cx, unit: &Unit) {
        let own = (&self.map, &self.lines, &self.slab);
        let lost = publish_unit(own, (&self.sections, cx.core()), unit);
        if lost > 0 {
            bump(&self.counts(cx).drain_lost, lost);
        }
    }
}

/// The map moves on from a unit's slots to the medium, in a section: what lies on top of a slot may be
/// used again behind it. Valid before it is published: whoever finds an address may invalidate it. Whoever
/// loses the exchange makes its own sector garbage (QBLK, II-C, situation 2). Returns how many did.
pub(in crate::log) fn publish_unit(
    (map, lines, slab): (&Map, &Lines, &Slab),
    (sections, core): (&Sections, CoreId),
    unit: &Unit,
) -> u64 {
    let _inside = (!mutant!("qblk.published-outside")).then(|| sections.enter_on(core));
    let view = map.view();
    let (mut current, mut lost) = (0u64, 0);
    for (addr, slot, lba) in unit.sectors() {
        if view.raw(lba) == view.encode(Entry::Slot(slot)) {
            current |= 1 << (addr - unit.first);
        } else {
            lost += 1;
            slab.note_below(map, lba, (slot, addr));
        }
    }
    let late = mutant!("qblk.valid-late");
    if current != 0 && !late {
        lines.validate(unit.first, current);
    }
    hesitate();
    for (addr, slot, lba) in unit.sectors() {
        if current >> (addr - unit.first) & 1 != 0 && !view.publish(lba, slot, addr) {
            lost += 1;
            if late {
                current &= !(1 << (addr - unit.first));
            } else if !mutant!("qblk.loser-stays-valid") {
                lines.invalidate(addr);
            }
            slab.note_below(map, lba, (slot, addr));
        }
    }
    if late && current != 0 {
        lines.validate(unit.first, current);
    }
    lost
}

#[cfg(test)]
mod tests;
