//! Chunks that were written and can't be read, after a mount.
//!
//! Owns: [`Unreadable`], what is known of such a chunk; [`Sftl::settle`], its end. Promises: what
//! can't be read is unknown, never empty: the chunk is not erased, no segment gets it, and no
//! segment changes before somebody has said that no data is missing, or that what is missing is
//! given up. Never: knows which segments must hold data; the file system does, and the face of
//! logical sectors goes by what a power cut can leave.
//!
//! A power cut tears at most one erase of a PU, and one program (which may suspend the erase). A
//! torn erase leaves a full chunk, a torn first program one that is one write unit long. Any other
//! chunk that can't be read holds data, and so may those. The device can't tell which.
//!
//! No block is taken and nothing is trimmed while there is doubt, so no newer generation of a
//! segment ever stands beside an older one that can be read again later (docs/FORMAT.md, section
//! 15, rule 1).

use super::ledger::{Ledger, Mark};
use super::map::BlockState;
use super::trim::Erased;
use super::{Sftl, SftlError};
use flashlane_base::mutant;
use flashlane_ocssd::device::{ChunkState, Device};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use std::fmt;

/// Chunks that a message names.
const SAID: usize = 4;

/// Why it is not known what a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// None of its records can be read.
    Unread,
    /// The same, and a program in it has failed.
    Failed,
    /// All chunks of its PU are offline.
    DeadPu,
}

/// A chunk, or all chunks of a PU, of which it is not known what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub channel: u32,
    pub pu: u32,
    /// Of the whole drive; 0 where all of the PU is meant.
    pub chunk: u32,
    /// Sectors that were written; what a mount has padded behind them aside.
    pub sectors: u32,
    pub cause: Cause,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cause {
            Cause::DeadPu => write!(f, "PU {} is dead", self.pu),
            _ => write!(f, "chunk {} on PU {} can't be read", self.chunk, self.pu),
        }
    }
}

/// The first ones of them, for people.
pub fn name_some(all: &[Unreadable]) -> String {
    let some: Vec<String> = all.iter().take(SAID).map(ToString::to_string).collect();
    match all.len() - some.len() {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}

/// What becomes of chunks that can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// No data is missing, so they hold none: they are erased.
    NothingIsMissing,
    /// The data that is missing is given up for good: they are erased, and what can't be erased
    /// never counts again, though it may be read another time.
    GiveUp,
}

/// PUs of which all chunks are offline, and have not been given up yet.
pub(super) fn dead_pus(device: &(dyn Device + 'static), ledger: &Ledger) -> Vec<u32> {
    let geo = device.geometry();
    let is_dead = |pu: &u32| {
        let report = device.chunk_report(*pu, 0, geo.chunks_per_pu);
        let given_up = (0..geo.chunks_per_pu).all(|c| ledger.marked(*pu, c) == Mark::Void);
        report.iter().all(|info| info.state == ChunkState::Offline) && !given_up
    };
    let dead: Vec<u32> = (0..geo.pus()).filter(is_dead).collect();
    if mutant!("sftl.dead-die-is-retired") { Vec::new() } else { dead }
}

impl Sftl {
    pub(super) fn doubt(&self, pu: u32, chunk: u32, sectors: u32, cause: Cause) -> Unreadable {
        let channel = self.device.geometry().channel_of(pu);
        let chunk = if cause == Cause::DeadPu { 0 } else { chunk + self.first_chunk };
        Unreadable { channel, pu, chunk, sectors, cause }
    }

    /// Chunks of which it is not known what they hold. While there are some no segment changes.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.map.lock().doubts.clone()
    }

    /// Whether there are such chunks.
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Whether a power cut alone may have left all of them: of each PU one erase at most, and one
    /// first program. They may hold data all the same. Doubts are in the order of PUs.
    pub fn may_be_torn(&self) -> bool {
        // A torn program takes along what it was paired with.
        let torn = self.info.page_sectors.max(self.info.pair_sectors);
        let full = self.info.segment_sectors;
        // The last PU with one that was erased, and with one that was programmed.
        let mut last = [None; 2];
        self.map.lock().doubts.iter().all(|doubt| match doubt.cause {
            Cause::DeadPu => false,
            // Its first program failed, and the host was told.
            Cause::Failed => true,
            Cause::Unread => {
                let is_full = doubt.sectors >= full;
                let first_of_pu = last[usize::from(is_full)].replace(doubt.pu) != Some(doubt.pu);
                let is_torn = doubt.sectors <= torn || is_full;
                first_of_pu && is_torn || mutant!("sftl.many-are-torn")
            }
        })
    }

    /// Ends the doubt about chunks that can't be read. How many were erased.
    ///
    /// # Errors
    /// The host or the list of bad blocks failed: there is doubt as before.
    pub async fn settle(&self, cx: &Cx, how: Settle) -> Result<u64, SftlError> {
        if self.map.lock().doubts.is_empty() {
            return Ok(0);
        }
        let mut erased = 0;
        for (channel, at) in self.blocks_in_doubt() {
            erased += u64::from(self.erase_in_doubt(cx, channel, at).await?);
        }
        // A chunk of a die that is dead, or that is offline, may be read again some day.
        let mut given_up = Vec::new();
        let dead = dead_pus(&*self.device, &self.ledger);
        let geo = *self.device.geometry();
        for pu in 0..geo.pus() {
            let report = self.device.chunk_report(pu, 0, geo.chunks_per_pu);
            let all = how == Settle::GiveUp || dead.contains(&pu);
            let offline = (0..).zip(report).filter(|(_, i)| i.state == ChunkState::Offline);
            given_up.extend(offline.filter(|_| all).map(|(chunk, _)| (pu, chunk)));
        }
        if !mutant!("sftl.given-up-comes-back") {
            self.ledger.mark_all(cx, &given_up, Mark::Void).await.map_err(SftlError::Ledger)?;
        }
        self.map.lock().doubts.clear();
        self.in_doubt.store(false, Ordering::Relaxed);
        self.settle_gone(cx).await.map_err(SftlError::Ledger)?;
        Ok(erased)
    }

    /// Blocks that can't be read: channel, and index there.
    fn blocks_in_doubt(&self) -> Vec<(u32, u32)> {
        let map = self.map.lock();
        let mut all = Vec::new();
        for (channel, c) in (0..).zip(&map.channels) {
            let of = (0..).zip(&c.blocks).filter(|(_, b)| b.state == BlockState::Unreadable);
            all.extend(of.map(|(at, _)| (channel, at)));
        }
        all
    }

    /// Erases a block that can't be read; false where it can't be erased either.
    async fn erase_in_doubt(&self, cx: &Cx, channel: u32, at: u32) -> Result<bool, SftlError> {
        let block = self.map.lock().channels[channel as usize].blocks[at as usize];
        let place = (block.pu, block.chunk);
        let failed = self.ledger.marked(place.0, place.1) == Mark::Failed;
        let (state, well) = match self.erase(cx, place).await {
            Erased::Well if failed => (BlockState::Retired, true),
            Erased::Well => (BlockState::Free, true),
            Erased::Bad => {
                self.forget(cx, place).await.map_err(SftlError::Ledger)?;
                (BlockState::Retired, false)
            }
            Erased::Host => return Err(SftlError::Host { channel, segment: 0 }),
        };
        let mut map = self.map.lock();
        let block = &mut map.channels[channel as usize].blocks[at as usize];
        block.state = state;
        block.erases += u32::from(well);
        Ok(well)
    }
}
