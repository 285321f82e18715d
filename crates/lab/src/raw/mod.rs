//! Vector I/O directly on an Open-Channel device: an application that places its own data.
//!
//! Owns: streams on named PUs (LightNVM 3.3, L4): sequential or random, reading or writing, with a
//! depth each; the pairing of two streams at a ratio. Promises: no rule of the device is broken
//! (chunks are written whole and in order, and erased before they are written again); everything
//! read is compared with what was written. Never: goes through a translation layer.

pub mod run;

use crate::histogram::Latencies;
use crate::run::Recorder;
use flashlane_base::{Location, Ns, OOB_BYTES, Ppa, Rng, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::device::{
    Breakdown, Cause, Data, Device, Flags, Gather, Op, Request, Scatter,
};
use flashlane_rt::{Cx, Join, Notify};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Order of a stream's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending.
    Sequential,
    /// Anywhere in what was written; reads only.
    Random,
}

/// A stream of vector commands.
#[derive(Clone, Debug)]
pub struct RawStream {
    pub write: bool,
    pub order: Order,
    /// PUs it works on, each on its own.
    pub pus: Vec<u32>,
    /// Sectors per command.
    pub sectors: u32,
    /// Commands in flight per PU.
    pub depth: u32,
    /// Chunks of each PU that it uses, from this one on.
    pub first_chunk: u32,
    pub chunks: u32,
}

/// What a stream did.
#[derive(Clone, Debug, Default)]
pub struct RawResult {
    pub latency: Latencies,
    /// Bytes moved.
    pub bytes: u64,
    /// From its start to the end of its last command.
    pub time: Ns,
    /// Where its reads spent their time on the device, summed.
    pub breakdown: Breakdown,
    /// Sectors with a status that is not good.
    pub failed: u64,
    /// Sectors whose status was good and whose content was wrong.
    pub wrong: u64,
}

impl RawResult {
    /// Decimal megabytes per second.
    pub fn mb_per_s(&self) -> f64 {
        crate::words::mb_per_s(self.bytes, self.time.as_ns())
    }
}

/// A stream on its device.
pub struct Raw {
    device: Arc<dyn Device>,
    stream: RawStream,
    rng: RefCell<Rng>,
    result: RefCell<RawResult>,
    /// Per PU: next sector, counted over its chunks.
    next: Vec<Cell<u64>>,
    /// Who else wants to know.
    told: Option<Told>,
}

/// A recorder, and the counters that its course shows.
#[derive(Clone)]
pub struct Told {
    /// Is told of every command.
    pub recorder: Rc<RefCell<Recorder>>,
    pub stats: Rc<dyn Fn() -> FtlStats>,
    /// The job that the stream is.
    pub job: usize,
}

/// Content of a sector: a function of its address, so that a misplaced one shows.
fn content(at: Ppa) -> u64 {
    at.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

impl Raw {
    pub fn new(device: Arc<dyn Device>, stream: RawStream, seed: u64) -> Rc<Raw> {
        Raw::recorded(device, stream, seed, None)
    }

    /// A stream that also tells a recorder.
    pub fn recorded(
        device: Arc<dyn Device>,
        stream: RawStream,
        seed: u64,
        told: Option<Told>,
    ) -> Rc<Raw> {
        assert!(!stream.write || stream.order == Order::Sequential, "flash is written in order");
        let next = stream.pus.iter().map(|_| Cell::new(0)).collect();
        Rc::new(Raw {
            device,
            stream,
            rng: RefCell::new(Rng::stream(seed, "raw", 0)),
            result: RefCell::default(),
            next,
            told,
        })
    }

    /// What was done since the stream was made, or since [`Raw::forget`].
    pub fn result(&self) -> RawResult {
        self.result.borrow().clone()
    }

    /// Forgets what was done so far.
    pub fn forget(&self) {
        *self.result.borrow_mut() = RawResult::default();
    }

    fn sectors_per_pu(&self) -> u64 {
        self.stream.chunks as u64 * self.device.geometry().sectors_per_chunk() as u64
    }

    fn address(&self, pu: u32, sector: u64) -> Ppa {
        let per_chunk = self.device.geometry().sectors_per_chunk() as u64;
        let at = Location {
            pu,
            chunk: self.stream.first_chunk + (sector / per_chunk) as u32,
            sector: (sector % per_chunk) as u32,
        };
        self.device.format().pack(at)
    }

    /// Writes all chunks of the stream once.
    pub async fn fill(self: &Rc<Raw>, cx: &Cx) {
        let row = self.device.geometry().ws_opt.min(64);
        let tasks: Vec<Join<()>> = (0..self.stream.pus.len())
            .map(|index| {
                let (me, cx) = (self.clone(), cx.clone());
                cx.clone().spawn_join(async move {
                    for start in (0..me.sectors_per_pu()).step_by(row as usize) {
                        me.write(&cx, me.stream.pus[index], start, row).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }

    /// Runs until `commands` per PU are done.
    pub async fn run(self: &Rc<Raw>, cx: &Cx, commands: u64) {
        let start = cx.now();
        let mut tasks = Vec::new();
        for index in 0..self.stream.pus.len() {
            let left = Rc::new(Cell::new(commands));
            for _ in 0..self.stream.depth {
                let (me, cx, left) = (self.clone(), cx.clone(), left.clone());
                tasks.push(cx.clone().spawn_join(async move {
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        me.one(&cx, index).await;
                    }
                }));
            }
        }
        for task in tasks {
            task.await;
        }
        self.result.borrow_mut().time = cx.now() - start;
    }

    /// One command on the `index`-th PU of the stream.
    pub async fn one(&self, cx: &Cx, index: usize) {
        let pu = self.stream.pus[index];
        let n = self.stream.sectors;
        let total = self.sectors_per_pu();
        let at = match self.stream.order {
            // Random commands lie on multiples of their own size, as fio's do.
            Order::Random => self.rng.borrow_mut().below(total / n as u64) * n as u64,
            Order::Sequential => {
                let at = self.next[index].get();
                self.next[index].set((at + n as u64) % total);
                at
            }
        };
        let start = cx.now();
        let bad = if self.stream.write {
            self.write(cx, pu, at, n).await
        } else {
            self.read(cx, pu, at, n).await
        };
        if let Some(told) = &self.told {
            let op = if self.stream.write { BlockOp::Write } else { BlockOp::Read };
            let mut recorder = told.recorder.borrow_mut();
            let bytes = u64::from(n) * SECTOR_BYTES as u64;
            recorder.operation(Some(told.job), op, bytes, start, cx.now(), &*told.stats);
            recorder.request(Some(told.job), start, bad == 0);
        }
        let mut result = self.result.borrow_mut();
        result.latency.record((cx.now() - start).as_ns());
        result.bytes += n as u64 * SECTOR_BYTES as u64;
    }

    async fn write(&self, cx: &Cx, pu: u32, at: u64, n: u32) -> u64 {
        let per_chunk = self.device.geometry().sectors_per_chunk() as u64;
        if at.is_multiple_of(per_chunk) {
            self.erase_if_used(cx, pu, at).await;
        }
        let unit = self.device.traits().content_bytes;
        let addrs: Vec<Ppa> = (0..n as u64).map(|i| self.address(pu, at + i)).collect();
        let mut base = vec![0u8; n as usize * unit];
        for (sector, addr) in base.chunks_exact_mut(unit).zip(&addrs) {
            sector[..8].copy_from_slice(&content(*addr).to_le_bytes());
        }
        let index: Vec<u32> = (0..n).collect();
        let oob = vec![[0u8; OOB_BYTES]; n as usize];
        let cause = vec![Cause::User; n as usize];
        let content = Gather::new(&base, &index, unit);
        let data = Data::Write { content, oob: &oob, cause: &cause };
        self.command(cx, Op::Write, &addrs, data).await
    }

    async fn erase_if_used(&self, cx: &Cx, pu: u32, at: u64) {
        let per_chunk = self.device.geometry().sectors_per_chunk() as u64;
        let chunk = self.stream.first_chunk + (at / per_chunk) as u32;
        let used = self
            .device
            .chunk_report(pu, chunk, 1)
            .first()
            .is_some_and(|c| c.state != flashlane_ocssd::device::ChunkState::Free);
        if used {
            self.command(cx, Op::Reset, &[self.address(pu, at)], Data::None).await;
        }
    }

    async fn read(&self, cx: &Cx, pu: u32, at: u64, n: u32) -> u64 {
        let unit = self.device.traits().content_bytes;
        let addrs: Vec<Ppa> = (0..n as u64).map(|i| self.address(pu, at + i)).collect();
        let mut base = vec![0u8; n as usize * unit];
        let index: Vec<u32> = (0..n).collect();
        let mut oob = vec![[0u8; OOB_BYTES]; n as usize];
        let content_to = Scatter::new(&mut base, &index, unit);
        let data = Data::Read { content: content_to, oob: &mut oob };
        let bad = self.command(cx, Op::Read, &addrs, data).await;
        if bad > 0 {
            // What could not be read is reported; the rest of the vector is not looked at.
            return bad;
        }
        let wrong = base
            .chunks_exact(unit)
            .zip(&addrs)
            .filter(|(sector, addr)| sector[..8] != content(**addr).to_le_bytes())
            .count();
        self.result.borrow_mut().wrong += wrong as u64;
        0
    }

    /// Does a command; how many addresses were not good.
    async fn command(&self, cx: &Cx, op: Op, addrs: &[Ppa], data: Data<'_>) -> u64 {
        let flags = if op == Op::Read { Flags::READ } else { Flags::DEFAULT };
        let request = Request { op, flags, addrs, data, whole_sectors: false };
        let done = self.device.io(cx, request).await;
        let bad = (0..addrs.len()).filter(|i| !done.status(*i).is_ok()).count();
        let mut result = self.result.borrow_mut();
        result.failed += bad as u64;
        if op == Op::Read {
            result.breakdown += done.breakdown;
        }
        bad as u64
    }
}

/// Keeps two streams at a ratio: `writes` of every hundred requests are writes. Whoever is ahead
/// waits for the other.
pub struct Ratio {
    writes_percent: u64,
    done: [Cell<u64>; 2],
    /// One side has ended: the other waits for nobody.
    over: Cell<bool>,
    changed: Notify,
}

impl Ratio {
    /// Nothing done yet. 0 and 100 let one side run alone.
    pub fn new(writes_percent: u64) -> Rc<Ratio> {
        Rc::new(Ratio {
            writes_percent,
            done: Default::default(),
            over: Cell::new(false),
            changed: Notify::new(),
        })
    }

    /// Waits until one more request of this side keeps the ratio.
    pub async fn turn(&self, cx: &Cx, write: bool) {
        self.changed.wait(cx, || self.may(write)).await;
    }

    /// A side may begin its next request once the other side has begun its share before it.
    fn may(&self, write: bool) -> bool {
        let [reads, writes] = [self.done[0].get(), self.done[1].get()];
        if self.over.get() {
            return true;
        }
        match (self.writes_percent, write) {
            (0, write) => !write,
            (100, write) => write,
            (p, true) => writes * (100 - p) <= reads * p,
            (p, false) => reads * p <= writes * (100 - p),
        }
    }

    /// This side makes no more requests.
    pub fn end(&self, cx: &Cx) {
        self.over.set(true);
        self.changed.wake(cx);
    }

    /// A request of this side begins.
    pub fn begin(&self, cx: &Cx, write: bool) {
        let side = &self.done[write as usize];
        side.set(side.get() + 1);
        self.changed.wake(cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
    use flashlane_rt::{CostTable, Virtual};

    fn stream(write: bool, order: Order) -> RawStream {
        RawStream { write, order, pus: vec![0, 3], sectors: 4, depth: 2, first_chunk: 1, chunks: 2 }
    }

    /// Two passes over the same chunks: written, erased, written, read; no rule is broken.
    #[test]
    fn raw_streams_break_no_rule_and_read_what_they_wrote() {
        let spec = DeviceSpec::preset("tiny").unwrap();
        let ssd = Ssd::new(&spec, SsdOptions::default()).unwrap();
        let vm = Virtual::new(1, 1, CostTable::zero());
        let (cx, device) = (vm.cx(), ssd.clone());
        let results = vm
            .run(async move {
                let mut writer = stream(true, Order::Sequential);
                // One command at a time, so that an erase is over before what is behind it.
                writer.depth = 1;
                let writer = Raw::new(device.clone(), writer, 1);
                writer.run(&cx, 64).await;
                let mut all = vec![writer.result()];
                for order in [Order::Sequential, Order::Random] {
                    let reader = Raw::new(device.clone(), stream(false, order), 1);
                    reader.run(&cx, 50).await;
                    all.push(reader.result());
                }
                all
            })
            .unwrap();
        for r in &results {
            assert_eq!((r.failed, r.wrong), (0, 0));
            assert!(r.bytes > 0 && r.time > Ns::ZERO);
        }
        assert_eq!(results[0].bytes, 2 * 64 * 4 * 4096);
        assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
        assert_eq!(ssd.counters().erases, 4, "the second pass erased 2 chunks of 2 PUs");
    }

    #[test]
    fn a_ratio_holds_back_whoever_is_ahead() {
        let vm = Virtual::new(1, 1, CostTable::zero());
        let cx = vm.cx();
        let ratio = Ratio::new(20);
        let theirs = ratio.clone();
        vm.run(async move {
            let side = |write: bool, each: u64| {
                let (cx, ratio) = (cx.clone(), theirs.clone());
                cx.clone().spawn_join(async move {
                    while cx.now() < Ns::from_ms(1) {
                        ratio.turn(&cx, write).await;
                        ratio.begin(&cx, write);
                        cx.sleep(Ns::from_us(each)).await;
                    }
                    ratio.end(&cx);
                })
            };
            for side in [side(false, 1), side(true, 10)] {
                side.await;
            }
        })
        .unwrap();
        let [reads, writes] = [ratio.done[0].get(), ratio.done[1].get()];
        assert!(reads >= 4 * (writes - 1) && reads <= 4 * (writes + 1), "{reads} {writes}");
    }
}
