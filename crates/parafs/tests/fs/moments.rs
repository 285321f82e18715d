//! What only shows at one moment.

use crate::slow::{Slow, mount_slow};
use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::BlockDev;
use flashlane_parafs::{Fs, FsError, Medium, Options, ROOT, Rename};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Virtual};
use flashlane_testkit::Keep;
use flashlane_testkit::files::{
    DIR, FILE, content, create, make, make_unshared, mount, new, now, ram, run, small, sound,
};
use std::sync::Arc;

/// Far enough for another node.
const FAR: u64 = 2000 * 4096;

/// A file is overwritten at its start and behind what its inode names, and made durable; the power goes
/// so long after that was begun. What is there then: the start, and the far part.
fn cut_fsync(behind: Ns, seed: u64) {
    let device = ram(12, seed);
    let before = device.clone();
    run(seed, async move |cx| {
        make(&cx, &before, 1).await;
        let fs = mount(&cx, &before).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, 0, &[1; 8192], now(&cx)).await.expect("room");
        fs.sync(&cx).await.expect("it is written");
    });
    let clock = Virtual::new(1, seed, CostTable::zero());
    let (cx, theirs) = (clock.cx(), device.clone());
    let acked = clock.run(async move {
        let fs = mount(&cx, &theirs).await;
        let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
        let (writer, its) = (fs.clone(), cx.clone());
        let acked = Arc::new(Mutex::new(false));
        let told = acked.clone();
        writer.write(&its, f, 0, &[2; 8192], now(&its)).await.expect("room");
        writer.write(&its, f, FAR, &[3; 4096], now(&its)).await.expect("room");
        cx.spawn(async move {
            writer.fsync(&its, f, false).await.expect("it is written");
            *told.lock() = true;
        });
        cx.sleep(behind).await;
        *acked.lock()
    });
    let acked = acked.expect("it goes on");
    drop(clock);
    device.power_cut(Keep::Drawn(seed));
    run(seed, async move |cx| {
        let fs = mount(&cx, &device).await;
        let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there");
        let grown = f.size == FAR + 4096;
        assert!(grown || f.size == 8192 && !acked, "{} bytes, acknowledged: {acked}", f.size);
        // Nothing of a batch that was cut short comes back when the file grows.
        fs.truncate(&cx, f.ino, FAR + 4096, now(&cx)).await.expect("room");
        let (mut start, mut far) = ([0; 8192], [9; 4096]);
        fs.read(&cx, f.ino, 0, &mut start).await.expect("it is read");
        fs.read(&cx, f.ino, FAR, &mut far).await.expect("it is read");
        let wanted = if grown { (2, 3) } else { (1, 0) };
        assert_eq!((start, far), ([wanted.0; 8192], [wanted.1; 4096]), "behind {behind}");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

#[test]
fn an_fsync_that_is_cut_counts_whole_or_not_at_all() {
    for us in (0..240).step_by(6) {
        for seed in 0..12 {
            cut_fsync(Ns::from_us(us), us * 16 + seed);
        }
    }
}

/// A file that was long, and short, and is long again: its fsyncs have all three.
#[test]
fn what_was_cut_off_does_not_come_back() {
    let device = ram(12, 1);
    let before = device.clone();
    run(1, async move |cx| {
        make(&cx, &before, 1).await;
        let fs = mount(&cx, &before).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, FAR, &[3; 4096], now(&cx)).await.expect("room");
        fs.fsync(&cx, f, false).await.expect("it is written");
        fs.truncate(&cx, f, 5000, now(&cx)).await.expect("it is shorter");
        fs.truncate(&cx, f, FAR + 4096, now(&cx)).await.expect("it is longer");
        fs.fsync(&cx, f, false).await.expect("it is written");
    });
    device.power_cut(Keep::Oldest);
    run(2, async move |cx| {
        let fs = mount(&cx, &device).await;
        let f = fs.lookup(&cx, ROOT, b"f").await.expect("it was made durable").ino;
        let mut far = [9; 4096];
        assert_eq!(fs.read(&cx, f, FAR, &mut far).await, Ok(4096));
        assert_eq!(far, [0; 4096]);
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// A mount that keeps less beside the tables than the checkpoint did writes them at once, before it has
/// looked at any node.
#[test]
fn what_a_checkpoint_kept_beside_the_tables_is_not_lost() {
    run(1, async |cx| {
        let device = ram(24, 1);
        make(&cx, &device, 1).await;
        let medium = Medium::Linear(device.clone());
        let (fs, _) = Fs::mount(&cx, medium, Options::default()).await.expect("it is mounted");
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, 0, &[5; 1 << 20], now(&cx)).await.expect("room");
        fs.unmount(&cx).await.expect("it is written");
        for _ in 0..2 {
            let fs = mount(&cx, &device).await;
            fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &device).await;
        }
    });
}

/// The number of a deleted file goes to another one: a mount takes neither for the other.
#[test]
fn a_number_is_one_files_since_a_checkpoint() {
    let device = ram(7, 1);
    let before = device.clone();
    let name = run(1, async move |cx| {
        make(&cx, &before, 1).await;
        let fs = mount(&cx, &before).await;
        let a = create(&cx, &fs, ROOT, "a", FILE).await.ino;
        fs.write(&cx, a, 0, b"of a", now(&cx)).await.expect("room");
        fs.sync(&cx).await.expect("it is written");
        fs.unlink(&cx, ROOT, b"a", now(&cx)).await.expect("it is there");
        for i in 0.. {
            let name = format!("b{i}");
            let b = fs.create(&cx, ROOT, name.as_bytes(), &new(FILE), now(&cx)).await;
            let b = b.expect("numbers come back with a checkpoint").ino;
            if b == a {
                fs.write(&cx, b, 0, b"of b", now(&cx)).await.expect("room");
                fs.fsync(&cx, b, false).await.expect("it is written");
                return name;
            }
            fs.unlink(&cx, ROOT, name.as_bytes(), now(&cx)).await.expect("it is there");
        }
        unreachable!("numbers come round")
    });
    device.power_cut(Keep::Oldest);
    run(2, async move |cx| {
        let fs = mount(&cx, &device).await;
        let b = fs.lookup(&cx, ROOT, name.as_bytes()).await.expect("it was made durable");
        assert_eq!(content(&cx, &fs, b.ino).await, b"of b");
        assert!(fs.lookup(&cx, ROOT, b"a").await.is_err(), "its number is another file's");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// A directory goes, and a file gets its name: what had been in the directory is somewhere.
#[test]
fn a_name_of_a_directory_takes_nothing_along() {
    let device = ram(12, 1);
    let before = device.clone();
    run(1, async move |cx| {
        make(&cx, &before, 1).await;
        let fs = mount(&cx, &before).await;
        let [d, e] = [
            create(&cx, &fs, ROOT, "d", DIR).await.ino,
            create(&cx, &fs, ROOT, "e", DIR).await.ino,
        ];
        create(&cx, &fs, d, "x", FILE).await;
        fs.sync(&cx).await.expect("it is written");
        let renamed = fs.rename(&cx, (d, b"x"), (e, b"x"), Rename::Replace, now(&cx)).await;
        renamed.expect("it is there");
        fs.rmdir(&cx, ROOT, b"d", now(&cx)).await.expect("it is empty");
        let f = create(&cx, &fs, ROOT, "d", FILE).await.ino;
        fs.fsync(&cx, f, false).await.expect("it is written");
    });
    device.power_cut(Keep::Oldest);
    run(2, async move |cx| {
        let fs = mount(&cx, &device).await;
        assert!(fs.lookup(&cx, ROOT, b"d").await.is_ok(), "it was made durable");
        let e = fs.lookup(&cx, ROOT, b"e").await.expect("it is there").ino;
        assert!(fs.lookup(&cx, e, b"x").await.is_ok(), "x was durable, and was never deleted");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// Two fsyncs that a mount finds: the first one needs a node, the second one is of a file whose number
/// no checkpoint has seen.
#[test]
fn nodes_that_a_mount_makes_have_numbers_of_their_own() {
    let device = ram(12, 1);
    let before = device.clone();
    run(1, async move |cx| {
        make(&cx, &before, 1).await;
        let fs = mount(&cx, &before).await;
        let a = create(&cx, &fs, ROOT, "a", FILE).await.ino;
        fs.sync(&cx).await.expect("it is written");
        let b = create(&cx, &fs, ROOT, "b", FILE).await.ino;
        fs.write(&cx, a, FAR, &[3; 4096], now(&cx)).await.expect("room");
        fs.fsync(&cx, a, false).await.expect("it is written");
        fs.fsync(&cx, b, false).await.expect("it is written");
    });
    device.power_cut(Keep::Oldest);
    run(2, async move |cx| {
        let fs = mount(&cx, &device).await;
        let a = fs.lookup(&cx, ROOT, b"a").await.expect("it is there");
        assert_eq!(a.size, FAR + 4096);
        assert!(fs.lookup(&cx, ROOT, b"b").await.is_ok(), "it was made durable");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// One read of a mount fails, whichever it is: the mount says so, or finds what is durable. It does not
/// take an older checkpoint, and does not leave an fsync out.
#[test]
fn a_read_that_fails_hides_nothing() {
    hides_nothing(&["old", "f"], false);
    hides_nothing(&["old", "f"], true);
    // Nothing behind the checkpoint tells of it.
    hides_nothing(&["old"], false);
    hides_nothing(&["old"], true);
}

/// The last of these was made durable by an fsync, if there are two.
fn hides_nothing(names: &'static [&'static str], stays: bool) {
    let mut refused = 0;
    for reads in 0.. {
        let device = ram(7, 1);
        let before = device.clone();
        run(1, async move |cx| {
            make(&cx, &before, 1).await;
            let fs = mount(&cx, &before).await;
            create(&cx, &fs, ROOT, "old", FILE).await;
            fs.sync(&cx).await.expect("it is written");
            for name in &names[1..] {
                let f = create(&cx, &fs, ROOT, name, FILE).await.ino;
                fs.fsync(&cx, f, false).await.expect("it is written");
            }
        });
        device.power_cut(Keep::Oldest);
        let (was_read, was_refused) = run(2, async move |cx| {
            let slow = Slow::new(device);
            (*slow.unread.lock(), *slow.stays.lock()) = (Some(reads), stays);
            let medium = Medium::Linear(slow.clone());
            let first = Fs::mount(&cx, medium.clone(), small()).await;
            let refused = first.is_err();
            let was_read = slow.unread.lock().take().is_none();
            slow.lost.lock().clear();
            let fs = match first {
                Ok((fs, _)) => fs,
                Err(_) => Fs::mount(&cx, medium, small()).await.expect("it is mounted").0,
            };
            for name in names {
                let found = fs.lookup(&cx, ROOT, name.as_bytes()).await;
                assert!(found.is_ok(), "{name} is gone when read {reads} fails");
            }
            (was_read, refused)
        });
        if !was_read {
            assert!(reads > 60 && (refused > 2) == stays, "{reads} reads, {refused} were refused");
            return;
        }
        refused += u32::from(was_refused);
    }
}

/// The last page of a file goes with a checkpoint, and can't be written there: an fsync that comes
/// meanwhile does not name the place.
#[test]
fn an_fsync_names_no_page_that_a_checkpoint_could_not_write() {
    let mut failed = 0;
    for writes in 0..40 {
        let device = ram(12, 1);
        let before = device.clone();
        let done = run(1, async move |cx| {
            make(&cx, &before, 1).await;
            let (slow, fs) = mount_slow(&cx, before).await;
            let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
            fs.write(&cx, f, 0, &[9; 3 * 4096], now(&cx)).await.expect("room");
            fs.sync(&cx).await.expect("it is written");
            fs.truncate(&cx, f, 5000, now(&cx)).await.expect("it is shorter");
            *slow.fails.lock() = Some(writes);
            let (other, theirs) = (fs.clone(), cx.clone());
            cx.spawn(async move { drop(other.checkpoint(&theirs).await) });
            cx.sleep(Ns::from_us(1)).await;
            let done = fs.fsync(&cx, f, false).await;
            (done.is_ok(), slow.fails.lock().is_none())
        });
        failed += u32::from(done == (true, true));
        device.power_cut(Keep::Oldest);
        run(2, async move |cx| {
            let fs = mount(&cx, &device).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            let all = content(&cx, &fs, f).await;
            assert!(all.iter().all(|b| *b == 9), "write {writes} failed");
            assert!(all.len() == 5000 || !done.0, "{} bytes, write {writes} failed", all.len());
            fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &device).await;
        });
    }
    assert!(failed > 1, "{failed} writes failed");
}

/// Nodes of a file that is cut short can't be read: what was behind its new end is not in it when it is
/// long again, in this life or the next.
#[test]
fn a_cut_that_fails_brings_nothing_back() {
    let mut failed = 0;
    for reads in 0.. {
        let device = ram(24, 1);
        let (before, after) = (device.clone(), device.clone());
        run(1, async move |cx| {
            make(&cx, &before, 1).await;
            let fs = mount(&cx, &before).await;
            let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
            for page in (0..3000).step_by(100) {
                fs.write(&cx, f, page * 4096, &[7; 4096], now(&cx)).await.expect("room");
            }
            fs.unmount(&cx).await.expect("it is written");
        });
        let (was_read, was_cut) = run(2, async move |cx| {
            let (slow, fs) = mount_slow(&cx, device).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            *slow.unread.lock() = Some(reads);
            let cut = fs.truncate(&cx, f, 1000, now(&cx)).await;
            let was_read = slow.unread.lock().take().is_none();
            let size = fs.attributes(&cx, f).await.expect("it is there").size;
            if size > 1000 {
                // It has not begun.
                assert!(cut.is_err());
                return (was_read, false);
            }
            let grown = fs.truncate(&cx, f, 3000 * 4096, now(&cx)).await;
            assert!(cut.is_err() || grown.is_ok(), "{cut:?}, {grown:?}");
            let mut all = vec![1; 3000 * 4096];
            let n = fs.read(&cx, f, 0, &mut all).await.expect("it is read");
            assert!(n <= 1000 || all[1000..n].iter().all(|b| *b == 0), "{cut:?}, {grown:?}");
            fs.unmount(&cx).await.expect("it is written");
            (was_read, true)
        });
        if !was_cut {
            continue;
        }
        failed += u32::from(was_read);
        run(3, async move |cx| {
            let fs = mount(&cx, &after).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            fs.truncate(&cx, f, 3000 * 4096, now(&cx)).await.expect("there is room");
            let mut all = vec![1; 3000 * 4096];
            fs.read(&cx, f, 0, &mut all).await.expect("it is read");
            assert!(all[4096..].iter().all(|b| *b == 0), "read {reads} failed");
            fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &after).await;
        });
        if !was_read {
            assert!(failed > 1, "{failed} reads failed");
            return;
        }
    }
}

/// An fsync's node fails while a checkpoint is written that has it.
#[test]
fn a_checkpoint_names_no_node_that_failed() {
    for writes in 0..6 {
        let device = ram(12, 1);
        let before = device.clone();
        run(writes, async move |cx| {
            make(&cx, &before, 1).await;
            let (slow, fs) = mount_slow(&cx, before).await;
            let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
            fs.write(&cx, f, 0, &[1; 8192], now(&cx)).await.expect("room");
            fs.sync(&cx).await.expect("it is written");
            fs.write(&cx, f, 0, &[2; 8192], now(&cx)).await.expect("room");
            *slow.fails.lock() = Some(writes as u32);
            let (writer, its) = (fs.clone(), cx.clone());
            let synced = cx.spawn_join(async move { writer.fsync(&its, f, false).await });
            cx.sleep(Ns::from_us(150)).await;
            create(&cx, &fs, ROOT, "g", FILE).await;
            fs.checkpoint(&cx).await.expect("another place will do");
            // Whether the fsync is done or not.
            drop(synced);
        });
        device.power_cut(Keep::Oldest);
        run(2, async move |cx| {
            sound(&cx, &device).await;
            let fs = mount(&cx, &device).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            let found = content(&cx, &fs, f).await;
            let old_or_new = |page: &[u8]| page == [1; 4096] || page == [2; 4096];
            assert!(found.len() == 8192 && found.chunks(4096).all(old_or_new), "write {writes}");
            assert!(fs.lookup(&cx, ROOT, b"g").await.is_ok());
        });
    }
}

/// Others move the page that is being read, and its place goes to somebody else.
#[test]
fn a_read_that_takes_long_gives_what_the_file_holds() {
    run(1, async |cx| {
        let device = ram(7, 1);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, 0, &[7; 12_288], now(&cx)).await.expect("room");
        let other = create(&cx, &fs, ROOT, "other", FILE).await.ino;
        fs.unmount(&cx).await.expect("it is written");
        let (slow, fs) = mount_slow(&cx, device).await;
        // The nodes are there, and the page is not.
        fs.attributes(&cx, f).await.expect("it is there");
        let mut last = [0; 10];
        fs.read(&cx, f, 8192, &mut last).await.expect("it is read");
        *slow.next.lock() = true;
        let (reader, its) = (fs.clone(), cx.clone());
        let read = cx.spawn_join(async move {
            let mut first = vec![0; 4096];
            reader.read(&its, f, 0, &mut first).await.expect("it is read");
            first
        });
        cx.sleep(Ns::from_ms(1)).await;
        assert!(!*slow.next.lock(), "it is being read");
        fs.write(&cx, f, 0, &[8; 4096], now(&cx)).await.expect("room");
        fs.fsync(&cx, f, false).await.expect("it is written");
        let mut rng = Rng::stream(1, "others", 0);
        for _ in 0..400 {
            let at = 4096 * rng.below(200);
            fs.write(&cx, other, at, &[9; 40_960], now(&cx)).await.expect("room");
            fs.fsync(&cx, other, false).await.expect("it is written");
        }
        fs.sync(&cx).await.expect("it is written");
        assert!(cx.now() < Ns::from_secs(10), "it is still being read");
        assert!(read.await == [8; 4096]);
        let mut again = vec![0; 4096];
        fs.read(&cx, f, 0, &mut again).await.expect("it is read");
        assert!(again == [8; 4096]);
    });
}

/// A write of a checkpoint fails, all behind it do, or it is done and said to have failed. An fsync that waits
/// for the checkpoint is there afterwards, or says that it is not.
#[test]
fn an_fsync_behind_a_checkpoint_that_fails_is_no_lie() {
    let mut counts = [0; 8];
    for (how, write) in (0..4).flat_map(|how| (0..24).map(move |write| (how, write))) {
        let device = ram(12, 1);
        let before = device.clone();
        let done = run(1, async move |cx| {
            make(&cx, &before, 1).await;
            let (slow, fs) = mount_slow(&cx, before).await;
            let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
            fs.write(&cx, f, 0, &[9; 8192], now(&cx)).await.expect("room");
            let h = create(&cx, &fs, ROOT, "h", FILE).await.ino;
            fs.sync(&cx).await.expect("it is written");
            // Nothing but its inode changes, and other nodes.
            fs.truncate(&cx, f, 9000, now(&cx)).await.expect("it is longer");
            create(&cx, &fs, ROOT, "g", FILE).await;
            *[&slow.fails, &slow.dead, &slow.lies, &slow.fails][how].lock() = Some(write);
            let (other, theirs) = (fs.clone(), cx.clone());
            let first = cx.spawn_join(async move { other.checkpoint(&theirs).await });
            let (other, theirs) = (fs.clone(), cx.clone());
            let next = cx.spawn_join(async move { other.checkpoint(&theirs).await });
            cx.sleep(Ns::from_us(1)).await;
            // And of one that has changed since it began.
            fs.truncate(&cx, h, 9000, now(&cx)).await.expect("it is longer");
            let (other, theirs) = (fs.clone(), cx.clone());
            let late = cx.spawn_join(async move { other.fsync(&theirs, h, false).await });
            let done = fs.fsync(&cx, f, false).await;
            if how == 3 {
                return (done.is_ok(), false); // and the power goes
            }
            let late = late.await.is_ok();
            let (first, next) = (first.await, next.await);
            let unsure = matches!(first, Err(FsError::ReadOnly(_)));
            assert!(!unsure || next.is_err(), "{how} {write}: the next one is {next:?}");
            (done.is_ok(), late)
        });
        let (done, late) = done;
        counts[2 * how + usize::from(done)] += 1;
        device.power_cut(Keep::Oldest);
        run(2, async move |cx| {
            let fs = mount(&cx, &device).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there");
            assert!(f.size == 9000 || !done, "{how} {write}: {} bytes", f.size);
            let h = fs.lookup(&cx, ROOT, b"h").await.expect("it is there");
            assert!(h.size == 9000 || !late, "{how} {write}: {} bytes", h.size);
            fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &device).await;
        });
    }
    assert!(counts[1] == 24 && counts[2] > 2 && counts[4] > 0, "{counts:?}");
}

/// A file is deleted, and a checkpoint that says so is being written: the file that is made now has another
/// number. It would be the old one if the checkpoint failed.
#[test]
fn a_number_is_free_when_a_checkpoint_has_said_so() {
    run(1, async |cx| {
        let device = ram(12, 1);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        create(&cx, &fs, ROOT, "before", FILE).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.unlink(&cx, ROOT, b"before", now(&cx)).await.expect("it is gone");
        fs.sync(&cx).await.expect("it is written");
        // Numbers are given out in turn, until it is the turn of that of `f`.
        for turn in 0.. {
            let other = create(&cx, &fs, ROOT, "other", FILE).await.ino;
            fs.unlink(&cx, ROOT, b"other", now(&cx)).await.expect("it is gone");
            if turn % 64 == 63 {
                fs.checkpoint(&cx).await.expect("it is written");
            }
            assert!(turn < 100_000, "the turn never comes");
            if other + 1 == f {
                break;
            }
        }
        fs.unlink(&cx, ROOT, b"f", now(&cx)).await.expect("it is gone");
        let (other, theirs) = (fs.clone(), cx.clone());
        let checkpoint = cx.spawn_join(async move { other.checkpoint(&theirs).await });
        cx.sleep(Ns::from_us(1)).await;
        assert_ne!(create(&cx, &fs, ROOT, "g", FILE).await.ino, f);
        checkpoint.await.expect("it is written");
    });
}

/// What names a page can't be read when the page has been written: it is dirty as before, and nobody waits
/// for it for ever.
#[test]
fn a_page_that_can_not_be_named_has_ended() {
    run(1, async |cx| {
        let device = ram(12, 1);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        let mut others = Vec::new();
        for i in 0..150 {
            others.push(create(&cx, &fs, ROOT, &format!("{i}"), FILE).await.ino);
        }
        fs.write(&cx, f, FAR, &[8; 4096], now(&cx)).await.expect("room");
        fs.unmount(&cx).await.expect("it is written");
        let (slow, fs) = mount_slow(&cx, device.clone()).await;
        fs.write(&cx, f, FAR, &[9; 4096], now(&cx)).await.expect("room");
        fs.checkpoint(&cx).await.expect("it is written");
        *slow.later.lock() = true;
        let (writer, its) = (fs.clone(), cx.clone());
        let first = cx.spawn_join(async move { writer.fsync(&its, f, false).await });
        cx.sleep(Ns::from_ms(1)).await;
        assert!(!*slow.later.lock(), "it is being written");
        // Its nodes leave the memory.
        for other in others {
            fs.attributes(&cx, other).await.expect("it is there");
        }
        *slow.unread.lock() = Some(0);
        let _ = first.await;
        assert!(slow.unread.lock().is_none(), "it was read");
        fs.fsync(&cx, f, false).await.expect("it is written");
        device.power_cut(Keep::Oldest);
        let fs = mount(&cx, &device).await;
        let mut far = [0; 4096];
        fs.read(&cx, f, FAR, &mut far).await.expect("it is read");
        assert_eq!(far, [9; 4096]);
    });
}

/// Eight threads write to a file all the time: of an fsync's flushes none has all that is named when it ends.
#[test]
fn an_fsync_waits_for_nobody_else() {
    let device = ram(24, 1);
    let acked = run(1, async move |cx| {
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        for writer in 0..8 {
            let (fs, its) = (fs.clone(), cx.clone());
            cx.spawn(async move {
                for i in 0.. {
                    let at = (writer * 40 + i % 40) * 4096;
                    fs.write(&its, f, at, &[1; 4096], now(&its)).await.expect("room");
                    its.sleep(Ns::from_ns(100)).await;
                }
            });
        }
        let acked = Arc::new(Mutex::new(0));
        let (told, its) = (acked.clone(), cx.clone());
        cx.spawn(async move {
            loop {
                fs.fsync(&its, f, false).await.expect("it is written");
                *told.lock() += 1;
            }
        });
        cx.sleep(Ns::from_ms(10)).await;
        *acked.lock()
    });
    assert!(acked > 30, "{acked} fsyncs have ended");
}

/// The content of a page, with the number of its write.
fn stamped(page: u64, write: u64) -> Vec<u8> {
    [write.to_le_bytes().to_vec(), vec![page as u8; 4088]].concat()
}

/// Pages of a file that others write all the time: an fsync has what was there when it was asked for, and does
/// not wait for more. When the power goes every page is one that was written, and none is older than the
/// last sync.
#[test]
fn an_fsync_ends_while_others_write() {
    for seed in 0..400 {
        let device = ram(24, seed);
        let before = device.clone();
        let mut rng = Rng::stream(seed, "cut", 0);
        let end = Ns::from_us(2_000 + rng.below(6_000));
        let clock = Virtual::new(1, seed, CostTable::zero());
        let cx = clock.cx();
        let acked = clock.run(async move {
            make(&cx, &before, 1).await;
            let fs = mount(&cx, &before).await;
            let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
            for page in 0..200 {
                let content = stamped(page, 0);
                fs.write(&cx, f, page * 4096, &content, now(&cx)).await.expect("room");
            }
            fs.sync(&cx).await.expect("it is written");
            let begin = cx.now();
            let (writer, its) = (fs.clone(), cx.clone());
            let synced = Arc::new(Mutex::new(0));
            let told = synced.clone();
            cx.spawn(async move {
                for i in 1_u64.. {
                    let (page, content) = (i % 200, stamped(i % 200, i));
                    writer.write(&its, f, page * 4096, &content, now(&its)).await.expect("room");
                    its.sleep(Ns::from_us(1)).await;
                    match (seed % 3, i % 30, i % 100) {
                        (1, 0, _) => {
                            writer.sync(&its).await.expect("it is written");
                            *told.lock() = i;
                        }
                        (2, _, 0) => writer.checkpoint(&its).await.expect("it is written"),
                        _ => {}
                    }
                }
            });
            let acked = Arc::new(Mutex::new(0));
            let (told, syncer, its) = (acked.clone(), fs.clone(), cx.clone());
            cx.spawn(async move {
                loop {
                    syncer.fsync(&its, f, false).await.expect("it is written");
                    *told.lock() += 1;
                }
            });
            cx.sleep(end).await;
            assert!(cx.now() >= begin + end);
            (*acked.lock(), *synced.lock())
        });
        let (acked, synced) = acked.expect("it goes on");
        assert!(acked > 0, "seed {seed}: no fsync ended within {end}");
        drop(clock);
        device.power_cut(Keep::Drawn(seed));
        run(seed, async move |cx| {
            let fs = mount(&cx, &device).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            let all = content(&cx, &fs, f).await;
            assert_eq!(all.len(), 200 * 4096);
            for (found, page) in all.chunks(4096).zip(0_u64..) {
                let write = u64::from_le_bytes(found[..8].try_into().expect("eight"));
                let least = (synced + 200 - page) / 200 * 200 + page;
                let least = least.saturating_sub(200);
                assert!(found == stamped(page, write), "seed {seed}: page {page}");
                assert!(
                    write >= least,
                    "seed {seed}: page {page} is of write {write}, not {least}"
                );
            }
            fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &device).await;
        });
    }
}

/// A checkpoint begins and ends during the flush of an fsync: what the fsync has seen before is older than what
/// the checkpoint has, and is not written over it.
#[test]
fn an_fsync_writes_nothing_older_than_a_checkpoint() {
    let device = ram(12, 1);
    let before = device.clone();
    run(1, async move |cx| {
        make(&cx, &before, 1).await;
        let (slow, fs) = mount_slow(&cx, before).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, 0, &[1; 8192], now(&cx)).await.expect("room");
        fs.sync(&cx).await.expect("it is written");
        fs.write(&cx, f, 0, &[2; 8192], now(&cx)).await.expect("room");
        *slow.flush.lock() = Some(0);
        let (syncer, its) = (fs.clone(), cx.clone());
        let synced = cx.spawn_join(async move { syncer.fsync(&its, f, false).await });
        cx.sleep(Ns::from_secs(1)).await;
        assert!(slow.flush.lock().is_none(), "the fsync waits for its flush");
        fs.write(&cx, f, 0, &[3; 8192], now(&cx)).await.expect("room");
        fs.sync(&cx).await.expect("it is written");
        assert!(cx.now() < Ns::from_secs(5), "the flush goes on");
        synced.await.expect("it is written");
    });
    device.power_cut(Keep::Oldest);
    run(2, async move |cx| {
        let fs = mount(&cx, &device).await;
        let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
        assert!(content(&cx, &fs, f).await == [3; 8192]);
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// A page that can't be read lies in the segment that would be cleaned first: all else goes on, and what the
/// file has besides is there.
#[test]
fn a_page_that_can_not_be_read_stops_no_cleaning() {
    run(1, async |cx| {
        let device = ram(14, 1);
        make(&cx, &device, 1).await;
        let (slow, fs) = mount_slow(&cx, device).await;
        let (f, other) = (create(&cx, &fs, ROOT, "f", FILE).await.ino, FILE);
        let other = create(&cx, &fs, ROOT, "other", other).await.ino;
        let mut rng = Rng::stream(1, "others", 0);
        let more = create(&cx, &fs, ROOT, "more", FILE).await.ino;
        // A page of `f` in many segments, and more than one of another file in the rest.
        for page in 0..130 {
            let (file, pages, byte) = if page < 30 { (f, 1, 6) } else { (more, 3, 7) };
            let content = vec![byte; pages * 4096];
            fs.write(&cx, file, page * 3 * 4096, &content, now(&cx)).await.expect("room");
            fs.fsync(&cx, file, false).await.expect("it is written");
            fs.write(&cx, other, 0, &[8; 81_920], now(&cx)).await.expect("room");
            fs.fsync(&cx, other, false).await.expect("it is written");
        }
        // Nothing is in memory then.
        fs.unmount(&cx).await.expect("it is written");
        let medium = Medium::Linear(slow.clone());
        let fs = Fs::mount(&cx, medium, small()).await.expect("it is mounted").0;
        slow.lost.lock().extend(device_pages(&slow, 6));
        for turn in 0..600 {
            let at = 4096 * rng.below(30);
            let done = fs.write(&cx, other, at, &[9; 40_960], now(&cx)).await;
            assert_eq!(done.map(|_| ()), Ok(()), "write {turn}");
            assert_eq!(fs.fsync(&cx, other, false).await, Ok(()), "fsync {turn}");
        }
        assert!(fs.stats().foreground_victims > 4, "{}", fs.stats().foreground_victims);
        // A victim is tried once.
        let missed = *slow.missed.lock();
        assert!((10..=30).contains(&missed), "{missed} reads failed");
        let mut one = [0; 4096];
        assert!(matches!(fs.read(&cx, f, 0, &mut one).await, Err(FsError::Io(_))));
    });
}

/// A node of a file can't be read that is to be cut: an unmount writes what others have done, and the next
/// mount gives them.
#[test]
fn a_file_that_can_not_be_cut_stops_no_other() {
    let device = ram(24, 1);
    let before = device.clone();
    let f = run(1, async move |cx| {
        let medium = Medium::Linear(before.clone());
        make_unshared(&cx, medium, 1).await.expect("it is large enough");
        let fs = mount(&cx, &before).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, FAR, &[7; 4096], now(&cx)).await.expect("room");
        fs.unmount(&cx).await.expect("it is written");
        f
    });
    let slow = Slow::new(device);
    let is_beside = |at: &Lba| {
        let page = slow.ram.content(*at);
        let word = |n: usize| u32::from_le_bytes(page[4048 + n..][..4].try_into().expect("four"));
        word(40) == u32::from_le_bytes(*b"pNOD") && word(4) == f && word(8) > 0
    };
    let sectors = (slow.log.get()..slow.ram.info().capacity).map(Lba::new);
    let lost: Vec<Lba> = sectors.filter(is_beside).collect();
    assert!(!lost.is_empty());
    *slow.lost.lock() = lost;
    let after = slow.clone();
    run(2, async move |cx| {
        let fs = Fs::mount(&cx, Medium::Linear(slow), small()).await.expect("it is mounted").0;
        let cut = fs.truncate(&cx, f, 10, now(&cx)).await;
        assert!(matches!(cut, Err(FsError::Io(_))), "{cut:?}");
        let g = create(&cx, &fs, ROOT, "g", FILE).await.ino;
        fs.write(&cx, g, 0, &[8; 9000], now(&cx)).await.expect("room");
        fs.unmount(&cx).await.expect("all else is written");
    });
    run(3, async move |cx| {
        let mounted = Fs::mount(&cx, Medium::Linear(after), small()).await;
        let fs = mounted.expect("all else goes on").0;
        let g = fs.lookup(&cx, ROOT, b"g").await.expect("it is there").ino;
        assert!(content(&cx, &fs, g).await == [8; 9000]);
        fs.unmount(&cx).await.expect("it is written");
    });
}

/// A file's first bytes lie in its inode. While an fsync of it waits for another one, somebody writes behind
/// what an inode holds: the bytes go to a page, which is durable with the next checkpoint.
#[test]
fn an_fsync_names_no_page_that_goes_along_later() {
    for seed in 0..40 {
        let device = ram(12, seed);
        let (theirs, after) = (device.clone(), device.clone());
        let clock = Virtual::new(1, seed, CostTable::zero());
        let cx = clock.cx();
        let done = clock.run(async move {
            make(&cx, &theirs, 1).await;
            let fs = mount(&cx, &theirs).await;
            let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
            fs.write(&cx, f, 0, b"hello", now(&cx)).await.expect("room");
            fs.sync(&cx).await.expect("it is written");
            fs.write(&cx, f, 0, b"HELLO", now(&cx)).await.expect("room");
            let mut syncs = Vec::new();
            for _ in 0..2 {
                let (fs, its) = (fs.clone(), cx.clone());
                syncs.push(cx.spawn_join(async move { fs.fsync(&its, f, false).await }));
            }
            cx.sleep(Ns::from_us(2 * seed)).await;
            fs.write(&cx, f, 5000, b"more", now(&cx)).await.expect("room");
            for sync in syncs {
                sync.await.expect("it is written");
            }
        });
        done.expect("it goes on");
        drop(clock);
        device.power_cut(Keep::Oldest);
        run(seed, async move |cx| {
            let fs = mount(&cx, &after).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            let mut found = [0; 5];
            fs.read(&cx, f, 0, &mut found).await.expect("it is read");
            assert_eq!(&found, b"HELLO", "{seed}");
        });
    }
}

/// A block device keeps what it had: nodes of the file system before lie in the log of a new one, with fsyncs
/// of checkpoints that the new one will have, or has not had yet.
#[test]
fn an_older_file_system_is_no_news() {
    for checkpoints in [0, 1, 2, 5, 30] {
        let device = ram(12, 1);
        let used = device.clone();
        run(1, async move |cx| {
            make(&cx, &used, 1).await;
            let fs = mount(&cx, &used).await;
            for i in 0..=checkpoints {
                let old = create(&cx, &fs, ROOT, &format!("old{i}"), FILE).await.ino;
                for _ in 0..20 {
                    fs.write(&cx, old, 0, &[1; 20_000], now(&cx)).await.expect("room");
                    fs.fsync(&cx, old, false).await.expect("it is written");
                }
                if i < checkpoints {
                    fs.sync(&cx).await.expect("it is written");
                }
            }
        });
        let used = device.clone();
        run(2, async move |cx| {
            make(&cx, &used, 1).await;
            let fs = mount(&cx, &used).await;
            let new = create(&cx, &fs, ROOT, "new", FILE).await.ino;
            fs.write(&cx, new, 0, &[2; 20_000], now(&cx)).await.expect("room");
            fs.fsync(&cx, new, false).await.expect("it is written");
        });
        device.power_cut(Keep::Oldest);
        run(3, async move |cx| {
            let fs = mount(&cx, &device).await;
            for i in 0..=checkpoints {
                let old = fs.lookup(&cx, ROOT, format!("old{i}").as_bytes()).await;
                assert_eq!(old.map(|_| ()), Err(FsError::NotFound), "{checkpoints}");
            }
            let new = fs.lookup(&cx, ROOT, b"new").await.expect("it is there").ino;
            assert!(content(&cx, &fs, new).await == [2; 20_000], "{checkpoints}");
            fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &device).await;
        });
    }
}

/// Where pages lie that are full of this byte.
fn device_pages(slow: &Slow, byte: u8) -> Vec<Lba> {
    let sectors = slow.ram.info().capacity;
    (slow.log.get()..sectors).map(Lba::new).filter(|at| slow.ram.holds(*at, byte)).collect()
}
