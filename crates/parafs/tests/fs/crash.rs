//! The power goes at any time: what a mount may find.
//!
//! Owns: an actor that knows, at each moment, what is durable and what may be. Promises: what was
//! acknowledged by fsync or sync and is not there, or anything that never was, fails. The rules:
//! names are those of one moment, not before the last checkpoint that was acknowledged, with files
//! whose fsync came later (each under the name that it had); each page of a file, and its size, is
//! one of those since its last fsync.

use super::world::{DIR, FILE, Store, make_on, new, now, ram, run, seeds, small, sound_on};
use flashlane_base::{Ns, Rng};
use flashlane_parafs::{Fs, FsError, ROOT, Recovered, Rename};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Cx, Virtual};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of what is compared: a page on the medium has one or more.
const PIECE: usize = 4096;
/// Longest file.
const BYTES: usize = 16 * PIECE;
/// The second half of a file lies far behind the first, so that another node names it.
const HALF: usize = BYTES / 2;

/// What a file may be behind a cut.
#[derive(Clone, Debug)]
struct Versions {
    /// As it is now.
    now: Vec<u8>,
    /// Sizes since the last fsync, that one's first.
    sizes: Vec<usize>,
    /// Of each piece, contents since then. A piece that is not there is zeros.
    pieces: BTreeMap<usize, Vec<Vec<u8>>>,
    /// It was there, with these names, when it was made durable by an fsync of its own.
    synced: bool,
}

impl Versions {
    fn new() -> Versions {
        Versions { now: Vec::new(), sizes: vec![0], pieces: BTreeMap::new(), synced: false }
    }

    fn piece(content: &[u8], i: usize) -> Vec<u8> {
        let mut piece = content.get(i * PIECE..).unwrap_or(&[]).to_vec();
        piece.resize(PIECE, 0);
        piece
    }

    /// It becomes this, sooner or later.
    fn becomes(&mut self, content: Vec<u8>) {
        for i in 0..BYTES / PIECE {
            let (before, after) = (Self::piece(&self.now, i), Self::piece(&content, i));
            if before != after {
                let all = self.pieces.entry(i).or_insert_with(|| vec![before]);
                all.push(after);
            }
        }
        self.sizes.push(content.len());
        self.now = content;
    }

    /// What it was at some moment is durable.
    fn durable(&mut self) {
        self.sizes = vec![self.now.len()];
        self.pieces.clear();
    }

    fn allows(&self, found: &[u8]) -> Result<(), String> {
        if !self.sizes.contains(&found.len()) {
            return Err(format!("it has {} bytes, not one of {:?}", found.len(), self.sizes));
        }
        for i in 0..BYTES / PIECE {
            let length = found.len().saturating_sub(i * PIECE).min(PIECE);
            let is = Self::piece(found, i);
            let only = vec![Self::piece(&self.now, i)];
            let all = self.pieces.get(&i).unwrap_or(&only);
            // A file that is shorter than it was then has only a part of the piece.
            let mut of = |wanted: &Vec<u8>| wanted[..length] == is[..length];
            // Room that is kept before the content comes is zeros.
            let zeros = is[..length].iter().all(|b| *b == 0) && all.len() > 1;
            if !all.iter().any(&mut of) && !zeros {
                let differ = |p: &Vec<u8>| (0..length).find(|at| p[*at] != is[*at]);
                let first: Vec<_> =
                    all.iter().map(|p| differ(p).map(|at| (at, is[at], p[at]))).collect();
                return Err(format!(
                    "piece {i} of {} bytes is none of {first:?} (place, found, wanted)",
                    found.len()
                ));
            }
        }
        Ok(())
    }
}

/// All names: path, and the file or directory.
type Names = BTreeMap<String, u32>;

#[derive(Clone, Debug, Default)]
struct Known {
    /// Names by moment; the first is the last that a checkpoint has, for all that is known.
    moments: Vec<Names>,
    files: BTreeMap<u32, Versions>,
    dirs: BTreeSet<u32>,
    /// How many fsyncs were begun.
    fsyncs: u64,
    /// Files whose fsync was acknowledged at a moment, or may have been done then, with the
    /// directory and the name that they had. Where the directory is, an fsync of theirs does not say.
    synced: Vec<(usize, u32, (u32, String), bool)>,
}

/// Where an entry of a directory is among these names.
fn path_of(names: &Names, (dir, name): &(u32, String)) -> Option<String> {
    if *dir == ROOT {
        return Some(format!("/{name}"));
    }
    let (path, _) = names.iter().find(|(_, ino)| **ino == *dir)?;
    Some(format!("{path}/{name}"))
}

fn has(names: &Names, entry: &(u32, String), ino: u32) -> bool {
    path_of(names, entry).is_some_and(|path| names.get(&path) == Some(&ino))
}

impl Known {
    fn names(&self) -> &Names {
        self.moments.last().expect("one at least")
    }

    /// The names become these, sooner or later.
    fn become_names(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.names().clone();
        change(&mut names);
        self.moments.push(names);
    }

    /// A mount has found this: nothing else can come any more.
    fn is_durable(&mut self, names: Names, contents: BTreeMap<u32, Vec<u8>>) {
        let there: BTreeSet<u32> = names.values().copied().collect();
        self.dirs.retain(|ino| there.contains(ino));
        self.moments = vec![names];
        self.synced.clear();
        self.files.clear();
        for (ino, content) in contents {
            let mut file = Versions { now: content, ..Versions::new() };
            file.durable();
            self.files.insert(ino, file);
        }
    }

    /// All names of now are durable.
    fn checkpointed(&mut self) {
        self.moments = vec![self.names().clone()];
        self.synced.clear();
    }

    /// Directories and names that a file has in them.
    fn names_of(&self, ino: u32) -> Vec<(u32, String)> {
        let names = self.names();
        let entry = |path: &String| {
            let (dir, name) = path.rsplit_once('/').expect("it begins with one");
            (names.get(dir).copied().unwrap_or(ROOT), name.to_string())
        };
        names.iter().filter(|(_, i)| **i == ino).map(|(path, _)| entry(path)).collect()
    }

    /// What was found may be.
    fn allows(&self, found: &Names, contents: &BTreeMap<u32, Vec<u8>>) -> Result<(), String> {
        for (ino, content) in contents {
            let versions = self.files.get(ino).ok_or(format!("there is a file {ino}"))?;
            versions
                .allows(content)
                .map_err(|why| format!("file {ino}: {why}; synced {}", versions.synced))?;
        }
        // The moment whose names these are, with files that an fsync has brought.
        let mut reasons = Vec::new();
        for (at, names) in self.moments.iter().enumerate() {
            match self.is_moment(at, names, found) {
                Ok(()) => return Ok(()),
                Err(why) => reasons.push(why),
            }
        }
        Err(format!("of {} moments none has these names: {reasons:?}", self.moments.len()))
    }

    fn is_moment(&self, at: usize, names: &Names, found: &Names) -> Result<(), String> {
        let mut wanted = names.clone();
        let mut may = Vec::new();
        for (when, ino, entry, acked) in &self.synced {
            if *when <= at {
                continue; // the checkpoint of that moment has it
            }
            let Some(path) = path_of(names, entry) else {
                // A directory that is new has taken a checkpoint, if this was acknowledged.
                match *acked {
                    true => return Err(format!("{ino} has no directory {}", entry.0)),
                    false => continue,
                }
            };
            // Since then it may have lost the name, or not, as far as it is known to the medium.
            let same = self.moments[*when..].iter().all(|names| has(names, entry, *ino));
            match *acked && same {
                true => {
                    wanted.insert(path, *ino);
                }
                false => may.push((path, *ino)),
            }
        }
        for (name, ino) in found {
            if wanted.get(name) != Some(ino) && !may.contains(&(name.clone(), *ino)) {
                return Err(format!("{name} is {ino}"));
            }
        }
        for (name, ino) in &wanted {
            let replaced = may.iter().any(|(n, _)| n == name);
            if found.get(name) != Some(ino) && !replaced {
                return Err(format!("{name} is not {ino}"));
            }
        }
        Ok(())
    }
}

struct Actor {
    cx: Cx,
    fs: Arc<Fs>,
    rng: Rng,
    known: Arc<Mutex<Known>>,
    /// How much further the second half lies.
    gap: u64,
    /// Of ten operations so many are not about names.
    contents: u64,
}

/// Where a byte, or an end, of a file really is.
fn real(at: usize, gap: u64) -> u64 {
    at as u64 + if at > HALF { gap } else { 0 }
}

/// What a file holds, without what lies between its halves.
async fn halves(cx: &Cx, fs: &Arc<Fs>, ino: u32, gap: u64) -> Vec<u8> {
    let size = fs.attributes(cx, ino).await.expect("it is there").size;
    let size = if size > HALF as u64 { size - gap } else { size } as usize;
    let mut all = vec![0xee; size];
    let first = size.min(HALF);
    let (one, two) = all.split_at_mut(first);
    assert_eq!(fs.read(cx, ino, 0, one).await, Ok(first));
    assert_eq!(fs.read(cx, ino, HALF as u64 + gap, two).await, Ok(size - first));
    all
}

impl Actor {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n.max(1))
    }

    fn pick(&mut self, dirs: bool) -> Option<(String, u32)> {
        let all: Vec<(String, u32)> = {
            let known = self.known.lock();
            let is = |ino: &u32| known.dirs.contains(ino) == dirs;
            known.names().iter().filter(|(_, i)| is(i)).map(|(n, i)| (n.clone(), *i)).collect()
        };
        let i = self.below(all.len() as u64) as usize;
        all.get(i).cloned()
    }

    /// A directory, and a name in it.
    fn place(&mut self) -> (u32, String, String) {
        let (path, dir) = match self.below(2) {
            0 => (String::new(), ROOT),
            _ => self.pick(true).unwrap_or((String::new(), ROOT)),
        };
        let name = format!("{}", self.below(8));
        (dir, format!("{path}/{name}"), name)
    }

    /// Names below a directory that moves move with it.
    fn moved(names: &mut Names, from: &str, to: &str) {
        let below = format!("{from}/");
        let all: Vec<(String, u32)> = names
            .iter()
            .filter(|(name, _)| *name == from || name.starts_with(&below))
            .map(|(name, ino)| (name.clone(), *ino))
            .collect();
        for (name, _) in &all {
            names.remove(name);
        }
        for (name, ino) in all {
            names.insert(format!("{to}{}", &name[from.len()..]), ino);
        }
    }

    /// A file system that is full leaves a file as it was.
    async fn full(&mut self, ino: u32, done: Result<(), FsError>) {
        let Err(e) = done else { return };
        assert_eq!(e, FsError::NoSpace);
        let now = halves(&self.cx, &self.fs, ino, self.gap).await;
        let mut known = self.known.lock();
        known.files.get_mut(&ino).expect("known").becomes(now);
    }

    async fn step(&mut self) {
        let (cx, fs, t, known) =
            (self.cx.clone(), self.fs.clone(), now(&self.cx), self.known.clone());
        let (dir, path, name) = self.place();
        let there = known.lock().names().get(&path).copied();
        let is_dir = there.is_some_and(|ino| known.lock().dirs.contains(&ino));
        let about = match self.below(10) < self.contents {
            true => 13 + self.below(9),
            false => self.below(25),
        };
        match about {
            0..=5 => {
                let mode = if self.below(6) == 0 { DIR } else { FILE };
                // What it is called is not known before: it may be there without having been
                // acknowledged, and only then.
                let made = fs.create(&cx, dir, name.as_bytes(), &new(mode), t).await;
                let Ok(made) = made else { return };
                println!("create {path}: {}", made.ino);
                let mut k = known.lock();
                match mode {
                    DIR => {
                        k.dirs.insert(made.ino);
                    }
                    _ => {
                        k.files.insert(made.ino, Versions::new());
                    }
                }
                k.become_names(|names| {
                    names.insert(path, made.ino);
                });
            }
            6..=8 if there.is_some() && !is_dir => {
                println!("unlink {path}: {there:?}");
                known.lock().become_names(|names| {
                    names.remove(&path);
                });
                fs.unlink(&cx, dir, name.as_bytes(), t).await.expect("it is there");
            }
            6..=8 if is_dir => {
                let below = format!("{path}/");
                let empty = !known.lock().names().keys().any(|name| name.starts_with(&below));
                if empty {
                    known.lock().become_names(|names| {
                        names.remove(&path);
                    });
                }
                let done = fs.rmdir(&cx, dir, name.as_bytes(), t).await;
                assert_eq!(done, if empty { Ok(()) } else { Err(FsError::NotEmpty) });
            }
            9..=11 if there.is_some() => {
                let (to, to_path, to_name) = self.place();
                let from = there.expect("it is");
                let other = known.lock().names().get(&to_path).copied();
                let below = format!("{path}/");
                if other == Some(from) || to_path == path || to_path.starts_with(&below) {
                    return;
                }
                let taken = other.is_some_and(|ino| known.lock().dirs.contains(&ino));
                // Directories replace nothing here, and nothing replaces them.
                if taken || is_dir && other.is_some() {
                    return;
                }
                if fs.space().free < 8 {
                    return;
                }
                println!("rename {path} to {to_path}: {from}, {other:?}");
                known.lock().become_names(|names| Actor::moved(names, &path, &to_path));
                let (from, to) = ((dir, name.as_bytes()), (to, to_name.as_bytes()));
                fs.rename(&cx, from, to, Rename::Replace, t).await.expect("it is allowed");
            }
            12 if there.is_none() && fs.space().free > 8 => {
                let Some((_, ino)) = self.pick(false) else { return };
                println!("link {path}: {ino}");
                known.lock().become_names(|names| {
                    names.insert(path, ino);
                });
                fs.link(&cx, ino, dir, name.as_bytes(), t).await.expect("it is allowed");
            }
            13..=16 => {
                let Some((_, ino)) = self.pick(false) else { return };
                let at = self.below(BYTES as u64 - 9000);
                let left = (HALF as u64).checked_sub(at).filter(|left| *left > 0);
                let length = if self.below(3) == 0 { 9000 } else { 1 + self.below(600) };
                let length = length.min(left.unwrap_or(u64::MAX));
                let data = vec![self.below(255) as u8 + 1; length as usize];
                let mut content = known.lock().files[&ino].now.clone();
                let end = at as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&data);
                known.lock().files.get_mut(&ino).expect("known").becomes(content);
                let at = at + if at >= HALF as u64 { self.gap } else { 0 };
                println!("write {ino}: {} bytes from {at}", data.len());
                let done = fs.write(&cx, ino, at, &data, t).await;
                self.full(ino, done).await;
            }
            17 => {
                let Some((_, ino)) = self.pick(false) else { return };
                let size = self.below(BYTES as u64);
                let mut content = known.lock().files[&ino].now.clone();
                content.resize(size as usize, 0);
                known.lock().files.get_mut(&ino).expect("known").becomes(content);
                println!("truncate {ino}: {size}");
                let done = fs.truncate(&cx, ino, real(size as usize, self.gap), t).await;
                self.full(ino, done).await;
            }
            18..=21 => {
                let Some((_, ino)) = self.pick(false) else { return };
                let data_only = self.below(2) == 0;
                let at = {
                    let mut k = known.lock();
                    let at = k.moments.len() - 1;
                    for name in k.names_of(ino) {
                        k.synced.push((at, ino, name, false));
                    }
                    at
                };
                println!("fsync {ino}");
                known.lock().fsyncs += 1;
                fs.fsync(&cx, ino, data_only).await.expect("it is written");
                println!("fsync {ino} done");
                let mut k = known.lock();
                for synced in &mut k.synced {
                    // Nothing else has happened meanwhile.
                    synced.3 |= (synced.0, synced.1) == (at, ino);
                }
                let file = k.files.get_mut(&ino).expect("known");
                file.synced = true;
                file.durable();
            }
            22 => {
                println!("sync");
                fs.sync(&cx).await.expect("it is written");
                let mut k = known.lock();
                k.files.values_mut().for_each(Versions::durable);
                k.checkpointed();
            }
            23 => {
                // Its name may go before it is released, which is never.
                let Some((_, ino)) = self.pick(false) else { return };
                fs.open(&cx, ino).await.expect("it is there");
            }
            _ => {
                println!("checkpoint");
                fs.checkpoint(&cx).await.expect("it is written");
                known.lock().checkpointed();
            }
        }
    }
}

/// What is there: names, and what each file holds.
async fn look(cx: &Cx, fs: &Arc<Fs>, gap: u64) -> (Names, BTreeMap<u32, Vec<u8>>) {
    let (mut names, mut contents) = (Names::new(), BTreeMap::new());
    let mut waiting = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = waiting.pop() {
        for entry in fs.read_dir(cx, dir, 0, 1000).await.expect("it is read") {
            let name = format!("{path}/{}", String::from_utf8(entry.name).expect("text"));
            names.insert(name.clone(), entry.ino);
            match entry.kind {
                4 => waiting.push((name, entry.ino)),
                _ => {
                    let content = halves(cx, fs, entry.ino, gap).await;
                    contents.insert(entry.ino, content);
                }
            }
        }
    }
    (names, contents)
}

/// What cuts have shown.
#[derive(Default)]
struct Seen {
    cuts: u32,
    batches: u32,
    torn: u32,
    orphans: u32,
}

/// A life with several cuts.
fn life(seed: u64, store: &Store, page_sectors: u32, seen: &mut Seen) {
    let mut rng = Rng::stream(seed, "cuts", 0);
    // The pages that an inode names itself, and more.
    let gap = 2000 * 4096 * u64::from(page_sectors);
    let share = rng.below(10);
    let known = Arc::new(Mutex::new(Known::default()));
    known.lock().moments.push(Names::new());
    // Flash takes its time.
    let slow = if matches!(store, Store::Flash(_)) { 10 } else { 1 };
    for cut in 0..7 {
        let most = [2_000, 20_000, 80_000][rng.below(3) as usize] * slow;
        let us = 1 + rng.below(most);
        // Some come before anybody can use it.
        let in_mount = rng.below(3) == 0;
        let (theirs, store_then) = (known.clone(), store.clone());
        let run_seed = seed * 100 + cut;
        let clock = Virtual::new(1, run_seed, CostTable::zero());
        let cx = clock.cx();
        let lived = async move {
            if cut == 0 {
                let medium = store_then.create(&cx).await;
                make_on(&cx, medium.clone(), page_sectors).await;
                return Recovered::default();
            }
            let medium = store_then.medium(&cx).await;
            // The checkpoint by itself is one, whatever is behind it.
            sound_on(&cx, &medium).await;
            if in_mount {
                let its = cx.clone();
                cx.spawn(async move {
                    let mounted = Fs::mount(&its, medium, small()).await;
                    drop(mounted.expect("it is mounted"));
                });
                cx.sleep(Ns::from_us(us.min(3000 * slow))).await;
                return Recovered::default();
            }
            let mounted = Fs::mount(&cx, medium, small()).await;
            let (fs, found) = mounted.expect("it is mounted");
            let (names, contents) = look(&cx, &fs, gap).await;
            let allowed = theirs.lock().allows(&names, &contents);
            allowed.unwrap_or_else(|why| panic!("{why}"));
            theirs.lock().is_durable(names, contents);
            let mut rng = Rng::stream(run_seed, "actor", 0);
            let known = theirs;
            // Some cuts come while an fsync is under way.
            let aimed = (rng.below(3) == 0).then(|| known.lock().fsyncs + 1 + rng.below(5));
            let behind = Ns::from_us(rng.below(150 * slow));
            let watched = known.clone();
            let mut actor = Actor { cx: cx.clone(), fs, rng, known, gap, contents: share };
            cx.spawn(async move {
                loop {
                    actor.step().await;
                }
            });
            let Some(fsync) = aimed else {
                cx.sleep(Ns::from_us(us)).await;
                return found;
            };
            let until = cx.now() + Ns::from_us(80_000 * slow);
            while watched.lock().fsyncs < fsync && cx.now() < until {
                cx.sleep(Ns::from_us(5)).await;
            }
            cx.sleep(behind).await;
            found
        };
        let found: Recovered = clock.run(lived).expect("it goes on");
        let at = clock.now();
        drop(clock);
        println!("cut behind {us} us; it was mounted with {found:?}");
        store.cut(at, &mut rng);
        seen.cuts += 1;
        seen.batches += found.batches;
        seen.torn += found.torn_batches;
        seen.orphans += found.orphans;
    }
    let checked = store.clone();
    run(seed, async move |cx| {
        let medium = checked.medium(&cx).await;
        let (fs, _) = Fs::mount(&cx, medium.clone(), small()).await.expect("it is mounted");
        let (names, contents) = look(&cx, &fs, gap).await;
        let allowed = known.lock().allows(&names, &contents);
        allowed.unwrap_or_else(|why| panic!("{why}"));
        fs.unmount(&cx).await.expect("it is written");
        sound_on(&cx, &medium).await;
    });
}

/// Lives of some seeds; what they have shown.
fn lives(range: std::ops::Range<u64>, store: impl Fn(u64, &mut Rng) -> (Store, u32)) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds(range) {
        println!("FLASHLANE_SEED={seed}: begins");
        let (store, page_sectors) = store(seed, &mut Rng::stream(seed, "store", 0));
        life(seed, &store, page_sectors, &mut seen);
    }
    let Seen { cuts, batches, torn, orphans } = seen;
    println!("{cuts} cuts, {batches} fsyncs found, {torn} cut short, {orphans} orphans");
    seen
}

#[test]
fn what_was_durable_is_there_behind_a_cut() {
    let seen = lives(0..300, |seed, rng| {
        let mib = [7, 12][rng.below(2) as usize];
        (Store::Ram(ram(mib, seed)), 1 << rng.below(2))
    });
    // A run of one seed need not have each.
    assert!(seen.cuts < 1000 || seen.batches > 100 && seen.orphans > 3);
}

#[test]
fn flash_that_is_cut_has_what_was_durable() {
    let seen = lives(0..60, |seed, rng| {
        let channels = 1 + rng.below(3) as u32;
        (Store::flash(channels, 192 / channels + 20, "", seed), 2)
    });
    assert!(seen.cuts < 300 || seen.batches > 20 && seen.orphans > 3);
}
