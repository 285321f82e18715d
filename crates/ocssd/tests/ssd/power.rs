//! Power cuts at every moment (D8, facts D19 and D21).

use crate::common::*;
use flashlane_ocssd::spec::Pairing;

fn us(n: u64) -> Ns {
    Ns::from_us(n)
}

/// Submits writes of one vector and a reset, waits until `cut`, and cuts.
fn cut_at(spec: &DeviceSpec, seed: u64, cut: u64) -> (Bench, Arc<Ssd>) {
    let (b, ssd) = Bench::of(spec, SsdOptions { seed, ..memory() });
    for pu in 0..4 {
        b.write_up_to(pu, 0, 64, 9);
    }
    let vector = b.at(&[(0, 1, 0, 8), (1, 1, 0, 4), (2, 1, 0, 4), (0, 2, 0, 4)]);
    let resets = b.at(&[(3, 0, 0, 1), (2, 0, 0, 1)]);
    let device = ssd.clone();
    b.run(|cx, dev| async move {
        let filled = Filled::new(vector.len(), 4096, 5);
        let _ = dev.submit(&cx, filled.request(&vector, false));
        let _ = dev.submit(&cx, Request::plain(Op::Reset, &resets));
        cx.sleep(us(cut)).await;
        device.power_cut(cx.now(), PowerOn::ClockRestarts);
    });
    (Bench::new(ssd.clone()), ssd)
}

/// D19: the report is the same before and after a power cycle of an idle device.
#[test]
fn d19_the_report_survives() {
    let (b, ssd) = Bench::of(&tiny(|_| {}), memory());
    b.write_up_to(0, 0, 64, 1);
    b.write_up_to(0, 1, 20, 2);
    b.write_up_to(3, 5, 4, 3);
    b.reset(0, 0);
    b.reset(1, 1);
    let report = || (0..4).map(|pu| ssd.chunk_report(pu, 0, 16)).collect::<Vec<_>>();
    let before = report();
    for then in [PowerOn::ClockGoesOn, PowerOn::ClockRestarts] {
        assert_eq!(ssd.power_cut(b.now(), then), Default::default());
        assert_eq!(report(), before);
    }
    assert!(b.read(&[(0, 1, 0, 1)]).holds(0, 2));
    b.write_up_to(0, 1, 64, 2);
    assert!(b.read(&[(0, 1, 63, 1)]).holds(0, 2));
}

/// D21: a cut in the middle of a vector leaves any subset of its units, never half of one, in every
/// chunk a prefix; each state is what the pointer says; everything can be erased and used again.
#[test]
fn d21_a_cut_leaves_whole_units() {
    for queue in [DieQueue::Fifo, DieQueue::ReadFirst, DieQueue::Suspend] {
        let spec = tiny(|s| {
            s.timing.queue = queue;
            s.geometry.mw_cunits = 0;
        });
        let mut seen = std::collections::BTreeSet::new();
        for cut in (0..6200).step_by(37) {
            let (b, ssd) = cut_at(&spec, 1, cut);
            let mut shape = Vec::new();
            for (pu, chunk, sectors) in [(0, 1, 8), (1, 1, 4), (2, 1, 4), (0, 2, 4)] {
                let info = b.info(pu, chunk);
                assert_eq!(info.write_pointer % 4, 0);
                assert!(info.write_pointer <= sectors);
                let free = info.state == ChunkState::Free;
                assert_eq!(free, info.write_pointer == 0, "{info:?}");
                let mut torn = false;
                for unit in 0..info.write_pointer / 4 {
                    let got = b.read(&[(pu, chunk, unit * 4, 4)]);
                    let good = (0..4).all(|i| got.holds(i, 5));
                    let bad = (0..4).all(|i| got.done.status(i) == Status::Uncorrectable);
                    assert!(good || bad, "half a unit");
                    assert!(!(torn && good), "a unit behind a torn one");
                    torn |= bad;
                }
                shape.push((info.write_pointer, torn));
                b.reset(pu, chunk);
                b.write_up_to(pu, chunk, 64, 1);
                assert!(b.read(&[(pu, chunk, 0, 1)]).holds(0, 1));
            }
            for pu in [2, 3] {
                erased_or_not(&b, pu, &mut shape);
            }
            seen.insert(shape);
            assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
        }
        assert!(seen.len() >= 6, "the cut hits several phases: {seen:?}");
    }
}

/// An erase that was cut: the old content, a chunk that must be erased again, or a free one.
fn erased_or_not(b: &Bench, pu: u32, shape: &mut Vec<(u32, bool)>) {
    let info = b.info(pu, 0);
    let got = b.read(&[(pu, 0, 0, 4), (pu, 0, 60, 4)]);
    match info.state {
        ChunkState::Free => assert!((0..8).all(|i| got.empty(i))),
        ChunkState::Closed => {
            let intact = (0..8).all(|i| got.holds(i, 9));
            let lost = (0..8).all(|i| got.done.status(i) == Status::Uncorrectable);
            assert!(intact || lost);
            assert_eq!(b.reset(pu, 0), Status::Ok);
        }
        other => panic!("{other:?}"),
    }
    shape.push((info.write_pointer, got.done.failed != 0));
    b.write_up_to(pu, 0, 4, 1);
}

/// What ended before the cut is there; what is sent after the power is back works; the device's
/// own time goes on.
#[test]
fn what_was_over_is_there() {
    let (b, ssd) = cut_at(&tiny(|_| {}), 1, 100_000);
    assert_eq!(b.info(0, 1).write_pointer, 8);
    assert_eq!(b.info(3, 0).state, ChunkState::Free);
    b.write_up_to(0, 1, 64, 5);
    assert!(b.read(&[(0, 1, 0, 1)]).holds(0, 5));
    assert_eq!(b.write(&[(0, 1, 0, 4)], 1).failed, 0xf);
    let said = ssd.violations()[0].to_string();
    assert!(b.now() < Ns::from_ms(50) && said.contains("programmed at 1"), "{said}");
}

/// A torn upper page takes its programmed lower page along, sometimes, where the device says so.
#[test]
fn a_torn_page_may_damage_its_pair() {
    let lost = |pair_damage: bool, seed| {
        let spec = tiny(|s| {
            s.cells.bits = 2;
            s.cells.pairing = Pairing::Mlc;
            s.cells.pair_damage = pair_damage;
            s.geometry.mw_cunits = 12;
        });
        let (b, ssd) = Bench::of(&spec, SsdOptions { seed, ..memory() });
        b.write_up_to(0, 0, 8, 5); // rows 0 and 1; row 2 is the mate of row 0
        let at = b.at(&[(0, 0, 8, 4)]);
        let device = ssd.clone();
        let cut = b.run(|cx, dev| async move {
            let filled = Filled::new(4, 4096, 5);
            let _ = dev.submit(&cx, filled.request(&at, false));
            cx.sleep(us(300)).await;
            device.power_cut(cx.now(), PowerOn::ClockRestarts)
        });
        assert_eq!(cut.torn_programs, 1);
        let b = Bench::new(ssd.clone());
        b.write_up_to(0, 0, 64, 6);
        let got = b.read(&[(0, 0, 0, 1), (0, 0, 4, 1), (0, 0, 8, 1), (0, 0, 12, 1)]);
        assert!(got.holds(1, 5) && got.holds(3, 6));
        assert_eq!(got.done.status(2), Status::Uncorrectable);
        got.done.status(0) == Status::Uncorrectable
    };
    assert!((0..20).all(|seed| !lost(false, seed)));
    let damaged = (0..40).filter(|seed| lost(true, *seed)).count();
    assert!((10..30).contains(&damaged), "{damaged} of 40");
    assert_eq!(lost(true, 3), lost(true, 3));
}

/// Capacitors: what was accepted is completed.
#[test]
fn capacitors_finish_what_was_accepted() {
    let spec = tiny(|s| {
        s.limits.capacitors = true;
        s.geometry.mw_cunits = 0;
    });
    let (b, _) = cut_at(&spec, 1, 20);
    assert_eq!(b.info(0, 1).write_pointer, 8);
    assert!(b.read(&[(0, 1, 4, 1), (0, 2, 0, 1)]).holds(1, 5));
    assert_eq!(b.info(3, 0).state, ChunkState::Free);
}

/// A second cut right after the first changes nothing; a ticket from before it fails.
#[test]
fn a_second_cut_changes_nothing_and_old_tickets_fail() {
    let (b, ssd) = Bench::of(&tiny(|_| {}), memory());
    let at = b.at(&[(0, 0, 0, 8)]);
    let device = ssd.clone();
    b.run(|cx, dev| async move {
        let filled = Filled::new(8, 4096, 5);
        let ticket = dev.submit(&cx, filled.request(&at, false));
        cx.sleep(us(700)).await;
        assert_eq!(device.power_cut(cx.now(), PowerOn::ClockGoesOn).torn_programs, 1);
        let report = device.chunk_report(0, 0, 16);
        assert_eq!(device.power_cut(cx.now(), PowerOn::ClockGoesOn), Default::default());
        assert_eq!(device.chunk_report(0, 0, 16), report);
        let done = dev.wait(&cx, ticket).await;
        assert_eq!(done.failed, u64::MAX);
        // Names of before do not meet commands of now.
        let done = write(&cx, &*dev, &at, 1).await;
        assert_eq!(done.status.len(), 8);
    });
}

/// What waits is undone from the latest submission to the earliest: behind a reset that never began, a
/// write of the same chunk is gone, and the old content is whole.
#[test]
fn a_reset_and_what_waits_behind_it_are_undone_in_turn() {
    let spec = tiny(|_| {});
    let (b, ssd) = Bench::of(&spec, memory());
    b.write_up_to(0, 3, 64, 1);
    b.write_up_to(0, 4, 64, 1);
    let (busy, chunk) = (b.at(&[(0, 4, 0, 1)]), b.at(&[(0, 3, 0, 4)]));
    b.run(|cx, dev| async move {
        // The die erases one chunk while the other's reset and write wait for it.
        let _ = dev.submit(&cx, Request::plain(Op::Reset, &busy));
        let _ = dev.submit(&cx, Request::plain(Op::Reset, &chunk[..1]));
        let filled = Filled::new(4, dev.traits().content_bytes, 2);
        let _ = dev.submit(&cx, filled.request(&chunk, false));
        cx.sleep(Ns::from_us(50)).await;
    });
    let cut = ssd.power_cut(b.now(), PowerOn::ClockGoesOn);
    assert_eq!((cut.torn_erases, cut.lost_erases, cut.lost_programs), (1, 1, 1), "{cut:?}");
    assert_eq!((b.info(0, 3).state, b.info(0, 3).write_pointer), (ChunkState::Closed, 64));
    // What the die was at must be erased again.
    assert_eq!((b.info(0, 4).state, b.info(0, 4).write_pointer), (ChunkState::Closed, 64));
    let got = b.read(&[(0, 3, 0, 64)]);
    assert!((0..64).all(|i| got.holds(i, 1)), "{:?}", got.done);
}

/// A program that a read has interrupted has begun: a cut tears it.
#[test]
fn a_cut_tears_a_program_that_is_halted() {
    let spec = tiny(|s| s.timing.queue = DieQueue::Suspend);
    let (b, ssd) = Bench::of(&spec, memory());
    b.write_up_to(0, 0, 64, 1);
    let (unit, old) = (b.at(&[(0, 1, 0, 4)]), b.at(&[(0, 0, 0, 4)]));
    let device = ssd.clone();
    let cut = b.run(|cx, dev| async move {
        let filled = Filled::new(4, dev.traits().content_bytes, 2);
        let _ = dev.submit(&cx, filled.request(&unit, false));
        cx.sleep(us(200)).await;
        let flags = Flags { suspend: true, ..Flags::default() };
        let unit = dev.traits().content_bytes;
        let (mut base, mut oob) = (vec![0; unit * 4], [[0; OOB_BYTES]; 4]);
        let content = Scatter::new(&mut base, &[0, 1, 2, 3], unit);
        let ticket = dev.submit(&cx, Request::read(&old, content, &mut oob).with(flags));
        cx.sleep(us(20)).await;
        let cut = device.power_cut(cx.now(), PowerOn::ClockGoesOn);
        dev.wait(&cx, ticket).await;
        cut
    });
    assert_eq!((cut.torn_programs, cut.lost_programs), (1, 0), "{cut:?}");
    assert_eq!(b.info(0, 1).write_pointer, 4);
}
