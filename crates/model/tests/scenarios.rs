//! One test per scenario: a rule taken out is found, all rules in find nothing.
//!
//! `cargo test -p flashlane-model -- --nocapture` prints each trace and the number of states.

use flashlane_model::config::Model;
use flashlane_model::explore::explore;
use flashlane_model::rules::Rule;
use flashlane_model::scenarios::{all, named};

/// Most states any configuration may have; the largest has 357,698.
const STATES_MAX: usize = 500_000;

/// Explores a scenario without its rule and returns the trace as it is printed.
#[track_caller]
fn found_without_its_rule(name: &str) -> String {
    let scenario = named(name).expect("a scenario of this name");
    let report = explore(&Model::new(scenario.config, &[scenario.rule]), STATES_MAX);
    let rule = scenario.rule;
    let trace = report.counterexample.map(|trace| trace.to_string());
    let trace = trace.unwrap_or_else(|| panic!("{name}: nothing found without {rule:?}"));
    println!("scenario {name}, without {rule:?}: {} states\n{trace}", report.states);
    trace
}

/// A reader holds an address while the line behind it is erased.
#[test]
fn scenario_01a_erase_under_a_reader_is_found_without_its_rule() {
    assert!(found_without_its_rule("1a").contains("is erased"));
}

/// The only durable copy is erased while the newer one is in a slot.
#[test]
fn scenario_01b_erase_of_the_only_durable_copy_is_found_without_its_rule() {
    assert!(found_without_its_rule("1b").contains("is logged as freed"));
}

/// A line is freed while the discard that emptied it is not in the log: an older copy comes back.
#[test]
fn scenario_01c_erase_before_the_discard_is_logged_is_found_without_its_rule() {
    assert!(found_without_its_rule("1c").contains("clears sector 0"));
}

/// A flush is satisfied by a slot that was overwritten before it was programmed.
#[test]
fn scenario_02_superseded_slot_satisfies_a_flush_is_found_without_its_rule() {
    found_without_its_rule("2");
}

/// A checkpoint stores a buffered sector as unmapped and forgets its durable copy.
#[test]
fn scenario_03_checkpoint_of_a_buffered_entry_is_found_without_its_rule() {
    assert!(found_without_its_rule("3").contains("checkpoint"));
}

/// A write keeps a stamp below that of a discard it came after.
#[test]
fn scenario_04_discard_then_write_with_a_smaller_stamp_is_found_without_its_rule() {
    assert!(found_without_its_rule("4").contains("raises the floor"));
}

/// A discard's record is behind the checkpoint, an older copy is programmed after it.
#[test]
fn scenario_05_discard_record_cut_is_found_without_its_rule() {
    assert!(found_without_its_rule("5").contains("logged as complete"));
}

/// After a crash stamps start low and lose against a record of the life before.
#[test]
fn scenario_06a_stamps_reissued_after_a_crash_are_found_without_its_rule() {
    assert!(found_without_its_rule("6a").contains("POWER CUT"));
}

/// Recovery leaves a line open, new data behind a torn sector makes that look decayed.
#[test]
fn scenario_06b_line_left_open_by_recovery_is_found_without_its_rule() {
    assert!(found_without_its_rule("6b").contains("POWER CUT"));
}

/// A sector that went bad is taken for torn, an older copy is silently served instead.
#[test]
fn scenario_07a_decayed_taken_for_torn_is_found_without_its_rule() {
    assert!(found_without_its_rule("7a").contains("goes bad"));
}

/// A torn sector takes part and hides the durable copy.
#[test]
fn scenario_07b_torn_taken_for_a_copy_is_found_without_its_rule() {
    assert!(found_without_its_rule("7b").contains("1 programs torn"));
}

/// Closing metadata names a sector whose program never ended.
#[test]
fn scenario_08_closing_metadata_ahead_of_data_is_found_without_its_rule() {
    assert!(found_without_its_rule("8").contains("closing metadata programmed"));
}

/// The second of a pair fails, and the slot of the first was let go.
#[test]
fn scenario_09_early_close_frees_the_window_is_found_without_its_rule() {
    assert!(found_without_its_rule("9").contains("closes early"));
}

/// Data is programmed and flushed in a line that the log doesn't know.
#[test]
fn scenario_10a_program_before_opened_is_found_without_its_rule() {
    assert!(found_without_its_rule("10a").contains("opened as sequence 2"));
}

/// A line is erased that the log still says is there: recovery has to report a loss.
#[test]
fn scenario_10b_erase_before_freed_is_found_without_its_rule() {
    assert!(found_without_its_rule("10b").contains("is missing on the medium"));
}

/// A checkpoint entry leads into the next life of its line.
#[test]
fn scenario_10c_entry_into_a_reused_line_is_found_without_its_rule() {
    assert!(found_without_its_rule("10c").contains("is erased"));
}

/// Replay in line order puts an older copy over a newer one.
#[test]
fn scenario_11a_replay_without_stamps_is_found_without_its_rule() {
    found_without_its_rule("11a");
}

/// A line that was open when the checkpoint began is not replayed.
#[test]
fn scenario_11b_replay_without_open_lines_is_found_without_its_rule() {
    assert!(found_without_its_rule("11b").contains("logged as complete"));
}

/// A slot is recycled between a reader's load and its copy.
#[test]
fn scenario_12_slot_reused_under_a_reader_is_found_without_its_rule() {
    assert!(found_without_its_rule("12").contains("never held"));
}

/// A slot is programmed before it is published and gets another stamp afterwards.
#[test]
fn scenario_13_drained_before_published_is_found_without_its_rule() {
    assert!(found_without_its_rule("13").contains("is raised to stamp"));
}

/// GC skips a sector it can't read and erases the line: the loss is forgotten.
#[test]
fn scenario_14_unreadable_live_sector_in_gc_is_found_without_its_rule() {
    assert!(found_without_its_rule("14").contains("skips sector"));
}

/// After a clean stop a crash in the first writes finds a log that still says clean.
#[test]
fn scenario_15_snapshot_then_crash_is_found_without_its_rule() {
    assert!(found_without_its_rule("15").contains("clean stop"));
}

/// The newest checkpoint can't be read, and the discards since the older one are cut.
#[test]
fn scenario_16_fallback_that_undoes_discards_is_found_without_its_rule() {
    assert!(found_without_its_rule("16").contains("newest checkpoint unreadable"));
}

/// A superseded slot became durable, but the slot above still names an older copy as durable.
#[test]
fn hole_01_stale_prev_is_found_without_its_rule() {
    assert!(found_without_its_rule("H1").contains("is dead"));
}

/// A shard begins between a discard's record and its clearing.
#[test]
fn hole_02_record_before_clear_is_found_without_its_rule() {
    assert!(found_without_its_rule("H2").contains("clears sector"));
}

/// A discard comes between a shard's H and its log position.
#[test]
fn hole_03_floor_before_position_is_found_without_its_rule() {
    assert!(found_without_its_rule("H3").contains("raises the floor"));
}

/// Another sector's discard raises H above a first write that is still in a slot.
#[test]
fn hole_04_tombstone_above_a_buffered_write_is_found_without_its_rule() {
    assert!(found_without_its_rule("H4").contains("clears sector 1"));
}

/// A running checkpoint is the last record, data was flushed into an open line since.
#[test]
fn hole_05_running_checkpoint_taken_for_clean_is_found_without_its_rule() {
    assert!(found_without_its_rule("H5").contains("logged as complete"));
}

/// A write raised its stamp in place to one that its successor has taken, too.
#[test]
fn hole_06_two_contents_with_one_stamp_are_found_without_its_rule() {
    assert!(found_without_its_rule("H6").contains("is raised to stamp"));
}

/// A write over a poisoned sector is buffered when the shard is taken: the loss reads as zeros.
#[test]
fn hole_07_poison_under_a_slot_is_found_without_its_rule() {
    assert!(found_without_its_rule("H7").contains("logged as poisoned"));
}

/// The tombstone lies below the topmost slot, but above another that a flush made durable.
#[test]
fn hole_08_tombstone_above_a_covered_slot_is_found_without_its_rule() {
    found_without_its_rule("H8");
}

/// A slot is dropped for a successor that is not yet in a ring; then the flush comes.
#[test]
fn hole_09_dropped_for_an_unfinished_successor_is_found_without_its_rule() {
    assert!(found_without_its_rule("H9").contains("padding instead"));
}

/// A shard takes the stamp of a published write that is about to give it up.
#[test]
fn hole_10_shard_of_an_unfinished_write_is_found_without_its_rule() {
    assert!(found_without_its_rule("H10").contains("overtaken by the floor"));
}

/// Two discards: the later hides a write from the earlier, whose record is too low for it.
#[test]
fn hole_11_discard_behind_a_discard_is_found_without_its_rule() {
    assert!(found_without_its_rule("H11").contains("discard 5: clears sector 0"));
}

/// A checkpoint saw an entry cleared by a discard that never reached the log.
#[test]
fn hole_12_complete_before_the_discard_is_logged_is_found_without_its_rule() {
    assert!(found_without_its_rule("H12").contains("logged as complete"));
}

/// Every configuration, exhausted, with all rules in: no promise breaks, and each gets to its end.
#[test]
fn nothing_found_with_all_rules() {
    let mut states = 0;
    for scenario in all() {
        let report = explore(&Model::new(scenario.config, &[]), STATES_MAX);
        let name = scenario.name;
        println!("scenario {name}: {} states, {} steps deep", report.states, report.depth);
        if let Some(trace) = report.counterexample {
            panic!("scenario {name}, all rules in force:\n{trace}");
        }
        assert!(report.exhausted, "scenario {name}: more than {STATES_MAX} states");
        assert!(report.finished > 0, "scenario {name}: the scripts never end");
        states += report.states;
    }
    println!("{states} states in all");
}

/// No rule is without a scenario.
#[test]
fn every_rule_has_a_scenario() {
    for rule in Rule::ALL {
        assert!(all().iter().any(|scenario| scenario.rule == rule), "{rule:?} is never taken out");
    }
}
