//! Whether a file system has room on a stack, and how large a device must be that has it.
//!
//! Owns: [`Wanted`], [`Tight`], what is said of them. Promises: a number that is said to suffice was tried, on
//! a device in memory. Never: touches the device or drive that it is about.

use crate::stack::{medium, medium_of};
use flashlane_base::{Geometry, SECTOR_BYTES};
use flashlane_ftl::layer::Stop;
use flashlane_ftl::sftl::SFTL;
use flashlane_ocssd::{SsdOptions, StoreKind};
use flashlane_parafs::{
    FsError, Layout, LayoutError, Make, Medium, Reserve, can_be_made, spare_most,
};
use flashlane_rt::{CostTable, Virtual};
use flashlane_stack::{Description, LayerSpec, Make as Raise, raise};

/// What a file system is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Sectors of a page, and pages of a segment, where the target is a block device.
    pub(crate) page_sectors: u32,
    pub(crate) segment_pages: u32,
    /// Segments that files can't have, beside the least.
    pub(crate) spare_segments: u32,
    pub(crate) reserve: Reserve,
    /// Small nodes share pages.
    pub(crate) shares_pages: bool,
}

impl Wanted {
    /// How it is made.
    pub(crate) fn make(&self) -> Make {
        let Wanted { spare_segments, reserve, .. } = *self;
        Make { spare_segments, reserve, ..Make::default() }
    }
}

/// Why a file system has no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Tight {
    /// The layers below can't be had on so small a device.
    #[error("it is too small for what is below a file system")]
    Below,
    #[error("{0}")]
    Layout(#[from] LayoutError),
    #[error("what its heads and cleaning need leaves nothing for files")]
    NothingLeft,
    #[error("`spare_segments` is {asked}, and at most {most} can be spare here")]
    Spare { asked: u32, most: u32 },
    /// No size would help.
    #[error("{0}")]
    Never(FsError),
}

/// Who is told what to do, and so by which words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Of an experiment's file.
    Experiment,
    /// Of `mkfs` on a drive.
    Drive,
}

impl Reader {
    /// That so many chunks of a PU are too few, and so many suffice.
    fn larger(self, geo: &Geometry, suffice: u32) -> String {
        let has = geo.chunks_per_pu;
        match self {
            Reader::Experiment => format!(
                "the device has {has} chunks per PU, give it {suffice} (`[device.geometry] \
                 chunks_per_pu = {suffice}`, or `[device] capacity = \"{}\"` in its place)",
                capacity(geo, suffice)
            ),
            Reader::Drive => format!(
                "the drive has {has} chunks per PU, and {suffice} suffice: create a larger one \
                 (`flashlane drive create --set geometry.chunks_per_pu={suffice}`)"
            ),
        }
    }
}

/// The capacity of a device with so many chunks per PU, as an experiment's file has it.
fn capacity(geo: &Geometry, chunks: u32) -> String {
    let sectors = geo.sectors() / u64::from(geo.chunks_per_pu) * u64::from(chunks);
    match sectors * SECTOR_BYTES as u64 / 1024 {
        kib if kib.is_multiple_of(1024) => format!("{}MiB", kib / 1024),
        kib => format!("{kib}KiB"),
    }
}

/// The areas of a file system on this medium, if it has room.
///
/// # Errors
/// It has not, or can't have one.
pub(crate) fn plan(medium: &Medium, wanted: &Wanted) -> Result<Layout, Tight> {
    let Wanted { page_sectors, segment_pages, shares_pages, .. } = *wanted;
    let layout = medium.plan_with(page_sectors, segment_pages, shares_pages)?;
    let make = wanted.make();
    match can_be_made(medium, &layout, &make) {
        Ok(()) => Ok(layout),
        Err(FsError::NoSpace) => Err(match spare_most(medium, &layout, &make) {
            Some(most) => Tight::Spare { asked: wanted.spare_segments, most },
            None => Tight::NothingLeft,
        }),
        Err(e) => Err(Tight::Never(e)),
    }
}

/// Whether a fresh stack like this one has room.
pub(crate) fn check(stack: &Description, wanted: &Wanted, seed: u64) -> Result<(), Tight> {
    let mut stack = stack.clone();
    if let Some(lowest) = stack.layers.first_mut() {
        *lowest = fresh(lowest);
    }
    let options = SsdOptions { store: StoreKind::Memory, timing: false, ..SsdOptions::default() };
    stack.device.options = options;
    let vm = Virtual::new(1, seed, CostTable::zero());
    let (cx, wanted) = (vm.cx(), *wanted);
    let done = vm.run(async move {
        let (_, part) = medium(&stack, seed).map_err(|_| Tight::Below)?;
        let layers = raise(&cx, part, &stack.layers, None, &Raise::Create).await;
        let layers = layers.map_err(|_| Tight::Below)?;
        let found = plan(&medium_of(&layers), &wanted);
        let _ = layers.stop(&cx, Stop::Clean).await; // it is thrown away
        found.map(drop)
    });
    done.unwrap_or(Err(Tight::Below))
}

/// Sectors of a device that is tried, at most: 32 GiB. A map of so many takes some moments.
const SECTORS_MAX: u64 = 1 << 23;

/// So large a device can be tried.
pub(crate) fn can_be_tried(stack: &Description) -> bool {
    is_small(&stack.device.spec.geometry())
}

/// True if a device has at most 32 GiB. A trial on it takes moments then, and a few hundred
/// megabytes of memory at most.
pub(crate) fn is_small(geo: &Geometry) -> bool {
    geo.sectors() <= SECTORS_MAX
}

/// Chunks of a PU with which a file system has room: few, and tried.
fn chunks_that_do(stack: &Description, wanted: &Wanted, seed: u64) -> Option<u32> {
    let has = stack.device.spec.geometry().chunks_per_pu;
    let does = |chunks: u32| {
        let mut larger = stack.clone();
        larger.device.spec = larger.device.spec.with_chunks_per_pu(chunks);
        can_be_tried(&larger).then(|| check(&larger, wanted, seed).is_ok())
    };
    let (mut least, mut most) = (has, has.checked_mul(2)?);
    while !does(most)? {
        (least, most) = (most, most.checked_mul(2)?);
    }
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        match does(middle)? {
            true => most = middle,
            false => least = middle,
        }
    }
    Some(most)
}

/// The smallest share of page-mapped chunks with which a file system has room on S-FTL.
fn percent_that_does(stack: &Description, wanted: &Wanted, seed: u64) -> Option<u64> {
    let lowest = stack.layers.first().filter(|layer| layer.kind.name() == name_of_sftl())?;
    let has = lowest.settings.get(META_PERCENT).and_then(serde_json::Value::as_u64)?;
    (has + 1..=PERCENT_MAX).find(|percent| {
        let mut other = stack.clone();
        other.layers[0].settings[META_PERCENT] = (*percent).into();
        check(&other, wanted, seed).is_ok()
    })
}

/// A layer as it would be made on another device: how S-FTL has divided one says nothing of that.
fn fresh(layer: &LayerSpec) -> LayerSpec {
    let mut layer = layer.clone();
    if layer.kind.name() == name_of_sftl() {
        let mut settings = layer.kind.defaults();
        for key in [META_PERCENT, "over_provisioning_percent", "flush_records", "small_spare"] {
            if let Some(value) = layer.settings.get(key) {
                settings[key] = value.clone();
            }
        }
        layer.settings = settings;
    }
    layer
}

const META_PERCENT: &str = "meta_percent";
const PERCENT_MAX: u64 = 50;

fn name_of_sftl() -> &'static str {
    flashlane_ftl::layer::Kind::name(&SFTL)
}

/// Why there is no room, and what would do.
pub(crate) fn says(
    tight: &Tight,
    stack: &Description,
    wanted: &Wanted,
    (seed, reader): (u64, Reader),
) -> String {
    let on_flash = stack.layers.last().is_some_and(|layer| layer.kind.name() == name_of_sftl());
    match tight {
        Tight::Never(FsError::Invalid(why)) => {
            return format!("it can't have a file system: {why}");
        }
        Tight::Never(_) => return format!("it can't have a file system: {tight}"),
        Tight::Spare { .. } => {
            return format!("{tight}: make `spare_segments` smaller, or the device larger");
        }
        Tight::Layout(LayoutError::Segment(_)) if on_flash => {
            return format!(
                "it can't have a file system: {tight}; a segment is a flash block, so give blocks more \
                 pages (`geometry.pages_per_block`)"
            );
        }
        Tight::Layout(LayoutError::Page(_)) if on_flash => {
            return format!(
                "it can't have a file system: {tight}; a page is what the flash programs at once, so \
                 choose a device with another write unit"
            );
        }
        Tight::Layout(
            LayoutError::Segment(_)
            | LayoutError::Page(_)
            | LayoutError::Pages(_)
            | LayoutError::Many(_),
        ) => {
            return format!("it can't have a file system: {tight}");
        }
        _ => {}
    }
    let chunks = match can_be_tried(stack) && stack.chunks.is_none() {
        true => chunks_that_do(stack, wanted, seed),
        false => None,
    };
    let geo = stack.device.spec.geometry();
    let larger = match (chunks, reader) {
        (Some(n), _) => reader.larger(&geo, n),
        (None, Reader::Experiment) => "give the device more chunks (`[device.geometry] \
             chunks_per_pu`, or `capacity` under [device]) or fewer channels"
            .to_string(),
        (None, Reader::Drive) => "create a larger drive (`flashlane drive create --set \
             geometry.chunks_per_pu=...`), or one with fewer channels"
            .to_string(),
    };
    let is_meta = matches!(tight, Tight::Layout(LayoutError::Meta { .. }));
    let percent = match is_meta && reader == Reader::Experiment && can_be_tried(stack) {
        true => percent_that_does(stack, wanted, seed),
        false => None,
    };
    let or = percent.map_or_else(String::new, |percent| {
        format!(", or S-FTL a larger region for metadata (`{META_PERCENT} = {percent}`)")
    });
    format!("it is too small for a file system: {tight}; {larger}{or}")
}

/// The same where the layers below can't be had on so small a device; nothing where no larger one is known that
/// does, as then it is for the layers to say what they lack.
pub(crate) fn says_below(
    stack: &Description,
    wanted: &Wanted,
    (seed, reader): (u64, Reader),
) -> Option<String> {
    let chunks = chunks_that_do(stack, wanted, seed).filter(|_| stack.chunks.is_none())?;
    let geo = stack.device.spec.geometry();
    Some(format!("it is too small for a file system: {}", reader.larger(&geo, chunks)))
}

/// Does this from within a run: what is tried has a thread of its own.
pub(crate) fn meanwhile<T: Send>(says: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|threads| threads.spawn(says).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
