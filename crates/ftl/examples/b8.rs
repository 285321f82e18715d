//! B8 of the speed goals: mounting a full drive after a crash, and after a clean stop.
//!
//! Owns: the measurement only. Prints device time, with the device's latencies and steps, and CPU
//! seconds. Usage: `... --example b8 [-- PRESET [CHUNKS_PER_PU]]`; 0 chunks per PU: the preset's own.

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

use flashlane_base::{Lba, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, MountOptions, Pblk};
use flashlane_ocssd::{DeviceSpec, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_rt::{CostTable, Cx, Virtual};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// CPU seconds of this process, and the most memory it had so far, bytes.
fn used() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    ((ticks(11) + ticks(12)) / 100.0, peak * 1024)
}

/// Writes `count` times 16 sectors, in order or anywhere.
async fn write(cx: Cx, dev: Arc<Pblk>, random: bool, count: u64) {
    let next = Rc::new(Cell::new(0u64));
    let mut tasks = Vec::new();
    for task in 0..64u64 {
        let (cx2, dev, next) = (cx.clone(), dev.clone(), next.clone());
        let mut rng = Rng::stream(7, "b8", task);
        tasks.push(cx.spawn_join(async move {
            let places = dev.info().capacity / 16;
            let mut buf = [0u8; 128];
            while next.get() < count {
                let i = next.get();
                next.set(i + 1);
                let at = if random { rng.below(places) } else { i % places };
                let lba = Lba::new(at * 16);
                let io = Io::of(BlockOp::Write, lba, 16, false, &mut buf);
                dev.start(&cx2, io).await.expect("no faults are injected");
            }
        }));
    }
    for task in tasks {
        task.await;
    }
}

fn mount(ssd: &Arc<Ssd>, what: &str) -> (Virtual, Arc<Pblk>) {
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let (before, _) = used();
    let mounted = run.run(async move { Pblk::mount(&cx, device, MountOptions::default()).await });
    let dev = mounted.expect("no stall").expect("a target");
    let (after, peak) = used();
    let done = dev.recovery().expect("it was mounted");
    println!(
        "{what}: {} of device time, {:.2} CPU s, peak memory so far {} MiB",
        run.now(),
        after - before,
        peak >> 20
    );
    println!(
        "  clean {}, {} records, {} lines replayed, {} scanned, {} torn units",
        done.clean,
        done.records,
        done.lines_replayed,
        done.lines_scanned,
        done.torn_units.len()
    );
    for (step, took) in &done.steps {
        println!("  {step}: {took}");
    }
    (run, dev)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let preset = args.next().unwrap_or("femu-32ch".into());
    let chunks: Option<u32> = args.next().and_then(|c| c.parse().ok()).filter(|c| *c > 0);
    let mut spec = DeviceSpec::preset(&preset).expect("a preset");
    if let Some(chunks) = chunks {
        spec = spec.with_chunks_per_pu(chunks);
    }
    let options = SsdOptions { store: StoreKind::Stamps, ..SsdOptions::default() };
    let ssd = Ssd::new(&spec, options).expect("a device");
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let dev = run
        .run(async move { Pblk::create(&cx, device, LogConfig::default()).await })
        .expect("no stall")
        .expect("a target");
    println!("{preset}: {:?}", dev.layout());
    let full = dev.info().capacity / 16;
    for (random, count) in [(false, full), (true, full / 2)] {
        let (cx, dev2) = (run.cx(), dev.clone());
        run.run(write(cx, dev2, random, count)).expect("no stall");
    }
    let now = run.now();
    drop((run, dev));
    ssd.power_cut(now, PowerOn::ClockRestarts);
    let (run, dev) = mount(&ssd, "after a power cut");
    dev.check_consistency().expect("consistent");
    let cx = run.cx();
    let dev2 = dev.clone();
    run.run(async move { dev2.stop(&cx).await }).expect("no stall").expect("a clean stop");
    let now = run.now();
    drop((run, dev));
    ssd.power_cut(now, PowerOn::ClockRestarts);
    let (_, dev) = mount(&ssd, "after a clean stop");
    dev.check_consistency().expect("consistent");
    println!("violations {:?}", ssd.counters().violations);
}
