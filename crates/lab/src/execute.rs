//! From an experiment to its outcome: each target gets a fresh device and its own virtual time.
//!
//! Owns: the order of steps of one run (build, prepare, measure, drain, check), the folding of
//! fingerprints. Promises: targets do not influence each other; an interrupt ends the run in
//! progress and starts no other. Never: formats a result.

use crate::control::power::Switch;
use crate::experiment::{Experiment, Gives, Target, Workload};
use crate::files::medium;
use crate::lnvm::Mounted;
use crate::personality::{FileError, Files};
use crate::raw;
use crate::raw::run::{RawError, RawJob, run_raw};
use crate::run::{self, Measured, Monitor, RunError, RunPlan, Subject, TraceJob, Work};
use crate::serve::{Address, Watch};
use crate::shelf::{Shelf, Shelved, Untaken};
use crate::stack::{Lines, Stack, StackError, raw_medium};
use crate::tap::TapError;
use crate::together::Together;
use crate::trace::scan::scan_to_replay;
use crate::trace::{Reading, Recorded, Scan, Take, TraceError};
use crate::workload::Job;
use flashlane_base::{Geometry, Ns, mutant};
use flashlane_ftl::layer::{Counted, Seam};
use flashlane_ocssd::rules::Violation;
use flashlane_ocssd::ssd::spans::Kept;
use flashlane_ocssd::{BufferCount, Device, MediaCounters, SlcCount, Ssd};
use flashlane_parafs::Medium;
use flashlane_rt::{Cx, Stalled, Threads, Virtual};
use flashlane_serve::Stop;
use flashlane_stack::{Description, behind_link};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

/// Why an experiment ended without an outcome.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("target `{target}` on device `{device}`: {source}")]
    Stack { target: String, device: String, source: Box<StackError> },
    #[error("target `{target}`: {source}")]
    Run { target: String, source: Box<RunError> },
    #[error("target `{target}`: {source}")]
    Raw { target: String, source: Box<RawError> },
    /// Workloads write anywhere.
    #[error(
        "target `{target}` is written in order, segment by segment, and workloads are not: put a file \
         system on it, or use another type"
    )]
    InOrder { target: String },
    /// The prepared device of a target can't be kept, or can't be used.
    #[error("the prepared device of target `{target}`: {why}; or leave --prepared out")]
    Shelf {
        target: String,
        /// Why, and what to do.
        why: String,
    },
    /// Somebody cut the power of the drive that the target lives on.
    #[error(
        "target `{target}` of {}: the power of the drive was cut {at} into the run; what was not flushed may be \
         lost, and the next mount recovers the rest", image.display()
    )]
    PowerCut {
        target: String,
        image: PathBuf,
        /// When, from the begin of the run.
        at: Ns,
    },
    /// Several cores on the real clock.
    #[error(
        "target `{target}` has {cores} host cores, and a run on the real clock has one: say \
         `--set run.host_cores=1`, or leave --clock out"
    )]
    RealCores {
        /// Target.
        target: String,
        /// Its cores.
        cores: u32,
    },
    #[error("target `{target}`: {source}")]
    Stalled { target: String, source: Stalled },
    #[error("target `{target}`: {source}")]
    Record { target: String, source: TapError },
    #[error(
        "target `{target}` has no block device, so there is nothing to record: leave --record out, or record a \
         layer"
    )]
    RecordRaw { target: String },
    /// Metrics can't be had by HTTP.
    #[error("target `{target}`: --metrics: {why}")]
    Metrics { target: String, why: String },
}

/// Who is told an address when clients can connect.
pub type Ready = dyn Fn(&dyn fmt::Display);

/// Where a run's metrics are to be had, and who is told when they are.
#[derive(Clone)]
pub struct Watched {
    pub at: Address,
    pub ready: Rc<Ready>,
}

/// Which time a run goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Simulated: the same seed gives the same run.
    #[default]
    Virtual,
    /// The machine's, on one core, which is the calling thread. The medium takes the time that it would take, and the
    /// host's own work takes what it takes here. No two runs are the same.
    Real,
}

impl Clock {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Virtual => "virtual",
            Clock::Real => "real",
        }
    }
}

/// What is kept of a run beside what every report has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observe {
    /// Latency histograms over time.
    pub intervals: bool,
    /// Spans of dies and channels, so many at most per target.
    pub spans: usize,
}

pub struct RunOutcome {
    pub target: Target,
    pub measured: Measured,
    /// The medium's counters over the measured part.
    pub media: MediaSpan,
    /// Chunks of the target's PUs by erases since the device was new: per channel, erases → chunks.
    pub wear: Vec<BTreeMap<u32, u64>>,
    /// What dies and channels did, where that was asked for.
    pub spans: Kept,
    /// Dimensions of the device.
    pub geometry: Geometry,
    /// Sectors of the PUs that the target has.
    pub raw_sectors: u64,
    pub lines: Option<Lines>,
    /// What its layers have counted beside what all layers do: the layer's name, its numbers.
    pub counted: Vec<(&'static str, Vec<Counted>)>,
    /// What the sectors that it holds are to a file system at the end, where a layer says it.
    pub pages: Vec<Counted>,
    /// How many sectors' newest contents lie in which chunk at the end, by (PU, chunk); with `pages` only.
    pub valid: BTreeMap<(u32, u32), u32>,
    /// How it was found on its drive, if it lives on one.
    pub mounted: Option<Mounted>,
    /// Broken rules in the whole run, preparation included.
    pub violations: u64,
    /// Sectors that the medium could not give in the whole run, whoever asked: the host, the
    /// layer's own reads, the mount. A fault that only the mount meets is in no other sum.
    pub uncorrectable: u64,
    /// The first of them.
    pub violations_shown: Vec<Violation>,
    /// Counter laws and walks.
    pub laws: Result<(), String>,
    /// What was recorded of it, where that was asked for.
    pub recorded: Option<Recorded>,
    /// Of this run; 0 on the real clock.
    pub fingerprint: u64,
    /// Events simulated; 0 on the real clock.
    pub polls: u64,
}

/// What the medium did between two moments.
#[derive(Clone, Debug, Default)]
pub struct MediaSpan {
    pub time: Ns,
    /// Die time by what held it: reading, programming, erasing; summed over dies.
    pub die_busy: [Ns; 3],
    /// Bus time summed over channels.
    pub channel_busy: Ns,
    pub dies: u64,
    pub channels: u64,
    pub erases: u64,
    pub channel_erases: Vec<u64>,
    /// What held each die, in PU order: reading, programming, erasing.
    pub die_spans: Vec<[Ns; 3]>,
    pub read_sectors: u64,
    pub programmed: u64,
    /// Memory that contents took at the end.
    pub store_bytes: u64,
    /// What the device's write buffer did, where it has one.
    pub buffer: Option<BufferCount>,
    /// What was done in SLC mode, where the device has it.
    pub slc: Option<SlcCount>,
}

impl MediaSpan {
    fn between(from: &MediaCounters, to: &MediaCounters, time: Ns) -> MediaSpan {
        let dies = |c: &MediaCounters, pick: fn(&flashlane_ocssd::DieBusy) -> Ns| {
            c.dies.iter().fold(Ns::ZERO, |sum, d| sum + pick(d))
        };
        let span = |pick| dies(to, pick).saturating_sub(dies(from, pick));
        let buses = |c: &MediaCounters| c.channels.iter().fold(Ns::ZERO, |sum, b| sum + *b);
        MediaSpan {
            time,
            die_busy: [span(|d| d.read), span(|d| d.program), span(|d| d.erase)],
            channel_busy: buses(to).saturating_sub(buses(from)),
            dies: to.dies.len() as u64,
            channels: to.channels.len() as u64,
            erases: to.erases - from.erases,
            channel_erases: since(&to.channel_erases, &from.channel_erases, |a, b| a - b),
            die_spans: since(&to.dies, &from.dies, |a, b| {
                [(a.read, b.read), (a.program, b.program), (a.erase, b.erase)]
                    .map(|(a, b)| a.saturating_sub(b))
            }),
            read_sectors: to.read_sectors - from.read_sectors,
            programmed: to.programmed_total() - from.programmed_total(),
            store_bytes: to.store_bytes,
            buffer: to.buffer.map(|now| now.since(&from.buffer.unwrap_or_default())),
            slc: to.slc.map(|now| now.since(&from.slc.unwrap_or_default())),
        }
    }
}

/// Item by item what came about; `from` may be empty where nothing had begun.
fn since<T: Copy + Default, R>(to: &[T], from: &[T], of: impl Fn(T, T) -> R) -> Vec<R> {
    let before = from.iter().copied().chain(std::iter::repeat(T::default()));
    to.iter().zip(before).map(|(a, b)| of(*a, b)).collect()
}

/// How often the chunks of a stack were erased, per channel of the device.
fn wear_of(ssd: &Ssd, stack: &Description) -> Vec<BTreeMap<u32, u64>> {
    let geo = ssd.geometry();
    let (first, last) = stack.pus.unwrap_or((0, geo.pus() - 1));
    let (chunk, to) = stack.chunks.unwrap_or((0, geo.chunks_per_pu - 1));
    let mut wear = vec![BTreeMap::new(); geo.channels as usize];
    for pu in first..=last {
        let channel = &mut wear[(pu / geo.pus_per_channel) as usize];
        for info in ssd.chunk_report(pu, chunk, to - chunk + 1) {
            *channel.entry(info.erases).or_default() += 1;
        }
    }
    wear
}

pub struct Outcome {
    /// The experiment as it was run.
    pub experiment: Experiment,
    /// Its scanned traces.
    pub scans: Scans,
    /// One per target that ran.
    pub runs: Vec<RunOutcome>,
    /// Which time the runs went by.
    pub clock: Clock,
    /// All runs' fingerprints, folded; means nothing on the real clock.
    pub fingerprint: u64,
    /// The user ended it.
    pub interrupted: bool,
}

impl Outcome {
    /// Whether something came out that must not ([`RunOutcome::bad_because`]).
    pub fn is_bad(&self) -> bool {
        let allowed = self.experiment.run.allow_errors;
        self.runs.iter().any(|run| !run.bad_because(allowed).is_empty())
    }
}

impl RunOutcome {
    /// What came out that must not, each in words. With `allow_errors` requests may fail and the device may
    /// turn read-only: that is what the experiment is about.
    pub fn bad_because(&self, allow_errors: bool) -> Vec<String> {
        let (r, mut bad) = (&self.measured.recorder, Vec::new());
        let mut note = |n: u64, what: &str| {
            if n > 0 {
                bad.push(format!("{n} {what}"));
            }
        };
        note(self.violations, "broken rules of the medium");
        note(r.wrong_sectors, "sectors with wrong content");
        if !allow_errors {
            let full =
                "found the file system full: make its files fewer or smaller, or the device larger";
            match r.no_room {
                0 => note(r.failed, "failed requests"),
                full_ones => {
                    note(r.failed, &format!("failed requests, {full_ones} of which {full}"))
                }
            }
            note(r.uncorrectable, "sectors that could not be read");
        }
        bad.extend(self.laws.as_ref().err().map(|why| format!("counters disagree: {why}")));
        let read_only = self.measured.read_only.as_ref().filter(|_| !allow_errors);
        bad.extend(read_only.map(|why| format!("the device became read-only: {why}")));
        bad
    }
}

/// The traces of an experiment, each in the order of those whom it is for.
pub struct Scans {
    pub warm_up: Vec<Rc<Scan>>,
    pub workloads: Vec<Rc<Scan>>,
}

/// Reads the traces of an experiment once.
pub fn scan_traces(experiment: &Experiment) -> Result<Scans, TraceError> {
    let (mut scans, mut readings): (Vec<Rc<Scan>>, Vec<Reading>) = Default::default();
    let is_trace = |workload: &&Workload| matches!(workload, Workload::Trace(_));
    let of_warm_up = experiment.warm_up.iter().filter(is_trace).count();
    for workload in experiment.warm_up.iter().chain(&experiment.workloads) {
        if let Workload::Trace(spec) = workload {
            // The same trace twice is read once.
            let known = scans
                .iter()
                .zip(&readings)
                .find(|(s, reading)| s.source == spec.source && **reading == spec.reading)
                .map(|(s, _)| s);
            let found = match known {
                Some(known) => known.clone(),
                None => {
                    let places = spec.scale_to_device;
                    Rc::new(scan_to_replay(&spec.source, &spec.reading, places)?)
                }
            };
            scans.push(found);
            readings.push(spec.reading);
        }
    }
    let workloads = scans.split_off(of_warm_up);
    Ok(Scans { warm_up: scans, workloads })
}

/// Workloads with their scanned traces.
fn works(workloads: &[Workload], scans: &[Rc<Scan>]) -> Vec<Work> {
    let mut scans = scans.iter();
    let with = |workload: &Workload| match workload {
        Workload::Job(job) => Work::Job(job.clone()),
        Workload::Trace(spec) => Work::Trace(TraceJob {
            scan: scans.next().expect("each trace was scanned").clone(),
            device: spec.device.clone(),
            scale: spec.scale_to_device,
            replay: spec.replay,
            loops: spec.loops,
            truth: spec.truth.clone(),
            hint: spec.hint,
        }),
        Workload::Files(job) => Work::Files(job.clone()),
    };
    workloads.iter().map(with).collect()
}

/// What a target is asked, with its scanned traces: all of its warm-up, its own of the workloads.
pub(crate) fn plan_of(experiment: &Experiment, target: &Target, scans: &Scans) -> RunPlan {
    let all = works(&experiment.workloads, &scans.workloads).into_iter().enumerate();
    RunPlan {
        seed: experiment.run.seed,
        fill: experiment.run.fill,
        overwrite: experiment.run.overwrite,
        warm_up: works(&experiment.warm_up, &scans.warm_up),
        rest: experiment.run.rest,
        work: all.filter(|(i, _)| target.takes(*i)).map(|(_, work)| work).collect(),
    }
}

/// How an experiment is run; usually on virtual time, and nothing is kept.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    pub clock: Clock,
    /// Results and fingerprints are the same whatever is kept.
    pub observe: Observe,
    /// Devices are prepared on it, once.
    pub shelf: Option<&'a Shelf>,
    /// The metrics of the drive are to be had by HTTP; on the real clock.
    pub metrics: Option<&'a Watched>,
    /// What the measured part asks of a target is recorded; each of several targets has its name behind the
    /// file's.
    pub record: Option<&'a Take>,
}

/// Runs an experiment. `watch` gives the monitor of each target's run.
///
/// # Errors
/// Something of it can't be. On the real clock a target of several cores is refused.
pub fn execute(
    experiment: &Experiment,
    how: How<'_>,
    watch: &dyn Fn(&Target) -> Rc<dyn Monitor>,
) -> Result<Outcome, ExecuteError> {
    let How { clock, observe, shelf, record, metrics } = how;
    let has_no_block_device = |t: &&Target| t.stack.is_raw() || t.stack.in_order();
    if let Some(raw) =
        experiment.targets.iter().find(|t| record.is_some() && has_no_block_device(t))
    {
        return Err(ExecuteError::RecordRaw { target: raw.name.clone() });
    }
    if let Some(target) =
        experiment.targets.iter().find(|t| t.gives() == Gives::Sectors && t.stack.in_order())
    {
        return Err(ExecuteError::InOrder { target: target.name.clone() });
    }
    if let (Some(_), Some(target)) = (metrics, experiment.targets.first()) {
        let why = match (clock, target.stack.is_raw()) {
            (Clock::Virtual, _) => {
                "in virtual time nobody waits for a socket: say `--clock real`, or leave it out and ask \
                 `flashlane top DRIVE --prometheus`"
            }
            (Clock::Real, true) => "a target of type `raw` has none: leave it out",
            (Clock::Real, false) => "",
        };
        if !why.is_empty() {
            let target = target.name.clone();
            return Err(ExecuteError::Metrics { target, why: why.into() });
        }
    }
    if clock == Clock::Real
        && let Some(target) = experiment.targets.iter().find(|target| target.host.cores > 1)
    {
        let (target, cores) = (target.name.clone(), target.host.cores);
        return Err(ExecuteError::RealCores { target, cores });
    }
    let scans = scan_traces(experiment)?;
    let mut outcome = Outcome {
        experiment: experiment.clone(),
        scans,
        runs: Vec::new(),
        clock,
        fingerprint: 0xcbf2_9ce4_8422_2325,
        interrupted: false,
    };
    for target in &experiment.targets {
        let monitor = watch(target);
        if monitor.interrupted() {
            outcome.interrupted = true;
            break;
        }
        let plan = plan_of(experiment, target, &outcome.scans);
        let shelved = shelf.map(|shelf| shelf.take(experiment, target, &plan, &monitor));
        let (shelved, why_not) = match shelved {
            Some(Ok(shelved)) => (Some(shelved), None),
            Some(Err(Untaken::Unprepared(why))) => (None, Some(format!("not used: {why}"))),
            Some(Err(Untaken::Shelf(why))) => {
                let why = format!("{why}: make room for it there, or take another folder");
                return Err(ExecuteError::Shelf { target: target.name.clone(), why });
            }
            None => (None, None),
        };
        let several = experiment.targets.len() > 1;
        let record = record.map(|take| take_of(take, several.then_some(&*target.name)));
        let kept = Keep { observe, record, metrics: metrics.cloned() };
        let mut run = run_target(clock, kept, target, plan, monitor, shelved)?;
        if why_not.is_some() {
            run.measured.prepared.shelf = why_not;
        }
        outcome.fingerprint =
            (outcome.fingerprint ^ run.fingerprint).wrapping_mul(0x0000_0100_0000_01b3);
        outcome.interrupted |= run.measured.interrupted;
        outcome.runs.push(run);
    }
    Ok(outcome)
}

/// What is kept of the run of one target.
struct Keep {
    observe: Observe,
    record: Option<Take>,
    metrics: Option<Watched>,
}

/// What is recorded of one of several targets.
fn take_of(take: &Take, target: Option<&str>) -> Take {
    let mut take = take.clone();
    if let Some(target) = target {
        let part = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let (stem, suffix) = (part(take.to.file_stem()), part(take.to.extension()));
        // A name is for people, and may have what a file name should not.
        let words = target.split(|c: char| !c.is_alphanumeric() && !"-_".contains(c));
        let target = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-");
        let dot = if suffix.is_empty() { "" } else { "." };
        take.to.set_file_name(format!("{stem}-{target}{dot}{suffix}"));
    }
    take
}

fn run_target(
    clock: Clock,
    kept: Keep,
    target: &Target,
    plan: RunPlan,
    monitor: Rc<dyn Monitor>,
    shelved: Option<Shelved>,
) -> Result<RunOutcome, ExecuteError> {
    let switch = Rc::new(Switch::default());
    let (seed, owned, power) = (plan.seed, target.clone(), switch.clone());
    let main = |cx: Cx| async move {
        let steps = async {
            match owned.stack.is_raw() {
                true => raw_steps(&cx, kept.observe, &owned, &plan, monitor, &power).await,
                false => steps(&cx, kept, &owned, &plan, monitor, &power, shelved).await,
            }
        };
        let ran = power.unless_off(&cx, steps).await;
        (ran, cx.now())
    };
    // When this is through, the run is gone: nobody uses the drive when its power goes.
    let (ended, fingerprint, polls) = match clock {
        Clock::Virtual => {
            let vm = Virtual::new(target.host.cores, seed, target.host.costs.clone());
            let ended = vm.run(main(vm.cx()));
            (ended, vm.fingerprint().0, vm.polls())
        }
        Clock::Real => (Threads::new(1, seed).run_here(main), 0, 0),
    };
    let (ran, at) =
        ended.map_err(|source| ExecuteError::Stalled { target: target.name.clone(), source })?;
    let Some(ran) = ran else {
        let image = switch.cut(at).map_err(|e| stack_error(target, e.into()))?;
        return Err(ExecuteError::PowerCut { target: target.name.clone(), image, at });
    };
    let (mut run, ssd) = ran?;
    (run.violations, run.violations_shown) = (ssd.counters().violations, ssd.violations());
    (run.fingerprint, run.polls) = (fingerprint, polls);
    Ok(run)
}

fn stack_error(target: &Target, source: StackError) -> ExecuteError {
    ExecuteError::Stack {
        target: target.name.clone(),
        device: target.stack.device.spec.name.clone(),
        source: source.into(),
    }
}

/// The medium's counters when measuring begins, and whom to tell that it does.
fn snapshot(
    cx: &Cx,
    ssd: &Arc<Ssd>,
    observe: Observe,
) -> (Rc<RefCell<MediaCounters>>, Rc<dyn Fn()>) {
    let taken = Rc::new(RefCell::new(MediaCounters::default()));
    let (ssd, slot, cx) = (ssd.clone(), taken.clone(), cx.clone());
    let begin = move || {
        *slot.borrow_mut() = ssd.counters_at(cx.now());
        if observe.spans > 0 {
            ssd.keep_spans(observe.spans);
        }
    };
    (taken, Rc::new(begin))
}

/// A run whose last request has ended, before its target stops: what that writes is none of the measured
/// part. What the end of the target and of the machine add is not there yet.
fn measured_on(
    cx: &Cx,
    target: &Target,
    ssd: &Ssd,
    raw_sectors: u64,
    from: &MediaCounters,
    measured: Measured,
) -> RunOutcome {
    let time = cx.now().saturating_sub(measured.recorder.start);
    RunOutcome {
        target: target.clone(),
        measured,
        media: MediaSpan::between(from, &ssd.counters_at(cx.now()), time),
        wear: wear_of(ssd, &target.stack),
        spans: ssd.take_spans(),
        geometry: *ssd.geometry(),
        raw_sectors,
        lines: None,
        counted: Vec::new(),
        pages: Vec::new(),
        valid: BTreeMap::new(),
        mounted: None,
        violations: 0,
        uncorrectable: 0,
        violations_shown: Vec::new(),
        laws: Ok(()),
        recorded: None,
        fingerprint: 0,
        polls: 0,
    }
}

async fn raw_steps(
    cx: &Cx,
    observe: Observe,
    target: &Target,
    plan: &RunPlan,
    monitor: Rc<dyn Monitor>,
    power: &Rc<Switch>,
) -> Result<(RunOutcome, Arc<Ssd>), ExecuteError> {
    let (ssd, part, drive) =
        raw_medium(cx, target, plan.seed, power).map_err(|e| stack_error(target, e))?;
    let before = ssd.counters().uncorrectable;
    let jobs = match raw_jobs(&plan.work, part.geometry()) {
        Ok(jobs) => jobs,
        Err(source) => {
            // Nothing has happened to it, and nobody may go on listening.
            let _ = drive.map(|drive| drive.close());
            let source = source.into();
            return Err(ExecuteError::Raw { target: target.name.clone(), source });
        }
    };
    let (from, begin) = snapshot(cx, &ssd, observe);
    let raw_sectors = part.geometry().sectors();
    let device = behind_link(Seam::Device(part), target.stack.link()).device();
    let measured =
        run_raw(cx, &ssd, device, jobs, plan.seed, monitor, begin, observe.intervals).await;
    let mut run = measured_on(cx, target, &ssd, raw_sectors, &from.borrow(), measured);
    if let Some(drive) = drive {
        drive.close().map_err(|e| stack_error(target, e))?;
    }
    run.uncorrectable = ssd.counters().uncorrectable - before;
    Ok((run, ssd))
}

/// The jobs of a workload as raw streams; an experiment with a raw target has no traces.
pub(crate) fn raw_jobs(works: &[Work], geo: &Geometry) -> Result<Vec<RawJob>, RawError> {
    let jobs: Vec<&Job> = works
        .iter()
        .filter_map(|w| match w {
            Work::Job(job) => Some(&**job),
            Work::Trace(_) | Work::Files(_) => None,
        })
        .collect();
    raw::run::plan(&jobs, geo)
}

/// Makes the file system of a target that has one.
async fn files_on(
    cx: &Cx,
    (target, seed): (&Target, u64),
    stack: &Stack,
    subject: &Subject,
) -> Result<Option<Files>, FileError> {
    let Some(fs) = &target.fs else { return Ok(None) };
    let medium = match medium(stack) {
        // What it is asked may be recorded.
        Medium::Linear(_) => Medium::Linear(subject.device.clone()),
        flash => flash,
    };
    Files::make(cx, medium, fs).await.map(Some).map_err(|e| e.on(target, fs, seed))
}

/// Unmounts and checks the file system of a run, and looks what lies together. One that takes nothing any
/// more is left as it is.
async fn end_files(cx: &Cx, files: &Files, stack: &Stack, run: &mut RunOutcome) {
    let Some(work) = &mut run.measured.files else { return };
    run.laws = work.broken.clone().map_or(Ok(()), Err);
    if run.measured.read_only.is_some() || mutant!("lab.files-unchecked") {
        return;
    }
    match files.end(cx).await {
        Ok((checked, layout, used)) => {
            work.checked = Some(checked);
            stack.drain(cx).await;
            work.together = Together::of(&layout, &used, stack);
        }
        Err(why) => run.laws = Err(run.laws.clone().err().unwrap_or(why)),
    }
}

async fn steps(
    cx: &Cx,
    Keep { observe, record, metrics }: Keep,
    target: &Target,
    plan: &RunPlan,
    monitor: Rc<dyn Monitor>,
    power: &Rc<Switch>,
    shelved: Option<Shelved>,
) -> Result<(RunOutcome, Arc<Ssd>), ExecuteError> {
    let watch_error = |e: &dyn fmt::Display| ExecuteError::Metrics {
        target: target.name.clone(),
        why: e.to_string(),
    };
    // Before the mount: an address that can't be had changes nothing.
    let watch = metrics.as_ref().map(|watched| Watch::open(&watched.at));
    let watch = watch.transpose().map_err(|e| watch_error(&e))?;
    let (stack, start) = match shelved {
        Some(Shelved { path, ssd, start }) => {
            let mounted = Stack::on_shelved(cx, target, ssd).await;
            let stack = mounted.map_err(|e| ExecuteError::Shelf {
                target: target.name.clone(),
                why: format!("{} can't be mounted: {e}; remove it", path.display()),
            })?;
            (stack, Some(start))
        }
        None => {
            let powered = Stack::powered(cx, target, plan.seed, Some(power.clone())).await;
            (powered.map_err(|e| stack_error(target, e.on(target, plan.seed)))?, None)
        }
    };
    let tap_error = |source| ExecuteError::Record { target: target.name.clone(), source };
    if let Some(Err(e)) = record.map(|take| stack.prepare_recording(take, &["run"])) {
        stack.leave(cx).await;
        return Err(tap_error(e));
    }
    let stop = Arc::new(Stop::default());
    let watch = watch.zip(metrics).map(|(watch, Watched { ready, .. })| {
        let address = watch.address();
        let seen = stack.clone();
        let watching = watch.serve(cx, &stop, move |cx| seen.metrics(cx).unwrap_or_default());
        ready(&format_args!("metrics:{address}"));
        watching
    });
    let (from, begin) = snapshot(cx, stack.ssd(), observe);
    let begin = {
        let (stack, cx) = (stack.clone(), cx.clone());
        Rc::new(move || {
            begin();
            stack.begin_recording(cx.now());
        })
    };
    let subject = stack.subject(begin, observe.intervals);
    let on = files_on(cx, (target, plan.seed), &stack, &subject).await;
    let ran = match &on {
        Ok(None) => run::run_from(cx, subject, plan, monitor, start).await,
        Ok(Some(files)) => files.run(cx, subject, plan, monitor).await.map_err(RunError::from),
        Err(e) => Err(e.clone().into()),
    };
    let recorded = stack.end_recording();
    stop.raise(cx);
    if let Some(watch) = watch {
        // Nobody looks at a target that stops. That somebody could not look changes no result.
        let _ = watch.await;
    }
    let mut measured = match ran {
        Ok(measured) => measured,
        Err(source) => {
            stack.leave(cx).await;
            let source = source.into();
            return Err(ExecuteError::Run { target: target.name.clone(), source });
        }
    };
    let (ssd, raw_sectors) = (stack.ssd().clone(), stack.raw_sectors());
    let files = on.ok().flatten();
    if files.is_none() {
        stack.drain(cx).await;
        measured.after = stack.stats();
    }
    let mut run = measured_on(cx, target, &ssd, raw_sectors, &from.borrow(), measured);
    if let Some(files) = files {
        // It has synced: what it writes from here on is for its own end.
        end_files(cx, &files, &stack, &mut run).await;
        stack.drain(cx).await;
    }
    run.counted = stack.layers().counted();
    run.pages = stack.layers().pages_read(cx).await;
    if !run.pages.is_empty() {
        run.valid = stack.valid_by_chunk();
    }
    let stopped = stack.stop(cx).await;
    run.laws = run.laws.and(stopped.laws);
    // What the end of the run found out counts as well.
    let read_only = &mut run.measured.read_only;
    *read_only = read_only.take().or(stopped.read_only);
    if let (Some(why), Some(trouble)) = (read_only, ssd.host_trouble()) {
        *why = format!("{why} ({trouble})");
    }
    stack.close().map_err(|e| stack_error(target, e))?;
    run.recorded = recorded.map_err(tap_error)?;
    (run.lines, run.mounted) = (stack.lines(), stack.mounted());
    run.uncorrectable = stack.uncorrectable();
    Ok((run, ssd))
}
