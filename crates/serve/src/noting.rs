//! A disk that keeps its content, and notes what is asked of it; for the tests of this crate.

use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockError, BlockInfo, BlockOp, Extent, Io, Started};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use flashlane_testkit::Ram;
use std::sync::Arc;

/// What was asked: sectors, and whether they are durable when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) op: BlockOp,
    pub(crate) lba: u64,
    pub(crate) sectors: u32,
    pub(crate) fua: bool,
}

pub(crate) struct Noting {
    disk: Ram,
    notes: Mutex<Vec<Note>>,
    /// Reads that touch this sector fail.
    bad: Option<u64>,
}

impl Noting {
    pub(crate) fn new(capacity: u64) -> Arc<Noting> {
        Noting::with_bad(capacity, None)
    }

    pub(crate) fn with_bad(capacity: u64, bad: Option<u64>) -> Arc<Noting> {
        let disk = Ram::new(capacity, SECTOR_BYTES, Ns::from_us(10), 1);
        Arc::new(Noting { disk, notes: Mutex::default(), bad })
    }

    /// What was asked since the last call.
    pub(crate) fn notes(&self) -> Vec<Note> {
        std::mem::take(&mut *self.notes.lock())
    }
}

impl BlockDev for Noting {
    fn info(&self) -> &BlockInfo {
        self.disk.info()
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        let (lba, sectors) = (io.lba.get(), io.sectors);
        self.notes.lock().push(Note { op: io.op, lba, sectors, fua: io.fua });
        let touches = |bad: u64| (lba..lba + u64::from(sectors)).contains(&bad);
        if io.op == BlockOp::Read && self.bad.is_some_and(touches) {
            return Started::Done(Err(BlockError::Uncorrectable(vec![io.lba])));
        }
        self.disk.start(cx, io)
    }

    fn expect(&self, _: BlockOp, _: Lba) {}

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.disk.extent(lba, most)
    }
}
