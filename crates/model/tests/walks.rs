//! Random paths through configurations far too large to exhaust: long scripts on both cores, all
//! faults together, nobody prompt.
//!
//! Walks found holes 11 and 12. The ignored test takes minutes; run it after changing a rule:
//! `cargo test --release -p flashlane-model -- --ignored --nocapture`.

use flashlane_model::config::{Config, Model, Op};
use flashlane_model::explore::walk;
use flashlane_model::state::Budget;

const W: Op = Op::Write(0);
const V: Op = Op::Write(1);
const D: Op = Op::Discard(0b01);
const BOTH: Op = Op::Discard(0b11);
const F: Op = Op::Flush;
const R: Op = Op::Read(0);

const SCRIPTS: [(&[Op], &[Op]); 5] = [
    (&[W, D, F, W, F, R], &[W, V, F, BOTH, W, F]),
    (&[W, F, W, W, F, W], &[V, W, F, V, F]),
    (&[W, W, D, F, D, W, F], &[W, F, D, F]),
    (&[W, F, Op::Restart, W, F, D, F], &[W, F, W]),
    (&[W, V, F, W, F, W, F], &[R, Op::Read(1), R]),
];

/// A mix of shapes and faults, chosen by the bits of `index`.
fn configuration(index: u64) -> Config {
    let (first, second) = SCRIPTS[index as usize % SCRIPTS.len()];
    let bits = index / SCRIPTS.len() as u64;
    let bit = |at: u32| bits >> at & 1 == 1;
    let sectors = 1 + (bits & 3) as u8;
    let even = sectors.is_multiple_of(2);
    let pairs = even && bit(2);
    Config {
        scripts: [first.to_vec(), second.to_vec()],
        sectors,
        pairs,
        width: if even && !pairs { 2 } else { 1 },
        pools: bit(3),
        slots: if bit(4) { 4 } else { 3 },
        ticks: bit(5),
        unreadable_checkpoint: bit(6) && !bit(7),
        budget: Budget {
            cuts: 1 + u8::from(bit(8)),
            fails: u8::from(bit(2)),
            decays: u8::from(bit(7)),
            gcs: 2,
            checkpoints: 2,
        },
        ..Config::BASE
    }
}

/// `count` walks in every configuration. A failure prints the configuration and the path.
fn walk_all(configurations: impl Iterator<Item = u64>, count: usize) {
    let (mut states, mut finished) = (0, 0);
    for index in configurations {
        let config = configuration(index);
        let seed = 0x9e37_79b9_7f4a_7c15 ^ index;
        let report = walk(&Model::new(config.clone(), &[]), seed, count, 220);
        if let Some(trace) = report.counterexample {
            panic!("configuration {index}, seed {seed:#x}: {config:?}\n{trace}");
        }
        states += report.states;
        finished += report.finished;
    }
    println!("{states} states on random paths, {finished} paths to the end");
    assert!(finished > 0, "no path got to its end");
}

/// A sample of all configurations, a few paths each.
#[test]
fn random_walks_find_nothing() {
    walk_all((0..5 * 512).step_by(7), 6);
}

/// Every configuration, many paths each: about 50 million states.
#[test]
#[ignore = "takes minutes; for a change of the rules"]
fn many_random_walks_find_nothing() {
    walk_all(0..5 * 512, 250);
}
