//! The block SSD's part of B8: mounting a full drive after a clean stop, by its snapshot and by the scan.
//!
//! Owns: the measurement only. Prints device time by step, and CPU seconds. Usage:
//! `... --example b8_pftl [-- PRESET [CHUNKS_PER_PU [volatile]]]`; 0 chunks per PU: the preset's own;
//! `volatile`: a buffer without capacitors.

mod common;

use common::{used, write};
use flashlane_base::Ns;
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::pftl::{Pftl, PftlConfig};
use flashlane_ocssd::{PowerOn, Ssd};
use flashlane_rt::{CostTable, Virtual};
use std::sync::Arc;

fn mount(ssd: &Arc<Ssd>, config: &PftlConfig, what: &str) -> (Virtual, Arc<Pftl>) {
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device, config) = (run.cx(), ssd.clone(), config.clone());
    let before = used().0;
    let mounted = run.run(async move { Pftl::mount(&cx, device, config, None).await });
    let dev = mounted.expect("no stall").expect("a device");
    let did = dev.recovery().expect("it was mounted");
    println!("{what}: {} of device time, {:.2} CPU s", run.now(), used().0 - before);
    println!("  from snapshot {}, {:?}", did.from_snapshot, did.no_snapshot);
    println!("  {} records read, {} sectors padded", did.scanned_sectors, did.padded_sectors);
    for (step, took) in &did.steps {
        println!("  {step}: {took}");
    }
    dev.walk().expect("consistent");
    (run, dev)
}

/// Ends a life, with or without a snapshot; returns the time it took.
fn stop(ssd: &Ssd, run: Virtual, dev: Arc<Pftl>, snapshot: bool) -> Ns {
    let (cx, from) = (run.cx(), run.now());
    let ended = run.run(async move {
        match snapshot {
            true => dev.stop(&cx).await,
            false => dev.quiesce(&cx).await,
        }
    });
    ended.expect("no stall");
    let now = run.now();
    ssd.power_cut(now, PowerOn::ClockRestarts);
    now - from
}

fn main() {
    let mut args = std::env::args().skip(1);
    let preset = args.next().unwrap_or("femu-32ch".into());
    let chunks: Option<u32> = args.next().and_then(|c| c.parse().ok()).filter(|c| *c > 0);
    let volatile = args.next().is_some_and(|arg| arg == "volatile");
    let config = PftlConfig { capacitors: !volatile, ..PftlConfig::default() };
    let config = match volatile {
        true => PftlConfig { over_provisioning_percent: 40, ..config },
        false => config,
    };
    let ssd = common::device(&preset, chunks);
    let run = Virtual::new(1, 1, CostTable::zero());
    let dev = Pftl::create(&run.cx(), ssd.clone(), config.clone()).expect("a device that fits");
    println!("{preset}: {} sectors, capacitors {}", dev.info().capacity, config.capacitors);
    let full = dev.info().capacity / 16;
    for (random, count) in [(false, full), (true, full / 2)] {
        let (cx, dev2) = (run.cx(), dev.clone());
        run.run(write(cx, dev2, random, count)).expect("no stall");
    }
    let took = stop(&ssd, run, dev, true);
    println!("stop with a snapshot: {took}");
    let (run, dev) = mount(&ssd, &config, "after a stop with a snapshot");
    let took = stop(&ssd, run, dev, true);
    println!("stop of an idle drive with a snapshot: {took}");
    let (run, dev) = mount(&ssd, &config, "once more");
    let took = stop(&ssd, run, dev, false);
    println!("stop of an idle drive without: {took}");
    mount(&ssd, &config, "after a stop without a snapshot");
    println!("violations {:?}", ssd.counters().violations);
}
