//! Scrubbing: data that ages and data that is read to death is moved before it is lost (D7, D9).
//!
//! Owns: one claim per test, each beside a run without scrubbing that loses data, so that the medium
//! is known to be bad enough. Geometry: that of `tiny`; its cells here forget within a month: 40 bit
//! errors per codeword are corrected, more than 20 are heavy, a day adds 0.8 on average, as do a
//! thousand reads of the chunk.

use crate::prelude::*;
use flashlane_ftl::log::Scrub;
use flashlane_ocssd::spec::EccSpec;

const DAY: Ns = Ns::from_secs(86_400);

fn forgetful(mode: Scrub) -> Setup {
    let mut setup = tiny(40).op(40).untraced();
    setup.spec.ecc = Some(EccSpec {
        codeword_bytes: 1024,
        correctable_bits: 40,
        high_bits: 20,
        rber_fresh: 0,
        rber_worn: 0,
        rber_per_day: 100_000_000,
        rber_per_1000_reads: 100_000_000,
        retries: 0,
        retry_gain: 2,
        program_fail_ppm: 0,
        erase_fail_ppm: 0,
    });
    setup.config.scrub.mode = mode;
    setup.config.scrub.interval = DAY;
    setup
}

/// Sectors that can't be read.
fn lost(b: &Bench) -> Vec<Lba> {
    let capacity = b.capacity();
    let pieces = (0..capacity).step_by(64);
    let read = |lba| b.try_read(lba, 64.min(capacity - lba) as u32).err();
    pieces.filter_map(read).flatten().collect()
}

/// Two months without a request: in closed lines, in the one that is filled, and in the log.
#[test]
fn data_that_nobody_reads_outlives_its_retention() {
    for mode in [Scrub::Off, Scrub::Reads, Scrub::Patrol] {
        let b = Medium::new(forgetful(mode)).create();
        b.fill(1);
        b.write(3, 50, 2);
        b.drained();
        assert!(b.lines(LineState::Open) > 0);
        b.sleep(DAY.times(60));
        let s = b.stats();
        if mode != Scrub::Patrol {
            assert_eq!((s.scrubbed_lines, s.patrol_reads), (0, 0));
            let capacity = b.capacity() as usize;
            assert!(lost(&b).len() > capacity / 2, "{mode:?}");
            continue;
        }
        let lines = b.dev.layout().lines;
        assert!(s.scrubbed_lines > lines, "{} lines of {lines}", s.scrubbed_lines);
        assert_eq!((lost(&b), s.gc_read_failures), (vec![], 0));
        b.agrees();
        // What a mount needs has been kept, too.
        let medium = b.cut();
        let b = medium.mounted();
        assert_eq!(b.recovery().lost_units, []);
        b.settled();
    }
}

/// Without scrubbing a target that lay for long can't even be mounted, for its log is gone.
#[test]
fn a_log_that_nobody_reads_is_lost() {
    let b = Medium::new(forgetful(Scrub::Off)).create();
    b.fill(1);
    b.drained();
    b.sleep(DAY.times(90));
    let medium = b.cut();
    medium.refused(MountOptions::default());
}

/// The same sectors, again and again: their neighbours in the chunk are what is lost. Reads that are
/// made anyway tell, no patrol is needed.
#[test]
fn data_that_is_read_to_death_is_moved() {
    for mode in [Scrub::Off, Scrub::Reads] {
        let b = forgetful(mode).build();
        b.write(0, 480, 1);
        b.drained();
        for _ in 0..5000 {
            // 16 sectors of each of four chunks; what is lost is not what is looked at.
            let _ = b.try_read(0, 64);
            b.sleep(Ns::from_us(200));
        }
        let s = b.stats();
        if mode == Scrub::Off {
            assert!(lost(&b).len() > 100 && s.scrubbed_lines == 0);
            continue;
        }
        assert!(s.scrubbed_lines >= 4, "{}", s.scrubbed_lines);
        assert_eq!((s.read_failures, s.patrol_reads), (0, 0));
        assert_eq!(lost(&b), []);
        b.settled();
    }
}

/// Three weeks switched off: nothing is lost yet, but soon; the patrol does not wait for its turn.
#[test]
fn what_was_switched_off_for_long_is_looked_at_first() {
    for mode in [Scrub::Off, Scrub::Patrol] {
        let b = Medium::new(forgetful(mode).with(|s| s.config.scrub.interval = DAY.times(100)))
            .create();
        b.fill(1);
        b.drained();
        let medium = b.shut_down();
        medium.ssd.power_cut(DAY.times(20), PowerOn::ClockRestarts);
        let b = medium.mounted();
        b.sleep(DAY.times(20));
        match mode {
            Scrub::Off => assert!(lost(&b).len() > 1000),
            _ => {
                assert!(b.stats().scrubbed_lines + 2 > b.dev.layout().lines * 6 / 10);
                assert_eq!(lost(&b), []);
                b.settled();
            }
        }
    }
}

/// A medium on which every read is heavily corrected is not rewritten for ever: each line once in an
/// interval.
#[test]
fn moves_for_heavy_correction_are_bounded() {
    let mut setup = forgetful(Scrub::Patrol);
    setup.spec.ecc = None;
    let plan = "[[fault]]\nkind = \"read_high_ecc\"\nprobability = \"0.5\"\n";
    setup.options.faults = FaultPlan::from_toml(plan).expect("a plan");
    let b = setup.build();
    b.fill(1);
    b.drained();
    let lines = b.dev.layout().lines;
    b.sleep(DAY.times(10));
    let moved = b.stats().scrubbed_lines;
    assert!((lines..=lines * 11 + 1).contains(&moved), "{moved} of {lines} lines in ten days");
    b.settled();
}

/// A sector that a collection can't read is asked for again before it is given up.
#[test]
fn a_collection_reads_again_before_it_gives_up() {
    for (mode, failures) in [(Scrub::Off, 1), (Scrub::Reads, 0)] {
        let b = tiny(40).manual_gc().with(|s| s.config.scrub.mode = mode).build();
        b.write(0, 4 * 248, 1);
        b.drained();
        b.discard(248, 62);
        // The first read of a collection is the closing metadata.
        b.answer(Op::Read, 1, 1 << 5, Status::Uncorrectable, Ns::from_us(60));
        assert!(b.gc_once());
        assert_eq!(b.stats().gc_read_failures, failures, "{mode:?}");
        assert_eq!(lost(&b).len() as u64, failures);
        b.stopped();
    }
}

/// What scrubbing and collections read, and read again, no user asked for.
#[test]
fn what_scrubbing_reads_is_not_the_users() {
    let mut setup = tiny(40).manual_gc();
    setup.config.scrub.mode = Scrub::Patrol;
    setup.config.scrub.interval = DAY;
    let b = setup.build();
    b.write(0, 4 * 248, 1);
    b.drained();
    b.discard(248, 62);
    b.ssd.keep_spans(1 << 20);
    // The first read of a collection is the closing metadata.
    b.answer(Op::Read, 1, 1 << 5, Status::Uncorrectable, Ns::from_us(60));
    assert!(b.gc_once());
    assert_eq!(b.stats().gc_read_failures, 0, "it was read again");
    b.sleep(DAY.times(2));
    assert!(b.stats().patrol_reads > 0);
    let kept = b.ssd.take_spans();
    let reads: Vec<Cause> = kept.spans.iter().map(|(_, s)| s.cause).collect();
    assert!(reads.contains(&Cause::Gc) && reads.contains(&Cause::Metadata));
    assert!(!reads.contains(&Cause::User));
    b.settled();
}

/// A patrol that finds log and checkpoints decayed moves them, again and again; a stop in the middle of
/// that is a clean one.
#[test]
fn a_stop_ends_the_patrol_first() {
    let mut setup = forgetful(Scrub::Patrol);
    setup.spec.ecc = None;
    setup.config.scrub.interval = Ns::from_ms(1);
    let plan = "[[fault]]\nkind = \"read_high_ecc\"\nprobability = \"0.5\"\n";
    setup.options.faults = FaultPlan::from_toml(plan).expect("a plan");
    for rest in 0..12 {
        let b = Medium::new(setup.clone()).create();
        b.write(0, 300, 1);
        b.flush();
        b.sleep(Ns::from_us(1700 * rest));
        let b = b.shut_down().mounted();
        assert!(b.recovery().clean, "after {rest}");
        b.read_all();
    }
}

/// Who looks on writes nothing as long as there is nothing to see.
#[test]
fn a_patrol_of_healthy_lines_writes_nothing() {
    let b = forgetful(Scrub::Patrol).with(|s| s.spec.ecc = None).build();
    b.fill(1);
    b.overwrite(4, 2000, 9);
    b.drained();
    b.sleep(DAY); // collections end
    let before = (b.ssd.counters().programmed, b.stats().erases);
    b.sleep(DAY.times(3));
    assert_eq!((b.ssd.counters().programmed, b.stats().erases), before);
    let (reads, chunks) = (b.stats().patrol_reads, b.dev.layout().lines * 4);
    assert!(reads > 3 * chunks, "{reads} sectors of {chunks} chunks");
    b.settled();
}
