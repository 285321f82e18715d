//! When something happens: the places at which a power cut is worth trying.
//!
//! Owns: a set of times, the device that notes when commands begin and end. Promises: between two
//! neighbouring moments the medium does not change in kind, so a cut at each, just before, just
//! behind and halfway covers what cuts can do to a run. Never: changes a command or an outcome.

use flashlane_base::{Geometry, Ns, Ppa, PpaFormat};
use flashlane_ocssd::device::{ChunkInfo, Completion, Device, Request, Ticket, Traits};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;

/// A set of times that several parts of a stack add to.
#[derive(Clone, Default)]
pub struct Moments(Arc<Mutex<BTreeSet<Ns>>>);

impl Moments {
    /// Something happens now.
    pub fn note(&self, at: Ns) {
        self.0.lock().insert(at);
    }

    /// Times at which to cut: just before, at and just behind every moment, and halfway to the
    /// next, in order.
    pub fn places(&self) -> Vec<Ns> {
        let moments: Vec<u64> = self.0.lock().iter().map(|at| at.as_ns()).collect();
        let mut all = BTreeSet::new();
        for (i, at) in moments.iter().enumerate() {
            let next = moments.get(i + 1).copied().unwrap_or(at + 2);
            all.extend([at.saturating_sub(1), *at, at + 1, at + (next - at) / 2]);
        }
        all.into_iter().map(Ns::from_ns).collect()
    }

    /// `most` of them at most, evenly spread.
    pub fn cuts(&self, most: usize) -> Vec<Ns> {
        let all = self.places();
        let kept = most.min(all.len());
        (0..kept).map(|i| all[i * all.len() / kept]).collect()
    }
}

/// Notes when commands are submitted and done.
pub struct NotingDevice {
    inner: Arc<dyn Device>,
    moments: Moments,
}

impl NotingDevice {
    /// Watches `inner`.
    pub fn new(inner: Arc<dyn Device>, moments: Moments) -> NotingDevice {
        NotingDevice { inner, moments }
    }
}

impl Device for NotingDevice {
    flashlane_ocssd::as_below!(inner: geometry format traits expect chunk_report);

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        self.moments.note(arrives);
        self.inner.submit_at(cx, request, arrives)
    }
    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let polled = self.inner.finish(cx, ticket);
        if let Poll::Ready(done) = &polled {
            // The program, erase or sense itself: from here to the end.
            self.moments.note(done.finished.saturating_sub(done.breakdown.array));
            self.moments.note(done.finished);
        }
        polled
    }
}
