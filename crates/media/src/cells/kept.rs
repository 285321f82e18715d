//! Sectors whose program failed behind its acknowledgement: the device has their content, the medium has not.
//!
//! Owns: which they are. Promises: they go when their chunk is erased or retired, or when somebody gives them
//! up ([`Cells::lose_kept`]: then they are lost, as the medium has them), and come back
//! with the chunk when a power cut takes its erase back; a program that a cut takes back takes them
//! along. Never: says where the device has them, or how much it can keep.

use super::{Cells, Lost, Ranges, append, cut, hold};

impl Cells {
    /// The program of these sectors, which are below the write pointer, failed: the device keeps them.
    pub fn keep(&mut self, index: u32, from: u32, end: u32) {
        self.touch(index);
        self.chunks[index as usize].kept = true;
        append(self.kept.entry(index).or_default(), from, end);
    }

    /// Nothing is kept from `from` on any more.
    pub(super) fn give_up_kept(&mut self, index: u32, from: u32) {
        if !self.chunks[index as usize].kept {
            return;
        }
        let ranges = self.kept.entry(index).or_default();
        cut(ranges, from);
        if ranges.is_empty() {
            self.kept.remove(&index);
            self.chunks[index as usize].kept = false;
        }
        self.touch(index);
    }

    /// The device keeps nothing of a chunk any more: so many sectors are lost.
    pub fn lose_kept(&mut self, index: u32) -> u64 {
        let lost = self.kept.get(&index).cloned().unwrap_or_default();
        lost.iter().for_each(|(from, end)| self.mark_damaged(index, *from, *end));
        self.give_up_kept(index, 0);
        lost.iter().map(|(from, end)| (end - from) as u64).sum()
    }

    /// Whether a sector is kept.
    #[inline]
    pub fn keeps(&self, index: u32, sector: u32) -> bool {
        self.chunks[index as usize].kept && self.kept.get(&index).is_some_and(|k| hold(k, sector))
    }

    /// Sectors kept of a chunk.
    pub fn kept_of(&self, index: u32) -> u64 {
        let sum = |ranges: &Ranges| ranges.iter().map(|r| (r.1 - r.0) as u64).sum();
        self.kept.get(&index).map_or(0, sum)
    }

    /// Kept sectors of all chunks.
    pub fn kept(&self) -> impl Iterator<Item = Lost> + '_ {
        self.kept.iter().flat_map(|(index, list)| list.iter().map(|r| (*index, r.0, r.1)))
    }

    /// Takes back what [`Cells::kept`] gave, after the rows.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn restore_kept(&mut self, (index, from, end): Lost) -> Result<(), String> {
        let known = self.chunks.get(index as usize).is_some_and(|c| c.kept && end <= c.wp);
        if !known || from > end {
            return Err(format!("sectors {from} to {end} of chunk {index} can't be kept"));
        }
        self.kept.entry(index).or_default().push((from, end));
        Ok(())
    }
}
