//! What the stages take on one thread.
//!
//! Owns: a pblk on a device that takes no time, the same device without pblk, and small loops over
//! the primitives that a stage is made of. Promises: what is measured is the code that runs live, with
//! its locks. Never: measures with others on the same executor.
//!
//! A round writes a unit per PU; that stays in the buffer: nothing else runs while the writer does
//! not wait. Then it lets the drain thread run once, which submits them all, and then the completions.
//! The three times are taken apart, and the device's share is subtracted, which the same commands tell
//! when nobody else is there. All with a store that keeps 8 bytes of a sector, so that copies are not
//! in the way; what a copy takes is what the same write takes more with a store that keeps all. The
//! same with requests of several units tells what a request takes beside its units.

use super::{Stage, median};
use flashlane_base::{Lba, Location, Ns, OOB_BYTES, Ppa, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Started};
use flashlane_ftl::log::{Drain, LogConfig, Pblk};
use flashlane_ocssd::device::{Cause, Data, Device, Flags, Gather, Op, Request, Scatter};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_rt::{Credits, Cx, Lock, Threads};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Working set, 64 MiB: more than a core's caches.
const SET_SECTORS: u64 = (64 << 20) / SECTOR_BYTES as u64;
/// Times that the working set is written before anything is measured: the whole device, so that
/// its memory and that of pblk has been touched, and chunks come round again.
const WARM: u64 = 8;
/// Units of a large request. With units of 16 sectors a vector holds no more.
const LARGE: usize = 4;
/// Times that a small loop goes round.
const LOOPS: u64 = 2_000;

/// A block device that has done everything already: what is left is the generator.
struct Nothing(BlockInfo);

impl BlockDev for Nothing {
    fn info(&self) -> &BlockInfo {
        &self.0
    }
    fn start<'a>(&'a self, _: &'a Cx, io: Io<'a>) -> Started<'a> {
        black_box(io.payload);
        Started::Done(Ok(()))
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        Extent::of(&self.0, lba, most, |_| true)
    }
}

/// Nanoseconds per turn of each loop, by round.
#[derive(Default)]
struct Loops {
    section: Vec<f64>,
    exchange: Vec<f64>,
    lookup: Vec<f64>,
    entries: Vec<f64>,
    pool: Vec<f64>,
}

/// Nanoseconds of the device alone, by round: a request submitted, finished, a sector read.
#[derive(Default)]
struct Alone {
    submit: Vec<f64>,
    finish: Vec<f64>,
    read: Vec<f64>,
}

/// Nanoseconds of pblk, by round.
#[derive(Default)]
struct Live {
    /// A request that nobody serves.
    generator: Vec<f64>,
    write: Vec<f64>,
    write_unit: Vec<f64>,
    /// The drain thread, per unit.
    drain: Vec<f64>,
    /// Completions, per unit.
    complete: Vec<f64>,
    read: Vec<f64>,
}

impl Live {
    /// What a sector more in a write takes.
    fn more(&self, unit: usize) -> f64 {
        (median(self.write_unit.clone()) - median(self.write.clone())) / (unit as f64 - 1.0)
    }
}

/// Every stage, in any order.
pub(super) fn measure(rounds: usize) -> Vec<Stage> {
    let all = Threads::new(1, 1).run(move |cx| async move {
        let loops = loops(&cx, rounds);
        let (unit, alone) = device(&cx, rounds, 1).await;
        let (_, alone_large) = device(&cx, rounds, LARGE).await;
        let live = pblk(&cx, StoreKind::Stamps, rounds, unit, Drain::Minimum).await;
        let large = pblk(&cx, StoreKind::Stamps, rounds, unit, Drain::Large).await;
        let whole = pblk(&cx, StoreKind::Memory, rounds, unit, Drain::Minimum).await;
        stages(loops, [alone, alone_large], [live, large], whole.more(unit), unit)
    });
    all.into_iter().next().unwrap_or_default()
}

/// `small` is the time of a request of one unit, `large` of one of [`LARGE`], each per unit: the shares
/// of a request and of a unit.
fn shares(small: f64, large: f64) -> (f64, f64) {
    let many = LARGE as f64;
    let request = ((small - large) * many / (many - 1.0)).max(0.0);
    (request, small - request)
}

fn stages(
    loops: Loops,
    [alone, alone_large]: [Alone; 2],
    [live, large]: [Live; 2],
    more_whole: f64,
    unit: usize,
) -> Vec<Stage> {
    let (section, lookup) = (median(loops.section), median(loops.lookup));
    let (pool, update) = (median(loops.pool), live.more(unit));
    let generator = median(live.generator);
    let many = LARGE as f64;
    let (drain_request, drain_unit) = shares(
        median(live.drain) - median(alone.submit) - pool,
        median(large.drain) - (median(alone_large.submit) + pool) / many,
    );
    let published = unit as f64 * update;
    let (complete_request, complete_unit) = shares(
        median(live.complete) - median(alone.finish) - published,
        median(large.complete) - median(alone_large.finish) / many - published,
    );
    let stage = |name, ns: f64, how| Stage { name, ns: ns.max(0.0), how };
    vec![
        stage("host.submit", generator, "our generator on a device that does nothing"),
        stage(
            "front.write",
            median(live.write) - generator - section - update,
            "a write of one sector, less generator, ring.reserve and map.update",
        ),
        stage(
            "front.read",
            median(live.read) - generator - median(alone.read) - lookup,
            "a read of one sector, less generator, the device's own and map.lookup",
        ),
        stage(
            "ring.reserve",
            section,
            "credits and a free slot, taken and given back, under a lock",
        ),
        stage("ring.own", section, "the same: nobody else wants the lock in either"),
        stage("copy.sector", more_whole - update, "what map.update takes more with all 4 KiB kept"),
        stage("map.update", update, "a sector more in a write, with 8 bytes of it kept"),
        stage("map.exchange", median(loops.exchange), "an atomic swap at a random place of a map"),
        stage("map.lookup", lookup, "a load at a random place of a map, under a lock"),
        stage("map.copy", median(loops.entries), "map entries copied in order"),
        stage("pool.take", pool, "a place taken from a list of lines, under a lock"),
        stage(
            "drain.unit",
            drain_unit,
            "the drain thread's time per unit, less the device's submission, pool.take and drain.request",
        ),
        stage(
            "complete.unit",
            complete_unit,
            "a completion, less the device's own, map.update of its sectors and complete.request",
        ),
        stage(
            "drain.request",
            drain_request,
            "what the drain thread's time per unit is less in requests of four units, times 4/3",
        ),
        stage("complete.request", complete_request, "the same of completions"),
    ]
}

/// Nanoseconds per turn of a loop.
fn per(cx: &Cx, times: u64, mut turn: impl FnMut()) -> f64 {
    let from = cx.now();
    for _ in 0..times {
        turn();
    }
    since(cx, from, times)
}

fn since(cx: &Cx, from: Ns, times: u64) -> f64 {
    (cx.now() - from).as_ns() as f64 / times as f64
}

fn loops(cx: &Cx, rounds: usize) -> Loops {
    let mut t = Loops::default();
    let mut rng = Rng::stream(1, "calibrate.loops", 0);
    let map: Vec<AtomicU64> = (0..1u64 << 20).map(AtomicU64::new).collect();
    let (free, credits) = (Lock::new((0..8192u32).collect::<Vec<_>>()), Credits::new(8192));
    let (locked, lines) = (Lock::new(()), Lock::new(vec![0u64; 128]));
    let mut words = vec![0u64; 1 << 14];
    for _ in 0..rounds {
        t.section.push(per(cx, LOOPS, || {
            assert!(credits.try_acquire(1), "given back each time");
            let slot = free.enter(|f| f.pop());
            free.now(|f| f.extend(black_box(slot)));
            credits.release(cx, 1);
        }));
        t.exchange.push(per(cx, LOOPS, || {
            let at = rng.below(map.len() as u64) as usize;
            black_box(map[at].swap(at as u64, Ordering::AcqRel));
        }));
        t.lookup.push(per(cx, LOOPS, || {
            let at = rng.below(map.len() as u64) as usize;
            black_box(locked.enter(|()| map[at].load(Ordering::Acquire)));
        }));
        let first = rng.below((map.len() - words.len()) as u64) as usize;
        let from = cx.now();
        for (to, entry) in words.iter_mut().zip(&map[first..]) {
            *to = entry.load(Ordering::Acquire);
        }
        t.entries.push(since(cx, from, black_box(&words).len() as u64));
        t.pool.push(per(cx, LOOPS, || {
            let pu = rng.below(128) as usize;
            black_box(lines.enter(|l| {
                l[pu] += 8;
                l[pu]
            }));
        }));
    }
    t
}

/// 8 PUs, 512 MiB. No time passes in it.
fn null_device(store: StoreKind) -> Arc<Ssd> {
    let spec = DeviceSpec::preset("peers-16g").expect("a preset");
    let spec = spec.with_parallelism(4, 2).with_chunks_per_pu(64);
    let options = SsdOptions { store, timing: false, ..SsdOptions::default() };
    Ssd::new(&spec, options).expect("a device")
}

fn command<'a>(op: Op, addrs: &'a [Ppa], data: Data<'a>) -> Request<'a> {
    Request { op, flags: Flags::DEFAULT, addrs, data, whole_sectors: false }
}

/// The device alone, with requests of so many units, each on a PU of its own. Returns the sectors of a
/// unit too.
async fn device(cx: &Cx, rounds: usize, units: usize) -> (usize, Alone) {
    let ssd: Arc<dyn Device> = null_device(StoreKind::Stamps);
    let geo = *ssd.geometry();
    let (unit, bytes) = (geo.ws_min as usize, ssd.traits().content_bytes);
    let rows = geo.sectors_per_chunk() / unit as u32;
    let sectors = unit * units;
    let base = vec![5u8; sectors * bytes];
    let (oob, cause) = (vec![[0u8; OOB_BYTES]; sectors], vec![Cause::User; sectors]);
    let index: Vec<u32> = (0..sectors as u32).collect();
    let mut rng = Rng::stream(1, "calibrate.device", 0);
    let mut t = Alone::default();
    // Once over all of it first: then chunks are reset, and there is something to read.
    let wide = geo.pus() / units as u32;
    let first = (rows * geo.chunks_per_pu * wide) as usize;
    for round in 0..first + rounds {
        let (pu, row) = (round as u32 % wide * units as u32, round as u32 / wide);
        let (chunk, sector) = (row / rows % geo.chunks_per_pu, row % rows * unit as u32);
        if sector == 0 && round >= first {
            let chunk = |i| ssd.format().pack(Location { pu: pu + i, chunk, sector });
            let addrs: Vec<Ppa> = (0..units as u32).map(chunk).collect();
            ssd.io(cx, command(Op::Reset, &addrs, Data::None)).await;
        }
        let place = |i: &u32| {
            let (pu, sector) = (pu + i / unit as u32, sector + i % unit as u32);
            ssd.format().pack(Location { pu, chunk, sector })
        };
        let addrs: Vec<Ppa> = index.iter().map(place).collect();
        let content = Gather::new(&base, &index, bytes);
        let data = Data::Write { content, oob: &oob, cause: &cause };
        let from = cx.now();
        let ticket = ssd.submit(cx, command(Op::Write, &addrs, data));
        let submitted = cx.now();
        let done = ssd.wait(cx, ticket).await;
        let finished = cx.now();
        assert_eq!(done.failed, 0, "a program of the null device failed");
        if round < first {
            continue;
        }
        t.submit.push((submitted - from).as_ns() as f64);
        t.finish.push((finished - submitted).as_ns() as f64);

        let chunk = geo.chunks_per_pu - 1 - chunk % (geo.chunks_per_pu / 2);
        let sector = rng.below(geo.sectors_per_chunk() as u64) as u32;
        let addrs = [ssd.format().pack(Location { pu, chunk, sector })];
        let (mut buf, mut one) = (vec![0u8; bytes], [[0u8; OOB_BYTES]]);
        let content = Scatter::new(&mut buf, &[0], bytes);
        let data = Data::Read { content, oob: &mut one };
        let from = cx.now();
        let done = ssd.io(cx, command(Op::Read, &addrs, data)).await;
        t.read.push(since(cx, from, 1));
        black_box(done);
    }
    (unit, t)
}

/// pblk on the same device, with such requests, and the generator without it.
async fn pblk(cx: &Cx, store: StoreKind, rounds: usize, unit: usize, drain: Drain) -> Live {
    let ssd = null_device(store);
    let config = LogConfig { over_provisioning_percent: 40, drain, ..LogConfig::default() };
    let target = Pblk::create(cx, ssd.clone(), config).await.expect("a target on the null device");
    let dev: Arc<dyn BlockDev> = target.clone();
    let nothing: Arc<dyn BlockDev> = Arc::new(Nothing(dev.info().clone()));
    let mut rng = Rng::stream(1, "calibrate.pblk", 0);
    let one = dev.info().content_bytes;
    let mut buf = vec![1u8; unit * one];
    let wave = (ssd.geometry().pus() as usize * unit) as u64;
    for at in 0..WARM * SET_SECTORS / unit as u64 {
        let lba = at * unit as u64 % SET_SECTORS;
        request(cx, &dev, BlockOp::Write, lba, unit, &mut buf).await;
    }
    request(cx, &dev, BlockOp::Flush, 0, 0, &mut []).await;
    let mut t = Live::default();
    for round in 0..rounds {
        let from = cx.now();
        for _ in 0..wave {
            let lba = rng.below(SET_SECTORS);
            request(cx, &nothing, BlockOp::Write, lba, 1, &mut buf[..one]).await;
        }
        t.generator.push(since(cx, from, wave));

        // Whole waves: nothing is left over for the next round.
        let (sectors, requests) = match round % 2 {
            0 => (1, wave),
            _ => (unit, wave / unit as u64),
        };
        let from = cx.now();
        for _ in 0..requests {
            let lba = rng.below(SET_SECTORS - unit as u64);
            let buf = &mut buf[..sectors * one];
            request(cx, &dev, BlockOp::Write, lba, sectors, buf).await;
        }
        let each = since(cx, from, requests);
        match sectors {
            1 => t.write.push(each),
            _ => t.write_unit.push(each),
        }

        let programmed = || ssd.counters().programmed_total();
        let before = programmed();
        let from = cx.now();
        cx.yield_now().await;
        let drained = cx.now();
        let units = (programmed() - before) / unit as u64;
        let completing = cx.now();
        cx.yield_now().await;
        if units > 0 {
            t.complete.push(since(cx, completing, units));
            t.drain.push((drained - from).as_ns() as f64 / units as f64);
        }
        request(cx, &dev, BlockOp::Flush, 0, 0, &mut []).await;

        let from = cx.now();
        for _ in 0..wave {
            let lba = rng.below(SET_SECTORS);
            request(cx, &dev, BlockOp::Read, lba, 1, &mut buf[..one]).await;
        }
        t.read.push(since(cx, from, wave));
    }
    target.stop(cx).await.expect("a clean stop");
    t
}

async fn request(
    cx: &Cx,
    dev: &Arc<dyn BlockDev>,
    op: BlockOp,
    lba: u64,
    sectors: usize,
    buf: &mut [u8],
) {
    let io = Io::of(op, Lba::new(lba), sectors as u32, false, buf);
    dev.start(cx, io).await.expect("the null device fails nothing");
}
