//! The bounded fuzzing run of CI: seeds over every target, in bounded memory.

use super::harness::{command, corpus, input, run_seed};
use super::memory::peak_of;
use super::targets;

/// Seeds per target; `cargo run --example fuzz` goes on from here.
const SEEDS: u64 = 250;
/// What one input may allocate: the places of a trace take most of it.
const BYTES_MAX: usize = 160 << 20;
/// Targets whose inputs are no text.
const BINARY: [&str; 5] = ["parquet", "blktrace", "image", "image-header", "image-table"];

fn fuzz(target: &str, seeds: std::ops::Range<u64>) {
    let corpus = corpus(target);
    let mut accepted = 0;
    for (index, file) in corpus.iter().enumerate() {
        let (taken, peak) = peak_of(|| targets::run(target, file));
        assert!(peak < BYTES_MAX, "{target}: file {index} of the corpus took {peak} bytes");
        accepted += taken as u64;
    }
    assert!(accepted > 0, "{target}: no file of the corpus is a good one");
    for seed in seeds {
        let (done, peak) = peak_of(|| run_seed(target, &corpus, seed, &targets::run));
        accepted += done.unwrap_or_else(|e| panic!("{e}")) as u64;
        assert!(peak < BYTES_MAX, "{peak} bytes: {}", command(target, seed));
    }
    println!("{target}: {accepted} accepted");
}

#[test]
fn mutated_text_formats_are_used_or_refused() {
    for target in targets::names().into_iter().filter(|t| !BINARY.contains(t)) {
        fuzz(target, 0..SEEDS);
    }
}

#[test]
fn mutated_binary_formats_are_used_or_refused() {
    for target in BINARY {
        fuzz(target, 0..4 * SEEDS);
    }
}

/// The harness finds what there is to find: a parser that fails on one byte is caught, by a seed
/// that fails again.
#[test]
fn a_parser_that_panics_is_caught_and_its_seed_replays() {
    let corpus = corpus("mqsim");
    let canary = |_: &str, bytes: &[u8]| {
        assert!(!bytes.contains(&0xff), "the canary");
        true
    };
    let failing = (0..500).find(|seed| run_seed("mqsim", &corpus, *seed, &canary).is_err());
    let seed = failing.expect("one of 500 inputs has this byte");
    let said = run_seed("mqsim", &corpus, seed, &canary).unwrap_err();
    assert!(said.contains(&format!("--target mqsim --seed {seed}")), "{said}");
    assert_eq!(input("mqsim", &corpus, seed), input("mqsim", &corpus, seed));
}
