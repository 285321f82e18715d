//! The journal inside a file system: where it lies, and whether anything in it still matters.
//!
//! Owns: what is believed of its superblock. Promises: it is empty only if its own superblock says so, and
//! the inode and the tree that lead to it have their checksums. Never: replays it.
//!
//! Why the blocks of an empty journal may be discarded: who mounts it finds `s_start` zero, reads nothing
//! else of it and begins to write at its first block (`jbd2_journal_recover`, `journal_reset`). A recovery
//! later on ends where a block has no magic number, and a block of zeros has none.
//!
//! Documentation/filesystems/ext4/journal.rst of Linux; its numbers are big-endian.

use crate::bytes::le32;
use crate::extent::{Extent, extents, is_inode_sum};
use crate::superblock::crc32c_of;
use crate::{Doubt, Ext4Error, Feature, Group, Superblock, Volume};
use flashlane_base::mutant;
use std::ops::Range;

const MAGIC: u32 = 0xc03b_3998;
/// Types of a superblock, of which the second one has features.
const SUPERBLOCKS: [u32; 2] = [3, 4];

/// What a journal's superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Block of the journal with which recovery begins; 0 where there is nothing to recover.
    pub(crate) start: u32,
    /// Blocks of the journal that the log goes round in.
    first: u32,
    last: u32,
    blocks: u32,
}

impl Head {
    /// From what the first block of a journal begins with.
    pub(crate) fn parse(bytes: &[u8], sb: &Superblock) -> Option<Head> {
        const SUMS: u32 = 0x8 | 0x10;
        const FAST_COMMIT: u32 = 0x20;
        const FAST_BLOCKS: u32 = 256;
        let head = bytes.get(..1024)?;
        let word = |at: usize| le32(head, at).swap_bytes();
        let known =
            word(0x0) == MAGIC && SUPERBLOCKS.contains(&word(0x4)) && word(0xc) == sb.block_bytes;
        let features = if word(0x4) == SUPERBLOCKS[1] { word(0x28) } else { 0 };
        let good = features & SUMS == 0 || {
            let sum = crc32c_of(crc32c_of(!0, &head[..0xfc]), &[0; 4]);
            crc32c_of(sum, &head[0x100..]) == word(0xfc)
        };
        let (blocks, first, start) = (word(0x10), word(0x14), word(0x1c));
        let fast = match (features & FAST_COMMIT != 0, word(0x54)) {
            (false, _) => 0,
            (true, 0) => FAST_BLOCKS,
            (true, n) => n,
        };
        let last = blocks.checked_sub(fast)?;
        let fits = first > 0 && first < last && (start == 0 || (first..last).contains(&start));
        (known && good && fits).then_some(Head { start, first, last, blocks })
    }

    /// Blocks of the journal that nobody needs since it says so, where it said `before` what it said last.
    pub(crate) fn passed(&self, before: Option<Head>) -> Vec<Range<u32>> {
        let same =
            |old: &Head| (old.first, old.last, old.blocks) == (self.first, self.last, self.blocks);
        match before.filter(same) {
            _ if self.start == 0 => std::iter::once(1..self.blocks).collect(),
            _ if mutant!("ext4.log-tail-ignored") => {
                std::iter::once(self.first..self.last).collect()
            }
            Some(old) if old.start == 0 => Vec::new(),
            Some(old) if old.start <= self.start => {
                std::iter::once(old.start..self.start).collect()
            }
            Some(old) => vec![old.start..self.last, self.first..self.start],
            None => Vec::new(),
        }
    }
}

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Blocks of its file; the first one is its superblock.
    pub extents: Vec<Extent>,
    /// There is nothing in it to be replayed.
    pub is_empty: bool,
}

impl Journal {
    /// The journal of a file system that has one of its own; a doubt if it can't be right.
    ///
    /// # Errors
    /// Something on the way to it can't be read.
    pub fn read<V: Volume + ?Sized>(
        volume: &V,
        sb: &Superblock,
    ) -> Result<Option<Result<Journal, Doubt>>, Ext4Error> {
        if !sb.has(Feature::HAS_JOURNAL) || sb.journal_inode == 0 {
            return Ok(None);
        }
        Ok(Some(Journal::found(volume, sb)?.ok_or(Doubt::Journal)))
    }

    fn found<V: Volume + ?Sized>(
        volume: &V,
        sb: &Superblock,
    ) -> Result<Option<Journal>, Ext4Error> {
        let number = sb.journal_inode;
        if number > sb.inodes {
            return Ok(None);
        }
        let (group, within) =
            ((number - 1) / sb.inodes_per_group, (number - 1) % sb.inodes_per_group);
        let Ok(group) = Group::read(volume, sb, group)? else { return Ok(None) };
        let at = group.inode_table * u64::from(sb.block_bytes)
            + u64::from(within) * u64::from(sb.inode_bytes);
        let mut inode = vec![0; sb.inode_bytes as usize];
        volume.read_at(at, &mut inode).map_err(|source| Ext4Error::Read { at, source })?;
        if !is_inode_sum(sb, number, &inode) {
            return Ok(None);
        }
        let Some(extents) = extents(volume, sb, number, &inode)? else { return Ok(None) };
        let Some(first) = extents.first().filter(|first| first.logical == 0) else {
            return Ok(None);
        };
        let at = first.first * u64::from(sb.block_bytes);
        let mut head = vec![0; 1024];
        volume.read_at(at, &mut head).map_err(|source| Ext4Error::Read { at, source })?;
        let head = Head::parse(&head, sb);
        let is_empty = |head: Head| head.start == 0 || mutant!("ext4.full-journal-is-empty");
        Ok(head.map(|head| Journal { extents, is_empty: is_empty(head) }))
    }

    /// Its blocks but the first one.
    pub fn log(&self) -> impl Iterator<Item = Extent> + '_ {
        self.extents.iter().filter_map(|extent| {
            let skip = u32::from(extent.logical == 0 && !mutant!("ext4.journal-superblock-is-log"));
            let left = extent.blocks - skip;
            (left > 0).then_some(Extent {
                logical: extent.logical + skip,
                first: extent.first + u64::from(skip),
                blocks: left,
            })
        })
    }
}
