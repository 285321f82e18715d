//! A block group: its descriptor, its bitmaps of inodes and of blocks.
//!
//! Owns: what is believed of them. Promises: what is returned lies within the file system. Never: keeps
//! what it has read.
//!
//! Documentation/filesystems/ext4/group_descr.rst of Linux.

use crate::bytes::{le16, le32};
use crate::superblock::crc32c_of;
use crate::{Doubt, Ext4Error, Feature, Superblock, Volume};
use flashlane_base::mutant;

/// What a group's descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub number: u32,
    /// Block of the bitmap of blocks; `None` where the descriptor's number is outside of the file
    /// system.
    pub block_bitmap: Option<u64>,
    /// No block of the group was ever given to a file; its bitmap of blocks isn't on the medium.
    pub blocks_uninit: bool,
    /// Block of the bitmap of inodes.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
    /// No inode of the group was ever used; its bitmap isn't on the medium.
    pub inodes_uninit: bool,
    /// Inodes at the end of the table that were never used.
    pub unused: u32,
    bitmap_sum: u32,
    block_bitmap_sum: u32,
}

/// CRC-16 (ANSI, reflected), which descriptors had before CRC-32C.
fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    let step = |crc: u16| (crc >> 1) ^ if crc & 1 == 1 { 0xa001 } else { 0 };
    bytes.iter().fold(seed, |crc, byte| (0..8).fold(crc ^ u16::from(*byte), |crc, _| step(crc)))
}

/// A descriptor's checksum, which is none of its own.
const SUM: std::ops::Range<usize> = 0x1e..0x20;

impl Group {
    /// Reads a group's descriptor. A doubt if it can't be right.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read<V: Volume + ?Sized>(
        volume: &V,
        sb: &Superblock,
        number: u32,
    ) -> Result<Result<Group, Doubt>, Ext4Error> {
        let at = sb.descriptor_at(number);
        let mut bytes = vec![0; sb.descriptor_bytes as usize];
        if at.saturating_add(bytes.len() as u64) > sb.blocks * u64::from(sb.block_bytes) {
            return Ok(Err(Doubt::Descriptor));
        }
        volume.read_at(at, &mut bytes).map_err(|source| Ext4Error::Read { at, source })?;
        Ok(Group::parse(&bytes, sb, number).ok_or(Doubt::Descriptor))
    }

    /// From the bytes of a descriptor; `None` if they can't be one.
    pub fn parse(bytes: &[u8], sb: &Superblock, number: u32) -> Option<Group> {
        if bytes.len() < SUM.end {
            return None;
        }
        let wide = sb.has(Feature::WIDE);
        let sums = sb.has(Feature::METADATA_CSUM) || sb.has(Feature::GDT_CSUM);
        let good = !sums || Group::sum(bytes, sb, number) == le16(bytes, SUM.start);
        if !good && !mutant!("ext4.descriptor-sum-unchecked") {
            return None;
        }
        let place = |low: usize, high: usize| {
            let high = if wide { u64::from(le32(bytes, high)) << 32 } else { 0 };
            u64::from(le32(bytes, low)) | high
        };
        let count = |low: usize, high: usize| {
            let high = if wide { u32::from(le16(bytes, high)) << 16 } else { 0 };
            u32::from(le16(bytes, low)) | high
        };
        // Flags and what is unused are said by checksums only.
        let flags = if sums { le16(bytes, 0x12) } else { 0 };
        let fits = |first: u64, blocks: u32| {
            let first_ok = first > u64::from(sb.first_data_block);
            first_ok && first.checked_add(blocks.into()).is_some_and(|end| end <= sb.blocks)
        };
        let group = Group {
            number,
            block_bitmap: Some(place(0x0, 0x20)).filter(|block| fits(*block, 1)),
            blocks_uninit: flags & 2 != 0,
            inode_bitmap: place(0x4, 0x24),
            inode_table: place(0x8, 0x28),
            inodes_uninit: flags & 1 != 0,
            unused: if sums { count(0x1c, 0x32) } else { 0 },
            bitmap_sum: count(0x1a, 0x3a),
            block_bitmap_sum: count(0x18, 0x38),
        };
        let fits = fits(group.inode_bitmap, 1) && fits(group.inode_table, sb.table_blocks());
        (fits && group.unused <= sb.inodes_per_group).then_some(group)
    }

    fn sum(bytes: &[u8], sb: &Superblock, number: u32) -> u16 {
        let number = number.to_le_bytes();
        let (head, tail) = (&bytes[..SUM.start], bytes.get(SUM.end..).unwrap_or_default());
        if sb.has(Feature::METADATA_CSUM) {
            let sum = crc32c_of(crc32c_of(sb.seed, &number), head);
            return crc32c_of(crc32c_of(sum, &[0; 2]), tail) as u16;
        }
        crc16(crc16(crc16(crc16(!0, &sb.uuid), &number), head), tail)
    }

    /// The bits of its inodes, where they are on the medium: bit `i` of byte `i / 8` is the group's inode
    /// `i`. A doubt if they can't be right.
    ///
    /// # Errors
    /// They can't be read.
    pub fn bitmap<V: Volume + ?Sized>(
        &self,
        volume: &V,
        sb: &Superblock,
    ) -> Result<Result<Vec<u8>, Doubt>, Ext4Error> {
        let mut bits = vec![0; sb.inodes_per_group.div_ceil(8) as usize];
        if !self.inodes_uninit {
            let at = self.inode_bitmap * u64::from(sb.block_bytes);
            volume.read_at(at, &mut bits).map_err(|source| Ext4Error::Read { at, source })?;
        }
        Ok(self.believed(bits, sb))
    }

    /// The bits of its inodes by what its bitmap's block begins with; a doubt if they can't be
    /// right.
    pub(crate) fn believed(&self, mut bits: Vec<u8>, sb: &Superblock) -> Result<Vec<u8>, Doubt> {
        bits.resize(sb.inodes_per_group.div_ceil(8) as usize, 0);
        if self.inodes_uninit {
            bits.fill(0);
            return Ok(bits);
        }
        let good = self.is_sum_of(&bits, sb) || mutant!("ext4.bitmap-sum-unchecked");
        good.then_some(bits).ok_or(Doubt::Bitmap)
    }

    /// The descriptor has the checksum of these bits of inodes, or there are no checksums.
    pub fn is_sum_of(&self, bits: &[u8], sb: &Superblock) -> bool {
        is_sum(sb, bits, self.bitmap_sum)
    }

    /// The descriptor has the checksum of these bits of blocks, or there are no checksums. Bits
    /// behind those of the group have no part in it.
    pub fn is_block_sum_of(&self, bits: &[u8], sb: &Superblock) -> bool {
        let bytes = (sb.blocks_per_group / sb.cluster_blocks / 8) as usize;
        is_sum(sb, bits.get(..bytes).unwrap_or(bits), self.block_bitmap_sum)
    }
}

fn is_sum(sb: &Superblock, bits: &[u8], sum: u32) -> bool {
    let kept = if sb.descriptor_bytes >= 64 { !0 } else { 0xffff };
    !sb.has(Feature::METADATA_CSUM) || (crc32c_of(sb.seed, bits) ^ sum) & kept == 0
}
