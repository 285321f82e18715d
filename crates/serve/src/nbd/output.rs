//! What a client is sent.
//!
//! Owns: replies that the kernel has not taken yet, whose room comes back when it has, and memory for later
//! ones. Promises: the reply to the only request under way is sent at once, in one call; others wait for
//! what ends in the same turn of the core, and go in one call with it. Never: waits where a request ends;
//! reorders a reply's bytes.

use crate::Client;
use crate::buffers::Buffers;
use crate::room::{Grant, Pool, Share};
use crate::stop::first;
use flashlane_base::mutant;
use flashlane_rt::{Cx, Notify, Watched};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;

/// Replies in a call of the kernel at most.
const AT_ONCE: usize = 64;
/// A reply, and the room that it takes of its client's. A piece of one has none: more of it
/// follows.
struct Reply {
    bytes: Vec<u8>,
    room: Option<Grant>,
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
    /// Everything was sent, or is dropped.
    emptied: Notify,
    /// What the client has in flight.
    share: Share,
    buffers: Buffers,
}

/// Room for a request, which goes back when this is dropped.
pub(super) struct Room<'a> {
    of: &'a Share,
    cx: &'a Cx,
    grant: Option<Grant>,
}

impl Room<'_> {
    /// Sectors of data that there is memory for.
    pub(super) fn sectors(&self) -> u64 {
        self.grant.as_ref().map_or(0, Grant::sectors)
    }

    /// From now on it goes back with the reply ([`Output::send`]).
    pub(super) fn keep(mut self) -> Grant {
        self.grant.take().unwrap_or_default()
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.of.give(self.cx, grant);
        }
    }
}

impl Output {
    pub(super) fn new(socket: Rc<Watched<Client>>, pool: Arc<Pool>) -> Output {
        Output {
            socket,
            waiting: RefCell::default(),
            sent: Cell::new(0),
            over: Cell::new(false),
            hurried: Cell::new(false),
            changed: Notify::new(),
            emptied: Notify::new(),
            buffers: Buffers::of(pool.clone()),
            share: Share::new(pool),
        }
    }

    /// Memory for requests and replies.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Waits until the client may have a request of so many sectors of data in flight, or a piece
    /// of it.
    pub(super) async fn take_room<'a>(&'a self, cx: &'a Cx, sectors: u64) -> Room<'a> {
        let grant = self.share.take(cx, sectors).await;
        Room { of: &self.share, cx, grant: Some(grant) }
    }

    /// Waits until the client may have more work without data in flight.
    pub(super) async fn take_work<'a>(&'a self, cx: &'a Cx, sectors: u64) -> Room<'a> {
        let grant = self.share.take_work(cx, sectors).await;
        Room { of: &self.share, cx, grant: Some(grant) }
    }

    /// Waits until nothing is in flight, and every reply sent or dropped.
    pub(super) async fn all_room(&self, cx: &Cx) {
        self.share.all(cx).await;
    }

    /// Waits until every reply is sent or dropped.
    async fn all_sent(&self, cx: &Cx) {
        self.emptied.wait(cx, || !self.has_waiting()).await;
    }

    /// Waits until the request that has this room is the only one in flight.
    pub(super) async fn alone(&self, cx: &Cx) {
        self.emptied.wait(cx, || self.share.requests() <= 1).await;
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
        let dropped: Vec<Reply> = self.waiting.borrow_mut().drain(..).collect();
        for Reply { room, .. } in dropped {
            self.give(cx, room);
        }
        self.changed.wake(cx);
        self.emptied.wake(cx);
    }

    /// Nothing is sent any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Sends a reply, whose request took so much room.
    pub(super) fn send(&self, cx: &Cx, bytes: Vec<u8>, room: Grant) {
        if self.over.get() {
            return self.done(cx, bytes, Some(room));
        }
        if self.share.requests() == 1 && self.waiting.borrow().is_empty() {
            match self.socket.file().write(&[IoSlice::new(&bytes)]) {
                Ok(n) if n == bytes.len() => return self.done(cx, bytes, Some(room)),
                Ok(n) => self.sent.set(n),
                // Whatever is wrong with the socket, its writer finds it.
                Err(_) => self.sent.set(0),
            }
        }
        self.waiting.borrow_mut().push_back(Reply { bytes, room: Some(room) });
        self.changed.wake(cx);
    }

    /// Sends a piece of a reply, of which more follows, and waits until the client has taken it.
    /// False where it takes nothing any more.
    pub(super) async fn send_piece(&self, cx: &Cx, bytes: Vec<u8>) -> bool {
        if !self.over.get() {
            self.waiting.borrow_mut().push_back(Reply { bytes, room: None });
            self.changed.wake(cx);
        }
        self.all_sent(cx).await;
        !self.over.get()
    }

    /// A request gets no reply, or none any more.
    pub(super) fn drop_room(&self, cx: &Cx, room: Grant) {
        self.give(cx, Some(room));
    }

    fn give(&self, cx: &Cx, room: Option<Grant>) {
        if let Some(room) = room {
            self.share.give(cx, room);
            self.emptied.wake(cx);
        }
    }

    /// A reply is sent, or dropped.
    fn done(&self, cx: &Cx, bytes: Vec<u8>, room: Option<Grant>) {
        self.buffers.keep(bytes);
        self.give(cx, room);
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
        let (mut sent, mut rooms) = (self.sent.get() + written, Vec::new());
        while let Some(first) = waiting.front()
            && sent >= first.bytes.len()
        {
            sent -= first.bytes.len();
            if let Some(Reply { bytes, room }) = waiting.pop_front() {
                self.buffers.keep(bytes);
                rooms.push(room);
            }
        }
        self.sent.set(sent);
        let is_empty = waiting.is_empty();
        drop(waiting);
        rooms.into_iter().for_each(|room| self.give(cx, room));
        if is_empty {
            self.emptied.wake(cx);
        }
    }
}
