//! What comes before what: on a device that acknowledges from a buffer, and around programs that fail.
//!
//! Owns: the order rules of FORMAT.md, sections 7 and 8, that a cut shows by chance only: they are read off the
//! order of commands and off what closing metadata says. Geometry: `tiny`.

use crate::bench::{Bench, lba_of, tiny};
use crate::medium::{LineAt, Medium, Spot, spots};
use crate::pblk::recover::{LINE, small};
use flashlane_base::{Bytes, Ns};
use flashlane_ftl::log::format::{
    ClosingView, Extent, LBA_CHECKPOINT, LBA_LIMIT, LBA_LINE_CLOSING, LBA_NONE, Record, ShardEntry,
    ShardView,
};
use flashlane_ocssd::device::{Device, Op};
use std::collections::BTreeMap;

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
    let mut setup = tiny(40).manual_gc();
    setup.spec.limits.write_buffer = Some(Bytes::from_mib(2));
    let bench = Medium::new(setup).create();
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

/// The entries of each closed line's closing metadata, with their places.
fn closing(bench: &Bench) -> Vec<(LineAt, Vec<(Spot, u64, u64)>)> {
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
    let (pu, chunk) = (line.chunks[1] / 40, line.chunks[1] % 40);
    let place = format!("pu {pu} chunk {chunk} sector {sector}");
    Medium::new(small().faults(&format!("[[fault]]\nkind = \"{kind}\"\nat = \"{place}\"\n")))
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

/// Hole 35: a chunk fails while its line is closed, and what was flushed into its window goes out again. Part
/// of it stays in the ring, since it is less than a unit; the log goes on, and the power fails.
#[test]
fn a_line_is_closed_in_the_log_when_nothing_of_it_is_on_its_way() {
    for sector in [52, 56, 60] {
        for kept in 0..8u64 {
            let bench = failing_at(sector, "early_close").create();
            bench.write(0, LINE, 1);
            bench.write(0, LINE - 12, 2);
            bench.flush();
            // Some of what is in windows is dead when they go out again.
            bench.write(LINE as u64 - 40, 20 + kept as u32, 3);
            bench.sleep(Ns::from_ms(4));
            for _ in 0..60 {
                bench.dev.set_active_pus(&bench.cx, 0).expect("as it is");
            }
            bench.sleep(Ns::from_ms(4));
            let bench = bench.cut().mounted();
            for lba in 0..LINE as u64 {
                let least = if lba < LINE as u64 - 12 { 2 } else { 1 };
                assert!(bench.version(lba, &[least, 3]).is_some(), "sector {lba}");
            }
        }
    }
}
