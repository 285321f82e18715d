//! A power cut at every moment of one run, and one more during recovery.
//!
//! Owns: the enumeration. Promises: the run up to the cut is the same each time (same seed), so
//! each cut meets the state that the recorded run had there; after each the device is brought up,
//! read whole, used a little and stopped. Never: samples where it can enumerate; `most` says how much.

use crate::harness::{Failed, Plan, Subject, run_seed};
use crate::moments::Moments;
use flashlane_base::{Ns, Rng};

/// Cuts `seed` at each of its moments, up to `most` of them; returns how many cuts there were.
/// Every second run is cut again, somewhere in its recovery.
pub fn cut_everywhere(
    stack: &dyn Subject,
    seed: u64,
    plan: &Plan,
    most: usize,
) -> Result<u64, Failed> {
    let moments = Moments::default();
    let recorded = Plan { moments: Some(moments.clone()), lives: Some(1), ..plan.clone() };
    run_seed(stack, seed, &recorded)?;
    let mut cuts = 0;
    for (i, at) in moments.cuts(most).into_iter().enumerate() {
        let mut times = vec![at];
        if i % 2 == 1 {
            // Recovery takes from microseconds to a second; most of it is in the first part.
            let mut rng = Rng::stream(seed, "cuts.second", i as u64);
            let magnitude = 10 + rng.below(20);
            times.push(Ns::from_ns(rng.below(1 << magnitude)));
        }
        cuts += times.len() as u64;
        let plan = Plan { cuts: times, ..plan.clone() };
        run_seed(stack, seed, &plan)?;
    }
    Ok(cuts)
}
