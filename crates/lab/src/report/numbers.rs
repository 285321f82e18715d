//! The numbers of an outcome, as they are written out.
//!
//! Owns: names and units of every key. Promises: the keys that the project promises
//! (`fingerprint`, `runs[].latency_ns.read.p99_9`, ...) are here and nowhere else.
//! Never: formats.

use super::config::{Configuration, costs_of};
use super::course::{self, DieReport, Figures, TimelineReport, WearReport};
use super::files::{Below, FilesReport};
use super::jobs::{self, JobReport};
use crate::contention::ContentionReport;
use crate::execute::{Clock, Outcome, RunOutcome};
use crate::experiment::FileSystem;
use crate::histogram::{Latencies, LatencyNs};
use crate::lnvm::{Mounted, show};
use crate::run::record::Recorder;
use crate::run::{Measured, Prepared, Replayed};
use crate::stack::Lines;
use flashlane_base::counters::{Counter, Counters};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::layer::Counted;
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::device::Cause;
use flashlane_ocssd::{BufferCount, SlcCount};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::Deref;

/// An outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Folds the order of everything that happened in all runs; same seed, same fingerprint. None on the real clock.
    pub fingerprint: String,
    /// Real time it took. The only number that differs from run to run.
    pub wall_seconds: f64,
    /// Name of the experiment.
    pub experiment: String,
    /// What it is about, where its file says so.
    pub description: String,
    /// The user ended it early.
    pub interrupted: bool,
    /// One per target.
    pub runs: Vec<RunReport>,
    /// What was run.
    pub configuration: Configuration,
    /// Version of this program.
    pub version: &'static str,
}

/// One target's run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Target.
    pub name: String,
    /// Requests that ended.
    pub requests: u64,
    /// Bytes read by the host.
    pub bytes_read: u64,
    /// Bytes written by the host.
    pub bytes_written: u64,
    /// Bytes discarded by the host.
    pub bytes_discarded: u64,
    /// From the first request to the end of the last.
    pub runtime_ns: u64,
    /// Latencies.
    pub latency_ns: LatencySet,
    /// Everything programmed over everything the host wrote; null when it wrote nothing.
    pub write_amplification_ratio: Option<f64>,
    /// Programmed 4 KiB sectors by cause.
    pub programmed_sectors: ProgrammedSectors,
    /// Host sectors, those that the buffer kept from the medium, and reads that it served.
    pub buffer_sectors: Shown<FtlStats>,
    /// What the device's own write buffer did; only of devices that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_buffer: Option<Shown<BufferCount>>,
    /// What the medium did in SLC mode; only of devices that have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slc_mode: Option<Shown<SlcCount>>,
    /// Flushes and FUA writes that the layer saw (the flush that ends a run is one), chunk erases of
    /// the medium, lines that garbage collection took, sectors that it moved.
    #[serde(flatten)]
    pub work: Shown<FtlStats>,
    /// Wear leveling and scrubbing in the whole run, preparation included.
    pub care: Shown<FtlStats>,
    /// What layers count that is theirs alone, by layer and name, in the whole run, preparation
    /// included.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// What the sectors that the stack holds are to the file system on it at the end, by kind; only where a
    /// layer follows one. `valid_chunks` have the newest content of one of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pages: BTreeMap<&'static str, u64>,
    /// Broken rules of the medium, in the whole run.
    pub violations: u64,
    /// The first of them, in words.
    pub violations_shown: Vec<String>,
    /// Steady state was reached.
    pub steady: bool,
    /// Why, or why not.
    pub steady_reason: String,
    /// Requests that failed, sectors that could not be read, sectors with wrong content.
    pub failed_requests: u64,
    /// Sectors reported as unreadable.
    pub uncorrectable_sectors: u64,
    /// Sectors with wrong content. Anything but 0 is a bug.
    pub wrong_sectors: u64,
    /// The first of them.
    pub wrong_shown: Vec<String>,
    /// What went wrong on the medium in the whole run, preparation included.
    pub faults: FaultCounts,
    /// What the counters say of themselves: "hold", or which does not.
    pub counter_laws: String,
    /// Where the time of the host's reads and writes went, summed over them.
    pub latency_breakdown_ns: BreakdownNs,
    /// What host writes and flushes waited for, summed.
    pub wait_ns: Shown<FtlStats>,
    /// What cores waited for inside the FTL, up to the end of the last request; only of host FTLs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contention: Option<ContentionReport>,
    /// How busy dies and channels were.
    pub busy_ratio: BusyRatio,
    /// How busy the host's cores were.
    pub cpu: CpuReport,
    /// How full the device was.
    pub fill: FillLevel,
    /// How the target was found on its drive; only of runs on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountReport>,
    /// What was done before measuring.
    pub prepared: Prepared,
    /// How traces were replayed.
    pub replayed: Vec<Replayed>,
    /// How long writes to a journal took until they were durable; only of traces with `truth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal_durable_ns: Option<LatencyNs>,
    /// What was done on a file system; only of targets that have one. What the host wrote and its
    /// amplification are what its files were written then, and latencies those of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesReport>,
    /// How late replayed requests were issued.
    pub slip: SlipReport,
    /// Why nothing could be made durable any more, if that happened.
    pub read_only: Option<String>,
    /// Why the result is bad, and the exit code 1; empty where it is good.
    pub bad: Vec<String>,
    /// The user ended it early.
    pub interrupted: bool,
    /// Everything ended within the ramp: nothing was measured.
    pub ended_in_ramp: bool,
    /// The course of the run.
    pub timeline: TimelineReport,
    /// What each part of the workload did.
    pub jobs: Vec<JobReport>,
    /// Erases by channel and chunk.
    pub wear: WearReport,
    /// How busy each die was.
    pub die_busy_ratio: DieReport,
    /// What only the figures show.
    #[serde(skip)]
    pub figures: Figures,
    /// Fingerprint of this run.
    pub fingerprint: String,
    /// Events that were simulated.
    pub events: u64,
}

/// How a target was found on its drive.
#[derive(Clone, Debug, Serialize)]
pub struct MountReport {
    /// The image.
    pub drive: String,
    /// The target's name there.
    pub target: String,
    /// Device time that mounting took.
    pub time_ns: u64,
    /// The layer's own account of it.
    pub recovery: serde_json::Value,
    /// What of it could not be read; null where all was.
    pub lost: serde_json::Value,
    /// What did not go as the target's knobs say.
    pub notes: Vec<String>,
    /// All of it for people.
    #[serde(skip)]
    pub text: String,
}

impl MountReport {
    fn of(m: &Mounted) -> MountReport {
        let drive = m.path.display().to_string();
        let target = m.info.name.clone();
        let how = match &m.recovery {
            Some(r) => show::recovery_text(r),
            None => format!("mounted in {}", crate::words::short(m.time.as_ns())),
        };
        let notes: String = m.notes.iter().map(|note| format!("; {note}")).collect();
        MountReport {
            text: format!("target `{target}` of {drive}: {how}{}{notes}", show::lost_text(&m.lost)),
            lost: show::lost_json(&m.lost),
            notes: m.notes.clone(),
            drive,
            target,
            time_ns: m.time.as_ns(),
            recovery: m.recovery.as_ref().map_or(serde_json::Value::Null, show::recovery_json),
        }
    }
}

/// Latencies by operation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencySet {
    /// Reads.
    pub read: LatencyNs,
    /// Writes.
    pub write: LatencyNs,
    /// Discards.
    pub discard: LatencyNs,
    /// Flushes.
    pub flush: LatencyNs,
}

/// Programmed sectors by cause, in the order of [`Cause::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgrammedSectors([u64; Cause::ALL.len()]);

impl ProgrammedSectors {
    /// Causes and values in the order of reports.
    pub fn named(&self) -> impl Iterator<Item = (Cause, u64)> + use<> {
        Cause::ALL.into_iter().zip(self.0)
    }

    /// Sectors of one cause.
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Serialize for ProgrammedSectors {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.named().map(|(cause, n)| (cause.name(), n)))
    }
}

/// Counters, of which results show a part.
#[derive(Clone, Copy, Debug)]
pub struct Shown<C> {
    counters: C,
    part: &'static str,
}

impl<C: Counters> Shown<C> {
    pub(super) fn of(counters: C, part: &'static str) -> Shown<C> {
        Shown { counters, part }
    }

    /// Names and values.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        self.counters.shown(self.part)
    }

    /// One of them is not 0.
    pub fn any(&self) -> bool {
        self.named().iter().any(|(_, n)| *n > 0)
    }
}

impl<C> Deref for Shown<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.counters
    }
}

impl<C: Counters> Serialize for Shown<C> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.named())
    }
}

/// Where the time of requests went, summed over them.
#[derive(Clone, Debug, Serialize)]
pub struct BreakdownNs {
    /// Reads: waiting for the host's core, its own work, what the device's commands spent, the rest.
    pub read: Parts,
    /// Writes: waiting for the host's core, its own work, what they waited for in the layer, the rest.
    pub write: Parts,
}

/// The parts of a latency, in the order in which a request meets them.
#[derive(Clone, Debug)]
pub struct Parts(pub(super) Vec<Part>);

impl Serialize for Parts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|part| (part.key, part.ns)))
    }
}

/// A part of a latency.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its key in JSON and CSV.
    pub(super) key: &'static str,
    /// The head of its column.
    pub(super) head: &'static str,
    /// Sum over requests, in nanoseconds.
    pub(super) ns: u64,
    /// What it is, in words.
    pub(super) what: &'static str,
}

impl BreakdownNs {
    fn of(m: &Measured, stats: &FtlStats) -> BreakdownNs {
        let r = &m.recorder;
        let (reads, writes) = (r.latencies(BlockOp::Read), r.latencies(BlockOp::Write));
        let of = |queue: Ns, counted: Vec<Part>, l: &Latencies| {
            let cpu = m.submit_cost.as_ns() * l.count();
            let part = |key, head, ns, what| Part { key, head, ns, what };
            let mut all = vec![
                part("queue", "queue", queue.as_ns(), "waiting for the host's core"),
                part("host_cpu", "CPU", cpu, "the host's own work"),
            ];
            // Below a file system requests are its own, and a call waits for some of them or none.
            let of_calls = m.files.is_some();
            all.extend(
                counted.into_iter().map(|p| Part { ns: if of_calls { 0 } else { p.ns }, ..p }),
            );
            // The layer's own CPU time, a block SSD's link. 0 where requests of several vector
            // commands, whose parts overlap, leave nothing.
            let known: u64 = all.iter().map(|p| p.ns).sum();
            let left = (l.mean_ns() * l.count()).saturating_sub(known);
            let what = match of_calls {
                true => "in the file system and what is below it",
                false => "the rest (CPU work of pblk, a block SSD's link)",
            };
            all.push(part("rest", "rest", left, what));
            Parts(all)
        };
        BreakdownNs {
            read: of(r.read_queue, counted(&stats.read_breakdown, "reads"), &reads),
            write: of(r.write_queue, counted(stats, "writes"), &writes),
        }
    }
}

/// The parts of a latency that a layer or a device counts.
fn counted<C: Counters>(counters: &C, place: &str) -> Vec<Part> {
    let all = C::SCHEMA.iter().zip(counters.numbers());
    let part = |(c, ns): (&Counter, u64)| {
        let word = |part: &str| c.called(part).unwrap_or(c.name);
        Some(Part { key: c.called(place)?, head: word("head"), ns, what: word("what") })
    };
    all.filter_map(part).collect()
}

/// Shares of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BusyRatio {
    /// Dies reading.
    pub die_read: f64,
    /// Dies programming.
    pub die_program: f64,
    /// Dies erasing.
    pub die_erase: f64,
    /// Channels.
    pub channel: f64,
}

/// What the simulated cores of the host did in the measured part, as shares of its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CpuReport {
    /// Name of the table that says what work costs; `zero` is a host that costs nothing.
    pub costs: String,
    /// All cores: at work, spinning included.
    pub busy_ratio: f64,
    /// All cores: spinning on locks.
    pub lock_ratio: f64,
    /// All cores: doing nothing.
    pub idle_ratio: f64,
    /// Each core at work, spinning included.
    pub core_busy_ratio: Vec<f64>,
    /// Each core spinning on locks.
    pub core_lock_ratio: Vec<f64>,
}

impl CpuReport {
    fn of(outcome: &Outcome, o: &RunOutcome) -> CpuReport {
        let time = o.measured.cpu.time.as_ns() as f64;
        let share = |span: Ns| if time == 0.0 { 0.0 } else { span.as_ns() as f64 / time };
        let cores = &o.measured.cpu.cores;
        let busy: Vec<f64> = cores.iter().map(|core| share(core.busy)).collect();
        let lock: Vec<f64> = cores.iter().map(|core| share(core.spun)).collect();
        let mean = |list: &[f64]| list.iter().sum::<f64>() / list.len().max(1) as f64;
        CpuReport {
            costs: costs_of(outcome.clock, &o.target.host).0.to_string(),
            busy_ratio: mean(&busy),
            lock_ratio: mean(&lock),
            idle_ratio: 1.0 - mean(&busy),
            core_busy_ratio: busy,
            core_lock_ratio: lock,
        }
    }
}

/// How full the device was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FillLevel {
    /// Logical capacity.
    pub capacity_bytes: u64,
    /// Raw capacity of the medium.
    pub raw_bytes: u64,
    /// Raw capacity that the host does not see, as a share of raw.
    pub spare_ratio: f64,
    /// Share of the logical capacity that held data when measuring began.
    pub at_start_ratio: f64,
    /// And when it ended.
    pub at_end_ratio: f64,
    /// How the lines of a host FTL are divided, and what spare that leaves.
    pub lines: Option<Lines>,
}

/// What went wrong on the medium, as the layer saw it; at last, as the medium itself did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FaultCounts {
    /// What the layer counted.
    #[serde(flatten)]
    pub layer: Shown<FtlStats>,
    /// Sectors that the medium could not give, whoever asked: the host, garbage collection, and what
    /// the layer reads for itself (mount, log, checkpoints, scrubbing), each try.
    pub uncorrectable: u64,
}

/// Lateness of replayed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SlipReport {
    /// Requests replayed in open loop.
    pub requests: u64,
    /// Of those, issued later than the trace says.
    pub late: u64,
    /// Mean lateness of all.
    pub mean_ns: u64,
    /// 99 of 100 were not later than this.
    pub p99_ns: u64,
    /// Latest.
    pub max_ns: u64,
}

/// A fingerprint, where there is one.
pub(super) fn fingerprint(outcome: &Outcome, number: u64) -> String {
    match outcome.clock {
        Clock::Virtual => format!("{number:016x}"),
        Clock::Real => "none".into(),
    }
}

pub(super) fn report(outcome: &Outcome) -> Report {
    Report {
        fingerprint: fingerprint(outcome, outcome.fingerprint),
        wall_seconds: 0.0,
        experiment: outcome.experiment.name.clone(),
        description: outcome.experiment.description.clone(),
        interrupted: outcome.interrupted,
        runs: outcome.runs.iter().map(|o| run(outcome, o)).collect(),
        configuration: Configuration::of(outcome),
        version: env!("CARGO_PKG_VERSION"),
    }
}

fn run(outcome: &Outcome, o: &RunOutcome) -> RunReport {
    let m = &o.measured;
    let (r, before, after) = (&m.recorder, &m.before, &m.after);
    let stats = FtlStats { erases: o.media.erases, ..after.since(before) };
    let (programmed, host_written) = (ProgrammedSectors(stats.programmed), stats.host_written);
    RunReport {
        name: o.target.name.clone(),
        requests: r.requests,
        bytes_read: r.bytes_read,
        bytes_written: r.bytes_written,
        bytes_discarded: r.bytes_discarded,
        runtime_ns: (r.end - r.start).as_ns(),
        latency_ns: LatencySet {
            read: (&r.latencies(BlockOp::Read)).into(),
            write: (&r.latencies(BlockOp::Write)).into(),
            discard: (&r.latencies(BlockOp::Discard)).into(),
            flush: (&r.latencies(BlockOp::Flush)).into(),
        },
        write_amplification_ratio: (host_written > 0)
            .then(|| programmed.total() as f64 / host_written as f64),
        programmed_sectors: programmed,
        buffer_sectors: Shown::of(stats, "buffer_sectors"),
        device_buffer: o.media.buffer.map(|count| Shown::of(count, "device_buffer")),
        slc_mode: o.media.slc.map(|count| Shown::of(count, "slc_mode")),
        work: Shown::of(stats, "run"),
        care: Shown::of(*after, "care"),
        layers: layers(o),
        pages: pages(o),
        violations: o.violations,
        violations_shown: o.violations_shown.iter().take(5).map(|v| v.to_string()).collect(),
        steady: m.steady.steady,
        steady_reason: m.steady.reason.clone(),
        failed_requests: r.failed,
        uncorrectable_sectors: r.uncorrectable,
        wrong_sectors: r.wrong_sectors,
        wrong_shown: r.mismatches.clone(),
        faults: FaultCounts { layer: Shown::of(*after, "faults"), uncorrectable: o.uncorrectable },
        counter_laws: match &o.laws {
            Ok(()) => "hold".into(),
            Err(why) => why.clone(),
        },
        latency_breakdown_ns: BreakdownNs::of(m, &stats),
        wait_ns: Shown::of(stats, "wait_ns"),
        contention: m.contention.as_ref().map(ContentionReport::of),
        busy_ratio: busy(o),
        cpu: CpuReport::of(outcome, o),
        fill: fill(o),
        mount: o.mounted.as_ref().map(MountReport::of),
        prepared: m.prepared.clone(),
        replayed: m.replayed.clone(),
        journal_durable_ns: (r.journal.count() > 0).then(|| (&r.journal).into()),
        files: m
            .files
            .as_ref()
            .map(|work| FilesReport::of(work, host_written, &below(o, &stats), r.end - r.start)),
        slip: slip(r),
        read_only: m.read_only.clone(),
        bad: o.bad_because(outcome.experiment.run.allow_errors),
        interrupted: m.interrupted,
        ended_in_ramp: m.ended_in_ramp,
        timeline: course::timeline(o),
        jobs: jobs::reports(outcome, o),
        wear: course::wear(o),
        die_busy_ratio: course::dies(o),
        figures: course::figures(o),
        fingerprint: fingerprint(outcome, o.fingerprint),
        events: o.polls,
    }
}

/// What is below a target's file system.
fn below(o: &RunOutcome, stats: &FtlStats) -> Below {
    let on_flash = o.target.stack.in_order();
    let segment = |fs: &FileSystem| u64::from(fs.segment_pages) * u64::from(fs.page_sectors);
    Below {
        segment_sectors: match on_flash {
            true => o.geometry.sectors_per_chunk().into(),
            false => o.target.fs.as_ref().map_or(0, segment),
        },
        on_flash,
        victim_sectors: stats.gc_victim_sectors,
        victim_invalid: stats.gc_victim_invalid,
        programmed: stats.programmed_total(),
        gc: stats.programmed_for(Cause::Gc),
        own: stats.programmed_total()
            - stats.programmed_for(Cause::User)
            - stats.programmed_for(Cause::Gc),
    }
}

fn busy(o: &RunOutcome) -> BusyRatio {
    let share = |busy: Ns, of: u64| {
        let all = o.media.time.as_ns() as f64 * of as f64;
        if all == 0.0 { 0.0 } else { busy.as_ns() as f64 / all }
    };
    let [read, program, erase] = o.media.die_busy.map(|t| share(t, o.media.dies));
    BusyRatio {
        die_read: read,
        die_program: program,
        die_erase: erase,
        channel: share(o.media.channel_busy, o.media.channels),
    }
}

fn layers(o: &RunOutcome) -> BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
    let numbers = |all: &[Counted]| all.iter().map(|c| (c.name, c.value)).collect();
    o.counted.iter().map(|(layer, all)| (*layer, numbers(all))).collect()
}

fn pages(o: &RunOutcome) -> BTreeMap<&'static str, u64> {
    let mut pages: BTreeMap<_, _> = o.pages.iter().map(|kind| (kind.name, kind.value)).collect();
    if !o.valid.is_empty() {
        pages.insert("valid_chunks", o.valid.len() as u64);
    }
    pages
}

fn fill(o: &RunOutcome) -> FillLevel {
    let m = &o.measured;
    let raw = o.raw_sectors;
    let share = |n: u64, of: u64| n as f64 / of.max(1) as f64;
    FillLevel {
        capacity_bytes: m.capacity * SECTOR_BYTES as u64,
        raw_bytes: raw * SECTOR_BYTES as u64,
        spare_ratio: share(raw.saturating_sub(m.capacity), raw),
        at_start_ratio: share(m.mapped.0, m.capacity),
        at_end_ratio: share(m.mapped.1, m.capacity),
        lines: o.lines,
    }
}

fn slip(r: &Recorder) -> SlipReport {
    SlipReport {
        requests: r.slip.by.count(),
        late: r.slip.late,
        mean_ns: r.slip.by.mean_ns(),
        p99_ns: r.slip.by.percentile_ns(99.0),
        max_ns: r.slip.by.max_ns(),
    }
}
