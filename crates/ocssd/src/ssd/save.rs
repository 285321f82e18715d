//! A device in memory as bytes: put out when nothing is under way, taken in as another run's device.
//!
//! Owns: those bytes: the rows that an image has (`docs/IMAGE.md`), all of them, then the contents of the
//! chunks, channel by channel. Promises: a device that was taken in behaves as the one that was put out,
//! its own time, wear, marks and random streams included, and puts out the same bytes; what makes no
//! sense is an error, nothing panics and nothing is allocated for a number that was not checked. Never:
//! keeps options (queue policy, faults still to come) or where the bytes lie, nor finds a flipped bit
//! of a content: whoever keeps the bytes has a checksum over them.

use super::Ssd;
use crate::image::{VERSION, layout};
use crate::spec::{DeviceSpec, SpecError, SsdOptions};
use flashlane_base::Ns;
use flashlane_media::image::ImageFault;
use flashlane_media::image::table::ROW_BYTES;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Why a device could not be put out or taken in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    #[error("{0}")]
    Kind(&'static str),
    /// What is to be taken in is no device of this spec.
    #[error(transparent)]
    Fault(#[from] ImageFault),
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Ssd {
    /// Puts out the device as it is at `now`, when every command has ended.
    ///
    /// # Errors
    /// It does not live in this process's memory, it has a write buffer, or `out` failed.
    pub fn save(&self, now: Ns, out: &mut dyn Write) -> Result<(), SaveError> {
        if self.buffer.is_some() {
            return Err(SaveError::Kind("the device has a write buffer"));
        }
        let layout = layout(&self.spec);
        for channel in &self.channels {
            let mut chan = channel.lock();
            if !chan.cells.can_save() {
                return Err(SaveError::Kind("its store is neither `memory` nor `stamps`"));
            }
            chan.time.settle(now);
            chan.sweep();
        }
        let mut rows = vec![[0; ROW_BYTES]; layout.rows() as usize];
        for (number, row) in self.new_rows(&layout, self.device_time(now))? {
            rows[number as usize] = row;
        }
        out.write_all(rows.as_flattened())?;
        for channel in &self.channels {
            let chan = channel.lock();
            for index in 0..layout.chunks / layout.channels {
                chan.cells.save_content(index, out)?;
            }
        }
        Ok(())
    }

    /// Takes in a device that [`Ssd::save`] put out, of the same spec and store; its clock starts at
    /// zero, its own time goes on.
    ///
    /// # Errors
    /// Spec and options do not make a device in memory, `from` ends before, or it makes no sense.
    pub fn load(
        spec: &DeviceSpec,
        options: SsdOptions,
        from: &mut dyn Read,
    ) -> Result<Arc<Ssd>, SaveError> {
        let layout = layout(spec);
        let mut ssd = Ssd::in_memory(spec, options)?;
        let mut rows = vec![[0; ROW_BYTES]; layout.rows() as usize];
        from.read_exact(rows.as_flattened_mut())?;
        ssd.restore(&rows, &layout, VERSION)?;
        for channel in &mut ssd.channels {
            let chan = channel.get_mut();
            if !chan.cells.can_save() {
                return Err(SaveError::Kind("its store is neither `memory` nor `stamps`"));
            }
            for index in 0..layout.chunks / layout.channels {
                chan.cells.load_content(index, from)?;
            }
        }
        Ok(Arc::new(ssd))
    }
}
