//! What recovery believes: contents that are whole in themselves, and yet not what belongs there; reads that
//! fail once (FORMAT.md, sections 4, 5 and 10).
//!
//! Owns: one test per check that a checksum can't replace: whose block it is, which record vouches for it,
//! which of two copies counts. Geometry: `tiny` without a window, as in `damage`, whose tools it uses.

use crate::pblk::damage::{comes_up_intact, intact, lived_in, small};
use crate::prelude::*;
use flashlane_ftl::log::format::ShardHeader;
use flashlane_ocssd::device::Device;

/// The bytes of metadata at these places.
fn bytes_at(medium: &Medium, lba: u64, places: &[Spot]) -> Vec<u8> {
    let written: BTreeMap<Spot, _> = medium.typed(lba).into_iter().collect();
    places.iter().flat_map(|at| written[at].bytes.clone()).collect()
}

/// Puts these bytes there, with records that vouch for them.
fn put(medium: &Medium, places: &[Spot], bytes: &[u8]) {
    assert_eq!(places.len(), bytes.len() / 4096);
    for (at, sector) in places.iter().zip(bytes.chunks(4096)) {
        medium.rewrite(*at, |old| old.copy_from_slice(sector));
    }
}

/// The sectors of both copies of a shard.
fn both(places: &[Extent; 2]) -> [Vec<Spot>; 2] {
    [spots(&places[0]), spots(&places[1])]
}

/// A shard with other content and everything about it right, as long as it was.
fn forged(
    medium: &Medium,
    bytes: &[u8],
    change: impl Fn(&mut ShardHeader, &mut Vec<ShardEntry>, &mut Vec<(u64, u64)>),
) -> Vec<u8> {
    let view = ShardView::decode(bytes).expect("a shard");
    let (mut header, mut entries) = (view.header().clone(), view.entries().collect());
    let mut stamps = view.stamps().collect();
    change(&mut header, &mut entries, &mut stamps);
    let mut forged = header.encode(&entries, &stamps);
    if forged.len() > bytes.len() {
        let words = &forged[128..128 + entries.len() * header.width.bytes()];
        let stripes = Stripes {
            unit: medium.ssd.geometry().ws_opt,
            chunk_sectors: medium.ssd.geometry().sectors_per_chunk(),
        };
        let runs = Runs::find(words, header.width, stripes, usize::MAX, |_| None);
        forged = header.encode_runs(&runs.expect("runs"), &stamps);
    }
    assert!(forged.len() <= bytes.len(), "as long as it was");
    forged.resize(bytes.len(), 0);
    let view = ShardView::decode(&forged).expect("it is whole in itself");
    assert!(view.entries().eq(entries), "and says what it is to say");
    forged
}

/// Other content in both copies of a shard.
fn forge_shard(
    medium: &Medium,
    places: &[Extent; 2],
    change: impl Fn(&mut ShardHeader, &mut Vec<ShardEntry>),
) {
    for copy in both(places) {
        let bytes = bytes_at(medium, LBA_CHECKPOINT, &copy);
        let forged = forged(medium, &bytes, |header, entries, _| change(header, entries));
        put(medium, &copy, &forged);
    }
}

/// Rewrites the blocks of the log, each copy of each, in which `change` changes anything. Returns how many.
fn forge_log(medium: &Medium, change: impl Fn(&mut u64, &mut Record)) -> usize {
    let mut forged = 0;
    for block in medium.log() {
        let mut header = block.header;
        let mut records: Vec<Record> = block.entries.iter().map(|e| e.record.clone()).collect();
        records.iter_mut().for_each(|record| change(&mut header.segment, record));
        let as_it_was = records.iter().zip(&block.entries).all(|(r, e)| *r == e.record);
        if as_it_was && header.segment == block.segment {
            continue;
        }
        let mut builder = LogBlockBuilder::new(header);
        for record in &records {
            builder.push(record).expect("as long as it was");
        }
        let bytes = builder.finish();
        let places = (0..bytes.len() as u32 / 4096).map(|i| (block.at.0, block.at.1 + i));
        put(medium, &places.collect::<Vec<_>>(), &bytes);
        forged += 1;
    }
    forged
}

/// Section 5: a shard of an older checkpoint in the place of the newest one's, after a clean stop: the start
/// is not clean, and nothing of what was written between the two is gone.
#[test]
fn a_shard_counts_in_its_own_checkpoint_only() {
    let bench = lived_in(small());
    bench.write(30, 200, 91);
    let medium = bench.shut_down();
    let checkpoints = medium.checkpoints();
    let (newest, older) = (&checkpoints[0].1[0], &checkpoints[1].1[0]);
    for (to, from) in both(newest).iter().zip(both(older)) {
        let bytes = bytes_at(&medium, LBA_CHECKPOINT, &from);
        put(&medium, to, &bytes);
    }
    let bench = medium.mounted();
    assert!(!bench.recovery().clean);
    intact(&bench);
    bench.shut_down();
}

/// Section 5: record and shard agree on more sectors than the target has: neither is believed, nobody
/// falls over it, and the older checkpoint is there.
#[test]
fn a_shard_beyond_the_end_of_the_target_does_not_count() {
    let bench = lived_in(small());
    let capacity = bench.capacity() as u32;
    let medium = bench.cut();
    let newest = medium.checkpoints()[0].clone();
    assert_eq!(newest.1.len(), 1, "one shard has it all");
    forge_shard(&medium, &newest.1[0], |_, entries| entries.push(ShardEntry::Media(0)));
    let forged = forge_log(&medium, |_, record| {
        if let Record::CheckpointShard { checkpoint, count, .. } = record
            && *checkpoint == newest.0
        {
            assert_eq!(*count, capacity);
            *count += 1;
        }
    });
    assert!(forged >= 2, "both copies of a block");
    comes_up_intact(&medium);
}

/// Section 2: content that is whole in itself is metadata only where its record says so: users may write a
/// sector that looks like one. A copy of a shard that no record vouches for is not read, the other one is.
#[test]
fn metadata_without_its_record_does_not_count() {
    let medium = lived_in(small()).shut_down();
    let newest = medium.checkpoints()[0].1[0];
    let places = spots(&newest[0]);
    let bytes = bytes_at(&medium, LBA_CHECKPOINT, &places);
    let forged = forged(&medium, &bytes, |_, entries, stamps| {
        assert!(entries.iter().filter(|e| **e != ShardEntry::Unmapped).count() > 600);
        entries.fill(ShardEntry::Unmapped);
        stamps.clear();
    });
    for (at, sector) in places.iter().zip(forged.chunks(4096)) {
        medium.replace_content(*at, sector);
    }
    comes_up_intact(&medium);
}

/// Rule 10, step 7 of section 10: an entry of the checkpoint into a line that is replayed is void. One that
/// names another sector's place there is an error, and costs the other nothing.
#[test]
fn an_entry_into_a_replayed_line_takes_nobodys_place() {
    let medium = lived_in(small()).cut();
    let newest = medium.checkpoints()[0].1[0];
    // Written since: its line is replayed. The other one's is older than the checkpoint.
    let theirs = medium.newest(20);
    let chunk_sectors = u64::from(medium.ssd.geometry().sectors_per_chunk());
    let at = u64::from(theirs.0) * chunk_sectors + u64::from(theirs.1);
    forge_shard(&medium, &newest, |_, entries| entries[1] = ShardEntry::Media(at));
    let bench = medium.mounted();
    assert_eq!(bench.version(1, &[2]), None);
    assert_eq!(bench.version(20, &[90]), Some(90));
    bench.cut();
}

/// What a checkpoint's record says of a shard: which checkpoint wrote it, where, and which lines were open.
fn told_of(medium: &Medium, id: u64, of: u32) -> (u64, [Extent; 2], u64) {
    let told = |record| match record {
        Record::CheckpointShard { checkpoint, written, shard, places, open_sequence, .. } => {
            ((checkpoint, shard) == (id, of)).then_some((written, places, open_sequence))
        }
        _ => None,
    };
    medium.records().into_iter().find_map(|e| told(e.record)).expect("a record of it")
}

/// Rule 11: where shards come from two checkpoints, lines are replayed from the lowest that was open for any
/// of them.
#[test]
fn replay_begins_where_the_older_of_two_shards_does() {
    let bench = lived_in(tiny(200).manual_gc());
    let newest = || bench.medium.checkpoints()[0].0;
    let before = newest();
    // Lines that are closed before the next checkpoint.
    bench.write(0, 600, 91);
    bench.drained();
    for i in 0.. {
        if i % 16 == 0 && newest() > before {
            break;
        }
        bench.discard(650 + i % 50, 1);
        bench.write(800 + i, 1, 92);
        bench.flush();
    }
    // Else a cut may take back what makes it count.
    bench.rest();
    let medium = bench.cut();
    let checkpoints = medium.checkpoints();
    assert!(checkpoints[0].0 > before, "{checkpoints:?}");
    assert!(checkpoints.len() >= 2 && checkpoints[0].1.len() >= 2, "{checkpoints:?}");
    let ids = [checkpoints[0].0, checkpoints[1].0];
    let [(written, places, _), (_, _, older)] = ids.map(|id| told_of(&medium, id, 0));
    let (_, _, other) = told_of(&medium, ids[0], 1);
    assert_eq!(written, ids[0], "the older one has it elsewhere");
    // Lines that are replayed for this shard alone have what nothing else says.
    let lines = medium.lines().into_iter();
    let between = lines.filter(|l| l.closed.is_some() && (older..other).contains(&l.sequence));
    let between: Vec<LineAt> = between.collect();
    let only_there = (0..600).filter(|lba| place_in(&medium, &between, *lba)).count();
    assert!(only_there > 100, "{only_there} sectors in {} lines", between.len());
    medium.wreck(both(&places).concat());
    comes_up_intact(&medium);
}

/// The lines that the newest checkpoint does not know to their end, and those before, oldest first.
fn lines_by_age(medium: &Medium) -> (Vec<LineAt>, Vec<LineAt>) {
    let newest = medium.checkpoints().first().map_or(0, |c| c.0);
    let open = medium.records().iter().find_map(|e| match e.record {
        Record::CheckpointShard { checkpoint, open_sequence, .. } if checkpoint == newest => {
            Some(open_sequence)
        }
        _ => None,
    });
    medium.lines().into_iter().partition(|line| line.sequence < open.unwrap_or(0))
}

/// A place of user data in one of these lines.
fn place_in(medium: &Medium, lines: &[LineAt], lba: u64) -> bool {
    lines.iter().any(|line| line.chunks.contains(&medium.newest(lba).0))
}

/// Rule 11a, section 10, step 8: an older copy in a line that is replayed does not beat what the checkpoint
/// names in a line that is not.
#[test]
fn an_older_copy_in_a_replayed_line_does_not_win() {
    let medium = lived_in(small()).cut();
    let (old, replayed) = lines_by_age(&medium);
    // From the checkpoint, and written over once: version 1 before.
    let known = (0..60).map(|i| (i * 11, 2 + i)).find(|(lba, version)| {
        let held = medium.held.borrow().get(lba) == Some(version);
        held && place_in(&medium, &old, *lba) && medium.copies(*lba).len() > 1
    });
    let (lba, version) = known.expect("a sector in an old line");
    assert!(place_in(&medium, &replayed, 20));
    let (_, stamp) = medium.copies(lba)[0];
    medium.misplace(medium.newest(20), lba, 1, Some(stamp));
    let bench = medium.mounted();
    assert_eq!(bench.version(lba, &[version]), Some(version));
    bench.cut();
}

/// Hole 15: of two copies with one stamp the one that can't be verified loses, though its line is the later.
#[test]
fn a_copy_that_does_not_verify_loses_against_its_twin() {
    let bench = Medium::new(small()).create();
    bench.write(0, 600, 1);
    bench.drained();
    bench.write(700, 40, 2);
    bench.flush();
    let medium = bench.cut();
    let (twin, stamp) = medium.copies(3)[0];
    let spot = medium.newest(700);
    assert!(medium.lines().iter().all(|l| !l.chunks.contains(&twin.0) || l.closed.is_some()));
    medium.misplace(spot, 3, 1, Some(stamp));
    medium.flip([spot]);
    let bench = medium.mounted();
    assert_eq!(bench.recovery().lost_units, []);
    assert_eq!(bench.version(3, &[1]), Some(1));
    bench.cut();
}

/// Section 3: closing metadata counts in its own line only. What lies there of another line's is not
/// believed, and the line is scanned.
#[test]
fn closing_metadata_of_another_line_does_not_count() {
    let bench = Medium::new(small()).create();
    bench.write(0, 700, 1);
    bench.drained();
    let medium = bench.cut();
    let closed: Vec<Vec<Spot>> = medium
        .lines()
        .iter()
        .filter_map(|line| line.closed.clone())
        .map(|places| places.iter().flat_map(spots).collect())
        .collect();
    assert!(closed.len() >= 2 && closed[0].len() == closed[1].len());
    let bytes = bytes_at(&medium, LBA_LINE_CLOSING, &closed[0]);
    put(&medium, &closed[1], &bytes);
    comes_up_intact(&medium);
}

/// Section 4: a block counts in the pair only that it names. Where neither copy has one, that is a hole.
#[test]
fn a_block_of_another_pair_does_not_count() {
    let medium = lived_in(small()).cut();
    let log = medium.log();
    let middle = &log[log.len() / 2];
    let (segment, sequence) = (middle.segment, middle.first_sequence);
    let first = middle.entries[0].record.clone();
    let forged = forge_log(&medium, |of, record| {
        if *of == segment && *record == first {
            *of += 1000;
        }
    });
    assert_eq!(forged, 2, "both copies of the block of record {sequence}");
    let error = medium.refused(MountOptions::default());
    assert!(matches!(error, MountError::Damaged(_)), "{error}");
    medium.heal();
    intact(&medium.mounted());
}

/// Rule 22, hole 31: a copy of the log's last pair that a mount had begun when the power went is no part of the
/// log, whatever of it is on the medium.
#[test]
fn a_copy_of_the_log_that_was_only_begun_does_not_count() {
    let make = || {
        let bench = Medium::new(tiny(40).manual_gc()).create();
        bench.write(0, 60, 1);
        bench.flush();
        // More records than one write unit holds.
        for i in 0..40 {
            (0..3).for_each(|_| bench.dev.set_active_pus(&bench.cx, 0).expect("as it is"));
            bench.discard(i, 1);
        }
        bench.flush();
        bench.cut()
    };
    for us in (0..12_000).step_by(60) {
        let medium = make();
        let stop = Some(Stop::At(Ns::from_us(us)));
        if let Up::Running(bench) = medium.mount_until(MountOptions::default(), stop) {
            bench.cut();
            break;
        }
        intact(&medium.mounted());
    }
}

/// Hole 22: sequences of lines go on above those in first metadata, though no record names them any more.
#[test]
fn a_sequence_of_a_line_is_never_used_again() {
    let bench = Medium::new(small()).create();
    bench.write(0, 500, 1);
    bench.drained();
    let medium = bench.cut();
    let newest = |medium: &Medium| {
        let firsts = medium.typed(LBA_LINE_FIRST);
        firsts.iter().map(|(_, w)| w.stamp()).max().expect("a line")
    };
    let before = newest(&medium);
    // The log ends before the record that names it: the one loss of the log that nobody notices.
    let opened = |r: &Record| matches!(r, Record::Opened { sequence, .. } if *sequence >= before);
    let log = medium.log();
    let first = log.iter().find(|b| b.entries.iter().any(|e| opened(&e.record))).expect("it");
    let gone = log.iter().filter(|b| b.first_sequence >= first.first_sequence);
    medium.wreck(gone.map(|b| b.at).collect::<Vec<_>>());
    let Ok(bench) = medium.mount(MountOptions::default()) else { panic!("it mounts") };
    bench.rest();
    let opened = bench.medium.records().into_iter().filter_map(|e| match e.record {
        Record::Opened { sequence, .. } if e.generation > first.header.generation => Some(sequence),
        _ => None,
    });
    let opened: Vec<u64> = opened.filter(|s| *s >= before).collect();
    assert!(!opened.is_empty() && opened.iter().all(|s| *s > before), "{opened:?}, {before}");
    bench.cut();
}

/// Hole 28: an anchor of long ago names pairs whose chunks hold users' data by now. A mount that has no other
/// programs nothing into an open line.
#[test]
fn nothing_is_padded_that_was_the_logs_once() {
    let mut found = 0;
    for rounds in 0..40 {
        let bench = lived_in(tiny(40).manual_gc());
        for i in 0..rounds * 2 {
            bench.write(400 + i * 2 % 200, 2, 100 + i);
            bench.discard(350, 1);
            bench.flush();
        }
        let medium = bench.cut();
        let open = medium.lines().into_iter().filter(|line| line.closed.is_none());
        // Where nothing can be read yet nobody knows what the chunk is: that may be padded.
        let can_be_read = |chunk: &u32| medium.info(*chunk).write_pointer > 8;
        let open: Vec<u32> = open.flat_map(|line| line.chunks).filter(can_be_read).collect();
        let anchors = medium.anchors();
        let newest = medium.newest_anchor().counter;
        // The oldest that is left.
        let oldest = anchors.first().expect("an anchor").1;
        let named = [oldest.current, oldest.oldest].into_iter().flat_map(|pair| pair.chunks);
        if oldest.counter == newest || !named.into_iter().any(|chunk| open.contains(&chunk)) {
            continue;
        }
        found += 1;
        medium.wreck(anchors.iter().filter(|(_, a)| a.counter != oldest.counter).map(|a| a.0));
        let pointers = |m: &Medium| -> Vec<u32> {
            open.iter().map(|chunk| m.info(*chunk).write_pointer).collect()
        };
        let before = pointers(&medium);
        match medium.mount(MountOptions::default()) {
            Err(_) => assert_eq!(pointers(&medium), before, "{rounds} rounds"),
            // `frontier` is durable before that.
            Ok(bench) => {
                let commands = bench.face.everything();
                let first = |of: &[u32]| {
                    let is = |(op, at): &(Op, Vec<Spot>)| *op == Op::Write && of.contains(&at[0].0);
                    commands.iter().position(is).unwrap_or(commands.len())
                };
                let generation = bench.recovery().generation;
                let log = bench.medium.log().into_iter();
                let log = log.filter(|b| b.header.generation == generation).map(|b| b.at.0);
                assert!(first(&open) > first(&log.collect::<Vec<_>>()), "{rounds} rounds");
                bench.cut();
            }
        }
        medium.heal();
    }
    assert!(found > 0);
}

/// Section 10: what can't be read is read again. Each sector of metadata fails once.
#[test]
fn metadata_that_can_not_be_read_once_is_read_again() {
    for lba in [LBA_LOG, LBA_ANCHOR, LBA_CHECKPOINT, LBA_LINE_CLOSING] {
        for clean in [false, true] {
            let bench = lived_in(small());
            let medium = if clean { bench.shut_down() } else { bench.cut() };
            medium.fail_once(medium.spots(lba));
            let bench = medium.mounted();
            assert_eq!((bench.recovery().clean, bench.recovery().astray), (clean, 0));
            if lba == LBA_LINE_CLOSING {
                let open = medium.lines().iter().filter(|line| line.closed.is_none()).count();
                assert!(bench.recovery().lines_scanned as usize <= open + 3);
            }
            intact(&bench);
            bench.shut_down();
        }
    }
}
