//! The write buffer: slots, the two lines of waiting sectors, the room for GC.
//!
//! Owns: the content of every sector that is on its way to the medium, and the order in which
//! sectors leave. Promises: a slot that the map names keeps its content until the map names
//! something else; a sector that dies while it waits leaves the queue at once and is never
//! programmed, unless a barrier covers it. Never: knows where a sector goes (that is `place.rs`).
//!
//! A slot in use is `Waiting`, `Flying`, and `Window` on media where a programmed sector can't be
//! read yet (`mw_cunits`); it goes back to `Waiting` when the medium lost it. A free slot is one on
//! the free list: its fields mean nothing, because to write them would be one more cache miss. Host
//! data and data moved by GC wait in queues of their own and own slots of their own, so neither can
//! take the other's room. What a drive keeps apart of either has a queue more. GC room is granted in whole batches, or for all that a victim
//! has left, and a batch is granted only when nothing but a rest too small for a unit is in the way.
//!
//! Slots = host room + GC room + twice what the windows can hold. Room is given back when a sector
//! is programmed; the window's slots come out of the second part.

use flashlane_base::{OOB_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use std::collections::VecDeque;

use crate::log::format::Oob;

/// No slot, no address, no owner.
pub(super) const NIL: u32 = u32::MAX;

/// Whose data: each waits in a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Written by the host.
    User = 0,
    /// Moved by garbage collection, to the main pool.
    Gc = 1,
    /// Written by the host, to be kept apart from its other data.
    Journal = 2,
    /// Moved by garbage collection, out of where it was kept apart.
    Wrap = 3,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::User, Kind::Gc, Kind::Journal, Kind::Wrap];

    /// The host wrote it: it has a slot of the host's.
    #[inline]
    pub(super) fn is_host(self) -> bool {
        matches!(self, Kind::User | Kind::Journal)
    }
}

/// Where a slot in use is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In a queue, not sent to the medium.
    Waiting,
    /// In a program command.
    Flying,
    /// Programmed, but the medium can't read it back yet.
    Window,
}

/// One buffered sector, without its content: a cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) lba: u32,
    /// Linear physical sector of the programmed copy, in a window.
    pub(super) at: u32,
    /// Where it stands in its queue, counted from the queue's beginning of time.
    place: u32,
    pub(super) stamp: u64,
    pub(super) oob: [u8; OOB_BYTES],
    pub(super) stage: Stage,
    pub(super) cause: Cause,
    /// The map names this slot.
    pub(super) live: bool,
    /// It died of a discard while it flew.
    pub(super) discarded: bool,
    /// Holds a sector of its pool's room (it does until it was programmed once).
    pub(super) holds_room: bool,
    /// `oob` is that of the content.
    pub(super) sealed: bool,
    /// Whose data it is.
    pub(super) kind: Kind,
    /// A barrier waits until it is programmed, dead or alive ([`super::sync`]).
    covered: bool,
}

const EMPTY: Slot = Slot {
    lba: NIL,
    at: NIL,
    place: 0,
    stamp: 0,
    oob: [0; OOB_BYTES],
    stage: Stage::Flying,
    cause: Cause::User,
    live: false,
    discarded: false,
    holds_room: false,
    sealed: false,
    kind: Kind::User,
    covered: false,
};

/// A queue of waiting slots. One may leave from the middle: it leaves a [`NIL`] behind, and when
/// most are, the queue closes up. An array, not a list through the slots: a unit is taken without
/// following 16 links to 16 cold cache lines.
#[derive(Default)]
struct Queue {
    slots: VecDeque<u32>,
    /// Place of the first entry; wraps.
    first: u32,
    /// Entries that are slots.
    len: u32,
}

/// Empty entries that a queue keeps before it closes up.
const GAPS: usize = 64;

/// Sizes of a buffer, in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Host sectors that wait or fly at most.
    pub(super) user_room: u32,
    /// GC sectors that are read, wait or fly at most.
    pub(super) gc_room: u32,
    /// Sectors that the windows of one kind's open chunks hold at most.
    pub(super) windows: u32,
    /// Bytes of content per sector.
    pub(super) content_bytes: usize,
}

/// Copies a sector's content. The 8 bytes of the `stamps` store are one move, not a call.
#[inline]
pub(super) fn copy_sector(to: &mut [u8], from: &[u8]) {
    match <[u8; 8]>::try_from(from) {
        Ok(word) => to[..8].copy_from_slice(&word),
        Err(_) => to.copy_from_slice(from),
    }
}

/// The slab and its queues.
pub(super) struct Buffer {
    slots: Vec<Slot>,
    content: Vec<u8>,
    content_bytes: usize,
    /// Of the host, and of GC.
    free: [Vec<u32>; 2],
    queue: [Queue; 4],
    /// First slot of the GC pool.
    gc_first: u32,
    /// GC sectors that nobody holds.
    gc_room: u32,
    /// Slots that a barrier waits for.
    covered: u32,
    /// Of those, slots that stand in a queue, per kind.
    covered_waiting: [u32; 4],
}

impl Buffer {
    pub(super) fn new(sizes: Sizes) -> Buffer {
        let user = sizes.user_room + sizes.windows;
        let gc = sizes.gc_room + sizes.windows;
        // The last slot belongs to no pool: its zeros are the content of padding.
        let slots = (user + gc + 1) as usize;
        Buffer {
            slots: vec![EMPTY; slots],
            content: vec![0; slots * sizes.content_bytes],
            content_bytes: sizes.content_bytes,
            // Popped from the end: low slots first, which keeps a small working set warm.
            free: [(0..user).rev().collect(), (user..user + gc).rev().collect()],
            queue: Default::default(),
            gc_first: user,
            gc_room: sizes.gc_room,
            covered: 0,
            covered_waiting: [0; 4],
        }
    }

    /// The slot whose content is zeros: what padding is made of.
    pub(super) fn padding(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Whose data a slot in use holds.
    #[inline]
    pub(super) fn kind(&self, slot: u32) -> Kind {
        self.slots[slot as usize].kind
    }

    /// It is one of the host's.
    #[inline]
    pub(super) fn is_host(&self, slot: u32) -> bool {
        slot < self.gc_first
    }

    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// All free slots, for the walk of the tests.
    pub(super) fn free_slots(&self) -> impl Iterator<Item = u32> {
        self.free.iter().flatten().copied()
    }

    /// Slots of both pools and the padding.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Brings a slot and its content near.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32) {
        super::prefetch(&self.slots, slot as usize);
        super::prefetch(&self.content, slot as usize * self.content_bytes);
    }

    #[inline]
    pub(super) fn content(&self, slot: u32) -> &[u8] {
        let at = slot as usize * self.content_bytes;
        &self.content[at..at + self.content_bytes]
    }

    #[inline]
    pub(super) fn content_mut(&mut self, slot: u32) -> &mut [u8] {
        let at = slot as usize * self.content_bytes;
        &mut self.content[at..at + self.content_bytes]
    }

    /// The whole slab, for gathering by slot id.
    pub(super) fn slab(&self) -> &[u8] {
        &self.content
    }

    /// The whole slab, for scattering by slot id.
    pub(super) fn slab_mut(&mut self) -> &mut [u8] {
        &mut self.content
    }

    /// Takes a free slot. The caller holds room for it, so there is one.
    #[inline]
    pub(super) fn alloc(&mut self, kind: Kind) -> u32 {
        let slot = self.free[!kind.is_host() as usize].pop();
        slot.expect("the slab holds all room and all windows")
    }

    /// Gives a slot back. Its room was given back before.
    #[inline]
    pub(super) fn free(&mut self, slot: u32) {
        let host = self.is_host(slot);
        self.free[!host as usize].push(slot);
    }

    #[inline]
    pub(super) fn waiting(&self, kind: Kind) -> u32 {
        self.queue[kind as usize].len
    }

    /// A live sector that GC has read into this slot waits to be programmed, as it was sealed,
    /// without what it said of chunks where it was.
    #[inline]
    pub(super) fn take_over(
        &mut self,
        slot: u32,
        (kind, cause): (Kind, Cause),
        lba: u32,
        mut oob: [u8; OOB_BYTES],
    ) {
        Oob::set_tag(&mut oob, 0);
        self.slots[slot as usize] =
            Slot { lba, oob, kind, cause, live: true, holds_room: true, sealed: true, ..EMPTY };
        self.push_back(slot);
    }

    /// A sector that a former life had in its buffer waits to be programmed, for all that is known
    /// once more. Its content is the caller's to fill in.
    pub(super) fn restore(&mut self, kind: Kind, lba: u32, stamp: u64, holds_room: bool) -> u32 {
        let slot = self.alloc(kind);
        let cause = Cause::Retry;
        self.slots[slot as usize] =
            Slot { lba, stamp, kind, cause, live: true, holds_room, ..EMPTY };
        self.push_back(slot);
        slot
    }

    /// A sector that a former life has programmed to `at`, where it can't be read back yet.
    pub(super) fn restore_window(&mut self, kind: Kind, lba: u32, stamp: u64, at: u32) -> u32 {
        let slot = self.alloc(kind);
        let (cause, stage) = (Cause::Retry, Stage::Window);
        self.slots[slot as usize] =
            Slot { lba, at, stamp, kind, cause, stage, live: true, ..EMPTY };
        slot
    }

    /// Puts a slot at the end of its queue.
    #[inline]
    pub(super) fn push_back(&mut self, slot: u32) {
        let kind = self.kind(slot) as usize;
        let queue = &mut self.queue[kind];
        let s = &mut self.slots[slot as usize];
        s.place = queue.first.wrapping_add(queue.slots.len() as u32);
        s.stage = Stage::Waiting;
        queue.slots.push_back(slot);
        queue.len += 1;
    }

    /// Puts a slot at the front of its queue: it has waited before.
    pub(super) fn push_front(&mut self, slot: u32) {
        let kind = self.kind(slot) as usize;
        let queue = &mut self.queue[kind];
        queue.first = queue.first.wrapping_sub(1);
        let s = &mut self.slots[slot as usize];
        (s.place, s.stage) = (queue.first, Stage::Waiting);
        queue.slots.push_front(slot);
        queue.len += 1;
        self.covered_waiting[kind] += s.covered as u32;
    }

    /// Takes a slot out of its queue, wherever it stands.
    pub(super) fn unlink(&mut self, slot: u32) {
        let kind = self.kind(slot) as usize;
        let queue = &mut self.queue[kind];
        let s = &mut self.slots[slot as usize];
        assert_eq!(s.stage, Stage::Waiting, "slot {slot} stands in no queue");
        s.stage = Stage::Flying;
        let at = s.place.wrapping_sub(queue.first) as usize;
        assert_eq!(queue.slots[at], slot, "slot {slot} is not where it should stand");
        queue.slots[at] = NIL;
        queue.len -= 1;
        if std::mem::take(&mut s.covered) {
            self.covered -= 1;
            self.covered_waiting[kind] -= 1;
        }
        if queue.slots.len() > 2 * queue.len as usize + GAPS {
            queue.slots.retain(|slot| *slot != NIL);
            for (at, slot) in (0u32..).zip(&queue.slots) {
                self.slots[*slot as usize].place = queue.first.wrapping_add(at);
            }
        }
    }

    /// Takes `unit` sectors from the head of a queue, filled up with padding; its slots fly from now
    /// on.
    #[inline]
    pub(super) fn pop_unit(&mut self, kind: Kind, unit: u32, out: &mut Vec<u32>) {
        let queue = &mut self.queue[kind as usize];
        let taken = queue.len.min(unit);
        while out.len() < taken as usize {
            let slot = queue.slots.pop_front().expect("as many slots as counted");
            queue.first = queue.first.wrapping_add(1);
            if slot != NIL {
                self.slots[slot as usize].stage = Stage::Flying;
                out.push(slot);
            }
        }
        queue.len -= taken;
        if self.covered_waiting[kind as usize] > 0 {
            let covered = out.iter().filter(|slot| self.slots[**slot as usize].covered).count();
            self.covered_waiting[kind as usize] -= covered as u32;
        }
        let padding = self.padding();
        out.resize(unit as usize, padding);
    }

    /// Covers all slots that wait, and these, which fly: none of them is dropped before it is
    /// programmed, whatever happens to its sector meanwhile.
    pub(super) fn cover(&mut self, flying: impl Iterator<Item = u32>) {
        let moves = |slot: &u32| *slot < self.gc_first || !mutant!("kit.moves-not-covered");
        let waiting = self.queue.iter().flat_map(|q| q.slots.iter().copied()).filter(moves);
        let padding = self.slots.len() as u32 - 1;
        for slot in waiting.chain(flying).filter(|slot| *slot != NIL && *slot != padding) {
            let s = &mut self.slots[slot as usize];
            if std::mem::replace(&mut s.covered, true) {
                continue;
            }
            self.covered += 1;
            self.covered_waiting[s.kind as usize] += (s.stage == Stage::Waiting) as u32;
        }
    }

    /// Slots that a barrier waits for.
    #[inline]
    pub(super) fn covered(&self) -> u32 {
        self.covered
    }

    /// Of those, slots that wait in the queue of a kind.
    #[inline]
    pub(super) fn covered_waiting(&self, kind: Kind) -> u32 {
        self.covered_waiting[kind as usize]
    }

    /// Is this slot kept for a barrier, though its content may be dead? One of GC too: the line it
    /// was moved from may be erased behind this barrier, what killed it waits for a later one.
    pub(super) fn is_kept(&self, slot: u32) -> bool {
        self.slots[slot as usize].covered && !mutant!("kit.covered-dropped")
    }

    /// A slot in no queue was programmed, or is dropped.
    pub(super) fn uncover(&mut self, slot: u32) {
        self.covered -= std::mem::take(&mut self.slots[slot as usize].covered) as u32;
    }

    /// Takes room for `n` sectors of GC, all or nothing.
    pub(super) fn take_gc_room(&mut self, n: u32) -> bool {
        let enough = self.gc_room >= n;
        if enough {
            self.gc_room -= n;
        }
        enough
    }

    #[inline]
    pub(super) fn give_gc_room(&mut self, n: u32) {
        self.gc_room += n;
    }

    /// Room for GC that nobody holds.
    pub(super) fn gc_room(&self) -> u32 {
        self.gc_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn small() -> Buffer {
        Buffer::new(Sizes { user_room: 8, gc_room: 8, windows: 4, content_bytes: 8 })
    }

    proptest! {
        /// Both queues behave as a list in which any element may leave.
        #[test]
        fn queues_are_fifo_and_let_anybody_leave(
            steps in prop::collection::vec((0u8..4, 0usize..12, 0usize..2), 0..600)
        ) {
            let mut buffer = small();
            let mut model = [VecDeque::new(), VecDeque::new()];
            for (step, pick, k) in steps {
                let kind = Kind::ALL[k];
                match step {
                    0 | 1 if model[k].len() < 12 => {
                        let slot = buffer.alloc(kind);
                        buffer.slot_mut(slot).kind = kind;
                        if step == 0 {
                            buffer.push_back(slot);
                            model[k].push_back(slot);
                        } else {
                            buffer.push_front(slot);
                            model[k].push_front(slot);
                        }
                    }
                    2 if !model[k].is_empty() => {
                        let at = pick % model[k].len();
                        let slot = model[k].remove(at).unwrap();
                        buffer.unlink(slot);
                        buffer.free(slot);
                    }
                    _ => {
                        let mut unit = Vec::new();
                        buffer.pop_unit(kind, 3, &mut unit);
                        for slot in unit {
                            let expected = model[k].pop_front().unwrap_or(buffer.padding());
                            prop_assert_eq!(slot, expected);
                            if slot != buffer.padding() {
                                prop_assert_eq!(buffer.slot(slot).stage, Stage::Flying);
                                buffer.free(slot);
                            }
                        }
                    }
                }
                prop_assert_eq!(buffer.waiting(kind) as usize, model[k].len());
            }
        }
    }

    #[test]
    fn room_for_gc_is_granted_whole_or_not_at_all() {
        let mut buffer = small();
        assert!(buffer.take_gc_room(8) && !buffer.take_gc_room(1));
        buffer.give_gc_room(3);
        assert!(!buffer.take_gc_room(4) && buffer.take_gc_room(3));
    }
}
