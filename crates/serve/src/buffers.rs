//! Memory of requests that have ended, for later ones.
//!
//! Owns: buffers of one client or door, with what is still in them. Promises: what is kept is bounded; a
//! buffer that is as long as it was before is not cleared again; none that is as good as new is in its way. Never: gives one client what was
//! another's, if each has its own.

use crate::room::Pool;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Bytes that are kept for a client: a megabyte with the head of a reply, or many that are shorter.
const KEPT: usize = (1 << 20) + 4096;
/// Shorter ones (a reply without data) cost next to nothing to make, and all to lengthen.
const SHORTEST: usize = 512;

#[derive(Default)]
pub(crate) struct Buffers {
    kept: RefCell<Vec<Vec<u8>>>,
    bytes: Cell<usize>,
    /// What all clients of a door keep is bounded there.
    pool: Option<Arc<Pool>>,
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.pool.iter().for_each(|pool| pool.use_up(self.bytes.get()));
    }
}

impl Buffers {
    /// Of one of the clients that share a pool.
    pub(crate) fn of(pool: Arc<Pool>) -> Buffers {
        Buffers { kept: RefCell::default(), bytes: Cell::default(), pool: Some(pool) }
    }

    /// So many bytes, whatever is in them.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.kept.borrow_mut().pop().unwrap_or_default();
        self.bytes.set(self.bytes.get() - buffer.capacity());
        self.pool.iter().for_each(|pool| pool.use_up(buffer.capacity()));
        buffer.resize(bytes, 0);
        buffer
    }

    /// A request is done with it.
    pub(crate) fn keep(&self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        let fits = bytes >= SHORTEST && self.bytes.get() + bytes <= KEPT;
        if fits && self.pool.as_ref().is_none_or(|pool| pool.keep(bytes)) {
            self.bytes.set(self.bytes.get() + bytes);
            self.kept.borrow_mut().push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_kept_in_bounds() {
        let buffers = Buffers::default();
        for bytes in [4096, 256 << 10, KEPT + 1, 0, SHORTEST - 1, KEPT].repeat(100) {
            buffers.keep(Vec::with_capacity(bytes));
        }
        {
            let kept = buffers.kept.borrow();
            let all: usize = kept.iter().map(Vec::capacity).sum();
            assert!(buffers.bytes.get() == all && all <= KEPT, "{all}");
            assert!(kept.len() > 3 && kept.iter().all(|buffer| buffer.capacity() >= SHORTEST));
        }
        (0..1000).for_each(|_| assert_eq!(buffers.take(100).len(), 100));
        assert_eq!(buffers.bytes.get(), 0);
    }

    #[test]
    fn what_was_there_is_not_cleared_again() {
        let buffers = Buffers::default();
        buffers.keep(vec![7; 4096]);
        // The reply to what was written there.
        buffers.keep(vec![1; 16]);
        assert_eq!(buffers.take(4096), [7; 4096]);
        buffers.keep(vec![7; 1024]);
        let longer = buffers.take(2048);
        assert_eq!((&longer[..1024], &longer[1024..]), (&[7; 1024][..], &[0; 1024][..]));
    }
}
