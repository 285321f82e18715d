//! The power goes at any time: what a mount may find (`testkit/src/files`).
//!
//! Owns: how much of it every test run does. Promises: at least so many cuts; a failing seed prints the
//! command that replays it. Never: knows what may be found.

use flashlane_testkit::files::{FILES, Files, SEEN, seeds};
use flashlane_testkit::torture::{Nobody, torture};
use flashlane_testkit::{How, Seeds, Tally};

/// Seeds of a file system, each in its turn of ways to place cuts; what that was.
fn tortured(files: &Files, range: std::ops::Range<u64>) -> Tally {
    let seeds = Seeds { from: range.start, count: Some(range.end - range.start) };
    let outcome = torture(&[files], &How::default(), seeds, 1, &Nobody);
    for failure in &outcome.failures {
        println!("{}\n  replay: flashlane torture {}", failure.what, failure.flags);
    }
    println!("{:?}, {:?}", outcome.tally, SEEN);
    assert!(outcome.failures.is_empty(), "{} failures", outcome.failures.len());
    outcome.tally
}

#[test]
fn what_was_durable_is_there_behind_a_cut() {
    tortured(&FILES[0], seeds(0..40));
}

#[test]
fn flash_that_fails_keeps_what_was_durable() {
    tortured(&FILES[1], seeds(0..20));
}
