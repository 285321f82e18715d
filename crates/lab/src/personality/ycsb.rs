//! YCSB's core workloads A to F on a store of our own (`store.rs`).
//!
//! Owns: the mix of each workload ([`Mix`]), its numbers ([`Ycsb`]), which record is next. Promises:
//! records are picked as YCSB picks them: by a zipfian distribution that is scrambled, the latest
//! ones by workload D. Never: knows how records lie in files.
//!
//! The ParaFS paper's Table 2 has A on MySQL: records of 1 KB, 50 threads, as many reads as updates.

use super::store::{DOUBLEWRITE, PAGE, Shape, Store};
use super::{Bench, CallKind, Job};
use flashlane_base::{Bytes, Ns, Rng, mix64};
use flashlane_parafs::{FsError, Nid};
use flashlane_rt::Cx;
use serde_json::{Value, json};
use std::cell::Cell;

/// A core workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    A,
    B,
    C,
    D,
    E,
    F,
}

impl Mix {
    pub const ALL: [(&str, Mix); 6] =
        [("a", Mix::A), ("b", Mix::B), ("c", Mix::C), ("d", Mix::D), ("e", Mix::E), ("f", Mix::F)];

    fn word(self) -> &'static str {
        Mix::ALL[self as usize].0
    }

    /// Percent of its calls, and what the others are.
    fn of(self) -> (u64, CallKind, CallKind) {
        match self {
            Mix::A => (50, CallKind::Read, CallKind::Update),
            Mix::B => (95, CallKind::Read, CallKind::Update),
            Mix::C => (100, CallKind::Read, CallKind::Update),
            Mix::D => (95, CallKind::Read, CallKind::Insert),
            Mix::E => (95, CallKind::Scan, CallKind::Insert),
            Mix::F => (50, CallKind::Read, CallKind::ReadModifyWrite),
        }
    }
}

/// Its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ycsb {
    pub mix: Mix,
    pub records: u64,
    pub record: Bytes,
    pub threads: u32,
    /// Thousandths: the zipfian constant.
    pub zipfian_milli: u32,
    pub pool: Bytes,
    pub log: Bytes,
    pub doublewrite: bool,
}

impl Default for Ycsb {
    fn default() -> Ycsb {
        Ycsb {
            mix: Mix::A,
            records: 100_000,
            record: Bytes::from_kib(1),
            threads: 50,
            // YCSB's ZIPFIAN_CONSTANT.
            zipfian_milli: 990,
            // Ours: a fifth of the records, about.
            pool: Bytes::from_mib(32),
            log: Bytes::from_mib(16),
            doublewrite: true,
        }
    }
}

impl Ycsb {
    fn shape(&self) -> Shape {
        Shape {
            record: self.record.get() as usize,
            pool: self.pool.get() as usize / PAGE,
            log: self.log.get(),
            doublewrite: self.doublewrite,
        }
    }

    pub(super) fn first_pages(&self, page: u64) -> u64 {
        let table = self.shape().pages(self.records) * PAGE as u64;
        let double = if self.doublewrite { DOUBLEWRITE } else { 0 };
        let bytes = [table, double, self.log.get() + 2_048];
        let of = |bytes: u64| 2 + bytes.div_ceil(page) + bytes.div_ceil(page).div_ceil(1_000);
        2 + bytes.into_iter().map(of).sum::<u64>()
    }

    pub(crate) fn described(&self) -> Value {
        let Ycsb { mix, records, record, threads, zipfian_milli, pool, log, doublewrite } = *self;
        json!({
            "program": "ycsb",
            "workload": mix.word(),
            "recordcount": records,
            "recordsize_bytes": record.get(),
            "nthreads": threads,
            "zipfian_constant": f64::from(zipfian_milli) / 1_000.0,
            "buffer_pool_bytes": pool.get(),
            "redo_log_bytes": log.get(),
            "doublewrite": doublewrite,
        })
    }
}

/// Numbers of which few are drawn often (Gray et al., "Quickly generating billion-record synthetic
/// databases"), as YCSB draws them.
#[derive(Clone, Debug)]
struct Zipfian {
    items: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    fn new(items: u64, theta: f64) -> Zipfian {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let all = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / all);
        Zipfian { items: items as f64, theta, zeta: all, eta }
    }

    /// 0 is drawn most.
    fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit_f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let alpha = 1.0 / (1.0 - self.theta);
        let drawn = self.items * (self.eta * u - self.eta + 1.0).powf(alpha);
        (drawn as u64).min(self.items as u64 - 1)
    }
}

/// The store, and who works on it.
pub(super) struct Set {
    settings: Ycsb,
    zipfian: Zipfian,
    store: Store,
    /// Threads that have not ended.
    threads: Cell<u32>,
}

impl Set {
    pub(super) fn new(settings: &Ycsb) -> Set {
        let theta = f64::from(settings.zipfian_milli) / 1_000.0;
        Set {
            zipfian: Zipfian::new(settings.records, theta),
            store: Store::new(settings.shape()),
            threads: Cell::new(settings.threads),
            settings: settings.clone(),
        }
    }

    /// The record of the next call.
    fn pick(&self, rng: &mut Rng) -> u32 {
        let records = u64::from(self.store.records());
        let rank = self.zipfian.draw(rng);
        match self.settings.mix {
            Mix::D => (records - 1 - rank.min(records - 1)) as u32,
            _ => (mix64(rank) % records) as u32,
        }
    }
}

pub(super) async fn prepare(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &Set,
    top: Nid,
) -> Result<(), FsError> {
    set.store.make(bench, cx, job, top, set.settings.records as u32).await
}

/// One of YCSB's threads, or behind them the store's cleaner.
pub(super) async fn thread(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &Set,
    number: u32,
    end: Option<Ns>,
) {
    let store = &set.store;
    if number == set.settings.threads {
        let cleaned = store.clean(bench, cx, job, || set.threads.get() > 0).await;
        let closed = store.close(bench, cx).await;
        if let Err(e) = cleaned.and(closed) {
            bench.over(super::End::of(e, "pagewrite"));
        }
        return;
    }
    let mut rng = Rng::stream(job.seed, "ycsb", number.into());
    let (percent, often, seldom) = set.settings.mix.of();
    while bench.goes_on(cx, job, end) {
        let kind = if rng.below(100) < percent { often } else { seldom };
        let n = set.pick(&mut rng);
        let length = 1 + rng.below(SCAN_MAX);
        let call = async {
            match kind {
                CallKind::Read => store.get(bench, cx, job, n).await,
                CallKind::Scan => store.scan(bench, cx, job, n, length as usize).await,
                CallKind::Insert => store.put(bench, cx, job, None).await,
                CallKind::Update => store.put(bench, cx, job, Some(n)).await,
                _ => {
                    store.get(bench, cx, job, n).await?;
                    store.put(bench, cx, job, Some(n)).await
                }
            }
        };
        // A database that can't write is at its end.
        if !bench.record(cx, job, kind, call).await {
            break;
        }
        cx.yield_now().await;
    }
    set.threads.set(set.threads.get() - 1);
}

/// YCSB's `maxscanlength` of workload E.
const SCAN_MAX: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    /// The most frequent of a thousand has a share of 1 / zeta(1000, 0.99), and so on.
    #[test]
    fn few_are_drawn_often() {
        let zipfian = Zipfian::new(1_000, 0.99);
        let mut rng = Rng::stream(1, "test", 0);
        let mut counts = [0u32; 1_000];
        (0..100_000).for_each(|_| counts[zipfian.draw(&mut rng) as usize] += 1);
        let share = 100_000.0 / zipfian.zeta;
        for (rank, count) in counts.iter().enumerate().take(2) {
            let wanted = share / ((rank + 1) as f64).powf(0.99);
            assert!((f64::from(*count) / wanted - 1.0).abs() < 0.05, "{rank}: {count} {wanted}");
        }
        assert!(counts[999] > 0 && counts[..100].iter().sum::<u32>() > 60_000);
    }
}
