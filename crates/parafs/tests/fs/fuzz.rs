//! Images that are damaged by a seed: an error or a repair, and never a panic or a wrong file.
//!
//! Owns: what is struck and how, of every structure, with and without right checksums. Promises: a
//! seed strikes the same; whatever is struck, a check, a repair, a mount, a walk, some writes and an
//! unmount end; a file that was not struck reads as before. Never: strikes pages of files, which
//! have no checksum.

use super::image::{Image, Left, NOW, Names, get32, look, put32, wanted};
use flashlane_base::{Rng, crc32c, crc32c_append};
use flashlane_parafs::{Fs, FsError, Medium, ROOT, Unread, check, repair};
use flashlane_rt::Cx;
use flashlane_testkit::files::{FILE, new, now, run, seeds, small};
use std::panic::catch_unwind;
use std::sync::Arc;

/// What was struck.
#[derive(Debug, Default)]
struct Struck {
    superblocks: u32,
    /// Files whose nodes or entries were.
    files: Vec<u32>,
    /// Something says what is not so, under a right checksum.
    lies: bool,
    /// In words.
    said: Vec<String>,
}

/// A number that is wrong in an interesting way.
fn number(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0 => 0,
        1 => u32::MAX,
        2 => u32::MAX - 1,
        3 => 1,
        4 => rng.below(3000) as u32,
        5 => rng.below(100) as u32,
        6 => 1 << rng.below(32),
        _ => rng.below(1 << 32) as u32,
    }
}

/// Changes some bytes; true where nothing is left.
fn damage(rng: &mut Rng, bytes: &mut [u8]) -> String {
    let at = rng.below(bytes.len() as u64) as usize;
    // Most is said at the beginning.
    let at = if rng.below(2) == 0 { at % 512 } else { at };
    match rng.below(8) {
        0 | 1 => bytes[at] ^= 1 << rng.below(8),
        2 => bytes[at] = rng.below(256) as u8,
        3..=5 => put32(bytes, at & !3, number(rng)),
        6 => {
            let end = (at + 1 + rng.below(200) as usize).min(bytes.len());
            bytes[at..end].fill(if rng.below(2) == 0 { 0 } else { 0xff });
        }
        _ => match rng.below(3) {
            0 => bytes.fill(0),
            1 => bytes.fill(0xff),
            _ => bytes.iter_mut().for_each(|b| *b = rng.below(256) as u8),
        },
    }
    format!("at {at}")
}

/// Strikes an image once; places are those of a sound one.
fn strike(rng: &mut Rng, image: &Image, left: Left, struck: &mut Struck) {
    let sound = Image::new(left);
    let pick = |rng: &mut Rng, all: &[u64]| all[rng.below(all.len() as u64) as usize];
    let lie = rng.below(2) == 0;
    let what = rng.below(10);
    let files: Vec<u32> = wanted(left).values().flatten().map(|seen| seen.ino).collect();
    let ino = files[rng.below(files.len() as u64) as usize];
    let (at, is_page) = match what {
        0 => (rng.below(2), false),
        1 | 2 => {
            let pack = sound.pack(rng.below(4) > 0);
            let sectors = sound.foot(&pack) - pack.at + 1;
            // Of a checkpoint that is lost its fsyncs are, too.
            if left.in_use() {
                struck.files.extend(["/large", "/young"].map(|path| Image::ino(left, path)));
            }
            (pack.at + rng.below(sectors), false)
        }
        3 => (pick(rng, &sound.area(b"pWIN")), false),
        4 => (pick(rng, &sound.area(b"pSIT")), false),
        5 => (pick(rng, &sound.area(b"pNAT")), false),
        6 => (pick(rng, &sound.area(b"pSUM")), false),
        7 | 8 => {
            let nodes = sound.nodes_of(ino);
            let (_, nid) = nodes[rng.below(nodes.len() as u64) as usize];
            let at = sound.page_at(sound.nat(nid).1);
            struck.files.extend(sound.files_in(at));
            (at, true)
        }
        _ => {
            let dirs: Vec<u32> =
                wanted(left).values().flatten().filter(|s| s.kind == 0o04).map(|s| s.ino).collect();
            let dir = dirs[rng.below(dirs.len() as u64) as usize];
            let addr = (0..8).map(|slot| sound.page_of(dir, slot)).find(|addr| *addr != 0);
            let Some(addr) = addr else { return };
            struck.files.push(dir);
            let at = sound.page_at(addr);
            image.spoil(at, |b| struck.said.push(format!("entries of {dir} {}", damage(rng, b))));
            return;
        }
    };
    struck.superblocks += u32::from(what == 0);
    if rng.below(16) == 0 {
        struck.said.push(format!("sector {at} is lost"));
        return image.device.lose(at);
    }
    let mut bytes = image.device.sector(at);
    let how = damage(rng, &mut bytes);
    struck.said.push(format!("{what}: sector {at} {how}, with its checksum {lie}"));
    if lie {
        struck.lies = true;
        if is_page {
            sound.seal_node(&mut bytes);
        } else {
            let sum = crc32c_append(crc32c(&bytes[..4]), &bytes[8..]);
            put32(&mut bytes, 4, sum);
        }
    }
    image.device.put(at, bytes);
    if lie && (1..=2).contains(&what) {
        // Body, head and foot agree.
        let pack = sound.area(b"pCPH").into_iter().find(|pack| (*pack..*pack + 8).contains(&at));
        let Some(pack) = pack else { return };
        let head = image.device.sector(pack);
        let length = get32(&head, 16) as usize;
        if length > 7 * 4096 {
            return;
        }
        let sectors = length.div_ceil(4096) as u64;
        let mut body: Vec<u8> = (1..=sectors).flat_map(|i| image.device.sector(pack + i)).collect();
        body.truncate(length);
        image.change(pack, |b| put32(b, 24, crc32c(&body)));
        let sum = get32(&image.device.sector(pack), 4);
        image.change(pack + 1 + sectors, |b| put32(b, 16, sum));
    }
}

/// Files that were not struck, nor lie below one that was, are as they were.
fn compare(found: &Names, left: Left, struck: &Struck) -> Result<(), String> {
    let all = wanted(left);
    let is = |path: &str| {
        let seen = if path.is_empty() { all.get("/") } else { all.get(path) };
        matches!(seen, Some(Ok(seen)) if struck.files.contains(&seen.ino))
    };
    for (path, seen) in all {
        let above = path.match_indices('/').any(|(at, _)| is(&path[..at]));
        if above || is(path) || path == "/" || path == "/dir/a" {
            continue;
        }
        // A file has a name less where a directory was struck.
        match (found.get(path), seen) {
            (Some(Ok(found)), Ok(seen)) if found.same(seen) => {}
            (found, seen) => return Err(format!("{path} is {found:?}, not {seen:?}")),
        }
    }
    Ok(())
}

/// What users do; whatever comes of it.
async fn use_it(cx: &Cx, fs: &Arc<Fs>, name: &str) -> Result<(), FsError> {
    let t = now(cx);
    let mut outcome = Ok(());
    for i in 0..12 {
        let made = fs.create(cx, ROOT, format!("{name} {i}").as_bytes(), &new(FILE), t).await;
        let Ok(made) = made else {
            outcome = made.map(drop);
            continue;
        };
        let wrote = fs.write(cx, made.ino, 0, &vec![i as u8; 9_000], t).await;
        let synced = if i % 3 == 0 { fs.fsync(cx, made.ino, false).await } else { Ok(()) };
        outcome = outcome.and(wrote).and(synced);
    }
    for path in ["dir", "many"] {
        let Ok(dir) = fs.lookup(cx, ROOT, path.as_bytes()).await else { continue };
        if let Ok(a) = fs.lookup(cx, dir.ino, b"a").await {
            outcome = outcome.and(fs.write(cx, a.ino, 2_000, &[1; 20_000], t).await);
            outcome = outcome.and(fs.truncate(cx, a.ino, 100, t).await);
        }
        let _ = fs.create(cx, dir.ino, b"another", &new(FILE), t).await;
        let _ = fs.unlink(cx, dir.ino, b"another", t).await;
    }
    outcome.and(fs.unmount(cx).await)
}

/// True if the error is that a repair gave the page up. A fuzzed node with a right checksum may
/// hold the address that says so (`Addr::LOST`).
fn is_given_up(e: &FsError) -> bool {
    e.to_string().contains("a repair gave it up")
}

async fn life(cx: Cx, seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, "fuzz", 0);
    let shares = Rng::stream(seed, "fuzz.shares", 0).below(2);
    let in_use = usize::from(rng.below(3) == 0);
    let left = Left::ALL[2 * shares as usize + in_use];
    let image = Image::new(left);
    let mut struck = Struck::default();
    for _ in 0..1 + rng.below(3) {
        strike(&mut rng, &image, left, &mut struck);
    }
    println!("{left:?}: {struck:?}");
    let device = image.device.clone();
    let medium = || Medium::Linear(device.clone());
    // What says what is not so may be believed by a mount.
    let at_once = rng.below(2) == 0;
    if at_once && let Ok((fs, _)) = Fs::mount(&cx, medium(), small()).await {
        look(&cx, &fs).await;
        let _ = use_it(&cx, &fs, "first").await;
        let _ = fs.walk();
    }
    let strict = !struck.lies;
    let checked = check(&cx, &medium()).await;
    let done = match repair(&cx, &medium(), NOW, Unread::GiveUp).await {
        Ok(done) => done,
        Err(_) if struck.superblocks > 0 && checked.is_err() => return Ok(()),
        Err(e) => return Err(format!("repair: {e}")),
    };
    if done.after.found > 0 {
        return Err(format!("it is not mended: {:?}", done.after.problems));
    }
    let mounted = Fs::mount(&cx, medium(), small()).await;
    let (fs, _) = mounted.map_err(|e| format!("mount: {e}"))?;
    let found = look(&cx, &fs).await;
    for (path, seen) in &found {
        if let Err(e) = seen
            && (strict || !is_given_up(e))
        {
            return Err(format!("{path}: {e}"));
        }
    }
    if strict {
        compare(&found, left, &struck).map_err(|e| format!("{e}; {:?}", done.before.problems))?;
    }
    match use_it(&cx, &fs, "then").await {
        Err(e) if strict || !is_given_up(&e) => return Err(format!("in use: {e}")),
        _ => {}
    }
    let after = check(&cx, &medium()).await.map_err(|e| format!("check: {e}"))?;
    match after.found {
        0 => Ok(()),
        _ => Err(format!("behind its use: {:?}", after.problems)),
    }
}

#[test]
fn damage_ends_in_an_error_or_a_repair() {
    let mut bad = Vec::new();
    for seed in seeds(0..300) {
        println!("FLASHLANE_SEED={seed}: begins");
        let lived = catch_unwind(|| run(seed, move |cx| life(cx, seed)));
        if let Err(why) = lived.unwrap_or_else(|_| Err("it panics".into())) {
            let what = "cargo test -p flashlane-parafs --test fs damage_ends";
            bad.push(format!("FLASHLANE_SEED={seed} {what}: {why}"));
        }
    }
    assert!(bad.is_empty(), "{} seeds:\n{}", bad.len(), bad.join("\n"));
}
