//! Media that lose their power, file systems on them, and what tests do with these most of all.
//!
//! Owns: [`Store`] (what lasts over several lives), small helpers. Promises: a drawn store can have a file
//! system; a cut says whether a rule of the medium was broken before. Never: knows what a file holds.

use crate::aim::Aim;
use crate::devices::{self, Size};
use crate::harness::{Boot, Check, Machine, MediumSlot, OracleSlot};
use crate::moments::Moments;
use crate::ram::{Keep, Ram};
use crate::stacks;
use crate::swarm::Boxed;
use flashlane_base::{Geometry, Lba, Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Started};
use flashlane_ftl::sftl::{Sftl, SftlConfig};
use flashlane_ocssd::{DeviceSpec, FaultPlan, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_parafs::{
    Attributes, Depth, Fs, FsError, Layout, LayoutError, Make, Medium, New, Options, Policy,
    Report, Reserve, Time, check, check_with, mkfs,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

pub const FILE: u16 = 0o100_644;
pub const DIR: u16 = 0o040_755;
pub const LINK: u16 = 0o120_777;

/// A device that keeps every promise of a block device, and no more.
pub fn ram(mib: u64, seed: u64) -> Arc<Ram> {
    Arc::new(Ram::new(mib * 256, SECTOR_BYTES, Ns::from_us(20), seed))
}

pub fn run<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    body: impl FnOnce(Cx) -> F,
) -> T {
    let clock = Virtual::new(1, seed, CostTable::zero());
    let cx = clock.cx();
    clock.run(body(cx)).expect("it goes on")
}

pub fn now(cx: &Cx) -> Time {
    let ns = cx.now().as_ns();
    Time { seconds: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
}

/// Small caches, so that what was there has to come again.
pub fn small() -> Options {
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
pub enum Store {
    Ram(Arc<Ram>),
    /// Flash, and S-FTL on it.
    Flash(OnFlash),
    /// A block SSD: flash, and an FTL of its own on it.
    Block(OnBlocks),
}

/// A block SSD that outlives its power.
#[derive(Clone)]
pub struct OnBlocks {
    machine: Rc<dyn Machine>,
    flash: Geometry,
    /// It may become read-only, or fail.
    fails: bool,
}

/// A medium of a life, and what ends it cleanly where somebody has to.
pub(crate) struct Booted {
    pub(crate) medium: Medium,
    pub(crate) stop: Option<(Boxed<'static, Result<(), String>>, Check)>,
}

/// Units of a log on a medium that leaves that to the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    /// Sectors of a page.
    pub(crate) page: u32,
    /// Pages of a segment.
    pub(crate) segment: u32,
    /// On every medium.
    pub(crate) reserve: Reserve,
    pub(crate) shares_pages: bool,
    /// Pages of files have checksums.
    pub(crate) data_checksums: bool,
}

impl Units {
    fn plan(&self, medium: &Medium) -> Result<Layout, LayoutError> {
        medium.plan_with(self.page, self.segment, self.shares_pages)
    }
}

/// Pages of a segment in memory.
const SEGMENT_PAGES: u32 = 32;
/// Pages that a segment must have.
const SEGMENT_LEAST: u64 = 8;

/// Flash that outlives its power.
#[derive(Clone)]
pub struct OnFlash {
    ssd: Arc<Ssd>,
    spec: Arc<DeviceSpec>,
    options: SsdOptions,
    faulty: bool,
    /// The page-mapped region has flush records.
    records: bool,
    /// How much the first file system on it keeps from files.
    reserve: Reserve,
}

/// What goes wrong on drawn flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    Never,
    /// What the seed draws for it.
    Now,
    /// What somebody adds later; until then nothing.
    Later,
}

/// Chunks of a PU that a drawn device may be enlarged to.
const CHUNKS_MAX: u32 = 400;
/// Devices that are drawn until one can have a file system.
const DRAWS: u64 = 16;

impl Store {
    /// A small device of so many channels: segments of 16 pages of 8 KiB.
    pub fn flash(channels: u32, chunks: u32, faults: &str, seed: u64) -> Store {
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
        let ssd = Ssd::new(&spec, options.clone()).expect("a device");
        let (spec, reserve) = (Arc::new(spec), Reserve::Full);
        Store::Flash(OnFlash { ssd, spec, options, faulty: false, records: false, reserve })
    }

    /// A device of any shape that a file system can be on, with S-FTL and an empty file system, as small as it
    /// can be: read-back windows, write buffers, channels, PUs, planes.
    ///
    /// # Panics
    /// Many devices that were drawn in a row have no room for one.
    pub fn draw_flash(seed: u64, size: Size, faulty: bool) -> Store {
        Store::draw_failing(seed, size, if faulty { Failing::Now } else { Failing::Never })
    }

    /// The same on at least two PUs, where somebody has whole failure units vanish later.
    ///
    /// # Panics
    /// As [`Store::draw_flash`].
    pub(crate) fn draw_vanishing(seed: u64, size: Size) -> Store {
        Store::draw_failing(seed, size, Failing::Later)
    }

    fn draw_failing(seed: u64, size: Size, failing: Failing) -> Store {
        let mut why = String::new();
        // Some shapes are none for S-FTL.
        for other in 0..DRAWS {
            match OnFlash::draw(seed ^ other << 56, size, failing) {
                Ok(flash) => return Store::Flash(flash),
                Err(refusal) => why = refusal,
            }
        }
        panic!("seed {seed} has no file system: {why}");
    }

    /// The flash that it is, if it is no more than that.
    pub(crate) fn ssd(&self) -> Option<&Arc<Ssd>> {
        match self {
            Store::Flash(flash) => Some(&flash.ssd),
            Store::Ram(_) | Store::Block(_) => None,
        }
    }

    /// A block SSD of any shape with room for a file system of this policy, as small as it can be:
    /// capacitors or none, any victims and maps.
    ///
    /// # Panics
    /// Many devices that were drawn in a row have no room for one.
    pub(crate) fn draw_block(seed: u64, size: Size, faulty: bool, policy: Policy) -> Store {
        let mut why = String::new();
        for other in 0..DRAWS {
            match OnBlocks::draw(seed ^ other << 56, size, faulty, policy) {
                Ok(blocks) => return Store::Block(blocks),
                Err(refusal) => why = refusal,
            }
        }
        panic!("seed {seed} has no block SSD with a file system: {why}");
    }

    /// Memory of so many MiB for segments of the usual size, and more for larger ones.
    pub(crate) fn in_memory(policy: Policy, mib: u64, seed: u64) -> Store {
        Store::Ram(ram(mib * u64::from(in_memory(policy) / SEGMENT_PAGES), seed))
    }

    /// The units of a log of a policy, with pages of so many sectors where nothing speaks against it.
    pub(crate) fn units(&self, policy: Policy, page: u32, seed: u64) -> Units {
        let units = match self {
            Store::Ram(_) => Units { segment: in_memory(policy), ..units_of(page) },
            Store::Flash(flash) => units_of(flash.spec.geometry.ws_min),
            Store::Block(blocks) => units_on(policy, &blocks.flash, page),
        };
        let data_checksums = data_checksums(seed);
        let (reserve, shares_pages) = (reserve_of(seed), shares_pages(seed));
        Units { reserve, shares_pages, data_checksums, ..units }
    }

    /// It may become read-only by what is drawn for it.
    pub(crate) fn fails(&self) -> bool {
        match self {
            Store::Ram(_) => false,
            Store::Flash(flash) => flash.faulty,
            Store::Block(blocks) => blocks.fails,
        }
    }

    /// For the first life.
    pub async fn create(&self, cx: &Cx) -> Medium {
        match self {
            Store::Ram(ram) => Medium::Linear(ram.clone()),
            Store::Flash(flash) => {
                let sftl = Sftl::create(cx, flash.ssd.clone(), flash.config()).await;
                Medium::from(sftl.expect("it is large enough"))
            }
            Store::Block(blocks) => blocks.quiet(cx).await.expect("it is large enough").medium,
        }
    }

    /// For another one.
    pub async fn medium(&self, cx: &Cx) -> Medium {
        match self {
            Store::Ram(ram) => Medium::Linear(ram.clone()),
            Store::Flash(flash) => {
                let sftl = Sftl::mount(cx, flash.ssd.clone(), flash.config()).await;
                Medium::from(sftl.expect("it is mounted"))
            }
            Store::Block(blocks) => blocks.quiet(cx).await.expect("it is mounted").medium,
        }
    }

    /// The same, with whoever looks on in this life.
    pub(crate) async fn booted(&self, boot: &Boot) -> Result<Booted, Trouble> {
        let noted = |device: Arc<dyn BlockDev>| {
            let (moments, aim) = (boot.moments.clone(), boot.aim.clone());
            Medium::Linear(Arc::new(Noted { device, moments, aim }))
        };
        match self {
            Store::Ram(ram) => Ok(Booted { medium: noted(ram.clone()), stop: None }),
            Store::Block(blocks) => {
                let up = blocks.machine.clone().up(boot.clone()).await.map_err(|why| {
                    let why = format!("the block SSD is not mounted: {why}");
                    if blocks.fails { Trouble::Medium(why) } else { Trouble::Wrong(why) }
                })?;
                let stop = Some((up.stop, up.check_stopped));
                Ok(Booted { medium: noted(up.dev), stop })
            }
            Store::Flash(flash @ OnFlash { ssd, faulty, .. }) => {
                let device = stacks::watched(ssd.clone(), ssd, *faulty, boot);
                let sftl = Sftl::mount(&boot.cx, device, flash.config()).await;
                let sftl = sftl.map_err(|e| {
                    let why = format!("S-FTL is not mounted: {e}");
                    // Where sectors are lost for good it says so.
                    if *faulty { Trouble::Medium(why) } else { Trouble::Wrong(why) }
                })?;
                Ok(Booted { medium: Medium::from(sftl), stop: None })
            }
        }
    }

    /// The power is cut; the run is over.
    ///
    /// # Errors
    /// A rule of the medium was broken before.
    pub fn cut(&self, at: Ns, rng: &mut Rng) -> Result<(), String> {
        match self {
            Store::Ram(ram) => {
                ram.power_cut(match rng.below(3) {
                    0 => Keep::Oldest,
                    _ => Keep::Drawn(rng.below(u64::MAX)),
                });
                Ok(())
            }
            Store::Flash(OnFlash { ssd, .. }) => {
                ssd.power_cut(at, PowerOn::ClockRestarts);
                stacks::no_violations(ssd)
            }
            Store::Block(blocks) => {
                blocks.machine.cut(at, rng.below(u64::MAX));
                Ok(())
            }
        }
    }

    /// The power goes behind the end of a life that nobody cut.
    pub(crate) fn off(&self, at: Ns, rng: &mut Rng) -> Result<(), String> {
        match self {
            Store::Block(blocks) => {
                blocks.machine.off(at);
                Ok(())
            }
            _ => self.cut(at, rng),
        }
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Store::Ram(ram) => format!("memory of {} sectors", ram.info().capacity),
            Store::Flash(OnFlash { spec, options, faulty, .. }) => {
                let faults = match faulty {
                    true => format!(", faults {}", devices::describe_faults(options)),
                    false => String::new(),
                };
                devices::describe(spec, options) + &faults
            }
            Store::Block(blocks) => blocks.machine.describe(),
        }
    }
}

/// Pages of a segment in memory: a super block is of two.
fn in_memory(policy: Policy) -> u32 {
    if policy == Policy::F2fsSb { 2 * SEGMENT_PAGES } else { SEGMENT_PAGES }
}

/// Segments as large as a policy wants them over flash of this shape; pages of one sector where they would
/// have too few otherwise.
fn units_on(policy: Policy, flash: &Geometry, page: u32) -> Units {
    let Some(sectors) = policy.segment_sectors(flash) else {
        return units_of(page);
    };
    let page = if sectors / u64::from(page) < SEGMENT_LEAST { 1 } else { page };
    Units { segment: (sectors / u64::from(page)) as u32, ..units_of(page) }
}

/// Pages of so many sectors, and all else as it mostly is.
fn units_of(page: u32) -> Units {
    let (reserve, segment) = (Reserve::Full, SEGMENT_PAGES);
    Units { page, segment, reserve, shares_pages: true, data_checksums: false }
}

/// Half of all file systems keep no more than a drive's.
fn reserve_of(seed: u64) -> Reserve {
    match Rng::stream(seed, "testkit.files.reserve", 0).below(2) {
        0 => Reserve::Full,
        _ => Reserve::Shared,
    }
}

/// In two thirds of all file systems small nodes share pages, as on a drive.
fn shares_pages(seed: u64) -> bool {
    Rng::stream(seed, "testkit.files.shares", 0).below(3) > 0
}

/// In half of all file systems pages of files have checksums.
fn data_checksums(seed: u64) -> bool {
    Rng::stream(seed, "testkit.files.sums", 0).below(2) == 0
}

impl OnBlocks {
    fn draw(seed: u64, size: Size, faulty: bool, policy: Policy) -> Result<OnBlocks, String> {
        let mut chunks = 0;
        loop {
            let (machine, flash) = stacks::block_ssd(seed, size, faulty, chunks);
            let blocks = OnBlocks { machine, flash, fails: faulty };
            match blocks.settle(seed, policy)? {
                Some(may_give_up) => {
                    // An empty one: the first life makes it.
                    let (machine, flash) = stacks::block_ssd(seed, size, faulty, chunks);
                    return Ok(OnBlocks { machine, flash, fails: faulty || may_give_up });
                }
                None if flash.chunks_per_pu > CHUNKS_MAX => return Err("it is too small".into()),
                None => chunks = flash.chunks_per_pu + flash.chunks_per_pu / 2,
            }
        }
    }

    /// Whether it may give up, where it has room for a file system with either size of pages.
    fn settle(&self, seed: u64, policy: Policy) -> Result<Option<bool>, String> {
        let clock = Virtual::new(1, seed, CostTable::zero());
        let (cx, machine, flash) = (clock.cx(), self.machine.clone(), self.flash);
        let tried = clock.run(async move {
            let up = machine.up(quiet(&cx)).await?;
            let medium = Medium::Linear(up.dev.clone());
            let fits = [1, 2].into_iter().all(|page| {
                let units = units_on(policy, &flash, page);
                Units { shares_pages: true, ..units }.plan(&medium).is_ok()
            });
            Ok(fits.then_some(up.may_give_up))
        });
        tried.map_err(|stalled| stalled.to_string())?
    }

    async fn quiet(&self, cx: &Cx) -> Result<Booted, String> {
        let up = self.machine.clone().up(quiet(cx)).await?;
        Ok(Booted { medium: Medium::Linear(up.dev), stop: Some((up.stop, up.check_stopped)) })
    }
}

/// Nobody looks on.
fn quiet(cx: &Cx) -> Boot {
    Boot {
        cx: cx.clone(),
        oracle: OracleSlot::default(),
        moments: None,
        aim: None,
        medium: MediumSlot::default(),
    }
}

impl OnFlash {
    fn draw(seed: u64, size: Size, failing: Failing) -> Result<OnFlash, String> {
        let (mut spec, mut options) = devices::small(seed, size);
        let faulty = failing == Failing::Now;
        // Where units vanish most devices have flush records, as drives on an image have.
        let records = failing == Failing::Later && !seed.is_multiple_of(4);
        // Three of four devices that could have page pairs have them.
        spec.cells.pair_damage &= Rng::stream(seed, "testkit.files.pairs", 0).below(4) > 0;
        options.store = StoreKind::Memory;
        if Rng::stream(seed, "testkit.files.buffer", 0).below(3) == 0 {
            devices::with_buffer(seed, &mut spec);
        }
        match failing {
            Failing::Never => {}
            Failing::Now => options.faults = devices::faults(seed),
            Failing::Later => {
                options.faults = devices::never();
                if spec.geometry.channels * spec.geometry.pus_per_channel < 2 {
                    spec.geometry.channels = 2;
                }
            }
        }
        loop {
            let ssd = Ssd::new(&spec, options.clone()).map_err(|e| e.to_string())?;
            let flash = OnFlash {
                ssd,
                spec: spec.clone().into(),
                options: options.clone(),
                faulty,
                records,
                reserve: reserve_of(seed),
            };
            match flash.settle() {
                Ok(()) => return Ok(flash),
                Err(refusal) if spec.geometry.chunks_per_pu > CHUNKS_MAX => return Err(refusal),
                Err(_) => {}
            }
            let chunks = spec.geometry.chunks_per_pu;
            spec = spec.with_chunks_per_pu(chunks + chunks / 2);
        }
    }

    fn config(&self) -> SftlConfig {
        let flush_records = self.records;
        // So few segments have as large areas as many.
        SftlConfig { meta_percent: 25, flush_records, ..SftlConfig::default() }
    }

    /// Puts S-FTL and a file system on it, for the first time.
    fn settle(&self) -> Result<(), String> {
        let clock = Virtual::new(1, self.options.seed, CostTable::zero());
        let (cx, ssd, config) = (clock.cx(), self.ssd.clone(), self.config());
        let seed = self.options.seed;
        let (reserve, shares_pages) = (self.reserve, shares_pages(seed));
        let data_checksums = data_checksums(seed);
        let made = clock.run(async move {
            let sftl = Sftl::create(&cx, ssd, config).await.map_err(|e| e.to_string())?;
            let units = Units { reserve, shares_pages, data_checksums, ..units_of(0) };
            let made = make_of(&cx, Medium::from(sftl), units).await;
            made.map_err(|e| e.to_string())
        });
        let at = clock.now();
        drop(clock);
        self.ssd.power_cut(at, PowerOn::ClockRestarts);
        made.map_err(|stalled| stalled.to_string())?
    }
}

/// Says when requests begin and end.
struct Noted {
    device: Arc<dyn BlockDev>,
    moments: Option<Moments>,
    aim: Option<Arc<Aim>>,
}

impl Noted {
    fn note(&self, cx: &Cx, op: BlockOp, fua: bool, answered: bool) {
        self.moments.iter().for_each(|moments| moments.note(cx.now()));
        self.aim.iter().for_each(|aim| aim.host(cx, op, fua, answered));
    }
}

impl BlockDev for Noted {
    fn info(&self) -> &BlockInfo {
        self.device.info()
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(async move {
            let (op, fua) = (io.op, io.fua);
            self.note(cx, op, fua, false);
            let done = self.device.start(cx, io).await;
            self.note(cx, op, fua, true);
            done
        })
    }
    fn expect(&self, op: BlockOp, lba: Lba) {
        self.device.expect(op, lba);
    }
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.device.extent(lba, most)
    }
}

/// Pages of so many sectors, segments of 32 of them.
pub async fn make(cx: &Cx, device: &Arc<Ram>, page_sectors: u32) {
    let made = make_on(cx, Medium::Linear(device.clone()), page_sectors).await;
    made.expect("it is made");
}

/// The same on any medium; flash has pages of its own.
///
/// # Errors
/// It is too small, or did not take it.
pub async fn make_on(cx: &Cx, medium: Medium, page_sectors: u32) -> Result<(), FsError> {
    make_of(cx, medium, units_of(page_sectors)).await
}

/// As [`make_unshared`], with checksums of the pages of files.
///
/// # Errors
/// As [`make_on`].
pub async fn make_summed(cx: &Cx, medium: Medium, page_sectors: u32) -> Result<(), FsError> {
    let units = Units { data_checksums: true, shares_pages: false, ..units_of(page_sectors) };
    make_of(cx, medium, units).await
}

/// As [`make_on`], of a file system in which each node has a page of its own.
///
/// # Errors
/// As [`make_on`].
pub async fn make_unshared(cx: &Cx, medium: Medium, page_sectors: u32) -> Result<(), FsError> {
    make_of(cx, medium, Units { shares_pages: false, ..units_of(page_sectors) }).await
}

pub(crate) async fn make_of(cx: &Cx, medium: Medium, units: Units) -> Result<(), FsError> {
    let layout = units.plan(&medium).map_err(|_| FsError::NoSpace)?;
    let Units { reserve, data_checksums, .. } = units;
    let make = Make { reserve, data_checksums, ..Make::default() };
    mkfs(cx, medium, layout, &make, now(cx)).await
}

/// As [`make_on`], of a file system that keeps as little as a drive's.
///
/// # Errors
/// As [`make_on`].
pub async fn make_small(cx: &Cx, medium: Medium, page_sectors: u32) -> Result<(), FsError> {
    make_of(cx, medium, Units { reserve: Reserve::Shared, ..units_of(page_sectors) }).await
}

pub async fn mount(cx: &Cx, device: &Arc<Ram>) -> Arc<Fs> {
    Fs::mount(cx, Medium::Linear(device.clone()), small()).await.expect("it is mounted").0
}

pub async fn mount_with(cx: &Cx, medium: &Medium, options: Options) -> Arc<Fs> {
    Fs::mount(cx, medium.clone(), options).await.expect("it is mounted").0
}

/// Why something is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The medium can't be read, or takes nothing any more.
    Medium(String),
    /// It is wrong.
    Wrong(String),
}

impl Trouble {
    pub(crate) fn of(what: &str, e: &FsError) -> Trouble {
        let why = format!("{what}: {e}");
        match e {
            FsError::Io(_) | FsError::ReadOnly(_) => Trouble::Medium(why),
            _ => Trouble::Wrong(why),
        }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Wrong(why)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Trouble::Medium(why) | Trouble::Wrong(why)) = self;
        why.fmt(f)
    }
}

/// The check finds nothing.
pub(crate) async fn problems(cx: &Cx, medium: &Medium) -> Result<(), Trouble> {
    let report = check(cx, medium).await.map_err(|e| Trouble::of("it can't be checked", &e))?;
    let Some(first) = report.problems.first() else { return matches(cx, medium).await };
    let why = format!("the check finds {} problems: {first}", report.found);
    // What hangs on what can't be read is wrong, too.
    Err(if report.unread > 0 { Trouble::Medium(why) } else { Trouble::Wrong(why) })
}

/// All pages of files that can be read match their checksums.
async fn matches(cx: &Cx, medium: &Medium) -> Result<(), Trouble> {
    let deep = check_with(cx, medium, Depth::Contents, &|_, _, _| ()).await;
    let report = deep.map_err(|e| Trouble::of("contents can't be checked", &e))?;
    match report.problems.iter().find(|problem| problem.contains("does not match")) {
        Some(first) => Err(Trouble::Wrong(format!("a scrub finds: {first}"))),
        None => Ok(()),
    }
}

/// The same, of memory, and what it says.
pub async fn sound(cx: &Cx, device: &Arc<Ram>) -> Report {
    sound_on(cx, &Medium::Linear(device.clone())).await
}

pub async fn sound_on(cx: &Cx, medium: &Medium) -> Report {
    let report = check(cx, medium).await.expect("it can be read");
    assert_eq!(report.problems, Vec::<String>::new());
    report
}

pub fn new(mode: u16) -> New {
    New { mode, uid: 1000, gid: 100, ..New::default() }
}

pub async fn create(cx: &Cx, fs: &Arc<Fs>, dir: u32, name: &str, mode: u16) -> Attributes {
    fs.create(cx, dir, name.as_bytes(), &new(mode), now(cx)).await.expect("it is made")
}

pub async fn content(cx: &Cx, fs: &Arc<Fs>, ino: u32) -> Vec<u8> {
    let size = fs.attributes(cx, ino).await.expect("it is there").size;
    let mut all = vec![0xee; size as usize + 10];
    let n = fs.read(cx, ino, 0, &mut all).await.expect("it is read");
    assert_eq!(n as u64, size);
    all.truncate(n);
    all
}

/// The seeds of a test: `FLASHLANE_SEED` names one, or several as `100..200`.
pub fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    // Tests are told by their environment what to repeat.
    #[allow(clippy::disallowed_methods)]
    let Ok(asked) = std::env::var("FLASHLANE_SEED") else { return default };
    let number = |text: &str| text.parse().expect("FLASHLANE_SEED is a number, or two: 1..9");
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&asked)..number(&asked) + 1,
    }
}
