//! The room that a victim must find, and the verdict when there is none: what the model of rule 18 takes
//! for given (`crates/model/src/room.rs`).
//!
//! Owns: the tests. That the margin suffices is the model's to say.

use super::*;
use crate::block::{BlockDev, BlockOp, Io};
use crate::log::LogConfig;
use crate::log::slab::Origin;
use crate::log::verdict::{Barrier, EXHAUSTED, STRANDED};
use flashlane_base::{Lba, Ns, VECTOR_MAX};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{CostTable, Cx, Virtual};
use std::sync::Arc;

/// QBLK with two channels on a medium whose page pairs tear, GC by hand, with closed lines of which about
/// half is valid.
async fn half_valid(cx: &Cx) -> Arc<HostFtl> {
    let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(80);
    let mut spec = spec.with_parallelism(2, 2);
    spec.cells.pair_damage = true;
    let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
    let config = LogConfig { over_provisioning_percent: 75, gc: false, ..LogConfig::qblk() };
    let ftl = HostFtl::create(cx, ssd.expect("a device"), config).await.expect("fits");
    for (from, step) in [(0, 4), (0, 8)] {
        for lba in (from..1600).step_by(step) {
            let mut buf = vec![7; 4 * ftl.info.content_bytes];
            let lba = Lba::new(lba);
            let io = Io { op: BlockOp::Write, lba, sectors: 4, fua: false, buf: &mut buf };
            BlockDev::start(&*ftl, cx, io).await.expect("a write");
        }
    }
    let flush = Io { op: BlockOp::Flush, lba: Lba::new(0), sectors: 0, fua: false, buf: &mut [] };
    BlockDev::start(&*ftl, cx, flush).await.expect("a flush");
    cx.sleep(Ns::from_ms(10)).await;
    ftl
}

/// A closed line of a pool that is valid in part.
fn part_valid(ftl: &HostFtl, pool: usize) -> u32 {
    let p = ftl.pools.get(pool).lock();
    let most = ftl.shape.line_data(p.width()) as u32 * 3 / 4;
    let closed = p.lines().filter(|(_, l)| l.state == LineState::Closed);
    let mut lines = closed.map(|(id, _)| id);
    lines.find(|id| (1..most).contains(&ftl.lines.valid(*id))).expect("half is overwritten")
}

/// The most that pool 1 may have claimed so that there is room for a line.
fn most_claimed(ftl: &HostFtl, line: u32) -> u64 {
    let claim = &ftl.pools.get(1).collector.claim;
    let fits = |n: u64| {
        claim.store(n, Ordering::Release);
        ftl.has_room(line)
    };
    let (mut fit, mut over) = (0, 2 * ftl.pools.sum(|p| p.room()));
    assert!(fits(fit) && !fits(over), "a claim counts");
    while over - fit > 1 {
        let mid = (fit + over) / 2;
        *if fits(mid) { &mut fit } else { &mut over } = mid;
    }
    claim.store(0, Ordering::Release);
    fit
}

/// The engine asks for as much room as the model does: what is admitted and claimed, the victim, the tail of
/// each ring and of each batch to come, and page pairs twice; not a sector less.
#[test]
fn the_margin_is_the_models() {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let ftl = half_valid(&cx).await;
        let (line, unit) = (part_valid(&ftl, 0), u64::from(ftl.shape.unit));
        let batches = |n: u64| n.div_ceil(VECTOR_MAX as u64 + 1 - unit);
        let (valid, rings) = (u64::from(ftl.lines.valid(line)), ftl.rings.len() as u64);
        let room = ftl.pools.sum(|p| p.room());
        let pads = 2 * ftl.pools.sum(|p| u64::from(ftl.shape.pair_pads * p.width()));
        assert!(pads > 0 && rings == 2 && ftl.rings.snapshot()[0].0 == 0);
        let alone = room - valid - (rings + batches(valid)) * (unit - 1) - pads;
        // The other claim is more than a line: its batches take no more units than its sectors were in.
        assert_eq!(most_claimed(&ftl, line), alone);
        for n in [1, 70] {
            ftl.rings.get(0).admission.acquire(&cx, Origin::Gc, n).await;
            let moved = n + batches(n) * (unit - 1);
            assert_eq!(most_claimed(&ftl, line), alone - moved, "{n} moved sectors are buffered");
            ftl.rings.get(0).admission.release(&cx, 0, n);
            ftl.rings.get(1).admission.acquire(&cx, Origin::User, n).await;
            assert_eq!(most_claimed(&ftl, line), alone - n, "{n} sectors of users are buffered");
            ftl.rings.get(1).admission.release(&cx, n, 0);
        }
    })
    .expect("no stall");
}

/// With nothing on its way a victim is taken for what the reserve covers; with something on its way in
/// whichever pool, it must find its room.
#[test]
fn what_comes_is_asked_of_all_pools() {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let ftl = half_valid(&cx).await;
        let lines = [part_valid(&ftl, 0), part_valid(&ftl, 1)];
        ftl.pools.get(1).collector.claim.store(1 << 30, Ordering::Release);
        assert!(lines.iter().all(|line| !ftl.has_room(*line) && ftl.fits(*line)));
        ftl.pools.get(1).lock().make_victim(lines[1]);
        assert!(!ftl.fits(lines[0]), "a victim is on its way in the other pool");
        ftl.pools.get(1).lock().make_freeing(lines[1]);
        assert!(!ftl.fits(lines[0]), "and waits to be freed");
    })
    .expect("no stall");
}

/// Nothing can be opened: that is the end only if what is to be freed waits for the rings, not when its
/// barrier has passed. The text blames no bad chunks where there are none.
#[test]
fn a_verdict_is_about_what_still_comes() {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let ftl = half_valid(&cx).await;
        assert!(!ftl.is_stranded(), "{}", ftl.room_report(STRANDED));
        for pool in ftl.pools.iter() {
            let mut p = pool.lock();
            (p.current, p.spare, p.opens) = (None, None, false);
            let open: Vec<u32> =
                p.lines().filter(|(_, l)| l.state == LineState::Open).map(|(id, _)| id).collect();
            open.iter().for_each(|id| p.line_mut(*id).state = LineState::Closed);
            p.meta_reserve = 1 << 40;
        }
        let verdict = |barrier: Barrier| {
            *ftl.gc.barrier.lock() = barrier;
            ftl.is_stranded()
        };
        let ends = || ftl.rings.iter().map(|ring| ring.state.now(|r| r.tail()));
        assert!(verdict(Barrier::Idle), "nothing is to be freed");
        assert!(verdict(Barrier::Waits(ends().map(|end| end + 1).collect())));
        assert!(!verdict(Barrier::Waits(ends().collect())), "all is programmed");
        assert!(!verdict(Barrier::Passed), "chunks come back by themselves");
        let line = part_valid(&ftl, 1);
        ftl.pools.of_line(line).lock().make_victim(line);
        ftl.pools.of_line(line).lock().make_freeing(line);
        assert!(!verdict(Barrier::Idle), "its barrier is not taken yet");
        ftl.rings.set_shares(&cx, 0, 64);
        ftl.gc.enabled.store(true, Ordering::Release);
        *ftl.gc.barrier.lock() = Barrier::Passed;
        ftl.pools
            .iter()
            .for_each(|pool| pool.collector.fruitless.store(1 << 20, Ordering::Relaxed));
        assert!(!ftl.is_exhausted(None), "shares follow in a moment");
        *ftl.gc.barrier.lock() = Barrier::Idle;
        assert!(ftl.is_exhausted(None), "every line was collected for nothing");
        let text = ftl.room_report(EXHAUSTED);
        for part in
            ["no spare is left", "no chunk has gone bad;", "1 freeing", "barrier none", "reserve "]
        {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        ftl.give_up_full(&cx, STRANDED);
        let why = ftl.check_writable().expect_err("it has given up").to_string();
        assert!(
            why.starts_with("the device is read-only: no chunk is left to write to: no chunk has"),
            "{why}"
        );
    })
    .expect("no stall");
}
