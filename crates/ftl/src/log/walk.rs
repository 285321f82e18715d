//! The walk that every test ends with: does everything the engine believes agree?
//!
//! Owns: the comparison of map, valid bits and valid counts. Promises: finds a sector that is valid
//! twice or not at all, and a chunk in two places. Never: changes anything; meant for a target without requests in flight.

use super::HostFtl;
use super::map::Entry;
use std::collections::{BTreeMap, BTreeSet};

impl HostFtl {
    /// Checks that every mapped media sector is valid exactly once, nothing else is, and the lines'
    /// counts say the same. The error names the first disagreement.
    pub fn check_consistency(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for lba in 0..self.info.capacity {
            match self.map.get(lba) {
                Entry::Media(addr) => {
                    if !self.lines.is_valid(addr) {
                        return Err(format!("lba {lba} maps to {addr}, which is not valid"));
                    }
                    if !seen.insert(addr) {
                        return Err(format!("lba {lba} maps to {addr}, as another sector does"));
                    }
                }
                Entry::Slot(slot) if self.slab.lba(slot) != lba => {
                    return Err(format!(
                        "lba {lba} maps to slot {slot} of {}",
                        self.slab.lba(slot)
                    ));
                }
                _ => {}
            }
        }
        self.check_places()?;
        let (bits, counts) = (self.lines.count_bits(), self.lines.total_valid());
        if bits != seen.len() as u64 || counts != bits {
            return Err(format!(
                "{} mapped sectors, {bits} valid bits, lines count {counts}",
                seen.len()
            ));
        }
        Ok(())
    }

    /// A chunk is free, in a line, in the log, in a checkpoint or retired: one of these.
    fn check_places(&self) -> Result<(), String> {
        let mut seen = BTreeMap::new();
        let mut take = |chunk: u32, place: String| match seen.insert(chunk, place.clone()) {
            Some(before) => Err(format!("chunk {chunk} is in {place} and in {before}")),
            None => Ok(()),
        };
        for pool in self.pools.iter() {
            let p = pool.lock();
            p.free_list().try_for_each(|chunk| take(chunk, "the free list".into()))?;
            for (id, line) in p.lines() {
                let mut chunks = line.chunks.iter();
                chunks.try_for_each(|chunk| take(*chunk, format!("line {id}")))?;
            }
            p.retired_chunks.iter().try_for_each(|chunk| take(*chunk, "the retired".into()))?;
        }
        for chunk in self.journal.chunks() {
            take(chunk, "the log".into())?;
        }
        let kept = self.checkpoints.kept.lock();
        // Two of them may name one.
        let chunks: BTreeSet<u32> = kept.iter().flat_map(|c| c.chunks.clone()).collect();
        chunks.into_iter().try_for_each(|c| take(c, "a checkpoint".into()))
    }

    /// Lines in each state, chunks free for lines, chunks retired: pblk's `lines` attribute.
    pub fn line_counts(&self) -> (Vec<(super::LineState, usize)>, u64, u64) {
        use super::LineState::{Closed, Closing, Free, Freeing, Open, Opening, Victim};
        let states = [Free, Opening, Open, Closing, Closed, Victim, Freeing];
        let count = |s: &super::LineState| (*s, self.pools.count(*s) as usize);
        let counts = states.iter().map(count).collect();
        let retired = self.pools.sum(|p| p.retired_chunks.len() as u64);
        (counts, self.pools.sum(|p| p.free_chunks()), retired)
    }
}
