//! LightNVM, Figure 5: reads beside writes, by the number of PUs that take new data.
//!
//! Owns: the mixes of (a) to (d), each under the three die queues. Promises: reads go to data that
//! was written over all PUs, writes go behind it, from the same place in each measurement; a
//! measurement beside which garbage collection moves anything is refused.
//! Never: measures while the buffer still takes what the flash could not.
//!
//! | part | writes, 256 KiB, one at a time | random reads |
//! |---|---|---|
//! | a, b | as fast as they go | 256 KiB, 16 at a time |
//! | c | as fast as they go | 4 KiB, one at a time |
//! | d | at 200 MB/s | 256 KiB, one at a time |

use super::bench::{Bench, Phase};
use super::{FigureFile, ReproduceError, Row, Size, Way};
use crate::experiment::DeviceChoice;
use crate::run::Monitor;
use crate::workload::{Job, Pace};
use flashlane_base::Ns;
use flashlane_ocssd::spec::DieQueue;
use flashlane_rt::{CostTable, Virtual};
use std::collections::BTreeMap;
use std::rc::Rc;

const FIGURE: &str = "lightnvm-fig5";
/// 256 KiB.
const LARGE: u32 = 64;
/// Active PUs of the figure.
const WIDTHS: [u32; 6] = [128, 64, 32, 16, 8, 4];
const QUEUES: [(&str, DieQueue); 3] =
    [("fifo", DieQueue::Fifo), ("read_first", DieQueue::ReadFirst), ("suspend", DieQueue::Suspend)];

/// What a channel that is too fast to be in anybody's way leaves of a difference to the paper.
const FAST_BUS: &str = "fast_channels";

/// Measurements by (mix, active PUs); reads alone have 0 active PUs.
type Mixes = BTreeMap<(&'static str, u32), Phase>;

pub(super) fn measure(file: &FigureFile, way: &Way<'_>) -> Result<Vec<Row>, ReproduceError> {
    let scale = if way.size == Size::Full { 4 } else { 1 };
    let plan = Plan {
        data: (file.parameter("data_gib") * scale) << 30,
        span: Ns::from_ms(file.parameter("milliseconds") * scale),
        pace: file.parameter("paced_mb_per_s") * 1_000_000,
        widths: &WIDTHS,
    };
    let mut here: BTreeMap<String, f64> = BTreeMap::new();
    let all = QUEUES.map(|(name, queue)| (name.to_string(), "westlake", queue, &WIDTHS[..]));
    let fast = QUEUES.map(|(name, queue)| (format!("fast_{name}"), FAST_BUS, queue, &WIDTHS[5..]));
    let all: Vec<_> = all.into_iter().chain(fast).collect();
    let mixes = way.each(&all, |(name, device, queue, widths)| {
        let mut device = file.device(device).clone();
        device.options.queue = Some(*queue);
        let plan = Plan { widths, ..plan };
        under(plan, device, file.costs.clone(), (way.watch)(name))
    })?;
    for ((name, .., widths), mixes) in all.iter().zip(mixes) {
        if let Some(mixes) = mixes {
            note(&mut here, name, widths, &mixes);
        }
    }
    Ok(file.fill(|id| here.get(id).copied()))
}

/// Sizes of the experiment.
#[derive(Clone, Copy)]
struct Plan {
    /// Bytes that are read from.
    data: u64,
    span: Ns,
    /// Bytes per second that part (d) writes.
    pace: u64,
    /// Active PUs, most first.
    widths: &'static [u32],
}

/// All mixes under one die queue; `None` when interrupted.
fn under(
    plan: Plan,
    device: DeviceChoice,
    costs: CostTable,
    monitor: Rc<dyn Monitor>,
) -> Result<Option<Mixes>, ReproduceError> {
    let vm = Virtual::new(1, 1, costs);
    let cx = vm.cx();
    vm.run(async move {
        let bench = Bench::new(&cx, FIGURE, &device, plan.data, monitor).await?;
        let large = |depth| bench.reads(true, LARGE, depth);
        let small = || bench.reads(true, 1, 1);
        let mut mixes = Mixes::new();
        for (mix, reads) in [("a", large(16)), ("c", small()), ("d", large(1))] {
            let ramp = Ns::from_ms(20);
            let Some(phase) = bench.measure(vec![reads], ramp, plan.span).await? else {
                return Ok(None);
            };
            mixes.insert((mix, 0), phase);
        }
        for width in plan.widths.iter().copied() {
            bench.set_active_pus(width).await?;
            let fast = || bench.writes(LARGE, 1);
            let mut paced: Job = fast();
            paced.rate[1] = Pace::BytesPerSecond(plan.pace);
            let all = [
                ("writes", vec![fast()]),
                ("a", vec![fast(), large(16)]),
                ("c", vec![fast(), small()]),
                ("d", vec![paced, large(1)]),
            ];
            for (mix, jobs) in all {
                let ramp = settling(&device, width);
                let Some(phase) = bench.measure(jobs, ramp, plan.span).await? else {
                    return Ok(None);
                };
                mixes.insert((mix, width), phase);
            }
        }
        Ok::<_, ReproduceError>(Some(mixes))
    })?
}

/// Until the write buffer is full, and writes go at the pace of the flash: twice the time that the
/// active PUs take to program a bufferful.
fn settling(device: &DeviceChoice, width: u32) -> Ns {
    let geo = device.spec.geometry();
    let units = (geo.mw_cunits.max(geo.ws_opt) / geo.ws_opt * geo.pus()) as u64;
    let program = device.spec.timing.program.iter().max().copied().unwrap_or(Ns::ZERO);
    program.times(2 * units.div_ceil(width as u64))
}

/// The values of one die queue, and what the curves look like.
fn note(here: &mut BTreeMap<String, f64>, queue: &str, widths: &[u32], mixes: &Mixes) {
    let alone = |mix: &'static str| &mixes[&(mix, 0)];
    let mut put = |what: String, value: f64| {
        here.insert(format!("{queue}_{what}"), value);
    };
    put("reads_alone".into(), alone("a").read_rate);
    put("4k_alone_mean".into(), alone("c").read_mean());
    put("d_alone_mean".into(), alone("d").read_mean());
    for width in widths.iter().copied() {
        let of = |mix: &'static str| &mixes[&(mix, width)];
        put(format!("{width}_writes_alone"), of("writes").write_rate);
        let (a, c, d) = (of("a"), of("c"), of("d"));
        put(format!("{width}_a_reads"), a.read_rate);
        put(format!("{width}_a_writes"), a.write_rate);
        put(format!("{width}_b_mean"), a.read_mean());
        put(format!("{width}_b_max"), a.read_percentile(100.0));
        put(format!("{width}_c_mean"), c.read_mean());
        put(format!("{width}_c_p99"), c.read_percentile(99.0));
        put(format!("{width}_c_p99_over_mean"), c.read_percentile(99.0) - c.read_mean());
        put(format!("{width}_d_mean"), d.read_mean());
        put(format!("{width}_d_p99"), d.read_percentile(99.0));
        put(format!("{width}_d_max"), d.read_percentile(100.0));
        let reads = a.read_rate / alone("a").read_rate;
        put(format!("{width}_reads_share"), reads);
        put(format!("{width}_writes_share"), a.write_rate / of("writes").write_rate);
        put(format!("{width}_mean_ratio"), a.read_mean() / alone("a").read_mean());
        let max = |phase: &Phase| phase.read_percentile(100.0);
        put(format!("{width}_max_ratio"), max(a) / max(alone("a")));
    }
    let steps = |of: &dyn Fn(&Phase) -> f64, mix: &'static str| {
        let pairs = widths.windows(2);
        let steps = pairs.map(|w| of(&mixes[&(mix, w[1])]) / of(&mixes[&(mix, w[0])]));
        steps.collect::<Vec<f64>>()
    };
    let least = |steps: Vec<f64>| steps.into_iter().fold(f64::MAX, f64::min);
    let most = |steps: Vec<f64>| steps.into_iter().fold(f64::MIN, f64::max);
    put("reads_rise".into(), least(steps(&|p| p.read_rate, "a")));
    put("writes_fall".into(), most(steps(&|p| p.write_rate, "a")));
    put("c_p99_falls".into(), most(steps(&|p| p.read_percentile(99.0), "c")));
    put("d_p99_falls".into(), most(steps(&|p| p.read_percentile(99.0), "d")));
    let wider = |width: &&u32| {
        let a = &mixes[&("a", **width)];
        a.write_rate >= a.read_rate
    };
    // The fewest active PUs at which writes still are ahead of reads; 256 is none.
    let crossover = widths.iter().filter(wider).min().copied().unwrap_or(256);
    put("crossover".into(), crossover as f64);
}
