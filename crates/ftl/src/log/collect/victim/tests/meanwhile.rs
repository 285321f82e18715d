//! Verdicts while other cores go on: each test takes their step where it would do most harm.
//!
//! Owns: the tests of the orders and locks in `verdict.rs`. Never: depends on a schedule.

use super::*;
use flashlane_rt::sync::rehearse;

/// One sector waits in a ring, and one pool has a line for it; there is nothing else: that ring, and the line.
async fn one_waits(ftl: &Arc<HostFtl>, cx: &Cx) -> (usize, u32) {
    let mut buf = vec![7; ftl.info.content_bytes];
    let io = Io::of(BlockOp::Write, Lba::new(0), 1, false, &mut buf);
    BlockDev::start(&**ftl, cx, io).await.expect("a write");
    let line = ftl.pools.iter().find_map(|pool| pool.lock().current).expect("a line is open");
    let pool = ftl.pools.of_line(line);
    let opened = pool.lock().line_mut(line).open.take();
    corner(ftl);
    {
        let mut p = pool.lock();
        p.current = Some(line);
        (p.line_mut(line).state, p.line_mut(line).open) = (LineState::Open, opened);
    }
    let waits = |ring: &usize| ftl.rings.get(*ring).state.now(|r| r.waiting() > 0);
    let ring = (0..ftl.rings.len()).find(waits).expect("it waits for company");
    ftl.rings.get(ring).state.now(|r| r.cover_for(true));
    (ring, line)
}

fn take_what_waits(ftl: &HostFtl, ring: usize) -> Unit {
    let mut unit = Unit::default();
    ftl.rings.get(ring).state.now(|r| {
        r.take_unit(&ftl.slab, ftl.shape.unit as usize, &mut unit);
    });
    assert!(!unit.slots.is_empty());
    unit
}

/// Another core takes `step` at the `at`-th hesitation of what this one does next.
fn meanwhile(ftl: &Arc<HostFtl>, at: u32, step: impl Fn(&HostFtl) + 'static) {
    let (other, mut hesitations) = (ftl.clone(), 0);
    rehearse(move || {
        if hesitations == at {
            step(&other);
        }
        hesitations += 1;
        hesitations <= at
    });
}

/// While a drainer decides that nothing can be opened, another core would let a barrier pass and free a line: it
/// has to wait, or the verdict sees it.
#[test]
fn no_barrier_passes_during_a_verdict() {
    on_half_valid(async |ftl, _| {
        let reserve = ftl.pools.get(0).lock().meta_reserve;
        corner(&ftl);
        let ends = ftl.rings.iter().map(|ring| ring.state.now(|r| r.tail()));
        *ftl.gc.barrier.lock() = Barrier::Waits(ends.map(|end| end + 1).collect());
        for at in 0..2 {
            meanwhile(&ftl, at, move |other| {
                if let Some(mut barrier) = other.gc.barrier.try_lock() {
                    *barrier = Barrier::Idle;
                    other.pools.get(0).lock().meta_reserve = reserve;
                }
            });
            let stranded = ftl.is_stranded();
            let opens = ftl.pools.get(0).lock().next_width(true).is_some();
            assert!(!(stranded && opens), "at hesitation {at}: a line can be opened");
        }
    });
}

/// The last unit that a barrier waits for ends, and its line closes, while a drainer decides: what was under way when
/// the pools were looked at speaks against the verdict.
#[test]
fn what_ends_during_a_verdict_was_under_way() {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        for at in 0..2 {
            let ftl = half_valid(&cx).await;
            let (ring, line) = one_waits(&ftl, &cx).await;
            let unit = take_what_waits(&ftl, ring).id;
            let state = move |ftl: &HostFtl, state: LineState| {
                let mut p = ftl.pools.of_line(line).lock();
                (p.current, p.line_mut(line).state) = (None, state);
            };
            state(&ftl, LineState::Closing);
            let ends = ftl.rings.iter().map(|ring| ring.state.now(|r| r.tail()));
            *ftl.gc.barrier.lock() = Barrier::Waits(ends.collect());
            meanwhile(&ftl, at, move |other| {
                other.rings.get(ring).state.now(|r| r.unit_done(unit));
                state(other, LineState::Closed);
            });
            assert!(!ftl.is_stranded(), "at hesitation {at}: the barrier can pass");
        }
    })
    .expect("no stall");
}

/// A drainer takes the last unit of a ring, and the last place of a pool that was looked at before: it is under way.
#[test]
fn what_is_taken_during_a_verdict_is_under_way() {
    on_half_valid(async |ftl, cx| {
        let (ring, line) = one_waits(&ftl, &cx).await;
        collected(&ftl, &cx, 1 << 20);
        assert!(!ftl.is_exhausted(None), "it has a place");
        meanwhile(&ftl, 0, move |other| {
            take_what_waits(other, ring);
            let mut p = other.pools.of_line(line).lock();
            p.current = None;
            let open = p.line_mut(line).open.as_mut().expect("it is open");
            (open.in_flight, open.remaining) = (1, open.closing);
            p.line_mut(line).state = LineState::Closed;
        });
        assert!(!ftl.is_exhausted(None), "it is being programmed");
    });
}

/// A collection by hand takes a line while a collector decides that none is worth it: it has to wait.
#[test]
fn no_victim_is_taken_during_a_verdict() {
    on_half_valid(async |ftl, cx| {
        corner(&ftl);
        let line = part_valid(&ftl, 1);
        for at in 0..2 {
            collected(&ftl, &cx, 1 << 20);
            meanwhile(&ftl, at, move |other| {
                if other.gc.choosing.try_lock().is_some() {
                    other.pools.of_line(line).lock().make_victim(line);
                }
            });
            let exhausted = ftl.is_exhausted(None);
            let victims = ftl.pools.count(LineState::Victim);
            assert!(!exhausted || victims == 0, "at hesitation {at}: a line is being moved");
            assert!(exhausted, "at hesitation {at}: nobody could do anything");
        }
    });
}
