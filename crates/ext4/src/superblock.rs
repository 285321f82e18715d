//! The superblock: sizes, features, and where the descriptors of the groups are.
//!
//! Owns: what is believed of it. Promises: what is returned is consistent in itself and fits the volume:
//! sizes are powers of two where they must be, counts agree, sums stay within 64 bits. Never: looks at a
//! backup: who has lost the first one runs `e2fsck`.
//!
//! Offsets and flags: Documentation/filesystems/ext4/super.rst of Linux.

use crate::bytes::{halves, le16, le32};
use crate::{Ext4Error, Volume};
use flashlane_base::crc32c_append;
use std::fmt;
use std::ops::Range;

/// Where it is, and how long.
const AT: u64 = 1024;
const BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;
/// The checksum, at its end.
const CHECKSUM_AT: usize = 0x3fc;

/// A bit of one of the three words of features that changes where things are, or who may change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    Compat(u32),
    Incompat(u32),
    RoCompat(u32),
}

impl Feature {
    pub const HAS_JOURNAL: Feature = Feature::Compat(0x4);
    pub const SPARSE_SUPER2: Feature = Feature::Compat(0x200);
    /// The journal holds what was not written to its place yet.
    pub const RECOVER: Feature = Feature::Incompat(0x4);
    /// Inode 7 has the blocks into which the descriptors may grow.
    pub const RESIZE_INODE: Feature = Feature::Compat(0x10);
    pub const META_BG: Feature = Feature::Incompat(0x10);
    pub const WIDE: Feature = Feature::Incompat(0x80);
    /// A block of its own says which host has it mounted.
    pub const MMP: Feature = Feature::Incompat(0x100);
    pub const CSUM_SEED: Feature = Feature::Incompat(0x2000);
    pub const SPARSE_SUPER: Feature = Feature::RoCompat(0x1);
    pub const GDT_CSUM: Feature = Feature::RoCompat(0x10);
    pub const BIGALLOC: Feature = Feature::RoCompat(0x200);
    pub const METADATA_CSUM: Feature = Feature::RoCompat(0x400);

    /// Those that change nothing of where inodes are: filetype, recover, meta_bg, extent, 64bit, mmp,
    /// flex_bg, ea_inode, csum_seed, large_dir, inline_data, encrypt, casefold. Not compression, a
    /// journal's own device, dirdata.
    const INCOMPAT_KNOWN: u32 = 0x3_e7d6;
    /// sparse_super, large_file, btree_dir, huge_file, gdt_csum, dir_nlink, extra_isize, quota, bigalloc,
    /// metadata_csum, read-only, project, verity, orphan_present. Not snapshots, replicas, blocks that
    /// files share.
    const RO_COMPAT_KNOWN: u32 = 0x1_b77f;
}

impl fmt::Display for Feature {
    /// As `dumpe2fs` calls what has a name there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Feature::Incompat(0x1) => "compression",
            Feature::Incompat(0x4) => "needs_recovery",
            Feature::Incompat(0x8) => "journal_dev",
            Feature::Incompat(0x1000) => "dirdata",
            Feature::RoCompat(0x80) => "has_snapshot",
            Feature::RoCompat(0x800) => "replica",
            Feature::RoCompat(0x4000) => "shared_blocks",
            Feature::Compat(bit) => return write!(f, "FEATURE_C{}", bit.trailing_zeros()),
            Feature::Incompat(bit) => return write!(f, "FEATURE_I{}", bit.trailing_zeros()),
            Feature::RoCompat(bit) => return write!(f, "FEATURE_R{}", bit.trailing_zeros()),
        };
        f.write_str(name)
    }
}

/// What of the superblock says where inodes are, and whether anybody else is at them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes of a block: 1 to 64 KiB.
    pub block_bytes: u32,
    pub blocks: u64,
    pub first_data_block: u32,
    pub blocks_per_group: u32,
    /// Blocks of a cluster, for which the bitmap of blocks has a bit; 1 without `bigalloc`.
    pub cluster_blocks: u32,
    pub groups: u32,
    /// Inodes begin with 1.
    pub inodes: u32,
    pub inodes_per_group: u32,
    /// The first one that is not reserved.
    pub first_inode: u32,
    pub inode_bytes: u32,
    /// Bytes of a group's descriptor.
    pub descriptor_bytes: u32,
    pub uuid: [u8; 16],
    /// Without what stands behind a zero.
    pub label: String,
    /// It was unmounted; who mounts it without a journal takes this back.
    pub is_clean: bool,
    /// The kernel found an error, or orphans are being removed.
    pub has_errors: bool,
    /// Of all checksums of metadata.
    pub seed: u32,
    /// The journal's; 0 where it is on another device.
    pub journal_inode: u32,
    /// The block of multiple mount protection; 0 where there is none.
    pub(crate) mmp_block: u64,
    /// Blocks behind the descriptors, into which they may grow.
    reserved_descriptor_blocks: u32,
    features: [u32; 3],
    first_meta_group: u32,
    backup_groups: [u32; 2],
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Ext4Error> {
    Err(Ext4Error::Superblock(why.into()))
}

/// As the kernel's `crc32c` of a seed and bytes, which inverts nothing.
pub(crate) fn crc32c_of(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c_append(!seed, bytes)
}

impl Superblock {
    /// Reads the first superblock.
    ///
    /// # Errors
    /// There is none, or what it says can't be.
    pub fn read<V: Volume + ?Sized>(volume: &V) -> Result<Superblock, Ext4Error> {
        if volume.bytes() < AT + BYTES as u64 {
            return Err(Ext4Error::None("the volume is shorter than a superblock"));
        }
        let mut bytes = [0; BYTES];
        volume.read_at(AT, &mut bytes).map_err(|source| Ext4Error::Read { at: AT, source })?;
        Superblock::parse(&bytes, volume.bytes())
    }

    /// From the 1,024 bytes of a superblock, of a volume of so many bytes.
    ///
    /// # Errors
    /// As of [`Superblock::read`].
    pub fn parse(bytes: &[u8; BYTES], volume_bytes: u64) -> Result<Superblock, Ext4Error> {
        if le16(bytes, 0x38) != MAGIC {
            return Err(Ext4Error::None("byte 1080 has no magic number of ext4"));
        }
        let features = [le32(bytes, 0x5c), le32(bytes, 0x60), le32(bytes, 0x64)];
        let has = |feature| has(features, feature);
        if has(Feature::METADATA_CSUM) {
            let sum = crc32c_of(!0, &bytes[..CHECKSUM_AT]);
            if sum != le32(bytes, CHECKSUM_AT) {
                return Err(Ext4Error::Checksum);
            }
        }
        let unknown = [
            (features[1] & !Feature::INCOMPAT_KNOWN, Feature::Incompat as fn(u32) -> Feature),
            (features[2] & !Feature::RO_COMPAT_KNOWN, Feature::RoCompat),
        ];
        if let Some((bits, of)) = unknown.into_iter().find(|(bits, _)| *bits != 0) {
            return Err(Ext4Error::Feature(of(1 << bits.trailing_zeros())));
        }
        let log_block = le32(bytes, 0x18);
        if log_block > 6 {
            return refuse(format!("blocks of 2^{log_block} KiB"));
        }
        let block_bytes = 1024 << log_block;
        let wide = has(Feature::WIDE);
        let blocks = if wide { halves(bytes, 0x4, 0x150) } else { le32(bytes, 0x4).into() };
        let fits = blocks.checked_mul(block_bytes.into()).is_some_and(|all| all <= volume_bytes);
        if blocks == 0 || !fits {
            return refuse(format!(
                "{blocks} blocks of {block_bytes} bytes on a volume of {volume_bytes} bytes"
            ));
        }
        let first_data_block = le32(bytes, 0x14);
        let blocks_per_group = le32(bytes, 0x20);
        if u64::from(first_data_block) >= blocks || first_data_block > 1 {
            return refuse(format!("its first data block is {first_data_block}"));
        }
        let log_cluster = if has(Feature::BIGALLOC) { le32(bytes, 0x1c) } else { log_block };
        // Up to 2^20 KiB, as in the kernel.
        if !(log_block..=20).contains(&log_cluster) {
            return refuse(format!("clusters of 2^{log_cluster} KiB"));
        }
        let cluster_blocks = 1 << (log_cluster - log_block);
        // A group has one block of bitmap for its clusters.
        let most = u64::from(block_bytes) * 8 * u64::from(cluster_blocks);
        if blocks_per_group < 8
            || u64::from(blocks_per_group) > most
            || !blocks_per_group.is_multiple_of(cluster_blocks)
        {
            return refuse(format!("{blocks_per_group} blocks per group"));
        }
        let old = le32(bytes, 0x4c) == 0;
        let (first_inode, inode_bytes) = match old {
            true => (11, 128),
            false => (le32(bytes, 0x54), u32::from(le16(bytes, 0x58))),
        };
        if inode_bytes < 128 || !inode_bytes.is_power_of_two() || inode_bytes > block_bytes {
            return refuse(format!("inodes of {inode_bytes} bytes"));
        }
        let groups = (blocks - u64::from(first_data_block)).div_ceil(blocks_per_group.into());
        let (inodes, inodes_per_group) = (le32(bytes, 0x0), le32(bytes, 0x28));
        let in_block = block_bytes / inode_bytes;
        let bad = inodes_per_group == 0
            || inodes_per_group > block_bytes * 8
            || !inodes_per_group.is_multiple_of(in_block);
        if bad || groups.checked_mul(inodes_per_group.into()) != Some(inodes.into()) {
            return refuse(format!("{inodes} inodes in {groups} groups of {inodes_per_group}"));
        }
        if first_inode < 11 || first_inode > inodes_per_group {
            return refuse(format!("its first inode is {first_inode}"));
        }
        let descriptor_bytes = match (wide, u32::from(le16(bytes, 0xfe))) {
            (false, _) => 32,
            (true, size) if (64..=1024).contains(&size) && size.is_power_of_two() => size,
            (true, size) => return refuse(format!("descriptors of {size} bytes")),
        };
        let uuid: [u8; 16] = bytes[0x68..0x78].try_into().unwrap_or_default();
        let seed = match has(Feature::CSUM_SEED) {
            true => le32(bytes, 0x270),
            false => crc32c_of(!0, &uuid),
        };
        let label = bytes[0x78..0x88].split(|byte| *byte == 0).next().unwrap_or_default();
        let state = le16(bytes, 0x3a);
        Ok(Superblock {
            block_bytes,
            blocks,
            first_data_block,
            blocks_per_group,
            cluster_blocks,
            // As many as inodes are in 32 bits, or less.
            groups: groups as u32,
            inodes,
            inodes_per_group,
            first_inode,
            inode_bytes,
            descriptor_bytes,
            uuid,
            label: String::from_utf8_lossy(label).into_owned(),
            is_clean: state & 1 != 0,
            has_errors: state & 6 != 0,
            seed,
            journal_inode: le32(bytes, 0xe0),
            mmp_block: if has(Feature::MMP) { halves(bytes, 0x168, 0x16c) } else { 0 },
            reserved_descriptor_blocks: le16(bytes, 0xce).into(),
            features,
            first_meta_group: le32(bytes, 0x104),
            backup_groups: [le32(bytes, 0x24c), le32(bytes, 0x250)],
        })
    }

    /// Bytes of the whole file system.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }

    /// It is the same file system, with everything in the same place: what else it says may change while it
    /// is mounted.
    pub fn is_like(&self, other: &Superblock) -> bool {
        const PLACES: [Feature; 6] = [
            Feature::META_BG,
            Feature::WIDE,
            Feature::SPARSE_SUPER,
            Feature::SPARSE_SUPER2,
            Feature::GDT_CSUM,
            Feature::METADATA_CSUM,
        ];
        let places = |sb: &Superblock| PLACES.map(|feature| sb.has(feature));
        let still = |sb: &Superblock| Superblock {
            label: String::new(),
            is_clean: false,
            has_errors: false,
            journal_inode: 0,
            features: [0; 3],
            ..sb.clone()
        };
        places(self) == places(other) && still(self) == still(other)
    }

    /// It has one of the features.
    pub fn has(&self, feature: Feature) -> bool {
        has(self.features, feature)
    }

    /// Inodes in a block.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_bytes / self.inode_bytes
    }

    /// Blocks of a group's inode table.
    pub fn table_blocks(&self) -> u32 {
        self.inodes_per_group / self.inodes_per_block()
    }

    fn first_block_of(&self, group: u32) -> u64 {
        u64::from(self.first_data_block) + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Blocks of a group; the last group may be shorter.
    pub(crate) fn group_blocks(&self, group: u32) -> Range<u64> {
        let first = self.first_block_of(group);
        first..self.blocks.min(first + u64::from(self.blocks_per_group))
    }

    /// Blocks with which a group begins: a superblock, descriptors, and those into which these may
    /// grow.
    pub(crate) fn base_blocks(&self, group: u32) -> Range<u64> {
        let Range { start, end } = self.group_blocks(group);
        let per_block = self.block_bytes / self.descriptor_bytes;
        let has_superblock = self.has_superblock(group);
        let is_meta = self.has(Feature::META_BG);
        let descriptors = match (is_meta && group / per_block >= self.first_meta_group, is_meta) {
            // One block of them is in the first, the second and the last group of those it is for.
            (true, _) => u32::from([0, 1, per_block - 1].contains(&(group % per_block))).into(),
            _ if !has_superblock => 0,
            (false, true) => u64::from(self.first_meta_group),
            (false, false) => {
                let table = self.groups.div_ceil(per_block);
                u64::from(table) + u64::from(self.reserved_descriptor_blocks)
            }
        };
        // See `descriptor_at`.
        let before = group == 0 && self.block_bytes == 1024 && self.first_data_block == 0;
        let blocks = u64::from(before) + u64::from(has_superblock) + descriptors;
        start..end.min(start + blocks)
    }

    /// A group begins with a superblock (or its backup), and with the descriptors behind it.
    fn has_superblock(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.has(Feature::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        let power_of = |base: u32| {
            let mut left = group;
            while left.is_multiple_of(base) {
                left /= base;
            }
            left == 1
        };
        !self.has(Feature::SPARSE_SUPER) || group == 1 || [3, 5, 7].into_iter().any(power_of)
    }

    /// Byte at which a group's descriptor begins (Documentation/filesystems/ext4/blockgroup.rst).
    pub(crate) fn descriptor_at(&self, group: u32) -> u64 {
        let per_block = self.block_bytes / self.descriptor_bytes;
        let (table, within) = (group / per_block, group % per_block);
        // With blocks of 1 KiB the superblock is block 1, also where data may begin with block 0.
        let before = u64::from(self.block_bytes == 1024 && self.first_data_block == 0);
        let block = match self.has(Feature::META_BG) && table >= self.first_meta_group {
            false => u64::from(self.first_data_block) + before + 1 + u64::from(table),
            true => {
                let first = table * per_block;
                let before = if first == 0 { before } else { 0 };
                self.first_block_of(first) + u64::from(self.has_superblock(first)) + before
            }
        };
        block * u64::from(self.block_bytes) + u64::from(within * self.descriptor_bytes)
    }
}

fn has(features: [u32; 3], feature: Feature) -> bool {
    let (word, bit) = match feature {
        Feature::Compat(bit) => (0, bit),
        Feature::Incompat(bit) => (1, bit),
        Feature::RoCompat(bit) => (2, bit),
    };
    features[word] & bit != 0
}
