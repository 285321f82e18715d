//! The socket's place in the file system.
//!
//! Owns: its name, who may connect, paths that do not fit into an address. Promises: from the first moment
//! on only the owner can connect; a socket that a killed process left is replaced, anything else is not;
//! the name appears when somebody listens. Never: waits longer than it is told to.

use super::{ControlError, io_error};
use flashlane_base::fresh::{Unmade, put_in_place};
use rustix::fs::{Mode, OFlags, fchmod, open};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longest path that an address of a unix socket holds: 108 bytes with the zero behind it.
const ADDRESS_MAX: usize = 107;
/// Clients that wait to be accepted.
const WAITING: i32 = 64;
/// Sockets that this process has made: each has a name of its own until it gets its place.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Where the holder of an image listens: beside the file itself, also when `image` is a link to it.
///
/// # Errors
/// There is no such file.
pub fn path_of(image: &Path) -> io::Result<PathBuf> {
    let image = fs::canonicalize(image)?;
    let mut name = image.file_name().unwrap_or_default().to_os_string();
    name.push(".ctl");
    Ok(image.with_file_name(name))
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A short name for a file that exists: as long as the descriptor lives.
fn by_descriptor(path: &Path, more: OFlags) -> io::Result<(OwnedFd, PathBuf)> {
    let fd = open(path, OFlags::PATH | OFlags::CLOEXEC | more, Mode::empty())?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    Ok((fd, short))
}

/// Listens there, in place of a socket that nobody listens at any more. Whoever calls has the lock on the
/// image, so nobody does.
pub(crate) fn listen_at(path: &Path) -> Result<UnixListener, ControlError> {
    let refuse = |problem: String| ControlError::Listen { path: path.into(), problem };
    if let Ok(there) = fs::symlink_metadata(path) {
        only_sockets(&there).map_err(|why| refuse(why.to_string()))?;
    }
    let listener = || {
        let folder = path.parent().unwrap_or(Path::new("/"));
        // Under a name of its own first: the other one appears in one go.
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let fresh: OsString = format!(".flashlane-ctl-{}-{number}", std::process::id()).into();
        let (mut at, kept);
        at = folder.join(&fresh);
        if at.as_os_str().len() > ADDRESS_MAX {
            let short = by_descriptor(folder, OFlags::DIRECTORY)?;
            at = short.1.join(&fresh);
            kept = Some(short.0);
        } else {
            kept = None;
        }
        let _ = fs::remove_file(&at);
        let fd = socket()?;
        // The file gets the mode of the socket.
        fchmod(&fd, Mode::from_raw_mode(0o600))?;
        bind(&fd, &SocketAddrUnix::new(&at)?)?;
        let named = listen(&fd, WAITING).map_err(io::Error::from);
        let named = named.and_then(|()| Ok(put_in_place(&at, path, only_sockets)?));
        if let Err(e) = named {
            let _ = fs::remove_file(&at);
            return Err(e);
        }
        drop(kept);
        Ok(UnixListener::from(fd))
    };
    listener().map_err(|e: io::Error| {
        let hint = match e.kind() {
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::Unsupported => {
                "; keep the image in a folder that you can write to, on a file system with sockets"
            }
            io::ErrorKind::InvalidFilename => "; give the image a shorter name",
            _ => "",
        };
        refuse(format!("{e}{hint}"))
    })
}

/// A socket that nobody listens at is replaced, anything else is not.
fn only_sockets(there: &fs::Metadata) -> Result<(), Unmade> {
    match there.file_type().is_socket() {
        true => Ok(()),
        false => {
            let says = "there is something else of that name; move it away";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, says).into())
        }
    }
}

/// Connects, and gives up after `patience`.
pub(crate) fn connect_to(path: &Path, patience: Duration) -> Result<UnixStream, ControlError> {
    let connected = || {
        let fd = socket()?;
        set_socket_timeout(&fd, Timeout::Send, Some(patience))?;
        let short;
        let at = match path.as_os_str().len() > ADDRESS_MAX {
            true => {
                short = by_descriptor(path, OFlags::NOFOLLOW)?;
                &short.1
            }
            false => path,
        };
        connect(&fd, &SocketAddrUnix::new(at)?)?;
        Ok(UnixStream::from(fd))
    };
    connected().map_err(|e: io::Error| {
        let nobody = [Errno::NOENT, Errno::CONNREFUSED, Errno::NOTSOCK];
        let is = |n: &Errno| e.raw_os_error() == Some(n.raw_os_error());
        match &nobody {
            all if all.iter().any(is) => ControlError::Nobody { path: path.into() },
            _ if is(&Errno::AGAIN) => ControlError::Answer {
                path: path.into(),
                problem:
                    "more wait here already than the process that has the drive open takes in: it \
                          is stopped, or kept busy; try again, or end it"
                        .into(),
            },
            _ => io_error("ask the holder of the drive at", path, e),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A folder so deep that a path in it does not fit into an address, and a long name in it.
    fn deep() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
        fs::create_dir_all(&deep).unwrap();
        let image = deep.join("i".repeat(150));
        fs::write(&image, "an image").unwrap();
        (folder, image)
    }

    #[test]
    fn long_paths_can_be_listened_at_and_asked() {
        let (_folder, image) = deep();
        let path = path_of(&image).unwrap();
        let wait = Duration::from_secs(5);
        assert!(matches!(connect_to(&path, wait), Err(ControlError::Nobody { .. })));
        let listener = listen_at(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        connect_to(&path, wait).unwrap();
        listener.accept().unwrap();
        drop(listener);
        // The name of one that is gone.
        assert!(matches!(connect_to(&path, wait), Err(ControlError::Nobody { .. })));
        let _listener = listen_at(&path).unwrap();
        connect_to(&path, wait).unwrap();
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 2, "the image and its socket");
    }

    /// Runs side by side in one process: none takes the other's socket away before it has its place.
    #[test]
    fn holders_in_one_process_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let path = |i: usize| folder.path().join(format!("{i}.img.ctl"));
        std::thread::scope(|scope| {
            for i in 0..4 {
                let path = path(i);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let listener = listen_at(&path).unwrap_or_else(|e| panic!("{e}"));
                        connect_to(&path, Duration::from_secs(5)).unwrap();
                        listener.accept().unwrap();
                        fs::remove_file(&path).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("a.img");
        fs::write(&image, "an image").unwrap();
        let path = path_of(&image).unwrap();
        assert!(path.ends_with("a.img.ctl"));
        fs::write(&path, "mine").unwrap();
        let said = listen_at(&path).unwrap_err().to_string();
        assert!(said.contains("a.img.ctl") && said.contains("move it away"), "{said}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
        // A link to the image leads to the same socket.
        let link = folder.path().join("link.img");
        std::os::unix::fs::symlink(&image, &link).unwrap();
        assert_eq!(path_of(&link).unwrap(), path);
        // A name that is as long as names may be leaves no room for `.ctl`.
        let long = folder.path().join("n".repeat(253));
        fs::write(&long, "an image").unwrap();
        let said = listen_at(&path_of(&long).unwrap()).unwrap_err().to_string();
        assert!(said.contains("shorter name"), "{said}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left");
    }
}
