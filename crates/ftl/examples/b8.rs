//! B8 of the speed goals: mounting a full drive after a crash, and after a clean stop.
//!
//! Owns: the measurement only. Prints device time, with the device's latencies and steps, and CPU
//! seconds. Usage: `... --example b8 [-- PRESET [CHUNKS_PER_PU]]`; 0 chunks per PU: the preset's own.

mod common;

use common::{used, write};
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::log::{LogConfig, MountOptions, Pblk};
use flashlane_ocssd::{PowerOn, Ssd};
use flashlane_rt::{CostTable, Virtual};
use std::sync::Arc;

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
    let ssd = common::device(&preset, chunks);
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
