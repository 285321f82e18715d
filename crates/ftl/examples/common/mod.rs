//! What the measurements have in common: their allocator, what this process has used, a device, writes.

use flashlane_base::{Lba, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_rt::Cx;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// CPU seconds of this process, and the most memory it had so far, bytes.
pub(crate) fn used() -> (f64, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    ((ticks(11) + ticks(12)) / 100.0, peak * 1024)
}

/// A device of a preset, with this many chunks per PU or its own.
pub(crate) fn device(preset: &str, chunks: Option<u32>) -> Arc<Ssd> {
    let mut spec = DeviceSpec::preset(preset).expect("a preset");
    if let Some(chunks) = chunks {
        spec = spec.with_chunks_per_pu(chunks);
    }
    let options = SsdOptions { store: StoreKind::Stamps, ..SsdOptions::default() };
    Ssd::new(&spec, options).expect("a device")
}

/// Writes `count` times 16 sectors, in order or anywhere.
#[allow(dead_code)] // b1 has writes of its own
pub(crate) async fn write<D: BlockDev + 'static>(cx: Cx, dev: Arc<D>, random: bool, count: u64) {
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
