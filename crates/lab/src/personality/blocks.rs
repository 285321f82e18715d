//! What files hold whose blocks are written again and again, so that every read is checked.
//!
//! Owns: of each block how often it was written, and its content as a function of that. Promises: a
//! read has to find what one of the writes left that can have been the last when it began, or that
//! was under way meanwhile. Never: keeps contents.

use flashlane_base::{mix64, mutant};

/// A block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// The oldest write that may still be seen, and the newest that has begun.
    oldest: u32,
    newest: u32,
    /// Writes that are under way, and the first that began since there was one.
    under_way: u32,
    first: u32,
}

/// All blocks of a set of files.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    seed: u64,
    bytes: usize,
    blocks: Vec<Block>,
}

impl Blocks {
    /// So many, each of so many bytes: a multiple of eight.
    pub(super) fn new(seed: u64, bytes: usize, count: usize) -> Blocks {
        Blocks { seed, bytes, blocks: vec![Block::default(); count] }
    }

    /// A write begins: what it writes.
    pub(super) fn begin_write(&mut self, block: usize, into: &mut [u8]) {
        let of = &mut self.blocks[block];
        of.newest += 1;
        if of.under_way == 0 {
            of.first = of.newest;
        }
        of.under_way += 1;
        let newest = of.newest;
        self.fill(block, newest, into);
    }

    /// It has ended. What failed may be there or not.
    pub(super) fn end_write(&mut self, block: usize, ok: bool) {
        let of = &mut self.blocks[block];
        of.under_way -= 1;
        if !ok {
            of.first = of.oldest;
        }
        if of.under_way == 0 && !mutant!("lab.old-blocks-accepted") {
            of.oldest = of.first;
        }
    }

    /// The oldest write that a read which begins now may see.
    pub(super) fn begin_read(&self, block: usize) -> u32 {
        self.blocks[block].oldest
    }

    /// Whether what a read got is none of what it may have seen.
    pub(super) fn is_wrong(&self, block: usize, oldest: u32, got: &[u8]) -> bool {
        let newest = self.blocks[block].newest;
        let is = |version| got.chunks(8).all(|word| word == self.word(block, version));
        !(oldest..=newest).rev().any(is) || got.len() != self.bytes
    }

    fn fill(&self, block: usize, version: u32, into: &mut [u8]) {
        let word = self.word(block, version);
        into.chunks_mut(8).for_each(|part| part.copy_from_slice(&word));
    }

    fn word(&self, block: usize, version: u32) -> [u8; 8] {
        mix64(self.seed ^ (block as u64) << 32 ^ u64::from(version)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_what_the_last_write_left() {
        let mut blocks = Blocks::new(7, 16, 2);
        let (mut a, mut b, mut c) = ([0; 16], [0; 16], [0; 16]);
        blocks.begin_write(0, &mut a);
        blocks.end_write(0, true);
        blocks.begin_write(0, &mut b);
        let seen = blocks.begin_read(0);
        // One is under way: the old one or the new one.
        assert!(!blocks.is_wrong(0, seen, &a) && !blocks.is_wrong(0, seen, &b));
        blocks.begin_write(0, &mut c);
        blocks.end_write(0, true);
        blocks.end_write(0, true);
        // A read that began before may have seen any; one that begins now one of the two.
        assert!(!blocks.is_wrong(0, seen, &a));
        let seen = blocks.begin_read(0);
        assert!(blocks.is_wrong(0, seen, &a), "that is gone");
        assert!(!blocks.is_wrong(0, seen, &b) && !blocks.is_wrong(0, seen, &c));
        // Another block, a byte less, another byte.
        assert!(blocks.is_wrong(1, 0, &c) && blocks.is_wrong(0, seen, &c[..8]));
        c[9] ^= 1;
        assert!(blocks.is_wrong(0, seen, &c));
        // What failed may be there or not.
        let (mut d, mut e) = ([0; 16], [0; 16]);
        blocks.begin_write(0, &mut d);
        blocks.end_write(0, false);
        blocks.begin_write(1, &mut e);
        blocks.end_write(1, true);
        let seen = blocks.begin_read(0);
        assert!(!blocks.is_wrong(0, seen, &b) && !blocks.is_wrong(0, seen, &d));
        assert!(blocks.is_wrong(0, seen, &a) && blocks.is_wrong(0, seen, &e));
    }
}
