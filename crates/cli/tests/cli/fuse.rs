//! `flashlane serve --fuse-file`: a target as a file (`tests/fuse.sh` has loop devices and file systems on it).

use crate::harness::{Folder, Here, Holder, KINDS, drive, pause, says};
use crate::serve::{Client, SECTOR, made, pattern, stopped};
use flashlane_testkit::guest::{Guest, Shape};
use flashlane_testkit::skip;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

/// A folder with a drive.
fn folder(kind: &str) -> Folder {
    Folder::of(made(kind))
}

/// FUSE is there, and may be used; else the test is skipped.
fn is_here() -> bool {
    let h = folder("pblk");
    let mut probe = h.hold_until(h.command("serve a.img --fuse-file disk"), || true);
    while probe.is_running() {
        if is_mounted(&h) {
            stopped(probe);
            return true;
        }
        pause();
    }
    let done = probe.output();
    let known = ["no /dev/fuse", "mounting takes root", "does not mount there"];
    assert!(known.iter().any(|why| done.err.contains(why)), "{done:?}");
    assert!(!h.path("disk").exists(), "what was made is removed");
    skip("fuse", done.err.trim());
    false
}

fn is_mounted(h: &Here) -> bool {
    std::fs::metadata(h.path("disk")).is_ok_and(|there| there.len() > 0)
}

/// Nobody changes a file that is served read-only, root included.
#[test]
fn a_file_that_is_served_read_only_is_not_written() {
    if !is_here() {
        return;
    }
    let h = folder("pblk");
    let server = served(&h, "");
    opened(&h, OFlags::empty()).write_all_at(&pattern(1, 3), 0).expect("it writes");
    stopped(server);
    let server = served(&h, "--read-only");
    let mode = std::fs::metadata(h.path("disk")).expect("a file").permissions();
    assert!(mode.readonly());
    let refused = OpenOptions::new().read(true).write(true).open(h.path("disk"));
    assert_eq!(errno(refused), 30, "EROFS");
    let file = File::open(h.path("disk")).expect("it opens");
    assert!(read(&file, 0, 3 * SECTOR) == pattern(1, 3));
    drop(file);
    stopped(server);
}

/// The server's file is `disk`; `more` doors beside it.
fn served(h: &Here, more: &str) -> Holder {
    let line = format!("serve a.img --null-latency --fuse-file disk {more}");
    h.hold_until(h.command(&line), || is_mounted(h))
}

fn opened(h: &Here, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags.bits() as i32);
    options.open(h.path("disk")).expect("it opens")
}

fn read(file: &File, offset: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    file.read_exact_at(&mut data, offset).expect("it reads");
    data
}

/// The number of an error.
fn errno<T>(done: std::io::Result<T>) -> i32 {
    done.err().and_then(|e| e.raw_os_error()).expect("it is refused")
}

#[test]
fn every_type_of_target_is_a_file() {
    if !is_here() {
        return;
    }
    for kind in KINDS {
        let h = folder(kind);
        let server = served(&h, "--nbd unix:s");
        let mut client = Client::connect(&h.path("s"), "db");
        let file = opened(&h, OFlags::empty());
        let there = file.metadata().expect("attributes");
        let end = there.len();
        assert!(there.is_file() && end == client.bytes, "{kind}: {end}");
        assert_eq!((there.mode() & 0o7777, there.blksize()), (0o600, 4096), "{kind}");
        // Both doors show one device.
        let data = pattern(1, 300);
        file.write_all_at(&data, 8192).expect("it writes");
        assert!(client.read(8192, data.len()) == data, "{kind}: over NBD");
        assert_eq!(client.write(0, 4096, &data[..SECTOR]), 0);
        assert!(read(&file, 4096, SECTOR) == data[..SECTOR], "{kind}: what came over NBD");
        // Neither begins nor ends with a sector.
        let mut want = [&data[..SECTOR], &data].concat();
        want[1000..6000].fill(0x77);
        file.write_all_at(&[0x77; 5000], 4096 + 1000).expect("it writes");
        assert!(read(&file, 4096, want.len()) == want, "{kind}: a part of some sectors");
        assert!(read(&file, 4096 + 999, 7000) == want[999..7999], "{kind}");
        // A hole and zeros, whole sectors and not.
        for (mode, offset, bytes) in
            [(PUNCH, 4096, 81920), (PUNCH, 5000, 10000), (ZERO, 12288, 8192), (ZERO, 9999, 2)]
        {
            file.write_all_at(&want, 4096).expect("it writes");
            fallocate(&file, mode, offset, bytes).expect("it is done");
            let mut left = want.clone();
            left[offset as usize - 4096..][..bytes as usize].fill(0);
            assert!(read(&file, 4096, want.len()) == left, "{kind}: {mode:?} {offset} {bytes}");
        }
        fallocate(&file, FallocateFlags::empty(), 0, end).expect("it has all its room");
        fallocate(&file, PUNCH, end - 4096, 8192).expect("behind the end there is no content");
        // Refused, and it goes on.
        let nospace = rustix::io::Errno::NOSPC;
        assert_eq!(fallocate(&file, ZERO, end - 4096, 8192), Err(nospace), "{kind}");
        assert_eq!(fallocate(&file, FallocateFlags::empty(), end, 4096), Err(nospace), "{kind}");
        let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP), "{kind}");
        assert_eq!(errno(file.set_len(end - 1)), 1, "{kind}: it keeps its size");
        assert_eq!(errno(file.set_len(end + 1)), 1, "{kind}: it keeps its size");
        file.set_len(end).expect("the size that it has");
        assert_eq!(errno(file.write_at(&data, end)), 28, "{kind}: at the end");
        assert_eq!(file.write_at(&data, end - 4096).expect("what fits"), 4096, "{kind}");
        assert_eq!(file.read_at(&mut [0; 16], end).expect("the end"), 0, "{kind}");
        assert_eq!(file.read_at(&mut [0; 8192], end - 100).expect("the rest"), 100, "{kind}");
        // Verbs work while it is in use.
        h.run("drive smart a.img").good();
        drop((file, client));
        says(&stopped(server), &["db: ", " written, ", " discarded", "WA "]);
        assert!(!h.path("disk").exists(), "{kind}: a file that was made is removed");
        // A stop leaves everything there; an empty file is taken, and given back.
        h.file("disk", "");
        let server = served(&h, "");
        let file = opened(&h, OFlags::empty());
        want[9999 - 4096..][..2].fill(0);
        assert!(read(&file, 4096, want.len()) == want, "{kind}");
        drop(file);
        stopped(server);
        assert_eq!(std::fs::read(h.path("disk")).expect("it is there"), b"", "{kind}");
    }
}

/// What each door gives of the whole disk has one checksum, whichever door it was written through.
#[test]
fn three_doors_have_one_checksum() {
    if !is_here() {
        return;
    }
    let h = folder("qblk");
    let server = served(&h, "--nbd unix:s --vhost-user v");
    let mut client = Client::connect(&h.path("s"), "db");
    let file = opened(&h, OFlags::empty());
    let mut guest = Guest::connected(&h.path("v"), Shape { data: 2 << 20, ..Shape::default() })
        .expect("it is taken in");
    const PIECE: u64 = 1 << 20;
    let end = client.bytes;
    let pieces = end.div_ceil(PIECE);
    let span = |piece: u64| (piece * PIECE, PIECE.min(end - piece * PIECE) as usize);
    for (piece, (at, bytes)) in (0..pieces).map(|piece| (piece, span(piece))) {
        let data = pattern(piece as u8, bytes / SECTOR);
        match piece % 4 {
            0 => assert_eq!(client.write(0, at, &data), 0),
            1 => file.write_all_at(&data, at).expect("it writes"),
            2 => assert_eq!(guest.write(0, at, &data), 0),
            _ => {} // it was never written
        }
    }
    let mut sums = [0; 3];
    for (at, bytes) in (0..pieces).map(span) {
        let by = [client.read(at, bytes), read(&file, at, bytes), guest.read(0, at, bytes as u32)];
        for (sum, data) in sums.iter_mut().zip(&by) {
            *sum = flashlane_base::crc32c_append(*sum, data);
        }
    }
    assert_eq!((sums[0], sums[0]), (sums[1], sums[2]));
    drop((client, file, guest));
    stopped(server);
}

#[test]
fn targets_are_files_side_by_side() {
    if !is_here() {
        return;
    }
    let h = Folder::of(drive());
    h.run("lnvm create a.img -n db -t pblk -b 0 -e 1").good();
    h.run("lnvm create a.img -n log -t qblk -b 2 -e 3").good();
    let line = "serve a.img --null-latency --target db --target log --fuse-file db=disk --fuse-file log=log";
    let is_there = |name: &str| std::fs::metadata(h.path(name)).is_ok_and(|there| there.len() > 0);
    let server = h.hold_until(h.command(line), || is_there("disk") && is_there("log"));
    let files = ["disk", "log"].map(|name| {
        let options = OpenOptions::new().read(true).write(true).open(h.path(name));
        options.expect("it opens")
    });
    for (seed, file) in (1..).zip(&files) {
        file.write_all_at(&pattern(seed, 20), 4096).expect("it writes");
        file.sync_all().expect("it syncs");
    }
    for (seed, file) in (1..).zip(&files) {
        assert!(read(file, 4096, 20 * SECTOR) == pattern(seed, 20));
    }
    drop(files);
    says(&stopped(server), &["db: 80 KiB written", "log: 80 KiB written"]);
    assert!(!h.path("disk").exists() && !h.path("log").exists());
}

#[test]
fn what_was_synced_survives_a_kill() {
    if !is_here() {
        return;
    }
    for kind in KINDS {
        let h = folder(kind);
        // Which call it is the door sees, and no target.
        let ways: &[&str] = match kind {
            "pblk" => &["fsync", "fdatasync", "close", "O_DSYNC", "O_SYNC"],
            _ => &["fsync", "O_DSYNC"],
        };
        for (n, way) in ways.iter().copied().enumerate() {
            let server = served(&h, "");
            let flags = match way {
                "O_DSYNC" => OFlags::DSYNC,
                "O_SYNC" => OFlags::SYNC,
                _ => OFlags::empty(),
            };
            let (file, data, at) = (opened(&h, flags), pattern(n as u8, 3), n as u64 * 20480);
            file.write_all_at(&data, at + 40960).expect("it writes");
            match way {
                "fsync" => file.sync_all().expect("it syncs"),
                "fdatasync" => file.sync_data().expect("it syncs"),
                "close" => drop(file.try_clone().expect("another descriptor")),
                _ => {}
            }
            server.kill();
            assert_eq!(errno(file.sync_all()), 107, "{kind}: nobody is there any more");
            // Also while somebody still has the dead file open.
            h.run("drive check a.img").good();
            let server = served(&h, "");
            let file = opened(&h, OFlags::empty());
            assert!(read(&file, at + 40960, data.len()) == data, "{kind}: {way}");
            drop(file);
            stopped(server);
            assert!(h.path("disk").exists(), "it was there when the second server began");
        }
    }
}

#[test]
fn parts_of_a_sector_by_many_at_a_time() {
    if !is_here() {
        return;
    }
    let h = folder("pblk");
    let server = served(&h, "");
    const EACH: usize = 512;
    std::thread::scope(|scope| {
        for me in 0..8 {
            let file = opened(&h, OFlags::empty());
            scope.spawn(move || {
                for round in 0..100 {
                    let at = (round * 8 + me) * EACH;
                    file.write_all_at(&[me as u8 + 1; EACH], at as u64).expect("it writes");
                }
            });
        }
    });
    let whole = read(&opened(&h, OFlags::empty()), 0, 800 * EACH);
    let wrong = whole.chunks(EACH).zip((1..=8).cycle()).position(|(part, me)| part != [me; EACH]);
    assert_eq!(wrong, None, "the first part that another one has undone");
    stopped(server);
}

#[test]
fn a_file_that_is_in_use_does_not_keep_the_server() {
    if !is_here() {
        return;
    }
    let h = folder("pblk");
    let server = served(&h, "");
    let file = opened(&h, OFlags::empty());
    let data = pattern(5, 3);
    file.write_all_at(&data, 0).expect("it writes");
    file.sync_all().expect("it syncs");
    says(&stopped(server), &["disk was still in use", "what they had flushed is on the drive"]);
    assert!(!h.path("disk").exists(), "it is out of the tree");
    assert_eq!(errno(file.write_at(&data, 0)), 107, "it is over for who has it open");
    let server = served(&h, "");
    assert!(read(&opened(&h, OFlags::empty()), 0, data.len()) == data);
    stopped(server);
}

#[test]
fn files_that_can_t_be_had_are_said() {
    if !is_here() {
        return;
    }
    let h = folder("pblk");
    h.run("drive create b.img --preset tiny").good();
    h.run("lnvm create b.img -n other -t pblk").good();
    h.file("mine", "mine");
    std::fs::create_dir(h.path("folder")).expect("a folder");
    let before = h.files();
    for (name, why) in [
        ("mine", "4 bytes; name one that is empty"),
        ("folder", "this is a folder"),
        ("no/such/file", "No such file or directory"),
        ("/dev/null", "no regular file"),
        ("b.img", "bytes; name one that is empty"),
    ] {
        let line = format!("serve b.img --fuse-file {name}");
        h.run(&line).refused(2, &[&format!("fuse:{name}: "), why]);
    }
    assert_eq!(h.files(), before);
    let server = served(&h, "");
    h.run("serve b.img --fuse-file disk").refused(2, &["fuse:disk: ", "another server"]);
    // The drive is refused, and the file is given back.
    h.run("serve a.img --fuse-file other").refused(2, &["a.img"]);
    assert!(!h.path("other").exists());
    stopped(server);
    assert_eq!(h.files(), before);
    h.run("drive create c.img --preset tiny").good();
    h.run("lnvm create c.img -n open -t raw").good();
    h.run("serve c.img --fuse-file disk").refused(2, &["open", "no block device"]);
    assert!(!h.path("disk").exists());
}
