//! A pblk on a bench: one small device, virtual time, requests as calls, and a memory of what each
//! sector holds.
//!
//! Owns: building the stack (pblk over a tracing device over a scripted one over the SSD), the
//! content of a version, the end of every test ([`Bench::settled`]).
//! Promises: a settled bench has been read back in full against what was written; the medium has
//! seen no violation, both counter laws hold and the walk finds nothing.
//! Never: looks into pblk other than through its public interface.

use crate::prelude::*;
use flashlane_ftl::log::format::LBA_MASK;
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::device::CAUSES_MAX;
use flashlane_ocssd::device::Device;
use flashlane_ocssd::wrap::{Script, ScriptedDevice, TracingDevice};

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) spec: DeviceSpec,
    pub(crate) options: SsdOptions,
    pub(crate) config: LogConfig,
    pub(crate) seed: u64,
    /// Simulated cores; the bench's own requests run on core 0.
    pub(crate) cores: u32,
    /// What CPU work costs.
    pub(crate) costs: CostTable,
    /// Commands are written down (costs memory: not for long runs).
    pub(crate) traced: bool,
}

/// What this ends with on one core whose work costs nothing.
pub(crate) fn ran<T: 'static, F>(seed: u64, work: impl FnOnce(Cx) -> F) -> T
where
    F: Future<Output = T> + 'static,
{
    let run = Virtual::new(1, seed, CostTable::zero());
    run.run(work(run.cx())).expect("nothing stalls")
}

/// `tiny` (4 PUs, chunks of 64 sectors, units of 4, a window of 8) with `chunks` chunks per PU.
pub(crate) fn tiny(chunks: u32) -> Setup {
    let spec = DeviceSpec::preset("tiny").expect("a preset");
    Setup {
        spec: spec.with_chunks_per_pu(chunks),
        options: SsdOptions::default(),
        config: LogConfig { over_provisioning_percent: 50, ..LogConfig::default() },
        seed: 7,
        cores: 1,
        costs: CostTable::zero(),
        traced: true,
    }
}

impl Setup {
    /// The same setup, changed as `change` says.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Setup)) -> Setup {
        change(&mut self);
        self
    }
    /// Commands take no time.
    pub(crate) fn untimed(mut self) -> Setup {
        self.options.timing = false;
        self
    }
    /// GC runs only by hand.
    pub(crate) fn manual_gc(mut self) -> Setup {
        self.config.gc = false;
        self
    }
    /// One stage of CPU work costs something.
    pub(crate) fn cost(mut self, stage: &str, cost: &str) -> Setup {
        let text = format!(
            "name = \"bench\"\nhandoff_per_waiter = \"0ns\"\n[stages]\n\"{stage}\" = \"{cost}\"\n"
        );
        self.costs = CostTable::from_toml(&text).expect("a table");
        self
    }
    pub(crate) fn cores(mut self, cores: u32) -> Setup {
        self.cores = cores;
        self
    }
    pub(crate) fn untraced(mut self) -> Setup {
        self.traced = false;
        self
    }
    pub(crate) fn op(mut self, percent: u32) -> Setup {
        self.config.over_provisioning_percent = percent;
        self
    }
    pub(crate) fn memory(mut self) -> Setup {
        self.options.store = StoreKind::Memory;
        self
    }
    pub(crate) fn seed(mut self, seed: u64) -> Setup {
        self.seed = seed;
        self
    }
    pub(crate) fn faults(mut self, toml: &str) -> Setup {
        self.options.faults = FaultPlan::from_toml(toml).expect("a plan");
        self
    }
    /// A plan of one fault at a place: chunk of the target, sector.
    pub(crate) fn fault(&self, kind: &str, (chunk, sector): Spot) -> String {
        let per_pu = self.spec.geometry.chunks_per_pu;
        let (pu, chunk) = (chunk / per_pu, chunk % per_pu);
        format!("[[fault]]\nkind = \"{kind}\"\nat = \"pu {pu} chunk {chunk} sector {sector}\"\n")
    }
    /// With that fault alone.
    pub(crate) fn failing(self, kind: &str, at: Spot) -> Setup {
        let plan = self.fault(kind, at);
        self.faults(&plan)
    }
    /// A new target on a [`Medium`] that has been told this, and what it may hold.
    pub(crate) fn told(&self, steps: &[Do]) -> (Bench, Rc<RefCell<Telling>>) {
        let (bench, telling) = (Medium::new(self.clone()).create(), Rc::default());
        bench.told(steps, &telling);
        (bench, telling)
    }
    pub(crate) fn shape(mut self, channels: u32, per_channel: u32, pages: u32) -> Setup {
        self.spec = self.spec.with_parallelism(channels, per_channel);
        self.spec.geometry.pages_per_block = pages;
        self
    }
    /// Whether a target can be created.
    pub(crate) fn try_create(self) -> Result<(), CreateError> {
        let ssd = Ssd::new(&self.spec, self.options).expect("a device");
        ran(1, |cx| async move { Pblk::create(&cx, ssd, self.config).await.map(drop) })
    }
    pub(crate) fn build(self) -> Bench {
        Bench::new(self)
    }
}

/// The stack and what its sectors hold.
pub(crate) struct Bench {
    pub(crate) run: Virtual,
    pub(crate) cx: Cx,
    pub(crate) ssd: Arc<Ssd>,
    pub(crate) script: Arc<ScriptedDevice>,
    pub(crate) trace: Arc<TracingDevice>,
    pub(crate) dev: Arc<Pblk>,
    /// Version of each sector that is not zeros.
    pub(crate) held: Rc<RefCell<BTreeMap<u64, u64>>>,
    /// What is under it; only a bench made by a [`Medium`] goes through its face.
    pub(crate) medium: Medium,
    pub(crate) face: Arc<Face>,
    /// What the medium had counted when this life began.
    before: [u64; CAUSES_MAX],
}

/// Content of a version of a sector: no two alike, in every word.
pub(crate) fn content(lba: u64, version: u64, bytes: usize) -> Vec<u8> {
    let words =
        (0..bytes as u64 / 8).map(|i| Rng::stream(version, "word", lba << 9 | i).next_u64());
    words.flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn filled(lba: u64, sectors: u32, version: u64, bytes: usize) -> Vec<u8> {
    let each = (lba..lba + sectors as u64).flat_map(|l| content(l, version, bytes));
    each.collect()
}

impl Bench {
    fn new(setup: Setup) -> Bench {
        let medium = Medium::new(setup.clone());
        let (ssd, face) = (medium.ssd.clone(), medium.face(None));
        let script = Arc::new(ScriptedDevice::new(ssd.clone()));
        let trace = Arc::new(TracingDevice::new(script.clone()));
        let device: Arc<dyn Device> = match setup.traced {
            true => trace.clone(),
            false => ssd.clone(),
        };
        let run = Virtual::new(setup.cores, setup.seed, setup.costs);
        let cx = run.cx();
        let theirs = cx.clone();
        let config = setup.config;
        let dev = run
            .run(async move { Pblk::create(&theirs, device, config).await })
            .expect("creation ends")
            .unwrap_or_else(|e| panic!("{e}"));
        let held = medium.held.clone();
        let before = Default::default();
        let bench = Bench { run, cx, ssd, script, trace, dev, held, medium, face, before };
        bench.rest(); // the first lines are open
        bench
    }

    /// A target that a [`Medium`] brought up, with nothing between it and the medium's face.
    pub(crate) fn on(
        medium: Medium,
        face: Arc<Face>,
        run: Virtual,
        dev: Arc<Pblk>,
        before: [u64; CAUSES_MAX],
    ) -> Bench {
        let script = Arc::new(ScriptedDevice::new(face.clone()));
        let trace = Arc::new(TracingDevice::new(script.clone()));
        let (cx, ssd, held) = (run.cx(), medium.ssd.clone(), medium.held.clone());
        Bench { run, cx, ssd, script, trace, dev, held, medium, face, before }
    }

    /// A request on a core, and its buffer back.
    pub(crate) fn request(
        &self,
        core: u32,
        (op, lba, sectors, fua): (BlockOp, u64, u32, bool),
        mut buf: Vec<u8>,
    ) -> impl Future<Output = (BlockResult, Vec<u8>)> + use<> {
        let (cx, dev) = (self.cx.on_core(CoreId(core)), self.dev.clone());
        async move {
            let io = Io::of(op, Lba::new(lba), sectors, fua, &mut buf);
            let result = dev.start(&cx, io).await;
            (result, buf)
        }
    }

    /// Runs to the end of `work`.
    pub(crate) fn wait<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        self.run.run(work).expect("no stall")
    }

    /// Until all of these have ended; what came of them.
    pub(crate) fn wait_all<T: 'static>(&self, joins: Vec<Join<T>>) -> Vec<T> {
        self.wait(async move {
            let mut ended = Vec::new();
            for join in joins {
                ended.push(join.await);
            }
            ended
        })
    }

    pub(crate) fn sleep(&self, span: Ns) {
        let cx = self.cx.clone();
        self.wait(async move { cx.sleep(span).await });
    }

    /// Long enough for everything in flight to end; padding and closing included.
    pub(crate) fn rest(&self) {
        self.sleep(Ns::from_ms(100));
    }

    fn bytes(&self) -> usize {
        self.dev.info().content_bytes
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.dev.info().capacity
    }

    /// Starts a write that runs while the test goes on. The bench expects it to succeed.
    pub(crate) fn begin_write(&self, lba: u64, sectors: u32, version: u64) -> Join<BlockResult> {
        self.begin_write_on(0, lba, sectors, version)
    }

    /// As `begin_write`, on another core.
    pub(crate) fn begin_write_on(
        &self,
        core: u32,
        lba: u64,
        sectors: u32,
        version: u64,
    ) -> Join<BlockResult> {
        self.note_write(lba, sectors, version);
        let buf = filled(lba, sectors, version, self.bytes());
        let write = self.request(core, (BlockOp::Write, lba, sectors, false), buf);
        self.cx.on_core(CoreId(core)).spawn_join(async move { write.await.0 })
    }

    /// Does a sector read as this version?
    pub(crate) fn holds(&self, lba: u64, version: u64) -> bool {
        let buf = vec![0xa5; self.bytes()];
        let (result, got) = self.wait(self.request(0, (BlockOp::Read, lba, 1, false), buf));
        result.expect("a read");
        got == content(lba, version, self.bytes())
    }

    pub(crate) fn note_write(&self, lba: u64, sectors: u32, version: u64) {
        let each = (lba..lba + sectors as u64).map(|l| (l, version));
        self.held.borrow_mut().extend(each);
    }

    /// Writes; the outcome is the caller's.
    pub(crate) fn try_write(&self, lba: u64, sectors: u32, version: u64, fua: bool) -> BlockResult {
        let buf = filled(lba, sectors, version, self.bytes());
        let write = self.request(0, (BlockOp::Write, lba, sectors, fua), buf);
        let (result, _) = self.wait(write);
        if result.is_ok() {
            self.note_write(lba, sectors, version);
        }
        result
    }

    pub(crate) fn write(&self, lba: u64, sectors: u32, version: u64) {
        self.try_write(lba, sectors, version, false).expect("a write");
    }

    /// Writes every sector once, 32 at a time.
    pub(crate) fn fill(&self, version: u64) {
        let capacity = self.capacity();
        for lba in (0..capacity).step_by(32) {
            self.write(lba, 32.min(capacity - lba) as u32, version);
        }
    }

    pub(crate) fn begin_flush(&self) -> Join<BlockResult> {
        self.begin_flush_on(0)
    }

    pub(crate) fn begin_flush_on(&self, core: u32) -> Join<BlockResult> {
        let flush = self.request(core, (BlockOp::Flush, 0, 0, false), Vec::new());
        self.cx.on_core(CoreId(core)).spawn_join(async move { flush.await.0 })
    }

    pub(crate) fn try_flush(&self) -> BlockResult {
        let flush = self.begin_flush();
        self.wait(flush)
    }

    pub(crate) fn flush(&self) {
        self.try_flush().expect("a flush");
    }

    /// Flushes, and waits until lines are closed and opened.
    pub(crate) fn drained(&self) {
        self.flush();
        self.rest();
    }

    pub(crate) fn discard(&self, lba: u64, sectors: u64) {
        self.try_discard(lba, sectors).expect("a discard");
    }

    /// Discards; the outcome is the caller's.
    pub(crate) fn try_discard(&self, lba: u64, sectors: u64) -> BlockResult {
        let all = self.request(0, (BlockOp::Discard, lba, sectors as u32, false), Vec::new());
        let (result, _) = self.wait(all);
        if result.is_ok() {
            let range = lba..lba + sectors;
            self.held.borrow_mut().retain(|l, _| !range.contains(l));
        }
        result
    }

    /// Starts a read that is checked against what the sectors hold now; `Err` has the lost ones.
    pub(crate) fn begin_read(&self, lba: u64, sectors: u32) -> Join<Result<(), Vec<Lba>>> {
        let unit = self.bytes();
        let mut want = Vec::new();
        for l in lba..lba + sectors as u64 {
            match self.held.borrow().get(&l) {
                Some(version) => want.extend(content(l, *version, unit)),
                None => want.extend(vec![0; unit]),
            }
        }
        // What the caller's buffer holds before must not be seen.
        let buf = vec![0xa5; sectors as usize * unit];
        let read = self.request(0, (BlockOp::Read, lba, sectors, false), buf);
        self.cx.spawn_join(async move {
            let (result, got) = read.await;
            let lost = match result {
                Ok(()) => Vec::new(),
                Err(BlockError::Uncorrectable(lost)) => lost,
                Err(other) => panic!("a read ended with {other}"),
            };
            for i in 0..sectors as usize {
                let l = Lba::new(lba + i as u64);
                let (g, w) = (&got[i * unit..(i + 1) * unit], &want[i * unit..(i + 1) * unit]);
                assert!(lost.contains(&l) || g == w, "sector {l} has other content");
            }
            if lost.is_empty() { Ok(()) } else { Err(lost) }
        })
    }

    pub(crate) fn try_read(&self, lba: u64, sectors: u32) -> Result<(), Vec<Lba>> {
        let read = self.begin_read(lba, sectors);
        self.wait(read)
    }

    pub(crate) fn read(&self, lba: u64, sectors: u32) {
        self.try_read(lba, sectors).expect("readable");
    }

    /// Every sector holds what was written last.
    pub(crate) fn read_all(&self) {
        let capacity = self.capacity();
        for lba in (0..capacity).step_by(64) {
            self.read(lba, 64.min(capacity - lba) as u32);
        }
    }

    pub(crate) fn gc_once(&self) -> bool {
        let collected = self.wait(self.begin_gc());
        self.rest();
        collected
    }

    pub(crate) fn begin_gc(&self) -> Join<bool> {
        let (cx, dev) = (self.cx.clone(), self.dev.clone());
        self.cx.spawn_join(async move { dev.gc_once(&cx).await })
    }

    /// Asks it to stop.
    pub(crate) fn stop(&self) -> BlockResult {
        let (cx, dev) = (self.cx.clone(), self.dev.clone());
        self.wait(async move { dev.stop(&cx).await })
    }

    pub(crate) fn set_gc(&self, on: bool) {
        self.dev.set_gc(&self.cx, on);
    }

    /// `tasks` writers, each with its own sectors, `each` single-sector writes at random places.
    pub(crate) fn overwrite(&self, tasks: u64, each: u64, salt: u64) {
        let (bytes, capacity) = (self.bytes(), self.capacity());
        let mut joins = Vec::new();
        for task in 0..tasks {
            let (cx, dev, held) = (self.cx.clone(), self.dev.clone(), self.held.clone());
            let mut rng = Rng::stream(salt, "overwrite", task);
            joins.push(self.cx.spawn_join(async move {
                for i in 0..each {
                    let lba = rng.below(capacity / tasks) * tasks + task;
                    let version = salt << 40 | task << 32 | i;
                    let buf = content(lba, version, bytes);
                    let write = Io::write(Lba::new(lba), 1, false, &buf);
                    dev.start(&cx, write).await.expect("a write");
                    held.borrow_mut().insert(lba, version);
                }
            }));
        }
        self.wait_all(joins);
    }

    pub(crate) fn stats(&self) -> FtlStats {
        self.dev.stats()
    }

    pub(crate) fn count(&self, cause: Cause) -> u64 {
        self.stats().programmed_for(cause)
    }

    pub(crate) fn lines(&self, state: LineState) -> usize {
        let (counts, _, _) = self.dev.line_counts();
        counts.iter().find(|(s, _)| *s == state).map_or(0, |c| c.1)
    }

    pub(crate) fn free_chunks(&self) -> u64 {
        self.dev.line_counts().1
    }

    pub(crate) fn retired(&self) -> u64 {
        self.dev.line_counts().2
    }

    pub(crate) fn attribute(&self, name: &str) -> String {
        self.dev.attribute(name).expect("an attribute")
    }

    /// (pu, chunk, sector) of an address.
    pub(crate) fn place(&self, addr: Ppa) -> Location {
        self.ssd.format().unpack(addr).expect("an address of the device")
    }

    /// The n-th command of a kind from now on is answered by the script.
    pub(crate) fn answer(&self, op: Op, from_now: u64, addrs: u64, status: Status, delay: Ns) {
        let nth = self.script.seen(op) + from_now;
        self.script.add(Script { op, nth, addrs, status, delay });
    }

    /// The end of every test: contents are right, then the target stops, and nothing disagrees.
    pub(crate) fn settled(self) {
        self.read_all();
        self.stopped();
    }

    /// As [`Bench::settled`], for tests that lost sectors on purpose and have checked contents.
    pub(crate) fn stopped(self) {
        self.stop().expect("everything is durable");
        self.rest();
        self.agrees();
    }

    /// What must hold whenever nothing is in flight.
    pub(crate) fn agrees(&self) {
        let counters = self.ssd.counters();
        assert_eq!(counters.violations, 0, "{:?}", self.ssd.violations().first());
        let stats = self.stats();
        stats.check_host_law().expect("host law");
        let mut programmed = counters.programmed;
        programmed.iter_mut().zip(&self.before).for_each(|(now, before)| *now -= before);
        stats.check_media_law(&programmed).expect("media law");
        self.dev.check_consistency().expect("the walk");
    }
}

/// The lba field of an out-of-band record.
pub(crate) fn lba_of(oob: &[u8; 16]) -> u64 {
    u64::from_le_bytes(oob[..8].try_into().expect("eight")) & LBA_MASK
}

/// A program of data or of padding behind data, as opposed to metadata and the log.
pub(crate) fn is_data(e: &Traced) -> bool {
    e.op == Op::Write && e.oob.iter().any(|o| lba_of(o) < LBA_LIMIT)
}

/// Commands of a kind.
pub(crate) fn of(entries: &[Traced], op: Op) -> Vec<&Traced> {
    entries.iter().filter(|e| e.op == op).collect()
}
