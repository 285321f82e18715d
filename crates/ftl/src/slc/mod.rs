//! The SLC/TLC SSD: a consumer drive with an SLC write buffer, which finds the file system's journal in
//! the address stream and keeps it in an SLC region of its own.
//!
//! Owns: the keys of its settings. Promises: what [`BlockDev`](crate::block::BlockDev) promises; there
//! are no capacitors, so a flush waits for programs. Never: on the way of a request, which is all in
//! [`crate::kit`]: where the host's sectors go is in `kit/tier.rs`.
//!
//! From "An Advanced SLC-buffering for TLC NAND Flash-based Storage" (Kwon, Kang, Eom; IEEE TCE 2017):
//! [`Scheme::Conventional`] is its baseline, [`Scheme::Journal`] what it proposes. The detector of
//! journals is `flashlane_detect`.

mod layer;

use crate::kit::{DriveConfig, DriveFtl, MapKind, TierConfig, Victim};
use crate::log::config::worded;
use flashlane_base::Ns;
use serde::{Deserialize, Serialize};

pub use layer::{SLC, SlcKind};

/// The FTL of a drive with an SLC part.
pub type Slc = DriveFtl;

worded! {
    /// What the SLC part is for.
    pub enum Scheme {
        /// All of it is a write buffer: the paper's baseline, and what is sold.
        Conventional = "conventional",
        /// A part of it is for journals: what the paper proposes.
        #[default]
        Journal = "journal",
    }
}

/// How it is built; [`DriveConfig`] and [`TierConfig`] say what each key means. In TOML every key may be
/// left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlcConfig {
    pub scheme: Scheme,
    /// `None`: 3% of the chunks, which hold 1% of what the drive has, and at least what the journal
    /// region and a buffer of two lines take.
    pub slc_chunks: Option<u32>,
    /// `None`: a quarter of the SLC part.
    pub journal_lines: Option<u32>,
    /// `None`: 4, or the largest part of the PUs below.
    pub journal_line_pus: Option<u32>,
    pub idle: Ns,
    pub migration_mib_per_s: Option<u32>,
    pub detect: bool,
    pub over_provisioning_percent: u32,
    pub buffer_sectors: Option<u32>,
    pub gc_low_water_lines: u32,
    pub gc_reads: Option<u32>,
    /// Left out where it is false: programs that don't know it read such settings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flush_records: bool,
    pub accept_lost_sectors: bool,
}

impl Default for SlcConfig {
    fn default() -> SlcConfig {
        SlcConfig {
            scheme: Scheme::Journal,
            slc_chunks: None,
            journal_lines: None,
            journal_line_pus: None,
            // Ours: the paper says "during the idle time". Long against the pauses of a busy host, short
            // against those of a person.
            idle: Ns::from_ms(100),
            migration_mib_per_s: None,
            detect: true,
            over_provisioning_percent: 12,
            buffer_sectors: None,
            gc_low_water_lines: 2,
            gc_reads: None,
            flush_records: false,
            accept_lost_sectors: false,
        }
    }
}

impl From<SlcConfig> for DriveConfig {
    fn from(config: SlcConfig) -> DriveConfig {
        let journal_lines = match config.scheme {
            Scheme::Conventional => Some(0),
            Scheme::Journal => config.journal_lines,
        };
        let per_mib = (1 << 20) / flashlane_base::SECTOR_BYTES as u32;
        DriveConfig {
            kind: &SLC,
            // What one mount was told to live with is no setting.
            settings: SlcConfig { accept_lost_sectors: false, ..config.clone() }.to_settings(),
            over_provisioning_percent: config.over_provisioning_percent,
            buffer_sectors: config.buffer_sectors,
            victim: Victim::Line,
            map: MapKind::Whole,
            map_cache: None,
            gc_low_water_lines: config.gc_low_water_lines,
            gc_reads: config.gc_reads,
            capacitors: false,
            flush_records: config.flush_records,
            accept_lost_sectors: config.accept_lost_sectors,
            dirty_pages: None,
            tier: Some(TierConfig {
                slc_chunks: config.slc_chunks,
                journal_lines,
                journal_line_pus: config.journal_line_pus,
                idle: config.idle,
                migration_rate: config.migration_mib_per_s.map(|mib| mib.saturating_mul(per_mib)),
                detect: config.detect,
                detector: flashlane_detect::Config::default(),
            }),
        }
    }
}
