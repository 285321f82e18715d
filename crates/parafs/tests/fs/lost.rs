//! One structure that can't be read, and what is there without it.
//!
//! Owns: checkpoints and nodes of fsyncs that are lost. Promises: a mount says so, or goes on with what
//! was durable without it; what a mount refuses a repair mends. Never: looks into the file system.

use crate::image::{Image, NOW, contents, put32, ruin};
use crate::mounts::{End, create_durable, create_files, cut, has_files, life, life_on};
use crate::slow::Slow;
use flashlane_base::Lba;
use flashlane_ftl::block::BlockDev;
use flashlane_parafs::{Fs, FsError, Medium, ROOT, Unread, check, repair};
use flashlane_rt::Cx;
use flashlane_testkit::Ram;
use flashlane_testkit::files::{
    FILE, content, create, make_unshared, mount, mount_with, now, ram, run, small,
};
use std::sync::Arc;

/// Far enough for another node.
const FAR: u64 = 2000 * 4096;

/// The last checkpoint has no foot any more: a mount says so and what mends it, and that does.
fn lost_checkpoint_is_told(device: Arc<Ram>) {
    let image = Image::on(contents(device));
    image.spoil(image.foot(&image.pack(true)), |b| b[9] ^= 1);
    let device = image.device;
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let why = Fs::mount(&cx, medium(), small()).await.err().expect("it is refused").to_string();
        assert!(why.contains("is lost") && why.contains("`flashlane fsck --repair`"), "{why}");
        let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        assert!(done.before.found > 0 && done.after.found == 0, "{done:?}");
        let fs = mount_with(&cx, &medium(), small()).await;
        has_files(&cx, &fs, "a repair").await;
    });
}

/// Heads had gone on to other segments before that checkpoint, and to none behind it.
#[test]
fn a_lost_checkpoint_is_found_where_heads_had_gone() {
    let (device, ()) = life(1, End::PowerCut, async |cx, _, fs| {
        create_files(cx, &fs).await;
        fs.checkpoint(cx).await.expect("it is written");
        create(cx, &fs, ROOT, "later", FILE).await;
        let later = fs.lookup(cx, ROOT, b"later").await.expect("it is there").ino;
        fs.fsync(cx, later, false).await.expect("it is written");
    });
    lost_checkpoint_is_told(device);
}

/// The checkpoint before it says that all was unmounted.
#[test]
fn a_lost_checkpoint_of_a_mount_is_found() {
    let (device, ()) = life(1, End::PowerCut, async |cx, slow, fs| {
        create_files(cx, &fs).await;
        fs.unmount(cx).await.expect("it is written");
        let fs = mount_with(cx, &Medium::Linear(slow.clone()), small()).await;
        create_durable(cx, &fs, 100).await;
    });
    lost_checkpoint_is_told(device);
}

/// A sector of a checkpoint can't be read. Of the older one that stops nothing, where its head says that it is
/// older. The newer one is not left out.
#[test]
fn an_older_checkpoint_that_can_not_be_read_stops_no_mount() {
    let (device, ()) = life(1, End::PowerCut, async |cx, _, fs| {
        create_files(cx, &fs).await;
        for _ in 0..2 {
            create(cx, &fs, ROOT, "new", FILE).await;
            fs.checkpoint(cx).await.expect("it is written");
            fs.unlink(cx, ROOT, b"new", now(cx)).await.expect("it is there");
        }
        create_durable(cx, &fs, 100).await;
    });
    for (newest, sector) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let image = Image::on(contents(device.clone()));
        image.device.lose(image.pack(newest).at + sector);
        run(2, async move |cx| {
            let mounted = Fs::mount(&cx, Medium::Linear(image.device), small()).await;
            match mounted {
                Ok((fs, _)) if (newest, sector) == (false, 1) => {
                    has_files(&cx, &fs, "a checkpoint that is lost").await;
                    assert!(fs.lookup(&cx, ROOT, b"f100").await.is_ok(), "it was made durable");
                }
                Err(FsError::Io(_)) if (newest, sector) != (false, 1) => {}
                other => panic!("{newest} {sector}: {:?}", other.map(|(_, found)| found)),
            }
        });
    }
}

/// A sector of the window that nobody uses can't be read. A repair that is cut has kept what the others
/// name.
#[test]
fn what_rots_behind_the_window_loses_nothing() {
    // A repair that looks everywhere, which this one needn't, writes behind 60 ms.
    for us in (0..12_000).step_by(500).chain((55_000..75_000).step_by(150)) {
        let (device, ()) = life(us, End::PowerCut, async |cx, _, fs| create_files(cx, &fs).await);
        let window = Image::on(contents(device.clone())).area(b"pWIN");
        ruin(&device, vec![window[0] + 63]);
        let repaired =
            async |cx: &Cx, medium: Medium| drop(repair(cx, &medium, NOW, Unread::Refuse).await);
        cut(Slow::new(device.clone()), us, repaired);
        run(us, async move |cx| {
            let fs = mount(&cx, &device).await;
            has_files(&cx, &fs, &format!("a repair that was cut at {us} us")).await;
            fs.unmount(&cx).await.expect("it is written");
            let done =
                repair(&cx, &Medium::Linear(device), NOW, Unread::Refuse).await.expect("it is one");
            assert_eq!(done.after.problems, [""; 0]);
        });
    }
}

/// Where nodes of a file lie that an fsync of this number has written, and which of its nodes these are.
fn nodes_of(device: &Arc<Ram>, ino: u32, number: u32) -> Vec<(Lba, u32)> {
    let slow = Slow::new(device.clone());
    let sectors = (slow.log.get()..slow.ram.info().capacity).map(Lba::new);
    let node = |at: Lba| {
        let page = slow.ram.content(at);
        let word = |n: usize| u32::from_le_bytes(page[4048 + n..][..4].try_into().expect("four"));
        let is_its = word(40) == u32::from_le_bytes(*b"pNOD") && word(4) == ino;
        (is_its && word(12) == number).then(|| (at, word(8)))
    };
    sectors.filter_map(node).collect()
}

/// What is there when this can't be read.
fn mounted_without<T: 'static>(
    device: &Arc<Ram>,
    lost: Lba,
    look: impl AsyncFnOnce(&Cx, Arc<Fs>) -> T + 'static,
) -> T {
    let slow = Slow::new(device.clone());
    slow.lost.lock().push(lost);
    run(2, async move |cx| {
        let fs = mount_with(&cx, &Medium::Linear(slow), small()).await;
        has_files(&cx, &fs, "a node that is lost").await;
        look(&cx, fs).await
    })
}

/// The inode of an fsync that made a file can't be read, and a later one has none, as behind a cleaner that had
/// moved a node of it: the file is not there, and all others are.
#[test]
fn an_fsync_of_a_file_that_is_not_there_stops_no_mount() {
    let (device, f) = life(1, End::PowerCut, async |cx, _, fs| {
        let f = create(cx, &fs, ROOT, "f", FILE).await.ino;
        for byte in [1, 2] {
            fs.write(cx, f, FAR, &[byte; 4096], now(cx)).await.expect("room");
            fs.fsync(cx, f, false).await.expect("it is written");
        }
        create_files(cx, &fs).await;
        f
    });
    let image = Image::on(contents(device.clone()));
    for (at, ofs) in (1..=2).flat_map(|number| nodes_of(&device, f, number)) {
        if ofs == 0 {
            image.device.lose(at.get());
            continue;
        }
        let mut page = image.device.sector(at.get());
        // So many nodes it has.
        put32(&mut page, 4048 + 24, 1);
        image.seal_node(&mut page);
        image.device.put(at.get(), page);
    }
    run(2, async move |cx| {
        let fs = mount_with(&cx, &Medium::Linear(image.device), small()).await;
        has_files(&cx, &fs, "an inode that is lost").await;
        assert!(fs.lookup(&cx, ROOT, b"f").await.is_err(), "nothing says where it is");
    });
}

/// A node of an fsync can't be read, and a later fsync of the file does not have it: the file is as it was
/// before both.
#[test]
fn an_fsync_behind_one_that_is_lost_does_not_count() {
    let (device, f) = life(1, End::PowerCut, async |cx, _, fs| {
        let f = create(cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(cx, f, 0, &[1; 4096], now(cx)).await.expect("room");
        fs.sync(cx).await.expect("it is written");
        fs.write(cx, f, FAR, &[2; 4096], now(cx)).await.expect("room");
        fs.fsync(cx, f, false).await.expect("it is written");
        fs.write(cx, f, 0, &[3; 4096], now(cx)).await.expect("room");
        fs.fsync(cx, f, false).await.expect("it is written");
        create_files(cx, &fs).await;
        f
    });
    let of = |number| nodes_of(&device, f, number);
    assert!(of(1).len() == 2 && of(2).len() == 1, "{:?} {:?}", of(1), of(2));
    let (far, _) = of(1).into_iter().find(|(_, ofs)| *ofs > 0).expect("it has one");
    let found = mounted_without(&device, far, async |cx, fs| {
        let f = fs.lookup(cx, ROOT, b"f").await.expect("it is there").ino;
        content(cx, &fs, f).await
    });
    assert!(found == [1; 4096], "{} bytes, the first is {}", found.len(), found[0]);
}

/// The same where the later fsync has all that the lost one had: it counts.
#[test]
fn an_fsync_that_has_all_of_the_lost_one_counts() {
    let (device, f) = life(1, End::PowerCut, async |cx, _, fs| {
        let f = create(cx, &fs, ROOT, "f", FILE).await.ino;
        fs.sync(cx).await.expect("it is written");
        for byte in [1, 2] {
            for at in [0, FAR] {
                fs.write(cx, f, at, &[byte; 4096], now(cx)).await.expect("room");
            }
            fs.fsync(cx, f, false).await.expect("it is written");
        }
        create_files(cx, &fs).await;
        f
    });
    for (lost, _) in nodes_of(&device, f, 1) {
        let found = mounted_without(&device, lost, async |cx, fs| {
            let f = fs.lookup(cx, ROOT, b"f").await.expect("it is there").ino;
            content(cx, &fs, f).await
        });
        assert!(found.len() as u64 == FAR + 4096 && found[0] == 2, "{} bytes", found.len());
    }
}

/// A node of a file can't be read when the file is deleted, nor when all is unmounted: the file stays in the
/// list. That is no damage, and the next mount deletes it.
#[test]
fn what_an_unmount_can_not_delete_the_next_mount_does() {
    // The node must be alone in its page.
    let device = ram(12, 1);
    let medium = Medium::Linear(device.clone());
    run(1, async move |cx| make_unshared(&cx, medium, 1).await.expect("it is large enough"));
    let (device, f) = life_on(device, 1, End::Killed, async |cx, _, fs| {
        create_files(cx, &fs).await;
        let f = create(cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(cx, f, FAR, &[1; 4096], now(cx)).await.expect("room");
        fs.unmount(cx).await.expect("it is written");
        f
    });
    let (far, _) =
        nodes_of(&device, f, 0).into_iter().find(|(_, ofs)| *ofs > 0).expect("it has one");
    mounted_without(&device, far, async |cx, fs| {
        drop(fs.unlink(cx, ROOT, b"f", now(cx)).await);
        fs.unmount(cx).await.expect("all else is written");
    });
    run(3, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let report = check(&cx, &medium()).await.expect("it is one");
        assert_eq!(report.problems, [""; 0]);
        let listed = |note: &String| note.contains(&format!("file {f} is to be deleted"));
        assert!(report.notes.iter().any(listed), "{:?}", report.notes);
        let (fs, found) = Fs::mount(&cx, medium(), small()).await.expect("it is mounted");
        assert_eq!(found.orphans, 1);
        fs.unmount(&cx).await.expect("it is written");
        let report = check(&cx, &medium()).await.expect("it is one");
        assert_eq!((report.problems, report.notes), (vec![], vec![]));
    });
}

/// A block device that lost free sectors reports errors for them. After a cut a mount can't know that
/// no fsync wrote them, and is read-only. A repair that gives them up ends that for good.
#[test]
fn free_sectors_that_a_device_lost_stop_one_mount_only() {
    let (device, ()) = life(1, End::PowerCut, async |cx, _, fs| create_files(cx, &fs).await);
    let image = Image::on(contents(device.clone()));
    let log = Slow::new(device).log.get();
    // The end of each segment behind what was written.
    let is_blank = |at: &u64| image.device.sector(*at).iter().all(|byte| *byte == 0);
    for segment in (log..image.device.info().capacity).step_by(32) {
        let free = (segment..segment + 32).rev().take_while(is_blank);
        free.for_each(|at| image.device.lose(at));
    }
    let device = image.device;
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let found = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").1;
        assert!(found.read_only.is_some(), "{found:?}");
        let refused = repair(&cx, &medium(), NOW, Unread::Refuse).await;
        assert!(matches!(refused, Err(FsError::Unread(_))), "{refused:?}");
        repair(&cx, &medium(), NOW, Unread::GiveUp).await.expect("it is told to");
        for round in 0..2 {
            // Nobody unmounts it: the next mount looks behind the checkpoint.
            let (fs, found) = Fs::mount(&cx, medium(), small()).await.expect("it is mounted");
            assert_eq!(found.read_only, None, "mount {round}");
            has_files(&cx, &fs, "a repair").await;
            create_durable(&cx, &fs, 100 + round).await;
        }
    });
}
