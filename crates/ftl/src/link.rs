//! The host link above a block device: what crosses it is host requests.
//!
//! Owns: [`LinkedBlock`]. Promises: content of a write has crossed before the layer below sees the
//! request, content of a read crosses after that layer is done; commands arrive in the order in
//! which they were sent; requests that find every queue entry taken wait in the order they came; an
//! outcome is passed on unchanged. Never: looks at content.
//!
//! A host FTL has its link below (`flashlane_ocssd::link`): vector commands cross it, moves of
//! garbage collection too. A device FTL has it above, here, and its moves cross nothing. Both use
//! one timeline, [`Link`]: a bandwidth each way, a fixed time per command.
//!
//! A sector crosses as 4096 bytes, also where the medium's store keeps 8 of them.

use crate::block::{BlockDev, BlockInfo, BlockOp, BlockResult, Extent, Io, Started};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ocssd::link::Link;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_rt::sync::{AtomicU64, Ordering};
use flashlane_rt::{Credits, Cx};
use std::sync::Arc;

/// What crossed a link since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Requests of all kinds.
    pub requests: u64,
    /// Sectors of 4 KiB to the device.
    pub sectors_to_device: u64,
    /// Sectors of 4 KiB to the host.
    pub sectors_to_host: u64,
    /// Time that requests waited for a queue entry.
    pub queue_full: Ns,
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    to_device: AtomicU64,
    to_host: AtomicU64,
    queue_full_ns: AtomicU64,
}

/// A block device behind a link.
pub struct LinkedBlock {
    inner: Arc<dyn BlockDev>,
    info: BlockInfo,
    link: Link,
    /// Queue entries; `None` is no limit.
    entries: Option<Credits>,
    counters: Counters,
}

impl LinkedBlock {
    /// Puts `inner` behind a link of that description.
    pub fn new(inner: Arc<dyn BlockDev>, spec: &LinkSpec) -> LinkedBlock {
        LinkedBlock {
            info: inner.info().clone(),
            inner,
            link: Link::new(spec),
            entries: (spec.queue_depth > 0).then(|| Credits::new(spec.queue_depth as u64)),
            counters: Counters::default(),
        }
    }

    /// What has crossed.
    pub fn stats(&self) -> LinkStats {
        let c = &self.counters;
        LinkStats {
            requests: c.requests.load(Ordering::Relaxed),
            sectors_to_device: c.to_device.load(Ordering::Relaxed),
            sectors_to_host: c.to_host.load(Ordering::Relaxed),
            queue_full: Ns::from_ns(c.queue_full_ns.load(Ordering::Relaxed)),
        }
    }

    async fn enter(&self, cx: &Cx) {
        let Some(entries) = &self.entries else {
            return;
        };
        if entries.try_acquire(1) {
            return;
        }
        let from = cx.now();
        entries.acquire(cx, 1).await;
        let waited = (cx.now() - from).as_ns();
        self.counters.queue_full_ns.fetch_add(waited, Ordering::Relaxed);
    }

    async fn cross<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> BlockResult {
        let (there, back) = match io.op {
            BlockOp::Write => (io.sectors as u64, 0),
            BlockOp::Read => (0, io.sectors as u64),
            BlockOp::Discard | BlockOp::Flush => (0, 0),
        };
        let bytes = |sectors: u64| sectors * SECTOR_BYTES as u64;
        let c = &self.counters;
        c.requests.fetch_add(1, Ordering::Relaxed);
        c.to_device.fetch_add(there, Ordering::Relaxed);
        c.to_host.fetch_add(back, Ordering::Relaxed);
        self.enter(cx).await;
        cx.sleep_until(self.link.send(cx.now(), bytes(there))).await;
        let result = self.inner.start(cx, io).await;
        cx.sleep_until(self.link.receive(cx.now(), bytes(back))).await;
        if let Some(entries) = &self.entries {
            entries.release(cx, 1);
        }
        result
    }
}

impl BlockDev for LinkedBlock {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(self.cross(cx, io))
    }

    fn expect(&self, op: BlockOp, lba: flashlane_base::Lba) {
        self.inner.expect(op, lba);
    }

    fn extent(&self, lba: flashlane_base::Lba, most: u64) -> Extent {
        self.inner.extent(lba, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockError;
    use flashlane_base::{Bytes, Lba};
    use flashlane_rt::sync::Mutex;
    use flashlane_rt::{CostTable, Virtual};

    /// A layer that takes 10 us and notes when it was asked.
    struct Slow {
        info: BlockInfo,
        asked: Mutex<Vec<(BlockOp, Ns)>>,
    }

    impl BlockDev for Slow {
        fn info(&self) -> &BlockInfo {
            &self.info
        }
        fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
            self.asked.lock().push((io.op, cx.now()));
            Started::later(async move {
                cx.sleep(Ns::from_us(10)).await;
                match io.op {
                    BlockOp::Discard => Err(BlockError::ReadOnly("a test")),
                    _ => Ok(()),
                }
            })
        }
        fn expect(&self, _: BlockOp, _: Lba) {}
        fn extent(&self, lba: Lba, most: u64) -> Extent {
            Extent::of(&self.info, lba, most, |_| true)
        }
    }

    /// 4096 bytes in 1 us to the device and in 2 us to the host, 300 ns per command.
    fn spec(queue_depth: u32) -> LinkSpec {
        LinkSpec {
            to_device: Bytes::new(4_096_000_000),
            to_host: Bytes::new(2_048_000_000),
            command: Ns::from_ns(300),
            queue_depth,
        }
    }

    /// Starts these requests of (operation, sectors) at once; returns when each ended, when each
    /// reached the layer below, and the link's counters.
    fn run(depth: u32, ops: &[(BlockOp, u32)]) -> (Vec<u64>, Vec<u64>, LinkStats) {
        let slow = Arc::new(Slow {
            info: BlockInfo { capacity: 100, content_bytes: 8, layer: "slow" },
            asked: Mutex::new(Vec::new()),
        });
        let link = Arc::new(LinkedBlock::new(slow.clone(), &spec(depth)));
        let run = Virtual::new(1, 1, CostTable::zero());
        let (cx, linked, ops) = (run.cx(), link.clone(), ops.to_vec());
        let ended = run.run(async move {
            let mut tasks = Vec::new();
            for (op, sectors) in ops {
                let (task, link) = (cx.clone(), linked.clone());
                tasks.push(cx.spawn_join(async move {
                    let mut buf = vec![0; 8 * sectors as usize];
                    let io = Io::of(op, Lba::new(0), sectors, false, &mut buf);
                    let result = link.start(&task, io).await;
                    assert_eq!(result.is_err(), op == BlockOp::Discard);
                    task.now().as_ns()
                }));
                // One after the other, at the same instant.
                cx.yield_now().await;
                while linked.stats().requests < tasks.len() as u64 {
                    cx.yield_now().await;
                }
            }
            let mut out = Vec::new();
            for task in tasks {
                out.push(task.await);
            }
            out
        });
        let asked = slow.asked.lock().iter().map(|(_, at)| at.as_ns()).collect();
        (ended.expect("it ends"), asked, link.stats())
    }

    #[test]
    fn content_crosses_before_a_write_and_after_a_read() {
        let (ended, asked, stats) = run(0, &[(BlockOp::Write, 2), (BlockOp::Read, 3)]);
        // The read's command crosses behind the write's content, as it was sent behind it.
        assert_eq!(asked, [2_300, 2_300]);
        assert_eq!(ended, [12_300, 18_300]);
        assert_eq!((stats.sectors_to_device, stats.sectors_to_host), (2, 3));
        let (ended, ..) = run(0, &[(BlockOp::Flush, 0), (BlockOp::Discard, 0)]);
        assert_eq!(ended, [10_300, 10_300]);
    }

    #[test]
    fn each_way_is_one_after_the_other() {
        let (ended, asked, _) = run(0, &[(BlockOp::Write, 1); 3]);
        assert_eq!(asked, [1_300, 2_300, 3_300]);
        assert_eq!(ended, [11_300, 12_300, 13_300]);
        let (mut ended, ..) = run(0, &[(BlockOp::Read, 1); 3]);
        // All three are done below at one instant: who crosses first is drawn.
        ended.sort_unstable();
        assert_eq!(ended, [12_300, 14_300, 16_300]);
    }

    #[test]
    fn the_queue_depth_bounds_what_is_below() {
        let (ended, asked, stats) = run(1, &[(BlockOp::Flush, 0); 3]);
        assert_eq!(asked, [300, 10_600, 20_900]);
        assert_eq!(ended, [10_300, 20_600, 30_900]);
        assert_eq!(stats.queue_full, Ns::from_ns(10_300 + 20_600));
    }
}
