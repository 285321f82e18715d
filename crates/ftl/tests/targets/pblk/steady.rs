//! Long runs: full devices, steady states, write amplification, determinism, both stores (G11).
//!
//! Owns: what pblk promises for ever, shown for as long as a test may take.

/// 2 PUs of chunks of 16 sectors: lines of 24 data sectors, many of them.
use crate::prelude::*;

fn fine(chunks: u32) -> Setup {
    tiny(chunks).shape(1, 2, 4).untraced()
}

/// The smallest over-provisioning at which a target is created.
fn least_op(setup: &Setup) -> u32 {
    let config = LogConfig { over_provisioning_percent: 3, ..LogConfig::default() };
    match setup.clone().with(|s| s.config = config).try_create() {
        Err(CreateError::TooSmall { percent, .. }) => percent,
        _ => 3,
    }
}

/// Free chunks, smallest and largest, sampled while 20 × the capacity is overwritten at random.
fn for_ever(b: &Bench, tasks: u64) -> (u64, u64) {
    b.fill(1);
    let (steps, capacity) = (400, b.capacity());
    let (mut low, mut high) = (u64::MAX, 0);
    for step in 0..steps {
        b.overwrite(tasks, 20 * capacity / steps / tasks + 1, 2 + step);
        if step >= steps / 2 {
            low = low.min(b.free_chunks());
            high = high.max(b.free_chunks());
        }
    }
    assert!(b.stats().host_written >= 21 * capacity);
    (low, high)
}

fn settles(setup: Setup, tasks: u64) {
    let b = setup.build();
    let layout = b.dev.layout().clone();
    let (low, high) = for_ever(&b, tasks);
    let width = layout.width as u64;
    let start = layout.start_lines * width;
    println!(
        "{} lines, {} for data, reserve {}, start {}: free chunks {low}..={high}, WA {:.2}",
        layout.lines,
        layout.capacity / layout.line_data,
        layout.reserve_lines,
        layout.start_lines,
        b.stats().write_amplification().expect("writes")
    );
    assert!(high - low <= 6 * width, "free chunks swing from {low} to {high}");
    assert!(high <= start + 4 * width, "GC works ahead: {high} free of {start}");
    b.settled();
}

/// G11: at 11% over-provisioning, random overwrites of a full device go on for 20 × its capacity,
/// and the limiter settles: free chunks stay within a few lines.
#[test]
fn random_overwrites_at_11_percent_run_for_ever() {
    let setup = fine(400).op(11);
    assert!(least_op(&setup) <= 11, "{}", least_op(&setup));
    settles(setup, 8);
}

/// G11: the same at the smallest over-provisioning that creation accepts.
#[test]
fn random_overwrites_at_the_least_spare_run_for_ever() {
    let setup = fine(100);
    let least = least_op(&setup);
    settles(setup.op(least), 8);
}

/// G11: and with all devices' times zero, one writer, lines over four PUs.
#[test]
fn random_overwrites_without_time_run_for_ever() {
    let setup = tiny(40).untimed().untraced();
    let least = least_op(&setup);
    settles(setup.op(least), 1);
}

/// G11: when GC is wanted but every line is valid throughout, the first garbage wakes it, though no
/// line moves and no unit is programmed meanwhile. Bad chunks bring a full device there.
#[test]
fn the_first_garbage_wakes_gc() {
    let least = least_op(&fine(100));
    let full_with_bad_chunks = |n: u64| {
        let fault = "kind = \"early_close\"\nprobability = \"0.02\"";
        let plan = format!("[[fault]]\n{fault}\ntimes = {n}\n");
        let b = fine(100).op(least).faults(&plan).build();
        b.fill(1);
        b.rest();
        b
    };
    let wants = |b: &Bench| b.dev.shares().collect && b.dev.shares().users > 0;
    let b = (1..12).map(full_with_bad_chunks).find(wants);
    let b = b.expect("a number of bad chunks between too few and too many");
    let before = b.stats().gc_victims;
    b.write(0, 1, 2);
    b.rest();
    assert!(b.stats().gc_victims > before);
    b.settled();
}

/// The share of valid sectors in a greedy victim under uniform overwrites when a share `a` of the
/// data room is in use: a = (u − 1) / ln u (Menon; Desnoyers 2012 for greedy at many lines).
fn victim_share(a: f64) -> f64 {
    let (mut low, mut high) = (1e-9f64, 1.0 - 1e-9);
    for _ in 0..100 {
        let u = (low + high) / 2.0;
        if (u - 1.0) / u.ln() < a {
            low = u;
        } else {
            high = u;
        }
    }
    (low + high) / 2.0
}

/// G11: write amplification is within a tenth of greedy theory with the effective spare.
///
/// Effective: lines that can hold data in the steady state are those closed, closing or being moved
/// and half of the one being filled, on average over the run; the spare line, lines being opened or
/// erased, free chunks and metadata's are no spare. What lies in slots is on no line.
#[test]
fn write_amplification_is_that_of_greedy_theory() {
    for (op, chunks) in [(12, 560), (25, 530)] {
        let b = tiny(chunks).shape(1, 2, 16).op(op).untimed().untraced().build();
        let layout = b.dev.layout().clone();
        assert!(layout.lines >= 500);
        b.fill(1);
        let (tasks, capacity) = (4, b.capacity());
        b.overwrite(tasks, 3 * capacity / tasks, 2);
        let (before, mut lines, steps) = (b.stats(), 0.0, 100);
        for step in 0..steps {
            b.overwrite(tasks, 3 * capacity / tasks / steps, 3 + step);
            let full = [LineState::Closed, LineState::Closing, LineState::Victim];
            lines += full.iter().map(|s| b.lines(*s)).sum::<usize>() as f64 + 0.5;
        }
        lines /= steps as f64;
        let s = b.stats();
        let grown = |c: Cause| (s.programmed_for(c) - before.programmed_for(c)) as f64;
        let measured = (grown(Cause::User) + grown(Cause::Gc)) / grown(Cause::User);
        let a = capacity as f64 / (lines * layout.line_data as f64);
        let theory = 1.0 / (1.0 - victim_share(a));
        println!("op {op}: lines {lines:.1}, a {a:.4}, WA {measured:.3}, theory {theory:.3}");
        assert!((measured / theory - 1.0).abs() < 0.1, "WA {measured:.3}, theory {theory:.3}");
        b.settled();
    }
}

/// The same seed gives the same run, task by task; another seed another one, with the same data.
#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed: u64| {
        let b = tiny(40).untraced().seed(seed).build();
        b.fill(1);
        b.overwrite(16, b.capacity() / 16, 2);
        b.drained();
        let (fingerprint, stats) = (b.run.fingerprint(), b.stats());
        let now = b.run.now();
        b.settled();
        (fingerprint, stats, now)
    };
    let (first, again, other) = (run(7), run(7), run(8));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    assert_eq!(first.1.host_written, other.1.host_written);
}

/// With 4 KiB contents kept in full, every byte comes back, from slots and from the medium, before
/// and after GC moved it; and the store changes nothing about what is programmed or when.
#[test]
fn both_stores_give_back_what_was_written() {
    let run = |setup: Setup| {
        let b = setup.untraced().build();
        b.fill(1);
        b.overwrite(8, b.capacity() / 8, 2);
        b.discard(100, 50);
        b.drained();
        b.sleep(Ns::from_ms(1));
        let stats = b.stats();
        assert!(stats.gc_moved > 100);
        b.settled();
        stats
    };
    let setup = || fine(64).op(50);
    assert_eq!(run(setup()), run(setup().memory()));
}
