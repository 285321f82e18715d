//! Pending timers of one executor, popped in the order (time, arming).
//!
//! Owns: the heap. Promises: equal times come out in arming order, so a run does not depend on how
//! the heap breaks ties. Never: drops a timer; a task that no longer waits is polled in vain.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Task ids share a word with the arming sequence: 2^24 tasks alive at once at most (`Local::spawn`
/// asserts it), and 2^40 armings, half a day of CPU time, before ties may
/// change places.
pub(crate) const TASK_BITS: u32 = 24;

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    armed: u64,
}

impl Timers {
    #[inline]
    pub(crate) fn arm(&mut self, at: u64, task: u32) {
        debug_assert!(task < 1 << TASK_BITS);
        self.armed += 1;
        self.heap.push(Reverse((at, self.armed << TASK_BITS | task as u64)));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    #[inline]
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next task due at or before `now`.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u32> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, key)) = self.heap.pop()?;
        Some((key & ((1 << TASK_BITS) - 1)) as u32)
    }
}
