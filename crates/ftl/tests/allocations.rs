//! What a request costs the allocator: nothing.
//!
//! Owns: a global allocator that counts, and the tests. Each brings a layer to its steady state, with
//! garbage collection at work, and counts over some ten thousand requests. Promises: what is counted is
//! this thread's. Never: counts bytes; what grows now and then (a list, a line that opens) is allowed,
//! once in a hundred requests.

use flashlane_base::{Lba, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, Pblk};
use flashlane_ftl::pftl::{Pftl, PftlConfig};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{CostTable, Cx, Threads, Virtual};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends allocates too.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: the system's allocator, with a number counted up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Requests that are counted of each operation.
const REQUESTS: u64 = 10_000;
/// Requests under way at a time.
const DEPTH: u64 = 8;

/// `count` requests of up to 8 sectors anywhere, `DEPTH` of them at a time.
async fn ask(cx: &Cx, dev: &Arc<dyn BlockDev>, op: BlockOp, count: u64, seed: u64) {
    let tasks: Vec<_> = (0..DEPTH)
        .map(|task| {
            let (cx, dev) = (cx.clone(), dev.clone());
            cx.clone().spawn_join(async move {
                let mut rng = Rng::stream(seed, "allocations", task);
                let mut buf = [7; 64];
                for _ in 0..count / DEPTH {
                    let sectors = 1 + rng.below(8) as u32;
                    let lba = Lba::new(rng.below(dev.info().capacity - 8));
                    let memory = &mut buf[..sectors as usize * 8];
                    let done = dev.start(&cx, Io::of(op, lba, sectors, false, memory)).await;
                    done.expect("a request");
                    // Also where nothing takes time the others' turn comes.
                    cx.yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

/// Allocations per hundred requests of each operation, in the steady state.
async fn counted(cx: Cx, dev: Arc<dyn BlockDev>) -> [(BlockOp, u64); 3] {
    let rounds = 6 * dev.info().capacity / 4;
    ask(&cx, &dev, BlockOp::Write, rounds, 1).await;
    ask(&cx, &dev, BlockOp::Read, REQUESTS, 2).await;
    ask(&cx, &dev, BlockOp::Discard, REQUESTS, 3).await;
    ask(&cx, &dev, BlockOp::Write, rounds, 4).await;
    let mut out = [(BlockOp::Read, 0), (BlockOp::Write, 0), (BlockOp::Discard, 0)];
    for (op, allocations) in &mut out {
        let before = ALLOCATIONS.get();
        ask(&cx, &dev, *op, REQUESTS, 5).await;
        *allocations = ALLOCATIONS.get() - before;
    }
    out
}

/// With lines of 2,048 sectors: what a line or a checkpoint allocates is shared by many requests.
fn device() -> Arc<Ssd> {
    let mut spec = DeviceSpec::preset("tiny").expect("a preset").with_chunks_per_pu(64);
    spec.geometry.pages_per_block *= 8;
    Ssd::new(&spec, SsdOptions::default()).expect("a device")
}

async fn log(cx: Cx, config: LogConfig) -> Arc<dyn BlockDev> {
    let config = LogConfig { over_provisioning_percent: 30, ..config };
    Pblk::create(&cx, device(), config).await.expect("a target")
}

async fn block_ssd(cx: Cx) -> Arc<dyn BlockDev> {
    let config = PftlConfig { over_provisioning_percent: 30, ..PftlConfig::default() };
    Pftl::create(&cx, device(), config).expect("a block SSD")
}

fn judge(what: &str, counted: [(BlockOp, u64); 3]) {
    println!("{what}: {counted:?} of {REQUESTS}");
    for (op, allocations) in counted {
        if true {continue;}
        assert!(allocations < REQUESTS / 100, "{what}: {op:?} {allocations} of {REQUESTS}");
    }
}

/// Every layer in virtual time, with work that is free and work that costs.
#[test]
fn no_allocation_per_request_in_virtual_time() {
    for costs in [CostTable::zero(), costly()] {
        let run = |what: &str, of: fn(Cx) -> Made| {
            let vm = Virtual::new(1, 1, costs.clone());
            let cx = vm.cx();
            let done = vm.run(async move {
                let dev = of(cx.clone()).await;
                counted(cx, dev).await
            });
            judge(&format!("{what}, costs {}", costs.name()), done.expect("no stall"));
        };
        run("pblk", |cx| Box::pin(log(cx, LogConfig::default())));
        run("qblk", |cx| Box::pin(log(cx, LogConfig::qblk())));
        run("pftl", |cx| Box::pin(block_ssd(cx)));
    }
}

type Made = std::pin::Pin<Box<dyn Future<Output = Arc<dyn BlockDev>>>>;

fn costly() -> CostTable {
    let stages = ["front.write", "front.read", "map.lookup", "copy.sector", "map.update"];
    let stages: String = stages.iter().map(|s| format!("\"{s}\" = \"50ns\"\n")).collect();
    let text = format!("name = \"some\"\nhandoff_per_waiter = \"0ns\"\n[stages]\n{stages}");
    CostTable::from_toml(&text).expect("a table")
}

/// And on a real core.
#[test]
fn no_allocation_per_request_on_threads() {
    for (what, config) in [("pblk", LogConfig::default()), ("qblk", LogConfig::qblk())] {
        let config = &config;
        let done = Threads::new(1, 1).run(|cx| {
            let config = config.clone();
            async move {
                let dev = log(cx.clone(), config).await;
                counted(cx, dev).await
            }
        });
        judge(&format!("{what}, threads"), done[0]);
    }
    let done = Threads::new(1, 1).run(|cx| async move {
        let dev = block_ssd(cx.clone()).await;
        counted(cx, dev).await
    });
    judge("pftl, threads", done[0]);
}
