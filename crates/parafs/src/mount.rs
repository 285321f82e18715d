//! Mounting and unmounting.
//!
//! Owns: which superblock and which checkpoint counts, what a mount does before anybody may use the
//! file system. Promises: what was durable is there; what is damaged is said, with its place. Never:
//! writes before it knows that the file system is one.

use crate::channels::Channels;
use crate::error::{FsError, Result};
use crate::format::shared;
use crate::format::{
    FormatError, Layout, NAT_JOURNAL, NatSector, Nid, Pack, ROOT, SECTOR, SIT_JOURNAL,
    SegmentEntry, SitSector, Superblock, WindowSector,
};
use crate::fs::{AT_A_TIME, Fs, Options, bit};
use crate::medium::{Medium, Written};
use crate::mkfs;
use crate::nat::Nat;
use crate::pairs::Covers;
use crate::recover::{self, Look};
use crate::segments::Segments;
use crate::state::State;
use flashlane_base::mutant;
use flashlane_ftl::sftl::Settle;
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Cx, Notify};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Copies of the superblock.
pub(crate) const SUPERBLOCKS: u64 = 2;

/// What a mount has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// It had been unmounted.
    pub clean: bool,
    /// fsyncs since the last checkpoint that were found whole, and taken.
    pub batches: u32,
    /// Those that were cut short, and count as nothing.
    pub torn_batches: u32,
    /// Pages of the log that were looked at for them.
    pub pages_read: u64,
    /// Pages that were written after the checkpoint and can't be read, though reading was repeated
    /// over time. They may hold fsyncs.
    pub unread: u64,
    /// Files without a name that were deleted.
    pub orphans: u32,
    /// Segments of which pages are missing that the file system needs, and how many pages.
    pub missing: (u32, u64),
    /// Damage for which an fsync since the last checkpoint could not be taken, with its place.
    pub damaged: Option<String>,
    /// Why nothing is written, so that what is missing may come back.
    pub read_only: Option<String>,
}

/// A copy of the superblock that fits the medium.
pub(crate) async fn superblock_copy(cx: &Cx, medium: &Medium, copy: u64) -> Result<Superblock> {
    let mut bytes = vec![0; SECTOR];
    medium.read_meta_again(cx, copy, &mut bytes).await?;
    let sb = match Superblock::decode(&bytes) {
        Err(FormatError::Magic(_)) => return Err(FsError::NotFound),
        decoded => decoded?,
    };
    let why = match () {
        () if sb.linear != medium.is_linear() => {
            "it was made on a medium of another kind: mount the target itself"
        }
        () if !medium.has(&sb.layout.shape) => "the file system is larger than what it lies on",
        () => return Ok(sb),
    };
    Err(FsError::Damaged(why.into()))
}

/// The superblock that leads to a checkpoint and to its root, and that checkpoint: of two copies that
/// are whole one may say what is not so. Where neither leads to a root the first one counts.
pub(crate) async fn open(cx: &Cx, medium: &Medium) -> Result<(Superblock, Newest)> {
    let (mut rootless, mut first, mut why) = (None, None, FsError::NotFound);
    for copy in 0..SUPERBLOCKS {
        match superblock_copy(cx, medium, copy).await {
            Ok(sb) => match newest_pack(cx, medium, &sb.layout).await {
                Ok(newest) if has_root(cx, medium, &sb, &newest.pack).await => {
                    return Ok((sb, newest));
                }
                Ok(newest) => rootless = rootless.or(Some((sb, newest))),
                Err(e) => first = first.or(Some(e)),
            },
            Err(FsError::NotFound) => {}
            Err(e) => why = e,
        }
    }
    rootless.ok_or(first.unwrap_or(why))
}

/// The superblock by itself: the one of [`open`], and where there is no checkpoint the first copy that is
/// whole. Where there is none at all nothing is damaged.
pub(crate) async fn superblock(cx: &Cx, medium: &Medium) -> Result<Superblock> {
    if let Ok((sb, _)) = open(cx, medium).await {
        return Ok(sb);
    }
    let mut why = FsError::NotFound;
    for copy in 0..SUPERBLOCKS {
        match superblock_copy(cx, medium, copy).await {
            Ok(sb) => return Ok(sb),
            Err(FsError::NotFound) => {}
            Err(e) => why = e,
        }
    }
    Err(why)
}

/// A checkpoint leads to the node of the root, and that is one of this file system.
async fn has_root(cx: &Cx, medium: &Medium, sb: &Superblock, pack: &Pack) -> bool {
    let beside = pack.nat.iter().find(|(nid, _)| *nid == ROOT);
    let entry = match beside {
        Some((_, entry)) => *entry,
        None => match nat_sector(cx, medium, &sb.layout, pack, 0).await {
            Ok(sector) => sector.0[ROOT as usize],
            Err(_) => return false,
        },
    };
    let mut bytes = vec![0; sb.layout.shape.page_bytes()];
    let there = sb.layout.has(entry.addr);
    there
        && medium.read_again(cx, &sb.layout, entry.addr, &mut bytes).await.is_ok()
        && shared::lying(&bytes, sb.node_seed(), |nid| nid == ROOT).is_ok_and(|its| !its.is_empty())
}

/// A checkpoint in one of both places.
pub(crate) async fn pack(cx: &Cx, medium: &Medium, layout: &Layout, place: usize) -> Result<Pack> {
    let at = layout.packs[place];
    let mut first = vec![0; SECTOR];
    medium.read_meta_again(cx, at, &mut first).await?;
    let (version, bytes) = Pack::length(&first, layout)?;
    let sectors = bytes.div_ceil(SECTOR as u64);
    let mut rest = vec![0; (sectors as usize + 1) * SECTOR];
    medium.read_meta_again(cx, at + 1, &mut rest).await?;
    let (body, foot) = rest.split_at(sectors as usize * SECTOR);
    if version % 2 != place as u64 && !mutant!("parafs.one-pack") {
        return Err(FsError::Damaged(format!("checkpoint {version} is in the other one's place")));
    }
    Ok(Pack::decode(&first, body, foot, layout)?)
}

/// A sector is the head of a checkpoint, whatever follows it.
pub(crate) fn is_pack_head(sector: &[u8], layout: &Layout) -> bool {
    Pack::length(sector, layout).is_ok()
}

/// The newest checkpoint that is whole.
pub(crate) struct Newest {
    pub(crate) pack: Pack,
    /// The other one is not.
    pub(crate) alone: bool,
}

/// The newest checkpoint that is whole. Where one can't be read it may be that, behind which what the other one
/// names is gone: its head, by itself, says whether it is.
pub(crate) async fn newest_pack(cx: &Cx, medium: &Medium, layout: &Layout) -> Result<Newest> {
    let (mut newest, mut whole): (Option<Pack>, usize) = (None, 0);
    let (mut unread, mut why) = (None, FsError::NotFound);
    for place in 0..layout.packs.len() {
        match pack(cx, medium, layout, place).await {
            Ok(found) => {
                whole += 1;
                if newest.as_ref().is_none_or(|n| n.version < found.version) {
                    newest = Some(found);
                }
            }
            Err(e @ FsError::Io(_)) if !mutant!("parafs.pack-unread") => unread = Some((place, e)),
            Err(e) => why = e,
        }
    }
    if let Some((place, e)) = unread {
        let mut head = vec![0; SECTOR];
        medium.read_meta_again(cx, layout.packs[place], &mut head).await?;
        let is_older = |version| newest.as_ref().is_some_and(|n| version < n.version);
        match Pack::length(&head, layout) {
            Ok((version, _)) if is_older(version) && !mutant!("parafs.older-unread-stops") => {}
            _ => return Err(e),
        }
    }
    newest.map(|pack| Newest { pack, alone: whole == 1 }).ok_or(why)
}

/// A checkpoint behind the one that counts, if there was one: the window names segments of it.
pub(crate) async fn lost_checkpoint(
    cx: &Cx,
    medium: &Medium,
    sb: &Superblock,
    version: u64,
) -> Result<Option<u64>> {
    let mut bytes = vec![0; SECTOR];
    medium.read_meta_again(cx, sb.layout.window, &mut bytes).await?;
    let window = WindowSector::decode(&bytes, 0).ok();
    Ok(window.map(|window| window.version).filter(|lost| *lost > version))
}

/// The segment table as a checkpoint has it.
pub(crate) async fn segment_table(
    cx: &Cx,
    medium: &Medium,
    layout: &Layout,
    pack: &Pack,
) -> Result<Vec<SegmentEntry>> {
    let (per, all) = (layout.sit_entries(), layout.shape.segments());
    let mut entries = Vec::with_capacity(all as usize);
    for sector in 0..layout.sit_sectors {
        let mut bytes = vec![0; SECTOR];
        let at = layout.sit_at(sector, bit(&pack.sit_copies, sector));
        medium.read_meta_again(cx, at, &mut bytes).await?;
        let count = per.min(all - sector * per);
        let decoded = SitSector::decode(&bytes, sector, count, layout);
        entries.extend(decoded.map_err(|e| in_sector(sector, e))?.0);
    }
    for (segment, entry) in &pack.sit {
        entries[*segment as usize] = entry.clone();
    }
    Ok(entries)
}

/// A sector of the node address table as a checkpoint has it.
pub(crate) async fn nat_sector(
    cx: &Cx,
    medium: &Medium,
    layout: &Layout,
    pack: &Pack,
    sector: u32,
) -> Result<NatSector> {
    let mut bytes = vec![0; SECTOR];
    let at = layout.nat_at(sector, bit(&pack.nat_copies, sector));
    medium.read_meta_again(cx, at, &mut bytes).await?;
    NatSector::decode(&bytes, sector, layout.shared).map_err(|e| in_sector(sector, e))
}

/// Damage of a sector of a table.
pub(crate) fn in_sector(sector: u32, e: FormatError) -> FsError {
    FsError::Damaged(format!("sector {sector}: {e}"))
}

/// A file system in memory as a checkpoint has it, with what the medium says of its segments.
async fn load(
    cx: &Cx,
    medium: &Medium,
    options: &Options,
    sb: &Superblock,
    pack: &Pack,
) -> Result<(Arc<Channels>, State)> {
    let layout = sb.layout;
    let entries = segment_table(cx, medium, &layout, pack).await?;
    let channels = Arc::new(Channels::new(options.schedule, layout, medium.clone()));
    let mut segments = Segments::load(layout, channels.clone(), entries, &pack.heads)?;
    (segments.allocation, segments.lanes) = (options.allocation, medium.lanes(&layout));
    segments.full_reserve = mkfs::full_reserve(medium, sb);
    segments.pair_pages = medium.pair_pages();
    segments.compare(|segment| medium.written(&layout, segment));
    segments.age = pack.age;
    let age_before = pack.age;
    segments.changed = pack.sit.iter().map(|(segment, _)| *segment).collect();
    let mut nat = Nat::new(&layout, pack.nat.clone());
    (nat.next, nat.used) = (pack.next_nid.max(1), pack.nodes);
    let mut state = State::new(sb, segments, nat);
    state.version = pack.version;
    (state.age_before, state.mounted_at) = (age_before, cx.now());
    let journal = options.journal;
    state.journals =
        (journal.min(NAT_JOURNAL as usize), (journal / 10).clamp(1, SIT_JOURNAL as usize));
    state.nat_copies.clone_from(&pack.nat_copies);
    state.sit_copies.clone_from(&pack.sit_copies);
    (state.files, state.generation, state.kept) = (pack.files, pack.generation, pack.kept);
    state.orphans = pack.orphans.iter().copied().collect();
    if !pack.clean {
        // How far they were written is not known.
        state.segments.close_all();
    }
    Ok((channels, state))
}

impl Fs {
    /// Mounts what is on the medium.
    ///
    /// # Errors
    /// There is no file system, or it is damaged so that it can't be used.
    ///
    /// Where data is missing, or may be, it is mounted read-only and nothing on the medium changes
    /// ([`Recovered::read_only`]).
    pub async fn mount(cx: &Cx, medium: Medium, options: Options) -> Result<(Arc<Fs>, Recovered)> {
        Fs::mount_within(cx, medium, options, None).await
    }

    /// As [`Fs::mount`]. With `memory` the caches use about so many bytes, whatever `options` say.
    ///
    /// # Errors
    /// As [`Fs::mount`].
    pub async fn mount_within(
        cx: &Cx,
        medium: Medium,
        options: Options,
        memory: Option<u64>,
    ) -> Result<(Arc<Fs>, Recovered)> {
        let doubts = medium.doubts();
        let mounted = Fs::bring_up(cx, medium, options, memory).await;
        mounted.map_err(|e| match (e, doubts) {
            (FsError::Io(why), Some(doubts)) => FsError::Io(format!("{why} ({doubts})")),
            (FsError::Damaged(why), Some(doubts)) => FsError::Io(format!("{why} ({doubts})")),
            (FsError::NotFound, Some(doubts)) => {
                FsError::Io(format!("no superblock can be found ({doubts})"))
            }
            (e, _) => e,
        })
    }

    async fn bring_up(
        cx: &Cx,
        medium: Medium,
        options: Options,
        memory: Option<u64>,
    ) -> Result<(Arc<Fs>, Recovered)> {
        if let Some(why) = medium.refusal() {
            return Err(FsError::Invalid(why));
        }
        let (sb, Newest { pack, alone }) = open(cx, &medium).await?;
        let page_bytes = sb.layout.shape.page_bytes();
        let options = memory.map_or(options, |memory| options.within(memory, page_bytes));
        let options = Options {
            cache_pages: options.cache_pages.max(2 * AT_A_TIME),
            cache_nodes: options.cache_nodes.max(2 * AT_A_TIME),
            ..options
        };
        if let Some(lost) = lost_checkpoint(cx, &medium, &sb, pack.version).await?
            && !mutant!("parafs.lost-checkpoint")
        {
            return Err(recover::lost(lost));
        }
        // Behind one that is not clean `roll_forward` sees it.
        if pack.clean && alone && !mutant!("parafs.clean-is-last") {
            recover::is_last(cx, &medium, &sb, &pack).await?;
        }
        let (channels, state) = load(cx, &medium, &options, &sb, &pack).await?;
        let (state, changed) = (Mutex::new(state), Notify::new());
        let has_pairs = medium.pair_pages() > 0;
        let fs = Arc::new(Fs { medium, sb, options, channels, has_pairs, state, changed });
        // Whoever was killed may have left what can be read and is not durable, its last checkpoint, too. What
        // is written from now on goes by that.
        if !mutant!("parafs.mount-unflushed") {
            fs.flush(cx, Covers::Nothing).await?;
        }
        let mut recovered = Recovered { clean: pack.clean, ..Recovered::default() };
        let (mut rolled, unnamed) = (None, fs.lock().segments.without_content());
        if !pack.clean {
            fs.lock().recovering = true;
            let look = Look::Mount;
            rolled = Some(recover::roll_forward(cx, &fs, &pack, look, &mut recovered).await?);
        }
        if let Some(why) = fs.lacks(&mut recovered)
            && !mutant!("parafs.missing-is-mounted")
        {
            recovered.read_only = Some(why.clone());
            return Ok((fs.only_read(why), recovered));
        }
        fs.medium.settle(cx, Settle::NothingIsMissing).await?;
        if let Some(rolled) = rolled
            && !mutant!("parafs.mount-frees-nothing")
            && recover::settle(cx, &fs, &rolled).await?
        {
            fs.free_again(cx, &unnamed, &rolled.segments).await;
        }
        recovered.orphans = fs.end_orphans(cx).await?;
        // A checkpoint behind a clean one says that it is in use. Behind a crash it also keeps what
        // was found, and nothing of what was not is ever found again.
        fs.checkpoint(cx).await?;
        fs.lock().recovering = false;
        fs.look_after(cx);
        Ok((fs, recovered))
    }

    /// The reason to mount read-only, if there is one: data that can't be read now may be readable
    /// later. Pages that the checkpoint or an fsync names are missing, or pages that can't be read
    /// may hold fsyncs.
    fn lacks(&self, recovered: &mut Recovered) -> Option<String> {
        let layout = self.sb.layout;
        let missing =
            self.lock().segments.missing(|segment| self.medium.pages_there(&layout, segment));
        let pages = missing.iter().map(|(_, pages)| u64::from(*pages)).sum();
        recovered.missing = (missing.len() as u32, pages);
        let unread = match mutant!("parafs.unread-fsyncs-given-up") {
            true => 0,
            false => recovered.unread,
        };
        let why = match (missing.is_empty(), recovered.clean) {
            (false, _) => {
                let segments = missing.len();
                format!("{pages} pages of {segments} segments are missing")
            }
            (true, false) if self.medium.has_lost_blocks() => {
                "fsyncs after the last checkpoint may be missing".into()
            }
            (true, false) if unread > 0 => {
                return Some(format!(
                    "{unread} pages written after the last checkpoint can't be read; they may hold \
                     fsyncs"
                ));
            }
            (true, _) => {
                let damaged = recovered.damaged.as_ref()?;
                return Some(format!(
                    "an fsync after the last checkpoint can't be taken, {damaged}"
                ));
            }
        };
        let doubts = self.medium.doubts();
        Some(match doubts {
            Some(doubts) => format!("{why}: {doubts}"),
            None => format!("{why}: flash blocks that had them are bad, or hold nothing"),
        })
    }

    /// Nothing is written from now on.
    fn only_read(self: Arc<Fs>, why: String) -> Arc<Fs> {
        {
            let mut s = self.lock();
            (s.read_only, s.unmounted, s.recovering) = (Some(why), true, false);
        }
        self
    }

    /// Frees what heads have had since the checkpoint, of the segments that the checkpoint has no use for: what
    /// nothing names by now that was found, and what is not `counting` for another mount if this one is
    /// cut. That has as much room as this one.
    async fn free_again(
        self: &Arc<Fs>,
        cx: &Cx,
        unnamed: &BTreeSet<u32>,
        counting: &BTreeSet<u32>,
    ) {
        let again: Vec<u32> = {
            let mut s = self.lock();
            let empty = s.segments.leave();
            let may = |segment: &u32| {
                (unnamed.contains(segment) || mutant!("parafs.mount-frees-named"))
                    && (!counting.contains(segment) || mutant!("parafs.mount-frees-counting"))
            };
            let (again, stay): (Vec<u32>, Vec<u32>) = empty.into_iter().partition(may);
            s.segments.stay(&stay);
            s.segments.left(&again);
            again
        };
        for segment in again {
            match self.medium.written(&self.sb.layout, segment) {
                Some(Written::Pages(1..)) => self.trim(cx, segment),
                written => self.lock().segments.trimmed(segment, written != Some(Written::Gone)),
            }
        }
        self.changed.wait(cx, || self.lock().trims == 0).await;
    }

    /// Deletes files without a name, and ends cuts that were begun.
    async fn end_orphans(self: &Arc<Fs>, cx: &Cx) -> Result<u32> {
        let orphans: Vec<Nid> = self.lock().orphans.iter().copied().collect();
        let mut deleted = 0;
        let page_bytes = self.sb.layout.shape.page_bytes() as u64;
        for ino in orphans {
            let found = self
                .with(cx, |s| {
                    let inode = s.inode(ino)?;
                    Ok((inode.links, inode.size.div_ceil(page_bytes)))
                })
                .await;
            let ended = match found {
                Ok((0, _)) => {
                    let ended = self.delete(cx, Some(ino)).await;
                    deleted += u32::from(ended.is_ok());
                    ended
                }
                Ok((_, pages)) => {
                    self.lock().cuts.insert(ino);
                    self.cut(cx, ino, pages).await
                }
                Err(FsError::Stale) => {
                    self.lock().orphans.remove(&ino);
                    Ok(())
                }
                Err(e) => Err(e),
            };
            match ended {
                // What can't be read stays in the list, and all else goes on.
                Err(FsError::Io(_) | FsError::Damaged(_))
                    if !mutant!("parafs.bad-orphan-stops-all") => {}
                ended => ended?,
            }
        }
        Ok(deleted)
    }

    /// Writes everything and leaves a mark that nothing comes behind it. Whoever uses the file
    /// system afterwards gets an error for each change.
    ///
    /// # Errors
    /// The medium did not take it: the next mount finds what was durable.
    pub async fn unmount(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        {
            let s = self.lock();
            match &s.read_only {
                Some(_) if s.unmounted => return Ok(()),
                Some(why) => return Err(FsError::ReadOnly(why.clone())),
                None => {}
            }
        }
        self.lock().ending = true;
        let quiet = || {
            let s = self.lock();
            !s.tidying && !s.cleaning
        };
        self.changed.wait(cx, quiet).await;
        self.lock().opens.clear();
        self.end_orphans(cx).await?;
        self.sync(cx).await?;
        self.changed.wait(cx, || self.lock().trims == 0).await;
        self.last_checkpoint(cx).await?;
        self.changed.wait(cx, || self.lock().trims == 0).await;
        Ok(())
    }
}

/// The label of the file system on a medium, if there is one.
pub async fn label(cx: &Cx, medium: &Medium) -> Option<String> {
    superblock(cx, medium).await.ok().map(|sb| sb.label)
}
