//! Figures that are measured live: real threads, the real clock, a device that takes no time.
//!
//! Owns: the null device, what a thread got of the CPUs, how a measurement on other threads is watched.
//! Promises: no wall clock but the executor's (`Cx::now`); what is compared was measured in turns, so that
//! whatever else runs on the machine hits all of it alike; results name the machine. Never: gives the
//! same numbers twice, so no test looks at one.
//!
//! Start reading at [`overhead`] (one thread) or [`scaling`] (all cores).

mod copy;
pub(super) mod overhead;
pub(super) mod scaling;

use super::points::{Point, Points};
use super::{FigureFile, Measured, ReproduceError, Verdict, Way};
use crate::calibrate::Machine;
use crate::run::Monitor;
use flashlane_base::{Geometry, Lba, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, Pblk};
use flashlane_ocssd::device::Device;
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_rt::Cx;
use flashlane_rt::sync::{AtomicBool, AtomicU64, Ordering};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

/// Sectors of a request that warms a target up.
const WARM_SECTORS: u64 = 64;
/// And such requests between two looks at how far the device is.
const WARM_REQUESTS: u32 = 64;

/// What the figure's file says, for all threads.
#[derive(Clone)]
struct Plan {
    figure: &'static str,
    device: DeviceSpec,
    over_provisioning_percent: u32,
    /// Sectors that requests go to.
    set: u64,
    /// In each, what is compared is measured once.
    rounds: u64,
}

impl Plan {
    fn of(figure: &'static str, file: &FigureFile) -> Plan {
        Plan {
            figure,
            device: file.device("null").spec.clone(),
            over_provisioning_percent: file.parameter("over_provisioning_percent") as u32,
            set: (file.parameter("set_mib") << 20) / SECTOR_BYTES as u64,
            rounds: file.parameter("rounds"),
        }
    }

    /// The device, without time and with these bytes of a sector.
    fn null_device(&self, store: StoreKind) -> Result<Arc<Ssd>, ReproduceError> {
        let timing = false;
        Ok(Ssd::new(&self.device, SsdOptions { store, timing, ..SsdOptions::default() })?)
    }

    fn bad(&self, what: impl ToString) -> ReproduceError {
        ReproduceError::Bad { figure: self.figure.into(), what: what.to_string() }
    }
}

fn sectors_of(geo: &Geometry) -> u64 {
    u64::from(geo.pus()) * u64::from(geo.chunks_per_pu) * u64::from(geo.sectors_per_chunk())
}

/// What those who measure and whoever watches tell each other.
#[derive(Default)]
struct Sign {
    stop: AtomicBool,
    requests: AtomicU64,
}

impl Sign {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn count(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread of its own. This one asks the monitor meanwhile, fifty times a second.
fn attended<T: Send>(monitor: &dyn Monitor, work: impl FnOnce(Arc<Sign>) -> T + Send) -> T {
    let sign = Arc::new(Sign::default());
    std::thread::scope(|scope| {
        let theirs = sign.clone();
        let worker = scope.spawn(move || work(theirs));
        while !worker.is_finished() {
            monitor.progress("measuring", sign.requests.load(Ordering::Relaxed), None);
            sign.stop.store(monitor.interrupted(), Ordering::Relaxed);
            std::thread::park_timeout(Duration::from_millis(20));
        }
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What a thread got of the CPUs since it began, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    cpu: u64,
    /// It could have run, but others did.
    waited: u64,
}

impl Spent {
    /// Of the present thread. What it waited is 0 on a system that does not say.
    fn now() -> Spent {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let waited = text.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        Spent { cpu: cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64, waited }
    }

    fn since(before: Spent) -> Spent {
        let now = Spent::now();
        Spent {
            cpu: now.cpu.saturating_sub(before.cpu),
            waited: now.waited.saturating_sub(before.waited),
        }
    }
}

/// The middle one; `None` of none.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// A target on a null device of its own.
#[derive(Clone)]
struct Null {
    dev: Arc<Pblk>,
    ssd: Arc<Ssd>,
    /// Bytes that a sector has.
    unit: usize,
}

impl Null {
    /// Twice as many sectors were programmed as the device has: its memory and the target's has been touched,
    /// and chunks come round.
    async fn new(
        cx: &Cx,
        plan: &Plan,
        (config, store): (LogConfig, StoreKind),
        sign: &Sign,
    ) -> Result<Null, ReproduceError> {
        let (ssd, unit) = (plan.null_device(store)?, store.content_bytes());
        let over_provisioning_percent = plan.over_provisioning_percent;
        let config = LogConfig { over_provisioning_percent, ..config };
        let dev = Pblk::create(cx, ssd.clone(), config).await.map_err(|e| plan.bad(e))?;
        let null = Null { dev, ssd, unit };
        let mut buf = vec![1u8; WARM_SECTORS as usize * unit];
        // Twice: fresh chunks are taken first, but some stay free, and a page that the system has to clear
        // takes many times what is measured.
        let (mut at, enough) = (0, 2 * sectors_of(null.ssd.geometry()));
        while null.ssd.counters().programmed_total() < enough && !sign.stopped() {
            for _ in 0..WARM_REQUESTS {
                let sectors = WARM_SECTORS.min(plan.set - at % plan.set);
                let part = &mut buf[..sectors as usize * unit];
                null.request(cx, BlockOp::Write, at % plan.set, part).await;
                at += sectors;
            }
        }
        null.settle(cx).await;
        Ok(null)
    }

    async fn request(&self, cx: &Cx, op: BlockOp, lba: u64, buf: &mut [u8]) {
        let sectors = (buf.len() / self.unit) as u32;
        let io = Io::of(op, Lba::new(lba), sectors, false, buf);
        self.dev.start(cx, io).await.expect("the null device fails nothing");
    }

    /// Everything that was written is programmed: what comes next is measured without it.
    async fn settle(&self, cx: &Cx) {
        self.request(cx, BlockOp::Flush, 0, &mut []).await;
    }

    /// Stops it; what it has counted must add up.
    async fn stop(&self, cx: &Cx, plan: &Plan) -> Result<(), ReproduceError> {
        self.dev.stop(cx).await.map_err(|e| plan.bad(e))?;
        let (stats, counters) = (self.dev.stats(), self.ssd.counters());
        let laws =
            stats.check_host_law().and_then(|()| stats.check_media_law(&counters.programmed));
        laws.map_err(|e| plan.bad(e))?;
        match counters.violations {
            0 => Ok(()),
            n => Err(plan.bad(format!("{n} rules of the medium were broken"))),
        }
    }

    /// Programmed sectors per written one, of all that it did.
    fn amplification(&self) -> f64 {
        self.dev.stats().write_amplification().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Size;
    use crate::reproduce::Watcher;
    use crate::run::Progress;
    use flashlane_rt::sync::AtomicU32;
    use std::rc::Rc;

    /// A figure's file with other parameters.
    pub(super) fn tiny(name: &str, text: &str, with: &[(&str, u64)]) -> FigureFile {
        let mut file = FigureFile::parse(name, text, Size::Small).expect("a good file");
        for (key, value) in with {
            let found = file.parameters.iter_mut().find(|(name, _)| name == key);
            found.expect("a parameter of this figure").1 = *value;
        }
        file
    }

    /// Interrupts at the second look.
    #[derive(Default)]
    pub(super) struct Impatient(AtomicU32);

    impl Progress for Impatient {
        fn progress(&self, _: &str, _: u64, _: Option<u64>) {}
        fn interrupted(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) > 0
        }
    }
    impl Monitor for Impatient {}
    impl Watcher for Impatient {
        fn part(&self, _: &str) -> Rc<dyn Monitor> {
            Rc::new(Impatient::default())
        }
    }

    #[test]
    fn a_median_is_the_middle_one() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([]), None);
    }

    /// A thread that works gets CPU time.
    #[test]
    fn cpu_time_of_a_thread_grows() {
        let before = Spent::now();
        let mut x = 1u64;
        for i in 0..2_000_000u64 {
            x = std::hint::black_box(x.wrapping_mul(i | 1));
        }
        assert!(Spent::since(before).cpu > 0);
    }
}
