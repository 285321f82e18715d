//! A mounted ParaFS as programs of this machine meet it: the kernel's cache, a full file system,
//! times, and how a mount ends (`tests/parafs.sh` runs applications on one).
//!
//! Owns: tests of what the kernel and FUSE add, which the tests of the ParaFS crate can't see.
//! Promises: without FUSE each test is skipped, and says so. Never: works outside its own folder.

use crate::harness::{Folder, Holder, here, pause, says};
use crate::serve::stopped;
use flashlane_testkit::skip;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Makes a folder with a file system in `t.img` and a directory `mnt`. Returns nothing and notes a
/// skipped test if this machine has no FUSE.
fn folder() -> Option<Folder> {
    let h = Folder::of(here());
    h.run("drive create t.img --preset tiny --set geometry.chunks_per_pu=400").good();
    h.run("mkfs t.img").good();
    std::fs::create_dir(h.path("mnt")).expect("a folder");
    let mut probe = h.hold_until(h.command("mount t.img mnt --null-latency"), || true);
    while !is_mounted(&h) {
        if !probe.is_running() {
            skip("fuse", probe.output().err.trim());
            return None;
        }
        pause();
    }
    unmount(&h);
    probe.output().good();
    Some(h)
}

fn is_mounted(h: &Folder) -> bool {
    let list = std::fs::read_to_string("/proc/self/mountinfo").expect("it is everywhere");
    let at = format!(" {} ", h.path("mnt").canonicalize().unwrap_or(h.path("mnt")).display());
    list.lines().any(|line| line.contains(&at))
}

fn mounted(h: &Folder, more: &str) -> Holder {
    let line = format!("mount t.img mnt {more}");
    h.hold_until(h.command(&line), || is_mounted(h))
}

/// Unmounts `mnt` by the programs that a person uses.
fn unmount(h: &Folder) {
    let path = h.path("mnt");
    for program in ["fusermount3", "umount"] {
        let how: &[&str] = if program == "umount" { &[] } else { &["-u"] };
        let done = std::process::Command::new(program).args(how).arg(&path).output();
        if done.is_ok_and(|done| done.status.success()) {
            return;
        }
    }
    panic!("{} can't be unmounted", path.display());
}

/// Unmounts the file system, waits for the server, and has `fsck` find nothing wrong.
fn end(h: &Folder, mut server: Holder) {
    unmount(h);
    server.output().good();
    says(&h.run("fsck t.img").good().out, &["nothing wrong found"]);
}

fn opened(h: &Folder, name: &str) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.open(h.path(name)).expect("it opens")
}

/// The number of an error.
fn errno<T>(done: std::io::Result<T>) -> i32 {
    done.err().and_then(|e| e.raw_os_error()).expect("it is refused")
}

/// `cp` and `tar -S` ask where data is, and copy only that. The kernel does not look at its own
/// cache when it passes that question on.
#[test]
fn data_that_only_the_kernel_has_is_found() {
    let Some(h) = folder() else { return };
    for how in ["", " --writeback"] {
        let server = mounted(&h, &format!("--null-latency{how}"));
        let written = opened(&h, "mnt/written");
        written.set_len(4 << 20).expect("a hole");
        written.sync_all().expect("it is durable");
        written.write_all_at(&[1; 65_536], 1 << 20).expect("room");
        written.write_all_at(&[2; 100], 3 << 20).expect("room");
        let other = File::open(h.path("mnt/written")).expect("it is there");
        let found = |from| seek(&other, from).expect("it is there");
        assert_eq!(found(SeekFrom::Data(0)), 1 << 20, "{how}");
        assert_eq!(found(SeekFrom::Hole(1 << 20)), (1 << 20) + 65_536, "{how}");
        assert_eq!(found(SeekFrom::Data((1 << 20) + 65_536)), 3 << 20, "{how}");
        let mut some = [0; 100];
        other.read_exact_at(&mut some, 3 << 20).expect("it reads");
        assert_eq!(some, [2; 100], "{how}");
        drop((written, other));
        std::fs::remove_file(h.path("mnt/written")).expect("it was there");
        end(&h, server);
    }
}

/// On a full file system a program's own `write` fails. An `fallocate` with too little room takes
/// none of it, so a program can still write that much.
#[test]
fn a_full_file_system_is_told_by_the_write() {
    let Some(h) = folder() else { return };
    let server = mounted(&h, "--null-latency");
    let space = || rustix::fs::statvfs(h.path("mnt")).expect("it is mounted");
    let free = || space().f_bfree;
    let (file, before) = (opened(&h, "mnt/kept"), free());
    let keep = |bytes| fallocate(&file, FallocateFlags::empty(), 0, bytes);
    let no_space = Err(rustix::io::Errno::NOSPC);
    assert_eq!(keep(1 << 40), no_space);
    let rest = before * space().f_frsize;
    assert_eq!(keep(rest), no_space, "its nodes have no room");
    assert_eq!((free(), file.metadata().expect("attributes").len()), (before, 0));
    keep(rest / 2).expect("room");
    assert!(free() < before / 2 + 1);
    drop(file);
    let full = opened(&h, "mnt/full");
    let (piece, mut at) = (vec![7; 1 << 20], 0);
    let refused = loop {
        match full.write_at(&piece, at) {
            Ok(n) => at += n as u64,
            refused => break errno(refused),
        }
        assert!(at < rest, "it takes more than there is");
    };
    assert_eq!(refused, 28, "ENOSPC");
    assert!(at > rest / 2 - (4 << 20), "{at} of {rest}");
    full.sync_all().expect("what was taken has room");
    drop(full);
    std::fs::remove_file(h.path("mnt/full")).expect("it was there");
    std::fs::write(h.path("mnt/again"), &piece).expect("room");
    end(&h, server);
}

/// A hole of a tebibyte is found and punched as fast as a small one.
#[test]
fn a_large_hole_costs_nothing() {
    let Some(h) = folder() else { return };
    let server = mounted(&h, "--null-latency");
    let file = opened(&h, "mnt/sparse");
    const END: u64 = 1 << 40;
    file.set_len(END).expect("a hole");
    file.write_all_at(&[5; 65_536], END / 2).expect("room");
    for _ in 0..100 {
        assert_eq!(seek(&file, SeekFrom::Data(0)).expect("it is there"), END / 2);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 0, END / 2).expect("it is a hole");
        fallocate(&file, punch, END / 2 + 65_536, END / 2).expect("it is a hole");
    }
    let mut some = [0; 65_536];
    file.read_exact_at(&mut some, END / 2).expect("it reads");
    assert_eq!(some, [5; 65_536]);
    drop(file);
    end(&h, server);
}

/// Times of a file, as programs have seen them, are the same after a remount.
#[test]
fn times_survive_a_remount() {
    let Some(h) = folder() else { return };
    for how in ["", " --writeback"] {
        let server = mounted(&h, &format!("--null-latency{how}"));
        let times = || {
            let of = |name: &str| {
                let of = std::fs::metadata(h.path(name)).expect("it is there");
                (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec())
            };
            [of("mnt/a"), of("mnt/b"), of("mnt/d")]
        };
        std::fs::write(h.path("mnt/a"), b"a").expect("room");
        std::fs::write(h.path("mnt/b"), [1; 20_000]).expect("room");
        std::fs::create_dir(h.path("mnt/d")).expect("room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(h.path("mnt/b"), mode).expect("it is there");
        let before = times();
        (0..5).for_each(|_| pause());
        end(&h, server);
        let server = mounted(&h, &format!("--null-latency{how}"));
        assert_eq!(times(), before, "{how}");
        std::fs::remove_dir(h.path("mnt/d")).expect("it was there");
        end(&h, server);
    }
}

/// After SIGTERM a mount ends when the last file that is open on it is closed.
#[test]
fn a_mount_ends_when_the_last_file_is_closed() {
    let Some(h) = folder() else { return };
    let mut server = mounted(&h, "--null-latency");
    let file = opened(&h, "mnt/open");
    server.signal("-TERM");
    (0..20).for_each(|_| pause());
    assert!(server.is_running() && is_mounted(&h));
    file.write_all_at(b"late", 0).expect("it is still mounted");
    drop(file);
    says(&server.output().good().err, &["mnt stays mounted", "no file is open there"]);
    let server = mounted(&h, "--null-latency");
    assert_eq!(std::fs::read(h.path("mnt/open")).expect("it is there"), b"late");
    end(&h, server);
}

/// A stop unmounts only the mount that it stops. A tmpfs on the same directory below it stays.
#[test]
fn a_mount_leaves_what_is_below_it() {
    let Some(h) = folder() else { return };
    let tmpfs = ["-t", "tmpfs", "none"];
    let below = std::process::Command::new("mount").args(tmpfs).arg(h.path("mnt")).status();
    if !below.is_ok_and(|status| status.success()) {
        return skip("root", "a tmpfs can't be mounted here");
    }
    std::fs::write(h.path("mnt/below"), b"here").expect("room");
    let is_over = || std::fs::metadata(h.path("mnt/below")).is_err();
    let over = h.hold_until(h.command("mount t.img mnt --null-latency"), is_over);
    stopped(over);
    let there = std::fs::read(h.path("mnt/below")).unwrap_or_default();
    unmount(&h);
    assert_eq!(there, b"here");
}

/// `fsck` right after `umount` waits until the mount has closed the drive.
#[test]
fn a_drive_is_waited_for_that_is_being_closed() {
    let Some(h) = folder() else { return };
    // The device takes its time, and the mount has much to write before it closes the drive.
    let mut server = mounted(&h, "--commit 0s");
    std::fs::write(h.path("mnt/much"), vec![3; 2 << 20]).expect("room");
    unmount(&h);
    says(&h.run("fsck t.img").good().out, &["1 files", "nothing wrong found"]);
    server.output().good();
}

/// After a kill a die is dead. Nothing opens the file system but a repair that may give data up.
#[test]
fn a_die_that_is_dead_after_a_kill_is_given_up_by_a_repair() {
    let Some(h) = folder() else { return };
    // With 32 dies the in-place region has room to lose one.
    let create = "drive create t.img --preset parafs --set geometry.chunks_per_pu=64 --force";
    h.run(create).good();
    h.run("mkfs t.img").good();
    let server = mounted(&h, "--null-latency");
    for name in 0..20 {
        let file = opened(&h, &format!("mnt/{name}"));
        file.write_all_at(&[name; 30_000], 0).expect("room");
        file.sync_all().expect("it is durable");
    }
    server.kill();
    unmount(&h);
    let mut mended = 0;
    for pu in [0, 5, 17] {
        std::fs::copy(h.path("t.img"), h.path("c.img")).expect("room");
        h.run(&format!("drive inject c.img die_fail --at 'pu {pu}'")).good();
        for line in ["fsck c.img", "fsck c.img --repair"] {
            let dead = format!("PU {pu} is dead");
            h.run(line).refused(2, &[&dead, "`--accept-lost`", "`fsck --repair`"]);
        }
        let done = h.run("fsck c.img --repair --accept-lost");
        if done.code == 0 {
            says(&done.out, &["LOST:", "give up fsyncs that can't be read"]);
            says(&h.run("fsck c.img").good().out, &["nothing wrong found"]);
            mended += 1;
        }
    }
    assert!(mended > 1, "at most one die has both copies of the superblock");
}

/// A mount takes the options of mount(8), and refuses a misspelled one.
#[test]
fn a_mount_takes_the_options_of_mount() {
    let Some(h) = folder() else { return };
    let flags = || {
        let list = std::fs::read_to_string("/proc/self/mountinfo").expect("it is everywhere");
        let at = format!(" {} ", h.path("mnt").canonicalize().expect("it is there").display());
        let line = list.lines().find(|line| line.contains(&at)).expect("it is mounted").to_string();
        line.split(' ').nth(5).expect("its flags").to_string()
    };
    let server =
        mounted(&h, "--null-latency -o nosuid,nodev,noexec,noatime,nodiratime,x-systemd.automount");
    let has = flags();
    assert!(["rw", "nosuid", "nodev", "noexec"].iter().all(|f| has.contains(f)), "{has}");
    end(&h, server);
    let server = mounted(&h, "--null-latency -o defaults,ro -o exec");
    let has = flags();
    assert!(has.contains("ro") && !has.contains("noexec"), "{has}");
    assert_eq!(errno(File::create(h.path("mnt/new"))), 30, "EROFS");
    end(&h, server);
    h.run("mount t.img mnt -o nosiud").refused(2, &["did you mean `nosuid`"]);
}

/// The kernel enforces access control lists: user 12345 must not read a file that everybody else may.
#[test]
fn an_acl_is_enforced() {
    let Some(h) = folder() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("acl", "only root can ask as another user");
    }
    let server = mounted(&h, "--null-latency");
    std::fs::write(h.path("mnt/f"), b"mine").expect("room");
    // The way there is open to everybody: another user may not see the folder of the test.
    let open = |folder: &Path| {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("it is ours")
    };
    open(&h.path("mnt"));
    let as_user = |user: u32| {
        let at = File::open(h.path("mnt")).expect("it is there");
        let mut cat = std::process::Command::new("cat");
        cat.arg("/proc/self/fd/0/f").stdin(at).uid(user).gid(user);
        cat.output().expect("it runs").status.success()
    };
    assert!(as_user(12_345) && as_user(12_346));
    // Version 2: user, user 12345, group, mask, others.
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        entry(1, 6, none),
        entry(2, 0, 12_345),
        entry(4, 4, none),
        entry(16, 4, none),
        entry(32, 4, none),
    ];
    let acl = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(h.path("mnt/f"), "system.posix_acl_access", &acl, flags).expect("room");
    assert!(!as_user(12_345), "the list forbids it");
    assert!(as_user(12_346), "others may read it");
    end(&h, server);
}

/// A directory that is open outlives its name, also one that another directory takes the place of.
#[test]
fn an_open_directory_outlives_its_name() {
    let Some(h) = folder() else { return };
    let server = mounted(&h, "--null-latency");
    let made = ["removed", "replaced", "other"].map(|name| {
        let path = h.path(&format!("mnt/{name}"));
        std::fs::create_dir(&path).expect("room");
        (File::open(&path).expect("it is there"), path)
    });
    let [(removed, at), (replaced, there), (other, from)] = made;
    std::fs::remove_dir(at).expect("it is empty");
    std::fs::rename(from, there).expect("it is empty");
    for open in [&removed, &replaced] {
        assert_eq!(open.metadata().expect("it is open").nlink(), 0);
    }
    drop((removed, replaced, other));
    end(&h, server);
}

/// The `ioctl` that ends a file system at once: what was synced is there again, and no file hangs.
#[test]
fn a_mount_is_shut_down_at_once() {
    let Some(h) = folder() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("shutdown", "only root may do it");
    }
    let mut server = mounted(&h, "--null-latency --commit 0s");
    let (kept, lost) = (opened(&h, "mnt/kept"), opened(&h, "mnt/lost"));
    kept.write_all_at(b"durable", 0).expect("room");
    kept.sync_all().expect("it is durable");
    lost.write_all_at(b"not durable", 0).expect("room");
    let asked = std::process::Command::new("python3")
        .arg("-c")
        .arg("import fcntl, os, sys; fcntl.ioctl(os.open(sys.argv[1], 0), 0x8004587d, bytes(4))")
        .arg(h.path("mnt"))
        .output();
    let asked = match asked {
        Ok(asked) => asked,
        Err(_) => {
            end(&h, server);
            return skip("python3", "it asks for the ioctl");
        }
    };
    assert!(asked.status.success(), "{asked:?}");
    server.output();
    assert!(kept.metadata().is_err() && lost.write_all_at(b"x", 0).is_err());
    drop((kept, lost));
    unmount(&h);
    let server = mounted(&h, "--null-latency");
    assert_eq!(std::fs::read(h.path("mnt/kept")).expect("it was synced"), b"durable");
    assert!(!h.path("mnt/lost").exists(), "it was not synced");
    end(&h, server);
}

/// `drive inject power_cut` ends a mount with an error. Open files get errors and do not hang, and
/// the next mount has what was synced.
#[test]
fn the_power_is_cut_under_a_mount() {
    let Some(h) = folder() else { return };
    let mut server = mounted(&h, "--null-latency");
    let file = opened(&h, "mnt/kept");
    file.write_all_at(b"durable", 0).expect("room");
    file.sync_all().expect("it is durable");
    says(&h.run("drive inject t.img power_cut").good().out, &["the power is off"]);
    let done = server.output();
    assert_eq!(done.code, 2, "{done:?}");
    says(&done.err, &["t.img: the drive lost its power"]);
    assert!(!is_mounted(&h), "nothing is left there");
    assert!(file.write_at(b"more", 0).is_err() || file.sync_all().is_err(), "nobody answers");
    drop(file);
    let server = mounted(&h, "--null-latency");
    assert_eq!(std::fs::read(h.path("mnt/kept")).expect("it is there"), b"durable");
    end(&h, server);
}

/// The inode of one file can't be read: its directory is listed whole, and only that file is an
/// error.
#[test]
fn a_damaged_inode_leaves_its_directory_readable() {
    let Some(h) = folder() else { return };
    h.run("drive create b.img --preset tiny --set geometry.chunks_per_pu=128").good();
    h.run("lnvm create b.img -n fs -t pftl").good();
    h.run("mkfs b.img --target fs").good();
    let at = |h: &Folder| h.path("mnt");
    let mount = || h.hold_until(h.command("mount b.img mnt --null-latency"), || is_mounted(&h));
    let mut server = mount();
    std::fs::create_dir(at(&h).join("d")).expect("room");
    for i in 0..40 {
        std::fs::write(at(&h).join(format!("d/file_{i:02}")), format!("I am {i:02}"))
            .expect("room");
    }
    // Its inode is too large to share a page with others.
    std::fs::write(at(&h).join("d/needle"), [b'n'; 6000]).expect("room");
    unmount(&h);
    server.output().good();
    let door = h.command("serve b.img --null-latency --target fs --fuse-file disk");
    let server = h.hold_until(door, || File::open(h.path("disk")).is_ok());
    let disk = OpenOptions::new().read(true).write(true).open(h.path("disk")).expect("it opens");
    let mut all = vec![0; disk.metadata().expect("attributes").len() as usize];
    disk.read_exact_at(&mut all, 0).expect("it reads");
    let is_inode = |page: &[u8]| {
        page.windows(6).any(|text| text == b"needle") && page[8192 - 8..][..4] == *b"pNOD"
    };
    let mut struck = 0;
    for start in (0..all.len() - 8192).step_by(4096) {
        let page = &all[start..start + 8192];
        if is_inode(page) {
            disk.write_all_at(&[page[100] ^ 1], start as u64 + 100).expect("it writes");
            struck += 1;
        }
    }
    assert!(struck > 0, "the inode is there");
    drop(disk);
    stopped(server);
    let mut server = mount();
    let names = std::fs::read_dir(at(&h).join("d")).expect("it is there");
    let names: Vec<_> = names.map(|entry| entry.expect("it is listed").file_name()).collect();
    assert_eq!(names.len(), 41, "{names:?}");
    for name in &names {
        let read = std::fs::read(at(&h).join("d").join(name));
        assert_eq!(read.is_err(), name == "needle", "{name:?}");
    }
    unmount(&h);
    server.output().good();
}
