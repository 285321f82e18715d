//! What the host does: writes, discards, flushes and reads, in the small parts between which
//! another core may come.

use crate::config::{Model, Op};
use crate::rules::Rule;
use crate::state::{Doing, Entry, LBAS, NONE, Phase, Prev, Record, Slot, SlotPhase, State};
use crate::step::{Step, Steps};

impl Model {
    pub(crate) fn host_steps(&self, state: &State, core: usize, out: &mut Steps) {
        let Some(op) = self.current(state, core) else {
            return;
        };
        let mut next = state.clone();
        let step = match (state.cores[core].doing, op) {
            (Doing::Nothing, Op::Write(lba)) => self.write_load(&mut next, core, lba),
            (Doing::Nothing, Op::Discard(mask)) => self.discard_begin(&mut next, core, mask),
            (Doing::Nothing, Op::Flush) => self.flush_begin(&mut next, core),
            (Doing::Nothing, Op::Read(lba)) => self.read_load(&mut next, core, lba),
            (Doing::Nothing, Op::Restart) => self.restart(&mut next, core),
            (Doing::Publish { slot, loaded, own }, Op::Write(lba)) => {
                self.write_publish(&mut next, core, lba, (slot, loaded, own))
            }
            (Doing::Check { slot }, _) => self.write_check(&mut next, core, slot),
            (Doing::Insert { slot }, _) => self.write_insert(&mut next, core, slot),
            (Doing::Clear { stamp, todo, own }, Op::Discard(mask)) => {
                self.discard_clear(&mut next, core, mask, (stamp, todo, own))
            }
            (Doing::Wait { log, upto }, _) => self.flush_end(&mut next, core, log, upto),
            (Doing::Copy { loaded, seen }, Op::Read(lba)) => {
                self.read_copy(&mut next, core, lba, loaded, seen)
            }
            (doing, op) => unreachable!("{doing:?} in {op:?}"),
        };
        if let Some(step) = step {
            out.push((step, next));
        }
    }

    fn end(&self, state: &mut State, core: usize) {
        state.cores[core].doing = Doing::Nothing;
        state.cores[core].next += 1;
        self.unpin(state, core as u8);
    }

    fn op(&self, state: &State, core: usize) -> u8 {
        self.number(core, state.cores[core].next)
    }

    /// What is durable below an entry, and the slot there that is not yet.
    fn below(&self, state: &State, entry: Entry) -> (Prev, u8) {
        match entry {
            Entry::Unmapped => (Prev::None, NONE),
            Entry::Media(at) => (Prev::Media(at), NONE),
            Entry::Poison(stamp) if self.has(Rule::PrevPoison) => (Prev::Poison(stamp), NONE),
            Entry::Poison(_) => (Prev::None, NONE),
            Entry::Slot(id) => {
                let slot = &state.slots[id as usize];
                match self.durable_at(state, slot) {
                    Some(at) => (Prev::Media(at), NONE),
                    None => (slot.prev, id),
                }
            }
        }
    }

    fn write_load(&self, state: &mut State, core: usize, lba: u8) -> Option<Step> {
        let slot = state.free_slot(self.config.slots)?;
        let loaded = state.map[lba as usize];
        let stamp = self.stamp(state, state.bound(loaded));
        let (prev, under) = self.below(state, loaded);
        let mut phase = SlotPhase::Filled;
        if !self.has(Rule::PublishedFirst) {
            phase = SlotPhase::Ring;
            state.rings[core].push(slot);
        }
        let value = self.op(state, core);
        state.slots[slot as usize] = Slot { phase, lba, stamp, value, prev, under, ..Slot::FREE };
        state.cores[core].doing = Doing::Publish { slot, loaded, own: NONE };
        let text = "write {}: fills slot {} with stamp {}";
        Some(Step(text, [value, slot, stamp]))
    }

    fn write_publish(
        &self,
        state: &mut State,
        core: usize,
        lba: u8,
        (slot, loaded, own): (u8, Entry, u8),
    ) -> Option<Step> {
        let value = self.op(state, core);
        let at = lba as usize;
        if state.map[at] == loaded {
            self.leave(state, at);
            state.map[at] = Entry::Slot(slot);
            state.slots[slot as usize].published = true;
            self.applied(state, at, value);
            if own != NONE {
                state.slots[own as usize].phase = SlotPhase::Dead;
            }
            state.cores[core].doing = Doing::Check { slot };
            return Some(Step("write {}: slot {} is published", [value, slot, 0]));
        }
        let loaded = state.map[at];
        let stamp = self.stamp(state, state.bound(loaded));
        let (prev, under) = self.below(state, loaded);
        let filled = &mut state.slots[slot as usize];
        (filled.stamp, filled.prev, filled.under) = (stamp, prev, under);
        state.cores[core].doing = Doing::Publish { slot, loaded, own };
        Some(Step("write {}: lost the exchange, slot {} gets stamp {}", [value, slot, stamp]))
    }

    fn write_check(&self, state: &mut State, core: usize, slot: u8) -> Option<Step> {
        let value = self.op(state, core);
        let filled = state.slots[slot as usize];
        let overtaken = self.has(Rule::FloorCheck) && state.floor >= filled.stamp;
        if !overtaken {
            state.cores[core].doing = Doing::Insert { slot };
            return Some(Step("write {}: the floor is {}", [value, state.floor, 0]));
        }
        let in_place = !self.has(Rule::FreshSlot) || !self.has(Rule::PublishedFirst);
        if in_place {
            let stamp = self.stamp(state, filled.stamp);
            state.slots[slot as usize].stamp = stamp;
            state.cores[core].doing = Doing::Check { slot };
            return Some(Step("write {}: slot {} is raised to stamp {}", [value, slot, stamp]));
        }
        // Start over from another slot, whatever the entry is by now: not acknowledged, this write
        // may come after what overtook it.
        let fresh = state.free_slot(self.config.slots)?;
        let loaded = state.map[filled.lba as usize];
        let stamp = self.stamp(state, state.bound(loaded));
        let (prev, under) = match loaded {
            Entry::Slot(own) if own == slot => (filled.prev, filled.under),
            other => self.below(state, other),
        };
        let phase = SlotPhase::Filled;
        let Slot { lba, .. } = filled;
        state.slots[fresh as usize] = Slot { phase, lba, stamp, value, prev, under, ..Slot::FREE };
        state.cores[core].doing = Doing::Publish { slot: fresh, loaded, own: slot };
        Some(Step("write {}: overtaken by the floor, slot {} with stamp {}", [value, fresh, stamp]))
    }

    fn write_insert(&self, state: &mut State, core: usize, slot: u8) -> Option<Step> {
        let value = self.op(state, core);
        if self.has(Rule::PublishedFirst) {
            state.slots[slot as usize].phase = SlotPhase::Ring;
            state.rings[core].push(slot);
        }
        self.end(state, core);
        Some(Step("write {}: in ring {}, acknowledged", [value, core as u8, 0]))
    }

    fn discard_begin(&self, state: &mut State, core: usize, mask: u8) -> Option<Step> {
        let stamp = self.stamp(state, 0);
        state.floor = stamp;
        if !self.has(Rule::RecordAfterClear) {
            state.append(Record::Discarded(mask, stamp));
        }
        state.cores[core].doing = Doing::Clear { stamp, todo: mask, own: [0; LBAS] };
        Some(Step("discard {}: raises the floor to {}", [self.op(state, core), stamp, 0]))
    }

    fn discard_clear(
        &self,
        state: &mut State,
        core: usize,
        mask: u8,
        (stamp, todo, mut own): (u8, u8, [u8; LBAS]),
    ) -> Option<Step> {
        let number = self.op(state, core);
        if todo == 0 {
            if self.has(Rule::RecordAfterClear) {
                state.append(Record::Discarded(mask, stamp));
            }
            for (lba, own) in own.into_iter().enumerate().filter(|(_, own)| *own > 0) {
                state.append(Record::Discarded(1 << lba, own));
            }
            self.end(state, core);
            return Some(Step("discard {}: logged, acknowledged", [number, 0, 0]));
        }
        let lba = todo.trailing_zeros() as usize;
        let bound = match state.map[lba] {
            // Another discard may have hidden a write with a larger stamp than ours.
            Entry::Unmapped if self.has(Rule::DiscardFloor) && state.floor > stamp => state.floor,
            entry => state.bound(entry),
        };
        if bound >= stamp {
            own[lba] = self.stamp(state, bound);
            state.floor = own[lba];
        }
        self.leave(state, lba);
        state.map[lba] = Entry::Unmapped;
        self.applied(state, lba, number);
        state.cores[core].doing = Doing::Clear { stamp, todo: todo & (todo - 1), own };
        Some(Step("discard {}: clears sector {}", [number, lba as u8, 0]))
    }

    fn flush_begin(&self, state: &mut State, core: usize) -> Option<Step> {
        for id in 0..self.config.slots {
            let slot = state.slots[id as usize];
            let waits = match slot.phase {
                SlotPhase::Ring | SlotPhase::InFlight(_) => slot.published,
                SlotPhase::Done(at) => !self.pair_closed(state, at),
                _ => false,
            };
            if waits && (self.has(Rule::CoveredSlot) || !self.is_dead(state, id)) {
                state.slots[id as usize].cover |= 1 << core;
            }
        }
        let acked = |number: u8| match self.operation(number) {
            None => true,
            Some((core, index, _)) => state.cores[core].next > index,
        };
        let upto = [0, 1].map(|lba| {
            let history: &Vec<u8> = &state.host.applied[lba];
            history.iter().rposition(|number| acked(*number)).unwrap_or(0) as u8
        });
        let log = state.log.len() as u8;
        state.cores[core].doing = Doing::Wait { log, upto };
        Some(Step("flush {}: begins, {} log records to wait for", [self.op(state, core), log, 0]))
    }

    fn flush_end(&self, state: &mut State, core: usize, log: u8, upto: [u8; LBAS]) -> Option<Step> {
        let waits = state.slots.iter().any(|slot| slot.cover & 1 << core != 0);
        if waits || state.durable < log {
            return None;
        }
        let number = self.op(state, core);
        for (lba, upto) in upto.into_iter().enumerate() {
            state.host.applied[lba].drain(..upto as usize);
            for other in &mut state.cores {
                if let Doing::Wait { upto: theirs, .. } = &mut other.doing {
                    theirs[lba] = theirs[lba].saturating_sub(upto);
                }
            }
        }
        self.end(state, core);
        Some(Step("flush {}: acknowledged", [number, 0, 0]))
    }

    fn read_load(&self, state: &mut State, core: usize, lba: u8) -> Option<Step> {
        let loaded = state.map[lba as usize];
        let last = state.host.applied[lba as usize].last().copied().unwrap_or(0);
        state.cores[core].doing = Doing::Copy { loaded, seen: 1 << last };
        Some(Step("read {}: loads the entry of sector {}", [self.op(state, core), lba, 0]))
    }

    fn read_copy(
        &self,
        state: &mut State,
        core: usize,
        lba: u8,
        loaded: Entry,
        seen: u16,
    ) -> Option<Step> {
        let got = self.resolve(state, lba, loaded);
        let number = self.op(state, core);
        if !self.explains(state, (0..16).filter(|op| seen & 1 << op != 0), got) {
            // A read that nothing explains: kept as a phase that the check sees.
            state.phase = Phase::Misread(lba);
        }
        self.end(state, core);
        Some(Step("read {}: ends", [number, 0, 0]))
    }

    /// Clean stop: waits until nothing is under way, checkpoints, and starts again from that.
    fn restart(&self, state: &mut State, core: usize) -> Option<Step> {
        let quiet = state.slots.iter().all(|slot| slot.phase == SlotPhase::Free)
            && state.active() == 0
            && state.gc == crate::state::Gc::Idle
            && state.writer == crate::state::Writer::Idle
            && state.durable as usize == state.log.len();
        if !quiet {
            return None;
        }
        let number = self.op(state, core);
        self.checkpoint_now(state);
        if self.has(Rule::StoppedRecord) {
            state.append(Record::Stopped);
        }
        state.durable = state.log.len() as u8;
        state.cores[core].next += 1;
        self.mount(state, true);
        if self.has(Rule::Started) {
            state.append(Record::Started);
            state.durable = state.log.len() as u8;
        }
        state.phase = Phase::Running;
        Some(Step("restart {}: checkpoint, clean stop, start", [number, 0, 0]))
    }
}
