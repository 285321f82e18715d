//! pblk on a device that acknowledges from a write buffer: what was flushed survives, whatever of the rest
//! the buffer took along.
//!
//! Owns: the order rules of FORMAT.md where an acknowledgement does not say that something is on the medium.
//! Lines are one chunk wide in most of them: the log, on other dies, is on the medium long before the
//! data, which is what makes an order that nobody enforces break. Geometry: `tiny`.

use crate::prelude::*;
use crate::story::cut_at_times;

/// Sectors of a line that is one chunk wide, without its metadata.
const NARROW: u32 = 56;

fn buffered(active_pus: u32, capacitors: bool) -> Setup {
    tiny(40).manual_gc().with(|s| {
        s.config.active_pus = active_pus;
        s.spec.limits.write_buffer = Some(Bytes::from_mib(2));
        s.spec.limits.capacitors = capacitors;
    })
}

/// A flush waits for the buffer; on capacitors it need not, and pblk does not ask.
#[test]
fn a_flush_reaches_the_buffer() {
    for (capacitors, asked) in [(false, true), (true, false)] {
        let bench = Medium::new(buffered(0, capacitors)).create();
        let before = bench.face.count(Op::Flush);
        let from = bench.cx.now();
        bench.write(0, 40, 1);
        bench.flush();
        let waited = bench.cx.now() - from;
        assert_eq!(waited > Ns::from_us(1_400), asked, "10 units on 4 PUs: {waited:?}");
        assert_eq!(bench.face.count(Op::Flush) > before, asked);
        bench.cut().mounted().read_all();
    }
}

/// Writes, overwrites, discards and flushes, the power going off at every command and every 70 us.
#[test]
fn a_cut_at_every_moment() {
    let before = [Do::Write(0, 120), Do::Flush];
    let story = [
        Do::Write(0, 70),
        Do::Flush,
        Do::Discard(10, 30),
        Do::Write(15, 9),
        Do::Fua(40, 6),
        Do::Write(0, 100),
        Do::Rest(700),
        Do::Write(50, 3),
        Do::Flush,
    ];
    for capacitors in [false, true] {
        for active_pus in [0, 1] {
            let setup = buffered(active_pus, capacitors);
            assert!(cut_at_each(&setup, &before, &story, 2) > 30);
            let often = (Ns::from_us(70), Ns::from_ms(12));
            assert!(cut_at_times(&setup, &before, &story, often) > 100);
        }
    }
}

/// Rule 1: the line that moved sectors came from is erased when they are on the medium, not when they are
/// acknowledged.
#[test]
fn a_line_is_erased_when_its_successors_are_on_the_medium() {
    let before = [
        Do::Write(0, NARROW),
        Do::Write(100, NARROW),
        Do::Write(200, NARROW),
        Do::Flush,
        Do::Discard(0, 30),
        Do::Flush,
        Do::Rest(40_000),
    ];
    // What comes first keeps the die of the moves busy; then the chunk is taken again.
    let mut story = vec![Do::Write(300, 30), Do::Gc];
    story.extend((0..3).map(|i| Do::Write(400 + 100 * i, NARROW)));
    let often = (Ns::from_us(150), Ns::from_ms(60));
    assert!(cut_at_times(&buffered(1, false), &before, &story, often) > 100);
}

/// Rules 3, 5, 11: a checkpoint that is taken while data waits in the buffer names no sector that a cut can
/// still take.
#[test]
fn a_checkpoint_names_what_is_on_the_medium() {
    // Each flush is a block of the log, until a checkpoint is due; then much is written at once.
    let block = |i: u64| [Do::Discard(200 + i % 5, 1), Do::Flush];
    let mut before = vec![Do::Write(0, 120), Do::Flush];
    before.extend((0..30).flat_map(block));
    let mut story = Vec::new();
    for i in 0..14 {
        story.extend(block(i));
        story.extend([Do::Write(7, 40), Do::Write(60, 30)]);
    }
    let often = (Ns::from_us(1_100), Ns::from_ms(10));
    let cuts = cut_at_times(&buffered(1, false), &before, &story, often);
    assert!(cuts > 60, "{cuts}");
}

/// Rule 8: closing metadata names what is on the medium, and the old content is found where it is not.
#[test]
fn closing_metadata_names_what_is_on_the_medium() {
    let before = [Do::Write(0, 100), Do::Flush];
    let story = [Do::Write(0, 2 * NARROW), Do::Rest(3_000), Do::Write(0, 2 * NARROW)];
    let often = (Ns::from_us(110), Ns::from_ms(40));
    assert!(cut_at_times(&buffered(1, false), &before, &story, often) > 100);
}

/// A program fails behind its acknowledgement: the sectors are served by the device until their line is
/// collected, over flushes and cuts; the chunk takes no more.
#[test]
fn a_program_that_fails_behind_its_acknowledgement_loses_nothing() {
    let bench = Medium::new(buffered(0, false)).create();
    bench.write(0, 4, 1);
    bench.drained();
    let line = bench.cut().lines()[0].clone();
    let before = [Do::Write(0, 24), Do::Flush];
    let story = [Do::Write(4, 40), Do::Flush, Do::Write(2, 9), Do::Flush, Do::Gc, Do::Flush];
    for capacitors in [false, true] {
        for (kind, sector) in [("early_close", 12), ("write_next_unit", 12), ("early_close", 8)] {
            let setup = buffered(0, capacitors).failing(kind, (line.chunks[1], sector));
            assert!(cut_at_each(&setup, &before, &story, 1) > 20);
            let often = (Ns::from_us(150), Ns::from_ms(4));
            assert!(cut_at_times(&setup, &before, &story, often) > 20);
        }
    }
}

/// A flush that the host fails is not the last one that fails: nothing is durable any more.
#[test]
fn behind_a_failed_flush_every_flush_fails() {
    let bench = buffered(0, false).build();
    bench.write(0, 8, 1);
    bench.drained();
    bench.answer(Op::Flush, 0, 1, Status::HostFault, Ns::ZERO);
    assert!(bench.try_flush().is_err());
    assert_eq!(bench.script.answered(), 1);
    assert!(bench.try_flush().is_err() && bench.try_write(0, 1, 2, false).is_err());
    bench.read(0, 8);
}
