//! How much of the life of a drive's chunks is used up, by cell mode.
//!
//! Owns: shares of the rated erases of each mode that chunks have seen. Promises: a chunk's two shares add up to its
//! wear, as its wear index has it; there is none for a device without SLC mode. Never: says what a chunk is worth.

use flashlane_ocssd::device::{CellMode, ChunkInfo};
use flashlane_ocssd::{Device, Ssd};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Shares of the rated erases of a mode that are used up, in millionths: over all chunks, and of the chunk with most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    pub mean_ppm: u64,
    pub most_ppm: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endurance {
    pub native: Used,
    pub slc: Used,
}

impl Endurance {
    /// Of the chunks of a device that has SLC mode.
    pub(crate) fn of(ssd: &Ssd, reports: &[Vec<ChunkInfo>]) -> Option<Endurance> {
        ssd.traits().slc?;
        let mode = |at: usize| {
            let shares = || reports.iter().flatten().map(|chunk| shares(ssd, chunk)[at]);
            let chunks = shares().count().max(1) as u64;
            Used { mean_ppm: shares().sum::<u64>() / chunks, most_ppm: shares().max().unwrap_or(0) }
        };
        Some(Endurance { native: mode(0), slc: mode(1) })
    }

    /// By mode.
    pub fn modes(&self) -> [(&'static str, Used); 2] {
        [("native", self.native), ("slc", self.slc)]
    }
}

/// Of the rated erases of each mode, what a chunk has used up, in millionths.
pub(super) fn shares(ssd: &Ssd, chunk: &ChunkInfo) -> [u64; 2] {
    let cells = &ssd.spec().cells;
    let share = |erases: u32, mode| erases as u64 * 1_000_000 / cells.rated_erases_in(mode) as u64;
    let native = chunk.erases - chunk.slc_erases;
    [share(native, CellMode::Native), share(chunk.slc_erases, CellMode::Slc)]
}

/// In percent, with the hundredths that matter early in a life.
impl fmt::Display for Endurance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: u64| format!("{}.{:02}%", ppm / 10_000, ppm / 100 % 100);
        let [native, slc] = [self.native, self.slc]
            .map(|used| format!("{}, at most {}", percent(used.mean_ppm), percent(used.most_ppm)));
        write!(f, "native {native}; SLC {slc}")
    }
}
