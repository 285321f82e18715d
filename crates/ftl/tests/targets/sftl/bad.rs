//! Blocks that go bad, until none is left.

use super::*;
use flashlane_ftl::layer::{Layer, Stop as LayerStop};
use flashlane_media::fault::FaultKind;
use flashlane_ocssd::wrap::{Script, ScriptedDevice};

const A: (u32, u32) = (0, 0);

/// A device on which something may fail.
fn fragile() -> Drive {
    Drive::new(&plain(), "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n")
}

fn plan(kind: &str, more: &str) -> FaultPlan {
    FaultPlan::from_toml(&format!("[[fault]]\nkind = \"{kind}\"\n{more}\n")).expect("a plan")
}

/// The next operations of a kind on a PU fail.
fn fail(drive: &Drive, kind: &str, more: &str) {
    plan(kind, more).faults.into_iter().for_each(|fault| drive.ssd.fail(fault));
}

/// Fills all segments of channel 0 that take anything, and trims them again.
async fn use_all(cx: &Cx, ftl: &Sftl, life: u64) {
    for segment in 0..ftl.info().segments {
        if ftl.state(0, segment) == SegmentState::Empty {
            put(ftl, cx, (0, segment), life, ftl.info().segment_sectors).await.expect("an append");
        }
    }
}

#[test]
fn a_block_in_which_a_program_failed_is_never_used_again() {
    for (kind, lives) in
        [("early_close", 1), ("write_next_unit", 1), ("early_close", 2), ("write_next_unit", 2)]
    {
        let drive = fragile();
        let theirs = drive.clone();
        drive.created(move |cx, ftl| async move {
            put(&ftl, &cx, A, 1, 4).await.expect("an append");
            fail(&theirs, kind, "pu = 0");
            let failed = put(&ftl, &cx, A, 1, 4).await;
            assert_eq!(failed, Err(SftlError::ProgramFailed { channel: 0, segment: 0, sector: 4 }));
            theirs.ssd.forgive();
            if lives == 1 {
                check_failed(&cx, &ftl).await;
            }
        });
        // Nobody but the ledger knows of a program that failed softly.
        drive.mounted(move |cx, ftl| async move {
            if lives == 2 {
                check_failed(&cx, &ftl).await;
            }
            assert_eq!(ftl.retired(0), 1, "{kind}");
        });
        drive.mounted(|cx, ftl| async move {
            assert_eq!((ftl.retired(0), ftl.retired(1)), (1, 0));
            use_all(&cx, &ftl, 3).await;
        });
        let face = drive.last.borrow().clone().expect("a life");
        let programmed: BTreeSet<u32> = face
            .everything()
            .iter()
            .filter(|(o, _)| *o == Op::Write)
            .map(|(_, s)| s[0].0)
            .collect();
        // The first block of the channel is the least worn of all, were it not bad.
        let first = drive.mounted(|_, ftl| async move { ftl.info().segments });
        assert!(programmed.len() as u32 >= first);
        let bad = bad_chunk(&drive);
        assert!(!programmed.contains(&bad), "chunk {bad} of {programmed:?}");
    }
}

/// The chunk that the first append of a new one goes to.
fn bad_chunk(drive: &Drive) -> u32 {
    drive.mounted(|_, ftl| async move {
        let layer: Arc<dyn flashlane_ftl::layer::Layer> = ftl;
        layer.settings()["meta_chunks"].as_u64().expect("it is kept") as u32
    })
}

/// It says no, gives what it has, and its block is retired when it is trimmed.
async fn check_failed(cx: &Cx, ftl: &Sftl) {
    assert_eq!(ftl.state(0, 0), SegmentState::Failed);
    let refused = put(ftl, cx, A, 1, 2).await;
    assert_eq!(refused, Err(SftlError::Failed { channel: 0, segment: 0 }));
    assert_eq!(get(ftl, cx, A, 0, 4).await, Ok(run_of(A, 1, 0, 4, ftl.info().content_bytes)));
    ftl.trim(cx, 0, 0).await.expect("a spare block is left");
    assert_eq!((ftl.state(0, 0), ftl.retired(0)), (SegmentState::Empty, 1));
    put(ftl, cx, A, 2, 4).await.expect("on another block");
    holds(ftl, cx, A, 2, 4).await;
}

/// A first page whose program failed hides nothing of what was acknowledged behind it.
#[test]
fn a_first_program_that_failed_hides_nothing() {
    let drive = fragile();
    let theirs = drive.clone();
    drive.created(move |cx, ftl| async move {
        fail(&theirs, "write_next_unit", "pu = 0");
        let bytes = run_of(A, 1, 0, 6, 8);
        let (one, two) = (Sectors::One(&bytes[..16]), Sectors::One(&bytes[16..]));
        let one = ftl.append(&cx, 0, 0, 0, one, Cause::User, false);
        let two = ftl.append(&cx, 0, 0, 2, two, Cause::User, false);
        assert_eq!(one.await, Err(SftlError::ProgramFailed { channel: 0, segment: 0, sector: 0 }));
        assert_eq!(two.await, Ok(()));
        theirs.ssd.forgive();
        assert_eq!(get(&ftl, &cx, A, 2, 4).await, Ok(run_of(A, 1, 2, 4, 8)));
    });
    drive.mounted(|cx, ftl| async move {
        assert_eq!((ftl.state(0, 0), ftl.write_pointer(0, 0)), (SegmentState::Failed, 6));
        assert_eq!(get(&ftl, &cx, A, 2, 4).await, Ok(run_of(A, 1, 2, 4, 8)));
        let lost = get(&ftl, &cx, A, 0, 6).await;
        let sectors = only(0..2);
        assert_eq!(lost, Err(SftlError::Uncorrectable { channel: 0, segment: 0, sectors }));
    });
}

/// A block in which a program failed is padded behind it, so that the pairs of what it holds are
/// closed. One that the device has closed takes no padding.
#[test]
fn pairs_of_a_block_in_which_a_program_failed_are_closed() {
    for (kind, closes) in [("write_next_unit", true), ("early_close", false)] {
        let drive =
            Drive::new(&paired(), "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n");
        let theirs = drive.clone();
        drive.created(move |cx, ftl| async move {
            let layer: Arc<dyn Layer> = ftl.clone();
            let chunk = layer.settings()["meta_chunks"].as_u64().expect("it is kept") as u32;
            let pointer = || theirs.ssd.chunk_report(0, chunk, 1)[0].write_pointer;
            put(&ftl, &cx, A, 1, 4).await.expect("an append");
            fail(&theirs, kind, "pu = 0");
            assert!(put(&ftl, &cx, A, 1, 4).await.is_err());
            theirs.ssd.forgive();
            let before = pointer();
            ftl.seal(&cx, 0, 0).await.expect("there is room");
            let padded = if closes { ftl.info().pair_sectors } else { 0 };
            assert!(before >= 4 && pointer() == before + padded, "{kind}: {before}, {}", pointer());
            assert_eq!(get(&ftl, &cx, A, 0, 4).await, Ok(run_of(A, 1, 0, 4, 8)));
            ftl.trim(&cx, 0, 0).await.expect("nobody reads it any more");
        });
    }
}

/// Behind a program that the device did not take nothing is sent.
#[test]
fn what_flies_behind_a_failed_program_is_told() {
    for (kind, count) in [("early_close", 1), ("die_fail", 1), ("early_close", 3)] {
        let drive = fragile();
        let theirs = drive.clone();
        drive.created(move |cx, ftl| async move {
            fail(&theirs, kind, &format!("pu = 0\ncount = {count}"));
            let bytes = run_of(A, 1, 0, 12, 8);
            let parts: Vec<_> = (0..3)
                .map(|i| {
                    let part = Sectors::One(&bytes[i as usize * 32..][..32]);
                    let first = ftl.write_pointer(0, 0);
                    ftl.append(&cx, 0, 0, first, part, Cause::User, false)
                })
                .collect();
            let mut good = 0;
            for part in parts {
                good += u32::from(part.await.is_ok());
            }
            assert_eq!(good, (count - 1) / 2, "{kind}");
            assert_eq!(ftl.state(0, 0), SegmentState::Failed);
            assert_eq!(ftl.write_pointer(0, 0), 2 * (count - 1));
        });
    }
}

#[test]
fn a_block_that_cannot_be_erased_is_retired_and_the_trim_goes_on() {
    let drive = fragile();
    let theirs = drive.clone();
    drive.created(move |cx, ftl| async move {
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        fail(&theirs, "erase_fail", "pu = 0");
        ftl.trim(&cx, 0, 0).await.expect("a trim");
        theirs.ssd.forgive();
        assert_eq!((ftl.state(0, 0), ftl.retired(0)), (SegmentState::Empty, 1));
        put(&ftl, &cx, A, 2, 8).await.expect("another block");
        assert_eq!(ftl.stats().erase_failures, 1);
    });
    drive.mounted(|cx, ftl| async move {
        holds(&ftl, &cx, A, 2, 8).await;
        assert_eq!(ftl.retired(0), 1);
    });
}

/// A device that says that an erase failed, and gives the old data back after a cut.
#[test]
fn what_could_not_be_erased_never_comes_back() {
    let drive = fragile();
    let config = drive.config.clone();
    drive.life(None, |cx, device| async move {
        let script = Arc::new(ScriptedDevice::new(device));
        let ftl = Sftl::create(&cx, script.clone(), config).await.expect("a new one");
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        let nth = script.seen(Op::Reset);
        let status = Status::OfflineChunk;
        script.add(Script { op: Op::Reset, nth, addrs: 1, status, delay: Ns::ZERO });
        ftl.trim(&cx, 0, 0).await.expect("a trim");
        assert_eq!((ftl.state(0, 0), ftl.retired(0)), (SegmentState::Empty, 1));
    });
    for _ in 0..2 {
        drive.mounted(|cx, ftl| async move {
            assert_eq!((ftl.state(0, 0), ftl.retired(0)), (SegmentState::Empty, 1));
            use_all(&cx, &ftl, 2).await;
            for segment in 0..ftl.info().segments {
                ftl.trim(&cx, 0, segment).await.expect("a trim");
            }
        });
    }
}

#[test]
fn segments_are_gone_when_no_block_is_left_and_stay_so() {
    let drive = fragile();
    let theirs = drive.clone();
    let gone = drive.created(move |cx, ftl| async move {
        fail(&theirs, "erase_fail", "pu = 0\ntimes = 1000");
        let mut gone = BTreeSet::new();
        for round in 0..3 {
            for segment in (0..ftl.info().segments).rev() {
                if gone.contains(&segment) || ftl.info().segments - gone.len() as u32 <= 2 {
                    continue;
                }
                let at = (0, segment);
                put(&ftl, &cx, at, round, 2).await.expect("whoever is there has a block");
                match ftl.trim(&cx, 0, segment).await {
                    Ok(()) => {}
                    Err(SftlError::Gone { .. }) => drop(gone.insert(segment)),
                    Err(other) => panic!("{other}"),
                }
                ftl.walk().unwrap();
            }
        }
        theirs.ssd.forgive();
        assert!(!gone.is_empty() && ftl.retired(0) > 2);
        assert_eq!(ftl.retired(1), 0, "other channels have their own");
        gone
    });
    for life in 0..2 {
        let gone = gone.clone();
        drive.mounted(move |cx, ftl| async move {
            for segment in 0..ftl.info().segments {
                let state = ftl.state(0, segment);
                assert_eq!(state == SegmentState::Gone, gone.contains(&segment), "{segment}");
                let put = put(&ftl, &cx, (0, segment), life, 2).await;
                match gone.contains(&segment) {
                    true => {
                        assert_eq!(put, Err(SftlError::Gone { channel: 0, segment }));
                        assert!(put.expect_err("it is gone").to_string().contains("for good"));
                        assert!(ftl.trim(&cx, 0, segment).await.is_err());
                    }
                    false => {
                        put.expect("it has a block");
                        ftl.trim(&cx, 0, segment).await.expect("a trim");
                    }
                }
            }
        });
    }
}

/// A die dies: its segments say so, the others go on, in this life and the next.
#[test]
fn a_dead_die_takes_its_own_segments() {
    let drive = fragile();
    let theirs = drive.clone();
    drive.created(move |cx, ftl| async move {
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        put(&ftl, &cx, (1, 0), 1, 8).await.expect("an append");
        assert_eq!(FaultKind::DieFail, plan("die_fail", "").faults[0].kind);
        fail(&theirs, "die_fail", "pu = 0");
        assert!(put(&ftl, &cx, A, 1, 4).await.is_err());
        let lost = get(&ftl, &cx, A, 0, 8).await;
        let sectors = only(0..8);
        assert_eq!(lost, Err(SftlError::Uncorrectable { channel: 0, segment: 0, sectors }));
        assert!(ftl.trim(&cx, 0, 0).await.is_ok());
        holds(&ftl, &cx, (1, 0), 1, 8).await;
        put(&ftl, &cx, (1, 0), 1, 2).await.expect("the other channel goes on");
        ftl.walk().unwrap();
        // What was on it nobody would know without a stop: the mount would be refused. The
        // page-mapped region may have no spare left, and says so.
        let stopped = Layer::stop(ftl, &cx, LayerStop::Clean).await;
        assert!(matches!(stopped, Ok(()) | Err(BlockError::ReadOnly(_))), "{stopped:?}");
    });
    drive.mounted(|cx, ftl| async move {
        holds(&ftl, &cx, (1, 0), 1, 10).await;
        let state = ftl.state(0, 0);
        assert!(matches!(state, SegmentState::Empty | SegmentState::Gone), "{state:?}");
    });
}
