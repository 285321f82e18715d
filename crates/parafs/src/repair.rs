//! Writes what a check would have otherwise ([`Model`]).
//!
//! Owns: a repair from end to end. Promises: all of it is one checkpoint of a file system that was put
//! together in memory, so a power cut leaves what was there or what is mended; a file that a name
//! leads to keeps it; a file without a name gets the one that it had in a damaged directory, or one
//! in /lost+found; fsyncs after the checkpoint are taken as by a mount. Never: writes over what an
//! fsync has written before that checkpoint is durable.

use crate::channels::{Channels, Schedule};
use crate::dir::check_name;
use crate::error::{FsError, Result};
use crate::format::{
    Dentry, HEADS, Heads, Inode, NAT_ENTRIES, NatEntry, Nid, ROOT, SECTOR, SegmentEntry,
};
use crate::fs::{Fs, Options};
use crate::fsck::{Depth, Model, Progress, Report};
use crate::medium::Medium;
use crate::mkfs;
use crate::mount::{self, Recovered};
use crate::nat::Nat;
use crate::nodes::{Dirty, Node, is_dir};
use crate::recover::{self, Look};
use crate::segments::{Segments, Use};
use crate::state::{State, Step};
use crate::{New, Time};
use flashlane_base::mutant;
use flashlane_ftl::sftl::Settle;
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Cx, Notify};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a repair mends can show what else is broken: so often it is looked for.
const ROUNDS: u32 = 4;
/// The directory of files that had lost their names.
const LOST_FOUND: &str = "lost+found";

/// What a repair has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What was there.
    pub before: Report,
    /// What is there now.
    pub after: Report,
    /// fsyncs behind the checkpoint, where it was not unmounted.
    pub recovered: Recovered,
    /// Files and directories that have a name in /lost+found now.
    pub found: u64,
    /// Names that were in damaged pages of directories, and are there again.
    pub named: u64,
}

/// How a repair treats data that can't be read now but may be readable later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The repair changes nothing if it would have to give up such data.
    Refuse,
    /// The repair gives such data up, for good.
    GiveUp,
}

/// Mends a file system that nobody has mounted. One without a problem is left as it is.
///
/// # Errors
/// There is no file system; there is no room for what the repair writes; the medium does not take
/// it; or the repair would give up data and `unread` is [`Unread::Refuse`]: then it writes nothing
/// and returns [`FsError::Unread`].
pub async fn repair(cx: &Cx, medium: &Medium, now: Time, unread: Unread) -> Result<Repaired> {
    repair_with(cx, medium, now, unread, Depth::Structures, &|_, _, _| ()).await
}

/// As [`repair`], of what a check of this depth finds, and says how far each check is.
///
/// # Errors
/// As [`repair`].
pub async fn repair_with(
    cx: &Cx,
    medium: &Medium,
    now: Time,
    unread: Unread,
    depth: Depth,
    progress: Progress<'_>,
) -> Result<Repaired> {
    if let Some(why) = medium.refusal() {
        return Err(FsError::Invalid(why));
    }
    let mut done = Repaired::default();
    for round in 0..=ROUNDS {
        let model = Model::look(cx, medium, depth, progress).await?;
        done.after = model.report.clone();
        if round == 0 {
            done.before = model.report.clone();
        }
        if model.report.found == 0 || round == ROUNDS {
            break;
        }
        let lost = &model.report.lost;
        if !lost.is_empty()
            && unread == Unread::Refuse
            && !mutant!("parafs.repair-gives-up-unasked")
        {
            if round > 0 {
                break; // what was mended stays
            }
            let what: Vec<String> = lost.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
            let why = medium.doubts().map_or(String::new(), |doubts| format!(" ({doubts})"));
            return Err(FsError::Unread(what.join(", ") + &why));
        }
        let gives_up = !lost.is_empty();
        let fs = write(cx, medium, model, now, &mut done).await?;
        if gives_up && !mutant!("parafs.given-up-pages-stay") {
            // The repair counts without that: if it fails, the next mount but one needs another.
            drop(trim_unwritten(cx, &fs).await);
        }
    }
    Ok(done)
}

/// Trims all pages that nothing was written to. A block device reports an error for a sector that it
/// lost until that is written or trimmed. A later mount would take such pages for fsyncs that can't
/// be read.
async fn trim_unwritten(cx: &Cx, fs: &Fs) -> Result<()> {
    let layout = fs.sb.layout;
    let unwritten: Vec<(u32, u32)> = {
        let s = fs.lock();
        let is_free = |segment: &u32| s.segments.get(*segment).used == Use::Free;
        let free = (0..layout.shape.segments()).filter(is_free);
        let heads = s.segments.heads();
        let next = heads.iter().flat_map(|heads| heads.next.iter().copied());
        let open = heads.iter().flat_map(|heads| heads.open.iter().copied());
        free.chain(next).map(|segment| (segment, 0)).chain(open).collect()
    };
    for (segment, page) in unwritten {
        fs.medium.trim_rest(cx, &layout, segment, page).await?;
    }
    fs.medium.flush(cx).await
}

/// Writes what is mended, as one checkpoint of a file system that was put together here.
async fn write(
    cx: &Cx,
    medium: &Medium,
    m: Model<'_>,
    now: Time,
    done: &mut Repaired,
) -> Result<Arc<Fs>> {
    // As a mount: who was killed may have left what can be read and is not durable.
    if !mutant!("parafs.repair-unflushed") {
        medium.flush(cx).await?;
    }
    // The caller agreed to give up what is missing (`Unread::GiveUp`). If nothing is missing, the
    // flash blocks that can't be read hold nothing, and erasing them loses nothing.
    let how = if m.gives_up { Settle::GiveUp } else { Settle::NothingIsMissing };
    medium.settle(cx, how).await?;
    if m.superblock_lost {
        for copy in 0..mount::SUPERBLOCKS {
            medium.write_meta(cx, copy, &m.sb.encode()).await?;
            medium.flush(cx).await?;
        }
    }
    let channels = Arc::new(Channels::new(Schedule::default(), m.layout, medium.clone()));
    let fs = Fs {
        medium: medium.clone(),
        sb: m.sb.clone(),
        options: Options::default(),
        channels: channels.clone(),
        has_pairs: medium.pair_pages() > 0,
        state: Mutex::new(state(medium, channels, &m)?),
        changed: Notify::new(),
    };
    let fs = Arc::new(fs);
    if !m.pack.clean {
        let how = if m.window_lost.is_empty() { Look::Repair } else { Look::Everywhere };
        recover::roll_forward(cx, &fs, &m.pack, how, &mut done.recovered).await?;
    }
    if let Some(last) = m.window_lost.last()
        && !mutant!("parafs.repair-mends-the-window")
    {
        // A mount refuses the damaged sector until the repair is durable. Any other one does.
        fs.lock().window_used = if last + 1 < m.layout.window_sectors { last + 1 } else { 0 };
    }
    for (dir, entry) in &m.entering {
        fs.with(cx, |s| s.enter_anew(*dir, entry, now)).await?;
    }
    for (dir, entry) in &m.again {
        done.named += u64::from(fs.with(cx, |s| s.enter_anew(*dir, entry, now)).await?);
    }
    for ino in m.adopted.iter().filter(|_| !mutant!("parafs.repair-forgets")) {
        match !m.alike.contains(ino) && fs.enter_by_inode(cx, *ino, &m.holed, now).await? {
            true => done.named += 1,
            false => done.found += u64::from(fs.adopt(cx, *ino, now).await?),
        }
    }
    fs.unmount(cx).await?;
    for number in m.window_lost.iter().chain(&m.window_spoiled) {
        medium.write_meta(cx, m.layout.window + number, &[0; SECTOR]).await?;
    }
    medium.flush(cx).await?;
    Ok(fs)
}

/// The segment table by what nodes name.
fn segments(medium: &Medium, channels: Arc<Channels>, m: &Model<'_>) -> Result<Segments> {
    let (layout, shape) = (m.layout, m.layout.shape);
    let fresh = |entry: &SegmentEntry| SegmentEntry {
        kind: entry.kind,
        changed: entry.changed,
        ..SegmentEntry::empty(&layout)
    };
    let mut entries: Vec<SegmentEntry> = m.segments.iter().map(fresh).collect();
    for (addr, _) in m.owners.iter() {
        let (segment, page) = layout.segment_of(addr);
        entries[segment as usize].set(page, m.owners.units(addr));
    }
    for (segment, kind) in &m.kinds {
        entries[*segment as usize].kind = *kind;
    }
    // Nobody goes on where heads were: their ends may be wrong.
    let heads = vec![Heads::default(); (shape.regions * HEADS) as usize];
    let mut segments = Segments::load(layout, channels, entries, &heads)?;
    segments.lanes = medium.lanes(&layout);
    segments.full_reserve = mkfs::full_reserve(medium, &m.sb);
    segments.pair_pages = medium.pair_pages();
    segments.compare(|segment| medium.written(&layout, segment));
    segments.age = m.pack.age;
    if !m.pack.clean && !mutant!("parafs.repair-overwrites") {
        // What fsyncs have written is there until the checkpoint is durable.
        let window: Vec<u32> = m.window.iter().copied().collect();
        segments.seen(&window);
    }
    // What counted as valid, too, unless a table that says so of all leaves no room.
    let counted = |segment: &u32| {
        let is = segments.get(*segment);
        is.used == Use::Free && m.segments[*segment as usize].valid.iter().any(|b| *b != 0)
    };
    let seen: Vec<u32> = (0..shape.segments()).filter(counted).collect();
    let changed = m.changed.len() + m.dir_pages.len();
    let regions = if segments.shares_heads() { 1 } else { shape.regions };
    let needed = 2 * HEADS * regions + changed as u32 / shape.segment_pages;
    if segments.free() >= seen.len() as u32 + needed {
        segments.seen(&seen);
    }
    for segment in 0..shape.segments() {
        let is = &segments.get(segment).entry;
        if !m.segments_known[segment as usize] || *is != m.segments[segment as usize] {
            segments.changed.insert(segment);
        }
    }
    segments.changed.extend(m.pack.sit.iter().map(|(segment, _)| *segment));
    for segment in &m.unsummed {
        let owners = m.owners.of_segment(*segment).unwrap_or_default();
        let used = owners.iter().rposition(|owner| owner.nid != 0).map_or(0, |last| last + 1);
        segments.rewrite_owners(*segment, owners[..used].to_vec());
    }
    Ok(segments)
}

/// The file system in memory, with all that is to be written.
fn state(medium: &Medium, channels: Arc<Channels>, m: &Model<'_>) -> Result<State> {
    let mut nat = Nat::new(&m.layout, m.pack.nat.clone());
    for sector in 0..m.layout.nat_sectors {
        let first = (sector * NAT_ENTRIES) as usize;
        let mut entries = m.nat[first..].iter().take(NAT_ENTRIES as usize).copied().collect();
        Vec::resize(&mut entries, NAT_ENTRIES as usize, NatEntry::default());
        nat.bring(sector, entries);
    }
    // What the checkpoint kept beside the table is older than what was mended.
    for nid in m.nat_wrong.iter().copied().chain(m.pack.nat.iter().map(|(nid, _)| *nid)) {
        nat.set(nid, m.nat[nid as usize]);
    }
    nat.changed.extend(m.nat_lost.iter().map(|sector| sector * NAT_ENTRIES));
    // A number that was wrong may be one of a file that an fsync brings back.
    nat.freed.extend(m.nat_wrong.iter().filter(|nid| m.nat[**nid as usize].ino == 0));
    nat.next = m.pack.next_nid.clamp(1, m.layout.nids - 1);
    nat.used = m.nat.iter().filter(|entry| entry.ino != 0).count() as u32;
    let mut s = State::new(&m.sb, segments(medium, channels, m)?, nat);
    // What a lost checkpoint left behind it is of its number: nobody has that again. The place stays.
    s.version = match m.later && !mutant!("parafs.repair-counts-again") {
        true => m.pack.version + 2,
        false => m.pack.version,
    };
    s.nat_copies.clone_from(&m.pack.nat_copies);
    s.sit_copies.clone_from(&m.pack.sit_copies);
    s.no_checkpoint = m.pack_lost;
    // Tables that are mended are written, and not kept beside them.
    s.journals = (0, 0);
    s.files = m.nodes.iter().filter(|(_, node)| node.is_inode()).count() as u32;
    (s.generation, s.kept, s.recovering) = (m.pack.generation, m.kept, true);
    s.orphans.clone_from(&m.orphans);
    for (nid, bytes) in &m.changed {
        let Some(found) = m.nodes.get(*nid) else { continue };
        let at = (s.tick(), s.changes);
        s.nodes.insert(*nid, Node::clean(found.ino, found.ofs, bytes.to_vec(), at));
        s.charge(*nid, Dirty::Changed);
    }
    for ((dir, index), content) in &m.dir_pages {
        s.pages.change_entries(*dir, *index, content.len()).copy_from_slice(content);
    }
    Ok(s)
}

impl State {
    /// Puts an entry where its name is looked for. False if the name is taken: then the file has one
    /// name less.
    fn enter_anew(&mut self, dir: Nid, entry: &Dentry, now: Time) -> Step<bool> {
        if self.lookup(dir, &entry.name)?.is_some() {
            return Ok(false);
        }
        let room = self.room_in(dir, &entry.name)?;
        self.enter(dir, room, entry, now).map(|()| true)
    }

    /// Gives a file that has none a name in this directory; false where the file is gone.
    fn adopt(&mut self, dir: Nid, ino: Nid, name: &[u8], now: Time) -> Step<bool> {
        let kind = match self.inode(ino) {
            Ok(inode) => (inode.mode >> 12) as u8,
            Err(crate::state::Stop::Fail(_)) => return Ok(false),
            Err(need) => return Err(need),
        };
        let room = self.room_in(dir, name)?;
        self.inode(dir)?;
        self.nat.pick(3)?;
        self.enter(dir, room, &Dentry { name: name.to_vec(), ino, kind }, now)?;
        let inode = self.inode_mut(ino)?;
        (inode.parent, inode.name) = (dir, name.to_vec());
        if is_dir(inode.mode) {
            self.inode_mut(dir)?.links += 1;
        }
        Ok(true)
    }
}

impl Fs {
    /// A name beginning with this that nothing has in a directory.
    async fn free_name(self: &Arc<Fs>, cx: &Cx, dir: Nid, name: &str) -> Result<String> {
        let mut free = name.to_string();
        let mut number = 0;
        while self.with(cx, |s| s.lookup(dir, free.as_bytes())).await?.is_some() {
            number += 1;
            free = format!("{name}.{number}");
        }
        Ok(free)
    }

    /// Enters a file without a name by the name and the directory that its inode holds, if that
    /// directory has lost pages. From an undamaged directory a user has removed the name. Returns
    /// false if the file gets no name here.
    async fn enter_by_inode(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        holed: &BTreeSet<Nid>,
        now: Time,
    ) -> Result<bool> {
        let Ok(Inode { parent, name, .. }) = self.with(cx, |s| s.inode(ino).cloned()).await else {
            return Ok(false);
        };
        if !holed.contains(&parent)
            || mutant!("parafs.names-in-inodes-unused")
            || !self.leads_to_root(cx, parent, ino).await?
        {
            return Ok(false);
        }
        let is_free =
            |s: &mut State| Ok(check_name(&name).is_ok() && s.lookup(parent, &name)?.is_none());
        match self.with(cx, is_free).await? {
            true => self.with(cx, |s| s.adopt(parent, ino, &name, now)).await,
            false => Ok(false),
        }
    }

    /// The directories from this one up end at the root, and `below` is none of them.
    async fn leads_to_root(self: &Arc<Fs>, cx: &Cx, mut dir: Nid, below: Nid) -> Result<bool> {
        let mut seen = BTreeSet::new();
        while dir != ROOT {
            let above = match self.with(cx, |s| s.inode(dir).cloned()).await {
                Ok(inode) if is_dir(inode.mode) && inode.links > 0 => inode.parent,
                _ => return Ok(false),
            };
            if dir == below || !seen.insert(dir) {
                return Ok(false);
            }
            dir = above;
        }
        Ok(true)
    }

    async fn adopt(self: &Arc<Fs>, cx: &Cx, ino: Nid, now: Time) -> Result<bool> {
        let there = self.with(cx, |s| s.lookup(ROOT, LOST_FOUND.as_bytes())).await?;
        let dir = match there {
            Some(found) if u16::from(found.kind) == 0o04 && found.ino != ino => found.ino,
            _ => {
                let name = self.free_name(cx, ROOT, LOST_FOUND).await?;
                let (uid, gid) = self.with(cx, |s| s.inode(ROOT).map(|i| (i.uid, i.gid))).await?;
                let new = New { mode: 0o040_700, uid, gid, ..New::default() };
                self.with(cx, |s| s.create(ROOT, name.as_bytes(), &new, now)).await?.ino
            }
        };
        let name = self.free_name(cx, dir, &format!("#{ino}")).await?;
        self.with(cx, |s| s.adopt(dir, ino, name.as_bytes(), now)).await
    }
}
