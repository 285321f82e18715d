//! What a shadow knows of blocks that are no inodes: which are free, and where the journal is.
//!
//! Owns: the bitmaps of blocks as they were written last, the place of the journal and what its superblock said
//! last. Promises: what it finds ([`Found`]) follows from a write alone; a bitmap of which a part is not known says
//! nothing. Never: knows whether somebody has written to a block since: who asks does
//! ([`Shadow::take_found`]).
//!
//! **Why a free block may be discarded.** Who takes it writes it before he reads it. So what is asked is
//! whether somebody has taken it already. A block is taken in memory first, then written; its bitmap
//! comes later. A bitmap that is written while the file system is in use has all that was taken before that
//! write. So a block may go that is clear in a bitmap, and that nobody has written to since the write of that
//! bitmap began. A replay of the journal is another thing: it writes older versions of a bitmap first
//! (`do_one_pass`, fs/jbd2/recovery.c), and data that belongs to newer ones is on the medium already. It
//! ends with a write of the journal's superblock (`jbd2_journal_recover`, `journal_reset`), and behind that
//! all bitmaps are the newest. So with a journal a free block goes only when that superblock was written
//! behind the bitmap, or the file system was unmounted ([`Found::Settled`]). One that says that the log is
//! empty does not count: `e2fsck` writes that where a replay has failed, too. Where errors were found no
//! block is free. What was sent before must have been taken: a write counts from when the layer has it on.
//!
//! **Why a block of the log may be discarded.** Recovery begins at the block that the journal's superblock says,
//! and ends at the first one that does not go on. What lies before is never read, and zeros do not go on. That
//! superblock must not get lost afterwards, and a free block's bitmap must not: who discards waits for a flush.
//!
//! **Why a bitmap of zeros may be discarded.** It reads the same.

use super::{Content, Place, SECTOR, Shadow, What, joined};
use crate::extent::{Extent, extents, is_inode_sum};
use crate::journal::Head;
use crate::{Feature, Superblock};
use flashlane_base::mutant;
use std::ops::Range;

/// Runs that are found at once, about: what is beyond them stays.
const FOUND_MAX: usize = 1 << 20;

/// What may be discarded beside blocks of dead inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Blocks of zeros in tables of inodes.
    pub zeros: bool,
    /// Bitmaps of zeros: of groups in which nothing is used.
    pub bitmaps: bool,
    /// Blocks of the journal that recovery does not need any more.
    pub journal: bool,
    /// Blocks that no file has any more: data, directories, extent trees.
    pub freed: bool,
}

impl Wanted {
    pub const ALL: Wanted = Wanted { zeros: true, bitmaps: true, journal: true, freed: true };
    /// Blocks of dead inodes only.
    pub const INODES: Wanted =
        Wanted { zeros: false, bitmaps: false, journal: false, freed: false };
}

/// What a write has said, in sectors of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// These are free in a bitmap that was written.
    Freed(Range<u64>),
    /// They are used, or might be.
    Taken(Range<u64>),
    /// What was free in a bitmap before now is free.
    Settled,
    /// Recovery does not need these of the log.
    Passed(Range<u64>),
    /// This bitmap is zeros.
    ZeroBitmap(u64),
}

/// The bitmap of a group's blocks.
#[derive(Clone, Debug)]
pub(super) struct Used {
    /// A bit for each block that is used.
    pub(super) bits: Box<[u8]>,
    /// Parts that nobody has seen.
    pub(super) missing: u16,
}

impl super::Known {
    /// Bytes of memory that its bitmap of blocks takes.
    pub(super) fn used_bytes(&self) -> usize {
        self.used.as_ref().map_or(0, |used| used.bits.len())
    }
}

/// The journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) extents: Vec<Extent>,
    /// What its superblock said last.
    pub(super) head: Option<Head>,
}

impl Log {
    /// The block of its superblock.
    pub(super) fn superblock(&self) -> Option<u64> {
        self.extents.first().filter(|first| first.logical == 0).map(|first| first.first)
    }

    /// Blocks of the file system that these of the journal are.
    fn at(&self, blocks: Range<u32>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.extents.iter().filter_map(move |extent| {
            let start = extent.logical.max(blocks.start);
            let end = extent.logical.saturating_add(extent.blocks).min(blocks.end);
            let at = |logical: u32| extent.first + u64::from(logical - extent.logical);
            (start < end).then(|| at(start)..at(end))
        })
    }
}

impl Shadow {
    /// What writes have said since it was asked last.
    pub fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }

    /// The file system is unmounted, and was read: all that is free in its bitmaps is.
    pub fn find_all(&mut self) {
        if self.wanted.freed && !self.sb.has_errors {
            for group in 0..self.sb.groups {
                if self.found.len() < FOUND_MAX {
                    self.find_freed(group, None);
                }
            }
            self.found.push(Found::Settled);
        }
        let head = self.log.as_ref().and_then(|log| log.head).filter(|head| head.start == 0);
        if let Some(head) = head {
            self.find_passed(head, None);
        }
    }

    /// Bitmaps of blocks can be understood: a bit is a block.
    pub(super) fn follows_blocks(sb: &Superblock) -> bool {
        !sb.has(Feature::BIGALLOC)
    }

    /// Parts of a bitmap in which it is not known what is used.
    pub(super) fn is_missing(&self, group: u32) -> bool {
        self.groups[group as usize].used.as_ref().is_none_or(|used| used.missing != 0)
    }

    /// Its bitmap of blocks isn't on the medium.
    pub(super) fn is_block_uninit(&self, group: u32) -> bool {
        self.groups[group as usize].group.as_ref().is_some_and(|group| group.blocks_uninit)
    }

    pub(super) fn has_log_head(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.head.is_some())
    }

    /// Read bitmaps must have the checksums that their descriptors say.
    pub(super) fn doubt_used(&mut self) {
        for known in &mut self.groups {
            if let (Some(group), Some(used)) = (&known.group, &known.used)
                && !group.is_block_sum_of(&used.bits, &self.sb)
            {
                known.used = None;
            }
        }
    }

    pub(super) fn blocks_are(&mut self, group: u32, within: u32, content: Content<'_>) {
        let bytes = self.sb.blocks_per_group.div_ceil(8);
        let parts = bytes.div_ceil(self.piece_bytes);
        let part = within / self.piece_bytes;
        if part >= parts {
            return;
        }
        let known = &mut self.groups[group as usize];
        let used = known.used.get_or_insert_with(|| Used {
            bits: vec![0xff; bytes as usize].into(),
            missing: ((1u32 << parts) - 1) as u16,
        });
        let mine = within as usize..bytes.min(within + self.piece_bytes) as usize;
        let was_missing = used.missing != 0;
        let old = match content {
            Content::Written(new) => {
                let old = used.bits[mine.clone()].to_vec();
                used.bits[mine.clone()].copy_from_slice(&new[..mine.len()]);
                used.missing &= !(1 << part);
                old
            }
            // It reads as zeros, and who discards it may have something else in mind.
            Content::Gone | Content::Unsure => {
                used.bits[mine].fill(0xff);
                used.missing |= 1 << part;
                self.lose_used(group);
                return;
            }
        };
        if self.wanted.freed {
            // Of one of which the last part has come all is news.
            let since = Some((mine, &old[..])).filter(|_| !was_missing);
            self.find_freed(group, since);
            // The kernel writes the last of them behind the superblock that says that it was unmounted.
            let no_replay = !self.sb.has(Feature::HAS_JOURNAL) || self.is_clean();
            if no_replay || mutant!("ext4.replay-is-trusted") {
                self.found.push(Found::Settled);
            }
        }
    }

    /// Sectors of a group whose blocks are free; with `since` those of which one was not, by these bytes,
    /// and before them those of which one is used.
    fn find_freed(&mut self, group: u32, since: Option<(Range<usize>, &[u8])>) {
        let known = &self.groups[group as usize];
        let Some(used) = known.used.as_ref().filter(|used| used.missing == 0) else { return };
        // Its bitmap isn't on the medium: what lies there is anything.
        if since.is_none() && known.group.as_ref().is_none_or(|group| group.blocks_uninit) {
            return;
        }
        let blocks = self.sb.group_blocks(group);
        let size = u64::from(self.sb.block_bytes);
        let unit = SECTOR as u64;
        let is_free = |block: u64| {
            let bit = block.checked_sub(blocks.start).filter(|_| block < blocks.end);
            bit.is_some_and(|bit| used.bits[(bit / 8) as usize] >> (bit % 8) & 1 == 0)
        };
        let (mut freed, mut taken) = (Vec::new(), Vec::new());
        let (within, old) = since.unwrap_or((0..used.bits.len(), &[]));
        for (i, byte) in within.enumerate() {
            let (old, new) = (old.get(i).copied().unwrap_or(0xff), used.bits[byte]);
            if old == new {
                continue;
            }
            for bit in (0..8).filter(|bit| (old ^ new) >> bit & 1 == 1) {
                let block = blocks.start + byte as u64 * 8 + bit;
                if block >= blocks.end {
                    break;
                }
                // The sector that it is in, or the sectors that it has.
                let (start, end) = (block * size / unit, ((block + 1) * size).div_ceil(unit));
                let shared = start * unit / size..((start + 1) * unit).div_ceil(size);
                if new >> bit & 1 == 1 {
                    taken = joined(taken, start..end);
                } else if size >= unit || shared.into_iter().all(is_free) {
                    freed = joined(freed, start..end);
                }
            }
        }
        let taken = taken.into_iter().map(Found::Taken);
        let taken = taken.filter(|_| !mutant!("ext4.taken-ignored"));
        // Where errors were found a bitmap may be wrong, and one that has metadata free is.
        let errors = self.sb.has_errors && !mutant!("ext4.free-in-spite-of-errors");
        let base = self.sb.base_blocks(group);
        let base = base.start * size / unit..(base.end * size).div_ceil(unit);
        let is_metadata = |run: &Range<u64>| {
            let meets_base = run.start < base.end && base.start < run.end;
            meets_base || self.watched(run.clone()).next().is_some()
        };
        let freed = freed.into_iter().filter(|run| !errors && !is_metadata(run));
        let found: Vec<Found> = taken.chain(freed.map(Found::Freed)).collect();
        self.found.extend(found);
    }

    /// Errors were found, or the file system is another one: nothing that was found counts any more.
    pub(super) fn lose_found(&mut self) {
        let sectors = self.sb.bytes().div_ceil(SECTOR as u64);
        self.found.push(Found::Taken(0..sectors));
    }

    /// The journal lies somewhere else, or nowhere.
    pub(super) fn lose_log(&mut self) {
        let Some(log) = self.log.take() else { return };
        self.moved = true;
        let size = u64::from(self.sb.block_bytes);
        let unit = SECTOR as u64;
        let runs = log.extents.iter().map(|extent| {
            let end = (extent.first + u64::from(extent.blocks)) * size;
            Found::Taken(extent.first * size / unit..end.div_ceil(unit))
        });
        self.found.extend(runs);
    }

    /// Nothing is known of the blocks of a group any more.
    pub(super) fn lose_used(&mut self, group: u32) {
        let blocks = self.sb.group_blocks(group);
        let at = |block: u64| block * u64::from(self.sb.block_bytes);
        let end = at(blocks.end).div_ceil(SECTOR as u64);
        if self.wanted.freed {
            self.found.push(Found::Taken(at(blocks.start) / SECTOR as u64..end));
        }
    }

    /// An inode of a table was written, maybe that of the journal. True if it lies elsewhere now.
    pub(super) fn journal_inode_is(&mut self, group: u32, piece: u32, bytes: &[u8]) -> bool {
        let sb = &self.sb;
        let number = sb.journal_inode;
        let has = sb.has(Feature::HAS_JOURNAL) && (1..=sb.inodes).contains(&number);
        if !has || (number - 1) / sb.inodes_per_group != group {
            return false;
        }
        let at = (number - 1) % sb.inodes_per_group * sb.inode_bytes;
        if at / self.piece_bytes != piece {
            return false;
        }
        let within = (at % self.piece_bytes) as usize;
        let inode = &bytes[within..within + sb.inode_bytes as usize];
        // A tree with blocks of its own is not read: such a journal is in many pieces.
        let found = is_inode_sum(sb, number, inode)
            .then(|| extents(&[] as &[u8], sb, number, inode).ok().flatten())
            .flatten();
        let extents = found.unwrap_or_default();
        if self.log.as_ref().is_some_and(|log| log.extents == extents) {
            return false;
        }
        self.lose_log();
        self.log = Some(Log { extents, head: None }).filter(|log| log.superblock().is_some());
        true
    }

    /// The journal's superblock.
    pub(super) fn journal_is(&mut self, content: Content<'_>) {
        let Some(log) = &mut self.log else { return };
        let head = match content {
            Content::Written(bytes) => Head::parse(bytes, &self.sb),
            _ => None,
        };
        let before = std::mem::replace(&mut log.head, head);
        let Some(head) = head else { return };
        self.find_passed(head, before);
        // One that is empty may be one whose replay has failed: the superblock will say.
        if head.start != 0 || mutant!("ext4.empty-log-settles") {
            self.found.push(Found::Settled);
        }
    }

    fn find_passed(&mut self, head: Head, before: Option<Head>) {
        let wants = self.wanted.journal && self.sb.has(Feature::HAS_JOURNAL);
        let Some(log) = self.log.as_ref().filter(|_| wants) else { return };
        let size = u64::from(self.sb.block_bytes);
        let unit = SECTOR as u64;
        let blocks = head.passed(before).into_iter().flat_map(|run| log.at(run));
        // Whole sectors only.
        let sectors = blocks.map(|run| (run.start * size).div_ceil(unit)..run.end * size / unit);
        let sectors: Vec<_> = sectors.filter(|run| run.start < run.end).collect();
        self.found.extend(sectors.into_iter().map(Found::Passed));
    }

    /// A sector was written, maybe one of bitmaps.
    pub(super) fn bitmaps_are(&mut self, sector: u64, content: Content<'_>) {
        let size = u64::from(self.sb.block_bytes);
        let blocks = sector * SECTOR as u64 / size..((sector + 1) * SECTOR as u64).div_ceil(size);
        let is_bitmap = |place: Place| matches!(place.what, What::Bitmap(_) | What::Blocks(_));
        if !blocks.into_iter().any(|block| self.find(block).is_some_and(is_bitmap)) {
            return;
        }
        let Content::Written(bytes) = content else {
            self.zeros.remove(&sector);
            return;
        };
        if bytes.iter().any(|byte| *byte != 0) && !mutant!("ext4.any-bitmap-is-zeros") {
            self.zeros.remove(&sector);
            return;
        }
        self.zeros.insert(sector);
        if self.wanted.bitmaps {
            self.found.push(Found::ZeroBitmap(sector));
        }
    }
}
