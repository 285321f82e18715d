//! Somebody outside of a virtual run who may ask something of it while it runs.
//!
//! Owns: who attends a run ([`Attendant`]), for how long ([`Attending`]). Promises: questions are
//! answered between two steps of the run, or every 4096 polls of one that is long, when no task is being polled
//! and no lock is held; while nobody asks a step costs one load more, and a run does the same things in the same order whether it
//! is attended or not. Never: reads a socket; whoever sets the flag does, on a thread of its own.

use crate::cx::{Cx, Mode};
use crate::virt::Clock;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Who answers for a run.
pub trait Attendant {
    /// Somebody has asked: the flag was set, and is clear again.
    fn serve(&mut self, cx: &Cx);
    /// Everybody waits and no timer is armed. True when something was done about it, and the run goes
    /// on; false ends it as stalled.
    fn unstick(&mut self, cx: &Cx) -> bool;
}

/// An attendant with the flag that calls for it.
pub(crate) struct Present {
    asked: Arc<AtomicBool>,
    attendant: Box<dyn Attendant>,
}

/// A run is attended as long as this lives.
#[must_use = "dropping it ends the attendance"]
pub struct Attending {
    clock: Rc<Clock>,
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.clock.attended.set(false);
        // Its end may end other things that look at the clock.
        let gone = self.clock.attendant.borrow_mut().take();
        drop(gone);
    }
}

impl Cx {
    /// Has `attendant` answer, from now on, whenever `asked` is set by whatever thread.
    ///
    /// # Panics
    /// On real threads, or when the run is attended already.
    pub fn attend(&self, asked: Arc<AtomicBool>, attendant: impl Attendant + 'static) -> Attending {
        let Mode::Virtual(clock) = &self.mode else {
            panic!("runs on real threads are not attended");
        };
        assert!(!clock.attended.replace(true), "a run has one attendant");
        let present = Present { asked, attendant: Box::new(attendant) };
        *clock.attendant.borrow_mut() = Some(present);
        Attending { clock: clock.clone() }
    }
}

impl Clock {
    /// Between two polls: true when somebody had asked, and tasks may be ready again.
    #[inline]
    pub(crate) fn attend(&self, cx: impl FnOnce() -> Cx) -> bool {
        self.attended.get() && self.answer(cx)
    }

    fn answer(&self, cx: impl FnOnce() -> Cx) -> bool {
        let asked = |p: &Present| p.asked.load(Ordering::Relaxed);
        if !self.attendant.borrow().as_ref().is_some_and(asked) {
            return false;
        }
        self.with(|present| {
            // Before the questions are looked at: one that comes meanwhile sets it again.
            present.asked.store(false, Ordering::SeqCst);
            present.attendant.serve(&cx());
            true
        })
    }

    /// Nothing can run any more: true when the attendant has changed that.
    #[cold]
    pub(crate) fn unstick(&self, cx: impl FnOnce() -> Cx) -> bool {
        self.with(|present| present.attendant.unstick(&cx()))
    }

    /// Calls the attendant, which may end its own attendance.
    fn with(&self, call: impl FnOnce(&mut Present) -> bool) -> bool {
        let Some(mut present) = self.attendant.borrow_mut().take() else {
            return false;
        };
        let done = call(&mut present);
        if self.attended.get() {
            *self.attendant.borrow_mut() = Some(present);
        }
        done
    }
}
