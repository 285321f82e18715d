//! A small ext4 file system, block by block, and its inodes as a kernel leaves them.
//!
//! Owns: bytes of a superblock, descriptors, a bitmap, an inode, without checksums, so that a test can make
//! any state. Promises: `e2fsck` would know them for what they are; nothing else of a file system is there.
//! Never: reads.
//!
//! Blocks of 4 KiB; two groups, each with a bitmap, and four blocks of sixteen inodes.

/// Groups, inodes of one, inodes in a block, bytes of one.
pub const GROUPS: usize = 2;
pub const PER_GROUP: usize = 64;
pub const IN_BLOCK: usize = 16;
pub const INODE: usize = 256;
/// Blocks of the file system.
pub const BLOCKS: u64 = 4096;
/// Blocks with inodes.
pub const TABLE_BLOCKS: usize = GROUPS * PER_GROUP / IN_BLOCK;
/// Block of the descriptors.
pub const DESCRIPTORS: u64 = 1;
/// A time of deletion.
const NOW: u32 = 1_700_000_000;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Block 0, with the superblock; it was unmounted, or is mounted. Of so many groups.
pub fn superblock(is_clean: bool, groups: usize) -> Vec<u8> {
    let mut block = vec![0; 4096];
    let per_group = BLOCKS as u32 / GROUPS as u32;
    let words: [(usize, u32); 9] = [
        (0x0, (groups * PER_GROUP) as u32),
        (0x4, per_group * groups as u32),
        (0x18, 2),
        (0x20, per_group),
        (0x24, per_group),
        (0x28, PER_GROUP as u32),
        (0x4c, 1),
        (0x54, 11),
        (0x60, 0x2),
    ];
    let b = &mut block[1024..2048];
    words.iter().for_each(|(at, word)| put(b, *at, &word.to_le_bytes()));
    put(b, 0x38, &0xef53u16.to_le_bytes());
    put(b, 0x3a, &u16::from(is_clean).to_le_bytes());
    put(b, 0x58, &(INODE as u16).to_le_bytes());
    block
}

/// Block of a group's bitmap.
pub fn bitmap_at(group: usize) -> u64 {
    10 + group as u64
}

/// Block of a group's bitmap of blocks.
pub fn blocks_at(group: usize) -> u64 {
    12 + group as u64
}

/// A block of inodes.
pub fn table_at(block: usize) -> u64 {
    20 + block as u64
}

/// The block of descriptors.
pub fn descriptors() -> Vec<u8> {
    let mut block = vec![0; 4096];
    for group in 0..GROUPS {
        let table = table_at(group * TABLE_BLOCKS / GROUPS);
        put(&mut block, 32 * group, &(blocks_at(group) as u32).to_le_bytes());
        put(&mut block, 32 * group + 4, &(bitmap_at(group) as u32).to_le_bytes());
        put(&mut block, 32 * group + 8, &(table as u32).to_le_bytes());
    }
    block
}

/// A group's bitmap, where these of its inodes are used; the padding is set.
pub fn bitmap(is_used: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut block = vec![0xff; 4096];
    block[..PER_GROUP / 8].fill(0);
    (0..PER_GROUP).for_each(|i| block[i / 8] |= u8::from(is_used(i)) << (i % 8));
    block
}

/// A group's bitmap of blocks, where these are used; the group has as many as it has bits, and no padding that
/// says anything.
pub fn blocks(group: usize, is_used: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut block = vec![0xff; 4096];
    let per_group = BLOCKS / GROUPS as u64;
    block[..per_group as usize / 8].fill(0);
    for i in 0..per_group {
        block[i as usize / 8] |= u8::from(is_used(group as u64 * per_group + i)) << (i % 8);
    }
    block
}

/// The journal's inode, its first block, and how many it has.
pub const JOURNAL_INODE: usize = 7;
pub const JOURNAL: u64 = 1000;
pub const JOURNAL_BLOCKS: u32 = 64;

/// Block 0 of a file system with a journal.
pub fn superblock_with_journal(is_clean: bool) -> Vec<u8> {
    let mut block = superblock(true, GROUPS);
    let b = &mut block[1024..2048];
    put(b, 0x5c, &0x4u32.to_le_bytes());
    put(b, 0x60, &(0x2u32 | if is_clean { 0 } else { 0x4 }).to_le_bytes());
    put(b, 0xe0, &(JOURNAL_INODE as u32 + 1).to_le_bytes());
    block
}

/// The journal's inode in its block of a table.
pub fn put_journal_inode(table: &mut [u8]) {
    let inode = &mut table[JOURNAL_INODE * INODE..(JOURNAL_INODE + 1) * INODE];
    put(inode, 0x0, &0x8180u16.to_le_bytes());
    put(inode, 0x1a, &1u16.to_le_bytes());
    put(inode, 0x20, &0x8_0000u32.to_le_bytes());
    // A tree that is its root: one extent of four.
    let words = [0xf30a_u16, 1, 4, 0, 0, 0, 0, 0, JOURNAL_BLOCKS as u16, 0, JOURNAL as u16, 0];
    words.iter().enumerate().for_each(|(i, word)| put(inode, 0x28 + 2 * i, &word.to_le_bytes()));
}

/// The first block of the journal; recovery begins at this block of it, 0 if there is nothing to recover.
pub fn journal(start: u32) -> Vec<u8> {
    let mut block = vec![0; 4096];
    let words = [0xc03b_3998, 4, 0, 4096, JOURNAL_BLOCKS, 1, 9, start];
    words.iter().enumerate().for_each(|(i, word): (usize, &u32)| {
        put(&mut block, 4 * i, &word.to_be_bytes());
    });
    block
}

/// What an inode is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inode {
    Never,
    /// It has a name.
    Linked,
    /// It is open, and has none any more, or none yet.
    Nameless,
    Freed,
}

impl Inode {
    pub fn is_used(self) -> bool {
        matches!(self, Inode::Linked | Inode::Nameless)
    }

    /// As it is written; the number, which counts from 0, makes it its own.
    pub fn bytes(self, number: usize) -> [u8; INODE] {
        let mut b = [0; INODE];
        put(&mut b, 0x28, &(number as u32).to_le_bytes());
        let (links, deleted) = match self {
            Inode::Never => return [0; INODE],
            Inode::Linked => (1u16, 0),
            // The next one in the list of orphans.
            Inode::Nameless => (0, (number % 7) as u32),
            Inode::Freed => (0, NOW),
        };
        put(&mut b, 0x0, &0x81a4u16.to_le_bytes());
        put(&mut b, 0x1a, &links.to_le_bytes());
        put(&mut b, 0x14, &deleted.to_le_bytes());
        b
    }
}

/// A block of these inodes.
pub fn table(block: usize, inodes: &[Inode]) -> Vec<u8> {
    let numbers = block * IN_BLOCK..(block + 1) * IN_BLOCK;
    numbers.flat_map(|i| inodes[i].bytes(i)).collect()
}
