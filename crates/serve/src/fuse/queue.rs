//! Requests on their way from the thread that reads them to the core that has the stack.
//!
//! Owns: requests that no core has begun, how many bytes are under way, whether more are taken. Promises: what
//! was taken is given to the core, in the order of arrival; what is under way is bounded, and whoever reads
//! requests waits meanwhile, so that the kernel keeps the rest; once it is closed nothing is taken. Never:
//! does a request.

use flashlane_base::mutant;
use flashlane_rt::Bell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of requests under way at most, and what one takes at least.
pub(super) const BUDGET: u64 = 64 << 20;
const LEAST: u64 = 4096;

struct State<T> {
    waiting: Vec<(T, u64)>,
    /// Taken, and not answered.
    under_way: usize,
    /// Bytes of them.
    bytes: u64,
    closed: bool,
}

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    /// There is room, or the queue is closed.
    changed: Condvar,
    bell: Bell,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        let state = State { waiting: Vec::new(), under_way: 0, bytes: 0, closed: false };
        Queue { state: Mutex::new(state), changed: Condvar::new(), bell: Bell::default() }
    }
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rung when something has come.
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Takes a request as soon as there is room for it; gives it back where the queue is closed.
    pub(super) fn put(&self, request: T, bytes: u64) -> Result<(), T> {
        let bytes = bytes.max(LEAST);
        let mut state = self.state();
        // One that is longer than all room goes alone.
        while !state.closed && state.bytes > 0 && state.bytes + bytes > BUDGET {
            if mutant!("serve.queue-unbounded") {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed && !mutant!("serve.queue-never-closed") {
            return Err(request);
        }
        state.waiting.push((request, bytes));
        state.under_way += 1;
        state.bytes += bytes;
        drop(state);
        self.bell.ring();
        Ok(())
    }

    /// What has come, with what it takes, which goes back with [`Queue::done`].
    pub(super) fn take(&self, into: &mut Vec<(T, u64)>) {
        into.append(&mut self.state().waiting);
    }

    /// A request is answered. True when it was the last one, and no more will come.
    pub(super) fn done(&self, bytes: u64) -> bool {
        let mut state = self.state();
        state.under_way -= 1;
        state.bytes -= bytes;
        let is_last = state.closed && state.under_way == 0;
        drop(state);
        self.changed.notify_one();
        is_last
    }

    /// Nothing is taken any more.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Everything that was taken is answered.
    pub(super) fn is_empty(&self) -> bool {
        self.state().under_way == 0 || mutant!("serve.left-under-way")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    const MOMENT: Duration = Duration::from_millis(100);

    fn taken(queue: &Queue<u32>) -> Vec<(u32, u64)> {
        let mut taken = Vec::new();
        queue.take(&mut taken);
        taken
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let queue = Arc::new(Queue::<u32>::default());
        let (told, hears) = channel();
        let theirs = queue.clone();
        let reader = std::thread::spawn(move || {
            for i in 0..4 {
                told.send((i, theirs.put(i, BUDGET / 2))).expect("it is heard");
            }
        });
        let next = || hears.recv_timeout(MOMENT);
        assert_eq!((next(), next()), (Ok((0, Ok(()))), Ok((1, Ok(())))));
        assert_eq!(next(), Err(RecvTimeoutError::Timeout), "there is no room");
        assert_eq!(taken(&queue), [(0, BUDGET / 2), (1, BUDGET / 2)]);
        assert_eq!(next(), Err(RecvTimeoutError::Timeout), "what a core has begun takes room");
        assert!(!queue.done(BUDGET / 2));
        assert_eq!(next(), Ok((2, Ok(()))));
        // Nobody waits for ever: at the end it is given back.
        queue.close();
        assert_eq!(next(), Ok((3, Err(3))));
        reader.join().expect("it ends");
    }

    #[test]
    fn what_was_taken_is_answered_before_the_end() {
        let queue = Queue::<u32>::default();
        assert!(queue.is_empty());
        assert_eq!((queue.put(1, 1), queue.put(2, BUDGET - LEAST)), (Ok(()), Ok(())));
        queue.close();
        assert_eq!(queue.put(3, 1), Err(3));
        assert_eq!(taken(&queue), [(1, LEAST), (2, BUDGET - LEAST)]);
        assert!(!queue.is_empty());
        assert!(!queue.done(LEAST));
        assert!(!queue.is_empty());
        assert!(queue.done(BUDGET - LEAST), "the last one");
        assert!(queue.is_empty());
    }

    #[test]
    fn a_request_longer_than_all_room_goes_alone() {
        let queue = Queue::<u32>::default();
        assert_eq!(queue.put(1, 2 * BUDGET), Ok(()));
        assert_eq!(taken(&queue), [(1, 2 * BUDGET)]);
    }
}
