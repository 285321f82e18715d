//! The executor and its waits under loom: two cores, all interleavings up to a bound.
//!
//! Owns: no wake-up is lost, neither between a condition and its wait nor on the way to a core that goes
//! to sleep. A lost one is a deadlock, which loom reports. Never: measures.
//!
//! Built only with the feature `loom`: `make models` (docs/TESTING.md, "Interleavings").

use flashlane_rt::sync::{AtomicBool, AtomicUsize, Ordering};
use flashlane_rt::{Credits, Notify, Threads};
use std::sync::Arc;

fn model(body: impl Fn() + Send + Sync + 'static) {
    model_of(2, body);
}

fn model_of(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(body);
}

/// One core sets the condition and wakes, the other waits for it.
#[test]
fn a_condition_is_not_missed() {
    model(|| {
        let shared = Arc::new((AtomicBool::new(false), Notify::new()));
        Threads::new(2, 1).run(|cx| {
            let shared = shared.clone();
            async move {
                let (ready, changed) = &*shared;
                if cx.core().0 == 0 {
                    ready.store(true, Ordering::Relaxed);
                    changed.wake(&cx);
                } else {
                    changed.wait(&cx, || ready.load(Ordering::Relaxed)).await;
                }
            }
        });
    });
}

/// Two wake-ups one behind the other, of which the core may find the first before it has been told of it: the
/// second reaches it, too.
#[test]
fn the_second_wake_up_is_not_missed() {
    model_of(4, || {
        let shared = Arc::new((AtomicUsize::new(0), Notify::new()));
        Threads::new(2, 1).run(|cx| {
            let shared = shared.clone();
            async move {
                let (steps, changed) = &*shared;
                let reached =
                    |step| changed.wait(&cx, move || steps.load(Ordering::Relaxed) >= step);
                let step = || {
                    steps.fetch_add(1, Ordering::Relaxed);
                    changed.wake(&cx);
                };
                // The one that waits runs first: a preemption less.
                if cx.core().0 == 1 {
                    step();
                    step();
                    // A core whose main task has ended would wake the other once more.
                    reached(3).await;
                } else {
                    reached(1).await;
                    reached(2).await;
                    step();
                }
            }
        });
    });
}

/// Both cores want the one credit: each gets it, and never both at a time.
#[test]
fn credits_go_round() {
    model(|| {
        let shared = Arc::new((AtomicBool::new(false), Credits::new(1)));
        Threads::new(2, 1).run(|cx| {
            let shared = shared.clone();
            async move {
                let (held, credits) = &*shared;
                credits.acquire(&cx, 1).await;
                assert!(!held.swap(true, Ordering::Relaxed), "two have one credit");
                held.store(false, Ordering::Relaxed);
                credits.release(&cx, 1);
            }
        });
        assert_eq!((shared.1.free(), shared.1.waiting()), (1, 0));
    });
}
