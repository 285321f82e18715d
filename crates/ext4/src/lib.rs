//! What lies where in an ext4 file system, from its bytes.
//!
//! Owns: the structures on the medium ("Data Structures and Algorithms",
//! Documentation/filesystems/ext4 of Linux) and what follows from them for a drive: which blocks of
//! the inode tables hold dead inodes only ("iDiscard: Enhanced Discard() Scheme for Flash Storage
//! Devices", section III). Promises: bytes from anywhere are read without a panic, and memory is
//! bounded by a group's bitmap and a piece of its inode table; what does not fit together is an
//! error or a doubt with its place, and in doubt nothing is dead. Never: writes; reads files.
//!
//! The way through it: [`Volume`] gives bytes, [`Superblock`] says where everything is, [`Group`]
//! where the bitmap and the inodes of a block group are, [`Tables`] goes over all of them and says
//! of each block of inodes what it is ([`Table`]). Beside them [`Journal`] says where the journal
//! lies, and whether it is empty. [`Pages`] counts what all blocks of the file system hold.
//! [`Shadow`] says the same of a file system in use, to who stands under it and sees each write.

mod bytes;
mod extent;
mod group;
mod journal;
mod pages;
mod shadow;
mod superblock;
mod tables;

pub use extent::Extent;
pub use group::Group;
pub use journal::Journal;
pub use pages::{Census, Holds, Pages, Share};
pub use shadow::{Change, Content, Found, SECTOR, Shadow, Wanted};
pub use superblock::{Feature, Superblock};
pub use tables::{Counts, Doubt, Run, Table, Tables};

use std::io;

#[cfg(test)]
mod tests;

/// Where the bytes of a file system come from.
pub trait Volume {
    /// Fills `buf` from byte `at` on.
    ///
    /// # Errors
    /// They can't be read, or there are not so many.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Bytes that there are.
    fn bytes(&self) -> u64;
}

impl Volume for [u8] {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// Why a file system can't be read, or must not be touched.
#[derive(Debug, thiserror::Error)]
pub enum Ext4Error {
    /// Most often there is another one, or none.
    #[error("there is no ext4 file system: {0}")]
    None(&'static str),
    #[error("its superblock can't be right: {0}")]
    Superblock(String),
    #[error("its superblock's checksum is wrong")]
    Checksum,
    #[error("it has the feature `{0}`, which is not known here")]
    Feature(Feature),
    #[error("byte {at} can't be read: {source}")]
    Read { at: u64, source: io::Error },
}
