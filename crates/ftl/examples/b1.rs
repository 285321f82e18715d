//! B1 of the speed goals: 4 KiB random writes, QD32, steady state with GC, stamps, one core.
//!
//! Owns: the measurement only. Prints programmed sectors, host writes and reads per CPU second.
//! Usage: `... --example b1 [-- PRESET [TIMES [CHUNKS_PER_PU [READS [WRITES]]]]]`. 0 chunks per PU: the
//! preset's own; WRITES: random writes each time, instead of half the capacity, and no check at the
//! end (for counting instructions under callgrind).

mod common;

use flashlane_base::{Lba, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, Pblk};
use flashlane_rt::{CostTable, Cx, Virtual};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

async fn phase(cx: &Cx, dev: &Arc<Pblk>, op: BlockOp, random: bool, count: u64, salt: u64) {
    let left = Rc::new(Cell::new(count));
    let next = Rc::new(Cell::new(0u64));
    let mut tasks = Vec::new();
    for task in 0..32u64 {
        let (cx2, dev, left, next) = (cx.clone(), dev.clone(), left.clone(), next.clone());
        let mut rng = Rng::stream(salt, "b1", task);
        tasks.push(cx.spawn_join(async move {
            let capacity = dev.info().capacity;
            let mut buf = [0u8; 8];
            let mut draw = || {
                left.set(left.get().checked_sub(1)?);
                let lba = if random { rng.below(capacity) } else { next.get() };
                next.set(next.get() + 1);
                // What a host does that knows its queue: the request after this one.
                dev.expect(op, Lba::new(lba));
                Some(lba)
            };
            let mut ahead = draw();
            while let Some(lba) = ahead {
                ahead = draw();
                buf.copy_from_slice(&lba.to_le_bytes());
                let io = Io::of(op, Lba::new(lba), 1, false, &mut buf);
                dev.start(&cx2, io).await.expect("no faults are injected");
                assert!(op != BlockOp::Read || u64::from_le_bytes(buf) == lba, "wrong data");
            }
        }));
    }
    for t in tasks {
        t.await;
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let preset = args.next().unwrap_or("peers-16g".into());
    let times: u64 = args.next().and_then(|t| t.parse().ok()).unwrap_or(4);
    let chunks: Option<u32> = args.next().and_then(|c| c.parse().ok()).filter(|c| *c > 0);
    let reads: u64 = args.next().and_then(|r| r.parse().ok()).unwrap_or(1_000_000);
    let writes: Option<u64> = args.next().and_then(|w| w.parse().ok());
    let ssd = common::device(&preset, chunks);
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    let config = LogConfig { over_provisioning_percent: 12, ..LogConfig::default() };
    let dev = run
        .run({
            let (cx, ssd) = (cx.clone(), ssd.clone());
            async move { Pblk::create(&cx, ssd, config).await }
        })
        .expect("no stall")
        .expect("a target");
    println!("{:?}", dev.layout());
    let capacity = dev.info().capacity;
    let step = |name: &str, op, random, count: u64, salt| {
        let (p0, w0, c0) =
            (dev.stats().programmed_total(), dev.stats().host_written, common::used().0);
        let (polls, t0) = (run.polls(), run.now());
        let (cx, dev2) = (cx.clone(), dev.clone());
        run.run(async move { phase(&cx, &dev2, op, random, count, salt).await }).expect("no stall");
        let (s, secs) = (dev.stats(), common::used().0 - c0);
        let programmed = (s.programmed_total() - p0) as f64;
        println!(
            "{name}: {:.2} M programmed/s, {:.2} M host/s, {secs:.2} CPU s, WA {:.3}, \
             {:.2} polls/request, {:.0} simulated kIOPS",
            programmed / secs / 1e6,
            count as f64 / secs / 1e6,
            programmed / (s.host_written - w0).max(1) as f64,
            (run.polls() - polls) as f64 / count as f64,
            count as f64 / (run.now() - t0).as_secs_f64() / 1e3,
        );
    };
    step("sequential fill", BlockOp::Write, false, capacity, 1);
    for i in 0..times {
        step("random writes ", BlockOp::Write, true, writes.unwrap_or(capacity / 2), 2 + i);
    }
    step("random reads  ", BlockOp::Read, true, reads, 99);
    println!("{:?}", dev.stats());
    println!("violations {:?}", ssd.counters().violations);
    if writes.is_none() {
        dev.check_consistency().expect("consistent");
    }
    dev.stats().check_host_law().expect("host law");
    dev.stats().check_media_law(&ssd.counters().programmed).expect("media law");
}
