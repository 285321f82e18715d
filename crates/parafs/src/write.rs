//! Contents on their way to the medium: write-back, fsync.
//!
//! Owns: when a page of a file is placed, written and named; what an fsync writes. Promises: a page
//! is named only when it was written; of one page one write is under way at a time; what an fsync has
//! acknowledged is found by a mount, all of it. Never: writes a node but for an fsync.
//!
//! **fsync.** The file's dirty pages are written first. Then its inode and its direct nodes, as far
//! as they have changed, go to the medium as one batch: each says how many there are, and a mount
//! takes all of a batch or nothing of it (`recover`). What a batch can't say (names that have
//! changed, links, extended attributes) takes a checkpoint ([`State::is_bound`]), as in F2FS.

use crate::error::{FsError, Result};
use crate::format::shared::{self, Part};
use crate::format::{Addr, Batch, Footer, Inode, Nid, NodeKind, NodePage, Owner, PageRef, Share};
use crate::fs::{Fs, Sent};
use crate::nodes::{Dirty, Node, is_dir, is_file};
use crate::pages::PageIs;
use crate::pairs::Covers;
use crate::segments::Heat;
use crate::state::{Need, State, Step, Stop};
use flashlane_base::mutant;
use flashlane_rt::{Cx, Join};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages of a file whose writes are under way at a time.
const AT_ONCE: usize = 64;
/// Of the dirty pages that there may be, the part that one writer writes at least where there are more.
const WRITE_OUT: usize = 8;
/// Times that a write is tried, each time elsewhere: a medium of which so many places fail is broken.
pub(crate) const TRIES: u32 = 8;

/// Who has pages written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Anybody,
    /// The same where cleaning wins nothing more: what was promised comes before what cleaning needs.
    Promised,
    /// Who makes room can't wait for room. Pages go to heads of their heat.
    Cleaner,
    /// The same in idle time: what nobody has changed for long is cold.
    IdleCleaner,
}

/// A page of a file: the file, which page.
pub(crate) type FilePage = (Nid, u64);

/// A node of a file as an fsync finds it.
struct Seen {
    nid: Nid,
    /// When it was changed last.
    changed: u64,
    bytes: Arc<Vec<u8>>,
    inode: Option<Box<Inode>>,
}

/// A page of a file on its way to the medium.
struct Write {
    ino: Nid,
    index: u64,
    /// Which page in memory, and which of its versions.
    is: (u64, u64),
    /// What the node that names it says then.
    page: PageRef,
    sent: Sent,
}

/// A page of a file as it goes to the medium.
pub(crate) struct ToSend {
    /// Which page in memory, and which of its versions.
    pub(crate) is: PageIs,
    pub(crate) content: Arc<Vec<u8>>,
    /// Its checksum ([`PageRef::crc`]).
    pub(crate) crc: u32,
}

impl State {
    /// Gives a dirty page a place. Nothing where it is clean, or is on its way already.
    fn begin_write(&mut self, ino: Nid, index: u64, by: By) -> Step<Option<Write>> {
        if !self.pages.is_dirty(ino, index) {
            return Ok(None);
        }
        let inode = self.inode(ino)?;
        let heat = match (by, is_dir(inode.mode)) {
            (By::IdleCleaner, _) => Heat::ColdData,
            (_, true) => Heat::HotData,
            (_, false) => Heat::WarmData,
        };
        // Cleaning goes on where nobody else may, and a checkpoint where no cleaning may: it frees
        // what was won.
        let kept = match by {
            By::Cleaner | By::Promised => self.free_for_checkpoint(),
            By::Anybody => self.kept_from_all(),
            By::IdleCleaner => self.free_min(),
        };
        // What heads have left is the cleaner's, too.
        if by == By::Anybody
            && self.segments.free() <= kept
            && !mutant!("parafs.heads-are-anybodys")
        {
            return Err(Stop::Need(Need::Room { kept }));
        }
        // The node that names it becomes dirty.
        if by != By::Anybody && !self.is_sure_of_checkpoint() {
            return Err(Stop::Need(Need::Room { kept }));
        }
        let Some((nid, slot)) = self.find_slot(ino, index)? else {
            let why = format!("no node names page {index} of file {ino}, which is dirty");
            return Err(FsError::Damaged(why).into());
        };
        if self.pages.is_on_its_way(ino, index) {
            return Ok(None);
        }
        let Some(to_send) = self.page_to_send(ino, index) else { return Ok(None) };
        let ToSend { is, content, crc } = to_send;
        let addr = self.segments.allocate(heat, Owner { nid, slot }, kept)?;
        self.pages.begin(ino, index);
        self.pages_in_flight += 1;
        match by {
            By::Anybody | By::Promised => {
                self.stats.data_pages += 1;
                self.taken += 1;
            }
            By::Cleaner | By::IdleCleaner => self.stats.moved_pages += 1,
        }
        let page = PageRef { addr, crc };
        Ok(Some(Write { ino, index, is, page, sent: Sent { addr, content } }))
    }

    /// A page as it goes to the medium. A page of a directory is sealed here. Nothing if the page
    /// is not in memory.
    pub(crate) fn page_to_send(&mut self, ino: Nid, index: u64) -> Option<ToSend> {
        let (slots, tree) = (self.slots, self.tree);
        let is_dir = self.inode(ino).is_ok_and(|inode| is_dir(inode.mode));
        if is_dir {
            slots.seal(self.pages.bytes_mut(ino, index)?, ino, index);
        }
        let page = self.pages.get(ino, index)?;
        let crc = if is_dir { 0 } else { tree.sum_of(ino, index, &page.content) };
        Some(ToSend { is: (page.id, page.version), content: page.content.clone(), crc })
    }

    /// The write of a page has ended.
    fn end_write(&mut self, write: &Write, written: bool) -> Step<()> {
        let (ino, index, addr) = (write.ino, write.index, write.sent.addr);
        let there = self.pages.get(ino, index).is_some_and(|page| page.id == write.is.0);
        if !written {
            self.segments.give_up(addr);
        }
        if !there || !written {
            self.end_unwritten(write);
            return Ok(());
        }
        // What names it may have left the memory meanwhile.
        let before = self.addr_of(ino, index)?;
        self.set_page(ino, index, write.page)?;
        self.unname_written(before);
        self.segments.arrived(addr);
        self.segments.set_valid(addr);
        let now = self.tick();
        self.unflushed.insert(ino, now);
        self.note_in_pairs(ino, addr);
        self.pages.end(ino, index, write.is, true);
        Ok(())
    }

    /// The write of a page has ended, and nothing names what it wrote.
    fn end_unwritten(&mut self, write: &Write) {
        self.segments.arrived(write.sent.addr);
        self.pages.end(write.ino, write.index, write.is, false);
    }

    /// A page lies elsewhere now: [`State::set_page`] has counted what was kept for it.
    pub(crate) fn unname_written(&mut self, before: Addr) {
        if before.is_page() {
            self.segments.invalidate(before);
        }
    }

    /// A page of this file goes along with the next checkpoint ([`State::along`]) and is not written yet.
    fn leaves_along(&self, ino: Nid) -> bool {
        let mut its = self.along.range((ino, 0)..=(ino, u64::MAX));
        its.any(|(ino, index)| {
            self.pages.is_dirty(*ino, *index) || self.pages.is_on_its_way(*ino, *index)
        })
    }

    /// An fsync of this file takes a checkpoint.
    fn is_bound(&mut self, ino: Nid) -> Step<bool> {
        if mutant!("parafs.names-unbound") {
            return Ok(false);
        }
        let inode = self.inode(ino)?;
        let (mode, links, parent) = (inode.mode, inode.links, inode.parent);
        let young_parent = self.young.contains(&ino) && self.young.contains(&parent);
        let moved_parent = self.young.contains(&ino) && self.bound.contains(&parent);
        Ok(!is_file(mode)
            || links != 1
            || self.bound.contains(&ino)
            || young_parent
            || moved_parent)
    }

    /// The changed nodes of a file as they are now: they name pages that have been written, and none that
    /// is written later.
    fn see(&mut self, ino: Nid, data_only: bool) -> Step<Vec<Seen>> {
        let dirty: Vec<(u32, Nid)> = self
            .dirty_nodes
            .range((ino, 0)..=(ino, u32::MAX))
            .map(|((_, ofs), nid)| (*ofs, *nid))
            .collect();
        let mut seen = Vec::new();
        for (ofs, nid) in dirty {
            let kind = self.tree.kind(ofs).map(|(kind, _)| kind);
            let node = self.node(nid)?;
            let wanted = match kind {
                Some(NodeKind::Inode) => node.dirty == Dirty::Changed || !data_only,
                // A mount makes indirect nodes anew, by the numbers of the direct ones.
                Some(NodeKind::Direct) => true,
                _ => false,
            };
            if wanted {
                let (bytes, inode) = (node.bytes.clone(), node.inode.clone());
                seen.push(Seen { nid, changed: node.changed, bytes, inode });
            }
        }
        Ok(seen)
    }

    /// Gives nodes places, as one batch. Nothing where one of them is gone meanwhile.
    fn begin_batch(&mut self, seen: &mut Vec<Seen>) -> Step<Option<Vec<(Nid, Sent)>>> {
        if seen.iter().any(|node| !self.nodes.contains_key(&node.nid)) {
            return Ok(None);
        }
        for node in &*seen {
            self.nat.get(node.nid)?;
        }
        if !seen.is_empty() {
            self.segments.reserve(Heat::WarmNode, seen.len() as u64, self.kept_from_all())?;
            self.batches += 1;
            self.synced.extend(seen.iter().map(|node| node.nid));
        }
        let whole = Batch { number: self.batches, nodes: seen.len() as u32 };
        let version = self.version;
        let send = |node: Seen| Ok((node.nid, self.send_seen(node, version, whole)?));
        std::mem::take(seen).into_iter().map(send).collect::<Step<_>>().map(Some)
    }

    /// Gives a node its next place, as it was seen. What has changed since then is still to be written.
    fn send_seen(&mut self, seen: Seen, version: u64, batch: Batch) -> Step<Sent> {
        let Seen { nid, changed, bytes, inode } = seen;
        let is_as_seen = self.node(nid)?.changed == changed;
        if is_as_seen || mutant!("parafs.fsync-as-it-is-then") {
            drop(bytes);
            return self.send_node(nid, Heat::WarmNode, version, batch);
        }
        let share = self.share_of_body(&bytes, inode.is_some(), 0);
        let addr = self.give_place(Heat::WarmNode, Owner::node(nid));
        self.place_node(nid, addr, share, false)?;
        let node = self.nodes.get_mut(&nid).expect("it was looked at");
        node.in_flight += 1;
        let mut bytes = Arc::unwrap_or_clone(bytes);
        if let Some(inode) = &inode {
            inode.encode(&mut bytes);
        }
        let footer = Footer { nid, ino: node.ino, ofs: node.ofs, version, batch };
        NodePage::seal(&mut bytes, &footer, self.node_seed);
        Ok(Sent { addr, content: Arc::new(bytes) })
    }

    /// The next place for a page of nodes, of those that were reserved: it is on its way there.
    fn give_place(&mut self, heat: Heat, owner: Owner) -> Addr {
        self.changes += 1;
        self.nodes_in_flight += 1;
        self.segments.allocate_reserved(heat, owner)
    }

    /// Gives a node its next place, of those that were reserved. It is clean from now on.
    pub(crate) fn send_node(
        &mut self,
        nid: Nid,
        heat: Heat,
        version: u64,
        batch: Batch,
    ) -> Step<Sent> {
        self.node(nid)?;
        let share = self.share_of(&self.nodes[&nid], 0);
        let addr = self.give_place(heat, Owner::node(nid));
        let seed = self.node_seed;
        let node = self.take_node_along(nid, addr, share)?;
        let (ino, ofs) = (node.ino, node.ofs);
        NodePage::seal(node.bytes_mut(), &Footer { nid, ino, ofs, version, batch }, seed);
        Ok(Sent { addr, content: node.bytes.clone() })
    }

    /// Gives some nodes one place, of those that were reserved, with their shares of it. They are
    /// clean from now on.
    pub(crate) fn send_shared(
        &mut self,
        nodes: &[(Nid, Share)],
        heat: Heat,
        version: u64,
    ) -> Step<Sent> {
        let addr = self.give_place(heat, Owner::SHARED);
        for (nid, share) in nodes {
            self.take_node_along(*nid, addr, *share)?;
        }
        let part = |(nid, _): &(Nid, Share)| {
            let node = &self.nodes[nid];
            let length = shared::body_length(&node.bytes, node.is_inode());
            let body = &node.bytes[..length];
            Part { nid: *nid, ino: node.ino, ofs: node.ofs, body }
        };
        let parts: Vec<Part<'_>> = nodes.iter().map(part).collect();
        let bytes = self.layout.shape.page_bytes();
        let content = Arc::new(shared::encode(&parts, bytes, version, self.node_seed));
        Ok(Sent { addr, content })
    }

    /// A node is written as it is now, to this place.
    fn take_node_along(&mut self, nid: Nid, addr: Addr, share: Share) -> Step<&mut Node> {
        self.place_node(nid, addr, share, true)?;
        self.cold_nodes.remove(&nid);
        let node = self.nodes.get_mut(&nid).expect("it was looked at");
        if let Some(inode) = &node.inode {
            inode.encode(Arc::make_mut(&mut node.bytes).as_mut_slice());
        }
        node.in_flight += 1;
        Ok(node)
    }

    /// The write of a page of nodes has ended. If it failed they are dirty again.
    pub(crate) fn nodes_sent(&mut self, nids: &[Nid], addr: Addr, written: bool) {
        self.nodes_in_flight -= 1;
        self.segments.arrived(addr);
        if !written {
            self.segments.give_up(addr);
            self.nodes_failed += 1;
        }
        for nid in nids {
            if let Some(node) = self.nodes.get_mut(nid) {
                node.in_flight = node.in_flight.saturating_sub(1);
            }
            if !written {
                self.charge(*nid, Dirty::Changed);
            }
        }
    }
}

impl Fs {
    /// Begins to write a page.
    fn begin_send(self: &Arc<Fs>, cx: &Cx, sent: &Sent) -> Join<Result<()>> {
        let (fs, theirs, addr, content) =
            (self.clone(), cx.clone(), sent.addr, sent.content.clone());
        cx.spawn_join(async move { fs.write_page(&theirs, addr, &content).await })
    }

    /// Writes pages and waits for all of them: whether each was written.
    pub(crate) async fn send(
        self: &Arc<Fs>,
        cx: &Cx,
        pages: impl Iterator<Item = &Sent>,
    ) -> Vec<Result<()>> {
        let writes: Vec<_> = pages.map(|sent| self.begin_send(cx, sent)).collect();
        let mut all = Vec::with_capacity(writes.len());
        for write in writes {
            all.push(write.await);
        }
        all
    }

    /// Writes dirty pages of files, all of `pages` that are not on their way already.
    pub(crate) async fn write_back(
        self: &Arc<Fs>,
        cx: &Cx,
        pages: &[FilePage],
        by: By,
    ) -> Result<()> {
        let mut outcome = Ok(());
        let mut writes: VecDeque<(Join<Result<()>>, Write)> = VecDeque::new();
        for (ino, index) in pages {
            let mut by = by;
            loop {
                let begun = self.lock().begin_write(*ino, *index, by);
                match begun {
                    // It is sent before anything else is waited for: others may wait for it.
                    Ok(Some(write)) => writes.push_back((self.begin_send(cx, &write.sent), write)),
                    Ok(None) => {}
                    // The file was deleted meanwhile.
                    Err(Stop::Fail(FsError::Stale)) => {}
                    Err(Stop::Fail(e)) => outcome = Err(e),
                    Err(Stop::Need(need)) => {
                        let waits = !writes.is_empty();
                        // Whoever brings it may wait for these.
                        outcome = outcome.and(self.end_writes(cx, &mut writes, 0).await);
                        // Others have taken what was free meanwhile: what lacks is asked anew.
                        if waits && !mutant!("parafs.need-of-old") {
                            continue;
                        }
                        match (need, by) {
                            (need @ Need::Room { .. }, By::Anybody) => {
                                match self.bring(cx, need).await {
                                    Err(FsError::NoSpace) if !mutant!("parafs.promised-last") => {
                                        by = By::Promised;
                                    }
                                    other => other?,
                                }
                            }
                            (Need::Room { .. }, _) => {
                                return outcome.and(Err(self.lock().no_room()));
                            }
                            (need, _) => self.bring(cx, need).await?,
                        }
                        continue;
                    }
                }
                break;
            }
            outcome = outcome.and(self.end_writes(cx, &mut writes, AT_ONCE).await);
        }
        outcome.and(self.end_writes(cx, &mut writes, 0).await)
    }

    /// Waits for writes that were begun, the first one first, until `most` are left, and has what they
    /// wrote named.
    async fn end_writes(
        self: &Arc<Fs>,
        cx: &Cx,
        writes: &mut VecDeque<(Join<Result<()>>, Write)>,
        most: usize,
    ) -> Result<()> {
        let mut outcome = Ok(());
        if writes.len() <= most {
            return outcome;
        }
        while writes.len() > most {
            let Some((sent, write)) = writes.pop_front() else { break };
            let result = sent.await;
            let ended = self.with(cx, |s| s.end_write(&write, result.is_ok())).await;
            let mut s = self.lock();
            s.pages_in_flight -= 1;
            if ended.is_err() && !mutant!("parafs.never-ended") {
                // What names it can't be read: it is as dirty as before.
                s.end_unwritten(&write);
            }
            drop(s);
            outcome = outcome.and(result).and(ended);
        }
        self.changed.wake(cx);
        self.shrink_pages();
        outcome
    }

    /// Has a range of a file's pages on the medium, as they are when this is called.
    pub(crate) async fn write_range(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        let mut left = self.lock().pages.dirty_of(ino, range);
        let mut tries = 0;
        // Of a page that is under way an older content may be going out.
        let busy = |s: &mut State, index: u64| {
            s.pages.get(ino, index).is_some_and(|page| page.in_flight > 0)
        };
        loop {
            let older = left.iter().any(|index| busy(&mut self.lock(), *index))
                && !mutant!("parafs.older-content-counts");
            let pages: Vec<FilePage> = left.iter().map(|index| (ino, *index)).collect();
            let result = self.write_back(cx, &pages, By::Anybody).await;
            if result.is_err() {
                tries += 1;
                if tries == TRIES {
                    return result;
                }
            }
            let waits = left.iter().any(|index| busy(&mut self.lock(), *index));
            if waits {
                self.changed
                    .wait(cx, || {
                        let mut s = self.lock();
                        !left.iter().any(|index| busy(&mut s, *index))
                    })
                    .await;
            } else if result.is_ok() && !older {
                return Ok(());
            }
            let s = self.lock();
            left.retain(|index| s.pages.is_dirty(ino, *index));
        }
    }

    /// Makes everything durable that was acknowledged; where pages have pairs what this `covers`.
    pub(crate) async fn flush(self: &Arc<Fs>, cx: &Cx, covers: Covers<'_>) -> Result<()> {
        let since = self.lock().tick();
        if self.has_pairs {
            self.close_pairs(cx, covers).await?;
        }
        self.medium.flush(cx).await?;
        let mut s = self.lock();
        match self.has_pairs {
            true => s.forget_closed(since),
            false => s.unflushed.retain(|_, written| *written > since),
        }
        Ok(())
    }

    /// Makes a file durable: its content, and all else about it unless `data_only` leaves its times.
    ///
    /// # Errors
    /// The medium did not take it; it is as dirty as before.
    pub async fn fsync(self: &Arc<Fs>, cx: &Cx, ino: Nid, data_only: bool) -> Result<()> {
        self.with(cx, |s| s.writable()).await?;
        {
            let mut s = self.lock();
            s.asks += 1;
            s.stats.fsyncs += 1;
        }
        self.write_range(cx, ino, 0..u64::MAX).await?;
        for _ in 1..TRIES {
            match self.sync_nodes(cx, ino, data_only).await {
                Err(FsError::Io(_)) => {}
                done => return done,
            }
        }
        self.sync_nodes(cx, ino, data_only).await
    }

    /// Makes the nodes of a file durable whose pages have been written: one fsync at a time.
    async fn sync_nodes(self: &Arc<Fs>, cx: &Cx, ino: Nid, data_only: bool) -> Result<()> {
        loop {
            self.changed.wait(cx, || !self.lock().syncing.contains(&ino)).await;
            if self.lock().syncing.insert(ino) {
                break;
            }
        }
        let done = self.sync_batch(cx, ino, data_only).await;
        self.lock().syncing.remove(&ino);
        self.changed.wake(cx);
        match done? {
            true => Ok(()),
            false => {
                self.lock().stats.fsync_checkpoints += 1;
                self.checkpoint(cx).await
            }
        }
    }

    /// The same by a batch; false where that takes a checkpoint.
    async fn sync_batch(self: &Arc<Fs>, cx: &Cx, ino: Nid, data_only: bool) -> Result<bool> {
        loop {
            // What a checkpoint has under way is clean, and not there yet. A page that goes along with one
            // is named by it alone, and others may have made one since this fsync wrote its pages.
            let see = |s: &mut State| {
                let waits = s.checkpointing;
                let leaves = s.leaves_along(ino) && !mutant!("parafs.along-later");
                Ok(match () {
                    () if waits => None,
                    () if leaves || s.is_bound(ino)? => Some(None),
                    () => Some(Some((s.version, s.see(ino, data_only)?))),
                })
            };
            let (version, mut seen) = match self.with(cx, see).await? {
                Some(Some(seen)) => seen,
                Some(None) => return Ok(false),
                None => {
                    self.changed.wait(cx, || !self.lock().checkpointing).await;
                    continue;
                }
            };
            // Nodes must not be there before the pages that they name, or these would be lost, and
            // older ones with them. Pages that others write meanwhile are named by what comes later.
            let late = self.options.ordered_fsync && self.lock().unflushed.contains_key(&ino);
            if late && !mutant!("parafs.fsync-unordered") {
                self.flush(cx, Covers::File(ino)).await?;
                if mutant!("parafs.fsync-waits-for-others")
                    && self.lock().unflushed.contains_key(&ino)
                {
                    continue;
                }
            }
            let begun = self
                .with(cx, |s| {
                    if !mutant!("parafs.fsync-of-read-only") {
                        s.writable()?;
                    }
                    // What was seen may name what a checkpoint has freed meanwhile.
                    let is_old = s.version != version && !mutant!("parafs.fsync-of-older");
                    if s.checkpointing || is_old {
                        return Ok(None);
                    }
                    if s.is_bound(ino)? {
                        return Ok(Some(None));
                    }
                    Ok(s.begin_batch(&mut seen)?.map(Some))
                })
                .await?;
            let batch = match begun {
                None => continue,
                Some(None) => return Ok(false),
                Some(Some(batch)) => batch,
            };
            {
                let mut s = self.lock();
                s.stats.fsync_nodes += batch.len() as u64;
                s.taken += batch.len() as u64;
                s.batch_nodes += batch.len() as u64;
            }
            let results = self.send(cx, batch.iter().map(|(_, sent)| sent)).await;
            let mut outcome = Ok(());
            {
                let mut s = self.lock();
                for ((nid, sent), result) in batch.iter().zip(results) {
                    s.nodes_sent(&[*nid], sent.addr, result.is_ok());
                    s.note_in_pairs(ino, sent.addr);
                    outcome = outcome.and(result);
                }
                if outcome.is_err() {
                    // A batch counts whole: the next one has all of it again.
                    for (nid, _) in &batch {
                        let _ = s.node_mut(*nid); // one that is gone needs nothing
                    }
                }
            }
            outcome?;
            if !mutant!("parafs.fsync-unflushed") {
                let nodes = mutant!("parafs.pairs-of-nodes-open");
                let covers = if nodes { Covers::Nothing } else { Covers::File(ino) };
                self.flush(cx, covers).await?;
            }
            return Ok(true);
        }
    }

    /// Writes the oldest dirty pages where there are too many: whoever makes pages dirty waits for that.
    /// What others write already is their affair.
    pub(crate) async fn limit_dirty(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        let most = self.options.dirty_pages;
        let pages = {
            let s = self.lock();
            match s.pages_waiting().checked_sub(most) {
                // Many at a time, so that they go to all channels.
                Some(excess @ 1..) => s.pages.oldest(excess.max(most / WRITE_OUT)),
                _ => return Ok(()),
            }
        };
        self.write_back(cx, &pages, By::Anybody).await
    }

    /// Writes the dirty pages of all files.
    pub(crate) async fn write_all(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        let pages = self.lock().pages.dirty();
        self.write_back(cx, &pages, By::Anybody).await
    }

    /// Writes all files, and takes a checkpoint.
    ///
    /// # Errors
    /// The medium did not take it.
    pub async fn sync(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        // All at a time; what can't be written so is tried again, file by file.
        let _ = self.write_all(cx).await;
        let files = self.lock().pages.dirty_files();
        for ino in files {
            match self.write_range(cx, ino, 0..u64::MAX).await {
                Ok(()) | Err(FsError::Stale) => {}
                Err(e) => return Err(e),
            }
        }
        self.checkpoint(cx).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Make, Medium, New, Options, ROOT, Time, mkfs};
    use flashlane_base::{Ns, SECTOR_BYTES};
    use flashlane_rt::{CostTable, Virtual};
    use flashlane_testkit::Ram;

    /// Runs a test of a file system that does nothing by itself, with a file of 16 dirty pages, but
    /// for page 3: it is written, and the head that gave it its place has more.
    fn on_dirty_pages(test: impl AsyncFnOnce(Cx, Arc<Fs>, Nid) + 'static) {
        let clock = Virtual::new(1, 1, CostTable::zero());
        let cx = clock.cx();
        clock
            .run(async move {
                let ram = Ram::new(12 * 256, SECTOR_BYTES, Ns::from_us(20), 1);
                let medium = Medium::Linear(Arc::new(ram));
                let (layout, then) = (medium.plan(1, 32).expect("it fits"), Time::default());
                let made = mkfs(&cx, medium.clone(), layout, &Make::default(), then).await;
                made.expect("it is made");
                let options = Options { idle: Ns::ZERO, commit: Ns::ZERO, ..Options::default() };
                let mounted = Fs::mount(&cx, medium, options).await;
                let (fs, _) = mounted.expect("it is mounted");
                let new = New { mode: 0o100_644, ..New::default() };
                let made = fs.create(&cx, ROOT, b"f", &new, then).await;
                let f = made.expect("it is made").ino;
                fs.write(&cx, f, 0, &[7; 65_536], then).await.expect("room");
                let written = fs.write_back(&cx, &[(f, 3)], By::Anybody).await;
                written.expect("there is room");
                test(cx, fs, f).await;
            })
            .expect("it goes on");
    }

    /// Where room is short, what heads have left is the cleaner's: it moves pages there when no
    /// segment is free.
    #[test]
    fn what_heads_have_left_is_the_cleaners() {
        on_dirty_pages(async |_, fs, f| {
            let mut s = fs.lock();
            // All that is free is kept for the nodes that a mount would find.
            let pages = s.segments.free() * s.layout.shape.segment_pages;
            s.synced = (0..pages).collect();
            assert!(s.segments.free() <= s.kept_from_all());
            let writer = s.begin_write(f, 1, By::Anybody);
            assert!(matches!(writer, Err(Stop::Need(Need::Room { .. }))), "a writer takes it");
            let cleaner = s.begin_write(f, 1, By::Cleaner);
            assert!(matches!(cleaner, Ok(Some(_))), "the cleaner can't have it");
        });
    }

    /// A cleaner makes nothing dirty that the next checkpoint would have no room for.
    #[test]
    fn a_cleaner_makes_nothing_dirty_without_room_for_it_in_a_checkpoint() {
        on_dirty_pages(async |_, fs, f| {
            let mut s = fs.lock();
            // As many nodes are about to become dirty as there are free pages.
            let pages = u64::from(s.segments.free() * s.layout.shape.segment_pages);
            s.pages_in_flight += pages;
            for by in [By::Cleaner, By::IdleCleaner] {
                let without = s.begin_write(f, 1, by);
                assert!(matches!(without, Err(Stop::Need(Need::Room { .. }))), "{by:?} has none");
            }
            s.pages_in_flight -= pages;
            let with = s.begin_write(f, 1, By::Cleaner);
            assert!(matches!(with, Ok(Some(_))), "it has room");
        });
    }

    /// A page lacks room as long as another one is on its way, whose node may become dirty. When
    /// that is written, what lacks is asked anew: nothing does.
    #[test]
    fn what_a_page_lacks_is_asked_anew_behind_the_writes_that_it_has_waited_for() {
        on_dirty_pages(async |cx, fs, f| {
            {
                let mut s = fs.lock();
                let most = (0..100_000).find(|pages| {
                    s.pages_in_flight = *pages;
                    !s.is_sure_of_checkpoint()
                });
                s.pages_in_flight = most.expect("a checkpoint takes room") - 1;
            }
            let written = fs.write_back(&cx, &[(f, 1), (f, 2)], By::Cleaner).await;
            assert_eq!(written, Ok(()));
            let s = fs.lock();
            assert!(!s.pages.is_dirty(f, 1) && !s.pages.is_dirty(f, 2));
        });
    }
}
