//! Counters that every translation layer keeps, under one set of names.
//!
//! Owns: the plain-number snapshot that reports, tests and `lnvm info` read. Promises: both laws of
//! FORMAT.md can be checked from it ([`FtlStats::check_host_law`], [`FtlStats::check_media_law`]).
//! Never: formats anything for people.

use flashlane_base::{Ns, counters};
use flashlane_ocssd::device::{Breakdown, CAUSES_MAX, Cause};

// Parts of outputs that walk this, so that a new counter needs its line here and nothing else:
// `run`, `buffer_sectors`, `care`, `faults`, `wait_ns`: keys of results, `care` and `faults` of the whole
// run. `csv`, `column`: columns of CSV and Parquet, new ones at the end (`column`). `writes`, with `head`
// and `what`: parts of the time of writes, in results, tables and figures. `metric`: a name of a metric that
// does not follow from the counter's (`crates/lab/src/metrics/text.rs`).
counters! {
    /// A snapshot of a layer's counters since it was created. Units: 4 KiB sectors unless named.
    pub struct FtlStats {
        /// Sectors that the host wrote (acknowledged).
        host_written: u64, Sum, "sectors", [buffer_sectors "host_written", metric "host_write_bytes"];
        /// Host sectors overwritten in the buffer before they were programmed, and dropped.
        absorbed: u64, Sum, "sectors", [buffer_sectors "absorbed", csv "absorbed_sectors"];
        /// Host sectors discarded in the buffer before they were programmed.
        discarded_in_buffer: u64, Sum, "sectors", [buffer_sectors "discarded"];
        /// Sectors that the host read.
        host_read: u64, Sum, "sectors", [buffer_sectors "host_read", metric "host_read_bytes"];
        /// Of those, served from the buffer.
        read_from_buffer: u64, Sum, "sectors", [buffer_sectors "read_from_buffer"];
        /// Of those, never written or discarded.
        read_unmapped: u64, Sum, "sectors", [buffer_sectors "read_unmapped"];
        /// Sectors that the host discarded.
        host_discarded: u64, Sum, "sectors", [metric "host_discard_bytes"];
        /// Host sectors in the buffer now, not yet programmed.
        buffered_now: u64, Last, "sectors", [];
        /// Flush requests (a FUA write counts as one).
        flushes: u64, Sum, "requests", [run "flushes"];
        /// Sectors programmed by this layer, by cause, in the order of [`Cause::ALL`].
        programmed: [u64; Cause::ALL.len()], Sum, "sectors", [];
        /// Chunk erases asked for by this layer.
        erases: u64, Sum, "chunks", [run "erases", csv "erases"];
        /// Lines that garbage collection took; blocks where it takes those.
        gc_victims: u64, Sum, "lines", [run "gc_victims"];
        /// Sectors of those lines, live or not.
        gc_victim_sectors: u64, Sum, "sectors", [run "gc_victim_sectors", column "gc_victim_sectors"];
        /// Of them, those that were garbage when the line was taken.
        gc_victim_invalid: u64, Sum, "sectors",
            [run "gc_victim_invalid_sectors", column "gc_victim_invalid_sectors"];
        /// Live sectors found in victims and moved.
        gc_moved: u64, Sum, "sectors", [run "gc_moved_sectors", metric "gc_moved_pages"];
        /// Lines with nothing live.
        gc_free_rides: u64, Sum, "lines", [];
        /// Of the victims, those taken because their chunks were worn too little.
        leveled_lines: u64, Sum, "lines", [care "leveled_lines"];
        /// Those taken because their data decayed.
        scrubbed_lines: u64, Sum, "lines", [care "scrubbed_lines"];
        /// Sectors that the patrol read, in search of data that decays.
        patrol_reads: u64, Sum, "sectors", [care "patrol_read_sectors"];
        /// Failed sectors of programs.
        program_failures: u64, Sum, "sectors", [faults "program_failures", metric "program_failures"];
        /// Failed erases.
        erase_failures: u64, Sum, "chunks", [faults "erase_failures"];
        /// Sectors of host reads that the medium could not read.
        read_failures: u64, Sum, "sectors", [faults "read_failures", metric "read_failures"];
        /// Sectors that GC could not read: they are poisoned.
        gc_read_failures: u64, Sum, "sectors", [faults "gc_read_failures", metric "gc_read_failures"];
        /// Reads with heavy correction.
        high_ecc: u64, Sum, "sectors", [faults "high_ecc", metric "high_ecc"];
        /// Time that host writes waited for room in the ring.
        ring_full: Ns, Sum, "ns", [wait_ns "ring_full", writes "ring_full", head "buffer full",
            what "waiting for room in the buffer, that is for the flash"];
        /// Time that host writes waited because the limiter gave users no share.
        limited: Ns, Sum, "ns", [wait_ns "limited", writes "limited", head "limited by GC",
            what "waiting while garbage collection had the buffer's share"];
        /// Time that flushes and FUA writes waited to be durable.
        flush_wait: Ns, Sum, "ns", [wait_ns "flush"];
        /// Of that, FUA writes.
        fua_wait: Ns, Sum, "ns",
            [writes "fua", head "FUA", what "FUA writes until they were on the flash"];
        /// Where host reads spent their device time, summed.
        read_breakdown: Breakdown, Sum, "ns", [];
    }
}

/// Where a layer stands at a moment; what [`FtlStats`] cannot say because it is no sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Chunks (pblk) or lines (block SSD) that are free for new data.
    pub free: u64,
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

    pub fn programmed_for(&self, cause: Cause) -> u64 {
        self.programmed[cause as usize]
    }

    /// Write amplification: everything programmed over everything the host wrote. `None` before the
    /// first host write.
    pub fn write_amplification(&self) -> Option<f64> {
        (self.host_written > 0).then(|| self.programmed_total() as f64 / self.host_written as f64)
    }

    /// GC efficiency: mean share of a victim that was garbage when it was taken (ParaFS, 4.3). `None`
    /// before the first victim.
    pub fn victim_invalid_share(&self) -> Option<f64> {
        let invalid = self.gc_victim_invalid as f64;
        (self.gc_victim_sectors > 0).then(|| invalid / self.gc_victim_sectors as f64)
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
