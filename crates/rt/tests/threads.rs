//! What only real threads can get wrong: how a run ends, who waits for a lock.
//!
//! Owns: claims about shutdown, panics and parked cores, and locks that are waited for. Promises: a broken runtime hangs or shows
//! the wrong panic here. Never: measures time.

use flashlane_base::Ns;
use flashlane_rt::{Bell, CoreId, Cx, Idle, Lock, Notify, Port, Threads};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A background task that is ready at every turn (an export that polls its queue) must not keep
/// the run alive once every main task has returned.
#[test]
fn a_task_that_is_always_ready_does_not_keep_the_run_alive() {
    let values = Threads::new(2, 0).run(|cx| async move {
        let cx2 = cx.clone();
        cx.spawn(async move {
            loop {
                cx2.yield_now().await;
            }
        });
        cx.sleep(Ns::from_us(20)).await;
        cx.core().0
    });
    assert_eq!(values, [0, 1]);
}

/// The caller sees the panic of the core that panicked, also when other cores come first in order,
/// still wait, or are busy all the time.
#[test]
fn a_panic_ends_the_run_and_is_the_one_reported() {
    let outcome = catch_unwind(|| {
        Threads::new(4, 0).run(|cx| async move {
            match cx.core().0 {
                0 => cx.sleep(Ns::MAX).await,
                1 => loop {
                    cx.yield_now().await;
                },
                2 => panic!("the cause"),
                _ => {}
            }
        })
    });
    let panic = outcome.expect_err("core 2 panicked");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the cause"));
}

/// A core whose main task ends just when another panics must not bring the count of running cores
/// below zero: the run would never end. Many rounds, since it is a race.
#[test]
fn a_panic_next_to_a_regular_end_does_not_hang() {
    for _ in 0..50 {
        let outcome = catch_unwind(|| {
            Threads::new(3, 0).run(|cx| async move {
                cx.yield_now().await;
                assert!(cx.core().0 != 0, "the cause");
            })
        });
        assert!(outcome.is_err());
    }
}

/// Tasks that still wait when the run ends are dropped, on every core, also after a panic.
#[test]
fn tasks_left_over_are_dropped() {
    for fails in [false, true] {
        let alive = Arc::new(());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            Threads::new(2, 0).run(|cx| {
                let held = alive.clone();
                async move {
                    let cx2 = cx.clone();
                    cx.spawn(async move {
                        cx2.sleep(Ns::MAX).await;
                        drop(held);
                    });
                    cx.yield_now().await;
                    assert!(!(fails && cx.core().0 == 1), "as asked");
                }
            })
        }));
        assert_eq!(outcome.is_err(), fails);
        assert_eq!(Arc::strong_count(&alive), 1, "a task outlived its run");
    }
}

/// A core that has gone to sleep in the kernel hears of a change on another core: rounds far enough
/// apart that it parks each time.
#[test]
fn a_parked_core_hears_a_wake_up() {
    let state = Arc::new((AtomicU64::new(0), Notify::new()));
    Threads::new(2, 0).run(|cx| {
        let state = state.clone();
        async move {
            for round in 1..=20 {
                if cx.core().0 == 0 {
                    cx.sleep(Ns::from_us(300)).await;
                    state.0.store(round, Ordering::SeqCst);
                    state.1.wake(&cx);
                } else {
                    let came = || state.0.load(Ordering::SeqCst) >= round;
                    state.1.wait(&cx, came).await;
                }
            }
        }
    });
}

/// One core that is the calling thread: nothing need be `Send`, timers pass in real time, and a run in which nothing
/// can go on says so, unless a port helps or waits for somebody.
#[test]
fn a_core_may_be_the_calling_thread() {
    struct Helper(Rc<(Cell<u32>, Notify)>, Vec<Idle>);
    impl Port for Helper {
        fn serve(&mut self, cx: &Cx) {
            self.0.0.set(self.0.0.get() + 1);
            self.0.1.wake(cx);
        }
        fn bound(&self) -> Ns {
            Ns::MAX
        }
        fn idle(&mut self, cx: &Cx) -> Idle {
            let said = self.1.pop().unwrap_or(Idle::Stalled);
            if said == Idle::Changed {
                self.serve(cx);
            }
            said
        }
    }
    let here = std::thread::current().id();
    let value = Threads::new(1, 7).run_here(|cx| async move {
        let began = cx.now();
        cx.sleep(Ns::from_us(300)).await;
        assert!(cx.now() >= began + Ns::from_us(300) && !cx.is_virtual());
        (Rc::new(5), std::thread::current().id(), cx.core(), cx.cores())
    });
    assert_eq!(value, Ok((Rc::new(5), here, CoreId(0), 1)));
    let run = |wanted: u32, says: Vec<Idle>| {
        Threads::new(1, 7).run_here(|cx| async move {
            // Who looks after something in idle time keeps no run alive.
            let (idle, never) = (cx.clone(), Notify::new());
            cx.spawn(async move {
                idle.arm_idle(Ns::from_secs(3600));
                never.wait(&idle, || false).await;
            });
            let (seen, bell) = (Rc::new((Cell::new(0), Notify::new())), Bell::default());
            let waits = says.contains(&Idle::Waits);
            let open = cx.open_port(&bell, Helper(seen.clone(), says));
            let ringer = waits.then(|| {
                std::thread::spawn(move || {
                    #[allow(clippy::disallowed_methods)] // so that the core waits for it
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    bell.ring();
                })
            });
            seen.1.wait(&cx, || seen.0.get() == wanted).await;
            drop(open);
            ringer.map(|ringer| ringer.join().expect("no panic"))
        })
    };
    let stalled = run(1, vec![]).expect_err("nobody helps");
    assert_eq!((stalled.seed, stalled.tasks), (7, 2));
    assert_eq!(run(2, vec![Idle::Changed; 2]), Ok(None));
    assert!(run(3, vec![Idle::Changed; 2]).is_err(), "it helps twice");
    assert_eq!(run(1, vec![Idle::Waits; 100]), Ok(Some(())));
}

/// Other cores do what they are sent, whose futures are made there, until the first one's main task has ended.
#[test]
fn other_cores_do_what_they_are_sent() {
    let here = std::thread::current().id();
    let ran = Threads::new(3, 7).run_here(|cx| async move {
        let not_send = Rc::new(1);
        let mut all = Vec::new();
        for core in (0..3).map(CoreId) {
            all.push(cx.spawn_join_on(core, move |cx| async move {
                let local = Rc::new(cx.core());
                cx.sleep(Ns::from_us(200)).await;
                (*local, std::thread::current().id())
            }));
        }
        // Never done, and no reason to go on.
        cx.spawn_on(CoreId(1), |cx| async move { cx.sleep(Ns::MAX).await });
        let mut ran = Vec::new();
        for one in all {
            ran.push(one.await);
        }
        let late = cx.lateness();
        assert!(late.timers() >= 3 && late.quantile(0.5) <= Some(late.most), "{late:?}");
        cx.pin_cores().await.map_or_else(|e| assert!(e.to_string().contains("3 cores")), drop);
        (ran, not_send)
    });
    let (ran, _) = ran.expect("it does not stall");
    assert_eq!(ran.iter().map(|(core, _)| core.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(ran[0].1, here, "the first core is this thread");
    let threads: BTreeSet<String> = ran.iter().map(|(_, thread)| format!("{thread:?}")).collect();
    assert_eq!(threads.len(), 3);
}

#[test]
fn a_panic_of_another_core_ends_the_run() {
    let ended = std::panic::catch_unwind(|| {
        Threads::new(2, 0).run_here(|cx| async move {
            cx.spawn_on(CoreId(1), |_| async { panic!("on the other core") });
            cx.sleep(Ns::MAX).await;
        })
    });
    let panic = ended.expect_err("it panicked");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on the other core"));
}

/// Futures never migrate, so they need not be `Send`.
#[test]
fn a_task_may_hold_what_is_not_send() {
    let values = Threads::new(2, 0).run(|cx| async move {
        let shared = Rc::new(5u32);
        let theirs = shared.clone();
        let cx2 = cx.clone();
        let join = cx.spawn_join(async move {
            cx2.yield_now().await;
            *theirs
        });
        join.await + *shared
    });
    assert_eq!(values, [10, 10]);
}

/// Who finds a lock taken counts that, and how long it took; who is alone counts nothing but that it was there.
#[test]
fn a_lock_that_was_waited_for_says_so() {
    let lock = Arc::new(Lock::new(0u64));
    let coming = Arc::new(AtomicU64::new(0));
    for _ in 0..100 {
        lock.enter(|n| *n += 1);
    }
    let alone = lock.stats();
    assert_eq!((alone.acquired, alone.contended, alone.spun), (100, 0, Ns::ZERO));
    Threads::new(2, 1).run(|cx| {
        let (lock, coming) = (lock.clone(), coming.clone());
        async move {
            // Until it was seen: the other may be kept from its turn at any moment.
            while lock.stats().contended == 0 {
                match cx.core() {
                    CoreId(0) => lock.enter(|_| {
                        let from = (coming.load(Ordering::SeqCst), cx.now());
                        while coming.load(Ordering::SeqCst) == from.0
                            && cx.now() - from.1 < Ns::from_ms(20)
                        {
                            std::hint::spin_loop();
                        }
                        let until = cx.now() + Ns::from_us(50);
                        while cx.now() < until {
                            std::hint::spin_loop();
                        }
                    }),
                    _ => {
                        coming.fetch_add(1, Ordering::SeqCst);
                        lock.enter(|n| *n += 1);
                    }
                }
            }
        }
    });
    let fought = lock.stats();
    assert!(fought.contended > 0 && fought.spun > Ns::ZERO, "{fought:?}");
    assert!(fought.contended <= fought.acquired - 100, "{fought:?}");
}
