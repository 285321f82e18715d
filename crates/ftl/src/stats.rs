//! Counters that every translation layer keeps, under one set of names.
//!
//! Owns: the plain-number snapshot that reports, tests and `lnvm info` read. Promises: both laws of
//! FORMAT.md can be checked from it ([`FtlStats::check_host_law`], [`FtlStats::check_media_law`]).
//! Never: formats anything for people.

use flashlane_base::Ns;
use flashlane_ocssd::device::{Breakdown, CAUSES_MAX, Cause};

/// A snapshot of a layer's counters since it was created. Units: 4 KiB sectors unless named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FtlStats {
    /// Sectors that the host wrote (acknowledged).
    pub host_written: u64,
    /// Sectors that the host read.
    pub host_read: u64,
    /// Of those, served from the buffer.
    pub read_from_buffer: u64,
    /// Of those, never written or discarded.
    pub read_unmapped: u64,
    /// Sectors that the host discarded.
    pub host_discarded: u64,
    /// Flush requests (a FUA write counts as one).
    pub flushes: u64,
    /// Sectors programmed by this layer, by cause, in the order of [`Cause::ALL`].
    pub programmed: [u64; Cause::ALL.len()],
    /// Host sectors overwritten in the buffer before they were programmed, and dropped.
    pub absorbed: u64,
    /// Host sectors discarded in the buffer before they were programmed.
    pub discarded_in_buffer: u64,
    /// Host sectors in the buffer now, not yet programmed.
    pub buffered_now: u64,
    /// Chunk erases asked for by this layer.
    pub erases: u64,
    /// Garbage collection: victims taken, live sectors moved, lines freed without a move.
    pub gc_victims: u64,
    /// Live sectors found in victims and moved.
    pub gc_moved: u64,
    /// Lines with nothing live.
    pub gc_free_rides: u64,
    /// Of the victims, those taken because their chunks were worn too little.
    pub leveled_lines: u64,
    /// Those taken because their data decayed.
    pub scrubbed_lines: u64,
    /// Sectors that the patrol read, in search of data that decays.
    pub patrol_reads: u64,
    /// Failed sectors of programs, erases and reads.
    pub program_failures: u64,
    /// Failed erases.
    pub erase_failures: u64,
    /// Sectors that the medium could not read (host, then GC).
    pub read_failures: u64,
    /// GC reads that failed: the sector is poisoned.
    pub gc_read_failures: u64,
    /// Reads with heavy correction.
    pub high_ecc: u64,
    /// Time that host writes waited for room in the ring.
    pub ring_full: Ns,
    /// Time that host writes waited because the limiter gave users no share.
    pub limited: Ns,
    /// Time that flushes and FUA writes waited to be durable.
    pub flush_wait: Ns,
    /// Of that, FUA writes.
    pub fua_wait: Ns,
    /// Where host reads spent their device time, summed.
    pub read_breakdown: Breakdown,
}

/// Where a layer stands at a moment; what [`FtlStats`] cannot say because it is no sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Chunks (pblk) or lines (block SSD) that are free for new data.
    pub free: u64,
    /// Of so many.
    pub of: u64,
    /// Buffer slots that users may hold, of all, where a limiter divides the buffer between them
    /// and garbage collection.
    pub user_slots: Option<(u64, u64)>,
    /// Slots in use: in all rings, and in the deepest one; where there are rings.
    pub ring_slots: Option<(u64, u64)>,
}

impl FtlStats {
    /// Sectors programmed for all causes.
    pub fn programmed_total(&self) -> u64 {
        self.programmed.iter().sum()
    }

    /// Sectors programmed for one cause.
    pub fn programmed_for(&self, cause: Cause) -> u64 {
        self.programmed[cause as usize]
    }

    /// Write amplification: everything programmed over everything the host wrote. `None` before the
    /// first host write.
    pub fn write_amplification(&self) -> Option<f64> {
        (self.host_written > 0).then(|| self.programmed_total() as f64 / self.host_written as f64)
    }

    /// First law: what the host wrote was programmed, absorbed, discarded in the buffer, or is
    /// still there. Holds when no request is in flight.
    pub fn check_host_law(&self) -> Result<(), String> {
        let user = self.programmed_for(Cause::User);
        let parts = user + self.absorbed + self.discarded_in_buffer + self.buffered_now;
        if self.host_written == parts {
            return Ok(());
        }
        Err(format!(
            "host_written {} != user {user} + absorbed {} + discarded_in_buffer {} + buffered_now {}",
            self.host_written, self.absorbed, self.discarded_in_buffer, self.buffered_now
        ))
    }

    /// Second law: the sum over causes is what the medium itself counted, cause by cause.
    pub fn check_media_law(&self, medium: &[u64; CAUSES_MAX]) -> Result<(), String> {
        for cause in Cause::ALL {
            let (here, there) = (self.programmed_for(cause), medium[cause as usize]);
            if here != there {
                return Err(format!("{}: layer {here}, medium {there}", cause.name()));
            }
        }
        match medium[Cause::ALL.len()..].iter().sum() {
            0 => Ok(()),
            there => Err(format!("causes that nobody knows: medium {there}")),
        }
    }
}
