//! Where the content of chunks lies in an image.
//!
//! Owns: which slots are free, which wait for a commit, the room they take on the host's disk.
//! Promises: a slot that the last commit names is neither written over nor given back, whatever
//! happened to its chunk since; a full disk shows when a chunk gets its slot. Never: knows whose a
//! slot is.
//!
//! A chunk gets a slot with its first program and leaves it when its old content is gone for good.
//! Then the slot waits: the commit that says so must be durable before the slot is taken again or its room
//! given back, or a rollback would find the old data gone. Some free slots keep their room for who comes
//! next, so a drive that writes on and on asks the host for none.

use super::Layout;
use crate::host::HostFile;
use flashlane_base::mutant;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The slots of an image.
#[derive(Debug, Default)]
pub struct Slots {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Slots from here on were never used, nor is the file as long.
    end: u32,
    free: BTreeSet<u32>,
    /// Left since the last commit.
    waiting: Vec<u32>,
    /// What is taken next, the last first: some whose room was asked for ahead, some that still have theirs.
    ready: Vec<Ready>,
}

/// A slot that nobody has, with room.
#[derive(Clone, Copy, Debug)]
struct Ready {
    slot: u32,
    /// It has it since it was used; else it was asked for ahead, and may not be there yet.
    is_kept: bool,
}

impl Slots {
    /// Slots of an image in which these are taken.
    pub fn new(taken: &BTreeSet<u32>) -> Slots {
        let end = taken.last().map_or(0, |last| last + 1);
        let free = (0..end).filter(|s| !taken.contains(s)).collect();
        Slots { state: Mutex::new(State { end, free, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change below is one step: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, with room on the disk for all of it. Where the file can, room for the next ones is made meanwhile.
    ///
    /// # Errors
    /// The disk is full, or so many slots wait for a commit that the image may have no more.
    pub fn take(&self, file: &dyn HostFile, layout: &Layout) -> io::Result<u32> {
        let mut state = self.state();
        let ready = state.ready.last().copied();
        let fresh = || state.free.first().copied().unwrap_or(state.end);
        let slot = ready.map_or_else(fresh, |ready| ready.slot);
        if slot as u64 >= layout.slots() && !mutant!("image.slots-without-end") {
            let says =
                "no slot is free: commits have failed for long, and erased chunks wait for one";
            return Err(io::Error::new(io::ErrorKind::StorageFull, says));
        }
        if !ready.is_some_and(|ready| ready.is_kept) {
            file.allocate(layout.slot_at(slot), layout.slot_bytes())?;
        }
        state.ready.pop();
        if !state.free.remove(&slot) {
            state.end += 1;
        }
        let most = layout.slots_ahead();
        if state.ready.len() <= most / 2 {
            state.expect(most, file, layout);
        }
        Ok(slot)
    }

    /// Room that no slot in use has goes back to the host: nobody takes a slot any more.
    ///
    /// # Errors
    /// The host failed.
    pub fn give_back_room(&self, file: &dyn HostFile, layout: &Layout) -> io::Result<()> {
        let mut state = self.state();
        let ready = std::mem::take(&mut state.ready);
        if mutant!("image.room-ahead-kept") {
            return Ok(());
        }
        for ready in ready.iter().filter(|ready| ready.slot < state.end) {
            file.punch(layout.slot_at(ready.slot), layout.slot_bytes())?;
        }
        match ready.iter().any(|ready| ready.slot >= state.end) {
            true => file.set_len(layout.slot_at(state.end)),
            false => Ok(()),
        }
    }

    /// A slot whose content nobody will ask for any more, once that is durable.
    pub fn leave(&self, slot: u32) {
        self.state().waiting.push(slot);
    }

    /// Slots that wait for a commit.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Takes the slots that wait, for a commit that is about to begin.
    pub fn take_waiting(&self) -> Vec<u32> {
        std::mem::take(&mut self.state().waiting)
    }

    /// The commit failed: they wait again.
    pub fn wait_again(&self, mut slots: Vec<u32>) {
        self.state().waiting.append(&mut slots);
    }

    /// The commit is durable: they are free. Some keep their room; that of the others goes back to the host, and
    /// that it can't is no loss.
    pub fn release(&self, slots: Vec<u32>, file: &dyn HostFile, layout: &Layout) {
        let most = match file.keeps_room() {
            true if mutant!("image.room-without-end") => usize::MAX,
            true => layout.slots_kept(),
            false => 0,
        };
        for slot in slots {
            let mut state = self.state();
            let is_kept = state.ready.len() < most;
            if is_kept {
                state.ready.push(Ready { slot, is_kept });
            } else {
                let _ = file.punch(layout.slot_at(slot), layout.slot_bytes());
            }
            state.free.insert(slot);
        }
    }

    /// Gives back whatever a crash left in slots that nobody has, and cuts the file behind the
    /// last one that somebody has.
    pub fn tidy(&self, file: &dyn HostFile, layout: &Layout) -> io::Result<()> {
        let state = self.state();
        for slot in &state.free {
            file.punch(layout.slot_at(*slot), layout.slot_bytes())?;
        }
        let end = layout.slot_at(state.end);
        if file.len()? > end { file.set_len(end) } else { Ok(()) }
    }

    /// Bytes of the host's disk that slots in use take.
    pub fn bytes(&self, layout: &Layout) -> u64 {
        let state = self.state();
        (state.end as u64 - state.free.len() as u64) * layout.slot_bytes()
    }
}

impl State {
    /// Asks for the room of the slots that are taken next, up to so many.
    fn expect(&mut self, most: usize, file: &dyn HostFile, layout: &Layout) {
        let is_ready = |slot: &u32| self.ready.iter().any(|ready| ready.slot == *slot);
        let free = self.free.iter().copied().filter(|slot| !is_ready(slot));
        let beyond = self.ready.iter().filter(|ready| ready.slot >= self.end).count() as u32;
        let behind = self.end + beyond..layout.slots().min(u32::MAX as u64) as u32;
        let next: Vec<u32> = free.chain(behind).take(most - self.ready.len()).collect();
        // The last is taken first: so those beyond the end are taken in their order, and kept ones before them.
        let mut asked = Vec::new();
        for slot in next {
            if !file.expect_room(layout.slot_at(slot), layout.slot_bytes()) {
                break;
            }
            asked.push(Ready { slot, is_kept: false });
        }
        self.ready.splice(0..0, asked.into_iter().rev());
    }
}

/// Bytes of slots whose room is asked for ahead, and slots.
const AHEAD_BYTES: u64 = 16 << 20;
const AHEAD_MAX: u64 = 16;
/// Bytes of free slots that keep their room, and slots.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_MAX: u64 = 64;

impl Layout {
    /// Slots whose room is asked for ahead: one at least.
    fn slots_ahead(&self) -> usize {
        (AHEAD_BYTES / self.slot_bytes()).clamp(1, AHEAD_MAX) as usize
    }

    /// Free slots that keep their room: one at least.
    fn slots_kept(&self) -> usize {
        (KEPT_BYTES / self.slot_bytes()).clamp(1, KEPT_MAX) as usize
    }

    /// Slots that an image has at most. Chunks need as many as there are; those that wait for a commit
    /// make it some more.
    pub fn slots(&self) -> u64 {
        4 * self.chunks as u64 + 1024
    }

    /// Where a slot begins.
    pub fn slot_at(&self, slot: u32) -> u64 {
        self.slots_at() + slot as u64 * self.slot_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::{FileOp, MemoryFile};

    /// However long commits fail: the next one names no slot that a reader would refuse.
    #[test]
    fn slots_end_where_a_reader_says() {
        let layout =
            Layout { channels: 1, dies: 1, chunks: 4, sectors: 4, checked: true, holes: false };
        let (slots, file) = (Slots::new(&BTreeSet::new()), MemoryFile::default());
        for slot in 0..layout.slots() as u32 {
            assert_eq!(slots.take(&file, &layout).unwrap(), slot);
            slots.leave(slot);
        }
        let full = slots.take(&file, &layout).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        slots.release(slots.take_waiting(), &file, &layout);
        assert!(slots.take(&file, &layout).unwrap() < KEPT_MAX as u32);
    }

    /// A bounded number of free slots keeps its room, for which nothing is asked again; it goes back in the end.
    #[test]
    fn some_free_slots_keep_their_room() {
        const CHUNKS: u32 = 100;
        let layout = Layout {
            channels: 1,
            dies: 1,
            chunks: CHUNKS,
            sectors: 4,
            checked: true,
            holes: false,
        };
        let (slots, file) = (Slots::new(&BTreeSet::new()), MemoryFile::default());
        let take = || slots.take(&file, &layout).unwrap();
        let all: Vec<u32> = (0..CHUNKS).map(|_| take()).collect();
        file.take_log();
        all.iter().for_each(|slot| slots.leave(*slot));
        slots.release(slots.take_waiting(), &file, &layout);
        let is_punch = |op: &FileOp| matches!(op, FileOp::Punch(..));
        let punched = file.take_log().iter().filter(|op| is_punch(op)).count();
        assert_eq!(punched as u64, CHUNKS as u64 - KEPT_MAX);
        let again: BTreeSet<u32> = (0..KEPT_MAX - 1).map(|_| take()).collect();
        assert_eq!((again.len() as u64, file.take_log()), (KEPT_MAX - 1, vec![]));
        slots.give_back_room(&file, &layout).unwrap();
        assert_eq!(file.take_log().iter().filter(|op| is_punch(op)).count(), 1);
        let others: BTreeSet<u32> = (again.len() as u32..CHUNKS).map(|_| take()).collect();
        assert!(others.is_disjoint(&again) && others.len() + again.len() == all.len());
    }
}
