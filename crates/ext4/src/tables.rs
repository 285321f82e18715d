//! The inode tables of a file system: which of their blocks hold dead inodes only.
//!
//! Owns: when a block is dead. Promises: a block is dead only if its group's descriptor and bitmap are as
//! their checksums say, every bit of its inodes is clear, and every inode in it has no link or was never
//! used; a table is read once, piece by piece. Never: looks into the journal: who
//! asks sees to it that there is nothing in it (see [`Tables::refusal`]).
//!
//! Why a dead block may be discarded: nobody looks at inodes whose bits are clear, and whoever uses one
//! of them again writes all of it. The kernel takes a block without a used inode as zeros without reading
//! it (`__ext4_get_inode_loc`), and zeros are what a discarded block reads as.

use crate::bytes::le16;
use crate::{Ext4Error, Feature, Group, Superblock, Volume};
use flashlane_base::mutant;
use std::fmt;

/// Bytes of a table that are read at once: a multiple of every size of a block.
const PIECE: usize = 1 << 20;

/// Why nothing is said of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// The group's descriptor has a wrong checksum, or places outside of the file system.
    Descriptor,
    /// The bitmap of inodes has a wrong checksum.
    Bitmap,
    /// An inode has links, and its bit is clear.
    Links,
    /// The journal can't be found, or is none.
    Journal,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doubt::Descriptor => "the group's descriptor can't be right",
            Doubt::Bitmap => "the checksum of the inode bitmap is wrong",
            Doubt::Links => "an inode has links, and its bit is clear",
            Doubt::Journal => "the journal's inode, its blocks or its superblock can't be right",
        })
    }
}

/// What a block of inodes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// An inode in it is used.
    Live,
    /// It has something in it, and nobody needs it: a ghost page, where it lies on flash.
    Dead,
    /// Zeros: never written, or discarded.
    Zeros,
    Doubtful(Doubt),
}

/// Blocks of inodes that follow each other and are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub group: u32,
    /// Block of the file system.
    pub first: u64,
    pub blocks: u32,
    /// First inode in it.
    pub inode: u32,
    pub table: Table,
}

/// How many blocks of inodes are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub live: u64,
    pub dead: u64,
    pub zeros: u64,
    pub doubtful: u64,
    /// Inodes whose bits are set.
    pub used_inodes: u64,
}

impl Counts {
    pub fn all(&self) -> u64 {
        self.live + self.dead + self.zeros + self.doubtful
    }
}

/// Goes over all groups, from the first to the last one.
pub struct Tables<'a, V: ?Sized> {
    volume: &'a V,
    sb: &'a Superblock,
    next: u32,
    pub counts: Counts,
}

impl<'a, V: Volume + ?Sized> Tables<'a, V> {
    pub fn new(volume: &'a V, sb: &'a Superblock) -> Tables<'a, V> {
        Tables { volume, sb, next: 0, counts: Counts::default() }
    }

    /// Why a file system must not be touched by somebody who reads it as it lies there.
    pub fn refusal(sb: &Superblock) -> Option<&'static str> {
        if sb.has(Feature::RECOVER) && !mutant!("ext4.journal-ignored") {
            return Some(
                "its journal has to be replayed first: it is mounted, or was not unmounted; unmount it, \
                 or mount and unmount it, or run `e2fsck`",
            );
        }
        if !sb.is_clean && !mutant!("ext4.unclean-taken") {
            return Some(
                "it was not unmounted, or is mounted: unmount it, or run `e2fsck` on it first",
            );
        }
        sb.has_errors.then_some("errors were found in it: run `e2fsck` on it first")
    }

    /// The runs of the next group; `None` behind the last one.
    ///
    /// # Errors
    /// Something of it can't be read.
    pub fn group(&mut self) -> Option<Result<Vec<Run>, Ext4Error>> {
        let number = self.next;
        (number < self.sb.groups).then(|| {
            self.next += 1;
            self.read(number)
        })
    }

    fn read(&mut self, number: u32) -> Result<Vec<Run>, Ext4Error> {
        let sb = self.sb;
        let blocks = sb.table_blocks();
        let group = match Group::read(self.volume, sb, number)? {
            Ok(group) => group,
            Err(_) => {
                // Where its table is nobody knows.
                self.counts.doubtful += u64::from(blocks);
                return Ok(Vec::new());
            }
        };
        let bits = group.bitmap(self.volume, sb)?;
        if let Ok(bits) = &bits {
            let used: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
            self.counts.used_inodes += u64::from(used);
        }
        let mut runs: Vec<Run> = Vec::new();
        pieces(self.volume, sb, &group, |first, piece| {
            for (i, block) in (first..).zip(piece?.chunks_exact(sb.block_bytes as usize)) {
                let table = match &bits {
                    Ok(bits) => table(sb, &group, bits, i, block),
                    Err(doubt) => Table::Doubtful(*doubt),
                };
                *self.count(table) += 1;
                match runs.last_mut() {
                    Some(run) if run.table == table => run.blocks += 1,
                    _ => runs.push(Run {
                        group: number,
                        first: group.inode_table + u64::from(i),
                        blocks: 1,
                        inode: 1 + number * sb.inodes_per_group + i * sb.inodes_per_block(),
                        table,
                    }),
                }
            }
            Ok(())
        })?;
        Ok(runs)
    }

    fn count(&mut self, table: Table) -> &mut u64 {
        match table {
            Table::Live => &mut self.counts.live,
            Table::Dead => &mut self.counts.dead,
            Table::Zeros => &mut self.counts.zeros,
            Table::Doubtful(_) => &mut self.counts.doubtful,
        }
    }
}

/// Reads a group's inode table piece by piece. `each` gets the number of a piece's first block in
/// the table, and the bytes, or why they can't be read; an error of its own ends it.
pub(crate) fn pieces<V: Volume + ?Sized>(
    volume: &V,
    sb: &Superblock,
    group: &Group,
    mut each: impl FnMut(u32, Result<&[u8], Ext4Error>) -> Result<(), Ext4Error>,
) -> Result<(), Ext4Error> {
    let (blocks, block_bytes) = (sb.table_blocks(), sb.block_bytes as usize);
    let mut piece = vec![0; PIECE.min(blocks as usize * block_bytes)];
    let per_piece = (piece.len() / block_bytes) as u32;
    let mut first = 0;
    while first < blocks {
        piece.truncate((blocks - first) as usize * block_bytes);
        let at = (group.inode_table + u64::from(first)) * u64::from(sb.block_bytes);
        let read = volume.read_at(at, &mut piece);
        each(first, read.map(|()| &piece[..]).map_err(|source| Ext4Error::Read { at, source }))?;
        first += per_piece;
    }
    Ok(())
}

/// What the `i`th block of a group's inode table is.
pub(crate) fn table(sb: &Superblock, group: &Group, bits: &[u8], i: u32, block: &[u8]) -> Table {
    let first = i * sb.inodes_per_block();
    let used = |inode: u32| bits[inode as usize / 8] >> (inode % 8) & 1 == 1;
    let inodes = first..first + sb.inodes_per_block();
    // An open file that was removed has no link, and its bit.
    if inodes.clone().any(used) && !mutant!("ext4.bits-unchecked") {
        return Table::Live;
    }
    if block.iter().all(|byte| *byte == 0) {
        return Table::Zeros;
    }
    // What lies where no inode ever was is what the medium had before.
    let all_unused = match group.inodes_uninit {
        true => 0,
        false => sb.inodes_per_group - group.unused,
    };
    let linked = |(inode, bytes): (u32, &[u8])| {
        // Its count of links (Documentation/filesystems/ext4/inodes.rst).
        let linked = inode < all_unused && le16(bytes, 0x1a) != 0;
        linked && !mutant!("ext4.links-unchecked")
    };
    match inodes.zip(block.chunks_exact(sb.inode_bytes as usize)).any(linked) {
        true => Table::Doubtful(Doubt::Links),
        false => Table::Dead,
    }
}
