//! Power cuts at every moment of short runs, over every stack that can come back.
//!
//! Owns: the enumeration's claim: whatever the moment, what was flushed is there and what was not
//! is old or new. Promises: prints the command that replays a failure. Never: cuts a stack without a
//! mount (`lives` of 1 in the table).

use flashlane_base::Ns;
use flashlane_testkit::moments::Moments;
use flashlane_testkit::stacks::{self, STACKS};
use flashlane_testkit::{Plan, Stack, cut_everywhere, run_seed};

#[test]
fn a_cut_at_any_moment_leaves_what_was_promised() {
    for stack in STACKS.iter().filter(|s| s.lives > 1) {
        let mut cuts = 0;
        for seed in 0..2 {
            let plan = Plan { effort: 5, ..Plan::default() };
            cuts += cut_everywhere(stack, seed, &plan, 120).unwrap_or_else(|f| panic!("{f}"));
        }
        println!("{}: {cuts} cuts", stack.name);
    }
}

/// The block SSD, with and without capacitors: at each moment of a short run (commands begin and
/// end, and halfway between), and again in each magnitude of the recovery's time.
#[test]
fn a_second_cut_at_any_time_of_a_recovery_changes_nothing() {
    let stack = stacks::find("pftl").expect("a row of the table");
    for seed in [1, 3, 6, 7] {
        let moments = Moments::default();
        let alone = Stack { lives: 1, ..*stack };
        let recorded = Plan { effort: 2, moments: Some(moments.clone()), ..Plan::default() };
        run_seed(&alone, seed, &recorded).unwrap_or_else(|f| panic!("{f}"));
        for first in moments.cuts(12) {
            for magnitude in 10..26 {
                let cuts = vec![first, Ns::from_ns(3 << (magnitude - 1))];
                let plan = Plan { effort: 2, cuts, ..Plan::default() };
                run_seed(stack, seed, &plan).unwrap_or_else(|f| panic!("{f}"));
            }
        }
    }
}
