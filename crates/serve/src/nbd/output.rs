//! What a client is sent.
//!
//! Owns: replies that the kernel has not taken yet, whose room comes back when it has, and memory for later
//! ones. Promises: the reply to the only request under way is sent at once, in one call; others wait for
//! what ends in the same turn of the core, and go in one call with it. Never: waits where a request ends;
//! reorders a reply's bytes.

use super::BUDGET;
use crate::Client;
use crate::buffers::Buffers;
use crate::stop::first;
use flashlane_base::mutant;
use flashlane_rt::{Credits, Cx, Notify, Watched};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

/// Replies in a call of the kernel at most.
const AT_ONCE: usize = 64;
/// A reply, and the room that it takes of its client's.
struct Reply {
    bytes: Vec<u8>,
    room: u64,
}

pub(super) struct Output {
    socket: Rc<Watched<Client>>,
    waiting: RefCell<VecDeque<Reply>>,
    /// Bytes of the first that were sent.
    sent: Cell<usize>,
    /// The client is gone, or no reply comes any more.
    over: Cell<bool>,
    hurried: Cell<bool>,
    changed: Notify,
    /// What the client may have in flight, in sectors.
    room: Credits,
    buffers: Buffers,
}

/// Room for a request, which goes back when this is dropped.
pub(super) struct Room<'a> {
    of: &'a Credits,
    cx: &'a Cx,
    sectors: u64,
}

impl Room<'_> {
    /// From now on it goes back with the reply ([`Output::send`]).
    pub(super) fn keep(mut self) -> u64 {
        std::mem::take(&mut self.sectors)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.of.release(self.cx, self.sectors);
    }
}

impl Output {
    pub(super) fn new(socket: Rc<Watched<Client>>) -> Output {
        Output {
            socket,
            waiting: RefCell::default(),
            sent: Cell::new(0),
            over: Cell::new(false),
            hurried: Cell::new(false),
            changed: Notify::new(),
            room: Credits::new(BUDGET),
            buffers: Buffers::default(),
        }
    }

    /// Memory for requests and replies.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Waits until the client may have so much more in flight.
    pub(super) async fn take_room<'a>(&'a self, cx: &'a Cx, sectors: u64) -> Room<'a> {
        let sectors = if mutant!("serve.room-unbounded") { 0 } else { sectors };
        self.room.acquire(cx, sectors).await;
        Room { of: &self.room, cx, sectors }
    }

    /// Waits until nothing is in flight, and every reply sent or dropped.
    pub(super) async fn all_room(&self, cx: &Cx) {
        drop(self.take_room(cx, BUDGET).await);
    }

    /// Nobody waits for a reply, or not for as long as it would take.
    pub(super) fn is_in_vain(&self) -> bool {
        let in_vain = self.over.get() || self.hurried.get() || self.socket.file().is_gone();
        in_vain && !mutant!("serve.zeros-to-the-end")
    }

    /// The connection is to end: what takes very long is given up.
    pub(super) fn hurry(&self) {
        self.hurried.set(true);
    }

    /// Are there replies that the client has not taken?
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Nothing is sent any more.
    pub(super) fn end(&self, cx: &Cx) {
        self.over.set(true);
        let dropped: u64 = self.waiting.borrow_mut().drain(..).map(|reply| reply.room).sum();
        self.room.release(cx, dropped);
        self.changed.wake(cx);
    }

    /// Sends a reply, whose request took so much room.
    pub(super) fn send(&self, cx: &Cx, bytes: Vec<u8>, room: u64) {
        let is_alone = self.room.free() + room >= BUDGET;
        if self.over.get() {
            return self.done(cx, bytes, room);
        }
        if is_alone && self.waiting.borrow().is_empty() {
            match self.socket.file().write(&[IoSlice::new(&bytes)]) {
                Ok(n) if n == bytes.len() => return self.done(cx, bytes, room),
                Ok(n) => self.sent.set(n),
                // Whatever is wrong with the socket, its writer finds it.
                Err(_) => self.sent.set(0),
            }
        }
        self.waiting.borrow_mut().push_back(Reply { bytes, room });
        self.changed.wake(cx);
    }

    /// A reply is sent, or dropped.
    fn done(&self, cx: &Cx, bytes: Vec<u8>, room: u64) {
        self.room.release(cx, room);
        self.buffers.keep(bytes);
    }

    /// Sends what waits, until there is an end of it.
    ///
    /// # Errors
    /// The client can't be written to any more.
    pub(super) async fn write(&self, cx: &Cx) -> io::Result<()> {
        loop {
            let something = || self.over.get() || !self.waiting.borrow().is_empty();
            self.changed.wait(cx, something).await;
            if self.over.get() {
                return Ok(());
            }
            let write = |client: &Client| {
                let waiting = self.waiting.borrow();
                let mut from = self.sent.get();
                let slices: Vec<IoSlice<'_>> = waiting
                    .iter()
                    .take(AT_ONCE)
                    .map(|reply| IoSlice::new(&reply.bytes[std::mem::take(&mut from)..]))
                    .collect();
                match slices.is_empty() {
                    true => Ok(0),
                    false => client.write(&slices),
                }
            };
            // A client that takes nothing must not be waited for once it is given up.
            match first(self.socket.io(write), self.changed.wait(cx, || self.over.get())).await {
                Ok(written) => self.took(cx, written?),
                Err(()) => return Ok(()),
            }
        }
    }

    /// The kernel took so many bytes.
    fn took(&self, cx: &Cx, written: usize) {
        let mut waiting = self.waiting.borrow_mut();
        let (mut sent, mut room) = (self.sent.get() + written, 0);
        while let Some(first) = waiting.front()
            && sent >= first.bytes.len()
        {
            sent -= first.bytes.len();
            room += first.room;
            let sent_whole = waiting.pop_front().map(|reply| reply.bytes);
            self.buffers.keep(sent_whole.unwrap_or_default());
        }
        self.sent.set(sent);
        self.room.release(cx, room);
    }
}
