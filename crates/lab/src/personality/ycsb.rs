//! YCSB's core workloads A to F on a store of our own (`store.rs`).
//!
//! Owns: the mix of each workload ([`Mix`]), its numbers ([`Ycsb`]), which record is next. Promises:
//! records are picked as YCSB's scrambled zipfian generator picks them ([`SCRAMBLED`]), by workload D
//! the latest ones; the run's seed decides all of it. Never: knows how records lie in files.
//!
//! The ParaFS paper's Table 2 has A on MySQL: records of 1 KB, 50 threads, as many reads as updates.

use super::store::{DOUBLEWRITE, PAGE, Shape, Store};
use super::{Bench, CallKind, Job};
use flashlane_base::{Bytes, Ns, Rng};
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
/// databases", SIGMOD '94, which YCSB cites).
#[derive(Clone, Debug)]
struct Zipfian {
    items: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

/// YCSB's scrambled zipfian draws one of so many numbers, however many records there are. The hash of
/// what it draws says which record is meant. So the record that is asked for most has 3.8% of all
/// calls, and those for rare numbers are spread evenly over all records.
const SCRAMBLED: u64 = 10_000_000_000;
/// Their zeta for a zipfian constant of 0.99, as YCSB has it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// So many terms of a zeta are summed.
const SUMMED: u64 = 1_000;

/// 1 / 1^theta + 1 / 2^theta + ... of so many terms: what is not summed is an integral, with the
/// first two corrections of Euler and Maclaurin.
fn zeta(items: u64, theta: f64) -> f64 {
    let first: f64 = (1..=items.min(SUMMED)).map(|i| (i as f64).powf(-theta)).sum();
    if items <= SUMMED {
        return first;
    }
    let of = |x: f64| {
        let term = x.powf(-theta);
        x * term / (1.0 - theta) + term / 2.0 - theta * term / x / 12.0
    };
    first + of(items as f64) - of(SUMMED as f64)
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    let with = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, with)
}

/// The record that a drawn number stands for. YCSB's hash has a sign, and it drops that.
fn scrambled(drawn: u64, records: u64) -> u64 {
    fnv1a(&drawn.to_le_bytes()).cast_signed().unsigned_abs() % records
}

impl Zipfian {
    fn new(items: u64, theta: f64) -> Zipfian {
        Zipfian::of(items, theta, zeta(items, theta))
    }

    fn of(items: u64, theta: f64, all: f64) -> Zipfian {
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - zeta(2, theta) / all);
        Zipfian { items: items as f64, theta, zeta: all, eta }
    }

    /// What a workload draws from: D counts from the latest record, the others scramble.
    fn of_workload(settings: &Ycsb) -> Zipfian {
        let theta = f64::from(settings.zipfian_milli) / 1_000.0;
        match (settings.mix, settings.zipfian_milli) {
            (Mix::D, _) => Zipfian::new(settings.records, theta),
            (_, 990) => Zipfian::of(SCRAMBLED, theta, SCRAMBLED_ZETA),
            _ => Zipfian::new(SCRAMBLED, theta),
        }
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
        Set {
            zipfian: Zipfian::of_workload(settings),
            store: Store::new(settings.shape()),
            threads: Cell::new(settings.threads),
            settings: settings.clone(),
        }
    }

    /// The record of the next call. Workload E draws those that were there at first: with one more
    /// record each number would stand for another one.
    fn pick(&self, rng: &mut Rng) -> u32 {
        let drawn = self.zipfian.draw(rng);
        match self.settings.mix {
            Mix::D => {
                let last = u64::from(self.store.records()) - 1;
                (last - drawn.min(last)) as u32
            }
            _ => scrambled(drawn, self.settings.records) as u32,
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

    /// A zeta that is summed in full, and YCSB's constant.
    #[test]
    fn a_zeta_is_what_its_terms_come_to() {
        for theta in [0.001, 0.5, 0.99, 0.999] {
            let sum: f64 = (1..=20_000).map(|i| f64::from(i).powf(-theta)).sum();
            assert!((zeta(20_000, theta) / sum - 1.0).abs() < 1e-12, "{theta}: {sum}");
        }
        let all = zeta(SCRAMBLED, 0.99);
        assert!((all - SCRAMBLED_ZETA).abs() < 1e-6, "{all}");
    }

    /// The hash is that of its authors' test vectors. The number 1 hashes to one with a sign.
    #[test]
    fn a_number_stands_for_a_record() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        let records = [0, 1, 2, SCRAMBLED - 1].map(|drawn| scrambled(drawn, 10_000));
        assert_eq!(records, [7_211, 6_620, 8_393, 7_474]);
    }

    /// The first number drawn has 1 / 26.47 of the draws, and its record an even share of the rare
    /// ones. A zipfian over the records alone would give it 9.8%.
    #[test]
    fn the_hottest_record_and_how_many_are_drawn() {
        const RECORDS: u64 = 10_000;
        let zipfian = Zipfian::of_workload(&Ycsb { records: RECORDS, ..Ycsb::default() });
        // What each record's share should be: often drawn numbers by their own, the others' rest evenly.
        let mut shares = vec![0.0; RECORDS as usize];
        for rank in 0..100_000 {
            let share = ((rank + 1) as f64).powf(-0.99) / SCRAMBLED_ZETA;
            shares[scrambled(rank, RECORDS) as usize] += share;
        }
        let rest = (1.0 - shares.iter().sum::<f64>()) / RECORDS as f64;
        shares.iter_mut().for_each(|share| *share += rest);
        let drawn = |draws: u32| {
            let mut rng = Rng::stream(1, "test", 0);
            let mut counts = vec![0u32; RECORDS as usize];
            let mut draw = || scrambled(zipfian.draw(&mut rng), RECORDS) as usize;
            (0..draws).for_each(|_| counts[draw()] += 1);
            counts
        };
        let counts = drawn(400_000);
        let hottest = scrambled(0, RECORDS) as usize;
        assert_eq!(counts.iter().max(), Some(&counts[hottest]));
        let share = f64::from(counts[hottest]) / 400_000.0;
        assert!((share - shares[hottest]).abs() < 0.001, "{share} {}", shares[hottest]);
        assert!((share - 1.0 / SCRAMBLED_ZETA).abs() < 0.0015, "{share}");
        let distinct = drawn(20_000).iter().filter(|count| **count > 0).count() as f64;
        let wanted: f64 = shares.iter().map(|share| 1.0 - (1.0 - share).powi(20_000)).sum();
        assert!((distinct / wanted - 1.0).abs() < 0.02, "{distinct} {wanted}");
    }
}
