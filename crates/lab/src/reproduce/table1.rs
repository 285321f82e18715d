//! LightNVM, Table 1: what one PU and the device can do.
//!
//! Owns: how each raw row is measured; those of pblk are a grid of its file. Promises: rows go through vector
//! commands on named PUs. Never: tunes anything.

use super::points::{Point, Points};
use super::{FigureFile, Measured, ReproduceError, SEED, Way};
use crate::calibrate::Machine;
use crate::experiment::DeviceChoice;
use crate::raw::{Order, Raw, RawStream};
use flashlane_base::Ns;
use flashlane_ocssd::Ssd;
use flashlane_rt::{CostTable, Virtual};

const FIGURE: &str = "lightnvm-table1";
/// 64 KiB, the paper's larger request: a page on each plane.
const LARGE: u32 = 16;

/// A series of one point for each row.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    _: &Machine,
) -> Result<Measured, ReproduceError> {
    let device = file.device("westlake");
    let deep = file.parameter("depth_64k") as u32;
    let commands = file.parameter("commands");
    let one = |write, order, sectors, depth| RawStream {
        write,
        order,
        pus: vec![0],
        sectors,
        depth,
        first_chunk: 0,
        chunks: 1,
    };
    let (seq, random) = (Order::Sequential, Order::Random);
    let parts = [
        ("pu_write", one(true, seq, LARGE, 1)),
        ("pu_seq_read_4k", one(false, seq, 1, 1)),
        ("pu_seq_read_64k", one(false, seq, LARGE, deep)),
        ("pu_random_read_4k", one(false, random, 1, 1)),
        ("pu_random_read_64k", one(false, random, LARGE, deep)),
        ("device_write", over_all(device, one(true, seq, LARGE, 1))),
        ("device_read", over_all(device, one(false, seq, LARGE, deep))),
    ];
    let rates = way.each(&parts, |(id, stream)| {
        let monitor = way.watch.part(id);
        monitor.progress(id, 0, None);
        if monitor.interrupted() {
            return Ok(None);
        }
        raw_rate(device, stream.clone(), commands).map(Some)
    })?;
    let mut points = Points::default();
    for ((id, _), rate) in parts.iter().zip(rates) {
        let mut point = Point::new(id, []);
        point.values.extend(rate.map(|rate| ("mb_per_s".to_string(), rate)));
        points.add(point);
    }
    Ok(Measured::of(points))
}

/// The same on every PU at once.
fn over_all(device: &DeviceChoice, mut stream: RawStream) -> RawStream {
    stream.pus = (0..device.spec.geometry().pus()).collect();
    stream
}

fn raw_rate(
    device: &DeviceChoice,
    stream: RawStream,
    commands: u64,
) -> Result<f64, ReproduceError> {
    let ssd = Ssd::new(&device.spec, device.options.clone())?;
    let vm = Virtual::new(1, SEED, CostTable::zero());
    let (cx, target) = (vm.cx(), ssd.clone());
    // No more than the chunks hold: a second pass would be an erase beside what is measured.
    let fits = stream.chunks as u64 * device.spec.geometry().sectors_per_chunk() as u64
        / stream.sectors as u64;
    let commands = commands.min(fits);
    let result = vm.run(async move {
        let raw = Raw::new(target, stream.clone(), SEED);
        if !stream.write {
            raw.fill(&cx).await;
            // Programs that are still running would be waited for by the first reads.
            cx.sleep(Ns::from_ms(100)).await;
            raw.forget();
        }
        raw.run(&cx, commands).await;
        raw.result()
    })?;
    let violations = ssd.counters().violations;
    if result.failed + result.wrong + violations > 0 {
        let what = format!("{} commands failed, {violations} violations", result.failed);
        return Err(ReproduceError::Bad { figure: FIGURE.into(), what });
    }
    Ok(result.mb_per_s())
}
