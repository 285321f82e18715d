//! QBLK, Figures 6 and 7, and what the paper does not show: its four techniques one by one.
//!
//! Owns: the paper's jobs (Table I: 4 KiB random writes, libaio at depth 2, 1 to 256 threads on 32
//! CPUs), the list of configurations. Promises: pblk and QBLK under the same jobs, seed and costs; a
//! measurement begins when the buffer has been full for a while. Never: bends the table of costs.

use super::{FigureFile, ReproduceError, Row, Size, Way};
use crate::execute::RunOutcome;
use crate::experiment::{HostSpec, Target};
use crate::workload::{Job, Mix, Sizes};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::log::{
    ChannelChoice, Drain, LogConfig, MapAccess, PoolSet, QBLK_PU_BUDGET, RingSet,
};
use flashlane_rt::CostTable;
use std::collections::BTreeMap;

/// Threads of Figure 6.
const FIG6: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Threads of Figure 7.
const FIG7: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

struct Point {
    /// MiB/s.
    rate: f64,
    /// Shares of all CPUs, percent.
    locks: f64,
    idle: f64,
}

type Values = BTreeMap<String, f64>;

/// Figure 6: CPU time in spin locks, and idle.
pub(super) fn fig6(file: &FigureFile, way: &Way<'_>) -> Result<Vec<Row>, ReproduceError> {
    let mut here = Values::new();
    for ((name, threads), p) in points("qblk-fig6", file, way, curves(file, &FIG6))? {
        here.insert(format!("{name}_locks_{threads}"), p.locks);
        here.insert(format!("{name}_idle_{threads}"), p.idle);
    }
    Ok(file.fill(|id| here.get(id).copied()))
}

/// Figure 7: bandwidth.
pub(super) fn fig7(file: &FigureFile, way: &Way<'_>) -> Result<Vec<Row>, ReproduceError> {
    let mut parts = curves(file, &FIG7);
    let waiting = LogConfig { channel_choice: ChannelChoice::Turn, ..LogConfig::qblk() };
    parts.push(Part::new(file, "qblk_in_turn", waiting, 32));
    // The same host if it cost nothing: what the flash alone gives either of them.
    for (name, config) in
        [("pblk_free_host", LogConfig::default()), ("qblk_free_host", LogConfig::qblk())]
    {
        parts.push(Part { costs: CostTable::zero(), ..Part::new(file, name, config, 32) });
    }
    let mut here = rates("qblk-fig7", file, way, parts)?;
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
pub(super) fn ablation(file: &FigureFile, way: &Way<'_>) -> Result<Vec<Row>, ReproduceError> {
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
        ("in_turn", LogConfig { channel_choice: ChannelChoice::Turn, ..all() }),
        ("borrow", LogConfig { borrow: true, ..all() }),
    ];
    let parts = [1, 4, 32].into_iter().flat_map(|threads| {
        let all = configurations.iter();
        all.map(move |(name, config)| Part::new(file, name, config.clone(), threads))
    });
    let here = rates("qblk-ablation", file, way, parts.collect())?;
    Ok(file.fill(|id| here.get(id).copied()))
}

/// A configuration and how many threads it is under.
type Name = (&'static str, u32);

struct Part {
    name: &'static str,
    config: LogConfig,
    threads: u32,
    costs: CostTable,
}

impl Part {
    fn new(file: &FigureFile, name: &'static str, config: LogConfig, threads: u32) -> Part {
        Part { name, config, threads, costs: file.costs.clone() }
    }
}

/// pblk and QBLK under each number of threads.
fn curves(file: &FigureFile, threads: &[u32]) -> Vec<Part> {
    let both = |threads| {
        let qblk = Part::new(file, "qblk", LogConfig::qblk(), threads);
        [Part::new(file, "pblk", LogConfig::default(), threads), qblk]
    };
    threads.iter().copied().flat_map(both).collect()
}

/// Bandwidth by `NAME_THREADS`, of all parts that were measured.
fn rates(
    figure: &'static str,
    file: &FigureFile,
    way: &Way<'_>,
    parts: Vec<Part>,
) -> Result<Values, ReproduceError> {
    let points = points(figure, file, way, parts)?.into_iter();
    Ok(points.map(|((name, threads), p)| (format!("{name}_{threads}"), p.rate)).collect())
}

/// All parts that were measured, by name and threads.
fn points(
    figure: &'static str,
    file: &FigureFile,
    way: &Way<'_>,
    parts: Vec<Part>,
) -> Result<Vec<(Name, Point)>, ReproduceError> {
    let points = way.each(&parts, |part| point(figure, file, way, part))?;
    let named = parts.iter().map(|part| (part.name, part.threads)).zip(points);
    Ok(named.filter_map(|(name, point)| Some((name, point?))).collect())
}

fn point(
    figure: &'static str,
    file: &FigureFile,
    way: &Way<'_>,
    part: &Part,
) -> Result<Option<Point>, ReproduceError> {
    let threads = part.threads;
    let ms = |name: &str| Ns::from_ms(file.parameter(name));
    let mut job = Job::new(&format!("{threads} threads"));
    (job.rw, job.random, job.norandommap) = (Mix::Write, true, true);
    job.bs[1] = Sizes::fixed(1);
    (job.iodepth, job.numjobs) = (file.parameter("iodepth") as u32, threads);
    job.time_based = true;
    job.ramp_time = ms("ramp_ms");
    job.runtime = Some(match way.size {
        Size::Small => ms("measured_ms"),
        Size::Full => ms("full_ms"),
    });
    let name = format!("{}, {threads} threads", part.name);
    let target = Target {
        host: HostSpec { cores: file.parameter("cpus") as u32, costs: part.costs.clone() },
        ..Target::of(&name, part.config.clone(), file.device("femu").clone())
    };
    Ok(super::run_one(figure, way, target, job)?.map(|run| of(&run)))
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
