//! Copies of images: snapshots and clones.
//!
//! Owns: [`copy_image`] and the copying of a sparse file. Promises: the copy is the image at one
//! commit, durable under its name or not there; holes stay holes; where the file system shares
//! blocks (`FICLONE`) nothing is copied at all. Never: copies from an image that another process
//! changes.

use super::{Header, ImageError, draw_uuid, hold, make};
use crate::ssd::Ssd;
use flashlane_base::mutant;
use flashlane_media::host::{DiskFile, HostFile};
use flashlane_media::image::{HOLDER_AT, ImageFault};
use rustix::fs::{SeekFrom, ioctl_ficlone, seek};
use rustix::io::Errno;
use std::io;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// The same drive at this moment: it keeps its uuid.
    Snapshot,
    /// Another drive with this content: it gets a uuid of its own.
    Clone,
}

/// Bytes copied at once.
const BATCH: usize = 1 << 20;

/// Copies an image that nobody has open for writing.
///
/// # Errors
/// `from` is no sound image or in use, `to` exists, or the host failed.
pub fn copy_image(from: &Path, to: &Path, kind: CopyKind) -> Result<(), ImageError> {
    let held = hold(from, true).and_then(|file| Header::read(&*file).map(|_| file));
    let file = held.map_err(|e| e.at(from))?;
    copy_file(&file, to, kind)
}

impl Ssd {
    /// Copies the image of this device as it is now: commits, then holds further commits back
    /// while it copies.
    ///
    /// # Errors
    /// The device has no image, `to` exists, or the host failed.
    pub fn copy_image_to(&self, to: &Path, kind: CopyKind) -> Result<(), ImageError> {
        self.while_committed(|file| copy_file(file, to, kind))
    }
}

fn copy_file(from: &DiskFile, to: &Path, kind: CopyKind) -> Result<(), ImageError> {
    let copied = make(to, false, |fresh| {
        copy_bytes(from, &fresh).map_err(ImageFault::io("copy"))?;
        fresh.write_at(HOLDER_AT, &[0; 16]).map_err(ImageFault::io("write to"))?;
        if kind == CopyKind::Clone && !mutant!("image.clone-keeps-uuid") {
            let header = Header { uuid: draw_uuid()?, ..Header::read(&*fresh)? };
            fresh.write_at(0, &header.to_bytes()?).map_err(ImageFault::io("write to"))?;
        }
        fresh.file().sync_all().map_err(|e| ImageFault::io("sync")(e).into())
    });
    copied.map_err(|e| e.at(to))
}

fn copy_bytes(from: &DiskFile, to: &DiskFile) -> io::Result<()> {
    if ioctl_ficlone(to.file(), from.file()).is_ok() {
        return Ok(());
    }
    let len = from.len()?;
    to.set_len(len)?;
    let mut bytes = vec![0; BATCH];
    let mut at = 0;
    while at < len {
        // Where the file system knows no holes, all of it is data.
        let data = match seek(from.file(), SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(e) => return Err(e.into()),
        };
        let end = seek(from.file(), SeekFrom::Hole(data)).unwrap_or(len).min(len);
        at = data;
        while at < end {
            let n = (end - at).min(BATCH as u64) as usize;
            from.read_at(at, &mut bytes[..n])?;
            to.write_at(at, &bytes[..n])?;
            at += n as u64;
        }
    }
    Ok(())
}
