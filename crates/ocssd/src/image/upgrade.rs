//! Bringing an image to the newest format whose slots and table are like its own.
//!
//! Owns: the order in which the copies of the header change. Promises: whatever a kill or a loss of power
//! leaves is an image of the one format or the other, with the same content; an image that is not sound
//! is not touched; an upgrade that was cut off is finished by the next. Never: changes anything but the
//! header and the mark.
//!
//! What is new in a version lies where the ones before wrote zeros (`docs/IMAGE.md`, "Versions"), so
//! beside the mark of 1.2 the number is all that changes.

use super::{HAS_MARK, Header, ImageError, OpenImage, header, hold};
use crate::ssd::Ssd;
use flashlane_base::mutant;
use flashlane_media::host::HostFile;
use flashlane_media::image::table::Table;
use flashlane_media::image::{HEADER_BYTES, ImageFault};
use std::path::Path;
use std::sync::Arc;

/// A format version, (major, minor).
pub type Version = (u16, u16);

/// Upgrades an image that nobody has open.
///
/// # Errors
/// As [`Ssd::upgrade_on`]; or it is in use.
pub fn upgrade_image(path: &Path) -> Result<(Version, Version), ImageError> {
    let upgraded = hold(path, false).and_then(|file| Ssd::upgrade_on(file));
    upgraded.map_err(|e| e.at(path))
}

impl Ssd {
    /// Upgrades an image in any file: from which version, to which. Both are the same where there was
    /// nothing to do.
    ///
    /// # Errors
    /// It is no image, damaged, of a newer version, or the host failed.
    pub fn upgrade_on(file: Arc<dyn HostFile>) -> Result<(Version, Version), ImageError> {
        let mut to = Header::read(&*file)?;
        let from = to.version;
        if to.is_newer() {
            return Err(ImageError::NewerMinor { version: from });
        }
        if !mutant!("image.upgrade-unlooked") {
            Ssd::open_on(file.clone(), &OpenImage { read_only: true, ..OpenImage::default() })?;
        }
        if from < HAS_MARK && !mutant!("image.upgrade-unmarked") {
            // Durable before a header says that it is there.
            Table::open(file.clone(), to.layout(), false)?.begin_marks()?;
        }
        // Slots with checksums are larger: no header makes them of others. A table that is written
        // in full has no use for holes, and older programs can go on using it.
        to.version = header::latest_of(from);
        let bytes = to.to_bytes()?;
        let copies = bytes.chunks(HEADER_BYTES as usize).zip([0, HEADER_BYTES]);
        let mut old = Vec::new();
        for (copy, at) in copies {
            let mut there = vec![0; copy.len()];
            file.read_at(at, &mut there).map_err(ImageFault::io("read"))?;
            let sound = header::intact(&there).is_some();
            if !sound || there != copy {
                old.push((sound, copy, at));
            }
        }
        // A copy that is not intact goes first: at any moment another one is.
        old.sort_by_key(|(sound, ..)| *sound ^ mutant!("image.upgrade-sound-first"));
        for (_, copy, at) in old {
            file.write_at(at, copy).map_err(ImageFault::io("write to"))?;
            if !mutant!("image.upgrade-unsynced") {
                file.sync().map_err(ImageFault::io("sync"))?;
            }
        }
        Ok((from, to.version))
    }
}
