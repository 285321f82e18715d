//! Checksums of the pages of files.
//!
//! Owns: other bytes than those that were written, planted in pages of files. Promises: whoever
//! reads such a page gets an error, and each other page as it was written; a scrub names it. Never:
//! looks at a file system without such checksums, but to see that it has none.

use crate::image::{Image, NOW, contents, get32, put32};
use flashlane_base::{Lba, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, Io};
use flashlane_parafs::{
    Depth, Fallocate, Fs, FsError, Medium, ROOT, Report, Unread, check, check_with, repair,
    repair_with,
};
use flashlane_rt::Cx;
use flashlane_testkit::Overlay;
use flashlane_testkit::files::{FILE, create, make_summed, make_unshared, now, ram, run, small};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Pages of each file: more than its inode and a direct node name.
const PAGES: u64 = 1_000;
/// Where pages of a word of the inode, and of a direct node, are looked at.
const SOME: [u64; 2] = [7, 800];

/// The bytes of page `index` of a file in its `version`.
fn page(file: u64, index: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(file << 40 | version << 32 | index);
    (0..SECTOR_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Files `0` and `1`, unmounted; made once.
fn base() -> Arc<Vec<u8>> {
    static BASE: OnceLock<Arc<Vec<u8>>> = OnceLock::new();
    let made = || {
        let device = ram(16, 3);
        let used = device.clone();
        run(3, async move |cx| {
            let medium = || Medium::Linear(used.clone());
            make_summed(&cx, medium(), 1).await.expect("it is large enough");
            let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
            for file in [0, 1] {
                let ino = create(&cx, &fs, ROOT, &file.to_string(), FILE).await.ino;
                for index in 0..PAGES {
                    write(&cx, &fs, ino, index, &page(file, index, 0)).await.expect("room");
                }
            }
            fs.sync(&cx).await.expect("it is written");
            // Of some pages there are older versions.
            for index in SOME {
                let ino = ino(&cx, &fs, 0).await;
                write(&cx, &fs, ino, index, &page(0, index, 1)).await.expect("room");
            }
            fs.unmount(&cx).await.expect("it is written");
        });
        contents(device)
    };
    BASE.get_or_init(made).clone()
}

async fn ino(cx: &Cx, fs: &Arc<Fs>, file: u64) -> u32 {
    fs.lookup(cx, ROOT, file.to_string().as_bytes()).await.expect("it is there").ino
}

async fn write(cx: &Cx, fs: &Arc<Fs>, ino: u32, at: u64, bytes: &[u8]) -> Result<(), FsError> {
    fs.write(cx, ino, at * SECTOR_BYTES as u64, bytes, now(cx)).await
}

async fn read(cx: &Cx, fs: &Arc<Fs>, ino: u32, index: u64) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; SECTOR_BYTES];
    fs.read(cx, ino, index * SECTOR_BYTES as u64, &mut bytes).await.map(|_| bytes)
}

/// The version of a page that counts.
fn version(file: u64, index: u64) -> u64 {
    u64::from(file == 0 && SOME.contains(&index))
}

/// The only sector that holds these bytes.
fn place_of(device: &Overlay, bytes: &[u8]) -> u64 {
    let mut found = (0..device.sectors()).filter(|at| device.sector(*at) == bytes);
    let place = found.next().expect("it was written");
    assert_eq!(found.next(), None, "it was written once");
    place
}

fn place(device: &Overlay, file: u64, index: u64) -> u64 {
    place_of(device, &page(file, index, version(file, index)))
}

fn flip(device: &Overlay, at: u64) {
    let mut bytes = device.sector(at);
    bytes[1234] ^= 0x10;
    device.put(at, bytes);
}

/// Reads all pages: these are errors that say which page it is, all others are as they were
/// written.
async fn compare(cx: &Cx, fs: &Arc<Fs>, bad: &BTreeSet<(u64, u64)>) {
    for file in [0, 1] {
        let ino = ino(cx, fs, file).await;
        for index in 0..PAGES {
            match (read(cx, fs, ino, index).await, bad.contains(&(file, index))) {
                (Ok(bytes), false) => {
                    assert!(bytes == page(file, index, version(file, index)), "{file} {index}");
                }
                (Err(e), true) => {
                    let said = format!("page {index} of file {ino}, at page ");
                    assert!(e.to_string().contains(&said) && e.errno() == 5, "{e}");
                }
                (Ok(_), true) => panic!("page {index} of file {file} is not what was written"),
                (Err(e), false) => panic!("page {index} of file {file}: {e}"),
            }
        }
    }
}

async fn scrub(cx: &Cx, device: &Arc<Overlay>) -> Report {
    let medium = Medium::Linear(device.clone());
    let report = check_with(cx, &medium, Depth::Contents, &|_, _, _| ()).await;
    report.expect("there is a file system")
}

/// Strikes, and reads all pages. A scrub finds as many.
fn strike(bad: impl IntoIterator<Item = (u64, u64)>, strike: impl FnOnce(&Overlay)) {
    let device = Arc::new(Overlay::new(base()));
    strike(&device);
    let bad: BTreeSet<(u64, u64)> = bad.into_iter().collect();
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let shallow = check(&cx, &medium()).await.expect("there is one");
        assert_eq!((shallow.found, shallow.contents_read), (0, 0), "{:?}", shallow.problems);
        let deep = scrub(&cx, &device).await;
        assert_eq!((deep.found, deep.contents_read), (bad.len() as u64, 2 * PAGES));
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        compare(&cx, &fs, &bad).await;
        fs.unmount(&cx).await.expect("it is written");
    });
}

#[test]
fn a_page_with_another_bit_is_an_error() {
    strike([], |_| ());
    strike(SOME.map(|index| (0, index)).into_iter().chain([(1, 0)]), |device| {
        SOME.iter().for_each(|index| flip(device, place(device, 0, *index)));
        flip(device, place(device, 1, 0));
    });
}

#[test]
fn pages_that_have_changed_places_are_errors() {
    strike([(0, 3), (0, 4), (0, 9), (1, 9), (0, 900), (1, 20)], |device| {
        for (one, other) in [((0, 3), (0, 4)), ((0, 9), (1, 9)), ((0, 900), (1, 20))] {
            let (one, other) = (place(device, one.0, one.1), place(device, other.0, other.1));
            let (a, b) = (device.sector(one), device.sector(other));
            device.put(one, b);
            device.put(other, a);
        }
    });
}

#[test]
fn an_older_version_of_a_page_is_an_error() {
    strike(SOME.map(|index| (0, index)), |device| {
        for index in SOME {
            let older = page(0, index, 0);
            place_of(device, &older);
            device.put(place(device, 0, index), older);
        }
    });
}

/// The places of an address in an inode, and of the checksum of its page.
fn word(slot: usize) -> [usize; 2] {
    [384 + 8 * slot, 384 + 8 * slot + 4]
}

/// A node that names another page of its file, with the checksum of that page.
#[test]
fn a_page_does_not_match_in_the_place_of_another_one() {
    let image = Image::on(base());
    let inode = run(1, {
        let device = image.device.clone();
        async move |cx| {
            let mounted = Fs::mount(&cx, Medium::Linear(device), small()).await;
            ino(&cx, &mounted.expect("it is mounted").0, 0).await
        }
    });
    let image = Image::on(base());
    image.change_node(inode, |node| {
        for (one, other) in word(3).into_iter().zip(word(4)) {
            let (a, b) = (get32(node, one), get32(node, other));
            assert!(a != 0 && b != 0, "{a} {b}");
            put32(node, one, b);
            put32(node, other, a);
        }
    });
    let device = image.device;
    run(1, async move |cx| {
        let mounted = Fs::mount(&cx, Medium::Linear(device), small()).await;
        compare(&cx, &mounted.expect("it is mounted").0, &[(0, 3), (0, 4)].into()).await;
    });
}

/// What takes a part of a page needs the rest of it; what replaces it, or takes it away, does not.
#[test]
fn a_part_of_such_a_page_is_not_written_and_all_of_it_is() {
    let device = Arc::new(Overlay::new(base()));
    (10..16).for_each(|index| flip(&device, place(&device, 0, index)));
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        let (ino, t, bytes) = (ino(&cx, &fs, 0).await, now(&cx), SECTOR_BYTES as u64);
        let part = fs.write(&cx, ino, 10 * bytes + 5, b"part", t).await;
        assert!(matches!(part, Err(FsError::Io(_))), "{part:?}");
        let part = (11 * bytes, 100);
        let part = fs.fallocate(&cx, ino, part, Fallocate::Punch, true, t).await;
        assert!(matches!(part, Err(FsError::Io(_))), "{part:?}");
        write(&cx, &fs, ino, 10, &page(0, 10, 0)).await.expect("all of it");
        let all = (11 * bytes, 2 * bytes);
        fs.fallocate(&cx, ino, all, Fallocate::Punch, true, t).await.expect("all of it");
        let zeros = (13 * bytes, bytes);
        fs.fallocate(&cx, ino, zeros, Fallocate::Zero, true, t).await.expect("all of it");
        fs.truncate(&cx, ino, 14 * bytes, t).await.expect("they are cut off");
        fs.unmount(&cx).await.expect("it is written");
        let deep = scrub(&cx, &device).await;
        assert_eq!(deep.problems, [""; 0]);
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        for index in 11..14 {
            assert_eq!(read(&cx, &fs, ino, index).await.expect("zeros"), [0; SECTOR_BYTES]);
        }
        for index in 0..11 {
            let there = read(&cx, &fs, ino, index).await.expect("it is whole");
            assert!(there == page(0, index, version(0, index)), "{index}");
        }
    });
}

/// The segment of such a page is emptied but for that page, which stays an error.
#[test]
fn cleaning_does_not_hide_damage() {
    let device = Arc::new(Overlay::new(base()));
    flip(&device, place(&device, 0, 100));
    let bad = BTreeSet::from([(0, 100)]);
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        let (a, b) = (ino(&cx, &fs, 0).await, ino(&cx, &fs, 1).await);
        // Of the segments of file 0 a few pages stay, so they are cleaned first.
        for index in (0..PAGES).filter(|index| index % 25 != 0) {
            write(&cx, &fs, a, index, &page(0, index, version(0, index))).await.expect("room");
        }
        let mut rng = Rng::new(9);
        for _ in 0..40 {
            // Any pages: no segment becomes empty by itself.
            for _ in 0..200 {
                let index = rng.below(PAGES);
                write(&cx, &fs, b, index, &page(1, index, 0)).await.expect("room");
            }
            fs.sync(&cx).await.expect("it is written");
        }
        assert!(fs.stats().moved_pages > 20, "{:?}", fs.stats());
        compare(&cx, &fs, &bad).await;
        fs.unmount(&cx).await.expect("it is written");
        let deep = scrub(&cx, &device).await;
        assert_eq!(deep.found, 1, "{:?}", deep.problems);
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        compare(&cx, &fs, &bad).await;
    });
}

/// An fsync brings checksums along, also of a page that was damaged before the mount.
#[test]
fn fsyncs_keep_checksums() {
    for damaged in [false, true] {
        let device = Arc::new(Overlay::new(base()));
        let used = device.clone();
        run(1, async move |cx| {
            let medium = Medium::Linear(used.clone());
            let fs = Fs::mount(&cx, medium, small()).await.expect("it is mounted").0;
            let ino = ino(&cx, &fs, 1).await;
            for index in SOME {
                write(&cx, &fs, ino, index, &page(1, index, 5)).await.expect("room");
            }
            fs.fsync(&cx, ino, false).await.expect("it is written");
            // The power goes: it is not unmounted.
        });
        if damaged {
            flip(&device, place_of(&device, &page(1, SOME[1], 5)));
        }
        run(1, async move |cx| {
            let medium = Medium::Linear(device.clone());
            let (fs, found) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
            assert_eq!(found.batches, 1);
            let ino = ino(&cx, &fs, 1).await;
            for index in 0..PAGES {
                let there = read(&cx, &fs, ino, index).await;
                if damaged && index == SOME[1] {
                    assert!(matches!(there, Err(FsError::Io(_))), "{there:?}");
                    continue;
                }
                let version = if SOME.contains(&index) { 5 } else { 0 };
                assert!(there.expect("it is whole") == page(1, index, version), "{index}");
            }
            fs.unmount(&cx).await.expect("it is written");
            assert_eq!(scrub(&cx, &device).await.found, u64::from(damaged));
        });
    }
}

/// Anything is done to a file, over mounts: what it holds matches.
#[test]
fn whatever_is_done_matches() {
    const BYTES: u64 = 900 * SECTOR_BYTES as u64;
    for seed in 0..3 {
        let device = Arc::new(Overlay::new(base()));
        run(seed, async move |cx| {
            let medium = || Medium::Linear(device.clone());
            let mut fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
            let ino = create(&cx, &fs, ROOT, "any", FILE).await.ino;
            let (mut rng, mut wanted, t) = (Rng::new(seed), Vec::new(), now(&cx));
            for step in 0..120 {
                let (at, count) = (rng.below(BYTES), 1 + rng.below(30_000));
                let bytes = vec![rng.below(255) as u8 + 1; count as usize];
                let (from, to) = (at as usize, (at + count) as usize);
                match rng.below(8) {
                    0..4 => {
                        fs.write(&cx, ino, at, &bytes, t).await.expect("room");
                        wanted.resize(wanted.len().max(to), 0);
                        wanted[from..to].copy_from_slice(&bytes);
                    }
                    4 => {
                        fs.truncate(&cx, ino, at, t).await.expect("room");
                        wanted.resize(from, 0);
                    }
                    what => {
                        let what = match what {
                            5 => Fallocate::Punch,
                            6 => Fallocate::Zero,
                            _ => Fallocate::Keep,
                        };
                        fs.fallocate(&cx, ino, (at, count), what, true, t).await.expect("room");
                        if what != Fallocate::Keep {
                            let end = wanted.len();
                            wanted[from.min(end)..to.min(end)].fill(0);
                        }
                    }
                }
                if step % 20 == 19 {
                    fs.unmount(&cx).await.expect("it is written");
                    assert_eq!(scrub(&cx, &device).await.problems, [""; 0]);
                    fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
                }
            }
            let mut there = vec![0; wanted.len()];
            let count = fs.read(&cx, ino, 0, &mut there).await.expect("it matches");
            assert!(count == wanted.len() && there == wanted);
        });
    }
}

/// A scrub names each page; a repair gives them up only if it may.
#[test]
fn a_repair_of_a_scrub_gives_pages_up_if_it_may() {
    let device = Arc::new(Overlay::new(base()));
    SOME.iter().for_each(|index| flip(&device, place(&device, 0, *index)));
    device.lose(place(&device, 1, 500));
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let deep = scrub(&cx, &device).await;
        assert!(deep.data_checksums && deep.found == 3 && deep.unread > 0, "{deep:?}");
        let named = |index: u64| {
            let said = format!("page {index} of file");
            deep.problems.iter().filter(|problem| problem.contains(&said)).count()
        };
        assert_eq!((named(SOME[0]), named(SOME[1]), named(500)), (1, 1, 1), "{:?}", deep.problems);
        assert_eq!(deep.lost.values().sum::<u64>(), 3, "{:?}", deep.lost);
        let before = device.contents();
        let by = async |unread| {
            let on = medium();
            repair_with(&cx, &on, NOW, unread, Depth::Contents, &|_, _, _| ()).await
        };
        let refused = by(Unread::Refuse).await;
        assert!(matches!(refused, Err(FsError::Unread(_))), "{refused:?}");
        // One that does not read them finds nothing to do.
        let shallow = repair(&cx, &medium(), NOW, Unread::GiveUp).await.expect("there is one");
        assert_eq!(shallow.before.found, 0);
        assert!(device.contents() == before, "nothing was written");
        let done = by(Unread::GiveUp).await.expect("it is mended");
        assert_eq!((done.before.found, done.after.found), (3, 0), "{:?}", done.after.problems);
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        for file in [0, 1] {
            let ino = ino(&cx, &fs, file).await;
            for index in 0..PAGES {
                let lost = [(0, SOME[0]), (0, SOME[1]), (1, 500)].contains(&(file, index));
                match read(&cx, &fs, ino, index).await {
                    Err(e) if lost => assert!(e.to_string().contains("gave it up"), "{e}"),
                    other => {
                        let bytes = other.expect("it is whole");
                        assert!(bytes == page(file, index, version(file, index)), "{file} {index}");
                    }
                }
            }
        }
        fs.unmount(&cx).await.expect("it is written");
        assert_eq!(scrub(&cx, &device).await.problems, [""; 0]);
    });
}

/// Without checksums it is major version 3, and a scrub finds only what can't be read.
#[test]
fn without_checksums_it_is_as_before() {
    for summed in [false, true] {
        let device = ram(12, 3);
        run(1, async move |cx| {
            let medium = || Medium::Linear(device.clone());
            match summed {
                true => make_summed(&cx, medium(), 1).await.expect("it is large enough"),
                false => make_unshared(&cx, medium(), 1).await.expect("it is large enough"),
            }
            let mut superblock = vec![0; SECTOR_BYTES];
            let io = Io::read(Lba::new(0), 1, &mut superblock);
            device.start(&cx, io).await.expect("it can be read");
            assert_eq!(get32(&superblock, 8), if summed { 4 } else { 3 });
            let deep = check_with(&cx, &medium(), Depth::Contents, &|_, _, _| ()).await;
            assert_eq!(deep.expect("there is one").data_checksums, summed);
        });
    }
}
