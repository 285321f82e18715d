//! Damage of each layer on the medium, with the power off: flushed data is there, or an error, never
//! anything else (FORMAT.md, sections 4, 8 and 10).
//!
//! Owns: one test per structure and per number of its copies that are damaged: log, anchor, checkpoint;
//! lines are in `decay`. Geometry: `tiny` without a
//! window, so that a read-only mount sees all that was written, and one medium serves many attempts.

use crate::prelude::*;
use flashlane_ocssd::device::{Device, Request};

const WRITTEN: u64 = 700;

pub(crate) fn small() -> Setup {
    tiny(40).manual_gc().with(|s| s.spec.geometry.mw_cunits = 0)
}

/// A target that has lived: overwrites, discards, several checkpoints, and data flushed since.
pub(crate) fn lived_in(setup: Setup) -> Bench {
    let bench = Medium::new(setup).create();
    bench.write(0, WRITTEN as u32, 1);
    bench.drained();
    for i in 0..60 {
        bench.write(i * 11, 3, 2 + i);
        bench.discard(600 + i, 1);
        bench.flush();
    }
    bench.rest();
    bench.write(20, 9, 90);
    bench.discard(300, 7);
    bench.flush();
    bench
}

/// Everything is as it was flushed.
pub(crate) fn intact(bench: &Bench) {
    bench.read_all();
    bench.dev.check_consistency().expect("the walk");
}

/// It mounts, everything is there, and it stops cleanly.
pub(crate) fn comes_up_intact(medium: &Medium) {
    let bench = medium.mounted();
    intact(&bench);
    bench.shut_down();
}

/// A read-only mount gives everything as it was flushed.
fn reads_right(medium: &Medium, how: &str) {
    let bench = medium.read_only();
    assert_eq!(right_or_error(&bench), 0, "{how}");
    bench.cut();
}

/// Every sector is what was flushed, or an error. Returns how many are errors.
pub(crate) fn right_or_error(bench: &Bench) -> usize {
    let held = bench.held.borrow().clone();
    let want = |lba: &u64| held.get(lba).copied().unwrap_or(0);
    (0..WRITTEN + 50).filter(|lba| bench.version(*lba, &[want(lba)]).is_none()).count()
}

pub(crate) fn options(change: impl FnOnce(&mut MountOptions)) -> MountOptions {
    let mut options = MountOptions::default();
    change(&mut options);
    options
}

/// Either way of being damaged.
pub(crate) fn each_way(medium: &Medium, places: &[Spot], then: impl Fn(&str)) {
    medium.wreck(places.iter().copied());
    then("unreadable");
    medium.heal();
    medium.flip(places.iter().copied());
    then("flipped");
    medium.heal();
}

/// Nothing damaged: a read-only mount gives everything, writes nothing, refuses writes; also after a
/// clean stop.
#[test]
fn a_read_only_mount_reads_everything_and_writes_nothing() {
    for clean in [false, true] {
        let bench = lived_in(small());
        let medium = if clean { bench.shut_down() } else { bench.cut() };
        let bench = medium.read_only();
        assert_eq!(bench.recovery().clean, clean);
        intact(&bench);
        assert!(bench.try_write(0, 4, 99, false).is_err());
        assert!(bench.try_discard(0, 4).is_err());
        assert!(bench.try_flush().is_err());
        bench.rest();
        intact(&bench);
        assert_eq!((bench.face.count(Op::Write), bench.face.count(Op::Reset)), (0, 0));
        let medium = bench.cut();
        let bench = medium.mounted();
        assert_eq!(bench.recovery().clean, clean);
        intact(&bench);
        bench.shut_down();
    }
}

/// On a device with a window, too, a read-only mount after a clean stop sees everything.
#[test]
fn a_read_only_mount_after_a_clean_stop_needs_no_padding() {
    for rounds in 0..20 {
        let bench = lived_in(tiny(40).manual_gc());
        some_more(&bench, rounds);
        let medium = bench.shut_down();
        let bench = medium.read_only();
        assert!(bench.recovery().clean, "{rounds} rounds");
        assert_eq!(bench.recovery().lines_scanned, 0, "the log says which lines are closed");
        intact(&bench);
        assert_eq!((bench.face.count(Op::Write), bench.face.count(Op::Reset)), (0, 0));
        bench.cut().mounted().read_all();
    }
}

/// After a cut it can't see the last sectors of open chunks, the map's among them: it is refused, or what
/// it gives is right.
#[test]
fn a_read_only_mount_after_a_cut_is_right_or_refused() {
    for rounds in 0..20 {
        let bench = lived_in(tiny(40).manual_gc());
        some_more(&bench, rounds);
        let medium = bench.cut();
        let programmed = medium.ssd.counters().programmed_total();
        if let Ok(bench) = medium.mount(options(|o| o.read_only = true)) {
            right_or_error(&bench);
            bench.cut();
        }
        assert_eq!(medium.ssd.counters().programmed_total(), programmed);
    }
}

/// So many more blocks of the log.
fn some_more(bench: &Bench, rounds: u64) {
    for i in 0..rounds {
        bench.write(400 + i * 2, 1, 100 + i);
        bench.discard(350 + i, 1);
        bench.flush();
    }
}

#[test]
fn one_copy_of_the_newest_anchor_is_enough() {
    for copy in 0..2 {
        let medium = lived_in(small()).cut();
        let counter = medium.newest_anchor().counter;
        let copies: Vec<_> =
            medium.anchors().into_iter().filter(|(_, a)| a.counter == counter).collect();
        assert_eq!(copies.len(), 2);
        each_way(&medium, &[copies[copy].0], |how| {
            reads_right(&medium, how);
        });
        medium.wreck([copies[copy].0]);
        comes_up_intact(&medium);
    }
}

/// The newest anchor, both copies: an older one leads to the log, and its pairs lead on, wherever in a
/// pair the log ended; in the next life and after a clean stop, too.
#[test]
fn without_the_newest_anchor_the_log_leads_on() {
    for (clean, lives) in [(false, 1), (true, 1), (false, 2), (true, 2)] {
        for rounds in 0..20 {
            let mut bench = lived_in(small());
            if lives == 2 {
                bench = bench.cut().mounted();
            }
            some_more(&bench, rounds);
            let medium = if clean { bench.shut_down() } else { bench.cut() };
            let counter = medium.newest_anchor().counter;
            let newest = medium.anchors().into_iter().filter(|(_, a)| a.counter == counter);
            let newest: Vec<Spot> = newest.map(|(at, _)| at).collect();
            medium.wreck(newest);
            // One of two: all is there, or it says that something is missing.
            match medium.mount(MountOptions::default()) {
                Ok(bench) => {
                    let bad = right_or_error(&bench);
                    assert_eq!(bad, 0, "clean {clean}, life {lives}, {rounds} rounds");
                    bench.shut_down();
                }
                Err(MountError::Damaged(_) | MountError::LogLost) => {}
                Err(other) => panic!("clean {clean}, life {lives}, {rounds} rounds: {other}"),
            }
        }
    }
}

/// The newest anchor can't be read by a mount, which is cut, and then it can: it is not as new as the one
/// that the mount wrote.
#[test]
fn an_anchor_that_comes_back_is_an_older_one() {
    let (mut back, mut n) = (0, 0);
    loop {
        let medium = lived_in(small()).cut();
        let newest = medium.newest_anchor();
        let copies = medium.anchors().into_iter().filter(|(_, a)| a.counter == newest.counter);
        medium.wreck(copies.map(|(at, _)| at).collect::<Vec<_>>());
        let stop = Some(Stop::Before(n));
        let is_over = !matches!(medium.mount_until(MountOptions::default(), stop), Up::Cut);
        medium.heal();
        let anchors = medium.anchors();
        let is_back = anchors.iter().any(|(_, a)| *a == newest);
        for (_, anchor) in anchors {
            let of_then = anchor.generation > newest.generation;
            assert_eq!(of_then, anchor.counter > newest.counter, "command {n}: {anchor:?}");
            back += u32::from(of_then && is_back);
        }
        if is_over {
            break;
        }
        intact(&medium.mounted());
        n += 1;
    }
    assert!(back > 0);
}

/// All anchors: the log is found by its blocks, or both copies of an anchor can't be read, which
/// may name a newer one.
#[test]
fn without_any_anchor_the_log_is_found() {
    let medium = lived_in(small()).cut();
    medium.wreck(medium.anchors().into_iter().map(|(at, _)| at));
    match medium.mount(MountOptions::default()) {
        Ok(bench) => {
            assert_eq!(right_or_error(&bench), 0);
            bench.shut_down();
        }
        Err(MountError::Damaged(_) | MountError::LogLost | MountError::Unknown { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// The blocks of the log: (sequence, places of its copies).
fn blocks(medium: &Medium) -> Vec<(u64, Vec<Spot>)> {
    let mut blocks: Vec<((u64, u64), Vec<Spot>)> = Vec::new();
    for block in medium.log() {
        let key = (block.segment, block.first_sequence);
        match blocks.last_mut() {
            Some((k, places)) if *k == key => places.push(block.at),
            _ => blocks.push((key, vec![block.at])),
        }
    }
    blocks.into_iter().map(|((_, sequence), places)| (sequence, places)).collect()
}

/// Every block of the log in one copy, then alternating: each block from the copy that has it
/// (FORMAT.md rule 22, hole 17).
#[test]
fn a_log_block_is_read_from_the_copy_that_has_it() {
    let medium = lived_in(small()).cut();
    let blocks = blocks(&medium);
    assert!(blocks.len() > 20 && blocks.iter().all(|(_, places)| places.len() == 2));
    for (sequence, places) in &blocks {
        for place in places {
            each_way(&medium, &[*place], |how| {
                reads_right(&medium, &format!("{how}, the block of record {sequence}"));
            });
        }
    }
    for odd in 0..2 {
        medium.wreck(blocks.iter().enumerate().map(|(i, (_, places))| places[(i + odd) % 2]));
        reads_right(&medium, "");
        medium.heal();
    }
    medium.wreck(blocks.iter().enumerate().map(|(i, (_, places))| places[i % 2]));
    comes_up_intact(&medium);
}

/// Every block of the log but the last, in both copies: the mount is refused, unless read-only or all that
/// it had to say is said again later.
#[test]
fn a_log_block_lost_in_both_copies_is_noticed() {
    let medium = lived_in(small()).cut();
    let blocks = blocks(&medium);
    let (mut refused, most) = (0, blocks.len() - 1);
    for (sequence, places) in &blocks[..most] {
        medium.wreck(places.clone());
        let mut writable = options(|_| {});
        writable.accept_lost = true;
        match medium.mount_until(writable, Some(Stop::Before(u64::MAX))) {
            Up::Refused(MountError::Damaged(_)) => refused += 1,
            Up::Refused(other) => panic!("record {sequence}: {other}"),
            _ => panic!("the block of record {sequence} is not missed"),
        }
        let bench = medium.read_only();
        right_or_some_version(&bench);
        bench.cut();
        medium.heal();
    }
    assert_eq!(refused, most);
    intact(&medium.mounted());
}

/// When the power went one copy of the log's last block was programmed, and the other one waited for
/// its die. The block before was complete in both copies and can be read in neither. A mount must
/// not take it for the one that was in flight.
#[test]
fn a_lost_block_in_front_of_the_one_in_flight_is_noticed() {
    let bench = Medium::new(small()).create();
    bench.write(0, 8, 1);
    bench.drained();
    for lba in 0..4 {
        bench.discard(lba, 1);
        bench.flush();
    }
    let (_, places) = blocks(&bench.medium).pop().expect("a block");
    // The die of the second copy erases its last chunk, which takes longer than a program.
    let per_pu = bench.ssd.geometry().chunks_per_pu;
    let at = Location { pu: places[1].0 / per_pu, chunk: per_pu - 1, sector: 0 };
    let erased = bench.ssd.format().pack(at);
    let _erase = bench.ssd.submit(&bench.cx, Request::plain(Op::Reset, &[erased]));
    bench.discard(4, 1);
    let _flush = bench.begin_flush();
    bench.sleep(Ns::from_ms(2));
    let medium = bench.cut();
    let blocks = blocks(&medium);
    let [.., (_, before), (_, last)] = &blocks[..] else { panic!("too few blocks") };
    assert_eq!((before, last.len()), (&places, 1));
    medium.wreck(places);
    match medium.refused(MountOptions::default()) {
        MountError::Damaged(_) => {}
        other => panic!("{other}"),
    }
    medium.heal();
    intact(&medium.mounted());
}

/// What is read is at least some version of that very sector.
fn right_or_some_version(bench: &Bench) {
    let all: Vec<u64> = (0..100).collect();
    (0..WRITTEN + 50).for_each(|lba| assert!(bench.version(lba, &all) < Some(100)));
}

/// A record in the middle of a log block, in one copy: the block comes from the other.
#[test]
fn a_damaged_record_costs_one_copy_of_its_block() {
    let medium = lived_in(small()).cut();
    let block = medium.log().into_iter().rev().find(|b| b.entries.len() > 2).expect("a full one");
    // Header of 64 bytes, then the first record.
    let second = 64 + block.entries[0].record.encoded_len();
    medium.rewrite(block.at, |bytes| bytes[second + 30] ^= 1);
    comes_up_intact(&medium);
}

/// The newest checkpoint's shards in one copy, in both (the older checkpoint takes over), and the older
/// one's in both (nobody needs it).
#[test]
fn a_shard_comes_from_its_other_copy_or_from_the_older_checkpoint() {
    let medium = lived_in(small()).cut();
    let checkpoints = medium.checkpoints();
    assert!(checkpoints.len() >= 2, "{checkpoints:?}");
    let newest = &checkpoints[0].1;
    let older = &checkpoints[1].1;
    let copy = |of: &[[flashlane_ftl::log::format::Extent; 2]], i: usize| -> Vec<Spot> {
        of.iter().flat_map(|places| spots(&places[i])).collect()
    };
    let both = |of: &_| [copy(of, 0), copy(of, 1)].concat();
    // Without the older one each copy of the newest has to do by itself.
    let alone = |i: usize| [copy(newest, i), both(older)].concat();
    let all = [both(newest), both(older), alone(0), alone(1)];
    for places in [copy(newest, 0), copy(newest, 1)].into_iter().chain(all) {
        each_way(&medium, &places, |how| {
            reads_right(&medium, how);
        });
    }
    medium.wreck(both(newest));
    let bench = medium.mounted();
    intact(&bench);
    comes_up_intact(&bench.shut_down());
}

/// A shard that says of itself a stamp above the durable ceiling is damaged, however right its checksums
/// are: its other copy counts, or the older checkpoint.
#[test]
fn a_shard_with_a_stamp_above_the_ceiling_is_not_believed() {
    for in_floor in [false, true] {
        for copies in 1..3 {
            let bench = lived_in(small());
            // A sector that is lost for good: its stamp is listed, since no discard is younger.
            for lba in [500, 0, 32, 64, 96, 128, 160, 192, 224] {
                bench.write(lba, if lba == 500 { 1 } else { 32 }, 91);
            }
            bench.drained();
            let medium = bench.medium.clone();
            medium.wreck([medium.newest(500)]);
            while bench.stats().gc_read_failures == 0 {
                assert!(bench.gc_once());
            }
            let medium = bench.shut_down();
            let (_, shards) = medium.checkpoints()[0].clone();
            for extent in &shards[0][..copies] {
                forge(&medium, &spots(extent), in_floor);
            }
            let bench = medium.mounted();
            assert_eq!(bench.recovery().clean, copies == 1);
            assert_eq!(right_or_error(&bench), 1);
            assert_eq!(bench.version(500, &[]), None);
            bench.write(500, 1, 77);
            intact(&bench);
            bench.shut_down();
        }
    }
}

/// Raises a listed stamp of the shard at `places`, or its floor, and makes its checksums right.
fn forge(medium: &Medium, places: &[Spot], in_floor: bool) {
    let written: BTreeMap<Spot, _> = medium.typed(LBA_CHECKPOINT).into_iter().collect();
    let bytes: Vec<u8> = places.iter().flat_map(|at| written[at].bytes.clone()).collect();
    let view = ShardView::decode(&bytes).expect("a shard");
    let (mut header, mut stamps) = (view.header().clone(), view.stamps().collect::<Vec<_>>());
    match in_floor {
        true => header.floor += 1 << 50,
        false => stamps.last_mut().expect("a lost sector").1 += 1 << 50,
    }
    let mut forged = header.encode(&view.entries().collect::<Vec<_>>(), &stamps);
    if bytes[45] == 1 {
        // It has runs: entries would need more sectors. Its own stripes are at 128 (`format/shard.rs`).
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let (stripes, end) =
            (Stripes { unit: word(92), chunk_sectors: word(96) }, 128 + 4 * word(100));
        let (mut lists, mut at) = (Vec::new(), 128);
        while at < end as usize {
            let n = word(at) as usize;
            lists.push((1..=n).map(|i| word(at + 4 * i)).collect::<Vec<u32>>());
            at += 4 * (n + 1);
        }
        let list_of = |chunk| lists.iter().find(|list| list.contains(&chunk)).cloned();
        let words = &forged[128..128 + header.width.bytes() * view.len()];
        let runs = Runs::find(words, header.width, stripes, usize::MAX, list_of);
        forged = header.encode_runs(&runs.expect("as before"), &stamps);
    }
    assert!(forged.len() <= bytes.len(), "in the same sectors");
    for (at, sector) in places.iter().zip(forged.chunks(4096)) {
        medium.rewrite(*at, |bytes| bytes.copy_from_slice(sector));
    }
}

/// After a clean stop: without the newest checkpoint the start is not clean.
#[test]
fn a_clean_stop_without_its_checkpoint_is_no_clean_start() {
    let medium = lived_in(small()).shut_down();
    let newest = medium.checkpoints()[0].1.clone();
    medium.wreck(newest.iter().flat_map(|p| [spots(&p[0]), spots(&p[1])].concat()));
    let bench = medium.mounted();
    assert!(bench.recovery().lines_replayed > 0, "{:?}", bench.recovery());
    intact(&bench);
    bench.shut_down();
}

/// Both checkpoints (rule 16): refused, and with `undo_discards` what was not discarded is there, what
/// was is zeros or what it had been.
#[test]
fn without_both_checkpoints_only_discards_are_undone() {
    let medium = lived_in(small()).cut();
    for (_, shards) in medium.checkpoints() {
        medium.wreck(shards.iter().flat_map(|p| [spots(&p[0]), spots(&p[1])].concat()));
    }
    let error = medium.refused(MountOptions::default());
    assert!(matches!(error, MountError::CheckpointsLost { shards: 1.. }), "{error}");
    let bench = medium.mount(options(|o| o.undo_discards = true)).expect("as asked for");
    for lba in 0..WRITTEN {
        let held = bench.held.borrow().get(&lba).copied();
        match held {
            Some(version) => assert_eq!(bench.version(lba, &[version]), Some(version)),
            None => {
                let back = bench.version(lba, &(0..100).collect::<Vec<_>>());
                if back != Some(0) {
                    bench.held.borrow_mut().insert(lba, back.expect("readable"));
                }
            }
        }
    }
    // From here on nothing moves any more.
    bench.shut_down().mounted().read_all();
}

/// A log chunk erased behind the target's back, one of a pair: the other is enough; both: noticed.
#[test]
fn a_pair_of_the_log_that_is_gone_is_noticed() {
    let medium = lived_in(small()).cut();
    let log = medium.log();
    let first = medium.newest_anchor().oldest;
    assert!(log.iter().any(|b| b.segment > first.id));
    let chunk = |c: u32| (0..64).map(move |s| (c, s));
    medium.wreck(chunk(first.chunks[0]));
    reads_right(&medium, "");
    medium.wreck(chunk(first.chunks[1]));
    let error = medium.refused(MountOptions::default());
    assert!(matches!(error, MountError::Damaged(_)), "{error}");
    // One in the middle: what is before it and behind it can be read.
    medium.heal();
    let middle = log.iter().find(|b| b.segment > first.id).expect("a second pair").segment;
    assert!(log.iter().any(|b| b.segment > middle));
    let chunks: BTreeSet<u32> =
        log.iter().filter(|b| b.segment == middle).map(|b| b.at.0).collect();
    medium.wreck(chunks.into_iter().flat_map(chunk));
    let error = medium.refused(MountOptions::default());
    assert!(matches!(error, MountError::Damaged(_)), "{error}");
    medium.heal();
    assert!(medium.typed(LBA_LOG).len() > 8);
    assert!(medium.records().iter().any(|e| matches!(e.record, Record::Ceiling { .. })));
}

/// An intact record that names what is not there: damage, whatever its checksum says, and no index.
#[test]
fn a_record_that_names_what_is_not_there_is_damage() {
    let medium = lived_in(small()).cut();
    let far = medium.chunks();
    type Forge = fn(&mut Record, u32);
    let forges: [Forge; 4] = [
        |record, far| {
            if let Record::Opened { chunks, .. } = record {
                chunks[0] = far;
            }
        },
        |record, far| {
            if let Record::Closed { places, .. } = record {
                places.iter_mut().for_each(|place| place.chunk = far);
            }
        },
        |record, _| {
            if let Record::CheckpointShard { places, .. } = record {
                places[1].sector = u32::MAX;
            }
        },
        |record, _| {
            if let Record::Ceiling { stamp } = record {
                *stamp = u64::MAX / 2;
            }
        },
    ];
    for forge in forges {
        let newest = medium.log().last().expect("a block").first_sequence;
        let mut forged = 0;
        for block in medium.log().into_iter().rev() {
            let mut records: Vec<Record> = block.entries.iter().map(|e| e.record.clone()).collect();
            records.iter_mut().for_each(|record| forge(record, far));
            let is_as_it_was = records.iter().zip(&block.entries).all(|(r, e)| *r == e.record);
            if is_as_it_was || block.first_sequence > newest || forged == 2 {
                continue;
            }
            let (header, at) = (block.header, block.at);
            let mut builder = LogBlockBuilder::new(header);
            for record in &records {
                builder.push(record).expect("as long as it was");
            }
            for (sector, bytes) in (at.1..).zip(builder.finish().chunks(4096)) {
                medium.rewrite((at.0, sector), |old| old.copy_from_slice(bytes));
            }
            forged += 1;
        }
        assert_eq!(forged, 2, "both copies of a block");
        let error = medium.refused(MountOptions::default());
        assert!(matches!(error, MountError::Damaged(_)), "{error}");
        medium.heal();
    }
    intact(&medium.mounted());
}
