//! A host that says which of its writes are a journal's.
//!
//! Owns: the range of sectors of which it says so. Promises: requests go through as they came, but for
//! the hint. Never: says it of a request that lies in the range in part.

use flashlane_base::Lba;
use flashlane_ftl::block::{BlockDev, BlockInfo, BlockOp, Extent, Hint, Io, Started};
use flashlane_rt::Cx;
use std::sync::Arc;

/// Says that writes to the first sectors of a device are a journal's.
pub struct Hinting {
    inner: Arc<dyn BlockDev>,
    sectors: u64,
}

impl Hinting {
    /// `sectors`: how many, from the first on.
    pub fn new(inner: Arc<dyn BlockDev>, sectors: u64) -> Hinting {
        Hinting { inner, sectors }
    }
}

impl BlockDev for Hinting {
    fn info(&self) -> &BlockInfo {
        self.inner.info()
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        let journal = io.lba.get().saturating_add(io.sectors.into()) <= self.sectors;
        self.inner.start(cx, Io { hint: Hint { journal, ..io.hint }, ..io })
    }
    fn expect(&self, op: BlockOp, lba: Lba) {
        self.inner.expect(op, lba);
    }
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.inner.extent(lba, most)
    }
}
