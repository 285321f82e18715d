//! What the medium itself counted.
//!
//! Owns: the counters of a channel and their sum. Promises: every programmed sector is counted
//! once, under its cause: a sector is programmed when its chunk's write pointer moved over it, so a
//! failed program that moved the pointer counts, an early close and a refused write do not.
//! Never: resets.

use crate::outcome::CAUSES_MAX;
use flashlane_base::{Ns, SECTOR_BYTES};

/// Counters of one channel.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Programmed sectors by cause.
    pub programmed: [u64; CAUSES_MAX],
    /// Sectors read, whatever came of it.
    pub read_sectors: u64,
    /// Reads of sectors that are written but not readable yet (their pair is not programmed).
    pub early_reads: u64,
    /// Erases begun.
    pub erases: u64,
    /// Sectors whose program failed.
    pub program_failures: u64,
    /// Chunks whose erase failed.
    pub erase_failures: u64,
    /// Bit errors corrected.
    pub corrected_bits: u64,
    /// Sectors whose correction was heavy.
    pub high_ecc: u64,
    /// Sectors that could not be corrected.
    pub uncorrectable: u64,
    /// Read retries.
    pub retries: u64,
    /// Sectors that vector reads took from the device.
    pub sent_sectors: u64,
    /// Sectors that vector writes brought to the device.
    pub received_sectors: u64,
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

/// What a device's write buffer counted since the device was made or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferCount {
    /// Sectors acknowledged from it, before they were programmed.
    pub accepted: u64,
    /// Sectors that reads found in it.
    pub hits: u64,
    /// Write commands that found it full, and waited.
    pub waits: u64,
    /// Sectors whose program failed behind the acknowledgement: kept until their chunk is erased.
    pub kept: u64,
}

impl BufferCount {
    /// What came about since `before`.
    pub fn since(&self, before: &BufferCount) -> BufferCount {
        BufferCount {
            accepted: self.accepted - before.accepted,
            hits: self.hits - before.hits,
            waits: self.waits - before.waits,
            kept: self.kept - before.kept,
        }
    }
}

/// Everything the medium counted, over all channels.
#[derive(Clone, Debug, Default)]
pub struct MediaCounters {
    /// Programmed sectors by cause, in the order of `Cause::ALL`; behind those, of causes that only a
    /// later program knows.
    pub programmed: [u64; CAUSES_MAX],
    /// Sectors read.
    pub read_sectors: u64,
    /// Reads of sectors that were not readable yet.
    pub early_reads: u64,
    /// Erases begun.
    pub erases: u64,
    /// Broken rules of the medium.
    pub violations: u64,
    /// Sectors whose program failed.
    pub program_failures: u64,
    /// Chunks whose erase failed.
    pub erase_failures: u64,
    /// Bit errors corrected.
    pub corrected_bits: u64,
    /// Sectors whose correction was heavy.
    pub high_ecc: u64,
    /// Sectors that could not be corrected.
    pub uncorrectable: u64,
    /// Read retries.
    pub retries: u64,
    /// Bytes that vector reads took from the device.
    pub host_read_bytes: u64,
    /// Bytes that vector writes brought to the device.
    pub host_write_bytes: u64,
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
}

impl MediaCounters {
    /// Programmed sectors of all causes.
    pub fn programmed_total(&self) -> u64 {
        self.programmed.iter().sum()
    }

    /// Takes over what one channel counted.
    pub fn absorb(&mut self, c: &Counters) {
        for (mine, theirs) in self.programmed.iter_mut().zip(c.programmed) {
            *mine += theirs;
        }
        self.read_sectors += c.read_sectors;
        self.early_reads += c.early_reads;
        self.erases += c.erases;
        self.program_failures += c.program_failures;
        self.erase_failures += c.erase_failures;
        self.corrected_bits += c.corrected_bits;
        self.high_ecc += c.high_ecc;
        self.uncorrectable += c.uncorrectable;
        self.retries += c.retries;
        self.host_read_bytes += c.sent_sectors * SECTOR_BYTES as u64;
        self.host_write_bytes += c.received_sectors * SECTOR_BYTES as u64;
    }
}
