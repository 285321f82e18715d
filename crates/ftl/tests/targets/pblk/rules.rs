//! The order rules of FORMAT.md, section 8, on the real engine: each test would fail without its rule.
//!
//! Owns: the rules that can be isolated here, by cutting a story at every command or by the order in which
//! commands went out. Which test covers which rule is in `docs/TESTING.md`. Geometry: `tiny`.

use crate::pblk::recover::{LINE, made, small};
use crate::prelude::*;
use crate::story::cut_at_erases;

/// Rule 1: a line whose sectors were all overwritten or discarded, the newer versions still in slots and
/// the discard not flushed, is collected and erased; whenever the power goes off, the old version or a
/// newer is there.
#[test]
fn rule_01_nothing_is_erased_before_its_successor_is_durable() {
    let before = [Do::Write(0, LINE), Do::Flush, Do::Write(300, 40), Do::Flush, Do::Rest(20_000)];
    let story = [
        Do::Discard(60, LINE - 60),
        Do::Write(0, 59),
        Do::Write(59, 1),
        Do::Gc,
        Do::Rest(10_000),
        // The chunks are taken again.
        Do::Write(400, LINE),
        Do::Rest(10_000),
    ];
    assert!(cut_at_each(&small(), &before, &story, 1) > 60);
}

/// Rule 2: a flush begins, and all that it waits for is overwritten at once, again and again: when it
/// returns, a version of before it, or a later one, is durable.
#[test]
fn rule_02_an_overwritten_slot_does_not_satisfy_a_flush() {
    for delay in [0, 1, 20, 100, 300, 510, 700] {
        let bench = made(small());
        bench.write(0, 7, 1);
        bench.drained();
        bench.write(0, 7, 2);
        let flush = bench.begin_flush();
        bench.sleep(Ns::from_us(delay));
        for version in 3..9 {
            drop(bench.begin_write(0, 7, version));
        }
        bench.wait(flush).expect("a flush");
        let bench = bench.cut().mounted();
        for lba in 0..7 {
            let found = bench.version(lba, &[2, 3, 4, 5, 6, 7, 8]);
            assert!(found >= Some(2), "sector {lba} after {delay} us: {found:?}");
        }
        bench.agrees();
    }
}

/// Rules 3, 5, 11 and holes 1, 3, 4, 8: checkpoints are taken while a sector is overwritten in its slot
/// all the time, others are discarded and written; cut in the middle of each checkpoint.
#[test]
fn rule_03_05_11_checkpoints_of_what_is_changing() {
    let mut story = Vec::new();
    for i in 0..44 {
        story.extend([
            Do::Write(7, 1),
            Do::Write(20 + i % 5, 1),
            Do::Discard(20 + (i + 2) % 5, 1),
            Do::Write(7, 1),
            Do::Flush,
            Do::Write(8, 1),
        ]);
    }
    let before = [Do::Write(0, 40), Do::Flush];
    let cuts = cut_at_each(&small(), &before, &story, 2);
    assert!(cuts > 100, "{cuts}");
}

/// Rule 4: a discard, then writes, at once and in every order: stamps that come from an older clock (the
/// next life begins at zero) do not lose against the discard's.
#[test]
fn rule_04_a_write_behind_a_discard_wins() {
    let bench = made(small());
    bench.sleep(Ns::from_secs(20));
    bench.write(0, 40, 1);
    bench.discard(0, 20);
    bench.flush();
    let bench = bench.cut().mounted();
    bench.write(5, 4, 2);
    bench.discard(8, 20);
    bench.write(10, 2, 3);
    bench.flush();
    let bench = bench.cut().mounted();
    bench.read_all();
    assert_eq!(bench.version(8, &[0]), Some(0));
    assert_eq!(bench.version(10, &[3]), Some(3));
    bench.shut_down().mounted().read_all();
}

/// Rule 6: a life that lasted long, then a short one from zero: what is written in the second wins, in
/// the third too; stamps never exceed the durable ceiling.
#[test]
fn rule_06_stamps_of_a_later_life_are_higher() {
    let bench = made(small());
    bench.sleep(Ns::from_secs(100));
    bench.write(0, 40, 1);
    bench.flush();
    let mut medium = bench.cut();
    let mut last = medium.copies(3).last().expect("a copy").1;
    for life in 0..4 {
        let bench = medium.mounted();
        bench.write(0, 40, 2 + life);
        bench.flush();
        medium = bench.cut();
        let stamp = medium.copies(3).last().expect("a copy").1;
        assert!(stamp > last, "life {life}: {stamp} after {last}");
        last = stamp;
        let ceiling = |e: &_| match e {
            flashlane_ftl::log::format::LogEntry { record: Record::Ceiling { stamp }, .. } => {
                *stamp
            }
            _ => 0,
        };
        let ceiling = medium.records().iter().map(ceiling).max();
        assert!(ceiling >= Some(stamp), "{ceiling:?}");
    }
    medium.mounted().read_all();
}

/// Rule 6: when a mount has returned, no line is open that it found so, and a checkpoint is complete,
/// before the first user write.
#[test]
fn rule_06_recovery_ends_with_a_checkpoint_and_no_line_that_goes_on() {
    let bench = made(small());
    bench.write(0, 100, 1);
    bench.flush();
    let medium = bench.cut();
    let lines = medium.lines();
    let has_data = |at: &(u32, u32), w: &crate::medium::Wrote, chunks: &[u32]| {
        chunks.contains(&at.0) && flashlane_ftl::log::format::Oob::decode_raw(&w.oob).0 < 100
    };
    // What holds nothing is freed, and its chunks serve again.
    let holds = |chunks: &[u32]| medium.written().iter().any(|(at, w)| has_data(at, w, chunks));
    let is_open = |l: &&crate::medium::LineAt| l.closed.is_none() && holds(&l.chunks);
    let open: Vec<_> = lines.iter().filter(is_open).collect();
    assert!(!open.is_empty());
    let ends = |medium: &Medium| -> Vec<u32> {
        let chunks = open.iter().flat_map(|l| &l.chunks);
        chunks.map(|c| medium.info(*c).write_pointer).collect()
    };
    let checkpoints = medium.checkpoints().len();
    let bench = medium.mounted();
    assert_eq!(bench.count(flashlane_ocssd::device::Cause::User), 0);
    assert!(bench.medium.checkpoints().len() > checkpoints);
    bench.rest();
    let closed = ends(&bench.medium);
    bench.write(0, 100, 2);
    bench.flush();
    let medium = bench.cut();
    assert_eq!(ends(&medium), closed, "what was open takes nothing any more");
    let bench = medium.mounted();
    assert_eq!(bench.recovery().lines_replayed, 0, "{:?}", bench.recovery());
    bench.read_all();
}

/// The command that wrote each place first, and the one that erased each chunk.
fn orders(bench: &Bench) -> (BTreeMap<Spot, usize>, Vec<(usize, u32)>) {
    let mut wrote = BTreeMap::new();
    let mut erased = Vec::new();
    for (i, (op, spots)) in bench.face.everything().into_iter().enumerate() {
        match op {
            Op::Write => wrote.extend(spots.into_iter().map(|s| (s, i))),
            Op::Reset => erased.extend(spots.iter().map(|s| (i, s.0))),
            _ => {}
        }
    }
    (wrote, erased)
}

/// Rule 10: each line's `opened` is on both mirrors before the first program of any of its chunks, and
/// those were erased before it; `freed` before the erase of a chunk of the line.
#[test]
fn rule_10_opened_before_programs_freed_before_erases() {
    let bench = made(small());
    for round in 0..6 {
        bench.write(0, 2 * LINE, 1 + round);
        bench.flush();
        while bench.gc_once() {}
    }
    bench.drained();
    let (wrote, erased) = orders(&bench);
    let medium = bench.cut();
    let mut recorded: BTreeMap<(bool, u64), usize> = BTreeMap::new();
    let mut chunks_of: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for block in medium.log() {
        let at = wrote[&block.at];
        for entry in block.entries {
            // The last mirror's, of the first record.
            match entry.record {
                Record::Opened { sequence, chunks, .. } => {
                    chunks_of.insert(sequence, chunks);
                    let seen = recorded.entry((true, sequence)).or_insert(at);
                    *seen = (*seen).min(at);
                }
                Record::Freed { sequence, .. } => {
                    recorded.entry((false, sequence)).or_insert(at);
                }
                _ => {}
            }
        }
    }
    let (mut opened, mut freed) = (0, 0);
    for (sequence, chunks) in &chunks_of {
        let record = recorded[&(true, *sequence)];
        let later = |first: usize| erased.iter().any(|(at, c)| chunks.contains(c) && *at > first);
        if !later(record) {
            let first = chunks.iter().filter_map(|c| wrote.get(&(*c, 0))).min();
            if let Some(first) = first {
                assert!(record < *first, "line {sequence}: recorded {record}, programmed {first}");
                opened += 1;
            }
        }
        if let Some(record) = recorded.get(&(false, *sequence)) {
            let before = erased.iter().any(|(at, c)| {
                chunks.contains(c) && (recorded[&(true, *sequence)]..*record).contains(at)
            });
            assert!(!before, "line {sequence} was erased before its `freed`");
            freed += 1;
        }
    }
    assert!(opened > 0 && freed > 0, "{opened} {freed}");
}

/// Rule 10: lines are freed, erased and opened again while checkpoints name their former life; cut in
/// between, no sector has another's content, none is lost.
#[test]
fn rule_10_reused_chunks_cut_anywhere() {
    let mut story = Vec::new();
    for i in 0..3 {
        story.extend([Do::Write(0, LINE), Do::Flush, Do::Gc, Do::Discard(i, 3), Do::Flush]);
    }
    let before = [Do::Write(0, 3 * LINE), Do::Flush];
    assert!(cut_at_each(&small(), &before, &story, 7) > 60);
}

/// Rule 9: a program fails at once behind a flush, its chunk closes, the power goes off at every command
/// from there on: what was flushed before is there.
#[test]
fn rule_09_the_window_of_a_failed_chunk_is_sent_again() {
    let bench = made(small());
    bench.write(0, 4, 1);
    bench.drained();
    let line = bench.cut().lines()[0].clone();
    for (kind, sector) in [("early_close", 12), ("write_next_unit", 12), ("early_close", 8)] {
        let setup = small().failing(kind, (line.chunks[1], sector));
        let before = [Do::Write(0, 24), Do::Flush];
        let story = [Do::Write(4, 40), Do::Flush, Do::Write(2, 9), Do::Flush];
        assert!(cut_at_each(&setup, &before, &story, 1) > 20);
        // What the chunk can't give back any more is in slots until it is programmed elsewhere.
        let bench = Medium::new(setup).create();
        bench.write(0, 24, 1);
        bench.flush();
        bench.write(4, 40, 2);
        bench.drained();
        assert_eq!(bench.ssd.faults_happened(), [1]);
        bench.read_all();
    }
}

/// Rule 9: a program fails while another one is under way in the same chunk. A flush of both ends
/// when both are programmed elsewhere, not before: the power goes off right behind it.
#[test]
fn rule_09_a_flush_waits_for_what_was_in_flight_in_a_failed_chunk() {
    for window in [0, 8] {
        let ahead = || {
            small().with(|setup| {
                setup.config.pu_budget = 2;
                setup.spec.geometry.mw_cunits = window;
            })
        };
        let bench = made(ahead());
        bench.write(0, 4, 1);
        bench.drained();
        let line = bench.cut().lines()[0].clone();
        for (kind, at) in [("early_close", 1), ("write_next_unit", 1), ("write_next_unit", 3)] {
            let bench = made(ahead().failing(kind, (line.chunks[at], 8)));
            // Four units for each chunk, two in flight at a time: the last behind the one that
            // fails.
            bench.write(0, 64, 1);
            bench.flush();
            assert_eq!(bench.ssd.faults_happened(), [1], "{kind}, window {window}");
            let again = bench.count(Cause::Retry);
            assert!(kind == "early_close" || again >= 8, "{again} sectors went out again");
            bench.cut().mounted().read_all();
        }
    }
}

/// Rule 14: GC meets a sector it can't read, moves the rest and erases the line: the loss is remembered,
/// over a cut, a checkpoint and a clean stop, until the sector is written or discarded.
#[test]
fn rule_14_a_sector_lost_in_gc_stays_an_error() {
    for later in [false, true] {
        lost_in_gc(later);
    }
}

/// `later`: collected in another life than it was written in.
fn lost_in_gc(later: bool) {
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.write(300, 20, 1);
    bench.drained();
    bench.discard(40, 100);
    bench.flush();
    let bench = if later { bench.cut().mounted() } else { bench };
    let unit = bench.medium.unit_of(bench.medium.newest(9));
    let here: Vec<u64> =
        (0..LINE as u64).filter(|l| *l < 40 && unit.contains(&bench.medium.newest(*l))).collect();
    assert!(here.contains(&9));
    bench.medium.wreck(unit.clone());
    while bench.stats().gc_read_failures == 0 {
        assert!(bench.gc_once());
    }
    bench.rest();
    let medium = bench.cut();
    assert!(medium.records().iter().any(|e| matches!(e.record, Record::Poisoned { lba: 9, .. })));
    let mut medium = medium;
    for life in 0..4 {
        let bench = medium.mounted();
        for lba in (0..LINE as u64).chain(300..320) {
            let want = u64::from(!(40..140).contains(&lba));
            let found = bench.version(lba, &[want]);
            assert_eq!(found, (!here.contains(&lba)).then_some(want), "sector {lba}, life {life}");
        }
        medium = if life % 2 == 1 { bench.shut_down() } else { bench.cut() };
    }
    let bench = medium.mounted();
    bench.write(here[0], 1, 5);
    here[1..].iter().for_each(|l| bench.discard(*l, 1));
    bench.flush();
    let bench = bench.cut().mounted();
    assert_eq!(bench.version(here[0], &[5]), Some(5));
    assert!(here[1..].iter().all(|l| bench.version(*l, &[0]) == Some(0)));
}

/// Rule 15: after a clean stop, the power goes off at every command of the next start and of its first
/// writes: a later start is not clean where something was written, and what was flushed is there.
#[test]
fn rule_15_the_first_write_after_a_clean_start_is_not_forgotten() {
    let stopped = || {
        let bench = made(small());
        bench.write(0, 40, 1);
        bench.shut_down()
    };
    let story = [Do::Write(3, 6), Do::Flush, Do::Write(0, 9), Do::Flush];
    let begin = |medium: &Medium, stop| medium.mount_until(MountOptions::default(), stop);
    let Up::Running(bench) = begin(&stopped(), None) else { panic!("it mounts") };
    bench.told(&story, &Rc::default());
    let commands = bench.face.commands();
    drop(bench.cut());
    for stop in stops(0..commands) {
        let medium = stopped();
        let telling = Rc::new(RefCell::new(Telling::default()));
        if let Up::Running(bench) = begin(&medium, Some(stop)) {
            let (cx, dev) = (bench.cx.clone(), bench.dev.clone());
            bench.works_until_off(tell(cx, dev, story.to_vec(), telling.clone()));
            bench.cut();
        }
        let bench = medium.mounted();
        for lba in 0..40 {
            let mut may: Vec<u64> = telling.borrow().may_hold(lba);
            // Steps are numbered as versions; the life before wrote version 1 everywhere.
            may.iter_mut().for_each(|v| *v = if *v == 0 { 1 } else { *v });
            assert!(bench.version(lba, &may).is_some(), "{stop:?}: sector {lba}");
        }
        bench.agrees();
    }
}

/// Rule 20: what a recovery found open is closed, so that the next one does not begin there; and an empty
/// line is given back.
#[test]
fn rule_20_a_second_recovery_replays_nothing_of_the_first() {
    let bench = made(small());
    bench.write(0, 2 * LINE + 10, 1);
    bench.flush();
    let bench = bench.cut().mounted();
    assert!(bench.recovery().lines_scanned >= 1);
    bench.rest();
    let bench = bench.cut().mounted();
    let did = bench.recovery();
    assert_eq!((did.lines_replayed, did.torn_units.len()), (0, 0), "{did:?}");
    // Only what the life between had opened.
    assert!(did.lines_scanned <= 2, "{did:?}");
    bench.rest();
    assert_eq!(bench.lines(LineState::Closed), 3, "{}", bench.attribute("lines"));
    bench.read_all();
}

/// What a recovery found open is closed behind the mount. A stop waits for that, and the next start has
/// nothing to do; a cut meanwhile costs the scan of those lines, and no replay of them.
#[test]
fn lines_that_a_recovery_closes_are_waited_for_by_a_stop() {
    let bench = made(small());
    bench.write(0, 2 * LINE + 10, 1);
    bench.flush();
    let medium = bench.cut();
    let bench = medium.mounted();
    assert!(bench.lines(LineState::Closing) > 0, "{}", bench.attribute("lines"));
    let bench = bench.cut().mounted();
    let did = bench.recovery();
    assert_eq!(did.lines_replayed, 0, "{did:?}");
    bench.read_all();
    let bench = bench.shut_down().mounted();
    let did = bench.recovery();
    assert!(did.clean, "{did:?}");
    assert_eq!(did.lines_scanned, 0, "{did:?}");
    assert_eq!(bench.lines(LineState::Closing), 0, "{}", bench.attribute("lines"));
    bench.read_all();
}

/// Rule 22: a start writes to a fresh pair first, and to nothing else before the anchor names it; nothing
/// is erased before but that pair and the anchor's.
#[test]
fn rule_22_the_log_is_copied_before_anything_is_acted_on() {
    let bench = made(small());
    bench.write(0, 2 * LINE, 1);
    bench.flush();
    let medium = bench.cut();
    let in_use: Vec<u32> = medium.lines().iter().flat_map(|l| l.chunks.clone()).collect();
    let before: Vec<u32> = medium.log().iter().map(|b| b.at.0).collect();
    let old_anchor = medium.newest_anchor();
    let bench = medium.mounted();
    let commands = bench.face.everything();
    let medium = bench.medium.clone();
    let new_anchor = medium.newest_anchor();
    assert!(
        new_anchor.counter > old_anchor.counter && new_anchor.generation > old_anchor.generation
    );
    let anchors: Vec<Spot> = medium
        .anchors()
        .iter()
        .filter(|(_, a)| a.generation == new_anchor.generation)
        .map(|a| a.0)
        .collect();
    let named = commands
        .iter()
        .position(|(op, spots)| *op == Op::Write && anchors.contains(&spots[0]))
        .expect("an anchor was written");
    let log: Vec<u32> = medium.spots(LBA_LOG).into_iter().map(|(chunk, _)| chunk).collect();
    for (op, spots) in &commands[..named] {
        let chunk = spots[0].0;
        match op {
            // Padding makes the end of the old log readable; the copy goes to a fresh pair.
            Op::Write => {
                assert!(!in_use.contains(&chunk), "{spots:?}");
                assert!(
                    log.contains(&chunk) || before.contains(&chunk) || spots[0].1 > 0,
                    "{spots:?}"
                );
            }
            Op::Reset => assert!(!in_use.contains(&chunk) && !before.contains(&chunk), "{spots:?}"),
            _ => {}
        }
    }
}

/// A sector that nobody wrote reads as zeros after any recovery, whatever padding holds.
#[test]
fn padding_is_nobodys_data() {
    let bench = made(small());
    bench.write(50, 1, 1);
    bench.flush();
    let bench = bench.cut().mounted();
    bench.write(60, 1, 2);
    bench.flush();
    let bench = bench.cut().mounted();
    bench.read_all();
    let user = |w: &crate::medium::Wrote| lba_of(&w.oob) < LBA_LIMIT;
    let lbas: Vec<u64> = bench
        .medium
        .written()
        .iter()
        .filter(|(_, w)| user(w))
        .map(|(_, w)| lba_of(&w.oob))
        .collect();
    assert!(lbas.iter().all(|l| [50, 60].contains(l)), "{lbas:?}");
}

/// Section 4: the anchor can't be written where it belongs, so both copies go to other chunks. The power goes off at every
/// command of that: a copy is on the medium at any time, though the old ones would be the first to be used again.
#[test]
fn an_anchor_is_there_while_both_copies_move() {
    let setup = tiny(40).manual_gc();
    let before = [Do::Write(0, 60), Do::Flush];
    let story: Vec<Do> = (0..40).flat_map(|i| [Do::Discard(i, 1), Do::Flush]).collect();
    let (bench, telling) = setup.told(&before);
    let old: Vec<Spot> = bench.medium.anchors().iter().map(|(at, _)| *at).collect();
    bench.told(&story, &telling);
    let place = bench.medium.anchors().into_iter().map(|(at, _)| at).find(|at| !old.contains(at));
    let place = place.expect("a second anchor in the same chunks");
    let old: BTreeSet<u32> = old.iter().map(|at| at.0).collect();
    assert!(old.len() == 2 && old.contains(&place.0), "{old:?}, {place:?}");
    let setup = setup.failing("early_close", place);

    let (bench, telling) = setup.told(&before);
    bench.told(&story, &telling);
    bench.agrees_with(&telling.borrow());
    let commands = bench.face.everything();
    let first = |of: &dyn Fn(Op, Spot) -> bool| {
        commands.iter().position(|(op, at)| of(*op, at[0])).expect("it happens") as u64
    };
    let failed = first(&|op, at| op == Op::Write && at == place);
    let used_again = first(&|op, at| op == Op::Reset && old.contains(&at.0));
    for stop in stops(failed..used_again + 10) {
        let Up::Running(bench) = Medium::new(setup.clone()).create_until(Some(stop)) else {
            panic!("{stop:?} is not in the story");
        };
        let telling = Rc::default();
        bench.told(&before, &telling);
        let told = tell(bench.cx.clone(), bench.dev.clone(), story.clone(), telling.clone());
        assert!(bench.works_until_off(told), "{stop:?}");
        let medium = bench.cut();
        assert!(!medium.anchors().is_empty(), "{stop:?}: no anchor");
        medium.mounted().agrees_with(&telling.borrow());
    }

    // The copies have moved, and then one of the old chunks was taken before any other.
    let newest = bench.medium.newest_anchor().counter;
    let new = bench.medium.anchors().into_iter().filter(|(_, a)| a.counter == newest);
    let new: BTreeSet<u32> = new.map(|(at, _)| at.0).collect();
    assert!(new.len() == 2 && new.is_disjoint(&old), "{new:?}, {old:?}");
    for chunk in new {
        let moved = first(&|op, at| op == Op::Write && at.0 == chunk);
        assert!(failed < moved && moved < used_again, "{failed}, {moved}, {used_again}");
    }
}

/// Section 4: a copy of the anchor is erased only while the other one is there.
#[test]
fn one_copy_of_the_anchor_is_always_there() {
    let bench = Medium::new(tiny(40)).create();
    let chunks: BTreeSet<u32> = bench.medium.anchors().iter().map(|(at, _)| at.0).collect();
    let erased = || bench.face.asked(Op::Reset).iter().filter(|at| chunks.contains(&at.0)).count();
    let mut i = 0;
    while erased() < 4 {
        bench.discard(i % 50, 1);
        bench.write(100 + i % 50, 1, 1 + i);
        bench.flush();
        i += 1;
    }
    let mut there = chunks.clone();
    for (op, spots) in bench.face.everything() {
        for (chunk, _) in spots.into_iter().filter(|at| chunks.contains(&at.0)) {
            match op {
                Op::Write => drop(there.insert(chunk)),
                Op::Reset => assert!(there.remove(&chunk) && !there.is_empty(), "chunk {chunk}"),
                _ => {}
            }
        }
    }
    bench.cut().mounted().read_all();
}

/// Section 6: a write is stamped above what it replaces on the medium, though that is stamped far above
/// the clock.
#[test]
fn a_write_is_stamped_above_what_lies_on_the_medium() {
    let bench = made(small()).cut().mounted();
    (1..6).for_each(|version| bench.write(0, 4, version));
    bench.flush();
    bench.write(0, 4, 6);
    bench.flush();
    let bench = bench.cut().mounted();
    (0..4).for_each(|lba| assert_eq!(bench.version(lba, &[6]), Some(6)));
}

/// Records in the log until a checkpoint has been taken, and nothing programmed for users meanwhile.
fn checkpointed(bench: &Bench) {
    let newest = || bench.medium.checkpoints().first().map(|c| c.0);
    let before = newest();
    while newest() == before {
        for _ in 0..200 {
            bench.dev.set_active_pus(&bench.cx, 0).expect("as it is");
        }
        // Waits for room in the log, and so for what was appended.
        bench.discard(900, 1);
        bench.rest();
    }
}

/// Hole 4: the first copy of a sector is in a slot when another's discard raises the floor and a checkpoint
/// is taken; then it is flushed.
#[test]
fn a_buffered_first_write_outlives_a_checkpoint_behind_others_discards() {
    let bench = made(small());
    bench.write(200, 60, 1);
    bench.flush();
    bench.write(0, 3, 2);
    bench.sleep(Ns::from_us(1));
    bench.discard(200, 60);
    checkpointed(&bench);
    bench.flush();
    let bench = bench.cut().mounted();
    (0..3).for_each(|lba| assert_eq!(bench.version(lba, &[2]), Some(2)));
}

/// Hole 7: a write over a lost sector is in a slot when a checkpoint is taken; without it the sector is lost.
#[test]
fn a_lost_sector_under_a_buffered_write_stays_lost() {
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.drained();
    bench.discard(40, 100);
    bench.flush();
    bench.medium.wreck([bench.medium.newest(9)]);
    assert!(bench.gc_once());
    bench.rest();
    bench.write(9, 1, 2);
    checkpointed(&bench);
    checkpointed(&bench);
    let bench = bench.cut().mounted();
    assert!([None, Some(2)].contains(&bench.version(9, &[2])));
}

/// Rules 1, 10, 16 and 22, hole 20: what was given back is taken again at once, and the power goes off at
/// each erase.
#[test]
fn nothing_is_erased_that_a_mount_needs() {
    let mut setup = small();
    setup.config.wear.leveling = WearLeveling::Off;
    let block = |i: u64| [Do::Write(i * 3 % 90, 4), Do::Discard(200 + i % 40, 2), Do::Flush];
    let before = [Do::Write(0, 2 * LINE), Do::Write(200, 40), Do::Flush];
    let mut story: Vec<Do> = (0..70).flat_map(block).collect();
    story.extend([Do::Gc, Do::Write(0, 40), Do::Flush, Do::Gc, Do::Write(50, 2 * LINE)]);
    story.extend((70..140).flat_map(block));
    assert!(cut_at_erases(&setup, &before, &story) > 20);
}

/// Rule 3: below two writes that are buffered one over the other lies what is durable.
#[test]
fn a_checkpoint_names_what_is_durable_below_two_buffered_writes() {
    let bench = made(small());
    bench.write(0, 2 * LINE, 1);
    bench.drained();
    bench.write(0, 1, 2);
    bench.write(0, 1, 3);
    checkpointed(&bench);
    checkpointed(&bench);
    let bench = bench.cut().mounted();
    assert!(bench.version(0, &[1, 2, 3]).is_some());
}

/// Hole 1: a write that is superseded while it is programmed is what lies below its successor.
#[test]
fn a_flushed_write_is_below_the_one_that_superseded_it() {
    let bench = made(small());
    bench.write(0, LINE, 1);
    bench.drained();
    bench.write(0, 1, 2);
    let flush = bench.begin_flush();
    bench.sleep(Ns::from_us(10));
    bench.write(0, 1, 3);
    bench.wait(flush).expect("a flush");
    // The line that holds it is closed, and the ring's tail stays where it is.
    bench.dev.set_active_pus(&bench.cx, 2).expect("there is room");
    bench.rest();
    bench.dev.set_active_pus(&bench.cx, 0).expect("there is room");
    bench.rest();
    checkpointed(&bench);
    checkpointed(&bench);
    let bench = bench.cut().mounted();
    assert!(bench.version(0, &[2, 3]).is_some());
}

/// Section 10, step 8: of two discards over each other the later counts.
#[test]
fn the_last_of_two_discards_counts() {
    let bench = made(small());
    for version in 1..3 {
        bench.write(0, 8, version);
        bench.flush();
        bench.discard(0, 8);
        bench.flush();
    }
    let bench = bench.cut().mounted();
    (0..8).for_each(|lba| assert_eq!(bench.version(lba, &[0]), Some(0)));
}
