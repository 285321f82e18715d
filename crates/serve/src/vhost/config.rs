//! What a guest is told of the disk.
//!
//! Owns: features, the configuration space (virtio 1.2, section 5.2.4), limits. Promises: a guest that keeps to
//! them has no request refused for its size. Never: changes while a front end is there.

use super::{BYTES_MAX, QUEUES};
use crate::Export;
use flashlane_base::SECTOR_BYTES;
use virtio_bindings::bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;

/// What sectors are counted in, whatever their size.
pub(super) const UNIT: u64 = 512;
/// Pieces of memory that the data of a request may have: with head and status a queue of 128 holds it, which is
/// QEMU's.
pub(super) const DATA_PIECES: u32 = 126;
/// Ranges of a discard or of zeros at most.
pub(super) const RANGES: u32 = 64;
/// Bytes of such a range at most: a discard is work for the map only, zeros are written.
pub(super) const DISCARD_BYTES: u64 = 4 << 30;
pub(super) const ZERO_BYTES: u64 = BYTES_MAX;
/// The space, with zeros behind what is known here.
const SPACE_BYTES: usize = 256;

/// That writes wait in a cache for a flush. A guest that does not take it gets every write durable.
pub(super) const FLUSH: u64 = 1 << VIRTIO_BLK_F_FLUSH;
pub(super) const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
/// The front end's, not the guest's: the protocol has features of its own.
pub(super) const PROTOCOL: u64 = 1 << 30;

/// What is offered of a disk that can be written.
const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_BLK_F_SEG_MAX
    | 1 << VIRTIO_BLK_F_BLK_SIZE
    | 1 << VIRTIO_BLK_F_TOPOLOGY
    | 1 << VIRTIO_BLK_F_MQ
    | 1 << VIRTIO_BLK_F_DISCARD
    | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    | EVENT_IDX
    | FLUSH
    | PROTOCOL;

/// What is offered.
pub(super) fn features(export: &Export) -> u64 {
    let changes = 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
    match export.is_read_only() {
        true => FEATURES & !changes | 1 << VIRTIO_BLK_F_RO,
        false => FEATURES,
    }
}

/// So many bytes from `offset` on; nothing where there is no such place.
pub(super) fn space(export: &Export, offset: u32, bytes: u32) -> Option<Vec<u8>> {
    let sector = export.sector_bytes();
    let physical = (SECTOR_BYTES as u32 / sector).trailing_zeros() as u8;
    let units = |bytes: u64| (bytes / UNIT) as u32;
    let mut space = Vec::with_capacity(SPACE_BYTES);
    space.extend((export.bytes() / UNIT).to_le_bytes()); // capacity
    space.extend(0u32.to_le_bytes()); // size_max: none
    space.extend(DATA_PIECES.to_le_bytes()); // seg_max
    space.extend([0; 4]); // geometry: none
    space.extend(sector.to_le_bytes()); // blk_size
    space.extend([physical, 0]); // sectors of the device in powers of two of those; the first is aligned
    space.extend(1u16.to_le_bytes()); // min_io_size, in sectors
    space.extend(0u32.to_le_bytes()); // opt_io_size: none
    space.extend([1, 0]); // write-back, which nobody changes; unused
    space.extend((QUEUES as u16).to_le_bytes());
    space.extend(units(DISCARD_BYTES).to_le_bytes());
    space.extend(RANGES.to_le_bytes());
    space.extend(units(sector.into()).to_le_bytes()); // discard_sector_alignment
    space.extend(units(ZERO_BYTES).to_le_bytes());
    space.extend(RANGES.to_le_bytes());
    space.extend([1, 0, 0, 0]); // write_zeroes_may_unmap; unused
    space.resize(SPACE_BYTES, 0);
    let end = offset.checked_add(bytes)?;
    space.get(offset as usize..end as usize).map(<[u8]>::to_vec)
}
