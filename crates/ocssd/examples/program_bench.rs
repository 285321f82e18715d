//! What commands cost: programs of 16 sectors at a time, round robin over the 64 dies of `peers-16g`, stamps,
//! virtual time, one task per die so that every die always has work; then random reads.
//!
//! Prints nanoseconds of CPU time per program and per sector (from `/proc/self/schedstat`; no wall
//! clock). Working set: the 24-byte records of what is written, 16 GiB of flash per pass.
//!
//! cargo run --release -p flashlane-ocssd --example program_bench [passes] [preset] [rounds] [programs]

use flashlane_base::{Location, Ppa};
use flashlane_ocssd::device::*;
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{CostTable, Cx, Virtual};
use std::sync::Arc;

/// CPU time of this thread so far, ns.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().unwrap_or("0");
    first.parse().unwrap_or(0)
}

/// A calibration loop: dependent arithmetic, to compare machines and moments.
fn calibrate() -> f64 {
    let from = cpu_ns();
    let mut x = 1u64;
    const N: u64 = 50_000_000;
    for i in 0..N {
        x = std::hint::black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i);
    }
    std::hint::black_box(x);
    (cpu_ns() - from) as f64 / N as f64
}

async fn fill_die(cx: Cx, dev: Arc<dyn Device>, pu: u32, passes: u32) {
    let geo = *dev.geometry();
    let unit = geo.ws_opt as usize;
    let base: Vec<u8> = (0..unit * 8).map(|b| b as u8).collect();
    let index: Vec<u32> = (0..unit as u32).collect();
    let oob = vec![[7u8; 16]; unit];
    let cause = vec![Cause::User; unit];
    let mut addrs = vec![Ppa(0); unit];
    for pass in 0..passes {
        for chunk in 0..geo.chunks_per_pu {
            let at = |sector| dev.format().pack(Location { pu, chunk, sector });
            if pass > 0 {
                let done = dev.io(&cx, Request::plain(Op::Reset, &[at(0)])).await;
                assert_eq!(done.failed, 0);
            }
            let first = at(0);
            for row in 0..geo.sectors_per_chunk() / geo.ws_opt {
                for (k, a) in addrs.iter_mut().enumerate() {
                    a.0 = first.0 + (row as usize * unit + k) as u64;
                }
                let content = Gather::new(&base, &index, 8);
                let done = dev.io(&cx, Request::write(&addrs, content, &oob, &cause)).await;
                assert_eq!(done.failed, 0);
            }
        }
    }
}

/// Reads of `n` sectors at random places of one die, one command at a time: neighbours, or with one
/// in six left out, as collections read.
async fn read_die(cx: Cx, dev: Arc<dyn Device>, pu: u32, n: usize, gaps: bool, count: u64) {
    let geo = *dev.geometry();
    let mut rng = flashlane_base::Rng::new(pu as u64);
    let (mut base, mut oob) = (vec![0u8; n * 8], vec![[0u8; 16]; n]);
    let index: Vec<u32> = (0..n as u32).collect();
    let mut addrs = vec![Ppa(0); n];
    for _ in 0..count {
        let span = n as u64 * if gaps { 2 } else { 1 };
        let chunk = rng.below(geo.chunks_per_pu as u64) as u32;
        let slots = geo.sectors_per_chunk() as u64 / span;
        let mut sector = (rng.below(slots) * span) as u32;
        for a in addrs.iter_mut() {
            *a = dev.format().pack(Location { pu, chunk, sector });
            sector += 1 + u32::from(gaps && rng.below(6) == 0);
        }
        let content = Scatter::new(&mut base, &index, 8);
        let done = dev.io(&cx, Request::read(&addrs, content, &mut oob)).await;
        assert_eq!(done.failed, 0);
    }
}

/// The same loop without a device: what the runtime and the request itself cost.
async fn sleep_die(cx: Cx, n: u64) {
    for _ in 0..n {
        cx.sleep(flashlane_base::Ns::from_us(946)).await;
    }
}

fn main() {
    let passes: u32 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(3);
    let preset = std::env::args().nth(2).unwrap_or("peers-16g".into());
    println!("calibration: {:.2} ns per dependent multiply", calibrate());
    let spec = DeviceSpec::preset(&preset).expect("preset");
    let ssd = Ssd::new(&spec, SsdOptions::default()).expect("device");
    let geo = spec.geometry();
    let v = Virtual::new(1, 7, CostTable::zero());
    let pus = geo.pus();
    let programs = geo.sectors() / geo.ws_opt as u64 * passes as u64;
    let from = cpu_ns();
    let cx = v.cx();
    v.run(async move {
        let joins: Vec<_> =
            (0..pus).map(|_| cx.spawn_join(sleep_die(cx.clone(), programs / pus as u64))).collect();
        for j in joins {
            j.await;
        }
    })
    .expect("run");
    let runtime = (cpu_ns() - from) as f64 / programs as f64;
    println!("runtime alone: {runtime:.1} ns per sleep");
    let rounds = std::env::args().nth(3).and_then(|a| a.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        let v = Virtual::new(1, 7, CostTable::zero());
        let ssd = Ssd::new(&spec, SsdOptions::default()).expect("device");
        let dev: Arc<dyn Device> = ssd.clone();
        let cx = v.cx();
        let from = cpu_ns();
        v.run(async move {
            let joins: Vec<_> = (0..pus)
                .map(|pu| cx.spawn_join(fill_die(cx.clone(), dev.clone(), pu, passes)))
                .collect();
            for j in joins {
                j.await;
            }
        })
        .expect("run");
        let ns = (cpu_ns() - from) as f64;
        let c = ssd.counters();
        assert_eq!(c.violations, 0);
        println!(
            "round {round}: {programs} programs, {:.1} ns per program ({:.1} without the runtime), \
             {:.2} ns per sector, {:.1} polls per program, virtual {} , store {} MiB",
            ns / programs as f64,
            ns / programs as f64 - runtime,
            ns / c.programmed_total() as f64,
            v.polls() as f64 / programs as f64,
            v.now(),
            c.store_bytes >> 20,
        );
    }
    drop(ssd);
    if std::env::args().nth(4).as_deref() == Some("programs") {
        return;
    }
    reads(&spec, 1, false);
    reads(&spec, 16, false);
    reads(&spec, 64, false);
    reads(&spec, 64, true);
}

fn reads(spec: &DeviceSpec, n: usize, gaps: bool) {
    let ssd = Ssd::new(spec, SsdOptions::default()).expect("device");
    let dev: Arc<dyn Device> = ssd.clone();
    let (v, pus) = (Virtual::new(1, 7, CostTable::zero()), dev.geometry().pus());
    let (cx, filled) = (v.cx(), dev.clone());
    v.run(async move {
        let fill = (0..pus).map(|pu| cx.spawn_join(fill_die(cx.clone(), filled.clone(), pu, 1)));
        for j in fill.collect::<Vec<_>>() {
            j.await;
        }
    })
    .expect("run");
    const COUNT: u64 = 5000;
    let (cx, from, polls) = (v.cx(), cpu_ns(), v.polls());
    v.run(async move {
        let read =
            (0..pus).map(|pu| cx.spawn_join(read_die(cx.clone(), dev.clone(), pu, n, gaps, COUNT)));
        for j in read.collect::<Vec<_>>() {
            j.await;
        }
    })
    .expect("run");
    let all = (COUNT * pus as u64) as f64;
    let ns = (cpu_ns() - from) as f64;
    println!(
        "reads of {n}, gaps {gaps}: {:.1} ns per command, {:.2} ns per sector, {:.2} polls per command",
        ns / all,
        ns / all / n as f64,
        (v.polls() - polls) as f64 / all,
    );
}
