//! What the medium itself counted.
//!
//! Owns: the counters of a channel and their sum. Promises: every programmed sector is counted
//! once, under its cause: a sector is programmed when its chunk's write pointer moved over it, so a
//! failed program that moved the pointer counts, an early close and a refused write do not.
//! Never: resets.

use crate::outcome::CAUSES_MAX;
use flashlane_base::{Ns, SECTOR_BYTES, counters};
use std::ops::Deref;

counters! {
    /// Counters of one channel, or of all.
    pub struct Counters {
        /// Programmed sectors by cause, in the order of `Cause::ALL`; behind those, of causes that only
        /// a later program knows.
        programmed: [u64; CAUSES_MAX], Sum, "sectors", [];
        /// Sectors read, whatever came of it.
        read_sectors: u64, Sum, "sectors", [];
        /// Reads of sectors that are written but not readable yet (their pair is not programmed).
        early_reads: u64, Sum, "sectors", [metric "early_reads"];
        /// Erases begun.
        erases: u64, Sum, "chunks", [];
        /// Sectors whose program failed.
        program_failures: u64, Sum, "sectors", [metric "program_failures"];
        /// Chunks whose erase failed.
        erase_failures: u64, Sum, "chunks", [];
        /// Bit errors corrected.
        corrected_bits: u64, Sum, "bits", [];
        /// Sectors whose correction was heavy.
        high_ecc: u64, Sum, "sectors", [metric "high_ecc"];
        /// Sectors that could not be corrected.
        uncorrectable: u64, Sum, "sectors", [metric "uncorrectable"];
        /// Read retries.
        retries: u64, Sum, "senses", [];
        /// Sectors that vector reads took from the device.
        sent_sectors: u64, Sum, "sectors", [];
        /// Sectors that vector writes brought to the device.
        received_sectors: u64, Sum, "sectors", [];
    }
}

counters! {
    /// What of it was done in SLC mode, on a device that has it: the rest was done in the native mode.
    pub struct SlcCount {
        /// Sectors programmed in SLC mode.
        programmed_sectors: u64, Sum, "sectors",
            [slc_mode "programmed_sectors", said "sectors were programmed in SLC mode"];
        /// Erases begun of chunks in SLC mode.
        erases: u64, Sum, "chunks", [slc_mode "erases", said "of the erases took out data in SLC mode"];
    }
}

/// How long a die was held, by what held it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DieBusy {
    /// Senses, retries and the transfers behind them.
    pub read: Ns,
    /// Transfers and programs.
    pub program: Ns,
    /// Erases.
    pub erase: Ns,
}

counters! {
    /// What a device's write buffer counted since the device was made or opened.
    pub struct BufferCount {
        /// Sectors acknowledged from it, before they were programmed.
        accepted: u64, Sum, "sectors", [device_buffer "accepted_sectors"];
        /// Sectors that reads found in it.
        hits: u64, Sum, "sectors", [device_buffer "read_sectors", said "sectors were read from it"];
        /// Write commands that found it full, and waited.
        waits: u64, Sum, "commands", [device_buffer "full_waits", said "writes found it full"];
        /// Sectors whose program failed behind the acknowledgement: kept until their chunk is erased.
        kept: u64, Sum, "sectors",
            [device_buffer "failed_sectors", said "sectors failed to be programmed afterwards"];
    }
}

/// Everything the medium counted, over all channels.
#[derive(Clone, Debug, Default)]
pub struct MediaCounters {
    /// Sums over channels.
    pub all: Counters,
    /// Broken rules of the medium.
    pub violations: u64,
    /// Busy time of every die, in PU order.
    pub dies: Vec<DieBusy>,
    /// Busy time of every channel's bus.
    pub channels: Vec<Ns>,
    /// Erases begun on every channel.
    pub channel_erases: Vec<u64>,
    /// Bytes of this process that contents take.
    pub store_bytes: u64,
    /// What the device's write buffer did, where it has one.
    pub buffer: Option<BufferCount>,
    /// What was done in SLC mode, where the device has it.
    pub slc: Option<SlcCount>,
}

impl Deref for MediaCounters {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        &self.all
    }
}

impl MediaCounters {
    /// Programmed sectors of all causes.
    pub fn programmed_total(&self) -> u64 {
        self.programmed.iter().sum()
    }

    /// Bytes that vector reads took from the device.
    pub fn host_read_bytes(&self) -> u64 {
        self.sent_sectors * SECTOR_BYTES as u64
    }

    /// Bytes that vector writes brought to the device.
    pub fn host_write_bytes(&self) -> u64 {
        self.received_sectors * SECTOR_BYTES as u64
    }
}
