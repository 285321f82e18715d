//! What a request costs the allocator: nothing.
//!
//! Owns: a global allocator that counts, and the tests. Each brings a layer to its steady state, with
//! garbage collection at work, and looks at the count whenever a request ends. Promises: what is counted
//! is this thread's. Never: counts bytes. A line that opens or closes, a checkpoint and the log do
//! allocate, in bursts: what must not is what lies between them.

use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, Pblk};
use flashlane_ftl::pftl::{Pftl, PftlConfig};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{CostTable, Cx, Threads, Virtual};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
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
/// Returns how many of them ended without an allocation since another ended.
async fn ask(cx: &Cx, dev: &Arc<dyn BlockDev>, op: BlockOp, count: u64, seed: u64) -> u64 {
    let free = Rc::new(Cell::new((0, 0)));
    let tasks: Vec<_> = (0..DEPTH)
        .map(|task| {
            let (cx, dev, free) = (cx.clone(), dev.clone(), free.clone());
            cx.clone().spawn_join(async move {
                let mut rng = Rng::stream(seed, "allocations", task);
                let mut buf = [7; 64];
                for _ in 0..count / DEPTH {
                    let sectors = 1 + rng.below(8) as u32;
                    let lba = Lba::new(rng.below(dev.info().capacity - 8));
                    let memory = &mut buf[..sectors as usize * 8];
                    let done = dev.start(&cx, Io::of(op, lba, sectors, false, memory)).await;
                    done.expect("a request");
                    let (requests, before) = free.get();
                    let now = ALLOCATIONS.get();
                    free.set((requests + u64::from(now == before), now));
                    // Also where nothing takes time the others' turn comes.
                    cx.yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    free.get().0
}

/// Requests of each operation that nobody allocated beside, in the steady state.
async fn counted(cx: Cx, dev: Arc<dyn BlockDev>) -> [(BlockOp, u64); 3] {
    let rounds = dev.info().capacity / 2;
    ask(&cx, &dev, BlockOp::Write, rounds, 1).await;
    ask(&cx, &dev, BlockOp::Read, REQUESTS, 2).await;
    ask(&cx, &dev, BlockOp::Discard, REQUESTS, 3).await;
    ask(&cx, &dev, BlockOp::Write, rounds, 4).await;
    let mut out = [(BlockOp::Read, 0), (BlockOp::Write, 0), (BlockOp::Discard, 0)];
    for (op, free) in &mut out {
        cx.sleep(Ns::from_ms(20)).await; // what was begun ends
        *free = ask(&cx, &dev, *op, REQUESTS, 5).await;
    }
    out
}

/// With lines of 8,192 sectors: what a line or a checkpoint allocates is shared by many requests.
fn device() -> Arc<Ssd> {
    let mut spec = DeviceSpec::preset("peers-16g").expect("a preset");
    spec = spec.with_parallelism(2, 2).with_chunks_per_pu(48);
    spec.geometry.pages_per_block *= 8;
    let options = SsdOptions { timing: false, ..SsdOptions::default() };
    Ssd::new(&spec, options).expect("a device")
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
    println!("{what}: without an allocation: {counted:?} of {REQUESTS}");
    for (op, free) in counted {
        let most = if op == BlockOp::Read { 95 } else { 80 };
        assert!(free * 100 >= REQUESTS * most, "{what}: {op:?} {free} of {REQUESTS}");
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
