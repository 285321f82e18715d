//! Contents of files: read, written, cut short, punched.
//!
//! Owns: what lies inline, which pages an operation touches. Promises: behind a file's end and in
//! its holes there are zeros, whatever lay there before.

use crate::error::{FsError, Result};
use crate::format::{Addr, Nid, NodePage, PageRef, Time};
use crate::fs::{AT_A_TIME, Fs};
use crate::nodes::{is_dir, is_file};
use crate::state::{Need, State, Step, Stop};
use flashlane_base::mutant;
use flashlane_rt::Cx;
use smallvec::SmallVec;
use std::sync::Arc;

/// What `fallocate(2)` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Keeps room for it.
    Keep,
    /// Makes a hole of it.
    Punch,
    /// Makes zeros of it, and keeps room for them.
    Zero,
}

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Bytes of a write that are done in one step, and so at once: what FUSE sends at most.
const PIECE: usize = 1 << 20;
/// Pages of a hole that are made in one step.
const HOLE_PAGES: u64 = 256;

/// The nodes that lead to a page, by their numbers in the tree.
type Path = SmallVec<[u32; 3]>;
/// Bytes of the longest file: what `off_t` holds.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Pages of a file, side by side.
type Pages = std::ops::Range<u64>;

/// Why a page that is [`Addr::LOST`] can't be had.
pub(crate) fn given_up(ino: Nid, index: u64) -> Stop {
    let why = format!("page {index} of file {ino} was lost, and a repair gave it up");
    Stop::Fail(FsError::Io(why))
}

impl State {
    fn page_bytes(&self) -> u64 {
        self.layout.shape.page_bytes() as u64
    }

    /// The longest that a file can be, in bytes.
    fn size_max(&self) -> u64 {
        self.tree.pages_max().saturating_mul(self.page_bytes()).min(SIZE_MAX)
    }

    fn a_file(&mut self, ino: Nid) -> Step<()> {
        let mode = self.inode(ino)?.mode;
        match (is_dir(mode), is_file(mode)) {
            (true, _) => Err(Stop::Fail(FsError::IsDirectory)),
            (_, true) => Ok(()),
            _ => Err(Stop::Fail(FsError::Invalid("no file"))),
        }
    }

    fn read(&mut self, ino: Nid, offset: u64, into: &mut [u8]) -> Step<usize> {
        self.a_file(ino)?;
        let node = self.node(ino)?;
        let inode = node.inode.as_deref().ok_or(Stop::Fail(FsError::Stale))?;
        let bytes = inode.size.saturating_sub(offset).min(into.len() as u64) as usize;
        if inode.inline {
            let all = NodePage::inline(&node.bytes);
            let from = (offset as usize).min(all.len());
            let to = (from + bytes).min(all.len());
            into[..to - from].copy_from_slice(&all[from..to]);
            into[to - from..bytes].fill(0);
            return Ok(bytes);
        }
        let page_bytes = self.page_bytes();
        let mut missing = Vec::new();
        let mut done = 0;
        while done < bytes {
            let (index, at) =
                ((offset + done as u64) / page_bytes, (offset + done as u64) % page_bytes);
            let length = ((page_bytes - at) as usize).min(bytes - done);
            let to = &mut into[done..done + length];
            if let Some(page) = self.pages.get(ino, index) {
                to.copy_from_slice(&page.content[at as usize..][..length]);
            } else {
                match self.addr_of(ino, index)? {
                    Addr::LOST => return Err(given_up(ino, index)),
                    addr if addr.is_page() => missing.push(index),
                    _ => to.fill(0),
                }
            }
            done += length;
        }
        match missing.is_empty() {
            true => Ok(bytes),
            false => Err(Stop::Need(Need::Pages(ino, missing))),
        }
    }

    /// Asks for the pages at both edges of the bytes `from..to` that are changed only in part and
    /// are not in memory. Fails if such a page is [`Addr::LOST`], unless it is the last one, is
    /// changed from its start on, and `to` reaches `end`: old content from `end` on does not count.
    fn missing_edges(&mut self, ino: Nid, from: u64, to: u64, end: u64) -> Step<()> {
        let page = self.page_bytes();
        let mut missing = Vec::new();
        for edge in [from, to] {
            let index = edge / page;
            if edge.is_multiple_of(page) || self.pages.has(ino, index) {
                continue;
            }
            match self.addr_of(ino, index)? {
                Addr::LOST if edge == to && to >= end => {}
                Addr::LOST => return Err(given_up(ino, index)),
                addr if addr.is_page() => missing.push(index),
                _ => {}
            }
        }
        missing.dedup();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Stop::Need(Need::Pages(ino, missing))),
        }
    }

    /// How many pages of a range have no room on the medium yet, and how many nodes must be made
    /// to name them. `last` are the nodes, by their numbers in the tree, that lead to the last page
    /// before the range that was counted.
    fn lacking(&mut self, ino: Nid, pages: Pages, last: &mut Path) -> Step<(u64, u64)> {
        let (mut fresh, mut nodes) = (0, 0);
        for index in pages {
            if [Addr::NONE, Addr::LOST].contains(&self.addr_of(ino, index)?) {
                fresh += 1;
                let missing = self.missing_nodes(ino, index)? as usize;
                // Pages side by side lack the same nodes, or the same ones above them.
                let steps = self.tree.position(index).map(|p| p.steps).unwrap_or_default();
                let path: Path = steps.iter().map(|step| step.ofs).collect();
                let lacks = path.iter().rev().take(missing);
                nodes += lacks.filter(|ofs| !last.contains(ofs)).count() as u64;
                *last = path;
            }
        }
        Ok((fresh, nodes))
    }

    /// There is room for the pages of a range that have none, and for the nodes that name them.
    fn room_for_range(&mut self, ino: Nid, pages: Pages) -> Step<()> {
        let (fresh, nodes) = self.lacking(ino, pages, &mut Path::new())?;
        if fresh > 0 {
            self.room_for(fresh + nodes)?;
            self.nat.pick(nodes as usize)?;
        }
        Ok(())
    }

    /// What lies inline goes into a page. Room for it was looked for.
    fn unfold(&mut self, ino: Nid) -> Step<()> {
        let page_bytes = self.page_bytes() as usize;
        let node = self.node_mut(ino)?;
        let Some(inode) = &mut node.inode else { return Err(Stop::Fail(FsError::Stale)) };
        let size = inode.size as usize;
        inode.inline = false;
        let room = NodePage::inline_mut(node.bytes_mut());
        let content = room[..size.min(room.len())].to_vec();
        room.fill(0);
        if !content.is_empty() {
            self.set_page(ino, 0, PageRef::KEPT)?;
            let page = self.pages.change(ino, 0, page_bytes);
            page[..content.len()].copy_from_slice(&content);
            // The inode does not have it any more, and may have been durable.
            self.along.insert((ino, 0));
        }
        Ok(())
    }

    fn write(&mut self, ino: Nid, offset: u64, data: &[u8], now: Option<Time>) -> Step<()> {
        self.writable()?;
        self.a_file(ino)?;
        self.uncut(ino)?;
        let end = offset.saturating_add(data.len() as u64);
        if end > self.size_max() {
            return Err(Stop::Fail(FsError::TooLarge));
        }
        let inode = self.inode(ino)?;
        let (inline, size) = (inode.inline, inode.size);
        if inline && end <= self.tree.inline as u64 {
            self.room_to_grow(ino, NodePage::end_of_inline(end as usize))?;
            let node = self.node_mut(ino)?;
            let room = NodePage::inline_mut(node.bytes_mut());
            room[offset as usize..end as usize].copy_from_slice(data);
            return self.written(ino, end, now);
        }
        let page_bytes = self.page_bytes();
        let pages = offset / page_bytes..end.div_ceil(page_bytes);
        self.missing_edges(ino, offset, end, size)?;
        // Pages that have no place yet get one that is kept for them.
        self.room_for_range(ino, pages.clone())?;
        if inline {
            if size > 0 && pages.start > 0 {
                self.room_for(1 + pages.end - pages.start)?;
            }
            self.unfold(ino)?;
        }
        let mut done = 0;
        for index in pages {
            let before = self.addr_of(ino, index)?;
            if [Addr::NONE, Addr::LOST].contains(&before) {
                self.set_page(ino, index, PageRef::KEPT)?;
            }
            if before == Addr::LOST && !mutant!("parafs.lost-becomes-zeros") {
                // A kept page reads as zeros. So the checkpoint that writes the node writes this
                // page, too: otherwise a power cut could turn the lost page into zeros.
                self.along.insert((ino, index));
            }
            let at = (offset + done as u64 - index * page_bytes) as usize;
            let length = (page_bytes as usize - at).min(data.len() - done);
            let page = self.pages.change(ino, index, page_bytes as usize);
            page[at..at + length].copy_from_slice(&data[done..done + length]);
            done += length;
        }
        self.written(ino, end, now)
    }

    /// A file was written up to `end`, at this time; without one its times stay.
    fn written(&mut self, ino: Nid, end: u64, now: Option<Time>) -> Step<()> {
        let inode = self.inode(ino)?;
        let grows = end > inode.size;
        let how = if grows { crate::nodes::Dirty::Changed } else { crate::nodes::Dirty::Times };
        // An inline file's content is in the inode.
        let how = if inode.inline { crate::nodes::Dirty::Changed } else { how };
        let node = self.dirtied(ino, how)?;
        let Some(inode) = &mut node.inode else { return Err(Stop::Fail(FsError::Stale)) };
        inode.size = inode.size.max(end);
        (inode.mtime, inode.ctime) = (now.unwrap_or(inode.mtime), now.unwrap_or(inode.ctime));
        Ok(())
    }

    /// The file has this size from now on. True if there may be pages behind it.
    fn resize(&mut self, ino: Nid, size: u64, now: Time) -> Step<bool> {
        self.writable()?;
        self.a_file(ino)?;
        self.uncut(ino)?;
        if size > self.size_max() {
            return Err(Stop::Fail(FsError::TooLarge));
        }
        self.room_for_orphan()?;
        let page_bytes = self.page_bytes();
        let inode = self.inode(ino)?;
        let (inline, before) = (inode.inline, inode.size);
        if inline && size > self.tree.inline as u64 {
            self.room_for_range(ino, 0..1)?;
            self.unfold(ino)?;
        } else if inline {
            let node = self.node_mut(ino)?;
            let room = NodePage::inline_mut(node.bytes_mut());
            room[size as usize..].fill(0);
        } else if size < before {
            self.missing_edges(ino, size, size, u64::MAX)?;
            self.zero_tail(ino, size);
        }
        let inode = self.inode_mut(ino)?;
        inode.size = size;
        (inode.mtime, inode.ctime) = (now, now);
        if inline || size > before {
            return Ok(false);
        }
        self.pages.cut(ino, size.div_ceil(page_bytes));
        self.orphans.insert(ino);
        self.cuts.insert(ino);
        Ok(true)
    }

    /// Behind the new end of a file its last page is zeros, if it holds anything at all. It goes with
    /// the next checkpoint, which says where the end is: nothing old comes back when the file grows.
    fn zero_tail(&mut self, ino: Nid, size: u64) {
        let page_bytes = self.page_bytes();
        if !mutant!("parafs.tail-kept") {
            self.zero_in_page(ino, size, page_bytes - size % page_bytes);
        }
        if !mutant!("parafs.tail-left") {
            self.along.insert((ino, size / page_bytes));
        }
    }

    /// Zeros in one page, if it is in memory: [`State::missing_edges`] has brought it.
    fn zero_in_page(&mut self, ino: Nid, from: u64, bytes: u64) {
        let page_bytes = self.page_bytes();
        let (index, at) = (from / page_bytes, (from % page_bytes) as usize);
        if at as u64 + bytes > page_bytes || bytes == page_bytes || !self.pages.has(ino, index) {
            return;
        }
        let page = self.pages.change(ino, index, page_bytes as usize);
        page[at..at + bytes as usize].fill(0);
    }

    /// The end of a cut.
    pub(crate) fn cut_done(&mut self, ino: Nid) {
        self.cuts.remove(&ino);
        self.half_cut.remove(&ino);
        if self.nodes.get(&ino).and_then(|n| n.inode.as_ref()).is_none_or(|i| i.links > 0) {
            self.orphans.remove(&ino);
        }
    }

    /// Makes a hole of the whole pages of a range, and zeros of the rest.
    fn punch(&mut self, ino: Nid, from: u64, to: u64, now: Time) -> Step<()> {
        self.writable()?;
        self.a_file(ino)?;
        self.uncut(ino)?;
        let page_bytes = self.page_bytes();
        let inode = self.inode(ino)?;
        if inode.inline {
            let node = self.node_mut(ino)?;
            let room = NodePage::inline_mut(node.bytes_mut());
            let from = (from as usize).min(room.len());
            let to = (to.min(room.len() as u64)) as usize;
            room[from..to.max(from)].fill(0);
            return self.touched(ino, now);
        }
        self.missing_edges(ino, from, to, u64::MAX)?;
        let whole = from.div_ceil(page_bytes)..to / page_bytes;
        for index in whole.clone() {
            self.addr_of(ino, index)?;
        }
        if whole.start > whole.end {
            self.zero_in_page(ino, from, to - from);
        } else {
            if !from.is_multiple_of(page_bytes) {
                self.zero_in_page(ino, from, page_bytes - from % page_bytes);
            }
            if !to.is_multiple_of(page_bytes) {
                self.zero_in_page(ino, to - to % page_bytes, to % page_bytes);
            }
        }
        for index in whole {
            self.pages.drop_page(ino, index);
            let before = self.set_page(ino, index, PageRef::NONE)?;
            self.unname_written(before);
        }
        self.touched(ino, now)
    }

    fn touched(&mut self, ino: Nid, now: Time) -> Step<()> {
        let inode = self.inode_mut(ino)?;
        (inode.mtime, inode.ctime) = (now, now);
        Ok(())
    }

    /// Keeps room for those of `pages` that are holes, and returns these as ranges.
    fn keep(&mut self, ino: Nid, pages: Pages, size: u64, now: Time) -> Step<Vec<Pages>> {
        self.writable()?;
        self.a_file(ino)?;
        self.uncut(ino)?;
        let page_bytes = self.page_bytes();
        if pages.end.saturating_mul(page_bytes) > self.size_max().saturating_add(page_bytes) {
            return Err(Stop::Fail(FsError::TooLarge));
        }
        self.room_for_range(ino, pages.clone())?;
        if self.inode(ino)?.inline {
            self.room_for(1 + pages.end - pages.start)?;
            self.unfold(ino)?;
        }
        let mut fresh: Vec<Pages> = Vec::new();
        for index in pages {
            if self.addr_of(ino, index)? == Addr::NONE {
                self.set_page(ino, index, PageRef::KEPT)?;
                match fresh.last_mut() {
                    Some(last) if last.end == index => last.end += 1,
                    _ => fresh.push(index..index + 1),
                }
            }
        }
        let inode = self.inode_mut(ino)?;
        inode.size = inode.size.max(size);
        inode.ctime = now;
        Ok(fresh)
    }

    /// Makes holes of those of `pages` that only have room and were never written.
    fn give_back(&mut self, ino: Nid, pages: Pages) -> Step<()> {
        for index in pages {
            if self.addr_of(ino, index)? == Addr::KEPT && !self.pages.has(ino, index) {
                self.set_page(ino, index, PageRef::NONE)?;
            }
        }
        Ok(())
    }

    /// The number of pages from `index` on that are holes because the node that would name them
    /// does not exist. 0 if page `index` has its node, if the file's content is in its inode, and
    /// past the end of the longest possible file.
    fn gap(&mut self, ino: Nid, index: u64) -> Step<u64> {
        self.a_file(ino)?;
        match self.inode(ino)?.inline || index >= self.tree.pages_max() {
            true => Ok(0),
            false => Ok(self.find_slot_or_gap(ino, index)?.err().unwrap_or(0)),
        }
    }

    /// Fails if there is no room for a range of `pages` pages, even if all the pages that the file
    /// has are in that range. A quick refusal before the range is looked through.
    fn room_beyond(&mut self, ino: Nid, pages: u64) -> Step<()> {
        self.a_file(ino)?;
        let has = self.inode(ino)?.pages;
        self.room_for(pages.saturating_sub(has))
    }

    fn seek(&mut self, ino: Nid, offset: u64, what: Seek) -> Step<Option<u64>> {
        self.a_file(ino)?;
        let inode = self.inode(ino)?;
        let (inline, size) = (inode.inline, inode.size);
        if offset >= size {
            return Ok(None);
        }
        if inline {
            return Ok(Some(if what == Seek::Data { offset } else { size }));
        }
        let page_bytes = self.page_bytes();
        let (mut index, end) = (offset / page_bytes, size.div_ceil(page_bytes));
        while index < end {
            // Where there is no node there is no page that it would name.
            let gap = self.find_slot_or_gap(ino, index)?.err();
            let holds = gap.is_none()
                && (self.pages.has(ino, index)
                    || ![Addr::NONE, Addr::KEPT].contains(&self.addr_of(ino, index)?));
            if holds == (what == Seek::Data) {
                return Ok(Some(offset.max(index * page_bytes)));
            }
            index += gap.unwrap_or(1);
        }
        Ok((what == Seek::Hole).then_some(size))
    }
}

impl Fs {
    /// Reads from a file; how many bytes there were. Each 32 pages are of one moment.
    ///
    /// # Errors
    /// It is no file, or the medium can't give it: then nothing of what was asked for is said.
    pub async fn read(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        self.lock().asks += 1;
        let piece = AT_A_TIME * self.sb.layout.shape.page_bytes();
        let mut done = 0;
        for part in into.chunks_mut(piece) {
            let n = self.with(cx, |s| s.read(ino, offset + done as u64, part)).await?;
            done += n;
            if n < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// As [`Fs::read`], on any thread and in one step, if everything is in memory; nothing else.
    pub fn try_read(&self, ino: Nid, offset: u64, into: &mut [u8]) -> Option<Result<usize>> {
        self.at_once(false, |s| s.read(ino, offset, into))
    }

    /// As [`Fs::write`] of 1 MiB at most, on any thread, if nothing has to be waited for.
    pub fn try_write(
        &self,
        ino: Nid,
        offset: u64,
        data: &[u8],
        now: impl Into<Option<Time>>,
    ) -> Option<Result<()>> {
        let now = now.into();
        match data.len() <= PIECE {
            true => self.at_once(true, |s| s.write(ino, offset, data, now)),
            false => None,
        }
    }

    /// Writes to a file. It is durable after an fsync. Without a time the file's times stay.
    ///
    /// # Errors
    /// It is no file, would be too large, or there is no room. Of a longer write than 1 MiB a part
    /// may have been done.
    pub async fn write(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        offset: u64,
        data: &[u8],
        now: impl Into<Option<Time>>,
    ) -> Result<()> {
        let (mut at, now) = (offset, now.into());
        for piece in data.chunks(PIECE) {
            self.balance(cx).await?;
            self.with(cx, |s| s.write(ino, at, piece, now)).await?;
            self.limit_dirty(cx).await?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Gives a file another size.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn truncate(self: &Arc<Fs>, cx: &Cx, ino: Nid, size: u64, now: Time) -> Result<()> {
        self.balance(cx).await?;
        let cut = self.with(cx, |s| s.resize(ino, size, now)).await?;
        if cut {
            let pages = size.div_ceil(self.sb.layout.shape.page_bytes() as u64);
            self.cut(cx, ino, pages).await?;
        }
        Ok(())
    }

    /// Takes all pages from `from` on from a file that is marked as being cut short.
    pub(crate) async fn cut(self: &Arc<Fs>, cx: &Cx, ino: Nid, from: u64) -> Result<()> {
        let mut outcome = Ok(false);
        while let Ok(false) = outcome {
            outcome = self
                .with(cx, |s| {
                    let done = s.cut_piece(ino, from)?;
                    if done {
                        // Somebody may have read one meanwhile.
                        s.pages.cut(ino, from);
                    }
                    Ok(done)
                })
                .await;
        }
        {
            let mut s = self.lock();
            match &outcome {
                Ok(_) | Err(FsError::Stale) => s.cut_done(ino),
                // What lies behind its end would come back when it grows. A mount tries again.
                Err(_) if mutant!("parafs.half-cut-grows") => s.cut_done(ino),
                Err(_) => {
                    s.cuts.remove(&ino);
                    s.half_cut.insert(ino);
                }
            }
        }
        self.changed.wake(cx);
        outcome.map(drop)
    }

    /// Keeps room for a range of a file, makes a hole or zeros of it. With `keep_size` the file
    /// does not grow.
    ///
    /// # Errors
    /// As [`Fs::write`].
    pub async fn fallocate(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        (offset, bytes): (u64, u64),
        what: Fallocate,
        keep_size: bool,
        now: Time,
    ) -> Result<()> {
        if bytes == 0 {
            return Err(FsError::Invalid("no bytes"));
        }
        let end = offset.checked_add(bytes).filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        let page_bytes = self.sb.layout.shape.page_bytes() as u64;
        let (mut index, last) = (offset / page_bytes, end.div_ceil(page_bytes));
        if what != Fallocate::Punch {
            // Before anything changes. A page that is punched is kept again, in the same room.
            self.with(cx, |s| s.room_beyond(ino, last - index)).await?;
            self.room_for_all(cx, ino, index..last).await?;
        }
        if what != Fallocate::Keep {
            // Behind the end there is nothing to punch but room that is kept.
            let mut at = offset;
            while at < end {
                // Pages without a node are holes already and are skipped. The first piece is
                // punched in any case: that refuses a file that can't be changed.
                let gap = self.with(cx, |s| s.gap(ino, at / page_bytes)).await?;
                let is_hole = gap > 0 && at > offset;
                let pages = if is_hole { gap } else { HOLE_PAGES };
                let next = (at / page_bytes).saturating_add(pages).saturating_mul(page_bytes);
                let next = next.min(end);
                if !is_hole {
                    self.balance(cx).await?;
                    self.with(cx, |s| s.punch(ino, at, next, now)).await?;
                }
                at = next;
                // A hole that nobody could fill needs no look at each of its pages.
                let size = self.with(cx, |s| Ok(s.inode(ino)?.size)).await?;
                if at >= size && self.with(cx, |s| s.ends_by(ino, at / page_bytes)).await? {
                    break;
                }
            }
        }
        if what != Fallocate::Punch {
            let size = if keep_size { 0 } else { end };
            let mut kept = Vec::new();
            while index < last {
                let next = (index + HOLE_PAGES).min(last);
                let size = if next == last { size } else { 0 };
                let piece = async || {
                    self.balance(cx).await?;
                    self.with(cx, |s| s.keep(ino, index..next, size, now)).await
                };
                match piece().await {
                    Ok(fresh) => kept.extend(fresh),
                    Err(e) => {
                        // Other writers took the room meanwhile. An error of the file, which may
                        // be deleted by now, matters less than that.
                        for pages in kept {
                            let _ = self.with(cx, |s| s.give_back(ino, pages.clone())).await;
                        }
                        return Err(e);
                    }
                }
                index = next;
            }
        }
        Ok(())
    }

    /// There is room for all pages of a range that have none, and for the nodes that name them.
    async fn room_for_all(self: &Arc<Fs>, cx: &Cx, ino: Nid, pages: Pages) -> Result<()> {
        if mutant!("parafs.fallocate-in-part") {
            return Ok(());
        }
        let (mut lacking, mut last) = (0, Path::new());
        for at in pages.clone().step_by(HOLE_PAGES as usize) {
            let some = at..(at + HOLE_PAGES).min(pages.end);
            let look = |s: &mut State| {
                let mut last = last.clone();
                Ok((s.lacking(ino, some.clone(), &mut last)?, last))
            };
            let ((fresh, nodes), seen) = self.with(cx, look).await?;
            (lacking, last) = (lacking + fresh + nodes, seen);
        }
        self.with(cx, |s| s.room_for(lacking)).await
    }

    /// The next data, or the next hole, from `offset` on; nothing behind the end.
    ///
    /// # Errors
    /// It is no file.
    pub async fn seek(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        offset: u64,
        what: Seek,
    ) -> Result<Option<u64>> {
        self.with(cx, |s| s.seek(ino, offset, what)).await
    }
}

impl State {
    /// A file has no pages from `from` on.
    fn ends_by(&mut self, ino: Nid, from: u64) -> Step<bool> {
        if from < self.tree.inode_addrs {
            return Ok(false);
        }
        Ok(self.last_node(ino, from)?.is_none())
    }
}
