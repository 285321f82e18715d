//! What the oracle admits, claim by claim, and against a brute-force enumeration.
//!
//! Owns: the meaning of FORMAT.md's promises in terms of begin and end. Promises: an oracle that
//! admits too much or too little fails here, without any device. Never: runs a simulation.

use flashlane_base::{Lba, Rng};
use flashlane_ftl::block::BlockError;
use flashlane_testkit::content;
use flashlane_testkit::oracle::{Oracle, Update, Wrong};
use flashlane_testkit::{Found, Version};

const A: Lba = Lba::new(3);

/// An oracle of 8 sectors with helpers that read like a history.
struct History(Oracle);

impl History {
    fn new() -> History {
        History(Oracle::new(8, 8))
    }
    fn begin(&self) -> (Update, Version) {
        let mut buf = [0; 8];
        let update = self.0.begin_write(A, false, &mut buf);
        let Found::Sector(_, version) = content::name(&buf) else {
            panic!("a write has content");
        };
        (update, version)
    }
    fn end(&self, update: Update) {
        self.0.end_update(update, true);
    }
    fn write(&self) -> Version {
        let (update, version) = self.begin();
        self.end(update);
        version
    }
    fn flush(&self) {
        let flushing = self.0.begin_flush();
        self.0.end_flush(flushing, true);
    }
    /// Reads, finding `version`.
    fn read(&self, version: Version) -> Result<(), Wrong> {
        let reading = self.0.begin_read(A, 1);
        self.0.check_read(reading, &sector(A, version), &Ok(()))
    }
    fn now(&self) -> Vec<Version> {
        self.0.admissible(A)
    }
    fn after_cut(&self) -> Vec<Version> {
        self.0.admissible_after_cut(A)
    }
}

fn sector(lba: Lba, version: Version) -> [u8; 8] {
    let mut buf = [0; 8];
    content::fill(lba, version, &mut buf);
    buf
}

#[test]
fn the_last_of_two_ordered_writes_counts() {
    let h = History::new();
    let (first, second) = (h.write(), h.write());
    assert_eq!(h.now(), [second]);
    assert!(h.read(second).is_ok());
    let wrong = h.read(first).expect_err("the first is gone");
    let says = wrong.to_string();
    assert!(says.contains("lba 3") && says.contains("version 1") && says.contains("version 2"));
}

#[test]
fn two_unordered_writes_end_in_either_and_a_read_says_which_for_good() {
    for winner in 0..2 {
        let h = History::new();
        let ((a, va), (b, vb)) = (h.begin(), h.begin());
        h.end(a);
        h.end(b);
        assert_eq!(h.now(), [va, vb]);
        let (won, lost) = if winner == 0 { (va, vb) } else { (vb, va) };
        assert!(h.read(won).is_ok());
        assert_eq!(h.now(), [won]);
        assert!(h.read(lost).is_err(), "a sector must not change by itself");
    }
}

#[test]
fn a_read_that_overlaps_a_write_may_see_old_or_new() {
    let old_or_new = |pick_new: bool| {
        let h = History::new();
        let old = h.write();
        let reading = h.0.begin_read(A, 1);
        let (update, new) = h.begin();
        h.end(update);
        let seen = if pick_new { new } else { old };
        h.0.check_read(reading, &sector(A, seen), &Ok(())).expect("overlapping");
        assert!(h.read(old).is_err(), "this one began after the write's end");
    };
    old_or_new(false);
    old_or_new(true);
}

#[test]
fn discarded_and_unwritten_sectors_are_zeros() {
    let h = History::new();
    assert!(h.read(Version::ZEROS).is_ok());
    h.write();
    let update = h.0.begin_discard(Lba::new(0), 8);
    h.0.end_update(update, true);
    assert_eq!(h.now(), [Version::ZEROS]);
}

#[test]
fn another_sectors_content_is_never_admissible() {
    let h = History::new();
    let version = h.write();
    let reading = h.0.begin_read(A, 1);
    let wrong = h.0.check_read(reading, &sector(Lba::new(4), version), &Ok(()));
    let found = Found::Sector(Lba::new(4), version);
    assert!(matches!(wrong, Err(Wrong::Content { found: f, .. }) if f == found), "{wrong:?}");
}

#[test]
fn a_failed_write_may_have_happened() {
    let h = History::new();
    let old = h.write();
    let (update, new) = h.begin();
    h.0.end_update(update, false);
    assert_eq!(h.now(), [old, new]);
    let newest = h.write();
    assert_eq!(h.now(), [newest]);
}

#[test]
fn a_cut_leaves_the_flushed_content_or_something_younger() {
    let h = History::new();
    let first = h.write();
    assert_eq!(h.after_cut(), [Version::ZEROS, first]);
    h.flush();
    assert_eq!(h.after_cut(), [first]);
    let (second, third) = (h.write(), h.write());
    let (_under_way, fourth) = h.begin();
    assert_eq!(h.after_cut(), [first, second, third, fourth]);
    h.0.power_cut();
    assert_eq!(h.now(), [first, second, third, fourth]);
    assert!(h.read(second).is_ok());
    assert_eq!(h.now(), [second], "what recovery found stays");
    assert_eq!(h.after_cut(), [second], "also over a second cut");
}

/// Zeros tell no discard from another: that a read found a write under a discard, which is not durable, says
/// nothing of the durable one before both.
#[test]
fn a_write_under_a_discard_survives_while_that_is_not_durable() {
    let discard = |h: &History| h.0.begin_discard(A, 1);
    let h = History::new();
    h.write();
    h.end(discard(&h));
    h.flush();
    let (later, (write, version)) = (discard(&h), h.begin());
    h.end(write);
    h.end(later);
    assert!(h.read(Version::ZEROS).is_ok());
    assert_eq!(h.after_cut(), [Version::ZEROS, version]);
    h.flush();
    assert_eq!(h.after_cut(), [Version::ZEROS]);
}

/// Once a write that a read found on top of a discard is flushed, the discard can't come back.
#[test]
fn a_discard_that_a_read_showed_to_be_beaten_is_gone_with_the_next_flush() {
    let h = History::new();
    let (discard, (write, version)) = (h.0.begin_discard(A, 1), h.begin());
    h.end(discard);
    h.end(write);
    assert!(h.read(version).is_ok());
    assert_eq!(h.after_cut(), [Version::ZEROS, version]);
    h.flush();
    assert_eq!(h.after_cut(), [version]);
}

#[test]
fn a_flush_covers_what_ended_before_it_began() {
    let h = History::new();
    let (update, version) = h.begin();
    let flushing = h.0.begin_flush();
    h.end(update);
    h.0.end_flush(flushing, true);
    assert_eq!(h.after_cut(), [Version::ZEROS, version]);
    let failed = h.0.begin_flush();
    h.0.end_flush(failed, false);
    assert_eq!(h.after_cut(), [Version::ZEROS, version], "a failed flush covers nothing");
}

#[test]
fn fua_covers_its_own_sectors() {
    let h = History::new();
    let mut buf = [0; 16];
    let before = h.write();
    let update = h.0.begin_write(A, true, &mut buf);
    let version = Version(before.0 + 1);
    assert_eq!(h.after_cut(), [Version::ZEROS, before, version]);
    h.end(update);
    assert_eq!(h.after_cut(), [version]);
}

/// A read error is admissible for the damaged version, while it is the current one, and for no
/// other sector.
#[test]
fn damage_excuses_exactly_what_it_hit() {
    let h = History::new();
    let (old, new) = (h.write(), h.write());
    let fails = |lba: Lba| {
        let reading = h.0.begin_read(lba, 1);
        let error = Err(BlockError::Uncorrectable(vec![lba]));
        h.0.check_read(reading, &[0; 8], &error)
    };
    h.0.admit_error(A, old);
    assert_eq!(fails(A), Err(Wrong::Unreadable { lba: A }), "garbage was hit, not the sector");
    h.0.admit_error(A, new);
    assert_eq!(fails(A), Ok(()));
    assert!(fails(Lba::new(4)).is_err());
    let reading = h.0.begin_read(A, 1);
    h.write();
    let error = Err(BlockError::Uncorrectable(vec![A]));
    assert_eq!(h.0.check_read(reading, &[0; 8], &error), Ok(()), "it began before the write");
    assert!(fails(A).is_err(), "written again, readable again");
}

/// One update of a random history.
#[derive(Clone, Copy)]
struct Op {
    version: Version,
    begin: u32,
    end: Option<u32>,
}

/// Values that are last in some order of the survivors that respects real time. `must`: updates
/// that survive for certain; the others may or may not.
fn enumerate(ops: &[Op], must: impl Fn(&Op) -> bool) -> Vec<Version> {
    let mut values = std::collections::BTreeSet::new();
    let musts: Vec<&Op> = ops.iter().filter(|o| must(o)).collect();
    if musts.is_empty() {
        values.insert(Version::ZEROS);
    }
    for subset in 1u32..1 << ops.len() {
        let chosen: Vec<&Op> =
            (0..ops.len()).filter(|i| subset >> i & 1 == 1).map(|i| &ops[i]).collect();
        let all_musts = musts.iter().all(|m| chosen.iter().any(|c| c.version == m.version));
        if !all_musts {
            continue;
        }
        for last in &chosen {
            // `last` can be ordered behind all others iff none of them began after its end.
            let after = |o: &&&Op| last.end.is_some_and(|end| o.begin > end);
            if !chosen.iter().any(|o| after(&o)) {
                values.insert(last.version);
            }
        }
    }
    values.into_iter().collect()
}

/// Random histories of up to seven overlapping writes and flushes: the oracle admits exactly what
/// the enumeration of all orders does, live and after a cut. Replay: the seed is printed.
#[test]
fn the_oracle_agrees_with_an_enumeration_of_all_orders() {
    for seed in 0..2000 {
        let mut rng = Rng::stream(seed, "history", 0);
        let h = History::new();
        let (mut open, mut ops, mut time) = (Vec::new(), Vec::<Op>::new(), 0);
        let mut flushed = 0;
        while ops.len() < 7 || !open.is_empty() {
            time += 1;
            match rng.below(5) {
                0 | 1 if ops.len() < 7 => {
                    let (update, version) = h.begin();
                    open.push((update, ops.len()));
                    ops.push(Op { version, begin: time, end: None });
                }
                2 => {
                    flushed = time;
                    h.flush();
                }
                _ if !open.is_empty() => {
                    let (update, i) = open.swap_remove(rng.below(open.len() as u64) as usize);
                    ops[i].end = Some(time);
                    h.end(update);
                }
                _ => {}
            }
            let ended = |o: &Op| o.end.is_some();
            let durable = |o: &Op| o.end.is_some_and(|end| end < flushed);
            assert_eq!(h.now(), enumerate(&ops, ended), "seed {seed}, time {time}");
            assert_eq!(h.after_cut(), enumerate(&ops, durable), "seed {seed}, time {time}: cut");
        }
    }
}
