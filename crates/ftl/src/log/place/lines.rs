//! What is valid where: per sector a bit, per line a count.
//!
//! Owns: the valid bits over the linear physical sectors, the valid count and the largest stamp of
//! every line, and which line a chunk belongs to.
//! Promises: a line's count is the number of its set bits; a bit is set and cleared by whoever won
//! the exchange on the map, so exactly once. Never: knows a line's state (that is `pool`).

use flashlane_base::FastDiv;
use flashlane_rt::sync::{AtomicU32, AtomicU64, Ordering, zeroed_u64};

pub(in crate::log) const NO_LINE: u32 = u32::MAX;

pub(in crate::log) struct Lines {
    chunk_sectors: u32,
    div: FastDiv,
    /// Linear sectors fit 32 bits, so the fast division applies.
    narrow: bool,
    /// Every change is made under the map lock (pblk): plain loads and stores do, a third of the
    /// price of the locked instructions that an atomic map needs.
    exclusive: bool,
    valid_bits: Box<[AtomicU64]>,
    chunk_line: Box<[AtomicU32]>,
    valid: Box<[AtomicU32]>,
    stamp_max: Box<[AtomicU64]>,
}

impl Lines {
    pub(in crate::log) fn new(chunks: u32, chunk_sectors: u32, exclusive: bool) -> Lines {
        let sectors = chunks as u64 * chunk_sectors as u64;
        Lines {
            chunk_sectors,
            div: FastDiv::new(chunk_sectors),
            narrow: sectors <= u32::MAX as u64,
            exclusive,
            valid_bits: zeroed_u64(sectors.div_ceil(64) as usize),
            chunk_line: (0..chunks).map(|_| AtomicU32::new(NO_LINE)).collect(),
            valid: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            stamp_max: zeroed_u64(chunks as usize),
        }
    }

    #[inline(always)]
    pub(in crate::log) fn chunk_of(&self, addr: u64) -> (u32, u32) {
        if self.narrow {
            self.div.div_rem(addr as u32)
        } else {
            let c = addr / self.chunk_sectors as u64;
            (c as u32, (addr - c * self.chunk_sectors as u64) as u32)
        }
    }

    #[inline(always)]
    pub(in crate::log) fn line_of(&self, addr: u64) -> u32 {
        self.chunk_line[self.chunk_of(addr).0 as usize].load(Ordering::Relaxed)
    }

    pub(in crate::log) fn set_line(&self, chunk: u32, line: u32) {
        self.chunk_line[chunk as usize].store(line, Ordering::Relaxed);
    }

    /// Toggles valid bits; returns the word before.
    #[inline(always)]
    fn toggle(&self, word: u64, bits: u64) -> u64 {
        let word = &self.valid_bits[word as usize];
        if self.exclusive {
            let old = word.load(Ordering::Relaxed);
            word.store(old ^ bits, Ordering::Relaxed);
            old
        } else {
            word.fetch_xor(bits, Ordering::Relaxed)
        }
    }

    #[inline(always)]
    fn count(&self, line: u32, change: u32) {
        let valid = &self.valid[line as usize];
        if self.exclusive {
            valid.store(valid.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
        } else {
            valid.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// The sectors of `mask`, counted from `first`, all of one chunk, are now the current copies of
    /// their logical sectors.
    #[inline]
    pub(in crate::log) fn validate(&self, first: u64, mask: u64) {
        let shift = (first & 63) as u32;
        let old = self.toggle(first >> 6, mask << shift);
        let mut twice = old & mask << shift;
        if shift > 0 && mask >> (64 - shift) != 0 {
            let rest = mask >> (64 - shift);
            twice |= self.toggle((first >> 6) + 1, rest) & rest;
        }
        assert!(twice == 0, "a sector of {mask:#x} from {first} on became valid twice");
        self.count(self.line_of(first), mask.count_ones());
    }

    /// The sector is garbage from now on.
    #[inline]
    pub(in crate::log) fn invalidate(&self, addr: u64) {
        self.invalidate_in(self.line_of(addr), addr >> 6, 1 << (addr & 63));
    }

    /// The sectors of `mask` in the `word`-th 64 of the target, all of one line, are garbage.
    #[inline]
    pub(in crate::log) fn invalidate_in(&self, line: u32, word: u64, mask: u64) {
        let old = self.toggle(word, mask);
        assert!(old & mask == mask, "a sector of {mask:#x} in word {word} was invalidated twice");
        self.count(line, mask.count_ones().wrapping_neg());
    }

    /// Asks for the cache lines that say what a sector's line is and whether it is valid.
    #[inline]
    pub(in crate::log) fn prefetch(&self, addr: u64) {
        flashlane_base::prefetch(&self.valid_bits[(addr >> 6) as usize]);
        flashlane_base::prefetch(&self.chunk_line[self.chunk_of(addr).0 as usize]);
    }

    #[inline]
    pub(in crate::log) fn is_valid(&self, addr: u64) -> bool {
        self.valid_bits[(addr >> 6) as usize].load(Ordering::Relaxed) >> (addr & 63) & 1 != 0
    }

    /// Valid bits of `n` ≤ 64 sectors from `addr`, lowest first.
    #[inline]
    pub(in crate::log) fn bits(&self, addr: u64, n: u32) -> u64 {
        let (word, shift) = ((addr >> 6) as usize, (addr & 63) as u32);
        let mut bits = self.valid_bits[word].load(Ordering::Relaxed) >> shift;
        if shift + n > 64 {
            bits |= self.valid_bits[word + 1].load(Ordering::Relaxed) << (64 - shift);
        }
        if n == 64 { bits } else { bits & ((1 << n) - 1) }
    }

    #[inline]
    pub(in crate::log) fn valid(&self, line: u32) -> u32 {
        self.valid[line as usize].load(Ordering::Relaxed)
    }

    /// Largest stamp programmed into a line; raised before the line's addresses are published.
    #[inline]
    pub(in crate::log) fn stamp_max(&self, line: u32) -> u64 {
        self.stamp_max[line as usize].load(Ordering::Relaxed)
    }

    #[inline]
    pub(in crate::log) fn raise_stamp(&self, line: u32, stamp: u64) {
        self.stamp_max[line as usize].fetch_max(stamp, Ordering::Relaxed);
    }

    /// A line begins: nothing valid, no stamp.
    pub(in crate::log) fn reset(&self, line: u32) {
        assert_eq!(self.valid(line), 0, "line {line} reused while sectors in it are valid");
        self.stamp_max[line as usize].store(0, Ordering::Relaxed);
    }

    /// Valid sectors of all lines, for the walk of tests.
    pub(in crate::log) fn total_valid(&self) -> u64 {
        self.valid.iter().map(|v| v.load(Ordering::Relaxed) as u64).sum()
    }

    /// Set bits, counted one by one, for the walk of tests.
    pub(in crate::log) fn count_bits(&self) -> u64 {
        self.valid_bits.iter().map(|w| w.load(Ordering::Relaxed).count_ones() as u64).sum()
    }
}
