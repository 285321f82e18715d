//! Recovery, one claim per test (facts, section 8.5: R01 to R16); what is damaged is in `damage`, cuts in
//! recovery itself in `again`, the order rules in `rules`.
//!
//! Owns: the tests of R01 to R11; from R12 on they are in `restart`, R13 in `again`, R06 and the rest of R05
//! in `decay`. Geometry: `tiny` (4 PUs, chunks
//! of 64 sectors, units of 4, a window of 8; a line has 248 data sectors).

use crate::pblk::damage::lived_in;
use crate::prelude::*;
use flashlane_ocssd::device::ChunkState;

/// Data sectors of a line.
pub(crate) const LINE: u32 = 248;

pub(crate) fn small() -> Setup {
    tiny(40).manual_gc()
}

/// A new target.
pub(crate) fn made(setup: Setup) -> Bench {
    Medium::new(setup).create()
}

/// Content checked, everything agrees, and a clean stop.
pub(crate) fn finished(bench: Bench) {
    bench.read_all();
    bench.shut_down();
}

/// R01: nothing at all; a target without data; one whose creation was cut anywhere.
#[test]
fn r01_an_empty_device_and_an_unfinished_creation() {
    let empty = Medium::new(small());
    assert!(matches!(empty.refused(MountOptions::default()), MountError::NoTarget));
    let bench = made(small());
    let commands = bench.face.commands();
    let medium = bench.cut();
    finished(medium.mounted());
    assert!(commands > 10);
    for stop in stops(0..commands) {
        let medium = Medium::new(small());
        assert!(matches!(medium.create_until(Some(stop)), Up::Cut), "{stop:?}");
        match medium.mount(MountOptions::default()) {
            Ok(bench) => finished(bench),
            Err(MountError::NoTarget | MountError::LogLost) => finished(medium.create()),
            Err(other) => panic!("{stop:?}: {other}"),
        }
    }
}

/// R01: a target is created over an older one, and cut anywhere: the older one is there in full, or one can
/// be created again.
#[test]
fn r01_a_creation_over_an_older_target_cut_at_every_command() {
    let older = || {
        // Its log has moved on, so that the new one's first chunks hold data.
        let mut medium = lived_in(small()).shut_down();
        medium.setup.seed += 1; // another uuid
        medium
    };
    let (mut same, mut refused, commands) = (0, 0, older().create().face.commands());
    for stop in stops(0..commands) {
        let medium = older();
        let uuid = medium.newest_anchor().uuid;
        assert!(matches!(medium.create_until(Some(stop)), Up::Cut), "{stop:?}");
        match medium.mount(MountOptions::default()) {
            Ok(bench) => {
                match bench.dev.uuid() == uuid {
                    true => same += 1,
                    false => bench.held.borrow_mut().clear(),
                }
                finished(bench);
            }
            Err(MountError::NoTarget | MountError::LogLost | MountError::Damaged(_)) => {
                refused += 1;
                finished(medium.create());
            }
            Err(other) => panic!("{stop:?}: {other}"),
        }
    }
    assert!(same > 0 && refused > 0, "{same}, {refused} of {commands}");
}

/// R01: first metadata that is torn, of another kind, of a later version or of another target: the log
/// names the line, its data is there.
#[test]
fn r01_first_metadata_that_makes_no_sense() {
    for byte in [0, 4, 12, 20, 48] {
        let bench = made(small());
        bench.write(0, LINE + 8, 1);
        bench.drained();
        let medium = bench.cut();
        let firsts = medium.spots(LBA_LINE_FIRST);
        assert!(firsts.len() >= 2);
        for at in firsts {
            medium.rewrite(at, |bytes| bytes[byte] ^= 0x41);
        }
        finished(medium.mounted());
    }
}

/// R02: closed lines replayed in the order of their sequence, wherever their chunks are: each sector
/// has its last version, and the counts agree with a recount.
#[test]
fn r02_the_newest_copy_of_several_lines_counts() {
    let bench = made(small());
    for version in 1..5 {
        bench.write(0, LINE, version);
        bench.write(30 * version, 20, 10 + version);
    }
    bench.drained();
    let medium = bench.cut();
    let lines = medium.lines();
    assert!(lines.iter().filter(|l| l.closed.is_some()).count() >= 3, "{lines:?}");
    let bench = medium.mounted();
    let did = bench.recovery();
    assert!(!did.clean && did.lines_replayed >= 3, "{did:?}");
    assert_eq!((did.astray, did.lost_units.len()), (0, 0));
    finished(bench);
}

/// R03, R04: the power goes off at every command while an open line is written, between the members
/// of its stripe too: what was flushed is there, what was not is old or new.
#[test]
fn r03_r04_an_open_line_cut_at_every_command() {
    let story = [
        Do::Write(0, 9),
        Do::Flush,
        Do::Write(4, 21),
        Do::Write(2, 4),
        Do::Flush,
        Do::Write(0, 30),
        Do::Write(8, 1),
        Do::Fua(9, 1),
        Do::Write(3, 2),
        Do::Flush,
    ];
    let before = [Do::Write(0, 32), Do::Flush];
    assert!(cut_at_each(&small(), &before, &story, 1) > 30);
}

/// R05: a flushed unit inside the window of its chunk, with reads of unwritten sectors failing or
/// giving zeros: it is padded and there; sector 0 is not taken over by zeros.
#[test]
fn r05_the_end_of_an_open_chunk_is_padded_and_read() {
    for dulbe in [false, true] {
        let bench = made(small().with(|s| s.options.dulbe = dulbe));
        bench.write(0, 4, 1);
        bench.drained();
        bench.write(100, 3, 2);
        bench.flush();
        let medium = bench.cut();
        let (chunk, sector) = medium.newest(100);
        let pointer = medium.info(chunk).write_pointer;
        assert!(sector + 8 >= pointer, "inside the window");
        let bench = medium.mounted();
        let did = bench.recovery();
        assert!(did.padded_sectors > 0);
        assert_eq!((did.torn_units.len(), did.lost_units.len()), (0, 0), "{did:?}");
        finished(bench);
    }
}

/// R07: a program failed in a line that was closed since, softly or hard: its sectors are neither lost
/// nor twice there, by closing metadata and by scan.
#[test]
fn r07_a_line_closed_with_a_failed_unit() {
    let line = {
        let medium = made(small()).cut();
        medium.lines()[0].clone()
    };
    for kind in ["early_close", "write_next_unit"] {
        for sector in [0, 32, 60] {
            for scan in [false, true] {
                let bench = made(small().failing(kind, (line.chunks[1], sector)));
                bench.write(0, LINE, 1);
                bench.write(7, 50, 2);
                bench.drained();
                bench.write(500, 1, 1);
                bench.drained();
                assert_eq!(bench.ssd.faults_happened(), [1]);
                let medium = bench.cut();
                if scan {
                    medium.wreck(medium.spots(LBA_LINE_CLOSING));
                }
                let bench = medium.mounted();
                assert_eq!(bench.recovery().lost_units, [], "{kind} at {sector}, {scan}");
                finished(bench);
            }
        }
    }
}

/// R08: two lines without closing metadata on record, both with data: both are recovered and closed.
#[test]
fn r08_two_open_lines_are_recovered_and_closed() {
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.write(100, 60, 2);
    bench.flush();
    let medium = bench.cut();
    let open: Vec<_> = medium.lines().into_iter().filter(|l| l.closed.is_none()).collect();
    let has_data = |chunks: &[u32]| {
        medium.written().iter().any(|(at, w)| chunks.contains(&at.0) && lba_of(&w.oob) < 1000)
    };
    let open: Vec<_> = open.into_iter().filter(|l| has_data(&l.chunks)).collect();
    assert_eq!(open.len(), 2, "{open:?}");
    let bench = medium.mounted();
    assert!(bench.recovery().lines_scanned >= 2);
    bench.rest();
    assert_eq!(bench.lines(LineState::Closed), 2, "{}", bench.attribute("lines"));
    bench.read_all();
    let medium = bench.cut();
    let lines = medium.lines();
    let closed = |s: u64| lines.iter().any(|l| l.sequence == s && l.closed.is_some());
    assert!(open.iter().all(|l| closed(l.sequence)), "{lines:?}");
}

/// R09: the power goes off at every command while one line ends and the next begins: the last data, its
/// closing metadata, the next line's first metadata, its first data.
#[test]
fn r09_a_line_switch_cut_at_every_command() {
    let before = [Do::Write(0, LINE - 10), Do::Flush];
    let story =
        [Do::Write(40, 6), Do::Flush, Do::Write(60, 12), Do::Rest(2000), Do::Flush, Do::Rest(9000)];
    assert!(cut_at_each(&small(), &before, &story, 1) > 20);
}

/// R09: the power goes off at every command of a collection: the old copy counts or the new, and both
/// are the same.
#[test]
fn r09_a_collection_cut_at_every_command() {
    let before =
        [Do::Write(0, LINE), Do::Flush, Do::Write(0, LINE - 30), Do::Flush, Do::Rest(20_000)];
    let story = [Do::Gc, Do::Rest(20_000)];
    assert!(cut_at_each(&small(), &before, &story, 1) > 20);
}

/// R10: a discard that was flushed is for ever: over cuts, checkpoints and collections, with every older
/// copy still on the medium.
#[test]
fn r10_a_flushed_discard_is_for_ever() {
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.write(0, 100, 2);
    bench.flush();
    bench.discard(10, 40);
    bench.flush();
    let mut medium = bench.cut();
    assert!(medium.copies(20).len() >= 2, "old copies are there");
    for life in 0..4 {
        let bench = medium.mounted();
        bench.read_all();
        bench.write(300 + life * 50, 50, 3 + life);
        bench.flush();
        bench.gc_once();
        bench.read_all();
        medium = if life == 2 { bench.shut_down() } else { bench.cut() };
    }
    finished(medium.mounted());
}

/// R10: discards, flushed and not, cut at every command: what was discarded durably never returns.
#[test]
fn r10_discards_cut_at_every_command() {
    let before = [Do::Write(0, 64), Do::Flush, Do::Write(0, 8)];
    let story = [
        Do::Discard(4, 12),
        Do::Write(8, 2),
        Do::Flush,
        Do::Write(30, 4),
        Do::Discard(30, 2),
        Do::Flush,
        Do::Discard(0, 64),
        Do::Write(5, 1),
        Do::Flush,
    ];
    assert!(cut_at_each(&small(), &before, &story, 1) > 20);
}

/// R11: many bad chunks, so that lines are narrower than the PUs; first metadata whose program failed.
#[test]
fn r11_narrow_lines_and_first_metadata_that_failed() {
    for seed in 1..4 {
        let bench = made(small().with(|s| {
            s.spec.limits.factory_bad_ppm = 250_000;
            s.options.seed = seed;
        }));
        bench.fill(1);
        bench.write(3, 90, 2);
        bench.drained();
        let medium = bench.cut();
        let bench = medium.mounted();
        assert_eq!(bench.recovery().astray, 0);
        finished(bench);
    }
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.drained();
    let line = bench.cut().lines()[1].clone();
    let bench = made(small().failing("early_close", (line.chunks[0], 0)));
    bench.write(0, 2 * LINE, 1);
    bench.drained();
    assert_eq!(bench.ssd.faults_happened(), [1]);
    finished(bench.cut().mounted());
}

/// A story that nobody interrupts is what it should be, too: the stories' own check.
#[test]
fn a_story_is_told_as_written() {
    let bench = made(small());
    let telling = Rc::new(RefCell::new(Telling::default()));
    bench.told(&[Do::Write(0, 3), Do::Discard(1, 1), Do::Flush, Do::Write(2, 1)], &telling);
    assert_eq!(telling.borrow().may_hold(0), [1]);
    assert_eq!(telling.borrow().may_hold(1), [0]);
    assert_eq!(telling.borrow().may_hold(2), [1, 4]);
    assert_eq!(bench.version(2, &[4]), Some(4));
    bench.sleep(Ns::from_ms(1));
    assert_ne!(bench.medium.info(0).state, ChunkState::Offline);
}
