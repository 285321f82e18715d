//! A unit of data between the ring and the map.
//!
//! Owns: which slots a unit holds and whose sectors they are. Promises: a unit goes its way in one
//! piece, ring → program → read-back window → map, so no stage makes a list of its own of what is in
//! it. Never: decides where it goes (that is `pool`) or when it may be read (that is the window).

use crate::log::slab::{Head, SlotState};
use flashlane_ocssd::device::Cause;
use smallvec::SmallVec;

/// No slot: this sector of the unit was not programmed.
pub(in crate::log) const NO_SLOT: u32 = u32::MAX;

/// Slots that are programmed together. Kept and used again: clearing and allocating the lists for
/// each unit showed in the profile.
#[derive(Default)]
pub(in crate::log) struct Unit {
    /// Where it lies: the linear sector of the first slot. The slots follow each other; the rest of
    /// the unit, up to its whole length, is padding.
    pub(in crate::log) first: u64,
    /// The slots, from the first sector on; [`NO_SLOT`] where a program failed.
    pub(in crate::log) slots: Vec<u32>,
    /// What the slots' heads said when the drainer took them.
    pub(in crate::log) heads: Vec<Head>,
    /// Some of `slots` are [`NO_SLOT`].
    pub(in crate::log) torn: bool,
    /// Its place in the order of its ring.
    pub(in crate::log) id: u64,
    /// How many of the slots, from the front, go out again.
    pub(in crate::log) retries: usize,
    /// Some of the slots are dead: superseded before they were taken.
    pub(in crate::log) dead: bool,
    /// Why it may be padded.
    pub(in crate::log) push: Push,
}

/// Why the drainer must program what there is, even if it is less than a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::log) enum Push {
    /// Nobody waits.
    #[default]
    None,
    /// A flush or FUA write waits for a position ahead.
    Flush,
    /// An erase barrier waits and the allocator starves.
    Gc,
}

impl Unit {
    pub(in crate::log) fn clear(&mut self) {
        self.slots.clear();
        self.heads.clear();
        self.torn = false;
        (self.id, self.retries, self.dead, self.push) = (0, 0, false, Push::None);
    }

    /// What sector `i` is programmed for, padding included.
    #[inline]
    pub(in crate::log) fn cause(&self, i: usize) -> Cause {
        match self.heads.get(i) {
            // It was counted for its own cause before. A program that the medium never began is not
            // counted, so what follows is no retry.
            Some(head) if i < self.retries && head.counted() => Cause::Retry,
            Some(head) if head.is(SlotState::Dead) => Cause::Dead,
            Some(head) => head.origin().cause(),
            None if self.push == Push::Gc => Cause::PaddingGc,
            None => Cause::PaddingFlush,
        }
    }

    /// The sectors that are to be published: (address, slot, logical sector).
    #[inline(always)]
    pub(in crate::log) fn sectors(&self) -> impl Iterator<Item = (u64, u32, u64)> {
        let slots = self.slots.iter().copied().zip(&self.heads);
        let sectors = slots.zip(self.first..).map(|((slot, head), at)| (at, slot, head.lba()));
        sectors.filter(|(_, slot, _)| *slot != NO_SLOT)
    }

    /// How many sectors are to be published.
    pub(in crate::log) fn published(&self) -> u64 {
        match self.torn {
            false => self.slots.len() as u64,
            true => self.slots.iter().filter(|s| **s != NO_SLOT).count() as u64,
        }
    }

    /// Appends the slots to a list.
    #[inline]
    pub(in crate::log) fn give_slots_to(&self, list: &mut Vec<u32>) {
        match self.torn {
            false => list.extend_from_slice(&self.slots),
            true => list.extend(self.slots.iter().filter(|s| **s != NO_SLOT)),
        }
    }

    /// Takes out the sectors that were not programmed, and returns their slots.
    pub(in crate::log) fn tear(&mut self, lost: impl Fn(usize) -> bool) -> Vec<u32> {
        let mut again = Vec::new();
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if *slot != NO_SLOT && lost(i) {
                again.push(std::mem::replace(slot, NO_SLOT));
                self.torn = true;
            }
        }
        again
    }
}

/// Units of a request that lie in a list without an allocation: all of QBLK's, where the device writes 64 KiB
/// at once (64 sectors per vector command).
pub(in crate::log) const UNITS_INLINE: usize = 4;

/// Units that the medium can give back from now on: one, as a rule, and all of a window when a
/// chunk is full.
pub(in crate::log) type Released = SmallVec<[Box<Unit>; 2]>;
