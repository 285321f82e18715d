//! Room that a checkpoint has, and a mount behind a power cut, where files have all the rest.
//!
//! Owns: file systems that are as full as they can be, and cuts of whoever needs what is left.
//! Promises: each cut is where it hurts. Never: looks into the file system.

use crate::mounts::cut;
use crate::slow::Slow;
use flashlane_base::{Ns, Rng};
use flashlane_parafs::{Fs, FsError, Medium, Options, ROOT};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::Keep;
use flashlane_testkit::files::{
    DIR, FILE, Store, content, create, make_on, mount_with, now, ram, run, sound_on,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A full file system on flash of 16 channels, with so many empty files.
async fn full(cx: &Cx, medium: &Medium, files: u32, free: u64) -> (Arc<Fs>, Vec<u32>) {
    make_on(cx, medium.clone(), 2).await.expect("it is large enough");
    let fs = mount_with(cx, medium, Options::default()).await;
    let mut made = Vec::new();
    for i in 0..files {
        made.push(create(cx, &fs, ROOT, &format!("f{i}"), FILE).await.ino);
    }
    fill(cx, &fs, free).await;
    (fs, made)
}

/// One file has the rest but so many blocks, and all is durable.
async fn fill(cx: &Cx, fs: &Arc<Fs>, free: u64) {
    let (full, mut at) = (create(cx, fs, ROOT, "full", FILE).await.ino, 0);
    while fs.space().free > free {
        match fs.write(cx, full, at, &[1; 65_536], now(cx)).await {
            Err(FsError::NoSpace) if free == 0 => break,
            written => written.expect("room"),
        };
        at += 65_536;
    }
    fs.sync(cx).await.expect("it is written");
}

/// Overwrites what is in the inodes of these files, each durable.
async fn sync_each(cx: &Cx, fs: &Arc<Fs>, files: &[u32]) {
    for f in files {
        fs.write(cx, *f, 0, b"new", now(cx)).await.expect("it is in the inode");
        fs.fsync(cx, *f, false).await.expect("it is written");
    }
}

/// What fsyncs have written is there.
async fn has_all(cx: &Cx, store: &Store, synced: usize, what: &str) {
    let medium = store.medium(cx).await;
    let mounted = Fs::mount(cx, medium.clone(), Options::default()).await;
    let (fs, _) = mounted.unwrap_or_else(|e| panic!("{what}: {e}"));
    for i in 0..synced {
        let f = fs.lookup(cx, ROOT, format!("f{i}").as_bytes()).await;
        let f = f.unwrap_or_else(|e| panic!("f{i} of {synced}, {what}: {e}"));
        assert!(content(cx, &fs, f.ino).await == b"new", "f{i} of {synced}, {what}");
    }
    fs.unmount(cx).await.expect("it is written");
    sound_on(cx, &medium).await;
}

/// Nodes of fsyncs are clean, and a mount behind a cut makes all of them dirty: there is room for as many
/// as may be found.
#[test]
fn what_fsyncs_have_written_has_room_in_a_mount() {
    for synced in (200..=3000).step_by(200) {
        let store = Store::flash(16, 40, "", 1);
        let before = store.clone();
        let at = run(1, async move |cx| {
            let (fs, files) = full(&cx, &before.create(&cx).await, 3000, 2400).await;
            sync_each(&cx, &fs, &files[..synced]).await;
            cx.now()
        });
        store.cut(at, &mut Rng::stream(1, "cut", 0)).expect("no rule was broken");
        let what = format!("behind {synced} fsyncs");
        run(2, async move |cx| has_all(&cx, &store, synced, &what).await);
    }
}

/// A mount that is cut has written part of what it has to, and the next one has as much room again.
#[test]
fn a_mount_that_is_cut_leaves_room_for_the_next_one() {
    const SYNCED: usize = 1600;
    let store = Store::flash(16, 40, "", 1);
    let before = store.clone();
    let at = run(1, async move |cx| {
        let (fs, files) = full(&cx, &before.create(&cx).await, 3000, 2400).await;
        sync_each(&cx, &fs, &files[..SYNCED]).await;
        cx.now()
    });
    store.cut(at, &mut Rng::stream(1, "cut", 0)).expect("no rule was broken");
    let mut cuts = 0;
    for us in (500..200_000).step_by(1000) {
        let (clock, theirs) = (Virtual::new(1, us, CostTable::zero()), store.clone());
        let (cx, done) = (clock.cx(), Arc::new(AtomicBool::new(false)));
        let mounted = done.clone();
        let cut = clock.run(async move {
            let its = cx.clone();
            cx.spawn(async move {
                let medium = theirs.medium(&its).await;
                let outcome = Fs::mount(&its, medium, Options::default()).await;
                outcome.unwrap_or_else(|e| panic!("behind {us} us of the mount before: {e}"));
                mounted.store(true, Ordering::Relaxed);
            });
            cx.sleep(Ns::from_us(us)).await;
        });
        cut.expect("it goes on");
        drop(clock);
        store.cut(Ns::from_us(us), &mut Rng::stream(us, "cut", 0)).expect("no rule was broken");
        if done.load(Ordering::Relaxed) {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 5, "{cuts}");
    run(2, async move |cx| has_all(&cx, &store, SYNCED, "behind all of them").await);
}

/// Many mounts are cut, each before the foot of its checkpoint. None of them takes room from the
/// next one. The medium is linear: it can't say which segments these mounts have written to.
#[test]
fn mounts_that_are_cut_one_after_the_other_leave_room_for_the_last_one() {
    const SYNCED: usize = 200;
    let device = ram(12, 1);
    let medium = Medium::Linear(device.clone());
    run(1, async move |cx| {
        let (fs, files) = full(&cx, &medium, 400, 600).await;
        sync_each(&cx, &fs, &files[..SYNCED]).await;
    });
    device.power_cut(Keep::Drawn(1));
    for number in 0..20 {
        let slow = Slow::new(device.clone());
        // The first flush is behind what the mount has read, the second one before the foot.
        *slow.flush.lock() = Some(1);
        cut(slow.clone(), 1_000_000, async move |cx, medium| {
            let mounted = Fs::mount(cx, medium, Options::default()).await.map(drop);
            panic!("mount {number} ends before it is cut: {mounted:?}");
        });
        assert!(slow.flush.lock().is_none(), "mount {number} has begun no checkpoint");
    }
    let store = Store::Ram(device);
    run(2, async move |cx| has_all(&cx, &store, SYNCED, "behind all of them").await);
}

/// A name that nearly fills a page with some others.
fn long(i: u32) -> String {
    format!("{}{i}", "long".repeat(50))
}

/// Names that are taken out make pages of their directory dirty, and no node but one.
#[test]
fn names_that_are_gone_have_room_in_a_checkpoint() {
    for mib in 12..20 {
        let device = ram(mib, 1);
        run(1, async move |cx| {
            let medium = Medium::Linear(device);
            make_on(&cx, medium.clone(), 1).await.expect("it is large enough");
            let fs = mount_with(&cx, &medium, Options::default()).await;
            let dir = create(&cx, &fs, ROOT, "dir", DIR).await.ino;
            let linked = create(&cx, &fs, ROOT, "linked", FILE).await.ino;
            for i in 0..4000 {
                fs.link(&cx, linked, dir, long(i).as_bytes(), now(&cx)).await.expect("room");
            }
            fill(&cx, &fs, 0).await;
            for i in 0..4000 {
                fs.unlink(&cx, dir, long(i).as_bytes(), now(&cx)).await.expect("it is there");
            }
            fs.checkpoint(&cx).await.expect("there is room");
            fs.unmount(&cx).await.expect("it is written");
            sound_on(&cx, &medium).await;
        });
    }
}
