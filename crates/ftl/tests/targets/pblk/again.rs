//! Recovery itself is cut, at every command it issues, and again; what it must refuse (FORMAT.md, sections
//! 1 and 10).
//!
//! Owns: R13, versions, geometries. Promises: after any number of cuts the content is what the first
//! undisturbed recovery would have given. Geometry: `tiny`.

use crate::prelude::*;
use flashlane_ocssd::spec::Pairing;

const WRITTEN: u64 = 300;

fn small() -> Setup {
    tiny(40).manual_gc()
}

fn cut(bench: Bench) -> Medium {
    bench.cut()
}

fn stopped(bench: Bench) -> Medium {
    bench.shut_down()
}

/// Two lines with data, discards, and something that nobody flushed.
fn used(setup: &Setup) -> Bench {
    let bench = Medium::new(setup.clone()).create();
    bench.write(0, WRITTEN as u32, 1);
    bench.write(40, 60, 2);
    bench.discard(90, 20);
    bench.flush();
    bench
}

/// As `used`, behind three checkpoints.
fn long_used(setup: &Setup) -> Bench {
    let bench = used(setup);
    for i in 0..56 {
        bench.write(i * 3, 2, 3 + i);
        bench.discard(250 + i % 30, 1);
        bench.flush();
    }
    bench
}

/// Cuts the mount before and within every command, `times` in a row at the same command; the content is
/// what it was. Returns the number of commands.
fn cut_every_mount(make: impl Fn() -> Medium, times: u32) -> u64 {
    let mut n = 0;
    loop {
        let mut cuts = 0;
        for stop in [Stop::Before(n), Stop::Within(n)] {
            let medium = make();
            for _ in 0..times {
                match medium.mount_until(MountOptions::default(), Some(stop)) {
                    Up::Cut => cuts += 1,
                    Up::Running(bench) => drop(bench.cut()),
                    Up::Refused(error) => panic!("{stop:?}: {error}"),
                }
            }
            let bench = medium.mount(MountOptions::default());
            let bench = bench.unwrap_or_else(|e| panic!("{stop:?}: {e}"));
            bench.read_all();
            bench.agrees();
            assert_eq!(bench.recovery().lost_units, [], "{stop:?}");
            bench.write(0, 40, 99);
            bench.flush();
            let bench = bench.cut().mounted();
            bench.read_all();
            bench.agrees();
        }
        if cuts == 0 {
            return n;
        }
        n += 1;
    }
}

/// R13, rule 22, holes 20 and 23: recovery after a cut, cut at every command.
#[test]
fn r13_recovery_cut_at_every_command() {
    assert!(cut_every_mount(|| cut(used(&small())), 1) > 40);
}

/// R13: twice in a row.
#[test]
fn r13_recovery_cut_twice_at_every_command() {
    assert!(cut_every_mount(|| cut(used(&small())), 2) > 40);
}

/// R13: with checkpoints and a log that was cut.
#[test]
fn r13_recovery_of_a_long_log_cut_twice_at_every_command() {
    assert!(cut_every_mount(|| cut(long_used(&small())), 2) > 40);
}

/// R13, hole 31: the log's last pair holds more than a block, and its copy is cut in the middle. What was
/// only begun must not hide the records behind it.
#[test]
fn r13_a_copy_of_a_tail_of_several_blocks_cut_at_every_command() {
    let make = || {
        let bench = used(&small());
        for version in 100..103 {
            bench.write(0, WRITTEN as u32, version);
            (0..WRITTEN).for_each(|lba| bench.discard(lba, 1));
        }
        bench.flush();
        cut(bench)
    };
    let log = make().log();
    let newest = log.last().expect("a log").segment;
    let full = log.iter().filter(|b| b.segment == newest && b.entries.len() > 100).count();
    assert!(full >= 4, "two full blocks in both copies, not {full}");
    assert!(cut_every_mount(make, 1) > 40);
}

/// Hole 27: recovery pads behind a unit that a cut tore, so that later recoveries find it behind the
/// frontier. Every checkpoint carries on what the first recovery knew, until the line is closed.
#[test]
fn found_27_the_frontier_of_a_torn_line_is_carried_by_every_checkpoint() {
    let bench = used(&small());
    bench.rest();
    drop(bench.begin_write(WRITTEN, 16, 7));
    bench.sleep(Ns::from_us(200));
    let mut medium = bench.cut();
    for life in 0..3 {
        let bench = medium.mounted();
        assert_ne!(bench.recovery().torn_units, [], "life {life}");
        assert_eq!(bench.recovery().lost_units, [], "life {life}");
        medium = bench.cut();
        let records: Vec<Record> = medium.records().into_iter().map(|e| e.record).collect();
        let frontier = |r: &&Record| matches!(r, Record::Frontier { .. });
        let first = records.iter().find(frontier).expect("the first recovery wrote one");
        let (newest, _) = medium.checkpoints().remove(0);
        let is_shard = |r: &Record| matches!(r, Record::CheckpointShard { checkpoint, .. } if *checkpoint == newest);
        let begun = records.iter().position(is_shard).expect("a shard");
        let carried = &records[begun..];
        assert!(carried.contains(first), "life {life}: {first:?} is not in {carried:?}");
    }
}

/// R13, rule 15: a start after a clean stop, cut at every command, twice.
#[test]
fn r13_a_clean_start_cut_twice_at_every_command() {
    assert!(cut_every_mount(|| stopped(used(&small())), 2) > 20);
}

/// R12: the clean stop itself, cut at every command: everything flushed is there.
#[test]
fn r12_a_clean_stop_cut_at_every_command() {
    let before = [Do::Write(0, 300), Do::Flush, Do::Write(30, 9), Do::Discard(100, 30)];
    assert!(cut_at_each(&small(), &before, &[Do::Stop], 1) > 20);
}

/// What is given back is taken again at once.
#[test]
fn r13_recovery_cut_at_every_command_on_few_chunks() {
    let setup = small().with(|s| s.config.wear.leveling = WearLeveling::Off);
    assert!(cut_every_mount(|| cut(long_used(&setup)), 1) > 20);
}

/// R13: on a device without a window, and with one of a whole chunk's quarter.
#[test]
fn r13_recovery_cut_at_every_command_with_other_windows() {
    for window in [0, 16] {
        let setup = small().with(|s| s.spec.geometry.mw_cunits = window);
        assert!(cut_every_mount(|| cut(used(&setup)), 2) > 40, "window {window}");
    }
}

/// Pages that share word lines, and a torn one may take the other along.
fn paired() -> Setup {
    tiny(60).manual_gc().with(|s| {
        s.spec.cells.pairing = Pairing::Mlc;
        s.spec.cells.bits = 2;
        s.spec.cells.pair_damage = true;
        s.spec.geometry.mw_cunits = 12;
        s.config.over_provisioning_percent = 0;
    })
}

/// R13: a torn program may take its page pair along: still nothing flushed is lost.
#[test]
fn r13_recovery_cut_twice_with_pair_damage() {
    assert!(cut_every_mount(|| cut(used(&paired())), 2) > 40);
}

/// R13: nor a checkpoint in both copies, whose end recovery pads so that it can be read.
#[test]
fn r13_recovery_of_a_long_log_cut_twice_with_pair_damage() {
    assert!(cut_every_mount(|| cut(long_used(&paired())), 2) > 40);
}

/// With pairs that leave pages between them readable, as those of `femu-32ch` do: a cut in the first
/// block of a mount's pair tears a page, which takes the beginning of the block along. The pages
/// between them can be read, and the block is no whole one all the same.
#[test]
fn a_torn_first_block_may_be_readable_in_its_middle() {
    let setup = paired().shape(2, 2, 512).with(|s| {
        s.spec.cells.pairing = Pairing::MlcL95b;
        s.spec.geometry.mw_cunits = 28;
        s.options.seed = 0;
    });
    for n in 86..98 {
        let medium = cut(used(&setup));
        assert!(matches!(
            medium.mount_until(MountOptions::default(), Some(Stop::Within(n))),
            Up::Cut
        ));
        let bench = medium.mounted();
        bench.read_all();
        bench.agrees();
    }
}

/// Hole 38: recovery pads both copies of both checkpoints, so that their ends can be read, and is cut: what
/// was written of them before is there, whatever a torn program takes along.
#[test]
fn found_38_a_cut_while_a_checkpoint_is_padded_takes_no_shard_along() {
    let mut cuts = 0;
    for seed in [2, 13, 17, 21] {
        let mut setup = paired();
        setup.options.seed = seed;
        let undisturbed = cut(long_used(&setup)).mounted().recovery();
        for n in 30..60 {
            let medium = cut(long_used(&setup));
            let shards = medium.checkpoints().into_iter().take(2).flat_map(|(_, shards)| shards);
            let chunks: Vec<u32> = shards.flat_map(|places| places.map(|p| p.chunk)).collect();
            let ends = || chunks.iter().map(|c| medium.info(*c).write_pointer).collect::<Vec<_>>();
            let before = ends();
            let stop = Some(Stop::Within(n));
            assert!(matches!(medium.mount_until(MountOptions::default(), stop), Up::Cut));
            cuts += u32::from(ends() != before);
            let lines = medium.mounted().recovery().lines_replayed;
            assert_eq!(lines, undisturbed.lines_replayed, "seed {seed}, command {n}");
        }
    }
    assert!(cuts > 20, "{cuts}");
}

/// R13: after a recovery nothing moves any more: three more lives, clean and cut, change no sector.
#[test]
fn r13_recovery_is_idempotent() {
    let mut medium = cut(long_used(&small()));
    let mut generations = Vec::new();
    for life in 0..6 {
        let bench = medium.mounted();
        bench.read_all();
        generations.push(bench.recovery().generation);
        medium = if life % 2 == 0 { cut(bench) } else { stopped(bench) };
    }
    assert!(generations.is_sorted_by(|a, b| a < b), "{generations:?}");
}

/// A later major version, in the anchors or in the newest log block, is refused whatever is asked for.
#[test]
fn a_later_major_version_is_refused() {
    for in_log in [false, true] {
        let medium = cut(used(&small()));
        newer(&medium, in_log, 12);
        for read_only in [false, true] {
            let options = MountOptions { read_only, ..MountOptions::default() };
            let error = medium.refused(options);
            assert!(matches!(error, MountError::Newer(_)), "{error}");
        }
    }
}

/// A later minor version is mounted read-only, and only so; nothing is erased or written by then.
#[test]
fn a_later_minor_version_is_read_only() {
    let mut setup = small();
    setup.spec.geometry.mw_cunits = 0;
    for in_log in [false, true] {
        let medium = cut(used(&setup));
        newer(&medium, in_log, 14);
        let before = medium.ssd.counters().programmed_total();
        let error = medium.refused(MountOptions::default());
        assert!(matches!(error, MountError::NewerMinor), "{error}");
        assert_eq!(medium.ssd.counters().programmed_total(), before);
        let bench = medium.read_only();
        bench.read_all();
        assert!(bench.try_write(0, 1, 77, false).is_err());
        assert_eq!(bench.face.count(Op::Write), 0);
    }
}

/// An intact record of an unknown type is a later minor version's.
#[test]
fn an_unknown_record_is_a_later_versions() {
    let medium = cut(used(&small().with(|s| s.spec.geometry.mw_cunits = 0)));
    let log = medium.log();
    let newest = log.last().expect("a log").first_sequence;
    for block in log.iter().filter(|b| b.first_sequence == newest) {
        let length = block.entries[0].record.encoded_len();
        medium.rewrite(block.at, |bytes| {
            bytes[64 + 12] = 200;
            let crc = flashlane_base::crc32c(&bytes[68..64 + length]);
            bytes[64..68].copy_from_slice(&crc.to_le_bytes());
        });
    }
    let error = medium.refused(MountOptions::default());
    assert!(matches!(error, MountError::NewerMinor), "{error}");
    medium.read_only();
}

/// Raises a byte of the version above what is known, in all anchors or all copies of the newest
/// block.
fn newer(medium: &Medium, in_log: bool, byte: usize) {
    let log = medium.log();
    let newest = log.last().expect("a log").first_sequence;
    let places: Vec<_> = match in_log {
        true => log.iter().filter(|b| b.first_sequence == newest).map(|b| (b.at, 64)).collect(),
        false => medium.anchors().into_iter().map(|(at, _)| (at, 4096)).collect(),
    };
    assert!(places.len() >= 2);
    for (at, length) in places {
        medium.rewrite(at, |bytes| {
            bytes[byte] += 2;
            let crc = flashlane_base::crc32c(&bytes[8..length]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        });
    }
    assert_eq!(Oob::BYTES, 16);
}

/// A device of another shape: refused, in words, and nothing is erased; on its own it mounts.
#[test]
fn another_geometry_is_refused() {
    let medium = stopped(used(&small()));
    let erased = || (0..medium.chunks()).map(|c| medium.info(c).erases).sum::<u32>();
    let before = erased();
    medium.pretend(|g| g.ws_opt = 8);
    match medium.refused(MountOptions::default()) {
        MountError::Device { created, found } => {
            assert!(created.contains("4 at a time") && found.contains("8 at a time"));
        }
        other => panic!("{other}"),
    }
    medium.pretend(|g| g.chunks_per_pu = 39);
    let error = medium.refused(MountOptions::default());
    assert!(matches!(error, MountError::Device { .. } | MountError::Damaged(_)), "{error}");
    medium.pretend(|_| {});
    assert_eq!(erased(), before);
    medium.mounted().read_all();
}

/// The wrong uuid finds nothing, the right one the target.
#[test]
fn a_target_is_found_by_its_uuid() {
    let medium = stopped(used(&small()));
    let uuid = medium.newest_anchor().uuid;
    let mut other = uuid;
    other[3] ^= 1;
    let options = |uuid| MountOptions { uuid: Some(uuid), ..MountOptions::default() };
    let error = medium.refused(options(other));
    assert!(matches!(error, MountError::NoTarget | MountError::LogLost), "{error}");
    medium.mount(options(uuid)).expect("there it is").read_all();
    assert!(medium.records().iter().any(|e| e.record == Record::Started));
}
