//! Models of single structures for loom: few steps, all interleavings, weak memory too.
//!
//! Owns: what two cores do to a map entry, to a slot that is used again, to what is below a slot, each
//! with the structures themselves and the steps of `front` and `drain` written out. Promises: a model
//! is exhaustive up to three preemptions. Never: runs a target (that is `crates/testkit/tests/interleave`).
//!
//! Built only with the feature `loom`, for `tests/models.rs`, which runs them: `make models`.

use super::lines::Lines;
use super::map::{Entry, Map};
use super::path::drain::publish_unit;
use super::rings::Rings;
use super::sections::Sections;
use super::slab::{Slab, SlotState};
use super::unit::Unit;
use flashlane_rt::CoreId;
use flashlane_rt::sync::{AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Whoever is in a section that began before a slot went out of the map finds it as it was.
pub fn a_slot_is_not_used_again_under_a_section() {
    const AGAIN: u64 = u64::MAX;
    struct Shared {
        sections: Sections,
        /// Plain memory: loom reports who is there beside a writer, also if nothing wrong is read.
        slots: [UnsafeCell<u64>; 2],
        current: AtomicU64,
    }
    // SAFETY: loom ends the model when two are at one of `slots`.
    unsafe impl Sync for Shared {}
    let reuse = |another_advances: bool| {
        let shared = Arc::new(Shared {
            sections: Sections::new(2),
            slots: [UnsafeCell::new(1), UnsafeCell::new(0)],
            current: AtomicU64::new(0),
        });
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let _inside = theirs.sections.enter_on(CoreId(1));
            let at = theirs.current.load(Ordering::Acquire) as usize;
            // SAFETY: loom looks.
            theirs.slots[at]
                .with(|slot| assert_ne!(unsafe { *slot }, AGAIN, "used under a reader"));
        });
        let theirs = shared.clone();
        let advancer = another_advances.then(|| {
            thread::spawn(move || {
                theirs.sections.advance();
                theirs.sections.advance();
            })
        });
        // SAFETY: loom looks.
        shared.slots[1].with_mut(|slot| unsafe { *slot = 2 });
        shared.current.store(1, Ordering::Release);
        let retired = shared.sections.retired();
        for _ in 0..if another_advances { 1 } else { 3 } {
            shared.sections.advance();
            if shared.sections.passed(retired) {
                // SAFETY: loom looks.
                shared.slots[0].with_mut(|slot| unsafe { *slot = AGAIN });
                break;
            }
        }
        reader.join().expect("no reader saw it");
        advancer.into_iter().for_each(|a| a.join().expect("it ends"));
    };
    model(move || reuse(false));
    model(move || reuse(true));
}

/// Slots 1 and 2 of sector 0; the copy of slot 1 lies at address 5, chunk 0, line 0.
struct Sector {
    map: Map,
    lines: Lines,
    slab: Slab,
    sections: Sections,
}

const COPY: u64 = 5;

impl Sector {
    /// Slot 1 is the newest content and taken by the drainer. Sections of so many cores are counted.
    fn new(cores: u32) -> Arc<Sector> {
        let s = Sector {
            map: Map::new(1, 64, 4, false),
            lines: Lines::new(1, 64, false),
            slab: Slab::new(4, 8, false, true),
            sections: Sections::new(cores),
        };
        s.lines.set_line(0, 0);
        s.slab.fill(1, 0, 0, &[1; 8]);
        s.slab.set_order(1, 10, (0, 9));
        s.slab.heads().take(&[1], &mut Vec::new());
        assert!(s.map.exchange(0, 0, s.map.encode(Entry::Slot(1))));
        Arc::new(s)
    }

    /// The drainer, on core 1, publishes the copy.
    fn publish_copy(&self) {
        let heads = vec![self.slab.head(1)];
        let unit = Unit { first: COPY, slots: vec![1], heads, ..Unit::default() };
        let own = (&self.map, &self.lines, &self.slab);
        publish_unit(own, (&self.sections, CoreId(1)), &unit);
    }

    /// A write puts its slot on top (`front::publish`).
    fn write(&self, slot: u32) {
        self.slab.fill(slot, 0, 1, &[slot as u8; 8]);
        loop {
            let old = self.map.raw(0);
            let entry = self.map.decode(old);
            let (before, prev) = match entry {
                Entry::Slot(s) => (self.slab.stamp(s), self.slab.prev(s)),
                Entry::Media(a) => (10, (a + 1, 10)),
                _ => unreachable!("it was written"),
            };
            self.slab.set_order(slot, before + 1, prev);
            if !self.map.exchange(0, old, self.map.encode(Entry::Slot(slot))) {
                continue;
            }
            match entry {
                Entry::Slot(older) => {
                    self.slab.take_over(&self.map, 0, (slot, older));
                    let killed = self.slab.kill(older).is_some();
                    assert_eq!(killed, older != 1, "slot 1 is the drainer's");
                }
                _ => self.lines.invalidate(COPY),
            }
            return;
        }
    }
}

/// QBLK, II-C, both situations: a copy becomes garbage exactly once, whoever comes first, and is what
/// lies below the slot that came on top.
pub fn a_release_against_a_write_invalidates_once() {
    model(|| {
        let sector = Sector::new(0);
        let theirs = sector.clone();
        let drainer = thread::spawn(move || theirs.publish_copy());
        sector.write(2);
        drainer.join().expect("it ends");
        assert_eq!(sector.map.get(0), Entry::Slot(2));
        assert_eq!((sector.lines.valid(0), sector.lines.is_valid(COPY)), (0, false));
        assert_eq!(sector.slab.prev(2).0, COPY + 1, "what a checkpoint would store");
    });
}

/// FORMAT.md, hole 1, on several cores: two writes come on top while the copy below becomes durable; it is what
/// lies below the last of them.
pub fn what_is_below_a_slot_goes_up_to_the_newest() {
    model(|| {
        let sector = Sector::new(0);
        let theirs = sector.clone();
        sector.write(2);
        let drainer = thread::spawn(move || theirs.publish_copy());
        sector.write(3);
        drainer.join().expect("it ends");
        assert_eq!(sector.map.get(0), Entry::Slot(3));
        assert!(sector.slab.head(2).is(SlotState::Dead));
        assert_eq!(sector.slab.prev(3).0, COPY + 1, "what a checkpoint would store");
    });
}

/// As above, with two writers: what the first finds late goes on to the second.
pub fn what_is_below_a_slot_is_passed_on() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let sector = Sector::new(0);
        sector.write(2);
        let (drains, writes) = (sector.clone(), sector.clone());
        let drainer = thread::spawn(move || drains.publish_copy());
        let writer = thread::spawn(move || writes.write(3));
        sector.write(0);
        drainer.join().expect("it ends");
        writer.join().expect("it ends");
        let Entry::Slot(newest) = sector.map.get(0) else { panic!("it was written") };
        assert_eq!(sector.slab.prev(newest).0, COPY + 1, "what a checkpoint would store");
    });
}

/// The drainer takes a slot or an overwrite kills it, never both: a host sector is counted once.
pub fn a_slot_is_taken_or_killed() {
    model(|| {
        let slab = Arc::new(Slab::new(2, 8, false, true));
        slab.fill(0, 7, 0, &[1; 8]);
        slab.set_order(0, 10, (0, 9));
        let theirs = slab.clone();
        let drainer = thread::spawn(move || {
            let mut heads = Vec::new();
            theirs.heads().take(&[0], &mut heads)
        });
        let killed = slab.kill(0).is_some();
        let dead = drainer.join().expect("it ends");
        assert_eq!(killed, dead);
    });
}

/// What lies on top of a slot that becomes durable is not used again, for another sector, while the drainer
/// notes there what is below.
pub fn what_is_below_is_not_noted_at_a_slot_that_is_used_again() {
    model(|| {
        let sector = Sector::new(2);
        sector.write(2);
        let theirs = sector.clone();
        let drainer = thread::spawn(move || theirs.publish_copy());
        sector.write(3);
        let retired = sector.sections.retired();
        (0..2).for_each(|_| sector.sections.advance());
        let again = sector.sections.passed(retired);
        let of_another = (99, 5);
        if again {
            sector.slab.set_order(2, 50, of_another);
        }
        drainer.join().expect("it ends");
        assert!(!again || sector.slab.prev(2) == of_another, "it is of another sector");
    });
}

/// FORMAT.md, hole 9, and rules 12 and 13: slot 0 is acknowledged and in ring 1 when a flush takes the positions of
/// both rings; a write puts slot 1 on top, in ring 0; ring 1's drainer comes by. If it drops slot 0, the flush waits
/// for slot 1.
pub fn nothing_is_dropped_for_what_a_flush_does_not_wait_for() {
    model(|| {
        let slab = Slab::new(2, 8, false, true);
        let rings = Rings::new(2, 8, (2, 1), 2, Arc::new(Sections::new(0)));
        let buffered = |slot, ring| {
            slab.fill(slot, 7, ring, &[1; 8]);
            slab.set_order(slot, 10, (0, 9));
        };
        buffered(0, 1);
        buffered(1, 0);
        rings.get(1).insert(|| 0, &[0], false, 1);
        let both = Arc::new((rings, slab));
        let (writes, drains) = (both.clone(), both.clone());
        let writer = thread::spawn(move || {
            let (rings, slab) = &*writes;
            rings.get(0).insert(|| u64::from(slab.kill(0).is_some()), &[1], false, 1);
        });
        let drainer = thread::spawn(move || {
            let (rings, slab) = &*drains;
            rings.get(1).state.now(|r| r.take_unit(slab, 1, &mut Unit::default()))
        });
        let to = both.0.cover(true);
        let dropped = drainer.join().expect("it ends") == Some((1, 0));
        writer.join().expect("it ends");
        assert!(!dropped || to[0] == 1, "neither the old nor the new content is durable");
    });
}

/// FORMAT.md, rule 24a and 24b: an entry changes while its shard is copied. The copy has it, or the shard is marked, also
/// where the change found the mark of another.
pub fn a_change_is_copied_or_marked() {
    let check = |another: bool| {
        let map = Map::new(2, 64, 4, false);
        let shared = Arc::new((map, Sections::new(3)));
        let change = |core: u32, lba: u64| {
            let theirs = shared.clone();
            thread::spawn(move || {
                let (map, sections) = &*theirs;
                let _inside = sections.enter_on(CoreId(core));
                assert!(map.exchange(lba, 0, map.encode(Entry::Slot(1))));
            })
        };
        let mut others = vec![change(1, 0)];
        others.extend(another.then(|| change(2, 1)));
        let (map, sections) = &*shared;
        map.take_mark(0);
        let epoch = sections.retired();
        (0..2).for_each(|_| sections.advance());
        let is_copied = sections.passed(epoch).then(|| map.get(0) == Entry::Slot(1));
        others.into_iter().for_each(|other| other.join().expect("it ends"));
        assert!(is_copied != Some(false) || map.is_marked(0), "neither copied nor marked");
    };
    model(move || check(false));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || check(true));
}
