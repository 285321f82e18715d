//! What an image keeps beside a sector's content: its out-of-band record, and checksums.
//!
//! Owns: the bytes of a record in a slot, which place a sector says that it is of ([`Owner`]).
//! Promises: content, out-of-band record and place are verified together, or the error says which
//! sector is damaged; records alone can be verified without their contents. Never: touches a file.
//!
//! Bytes are in `docs/IMAGE.md`, "Slot".

use super::{Layout, Shared};
use flashlane_base::{OOB_BYTES, SECTOR_BYTES, mutant};

/// Bytes of a record: out-of-band record, checksum of the content, checksum of all else.
const CHECKED_BYTES: usize = OOB_BYTES + 8;

/// The chunk that a slot's sectors are of, and in which of its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its number on the device.
    pub chunk: u32,
    /// Its erases when they were programmed.
    pub erases: u32,
}

/// A sector of an image that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the image is damaged: sector {sector} of chunk {chunk} on PU {pu}, at byte {at}, does not match \
     its checksum; go back to a snapshot"
)]
pub struct Damaged {
    /// PU of the device.
    pub pu: u32,
    /// Which chunk of it.
    pub chunk: u32,
    /// Which sector of it.
    pub sector: u32,
    /// Where its content lies in the file.
    pub at: u64,
}

impl Layout {
    /// Bytes of a sector's record in a slot.
    pub fn record_bytes(&self) -> usize {
        if self.checked { CHECKED_BYTES } else { OOB_BYTES }
    }

    /// Where a sector's content lies, and where its record.
    pub fn sector_at(&self, slot: u32, sector: u32) -> (u64, u64) {
        let at = self.slot_at(slot);
        let records = at + self.sectors as u64 * SECTOR_BYTES as u64;
        let record = records + sector as u64 * self.record_bytes() as u64;
        (at + sector as u64 * SECTOR_BYTES as u64, record)
    }
}

/// The checksum over everything of a sector but the content, for which its checksum stands.
fn check_of(owner: Owner, sector: u32, oob: &[u8], content: [u8; 4]) -> [u8; 4] {
    let placed = !mutant!("image.check-without-place");
    let (chunk, sector) = if placed { (owner.chunk, sector) } else { (0, 0) };
    let erases = if mutant!("image.check-without-erases") { 0 } else { owner.erases };
    let mut bytes = [0; 12 + OOB_BYTES + 4];
    for (to, word) in bytes.chunks_exact_mut(4).zip([chunk, sector, erases]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes[12..12 + OOB_BYTES].copy_from_slice(oob);
    bytes[12 + OOB_BYTES..].copy_from_slice(&content);
    flashlane_base::crc32c(&bytes).to_le_bytes()
}

/// The record of a sector, with checksums.
pub fn sealed(
    owner: Owner,
    sector: u32,
    oob: &[u8; OOB_BYTES],
    content: &[u8],
) -> [u8; CHECKED_BYTES] {
    let mut record = [0; CHECKED_BYTES];
    let of_content = flashlane_base::crc32c(content).to_le_bytes();
    let check = check_of(owner, sector, oob, of_content);
    record[..OOB_BYTES].copy_from_slice(oob);
    record[OOB_BYTES..OOB_BYTES + 4].copy_from_slice(&of_content);
    record[OOB_BYTES + 4..].copy_from_slice(&check);
    record
}

/// Whether a record is a sector's, and the content, where there is any, the record's.
pub fn is_sound(owner: Owner, sector: u32, record: &[u8], content: &[u8]) -> bool {
    let (oob, checks) = record.split_at(OOB_BYTES);
    let mut of_content = [0; 4];
    of_content.copy_from_slice(&checks[..4]);
    let checked = checks[4..] == check_of(owner, sector, oob, of_content);
    let same = || content.is_empty() || of_content == flashlane_base::crc32c(content).to_le_bytes();
    checked && same() || mutant!("image.content-unchecked")
}

impl Shared {
    /// The error for a sector of a slot.
    pub fn damaged(&self, slot: u32, owner: Owner, sector: u32) -> Damaged {
        let (pu, chunk) = self.layout.place_of(owner.chunk);
        Damaged { pu, chunk, sector, at: self.layout.sector_at(slot, sector).0 }
    }
}
