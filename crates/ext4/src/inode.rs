//! An inode, as far as a drive cares.
//!
//! Documentation/filesystems/ext4/inodes.rst of Linux.

use crate::bytes::{le16, le32};

/// What says whether somebody needs an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub mode: u16,
    pub links: u16,
    /// When it was deleted, in seconds; or the next orphan.
    pub deleted: u32,
}

impl Inode {
    /// From its bytes, the first 128 of which are the same for all.
    pub fn parse(bytes: &[u8]) -> Inode {
        Inode { mode: le16(bytes, 0x0), links: le16(bytes, 0x1a), deleted: le32(bytes, 0x14) }
    }

    /// No name leads to it.
    pub fn is_unlinked(&self) -> bool {
        self.links == 0
    }
}
