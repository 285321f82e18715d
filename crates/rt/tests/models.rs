//! The executor and its waits under loom: two cores, all interleavings up to a bound.
//!
//! Owns: no wake-up, ring or job is lost, neither between a condition and its wait nor on the way to a core
//! that goes to sleep. A lost one is a deadlock, which loom reports. Never: measures.
//!
//! Built only with the feature `loom`: `make models` (docs/TESTING.md, "Interleavings").

use flashlane_base::Ns;
use flashlane_rt::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use flashlane_rt::{Bell, Credits, Cx, Gone, Idle, Notify, Port, Remote, Threads};
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

/// What is rung for, the last of it that a port has seen, and whom to wake then.
#[derive(Default)]
struct Seen {
    given: AtomicUsize,
    seen: AtomicUsize,
    changed: Notify,
}

/// Sees it.
struct Sees(Arc<Seen>);

impl Port for Sees {
    fn serve(&mut self, cx: &Cx) {
        let given = self.0.given.load(Ordering::Relaxed);
        self.0.seen.store(given, Ordering::Relaxed);
        self.0.changed.wake(cx);
    }
    fn bound(&self) -> Ns {
        Ns::MAX
    }
    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Stalled
    }
}

impl Seen {
    async fn wait(&self, cx: &Cx, given: usize) {
        self.changed.wait(cx, || self.seen.load(Ordering::Relaxed) >= given).await;
    }

    fn give(&self, bell: &Bell) {
        self.given.fetch_add(1, Ordering::Relaxed);
        bell.ring();
    }
}

/// A thread rings before the port is open, while it is being opened, or when the core sleeps: it is served.
#[test]
fn a_ring_is_not_missed() {
    model(|| {
        Threads::new(1, 1).run(|cx| async move {
            let (bell, seen) = (Bell::default(), Arc::new(Seen::default()));
            let (theirs, rung) = (seen.clone(), bell.clone());
            outside(move || theirs.give(&rung));
            let open = cx.open_port(&bell, Sees(seen.clone()));
            seen.wait(&cx, 1).await;
            drop(open);
        });
    });
}

/// A ring while the port is being served for the one before: it is served once more, and sees what was given then.
#[test]
fn a_ring_during_a_call_leads_to_another() {
    model(|| {
        Threads::new(1, 1).run(|cx| async move {
            let (bell, seen) = (Bell::default(), Arc::new(Seen::default()));
            let open = cx.open_port(&bell, Sees(seen.clone()));
            let theirs = seen.clone();
            outside(move || (0..2).for_each(|_| theirs.give(&bell)));
            seen.wait(&cx, 2).await;
            drop(open);
        });
    });
}

/// A bell rings while its port is closed and another one is opened for it: one of the two is served.
#[test]
fn a_ring_outlives_its_port() {
    model(|| {
        Threads::new(1, 1).run(|cx| async move {
            let (bell, seen) = (Bell::default(), Arc::new(Seen::default()));
            let open = cx.open_port(&bell, Sees(seen.clone()));
            let (theirs, rung) = (seen.clone(), bell.clone());
            outside(move || theirs.give(&rung));
            drop(open);
            let open = cx.open_port(&bell, Sees(seen.clone()));
            seen.wait(&cx, 1).await;
            drop(open);
        });
    });
}

/// A thread sends two jobs to a core that goes to sleep: both are called, in order.
#[test]
fn jobs_wake_their_core_and_keep_their_order() {
    model(|| {
        Threads::new(1, 1).run(|cx| async move {
            let (remote, done) = (cx.remote(), Arc::new((AtomicUsize::new(0), Notify::new())));
            let theirs = done.clone();
            outside(move || {
                for job in 0..2 {
                    let done = theirs.clone();
                    let sent = remote.call(move |cx| {
                        assert_eq!(done.0.fetch_add(1, Ordering::Relaxed), job, "out of order");
                        done.1.wake(cx);
                    });
                    assert_eq!(sent, Ok(()), "the core waits for it");
                }
            });
            done.1.wait(&cx, || done.0.load(Ordering::Relaxed) == 2).await;
        });
    });
}

/// A thread waits for what a task on a core returns: it gets the value. The core waits for the task.
#[test]
fn what_a_task_returns_is_told() {
    model(|| {
        Threads::new(1, 1).run(|cx| async move {
            let (remote, done) = (cx.remote(), Arc::new((AtomicBool::new(false), Notify::new())));
            let theirs = done.clone();
            outside(move || {
                let value = remote.submit(move |cx| async move {
                    theirs.0.store(true, Ordering::Relaxed);
                    theirs.1.wake(&cx);
                    7
                });
                assert_eq!(value.wait(), Ok(7));
            });
            done.1.wait(&cx, || done.0.load(Ordering::Relaxed)).await;
        });
    });
}

/// The same of a task that never ends, on a core that waits for nothing: the thread hears that the run has ended,
/// whether that happens before its task is sent, starts, or waits.
#[test]
fn the_end_of_a_run_is_told() {
    model(|| {
        Threads::new(1, 1).run(|cx| async move {
            let remote = cx.remote();
            outside(move || {
                let value = remote.submit(|cx| async move { cx.sleep(Ns::MAX).await });
                assert_eq!(value.wait(), Err(Gone));
            });
        });
    });
}

/// A thread that is no core's. Loom has it end before a model has.
fn outside(work: impl FnOnce() + 'static) {
    drop(loom::thread::spawn(work));
}

/// One core sends the other a job: it is called, or, once that core has ended, refused or dropped.
#[test]
fn a_job_is_called_or_dropped() {
    model(|| {
        let there = Arc::new((Mutex::new(None::<Remote>), Notify::new()));
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
                        remote.clone_from(&there.0.lock());
                        remote.is_some()
                    };
                    there.1.wait(&cx, has_come).await;
                    let (gone, theirs) = (Dropped(dropped), called.clone());
                    // Whether the run is over by now is what the model tries.
                    let sent = remote.expect("waited for").call(move |_: &Cx| {
                        theirs.fetch_add(1, Ordering::Relaxed);
                        drop(gone);
                    });
                    if sent.is_err() {
                        assert_eq!(called.load(Ordering::Relaxed), 0, "refused, and called");
                    }
                }
            }
        });
        // The handle is kept until here: a job that it leads to is not dropped with it.
        assert!(there.0.lock().is_some());
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
