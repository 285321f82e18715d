//! The same stacks, oracle and workloads on real threads.
//!
//! Owns: the claim that nothing depends on one thread polling everything. Promises: several cores
//! at once on one device, on a medium that takes no time, so that host code is all that happens.
//! Never: measures; a lost wake-up hangs here.

use flashlane_base::Rng;
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::layer::Stop;
use flashlane_ftl::log::{Drain, LogConfig, MapAccess, PoolSet, RingSet};
use flashlane_ftl::pftl::PftlConfig;
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{Cx, Notify, Threads};
use flashlane_stack::{LayerSpec, Make, raise};
use flashlane_testkit::swarm::{self, Boxed, Options};
use flashlane_testkit::{Host, Oracle, Ram};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

const CORES: u32 = 3;

/// A stack that core 0 has brought up, and how it takes it down.
struct Built {
    dev: Arc<dyn BlockDev>,
    stop: Box<dyn Fn(Cx) -> Boxed<'static, Result<(), String>>>,
}

/// What all cores see.
struct Shared {
    stack: OnceLock<(Arc<dyn BlockDev>, Arc<Oracle>)>,
    done: AtomicU32,
    changed: Notify,
}

/// Each core drives its own workload of `seed` against the one device that core 0 has built.
fn swarm_on_threads(
    seed: u64,
    build: impl Fn(Cx) -> Boxed<'static, Built> + Send + Sync + 'static,
) {
    let shared = Arc::new(Shared {
        stack: OnceLock::new(),
        done: AtomicU32::new(0),
        changed: Notify::new(),
    });
    let build = Arc::new(build);
    Threads::new(CORES, seed).run(|cx| one_core(cx, shared.clone(), seed, build.clone()));
}

async fn one_core(
    cx: Cx,
    shared: Arc<Shared>,
    seed: u64,
    build: Arc<impl Fn(Cx) -> Boxed<'static, Built>>,
) {
    let mut built = None;
    if cx.core().0 == 0 {
        let new = build(cx.clone()).await;
        let info = new.dev.info();
        let oracle = Arc::new(Oracle::new(info.capacity, info.content_bytes));
        assert!(shared.stack.set((new.dev.clone(), oracle)).is_ok());
        shared.changed.wake(&cx);
        built = Some(new);
    }
    shared.changed.wait(&cx, || shared.stack.get().is_some()).await;
    let (dev, oracle) = shared.stack.get().expect("set above").clone();
    let host = Rc::new(Host::new(dev, oracle.clone(), None, false));
    let mine = Rng::stream(seed, "threads", cx.core().0 as u64).next_u64();
    let mut options = Options::draw(mine, oracle.capacity(), 10);
    // Real sleeps: enough of them to park a core now and then.
    options.idle = (options.idle.0.min(1), flashlane_base::Ns::from_us(100));
    let driven = swarm::drive(cx.clone(), host.clone(), options, None).await;
    driven.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    shared.done.fetch_add(1, Ordering::SeqCst);
    shared.changed.wake(&cx);
    let Some(built) = built else {
        return;
    };
    shared.changed.wait(&cx, || shared.done.load(Ordering::SeqCst) == CORES).await;
    let read = swarm::read_back(cx.clone(), host).await;
    read.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    (built.stop)(cx).await.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
}

fn tiny() -> Arc<Ssd> {
    let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(40);
    let options = SsdOptions { timing: false, ..SsdOptions::default() };
    Ssd::new(&spec, options).expect("a device")
}

fn zero_violations(ssd: &Ssd) -> Result<(), String> {
    ssd.violations().first().map_or(Ok(()), |v| Err(v.to_string()))
}

#[test]
fn ram() {
    for seed in 0..10 {
        swarm_on_threads(seed, |_| {
            Box::pin(async {
                Built {
                    dev: Arc::new(Ram::new(2000, 8, flashlane_base::Ns::from_us(5), 1)),
                    stop: Box::new(|_| Box::pin(async { Ok(()) })),
                }
            })
        });
    }
}

/// An FTL with these settings.
fn ftl(cx: Cx, layer: LayerSpec) -> Boxed<'static, Built> {
    Box::pin(async move {
        let ssd = tiny();
        let layers = raise(&cx, ssd.clone(), &[layer], None, &Make::Create).await.expect("fits");
        Built {
            dev: layers.block(),
            stop: Box::new(move |cx| {
                let (layers, medium) = (layers.clone(), ssd.clone());
                Box::pin(async move {
                    layers.stop(&cx, Stop::Clean).await.map_err(|e| e.to_string())?;
                    zero_violations(&medium)?;
                    layers.check_laws(&medium.counters().programmed)?;
                    layers.walk()
                })
            }),
        }
    })
}

#[test]
fn pftl() {
    for seed in 0..10 {
        swarm_on_threads(seed, |cx| ftl(cx, PftlConfig::default().into()));
    }
}

fn spare(config: LogConfig) -> LayerSpec {
    LogConfig { over_provisioning_percent: 50, ..config }.into()
}

#[test]
fn pblk() {
    for seed in 0..10 {
        swarm_on_threads(seed, |cx| ftl(cx, spare(LogConfig::default())));
    }
}

#[test]
fn qblk() {
    for seed in 0..20 {
        swarm_on_threads(seed, |cx| ftl(cx, spare(LogConfig::qblk())));
    }
}

/// Each of QBLK's techniques without the others, and few writers on idle rings.
#[test]
fn qblk_in_parts() {
    let rings = LogConfig { rings: RingSet::PerCore, borrow: true, ..LogConfig::default() };
    let pools = LogConfig { pools: PoolSet::PerChannel, ..LogConfig::default() };
    let map = LogConfig { map: MapAccess::Atomic, ..LogConfig::default() };
    let drain = LogConfig { drain: Drain::Large, pu_budget: 8, ..LogConfig::default() };
    for (seed, config) in (0..).zip([rings, pools, map, drain].into_iter().cycle().take(12)) {
        swarm_on_threads(seed, move |cx| ftl(cx, spare(config.clone())));
    }
}
