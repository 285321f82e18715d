//! The bytes of a write without anything around them.
//!
//! Owns: the copies and checksums that every write has, in the order and over the memory that a target
//! has them. Promises: two copies and one CRC32C of each sector. Never: a map, a lock, a device.

use super::sectors_of;
use flashlane_base::{Geometry, SECTOR_BYTES};
use std::hint::black_box;

/// Slots of a ring: about those that a ring of QBLK's has.
const COPY_SLOTS: usize = 512;

/// The bytes that a write moves, and nothing else: from the caller to a slot; a unit of slots later each
/// one's CRC, and from the slot to the medium, of which a thread has its part.
pub(super) struct Copy {
    slots: Vec<u8>,
    medium: Vec<u8>,
    /// Bytes of a unit.
    unit: usize,
    slot: usize,
    at: usize,
}

impl Copy {
    /// The part of a thread, of so many, of a medium with these dimensions.
    pub(super) fn new(geo: &Geometry, threads: u32) -> Copy {
        let unit = geo.ws_min as usize * SECTOR_BYTES;
        let units = sectors_of(geo) as usize * SECTOR_BYTES / unit / threads as usize;
        // Not zeros, whose pages would not be there yet.
        let medium = vec![3u8; units.max(1) * unit];
        Copy { slots: vec![2u8; COPY_SLOTS * SECTOR_BYTES], medium, unit, slot: 0, at: 0 }
    }

    /// The bytes of a write of one sector.
    pub(super) fn write(&mut self, content: &[u8]) {
        self.slots[self.slot..][..SECTOR_BYTES].copy_from_slice(content);
        self.slot += SECTOR_BYTES;
        if !self.slot.is_multiple_of(self.unit) {
            return;
        }
        let unit = &self.slots[self.slot - self.unit..self.slot];
        let to = &mut self.medium[self.at..][..self.unit];
        for (slot, to) in unit.chunks_exact(SECTOR_BYTES).zip(to.chunks_exact_mut(SECTOR_BYTES)) {
            black_box(flashlane_base::crc32c(slot));
            to.copy_from_slice(slot);
        }
        self.slot %= self.slots.len();
        self.at = (self.at + self.unit) % self.medium.len();
    }
}
