//! A target that is filled once and measured many times, as fio's users do it.
//!
//! Owns: the order of one measurement: jobs begin, a ramp passes, a span is measured, all end.
//! Promises: everything read is verified, and a measurement with a wrong sector, a broken rule, a
//! move of garbage collection or an interrupt gives no number. Never: erases or refills between measurements.

use super::ReproduceError;
use crate::experiment::{DeviceChoice, Target};
use crate::histogram::Latencies;
use crate::run::{Fill, Host, Monitor, Overwrite, Recorder, RunPlan, Work, drive};
use crate::stack::Stack;
use crate::words::mb_per_s;
use crate::workload::{Amount, Job, Mix, Sizes};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::log::{LimiterKind, LogConfig};
use flashlane_rt::Cx;
use std::collections::BTreeMap;
use std::rc::Rc;

const SEED: u64 = 1;

/// What one measurement gave.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub(super) read: Latencies,
    pub(super) write: Latencies,
    /// Decimal megabytes per second, reads and writes.
    pub(super) read_rate: f64,
    pub(super) write_rate: f64,
}

impl Phase {
    /// As values of a point.
    pub(super) fn values(&self) -> BTreeMap<String, f64> {
        let mut values = BTreeMap::from([
            ("read_mb_per_s".to_string(), self.read_rate),
            ("write_mb_per_s".to_string(), self.write_rate),
        ]);
        for (op, all) in [("read", &self.read), ("write", &self.write)] {
            let us = |ns: u64| ns as f64 / 1e3;
            values.insert(format!("{op}_mean_us"), us(all.mean_ns()));
            for (name, percent) in [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("max", 100.0)] {
                values.insert(format!("{op}_{name}_us"), us(all.percentile_ns(percent)));
            }
        }
        values
    }
}

/// A filled pblk, without its rate limiter and without garbage: LightNVM 5.1 measures "in factory
/// state with pblk's rate-limiter disabled".
pub(super) struct Bench {
    cx: Cx,
    stack: Stack,
    host: Rc<Host>,
    figure: &'static str,
    /// Sectors of the data set, from 0 on.
    pub(super) data: u64,
}

impl Bench {
    /// pblk over all PUs of a device, with `data` bytes written in order.
    pub(super) async fn new(
        cx: &Cx,
        figure: &'static str,
        device: &DeviceChoice,
        data: u64,
        monitor: Rc<dyn Monitor>,
    ) -> Result<Bench, ReproduceError> {
        let config = LogConfig { limiter: LimiterKind::Off, ..LogConfig::default() };
        let target = Target::of("pblk", config, device.clone());
        let stack = Stack::build(cx, &target, SEED).await?;
        let host = Rc::new(Host::new(cx, stack.subject(Rc::new(|| ()), false), monitor));
        let data = data / SECTOR_BYTES as u64;
        let bench = Bench { cx: cx.clone(), stack, host, figure, data };
        let mut fill = job("fill", Mix::Write, false, 64, 32);
        fill.size = Some(Amount::Bytes(data * SECTOR_BYTES as u64));
        fill.end_fsync = true;
        bench.jobs(vec![fill]).await?;
        Ok(bench)
    }

    /// New data goes to so many PUs at a time from now on. Returns when the lines that were open
    /// before are padded and closed: gigabytes, where lines are wide.
    pub(super) async fn set_active_pus(&self, pus: u32) -> Result<(), ReproduceError> {
        self.stack.set_attribute(&self.cx, "active_pus", &pus.to_string())?;
        let programmed = || self.stack.ssd().counters().programmed;
        loop {
            let before = programmed();
            self.cx.sleep(Ns::from_ms(100)).await;
            if programmed() == before {
                return Ok(());
            }
        }
    }

    /// Runs jobs for a ramp that is not measured and a span that is; `None` when interrupted.
    pub(super) async fn measure(
        &self,
        mut jobs: Vec<Job>,
        ramp: Ns,
        span: Ns,
    ) -> Result<Option<Phase>, ReproduceError> {
        for job in &mut jobs {
            (job.time_based, job.ramp_time, job.runtime) = (true, ramp, Some(span));
        }
        self.jobs(jobs).await?;
        if self.host.stopped() {
            return Ok(None);
        }
        let recorder = self.host.recorder.borrow();
        let wrong = recorder.wrong_sectors + recorder.uncorrectable + recorder.failed;
        let violations = self.stack.ssd().counters().violations;
        // Lines that were overwritten throughout come back by themselves; moves would be in the way.
        let moved = self.stack.stats().gc_moved;
        if wrong + violations + moved > 0 {
            let what = format!(
                "{wrong} requests or sectors went wrong, {violations} violations, {moved} sectors \
                 moved where nothing should be"
            );
            return Err(ReproduceError::Bad { figure: self.figure.into(), what });
        }
        let rate = |bytes: u64| mb_per_s(bytes, span.as_ns());
        Ok(Some(Phase {
            read_rate: rate(recorder.bytes_read),
            write_rate: rate(recorder.bytes_written),
            read: recorder.latencies(BlockOp::Read),
            write: recorder.latencies(BlockOp::Write),
        }))
    }

    async fn jobs(&self, jobs: Vec<Job>) -> Result<(), ReproduceError> {
        let plan = RunPlan {
            seed: SEED,
            fill: Fill::None,
            overwrite: Overwrite::None,
            warm_up: Vec::new(),
            rest: Ns::ZERO,
            work: jobs.into_iter().map(|job| Work::Job(job.into())).collect(),
        };
        *self.host.recorder.borrow_mut() = Recorder::default();
        let bad = |e: crate::run::RunError| ReproduceError::Bad {
            figure: self.figure.into(),
            what: e.to_string(),
        };
        let fit = |work| drive::fit(work, SEED, self.host.capacity);
        let parts = plan.work.iter().map(fit).collect::<Result<Vec<_>, _>>().map_err(bad)?;
        drive::drive(&self.cx, &self.host, &plan, parts).await.map_err(bad)?;
        Ok(())
    }

    /// Reads of so many sectors from the data set.
    pub(super) fn reads(&self, random: bool, sectors: u32, depth: u32) -> Job {
        let mut read = job("reads", Mix::Read, random, sectors, depth);
        read.size = Some(Amount::Bytes(self.data * SECTOR_BYTES as u64));
        read
    }

    /// Writes in order behind the data set.
    pub(super) fn writes(&self, sectors: u32, depth: u32) -> Job {
        let mut write = job("writes", Mix::Write, false, sectors, depth);
        write.offset = Amount::Bytes(self.data * SECTOR_BYTES as u64);
        write
    }
}

fn job(name: &str, rw: Mix, random: bool, sectors: u32, depth: u32) -> Job {
    let mut job = Job::new(name);
    (job.rw, job.random, job.norandommap, job.iodepth) = (rw, random, true, depth);
    job.bs = [Sizes::fixed(sectors), Sizes::fixed(sectors), Sizes::fixed(sectors)];
    job
}
