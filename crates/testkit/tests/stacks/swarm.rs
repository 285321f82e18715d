//! The swarm over every stack, with a fixed number of seeds; `examples/swarm.rs` goes on.
//!
//! Owns: one test per row of [`STACKS`]. Promises: a failure prints the command that replays it.
//! Never: draws a seed from anywhere but a counter.

use flashlane_base::Ns;
use flashlane_testkit::stacks::{self, STACKS};
use flashlane_testkit::{Plan, run_seed};

/// Runs a stack's seeds; every eighth twice, to see that it does the same again.
fn swarm(name: &str) {
    let stack = stacks::find(name).expect("a row of the table");
    for seed in 0..stack.seeds {
        let run = || run_seed(stack, seed, &Plan::default()).unwrap_or_else(|f| panic!("{f}"));
        let done = run();
        if seed % 8 == 0 {
            assert_eq!(done, run(), "{name}, seed {seed}: a second run did something else");
        }
    }
}

/// A test per stack, so that they run side by side and by name.
macro_rules! swarms {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                swarm($name);
            }
        )*

        /// A stack that is in the table but not here would never be tested.
        #[test]
        fn every_stack_of_the_table_is_tested() {
            let here = [$($name),*];
            let missing: Vec<_> = STACKS.iter().filter(|s| !here.contains(&s.name)).collect();
            assert!(missing.is_empty(), "{:?}", missing.iter().map(|s| s.name).collect::<Vec<_>>());
        }
    };
}

/// Seeds that once failed, each for the reason its name gives, with the lives they had then.
macro_rules! found {
    ($($test:ident: $name:literal, $seed:literal, $effort:literal, $lives:expr;)*) => {
        $(
            #[test]
            fn $test() {
                let stack = stacks::find($name).expect("a row of the table");
                let plan = Plan { effort: $effort, lives: $lives, ..Plan::default() };
                run_seed(stack, $seed, &plan).unwrap_or_else(|f| panic!("{f}"));
            }
        )*
    };
}

found! {
    found_lines_abandoned_for_another_width_until_nothing_is_left: "pblk", 83, 100, None;
    found_flushes_that_take_the_last_room_of_a_line: "pblk", 300128, 20, Some(1);
    found_a_user_share_smaller_than_a_unit_waits_for_ever: "pblk-faults", 10205, 100, Some(1);
    found_spare_gone_while_gc_is_off_is_noticed_when_it_is_on: "pblk-faults", 10367, 100, Some(1);
    found_a_line_freed_before_its_last_unit_was_published: "pblk", 20155, 20, Some(1);
    found_padding_for_barriers_that_eats_what_collections_win: "pblk-faults", 30278, 100, Some(1);
    found_a_stop_whose_padding_keeps_gc_going: "pftl-faults", 41082, 100, Some(1);
    found_a_checkpoint_whose_records_make_the_next_one_due: "pblk", 50009, 100, Some(1);
    found_a_victim_wider_than_the_reserve_of_narrow_lines: "pblk", 70338, 100, Some(1);
    found_a_checkpoint_due_that_nobody_began: "pblk-faults", 80068, 100, Some(1);
    found_lines_closed_for_the_log_that_eat_the_reserve: "pblk", 50024, 100, Some(1);
    found_a_log_longer_than_its_reserve_where_lines_are_many: "pblk", 721433, 100, Some(1);
    found_a_line_carried_on_behind_its_freed_record: "pblk", 419, 100, None;
    found_a_torn_unit_in_a_line_that_recovery_closed: "pblk", 218, 100, None;
    found_a_chunk_of_a_former_pair_padded_as_log: "pblk", 53, 100, None;
    found_a_window_that_was_sent_again_taken_for_lost: "pblk-faults", 151, 100, None;
    found_a_last_unit_that_failed_taken_for_lost: "pblk-faults", 427, 100, None;
    found_a_log_whose_first_pair_failed_at_once: "pblk-faults", 52, 100, None;
    found_a_stop_with_nowhere_to_send_a_failed_sector_again: "pblk-faults", 474, 100, None;
    found_a_torn_program_that_took_its_word_line_along_in_a_full_chunk: "pftl", 414, 100, None;
    found_padding_for_barriers_that_eats_what_victims_win: "pftl", 789, 100, None;
    found_lines_gathered_for_a_barrier_that_take_its_room: "pftl", 103040, 100, None;
    found_a_mount_whose_only_room_are_lines_without_anything_in_them: "pftl", 303552, 100, None;
    found_slots_in_the_window_of_a_chunk_that_was_left: "pftl-faults", 13, 100, None;
    found_a_unit_that_failed_in_parts: "pftl-faults", 218, 100, None;
    found_padding_of_a_mount_that_failed: "pftl-faults", 657, 100, None;
    found_discards_lost_with_a_device_that_gave_up: "pftl-faults", 905, 100, None;
    found_a_move_dropped_behind_the_barrier_for_its_source: "pftl-faults", 300573, 100, None;
    found_an_empty_victim_that_waits_for_room_to_read: "pftl", 301808, 100, None;
    found_a_stop_that_waits_for_a_victim_of_a_device_that_gave_up: "pftl-faults", 400100, 100, None;
    found_a_scan_behind_a_mark_that_failed: "pftl-faults", 2362, 100, None;
}

/// A cut in the last row of GC's line: its full chunks can be read, and what the capacitors had of their
/// windows was programmed again all the same, into the room that GC counted on.
#[test]
fn found_windows_of_full_chunks_programmed_again() {
    let stack = stacks::find("pftl").expect("a row of the table");
    let plan = Plan { cuts: vec![Ns::from_ns(1_573_104_529)], ..Plan::default() };
    let done = run_seed(stack, 301_808, &plan).unwrap_or_else(|f| panic!("{f}"));
    assert!(!done.gave_up);
}

/// A mover that found nothing to do woke another one, which found nothing to do either and woke the first: time
/// stood still.
#[test]
fn found_movers_that_call_each_other() {
    let stack = stacks::find("pftl").expect("a row of the table");
    let plan = Plan { lives: Some(8), aimed: true, ..Plan::default() };
    run_seed(stack, 316, &plan).unwrap_or_else(|f| panic!("{f}"));
}

/// Power cuts in a row had taken the room of a tight device without capacitors: a barrier waited for room, the
/// lines that GC had emptied for the barrier, and writers for ever. Now they are refused.
#[test]
fn found_a_barrier_that_waits_for_the_room_it_is_to_make() {
    let stack = stacks::find("pftl-faults").expect("a row of the table");
    let plan = Plan { lives: Some(8), aimed: true, ..Plan::default() };
    run_seed(stack, 346, &plan).unwrap_or_else(|f| panic!("{f}"));
}

/// Runs a seed with power cuts at these times of its lives, in ns.
fn holds_after_cuts(target: &str, seed: u64, effort: u64, cuts: &[u64]) {
    let stack = stacks::find(target).expect("a row of the table");
    let cuts = cuts.iter().copied().map(Ns::from_ns).collect();
    let plan = Plan { cuts, effort, ..Plan::default() };
    run_seed(stack, seed, &plan).unwrap_or_else(|f| panic!("{f}"));
}

/// A stop ended the checkpoints, and an opener went on waiting for the room in the log that the next
/// one would have made.
#[test]
fn found_a_stop_that_waited_for_the_log() {
    holds_after_cuts("qblk-faults", 15, 1, &[0, 0]);
}

/// A unit that ended before one in front of it let the next into its chunk: more could be programmed
/// behind one that failed than recovery looks back for.
#[test]
fn found_more_units_in_flight_than_the_budget() {
    holds_after_cuts("qblk-buffer-faults", 61, 1, &[3_983_040, 96_203_934]);
    holds_after_cuts("qblk-buffer-faults", 41, 1, &[31_249, 9_987_288]);
}

/// Two checkpoints carried no line that was being opened, and cut the log behind its record while its opener
/// waited: what it took later was lost with the power (FORMAT.md, hole 40).
#[test]
fn found_a_line_that_no_checkpoint_carried() {
    holds_after_cuts("qblk-faults", 172, 10, &[347_168_885]);
}

/// The spare lay just below the limiter's start: lines were collected for ever while nobody wrote, for
/// padding took what each of them brought, and users had a share for a moment after each.
#[test]
fn found_collections_that_win_nothing() {
    let stack = stacks::find("pblk-buffer-faults").expect("a row of the table");
    let plan = Plan { lives: Some(7), aimed: true, ..Plan::default() };
    run_seed(stack, 179_560_646_701_921, &plan).unwrap_or_else(|f| panic!("{f}"));
}

/// The same of the block SSD, where the host waited for the room.
#[test]
fn found_victims_that_win_nothing() {
    let stack = stacks::find("pftl-buffer-faults").expect("a row of the table");
    let plan = Plan { lives: Some(7), aimed: true, ..Plan::default() };
    run_seed(stack, 179_570_135_636_480, &plan).unwrap_or_else(|f| panic!("{f}"));
}

/// Of a log that had been cut off a chunk was a line's by now, its first sector could not be read, and a mount
/// looked for log blocks among the users' sectors.
#[test]
fn found_a_log_looked_for_among_users_sectors() {
    holds_after_cuts("qblk-faults", 267, 20, &[264_292_700, 110_846_467]);
}

/// The cut tore the unit of a snapshot's root behind the root itself; the next life went on behind it,
/// and the mount after that took it for a loss.
#[test]
fn found_a_torn_root_behind_a_whole_one() {
    holds_after_cuts("pftl-faults", 0, 1, &[10_319_200, 5_410_800]);
}

swarms! {
    ram: "ram",
    pftl: "pftl",
    pftl_faults: "pftl-faults",
    pblk: "pblk",
    pblk_faults: "pblk-faults",
    pblk_care_faults: "pblk-care-faults",
    pblk_buffer: "pblk-buffer",
    pblk_buffer_faults: "pblk-buffer-faults",
    qblk: "qblk",
    qblk_faults: "qblk-faults",
    qblk_buffer_faults: "qblk-buffer-faults",
    pftl_buffer_faults: "pftl-buffer-faults",
    pblk_image: "pblk-image",
    pftl_image: "pftl-image",
}
