//! What the blocks of an ext4 file system hold, and how many of them nobody needs any more.
//!
//! Owns: the kinds of blocks, and the count of each. Promises: in a sound file system each block
//! counts once, so that the sum of all kinds is the number of its blocks; what can't be right is
//! unknown; a read that fails is counted, and the rest goes on; the same bytes give the same
//! counts; memory is bounded by a group's bitmaps and a piece of its inode table. Where the bytes
//! are hostile a block may count twice or not at all, but nothing panics, and the work is bounded
//! by the sizes that the superblock tells. Never: writes; looks into the journal's log; looks at
//! inodes whose bits are clear.
//!
//! **No map of all blocks.** A group's bitmap says which blocks are free. Inodes and descriptors
//! say what the others are for, wherever these lie. What is left is unknown, which is a subtraction
//! of sums.
//!
//! **Blocks that inodes share.** Inodes with the same extended attributes have one block of them,
//! which says how many they are. Each inode counts its share of the block.
//!
//! **A bitmap that is not on the medium.** What it says follows from the place of the group's own
//! metadata, as in the kernel (`ext4_init_block_bitmap`). Where the metadata of another group lies,
//! `mke2fs` and the kernel have written the bitmap.
//!
//! **`bigalloc`.** A bit of the bitmap stands for a cluster of blocks. A file, a node of a tree and
//! a block of attributes have all blocks of their clusters. Blocks that a cluster has beside a
//! group's metadata are unknown.

use crate::bytes::{le16, le32};
use crate::extent::{Visit, has_extents, is_inode_sum, walk};
use crate::tables::{pieces, table};
use crate::{Ext4Error, Extent, Feature, Group, Journal, Superblock, Table, Volume};
use std::ops::Range;

/// What a block of a file system is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// A superblock, descriptors of groups, a backup of these, blocks into which the descriptors
    /// may grow, the block before the first superblock, or that of multiple mount protection.
    Superblock,
    /// A bitmap of blocks or of inodes.
    Bitmap,
    /// A bitmap whose block is all zeros.
    ZeroBitmap,
    /// Inodes of which one is used, or might be.
    Inodes,
    /// Inodes of which none is used, and that are not zeros.
    DeadInodes,
    /// Inodes that are zeros.
    ZeroInodes,
    /// The journal's superblock, and its log where there is something to be replayed.
    Journal,
    /// The log of an empty journal.
    DeadJournal,
    /// Names of a directory.
    Directory,
    /// A node of an extent tree, a block of an indirect map, or extended attributes.
    Tree,
    /// What a regular file, a symbolic link or a reserved inode holds.
    Data,
    /// A file's or a directory's, of a file system in use: its inodes are not looked at.
    Files,
    /// It is not free, and nothing says what it is for; or nothing says whether it is free.
    Unknown,
    /// It is free.
    Freed,
}

impl Holds {
    pub const ALL: [Holds; 14] = [
        Holds::Superblock,
        Holds::Bitmap,
        Holds::Inodes,
        Holds::Journal,
        Holds::Directory,
        Holds::Tree,
        Holds::Data,
        Holds::Files,
        Holds::Unknown,
        Holds::ZeroBitmap,
        Holds::DeadInodes,
        Holds::ZeroInodes,
        Holds::DeadJournal,
        Holds::Freed,
    ];

    /// A name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Holds::Superblock => "superblock",
            Holds::Bitmap => "bitmap",
            Holds::ZeroBitmap => "zero_bitmap",
            Holds::Inodes => "inodes",
            Holds::DeadInodes => "dead_inodes",
            Holds::ZeroInodes => "zero_inodes",
            Holds::Journal => "journal",
            Holds::DeadJournal => "dead_journal",
            Holds::Directory => "directory",
            Holds::Tree => "tree",
            Holds::Data => "data",
            Holds::Files => "files",
            Holds::Unknown => "unknown",
            Holds::Freed => "freed",
        }
    }

    /// A clause for people.
    pub fn says(self) -> &'static str {
        match self {
            Holds::Superblock => "superblocks, descriptors, their backups",
            Holds::Bitmap => "bitmaps of blocks and of inodes",
            Holds::ZeroBitmap => "bitmaps of zeros",
            Holds::Inodes => "an inode in it is used, or might be",
            Holds::DeadInodes => "no inode in it is used any more",
            Holds::ZeroInodes => "inodes never written, or discarded",
            Holds::Journal => "its superblock, and what is to be replayed",
            Holds::DeadJournal => "the log of an empty journal",
            Holds::Directory => "directories",
            Holds::Tree => "extent trees, maps, extended attributes",
            Holds::Data => "regular files and other inodes",
            Holds::Files => "files and directories",
            Holds::Unknown => "not free, and nothing says what for",
            Holds::Freed => "free",
        }
    }

    /// The file system needs nothing of what the medium holds there.
    pub fn is_ghost(self) -> bool {
        matches!(
            self,
            Holds::ZeroBitmap
                | Holds::DeadInodes
                | Holds::ZeroInodes
                | Holds::DeadJournal
                | Holds::Freed
        )
    }
}

/// Blocks, and bytes of them that the medium holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub blocks: u64,
    pub held: u64,
}

impl Share {
    pub(crate) fn add(&mut self, other: Share) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.held = self.held.saturating_add(other.held);
    }

    pub(crate) fn sub(&mut self, other: Share) {
        self.blocks = self.blocks.saturating_sub(other.blocks);
        self.held = self.held.saturating_sub(other.held);
    }
}

/// How many blocks hold what.
#[derive(Debug, Default)]
pub struct Pages {
    kinds: [Share; Holds::ALL.len()],
    /// Reads that failed. What they would have told of is unknown.
    pub unread: u64,
    /// Why the first one of them failed.
    pub error: Option<Ext4Error>,
}

impl Pages {
    /// Counts the blocks of a whole file system. `held` says how many of these bytes of the file
    /// system the medium holds.
    pub fn count<V: Volume + ?Sized>(
        volume: &V,
        sb: &Superblock,
        held: &mut dyn FnMut(Range<u64>) -> u64,
    ) -> Pages {
        let mut census = Census::new(volume, sb);
        while census.group(held) {}
        census.pages()
    }

    /// More blocks of a kind.
    pub(crate) fn add(&mut self, kind: Holds, share: Share) {
        self.kinds[kind as usize].add(share);
    }

    /// Takes in the counts of another file system.
    pub fn append(&mut self, other: &Pages) {
        other.iter().for_each(|(kind, share)| self.add(kind, share));
    }

    /// Blocks of a kind.
    pub fn of(&self, kind: Holds) -> Share {
        self.kinds[kind as usize]
    }

    /// Each kind, and its blocks.
    pub fn iter(&self) -> impl Iterator<Item = (Holds, Share)> + '_ {
        Holds::ALL.into_iter().map(|kind| (kind, self.of(kind)))
    }

    /// Blocks of all kinds.
    pub fn all(&self) -> Share {
        self.sum(|_| true)
    }

    /// Blocks of which the file system needs nothing.
    pub fn ghosts(&self) -> Share {
        self.sum(Holds::is_ghost)
    }

    fn sum(&self, which: impl Fn(Holds) -> bool) -> Share {
        let mut sum = Share::default();
        self.iter().filter(|(kind, _)| which(*kind)).for_each(|(_, share)| sum.add(share));
        sum
    }

    fn failed(&mut self, why: Ext4Error) {
        self.unread += 1;
        self.error.get_or_insert(why);
    }
}

/// Says how many of these bytes of the file system the medium holds.
type Held<'a> = dyn FnMut(Range<u64>) -> u64 + 'a;

/// Counts group by group, so that who counts may stop.
pub struct Census<'a, V: ?Sized> {
    volume: &'a V,
    sb: &'a Superblock,
    next: u32,
    /// There is nothing in the journal to be replayed.
    is_journal_empty: bool,
    sums: Sums<'a>,
    /// Blocks of all groups that were looked at.
    whole: Share,
}

/// What was counted, but for what is unknown.
struct Sums<'a> {
    sb: &'a Superblock,
    pages: Pages,
    /// Blocks, and bytes held, of attributes that inodes share, each by 2^64.
    shared: [u128; 2],
    /// Blocks that inodes may still have: there are no more in the file system. This bounds the
    /// work.
    left: u64,
}

impl Sums<'_> {
    /// Blocks of the file system that are of one kind.
    fn add(&mut self, kind: Holds, blocks: Range<u64>, held: &mut Held<'_>) {
        let share = self.share(blocks, held);
        self.pages.kinds[kind as usize].add(share);
    }

    fn share(&self, blocks: Range<u64>, held: &mut Held<'_>) -> Share {
        let blocks = blocks.start..blocks.end.min(self.sb.blocks);
        if blocks.is_empty() {
            return Share::default();
        }
        let size = u64::from(self.sb.block_bytes);
        let bytes = blocks.start * size..blocks.end * size;
        let most = bytes.end - bytes.start;
        Share { blocks: blocks.end - blocks.start, held: held(bytes).min(most) }
    }

    /// All blocks of a block's cluster.
    fn cluster(&self, block: u64) -> Range<u64> {
        let blocks = u64::from(self.sb.cluster_blocks);
        let first = block / blocks * blocks;
        first..first + blocks
    }

    fn is_block(&self, block: u64) -> bool {
        block > u64::from(self.sb.first_data_block) && block < self.sb.blocks
    }
}

impl<'a, V: Volume + ?Sized> Census<'a, V> {
    /// Nothing but the journal is looked at yet.
    pub fn new(volume: &'a V, sb: &'a Superblock) -> Census<'a, V> {
        let mut pages = Pages::default();
        let is_journal_empty = match Journal::read(volume, sb) {
            Ok(journal) => matches!(journal, Some(Ok(journal)) if journal.is_empty),
            Err(why) => {
                pages.failed(why);
                false
            }
        };
        let sums = Sums { sb, pages, shared: [0; 2], left: sb.blocks };
        Census { volume, sb, next: 0, is_journal_empty, sums, whole: Share::default() }
    }

    /// Counts what the next group says. False behind the last one.
    pub fn group(&mut self, held: &mut Held<'_>) -> bool {
        let (sb, number) = (self.sb, self.next);
        if number == sb.groups {
            return false;
        }
        self.next += 1;
        if number == 0 {
            // No group has the block before the first one.
            let before = 0..u64::from(sb.first_data_block);
            self.whole.add(self.sums.share(before.clone(), held));
            self.sums.add(Holds::Superblock, before, held);
            if self.sums.is_block(sb.mmp_block) {
                let cluster = self.sums.cluster(sb.mmp_block);
                self.sums.add(Holds::Superblock, cluster, held);
            }
        }
        self.whole.add(self.sums.share(sb.group_blocks(number), held));
        self.sums.add(Holds::Superblock, sb.base_blocks(number), held);
        match Group::read(self.volume, sb, number) {
            Ok(Ok(group)) => {
                self.blocks(&group, held);
                self.inodes(&group, held);
            }
            // Nobody knows where its bitmaps are.
            Ok(Err(_)) => {}
            Err(why) => self.sums.pages.failed(why),
        }
        true
    }

    /// What was counted.
    pub fn pages(self) -> Pages {
        let Sums { mut pages, shared, .. } = self.sums;
        let [blocks, held] = shared.map(|sum| u64::try_from((sum + (1 << 63)) >> 64));
        pages.kinds[Holds::Tree as usize]
            .add(Share { blocks: blocks.unwrap_or(u64::MAX), held: held.unwrap_or(u64::MAX) });
        let mut unknown = self.whole;
        unknown.sub(pages.all());
        pages.kinds[Holds::Unknown as usize] = unknown;
        pages
    }

    /// A block of a bitmap, which is counted.
    fn bitmap(&mut self, block: u64, held: &mut Held<'_>) -> Option<Vec<u8>> {
        let at = block * u64::from(self.sb.block_bytes);
        let mut bytes = vec![0; self.sb.block_bytes as usize];
        if let Err(source) = self.volume.read_at(at, &mut bytes) {
            self.sums.pages.failed(Ext4Error::Read { at, source });
            return None;
        }
        let kind = match bytes.iter().all(|byte| *byte == 0) {
            true => Holds::ZeroBitmap,
            false => Holds::Bitmap,
        };
        self.sums.add(kind, block..block + 1, held);
        Some(bytes)
    }

    /// The group's bitmap of blocks, and those that are free by it.
    fn blocks(&mut self, group: &Group, held: &mut Held<'_>) {
        let sb = self.sb;
        let all = sb.group_blocks(group.number);
        let Some(block) = group.block_bitmap else { return };
        let bits = self.bitmap(block, held);
        let table = group.inode_table..group.inode_table + u64::from(sb.table_blocks());
        let own = [block..block + 1, group.inode_bitmap..group.inode_bitmap + 1, table];
        let within = |range: &Range<u64>| range.start.max(all.start)..range.end.min(all.end);
        let cluster = u64::from(sb.cluster_blocks);
        let mut free = |blocks: Range<u64>| self.sums.add(Holds::Freed, blocks, held);
        if group.blocks_uninit {
            let mut used: Vec<_> = own.iter().map(within).filter(|r| !r.is_empty()).collect();
            used.push(sb.base_blocks(group.number));
            used.sort_by_key(|range| range.start);
            let mut done = all.start;
            for range in used {
                if range.start / cluster * cluster > done {
                    free(done..range.start / cluster * cluster);
                }
                done = done.max(range.end.div_ceil(cluster) * cluster);
            }
            if done < all.end {
                free(done..all.end);
            }
            return;
        }
        let Some(bits) = bits else { return };
        let clusters = (all.end - all.start).div_ceil(cluster) as u32;
        let bit = |block: u64| ((block - all.start) / cluster) as u32;
        // A group's own metadata is used, as the kernel asks in `ext4_valid_block_bitmap`.
        let is_used = |range: Range<u64>| {
            range.is_empty()
                || find(&bits, bit(range.start), bit(range.end - 1) + 1, false).is_none()
        };
        if !group.is_block_sum_of(&bits, sb) || !own.iter().map(within).all(is_used) {
            return;
        }
        let mut from = 0;
        while let Some(first) = find(&bits, from, clusters, false) {
            from = find(&bits, first, clusters, true).unwrap_or(clusters);
            let block = |bit: u32| all.start + u64::from(bit) * cluster;
            free(block(first)..block(from).min(all.end));
        }
    }

    /// The group's bitmap of inodes, its table, and what its inodes have.
    fn inodes(&mut self, group: &Group, held: &mut Held<'_>) {
        let (sb, volume) = (self.sb, self.volume);
        let Some(bits) = self.bitmap(group.inode_bitmap, held) else { return };
        let bits = group.believed(bits, sb);
        let done = pieces(volume, sb, group, |first, piece| {
            let piece = match piece {
                Ok(piece) => piece,
                Err(why) => {
                    self.sums.pages.failed(why);
                    return Ok(());
                }
            };
            // Blocks that follow each other are asked for at once.
            let mut run = (Holds::Inodes, 0..0);
            for (i, block) in (first..).zip(piece.chunks_exact(sb.block_bytes as usize)) {
                let kind = match bits.as_deref().map(|bits| table(sb, group, bits, i, block)) {
                    Ok(Table::Dead) => Holds::DeadInodes,
                    Ok(Table::Zeros) => Holds::ZeroInodes,
                    Ok(Table::Live | Table::Doubtful(_)) | Err(_) => Holds::Inodes,
                };
                let at = group.inode_table + u64::from(i);
                if run.0 != kind || run.1.is_empty() {
                    self.sums.add(run.0, run.1, held);
                    run = (kind, at..at);
                }
                run.1.end = at + 1;
                let (Ok(bits), Holds::Inodes) = (&bits, kind) else { continue };
                let inodes = i * sb.inodes_per_block()..;
                for (n, inode) in inodes.zip(block.chunks_exact(sb.inode_bytes as usize)) {
                    if find(bits, n, n + 1, true).is_some() {
                        self.inode(1 + group.number * sb.inodes_per_group + n, inode, held);
                    }
                }
            }
            self.sums.add(run.0, run.1, held);
            Ok(())
        });
        debug_assert!(done.is_ok(), "no error ends it");
    }

    /// What an inode that is used has.
    fn inode(&mut self, number: u32, inode: &[u8], held: &mut Held<'_>) {
        const RESIZE: u32 = 7;
        const INLINE_DATA: u32 = 0x1000_0000;
        let sb = self.sb;
        if !is_inode_sum(sb, number, inode) {
            return;
        }
        self.attributes(inode, held);
        if number == RESIZE && sb.has(Feature::RESIZE_INODE) {
            // A map of blocks that belong to the groups' descriptors. Its root lies elsewhere.
            let root = u64::from(le32(inode, 0x28 + 13 * 4));
            if self.sums.is_block(root) {
                let cluster = self.sums.cluster(root);
                self.sums.add(Holds::Superblock, cluster, held);
            }
            return;
        }
        let is_journal = sb.has(Feature::HAS_JOURNAL) && number == sb.journal_inode;
        let kind = match le16(inode, 0) & 0xf000 {
            _ if is_journal => Holds::Journal,
            0x4000 => Holds::Directory,
            0x8000 => Holds::Data,
            // A short one stands in the inode itself.
            0xa000 if has_extents(inode) || le32(inode, 0x4) >= 60 => Holds::Data,
            // The bad blocks' and the boot loader's have no type.
            0 if number < sb.first_inode => Holds::Data,
            // Devices, pipes and sockets have no blocks.
            _ => return,
        };
        if le32(inode, 0x20) & INLINE_DATA != 0 {
            return;
        }
        let mut blocks = Blocks {
            sums: &mut self.sums,
            held,
            kind,
            log: if self.is_journal_empty { Holds::DeadJournal } else { Holds::Journal },
            next_cluster: 0,
            run: (kind, 0..0),
        };
        // What can't be right is unknown. What came before it was counted.
        let walked = walk(self.volume, sb, number, inode, &mut blocks);
        blocks.flush();
        if let Err(why) = walked {
            self.sums.pages.failed(why);
        }
    }

    /// The block of an inode's extended attributes.
    fn attributes(&mut self, inode: &[u8], held: &mut Held<'_>) {
        const MAGIC: u32 = 0xea02_0000;
        let high = if self.sb.has(Feature::WIDE) { le16(inode, 0x76) } else { 0 };
        let block = u64::from(le32(inode, 0x68)) | u64::from(high) << 32;
        if !self.sums.is_block(block) {
            return;
        }
        let at = block * u64::from(self.sb.block_bytes);
        let mut head = [0; 32];
        if let Err(source) = self.volume.read_at(at, &mut head) {
            return self.sums.pages.failed(Ext4Error::Read { at, source });
        }
        let inodes = u128::from(le32(&head, 4));
        if le32(&head, 0) != MAGIC || inodes == 0 {
            return;
        }
        let share = self.sums.share(self.sums.cluster(block), held);
        for (sum, all) in self.sums.shared.iter_mut().zip([share.blocks, share.held]) {
            *sum = sum.saturating_add((u128::from(all) << 64) / inodes);
        }
    }
}

/// Counts the blocks of an inode.
struct Blocks<'b, 'a, 'h> {
    sums: &'b mut Sums<'a>,
    held: &'b mut Held<'h>,
    kind: Holds,
    /// What the journal's log is.
    log: Holds,
    /// Clusters of the file before this one are counted.
    next_cluster: u64,
    /// Blocks that follow each other, and are asked for at once.
    run: (Holds, Range<u64>),
}

impl Blocks<'_, '_, '_> {
    /// False where inodes have more blocks than there are.
    fn add(&mut self, kind: Holds, blocks: Range<u64>) -> bool {
        let n = blocks.end - blocks.start;
        if n > self.sums.left {
            self.sums.left = 0;
            return false;
        }
        self.sums.left -= n;
        if self.run.0 == kind && self.run.1.end == blocks.start {
            self.run.1.end = blocks.end;
            return true;
        }
        self.flush();
        self.run = (kind, blocks);
        true
    }

    fn flush(&mut self) {
        let blocks = std::mem::take(&mut self.run.1);
        self.sums.add(self.run.0, blocks, self.held);
    }
}

impl Visit for Blocks<'_, '_, '_> {
    fn blocks(&mut self, extent: Extent) -> bool {
        // Each cluster of a file lies in one of the medium, in the same order.
        let cluster = u64::from(self.sums.sb.cluster_blocks);
        let logical = u64::from(extent.logical);
        let (first, last) = (logical / cluster, (logical + u64::from(extent.blocks) - 1) / cluster);
        let from = first.max(self.next_cluster);
        self.next_cluster = last + 1;
        if from > last {
            return true;
        }
        let start = (extent.first / cluster + (from - first)) * cluster;
        let end = (start + (last + 1 - from) * cluster).min(self.sums.sb.blocks);
        let start = start.min(end);
        if self.kind != Holds::Journal {
            return self.add(self.kind, start..end);
        }
        let head = if from == 0 { end.min(start + 1) } else { start };
        (head == start || self.add(Holds::Journal, start..head))
            && (head == end || self.add(self.log, head..end))
    }

    fn tree(&mut self, block: u64) -> bool {
        let cluster = self.sums.cluster(block);
        self.add(Holds::Tree, cluster)
    }

    fn unread(&mut self, why: Ext4Error) -> Result<(), Ext4Error> {
        self.sums.pages.failed(why);
        Ok(())
    }
}

/// The first bit of `from..end` that is so; `None` if there is none.
fn find(bits: &[u8], from: u32, end: u32, set: bool) -> Option<u32> {
    let mut i = from;
    while i < end {
        let byte = bits.get(i as usize / 8)?;
        let wanted = if set { *byte } else { !byte } >> (i % 8);
        if wanted != 0 {
            return Some(i + wanted.trailing_zeros()).filter(|found| *found < end);
        }
        i = (i / 8 + 1) * 8;
    }
    None
}
