//! B3 and B4 of the speed goals: what pblk and QBLK cost per 4 KiB write and read, live, one thread, on a
//! device that takes no time; 64 MiB working set, real bytes, checksums on.
//!
//! Owns: the measurement only. Prints the time per operation, and that time less the copies and the CRC
//! of a sector, all measured in turns in the same run over the same working set.
//! Usage: `cargo run --release -p flashlane-ftl --example b3`; with an argument, `pblk` or `qblk`, only
//! that one's writes, for a profiler.

use flashlane_base::{Lba, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::log::{LogConfig, Pblk};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_rt::{Cx, Threads};
use std::hint::black_box;
use std::sync::Arc;

const SET_SECTORS: u64 = (64 << 20) / SECTOR_BYTES as u64;
/// Of a kind in a round.
const OPERATIONS: u64 = 65_000;
const ROUNDS: usize = 15;

/// CPU time of this thread in nanoseconds: on a busy machine the wall clock measures the others.
fn cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).expect("Linux has schedstat")
}

fn median(v: &[f64]) -> f64 {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

/// A target on a null device of its own.
struct Target {
    name: &'static str,
    dev: Arc<Pblk>,
    ssd: Arc<Ssd>,
    writes: Vec<f64>,
    reads: Vec<f64>,
}

impl Target {
    async fn new(cx: &Cx, name: &'static str, config: LogConfig) -> Target {
        // 768 MiB: the warm-up writes it all, so that chunks are recycled and not first touched. Chunks of
        // 4 MiB, as large as those of drives: QBLK's lines are a channel wide, and each line that is opened
        // and freed writes to the log (on chunks of 1 MiB 16% of all programs are that).
        let spec = DeviceSpec::preset("peers-16g").expect("a preset").with_parallelism(4, 2);
        let mut spec = spec.with_chunks_per_pu(24);
        spec.geometry.pages_per_block = 64;
        let options =
            SsdOptions { store: StoreKind::Memory, timing: false, ..SsdOptions::default() };
        let ssd = Ssd::new(&spec, options).expect("a device");
        let config = LogConfig { over_provisioning_percent: 60, ..config };
        let dev = Pblk::create(cx, ssd.clone(), config).await.expect("a target");
        let target = Target { name, dev, ssd, writes: Vec::new(), reads: Vec::new() };
        let (mut rng, mut buf) = (Rng::stream(1, "b3.warm", 0), vec![1u8; SECTOR_BYTES]);
        for _ in 0..4 {
            target.timed(cx, BlockOp::Write, &mut rng, &mut buf).await;
        }
        target
    }

    /// Nanoseconds per operation.
    async fn timed(&self, cx: &Cx, op: BlockOp, rng: &mut Rng, buf: &mut [u8]) -> f64 {
        let start = cpu_ns();
        for _ in 0..OPERATIONS {
            let lba = Lba::new(rng.below(SET_SECTORS));
            let io = Io::of(op, lba, 1, false, &mut *buf);
            self.dev.start(cx, io).await.expect("no faults are injected");
        }
        (cpu_ns() - start) / OPERATIONS as f64
    }
}

/// One copy of a sector from a random place of the working set, and one CRC32C of it.
fn copy_and_crc(rng: &mut Rng, set: &[u8], to: &mut [u8]) -> (f64, f64) {
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        let at = rng.below(SET_SECTORS) as usize * SECTOR_BYTES;
        to.copy_from_slice(&set[at..at + SECTOR_BYTES]);
        black_box(&to);
    }
    let copy = (cpu_ns() - start) / OPERATIONS as f64;
    let start = cpu_ns();
    for _ in 0..OPERATIONS {
        black_box(flashlane_base::crc32c(black_box(to)));
    }
    (copy, (cpu_ns() - start) / OPERATIONS as f64)
}

async fn measure(cx: Cx) {
    let only = std::env::args().nth(1);
    let mut targets = Vec::new();
    for (name, config) in [("pblk", LogConfig::default()), ("qblk", LogConfig::qblk())] {
        if only.as_deref().is_none_or(|only| only == name) {
            targets.push(Target::new(&cx, name, config).await);
        }
    }
    let set = vec![7u8; SET_SECTORS as usize * SECTOR_BYTES];
    let mut rng = Rng::stream(1, "b3", 0);
    let mut buf = vec![1u8; SECTOR_BYTES];
    let (mut copies, mut crcs) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        for target in &mut targets {
            let write = target.timed(&cx, BlockOp::Write, &mut rng, &mut buf).await;
            target.writes.push(write);
            if only.is_none() {
                let read = target.timed(&cx, BlockOp::Read, &mut rng, &mut buf).await;
                target.reads.push(read);
            }
        }
        let (copy, crc) = copy_and_crc(&mut rng, &set, &mut buf);
        copies.push(copy);
        crcs.push(crc);
    }
    let (copy, crc) = (median(&copies), median(&crcs));
    println!("copy {copy:.0} ns, CRC {crc:.0} ns per 4 KiB (medians of {ROUNDS})");
    for Target { name, dev, ssd, writes, reads } in &targets {
        let write = median(writes);
        // A write moves twice (caller to slot, slot to medium), a read once.
        let rest = write - 2.0 * copy - crc;
        println!("B3 {name} write {write:.0} ns; less two copies and the CRC {rest:.0} ns");
        if !reads.is_empty() {
            let read = median(reads);
            let rest = read - copy - crc;
            println!("B4 {name} read {read:.0} ns; less one copy and the CRC {rest:.0} ns");
        }
        let amplification = dev.stats().write_amplification().unwrap_or(0.0);
        println!("{name} write amplification {amplification:.2}");
        dev.stop(&cx).await.expect("a clean stop");
        assert_eq!(ssd.counters().violations, 0);
    }
    if let [pblk, qblk] = &targets[..] {
        // Round by round: what else the machine does hits both.
        let ratios: Vec<f64> = qblk.writes.iter().zip(&pblk.writes).map(|(q, p)| q / p).collect();
        println!("QBLK write / pblk write {:.2} (goal: 1.1 at most)", median(&ratios));
    }
}

fn main() {
    Threads::new(1, 1).run(measure);
}
