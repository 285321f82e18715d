//! Who may change which sectors at a time.
//!
//! Owns: the changes of a device that are under way or wait, in the order in which they came. Promises: a
//! change that has its sectors alone overlaps no other one; changes of whole sectors go side by side, as the
//! device below takes them; nobody waits for somebody who came later. Never: looks at a read.

use flashlane_base::mutant;
use flashlane_rt::{Cx, Notify};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// A change, from its arrival on.
struct Change {
    ticket: u64,
    sectors: Range<u64>,
    alone: bool,
}

#[derive(Default)]
pub(crate) struct Ranges {
    /// In the order of their tickets.
    changes: RefCell<Vec<Change>>,
    /// Those among them that want their sectors alone.
    alone: Cell<usize>,
    next: Cell<u64>,
    ended: Notify,
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
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.alone.set(self.alone.get() + usize::from(alone));
        self.changes.borrow_mut().push(Change { ticket, sectors, alone });
        // From here on: a wait that is given up leaves the queue.
        let held = Held { of: self, cx, ticket };
        self.ended.wait(cx, || self.may_go(ticket)).await;
        held
    }

    /// No change is under way.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.changes.borrow().is_empty() && self.alone.get() == 0
    }

    /// Nothing that came before it is in its way.
    fn may_go(&self, ticket: u64) -> bool {
        if self.alone.get() == 0 || mutant!("serve.sectors-shared") {
            return true;
        }
        let changes = self.changes.borrow();
        let Some(at) = changes.iter().position(|change| change.ticket == ticket) else {
            return true;
        };
        let mine = &changes[at];
        changes[..at].iter().all(|before| {
            let overlap =
                before.sectors.start < mine.sectors.end && mine.sectors.start < before.sectors.end;
            !overlap || !before.alone && !mine.alone
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut changes = self.of.changes.borrow_mut();
        if let Some(at) = changes.iter().position(|change| change.ticket == self.ticket) {
            let alone = changes.remove(at).alone;
            self.of.alone.set(self.of.alone.get() - usize::from(alone));
        }
        drop(changes);
        self.of.ended.wake(self.cx);
    }
}
