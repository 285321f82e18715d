//! LightNVM, Figure 8: reads beside writes, isolated on PUs and mixed in a block SSD.
//!
//! Owns: the two streams and their ratio. Promises: one 4 KiB random read and one 64 KiB write in
//! flight, as in the paper; `writes` of every hundred requests are writes, whoever is ahead waits.
//! Never: lets a stream of the isolated case touch the other's PU.

use super::points::{Point, Points};
use super::{FigureFile, Measured, ReproduceError, Way};
use crate::calibrate::Machine;
use crate::experiment::{DeviceChoice, Target};
use crate::histogram::Latencies;
use crate::raw::{Order, Ratio, Raw, RawStream};
use crate::run::{Host, Monitor, Scratch};
use crate::stack::Stack;
use flashlane_base::{Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::pftl::PftlConfig;
use flashlane_ocssd::Ssd;
use flashlane_rt::{CostTable, Cx, Virtual};
use std::rc::Rc;

const FIGURE: &str = "lightnvm-fig8";
const SEED: u64 = 1;
/// 64 KiB.
const WRITE: u32 = ((64 << 10) / SECTOR_BYTES) as u32;
/// Shares of writes in the figure, percent.
const SHARES: [u64; 4] = [0, 20, 33, 50];
/// Where writes go: to another channel than reads, to another PU of their channel, to the same block SSD.
const CHANNELS: &str = "channels";
const PUS: &str = "pus";
const BLOCK: &str = "block";

/// Series `channels`, `pus` and `block` over `writes_percent`.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    _: &Machine,
) -> Result<Measured, ReproduceError> {
    let span = Ns::from_ms(file.parameter("milliseconds"));
    let westlake = file.device("westlake");
    let per_channel = westlake.spec.geometry().pus_per_channel;
    // PU 0 is the reader's; PU 1 is its neighbour, the first of the next channel is not.
    let places = [(CHANNELS, per_channel), (PUS, 1), (BLOCK, 0)];
    let all = SHARES.iter().flat_map(|share| places.map(|(place, writer)| (place, writer, *share)));
    let all: Vec<_> = all.collect();
    let reads = way.each(&all, |&(place, writer, share)| {
        let monitor = way.watch.part(&format!("{place}, {share}% writes"));
        monitor.progress(place, 0, None);
        match place {
            _ if monitor.interrupted() => Ok(None),
            BLOCK => mixed(file, share, span, monitor).map(Some),
            _ => isolated(westlake, writer, share, span).map(Some),
        }
    })?;
    let mut points = Points::default();
    for ((place, _, share), reads) in all.into_iter().zip(reads) {
        let mut point = Point::new(place, [("writes_percent", share.to_string())]);
        let percents = [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("p99_9", 99.9)];
        for (name, percent) in percents.iter().filter(|_| reads.is_some()) {
            let us = reads.as_ref().map_or(0, |reads| reads.percentile_ns(*percent)) as f64 / 1e3;
            point.values.insert(format!("read_{name}_us"), us);
        }
        points.add(point);
    }
    Ok(Measured::of(points))
}

fn bad(what: String) -> ReproduceError {
    ReproduceError::Bad { figure: FIGURE.into(), what }
}

/// Reads on PU 0, writes on PU `writer`, both as vector commands.
fn isolated(
    device: &DeviceChoice,
    writer: u32,
    share: u64,
    span: Ns,
) -> Result<Latencies, ReproduceError> {
    let ssd = Ssd::new(&device.spec, device.options.clone())?;
    let vm = Virtual::new(1, SEED, CostTable::zero());
    let (cx, target) = (vm.cx(), ssd.clone());
    let stream = |write: bool, pu: u32| RawStream {
        write,
        order: if write { Order::Sequential } else { Order::Random },
        pus: vec![pu],
        sectors: if write { WRITE } else { 1 },
        depth: 1,
        first_chunk: 0,
        chunks: 4,
    };
    let (reads, failed) = vm.run(async move {
        let reader = Raw::new(target.clone(), stream(false, 0), SEED);
        reader.fill(&cx).await;
        cx.sleep(Ns::from_ms(100)).await;
        reader.forget();
        let writer = Raw::new(target, stream(true, writer), SEED);
        let (ratio, end) = (Ratio::new(share), cx.now() + span);
        let side = |raw: &Rc<Raw>, write: bool| {
            let (cx, raw, ratio) = (cx.clone(), raw.clone(), ratio.clone());
            cx.clone().spawn_join(async move {
                // Without writes the writer has nothing to do.
                while cx.now() < end && (share > 0 || !write) {
                    ratio.turn(&cx, write).await;
                    ratio.begin(&cx, write);
                    raw.one(&cx, 0).await;
                }
                ratio.end(&cx);
            })
        };
        let writing = side(&writer, true);
        side(&reader, false).await;
        writing.await;
        let all = [reader.result(), writer.result()];
        let failed: u64 = all.iter().map(|r| r.failed + r.wrong).sum();
        (reader.result().latency, failed)
    })?;
    let violations = ssd.counters().violations;
    if failed + violations > 0 {
        return Err(bad(format!("{failed} commands failed, {violations} violations")));
    }
    Ok(reads)
}

/// Both streams on a block SSD, filled before.
fn mixed(
    file: &FigureFile,
    share: u64,
    span: Ns,
    monitor: Rc<dyn Monitor>,
) -> Result<Latencies, ReproduceError> {
    let device = file.device("p3700").clone();
    let fill = file.parameter("block_fill_percent");
    let target = Target::of("block SSD", PftlConfig::default(), device);
    let vm = Virtual::new(1, SEED, CostTable::zero());
    let cx = vm.cx();
    let (reads, wrong, stack) = vm.run(async move {
        let stack = Stack::build(&cx, &target, SEED).await?;
        let host = Rc::new(Host::new(&cx, stack.subject(Rc::new(|| ()), false), monitor));
        let region = host.capacity * fill / 100 / WRITE as u64 * WRITE as u64;
        fill_up(&cx, &host, region).await;
        cx.sleep(Ns::from_ms(100)).await;
        host.measure(&cx);
        let (ratio, end) = (Ratio::new(share), cx.now() + span);
        let side = |write: bool| {
            let (cx, host, ratio) = (cx.clone(), host.clone(), ratio.clone());
            let mut rng = Rng::stream(SEED, "fig8", write as u64);
            cx.clone().spawn_join(async move {
                let mut scratch = Scratch::default();
                let n = if write { WRITE } else { 1 };
                let op = if write { BlockOp::Write } else { BlockOp::Read };
                while cx.now() < end && (share > 0 || !write) {
                    ratio.turn(&cx, write).await;
                    ratio.begin(&cx, write);
                    let lba = rng.below(region / n as u64) * n as u64;
                    host.operation(&cx, op, lba, n, false, &mut scratch).await;
                }
                ratio.end(&cx);
            })
        };
        let writing = side(true);
        side(false).await;
        writing.await;
        let recorder = host.recorder.borrow();
        let wrong = recorder.wrong_sectors + recorder.uncorrectable;
        Ok::<_, ReproduceError>((recorder.latencies(BlockOp::Read), wrong, stack.clone()))
    })??;
    let violations = stack.ssd().counters().violations;
    if wrong + violations > 0 {
        return Err(bad(format!("block SSD: {wrong} wrong sectors, {violations} violations")));
    }
    Ok(reads)
}

/// Writes a region once, in order, many requests at once.
async fn fill_up(cx: &Cx, host: &Rc<Host>, region: u64) {
    const DEPTH: u64 = 32;
    let tasks: Vec<_> = (0..DEPTH)
        .map(|slot| {
            let (cx, host) = (cx.clone(), host.clone());
            cx.clone().spawn_join(async move {
                let mut scratch = Scratch::default();
                let step = WRITE as usize * DEPTH as usize;
                for lba in (slot * WRITE as u64..region).step_by(step) {
                    host.operation(&cx, BlockOp::Write, lba, WRITE, false, &mut scratch).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}
