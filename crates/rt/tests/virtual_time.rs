//! What virtual time promises beyond the conformance set: repeatability, jumps, priced CPU work.
//!
//! Owns: the claims on which every figure about contention rests (QBLK): cores and locks are
//! timelines, a spinning core is busy, a fair lock plateaus, a contended hand-over makes it fall.
//! Promises: exact times, no tolerances, except where a rate is compared with its bound.
//! Never: runs on real threads.
//!
//! Replay: `cargo test -p flashlane-rt --test virtual_time <name>`.

use flashlane_base::Ns;
use flashlane_rt::{
    Bell, CoreId, CostTable, Credits, Cx, Fingerprint, Idle, Lock, Notify, Port, Virtual,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

fn us(n: u64) -> Ns {
    Ns::from_us(n)
}

/// A run of `cores` cores on a host that costs nothing by itself.
fn run_of(cores: u32, seed: u64) -> Virtual {
    Virtual::new(cores, seed, CostTable::zero())
}

/// What happened when, in the order in which it happened.
type Log<T> = Rc<RefCell<Vec<(Ns, T)>>>;

/// Several tasks of several cores that race for one lock, one condition and the clock.
fn racing_run(seed: u64) -> (Fingerprint, Vec<(Ns, u32)>) {
    let run = run_of(3, seed);
    let cx = run.cx();
    let log: Log<u32> = Rc::default();
    let theirs = log.clone();
    let main = async move {
        let lock = Rc::new(Lock::new(()));
        let joins: Vec<_> = (0..9)
            .map(|i| {
                let (cx, lock, log) = (cx.on_core(CoreId(i % 3)), lock.clone(), theirs.clone());
                cx.clone().spawn_join(async move {
                    let mut rng = cx.stream("pauses");
                    for _ in 0..20 {
                        cx.sleep(us(rng.below(3))).await;
                        lock.with(&cx, us(1), |()| ()).await;
                        log.borrow_mut().push((cx.now(), i));
                    }
                })
            })
            .collect();
        for join in joins {
            join.await;
        }
    };
    run.run(main).expect("no stall");
    let log = log.borrow().clone();
    (run.fingerprint(), log)
}

/// Same seed, same everything; another seed, another order of those that race.
#[test]
fn a_run_is_a_function_of_its_seed() {
    let first: Vec<_> = (0..8).map(racing_run).collect();
    let second: Vec<_> = (0..8).map(racing_run).collect();
    assert_eq!(first, second);
    for i in 1..first.len() {
        assert_ne!(first[0].0, first[i].0, "seed {i} gave the order of seed 0");
        assert_ne!(first[0].1, first[i].1, "seed {i} gave the order of seed 0");
    }
}

/// Where nothing races the seed changes nothing that can be seen.
#[test]
fn without_a_race_the_seed_does_not_matter() {
    let finger = |seed| {
        let run = run_of(1, seed);
        let cx = run.cx();
        let main = async move {
            for i in 0..50 {
                cx.sleep(us(i)).await;
            }
        };
        run.run(main).expect("no stall");
        (run.fingerprint(), run.now())
    };
    assert_eq!(finger(1), finger(2));
}

/// An hour of sleep is one event, and the clock reads exactly what was asked for.
#[test]
fn time_jumps_from_event_to_event() {
    let run = run_of(1, 0);
    let cx = run.cx();
    let hour = Ns::from_secs(3600);
    let woken = run.run(async move {
        cx.sleep(hour).await;
        cx.now()
    });
    assert_eq!(woken, Ok(hour));
    assert_eq!((run.now(), run.polls()), (hour, 2));
}

/// What `cost` on `tasks` tasks, spread over `cores` cores, ends at.
fn all_done(tasks: u32, cores: u32, cost: Ns) -> (Vec<Ns>, Virtual) {
    let run = run_of(cores, 1);
    let cx = run.cx();
    let ends = run.run(async move {
        let joins: Vec<_> = (0..tasks)
            .map(|i| {
                let cx = cx.on_core(CoreId(i % cores));
                cx.clone().spawn_join(async move {
                    cx.cpu(cost).await;
                    cx.now()
                })
            })
            .collect();
        let mut ends = Vec::new();
        for join in joins {
            ends.push(join.await);
        }
        ends.sort();
        ends
    });
    (ends.expect("no stall"), run)
}

/// Work of one core is done one after the other, work of several cores at once.
#[test]
fn cpu_work_serializes_on_a_core_and_overlaps_between_cores() {
    let (ends, run) = all_done(6, 1, us(5));
    assert_eq!(ends, [5, 10, 15, 20, 25, 30].map(us));
    assert_eq!(run.core_busy(), [(us(30), Ns::ZERO)]);
    let (ends, run) = all_done(6, 3, us(5));
    assert_eq!(ends, [5, 5, 5, 10, 10, 10].map(us));
    assert_eq!(run.core_busy(), [(us(10), Ns::ZERO); 3]);
}

/// A task asks for the core at a later time than another: it is served later, whatever is drawn.
#[test]
fn cpu_work_is_done_in_the_order_of_asking() {
    for seed in 0..10 {
        let run = run_of(1, seed);
        let cx = run.cx();
        let log: Log<u64> = Rc::default();
        let theirs = log.clone();
        let main = async move {
            let joins: Vec<_> = (0..8u64)
                .map(|i| {
                    let (cx, log) = (cx.clone(), theirs.clone());
                    cx.clone().spawn_join(async move {
                        cx.sleep(Ns::from_ns(i)).await;
                        cx.cpu(us(1 + i % 3)).await;
                        log.borrow_mut().push((cx.now(), i));
                    })
                })
                .collect();
            for join in joins {
                join.await;
            }
        };
        run.run(main).expect("no stall");
        let order: Vec<u64> = log.borrow().iter().map(|(_, i)| *i).collect();
        assert_eq!(order, (0..8).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// Zero cost takes no time, no turn on a busy core, no poll.
#[test]
fn cost_zero_costs_nothing() {
    let run = run_of(1, 0);
    let cx = run.cx();
    let main = async move {
        let (cx2, lock) = (cx.clone(), Lock::new(0));
        cx.spawn(async move { cx2.cpu(us(100)).await });
        cx.yield_now().await;
        for _ in 0..1000 {
            cx.cpu(Ns::ZERO).await;
            lock.with(&cx, Ns::ZERO, |n| *n += 1).await;
        }
        assert_eq!((cx.now(), lock.stats().spun), (Ns::ZERO, Ns::ZERO));
    };
    run.run(main).expect("no stall");
    assert!(run.polls() <= 4, "{} polls", run.polls());
}

/// Sections per millisecond under one lock, when each of `cores` cores works 9 us outside and 1 us
/// inside; and the share of core time spent spinning.
fn lock_rate(cores: u32, costs: &str) -> (u64, f64) {
    let costs = CostTable::from_toml(costs).expect("a table");
    let run = Virtual::new(cores, 3, costs);
    let cx = run.cx();
    let span = Ns::from_ns(2_000_001); // no section ends just then
    let lock = Rc::new(Lock::new(0u64));
    let theirs = lock.clone();
    let main = async move {
        for core in 0..cores {
            let (cx, lock) = (cx.on_core(CoreId(core)), theirs.clone());
            cx.clone().spawn(async move {
                loop {
                    cx.cpu(us(9)).await;
                    lock.with(&cx, us(1), |n| *n += 1).await;
                }
            });
        }
        cx.sleep(span).await;
    };
    run.run(main).expect("no stall");
    let (busy, spun) =
        run.core_busy().iter().fold((0, 0), |(b, s), c| (b + c.0.as_ns(), s + c.1.as_ns()));
    assert_eq!(lock.stats().spun.as_ns(), spun, "the cores and the lock disagree");
    (lock.now(|n| *n) / 2, spun as f64 / busy as f64)
}

const FAIR: &str = "name = \"fair\"";
const REAL: &str = "name = \"real\"\nhandoff_per_waiter = \"50ns\"";

/// One core never contends. More cores scale until the lock is always taken: then the rate stays at
/// 1 per section time, and what the others do is spin.
#[test]
fn a_fair_lock_plateaus_at_one_over_its_cost() {
    let (alone, spun) = lock_rate(1, FAIR);
    assert_eq!((alone, spun), (100, 0.0));
    let (rate, _) = lock_rate(4, FAIR);
    assert!((390..=400).contains(&rate), "4 cores: {rate}");
    for cores in [12, 20, 32] {
        let (rate, spun) = lock_rate(cores, FAIR);
        assert!((985..=1000).contains(&rate), "{cores} cores: {rate}");
        let idle = 1.0 - 10.0 / cores as f64;
        assert!((spun - idle).abs() < 0.03, "{cores} cores spin {spun}, not {idle}");
    }
}

/// With a price per waiter on each hand-over the rate falls as cores are added (real spin locks).
#[test]
fn a_price_on_hand_over_makes_the_rate_fall() {
    let rates: Vec<u64> = [12, 16, 24, 32].map(|n| lock_rate(n, REAL).0).to_vec();
    assert!(rates.windows(2).all(|w| w[1] < w[0]), "{rates:?}");
    assert_eq!(lock_rate(1, REAL), lock_rate(1, FAIR), "alone there is nothing to hand over");
}

/// Several tasks of one core can't contend: the second gets the core only when the first is done.
#[test]
fn tasks_of_one_core_never_spin_on_each_other() {
    let run = run_of(1, 5);
    let cx = run.cx();
    let lock = Rc::new(Lock::new(0));
    let theirs = lock.clone();
    let main = async move {
        let joins: Vec<_> = (0..10)
            .map(|_| {
                let (cx, lock) = (cx.clone(), theirs.clone());
                cx.clone().spawn_join(async move { lock.with(&cx, us(3), |n| *n += 1).await })
            })
            .collect();
        for join in joins {
            join.await;
        }
    };
    run.run(main).expect("no stall");
    assert_eq!(run.now(), us(30));
    let stats = lock.stats();
    assert_eq!((stats.acquired, stats.contended, stats.spun), (10, 0, Ns::ZERO));
}

/// Core 0 owes 100 us of other work when one of its tasks goes for the lock. Until it gets there
/// the lock is free: core 1 must not spin on it.
#[test]
fn a_task_whose_core_is_busy_does_not_hold_the_lock() {
    let run = run_of(2, 0);
    let cx = run.cx();
    let lock = Rc::new(Lock::new(()));
    let theirs = lock.clone();
    let ends = run.run(async move {
        let (cx0, cx1) = (cx.on_core(CoreId(0)), cx.on_core(CoreId(1)));
        let cx2 = cx0.clone();
        cx0.spawn(async move { cx2.cpu(us(100)).await });
        cx0.sleep(us(1)).await;
        let lock = theirs.clone();
        let late = cx0.clone().spawn_join(async move {
            lock.with(&cx0, us(1), |()| ()).await;
            cx0.now()
        });
        cx1.sleep(us(1)).await;
        theirs.with(&cx1, us(1), |()| ()).await;
        (cx1.now(), late.await)
    });
    assert_eq!(ends, Ok((us(3), us(101))));
    assert_eq!(lock.stats().spun, Ns::ZERO);
    assert_eq!(run.core_busy(), [(us(101), Ns::ZERO), (us(1), Ns::ZERO)]);
}

/// Work asked for behind a spinning task of the same core waits for the spin to end; the core's
/// queue stays first come, first served although the length of the spin was not known in advance.
#[test]
fn a_spinning_task_keeps_its_core() {
    let run = run_of(2, 4);
    let cx = run.cx();
    let log: Log<&str> = Rc::default();
    let theirs = log.clone();
    let main = async move {
        let (cx0, cx1) = (cx.on_core(CoreId(0)), cx.on_core(CoreId(1)));
        let lock = Rc::new(Lock::new(()));
        let held = lock.clone();
        cx1.clone().spawn(async move { held.with(&cx1, us(30), |()| ()).await });
        let note = |cx: &Cx, log: &Log<&'static str>, what| log.borrow_mut().push((cx.now(), what));
        let mut joins = Vec::new();
        for (i, what) in ["work", "lock", "more", "last"].into_iter().enumerate() {
            let (cx, lock, log) = (cx0.clone(), lock.clone(), theirs.clone());
            joins.push(cx0.spawn_join(async move {
                cx.sleep(us(1 + i as u64)).await;
                match what {
                    "lock" => lock.with(&cx, us(2), |()| ()).await,
                    _ => cx.cpu(us(10)).await,
                }
                note(&cx, &log, what);
            }));
        }
        for join in joins {
            join.await;
        }
    };
    run.run(main).expect("no stall");
    let expected = [(11, "work"), (32, "lock"), (42, "more"), (52, "last")];
    assert_eq!(*log.borrow(), expected.map(|(at, what)| (us(at), what)));
    // The spin begins when the core gets there, at 11 us, not when the task asked, at 2 us.
    assert_eq!(run.core_busy()[0], (us(51), us(19)));
}

/// Sections run in the order in which the tasks came to the lock, also those that cost nothing.
#[test]
fn a_lock_is_first_come_first_served() {
    for seed in 0..50 {
        let run = run_of(8, seed);
        let cx = run.cx();
        let order = Rc::new(RefCell::new(Vec::new()));
        let theirs = order.clone();
        let main = async move {
            let lock = Rc::new(Lock::new(()));
            let joins: Vec<_> = (0..8u32)
                .map(|i| {
                    let (cx, lock) = (cx.on_core(CoreId(i)), lock.clone());
                    let order = theirs.clone();
                    cx.clone().spawn_join(async move {
                        cx.sleep(Ns::from_ns(i as u64)).await;
                        let cost = if i % 3 == 0 { us(1) } else { Ns::ZERO };
                        lock.with(&cx, cost, |()| order.borrow_mut().push(i)).await;
                    })
                })
                .collect();
            for join in joins {
                join.await;
            }
        };
        run.run(main).expect("no stall");
        assert_eq!(*order.borrow(), (0..8).collect::<Vec<_>>(), "seed {seed}");
    }
}

/// Random mixtures on 4 cores × 3 tasks: sections of the lock never overlap in time, and each
/// core's busy time is exactly what was charged to it plus what it spun.
#[test]
fn time_is_neither_lost_nor_spent_twice() {
    for seed in 0..30 {
        let run = run_of(4, seed);
        let cx = run.cx();
        let sections: Log<Ns> = Rc::default();
        let charged = Rc::new(Cell::new(Ns::ZERO));
        let (theirs, total) = (sections.clone(), charged.clone());
        let main = async move {
            let lock = Rc::new(Lock::new(()));
            let joins: Vec<_> = (0..12u64)
                .map(|task| {
                    let (cx, lock) = (cx.on_core(CoreId(task as u32 % 4)), lock.clone());
                    let (log, total) = (theirs.clone(), total.clone());
                    cx.clone().spawn_join(async move {
                        let mut rng = flashlane_base::Rng::stream(seed, "mix", task);
                        for _ in 0..30 {
                            let cost = Ns::from_ns(1 + rng.below(3_000));
                            if rng.below(4) == 0 {
                                cx.sleep(cost).await;
                                continue;
                            }
                            total.set(total.get() + cost);
                            if rng.below(2) == 0 {
                                cx.cpu(cost).await;
                            } else {
                                lock.with(&cx, cost, |()| ()).await;
                                log.borrow_mut().push((cx.now(), cost));
                            }
                        }
                    })
                })
                .collect();
            for join in joins {
                join.await;
            }
        };
        run.run(main).expect("no stall");
        for pair in sections.borrow().windows(2) {
            let (before, (end, cost)) = (pair[0].0, pair[1]);
            assert!(end - cost >= before, "seed {seed}: sections overlap at {end}");
        }
        let cores = run.core_busy();
        let busy = cores.iter().fold(Ns::ZERO, |sum, c| sum + c.0 - c.1);
        assert_eq!(busy, charged.get(), "seed {seed}");
        assert!(cores.iter().all(|c| c.0 <= run.now()), "seed {seed}: a core of 25 hours a day");
    }
}

/// Nobody can ever run again: the run says so, with the seed and how many wait.
#[test]
fn a_deadlock_is_reported_not_waited_for() {
    let run = run_of(2, 77);
    let cx = run.cx();
    let stalled = run
        .run(async move {
            let (cx2, cx3) = (cx.clone(), cx.clone());
            cx.spawn(async move { Credits::new(0).acquire(&cx2, 1).await });
            cx.spawn(async move { cx3.sleep(Ns::MAX).await });
            cx.sleep(us(5)).await;
            Notify::new().wait(&cx, || false).await;
        })
        .expect_err("nobody wakes it");
    assert_eq!((stalled.now, stalled.tasks, stalled.seed), (us(5), 3, 77));
    assert!(stalled.to_string().contains("77"), "{stalled}");
}

/// Who works in idle time is called when others let time pass, and does not keep a run alive in
/// which nobody else has anything to wait for.
#[test]
fn idle_work_is_called_in_time_and_hides_no_deadlock() {
    let run = run_of(1, 3);
    let (cx, calls) = (run.cx(), Rc::new(RefCell::new(Vec::new())));
    let noted = calls.clone();
    let stalled = run
        .run(async move {
            let idle = cx.clone();
            cx.spawn(async move {
                loop {
                    noted.borrow_mut().push(idle.now());
                    let next = idle.now() + us(10);
                    idle.arm_idle(next);
                    Notify::new().wait(&idle, || idle.now() >= next).await;
                }
            });
            cx.sleep(us(35)).await;
            Notify::new().wait(&cx, || false).await;
        })
        .expect_err("nobody wakes it");
    assert_eq!(stalled.now, us(35));
    assert_eq!(*calls.borrow(), [us(0), us(10), us(20), us(30)]);
}

/// A second main task finds the tasks of the first where they were.
#[test]
fn a_run_can_be_continued() {
    let run = run_of(1, 0);
    let (cx, ticks) = (run.cx(), Rc::new(Cell::new(0)));
    let (cx2, theirs) = (cx.clone(), ticks.clone());
    let begin = async move {
        cx2.clone().spawn(async move {
            loop {
                cx2.sleep(us(10)).await;
                theirs.set(theirs.get() + 1);
            }
        });
    };
    run.run(begin).expect("no stall");
    for round in 1..=3 {
        let cx = cx.clone();
        run.run(async move { cx.sleep(us(27)).await }).expect("no stall");
        assert_eq!((run.now(), ticks.get()), (us(27 * round), 27 * round / 10));
    }
}

/// Tasks and contexts hold each other; dropping the run frees them all, wherever they wait.
#[test]
fn dropping_a_run_drops_its_tasks() {
    struct Last(Cx, Rc<Notify>, #[allow(dead_code)] Rc<()>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.1.wake(&self.0); // tasks still wake others while they are dropped
        }
    }
    let alive = Rc::new(());
    let run = run_of(2, 0);
    let cx = run.cx();
    let held = alive.clone();
    let main = async move {
        let (lock, notify) = (Rc::new(Lock::new(())), Rc::new(Notify::new()));
        let credits = Rc::new(Credits::new(0));
        for i in 0..12u32 {
            let cx = cx.on_core(CoreId(i % 2));
            let (lock, notify, credits) = (lock.clone(), notify.clone(), credits.clone());
            let last = Last(cx.clone(), notify.clone(), held.clone());
            cx.clone().spawn(async move {
                let _last = last;
                match i % 4 {
                    0 => lock.with(&cx, us(50), |()| ()).await,
                    1 => notify.wait(&cx, || false).await,
                    2 => credits.acquire(&cx, 1).await,
                    _ => cx.cpu(us(50)).await,
                }
            });
        }
        cx.sleep(us(1)).await;
    };
    run.run(main).expect("no stall");
    assert_eq!(Rc::strong_count(&alive), 13);
    drop(run);
    assert_eq!(Rc::strong_count(&alive), 1);
}

/// A port that counts its calls, and may help a run that can't go on.
struct Counting {
    served: Rc<Cell<u64>>,
    /// Woken when nothing else can run.
    stuck: Option<Rc<Notify>>,
    open: Rc<Cell<bool>>,
}

impl Port for Counting {
    fn serve(&mut self, cx: &Cx) {
        self.served.set(self.served.get() + 1);
        assert!(cx.now() >= Ns::ZERO);
    }

    fn bound(&self) -> Ns {
        Ns::MAX
    }

    fn idle(&mut self, cx: &Cx) -> Idle {
        let Some(stuck) = self.stuck.take() else {
            return Idle::Stalled;
        };
        self.open.set(true);
        stuck.wake(cx);
        Idle::Changed
    }
}

fn counting(stuck: Option<Rc<Notify>>) -> Counting {
    Counting { served: Rc::default(), stuck, open: Rc::default() }
}

/// Questions between steps change nothing: the same run, asked before every step or never.
#[test]
fn a_run_with_a_port_that_only_looks_is_the_same_run() {
    let run = |asked: Option<u64>| {
        let vm = Virtual::new(2, 7, CostTable::zero());
        let cx = vm.cx();
        let port = counting(None);
        let served = port.served.clone();
        let bell = Bell::default();
        let open = asked.map(|_| cx.open_port(&bell, port));
        vm.run(async move {
            let tasks: Vec<_> = (0..50u64)
                .map(|i| {
                    let (cx, bell) = (cx.clone(), bell.clone());
                    cx.clone().spawn_join(async move {
                        for k in 0..20 {
                            cx.sleep(Ns::from_ns(1 + (i * 7 + k * 13) % 29)).await;
                            if asked.is_some_and(|every| (i + k) % every == 0) {
                                bell.ring();
                            }
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        })
        .unwrap();
        drop(open);
        (vm.fingerprint(), served.get())
    };
    let (alone, nobody) = run(None);
    assert_eq!(nobody, 0);
    let (often, served) = run(Some(1));
    assert!(served > 50, "{served}");
    assert_eq!(often, alone);
    assert_eq!(run(Some(1000)).0, alone, "hardly ever asked");
}

/// A bell that always rings does not keep time from passing, and a closed port is served no more.
#[test]
fn who_rings_without_end_does_not_stop_the_clock() {
    let vm = Virtual::new(1, 7, CostTable::zero());
    let cx = vm.cx();
    struct Greedy(Bell, Rc<Cell<u64>>);
    impl Port for Greedy {
        fn serve(&mut self, _: &Cx) {
            self.0.ring();
            self.1.set(self.1.get() + 1);
        }
        fn bound(&self) -> Ns {
            Ns::MAX
        }
        fn idle(&mut self, _: &Cx) -> Idle {
            Idle::Stalled
        }
    }
    let (bell, served) = (Bell::default(), Rc::new(Cell::new(0)));
    bell.ring();
    let open = cx.open_port(&bell, Greedy(bell.clone(), served.clone()));
    let theirs = cx.clone();
    let end = vm.run(async move {
        for _ in 0..10 {
            theirs.sleep(Ns::from_us(1)).await;
        }
        theirs.now()
    });
    assert_eq!(end, Ok(Ns::from_us(10)));
    assert!((10..=11).contains(&served.get()), "once per step: {}", served.get());
    drop(open);
    let theirs = cx.clone();
    vm.run(async move { theirs.sleep(Ns::from_us(1)).await }).unwrap();
    assert!(served.get() <= 11, "it was over");
}

/// A step in which no time passes may be long: who rings is heard in it.
#[test]
fn a_long_step_is_interrupted() {
    let vm = Virtual::new(1, 7, CostTable::zero());
    let cx = vm.cx();
    let (port, bell) = (counting(None), Bell::default());
    bell.ring();
    let served = port.served.clone();
    let _open = cx.open_port(&bell, port);
    let heard = vm.run(async move {
        for _ in 0..100_000 {
            if served.get() > 0 {
                return true;
            }
            cx.yield_now().await;
        }
        false
    });
    assert_eq!((heard, vm.now()), (Ok(true), Ns::ZERO));
}

/// A port may undo what stalled a run; if it does not, the run is stalled.
#[test]
fn a_stalled_run_goes_on_when_a_port_can_help() {
    let vm = Virtual::new(1, 7, CostTable::zero());
    let cx = vm.cx();
    let gate = Rc::new(Notify::new());
    let port = counting(Some(gate.clone()));
    let open = port.open.clone();
    let _open = cx.open_port(&Bell::default(), port);
    let waits = |gate: Rc<Notify>, open: Rc<Cell<bool>>| {
        let cx = cx.clone();
        async move { gate.wait(&cx, || open.get()).await }
    };
    vm.run(waits(gate.clone(), open)).unwrap();
    assert!(vm.run(waits(gate, Rc::default())).is_err(), "it helps once");
}

/// When a guest rings: at once when it may, a little later, or before it is asked.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Quick,
    Slow,
    Eager,
}

/// Time stops at a port's bound, behind what happens at that time, until the port has been served; nothing
/// of the fingerprint depends on how long that takes.
#[test]
fn a_port_bounds_the_next_jump_of_time() {
    type Log = Rc<RefCell<Vec<String>>>;
    struct Guest {
        bound: Rc<Cell<Ns>>,
        next: std::vec::IntoIter<Ns>,
        log: Log,
        told: std::sync::mpsc::Sender<u64>,
    }
    impl Port for Guest {
        fn serve(&mut self, cx: &Cx) {
            self.log.borrow_mut().push(format!("served at {}", cx.now()));
            // Behind the last ring nobody listens.
            let _ = self.told.send(0);
            self.bound.set(self.next.next().unwrap_or(Ns::MAX));
        }
        fn bound(&self) -> Ns {
            self.bound.get()
        }
        fn idle(&mut self, _: &Cx) -> Idle {
            Idle::Stalled
        }
    }
    let run = |guest: Pace| {
        let vm = Virtual::new(1, 7, CostTable::zero());
        let (cx, bell, log) = (vm.cx(), Bell::default(), Log::default());
        let bound = Rc::new(Cell::new(us(5)));
        let next = vec![us(6), us(20)].into_iter();
        let (stands, stood) = std::sync::mpsc::channel::<u64>();
        let told = stands.clone();
        let _open = cx.open_port(&bell, Guest { bound, next, log: log.clone(), told });
        if guest == Pace::Eager {
            bell.ring();
        }
        // Nobody but this thread lets time go on. It hears what happened (the time in us), and that the port was
        // served (0).
        let guest = std::thread::spawn(move || {
            let hear = |expected: &[u64]| match guest {
                Pace::Eager => {
                    let is_told = expected.contains(&0);
                    assert!(!is_told || stood.iter().any(|n| n == 0), "the run has ended");
                }
                _ => expected.iter().for_each(|n| assert_eq!(stood.recv(), Ok(*n))),
            };
            // The eager one has rung before the run began.
            let first = usize::from(guest == Pace::Eager);
            for before in &[&[5][..], &[0], &[0, 20]][first..] {
                hear(before);
                if guest == Pace::Slow {
                    (0..1000).for_each(|_| std::thread::yield_now());
                }
                bell.ring();
            }
        });
        let mine = log.clone();
        vm.run(async move {
            let at = |n: u64| {
                let (cx, log, stands) = (cx.clone(), mine.clone(), stands.clone());
                cx.clone().spawn_join(async move {
                    cx.sleep_until(us(n) - Ns::from_ns(1)).await;
                    // Armed anew in the moment at which time stops.
                    cx.cpu(Ns::from_ns(1)).await;
                    log.borrow_mut().push(format!("{n}"));
                    // Nobody listens to what comes later.
                    let _ = stands.send(n);
                })
            };
            for task in [at(5), at(20), at(30)] {
                task.await;
            }
        })
        .expect("no stall");
        guest.join().expect("no panic");
        (log.take(), vm.fingerprint())
    };
    let (log, fingerprint) = run(Pace::Quick);
    let ns = |n: u64| format!("served at {}", us(n));
    assert_eq!(log, ["5".into(), ns(5), ns(6), "20".into(), ns(20), "30".into()]);
    for _ in 0..20 {
        assert_eq!(run(Pace::Slow), (log.clone(), fingerprint));
        assert_eq!(run(Pace::Eager), (log.clone(), fingerprint));
    }
}

/// A run in which nobody can go on waits for a port that says so, and for who watches a file.
#[test]
fn a_run_waits_for_the_outside_world() {
    let vm = Virtual::new(1, 7, CostTable::zero());
    let cx = vm.cx();
    let (read, write) = std::io::pipe().expect("a pipe");
    let theirs = cx.clone();
    let got = vm.run(async move {
        rustix::io::ioctl_fionbio(&read, true).expect("a pipe");
        let pipe = theirs.watch(read).expect("a pipe can be watched");
        let writer = std::thread::spawn(move || {
            use std::io::Write;
            (&write).write_all(b"news")
        });
        let mut news = [0; 8];
        let read = pipe.io(|mut pipe| std::io::Read::read(&mut pipe, &mut news)).await;
        writer.join().expect("no panic").expect("it is read");
        (read.expect("it is open"), news)
    });
    assert_eq!(got, Ok((4, *b"news\0\0\0\0")));
    // Nobody watches anything any more.
    let theirs = cx.clone();
    assert!(vm.run(async move { theirs.sleep(Ns::MAX).await }).is_err());
}

/// A wait for a file that was given up keeps no run alive.
#[test]
fn a_wait_that_was_given_up_is_over() {
    let vm = Virtual::new(1, 7, CostTable::zero());
    let cx = vm.cx();
    let (read, write) = std::io::pipe().expect("a pipe");
    let stalled = vm.run(async move {
        rustix::io::ioctl_fionbio(&read, true).expect("a pipe");
        let pipe = cx.watch(read).expect("a pipe can be watched");
        {
            let mut byte = [0];
            let read = pipe.io(|mut pipe| std::io::Read::read(&mut pipe, &mut byte));
            let (mut read, mut alarm) = (std::pin::pin!(read), std::pin::pin!(cx.sleep(us(1))));
            std::future::poll_fn(|context| {
                assert!(read.as_mut().poll(context).is_pending(), "nobody writes");
                alarm.as_mut().poll(context)
            })
            .await;
        }
        cx.sleep(Ns::MAX).await;
        drop((pipe, write));
    });
    assert!(stalled.is_err());
}
