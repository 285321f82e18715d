//! Races on the map and the slots in virtual time (Q01 to Q06): every stage costs something, so that the
//! steps of several cores interleave.
//!
//! Owns: the tests. Within a step nothing interleaves here: that is `threads`.

use crate::prelude::*;
use crate::qblk::cores::{made, qblk};
use flashlane_ftl::log::MapAccess;

fn costly() -> CostTable {
    let text = "name = \"races\"\n[stages]\n\"ring.reserve\" = \"700ns\"\n\"copy.sector\" = \"900ns\"\n\
                \"map.update\" = \"1100ns\"\n\"map.lookup\" = \"500ns\"\n\"drain.unit\" = \"2us\"\n\
                \"complete.unit\" = \"3us\"\n\"pool.take\" = \"300ns\"\n";
    CostTable::from_toml(text).expect("a table")
}

/// Q01, Q06: all cores write one sector at once, again and again, its old content on the medium or in a
/// slot: one of them wins, exactly one old copy dies, the walk finds each sector valid once.
#[test]
fn q01_of_many_writers_of_a_sector_one_survives() {
    for map in [MapAccess::Atomic, MapAccess::Locked] {
        let mut setup = qblk(3, 1, 4);
        setup.costs = costly();
        setup.config.map = map;
        let b = setup.build();
        for round in 0..60u64 {
            let lba = round % 3;
            let begun: Vec<_> = (0..4)
                .map(|core| {
                    b.sleep(Ns::from_ns(round * 37 % 400));
                    b.begin_write_on(core, lba, 1, 4 * round + u64::from(core) + 1)
                })
                .collect();
            for write in begun {
                b.wait(write).expect("a write");
            }
            if round % 3 != 2 {
                b.flush();
            }
            let versions: Vec<u64> = (4 * round + 1..4 * round + 5).collect();
            let found = b.version(lba, &versions).expect("a read");
            b.held.borrow_mut().insert(lba, found);
            if round % 10 == 9 {
                b.drained();
                b.dev.check_consistency().expect("valid exactly once");
            }
        }
        b.settled();
    }
}

/// Q02, Figure 4: a sector is rewritten on another core at any moment of its way from the slot through the
/// program to the map: the map keeps the new one, the programmed copy is garbage.
#[test]
fn q02_a_release_never_takes_the_map_back() {
    for delay in (0..700).step_by(9) {
        let b = qblk(3, 1, 2).with(|s| s.costs = costly()).build();
        b.write_on(0, 4, 4, 1);
        b.sleep(Ns::from_us(delay));
        b.write_on(1, 6, 1, 2);
        b.rest();
        assert!(b.holds(6, 2), "rewritten after {delay} us");
        b.dev.check_consistency().expect("valid once");
        b.drained();
        b.settled();
    }
}

/// Q03: sectors are overwritten from another core at any moment of a collection: the user wins; what the
/// collection has moved already is garbage.
#[test]
fn q03_a_user_wins_against_a_collection() {
    for delay in [0, 20, 50, 90, 140, 200, 300, 500, 900, 1500, 4000] {
        let b = qblk(2, 2, 3).manual_gc().with(|s| s.costs = costly()).build();
        b.write_on(0, 0, 480, 1);
        b.drained();
        b.discard(0, 31);
        let (cx, dev) = (b.at(2), b.dev.clone());
        let gc = b.cx.spawn_join(async move { dev.gc_once(&cx).await });
        b.sleep(Ns::from_us(delay));
        for lba in (31..480).step_by(3) {
            b.write_on(1, lba, 1, 2);
        }
        assert!(b.wait(gc));
        b.drained();
        assert!(b.stats().gc_moved > 0, "{delay}");
        b.dev.check_consistency().expect("valid once");
        b.settled();
    }
}

/// Q04: reads from every core hold addresses of lines that are collected, erased and filled again: none
/// sees another sector's content, and no chunk is erased before every read of it has ended.
#[test]
fn q04_a_line_is_reused_only_behind_its_readers() {
    let b = qblk(2, 2, 4).op(30).build();
    b.fill_on_all(1);
    let mut rng = Rng::stream(1, "q04", 0);
    let mut reads = Vec::new();
    for round in 0..b.capacity() {
        let lba = rng.below(b.capacity() - 16);
        b.write_on(round as u32 % 4, lba, 1, round + 2);
        if round % 4 == 0 {
            reads.push(b.begin_read((lba + b.capacity() / 2) % (b.capacity() - 16), 16));
            b.sleep(Ns::from_us(1));
        }
    }
    for read in reads {
        b.wait(read).expect("readable");
    }
    b.rest();
    erased_behind_reads(&b);
    b.settled();
}

fn erased_behind_reads(b: &Bench) {
    let (entries, mut until) = (b.trace.entries(), BTreeMap::new());
    for e in &entries {
        for addr in &e.addrs {
            let at = b.place(*addr);
            let until = until.entry((at.pu, at.chunk)).or_insert(Ns::ZERO);
            match e.op {
                Op::Read => *until = (*until).max(e.finished.unwrap_or(Ns::MAX)),
                Op::Reset => assert!(e.submitted >= *until, "{e}"),
                _ => {}
            }
        }
    }
    assert!(of(&entries, Op::Reset).len() > 20);
}

/// Q05: slots are used again and again by all cores while others read what was in them: a read has the
/// sector that it asked for, or its newer content.
#[test]
fn q05_a_slot_is_reused_only_behind_its_readers() {
    let b = qblk(2, 1, 3).untraced().with(|s| s.costs = costly()).build();
    for round in 1..200u64 {
        let (lba, version) = (round * 7 % 90, round);
        b.write_on((round % 3) as u32, lba, 4, version);
        let read = b.begin_read(lba, 4);
        let other = b.begin_write_on(((round + 1) % 3) as u32, 200 + round % 50 * 4, 4, version);
        b.wait(read).expect("readable");
        b.wait(other).expect("a write");
    }
    b.drained();
    b.settled();
}

/// Q06: a thread moves from core to core between its writes of one sector, so that copies of it lie in
/// several rings at once: reads give the last, and after the rings are programmed in any order it still is.
#[test]
fn q06_a_sector_in_several_rings_is_the_last_one_written() {
    for rounds in 1..12u64 {
        let b = made(qblk(3, 1, 5));
        for version in 1..=rounds {
            b.write_on((version * 3 % 5) as u32, 6, 1, version);
            b.read(6, 1);
        }
        // The rings are full units in an order of their own.
        for core in [4, 2, 0, 3, 1] {
            b.write_on(core, 100 + u64::from(core) * 10, 3, 1);
            b.sleep(Ns::from_us(200));
        }
        b.read(6, 1);
        b.flush();
        let b = b.cut().mounted();
        assert!(b.holds(6, rounds));
        b.read_all();
        b.agrees();
    }
}
