//! Slots: where buffered content lives from the acknowledgement until the medium can give it back.
//!
//! Owns: content, logical address, stamp and state of every slot of a target.
//! Promises: a slot's content and stamp do not change between its publication in the map and its
//! release; the state says who got it first, the drainer or an overwrite.
//! Never: decides when a slot is free (that is `ring` and `drain`).

use flashlane_rt::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::cell::UnsafeCell;

/// A slot's life: free → buffered → taken (by the drainer) or dead (overwritten or discarded
/// before). `buffered → taken | dead` is one exchange, so each host sector is counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SlotState {
    Free = 0,
    Buffered = 1,
    Taken = 2,
    Dead = 3,
}

/// Whose sector a slot holds; decides the ring share it occupies and the cause it is programmed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Origin {
    User = 0,
    Gc = 1,
}

/// What is known of a slot besides its content: half a cache line, never across two.
#[derive(Default)]
#[repr(align(32))]
struct Meta {
    /// The logical sector, 36 bits: the lower 32, then the rest.
    lba_low: AtomicU32,
    lba_high: AtomicU8,
    state: AtomicU8,
    origin: AtomicU8,
    /// The medium has counted a program of this slot: the next one is a retry.
    counted: AtomicU8,
    stamp: AtomicU64,
    /// Where the newest durable copy of this sector before the slot's own is: media address + 1, 0
    /// for none, [`POISONED`] for a lost one. What a checkpoint stores for a buffered sector.
    prev: AtomicU64,
    /// The stamp that goes with `prev`: an upper bound of the copy's, the lost content's, or, where
    /// there is none, one below every slot of the sector that may yet become durable.
    prev_stamp: AtomicU64,
}

/// `prev` of a slot whose sector was lost before it was written again.
pub(super) const POISONED: u64 = u64::MAX;

pub(super) struct Slab {
    /// `slots × unit` bytes.
    content: UnsafeCell<Box<[u8]>>,
    unit: usize,
    meta: Box<[Meta]>,
}

// SAFETY: `content` is written by the one who took the slot from the free list, before it is
// published by a release exchange on the map, and read after an acquire load of that entry, under
// the map lock or by the drainer that owns the slot; it is written again only after the slot went
// back to the free list, which the map lock orders behind those readers.
unsafe impl Sync for Slab {}
// SAFETY: plain memory.
unsafe impl Send for Slab {}

impl Slab {
    pub(super) fn new(slots: u32, unit: usize) -> Slab {
        let n = slots as usize;
        Slab {
            content: UnsafeCell::new(vec![0; n * unit].into_boxed_slice()),
            unit,
            meta: (0..n).map(|_| Meta::default()).collect(),
        }
    }

    /// Asks for the cache lines of a slot.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32) {
        flashlane_base::prefetch(&self.meta[slot as usize]);
        flashlane_base::prefetch(&self.content(slot)[0]);
    }

    /// Asks for what is known of a slot, without its content.
    #[inline]
    pub(super) fn prefetch_order(&self, slot: u32) {
        flashlane_base::prefetch(&self.meta[slot as usize]);
    }

    /// Fills a slot that the caller took from the free list.
    #[inline]
    pub(super) fn fill(&self, slot: u32, lba: u64, origin: Origin, content: &[u8]) {
        debug_assert_eq!(self.state(slot), SlotState::Free);
        let i = slot as usize;
        // SAFETY: the slot is off the free list and not yet published: this task alone has it.
        unsafe {
            let base = (*self.content.get()).as_mut_ptr().add(i * self.unit);
            // Eight bytes (`stamps`) are one load and one store, not a call.
            match content.first_chunk::<8>() {
                Some(word) if self.unit == 8 => base.cast::<[u8; 8]>().write_unaligned(*word),
                _ => {
                    let n = self.unit.min(content.len());
                    std::ptr::copy_nonoverlapping(content.as_ptr(), base, n);
                }
            }
        }
        let m = &self.meta[i];
        m.lba_low.store(lba as u32, Ordering::Relaxed);
        m.lba_high.store((lba >> 32) as u8, Ordering::Relaxed);
        m.origin.store(origin as u8, Ordering::Relaxed);
        m.counted.store(0, Ordering::Relaxed);
    }

    /// Gives a filled slot its place in the order of its sector; before publication.
    #[inline]
    pub(super) fn set_order(&self, slot: u32, stamp: u64, prev: (u64, u64)) {
        self.meta[slot as usize].stamp.store(stamp, Ordering::Relaxed);
        self.set_prev(slot, prev);
        self.meta[slot as usize].state.store(SlotState::Buffered as u8, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn lba(&self, slot: u32) -> u64 {
        let m = &self.meta[slot as usize];
        let low = m.lba_low.load(Ordering::Relaxed) as u64;
        low | (m.lba_high.load(Ordering::Relaxed) as u64) << 32
    }
    #[inline]
    pub(super) fn stamp(&self, slot: u32) -> u64 {
        self.meta[slot as usize].stamp.load(Ordering::Relaxed)
    }
    /// (`prev`, its stamp); changes under the map lock only.
    #[inline]
    pub(super) fn prev(&self, slot: u32) -> (u64, u64) {
        let m = &self.meta[slot as usize];
        (m.prev.load(Ordering::Relaxed), m.prev_stamp.load(Ordering::Relaxed))
    }
    #[inline]
    fn set_prev(&self, slot: u32, (prev, stamp): (u64, u64)) {
        let m = &self.meta[slot as usize];
        m.prev.store(prev, Ordering::Relaxed);
        m.prev_stamp.store(stamp, Ordering::Relaxed);
    }

    /// A superseded slot of the same sector became durable at `addr`: that copy may be the newest
    /// before this slot's own now.
    pub(super) fn raise_prev(&self, slot: u32, addr: u64, stamp: u64) {
        let (prev, before) = self.prev(slot);
        if prev == 0 || stamp >= before {
            self.set_prev(slot, (addr + 1, stamp));
        }
    }
    #[inline]
    pub(super) fn origin(&self, slot: u32) -> Origin {
        match self.meta[slot as usize].origin.load(Ordering::Relaxed) {
            0 => Origin::User,
            _ => Origin::Gc,
        }
    }
    #[inline]
    pub(super) fn state(&self, slot: u32) -> SlotState {
        match self.meta[slot as usize].state.load(Ordering::Relaxed) {
            0 => SlotState::Free,
            1 => SlotState::Buffered,
            2 => SlotState::Taken,
            _ => SlotState::Dead,
        }
    }
    #[inline]
    pub(super) fn set_counted(&self, slot: u32, counted: bool) {
        self.meta[slot as usize].counted.store(counted as u8, Ordering::Relaxed);
    }
    #[inline]
    pub(super) fn was_counted(&self, slot: u32) -> bool {
        self.meta[slot as usize].counted.load(Ordering::Relaxed) != 0
    }
    #[inline]
    pub(super) fn set_free(&self, slot: u32) {
        self.meta[slot as usize].state.store(SlotState::Free as u8, Ordering::Relaxed);
    }

    /// The drainer takes a slot to program it; false when it was superseded before.
    #[inline]
    pub(super) fn take(&self, slot: u32) -> bool {
        self.leave_buffered(slot, SlotState::Taken)
    }

    /// An overwrite or discard kills a slot; false when the drainer had it first.
    #[inline]
    pub(super) fn kill(&self, slot: u32) -> bool {
        self.leave_buffered(slot, SlotState::Dead)
    }

    #[inline]
    fn leave_buffered(&self, slot: u32, to: SlotState) -> bool {
        self.meta[slot as usize]
            .state
            .compare_exchange(
                SlotState::Buffered as u8,
                to as u8,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Content of a published slot. The caller holds what keeps the slot from being released: the
    /// map lock, or the slot itself (drainer).
    #[inline]
    pub(super) fn content(&self, slot: u32) -> &[u8] {
        let i = slot as usize;
        // SAFETY: see the `Sync` impl: no writer while a reader may be here.
        unsafe { &(&(*self.content.get()))[i * self.unit..(i + 1) * self.unit] }
    }

    /// All content, for a gathering command over slots that the caller owns.
    #[inline]
    pub(super) fn base(&self) -> &[u8] {
        // SAFETY: the command reads only slots which the drainer owns; the reference covers more,
        // but the other bytes are neither read nor relied upon through it.
        unsafe { &(*self.content.get()) }
    }
}
