//! The bounded fuzzing run of CI: seeds over every target, in bounded memory.

use super::harness::{command, corpus, input, run_seed};
use super::memory::peak_of;
use super::targets;

/// Seeds per target; `cargo run --example fuzz` goes on from here.
const SEEDS: u64 = 250;
/// What one input may allocate: the places of a trace take most of it.
const BYTES_MAX: usize = 160 << 20;
/// What a block may, with what is written of it again: its own size a few times over.
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Targets whose inputs are no text.
const BINARY: [&str; 6] = ["parquet", "blktrace", "image", "image-header", "image-table", "ext4"];
/// Blocks on the medium. A fault plan is text.
const BLOCKS: [&str; 7] =
    ["line-first", "line-closing", "oob", "record", "log-block", "anchor", "shard"];
/// Drives that were written to and changed.
const MOUNTS: [&str; 3] = ["mount-pblk", "mount-pftl", "parafs"];
/// Clients of a server.
const CLIENTS: [&str; 4] = ["nbd", "http", "vhost", "fuse"];
/// What a client may make a server allocate: 32 MiB in flight, buffers, and what is read here.
const CLIENT_BYTES_MAX: usize = 48 << 20;

fn fuzz(target: &str, seeds: std::ops::Range<u64>) {
    fuzz_within(target, seeds, BYTES_MAX);
}

fn fuzz_within(target: &str, seeds: std::ops::Range<u64>, bytes_max: usize) {
    let corpus = corpus(target);
    let mut accepted = 0;
    for (index, file) in corpus.iter().enumerate() {
        let (taken, peak) = peak_of(|| targets::run(target, file));
        assert!(peak < bytes_max, "{target}: file {index} of the corpus took {peak} bytes");
        accepted += taken as u64;
    }
    assert!(accepted > 0, "{target}: no file of the corpus is a good one");
    for seed in seeds {
        let (done, peak) = peak_of(|| run_seed(target, &corpus, seed, &targets::run));
        accepted += done.unwrap_or_else(|e| panic!("{e}")) as u64;
        assert!(peak < bytes_max, "{peak} bytes: {}", command(target, seed));
    }
    println!("{target}: {accepted} accepted");
}

#[test]
fn mutated_text_formats_are_used_or_refused() {
    let others = [&BINARY[..], &BLOCKS, &MOUNTS, &CLIENTS].concat();
    for target in targets::names().into_iter().filter(|t| !others.contains(t)) {
        fuzz(target, 0..SEEDS);
    }
}

#[test]
fn mutated_binary_formats_are_used_or_refused() {
    for target in BINARY {
        fuzz(target, 0..4 * SEEDS);
    }
}

#[test]
fn mutated_blocks_of_the_medium_are_used_or_refused() {
    for target in BLOCKS {
        fuzz_within(target, 0..4 * SEEDS, BLOCK_BYTES_MAX);
    }
}

#[test]
fn drives_with_changed_bytes_are_mounted_or_refused() {
    for target in MOUNTS {
        fuzz(target, 0..SEEDS / 2);
    }
}

fn fuzz_client(target: &str) {
    assert!(CLIENTS.contains(&target), "the other tests leave it out");
    fuzz_within(target, 0..SEEDS, CLIENT_BYTES_MAX);
}

#[test]
fn hostile_clients_by_nbd_are_answered_or_left() {
    fuzz_client("nbd");
}

#[test]
fn hostile_clients_by_http_are_answered_or_left() {
    fuzz_client("http");
}

#[test]
fn hostile_front_ends_and_guests_are_answered_or_left() {
    fuzz_client("vhost");
}

#[test]
fn callers_of_the_file_are_answered() {
    fuzz_client("fuse");
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
