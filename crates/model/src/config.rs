//! What a run of the model may do: the host's scripts, sizes, and how often things may go wrong.

use crate::explore::System;
use crate::rules::{Rule, Rules};
use crate::state::{
    Budget, CELLS, Core, Doing, Entry, Gc, Host, LBAS, LINES, Line, LinePhase, Media, Phase,
    Record, SLOTS, Shard, Slot, State, Writer,
};
use crate::step::Steps;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes a sector; the content is the operation itself.
    Write(u8),
    /// Discards the sectors of a mask.
    Discard(u8),
    Flush,
    /// Reads a sector.
    Read(u8),
    /// Clean stop and start.
    Restart,
}

/// Actors that act at once, before anyone else does, where a scenario doesn't turn on their delay.
/// A restriction of the schedules, to keep a configuration small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Log records are durable as soon as they are appended.
    pub log: bool,
    /// The map gets an address as soon as the slot is durable.
    pub map: bool,
    /// Lines are opened and closed as soon as they can be.
    pub lines: bool,
    /// A write goes from its stamp into the ring without another actor in between.
    pub write: bool,
    /// So does a checkpoint from its first shard to its `Complete` record.
    pub shard: bool,
}

/// Bounds of one exploration.
#[derive(Clone, Debug)]
pub struct Config {
    /// What each core does, in order; the cores run against each other.
    pub scripts: [Vec<Op>; 2],
    /// Sectors of a line, 1 to [`CELLS`].
    pub sectors: u8,
    /// Chunks of a line: programs that may be in flight in it at once.
    pub width: u8,
    /// Do sectors 2k and 2k + 1 form a pair whose torn second destroys the first?
    pub pairs: bool,
    /// Has each ring a line of its own, as QBLK's channels have?
    pub pools: bool,
    /// Slots, up to [`SLOTS`].
    pub slots: u8,
    /// Does the clock run? Standing still is what the stamps' rule must survive, too.
    pub ticks: bool,
    /// May the newest checkpoint turn out unreadable?
    pub unreadable_checkpoint: bool,
    /// Who doesn't dawdle.
    pub prompt: Prompt,
    /// How often something may happen.
    pub budget: Budget,
}

impl Config {
    /// Two idle cores, lines of two sectors and one chunk, three slots, a running clock, and
    /// nothing that goes wrong but the power cut checked in every state.
    pub const BASE: Config = Config {
        scripts: [Vec::new(), Vec::new()],
        sectors: 2,
        width: 1,
        pairs: false,
        pools: false,
        slots: 3,
        ticks: true,
        unreadable_checkpoint: false,
        prompt: Prompt { log: false, map: false, lines: false, write: false, shard: false },
        budget: Budget { cuts: 0, fails: 0, decays: 0, gcs: 0, checkpoints: 0 },
    };
}

/// Stamps that one life of the stack may give out. No script comes near.
pub(crate) const LEASE: u8 = 40;

/// The transition system: a configuration under a set of rules.
#[derive(Clone, Debug)]
pub struct Model {
    pub config: Config,
    pub rules: Rules,
}

impl Model {
    /// A model of `config` with every rule but those in `without`.
    pub fn new(config: Config, without: &[Rule]) -> Model {
        assert!(config.sectors as usize <= CELLS && config.slots as usize <= SLOTS);
        assert!(config.scripts[0].len() + config.scripts[1].len() < 16, "operations fit a mask");
        let rules = without.iter().fold(Rules::all(), |rules, rule| rules.without(*rule));
        Model { config, rules }
    }

    pub(crate) fn has(&self, rule: Rule) -> bool {
        self.rules.has(rule)
    }

    /// The start: an empty target with line 0 open, its `opened` record durable.
    pub fn initial(&self) -> State {
        let idle = Core { next: 0, doing: Doing::Nothing };
        let mut lines = [Line::FREE; LINES];
        lines[0] = Line { phase: LinePhase::Open, seq: 1, ..Line::FREE };
        State {
            map: [Entry::Unmapped; LBAS],
            slots: [Slot::FREE; SLOTS],
            rings: [Vec::new(), Vec::new()],
            cores: [idle; 2],
            lines,
            next_seq: 2,
            floor: 0,
            clock: 0,
            ceiling: LEASE,
            gc: Gc::Idle,
            writer: Writer::Idle,
            work: [Shard::EMPTY; LBAS],
            phase: Phase::Running,
            media: [Media::ERASED; LINES],
            log: vec![Record::Started, Record::Opened(0, 1)],
            durable: 2,
            checkpoints: Vec::new(),
            left: self.config.budget,
            host: Host { applied: [vec![0], vec![0]], decayed: 0 },
        }
    }

    /// The number of an operation: what a write leaves as content. 0 is the unwritten sector.
    pub(crate) fn number(&self, core: usize, index: u8) -> u8 {
        let before = if core == 0 { 0 } else { self.config.scripts[0].len() as u8 };
        before + index + 1
    }

    /// The operation with a number, its core and its index there.
    pub(crate) fn operation(&self, number: u8) -> Option<(usize, u8, Op)> {
        let index = number.checked_sub(1)?;
        let first = self.config.scripts[0].len() as u8;
        let (core, index) = if index < first { (0, index) } else { (1, index - first) };
        Some((core, index, *self.config.scripts[core].get(index as usize)?))
    }

    pub(crate) fn leaves_zeros(&self, number: u8) -> bool {
        !matches!(self.operation(number), Some((_, _, Op::Write(_))))
    }

    /// What a core does now or next.
    pub(crate) fn current(&self, state: &State, core: usize) -> Option<Op> {
        self.config.scripts[core].get(state.cores[core].next as usize).copied()
    }

    /// Does any operation write, discard or read this sector?
    pub(crate) fn touched(&self, lba: u8) -> bool {
        self.config.scripts.iter().flatten().any(|op| match *op {
            Op::Write(of) | Op::Read(of) => of == lba,
            Op::Discard(mask) => mask & 1 << lba != 0,
            Op::Flush | Op::Restart => false,
        })
    }

    /// Have both cores ended their scripts?
    pub fn finished(&self, state: &State) -> bool {
        state.phase == Phase::Running && (0..2).all(|core| self.current(state, core).is_none())
    }
}

impl System for Model {
    type State = State;
    fn initial(&self) -> State {
        Model::initial(self)
    }
    fn successors(&self, state: &State) -> Steps {
        Model::successors(self, state)
    }
    fn violation(&self, state: &State) -> Option<String> {
        Model::violation(self, state)
    }
    fn finished(&self, state: &State) -> bool {
        Model::finished(self, state)
    }
}
