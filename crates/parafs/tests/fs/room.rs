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
    DIR, FILE, Store, content, create, make_on, make_small, make_unshared, mount_with, now, ram,
    run, seeds, sound_on,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A full file system on flash of 16 channels, with so many empty files. Each node has a page of
/// its own, so that many dirty nodes take much room.
async fn full(cx: &Cx, medium: &Medium, files: u32, free: u64) -> (Arc<Fs>, Vec<u32>) {
    make_unshared(cx, medium.clone(), 2).await.expect("it is large enough");
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

const PAGE: usize = 8192;

/// A file that has nearly all of a file system, and what is known of its pages: the version that is
/// durable, and the last one.
type Pages = Rc<RefCell<BTreeMap<u64, (u32, u32)>>>;

/// What a life of a full file system has come to.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    written: u64,
    moved: u64,
}

/// Makes a small file system, and 200 directories' and files' names, so that every head is in use,
/// and then has one file take all that is free.
async fn make_full(cx: &Cx, medium: &Medium, pages: &Pages) {
    make_small(cx, medium.clone(), 2).await.expect("it is large enough");
    let fs = mount_with(cx, medium, Options::default()).await;
    for i in 0..40 {
        let dir = create(cx, &fs, ROOT, &format!("d{i}"), DIR).await.ino;
        for k in 0..4 {
            let f = create(cx, &fs, dir, &format!("f{k}"), FILE).await.ino;
            fs.write(cx, f, 0, b"small", now(cx)).await.expect("room");
            fs.fsync(cx, f, false).await.expect("it is written");
        }
    }
    let full = create(cx, &fs, ROOT, "full", FILE).await.ino;
    let promised = fs.space().available;
    let mut at = 0;
    while fs.write(cx, full, at * PAGE as u64, &[0; PAGE], now(cx)).await.is_ok() {
        pages.borrow_mut().insert(at, (0, 0));
        at += 1;
    }
    assert!(at >= promised && at <= promised + 8, "{promised} were promised, and {at} were had");
    fs.unmount(cx).await.expect("it is written");
}

fn versioned(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 4)
}

/// What is there is what was durable, or newer.
async fn look_at(cx: &Cx, fs: &Arc<Fs>, full: u32, pages: &Pages, what: &str) {
    let known: Vec<_> = pages.borrow().iter().map(|(page, known)| (*page, *known)).collect();
    for (page, (durable, last)) in known {
        let mut found = vec![0; PAGE];
        fs.read(cx, full, page * PAGE as u64, &mut found).await.expect("it is read");
        let version = u32::from_le_bytes(found[..4].try_into().expect("four"));
        assert!(found == versioned(version), "{what}: page {page} is torn");
        let known = durable..=last;
        assert!(known.contains(&version), "{what}: page {page} has {version} of {known:?}");
        pages.borrow_mut().insert(page, (version, version));
    }
}

/// Overwrites at random, deletes and makes files, for so many steps. No step may fail for want of
/// room, but that a new file may find none.
async fn go_on(cx: &Cx, fs: &Arc<Fs>, full: u32, pages: &Pages, (seed, steps): (u64, u32)) {
    let mut rng = Rng::stream(seed, "test.full", 0);
    let count = pages.borrow().len() as u64;
    for step in 0..steps {
        let dir =
            fs.lookup(cx, ROOT, format!("d{}", rng.below(40)).as_bytes()).await.expect("there");
        let name = format!("f{}", rng.below(6));
        match rng.below(40) {
            0 => match fs.unlink(cx, dir.ino, name.as_bytes(), now(cx)).await {
                Ok(_) | Err(FsError::NotFound) => {}
                other => panic!("step {step}: {other:?}"),
            },
            1 => {
                let new = flashlane_parafs::New { mode: FILE, ..Default::default() };
                match fs.create(cx, dir.ino, name.as_bytes(), &new, now(cx)).await {
                    Ok(_) | Err(FsError::NoSpace | FsError::Exists) => {}
                    other => panic!("step {step}: {other:?}"),
                }
            }
            2 => {
                if let Ok(f) = fs.lookup(cx, dir.ino, name.as_bytes()).await {
                    fs.write(cx, f.ino, 0, b"other", now(cx)).await.expect("it is in the inode");
                    fs.fsync(cx, f.ino, false).await.expect("there is room");
                }
            }
            3 => {
                fs.fsync(cx, full, false).await.unwrap_or_else(|e| panic!("step {step}: {e}"));
                for (durable, last) in pages.borrow_mut().values_mut() {
                    *durable = *last;
                }
            }
            _ => {
                let page = rng.below(count);
                let (durable, last) = pages.borrow()[&page];
                let version = last + 1;
                // It may be on the medium before the call ends.
                pages.borrow_mut().insert(page, (durable, version));
                let bytes = versioned(version);
                let written = fs.write(cx, full, page * PAGE as u64, &bytes, now(cx));
                written.await.unwrap_or_else(|e| panic!("step {step}: {e}, {}", fs.standing()));
            }
        }
    }
}

/// One life of a full file system: a mount, some steps, and an unmount, or a power cut `after` so
/// long.
fn life(store: &Store, pages: &Pages, seed: u64, after: Option<Ns>) -> Life {
    let clock = Virtual::new(1, seed, CostTable::zero());
    let (cx, theirs, known) = (clock.cx(), store.clone(), pages.clone());
    let done: Rc<RefCell<Life>> = Rc::default();
    let said = done.clone();
    let ran = clock.run(async move {
        let medium = theirs.medium(&cx).await;
        let fs = mount_with(&cx, &medium, Options::default()).await;
        let full = fs.lookup(&cx, ROOT, b"full").await.expect("it is there").ino;
        look_at(&cx, &fs, full, &known, &format!("seed {seed}")).await;
        match after {
            None => {
                go_on(&cx, &fs, full, &known, (seed, 3_000)).await;
                let stats = fs.stats();
                *said.borrow_mut() = Life { written: stats.data_pages, moved: stats.moved_pages };
                fs.unmount(&cx).await.expect("there is room");
                for (durable, last) in known.borrow_mut().values_mut() {
                    *durable = *last;
                }
                sound_on(&cx, &medium).await;
            }
            Some(after) => {
                let (its, theirs) = (fs.clone(), cx.clone());
                cx.spawn(async move { go_on(&theirs, &its, full, &known, (seed, u32::MAX)).await });
                cx.sleep(after).await;
            }
        }
    });
    ran.unwrap_or_else(|stalled| panic!("seed {seed}: {stalled}"));
    let at = clock.now();
    drop(clock);
    store.cut(at, &mut Rng::stream(seed, "cut", 0)).expect("no rule was broken");
    *done.borrow()
}

/// A file system that keeps as little as a drive's goes on when files have all that they can have:
/// what has its place can be overwritten and made durable as often as one likes, by lives that end
/// with an unmount or with a power cut at any moment, and cleaning moves no more than it must.
#[test]
fn a_full_file_system_that_keeps_little_goes_on() {
    for seed in seeds(0..3) {
        let store = Store::flash(16, 40, "", seed);
        let (pages, made): (Pages, _) = (Rc::default(), store.clone());
        let theirs = pages.clone();
        let at = run(seed, async move |cx| {
            make_full(&cx, &made.create(&cx).await, &theirs).await;
            cx.now()
        });
        store.cut(at, &mut Rng::stream(seed, "cut", 0)).expect("no rule was broken");
        let mut rng = Rng::stream(seed, "test.lives", 0);
        for number in 1..=8 {
            let after = Ns::from_us(rng.below(4_000_000));
            let after = (number % 4 != 0).then_some(after);
            let done = life(&store, &pages, 100 * seed + number, after);
            assert!(done.moved <= 7 * done.written, "seed {seed}, life {number}: {done:?}");
        }
    }
}
