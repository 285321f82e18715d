//! The 16 bytes beside every 4 KiB sector: which logical sector, since when, and is it whole.
//!
//! Owns the packing of (lba, stamp) into 96 bits, shared with the closing metadata of a line, and
//! the reserved top of the lba range that types sectors without user data.
//! Promises: a sector verifies only with the content, lba and stamp it was written with; the CRC
//! covers no medium address, so a device may copy sectors by itself.
//! Never judges a stamp's order or a lba's capacity.
//!
//! | bits | field |
//! |---|---|
//! | 0 .. 36 | lba, or one of the reserved types |
//! | 36 .. 96 | stamp: ns for user data, the line's sequence for reserved types |
//! | 96 .. 128 | CRC32C over the content, then over the 12 bytes before |
//!
//! The content comes first in the CRC so that a slot computes it once: a retry or a GC copy under
//! another lba or stamp continues it over 12 bytes.
//!
//! Bits 32 .. 36 are free where a device has less than 2^32 sectors: the FTL inside a drive keeps a
//! *tag* there ([`Oob::set_tag`], `kit/witness.rs`).

use flashlane_ocssd::device::Gather;

/// Bits of a logical sector number: 2^36 sectors of 4 KiB are 256 TiB.
pub const LBA_BITS: u32 = 36;
/// Bits of a stamp: 2^60 ns are 36 years.
pub const STAMP_BITS: u32 = 60;
pub const LBA_MASK: u64 = (1 << LBA_BITS) - 1;
/// Largest stamp. Zero is never issued, so that predefined (all-zero) OOB is no user sector.
pub const STAMP_MAX: u64 = (1 << STAMP_BITS) - 1;
/// First reserved lba and thus the largest capacity, in sectors. The top 256 values are types.
pub const LBA_LIMIT: u64 = (1 << LBA_BITS) - 256;
/// Nothing is here: erased cells read as ones; in closing metadata a failed or unwritten sector.
pub const LBA_NONE: u64 = LBA_MASK;
/// Padding of any cause, and slots found dead when their unit was built.
pub const LBA_PADDING: u64 = LBA_MASK - 1;
pub const LBA_LINE_FIRST: u64 = LBA_MASK - 2;
pub const LBA_LINE_CLOSING: u64 = LBA_MASK - 3;
/// A block of the FTL log.
pub const LBA_LOG: u64 = LBA_MASK - 4;
pub const LBA_ANCHOR: u64 = LBA_MASK - 5;
/// A checkpoint shard (translation pages).
pub const LBA_CHECKPOINT: u64 = LBA_MASK - 6;
/// A sector of a block SSD's snapshot (`kit/snapshot.rs`); the host FTL writes none.
pub const LBA_SNAPSHOT: u64 = LBA_MASK - 7;

/// Bytes of a packed (lba, stamp) pair.
pub const PACKED_BYTES: usize = 12;

/// Tables to continue a CRC32C over up to 12 bytes at once: `[k][b]` is byte b followed by k zeros.
///
/// For machines without a CRC32C instruction. 12 independent loads take 6.6 ns where
/// what was made for long inputs took 15 to 17 (latency, 2-core Xeon); a simulated sector
/// has a budget of 50 ns, and four of these in it.
static CRC_TABLES: [[u32; 256]; PACKED_BYTES] = crc_tables();

const fn crc_tables() -> [[u32; 256]; PACKED_BYTES] {
    /// Castagnoli's polynomial, bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; PACKED_BYTES];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut at = 256;
    while at < 256 * PACKED_BYTES {
        let before = tables[at / 256 - 1][at % 256];
        tables[at / 256][at % 256] = (before >> 8) ^ tables[0][before as usize & 0xff];
        at += 1;
    }
    tables
}

/// The part of a CRC that byte `at` of `word` gives, when `zeros` bytes follow it.
#[inline(always)]
fn crc_part(word: u64, at: u32, zeros: usize) -> u32 {
    CRC_TABLES[zeros][(word >> (8 * at)) as usize & 0xff]
}

/// The processor's own CRC32C over 8 and 12 bytes: three instructions where tables take 80.
#[cfg(target_arch = "x86_64")]
mod hardware {
    use super::Gather;
    use std::arch::x86_64::{_mm_crc32_u32, _mm_crc32_u64};

    /// Looked up once by the standard library: a load and a predicted branch.
    #[inline(always)]
    pub(super) fn is_there() -> bool {
        std::arch::is_x86_feature_detected!("sse4.2")
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn word(crc: u32, word: u64) -> u32 {
        !(_mm_crc32_u64(u64::from(!crc), word) as u32)
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn both(content: u64, bits: u128) -> u32 {
        let content = _mm_crc32_u64(u64::from(u32::MAX), content);
        !_mm_crc32_u32(_mm_crc32_u64(content, bits as u64) as u32, (bits >> 64) as u32)
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn seal_words(oob: &mut [[u8; 16]], content: &Gather<'_>) {
        super::seal_words_by(oob, content, |word, bits| both(word, bits));
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn verify_words(oob: &[[u8; 16]], content: &[u8]) -> u64 {
        super::verify_words_by(oob, content, |word, bits| both(word, bits))
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn packed(crc: u32, low: u64, high: u32) -> u32 {
        !_mm_crc32_u32(_mm_crc32_u64(u64::from(!crc), low) as u32, high)
    }
}

/// Continues a CRC32C over the 12 bytes of a packed pair.
#[inline(always)]
fn crc_packed(crc: u32, bits: u128) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if hardware::is_there() {
        // SAFETY: the instruction exists on this machine.
        return unsafe { hardware::packed(crc, bits as u64, (bits >> 64) as u32) };
    }
    crc_packed_by_table(crc, bits)
}

/// CRC32C over a word of content and the 12 bytes of a packed pair.
#[inline]
fn crc_both_by_table(content: u64, bits: u128) -> u32 {
    crc_packed_by_table(crc_word_by_table(content), bits)
}

#[inline(always)]
fn seal_words_by(oob: &mut [[u8; 16]], content: &Gather<'_>, crc: impl Fn(u64, u128) -> u32) {
    let words = content.arrays::<8>(0, oob.len());
    for (record, word) in oob.iter_mut().zip(words) {
        let word = u64::from_le_bytes(*word);
        let crc = crc(word, u128::from_le_bytes(*record) & (u128::MAX >> 32));
        record[PACKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[inline(always)]
fn verify_words_by(oob: &[[u8; 16]], content: &[u8], crc: impl Fn(u64, u128) -> u32) -> u64 {
    let (words, _) = content.as_chunks::<8>();
    let mut whole = 0;
    for (i, (record, word)) in oob.iter().zip(words).enumerate() {
        let bits = u128::from_le_bytes(*record);
        let crc = crc(u64::from_le_bytes(*word), bits & (u128::MAX >> 32));
        whole |= u64::from(crc == (bits >> 96) as u32) << i;
    }
    whole
}

#[inline]
fn crc_packed_by_table(crc: u32, bits: u128) -> u32 {
    let low = bits as u64 ^ u64::from(!crc);
    let high = (bits >> 64) as u64;
    let first = crc_part(low, 0, 11) ^ crc_part(low, 1, 10) ^ crc_part(low, 2, 9);
    let second = crc_part(low, 3, 8) ^ crc_part(low, 4, 7) ^ crc_part(low, 5, 6);
    let third = crc_part(low, 6, 5) ^ crc_part(low, 7, 4) ^ crc_part(high, 0, 3);
    let fourth = crc_part(high, 1, 2) ^ crc_part(high, 2, 1) ^ crc_part(high, 3, 0);
    !(first ^ second ^ third ^ fourth)
}

#[inline]
fn crc_word_by_table(content: u64) -> u32 {
    let low = content ^ u64::from(u32::MAX);
    let first = crc_part(low, 0, 7) ^ crc_part(low, 1, 6) ^ crc_part(low, 2, 5);
    let second = crc_part(low, 3, 4) ^ crc_part(low, 4, 3) ^ crc_part(low, 5, 2);
    !(first ^ second ^ crc_part(low, 6, 1) ^ crc_part(low, 7, 0))
}

/// What the lba field of an out-of-band record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OobLba {
    /// A logical sector, below [`LBA_LIMIT`]. Whether it is below the capacity is for the caller.
    User(u64),
    /// Nothing was written, or what was written failed.
    None,
    /// Padding, or a slot that was dead when its unit was built.
    Padding,
    /// First metadata of a line.
    LineFirst,
    /// Closing metadata of a line.
    LineClosing,
    /// FTL log.
    Log,
    Anchor,
    /// Checkpoint shard.
    Checkpoint,
    /// A type of a newer version: holds no user data, or the major version would differ.
    Reserved(u64),
}

impl OobLba {
    /// The type behind a raw lba field; bits above [`LBA_BITS`] are ignored.
    pub const fn from_raw(raw: u64) -> OobLba {
        match raw & LBA_MASK {
            LBA_NONE => OobLba::None,
            LBA_PADDING => OobLba::Padding,
            LBA_LINE_FIRST => OobLba::LineFirst,
            LBA_LINE_CLOSING => OobLba::LineClosing,
            LBA_LOG => OobLba::Log,
            LBA_ANCHOR => OobLba::Anchor,
            LBA_CHECKPOINT => OobLba::Checkpoint,
            user if user < LBA_LIMIT => OobLba::User(user),
            reserved => OobLba::Reserved(reserved),
        }
    }

    pub const fn raw(self) -> u64 {
        match self {
            OobLba::User(lba) | OobLba::Reserved(lba) => lba,
            OobLba::None => LBA_NONE,
            OobLba::Padding => LBA_PADDING,
            OobLba::LineFirst => LBA_LINE_FIRST,
            OobLba::LineClosing => LBA_LINE_CLOSING,
            OobLba::Log => LBA_LOG,
            OobLba::Anchor => LBA_ANCHOR,
            OobLba::Checkpoint => LBA_CHECKPOINT,
        }
    }
}

/// Packs a raw lba (36 bits) and a stamp (60 bits) into 12 bytes. Branch-free; larger values are a
/// caller's bug and lose their upper bits (debug builds assert).
#[inline(always)]
pub const fn pack_entry(lba: u64, stamp: u64) -> [u8; PACKED_BYTES] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = pack_bits(lba, stamp).to_le_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l]
}

/// The 96 bits of a packed pair.
#[inline(always)]
const fn pack_bits(lba: u64, stamp: u64) -> u128 {
    debug_assert!(lba <= LBA_MASK && stamp <= STAMP_MAX);
    (lba & LBA_MASK) as u128 | (((stamp & STAMP_MAX) as u128) << LBA_BITS)
}

/// The inverse of [`pack_entry`]: (raw lba, stamp).
#[inline(always)]
pub const fn unpack_entry(packed: &[u8; PACKED_BYTES]) -> (u64, u64) {
    // Two loads; a pattern of twelve bytes becomes twelve.
    let (Some(low), Some(high)) = (packed.first_chunk::<8>(), packed.last_chunk::<4>()) else {
        unreachable!()
    };
    let (low, high) = (u64::from_le_bytes(*low), u32::from_le_bytes(*high));
    (low & LBA_MASK, (low >> LBA_BITS) | ((high as u64) << (64 - LBA_BITS)))
}

/// The out-of-band record of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oob;

impl Oob {
    /// Bytes of a record: 64 B of OOB per 16 KiB flash page leave exactly this per 4 KiB.
    pub const BYTES: usize = 16;

    /// CRC32C over a sector's content: the part that a slot keeps for retries and copies.
    #[inline]
    pub fn content_crc(content: &[u8]) -> u32 {
        flashlane_base::crc32c(content)
    }

    /// [`Oob::content_crc`] of the 8 little-endian bytes that the `stamps` store keeps per sector.
    #[inline]
    pub fn content_crc_word(content: u64) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if hardware::is_there() {
            // SAFETY: the instruction exists on this machine.
            return unsafe { hardware::word(0, content) };
        }
        crc_word_by_table(content)
    }

    /// Encodes a record. `content_crc` is [`Oob::content_crc`] of the content.
    #[inline]
    pub fn encode(lba: OobLba, stamp: u64, content_crc: u32) -> [u8; Oob::BYTES] {
        Oob::encode_raw(lba.raw(), stamp, content_crc)
    }

    /// [`Oob::encode`] for the data path, which carries raw lbas.
    #[inline]
    pub fn encode_raw(lba: u64, stamp: u64, content_crc: u32) -> [u8; Oob::BYTES] {
        let bits = pack_bits(lba, stamp);
        (bits | u128::from(crc_packed(content_crc, bits)) << 96).to_le_bytes()
    }

    /// A record whose CRC is still to come: [`Oob::seal_words`].
    #[inline(always)]
    pub fn unsealed(lba: u64, stamp: u64) -> [u8; Oob::BYTES] {
        pack_bits(lba, stamp).to_le_bytes()
    }

    /// Completes records of content that the `stamps` store keeps as one little-endian word per
    /// sector: the whole unit in one go, because a call per sector costs
    /// more than its CRC.
    #[inline]
    pub fn seal_words(oob: &mut [[u8; Oob::BYTES]], content: &Gather<'_>) {
        #[cfg(target_arch = "x86_64")]
        if hardware::is_there() {
            // SAFETY: the instruction exists on this machine.
            return unsafe { hardware::seal_words(oob, content) };
        }
        seal_words_by(oob, content, crc_both_by_table);
    }

    /// [`Oob::verify`] of content that the `stamps` store keeps as one little-endian word per
    /// sector: bit `i` is set when sector `i`, of 64 at most, is whole.
    #[inline]
    pub fn verify_words(oob: &[[u8; Oob::BYTES]], content: &[u8]) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if hardware::is_there() {
            // SAFETY: the instruction exists on this machine.
            return unsafe { hardware::verify_words(oob, content) };
        }
        verify_words_by(oob, content, crc_both_by_table)
    }

    /// Puts `tag` (4 bits) into the highest bits of a record's lba, in the place of the tag that is
    /// there. The record verifies with the same content as before: a CRC is linear, so it changes
    /// by the CRC of the bits that change, whatever the content is.
    #[inline]
    pub fn set_tag(oob: &mut [u8; Oob::BYTES], tag: u8) {
        let bits = u128::from_le_bytes(*oob);
        let change = ((bits >> 32) as u8 ^ tag) & 0x0f;
        // Seven bytes follow the one with the tag.
        let crc = CRC_TABLES[7][usize::from(change)];
        *oob = (bits ^ u128::from(change) << 32 ^ u128::from(crc) << 96).to_le_bytes();
    }

    /// The lba without its tag, and the tag, of a raw lba as [`Oob::decode_raw`] gives it. A type
    /// is given as it is, with tag 0.
    #[inline]
    pub const fn split_tag(raw: u64) -> (u64, u8) {
        if raw >= LBA_LIMIT { (raw, 0) } else { (raw & u32::MAX as u64, (raw >> 32) as u8) }
    }

    /// Takes a record apart without judging it: (lba, stamp, CRC as stored).
    #[inline]
    pub fn decode(oob: &[u8; Oob::BYTES]) -> (OobLba, u64, u32) {
        let (lba, stamp, crc) = Oob::decode_raw(oob);
        (OobLba::from_raw(lba), stamp, crc)
    }

    /// [`Oob::decode`] for the data path: (raw lba, stamp, CRC as stored).
    #[inline]
    pub fn decode_raw(oob: &[u8; Oob::BYTES]) -> (u64, u64, u32) {
        let bits = u128::from_le_bytes(*oob);
        let stamp = (bits >> LBA_BITS) as u64 & STAMP_MAX;
        (bits as u64 & LBA_MASK, stamp, (bits >> 96) as u32)
    }

    /// Is this record the one that was written with this content?
    #[inline]
    pub fn verify(oob: &[u8; Oob::BYTES], content: &[u8]) -> bool {
        Oob::verify_crc(oob, flashlane_base::crc32c(content))
    }

    /// [`Oob::verify`] where the content's CRC is known already.
    #[inline]
    pub fn verify_crc(oob: &[u8; Oob::BYTES], content_crc: u32) -> bool {
        let bits = u128::from_le_bytes(*oob);
        crc_packed(content_crc, bits & (u128::MAX >> 32)) == (bits >> 96) as u32
    }

    /// Read check of the data path: intact, and of this logical sector. The caller compares no
    /// stamp: a map entry may be older than a GC copy of equal content.
    #[inline]
    pub fn verify_for(oob: &[u8; Oob::BYTES], lba: u64, content: &[u8]) -> bool {
        Oob::decode_raw(oob).0 == lba && Oob::verify(oob, content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Tables and instruction agree with each other and with the library.
        #[test]
        fn every_way_to_a_crc_agrees(content: u64, crc: u32, bits: u128) {
            let word = flashlane_base::crc32c(&content.to_le_bytes());
            prop_assert_eq!(Oob::content_crc_word(content), word);
            prop_assert_eq!(crc_word_by_table(content), word);
            let packed = flashlane_base::crc32c_append(crc, &bits.to_le_bytes()[..PACKED_BYTES]);
            prop_assert_eq!(crc_packed(crc, bits), packed);
            prop_assert_eq!(crc_packed_by_table(crc, bits), packed);
            let record = Oob::unsealed(bits as u64 & LBA_MASK, (bits >> 64) as u64 & STAMP_MAX);
            let whole = flashlane_base::crc32c_append(word, &record[..PACKED_BYTES]);
            let (mut sealed, mut by_table) = ([record; 3], [record; 3]);
            let kept = [[7; 8], content.to_le_bytes()].concat();
            let kept = Gather::new(&kept, &[1; 3], 8);
            Oob::seal_words(&mut sealed, &kept);
            seal_words_by(&mut by_table, &kept, crc_both_by_table);
            prop_assert_eq!(sealed, by_table);
            prop_assert_eq!(Oob::decode(&sealed[1]).2, whole);
            let bytes = [content.to_le_bytes(), [0; 8], content.to_le_bytes()].concat();
            let expected = if content == 0 { 7 } else { 5 };
            prop_assert_eq!(Oob::verify_words(&sealed, &bytes), expected);
            prop_assert_eq!(verify_words_by(&sealed, &bytes, crc_both_by_table), expected);
        }
    }
}
