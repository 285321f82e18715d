//! Faults put into a drive that lives in an image, while it runs or between two runs.
//!
//! Owns: which lines are at work, when they are durable. Promises: a line counts from the next operation
//! on, and is in the image when [`Ssd::inject`] returns, with what of it has happened, as of each commit
//! after; an image of format 1.0, which has no room for them, forgets them when it is closed. Never:
//! touches the lines of the plan that the device was opened with.

use super::Ssd;
use crate::image::ImageError;
use crate::spec::FaultPlan;
use flashlane_base::Ns;
use flashlane_media::fault::kept::{FaultState, KEPT_MAX};
use flashlane_media::fault::{Fault, Faults};
use flashlane_media::image::ImageFault;
use std::sync::atomic::Ordering;

/// The first format that keeps faults.
pub(super) const KEEPS_FAULTS: (u16, u16) = (1, 1);

impl Ssd {
    /// Whether this device's image is of a format that keeps faults.
    pub fn keeps_faults(&self) -> bool {
        self.image_info().is_some_and(|info| info.version >= KEEPS_FAULTS)
    }

    /// Adds the lines of a plan to those at work. Their `after` counts from now on.
    ///
    /// # Errors
    /// A place that the device does not have, more lines than an image keeps, no image, or the host
    /// failed: then nothing was added.
    pub fn inject(&self, plan: &FaultPlan) -> Result<(), ImageError> {
        let info = self.image_info().ok_or(ImageError::InMemory)?;
        let geo = &self.geo;
        plan.check(geo.pus(), geo.chunks_per_pu, geo.sectors_per_chunk())?;
        let from_now = |f: &Fault| match f.after {
            Ns::ZERO => f.clone(),
            after => Fault {
                after: Ns::from_ns(info.clock.as_ns().saturating_add(after.as_ns())),
                ..f.clone()
            },
        };
        let lines: Vec<Fault> = plan.faults.iter().map(from_now).collect();
        self.change_faults(|faults| match faults.inject(&lines, info.seed) {
            true => Ok(()),
            false => Err(ImageError::TooManyFaults { most: KEPT_MAX }),
        })
    }

    /// One line more at work on a device in memory, which nobody keeps, up to [`KEPT_MAX`]: what a test
    /// aims at the next command.
    pub fn fail(&self, fault: Fault) {
        self.faults.lock().inject(&[fault], self.options.seed);
        self.armed.store(true, Ordering::Relaxed);
    }

    /// Takes the lines of [`Ssd::fail`] away.
    pub fn forgive(&self) {
        let mut faults = self.faults.lock();
        faults.clear_injected();
        self.armed.store(!faults.is_empty(), Ordering::Relaxed);
    }

    /// Takes all injected lines away, also those that have happened; how many.
    ///
    /// # Errors
    /// No image, or the host failed: then they stay.
    pub fn clear_faults(&self) -> Result<usize, ImageError> {
        self.change_faults(|faults| Ok(faults.clear_injected()))
    }

    /// All lines: first those of the plan that the device was opened with, then the injected ones.
    pub fn faults(&self) -> Vec<FaultState> {
        self.faults.lock().states()
    }

    fn change_faults<T>(
        &self,
        change: impl FnOnce(&mut Faults) -> Result<T, ImageError>,
    ) -> Result<T, ImageError> {
        if self.is_read_only() {
            return Err(ImageFault::ReadOnly.into());
        }
        let (before, done) = {
            let mut faults = self.faults.lock();
            let before = faults.clone();
            (before, change(&mut faults)?)
        };
        if let Err(e) = self.make_durable() {
            *self.faults.lock() = before;
            return Err(e);
        }
        self.armed.store(!self.faults.lock().is_empty(), Ordering::Relaxed);
        Ok(done)
    }
}
