//! B3 and B4 of the speed goals: what pblk costs per 4 KiB write and read, live, one thread, on a
//! device that takes no time; 64 MiB working set, real bytes, checksums on.
//!
//! Owns: the measurement only. Prints the time per operation, and that time less one copy and the
//! CRC of a sector, both measured in the same run over the same working set.
//! Usage: `cargo run --release -p flashlane-ftl --example b3`

use flashlane_base::{Lba, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, Pblk};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_rt::{Cx, Threads};
use std::hint::black_box;
use std::sync::Arc;

const SET_SECTORS: u64 = (64 << 20) / SECTOR_BYTES as u64;
const OPERATIONS: u64 = 200_000;
const ROUNDS: usize = 5;

/// CPU time of this thread in nanoseconds: on a busy machine the wall clock measures the others.
fn cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("Linux has schedstat")
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

async fn timed(cx: &Cx, dev: &Arc<Pblk>, op: BlockOp, rng: &mut Rng, buf: &mut [u8]) -> f64 {
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        let lba = Lba::new(rng.below(SET_SECTORS));
        let io = Io { op, lba, sectors: 1, fua: false, buf: &mut *buf };
        dev.start(cx, io).await.expect("no faults are injected");
    }
    (cpu_ns() - start) / OPERATIONS as f64
}

/// One copy of a sector from a random place of the working set, and one CRC32C of it.
fn copy_and_crc(rng: &mut Rng) -> (f64, f64) {
    let set = vec![7u8; SET_SECTORS as usize * SECTOR_BYTES];
    let mut to = vec![0u8; SECTOR_BYTES];
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        let at = rng.below(SET_SECTORS) as usize * SECTOR_BYTES;
        to.copy_from_slice(&set[at..at + SECTOR_BYTES]);
        black_box(&to);
    }
    let copy = (cpu_ns() - start) / OPERATIONS as f64;
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        black_box(crc32c::crc32c(black_box(&to)));
    }
    (copy, (cpu_ns() - start) / OPERATIONS as f64)
}

async fn measure(cx: Cx) {
    // 512 MiB: the warm-up writes it all once, so that chunks are recycled and not first touched.
    let spec = DeviceSpec::preset("peers-16g")
        .expect("a preset")
        .with_parallelism(4, 2)
        .with_chunks_per_pu(64);
    let options = SsdOptions { store: StoreKind::Memory, timing: false, ..SsdOptions::default() };
    let ssd = Ssd::new(&spec, options).expect("a device");
    let config = LogConfig { over_provisioning_percent: 40, ..LogConfig::default() };
    let dev = Pblk::create(&cx, ssd.clone(), config).await.expect("a target");
    let mut rng = Rng::stream(1, "b3", 0);
    let mut buf = vec![1u8; SECTOR_BYTES];
    let (mut writes, mut reads, mut copies, mut crcs) = (vec![], vec![], vec![], vec![]);
    timed(&cx, &dev, BlockOp::Write, &mut rng, &mut buf).await;
    for _ in 0..ROUNDS {
        writes.push(timed(&cx, &dev, BlockOp::Write, &mut rng, &mut buf).await);
        reads.push(timed(&cx, &dev, BlockOp::Read, &mut rng, &mut buf).await);
        let (copy, crc) = copy_and_crc(&mut rng);
        copies.push(copy);
        crcs.push(crc);
    }
    let (write, read) = (median(writes), median(reads));
    let (copy, crc) = (median(copies), median(crcs));
    println!("copy {copy:.0} ns, CRC {crc:.0} ns per 4 KiB (medians of {ROUNDS})");
    // A write moves twice (caller to slot, slot to medium), a read once.
    println!(
        "B3 write {write:.0} ns; less two copies and the CRC {:.0} ns",
        write - 2.0 * copy - crc
    );
    println!("B4 read {read:.0} ns; less one copy and the CRC {:.0} ns", read - copy - crc);
    let stats = dev.stats();
    println!("write amplification {:.2}", stats.write_amplification().unwrap_or(0.0));
    dev.stop(&cx).await.expect("a clean stop");
    assert_eq!(ssd.counters().violations, 0);
}

fn main() {
    Threads::new(1, 1).run(measure);
}
