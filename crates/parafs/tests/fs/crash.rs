//! The power goes at any time: what a mount may find (`testkit/src/files`).
//!
//! Owns: how much of it every test run does. Promises: at least so many cuts; a failing seed prints the
//! command that replays it. Never: knows what may be found.

use flashlane_parafs::Policy;
use flashlane_testkit::devices::Size;
use flashlane_testkit::files::{FILES, Files, SEEN, Way, seeds};
use flashlane_testkit::torture::{Nobody, replay, torture};
use flashlane_testkit::{How, Plan, Seeds, Subject, Tally};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

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
    let tally = tortured(&FILES[0].of(Way::Parts), seeds(236..264));
    // A run of one seed need not have each.
    let seen = |of: &AtomicU64, least| of.load(Ordering::Relaxed) > least;
    assert!(tally.seeds < 28 || tally.cuts > 500, "{tally:?}");
    assert!(tally.seeds < 28 || seen(&SEEN.batches, 100) && seen(&SEEN.orphans, 3), "{SEEN:?}");
}

#[test]
fn flash_that_fails_keeps_what_was_durable() {
    let tally = tortured(&FILES[1].of(Way::Parts), seeds(0..12));
    assert!(tally.seeds < 12 || tally.cuts > 200 && tally.faults > 1000, "{tally:?}");
    // Media that lost too much show nothing: most have not.
    let lost = SEEN.lost.load(Ordering::Relaxed);
    assert!(lost * 10 < tally.lives, "{lost} of {} lives", tally.lives);
}

/// Each policy by itself: those of flash, and those of memory or a block SSD.
#[test]
fn every_policy_keeps_what_was_durable() {
    for way in Way::all() {
        let tally = tortured(&FILES[0].of(way), seeds(0..6));
        println!("{}: {tally:?}", way.word());
        assert!(tally.seeds < 6 || tally.cuts > 50, "{}: {tally:?}", way.word());
    }
}

/// Where nobody names one the seed draws it: a few seeds have all.
#[test]
fn seeds_draw_every_policy() {
    let drawn: BTreeSet<String> = (0..64).map(|s| FILES[0].flags(s)).collect();
    assert_eq!(drawn.len(), Way::all().count(), "{drawn:?}");
    // F2FS is on a block SSD with some, and never on bare flash.
    let on = |seed| FILES[0].of(Way::Policy(Policy::F2fs)).begin(seed, Size::Tight).describe();
    let on: Vec<String> = (0..8).map(on).collect();
    let ssds = on.iter().filter(|on| on.to_lowercase().contains("pftl")).count();
    let memory = on.iter().filter(|on| on.starts_with("memory of")).count();
    assert!(ssds > 0 && memory > 0 && ssds + memory == 8, "{on:#?}");
    let named = FILES[1].of(Way::Policy(Policy::F2fsSb)).flags(7);
    assert_eq!(named, "--target parafs-faults --policy f2fs-sb");
}

/// Lives that failed once, each for a reason of its own: as long as nobody changes what a seed draws they
/// are these lives.
#[test]
fn what_failed_once_is_good() {
    let once: [(&Files, u64, u64, u64); 7] = [
        // Idle cleaning made more nodes dirty than a checkpoint had room for.
        (&FILES[0], 4_295_017_369, 100, 8),
        // A file could not be looked up behind a failed write, and a later fsync counted.
        (&FILES[1], 17_179_871_305, 25, 6),
        // A superblock that could be read at the second try was "no file system".
        (&FILES[1], 42_949_673_726, 25, 3),
        // Blocks that had failed were counted as room.
        (&FILES[1], 4_294_968_397, 100, 2),
        (&FILES[1], 25_769_805_305, 100, 5),
        (&FILES[1], 4_294_969_034, 100, 9),
        // Blocks failed until nothing could be cleaned, and what had been promised was not written.
        (&FILES[1], 12_884_910_943, 100, 8),
    ];
    for (files, seed, effort, lives) in once {
        let plan = Plan { effort, lives: Some(lives), aimed: true, ..Plan::default() };
        // As they were when nothing else was drawn.
        let files = files.of(Way::Parts);
        let outcome = replay(&[&files], seed, &plan, &Nobody);
        let whys: Vec<&str> = outcome.failures.iter().map(|f| f.what.as_str()).collect();
        assert!(whys.is_empty(), "{whys:?}");
        assert_eq!(outcome.tally.lives, lives, "{} {seed}", files.name);
    }
}
