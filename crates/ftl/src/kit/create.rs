//! How a drive's FTL is built: its settings, the division of the chunks, what is refused.
//!
//! Owns: [`DriveConfig`], the regions, pools and streams that follow from it ([`Plan`]), the sizes of
//! the buffer. Promises: what is out of range, or does not fit the device, is refused with the place
//! and the remedy before anything is read or written. Never: looks at what lies on the device.

use flashlane_base::{Geometry, mutant};
use flashlane_ocssd::device::{CellMode, Device, Traits};

use super::buffer::Sizes;
use super::place::{Layout, MAIN, Plan, PoolSpec, RegionSpec, SPARE_LINES_MIN, unit_of};
use super::sync;
use super::tier::{BUFFER, JOURNAL, TierConfig};
use super::{cache, map};
use crate::layer::{Kind, Settings};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What GC collects and erases at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// A chunk on each PU (a superblock).
    #[default]
    Line,
    /// A single flash block, as the FTLs of the ParaFS paper do.
    Block,
}

impl Victim {
    /// As settings call them.
    pub const NAMES: [(&'static str, Victim); 2] =
        [("line", Victim::Line), ("block", Victim::Block)];
}

/// Where the map is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapKind {
    /// All of it in the drive's memory.
    #[default]
    Whole,
    /// In translation pages on flash, entries of it cached on demand (DFTL).
    Cached,
}

impl MapKind {
    /// As settings call them.
    pub const NAMES: [(&'static str, MapKind); 2] =
        [("whole", MapKind::Whole), ("cached", MapKind::Cached)];
}

/// How a drive's FTL is built, by its kind of layer.
#[derive(Clone, Debug)]
pub struct DriveConfig {
    pub kind: &'static dyn Kind,
    /// As a drive keeps them.
    pub settings: Settings,
    /// Share of the raw sectors (bad chunks included) that the host does not see, in percent,
    /// 1 to 90. Bad chunks come out of it.
    pub over_provisioning_percent: u32,
    /// Host sectors that the write buffer holds; `None` is two write units per PU, at least 128.
    pub buffer_sectors: Option<u32>,
    /// What GC collects.
    pub victim: Victim,
    /// Where the map is, and, of one that is cached, how many entries the cache holds; `None` is one
    /// for 32 logical sectors, at least 1024.
    pub map: MapKind,
    pub map_cache: Option<u32>,
    /// GC works while fewer lines are free, at least 2: one is kept for GC itself, so at 1 the host
    /// would stop before GC starts. More is more even and costs effective spare. Where a victim is a
    /// block, a line is as many of them as there are PUs, and what GC keeps for barriers comes on top where
    /// that leaves half of the spare.
    pub gc_low_water_lines: u32,
    /// GC read commands (of up to 64 sectors) in flight; `None` reads about two units per PU ahead,
    /// of blocks one command per PU at least.
    pub gc_reads: Option<u32>,
    /// The buffer is on capacitors: what is acknowledged is durable, and a flush has nothing to
    /// wait for. Without, it is lost when the power goes, and a flush programs it.
    pub capacitors: bool,
    /// A flush records on two PUs which version of each sector counts (`stamps.rs`). So if a die is
    /// lost after a power cut and the loss is accepted, only the sectors on that die are lost.
    /// Without records every sector may be outdated, so all are lost. Fixed when the device is
    /// created. No effect with capacitors.
    pub flush_records: bool,
    /// Mount although sectors can't be read that were good once: older copies of what they held may
    /// be taken for it.
    pub accept_lost_sectors: bool,
    /// Pages of trims (of 4 KiB, each for 16,128 logical sectors) that the capacitors keep
    /// unwritten at most; `None` is 1024. Without effect where there are no capacitors.
    pub dirty_pages: Option<u32>,
    /// What of it is SLC, if anything.
    pub tier: Option<TierConfig>,
}

/// Why a drive's FTL can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error("{field} is {value}, it must be {range}")]
    Config { field: &'static str, value: u64, range: String },
    /// More sectors than a 32-bit map entry can name.
    #[error("{sectors} physical sectors are more than the {max} that its map can name")]
    TooLarge { sectors: u64, max: u64 },
    #[error(
        "{capacity} logical sectors leave {spare} of {usable} good physical sectors, \
         GC needs {needed}: raise over_provisioning_percent or give it more chunks per PU"
    )]
    TooSmall {
        /// Sectors the host would see.
        capacity: u64,
        usable: u64,
        spare: u64,
        /// What is needed: three lines.
        needed: u64,
    },
    /// The device holds data, or chunks in another cell mode.
    #[error("{chunks} chunks are not blank; reset them first, their data would be lost")]
    NotBlank {
        /// Chunks that are neither bad nor erased.
        chunks: u64,
    },
    #[error("the device allows {limit} open chunks, {needed} PUs need {each} each")]
    OpenLimit {
        /// Open chunks that the device allows.
        limit: u32,
        needed: u32,
        each: u32,
    },
    #[error(
        "the device has no SLC mode: choose one whose preset has `cells.slc`, as slc-tlc does, or \
         give it one"
    )]
    NoSlc,
    /// The regions can't be cut out of the SLC part.
    #[error("{what}: {remedy}")]
    Regions { what: String, remedy: &'static str },
}

/// What follows from device and configuration alone.
pub(super) struct Frame {
    pub(super) config: DriveConfig,
    pub(super) plan: Plan,
    pub(super) sizes: Sizes,
    /// Logical sectors: the host's, and behind them those of a map that is on flash.
    pub(super) capacity: u64,
    /// Sectors that the host sees.
    pub(super) host: u64,
}

impl Frame {
    pub(super) fn of(device: &dyn Device, config: DriveConfig) -> Result<Frame, CreateError> {
        Frame::on(device.geometry(), device.traits(), config)
    }

    fn on(geo: &Geometry, traits: &Traits, config: DriveConfig) -> Result<Frame, CreateError> {
        let config = config.on(geo, traits);
        if geo.sectors() > map::PHYSICAL_MAX {
            return Err(CreateError::TooLarge { sectors: geo.sectors(), max: map::PHYSICAL_MAX });
        }
        let plan = match &config.tier {
            None => one_region(geo, traits, config.victim)?,
            Some(tier) => with_slc(geo, traits, tier)?,
        };
        let sizes = check_config(&config, &plan.layout, traits.content_bytes)?;
        let main = plan.layout.main();
        let sectors = main.lines.len() as u128 * main.line_sectors as u128;
        let percent = 100 - config.over_provisioning_percent as u128;
        let host = (sectors * percent / 100) as u64;
        let capacity = match config.map {
            MapKind::Whole => host,
            MapKind::Cached => host + cache::pages_for(host),
        };
        Ok(Frame { config, plan, sizes, capacity, host })
    }
}

impl DriveConfig {
    /// Number of the `host`'s logical sectors whose flushed versions the device records: all or 0.
    pub(super) fn recorded(&self, host: u64) -> u32 {
        let keeps = self.flush_records && !self.capacitors;
        if keeps { host as u32 } else { 0 }
    }

    /// Where the medium itself outlives its host only once it is flushed (an image), no capacitors
    /// save this process's memory: the buffer is volatile there. Sizes that nobody said are kept as they
    /// came out: another default must not refuse a drive that there is.
    fn on(mut self, geo: &Geometry, traits: &Traits) -> DriveConfig {
        if self.capacitors && traits.volatile {
            self.capacitors = false;
            self.settings["capacitors"] = false.into();
        }
        if let Some(tier) = &self.tier {
            let sizes = tier.sizes(geo.pus(), geo.chunks_per_pu);
            self.settings["slc_chunks"] = sizes.slc_chunks.into();
            if sizes.journal_lines > 0 {
                self.settings["journal_lines"] = sizes.journal_lines.into();
                self.settings["journal_line_pus"] = sizes.journal_line_pus.into();
            }
        }
        self
    }
}

/// What the spare of a drive's FTL without capacitors depends on, in sectors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Sectors of a line over all PUs.
    pub(crate) line: u64,
    /// Needed whatever its size.
    pub(crate) fixed: u64,
    /// Needed besides for each of its lines.
    pub(crate) per_line: u64,
}

impl Need {
    /// Of one region over all PUs of `device`, on however many of its chunks.
    pub(crate) fn of(device: &dyn Device, config: DriveConfig) -> Result<Need, CreateError> {
        // Any number that will do: what is looked at does not depend on it.
        let geo = Geometry { chunks_per_pu: 64, ..*device.geometry() };
        let Frame { plan, sizes, config, .. } = Frame::on(&geo, device.traits(), config)?;
        let (layout, main) = (&plan.layout, plan.layout.main());
        let line = main.stripe_sectors() as u64;
        // Flush records take room in the spare and in the reserve, which grows with the lines.
        let recorded = config.recorded(1);
        let stamps = 2 * sync::spare_for_stamps(layout, line as u32) * u64::from(recorded);
        Ok(Need {
            line,
            fixed: SPARE_LINES_MIN * line
                + sync::reserve(layout, &sizes, recorded) as u64
                + sync::spare_for_stamps(layout, recorded),
            per_line: sync::spare_for_padding(layout) / u64::from(main.stripes()) + stamps,
        })
    }

    /// Of so many lines.
    pub(crate) fn lines(&self, lines: u32) -> u64 {
        self.fixed + self.per_line * u64::from(lines)
    }
}

/// Chunks in the native mode, in lines over all PUs.
fn native(geo: &Geometry, traits: &Traits, chunks: Range<u32>) -> RegionSpec {
    let unit = unit_of(geo.ws_min, geo.ws_opt, u32::MAX);
    RegionSpec {
        pool: MAIN,
        mode: CellMode::Native,
        chunks,
        positions: 0..geo.pus(),
        width: geo.pus(),
        unit,
        grain: unit,
        chunk_sectors: geo.sectors_per_chunk(),
        window: geo.mw_cunits,
        pairs: traits.pair_sectors,
    }
}

/// Streams of the main pool, where `others` chunks of each PU are open beside them: host and GC have
/// lines of their own where the device allows it.
fn main_streams(geo: &Geometry, traits: &Traits, others: u32) -> Result<usize, CreateError> {
    let unlimited = |n: u32| if n == 0 { u32::MAX } else { n };
    let (device, per_pu) = (unlimited(traits.max_open.0), unlimited(traits.max_open.1));
    let each = device.checked_div(geo.pus()).unwrap_or(0).min(per_pu);
    match each.checked_sub(others) {
        Some(0) | None => Err(CreateError::OpenLimit {
            limit: device.min(per_pu.saturating_mul(geo.pus())),
            needed: geo.pus(),
            each: others + 1,
        }),
        Some(1) => Ok(1),
        Some(_) => Ok(2),
    }
}

/// All chunks in the native mode, in lines of what GC is to collect.
fn one_region(geo: &Geometry, traits: &Traits, victim: Victim) -> Result<Plan, CreateError> {
    let width = match victim {
        Victim::Line => geo.pus(),
        Victim::Block => 1,
    };
    let region = RegionSpec { width, ..native(geo, traits, 0..geo.chunks_per_pu) };
    let layout = Layout::new(geo, &[region]);
    let streams = main_streams(geo, traits, 0)?;
    let pools = vec![PoolSpec { into: MAIN, host: 0, own: streams - 1, width }];
    Ok(Plan { layout, pools, streams: vec![MAIN; streams] })
}

/// The first chunks of each PU in SLC mode, for journals and as a buffer. Lines of the journal region
/// are narrow: they come free in small steps. What they leave of a chunk number is one more line of
/// the buffer.
fn with_slc(geo: &Geometry, traits: &Traits, tier: &TierConfig) -> Result<Plan, CreateError> {
    let slc = traits.slc.ok_or(CreateError::NoSlc)?;
    let (pus, chunks) = (geo.pus(), geo.chunks_per_pu);
    let refuse = |what: String, remedy| Err(CreateError::Regions { what, remedy });
    let tier = tier.sizes(pus, chunks);
    if tier.slc_chunks >= chunks {
        let what = format!("slc_chunks is {} of the {chunks} chunks of a PU", tier.slc_chunks);
        return refuse(what, "leave most of them for TLC");
    }
    let (lines, width) = (tier.journal_lines, tier.journal_line_pus);
    if lines > 0 && (width == 0 || !pus.is_multiple_of(width)) {
        let what = format!("journal_line_pus is {width} of {pus} PUs");
        return refuse(what, "it must divide the number of PUs");
    }
    if u64::from(lines) * u64::from(width) > u64::from(pus) * u64::from(chunks) {
        let what = format!("journal_lines is {lines}, the drive has {chunks} chunks per PU");
        return refuse(what, "give the journal region less than a half of the SLC part");
    }
    if lines == 1 {
        let what = "journal_lines is 1: a journal region of one line can't wrap".to_string();
        return refuse(what, "give it the size of the journal and two lines more, or 0 for none");
    }
    let abreast = if lines > 0 { pus / width } else { 1 };
    let (full, rest) = (lines / abreast, lines % abreast);
    let taken = full + u32::from(rest > 0);
    if tier.slc_chunks < taken + 2 {
        let what = format!(
            "slc_chunks is {}: the journal region's {lines} lines take {taken}, the buffer needs two",
            tier.slc_chunks
        );
        return refuse(what, "raise slc_chunks or lower journal_lines");
    }
    let main = native(geo, traits, tier.slc_chunks..chunks);
    if slc.ws_min > main.unit {
        let what =
            format!("a write unit has {} sectors in SLC mode, {} else", slc.ws_min, main.unit);
        return refuse(what, "make `cells.slc.ws_min` of the device no more than its `ws_opt`");
    }
    let whole = RegionSpec {
        pool: BUFFER,
        mode: CellMode::Slc,
        chunks: taken..tier.slc_chunks,
        // What is due in TLC is due in SLC.
        unit: unit_of(slc.ws_min, slc.ws_opt, main.unit),
        grain: slc.ws_min,
        chunk_sectors: slc.chunk_sectors,
        window: 0,
        pairs: 0,
        ..main.clone()
    };
    let mut specs = vec![main, whole.clone()];
    let journal = RegionSpec { pool: JOURNAL, chunks: 0..full, width, ..whole.clone() };
    if full > 0 {
        specs.push(journal.clone());
    }
    if rest > 0 {
        let (chunks, end) = (full..full + 1, rest * width);
        specs.push(RegionSpec { chunks: chunks.clone(), positions: 0..end, ..journal });
        specs.push(RegionSpec { chunks, positions: end..pus, width: pus - end, ..whole });
    }
    let layout = Layout::new(geo, &specs);
    let others = if lines > 0 { vec![BUFFER, JOURNAL] } else { vec![BUFFER] };
    let main = main_streams(geo, traits, others.len() as u32)?;
    // What leaves a region goes to the main pool, for all that is counted beforehand.
    let alone = |stream: usize| PoolSpec { into: MAIN, host: stream, own: stream, width: pus };
    let last = main + others.len() - 1;
    let first = PoolSpec { into: MAIN, host: 0, own: main - 1, width: pus };
    let pools = vec![first, alone(main), alone(last)];
    let mut streams = vec![MAIN; main];
    streams.extend(others);
    Ok(Plan { layout, pools, streams })
}

/// Refuses numbers out of range and works out the sizes of the buffer.
fn check_config(
    config: &DriveConfig,
    layout: &Layout,
    content_bytes: usize,
) -> Result<Sizes, CreateError> {
    let within = |field, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            return Ok(value as u32);
        }
        Err(CreateError::Config { field, value, range: format!("{least} to {most}") })
    };
    let main = layout.main();
    if let Some(entries) = config.map_cache {
        within("map_cache", entries.into(), 1, u64::from(u32::MAX))?;
    }
    let percent = config.over_provisioning_percent as u64;
    within("over_provisioning_percent", percent, 1, 90)?;
    if main.stripes() < 2 {
        // No number of lines would do.
        let usable = main.lines.len() as u64 * u64::from(main.line_sectors);
        let capacity = usable * 100u64.saturating_sub(percent) / 100;
        let needed = SPARE_LINES_MIN * main.stripe_sectors() as u64;
        let spare = usable - capacity;
        return Err(CreateError::TooSmall { capacity, usable, spare, needed });
    }
    let water = config.gc_low_water_lines as u64;
    within("gc_low_water_lines", water, 2, u64::from(main.stripes()))?;
    let all_units = layout.positions as u64 * main.unit as u64;
    let buffer = config.buffer_sectors.map_or((2 * all_units).max(128), u64::from);
    // A rest too small for a unit may wait for ever; the largest piece must fit beside it.
    let buffer_least = 4 * main.unit as u64;
    let user_room = within("buffer_sectors", buffer, buffer_least, 1 << 24)?;
    let vector = flashlane_base::VECTOR_MAX as u64;
    // Blocks are on one die each: a read for each die at least.
    let dies = if main.width == 1 { u64::from(layout.positions) } else { 1 };
    let reads = (2 * all_units).div_ceil(vector).max(dies).min(64);
    let reads = config.gc_reads.map_or(reads, u64::from);
    let reads = within("gc_reads", reads, 1, 1024)?;
    let window = (main.window + main.unit).min(main.chunk_sectors);
    let both = config.tier.is_some() && !mutant!("slc.room-for-one-rest");
    let queues = if both { 2 } else { 1 };
    Ok(Sizes {
        user_room,
        // Beside the last read a rest too small for a unit waits in each queue of moved sectors.
        gc_room: reads * vector as u32 + queues * main.unit,
        windows: 2 * layout.positions * window,
        content_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::buffer::Kind;
    use super::*;
    use crate::slc::SlcConfig;
    use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};

    /// What moves goes on when nothing but rests is in its way: of each queue of moved sectors one that is
    /// a sector short of a unit.
    #[test]
    fn a_batch_finds_room_beside_the_rests_of_all_queues() {
        let spec = DeviceSpec::preset("slc-tlc").expect("a device");
        let ssd = Ssd::new(&spec, SsdOptions::default()).expect("a device");
        for gc_reads in [None, Some(1)] {
            let config = SlcConfig { gc_reads, ..SlcConfig::default() };
            let Frame { plan, sizes, .. } = Frame::of(&*ssd, config.into()).expect("a drive");
            let rests = [Kind::Gc, Kind::Wrap].map(|_| plan.layout.main().unit - 1);
            let batch = flashlane_base::VECTOR_MAX as u32;
            assert!(sizes.gc_room - rests.iter().sum::<u32>() >= batch, "{gc_reads:?}");
        }
    }
}
