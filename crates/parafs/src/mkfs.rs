//! Making a file system.
//!
//! Owns: what an empty one looks like, how much room cleaning has. Promises: the superblock comes
//! last, so one that was cut short is none. Never: asks whether something is there already.

use crate::channels::{Channels, Schedule};
use crate::error::{FsError, Result};
use crate::format::{
    HEADS, Inode, Layout, NAT_ENTRIES, NatEntry, NatSector, ROOT, SECTOR, SegmentEntry, SitSector,
    Superblock, Time, VERSION_MAX,
};
use crate::fs::{Fs, Options};
use crate::medium::{Medium, Written};
use crate::mount;
use crate::nat::Nat;
use crate::segments::Segments;
use crate::state::State;
use flashlane_base::mutant;
use flashlane_ftl::sftl::Settle;
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Cx, Notify};
use std::sync::Arc;

/// How a file system is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Make {
    pub uuid: [u8; 16],
    /// At most 64 bytes count.
    pub label: String,
    /// Segments that files can't have, beside the least: the more, the less is moved.
    pub spare_segments: u32,
    pub reserve: Reserve,
    /// Pages of files have checksums. They take words of nodes, so a direct node names half as many
    /// pages.
    pub data_checksums: bool,
    /// Owner of the root directory.
    pub uid: u32,
    pub gid: u32,
}

/// How much files can't have, so that heads and cleaning have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// Every region has six heads at any time.
    #[default]
    Full,
    /// Every region has six heads as long as files leave room for them, and one beyond that. The
    /// regions share the others then.
    Shared,
}

/// Segments that files can't have, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Heads fill them, or have them next.
    pub heads: u32,
    /// Padding that a checkpoint writes to each head, where pages have pairs.
    pub padding: u32,
    /// Cleaning moves pages there, and a checkpoint writes there what cleaning makes dirty.
    pub cleaning: u32,
    /// [`Make::spare_segments`].
    pub spare: u32,
}

impl Kept {
    /// Segments that a file system keeps from files if it is made like this.
    pub fn of(medium: &Medium, layout: &Layout, make: &Make) -> Kept {
        let full = Kept { spare: make.spare_segments, ..full(medium, layout) };
        let (shape, lanes) = (&layout.shape, medium.lanes(layout));
        let most = shape.regions.min(8);
        // A cleaner of each region empties a segment while another one is erased.
        let cleaning = (shape.segments() / 25).max(2 * most).max(8) + most;
        let shared = Kept { heads: shared_heads(shape.regions, lanes), cleaning, ..full };
        match make.reserve {
            Reserve::Shared if shared.segments() < full.segments() => shared,
            _ => full,
        }
    }

    pub fn segments(&self) -> u32 {
        let Kept { heads, padding, cleaning, spare } = *self;
        heads + padding + cleaning + spare
    }
}

/// Segments that heads fill where the regions share those of each heat but one.
pub(crate) fn shared_heads(regions: u32, lanes: u32) -> u32 {
    regions * lanes + HEADS - 1
}

/// Every region has heads of its own: those that they fill, one twentieth to clean with, and, where
/// pages have pairs, the padding that a checkpoint writes to each head.
fn full(medium: &Medium, layout: &Layout) -> Kept {
    let shape = &layout.shape;
    let lanes = medium.lanes(layout);
    let padding =
        (shape.regions * HEADS * lanes * medium.pair_pages()).div_ceil(shape.segment_pages);
    Kept {
        heads: shape.regions * HEADS * (lanes + layout.assigned()),
        padding,
        cleaning: (shape.segments() / 20).max(6) + shape.regions.min(8),
        spare: 0,
    }
}

/// What is kept as long as files leave it, in a file system where they can have some of it.
pub(crate) fn full_reserve(medium: &Medium, sb: &Superblock) -> Option<u32> {
    let full = full(medium, &sb.layout).segments();
    (sb.reserved_segments < full).then_some(full)
}

/// What the bytes of a medium are for in a file system that is made like this: names, bytes. The
/// last ones are for files and their nodes; together they are all of the medium.
pub fn division(medium: &Medium, layout: &Layout, make: &Make) -> Vec<(&'static str, u64)> {
    let segment = layout.shape.segment_pages as u64 * layout.shape.page_sectors as u64;
    let kept = Kept::of(medium, layout, make);
    let files = layout.shape.segments().saturating_sub(kept.segments());
    let Kept { heads, padding, cleaning, spare } = kept;
    let segments = [
        ("heads (segments that are being filled)", heads),
        ("padding behind page pairs", padding),
        ("room to clean with", cleaning),
        ("spare segments", spare),
        ("files and their nodes", files),
    ];
    let segments = segments.map(|(name, count)| (name, u64::from(count) * segment));
    let all = medium.beside_segments(layout).into_iter().chain(segments);
    all.map(|(name, sectors)| (name, sectors * SECTOR as u64)).collect()
}

/// Segments that can be spare beside the least ([`Make::spare_segments`]), at most; nothing where
/// there is no room for files even without any.
pub fn spare_most(medium: &Medium, layout: &Layout, make: &Make) -> Option<u32> {
    let least = Make { spare_segments: 0, ..make.clone() };
    let kept = Kept::of(medium, layout, &least).segments();
    layout.shape.segments().saturating_sub(kept).checked_sub(FILES_LEAST)
}

/// Segments for files, at least.
const FILES_LEAST: u32 = 2;

/// Whether [`mkfs`] can make a file system of this layout. Nothing is written.
///
/// # Errors
/// The medium is none for it, or too small ([`FsError::NoSpace`]).
pub fn can_be_made(medium: &Medium, layout: &Layout, make: &Make) -> Result<()> {
    if let Some(why) = medium.refusal() {
        return Err(FsError::Invalid(why));
    }
    if !medium.has(&layout.shape) {
        return Err(FsError::Invalid("a layout that is larger than the medium"));
    }
    match spare_most(medium, layout, make) {
        Some(most) if make.spare_segments <= most => Ok(()),
        _ => Err(FsError::NoSpace),
    }
}

/// Sectors of a table in one request.
const RUN: usize = 256;

/// Erases what was written before, on a medium that knows.
async fn erase(cx: &Cx, medium: &Medium, layout: &Layout) -> Result<()> {
    let old = |segment: &u32| matches!(medium.written(layout, *segment), Some(Written::Pages(1..)));
    let segments: Vec<u32> = (0..layout.shape.segments()).filter(old).collect();
    for piece in segments.chunks(RUN) {
        let trim = |segment: &u32| {
            let (medium, layout, theirs, segment) = (medium.clone(), *layout, cx.clone(), *segment);
            cx.spawn_join(async move { medium.trim(&theirs, &layout, segment).await })
        };
        let trims: Vec<_> = piece.iter().map(trim).collect();
        for trim in trims {
            // One that can't be erased is gone, and is not used.
            let _ = trim.await;
        }
    }
    Ok(())
}

/// A version that no older file system on this medium has had: a block device keeps its nodes, and a mount
/// must not take them for new ones. By the clock, and behind what is there.
async fn first_version(cx: &Cx, medium: &Medium, now: Time) -> u64 {
    let by_clock =
        u64::try_from(now.seconds).unwrap_or(0).min(VERSION_MAX / Superblock::VERSIONS / 2);
    let there = mount::open(cx, medium).await.map_or(0, |(_, newest)| newest.pack.version + 1);
    by_clock.max(there.div_ceil(Superblock::VERSIONS)) * Superblock::VERSIONS
}

/// Writes an empty file system. What was there is gone: its nodes may lie in the log, and are older.
///
/// # Errors
/// The medium is too small, or did not take it.
pub async fn mkfs(cx: &Cx, medium: Medium, layout: Layout, make: &Make, now: Time) -> Result<()> {
    can_be_made(&medium, &layout, make)?;
    let first_version = match mutant!("parafs.versions-begin-anew") {
        true => 0,
        false => first_version(cx, &medium, now).await,
    };
    let reserved_segments = Kept::of(&medium, &layout, make).segments();
    let sb = Superblock {
        layout,
        major: Superblock::major_with(layout.shared, make.data_checksums),
        sums: make.data_checksums,
        linear: medium.is_linear(),
        uuid: make.uuid,
        label: make.label.clone(),
        reserved_segments,
        content_bytes: SECTOR as u32,
        first_version,
    };
    // What was there is none from here on, and what can't be read of it never comes back.
    medium.settle(cx, Settle::GiveUp).await?;
    medium.write_meta(cx, 0, &vec![0; 2 * SECTOR]).await?;
    medium.flush(cx).await?;
    erase(cx, &medium, &layout).await?;
    let packs = layout.packs[0]..layout.packs[1] + layout.pack_sectors + layout.window_sectors;
    for at in packs {
        medium.write_meta(cx, at, &[0; SECTOR]).await?;
    }
    let per = layout.sit_entries();
    for sector in 0..layout.sit_sectors {
        let count = per.min(layout.shape.segments() - sector * per) as usize;
        let entry = SegmentEntry::empty(&layout);
        let bytes = SitSector(vec![entry; count]).encode(sector);
        medium.write_meta(cx, layout.sit_at(sector, false), &bytes).await?;
    }
    let none = || vec![NatEntry::default(); NAT_ENTRIES as usize];
    let mut sector = 0;
    while sector < layout.nat_sectors {
        let run = (layout.nat_sectors - sector).min(RUN as u32 / 2);
        let mut bytes = Vec::with_capacity(run as usize * 2 * SECTOR);
        for sector in sector..sector + run {
            // Both copies: one request for many of them.
            bytes.extend(NatSector(none()).encode(sector));
            bytes.extend(NatSector(none()).encode(sector));
        }
        medium.write_meta(cx, layout.nat_at(sector, false), &bytes).await?;
        sector += run;
    }
    let channels = Arc::new(Channels::new(Schedule::default(), layout, medium.clone()));
    let mut segments = Segments::new(layout, channels.clone());
    segments.lanes = medium.lanes(&layout);
    segments.full_reserve = full_reserve(&medium, &sb);
    segments.pair_pages = medium.pair_pages();
    segments.compare(|segment| medium.written(&layout, segment));
    let mut state = State::new(&sb, segments, Nat::new(&layout, Vec::new()));
    state.nat.bring(0, none());
    let root = Inode {
        mode: 0o040_755,
        links: 2,
        uid: make.uid,
        gid: make.gid,
        pages: 1,
        atime: now,
        mtime: now,
        ctime: now,
        created: now,
        parent: ROOT,
        ..Inode::default()
    };
    state.make_node(ROOT, ROOT, 0, Some(root));
    state.files = 1;
    state.version = first_version;
    let fs = Fs {
        medium: medium.clone(),
        sb: sb.clone(),
        options: Options::default(),
        channels,
        has_pairs: medium.pair_pages() > 0,
        state: Mutex::new(state),
        changed: Notify::new(),
    };
    Arc::new(fs).last_checkpoint(cx).await?;
    for copy in 0..mount::SUPERBLOCKS {
        medium.write_meta(cx, copy, &sb.encode()).await?;
    }
    medium.flush(cx).await
}
