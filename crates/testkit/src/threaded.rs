//! One seed on real threads: two to eight cores on one device, full contents, faults, several lives.
//!
//! Owns: the run (bring up, every core drives its own workload against the one oracle, stop or cut the power,
//! mount, read everything back, laws and walk), what a seed draws, and runs without end. Promises: seed and stack decide everything but
//! the schedule, which is the machine's: a failure says what to run, and how often it may take. Never: measures; shuttle has the
//! schedules that replay (`tests/interleave`).

use crate::devices;
use crate::harness::OracleSlot;
use crate::host::Host;
use crate::oracle::Oracle;
use crate::swarm::{self, Options};
use crate::witness::Witness;
use flashlane_base::{Ns, Rng};
use flashlane_ftl::layer::{Find, Refusal, Saved, Stop};
use flashlane_ftl::log::{Drain, LogConfig, MapAccess, PoolSet, RingSet};
use flashlane_ftl::pftl::PftlConfig;
use flashlane_ocssd::{Device, DeviceSpec, FaultPlan, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_rt::{Cx, Notify, Threads};
use flashlane_stack::{LayerSpec, Layers, Make, raise};
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Real time after which a seed counts as hung: a hundred times what the longest takes.
const HUNG_AFTER: Duration = Duration::from_secs(180);
/// A device that a target finds too small is enlarged up to here.
const CHUNKS_MAX: u32 = 1024;

/// What runs on the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One ring, one pool, a locked map.
    Pblk,
    Qblk,
    /// QBLK whose writers use what idle rings leave.
    Borrow,
    /// One of QBLK's techniques without the others.
    Part,
    /// The block SSD, whose controller is one for all cores.
    Pftl,
}

impl Target {
    /// All with their names.
    pub const ALL: [(&'static str, Target); 5] = [
        ("pblk", Target::Pblk),
        ("qblk", Target::Qblk),
        ("borrow", Target::Borrow),
        ("part", Target::Part),
        ("pftl", Target::Pftl),
    ];

    pub fn find(name: &str) -> Option<Target> {
        Target::ALL.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
    }

    pub fn name(self) -> &'static str {
        Target::ALL.iter().find(|(_, target)| *target == self).map_or("", |(name, _)| name)
    }

    /// Its settings, for so many cores.
    fn layer(self, rng: &mut Rng, over_provisioning_percent: u32, cores: u32) -> LayerSpec {
        let qblk = LogConfig { pu_budget: devices::one_of(rng, &[1, 2, 8]), ..LogConfig::qblk() };
        let parts = [
            LogConfig { rings: RingSet::PerCore, ..LogConfig::default() },
            LogConfig { pools: PoolSet::PerChannel, ..LogConfig::default() },
            LogConfig { map: MapAccess::Atomic, ..LogConfig::default() },
            LogConfig { drain: Drain::Large, pu_budget: 8, ..LogConfig::default() },
        ];
        let log = match self {
            Target::Pblk => LogConfig::default(),
            Target::Qblk => qblk,
            Target::Borrow => LogConfig { borrow: true, ..qblk },
            Target::Part => parts[rng.below(parts.len() as u64) as usize].clone(),
            Target::Pftl => {
                let capacitors = rng.below(2) == 0;
                // Barriers pad what they close.
                let more = if capacitors { 0 } else { 75 };
                let over_provisioning_percent = over_provisioning_percent.max(more);
                let gc_reads = devices::one_of(rng, &[None, Some(1)]);
                return PftlConfig {
                    over_provisioning_percent,
                    gc_reads,
                    capacitors,
                    ..PftlConfig::default()
                }
                .into();
            }
        };
        LogConfig { over_provisioning_percent, cores, ..log }.into()
    }
}

/// What good runs did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub seeds: u64,
    pub lives: u64,
    /// Those of them that a power cut ended with requests under way.
    pub cuts: u64,
    pub requests: u64,
    pub faults: u64,
    /// Sectors that garbage collection moved.
    pub moved: u64,
    /// Targets on failing media that became read-only.
    pub gave_up: u64,
}

impl Done {
    fn add(&mut self, other: &Done) {
        self.seeds += other.seeds;
        self.lives += other.lives;
        self.cuts += other.cuts;
        self.requests += other.requests;
        self.faults += other.faults;
        self.moved += other.moved;
        self.gave_up += other.gave_up;
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} lives, {} power cuts, {} requests, {} faults, {} sectors moved, {} read-only",
            self.seeds, self.lives, self.cuts, self.requests, self.faults, self.moved, self.gave_up
        )
    }
}

/// A run that showed a defect.
#[derive(Clone, Debug)]
pub struct Failed {
    pub target: Target,
    pub seed: u64,
    /// What was drawn, which life, what was wrong.
    pub what: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, seed) = (self.target.name(), self.seed);
        write!(f, "{name} on threads, seed {seed}: {}", self.what)?;
        let command = "cargo run --release -p flashlane-testkit --example threads --";
        write!(f, "\n  again: {command} --target {name} --seed {seed} --times 200")
    }
}

/// What a seed has drawn.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    cores: u32,
    lives: u32,
    /// All cores draw the same kind of work, on the same few sectors.
    alike: bool,
    effort: u64,
    faults: FaultPlan,
    /// Programs take their time, so that a cut finds some under way.
    timing: bool,
    layer: LayerSpec,
    spec: DeviceSpec,
}

impl Plan {
    fn draw(target: Target, seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, "threaded", target as u64);
        let r = &mut rng;
        let (channels, pus) = devices::one_of(r, &[(1, 1), (2, 1), (2, 2), (3, 1), (4, 2)]);
        let faulty = r.below(2) == 0;
        let preset = DeviceSpec::preset("tiny").expect("built in");
        let over_provisioning_percent = devices::one_of(r, &[30, 50]);
        let cores = 2 + r.below(7) as u32;
        let layer = target.layer(r, over_provisioning_percent, cores);
        Plan {
            seed,
            cores,
            lives: 2 + r.below(2) as u32,
            alike: r.below(2) == 0,
            effort: devices::one_of(r, &[5, 10, 30]),
            faults: if faulty { devices::faults(seed) } else { FaultPlan::default() },
            timing: r.below(4) == 0,
            layer,
            spec: preset.with_parallelism(channels, pus).with_chunks_per_pu(24),
        }
    }

    fn is_faulty(&self) -> bool {
        !self.faults.faults.is_empty()
    }

    fn ssd(&self, spec: &DeviceSpec) -> Arc<Ssd> {
        let options = SsdOptions {
            store: StoreKind::Memory,
            seed: self.seed,
            timing: self.timing,
            faults: self.faults.clone(),
            ..SsdOptions::default()
        };
        Ssd::new(spec, options).expect("a device")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = &self.spec.geometry;
        write!(
            f,
            "{} cores on {}x{} PUs, {:?} {}, timing {}, faults {:?}",
            self.cores,
            g.channels,
            g.pus_per_channel,
            self.layer.kind,
            self.layer.settings,
            self.timing,
            self.faults.faults
        )
    }
}

/// The medium, and what the target sees of it.
type Medium = (Arc<Ssd>, Arc<dyn Device>);

/// The device, over all lives.
struct Machine {
    plan: Plan,
    medium: Mutex<Option<Medium>>,
    /// What capacitors have saved.
    saved: Mutex<Vec<Option<Saved>>>,
    oracle: OracleSlot,
}

impl Machine {
    fn ssd(&self) -> Option<Arc<Ssd>> {
        locked(&self.medium).as_ref().map(|(ssd, _)| ssd.clone())
    }

    fn make(&self, spec: &DeviceSpec) -> Arc<dyn Device> {
        let ssd = self.plan.ssd(spec);
        let device: Arc<dyn Device> = match self.plan.is_faulty() {
            true => Arc::new(Witness::new(ssd.clone(), self.oracle.clone())),
            false => ssd.clone(),
        };
        *locked(&self.medium) = Some((ssd, device.clone()));
        device
    }

    /// Mounts the target, or creates it where there is none yet.
    async fn bring_up(&self, cx: &Cx) -> Result<Layers, String> {
        let specs = [self.plan.layer.clone()];
        let before = locked(&self.medium).as_ref().map(|(_, device)| device.clone());
        if let Some(device) = before {
            let make = Make::Mount { find: Find::default(), saved: locked(&self.saved).clone() };
            match raise(cx, device, &specs, None, &make).await {
                Ok(layers) => return Ok(layers),
                Err(e)
                    if matches!(e.refusal, Refusal::Nothing | Refusal::HalfMade)
                        && self.oracle.get().is_none() => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let mut spec = self.plan.spec.clone();
        loop {
            match raise(cx, self.make(&spec), &specs, None, &Make::Create).await {
                Ok(layers) => return Ok(layers),
                // Its lines, or the buffers of so many cores.
                Err(e)
                    if matches!(e.refusal, Refusal::TooSmall | Refusal::Settings)
                        && spec.geometry.chunks_per_pu < CHUNKS_MAX =>
                {
                    let chunks = spec.geometry.chunks_per_pu * 2;
                    spec = spec.with_chunks_per_pu(chunks);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// What all cores of a life see.
struct Life {
    machine: Arc<Machine>,
    number: u32,
    /// When the power goes off, if not before the end.
    cut_after: Option<Ns>,
    /// Sectors that the medium had programmed before, where it was mounted.
    before: flashlane_stack::Programmed,
    up: OnceLock<Layers>,
    is_off: AtomicBool,
    /// Cores that have done all their work.
    done: AtomicU32,
    requests: AtomicU64,
    gave_up: AtomicBool,
    wrong: Mutex<Option<String>>,
    changed: Notify,
}

impl Life {
    fn state(&self) -> String {
        let up = self.up.get().map_or("not up".into(), Layers::state);
        let done = self.done.load(Ordering::SeqCst);
        format!("life {}, {done} cores done, off {}: {up}", self.number + 1, self.is_off())
    }

    /// It is over: something is wrong.
    fn fail(&self, cx: &Cx, what: String) {
        locked(&self.wrong).get_or_insert(what);
        self.is_off.store(true, Ordering::SeqCst);
        self.changed.wake(cx);
    }

    fn is_off(&self) -> bool {
        self.is_off.load(Ordering::SeqCst)
    }

    async fn on_core(self: Arc<Life>, cx: Cx) {
        let first = cx.core().0 == 0;
        if let (true, Some(at)) = (first, self.cut_after) {
            // From here on: also in the middle of a create or a mount.
            let (life, cx) = (self.clone(), cx.clone());
            cx.clone().spawn(async move {
                cx.sleep(at).await;
                life.is_off.store(true, Ordering::SeqCst);
                life.changed.wake(&cx);
            });
        }
        let finished = Rc::new(Cell::new(false));
        let (life, their_cx, theirs) = (self.clone(), cx.clone(), finished.clone());
        cx.spawn(async move {
            if let Err(what) = life.clone().live(&their_cx).await {
                life.fail(&their_cx, what);
            }
            theirs.set(true);
            life.changed.wake(&their_cx);
        });
        self.changed.wait(&cx, || finished.get() || self.is_off()).await;
    }

    async fn live(self: Arc<Life>, cx: &Cx) -> Result<(), String> {
        let (plan, first) = (&self.machine.plan, cx.core().0 == 0);
        if first {
            let up = self.machine.bring_up(cx).await?;
            up.walk().map_err(|e| format!("brought up: {e}"))?;
            let new = || {
                let (dev, is_durable) = (up.block(), up.acks_are_durable());
                let oracle = Oracle::new(dev.info().capacity, dev.info().content_bytes);
                Arc::new(oracle.with_durable_acks(is_durable))
            };
            self.machine.oracle.get_or_init(new);
            let _ = self.up.set(up);
            self.changed.wake(cx);
        }
        self.changed.wait(cx, || self.up.get().is_some()).await;
        let (Some(up), Some(oracle)) = (self.up.get(), self.machine.oracle.get()) else {
            return Err("no target".into());
        };
        let host = Rc::new(Host::new(up.block(), oracle.clone(), None, plan.is_faulty()));
        let said = |broken: swarm::Broken| broken.to_string();
        let count = |host: &Host| {
            self.requests.fetch_add(host.ended(), Ordering::Relaxed);
            self.gave_up.fetch_or(host.has_given_up(), Ordering::Relaxed);
        };
        if self.number > 0 {
            swarm::read_back(cx.clone(), host.clone()).await.map_err(said)?;
        }
        let stream = u64::from(self.number) << 32 | u64::from(cx.core().0);
        let mine = Rng::stream(plan.seed, "threaded.work", stream).next_u64();
        let drawn = if plan.alike { plan.seed ^ u64::from(self.number) } else { mine };
        let options = Options::draw(drawn, oracle.capacity(), plan.effort);
        // Real sleeps: enough of them to park a core now and then.
        let idle = (options.idle.0.min(1), Ns::from_us(100));
        let options = Options { seed: mine, idle, ..options };
        let driven = swarm::drive(cx.clone(), host.clone(), options, None).await;
        count(&host);
        driven.map_err(said)?;
        self.done.fetch_add(1, Ordering::SeqCst);
        self.changed.wake(cx);
        if !first {
            return Ok(());
        }
        self.changed.wait(cx, || self.done.load(Ordering::SeqCst) == plan.cores).await;
        match up.stop(cx, Stop::Clean).await {
            // It can't make the rest durable: as good as a cut.
            Err(_) if plan.is_faulty() => self.gave_up.store(true, Ordering::Relaxed),
            stopped => stopped.map_err(|e| format!("stopping: {e}"))?,
        }
        up.walk().map_err(|e| format!("stopped: {e}"))?;
        let Some(ssd) = self.machine.ssd() else { return Ok(()) };
        let mut programmed = ssd.counters().programmed;
        if up.target().recovered().is_some() {
            programmed.iter_mut().zip(&self.before).for_each(|(now, before)| *now -= before);
        }
        up.check_laws(&programmed)
    }
}

/// The life that is under way, for who looks at a hang.
type Present = Arc<Mutex<Option<Arc<Life>>>>;

pub fn run(target: Target, seed: u64) -> Result<Done, Failed> {
    run_seen(target, seed, &Present::default())
}

fn run_seen(target: Target, seed: u64, present: &Present) -> Result<Done, Failed> {
    let plan = Plan::draw(target, seed);
    let failed = |what: String| Failed { target, seed, what };
    let machine = Arc::new(Machine {
        plan: plan.clone(),
        medium: Mutex::default(),
        saved: Mutex::default(),
        oracle: OracleSlot::default(),
    });
    let mut done = Done { seeds: 1, ..Done::default() };
    let mut rng = Rng::stream(seed, "threaded.lives", 0);
    for number in 0..plan.lives {
        let magnitude = 16 + rng.below(11);
        let drawn = Ns::from_ns(rng.below(1 << magnitude));
        let cut_after = (rng.below(3) > 0 && number + 1 < plan.lives).then_some(drawn);
        let ended = live(&machine, number, cut_after, &mut done, present);
        ended.map_err(|what| {
            failed(format!("life {} of {} on {plan}: {what}", number + 1, plan.lives))
        })?;
    }
    done.faults = machine.ssd().map_or(0, |ssd| ssd.faults_happened().iter().sum());
    Ok(done)
}

fn live(
    machine: &Arc<Machine>,
    number: u32,
    cut_after: Option<Ns>,
    done: &mut Done,
    present: &Present,
) -> Result<(), String> {
    let plan = &machine.plan;
    let life = Arc::new(Life {
        machine: machine.clone(),
        number,
        cut_after,
        before: machine.ssd().map_or_else(Default::default, |ssd| ssd.counters().programmed),
        up: OnceLock::new(),
        is_off: AtomicBool::new(false),
        done: AtomicU32::new(0),
        requests: AtomicU64::new(0),
        gave_up: AtomicBool::new(false),
        wrong: Mutex::default(),
        changed: Notify::new(),
    });
    #[allow(clippy::disallowed_methods)] // the clock of the threads, seen from outside
    let begun = Instant::now();
    *locked(present) = Some(life.clone());
    let threads = Threads::new(plan.cores, plan.seed ^ u64::from(number) << 48);
    let run = || threads.run(|cx| life.clone().on_core(cx));
    let ended = catch_unwind(AssertUnwindSafe(run));
    // Behind whatever a core has called the time.
    let now = Ns::from_ns(begun.elapsed().as_nanos() as u64);
    ended.map_err(|panic| format!("panic: {}", crate::harness::text_of(&*panic)))?;
    if let Some(what) = locked(&life.wrong).take() {
        return Err(what);
    }
    done.lives += 1;
    done.requests += life.requests.load(Ordering::Relaxed);
    done.moved += life.up.get().map_or(0, |up| up.stats().gc_moved);
    done.gave_up += u64::from(life.gave_up.load(Ordering::Relaxed));
    done.cuts += u64::from(life.is_off());
    let is_cut = life.is_off() || life.gave_up.load(Ordering::Relaxed);
    if let Some(up) = life.up.get() {
        *locked(&machine.saved) = up.power_lost();
    }
    drop(life);
    *locked(present) = None;
    if let Some(ssd) = machine.ssd() {
        if let Some(violation) = ssd.violations().first() {
            return Err(format!("the medium was not used as its rules say: {violation}"));
        }
        ssd.power_cut(now, PowerOn::ClockRestarts);
    }
    if let (true, Some(oracle)) = (is_cut, machine.oracle.get()) {
        oracle.power_cut();
    }
    Ok(())
}

/// Runs seeds from `first` on, one after the other, each on all the targets, until `is_over`; the first failure ends it. A
/// seed that hangs is a failure, and its threads are left behind: the caller ends the process.
pub fn soak(
    targets: &[Target],
    first: u64,
    is_over: impl Fn(&Done) -> bool,
) -> (Done, Option<Failed>) {
    let mut all = Done::default();
    for seed in first.. {
        for target in targets.iter().copied() {
            if is_over(&all) {
                return (all, None);
            }
            match run_watched(target, seed) {
                Ok(done) => all.add(&done),
                Err(failed) => return (all, Some(failed)),
            }
        }
    }
    (all, None)
}

/// As [`run`], but not for ever.
pub fn run_watched(target: Target, seed: u64) -> Result<Done, Failed> {
    let (told, ended) = mpsc::channel();
    let present = Present::default();
    let theirs = present.clone();
    std::thread::spawn(move || {
        let _ = told.send(run_seen(target, seed, &theirs));
    });
    ended.recv_timeout(HUNG_AFTER).unwrap_or_else(|_| {
        let plan = Plan::draw(target, seed);
        let life = locked(&present).as_ref().map(|life| life.state()).unwrap_or_default();
        Err(Failed { target, seed, what: format!("hung for {HUNG_AFTER:?}: {life}; {plan}") })
    })
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
