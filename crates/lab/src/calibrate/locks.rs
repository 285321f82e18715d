//! What a contended lock costs to hand over.
//!
//! Owns: a ticket lock and the threads that hammer it. Promises: a time counts only when all threads
//! were at the lock meanwhile: one that the system took off its core would make it look cheap.
//! Never: more threads than cores.

use super::{Effort, median};
use flashlane_base::Ns;
use flashlane_rt::{Cx, Threads};
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Sections of the thread that looks at the clock, in a round: some 100 us with others, short beside
/// the system's time slice.
const SECTIONS: u64 = 500;
/// Sections after which a thread is there.
const WARM: u64 = 50;
/// Of the sections that all threads would do meanwhile, so many were done, at least.
const TOGETHER: f64 = 0.9;

/// First come, first served; all waiters poll one cache line. `Lock` in virtual time models this one.
#[derive(Default)]
struct Ticket {
    next: AtomicU32,
    serving: AtomicU32,
    /// Sections so far: what the lock protects, on a line of its own.
    sections: Line,
}

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

impl Ticket {
    fn section(&self) {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        let mut polls = 0u32;
        while self.serving.load(Ordering::Acquire) != mine {
            polls += 1;
            match polls.is_multiple_of(1 << 14) {
                // Whose turn it is may need this very core: then the round does not count anyway.
                true => std::thread::yield_now(),
                false => spin_loop(),
            }
        }
        let done = self.sections.0.load(Ordering::Relaxed);
        self.sections.0.store(done + 1, Ordering::Relaxed);
        self.serving.store(mine.wrapping_add(1), Ordering::Release);
    }
}

/// One lock, who is at it, and whether the clock has been looked at for the last time.
#[derive(Default)]
struct Round {
    lock: Ticket,
    warm: AtomicU32,
    over: AtomicBool,
}

/// What a thread did in a round.
struct Done {
    sections: u64,
    /// Time per section of the first thread, where it counts.
    time: Option<f64>,
}

/// Nanoseconds per section with 1, 2, 3, 4, 6, 8, ... threads; those that nobody could measure are
/// left out.
pub(super) fn measure(effort: Effort) -> Vec<(u32, f64)> {
    let mut found = Vec::new();
    for threads in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] {
        if threads <= effort.threads {
            let by_thread = hammer_all(threads, effort.rounds);
            let good: Vec<f64> = by_thread[0].iter().filter_map(|done| done.time).collect();
            found.extend((!good.is_empty()).then(|| (threads, median(good))));
        }
    }
    found
}

/// By thread, then by round. The count of sections is added to without an atomic operation: had the
/// lock let in two at once, one would be missing.
fn hammer_all(threads: u32, rounds: usize) -> Vec<Vec<Done>> {
    let all: Arc<Vec<Round>> = Arc::new((0..rounds).map(|_| Round::default()).collect());
    let theirs = all.clone();
    let by_thread: Vec<Vec<Done>> = Threads::new(threads, 1).run(move |cx| {
        let rounds = theirs.clone();
        async move { rounds.iter().map(|round| hammer(&cx, round)).collect() }
    });
    for (i, round) in all.iter().enumerate() {
        let did: u64 = by_thread.iter().map(|thread| thread[i].sections).sum();
        assert_eq!(round.lock.sections.0.load(Ordering::Relaxed), did, "two in one section");
    }
    by_thread
}

/// A thread's part of a round: sections without a pause, until the first has measured its own while
/// all were there.
fn hammer(cx: &Cx, round: &Round) -> Done {
    let all = || round.lock.sections.0.load(Ordering::Relaxed);
    let mut sections = 0;
    let mut began = None;
    loop {
        round.lock.section();
        sections += 1;
        if sections == WARM {
            round.warm.fetch_add(1, Ordering::Relaxed);
        }
        if cx.core().0 > 0 {
            if round.over.load(Ordering::Relaxed) && sections >= WARM {
                return Done { sections, time: None };
            }
            continue;
        }
        match began {
            None if round.warm.load(Ordering::Relaxed) == cx.cores() => {
                began = Some((cx.now(), all(), sections));
            }
            Some((from, before, mine)) if sections == mine + SECTIONS => {
                let time = per_section(cx.now() - from, all() - before, cx.cores());
                round.over.store(true, Ordering::Relaxed);
                return Done { sections, time };
            }
            _ => {}
        }
    }
}

fn per_section(time: Ns, sections: u64, threads: u32) -> Option<f64> {
    let all = SECTIONS as f64 * threads as f64;
    (sections as f64 >= TOGETHER * all).then(|| time.as_ns() as f64 / sections as f64)
}

/// What each waiter adds to a section: the least squares of a line through the lock that nobody else
/// wants.
pub(super) fn per_waiter(by_threads: &[(u32, f64)]) -> Option<f64> {
    let (_, alone) = by_threads.iter().find(|(threads, _)| *threads == 1)?;
    let more = by_threads.iter().filter(|(threads, _)| *threads > 1);
    let points = more.map(|(threads, ns)| ((threads - 1) as f64, ns - alone));
    let (xy, xx) = points.fold((0.0, 0.0), |(xy, xx), (x, y)| (xy + x * y, xx + x * x));
    (xx > 0.0).then(|| (xy / xx).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_a_waiter_is_a_slope() {
        assert_eq!(per_waiter(&[(1, 20.0)]), None);
        assert_eq!(per_waiter(&[(2, 120.0)]), None);
        assert_eq!(per_waiter(&[(1, 20.0), (2, 120.0)]), Some(100.0));
        assert_eq!(per_waiter(&[(1, 20.0), (2, 70.0), (4, 170.0)]), Some(50.0));
        assert_eq!(per_waiter(&[(1, 20.0), (2, 10.0)]), Some(0.0));
    }

    /// A round in which another thread was away counts for nothing.
    #[test]
    fn threads_must_have_been_there_together() {
        assert_eq!(per_section(Ns::from_us(100), 2 * SECTIONS, 2), Some(100.0));
        assert_eq!(per_section(Ns::from_us(100), SECTIONS + 10, 2), None);
        assert_eq!(per_section(Ns::from_us(50), SECTIONS, 1), Some(100.0));
    }

    /// Every thread gets its sections; that they exclude each other is asserted there.
    #[test]
    fn all_threads_get_through_the_lock() {
        let by_thread = hammer_all(2, 20);
        assert_eq!(by_thread.len(), 2);
        for (mine, theirs) in by_thread[0].iter().zip(&by_thread[1]) {
            assert!(mine.sections >= SECTIONS + WARM && theirs.sections >= WARM);
        }
        assert!(by_thread.iter().all(|rounds| rounds.len() == 20));
    }
}
