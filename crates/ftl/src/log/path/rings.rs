//! The rings of a target: one (pblk), or one per core (QBLK, section II-A).
//!
//! Owns: which ring a core writes to, the free slots that no ring keeps, and what is asked of all
//! rings: positions, shares, waiting. Promises: a slot that a ring's admission has room for is there,
//! whichever ring's drainer gives it back; a position of all rings is reached when every ring has
//! reached its own. Never: drains (that is `drain`).

use crate::log::ChannelChoice;
use crate::log::ring::{Ring, RingState};
use crate::log::sections::Sections;
use crate::log::slab::{Origin, Slab};
use crate::log::unit::Unit;
use flashlane_base::mutant;
use flashlane_rt::sync::{AtomicU64, Mutex, Ordering, hesitate, spin_loop};
use flashlane_rt::{Cx, Notify, Waits};
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::sync::Arc;

/// Free slots that change between a ring and the depot at a time. Under a checker of interleavings a
/// few, so that they do all the while.
const BATCH: usize = if cfg!(feature = "shuttle") { 4 } else { 64 };
/// Free slots that a ring keeps for itself.
const KEPT: usize = 2 * BATCH;
/// Slots of a ring that may wait for sections to end.
const WAITING: usize = 4 * BATCH;

/// Slots that a ring may hold beside those that its admission and the windows count.
pub(in crate::log) fn idle_slots(rings: u32) -> u32 {
    if rings == 1 { 0 } else { (KEPT + WAITING) as u32 }
}

/// A position in every ring.
pub(in crate::log) type Positions = SmallVec<[u64; 1]>;

pub(in crate::log) struct FreeSlots {
    free: Vec<u32>,
    /// Out of the map, but perhaps seen by a section: (epoch, slot).
    waiting: VecDeque<(u64, u32)>,
    /// There are other rings.
    shares: bool,
    common: Arc<Common>,
}

/// What all rings share.
struct Common {
    depot: Mutex<Vec<u32>>,
    sections: Arc<Sections>,
}

impl FreeSlots {
    /// The slot that the next one but a few will be: its lines are asked for.
    #[inline]
    pub(in crate::log) fn take(&mut self, slab: &Slab) -> u32 {
        if self.free.is_empty() {
            self.fetch(1);
        }
        let slot = self.free.pop().expect("admission bounds the slots in use");
        if let Some(ahead) = self.free.len().checked_sub(8) {
            slab.prefetch(self.free[ahead]);
        }
        slot
    }

    /// The free slots, at least `n` of them, the next at the end.
    #[inline]
    pub(in crate::log) fn at_least(&mut self, n: usize) -> &mut Vec<u32> {
        if self.free.len() < n {
            self.fetch(n);
        }
        &mut self.free
    }

    /// Has at least `n` slots here.
    #[cold]
    fn fetch(&mut self, n: usize) {
        let common = self.common.clone();
        // What waits is bounded for each ring: others count on the rest.
        self.bound_waiting();
        while self.free.len() < n {
            self.reclaim();
            let mut depot = common.depot.lock();
            let some = depot.len() - depot.len().min(BATCH);
            self.free.extend(depot.drain(some..));
            let found = self.free.len() >= n || !depot.is_empty();
            drop(depot);
            // What there is beyond is on its way: sections end by themselves.
            assert!(found || !self.waiting.is_empty(), "admission bounds the slots in use");
            if !found {
                common.sections.advance();
                spin_loop();
            }
        }
    }

    /// A slot that is not in the map any more.
    #[inline]
    pub(in crate::log) fn give(&mut self, slot: u32) {
        match self.common.sections.are_counted() {
            false => self.free.push(slot),
            true => self.waiting.push_back((self.common.sections.retired(), slot)),
        }
    }

    /// Slots that never were in the map, the next to be taken first.
    pub(in crate::log) fn put_back(&mut self, slots: &[u32]) {
        self.free.extend(slots.iter().rev());
    }

    /// Takes back the slots of units that are in the map.
    #[inline]
    pub(in crate::log) fn release(&mut self, units: &[Box<Unit>]) {
        match self.common.sections.are_counted() {
            false => units.iter().for_each(|unit| unit.give_slots_to(&mut self.free)),
            true => self.let_wait(units),
        }
        if self.shares && self.free.len() > KEPT && !mutant!("qblk.slots-hoarded") {
            self.give_up();
        }
    }

    fn let_wait(&mut self, units: &[Box<Unit>]) {
        let epoch = self.common.sections.retired();
        let slots = units.iter().flat_map(|unit| unit.sectors()).map(|(_, slot, _)| slot);
        self.waiting.extend(slots.map(|slot| (epoch, slot)));
        self.common.sections.advance();
        self.reclaim();
        self.bound_waiting();
    }

    fn bound_waiting(&mut self) {
        while self.waiting.len() > WAITING && !mutant!("qblk.waiting-unbounded") {
            self.common.sections.advance();
            self.reclaim();
            spin_loop();
        }
    }

    /// What no section can see any more is free.
    fn reclaim(&mut self) {
        while let Some((epoch, slot)) = self.waiting.front().copied()
            && (self.common.sections.passed(epoch) || mutant!("qblk.no-grace"))
        {
            self.waiting.pop_front();
            self.free.push(slot);
        }
    }

    fn give_up(&mut self) {
        let mut depot = self.common.depot.lock();
        depot.extend(self.free.drain(BATCH..));
    }

    /// Slots that nobody uses, here.
    pub(in crate::log) fn count(&self) -> usize {
        self.free.len() + self.waiting.len()
    }
}

pub(in crate::log) struct Rings {
    each: Box<[Ring]>,
    common: Arc<Common>,
    /// Sectors of a write unit.
    unit: u64,
    /// Rings that garbage collection puts anything into.
    collected: u64,
    /// Flushes, FUA writes and barriers wait here.
    pub(in crate::log) progress: Notify,
    /// Counts the requests of all drainers, where they share a pointer to the next channel.
    pointer: AtomicU64,
}

impl Rings {
    /// `rings` of `capacity` slots each, over `slots` slots in all; what is programmed together has `unit`
    /// sectors. Garbage collection runs on so many of their cores as `collected` says.
    pub(in crate::log) fn new(
        rings: u32,
        capacity: u64,
        (slots, unit): (u32, u32),
        collected: u32,
        sections: Arc<Sections>,
    ) -> Rings {
        let shares = rings > 1;
        let mut all: Vec<u32> = (0..slots).rev().collect();
        let depot = if shares { std::mem::take(&mut all) } else { Vec::new() };
        let common = Arc::new(Common { depot: Mutex::new(depot), sections });
        let ring = |at| {
            let free = std::mem::take(&mut all);
            let waiting = VecDeque::new();
            Ring::new(at, FreeSlots { free, waiting, shares, common: common.clone() }, capacity)
        };
        let each = (0..rings).map(ring).collect();
        let collected = u64::from(collected.clamp(1, rings));
        let (unit, progress, pointer) = (u64::from(unit), Notify::new(), AtomicU64::new(0));
        Rings { each, common, unit, collected, progress, pointer }
    }

    /// The ring that the caller's core writes to.
    #[inline]
    pub(in crate::log) fn of(&self, cx: &Cx) -> &Ring {
        match self.each.len() {
            1 => &self.each[0],
            n => &self.each[cx.core().0 as usize % n],
        }
    }

    #[inline]
    pub(in crate::log) fn get(&self, ring: usize) -> &Ring {
        &self.each[ring]
    }

    pub(in crate::log) fn iter(&self) -> std::slice::Iter<'_, Ring> {
        self.each.iter()
    }

    pub(in crate::log) fn len(&self) -> usize {
        self.each.len()
    }

    pub(in crate::log) fn sum(&self, of: impl Fn(&RingState) -> u64) -> u64 {
        self.iter().map(|ring| ring.state.now(|r| of(r))).sum()
    }

    /// Where every ring ends now, covered by a flush or an erase barrier: what is before that is
    /// programmed although it may be superseded (FORMAT.md rule 2). While positions are taken one after
    /// the other no ring drops anything: else a slot could go in a ring that is not looked at yet, for
    /// one in a ring that was.
    pub(in crate::log) fn cover(&self, flush: bool) -> Positions {
        let hold = |by: i32| {
            if self.len() > 1 && !mutant!("qblk.cover-without-hold") {
                let change = |holds: u32| holds.checked_add_signed(by).expect("counted");
                self.iter().for_each(|ring| ring.state.now(|r| r.holds = change(r.holds)));
            }
        };
        hold(1);
        let cover = |ring: &Ring| {
            hesitate();
            ring.state.now(|r| r.cover_for(flush))
        };
        let to = self.iter().map(cover).collect();
        hold(-1);
        to
    }

    /// The last of some (ring, position), nothing in the others.
    pub(in crate::log) fn positions(&self, of: &[(usize, u64)]) -> Positions {
        let mut positions: Positions = smallvec![0; self.len()];
        of.iter().for_each(|(ring, to)| positions[*ring] = positions[*ring].max(*to));
        positions
    }

    /// A ring that has room for `n` user sectors now, which it takes: the caller's own, else the next
    /// one that is half empty (QBLK's future work: few writers use what others leave).
    pub(in crate::log) fn with_room(&self, cx: &Cx, home: &Ring, n: u64) -> Option<&Ring> {
        let rings = self.len();
        let each = (0..rings).map(|i| &self.each[(home.at + i) % rings]);
        each.clone().find(|ring| ring.admission.try_user(cx, n, ring.at == home.at))
    }

    /// Users' waits for room, and for a share, in all rings together.
    pub(in crate::log) fn waits(&self) -> [Waits; 2] {
        let sum = |[full, limited]: [Waits; 2], ring: &Ring| {
            let [f, l] = ring.admission.waits();
            [full.and(f), limited.and(l)]
        };
        self.iter().fold(Default::default(), sum)
    }

    pub(in crate::log) fn sent_again(&self) -> u64 {
        self.sum(|r| r.sent_again)
    }

    /// Nothing that went out again is still to be programmed.
    pub(in crate::log) fn nothing_again(&self) -> bool {
        self.iter().all(|ring| ring.state.now(|r| r.nothing_again()))
    }

    /// None of all slots is in use.
    pub(in crate::log) fn is_empty(&self, slots: usize) -> bool {
        let kept = self.sum(|r| r.free.count() as u64) as usize;
        kept + self.common.depot.lock().len() == slots
    }

    /// Waits until everything before `to` is programmed, or `give_up` says that it never will be.
    /// `flush` asks the drainers to pad for it.
    pub(in crate::log) async fn wait_durable(
        &self,
        cx: &Cx,
        to: &Positions,
        flush: bool,
        give_up: impl Fn() -> bool,
    ) {
        for (ring, to) in self.iter().zip(to).filter(|(_, to)| **to > 0) {
            ring.wait_for(cx, *to, flush);
        }
        self.progress.wait(cx, || self.are_durable(to) || give_up()).await;
    }

    /// Is everything before these positions programmed?
    pub(in crate::log) fn are_durable(&self, to: &Positions) -> bool {
        let durable =
            |(ring, to): (&Ring, &u64)| *to == 0 || ring.state.now(|r| r.durable_to() >= *to);
        self.iter().zip(to).all(durable)
    }

    /// Somebody waits for a barrier and can't wait for company (`by` 1), or does not any more (-1).
    pub(in crate::log) fn hurry(&self, cx: &Cx, by: i32) {
        for ring in self.iter() {
            ring.state.now(|r| r.urgent = r.urgent.checked_add_signed(by).expect("counted"));
            if by > 0 {
                ring.work.wake(cx);
            }
        }
    }

    /// Tells the drainers whether an erase barrier may be padded for.
    pub(in crate::log) fn set_starving(&self, cx: &Cx, starving: bool) {
        self.iter().for_each(|ring| ring.set_starving(cx, starving));
    }

    /// New shares of the whole buffer: each ring's are as large a part of it, and if any a unit, since
    /// who fills less waits for company.
    pub(in crate::log) fn set_shares(&self, cx: &Cx, users: u64, gc: u64) {
        let part = |of: u64, rings: u64| match of {
            0 => 0,
            some => some.div_ceil(rings).max(self.unit),
        };
        let (users, gc) = (part(users, self.len() as u64), part(gc, self.collected));
        self.iter().for_each(|ring| ring.admission.set_shares(cx, users, gc));
    }

    /// Lets everybody in: the target has become read-only, and they are told so.
    pub(in crate::log) fn open(&self, cx: &Cx) {
        self.iter().for_each(|ring| ring.admission.open(cx));
    }

    /// (used, share) of users and of GC, of all rings together.
    pub(in crate::log) fn snapshot(&self) -> [(u64, u64); 2] {
        let mut sum = [(0, 0); 2];
        for ring in self.iter() {
            let ring = ring.admission.snapshot();
            sum.iter_mut().zip(ring).for_each(|(sum, (used, share))| {
                *sum = (sum.0 + used, sum.1 + share);
            });
        }
        sum
    }

    /// Slots went out of their program, or lost their window: they go out again, each in its ring.
    /// They take room there again, waiting for none: it was theirs before.
    pub(in crate::log) fn send_again(&self, cx: &Cx, slots: &[u32], slab: &Slab) {
        for ring in self.iter() {
            let heads = slots.iter().map(|slot| (slot, slab.head(*slot)));
            let is_first = ring.at == 0;
            let mine = heads.filter(|(_, head)| match mutant!("qblk.again-in-the-first-ring") {
                true => is_first,
                false => self.len() == 1 || head.ring() as usize == ring.at,
            });
            let mine: SmallVec<[(u32, Origin); 16]> =
                mine.map(|(slot, head)| (*slot, head.origin())).collect();
            if mine.is_empty() {
                continue;
            }
            let gc = mine.iter().filter(|(_, origin)| *origin == Origin::Gc).count() as u64;
            if !mutant!("qblk.again-without-room") {
                ring.admission.force(cx, mine.len() as u64 - gc, gc);
            }
            ring.state.now(|r| mine.iter().for_each(|(slot, _)| r.retry(*slot)));
            ring.work.wake(cx);
        }
    }

    /// The channel that a ring's next request is to look at first. A ring's own pointer starts at ring
    /// mod channels and moves on with every request (QBLK, II-B2); the common one starts at 0 and moves
    /// on with the requests of all rings.
    pub(in crate::log) fn next_pool(
        &self,
        ring: &Ring,
        pools: usize,
        choice: ChannelChoice,
    ) -> usize {
        if pools == 1 {
            return 0;
        }
        let pointer = match choice {
            ChannelChoice::PassBusy | ChannelChoice::Turn => &ring.pointer,
            ChannelChoice::Shared => &self.pointer,
        };
        pointer.fetch_add(1, Ordering::Relaxed) as usize % pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_rt::{CoreId, CostTable, Virtual};
    use std::collections::BTreeSet;

    const RINGS: u32 = 3;
    const CAPACITY: u32 = 128;

    fn rings(cores: u32) -> (Rings, Slab, Arc<Sections>, u32) {
        let slots = RINGS * (CAPACITY + 64 + idle_slots(RINGS));
        let sections = Arc::new(Sections::new(cores));
        let rings = Rings::new(RINGS, CAPACITY.into(), (slots, 4), RINGS, sections.clone());
        (rings, Slab::new(slots + 1, 8, true, false), sections, slots)
    }

    fn take(rings: &Rings, slab: &Slab, ring: usize, n: usize) -> Vec<u32> {
        rings.get(ring).state.now(|r| (0..n).map(|_| r.free.take(slab)).collect())
    }

    fn release(rings: &Rings, slab: &Slab, ring: usize, slots: Vec<u32>) {
        let heads = slots.iter().map(|slot| slab.head(*slot)).collect();
        let unit = Unit { slots, heads, ..Unit::default() };
        rings.get(ring).state.now(|r| r.free.release(&[Box::new(unit)]));
    }

    /// Q05: one ring takes slots, another's drainer gives them back, for ever: through the depot they come
    /// round, each is in one place at a time, and none is lost.
    #[test]
    fn slots_move_between_rings_and_none_is_lost() {
        let (rings, slab, _, slots) = rings(0);
        let mut out: Vec<Vec<u32>> = Vec::new();
        for round in 0..if cfg!(miri) { 6 } else { 2000 } {
            out.push(take(&rings, &slab, round % 3, 1 + round * 7 % 190));
            let all: Vec<u32> = out.iter().flatten().copied().collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "one slot twice");
            assert!(!rings.is_empty(slots as usize));
            if out.len() > 2 {
                release(&rings, &slab, (round + 1) % 3, out.remove(0));
            }
            let kept = |ring: &Ring| ring.state.now(|r| r.free.count());
            assert!(rings.iter().all(|ring| kept(ring) <= KEPT.max(BATCH + 190)));
        }
        out.drain(..).for_each(|some| release(&rings, &slab, 0, some));
        assert!(rings.is_empty(slots as usize));
        let reached = slots as usize - 2 * KEPT;
        assert_eq!(take(&rings, &slab, 2, reached).len(), reached, "all but what others keep");
    }

    /// Q05: while a core is in a section that may have seen a slot in the map, nobody gets that slot.
    #[test]
    fn a_slot_is_not_taken_under_a_section() {
        let (rings, slab, sections, slots) = rings(2);
        let run = Virtual::new(2, 1, CostTable::zero());
        let mine = take(&rings, &slab, 0, 100);
        let reader = sections.enter(&run.cx().on_core(CoreId(1)));
        release(&rings, &slab, 0, mine.clone());
        for _ in 0..10 {
            sections.advance();
        }
        let others = BTreeSet::from_iter(take(&rings, &slab, 1, slots as usize - 100 - 64));
        assert!(mine.iter().all(|slot| !others.contains(slot)));
        drop(reader);
        release(&rings, &slab, 1, others.iter().copied().take(4).collect());
        sections.advance();
        let more = take(&rings, &slab, 0, 100);
        assert!(mine.iter().any(|slot| more.contains(slot)), "nobody is in a section");
    }

    /// While a section lasts, what one ring gives back waits for it there, and no more of it than others can do
    /// without: each of them still finds as many slots as its admission has room for.
    #[test]
    fn a_ring_lets_few_slots_wait() {
        let (rings, slab, sections, slots) = rings(2);
        let inside = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let reader = || {
                let _inside = sections.enter_on(CoreId(1));
                inside.wait();
                #[allow(clippy::disallowed_methods)] // a section lasts that long, on a real thread
                std::thread::sleep(std::time::Duration::from_millis(100));
            };
            scope.spawn(reader);
            inside.wait();
            for _ in 0..slots / 190 {
                let some = take(&rings, &slab, 0, 190);
                release(&rings, &slab, 0, some);
            }
            (1..3).for_each(|ring| assert_eq!(take(&rings, &slab, ring, 190).len(), 190));
        });
    }

    /// A slot of a user in a ring, published.
    fn insert(rings: &Rings, slab: &Slab, ring: usize, fua: bool) -> u32 {
        let slot = take(rings, slab, ring, 1)[0];
        slab.fill(slot, 7, ring as u32, &[1; 8]);
        slab.set_order(slot, 10, (0, 9));
        rings.get(ring).insert(|| 0, &[slot], fua, 1);
        slot
    }

    /// The drainer of units of one sector takes the next one.
    fn take_unit(rings: &Rings, slab: &Slab, ring: usize) -> Unit {
        let mut unit = Unit::default();
        let taken = rings.get(ring).state.now(|r| r.take_unit(slab, 1, &mut unit));
        assert!(taken.is_some(), "there is work");
        unit
    }

    /// FORMAT.md rule 2: what a FUA write has put into the ring is programmed, also if it is overwritten before the
    /// write waits for it; the newer content is not what was promised to be durable.
    #[test]
    fn an_overwritten_fua_write_is_not_dropped() {
        let (rings, slab, ..) = rings(0);
        for fua in [false, true] {
            let slot = insert(&rings, &slab, 1, fua);
            assert!(slab.kill(slot).is_some());
            let taken = take_unit(&rings, &slab, 1).slots;
            assert_eq!(taken == [slot], fua, "{taken:?}");
        }
    }

    /// Programs end out of order: what is behind one that has not ended is not durable.
    #[test]
    fn nothing_is_durable_behind_a_gap() {
        let (rings, slab, ..) = rings(0);
        (0..3).for_each(|_| _ = insert(&rings, &slab, 1, false));
        let units = [(); 3].map(|()| take_unit(&rings, &slab, 1).id);
        let ends = |unit| rings.get(1).state.now(|r| r.unit_done(unit));
        let durable =
            || (0..=3).filter(|to| rings.are_durable(&rings.positions(&[(1, *to)]))).max();
        ends(units[1]);
        assert_eq!(durable(), Some(0));
        ends(units[0]);
        assert_eq!(durable(), Some(2));
        ends(units[2]);
        assert_eq!(durable(), Some(3));
    }

    /// What goes out again holds up those who wait for the ring that it was written to: a FUA write waits for
    /// no other.
    #[test]
    fn what_goes_out_again_is_waited_for_where_it_was_written() {
        let (rings, slab, ..) = rings(0);
        let run = Virtual::new(3, 1, CostTable::zero());
        let slot = insert(&rings, &slab, 2, true);
        let durable = || rings.are_durable(&rings.positions(&[(2, 1)]));
        let failed = take_unit(&rings, &slab, 2);
        rings.send_again(&run.cx(), &[slot], &slab);
        rings.get(2).state.now(|r| r.unit_done(failed.id));
        assert!(!durable(), "its program failed");
        let again = take_unit(&rings, &slab, 2);
        rings.get(2).state.now(|r| {
            r.unit_done(again.id);
            r.retried(again.retries);
        });
        assert!(durable());
    }
}
