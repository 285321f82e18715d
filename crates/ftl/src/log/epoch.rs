//! Who may still hold a media address: operations are counted per core and epoch.
//!
//! Owns: the counters. Promises: after `synchronize` every operation that began before the call has
//! ended; an idle core delays nobody (FORMAT.md rule 17; the algorithm is SRCU's: two index
//! halves, flip, wait for the old half, twice). Never: waits for operations that begin later.

use flashlane_rt::sync::{AtomicU64, AtomicUsize, Ordering};
use flashlane_rt::{Credits, Cx, Notify};

#[repr(align(64))]
#[derive(Default)]
struct PerCore {
    begun: [AtomicU64; 2],
    ended: [AtomicU64; 2],
}

pub(super) struct Epochs {
    half: AtomicUsize,
    cores: Box<[PerCore]>,
    /// One synchronization at a time.
    turn: Credits,
    ended: Notify,
}

/// An operation that may hold media addresses. End it with [`Epochs::end`].
#[must_use = "an operation that never ends blocks every erase"]
pub(super) struct Operation {
    half: usize,
}

impl Epochs {
    pub(super) fn new(cores: u32) -> Epochs {
        Epochs {
            half: AtomicUsize::new(0),
            cores: (0..cores).map(|_| PerCore::default()).collect(),
            turn: Credits::new(1),
            ended: Notify::new(),
        }
    }

    #[inline]
    pub(super) fn begin(&self, cx: &Cx) -> Operation {
        let half = self.half.load(Ordering::SeqCst);
        self.cores[cx.core().0 as usize].begun[half].fetch_add(1, Ordering::SeqCst);
        Operation { half }
    }

    #[inline]
    pub(super) fn end(&self, cx: &Cx, op: Operation) {
        self.cores[cx.core().0 as usize].ended[op.half].fetch_add(1, Ordering::SeqCst);
        self.ended.wake(cx);
    }

    fn quiet(&self, half: usize) -> bool {
        // Ends first, begins second: an operation counted as ended is then counted as begun too.
        let ended: u64 = self.cores.iter().map(|c| c.ended[half].load(Ordering::SeqCst)).sum();
        let begun: u64 = self.cores.iter().map(|c| c.begun[half].load(Ordering::SeqCst)).sum();
        ended == begun
    }

    /// Waits until every operation that has begun by now has ended.
    pub(super) async fn synchronize(&self, cx: &Cx) {
        self.turn.acquire(cx, 1).await;
        for _ in 0..2 {
            let old = self.half.load(Ordering::SeqCst);
            self.ended.wait(cx, || self.quiet(1 - old)).await;
            self.half.store(1 - old, Ordering::SeqCst);
            self.ended.wait(cx, || self.quiet(old)).await;
        }
        self.turn.release(cx, 1);
    }
}
