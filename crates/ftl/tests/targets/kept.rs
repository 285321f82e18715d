//! A target of each version of the host FTL's format is kept, and mounts for ever.
//!
//! `tests/data/pblk-v1.img.gz` is a drive with a pblk whose blocks are of version 1 (docs/FORMAT.md, section 1). It was
//! written by the program of then, in use when its power went, and is never written again.

use crate::prelude::*;
use std::io::{Read, Write};
use std::path::PathBuf;

fn kept(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let mut bytes = Vec::new();
    let packed = std::fs::File::open(path).expect("kept");
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("packed");
    bytes
}

#[derive(Clone, Copy)]
enum Step {
    Write(u64, u32, u8),
    Discard(u64),
    Flush,
}

/// What happened to it. It says what each sector holds.
fn story() -> Vec<Step> {
    let mut steps: Vec<Step> = (0..600).step_by(50).map(|lba| Step::Write(lba, 50, 1)).collect();
    let mut rng = Rng::new(3);
    for i in 0..120 {
        let written = Step::Write(rng.below(590), 3, 2 + i as u8);
        steps.extend([written, Step::Discard(400 + i), Step::Flush]);
    }
    steps
}

async fn ask(cx: &Cx, dev: &Pblk, step: Step) {
    let mut buf = Vec::new();
    let (op, lba, sectors) = match step {
        Step::Write(lba, sectors, version) => {
            buf = vec![version; sectors as usize * 4096];
            (BlockOp::Write, lba, sectors)
        }
        Step::Discard(lba) => (BlockOp::Discard, lba, 1),
        Step::Flush => (BlockOp::Flush, 0, 0),
    };
    let io = Io::of(op, Lba::new(lba), sectors, false, &mut buf);
    dev.start(cx, io).await.expect("it is healthy");
}

/// Writes such a drive to the folder of temporary files.
#[test]
#[ignore = "writes a file that is kept: by hand, when the format gets a version"]
fn write_it() {
    let spec = DeviceSpec::preset("tiny").expect("a preset").with_chunks_per_pu(40);
    let file = Arc::new(MemoryFile::default());
    let create = CreateImage { seed: 11, uuid: Some(*b"kept-pblk-format"), replace: false };
    Ssd::create_on(file.clone(), &spec, &create).expect("created");
    let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).expect("opened");
    ran(1, |cx| async move {
        let dev = Pblk::create(&cx, ssd, LogConfig::default()).await.expect("a target");
        for step in story() {
            ask(&cx, &dev, step).await;
        }
    });
    let path = std::env::temp_dir().join("pblk-of-this-version.img.gz");
    println!("{}", path.display());
    let out = std::fs::File::create(path).expect("created");
    let mut packed = flate2::write::GzEncoder::new(out, flate2::Compression::best());
    packed.write_all(&file.bytes()).expect("written");
    packed.finish().expect("written");
}

/// Major versions of the anchors that lie anywhere in a drive.
fn anchors(drive: &[u8]) -> Vec<u16> {
    let at = (0..drive.len() - 16).filter(|at| drive[*at..].starts_with(b"FLan"));
    let mut found: Vec<u16> =
        at.map(|at| u16::from_le_bytes([drive[at + 12], drive[at + 13]])).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// What version 1 wrote is read as it was flushed; the target goes on in version 2, and an older program refuses it
/// from then on.
#[test]
fn a_target_of_version_1_mounts() {
    let drive = kept("pblk-v1.img.gz");
    assert_eq!(anchors(&drive), [1]);
    let mut held = BTreeMap::new();
    for step in story() {
        match step {
            Step::Write(lba, n, version) => {
                held.extend((lba..lba + u64::from(n)).map(|lba| (lba, version)));
            }
            Step::Discard(lba) => drop(held.remove(&lba)),
            Step::Flush => {}
        }
    }
    let file = Arc::new(MemoryFile::new(drive));
    let held = Arc::new(held);
    for life in 0..2 {
        let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).expect("opened");
        let (device, held) = (ssd.clone(), held.clone());
        ran(life, |cx| async move {
            let dev = Pblk::mount(&cx, device, MountOptions::default()).await.expect("a mount");
            let did = dev.recovery().expect("mounted");
            assert_eq!((did.clean, did.astray, did.lost_units.len()), (life == 1, 0, 0));
            for lba in 0..700 {
                let mut buf = vec![0; 4096];
                let io = Io::of(BlockOp::Read, Lba::new(lba), 1, false, &mut buf);
                dev.start(&cx, io).await.expect("it can be read");
                let version = held.get(&lba).copied().unwrap_or(0);
                assert!(buf.iter().all(|byte| *byte == version), "life {life}: sector {lba}");
            }
            dev.stop(&cx).await.expect("a stop");
        });
        assert_eq!(ssd.violations(), []);
        ssd.close().expect("closed");
        drop(ssd);
        let now = anchors(&file.bytes());
        assert!(now.contains(&2), "life {life}: {now:?}");
    }
}
