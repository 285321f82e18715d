//! One step of anyone: which are possible in a state, and what the state is then.
//!
//! Owns the list of actors and the bookkeeping after every step (slots recycled, `prev` raised,
//! waits that need no action of their own). The actors are in `host`, `drain`, `reclaim`,
//! `checkpoint` and `recover`.

use std::fmt;

use crate::config::Model;
use crate::rules::Rule;
use crate::state::{
    Addr, CellKind, Doing, Entry, Gc, LBAS, LinePhase, NONE, Phase, Prev, SLOTS, Slot, SlotPhase,
    State, Writer,
};

/// What happened, for people: a text with a number for each `{}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step(pub &'static str, pub [u8; 3]);

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.1.iter();
        for (index, part) in self.0.split("{}").enumerate() {
            if index > 0 {
                write!(f, "{}", numbers.next().unwrap_or(&0))?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

pub type Steps = Vec<(Step, State)>;

impl Model {
    /// All steps possible in `state`.
    pub fn successors(&self, state: &State) -> Steps {
        let mut out = Steps::new();
        if state.left.cuts > 0 {
            self.cut_steps(state, &mut out);
        }
        if let Phase::Recovering(stage) = state.phase {
            self.recovery_step(state, stage, &mut out);
        } else if !self.prompt_step(state, &mut out) {
            (0..2).for_each(|core| self.host_steps(state, core, &mut out));
            self.drain_steps(state, &mut out);
            self.map_steps(state, &mut out);
            self.line_steps(state, &mut out);
            self.reclaim_steps(state, &mut out);
            self.checkpoint_steps(state, &mut out);
            self.log_step(state, &mut out);
        }
        out.iter_mut().for_each(|(_, next)| self.settle(next));
        out
    }

    /// The first step of an actor that is prompt in this configuration, alone.
    fn prompt_step(&self, state: &State, out: &mut Steps) -> bool {
        let before = out.len();
        let prompt = self.config.prompt;
        for (index, core) in state.cores.iter().enumerate() {
            let writes = matches!(
                core.doing,
                Doing::Publish { .. } | Doing::Check { .. } | Doing::Insert { .. }
            );
            if prompt.write && writes && out.len() == before {
                self.host_steps(state, index, out);
            }
        }
        if prompt.shard && matches!(state.writer, Writer::Shard(..)) && out.len() == before {
            self.checkpoint_steps(state, out);
        }
        if prompt.log && out.len() == before {
            self.log_step(state, out);
        }
        if prompt.map && out.len() == before {
            self.map_steps(state, out);
        }
        if prompt.lines && out.len() == before {
            self.line_steps(state, out);
        }
        out.truncate(before + 1);
        out.len() > before
    }

    /// The log's writer makes everything pending durable; a cut takes any part of it (`recover`).
    fn log_step(&self, state: &State, out: &mut Steps) {
        if (state.durable as usize) < state.log.len() {
            let mut next = state.clone();
            next.durable = next.log.len() as u8;
            out.push((Step("log: {} records are durable", [next.durable, 0, 0]), next));
        }
    }

    /// Has the chunk passed this address, so that nothing can destroy it any more?
    pub(crate) fn pair_closed(&self, state: &State, (line, position): Addr) -> bool {
        if !self.config.pairs || position % 2 == 1 {
            return true;
        }
        let upper = state.cell((line, position + 1)).kind;
        let early = state.lines[line as usize].early && !self.has(Rule::WindowReturns);
        matches!(upper, CellKind::Good | CellKind::Decayed) || early
    }

    /// Where a slot's content is durable, if it is.
    pub(crate) fn durable_at(&self, state: &State, slot: &Slot) -> Option<Addr> {
        match slot.phase {
            SlotPhase::Done(at) if self.pair_closed(state, at) => Some(at),
            _ => None,
        }
    }

    /// Before a map entry changes: the slot it names becomes unreachable for newcomers, and those
    /// at work now are remembered.
    pub(crate) fn leave(&self, state: &mut State, lba: usize) {
        if let Entry::Slot(id) = state.map[lba] {
            state.slots[id as usize].pins = state.active();
        }
    }

    /// An actor's operation ended: nothing waits for it any more.
    pub(crate) fn unpin(&self, state: &mut State, actor: u8) {
        let keep = !(1 << actor);
        state.slots.iter_mut().for_each(|slot| slot.pins &= keep);
        if let Gc::Epoch { pins, .. } = &mut state.gc {
            *pins &= keep;
        }
        if let Writer::Epoch(pins) = &mut state.writer {
            *pins &= keep;
        }
    }

    /// Does a covered slot still wait for someone?
    pub(crate) fn is_dead(&self, state: &State, id: u8) -> bool {
        let slot = &state.slots[id as usize];
        slot.published && state.map[slot.lba as usize] != Entry::Slot(id)
    }

    /// What follows from a step by itself.
    fn settle(&self, state: &mut State) {
        for line in &mut state.lines {
            if let LinePhase::Opening(records) = line.phase
                && records <= state.durable
            {
                line.phase = LinePhase::Open;
            }
        }
        for id in 0..SLOTS as u8 {
            let slot = state.slots[id as usize];
            let durable = self.durable_at(state, &slot);
            if let Some(at) = durable {
                state.slots[id as usize].cover = 0;
                if self.has(Rule::PrevFollows) {
                    Self::raise_prev(state, id, at);
                }
            }
            let ended = (durable.is_some() && slot.published) || slot.phase == SlotPhase::Dead;
            let pinned = self.has(Rule::SlotEpoch) && slot.pins != 0;
            if ended && !pinned && state.map[slot.lba as usize] != Entry::Slot(id) {
                Self::recycle(state, id);
            }
        }
    }

    /// The slots above `id`, which is durable at `at`, have that below them now, also where the
    /// stamps are equal: a GC copy's old place is about to be erased. Only those that superseded
    /// it, link by link: a slot behind a discard has nothing below.
    fn raise_prev(state: &mut State, id: u8, at: Addr) {
        for above in 0..SLOTS {
            let mut under = state.slots[above].under;
            while under != NONE && under != id {
                under = state.slots[under as usize].under;
            }
            let stamp = state.cell(at).stamp;
            if under == id && state.prev_stamp(state.slots[above].prev) <= stamp {
                state.slots[above].prev = Prev::Media(at);
            }
        }
    }

    fn recycle(state: &mut State, id: u8) {
        let below = state.slots[id as usize].under;
        for slot in state.slots.iter_mut().filter(|slot| slot.under == id) {
            slot.under = below;
        }
        state.slots[id as usize] = Slot::FREE;
    }

    /// Notes that `number` took effect on a sector.
    pub(crate) fn applied(&self, state: &mut State, lba: usize, number: u8) {
        state.host.applied[lba].push(number);
        for core in 0..2 {
            let reads = self.current(state, core) == Some(crate::config::Op::Read(lba as u8));
            if let (true, Doing::Copy { seen, .. }) = (reads, &mut state.cores[core].doing) {
                *seen |= 1 << number;
            }
        }
    }

    /// Gives out a stamp above `bound`, the floor and the clock.
    pub(crate) fn stamp(&self, state: &mut State, bound: u8) -> u8 {
        state.clock += u8::from(self.config.ticks);
        let stamp = state.clock.max(bound + 1).max(state.floor + 1);
        assert!(stamp <= state.ceiling, "the scripts are short enough for one lease");
        stamp
    }

    /// The sectors whose entries name a line, or will when their slots settle.
    pub(crate) fn referred(&self, state: &State, line: u8) -> impl Iterator<Item = usize> {
        let refers = |lba: usize| match state.map[lba] {
            Entry::Media((at, _)) => at == line,
            Entry::Slot(id) => {
                matches!(state.slots[id as usize].phase, SlotPhase::Done((at, _)) if at == line)
            }
            _ => false,
        };
        let found: Vec<_> = (0..LBAS).filter(|lba| refers(*lba)).collect();
        found.into_iter()
    }
}
