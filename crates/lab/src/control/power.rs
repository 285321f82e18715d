//! The power of a drive in use: it can be cut, at any moment of the run that uses it.
//!
//! Owns: [`Switch`]: who asked for a cut, how a run notices, what is done once it is gone. Promises: a run
//! ends at the virtual time at which it was asked, between two steps; the drive is then as that cut left it, and
//! its image says so before whoever asked hears of it; a run whose switch nobody pulls is the same run. Never:
//! has a layer do anything about it: it finds out at the next mount.

use super::Answer;
use super::live::Attending;
use super::server::Job;
use crate::lnvm::{Drive, LnvmError};
use flashlane_base::Ns;
use flashlane_ocssd::ssd::PowerOn;
use flashlane_rt::{Cx, Notify};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;

/// A drive with whoever listens for it.
type Home = (Drive, Attending);

#[derive(Default)]
pub(crate) struct Switch {
    off: Cell<bool>,
    changed: Notify,
    asked: RefCell<Option<Job>>,
    home: RefCell<Option<Home>>,
}

impl Switch {
    /// It is this drive's power.
    pub(crate) fn wire(&self, drive: &Drive, attended: &Attending) {
        *self.home.borrow_mut() = Some((drive.clone(), attended.clone()));
    }

    /// Somebody cuts the power: they are answered when it is off.
    pub(super) fn pull(&self, cx: &Cx, job: Job) {
        self.off.set(true);
        // A second one at the same moment hears that the drive is being closed.
        self.asked.borrow_mut().get_or_insert(job);
        self.changed.wake(cx);
    }

    /// What `steps` come to; nothing when the power goes off before.
    pub(crate) async fn unless_off<T>(&self, cx: &Cx, steps: impl Future<Output = T>) -> Option<T> {
        let mut steps = pin!(steps);
        let mut off = pin!(self.changed.wait(cx, || self.off.get()));
        poll_fn(|context| match off.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => steps.as_mut().poll(context).map(Some),
        })
        .await
    }

    /// Once the run is gone, whose last moment was `at`: the drive loses its power, and is closed. Which
    /// drive that is.
    ///
    /// # Errors
    /// The host failed; whoever asked hears of it, too.
    pub(crate) fn cut(&self, at: Ns) -> Result<PathBuf, LnvmError> {
        let home = self.home.take();
        let (drive, attended) =
            home.expect("who is asked listens for the drive, which was wired first");
        let cut = drive.ssd.power_cut(at, PowerOn::ClockRestarts);
        let durable = drive.ssd.make_durable().map_err(|e| drive.at(e));
        if let Some(job) = self.asked.take() {
            let text = format!(
                "the power is off, {at} into the run: {} programs and {} erases were torn, {} and {} had not \
                 begun; what was not flushed may be lost\n",
                cut.torn_programs, cut.torn_erases, cut.lost_programs, cut.lost_erases
            );
            let json = json!({
                "at_ns": at.as_ns(),
                "torn_programs": cut.torn_programs,
                "torn_erases": cut.torn_erases,
                "lost_programs": cut.lost_programs,
                "lost_erases": cut.lost_erases,
            });
            let answer = Answer::new((text, format!("{json:#}\n")));
            let said = durable.as_ref().map(|()| answer).map_err(ToString::to_string);
            job.answer(|_| said);
        }
        // Nobody listens any more when another process may open the image.
        attended.take();
        durable.and(drive.close()).map(|()| drive.path)
    }
}
