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
pub use header::{Header, MAGIC, UNCHECKED, VERSION, WHOLE, layout, version_for};
pub use upgrade::{Version, upgrade_image};

use crate::spec::{DeviceSpec, DieQueue, FaultPlan, SpecError, SsdOptions, StoreKind};
use crate::ssd::Ssd;
use flashlane_base::fresh::{self, Fresh, Unmade};
use flashlane_base::mutant;
use flashlane_media::fault::FaultError;
use flashlane_media::host::behind::Behind;
use flashlane_media::host::{DiskFile, HostFile, LockError};
use flashlane_media::image::{HOLDER_AT, ImageFault};
use std::fs::Metadata;
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
    #[error("another process replaced the file meanwhile: see which one is wanted, and try again")]
    Changed,
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
    /// Reads of the host fail fast ([`SsdOptions::limited_retry`]).
    pub limited_retry: bool,
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
            limited_retry: false,
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
            limited_retry: self.limited_retry,
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

/// How often a path is looked at again because its file was replaced before it was locked.
const LOOKS: u32 = 16;

/// Opens and locks a file, which is the one that the path names when it is locked: one that was
/// replaced meanwhile has another name, or none.
fn hold(path: &Path, read_only: bool) -> Result<Arc<DiskFile>, ImageError> {
    hold_after(path, read_only, || {})
}

/// As [`hold`]; tests have something happen between the opening and the lock.
fn hold_after(
    path: &Path,
    read_only: bool,
    mut between: impl FnMut(),
) -> Result<Arc<DiskFile>, ImageError> {
    for _ in 0..LOOKS {
        let file = DiskFile::open(path, !read_only).map_err(ImageFault::io("open"))?;
        between();
        match file.lock(read_only || mutant!("image.lock-shared")) {
            Ok(()) if file.is_at(path) || mutant!("image.held-unlooked") => {
                return Ok(Arc::new(file));
            }
            Ok(()) => {}
            Err(LockError::Io(e)) => return Err(ImageFault::io("lock")(e).into()),
            Err(LockError::Held(pid)) => {
                return Err(ImageError::Held { pid: pid.or_else(|| noted(&file)) });
            }
        }
    }
    Err(ImageError::Changed)
}

/// The process that noted itself as the holder, if it is alive.
fn noted(file: &DiskFile) -> Option<u32> {
    let mut bytes = [0; 16];
    file.read_at(HOLDER_AT, &mut bytes).ok()?;
    let pid: u32 = std::str::from_utf8(&bytes).ok()?.split('\n').next()?.parse().ok()?;
    Path::new("/proc").join(pid.to_string()).exists().then_some(pid)
}

/// Makes a file under another name, has it filled, and gives it its name when it is durable. An
/// image that it replaces is locked from before the first byte until its name is gone.
fn make(
    path: &Path,
    replace: bool,
    fill: impl FnOnce(Arc<DiskFile>) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let old = match std::fs::symlink_metadata(path) {
        Ok(there) => {
            // An image never replaces a pipe, a link or a folder. This comes first: the message of
            // `Exists` advises `--force`.
            fresh::only_files(&there).map_err(unmade)?;
            if !replace {
                return Err(ImageError::Exists);
            }
            Some(hold(path, false)?)
        }
        Err(_) => None,
    };
    let old = old.filter(|_| !mutant!("image.replaced-unlocked"));
    let replaces = |there: &Metadata| match &old {
        Some(old) => match old.file().metadata() {
            Ok(held) if fresh::same(&held, there) => Ok(()),
            Ok(_) => Err(Unmade::Changed),
            Err(e) => Err(e.into()),
        },
        None if mutant!("image.replaced-unlocked") => fresh::only_files(there),
        None if replace => Err(Unmade::Changed),
        None => fresh::nothing(there),
    };
    let fresh = Fresh::begin(path, replaces).map_err(unmade)?;
    let named_early = mutant!("image.named-early");
    if named_early {
        std::fs::rename(fresh.beside(), path).map_err(ImageFault::io("name"))?;
    }
    let file = fresh.file().try_clone().map_err(ImageFault::io("create"))?;
    fill(Arc::new(DiskFile::lent(file)))?;
    match named_early {
        true => Ok(()),
        false => fresh.commit(replaces).map_err(unmade),
    }
}

fn unmade(why: Unmade) -> ImageError {
    match why {
        Unmade::Exists => ImageError::Exists,
        Unmade::Changed => ImageError::Changed,
        other => ImageFault::io("create")(other.into()).into(),
    }
}

/// In the name of a copy that is made to be looked at.
const CHECK: &str = "check";

/// A name beside an image for a copy that this process looks at and removes. What killed processes have
/// left of theirs goes.
pub fn check_copy_of(path: &Path) -> PathBuf {
    fresh::remove_abandoned(path, CHECK);
    let mut name = fresh::beside(path, CHECK);
    name.push(format!("{}-0", std::process::id()));
    path.with_file_name(name)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody replaces the file between its opening and its lock: the new one is held, or none.
    #[test]
    fn the_file_that_is_held_is_the_one_that_the_path_names() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.img"), folder.path().join("b.img"));
        for read_only in [true, false] {
            std::fs::write(&path, b"old").unwrap();
            std::fs::write(&other, b"new").unwrap();
            let held = hold_after(&path, read_only, || {
                let _ = std::fs::rename(&other, &path);
            });
            let held = held.unwrap();
            let mut bytes = [0; 3];
            held.read_at(0, &mut bytes).unwrap();
            assert_eq!((&bytes, held.is_at(&path)), (b"new", true));
        }
        let gone = hold_after(&path, false, || std::fs::remove_file(&path).unwrap());
        assert!(gone.err().unwrap().to_string().contains("No such file"));
        std::fs::write(&path, b"old").unwrap();
        let always = hold_after(&path, false, || {
            std::fs::write(&other, b"new").unwrap();
            std::fs::rename(&other, &path).unwrap();
        });
        assert!(matches!(always, Err(ImageError::Changed)));
    }

    /// No other process holds the old image from the first byte of the new one until that has its
    /// name, and a file that took its place meanwhile stays.
    #[test]
    fn an_image_that_is_replaced_is_held_until_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.img"), folder.path().join("b.img"));
        std::fs::write(&path, b"old").unwrap();
        let filled = make(&path, true, |file| {
            assert!(matches!(hold(&path, true), Err(ImageError::Held { .. })), "it is in use");
            assert!(matches!(hold(&path, false), Err(ImageError::Held { .. })), "it is in use");
            let again = make(&path, true, |_| panic!("two at a time"));
            assert!(matches!(again, Err(ImageError::Held { .. })));
            file.write_at(0, b"new").unwrap();
            Ok(())
        });
        filled.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let reader = hold(&path, true).unwrap();
        let refused = make(&path, true, |_| panic!("it is in use"));
        assert!(matches!(refused, Err(ImageError::Held { .. })));
        drop(reader);
        for is_there in [true, false] {
            if !is_there {
                std::fs::remove_file(&path).unwrap();
            }
            std::fs::write(&other, b"another's").unwrap();
            let late = make(&path, true, |_| {
                std::fs::rename(&other, &path).unwrap();
                Ok(())
            });
            assert!(matches!(late, Err(ImageError::Changed)), "{is_there}");
            assert_eq!(std::fs::read(&path).unwrap(), b"another's");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left");
        }
        hold(&path, false).unwrap();
    }
}
