//! The layers on a device that lives in an image: all goes well, and the host's disk is full.

use crate::prelude::*;
use flashlane_ftl::layer::{Kind, Seam};
use flashlane_ftl::log::PBLK;
use flashlane_ftl::pftl::PFTL;
use flashlane_media::host::HostFile;
use flashlane_media::host::memory::Moment;

const LAYERS: [&dyn Kind; 2] = [&PBLK, &PFTL];

fn small() -> DeviceSpec {
    DeviceSpec::preset("tiny").expect("a preset").with_chunks_per_pu(40)
}

/// On an image the buffer is volatile, which takes more spare where chunks are short.
fn volatile() -> PftlConfig {
    PftlConfig { over_provisioning_percent: 50, ..PftlConfig::default() }
}

/// A new drive's image.
fn blank() -> Vec<u8> {
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &small(), &CreateImage::default()).expect("created");
    file.bytes()
}

/// What is used, of which the file is the image.
fn opened(bytes: &[u8]) -> (Arc<MemoryFile>, Arc<Ssd>) {
    let file = Arc::new(MemoryFile::new(bytes.to_vec()));
    (file.clone(), Ssd::open_on(file, &OpenImage::default()).expect("opened"))
}

/// Overwrites at random, on a disk with room for so many more bytes: writes that were
/// acknowledged, and what ended them.
fn overwrite(kind: &'static dyn Kind, room: Option<u64>) -> (u64, BlockResult) {
    let (file, ssd) = opened(&blank());
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device) = (run.cx(), Seam::Device(ssd.clone()));
    let made = run.run(async move {
        let settings = match kind == &PFTL as &dyn Kind {
            true => volatile().to_settings(),
            false => kind.defaults(),
        };
        kind.create(&cx, device, &settings).await.expect("a target").above().block()
    });
    let dev = made.expect("no stall");
    file.limit(room.map(|room| file.len().expect("in memory") + room));
    let cx = run.cx();
    let done = run.run(async move {
        let capacity = dev.info().capacity;
        let mut rng = Rng::new(1);
        let mut buf = [0; 4096];
        for n in 0..6000 {
            let lba = Lba::new(rng.below(capacity));
            buf.fill(n as u8);
            let io = Io::of(BlockOp::Write, lba, 1, false, &mut buf);
            if let Err(e) = dev.start(&cx, io).await {
                return (n, Err(e));
            }
        }
        (6000, Ok(()))
    });
    assert_eq!(ssd.violations(), [], "no layer breaks a rule");
    assert_eq!(ssd.host_trouble().is_some(), room.is_some());
    for pu in 0..small().geometry().pus() {
        let blocks = ssd.bad_blocks(pu).expect("a PU").blocks;
        assert!(blocks.iter().all(|mark| *mark == 0), "nothing on the medium is bad");
    }
    done.expect("nothing hangs")
}

/// Both layers collect garbage on an image as they do in memory.
#[test]
fn layers_run_on_an_image() {
    for kind in LAYERS {
        assert_eq!(overwrite(kind, None), (6000, Ok(())), "{kind:?}");
    }
}

/// What a block SSD on an image has flushed outlives its host: whatever of the file's writes the host's
/// disk has lost that were not synced.
#[test]
fn a_flush_of_the_block_ssd_reaches_the_file() {
    let start = blank();
    let (file, ssd) = opened(&start);
    let device = ssd.clone();
    ran(1, |cx| async move {
        let ftl = Pftl::create(&cx, device, volatile()).expect("a target");
        let mut buf = [9; 4096];
        for lba in 0..40 {
            let lba = Lba::new(lba);
            let io = Io::of(BlockOp::Write, lba, 1, false, &mut buf);
            ftl.start(&cx, io).await.expect("a write");
        }
        let lba = Lba::new(0);
        let io = Io::of(BlockOp::Flush, lba, 0, false, &mut []);
        ftl.start(&cx, io).await.expect("a flush");
    });
    // The host goes down: the image is what was synced, and nothing else.
    let left = Moment::new(&start, &file.log(), file.log().len()).nth(0);
    drop(ssd);
    let (_, device) = opened(&left);
    let read = ran(2, |cx| async move {
        let ftl = Pftl::mount(&cx, device, volatile(), None).await.expect("a mount");
        let mut buf = [0; 40 * 4096];
        let lba = Lba::new(0);
        let io = Io::of(BlockOp::Read, lba, 40, false, &mut buf);
        ftl.start(&cx, io).await.expect("a read");
        buf.iter().all(|byte| *byte == 9)
    });
    assert!(read, "what was flushed is gone");
}

/// A create, a mount and a stop of pblk that have returned have happened, whatever of the file's writes the
/// host's disk loses then that were not synced: there is a target, its next life is the next one, its
/// next start is clean.
#[test]
fn what_pblk_began_and_ended_reaches_the_file() {
    let mut bytes = blank();
    let mut lives = Vec::new();
    for step in 0..4 {
        let (file, ssd) = opened(&bytes);
        let device = ssd.clone();
        let life = ran(step, |cx| async move {
            if step == 0 {
                Pblk::create(&cx, device, LogConfig::default()).await.expect("a target");
                return None;
            }
            let options = MountOptions::default();
            let dev = Pblk::mount(&cx, device, options).await.expect("a mount");
            if step == 2 {
                dev.stop(&cx).await.expect("a stop");
            }
            dev.recovery().map(|did| (did.generation, did.clean))
        });
        lives.extend(life);
        let synced = Moment::new(&bytes, &file.log(), file.log().len()).nth(0);
        drop(ssd);
        bytes = synced;
    }
    assert_eq!(lives, [(2, false), (3, false), (4, true)]);
}

/// A full disk is a failed program to a layer. It takes no more writes then; it does not hang, and
/// the drive is as good as before.
#[test]
fn a_full_disk_ends_in_read_only() {
    for kind in LAYERS {
        let (writes, end) = overwrite(kind, Some(2 << 20));
        assert!(matches!(end, Err(BlockError::ReadOnly(_))), "{kind:?}: {end:?}");
        assert!(writes > 100, "{writes}");
    }
}
