//! A run on a raw target: jobs become streams of vector commands on named PUs.
//!
//! Owns: which jobs a raw target can do, the run itself, its results in the same form as a block
//! device's. Promises: a key of a job that means nothing on a raw target is refused, not ignored;
//! readers find their chunks written. Never: two streams on one PU, unless both read.

use super::{Order, Raw, RawStream, Told};
use crate::run::{CpuSpan, Measured, Monitor, Prepared, Probe, Recorder, Sample, Steady, Watch};
use crate::workload::{Job, Mix, Sizes};
use flashlane_base::{Geometry, Ns, SECTOR_BYTES, VECTOR_MAX};
use flashlane_ftl::stats::{FtlStats, Gauges};
use flashlane_ocssd::device::{Cause, Device};
use flashlane_ocssd::{MediaCounters, Ssd};
use flashlane_rt::{Cx, Join};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Why a job can't run on a raw target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// A key that is missing, or that a raw target can't honour.
    #[error("job `{job}` on a raw target: {problem}")]
    Job {
        job: String,
        /// What is wrong and what would do.
        problem: &'static str,
    },
    #[error("job `{job}` on a raw target: it needs {wanted} {what}, there are {there}")]
    Room { job: String, wanted: u64, what: &'static str, there: u64 },
    #[error(
        "jobs `{one}` and `{other}` share PU {pu}, and one of them writes: give them PUs of their \
         own"
    )]
    Shared { one: String, other: String, pu: u32 },
}

/// When a stream ends.
#[derive(Clone, Copy, Debug)]
struct Until {
    /// Commands per PU; `u64::MAX` when only the clock ends it.
    commands: u64,
    time: Option<Ns>,
}

#[derive(Clone, Debug)]
pub struct RawJob {
    name: String,
    stream: RawStream,
    until: Until,
}

/// Jobs as streams on a device of these dimensions.
pub fn plan(jobs: &[&Job], geo: &Geometry) -> Result<Vec<RawJob>, RawError> {
    let planned: Vec<RawJob> = jobs.iter().map(|j| raw_job(j, geo)).collect::<Result<_, _>>()?;
    for (i, one) in planned.iter().enumerate() {
        for other in &planned[..i] {
            let shared = one.stream.pus.iter().find(|pu| other.stream.pus.contains(pu));
            if let Some(pu) = shared.filter(|_| one.stream.write || other.stream.write) {
                return Err(RawError::Shared {
                    one: other.name.clone(),
                    other: one.name.clone(),
                    pu: *pu,
                });
            }
        }
    }
    Ok(planned)
}

fn raw_job(job: &Job, geo: &Geometry) -> Result<RawJob, RawError> {
    let refuse = |problem| Err(RawError::Job { job: job.name.clone(), problem });
    let Some((begin, end)) = job.pus else {
        return refuse("name its PUs, `pus = \"0-3\"`");
    };
    let room = |what, wanted: u64, there: u64| RawError::Room {
        job: job.name.clone(),
        wanted,
        what,
        there,
    };
    if end >= geo.pus() {
        return Err(room("PUs", end as u64 + 1, geo.pus() as u64));
    }
    let (write, order) = match (job.rw, job.random) {
        (Mix::Read, random) => (false, if random { Order::Random } else { Order::Sequential }),
        (Mix::Write, false) => (true, Order::Sequential),
        _ => return refuse("`rw` is read, randread or write: flash is written in order"),
    };
    let [(sectors, _)] = job.bs[write as usize].0[..] else {
        return refuse("`bs` is one size");
    };
    if sectors as usize > VECTOR_MAX {
        return refuse("`bs` is at most 256 KiB, the 64 sectors of a vector command");
    }
    let per_chunk = geo.sectors_per_chunk();
    if write && (!sectors.is_multiple_of(geo.ws_min) || !per_chunk.is_multiple_of(sectors)) {
        return refuse("`bs` is a multiple of the device's smallest write that divides a chunk");
    }
    let pus = (end - begin + 1) as u64;
    let Some(size) = job.size else {
        return refuse("say with `size` how much of its PUs it uses");
    };
    let all = pus * geo.chunks_per_pu as u64 * per_chunk as u64;
    let chunks = size.sectors(all).div_ceil(pus * per_chunk as u64).max(1);
    if chunks > geo.chunks_per_pu as u64 {
        return Err(room("chunks per PU", chunks, geo.chunks_per_pu as u64));
    }
    if !only_raw_keys(job) {
        return refuse(
            "it understands rw, bs, size, io_size, iodepth (per PU), runtime, time_based, pus",
        );
    }
    let region = chunks * per_chunk as u64;
    let commands = match job.io_size {
        Some(io) => io.sectors(all) / pus / sectors as u64,
        None => region / sectors as u64,
    };
    let until =
        Until { commands: if job.time_based { u64::MAX } else { commands }, time: job.runtime };
    let stream = RawStream {
        write,
        order,
        pus: (begin..=end).collect(),
        sectors,
        depth: job.iodepth,
        first_chunk: 0,
        chunks: chunks as u32,
    };
    Ok(RawJob { name: job.name.clone(), stream, until })
}

/// Whether everything else about a job is as it is without being said.
fn only_raw_keys(job: &Job) -> bool {
    let mut plain = job.clone();
    let default = Job::new(&job.name);
    (plain.rw, plain.random) = (default.rw, default.random);
    plain.bs = std::array::from_fn(|_| Sizes::fixed(1));
    (plain.size, plain.io_size, plain.pus) = (None, None, None);
    (plain.iodepth, plain.runtime, plain.time_based) = (1, None, false);
    plain == default
}

struct Shared {
    monitor: Rc<dyn Monitor>,
    stop: Cell<bool>,
    done: Cell<u64>,
    total: Option<u64>,
}

/// Commands between two looks at the monitor.
const LOOK_EVERY: u64 = 512;

/// Runs jobs on a raw target. `begin` is called when the measured part begins; with `intervals`
/// latencies are also kept over time.
pub async fn run_raw(
    cx: &Cx,
    ssd: &Arc<Ssd>,
    device: Arc<dyn Device>,
    jobs: Vec<RawJob>,
    seed: u64,
    monitor: Rc<dyn Monitor>,
    begin: Rc<dyn Fn()>,
    intervals: bool,
) -> Measured {
    let recorder = Rc::new(RefCell::new(Recorder::default()));
    let mut filled = 0;
    for job in jobs.iter().filter(|j| !j.stream.write) {
        monitor.progress("fill", 0, None);
        Raw::new(device.clone(), job.stream.clone(), seed).fill(cx).await;
        let per_chunk = device.geometry().sectors_per_chunk() as u64;
        filled += job.stream.pus.len() as u64 * job.stream.chunks as u64 * per_chunk;
    }
    // Programs that are still running are none of the measured part.
    cx.sleep(Ns::from_ms(100)).await;
    let total = |j: &RawJob| {
        let commands = Some(j.until.commands).filter(|n| *n < u64::MAX)?;
        Some(commands * j.stream.pus.len() as u64)
    };
    let total: Option<u64> = jobs.iter().map(total).sum();
    let shared = Rc::new(Shared { monitor, stop: Cell::new(false), done: Cell::new(0), total });
    let watched = ssd.clone();
    let probe: Probe =
        Rc::new(move |now| Sample::new(&watched.counters_at(now), Gauges::default(), Vec::new()));
    recorder.borrow_mut().begin(cx.now(), &Watch { probe: Some(probe), intervals });
    begin();
    let cpu_before = CpuSpan::until_now(cx);
    let medium = ssd.clone();
    let stats: Rc<dyn Fn() -> FtlStats> = Rc::new(move || stats_of(&medium.counters()));
    let before = stats();
    let streams: Vec<Rc<Raw>> = jobs
        .iter()
        .enumerate()
        .map(|(i, job)| {
            let told = Told { recorder: recorder.clone(), stats: stats.clone(), job: i };
            let seed = seed.wrapping_add(i as u64);
            Raw::recorded(device.clone(), job.stream.clone(), seed, Some(told))
        })
        .collect();
    let mut tasks: Vec<Join<()>> = Vec::new();
    for (raw, job) in streams.iter().zip(&jobs) {
        tasks.extend(slots(cx, raw, job, &shared));
    }
    for task in tasks {
        task.await;
    }
    let wrong: u64 = streams.iter().map(|s| s.result().wrong).sum();
    recorder.borrow_mut().wrong_sectors = wrong;
    recorder.borrow_mut().close(&*stats);
    let cpu = CpuSpan::until_now(cx).since(&cpu_before);
    let recorder = recorder.take();
    let mut after = stats();
    for stream in &streams {
        after.read_breakdown += stream.result().breakdown;
    }
    let raw_sectors = device.geometry().sectors();
    Measured {
        steady: Steady {
            steady: false,
            reason: "a raw target has no garbage collection that could settle".into(),
        },
        before,
        after,
        interrupted: shared.stop.get(),
        read_only: None,
        prepared: Prepared { filled_sectors: filled, ..Prepared::default() },
        mapped: (filled, filled + (recorder.bytes_written / SECTOR_BYTES as u64).min(raw_sectors)),
        capacity: raw_sectors,
        submit_cost: Ns::ZERO,
        cpu,
        contention: None,
        replayed: Vec::new(),
        ended_in_ramp: false,
        files: None,
        recorder,
    }
}

/// The request slots of a stream: `depth` per PU.
fn slots(cx: &Cx, raw: &Rc<Raw>, job: &RawJob, shared: &Rc<Shared>) -> Vec<Join<()>> {
    let end = job.until.time.map(|t| cx.now() + t);
    let mut tasks = Vec::new();
    for index in 0..job.stream.pus.len() {
        let left = Rc::new(Cell::new(job.until.commands));
        for _ in 0..job.stream.depth {
            let (raw, cx, left, shared) = (raw.clone(), cx.clone(), left.clone(), shared.clone());
            tasks.push(cx.clone().spawn_join(async move {
                while left.get() > 0 && end.is_none_or(|end| cx.now() < end) && !shared.stop.get() {
                    left.set(left.get() - 1);
                    raw.one(&cx, index).await;
                    shared.done.set(shared.done.get() + 1);
                    if shared.done.get().is_multiple_of(LOOK_EVERY) {
                        shared.monitor.progress("run", shared.done.get(), shared.total);
                        shared.stop.set(shared.monitor.interrupted());
                    }
                }
            }));
        }
    }
    tasks
}

/// The medium's counters as a layer's: all that a raw target programs is the host's.
fn stats_of(counters: &MediaCounters) -> FtlStats {
    let programmed = Cause::ALL.map(|cause| counters.programmed[cause as usize]);
    FtlStats {
        host_written: counters.programmed_total(),
        programmed,
        erases: counters.erases,
        ..FtlStats::default()
    }
}
