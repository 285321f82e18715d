//! A device that lives in a file: create, open, look at, copy.
//!
//! Owns: [`ImageError`], the options, the lock on a file, copies of images. Promises: an existing
//! file is never replaced unless that is asked for; of two processes the second is told who holds
//! the image; nothing is written to a file that was not found to be sound. Never: knows what a commit
//! is made of (`ssd/durable.rs` and the medium's `image` do).
//!
//! Bytes and order rules are in `docs/IMAGE.md`.

mod copy;
mod header;
mod upgrade;

pub use copy::{CopyKind, copy_image};
pub(crate) use header::HAS_MARK;
pub use header::{Header, MAGIC, UNCHECKED, VERSION, layout};
pub use upgrade::{Version, upgrade_image};

use crate::spec::{DeviceSpec, DieQueue, FaultPlan, SpecError, SsdOptions, StoreKind};
use crate::ssd::Ssd;
use flashlane_base::mutant;
use flashlane_media::fault::FaultError;
use flashlane_media::host::behind::Behind;
use flashlane_media::host::{DiskFile, HostFile, LockError};
use flashlane_media::image::{HOLDER_AT, ImageFault};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why an image could not be created, opened or copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("{}: {problem}", path.display())]
    At { path: PathBuf, problem: Box<ImageError> },
    #[error(transparent)]
    Fault(#[from] ImageFault),
    #[error(
        "not a drive image{}; `flashlane drive create` makes one; if it was one, both copies of its header \
         are gone: go back to a snapshot", empty(*len)
    )]
    NotAnImage { len: u64 },
    #[error("the image is damaged: neither copy of its header is intact; go back to a snapshot")]
    Header,
    #[error(
        "the image has format {}.{}, this program knows up to {}.x; use a newer one",
        version.0, version.1, VERSION.0
    )]
    Newer { version: (u16, u16) },
    #[error(
        "a newer flashlane has written the image (format {}.{}, this program writes {}.{}): it can be read \
         but not changed; use that one", version.0, version.1, VERSION.0, VERSION.1
    )]
    NewerMinor { version: (u16, u16) },
    #[error("the image is in use by {}; stop that first", who(*pid))]
    Held {
        /// Which process, where that is known.
        pid: Option<u32>,
    },
    #[error("the device spec {problem}")]
    Text { problem: String },
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("the file exists: choose another name, or remove it first")]
    Exists,
    #[error("{len} bytes of target settings; an image takes {most}")]
    Targets {
        /// Bytes given.
        len: usize,
        /// Bytes at most.
        most: usize,
    },
    #[error(transparent)]
    Faults(#[from] FaultError),
    #[error("a drive keeps at most {most} faults: clear what is there, or give fewer")]
    TooManyFaults { most: usize },
    #[error(
        "the image has format {}.{}, which keeps no {what}: `flashlane drive upgrade` brings it to {}.{}",
        version.0, version.1, UNCHECKED.0, UNCHECKED.1
    )]
    Older { version: (u16, u16), what: &'static str },
    #[error("the device lives in memory, not in an image")]
    InMemory,
}

fn empty(len: u64) -> &'static str {
    match len {
        0 => " (it is empty)",
        _ => "",
    }
}

fn who(pid: Option<u32>) -> String {
    pid.map_or("another process".into(), |pid| format!("process {pid}"))
}

impl ImageError {
    /// Whether another process has the image open, and nothing else is wrong.
    pub fn is_held(&self) -> bool {
        match self {
            ImageError::At { problem, .. } => problem.is_held(),
            other => matches!(other, ImageError::Held { .. }),
        }
    }

    /// The error with the file's name in front.
    fn at(self, path: &Path) -> ImageError {
        ImageError::At { path: path.into(), problem: Box::new(self) }
    }
}

#[derive(Clone, Debug, Default)]
pub struct CreateImage {
    /// Seed of the device's factory marks and errors.
    pub seed: u64,
    /// Replace a file of that name.
    pub replace: bool,
    /// Its name among images; drawn when none is given.
    pub uuid: Option<[u8; 16]>,
}

#[derive(Clone, Debug)]
pub struct OpenImage {
    /// Nothing is written; any number of readers may have it open.
    pub read_only: bool,
    /// In place of the spec's die queue.
    pub queue: Option<DieQueue>,
    /// What goes wrong on purpose; its counts begin anew.
    pub faults: FaultPlan,
    /// Injected faults that the image keeps do not strike. So it is where `read_only`, anyway.
    pub quiet: bool,
    /// False: commands take no time.
    pub timing: bool,
    /// Reads of unwritten sectors are errors.
    pub dulbe: bool,
    /// A flush is accepted at once, and a thread commits while it is under way.
    pub commits_behind: bool,
}

impl Default for OpenImage {
    fn default() -> OpenImage {
        OpenImage {
            read_only: false,
            queue: None,
            faults: FaultPlan::default(),
            quiet: false,
            timing: true,
            dulbe: false,
            commits_behind: false,
        }
    }
}

impl OpenImage {
    pub(crate) fn options(&self, seed: u64) -> SsdOptions {
        SsdOptions {
            store: StoreKind::File,
            seed,
            queue: self.queue,
            faults: self.faults.clone(),
            timing: self.timing,
            dulbe: self.dulbe,
            ..SsdOptions::default()
        }
    }
}

impl Ssd {
    /// Creates an image of a new device. It is complete and durable when this returns; before,
    /// there is no file of that name, or the old one.
    ///
    /// # Errors
    /// There is a file already, the spec is impossible, or the host failed.
    pub fn create_image(
        path: &Path,
        spec: &DeviceSpec,
        options: &CreateImage,
    ) -> Result<(), ImageError> {
        let create = || {
            spec.check()?;
            let uuid = match options.uuid {
                Some(uuid) => uuid,
                None => draw_uuid()?,
            };
            make(path, options.replace, |file| {
                Ssd::create_on(file, spec, &CreateImage { uuid: Some(uuid), ..options.clone() })
            })
        };
        create().map_err(|e: ImageError| e.at(path))
    }

    /// Opens an image, alone or for reading.
    ///
    /// # Errors
    /// It is no image, damaged, newer, in use, or the host failed. Nothing was written to it.
    pub fn open_image(path: &Path, options: &OpenImage) -> Result<Arc<Ssd>, ImageError> {
        let open = || {
            let file = hold(path, options.read_only)?;
            let host: Arc<dyn HostFile> = match options.read_only {
                true => file.clone(),
                false => Arc::new(Behind::new(file.clone())),
            };
            let ssd = Ssd::open_held(host, Some(file.clone()), options)?;
            if !ssd.is_read_only() {
                // For people and for the next who wants it; the lock is what counts.
                let pid = format!("{}\n", std::process::id());
                file.write_at(HOLDER_AT, pid.as_bytes()).map_err(ImageFault::io("write to"))?;
            }
            Ok(ssd)
        };
        open().map_err(|e: ImageError| e.at(path))
    }
}

/// Opens and locks a file.
fn hold(path: &Path, read_only: bool) -> Result<Arc<DiskFile>, ImageError> {
    let file = DiskFile::open(path, !read_only).map_err(ImageFault::io("open"))?;
    match file.lock(read_only || mutant!("image.lock-shared")) {
        Ok(()) => Ok(Arc::new(file)),
        Err(LockError::Io(e)) => Err(ImageFault::io("lock")(e).into()),
        Err(LockError::Held(pid)) => Err(ImageError::Held { pid: pid.or_else(|| noted(&file)) }),
    }
}

/// The process that noted itself as the holder, if it is alive.
fn noted(file: &DiskFile) -> Option<u32> {
    let mut bytes = [0; 16];
    file.read_at(HOLDER_AT, &mut bytes).ok()?;
    let pid: u32 = std::str::from_utf8(&bytes).ok()?.split('\n').next()?.parse().ok()?;
    Path::new("/proc").join(pid.to_string()).exists().then_some(pid)
}

/// Makes a file under another name, has it filled, and gives it its name when it is durable.
fn make(
    path: &Path,
    replace: bool,
    fill: impl FnOnce(Arc<DiskFile>) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) if !replace => return Err(ImageError::Exists),
        Ok(there) if there.is_file() => drop(hold(path, false)?),
        Ok(_) => {
            let says = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(ImageFault::io("replace")(says).into());
        }
        Err(_) => {}
    }
    remove_abandoned(path, NEW);
    let (fresh, file) = attempt(path)?;
    let named_early = mutant!("image.named-early");
    if named_early {
        std::fs::rename(&fresh, path).map_err(ImageFault::io("name"))?;
    }
    let filled = fill(file).and_then(|()| match named_early {
        true => Ok(()),
        false => put_in_place(&fresh, path, replace),
    });
    if filled.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    filled
}

/// In the name of a file that is to become another one.
const NEW: &str = "new";
/// In the name of a copy that is made to be looked at.
const CHECK: &str = "check";

/// What the names of files begin with that are there for this one for a while; a process's number follows,
/// and a number of its own. Nobody else gives a file such a name.
fn beside(path: &Path, what: &str) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".flashlane-{what}-"));
    name
}

/// A name beside an image for a copy that this process looks at and removes. What killed processes have
/// left of theirs goes.
pub fn check_copy_of(path: &Path) -> PathBuf {
    remove_abandoned(path, CHECK);
    let mut name = beside(path, CHECK);
    name.push(format!("{}-0", std::process::id()));
    path.with_file_name(name)
}

/// Creates a file that is to become this one, and locks it where files can be locked: who finds it knows
/// that somebody is at it.
fn attempt(path: &Path) -> Result<(PathBuf, Arc<DiskFile>), ImageError> {
    for number in 0..ATTEMPTS {
        let mut name = beside(path, NEW);
        name.push(format!("{}-{number}", std::process::id()));
        let fresh = path.with_file_name(name);
        let file = match DiskFile::create(&fresh) {
            // Another thread's, or that of a process with this number on another machine.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created.map_err(ImageFault::io("create"))?,
        };
        let locked = !matches!(file.lock(false), Err(LockError::Held(_)));
        // Before it was locked it may have been taken for abandoned.
        let mine =
            |there: std::fs::Metadata| file.file().metadata().is_ok_and(|m| same(&m, &there));
        if locked && std::fs::symlink_metadata(&fresh).is_ok_and(mine) {
            return Ok((fresh, Arc::new(file)));
        }
    }
    let says = io::Error::new(io::ErrorKind::AlreadyExists, "too many are at work on it at once");
    Err(ImageFault::io("create")(says).into())
}

/// Files under way to one name, by processes of one number.
const ATTEMPTS: u32 = 64;

fn same(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Removes what killed processes have left beside this file: regular files of such a name whose process is
/// gone, and which nobody has locked.
fn remove_abandoned(path: &Path, what: &str) {
    let begin = beside(path, what);
    let Ok(names) = std::fs::read_dir(folder_of(path)) else { return };
    for entry in names.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(pid) = name.as_bytes().strip_prefix(begin.as_bytes()).and_then(numbers) else {
            continue;
        };
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let alive = pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists();
        let free =
            || DiskFile::open(&entry.path(), true).is_ok_and(|file| file.lock(false).is_ok());
        if is_file && (mutant!("image.live-attempt-removed") || !alive && free()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The process's number in what follows [`beside`].
fn numbers(text: &[u8]) -> Option<u32> {
    let (pid, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
    let read = |n: &str| n.parse::<u32>().ok().filter(|read| read.to_string() == n);
    read(number).filter(|number| *number < ATTEMPTS)?;
    read(pid)
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn put_in_place(fresh: &Path, path: &Path, replace: bool) -> Result<(), ImageError> {
    let placed = match replace {
        true => std::fs::rename(fresh, path),
        false => match renameat_with(CWD, fresh, CWD, path, RenameFlags::NOREPLACE) {
            // A file system without it: a link fails, too, when somebody was faster.
            Err(Errno::INVAL | Errno::NOSYS) => {
                std::fs::hard_link(fresh, path).and_then(|()| std::fs::remove_file(fresh))
            }
            renamed => renamed.map_err(io::Error::from),
        },
    };
    placed.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => ImageError::Exists,
        _ => ImageFault::io("name")(e).into(),
    })?;
    let synced = std::fs::File::open(folder_of(path)).and_then(|folder| folder.sync_all());
    synced.map_err(|e| ImageFault::io("sync the folder of")(e).into())
}

/// A random uuid (version 4).
fn draw_uuid() -> Result<[u8; 16], ImageError> {
    use std::io::Read;
    let mut uuid = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut uuid))
        .map_err(ImageFault::io("draw a uuid for"))?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}
