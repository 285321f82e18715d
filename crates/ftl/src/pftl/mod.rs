//! PFTL: a page-mapped FTL inside the device. The block SSD of every comparison.
//!
//! Owns: the keys of its settings. Promises: what [`BlockDev`](crate::block::BlockDev) promises; on
//! capacitors a write is durable when acknowledged. Never: on the way of a request, which is all in
//! [`crate::kit`]: one region, one pool, a line for each chunk number, or for each chunk.
//!
//! From the ParaFS paper (section 4.1): "a page-level FTL, named PFTL, based on DFTL with lazy
//! indexing. PFTL stripes updates over different channels in a page size unit". The whole map is in
//! the drive's memory unless `map = "cached"` asks for theirs.

mod layer;

use crate::kit::{DriveConfig, DriveFtl};
use serde::{Deserialize, Serialize};

pub use crate::kit::{CreateError, Dump, MapKind, MountError, Recovery, Victim};
pub use layer::{PFTL, PftlKind};

/// The page-mapped FTL of a drive.
pub type Pftl = DriveFtl;

/// How it is built; [`DriveConfig`] says what each key means. In TOML every key may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PftlConfig {
    pub over_provisioning_percent: u32,
    pub buffer_sectors: Option<u32>,
    pub victim: Victim,
    pub map: MapKind,
    pub map_cache: Option<u32>,
    pub gc_low_water_lines: u32,
    pub gc_reads: Option<u32>,
    pub capacitors: bool,
    /// Left out where it is false: programs that don't know it read such settings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flush_records: bool,
    pub accept_lost_sectors: bool,
    pub dirty_pages: Option<u32>,
}

impl Default for PftlConfig {
    fn default() -> PftlConfig {
        PftlConfig {
            // As the simulators that we compare with (docs/DECISIONS.md): 12% of raw.
            over_provisioning_percent: 12,
            buffer_sectors: None,
            victim: Victim::Line,
            map: MapKind::Whole,
            map_cache: None,
            gc_low_water_lines: 2,
            gc_reads: None,
            capacitors: true,
            flush_records: false,
            accept_lost_sectors: false,
            dirty_pages: None,
        }
    }
}

impl From<PftlConfig> for DriveConfig {
    fn from(config: PftlConfig) -> DriveConfig {
        DriveConfig {
            kind: &PFTL,
            // What one mount was told to live with is no setting.
            settings: PftlConfig { accept_lost_sectors: false, ..config.clone() }.to_settings(),
            over_provisioning_percent: config.over_provisioning_percent,
            buffer_sectors: config.buffer_sectors,
            victim: config.victim,
            map: config.map,
            map_cache: config.map_cache,
            gc_low_water_lines: config.gc_low_water_lines,
            gc_reads: config.gc_reads,
            capacitors: config.capacitors,
            flush_records: config.flush_records,
            accept_lost_sectors: config.accept_lost_sectors,
            dirty_pages: config.dirty_pages,
            tier: None,
        }
    }
}
