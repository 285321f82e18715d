//! LightNVM, Figure 4: reads through pblk, by block size and queue depth.
//!
//! Owns: the grid. Promises: one data set, written once over all PUs; each point is measured by
//! itself; an interrupt leaves the points behind it without a value. Never: writes while it reads.

use super::bench::{Bench, Phase};
use super::{FigureFile, ReproduceError, Row, Size, Way};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_rt::Virtual;
use std::collections::BTreeMap;

const FIGURE: &str = "lightnvm-fig4";
/// Block sizes of the figure, KiB, and its queue depths.
const BLOCKS: [u32; 7] = [4, 8, 16, 32, 64, 128, 256];
const DEPTHS: [u32; 5] = [1, 2, 4, 8, 16];

/// Neighbours of this many KiB lie on one PU (a page on each plane); smaller requests in order wait
/// for each other there.
const STRIPE: u32 = 64;
/// Some requests pass before the queue of every die looks as it will.
const RAMP: Ns = Ns::from_ms(20);

/// Points by (random, KiB, depth).
type Grid = BTreeMap<(bool, u32, u32), Phase>;

pub(super) fn measure(file: &FigureFile, way: &Way<'_>) -> Result<Vec<Row>, ReproduceError> {
    let data = match way.size {
        Size::Small => file.parameter("data_gib"),
        Size::Full => file.parameter("data_gib_full"),
    };
    let span = Ns::from_ms(file.parameter("milliseconds"));
    let vm = Virtual::new(1, 1, file.costs.clone());
    let (cx, device, monitor) = (vm.cx(), file.device("westlake").clone(), (way.watch)("pblk"));
    let grid = vm.run(async move {
        let bench = Bench::new(&cx, FIGURE, &device, data << 30, monitor).await?;
        let mut grid = Grid::new();
        for (random, kib, depth) in points() {
            let sectors = (kib << 10) / SECTOR_BYTES as u32;
            let reads = bench.reads(random, sectors, depth);
            let Some(phase) = bench.measure(vec![reads], RAMP, span).await? else { break };
            grid.insert((random, kib, depth), phase);
        }
        Ok::<_, ReproduceError>(grid)
    })??;
    Ok(file.fill(|id| value(&grid, id)))
}

fn points() -> impl Iterator<Item = (bool, u32, u32)> {
    let sizes = |random| BLOCKS.into_iter().map(move |kib| (random, kib));
    let all = sizes(false).chain(sizes(true));
    all.flat_map(|(random, kib)| DEPTHS.into_iter().map(move |depth| (random, kib, depth)))
}

/// The value of a row: `seq_256_16_rate` and the like, or the least step of a curve.
fn value(grid: &Grid, id: &str) -> Option<f64> {
    let all_there = grid.len() == points().count();
    match id {
        "rate_by_depth" => all_there.then(|| least_step(grid, true, |p| p.read_rate)),
        "rate_by_block" => all_there.then(|| least_step(grid, false, |p| p.read_rate)),
        "mean_by_depth" => all_there.then(|| least_step(grid, true, Phase::read_mean)),
        "sequential_over_random" => all_there.then(|| {
            let whole = |(random, kib, _): &(bool, u32, u32)| !random && *kib >= STRIPE;
            let pairs = grid.iter().filter(|(at, _)| whole(at));
            let ratio = |((_, kib, depth), sequential): (&(bool, u32, u32), &Phase)| {
                sequential.read_rate / grid[&(true, *kib, *depth)].read_rate
            };
            pairs.map(ratio).fold(f64::MAX, f64::min)
        }),
        _ => {
            let mut parts = id.split('_');
            let random = parts.next()? == "random";
            let (kib, depth) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let phase = grid.get(&(random, kib, depth))?;
            Some(match parts.next()? {
                "rate" => phase.read_rate,
                "mean" => phase.read_mean(),
                "p99" => phase.read_percentile(99.0),
                _ => return None,
            })
        }
    }
}

/// The smallest ratio of one point to the one before it, over all curves: below 1 a curve falls.
fn least_step(grid: &Grid, by_depth: bool, of: impl Fn(&Phase) -> f64) -> f64 {
    let before = |list: &[u32], at: u32| {
        let i = list.iter().position(|x| *x == at)?;
        Some(list[i.checked_sub(1)?])
    };
    let mut least = f64::MAX;
    for ((random, kib, depth), phase) in grid {
        let last = match by_depth {
            true => before(&DEPTHS, *depth).map(|depth| (*random, *kib, depth)),
            false => before(&BLOCKS, *kib).map(|kib| (*random, kib, *depth)),
        };
        if let Some(last) = last {
            least = least.min(of(phase) / of(&grid[&last]));
        }
    }
    least
}
