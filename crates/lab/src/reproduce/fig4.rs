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
    let (cx, device, monitor) = (vm.cx(), file.device("westlake").clone(), (way.watch)("pblk"));
    let (blocks, depths) = (file.values("kib", &BLOCKS), file.values("depth", &DEPTHS));
    vm.run(async move {
        let bench = Bench::new(&cx, FIGURE, &device, data, monitor).await?;
        let mut points = Points::default();
        let mut interrupted = false;
        for (series, random) in [("sequential", false), ("random", true)] {
            for (kib, depth) in blocks.iter().flat_map(|kib| depths.iter().map(move |d| (kib, d))) {
                let mut point =
                    Point::new(series, [("kib", kib.to_string()), ("depth", depth.to_string())]);
                let reads = bench.reads(random, (kib << 10) / SECTOR_BYTES as u32, *depth);
                if !interrupted {
                    let phase = bench.measure(vec![reads], RAMP, span).await?;
                    interrupted = phase.is_none();
                    point.values = phase.map(|phase| phase.values()).unwrap_or_default();
                }
                points.add(point);
            }
        }
        Ok(Measured::of(points))
    })?
}
