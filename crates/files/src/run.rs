//! The set made, and threads that work on it.
//!
//! Owns: the first files ([`prepare`], [`found`]), one thread per actor, counts. Promises: when it is to
//! stop, each thread ends the call that it is in, and all that was done is counted; the first error
//! stops all. Never: looks at a clock, or decides when it is enough.

use crate::actor::{Actor, Call, Rotation};
use crate::personality::{Kind, Settings};
use crate::system::FileSystem;
use crate::tree::{Planned, Tree};
use flashlane_base::Rng;
use std::io;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub calls: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// That found no file.
    pub skipped: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.calls += other.calls;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.skipped += other.skipped;
    }
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    kinds: [Count; Kind::ALL.len()],
    /// By all threads.
    pub loops: u64,
}

impl Counts {
    pub fn of(&self, kind: Kind) -> Count {
        self.kinds[kind as usize]
    }

    /// All of some kinds.
    pub fn sum(&self, kinds: &[Kind]) -> Count {
        let mut all = Count::default();
        kinds.iter().for_each(|kind| all += self.of(*kind));
        all
    }

    fn add(&mut self, other: &Counts) {
        for (mine, others) in self.kinds.iter_mut().zip(other.kinds) {
            *mine += others;
        }
        self.loops += other.loops;
    }
}

/// Why it could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    #[error("cannot do {what} on {path}: {source}")]
    Call { what: &'static str, path: String, source: io::Error },
    #[error("cannot start thread {number}: {source}: ask for fewer, `--threads`")]
    Thread { number: u32, source: io::Error },
    #[error("there is no file of this set: prepare it first, with the same settings and seed")]
    NoSet,
}

fn failed(what: &'static str, path: &str) -> impl FnOnce(io::Error) -> FilesError {
    let path = path.to_string();
    move |source| FilesError::Call { what, path, source }
}

/// What is written: the same for all files.
fn content(settings: &Settings) -> Vec<u8> {
    let mut rng = Rng::stream(settings.seed, "content", 0);
    let words = settings.io.get().max(settings.append.get()).div_ceil(8);
    (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Makes the folders, and the files that are there at first, in no order. Ends early, without an
/// error, when it is to stop.
pub fn prepare<S: FileSystem>(
    system: &S,
    tree: &Tree,
    settings: &Settings,
    stop: &AtomicBool,
) -> Result<(), FilesError> {
    let content = content(settings);
    for folder in &tree.folders {
        system.make_folder(folder).map_err(failed("mkdir", folder))?;
    }
    let first = tree.order.iter().map(|file| &tree.files[*file]).chain(&tree.log);
    for Planned { path, bytes, .. } in first.filter(|file| file.there) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut file = system.create(path).map_err(failed("createfile", path))?;
        write(system, &mut file, &content, settings, *bytes)
            .map_err(failed("writewholefile", path))?;
    }
    Ok(())
}

/// Which of its files are there.
pub fn found<S: FileSystem>(system: &S, tree: &Tree) -> Result<Vec<bool>, FilesError> {
    let mut there = Vec::with_capacity(tree.files.len());
    for Planned { path, .. } in &tree.files {
        match system.stat(path) {
            Ok(()) => there.push(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => there.push(false),
            Err(e) => return Err(failed("statfile", path)(e)),
        }
    }
    let log = tree.log.iter().all(|log| system.stat(&log.path).is_ok());
    if !log || !there.contains(&true) { Err(FilesError::NoSet) } else { Ok(there) }
}

fn write<S: FileSystem>(
    system: &S,
    file: &mut S::File,
    content: &[u8],
    settings: &Settings,
    bytes: u64,
) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let n = left.min(settings.io.get());
        system.append(file, &content[..n as usize])?;
        left -= n;
    }
    Ok(())
}

/// Does the loops, each thread so many or without an end, until it is to stop. `there` says which files
/// are there ([`Planned::there`] of each behind [`prepare`], or [`found`]).
pub fn run<S: FileSystem>(
    system: &S,
    tree: &Tree,
    settings: &Settings,
    there: Vec<bool>,
    loops: Option<u64>,
    stop: &AtomicBool,
) -> Result<Counts, FilesError> {
    let shared = Shared {
        system,
        tree,
        settings,
        content: content(settings),
        files: Mutex::new(Rotation::new(there)),
        error: Mutex::new(None),
        stop,
        loops,
    };
    let mut all = Counts::default();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..settings.threads {
            let shared = &shared;
            match thread::Builder::new().spawn_scoped(scope, move || shared.work(number)) {
                Ok(thread) => threads.push(thread),
                Err(source) => shared.fail(FilesError::Thread { number, source }),
            }
        }
        for thread in threads {
            match thread.join() {
                Ok(counts) => all.add(&counts),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    match locked(&shared.error).take() {
        Some(error) => Err(error),
        None => Ok(all),
    }
}

/// A thread that panicked is resumed by whoever joins it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared<'a, S> {
    system: &'a S,
    tree: &'a Tree,
    settings: &'a Settings,
    content: Vec<u8>,
    files: Mutex<Rotation>,
    error: Mutex<Option<FilesError>>,
    stop: &'a AtomicBool,
    loops: Option<u64>,
}

impl<S: FileSystem> Shared<'_, S> {
    fn fail(&self, error: FilesError) {
        locked(&self.error).get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn work(&self, number: u32) -> Counts {
        let mut actor = Actor::new(self.settings, number);
        let mut hands =
            Hands { file: None, log: None, room: vec![0; self.settings.io.get() as usize] };
        let mut counts = Counts::default();
        // Calls of this loop that were no skips.
        let mut busy = false;
        while !self.stop.load(Ordering::Relaxed) && self.loops.is_none_or(|n| actor.loops < n) {
            let call = actor.next(self.tree, &mut locked(&self.files));
            match self.call(call, &mut hands) {
                Ok(count) => counts.kinds[call.kind() as usize] += count,
                Err(error) => {
                    self.fail(error);
                    break;
                }
            }
            busy |= !matches!(call, Call::Skip(_));
            let before = actor.loops;
            actor.done(call, &mut locked(&self.files));
            if actor.loops > before && !std::mem::take(&mut busy) {
                thread::yield_now();
            }
        }
        counts.loops = actor.loops;
        counts
    }

    fn call(&self, call: Call, hands: &mut Hands<S::File>) -> Result<Count, FilesError> {
        let what = call.kind().word();
        let mut count = Count { calls: 1, ..Count::default() };
        let planned = |file: usize| self.tree.files[file].path.as_str();
        match call {
            Call::Create(file) => {
                let made = self.system.create(planned(file));
                hands.file = Some((file, made.map_err(failed(what, planned(file)))?));
            }
            Call::Open(file) => {
                let opened = self.system.open(planned(file));
                hands.file = Some((file, opened.map_err(failed(what, planned(file)))?));
            }
            Call::Delete(file) => {
                self.system.delete(planned(file)).map_err(failed(what, planned(file)))?;
            }
            Call::Stat(file) => {
                self.system.stat(planned(file)).map_err(failed(what, planned(file)))?;
            }
            Call::Write(Kind::AppendLog, bytes) => {
                let Some(log) = &self.tree.log else { return Ok(Count::default()) };
                // Opened at the first line, and kept.
                let mut file = match hands.log.take() {
                    Some(file) => file,
                    None => self.system.open(&log.path).map_err(failed(what, &log.path))?,
                };
                let lines = &self.content[..bytes as usize];
                self.system.append(&mut file, lines).map_err(failed(what, &log.path))?;
                hands.log = Some(file);
                count.written_bytes = bytes;
            }
            Call::Close => hands.file = None,
            Call::Skip(_) => return Ok(Count { skipped: 1, ..Count::default() }),
            Call::Write(_, _) | Call::Read | Call::Fsync => {
                let Some((number, file)) = &mut hands.file else { return Ok(Count::default()) };
                let done = match call {
                    Call::Read => {
                        let read = self.system.read_whole(file, &mut hands.room);
                        read.map(|bytes| count.read_bytes = bytes)
                    }
                    Call::Write(_, bytes) => {
                        count.written_bytes = bytes;
                        write(self.system, file, &self.content, self.settings, bytes)
                    }
                    _ => self.system.fsync(file),
                };
                done.map_err(failed(what, planned(*number)))?;
            }
        }
        Ok(count)
    }
}

/// What a thread holds.
struct Hands<F> {
    file: Option<(usize, F)>,
    log: Option<F>,
    room: Vec<u8>,
}
