//! The executor and its waits under loom: two cores, all interleavings up to a bound.
//!
//! Owns: no wake-up, ring or job is lost, neither between a condition and its wait nor on the way to a core
//! that goes to sleep. A lost one is a deadlock, which loom reports. Never: measures.
//!
//! Built only with the feature `loom`: `make models` (docs/TESTING.md, "Interleavings").

use flashlane_base::Ns;
use flashlane_rt::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use flashlane_rt::{Bell, Credits, Cx, Idle, Notify, Port, Threads};
use std::cell::Cell;
use std::rc::Rc;
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

/// What a port wakes when it is served.
struct Wakes(Rc<(Cell<bool>, Notify)>);

impl Port for Wakes {
    fn serve(&mut self, cx: &Cx) {
        self.0.0.set(true);
        self.0.1.wake(cx);
    }
    fn bound(&self) -> Ns {
        Ns::MAX
    }
    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Stalled
    }
}

/// One core rings, before the other has opened the port, while it does, or when it sleeps: it is served.
#[test]
fn a_ring_is_not_missed() {
    model(|| {
        let bell = Bell::default();
        Threads::new(2, 1).run(|cx| {
            let bell = bell.clone();
            async move {
                if cx.core().0 == 0 {
                    bell.ring();
                } else {
                    let served = Rc::new((Cell::new(false), Notify::new()));
                    let open = cx.open_port(&bell, Wakes(served.clone()));
                    served.1.wait(&cx, || served.0.get()).await;
                    drop(open);
                }
            }
        });
    });
}

/// One core sends the other a job: it is called, or, once that core has ended, refused or dropped.
#[test]
fn a_job_is_called_or_dropped() {
    model(|| {
        let there = Arc::new((Mutex::new(None), Notify::new()));
        let (called, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        Threads::new(2, 1).run(|cx| {
            let (there, called, dropped) = (there.clone(), called.clone(), dropped.clone());
            async move {
                if cx.core().0 == 0 {
                    *there.0.lock() = Some(cx.remote());
                    there.1.wake(&cx);
                } else {
                    let mut remote = None;
                    let has_come = || {
                        remote = there.0.lock().take();
                        remote.is_some()
                    };
                    there.1.wait(&cx, has_come).await;
                    let gone = Dropped(dropped);
                    // Whether the run is over by now is what the model tries.
                    let _ = remote.expect("waited for").call(move |_: &Cx| {
                        called.fetch_add(1, Ordering::Relaxed);
                        drop(gone);
                    });
                }
            }
        });
        assert_eq!(
            dropped.load(Ordering::Relaxed),
            1,
            "called: {}",
            called.load(Ordering::Relaxed)
        );
    });
}

/// Counts its end.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
