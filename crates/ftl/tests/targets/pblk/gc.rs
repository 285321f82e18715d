//! Garbage collection and the limiter (P25, G01–G15).
//!
//! Owns: one test per claim. Lines have 248 data sectors; data written in order fills them in
//! order, so line k of a fresh target holds sectors 248 k to 248 k + 247.

use crate::prelude::*;

fn small() -> Setup {
    tiny(40)
}

/// `lines` full lines of data, GC by hand.
fn full_lines(lines: u64) -> Bench {
    let b = small().manual_gc().build();
    b.write(0, (lines * 248) as u32, 1);
    b.drained();
    assert_eq!(b.lines(LineState::Closed) as u64, lines);
    b
}

/// G01: the victim is the line with the fewest valid sectors, by one sector as well. (pblk sorts
/// lines into groups of a quarter; ours counts.)
#[test]
fn the_line_with_the_fewest_valid_sectors_goes_first() {
    let b = full_lines(5);
    for (line, invalid) in [(0, 62), (1, 63), (2, 124), (3, 1), (4, 123)] {
        b.discard(line * 248, invalid);
    }
    let mut moved = 0;
    for invalid in [124, 123, 63, 62] {
        assert!(b.gc_once());
        assert_eq!(b.stats().gc_moved - moved, 248 - invalid);
        moved = b.stats().gc_moved;
    }
    assert_eq!(b.count(Cause::Gc), moved);
    b.settled();
}

/// G02, G08: a line with nothing valid is freed without a read, exactly once; a line that is valid
/// throughout is never chosen.
#[test]
fn empty_lines_are_freed_unread_and_full_ones_never() {
    let b = full_lines(4);
    assert!(!b.gc_once(), "all lines are valid throughout");
    b.discard(248, 248);
    let (free, reads) = (b.free_chunks(), of(&b.trace.entries(), Op::Read).len());
    assert!(b.gc_once());
    let s = b.stats();
    assert_eq!((s.gc_victims, s.gc_free_rides, s.gc_moved), (1, 1, 0));
    assert_eq!(b.free_chunks(), free + 4);
    assert_eq!(of(&b.trace.entries(), Op::Read).len(), reads);
    assert!(!b.gc_once(), "and only once");
    assert_eq!(b.free_chunks(), free + 4);
    b.settled();
}

/// G02: with GC on, an empty line comes back by itself, however much is free.
#[test]
fn an_empty_line_needs_no_pressure() {
    let b = small().build();
    b.write(0, 3 * 248, 1);
    b.drained();
    let free = b.free_chunks();
    b.discard(0, 2 * 248);
    b.write(3000, 248, 1); // lines move, so GC looks
    b.drained();
    assert_eq!(b.stats().gc_free_rides, 2);
    assert_eq!(b.free_chunks(), free + 2 * 4 - 4);
    b.settled();
}

/// G03: a line whose sectors are partly still in slots (programs under way, read-back windows) is
/// no victim, however little of it is valid.
#[test]
fn a_line_with_sectors_in_slots_is_no_victim() {
    let b = small().manual_gc().build();
    b.write(0, 248, 1);
    b.discard(0, 200);
    let collected = b.begin_gc();
    assert!(!b.wait(collected), "its last units are under way");
    assert_eq!(b.stats().gc_victims, 0);
    b.drained();
    assert!(b.gc_once());
    b.settled();
}

/// G03: neither is a line whose programs have ended while their completions are still being worked
/// on, so that its sectors are not in the map yet: what looks like no valid sector is not one. It is not closed
/// before they are (FORMAT.md, rule 8).
#[test]
fn a_line_whose_completions_are_late_is_no_victim() {
    let b = small().untimed().cost("complete.unit", "10ms").build();
    b.write(0, 4, 1);
    b.sleep(Ns::from_ms(1));
    // The open lines close early; GC is on and frees lines with nothing valid at once.
    b.dev.set_active_pus(&b.cx, 3).expect("enough spare");
    b.sleep(Ns::from_ms(2));
    assert_eq!(b.lines(LineState::Closing), 1, "a unit of it is in flight");
    b.rest();
    assert_eq!(
        b.stats().gc_free_rides,
        1,
        "the spare is empty, in the other line live four sectors"
    );
    for version in 2..6 {
        b.fill(version);
    }
    b.settled();
}

/// The limiter is a knob that can be turned while garbage is collected.
#[test]
fn the_limiter_can_be_changed_under_load() {
    let b = small().build();
    assert_eq!(b.attribute("limiter"), "pid");
    for (version, name) in (1..).zip(["kernel_table", "channel_states", "off", "pid"]) {
        b.fill(version);
        b.dev.set_attribute(&b.cx, "limiter", name).expect("a limiter");
        assert_eq!(b.attribute("limiter"), name);
        b.fill(version + 10);
    }
    let refused = b.dev.set_attribute(&b.cx, "limiter", "none").expect_err("no limiter");
    assert!(refused.to_string().contains("kernel_table"), "{refused}");
    assert_eq!(b.attribute("limiter"), "pid");
    assert!(b.stats().gc_victims + b.stats().gc_free_rides > 0, "it was collected");
    b.settled();
}

/// G04, G15: overwrites at any moment of a collection win: before the victim is read, while it is
/// read, while the copy is in the ring, while it is programmed; with and without a flush between.
#[test]
fn overwrites_during_a_collection_win() {
    for delay in [0, 20, 60, 120, 200, 300, 500, 900, 1500, 4000] {
        for flush in [false, true] {
            let b = full_lines(3);
            b.discard(248, 31);
            let gc = b.begin_gc();
            b.sleep(Ns::from_us(delay));
            for lba in (248 + 31..2 * 248).step_by(3) {
                b.write(lba, 1, 2);
                if flush && lba % 5 == 0 {
                    b.flush();
                }
            }
            b.discard(300, 10);
            b.read(248, 248);
            assert!(b.wait(gc));
            b.drained();
            b.dev.check_consistency().expect("each sector valid once");
            b.settled();
        }
    }
}

/// P25: reads in flight to a line that is moved, freed and erased get the data of their sectors: no
/// chunk is erased before every read that was sent to it has ended.
#[test]
fn a_line_is_erased_only_after_its_reads_have_ended() {
    let b = small().op(55).build();
    b.fill(1);
    let mut reads = Vec::new();
    for round in 0..b.capacity() * 2 {
        let lba = round * 37 % (b.capacity() - 16);
        let write = b.begin_write(lba, 1, round + 2);
        b.wait(write).expect("a write");
        if round % 8 == 0 {
            // Of sectors that nobody writes before the read is submitted, which is at once.
            reads.push(b.begin_read((lba + 4000) % (b.capacity() - 16), 16));
            b.sleep(Ns::from_us(1));
        }
    }
    for read in reads {
        b.wait(read).expect("readable");
    }
    let mut until: BTreeMap<(u32, u32), Ns> = BTreeMap::new();
    let mut erased = 0;
    for e in b.trace.entries() {
        for addr in &e.addrs {
            let at = b.place(*addr);
            let until = until.entry((at.pu, at.chunk)).or_insert(Ns::ZERO);
            match e.op {
                Op::Read => *until = (*until).max(e.finished.expect("ended")),
                Op::Reset => {
                    assert!(e.submitted >= *until, "{e}");
                    erased += 1;
                }
                _ => {}
            }
        }
    }
    assert!(erased > 20);
    b.settled();
}

/// G12: a full device of which one sector is written for ever: its lines are freed without moves,
/// for the cost of nothing but the sector.
#[test]
fn overwrites_of_one_sector_are_free_rides() {
    let b = small().untraced().build();
    b.fill(1);
    b.drained();
    for i in 0..8000 {
        b.write(77, 1, i + 2);
        if i % 4 == 0 {
            b.flush();
        }
    }
    b.drained();
    let s = b.stats();
    assert!(s.gc_free_rides > 10, "{}", s.gc_free_rides);
    assert!(s.gc_moved <= 248 * 2, "{}", s.gc_moved);
    b.settled();
}

/// G12: a full device, then discards of everything: all closed lines come back.
#[test]
fn discards_of_everything_bring_the_space_back() {
    let b = small().build();
    let fresh = b.free_chunks();
    b.fill(1);
    b.overwrite(4, 200, 2);
    b.drained();
    b.discard(0, b.capacity());
    b.write(0, 300, 9); // lines move, so GC looks
    b.drained();
    b.rest();
    // At most the line that was open, the one the tail closed, and the barrier's.
    assert!(b.lines(LineState::Closed) <= 2, "{}", b.attribute("lines"));
    assert!(b.free_chunks() + 4 * 4 >= fresh, "{}", b.attribute("lines"));
    b.read_all();
    b.fill(10);
    b.settled();
}

/// G14: forced collection takes victims while plenty is free; switched off it takes none, and the
/// running one is finished.
#[test]
fn forced_collection_can_be_switched_during_load() {
    let b = small().build();
    b.write(0, 1500, 1);
    b.drained();
    let load = |version| {
        for i in 0..150 {
            b.write(i * 11 % 1500, 1, version + i);
        }
    };
    load(1000);
    b.rest();
    assert_eq!(b.stats().gc_victims, 0, "plenty is free");
    assert_eq!(b.attribute("gc_force"), "0");
    b.dev.set_attribute(&b.cx, "gc_force", "1").expect("on");
    assert_eq!(b.attribute("gc_force"), "1");
    b.rest();
    assert!(b.stats().gc_victims > 0);
    load(2000);
    b.dev.set_attribute(&b.cx, "gc_force", "0").expect("off");
    b.drained();
    assert_eq!(b.lines(LineState::Victim) + b.lines(LineState::Freeing), 0);
    let victims = b.stats().gc_victims;
    load(3000);
    b.drained();
    assert_eq!(b.stats().gc_victims, victims);
    assert_eq!(b.attribute("gc_state"), "gc_enabled=0 gc_active=0");
    assert_eq!(b.attribute("gc_force"), "0");
    b.set_gc(true);
    b.settled();
}

/// Active PUs can be changed under load: lines of the old width are closed, new ones are of the new
/// width, nothing is lost; widths that the spare does not cover are refused.
#[test]
fn active_pus_change_under_load() {
    let b = small().op(60).build();
    b.fill(1);
    for (round, width) in [2u32, 1, 3, 0, 4].into_iter().enumerate() {
        b.dev.set_attribute(&b.cx, "active_pus", &width.to_string()).expect("enough spare");
        b.overwrite(4, 200, 2 + round as u64);
        b.drained();
        let luns = b.attribute("write_luns").split(' ').count();
        assert_eq!(luns, if width == 0 { 4 } else { width as usize });
    }
    assert!(b.dev.set_attribute(&b.cx, "active_pus", "5").is_err());
    b.settled();
}
