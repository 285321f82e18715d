//! The numbers of an outcome, as they are written out.
//!
//! Owns: names and units of every key. Promises: the keys that the project promises
//! (`fingerprint`, `runs[].latency_ns.read.p99_9`, ...) are here and nowhere else.
//! Never: formats.

use super::config::{Configuration, costs_of};
use super::contention::ContentionReport;
use super::course::{self, DieReport, Figures, TimelineReport, WearReport};
use super::jobs::{self, JobReport};
use crate::execute::{Clock, Outcome, RunOutcome};
use crate::histogram::Latencies;
use crate::lnvm::{Mounted, show};
use crate::run::record::Recorder;
use crate::run::{Prepared, Replayed};
use crate::stack::Lines;
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::layer::Counted;
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::BufferCount;
use flashlane_ocssd::device::Cause;
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// What never reached the medium.
    pub buffer_sectors: BufferSectors,
    /// What the device's own write buffer did; only of devices that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_buffer: Option<DeviceBuffer>,
    /// Flushes and FUA writes that the layer saw; the flush that ends a run is one.
    pub flushes: u64,
    /// Chunk erases.
    pub erases: u64,
    /// Garbage collection: lines taken, and sectors moved.
    pub gc_victims: u64,
    /// Sectors moved.
    pub gc_moved_sectors: u64,
    /// What was done for the medium's sake in the whole run, preparation included.
    pub care: CareCounts,
    /// What layers count that is theirs alone, by layer and name, in the whole run, preparation
    /// included.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
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
    pub wait_ns: WaitNs,
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
            None => format!("mounted in {}", super::short(m.time.as_ns())),
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

/// A distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LatencyNs {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 90 of 100 are not above it.
    pub p90: u64,
    /// 99 of 100.
    pub p99: u64,
    /// 999 of 1000.
    pub p99_9: u64,
    /// 9999 of 10000.
    pub p99_99: u64,
    /// Largest.
    pub max: u64,
}

impl From<&Latencies> for LatencyNs {
    fn from(l: &Latencies) -> LatencyNs {
        LatencyNs {
            count: l.count(),
            mean: l.mean_ns(),
            p50: l.percentile_ns(50.0),
            p90: l.percentile_ns(90.0),
            p99: l.percentile_ns(99.0),
            p99_9: l.percentile_ns(99.9),
            p99_99: l.percentile_ns(99.99),
            max: l.max_ns(),
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

/// Programmed sectors by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgrammedSectors {
    /// New data of the host.
    pub user: u64,
    /// Moved by garbage collection.
    pub gc: u64,
    /// Moved from one cell mode to another.
    pub fold: u64,
    /// Fill behind flushes and FUA writes.
    pub padding_flush: u64,
    /// Fill up to a page pair's end.
    pub padding_pair: u64,
    /// Fill for erase barriers and lines that close early.
    pub padding_gc: u64,
    /// Line metadata, checkpoints.
    pub metadata: u64,
    /// The FTL's log.
    pub log: u64,
    /// Sent again after a failed program.
    pub retry: u64,
    /// Overwritten or discarded in the buffer, programmed all the same.
    pub dead: u64,
}

impl ProgrammedSectors {
    fn between(before: &FtlStats, after: &FtlStats) -> ProgrammedSectors {
        let of = |cause: Cause| after.programmed_for(cause) - before.programmed_for(cause);
        ProgrammedSectors {
            user: of(Cause::User),
            gc: of(Cause::Gc),
            fold: of(Cause::Fold),
            padding_flush: of(Cause::PaddingFlush),
            padding_pair: of(Cause::PaddingPair),
            padding_gc: of(Cause::PaddingGc),
            metadata: of(Cause::Metadata),
            log: of(Cause::Log),
            retry: of(Cause::Retry),
            dead: of(Cause::Dead),
        }
    }

    /// Names and values in the order of reports.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("user", self.user),
            ("gc", self.gc),
            ("fold", self.fold),
            ("padding_flush", self.padding_flush),
            ("padding_pair", self.padding_pair),
            ("padding_gc", self.padding_gc),
            ("metadata", self.metadata),
            ("log", self.log),
            ("retry", self.retry),
            ("dead", self.dead),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, n)| n).sum()
    }
}

/// Host sectors that the buffer kept from the medium, and reads that it served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BufferSectors {
    /// Host sectors written.
    pub host_written: u64,
    /// Overwritten in the buffer.
    pub absorbed: u64,
    /// Discarded in the buffer.
    pub discarded: u64,
    /// Host sectors read.
    pub host_read: u64,
    /// Reads served from the buffer.
    pub read_from_buffer: u64,
    /// Reads of sectors that hold nothing.
    pub read_unmapped: u64,
}

/// A device's write buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceBuffer {
    /// Sectors acknowledged from it before they were programmed.
    pub accepted_sectors: u64,
    /// Sectors that reads found in it.
    pub read_sectors: u64,
    /// Write commands that found it full.
    pub full_waits: u64,
    /// Sectors whose program failed behind the acknowledgement.
    pub failed_sectors: u64,
}

impl DeviceBuffer {
    fn of(count: &BufferCount) -> DeviceBuffer {
        DeviceBuffer {
            accepted_sectors: count.accepted,
            read_sectors: count.hits,
            full_waits: count.waits,
            failed_sectors: count.kept,
        }
    }
}

/// Where the time of requests went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BreakdownNs {
    /// Reads.
    pub read: ReadPartsNs,
    /// Writes.
    pub write: WritePartsNs,
}

/// Where the time of reads went, summed over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadPartsNs {
    /// Waiting for the host's core.
    pub queue: u64,
    /// The host's own work before the request reaches the stack.
    pub host_cpu: u64,
    /// A host FTL's link and the controller's bandwidth.
    pub link: u64,
    /// Command overhead of the device.
    pub command: u64,
    /// Waiting for the channel.
    pub channel: u64,
    /// Waiting for a die that was reading.
    pub die_read: u64,
    /// Waiting for a die that was programming.
    pub die_program: u64,
    /// Waiting for a die that was erasing.
    pub die_erase: u64,
    /// Own sense.
    pub array: u64,
    /// Own transfer.
    pub transfer: u64,
    /// Read retries.
    pub retry: u64,
    /// What is left: the layer's own CPU time, a block SSD's link. 0 where requests of several
    /// vector commands, whose parts overlap, leave nothing.
    pub rest: u64,
}

/// Where the time of writes went, summed over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WritePartsNs {
    /// Waiting for the host's core.
    pub queue: u64,
    /// The host's own work before the request reaches the stack.
    pub host_cpu: u64,
    /// Waiting for room in the write buffer.
    pub ring_full: u64,
    /// Waiting while garbage collection had the buffer's share.
    pub limited: u64,
    /// FUA writes: waiting until they are durable.
    pub fua: u64,
    /// What is left: the layer's own CPU time, a block SSD's link.
    pub rest: u64,
}

impl BreakdownNs {
    fn of(o: &RunOutcome) -> BreakdownNs {
        let m = &o.measured;
        let (r, before, after) = (&m.recorder, &m.before, &m.after);
        let (a, b) = (&before.read_breakdown, &after.read_breakdown);
        let d = |to: Ns, from: Ns| to.saturating_sub(from).as_ns();
        let host_cpu = |l: &Latencies| m.submit_cost.as_ns() * l.count();
        let (reads, writes) = (r.latencies(BlockOp::Read), r.latencies(BlockOp::Write));
        let mut read = ReadPartsNs {
            queue: r.read_queue.as_ns(),
            host_cpu: host_cpu(&reads),
            link: d(b.link, a.link),
            command: d(b.command, a.command),
            channel: d(b.channel, a.channel),
            die_read: d(b.die_read, a.die_read),
            die_program: d(b.die_program, a.die_program),
            die_erase: d(b.die_erase, a.die_erase),
            array: d(b.array, a.array),
            transfer: d(b.transfer, a.transfer),
            retry: d(b.retry, a.retry),
            rest: 0,
        };
        let mut write = WritePartsNs {
            queue: r.write_queue.as_ns(),
            host_cpu: host_cpu(&writes),
            ring_full: d(after.ring_full, before.ring_full),
            limited: d(after.limited, before.limited),
            fua: d(after.fua_wait, before.fua_wait),
            rest: 0,
        };
        let left = |l: &Latencies, parts: &[Part]| {
            let known: u64 = parts.iter().map(|p| p.ns).sum();
            (l.mean_ns() * l.count()).saturating_sub(known)
        };
        read.rest = left(&reads, &read.named());
        write.rest = left(&writes, &write.named());
        BreakdownNs { read, write }
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

const fn part(key: &'static str, head: &'static str, ns: u64, what: &'static str) -> Part {
    Part { key, head, ns, what }
}

impl ReadPartsNs {
    /// Each part, in the order in which a read meets them.
    pub(super) fn named(&self) -> [Part; 12] {
        [
            part("queue", "queue", self.queue, "waiting for the host's core"),
            part("host_cpu", "CPU", self.host_cpu, "the host's own work"),
            part("link", "link", self.link, "the link"),
            part("command", "command", self.command, "command overhead"),
            part("channel", "channel busy", self.channel, "busy channels"),
            part("die_read", "die reading", self.die_read, "dies busy reading"),
            part("die_program", "programming", self.die_program, "dies busy programming"),
            part("die_erase", "erasing", self.die_erase, "dies busy erasing"),
            part("array", "sense", self.array, "their own sensing"),
            part("transfer", "transfer", self.transfer, "their own transfer"),
            part("retry", "retry", self.retry, "read retries"),
            part("rest", "rest", self.rest, "the rest (CPU work of pblk, a block SSD's link)"),
        ]
    }
}

impl WritePartsNs {
    /// Each part.
    pub(super) fn named(&self) -> [Part; 6] {
        let full = "waiting for room in the buffer, that is for the flash";
        let limited = "waiting while garbage collection had the buffer's share";
        let fua = "FUA writes until they were on the flash";
        let rest = "the rest (CPU work of pblk, a block SSD's link)";
        [
            part("queue", "queue", self.queue, "waiting for the host's core"),
            part("host_cpu", "CPU", self.host_cpu, "the host's own work"),
            part("ring_full", "buffer full", self.ring_full, full),
            part("limited", "limited by GC", self.limited, limited),
            part("fua", "FUA", self.fua, fua),
            part("rest", "rest", self.rest, rest),
        ]
    }
}

/// What host writes and flushes waited for, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitNs {
    /// Room in the write buffer.
    pub ring_full: u64,
    /// A share of the buffer, while garbage collection had it.
    pub limited: u64,
    /// Flushes.
    pub flush: u64,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Sectors whose program failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Sectors of host reads that could not be corrected.
    pub read_failures: u64,
    /// The same for garbage collection: what they held is lost.
    pub gc_read_failures: u64,
    /// Reads with heavy correction.
    pub high_ecc: u64,
    /// Sectors that the medium could not give, whoever asked: the two kinds above, and what the
    /// layer reads for itself (mount, log, checkpoints, scrubbing), each try.
    pub uncorrectable: u64,
}

/// Wear leveling and scrubbing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CareCounts {
    /// Lines collected because their chunks were worn too little.
    pub leveled_lines: u64,
    /// Lines collected because their data decayed.
    pub scrubbed_lines: u64,
    /// Sectors read in search of data that decays.
    pub patrol_read_sectors: u64,
}

impl CareCounts {
    fn of(stats: &FtlStats) -> CareCounts {
        CareCounts {
            leveled_lines: stats.leveled_lines,
            scrubbed_lines: stats.scrubbed_lines,
            patrol_read_sectors: stats.patrol_reads,
        }
    }
}

impl FaultCounts {
    fn of(stats: &FtlStats, uncorrectable: u64) -> FaultCounts {
        FaultCounts {
            uncorrectable,
            program_failures: stats.program_failures,
            erase_failures: stats.erase_failures,
            read_failures: stats.read_failures,
            gc_read_failures: stats.gc_read_failures,
            high_ecc: stats.high_ecc,
        }
    }
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
    let programmed = ProgrammedSectors::between(before, after);
    let host_written = after.host_written - before.host_written;
    let sector = SECTOR_BYTES as u64;
    RunReport {
        name: o.target.name.clone(),
        requests: r.requests,
        bytes_read: r.sectors_read * sector,
        bytes_written: r.sectors_written * sector,
        bytes_discarded: r.sectors_discarded * sector,
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
        buffer_sectors: buffer(before, after),
        device_buffer: o.media.buffer.as_ref().map(DeviceBuffer::of),
        flushes: after.flushes - before.flushes,
        erases: o.media.erases,
        gc_victims: after.gc_victims - before.gc_victims,
        gc_moved_sectors: after.gc_moved - before.gc_moved,
        care: CareCounts::of(after),
        layers: layers(o),
        violations: o.violations,
        violations_shown: o.violations_shown.iter().take(5).map(|v| v.to_string()).collect(),
        steady: m.steady.steady,
        steady_reason: m.steady.reason.clone(),
        failed_requests: r.failed,
        uncorrectable_sectors: r.uncorrectable,
        wrong_sectors: r.wrong_sectors,
        wrong_shown: r.mismatches.iter().map(|m| m.to_string()).collect(),
        faults: FaultCounts::of(after, o.uncorrectable),
        counter_laws: match &o.laws {
            Ok(()) => "hold".into(),
            Err(why) => why.clone(),
        },
        latency_breakdown_ns: BreakdownNs::of(o),
        wait_ns: WaitNs {
            ring_full: after.ring_full.saturating_sub(before.ring_full).as_ns(),
            limited: after.limited.saturating_sub(before.limited).as_ns(),
            flush: after.flush_wait.saturating_sub(before.flush_wait).as_ns(),
        },
        contention: m.contention.as_ref().map(ContentionReport::of),
        busy_ratio: busy(o),
        cpu: CpuReport::of(outcome, o),
        fill: fill(o),
        mount: o.mounted.as_ref().map(MountReport::of),
        prepared: m.prepared.clone(),
        replayed: m.replayed.clone(),
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

fn buffer(before: &FtlStats, after: &FtlStats) -> BufferSectors {
    BufferSectors {
        host_written: after.host_written - before.host_written,
        absorbed: after.absorbed - before.absorbed,
        discarded: after.discarded_in_buffer - before.discarded_in_buffer,
        host_read: after.host_read - before.host_read,
        read_from_buffer: after.read_from_buffer - before.read_from_buffer,
        read_unmapped: after.read_unmapped - before.read_unmapped,
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
