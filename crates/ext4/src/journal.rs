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
use crate::{Doubt, Ext4Error, Feature, Group, Superblock, Volume};
use flashlane_base::mutant;

const MAGIC: u32 = 0xc03b_3998;
/// Types of a superblock, of which the second one has features.
const SUPERBLOCKS: [u32; 2] = [3, 4];

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
        let word = |at: usize| le32(&head, at).swap_bytes();
        let good =
            word(0x0) == MAGIC && SUPERBLOCKS.contains(&word(0x4)) && word(0xc) == sb.block_bytes;
        let is_empty = word(0x1c) == 0 || mutant!("ext4.full-journal-is-empty");
        Ok(good.then_some(Journal { extents, is_empty }))
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
