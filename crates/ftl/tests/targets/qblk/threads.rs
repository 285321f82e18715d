//! The races of Q01 to Q06 on real threads, where instructions interleave.
//!
//! Owns: the tests. On a medium that takes no time, a few sectors that all cores fight for, and enough others
//! that lines are collected and slots reused all the while; and small targets that are full, where every line
//! counts. Never: measures.

use crate::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const CORES: u32 = 3;
const WRITES: u64 = 12_000;
/// Sectors that all cores write.
const SHARED: u64 = 6;

struct Shared {
    dev: OnceLock<(Arc<Pblk>, Arc<Ssd>)>,
    done: AtomicU32,
    changed: Notify,
}

/// What a write of a core leaves: its sector, who and how many before.
fn word(lba: u64, core: u64, i: u64) -> u64 {
    lba << 40 | (core + 1) << 32 | i
}

async fn io(cx: &Cx, dev: &Pblk, op: BlockOp, lba: u64, buf: &mut [u8]) {
    let sectors = buf.len() as u32 / dev.info().content_bytes as u32;
    let done = dev.start(cx, Io::of(op, Lba::new(lba), sectors, false, buf)).await;
    done.expect("a request");
}

/// What a core has seen last of each writer of a shared sector: it never sees an older one again.
type Seen = [[u64; CORES as usize]; SHARED as usize];

async fn read(cx: &Cx, dev: &Pblk, lba: u64, seen: &mut Seen) {
    let mut buf = vec![0; dev.info().content_bytes];
    io(cx, dev, BlockOp::Read, lba, &mut buf).await;
    let got = u64::from_le_bytes(buf[..8].try_into().expect("eight"));
    if got == 0 {
        return;
    }
    assert_eq!(got >> 40, lba, "another sector's content");
    let (writer, i) = ((got >> 32 & 0xff) as usize - 1, got & 0xffff_ffff);
    let last = &mut seen[lba as usize][writer];
    assert!(i >= *last, "sector {lba}: core {writer}'s write {i} behind its {last}");
    *last = i;
}

/// Counters are read while all cores count: none goes back, and what is waited for adds up.
fn looked_at(cx: &Cx, dev: &Pblk, before: &Contention) -> Contention {
    let now = dev.contention(cx.now());
    let (e, l) = (&before.exchanges, &now.exchanges);
    assert!(
        e.user_retries <= l.user_retries && e.drain_lost <= l.drain_lost && e.gc_lost <= l.gc_lost
    );
    for (e, l) in before.locks().iter().zip(now.locks()) {
        assert!(e.acquired <= l.acquired && e.contended <= l.contended && e.spun <= l.spun);
    }
    for (e, l) in before.queues.iter().zip(&now.queues) {
        assert!(l.full.times >= e.full.times && l.full.time >= e.full.time);
        assert!(l.depth <= l.depth_max && l.depth_max >= e.depth_max, "{e:?} then {l:?}");
    }
    now
}

async fn core(cx: Cx, shared: Arc<Shared>, seed: u64, borrow: bool) {
    if cx.core().0 == 0 {
        let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(48);
        let options = SsdOptions { timing: false, ..SsdOptions::default() };
        let ssd = Ssd::new(&spec, options).expect("a device");
        let config = LogConfig { over_provisioning_percent: 50, borrow, ..LogConfig::qblk() };
        let dev = Pblk::create(&cx, ssd.clone(), config).await.expect("fits");
        assert!(shared.dev.set((dev, ssd)).is_ok());
        shared.changed.wake(&cx);
    }
    shared.changed.wait(&cx, || shared.dev.get().is_some()).await;
    let (dev, ssd) = shared.dev.get().expect("set above").clone();
    let (me, unit) = (u64::from(cx.core().0), dev.info().content_bytes);
    let mut rng = Rng::stream(seed, "q.threads", me);
    let mut seen = Seen::default();
    let mine = SHARED + me * ((dev.info().capacity - SHARED) / u64::from(CORES));
    let room = (dev.info().capacity - SHARED) / u64::from(CORES);
    let mut held = vec![0u64; room as usize];
    let mut before = dev.contention(cx.now());
    for i in 1..=WRITES {
        if i % 500 == me * 100 {
            before = looked_at(&cx, &dev, &before);
        }
        let mut buf = vec![0; unit];
        match rng.below(8) {
            0..=2 => {
                let lba = rng.below(SHARED);
                buf[..8].copy_from_slice(&word(lba, me, i).to_le_bytes());
                io(&cx, &dev, BlockOp::Write, lba, &mut buf).await;
                seen[lba as usize][me as usize] = i;
                read(&cx, &dev, lba, &mut seen).await;
            }
            3 => read(&cx, &dev, rng.below(SHARED), &mut seen).await,
            4 if rng.below(40) == 0 => io(&cx, &dev, BlockOp::Flush, 0, &mut []).await,
            _ => {
                let at = rng.below(room);
                let lba = mine + at;
                if rng.below(3) == 0 {
                    io(&cx, &dev, BlockOp::Read, lba, &mut buf).await;
                    let got = u64::from_le_bytes(buf[..8].try_into().expect("eight"));
                    assert_eq!(got, held[at as usize], "sector {lba}, its own core's only");
                } else {
                    held[at as usize] = word(lba, me, i);
                    buf[..8].copy_from_slice(&word(lba, me, i).to_le_bytes());
                    io(&cx, &dev, BlockOp::Write, lba, &mut buf).await;
                }
            }
        }
    }
    shared.done.fetch_add(1, Ordering::SeqCst);
    shared.changed.wake(&cx);
    if me != 0 {
        return;
    }
    shared.changed.wait(&cx, || shared.done.load(Ordering::SeqCst) == CORES).await;
    dev.stop(&cx).await.expect("everything is durable");
    assert!(ssd.violations().is_empty(), "{:?}", ssd.violations().first());
    dev.check_consistency().expect("each sector valid exactly once");
    let stats = dev.stats();
    stats.check_host_law().expect("host law");
    stats.check_media_law(&ssd.counters().programmed).expect("media law");
    assert!(stats.gc_moved > 0, "lines were collected meanwhile");
    let c = looked_at(&cx, &dev, &before);
    assert!(
        c.queues.iter().all(|q| q.lock.acquired > WRITES / 2),
        "each core took its ring: {c:?}"
    );
    assert_eq!((c.full().time, c.limited().time), (stats.ring_full, stats.limited));
    assert!(c.exchanges.drain_lost + stats.absorbed > 0, "they fought for six sectors");
    for lba in 0..SHARED {
        read(&cx, &dev, lba, &mut seen).await;
    }
}

/// Q01, Q02, Q03, Q04, Q05, Q06: whoever loses an exchange invalidates its own sector, nobody's address or
/// slot is reused under it, a thread's writes of a sector keep their order.
#[test]
fn q01_to_q06_on_real_threads() {
    for seed in 0..6 {
        let (dev, done, changed) = (OnceLock::new(), AtomicU32::new(0), Notify::new());
        let shared = Arc::new(Shared { dev, done, changed });
        Threads::new(CORES, seed).run(|cx| core(cx, shared.clone(), seed, seed % 3 == 2));
    }
}

/// A full target that is as small as create lets it be, for a host of so many cores.
async fn smallest(cx: &Cx, seed: u64) -> (Arc<Pblk>, Arc<Ssd>) {
    let spec = DeviceSpec::preset("tiny").expect("built in");
    let (channels, pus) = (1 + seed as u32 % 3, 1 + seed as u32 / 3 % 2);
    let borrow = seed.is_multiple_of(4);
    for chunks in (24..).step_by(8) {
        let spec = spec.clone().with_parallelism(channels, pus).with_chunks_per_pu(chunks);
        let options = SsdOptions { timing: false, ..SsdOptions::default() };
        let ssd = Ssd::new(&spec, options).expect("a device");
        // As little spare as works.
        let config = LogConfig { over_provisioning_percent: 0, borrow, ..LogConfig::qblk() };
        if let Ok(dev) = Pblk::create(cx, ssd.clone(), config).await {
            return (dev, ssd);
        }
    }
    unreachable!("some number of chunks is enough")
}

/// Fills its part of the target, and overwrites it, with a flush now and then.
async fn overwrite(cx: Cx, shared: Arc<Shared>, seed: u64) {
    if cx.core().0 == 0 {
        assert!(shared.dev.set(smallest(&cx, seed).await).is_ok());
        shared.changed.wake(&cx);
    }
    shared.changed.wait(&cx, || shared.dev.get().is_some()).await;
    let (dev, ssd) = shared.dev.get().expect("set above").clone();
    let (me, cores, unit) =
        (u64::from(cx.core().0), u64::from(cx.cores()), dev.info().content_bytes);
    let mut rng = Rng::stream(seed, "q.full", me);
    let each = dev.info().capacity / cores;
    let mut buf = vec![7; 32 * unit];
    for at in (0..each).step_by(32) {
        let n = 32.min(each - at) as usize;
        io(&cx, &dev, BlockOp::Write, me * each + at, &mut buf[..n * unit]).await;
    }
    for _ in 0..400 {
        let longest = if rng.below(4) == 0 { 32 } else { 3 };
        let n = 1 + rng.below(longest);
        let at = me * each + rng.below(each - n + 1);
        io(&cx, &dev, BlockOp::Write, at, &mut buf[..n as usize * unit]).await;
        if rng.below(16) == 0 {
            io(&cx, &dev, BlockOp::Flush, 0, &mut []).await;
        }
    }
    shared.done.fetch_add(1, Ordering::SeqCst);
    shared.changed.wake(&cx);
    if me == 0 {
        shared.changed.wait(&cx, || u64::from(shared.done.load(Ordering::SeqCst)) == cores).await;
        dev.stop(&cx).await.expect("everything is durable");
        assert!(ssd.violations().is_empty(), "{:?}", ssd.violations().first());
        dev.check_consistency().expect("each sector valid exactly once");
        assert!(dev.stats().gc_moved > 0, "lines were collected meanwhile");
    }
}

fn full_and_healthy(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let (dev, done, changed) = (OnceLock::new(), AtomicU32::new(0), Notify::new());
        let shared = Arc::new(Shared { dev, done, changed });
        let cores = 2 + (seed / 6 % 3) as u32;
        Threads::new(cores, seed).run(|cx| overwrite(cx, shared.clone(), seed));
    }
}

/// Q19: a target that is full, with no bad chunk, never gives up, whatever its cores do meanwhile.
#[test]
fn q19_a_full_and_healthy_target_never_gives_up() {
    full_and_healthy(0..18);
}

#[test]
#[ignore = "takes minutes; for a change of the room that victims need, or of a verdict"]
fn q19_thousands_of_full_targets_never_give_up() {
    full_and_healthy(0..4000);
}
