//! Simulations that have nothing to do with each other, side by side.
//!
//! Owns: which of them runs on which thread, and when no more begin. Promises: results in the order of their
//! numbers, whatever thread they come from. Never: begins one after the end, which the work says, or a
//! panic; those that are under way go on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What becomes of those that have not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// They follow.
    GoOn,
    /// They are left out.
    End,
}

/// Does `work` for 0 to `n` - 1 on so many threads, at least one. What was left out is `None`.
pub(crate) fn side_by_side<T: Send>(
    jobs: usize,
    n: usize,
    work: impl Fn(usize) -> (Option<T>, Then) + Sync,
) -> Vec<Option<T>> {
    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Vec<Mutex<Option<T>>> = (0..n).map(|_| Mutex::default()).collect();
    let thread = || {
        while !over.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(result) = results.get(i) else { return };
            let end = End(&over);
            let (done, then) = work(i);
            if then == Then::GoOn {
                std::mem::forget(end);
            }
            *result.lock().unwrap_or_else(|e| e.into_inner()) = done;
        }
    };
    std::thread::scope(|scope| {
        (0..jobs.clamp(1, n.max(1))).for_each(|_| drop(scope.spawn(thread)))
    });
    results.into_iter().map(|r| r.into_inner().unwrap_or_else(|e| e.into_inner())).collect()
}

/// Nothing more begins once this is dropped, by a panic, too.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
