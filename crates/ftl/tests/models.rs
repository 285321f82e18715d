//! Runs the models of `src/log/models.rs` under loom (`make models`).

use flashlane_ftl::log::models;

#[test]
fn a_slot_is_not_used_again_under_a_section() {
    models::a_slot_is_not_used_again_under_a_section();
}

#[test]
fn a_release_against_a_write_invalidates_once() {
    models::a_release_against_a_write_invalidates_once();
}

#[test]
fn what_is_below_a_slot_goes_up_to_the_newest() {
    models::what_is_below_a_slot_goes_up_to_the_newest();
}

#[test]
fn a_slot_is_taken_or_killed() {
    models::a_slot_is_taken_or_killed();
}

#[test]
fn what_is_below_a_slot_is_passed_on() {
    models::what_is_below_a_slot_is_passed_on();
}

#[test]
fn what_is_below_is_not_noted_at_a_slot_that_is_used_again() {
    models::what_is_below_is_not_noted_at_a_slot_that_is_used_again();
}

#[test]
fn nothing_is_dropped_for_what_a_flush_does_not_wait_for() {
    models::nothing_is_dropped_for_what_a_flush_does_not_wait_for();
}

#[test]
fn a_change_is_copied_or_marked() {
    models::a_change_is_copied_or_marked();
}
