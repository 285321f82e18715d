//! The scenarios: for each rule the smallest host script and faults in which taking the rule out
//! breaks a promise.
//!
//! Every scenario runs in the same transition system; a configuration only bounds it. Where one
//! would be too large, actors that the scenario doesn't need to be slow are prompt
//! ([`Prompt`]); the tests say how many states each has.

use crate::config::{Config, Op, Prompt};
use crate::rules::Rule;
use crate::state::Budget;

/// A rule and the configuration in which its absence is found.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Number in `docs/FORMAT.md`.
    pub name: &'static str,
    pub rule: Rule,
    pub config: Config,
}

/// Writes of sectors 0 and 1, a discard of sector 0, of sector 1, a flush.
const W: Op = Op::Write(0);
const V: Op = Op::Write(1);
const D: Op = Op::Discard(0b01);
const E: Op = Op::Discard(0b10);
const F: Op = Op::Flush;

const NOTHING: Budget = Budget { cuts: 0, fails: 0, decays: 0, gcs: 0, checkpoints: 0 };
const GC: Budget = Budget { gcs: 1, ..NOTHING };
const CHECKPOINT: Budget = Budget { checkpoints: 1, ..NOTHING };
const DECAY: Budget = Budget { decays: 1, ..NOTHING };
const CUT: Budget = Budget { cuts: 1, ..NOTHING };

/// Nobody is prompt; all who are not the scenario's own race are.
const SLOW: Prompt = Prompt { log: false, map: false, lines: false, write: false, shard: false };
const PROMPT: Prompt = Prompt { log: true, map: true, lines: true, write: true, shard: true };

/// A configuration of scripts and budget with lines of `sectors`.
fn config(first: &[Op], second: &[Op], sectors: u8, budget: Budget) -> Config {
    Config { scripts: [first.to_vec(), second.to_vec()], sectors, budget, ..Config::BASE }
}

pub fn all() -> Vec<Scenario> {
    [erase(), buffer(), medium(), recovery(), checkpoint_holes(), slot_holes()].concat()
}

pub fn named(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name == name)
}

fn scenario(name: &'static str, rule: Rule, config: Config) -> Scenario {
    Scenario { name, rule, config }
}

/// Rule 1.
fn erase() -> Vec<Scenario> {
    let reader = Config {
        prompt: Prompt { lines: true, map: true, ..SLOW },
        ..config(&[W, W], &[Op::Read(0)], 1, GC)
    };
    let discard = Config {
        slots: 2,
        prompt: Prompt { log: false, ..PROMPT },
        ..config(&[W, F, W, F, D], &[], 1, GC)
    };
    vec![
        scenario("1a", Rule::EraseEpoch, reader),
        scenario("1b", Rule::EraseRings, config(&[W, F, W], &[], 1, GC)),
        scenario("1c", Rule::EraseEpoch, discard),
    ]
}

/// Rules 2 to 6.
fn buffer() -> Vec<Scenario> {
    let torn_log = Budget { checkpoints: 2, ..NOTHING };
    let older = Config {
        unreadable_checkpoint: true,
        prompt: Prompt { write: false, shard: false, ..PROMPT },
        ..config(&[W, D, F, W, F], &[], 2, Budget { checkpoints: 1, ..CUT })
    };
    vec![
        scenario("2", Rule::CoveredSlot, config(&[W, F], &[W], 2, NOTHING)),
        scenario("3", Rule::ShardPrev, config(&[W, F, W], &[], 1, CHECKPOINT)),
        scenario("4", Rule::FloorCheck, config(&[W, F], &[D], 2, NOTHING)),
        scenario("5", Rule::Tombstone, config(&[W, D, F], &[], 2, torn_log)),
        scenario("6a", Rule::Ceiling, older),
        scenario("6b", Rule::RecoveryCloses, config(&[W, F, W, W, F], &[], 3, CUT)),
    ]
}

/// Rules 7 to 10.
fn medium() -> Vec<Scenario> {
    let failing = Budget { fails: 1, ..NOTHING };
    let both = Budget { checkpoints: 1, ..GC };
    let pairs = Config { pairs: true, ..config(&[W, V, F], &[], 2, failing) };
    let stripe = Config { width: 2, ..config(&[W, F, W], &[], 2, NOTHING) };
    let void = Config { slots: 2, prompt: PROMPT, ..config(&[W, W, V], &[], 1, both) };
    vec![
        scenario("7a", Rule::DecayTakesPart, config(&[W, F, W, V, F], &[], 4, DECAY)),
        scenario("7b", Rule::TornIsNone, config(&[W, F, W], &[], 2, NOTHING)),
        scenario("8", Rule::ClosingLast, stripe),
        scenario("9", Rule::WindowReturns, pairs),
        scenario("10a", Rule::OpenedFirst, config(&[W, F, W, F], &[], 1, NOTHING)),
        scenario("10b", Rule::FreedFirst, config(&[W, W], &[], 1, GC)),
        scenario("10c", Rule::VoidEntry, void),
    ]
}

/// Rules 11 to 16.
fn recovery() -> Vec<Scenario> {
    let two = Budget { checkpoints: 2, ..NOTHING };
    let victim = Budget { gcs: 1, ..DECAY };
    let reader = Config { slots: 2, ..config(&[W, V], &[Op::Read(0)], 2, NOTHING) };
    let poison = Config {
        slots: 2,
        prompt: Prompt { lines: false, ..PROMPT },
        ..config(&[W, W, F], &[], 1, victim)
    };
    let fallback = Config { unreadable_checkpoint: true, ..config(&[W, F, D, F], &[], 2, two) };
    let restart = config(&[W, F, Op::Restart, W, F], &[], 2, NOTHING);
    vec![
        scenario("11a", Rule::ReplayStamps, config(&[W, F], &[W, F], 2, NOTHING)),
        scenario("11b", Rule::ReplayOpen, config(&[W, F, W, F], &[], 2, CHECKPOINT)),
        scenario("12", Rule::SlotEpoch, reader),
        scenario("13", Rule::PublishedFirst, config(&[W, F], &[D], 2, NOTHING)),
        scenario("14", Rule::Poison, poison),
        scenario("15", Rule::Started, restart),
        scenario("16", Rule::CutOlder, fallback),
    ]
}

/// What rules 1 to 16 left open around checkpoints.
fn checkpoint_holes() -> Vec<Scenario> {
    let prompt = |map, write, shard| Prompt { map, write, shard, ..PROMPT };
    let follows =
        Config { prompt: prompt(false, true, true), ..config(&[W, W, F], &[W], 1, CHECKPOINT) };
    let lost = Budget { gcs: 1, checkpoints: 1, ..DECAY };
    let poison =
        Config { slots: 2, prompt: prompt(false, true, true), ..config(&[W, F, W], &[], 1, lost) };
    let unfinished =
        Config { prompt: prompt(true, false, true), ..config(&[W, D, F], &[W], 2, CHECKPOINT) };
    let unlogged =
        Config { prompt: prompt(true, true, false), ..config(&[W, F], &[W, F, D], 1, CHECKPOINT) };
    let taken = |first: &[Op], second: &[Op]| config(first, second, 2, CHECKPOINT);
    vec![
        scenario("H1", Rule::PrevFollows, follows),
        scenario("H2", Rule::RecordAfterClear, taken(&[W, F, D, F], &[])),
        scenario("H3", Rule::PositionFirst, taken(&[W, D, F], &[])),
        scenario("H4", Rule::TombstoneBelow, taken(&[W, E, F], &[])),
        scenario("H5", Rule::StoppedRecord, taken(&[W, F], &[])),
        scenario("H7", Rule::PrevPoison, poison),
        scenario("H8", Rule::TombstoneLowest, taken(&[W, F], &[W])),
        scenario("H10", Rule::ShardWaits, unfinished),
        scenario("H12", Rule::CompleteEpoch, unlogged),
    ]
}

/// ... and around slots and stamps.
fn slot_holes() -> Vec<Scenario> {
    let still =
        |first: &[Op], second: &[Op]| Config { ticks: false, ..config(first, second, 2, NOTHING) };
    vec![
        scenario("H6", Rule::FreshSlot, still(&[W, F], &[E, W, F])),
        scenario("H9", Rule::DropEpoch, config(&[W, F], &[W], 2, NOTHING)),
        scenario("H11", Rule::DiscardFloor, still(&[W, W, D, F], &[D])),
    ]
}
