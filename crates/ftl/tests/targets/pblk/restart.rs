//! Restarts: clean ones, with other capacities, with bad chunks, over an older target (R12 to R16).
//!
//! Owns: the tests. R13 is in `again`. Geometry: that of `recover`.

use crate::pblk::recover::{LINE, finished, made, small};
use crate::prelude::*;
use flashlane_base::{SECTOR_BYTES, VECTOR_MAX};
use flashlane_ftl::log::format::pack_entry;

/// R12: after a clean stop no line is scanned or replayed, none is read but its first sector (which tells
/// what a chunk is), nothing is padded; the counts are those of before.
#[test]
fn r12_a_clean_start_reads_no_line() {
    let bench = made(small());
    bench.write(0, 4 * LINE, 1);
    bench.write(50, 200, 2);
    bench.discard(0, 20);
    let valid = |b: &Bench| (b.free_chunks() > 0, b.retired());
    let medium = bench.shut_down();
    let of_lines: Vec<u32> = medium.lines().iter().flat_map(|l| l.chunks.clone()).collect();
    assert!(of_lines.len() >= 16);
    let bench = medium.mounted();
    let did = bench.recovery();
    assert!(did.clean, "{did:?}");
    assert_eq!((did.lines_scanned, did.lines_replayed), (0, 0));
    let read: Vec<_> = bench.face.asked(Op::Read);
    let inside: Vec<_> = read.iter().filter(|s| s.1 > 0 && of_lines.contains(&s.0)).collect();
    assert!(inside.is_empty(), "{inside:?}");
    assert_eq!(valid(&bench), (true, 0));
    bench.agrees();
    finished(bench);
}

/// R12: and a start after a cut is not clean, even when nothing was written since the start.
#[test]
fn r12_a_cut_life_is_not_clean() {
    let bench = made(small());
    bench.write(0, LINE, 1);
    let bench = bench.shut_down().mounted();
    assert!(bench.recovery().clean);
    let bench = bench.cut().mounted();
    assert!(!bench.recovery().clean);
    finished(bench);
}

/// R14: entries beyond the capacity, in closing metadata and in a record, are nobody's.
#[test]
fn r14_sectors_beyond_the_capacity_are_ignored() {
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.drained();
    bench.write(400, 4, 1);
    bench.drained();
    let capacity = bench.capacity();
    let medium = bench.cut();
    let closing = medium.typed(LBA_LINE_CLOSING);
    let (at, first) = closing[1].clone();
    let entry = 16 + 12 * 8;
    let uuid = medium.newest_anchor().uuid;
    assert!(first.bytes.len() == 4096);
    // The entry of a sector that another line has a newer copy of.
    medium.rewrite(at, |bytes| {
        bytes[entry..entry + 12].copy_from_slice(&pack_entry(capacity + 3, 5));
        let crc = flashlane_base::crc32c_append(flashlane_base::crc32c(&uuid), &bytes[4..4096]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    });
    let bench = medium.mounted();
    assert!(bench.recovery().lines_replayed >= 1, "{:?}", bench.recovery());
    bench.agrees();
    let lost: Vec<u64> =
        (0..LINE as u64).filter(|l| bench.version(*l, &[1, 0]) != Some(1)).collect();
    assert!(lost.len() <= 1, "{lost:?}: the rewritten entry's own");
}

/// R15: a chunk that went bad while the power was off: its sectors are errors, nothing else is; after a
/// clean stop and after a cut.
#[test]
fn r15_a_chunk_that_went_bad_costs_its_own_sectors() {
    for clean in [true, false] {
        let bench = made(small());
        bench.write(0, 3 * LINE, 1);
        bench.drained();
        let medium = if clean { bench.shut_down() } else { bench.cut() };
        let (chunk, _) = medium.newest(300);
        let here: Vec<u64> =
            (0..3 * u64::from(LINE)).filter(|l| medium.newest(*l).0 == chunk).collect();
        assert!(here.len() > 40);
        medium.wreck((0..64).map(|s| (chunk, s)));
        let options = MountOptions { accept_lost: true, ..MountOptions::default() };
        let bench = medium.mount(options).unwrap_or_else(|e| panic!("{e}"));
        for lba in 0..3 * u64::from(LINE) {
            let version = bench.version(lba, &[1]);
            assert_eq!(version.is_none(), here.contains(&lba), "sector {lba}, clean: {clean}");
        }
        // What is written over them is well again, in the next life too.
        here.iter().for_each(|lba| bench.write(*lba, 1, 2));
        let bench = bench.shut_down().mounted();
        finished(bench);
    }
}

/// R16: a target created over an older one: the old one never comes back, at once, after a cut, and when
/// the new one has overwritten some of it.
#[test]
fn r16_an_older_target_never_comes_back() {
    for clean in [true, false] {
        let bench = made(small());
        bench.write(0, 3 * LINE, 1);
        bench.drained();
        let mut medium = if clean { bench.shut_down() } else { bench.cut() };
        let old = medium.newest_anchor().uuid;
        medium.setup.seed = 99;
        let mut medium = medium.create().cut();
        assert_ne!(medium.newest_anchor().uuid, old);
        for life in 0..3 {
            let bench = medium.mounted();
            bench.read_all();
            bench.write(life * 100, 80, 5 + life);
            bench.flush();
            medium = bench.cut();
        }
        finished(medium.mounted());
    }
}

/// R16: the creation over an older target, cut at every command: one of the two is there, never a mixture;
/// of the old one sectors may be gone, which is an error.
#[test]
fn r16_a_creation_over_a_target_cut_at_every_command() {
    let old = || {
        let bench = made(small());
        bench.write(0, 2 * LINE, 1);
        bench.drained();
        let mut medium = bench.cut();
        medium.setup.seed = 99;
        medium
    };
    let bench = old().create();
    let commands = bench.face.commands();
    let (mut olds, mut news) = (0, 0);
    for stop in stops(0..commands) {
        let medium = old();
        let uuid = medium.newest_anchor().uuid;
        assert!(matches!(medium.create_until(Some(stop)), Up::Cut));
        let is_new = medium.anchors().last().is_some_and(|(_, a)| a.uuid != uuid);
        let bench = match medium.mount(MountOptions::default()) {
            Ok(bench) => bench,
            Err(error) => {
                assert!(!is_new || news == 0, "{stop:?}: {error}");
                continue;
            }
        };
        let found: Vec<_> = (0..2 * u64::from(LINE)).map(|l| bench.version(l, &[0, 1])).collect();
        if found.iter().all(|v| *v == Some(0)) {
            news += 1;
        } else {
            assert!(found.iter().all(|v| *v != Some(0)), "{stop:?}: a mixture");
            assert_eq!(news, 0, "{stop:?}: the old one came back");
            olds += 1;
        }
        bench.agrees();
    }
    assert!(news > 0, "{olds} {news}");
}

/// A start copies the valid records of the last pair as one block, which may be longer than a vector.
#[test]
fn a_log_block_longer_than_a_vector_is_read_back() {
    let bench = made(small().untimed().untraced().with(|s| s.spec.geometry.pages_per_block *= 16));
    bench.write(0, 14_000, 1);
    (0..14_000).for_each(|lba| bench.discard(lba, 1));
    bench.flush();
    let medium = bench.cut();
    let bench = medium.mounted();
    let bytes = |b: &crate::medium::LogAt| -> usize {
        b.entries.iter().map(|entry| entry.record.encoded_len()).sum()
    };
    let longest = bench.medium.log().iter().map(bytes).max();
    assert!(longest > Some(VECTOR_MAX * SECTOR_BYTES), "{longest:?}");
    let bench = bench.cut().mounted();
    bench.read_all();
    finished(bench);
}

/// Chunks in which a program failed are never programmed again, in no later life, however often
/// checkpoints have cut what first said so.
#[test]
fn a_bad_chunk_is_never_used_again() {
    let setup = || tiny(40).op(60);
    let bench = Medium::new(setup()).create();
    bench.write(0, 300, 1);
    bench.flush();
    let lines = bench.cut().lines();
    let bad = [lines[0].chunks[1], lines[0].chunks[2], lines[1].chunks[0]];
    let plan = bad.map(|chunk| setup().fault("early_close", (chunk, 8))).concat();
    let overwrite = |bench: &Bench| {
        for i in 0..60 {
            bench.write(i * 10 % 400, 30, 1 + i);
            bench.discard(450 + i % 40, 1);
            bench.flush();
        }
        bench.rest();
    };
    for clean in [false, true] {
        let bench = Medium::new(setup().faults(&plan)).create();
        overwrite(&bench);
        assert_eq!((bench.ssd.faults_happened(), bench.retired()), (vec![1; 3], 3));
        let now = |bench: &Bench| {
            let chunks = bad.map(|chunk| bench.medium.info(chunk));
            chunks.map(|chunk| (chunk.erases, chunk.write_pointer))
        };
        let then = now(&bench);
        overwrite(&bench);
        let bench = if clean { bench.shut_down() } else { bench.cut() }.mounted();
        overwrite(&bench);
        assert_eq!(now(&bench), then, "clean {clean}");
        bench.shut_down();
    }
}
