//! Content of a sector as a function of (address, version), in both forms a device may keep.
//!
//! Owns: the function and its inverse. Promises: different (address, version) give different
//! content, version 0 is zeros, and whatever is read back can be named: which sector's content it
//! is, of which version, or that it is nobody's. Never: keeps state.

use flashlane_base::{Lba, SECTOR_BYTES};
use std::fmt;

/// Which write of a run produced a sector's content; versions are drawn from one counter. Version 0
/// stands for never written and for discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// Never written, or discarded: zeros.
    pub const ZEROS: Version = Version(0);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "zeros"),
            n => write!(f, "version {n}"),
        }
    }
}

/// What was found where a sector's content should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing but zeros.
    Zeros,
    /// The content of this sector in this version.
    Sector(Lba, Version),
    /// No content of ours, from this byte on.
    Garbage(usize),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Zeros => write!(f, "zeros"),
            Found::Sector(lba, version) => write!(f, "{version} of {lba}"),
            Found::Garbage(at) => write!(f, "nobody's content from byte {at} on"),
        }
    }
}

const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The inverse of an odd number modulo 2^64 (Newton: each round doubles the good bits, 3 to begin).
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut round = 0;
    while round < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

/// Bijective, and 0 for 0 only: content that was written is never zeros by chance.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(FIRST);
    let x = (x ^ (x >> 32)).wrapping_mul(SECOND);
    x ^ (x >> 32)
}

fn unmix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(const { inverse(SECOND) });
    let x = (x ^ (x >> 32)).wrapping_mul(const { inverse(FIRST) });
    x ^ (x >> 32)
}

fn first_word(lba: Lba, version: Version) -> u64 {
    debug_assert!(lba.get() < 1 << 32);
    mix((version.0 as u64) << 32 | lba.get())
}

/// Writes the content of one sector; `sector` has 8 bytes (the `stamps` store) or 4096.
pub fn fill(lba: Lba, version: Version, sector: &mut [u8]) {
    debug_assert!(sector.len() == 8 || sector.len() == SECTOR_BYTES);
    if version == Version::ZEROS {
        return sector.fill(0);
    }
    let mut word = first_word(lba, version);
    for eight in sector.chunks_exact_mut(8) {
        eight.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(STEP);
    }
}

/// True when `sector` holds exactly this.
pub fn is(lba: Lba, version: Version, sector: &[u8]) -> bool {
    if version == Version::ZEROS {
        return is_zeros(sector);
    }
    differs_at(first_word(lba, version), sector).is_none()
}

/// Compared with zeros at hand, which is a call of the C library: after a cut most of what is read is
/// zeros, and a loop over bytes was most of such a run.
fn is_zeros(sector: &[u8]) -> bool {
    static ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];
    sector.chunks(SECTOR_BYTES).all(|part| part == &ZEROS[..part.len()])
}

/// The first byte group that breaks the sequence that begins with `word`.
fn differs_at(mut word: u64, sector: &[u8]) -> Option<usize> {
    for (i, eight) in sector.as_chunks::<8>().0.iter().enumerate() {
        if u64::from_le_bytes(*eight) != word {
            return Some(i * 8);
        }
        word = word.wrapping_add(STEP);
    }
    None
}

/// Names what `sector` holds.
pub fn name(sector: &[u8]) -> Found {
    if is_zeros(sector) {
        return Found::Zeros;
    }
    let Some(first) = sector.first_chunk::<8>() else {
        return Found::Garbage(0);
    };
    let word = u64::from_le_bytes(*first);
    let packed = unmix(word);
    let (lba, version) = (packed & u32::MAX as u64, (packed >> 32) as u32);
    match differs_at(word, sector) {
        None if version > 0 => Found::Sector(Lba::new(lba), Version(version)),
        None => Found::Garbage(0),
        Some(at) => Found::Garbage(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written can be named, in both forms, and a torn sector is nobody's from the tear on.
    #[test]
    fn content_names_its_sector_and_version() {
        for bytes in [8, SECTOR_BYTES] {
            let mut sector = vec![0; bytes];
            for (lba, version) in [(0, 1), (1, 0), (77, 12), (u32::MAX as u64, u32::MAX)] {
                let (lba, version) = (Lba::new(lba), Version(version));
                fill(lba, version, &mut sector);
                assert!(is(lba, version, &sector));
                assert!(!is(lba, Version(version.0 ^ 2), &sector));
                let expected = match version {
                    Version::ZEROS => Found::Zeros,
                    _ => Found::Sector(lba, version),
                };
                assert_eq!(name(&sector), expected);
            }
        }
        let (mut torn, mut other) = (vec![0; SECTOR_BYTES], vec![0; SECTOR_BYTES]);
        fill(Lba::new(5), Version(1), &mut torn);
        fill(Lba::new(5), Version(2), &mut other);
        torn[512..].copy_from_slice(&other[512..]);
        assert_eq!(name(&torn), Found::Garbage(512));
    }
}
