//! One run of a target on two or three cores.
//!
//! Owns: what each core does, and what must hold at the end. Never: schedules.

use crate::schedule::number;
use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::log::{LogConfig, MountOptions, Pblk};
use flashlane_ocssd::{DeviceSpec, FaultPlan, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_rt::sync::hesitate_in_one_of;
use flashlane_rt::{Cx, Notify, Threads};
use flashlane_testkit::{Host, Oracle, Wrong};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// How the first life goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Stopped,
    Cut,
    Collecting,
    /// Rounds of a write, a discard and a flush of the same few sectors, then a cut.
    Discards,
    /// A life before, a mount, and one sector that is written, discarded and flushed, then a cut: stamps are not the
    /// clock's but the floor's.
    MountedDiscard,
    /// As little spare as works, and every sector written: whoever looks for room decides whether there is any.
    Full,
}

impl Life {
    fn is_cut(self) -> bool {
        !matches!(self, Life::Stopped | Life::Collecting | Life::Full)
    }
}

/// Sectors that all cores write.
const SHARED: u64 = 5;

/// Runs in which garbage collection moved something.
pub(crate) static COLLECTED: AtomicU64 = AtomicU64::new(0);
pub(crate) static COLLECTED_FULL: AtomicU64 = AtomicU64::new(0);

/// What a seed has drawn.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    life: Life,
    cores: u32,
    /// Requests of each core at once.
    depth: u32,
    requests: u64,
    borrow: bool,
    /// All of a sector's content, copied in two steps: it can tear. Else eight bytes.
    full: bool,
    /// Programs fail now and then.
    faulty: bool,
    /// PUs of a channel, whose semaphores a request takes together.
    pus: u32,
    /// Of 32 requests: flushes, FUA writes, discards, reads.
    mix: [u64; 4],
    /// The power goes off when so many requests have ended.
    cut_behind: u32,
    /// Not before one of them was a flush or a FUA write.
    cut_behind_flush: bool,
}

impl Plan {
    fn draw(seed: u64, life: Life) -> Plan {
        let mut rng = Rng::stream(seed, "interleave.plan", 0);
        let requests = match life {
            Life::Collecting => 60 + rng.below(200),
            Life::Discards => 1 + rng.below(12),
            Life::Full => 20 + rng.below(60),
            _ => 5 + rng.below(40),
        };
        let (cores, depth) = match life {
            Life::Discards | Life::MountedDiscard => (3, 1),
            _ => (2 + rng.below(2), 1 + rng.below(3)),
        };
        let cut_behind = match life {
            Life::Cut => 1 + rng.below(requests * depth * cores) as u32,
            _ => u32::MAX,
        };
        let mixes = [[1, 1, 3, 8], [1, 1, 3, 8], [4, 6, 6, 2], [3, 2, 10, 2]];
        Plan {
            seed,
            life,
            cores: cores as u32,
            depth: depth as u32,
            requests,
            borrow: rng.below(3) == 0,
            full: rng.below(4) != 0,
            // With as little spare as works bad chunks may well be the end.
            faulty: rng.below(4) == 0 && life != Life::Full,
            pus: if rng.below(3) == 0 { 2 } else { 1 },
            mix: mixes[rng.below(4) as usize],
            cut_behind,
            cut_behind_flush: rng.below(2) == 0,
        }
    }
}

impl Plan {
    /// As small as a target with two pools can be.
    fn medium(&self) -> DeviceSpec {
        let tiny = DeviceSpec::preset("tiny").expect("built in");
        tiny.with_parallelism(2, self.pus).with_chunks_per_pu(32)
    }

    fn options(&self) -> SsdOptions {
        let store = if self.full { StoreKind::Memory } else { StoreKind::Stamps };
        // Each costs a chunk. Of 36 that take data, full lines take 16, open ones 4, the reserve 12: where every
        // sector is written the fifth that is gone is the end.
        let times = if self.life == Life::Collecting { 4 } else { 5 };
        let failing = format!(
            "[[fault]]\nkind = \"write_next_unit\"\nprobability = \"5e-2\"\ntimes = {times}\n"
        );
        let faults = FaultPlan::from_toml(if self.faulty { &failing } else { "" }).expect("a plan");
        SsdOptions { timing: false, seed: self.seed, store, faults, ..SsdOptions::default() }
    }
}

/// What all cores see. It tells nothing of the target, so it is none of the checker's business, except
/// that who waits is woken through `changed`.
struct Shared {
    plan: Plan,
    ssd: Arc<Ssd>,
    oracle: OnceLock<Arc<Oracle>>,
    /// There was a life before this one.
    is_mounted: bool,
    dev: OnceLock<Arc<Pblk>>,
    ended: AtomicU32,
    /// It is time for the cut.
    off: AtomicBool,
    last: AtomicU64,
    done: AtomicU32,
    /// Cores that have come to the end of a step, of all steps.
    steps: AtomicU32,
    changed: Notify,
}

impl Shared {
    fn new(plan: Plan, ssd: Arc<Ssd>, oracle: OnceLock<Arc<Oracle>>) -> Arc<Shared> {
        Arc::new(Shared {
            plan,
            ssd,
            is_mounted: oracle.get().is_some(),
            oracle,
            dev: OnceLock::new(),
            ended: AtomicU32::new(0),
            off: AtomicBool::new(false),
            last: AtomicU64::new(0),
            done: AtomicU32::new(0),
            steps: AtomicU32::new(0),
            changed: Notify::new(),
        })
    }

    /// Waits until every core has done its `step`-th step.
    async fn step(&self, cx: &Cx, step: u32) {
        self.steps.fetch_add(1, Ordering::SeqCst);
        self.changed.wake(cx);
        let all = (step + 1) * self.plan.cores;
        self.changed.wait(cx, || self.steps.load(Ordering::SeqCst) >= all).await;
    }

    /// A request has ended at this time.
    fn request_ended(&self, at: Ns, durably: bool) {
        self.last.fetch_max(at.as_ns(), Ordering::SeqCst);
        let ended = self.ended.fetch_add(1, Ordering::SeqCst) + 1;
        if ended >= self.plan.cut_behind && (durably || !self.plan.cut_behind_flush) {
            self.off.store(true, Ordering::SeqCst);
        }
    }

    fn is_off(&self) -> bool {
        self.off.load(Ordering::SeqCst)
    }
}

pub(crate) fn run(seed: u64, life: Life) {
    let plan = Plan::draw(seed, life);
    // Two cores must stop, each at the one place where it counts.
    hesitate_in_one_of(if life == Life::MountedDiscard { 2 } else { 8 });
    if number("FLASHLANE_SCHEDULES") == Some(1) {
        eprintln!("{plan:?}");
    }
    let ssd = Ssd::new(&plan.medium(), plan.options()).expect("a device");
    let mut oracle = OnceLock::new();
    for _ in 0..if life == Life::MountedDiscard { 2 } else { 1 } {
        let shared = Shared::new(plan, ssd.clone(), oracle);
        Threads::new(plan.cores, seed).run(|cx| one_life(cx, shared.clone()));
        oracle = OnceLock::from(shared.oracle.get().expect("core 0 made it").clone());
        if life.is_cut() {
            let last = shared.last.load(Ordering::SeqCst);
            ssd.power_cut(Ns::from_ns(last), PowerOn::ClockRestarts);
            oracle.get().expect("set above").power_cut();
        }
    }
    let second = Shared::new(plan, ssd, oracle);
    Threads::new(plan.cores, seed).run(|cx| last_life(cx, second.clone()));
}

/// A sector whose requests are printed: FLASHLANE_WATCH.
fn watched() -> Option<Lba> {
    number("FLASHLANE_WATCH").map(Lba::new)
}

async fn one_life(cx: Cx, shared: Arc<Shared>) {
    let plan = shared.plan;
    if cx.core().0 == 0 && shared.is_mounted {
        mount(&cx, &shared).await;
    } else if cx.core().0 == 0 {
        let full = plan.life == Life::Full;
        let config = LogConfig {
            over_provisioning_percent: if full { 0 } else { 75 },
            cores: plan.cores,
            borrow: plan.borrow,
            ..LogConfig::qblk()
        };
        let dev = Pblk::create(&cx, shared.ssd.clone(), config).await;
        let dev = dev.unwrap_or_else(|e| panic!("{plan:?}: {e}"));
        let oracle = Oracle::new(dev.info().capacity, dev.info().content_bytes);
        assert!(shared.oracle.set(Arc::new(oracle)).is_ok());
        assert!(shared.dev.set(dev).is_ok());
        shared.changed.wake(&cx);
    }
    watch(&cx, &shared);
    shared.changed.wait(&cx, || shared.dev.get().is_some()).await;
    let dev = shared.dev.get().expect("set above").clone();
    let oracle = shared.oracle.get().expect("set above").clone();
    let host = Rc::new(Host::new(dev.clone(), oracle, watched(), false));
    let left = Rc::new(Cell::new(plan.depth));
    for task in 0..plan.depth {
        let (cx, host, left, shared) = (cx.clone(), host.clone(), left.clone(), shared.clone());
        cx.clone().spawn(async move {
            let worked = match plan.life {
                Life::Discards => rounds(&cx, &host, &shared).await,
                Life::MountedDiscard if !shared.is_mounted => Ok(()),
                Life::MountedDiscard => one_sector(&cx, &host, &shared).await,
                _ => work(&cx, &host, &shared, task).await,
            };
            worked.unwrap_or_else(|wrong| panic!("{plan:?}: {wrong}"));
            left.set(left.get() - 1);
            shared.changed.wake(&cx);
        });
    }
    shared.changed.wait(&cx, || left.get() == 0 || shared.is_off()).await;
    shared.done.fetch_add(1, Ordering::SeqCst);
    shared.changed.wake(&cx);
    if cx.core().0 != 0 || plan.life.is_cut() {
        return;
    }
    shared.changed.wait(&cx, || shared.done.load(Ordering::SeqCst) == plan.cores).await;
    dev.stop(&cx).await.unwrap_or_else(|e| panic!("{plan:?}: {e}"));
    settled(&dev, &shared.ssd);
    let collected = match plan.life {
        Life::Collecting => &COLLECTED,
        Life::Full => &COLLECTED_FULL,
        _ => return,
    };
    collected.fetch_add(u64::from(dev.stats().gc_moved > 0), Ordering::SeqCst);
}

/// Time stands still unless everybody waits: when this comes, nobody can go on, and it says where they are.
fn watch(cx: &Cx, shared: &Arc<Shared>) {
    if cx.core().0 != 0 {
        return;
    }
    let (cx, shared) = (cx.clone(), shared.clone());
    cx.clone().spawn(async move {
        cx.sleep(Ns::from_secs(3600)).await;
        let attributes = ["lines", "lines_info", "rate_limiter", "write_buffer", "gc_state"];
        let of = |dev: &Arc<Pblk>| attributes.map(|name| dev.attribute(name).unwrap_or_default());
        let state = shared.dev.get().map(|dev| (of(dev).join(", "), dev.stats().buffered_now));
        panic!("everybody waits: {:?}: {state:?}", shared.plan);
    });
}

async fn mount(cx: &Cx, shared: &Shared) {
    let dev = Pblk::mount(cx, shared.ssd.clone(), MountOptions::default()).await;
    let dev = dev.unwrap_or_else(|e| panic!("{:?}: {e}", shared.plan));
    dev.check_consistency().unwrap_or_else(|e| panic!("{:?}: {e}", shared.plan));
    assert!(shared.dev.set(dev).is_ok());
    shared.changed.wake(cx);
}

async fn last_life(cx: Cx, shared: Arc<Shared>) {
    watch(&cx, &shared);
    if cx.core().0 == 0 {
        mount(&cx, &shared).await;
    }
    shared.changed.wait(&cx, || shared.dev.get().is_some()).await;
    let dev = shared.dev.get().expect("set above").clone();
    let oracle = shared.oracle.get().expect("given").clone();
    let capacity = oracle.capacity();
    let host = Host::new(dev.clone(), oracle, watched(), false);
    let (me, cores, mut buf) = (u64::from(cx.core().0), u64::from(cx.cores()), Vec::new());
    let mut check = async || -> Result<(), Wrong> {
        let each = capacity.div_ceil(cores);
        let mut at = me * each;
        while at < ((me + 1) * each).min(capacity) {
            let n = 32.min(((me + 1) * each).min(capacity) - at);
            host.read(&cx, Lba::new(at), n as u32, &mut buf).await?;
            at += n;
        }
        host.write(&cx, Lba::new(me % SHARED), 1, false, &mut buf).await
    };
    check().await.unwrap_or_else(|wrong| panic!("{:?}: {wrong}", shared.plan));
    shared.done.fetch_add(1, Ordering::SeqCst);
    shared.changed.wake(&cx);
    if me == 0 {
        let all = shared.plan.cores;
        shared.changed.wait(&cx, || shared.done.load(Ordering::SeqCst) == all).await;
        dev.stop(&cx).await.unwrap_or_else(|e| panic!("{:?}: {e}", shared.plan));
        assert!(shared.ssd.violations().is_empty(), "{:?}", shared.ssd.violations().first());
        dev.check_consistency().unwrap_or_else(|e| panic!("{:?}: {e}", shared.plan));
    }
}

/// Each sector valid exactly once, the medium was used as its rules say, and both laws hold.
fn settled(dev: &Pblk, ssd: &Ssd) {
    assert!(ssd.violations().is_empty(), "{:?}", ssd.violations().first());
    dev.check_consistency().unwrap_or_else(|e| panic!("{e}"));
    let stats = dev.stats();
    stats.check_host_law().unwrap_or_else(|e| panic!("{e}"));
    stats.check_media_law(&ssd.counters().programmed).unwrap_or_else(|e| panic!("{e}"));
}

/// Each round has sectors of its own. Some have content on the medium, some newer content in the buffer, some none;
/// then one core writes, one discards, one flushes, all at a time. What is read behind that stays, and in the last round
/// the power goes off as the flush or all of them have ended.
async fn rounds(cx: &Cx, host: &Host, shared: &Shared) -> Result<(), Wrong> {
    const SECTORS: u64 = 4;
    let plan = shared.plan;
    let core = cx.core().0;
    let mut rng = Rng::stream(plan.seed, "interleave.rounds", 0);
    let (mut buf, mut step) = (Vec::new(), 0);
    for round in 0..plan.requests {
        let base = round * SECTORS % (host.oracle().capacity() - SECTORS);
        let [old, buffered, written] = [(); 3].map(|()| rng.below(1 << SECTORS));
        let sectors = |of: u64| (base..).zip((0..SECTORS).map(move |i| of >> i & 1 != 0));
        let (drains, soon) = (rng.below(2) == 0, rng.below(2) == 0);
        if core == 0 {
            for of in [old, buffered] {
                for (lba, _) in sectors(of).filter(|(_, is)| *is) {
                    host.write(cx, Lba::new(lba), 1, false, &mut buf).await?;
                }
                if of == old || drains {
                    host.flush(cx).await?;
                }
            }
        }
        shared.step(cx, step).await;
        match core {
            0 => {
                for (lba, _) in sectors(written).filter(|(_, is)| *is) {
                    host.write(cx, Lba::new(lba), 1, false, &mut buf).await?;
                }
            }
            1 => host.discard(cx, Lba::new(base), SECTORS as u32).await?,
            _ if soon && written & 1 == 0 => {
                host.discard(cx, Lba::new(base), 2).await?;
                host.flush(cx).await?;
            }
            _ => host.flush(cx).await?,
        }
        let last = round + 1 == plan.requests;
        shared.last.fetch_max(cx.now().as_ns(), Ordering::SeqCst);
        if last && soon && core == 2 {
            break;
        }
        shared.step(cx, step + 1).await;
        if core == 0 {
            host.read(cx, Lba::new(base), SECTORS as u32, &mut buf).await?;
            host.flush(cx).await?;
        }
        shared.last.fetch_max(cx.now().as_ns(), Ordering::SeqCst);
        shared.step(cx, step + 2).await;
        step += 3;
    }
    shared.off.store(true, Ordering::SeqCst);
    shared.changed.wake(cx);
    Ok(())
}

/// Core 1 discards a sector while core 0 writes and somebody flushes, in one of three ways. The power goes off as the
/// flush ends.
async fn one_sector(cx: &Cx, host: &Host, shared: &Shared) -> Result<(), Wrong> {
    const SECTOR: u64 = 8;
    let (core, mut buf) = (cx.core().0, Vec::new());
    // The last one needs the most tries.
    let way = (shared.plan.seed % 4).min(2);
    // What is on the medium; on top of it in the ring of core 0, less than a unit; what core 0 writes.
    let (old, buffered, written): (&[u64], &[u64], u64) = match way {
        // It is written before the discard or behind it: which of them shows, and stays.
        0 => (&[SECTOR], &[], SECTOR),
        // What dies in the ring is dropped, since a unit is full: what was there before must not come back.
        1 => (&[SECTOR], &[SECTOR, 9, 10], 11),
        // It is discarded once more behind the write.
        _ => (&[9], &[], SECTOR),
    };
    if core == 0 {
        for of in [old, buffered] {
            for lba in of {
                host.write(cx, Lba::new(*lba), 1, false, &mut buf).await?;
            }
            if of == old {
                host.flush(cx).await?;
            }
        }
    }
    shared.step(cx, 0).await;
    let come = |core: u32| {
        shared.ended.fetch_or(1 << core, Ordering::SeqCst);
        shared.changed.wake(cx);
    };
    let other = async |core: u32| {
        shared.changed.wait(cx, || shared.ended.load(Ordering::SeqCst) >> core & 1 != 0).await;
    };
    match core {
        0 => host.write(cx, Lba::new(written), 1, false, &mut buf).await?,
        1 => host.discard(cx, Lba::new(SECTOR), 1).await?,
        _ => {}
    }
    come(core);
    match (way, core) {
        (0, 0) => {
            other(1).await;
            host.read(cx, Lba::new(SECTOR), 1, &mut buf).await?;
        }
        // The ring's drainer comes by.
        (1, 0) => {
            for _ in 0..4 {
                cx.yield_now().await;
            }
        }
        (2, 2) => {
            other(0).await;
            host.discard(cx, Lba::new(SECTOR), 1).await?;
        }
        _ => return Ok(()),
    }
    host.flush(cx).await?;
    shared.last.fetch_max(cx.now().as_ns(), Ordering::SeqCst);
    shared.off.store(true, Ordering::SeqCst);
    shared.changed.wake(cx);
    Ok(())
}

/// What one task of a core does: mostly the few sectors that all want, else a larger part of the drive.
async fn work(cx: &Cx, host: &Host, shared: &Shared, task: u32) -> Result<(), Wrong> {
    let plan = shared.plan;
    let stream = u64::from(cx.core().0) << 32 | u64::from(task);
    let mut rng = Rng::stream(plan.seed, "interleave.work", stream);
    let capacity = host.oracle().capacity();
    let mut buf = Vec::new();
    let collecting = matches!(plan.life, Life::Collecting | Life::Full);
    if plan.life == Life::Full {
        let tasks = u64::from(plan.cores * plan.depth);
        let me = u64::from(cx.core().0 * plan.depth + task);
        for at in (me * 32..capacity).step_by(tasks as usize * 32) {
            let n = 32.min(capacity - at) as u32;
            host.write(cx, Lba::new(at), n, false, &mut buf).await?;
        }
    }
    for _ in 0..plan.requests {
        let hot = rng.below(8) < if collecting { 2 } else { 6 };
        let longest = if collecting { 32 } else { 4 };
        let (from, room) = if hot { (0, SHARED) } else { (SHARED, capacity - SHARED) };
        let at = from + rng.below(room);
        let sectors = 1 + rng.below(longest.min(from + room - at)) as u32;
        let lba = Lba::new(at);
        let [flushes, fua, discards, reads] = plan.mix;
        let writes = 32 - flushes - fua - discards - reads;
        let shares = [flushes, fua, discards, reads, writes];
        let mut drawn = rng.below(32);
        let kind = shares.iter().position(|share| {
            let is_this = drawn < *share;
            drawn = drawn.saturating_sub(*share);
            is_this
        });
        match kind {
            Some(0) => host.flush(cx).await?,
            Some(1) => host.write(cx, lba, sectors, true, &mut buf).await?,
            Some(2) => host.discard(cx, lba, sectors).await?,
            Some(3) => host.read(cx, lba, sectors, &mut buf).await?,
            _ => host.write(cx, lba, sectors, false, &mut buf).await?,
        }
        shared.request_ended(cx.now(), matches!(kind, Some(0 | 1)));
        if shared.is_off() {
            shared.changed.wake(cx);
        }
    }
    Ok(())
}
