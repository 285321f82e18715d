//! Numbers in bytes, all of them little-endian.
//!
//! Promises: what lies behind the end is zero. Never: panics.

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    let found = bytes.get(at..at + 2).and_then(|two| two.try_into().ok());
    found.map_or(0, u16::from_le_bytes)
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    found.map_or(0, u32::from_le_bytes)
}

/// A number whose halves lie in two places.
pub(crate) fn halves(bytes: &[u8], low: usize, high: usize) -> u64 {
    u64::from(le32(bytes, low)) | u64::from(le32(bytes, high)) << 32
}
