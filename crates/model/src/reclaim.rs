//! Garbage collection: moves what lives in a line, waits until nothing needs the line, erases it.

use crate::config::Model;
use crate::rules::Rule;
use crate::state::{
    Addr, CellKind, Entry, Gc, LINES, Line, LinePhase, Media, Prev, Record, Slot, SlotPhase, State,
};
use crate::step::{Step, Steps};

/// The barrier's bit in [`Slot::cover`].
const BARRIER: u8 = 1 << 2;
/// GC's number among the actors.
const ACTOR: u8 = 2;

impl Model {
    pub(crate) fn reclaim_steps(&self, state: &State, out: &mut Steps) {
        match state.gc {
            Gc::Idle => self.choose(state, out),
            Gc::Line { line, skipped } => self.move_next(state, line, skipped, out),
            Gc::Copy { line, skipped, slot, at } => {
                out.push(self.publish_copy(state, (line, skipped), slot, at));
            }
            Gc::Epoch { line, pins } => {
                if pins == 0 || !self.has(Rule::EraseEpoch) {
                    out.push(self.barrier(state, line));
                }
            }
            Gc::Barrier { line, log } => {
                let waits = state.slots.iter().any(|slot| slot.cover & BARRIER != 0);
                if !waits && state.durable >= log {
                    let mut next = state.clone();
                    let seq = next.lines[line as usize].seq;
                    let log = next.append(Record::Freed(line, seq));
                    next.gc = Gc::Freed { line, log };
                    out.push((Step("gc: line {} is logged as freed", [line, 0, 0]), next));
                }
            }
            Gc::Freed { line, log } => {
                if state.durable >= log || !self.has(Rule::FreedFirst) {
                    let mut next = state.clone();
                    next.media[line as usize] = Media::ERASED;
                    next.lines[line as usize] = Line::FREE;
                    next.gc = Gc::Idle;
                    out.push((Step("gc: line {} is erased", [line, 0, 0]), next));
                }
            }
        }
    }

    fn choose(&self, state: &State, out: &mut Steps) {
        if state.left.gcs == 0 {
            return;
        }
        for line in 0..LINES as u8 {
            if state.lines[line as usize].phase == LinePhase::Closed {
                let mut next = state.clone();
                next.left.gcs -= 1;
                next.gc = Gc::Line { line, skipped: 0 };
                out.push((Step("gc: takes line {}", [line, 0, 0]), next));
            }
        }
    }

    fn move_next(&self, state: &State, line: u8, skipped: u8, out: &mut Steps) {
        let mut live = self.referred(state, line).filter(|lba| skipped & 1 << lba == 0);
        let Some(lba) = live.next() else {
            let mut next = state.clone();
            next.gc = Gc::Epoch { line, pins: state.active() };
            out.push((Step("gc: nothing lives in line {}", [line, 0, 0]), next));
            return;
        };
        let Entry::Media(at) = state.map[lba] else {
            return; // Its slot settles first.
        };
        if state.cell(at).kind == CellKind::Decayed {
            out.push(self.unreadable(state, lba, at, (line, skipped)));
            return;
        }
        let Some(slot) = state.free_slot(self.config.slots) else {
            return;
        };
        let cell = *state.cell(at);
        let mut next = state.clone();
        next.slots[slot as usize] = Slot {
            phase: SlotPhase::Filled,
            lba: lba as u8,
            stamp: cell.stamp,
            value: cell.value,
            prev: Prev::Media(at),
            ..Slot::FREE
        };
        next.gc = Gc::Copy { line, skipped, slot, at };
        out.push((Step("gc: reads sector {} into slot {}", [lba as u8, slot, 0]), next));
    }

    fn unreadable(
        &self,
        state: &State,
        lba: usize,
        at: Addr,
        (line, skipped): (u8, u8),
    ) -> (Step, State) {
        let mut next = state.clone();
        if !self.has(Rule::Poison) {
            next.gc = Gc::Line { line, skipped: skipped | 1 << lba };
            return (Step("gc: skips sector {}, unreadable", [lba as u8, 0, 0]), next);
        }
        let stamp = state.cell(at).stamp;
        next.map[lba] = Entry::Poison(stamp);
        next.append(Record::Poisoned(lba as u8, stamp));
        (Step("gc: sector {} is unreadable, logged as poisoned", [lba as u8, 0, 0]), next)
    }

    fn publish_copy(
        &self,
        state: &State,
        (line, skipped): (u8, u8),
        slot: u8,
        at: Addr,
    ) -> (Step, State) {
        let mut next = state.clone();
        let filled = &mut next.slots[slot as usize];
        let lba = filled.lba as usize;
        let wins = state.map[lba] == Entry::Media(at);
        if wins {
            (filled.phase, filled.published) = (SlotPhase::Ring, true);
            next.map[lba] = Entry::Slot(slot);
            next.rings[1].push(slot);
        } else {
            filled.phase = SlotPhase::Dead;
        }
        next.gc = Gc::Line { line, skipped };
        self.unpin(&mut next, ACTOR);
        let text = if wins { "gc: slot {} is published" } else { "gc: slot {} lost the exchange" };
        (Step(text, [slot, 0, 0]), next)
    }

    fn barrier(&self, state: &State, line: u8) -> (Step, State) {
        let mut next = state.clone();
        if self.has(Rule::EraseRings) {
            for id in 0..self.config.slots {
                let waits = match next.slots[id as usize].phase {
                    SlotPhase::Ring | SlotPhase::InFlight(_) => true,
                    SlotPhase::Done(at) => !self.pair_closed(state, at),
                    _ => false,
                };
                if waits {
                    next.slots[id as usize].cover |= BARRIER;
                }
            }
        }
        let log = state.log.len() as u8;
        next.gc = Gc::Barrier { line, log };
        (Step("gc: barrier for line {}, {} log records", [line, log, 0]), next)
    }
}
