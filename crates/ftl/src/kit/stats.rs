//! What the device counts about itself, beyond the counters every layer keeps.
//!
//! Owns: [`DriveStats`], the snapshot that reports and tests read, and the running numbers behind
//! it. Promises: every number counts from create. Never: decides anything.

use crate::stats::FtlStats;
use flashlane_ocssd::device::Cause;

/// Classes of a victim's invalid share: class `i` holds shares of `i` tenths up to below the next,
/// the last one victims with nothing live.
pub const INVALID_CLASSES: usize = 11;

/// A snapshot of a device's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveStats {
    /// The counters that every layer keeps; both laws hold for them.
    pub ftl: FtlStats,
    /// Of the sectors programmed, by cause, those in SLC mode.
    pub slc_programmed: [u64; Cause::ALL.len()],
    /// Victims by the share of their sectors that was garbage when GC took them, in tenths: how
    /// well the device's garbage collection could do (ParaFS 4.3 compares file systems by it).
    pub victims_by_invalid_tenths: [u64; INVALID_CLASSES],
    /// Sectors whose newest content was lost in a GC read since create.
    pub poisoned: u64,
    /// Chunks never used again, factory bad ones included.
    pub retired_chunks: u64,
    pub free_lines: u32,
    /// Fewest erases of a line's chunks, on average over the line.
    pub erases_line_min: u64,
    /// Most erases of a line's chunks, on average over the line.
    pub erases_line_max: u64,
    /// Requests that found the buffer full.
    pub ring_full_waits: u64,
}

impl DriveStats {
    /// A sector is programmed, in SLC mode or not.
    #[inline]
    pub(super) fn count(&mut self, cause: Cause, slc: bool) {
        self.ftl.programmed[cause as usize] += 1;
        if slc {
            self.slc_programmed[cause as usize] += 1;
        }
    }

    /// It was not, after all.
    pub(super) fn uncount(&mut self, cause: Cause, slc: bool) {
        self.ftl.programmed[cause as usize] -= 1;
        self.slc_programmed[cause as usize] -= u64::from(slc);
    }

    /// Sectors programmed for a cause in the native mode.
    pub fn native_programmed(&self, cause: Cause) -> u64 {
        self.ftl.programmed_for(cause) - self.slc_programmed[cause as usize]
    }
}

/// Notes a victim of `sectors` of which `valid` are live.
pub(super) fn note_victim(stats: &mut DriveStats, valid: u32, sectors: u32) {
    let invalid = sectors - valid.min(sectors);
    let tenths = invalid as u64 * (INVALID_CLASSES as u64 - 1) / sectors.max(1) as u64;
    stats.victims_by_invalid_tenths[tenths as usize] += 1;
    stats.ftl.gc_victim_invalid += invalid as u64;
    stats.ftl.gc_victim_sectors += sectors as u64;
    stats.ftl.gc_victims += 1;
    stats.ftl.gc_free_rides += (valid == 0) as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_lands_in_the_class_of_its_invalid_share() {
        let mut stats = DriveStats::default();
        for (valid, class) in [(100, 0), (91, 0), (90, 1), (50, 5), (1, 9), (0, 10)] {
            let before = stats.victims_by_invalid_tenths[class];
            note_victim(&mut stats, valid, 100);
            assert_eq!(stats.victims_by_invalid_tenths[class], before + 1, "{valid} valid");
        }
        assert_eq!(stats.ftl.gc_victim_sectors, 600);
        assert_eq!(stats.ftl.gc_victim_invalid, 600 - 332);
        assert_eq!(stats.ftl.victim_invalid_share(), Some(268.0 / 600.0));
        assert_eq!(stats.ftl.gc_free_rides, 1);
    }
}
