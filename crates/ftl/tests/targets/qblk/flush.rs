//! What is durable when (Q07): flushes over all rings, FUA, writers that move between cores.
//!
//! Owns: the tests. A ring's tail is below one unit of 4 sectors, so nobody drains it without a flush.

use crate::prelude::*;
use crate::qblk::cores::{made, qblk};

/// Q07: a flush from any core, one whose ring is empty, too, makes the tails of all rings durable, those
/// of cores that have been idle since.
#[test]
fn q07_a_flush_covers_the_tails_of_all_rings() {
    for from in 0..6 {
        let b = made(qblk(3, 2, 6));
        for core in 0..5 {
            b.write_on(core, u64::from(core) * 10, 1 + core % 3, 1);
        }
        b.rest();
        assert_eq!(b.stats().buffered_now, 9, "nothing drains a tail");
        b.flush_on(from);
        assert_eq!(b.stats().buffered_now, 0);
        let b = b.cut().mounted();
        b.read_all();
        b.agrees();
    }
}

/// Q07: a flush of nothing returns at once; one of what another core has in flight waits for it.
#[test]
fn q07_a_flush_waits_for_what_others_have_in_flight() {
    let b = made(qblk(2, 2, 4));
    b.flush_on(2);
    let from = b.run.now();
    b.flush_on(1);
    assert_eq!(b.run.now(), from);
    b.write_on(3, 0, 4, 1);
    b.flush_on(0);
    assert!(b.run.now() >= from + Ns::from_us(500), "a program");
    let b = b.cut().mounted();
    b.read_all();
    b.agrees();
}

/// Q07: FUA makes its own sectors durable and leaves other rings' tails where they are.
#[test]
fn q07_fua_concerns_its_own_ring() {
    let b = made(qblk(3, 1, 4));
    b.write_on(0, 0, 1, 1);
    b.write_on(2, 50, 2, 1);
    b.fua_on(1, 20, 3, 1);
    assert_eq!(b.stats().buffered_now, 3, "the others wait on");
    assert_eq!((b.of_rings("mem"), b.of_rings("sync")), (vec![1, 3, 2, 0], vec![0, 3, 0, 0]));
    let b = b.cut().mounted();
    assert!((20..23).all(|lba| b.holds(lba, 1)));
    b.held.borrow_mut().retain(|lba, _| (20..23).contains(lba));
    b.agrees();
}

/// Q07: a FUA write as long as several pieces, beside a full ring of its own.
#[test]
fn q07_a_long_fua_write_is_durable_whole() {
    let b = made(qblk(2, 2, 3));
    let other = b.begin_write_on(1, 500, 200, 1);
    b.fua_on(1, 0, 150, 2);
    b.wait(other).expect("a write");
    let b = b.cut().mounted();
    assert!((0..150).all(|lba| b.holds(lba, 2)));
    b.agrees();
}

/// Q07, Q06, Q23: one writer that moves to another core with every write of the same sector, and flushes
/// from a third: whatever was acknowledged before a flush began is there after a power cut at any time,
/// or a newer one.
#[test]
fn q07_a_flush_races_with_a_migrating_writer() {
    let setup = qblk(3, 1, 5);
    let mut cuts = 0;
    for at in (0..60).map(|i| 1_000 + i * 370) {
        // The target is up after some 10 ms; the writer runs for more than 20.
        let stop = Stop::At(Ns::from_ms(110) + Ns::from_us(at));
        let Up::Running(b) = Medium::new(setup.clone()).create_until(Some(stop)) else {
            panic!("up by then");
        };
        let (acked, durable) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let bytes = b.dev.info().content_bytes;
        let writer = {
            let (cx, dev, acked) = (b.cx.clone(), b.dev.clone(), acked.clone());
            async move {
                for version in 1..100_000u64 {
                    let cx = cx.on_core(flashlane_rt::CoreId(version as u32 % 5));
                    let buf = content(7, version, bytes);
                    let write = Io::write(Lba::new(7), 1, false, &buf);
                    dev.start(&cx, write).await.expect("a write");
                    acked.set(version);
                    cx.sleep(Ns::from_us(3 + version % 7 * 5)).await;
                }
            }
        };
        b.cx.spawn(writer);
        let flusher = {
            let (cx, dev) = (b.at(4), b.dev.clone());
            let (acked, durable) = (acked.clone(), durable.clone());
            async move {
                loop {
                    let before = acked.get();
                    dev.start(&cx, Io::flush()).await.expect("a flush");
                    durable.set(before);
                    cx.sleep(Ns::from_us(100)).await;
                }
            }
        };
        assert!(b.works_until_off(flusher), "the power goes off");
        let b = b.cut().mount(MountOptions::default()).expect("a target");
        // One may have been under way that was not acknowledged.
        let candidates: Vec<u64> = (durable.get()..=acked.get() + 1).collect();
        let found = b.version(7, &candidates).expect("a read");
        assert!(found >= durable.get(), "{found} after {}", durable.get());
        cuts += u64::from(durable.get() > 10);
        b.held.borrow_mut().clear();
        b.agrees();
    }
    assert!(cuts > 30, "{cuts} cuts behind several flushes");
}
