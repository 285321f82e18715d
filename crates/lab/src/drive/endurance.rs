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

#[cfg(test)]
mod tests {
    use super::super::Look;
    use super::*;
    use flashlane_base::Location;
    use flashlane_media::host::memory::MemoryFile;
    use flashlane_ocssd::device::{Flags, Op, Request};
    use flashlane_ocssd::{CreateImage, DeviceSpec, OpenImage};
    use flashlane_rt::{CostTable, Virtual};
    use std::sync::Arc;

    /// `tiny` of 64 chunks in an image, made for 100 erases, or for 1,000 in SLC mode where it has that.
    fn drive(has_slc: bool) -> Look {
        let mut spec = DeviceSpec::preset("tiny").expect("a preset");
        spec.cells.rated_erases = 100;
        match &mut spec.cells.slc {
            Some(slc) if has_slc => slc.rated_erases = 1000,
            slc => *slc = None,
        }
        let file = Arc::new(MemoryFile::default());
        Ssd::create_on(file.clone(), &spec, &CreateImage::default()).expect("an image");
        let ssd = Ssd::open_on(file, &OpenImage::default()).expect("an image");
        Look::of(ssd, Vec::new()).expect("an image")
    }

    fn erase(look: &Look, chunk: u32, to: CellMode) {
        let ssd = look.ssd.clone();
        let at = [ssd.format().pack(Location { pu: 3, chunk, sector: 0 })];
        let clock = Virtual::new(1, 1, CostTable::zero());
        let cx = clock.cx();
        let done = clock.run(async move {
            let flags = Flags { cell: to, ..Flags::DEFAULT };
            let ssd: &dyn Device = &*ssd;
            ssd.io(&cx, Request::plain(Op::Reset, &at).with(flags)).await
        });
        assert_eq!(done.expect("nothing stalls").failed, 0);
    }

    /// Each mode has its mean and its most worn chunk, in every output, and both are in what is used of the drive.
    #[test]
    fn both_modes_are_shown() {
        let look = drive(true);
        for _ in 0..64 {
            erase(&look, 0, CellMode::Slc);
        }
        for mode in [CellMode::Native, CellMode::Slc] {
            (0..32).for_each(|_| erase(&look, 1, mode));
        }
        // Chunk 0: one native erase, 63 in SLC mode. Chunk 1: 33 and 31.
        let native = Used { mean_ppm: (10_000 + 330_000) / 64, most_ppm: 330_000 };
        let slc = Used { mean_ppm: (63_000 + 31_000) / 64, most_ppm: 63_000 };
        let reports = look.reports();
        assert_eq!(Endurance::of(&look.ssd, &reports), Some(Endurance { native, slc }));
        let row = "endurance used      native 0.53%, at most 33.00%; SLC 0.14%, at most 6.30%\n";
        assert!(look.to_text().contains(row), "{}", look.to_text());
        let info: serde_json::Value = serde_json::from_str(&look.to_json()).expect("JSON");
        assert_eq!(info["endurance_used"]["slc"]["most_ppm"], 63_000);
        let smart = look.smart();
        let modes = &smart["cell_modes"];
        assert_eq!(modes["native_endurance_used_mean_ppm"], native.mean_ppm);
        assert_eq!(modes["native_endurance_used_most_ppm"], 330_000);
        assert_eq!(modes["slc_endurance_used_mean_ppm"].as_u64(), Some(slc.mean_ppm));
        assert_eq!(
            (&modes["slc_erases"], &modes["slc_media_units_written"]["lo"]),
            (&94.into(), &0.into())
        );
        assert!(look.smart_text().contains("\nslc_erases                          94\n"));
        assert_eq!(smart["percent_used"], 0, "0.68%");
        // Used up by both modes together: 64 chunks would be 100%.
        for chunk in 2..16 {
            (0..100).for_each(|_| erase(&look, chunk, CellMode::Native));
        }
        assert_eq!(look.smart()["percent_used"], (14 * 100 + 33 + 1 + 9) / 64);
    }

    #[test]
    fn a_device_of_one_mode_shows_nothing_of_it() {
        let look = drive(false);
        erase(&look, 0, CellMode::Native);
        assert_eq!(Endurance::of(&look.ssd, &look.reports()), None);
        let shown = [look.to_text(), look.to_json(), look.smart_text(), look.smart_json()].concat();
        assert!(
            !shown.contains("endurance") && !shown.contains("slc") && !shown.contains("cell_modes")
        );
    }
}
