//! Images on a real disk and in memory: what comes back, what is refused and how it is said.

use crate::common::*;
use flashlane_media::host::memory::FileOp;
use flashlane_ocssd::ssd::{FACTORY_BAD, ImagePlace};
use flashlane_ocssd::{CopyKind, copy_image, upgrade_image};
use std::path::Path;
use std::sync::atomic::AtomicU32;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("flashlane-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn spec() -> DeviceSpec {
    tiny(|s| s.geometry.mw_cunits = 0)
}

fn create(path: &Path) -> Result<(), ImageError> {
    Ssd::create_image(path, &spec(), &CreateImage::default())
}

fn open(path: &Path) -> Result<Arc<Ssd>, ImageError> {
    Ssd::open_image(path, &OpenImage::default())
}

fn read_only() -> OpenImage {
    OpenImage { read_only: true, ..OpenImage::default() }
}

fn said<T>(result: Result<T, ImageError>) -> String {
    result.err().expect("refused").to_string()
}

/// What was closed is there again: contents, states, wear, counters, clock, marks, target settings.
#[test]
fn a_closed_image_opens_as_it_was() {
    let folder = Folder::new("closed");
    let path = folder.file("a.img");
    let spec = tiny(|s| s.limits.factory_bad_ppm = 100_000);
    Ssd::create_image(&path, &spec, &CreateImage { seed: 5, ..CreateImage::default() }).unwrap();
    let in_memory = Ssd::new(&spec, SsdOptions { seed: 5, ..SsdOptions::default() }).unwrap();
    let ssd = open(&path).unwrap();
    assert!(ssd.traits().volatile && ssd.traits().content_bytes == 4096);
    let bench = Bench::new(ssd.clone());
    let good: Vec<u32> = (0..16).filter(|c| bench.info(1, *c).state == ChunkState::Free).collect();
    for pu in 0..4 {
        assert_eq!(ssd.bad_blocks(pu), in_memory.bad_blocks(pu), "the seed's factory marks");
    }
    assert!((0..4).any(|pu| ssd.bad_blocks(pu).unwrap().blocks.contains(&FACTORY_BAD)));
    bench.write_up_to(1, good[0], 64, 3);
    bench.write_up_to(1, good[1], 20, 4);
    bench.read(&[(1, good[0], 0, 64)]);
    bench.write_up_to(1, good[2], 64, 5);
    assert_eq!(bench.reset(1, good[2]), Status::Ok);
    ssd.set_targets(b"a table of targets").unwrap();
    ssd.close().unwrap();
    let before = (ssd.counters(), ssd.chunk_report(1, 0, 16), ssd.image_info().unwrap());
    assert!(ssd.is_read_only());
    let refused = bench.write(&[(1, good[1], 20, 4)], 9);
    assert_eq!(refused.status(0), Status::HostFault, "closed");
    drop((bench, ssd));

    let ssd = open(&path).unwrap();
    let info = ssd.image_info().unwrap();
    let bench = Bench::new(ssd.clone());
    assert_eq!(ssd.chunk_report(1, 0, 16), before.1);
    assert_eq!(ssd.counters().programmed, before.0.programmed);
    assert_eq!(ssd.counters().read_sectors, before.0.read_sectors);
    assert_eq!((info.clock, info.seed), (before.2.clock, 5));
    assert_eq!((info.power_cycles, info.unsafe_shutdowns), (2, 0));
    assert_eq!(ssd.targets(), b"a table of targets");
    for pu in 0..4 {
        assert_eq!(ssd.bad_blocks(pu), in_memory.bad_blocks(pu));
    }
    let got = bench.read(&[(1, good[0], 0, 64)]);
    assert!((0..64).all(|i| got.holds(i, 3)));
    let got = bench.read(&[(1, good[1], 0, 8)]);
    assert!((0..8).all(|i| got.holds(i, 4)));
    assert_eq!(bench.write(&[(1, good[1], 20, 4)], 6).failed, 0, "it goes on");
    drop((bench, ssd));
    // Not closed: as at the last commit, and counted.
    let ssd = open(&path).unwrap();
    assert_eq!(ssd.chunk_report(1, good[1], 1)[0].write_pointer, 20);
    Bench::new(ssd.clone()).write(&[(1, good[1], 20, 4)], 6);
    ssd.close().unwrap();
    drop(ssd);
    // One that was killed before it committed anything has left no trace.
    let ssd = open(&path).unwrap();
    let info = ssd.image_info().unwrap();
    assert_eq!((info.power_cycles, info.unsafe_shutdowns), (3, 0));
    let bench = Bench::new(ssd);
    bench.write(&[(1, good[1], 24, 4)], 6);
    assert_eq!(bench.flush(), Status::Ok);
    drop(bench);
    let info = open(&path).unwrap().image_info().unwrap();
    assert_eq!((info.power_cycles, info.unsafe_shutdowns), (4, 1), "killed after a flush");
}

/// A device in an image does in every respect what one in memory does, commands at random.
#[test]
fn an_image_behaves_like_memory() {
    let run = |dev: Arc<Ssd>| {
        let bench = Bench::new(dev);
        let mut rng = Rng::new(3);
        let mut seen = Vec::new();
        for fill in 1..200 {
            let (pu, chunk) = (rng.below(4) as u32, rng.below(3) as u32);
            let wp = bench.info(pu, chunk).write_pointer;
            let done = match rng.below(8) {
                0..5 => bench.write(&[(pu, chunk, wp.min(60), 4)], fill),
                5 => {
                    let got = bench.read(&[(pu, chunk, 0, 16), (pu, 2, 8, 4)]);
                    seen.push(format!("{:?}{:?}", got.data, got.oob));
                    got.done
                }
                6 => {
                    let pairs = [(0, 1, 0, 1), (pu, chunk, wp.min(60), 1)];
                    let list = |k| bench.at(&pairs.map(|(p, c, s, n)| (p, c, s + k, n)));
                    bench.plain(Op::Copy, (0..4).flat_map(list).collect(), Flags::default())
                }
                _ => bench.plain(Op::Reset, bench.at(&[(pu, chunk, 0, 1)]), Flags::default()),
            };
            seen.push(format!("{done:?}"));
        }
        seen
    };
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &spec(), &CreateImage { seed: 1, ..CreateImage::default() })
        .unwrap();
    let memory = run(crate::common::ssd(&spec(), crate::common::memory()));
    assert_eq!(run(open_on(file)), memory);
    let compact = SsdOptions { store: StoreKind::Compact, ..SsdOptions::default() };
    assert_eq!(run(crate::common::ssd(&spec(), compact)), memory);
    // With next to no memory everything different is in a file.
    let tight = SsdOptions { store: StoreKind::Compact, compact_cap: 0, ..SsdOptions::default() };
    assert_eq!(run(crate::common::ssd(&spec(), tight)), memory);
}

/// A full disk fails the program and nothing else; with room again the same write succeeds.
#[test]
fn a_full_disk_is_a_status() {
    let file = image_of(&spec());
    let (bench, ssd) = Bench::on(file.clone());
    bench.write(&[(0, 0, 0, 4)], 1);
    assert_eq!(bench.flush(), Status::Ok);
    file.limit(Some(file.len().unwrap()));
    // The chunk that has its room goes on; the one that needs room doesn't.
    let done = bench.write(&[(0, 0, 4, 4), (0, 1, 0, 8)], 2);
    let status: Vec<Status> = (0..12).map(|i| done.status(i)).collect();
    assert_eq!(status, [vec![Status::Ok; 4], vec![Status::HostFault; 8]].concat());
    assert!(ssd.host_trouble().expect("said").contains("cannot keep"));
    assert_eq!(bench.info(0, 1).state, ChunkState::Free, "not bad, and its pointer did not move");
    // A write that was on its way behind the one that the host did not take.
    let done = bench.write(&[(0, 1, 8, 4)], 2);
    assert!((0..4).all(|i| done.status(i) == Status::HostFault), "{done:?}");
    assert_eq!(ssd.violations(), [], "nobody broke a rule");
    file.limit(None);
    assert_eq!(bench.write(&[(0, 1, 0, 8)], 3).failed, 0);
    assert_eq!(bench.write(&[(0, 1, 16, 4)], 3).status(0), Status::OutOfOrder);
    assert!(!ssd.violations().is_empty(), "now its order counts again");
    assert!(bench.read(&[(0, 1, 0, 4)]).holds(0, 3));
    // A journal that can't be written fails the flush, which may be tried again.
    file.fail_after(1, ErrorKind::StorageFull);
    let flush = || bench.flush();
    assert_eq!(flush(), Status::HostFault);
    assert!(ssd.host_trouble().expect("said").contains("make room"), "{:?}", ssd.host_trouble());
    file.heal();
    assert_eq!(flush(), Status::Ok);
    let again = Ssd::open_on(Arc::new(MemoryFile::new(file.bytes())), &OpenImage::default());
    assert!(Bench::new(again.unwrap()).read(&[(0, 1, 0, 4)]).holds(0, 3));
    // After a sync that failed nothing is believed any more.
    bench.write(&[(0, 1, 8, 4)], 4);
    file.fail_after(0, ErrorKind::Other);
    assert_eq!(flush(), Status::HostFault);
    file.heal();
    assert_eq!(flush(), Status::HostFault, "for good");
    assert!(ssd.host_trouble().expect("said").contains("open the image again"));
}

/// With the writes behind: room shows at once, as before. What the host refuses later is told by the next flush and by
/// every write from then on, until the image is opened again; then it is as at its last flush.
#[test]
fn what_the_host_refuses_behind_a_write_is_told() {
    let file = image_of(&spec());
    let open = || Ssd::open_on(Arc::new(Behind::new(file.clone())), &OpenImage::default()).unwrap();
    let ssd = open();
    let bench = Bench::new(ssd.clone());
    let flush = |bench: &Bench| bench.flush();
    file.limit(Some(file.len().unwrap()));
    assert_eq!(bench.write(&[(0, 0, 0, 4)], 1).failed, 0b1111, "a full disk");
    file.limit(None);
    assert_eq!(bench.write(&[(0, 0, 0, 4)], 1).failed, 0);
    assert_eq!(flush(&bench), Status::Ok);
    assert_eq!(bench.write(&[(0, 1, 0, 4)], 2).failed, 0);
    assert_eq!(flush(&bench), Status::Ok);
    file.fail_after(0, ErrorKind::Other);
    assert_eq!(bench.write(&[(0, 0, 4, 4)], 3).failed, 0, "taken");
    assert_eq!(flush(&bench), Status::HostFault);
    file.heal();
    assert_eq!(flush(&bench), Status::HostFault, "for good");
    assert_eq!(bench.write(&[(0, 0, 8, 4)], 4).failed, 0b1111);
    assert!(ssd.host_trouble().expect("said").contains("an earlier write failed"));
    assert_eq!(bench.read(&[(0, 0, 4, 4)]).done.failed, 0b1111, "lost");
    assert!(bench.read(&[(0, 0, 0, 4)]).holds(0, 1) && bench.read(&[(0, 1, 0, 4)]).holds(0, 2));
    let bench = Bench::new(open());
    assert_eq!(bench.info(0, 0).write_pointer, 4);
    assert!(bench.read(&[(0, 0, 0, 4)]).holds(0, 1) && bench.read(&[(0, 1, 0, 4)]).holds(0, 2));
    assert_eq!(bench.write(&[(0, 0, 4, 4)], 5).failed, 0);
    assert_eq!(flush(&bench), Status::Ok);
}

/// Room that is made ahead for chunks to come goes back when the image is closed: it is as long as without.
#[test]
fn room_made_ahead_goes_back() {
    let close = |is_behind: bool| {
        let file = image_of(&spec());
        let host: Arc<dyn HostFile> = match is_behind {
            true => Arc::new(Behind::new(file.clone())),
            false => file.clone(),
        };
        let (bench, ssd) = Bench::on(host.clone());
        for chunk in 0..3 {
            assert_eq!(bench.write(&[(0, chunk, 0, 4)], 1).failed, 0);
        }
        host.drain().unwrap();
        let in_use = file.len().unwrap();
        ssd.close().unwrap();
        (in_use, file.len().unwrap())
    };
    let ((plain, _), (behind, closed)) = (close(false), close(true));
    assert!(behind > plain, "it is made");
    assert_eq!(closed, plain);
}

/// Of two who want to write one waits outside, and hears who is inside; readers share.
#[test]
fn an_image_has_one_holder() {
    let folder = Folder::new("held");
    let path = folder.file("a.img");
    create(&path).unwrap();
    let first = open(&path).unwrap();
    let mine = format!("in use by process {}", std::process::id());
    for again in [open(&path), Ssd::open_image(&path, &read_only())] {
        let says = said(again);
        assert!(says.contains(&mine) && says.contains("a.img"), "{says}");
    }
    assert!(said(copy_image(&path, &folder.file("b.img"), CopyKind::Clone)).contains(&mine));
    let replace = CreateImage { replace: true, ..CreateImage::default() };
    assert!(said(Ssd::create_image(&path, &spec(), &replace)).contains(&mine));
    first.close().unwrap();
    let readers = [0; 2].map(|_| Ssd::open_image(&path, &read_only()).unwrap());
    assert!(said(open(&path)).contains("in use"));
    let refused = Bench::new(readers[0].clone()).write(&[(0, 0, 0, 4)], 1);
    assert_eq!(refused.status(0), Status::HostFault);
    assert!(readers[0].host_trouble().unwrap().contains("reading only"));
    drop(readers);
    open(&path).unwrap();
}

/// Without a name nothing is durable, and with another one everything is.
#[test]
fn an_image_that_is_removed_in_use_is_noticed() {
    let folder = Folder::new("removed");
    let (path, moved) = (folder.file("a.img"), folder.file("b.img"));
    for (replaced, writes) in [(true, true), (false, true), (true, false), (false, false)] {
        create(&path).unwrap();
        let ssd = open(&path).unwrap();
        let bench = Bench::new(ssd.clone());
        bench.write(&[(0, 0, 0, 4)], 1);
        assert_eq!(bench.flush(), Status::Ok);
        assert_eq!(ssd.image_place(&path), ImagePlace::There);
        std::fs::rename(&path, &moved).unwrap();
        assert_eq!(ssd.image_place(&path), ImagePlace::Moved);
        bench.write(&[(0, 0, 4, 4)], 2);
        assert_eq!(bench.flush(), Status::Ok, "it has a name");
        assert_eq!(ssd.image_place(&moved), ImagePlace::There);
        match replaced {
            true => std::fs::write(&path, b"new").and_then(|()| std::fs::rename(&path, &moved)),
            false => std::fs::remove_file(&moved),
        }
        .unwrap();
        assert_eq!(ssd.image_place(&moved), ImagePlace::Removed);
        if writes {
            bench.write(&[(0, 0, 8, 4)], 3);
        }
        assert_eq!(bench.flush(), Status::HostFault, "{replaced} {writes}");
        assert!(ssd.host_trouble().unwrap().contains("removed"), "{replaced} {writes}");
        assert!(said(ssd.close()).contains("removed"), "{replaced} {writes}");
        let _ = std::fs::remove_file(&moved);
    }
}

/// A file is replaced only when that is asked for, and by a whole image or not at all.
#[test]
fn nothing_is_overwritten_unless_asked() {
    let folder = Folder::new("exists");
    let path = folder.file("a.img");
    std::fs::write(&path, b"precious").unwrap();
    assert!(said(create(&path)).contains("exists"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let replace = CreateImage { replace: true, ..CreateImage::default() };
    let nowhere = folder.file("no/such/folder.img");
    assert!(said(Ssd::create_image(&nowhere, &spec(), &replace)).contains("cannot create"));
    assert!(said(Ssd::create_image(&folder.0, &spec(), &replace)).contains("regular file"));
    Ssd::create_image(&path, &spec(), &replace).unwrap();
    open(&path).unwrap();
    // One that fails in the middle has not touched it.
    let before = std::fs::read(&path).unwrap();
    let too_long = tiny(|s| s.name = "x".repeat(20_000));
    let refused = said(Ssd::create_image(&path, &too_long, &replace));
    assert!(refused.contains("room"), "{refused}");
    assert!(std::fs::read(&path).unwrap() == before, "the old one is there, whole");
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left beside it: {left:?}");
}

/// What is no image, or a hurt one, is refused in words, and not touched.
#[test]
fn what_is_no_sound_image_is_refused_untouched() {
    let folder = Folder::new("refused");
    let good = folder.file("good.img");
    create(&good).unwrap();
    let ssd = open(&good).unwrap();
    Bench::new(ssd.clone()).write(&[(3, 15, 0, 4)], 1);
    ssd.close().unwrap();
    drop(ssd);
    let bytes = std::fs::read(&good).unwrap();
    let header = HEADER_BYTES as usize;
    let sealed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = bytes.clone();
        for copy in bytes[..2 * header].chunks_mut(header) {
            change(copy);
            let end = u32::from_le_bytes(copy[12..16].try_into().unwrap()) as usize;
            let crc = flashlane_base::crc32c(&copy[12..end]);
            copy[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    };
    let cases: [(&str, Vec<u8>); 9] = [
        ("it is empty", Vec::new()),
        ("not a drive image", b"#!/bin/sh\nexit 0\n".to_vec()),
        ("not a drive image", vec![0xff; 1 << 20]),
        ("neither copy of its header", bytes[..100].to_vec()),
        ("cut short", bytes[..2 * header].to_vec()),
        ("cut short", bytes[..bytes.len() - 1].to_vec()),
        ("format 4.2", sealed(&|copy| copy[16] = 4)),
        ("do not agree", sealed(&|copy| copy[80] ^= 1)),
        ("device spec", sealed(&|copy| copy[128] = b'?')),
    ];
    for (says, bytes) in cases {
        let path = folder.file("bad.img");
        std::fs::write(&path, &bytes).unwrap();
        let heard = said(open(&path));
        assert!(heard.contains(says) && heard.contains("bad.img"), "{says}: {heard}");
        assert!(std::fs::read(&path).unwrap() == bytes, "{says}: untouched");
    }
    assert!(said(open(&folder.0)).contains("directory"), "{}", said(open(&folder.0)));
    assert!(said(open(&folder.file("none.img"))).contains("No such file"));
    // A newer minor version is read, not written.
    std::fs::write(folder.file("newer.img"), sealed(&|copy| copy[18] = 3)).unwrap();
    let newer = open(&folder.file("newer.img")).unwrap();
    assert!(newer.is_read_only());
    assert!(Bench::new(newer.clone()).info(3, 15).write_pointer == 4);
    drop(newer);
    let upgraded = upgrade_image(&folder.file("newer.img")).unwrap_err().to_string();
    assert!(upgraded.contains("2.3") && upgraded.contains("newer.img"), "{upgraded}");
}

/// A bit turned over anywhere before the slots is found, or does not matter.
#[test]
fn no_flipped_bit_makes_another_device() {
    let file = image_of(&spec());
    let (bench, _) = Bench::on(file.clone());
    for chunk in 0..6 {
        bench.write(&[(0, chunk, 0, 4)], 1);
        assert_eq!(bench.flush(), Status::Ok);
    }
    let shown = |ssd: &Ssd| {
        let report: Vec<_> = (0..4).map(|pu| ssd.chunk_report(pu, 0, 16)).collect();
        format!("{report:?}{:?}{:?}", ssd.image_info(), ssd.targets())
    };
    let bytes = file.bytes();
    let open = |bytes: Vec<u8>| Ssd::open_on(Arc::new(MemoryFile::new(bytes)), &read_only());
    let whole = shown(&open(bytes.clone()).unwrap());
    let slots = bytes.len() - 6 * (64 * 4096 + 4096); // of 64 sectors each
    let mut rng = Rng::new(1);
    let (mut found, mut harmless) = (0, 0);
    // Every byte that says something, some of the many zeros.
    let said = |at: &usize| bytes[*at] != 0 || at.is_multiple_of(97);
    for at in (0..slots).filter(said).step_by(5) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << rng.below(8);
        match open(bytes) {
            Err(e) => {
                assert!(e.to_string().contains("damaged"), "byte {at}: {e}");
                found += 1;
            }
            Ok(ssd) => {
                assert_eq!(shown(&ssd), whole, "byte {at}");
                harmless += 1;
            }
        }
    }
    assert!(found > 500, "{found} found, {harmless} harmless");
}

/// Of 56 commits of a frame each any one is zeroed, or half of them at once: refused, with the place. The
/// format before the mark can't tell that the very last one is gone, and nothing else.
#[test]
fn a_commit_that_is_gone_is_refused() {
    let old = include_bytes!("../data/image-v1.1.img.gz");
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&old[..]), &mut unpacked).unwrap();
    let new = Arc::new(MemoryFile::default());
    Ssd::create_on(new.clone(), &spec(), &CreateImage::default()).unwrap();
    for (bytes, marked) in [(unpacked, false), (new.bytes(), true)] {
        let file = Arc::new(MemoryFile::new(bytes));
        let ssd = open_on(file.clone());
        let from = file.ops();
        (1..=56).for_each(|n| ssd.set_targets(&[n]).unwrap());
        let frames: Vec<u64> = file.log()[from..]
            .iter()
            .filter_map(|op| match op {
                FileOp::Write(at, bytes) if bytes.len() == 512 && *at != MARK_AT => Some(*at),
                _ => None,
            })
            .collect();
        assert!(frames.len() == 56, "{frames:?}");
        let without = |gone: &[u64]| {
            let mut bytes = file.bytes();
            gone.iter().for_each(|at| bytes[*at as usize..][..512].fill(0));
            let hurt = Arc::new(MemoryFile::new(bytes.clone()));
            let opened = Ssd::open_on(hurt.clone(), &OpenImage::default());
            assert!(opened.is_ok() || hurt.bytes() == bytes, "refused, and written to");
            opened
        };
        for (gone, n) in frames.iter().zip(1..) {
            match without(&[*gone]) {
                Ok(ssd) => assert!(n == 56 && !marked && ssd.targets() == [55], "{n}"),
                Err(e) => assert!(e.to_string().contains("damaged"), "{n}: {e}"),
            }
        }
        let says = said(without(&frames[20..48]));
        assert!(says.contains(&format!("ends at byte {}", frames[20])), "{says}");
    }
}

/// A snapshot keeps the uuid, a clone gets its own; both hold what was there, and holes.
#[test]
fn copies_hold_what_was_there() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new("copies");
    let [path, snapshot, clone] = ["a.img", "s.img", "c.img"].map(|name| folder.file(name));
    create(&path).unwrap();
    let ssd = open(&path).unwrap();
    let bench = Bench::new(ssd.clone());
    bench.write(&[(2, 3, 0, 8)], 9);
    ssd.copy_image_to(&snapshot, CopyKind::Snapshot).unwrap();
    bench.write(&[(2, 3, 8, 8)], 10);
    let uuid = ssd.image_info().unwrap().uuid;
    assert!(said(ssd.copy_image_to(&snapshot, CopyKind::Snapshot)).contains("exists"));
    ssd.close().unwrap();
    drop((bench, ssd));
    let original = std::fs::metadata(&path).unwrap().blocks() * 512;
    copy_image(&path, &clone, CopyKind::Clone).unwrap();
    for (path, end, same) in [(&snapshot, 8, true), (&clone, 16, false)] {
        let ssd = open(path).unwrap();
        assert_eq!(ssd.image_info().unwrap().uuid == uuid, same);
        let bench = Bench::new(ssd);
        assert_eq!(bench.info(2, 3).write_pointer, end);
        assert!(bench.read(&[(2, 3, 0, 8)]).holds(0, 9));
        let taken = std::fs::metadata(path).unwrap().blocks() * 512;
        assert!(taken <= original + (64 << 10), "{taken} bytes of {original}: holes were filled");
    }
}

/// An image of so many chunks that table and journal would take much room takes it as it is written
/// to. It is what a small one is: flushed content survives a kill, and rows that are lost are
/// damage.
#[test]
fn an_image_of_many_chunks_takes_room_as_it_is_written_to() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new("many");
    let path = folder.file("many.img");
    let spec = spec().with_chunks_per_pu(25_000);
    Ssd::create_image(&path, &spec, &CreateImage::default()).unwrap();
    let made = std::fs::metadata(&path).unwrap();
    let taken = made.blocks() * 512;
    assert!(made.len() > 20 << 20 && taken < 1 << 20, "{taken} bytes of {}", made.len());
    let ssd = open(&path).unwrap();
    assert_eq!(ssd.image_info().unwrap().version, (3, 0));
    let bench = Bench::new(ssd.clone());
    bench.write(&[(3, 24_999, 0, 8)], 9);
    assert_eq!(bench.flush(), Status::Ok);
    // Never flushed, and not closed.
    bench.write(&[(3, 24_999, 8, 8)], 10);
    drop((bench, ssd));
    let ssd = open(&path).unwrap();
    let bench = Bench::new(ssd.clone());
    let free = bench.info(0, 0);
    assert_eq!((free.state, free.erases, free.write_pointer), (ChunkState::Free, 0, 0));
    assert_eq!(bench.info(3, 24_999).write_pointer, 8);
    assert!(bench.read(&[(3, 24_999, 0, 8)]).holds(0, 9));
    assert_eq!(ssd.unsound_sectors(3, 24_999, 1), (0, Vec::new()));
    ssd.close().unwrap();
    drop((bench, ssd));
    assert_eq!(upgrade_image(&path).unwrap(), ((3, 0), (3, 0)));
    let taken = std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(taken < 2 << 20, "{taken} bytes");
    // The first die's random numbers: a hole would say that they are all zero.
    let layout = flashlane_ocssd::image::layout(&spec);
    let at = layout.table_at() + 64 * u64::from(layout.die_row(0));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at as usize..][..64].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let refused = said(open(&path));
    assert!(refused.contains("rows of its table are not those of commit"), "{refused}");
}

/// Target settings beyond the room there is are refused, and the old ones stay.
#[test]
fn target_settings_are_bounded() {
    let file = image_of(&spec());
    let ssd = open_on(file.clone());
    ssd.set_targets(&[7; 64 << 10]).unwrap();
    assert!(said(ssd.set_targets(&[8; (64 << 10) + 1])).contains("65536"));
    let again = Ssd::open_on(Arc::new(MemoryFile::new(file.bytes())), &read_only()).unwrap();
    assert_eq!(again.targets(), [7; 64 << 10]);
    assert!(said(again.set_targets(b"x")).contains("reading only"));
    let memory = crate::common::ssd(&spec(), crate::common::memory());
    assert!(said(memory.set_targets(b"x")).contains("memory"));
    let store = SsdOptions { store: StoreKind::File, ..SsdOptions::default() };
    let refused = Ssd::new(&spec(), store).err().expect("refused").to_string();
    assert!(refused.contains("image"), "{refused}");
}

/// A drive that is closed and opened in the middle goes on as one that never was: random numbers,
/// read counts and ages are where they were.
#[test]
fn errors_go_on_where_they_were() {
    let spec = tiny(|s| {
        s.geometry.mw_cunits = 0;
        s.cells.rated_erases = 4;
        s.ecc = Some(EccSpec {
            codeword_bytes: 1024,
            correctable_bits: 40,
            high_bits: 20,
            rber_fresh: 50_000_000,
            rber_worn: 100_000_000,
            rber_per_day: 20_000_000,
            rber_per_1000_reads: 900_000_000,
            retries: 2,
            retry_gain: 2,
            program_fail_ppm: 100_000,
            erase_fail_ppm: 100_000,
        });
    });
    let play = |bench: &Bench, reads_only: bool| {
        let mut seen = Vec::new();
        bench.run(|cx, _| async move { cx.sleep_until(cx.now() + Ns::from_secs(86_400)).await });
        for chunk in (0..if reads_only { 200 } else { 30 }).map(|round| round % 3) {
            let info = bench.info(0, chunk);
            let at = info.write_pointer;
            let open = matches!(info.state, ChunkState::Free | ChunkState::Open);
            seen.push(match (reads_only, open && at < 64) {
                (true, _) => String::new(),
                (_, true) => format!("{:?}", bench.write(&[(0, chunk, at, 32)], 7).status),
                (_, false) => format!("{:?}", bench.reset(0, chunk)),
            });
            let got = bench.read(&[(0, chunk, 0, 64)]);
            seen.push(format!("{:?}{}", got.done.status, flashlane_base::crc32c(&got.data)));
        }
        seen
    };
    let memory = crate::common::ssd(&spec, SsdOptions { seed: 9, ..crate::common::memory() });
    let bench = Bench::new(memory.clone());
    let parts = [false, false, true, true, false, false];
    let wanted = parts.map(|reads_only| play(&bench, reads_only));
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &spec, &CreateImage { seed: 9, ..CreateImage::default() })
        .unwrap();
    let mut counters = None;
    for (part, wanted) in (0..).zip(wanted) {
        let (bench, ssd) = Bench::on(file.clone());
        assert!(play(&bench, parts[part]) == wanted, "other errors in part {part}");
        ssd.close().unwrap();
        counters = Some(ssd.counters());
    }
    let (image, memory) = (counters.unwrap(), memory.counters());
    assert!(image.corrected_bits > 1000 && image.program_failures > 0);
    assert_eq!(image.corrected_bits, memory.corrected_bits);
    assert_eq!((image.programmed, image.erases), (memory.programmed, memory.erases));
}

/// A die that stopped working does not work again because the process was started again.
#[test]
fn a_dead_die_stays_dead() {
    let file = image_of(&spec());
    let plan = "[[fault]]\nkind = \"die_fail\"\nat = \"pu 2\"";
    let faults = FaultPlan::from_toml(plan).unwrap();
    let ssd = Ssd::open_on(file.clone(), &OpenImage { faults, ..OpenImage::default() }).unwrap();
    assert_eq!(Bench::new(ssd.clone()).write(&[(2, 0, 0, 4)], 1).status(0), Status::WriteFault);
    ssd.close().unwrap();
    let (bench, _) = Bench::on(file);
    assert_eq!(bench.info(2, 0).state, ChunkState::Offline);
    assert_eq!(bench.write(&[(2, 0, 0, 4)], 1).status(0), Status::WriteFault);
    assert_eq!(bench.write(&[(1, 0, 0, 4)], 1).failed, 0);
}

/// What a crash left in slots that nobody has is given back when the image is opened.
#[test]
fn what_a_crash_left_behind_is_given_back() {
    let file = image_of(&spec());
    let empty = file.len().unwrap();
    let (bench, _) = Bench::on(file.clone());
    (0..5).for_each(|chunk| drop(bench.write(&[(0, chunk, 0, 64)], 1)));
    assert!(file.len().unwrap() > empty + 5 * 64 * 4096);
    drop(bench);
    Ssd::open_on(file.clone(), &read_only()).unwrap();
    assert!(file.len().unwrap() > empty, "not by a reader");
    open_on(file.clone());
    assert_eq!(file.len().unwrap(), empty);
}

/// Chunks that are erased and written again without a flush take no more room than the bound says.
#[test]
fn rewriting_without_a_flush_is_bounded() {
    let file = image_of(&spec());
    let empty = file.len().unwrap();
    let bench = Bench::new(open_on(file.clone()));
    for _ in 0..300 {
        bench.write(&[(0, 0, 0, 64)], 1);
        assert_eq!(bench.reset(0, 0), Status::Ok);
    }
    let slots = (file.len().unwrap() - empty) / (64 * 4096 + 4096);
    assert!(slots <= 64 + 4 + 2, "{slots} slots for a chunk");
}

/// Writes a unit and its number, round after round, and says which numbers are durable.
#[test]
#[ignore = "the process that the next test kills"]
fn writes_until_it_is_killed() {
    let ssd = open(Path::new("a.img")).unwrap();
    let bench = Bench::new(ssd.clone());
    let first = ssd.targets().first().map_or(0, |n| *n);
    for n in first + 1..=200 {
        let (chunk, sector) = (n as u32 / 16 % 16, n as u32 % 16 * 4);
        if sector == 0 && bench.info(0, chunk).state == ChunkState::Closed {
            assert_eq!(bench.reset(0, chunk), Status::Ok);
        }
        let at = bench.info(0, chunk).write_pointer;
        assert_eq!(bench.write(&[(0, chunk, at, 4)], n).failed, 0);
        ssd.set_targets(&[n]).unwrap();
        println!("\ndurable {n}");
    }
}

/// `kill -9` at any moment costs nothing that was said to be durable.
#[test]
fn a_killed_process_loses_nothing_durable() {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new("killed");
    create(&folder.file("a.img")).unwrap();
    let mut last = 0;
    for lines in [1, 7, 20, 33] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "image::writes_until_it_is_killed", "--ignored", "--nocapture"])
            .current_dir(&folder.0)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = said.filter_map(|l| l.strip_prefix("durable ")?.parse::<u8>().ok());
        let mut heard: Vec<u8> = said.by_ref().take(lines).collect();
        child.kill().unwrap();
        heard.extend(said);
        child.wait().unwrap();
        let ssd = Ssd::open_image(&folder.file("a.img"), &read_only()).unwrap();
        let found = ssd.targets()[0];
        assert!(found >= *heard.last().unwrap() && *heard.last().unwrap() > last, "{heard:?}");
        last = *heard.last().unwrap();
        let bench = Bench::new(ssd);
        let written: u32 = (0..16).map(|chunk| bench.info(0, chunk).write_pointer / 4).sum();
        assert_eq!(written, found as u32, "the commit is of one moment");
        for n in 1..=found as u32 {
            // Chunk 0 takes numbers 1 to 15, the next ones 16 each.
            let sector = if n < 16 { n - 1 } else { n % 16 } * 4;
            assert!(bench.read(&[(0, n / 16, sector, 4)]).holds(3, n as u8), "{n}");
        }
    }
}

/// Copies a drive again and again.
#[test]
#[ignore = "the process that the next test kills"]
fn copies_until_it_is_killed() {
    loop {
        let _ = std::fs::remove_file("b.img");
        copy_image(Path::new("a.img"), Path::new("b.img"), CopyKind::Snapshot).unwrap();
    }
}

/// What a killed process has left of a copy goes with the next attempt at that name, and nothing else.
#[test]
fn what_a_killed_copy_left_behind_goes() {
    let folder = Folder::new("abandoned");
    create(&folder.file("a.img")).unwrap();
    let ssd = open(&folder.file("a.img")).unwrap();
    let bench = Bench::new(ssd.clone());
    (0..64).for_each(|n| drop(bench.write(&[(n / 16, n % 16, 0, 64)], 1)));
    ssd.close().unwrap();
    drop((bench, ssd));
    let abandoned = loop {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "image::copies_until_it_is_killed", "--ignored"])
            .current_dir(&folder.0)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let attempt = folder.file(&format!("b.img.flashlane-new-{}-0", child.id()));
        while !attempt.exists() {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if attempt.exists() {
            break attempt;
        }
    };
    let gone = abandoned.extension().unwrap().to_str().unwrap().to_string();
    // A living process, one that has its file locked, other names, other things.
    let stays = [
        "b.img.flashlane-new-1-0".into(),
        "b.img.flashlane-new-".into(),
        "b.img.flashlane-new-0007-0".into(),
        "b.img.new-4194305".into(),
        format!("a.img.{gone}"),
        format!("b.img.{gone}.old"),
        format!("b.img.{gone}0"),
        format!("b.img.{}", gone.replace("-0", "-1")),
        "b.img.flashlane-new-4194305-0".into(),
    ];
    stays.iter().for_each(|name| std::fs::write(folder.file(name), b"mine").unwrap());
    let locked = folder.file(&format!("b.img.{}", gone.replace("-0", "-1")));
    let locked = flashlane_media::host::DiskFile::open(&locked, true).unwrap();
    locked.lock(false).unwrap();
    let listed = folder.file("b.img.flashlane-new-4194305-0");
    std::fs::remove_file(&listed).unwrap();
    std::fs::create_dir(&listed).unwrap();
    let _ = std::fs::remove_file(folder.file("b.img"));
    copy_image(&folder.file("a.img"), &folder.file("b.img"), CopyKind::Snapshot).unwrap();
    assert!(!abandoned.exists(), "{abandoned:?}");
    assert!(stays.iter().all(|name| folder.file(name).exists()), "more than that is gone");
    open(&folder.file("b.img")).unwrap();
    // So with a create over what is there.
    std::fs::write(&abandoned, b"left").unwrap();
    let replace = CreateImage { replace: true, ..CreateImage::default() };
    Ssd::create_image(&folder.file("b.img"), &spec(), &replace).unwrap();
    assert!(!abandoned.exists() && stays.iter().all(|name| folder.file(name).exists()));
}

/// Cores that write, erase and flush beside each other: what each had flushed is there, and every
/// chunk is what its erases say.
#[test]
fn cores_flush_beside_each_other() {
    const CORES: u32 = 3;
    let fill = |erases: u32, sector: u32| ((erases * 16 + sector / 4) % 250 + 1) as u8;
    let file = image_of(&spec());
    let options = OpenImage { timing: false, ..OpenImage::default() };
    let ssd = Ssd::open_on(file.clone(), &options).unwrap();
    // Units that each core's last flush covered.
    let durable: [AtomicU32; CORES as usize] = Default::default();
    let shared = Arc::new((ssd, durable));
    Threads::new(CORES, 1).run(|cx| {
        let shared = shared.clone();
        async move {
            let (dev, pu) = (&*shared.0, cx.core().0);
            for n in 0..400 {
                let chunk = n / 16 % 3;
                let info = dev.chunk_report(pu, chunk, 1)[0];
                let at = |sector, n| crate::common::addrs(dev, &[(pu, chunk, sector, n)]);
                let mut wp = info.write_pointer;
                let mut erases = info.erases;
                let plain = async |op, addrs: &[Ppa]| {
                    let dev: &dyn Device = dev;
                    assert_eq!(dev.io(&cx, Request::plain(op, addrs)).await.failed, 0);
                };
                if info.state == ChunkState::Closed {
                    plain(Op::Reset, &at(0, 1)).await;
                    (wp, erases) = (0, erases + 1);
                }
                let done = crate::common::write(&cx, dev, &at(wp, 4), fill(erases, wp)).await;
                assert_eq!(done.failed, 0);
                if n % 7 == pu {
                    plain(Op::Flush, &[]).await;
                    shared.1[pu as usize].store(n + 1, Ordering::Relaxed);
                }
            }
        }
    });
    let again = Ssd::open_on(Arc::new(MemoryFile::new(file.bytes())), &options).unwrap();
    let bench = Bench::new(again);
    for pu in 0..CORES {
        let mut units = 0;
        for chunk in 0..3 {
            let info = bench.info(pu, chunk);
            units += info.erases * 16 + info.write_pointer / 4;
            for sector in (0..info.write_pointer).step_by(4) {
                let got = bench.read(&[(pu, chunk, sector, 4)]);
                assert!((0..4).all(|i| got.holds(i, fill(info.erases, sector))));
            }
        }
        let flushed = shared.1[pu as usize].load(Ordering::Relaxed);
        assert!(units >= flushed && flushed > 390, "{units} of {flushed}");
    }
}
