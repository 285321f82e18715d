//! Damage of lines on the medium, with the power off: closing and first metadata, units at the frontier and
//! behind it, sectors (FORMAT.md rule 7, R06).
//!
//! Owns: one test per part of a line. Geometry: that of `damage`.

use crate::pblk::damage::{each_way, intact, lived_in, options, right_or_error, small};
use crate::pblk::recover::{made, small as windowed};
use crate::prelude::*;

/// A line of several sections, closed and replayed. Returns it with the places of its closing metadata.
fn with_closing(setup: Setup) -> (Medium, Vec<Spot>) {
    let bench = made(setup);
    let line = bench.dev.layout().line_data as u32;
    bench.write(0, line, 1);
    bench.write(5, 100, 2);
    bench.drained();
    bench.write(900, 1, 3);
    bench.drained();
    let medium = bench.cut();
    let closing = medium.spots(LBA_LINE_CLOSING);
    (medium, closing)
}

/// R06: closing metadata damaged in each sector, in all, in its header's sequence: the line is scanned
/// for what is missing, all data is there.
#[test]
fn r06_closing_metadata_damaged_in_each_part() {
    let wide = || {
        let mut setup = small().shape(2, 4, 16);
        setup.spec.geometry.mw_cunits = 0;
        setup
    };
    for setup in [small(), wide(), windowed()] {
        let (medium, closing) = with_closing(setup.clone());
        let window = setup.spec.geometry.mw_cunits > 0;
        let sections = closing.len();
        assert!(sections >= 4, "{sections}");
        if !window {
            let mut scanned = BTreeSet::new();
            for place in &closing {
                each_way(&medium, &[*place], |how| {
                    let bench = medium.read_only();
                    assert_eq!(bench.recovery().lost_units, [], "{how} {place:?}");
                    intact(&bench);
                    bench.cut();
                });
                medium.wreck([*place]);
                let bench = medium.read_only();
                scanned.insert(bench.recovery().lines_scanned);
                bench.cut();
                medium.heal();
            }
            // Damage of a sector that holds something costs a scan; of padding, nothing.
            assert!(scanned.len() == 2, "{scanned:?}");
        }
        medium.wreck(closing);
        let bench = medium.mounted();
        assert_eq!(bench.recovery().lost_units, []);
        intact(&bench);
        bench.shut_down();
    }
}

/// R06: closing metadata that is intact, of another line's life (its sequence): it is not believed.
#[test]
fn r06_closing_metadata_of_another_sequence_is_not_believed() {
    let (medium, closing) = with_closing(small());
    // The header sector: sequence at 40, the CRC covers 8 .. 4096.
    let mut uuid = Vec::new();
    medium.rewrite(closing[0], |bytes| {
        bytes[40] ^= 1;
        let crc = flashlane_base::crc32c(&bytes[8..4096]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        uuid.extend_from_slice(&bytes[16..32]);
    });
    // Those of entries agree with it: sequence at 8, the CRC covers the uuid, then 4 .. 4096.
    for section in &closing[1..] {
        medium.rewrite(*section, |bytes| {
            bytes[8] ^= 1;
            let crc = flashlane_base::crc32c_append(flashlane_base::crc32c(&uuid), &bytes[4..4096]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        });
    }
    let bench = medium.mounted();
    assert!(bench.recovery().lines_scanned >= 2, "{:?}", bench.recovery());
    intact(&bench);
    bench.shut_down();
}

#[test]
fn first_metadata_is_not_needed_for_the_data() {
    let medium = lived_in(small()).cut();
    let firsts = medium.spots(LBA_LINE_FIRST);
    each_way(&medium, &firsts, |how| {
        let bench = medium.mount(options(|o| (o.read_only, o.accept_lost) = (true, true)));
        let bench = bench.unwrap_or_else(|e| panic!("{how}: {e}"));
        assert_eq!(right_or_error(&bench), 0, "{how}");
        bench.cut();
    });
}

/// 32 sectors in version 1, then the unit of sectors 8 to 12 in version 2.
fn overwritten(setup: Setup) -> Bench {
    let bench = made(setup);
    bench.write(0, 32, 1);
    bench.drained();
    bench.write(8, 4, 2);
    bench
}

/// [`overwritten`], with units in version 3 behind that one in its chunk, when the power goes.
fn written_behind(setup: Setup) -> Medium {
    let bench = overwritten(setup);
    bench.drained();
    bench.write(100, 32, 3);
    bench.flush();
    bench.cut()
}

/// These sectors hold this version each; with none a read fails.
fn hold(bench: &Bench, lbas: impl Iterator<Item = u64>, version: impl Fn(u64) -> Option<u64>) {
    for lba in lbas {
        let want = version(lba);
        assert_eq!(bench.version(lba, want.as_slice()), want, "sector {lba}");
    }
}

/// Rule 7: the unit at the frontier of an open chunk can't be read: it was never written, its place is
/// reported, the copies before it count.
#[test]
fn a_bad_unit_at_the_frontier_never_was() {
    for flip in [false, true] {
        let bench = overwritten(small());
        bench.flush();
        let medium = bench.cut();
        let unit = medium.unit_of(medium.newest(8));
        let end = medium.info(unit[0].0).write_pointer;
        assert_eq!(unit[3].1 + 1, end, "the last unit of its chunk");
        medium.spoil(flip, unit.clone());
        let bench = medium.mounted();
        assert_eq!(bench.recovery().torn_units, [unit[0]]);
        assert_eq!(bench.recovery().lost_units, []);
        hold(&bench, 0..32, |_| Some(1));
        bench.agrees();
        // And the verdict stands in later lives.
        medium.heal();
        let bench = bench.cut().mounted();
        hold(&bench, 0..32, |_| Some(1));
    }
}

/// Hole 36: a sector of the unit at the frontier is bad, its neighbour is not: the unit was programmed,
/// and may have been flushed. Without its record it is lost; with it reads are errors.
#[test]
fn a_bad_sector_of_a_unit_at_the_frontier_has_decayed() {
    for flip in [false, true] {
        let bench = Medium::new(small()).create();
        bench.write(0, 32, 1);
        bench.drained();
        bench.write(8, 4, 2);
        bench.flush();
        let medium = bench.cut();
        let unit = medium.unit_of(medium.newest(8));
        let end = medium.info(unit[0].0).write_pointer;
        assert_eq!(unit[3].1 + 1, end, "the last unit of its chunk");
        let bench = if flip {
            medium.flip([unit[0]]);
            medium.mounted()
        } else {
            medium.wreck([unit[0]]);
            match medium.refused(MountOptions::default()) {
                MountError::LostUnits { count: 1, chunks } => {
                    assert_eq!(chunks, [medium.place_of(unit[0].0)]);
                }
                other => panic!("{other}"),
            }
            medium.mount(options(|o| o.accept_lost = true)).expect("as asked for")
        };
        assert_eq!(bench.recovery().torn_units, []);
        // Without its record it may have been any sector: each of them may be older.
        hold(&bench, 0..32, |lba| match lba {
            8 => None,
            _ if !flip => None,
            9..12 => Some(2),
            _ => Some(1),
        });
        bench.agrees();
    }
}

/// Rule 7: a unit behind the frontier that can't be read at all: the mount is refused; accepted, no
/// older copy of what was in it comes back. Nothing says which sectors they were, so all are errors
/// that may be older, in the lives to come, too, until they are written or discarded.
#[test]
fn a_bad_unit_behind_the_frontier_is_lost() {
    let medium = written_behind(small());
    let unit = medium.unit_of(medium.newest(8));
    medium.wreck(unit.clone());
    match medium.refused(MountOptions::default()) {
        MountError::LostUnits { count: 1, chunks } => {
            assert_eq!(chunks, [medium.place_of(unit[0].0)]);
        }
        other => panic!("{other}"),
    }
    let bench = medium.mount(options(|o| o.accept_lost = true)).expect("as asked for");
    assert_eq!(bench.recovery().lost_units, [unit[0]]);
    hold(&bench, (0..32).chain(100..132), |_| None);
    bench.agrees();
    bench.write(8, 4, 4);
    bench.discard(100, 4);
    bench.flush();
    let mut medium = bench.cut();
    medium.heal();
    for clean in [true, false] {
        let bench = medium.mounted();
        hold(&bench, (0..32).chain(100..132), |lba| match lba {
            8..12 => Some(4),
            100..104 => Some(0),
            _ => None,
        });
        bench.agrees();
        medium = if clean { bench.shut_down() } else { bench.cut() };
    }
}

/// Rule 7: a unit behind the frontier whose records can be read but whose content is wrong: an error, not
/// an older copy.
#[test]
fn bad_content_behind_the_frontier_is_an_error() {
    let mut setup = small().memory();
    setup.spec.geometry.mw_cunits = 0;
    for setup in [small(), setup] {
        let medium = written_behind(setup);
        medium.flip([medium.newest(9)]);
        let bench = medium.mounted();
        assert_eq!(bench.recovery().lost_units, []);
        hold(&bench, (0..32).chain(100..132), |lba| match lba {
            9 => None,
            8..12 => Some(2),
            0..32 => Some(1),
            _ => Some(3),
        });
        bench.agrees();
        bench.write(9, 1, 4);
        let bench = bench.shut_down().mounted();
        assert_eq!(bench.version(9, &[4]), Some(4));
    }
}

/// A closed line's sector that decays while the power is off: an error, in a clean life and after a cut.
#[test]
fn a_decayed_sector_of_a_closed_line_is_an_error() {
    for (clean, flip) in [(true, true), (true, false), (false, true), (false, false)] {
        let bench = lived_in(small());
        let medium = if clean { bench.shut_down() } else { bench.cut() };
        let place = medium.newest(500);
        medium.spoil(flip, [place]);
        let bench = medium.mounted();
        assert_eq!(right_or_error(&bench), 1, "clean: {clean}, flip: {flip}");
        assert_eq!(bench.version(500, &[]), None);
        bench.agrees();
    }
}

/// A line that a first mount took over is scanned again by a second, since it was not closed by then. What
/// can't be read at that moment is reported, but not given up: the map has it, and a collection finds
/// it by its own record, whatever the closing metadata says.
#[test]
fn what_a_second_mount_can_not_read_is_not_given_up() {
    let medium = written_behind(small());
    let unit = medium.unit_of(medium.newest(8));
    let open =
        |m: &Medium| m.lines().iter().any(|l| l.chunks.contains(&unit[0].0) && l.closed.is_none());
    let medium = medium.mounted().cut();
    assert!(open(&medium));
    medium.wreck(unit.clone());
    let bench = medium.mounted();
    assert_eq!(bench.recovery().lost_units, [unit[0]]);
    bench.rest();
    assert!(!open(&medium));
    medium.heal();
    for _ in 0..20 {
        if medium.newest(8).0 == unit[0].0 {
            bench.gc_once();
        }
    }
    assert_ne!(medium.newest(8).0, unit[0].0, "it was collected");
    assert_eq!(bench.stats().gc_read_failures, 0);
    hold(&bench, 8..12, |_| Some(2));
    bench.agrees();
}

/// The device gives another sector than the one that it was asked for, whole as it is: an error to a
/// reader, and a collection neither moves it nor loses the line's room.
#[test]
fn what_is_whole_but_anothers_is_an_error() {
    let bench = lived_in(small());
    let medium = bench.medium.clone();
    let place = medium.newest(500);
    let version = bench.held.borrow()[&499];
    medium.misplace(place, 499, version, None);
    assert_eq!(bench.version(500, &[]), None);
    let is_there = || medium.written().iter().any(|(at, _)| *at == place);
    for _ in 0..20 {
        assert!(!is_there() || bench.gc_once());
    }
    assert!(!is_there(), "its line was freed");
    assert_eq!(bench.version(500, &[]), None);
    assert_eq!(bench.version(499, &[version]), Some(version));
    bench.write(500, 1, 95);
    bench.flush();
    intact(&bench);
    bench.agrees();
}

/// Hole 13: a stamp above the ceiling was never issued. A sector that has one is nobody's, whole as it is.
#[test]
fn a_stamp_above_the_ceiling_is_nobodys() {
    let medium = written_behind(small());
    medium.misplace(medium.newest(9), 100, 77, Some(1 << 55));
    let bench = medium.mounted();
    hold(&bench, 100..132, |_| Some(3));
    bench.agrees();
}
