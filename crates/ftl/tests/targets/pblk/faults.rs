//! What fails, and what pblk makes of it (P08, P13, P15–P18, P26, G05, G06, G13).
//!
//! Owns: one test per claim, over faults of the medium (with the state they leave behind) where the
//! place matters, over scripted answers where the moment does.

use crate::pblk::ring::{pointer, users};
use crate::prelude::*;

fn small() -> Setup {
    tiny(40)
}

/// What every fault test does: more than a line of data, then overwrites.
fn exercise(b: &Bench) {
    for lba in (0..600).step_by(20) {
        b.write(lba, 20, 1);
    }
    b.flush();
    for i in 0..150 {
        b.write(i * 7 % 600, 1 + (i % 5) as u32, 2 + i);
    }
    b.drained();
}

/// The chunks of the first line, in stripe order.
fn first_line() -> Vec<u32> {
    let b = small().untimed().build();
    exercise(&b);
    let entries = b.trace.entries();
    let data: Vec<_> = entries.iter().filter(|e| is_data(e)).take(4).collect();
    let chunks = data.iter().map(|e| b.place(e.addrs[0])).map(|at| at.pu * 40 + at.chunk).collect();
    b.settled();
    chunks
}

/// P16: a program that fails at the first, a middle or the last unit of any chunk of a line (its
/// first and closing metadata among them), hard or softly, costs the chunk and no data.
#[test]
fn a_failed_program_anywhere_in_a_chunk_loses_nothing() {
    for chunk in first_line() {
        for sector in [0, 4, 32, 60] {
            for kind in ["early_close", "write_next_unit"] {
                let place = (chunk, sector);
                let b = small().untimed().untraced().failing(kind, place).build();
                exercise(&b);
                assert_eq!(b.ssd.faults_happened(), [1], "{kind} at {place:?}");
                let s = b.stats();
                assert_eq!((s.program_failures, b.retired()), (4, 1), "{kind} at {place:?}");
                b.settled();
            }
        }
    }
}

/// P16: two units of one request fail on two chunks: both go elsewhere.
#[test]
fn two_failures_in_one_request_lose_nothing() {
    let line = first_line();
    let plan = [1, 2].map(|i| small().fault("early_close", (line[i], 8))).concat();
    let b = small().faults(&plan).build();
    exercise(&b);
    assert_eq!(b.ssd.faults_happened(), [1, 1]);
    assert_eq!(b.retired(), 2);
    b.settled();
}

/// P16, P08: the resubmission fails as well, three times: the flush returns when the fourth program
/// has ended, and not before.
#[test]
fn a_unit_that_fails_again_and_again_is_flushed_in_the_end() {
    let b = small().build();
    b.write(900, 4, 1);
    b.drained();
    let started = b.run.now();
    for n in 0..3 {
        b.answer(Op::Write, n, !0, Status::WriteFault, Ns::from_ms(2));
    }
    b.write(0, 3, 1);
    let flush = b.begin_flush();
    b.read(0, 3);
    b.wait(flush).expect("a flush");
    assert_eq!(b.script.answered(), 3);
    let waited = b.run.now() - started;
    assert!(waited >= Ns::from_us(6540), "{waited}");
    let entries = b.trace.entries();
    let program = entries.iter().rev().find(|e| e.oob.iter().any(|o| lba_of(o) == 0));
    let ended = program.and_then(|e| e.finished).expect("ended");
    assert!(ended <= b.run.now());
    b.settled();
}

/// P17: the failed version of a sector that was overwritten meanwhile goes out again with its own,
/// older stamp; the map keeps the newer one.
#[test]
fn a_failed_sector_overwritten_meanwhile_stays_old() {
    for delay in [100, 700, 1900, 2100] {
        let b = small().build();
        b.write(900, 4, 1);
        b.drained();
        b.answer(Op::Write, 0, !0, Status::WriteFault, Ns::from_ms(2));
        b.write(0, 4, 1);
        b.sleep(Ns::from_us(delay));
        b.write(1, 1, 2);
        b.read(0, 4);
        b.flush();
        b.read(0, 4);
        b.rest();
        assert_eq!(b.script.answered(), 1);
        assert_eq!(b.stats().host_written, 9);
        b.settled();
    }
}

/// P15: no PU stays taken when programs fail, however many: all are free at rest, and all are used
/// again. (pblk takes a semaphore per PU of a request; our units have one PU each.)
#[test]
fn failures_leave_no_pu_taken() {
    let plan =
        "[[fault]]\nkind = \"early_close\"\nprobability = \"0.03\"\ntimes = 12\ncount = 20\n";
    let b = small().op(60).faults(plan).build();
    exercise(&b);
    exercise(&b);
    assert_eq!(b.ssd.faults_happened(), [12]);
    let luns = b.attribute("write_luns");
    assert!(luns.split(' ').all(|l| l.ends_with(":free")), "{luns}");
    b.trace.take();
    b.write(0, 248, 99);
    b.flush();
    let entries = b.trace.entries();
    let pus: std::collections::BTreeSet<u32> =
        entries.iter().filter(|e| is_data(e)).map(|e| b.place(e.addrs[0]).pu).collect();
    assert_eq!(pus.len(), 4);
    b.settled();
}

/// P18, G13: a chunk that failed is never written, read for data or erased again after its line was
/// collected; the line goes first although plenty is free; users keep the whole ring.
#[test]
fn a_failed_chunk_is_drained_and_retired_at_once() {
    let chunk = first_line()[1];
    let b = small().failing("early_close", (chunk, 32)).build();
    let free = b.free_chunks();
    for lba in (0..496).step_by(31) {
        b.write(lba, 31, 1);
    }
    b.drained();
    assert_eq!(b.dev.shares().users, b.dev.layout().ring_sectors);
    let s = b.stats();
    assert_eq!((s.program_failures, s.gc_victims, b.retired()), (4, 1, 1));
    assert!(s.gc_moved > 0);
    assert!(free - b.free_chunks() <= 16, "the other three are free again");
    let here = |a: &flashlane_base::Ppa| {
        let l = b.place(*a);
        l.pu * 40 + l.chunk == chunk
    };
    let entries = b.trace.entries();
    let failed = entries.iter().position(|e| !e.failed.is_empty()).expect("a failure");
    let later = |op| of(&entries[failed + 1..], op).into_iter().any(|e| e.addrs.iter().any(here));
    assert!(!later(Op::Write) && !later(Op::Reset));
    // A closed line later: nothing of it is looked for there.
    b.trace.take();
    b.read_all();
    assert!(!b.trace.entries().iter().any(|e| e.addrs.iter().any(here)));
    b.settled();
}

/// P13: a failed erase costs the chunk; the line opens without it.
#[test]
fn a_failed_erase_retires_the_chunk() {
    let b = small().faults("[[fault]]\nkind = \"erase_fail\"\ncount = 3\ntimes = 2\n").build();
    b.fill(1);
    b.overwrite(4, b.capacity() / 2, 2);
    b.drained();
    assert_eq!(b.ssd.faults_happened(), [2]);
    assert_eq!(b.stats().erase_failures, 2);
    assert_eq!(b.retired(), 2);
    b.settled();
}

/// Writes until that is refused.
fn refused_in_the_end(b: &Bench) -> BlockError {
    let writes = (0..).map(|i| b.try_write(i * 7 % b.capacity(), 1, 2 + i * 7, false));
    writes.filter_map(Result::err).next().expect("for ever")
}

/// P12: when bad chunks have eaten the spare, writes fail and say why; every sector acknowledged
/// before that is still read, and nothing hangs.
#[test]
fn without_good_chunks_the_target_is_read_only() {
    let plan = "[[fault]]\nkind = \"erase_fail\"\nprobability = \"0.5\"\n";
    let b = small().untimed().untraced().faults(plan).build();
    b.fill(1);
    let error = refused_in_the_end(&b);
    assert!(matches!(error, BlockError::ReadOnly(_)), "{error}");
    let (text, bad) = (error.to_string(), b.retired());
    for part in ["left to write to: ", "chunks have gone bad", "reserve ", "barrier ", "rings "] {
        assert!(bad > 0 && text.contains(part), "{part:?} is not in {text:?}");
    }
    assert!(b.try_flush().is_err());
    b.read_all();
    assert!(b.stop().is_err());
    b.rest();
    b.read_all();
    b.agrees();
}

/// A write or discard whose stamp the log can no longer lease (the clock is above the durable
/// ceiling, and every program fails) is refused, not acknowledged: nothing of it is seen, and its
/// room in the ring and its slots are free again.
#[test]
fn without_a_durable_ceiling_nothing_is_acknowledged() {
    let plan = "[[fault]]\nkind = \"early_close\"\nafter = \"100s\"\ntimes = 1000000\n";
    let requests: [fn(&Bench) -> BlockResult; 4] = [
        |b| b.try_write(2, 1, 2, false),
        |b| b.try_write(0, 7, 2, false),
        |b| b.try_write(0, 7, 2, true),
        |b| b.try_discard(2, 5),
    ];
    for request in requests {
        let b = small().faults(plan).build();
        b.write(0, 16, 1);
        b.drained();
        let free = pointer(&b, "free");
        b.sleep(Ns::from_secs(200));
        let written = b.stats().host_written;
        let error = request(&b).expect_err("nothing can be made durable");
        assert!(matches!(error, BlockError::ReadOnly(_)), "{error}");
        assert!(b.ssd.faults_happened()[0] > 0);
        b.rest();
        assert_eq!((users(&b), pointer(&b, "free")), (0, free));
        assert_eq!(b.stats().host_written, written);
        b.read_all();
        b.agrees();
    }
}

/// P26: an uncorrectable sector in a vector is an error for that sector alone; heavy correction is
/// none, and counted.
#[test]
fn a_read_error_is_for_its_sector_alone() {
    let plan = "[[fault]]\nkind = \"read_high_ecc\"\ncount = 5\n";
    let b = small().faults(plan).build();
    b.write(0, 496, 1);
    b.drained();
    b.read(0, 64);
    assert_eq!((b.stats().high_ecc, b.stats().read_failures), (1, 0));
    b.answer(Op::Read, 0, 1 << 9 | 1 << 30, Status::Uncorrectable, Ns::from_us(10));
    let lost = b.try_read(100, 64).expect_err("two sectors");
    assert_eq!(lost, [Lba::new(109), Lba::new(130)]);
    assert_eq!(b.stats().read_failures, 2);
    b.read(100, 64);
    let text = b.attribute("errors");
    assert!(text.starts_with("read_failed=2 read_high_ecc=1"), "{text}");
    b.settled();
}

/// Four full lines, a quarter of the second of them discarded: the next victim.
fn with_a_victim() -> Bench {
    let b = small().manual_gc().build();
    b.write(0, 4 * 248, 1);
    b.drained();
    b.discard(248, 62);
    b
}

/// The sectors that can't be read.
fn lost(b: &Bench) -> Vec<u64> {
    let pieces = (0..1024).step_by(64);
    let lost = pieces.filter_map(|lba| b.try_read(lba, 64).err());
    lost.flatten().map(Lba::get).collect()
}

/// G05: a live sector that GC can't read is never rewritten with something else: it reads as an
/// error until it is written, and its line is freed all the same.
#[test]
fn a_sector_that_gc_cannot_read_is_poisoned() {
    let b = with_a_victim();
    // The first read of a collection is the closing metadata.
    b.answer(Op::Read, 1, 1 << 5, Status::Uncorrectable, Ns::from_us(60));
    assert!(b.gc_once());
    assert_eq!((b.stats().gc_read_failures, b.stats().gc_moved), (1, 185));
    let gone = lost(&b);
    assert_eq!(gone.len(), 1);
    assert!((310..496).contains(&gone[0]));
    assert!(b.attribute("errors").contains("read_failed_gc=1"));
    b.drained();
    assert_eq!(lost(&b), gone, "still lost after the line was freed");
    b.write(gone[0], 1, 2);
    assert!(lost(&b).is_empty());
    b.settled();
}

/// G05: a poisoned sector can be discarded, and then reads as zeros.
#[test]
fn a_poisoned_sector_can_be_discarded() {
    let b = with_a_victim();
    b.answer(Op::Read, 1, 1 << 5, Status::Uncorrectable, Ns::from_us(60));
    assert!(b.gc_once());
    let gone = lost(&b);
    b.discard(gone[0], 1);
    assert!(lost(&b).is_empty());
    b.settled();
}

/// G06: a victim whose closing metadata can't be read is moved by the out-of-band records alone;
/// what can't be read on top of that is found through the map.
#[test]
fn a_victim_without_closing_metadata_is_moved_by_oob() {
    let b = with_a_victim();
    b.answer(Op::Read, 0, !0, Status::Uncorrectable, Ns::from_us(60));
    assert!(b.gc_once());
    assert_eq!(b.stats().gc_moved, 186);
    assert!(lost(&b).is_empty());
    b.settled();

    let b = with_a_victim();
    b.answer(Op::Read, 0, !0, Status::Uncorrectable, Ns::from_us(60));
    b.answer(Op::Read, 1, 1 << 17, Status::Uncorrectable, Ns::from_us(60));
    assert!(b.gc_once());
    let gone = lost(&b);
    assert_eq!((b.stats().gc_moved, gone.len()), (185, 1));
    b.write(gone[0], 1, 2);
    assert_eq!(b.lines(LineState::Victim), 0);
    assert_eq!(b.count(Cause::Gc), 185);
    b.settled();
}

/// G07: a collection that fails half-way through its victim: the second vector can't be read at all.
/// What was read before is moved, the rest is poisoned once each, and the line is freed: nothing of
/// it is held any more.
#[test]
fn a_collection_that_fails_half_way_holds_nothing() {
    let b = with_a_victim();
    let free = b.free_chunks();
    b.answer(Op::Read, 2, !0, Status::Uncorrectable, Ns::from_us(60));
    assert!(b.gc_once());
    let s = b.stats();
    assert_eq!((s.gc_moved, s.gc_read_failures), (186 - 64, 64));
    assert_eq!(lost(&b).len(), 64);
    assert_eq!(b.lines(LineState::Victim) + b.lines(LineState::Freeing), 0);
    assert!(b.free_chunks() >= free, "its chunks are back");
    b.dev.check_consistency().expect("counts agree");
    b.discard(248, 248);
    b.settled();
}

/// G07: and one that the target's end as read-only overtakes: the victim is a closed line again, with
/// the count of what is still in it.
#[test]
fn a_victim_outlives_the_end_of_writing() {
    let plan = "[[fault]]\nkind = \"erase_fail\"\nprobability = \"1\"\n";
    let b = small().untraced().faults(plan).build();
    b.fill(1);
    refused_in_the_end(&b);
    b.rest();
    assert_eq!(b.lines(LineState::Victim), 0);
    b.agrees();
}

/// Every erase fails: nothing can be opened for what the ring holds, so writers get an error instead
/// of waiting for ever, and what was written stays readable.
#[test]
fn when_every_erase_fails_writers_are_told() {
    let plan = "[[fault]]\nkind = \"erase_fail\"\nprobability = \"1\"\n";
    let b = small().untimed().untraced().faults(plan).build();
    b.fill(1);
    let error = refused_in_the_end(&b);
    assert!(error.to_string().contains("read-only"), "{error}");
    b.agrees();
}
