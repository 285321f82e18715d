//! What comes before what: on a device that acknowledges from a buffer, and around programs that fail.
//!
//! Owns: the order rules of FORMAT.md, sections 7 and 8, that a cut shows by chance only: they are read off the
//! order of commands and off what closing metadata says. Geometry: `tiny`.

use crate::pblk::recover::{LINE, small};
use crate::prelude::*;
use flashlane_ftl::log::format::{ClosingView, LBA_NONE, LBA_PADDING};
use flashlane_ocssd::device::Device;
use std::ops::Range;

/// A device that acknowledges from a buffer without capacitors.
fn buffered() -> Setup {
    tiny(40).manual_gc().with(|s| s.spec.limits.write_buffer = Some(Bytes::from_mib(2)))
}

/// When each place was written last, and when the device's buffer was emptied, by number of command.
fn commands(bench: &Bench) -> (BTreeMap<Spot, usize>, Vec<usize>) {
    let (mut wrote, mut flushes) = (BTreeMap::new(), Vec::new());
    for (i, (op, spots)) in bench.face.everything().into_iter().enumerate() {
        match op {
            Op::Write => wrote.extend(spots.into_iter().map(|s| (s, i))),
            Op::Flush => flushes.push(i),
            _ => {}
        }
    }
    (wrote, flushes)
}

/// The command that wrote the first block with such a record.
fn recorded(
    medium: &Medium,
    wrote: &BTreeMap<Spot, usize>,
    is: impl Fn(&Record) -> bool,
) -> Option<usize> {
    let has = medium.log().into_iter().filter(|b| b.entries.iter().any(|e| is(&e.record)));
    has.map(|block| wrote[&block.at]).min()
}

/// Appends records until a checkpoint is due; nobody flushes.
fn until_checkpoints(bench: &Bench, n: usize) {
    let mut left = 4000;
    while bench.medium.checkpoints().len() < n {
        for _ in 0..20 {
            bench.dev.set_active_pus(&bench.cx, 0).expect("as it is");
        }
        bench.sleep(Ns::from_us(200));
        bench.discard(1200, 1);
        left -= 1;
        assert!(left > 0, "no checkpoint");
    }
}

/// Section 7, buffer: `checkpoint complete` and `closed` make others believe what they name. Between the last
/// program of what a checkpoint or a line's closing metadata names and the block of the log with that
/// record the device's buffer was emptied.
#[test]
fn the_buffer_is_emptied_before_a_record_that_is_believed() {
    let bench = Medium::new(buffered()).create();
    let (mut checkpoints, mut closed) = (0, 0);
    for round in 0..6 {
        for i in 0..10 {
            bench.write(i * 40, 40, 1 + round);
        }
        until_checkpoints(&bench, 1 + (round as usize).min(1));
        let (wrote, flushes) = commands(&bench);
        let emptied = |from: usize, to: usize| flushes.iter().any(|f| (from..to).contains(f));
        let written: BTreeMap<Spot, _> = bench.medium.written().into_iter().collect();
        let is_data = |at: &Spot| written.get(at).is_some_and(|w| lba_of(&w.oob) < LBA_LIMIT);
        for (id, shards) in bench.medium.checkpoints() {
            let is_it = |r: &Record| matches!(r, Record::CheckpointComplete { checkpoint, .. } if *checkpoint == id);
            let Some(complete) = recorded(&bench.medium, &wrote, is_it) else { continue };
            let named = shards.iter().flat_map(|places| places_named(&bench.medium, &places[0]));
            let named = named.filter(is_data).map(|at| wrote[&at]).filter(|at| *at < complete);
            let Some(last) = named.max() else { continue };
            assert!(emptied(last, complete), "checkpoint {id}: {last}, complete {complete}");
            checkpoints += 1;
        }
        for line in bench.medium.lines().iter().filter(|line| line.closed.is_some()) {
            let is_it = |r: &Record| matches!(r, Record::Closed { sequence, .. } if *sequence == line.sequence);
            let Some(record) = recorded(&bench.medium, &wrote, is_it) else { continue };
            let last = sectors(&bench, line).filter(is_data).map(|at| wrote[&at]).max();
            let Some(last) = last else { continue };
            assert!(emptied(last, record), "line {}: {last}, closed {record}", line.sequence);
            closed += 1;
        }
    }
    assert!(checkpoints > 3 && closed > 5, "{checkpoints} checkpoints, {closed} lines");
}

/// The places that a shard names.
fn places_named(medium: &Medium, extent: &Extent) -> Vec<Spot> {
    let written: BTreeMap<Spot, _> = medium.typed(LBA_CHECKPOINT).into_iter().collect();
    let bytes: Vec<u8> = spots(extent).iter().flat_map(|at| written[at].bytes.clone()).collect();
    let view = ShardView::decode(&bytes).expect("a shard");
    let chunk = u64::from(medium.ssd.geometry().sectors_per_chunk());
    let place = |entry| match entry {
        ShardEntry::Media(at) => Some(((at / chunk) as u32, (at % chunk) as u32)),
        _ => None,
    };
    view.entries().filter_map(place).collect()
}

/// The places of a line in stripe order.
fn sectors(bench: &Bench, line: &LineAt) -> impl Iterator<Item = Spot> + use<> {
    let geometry = bench.ssd.geometry();
    let (unit, rows) = (geometry.ws_opt, geometry.sectors_per_chunk() / geometry.ws_opt);
    let chunks = line.chunks.clone();
    (0..rows).flat_map(move |row| {
        let units: Vec<Spot> =
            chunks.iter().flat_map(|c| (0..unit).map(|s| (*c, row * unit + s))).collect();
        units
    })
}

/// A place, and the lba and stamp that closing metadata has for it.
type Named = (Spot, u64, u64);

/// The entries of each closed line's closing metadata, with their places.
fn closing(bench: &Bench) -> Vec<(LineAt, Vec<Named>)> {
    let written: BTreeMap<Spot, _> = bench.medium.typed(LBA_LINE_CLOSING).into_iter().collect();
    let lines = bench.medium.lines().into_iter();
    let closed = lines.filter(|line| line.closed.as_ref().is_some_and(|c| !c.is_empty()));
    let entries = closed.map(|line| {
        let places = line.closed.iter().flatten().flat_map(spots);
        let bytes: Vec<u8> = places.flat_map(|at| written[&at].bytes.clone()).collect();
        let (_, view) = ClosingView::decode(&bytes).expect("closing metadata");
        let places = sectors(bench, &line).enumerate();
        let named = places.map(|(i, at)| (at, view.entry(i).0, view.entry(i).1)).collect();
        (line, named)
    });
    entries.collect()
}

/// A fault in the first line's second chunk.
fn failing_at(sector: u32, kind: &str) -> Medium {
    let line = Medium::new(small()).create().cut().lines()[0].clone();
    Medium::new(small().failing(kind, (line.chunks[1], sector)))
}

/// Rule 8: closing metadata names no sector whose program failed, at whatever unit of a chunk that happens,
/// nor one that the chunk could not give back any more.
#[test]
fn closing_metadata_names_no_sector_that_failed() {
    for sector in [12, 32, 52, 56] {
        for kind in ["early_close", "write_next_unit"] {
            let bench = failing_at(sector, kind).create();
            bench.write(0, 2 * LINE, 1);
            bench.drained();
            assert_eq!(bench.ssd.faults_happened(), [1]);
            let (line, entries) = closing(&bench).into_iter().next().expect("a closed line");
            let there = entries.iter().filter(|(at, ..)| at.0 == line.chunks[1] && at.1 >= sector);
            let named: Vec<_> = there.filter(|(_, lba, _)| *lba != LBA_NONE).collect();
            assert!(named.is_empty(), "{kind} at {sector}: {named:?}");
            bench.read_all();
            bench.shut_down().mounted().read_all();
        }
    }
}

/// Section 7, buffer: all metadata is on the medium when its write completes. First metadata, closing metadata,
/// shards, log and anchors are written with FUA, each of them.
#[test]
fn metadata_is_not_left_in_the_buffer() {
    let bench = Medium::new(buffered()).create();
    for round in 0..4 {
        bench.write(0, 400, 1 + round);
        until_checkpoints(&bench, 1);
    }
    let bench = bench.shut_down().mounted();
    let early = bench.face.without_fua();
    bench.write(0, 400, 9);
    bench.flush();
    for lba in [LBA_LINE_FIRST, LBA_LINE_CLOSING, LBA_CHECKPOINT, LBA_LOG, LBA_ANCHOR] {
        let written = bench.medium.spots(lba);
        assert!(!written.is_empty());
        assert!(written.iter().all(|at| !early.contains(at)), "{lba:x}");
    }
    bench.shut_down();
}

/// Where sectors of a type were written by a story, undisturbed, in order of chunks.
fn written_by(setup: &Setup, before: &[Do], story: &[Do], lba: u64) -> Vec<Spot> {
    let (bench, telling) = setup.told(before);
    let old: BTreeSet<Spot> = bench.medium.spots(lba).into_iter().collect();
    bench.told(story, &telling);
    bench.medium.spots(lba).into_iter().filter(|at| !old.contains(at)).collect()
}

/// Rule 22, hole 37: a mirror of the log fails, the log goes on in a fresh pair, whose first blocks can't be
/// read yet; nor can those of the pair that it left, where that had just begun. Whenever the power goes off,
/// what was flushed is there.
#[test]
fn the_log_leaves_a_pair_of_which_a_mirror_failed() {
    let blocks_of = |which: Range<u64>| which.flat_map(|i| [Do::Discard(i * 2, 2), Do::Flush]);
    let story: Vec<Do> = blocks_of(30..35).collect();
    let (mut failed, mut early) = (0, 0);
    for blocks in [0, 6, 8, 10, 12, 14] {
        let mut before = vec![Do::Write(0, 120), Do::Flush];
        before.extend(blocks_of(0..blocks));
        let places = written_by(&small(), &before, &story, LBA_LOG);
        // In a pair that has begun long ago, and in one that has just begun.
        let is_wanted = |at: &&Spot| at.1.is_multiple_of(4) && (blocks == 0 || at.1 == 4);
        // Behind a failure of the second kind the chunk stays open.
        let kind = if blocks == 0 { "early_close" } else { "write_next_unit" };
        for at in places.iter().filter(is_wanted).take(3) {
            let setup = small().failing(kind, *at);
            let (bench, telling) = setup.told(&before);
            bench.told(&story, &telling);
            failed += bench.ssd.faults_happened()[0];
            early += u64::from(blocks > 0);
            assert!(cut_at_each(&setup, &before, &story, 1) > 10);
        }
    }
    assert!(failed > 2 && early > 0, "{failed} failures, {early} in a young pair");
}

/// Rule 22: where a mirror fails, part of the log lies in one copy. A checkpoint follows at once, which the log
/// need not reach behind.
#[test]
fn a_checkpoint_follows_where_a_mirror_failed() {
    let setup = tiny(400).manual_gc();
    let before = [Do::Write(0, 120), Do::Flush];
    let story = [Do::Discard(3, 2), Do::Flush, Do::Discard(9, 2), Do::Flush];
    let places = written_by(&setup, &before, &story, LBA_LOG);
    let at = *places.iter().find(|at| at.1.is_multiple_of(4)).expect("a block");
    let checkpoints = |setup: Setup| {
        let (bench, telling) = setup.told(&before);
        let so_far = bench.medium.checkpoints().len();
        bench.told(&story, &telling);
        bench.rest();
        bench.medium.checkpoints().len() - so_far
    };
    assert_eq!(checkpoints(setup.clone()), 0);
    assert!(checkpoints(setup.failing("early_close", at)) > 0);
}

/// Rule 9, section 7: a flush closes page pairs, a program fails under the padding, and what was in the chunk's window
/// goes out again. The flush waits for that, too: a mount that pads there may be cut, and take a page along.
#[test]
fn a_flush_waits_for_what_its_padding_sent_out_again() {
    let mut setup = small();
    setup.spec.cells.pair_damage = true;
    let before = [Do::Write(0, 40), Do::Flush];
    let story = [Do::Write(0, 9), Do::Flush];
    let padding = written_by(&setup, &before, &story, LBA_PADDING);
    let (mut failed, mut cuts) = (0, 0);
    for at in padding.iter().filter(|at| at.1.is_multiple_of(4)).take(12) {
        let setup = setup.clone().failing("write_next_unit", *at);
        for n in 0.. {
            let (bench, telling) = setup.told(&before);
            bench.told(&story, &telling);
            failed += bench.ssd.faults_happened()[0];
            let medium = bench.cut();
            let stop = Some(Stop::Within(n));
            if !matches!(medium.mount_until(MountOptions::default(), stop), Up::Cut) {
                break;
            }
            cuts += 1;
            medium.mounted().agrees_with(&telling.borrow());
        }
    }
    assert!(failed > 0 && cuts > 20, "{failed}, {cuts}");
}

/// Hole 27: how far an open line had been written at the first cut is carried on, however many mounts are cut
/// before the line has closing metadata: what was torn then is not taken for lost.
#[test]
fn where_an_open_line_ended_is_carried_on() {
    let bench = Medium::new(small()).create();
    bench.write(0, 40, 1);
    bench.flush();
    bench.write(100, 32, 2);
    bench.sleep(Ns::from_us(250));
    bench.held.borrow_mut().retain(|lba, _| *lba < 100);
    let mut medium = bench.cut();
    for life in 0..40 {
        let bench = medium.mounted();
        let did = bench.recovery();
        assert!(life > 0 || !did.torn_units.is_empty(), "{did:?}");
        assert_eq!(did.lost_units, []);
        bench.read(0, 40);
        medium = bench.cut();
    }
}

/// Section 4, `retired`: a chunk of which a program failed is on record as bad together with the end of its line,
/// one that can't be erased when that is seen. No mount uses them again, whatever the device says of them.
#[test]
fn a_bad_chunk_is_on_record_at_once() {
    for kind in ["early_close", "erase_fail"] {
        let line = Medium::new(small()).create().cut().lines()[0].clone();
        let chunk = line.chunks[1];
        let plan = small().fault(kind, (chunk, 12));
        let plan = if kind == "erase_fail" { plan.replace(" sector 12", "") } else { plan };
        let bench = Medium::new(small().faults(&plan)).create();
        bench.write(0, 2 * LINE, 1);
        bench.drained();
        bench.discard(0, 2 * u64::from(LINE));
        bench.flush();
        while bench.gc_once() {}
        let mut round = 1;
        while bench.retired() == 0 {
            round += 1;
            bench.write(0, LINE, round);
            bench.drained();
            while bench.gc_once() {}
        }
        assert_eq!(bench.ssd.faults_happened(), [1]);
        bench.flush();
        let medium = bench.cut();
        let is_it = |r: &Record| matches!(r, Record::Retired { chunk: c } if *c == chunk);
        assert!(medium.records().iter().any(|e| is_it(&e.record)), "{kind}");
        medium.mounted().read_all();
    }
}
