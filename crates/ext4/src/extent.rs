//! Where the blocks of an inode lie.
//!
//! Owns: extent trees and the older maps of blocks. Promises: what is returned lies within the file
//! system, ascends, and has an end, whatever the bytes say. Never: reads what is in the blocks.
//!
//! Documentation/filesystems/ext4/ifork.rst of Linux.

use crate::bytes::{le16, le32};
use crate::superblock::crc32c_of;
use crate::{Ext4Error, Feature, Superblock, Volume};

const MAGIC: u16 = 0xf30a;
/// Levels of a tree at most, as in the kernel.
const DEPTH_MAX: u16 = 5;
/// Pieces of one file at most: whoever asks has a file that was laid out at once.
const EXTENTS_MAX: usize = 1 << 16;
/// An extent that is longer than this is one that was never written, of the length above it.
const WRITTEN_MAX: u16 = 1 << 15;

/// Blocks of a file that follow each other in it and on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Block of the file.
    pub logical: u32,
    /// Block of the file system.
    pub first: u64,
    pub blocks: u32,
}

/// Collects them in order.
struct Walk<'a, V: ?Sized> {
    volume: &'a V,
    sb: &'a Superblock,
    /// Of the inode's checksums, where there are any.
    seed: Option<u32>,
    /// Blocks of the file that are behind us.
    done: u64,
    extents: Vec<Extent>,
}

/// Where the blocks of the inode with this number and these bytes lie. `None` if that can't be.
///
/// # Errors
/// A block of the tree can't be read.
pub(crate) fn extents<V: Volume + ?Sized>(
    volume: &V,
    sb: &Superblock,
    number: u32,
    inode: &[u8],
) -> Result<Option<Vec<Extent>>, Ext4Error> {
    let seed = sb.has(Feature::METADATA_CSUM).then(|| inode_seed(sb, number, inode));
    let mut walk = Walk { volume, sb, seed, done: 0, extents: Vec::new() };
    let map = inode.get(0x28..0x64).unwrap_or_default();
    const EXTENTS: u32 = 0x8_0000;
    let fits = match le32(inode, 0x20) & EXTENTS != 0 {
        true => walk.node(map, None)?,
        false => walk.map(map)?,
    };
    Ok(fits.then_some(walk.extents))
}

/// What an inode's checksum, and those of its blocks, begin with.
fn inode_seed(sb: &Superblock, number: u32, inode: &[u8]) -> u32 {
    let seed = crc32c_of(sb.seed, &number.to_le_bytes());
    crc32c_of(seed, &le32(inode, 0x64).to_le_bytes())
}

/// The inode has the checksum of its bytes, or there are no checksums.
pub(crate) fn is_inode_sum(sb: &Superblock, number: u32, inode: &[u8]) -> bool {
    if !sb.has(Feature::METADATA_CSUM) {
        return true;
    }
    let (low, high) = (0x7c..0x7e, 0x82..0x84);
    let has_high = inode.len() > 128 && le16(inode, 0x80) >= 4;
    let mut bytes = inode.to_vec();
    bytes[low.clone()].fill(0);
    if has_high {
        bytes[high.clone()].fill(0);
    }
    let kept = u32::from(le16(inode, low.start));
    let kept = if has_high { kept | u32::from(le16(inode, high.start)) << 16 } else { kept };
    let sum = crc32c_of(inode_seed(sb, number, inode), &bytes);
    (sum ^ kept) & if has_high { !0 } else { 0xffff } == 0
}

impl<V: Volume + ?Sized> Walk<'_, V> {
    /// False where the file doesn't go on so.
    fn take(&mut self, logical: u32, first: u64, blocks: u32) -> bool {
        let end = first.checked_add(blocks.into());
        let within = first > u64::from(self.sb.first_data_block);
        if !within || blocks == 0 || end.is_none_or(|end| end > self.sb.blocks) {
            return false;
        }
        if u64::from(logical) < self.done || self.extents.len() == EXTENTS_MAX {
            return false;
        }
        self.done = u64::from(logical) + u64::from(blocks);
        match self.extents.last_mut() {
            Some(last)
                if last.first + u64::from(last.blocks) == first
                    && u64::from(last.logical) + u64::from(last.blocks) == u64::from(logical)
                    && last.blocks.checked_add(blocks).is_some() =>
            {
                last.blocks += blocks;
            }
            _ => self.extents.push(Extent { logical, first, blocks }),
        }
        true
    }

    fn read(&self, block: u64) -> Result<Option<Vec<u8>>, Ext4Error> {
        if block <= u64::from(self.sb.first_data_block) || block >= self.sb.blocks {
            return Ok(None);
        }
        let at = block * u64::from(self.sb.block_bytes);
        let mut bytes = vec![0; self.sb.block_bytes as usize];
        self.volume.read_at(at, &mut bytes).map_err(|source| Ext4Error::Read { at, source })?;
        Ok(Some(bytes))
    }

    /// A node of a tree; below the root each is of one level less, and has something in it. So no tree is
    /// larger than what comes out of it.
    fn node(&mut self, bytes: &[u8], level: Option<u16>) -> Result<bool, Ext4Error> {
        let (entries, max, depth) = (le16(bytes, 2), le16(bytes, 4), le16(bytes, 6));
        let room = (bytes.len() / 12).saturating_sub(1);
        let is_node = le16(bytes, 0) == MAGIC
            && entries <= max
            && usize::from(max) <= room
            && level.map_or(depth <= DEPTH_MAX, |level| depth == level && entries > 0);
        if !is_node {
            return Ok(false);
        }
        let tail = 12 + 12 * usize::from(max);
        if let (Some(seed), Some(_)) = (self.seed, level)
            && crc32c_of(seed, &bytes[..tail]) != le32(bytes, tail)
        {
            return Ok(false);
        }
        for entry in bytes[12..].chunks_exact(12).take(entries.into()) {
            let logical = le32(entry, 0);
            let good = if depth == 0 {
                let blocks = le16(entry, 4);
                let blocks = if blocks > WRITTEN_MAX { blocks - WRITTEN_MAX } else { blocks };
                let first = u64::from(le32(entry, 8)) | u64::from(le16(entry, 6)) << 32;
                self.take(logical, first, blocks.into())
            } else {
                let child = u64::from(le32(entry, 4)) | u64::from(le16(entry, 8)) << 32;
                let ascends = u64::from(logical) >= self.done;
                match self.read(child)?.filter(|_| ascends) {
                    Some(bytes) => self.node(&bytes, Some(depth - 1))?,
                    None => false,
                }
            };
            if !good {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The older map: twelve blocks, then three trees of blocks of numbers.
    fn map(&mut self, bytes: &[u8]) -> Result<bool, Ext4Error> {
        let mut logical = 0;
        for (slot, entry) in bytes.chunks_exact(4).enumerate() {
            let level = slot.saturating_sub(11) as u32;
            if !self.branch(le32(entry, 0), level, &mut logical)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What a number of a map stands for, of a block or of a tree of so many levels.
    fn branch(&mut self, block: u32, level: u32, logical: &mut u64) -> Result<bool, Ext4Error> {
        let per_block = u64::from(self.sb.block_bytes / 4);
        if block == 0 {
            *logical += per_block.pow(level);
            return Ok(true);
        }
        if level == 0 {
            let here = u32::try_from(*logical);
            *logical += 1;
            return Ok(here.is_ok_and(|here| self.take(here, block.into(), 1)));
        }
        let Some(bytes) = self.read(block.into())? else { return Ok(false) };
        let taken = self.done;
        for entry in bytes.chunks_exact(4) {
            if !self.branch(le32(entry, 0), level - 1, logical)? {
                return Ok(false);
            }
        }
        // One with nothing in it is none that anybody made.
        Ok(self.done > taken)
    }
}
