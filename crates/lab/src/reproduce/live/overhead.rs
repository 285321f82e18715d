//! LightNVM, section 5.1: what pblk adds to a request, on a device that takes no time.
//!
//! Owns: the same device with a target and without, one thread. Promises: each time is the thread's CPU
//! time per request, which equals the latency where nobody else wants the CPU; all of them are measured
//! in turns, in pieces of [`Plan::rounds`]. Never: has anything in flight while it measures without a target.

use super::copy::Copy;
use super::{
    FigureFile, Machine, Measured, Null, Plan, Point, Points, ReproduceError, Sign, Spent, Way,
    attended, median, sectors_of,
};
use flashlane_base::{Location, OOB_BYTES, Ppa, Rng, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::log::LogConfig;
use flashlane_ocssd::device::{Cause, Data, Device, Flags, Gather, Op, Request, Scatter};
use flashlane_ocssd::{Ssd, StoreKind};
use flashlane_rt::{Cx, Threads};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

const FIGURE: &str = "lightnvm-overhead";
/// Writes before any are measured: more than a ring has slots.
const RAMP: u64 = 2048;

/// Nanoseconds per request, by (`write` or `read`, what was measured) and round.
type Times = BTreeMap<(&'static str, &'static str), Vec<f64>>;

struct Found {
    times: Times,
    /// Of pblk and of QBLK.
    amplification: [f64; 2],
}

/// Series `device`, `bytes`, `pblk`, `qblk` and `bare` over `op`, `write` and `read`.
pub(in crate::reproduce) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    _: &Machine,
) -> Result<Measured, ReproduceError> {
    let plan = Plan::of(FIGURE, file);
    let operations = file.parameter("operations");
    let monitor = way.watch.part("one thread");
    let found = attended(&*monitor, move |sign| {
        let main = |cx| all(cx, plan.clone(), operations, sign.clone());
        Threads::new(1, 1).run(main).into_iter().next().expect("one core")
    })?;
    let mut points = Points::default();
    for series in ["device", "bytes", "pblk", "qblk", "bare"] {
        for op in ["write", "read"] {
            let times = found.times.get(&(op, series)).into_iter().flatten();
            let us = median(times.map(|ns| ns / 1e3));
            let mut point = Point::new(series, [("op", op.to_string())]);
            point.values.extend(us.map(|us| ("us".to_string(), us)));
            points.add(point);
        }
    }
    let [pblk, qblk] = found.amplification;
    let notes = vec![format!(
        "programmed per written sector: pblk {pblk:.2}, QBLK {qblk:.2}; what they move is in their times"
    )];
    Ok(Measured { points, notes, verdict: None })
}

async fn all(
    cx: Cx,
    plan: Plan,
    operations: u64,
    sign: Arc<Sign>,
) -> Result<Found, ReproduceError> {
    let mut alone = Alone::new(&cx, &plan, &sign).await?;
    let (bytes, none) = (StoreKind::Memory, StoreKind::Stamps);
    let pblk = Null::new(&cx, &plan, (LogConfig::default(), bytes), &sign).await?;
    let qblk = Null::new(&cx, &plan, (LogConfig::qblk(), bytes), &sign).await?;
    // The same work on sectors of eight bytes: what is left when there is next to nothing to move.
    let bare = Null::new(&cx, &plan, (LogConfig::default(), none), &sign).await?;
    let mut copy = Copy::new(alone.ssd.geometry(), 1);
    let set: Vec<u8> = vec![7; plan.set as usize * SECTOR_BYTES];
    let mut buf = vec![1u8; SECTOR_BYTES];
    let (mut rng, mut times) = (Rng::stream(1, FIGURE, 0), Times::new());
    for _ in 0..plan.rounds {
        if sign.stopped() {
            // Half a round would not compare.
            break;
        }
        let mut note = |what, time| times.entry(what).or_default().push(time);
        let units = operations.div_ceil(alone.unit as u64);
        let before = Spent::now();
        for _ in 0..units {
            alone.write(&cx, &buf).await;
        }
        note(("write", "device"), each(before, units * alone.unit as u64));
        let sector = &mut buf[..];
        for (what, dev) in [("pblk", &pblk), ("qblk", &qblk), ("bare", &bare)] {
            let sector = &mut sector[..dev.unit];
            // Until the ring is full.
            requests(&cx, dev, BlockOp::Write, (RAMP, plan.set), &mut rng, sector).await;
            note(
                ("write", what),
                requests(&cx, dev, BlockOp::Write, (operations, plan.set), &mut rng, sector).await,
            );
            dev.settle(&cx).await;
        }
        let before = Spent::now();
        for _ in 0..operations {
            alone.read(&cx, &mut rng, sector).await;
        }
        note(("read", "device"), each(before, operations));
        for (what, dev) in [("pblk", &pblk), ("qblk", &qblk), ("bare", &bare)] {
            let sector = &mut sector[..dev.unit];
            note(
                ("read", what),
                requests(&cx, dev, BlockOp::Read, (operations, plan.set), &mut rng, sector).await,
            );
        }
        let before = Spent::now();
        for _ in 0..operations {
            copy.write(sector);
        }
        note(("write", "bytes"), each(before, operations));
        let before = Spent::now();
        for _ in 0..operations {
            let at = rng.below(plan.set) as usize * SECTOR_BYTES;
            sector.copy_from_slice(&set[at..at + SECTOR_BYTES]);
            black_box(flashlane_base::crc32c(black_box(sector)));
        }
        note(("read", "bytes"), each(before, operations));
        sign.count(8 * operations);
    }
    if sign.stopped() {
        // Fewer rounds than were asked for are no result.
        times.clear();
    }
    pblk.stop(&cx, &plan).await?;
    qblk.stop(&cx, &plan).await?;
    bare.stop(&cx, &plan).await?;
    if alone.ssd.counters().violations > 0 {
        return Err(plan.bad("the device alone saw a rule of the medium broken"));
    }
    Ok(Found { times, amplification: [pblk.amplification(), qblk.amplification()] })
}

/// Nanoseconds of CPU since then, for each of so many.
fn each(before: Spent, requests: u64) -> f64 {
    Spent::since(before).cpu as f64 / requests as f64
}

/// One request after the other at random sectors.
async fn requests(
    cx: &Cx,
    dev: &Null,
    op: BlockOp,
    (operations, set): (u64, u64),
    rng: &mut Rng,
    sector: &mut [u8],
) -> f64 {
    let before = Spent::now();
    for _ in 0..operations {
        dev.request(cx, op, rng.below(set), sector).await;
    }
    each(before, operations)
}

/// The device without a target: written in order over all PUs, erased when it comes round, read anywhere
/// in what is as large as the others' working set.
struct Alone {
    ssd: Arc<Ssd>,
    /// Sectors of a unit, the least that can be written.
    unit: usize,
    /// Units so far.
    next: u32,
    /// Chunks of a PU that are read.
    read_chunks: u32,
}

impl Alone {
    /// With all of it written once.
    async fn new(cx: &Cx, plan: &Plan, sign: &Sign) -> Result<Alone, ReproduceError> {
        let ssd = plan.null_device(StoreKind::Memory)?;
        let geo = *ssd.geometry();
        let per_chunk = u64::from(geo.pus()) * u64::from(geo.sectors_per_chunk());
        let read_chunks = plan.set.div_ceil(per_chunk).min(u64::from(geo.chunks_per_pu) / 2);
        let unit = geo.ws_min as usize;
        let mut alone = Alone { ssd, unit, next: 0, read_chunks: read_chunks as u32 };
        let content = vec![5u8; SECTOR_BYTES];
        for _ in 0..sectors_of(&geo) / unit as u64 {
            if sign.stopped() {
                break;
            }
            alone.write(cx, &content).await;
        }
        Ok(alone)
    }

    /// A unit whose sectors are all `content`, as a vector.
    async fn write(&mut self, cx: &Cx, content: &[u8]) {
        let geo = *self.ssd.geometry();
        let units = geo.sectors_per_chunk() / self.unit as u32;
        let (pu, row) = (self.next % geo.pus(), self.next / geo.pus());
        let (chunk, sector) = (row / units % geo.chunks_per_pu, row % units * self.unit as u32);
        if sector == 0 && row / units >= geo.chunks_per_pu {
            let addrs = [self.ssd.format().pack(Location { pu, chunk, sector })];
            self.command(cx, Op::Reset, &addrs, Data::None).await;
        }
        let first = Location { pu, chunk, sector };
        let place = |i: u32| self.ssd.format().pack(Location { sector: sector + i, ..first });
        let addrs: Vec<Ppa> = (0..self.unit as u32).map(place).collect();
        let (index, oob) = ([0u32; 64], [[0u8; OOB_BYTES]; 64]);
        let content = Gather::new(content, &index[..self.unit], SECTOR_BYTES);
        let (oob, cause) = (&oob[..self.unit], &[Cause::User; 64][..self.unit]);
        self.command(cx, Op::Write, &addrs, Data::Write { content, oob, cause }).await;
        self.next += 1;
    }

    /// A sector of a chunk that is written to its end.
    async fn read(&self, cx: &Cx, rng: &mut Rng, sector: &mut [u8]) {
        let geo = *self.ssd.geometry();
        let written = self.next / geo.pus() / (geo.sectors_per_chunk() / self.unit as u32);
        // Some way behind those that are written now, and not the next to be erased.
        let back = 2 + rng.below(u64::from(self.read_chunks)) as u32;
        let chunk = (written + geo.chunks_per_pu - back) % geo.chunks_per_pu;
        let pu = rng.below(u64::from(geo.pus())) as u32;
        let at = rng.below(u64::from(geo.sectors_per_chunk())) as u32;
        let addrs = [self.ssd.format().pack(Location { pu, chunk, sector: at })];
        let mut oob = [[0u8; OOB_BYTES]];
        let content = Scatter::new(sector, &[0], SECTOR_BYTES);
        self.command(cx, Op::Read, &addrs, Data::Read { content, oob: &mut oob }).await;
    }

    async fn command(&self, cx: &Cx, op: Op, addrs: &[Ppa], data: Data<'_>) {
        let flags = Flags::DEFAULT;
        let device: &dyn Device = &*self.ssd;
        let done = device.io(cx, Request { op, flags, addrs, data, whole_sectors: false }).await;
        assert_eq!(done.failed, 0, "the null device fails nothing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::Machine;
    use crate::reproduce::Known;
    use crate::reproduce::live::tests::{Impatient, tiny};
    use crate::run::Unwatched;

    const TEXT: &str = include_str!("../../../../../experiments/lightnvm/overhead.toml");

    /// Times are the machine's; that each row has one is ours.
    #[test]
    fn every_row_has_a_value() {
        let file = tiny(FIGURE, TEXT, &[("rounds", 1), ("operations", 64)]);
        let way = Way { jobs: 1, watch: &Unwatched, known: &Known::default() };
        let found = measure(&file, &way, &Machine::default()).expect("measured");
        let rows = file.rows_of(&found.points).expect("good rows");
        assert!(rows.iter().all(|r| r.here.is_some_and(f64::is_finite)), "{rows:?}");
        assert!(found.notes[0].contains("QBLK"));
    }

    /// Ctrl-C: nothing is measured any more, and what was not has no value.
    #[test]
    fn an_interrupt_ends_it_early() {
        let file = tiny(FIGURE, TEXT, &[("rounds", u32::MAX as u64)]);
        let watch = Impatient::default();
        let way = Way { jobs: 1, watch: &watch, known: &Known::default() };
        let found = measure(&file, &way, &Machine::default()).expect("ended");
        assert!(found.points.0.iter().all(|point| point.values.is_empty()));
    }
}
