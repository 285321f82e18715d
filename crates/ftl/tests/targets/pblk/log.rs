//! The log's room: what is closed for it, who waits for it (FORMAT.md rules 20 and 21).
//!
//! Owns: one test per claim. Geometry: `tiny` with a log of 6 segments of 16 blocks, a block per
//! flush that has something to say: a checkpoint is due after each segment.

use crate::prelude::*;

fn small() -> Setup {
    tiny(40)
}

/// A record and a block of the log: one sector of a full line is discarded, durably.
fn log_one(b: &Bench, lba: u64) {
    b.discard(lba, 1);
    b.flush();
}

/// Four full lines, so that discards have something to clear, GC by hand, and a few sectors in the
/// line after them.
fn with_an_open_line(setup: Setup) -> Bench {
    let b = setup.manual_gc().build();
    b.write(0, 4 * 248 + 8, 1);
    b.drained();
    assert_eq!((b.lines(LineState::Closed), b.lines(LineState::Open)), (4, 2));
    b
}

/// Rule 20: records fill the log while the open line takes no data. When the log is half full, the
/// line is closed by padding, and the spare takes its place. A line opened since stays open.
#[test]
fn at_a_half_full_log_the_oldest_open_line_is_closed() {
    let b = with_an_open_line(small());
    let info = b.attribute("lines_info");
    for lba in 0..10 {
        log_one(&b, lba);
    }
    assert_eq!(b.attribute("lines_info"), info, "the log is young");
    for lba in 10..100 {
        log_one(&b, lba);
    }
    b.rest();
    assert!(b.lines(LineState::Closed) > 4, "{}", b.attribute("lines"));
    assert_ne!(b.attribute("lines_info"), info);
    assert_eq!(b.lines(LineState::Open), 1, "the spare");
    b.write(2000, 8, 2);
    b.drained();
    assert_eq!(b.lines(LineState::Open), 2);
    b.settled();
}

/// Rule 21: discards alone, thousands of them: checkpoints keep the log within what is reserved for
/// it, so the chunks for data stay.
#[test]
fn discards_do_not_fill_the_medium_with_log() {
    let b = with_an_open_line(small().untimed().untraced());
    let free = b.free_chunks();
    let mut least = free;
    for round in 0..4 {
        for lba in 0..248 {
            log_one(&b, lba);
            least = least.min(b.free_chunks());
        }
        b.write(0, 248, 2 + round);
        b.flush();
        while b.gc_once() {}
    }
    // Lines that rule 20 closed and the collections' own are given back by hand only.
    assert!(least + 40 >= free, "{least} chunks free of {free}");
    b.settled();
}

/// Rule 21: while a checkpoint takes long, discards wait when the log has grown by a quarter more,
/// before they clear anything; they go on when it is complete. What waits is no record in memory,
/// and the log takes no chunk beyond its own.
#[test]
fn discards_wait_for_a_slow_checkpoint() {
    let is_shard = |oob: &[[u8; 16]]| oob.iter().any(|o| lba_of(o) == LBA_CHECKPOINT);
    let run = |slow: Option<u64>| {
        let b = with_an_open_line(small());
        if let Some(nth) = slow {
            b.answer(Op::Write, nth, 0, Status::Ok, Ns::from_secs(10));
        }
        let (from, start) = (b.trace.entries().len(), b.run.now());
        let mut waited = 0;
        for lba in 0..100 {
            let before = b.run.now();
            log_one(&b, lba);
            waited += (b.run.now() - before > Ns::from_secs(1)) as u32;
        }
        let entries = b.trace.entries();
        let writes = entries[from..].iter().filter(|e| e.op == Op::Write);
        let first = writes.clone().position(|e| is_shard(&e.oob)).expect("a checkpoint");
        let span = b.run.now() - start;
        let free = b.free_chunks();
        b.settled();
        (first as u64, waited, span, free)
    };
    let (first, waited, span, free) = run(None);
    assert!(waited == 0 && span < Ns::from_secs(1), "{waited} waited, {span}");
    let (_, waited, span, free_then) = run(Some(first));
    assert_eq!(waited, 1, "one discard of many, one after the other, meets the full log");
    assert!(span > Ns::from_secs(9));
    assert!(free_then + 8 >= free, "{free_then} chunks free, {free} without the wait");
}
