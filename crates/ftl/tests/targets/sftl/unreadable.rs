//! Chunks that can't be read at a mount: they are unknown, and never empty.

use super::*;
use flashlane_ftl::layer::{Layer, Stop as LayerStop};
use flashlane_ftl::sftl::UnreadableCause;

const A: (u32, u32) = (0, 0);
const B: (u32, u32) = (0, 1);

fn drive() -> Drive {
    Drive::new(&plain(), "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n")
}

/// Reads of these chunks fail so many times.
fn fail_reads(drive: &Drive, chunks: &[u32], times: u64) {
    for chunk in chunks {
        let plan = format!(
            "[[fault]]\nkind = \"read_uncorrectable\"\npu = 0\nchunk = {chunk}\ntimes = {times}\n"
        );
        let plan = FaultPlan::from_toml(&plan).expect("a plan");
        plan.faults.into_iter().for_each(|fault| drive.ssd.fail(fault));
    }
}

const ALWAYS: u64 = 1 << 40;

/// Some segments of channel 0 with so many sectors each: the chunk of each.
fn with_data(drive: &Drive, sectors: u32) -> Vec<u32> {
    drive.created(move |cx, ftl| async move {
        let mut chunks = Vec::new();
        for segment in 0..3 {
            put(&ftl, &cx, (0, segment), 1, sectors).await.expect("an append");
            let lba = BlockDev::info(&*ftl.face()).capacity - ftl.info().sectors()
                + u64::from(segment * ftl.info().channels * ftl.info().segment_sectors);
            chunks.push(ftl.locate(lba).expect("it was written").chunk);
        }
        put(&ftl, &cx, (1, 0), 1, sectors).await.expect("an append");
        chunks
    })
}

/// Neither erased nor empty for whoever asks, as often as it is mounted; and all there when it can
/// be read again.
#[test]
fn what_can_not_be_read_is_kept() {
    // Also such that a power cut could have left so: a page, and a full chunk.
    for sectors in [8, 2, 32] {
        let drive = drive();
        let chunks = with_data(&drive, sectors);
        for chunk in chunks {
            fail_reads(&drive, &[chunk], ALWAYS);
            for _ in 0..2 {
                let config = drive.config.clone();
                drive.life(None, move |cx, device| async move {
                    let ftl = Sftl::mount(&cx, device, config).await.expect("a mount");
                    ftl.walk().unwrap();
                    check_doubt(&cx, &ftl, chunk, sectors).await;
                });
            }
            drive.ssd.forgive();
            drive.mounted(move |cx, ftl| async move {
                assert!(!ftl.is_in_doubt());
                for at in [A, B, (0, 2), (1, 0)] {
                    holds(&ftl, &cx, at, 1, sectors).await;
                }
            });
        }
    }
}

/// A chunk of channel 0 is in doubt, and nothing was done about it.
async fn check_doubt(cx: &Cx, ftl: &Sftl, chunk: u32, sectors: u32) {
    let doubts = ftl.unreadable();
    assert_eq!(doubts.len(), 1, "{doubts:?}");
    assert_eq!((doubts[0].pu, doubts[0].chunk, doubts[0].sectors), (0, chunk, sectors));
    assert_eq!(doubts[0].cause, UnreadableCause::Unread);
    assert!(doubts[0].to_string().contains(&format!("chunk {chunk} on PU 0")));
    assert_eq!(ftl.may_be_torn(), sectors != 8);
    assert_eq!(ftl.recovery().expect("a mount").erased_chunks, 0);
    let found = Layer::recovered(ftl).expect("a mount");
    assert!(found.how.contains("can't be read") && found.torn_units == 1, "{}", found.how);
    holds(ftl, cx, (1, 0), 1, sectors).await;
    // Nothing takes its place, and no older one can come back behind a newer one.
    let refused = put(ftl, cx, (0, 5), 2, 2).await;
    assert_eq!(refused, Err(SftlError::InDoubt { channel: 0, segment: 5 }));
    for segment in [0, 5] {
        let refused = ftl.trim(cx, 0, segment).await;
        assert_eq!(refused, Err(SftlError::InDoubt { channel: 0, segment }));
    }
}

/// A medium that comes back within a second costs time, and nothing else.
#[test]
fn reads_of_a_mount_are_repeated_over_time() {
    for times in [1, 7, 8, 9, 40, 200, 1000] {
        let drive = drive();
        let chunks = with_data(&drive, 32);
        fail_reads(&drive, &chunks, times);
        drive.mounted(|cx, ftl| async move {
            assert!(!ftl.is_in_doubt());
            for at in [A, B, (0, 2), (1, 0)] {
                holds(&ftl, &cx, at, 1, 32).await;
            }
            put(&ftl, &cx, (0, 5), 1, 2).await.expect("an append");
        });
    }
}

/// Two chunks of a PU are no work of a power cut. Whoever has logical sectors gets errors for what
/// may be there, and changes nothing, until it is given up; and then it stays so.
#[test]
fn what_may_be_lost_is_an_error_until_it_is_given_up() {
    for comes_back in [false, true] {
        let mut drive = drive();
        let chunks = with_data(&drive, 32);
        fail_reads(&drive, &chunks[..2], ALWAYS);
        for _ in 0..2 {
            drive.mounted(|cx, ftl| async move {
                assert!(!ftl.may_be_torn());
                check_face(&cx, &ftl).await;
            });
        }
        drive.config.accept_lost_sectors = true;
        drive.mounted(|cx, ftl| async move {
            assert!(ftl.is_in_doubt(), "a mount alone gives nothing up");
            let face = ftl.face();
            let first = Lba::new(face.layout().segment_at(0, 7));
            face.start(&cx, Io::write(first, 2, true, &[1; 16])).await.expect("it is accepted");
            assert!(!ftl.is_in_doubt());
            assert_eq!(
                (ftl.state(0, 0), ftl.state(0, 1)),
                (SegmentState::Empty, SegmentState::Empty)
            );
            holds(&ftl, &cx, (0, 2), 1, 32).await;
        });
        drive.config.accept_lost_sectors = false;
        if comes_back {
            drive.ssd.forgive();
        }
        drive.mounted(|cx, ftl| async move {
            assert_eq!(
                (ftl.state(0, 0), ftl.state(0, 1)),
                (SegmentState::Empty, SegmentState::Empty)
            );
            put(&ftl, &cx, (1, 1), 2, 4).await.expect("an append");
        });
    }
}

/// Content of segments without a block is not known.
async fn check_face(cx: &Cx, ftl: &Arc<Sftl>) {
    let face = ftl.face();
    let layout = face.layout();
    let read = async |channel: u32, segment: u32| {
        let mut bytes = vec![0xa5; 32];
        let first = Lba::new(layout.segment_at(channel, segment));
        face.start(cx, Io::read(first, 4, &mut bytes)).await.map(|()| bytes)
    };
    for segment in [0, 1, 7] {
        let lost = read(0, segment).await;
        let first = layout.segment_at(0, segment);
        let all = (first..first + 4).map(Lba::new).collect();
        assert_eq!(lost, Err(BlockError::Uncorrectable(all)), "segment {segment}");
        assert!(face.extent(Lba::new(first), 4).holds, "it is not known to be empty");
    }
    assert_eq!(read(0, 2).await, Ok(run_of((0, 2), 1, 0, 4, 8)));
    assert_eq!(read(1, 7).await, Ok(vec![0; 32]), "all of its channel can be read");
    let bytes = [1; 16];
    let write = Io::write(Lba::new(layout.segment_at(0, 7)), 2, false, &bytes);
    let refused = face.start(cx, write).await.expect_err("nothing is known of it");
    assert!(refused.to_string().contains("--accept-lost"), "{refused}");
    let full = layout.segment_sectors;
    let discard = Io::discard(Lba::new(layout.segment_at(0, 2)), full);
    assert!(face.start(cx, discard).await.is_err());
    assert_eq!(read(0, 2).await, Ok(run_of((0, 2), 1, 0, 4, 8)));
}

/// What a power cut has left is erased by the first change through logical sectors.
#[test]
fn a_torn_erase_is_repeated_below_logical_sectors() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
    });
    drive.mounted(|cx, ftl| async move {
        let (theirs, its) = (cx.clone(), ftl.clone());
        cx.spawn(async move { drop(its.trim(&theirs, 0, 0).await) });
        cx.sleep(Ns::from_us(1000)).await;
    });
    let config = drive.config.clone();
    drive.life(None, |cx, device| async move {
        let ftl = Sftl::mount(&cx, device, config).await.expect("a mount");
        assert!(ftl.is_in_doubt() && ftl.may_be_torn());
        let face = ftl.face();
        let first = Lba::new(face.layout().segment_at(0, 0));
        let (mut got, bytes) = (vec![0xa5; 32], [3; 16]);
        face.start(&cx, Io::read(first, 4, &mut got)).await.expect("it was trimmed");
        assert_eq!(got, [0; 32]);
        face.start(&cx, Io::write(first, 2, false, &bytes)).await.expect("room");
        assert!(!ftl.is_in_doubt());
        assert_eq!(ftl.write_pointer(0, 0), 2);
        ftl.walk().unwrap();
    });
}

/// A die that is dead at a mount is no list of bad blocks: it may have had data.
#[test]
fn a_dead_die_is_in_doubt_until_it_is_given_up() {
    let drive = Drive::new(
        &device((2, 2), 24, 16, 0, "", FREE),
        "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n",
    );
    let theirs = drive.clone();
    drive.created(move |cx, ftl| async move {
        for segment in 0..4 {
            put(&ftl, &cx, (0, segment), 1, 8).await.expect("an append");
        }
        let plan = FaultPlan::from_toml("[[fault]]\nkind = \"die_fail\"\npu = 0\n");
        plan.expect("a plan").faults.into_iter().for_each(|fault| theirs.ssd.fail(fault));
        assert!(
            get(&ftl, &cx, (0, 0), 0, 2).await.is_err()
                || get(&ftl, &cx, (0, 1), 0, 2).await.is_err()
        );
        // Without a stop the page-mapped region can't tell what it had on that die.
        Layer::stop(ftl, &cx, LayerStop::Clean).await.expect("a stop");
    });
    for _ in 0..2 {
        drive.mounted(|cx, ftl| async move {
            let doubts = ftl.unreadable();
            assert_eq!(doubts.len(), 1, "{doubts:?}");
            assert_eq!((doubts[0].pu, doubts[0].cause), (0, UnreadableCause::DeadPu));
            assert!(!ftl.may_be_torn());
            let there = (0..4).filter(|s| ftl.write_pointer(0, *s) == 8).count();
            assert_eq!(there, 2, "those of the other die");
            assert!(matches!(put(&ftl, &cx, (1, 0), 1, 2).await, Err(SftlError::InDoubt { .. })));
        });
    }
    drive.mounted(|cx, ftl| async move {
        ftl.settle(&cx, Settle::GiveUp).await.expect("it is noted");
        ftl.walk().unwrap();
        put(&ftl, &cx, (1, 0), 1, 2).await.expect("an append");
    });
    drive.mounted(|cx, ftl| async move {
        assert!(!ftl.is_in_doubt());
        holds(&ftl, &cx, (1, 0), 1, 2).await;
        put(&ftl, &cx, (0, 0), 2, 2).await.expect("the other die has blocks");
    });
}

/// A read-back window: an open block that can't be read is not filled up by mounts, until it looks
/// as a torn erase does.
#[test]
fn mounts_do_not_fill_what_they_can_not_read() {
    let drive =
        Drive::new(&windowed(), "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n");
    drive.created(|cx, ftl| async move {
        put(&ftl, &cx, A, 1, 10).await.expect("an append");
    });
    let kind = "kind = \"read_uncorrectable\"";
    let meta = first_chunk(&drive);
    for chunk in meta..drive.ssd.geometry().chunks_per_pu {
        let plan = format!("[[fault]]\n{kind}\nchunk = {chunk}\ntimes = {ALWAYS}\n");
        let plan = FaultPlan::from_toml(&plan).expect("a plan");
        plan.faults.into_iter().for_each(|fault| drive.ssd.fail(fault));
    }
    for mount in 0..6 {
        let config = drive.config.clone();
        drive.life(None, move |cx, device| async move {
            let ftl = Sftl::mount(&cx, device, config).await.expect("a mount");
            assert!(
                ftl.is_in_doubt() && !ftl.may_be_torn(),
                "mount {mount}: {:?}",
                ftl.unreadable()
            );
        });
    }
    drive.ssd.forgive();
    drive.mounted(|cx, ftl| async move {
        let unit = ftl.info().content_bytes;
        assert_eq!(get(&ftl, &cx, A, 0, 10).await, Ok(run_of(A, 1, 0, 10, unit)));
    });
}

/// The first chunk of segments.
fn first_chunk(drive: &Drive) -> u32 {
    drive.mounted(|_, ftl| async move {
        let layer: Arc<dyn Layer> = ftl;
        layer.settings()["meta_chunks"].as_u64().expect("it is kept") as u32
    })
}
