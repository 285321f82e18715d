//! QBLK, Figures 6 and 7, and what the paper does not show: its four techniques one by one.
//!
//! Owns: the paper's jobs (Table I: 4 KiB random writes, libaio at depth 2, 1 to 256 threads on 32
//! CPUs), the list of configurations. Promises: pblk and QBLK under the same jobs, seed and costs; a
//! measurement begins when the buffer has been full for a while. Never: bends the table of costs.

use super::{FigureFile, ReproduceError, Row, Size, Watch};
use crate::execute::{RunOutcome, execute};
use crate::experiment::{Experiment, HostSpec, RunSpec, Target, TargetKind, Workload};
use crate::run::{Fill, Overwrite};
use crate::workload::{Job, Mix, Sizes};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::log::{Drain, LogConfig, MapAccess, PoolSet, QBLK_PU_BUDGET, RingSet};
use flashlane_rt::CostTable;
use std::collections::BTreeMap;

const SEED: u64 = 1;
/// Threads of Figure 6.
const FIG6: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Threads of Figure 7.
const FIG7: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// One measurement.
struct Point {
    /// MiB/s.
    rate: f64,
    /// Shares of all CPUs, percent.
    locks: f64,
    idle: f64,
}

type Values = BTreeMap<String, f64>;

/// Figure 6: CPU time in spin locks, and idle.
pub(super) fn fig6(
    file: &FigureFile,
    size: Size,
    watch: Watch<'_>,
) -> Result<Vec<Row>, ReproduceError> {
    let mut here = Values::new();
    'all: for threads in FIG6 {
        for (name, config) in both() {
            let Some(p) = point("qblk-fig6", file, size, watch, (name, config, threads))? else {
                break 'all;
            };
            here.insert(format!("{name}_locks_{threads}"), p.locks);
            here.insert(format!("{name}_idle_{threads}"), p.idle);
        }
    }
    Ok(file.fill(|id| here.get(id).copied()))
}

/// Figure 7: bandwidth.
pub(super) fn fig7(
    file: &FigureFile,
    size: Size,
    watch: Watch<'_>,
) -> Result<Vec<Row>, ReproduceError> {
    const FIGURE: &str = "qblk-fig7";
    let mut here = Values::new();
    'all: for threads in FIG7 {
        for (name, config) in both() {
            let Some(p) = point(FIGURE, file, size, watch, (name, config, threads))? else {
                break 'all;
            };
            here.insert(format!("{name}_{threads}"), p.rate);
        }
    }
    let waiting = LogConfig { in_turn: true, ..LogConfig::qblk() };
    if let Some(p) = point(FIGURE, file, size, watch, ("qblk", waiting, 32))? {
        here.insert("qblk_in_turn_32".into(), p.rate);
    }
    // The same host if it cost nothing: what the flash alone gives either of them.
    for (name, config) in both() {
        let target = (name, config, 32);
        if let Some(p) = point_with(FIGURE, file, size, watch, target, CostTable::zero())? {
            here.insert(format!("{name}_free_host_32"), p.rate);
        }
    }
    let rate = |name: &str, threads: u32| here.get(&format!("{name}_{threads}")).copied();
    let of =
        |name: &str| FIG7.iter().filter_map(|t| Some((*t, rate(name, *t)?))).collect::<Vec<_>>();
    let peak = |rates: &[(u32, f64)]| rates.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    let (pblk, qblk) = (of("pblk"), of("qblk"));
    let mut derived = Values::new();
    if let (Some(p), Some(q)) = (rate("pblk", 32), rate("qblk", 32)) {
        derived.insert("ratio_32".into(), q / p);
        if let Some(waiting) = rate("qblk_in_turn", 32) {
            derived.insert("ratio_in_turn_32".into(), waiting / p);
        }
    }
    if pblk.len() == FIG7.len() && qblk.len() == FIG7.len() {
        let (at, pblk_peak) = peak(&pblk).expect("there are some");
        let (_, qblk_peak) = peak(&qblk).expect("there are some");
        derived.insert("pblk_peak_at".into(), f64::from(at));
        derived.insert("ratio_peaks".into(), qblk_peak / pblk_peak);
        let at_32 = rate("qblk", 32).expect("measured");
        let beyond = qblk.iter().filter(|(threads, _)| *threads > 32);
        let far = beyond.map(|(_, rate)| (rate / at_32 - 1.0).abs()).fold(0.0, f64::max);
        derived.insert("qblk_flat".into(), 100.0 * far);
        derived.insert("ratio_1".into(), qblk[0].1 / pblk[0].1);
    }
    here.extend(derived);
    Ok(file.fill(|id| here.get(id).copied()))
}

/// The techniques by themselves, all but one, and with what the paper left for later.
pub(super) fn ablation(
    file: &FigureFile,
    size: Size,
    watch: Watch<'_>,
) -> Result<Vec<Row>, ReproduceError> {
    let mut here = Values::new();
    let pblk = LogConfig::default;
    let rings = |c| LogConfig { rings: RingSet::PerCore, ..c };
    let pools = |c| LogConfig { pools: PoolSet::PerChannel, ..c };
    let map = |c| LogConfig { map: MapAccess::Atomic, ..c };
    let drain = |c| LogConfig { drain: Drain::Large, pu_budget: QBLK_PU_BUDGET, ..c };
    let all = || drain(map(pools(rings(pblk()))));
    let configurations = [
        ("pblk", pblk()),
        ("rings", rings(pblk())),
        ("pools", pools(pblk())),
        ("map", map(pblk())),
        ("drain", drain(pblk())),
        ("without_rings", drain(map(pools(pblk())))),
        ("without_pools", drain(map(rings(pblk())))),
        ("without_map", drain(pools(rings(pblk())))),
        ("without_drain", map(pools(rings(pblk())))),
        ("all", all()),
        ("in_turn", LogConfig { in_turn: true, ..all() }),
        ("borrow", LogConfig { borrow: true, ..all() }),
    ];
    'all: for threads in [1, 4, 32] {
        for (name, config) in &configurations {
            let target = (*name, config.clone(), threads);
            let Some(p) = point("qblk-ablation", file, size, watch, target)? else {
                break 'all;
            };
            here.insert(format!("{name}_{threads}"), p.rate);
        }
    }
    Ok(file.fill(|id| here.get(id).copied()))
}

fn both() -> [(&'static str, LogConfig); 2] {
    [("pblk", LogConfig::default()), ("qblk", LogConfig::qblk())]
}

fn point(
    figure: &'static str,
    file: &FigureFile,
    size: Size,
    watch: Watch<'_>,
    target: (&str, LogConfig, u32),
) -> Result<Option<Point>, ReproduceError> {
    point_with(figure, file, size, watch, target, file.costs.clone())
}

fn point_with(
    figure: &'static str,
    file: &FigureFile,
    size: Size,
    watch: Watch<'_>,
    (name, config, threads): (&str, LogConfig, u32),
    costs: CostTable,
) -> Result<Option<Point>, ReproduceError> {
    let ms = |name: &str| Ns::from_ms(file.parameter(name));
    let mut job = Job::new(&format!("{threads} threads"));
    (job.rw, job.random, job.norandommap) = (Mix::Write, true, true);
    job.bs[1] = Sizes::fixed(1);
    (job.iodepth, job.numjobs) = (file.parameter("iodepth") as u32, threads);
    job.time_based = true;
    job.ramp_time = ms("ramp_ms");
    job.runtime = Some(match size {
        Size::Small => ms("measured_ms"),
        Size::Full => ms("full_ms"),
    });
    let experiment = Experiment {
        name: figure.into(),
        description: String::new(),
        targets: vec![Target {
            host: HostSpec { cores: file.parameter("cpus") as u32, costs },
            ..Target::new(
                &format!("{name}, {threads} threads"),
                TargetKind::Pblk(config),
                file.device("femu").clone(),
            )
        }],
        workloads: vec![Workload::Job(job.into())],
        run: RunSpec { seed: SEED, fill: Fill::None, overwrite: Overwrite::None },
        vary: Vec::new(),
    };
    let outcome = execute(&experiment, &|t| watch(&t.name))?;
    Ok(super::one_run(figure, outcome)?.map(|run| of(&run)))
}

fn of(run: &RunOutcome) -> Point {
    let m = &run.measured.recorder;
    let bytes = m.sectors_written * SECTOR_BYTES as u64;
    let span = (m.end - m.start).as_ns() as f64 / 1e9;
    let cpu = &run.measured.cpu;
    let whole = (cpu.time.as_ns() * cpu.cores.len() as u64).max(1) as f64;
    let share = |of: u64| 100.0 * of as f64 / whole;
    let busy: u64 = cpu.cores.iter().map(|core| core.busy.as_ns()).sum();
    let spun: u64 = cpu.cores.iter().map(|core| core.spun.as_ns()).sum();
    Point {
        rate: bytes as f64 / (1 << 20) as f64 / span,
        locks: share(spun),
        idle: 100.0 - share(busy),
    }
}
