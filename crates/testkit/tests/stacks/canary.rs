//! Every harness notices every way to cheat.
//!
//! Owns: the proof that a green swarm means something. Promises: for each stack of the table and
//! each cheat, one request of a seeded run is sabotaged and the run must fail. Never: accepts a
//! miss of a sabotage that had a witness.

use flashlane_base::Rng;
use flashlane_ftl::block::BlockDev;
use flashlane_testkit::canary::{CHEATS, Canary, Cheat};
use flashlane_testkit::stacks::STACKS;
use flashlane_testkit::{Done, Plan, Stack, run_seed};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Runs `seed` with a canary on top; the canary, and what the harness found if the run was good.
fn run(
    stack: &Stack,
    seed: u64,
    cheat: Option<(Cheat, u64)>,
    cut: bool,
) -> (Arc<Canary>, Option<Done>) {
    let kept: Rc<RefCell<Option<Arc<Canary>>>> = Rc::default();
    let keep = kept.clone();
    let wrap = move |inner: Arc<dyn BlockDev>| -> Arc<dyn BlockDev> {
        let canary = Arc::new(match cheat {
            Some((cheat, index)) => Canary::cheating(inner, cheat, index),
            None => Canary::scout(inner),
        });
        *keep.borrow_mut() = Some(canary.clone());
        canary
    };
    let plan = Plan { effort: 20, wrap: Some(Rc::new(wrap)), cut_at_end: cut, ..Plan::default() };
    let result = run_seed(stack, seed, &plan);
    let canary = kept.take().expect("the stack came up");
    match result {
        Ok(done) => (canary, Some(done)),
        Err(failed) => {
            assert!(cheat.is_some(), "an honest run: {failed}");
            (canary, None)
        }
    }
}

/// Sabotages one witnessed request of `seed`; `None` when the seed has none for this cheat, or the
/// cheat moved the times so that nobody looked any more.
fn is_caught(stack: &Stack, seed: u64, cheat: Cheat) -> Option<()> {
    let cut = cheat == Cheat::LoseFlush;
    let (scout, honest) = run(stack, seed, None, cut);
    // Nobody misses a flush where acknowledged is durable.
    honest.filter(|done| !cut || !done.durable_acks)?;
    let candidates = scout.witnessed(cheat);
    let mut rng = Rng::stream(seed, "canary", cheat as u64);
    for _ in 0..4 {
        let index = *candidates.get(rng.below(candidates.len().max(1) as u64) as usize)?;
        let (canary, good) = run(stack, seed, Some((cheat, index)), cut);
        if good.is_none() {
            return Some(());
        }
        let witnessed = canary.has_cheated() && canary.witnessed(cheat).contains(&index);
        let name = stack.name;
        assert!(!witnessed, "{name}, seed {seed}: {cheat:?} at request {index} went unnoticed");
    }
    None
}

/// Seeds of a stack until enough sabotages of each kind were caught.
#[test]
fn every_way_to_cheat_is_noticed_on_every_stack() {
    for stack in STACKS.iter().filter(|s| !s.name.contains("faults")) {
        let alone = Stack { lives: 1, ..*stack };
        // The reference is fast; on the others it is the harness that is tested, not the stack.
        let enough = if stack.name == "ram" { 8 } else { 2 };
        for cheat in CHEATS {
            // A lost flush shows only when the power goes, and the medium keeps no more than it must:
            // what a layer had programmed by then is there, flushed or not.
            if cheat == Cheat::LoseFlush && stack.name != "ram" {
                continue;
            }
            // The cut after a lost flush keeps no more than it must at seeds divisible by three.
            let seeds = (0..120).step_by(if cheat == Cheat::LoseFlush { 3 } else { 1 });
            let caught =
                seeds.filter_map(|seed| is_caught(&alone, seed, cheat)).take(enough).count();
            assert_eq!(caught, enough, "{}: {cheat:?} was hardly ever possible", stack.name);
        }
    }
}
