//! The shadow beside a kernel that writes back what it likes, when it likes.

use super::*;
use flashlane_base::Rng;
use flashlane_testkit::ext4 as made;
use made::{BLOCKS, GROUPS, IN_BLOCK, INODE, Inode, PER_GROUP, TABLE_BLOCKS, bitmap_at, table_at};
use proptest::prelude::{any, proptest};
use std::ops::Range;

fn superblock() -> Superblock {
    let block = made::superblock(true, GROUPS);
    Superblock::parse(block[1024..2048].try_into().expect("its bytes"), BLOCKS * 4096).expect("one")
}

/// A kernel without a journal, and the medium: what it has changed goes there in any order.
struct Kernel {
    inodes: Vec<Inode>,
    /// Bits in memory, and on the medium.
    dirty_bits: [bool; GROUPS],
    dirty_table: [bool; TABLE_BLOCKS],
    medium: Vec<Vec<u8>>,
    shadow: Shadow,
}

impl Kernel {
    fn new(zeros: bool) -> Kernel {
        let mut shadow = Shadow::new(superblock(), Wanted { zeros, ..Wanted::INODES })
            .expect("it can be followed");
        assert!(shadow.holds(1, Content::Written(&made::descriptors())));
        Kernel {
            inodes: vec![Inode::Never; GROUPS * PER_GROUP],
            dirty_bits: [false; GROUPS],
            dirty_table: [false; TABLE_BLOCKS],
            medium: vec![vec![0; 4096]; TABLE_BLOCKS],
            shadow,
        }
    }

    fn block_of(inode: usize) -> usize {
        inode / IN_BLOCK
    }

    fn set(&mut self, inode: usize, to: Inode) {
        let bit = self.inodes[inode].is_used() != to.is_used();
        self.inodes[inode] = to;
        self.dirty_table[Kernel::block_of(inode)] = true;
        self.dirty_bits[inode / PER_GROUP] |= bit;
    }

    fn write_bits(&mut self, group: usize) {
        let of = &self.inodes[group * PER_GROUP..];
        let block = made::bitmap(|i| of[i].is_used());
        self.dirty_bits[group] = false;
        self.shadow.holds(bitmap_at(group), Content::Written(&block));
    }

    fn write_table(&mut self, block: usize) {
        self.medium[block] = made::table(block, &self.inodes);
        self.dirty_table[block] = false;
        self.shadow.holds(table_at(block), Content::Written(&self.medium[block]));
    }

    /// Discards what the shadow calls dead. Whoever is in use must be on the medium still where the kernel
    /// has no newer version: it drops what it has written, and reads it again.
    fn discard(&mut self) {
        while let Some((first, sectors)) = self.shadow.take_dead(3, |_| false) {
            for sector in first..first + sectors {
                let block = (0..TABLE_BLOCKS).find(|b| table_at(*b) == sector);
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
        let dirty: Vec<usize> = (0..TABLE_BLOCKS).filter(|b| self.dirty_table[*b]).collect();
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

proptest! {
    /// Any superblock that is one, any bytes in what it says is of interest: no panic, and what is dead lies in the
    /// file system.
    #[test]
    fn hostile_ones_never_panic(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let mut block = made::superblock(true, GROUPS);
        for _ in 0..rng.below(4) {
            let at = 1024 + rng.below(0x110) as usize;
            block[at] = [0, 1, 2, 0x80, 0xff][rng.below(5) as usize];
        }
        let bytes = block[1024..2048].try_into().expect("its bytes");
        let Ok(sb) = Superblock::parse(bytes, BLOCKS * 4096) else { return Ok(()) };
        let Ok(mut shadow) = Shadow::new(sb, if rng.below(2) == 0 { Wanted::ALL } else { Wanted::INODES }) else { return Ok(()) };
        for _ in 0..60 {
            let mut sector = match rng.below(4) {
                0 => made::descriptors(),
                1 => made::table(1, &[Inode::Freed; 2 * PER_GROUP]),
                2 => made::bitmap(|_| false),
                _ => (0..4096).map(|_| rng.next_u64() as u8).collect(),
            };
            if rng.below(2) == 0 {
                let at = rng.below(100) as usize;
                sector[at] = rng.next_u64() as u8;
            }
            let all: Vec<u64> = shadow.watched(0..BLOCKS).take(2000).collect();
            let at = all[rng.below(all.len() as u64) as usize];
            let content = match rng.below(8) {
                0 => Content::Gone,
                1 => Content::Unsure,
                _ => Content::Written(&sector),
            };
            shadow.holds(at, content);
            shadow.superblock_is(content, BLOCKS * 4096);
            if let Some((first, n)) = shadow.take_dead(64, |_| false) {
                assert!(first + n <= BLOCKS);
                (first..first + n).for_each(|sector| _ = shadow.holds(sector, Content::Gone));
            }
            shadow.sweep();
            shadow.find_all();
            for found in shadow.take_found() {
                if let Found::Freed(run) | Found::Passed(run) = found {
                    assert!(run.start < run.end && run.end <= BLOCKS);
                }
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
    let block = table_at(1);
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
    kernel.shadow.holds(table_at(1), Content::Unsure);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "its block may hold anything");
    kernel.write_table(1);
    kernel.shadow.holds(bitmap_at(0), Content::Unsure);
    assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "the bitmap may be anything");
    kernel.write_bits(0);
    // The table lies elsewhere, as it seems.
    let mut moved = made::descriptors();
    moved[8..12].copy_from_slice(&40u32.to_le_bytes());
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
        kernel.shadow.holds(table_at(1), Content::Written(&block));
        assert_eq!(kernel.shadow.take_dead(9, |_| false), None, "byte {at:#x}");
        kernel.write_table(1);
        assert!(kernel.shadow.take_dead(9, |_| false).is_some());
    }
}

/// A file system of 1 TiB by the defaults of `mke2fs`, every bitmap of which was seen.
#[test]
fn a_tebibyte_takes_45_mib() {
    const TEBI_GROUPS: u32 = 8192;
    let mut b = [0; 1024];
    let words: [(usize, u32); 9] = [
        (0x0, TEBI_GROUPS * 8192),
        (0x4, TEBI_GROUPS * 32768),
        (0x18, 2),
        (0x20, 32768),
        (0x24, 32768),
        (0x28, 8192),
        (0x4c, 1),
        (0x54, 11),
        (0x60, 0x2),
    ];
    words.iter().for_each(|(at, word)| b[*at..at + 4].copy_from_slice(&word.to_le_bytes()));
    b[0x38..0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
    b[0x58..0x5a].copy_from_slice(&256u16.to_le_bytes());
    let sb = Superblock::parse(&b, 1 << 40).expect("a superblock");
    let mut shadow = Shadow::new(sb, Wanted::INODES).expect("it can be followed");
    for (first, sector) in (0..TEBI_GROUPS).step_by(128).zip(1..) {
        let mut block = vec![0; SECTOR];
        for (i, group) in (first..first + 128).enumerate() {
            let at = group * 32768;
            block[32 * i..32 * i + 4].copy_from_slice(&(at + 500).to_le_bytes());
            block[32 * i + 4..32 * i + 8].copy_from_slice(&(at + 1000).to_le_bytes());
            block[32 * i + 8..32 * i + 12].copy_from_slice(&(at + 2000).to_le_bytes());
        }
        shadow.holds(sector, Content::Written(&block));
    }
    for group in 0..u64::from(TEBI_GROUPS) {
        shadow.holds(group * 32768 + 500, Content::Written(&[0xff; SECTOR]));
        shadow.holds(group * 32768 + 1000, Content::Written(&[0xff; SECTOR]));
    }
    assert_eq!(shadow.unseen().len(), TEBI_GROUPS as usize);
    let mib = shadow.bytes() as f64 / (1 << 20) as f64;
    assert!((44.0..46.0).contains(&mib), "{mib} MiB");
}

#[test]
fn places_that_overlap_are_none() {
    let mut kernel = Kernel::new(false);
    let mut block = made::descriptors();
    // The second group's bitmap in the first one's table.
    block[36..40].copy_from_slice(&22u32.to_le_bytes());
    kernel.shadow.holds(1, Content::Written(&block));
    assert_eq!(kernel.shadow.unseen(), []);
    assert_eq!(kernel.shadow.watched(0..100).collect::<Vec<_>>(), [0, 1]);
    kernel.shadow.holds(1, Content::Written(&made::descriptors()));
    assert_eq!(kernel.shadow.unseen(), [10..14, 20..28]);
    kernel.write_bits(0);
    kernel.write_table(1);
    kernel.write_table(2);
    assert_eq!(kernel.shadow.unseen(), [11..14, 20..21, 23..28]);
    assert_eq!(kernel.shadow.watched(1..22).collect::<Vec<_>>(), [1, 10, 11, 12, 13, 20, 21]);
}

#[test]
fn a_superblock_says_what_becomes_of_it() {
    let mut kernel = Kernel::new(false);
    let all = BLOCKS * 4096;
    let written =
        |shadow: &mut Shadow, block: Vec<u8>| shadow.superblock_is(Content::Written(&block), all);
    assert!(matches!(written(&mut kernel.shadow, vec![0; 4096]), Change::Ended(_)));
    // Mounted, unmounted, grown.
    let mounted = made::superblock(false, GROUPS);
    assert!(matches!(written(&mut kernel.shadow, mounted), Change::None));
    let unmounted = made::superblock(true, GROUPS);
    assert!(matches!(written(&mut kernel.shadow, unmounted), Change::Unmounted));
    assert!(matches!(written(&mut kernel.shadow, made::superblock(true, 1)), Change::Other(_)));
    assert!(matches!(kernel.shadow.superblock_is(Content::Gone, all), Change::Ended(_)));
}

/// All that may be discarded is wanted; of a file system with a journal, whose inode was seen.
fn wants_all(has_journal: bool) -> Shadow {
    let block = match has_journal {
        true => made::superblock_with_journal(false),
        false => made::superblock(true, GROUPS),
    };
    let sb = Superblock::parse(block[1024..2048].try_into().expect("its bytes"), BLOCKS * 4096);
    let mut shadow = Shadow::new(sb.expect("one"), Wanted::ALL).expect("it can be followed");
    shadow.holds(1, Content::Written(&made::descriptors()));
    let mut table = made::table(0, &[Inode::Linked; PER_GROUP]);
    made::put_journal_inode(&mut table);
    assert_eq!(shadow.holds(table_at(0), Content::Written(&table)), has_journal);
    shadow.take_found();
    shadow
}

fn found(shadow: &mut Shadow, sector: u64, bytes: &[u8]) -> Vec<Found> {
    shadow.holds(sector, Content::Written(bytes));
    shadow.take_found()
}

#[test]
fn a_bitmap_says_which_blocks_were_freed() {
    let at = made::blocks_at(0);
    let log = made::JOURNAL..made::JOURNAL + u64::from(made::JOURNAL_BLOCKS);
    let bits = |used: Range<u64>| {
        let log = log.clone();
        made::blocks(0, move |b| b < 100 || used.contains(&b) || log.contains(&b))
    };
    for has_journal in [false, true] {
        let mut shadow = wants_all(has_journal);
        let freed = |runs: &[Range<u64>]| {
            let runs = runs.iter().cloned().map(Found::Freed);
            runs.chain((!has_journal).then_some(Found::Settled)).collect::<Vec<_>>()
        };
        let per_group = BLOCKS / GROUPS as u64;
        // Of the first one that is seen all that is free may be held since long ago.
        let all = freed(&[100..200, 300..log.start, log.end..per_group]);
        assert_eq!(found(&mut shadow, at, &bits(200..300)), all);
        assert_eq!(found(&mut shadow, at, &bits(200..300)), freed(&[]));
        assert_eq!(found(&mut shadow, at, &bits(210..250)), freed(&[200..210, 250..300]));
        let mut taken = vec![Found::Taken(200..210), Found::Taken(250..300)];
        taken.extend(freed(&[]));
        assert_eq!(found(&mut shadow, at, &bits(200..300)), taken);
        shadow.holds(at, Content::Unsure);
        assert_eq!(shadow.take_found(), [Found::Taken(0..per_group)]);
        assert_eq!(found(&mut shadow, at, &bits(200..300)), all);
        shadow.find_all();
        let mut again: Vec<Found> = all.into_iter().filter(|f| *f != Found::Settled).collect();
        again.push(Found::Settled);
        assert_eq!(shadow.take_found(), again, "the other group's bitmap was not seen");
    }
}

/// With a journal a bitmap may be one of a replay, which newer ones follow.
#[test]
fn what_is_free_is_so_when_the_journal_says_so_too() {
    let mut shadow = wants_all(true);
    assert!(
        !found(&mut shadow, made::blocks_at(0), &made::blocks(0, |_| false))
            .contains(&Found::Settled)
    );
    let says = found(&mut shadow, made::JOURNAL, &made::journal(5));
    assert_eq!(says, [Found::Settled]);
    let mut broken = made::journal(5);
    broken[0] = 0;
    assert_eq!(found(&mut shadow, made::JOURNAL, &broken), []);
    let Change::Unmounted = ({
        let mut written = |clean: bool| {
            let block = made::superblock_with_journal(clean);
            shadow.superblock_is(Content::Written(&block), BLOCKS * 4096)
        };
        assert!(matches!(written(false), Change::None));
        written(true)
    }) else {
        panic!("it was unmounted")
    };
    assert_eq!(shadow.take_found(), [Found::Settled]);
}

#[test]
fn the_log_is_needed_from_where_recovery_begins() {
    let mut shadow = wants_all(true);
    let mut says = |start: u32| {
        let found = found(&mut shadow, made::JOURNAL, &made::journal(start));
        let log = |found| match found {
            Found::Passed(run) => Some(run.start - made::JOURNAL..run.end - made::JOURNAL),
            _ => None,
        };
        found.into_iter().filter_map(log).collect::<Vec<_>>()
    };
    let one = |run: Range<u64>| std::iter::once(run).collect::<Vec<_>>();
    assert_eq!(says(7), [], "nobody knows what it said before");
    assert_eq!(says(7), []);
    assert_eq!(says(20), one(7..20));
    assert_eq!(says(4), [20..64, 1..4], "round");
    assert_eq!(says(64), [], "that is no block of it");
    assert_eq!(says(9), []);
    assert_eq!(says(0), one(1..64), "it is empty");
    assert_eq!(says(1), [], "it was empty before");
    assert_eq!(says(3), one(1..3));
}

#[test]
fn a_bitmap_of_zeros_reads_the_same_without_it() {
    let mut shadow = wants_all(false);
    let zeros = |shadow: &mut Shadow, sector: u64, bytes: &[u8]| {
        found(shadow, sector, bytes).contains(&Found::ZeroBitmap(sector))
    };
    for sector in [bitmap_at(1), made::blocks_at(1)] {
        let mut block = [0; SECTOR];
        assert!(zeros(&mut shadow, sector, &block));
        block[4000] = 1;
        assert!(!zeros(&mut shadow, sector, &block), "padding");
    }
    assert!(!zeros(&mut shadow, table_at(3), &[0; SECTOR]), "inodes");
}

/// Where errors were found a bitmap may say that a block is free that is none, and what was found before does not count.
#[test]
fn nothing_is_free_where_errors_were_found() {
    let mut shadow = wants_all(true);
    let at = made::blocks_at(1);
    let mut block = made::superblock_with_journal(false);
    block[1024 + 0x3a] |= 2;
    shadow.superblock_is(Content::Written(&block), BLOCKS * 4096);
    assert_eq!(shadow.take_found(), [Found::Taken(0..BLOCKS)]);
    let per_group = BLOCKS / GROUPS as u64;
    let from = per_group + 100;
    assert_eq!(found(&mut shadow, at, &made::blocks(1, |block| block < from)), []);
    assert_eq!(found(&mut shadow, at, &made::blocks(1, |_| true)), [Found::Taken(from..BLOCKS)]);
}

/// A journal that is taken away leaves blocks that files take.
#[test]
fn a_log_is_none_when_the_journal_is_gone() {
    let mut shadow = wants_all(true);
    assert!(!found(&mut shadow, made::JOURNAL, &made::journal(0)).is_empty());
    let without = made::superblock(true, GROUPS);
    shadow.superblock_is(Content::Written(&without), BLOCKS * 4096);
    let log = made::JOURNAL..made::JOURNAL + u64::from(made::JOURNAL_BLOCKS);
    assert!(shadow.take_found().contains(&Found::Taken(log)));
    shadow.find_all();
    assert!(!shadow.take_found().iter().any(|found| matches!(found, Found::Passed(_))));
    assert_eq!(found(&mut shadow, made::JOURNAL, &made::journal(0)), []);
}

/// A bitmap that isn't on the medium says nothing, and one that has metadata free neither.
#[test]
fn a_bitmap_that_can_not_be_right_frees_nothing() {
    let mut shadow = wants_all(false);
    let freed = |found: Vec<Found>| found.into_iter().any(|f| matches!(f, Found::Freed(_)));
    let at = made::blocks_at(0);
    assert!(!freed(found(&mut shadow, at, &made::blocks(0, |_| false))), "metadata");
    let one = made::blocks(0, |block| block != 100 && block != 10);
    assert!(!freed(found(&mut shadow, at, &one)), "the bitmap of inodes");
    assert!(freed(found(&mut shadow, at, &made::blocks(0, |block| block < 100))));
}
