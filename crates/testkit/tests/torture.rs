//! The crash tests of every test run: many power cuts over all stacks, and a few cases cut at every
//! moment.
//!
//! Owns: how many cuts are promised. Promises: prints how many there were, fails if they are fewer,
//! and prints the command that replays a failure. Never: depends on how fast the machine is.

use flashlane_testkit::stacks::{self, STACKS};
use flashlane_testkit::torture::{Nobody, torture};
use flashlane_testkit::{How, Mode, Outcome, Seeds, Source};

/// On all cores; the threads of other tests wait meanwhile, or share them.
fn tortured(names: &[&str], how: How, from: u64, count: u64) -> Outcome {
    let rows = names.iter().map(|name| stacks::find(name).expect("a row of the table"));
    let rows: Vec<&dyn Source> = rows.map(|stack| stack as &dyn Source).collect();
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let outcome = torture(&rows, &how, Seeds { from, count: Some(count) }, jobs, &Nobody);
    let failures = outcome.failures.iter().map(|f| {
        format!("{}, seed {}: {}\n  replay: cargo run --release -- torture {}", f.target, f.seed, f.what, f.flags)
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{names:?} {how:?}: {:?}", outcome.tally);
    outcome
}

#[test]
#[ignore]
#[allow(clippy::disallowed_methods)]
fn measure() {
    for name in ["pblk", "pblk-faults"] {
        for seed in 0..16 {
            let began = std::time::Instant::now();
            let how = How { mode: Mode::Linear, cuts: Some(1), effort: Some(2) };
            tortured(&[name], how, seed, 1);
            println!("   {:?}", began.elapsed());
        }
    }
    let _ = STACKS;
}
