//! QBLK under a checker of interleavings: every access to an atomic or a mutex of the host is a point
//! where another core may go on, and a seed says who does.
//!
//! Owns: the whole-target runs (create, writers that fight for a few sectors, discards, flushes, FUA
//! writes, garbage collection, slots that come round, an end by `stop` or by a cut of the power, mount,
//! oracle). Promises: a run is a function of its seed: workload and schedule; a failing one prints the
//! command that replays it. As many seeds are tried as the mutants of docs/MUTANTS.md need, and half as many
//! again;
//! `make interleave-long` goes on. Never: finds what needs weaker memory than sequential consistency (shuttle
//! has no other; `crates/ftl/src/log/models.rs` has loom for that).
//!
//! Built only with the feature `shuttle`: `make interleave` (docs/TESTING.md, "Interleavings").

mod schedule;
mod target;

use schedule::explore;
use std::sync::atomic::Ordering;
use target::Life;

/// One life: create, fight, stop, walk, laws.
#[test]
fn qblk_stopped() {
    explore("qblk_stopped", 270, |seed| target::run(seed, Life::Stopped));
}

/// Two lives: the first ends by a cut behind some request, others under way; the second recovers.
#[test]
fn qblk_cut() {
    explore("qblk_cut", 320, |seed| target::run(seed, Life::Cut));
}

/// Little spare room: lines are collected and chunks reused under the readers.
#[test]
fn qblk_collecting() {
    let done = explore("qblk_collecting", 30, |seed| target::run(seed, Life::Collecting));
    let collected = target::COLLECTED.load(Ordering::SeqCst);
    println!("lines were collected in {collected} of them");
    assert!(collected >= done / 2, "lines were collected in {collected} of {done} only");
}

/// As little spare as works and no bad chunk: whatever the cores do meanwhile, nobody gives up.
#[test]
fn qblk_full() {
    let done = explore("qblk_full", 10, |seed| target::run(seed, Life::Full));
    let collected = target::COLLECTED_FULL.load(Ordering::SeqCst);
    println!("lines were collected in {collected} of them");
    assert!(collected >= done / 2, "lines were collected in {collected} of {done} only");
}

/// Two lives: a discard against a write, another discard and a flush, and what was read behind them is there.
#[test]
fn qblk_discards() {
    explore("qblk_discards", 250, |seed| target::run(seed, Life::Discards));
}

/// A life before, and behind a mount a discard against a write, a flush and another discard.
#[test]
fn qblk_mounted_discard() {
    explore("qblk_mounted_discard", 100, |seed| target::run(seed, Life::MountedDiscard));
}

/// Two cores, one of which frees what the other has looked up.
#[test]
fn operations() {
    explore("operations", 1000, flashlane_ftl::log::nothing_is_erased_under_an_operation);
}
