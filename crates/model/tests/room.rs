//! Rule 18: with the engine's margin no victim strands its target; without any part of it one does.
//!
//! `cargo test -p flashlane-model --test room -- --nocapture` prints each trace and the number of states.

use flashlane_model::explore::explore;
use flashlane_model::room::{Margin, Room, Size};

/// Most states any size may have; the largest has 930,437.
const STATES_MAX: usize = 1_500_000;

/// Two rings, two pools, lines of two units, users who flush.
const TWO: Size = Size {
    rings: 2,
    pools: 2,
    unit: 2,
    line: 2,
    ring: 3,
    batch: 2,
    closed: 1,
    flushes: true,
    pairs: 0,
};
const QUIET: Size = Size { flushes: false, ..TWO };
/// Lines of a unit, of which a barrier pads more than one gives back.
const SHORT: Size = Size { line: 1, ..TWO };
/// A unit of three sectors.
const UNEVEN: Size = Size { unit: 3, line: 1, ring: 3, batch: 3, ..TWO };
/// One ring, as pblk has.
const ONE: Size = Size { rings: 1, pools: 1, line: 3, ring: 5, closed: 3, ..TWO };
const MANY: Size = Size { rings: 3, pools: 1, ring: 2, closed: 2, ..TWO };
/// Page pairs that a barrier closes.
const PAIRS: Size = Size { rings: 1, line: 3, ring: 2, pairs: 2, ..TWO };

/// Explores a size by a margin that lacks something, and prints the shortest way to the stranded target.
#[track_caller]
fn strands(size: Size, margin: Margin) {
    let report = explore(&Room { size, margin }, STATES_MAX);
    let trace = report.counterexample.unwrap_or_else(|| panic!("{margin:?} strands nothing"));
    println!("{size:?}, {margin:?}: {} states\n{trace}", report.states);
    assert!(trace.broken.starts_with("stranded"), "{}", trace.broken);
}

/// Every size, exhausted, by the engine's margin: nothing strands, and victims are freed.
#[test]
fn nothing_strands_with_the_engines_margin() {
    for size in [TWO, QUIET, SHORT, UNEVEN, ONE, MANY, PAIRS] {
        let report = explore(&Room { size, margin: Margin::ENGINE }, STATES_MAX);
        println!("{size:?}: {} states, {} steps deep", report.states, report.depth);
        if let Some(trace) = report.counterexample {
            panic!("{size:?}:\n{trace}");
        }
        assert!(report.exhausted && report.finished > 0, "{size:?}: {report:?}");
    }
}

/// A unit less, and the margin is none.
#[test]
fn a_unit_less_strands() {
    strands(TWO, Margin { less: 2, ..Margin::ENGINE });
    strands(SHORT, Margin { less: 2, ..Margin::ENGINE });
}

/// The margin before this model: a unit for each ring, whatever is still to be moved. It strands nothing
/// while nobody flushes, but a flush behind each batch pads more than that.
#[test]
fn a_unit_for_each_ring_strands_where_users_flush() {
    let units = i16::from(TWO.rings * TWO.unit);
    let before =
        Margin { tails: false, batches: false, begun: false, less: -units, ..Margin::ENGINE };
    let report = explore(&Room { size: QUIET, margin: before }, STATES_MAX);
    assert!(report.exhausted, "{report:?}");
    strands(TWO, before);
}

/// Each part of the margin that is not counted strands some size.
#[test]
fn no_part_of_the_margin_can_be_left_out() {
    let all = Margin::ENGINE;
    strands(TWO, Margin { tails: false, ..all });
    strands(TWO, Margin { batches: false, ..all });
    // Batches that are admitted and not in their rings yet: each leaves a tail where a flush comes behind it.
    strands(TWO, Margin { begun: false, ..all });
    strands(TWO, Margin { claims: false, ..all });
    strands(SHORT, Margin { admitted: false, ..all });
    strands(MANY, Margin { admitted: false, ..all });
    strands(PAIRS, Margin { pads: 0, ..all });
    // Each pool asks only whether something of its own is on its way.
    strands(TWO, Margin { all_pools: false, ..all });
    // The lines wait behind a tail that waits for company.
    strands(QUIET, Margin { padded: false, ..all });
}
