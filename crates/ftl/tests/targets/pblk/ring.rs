//! The write buffer and the write path (P01–P27 without failures).
//!
//! Owns: one test per claim. Geometry: `tiny`, so a ring of 128, pieces of 32, units of 4, a line
//! of 248 data sectors over 4 PUs; a program takes 500 us and 40 us of transfer.

use crate::prelude::*;
use flashlane_ftl::layer::AttributeError;

fn small() -> Setup {
    tiny(40)
}

/// A bench whose first write is behind it: no log record is due before the next lines.
fn warm(setup: Setup) -> Bench {
    let b = setup.build();
    b.write(900, 4, 1);
    b.drained();
    b
}

/// Slots that users hold.
pub(crate) fn users(b: &Bench) -> u64 {
    let text = b.attribute("rate_limiter");
    let used = text.strip_prefix("u:").and_then(|t| t.split('/').next());
    used.and_then(|u| u.parse().ok()).expect("u:USED/SHARE")
}

/// A number in the `write_buffer` attribute.
pub(crate) fn pointer(b: &Bench, name: &str) -> u64 {
    let text = b.attribute("write_buffer");
    let key = format!("{name}:");
    let field = text.split(' ').find_map(|f| f.strip_prefix(&key));
    field.and_then(|f| f.parse().ok()).expect("a pointer")
}

/// P01: a full ring makes writers wait, and lets them in by their turn as units are programmed;
/// no more slots are ever held than the ring has. (Ours counts credits: no slot stays empty.)
#[test]
fn a_full_ring_lets_writers_in_one_by_one() {
    let b = warm(small());
    let started = b.run.now();
    for lba in 0..128 {
        b.write(lba, 1, 1);
    }
    assert_eq!(b.run.now(), started, "128 slots take 128 sectors at once");
    assert_eq!(users(&b), 128);
    let second = b.begin_write(200, 4, 1);
    let third = b.begin_write(300, 8, 1);
    for _ in 0..100 {
        b.sleep(Ns::from_us(10));
        assert!(users(&b) <= 128);
    }
    b.wait(second).expect("a write");
    b.wait(third).expect("a write");
    let waited = b.run.now() - started;
    assert!(waited >= Ns::from_us(540), "{waited}");
    assert!(b.stats().ring_full > Ns::from_us(540));
    b.settled();
}

/// P01: every pointer goes round many times and ends where the others are.
#[test]
fn the_ring_wraps_and_all_pointers_meet() {
    let b = warm(small().untimed());
    for round in 0..40 {
        b.write(round * 61 % 1000, 61, round + 2);
    }
    b.drained();
    assert_eq!(pointer(&b, "mem"), 40 * 61 + 4);
    assert_eq!(pointer(&b, "subm"), pointer(&b, "mem"));
    assert_eq!(pointer(&b, "sync"), pointer(&b, "mem"));
    assert_eq!(users(&b), 0);
    b.settled();
}

/// P02: a request longer than the ring goes in pieces, in order; one that just fits is taken at
/// once, one sector more waits.
#[test]
fn a_request_longer_than_the_ring_is_split() {
    let b = warm(small());
    let started = b.run.now();
    b.write(0, 128, 1);
    assert_eq!(b.run.now(), started);
    b.drained();
    let started = b.run.now();
    b.write(0, 129, 2);
    assert!(b.run.now() > started);
    let long = b.begin_write(100, 700, 3);
    for _ in 0..200 {
        b.sleep(Ns::from_us(50));
        assert!(users(&b) <= 128);
    }
    b.wait(long).expect("a write");
    b.settled();
}

/// P02: requests outside the device or with a buffer of another size are refused whole.
#[test]
fn a_request_outside_the_device_is_refused() {
    let b = small().build();
    let capacity = b.capacity();
    assert!(b.try_write(capacity, 1, 1, false).is_err());
    assert!(b.try_write(capacity - 1, 2, 1, false).is_err());
    let (cx, dev) = (b.cx.clone(), b.dev.clone());
    let short = b.wait(async move {
        let io = Io::write(Lba::new(0), 2, false, &[0; 8]);
        dev.start(&cx, io).await
    });
    assert!(short.is_err());
    b.write(capacity - 1, 1, 1);
    assert_eq!(b.stats().host_written, 1);
    b.settled();
}

/// P03: a slow producer: until its copy is complete nothing of it is programmed, no flush waits for
/// it, and its sectors read as before; a fast producer beside it goes on.
#[test]
fn a_slow_copy_is_neither_programmed_nor_read() {
    let b = small().untimed().cores(2).cost("copy.sector", "1ms").build();
    b.write(0, 4, 1);
    b.flush();
    let before = b.trace.entries().len();
    let slow = b.begin_write_on(1, 0, 16, 2);
    b.sleep(Ns::from_ms(1));
    b.write(100, 4, 3);
    b.flush();
    assert!(b.holds(0, 1) && b.holds(100, 3));
    let sent: Vec<u64> =
        b.trace.entries()[before..].iter().flat_map(|e| &e.oob).map(lba_of).collect();
    assert!(sent.contains(&100) && !sent.iter().any(|lba| *lba < 16), "{sent:?}");
    b.wait(slow).expect("a write");
    assert!(b.holds(0, 2) && b.holds(15, 2));
    b.settled();
}

/// P04: of two writes of one sector in the ring the newer is read, and the older is neither
/// programmed nor counted as programmed when nobody waits for it.
#[test]
fn an_overwritten_buffered_sector_is_dropped() {
    let b = warm(small());
    let before = b.stats();
    b.write(5, 1, 1);
    b.write(5, 1, 2);
    b.read(5, 1);
    b.write(6, 3, 1);
    b.rest();
    let s = b.stats();
    assert_eq!(s.absorbed, 1);
    assert_eq!(b.count(Cause::User), before.programmed_for(Cause::User) + 4);
    assert_eq!(b.count(Cause::Dead), 0);
    assert_eq!(s.buffered_now, 0);
    b.settled();
}

/// P04: while nobody flushes, a sector that is overwritten again and again costs the medium nothing:
/// what is alive among the dead waits for company like any other.
#[test]
fn overwrites_alone_program_nothing() {
    let b = warm(small());
    let before = b.stats().programmed_for(Cause::User);
    for version in 1..=30 {
        b.write(5, 1, version);
        b.read(5, 1);
    }
    b.rest();
    assert_eq!((b.stats().absorbed, b.stats().buffered_now), (29, 1));
    assert_eq!((b.count(Cause::User), b.count(Cause::PaddingFlush)), (before, 0));
    b.write(6, 3, 1);
    b.rest();
    assert_eq!((b.count(Cause::User), b.count(Cause::PaddingFlush)), (before + 4, 0));
    b.settled();
}

/// A clean stop leaves nothing in the buffer that only a read-back window keeps there: its snapshot
/// is to be the whole map (FORMAT.md, recovery, step 4).
#[test]
fn a_stop_leaves_nothing_in_the_buffer() {
    let b = warm(small());
    b.write(5, 1, 1);
    let slots = b.dev.layout().slots as u64;
    b.flush();
    assert!(pointer(&b, "free") < slots, "programmed, but not yet readable");
    b.stop().expect("a stop");
    assert_eq!(pointer(&b, "free"), slots);
    b.read_all();
    assert_eq!(b.stats().read_from_buffer, 0);
    b.agrees();
}

/// P07 with `pair_damage`: flushes that do nothing but pad fill line after line; the padding leaves
/// the closing metadata its room and ends the line as data does.
#[test]
fn flushes_may_fill_whole_lines_with_padding() {
    let b = small().with(|s| s.spec.cells.pair_damage = true).build();
    for version in 1..=100 {
        b.write(version % 7, 1, version);
        let flushes: Vec<_> = (0..version % 4).map(|_| b.begin_flush()).collect();
        assert!(b.wait_all(flushes).iter().all(Result::is_ok));
    }
    assert!(b.lines(LineState::Closed) > 0);
    b.settled();
}

/// A small `tlc-modern`: 16 PUs, units of 16, 8 units between a sector and its readability; page
/// pairs are lost together when the power goes.
fn tlc() -> Setup {
    let mut setup = tiny(24);
    let spec = DeviceSpec::preset("tlc-modern").expect("a preset");
    setup.spec = spec.with_chunks_per_pu(24);
    setup.spec.geometry.pages_per_block = 48;
    setup
}

/// P07 with `pair_damage`: a flush pads every open chunk, all of them at the same time: it takes as
/// long as one chunk does, and programs no more than one window for each.
#[test]
fn a_flush_pads_all_chunks_at_once() {
    let setup = tlc();
    let slowest = Ns::from_ns(1_249_800 + 100_000); // an upper page and its transfer
    let units = 1 + setup.spec.geometry.mw_cunits / setup.spec.geometry.ws_opt;
    let b = warm(setup);
    for round in 0..3 {
        let (started, padded) = (b.run.now(), b.count(Cause::PaddingPair));
        b.write(round * 256, 256, 1); // a unit for each chunk
        b.flush();
        let took = b.run.now() - started;
        assert!(took <= slowest.times(units as u64), "{took}");
        assert!(took >= Ns::from_ms(2), "a pair was left open: {took}");
        assert_eq!(b.count(Cause::PaddingPair) - padded, 16 * 128);
        assert_eq!(b.stats().read_from_buffer, 0);
        b.read(round * 256, 256);
        assert_eq!(b.stats().read_from_buffer, 0, "what is closed is readable");
    }
    b.settled();
}

/// P07 with `pair_damage`: flushes together pad once: what one has closed the others find closed.
#[test]
fn flushes_together_pad_each_chunk_once() {
    let b = warm(tlc());
    let padded = b.count(Cause::PaddingPair);
    b.write(0, 256, 1);
    let flushes: Vec<_> = (0..5).map(|_| b.begin_flush()).collect();
    assert!(b.wait_all(flushes).iter().all(Result::is_ok));
    assert_eq!(b.count(Cause::PaddingPair) - padded, 16 * 128);
    b.settled();
}

/// With `pair_damage`: a stop among flushes that pad ends after all of them, and nothing is
/// programmed behind it.
#[test]
fn a_stop_waits_for_the_padding_of_flushes() {
    for delay in [0, 100, 300, 2000, 5000] {
        let b = warm(tlc());
        b.write(0, 100, 1);
        let flushes: Vec<_> = (0..3).map(|_| b.begin_flush()).collect();
        b.sleep(Ns::from_us(delay));
        b.stop().expect("a stop");
        let programs = of(&b.trace.entries(), Op::Write).len();
        assert!(b.wait_all(flushes).iter().all(Result::is_ok));
        b.rest();
        assert_eq!(of(&b.trace.entries(), Op::Write).len(), programs, "{delay} us");
        b.read_all();
        b.agrees();
    }
}

/// FORMAT.md rule 18 with `pair_damage`: the spare that creation asks for pays for the padding of
/// flushes and erase barriers too, however much of a chunk that is.
#[test]
fn the_reserve_covers_pair_padding() {
    for window in [8, 16, 24, 32] {
        let mut setup = tiny(60).op(0).untimed().untraced();
        setup.spec.cells.pair_damage = true;
        setup.spec.geometry.mw_cunits = window;
        let b = setup.build();
        b.fill(1);
        for round in 2..40 {
            b.overwrite(4, b.capacity() / 80, round);
            b.flush();
        }
        assert!(b.stats().gc_victims > 20);
        b.settled();
    }
}

/// A device whose pairs reach over most of a chunk is refused, and the message says what would do.
#[test]
fn pairs_as_long_as_a_chunk_are_refused() {
    let mut setup = tiny(60);
    setup.spec.cells.pair_damage = true;
    setup.spec.geometry.mw_cunits = 60;
    setup.config = LogConfig::default();
    let refused = setup.try_create().expect_err("no spare covers that");
    assert!(matches!(refused, CreateError::PairPadding { .. }), "{refused}");
    assert!(refused.to_string().contains("longer chunks"), "{refused}");
}

/// P04: a flush covers the older of two versions as well (FORMAT.md rule 2): it is programmed as
/// dead, counted once, and never valid.
#[test]
fn a_flush_programs_a_dead_sector_as_dead() {
    let b = warm(small());
    b.write(5, 1, 1);
    b.write(5, 1, 2);
    b.flush();
    assert_eq!((b.count(Cause::Dead), b.stats().absorbed), (1, 1));
    assert_eq!(b.count(Cause::PaddingFlush), 2);
    b.rest();
    b.dev.check_consistency().expect("one valid copy at most");
    b.settled();
}

/// P05: an overwrite while the older version is being programmed wins, whenever it comes.
#[test]
fn an_overwrite_of_a_sector_in_flight_wins() {
    for delay in [1, 30, 100, 400, 539, 540, 541, 900] {
        let b = warm(small());
        b.write(0, 4, 1);
        b.sleep(Ns::from_us(delay));
        b.write(1, 2, 2);
        b.read(0, 4);
        b.flush();
        b.read(0, 4);
        assert_eq!(b.stats().absorbed, 0, "the drainer had it first");
        b.settled();
    }
}

/// P06: later units end before an earlier one: the sync pointer stands until the earlier one has
/// ended, then passes all of them at once, and only then the flush returns.
#[test]
fn completions_out_of_order_advance_the_ring_in_order() {
    let b = warm(small());
    let started = b.run.now();
    // Refused, after 5 ms: the unit goes out again and is the last to be programmed.
    b.answer(Op::Write, 0, !0, Status::WriteFault, Ns::from_ms(5));
    b.write(0, 16, 1);
    let flush = b.begin_flush();
    b.sleep(Ns::from_ms(4));
    assert_eq!((pointer(&b, "subm"), pointer(&b, "sync")), (20, 4));
    b.wait(flush).expect("a flush");
    assert!(b.run.now() - started >= Ns::from_us(5540));
    assert_eq!(pointer(&b, "sync"), 20);
    assert_eq!(b.script.answered(), 1);
    b.settled();
}

/// P07: a flush of an empty ring writes nothing.
#[test]
fn a_flush_of_nothing_writes_nothing() {
    let b = warm(small());
    let writes = of(&b.trace.entries(), Op::Write).len();
    b.flush();
    b.flush();
    assert_eq!(of(&b.trace.entries(), Op::Write).len(), writes);
    assert_eq!(b.stats().flushes, 3);
    b.settled();
}

/// P07: n sectors behind a flush are padded to whole units, never more.
#[test]
fn a_flush_pads_to_one_unit() {
    for (sectors, padding) in [(1, 3), (2, 2), (3, 1), (4, 0), (5, 3), (8, 0), (31, 1)] {
        let b = warm(small());
        b.trace.take();
        b.write(0, sectors, 1);
        b.flush();
        assert_eq!(b.count(Cause::PaddingFlush), padding, "{sectors} sectors");
        let entries = b.trace.entries();
        let units = entries.iter().filter(|e| is_data(e)).count() as u64;
        assert_eq!(units * 4, sectors as u64 + padding);
        b.flush();
        assert_eq!(b.count(Cause::PaddingFlush), padding, "the second finds nothing");
        b.settled();
    }
}

/// P07: a flush superseded by a later one returns not later than it, and both cover their data.
#[test]
fn flushes_in_flight_together_both_end() {
    let b = warm(small());
    b.write(0, 3, 1);
    let first = b.begin_flush();
    b.sleep(Ns::from_us(100));
    b.write(10, 2, 1);
    let second = b.begin_flush();
    b.wait(first).expect("a flush");
    b.wait(second).expect("a flush");
    assert_eq!(b.stats().buffered_now, 0);
    assert_eq!(b.count(Cause::PaddingFlush), 1 + 2);
    b.settled();
}

/// P09: a FUA write is acknowledged after its own data, and what came before it, is programmed; a
/// plain write long before.
#[test]
fn fua_returns_when_its_data_is_programmed() {
    let b = warm(small());
    b.write(7, 1, 1);
    let started = b.run.now();
    b.try_write(0, 2, 1, true).expect("a write");
    assert!(b.run.now() - started >= Ns::from_us(540));
    let entries = b.trace.entries();
    for lba in [7, 0, 1] {
        let written = |e: &&Traced| e.oob.iter().any(|o| lba_of(o) == lba);
        let program = entries.iter().rev().find(written).expect("programmed");
        assert!(program.finished.expect("ended") <= b.run.now());
    }
    assert_eq!(b.stats().flushes, 2);
    // Its wait is counted as a FUA write's, a flush's is not.
    let waited = b.stats().fua_wait;
    assert!(waited >= Ns::from_us(540) && waited <= b.stats().flush_wait);
    b.write(9, 1, 2);
    b.flush();
    assert_eq!(b.stats().fua_wait, waited);
    b.settled();
}

/// P10: what is less than a unit stays readable from the ring for as long as it takes, and is
/// written by the next flush or the stop.
#[test]
fn a_short_tail_waits_in_the_ring() {
    let b = warm(small());
    b.write(0, 3, 1);
    b.sleep(Ns::from_secs(600));
    assert_eq!(b.stats().buffered_now, 3);
    assert_eq!(b.count(Cause::User), 4);
    b.read(0, 3);
    let dev = b.dev.clone();
    b.settled();
    assert_eq!(dev.stats().buffered_now, 0);
    assert_eq!(dev.stats().programmed_for(Cause::User), 7);
}

/// P11: requests that span the end of a line are whole, and every full line has one closing
/// record, behind one first record.
#[test]
fn a_line_fills_in_the_middle_of_a_request() {
    let b = small().build();
    for lba in (0..1024).step_by(32) {
        b.write(lba, 32, 1);
    }
    b.drained();
    let entries = b.trace.entries();
    let tagged = |tag: u64| entries.iter().filter(move |e| e.oob.iter().any(|o| lba_of(o) == tag));
    assert_eq!(b.lines(LineState::Closed), 1024 / 248);
    assert_eq!(tagged(LBA_LINE_CLOSING).count(), 1024 / 248);
    assert_eq!(tagged(LBA_LINE_FIRST).count(), 1024 / 248 + 2, "one filling, one spare");
    b.settled();
}

/// P12: when users have used up what is theirs they wait, where pblk's writes fail; reads go on,
/// and so do the writes when GC comes back.
#[test]
fn without_lines_writes_wait_and_reads_go_on() {
    let b = small().manual_gc().build();
    b.fill(1);
    let mut lba = 0;
    let stuck = loop {
        let before = b.stats().host_written;
        let write = b.begin_write(lba, 32, 2);
        b.sleep(Ns::from_ms(50));
        if b.stats().host_written == before {
            break write;
        }
        lba += 32;
        assert!(lba < b.capacity(), "users never stopped");
    };
    assert_eq!(b.dev.shares().users, 0);
    b.read(lba + 32, 64);
    b.read(0, 32);
    b.set_gc(true);
    b.wait(stuck).expect("a write");
    assert!(b.stats().limited >= Ns::from_ms(50));
    b.settled();
}

/// P13: nothing is erased before it was written, everything once before it is written again, and
/// the positions of a chunk are programmed in order without a hole.
#[test]
fn chunks_are_erased_once_before_each_use() {
    let b = small().op(55).build();
    b.fill(1);
    b.drained();
    assert!(of(&b.trace.entries(), Op::Reset).is_empty(), "fresh chunks are free");
    b.overwrite(8, b.capacity() / 4, 2);
    b.drained();
    // Per chunk: the next sector to be written; erased means 0.
    let mut next: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut resets = 0;
    for e in b.trace.entries() {
        let first = b.place(e.addrs[0]);
        let at = next.entry((first.pu, first.chunk)).or_insert(0);
        match e.op {
            Op::Reset => {
                assert_ne!(*at, 0, "an erased chunk was erased again");
                resets += e.addrs.len() as u64;
                *at = 0;
            }
            Op::Write => {
                assert_eq!(*at, first.sector, "position out of order");
                *at += e.addrs.len() as u32;
            }
            _ => {}
        }
    }
    assert!(resets > 40);
    assert_eq!(b.stats().erases, resets);
    b.settled();
}

/// P14: never are two programs of lines under way on one PU, metadata of lines included.
#[test]
fn one_program_per_pu_at_a_time() {
    let b = small().build();
    b.overwrite(32, 60, 2);
    b.drained();
    let mut busy: BTreeMap<u32, Ns> = BTreeMap::new();
    let entries = b.trace.entries();
    let of_lines = |e: &&Traced| {
        let tag = e.oob.first().map(lba_of);
        is_data(e) || matches!(tag, Some(LBA_LINE_FIRST | LBA_LINE_CLOSING))
    };
    for e in entries.iter().filter(of_lines) {
        let pu = b.place(e.addrs[0]).pu;
        assert!(e.addrs.iter().all(|a| b.place(*a).pu == pu), "a unit is on one PU");
        let until = busy.entry(pu).or_insert(Ns::ZERO);
        assert!(e.submitted >= *until, "{e}");
        *until = e.finished.expect("ended");
    }
    assert_eq!(busy.len(), 4, "all PUs take part");
    b.settled();
}

/// P20: a request is one write unit; other sizes are refused, and the attribute stays as it was.
/// (The kernel takes any multiple of the minimum up to the maximum.)
#[test]
fn sectors_per_write_is_the_unit() {
    let b = small().build();
    for value in ["3", "8", "0", "65", "many"] {
        let refused = b.dev.set_attribute(&b.cx, "max_sec_per_write", value);
        assert!(matches!(refused, Err(AttributeError::Value { .. })), "{value}");
    }
    b.dev.set_attribute(&b.cx, "max_sec_per_write", "4").expect("the unit");
    assert_eq!(b.attribute("max_sec_per_write"), "4");
    b.settled();
}

/// P22: discarded sectors read as zeros wherever they were: in the ring, on the medium, nowhere,
/// in flight; and again after the flush.
#[test]
fn discarded_sectors_read_as_zeros() {
    let b = warm(small());
    b.write(0, 248, 1);
    b.drained();
    b.write(300, 3, 1);
    b.discard(301, 1); // in the ring
    b.discard(10, 20); // on the medium
    b.discard(2000, 50); // nowhere
    b.discard(240, 70); // all of it
    assert_eq!(b.stats().discarded_in_buffer, 3);
    b.read(0, 400);
    b.write(500, 4, 1);
    b.sleep(Ns::from_us(100));
    b.discard(502, 1); // its program is under way
    b.read(500, 4);
    b.drained();
    b.read(500, 4);
    b.write(502, 1, 9);
    b.read(496, 16);
    b.settled();
}

/// P23: sectors never written read as zeros, in requests of their own and among others, whatever
/// the caller's buffer held.
#[test]
fn unwritten_sectors_read_as_zeros() {
    let b = warm(small().memory());
    b.read(0, 64);
    b.write(3, 1, 1);
    b.write(61, 1, 1);
    b.read(0, 200);
    assert!(b.stats().read_unmapped >= 64 + 198);
    b.settled();
}

/// P24: one request over sectors that lie in the ring, on the medium and nowhere by turns gets each
/// from its place, those on the medium with one vector.
#[test]
fn a_mixed_read_takes_each_sector_from_its_place() {
    let b = warm(small());
    b.write(0, 64, 1);
    b.write(1000, 300, 1); // moves the read-back windows on
    b.drained();
    for lba in 0..64 {
        match lba % 3 {
            0 => b.write(lba, 1, 2),
            1 => b.discard(lba, 1),
            _ => {}
        }
    }
    b.trace.take();
    let before = b.stats();
    b.read(0, 64);
    let s = b.stats();
    assert_eq!(s.read_from_buffer - before.read_from_buffer, 22);
    assert_eq!(s.read_unmapped - before.read_unmapped, 21);
    let entries = b.trace.entries();
    let reads = of(&entries, Op::Read);
    assert_eq!(reads.iter().map(|e| e.addrs.len()).collect::<Vec<_>>(), [21]);
    b.settled();
}

/// P27: user, GC and padding of the attribute are what the medium counted, dead sectors once.
#[test]
fn write_amplification_counts_every_sector_once() {
    let b = small().build();
    b.fill(1);
    b.write(5, 1, 2);
    b.write(5, 1, 3);
    b.flush();
    b.overwrite(4, b.capacity() / 2, 2);
    b.drained();
    let medium = b.ssd.counters().programmed;
    let at = |c: Cause| medium[c as usize];
    // The first anchor of a chunk is padded as a pair is (FORMAT.md, section 4).
    let of_pairs = at(Cause::PaddingPair);
    let padding = at(Cause::PaddingFlush) + of_pairs + at(Cause::PaddingGc) + at(Cause::Dead);
    let (user, gc) = (at(Cause::User), at(Cause::Gc));
    assert!(gc > 0 && at(Cause::Dead) > 0);
    let all = (user + gc + padding) as f64 / user as f64;
    let text = b.attribute("write_amp_mileage");
    assert!(text.starts_with(&format!("user:{user} gc:{gc} pad:{padding} WA:")), "{text}");
    let shown: f64 = text.split("WA:").nth(1).expect("a ratio").parse().expect("a number");
    assert!((shown - all).abs() < 1e-4);
    b.set_gc(false);
    b.drained();
    b.dev.set_attribute(&b.cx, "write_amp_trip", "0").expect("reset");
    b.dev.set_attribute(&b.cx, "padding_dist", "0").expect("reset");
    b.write(0, 2, 5);
    b.flush();
    assert_eq!(b.attribute("write_amp_trip"), "user:2 gc:0 pad:2 WA:2.00000");
    assert_eq!(b.attribute("padding_dist"), "2:100.00%");
    b.settled();
}

/// A device too small for its over-provisioning is refused with the percentage that would do, and
/// that one does.
#[test]
fn a_refused_target_names_what_would_do() {
    let create = |percent| tiny(40).op(percent).try_create();
    let Err(CreateError::TooSmall { percent, .. }) = create(3) else {
        panic!("3% of 40 chunks per PU can't do");
    };
    assert!(create(percent - 1).is_err());
    create(percent).expect("the percentage that was named");
    let too_small = |percent| CreateError::TooSmall { lines: 9, line_data: 8, need: 10, percent };
    assert!(too_small(80).to_string().contains("over-provisioning of at least 80%"));
    let none = too_small(101).to_string();
    assert!(none.contains("no over-provisioning would do") && !none.contains("101"), "{none}");
}
