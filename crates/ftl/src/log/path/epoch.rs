//! Who may still hold a media address: operations are counted per core and epoch.
//!
//! Owns: the counters. Promises: after `synchronize` every operation that began before the call has
//! ended; an idle core delays nobody (FORMAT.md rule 17; the algorithm is SRCU's: two halves, wait for the
//! one that is not in use, flip, wait for the other). Never: waits for operations that begin later, but
//! for those that had read which half is in use before it was flipped.

use flashlane_base::mutant;
use flashlane_rt::sync::{AtomicU64, AtomicUsize, Ordering};
use flashlane_rt::{Credits, Cx, Notify};

#[repr(align(64))]
#[derive(Default)]
struct PerCore {
    begun: [AtomicU64; 2],
    ended: [AtomicU64; 2],
}

pub(in crate::log) struct Epochs {
    half: AtomicUsize,
    cores: Box<[PerCore]>,
    /// One synchronization at a time.
    turn: Credits,
    ended: Notify,
}

/// An operation that may hold media addresses. End it with [`Epochs::end`].
#[must_use = "an operation that never ends blocks every erase"]
pub(in crate::log) struct Operation {
    half: usize,
}

impl Epochs {
    pub(in crate::log) fn new(cores: u32) -> Epochs {
        Epochs {
            half: AtomicUsize::new(0),
            cores: (0..cores).map(|_| PerCore::default()).collect(),
            turn: Credits::new(1),
            ended: Notify::new(),
        }
    }

    #[inline]
    pub(in crate::log) fn begin(&self, cx: &Cx) -> Operation {
        let half = self.half.load(Ordering::SeqCst);
        self.cores[cx.core().0 as usize].begun[half].fetch_add(1, Ordering::SeqCst);
        Operation { half }
    }

    #[inline]
    pub(in crate::log) fn end(&self, cx: &Cx, op: Operation) {
        self.cores[cx.core().0 as usize].ended[op.half].fetch_add(1, Ordering::SeqCst);
        self.ended.wake(cx);
    }

    fn quiet(&self, half: usize) -> bool {
        let ended = || self.cores.iter().map(|c| c.ended[half].load(Ordering::SeqCst)).sum::<u64>();
        let begun = || self.cores.iter().map(|c| c.begun[half].load(Ordering::SeqCst)).sum::<u64>();
        // Ends first, begins second: an operation counted as ended is then counted as begun too.
        match mutant!("qblk.begins-before-ends") {
            false => ended() == begun(),
            true => begun() == ended(),
        }
    }

    /// Waits until every operation that has begun by now has ended.
    pub(in crate::log) async fn synchronize(&self, cx: &Cx) {
        self.turn.acquire(cx, 1).await;
        let old = self.half.load(Ordering::SeqCst);
        // Who read `half` before the last flip and counted itself behind it.
        if !mutant!("qblk.stragglers-forgotten") {
            self.ended.wait(cx, || self.quiet(1 - old)).await;
        }
        self.half.store(1 - old, Ordering::SeqCst);
        if !mutant!("qblk.epoch-not-awaited") {
            self.ended.wait(cx, || self.quiet(old)).await;
        }
        self.turn.release(cx, 1);
    }
}

/// What an operation has looked up is not erased before it has ended, also if it was late to count itself, and
/// however many others end meanwhile.
#[cfg(feature = "shuttle")]
pub fn nothing_is_erased_under_an_operation(seed: u64) {
    use flashlane_rt::Threads;
    use std::sync::Arc;
    const ERASED: u64 = u64::MAX;
    const ROUNDS: usize = 16;
    #[derive(Default)]
    struct Shared {
        chunks: [AtomicU64; ROUNDS + 1],
        current: AtomicU64,
    }
    let shared = Arc::new((Shared::default(), Epochs::new(2)));
    Threads::new(2, seed).run(|cx| {
        let both = shared.clone();
        async move {
            let (shared, epochs) = &*both;
            for round in 0..ROUNDS {
                if cx.core().0 == 0 {
                    shared.current.store(round as u64 + 1, Ordering::Release);
                    epochs.synchronize(&cx).await;
                    shared.chunks[round].store(ERASED, Ordering::Relaxed);
                    continue;
                }
                let operation = epochs.begin(&cx);
                let at = shared.current.load(Ordering::Acquire) as usize;
                epochs.end(&cx, epochs.begin(&cx));
                let found = shared.chunks[at].load(Ordering::Relaxed);
                assert_ne!(found, ERASED, "erased under an operation");
                epochs.end(&cx, operation);
            }
        }
    });
}
