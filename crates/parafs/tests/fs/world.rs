//! A file system on a device in memory, in virtual time.

use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_parafs::{Attributes, Fs, Make, Medium, New, Options, Report, Time, check, mkfs};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::Ram;
use std::future::Future;
use std::sync::Arc;

pub(crate) const FILE: u16 = 0o100_644;
pub(crate) const DIR: u16 = 0o040_755;
pub(crate) const LINK: u16 = 0o120_777;

/// A device that keeps every promise of a block device, and no more.
pub(crate) fn ram(mib: u64, seed: u64) -> Arc<Ram> {
    Arc::new(Ram::new(mib * 256, SECTOR_BYTES, Ns::from_us(20), seed))
}

pub(crate) fn run<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    body: impl FnOnce(Cx) -> F,
) -> T {
    let clock = Virtual::new(1, seed, CostTable::zero());
    let cx = clock.cx();
    clock.run(body(cx)).expect("it goes on")
}

pub(crate) fn now(cx: &Cx) -> Time {
    let ns = cx.now().as_ns();
    Time { seconds: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
}

/// Small caches, so that what was there has to come again.
pub(crate) fn small() -> Options {
    Options { cache_pages: 64, cache_nodes: 64, dirty_pages: 48, dirty_nodes: 48 }
}

/// Pages of so many sectors, segments of 32 of them.
pub(crate) async fn make(cx: &Cx, device: &Arc<Ram>, page_sectors: u32) {
    let medium = Medium::Linear(device.clone());
    let layout = medium.plan(page_sectors, 32).expect("it is large enough");
    mkfs(cx, medium, layout, &Make::default(), now(cx)).await.expect("it is made");
}

pub(crate) async fn mount(cx: &Cx, device: &Arc<Ram>) -> Arc<Fs> {
    Fs::mount(cx, Medium::Linear(device.clone()), small()).await.expect("it is mounted").0
}

/// The check finds nothing.
pub(crate) async fn sound(cx: &Cx, device: &Arc<Ram>) -> Report {
    let report = check(cx, &Medium::Linear(device.clone())).await.expect("it can be read");
    assert_eq!(report.problems, Vec::<String>::new());
    report
}

pub(crate) fn new(mode: u16) -> New {
    New { mode, uid: 1000, gid: 100, ..New::default() }
}

pub(crate) async fn create(cx: &Cx, fs: &Arc<Fs>, dir: u32, name: &str, mode: u16) -> Attributes {
    fs.create(cx, dir, name.as_bytes(), &new(mode), now(cx)).await.expect("it is made")
}

pub(crate) async fn content(cx: &Cx, fs: &Arc<Fs>, ino: u32) -> Vec<u8> {
    let size = fs.attributes(cx, ino).await.expect("it is there").size;
    let mut all = vec![0xee; size as usize + 10];
    let n = fs.read(cx, ino, 0, &mut all).await.expect("it is read");
    assert_eq!(n as u64, size);
    all.truncate(n);
    all
}

/// The seeds of a test: `FLASHLANE_SEED` names one, or several as `100..200`.
pub(crate) fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    // Tests are told by their environment what to repeat.
    #[allow(clippy::disallowed_methods)]
    let Ok(asked) = std::env::var("FLASHLANE_SEED") else { return default };
    let number = |text: &str| text.parse().expect("FLASHLANE_SEED is a number, or two: 1..9");
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&asked)..number(&asked) + 1,
    }
}
