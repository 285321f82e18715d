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

/// Who is told of an inode's blocks, in the order of its file.
pub(crate) trait Visit {
    /// Blocks of the file. False where that can't be, which ends the walk.
    fn blocks(&mut self, extent: Extent) -> bool;
    /// A block of the tree, before what it leads to. False as above.
    fn tree(&mut self, block: u64) -> bool;
    /// A block of the tree can't be read.
    ///
    /// # Errors
    /// The walk ends. Otherwise it goes on behind what that block leads to.
    fn unread(&mut self, why: Ext4Error) -> Result<(), Ext4Error>;
}

/// Keeps them, where a file was laid out at once.
impl Visit for Vec<Extent> {
    fn blocks(&mut self, extent: Extent) -> bool {
        let is_full = self.len() == EXTENTS_MAX;
        match self.last_mut() {
            Some(last)
                if last.first + u64::from(last.blocks) == extent.first
                    && u64::from(last.logical) + u64::from(last.blocks)
                        == u64::from(extent.logical)
                    && last.blocks.checked_add(extent.blocks).is_some() =>
            {
                last.blocks += extent.blocks;
            }
            _ if is_full => return false,
            _ => self.push(extent),
        }
        true
    }

    fn tree(&mut self, _block: u64) -> bool {
        true
    }

    fn unread(&mut self, why: Ext4Error) -> Result<(), Ext4Error> {
        Err(why)
    }
}

/// Goes through them in order.
struct Walk<'a, V: ?Sized, S> {
    volume: &'a V,
    sb: &'a Superblock,
    /// Of the inode's checksums, where there are any.
    seed: Option<u32>,
    /// Blocks of the file that are behind us.
    done: u64,
    /// Blocks of the tree that could not be read.
    unread: u64,
    visit: &'a mut S,
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
    let mut extents = Vec::new();
    let fits = walk(volume, sb, number, inode, &mut extents)?;
    Ok(fits.then_some(extents))
}

/// The inode's blocks lie in an extent tree.
pub(crate) fn has_extents(inode: &[u8]) -> bool {
    const EXTENTS: u32 = 0x8_0000;
    le32(inode, 0x20) & EXTENTS != 0
}

/// Tells of the blocks of the inode with this number and these bytes. False if what was not told of yet
/// can't be right.
///
/// # Errors
/// Those that `visit` makes of a block of the tree that can't be read.
pub(crate) fn walk<V: Volume + ?Sized, S: Visit>(
    volume: &V,
    sb: &Superblock,
    number: u32,
    inode: &[u8],
    visit: &mut S,
) -> Result<bool, Ext4Error> {
    let seed = sb.has(Feature::METADATA_CSUM).then(|| inode_seed(sb, number, inode));
    let mut walk = Walk { volume, sb, seed, done: 0, unread: 0, visit };
    let map = inode.get(0x28..0x64).unwrap_or_default();
    match has_extents(inode) {
        true => walk.node(map, None),
        false => walk.map(map),
    }
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

/// A block of a tree.
enum Node {
    Read(Vec<u8>),
    Unread,
    /// There is no such block.
    None,
}

impl<V: Volume + ?Sized, S: Visit> Walk<'_, V, S> {
    /// False where the file doesn't go on so.
    fn take(&mut self, logical: u32, first: u64, blocks: u32) -> bool {
        let end = first.checked_add(blocks.into());
        let within = first > u64::from(self.sb.first_data_block);
        if !within || blocks == 0 || end.is_none_or(|end| end > self.sb.blocks) {
            return false;
        }
        if u64::from(logical) < self.done {
            return false;
        }
        self.done = u64::from(logical) + u64::from(blocks);
        self.visit.blocks(Extent { logical, first, blocks })
    }

    fn read(&mut self, block: u64) -> Result<Node, Ext4Error> {
        if block <= u64::from(self.sb.first_data_block) || block >= self.sb.blocks {
            return Ok(Node::None);
        }
        let at = block * u64::from(self.sb.block_bytes);
        let mut bytes = vec![0; self.sb.block_bytes as usize];
        if let Err(source) = self.volume.read_at(at, &mut bytes) {
            self.visit.unread(Ext4Error::Read { at, source })?;
            self.unread += 1;
            return Ok(Node::Unread);
        }
        Ok(Node::Read(bytes))
    }

    /// A node of a tree, with its block and level below the root; there each is of one level less,
    /// and has something in it. So no tree is larger than what comes out of it.
    fn node(&mut self, bytes: &[u8], below: Option<(u64, u16)>) -> Result<bool, Ext4Error> {
        let (entries, max, depth) = (le16(bytes, 2), le16(bytes, 4), le16(bytes, 6));
        let room = (bytes.len() / 12).saturating_sub(1);
        let is_node = le16(bytes, 0) == MAGIC
            && entries <= max
            && usize::from(max) <= room
            && below.map_or(depth <= DEPTH_MAX, |(_, level)| depth == level && entries > 0);
        if !is_node {
            return Ok(false);
        }
        if let Some((block, _)) = below {
            let tail = 12 + 12 * usize::from(max);
            let good = self.seed.is_none_or(|s| crc32c_of(s, &bytes[..tail]) == le32(bytes, tail));
            if !good || !self.visit.tree(block) {
                return Ok(false);
            }
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
                match if ascends { self.read(child)? } else { Node::None } {
                    Node::Read(bytes) => self.node(&bytes, Some((child, depth - 1)))?,
                    Node::Unread => true,
                    Node::None => false,
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
        let below = u64::from(self.sb.block_bytes / 4).pow(level);
        if block == 0 {
            *logical += below;
            return Ok(true);
        }
        if level == 0 {
            let here = u32::try_from(*logical);
            *logical += 1;
            return Ok(here.is_ok_and(|here| self.take(here, block.into(), 1)));
        }
        let before = (self.done, self.unread);
        let bytes = match self.read(block.into())? {
            Node::Read(bytes) => bytes,
            Node::Unread => {
                *logical += below;
                return Ok(true);
            }
            Node::None => return Ok(false),
        };
        if !self.visit.tree(block.into()) {
            return Ok(false);
        }
        for entry in bytes.chunks_exact(4) {
            if !self.branch(le32(entry, 0), level - 1, logical)? {
                return Ok(false);
            }
        }
        // One with nothing in it is none that anybody made.
        Ok((self.done, self.unread) != before)
    }
}
