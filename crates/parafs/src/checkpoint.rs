//! Checkpoints.
//!
//! Owns: what belongs to one, in which order it goes to the medium, what is free behind it.
//! Promises: it is the file system at one moment, between two operations; others go on while it is
//! written; if it is cut short the one before counts, and nothing that that one needs was changed.
//! Never: writes pages of files, but those without which it would say too much (rule 10).
//!
//! The order: dirty directories and nodes to new places, summaries, the other copies of changed
//! sectors of the tables, head and body; a flush; the foot; a flush. The packs take turns. Only then
//! are segments without anything valid trimmed. Where there is no checkpoint nodes count as soon as they
//! are written, so directories are durable before.

use crate::error::{FsError, Result};
use crate::format::{Addr, Batch, NatSector, Nid, Owner, Pack, PageRef, SECTOR, Share, SitSector};
use crate::fs::{Fs, Sent, flip, nat_sectors, summary};
use crate::nodes::{Node, is_dir};
use crate::pages::Pages;
use crate::pairs::Covers;
use crate::segments::Heat;
use crate::state::{Need, State, Step, Stop};
use crate::write::{FilePage, ToSend};
use flashlane_base::mutant;
use flashlane_rt::Cx;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

/// The nodes of a page.
type PageOfNodes = SmallVec<[Nid; 1]>;

/// What a checkpoint writes, all of one moment.
struct Moment {
    /// Pages of directories: file, page, its (number, version) in memory, where to.
    pages: Vec<(Nid, u64, (u64, u64), Sent)>,
    /// Nodes: those of each page, where to.
    nodes: Vec<(PageOfNodes, Sent)>,
    /// Summaries: segment, how many owners, its sectors.
    summaries: Vec<(u32, usize, Vec<u8>)>,
    /// Sectors of the tables, and where they go.
    tables: Vec<(u64, Vec<u8>)>,
    pack: Pack,
    /// Segments that nothing needs behind it.
    leaving: Vec<u32>,
    /// Writes of nodes that had failed before: nodes of fsyncs are on their way.
    failed_before: u64,
    // What is forgotten when it is durable.
    young: BTreeSet<Nid>,
    bound: BTreeSet<Nid>,
    freed: BTreeSet<Nid>,
    nat_changed: BTreeSet<Nid>,
    sit_changed: BTreeSet<u32>,
}

/// Puts nodes together whose shares come to one page. The largest come first, each into the page
/// with the least room that does.
fn into_pages(mut nodes: Vec<(Nid, Share)>) -> Vec<Vec<(Nid, Share)>> {
    const PAGE: usize = Share::PAGE as usize;
    // A share that is larger comes before one that is smaller; of equals the order stays.
    nodes.sort_by_key(|(_, share)| *share);
    let mut pages: Vec<Vec<(Nid, Share)>> = Vec::new();
    // Pages by the units that are left.
    let mut with_room: Vec<Vec<usize>> = vec![Vec::new(); PAGE + 1];
    for (nid, share) in nodes {
        let units = usize::from(share.units());
        let room = (units..=PAGE).find(|room| !with_room[*room].is_empty());
        let (page, room) = match room.and_then(|room| Some((with_room[room].pop()?, room))) {
            Some(found) => found,
            None => {
                pages.push(Vec::new());
                (pages.len() - 1, PAGE)
            }
        };
        pages[page].push((nid, share));
        with_room[room - units].push(page);
    }
    pages
}

impl State {
    /// Dirty pages that belong to a checkpoint: those of directories, and some of files
    /// ([`State::along`]).
    fn pages_along(&mut self) -> Step<Vec<(Nid, u64)>> {
        let mut all = BTreeSet::new();
        for ino in self.pages.dirty_files() {
            if is_dir(self.inode(ino)?.mode) {
                let pages = self.pages.dirty_of(ino, 0..u64::MAX);
                all.extend(pages.into_iter().map(|page| (ino, page)));
            }
        }
        let along = self.along.iter().copied();
        all.extend(along.filter(|(ino, index)| self.pages.is_dirty(*ino, *index)));
        Ok(all.into_iter().collect())
    }

    /// Decides what belongs to a checkpoint.
    fn moment(&mut self, clean: bool) -> Step<Moment> {
        // All that may lack comes first.
        self.measure();
        let along = self.pages_along()?;
        let mut owners = Vec::with_capacity(along.len());
        let mut nodes: BTreeMap<Nid, usize> =
            self.dirty_nodes.values().map(|nid| (*nid, 0)).collect();
        for (ino, index) in &along {
            let Some((nid, slot)) = self.find_slot(*ino, *index)? else {
                let why = format!("no node names page {index} of directory {ino}");
                return Err(FsError::Damaged(why).into());
            };
            owners.push(Owner { nid, slot });
            // The node that names it changes, and the inode may.
            nodes.entry(*ino).or_default();
            let is_inode = self.node(nid)?.is_inode();
            let at_least = nodes.entry(nid).or_default();
            *at_least = (*at_least).max(self.tree.end_of_word(is_inode, slot));
        }
        let mut by_heat: BTreeMap<Heat, Vec<(Nid, Share)>> = BTreeMap::new();
        for (nid, at_least) in nodes {
            self.nat.get(nid)?;
            let heat = self.heat_of(nid)?;
            let share = self.share_of(&self.nodes[&nid], at_least);
            by_heat.entry(heat).or_default().push((nid, share));
        }
        let by_heat: BTreeMap<Heat, Vec<Vec<(Nid, Share)>>> =
            by_heat.into_iter().map(|(heat, nodes)| (heat, into_pages(nodes))).collect();
        // What has changed is written, to the table or beside it.
        for nid in &self.nat.changed {
            self.nat.get(*nid)?;
        }
        if let Some(segment) = self.segments.known_in_part() {
            return Err(Stop::Need(Need::Summary(segment)));
        }
        let mut pages_in_flight = false;
        for (ino, index) in &along {
            pages_in_flight |= self.pages.get(*ino, *index).is_some_and(|p| p.in_flight > 0);
        }
        if pages_in_flight || self.assigning {
            return Err(Stop::Need(Need::Quiet));
        }
        let of_nodes = by_heat.iter().map(|(heat, pages)| (*heat, pages.len() as u64));
        let wanted: Vec<_> =
            iter::once((Heat::HotData, along.len() as u64)).chain(of_nodes).collect();
        // Segments would be taken from one head for the other for ever.
        if !self.segments.has_for_all(&wanted) {
            return Err(Stop::Fail(FsError::NoSpace));
        }
        // What all of them take if no head has anything is left to them.
        let segment_pages = u64::from(self.layout.shape.segment_pages);
        let kept: u64 = wanted.iter().map(|(_, pages)| pages.div_ceil(segment_pages)).sum();
        for (heat, pages) in &wanted {
            self.segments.level(*heat, *pages, kept as u32)?;
        }
        // Where room is short it takes no segment that it can do without.
        for (heat, pages) in wanted {
            self.segments.reserve(heat, pages, u32::MAX)?;
        }

        // From here on nothing lacks.
        self.changes += 1;
        self.along.clear();
        self.checkpointing = true;
        let mut pages = Vec::with_capacity(along.len());
        for ((ino, index), owner) in along.into_iter().zip(owners) {
            let to_send = self.page_to_send(ino, index).expect("a dirty page is there");
            let ToSend { is, content, crc } = to_send;
            let addr = self.segments.allocate_reserved(Heat::HotData, owner);
            let before = self.set_page(ino, index, PageRef { addr, crc })?;
            self.unname_written(before);
            self.segments.set_valid(addr);
            self.pages.begin(ino, index);
            self.pages.clean(ino, index);
            pages.push((ino, index, is, Sent { addr, content }));
        }
        let version = self.version;
        let mut sent = Vec::new();
        for (heat, pages) in by_heat {
            for mut nodes in pages {
                nodes.retain(|(nid, _)| self.nodes.get(nid).is_some_and(Node::is_dirty));
                let page = match nodes[..] {
                    [] => continue,
                    [(nid, _)] => self.send_node(nid, heat, version, Batch::default())?,
                    _ => self.send_shared(&nodes, heat, version)?,
                };
                sent.push((nodes.into_iter().map(|(nid, _)| nid).collect(), page));
            }
        }
        let leaving = self.segments.leave();
        let parts = self.layout.summary_sectors;
        let summaries = self
            .segments
            .unsaved()
            .map(|(segment, owners)| (segment, owners.len(), summary(segment, owners, parts)))
            .collect();
        let (mut nat_copies, mut sit_copies) = (self.nat_copies.clone(), self.sit_copies.clone());
        let mut tables = Vec::new();
        let mut nat_changed = BTreeSet::new();
        let in_place = mutant!("parafs.tables-in-place");
        if self.nat.changed.len() > self.journals.0 {
            nat_changed = std::mem::take(&mut self.nat.changed);
            for sector in nat_sectors(nat_changed.iter()) {
                if !in_place {
                    flip(&mut nat_copies, sector);
                }
                let at = self.layout.nat_at(sector, crate::fs::bit(&nat_copies, sector));
                tables.push((at, NatSector(self.nat.sector(sector)?).encode(sector)));
            }
        }
        let mut sit_changed = BTreeSet::new();
        if self.segments.changed.len() > self.journals.1 {
            sit_changed = std::mem::take(&mut self.segments.changed);
            let per = self.layout.sit_entries();
            let sectors: BTreeSet<u32> = sit_changed.iter().map(|segment| segment / per).collect();
            for sector in sectors {
                if !in_place {
                    flip(&mut sit_copies, sector);
                }
                let segments = sector * per..self.layout.shape.segments().min((sector + 1) * per);
                let entries = segments.map(|s| self.segments.get(s).entry.clone()).collect();
                let at = self.layout.sit_at(sector, crate::fs::bit(&sit_copies, sector));
                tables.push((at, SitSector(entries).encode(sector)));
            }
        }
        let nat = self.nat.changed.iter();
        let nat = nat.map(|nid| Ok((*nid, self.nat.get(*nid)?))).collect::<Step<Vec<_>>>()?;
        let sit = self.segments.changed.iter();
        let sit = sit.map(|s| (*s, self.segments.get(*s).entry.clone())).collect();
        let pack = Pack {
            version: self.version + 1,
            clean,
            age: self.segments.age,
            next_nid: self.nat.next,
            nodes: self.nat.used,
            files: self.files,
            generation: self.generation,
            kept: self.kept,
            nat_copies,
            sit_copies,
            nat,
            sit,
            heads: self.segments.heads(),
            orphans: self.orphans.iter().copied().collect(),
        };
        Ok(Moment {
            pages,
            nodes: sent,
            summaries,
            tables,
            pack,
            leaving,
            failed_before: self.nodes_failed,
            young: std::mem::take(&mut self.young),
            bound: std::mem::take(&mut self.bound),
            freed: match mutant!("parafs.freed-at-once") {
                true => std::mem::take(&mut self.nat.freed),
                false => self.nat.freed.clone(),
            },
            nat_changed,
            sit_changed,
        })
    }

    /// The same, or nothing: who takes a checkpoint can't wait for one. What other heads have and have
    /// not begun is theirs.
    fn moment_or_none(&mut self, clean: bool) -> Step<Moment> {
        match self.moment(clean) {
            Err(Stop::Need(Need::Room { .. })) if self.segments.take_back() > 0 => {
                self.moment(clean)
            }
            other => other,
        }
        .map_err(|stop| match stop {
            Stop::Need(Need::Room { .. }) => Stop::Fail(FsError::NoSpace),
            other => other,
        })
    }

    /// See [`Need::Quiet`].
    pub(crate) fn is_quiet(&mut self) -> bool {
        let busy = |pages: &Pages, (ino, index): &FilePage| pages.is_on_its_way(*ino, *index);
        // It is asked whenever anything has changed, and the page that was under way mostly still is.
        if self.assigning || self.waited_for.is_some_and(|page| busy(&self.pages, &page)) {
            return false;
        }
        let Ok(along) = self.pages_along() else { return true };
        self.waited_for = along.into_iter().find(|page| busy(&self.pages, page));
        self.waited_for.is_none()
    }

    /// The checkpoint is durable.
    fn committed(&mut self, m: &Moment) {
        self.version = m.pack.version;
        self.stats.checkpoints += 1;
        self.stats.data_pages += m.pages.len() as u64;
        self.stats.checkpoint_nodes += m.nodes.len() as u64;
        self.nat_copies.clone_from(&m.pack.nat_copies);
        self.sit_copies.clone_from(&m.pack.sit_copies);
        (self.batches, self.batch_nodes, self.window_used) = (0, 0, 0);
        self.synced.clear();
        self.window.clear();
        for (segment, owners, _) in &m.summaries {
            self.segments.saved(*segment, *owners);
        }
        self.segments.left(&m.leaving);
        for nid in &m.freed {
            self.nat.freed.remove(nid);
        }
    }

    /// It could not be written: what it had is still to be done. Nodes that were written are clean, and no
    /// mount finds them: an fsync of their files takes a checkpoint.
    fn failed(&mut self, m: Moment) {
        if !mutant!("parafs.failed-checkpoint-counts") {
            let nids = m.nodes.iter().flat_map(|(nids, _)| nids);
            let files = nids.filter_map(|nid| self.nodes.get(nid));
            self.bound.extend(files.map(|node| node.ino));
        }
        self.along.extend(m.pages.iter().map(|(ino, index, ..)| (*ino, *index)));
        self.young.extend(m.young);
        self.bound.extend(m.bound);
        self.nat.changed.extend(m.nat_changed);
        self.segments.changed.extend(m.sit_changed);
        self.segments.stay(&m.leaving);
    }
}

impl Fs {
    /// Takes a checkpoint: all names, and all files as far as their pages have been written.
    ///
    /// # Errors
    /// The medium did not take it. The file system is read-only then: what it would write from now
    /// on could not be found again.
    pub async fn checkpoint(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        self.take_checkpoint(cx, false, |_| true).await
    }

    /// The same if it is still `wanted` when it can begin: of many who want one for the same reason the
    /// first one takes it.
    pub(crate) async fn checkpoint_if(
        self: &Arc<Fs>,
        cx: &Cx,
        wanted: impl Fn(&State) -> bool,
    ) -> Result<()> {
        let wanted = |s: &State| wanted(s) || mutant!("parafs.checkpoint-for-each");
        self.take_checkpoint(cx, false, wanted).await
    }

    /// The last one: nothing comes behind it.
    pub(crate) async fn last_checkpoint(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        self.take_checkpoint(cx, true, |_| true).await
    }

    async fn take_checkpoint(
        self: &Arc<Fs>,
        cx: &Cx,
        clean: bool,
        wanted: impl Fn(&State) -> bool,
    ) -> Result<()> {
        self.with(cx, |s| s.writable()).await?;
        self.lock().grow_older(cx.now());
        loop {
            self.changed.wait(cx, || !self.lock().has_checkpointer).await;
            let mut s = self.lock();
            if !s.has_checkpointer {
                // The one before may be there or not.
                if let Some(why) = &s.read_only
                    && !mutant!("parafs.checkpoint-of-read-only")
                {
                    return Err(FsError::ReadOnly(why.clone()));
                }
                if !wanted(&s) {
                    return Ok(());
                }
                s.has_checkpointer = true;
                break;
            }
        }
        let mut outcome = self.try_checkpoint(cx, clean).await;
        for _ in 1..crate::write::TRIES {
            match outcome {
                // Places that fail are not used again: the next try has others.
                Err(FsError::Io(_)) => outcome = self.try_checkpoint(cx, clean).await,
                _ => break,
            }
        }
        {
            let mut s = self.lock();
            s.has_checkpointer = false;
            // Nodes that it wrote are clean now; a program that only makes files brings none.
            self.shrink_nodes(&mut s);
        }
        self.changed.wake(cx);
        if let Err(e) = &outcome
            && *e != FsError::NoSpace
        {
            self.stop_writing(e);
        }
        outcome
    }

    async fn try_checkpoint(self: &Arc<Fs>, cx: &Cx, clean: bool) -> Result<()> {
        let m = self.with(cx, |s| s.moment_or_none(clean)).await?;
        let written = self.write_moment(cx, &m).await;
        let mut s = self.lock();
        s.checkpointing = false;
        let outcome = match written {
            Ok(()) => {
                s.committed(&m);
                if clean {
                    // Nothing comes behind it.
                    s.unmounted = true;
                    s.read_only = Some("it is unmounted".into());
                }
                Ok(m.leaving)
            }
            Err(e) => {
                if let FsError::ReadOnly(_) = &e {
                    // It may count. What an fsync would write now would be of the one before.
                    s.read_only.get_or_insert_with(|| e.to_string());
                }
                s.failed(m);
                Err(e)
            }
        };
        drop(s);
        self.changed.wake(cx);
        for segment in outcome? {
            self.trim(cx, segment);
        }
        Ok(())
    }

    async fn write_moment(self: &Arc<Fs>, cx: &Cx, m: &Moment) -> Result<()> {
        let (pages, nodes) =
            (m.pages.iter().map(|(.., sent)| sent), m.nodes.iter().map(|(_, sent)| sent));
        let in_order = self.lock().no_checkpoint && !mutant!("parafs.repair-names-first");
        let results = match in_order {
            false => self.send(cx, pages.chain(nodes)).await,
            true => {
                let places: Vec<Addr> = pages.clone().map(|sent| sent.addr).collect();
                let mut results = self.send(cx, pages).await;
                let written = results.iter().cloned().collect::<Result<()>>();
                match written.and(self.flush(cx, Covers::Pages(&places)).await) {
                    Ok(()) => results.extend(self.send(cx, nodes).await),
                    Err(e) => {
                        for sent in nodes {
                            self.channels.pass(cx, sent.addr).await;
                            results.push(Err(e.clone()));
                        }
                    }
                }
                results
            }
        };
        let mut outcome = Ok(());
        {
            let mut s = self.lock();
            let (of_pages, of_nodes) = results.split_at(m.pages.len());
            for ((ino, index, is, sent), result) in m.pages.iter().zip(of_pages) {
                s.segments.arrived(sent.addr);
                s.pages.end(*ino, *index, *is, result.is_ok());
                if result.is_err() {
                    s.segments.give_up(sent.addr);
                    s.pages.again(*ino, *index, is.0);
                }
                outcome = outcome.and(result.clone());
            }
            for ((nids, sent), result) in m.nodes.iter().zip(of_nodes) {
                s.nodes_sent(nids, sent.addr, result.is_ok());
                outcome = outcome.and(result.clone());
            }
        }
        outcome?;
        // fsyncs that were under way: their nodes belong to it.
        self.changed.wait(cx, || self.lock().nodes_in_flight == 0).await;
        if self.lock().nodes_failed != m.failed_before && !mutant!("parafs.failed-nodes-named") {
            return Err(FsError::Io("a node of an fsync could not be written".into()));
        }
        let layout = self.sb.layout;
        let summaries = m.summaries.iter();
        let summaries =
            summaries.map(|(segment, _, sectors)| (layout.summary_at(*segment), sectors));
        let tables = m.tables.iter().map(|(at, sector)| (*at, sector));
        let all = summaries.chain(tables).map(|(at, sectors)| (at, sectors.clone()));
        self.write_in_place(cx, all).await?;
        let place = layout.packs[(m.pack.version % 2) as usize];
        let place = if mutant!("parafs.one-pack") { layout.packs[0] } else { place };
        let (all, foot) = m.pack.encode();
        self.lock().stats.meta_sectors += (all.len() / SECTOR + 1) as u64;
        self.medium.write_meta(cx, place, &all).await?;
        if !mutant!("parafs.foot-unordered") {
            let open = mutant!("parafs.pairs-of-checkpoint-open");
            let covers = if open { Covers::Nothing } else { Covers::All };
            self.flush(cx, covers).await?;
        }
        let foot_at = place + (all.len() / SECTOR) as u64;
        let mut written = self.medium.write_meta(cx, foot_at, &foot).await;
        if written.is_ok() && !mutant!("parafs.checkpoint-unflushed") {
            written = self.flush(cx, Covers::Nothing).await;
        }
        // It may count, or not: another try would change what it needs if it does.
        written.map_err(|e| FsError::ReadOnly(format!("a checkpoint may be there or not: {e}")))
    }

    /// Trims a segment that no checkpoint needs.
    pub(crate) fn trim(self: &Arc<Fs>, cx: &Cx, segment: u32) {
        self.lock().trims += 1;
        let (fs, theirs) = (self.clone(), cx.clone());
        cx.spawn(async move {
            let trimmed = fs.trim_segment(&theirs, segment).await;
            {
                let mut s = fs.lock();
                s.trims -= 1;
                s.stats.trims += 1;
                s.segments.trimmed(segment, trimmed.is_ok());
            }
            fs.changed.wake(&theirs);
        });
    }
}
