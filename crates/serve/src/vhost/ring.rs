//! A queue that a guest has in its memory.
//!
//! Owns: where it is, which requests of it are under way, how the guest is told. Promises: a request is taken once and
//! ends once; the guest hears of its end when everything that it is to read is in its place; what the guest has
//! written where the queue should be ends its connection at worst. Never: has more requests under way than the
//! queue has places.

use super::chain::{Chain, Malformed};
use super::inflight::Track;
use super::wire::Nonsense;
use super::{Memory, QUEUE_SIZE};
use flashlane_base::mutant;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

/// The queue makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a queue that makes no sense")]
pub(super) struct Broken;

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Broken {
        Broken
    }
}

impl From<Broken> for Nonsense {
    fn from(_: Broken) -> Nonsense {
        Nonsense
    }
}

pub(super) struct Ring {
    queue: RefCell<Queue>,
    is_placed: Cell<bool>,
    /// The guest rings there; without it the ring stands still.
    pub(super) kick: RefCell<Option<Rc<File>>>,
    /// Where the guest is rung.
    call: RefCell<Option<File>>,
    pub(super) is_enabled: Cell<bool>,
    /// Its place behind what was used is known.
    is_begun: Cell<bool>,
    under_way: Cell<u16>,
    /// Begun by an earlier life of this server, and not ended.
    again: RefCell<VecDeque<u16>>,
    track: RefCell<Option<Track>>,
}

/// What is read of memory that the front end has taken away is no queue.
fn is_there(memory: &Memory) -> Result<(), Broken> {
    if memory.is_lost() { Err(Broken) } else { Ok(()) }
}

/// The head of a chain, and the chain where it is one.
pub(super) struct Taken {
    pub(super) head: u16,
    pub(super) chain: Result<Chain, Malformed>,
}

impl Ring {
    pub(super) fn new() -> Ring {
        let queue = Queue::new(QUEUE_SIZE).expect("a power of two");
        Ring {
            queue: RefCell::new(queue),
            is_placed: Cell::default(),
            kick: RefCell::default(),
            call: RefCell::default(),
            is_enabled: Cell::default(),
            is_begun: Cell::default(),
            under_way: Cell::default(),
            again: RefCell::default(),
            track: RefCell::default(),
        }
    }

    pub(super) fn resize(&self, size: u32) -> Result<(), Broken> {
        let size = u16::try_from(size).map_err(|_| Broken)?;
        Ok(self.queue.borrow_mut().try_set_size(size)?)
    }

    pub(super) fn place(
        &self,
        descriptors: GuestAddress,
        available: GuestAddress,
        used: GuestAddress,
    ) -> Result<(), Broken> {
        let mut queue = self.queue.borrow_mut();
        queue.try_set_desc_table_address(descriptors)?;
        queue.try_set_avail_ring_address(available)?;
        queue.try_set_used_ring_address(used)?;
        self.is_placed.set(true);
        self.is_begun.set(false);
        Ok(())
    }

    /// The guest is rung there from now on.
    pub(super) fn set_call(&self, call: Option<File>) {
        *self.call.borrow_mut() = call;
        // What ended before may not have been rung for: by a server that was killed, or by this one.
        if !mutant!("serve.new-call-silent") {
            self.ring();
        }
    }

    pub(super) fn set_event_idx(&self, is_on: bool) {
        self.queue.borrow_mut().set_event_idx(is_on);
    }

    /// The place of the next request.
    pub(super) fn position(&self) -> u16 {
        self.queue.borrow().next_avail()
    }

    pub(super) fn set_position(&self, position: u16) {
        self.queue.borrow_mut().set_next_avail(position);
        self.is_begun.set(false);
    }

    /// What is under way is noted there from now on.
    pub(super) fn set_track(&self, track: Option<Track>) {
        *self.track.borrow_mut() = track;
        self.is_begun.set(false);
    }

    /// It stands still until it is rung again at another place.
    pub(super) fn halt(&self) {
        *self.kick.borrow_mut() = None;
        self.is_begun.set(false);
    }

    /// May requests be taken? Finds out where they go on.
    pub(super) fn begin(&self, memory: &Memory) -> Result<bool, Broken> {
        if !self.is_enabled.get() || !self.is_placed.get() || self.kick.borrow().is_none() {
            return Ok(false);
        }
        let mut queue = self.queue.borrow_mut();
        queue.set_ready(true);
        if !queue.is_valid(&memory.mapped) {
            return Err(Broken);
        }
        if self.is_begun.replace(true) {
            return Ok(true);
        }
        let used = queue.used_idx(&memory.mapped, Ordering::Acquire)?.0;
        is_there(memory)?;
        queue.set_next_used(used);
        let mut again = self.again.borrow_mut();
        again.clear();
        if let Some(track) = &*self.track.borrow() {
            again.extend(track.left(queue.size(), used)?);
            if !again.is_empty() {
                queue.set_next_avail(used.wrapping_add(again.len() as u16));
            }
        }
        Ok(true)
    }

    /// The next request, if there is one.
    pub(super) fn take(&self, memory: &Memory) -> Result<Option<Taken>, Broken> {
        let mut queue = self.queue.borrow_mut();
        let mut again = self.again.borrow_mut();
        let head = match again.pop_front() {
            Some(head) => head,
            None => match queue.iter(&memory.mapped)?.next() {
                Some(chain) => chain.head_index(),
                None => return is_there(memory).map(|()| None),
            },
        };
        is_there(memory)?;
        // One more than there are places: some head came twice.
        if head >= queue.size() || self.under_way.get() >= queue.size() {
            return Err(Broken);
        }
        self.under_way.set(self.under_way.get() + 1);
        if let Some(track) = &*self.track.borrow() {
            track.begin(head)?;
        }
        let table = GuestAddress(queue.desc_table());
        Ok(Some(Taken { head, chain: Chain::walk(memory, table, queue.size(), head) }))
    }

    /// Has the guest ring for what comes. True where something has come already.
    pub(super) fn listen(&self, memory: &Memory) -> Result<bool, Broken> {
        let has_come = self.queue.borrow_mut().enable_notification(&memory.mapped)?;
        is_there(memory).map(|()| has_come)
    }

    /// The guest need not ring: somebody looks.
    pub(super) fn look(&self, memory: &Memory) -> Result<(), Broken> {
        Ok(self.queue.borrow_mut().disable_notification(&memory.mapped)?)
    }

    /// A request has ended, and the guest has got so many bytes.
    pub(super) fn end(&self, memory: &Memory, head: u16, bytes: u32) -> Result<(), Broken> {
        let mut queue = self.queue.borrow_mut();
        self.under_way.set(self.under_way.get() - 1);
        let track = self.track.borrow();
        let note_end = || track.as_ref().map_or(Ok(()), |track| track.ends(head));
        let is_late = mutant!("serve.noted-behind-telling");
        if !is_late {
            note_end()?;
        }
        queue.add_used(&memory.mapped, head, bytes)?;
        if is_late {
            note_end()?;
        }
        // The guest was not told of it: the next server does it once more.
        is_there(memory)?;
        if let Some(track) = &*track {
            track.ended(head, queue.next_used())?;
        }
        if queue.needs_notification(&memory.mapped)? {
            self.ring();
        }
        Ok(())
    }

    fn ring(&self) {
        if let Some(call) = &*self.call.borrow() {
            // Where it takes no more the guest has been rung often enough.
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }
}
