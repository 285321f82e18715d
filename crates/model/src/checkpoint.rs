//! The checkpoint writer: a shard per sector, each in the parts between which others may come.

use crate::config::Model;
use crate::rules::Rule;
use crate::state::{
    Checkpoint, Entry, LBAS, LinePhase, NONE, Prev, Record, Shard, ShardEntry, Slot, SlotPhase,
    State, Writer,
};
use crate::step::{Step, Steps};

impl Model {
    pub(crate) fn checkpoint_steps(&self, state: &State, out: &mut Steps) {
        let mut next = state.clone();
        let step = match state.writer {
            Writer::Idle if state.left.checkpoints == 0 => return,
            Writer::Idle => {
                next.left.checkpoints -= 1;
                next.work = [Shard::EMPTY; LBAS];
                self.take_shard(&mut next, 0, 0)
            }
            Writer::Shard(lba, 2) if self.unfinished(state, lba) => return,
            Writer::Shard(lba, part) => self.take_shard(&mut next, lba, part),
            Writer::Epoch(pins) if pins == 0 || !self.has(Rule::CompleteEpoch) => {
                self.complete_checkpoint(&mut next);
                next.writer = Writer::Complete(next.log.len() as u8);
                Step("checkpoint: logged as complete", [0; 3])
            }
            Writer::Complete(records) if state.durable >= records => {
                self.cut_log(&mut next);
                next.writer = Writer::Idle;
                Step("checkpoint: durable, the log is cut", [0; 3])
            }
            Writer::Epoch(_) | Writer::Complete(_) => return,
        };
        out.push((step, next));
    }

    /// One part of a shard. A sector that no script touches has no one to race with: its shard is
    /// taken in one step with the part before.
    fn take_shard(&self, state: &mut State, lba: u8, part: u8) -> Step {
        self.take_part(state, lba, part);
        let mut then = if part < 2 { (lba, part + 1) } else { (lba + 1, 0) };
        while then.1 == 0 && (then.0 as usize) < LBAS && !self.touched(then.0) {
            (0..3).for_each(|part| self.take_part(state, then.0, part));
            then.0 += 1;
        }
        state.writer = if then.0 as usize == LBAS {
            Writer::Epoch(state.active())
        } else {
            Writer::Shard(then.0, then.1)
        };
        Step("checkpoint: shard {}, part {}", [lba, part, 0])
    }

    /// All parts of all shards in one go: a clean stop and the end of recovery.
    pub(crate) fn checkpoint_now(&self, state: &mut State) {
        for lba in 0..LBAS as u8 {
            (0..3).for_each(|part| self.take_part(state, lba, part));
        }
        self.complete_checkpoint(state);
        state.durable = state.log.len() as u8;
        self.cut_log(state);
        state.work = [Shard::EMPTY; LBAS];
    }

    /// Part 0: the log position and the lowest open line; 1: H; 2: the entry.
    fn take_part(&self, state: &mut State, lba: u8, part: u8) {
        let first = self.has(Rule::PositionFirst);
        let part = if first || part == 2 { part } else { 1 - part };
        let open = state
            .lines
            .iter()
            .filter(|line| matches!(line.phase, LinePhase::Opening(_) | LinePhase::Open));
        let lowest = open.map(|line| line.seq).min().unwrap_or(state.next_seq);
        let (position, floor) = (state.log.len() as u8, state.floor);
        let shard = &mut state.work[lba as usize];
        match part {
            0 => {
                shard.position = position;
                shard.open = if self.has(Rule::ReplayOpen) { lowest } else { state.next_seq };
            }
            1 => shard.floor = if self.has(Rule::Tombstone) { floor } else { 0 },
            _ => {
                let floor = shard.floor;
                state.work[lba as usize].entry = self.shard_entry(state, lba, floor);
            }
        }
    }

    fn shard_entry(&self, state: &State, lba: u8, floor: u8) -> ShardEntry {
        let id = match state.map[lba as usize] {
            Entry::Unmapped => return ShardEntry::Tombstone(floor),
            Entry::Media(at) => return ShardEntry::Media(at),
            Entry::Poison(stamp) => return ShardEntry::Poison(stamp),
            Entry::Slot(_) if !self.has(Rule::ShardPrev) => return ShardEntry::Tombstone(floor),
            Entry::Slot(id) => id,
        };
        let slot = &state.slots[id as usize];
        if let Some(at) = self.durable_at(state, slot) {
            return ShardEntry::Media(at);
        }
        match slot.prev {
            Prev::Media(at) => ShardEntry::Media(at),
            Prev::Poison(stamp) => ShardEntry::Poison(stamp),
            Prev::None if !self.has(Rule::TombstoneBelow) => ShardEntry::Tombstone(floor),
            Prev::None if !self.has(Rule::TombstoneLowest) => ShardEntry::Tombstone(slot.stamp - 1),
            Prev::None => ShardEntry::Tombstone(self.lowest_stamp(state, slot) - 1),
        }
    }

    /// Is the sector's slot published, but not yet in a ring? Its stamp may still be given up.
    fn unfinished(&self, state: &State, lba: u8) -> bool {
        let Entry::Slot(id) = state.map[lba as usize] else {
            return false;
        };
        self.has(Rule::ShardWaits) && state.slots[id as usize].phase == SlotPhase::Filled
    }

    /// Lowest stamp of the slots from `top` down that may become durable.
    fn lowest_stamp(&self, state: &State, top: &Slot) -> u8 {
        let (mut slot, mut lowest) = (top, top.stamp);
        while slot.under != NONE {
            slot = &state.slots[slot.under as usize];
            let given_up = matches!(slot.phase, SlotPhase::Filled | SlotPhase::Dead);
            if !given_up || !self.has(Rule::ShardWaits) {
                lowest = lowest.min(slot.stamp);
            }
        }
        lowest
    }

    fn complete_checkpoint(&self, state: &mut State) {
        let complete = state.append(Record::Complete) - 1;
        state.checkpoints.push(Checkpoint { shards: state.work, complete });
    }

    /// Forgets what lies behind the older of the two last complete checkpoints.
    fn cut_log(&self, state: &mut State) {
        let keep = if self.has(Rule::CutOlder) { 2 } else { 1 };
        let count = state.checkpoints.len();
        if count >= keep {
            let kept = &state.checkpoints[count - keep];
            let position = kept.shards.iter().map(|shard| shard.position).min().unwrap_or(0);
            for record in &mut state.log[..position as usize] {
                if matches!(record, Record::Discarded(..) | Record::Poisoned(..)) {
                    *record = Record::Cut;
                }
            }
        }
        state.checkpoints.drain(..count.saturating_sub(2));
    }
}
