//! Discards while other cores go on: each test takes their step at every moment of a discard.
//!
//! Owns: the tests of the orders in `clear_among_others`. Never: depends on a schedule.

use super::*;
use crate::block::{BlockDev, BlockOp, Io};
use crate::log::LogConfig;
use flashlane_base::Lba;
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::sync::rehearse;
use flashlane_rt::{CoreId, CostTable, Virtual};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

/// The sector that is written and discarded.
const SECTOR: u64 = 6;

/// On a QBLK that does nothing by itself.
fn on_quiet(test: impl AsyncFnOnce(Cx, Arc<HostFtl>) + 'static) {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(60);
        let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
        let config = LogConfig { over_provisioning_percent: 60, gc: false, ..LogConfig::qblk() };
        let ftl = HostFtl::create(&cx, ssd.expect("a device"), config).await.expect("fits");
        assert!(!ftl.map.is_exclusive(), "the map is changed among others");
        cx.sleep(Ns::from_ms(10)).await;
        test(cx, ftl).await;
    })
    .expect("no stall");
}

/// Written, and in its slot still.
async fn written(cx: &Cx, ftl: &HostFtl) {
    let mut buf = vec![7; ftl.info.content_bytes];
    let io = Io::of(BlockOp::Write, Lba::new(SECTOR), 1, false, &mut buf);
    ftl.start(cx, io).await.expect("a write");
    assert!(matches!(ftl.map.get(SECTOR), Entry::Slot(_)));
}

/// Does the log name a discard of the sector, but for its first `before` records that wait?
fn is_logged(ftl: &HostFtl, before: usize) -> bool {
    let is = |r: &Record| matches!(r, Record::Discarded { lba: SECTOR, count: 1, .. });
    ftl.journal.waiting_from(before).iter().any(is)
}

/// FORMAT.md, hole 12: whenever another core finds the entry clear, the log names the discard. What
/// died in the buffer is dropped, and a flush may end, from then on.
#[test]
fn a_discard_is_in_the_log_before_it_clears() {
    on_quiet(async |cx, ftl| {
        written(&cx, &ftl).await;
        let (other, found) = (ftl.clone(), Rc::new(Cell::new((0, 0))));
        let (they_found, mut before) = (found.clone(), None);
        rehearse(move || {
            let before = *before.get_or_insert(other.journal.backlog());
            let (set, clear) = they_found.get();
            if other.map.raw(SECTOR) != 0 {
                they_found.set((set + 1, clear));
            } else {
                they_found.set((set, clear + 1));
                assert!(is_logged(&other, before), "it is clear, and nothing says why");
            }
            true
        });
        ftl.discard(&cx, SECTOR, 1).await.expect("it is healthy");
        rehearse(|| false);
        let (set, clear) = found.get();
        assert!(set > 0 && clear > 0, "{set} looks before, {clear} behind");
    });
}

/// FORMAT.md, hole 11: a second discard of the sector begins on another core at any moment of the first. When it has
/// ended, the log names a discard behind the last moment at which the entry was there: a shard that was copied then
/// has it, and names that position.
#[test]
fn a_discard_that_ends_is_in_the_log_behind_what_was_there() {
    on_quiet(async |cx, ftl| {
        let found_clear = Rc::new(Cell::new(0));
        for at in 0.. {
            written(&cx, &ftl).await;
            let (other, their_cx) = (ftl.clone(), cx.on_core(CoreId(1)));
            let (clear, taken) = (found_clear.clone(), Rc::new(Cell::new(false)));
            let (takes, mut hesitations, mut position) = (taken.clone(), 0, 0);
            rehearse(move || {
                let was_there = other.map.raw(SECTOR) != 0;
                if was_there {
                    position = other.journal.backlog();
                }
                if hesitations == at {
                    takes.set(true);
                    clear.set(clear.get() + u32::from(!was_there));
                    let mut discard = std::pin::pin!(other.discard(&their_cx, SECTOR, 1));
                    let polled = discard.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    let is_named = || is_logged(&other, position);
                    assert!(polled.is_pending() || is_named(), "hesitation {at}: it comes back");
                }
                hesitations += 1;
                hesitations <= at
            });
            ftl.discard(&cx, SECTOR, 1).await.expect("it is healthy");
            rehearse(|| false);
            assert_eq!(ftl.map.raw(SECTOR), 0);
            if !taken.get() {
                break;
            }
        }
        assert!(found_clear.get() > 0, "behind the last entry, before the log names it again");
    });
}
