//! Whether a trace goes onto a device.
//!
//! Owns: the check, and what it says. Promises: as a run of that trace on that preset would find it.
//! Never: reads the trace; whoever asks has scanned it.

use crate::experiment::{DeviceChoice, Target};
use crate::stack::{StackError, capacity};
use crate::trace::{Layout, LayoutError, Scan};
use flashlane_base::{Bytes, SECTOR_BYTES};
use flashlane_ftl::log::LogConfig;
use flashlane_ocssd::{DeviceSpec, SpecError, SsdOptions};
use flashlane_rt::CostTable;

/// Why a trace does not go onto a preset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// No such preset.
    #[error(transparent)]
    Preset(#[from] SpecError),
    /// pblk does not fit on it.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// It does not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Checks that a trace fits what pblk, with its defaults, makes of a preset.
pub fn fits_preset(scan: &Scan, preset: &str) -> Result<String, FitError> {
    let device = DeviceChoice { spec: DeviceSpec::preset(preset)?, options: SsdOptions::default() };
    let target = Target::of("pblk", LogConfig::default(), device);
    let sectors = capacity(&target, 1, CostTable::zero())?;
    let layout = Layout::plan(scan, sectors, None, false)?;
    Ok(format!(
        "fits {preset} ({} under pblk): {}\n",
        Bytes::new(sectors * SECTOR_BYTES as u64),
        layout.description()
    ))
}
