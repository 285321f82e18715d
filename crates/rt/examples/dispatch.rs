//! What the runtime itself costs: nanoseconds of host CPU per spawn, sleep, notify, credit, lock.
//!
//! Owns: one table. Promises: one thread, nothing else runs in it; rounds are shorter than a time
//! slice and the best is printed, so a busy machine shows little. Never: part of a test.
//!
//! `cargo run --release -p flashlane-rt --example dispatch`

// Measuring real time is what this program is for.
#![allow(clippy::disallowed_methods)]

use flashlane_base::Ns;
use flashlane_rt::{CostTable, Credits, Cx, Lock, Notify, Threads, Virtual};
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Instant;

const ROUNDS: u64 = 100;
const N: u64 = 16_384;
/// Tasks alive at once in the rows that name them: a queue depth.
const DEPTH: u64 = 32;

/// Nanoseconds per step of `body`, which does `N` steps.
async fn best_of<F: Future<Output = ()>>(mut body: impl FnMut() -> F) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        body().await;
        best = best.min(start.elapsed().as_nanos() as f64 / N as f64);
    }
    best
}

async fn spawn_and_join(cx: &Cx) {
    for i in 0..N {
        let got = cx.spawn_join(async move { i }).await;
        std::hint::black_box(got);
    }
}

/// `DEPTH` tasks that each do `N / DEPTH` times what `step` says.
async fn at_depth<F, S>(cx: &Cx, step: S)
where
    S: Fn(Cx, u64) -> F,
    F: Future<Output = ()> + 'static,
{
    let joins: Vec<_> = (0..DEPTH).map(|i| cx.spawn_join(step(cx.clone(), i))).collect();
    for join in joins {
        join.await;
    }
}

async fn sleeps(cx: Cx, i: u64) {
    for _ in 0..N / DEPTH {
        cx.sleep(Ns::from_ns(900 + i)).await;
    }
}

async fn yields(cx: Cx) {
    for _ in 0..N / DEPTH {
        cx.yield_now().await;
    }
}

/// Two tasks hand a token to each other: one wake-up and one wait per step.
async fn ping_pong(cx: &Cx) {
    let state = Rc::new((Notify::new(), Cell::new(0u64)));
    let joins: Vec<_> = (0..2)
        .map(|me| {
            let (cx, state) = (cx.clone(), state.clone());
            cx.clone().spawn_join(async move {
                for round in 0..N / 2 {
                    let mine = 2 * round + me;
                    state.0.wait(&cx, || state.1.get() == mine).await;
                    state.1.set(mine + 1);
                    state.0.wake(&cx);
                }
            })
        })
        .collect();
    for join in joins {
        join.await;
    }
}

async fn credits_free(cx: &Cx) {
    let credits = Credits::new(8);
    for _ in 0..N {
        credits.acquire(cx, 1).await;
        credits.release(cx, 1);
    }
}

async fn credits_short(cx: Cx, credits: Rc<Credits>) {
    for _ in 0..N / DEPTH {
        credits.acquire(&cx, 1).await;
        cx.yield_now().await;
        credits.release(&cx, 1);
    }
}

async fn locks(cx: &Cx, cost: Ns) {
    let lock = Lock::new(0u64);
    for _ in 0..N {
        lock.with(cx, cost, |n| *n += 1).await;
    }
    std::hint::black_box(lock.now(|n| *n));
}

async fn charges(cx: &Cx, cost: Ns) {
    for _ in 0..N {
        cx.cpu(cost).await;
    }
}

/// All rows under one clock: (name, ns per step).
async fn table(cx: Cx) -> Vec<(&'static str, f64)> {
    let cx = &cx;
    let mut rows = vec![
        ("spawn_join, awaited at once", best_of(|| spawn_and_join(cx)).await),
        ("yield_now, 32 tasks", best_of(|| at_depth(cx, |cx, _| yields(cx))).await),
        ("Notify wait + wake, 2 tasks", best_of(|| ping_pong(cx)).await),
        ("Credits acquire + release, free", best_of(|| credits_free(cx)).await),
    ];
    let credits = Rc::new(Credits::new(4));
    let short = || at_depth(cx, |cx, _| credits_short(cx, credits.clone()));
    rows.push(("Credits, 32 tasks on 4, with a yield", best_of(short).await));
    rows.push(("Lock::with, cost zero", best_of(|| locks(cx, Ns::ZERO)).await));
    rows.push(("cpu, cost zero", best_of(|| charges(cx, Ns::ZERO)).await));
    if cx.is_virtual() {
        let cost = Ns::from_ns(100);
        rows.push(("sleep, 32 tasks", best_of(|| at_depth(cx, sleeps)).await));
        rows.push(("Lock::with, cost 100 ns", best_of(|| locks(cx, cost)).await));
        rows.push(("cpu, cost 100 ns", best_of(|| charges(cx, cost)).await));
    }
    rows
}

fn print(title: &str, rows: &[(&str, f64)]) {
    println!("{title}, ns per step, best of {ROUNDS}:");
    for (name, ns) in rows {
        println!("  {name:<38}{ns:>8.1}");
    }
}

fn main() {
    let run = Virtual::new(1, 1, CostTable::zero());
    match run.run(table(run.cx())) {
        Ok(rows) => print("virtual time", &rows),
        Err(stalled) => println!("{stalled}"),
    }
    print("one real core", &Threads::new(1, 1).run(table)[0]);
}
