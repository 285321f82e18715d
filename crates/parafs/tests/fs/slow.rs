//! A device that is slow, or fails, at one moment.
//!
//! Owns: which request that is. Promises: all others go to the memory below at once. Never: changes
//! what is written.

use flashlane_base::{Lba, Ns};
use flashlane_ftl::block::{BlockDev, BlockError, BlockInfo, BlockOp, Extent, Io, Started};
use flashlane_parafs::{Fs, Medium};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use flashlane_testkit::Ram;
use flashlane_testkit::files::small;
use std::sync::Arc;

/// A device of which some requests take long, or fail.
pub(crate) struct Slow {
    pub(crate) ram: Arc<Ram>,
    /// Where pages of the log begin.
    pub(crate) log: Lba,
    /// The next read takes long.
    pub(crate) next: Mutex<bool>,
    /// Behind so many writes of a page one takes a while, and fails.
    pub(crate) fails: Mutex<Option<u32>>,
    /// Behind so many reads one fails.
    pub(crate) unread: Mutex<Option<u32>>,
    /// One that fails in the in-place region goes on to fail.
    pub(crate) stays: Mutex<bool>,
    /// Behind so many writes of anything one is done, and said to have failed.
    pub(crate) lies: Mutex<Option<u32>>,
    /// Behind so many writes of anything all fail.
    pub(crate) dead: Mutex<Option<u32>>,
    /// The next write of a page takes long.
    pub(crate) later: Mutex<bool>,
    /// Behind so many flushes one takes long.
    pub(crate) flush: Mutex<Option<u32>>,
    /// These can't be read, and that many times it was tried.
    pub(crate) lost: Mutex<Vec<Lba>>,
    pub(crate) missed: Mutex<u32>,
    /// The sector that a write began with last.
    pub(crate) last: Mutex<Lba>,
}

impl Slow {
    pub(crate) fn new(ram: Arc<Ram>) -> Arc<Slow> {
        let layout = Medium::Linear(ram.clone()).plan(1, 32).expect("it is large enough");
        let log = Lba::new(layout.shape.meta_sectors);
        let never = || Mutex::new(None);
        let (fails, unread, lies, dead) = (never(), never(), never(), never());
        let no = || Mutex::new(false);
        let (next, later, flush, stays) = (no(), no(), never(), no());
        let (lost, missed, last) = (Mutex::new(Vec::new()), Mutex::new(0), Mutex::new(log));
        let dev = Slow {
            ram,
            log,
            next,
            fails,
            unread,
            stays,
            lies,
            dead,
            later,
            flush,
            lost,
            missed,
            last,
        };
        Arc::new(dev)
    }

    /// This write fails.
    fn takes(&self, io: &Io<'_>) -> bool {
        let of_the_log = io.op == BlockOp::Write && io.lba >= self.log;
        of_the_log && Slow::is_next(&self.fails)
    }

    /// Counts down: it is the one.
    fn is_next(left: &Mutex<Option<u32>>) -> bool {
        let mut left = left.lock();
        match *left {
            Some(0) => {
                *left = None;
                true
            }
            Some(more) => {
                *left = Some(more - 1);
                false
            }
            None => false,
        }
    }
}

/// What is there, mounted on such a device.
pub(crate) async fn mount_slow(cx: &Cx, ram: Arc<Ram>) -> (Arc<Slow>, Arc<Fs>) {
    let slow = Slow::new(ram);
    let medium = Medium::Linear(slow.clone());
    let (fs, _) = Fs::mount(cx, medium, small()).await.expect("it is mounted");
    (slow, fs)
}

impl BlockDev for Slow {
    fn info(&self) -> &BlockInfo {
        self.ram.info()
    }
    fn tears_to_errors(&self) -> bool {
        true
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if io.op == BlockOp::Read && std::mem::take(&mut *self.next.lock()) {
            return Started::later(async move {
                cx.sleep(Ns::from_secs(10)).await;
                self.ram.start(cx, io).await
            });
        }
        let is_lost =
            |at: &Lba| (io.lba.get()..io.lba.get() + io.sectors as u64).contains(&at.get());
        let lost = io.op == BlockOp::Read && self.lost.lock().iter().any(is_lost);
        *self.missed.lock() += u32::from(lost);
        let unread = io.op == BlockOp::Read && Slow::is_next(&self.unread);
        if unread && *self.stays.lock() && io.lba < self.log {
            self.lost.lock().push(io.lba);
        }
        if lost || unread {
            return Started::Done(Err(BlockError::Uncorrectable(vec![io.lba])));
        }
        let writes = io.op == BlockOp::Write;
        if writes {
            *self.last.lock() = io.lba;
        }
        if writes && Slow::is_next(&self.lies) {
            return Started::later(async move {
                let (lba, _) = (io.lba, self.ram.start(cx, io).await);
                cx.sleep(Ns::from_ms(2)).await;
                Err(BlockError::Uncorrectable(vec![lba]))
            });
        }
        if writes && Slow::is_next(&self.dead) {
            *self.dead.lock() = Some(0);
            return Started::later(async move {
                cx.sleep(Ns::from_ms(2)).await;
                Err(BlockError::Uncorrectable(vec![io.lba]))
            });
        }
        if writes && io.lba >= self.log && std::mem::take(&mut *self.later.lock()) {
            return Started::later(async move {
                cx.sleep(Ns::from_secs(10)).await;
                self.ram.start(cx, io).await
            });
        }
        if io.op == BlockOp::Flush && Slow::is_next(&self.flush) {
            return Started::later(async move {
                cx.sleep(Ns::from_secs(10)).await;
                self.ram.start(cx, io).await
            });
        }
        if self.takes(&io) {
            return Started::later(async move {
                cx.sleep(Ns::from_ms(2)).await;
                Err(BlockError::Uncorrectable(vec![io.lba]))
            });
        }
        self.ram.start(cx, io)
    }
    fn expect(&self, op: BlockOp, lba: Lba) {
        self.ram.expect(op, lba);
    }
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.ram.extent(lba, most)
    }
}
