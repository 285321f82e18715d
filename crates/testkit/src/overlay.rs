//! A block device in memory that many begin from: contents that are shared, and what was written over
//! them.
//!
//! Owns: sectors that were written. Promises: is there at once and keeps everything, so that damage is
//! all that differs between two of them; a sector that is broken is a read error until it is written.
//! Never: changes what is shared.

use crate::ram::range;
use flashlane_base::{Lba, SECTOR_BYTES};
use flashlane_ftl::block::{
    BlockDev, BlockError, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Started,
};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default)]
struct Over {
    sectors: BTreeMap<u64, Vec<u8>>,
    broken: BTreeSet<u64>,
}

/// See the head of this file.
pub struct Overlay {
    info: BlockInfo,
    base: Arc<Vec<u8>>,
    over: Mutex<Over>,
}

impl Overlay {
    /// As many sectors as `base` has.
    pub fn new(base: Arc<Vec<u8>>) -> Overlay {
        let capacity = (base.len() / SECTOR_BYTES) as u64;
        let info = BlockInfo { capacity, content_bytes: SECTOR_BYTES, layer: "overlay" };
        Overlay { info, base, over: Mutex::new(Over::default()) }
    }

    /// How many sectors there are.
    pub fn sectors(&self) -> u64 {
        self.info.capacity
    }

    /// What a sector holds.
    pub fn sector(&self, at: u64) -> Vec<u8> {
        let from = at as usize * SECTOR_BYTES;
        let over = self.over.lock();
        over.sectors.get(&at).cloned().unwrap_or_else(|| self.base[from..][..SECTOR_BYTES].to_vec())
    }

    /// Changes what a sector holds.
    pub fn put(&self, at: u64, content: Vec<u8>) {
        assert!(at < self.info.capacity && content.len() == SECTOR_BYTES);
        let mut over = self.over.lock();
        over.broken.remove(&at);
        over.sectors.insert(at, content);
    }

    /// A sector can't be read any more.
    pub fn lose(&self, at: u64) {
        self.over.lock().broken.insert(at);
    }

    /// All that it holds.
    pub fn contents(&self) -> Vec<u8> {
        (0..self.info.capacity).flat_map(|at| self.sector(at)).collect()
    }

    fn serve(&self, mut io: Io<'_>) -> BlockResult {
        io.check(&self.info)?;
        let mut lost = Vec::new();
        for (i, at) in range(io.lba, io.sectors).enumerate() {
            match &mut io.payload {
                Payload::Read(_) if self.over.lock().broken.contains(&at) => {
                    lost.push(Lba::new(at))
                }
                Payload::Read(to) => {
                    to.sector(i as u32, SECTOR_BYTES).copy_from_slice(&self.sector(at));
                }
                Payload::Write(from) => {
                    let sector = from.from(i as u32, SECTOR_BYTES).next();
                    self.put(at, sector.expect("as many as it says").to_vec());
                }
                Payload::None if io.op == BlockOp::Discard => self.put(at, vec![0; SECTOR_BYTES]),
                Payload::None => {}
            }
        }
        match lost.is_empty() {
            true => Ok(()),
            false => Err(BlockError::Uncorrectable(lost)),
        }
    }
}

impl BlockDev for Overlay {
    fn info(&self) -> &BlockInfo {
        &self.info
    }
    fn start<'a>(&'a self, _: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::Done(self.serve(io))
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        Extent::of(&self.info, lba, most, |_| true)
    }
}
