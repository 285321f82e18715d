//! What can't be read is unknown, never empty: dies, chunks, and reads that fail for a while at a
//! mount, and the mount after one that was refused (FORMAT.md, sections 4, 8 to 10).
//!
//! Owns: one test per kind of fault, for pblk and QBLK. Promises of each: no flushed sector reads
//! as an older one or as zeros; what a mount says is lost is what reads give errors for; the same
//! mount gives the same verdict again; when the fault is over, everything is there. Geometry:
//! `tiny`.

use crate::pblk::damage::options;
use crate::prelude::*;
use crate::qblk::cores::qblk;
use flashlane_ftl::layer::LostCause;
use flashlane_ocssd::Device;
use flashlane_ocssd::wrap::{Script, ScriptedDevice};

/// Sectors that are in use.
const USED: u64 = 600;

/// A device that looks for faults: one made without any looks for none, whatever befalls it later.
const NEVER: &str = "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n";

fn pblk() -> Setup {
    tiny(40).manual_gc().faults(NEVER)
}

fn both() -> [Setup; 2] {
    [pblk(), qblk(2, 2, 2).manual_gc().faults(NEVER)]
}

/// The die is dead as far as the device says.
fn is_dead(bench: &Bench, pu: u32) -> bool {
    bench.ssd.dead_dies().iter().any(|(dead, _)| *dead == pu)
}

/// A target that has lived: every sector in two versions, some in more, all flushed.
fn lived(setup: &Setup, more: u64) -> Bench {
    let bench = Medium::new(setup.clone()).create();
    for version in 1..3 {
        for lba in (0..USED).step_by(8) {
            bench.write(lba, 8, version);
        }
        bench.drained();
    }
    for i in 0..more {
        bench.write(i * 7 % (USED - 4), 3, 3 + i);
        if i % 8 == 0 {
            bench.flush();
        }
    }
    bench.flush();
    bench
}

/// Every flushed sector is what it was, or an error. Returns those that are errors.
fn errors(bench: &Bench) -> BTreeSet<u64> {
    let held = bench.held.borrow().clone();
    let want = |lba: &u64| held.get(lba).copied().unwrap_or(0);
    (0..USED + 50).filter(|lba| bench.version(*lba, &[want(lba)]).is_none()).collect()
}

/// The sectors that the mount said are lost.
fn said(bench: &Bench) -> BTreeSet<u64> {
    let all = bench.recovery().lost_sectors;
    all.iter().flat_map(|lost| lost.first..lost.first + lost.count).collect()
}

/// What the mount said is what reads give errors for. Returns how many.
fn errors_as_said(bench: &Bench) -> usize {
    let (errors, said) = (errors(bench), said(bench));
    let asked: BTreeSet<u64> = said.into_iter().filter(|lba| *lba < USED + 50).collect();
    assert_eq!(errors, asked);
    errors.len()
}

fn all_there(medium: &Medium) {
    let bench = medium.mounted();
    assert_eq!(errors(&bench).len(), 0);
    bench.read_all();
    bench.shut_down();
}

fn refused_twice(medium: &Medium) {
    let first = medium.refused(MountOptions::default()).to_string();
    for _ in 0..3 {
        assert_eq!(medium.refused(MountOptions::default()).to_string(), first);
    }
}

/// A die is dead at the mount after a cut: refused, however often; accepted, nothing is older, and
/// so in the lives after it.
#[test]
fn a_dead_die_after_a_cut_is_refused_again_and_again() {
    for setup in both() {
        for pu in 0..4 {
            let medium = lived(&setup, 20).cut();
            medium.kill_die(pu);
            refused_twice(&medium);
            let bench = medium.mount(options(|o| o.accept_lost = true)).expect("as asked for");
            let lost = errors_as_said(&bench);
            assert!(lost > 0 && is_dead(&bench, pu));
            let bench = bench.cut().mounted();
            assert_eq!(errors_as_said(&bench), lost);
            for lba in (0..USED).step_by(8) {
                bench.write(lba, 8, 90);
            }
            bench.flush();
            let bench = bench.cut().mount(options(|o| o.accept_lost = true)).expect("it works on");
            errors_as_said(&bench);
            assert_eq!(bench.ssd.counters().violations, 0);
        }
    }
}

/// A service manager starts a refused target again and again. Each mount writes a copy of the log
/// and an anchor. It uses the chunks of earlier copies for that, so there is room for the mount
/// that accepts the loss.
#[test]
fn refused_mounts_use_up_no_chunks() {
    for setup in both() {
        let medium = lived(&setup, 20).cut();
        medium.kill_die(1);
        for _ in 0..80 {
            let why = medium.refused(MountOptions::default());
            assert!(matches!(why, MountError::LostUnits { .. }), "{why}");
        }
        let bench = medium.mount(options(|o| o.accept_lost = true)).expect("as asked for");
        assert!(errors_as_said(&bench) > 0);
        bench.write(0, 8, 90);
        bench.flush();
    }
}

/// The same targets, and one whose lines have a chunk each: nothing else says how far a dead one
/// was written. What flushes have programmed is told in the log.
fn telling() -> impl Iterator<Item = Setup> {
    let narrow = pblk().with(|s| s.config.active_pus = 1);
    both().into_iter().chain([narrow]).map(|setup| setup.with(|s| s.config.flush_records = true))
}

/// A target that has lived as a seed says: writes of all ages, flushes and collections between
/// them, then writes that nobody has flushed. Returns the versions that each sector may have: the
/// one that was flushed last, and those written since.
fn lived_by_chance(setup: &Setup, seed: u64) -> (Medium, BTreeMap<u64, Vec<u64>>) {
    let bench = Medium::new(setup.clone()).create();
    let mut rng = Rng::stream(seed, "test.telling", 0);
    let mut may_be: BTreeMap<u64, Vec<u64>> = (0..USED).map(|lba| (lba, vec![0])).collect();
    let flush_in = 4 << rng.below(7);
    for version in 1..200 + rng.below(800) {
        let n = 1 + rng.below(12);
        let range = if rng.below(3) > 0 { USED / 8 } else { USED - n };
        let lba = rng.below(range);
        match rng.below(20) {
            0 => {
                bench.discard(lba, n);
                (lba..lba + n).for_each(|lba| may_be.entry(lba).or_default().push(0));
            }
            1 => _ = bench.gc_once(),
            _ => {
                bench.write(lba, n as u32, version);
                (lba..lba + n).for_each(|lba| may_be.entry(lba).or_default().push(version));
            }
        }
        if rng.below(flush_in) == 0 {
            bench.flush();
            may_be.values_mut().for_each(|versions| _ = versions.drain(..versions.len() - 1));
        }
    }
    (bench.cut(), may_be)
}

/// Every sector is one of what it may be, or an error. Returns those that are errors.
fn errors_among(bench: &Bench, may_be: &BTreeMap<u64, Vec<u64>>) -> BTreeSet<u64> {
    let lost = |(lba, versions): &(&u64, &Vec<u64>)| bench.version(**lba, versions).is_none();
    may_be.iter().filter(lost).map(|(lba, _)| *lba).collect()
}

/// A die is dead at the mount after a cut. What flushes told of it is lost, and what checkpoints
/// and collections relied on; everything else is there, nothing is older, and the next mounts say
/// the same.
#[test]
fn what_was_told_is_all_that_a_dead_die_costs() {
    for setup in telling() {
        let (mut lost, mut refused) = (0, 0);
        const SEEDS: u64 = 24;
        for seed in 0..SEEDS {
            let (medium, may_be) = lived_by_chance(&setup, seed);
            // A mount before that may have been cut, or have come to its end.
            if seed % 3 == 0
                && let stop = Some(Stop::Before(20 * seed))
                && let Up::Running(bench) = medium.mount_until(MountOptions::default(), stop)
            {
                bench.cut();
            }
            medium.kill_die(seed as u32 % 4);
            // Where nothing that counted is lost there is nothing to refuse.
            let bench = match medium.mount(MountOptions::default()) {
                Ok(bench) => bench,
                Err(_) => {
                    refused_twice(&medium);
                    refused += 1;
                    medium.mount(options(|o| o.accept_lost = true)).expect("as asked for")
                }
            };
            let errors = errors_among(&bench, &may_be);
            assert_eq!(errors, said(&bench).into_iter().filter(|lba| *lba < USED).collect());
            lost += errors.len() as u64;
            // Cut again before anything is closed, and stopped.
            let bench = bench.cut().mounted();
            assert_eq!(errors_among(&bench, &may_be), errors, "seed {seed}");
            let bench = bench.shut_down().mounted();
            assert_eq!(errors_among(&bench, &may_be), errors, "seed {seed}");
            assert_eq!(bench.ssd.counters().violations, 0);
        }
        assert!(refused > SEEDS / 2, "{refused} of {SEEDS} mounts refused");
        let all = SEEDS * USED;
        assert!((1..all * 2 / 5).contains(&lost), "{lost} of {all} sectors: a die has a fourth");
    }
}

/// A line stays open while two checkpoints cut off the log that told of its units. The checkpoints
/// tell them again.
#[test]
fn what_was_told_outlives_the_cut_of_the_log() {
    // Each flush of a discard writes a block of the log, and no data.
    let until_checkpoints = |bench: &Bench, next: &mut u64, more: u64| {
        let newest = || bench.medium.checkpoints().first().map_or(0, |c| c.0);
        let before = newest();
        while newest() < before + more {
            bench.discard(*next, 1);
            bench.flush();
            *next += 1;
        }
    };
    for setup in telling() {
        for pu in 0..4 {
            let bench = lived(&setup, 0);
            let mut next = USED + 100;
            for lba in (next..next + 600).step_by(8) {
                bench.write(lba, 8, 1);
            }
            until_checkpoints(&bench, &mut next, 1);
            // To lines that were opened since: the next two checkpoints close none of them.
            for lba in (0..USED).step_by(8) {
                bench.write(lba, 8, 90);
            }
            bench.flush();
            until_checkpoints(&bench, &mut next, 2);
            let medium = bench.cut();
            medium.kill_die(pu);
            let bench = medium.mount(options(|o| o.accept_lost = true)).expect("as asked for");
            let errors = errors(&bench).len() as u64;
            assert!((1..USED * 2 / 5).contains(&errors), "{errors} of {USED} sectors");
        }
    }
}

/// A user who flushes each small write does not fill the log: a flush waits for a checkpoint if
/// one is due.
#[test]
fn many_flushes_that_tell_find_room_in_the_log() {
    for setup in telling() {
        let bench = Medium::new(setup.untimed()).create();
        bench.set_gc(true);
        for version in 1..3000 {
            bench.write(version * 7 % USED, 1, version);
            bench.flush();
        }
        let bench = bench.cut().mounted();
        bench.read_all();
        bench.shut_down();
    }
}

/// A die is dead at the mount after a stop: what was on it is listed, all else is good, and the
/// target works on without it.
#[test]
fn a_dead_die_after_a_stop_costs_what_was_on_it() {
    for setup in both() {
        for pu in 0..4 {
            let medium = lived(&setup, 20).shut_down();
            let on_it = (0..USED).filter(|lba| {
                let held = medium.held.borrow().contains_key(lba);
                held && medium.newest(*lba).0 / setup.spec.geometry.chunks_per_pu == pu
            });
            let on_it: BTreeSet<u64> = on_it.collect();
            medium.kill_die(pu);
            for _ in 0..2 {
                let bench = medium.mounted();
                assert!(bench.recovery().clean);
                assert_eq!(errors(&bench), on_it);
                assert_eq!(errors_as_said(&bench), on_it.len());
                let causes = bench.recovery().lost_sectors;
                assert!(causes.iter().all(|lost| lost.cause == LostCause::DeadPu(pu)));
                bench.shut_down();
            }
            let bench = medium.mounted();
            bench.set_gc(true);
            for version in 90..94 {
                for lba in (0..USED).step_by(8) {
                    bench.write(lba, 8, version);
                }
                bench.drained();
            }
            bench.read_all();
            let bench = bench.shut_down().mounted();
            assert_eq!(said(&bench), BTreeSet::new());
            bench.read_all();
            bench.shut_down();
        }
    }
}

/// A die dies in use: no rule of the medium is broken, what is lost is an error.
#[test]
fn a_die_that_dies_in_use_breaks_no_rule() {
    for setup in both() {
        for pu in 0..4 {
            let bench = lived(&setup, 20);
            bench.set_gc(true);
            bench.medium.kill_die(pu);
            for version in 90..94 {
                for lba in (0..USED).step_by(8) {
                    bench.write(lba, 8, version);
                }
                bench.drained();
            }
            assert!(is_dead(&bench, pu));
            assert_eq!(bench.ssd.counters().violations, 0, "{:?}", bench.ssd.violations().first());
            assert_eq!(errors(&bench).len(), 0, "all was written again");
            bench.shut_down();
        }
    }
}

/// The first reads of a mount fail, as many as it takes to pass each of its steps: it finds
/// everything, or is refused, and finds everything then.
#[test]
fn reads_that_fail_at_first_cost_nothing() {
    for (setup, step) in both().into_iter().zip([50, 130]) {
        for clean in [false, true] {
            let (mut refused, mut mounted) = (0, 0);
            for n in (0..800).step_by(step).chain((1000..12_000).step_by(5000)) {
                let bench = lived(&setup, 30);
                let medium = if clean { bench.shut_down() } else { bench.cut() };
                medium.fail_next(n);
                match medium.mount(MountOptions::default()) {
                    Ok(bench) => {
                        medium.heal();
                        assert_eq!(errors(&bench).len(), 0, "{n} reads fail");
                        mounted += 1;
                        bench.cut();
                    }
                    Err(error) => {
                        assert!(n > 300, "{n} reads fail: {error}");
                        refused += 1;
                    }
                }
                medium.heal();
                all_there(&medium);
            }
            assert!(mounted > 3 && refused > 0, "{mounted} mounted, {refused} refused");
        }
    }
}

/// More reads of one place than a mount repeats at once: it waits, and finds what it would have
/// found. The newest unit of an open line, closing metadata, the newest checkpoint, the end of the
/// log, anchors.
#[test]
fn what_can_be_read_a_while_later_is_waited_for() {
    const TIMES: u64 = 12;
    let medium = lived(&pblk(), 20).cut();
    let unit = medium.unit_of(medium.newest(134));
    assert_eq!(unit[3].1 + 1, medium.info(unit[0].0).write_pointer, "the last unit of its chunk");
    medium.fail_often(unit, TIMES);
    let bench = medium.mounted();
    assert_eq!(bench.recovery().torn_units, []);
    assert_eq!(errors(&bench).len(), 0);
    let medium = lived(&pblk(), 20).cut();
    medium.fail_often(medium.spots(LBA_LINE_CLOSING), TIMES);
    let bench = medium.mounted();
    let replayed = bench.recovery().lines_replayed;
    assert!(replayed > 2, "{replayed} by their closing metadata");
    assert_eq!(errors(&bench).len(), 0);
    let medium = lived(&pblk(), 20).shut_down();
    medium.fail_often(medium.spots(LBA_CHECKPOINT), TIMES);
    let bench = medium.mounted();
    assert!(bench.recovery().clean);
    assert_eq!(errors(&bench).len(), 0);
    for lba in [LBA_LOG, LBA_ANCHOR] {
        let medium = lived(&pblk(), 20).shut_down();
        medium.fail_often(medium.spots(lba), TIMES);
        let bench = medium.mounted();
        assert!(bench.recovery().clean);
        assert_eq!(errors(&bench).len(), 0);
    }
}

/// One chunk can't be read, each that holds anything: nothing is older; and when it can be read
/// again, everything is there.
#[test]
fn a_chunk_that_can_not_be_read_costs_nothing_when_it_can_be_again() {
    for (setup, step) in both().into_iter().zip([1, 3]) {
        for clean in [false, true] {
            let make = || {
                let bench = lived(&setup, 60);
                if clean { bench.shut_down() } else { bench.cut() }
            };
            let chunks: BTreeSet<u32> = make().written().iter().map(|((c, _), _)| *c).collect();
            let mut refused = 0;
            for chunk in chunks.into_iter().step_by(step) {
                let medium = make();
                let end = medium.info(chunk).write_pointer;
                // A unit that nothing follows looks like one that a cut tore (FORMAT.md, section
                // 9).
                if !clean && end <= setup.spec.geometry.ws_opt.max(4) {
                    continue;
                }
                medium.wreck((0..end).map(|sector| (chunk, sector)));
                for _ in 0..2 {
                    match medium.mount(MountOptions::default()) {
                        Ok(bench) => drop(errors(&bench)),
                        Err(_) => refused += 1,
                    }
                }
                medium.heal();
                all_there(&medium);
            }
            assert_eq!(refused > 0, !clean, "{refused}");
        }
    }
}

/// Both PUs of a channel can't be read, and so perhaps both copies of the newest log: refused
/// before anything is written; then everything is there.
#[test]
fn two_pus_that_can_not_be_read_are_refused() {
    for setup in both() {
        for (a, b) in [(0, 1), (2, 3), (0, 3)] {
            let bench = lived(&setup, 40).cut().mounted();
            bench.write(3, 8, 95);
            bench.flush();
            let medium = bench.cut();
            let per_pu = setup.spec.geometry.chunks_per_pu;
            let of = |pu: u32| move |at: &Spot| at.0 / per_pu == pu;
            let lost = medium.written().into_iter().map(|(at, _)| at);
            medium.wreck(lost.filter(|at| of(a)(at) || of(b)(at)));
            let before = medium.ssd.counters();
            for accept_lost in [false, true, false] {
                let error = medium.refused(options(|o| o.accept_lost = accept_lost));
                // If the anchor can be read, the mount misses blocks of the pair that it names.
                let is_known = matches!(error, MountError::Unknown { .. } | MountError::Damaged(_));
                assert!(is_known, "{error}");
            }
            let after = medium.ssd.counters();
            let pads = Cause::PaddingGc as usize;
            let padded = after.programmed[pads] - before.programmed[pads];
            assert_eq!(
                after.programmed_total() - before.programmed_total(),
                padded,
                "padding only"
            );
            medium.heal();
            all_there(&medium);
        }
    }
}

/// Of the log's end one block may be missing, which can have been in flight; of two the first was
/// acknowledged.
#[test]
fn two_blocks_missing_at_the_end_of_the_log_are_damage() {
    for rounds in 0..8 {
        let bench = lived(&pblk(), 4 + 2 * rounds);
        for i in 0..4 {
            bench.discard(10 + i, 1);
            bench.flush();
        }
        let medium = bench.cut();
        let log = medium.log();
        let newest = log.last().expect("a log").segment;
        let mut blocks: BTreeMap<u64, Vec<Spot>> = BTreeMap::new();
        for block in log.iter().filter(|block| block.segment == newest) {
            blocks.entry(block.first_sequence).or_default().push(block.at);
        }
        if blocks.len() < 2 {
            continue;
        }
        // The one block that says that its pair is complete is missed as well.
        let is_complete = medium.newest_anchor().current.id > newest;
        let lost = if is_complete { 1 } else { 2 };
        let last: Vec<Vec<Spot>> = blocks.into_values().rev().take(lost).collect();
        medium.wreck(last.concat());
        for _ in 0..2 {
            let error = medium.refused(MountOptions::default());
            assert!(matches!(error, MountError::Damaged(_)), "{error}");
        }
        medium.heal();
        all_there(&medium);
    }
}

/// The last pair of the log holds one block and, with `pair_damage`, padding that closes its page
/// pairs. The block was acknowledged: the rest of its unit, or the padding, can be read. From the
/// n-th command on, neither copy of the block can. The mount refuses, or has read it before that.
#[test]
fn a_first_block_is_torn_only_if_its_program_is() {
    let cut_after = |setup: &Setup, discards: u64| {
        let bench = lived(setup, 4);
        for i in 0..discards {
            bench.discard(10 + i, 1);
            bench.flush();
        }
        bench.cut()
    };
    let last_pair = |medium: &Medium| {
        let log = medium.log();
        let newest = log.last().expect("a log").segment;
        log.into_iter().filter(|block| block.segment == newest).collect::<Vec<_>>()
    };
    let has_one_block = |medium: &Medium| {
        let pair = last_pair(medium);
        pair[0].segment > 1 && pair.iter().all(|b| b.first_sequence == pair[0].first_sequence)
    };
    let pairs = |setup: Setup| setup.with(|s| s.spec.cells.pair_damage = true);
    for (setup, sectors) in
        both().map(|s| (s, 1)).into_iter().chain(both().map(pairs).map(|s| (s, 4)))
    {
        let discards = (0..60).find(|n| has_one_block(&cut_after(&setup, *n)));
        let discards = discards.expect("a log that ends with one block in its last pair");
        for first in 0..16 {
            let medium = cut_after(&setup, discards);
            let blocks = last_pair(&medium).into_iter();
            let spots = blocks.flat_map(|block| (0..sectors).map(move |s| (block.at.0, s)));
            let spots: Vec<Spot> = spots.collect();
            for command in first.. {
                assert!(command < 1000, "it never mounts");
                medium.wreck_from(command, spots.clone());
                match medium.mount(MountOptions::default()) {
                    Err(MountError::Unknown { .. } | MountError::Damaged(_)) => medium.heal(),
                    Err(error) => panic!("{error}"),
                    Ok(bench) => {
                        assert!(command > 0, "it was not missed");
                        assert_eq!(errors(&bench).len(), 0, "from command {command} on");
                        break;
                    }
                }
            }
        }
    }
}

/// The anchor names a pair without blocks. The pair before it can't be read in either copy, or not
/// from its beginning. A still older pair names that one, so the mount refuses the log as damaged.
#[test]
fn a_whole_pair_that_can_not_be_read_is_missed() {
    let mut tried = 0;
    for blocks in 0..40 {
        let bench = lived(&pblk(), 4);
        for i in 0..blocks {
            bench.discard(10 + i, 1);
            bench.flush();
        }
        let medium = bench.cut();
        let log = medium.log();
        let newest = log.last().expect("a log").segment;
        let is_complete = medium.newest_anchor().current.id > newest;
        if !is_complete || log.iter().all(|block| block.segment == newest) {
            continue;
        }
        let of_pair = log.iter().filter(|block| block.segment == newest);
        let copies: BTreeSet<u32> = of_pair.map(|block| block.at.0).collect();
        let geo = *medium.ssd.geometry();
        for sectors in [geo.sectors_per_chunk(), geo.ws_min] {
            medium.wreck(copies.iter().flat_map(|c| (0..sectors).map(|s| (*c, s))));
            for _ in 0..2 {
                let error = medium.refused(MountOptions::default());
                assert!(matches!(error, MountError::Damaged(_)), "{error}");
            }
            medium.heal();
        }
        all_there(&medium);
        tried += 1;
    }
    assert!(tried > 0, "no log ended with a pair");
}

/// A copy of the log can't be read and a die on another PU is dead: refused because a newer log may
/// be there, also when mounts have padded that copy many times.
#[test]
fn a_copy_of_the_log_that_can_not_be_read_is_padded_by_no_mount_to_its_end() {
    let mut tried = 0;
    for rounds in [4, 8, 12, 16] {
        let bench = lived(&pblk(), rounds);
        let medium = bench.cut();
        let geo = *medium.ssd.geometry();
        let sectors = geo.sectors_per_chunk();
        let pair = medium.newest_anchor().current;
        // The one that a mount pads first.
        let copy = pair.chunks[0].min(pair.chunks[1]);
        let end = medium.info(copy).write_pointer;
        if end <= geo.mw_cunits || end + 2 * geo.mw_cunits >= sectors {
            continue;
        }
        let of_log = pair.chunks.map(|chunk| chunk / geo.chunks_per_pu);
        let pu = (0..4).find(|pu| !of_log.contains(pu)).expect("four PUs");
        medium.wreck((0..sectors).map(|sector| (copy, sector)));
        medium.kill_die(pu);
        let error = medium.refused(MountOptions::default());
        assert!(matches!(error, MountError::Unknown { .. }), "{error}");
        for _ in 0..sectors / geo.mw_cunits + 2 {
            let again = medium.refused(MountOptions::default());
            assert_eq!(again.to_string(), error.to_string());
        }
        assert!(medium.info(copy).write_pointer < sectors);
        tried += 1;
    }
    assert!(tried > 1, "{tried} tried");
}

/// A mount with a dead die is cut at some of its commands: whatever it came to, the next one gives
/// the same verdict, and nothing is older.
#[test]
fn a_refused_mount_that_was_cut_changes_no_verdict() {
    for n in (0..90).step_by(5) {
        let medium = lived(&pblk(), 20).cut();
        medium.kill_die(n as u32 % 4);
        drop(medium.mount_until(MountOptions::default(), Some(Stop::Before(n))));
        refused_twice(&medium);
        let bench = medium.mount(options(|o| o.accept_lost = true)).expect("as asked for");
        errors_as_said(&bench);
    }
}

/// A chunk holds a single unit, as one does in which the power failed. Where nothing of it can be
/// read, nor the padding that the mount writes behind, nobody knows whether that unit is torn: it
/// counts as lost.
#[test]
fn a_unit_is_torn_only_in_a_chunk_that_can_be_read() {
    let bench = Medium::new(pblk()).create();
    bench.write(0, 16, 1);
    bench.flush();
    let medium = bench.cut();
    let geo = medium.setup.spec.geometry;
    let chunks: BTreeSet<u32> = (0..16).map(|lba| medium.newest(lba).0).collect();
    let single = |chunk: &u32| medium.info(*chunk).write_pointer == geo.ws_opt;
    let chunk = chunks.into_iter().find(single).expect("the stripe goes over four chunks");
    medium.wreck((0..geo.sectors_per_chunk()).map(|sector| (chunk, sector)));
    for _ in 0..2 {
        let error = medium.refused(MountOptions::default());
        assert!(matches!(error, MountError::LostUnits { .. }), "{error}");
    }
    medium.heal();
    all_there(&medium);
}

/// Hole 44: all that an open line holds is lost, and a mount that accepts that is cut before each
/// of its writes: the next one knows it, too, and no older copy of what was there comes back.
#[test]
fn an_accepted_loss_outlives_a_cut_of_the_mount() {
    let accept = || options(|o| o.accept_lost = true);
    let lost = || {
        let bench = Medium::new(pblk()).create();
        let line = bench.dev.layout().line_data as u32;
        bench.write(0, line, 1);
        bench.drained();
        bench.write(0, 4, 2);
        bench.flush();
        let medium = bench.cut();
        let (chunk, _) = medium.newest(0);
        let sectors = medium.setup.spec.geometry.sectors_per_chunk();
        medium.wreck((0..sectors).map(|sector| (chunk, sector)));
        medium
    };
    let whole = lost().mount(accept()).expect("as asked for");
    assert_eq!(whole.recovery().lost_units.len(), 1);
    let asked = (0..).zip(whole.face.everything()).filter(|(_, (op, _))| *op != Op::Read);
    let mut cuts = 0;
    for (n, _) in asked {
        let medium = lost();
        match medium.mount_until(accept(), Some(Stop::Before(n))) {
            Up::Cut => cuts += 1,
            Up::Running(bench) => drop(bench.cut()),
            Up::Refused(error) => panic!("cut before write {n}: {error}"),
        }
        let bench = medium.mount(accept()).expect("as asked for");
        for lba in 0..4 {
            assert_eq!(bench.version(lba, &[2]), None, "sector {lba}, cut before write {n}");
        }
    }
    assert!(cuts > 10, "{cuts} cuts");
}

/// Hole 41: closed lines are looked through twice. Whenever a mount reads closing metadata, that
/// goes, and with it a unit that has the newest copies of its sectors: they are lost, and no older
/// ones take their place.
#[test]
fn what_goes_during_a_mount_is_lost() {
    let made = || {
        let bench = Medium::new(pblk()).create();
        let line = bench.dev.layout().line_data as u32;
        bench.write(0, line, 1);
        bench.write(0, line, 2);
        bench.drained();
        bench.write(620, 1, 3);
        bench.drained();
        bench.cut()
    };
    let medium = made();
    let closing: BTreeSet<Spot> = medium.spots(LBA_LINE_CLOSING).into_iter().collect();
    let whole = medium.mounted();
    assert!(whole.recovery().lines_replayed > 1, "both lines, by their closing metadata");
    let reads = |(_, (op, spots)): &(u64, (Op, Vec<Spot>))| {
        *op == Op::Read && spots.iter().any(|spot| closing.contains(spot))
    };
    let mut refused = 0;
    for (n, _) in (0..).zip(whole.face.everything()).filter(reads) {
        let medium = made();
        let unit = medium.unit_of(medium.newest(0));
        medium.wreck_from(n, closing.iter().copied().chain(unit));
        match medium.mount(MountOptions::default()) {
            // It had read all that it needed.
            Ok(bench) => {
                let newest = |lba| matches!(bench.version(lba, &[2]), None | Some(2));
                assert!((0..4).all(newest));
                bench.cut();
            }
            Err(MountError::LostUnits { .. }) => refused += 1,
            Err(other) => panic!("from command {n} on: {other}"),
        }
        medium.heal();
        all_there(&medium);
    }
    assert!(refused > 2, "{refused} refused");
}

/// Padding that the host does not take is missing: what lies in front of it can't be read, which
/// says nothing of the medium. The mount is refused, and everything is there when the host takes
/// it.
#[test]
fn a_host_that_takes_no_padding_refuses_a_mount() {
    for setup in both() {
        let mut refused = 0;
        for nth in 0..2 {
            let medium = lived(&setup, 20).cut();
            let run = Virtual::new(setup.cores, 2, CostTable::zero());
            let script = Arc::new(ScriptedDevice::new(medium.ssd.clone()));
            let (addrs, status, delay) = (u64::MAX, Status::HostFault, Ns::ZERO);
            script.add(Script { op: Op::Write, nth, addrs, status, delay });
            let cx = run.cx();
            let mounted = run.run(async move {
                Pblk::mount(&cx, script, MountOptions::default()).await.map(drop)
            });
            let mounted = mounted.expect("no stall");
            refused += u32::from(matches!(mounted, Err(MountError::Host { .. })));
            let at = run.now();
            drop(run);
            medium.ssd.power_cut(at, PowerOn::ClockRestarts);
            assert_eq!(medium.ssd.counters().violations, 0);
            all_there(&medium);
        }
        assert!(refused > 0, "no padding among the first writes of a mount");
    }
}
