//! Who may change which sectors at a time.
//!
//! Owns: the changes of a device that are under way or wait, in the order in which they came. Promises: a
//! change that has its sectors alone overlaps no other one; changes of whole sectors go side by side, as the
//! device below takes them; nobody waits for somebody who came later. Never: looks at a read.

use flashlane_base::mutant;
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Cx, Notify};
use std::ops::Range;

/// A change, from its arrival on.
struct Change {
    ticket: u64,
    sectors: Range<u64>,
    alone: bool,
}

#[derive(Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// In the order of their tickets.
    changes: Vec<Change>,
    /// Those among them that want their sectors alone.
    alone: usize,
    next: u64,
}

/// Sectors that a change has, until this is dropped.
pub(crate) struct Held<'a> {
    of: &'a Ranges,
    cx: &'a Cx,
    ticket: u64,
}

impl Ranges {
    /// Waits until these sectors may be changed: `alone`, or beside others that change whole sectors.
    pub(crate) async fn take<'a>(
        &'a self,
        cx: &'a Cx,
        sectors: Range<u64>,
        alone: bool,
    ) -> Held<'a> {
        let (ticket, may_go) = self.state.lock().begin(sectors, alone);
        // From here on: a wait that is given up leaves the queue.
        let held = Held { of: self, cx, ticket };
        if !may_go {
            self.ended.wait(cx, || self.state.lock().may_go(ticket)).await;
        }
        held
    }

    /// No change is under way.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.changes.is_empty() && state.alone == 0
    }
}

impl State {
    /// A change comes: its ticket, and whether it may go at once.
    fn begin(&mut self, sectors: Range<u64>, alone: bool) -> (u64, bool) {
        let ticket = self.next;
        self.next += 1;
        self.alone += usize::from(alone);
        self.changes.push(Change { ticket, sectors, alone });
        (ticket, self.may_go(ticket))
    }

    /// Nothing that came before it is in its way.
    fn may_go(&self, ticket: u64) -> bool {
        if self.alone == 0 || mutant!("serve.sectors-shared") {
            return true;
        }
        let at = self.changes.iter().position(|change| change.ticket == ticket);
        let Some((mine, before)) = at.and_then(|at| self.changes[..=at].split_last()) else {
            return true;
        };
        before.iter().all(|before| {
            let overlap =
                before.sectors.start < mine.sectors.end && mine.sectors.start < before.sectors.end;
            !overlap || !before.alone && !mine.alone
        })
    }

    fn end(&mut self, ticket: u64) {
        if let Some(at) = self.changes.iter().position(|change| change.ticket == ticket) {
            self.alone -= usize::from(self.changes.remove(at).alone);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.of.state.lock().end(self.ticket);
        self.of.ended.wake(self.cx);
    }
}
