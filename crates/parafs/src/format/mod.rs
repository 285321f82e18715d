//! What lies where on the medium, in bytes (docs/PARAFS.md).
//!
//! Owns: the layouts of all structures, their checksums, the places of the areas. Promises: bytes
//! from anywhere are read without a panic; what is not whole, or not of this version, is an error
//! with its place; what is encoded is decoded as it was. Never: reads or writes a medium.

mod areas;
mod dentry;
mod layout;
mod node;
mod pack;
pub(crate) mod shared;
mod superblock;

pub(crate) use areas::{
    NOT_TAKEN, NatSector, SitSector, SummarySector, TAKEN_TO, WINDOW_NUMBER_MAX, WindowSector,
};
pub(crate) use dentry::{Dentries, Dentry, LEVELS_MAX, Slots, name_hash};
pub(crate) use layout::{
    HEADS, NAT_ENTRIES, NAT_JOURNAL, ORPHANS_MAX, SIT_JOURNAL, SUMMARY_ENTRIES, WINDOW_WORDS,
};
pub use layout::{Layout, LayoutError, Shape};
pub use node::Time;
pub(crate) use node::{Batch, Footer, Inode, NAME_MAX, NodeKind, NodePage, Position, Tree, XATTRS};
pub(crate) use pack::{Heads, NatEntry, Owner, Pack, SegmentEntry};
pub(crate) use shared::Share;
pub(crate) use superblock::Superblock;

use flashlane_base::{crc32c, crc32c_append};

/// A sector of the in-place region.
pub(crate) const SECTOR: usize = flashlane_base::SECTOR_BYTES;

/// Where a page of the log lies: 1 for the first page, 0 for "nowhere".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub(crate) u32);

impl Addr {
    /// A hole: it reads as zeros.
    pub(crate) const NONE: Addr = Addr(0);
    /// Room is kept for the page, and nothing was written: it reads as zeros.
    pub(crate) const KEPT: Addr = Addr(u32::MAX);
    /// A repair gave the page up: reading it is an error. It has no room.
    pub(crate) const LOST: Addr = Addr(u32::MAX - 1);

    /// It names a page of the medium.
    pub(crate) fn is_page(self) -> bool {
        ![Addr::NONE, Addr::KEPT, Addr::LOST].contains(&self)
    }
}

/// A page of a file as the node that names it has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageRef {
    pub(crate) addr: Addr,
    /// The checksum of the page ([`Tree::sum_of`]). It is 0 for pages of directories, which have a
    /// seal, where pages of files have no checksums, and if `addr` names no page.
    pub(crate) crc: u32,
}

impl PageRef {
    pub(crate) const NONE: PageRef = PageRef::of(Addr::NONE);
    pub(crate) const KEPT: PageRef = PageRef::of(Addr::KEPT);
    pub(crate) const LOST: PageRef = PageRef::of(Addr::LOST);

    /// An address without a checksum.
    pub(crate) const fn of(addr: Addr) -> PageRef {
        PageRef { addr, crc: 0 }
    }
}

/// The last number of a checkpoint: it can be counted on from there.
pub(crate) const VERSION_MAX: u64 = 1 << 62;

/// The number of a node, and of the file whose inode it is.
pub type Nid = u32;

/// No node.
pub(crate) const NO_NODE: Nid = 0;
/// The inode of the root directory, as FUSE has it.
pub const ROOT: Nid = 1;

/// Why bytes can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    #[error("this is not a ParaFS structure: {0}")]
    Magic(&'static str),
    #[error("the checksum of {0} does not match its content")]
    Checksum(&'static str),
    #[error("{what} has version {found}; this program knows {known}: use a newer one")]
    Version { what: &'static str, found: u32, known: u32 },
    #[error("{what}: {field} is {value}, which can't be")]
    Value { what: &'static str, field: &'static str, value: u64 },
}

/// Numbers in bytes, all little-endian. Behind the end there are zeros, and nothing is written.
pub(crate) fn get16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

pub(crate) fn get32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn get64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    put(bytes, at, &value.to_le_bytes());
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

pub(crate) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    put(bytes, at, &value.to_le_bytes());
}

/// The head of every structure in the in-place region: what it is, and a checksum of all of it.
pub(crate) mod head {
    use super::{FormatError, crc32c, crc32c_append, get32, put32};

    /// Bytes of it.
    pub(crate) const BYTES: usize = 8;

    pub(crate) fn seal(bytes: &mut [u8], magic: u32) {
        put32(bytes, 0, magic);
        put32(bytes, 4, sum(bytes));
    }

    fn sum(bytes: &[u8]) -> u32 {
        crc32c_append(crc32c(&bytes[..4]), &bytes[BYTES..])
    }

    pub(crate) fn check(bytes: &[u8], magic: u32, what: &'static str) -> Result<(), FormatError> {
        if bytes.len() < BYTES || get32(bytes, 0) != magic {
            return Err(FormatError::Magic(what));
        }
        match sum(bytes) == get32(bytes, 4) {
            true => Ok(()),
            false => Err(FormatError::Checksum(what)),
        }
    }
}
