//! The one way in which this program makes a file.
//!
//! Owns: a file under a name of its own beside its place, until it is complete ([`Fresh`]), and how
//! it gets its name ([`put_in_place`]). Promises: a device node, a pipe, a socket, a folder or a
//! symbolic link of that name stays as it is; a regular file stays as it is until the new one is
//! complete and durable; what a killed process has left of a file that it was making goes with the
//! next attempt at the same name. Never: follows a symbolic link at the end of a path.

use crate::mutant;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// In the name of a file that is to become another one.
pub const NEW: &str = "new";
/// Files that processes of one number may be making for one name.
const ATTEMPTS: u32 = 64;
/// How often a name is looked at again because another process has changed it meanwhile.
const LOOKS: u32 = 16;

/// Why a file can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unmade {
    #[error(
        "there is {0} of that name, which no file replaces: name a regular file, or a place where \
         nothing is"
    )]
    Special(&'static str),
    #[error("the file exists: choose another name, or remove it first")]
    Exists,
    #[error("the file was replaced by another process meanwhile: see which one is wanted")]
    Changed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Unmade> for io::Error {
    fn from(why: Unmade) -> io::Error {
        let kind = match &why {
            Unmade::Io(_) => io::ErrorKind::Other,
            Unmade::Exists => io::ErrorKind::AlreadyExists,
            Unmade::Special(_) | Unmade::Changed => io::ErrorKind::InvalidInput,
        };
        match why {
            Unmade::Io(e) => e,
            other => io::Error::new(kind, other.to_string()),
        }
    }
}

/// The kind of what is no regular file, for people.
pub fn special(there: &Metadata) -> Option<&'static str> {
    let kind = there.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_symlink() => Some("a symbolic link"),
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

/// A regular file may be replaced, anything else may not.
///
/// # Errors
/// It is no regular file.
pub fn only_files(there: &Metadata) -> Result<(), Unmade> {
    match special(there) {
        Some(kind) if !mutant!("files.node-replaced") => Err(Unmade::Special(kind)),
        _ => Ok(()),
    }
}

/// Nothing may be replaced.
///
/// # Errors
/// Always: there is something.
pub fn nothing(_: &Metadata) -> Result<(), Unmade> {
    Err(Unmade::Exists)
}

/// Is it the same file?
pub fn same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// A file that gets its name when it is complete. Dropped before, it goes.
#[derive(Debug)]
pub struct Fresh {
    to: PathBuf,
    beside: PathBuf,
    file: File,
    is_placed: bool,
}

impl Fresh {
    /// Begins a file. `replaces` says of what is there under this name whether it may be replaced:
    /// [`only_files`] or [`nothing`].
    ///
    /// # Errors
    /// It may not, or no file can be made in that folder.
    pub fn begin(
        to: &Path,
        replaces: impl Fn(&Metadata) -> Result<(), Unmade>,
    ) -> Result<Fresh, Unmade> {
        if to.file_name().is_none() {
            let says = "the path does not end in the name of a file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, says).into());
        }
        match fs::symlink_metadata(to) {
            Ok(there) => replaces(&there)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
        remove_abandoned(to, NEW);
        for number in 0..ATTEMPTS {
            let mut name = beside(to, NEW);
            name.push(format!("{}-{number}", std::process::id()));
            let beside = to.with_file_name(name);
            let file =
                match OpenOptions::new().read(true).write(true).create_new(true).open(&beside) {
                    // Another thread's, or that of a process with this number on another machine.
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                    made => made?,
                };
            // Where files can be locked: whoever finds it knows that a process is at it.
            let is_locked = !matches!(
                flock(&file, FlockOperation::NonBlockingLockExclusive),
                Err(Errno::WOULDBLOCK)
            );
            // Before it was locked it may have been taken for abandoned.
            let mine = |there: Metadata| file.metadata().is_ok_and(|m| same(&m, &there));
            if is_locked && fs::symlink_metadata(&beside).is_ok_and(mine) {
                return Ok(Fresh { to: to.into(), beside, file, is_placed: false });
            }
        }
        let says = "too many are at work on it at once";
        Err(io::Error::new(io::ErrorKind::AlreadyExists, says).into())
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it is until it is complete.
    pub fn beside(&self) -> &Path {
        &self.beside
    }

    /// The file is complete: it is made durable and gets its name. `replaces` is asked again, of
    /// what it replaces.
    ///
    /// # Errors
    /// The host failed, or something has come there meanwhile that may not be replaced.
    pub fn commit(
        mut self,
        replaces: impl Fn(&Metadata) -> Result<(), Unmade>,
    ) -> Result<(), Unmade> {
        self.file.sync_all()?;
        put_in_place(&self.beside, &self.to, replaces)?;
        self.is_placed = true;
        let folder = File::open(folder_of(&self.to)).and_then(|folder| folder.sync_all());
        match folder {
            // A folder that can be written to and not read.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            // A file system whose folders are not synced.
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
            synced => Ok(synced?),
        }
    }
}

impl Write for Fresh {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.beside); // nobody can be told any more
        }
        // A child that is being started may have the file open for a moment longer.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Gives a file its name in one go. What has that name is shown to `replaces` before, and again
/// when it is out of the way, before it is gone: where it may not be replaced it gets its name
/// back.
///
/// # Errors
/// It may not be replaced, or the host failed.
pub fn put_in_place(
    from: &Path,
    to: &Path,
    replaces: impl Fn(&Metadata) -> Result<(), Unmade>,
) -> Result<(), Unmade> {
    for _ in 0..LOOKS {
        match fs::symlink_metadata(to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                    Ok(()) => return Ok(()),
                    // Another process was faster.
                    Err(Errno::EXIST) => continue,
                    // A file system without it: a link fails, too, when another process was faster.
                    Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(from, to) {
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                        linked => return Ok(linked.and_then(|()| fs::remove_file(from))?),
                    },
                    Err(e) => return Err(io::Error::from(e).into()),
                }
            }
            Err(e) => return Err(e.into()),
            Ok(there) => {
                replaces(&there)?;
                match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
                    Ok(()) => {}
                    Err(Errno::NOENT) if fs::symlink_metadata(from).is_ok() => continue,
                    // A file system without it: what was looked at a moment ago is replaced.
                    Err(Errno::INVAL | Errno::NOSYS) => return Ok(fs::rename(from, to)?),
                    Err(e) => return Err(io::Error::from(e).into()),
                }
                let out = fs::symlink_metadata(from)?;
                if let Err(why) = replaces(&out) {
                    renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)
                        .map_err(io::Error::from)?;
                    return Err(why);
                }
                return Ok(fs::remove_file(from)?);
            }
        }
    }
    Err(Unmade::Changed)
}

/// What the names of files begin with that are there for this one for a while; the number of a
/// process follows, and a number of its own. Nothing else gives a file such a name.
pub fn beside(path: &Path, what: &str) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".flashlane-{what}-"));
    name
}

/// Removes what killed processes have left beside this file: regular files of such a name whose
/// process is gone, and which no process has locked.
pub fn remove_abandoned(path: &Path, what: &str) {
    let begin = beside(path, what);
    let Ok(names) = fs::read_dir(folder_of(path)) else { return };
    for entry in names.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(pid) = name.as_bytes().strip_prefix(begin.as_bytes()).and_then(numbers) else {
            continue;
        };
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let alive = pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists();
        // Not through a link, and without waiting for the other end of a pipe.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
        let free = || {
            let mut open = OpenOptions::new();
            let file = open.read(true).custom_flags(flags.bits() as i32).open(entry.path());
            file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_file && (mutant!("image.live-attempt-removed") || !alive && free()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The number of the process in what follows [`beside`].
fn numbers(text: &[u8]) -> Option<u32> {
    let (pid, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
    let read = |n: &str| n.parse::<u32>().ok().filter(|read| read.to_string() == n);
    read(number).filter(|number| *number < ATTEMPTS)?;
    read(pid)
}

/// The folder in which a path's file is.
pub fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    /// Everything in a folder, with its kind.
    fn all(folder: &Path) -> Vec<(String, Option<&'static str>)> {
        let mut all: Vec<_> = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| {
                let entry = entry.expect("an entry");
                let kind = special(&fs::symlink_metadata(entry.path()).expect("it is there"));
                (entry.file_name().into_string().expect("a name"), kind)
            })
            .collect();
        all.sort();
        all
    }

    /// Of everything that is no regular file.
    fn with_nodes() -> (tempfile::TempDir, UnixListener) {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("target"), "keep").expect("a file");
        symlink("target", at("link")).expect("a link");
        symlink("nowhere", at("lost")).expect("a link");
        fs::create_dir(at("folder")).expect("a folder");
        rustix::fs::mkfifoat(CWD, at("pipe"), 0o600.into()).expect("a pipe");
        let socket = UnixListener::bind(at("socket")).expect("a socket");
        (folder, socket)
    }

    #[test]
    fn nothing_but_a_regular_file_is_replaced() {
        let (folder, _socket) = with_nodes();
        let before = all(folder.path());
        for name in ["link", "lost", "folder", "pipe", "socket"] {
            let refused = Fresh::begin(&folder.path().join(name), only_files);
            assert!(matches!(refused, Err(Unmade::Special(_))), "{name}: {refused:?}");
        }
        assert!(Fresh::begin(&folder.path().join(".."), only_files).is_err());
        assert_eq!(all(folder.path()), before);
        assert_eq!(fs::read(folder.path().join("target")).expect("a file"), b"keep");
        let mut fresh = Fresh::begin(&folder.path().join("target"), only_files).expect("a file");
        fresh.write_all(b"new").expect("room");
        assert_eq!(fs::read(folder.path().join("target")).expect("a file"), b"keep");
        fresh.commit(only_files).expect("it may be replaced");
        assert_eq!(fs::read(folder.path().join("target")).expect("a file"), b"new");
        assert_eq!(all(folder.path()), before);
    }

    /// It came there after the file was begun, or after it was looked at for the last time.
    #[test]
    fn what_comes_there_meanwhile_stays() {
        let (folder, _socket) = with_nodes();
        for (name, late) in [("pipe", false), ("link", false), ("pipe", true), ("link", true)] {
            let to = folder.path().join("new");
            let fresh = Fresh::begin(&to, only_files).expect("nothing is there");
            let node = folder.path().join(name);
            if late {
                fs::write(&to, "a moment").expect("a file");
            } else {
                fs::rename(&node, &to).expect("a name");
            }
            let looks = std::cell::Cell::new(0);
            let done = fresh.commit(|there| {
                looks.set(looks.get() + 1);
                if looks.get() == 1 && late {
                    only_files(there)?;
                    fs::rename(&node, &to).expect("a name");
                    return Ok(());
                }
                only_files(there)
            });
            assert!(matches!(done, Err(Unmade::Special(_))), "{name}, {late}: {done:?}");
            assert!(special(&fs::symlink_metadata(&to).expect("it is there")).is_some());
            fs::rename(&to, &node).expect("a name");
            assert_eq!(all(folder.path()).len(), 6, "{name}, {late}: nothing is left");
        }
    }

    #[test]
    fn a_file_that_is_not_committed_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("f");
        let mut fresh = Fresh::begin(&to, nothing).expect("nothing is there");
        fresh.write_all(b"half").expect("room");
        assert!(!to.exists() && fresh.beside().exists());
        drop(fresh);
        assert_eq!(all(folder.path()), []);
        let [a, b] = [(); 2].map(|()| Fresh::begin(&to, nothing).expect("nothing is there"));
        a.commit(nothing).expect("it is the first");
        assert!(matches!(b.commit(nothing), Err(Unmade::Exists)));
        assert_eq!(all(folder.path()), [("f".into(), None)]);
        assert!(matches!(Fresh::begin(&to, nothing), Err(Unmade::Exists)));
    }

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        // No process has a number that high; the first one always lives.
        for name in
            ["f.flashlane-new-4194305-0", "f.flashlane-new-1-0", "g.flashlane-new-4194305-0"]
        {
            fs::write(at(name), "half").expect("a file");
        }
        Fresh::begin(&at("f"), only_files).expect("nothing is there");
        let left: Vec<String> = all(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["f.flashlane-new-1-0", "g.flashlane-new-4194305-0"]);
    }
}
