//! Slots: where buffered content lives from the acknowledgement until the medium can give it back.
//!
//! Owns: content, logical address, stamp and state of every slot of a target.
//! Promises: a slot's content and stamp do not change between its publication in the map and its
//! release; the state says who got it first, the drainer or an overwrite.
//! Never: decides when a slot is free (that is `ring` and `drain`).

use crate::log::format::{LBA_BITS, LBA_MASK};
use crate::log::map::{Entry, Map};
use flashlane_base::mutant;
use flashlane_ocssd::device::{Cause, Gather};
use flashlane_rt::sync::{AtomicU64, Mutex, MutexGuard, Ordering, copy_content};
use std::cell::UnsafeCell;

/// So many slots' `prev` can change at a time; loom pays for each.
const PREV_LOCKS: usize = if cfg!(feature = "loom") { 2 } else { 64 };

/// A slot's life: free → buffered → taken (by the drainer) or dead (overwritten or discarded
/// before). `buffered → taken | dead` is one exchange, so each host sector is counted once. A slot
/// that goes back to the free list keeps its state until it is filled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::log) enum SlotState {
    Free = 0,
    Buffered = 1,
    Taken = 2,
    Dead = 3,
}

/// Whose sector a slot holds; decides the ring share it occupies and the cause it is programmed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::log) enum Origin {
    User = 0,
    Gc = 1,
}

impl Origin {
    /// What the program of such a slot is counted for, if nothing came between.
    #[inline(always)]
    pub(in crate::log) fn cause(self) -> Cause {
        match self {
            Origin::User => Cause::User,
            Origin::Gc => Cause::Gc,
        }
    }
}

/// What changes least and is asked for most, in one word: logical sector, origin, the ring that it
/// is in, state, and whether the medium has counted a program of the slot (then the next one is a
/// retry).
#[derive(Clone, Copy)]
pub(in crate::log) struct Head(u64);

const GC: u64 = 1 << LBA_BITS;
const COUNTED: u64 = GC << 1;
const RING: u32 = LBA_BITS + 2;
/// More rings than there are cores.
pub(in crate::log) const RING_BITS: u32 = 16;
const STATE: u32 = RING + RING_BITS;

impl Head {
    #[inline(always)]
    fn new(lba: u64, (origin, ring): (Origin, u32), state: SlotState) -> Head {
        let ring = u64::from(ring) << RING;
        Head(lba | (origin as u64 * GC) | ring | (state as u64) << STATE)
    }

    /// The ring that it goes through.
    #[inline(always)]
    pub(in crate::log) fn ring(self) -> u32 {
        (self.0 >> RING) as u32 & ((1 << RING_BITS) - 1)
    }

    #[inline(always)]
    pub(in crate::log) fn lba(self) -> u64 {
        self.0 & LBA_MASK
    }

    #[inline(always)]
    pub(in crate::log) fn origin(self) -> Origin {
        if self.0 & GC == 0 { Origin::User } else { Origin::Gc }
    }

    #[inline(always)]
    pub(in crate::log) fn counted(self) -> bool {
        self.0 & COUNTED != 0
    }

    /// A comparison of two bits: the data path asks for one state at a time.
    #[inline(always)]
    pub(in crate::log) fn is(self, state: SlotState) -> bool {
        self.0 >> STATE == state as u64
    }

    #[inline(always)]
    fn with_state(self, state: SlotState) -> Head {
        Head(self.0 & ((1 << STATE) - 1) | (state as u64) << STATE)
    }
}

/// What is known of a slot besides its content: half a cache line, never across two.
#[derive(Default)]
#[repr(align(32))]
struct Meta {
    head: AtomicU64,
    stamp: AtomicU64,
    /// Where the newest durable copy of this sector before the slot's own is: media address + 1, 0
    /// for none, [`POISONED`] for a lost one. What a checkpoint stores for a buffered sector.
    prev: AtomicU64,
    /// The stamp that goes with `prev`: an upper bound of the copy's, the lost content's, or, where
    /// there is none, one below every slot of the sector that may yet become durable.
    prev_stamp: AtomicU64,
}

impl Meta {
    /// The content is not needed any more.
    #[inline(always)]
    fn set_free(&self) {
        let lba = Head(self.head.load(Ordering::Relaxed)).lba();
        self.head.store(lba, Ordering::Relaxed);
    }

    #[inline(always)]
    fn set(&self, head: Head, stamp: u64, (prev, prev_stamp): (u64, u64)) {
        self.head.store(head.0, Ordering::Relaxed);
        self.stamp.store(stamp, Ordering::Relaxed);
        self.prev.store(prev, Ordering::Relaxed);
        self.prev_stamp.store(prev_stamp, Ordering::Relaxed);
    }
}

/// `prev` of a slot whose sector was lost before it was written again.
pub(in crate::log) const POISONED: u64 = u64::MAX;

pub(in crate::log) struct Slab {
    /// `slots × unit` bytes. Reached by pointers, and no reference is ever longer than the slot that it is for:
    /// other cores write others meanwhile.
    content: Box<[UnsafeCell<u8>]>,
    unit: usize,
    meta: Box<[Meta]>,
    /// A run in virtual time: one thread does everything, so nothing need be one instruction.
    alone: bool,
    /// `prev` and its stamp change together, under one of these; none where the map has a lock.
    prev_locks: Box<[Mutex<()>]>,
}

// SAFETY: `content` is written by the one who took the slot from the free list, before it is
// published by a release exchange on the map, and read after an acquire load of that entry, under
// the map lock, in a section, or by the drainer that owns the slot; it is written again only after the
// slot went back to the free list, which the map lock or the end of the sections orders behind those
// readers.
unsafe impl Sync for Slab {}
/// Zeroes that change through shared references, without touching the pages.
fn zeroes(n: usize) -> Box<[UnsafeCell<u8>]> {
    let plain = Box::into_raw(vec![0u8; n].into_boxed_slice());
    // SAFETY: UnsafeCell<u8> has the size, alignment and bit validity of u8 (documented in std).
    unsafe { Box::from_raw(plain as *mut [UnsafeCell<u8>]) }
}

impl Slab {
    /// `shared`: slots change without the map's lock, on several threads.
    pub(in crate::log) fn new(slots: u32, unit: usize, alone: bool, shared: bool) -> Slab {
        let n = slots as usize;
        let locks = if shared { PREV_LOCKS } else { 0 };
        Slab {
            content: zeroes(n * unit),
            unit,
            meta: (0..n).map(|_| Meta::default()).collect(),
            alone,
            prev_locks: (0..locks).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Keeps `prev` of a slot as it is.
    #[inline]
    fn lock_prev(&self, slot: u32) -> Option<MutexGuard<'_, ()>> {
        let lock = self.prev_locks.get(slot as usize % PREV_LOCKS);
        lock.filter(|_| !mutant!("qblk.prev-unlocked")).map(Mutex::lock)
    }

    /// Asks for the cache lines of a slot.
    #[inline]
    pub(in crate::log) fn prefetch(&self, slot: u32) {
        self.filler().prefetch(slot);
    }

    /// Fills a slot that the caller took from the free list.
    #[inline]
    pub(in crate::log) fn fill(&self, slot: u32, lba: u64, ring: u32, content: &[u8]) {
        let head = Head::new(lba, (Origin::User, ring), SlotState::Free);
        self.filler().put(slot, content).head.store(head.0, Ordering::Relaxed);
    }

    /// Gives a filled slot its place in the order of its sector; before publication.
    #[inline]
    pub(in crate::log) fn set_order(&self, slot: u32, stamp: u64, prev: (u64, u64)) {
        let m = &self.meta[slot as usize];
        let head = Head(m.head.load(Ordering::Relaxed)).with_state(SlotState::Buffered);
        m.set(head, stamp, prev);
    }

    /// For filling many slots: [`Filler`].
    #[inline(always)]
    pub(in crate::log) fn filler(&self) -> Filler<'_> {
        Filler { meta: &self.meta, content: self.bytes(), unit: self.unit }
    }

    /// Where the content of all slots begins.
    #[inline(always)]
    fn bytes(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.content.as_ptr())
    }

    #[inline(always)]
    pub(in crate::log) fn origin(&self, slot: u32) -> Origin {
        self.head(slot).origin()
    }
    /// (`prev`, its stamp).
    #[inline]
    pub(in crate::log) fn prev(&self, slot: u32) -> (u64, u64) {
        let _both = self.lock_prev(slot);
        self.prev_alone(slot)
    }

    #[inline]
    fn prev_alone(&self, slot: u32) -> (u64, u64) {
        let m = &self.meta[slot as usize];
        (m.prev.load(Ordering::Relaxed), m.prev_stamp.load(Ordering::Relaxed))
    }

    /// A superseded slot became durable at `addr`: that is below a newer slot of its sector now. Where
    /// that is being superseded itself, below the newest one: whoever does so looks again behind its
    /// exchange ([`Slab::take_over`]), as this does behind the note. The lock of `prev` puts the two in order: who
    /// has it second sees what the other did before.
    #[cold]
    pub(in crate::log) fn note_below(&self, map: &Map, lba: u64, (slot, addr): (u32, u64)) {
        let stamp = self.stamp(slot);
        let mut before = None;
        while let Entry::Slot(newer) = map.get(lba)
            && before != Some(newer)
            && !mutant!("qblk.below-not-noted")
        {
            self.inherit(newer, (addr + 1, stamp));
            if mutant!("qblk.below-noted-once") {
                return;
            }
            before = Some(newer);
        }
    }

    /// `slot` was put on top of `older`: what is below that may have become durable between the look and the
    /// exchange. It is below those that have superseded `slot` meanwhile, too: they took over what there was
    /// before.
    pub(in crate::log) fn take_over(&self, map: &Map, lba: u64, (slot, older): (u32, u32)) {
        if mutant!("qblk.below-looked-at-once") {
            return;
        }
        self.inherit(slot, self.prev(older));
        let mut from = slot;
        while let Entry::Slot(newer) = map.get(lba)
            && newer != from
            && !mutant!("qblk.below-not-passed-on")
        {
            self.inherit(newer, self.prev(from));
            from = newer;
        }
    }

    /// What is below a slot is at least this: the copy of a superseded slot may be the newest before its own now.
    /// Not when a discard came between the two: what is below is then a tombstone of a higher stamp.
    fn inherit(&self, slot: u32, (prev, stamp): (u64, u64)) {
        let _both = self.lock_prev(slot);
        let (_, before) = self.prev_alone(slot);
        if stamp >= before || mutant!("qblk.prev-lowered") {
            let m = &self.meta[slot as usize];
            m.prev.store(prev, Ordering::Relaxed);
            m.prev_stamp.store(stamp, Ordering::Relaxed);
        }
    }

    /// The drainer gives a slot back that it took and did not program.
    pub(in crate::log) fn untake(&self, slot: u32) {
        let head = self.head(slot);
        debug_assert!(head.is(SlotState::Taken));
        let buffered = head.with_state(SlotState::Buffered);
        let counted = if mutant!("qblk.untake-counted") { 0 } else { COUNTED };
        self.meta[slot as usize].head.store(buffered.0 & !counted, Ordering::Relaxed);
    }

    /// An overwrite or discard kills a slot; `None` when the drainer had it first.
    #[inline(always)]
    pub(in crate::log) fn kill(&self, slot: u32) -> Option<Origin> {
        self.heads().leave_buffered(slot, SlotState::Dead).map(Head::origin)
    }

    #[inline]
    pub(in crate::log) fn head(&self, slot: u32) -> Head {
        self.heads().head(slot)
    }
    #[inline]
    pub(in crate::log) fn lba(&self, slot: u32) -> u64 {
        self.head(slot).lba()
    }
    #[inline]
    pub(in crate::log) fn stamp(&self, slot: u32) -> u64 {
        self.heads().stamp(slot)
    }
    /// What is known of all slots, held in registers by loops over many of them.
    #[inline(always)]
    pub(in crate::log) fn heads(&self) -> Heads<'_> {
        Heads { meta: &self.meta, alone: self.alone }
    }

    /// Content of a published slot. The caller holds what keeps the slot from being released: the
    /// map lock, or the slot itself (drainer).
    #[inline]
    pub(in crate::log) fn content(&self, slot: u32) -> &[u8] {
        let at = slot as usize * self.unit;
        assert!(at < self.content.len(), "no slot");
        // SAFETY: inside, since slots are whole; see the `Sync` impl: no writer while a reader may be here.
        unsafe { std::slice::from_raw_parts(self.bytes().add(at), self.unit) }
    }

    /// Copies the content of a published slot, as [`Slab::content`].
    #[inline]
    pub(in crate::log) fn read(&self, slot: u32, to: &mut [u8]) {
        let from = self.content(slot);
        assert!(to.len() == from.len(), "content is no sector");
        // SAFETY: as long as each other; `to` is the caller's alone.
        unsafe { copy_content(from.as_ptr(), to.as_mut_ptr(), from.len()) }
    }

    /// Content of slots that the caller owns, for a gathering command.
    #[inline]
    pub(in crate::log) fn gather<'a>(&'a self, slots: &'a [u32]) -> Gather<'a> {
        // SAFETY: the drainer owns these slots; nobody writes one before it has given it back.
        unsafe { Gather::among_others(self.bytes(), self.content.len(), slots, self.unit) }
    }
}

/// Where slots lie, held in registers by loops that fill many of them.
#[derive(Clone, Copy)]
pub(in crate::log) struct Filler<'a> {
    meta: &'a [Meta],
    /// `unit` bytes per slot of `meta`.
    content: *mut u8,
    unit: usize,
}

impl<'a> Filler<'a> {
    /// Asks for the cache lines of a slot.
    #[inline(always)]
    pub(in crate::log) fn prefetch(&self, slot: u32) {
        flashlane_base::prefetch_at(self.meta.as_ptr().wrapping_add(slot as usize).cast());
        flashlane_base::prefetch_at(self.content.wrapping_add(slot as usize * self.unit));
    }

    /// [`Slab::fill`] and [`Slab::set_order`] of a sector that GC moves from `addr`.
    #[inline(always)]
    pub(in crate::log) fn fill_moved(
        &self,
        (slot, ring): (u32, u32),
        (lba, stamp): (u64, u64),
        addr: u64,
        content: &[u8],
    ) {
        let head = Head::new(lba, (Origin::Gc, ring), SlotState::Buffered);
        self.put(slot, content).set(head, stamp, (addr + 1, stamp));
    }

    /// A filled slot that was not published after all.
    #[inline(always)]
    pub(in crate::log) fn set_free(&self, slot: u32) {
        self.meta[slot as usize].set_free();
    }

    /// Copies content into a slot that the caller took from the free list.
    #[inline(always)]
    fn put(&self, slot: u32, content: &[u8]) -> &'a Meta {
        let m = &self.meta[slot as usize];
        debug_assert!(!Head(m.head.load(Ordering::Relaxed)).is(SlotState::Buffered));
        assert!(content.len() == self.unit, "content is no sector");
        // SAFETY: the slot exists and is as long as `content`; it is off the free list and not yet
        // published: this task alone has it.
        unsafe {
            let to = self.content.add(slot as usize * self.unit);
            // Eight bytes (`stamps`) are one load and one store, not a call.
            match <[u8; 8]>::try_from(content) {
                Ok(word) => to.cast::<[u8; 8]>().write_unaligned(word),
                Err(_) => copy_content(content.as_ptr(), to, self.unit),
            }
        }
        m
    }
}

/// [`Slab::heads`].
#[derive(Clone, Copy)]
pub(in crate::log) struct Heads<'a> {
    meta: &'a [Meta],
    alone: bool,
}

impl Heads<'_> {
    #[inline(always)]
    pub(in crate::log) fn head(&self, slot: u32) -> Head {
        Head(self.meta[slot as usize].head.load(Ordering::Relaxed))
    }
    #[inline(always)]
    pub(in crate::log) fn stamp(&self, slot: u32) -> u64 {
        self.meta[slot as usize].stamp.load(Ordering::Relaxed)
    }

    /// Says that a slot's program is counted. The drainer owns the slot: nobody else changes its
    /// head, since an overwrite kills buffered slots only. Returns the head before.
    #[inline(always)]
    pub(in crate::log) fn count(&self, slot: u32) -> Head {
        let m = &self.meta[slot as usize];
        let head = m.head.load(Ordering::Relaxed);
        m.head.store(head | COUNTED, Ordering::Relaxed);
        Head(head)
    }

    /// The medium did not begin a slot's program.
    pub(in crate::log) fn uncount(&self, slot: u32) {
        let m = &self.meta[slot as usize];
        m.head.store(m.head.load(Ordering::Relaxed) & !COUNTED, Ordering::Relaxed);
    }

    /// The drainer takes slots to program them, and says that their programs are counted. Adds to
    /// `heads` what each was before: buffered, or dead, which it stays. True when one is dead.
    #[inline]
    pub(in crate::log) fn take(&self, slots: &[u32], heads: &mut Vec<Head>) -> bool {
        // Buffered is 1, taken 2, dead 3. Without a branch or an exit: this is done to every slot,
        // and almost always all of them are alive.
        const { assert!(SlotState::Taken as u64 == 2 && SlotState::Dead as u64 == 3) };
        let taken = |old: u64| (old + (!old >> 1 & 1 << STATE)) | COUNTED;
        let from = heads.len();
        heads.resize(from + slots.len(), Head(0));
        let (meta, heads, mut any) = (self.meta, &mut heads[from..], 0);
        if self.alone || mutant!("qblk.take-in-two-steps") {
            for (head, slot) in heads.iter_mut().zip(slots) {
                let word = &meta[*slot as usize].head;
                head.0 = word.load(Ordering::Relaxed);
                debug_assert!(head.0 >> STATE & 1 == 1, "what waits is buffered or dead");
                word.store(taken(head.0), Ordering::Relaxed);
                any |= head.0;
            }
        } else {
            for (head, slot) in heads.iter_mut().zip(slots) {
                let word = &meta[*slot as usize].head;
                head.0 = word.load(Ordering::Relaxed);
                while let Err(killed) = word.compare_exchange(
                    head.0,
                    taken(head.0),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                ) {
                    head.0 = killed;
                }
                any |= head.0;
            }
        }
        any >> (STATE + 1) != 0
    }

    #[inline(always)]
    fn leave_buffered(&self, slot: u32, to: SlotState) -> Option<Head> {
        let m = &self.meta[slot as usize];
        let head = Head(m.head.load(Ordering::Relaxed));
        if !head.is(SlotState::Buffered) {
            return None;
        }
        let to = head.with_state(to);
        if self.alone || mutant!("qblk.kill-in-two-steps") {
            m.head.store(to.0, Ordering::Relaxed);
            return Some(head);
        }
        m.head
            .compare_exchange(head.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            .then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FORMAT.md, hole 1: an older slot that becomes durable is what is below a newer one, unless a
    /// discard came between them: then a tombstone is, and a checkpoint must not forget the discard.
    #[test]
    fn a_discard_stays_between_two_slots_of_a_sector() {
        let slab = Slab::new(2, 8, false, false);
        // First of its sector at 20; the write over it takes over what is below.
        slab.set_order(0, 30, (0, 19));
        slab.inherit(0, (101, 20));
        assert_eq!(slab.prev(0), (101, 20));
        // Written at 20, discarded at 25, written again at 30.
        slab.set_order(1, 30, (0, 29));
        slab.inherit(1, (101, 20));
        assert_eq!(slab.prev(1), (0, 29));
    }

    /// Cores fill, read and program slots side by side, each its own: no reference of one covers bytes of another
    /// (Miri and ThreadSanitizer have an eye on it).
    #[test]
    fn cores_have_a_slot_each() {
        const UNIT: usize = 16;
        let slab = Slab::new(4, UNIT, false, true);
        let work = |core: u32| {
            let mine = [core, core + 2];
            for round in 0..if cfg!(miri) { 10 } else { 10_000u32 } {
                let content = [(core * 100 + round % 50) as u8; UNIT];
                for slot in mine {
                    slab.fill(slot, u64::from(slot), 0, &content);
                    slab.set_order(slot, 10, (0, 9));
                }
                let (mut heads, mut read) = (Vec::new(), [0; UNIT]);
                assert!(!slab.heads().take(&mine, &mut heads));
                slab.read(mine[0], &mut read);
                let gathered = slab.gather(&mine);
                assert_eq!((read, gathered.sector(1)), (content, slab.content(mine[1])));
                assert_eq!(gathered.sector(0), content);
            }
        };
        let work = &work;
        std::thread::scope(|scope| (0..2).for_each(|core| drop(scope.spawn(move || work(core)))));
    }

    /// What is published by an exchange on the map is read by whoever finds it there.
    #[test]
    fn content_comes_with_its_map_entry() {
        const UNIT: usize = 4096;
        let (slab, map) = (Slab::new(2, UNIT, false, true), Map::new(1, 100, 2, false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                slab.fill(1, 0, 0, &[7; UNIT]);
                slab.set_order(1, 10, (0, 9));
                assert!(map.exchange(0, 0, map.encode(Entry::Slot(1))));
            });
            scope.spawn(|| {
                let mut read = [0; UNIT];
                while map.get(0) != Entry::Slot(1) {
                    std::hint::spin_loop();
                }
                slab.read(1, &mut read);
                assert_eq!((read, slab.stamp(1)), ([7; UNIT], 10));
            });
        });
    }
}
