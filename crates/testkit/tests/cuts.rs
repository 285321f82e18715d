//! Power cuts at every moment of short runs, over every stack that can come back.
//!
//! Owns: the enumeration's claim: whatever the moment, what was flushed is there and what was not
//! is old or new. Promises: prints the command that replays a failure. Never: cuts a stack without a
//! mount (`lives` of 1 in the table).

use flashlane_testkit::stacks::STACKS;
use flashlane_testkit::{Plan, cut_everywhere};

#[test]
fn a_cut_at_any_moment_leaves_what_was_promised() {
    for stack in STACKS.iter().filter(|s| s.lives > 1) {
        let mut cuts = 0;
        for seed in 0..4 {
            let plan = Plan { effort: 5, ..Plan::default() };
            cuts += cut_everywhere(stack, seed, &plan, 120).unwrap_or_else(|f| panic!("{f}"));
        }
        println!("{}: {cuts} cuts", stack.name);
    }
}
