//! Where programs go, and when a line is used again.
//!
//! Owns: tests of a [`Place`] that no device is attached to; tests of the place of second copies and
//! of the time for which former copies count.

use super::*;
use crate::log::format::Oob;
use flashlane_ocssd::device::ChunkState;
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The place of a blank device.
fn blank(device: &Double, config: PftlConfig) -> Place {
    let chunks = device.geometry().chunks_per_pu;
    let Frame { plan, .. } = Frame::of(device, config.into()).expect("it is large enough");
    Place::new(plan, |pu| device.chunk_report(pu, 0, chunks)).expect("a blank device")
}

/// The host fills the next unit; the line that is closed by that, if one is.
fn fill_unit(place: &mut Place) -> Option<u32> {
    let unit = place.unit(MAIN);
    let (stream, position) = place.next_of_host(MAIN, 0).expect("room");
    let (line, _, sectors) = place.claim(stream, position, unit);
    assert_eq!(sectors, unit);
    place.landed(line, position).then_some(line)
}

/// A victim that is a single block gives room back only when it is erased, so each victim that is
/// read beside others may need a block before that: the host leaves a block for every one of them.
#[test]
fn the_host_leaves_a_block_for_each_victim_that_is_read() {
    let (geo, chunk) = (geometry(4, 2, 12, 16), 64);
    let device = Double::new(geo, TIMES, Script::default());
    let config = PftlConfig { victim: Victim::Block, ..config(26) };
    let mut place = blank(&device, config);
    // The host fills a block on each die, and has none open then.
    let units = geo.pus() * chunk / place.unit(MAIN);
    let closed: Vec<u32> = (0..units).filter_map(|_| fill_unit(&mut place)).collect();
    assert_eq!(closed.len(), geo.pus() as usize);
    // So many sectors may wait to be moved before the host is denied its next block.
    let slack = |place: &Place| {
        let goes_on = |moving: &u32| place.host_may_go_on(MAIN, *moving);
        (0..10_000).take_while(goes_on).count() as u32
    };
    let without = slack(&place);
    assert!(without > 5 * chunk && without < 10_000, "{without} sectors");
    for (victims, line) in (1..=5).zip(closed) {
        // All of it is valid: as a victim it brings as much as it takes.
        place.line_mut(line).valid = chunk;
        place.take_victim(line);
        assert_eq!(slack(&place), without - (victims - 1) * chunk, "{victims} victims");
    }
}

/// A block that waits for its erase becomes free only after a barrier. So the host leaves that
/// barrier enough room in lines that are free already.
#[test]
fn the_host_leaves_room_for_the_barrier_before_what_comes() {
    let device = Double::new(geometry(4, 2, 12, 16), TIMES, Script::default());
    let config = PftlConfig { victim: Victim::Block, ..config(26) };
    let mut place = blank(&device, config);
    let reserve = 100;
    place.set_reserve(reserve);
    let fill = |place: &mut Place| {
        let mut closed = Vec::new();
        while place.next_of_host(MAIN, 0).is_some() {
            closed.extend(fill_unit(place));
        }
        closed
    };
    let mut closed = fill(&mut place);
    let left = place.room_now(MAIN);
    // All of these are garbage: as much comes as the host could want.
    for line in closed.drain(..closed.len() / 2) {
        place.line_mut(line).valid = 0;
        place.take_victim(line);
        place.will_come(line);
        place.leave(line, 1);
    }
    assert!(place.outlook(MAIN, 0) > i64::from(left + 4 * reserve), "much is on its way");
    assert_eq!(place.room_now(MAIN), left, "none of it is free yet");
    fill(&mut place);
    assert!(place.room_now(MAIN) >= reserve, "{} sectors are free", place.room_now(MAIN));
}

/// A mount erases a line that it finds empty after the barrier that notes it. One whose erase fails
/// in part is used again behind the barrier that notes the bad chunk: before that a mount would
/// miss what was in it.
#[test]
fn a_line_waits_for_the_barrier_that_notes_it() {
    let device = Double::new(geometry(2, 1, 20, 8), TIMES, Script::default());
    let mut place = blank(&device, config(30));
    let line = (0..).find_map(|_| fill_unit(&mut place)).expect("lines end");
    place.erase_empty_lines(7);
    assert_eq!(place.next_erase(6), None, "its barrier has not ended");
    assert_eq!(place.next_erase(7), Some(line));
    let (positions, free) = (place.to_erase(line), place.free_lines(MAIN));
    assert_eq!(positions, [0, 1]);
    place.erased(line, &positions, &positions[..1], 9);
    assert_eq!(place.line(line).state, LineState::Leaving);
    assert_eq!((place.next_erase(8), place.free_lines(MAIN)), (None, free));
    assert_eq!(place.next_erase(9), Some(line));
    assert!(place.to_erase(line).is_empty(), "what is good of it is erased");
    place.erased(line, &[], &[], 10);
    assert_eq!((place.line(line).state, place.free_lines(MAIN)), (LineState::Free, free + 1));
}

/// The second copy of a snapshot goes to another die than the first one, also where the next unit
/// would not.
#[test]
fn the_second_copy_of_a_snapshot_goes_to_another_die() {
    let device = Double::new(geometry(2, 1, 40, 8), TIMES, Script::default());
    let config = PftlConfig { buffer_sectors: Some(64), capacitors: false, ..config(70) };
    with_ftl(device, config, |ftl, _, _| async move {
        let mut c = ftl.controller.lock();
        let (stream, first) = c.place_for_snapshot(None).expect("room");
        assert_eq!(c.place_for_snapshot(None), Some((stream, first)), "nothing goes there yet");
        let (_, second) = c.place_for_snapshot(Some(first)).expect("room");
        assert_ne!(second, first);
    });
}

/// The pages of counts speak of a chunk until a record in another chunk of its line does. Padding
/// has no such record, and a chunk that goes offline takes its records along.
#[test]
fn the_pages_of_counts_speak_of_what_no_record_speaks_of() {
    let device = Double::new(geometry(2, 2, 40, 8), TIMES, Script::default());
    let mut place = blank(&device, PftlConfig { capacitors: false, ..config(70) });
    place.set_tells_erases(true);
    let unit = place.unit(MAIN);
    let begin = |place: &mut Place| {
        let (stream, position) = place.next_of_host(MAIN, 0).expect("room");
        let (line, ..) = place.claim(stream, position, unit);
        place.landed(line, position);
        (line, position)
    };
    let (first, second) = (begin(&mut place), begin(&mut place));
    let at = |place: &Place, (line, position)| place.layout.chunk_index(line, position);
    let (a, b) = (at(&place, first), at(&place, second));
    assert_eq!((first.0, a + 1), (second.0, b), "neighbours in a line");
    // Each unit has one sector of the host, then padding.
    let says = |sector: u32| (0..unit).map(move |i| i == sector);
    place.hear(first, 0, says(0));
    place.hear(second, 0, says(0));
    assert!(place.has_untold_erases());
    let told = place.tell_erases();
    assert_eq!((told[a] > 0, told[b] > 0), (true, false), "the first one speaks of the second");
    // The third sector of the second chunk speaks of the chunk two columns behind the next one.
    place.hear(second, 0, says(2));
    assert!(!place.has_untold_erases());
    assert_eq!(place.tell_erases()[a], 0);
    let chunks = device.geometry().chunks_per_pu;
    let report = |pu: u32| device.chunk_report(pu, 0, chunks);
    let mut report = place.layout.by_number(report);
    report[b].state = ChunkState::Offline;
    assert!(place.take_offline(&report));
    assert!(place.has_untold_erases());
    assert!(place.tell_erases()[a] > 0, "what spoke of it is gone");
}

/// The second copy of notes goes to another channel than the first one, also where the next unit
/// would not: the chunks that would be next are bad.
#[test]
fn the_second_copy_of_notes_goes_to_another_channel() {
    // In the stripe the channels take turns: these chunks come second in their lines.
    let device = Double::new(geometry(2, 2, 40, 8), TIMES, Script::default());
    let device = (0..8).fold(device, |device, chunk| device.bad(2, chunk));
    let config = PftlConfig { buffer_sectors: Some(64), capacitors: false, ..config(70) };
    with_ftl(device, config, |ftl, device, cx| async move {
        write(&ftl, &cx, 0, 1).await;
        start(&ftl, &cx, BlockOp::Flush, 0, &mut []).await.expect("a flush");
        let c = ftl.controller.lock();
        let notes = (0..c.pages.count()).find(|page| c.pages.is_notes(*page));
        let lba = u64::from(c.pages.lba(notes.expect("a page of notes")));
        let copies: Vec<Location> =
            device.records().into_iter().filter(|r| names(r, lba)).map(|(at, _)| at).collect();
        let channels: Vec<u32> = copies.iter().map(|at| at.pu / 2).collect();
        assert!(matches!(channels[..], [0, 1] | [1, 0]), "{copies:?}");
    });
}

/// This record is of this logical sector.
fn names((_, oob): &(Location, [u8; 16]), lba: u64) -> bool {
    Oob::split_tag(Oob::decode_raw(oob).0).0 == lba
}

/// At any time two PUs hold copies of one version of each page of stamps. The former copies count
/// until both new ones are programmed, also if the program of one fails.
#[test]
fn records_count_until_the_new_ones_are_on_two_pus() {
    for n in 0..24 {
        let script = Script { programs: [(n, Status::WriteNextUnit)].into(), ..Script::default() };
        let device = Arc::new(Double::new(geometry(2, 1, 40, 8), TIMES, script));
        let run = Virtual::new(1, 5, CostTable::zero());
        let cx = run.cx();
        run.run(async move {
            let config = PftlConfig { buffer_sectors: Some(64), capacitors: false, ..config(70) };
            let config = DriveConfig { flush_records: true, ..config.into() };
            let ftl = DriveFtl::create(&cx, device.clone(), config).expect("it is large enough");
            write(&ftl, &cx, 0, 1).await;
            start(&ftl, &cx, BlockOp::Flush, 0, &mut []).await.expect("a flush");
            for value in 2..5 {
                write(&ftl, &cx, 0, value).await;
                let (dev, task) = (ftl.clone(), cx.clone());
                let flushed = Arc::new(Mutex::new(false));
                let told = flushed.clone();
                let _flush = cx.spawn_join(async move {
                    start(&dev, &task, BlockOp::Flush, 0, &mut []).await.expect("a flush");
                    *told.lock() = true;
                });
                for tick in 0.. {
                    if *flushed.lock() {
                        break;
                    }
                    assert!(tick < 10_000, "program {n} fails, value {value}: no end of the flush");
                    cx.sleep(Ns::from_us(50)).await;
                    let most = pus_of_a_version(&ftl.controller.lock(), &device);
                    assert!(most > 1, "program {n} fails, value {value}: no version on two PUs");
                }
            }
        })
        .expect("no stall");
    }
}

/// Groups the copies that count of the first page of stamps by their version. Returns the number of
/// PUs that hold the version that is on most of them.
fn pus_of_a_version(c: &Controller, device: &Double) -> usize {
    let page = (0..c.pages.count()).find(|page| c.pages.is_stamps(*page)).expect("a page");
    let lba = c.pages.lba(page);
    let counts = |at: u32| c.map.is_valid(at) && c.map.owner(at) == lba;
    let counting: Vec<Location> = (0..c.place.layout.sectors)
        .filter(|at| counts(*at))
        .map(|at| c.place.layout.location(at))
        .collect();
    let mut pus: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for (at, oob) in device.records().into_iter().filter(|(at, _)| counting.contains(at)) {
        pus.entry(Oob::decode_raw(&oob).1).or_default().insert(at.pu);
    }
    pus.values().map(BTreeSet::len).max().unwrap_or(0)
}
