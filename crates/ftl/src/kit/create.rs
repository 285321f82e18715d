//! How a drive's FTL is built: its settings, the division of the chunks, what is refused.
//!
//! Owns: [`DriveConfig`], the regions, pools and streams that follow from it ([`Plan`]), the sizes of
//! the buffer. Promises: what is out of range, or does not fit the device, is refused with the place
//! and the remedy before anything is read or written. Never: looks at what lies on the device.

use flashlane_base::Geometry;
use flashlane_ocssd::device::{CellMode, Device, Traits};

use super::buffer::Sizes;
use super::map;
use super::place::{Layout, MAIN, Plan, PoolSpec, RegionSpec, native_unit};
use crate::layer::{Kind, Settings};

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
    /// GC works while fewer lines are free, at least 2: one is kept for GC itself, so at 1 the host
    /// would stop before GC starts. More is more even and costs effective spare.
    pub gc_low_water_lines: u32,
    /// GC read commands (of up to 64 sectors) in flight; `None` reads about two units per PU ahead.
    pub gc_reads: Option<u32>,
    /// The buffer is on capacitors: what is acknowledged is durable, and a flush has nothing to
    /// wait for. Without, it is lost when the power goes, and a flush programs it.
    pub capacitors: bool,
    /// Mount although sectors can't be read that were good once: older copies of what they held may
    /// be taken for it.
    pub accept_lost_sectors: bool,
    /// Pages of trims (of 4 KiB, each for 16,128 logical sectors) that the capacitors keep
    /// unwritten at most; `None` is 1024. Without effect where there are no capacitors.
    pub dirty_pages: Option<u32>,
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
    #[error("the device allows {limit} open chunks, {needed} PUs need one each")]
    OpenLimit {
        /// Open chunks that the device allows.
        limit: u32,
        needed: u32,
    },
}

/// What follows from device and configuration alone.
pub(super) struct Frame {
    pub(super) config: DriveConfig,
    pub(super) plan: Plan,
    pub(super) sizes: Sizes,
    /// Sectors that the host sees.
    pub(super) capacity: u64,
}

impl Frame {
    pub(super) fn of(device: &dyn Device, config: DriveConfig) -> Result<Frame, CreateError> {
        let (geo, traits) = (device.geometry(), device.traits());
        let config = config.on(traits);
        if geo.sectors() > map::PHYSICAL_MAX {
            return Err(CreateError::TooLarge { sectors: geo.sectors(), max: map::PHYSICAL_MAX });
        }
        if traits.max_open.0 != 0 && traits.max_open.0 < geo.pus() {
            let (limit, needed) = (traits.max_open.0, geo.pus());
            return Err(CreateError::OpenLimit { limit, needed });
        }
        let plan = one_region(geo, traits);
        let sizes = check_config(&config, &plan.layout, traits.content_bytes)?;
        let main = plan.layout.main();
        let sectors = main.lines.len() as u128 * main.line_sectors as u128;
        let percent = 100 - config.over_provisioning_percent as u128;
        let capacity = (sectors * percent / 100) as u64;
        Ok(Frame { config, plan, sizes, capacity })
    }
}

impl DriveConfig {
    /// Where the medium itself outlives its host only once it is flushed (an image), no capacitors
    /// save this process's memory: the buffer is volatile there.
    fn on(mut self, traits: &Traits) -> DriveConfig {
        if self.capacitors && traits.volatile {
            self.capacitors = false;
            self.settings["capacitors"] = false.into();
        }
        self
    }
}

/// All chunks in the native mode, and a line for each chunk number.
fn one_region(geo: &Geometry, traits: &Traits) -> Plan {
    let unit = native_unit(geo);
    let region = RegionSpec {
        pool: MAIN,
        mode: CellMode::Native,
        chunks: 0..geo.chunks_per_pu,
        positions: 0..geo.pus(),
        width: geo.pus(),
        unit,
        grain: unit,
        chunk_sectors: geo.sectors_per_chunk(),
        window: geo.mw_cunits,
        pairs: traits.pair_sectors,
    };
    let layout = Layout::new(geo, &[region]);
    // Host and GC have lines of their own where two chunks of a PU may be open.
    let unlimited = |n: u32| if n == 0 { u32::MAX } else { n };
    let (device, per_pu) = traits.max_open;
    let two = unlimited(device) >= 2 * geo.pus() && unlimited(per_pu) >= 2;
    let own = usize::from(two);
    let pools = vec![PoolSpec { into: MAIN, host: 0, own }];
    Plan { layout, pools, streams: vec![MAIN; own + 1] }
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
    let percent = config.over_provisioning_percent as u64;
    within("over_provisioning_percent", percent, 1, 90)?;
    let water = config.gc_low_water_lines as u64;
    within("gc_low_water_lines", water, 2, main.lines.len() as u64)?;
    let all_units = layout.positions as u64 * main.unit as u64;
    let buffer = config.buffer_sectors.map_or((2 * all_units).max(128), u64::from);
    // A rest too small for a unit may wait for ever; the largest piece must fit beside it.
    let buffer_least = 4 * main.unit as u64;
    let user_room = within("buffer_sectors", buffer, buffer_least, 1 << 24)?;
    let vector = flashlane_base::VECTOR_MAX as u64;
    let reads = (2 * all_units).div_ceil(vector).clamp(1, 64);
    let reads = config.gc_reads.map_or(reads, u64::from);
    let reads = within("gc_reads", reads, 1, 1024)?;
    let window = (main.window + main.unit).min(main.chunk_sectors);
    Ok(Sizes {
        user_room,
        gc_room: reads * vector as u32 + main.unit,
        windows: 2 * layout.positions * window,
        content_bytes,
    })
}
