//! A file system on a device in memory, in virtual time.

use flashlane_base::{Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::sftl::{Sftl, SftlConfig};
use flashlane_ocssd::{DeviceSpec, FaultPlan, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_parafs::{Attributes, Fs, Make, Medium, New, Options, Report, Time, check, mkfs};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::{Keep, Ram};
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
    Options {
        cache_pages: 64,
        cache_nodes: 64,
        dirty_pages: 48,
        dirty_nodes: 48,
        journal: 20,
        ..Options::default()
    }
}

/// What a file system lies on over several lives.
#[derive(Clone)]
pub(crate) enum Store {
    Ram(Arc<Ram>),
    /// Flash, and S-FTL on it.
    Flash(Arc<Ssd>),
}

impl Store {
    /// A small device of so many channels: segments of 16 pages of 8 KiB.
    pub(crate) fn flash(channels: u32, chunks: u32, faults: &str, seed: u64) -> Store {
        let spec = DeviceSpec::from_toml(&format!(
            "name = \"small\"\nppa = \"2.0\"\n\
             [geometry]\nchannels = {channels}\npus_per_channel = 1\nplanes = 1\n\
             chunks_per_pu = {chunks}\npages_per_block = 16\nsectors_per_page = 2\n\
             ws_min = 2\nws_opt = 2\nmw_cunits = 0\n\
             [timing]\nread = [\"50us\"]\nprogram = [\"500us\"]\nerase = \"3ms\"\n\
             channel_bandwidth = \"400MB\"\n[cells]\n[limits]\nreset_free = true\n\
             reset_open = true\n"
        ))
        .expect("a device");
        let faults = FaultPlan::from_toml(faults).expect("a plan");
        let store = StoreKind::Memory;
        let options = SsdOptions { faults, seed, store, ..SsdOptions::default() };
        Store::Flash(Ssd::new(&spec, options).expect("a device"))
    }

    fn config() -> SftlConfig {
        // So few segments have as large areas as many.
        SftlConfig { meta_percent: 25, ..SftlConfig::default() }
    }

    /// For the first life.
    pub(crate) async fn create(&self, cx: &Cx) -> Medium {
        match self {
            Store::Ram(ram) => Medium::Linear(ram.clone()),
            Store::Flash(ssd) => {
                let sftl = Sftl::create(cx, ssd.clone(), Store::config()).await;
                Medium::from(sftl.expect("it is large enough"))
            }
        }
    }

    /// For another one.
    pub(crate) async fn medium(&self, cx: &Cx) -> Medium {
        match self {
            Store::Ram(ram) => Medium::Linear(ram.clone()),
            Store::Flash(ssd) => {
                let sftl = Sftl::mount(cx, ssd.clone(), Store::config()).await;
                Medium::from(sftl.expect("it is mounted"))
            }
        }
    }

    /// The power is cut; the run is over.
    pub(crate) fn cut(&self, at: Ns, rng: &mut Rng) {
        match self {
            Store::Ram(ram) => ram.power_cut(match rng.below(3) {
                0 => Keep::Oldest,
                _ => Keep::Drawn(rng.below(u64::MAX)),
            }),
            Store::Flash(ssd) => {
                ssd.power_cut(at, PowerOn::ClockRestarts);
                let counters = ssd.counters();
                assert_eq!(counters.violations, 0, "{:?}", ssd.violations().first());
            }
        }
    }
}

/// Pages of so many sectors, segments of 32 of them.
pub(crate) async fn make(cx: &Cx, device: &Arc<Ram>, page_sectors: u32) {
    make_on(cx, Medium::Linear(device.clone()), page_sectors).await;
}

pub(crate) async fn make_on(cx: &Cx, medium: Medium, page_sectors: u32) {
    let layout = medium.plan(page_sectors, 32).expect("it is large enough");
    mkfs(cx, medium, layout, &Make::default(), now(cx)).await.expect("it is made");
}

pub(crate) async fn mount(cx: &Cx, device: &Arc<Ram>) -> Arc<Fs> {
    Fs::mount(cx, Medium::Linear(device.clone()), small()).await.expect("it is mounted").0
}

pub(crate) async fn mount_with(cx: &Cx, medium: &Medium, options: Options) -> Arc<Fs> {
    Fs::mount(cx, medium.clone(), options).await.expect("it is mounted").0
}

/// The check finds nothing.
pub(crate) async fn sound(cx: &Cx, device: &Arc<Ram>) -> Report {
    sound_on(cx, &Medium::Linear(device.clone())).await
}

pub(crate) async fn sound_on(cx: &Cx, medium: &Medium) -> Report {
    let report = check(cx, medium).await.expect("it can be read");
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
