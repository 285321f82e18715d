//! The shadow beside a kernel that writes back what it likes, when it likes.

use super::*;
use flashlane_base::Rng;
use proptest::prelude::{any, proptest};

/// Blocks of 4 KiB, in each 16 inodes; two groups whose tables have four blocks.
const GROUPS: usize = 2;
const PER_GROUP: usize = 64;
const IN_BLOCK: usize = 16;
const INODE: usize = 256;
const BLOCKS: u64 = 4096;
/// A time of deletion.
const NOW: u32 = 1_700_000_000;

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A file system without checksums, so that a test can make its blocks.
fn superblock() -> Superblock {
    let mut b = [0; 1024];
    let words: [(usize, u32); 9] = [
        (0x0, (GROUPS * PER_GROUP) as u32),
        (0x4, BLOCKS as u32),
        (0x18, 2),
        (0x20, BLOCKS as u32 / GROUPS as u32),
        (0x24, BLOCKS as u32 / GROUPS as u32),
        (0x28, PER_GROUP as u32),
        (0x4c, 1),
        (0x54, 11),
        (0x60, 0x2),
    ];
    words.iter().for_each(|(at, word)| put(&mut b, *at, &word.to_le_bytes()));
    put(&mut b, 0x38, &0xef53u16.to_le_bytes());
    put(&mut b, 0x3a, &1u16.to_le_bytes());
    put(&mut b, 0x58, &(INODE as u16).to_le_bytes());
    Superblock::parse(&b, BLOCKS * 4096).expect("a superblock")
}

/// Blocks of a group's bitmap and of its table.
fn bitmap_at(group: usize) -> u64 {
    10 + group as u64
}

fn table_at(group: usize) -> u64 {
    20 + 4 * group as u64
}

fn descriptors() -> Vec<u8> {
    let mut block = vec![0; 4096];
    for group in 0..GROUPS {
        put(&mut block, 32 * group + 4, &(bitmap_at(group) as u32).to_le_bytes());
        put(&mut block, 32 * group + 8, &(table_at(group) as u32).to_le_bytes());
    }
    block
}

/// What an inode is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inode {
    Never,
    /// It has a name.
    Linked,
    /// It is open, and has none any more, or none yet.
    Nameless,
    Freed,
}

impl Inode {
    fn is_used(self) -> bool {
        matches!(self, Inode::Linked | Inode::Nameless)
    }

    fn bytes(self, number: usize) -> [u8; INODE] {
        let mut b = [0; INODE];
        // Its own, so that one that is lost is seen.
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

/// A kernel without a journal, and the medium: what it has changed goes there in any order.
struct Kernel {
    inodes: Vec<Inode>,
    /// Bits in memory, and on the medium.
    dirty_bits: [bool; GROUPS],
    dirty_table: [bool; GROUPS * 4],
    medium: Vec<Vec<u8>>,
    shadow: Shadow,
}

impl Kernel {
    fn new(zeros: bool) -> Kernel {
        let mut shadow = Shadow::new(superblock(), zeros).expect("it can be followed");
        assert!(shadow.holds(1, Content::Written(&descriptors())));
        Kernel {
            inodes: vec![Inode::Never; GROUPS * PER_GROUP],
            dirty_bits: [false; GROUPS],
            dirty_table: [false; GROUPS * 4],
            medium: vec![vec![0; 4096]; GROUPS * 4],
            shadow,
        }
    }

    fn block_of(inode: usize) -> usize {
        inode / IN_BLOCK
    }

    fn sector_of(block: usize) -> u64 {
        table_at(block / 4) + block as u64 % 4
    }

    fn set(&mut self, inode: usize, to: Inode) {
        let bit = self.inodes[inode].is_used() != to.is_used();
        self.inodes[inode] = to;
        self.dirty_table[Kernel::block_of(inode)] = true;
        self.dirty_bits[inode / PER_GROUP] |= bit;
    }

    fn write_bits(&mut self, group: usize) {
        let mut block = vec![0xff; 4096];
        block[..PER_GROUP / 8].fill(0);
        for i in 0..PER_GROUP {
            let used = self.inodes[group * PER_GROUP + i].is_used();
            block[i / 8] |= u8::from(used) << (i % 8);
        }
        self.dirty_bits[group] = false;
        self.shadow.holds(bitmap_at(group), Content::Written(&block));
    }

    fn write_table(&mut self, block: usize) {
        let inodes = block * IN_BLOCK..(block + 1) * IN_BLOCK;
        let bytes = inodes.flat_map(|i| self.inodes[i].bytes(i));
        self.medium[block] = bytes.collect();
        self.dirty_table[block] = false;
        self.shadow.holds(Kernel::sector_of(block), Content::Written(&self.medium[block]));
    }

    /// Discards what the shadow calls dead. Whoever is in use must be on the medium still where the kernel
    /// has no newer version: it drops what it has written, and reads it again.
    fn discard(&mut self) {
        while let Some((first, sectors)) = self.shadow.take_dead(3, |_| false) {
            for sector in first..first + sectors {
                let block = (0..GROUPS * 4).find(|b| Kernel::sector_of(*b) == sector);
                let block = block.expect("a block of a table");
                self.medium[block].fill(0);
                self.shadow.holds(sector, Content::Gone);
                for i in block * IN_BLOCK..(block + 1) * IN_BLOCK {
                    let lost = self.inodes[i].is_used() && !self.dirty_table[block];
                    assert!(!lost, "inode {} is in use, and was discarded", i + 1);
                }
            }
        }
    }

    fn sync(&mut self) {
        (0..GROUPS).for_each(|group| self.write_bits(group));
        let dirty: Vec<usize> = (0..GROUPS * 4).filter(|b| self.dirty_table[*b]).collect();
        dirty.into_iter().for_each(|block| self.write_table(block));
        self.discard();
    }

    /// Behind everything that was written there is no block that holds freed inodes alone.
    fn check(&self) {
        for (block, held) in self.medium.iter().enumerate() {
            let mut inodes = self.inodes[block * IN_BLOCK..(block + 1) * IN_BLOCK].iter();
            let dead = inodes.all(|inode| !inode.is_used()) && held.iter().any(|byte| *byte != 0);
            assert!(!dead, "block {block} is dead, and was not discarded");
        }
    }
}

proptest! {
    /// Inodes are made, opened, removed and freed; blocks go to the medium in any order.
    #[test]
    fn what_is_in_use_stays_and_what_is_dead_goes(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let mut kernel = Kernel::new(rng.below(2) == 0);
        for step in 0..300 {
            // Few, so that whole blocks die.
            let inode = 11 + rng.below(if seed % 2 == 0 { 20 } else { 110 }) as usize;
            match (rng.below(8), kernel.inodes[inode]) {
                (0 | 1, Inode::Never | Inode::Freed) => kernel.set(inode, Inode::Linked),
                (2, Inode::Never | Inode::Freed) => kernel.set(inode, Inode::Nameless),
                (2, Inode::Linked) => kernel.set(inode, Inode::Nameless),
                (3, Inode::Linked | Inode::Nameless) => kernel.set(inode, Inode::Freed),
                (4, _) => kernel.write_bits(rng.below(GROUPS as u64) as usize),
                (5 | 6, _) => {
                    let block = Kernel::block_of(inode);
                    if kernel.dirty_table[block] {
                        kernel.write_table(block);
                    }
                }
                _ => {}
            }
            kernel.discard();
            if step % 100 == 99 {
                kernel.sync();
                kernel.check();
            }
        }
    }
}

/// "If the 4KB file with inode number 31 is erased", alone in its block, that block goes (Figure 3); inode 2
/// has neighbours that stay (Figure 4). The other discard of each figure, of the data, is the kernel's.
#[test]
fn figures_3_and_4_of_the_paper() {
    let mut kernel = Kernel::new(false);
    for inode in [0, 1, 2, 3, 30] {
        kernel.set(inode, Inode::Linked);
    }
    kernel.sync();
    kernel.set(30, Inode::Freed);
    kernel.write_table(1);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "its bit is set yet");
    kernel.write_bits(0);
    let block = Kernel::sector_of(1);
    assert_eq!(kernel.shadow.take_dead(9, |sector| sector == block), None, "a write is under way");
    assert_eq!(kernel.shadow.take_dead(9, |_| false), Some((block, 1)));
    kernel.shadow.holds(block, Content::Gone);
    kernel.set(1, Inode::Freed);
    kernel.write_table(0);
    kernel.write_bits(0);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "inodes 1, 3 and 4 are in use");
}

#[test]
fn what_nobody_has_seen_is_not_dead() {
    let mut kernel = Kernel::new(false);
    kernel.set(30, Inode::Freed);
    kernel.write_table(1);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "no bitmap was seen");
    kernel.write_bits(0);
    kernel.shadow.holds(Kernel::sector_of(1), Content::Unsure);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "its block may hold anything");
    kernel.write_table(1);
    kernel.shadow.holds(bitmap_at(0), Content::Unsure);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "the bitmap may be anything");
    kernel.write_bits(0);
    // The table lies elsewhere, as it seems.
    let mut moved = descriptors();
    put(&mut moved, 8, &40u32.to_le_bytes());
    assert!(kernel.shadow.holds(1, Content::Written(&moved)));
    kernel.write_table(1);
    kernel.write_bits(0);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "nothing is there any more");
}

/// One that looks deleted and has a link, one of no type, one without a time of deletion.
#[test]
fn what_no_kernel_writes_is_in_use() {
    for (at, byte) in [(0x1a, 1), (0x1, 0), (0x14, 0)] {
        let mut kernel = Kernel::new(false);
        kernel.set(30, Inode::Freed);
        kernel.write_bits(0);
        kernel.write_table(1);
        let mut block = kernel.medium[1].clone();
        let inode = &mut block[14 * INODE..][..INODE];
        inode[at] = byte;
        if at == 0x14 {
            inode[0x14..0x18].fill(0);
        }
        kernel.shadow.holds(Kernel::sector_of(1), Content::Written(&block));
        assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "byte {at:#x}");
        kernel.write_table(1);
        assert!(kernel.shadow.take_dead(9, |_| false).is_some());
    }
}

#[test]
fn places_that_overlap_are_none() {
    let mut kernel = Kernel::new(false);
    let mut block = descriptors();
    // The second group's bitmap in the first one's table.
    put(&mut block, 32 + 4, &22u32.to_le_bytes());
    kernel.shadow.holds(1, Content::Written(&block));
    assert_eq!(kernel.shadow.bodies(), []);
    assert_eq!(kernel.shadow.watched(0..100).collect::<Vec<_>>(), [0, 1]);
    kernel.shadow.holds(1, Content::Written(&descriptors()));
    assert_eq!(kernel.shadow.bodies().len(), 4);
    assert_eq!(kernel.shadow.watched(1..22).collect::<Vec<_>>(), [1, 10, 11, 20, 21]);
}

#[test]
fn a_superblock_says_what_becomes_of_it() {
    let mut kernel = Kernel::new(false);
    let all = BLOCKS * 4096;
    let mut sector = vec![0; 4096];
    let written = |shadow: &mut Shadow, sector: &[u8]| {
        shadow.superblock_is(Content::Written(sector), all)
    };
    assert!(matches!(written(&mut kernel.shadow, &sector), Change::Ended(_)));
    let words: [(usize, u32); 9] = [
        (0x0, 128), (0x4, 4096), (0x18, 2), (0x20, 2048), (0x24, 2048), (0x28, 64), (0x4c, 1),
        (0x54, 11), (0x60, 0x2),
    ];
    words.iter().for_each(|(at, word)| put(&mut sector, 1024 + at, &word.to_le_bytes()));
    put(&mut sector, 1024 + 0x38, &0xef53u16.to_le_bytes());
    put(&mut sector, 1024 + 0x58, &256u16.to_le_bytes());
    // Mounted, unmounted, grown.
    assert!(matches!(written(&mut kernel.shadow, &sector), Change::None));
    put(&mut sector, 1024 + 0x3a, &1u16.to_le_bytes());
    assert!(matches!(written(&mut kernel.shadow, &sector), Change::Unmounted));
    put(&mut sector, 1024 + 0x4, &2048u32.to_le_bytes());
    put(&mut sector, 1024, &64u32.to_le_bytes());
    assert!(matches!(written(&mut kernel.shadow, &sector), Change::Other(_)));
    assert!(matches!(kernel.shadow.superblock_is(Content::Gone, all), Change::Ended(_)));
}
