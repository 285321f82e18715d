//! Drives a block device in virtual time and records what came of it.
//!
//! Owns: the plan of a run ([`RunPlan`]), preparation ([`prepare`]), jobs ([`drive`]), replayed
//! traces ([`replay`]), the oracle that checks every read ([`oracle`]), what is recorded
//! ([`record`]) and whether it was steady ([`steady`]).
//! Promises: everything read is verified; results cover the measured part only, and everything the
//! host wrote in it has been programmed, absorbed or discarded when the counters are read (a flush
//! ends it); an interrupt ends the run with what is done so far. Never: knows which stack it
//! drives.
//!
//! Start reading at [`run`], then [`drive`].

mod cpu;
pub mod drive;
pub mod intervals;
pub mod jobs;
pub mod oracle;
pub mod prepare;
pub mod record;
pub mod replay;
pub mod sample;
pub mod steady;
#[cfg(test)]
mod tests;

pub use cpu::CpuSpan;
pub use flashlane_ftl::contention::Contention;
pub use oracle::Mismatch;
pub use prepare::{Fill, Overwrite, Prepared};
use record::State;
pub use record::{Bucket, Recorder, Timeline};
pub use replay::{Replay, Replayed, TraceJob};
pub use sample::{Probe, Sample, Watch};
pub use steady::Steady;

use crate::personality::{self, FileError, FileJob};
pub use crate::trace::progress::{Progress, Unwatched};
use crate::trace::{LayoutError, TraceError};
use crate::workload::{Job, JobError};
use bytes::Bytes;
use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockError, BlockOp, Io};
use flashlane_ftl::stats::FtlStats;
use flashlane_rt::{Cx, Notify};
use oracle::{Oracle, Windows};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Who looks on at a run.
pub trait Monitor: Progress {
    /// The same moment, for a target that counts what its cores wait for: who shows that looks, nobody
    /// else pays for it.
    fn contention(&self, _look: &dyn Fn() -> Contention) {}
}

impl Monitor for Unwatched {}

/// What is driven: a block device and its counters.
#[derive(Clone)]
pub struct Subject {
    pub device: Arc<dyn BlockDev>,
    /// Its layer's counters since it was created.
    pub stats: Rc<dyn Fn() -> FtlStats>,
    /// Called when the measured part begins.
    pub begin: Rc<dyn Fn()>,
    /// What is kept beside sums.
    pub watch: Watch,
    /// What its cores waited for so far, where it counts that.
    pub contention: Option<Rc<dyn Fn(Ns) -> Contention>>,
    /// Sectors may hold something from before; a number that no earlier run on the device had.
    pub used: Option<u64>,
    /// One of its layers discards sectors of its own accord.
    pub discards: bool,
}

/// One part of a workload.
#[derive(Clone)]
pub enum Work {
    /// A job of requests made here.
    Job(Box<Job>),
    /// A recorded trace.
    Trace(TraceJob),
    /// A personality of Filebench, for a file system.
    Files(FileJob),
}

#[derive(Clone)]
pub struct RunPlan {
    /// Seed of every random stream.
    pub seed: u64,
    /// Sequential writes before the run.
    pub fill: Fill,
    /// Random writes before the run.
    pub overwrite: Overwrite,
    /// What runs before the measured part, one after the other.
    pub warm_up: Vec<Work>,
    /// The host is idle for so long then.
    pub rest: Ns,
    /// What runs, all at once unless a job waits for those before it.
    pub work: Vec<Work>,
}

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Files(#[from] FileError),
    #[error("`{job}` works on files, and this is a block device: put a file system on it")]
    NoFiles { job: String },
    /// A dependent replay of a trace that does not say when requests ended.
    #[error(
        "trace {trace} has no completions, so `replay = \"dependent\"` knows nothing to wait for: \
         use \"open\" or \"closed\""
    )]
    NoCompletions { trace: String },
    #[error(
        "the prepared device holds {found} logical sectors, the target {wanted}: remove what is on the shelf"
    )]
    OtherDevice { found: u64, wanted: u64 },
    #[error(
        "{wanted} requests in flight at once are more than the {max} a run keeps: lower iodepth or \
         numjobs"
    )]
    TooDeep { wanted: u64, max: u64 },
}

/// Requests in flight in one run: a task and a buffer each.
const IN_FLIGHT_MAX: u64 = 1 << 20;

/// Results of the measured part of a run.
pub struct Measured {
    /// Latencies, sums, course.
    pub recorder: Recorder,
    /// Counters when the measured part began.
    pub before: FtlStats,
    /// Counters after the flush that ended it.
    pub after: FtlStats,
    pub steady: Steady,
    /// The user ended it.
    pub interrupted: bool,
    /// The layer could not make data durable any more.
    pub read_only: Option<String>,
    /// What was done before.
    pub prepared: Prepared,
    /// Sectors with data when the measured part began, and at the end.
    pub mapped: (u64, u64),
    /// Logical sectors.
    pub capacity: u64,
    /// Host CPU time that submitting one operation costs.
    pub submit_cost: Ns,
    /// What the host's cores did, up to the end of the last request.
    pub cpu: CpuSpan,
    /// What its cores waited for inside the layer, up to then.
    pub contention: Option<Contention>,
    /// How traces were replayed, in the order of the plan.
    pub replayed: Vec<Replayed>,
    /// The measured part never began: everything ended within the ramp.
    pub ended_in_ramp: bool,
    /// What was done on a file system, where that was driven.
    pub files: Option<personality::Work>,
}

/// Why requests are not issued any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Interrupted,
    ReadOnly(&'static str),
}

/// The state of things when the measured part began.
struct Before {
    stats: FtlStats,
    mapped: u64,
    cpu: CpuSpan,
    contention: Option<Contention>,
}

/// State that all tasks of a run share.
pub(crate) struct Host {
    subject: Subject,
    unit: usize,
    pub(crate) capacity: u64,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) recorder: RefCell<Recorder>,
    monitor: Rc<dyn Monitor>,
    stop: Cell<Option<Stop>>,
    submit_cost: Ns,
    stage: Cell<&'static str>,
    done: Cell<u64>,
    total: Cell<Option<u64>>,
    /// State when the measured part began.
    before: RefCell<Option<Before>>,
}

/// Buffers of one request, used again by the next.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The part of the plan that it belongs to, if that is a job.
    pub(crate) job: Option<usize>,
    /// The device is told that its writes are a journal's.
    pub(crate) told_journal: bool,
    /// What is written next, where that is known: as many bytes as the sectors have.
    pub(crate) given: Option<Bytes>,
    buf: Vec<u8>,
    windows: Windows,
}

/// Longest read or write handed to a device at once; longer requests go in pieces.
const OPERATION_SECTORS_MAX: u32 = ((16 << 20) / SECTOR_BYTES) as u32;
/// Operations between two looks at the monitor.
const LOOK_EVERY: u64 = 512;

impl Host {
    pub(crate) fn new(cx: &Cx, subject: Subject, monitor: Rc<dyn Monitor>) -> Host {
        let info = subject.device.info();
        let (unit, capacity) = (info.content_bytes, info.capacity);
        let mut oracle = match subject.used {
            Some(life) => Oracle::of_used(capacity, life),
            None => Oracle::new(capacity),
        };
        if subject.discards {
            oracle.expect_discards();
        }
        Host {
            unit,
            capacity,
            oracle: RefCell::new(oracle),
            recorder: RefCell::new(Recorder::default()),
            monitor,
            stop: Cell::new(None),
            submit_cost: cx.stage_cost("host.submit"),
            stage: Cell::new("run"),
            done: Cell::new(0),
            total: Cell::new(None),
            before: RefCell::new(None),
            subject,
        }
    }

    /// Whether to issue nothing more.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.get().is_some()
    }

    /// A new stage for the monitor: `total` operations, if that is known.
    pub(crate) fn begin_stage(&self, stage: &'static str, total: Option<u64>) {
        self.stage.set(stage);
        self.done.set(0);
        self.total.set(total);
        self.look();
    }

    fn look(&self) {
        let (done, total) = (self.done.get(), self.total.get());
        self.monitor.progress(self.stage.get(), done, total);
        if self.monitor.interrupted() && self.stop.get().is_none() {
            self.stop.set(Some(Stop::Interrupted));
        }
    }

    /// Counters of the layer now.
    pub(crate) fn stats(&self) -> FtlStats {
        (self.subject.stats)()
    }

    /// What the layer's cores waited for so far.
    fn contention(&self, cx: &Cx) -> Option<Contention> {
        self.subject.contention.as_ref().map(|look| look(cx.now()))
    }

    /// The measured part begins now, if it has not begun.
    pub(crate) fn measure(&self, cx: &Cx) {
        if !self.recorder.borrow().is_measuring() {
            self.begin_measuring(cx);
        }
    }

    fn begin_measuring(&self, cx: &Cx) {
        let mapped = self.oracle.borrow().mapped();
        *self.before.borrow_mut() = Some(Before {
            stats: self.stats(),
            mapped,
            cpu: CpuSpan::until_now(cx),
            contention: self.contention(cx),
        });
        self.recorder.borrow_mut().begin(cx.now(), &self.subject.watch);
        (self.subject.begin)();
    }

    /// A request of this kind for this sector comes soon.
    pub(crate) fn expect(&self, op: BlockOp, lba: Lba) {
        self.subject.device.expect(op, lba);
        self.oracle.borrow().expect(lba.get());
    }

    /// Does one operation, verifies what was read, records it. False when it failed.
    pub(crate) async fn operation(
        &self,
        cx: &Cx,
        op: BlockOp,
        lba: u64,
        sectors: u32,
        fua: bool,
        scratch: &mut Scratch,
    ) -> bool {
        if sectors <= OPERATION_SECTORS_MAX || op == BlockOp::Discard {
            return self.single(cx, op, lba, sectors, fua, scratch).await;
        }
        let mut ok = true;
        let mut at = 0;
        while at < sectors {
            let n = (sectors - at).min(OPERATION_SECTORS_MAX);
            let rest = scratch.given.as_mut().map(|given| given.split_off(n as usize * self.unit));
            let rest = rest.filter(|rest| !rest.is_empty());
            ok &= self.single(cx, op, lba + at as u64, n, fua, scratch).await;
            scratch.given = rest;
            at += n;
        }
        ok
    }

    /// The device keeps what is written, all of it.
    pub(crate) fn keeps_contents(&self) -> bool {
        self.unit == SECTOR_BYTES
    }

    async fn single(
        &self,
        cx: &Cx,
        op: BlockOp,
        lba: u64,
        sectors: u32,
        fua: bool,
        scratch: &mut Scratch,
    ) -> bool {
        let start = cx.now();
        if self.submit_cost != Ns::ZERO {
            cx.cpu(self.submit_cost).await;
        }
        let waited = (cx.now() - start).saturating_sub(self.submit_cost);
        let bytes = match op {
            BlockOp::Read | BlockOp::Write => sectors as usize * self.unit,
            _ => 0,
        };
        scratch.buf.resize(bytes, 0);
        match op {
            BlockOp::Read => {
                let mut oracle = self.oracle.borrow_mut();
                oracle.begin_read(lba, sectors, &mut scratch.windows);
            }
            BlockOp::Write => {
                let mut oracle = self.oracle.borrow_mut();
                match scratch.given.take() {
                    Some(given) => {
                        scratch.buf.copy_from_slice(&given);
                        oracle.begin_given(lba, &given);
                    }
                    None => oracle.begin_write(lba, &mut scratch.buf, self.unit),
                }
            }
            BlockOp::Discard => self.oracle.borrow_mut().begin_discard(lba, sectors),
            BlockOp::Flush => {}
        }
        let mut io = Io::of(op, Lba::new(lba), sectors, fua, &mut scratch.buf);
        io.hint.journal = scratch.told_journal;
        let result = self.subject.device.start(cx, io).await;
        self.settle(op, lba, sectors, &result, scratch);
        let mut recorder = self.recorder.borrow_mut();
        let moved = match op {
            BlockOp::Flush => 0,
            _ => u64::from(sectors) * SECTOR_BYTES as u64,
        };
        recorder.operation(scratch.job, op, moved, start, cx.now(), &*self.subject.stats);
        recorder.queued(scratch.job, op, start, waited);
        drop(recorder);
        self.done.set(self.done.get() + 1);
        if self.done.get().is_multiple_of(LOOK_EVERY) {
            self.look();
            if let Some(look) = &self.subject.contention {
                self.monitor.contention(&|| look(cx.now()));
            }
        }
        result.is_ok()
    }

    fn settle(
        &self,
        op: BlockOp,
        lba: u64,
        sectors: u32,
        result: &Result<(), BlockError>,
        scratch: &Scratch,
    ) {
        let unreadable: &[Lba] = match result {
            Ok(()) => &[],
            Err(BlockError::Uncorrectable(list)) => list,
            Err(BlockError::ReadOnly(why)) => {
                self.stop.set(self.stop.get().or(Some(Stop::ReadOnly(why))));
                &[]
            }
            // Jobs and layouts stay inside the device: this is a bug of ours.
            Err(e @ BlockError::Invalid { .. }) => unreachable!("a request of ours: {e}"),
        };
        match op {
            BlockOp::Read => {
                let mut recorder = self.recorder.borrow_mut();
                if self.stage.get() != prepare::STAGE {
                    recorder.uncorrectable += unreadable.len() as u64;
                }
                drop(recorder);
                if matches!(result, Err(BlockError::ReadOnly(_))) {
                    return;
                }
                let oracle = self.oracle.borrow();
                let skip = |at: u64| unreadable.contains(&Lba::new(at));
                let wrong = oracle.check_read(lba, &scratch.windows, &scratch.buf, self.unit, skip);
                if let Some((first, n)) = wrong {
                    self.recorder.borrow_mut().mismatch(first, n);
                }
            }
            BlockOp::Write | BlockOp::Discard => {
                self.oracle.borrow_mut().finish(lba, sectors, result.is_ok());
            }
            BlockOp::Flush => {}
        }
    }
}

/// Where a run begins whose device was prepared before.
pub struct Start {
    /// What its sectors hold.
    pub(crate) oracle: Oracle,
    /// How it came about.
    pub(crate) prepared: Prepared,
}

/// How often a run on the real clock looks at its monitor, whatever its requests do.
const LOOK_AFTER: Ns = Ns::from_ms(100);

/// On the real clock requests may be far apart, and somebody waits for the run to hear them.
fn look_regularly(cx: &Cx, host: &Rc<Host>) {
    if cx.is_virtual() {
        return;
    }
    let (cx, host) = (cx.clone(), Rc::downgrade(host));
    cx.clone().spawn(async move {
        let never = Notify::new();
        // It ends with the run, and keeps none alive.
        while let Some(host) = host.upgrade() {
            host.look();
            drop(host);
            let next = cx.now() + LOOK_AFTER;
            cx.arm_idle(next);
            never.wait(&cx, || cx.now() >= next).await;
        }
    });
}

/// A plan that fits the device.
pub(crate) struct Parts {
    warm_up: Vec<drive::Part>,
    work: Vec<drive::Part>,
}

/// Everything that can be wrong is found before the first request.
fn plan_parts(host: &Rc<Host>, plan: &RunPlan) -> Result<Parts, RunError> {
    let deep: u64 = plan.work.iter().map(depth).sum();
    let deep = plan.warm_up.iter().map(depth).fold(deep, u64::max);
    if deep > IN_FLIGHT_MAX {
        return Err(RunError::TooDeep { wanted: deep, max: IN_FLIGHT_MAX });
    }
    let fit = |works: &[Work], seed| -> Result<Vec<drive::Part>, RunError> {
        works.iter().map(|work| drive::fit(work, seed, host.capacity)).collect()
    };
    let warm_up = fit(&plan.warm_up, plan.seed ^ prepare::WARM_UP)?;
    Ok(Parts { warm_up, work: fit(&plan.work, plan.seed)? })
}

/// Prepares a device for a run that comes later, in words why it can't be used for one.
pub(crate) async fn prepare_only(
    cx: &Cx,
    subject: Subject,
    plan: &RunPlan,
    monitor: Rc<dyn Monitor>,
) -> Result<Start, String> {
    let host = Rc::new(Host::new(cx, subject, monitor));
    let parts = plan_parts(&host, plan).map_err(|e| e.to_string())?;
    let prepared = prepare::prepare(cx, &host, plan, &parts).await.map_err(|e| e.to_string())?;
    let oracle = host.oracle.replace(Oracle::new(0));
    match host.stop.get() {
        Some(Stop::Interrupted) => Err("it was interrupted".into()),
        Some(Stop::ReadOnly(why)) => Err(format!("the device became read-only: {why}")),
        None if !oracle.is_settled() => Err("requests are in flight".into()),
        None if oracle.has_given() => Err("a trace's contents are on it".into()),
        None if prepared.filled_sectors == 0 => Err("there is nothing to prepare".into()),
        None => Ok(Start { oracle, prepared }),
    }
}

/// Runs a plan on a device: prepares, measures, flushes, judges.
pub async fn run(
    cx: &Cx,
    subject: Subject,
    plan: &RunPlan,
    monitor: Rc<dyn Monitor>,
) -> Result<Measured, RunError> {
    run_from(cx, subject, plan, monitor, None).await
}

/// As [`run`]; a device that was prepared before is not prepared again.
pub(crate) async fn run_from(
    cx: &Cx,
    subject: Subject,
    plan: &RunPlan,
    monitor: Rc<dyn Monitor>,
    start: Option<Start>,
) -> Result<Measured, RunError> {
    let host = Rc::new(Host::new(cx, subject, monitor));
    let parts = plan_parts(&host, plan)?;
    look_regularly(cx, &host);
    let prepared = match start {
        None => prepare::prepare(cx, &host, plan, &parts).await?,
        Some(start) if start.oracle.capacity() == host.capacity => {
            host.oracle.replace(start.oracle);
            start.prepared
        }
        Some(start) => {
            let (found, wanted) = (start.oracle.capacity(), host.capacity);
            return Err(RunError::OtherDevice { found, wanted });
        }
    };
    let replayed = drive::drive(cx, &host, plan, parts.work).await?;
    let ended_in_ramp = host.before.borrow().is_none();
    if ended_in_ramp {
        host.begin_measuring(cx);
    }
    host.recorder.borrow_mut().close(&*host.subject.stats);
    let (cpu, contention) = (CpuSpan::until_now(cx), host.contention(cx));
    // What the host wrote is still in buffers: it counts as written only once it is programmed.
    let mut scratch = Scratch::default();
    host.done.set(0);
    let interrupted = host.stop.get() == Some(Stop::Interrupted);
    if !matches!(host.stop.get(), Some(Stop::ReadOnly(_))) {
        host.stop.set(None); // that flush may find that nothing can be made durable
        quiet_flush(cx, &host, &mut scratch).await;
    }
    let read_only = match host.stop.get() {
        Some(Stop::ReadOnly(why)) => Some(why.to_string()),
        Some(Stop::Interrupted) | None => None,
    };
    let Before { stats: before, mapped, cpu: cpu_before, contention: waited_before } =
        host.before.borrow_mut().take().expect("set above");
    let recorder = host.recorder.take();
    let at_start = State::from(before);
    let paced = plan.work.iter().any(is_paced);
    let mapped_end = host.oracle.borrow().mapped();
    Ok(Measured {
        steady: steady::judge(recorder.timeline.buckets(), &at_start, paced, interrupted),
        recorder,
        before,
        after: host.stats(),
        interrupted,
        read_only,
        prepared,
        mapped: (mapped, mapped_end),
        capacity: host.capacity,
        submit_cost: host.submit_cost,
        cpu: cpu.since(&cpu_before),
        contention: contention.zip(waited_before).map(|(to, from)| to.since(&from)),
        replayed,
        ended_in_ramp,
        files: None,
    })
}

/// Whether a part of a workload fits a device of `capacity` sectors.
pub fn fits(work: &Work, seed: u64, capacity: u64) -> Result<(), RunError> {
    drive::fit(work, seed, capacity).map(|_| ())
}

/// A flush that is in no result.
pub(crate) async fn quiet_flush(cx: &Cx, host: &Host, scratch: &mut Scratch) {
    scratch.buf.clear();
    let io = Io::of(BlockOp::Flush, Lba::new(0), 0, false, &mut scratch.buf);
    let result = host.subject.device.start(cx, io).await;
    host.settle(BlockOp::Flush, 0, 0, &result, scratch);
}

fn depth(work: &Work) -> u64 {
    match work {
        Work::Job(job) => job.iodepth as u64 * job.numjobs as u64,
        Work::Trace(trace) => trace.replay.depth() as u64,
        Work::Files(job) => job.threads().into(),
    }
}

fn is_paced(work: &Work) -> bool {
    match work {
        Work::Job(job) => job.rate != [crate::workload::Pace::Unlimited; 2],
        Work::Trace(trace) => matches!(trace.replay, Replay::Open { .. }),
        Work::Files(_) => false,
    }
}
