//! Content that the medium can't give back yet.
//!
//! Owns: [`Window`], the newest sectors of an open segment. Promises: whatever was appended is in here
//! until the chunk can give it back. Never: of use where `mw_cunits` is 0.

use std::collections::VecDeque;

/// The sectors from `first` on.
#[derive(Debug, Default)]
pub(super) struct Window {
    first: u32,
    /// Content of each; nothing for padding.
    kept: VecDeque<Box<[u8]>>,
}

impl Window {
    /// The next sector of the segment.
    pub(super) fn push(&mut self, sector: u32, content: &[u8]) {
        if self.kept.is_empty() {
            self.first = sector;
        }
        assert_eq!(self.first + self.kept.len() as u32, sector, "sectors come in order");
        self.kept.push_back(content.into());
    }

    pub(super) fn get(&self, sector: u32) -> Option<&[u8]> {
        let at = sector.checked_sub(self.first)? as usize;
        self.kept.get(at).map(|content| &**content)
    }

    /// Sectors before this one are not needed any more.
    pub(super) fn forget_before(&mut self, sector: u32) {
        let n = (sector.saturating_sub(self.first) as usize).min(self.kept.len());
        self.kept.drain(..n);
        self.first += n as u32;
    }

    /// Sectors from this one on were not written after all.
    pub(super) fn cut(&mut self, end: u32) {
        self.kept.truncate(end.saturating_sub(self.first) as usize);
    }
}
