//! A write buffer: which slots wait to be programmed, in what order, and who may add more.
//!
//! Owns: the order of buffered slots, the positions that flushes wait for, the admission of users and
//! GC under the limiter's shares, of one ring; what concerns all of a target is in [`crate::log::rings`].
//! Promises: a slot is drained in the order of its insertion; `durable_to` never passes a slot
//! that is not programmed; admission is all or nothing and first come first served per origin.
//! Never: touches the map or the medium.
//!
//! Positions (pblk's pointers, kernel names in brackets): `tail` (mem) counts slots ever inserted,
//! `head` (subm) those handed to the device, `synced` (sync) those known to be programmed. They
//! only grow.

use crate::contention::Queue;
use crate::log::rings::FreeSlots;
use crate::log::slab::{Origin, Slab, SlotState};
use crate::log::unit::{Push, Unit};
use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::{AtomicBool, AtomicU64, Mutex, hesitate};
use flashlane_rt::{Cx, Lock, Notify, Waiter, Waits};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub(in crate::log) struct RingState {
    fifo: VecDeque<u32>,
    head: u64,
    /// Slots whose program failed: they go out before anything else.
    retry: VecDeque<u32>,
    /// Failed slots not yet programmed elsewhere; no flush ends while there are any.
    retry_open: u64,
    pub(in crate::log) sent_again: u64,
    /// Units in flight in the order of their positions.
    units: VecDeque<InFlight>,
    units_base: u64,
    /// Room of units that have ended, and all before them, not taken back yet.
    room: Room,
    synced: u64,
    /// Up to here a flush or FUA waits, and an erase barrier.
    flush_to: u64,
    barrier_to: u64,
    /// The allocator has nothing left and waits for a barrier: pad for it.
    starving: bool,
    /// Somebody is taking the positions of all rings: until it has, nothing is dropped.
    pub(in crate::log) holds: u32,
    /// How many wait for a barrier without being able to wait for company: a target that stops, a
    /// collection by hand. Nobody may come to fill the last unit.
    pub(in crate::log) urgent: u32,
    pub(in crate::log) free: FreeSlots,
    /// Host sectors that the drainer has taken, while it waits before it programs them.
    pub(in crate::log) in_hand: u64,
    /// Counters that change with the ring.
    pub(in crate::log) host_written: u64,
    pub(in crate::log) absorbed: u64,
    pub(in crate::log) discarded_in_buffer: u64,
}

/// Room of a ring that comes back: users, GC.
pub(in crate::log) type Room = (u64, u64);

/// A unit that was taken.
struct InFlight {
    /// The position behind it.
    end: u64,
    is_done: bool,
    /// Room that comes back when it has ended and all before it: of users, of GC, at most a request's.
    room: [u8; 2],
}

impl RingState {
    fn new(free: FreeSlots) -> RingState {
        RingState {
            fifo: VecDeque::new(),
            head: 0,
            retry: VecDeque::new(),
            retry_open: 0,
            sent_again: 0,
            units: VecDeque::new(),
            units_base: 0,
            room: (0, 0),
            synced: 0,
            flush_to: 0,
            barrier_to: 0,
            starving: false,
            holds: 0,
            urgent: 0,
            free,
            in_hand: 0,
            host_written: 0,
            absorbed: 0,
            discarded_in_buffer: 0,
        }
    }

    /// Slots that wait to be drained.
    pub(in crate::log) fn waiting(&self) -> usize {
        self.fifo.len() + self.retry.len()
    }

    pub(in crate::log) fn tail(&self) -> u64 {
        self.head + self.fifo.len() as u64
    }

    pub(in crate::log) fn insert(&mut self, slot: u32) {
        self.fifo.push_back(slot);
    }

    /// The free slots that are next, in the order in which they are to be filled.
    #[inline]
    pub(in crate::log) fn offer(&mut self, to: &mut [u32]) {
        let free = self.free.at_least(to.len());
        let next = free[free.len() - to.len()..].iter().rev();
        to.iter_mut().zip(next).for_each(|(to, slot)| *to = *slot);
    }

    /// Of the `offered` slots those that were filled go into the ring, the others stay free.
    #[inline]
    pub(in crate::log) fn insert_offered(
        &mut self,
        offered: usize,
        filled: &[u32],
        others: &[u32],
    ) {
        let free = self.free.at_least(offered);
        free.truncate(free.len() - offered);
        free.extend_from_slice(others);
        self.fifo.extend(filled);
    }

    /// A flush or FUA write waits for what is in the ring now.
    #[inline]
    pub(in crate::log) fn cover(&mut self) {
        self.flush_to = self.tail();
    }

    /// As [`RingState::cover`], or an erase barrier does. Returns the position.
    pub(in crate::log) fn cover_for(&mut self, flush: bool) -> u64 {
        let tail = self.tail();
        let point = if flush { &mut self.flush_to } else { &mut self.barrier_to };
        *point = (*point).max(tail);
        tail
    }

    fn push(&self) -> Push {
        // A failed slot is acknowledged data that no flush can end without: it never waits for
        // company.
        let again = !self.retry.is_empty() && !mutant!("qblk.again-waits-for-company");
        if self.flush_to > self.head || again {
            Push::Flush
        } else if (self.starving && !mutant!("log.barrier-not-padded") || self.urgent > 0)
            && self.barrier_to > self.head
        {
            Push::Gc
        } else {
            Push::None
        }
    }

    /// True when the drainer has something to do.
    pub(in crate::log) fn has_work(&self, unit: usize) -> bool {
        let n = self.waiting();
        n >= unit || n > 0 && self.push() != Push::None
    }

    /// Takes up to `sectors` live slots into a unit, retries first: from now on they are the
    /// drainer's, and their program counts. Dead slots that no flush or erase barrier covers are
    /// dropped on the way (FORMAT.md rule 2). `None` when there is too little and nobody waits for
    /// it; no slots when that shows only without the dead.
    pub(in crate::log) fn take_unit(
        &mut self,
        slab: &Slab,
        sectors: usize,
        unit: &mut Unit,
    ) -> Option<Room> {
        unit.clear();
        let heads = slab.heads();
        if !self.has_work(sectors) {
            return None;
        }
        unit.push = self.push();
        let mut dropped = (0, 0);
        while unit.slots.len() < sectors
            && let Some(slot) = self.retry.pop_front()
        {
            unit.slots.push(slot);
            unit.heads.push(heads.count(slot));
            unit.retries += 1;
        }
        let covered = match mutant!("qblk.covered-dropped") {
            false => self.flush_to.max(self.barrier_to),
            true => 0,
        };
        let waits = covered > self.head;
        while unit.slots.len() < sectors && !self.fifo.is_empty() {
            let from = unit.slots.len();
            let n = (sectors - from).min(self.fifo.len());
            let (front, back) = self.fifo.as_slices();
            let whole = front.len().min(n);
            unit.slots.extend_from_slice(&front[..whole]);
            unit.slots.extend_from_slice(&back[..n - whole]);
            self.fifo.drain(..n);
            self.head += n as u64;
            let dead = heads.take(&unit.slots[from..], &mut unit.heads);
            unit.dead |= dead;
            if dead && self.head > covered && self.holds == 0 {
                self.drop_dead(unit, from, covered, &mut dropped);
            }
        }
        if unit.push == Push::None && unit.slots.len() < sectors && !waits {
            // What is alive goes on waiting for company.
            self.head -= unit.slots.len() as u64;
            for slot in unit.slots.drain(..).rev() {
                slab.untake(slot);
                self.fifo.push_front(slot);
            }
        }
        // The next unit's slots were filled thousands of writes ago: have their lines come meanwhile.
        let ((next, _), lines) = (self.fifo.as_slices(), slab.filler());
        next[..sectors.min(next.len())].iter().for_each(|slot| lines.prefetch(*slot));
        unit.id = self.units_base + self.units.len() as u64;
        self.units.push_back(InFlight { end: self.head, is_done: false, room: [0; 2] });
        if unit.slots.is_empty() {
            self.unit_done(unit.id);
        }
        Some(dropped)
    }

    /// Drops the dead among the slots taken last, from index `from` on, that lie behind `covered`.
    #[cold]
    fn drop_dead(&mut self, unit: &mut Unit, from: usize, covered: u64, dropped: &mut Room) {
        let mut position = self.head - (unit.slots.len() - from) as u64;
        let mut kept = from;
        for i in from..unit.slots.len() {
            let (slot, head) = (unit.slots[i], unit.heads[i]);
            position += 1;
            if !head.is(SlotState::Dead) || position <= covered {
                (unit.slots[kept], unit.heads[kept]) = (slot, head);
                kept += 1;
                continue;
            }
            match head.origin() {
                Origin::User => dropped.0 += 1,
                Origin::Gc => dropped.1 += 1,
            }
            self.free.give(slot);
        }
        unit.slots.truncate(kept);
        unit.heads.truncate(kept);
    }

    /// A unit's program has ended (well or with its failed slots queued as retries).
    pub(in crate::log) fn unit_done(&mut self, unit: u64) {
        let at = (unit - self.units_base) as usize;
        self.units[at].is_done = true;
        if mutant!("qblk.synced-over-gaps") {
            self.synced = self.synced.max(self.units[at].end);
        }
        while let Some(InFlight { end, is_done: true, room }) = self.units.front() {
            self.synced = *end;
            let [users, gc] = room.map(u64::from);
            self.units.pop_front();
            self.units_base += 1;
            self.room = (self.room.0 + users, self.room.1 + gc);
        }
    }

    /// A unit that is about to be done keeps room until all before it are done.
    pub(in crate::log) fn keep_room(&mut self, unit: u64, (users, gc): Room) {
        let small = |n: u64| u8::try_from(n).expect("a request has 64 sectors at most");
        self.units[(unit - self.units_base) as usize].room = [small(users), small(gc)];
    }

    /// Takes the room of units that have ended, and all before them.
    pub(in crate::log) fn room_in_order(&mut self) -> Room {
        std::mem::take(&mut self.room)
    }

    pub(in crate::log) fn units_taken(&self) -> u64 {
        self.units_base + self.units.len() as u64
    }

    /// No unit is under way: taken, and its program has not ended.
    pub(in crate::log) fn all_ended(&self) -> bool {
        self.units.is_empty()
    }

    /// Nothing that went out again is still to be programmed.
    pub(in crate::log) fn nothing_again(&self) -> bool {
        self.retry_open == 0
    }

    /// Everything before this position is programmed, as long as no retry is open.
    pub(in crate::log) fn durable_to(&self) -> u64 {
        let held = self.retry_open > 0 && !mutant!("qblk.durable-before-again");
        if held { 0 } else { self.synced }
    }

    pub(in crate::log) fn retry(&mut self, slot: u32) {
        self.retry.push_back(slot);
        self.retry_open += 1;
        self.sent_again += 1;
    }

    pub(in crate::log) fn retried(&mut self, n: usize) {
        self.retry_open -= n as u64;
    }

    /// Host sectors acknowledged, neither programmed nor superseded: counted by looking.
    pub(in crate::log) fn buffered_user(&self, slab: &Slab) -> u64 {
        let user = |s: &&u32| slab.origin(**s) == Origin::User;
        let waits = |s: &&u32| slab.head(**s).is(SlotState::Buffered);
        // Taken once, but the medium never began its program.
        let refused = |s: &&u32| {
            let head = slab.head(**s);
            head.is(SlotState::Taken) && !head.counted()
        };
        let fresh = self.fifo.iter().filter(user).filter(waits).count();
        let again = self.retry.iter().filter(user).filter(refused).count();
        (fresh + again) as u64 + self.in_hand
    }

    /// pblk's `write_buffer` attribute: (mem, subm, sync, flush point, free slots).
    pub(in crate::log) fn pointers(&self) -> (u64, u64, u64, u64, usize) {
        (self.tail(), self.head, self.synced, self.flush_to, self.free.count())
    }
}

pub(in crate::log) struct Ring {
    /// Its place among the target's rings.
    pub(in crate::log) at: usize,
    pub(in crate::log) state: Lock<RingState>,
    /// The drainer waits here.
    pub(in crate::log) work: Notify,
    pub(in crate::log) admission: Admission,
    /// Counts the requests of its drainer: which channel is next.
    pub(in crate::log) pointer: AtomicU64,
    pub(in crate::log) is_drained: AtomicBool,
}

impl Ring {
    pub(in crate::log) fn new(at: u32, free: FreeSlots, capacity: u64) -> Ring {
        Ring {
            at: at as usize,
            state: Lock::new(RingState::new(free)),
            work: Notify::new(),
            admission: Admission::new(capacity),
            pointer: AtomicU64::new(u64::from(at)),
            is_drained: AtomicBool::new(false),
        }
    }

    /// `publish` puts slots on top of what they supersede and returns how many host sectors that killed;
    /// then they are in the ring: both in one step of it. What a slot has superseded may be dropped when
    /// the slot is in the ring, where a flush finds it, and not before. Never the other way round: whoever
    /// holds a ring may wait for sections to end. A FUA write covers its slots at once: else they could
    /// be overwritten and dropped before somebody waits for them. Returns the position behind the slots,
    /// and whether the drainer, of units of `unit` sectors, has work.
    #[inline(always)]
    pub(in crate::log) fn insert(
        &self,
        publish: impl FnOnce() -> u64,
        slots: &[u32],
        fua: bool,
        unit: usize,
    ) -> (u64, bool) {
        let (early, publish) = match mutant!("qblk.published-before-the-ring") {
            true => (publish(), None),
            false => (0, Some(publish)),
        };
        self.state.enter(|r| {
            let absorbed = publish.map_or(early, |publish| publish());
            hesitate();
            slots.iter().for_each(|s| r.insert(*s));
            r.host_written += slots.len() as u64;
            r.absorbed += absorbed;
            if fua && !mutant!("qblk.fua-uncovered") {
                r.cover();
            }
            (r.tail(), r.has_work(unit))
        })
    }

    /// Somebody waits for what is before `to`, and with `flush` may be padded for.
    pub(in crate::log) fn wait_for(&self, cx: &Cx, to: u64, flush: bool) {
        self.state.now(|r| {
            let point = if flush { &mut r.flush_to } else { &mut r.barrier_to };
            *point = (*point).max(to);
        });
        self.work.wake(cx);
    }

    /// How full it is, who waited for it.
    pub(in crate::log) fn queue(&self, now: Ns) -> Queue {
        Queue { lock: self.state.stats(), ..self.admission.queue(now) }
    }

    /// Tells the drainer whether an erase barrier may be padded for.
    pub(in crate::log) fn set_starving(&self, cx: &Cx, starving: bool) {
        let changed = self.state.now(|r| std::mem::replace(&mut r.starving, starving) != starving);
        if changed && starving {
            self.work.wake(cx);
        }
    }
}

/// Users who asked for nothing this long are idle, and GC may take the whole ring (Linux 5.10,
/// `pblk-rl.c`: a 5 s timer, started by every user insert).
const IDLE_AFTER: Ns = Ns::from_secs(5);

#[derive(Default)]
struct Line {
    used: u64,
    share: u64,
    /// What the limiter can't take away: GC owns slots for one request, so that a victim once
    /// taken is always finished (FORMAT.md rule 18).
    floor: u64,
    queue: VecDeque<(u64, u64, Waiter)>,
    next_ticket: u64,
    granted: u64,
    /// For room; for a share.
    waits: [Waits; 2],
}

impl Line {
    /// May take `n` now? Share is tested before adding, as pblk does: one request may overshoot,
    /// so a share smaller than a request still lets it through when nothing of it is in use.
    fn fits(&self, n: u64, room: u64) -> bool {
        self.used < self.share.max(self.floor) && n <= room
    }
}

struct Gate {
    capacity: u64,
    /// Users, GC.
    origin: [Line; 2],
    /// When a user last asked; `None` before the first did.
    last_user: Option<Ns>,
    /// The target is read-only: everybody is let in, to be told so.
    open: bool,
    /// Most slots in use; looked at only where some come back.
    depth_max: u64,
    /// Slots × time at which each was taken, less those of slots that came back; modulo 2^64. Slots in
    /// use × the present time less this is the depth summed over time: exact, and two instructions where a
    /// slot is taken.
    taken_at: u64,
}

impl Gate {
    fn used(&self) -> u64 {
        self.origin[0].used + self.origin[1].used
    }

    fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    #[inline(always)]
    fn took(&mut self, n: u64, now: Ns) {
        self.taken_at = self.taken_at.wrapping_add(n.wrapping_mul(now.as_ns()));
    }

    /// Some come back.
    fn gave(&mut self, n: u64, now: Ns) {
        self.depth_max = self.depth_max.max(self.used());
        self.taken_at = self.taken_at.wrapping_sub(n.wrapping_mul(now.as_ns()));
    }

    /// May the next of an origin take `n` now? A share is not tested for GC while users are idle.
    fn fits(&self, origin: usize, n: u64, now: Ns) -> bool {
        let room = self.room();
        let waits = !self.origin[Origin::User as usize].queue.is_empty();
        let idle = !waits && self.last_user.is_none_or(|at| now >= at + IDLE_AFTER);
        let alone = origin == Origin::Gc as usize && idle;
        self.open || self.origin[origin].fits(n, room) || alone && n <= room
    }

    /// Grants from the front of both queues, GC first: it makes the room that users wait for.
    fn grant(&mut self, cx: &Cx) {
        for o in [Origin::Gc as usize, Origin::User as usize] {
            while let Some((ticket, n, who)) = self.origin[o].queue.front().copied() {
                let now = cx.now();
                if !self.fits(o, n, now) {
                    break;
                }
                self.took(n, now);
                let line = &mut self.origin[o];
                line.queue.pop_front();
                line.used += n;
                line.granted = ticket + 1;
                cx.wake(who);
            }
        }
    }
}

/// Who may put how many slots into the ring: the limiter's shares, applied.
pub(in crate::log) struct Admission {
    gate: Mutex<Gate>,
}

/// Why an admission had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::log) enum Waited {
    No,
    /// No room in the ring.
    RingFull,
    /// Room, but no share for this origin.
    Limited,
}

impl Admission {
    fn new(capacity: u64) -> Admission {
        let mut origin = [Line::default(), Line::default()];
        origin[0].share = capacity;
        origin[1].share = capacity;
        let owned = if mutant!("log.gc-owns-no-slots") { 0 } else { crate::log::create::PIECE_MAX };
        origin[1].floor = u64::from(owned);
        let (last_user, open, depth_max, taken_at) = (None, false, 0, 0);
        let gate = Gate { capacity, origin, last_user, open, depth_max, taken_at };
        Admission { gate: Mutex::new(gate) }
    }

    pub(in crate::log) fn acquire<'a>(&'a self, cx: &'a Cx, origin: Origin, n: u64) -> Admit<'a> {
        Admit { admission: self, cx, origin, n, ticket: None, waited: Waited::No, since: Ns::ZERO }
    }

    /// Takes room for `n` user sectors if that is there now; of another core's ring (not `own`) only
    /// what leaves half of it to its own writers.
    pub(in crate::log) fn try_user(&self, cx: &Cx, n: u64, own: bool) -> bool {
        let mut g = self.gate.lock();
        let spare = if own { 0 } else { g.capacity / 2 };
        let now = cx.now();
        let fits = g.room() >= n + spare && g.fits(Origin::User as usize, n, now);
        let line = &mut g.origin[Origin::User as usize];
        let taken = line.queue.is_empty() && fits;
        if taken {
            line.used += n;
            g.last_user = Some(now);
            g.took(n, now);
        }
        taken
    }

    pub(in crate::log) fn release(&self, cx: &Cx, users: u64, gc: u64) {
        let mut g = self.gate.lock();
        g.gave(users + gc, cx.now());
        g.origin[0].used -= users;
        g.origin[1].used -= gc;
        g.grant(cx);
    }

    /// Somebody who did not queue up for room has waited for it.
    pub(in crate::log) fn note_wait(&self, time: Ns) {
        let full = &mut self.gate.lock().origin[Origin::User as usize].waits[0];
        full.times += 1;
        full.time += time;
    }

    /// Takes room without asking: slots that are sent again had it before.
    pub(in crate::log) fn force(&self, cx: &Cx, users: u64, gc: u64) {
        let mut g = self.gate.lock();
        g.took(users + gc, cx.now());
        g.origin[0].used += users;
        g.origin[1].used += gc;
    }

    /// Lets everybody in: the target has become read-only, and they are told so.
    pub(in crate::log) fn open(&self, cx: &Cx) {
        let mut g = self.gate.lock();
        g.open = true;
        g.grant(cx);
    }

    /// New shares from the limiter.
    pub(in crate::log) fn set_shares(&self, cx: &Cx, users: u64, gc: u64) {
        let mut g = self.gate.lock();
        g.origin[0].share = users;
        g.origin[1].share = gc;
        g.grant(cx);
    }

    /// How full it is, which users waited.
    fn queue(&self, now: Ns) -> Queue {
        let g = self.gate.lock();
        let ([full, limited], depth) = (g.origin[Origin::User as usize].waits, g.used());
        Queue {
            capacity: g.capacity,
            depth,
            depth_max: g.depth_max.max(depth),
            slot_ns: depth.wrapping_mul(now.as_ns()).wrapping_sub(g.taken_at),
            full,
            limited,
            ..Queue::default()
        }
    }

    /// Users' waits for room, and for a share.
    pub(in crate::log) fn waits(&self) -> [Waits; 2] {
        self.gate.lock().origin[Origin::User as usize].waits
    }

    /// The most in use is what is in use now.
    pub(in crate::log) fn forget_peak(&self) {
        let mut g = self.gate.lock();
        g.depth_max = g.used();
    }

    /// (used, share) of users and of GC.
    pub(in crate::log) fn snapshot(&self) -> [(u64, u64); 2] {
        let g = self.gate.lock();
        let of = |l: &Line| (l.used, l.share);
        [of(&g.origin[0]), of(&g.origin[1])]
    }
}

/// Future of [`Admission::acquire`]; gives what it had to wait for.
pub(in crate::log) struct Admit<'a> {
    admission: &'a Admission,
    cx: &'a Cx,
    origin: Origin,
    n: u64,
    ticket: Option<u64>,
    waited: Waited,
    /// When it began to wait.
    since: Ns,
}

impl Future for Admit<'_> {
    type Output = Waited;
    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Waited> {
        let mut g = self.admission.gate.lock();
        let o = self.origin as usize;
        if let Some(ticket) = self.ticket {
            let line = &mut g.origin[o];
            if line.granted <= ticket {
                return Poll::Pending;
            }
            let why = (self.waited == Waited::Limited) as usize;
            line.waits[why].time += self.cx.now().saturating_sub(self.since);
            return Poll::Ready(self.waited);
        }
        let now = self.cx.now();
        if self.origin == Origin::User {
            g.last_user = Some(now);
        }
        let room = g.room();
        let fits = g.fits(o, self.n, now);
        let line = &mut g.origin[o];
        if line.queue.is_empty() && fits {
            line.used += self.n;
            g.took(self.n, now);
            return Poll::Ready(Waited::No);
        }
        let limited = line.used >= line.share && self.n <= room;
        let ticket = line.next_ticket;
        line.next_ticket += 1;
        line.queue.push_back((ticket, self.n, self.cx.waiter()));
        line.waits[limited as usize].times += 1;
        drop(g);
        (self.ticket, self.since) = (Some(ticket), now);
        self.waited = if limited { Waited::Limited } else { Waited::RingFull };
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_rt::{CostTable, Virtual};
    use std::rc::Rc;

    /// G10: in a user burst GC keeps to its share (one request may overshoot it); it may take the
    /// whole ring when no user has asked for five seconds, and only until the next one asks.
    #[test]
    fn gc_takes_the_whole_ring_only_while_users_are_idle() {
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        let test = async move {
            let gate = Rc::new(Admission::new(512));
            gate.set_shares(&cx, 448, 64);
            let gc = || gate.snapshot()[1].0;
            let ask = |origin: Origin, n: u64| {
                let (gate, cx2) = (gate.clone(), cx.clone());
                cx.spawn_join(async move {
                    gate.acquire(&cx2, origin, n).await;
                })
            };
            let second = Ns::from_secs(1);
            ask(Origin::User, 8).await;
            ask(Origin::Gc, 63).await;
            ask(Origin::Gc, 64).await;
            cx.sleep(Ns::from_ms(4_500)).await;
            let late = ask(Origin::Gc, 64);
            cx.sleep(second).await;
            assert_eq!(gc(), 127, "it asked while users were active");
            // What ends in the ring lets the next in: idle now, whatever the share.
            gate.release(&cx, 0, 1);
            late.await;
            for _ in 0..5 {
                ask(Origin::Gc, 62).await;
            }
            assert_eq!(gc(), 500);
            let user = ask(Origin::User, 8);
            cx.sleep(second).await;
            gate.release(&cx, 0, 8);
            user.await;
            let beyond = ask(Origin::Gc, 1);
            cx.sleep(second).await;
            assert_eq!(gc(), 492, "users are active again");
            gate.release(&cx, 0, 430);
            beyond.await;
            assert_eq!(gc(), 63);
        };
        run.run(test).expect("no stall");
    }
}
