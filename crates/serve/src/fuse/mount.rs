//! Mounting and unmounting, and what is mounted where.
//!
//! Owns: the calls of the kernel, and of `fusermount3` where they are not permitted. Promises: nothing blocks
//! on a server that is gone; a mount is known by its number, so that another one that lies over it is not
//! taken for it. Never: makes or removes a file, speaks FUSE.

use rustix::fs::{Mode, OFlags, open, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getgid, getuid};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What our mounts are called in the kernel's list.
const SOURCE: &str = "flashlane";
pub(super) const KIND: &str = "fuse.flashlane";
/// Mounts for those who may not mount.
const HELPER: &str = "fusermount3";

/// A line of the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    pub(super) kind: String,
}

impl Mount {
    /// Who answers there is gone.
    pub(super) fn is_dead(path: &Path) -> bool {
        // This always asks; attributes may be what was said before.
        matches!(statvfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
    }
}

/// What is mounted on this very path, the topmost of several.
pub(super) fn at(path: &Path) -> io::Result<Option<Mount>> {
    Ok(find(&std::fs::read("/proc/self/mountinfo")?, path))
}

/// 41 24 0:35 / /a/b rw,nosuid shared:7 - fuse.flashlane flashlane rw,user_id=0
fn find(list: &[u8], path: &Path) -> Option<Mount> {
    let mut found = None;
    for line in list.split(|b| *b == b'\n') {
        let mut words = line.split(|b| *b == b' ');
        let (id, place) = (words.next(), words.nth(3));
        let is_there = place.is_some_and(|place| unescaped(place) == path.as_os_str());
        if !is_there {
            continue;
        }
        let id = id.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        let kind = words.skip_while(|word| *word != b"-").nth(1);
        if let (Some(id), Some(kind)) = (id, kind) {
            found = Some(Mount { id, kind: String::from_utf8_lossy(kind).into() });
        }
    }
    found
}

/// The list has spaces and the like as `\040`.
fn unescaped(word: &[u8]) -> OsString {
    let (mut plain, mut rest) = (Vec::with_capacity(word.len()), word);
    while let [first, more @ ..] = rest {
        let code = match (first, more) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &more[3..] } else { more };
    }
    OsString::from_vec(plain)
}

/// Why a mount could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    #[error(
        "there is no /dev/fuse: load the kernel's module (modprobe fuse), or give this container the device"
    )]
    NoDevice,
    #[error("mounting takes root, or the program fusermount3 (package fuse3), which is not here")]
    NoHelper,
    #[error("fusermount3 does not mount there: {0}")]
    Helper(String),
    #[error("the kernel does not mount there: {0}")]
    Kernel(io::Error),
}

/// Mounts over a regular file; what the kernel asks is read from the device that this gives.
pub(super) fn mount(path: &Path) -> Result<OwnedFd, MountError> {
    let device = match open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Err(MountError::NoDevice),
        Err(Errno::ACCESS | Errno::PERM) => return mount_by_helper(path),
        Err(e) => return Err(MountError::Kernel(e.into())),
    };
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let options = format!(
        "fd={},rootmode=100600,user_id={user},group_id={group},default_permissions",
        device.as_raw_fd()
    );
    let options = CString::new(options).expect("numbers and names");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    match rustix::mount::mount(SOURCE, path, KIND, flags, options.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_by_helper(path),
        Err(Errno::NODEV) => Err(MountError::NoDevice),
        Err(e) => Err(MountError::Kernel(e.into())),
    }
}

/// It mounts, and sends the device through a socket, which is its standard input here.
fn mount_by_helper(path: &Path) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Kernel)?;
    let options = format!("fsname={SOURCE},subtype={SOURCE},default_permissions,nosuid,nodev");
    let mut helper = Command::new(HELPER);
    helper.args(["-o", &options, "--"]).arg(path).env("_FUSE_COMMFD", "0");
    helper.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let done = helper.output().map_err(|e| match e.kind() {
        // The latter is said where a folder of the search path may not be looked into.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => MountError::NoHelper,
        _ => MountError::Helper(e.to_string()),
    })?;
    if !done.status.success() {
        return Err(MountError::Helper(String::from_utf8_lossy(&done.stderr).trim().into()));
    }
    drop(helper);
    receive(&ours).map_err(MountError::Kernel)
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0; 1];
    let mut space = [const { std::mem::MaybeUninit::uninit() }; rustix::cmsg_space!(ScmRights(1))];
    let mut more = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut more, RecvFlags::CMSG_CLOEXEC)?;
    let device = more.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    device.ok_or_else(|| io::Error::other("fusermount3 sent no device"))
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    Done,
    /// Somebody has it open.
    Busy,
}

/// A mount of this process on a directory, told apart from others on the same one.
#[derive(Clone, Debug)]
pub struct Ours {
    path: PathBuf,
    /// None if the mount was gone when this process looked, or if the list of mounts can't be read.
    /// Then [`Ours::unmount`] does nothing.
    id: Option<u64>,
}

impl Ours {
    /// The topmost mount on a directory, which this process has just made. Another process may
    /// have unmounted it by now.
    pub fn on(path: &Path) -> Ours {
        let there = at(path).ok().flatten();
        Ours { path: path.into(), id: there.map(|top| top.id) }
    }

    /// Unmounts it, unless a file is open there. Returns `Done` as well if it is unmounted already.
    ///
    /// # Errors
    /// Something else is mounted over it, or this user may not unmount it.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        match at(&self.path)? {
            Some(top) if self.id == Some(top.id) => unmount(&self.path),
            Some(top) if self.id.is_some() => {
                Err(io::Error::other(format!("a {} is mounted over it", top.kind)))
            }
            _ => Ok(Unmounted::Done),
        }
    }

    /// Detaches it from the directory at once, also if files are open there. If this user is root,
    /// requests for these files fail from now on, else when this process ends.
    pub fn give_up(&self) {
        if at(&self.path).is_ok_and(|top| top.is_some_and(|top| self.id == Some(top.id))) {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            // What fails here can't be helped: this process ends.
            let _ = rustix::mount::unmount(&self.path, flags).map_err(|_| detach(&self.path));
        }
    }
}

/// Unmounts what nobody has open.
pub(super) fn unmount(path: &Path) -> io::Result<Unmounted> {
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(Unmounted::Done),
        Err(Errno::BUSY) => Ok(Unmounted::Busy),
        Err(Errno::PERM) => match helper_unmounts(path, "-u")? {
            true => Ok(Unmounted::Done),
            // Of its reasons this is the one that can be helped; the other way says what else there is.
            false => Ok(Unmounted::Busy),
        },
        Err(e) => Err(e.into()),
    }
}

/// Takes it out of the tree, whoever has it open.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) if helper_unmounts(path, "-uz")? => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn helper_unmounts(path: &Path, how: &str) -> io::Result<bool> {
    let mut helper = Command::new(HELPER);
    helper.args([how, "--"]).arg(path);
    helper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(helper.status()?.success())
}

/// Loop devices that stand on this file.
pub(super) fn loops_on(path: &Path) -> Vec<PathBuf> {
    let Ok(blocks) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let mut found: Vec<PathBuf> = blocks
        .flatten()
        .filter(|block| {
            let backing = std::fs::read(block.path().join("loop/backing_file"));
            backing.is_ok_and(|name| name.trim_ascii_end() == path.as_os_str().as_bytes())
        })
        .map(|block| Path::new("/dev").join(block.file_name()))
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person may unmount a directory as soon as it is mounted.
    #[test]
    fn a_mount_that_is_gone_at_once_is_unmounted() {
        let dir = tempfile::tempdir().expect("a folder");
        let ours = Ours::on(dir.path());
        assert_eq!(ours.unmount().expect("nothing to do"), Unmounted::Done);
        ours.give_up();
    }

    #[test]
    fn the_topmost_mount_on_a_path_is_found() {
        let list = b"22 1 8:1 / / rw - ext4 /dev/root rw\n\
            40 22 0:35 / /a\\040b/f rw,nosuid shared:7 master:1 - fuse.flashlane flashlane rw\n\
            41 22 0:36 / /a\\040b/f rw - tmpfs none rw\n\
            42 22 0:37 / /a rw - fuse.other x rw\nnonsense\n";
        let found = |path: &str| find(list, Path::new(path)).map(|m| (m.id, m.kind));
        assert_eq!(found("/a b/f"), Some((41, "tmpfs".into())));
        assert_eq!(found("/a"), Some((42, "fuse.other".into())));
        assert_eq!(found("/a b"), None);
        assert_eq!(unescaped(b"a\\134\\011b\\04\\"), "a\\\tb\\04\\");
    }
}
