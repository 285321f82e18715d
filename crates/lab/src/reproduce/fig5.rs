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
use super::points::{Point, Points};
use super::{FigureFile, Measured, ReproduceError, Way};
use crate::calibrate::Machine;
use crate::experiment::DeviceChoice;
use crate::run::Monitor;
use crate::workload::{Job, Pace};
use flashlane_base::Ns;
use flashlane_ocssd::spec::DieQueue;
use flashlane_rt::{CostTable, Virtual};
use std::rc::Rc;

const FIGURE: &str = "lightnvm-fig5";
/// 256 KiB.
const LARGE: u32 = 64;
/// Active PUs of the figure.
const WIDTHS: [u32; 6] = [128, 64, 32, 16, 8, 4];
const QUEUES: [(&str, DieQueue); 3] =
    [("fifo", DieQueue::Fifo), ("read_first", DieQueue::ReadFirst), ("suspend", DieQueue::Suspend)];

/// Reads alone and beside writes to so many PUs.
type Mixes = Vec<(&'static str, Option<u32>, Phase)>;

/// Series `writes`, `a`, `c` and `d` over `queue` and `pus`; `reads_alone`, `4k_alone` and `d_alone` over `queue`. On
/// channels too fast to be in anybody's way the same with `fast_` before it, for the fewest PUs.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    _: &Machine,
) -> Result<Measured, ReproduceError> {
    let widths = file.values("pus", &WIDTHS);
    let few: Vec<u32> = widths.last().copied().into_iter().collect();
    let plan = |widths| Plan {
        data: file.parameter("data_mib") << 20,
        span: Ns::from_ms(file.parameter("milliseconds")),
        pace: file.parameter("paced_mb_per_s") * 1_000_000,
        widths,
    };
    let devices = [("", "westlake", &widths), ("fast_", "fast_channels", &few)];
    let all = devices.iter().flat_map(|(prefix, device, widths)| {
        QUEUES.map(|(name, queue)| (*prefix, *device, name, queue, *widths))
    });
    let all: Vec<_> = all.collect();
    let mixes = way.each(&all, |(prefix, device, name, queue, widths)| {
        let mut device = file.device(device).clone();
        device.options.queue = Some(*queue);
        let monitor = way.watch.part(&format!("{prefix}{name}"));
        under(plan(widths), device, file.costs.clone(), monitor)
    })?;
    let mut points = Points::default();
    for ((prefix, _, queue, _, widths), mixes) in all.iter().zip(mixes) {
        for (mix, pus) in Plan::mixes(widths) {
            let at = [("queue".to_string(), queue.to_string())].into_iter();
            let pus_of = pus.map(|pus| ("pus".to_string(), pus.to_string()));
            let found = mixes.iter().flatten().find(|(m, p, _)| (*m, *p) == (mix, pus));
            points.add(Point {
                series: format!("{prefix}{mix}"),
                at: at.chain(pus_of).collect(),
                values: found.map(|(.., phase)| phase.values()).unwrap_or_default(),
            });
        }
    }
    Ok(Measured::of(points))
}

/// Sizes of the experiment.
#[derive(Clone, Copy)]
struct Plan<'a> {
    /// Bytes that are read from.
    data: u64,
    span: Ns,
    /// Bytes per second that part (d) writes.
    pace: u64,
    /// Active PUs, most first.
    widths: &'a [u32],
}

impl Plan<'_> {
    /// What is measured, in order: a name, and PUs that take new data.
    fn mixes(widths: &[u32]) -> impl Iterator<Item = (&'static str, Option<u32>)> {
        let alone = ["reads_alone", "4k_alone", "d_alone"].map(|mix| (mix, None)).into_iter();
        let beside = |pus: &u32| ["writes", "a", "c", "d"].map(|mix| (mix, Some(*pus)));
        alone.chain(widths.iter().flat_map(beside).collect::<Vec<_>>())
    }
}

/// All mixes under one die queue; `None` when interrupted.
fn under(
    plan: Plan<'_>,
    device: DeviceChoice,
    costs: CostTable,
    monitor: Rc<dyn Monitor>,
) -> Result<Option<Mixes>, ReproduceError> {
    let vm = Virtual::new(1, 1, costs);
    let cx = vm.cx();
    let Plan { data, span, pace, widths } = plan;
    let widths = widths.to_vec();
    vm.run(async move {
        let bench = Bench::new(&cx, FIGURE, &device, data, monitor).await?;
        let large = |depth| bench.reads(true, LARGE, depth);
        let small = || bench.reads(true, 1, 1);
        let fast = || bench.writes(LARGE, 1);
        let mut mixes = Mixes::new();
        let mut active = None;
        for (mix, pus) in Plan::mixes(&widths) {
            if let Some(pus) = pus.filter(|_| pus != active) {
                bench.set_active_pus(pus).await?;
                active = Some(pus);
            }
            let jobs = match mix {
                "reads_alone" => vec![large(16)],
                "4k_alone" => vec![small()],
                "d_alone" => vec![large(1)],
                "writes" => vec![fast()],
                "a" => vec![fast(), large(16)],
                "c" => vec![fast(), small()],
                _ => {
                    let mut paced: Job = fast();
                    paced.rate[1] = Pace::BytesPerSecond(pace);
                    vec![paced, large(1)]
                }
            };
            let ramp = pus.map_or(Ns::from_ms(20), |pus| settling(&device, pus));
            let Some(phase) = bench.measure(jobs, ramp, span).await? else { return Ok(None) };
            mixes.push((mix, pus, phase));
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
