//! S-FTL on emulated devices.
//!
//! Owns: its devices, bringing it up and switching it off ([`Drive`]). Promises: every life ends with no
//! violation of the medium, and a clean one with both counter laws and the walk. Never: looks into S-FTL
//! other than through its public interface.

mod bad;
mod face;
mod model;
mod rules;
mod unreadable;

use crate::face::Truth;
use crate::medium::until_off;
pub(crate) use crate::prelude::*;
pub(crate) use flashlane_ftl::block::{Sectors, SectorsMut};
pub(crate) use flashlane_ftl::sftl::{
    CreateError, LAG, MountError, SegmentState, Settle, Sftl, SftlConfig, SftlError,
};
use flashlane_ocssd::device::Device;

/// A small device: channels × PUs, chunks of `pages` rows of 2 sectors.
pub(crate) fn device(
    (channels, pus): (u32, u32),
    chunks: u32,
    pages: u32,
    window: u32,
    cells: &str,
    limits: &str,
) -> DeviceSpec {
    let text = format!(
        "name = \"small\"\nppa = \"2.0\"\n\
         [geometry]\nchannels = {channels}\npus_per_channel = {pus}\nplanes = 1\n\
         chunks_per_pu = {chunks}\npages_per_block = {pages}\nsectors_per_page = 2\n\
         ws_min = 2\nws_opt = 2\nmw_cunits = {window}\n\
         [timing]\nread = [\"50us\"]\nprogram = [\"500us\"]\nerase = \"3ms\"\n\
         channel_bandwidth = \"400MB\"\n[cells]\n{cells}\n[limits]\n{limits}\n"
    );
    DeviceSpec::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

const FREE: &str = "reset_free = true\nreset_open = true\n";
const STRICT: &str = "reset_free = false\nreset_open = false\n";

/// As the paper's: two channels of one PU, no window, no pairs.
pub(crate) fn plain() -> DeviceSpec {
    device((2, 1), 24, 16, 0, "", FREE)
}

/// A read-back window of 3 pages, two PUs on the channel, and an erase only of what is full.
pub(crate) fn windowed() -> DeviceSpec {
    device((1, 2), 20, 16, 6, "", STRICT)
}

/// Pages that take each other along.
pub(crate) fn paired() -> DeviceSpec {
    device((2, 1), 44, 32, 10, "bits = 2\npairing = \"mlc\"\npair_damage = true\n", FREE)
}

/// With a write buffer that loses what it holds.
pub(crate) fn buffered() -> DeviceSpec {
    let limits = format!("{FREE}write_buffer = \"64KiB\"\ncapacitors = false\n");
    device((2, 2), 20, 16, 4, "", &limits)
}

/// The device over several lives.
#[derive(Clone)]
pub(crate) struct Drive {
    pub(crate) ssd: Arc<Ssd>,
    pub(crate) truth: Arc<Mutex<Truth>>,
    pub(crate) config: SftlConfig,
    pub(crate) seed: Cell<u64>,
    /// What the last life was told through.
    pub(crate) last: RefCell<Option<Arc<Face>>>,
}

impl Drive {
    pub(crate) fn new(spec: &DeviceSpec, faults: &str) -> Drive {
        let faults = FaultPlan::from_toml(faults).expect("a plan");
        let options = SsdOptions { faults, hazards: true, ..SsdOptions::default() };
        Drive::with(spec, options)
    }

    pub(crate) fn with(spec: &DeviceSpec, options: SsdOptions) -> Drive {
        let ssd = Ssd::new(spec, options).expect("a device");
        Drive {
            ssd,
            truth: Arc::default(),
            config: SftlConfig::default(),
            seed: Cell::new(1),
            last: RefCell::default(),
        }
    }

    /// A life: what `work` returns unless the power goes off first, which it does at its end at the latest.
    pub(crate) fn life<T: 'static, F>(
        &self,
        stop: Option<Stop>,
        work: impl FnOnce(Cx, Arc<dyn Device>) -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + 'static,
    {
        self.seed.set(self.seed.get() + 1);
        let face = Arc::new(Face::new(self.ssd.clone(), self.truth.clone(), stop));
        *self.last.borrow_mut() = Some(face.clone());
        let run = Virtual::new(1, self.seed.get(), CostTable::zero());
        let cx = run.cx();
        let join = cx.spawn_join(work(cx.clone(), face.clone()));
        let (theirs, watched) = (cx.clone(), face.clone());
        let ended = run.run(async move { until_off(&theirs, &watched, join).await });
        let ended = ended.expect("it ends");
        let at = run.now();
        drop((run, cx));
        self.ssd.power_cut(at, PowerOn::ClockRestarts);
        self.agrees();
        ended
    }

    /// A life of a new one.
    pub(crate) fn created<T: 'static, F>(
        &self,
        work: impl FnOnce(Cx, Arc<Sftl>) -> F + 'static,
    ) -> T
    where
        F: Future<Output = T> + 'static,
    {
        let config = self.config.clone();
        let ended = self.life(None, |cx, device| async move {
            let ftl = Sftl::create(&cx, device, config).await.expect("a new one");
            work(cx, ftl).await
        });
        ended.expect("nobody cuts")
    }

    /// A life of what is there.
    pub(crate) fn mounted<T: 'static, F>(
        &self,
        work: impl FnOnce(Cx, Arc<Sftl>) -> F + 'static,
    ) -> T
    where
        F: Future<Output = T> + 'static,
    {
        self.mounted_until(None, work).expect("nobody cuts")
    }

    pub(crate) fn mounted_until<T: 'static, F>(
        &self,
        stop: Option<Stop>,
        work: impl FnOnce(Cx, Arc<Sftl>) -> F + 'static,
    ) -> Option<T>
    where
        F: Future<Output = T> + 'static,
    {
        let config = self.config.clone();
        self.life(stop, |cx, device| async move {
            let ftl = Sftl::mount(&cx, device, config).await.unwrap_or_else(|e| panic!("{e}"));
            ftl.walk().unwrap();
            if ftl.may_be_torn() {
                let settled = ftl.settle(&cx, Settle::NothingIsMissing).await;
                settled.unwrap_or_else(|e| panic!("{e}"));
                ftl.walk().unwrap();
            }
            work(cx, ftl).await
        })
    }

    pub(crate) fn refused(&self) -> MountError {
        let config = self.config.clone();
        let life = self.life(None, |cx, device| async move {
            Sftl::mount(&cx, device, config).await.map(drop)
        });
        life.expect("nobody cuts").expect_err("it can't be mounted")
    }

    pub(crate) fn agrees(&self) {
        let counters = self.ssd.counters();
        assert_eq!(counters.violations, 0, "{:?}", self.ssd.violations().first());
        assert_eq!(counters.early_reads, 0);
    }
}

/// A list of one range.
pub(crate) fn only(range: std::ops::Range<u32>) -> Vec<std::ops::Range<u32>> {
    std::iter::once(range).collect()
}

/// Content of a sector of a segment in its n-th life: no two alike.
pub(crate) fn data(at: (u32, u32), life: u64, sector: u32, unit: usize) -> Vec<u8> {
    let seed = u64::from(at.0) << 40 | u64::from(at.1) << 20 | u64::from(sector);
    content(seed + 1, life, unit)
}

pub(crate) fn run_of(at: (u32, u32), life: u64, first: u32, n: u32, unit: usize) -> Vec<u8> {
    (first..first + n).flat_map(|s| data(at, life, s, unit)).collect()
}

/// Appends `n` sectors of a life of a segment at its pointer.
pub(crate) async fn put(
    ftl: &Sftl,
    cx: &Cx,
    at: (u32, u32),
    life: u64,
    n: u32,
) -> Result<(), SftlError> {
    let (first, unit) = (ftl.write_pointer(at.0, at.1), ftl.info().content_bytes);
    let bytes = run_of(at, life, first, n, unit);
    ftl.append(cx, at.0, at.1, first, Sectors::One(&bytes), Cause::User, false).await
}

/// Reads sectors of a segment.
pub(crate) async fn get(
    ftl: &Sftl,
    cx: &Cx,
    at: (u32, u32),
    first: u32,
    n: u32,
) -> Result<Vec<u8>, SftlError> {
    let mut bytes = vec![0xa5; n as usize * ftl.info().content_bytes];
    ftl.read(cx, at.0, at.1, first, SectorsMut::One(&mut bytes), false).await?;
    Ok(bytes)
}

/// A segment holds the first `n` sectors of a life, and no more.
pub(crate) async fn holds(ftl: &Sftl, cx: &Cx, at: (u32, u32), life: u64, n: u32) {
    assert_eq!(ftl.write_pointer(at.0, at.1), n, "{at:?}");
    let got = get(ftl, cx, at, 0, n).await.unwrap_or_else(|e| panic!("{e}"));
    assert!(got == run_of(at, life, 0, n, ftl.info().content_bytes), "{at:?} has other content");
}
