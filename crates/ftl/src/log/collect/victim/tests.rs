//! The room that a victim must find, and the verdict when there is none: what the model of rule 18 takes
//! for given (`crates/model/src/room.rs`).
//!
//! Owns: the tests. That the margin suffices is the model's to say.

use super::*;
use crate::block::{BlockDev, BlockOp, Io};
use crate::log::LogConfig;
use crate::log::slab::Origin;
use crate::log::unit::Unit;
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
            let io = Io::of(BlockOp::Write, lba, 4, false, &mut buf);
            BlockDev::start(&*ftl, cx, io).await.expect("a write");
        }
    }
    let flush = Io::of(BlockOp::Flush, Lba::new(0), 0, false, &mut []);
    BlockDev::start(&*ftl, cx, flush).await.expect("a flush");
    cx.sleep(Ns::from_ms(10)).await;
    ftl
}

/// Runs a test of such a target on two cores whose work costs nothing.
fn on_half_valid(test: impl AsyncFnOnce(Arc<HostFtl>, Cx) + 'static) {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move { test(half_valid(&cx).await, cx).await }).expect("no stall");
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
    on_half_valid(async |ftl, cx| {
        let (line, unit) = (part_valid(&ftl, 0), u64::from(ftl.shape.unit));
        let batches = |n: u64| n.div_ceil(VECTOR_MAX as u64 + 1 - unit);
        let (valid, rings) = (u64::from(ftl.lines.valid(line)), ftl.rings.len() as u64);
        let room = ftl.pools.sum(|p| p.room());
        let pads = 2 * ftl.pools.sum(|p| u64::from(ftl.shape.pair_pads * p.width()));
        assert!(pads > 0 && rings == 2 && ftl.rings.snapshot()[0].0 == 0);
        let alone = room - valid - (rings + batches(valid)) * (unit - 1) - pads;
        // The other claim is more than a line: its batches take no more units than its sectors were in.
        assert_eq!(most_claimed(&ftl, line), alone);
        // Nor do those of less than a line; but a tail for each batch is what they can take.
        let widest = ftl.shape.line_data(ftl.widest_line.load(Ordering::Relaxed) as u32);
        assert!(70 + batches(70) * (unit - 1) < widest);
        for n in [1, 61, 62, 70, widest - 1, widest] {
            ftl.pools.get(0).collector.claim.store(n, Ordering::Release);
            let moved = widest.min(n + batches(n) * (unit - 1));
            assert_eq!(most_claimed(&ftl, line), alone - moved, "{n} sectors are claimed");
        }
        ftl.pools.get(0).collector.claim.store(0, Ordering::Release);
        // Batches that are admitted and not in their rings yet: each has its tail, however small it is.
        for n in [1, 5] {
            ftl.gc.moving.store(n, Ordering::Release);
            assert_eq!(most_claimed(&ftl, line), alone - n * (unit - 1), "{n} batches have begun");
        }
        ftl.gc.moving.store(0, Ordering::Release);
        for n in [1, 70] {
            ftl.rings.get(0).admission.acquire(&cx, Origin::Gc, n).await;
            assert_eq!(most_claimed(&ftl, line), alone - n, "{n} moved sectors are buffered");
            ftl.rings.get(0).admission.release(&cx, 0, n);
            ftl.rings.get(1).admission.acquire(&cx, Origin::User, n).await;
            assert_eq!(most_claimed(&ftl, line), alone - n, "{n} sectors of users are buffered");
            ftl.rings.get(1).admission.release(&cx, n, 0);
        }
    });
}

/// With nothing on its way a victim is taken for what the reserve covers; with something on its way in
/// whichever pool, it must find its room.
#[test]
fn what_comes_is_asked_of_all_pools() {
    on_half_valid(async |ftl, _| {
        let lines = [part_valid(&ftl, 0), part_valid(&ftl, 1)];
        ftl.pools.get(1).collector.claim.store(1 << 30, Ordering::Release);
        assert!(lines.iter().all(|line| !ftl.has_room(*line) && ftl.fits(*line)));
        ftl.pools.get(1).lock().make_victim(lines[1]);
        assert!(!ftl.fits(lines[0]), "a victim is on its way in the other pool");
        ftl.pools.get(1).lock().make_freeing(lines[1]);
        assert!(!ftl.fits(lines[0]), "and waits to be freed");
    });
}

/// Nothing takes data any more in any pool, and nothing can be opened; lines that are open are gone.
fn corner(ftl: &HostFtl) {
    for pool in ftl.pools.iter() {
        let mut p = pool.lock();
        (p.current, p.spare, p.opens) = (None, None, false);
        let empty = |id: u32| ftl.lines.valid(id) == 0;
        let lines = p.lines().filter(|(id, l)| l.state == LineState::Open || empty(*id));
        let gone: Vec<u32> = lines.map(|(id, _)| id).collect();
        gone.iter().for_each(|id| p.line_mut(*id).state = LineState::Free);
        gone.iter().for_each(|id| p.line_mut(*id).open = None);
        p.meta_reserve = 1 << 40;
    }
}

/// All that is valid in a line is garbage now.
fn make_garbage(ftl: &HostFtl, line: u32) {
    let chunks = ftl.pools.of_line(line).lock().line(line).chunks.clone();
    let len = u64::from(ftl.shape.chunk_sectors);
    let sectors = chunks.iter().flat_map(|c| u64::from(*c) * len..(u64::from(*c) + 1) * len);
    sectors.filter(|at| ftl.lines.is_valid(*at)).for_each(|at| ftl.lines.invalidate(at));
}

/// Users have no share, and every pool has collected as often as this.
fn collected(ftl: &HostFtl, cx: &Cx, fruitless: u64) {
    ftl.rings.set_shares(cx, 0, 64);
    ftl.gc.enabled.store(true, Ordering::Release);
    ftl.pools.iter().for_each(|pool| {
        pool.collector.fruitless.store(fruitless, Ordering::Relaxed);
        pool.collector.since.store(ftl.changes(), Ordering::Relaxed);
    });
}

/// Nothing can be opened: that is the end only if what is to be freed waits for the rings, not when its
/// barrier has passed. The text blames no bad chunks where there are none.
#[test]
fn a_verdict_is_about_what_still_comes() {
    on_half_valid(async |ftl, cx| {
        assert!(!ftl.is_stranded(), "{}", ftl.room_report(STRANDED));
        corner(&ftl);
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
        collected(&ftl, &cx, 1 << 20);
        *ftl.gc.barrier.lock() = Barrier::Passed;
        assert!(!ftl.is_exhausted(None), "shares follow in a moment");
        *ftl.gc.barrier.lock() = Barrier::Idle;
        assert!(!ftl.is_exhausted(None), "a line is about to be freed");
        let state = |id: u32, state: LineState| {
            ftl.pools.of_line(id).lock().line_mut(id).state = state;
        };
        state(line, LineState::Victim);
        assert!(!ftl.is_exhausted(None), "or is being moved");
        state(line, LineState::Closed);
        ftl.gc.force(true);
        assert!(ftl.worth_collecting(ftl.pools.get(0)).is_none());
        assert!(ftl.is_exhausted(None), "every line was collected for nothing");
        ftl.note_changes(1);
        assert!(!ftl.is_exhausted(None), "garbage or room has changed since");
        assert!(ftl.worth_collecting(ftl.pools.get(0)).is_some());
        collected(&ftl, &cx, 1 << 20);
        let valid = ftl.lines.valid(line);
        make_garbage(&ftl, line);
        assert!(valid > 0 && !ftl.is_exhausted(None), "all of a line is garbage: that is room");
        state(line, LineState::Freeing);
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
    });
}

/// A line whose first metadata is programmed is not the spare yet for a moment: it comes all the same. And a
/// unit is in nobody's sight while a drainer has it in hand, nor is a failed one before its ring has it again.
#[test]
fn what_is_in_nobodys_sight_still_comes() {
    on_half_valid(async |ftl, cx| {
        let mut buf = vec![7; ftl.info.content_bytes];
        let io = Io::of(BlockOp::Write, Lba::new(0), 1, false, &mut buf);
        BlockDev::start(&*ftl, &cx, io).await.expect("a write");
        let place = ftl.pools.get(0).lock().current;
        let open = |id: u32| ftl.pools.of_line(id).lock().line_mut(id).open.take();
        let opened = open(place.expect("pool 0 has a line"));
        let reserve = ftl.pools.get(1).lock().meta_reserve;
        corner(&ftl);
        collected(&ftl, &cx, 0);
        assert!(ftl.is_exhausted(None), "{}", ftl.room_report(EXHAUSTED));
        let line = part_valid(&ftl, 1);
        ftl.pools.get(1).lock().line_mut(line).state = LineState::Open;
        assert!(!ftl.is_exhausted(None), "it takes data in a moment");
        ftl.pools.get(1).lock().line_mut(line).state = LineState::Closed;

        let ring = ftl.rings.iter().find(|ring| ring.state.now(|r| r.waiting() > 0));
        let ring = ring.expect("a sector waits for company");
        let mut unit = Unit::default();
        ring.state.now(|r| {
            r.cover_for(true);
            r.take_unit(&ftl.slab, ftl.shape.unit as usize, &mut unit);
            assert!(unit.slots.len() == 1 && r.waiting() == 0);
        });
        assert!(ftl.is_exhausted(None), "there is no place for it");
        let opens = |opens: bool, reserve: u64| {
            let mut p = ftl.pools.get(1).lock();
            (p.opens, p.meta_reserve) = (opens, reserve);
        };
        opens(true, reserve);
        assert!(!ftl.is_exhausted(None), "pool 1 has chunks for another line");
        opens(false, 1 << 40);
        assert!(ftl.is_exhausted(None), "now it has none again");
        {
            let (id, mut p) = (place.expect("as above"), ftl.pools.get(0).lock());
            p.current = place;
            (p.line_mut(id).state, p.line_mut(id).open) = (LineState::Open, opened);
        }
        assert!(!ftl.is_exhausted(None), "it goes to pool 0");
        ring.state.now(|r| {
            r.retry(unit.slots[0]);
            r.unit_done(unit.id);
        });
        assert!(!ftl.is_exhausted(None), "it failed and goes out again");
        ring.state.now(|r| {
            let mut again = Unit::default();
            r.take_unit(&ftl.slab, ftl.shape.unit as usize, &mut again);
            r.retried(1);
            r.unit_done(again.id);
        });
        assert!(!ftl.is_exhausted(None), "somebody is admitted, and in no ring yet");
        ring.admission.release(&cx, 1, 0);
        assert!(ftl.is_exhausted(None), "{}", ftl.room_report(EXHAUSTED));
    });
}

/// Collecting a line in which nothing is valid wins all of it: only the others are counted.
#[test]
fn free_rides_are_not_fruitless() {
    on_half_valid(async |ftl, cx| {
        corner(&ftl);
        collected(&ftl, &cx, 0);
        ftl.gc.force(true);
        let pool = ftl.pools.get(1);
        let line = part_valid(&ftl, 1);
        make_garbage(&ftl, line);
        let fruitless = || pool.collector.fruitless.load(Ordering::Relaxed);
        assert_eq!(ftl.take_victim(pool, false), Some((line, Reason::Room)));
        assert_eq!(fruitless(), 0);
        pool.lock().back_to_closed(line);
        pool.lock().line_mut(line).state = LineState::Free;
        assert!(ftl.take_victim(pool, false).is_some_and(|(line, _)| ftl.lines.valid(line) > 0));
        assert_eq!(fruitless(), 1);
    });
}

/// Keeps from lines what is above the reserve, so that users lose their share.
fn to_the_reserve(ftl: &HostFtl, cx: &Cx) {
    for pool in ftl.pools.iter() {
        let reserve = pool.limiter.lock().levels().reserve;
        let mut p = pool.lock();
        p.meta_reserve += p.free_chunks() - reserve;
    }
    ftl.pool_moved(cx);
    assert_eq!(ftl.shares().users, 0);
}

/// A target at its reserve has collected each of its lines twice, for nothing; then all is discarded. Its
/// lines are taken in one go and not one is free yet: it takes writes again, all the same.
#[test]
fn a_discard_of_all_helps_a_target_at_its_reserve() {
    on_half_valid(async |ftl, cx| {
        to_the_reserve(&ftl, &cx);
        for pool in ftl.pools.iter() {
            let lines = pool.lock().lines().count() as u64;
            pool.collector.fruitless.store(2 * lines + 1, Ordering::Relaxed);
        }
        let all = ftl.info.capacity as u32;
        let lba = Lba::new(0);
        let io = Io::of(BlockOp::Discard, lba, all, false, &mut []);
        BlockDev::start(&*ftl, &cx, io).await.expect("a discard");
        ftl.gc.enabled.store(true, Ordering::Release);
        ftl.wake_collectors(&cx);
        cx.sleep(Ns::from_secs(1)).await;
        ftl.check_writable().expect("all is garbage");
        let mut buf = vec![7; 4 * ftl.info.content_bytes];
        let io = Io::of(BlockOp::Write, lba, 4, true, &mut buf);
        BlockDev::start(&*ftl, &cx, io).await.expect("a write");
        ftl.check_writable().expect("and goes on taking them");
    });
}

/// When collections have come to nothing no other line is begun: what is on its way is waited for, then the
/// target gives up.
#[test]
fn nothing_more_is_collected_in_vain() {
    on_half_valid(async |ftl, cx| {
        to_the_reserve(&ftl, &cx);
        for pool in ftl.pools.iter() {
            let gone = |id: u32, l: &Line| l.state == LineState::Closed && ftl.lines.valid(id) == 0;
            let mut p = pool.lock();
            let gone: Vec<u32> = p.lines().filter(|(id, l)| gone(*id, l)).map(|l| l.0).collect();
            gone.iter().for_each(|id| p.line_mut(*id).state = LineState::Free);
        }
        let line = part_valid(&ftl, 1);
        ftl.pools.get(1).lock().make_victim(line);
        collected(&ftl, &cx, 1 << 20);
        ftl.wake_collectors(&cx);
        cx.sleep(Ns::from_secs(1)).await;
        ftl.check_writable().expect("a line is being moved");
        let best = ftl.candidate(ftl.pools.get(0), false).expect("lines are half valid");
        assert!(ftl.fits(best.0), "there is room for it");
        assert_eq!(ftl.counters.gc_victims.load(Ordering::Relaxed), 0);
        ftl.pools.get(1).lock().back_to_closed(line);
        ftl.wake_collectors(&cx);
        cx.sleep(Ns::from_secs(1)).await;
        assert!(ftl.read_only() && ftl.counters.gc_victims.load(Ordering::Relaxed) == 0);
    });
}

// Other cores' steps can be taken in such builds only.
#[cfg(debug_assertions)]
mod meanwhile;
