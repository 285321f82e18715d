//! One set of claims, two clocks: every body here runs under [`Virtual`] and under [`Threads`].
//!
//! Owns: what a layer may rely on whatever drives it: timers, joins, credits, conditions, locks,
//! wake-ups across cores. Promises: a body sees only `Cx`, so it can't tell which clock it has.
//! Never: is gated by real time; a slow machine makes these tests slow, not red.
//!
//! Replay: `cargo test -p flashlane-rt --test conformance <name>`; virtual runs try [`SEEDS`] seeds
//! and say which one failed.

use flashlane_base::{Ns, Rng};
use flashlane_rt::{CoreId, CostTable, Credits, Cx, Lock, Notify, Threads, Virtual, Waiter};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Poll};

const CORES: u32 = 4;
const SEEDS: u64 = 20;

/// A clock to run a body under.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Virtual(u64),
    Threads,
}

impl Clock {
    /// Runs `main` once on each of `cores` cores; what each returned, in core order.
    fn run<T, F, Fut>(self, cores: u32, main: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Cx) -> Fut + Send + Sync,
        Fut: Future<Output = T> + 'static,
    {
        match self {
            Clock::Threads => Threads::new(cores, 7).run(main),
            Clock::Virtual(seed) => {
                let run = Virtual::new(cores, seed, CostTable::zero());
                let cx = run.cx();
                let each: Vec<_> = (0..cores)
                    .map(|c| (cx.on_core(CoreId(c)), main(cx.on_core(CoreId(c)))))
                    .collect();
                let all = async move {
                    let joins: Vec<_> = each.into_iter().map(|(cx, f)| cx.spawn_join(f)).collect();
                    let mut out = Vec::new();
                    for join in joins {
                        out.push(join.await);
                    }
                    out
                };
                run.run(all).unwrap_or_else(|stalled| panic!("{stalled}"))
            }
        }
    }
}

/// A claim `name` about a body, checked under both clocks.
macro_rules! under_both_clocks {
    ($($(#[$doc:meta])* $name:ident($clock:ident) $body:block)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::*;
            fn body($clock: Clock) $body
            #[test]
            fn virtual_time() {
                for seed in 0..SEEDS {
                    eprintln!("seed {seed}");
                    body(Clock::Virtual(seed));
                }
            }
            #[test]
            fn threads() {
                body(Clock::Threads);
            }
        }
    )*};
}

mod outside;

/// Yields until `done` holds.
async fn until(cx: &Cx, mut done: impl FnMut() -> bool) {
    while !done() {
        cx.yield_now().await;
    }
}

under_both_clocks! {
    /// 64 sleeps per core of random length: none ends before its time.
    timers_never_fire_early(clock) {
        clock.run(CORES, |cx| async move {
            let mut rng = cx.stream("spans");
            for _ in 0..64 {
                let at = cx.now() + Ns::from_ns(rng.below(200_000));
                cx.sleep_until(at).await;
                assert!(cx.now() >= at, "woken at {} for {at}", cx.now());
            }
        });
    }

    /// Tasks that sleep to different times go on in the order of those times, whatever the order
    /// in which they were spawned.
    sleepers_wake_in_the_order_of_their_times(clock) {
        clock.run(2, |cx| async move {
            let mut ranks: Vec<u64> = (0..32).collect();
            cx.stream("ranks").shuffle(&mut ranks);
            let order = Rc::new(RefCell::new(Vec::new()));
            let late = Rc::new(Cell::new(true));
            let mut lead = Ns::from_us(200);
            // A machine that was elsewhere until the times had passed says nothing: once more, with
            // more time to get there.
            while late.replace(false) {
                order.borrow_mut().clear();
                let base = cx.now() + lead;
                lead = lead.times(4);
                let joins: Vec<_> = ranks.iter().copied().map(|rank| {
                    let (cx2, order, late) = (cx.clone(), order.clone(), late.clone());
                    cx.spawn_join(async move {
                        late.set(late.get() || cx2.now() >= base);
                        cx2.sleep_until(base + Ns::from_us(rank)).await;
                        order.borrow_mut().push(rank);
                    })
                }).collect();
                for join in joins {
                    join.await;
                }
            }
            assert_eq!(*order.borrow(), (0..32).collect::<Vec<_>>());
        });
    }

    /// A join gives the task's value whether the task ended before or after the join was awaited.
    a_join_returns_what_the_task_returned(clock) {
        let sums = clock.run(CORES, |cx| async move {
            let early = cx.spawn_join(async { 1u64 });
            let (cx2, cx3) = (cx.clone(), cx.clone());
            let late = cx.spawn_join(async move {
                cx2.sleep(Ns::from_us(50)).await;
                let inner = cx2.spawn_join(async move {
                    cx3.yield_now().await;
                    10u64
                });
                inner.await + 100
            });
            cx.sleep(Ns::from_us(10)).await;
            early.await + late.await
        });
        assert_eq!(sums, vec![111; CORES as usize]);
    }

    /// The clock never goes back within a core, across any mix of waits.
    time_never_goes_back(clock) {
        clock.run(CORES, |cx| async move {
            let mut rng = cx.stream("mix");
            let mut last = cx.now();
            for _ in 0..200 {
                match rng.below(3) {
                    0 => cx.yield_now().await,
                    1 => cx.sleep(Ns::from_ns(rng.below(2_000))).await,
                    _ => cx.cpu(Ns::from_ns(rng.below(500))).await,
                }
                assert!(cx.now() >= last);
                last = cx.now();
            }
        });
    }

    /// Requests of 1..=4 credits are served strictly in the order of their arrival: a large one at
    /// the head is not overtaken by a small one that would fit.
    credits_are_granted_first_come_first_served(clock) {
        clock.run(1, |cx| async move {
            let credits = Rc::new(Credits::new(0));
            let order = Rc::new(RefCell::new(Vec::new()));
            let wants = [3u64, 1, 4, 1, 1, 2, 4, 3];
            for (i, want) in wants.into_iter().enumerate() {
                let (cx2, credits2, order) = (cx.clone(), credits.clone(), order.clone());
                cx.spawn(async move {
                    credits2.acquire(&cx2, want).await;
                    order.borrow_mut().push(i);
                });
                until(&cx, || credits.waiting() == i + 1).await;
            }
            assert!(!credits.try_acquire(0), "nobody overtakes those who wait");
            let mut given = 0;
            for served in 1..=wants.len() {
                let want = wants[served - 1];
                for i in 0..want {
                    credits.release(&cx, 1);
                    given += 1;
                    let partly = i + 1 < want;
                    assert_eq!(credits.free(), if partly { i + 1 } else { 0 }, "all or nothing");
                }
                until(&cx, || order.borrow().len() == served).await;
            }
            assert_eq!(*order.borrow(), (0..wants.len()).collect::<Vec<_>>());
            assert_eq!(given, wants.iter().sum::<u64>());
        });
    }

    /// 4 cores × 8 tasks × 40 rounds on 10 credits: never more than 10 in use, all back at last.
    credits_are_conserved_under_contention(clock) {
        const TOTAL: u64 = 10;
        let (credits, used) = (Arc::new(Credits::new(TOTAL)), Arc::new(AtomicU64::new(0)));
        let (c, u) = (credits.clone(), used.clone());
        clock.run(CORES, move |cx| {
            let (credits, used) = (c.clone(), u.clone());
            async move {
                let joins: Vec<_> = (0..8).map(|task| {
                    let (cx2, credits, used) = (cx.clone(), credits.clone(), used.clone());
                    cx.spawn_join(async move {
                        let mut rng = Rng::stream(task, "want", cx2.core().0 as u64);
                        for _ in 0..40 {
                            let n = rng.below(TOTAL) + 1;
                            credits.acquire(&cx2, n).await;
                            let now = used.fetch_add(n, Ordering::SeqCst) + n;
                            assert!(now <= TOTAL, "{now} of {TOTAL} credits in use");
                            match rng.below(3) {
                                0 => cx2.yield_now().await,
                                1 => cx2.sleep(Ns::from_us(1)).await,
                                _ => {}
                            }
                            used.fetch_sub(n, Ordering::SeqCst);
                            credits.release(&cx2, n);
                        }
                    })
                }).collect();
                for join in joins {
                    join.await;
                }
            }
        });
        assert_eq!((credits.free(), credits.waiting()), (TOTAL, 0));
    }

    /// Waiting for credits can be given up: nothing leaks and nobody behind is stuck, whether the
    /// request still waited or had just been granted.
    an_abandoned_request_leaks_no_credit(clock) {
        clock.run(1, |cx| async move {
            for granted_first in [false, true] {
                let credits = Rc::new(Credits::new(1));
                let mut given_up = Box::pin({
                    let (cx2, credits) = (cx.clone(), credits.clone());
                    async move { credits.acquire(&cx2, 2).await }
                });
                poll_once(given_up.as_mut()).await;
                let (cx2, credits2) = (cx.clone(), credits.clone());
                let behind = cx.spawn_join(async move { credits2.acquire(&cx2, 1).await });
                until(&cx, || credits.waiting() == 2).await;
                if granted_first {
                    credits.release(&cx, 1);
                    assert_eq!((credits.free(), credits.waiting()), (0, 1));
                }
                drop(given_up);
                // Said before anybody waits: who waits for a credit that is lost waits for ever.
                let left = (granted_first as u64, 0);
                assert_eq!((credits.free(), credits.waiting()), left, "it is behind's turn");
                behind.await;
                assert_eq!((credits.free(), credits.waiting()), left);
            }
        });
    }

    /// A token goes round all cores 500 times; each hand-over is one change and one wake-up, and a
    /// lost one would hang (a stall under virtual time).
    no_wake_up_is_lost_between_cores(clock) {
        let state = Arc::new((AtomicU64::new(0), Notify::new()));
        let s = state.clone();
        clock.run(CORES, move |cx| {
            let state = s.clone();
            async move {
                let (turn, notify) = &*state;
                let me = cx.core().0 as u64;
                for round in 0..500 {
                    let mine = round * CORES as u64 + me;
                    notify.wait(&cx, || turn.load(Ordering::SeqCst) == mine).await;
                    turn.store(mine + 1, Ordering::SeqCst);
                    notify.wake(&cx);
                }
            }
        });
        assert_eq!(state.0.load(Ordering::SeqCst), 500 * CORES as u64);
    }

    /// Many producers, many consumers, one condition: every item is taken exactly once.
    every_waiter_of_a_condition_gets_its_turn(clock) {
        const ITEMS: u64 = 400;
        let state = Arc::new((Mutex::new(0u64), Notify::new(), AtomicU64::new(0)));
        let s = state.clone();
        clock.run(CORES, move |cx| {
            let state = s.clone();
            async move {
                let consumer = cx.core().0.is_multiple_of(2);
                let joins: Vec<_> = (0..4).map(|_| {
                    let (cx2, state) = (cx.clone(), state.clone());
                    cx.spawn_join(async move {
                        for i in 0..ITEMS / 8 {
                            if consumer {
                                take_item(&cx2, &state).await;
                            } else {
                                *state.0.lock().expect("no panic") += 1;
                                state.1.wake(&cx2);
                                if i % 16 == 0 {
                                    cx2.sleep(Ns::from_us(2)).await;
                                }
                            }
                        }
                    })
                }).collect();
                for join in joins {
                    join.await;
                }
            }
        });
        assert_eq!(*state.0.lock().expect("no panic"), 0);
        assert_eq!(state.2.load(Ordering::SeqCst), ITEMS);
    }

    /// Sections under one lock never overlap, and what a task wrote it reads next time.
    a_lock_excludes_and_keeps_what_was_written(clock) {
        let lock = Arc::new(Lock::new(vec![0u64; CORES as usize]));
        let inside = Arc::new(AtomicBool::new(false));
        let (l, i) = (lock.clone(), inside.clone());
        clock.run(CORES, move |cx| {
            let (lock, inside) = (l.clone(), i.clone());
            async move {
                let me = cx.core().0 as usize;
                for round in 0..300u64 {
                    let cost = Ns::from_ns(round % 3 * 50);
                    let before = lock.with(&cx, cost, |v| {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two tasks in one section");
                        v[me] += 1;
                        inside.store(false, Ordering::SeqCst);
                        v[me] - 1
                    }).await;
                    assert_eq!(before, round, "core {me} lost a write of its own");
                }
            }
        });
        assert_eq!(lock.now(|v| v.clone()), vec![300; CORES as usize]);
        assert_eq!(lock.stats().acquired, 300 * CORES as u64);
    }

    /// A bare wake-up reaches a task that waits on another core, whatever it waits for.
    a_task_can_be_woken_from_any_core(clock) {
        let slots: Arc<Vec<Mailbox>> = Arc::new((0..CORES).map(|_| Mailbox::default()).collect());
        let s = slots.clone();
        clock.run(CORES, move |cx| {
            let slots = s.clone();
            async move {
                let me = cx.core().0 as usize;
                let next = (me + 1) % CORES as usize;
                for round in 1..=300 {
                    slots[next].post(&cx, round).await;
                    Letter { cx: &cx, at: &slots[me], want: round }.await;
                }
            }
        });
    }

    /// A slot is reused while wake-ups of its last owner are still under way: the new owner is at
    /// worst polled in vain; it never wakes early and never loses a wake-up of its own.
    a_late_wake_up_does_no_harm_to_the_next_owner_of_a_slot(clock) {
        clock.run(2, |cx| async move {
            let notify = Rc::new(Notify::new());
            for round in 0..100u64 {
                let (cx2, n2) = (cx.clone(), notify.clone());
                let polls = Cell::new(0);
                let first = cx.spawn_join(async move {
                    // Registers, is ready at the second look, ends: its entry stays behind.
                    n2.wait(&cx2, || polls.replace(polls.get() + 1) > 0).await;
                    cx2.wake(cx2.waiter()); // woken in its last poll
                });
                first.await;
                let (cx2, flag) = (cx.clone(), Rc::new(Cell::new(false)));
                let (f2, n2) = (flag.clone(), notify.clone());
                let second = cx.spawn_join(async move {
                    let at = cx2.now() + Ns::from_us(round % 5);
                    cx2.sleep_until(at).await;
                    assert!(cx2.now() >= at);
                    n2.wait(&cx2, || f2.get()).await;
                });
                notify.wake(&cx);
                cx.sleep(Ns::from_us(round % 7)).await;
                flag.set(true);
                notify.wake(&cx);
                second.await;
            }
        });
    }

    /// Each core has its own random streams, the same under both clocks.
    streams_depend_on_seed_name_and_core_only(clock) {
        static FIRST: OnceLock<Vec<u64>> = OnceLock::new();
        let clock = match clock {
            Clock::Virtual(_) => Clock::Virtual(7),
            threads => threads,
        };
        let drawn = clock.run(CORES, |cx| async move { cx.stream("x").next_u64() });
        assert_eq!(FIRST.get_or_init(|| drawn.clone()), &drawn);
        let distinct: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert_eq!(distinct.len(), CORES as usize);
    }
}

async fn take_item(cx: &Cx, state: &(Mutex<u64>, Notify, AtomicU64)) {
    let (items, notify, taken) = state;
    let take = || {
        let mut items = items.lock().expect("no panic");
        let some = *items > 0;
        *items -= some as u64;
        some
    };
    notify.wait(cx, take).await;
    taken.fetch_add(1, Ordering::SeqCst);
}

/// Polls a future once and leaves it where it got to.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) {
    std::future::poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// A place for one number and who waits for it: the smallest user of [`Waiter`].
#[derive(Default)]
struct Mailbox {
    state: Mutex<(u64, Option<Waiter>)>,
}

impl Mailbox {
    async fn post(&self, cx: &Cx, value: u64) {
        let waiter = {
            let mut state = self.state.lock().expect("no panic");
            state.0 = value;
            state.1.take()
        };
        if let Some(w) = waiter {
            cx.wake(w);
        }
    }
}

struct Letter<'a> {
    cx: &'a Cx,
    at: &'a Mailbox,
    want: u64,
}

impl Future for Letter<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let mut state = self.at.state.lock().expect("no panic");
        if state.0 >= self.want {
            return Poll::Ready(());
        }
        state.1 = Some(self.cx.waiter());
        Poll::Pending
    }
}
