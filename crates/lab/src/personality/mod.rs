//! Programs that work on files, in virtual time: Filebench's personalities and others.
//!
//! Owns: Filebench's set of files, threads as tasks that work without a pause, what came of a run
//! ([`Work`]). The file system is of `files.rs`, kinds of calls of `calls.rs`. The other programs
//! have files of their own: `postmark.rs`, `mobibench.rs`, `sqlite/` (Mobibench on a real SQLite),
//! `ycsb.rs` with its store. Promises: every byte that is read is compared with what was written; the same seed gives the same run; a file system that
//! is full is a counted failure; whatever cannot go on says why, and ends the run. Never: knows
//! which layers are below.
//!
//! A call costs the host what submitting a request does (`host.submit`). Folders are looked up
//! once, when they are made, as a kernel's cache of names would have them; files at each call.

mod blocks;
mod calls;
mod contents;
mod files;
mod levels;
pub mod mobibench;
pub mod postmark;
pub mod sqlite;
mod store;
pub mod ycsb;

use crate::run::{
    CpuSpan, Measured, Monitor, Prepared, Recorder, RunPlan, Subject, Work as Asked, steady,
};
use crate::together::Together;
pub use calls::{CallKind, CallRecord, Calls};
use contents::Contents;
pub(crate) use files::Files;
pub use files::{Checked, FileError};
use files::{failed, now};
use flashlane_base::{Bytes, Ns, SECTOR_BYTES, mutant};
use flashlane_files::{Actor, Call, Kind, Planned, Rotation, Settings, Tree};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::stats::FtlStats;
use flashlane_parafs::{Fs, FsError, New, Nid, ROOT, Stats};
use flashlane_rt::{CoreId, Cx, Join};
pub(crate) use levels::{FILE_SYSTEM, LEVELS, levels};
use mobibench::Mobibench;
use postmark::Postmark;
use serde::Serialize;
use sqlite::Sqlite;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use ycsb::Ycsb;

/// When a job ends; the first that comes about counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Until {
    /// Calls of its threads that were no skips.
    pub ops: Option<u64>,
    #[serde(rename = "runtime_ns")]
    pub runtime: Option<Ns>,
    /// Bytes that its threads have written.
    #[serde(rename = "written_bytes")]
    pub written: Option<Bytes>,
    /// The same, in percent of what files can have.
    pub written_percent: Option<u64>,
}

impl Until {
    /// It ends when so much is written, and by nothing else.
    fn is_only_written(&self) -> bool {
        self.written.is_some() && self.ops.is_none() && self.runtime.is_none()
    }
}

/// A program with its numbers; the seed is the run's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileJob {
    pub name: String,
    pub program: Program,
    pub until: Until,
}

/// What works on files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    Filebench(Settings),
    Postmark(Postmark),
    Mobibench(Mobibench),
    /// Mobibench, too.
    Sqlite(Sqlite),
    Ycsb(Ycsb),
}

impl Program {
    /// The keys that say how much its files take.
    fn keys_of_size(&self) -> &'static str {
        match self {
            Program::Filebench(_) => "`nfiles`, `filesize`, `prealloc`",
            Program::Postmark(_) => "`number`, `size_high`, `subdirectories`",
            Program::Mobibench(_) => "`filesize`, `nthreads`",
            Program::Sqlite(_) => "`rows`, `nthreads`",
            Program::Ycsb(_) => "`recordcount`, `recordsize`",
        }
    }
}

impl FileJob {
    pub fn threads(&self) -> u32 {
        match &self.program {
            Program::Filebench(settings) => settings.threads,
            Program::Postmark(_) => 1,
            Program::Mobibench(settings) => settings.threads,
            Program::Sqlite(settings) => settings.threads,
            Program::Ycsb(settings) => settings.threads,
        }
    }

    /// Tasks beside its threads: a store's cleaner.
    fn helpers(&self) -> u32 {
        matches!(self.program, Program::Ycsb(_)).into()
    }

    /// Pages of the files that are there at first, with their nodes, and of folders.
    fn first_pages(&self, seed: u64, index: usize, page: u64) -> u64 {
        match &self.program {
            Program::Filebench(settings) => {
                let tree = Tree::draw(&seeded(settings, seed, index));
                let there = tree.files.iter().chain(&tree.log).filter(|file| file.there);
                let pages: u64 = there.map(|file| 1 + file.bytes.div_ceil(page)).sum();
                pages + 2 * tree.folders.len() as u64
            }
            Program::Postmark(settings) => settings.first_pages(page),
            Program::Mobibench(settings) => settings.first_pages(page),
            Program::Sqlite(settings) => settings.first_pages(page),
            Program::Ycsb(settings) => settings.first_pages(page),
        }
    }
}

/// Bytes that a thread reads or writes at once at most: more than a file system takes in one step
/// would only take memory.
const PIECE: u64 = 1 << 20;
/// A thread that has found no file in a whole loop looks again so much later.
const IDLE: Ns = Ns::from_us(10);
/// Where all of them look for so long, they find none any more.
const IDLE_MAX: Ns = Ns::from_ms(10);
/// Calls at one instant, and calls that fail with nothing written meanwhile, by which a run has no
/// end.
const CALLS_MAX: u64 = 1 << 20;
const FAILURES_MAX: u64 = 100_000;
/// Calls between two looks at the monitor.
const LOOK_EVERY: u64 = 512;
/// Types and permissions of what is made.
const FOLDER: u16 = 0o040_755;
const FILE: u16 = 0o100_644;

/// What came of a run on files.
pub struct Work {
    /// By kind, in the order of [`CallKind::ALL`].
    pub calls: Calls,
    pub prepared_files: u64,
    pub prepared_bytes: u64,
    /// Sectors that the file system wrote to what is below it in the measured part, and read.
    pub written_below: u64,
    pub read_below: u64,
    /// What the file system did in it.
    pub stats: Stats,
    /// Of a page of the file system.
    pub page_sectors: u64,
    /// When cleaning began in it, as far as was looked: from its start.
    pub cleaning: Option<Ns>,
    /// What the check at the end has looked at.
    pub checked: Option<Checked>,
    /// What lay together in flash blocks then, where that can be said.
    pub together: Option<Together>,
    /// A call that must not fail did.
    pub broken: Option<String>,
    /// What the first call that found no room was, where its program has words for that.
    pub refused: Option<String>,
}

/// Why nothing more is done.
enum End {
    Interrupted,
    /// The file system takes nothing any more.
    ReadOnly(String),
    /// A call failed that can't.
    Broken(String),
    Error(FileError),
}

impl End {
    /// An error that is not one of those which a run may meet.
    fn of(e: FsError, what: &str) -> End {
        match e {
            FsError::ReadOnly(why) => End::ReadOnly(why),
            e => End::Broken(format!("{what}: {e}")),
        }
    }
}

/// A job under way.
struct Job {
    asked: FileJob,
    /// Its place in the plan, and the name of its folder.
    index: usize,
    seed: u64,
    set: Set,
    contents: RefCell<Contents>,
    /// Of each file the folder that it is in, and its name there; a log is the last.
    places: RefCell<Vec<(Nid, String)>>,
    /// Calls that have begun, those of them that are under way, and when the last one ended.
    begun: Cell<u64>,
    under_way: Cell<u64>,
    ended_at: Cell<Ns>,
    /// Bytes written when it was looked at last, and calls that had begun when there were fewer.
    wrote: Cell<(u64, u64)>,
    written: Cell<u64>,
    /// Bytes of the first files.
    prepared: Cell<u64>,
    /// Bytes at once: read, written.
    pieces: (u64, u64),
}

/// What all threads of a job work on.
enum Set {
    Filebench { tree: Tree, rotation: RefCell<Rotation> },
    Postmark(RefCell<postmark::Set>),
    Mobibench(RefCell<mobibench::Set>),
    Sqlite(Box<sqlite::Set>),
    Ycsb(Box<ycsb::Set>),
}

/// Those of a job that is this far down in the plan.
fn seeded(settings: &Settings, seed: u64, index: usize) -> Settings {
    Settings { seed: seed.wrapping_add(index as u64), ..settings.clone() }
}

impl Job {
    fn new(asked: &FileJob, seed: u64, index: usize, room: Bytes) -> Job {
        let mut asked = asked.clone();
        if let Some(percent) = asked.until.written_percent {
            let bytes = u128::from(room.get()) * u128::from(percent) / 100;
            asked.until.written = Some(Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX)));
        }
        if let Program::Filebench(settings) = &mut asked.program {
            *settings = seeded(settings, seed, index);
        }
        let seed = seed.wrapping_add(index as u64);
        let (set, files, pieces) = match &asked.program {
            Program::Filebench(settings) => {
                let tree = Tree::draw(settings);
                let files = tree.files.len() + tree.log.iter().len();
                let rotation = Rotation::new(tree.files.iter().map(|file| file.there)).into();
                let io = settings.io.get();
                (Set::Filebench { tree, rotation }, files, (io, io))
            }
            Program::Postmark(settings) => {
                let set = postmark::Set::new(settings, seed);
                let pieces = (settings.read.get(), settings.write.get());
                (Set::Postmark(set.into()), settings.number as usize, pieces)
            }
            Program::Mobibench(settings) => {
                let set = mobibench::Set::new(settings, seed);
                (Set::Mobibench(set.into()), 0, (PIECE, PIECE))
            }
            Program::Sqlite(settings) => {
                (Set::Sqlite(sqlite::Set::new(settings, seed).into()), 0, (PIECE, PIECE))
            }
            Program::Ycsb(settings) => {
                (Set::Ycsb(ycsb::Set::new(settings).into()), 0, (PIECE, PIECE))
            }
        };
        Job {
            index,
            seed,
            set,
            contents: Contents::new(seed, files).into(),
            places: RefCell::default(),
            begun: Cell::new(0),
            under_way: Cell::new(0),
            ended_at: Cell::new(Ns::ZERO),
            wrote: Cell::new((0, 0)),
            written: Cell::new(0),
            prepared: Cell::new(0),
            pieces: (pieces.0.min(PIECE), pieces.1.min(PIECE)),
            asked,
        }
    }

    fn place(&self, file: usize) -> (Nid, String) {
        self.places.borrow()[file].clone()
    }

    /// The path of a file, for people.
    fn path(&self, file: usize) -> String {
        match &self.set {
            Set::Filebench { tree, .. } => {
                let planned = tree.files.get(file).or(tree.log.as_ref());
                planned.expect("it is of the tree").path.clone()
            }
            _ => format!("{}/{}", self.asked.name, self.place(file).1),
        }
    }
}

impl Files {
    /// Prepares the files of all jobs, then has their threads work.
    ///
    /// # Errors
    /// Something can't be done, and it is no error that a run is about.
    pub(crate) async fn run(
        &self,
        cx: &Cx,
        subject: Subject,
        plan: &RunPlan,
        monitor: Rc<dyn Monitor>,
    ) -> Result<Measured, FileError> {
        let asked = plan.work.iter().filter_map(|work| match work {
            Asked::Files(job) => Some(job),
            _ => None,
        });
        let asked: Vec<&FileJob> = asked.collect();
        self.fits(&asked, plan.seed)?;
        let room = Bytes::new(self.sectors().0 * SECTOR_BYTES as u64);
        let jobs = asked.iter().enumerate();
        let jobs =
            jobs.map(|(index, job)| Rc::new(Job::new(job, plan.seed, index, room))).collect();
        let bench = Rc::new(Bench {
            fs: self.fs.clone(),
            subject,
            monitor,
            submit_cost: cx.stage_cost("host.submit"),
            jobs,
            recorder: RefCell::default(),
            calls: RefCell::default(),
            written: Cell::new(0),
            done: Cell::new(0),
            instant: Cell::new((Ns::ZERO, 0)),
            failures: Cell::new(0),
            last: Cell::new(Ns::ZERO),
            cleaned: Cell::new(0),
            cleaning: Cell::new(None),
            end: RefCell::new(None),
            refused: RefCell::new(None),
        });
        for job in &bench.jobs {
            bench.prepare(cx, job).await?;
        }
        let prepared = bench.done.replace(0);
        // What the preparation left to be written is none of the measured part.
        self.fs.sync(cx).await.map_err(failed("writing the first files back"))?;
        if !bench.is_over() && plan.rest > Ns::ZERO {
            cx.sleep(plan.rest).await;
        }
        let (capacity, used) = self.sectors();
        let (before, below) = (bench.stats(), (bench.subject.stats)());
        let (course, by_then) = (bench.course(), self.fs.stats());
        let cpu = CpuSpan::until_now(cx);
        let contention = bench.subject.contention.as_ref().map(|look| look(cx.now()));
        let watch = self.watch(&bench.subject.watch);
        bench.recorder.borrow_mut().begin(cx.now(), &watch);
        bench.last.set(cx.now());
        bench.cleaned.set(bench.cleaned());
        (bench.subject.begin)();
        bench.work(cx).await;
        {
            let mut recorder = bench.recorder.borrow_mut();
            recorder.end = recorder.end.max(bench.last.get());
            recorder.close(&|| bench.course());
        }
        let cpu = CpuSpan::until_now(cx).since(&cpu);
        let to = bench.subject.contention.as_ref().map(|look| look(cx.now()));
        let contention = to.zip(contention).map(|(to, from)| to.since(&from));
        // What the threads wrote is in pages in memory: it counts once it is on the medium.
        if let Err(e) = self.fs.sync(cx).await {
            bench.over(End::of(e, "sync"));
        }
        let (after, now_below) = (bench.stats(), (bench.subject.stats)());
        let (stats, calls) = (self.fs.stats().since(&by_then), bench.calls.take());
        let mapped = (used, self.sectors().1);
        bench.check(cx).await;
        let (mut interrupted, mut read_only, mut broken) = (false, None, None);
        match bench.end.take() {
            Some(End::Interrupted) => interrupted = true,
            Some(End::ReadOnly(why)) => read_only = Some(why),
            Some(End::Broken(why)) => broken = Some(why),
            Some(End::Error(e)) => return Err(e),
            None => {}
        }
        let recorder = bench.recorder.take();
        let work = Work {
            calls,
            prepared_files: prepared,
            prepared_bytes: bench.jobs.iter().map(|job| job.prepared.get()).sum(),
            written_below: now_below.host_written - below.host_written,
            read_below: now_below.host_read - below.host_read,
            stats,
            page_sectors: self.page_sectors(),
            cleaning: bench.cleaning.get().map(|began| began - recorder.start),
            checked: None,
            together: None,
            broken,
            refused: bench.refused.take(),
        };
        Ok(Measured {
            steady: steady::judge(recorder.timeline.buckets(), &course.into(), false, interrupted),
            recorder,
            before,
            after,
            interrupted,
            read_only,
            prepared: Prepared { rest_ns: plan.rest.as_ns(), ..Prepared::default() },
            mapped,
            capacity,
            submit_cost: bench.submit_cost,
            cpu,
            contention,
            replayed: Vec::new(),
            ended_in_ramp: false,
            files: Some(work),
        })
    }
}

/// What all threads of a run share.
struct Bench {
    fs: Arc<Fs>,
    subject: Subject,
    monitor: Rc<dyn Monitor>,
    submit_cost: Ns,
    jobs: Vec<Rc<Job>>,
    recorder: RefCell<Recorder>,
    calls: RefCell<Calls>,
    /// Bytes that threads have written.
    written: Cell<u64>,
    /// Files made, or calls done.
    done: Cell<u64>,
    /// When the last call ended, and how many have ended then.
    instant: Cell<(Ns, u64)>,
    /// Calls that failed since the last one that wrote.
    failures: Cell<u64>,
    /// The end of the last call.
    last: Cell<Ns>,
    /// Segments that were cleaned before the measured part, and when the first one was seen in it.
    cleaned: Cell<u64>,
    cleaning: Cell<Option<Ns>>,
    end: RefCell<Option<End>>,
    /// What the first call that found no room was, where its program has words for that.
    refused: RefCell<Option<String>>,
}

/// What a thread holds.
#[derive(Default)]
struct Hands {
    open: Option<(usize, Nid)>,
    log: Option<Nid>,
    room: Vec<u8>,
}

impl Bench {
    fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }

    fn over(&self, end: End) {
        self.end.borrow_mut().get_or_insert(end);
    }

    /// The counters of the layers below; what the host wrote is what the threads did.
    fn stats(&self) -> FtlStats {
        let host_written = self.written.get() / SECTOR_BYTES as u64;
        FtlStats { host_written, ..(self.subject.stats)() }
    }

    /// As [`Bench::stats`], with what the file system has cleaned: a course is steady or not by
    /// both.
    fn course(&self) -> FtlStats {
        let stats = self.stats();
        FtlStats { gc_victims: stats.gc_victims + self.cleaned(), ..stats }
    }

    /// Segments that the file system has cleaned.
    fn cleaned(&self) -> u64 {
        let fs = self.fs.stats();
        fs.foreground_victims + fs.background_victims + fs.wear_victims
    }

    fn look(&self, stage: &'static str, total: Option<u64>) {
        self.monitor.progress(stage, self.done.get(), total);
        if self.monitor.interrupted() {
            self.over(End::Interrupted);
        }
    }

    /// Makes the folder of a job, and its first files.
    async fn prepare(&self, cx: &Cx, job: &Job) -> Result<(), FileError> {
        let what = "making the first files";
        let folder = self.folder(cx, ROOT, &job.index.to_string()).await.map_err(failed(what))?;
        let done = match &job.set {
            Set::Filebench { tree, .. } => self.prepare_tree(cx, job, tree, folder).await,
            Set::Postmark(set) => postmark::prepare(self, cx, job, set, folder).await,
            Set::Mobibench(set) => mobibench::prepare(self, cx, job, set, folder).await,
            Set::Sqlite(set) => sqlite::prepare(self, cx, job, set, folder).await,
            Set::Ycsb(set) => ycsb::prepare(self, cx, job, set, folder).await,
        };
        done.map_err(|e| match self.refused.take() {
            Some(words) => failed(&format!("{what}: {words}"))(e),
            None => failed(what)(e),
        })?;
        self.written.set(0);
        job.prepared.set(job.written.replace(0));
        Ok(())
    }

    async fn folder(&self, cx: &Cx, parent: Nid, name: &str) -> Result<Nid, FsError> {
        let folder = New { mode: FOLDER, ..New::default() };
        Ok(self.fs.create(cx, parent, name.as_bytes(), &folder, now(cx)).await?.ino)
    }

    /// One more of the first files is there, of so many. False when no more are to be made.
    fn made(&self, total: u64) -> bool {
        self.done.set(self.done.get() + 1);
        if self.done.get().is_multiple_of(LOOK_EVERY) {
            self.look("files", Some(total));
        }
        !self.is_over()
    }

    /// Makes Filebench's folders and first files.
    async fn prepare_tree(&self, cx: &Cx, job: &Job, tree: &Tree, top: Nid) -> Result<(), FsError> {
        let mut folders: BTreeMap<&str, Nid> = BTreeMap::from([("", top)]);
        for path in &tree.folders {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let ino = self.folder(cx, folders[parent], name).await?;
            folders.insert(path, ino);
        }
        let all = tree.files.iter().chain(&tree.log);
        let place = |file: &Planned| {
            let (parent, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
            (folders[parent], name.to_string())
        };
        *job.places.borrow_mut() = all.map(place).collect();
        let log = tree.log.iter().map(|_| tree.files.len());
        let first = tree.order.iter().copied().filter(|file| tree.files[*file].there);
        let total = tree.files.iter().filter(|file| file.there).count() as u64;
        let mut room = Vec::new();
        self.look("files", Some(total));
        for file in first.chain(log) {
            if self.is_over() {
                break;
            }
            let bytes = tree.files.get(file).or(tree.log.as_ref()).map_or(0, |f| f.bytes);
            let ino = self.create(cx, job, file).await?;
            self.append(cx, job, (file, ino), bytes, &mut room).await?;
            self.fs.release(cx, ino).await?;
            self.made(total);
        }
        Ok(())
    }

    /// All threads of all jobs, to their ends.
    async fn work(self: &Rc<Bench>, cx: &Cx) {
        let mut threads: Vec<Join<()>> = Vec::new();
        let begin = cx.now();
        for job in &self.jobs {
            for number in 0..job.asked.threads() + job.asked.helpers() {
                let cx = cx.on_core(CoreId(threads.len() as u32 % cx.cores()));
                let (me, job) = (self.clone(), job.clone());
                let end = job.asked.until.runtime.map(|time| begin + time);
                threads.push(
                    cx.clone().spawn_join(async move { me.one(&cx, &job, number, end).await }),
                );
            }
        }
        for thread in threads {
            thread.await;
        }
    }

    /// What a job's program can only say of its files when it has ended. It is not measured.
    async fn check(&self, cx: &Cx) {
        for job in self.jobs.iter().take_while(|_| !self.is_over()) {
            if let Set::Sqlite(set) = &job.set {
                sqlite::check(self, cx, job, set).await;
            }
        }
    }

    /// Whether a job begins one more call.
    fn goes_on(&self, cx: &Cx, job: &Job, end: Option<Ns>) -> bool {
        let until = &job.asked.until;
        !self.is_over()
            && end.is_none_or(|end| cx.now() < end)
            && until.ops.is_none_or(|ops| job.begun.get() < ops)
            && until.written.is_none_or(|bytes| job.written.get() < bytes.get())
    }

    /// One thread of a job.
    async fn one(&self, cx: &Cx, job: &Job, number: u32, end: Option<Ns>) {
        match &job.set {
            Set::Filebench { tree, rotation } => {
                let Program::Filebench(settings) = &job.asked.program else { return };
                let actor = Actor::new(settings, number);
                self.thread(cx, job, (tree, rotation), actor, end).await;
            }
            Set::Postmark(set) => postmark::thread(self, cx, job, set, end).await,
            Set::Mobibench(set) => mobibench::thread(self, cx, job, set, number, end).await,
            Set::Sqlite(set) => sqlite::thread(self, cx, job, set, number, end).await,
            Set::Ycsb(set) => ycsb::thread(self, cx, job, set, number, end).await,
        }
    }

    async fn thread(
        &self,
        cx: &Cx,
        job: &Job,
        (tree, rotation): (&Tree, &RefCell<Rotation>),
        mut actor: Actor,
        end: Option<Ns>,
    ) {
        let mut hands = Hands::default();
        // Something of this loop was no skip.
        let mut busy = false;
        while self.goes_on(cx, job, end) {
            let call = actor.next(tree, &mut rotation.borrow_mut());
            let ok = match call {
                Call::Skip(kind) => {
                    self.skipped(kind);
                    true
                }
                call => {
                    busy = true;
                    self.timed(cx, job, call, &mut hands).await
                }
            };
            let loops = actor.loops;
            match ok {
                true => actor.done(call, &mut rotation.borrow_mut()),
                false => actor.failed(call, &mut rotation.borrow_mut()),
            }
            if actor.loops > loops {
                match std::mem::take(&mut busy) {
                    true => cx.yield_now().await,
                    false => {
                        let since = cx.now().saturating_sub(job.ended_at.get());
                        if job.under_way.get() == 0 && since > IDLE_MAX {
                            let job = job.asked.name.clone();
                            self.over(End::Error(FileError::NoFile { job, since }));
                        }
                        cx.sleep(IDLE).await;
                    }
                }
            }
        }
        self.let_go(cx, hands).await;
    }

    /// Closes what a thread still holds.
    async fn let_go(&self, cx: &Cx, hands: Hands) {
        for ino in hands.open.map(|(_, ino)| ino).into_iter().chain(hands.log) {
            if let Err(e) = self.fs.release(cx, ino).await {
                self.over(End::of(e, "closefile"));
            }
        }
    }

    /// Does a call and records it. False when it failed.
    async fn timed(&self, cx: &Cx, job: &Job, call: Call, hands: &mut Hands) -> bool {
        self.record(cx, job, call.kind().into(), self.call(cx, job, call, hands)).await
    }

    /// Records a call that gives how many bytes it moved. False when it failed.
    async fn record(
        &self,
        cx: &Cx,
        job: &Job,
        kind: CallKind,
        call: impl Future<Output = Result<u64, FsError>>,
    ) -> bool {
        job.begun.set(job.begun.get() + 1);
        job.under_way.set(job.under_way.get() + 1);
        let start = cx.now();
        if self.submit_cost > Ns::ZERO {
            cx.cpu(self.submit_cost).await;
        }
        let (op, about) = (kind.op(), Some(job.index));
        let result = call.await;
        let now = cx.now();
        job.under_way.set(job.under_way.get() - 1);
        job.ended_at.set(now);
        self.recorder.borrow_mut().request(about, start, result.is_ok());
        if let (Ok(bytes), Some(op)) = (&result, op) {
            let course = || self.course();
            self.recorder.borrow_mut().operation(about, op, *bytes, start, now, &course);
        }
        self.last.set(self.last.get().max(now));
        let ok = result.is_ok();
        {
            let mut calls = self.calls.borrow_mut();
            let record = &mut calls[kind.index()];
            match &result {
                Ok(bytes) => {
                    record.latency.record((now - start).as_ns());
                    record.bytes += bytes;
                }
                Err(_) => record.failed += 1,
            }
        }
        self.note(job, now, op, result.err(), kind);
        self.done.set(self.done.get() + 1);
        if self.done.get().is_multiple_of(LOOK_EVERY) {
            self.look("run", job.asked.until.ops);
            if self.cleaning.get().is_none() && self.cleaned() > self.cleaned.get() {
                self.cleaning.set(Some(now));
            }
        }
        ok
    }

    /// A program has done something to its files that is no call of its users.
    fn inner(&self, cx: &Cx, kind: CallKind, bytes: u64, start: Ns) {
        let mut calls = self.calls.borrow_mut();
        let record = &mut calls[kind.index()];
        record.latency.record((cx.now() - start).as_ns());
        record.bytes += bytes;
    }

    /// There was no file for a call.
    fn skipped(&self, kind: Kind) {
        self.calls.borrow_mut()[CallKind::from(kind).index()].skipped += 1;
    }

    /// Sees whether this can go on.
    fn note(
        &self,
        job: &Job,
        now: Ns,
        op: Option<BlockOp>,
        error: Option<FsError>,
        kind: CallKind,
    ) {
        let (last, calls) = self.instant.get();
        let calls = if now == last { calls + 1 } else { 0 };
        self.instant.set((now, calls));
        let name = || job.asked.name.clone();
        if calls >= CALLS_MAX && job.asked.until.ops.is_none() {
            self.over(End::Error(FileError::NoTime { job: name(), calls }));
        }
        let (written, since) = job.wrote.get();
        if job.written.get() != written {
            job.wrote.set((job.written.get(), job.begun.get()));
        } else if job.begun.get() - since >= CALLS_MAX && job.asked.until.is_only_written() {
            let calls = job.begun.get() - since;
            self.over(End::Error(FileError::NoWrite { job: name(), calls }));
        }
        match error {
            // Whatever else goes well: a full file system is one that takes no bytes.
            None if op == Some(BlockOp::Write) => self.failures.set(0),
            None => {}
            Some(why @ (FsError::NoSpace | FsError::Io(_))) => {
                match why {
                    FsError::Io(_) => self.recorder.borrow_mut().uncorrectable += 1,
                    _ => self.recorder.borrow_mut().no_room += 1,
                }
                let calls = self.failures.get() + 1;
                self.failures.set(calls);
                if calls >= FAILURES_MAX {
                    let words = self.refused.borrow().clone();
                    let why = words.map_or(why.to_string(), |words| format!("{words}: {why}"));
                    let keys = job.asked.program.keys_of_size();
                    self.over(End::Error(FileError::Full { job: name(), calls, why, keys }));
                }
            }
            Some(e) => self.over(End::of(e, kind.word())),
        }
    }

    /// Does a call; how many bytes it moved.
    async fn call(
        &self,
        cx: &Cx,
        job: &Job,
        call: Call,
        hands: &mut Hands,
    ) -> Result<u64, FsError> {
        let fs = &self.fs;
        match call {
            Call::Create(file) => {
                hands.open = Some((file, self.create(cx, job, file).await?));
            }
            Call::Open(file) => {
                let (folder, name) = job.place(file);
                let ino = fs.lookup(cx, folder, name.as_bytes()).await?.ino;
                fs.open(cx, ino).await?;
                hands.open = Some((file, ino));
            }
            Call::Delete(file) => {
                let (folder, name) = job.place(file);
                fs.unlink(cx, folder, name.as_bytes(), now(cx)).await?;
            }
            Call::Stat(file) => {
                let (folder, name) = job.place(file);
                fs.lookup(cx, folder, name.as_bytes()).await?;
            }
            Call::Write(Kind::AppendLog, bytes) => {
                let file = job.places.borrow().len() - 1;
                // Opened at the first line, and kept.
                let ino = match hands.log {
                    Some(ino) => ino,
                    None => {
                        let (folder, name) = job.place(file);
                        let ino = fs.lookup(cx, folder, name.as_bytes()).await?.ino;
                        fs.open(cx, ino).await?;
                        *hands.log.insert(ino)
                    }
                };
                self.append(cx, job, (file, ino), bytes, &mut hands.room).await?;
                return Ok(bytes);
            }
            Call::Close => {
                if let Some((_, ino)) = hands.open.take() {
                    fs.release(cx, ino).await?;
                }
            }
            Call::Write(..) | Call::Read | Call::Fsync => {
                let Some(open) = hands.open else { return Ok(0) };
                match call {
                    Call::Read => return self.read(cx, job, open, &mut hands.room).await,
                    Call::Write(_, bytes) => {
                        self.append(cx, job, open, bytes, &mut hands.room).await?;
                        return Ok(bytes);
                    }
                    _ => fs.fsync(cx, open.1, false).await?,
                }
            }
            Call::Skip(_) => {}
        }
        Ok(0)
    }

    /// Makes an empty file and opens it.
    async fn create(&self, cx: &Cx, job: &Job, file: usize) -> Result<Nid, FsError> {
        let (folder, name) = job.place(file);
        let new = New { mode: FILE, ..New::default() };
        let ino = self.fs.create(cx, folder, name.as_bytes(), &new, now(cx)).await?.ino;
        job.contents.borrow_mut().create(file);
        self.fs.open(cx, ino).await?;
        Ok(ino)
    }

    /// So much has been written to a file.
    fn wrote(&self, job: &Job, bytes: u64) {
        job.written.set(job.written.get() + bytes);
        self.written.set(self.written.get() + bytes);
    }

    /// Writes behind the end of a file.
    async fn append(
        &self,
        cx: &Cx,
        job: &Job,
        (file, ino): (usize, Nid),
        bytes: u64,
        room: &mut Vec<u8>,
    ) -> Result<(), FsError> {
        let piece = job.pieces.1;
        let range = job.contents.borrow_mut().begin_append(file, bytes);
        let mut at = range.start;
        let mut done = Ok(());
        while at < range.end && done.is_ok() {
            room.resize((range.end - at).min(piece) as usize, 0);
            job.contents.borrow().fill(file, at, room);
            done = self.fs.write(cx, ino, at, room, now(cx)).await;
            if done.is_ok() {
                at += room.len() as u64;
                self.wrote(job, room.len() as u64);
            }
        }
        job.contents.borrow_mut().end_append(file, &range, done.is_ok());
        done
    }

    /// Reads all of a file, and compares it.
    async fn read(
        &self,
        cx: &Cx,
        job: &Job,
        (file, ino): (usize, Nid),
        room: &mut Vec<u8>,
    ) -> Result<u64, FsError> {
        let piece = job.pieces.0;
        let seen = job.contents.borrow().begin_read(file);
        let (mut at, mut wrong) = (0, 0);
        loop {
            // One byte more than there is, so that the end is found.
            let most = (seen.end() + 1).saturating_sub(at).clamp(1, piece);
            room.resize(most as usize, 0);
            let n = self.fs.read(cx, ino, at, room).await?;
            wrong += job.contents.borrow().wrong(file, &seen, at, &room[..n]);
            at += n as u64;
            if n < room.len() {
                break;
            }
        }
        let missing = seen.least().saturating_sub(at).div_ceil(SECTOR_BYTES as u64);
        if wrong + missing > 0 && !mutant!("lab.reads-not-compared") {
            let what = format!(
                "{}: {wrong} sectors of {} bytes are not what was written, {missing} are missing",
                job.path(file),
                seen.end()
            );
            self.recorder.borrow_mut().mismatch(what, wrong + missing);
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
