//! Writers as a drive sees them, each kind with its own order of addresses.
//!
//! Owns: for each log how it is written, and for what is none what it has in common with one.
//! Promises: each writer runs among random writes of others. Never: reads a recording (those are in
//! `traces/detect`).

use crate::{Class, Config, Detector, Region};
use flashlane_base::{Lba, Rng};
use proptest::prelude::*;

/// A drive with a detector, and who writes to it.
struct Drive {
    detector: Detector,
    rng: Rng,
    /// Random writes of others between two of ours.
    others: u64,
    /// Blocks of ours since the last [`Drive::part`], of these the journal's, and what others wrote
    /// as a journal.
    written: u64,
    journal: u64,
    wrong: u64,
}

/// Others write here: 1 GiB from 64 GiB on.
const ELSEWHERE: u64 = 1 << 24;

impl Drive {
    fn new(others: u64) -> Drive {
        let (detector, rng) = (Detector::new(Config::default()), Rng::new(7));
        Drive { detector, rng, others, written: 0, journal: 0, wrong: 0 }
    }

    fn put(&mut self, first: u64, blocks: u64) -> Class {
        let class = self.detector.write(Lba::new(first), blocks as u32);
        self.written += blocks;
        self.journal += if class == Class::Journal { blocks } else { 0 };
        for _ in 0..self.rng.below(self.others + 1) {
            let (place, blocks) = (ELSEWHERE + self.rng.below(1 << 18), 1 + self.rng.below(8));
            let class = self.detector.write(Lba::new(place), blocks as u32);
            self.wrong += u64::from(class == Class::Journal);
        }
        class
    }

    /// Some blocks in order, in requests of `least` to `most`.
    fn stretch(&mut self, first: u64, end: u64, least: u64, most: u64) {
        let mut at = first;
        while at < end {
            let blocks = (least + self.rng.below(most - least + 1)).min(end - at);
            self.put(at, blocks);
            at += blocks;
        }
    }

    /// The share of what was written since the last call that was taken for a journal's, in
    /// percent.
    fn part(&mut self) -> u64 {
        let (journal, written) = (self.journal, self.written);
        (self.journal, self.written) = (0, 0);
        journal * 100 / written.max(1)
    }

    fn regions(&self) -> Vec<Region> {
        self.detector.check();
        self.detector.regions()
    }

    /// First block and end of the loops.
    fn places(&self) -> Vec<(u64, u64)> {
        self.regions().iter().map(|r| (r.first.get(), r.end.get())).collect()
    }
}

/// One round of ext4's journal of so many blocks: transactions with a block that ends each, and its
/// superblock now and then.
fn ext4_lap(drive: &mut Drive, first: u64, blocks: u64) {
    let (mut at, end) = (first + 1, first + blocks);
    while at < end {
        let body = (1 + drive.rng.below(20)).min(end - at);
        drive.put(at, body);
        at += body;
        if at < end {
            drive.put(at, 1);
            at += 1;
        }
        if drive.rng.below(20) == 0 {
            drive.put(first, 1);
        }
    }
}

#[test]
fn a_file_systems_journal_is_known_after_a_lap() {
    let mut drive = Drive::new(6);
    ext4_lap(&mut drive, 1000, 4096);
    assert_eq!((drive.part(), drive.regions().len()), (0, 0), "nobody was round it");
    ext4_lap(&mut drive, 1000, 4096);
    assert!(drive.part() >= 98);
    ext4_lap(&mut drive, 1000, 4096);
    assert!(drive.part() >= 99 && drive.wrong == 0);
    let regions = drive.regions();
    assert_eq!((drive.places(), regions[0].laps), (vec![(1000, 5096)], 2));
}

#[test]
fn it_is_known_from_the_middle_of_a_lap_on_and_in_long_transactions() {
    let mut drive = Drive::new(3);
    drive.stretch(3000, 33_768, 1, 30);
    drive.stretch(1001, 3000, 1, 30);
    assert_eq!(drive.part(), 0);
    // The lap ends here, not where the journal begins.
    drive.stretch(3000, 33_768, 128, 128);
    assert!(drive.part() >= 99);
    drive.stretch(1001, 33_768, 128, 128);
    assert!(drive.part() >= 98);
    assert_eq!(drive.places(), [(1001, 33_768)]);
}

/// Of a journal of two extents, seen from the middle of the first one on, what is missing of the first lap is a single
/// transaction of long requests.
#[test]
fn a_single_transaction_may_close_a_lap() {
    let mut drive = Drive::new(0);
    let transactions = |drive: &mut Drive, first: u64, end: u64| {
        for at in (first..end).step_by(1024) {
            drive.stretch(at, at + 1022, 128, 128);
            drive.put(at + 1022, 1);
            drive.put(at + 1023, 1);
            let place = drive.rng.below(1 << 18);
            drive.put(ELSEWHERE + place, 1);
        }
    };
    transactions(&mut drive, 3024, 33_744);
    transactions(&mut drive, 50_000, 66_384);
    transactions(&mut drive, 2000, 3024);
    assert_eq!(drive.part(), 0);
    transactions(&mut drive, 3024, 33_744);
    assert!(drive.part() >= 95);
}

/// XFS has some buffers on their way at once, which overtake each other.
#[test]
fn requests_may_overtake_each_other() {
    let mut drive = Drive::new(4);
    for lap in 0..3 {
        for at in (5000..9096).step_by(16) {
            let (a, b) = if at % 48 == 8 { (at + 8, at) } else { (at, at + 8) };
            drive.put(a, 8);
            drive.put(b, 8);
        }
        let part = drive.part();
        assert!(if lap == 0 { part == 0 } else { part >= 98 }, "lap {lap}: {part}");
    }
}

/// InnoDB writes the block that is not full again with each commit, and its header's blocks at a
/// checkpoint.
#[test]
fn a_redo_log_writes_its_last_block_again() {
    let mut drive = Drive::new(4);
    for lap in 0..4 {
        let mut at = 20_003;
        while at < 24_096 {
            let blocks = (1 + drive.rng.below(12)).min(24_096 - at);
            drive.put(at, blocks);
            at += blocks.max(2) - 1;
            if blocks == 1 {
                at += 1;
            }
            if drive.rng.below(40) == 0 {
                let header = 20_001 + drive.rng.below(2);
                drive.put(header, 1);
            }
        }
        let part = drive.part();
        assert!(if lap == 0 { part == 0 } else { part >= 98 }, "lap {lap}: {part}");
    }
    assert_eq!((drive.regions().len(), drive.wrong), (1, 0));
}

/// SQLite begins its WAL anew after a checkpoint: earlier or later, and a checkpoint writes a
/// table's pages.
#[test]
fn a_loop_whose_end_moves_stays_one() {
    let mut drive = Drive::new(0);
    let mut known = Vec::new();
    for end in [41_100, 41_050, 41_070, 43_000, 43_010, 40_900, 40_910] {
        drive.stretch(40_000, end, 5, 9);
        known.push((drive.part(), drive.places().first().map_or(0, |(_, end)| *end)));
        let mut page = 60_000;
        while page < 66_000 {
            let class = drive.put(page, 1);
            assert_eq!(class, Class::Normal);
            page += 1 + drive.rng.below(5);
        }
        drive.part();
    }
    let parts: Vec<u64> = known.iter().map(|(part, _)| *part).collect();
    assert_eq!(parts[0], 0);
    assert!(parts[1] >= 98 && parts[2] >= 98 && parts[4] >= 98 && parts[6] >= 98, "{parts:?}");
    // What lies behind the end is not known to be the log's before the next round.
    assert!((30..60).contains(&parts[3]), "{parts:?}");
    assert_eq!(
        (known[4].1, known[6].1),
        (43_000, 43_010),
        "grown at once, shrunk after two rounds"
    );
    drive.stretch(40_000, 40_900, 5, 9);
    assert_eq!(drive.places(), [(40_000, 40_910)]);
}

/// A log that grew by small pieces lies in several places.
#[test]
fn small_extents_need_a_round_more() {
    let mut drive = Drive::new(0);
    let extents = [(40_000, 40_240), (50_000, 50_300), (45_000, 45_600)];
    let mut parts = Vec::new();
    for _ in 0..6 {
        extents.iter().for_each(|(first, end)| drive.stretch(*first, *end, 3, 9));
        parts.push(drive.part());
    }
    assert!(parts[..2] == [0, 0] && parts[3..].iter().all(|part| *part >= 95), "{parts:?}");
}

/// InnoDB's undo pages, or small files in room that is used again: in order, but not soon.
#[test]
fn a_small_place_that_is_seldom_written_is_no_journal() {
    let mut drive = Drive::new(0);
    for turn in 0..8 {
        drive.stretch(40_000, 40_480, 2, 9);
        drive.stretch(100_000 + turn * 20_000, 110_000 + turn * 20_000, 2, 9);
    }
    assert_eq!((drive.part(), drive.regions()), (0, vec![]));
}

/// PostgreSQL gives old segments new names: their order changes, and some lie side by side.
#[test]
fn segments_come_again_in_any_order() {
    let mut drive = Drive::new(2);
    let segment = |i: u64| [80_000, 84_096, 120_000, 100_000, 104_096][i as usize];
    for (lap, order) in [[0, 1, 2, 3, 4], [1, 0, 2, 4, 3], [2, 4, 0, 1, 3]].iter().enumerate() {
        for i in order {
            let mut at = segment(*i);
            let end = at + 4096;
            while at < end {
                let blocks = (2 * (1 + drive.rng.below(4))).min(end - at);
                drive.put(at, blocks);
                // The last page is written again, unless it is full.
                at += if blocks > 2 { blocks - 2 } else { blocks };
            }
        }
        let part = drive.part();
        assert!(if lap == 0 { part == 0 } else { part >= 90 }, "lap {lap}: {part}");
    }
    assert_eq!(drive.wrong, 0);
    let blocks: u64 = drive.places().iter().map(|(first, end)| end - first).sum();
    assert_eq!(blocks, 5 * 4096, "{:?}", drive.places());
}

/// A file system's journal and a database's log on it.
#[test]
fn loops_go_round_beside_each_other() {
    let mut drive = Drive::new(4);
    let (mut a, mut b) = (0, 0);
    for _ in 0..12_000 {
        drive.put(10_000 + a, 2);
        drive.put(50_000 + b, 3);
        (a, b) = ((a + 2) % 4096, (b + 3) % 3000);
    }
    assert_eq!(drive.places(), [(10_000, 14_096), (50_000, 53_000)]);
    assert!(drive.part() >= 80 && drive.wrong == 0);
}

#[test]
fn copies_are_no_journals() {
    let mut drive = Drive::new(1);
    for file in 0..200 {
        drive.stretch(file * 9000, file * 9000 + 8192, 256, 320);
    }
    assert_eq!((drive.part(), drive.regions()), (0, vec![]));
}

/// Rewritten as a whole: after it was made, and once more in between.
#[test]
fn a_file_that_is_rewritten_once_is_no_journal() {
    let mut drive = Drive::new(0);
    for _ in 0..2 {
        drive.stretch(7000, 72_536, 128, 320);
        drive.stretch(900_000, 900_100, 1, 2);
    }
    assert_eq!((drive.part(), drive.regions()), (0, vec![]));
}

/// Old backups make room for new ones, in the same places, again and again, but not at once.
#[test]
fn room_that_is_used_again_is_no_journal() {
    let mut drive = Drive::new(0);
    for turn in 0..12 {
        let place = (turn % 3) * 20_000;
        drive.stretch(place, place + 16_384, 256, 320);
    }
    assert_eq!((drive.part(), drive.regions()), (0, vec![]));
}

/// A log of small requests that nobody begins again, not even by its header.
#[test]
fn a_log_that_only_grows_is_no_journal() {
    let mut drive = Drive::new(3);
    for at in (30_000..90_000).step_by(3) {
        drive.put(at, 3);
        if at % 3000 == 0 {
            drive.put(30_000, 8);
        }
    }
    // When all of it is there its header is corrected.
    for _ in 0..5 {
        drive.put(30_000, 8);
    }
    assert_eq!((drive.part(), drive.regions()), (0, vec![]));
}

/// A cache writes a table's dirty pages back in order, again and again: there are gaps between
/// them.
#[test]
fn pages_in_order_are_no_journal() {
    let mut drive = Drive::new(2);
    for dirty in [30, 60, 90] {
        for _ in 0..6 {
            let mut at = 200_000;
            while at < 204_096 {
                let mut blocks = 0;
                while drive.rng.below(100) < dirty {
                    blocks += 1;
                }
                if blocks > 0 {
                    drive.put(at, blocks);
                }
                at += blocks + 1;
            }
        }
    }
    assert_eq!((drive.part(), drive.regions()), (0, vec![]));
}

#[test]
fn random_writes_are_no_journal() {
    let mut drive = Drive::new(20);
    for _ in 0..20_000 {
        let at = drive.rng.below(1 << 16);
        drive.put(at, 2);
    }
    assert_eq!((drive.part(), drive.wrong, drive.regions()), (0, 0, vec![]));
}

/// A drive on which a journal of 4,096 blocks at 1000 is known.
fn known() -> Drive {
    let mut drive = Drive::new(2);
    for _ in 0..2 {
        ext4_lap(&mut drive, 1000, 4096);
    }
    assert_eq!(drive.places(), [(1000, 5096)]);
    drive.part();
    drive
}

#[test]
fn other_writes_in_a_loop_end_it() {
    let mut drive = known();
    let mut strays = 0;
    while !drive.places().is_empty() {
        let at = 1100 + drive.rng.below(3900);
        strays += u64::from(drive.put(at, 1) == Class::Normal);
        assert!(strays <= 256, "a sixteenth of it");
    }
    assert!(strays >= 250, "not by a few");
}

#[test]
fn a_copy_over_a_loop_ends_it() {
    // From before it, and from its middle on.
    for first in [200, 2500] {
        let mut drive = known();
        drive.stretch(first, first + 8192, 256, 256);
        assert!(drive.places().is_empty() && drive.part() <= 5, "from {first}");
    }
    let mut drive = known();
    drive.detector.discard(Lba::new(0), 4000);
    assert!(drive.places().is_empty());
}

/// After a power cut a journal goes on somewhere else.
#[test]
fn a_head_that_has_jumped_is_found_again() {
    let mut drive = known();
    drive.stretch(3333, 5096, 1, 8);
    assert!(drive.part() >= 95);
    ext4_lap(&mut drive, 1000, 4096);
    assert!(drive.part() >= 99 && drive.places() == [(1000, 5096)]);
}

#[test]
fn a_host_may_say_where_its_journal_is() {
    let mut drive = Drive::new(0);
    assert!(drive.detector.hint(Lba::new(1000), Lba::new(2000)));
    assert!(!drive.detector.hint(Lba::new(2000), Lba::new(2000)), "of nothing");
    assert_eq!(
        [drive.put(1999, 1), drive.put(2000, 1), drive.put(999, 1)].map(|c| c == Class::Journal),
        [true, false, false]
    );
    let told = drive.regions()[0];
    assert!(told.told && told.head.get() == 2000 && told.blocks == 1);
    drive.detector.forget(Lba::new(1500), Lba::new(1501));
    assert_eq!((drive.put(1500, 1), drive.regions()), (Class::Normal, vec![]));
    while drive.detector.hint(Lba::new(0), Lba::new(8)) {}
    assert_eq!(drive.regions().len(), 16, "a host may not tell without end");
}

#[test]
fn after_a_power_cut_loops_are_rebuilt_from_blocks() {
    let mut drive = Drive::new(2);
    let blocks = (1000..5096).filter(|b| b % 7 != 0).chain([9000, 9001]).chain(20_000..21_000);
    drive.detector.rebuild(blocks.map(Lba::new));
    assert_eq!(drive.places(), [(1000, 5096), (20_000, 21_000)], "two blocks are no loop");
    drive.stretch(3000, 5096, 1, 8);
    assert!(drive.part() >= 97, "learned where its head is");
    ext4_lap(&mut drive, 1000, 4096);
    assert!(drive.part() >= 98);
    // The other one is a file now.
    drive.stretch(19_000, 23_000, 256, 256);
    assert_eq!((drive.places(), drive.part()), (vec![(1000, 5096)], 0));
}

#[test]
fn forgotten_loops_are_learned_again() {
    let mut drive = known();
    drive.detector.forget(Lba::new(0), Lba::new(1001));
    ext4_lap(&mut drive, 1000, 4096);
    assert_eq!(drive.part(), 0);
    ext4_lap(&mut drive, 1000, 4096);
    assert!(drive.part() >= 98);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any calls, of any size, with any thresholds.
    #[test]
    fn it_keeps_its_bounds(
        tracks in 0usize..40,
        numbers in prop::array::uniform10(prop_oneof![0u64..64, Just(u64::MAX)]),
        calls in prop::collection::vec((0u8..40, place(), prop_oneof![0u32..20, any::<u32>()]), 0..600),
    ) {
        let [region_min, gap, back, header, confirm, resync, long, transactions, hole_one_in, small] = numbers;
        let (fresh, loops, bulk_laps, stray_part) = (tracks / 2, tracks / 3, 1, long);
        let config = Config {
            tracks, fresh, loops, region_min, small, small_pause: gap, gap, back, header, confirm, resync, long,
            transactions, record: confirm, bulk_laps, hole_one_in, stray_part,
        };
        let (mut detector, mut next) = (Detector::new(config), 0);
        for (what, at, blocks) in calls {
            let to = Lba::new(at.saturating_add(u64::from(blocks)));
            match what {
                0 => detector.discard(Lba::new(at), u64::from(blocks)),
                1 => drop(detector.hint(Lba::new(at), to)),
                2 => detector.forget(Lba::new(at), to),
                3 => detector.rebuild([Lba::new(at), to, Lba::new(0)]),
                4..20 => {
                    detector.write(Lba::new(next), blocks % 64);
                    next = next.saturating_add(u64::from(blocks % 64)) % 2000;
                }
                _ => drop(detector.write(Lba::new(at), blocks)),
            }
            detector.check();
        }
        prop_assert!(detector.regions().len() <= 16 + 40);
    }
}

/// Near the start, where tracks meet, and anywhere.
fn place() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..3000, 0u64..200, any::<u64>()]
}
