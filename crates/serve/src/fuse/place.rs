//! The file in whose place a target is.
//!
//! Owns: the name, the empty file below the mount, the mount. Promises: what is in the way is said and left as
//! it is, but for a mount of a server of ours that is gone; a file that was made here is removed, and no
//! other one. Never: answers a request.

use super::mount::{self, KIND, Mount, MountError, Unmounted};
use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Mounts on one path that are looked at: each server that was killed has left one.
const DEAD_MAX: usize = 64;

/// Why a file can't become a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    #[error("this is a folder; name a file that is empty, or that does not exist yet")]
    Folder,
    #[error("this file has {0} bytes; name one that is empty, or that does not exist yet")]
    NotEmpty(u64),
    #[error("this is no regular file; name one that is empty, or that does not exist yet")]
    NoFile,
    #[error("another server has its target there; name another file, or end that process")]
    Taken,
    #[error("a file system of type {0} is mounted there; unmount it, or name another file")]
    Mounted(String),
    #[error(
        "a file system of type {0} is mounted there already; unmount it (fusermount3 -u), or name another \
         directory"
    )]
    InUse(String),
    #[error(
        "there is a mount of type {0} whose program is gone; detach it (fusermount3 -uz), or name another place"
    )]
    Dead(String),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A file over which a mount lies, until it is dropped.
pub struct Place {
    path: PathBuf,
    /// The mount there that is ours.
    mount: Option<u64>,
    /// The file below it, where it was made here.
    made: Option<(u64, u64)>,
    changed: SystemTime,
    /// What the kernel asks is read there.
    device: Option<OwnedFd>,
}

/// What came of leaving a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nobody uses it.
    Free,
    /// It was in use, and is out of the tree; these loop devices stand on it.
    InUse { loops: Vec<PathBuf> },
    /// It is still there.
    Stays { why: String },
}

impl Place {
    /// Makes the file where there is none, and mounts over it. What the kernel asks waits until it is answered.
    ///
    /// # Errors
    /// Something is in the way, which then stays as it is, or nothing can be mounted here.
    pub fn take(path: &Path) -> Result<Place, PlaceError> {
        let path = resolved(path)?;
        clear_away(&path)?;
        let (below, made) = match std::fs::metadata(&path) {
            Ok(there) if there.is_dir() => return Err(PlaceError::Folder),
            Ok(there) if !there.is_file() => return Err(PlaceError::NoFile),
            Ok(there) if there.len() > 0 => return Err(PlaceError::NotEmpty(there.len())),
            Ok(there) => (there, false),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let mut new = OpenOptions::new();
                let file = new.write(true).create_new(true).mode(0o600).open(&path)?;
                (file.metadata()?, true)
            }
            Err(e) => return Err(e.into()),
        };
        let made = made.then(|| which(&below));
        let changed = below.modified()?;
        // From here on what was made goes when this is dropped.
        let mut place = Place { path, mount: None, made, changed, device: None };
        place.device = Some(mount::mount(&place.path)?);
        match mount::at(&place.path)? {
            Some(Mount { id, kind }) if kind == KIND => place.mount = Some(id),
            _ => {
                mount::detach(&place.path)?;
                return Err(io::Error::other("the mount is not where it was asked for").into());
            }
        }
        Ok(place)
    }

    /// Where what the kernel asks is read; once.
    pub(super) fn device(&mut self) -> Option<OwnedFd> {
        self.device.take()
    }

    /// When the file below was changed last.
    pub(super) fn changed(&self) -> SystemTime {
        self.changed
    }

    /// Unmounts, and removes a file that was made here.
    pub fn leave(mut self) -> Left {
        self.unmount()
    }

    fn unmount(&mut self) -> Left {
        let Some(mount) = self.mount.take() else { return self.remove(Left::Free) };
        // Nobody answers from here on who has not been answered already.
        drop(self.device.take());
        let top = mount::at(&self.path);
        if !matches!(&top, Ok(Some(top)) if top.id == mount) {
            let why = match top {
                Ok(Some(top)) => format!("a file system of type {} lies over it", top.kind),
                // Somebody has unmounted it already.
                Ok(None) => return self.remove(Left::Free),
                Err(e) => e.to_string(),
            };
            return Left::Stays { why };
        }
        let loops = mount::loops_on(&self.path);
        let left = match mount::unmount(&self.path) {
            Ok(Unmounted::Done) => Left::Free,
            Ok(Unmounted::Busy) => match mount::detach(&self.path) {
                Ok(()) => Left::InUse { loops },
                Err(e) => Left::Stays { why: e.to_string() },
            },
            Err(e) => Left::Stays { why: e.to_string() },
        };
        self.remove(left)
    }

    /// Removes the file, if it is the one that was made.
    fn remove(&mut self, left: Left) -> Left {
        let made = self.made.take();
        let there = std::fs::symlink_metadata(&self.path).ok();
        let is_ours = there.is_some_and(|there| made == Some(which(&there)) && there.len() == 0);
        if is_ours && !matches!(left, Left::Stays { .. }) {
            let _ = std::fs::remove_file(&self.path); // an empty file that stays is no harm
        }
        left
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.unmount();
    }
}

fn which(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The name as the kernel's list has it. The file itself is not asked, since who answers may be gone.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if std::fs::read_link(&path).is_ok() {
        return std::fs::canonicalize(&path);
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => Ok(std::fs::canonicalize(folder)?.join(name)),
        _ => Ok(path),
    }
}

/// Detaches mounts of servers of ours that are gone.
fn clear_away(path: &Path) -> Result<(), PlaceError> {
    match clear_dead(path, KIND)? {
        None => Ok(()),
        Some(top) if top.kind == KIND => Err(PlaceError::Taken),
        Some(top) => Err(PlaceError::Mounted(top.kind)),
    }
}

/// Detaches the mounts of this kind on a path whose server is gone; what is mounted there then, by a
/// server that lives.
fn clear_dead(path: &Path, kind: &str) -> Result<Option<Mount>, PlaceError> {
    for _ in 0..DEAD_MAX {
        let Some(top) = mount::at(path)? else { return Ok(None) };
        match (top.kind == kind, Mount::is_dead(path)) {
            (_, false) => return Ok(Some(top)),
            (true, true) => {
                mount::detach(path).map_err(|_| PlaceError::Dead(kind.to_string()))?;
            }
            (false, true) => return Err(PlaceError::Dead(top.kind)),
        }
    }
    Err(PlaceError::Taken)
}

/// Detaches the mounts of this kind (`fuse.parafs`) that a program has left on a directory as it was killed.
/// All else that is mounted there stays.
///
/// # Errors
/// One of this kind is in use there, whose program lives.
/// A server of another kind is gone, or the kernel does not detach it.
pub fn clear_directory(path: &Path, kind: &str) -> Result<(), PlaceError> {
    match clear_dead(&resolved(path)?, kind)? {
        Some(top) if top.kind == kind => Err(PlaceError::InUse(top.kind)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_is_said_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let refused = |path: PathBuf| Place::take(&path).err().map(|e| e.to_string());
        std::fs::write(at("full"), b"mine").expect("a file");
        std::os::unix::fs::symlink(at("full"), at("link")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
        for (path, says) in [
            (folder.path().to_path_buf(), "folder"),
            (at("full"), "4 bytes"),
            (at("link"), "4 bytes"),
            (at("socket"), "no regular file"),
            (at("no/such/file"), "No such file"),
            (PathBuf::from("/"), "mounted"),
            (PathBuf::from("/dev/null"), "no regular file"),
        ] {
            let why = refused(path.clone()).expect("it is refused");
            assert!(why.contains(says), "{}: {why}", path.display());
        }
        assert_eq!(std::fs::read(at("full")).expect("it is there"), b"mine");
        assert!(!at("no").exists());
    }
}
