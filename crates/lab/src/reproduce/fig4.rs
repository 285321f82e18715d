//! LightNVM, Figure 4: reads through pblk, by block size and queue depth.
//!
//! Owns: the grid. Promises: one data set, written once over all PUs; each point is measured by
//! itself; an interrupt leaves the points behind it without a value. Never: writes while it reads.

use super::bench::Bench;
use super::points::{Point, Points};
use super::{FigureFile, Measured, ReproduceError, Way};
use crate::calibrate::Machine;
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_rt::Virtual;
use std::rc::Rc;

const FIGURE: &str = "lightnvm-fig4";
/// Block sizes of the figure, KiB, and its queue depths.
const BLOCKS: [u32; 7] = [4, 8, 16, 32, 64, 128, 256];
const DEPTHS: [u32; 5] = [1, 2, 4, 8, 16];

/// Some requests pass before the queue of every die looks as it will.
const RAMP: Ns = Ns::from_ms(20);

/// Series `sequential` and `random` over `kib` and `depth`.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    _: &Machine,
) -> Result<Measured, ReproduceError> {
    let data = file.parameter("data_mib") << 20;
    let span = Ns::from_ms(file.parameter("milliseconds"));
    let vm = Virtual::new(1, 1, file.costs.clone());
    let (cx, device, monitor) = (vm.cx(), file.device("westlake").clone(), way.watch.part("pblk"));
    let (blocks, depths) = (file.values("kib", &BLOCKS), file.values("depth", &DEPTHS));
    let bench = vm.run(async move { Bench::new(&cx, FIGURE, &device, data, monitor).await })??;
    let bench = Rc::new(bench);
    let places = || blocks.iter().flat_map(|kib| depths.iter().map(move |depth| (*kib, *depth)));
    let all: Vec<_> = [("sequential", false), ("random", true)]
        .into_iter()
        .flat_map(|series| places().map(move |place| (series, place)))
        .collect();
    let mut points = Points::default();
    let mut interrupted = false;
    for (i, ((series, random), (kib, depth))) in all.iter().copied().enumerate() {
        way.watch.done(i, all.len());
        let mut point =
            Point::new(series, [("kib", kib.to_string()), ("depth", depth.to_string())]);
        if !interrupted {
            let reads = bench.reads(random, (kib << 10) / SECTOR_BYTES as u32, depth);
            let bench = bench.clone();
            let phase = vm.run(async move { bench.measure(vec![reads], RAMP, span).await })??;
            interrupted = phase.is_none();
            point.values = phase.map(|phase| phase.values()).unwrap_or_default();
        }
        points.add(point);
    }
    Ok(Measured::of(points))
}
