//! What a file system has lost with the flash below it.
//!
//! Owns: pages that nodes name and that no flash block has. Promises: each file that has lost pages
//! is named, with the blocks that can't be read; a page that can't be read and was written is never
//! taken for one that was not. Never: reads contents: a page that lies in a block that is there is
//! not looked at.

use super::{Model, PAGES_OF_DIRECTORIES, cure, is_dir};
use crate::error::Result;
use crate::format::{Addr, Nid, Owner, PageRef};
use flashlane_base::mutant;
use std::collections::{BTreeMap, BTreeSet};

/// A kind of [`super::Report::lost`].
pub(super) const PAGES: &str = "pages of files";

impl Model<'_> {
    /// A page may have been written, as far as the medium knows.
    pub(super) fn may_be_there(&self, segment: u32, page: u32) -> bool {
        let there = self.medium.pages_there(&self.layout, segment);
        there.is_none_or(|there| page < there)
    }

    /// Finds pages that nodes name and no flash block has. A repair that gives them up makes those
    /// of files [`Addr::LOST`], so reading them is an error, and those of directories holes.
    pub(super) async fn miss_pages(&mut self) -> Result<()> {
        let mut files: BTreeMap<Nid, Vec<(Addr, Owner)>> = BTreeMap::new();
        let mut segments = BTreeSet::new();
        for (addr, owner) in self.owners.iter() {
            let (segment, page) = self.layout.segment_of(addr);
            let there = self.medium.pages_there(&self.layout, segment);
            if there.is_none_or(|there| page < there) || owner.slot == Owner::NODE {
                continue;
            }
            let file = self.nodes.get(owner.nid).map_or(owner.nid, |node| node.ino);
            files.entry(file).or_default().push((addr, owner));
            segments.insert(segment);
        }
        let doubts = self.medium.doubts();
        let why = doubts.as_ref().map_or(String::new(), |doubts| format!(": {doubts}"));
        for (file, pages) in files {
            let (count, who) = (pages.len() as u64, self.who(file).await?);
            self.unread.set(self.unread.get() + count);
            let is_dir = self.mode(file).is_some_and(is_dir);
            let (cure, kind, becomes) = match is_dir {
                true => (cure::LOST_NAMES, PAGES_OF_DIRECTORIES, PageRef::NONE),
                false if mutant!("parafs.lost-is-hole") => (cure::LOST, PAGES, PageRef::NONE),
                false => (cure::LOST, PAGES, PageRef::LOST),
            };
            self.wrong(cure, format!("{count} pages of {who} are lost{why}"));
            self.would_lose(kind, count);
            for (addr, owner) in pages {
                self.owners.remove(addr);
                self.set_page(owner, becomes).await?;
            }
        }
        // What they hold follows from what is left.
        segments.iter().for_each(|segment| self.segments_known[*segment as usize] = false);
        if let Some(doubts) = doubts {
            self.gives_up = self.has_lost_with_blocks();
            match self.may_lack_fsyncs() && !mutant!("parafs.lost-fsyncs-unsaid") {
                true => {
                    let said = "fsyncs after the last checkpoint may be lost";
                    self.unread.set(self.unread.get() + 1);
                    self.wrong(cure::FSYNCS, format!("{said}: {doubts}"));
                }
                false => self.note(format!("nobody knows what these flash blocks hold: {doubts}")),
            }
            if self.gives_up && self.report.lost.is_empty() {
                self.would_lose("flash blocks or dead dies", self.medium.in_doubt());
            }
        }
        Ok(())
    }

    /// Something is missing, or may be, that blocks hold which can't be read.
    fn has_lost_with_blocks(&self) -> bool {
        let layout = &self.layout;
        let pages = layout.shape.segment_pages;
        let lacks = |segment: u32| {
            let there = self.medium.pages_there(layout, segment).unwrap_or(pages);
            let valid = &self.segments[segment as usize].valid;
            (there..pages).any(|page| crate::fs::bit(valid, page))
        };
        (0..layout.shape.segments()).any(lacks) || self.may_lack_fsyncs()
    }

    /// Flash blocks that can't be read may hold fsyncs after the last checkpoint.
    fn may_lack_fsyncs(&self) -> bool {
        (self.pack_lost || !self.pack.clean) && self.medium.has_lost_blocks()
    }
}
