//! What is done to a device before the measured part.
//!
//! Owns: filling, overwriting, waiting for write amplification and throughput to
//! settle, warming up, the rest before the measured part. Promises: reads of the
//! workload find data where a real device would have some (`auto`), so that they cost what reads
//! cost; everything is flushed before measuring starts. Never: measures.

use super::drive::{Part, run_copies, run_job};
use super::replay::PlannedTrace;
use super::{Host, LOOK_AFTER, Parts, RunError, RunPlan, Scratch, quiet_flush, replay};
use crate::trace::TraceOp;
use crate::trace::layout::Pieces;
use crate::workload::{Amount, Job, Mix, Sizes};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_rt::Cx;
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// Sequential writes before the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// What the workload reads before it writes it: the regions of jobs that read (fio lays its
    /// files out too), the places that a trace reads first.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// This share of the logical capacity, from its start.
    Percent(u64),
}

/// Random 4 KiB writes over what was filled, before the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    #[default]
    None,
    /// This many percent of what was filled.
    Percent(u64),
    /// Until write amplification and throughput have settled.
    Steady,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prepared {
    /// Sectors written in order.
    pub filled_sectors: u64,
    /// Sectors written at random.
    pub overwritten_sectors: u64,
    /// For `steady`: whether write amplification and throughput settled.
    pub settled: Option<bool>,
    /// Write amplification of the last round of overwriting.
    pub last_amplification: Option<f64>,
    /// What the host wrote per second of virtual time in that round, bytes.
    pub last_bytes_per_second: Option<f64>,
    /// With a shelf of prepared devices: `made` for it by this run, `found` on it, or why neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shelf: Option<String>,
    /// Operations of the warm-up on the device.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warm_up_operations: u64,
    /// The host was idle for so long before the measured part, ns.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rest_ns: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The warm-up draws other numbers than the jobs that are measured, whatever both are called.
pub(crate) const WARM_UP: u64 = 0x7761_726d;
/// What the warm-up is called, for who looks on.
pub(crate) const STAGE: &str = "warm up";

/// Filling goes in large requests, many at once: it is no part of what is measured.
const FILL_SECTORS: u32 = 64;
const DEPTH: u32 = 32;
/// Overwriting until steady goes in rounds of this share of the filled sectors ...
const ROUND_PERCENT: u64 = 25;
/// ... until this many rounds in a row ...
const SETTLED_ROUNDS: usize = 4;
/// ... lie within this share of their mean, or so many rounds have passed. Throughput follows write
/// amplification with waits of its own, so it may move as much as SNIA's steady state lets it.
const AMPLIFICATION_WITHIN: f64 = 0.03;
const THROUGHPUT_WITHIN: f64 = 0.10;
const ROUNDS_MAX: usize = 100;

pub(crate) async fn prepare(
    cx: &Cx,
    host: &Rc<Host>,
    plan: &RunPlan,
    parts: &Parts,
) -> Result<Prepared, RunError> {
    let mut done = Prepared::default();
    let before = host.stats().host_written;
    match plan.fill {
        Fill::None => {}
        Fill::Percent(_) => {
            done.filled_sectors = fill_region(cx, host, plan, 0, filled(plan, host)).await?;
        }
        Fill::Auto => {
            let mut before = Bits::new(host.capacity);
            for part in &parts.warm_up {
                done.filled_sectors += fill_for(cx, host, plan, part, &mut before).await?;
            }
            // What is measured runs at once: none of it is before another.
            for part in &parts.work {
                done.filled_sectors += fill_for(cx, host, plan, part, &mut before.clone()).await?;
            }
        }
    }
    if host.stopped() {
        // Interrupted: not what was wanted but what was written.
        done.filled_sectors = host.stats().host_written - before;
    }
    overwrite(cx, host, plan, &mut done).await?;
    done.warm_up_operations = warm_up(cx, host, plan, &parts.warm_up).await?;
    let wrote = done.filled_sectors > 0 || done.warm_up_operations > 0;
    if wrote && !host.stopped() {
        quiet_flush(cx, host, &mut Scratch::default()).await;
    }
    let begun = cx.now();
    let until = begun + plan.rest;
    if plan.rest > Ns::ZERO {
        host.begin_stage("rest", None);
    }
    while cx.now() < until && !host.stopped() {
        // Somebody may want it to end meanwhile.
        let look = if cx.is_virtual() { plan.rest } else { LOOK_AFTER };
        cx.sleep_until(until.min(cx.now() + look)).await;
        host.look();
    }
    done.rest_ns = (cx.now() - begun).as_ns();
    Ok(done)
}

/// Runs the parts of the warm-up, one after the other. Returns how many operations they were.
async fn warm_up(
    cx: &Cx,
    host: &Rc<Host>,
    plan: &RunPlan,
    parts: &[Part],
) -> Result<u64, RunError> {
    let mut operations = 0;
    for part in parts {
        if host.stopped() {
            break;
        }
        match part {
            Part::Job(job, _) => {
                host.begin_stage(STAGE, None);
                run_copies(cx, host, job, plan.seed ^ WARM_UP).await?;
            }
            Part::Trace(trace) => {
                host.begin_stage(STAGE, Some(trace.requests()));
                replay::replay(cx, host, trace).await?;
            }
        }
        operations += host.done.get();
    }
    Ok(operations)
}

/// Writes what a part reads before it writes it; `touched` is what others have written by then.
async fn fill_for(
    cx: &Cx,
    host: &Rc<Host>,
    plan: &RunPlan,
    part: &Part,
    touched: &mut Bits,
) -> Result<u64, RunError> {
    match part {
        Part::Job(job, streams) if job.rw.reads() => {
            let mut sum = 0;
            for (start, length) in distinct(streams.iter().map(|s| s.region())) {
                sum += fill_region(cx, host, plan, start, length).await?;
            }
            Ok(sum)
        }
        Part::Trace(trace) => fill_read_first(cx, host, trace, touched).await,
        Part::Job(..) => Ok(0),
    }
}

/// Copies of a job mostly share their region.
fn distinct(regions: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut regions: Vec<_> = regions.collect();
    regions.sort_unstable();
    regions.dedup();
    regions
}

fn filled(plan: &RunPlan, host: &Host) -> u64 {
    match plan.fill {
        Fill::Percent(p) => Amount::Percent(p).sectors(host.capacity),
        _ => host.capacity,
    }
}

async fn fill_region(
    cx: &Cx,
    host: &Rc<Host>,
    plan: &RunPlan,
    start: u64,
    sectors: u64,
) -> Result<u64, RunError> {
    host.begin_stage("fill", Some(sectors.div_ceil(FILL_SECTORS as u64)));
    let whole = sectors - sectors % FILL_SECTORS as u64;
    for (start, length, size) in [(start, whole, FILL_SECTORS), (start + whole, sectors - whole, 1)]
    {
        if length == 0 {
            continue;
        }
        let mut job = Job::new("fill");
        job.rw = Mix::Write;
        job.bs[1] = Sizes::fixed(size);
        job.offset = Amount::Bytes(start * SECTOR_BYTES as u64);
        job.size = Some(Amount::Bytes(length * SECTOR_BYTES as u64));
        job.iodepth = DEPTH;
        run_job(cx, host, job, plan.seed).await?;
    }
    Ok(sectors)
}

async fn overwrite(
    cx: &Cx,
    host: &Rc<Host>,
    plan: &RunPlan,
    done: &mut Prepared,
) -> Result<(), RunError> {
    let region = filled(plan, host);
    let (share, rounds) = match plan.overwrite {
        Overwrite::None => return Ok(()),
        Overwrite::Percent(p) => (p, 1),
        Overwrite::Steady => (ROUND_PERCENT, ROUNDS_MAX),
    };
    let sectors = (region as u128 * share as u128 / 100).max(1) as u64;
    let (mut amplification, mut throughput) = (Vec::new(), Vec::new());
    let mut has_settled = false;
    let settled = |amplification: &[f64], throughput: &[f64]| {
        settled(amplification, AMPLIFICATION_WITHIN) && settled(throughput, THROUGHPUT_WITHIN)
    };
    for round in 0..rounds {
        if host.stopped() {
            break;
        }
        host.begin_stage("overwrite", Some(sectors));
        let (before, began) = (host.stats(), cx.now());
        let mut job = Job::new(&format!("overwrite.{round}"));
        (job.rw, job.random, job.norandommap) = (Mix::Write, true, true);
        job.size = Some(Amount::Bytes(region * SECTOR_BYTES as u64));
        job.io_size = Some(Amount::Bytes(sectors * SECTOR_BYTES as u64));
        job.iodepth = DEPTH;
        run_job(cx, host, job, plan.seed).await?;
        let after = host.stats();
        let wrote = after.host_written - before.host_written;
        done.overwritten_sectors += wrote;
        if wrote == 0 {
            break;
        }
        let programmed = after.programmed_total() - before.programmed_total();
        amplification.push(programmed as f64 / wrote as f64);
        let bytes = (wrote * SECTOR_BYTES as u64) as f64;
        throughput.push(bytes / (cx.now() - began).as_secs_f64());
        // Without garbage collection there is nothing that could have settled.
        has_settled = after.gc_victims > before.gc_victims && settled(&amplification, &throughput);
        if has_settled {
            break;
        }
    }
    done.last_amplification = amplification.last().copied();
    done.last_bytes_per_second = throughput.last().copied();
    done.settled = (plan.overwrite == Overwrite::Steady).then_some(has_settled);
    Ok(())
}

/// The last rounds lie close to their mean.
fn settled(seen: &[f64], within: f64) -> bool {
    let Some(last) = seen.len().checked_sub(SETTLED_ROUNDS).map(|from| &seen[from..]) else {
        return false;
    };
    let mean = last.iter().sum::<f64>() / last.len() as f64;
    last.iter().all(|w| (w - mean).abs() <= mean * within)
}

/// Writes the sectors that a trace reads before it writes or discards them, unless an earlier one has
/// touched them.
async fn fill_read_first(
    cx: &Cx,
    host: &Rc<Host>,
    trace: &PlannedTrace,
    touched: &mut Bits,
) -> Result<u64, RunError> {
    let mut records = trace.records(false)?;
    let mut wanted = Bits::new(host.capacity);
    let mut pieces = Pieces::new();
    while let Some(record) = records.advance()? {
        pieces.clear();
        trace.layout.map(&record, &mut pieces);
        for piece in &pieces {
            for at in piece.lba.get()..piece.lba.get() + piece.sectors as u64 {
                if touched.set(at) && record.op == TraceOp::Read {
                    wanted.set(at);
                }
            }
        }
    }
    host.begin_stage("fill", None);
    let mut scratch = Scratch::default();
    let (mut at, mut sum) = (0, 0);
    while let Some((start, length)) = wanted.run_from(at, FILL_SECTORS as u64) {
        if host.stopped() {
            break;
        }
        host.operation(cx, BlockOp::Write, start, length as u32, false, &mut scratch).await;
        sum += length;
        at = start + length;
    }
    Ok(sum)
}

/// A bit per sector.
#[derive(Clone)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(bits: u64) -> Bits {
        Bits(vec![0; bits.div_ceil(64) as usize])
    }

    /// Sets a bit; true if it was clear.
    fn set(&mut self, at: u64) -> bool {
        let (word, bit) = (&mut self.0[at as usize / 64], 1u64 << (at % 64));
        let clear = *word & bit == 0;
        *word |= bit;
        clear
    }

    fn get(&self, at: u64) -> bool {
        self.0[at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// The first set bits at or behind `at`, `max` of them at most.
    fn run_from(&self, at: u64, max: u64) -> Option<(u64, u64)> {
        let mut word = at as usize / 64;
        let mut bits = *self.0.get(word)? & (u64::MAX << (at % 64));
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        let start = word as u64 * 64 + bits.trailing_zeros() as u64;
        let end = self.0.len() as u64 * 64;
        let stop = (start + max).min(end);
        let length = (start..stop).take_while(|at| self.get(*at)).count() as u64;
        Some((start, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_bits_are_found() {
        let mut b = Bits::new(300);
        for at in [3, 4, 5, 63, 64, 200] {
            assert!(b.set(at));
        }
        assert!(!b.set(4));
        assert_eq!(b.run_from(0, 64), Some((3, 3)));
        assert_eq!(b.run_from(6, 64), Some((63, 2)));
        assert_eq!(b.run_from(3, 2), Some((3, 2)));
        assert_eq!(b.run_from(65, 64), Some((200, 1)));
        assert_eq!(b.run_from(201, 64), None);
    }

    #[test]
    fn settled_means_several_rounds_alike() {
        assert!(!settled(&[2.0, 2.0, 2.0], AMPLIFICATION_WITHIN));
        assert!(settled(&[9.0, 2.0, 2.05, 2.0, 2.05], AMPLIFICATION_WITHIN));
        assert!(!settled(&[2.0, 2.1, 2.2, 2.3], AMPLIFICATION_WITHIN));
    }
}
