//! The model of the host's CPUs: threads that share cores, locks that burn them, and the account.
//!
//! Owns: laws of the model against closed forms. Promises: exact times; no timed test.
//! Never: tests one primitive by itself (`virtual_time.rs` does).

use flashlane_base::{Ns, Rng};
use flashlane_rt::{CoreId, CoreTime, CostTable, Cx, Lock, Virtual};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const fn us(n: u64) -> Ns {
    Ns::from_us(n)
}

fn table(handoff_ns: u64) -> CostTable {
    let text = format!("name = \"t\"\nhandoff_per_waiter = \"{handoff_ns}ns\"");
    CostTable::from_toml(&text).expect("a table")
}

/// What became of threads that work and take a lock in turn.
struct Hammered {
    run: Virtual,
    lock: Rc<Lock<()>>,
    /// Rounds of each thread.
    rounds: Vec<u64>,
}

impl Hammered {
    fn total(&self) -> u64 {
        self.rounds.iter().sum()
    }
}

/// `threads` threads on `cores` cores: `outside` of work, then `inside` under one lock, for `span`.
/// `look` is called at drawn moments.
fn hammer(
    threads: u32,
    cores: u32,
    handoff_ns: u64,
    (outside, inside): (Ns, Ns),
    span: Ns,
    look: impl Fn(&Cx) + 'static,
) -> Hammered {
    let run = Virtual::new(cores, 9, table(handoff_ns));
    let (cx, lock) = (run.cx(), Rc::new(Lock::new(())));
    let rounds: Rc<RefCell<Vec<u64>>> = Rc::new(RefCell::new(vec![0; threads as usize]));
    let (theirs, counts) = (lock.clone(), rounds.clone());
    let main = async move {
        for thread in 0..threads {
            let (cx, lock, counts) =
                (cx.on_core(CoreId(thread % cores)), theirs.clone(), counts.clone());
            cx.clone().spawn(async move {
                loop {
                    cx.cpu(outside).await;
                    lock.with(&cx, inside, |()| ()).await;
                    counts.borrow_mut()[thread as usize] += 1;
                }
            });
        }
        let mut rng = Rng::stream(1, "looks", 0);
        while cx.now() < span {
            let step = Ns::from_ns(1 + rng.below(20_000));
            cx.sleep_until((cx.now() + step).min(span)).await;
            look(&cx);
        }
    };
    run.run(main).expect("no stall");
    let rounds = rounds.borrow().clone();
    Hammered { run, lock, rounds }
}

/// A closed system: of n threads n - x·w are at the lock, x being the rate, and a section takes
/// s + h·(those ahead). So x·(s + h·(n - 1 - x·w)) = 1 once the lock is always taken.
#[test]
fn a_contended_lock_passes_what_the_closed_form_says() {
    let (w, s, span) = (9.0, 1.0, us(20_000));
    for (n, h) in [(12, 0), (32, 0), (12, 20), (16, 50), (24, 50), (32, 50), (32, 100)] {
        let found = hammer(n, n, h, (us(9), us(1)), span, |_| ());
        let rate = found.total() as f64 / 20_000.0;
        let (n, h) = (n as f64, h as f64 / 1e3);
        // h·w·x² - (s + h·(n - 1))·x + 1 = 0, of which the smaller root.
        let b = s + h * (n - 1.0);
        let expected =
            if h == 0.0 { 1.0 / s } else { (b - (b * b - 4.0 * h * w).sqrt()) / (2.0 * h * w) };
        assert!(
            (rate / expected - 1.0).abs() < 0.02,
            "{n} threads, {h} us: {rate}, not {expected}"
        );
    }
}

/// Adding threads that only spin makes the lock pass less; where a hand-over is free, as much.
#[test]
fn more_waiters_lower_the_rate_only_where_a_hand_over_costs() {
    let rate = |n, h| hammer(n, n, h, (us(9), us(1)), us(5_000), |_| ()).total() as i64;
    assert!((rate(12, 0) - rate(32, 0)).abs() < 50, "{} and {}", rate(12, 0), rate(32, 0));
    let falling = [12, 16, 24, 32].map(|n| rate(n, 50));
    assert!(falling.windows(2).all(|pair| pair[1] * 100 < pair[0] * 95), "{falling:?}");
}

/// 24 threads on 4 cores with one lock: looked at at any moment, no core was busy for longer than
/// there was time, spinning is part of being busy, neither goes back, and at the end what was not
/// spun is exactly the work.
#[test]
fn the_account_of_a_core_is_right_at_any_moment() {
    let last: RefCell<Vec<CoreTime>> = RefCell::new(vec![CoreTime::default(); 4]);
    let looks = Rc::new(Cell::new(0));
    let counted = looks.clone();
    let look = move |cx: &Cx| {
        let now = cx.core_times();
        for (core, (time, before)) in now.iter().zip(last.borrow().iter()).enumerate() {
            assert!(time.busy <= cx.now(), "core {core} was busy {} of {}", time.busy, cx.now());
            assert!(time.spun <= time.busy, "core {core}: {time:?}");
            assert!(time.busy >= before.busy && time.spun >= before.spun, "core {core} went back");
            // Threads enough: from the first work on it never rests.
            assert_eq!(time.busy, cx.now(), "core {core}");
        }
        *last.borrow_mut() = now;
        counted.set(counted.get() + 1);
    };
    let found = hammer(24, 4, 30, (us(3), us(2)), us(3_000), look);
    assert!(looks.get() > 200, "{} looks", looks.get());
    // Charged ahead, core and lock agree; what is done by now is less by what is under way.
    let charged = found.run.core_busy().iter().fold(Ns::ZERO, |sum, core| sum + core.1);
    assert_eq!(found.lock.stats().spun, charged);
    let done = found.run.core_times().iter().fold(Ns::ZERO, |sum, core| sum + core.spun);
    assert!(done <= charged && charged - done < us(4 * 20), "{done} of {charged}");
    // On 4 cores of work in the ratio 3 to 2 the lock is the bottleneck: three spin or work.
    let worked: u64 = found.run.core_times().iter().map(|c| (c.busy - c.spun).as_ns()).sum();
    let rounds = found.total() * 5_000;
    assert!(worked >= rounds && worked <= rounds + 24 * 5_000, "{worked} for {rounds}");
}

/// What a core is charged ahead counts when its time comes: work, then a spin, then a section.
#[test]
fn time_that_is_charged_counts_when_it_has_passed() {
    let run = Virtual::new(2, 1, table(0));
    let cx = run.cx();
    let seen = run.run(async move {
        let (a, b) = (cx.on_core(CoreId(0)), cx.on_core(CoreId(1)));
        let lock = Rc::new(Lock::new(()));
        let held = lock.clone();
        cx.spawn(async move { held.with(&b, us(50), |()| ()).await });
        cx.spawn(async move {
            a.cpu(us(10)).await;
            lock.with(&a, us(5), |()| ()).await;
        });
        let mut seen = Vec::new();
        for at in [4, 10, 30, 50, 53, 55, 70] {
            cx.sleep_until(us(at)).await;
            let time = cx.core_times()[0];
            seen.push((time.busy, time.spun));
        }
        seen
    });
    let expected = [(4, 0), (10, 0), (30, 20), (50, 40), (53, 40), (55, 40), (55, 40)];
    assert_eq!(seen.expect("no stall"), expected.map(|(busy, spun)| (us(busy), us(spun))));
}

/// Threads of one core get on alike, and cores with as many threads too.
#[test]
fn threads_of_a_core_share_it_fairly() {
    let found = hammer(64, 8, 20, (us(2), us(1)), us(20_000), |_| ());
    let (least, most) = (found.rounds.iter().min(), found.rounds.iter().max());
    let (least, most) = (*least.expect("64"), *most.expect("64"));
    assert!(least > 100 && most <= least + least / 20, "{least} to {most} rounds");
}

/// Interrupts and threads that were just woken go before threads that wait for the core, not before
/// one that spins on it; among themselves they keep their order.
#[test]
fn urgent_work_goes_before_threads_that_wait_for_the_core() {
    let run = Virtual::new(2, 3, table(0));
    let cx = run.cx();
    let log: Rc<RefCell<Vec<(Ns, &str)>>> = Rc::default();
    let theirs = log.clone();
    let main = async move {
        let (a, b) = (cx.on_core(CoreId(0)), cx.on_core(CoreId(1)));
        let lock = Rc::new(Lock::new(()));
        let held = lock.clone();
        b.clone().spawn(async move { held.with(&b, us(30), |()| ()).await });
        let mut joins = Vec::new();
        for (at, what) in [(1, "spins"), (2, "waits"), (3, "first"), (4, "second"), (5, "last")] {
            let (a, lock, log) = (a.clone(), lock.clone(), theirs.clone());
            joins.push(cx.spawn_join(async move {
                a.sleep_until(us(at)).await;
                match what {
                    "spins" | "waits" => lock.with(&a, us(2), |()| ()).await,
                    "last" => a.cpu(us(10)).await,
                    _ => a.clone().urgent().cpu(us(10)).await,
                }
                log.borrow_mut().push((a.now(), what));
            }));
        }
        for join in joins {
            join.await;
        }
    };
    run.run(main).expect("no stall");
    let expected = [(32, "spins"), (42, "first"), (52, "second"), (54, "waits"), (64, "last")];
    assert_eq!(*log.borrow(), expected.map(|(at, what)| (us(at), what)));
}

/// The same for a section under a lock: its turn comes before that of threads.
#[test]
fn an_urgent_section_gets_the_core_first() {
    let run = Virtual::new(2, 3, table(0));
    let cx = run.cx();
    let log: Rc<RefCell<Vec<&str>>> = Rc::default();
    let theirs = log.clone();
    let main = async move {
        let a = cx.on_core(CoreId(0));
        let (b, lock) = (cx.on_core(CoreId(1)), Rc::new(Lock::new(())));
        let held = lock.clone();
        b.clone().spawn(async move { held.with(&b, us(30), |()| ()).await });
        let mut joins = Vec::new();
        for (at, what) in [(1, "spins"), (2, "waits"), (3, "urgent"), (4, "urgent too")] {
            let cx = if at > 2 { a.clone().urgent() } else { a.clone() };
            let (lock, log) = (lock.clone(), theirs.clone());
            joins.push(a.spawn_join(async move {
                cx.sleep_until(us(at)).await;
                lock.with(&cx, us(2), |()| ()).await;
                log.borrow_mut().push(what);
            }));
        }
        for join in joins {
            join.await;
        }
    };
    run.run(main).expect("no stall");
    assert_eq!(*log.borrow(), ["spins", "urgent", "urgent too", "waits"]);
}

/// A thread that may run anywhere takes the core that has been idle longest, or else the first to
/// come free.
#[test]
fn a_floating_thread_runs_where_there_is_room() {
    let run = Virtual::new(4, 1, table(0));
    let cx = run.cx();
    let found = run.run(async move {
        let mut found = vec![cx.floating().core().0];
        for (core, cost) in [(0, 40), (1, 10), (2, 30)] {
            let cx = cx.on_core(CoreId(core));
            cx.clone().spawn(async move { cx.cpu(us(cost)).await });
        }
        cx.sleep(us(1)).await;
        found.push(cx.floating().core().0); // 3 is idle
        cx.on_core(CoreId(3)).cpu(us(49)).await; // to 50
        found.push(cx.floating().core().0); // 1, idle since 10
        let (c, d) = (cx.on_core(CoreId(1)), cx.on_core(CoreId(2)));
        cx.spawn(async move { c.cpu(us(5)).await });
        cx.spawn(async move { d.cpu(us(50)).await });
        cx.sleep(us(1)).await;
        found.push(cx.floating().core().0); // 0, idle since 40
        let a = cx.on_core(CoreId(0));
        cx.spawn(async move { a.cpu(us(50)).await });
        let b = cx.on_core(CoreId(3));
        cx.spawn(async move { b.cpu(us(50)).await });
        cx.sleep(us(1)).await;
        found.push(cx.floating().core().0); // all are busy, 1 the shortest
        found
    });
    assert_eq!(found.expect("no stall"), [0, 3, 1, 0, 1]);
}

/// Two threads that look for room at one moment find it on two cores, also where threads wait: what
/// the first was given is taken at once.
#[test]
fn floating_threads_spread_over_cores_with_waiting_threads() {
    let run = Virtual::new(3, 1, table(0));
    let cx = run.cx();
    let found = run.run(async move {
        let lock = Rc::new(Lock::new(()));
        // Core 2 holds the lock to 30 and works on; 0 and 1 spin, and a thread more waits on each.
        for (at, core) in [(0, 2), (1, 0), (2, 1), (3, 0), (3, 1)] {
            let (cx, lock) = (cx.on_core(CoreId(core)), lock.clone());
            let inside = if core == 2 { us(30) } else { us(2) };
            cx.clone().spawn(async move {
                cx.sleep_until(us(at)).await;
                lock.with(&cx, inside, |()| ()).await;
            });
        }
        cx.sleep_until(us(4)).await;
        let busy = cx.on_core(CoreId(2));
        cx.spawn(async move { busy.cpu(us(100)).await });
        cx.sleep_until(us(5)).await;
        let first = cx.floating();
        let _work = first.cpu(us(10));
        (first.core().0, cx.floating().core().0)
    });
    assert_eq!(found.expect("no stall"), (0, 1));
}

/// A drain thread on cores that all spin still gets on: it does not wait for the threads that wait.
#[test]
fn a_floating_thread_does_not_starve_among_spinning_ones() {
    let run = Virtual::new(8, 5, table(50));
    let cx = run.cx();
    let units = run.run(async move {
        let lock = Rc::new(Lock::new(()));
        for thread in 0..32 {
            let (cx, lock) = (cx.on_core(CoreId(thread % 8)), lock.clone());
            cx.clone().spawn(async move {
                loop {
                    lock.with(&cx, us(4), |()| ()).await;
                }
            });
        }
        let mut units = 0;
        cx.sleep(us(100)).await;
        while cx.now() < us(10_100) {
            cx.floating().cpu(us(10)).await;
            units += 1;
        }
        units
    });
    // 10 ms are 1000 units of 10 us; it waits for a section, about 4.4 us, each time at most.
    let units = units.expect("no stall");
    assert!((650..=1000).contains(&units), "{units} units");
}
