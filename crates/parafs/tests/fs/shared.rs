//! Small nodes that share pages of the log.
//!
//! Owns: images with many small files. Promises: what shares a page is whole or an error, file by
//! file; a page stays until its last node is gone. Never: damages pages of files.

use super::image::{Image, Left, NOW, get32, look, put32, wanted};
use flashlane_parafs::{Fs, FsError, Medium, Options, ROOT, Unread, check, repair};
use flashlane_rt::Cx;
use flashlane_testkit::Ram;
use flashlane_testkit::files::{
    FILE, create, make_on, make_unshared, mount, mount_with, now, ram, run, small, sound,
};
use std::collections::BTreeMap;
use std::sync::Arc;

fn body(i: u32, round: u8) -> Vec<u8> {
    (0..1000).map(|at| (i as u8).wrapping_mul(31) ^ (at as u8) ^ round).collect()
}

async fn write_files(cx: &Cx, fs: &Arc<Fs>, files: impl Iterator<Item = u32>, round: u8) {
    for i in files {
        let name = format!("file {i}");
        let ino = match fs.lookup(cx, ROOT, name.as_bytes()).await {
            Ok(found) => found.ino,
            Err(_) => create(cx, fs, ROOT, &name, FILE).await.ino,
        };
        fs.write(cx, ino, 0, &body(i, round), now(cx)).await.expect("there is room");
    }
}

async fn read_files(cx: &Cx, fs: &Arc<Fs>, files: impl Iterator<Item = u32>, round: u8) {
    for i in files {
        let ino = fs.lookup(cx, ROOT, format!("file {i}").as_bytes()).await.expect("there").ino;
        let mut found = vec![0; 1000];
        assert_eq!(fs.read(cx, ino, 0, &mut found).await, Ok(1000));
        assert!(found == body(i, round), "file {i}");
    }
}

/// Pages of a file system in use.
fn used(fs: &Fs) -> u64 {
    let space = fs.space();
    space.pages - space.free
}

/// 1,000 files of 1,000 bytes take a fifth of the pages; those that are left keep their pages when
/// others are written anew or deleted, and cleaning puts what is left together again.
#[test]
fn small_files_share_pages() {
    const FILES: u32 = 1000;
    let device = ram(64, 1);
    let made = device.clone();
    run(1, async move |cx| {
        make_on(&cx, Medium::Linear(made.clone()), 2).await.expect("it is large enough");
        let fs = mount(&cx, &made).await;
        let before = used(&fs);
        write_files(&cx, &fs, 0..FILES, 0).await;
        fs.sync(&cx).await.expect("there is room");
        let taken = used(&fs) - before;
        assert!(taken < u64::from(FILES) / 4, "{taken} pages for {FILES} files");
        fs.unmount(&cx).await.expect("there is room");
        let fs = mount(&cx, &made).await;
        read_files(&cx, &fs, 0..FILES, 0).await;
        // One of each page and more is left there.
        let fourth = |i: &u32| i.is_multiple_of(4);
        write_files(&cx, &fs, (0..FILES).filter(|i| !fourth(i)), 1).await;
        fs.sync(&cx).await.expect("there is room");
        read_files(&cx, &fs, (0..FILES).filter(fourth), 0).await;
        for i in (0..FILES).filter(|i| !fourth(i)) {
            fs.unlink(&cx, ROOT, format!("file {i}").as_bytes(), now(&cx)).await.expect("there");
        }
        fs.unmount(&cx).await.expect("there is room");
        fs.walk().expect("tables agree");
        let fs = mount(&cx, &made).await;
        read_files(&cx, &fs, (0..FILES).filter(fourth), 0).await;
        let left = used(&fs) - before;
        assert!(left < u64::from(FILES) / 12, "{left} pages for a fourth of {FILES} files");
        fs.unmount(&cx).await.expect("there is room");
        sound(&cx, &made).await;
    });
}

/// Makes a file of so many pages.
async fn fill(cx: &Cx, fs: &Arc<Fs>, pages: u64) {
    let full = create(cx, fs, ROOT, "full", FILE).await.ino;
    for page in 0..pages {
        fs.write(cx, full, page * 8192, &[1; 8192], now(cx)).await.expect("there is room");
    }
    fs.fsync(cx, full, false).await.expect("there is room");
}

/// fsyncs write each file to a page of its own. A full file system with such files goes on, because
/// cleaning puts them together.
#[test]
fn files_of_fsyncs_come_together_when_room_is_short() {
    let device = ram(40, 1);
    let made = device.clone();
    run(1, async move |cx| {
        let medium = Medium::Linear(made.clone());
        make_on(&cx, medium.clone(), 2).await.expect("it is large enough");
        let fs = mount_with(&cx, &medium, Options { dirty_nodes: 200, ..small() }).await;
        let pages = fs.space().pages;
        fill(&cx, &fs, pages * 6 / 10).await;
        let files = pages as u32 * 8 / 10;
        for i in 0..files {
            write_files(&cx, &fs, i..i + 1, 0).await;
            let name = format!("file {i}");
            let ino = fs.lookup(&cx, ROOT, name.as_bytes()).await.expect("there").ino;
            fs.fsync(&cx, ino, false).await.expect("there is room");
        }
        read_files(&cx, &fs, 0..files, 0).await;
        fs.unmount(&cx).await.expect("there is room");
        sound(&cx, &made).await;
    });
}

/// In a full file system a small file that would need a larger share of its page is not written,
/// and everything else goes on.
#[test]
fn a_node_that_grows_needs_room() {
    let device = ram(24, 1);
    let made = device.clone();
    run(1, async move |cx| {
        make_on(&cx, Medium::Linear(made.clone()), 2).await.expect("it is large enough");
        let fs = mount(&cx, &made).await;
        let left = 60;
        fill(&cx, &fs, fs.space().free - left).await;
        let mut files = Vec::new();
        let full = loop {
            let new = flashlane_parafs::New { mode: FILE, ..Default::default() };
            let name = format!("{}", files.len());
            match fs.create(&cx, ROOT, name.as_bytes(), &new, now(&cx)).await {
                Ok(file) => files.push(file.ino),
                Err(e) => break e,
            }
        };
        assert_eq!(full, FsError::NoSpace);
        fs.sync(&cx).await.expect("there is room for what was promised");
        let count = files.len() as u64;
        assert!(count > 10 * left, "{count} files on {left} pages");
        let mut grown = 0;
        for ino in &files {
            match fs.write(&cx, *ino, 0, &[7; 7000], now(&cx)).await {
                Ok(()) => grown += 1,
                Err(e) => assert_eq!(e, FsError::NoSpace),
            }
        }
        assert!(grown < left, "{grown} files have a page each");
        fs.sync(&cx).await.expect("there is room for what was promised");
        for i in 0..files.len() {
            let name = i.to_string();
            fs.unlink(&cx, ROOT, name.as_bytes(), now(&cx)).await.expect("it is there");
        }
        fs.unmount(&cx).await.expect("there is room");
        sound(&cx, &made).await;
    });
}

/// The nodes that share a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Files,
    Directories,
    /// Some of it are extended attributes, or nodes that name pages.
    Others,
}

/// A page of this kind, and the files whose nodes it has; not those whose nodes lie elsewhere by
/// now.
fn shared_page(image: &Image, wanted_kind: Kind) -> (u64, Vec<u32>) {
    let seen = wanted(Left::Shared).values().flatten();
    let dirs: Vec<u32> = seen.filter(|seen| seen.kind == 0o04).map(|seen| seen.ino).collect();
    let nids = (1..image.nids()).filter(|nid| image.nat(*nid).1 != 0);
    let mut pages: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for nid in nids {
        pages.entry(image.page_at(image.nat(nid).1)).or_default().push(nid);
    }
    let kind = |nids: &[u32]| match nids {
        nids if nids.iter().any(|nid| image.nat(*nid).0 != *nid) => Kind::Others,
        nids if nids.iter().any(|nid| dirs.contains(nid)) => Kind::Directories,
        _ => Kind::Files,
    };
    let mut found = pages.into_iter().filter(|(_, nids)| nids.len() > 1);
    let (at, nids) = found.find(|(_, nids)| kind(nids) == wanted_kind).expect("there is one");
    (at, nids.into_iter().map(|nid| image.nat(nid).0).collect())
}

/// What is there after a repair that gives up what can't be read.
async fn mended(cx: &Cx, image: &Image) -> (Vec<String>, super::image::Names) {
    let medium = || Medium::Linear(image.device.clone());
    let done = repair(cx, &medium(), NOW, Unread::GiveUp).await.expect("it is mended");
    assert_eq!(done.after.found, 0, "{:?}", done.after.problems);
    let fs = Fs::mount(cx, medium(), small()).await.expect("it is mounted").0;
    let found = look(cx, &fs).await;
    fs.unmount(cx).await.expect("there is room");
    assert_eq!(check(cx, &medium()).await.expect("it is read").found, 0);
    (done.before.problems, found)
}

/// All files but `lost` ones are as they were.
fn has_all_but(found: &super::image::Names, lost: &[u32]) {
    for (path, seen) in wanted(Left::Shared) {
        let Ok(seen) = seen else { continue };
        if lost.contains(&seen.ino) || path == "/" || path == "/dir/a" {
            continue;
        }
        let now = found.get(path).and_then(|now| now.as_ref().ok());
        assert!(now.is_some_and(|now| now.same(seen)), "{path}: {now:?}, not {seen:?}");
    }
}

/// A page that can't be read, or has a wrong bit, takes the files with it that share it, and no
/// other one: each of them is an error, the directory can be listed, and a repair says which are
/// lost.
#[test]
fn a_damaged_page_takes_its_own_nodes_only() {
    for is_lost in [true, false] {
        let image = Image::new(Left::Shared);
        let (at, files) = shared_page(&image, Kind::Files);
        match is_lost {
            true => image.device.lose(at),
            false => image.spoil(at, |page| page[700] ^= 4),
        }
        run(1, async move |cx| {
            let medium = Medium::Linear(image.device.clone());
            let fs = Fs::mount(&cx, medium.clone(), small()).await.expect("it is mounted").0;
            for (path, seen) in wanted(Left::Shared) {
                let Ok(seen) = seen else { continue };
                let read = fs.attributes(&cx, seen.ino).await;
                assert_eq!(read.is_err(), files.contains(&seen.ino), "{path}: {read:?}");
            }
            drop(fs);
            let report = check(&cx, &medium).await.expect("it is read");
            for file in &files {
                let said = format!("node {file} ");
                assert!(report.problems.iter().any(|p| p.starts_with(&said)), "{report:?}");
            }
            let (_, found) = mended(&cx, &image).await;
            has_all_but(&found, &files);
        });
    }
}

/// Where the node address table is lost, nodes are found in the pages that they share.
#[test]
fn nodes_are_found_in_shared_pages() {
    let image = Image::new(Left::Shared);
    image.spoil(image.table_at(true, 0), |sector| sector[40] ^= 1);
    // Entries that the checkpoint keeps beside the table are gone, too.
    let pack = image.pack(true);
    image.change_pack(&pack, |body| {
        let (length, first) = (body.len(), pack.nat[0].1 - 4);
        put32(body, first - 4, 0);
        drop(body.drain(first..first + 12 * pack.nat.len()));
        body.resize(length, 0);
    });
    run(1, async move |cx| {
        let (problems, found) = mended(&cx, &image).await;
        assert!(problems.iter().any(|p| p.contains("node address table")), "{problems:?}");
        has_all_but(&found, &[]);
    });
}

/// The segment table says of a page that more or less of it is in use than nodes have; the node
/// address table lists a share that is too small. Both are found and mended, and nothing is lost.
#[test]
fn shares_that_do_not_agree_are_mended() {
    for what in 0..3 {
        let image = Image::new(Left::Shared);
        let (at, files) = shared_page(&image, Kind::Files);
        let addr = (at - image.meta + 1) as u32;
        let (segment, page) = image.place(addr);
        match what {
            0 => image.change_segment(segment, |entry| entry[16 + page as usize] -= 1),
            1 => image.change_segment(segment, |entry| entry[16 + page as usize] = 1),
            _ => image.change_nat(files[0], |entry| {
                let file = get32(entry, 0) << 4 >> 4;
                put32(entry, 0, file | 11 << 28);
            }),
        }
        run(1, async move |cx| {
            let (problems, found) = mended(&cx, &image).await;
            assert!(!problems.is_empty(), "case {what}");
            has_all_but(&found, &[]);
        });
    }
}

/// Whoever computes the checksum of a shared page anew leads nobody out of it, whatever its table
/// says.
#[test]
fn a_table_that_lies_ends_in_an_error() {
    let sound = Image::new(Left::Shared);
    for kind in [Kind::Files, Kind::Directories, Kind::Others] {
        lie_in(&sound, shared_page(&sound, kind));
    }
}

fn lie_in(sound: &Image, (at, files): (u64, Vec<u32>)) {
    let count = files.len();
    println!("{files:?} of page {:?}", sound.place((at - sound.meta + 1) as u32));
    for place in (0..count).flat_map(|i| (0..4).map(move |word| 48 + 16 * (i + 1) - 4 * word)) {
        for value in [0, 1, u32::MAX, 0xffff, 0xffff_0000, 0x0100_0000 | ROOT, files[1]] {
            let image = Image::new(Left::Shared);
            println!("{value:#x} in the word {place} bytes before the end");
            let mut page = image.device.sector(at);
            put32(&mut page, 4096 - place, value);
            image.seal_node(&mut page);
            image.device.put(at, page);
            run(1, async move |cx| {
                let medium = Medium::Linear(image.device.clone());
                if let Ok((fs, _)) = Fs::mount(&cx, medium, small()).await {
                    look(&cx, &fs).await;
                    fs.walk().expect("tables agree");
                }
                mended(&cx, &image).await;
            });
        }
    }
}

/// A file system in which each node has a page of its own stays so.
#[test]
fn each_node_has_its_page_where_none_are_shared() {
    let device: Arc<Ram> = ram(64, 1);
    let made = device.clone();
    run(1, async move |cx| {
        make_unshared(&cx, Medium::Linear(made.clone()), 2).await.expect("it is large enough");
        let fs = mount(&cx, &made).await;
        let before = used(&fs);
        write_files(&cx, &fs, 0..500, 0).await;
        fs.unmount(&cx).await.expect("there is room");
        let fs = mount(&cx, &made).await;
        assert!(used(&fs) >= before + 500);
        read_files(&cx, &fs, 0..500, 0).await;
        fs.unmount(&cx).await.expect("there is room");
        sound(&cx, &made).await;
    });
}
