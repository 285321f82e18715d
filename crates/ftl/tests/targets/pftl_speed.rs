//! How fast the device FTL simulates: not a test that can fail, numbers to compare.
//!
//! `cargo test --release -p flashlane-ftl --test targets pftl_speed -- --ignored --nocapture`
//!
//! The device of docs/DECISIONS.md, Devices of comparisons (16 GiB, 64 dies, 12% spare), stamps, 4 KiB requests at queue
//! depth 32: a sequential fill, random overwrites to steady state and beyond, random reads. Per
//! second of CPU time of this thread; every read is compared.

use crate::prelude::*;
use flashlane_ocssd::Device;

const DEPTH: u64 = 32;

/// CPU time of this thread in seconds, from the scheduler's own account.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    ns.unwrap_or(0) as f64 / 1e9
}

#[derive(Clone, Copy, PartialEq)]
enum Load {
    Fill,
    Overwrite,
    Read,
}

/// `count` requests of one sector each from `DEPTH` tasks; returns CPU seconds.
async fn drive(ftl: &Arc<Pftl>, cx: &Cx, load: Load, count: u64, seed: u64) -> f64 {
    let from = cpu_seconds();
    let capacity = ftl.info().capacity;
    let next = Rc::new(Cell::new(0u64));
    let rng = Rc::new(RefCell::new(Rng::new(seed)));
    let tasks: Vec<_> = (0..DEPTH)
        .map(|_| {
            let (ftl, task, next, rng) = (ftl.clone(), cx.clone(), next.clone(), rng.clone());
            cx.spawn_join(async move {
                loop {
                    let i = next.get();
                    if i == count {
                        return;
                    }
                    next.set(i + 1);
                    let (op, lba) = match load {
                        Load::Fill => (BlockOp::Write, i),
                        Load::Overwrite => (BlockOp::Write, rng.borrow_mut().below(capacity)),
                        Load::Read => (BlockOp::Read, rng.borrow_mut().below(capacity)),
                    };
                    let mut buf = (lba + 1).to_le_bytes();
                    let io = Io::of(op, Lba::new(lba), 1, false, &mut buf);
                    ftl.start(&task, io).await.expect("no faults here");
                    assert_eq!(u64::from_le_bytes(buf), lba + 1);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    cpu_seconds() - from
}

async fn rounds(ftl: &Arc<Pftl>, cx: &Cx) {
    let capacity = ftl.info().capacity;
    let fill = drive(ftl, cx, Load::Fill, capacity, 1).await;
    println!("fill: {:.2} M sectors/s", capacity as f64 / fill / 1e6);
    for round in 0..6 {
        let (before, t0) = (ftl.stats(), cx.now());
        let writes = capacity / 2;
        let took = drive(ftl, cx, Load::Overwrite, writes, 2 + round).await;
        let after = ftl.stats();
        let programmed = (after.programmed_total() - before.programmed_total()) as f64;
        println!(
            "overwrite: {:.2} M programmed/s, {:.2} M writes/s, amplification {:.3}, {:.0} k IOPS",
            programmed / took / 1e6,
            writes as f64 / took / 1e6,
            programmed / writes as f64,
            writes as f64 / (cx.now() - t0).as_secs_f64() / 1e3,
        );
    }
    for round in 0..2 {
        let took = drive(ftl, cx, Load::Read, capacity / 2, 20 + round).await;
        println!("read: {:.2} M/s", (capacity / 2) as f64 / took / 1e6);
    }
}

fn measure(spec: DeviceSpec) {
    measure_with(spec, PftlConfig::default().over_provisioning_percent);
}

fn measure_with(spec: DeviceSpec, over_provisioning_percent: u32) {
    let config = PftlConfig { over_provisioning_percent, ..PftlConfig::default() };
    let ssd = Ssd::new(&spec, SsdOptions::default()).expect("a device");
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let ended = run.run(async move {
        let device: Arc<dyn Device> = device;
        let ftl = Pftl::create(&cx, device, config).expect("an ftl");
        rounds(&ftl, &cx).await;
        ftl.walk().expect("the maps agree");
        ftl.details()
    });
    let details = ended.expect("nobody waits for ever");
    let (now, counters) = (run.now(), ssd.counters());
    let busy = |part: fn(&flashlane_ocssd::DieBusy) -> flashlane_base::Ns| {
        let sum: f64 = counters.dies.iter().map(|d| part(d).as_secs_f64()).sum();
        100.0 * sum / counters.dies.len() as f64 / now.as_secs_f64()
    };
    println!(
        "dies over {now}: {:.0}% programming, {:.0}% erasing, {:.0}% reading",
        busy(|d| d.program),
        busy(|d| d.erase),
        busy(|d| d.read)
    );
    println!(
        "polls {}, victims {}, invalid share {:.3}",
        run.polls(),
        details.ftl.gc_victims,
        details.ftl.victim_invalid_share().unwrap_or(0.0)
    );
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
    assert_eq!(ssd.counters().early_reads, 0);
}

#[test]
#[ignore = "numbers, not a test; run in release"]
fn speed_on_the_device_of_the_peers() {
    measure(DeviceSpec::preset("peers-16g").expect("a preset"));
}

/// The same in small, for `valgrind --tool=callgrind`: instructions are counted repeatably.
#[test]
#[ignore = "numbers, not a test; run in release"]
fn speed_on_an_eighth_of_it() {
    let spec = DeviceSpec::preset("peers-16g").expect("a preset");
    measure(spec.with_chunks_per_pu(32));
}

/// The data sheet's steady state: 75,000 random writes per second at 15% spare.
#[test]
#[ignore = "numbers, not a test; run in release"]
fn steady_state_of_a_p3700() {
    let spec = DeviceSpec::preset("p3700").expect("a preset").with_chunks_per_pu(200);
    measure_with(spec, 15);
}
