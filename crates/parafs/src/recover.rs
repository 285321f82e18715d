//! What a mount finds behind the last checkpoint.
//!
//! Owns: which fsyncs are whole, and what becomes of them. Promises: an fsync that was acknowledged
//! is taken; one that was cut short is not, not even a part of it; a page that an fsync names has
//! been written. Never: looks elsewhere than in what heads had and in the window (ParaFS paper, 3.2:
//! "all written pages after last checkpoint fall in this window"), but for a repair that has none; or
//! writes: the checkpoint behind it does.

use crate::dir::Found;
use crate::error::{FsError, Result};
use crate::format::{
    Addr, Batch, Dentry, Footer, Heads, Inode, NOT_TAKEN, Nid, NodeKind, NodePage, Owner, Pack,
    PageRef, SECTOR, Superblock, TAKEN_TO, WINDOW_NUMBER_MAX, WINDOW_WORDS, WindowSector,
};
use crate::fs::Fs;
use crate::medium::{Medium, Written};
use crate::mount::Recovered;
use crate::nodes::{is_dir, is_file};
use crate::pairs::Covers;
use crate::segments::Heat;
use crate::state::{State, Step, Stop};
use flashlane_base::mutant;
use flashlane_ftl::patience::read_again;
use flashlane_rt::Cx;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

/// Times that a page is read at once. One that can't be read then is read again over time, before
/// it counts as one that was being written when the power went.
const TRIES: u32 = 8;

/// Pages that are read at a time.
const AT_ONCE: usize = 32;

/// Who looks for fsyncs, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A mount: a node of a later checkpoint says that this one is not the last.
    Mount,
    Repair,
    /// A repair that has no window.
    Everywhere,
}

/// What was written behind a checkpoint is there, and the checkpoint is not.
pub(crate) fn lost(version: u64) -> FsError {
    let since = "and what was done since the one before";
    FsError::Damaged(format!("checkpoint {version} is lost, {since}"))
}

/// A node of an fsync.
struct Sealed {
    segment: u32,
    footer: Footer,
    bytes: Vec<u8>,
}

/// What lies in segments where nodes may be.
#[derive(Default)]
struct Looked {
    nodes: Vec<Sealed>,
    pages: u64,
    /// Pages (segment, page) that could not be read so far.
    left: Vec<(u32, u32)>,
}

/// What a window says of fsyncs: up to which one a mount has taken them, and which of those not.
type Words = Vec<(u32, u8)>;

/// The words for fsyncs that were taken, in their order; nothing where a sector has no room for them.
fn words(taken: &[u32]) -> Option<Words> {
    let last = taken.last().copied().unwrap_or_default();
    let gaps = (last as usize).checked_sub(taken.len())?;
    if gaps >= WINDOW_WORDS || last > WINDOW_NUMBER_MAX {
        return None;
    }
    let mut words = vec![(last, TAKEN_TO)];
    let mut next = 1;
    for number in taken {
        words.extend((next..*number).map(|not| (not, NOT_TAKEN)));
        next = number + 1;
    }
    Some(words)
}

/// Whether they say of an fsync that it was taken.
fn has(words: &Words, number: u32) -> bool {
    let is_behind = |(last, what): &(u32, u8)| *what == TAKEN_TO && number > *last;
    !words.iter().any(is_behind) && !words.contains(&(number, NOT_TAKEN))
}

/// What became of the fsyncs behind a checkpoint.
pub(crate) struct Rolled {
    /// The words of those that were taken.
    words: Option<Words>,
    /// Segments with their nodes, and with the pages that those name: what a later one has superseded counts
    /// again where that can't be read another time.
    pub(crate) segments: BTreeSet<u32>,
    /// Another mount finds the same ones: all could be read, or the window says which were taken.
    is_sure: bool,
}

/// Files of which an fsync could not be read, and what is known of that: how many nodes it had, and which.
#[derive(Default)]
struct Broken(BTreeMap<Nid, (usize, BTreeSet<u32>)>);

impl Broken {
    fn add(&mut self, nodes: &[Sealed]) {
        let Footer { ino, batch, .. } = nodes[0].footer;
        let (whole, known) = self.0.entry(ino).or_default();
        *whole = (*whole).max(batch.nodes as usize);
        known.extend(nodes.iter().map(|found| found.footer.ofs));
    }

    /// An fsync before this one of the same file is lacking, and this one does not have all that it had. A cut
    /// leaves the last one of a file lacking only, and whoever writes again what failed writes all of it.
    fn has(&self, nodes: &[Sealed]) -> bool {
        let Some((whole, known)) = self.0.get(&nodes[0].footer.ino) else { return false };
        let has = |ofs: &u32| nodes.iter().any(|found| found.footer.ofs == *ofs);
        let all = nodes.len() >= *whole && known.iter().all(has);
        !all && !mutant!("parafs.behind-broken-taken")
    }
}

/// An fsync has no inode, and its file is not there: the fsync that made it could not be read.
async fn is_headless(
    cx: &Cx,
    fs: &Arc<Fs>,
    nodes: &[Sealed],
    gone: &BTreeSet<Nid>,
) -> Result<bool> {
    let ino = nodes[0].footer.ino;
    if nodes.iter().any(|found| found.footer.ofs == 0)
        || gone.contains(&ino)
        || mutant!("parafs.headless-taken")
    {
        return Ok(false);
    }
    fs.with(cx, |s| Ok(s.nat.get(ino)?.ino == 0)).await
}

/// Takes every fsync that is whole, in their order. Where the window is lost they may be anywhere. Of
/// those that a mount before this one could not read nothing is taken now: it may have written over what
/// they name.
pub(crate) async fn roll_forward(
    cx: &Cx,
    fs: &Arc<Fs>,
    pack: &Pack,
    how: Look,
    recovered: &mut Recovered,
) -> Result<Rolled> {
    let mut batches: BTreeMap<u32, Vec<Sealed>> = BTreeMap::new();
    let all = || (0..fs.sb.layout.shape.segments()).map(|s| (s, 0)).collect();
    let (segments, before): (Vec<(u32, u32)>, Option<Words>) = match how {
        Look::Everywhere => (all(), said(cx, fs, pack).await),
        Look::Mount | Look::Repair => window(cx, fs, pack).await?,
    };
    // All channels at a time.
    let region = |(segment, _): &(u32, u32)| fs.sb.layout.region_of(*segment);
    let mut reads = Vec::new();
    for of_region in segments.chunk_by(|a, b| region(a) == region(b)) {
        let (fs, theirs, segments) = (fs.clone(), cx.clone(), of_region.to_vec());
        let version = pack.version;
        reads.push(cx.spawn_join(async move {
            let mut all = Looked::default();
            for from in segments {
                nodes_in(&theirs, &fs, version, from, how, &mut all).await?;
            }
            look_again(&theirs, &fs, version, how, &mut all).await?;
            Ok(all)
        }));
    }
    let (mut outcome, mut unread) = (Ok(()), 0);
    for read in reads {
        let read: Result<Looked> = read.await;
        let looked = match read {
            Ok(looked) => looked,
            Err(e) => {
                outcome = Err(e);
                continue;
            }
        };
        recovered.pages_read += looked.pages;
        unread += looked.left.len() as u64;
        let mut left = looked.left;
        left.sort_unstable();
        for of_segment in left.chunk_by(|a, b| a.0 == b.0) {
            let pages: Vec<u32> = of_segment.iter().map(|(_, page)| *page).collect();
            recovered.unread += fs.medium.lost_pages(&fs.sb.layout, of_segment[0].0, &pages);
        }
        for found in looked.nodes {
            batches.entry(found.footer.batch.number).or_default().push(found);
        }
    }
    outcome?;
    // Nodes that are made meanwhile get other numbers than files that are still to come.
    if !mutant!("parafs.found-numbers-free") {
        let inos = batches.values().flatten().map(|found| found.footer.ino);
        fs.lock().nat.freed.extend(inos);
    }
    // Files that have lost their name to another one: what they wrote later is nobody's.
    let (mut gone, mut counting) = (BTreeSet::new(), BTreeSet::new());
    let (mut taken, mut broken) = (Vec::new(), Broken::default());
    for (number, mut nodes) in batches {
        if before.as_ref().is_some_and(|before| !has(before, number))
            && !mutant!("parafs.mount-takes-more")
        {
            recovered.torn_batches += 1;
            continue;
        }
        let Batch { nodes: whole, .. } = nodes[0].footer.batch;
        let ino = nodes[0].footer.ino;
        let is_whole = nodes.len() == whole as usize || mutant!("parafs.torn-batches-taken");
        if !is_whole || broken.has(&nodes) || is_headless(cx, fs, &nodes, &gone).await? {
            broken.add(&nodes);
            recovered.torn_batches += 1;
            continue;
        }
        broken.0.remove(&ino);
        recovered.batches += 1;
        taken.push(number);
        for found in &nodes {
            counting.insert(found.segment);
            if !mutant!("parafs.mount-frees-superseded") {
                counting.extend(fs.lock().named_by(found));
            }
        }
        if gone.contains(&ino) {
            continue;
        }
        // The inode first: it says how long the file is.
        nodes.sort_by_key(|found| found.footer.ofs);
        for found in &nodes {
            match take_node(cx, fs, found).await {
                Ok(deleted) => gone.extend(deleted),
                // What can't be read now may be readable another time: the mount is refused.
                Err(FsError::Damaged(why))
                    if how == Look::Mount && !mutant!("parafs.mount-refuses-damage") =>
                {
                    recovered.damaged.get_or_insert(format!("of file {ino}: {why}"));
                    // What it wrote later is not looked at either.
                    gone.insert(ino);
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        let mut s = fs.lock();
        s.segments.age = s.segments.age.max(pack.age);
    }
    let words = words(&taken);
    let is_said = before.is_some() && (before == words || mutant!("parafs.mount-says-once"));
    Ok(Rolled { words, segments: counting, is_sure: unread == 0 || is_said })
}

/// Has every mount that follows take what this one has taken, until there is a checkpoint. False where the
/// window has no room to say so.
pub(crate) async fn settle(cx: &Cx, fs: &Arc<Fs>, rolled: &Rolled) -> Result<bool> {
    if rolled.is_sure || mutant!("parafs.mount-frees-doubtful") {
        return Ok(true);
    }
    let Some(words) = rolled.words.clone() else { return Ok(false) };
    let (number, sector) = {
        let mut s = fs.lock();
        s.next_window(words.len());
        // The last one is a checkpoint's.
        if s.window_used + 1 >= fs.sb.layout.window_sectors {
            return Ok(false);
        }
        (s.window_used, s.window_with(words))
    };
    let at = fs.sb.layout.window + number;
    fs.medium.write_meta(cx, at, &sector.encode(number)).await?;
    fs.flush(cx, Covers::Nothing).await?;
    Ok(true)
}

/// A checkpoint that says that all is unmounted, and the other one is not whole: that may have been the newer
/// one. Its heads went on where these are, and a node there is of a later checkpoint then. Where pages have
/// pairs a mount gives each head a new segment, and the update window names that.
pub(crate) async fn is_last(cx: &Cx, medium: &Medium, sb: &Superblock, pack: &Pack) -> Result<()> {
    let layout = sb.layout;
    for (segment, page) in with_nodes(&pack.heads, &[], layout.shape.segments()) {
        let mut bytes = vec![0; layout.shape.page_bytes()];
        let addr = layout.addr(segment, page);
        // What can't be read over time either was being written when the power went.
        let is_there = page < layout.shape.segment_pages
            && medium.read_again(cx, &layout, addr, &mut bytes).await.is_ok();
        let footer = NodePage::check(&bytes, sb.node_seed()).ok().filter(|_| is_there);
        if let Some(later) = footer.filter(|footer| footer.version > pack.version) {
            return Err(lost(later.version));
        }
    }
    Ok(())
}

/// Segments of heads for nodes that may have been written to since the checkpoint, each with the
/// first page in question; and what a mount has taken since.
async fn window(cx: &Cx, fs: &Arc<Fs>, pack: &Pack) -> Result<(Vec<(u32, u32)>, Option<Words>)> {
    let layout = fs.sb.layout;
    let (mut given, mut taken) = (Vec::new(), None);
    for number in 0..layout.window_sectors {
        let mut bytes = vec![0; SECTOR];
        fs.medium.read_meta_again(cx, layout.window + number, &mut bytes).await?;
        match WindowSector::decode(&bytes, number) {
            Ok(window) if window.version == pack.version => {
                // This mount goes on with it, and may be cut short as the one before.
                let named: Vec<u32> = window.segments().map(|(segment, _)| segment).collect();
                given.extend(window.segments());
                taken = said_by(&window).or(taken);
                let mut s = fs.lock();
                if !mutant!("parafs.window-forgotten") {
                    (s.window_used, s.window) = (number, window.words);
                }
                if !mutant!("parafs.window-free") {
                    s.segments.seen(&named);
                }
            }
            // Of an older checkpoint, or never written: the window ends before it. A sector that is
            // being written when the power goes names what nobody has used.
            Ok(_) => break,
            Err(_) if bytes.iter().all(|b| *b == 0) => break,
            Err(e) => {
                let why = format!("sector {number} of the update window: {e}; fsyncs may be lost");
                return Err(FsError::Damaged(why));
            }
        }
    }
    Ok((with_nodes(&pack.heads, &given, layout.shape.segments()), taken))
}

/// What the last mount that said so has said of fsyncs in a sector of the window: that is all.
fn said_by(window: &WindowSector) -> Option<Words> {
    let at = window.words.iter().rposition(|(_, what)| *what == TAKEN_TO)?;
    let not = window.words[at + 1..].iter().filter(|(_, what)| *what == NOT_TAKEN);
    Some(iter::once(&window.words[at]).chain(not).copied().collect())
}

/// What a mount has said of fsyncs, of a window that is damaged: in those sectors of it that are
/// whole.
async fn said(cx: &Cx, fs: &Arc<Fs>, pack: &Pack) -> Option<Words> {
    let layout = fs.sb.layout;
    let mut taken = None;
    for number in 0..layout.window_sectors {
        let mut bytes = vec![0; SECTOR];
        let read = fs.medium.read_meta_again(cx, layout.window + number, &mut bytes).await;
        let window = read.ok().and_then(|()| WindowSector::decode(&bytes, number).ok());
        let ours = window.filter(|window| window.version == pack.version);
        taken = ours.as_ref().and_then(said_by).or(taken);
    }
    taken
}

/// Of the segments that heads had at the checkpoint, and of those `given` since, these may have nodes,
/// and from which page on. A head that has not begun a segment may lose it to another one
/// ([`crate::segments::Segments::take_back`]): the last one to get it counts, so nobody takes a page of a
/// file for a node.
pub(crate) fn with_nodes(heads: &[Heads], given: &[(u32, u8)], segments: u32) -> Vec<(u32, u32)> {
    let mut found = BTreeMap::new();
    for (heat, head) in Heat::ALL.iter().cycle().zip(heads) {
        if heat.is_node() {
            found.extend(head.open.iter().copied());
            found.extend(head.next.iter().map(|segment| (*segment, 0)));
        }
    }
    for (segment, heat) in given.iter().filter(|(segment, _)| *segment < segments) {
        let is_node = Heat::ALL.get(usize::from(*heat)).is_some_and(|heat| heat.is_node());
        if is_node {
            found.insert(*segment, 0);
        } else if !mutant!("parafs.first-head-counts") {
            found.remove(segment);
        }
    }
    found.into_iter().collect()
}

/// Nodes of fsyncs since the checkpoint of this version, in a segment.
async fn nodes_in(
    cx: &Cx,
    fs: &Arc<Fs>,
    version: u64,
    (segment, from): (u32, u32),
    how: Look,
    looked: &mut Looked,
) -> Result<()> {
    let layout = fs.sb.layout;
    let to = match fs.medium.written(&layout, segment) {
        None => layout.shape.segment_pages,
        Some(Written::Pages(pages)) => pages,
        Some(Written::Gone) => 0,
    };
    let pages: Vec<(u32, u32)> = (from..to).map(|page| (segment, page)).collect();
    read_nodes(cx, fs, version, &pages, how, looked).await
}

/// Reads what could not be read again, over time.
async fn look_again(
    cx: &Cx,
    fs: &Arc<Fs>,
    version: u64,
    how: Look,
    looked: &mut Looked,
) -> Result<()> {
    if mutant!("parafs.window-has-no-patience") || mutant!("parafs.nodes-read-once") {
        return Ok(());
    }
    let left = std::mem::take(&mut looked.left);
    let mut outcome = Ok(());
    let left = read_again(cx, left, async |left: Vec<(u32, u32)>| {
        if outcome.is_ok() {
            outcome = read_nodes(cx, fs, version, &left, how, looked).await;
        }
        std::mem::take(&mut looked.left)
    })
    .await;
    looked.left = left;
    outcome
}

/// Takes nodes of fsyncs since the checkpoint of this version out of these pages, (segment, page)
/// each. Those that can't be read are noted.
async fn read_nodes(
    cx: &Cx,
    fs: &Arc<Fs>,
    version: u64,
    pages: &[(u32, u32)],
    how: Look,
    looked: &mut Looked,
) -> Result<()> {
    let layout = fs.sb.layout;
    for piece in pages.chunks(AT_ONCE) {
        let mut reads = Vec::new();
        for (segment, page) in piece {
            let (fs, theirs, addr) = (fs.clone(), cx.clone(), layout.addr(*segment, *page));
            reads.push(cx.spawn_join(async move {
                let mut bytes = vec![0; layout.shape.page_bytes()];
                let mut tries = if mutant!("parafs.nodes-read-once") { 1 } else { TRIES };
                loop {
                    tries -= 1;
                    match fs.medium.read(&theirs, &layout, addr, &mut bytes).await {
                        Err(_) if tries > 0 => {}
                        read => return read.map(|()| bytes),
                    }
                }
            }));
        }
        for (read, (segment, page)) in reads.into_iter().zip(piece) {
            looked.pages += 1;
            let Ok(bytes) = read.await else {
                looked.left.push((*segment, *page));
                continue;
            };
            let Ok(footer) = NodePage::check(&bytes, fs.sb.node_seed()) else { continue };
            let is_mutant = mutant!("parafs.lost-checkpoint");
            if footer.version > version && how == Look::Mount && !is_mutant {
                return Err(lost(footer.version));
            }
            let since = footer.version == version || mutant!("parafs.old-nodes-taken");
            if since && footer.batch.number > 0 {
                looked.nodes.push(Sealed { segment: *segment, footer, bytes });
            }
        }
    }
    Ok(())
}

/// Has the file's tree say what a node of an fsync says. A file that is deleted by that is said.
async fn take_node(cx: &Cx, fs: &Arc<Fs>, found: &Sealed) -> Result<Option<Nid>> {
    let Footer { ino, ofs, .. } = found.footer;
    let (tree, layout) = (fs.lock().tree, fs.sb.layout);
    let Some((kind, first)) = tree.kind(ofs) else { return Ok(None) };
    let mut gone = None;
    if ofs == 0 {
        let inode = Inode::decode(&found.bytes);
        let page_bytes = layout.shape.page_bytes() as u64;
        let is_new = fs.with(cx, |s| s.take_inode(ino, &inode, &found.bytes)).await?;
        if is_new {
            gone = fs.with(cx, |s| s.take_name(ino, &inode)).await?;
            fs.delete(cx, gone).await?;
        }
        // What an older fsync, or the checkpoint, had behind the end.
        let pages = if inode.inline { 0 } else { inode.size.div_ceil(page_bytes) };
        fs.lock().cuts.insert(ino);
        fs.cut(cx, ino, pages).await?;
        if inode.inline {
            return Ok(gone);
        }
    }
    let slots = match kind {
        NodeKind::Inode => tree.inode_addrs,
        NodeKind::Direct => tree.slots,
        NodeKind::Indirect | NodeKind::Xattrs => return Ok(gone),
    };
    for slot in 0..slots as u32 {
        let page = tree.page(&found.bytes, ofs == 0, slot);
        let index = first + u64::from(slot);
        fs.with(cx, |s| s.take_page(ino, index, page)).await?;
    }
    Ok(gone)
}

impl State {
    /// Segments of pages that a node names.
    fn named_by(&self, found: &Sealed) -> Vec<u32> {
        let slots = match self.tree.kind(found.footer.ofs) {
            Some((NodeKind::Inode, _)) if Inode::decode(&found.bytes).inline => 0,
            Some((NodeKind::Inode, _)) => self.tree.inode_addrs,
            Some((NodeKind::Direct, _)) => self.tree.slots,
            _ => 0,
        };
        let addrs = (0..slots as u32)
            .map(|slot| self.tree.addr(&found.bytes, found.footer.ofs == 0, slot))
            .filter(|addr| self.layout.has(*addr));
        addrs.map(|addr| self.layout.segment_of(addr).0).collect()
    }

    /// The inode of an fsync: true for a file that the checkpoint does not have.
    fn take_inode(&mut self, ino: Nid, found: &Inode, bytes: &[u8]) -> Step<bool> {
        if !is_file(found.mode) {
            return Err(FsError::Damaged(format!("an fsync has file {ino}, which is none")).into());
        }
        let entry = self.nat.get(ino)?;
        let is_new = entry.ino == 0;
        if is_new {
            self.nat.pick(0)?;
            self.make_node(ino, ino, 0, Some(Inode { pages: 1, xattrs: 0, ..found.clone() }));
            self.files += 1;
            self.young.insert(ino);
            self.generation = self.generation.max(found.generation.wrapping_add(1));
            // It has no name before one is found for it.
            self.inode_mut(ino)?.links = 0;
        }
        let was_inline = self.inode(ino)?.inline;
        let node = self.node_mut(ino)?;
        let Some(inode) = &mut node.inode else {
            return Err(FsError::Damaged(format!("node {ino} is no inode")).into());
        };
        // Names and links are the checkpoint's; pages are counted as they come.
        let (links, pages, xattrs) = (inode.links, inode.pages, inode.xattrs);
        let (parent, name) = (inode.parent, inode.name.clone());
        **inode = Inode { links, pages, xattrs, ..found.clone() };
        if !is_new {
            (inode.parent, inode.name) = (parent, name);
        }
        let room = NodePage::inline_mut(node.bytes_mut());
        if found.inline {
            room.copy_from_slice(NodePage::inline(bytes));
        } else if was_inline {
            room.fill(0);
        }
        Ok(is_new)
    }

    /// The name of a file that the checkpoint does not have. What had the name has lost it before;
    /// it is said if that is to be deleted.
    fn take_name(&mut self, ino: Nid, inode: &Inode) -> Step<Option<Nid>> {
        let (dir, now) = (inode.parent, inode.ctime);
        // A directory that is not there leaves the file without a name.
        let named = match self.inode(dir) {
            Ok(parent) => inode.links > 0 && is_dir(parent.mode),
            Err(Stop::Fail(_)) => false,
            Err(need) => return Err(need),
        };
        if !named {
            self.orphans.insert(ino);
            return Ok(None);
        }
        let entry = Dentry { name: inode.name.clone(), ino, kind: 8 };
        let mut gone = None;
        match self.lookup(dir, &inode.name)? {
            Some(Found { ino: there, .. }) if there == ino => {}
            Some(found) => {
                self.inode(found.ino)?;
                self.point(dir, &found, (ino, entry.kind), now)?;
                let old = self.inode_mut(found.ino)?;
                old.links = if is_dir(old.mode) { 0 } else { old.links.saturating_sub(1) };
                if (old.parent, &old.name) == (dir, &inode.name) {
                    old.name.clear();
                }
                let was_dir = is_dir(old.mode);
                if old.links == 0 {
                    self.orphans.insert(found.ino);
                    gone = Some(found.ino);
                }
                if was_dir {
                    let parent = self.inode_mut(dir)?;
                    parent.links = parent.links.saturating_sub(1);
                }
            }
            None => {
                let room = self.room_in(dir, &inode.name)?;
                self.enter(dir, room, &entry, now)?;
            }
        }
        let taken = self.inode_mut(ino)?;
        taken.links = 1;
        Ok(gone)
    }

    /// Where a page of a file lies, and its checksum, by an fsync.
    fn take_page(&mut self, ino: Nid, index: u64, page: PageRef) -> Step<()> {
        let wanted = page.addr;
        if wanted.is_page() && !self.layout.has(wanted) {
            let why = format!("an fsync has page {index} of file {ino} nowhere");
            return Err(FsError::Damaged(why).into());
        }
        if self.page_of(ino, index)? == page {
            return Ok(());
        }
        if wanted != Addr::NONE {
            let missing = self.missing_nodes(ino, index)?;
            self.nat.pick(missing as usize)?;
        }
        let before = self.set_page(ino, index, page)?;
        self.unname_written(before);
        if wanted.is_page() {
            let (nid, slot) = self.slot_for(ino, index)?;
            self.segments.found(wanted, Owner { nid, slot });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_of_the_head_that_got_it_last() {
        let head =
            |open: &[(u32, u32)], next: &[u32]| Heads { open: open.to_vec(), next: next.to_vec() };
        let mut heads = vec![Heads::default(); 2 * Heat::ALL.len()];
        heads[Heat::WarmNode as usize] = head(&[(1, 7)], &[2, 3]);
        heads[Heat::WarmData as usize] = head(&[(4, 5)], &[5, 6]);
        heads[Heat::ALL.len() + Heat::ColdNode as usize] = head(&[], &[8]);
        let (node, data) = (Heat::HotNode as u8, Heat::HotData as u8);
        // 2 goes to data, 3 there and back, 5 to nodes; 9 is new; 99 and heat 77 are nobody's.
        let given = [(2, data), (3, data), (5, node), (3, node), (9, node), (99, node), (8, 77)];
        assert_eq!(with_nodes(&heads, &given, 10), [(1, 7), (3, 0), (5, 0), (9, 0)]);
        assert_eq!(with_nodes(&heads, &[], 10), [(1, 7), (2, 0), (3, 0), (8, 0)]);
    }
}
