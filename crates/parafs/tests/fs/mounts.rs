//! Mounts that are cut, and what the next one finds.
//!
//! Owns: a life that makes something durable, and mounts behind it that are cut at many moments.
//! Promises: what is durable is there behind all of them. Never: looks into the file system.

use crate::image::{Image, NOW, contents, ruin};
use crate::slow::Slow;
use flashlane_base::{Lba, Ns};
use flashlane_parafs::{Fs, Medium, Options, ROOT, Unread, repair};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::files::{
    FILE, content, create, make_unshared, mount, mount_with, now, ram, run, small, sound,
};
use flashlane_testkit::{Keep, Ram};
use std::sync::Arc;

/// Microseconds for which a mount reads again what it can't read.
const PATIENCE: u64 = 1_111_000;

/// Far enough for another node.
const FAR: u64 = 2000 * 4096;
/// Files of a page that are durable: so many that the last ones are in segments that only the window of
/// a checkpoint names.
const FILES: u8 = 80;
/// Bytes of a file that are overwritten.
const CONTENT: usize = 200_000;

/// Microseconds into a mount at which it is cut. Each is also the seed of its lives.
fn moments() -> impl Iterator<Item = u64> {
    (0..4000).step_by(50)
}

/// What ends a life.
pub(crate) enum End {
    PowerCut,
    /// The process is gone, and the power is not.
    Killed,
}

/// A life of a file system that is new. No checkpoint is written but those that are asked for.
pub(crate) fn life<T: 'static>(
    seed: u64,
    end: End,
    acts: impl AsyncFnOnce(&Cx, &Arc<Slow>, Arc<Fs>) -> T + 'static,
) -> (Arc<Ram>, T) {
    let device = ram(12, seed);
    let made = device.clone();
    // Each node has a page of its own: what becomes of a page shows what becomes of the node.
    run(seed, async move |cx| {
        make_unshared(&cx, Medium::Linear(made), 1).await.expect("it is large enough");
    });
    life_on(device, seed, end, acts)
}

/// As [`life`], of the file system on this device.
pub(crate) fn life_on<T: 'static>(
    device: Arc<Ram>,
    seed: u64,
    end: End,
    acts: impl AsyncFnOnce(&Cx, &Arc<Slow>, Arc<Fs>) -> T + 'static,
) -> (Arc<Ram>, T) {
    let theirs = device.clone();
    let told = run(seed, async move |cx| {
        let slow = Slow::new(theirs);
        let fs = mount_with(&cx, &Medium::Linear(slow.clone()), Options::default()).await;
        acts(&cx, &slow, fs).await
    });
    if matches!(end, End::PowerCut) {
        device.power_cut(Keep::Drawn(seed));
    }
    (device, told)
}

/// A mount of this device that is cut so many microseconds behind its beginning.
fn cut_mount(slow: Arc<Slow>, us: u64) {
    cut(slow, us, async |cx, medium| drop(Fs::mount(cx, medium, small()).await));
}

/// The power goes so many microseconds behind the beginning of this.
pub(crate) fn cut(slow: Arc<Slow>, us: u64, act: impl AsyncFnOnce(&Cx, Medium) + 'static) {
    let device = slow.ram.clone();
    let clock = Virtual::new(1, us, CostTable::zero());
    let cx = clock.cx();
    let cut = clock.run(async move {
        let its = cx.clone();
        cx.spawn(async move { act(&its, Medium::Linear(slow)).await });
        cx.sleep(Ns::from_us(us)).await;
    });
    cut.expect("it goes on");
    drop(clock);
    device.power_cut(Keep::Drawn(us));
}

/// This memory, of which a node can't be read.
fn without(device: &Arc<Ram>, node: Lba) -> Arc<Slow> {
    let slow = Slow::new(device.clone());
    slow.lost.lock().push(node);
    slow
}

/// Makes a file of a page of its number, and has it durable.
pub(crate) async fn create_durable(cx: &Cx, fs: &Arc<Fs>, i: u8) {
    let f = create(cx, fs, ROOT, &format!("f{i}"), FILE).await.ino;
    fs.write(cx, f, 0, &[i; 4096], now(cx)).await.expect("room");
    fs.fsync(cx, f, false).await.expect("it is written");
}

pub(crate) async fn create_files(cx: &Cx, fs: &Arc<Fs>) {
    for i in 0..FILES {
        create_durable(cx, fs, i).await;
    }
}

/// They are there, with what they hold.
pub(crate) async fn has_files(cx: &Cx, fs: &Arc<Fs>, what: &str) {
    for i in 0..FILES {
        let f = fs.lookup(cx, ROOT, format!("f{i}").as_bytes()).await;
        let f = f.unwrap_or_else(|e| panic!("f{i} behind {what}: {e}"));
        assert!(content(cx, fs, f.ino).await == [i; 4096], "f{i} behind {what}");
    }
}

/// The same of what is mounted for that.
fn keeps_files(device: Arc<Ram>, us: u64) {
    run(us, async move |cx| {
        let fs = mount(&cx, &device).await;
        has_files(&cx, &fs, &format!("a mount that was cut at {us} us")).await;
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// A file, from `at` on and a few bytes at its start.
async fn create_old(cx: &Cx, fs: &Arc<Fs>, at: u64) -> u32 {
    let f = create(cx, fs, ROOT, "f", FILE).await.ino;
    fs.write(cx, f, 0, &[1; 10], now(cx)).await.expect("room");
    fs.write(cx, f, at, &[1; CONTENT], now(cx)).await.expect("room");
    f
}

async fn overwrite(cx: &Cx, fs: &Arc<Fs>, f: u32, at: u64) {
    fs.write(cx, f, at, &[2; CONTENT], now(cx)).await.expect("room");
    fs.write(cx, f, 0, &[2; 10], now(cx)).await.expect("room");
}

/// The same, durable: where the last node of the fsync lies.
async fn overwrite_durable(cx: &Cx, slow: &Slow, fs: &Arc<Fs>, f: u32, at: u64) -> Lba {
    overwrite(cx, fs, f, at).await;
    fs.fsync(cx, f, false).await.expect("it is written");
    *slow.last.lock()
}

/// All of the file is old, or all of it new: which.
fn is_new(device: Arc<Ram>, at: u64, us: u64) -> bool {
    run(us, async move |cx| {
        let fs = mount(&cx, &device).await;
        let what = format!("a mount that was cut at {us} us");
        has_files(&cx, &fs, &what).await;
        let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
        let all = content(&cx, &fs, f).await;
        let same = all[at as usize..].iter().all(|b| *b == all[0]);
        assert!(same && (all[0] == 1 || all[0] == 2), "f behind {what}");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
        all[0] == 2
    })
}

#[test]
fn a_mount_that_is_cut_is_begun_anew() {
    for us in moments() {
        let (device, ()) = life(us, End::PowerCut, async |cx, _, fs| create_files(cx, &fs).await);
        cut_mount(Slow::new(device.clone()), us);
        keeps_files(device, us);
    }
}

/// The files that had these names go when a mount takes those that have them now. If it is cut they are
/// there for the next one.
#[test]
fn what_a_mount_has_taken_away_is_there_for_the_next_one() {
    for us in moments() {
        let (device, ()) = life(us, End::PowerCut, async |cx, _, fs| {
            for i in 0..FILES {
                create(cx, &fs, ROOT, &format!("f{i}"), FILE).await;
            }
            fs.sync(cx).await.expect("it is written");
            for i in 0..FILES {
                let name = format!("f{i}");
                fs.unlink(cx, ROOT, name.as_bytes(), now(cx)).await.expect("it is there");
                create_durable(cx, &fs, i).await;
            }
        });
        cut_mount(Slow::new(device.clone()), us);
        keeps_files(device, us);
    }
}

/// A mount that is cut could not read a node of an fsync, and the next one can: what the fsync names is
/// there, or none of it counts. The batch has one node or two.
#[test]
fn what_can_not_be_read_now_may_be_another_time() {
    for at in [0, FAR] {
        let (mut old, mut new) = (0, 0);
        for us in moments() {
            let (device, node) = life(us, End::PowerCut, async move |cx, slow, fs| {
                let f = create_old(cx, &fs, at).await;
                fs.sync(cx).await.expect("it is written");
                let node = overwrite_durable(cx, slow, &fs, f, at).await;
                create_files(cx, &fs).await;
                node
            });
            cut_mount(without(&device, node), PATIENCE + us);
            let is_new = is_new(device, at, us);
            (old, new) = (old + u32::from(!is_new), new + u32::from(is_new));
        }
        assert!(old > 5 && new > 5, "{old} times the old content, {new} times the new one");
    }
}

/// A process is killed before the last flush of a checkpoint: that can be read, and is not durable.
fn killed_in_a_checkpoint(seed: u64) -> Arc<Ram> {
    let (device, ()) = life(seed, End::Killed, async |cx, slow, fs| {
        let f = create_old(cx, &fs, 0).await;
        create_files(cx, &fs).await;
        fs.sync(cx).await.expect("it is written");
        overwrite(cx, &fs, f, 0).await;
        // The first one is before the foot.
        *slow.flush.lock() = Some(1);
        let (theirs, its) = (fs.clone(), cx.clone());
        cx.spawn(async move { theirs.sync(&its).await.expect("it is written") });
        cx.sleep(Ns::from_secs(1)).await;
        assert!(slow.flush.lock().is_none(), "the checkpoint waits for its flush");
    });
    device
}

/// This memory. Its first flush takes so long that the power goes before its end.
fn unflushed(device: &Arc<Ram>) -> Arc<Slow> {
    let slow = Slow::new(device.clone());
    *slow.flush.lock() = Some(0);
    slow
}

/// A mount reads what is not durable, and is cut before a flush of its own: the checkpoint is gone, and the
/// one before it is there.
#[test]
fn what_a_mount_has_read_is_durable_before_it_counts() {
    let mut old = 0;
    for us in moments() {
        let device = killed_in_a_checkpoint(us);
        cut_mount(unflushed(&device), us);
        old += u32::from(!is_new(device, 0, us));
    }
    assert!(old > 5, "the checkpoint was lost {old} times");
}

/// The same of a repair, which has a table of segments to mend. One of the two checkpoints is whole.
#[test]
fn what_a_repair_has_read_is_durable_before_it_counts() {
    let mut old = 0;
    // It takes three times as long as a mount.
    for us in moments().map(|us| 3 * us) {
        let device = killed_in_a_checkpoint(us);
        ruin(&device, Image::on(contents(device.clone())).area(b"pSIT"));
        cut(unflushed(&device), us, async |cx, medium| {
            drop(repair(cx, &medium, NOW, Unread::Refuse).await)
        });
        let cut = device.clone();
        run(us, async move |cx| {
            let done =
                repair(&cx, &Medium::Linear(cut), NOW, Unread::Refuse).await.expect("it is one");
            let before = done.before.problems.join("; ");
            let what = format!("behind a repair that was cut at {us} us");
            assert!(!before.contains("no checkpoint is whole"), "{what}: {before}");
            assert_eq!(done.after.problems, [""; 0], "{what}");
        });
        old += u32::from(!is_new(device, 0, us));
    }
    assert!(old > 5, "the checkpoint was lost {old} times");
}

/// A mount says which fsyncs it has taken, and is cut. The next one can't read one of them, and is cut, too.
/// The one behind that reads all: it takes what the last one has taken.
#[test]
fn what_one_mount_has_taken_the_next_one_may_not() {
    let mut old = 0;
    for us in moments() {
        let (device, [second, last]) = life(us, End::PowerCut, async |cx, slow, fs| {
            let f = create_old(cx, &fs, 0).await;
            fs.fsync(cx, f, false).await.expect("it is written");
            let second = overwrite_durable(cx, slow, &fs, f, 0).await;
            create_files(cx, &fs).await;
            create_durable(cx, &fs, FILES).await;
            [second, *slow.last.lock()]
        });
        cut_mount(without(&device, last), PATIENCE + us);
        cut_mount(without(&device, second), PATIENCE + us);
        old += u32::from(!is_new(device, 0, us));
    }
    assert!(old > 2, "{old} times the old content");
}

/// A mount takes two fsyncs of a file, and is cut. The next one can't read the second: what the first one named
/// is there.
#[test]
fn what_was_superseded_may_count_again() {
    let mut old = 0;
    for us in moments() {
        let (device, node) = life(us, End::PowerCut, async |cx, slow, fs| {
            let f = create_old(cx, &fs, 0).await;
            fs.fsync(cx, f, false).await.expect("it is written");
            create_files(cx, &fs).await;
            overwrite_durable(cx, slow, &fs, f, 0).await
        });
        cut_mount(Slow::new(device.clone()), us);
        old += run(us, async move |cx| {
            let what = format!("a mount that was cut at {us} us");
            let fs = mount_with(&cx, &Medium::Linear(without(&device, node)), small()).await;
            has_files(&cx, &fs, &what).await;
            let f = fs.lookup(&cx, ROOT, b"f").await.expect("it is there").ino;
            // Behind a mount that was done it is a node of the file system, which can't be read.
            let mut all = vec![0; CONTENT];
            let Ok(n) = fs.read(&cx, f, 0, &mut all).await else { return 0 };
            assert!(n == CONTENT && all.iter().all(|b| *b == all[0]), "f behind {what}");
            u32::from(all[0] == 1)
        });
    }
    assert!(old > 5, "{old} times the old content");
}
