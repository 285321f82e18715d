//! Contents of files, read and compared with their checksums.
//!
//! Owns: which pages a scrub reads. Promises: each page of a regular file that the checkpoint names
//! is read, and is named if it can't be read or does not match its checksum; some dozen pages are
//! in memory at a time. Never: looks at pages that only fsyncs behind the checkpoint name.

use super::lost::PAGES;
use super::{Found, Model, cure, is_file};
use crate::error::{FsError, Result};
use crate::format::{Nid, Owner, PageRef};
use crate::fs::{AT_A_TIME, said_of_mismatch};
use flashlane_base::mutant;

/// A page of a file that is to be read.
#[derive(Clone, Copy)]
struct Wanted {
    owner: Owner,
    ino: Nid,
    index: u64,
    page: PageRef,
}

impl Model<'_> {
    /// Reads all pages of regular files. A repair that may give up data makes those that can't be
    /// read, or do not match their checksums, [`crate::format::Addr::LOST`].
    pub(super) async fn scrub(&mut self) -> Result<()> {
        let of_file = |owner: &Owner| owner.slot != Owner::NODE;
        let all = self.owners.iter().filter(|(_, owner)| of_file(owner)).count() as u64;
        let nids: Vec<Nid> = self.nodes.iter().map(|(nid, _)| nid).collect();
        let mut done = 0;
        self.says("contents of files", 0, all);
        for nid in nids {
            let Some((first, count)) = self.names_pages(nid) else { continue };
            let Some(node) = self.nodes.get(nid).copied() else { continue };
            let ino = node.ino;
            if !node.is(Found::NAMES) && !self.changed.contains_key(&nid) {
                continue;
            }
            let of_regular = self.mode(ino).is_some_and(is_file);
            let content = self.content(nid).await?;
            let wanted = |slot: u32| {
                let page = self.tree.page(&content, node.is_inode(), slot);
                let (owner, index) = (Owner { nid, slot }, first + u64::from(slot));
                let is_its = page.addr.is_page() && self.owners.get(page.addr) == Some(owner);
                is_its.then_some(Wanted { owner, ino, index, page })
            };
            let wanted: Vec<Wanted> = (0..count).filter_map(wanted).collect();
            for some in wanted.chunks(AT_A_TIME) {
                if of_regular {
                    self.read_contents(some).await?;
                    self.report.contents_read += some.len() as u64;
                }
                let before = done;
                done += some.len() as u64;
                if done / 256 != before / 256 || done == all {
                    (self.progress)("contents of files", done, all);
                }
            }
        }
        Ok(())
    }

    /// Reads pages at a time, and those again that are not as they should be.
    async fn read_contents(&mut self, pages: &[Wanted]) -> Result<()> {
        let mut reads = Vec::with_capacity(pages.len());
        for wanted in pages {
            let (medium, layout, theirs) = (self.medium.clone(), self.layout, self.cx.clone());
            let (tree, wanted) = (self.tree, *wanted);
            reads.push(self.cx.spawn_join(async move {
                let mut bytes = vec![0; layout.shape.page_bytes()];
                let read = medium.read(&theirs, &layout, wanted.page.addr, &mut bytes).await;
                let place = (wanted.ino, wanted.index);
                read.is_ok() && tree.check(place, wanted.page, &bytes).is_ok()
            }));
        }
        for (read, wanted) in reads.into_iter().zip(pages) {
            if !read.await {
                self.read_content_again(wanted).await?;
            }
        }
        Ok(())
    }

    /// Reads a page that could not be read, or did not match: it may have been spoiled on its way.
    async fn read_content_again(&mut self, wanted: &Wanted) -> Result<()> {
        let Wanted { owner, ino, index, page } = *wanted;
        let addr = page.addr;
        let why = match self.read_page(addr).await {
            Ok(bytes) if self.tree.check((ino, index), page, &bytes).is_ok() => return Ok(()),
            Ok(_) if mutant!("parafs.scrub-passes-over") => return Ok(()),
            Ok(_) => said_of_mismatch(ino, index, addr),
            Err(FsError::Io(why)) => {
                format!("page {index} of file {ino}, at page {}, can't be read: {why}", addr.0)
            }
            Err(e) => return Err(e),
        };
        let why = match self.inode(ino).await?.map(|inode| inode.name) {
            Some(name) if !name.is_empty() => {
                format!("{why} (its name is {})", String::from_utf8_lossy(&name))
            }
            _ => why,
        };
        self.wrong(cure::LOST, why);
        self.would_lose(PAGES, 1);
        self.owners.remove(addr);
        let (segment, _) = self.layout.segment_of(addr);
        // What it holds follows from what is left.
        self.segments_known[segment as usize] = false;
        self.set_page(owner, PageRef::LOST).await
    }
}
