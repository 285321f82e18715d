//! All short sequences of operations on a few names, each cut at every command of the device.
//!
//! Owns: the small set of operations, the image that each sequence begins with, the count. Promises: a
//! sequence is run once, and what it wrote is cut behind each command, with all, none and a drawn part of
//! what was not flushed; a failure names the sequence by the numbers of its operations. Never: cuts what a
//! shorter sequence has cut: commands of its last operation, and of a sync behind it, are left.
//!
//! An operation that may not be done changes nothing, so no sequence goes on behind one.

use super::actor::{Actor, Of, Op, look};
use super::known::{HALF, Known};
use super::tape::{Disk, Left, Tape};
use super::world::{Trouble, problems};
use super::{now, small};
use flashlane_base::{Rng, SECTOR_BYTES};
use flashlane_parafs::{Fallocate, Fs, Make, Medium, Rename, mkfs};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Cx, Virtual};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sectors of the device: as few as a file system of one-sector pages and segments of eight takes.
const SECTORS: u64 = 720;
const SEGMENT_PAGES: u32 = 8;
/// Every so many cuts, the mount behind one is cut, too.
const SECOND: u64 = 4;
/// The second half of a file lies so far behind that another node names it.
const GAP: u64 = 2000 * SECTOR_BYTES as u64;

/// The small set. The image has `/a` (9,000 bytes), `/d`, and in it `/d/a` (100 bytes).
pub fn operations() -> Vec<Op> {
    let of = |path: &str| Of::Path(path.into());
    let p = |path: &str| path.to_string();
    let rename = |from: &str, to: &str| Op::Rename(from.into(), to.into(), Rename::Replace);
    vec![
        Op::Create(p("/a")),
        Op::Create(p("/b")),
        Op::Create(p("/d/a")),
        Op::Create(p("/d/b")),
        Op::Mkdir(p("/b")),
        Op::Mkdir(p("/d/b")),
        Op::Symlink(p("/b"), 30),
        Op::Rmdir(p("/d")),
        Op::Rmdir(p("/b")),
        Op::Unlink(p("/a")),
        Op::Unlink(p("/b")),
        Op::Unlink(p("/d/a")),
        Op::Link(of("/a"), p("/b")),
        Op::Link(of("/a"), p("/d/b")),
        Op::Link(of("/d/a"), p("/b")),
        rename("/a", "/b"),
        rename("/b", "/a"),
        rename("/a", "/d/a"),
        rename("/d/a", "/a"),
        rename("/d/a", "/d/b"),
        rename("/d", "/b"),
        Op::Rename(p("/a"), p("/d/a"), Rename::Exchange),
        Op::Rename(p("/a"), p("/d"), Rename::Exchange),
        // In its inode, out of it, behind its end, over its pages.
        Op::Write(of("/b"), 0, 100, 1),
        Op::Write(of("/d/a"), 50, 100, 2),
        Op::Write(of("/d/a"), 50, 5_000, 3),
        Op::Write(of("/a"), 2_000, 4_000, 4),
        Op::Write(of("/a"), 9_000, 5_000, 5),
        Op::Write(of("/b"), 0, 5_000, 6),
        // With a node of its own.
        Op::Write(of("/a"), HALF, 3_000, 7),
        Op::Truncate(of("/a"), HALF + 3_000),
        Op::Truncate(of("/a"), 100),
        Op::Truncate(of("/a"), 5_000),
        Op::Truncate(of("/a"), 20_000),
        Op::Allocate(of("/a"), 0, 8_192, Fallocate::Punch, true),
        Op::Allocate(of("/a"), 6_000, 6_000, Fallocate::Zero, false),
        Op::Allocate(of("/b"), 0, 5_000, Fallocate::Keep, false),
        Op::Mode(of("/a"), 0o600),
        Op::SetXattr(of("/a"), 1, 20),
        Op::RemoveXattr(of("/a"), 1),
        Op::Open(of("/a")),
        Op::Fsync(of("/a"), false),
        Op::Fsync(of("/b"), false),
        Op::Fsync(of("/d/a"), false),
        Op::Fsync(of("/d/b"), false),
        Op::Fsync(of("/d"), false),
        Op::Fsync(of("/a"), true),
        Op::Fsync(of("/b"), true),
        Op::Checkpoint,
        Op::Sync,
    ]
}

/// A sequence that failed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// The numbers of its operations.
    pub numbers: Vec<usize>,
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.numbers.iter().map(usize::to_string).collect();
        let command = "cargo test -p flashlane-parafs --test fs every:: -- --nocapture";
        let numbers = numbers.join(".");
        write!(f, "{}\n  replay: FLASHLANE_SEQUENCE={numbers} {command}", self.what)
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sequences that went to their end.
    pub sequences: u64,
    /// Power cuts, each with a mount behind it.
    pub cuts: u64,
    /// Of those, in a mount.
    pub seconds: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.sequences += other.sequences;
        self.cuts += other.cuts;
        self.seconds += other.seconds;
    }
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    body: impl FnOnce(Cx) -> F,
) -> Result<T, String> {
    let clock = Virtual::new(1, 0, CostTable::zero());
    let cx = clock.cx();
    clock.run(body(cx)).map_err(|stalled| stalled.to_string())
}

/// The image that each sequence begins with, and what is known of it.
#[derive(Clone)]
struct Image {
    disk: Disk,
    known: Known,
}

impl Image {
    fn new() -> Result<Image, String> {
        let tape = Arc::new(Tape::new(Disk::default(), SECTORS, 0));
        let known: Arc<Mutex<Known>> = Arc::default();
        let (medium, its) = (Medium::Linear(tape.clone()), known.clone());
        run(async move |cx| {
            let layout = medium.plan(1, SEGMENT_PAGES).map_err(|e| e.to_string())?;
            let made = mkfs(&cx, medium.clone(), layout, &Make::default(), now(&cx)).await;
            made.map_err(|e| e.to_string())?;
            let fs = Fs::mount(&cx, medium, small()).await.map_err(|e| e.to_string())?.0;
            let mut actor = Actor::new(&cx, fs.clone(), its.clone(), Rng::new(0));
            let of = |path: &str| Of::Path(path.into());
            let all = [
                Op::Create("/a".into()),
                Op::Mkdir("/d".into()),
                Op::Create("/d/a".into()),
                Op::Write(of("/a"), 0, 9_000, 8),
                Op::Write(of("/d/a"), 0, 100, 9),
            ];
            for op in all {
                actor.act(&op).await?;
            }
            fs.unmount(&cx).await.map_err(|e| e.to_string())?;
            its.lock().all_durable();
            Ok::<(), String>(())
        })??;
        let disk = tape.cut(tape.commands(), Left::All).settled();
        let known = known.lock().clone();
        Ok(Image { disk, known })
    }
}

/// A command behind which the power may go, and what may be there then.
struct Place {
    commands: usize,
    known: Known,
    /// The operation under way has been acknowledged.
    acked: bool,
}

/// A sequence that was run.
struct Ran {
    tape: Arc<Tape>,
    places: Vec<Place>,
    /// Its last operation was not done.
    refused: bool,
}

/// Runs a sequence, and a sync behind it. Places begin with the last operation.
fn sequence(image: &Image, ops: &[Op]) -> Result<Ran, String> {
    let tape = Arc::new(Tape::new(image.disk.clone(), SECTORS, 1));
    let known = Arc::new(Mutex::new(image.known.clone()));
    let (last, before) = ops.split_last().ok_or("a sequence of nothing")?;
    let (last, before) = (last.clone(), before.to_vec());
    let (its, tapes) = (known.clone(), tape.clone());
    let (places, refused) = run(async move |cx| {
        let medium = Medium::Linear(tapes.clone());
        let fs = Fs::mount(&cx, medium, small()).await.map_err(|e| e.to_string())?.0;
        let mut actor = Actor::new(&cx, fs, its.clone(), Rng::new(0));
        actor.gap = GAP;
        for op in before {
            actor.act(&op).await?;
        }
        let places: Arc<Mutex<Vec<Place>>> = Arc::default();
        let (noted, known) = (places.clone(), its.clone());
        tapes.tell(move |commands| {
            let known = known.lock().clone();
            noted.lock().push(Place { commands, known, acked: false });
        });
        let acked = || {
            let (commands, known) = (tapes.commands(), its.lock().clone());
            places.lock().push(Place { commands, known, acked: true });
        };
        let ends = last == Op::Sync;
        actor.act(&last).await?;
        let refused = actor.refused;
        acked();
        if !refused && !ends {
            actor.act(&Op::Sync).await?;
            acked();
        }
        tapes.tell(|_| {});
        let places = std::mem::take(&mut *places.lock());
        Ok::<_, String>((places, refused))
    })??;
    Ok(Ran { tape, places, refused })
}

/// What a mount makes of a disk, and the tape of it.
fn mounted(disk: Disk, known: &Known, seed: u64) -> Result<Arc<Tape>, String> {
    let tape = Arc::new(Tape::new(disk, SECTORS, seed));
    let (medium, known) = (Medium::Linear(tape.clone()), known.clone());
    let outcome = run(async move |cx| {
        // The checkpoint by itself is one, whatever is behind it.
        problems(&cx, &medium).await?;
        let mounted = Fs::mount(&cx, medium.clone(), small()).await;
        let (fs, _) = mounted.map_err(|e| Trouble::of("it can't be mounted", &e))?;
        let found = look(&cx, &fs, GAP).await?;
        known.allows(&found)?;
        fs.walk()?;
        problems(&cx, &medium).await
    })?;
    outcome.map_err(|why| why.to_string())?;
    Ok(tape)
}

/// Cuts a sequence at every command that no shorter one has.
fn cut(ran: &Ran, tally: &mut Tally) -> Result<(), String> {
    // A disk that was looked at, with the same known, is not looked at again.
    let mut seen = BTreeSet::new();
    for (number, place) in ran.places.iter().enumerate() {
        let seed = number as u64 + 1;
        if place.acked {
            seen.clear();
        }
        for left in [Left::All, Left::None, Left::Drawn(seed)] {
            let disk = ran.tape.cut(place.commands, left);
            if !seen.insert(disk.identity()) {
                continue;
            }
            let say =
                |why: String| format!("cut behind command {}, {left:?}: {why}", place.commands);
            tally.cuts += 1;
            let tape = mounted(disk, &place.known, seed).map_err(say)?;
            if tally.cuts.is_multiple_of(SECOND) && tape.commands() > 0 {
                let mut rng = Rng::stream(seed, "files.every", tally.cuts);
                let at = 1 + rng.below(tape.commands() as u64) as usize;
                let disk = tape.cut(at, Left::Drawn(seed));
                (tally.cuts, tally.seconds) = (tally.cuts + 1, tally.seconds + 1);
                let say = |why| say(format!("and the mount behind its command {at}: {why}"));
                mounted(disk, &place.known, seed).map_err(say)?;
            }
        }
    }
    Ok(())
}

struct Search<'a> {
    image: &'a Image,
    all: &'a [Op],
    depth: usize,
    tally: Tally,
}

impl Search<'_> {
    fn one(&mut self, numbers: &[usize]) -> Result<bool, Failure> {
        let ops: Vec<Op> = numbers.iter().map(|i| self.all[*i].clone()).collect();
        let said = |why: String| {
            let named: Vec<String> = ops.iter().map(Op::to_string).collect();
            let what = format!("{}: {why}", named.join("; "));
            Failure { numbers: numbers.to_vec(), what }
        };
        let ran = sequence(self.image, &ops).map_err(said)?;
        if ran.refused {
            return Ok(false);
        }
        self.tally.sequences += 1;
        cut(&ran, &mut self.tally).map_err(said)?;
        Ok(true)
    }

    /// All sequences that begin like this.
    fn below(&mut self, numbers: &mut Vec<usize>, failures: &mut Vec<Failure>) {
        match self.one(numbers) {
            Ok(false) => return,
            Ok(true) => {}
            // Longer ones fail, too.
            Err(why) => return failures.push(why),
        }
        if numbers.len() < self.depth {
            for i in 0..self.all.len() {
                numbers.push(i);
                self.below(numbers, failures);
                numbers.pop();
            }
        }
    }
}

/// All sequences of up to `depth` operations, on so many threads: what was done, and what failed.
///
/// # Errors
/// The image can't be made.
pub fn every(depth: usize, jobs: usize) -> Result<(Tally, Vec<Failure>), String> {
    let (image, all) = (Image::new()?, operations());
    let next = AtomicUsize::new(0);
    let done = std::sync::Mutex::new((Tally::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let first = next.fetch_add(1, Ordering::Relaxed);
                    if first >= all.len() {
                        return;
                    }
                    let mut search =
                        Search { image: &image, all: &all, depth, tally: Tally::default() };
                    let mut failures = Vec::new();
                    search.below(&mut vec![first], &mut failures);
                    let mut done = done.lock().unwrap_or_else(|broken| broken.into_inner());
                    done.0.add(search.tally);
                    done.1.extend(failures);
                }
            });
        }
    });
    let (tally, mut failures) = done.into_inner().unwrap_or_else(|broken| broken.into_inner());
    failures.sort();
    Ok((tally, failures))
}

/// One sequence, by the numbers of its operations.
///
/// # Errors
/// It fails, or there is no such operation.
pub fn replay(numbers: &[usize]) -> Result<Tally, String> {
    let (image, all) = (Image::new()?, operations());
    if let Some(none) = numbers.iter().find(|i| **i >= all.len()) {
        return Err(format!("there is no operation {none}, the last one is {}", all.len() - 1));
    }
    let depth = numbers.len();
    let mut search = Search { image: &image, all: &all, depth, tally: Tally::default() };
    search.one(numbers).map_err(|failure| failure.what)?;
    Ok(search.tally)
}
