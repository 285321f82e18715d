//! Cleaning: room for what is to come.
//!
//! Owns: when somebody cleans, which segment, how its pages are moved. Promises: a page is moved
//! only as long as something names it; a segment is free only when a checkpoint has forgotten it;
//! what a checkpoint needs is there before anybody may make anything dirty. Never: changes a file.
//!
//! Foreground cleaning takes the segment with the fewest valid pages (ParaFS paper, 3.3), has its
//! pages written to the heads again, and takes one checkpoint for several segments.

use crate::error::{FsError, Result};
use crate::format::{Nid, NodePage, Owner};
use crate::fs::Fs;
use crate::state::{Need, State, Step, Stop};
use crate::write::By;
use flashlane_rt::Cx;
use std::sync::Arc;

/// Segments that are emptied before a checkpoint frees them.
const VICTIMS: u32 = 4;

/// A page of a segment that is being emptied.
enum Moved {
    /// Nothing names it any more.
    Gone,
    /// A node: it is written by the next checkpoint.
    Node,
    /// A page of a file, which is dirty now.
    Page(Nid, u64),
}

impl State {
    /// Free segments that a checkpoint of what is dirty takes, at most.
    pub(crate) fn free_for_nodes(&self) -> u32 {
        let pages = u64::from(self.layout.shape.segment_pages);
        let dirty = self.dirty_nodes.len() as u64 + 16;
        (2 * dirty).div_ceil(pages) as u32
    }

    /// Free segments that must be there before anything else is made dirty: what a checkpoint writes
    /// of what is dirty, a segment for each head to go on with, and what cleaning moves to.
    fn free_min(&self) -> u32 {
        self.layout.shape.regions.min(8) + 4 + self.free_for_nodes()
    }

    /// A checkpoint would write more than may be lost for want of room.
    fn is_due(&self, dirty_nodes: usize) -> bool {
        let reserve = self.layout.shape.segments() - self.segments_for_users();
        let pages = reserve / 8 * self.layout.shape.segment_pages;
        self.dirty_nodes.len() > dirty_nodes.min(pages as usize)
    }

    fn segments_for_users(&self) -> u32 {
        (self.capacity / u64::from(self.layout.shape.segment_pages)) as u32
    }

    /// Whose the valid pages of a segment are.
    fn owners(&mut self, segment: u32) -> Step<Vec<(u32, Owner)>> {
        let layout = self.layout;
        let s = self.segments.get(segment);
        let Some(owners) = &s.owners else { return Err(Stop::Need(Need::Summary(segment))) };
        let valid = |page: u32| self.segments.is_valid(layout.addr(segment, page));
        let known = (0..layout.shape.segment_pages).filter(|page| valid(*page));
        let of = |page: u32| (page, owners.get(page as usize).copied().unwrap_or_default());
        let found: Vec<(u32, Owner)> = known.map(of).collect();
        // Of a segment that was begun before a mount the first ones may lie on the medium only.
        if found.iter().any(|(_, owner)| *owner == Owner::default()) && !s.asked {
            return Err(Stop::Need(Need::Summary(segment)));
        }
        Ok(found)
    }

    /// Makes dirty what a page of a victim holds.
    fn take_out(&mut self, segment: u32, page: u32, owner: Owner) -> Step<Moved> {
        let addr = self.layout.addr(segment, page);
        if !self.segments.is_valid(addr) {
            return Ok(Moved::Gone);
        }
        let entry = self.nat.get(owner.nid)?;
        if owner.slot == Owner::NODE {
            if entry.addr != addr {
                return Ok(Moved::Gone);
            }
            self.node_mut(owner.nid)?;
            return Ok(Moved::Node);
        }
        if entry.ino == 0 {
            return Ok(Moved::Gone);
        }
        let node = self.node(owner.nid)?;
        let (ino, ofs, is_inode) = (node.ino, node.ofs, node.is_inode());
        let named = NodePage::addr(&node.bytes, is_inode, owner.slot);
        if named != addr || node.inode.as_ref().is_some_and(|inode| inode.inline) {
            return Ok(Moved::Gone);
        }
        let Some((_, first)) = self.tree.kind(ofs) else { return Ok(Moved::Gone) };
        let index = first + u64::from(owner.slot);
        self.inode(ino)?;
        // Whoever cuts it short takes the page away.
        if self.cuts.contains(&ino) {
            return Ok(Moved::Gone);
        }
        if !self.pages.has(ino, index) {
            return Err(Stop::Need(Need::Pages(ino, vec![index])));
        }
        let bytes = self.layout.shape.page_bytes();
        self.pages.change(ino, index, bytes);
        Ok(Moved::Page(ino, index))
    }
}

impl Fs {
    /// Has room for an operation: called before anything is changed, and by nobody who cleans.
    pub(crate) async fn balance(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        if self.lock().is_due(self.options.dirty_nodes) {
            self.checkpoint(cx).await?;
        }
        let has_room = |s: &State| s.segments.free() >= s.free_min();
        if has_room(&self.lock()) {
            return Ok(());
        }
        self.make_room(cx).await
    }

    /// Has at least as much room as an operation needs, as far as there is any to win. One cleans at
    /// a time; the others wait for it.
    pub(crate) async fn make_room(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        if self.lock().cleaning {
            self.changed.wait(cx, || !self.lock().cleaning).await;
            return match self.lock().segments.free() {
                0 => Err(FsError::NoSpace),
                _ => Ok(()),
            };
        }
        self.lock().cleaning = true;
        let outcome = self.clean(cx).await;
        self.lock().cleaning = false;
        self.changed.wake(cx);
        outcome
    }

    async fn clean(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        let mut before = None;
        loop {
            let (free, wanted, empty, trims) = {
                let s = self.lock();
                (s.segments.free(), s.free_min() + 2, s.segments.empty(), s.trims)
            };
            if free >= wanted {
                return Ok(());
            }
            if trims > 0 {
                self.changed.wait(cx, || self.lock().trims == 0).await;
                continue;
            }
            // Segments that heads have and have not begun.
            if free < wanted / 2 && self.lock().segments.take_back() > 0 {
                continue;
            }
            // Each time round something must be won.
            let now = (free, self.lock().segments.valid());
            if before.replace(now) == Some(now) && empty == 0 {
                return if free > 0 { Ok(()) } else { Err(FsError::NoSpace) };
            }
            let mut emptied = empty;
            while emptied < VICTIMS {
                let Some(victim) = self.lock().segments.victim() else { break };
                // What it holds has to go somewhere.
                let (free, pages) = {
                    let s = self.lock();
                    (s.segments.free(), s.layout.shape.segment_pages)
                };
                if free == 0 && self.lock().segments.get(victim).valid > pages / 2 {
                    break;
                }
                match self.empty(cx, victim).await {
                    Ok(()) => emptied += 1,
                    // A checkpoint frees what was won so far.
                    Err(FsError::NoSpace) => break,
                    Err(e) => return Err(e),
                }
            }
            self.checkpoint(cx).await?;
        }
    }

    /// Moves all pages out of a segment; nodes go with the next checkpoint.
    async fn empty(self: &Arc<Fs>, cx: &Cx, segment: u32) -> Result<()> {
        let owners = self.with(cx, |s| s.owners(segment)).await?;
        let mut files: Vec<(Nid, u64)> = Vec::new();
        for (page, owner) in owners {
            match self.with(cx, |s| s.take_out(segment, page, owner)).await {
                Ok(Moved::Page(ino, index)) => files.push((ino, index)),
                Ok(Moved::Gone | Moved::Node) => {}
                // A file that was deleted meanwhile has no page here any more.
                Err(FsError::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        files.sort_unstable();
        for of_file in files.chunk_by(|a, b| a.0 == b.0) {
            let indexes: Vec<u64> = of_file.iter().map(|(_, index)| *index).collect();
            self.write_back(cx, of_file[0].0, &indexes, By::Cleaner).await?;
        }
        Ok(())
    }
}
