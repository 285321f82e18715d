//! A shared bandwidth as a timeline: controller limits and links.
//!
//! Owns: [`Pipe`]. Promises: bytes pass one behind the other in the order in which they are sent
//! in; no lock. Never: remembers more than when it is free.

use flashlane_base::Ns;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bandwidth: a free-at time.
pub(crate) struct Pipe {
    free: AtomicU64,
    bytes_per_sec: u64,
}

impl Pipe {
    pub(crate) fn new(bytes_per_sec: u64) -> Pipe {
        Pipe { free: AtomicU64::new(0), bytes_per_sec }
    }

    /// When `bytes` that arrive at `at` have passed, one behind the other.
    #[inline]
    pub(crate) fn pass(&self, at: Ns, bytes: u64) -> Ns {
        if self.bytes_per_sec == 0 {
            return at;
        }
        let takes = Ns::of_transfer(bytes, self.bytes_per_sec).as_ns();
        let add = |free: u64| Some(free.max(at.as_ns()) + takes);
        let before = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        Ns::from_ns(before.unwrap_or(0).max(at.as_ns()) + takes)
    }

    /// When `bytes` that stream until `at` have passed: later than `at` only when the bandwidth,
    /// and not the stream, is the limit.
    #[inline]
    pub(crate) fn stream(&self, at: Ns, bytes: u64) -> Ns {
        if self.bytes_per_sec == 0 {
            return at;
        }
        let takes = Ns::of_transfer(bytes, self.bytes_per_sec);
        self.pass(at.saturating_sub(takes), bytes).max(at)
    }

    pub(crate) fn reset(&self) {
        self.free.store(0, Ordering::Relaxed);
    }
}
