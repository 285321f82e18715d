//! The host's file under an image, and nothing else of the host.
//!
//! Owns: [`HostFile`], its real form [`DiskFile`] with the lock that keeps a second process out, and
//! a scratch file that nobody sees. Promises: reads and writes are whole or an error; after `sync`
//! everything written before it survives the loss of the host's power. Never: maps memory (a full
//! disk is an error here, not a signal), never knows what is stored.
//!
//! [`behind::Behind`] has a thread do the writes of a file. [`memory::MemoryFile`] is the other implementation: a file in memory that writes down what is
//! done to it, so that a test can lose or reorder whatever was not synced.

pub mod behind;
pub mod damage;
pub mod memory;

use flashlane_base::mutant;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file as an image uses it. Offsets and lengths are in bytes.
pub trait HostFile: Send + Sync {
    /// Fills `into` from `at` on; `UnexpectedEof` where the file ends before.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `at`; the file grows as needed.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Writes all of `parts`, one behind the other from `at` on.
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write_at(at, &parts.concat())
    }
    /// As [`HostFile::write_at`], where that may be done later: the host has it when this returns, before what
    /// waits elsewhere in the file.
    fn write_through(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(at, bytes)
    }
    /// The host has everything that was written so far, durable or not.
    fn drain(&self) -> io::Result<()> {
        Ok(())
    }
    /// Gives the room of `at .. at + len` back; it reads as zeros. Where the file system can't, the
    /// old bytes stay.
    fn punch(&self, at: u64, len: u64) -> io::Result<()>;
    /// Reserves room for `at .. at + len` and makes the file that long: a full disk shows here.
    /// Where the file system can't reserve, the file only grows.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;
    /// [`HostFile::allocate`] will be called for just this soon: true when it is made ready meanwhile.
    fn expect_room(&self, at: u64, len: u64) -> bool {
        let _ = (at, len);
        false
    }
    /// Whether free slots may keep their room, and what lies in it, until the image is closed.
    fn keeps_room(&self) -> bool {
        true
    }
    /// Everything written so far is durable when this returns.
    fn sync(&self) -> io::Result<()>;
    /// Length of the file.
    fn len(&self) -> io::Result<u64>;
    /// Cuts the file or grows it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// True for a file of no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// In an `impl HostFile` of what stands in front of another file: these methods are that file's, which is in
/// this field.
#[macro_export]
macro_rules! host_file_as_below {
    ($inner:tt:) => {};
    ($inner:tt: read_at $($more:ident)*) => {
        fn read_at(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
            self.$inner.read_at(at, into)
        }
        $crate::host_file_as_below!($inner: $($more)*);
    };
    ($inner:tt: write_at $($more:ident)*) => {
        fn write_at(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
            self.$inner.write_at(at, bytes)
        }
        $crate::host_file_as_below!($inner: $($more)*);
    };
    ($inner:tt: len $($more:ident)*) => {
        fn len(&self) -> std::io::Result<u64> { self.$inner.len() }
        $crate::host_file_as_below!($inner: $($more)*);
    };
    ($inner:tt: set_len $($more:ident)*) => {
        fn set_len(&self, len: u64) -> std::io::Result<()> { self.$inner.set_len(len) }
        $crate::host_file_as_below!($inner: $($more)*);
    };
    ($inner:tt: sync $($more:ident)*) => {
        fn sync(&self) -> std::io::Result<()> { self.$inner.sync() }
        $crate::host_file_as_below!($inner: $($more)*);
    };
    // `punch` and `allocate`.
    ($inner:tt: $room:ident $($more:ident)*) => {
        fn $room(&self, at: u64, len: u64) -> std::io::Result<()> { self.$inner.$room(at, len) }
        $crate::host_file_as_below!($inner: $($more)*);
    };
}

/// A file on the host's disk.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    /// It has a name, or should have: without one what is in it goes when it is closed.
    is_named: bool,
    /// The lock is given back with it.
    has_lock: bool,
}

/// Why a file could not be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds it; its number, where it can be found out.
    Held(Option<u32>),
    /// The file system does not lock.
    Io(io::Error),
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if self.has_lock {
            // The file is being closed: there is nobody to tell.
            let _ = self.unlock();
        }
    }
}

impl DiskFile {
    /// Creates a file that must not exist, readable and writable by its owner's usual rights.
    pub fn create(path: &Path) -> io::Result<DiskFile> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(DiskFile { file, is_named: true, has_lock: true })
    }

    /// A file that another owner has made and keeps locked, as long as it is filled.
    pub fn lent(file: File) -> DiskFile {
        DiskFile { file, is_named: true, has_lock: false }
    }

    /// True if the path leads to this very file.
    pub fn is_at(&self, path: &Path) -> bool {
        let there = std::fs::metadata(path).ok().zip(self.file.metadata().ok());
        there.is_some_and(|(there, this)| (there.dev(), there.ino()) == (this.dev(), this.ino()))
    }

    /// True if no name in the file system leads to this file any more, though one did: what is in
    /// it is gone when it is closed.
    pub fn is_removed(&self) -> bool {
        self.is_named && self.file.metadata().is_ok_and(|this| this.nlink() == 0)
    }

    /// Opens a file that exists. Anything but a regular file is refused before it could block.
    pub fn open(path: &Path, write: bool) -> io::Result<DiskFile> {
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(write).custom_flags(nonblock).open(path)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() {
            return Err(match kind.is_dir() {
                true => io::Error::from(io::ErrorKind::IsADirectory),
                false => io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"),
            });
        }
        Ok(DiskFile { file, is_named: true, has_lock: true })
    }

    /// A file without a name in `folder`: gone when it is closed, whatever ends the process.
    pub fn scratch(folder: &Path) -> io::Result<DiskFile> {
        let unnamed = rustix::fs::OFlags::TMPFILE.bits() as i32;
        let open = OpenOptions::new().read(true).write(true).custom_flags(unnamed).open(folder);
        if let Ok(file) = open {
            return Ok(DiskFile { file, is_named: false, has_lock: true });
        }
        // A file system without O_TMPFILE: a name for a moment.
        let mut tries = 0..100;
        loop {
            let n = tries.next().ok_or(io::ErrorKind::AlreadyExists)?;
            let path = folder.join(format!(".flashlane-{}-{n}", std::process::id()));
            match DiskFile::create(&path) {
                Ok(mut scratch) => {
                    std::fs::remove_file(&path)?;
                    scratch.is_named = false;
                    return Ok(scratch);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Locks the file until it is closed: for one writer, or `shared` among readers.
    pub fn lock(&self, shared: bool) -> Result<(), LockError> {
        let how = match shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        flock(&self.file, how).map_err(|e| match e {
            Errno::WOULDBLOCK => LockError::Held(self.holder()),
            e => LockError::Io(e.into()),
        })
    }

    /// Gives the lock back before the file is closed. So does dropping it: a child that is being started
    /// may have the file open for a moment longer.
    pub fn unlock(&self) -> io::Result<()> {
        Ok(flock(&self.file, FlockOperation::Unlock)?)
    }

    /// The process that holds the lock, from the kernel's list.
    fn holder(&self) -> Option<u32> {
        let inode = format!(":{}", self.file.metadata().ok()?.ino());
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        // 1: FLOCK  ADVISORY  WRITE 1234 08:01:393218 0 EOF
        locks.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let kind = words.next()?;
            let pid = words.nth(2)?.parse().ok().filter(|pid| *pid > 0);
            let ours = kind == "FLOCK" && words.next()?.ends_with(&inode);
            if ours { pid } else { None }
        })
    }

    /// The file itself, to copy it.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl HostFile for DiskFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut written = match rustix::io::pwritev(&self.file, &slices, at) {
            Ok(written) => written,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        // The host may take less at once: the rest one by one.
        let mut at = at;
        for part in parts {
            let taken = written.min(part.len());
            if taken < part.len() {
                self.file.write_all_at(&part[taken..], at + taken as u64)?;
            }
            written -= taken;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, hole, at, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), at, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => match self.len()? < at + len {
                true => self.set_len(at + len),
                false => Ok(()),
            },
            Err(e) => Err(e.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        match self.is_removed() && !mutant!("image.removed-unseen") {
            true => Err(io::Error::other("the file was removed: nothing in it is durable")),
            false => Ok(()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}
