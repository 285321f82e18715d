//! The bus between the host and an Open-Channel SSD.
//!
//! Owns: [`Link`], [`LinkedDevice`]. Promises: commands reach the device in the order in which they
//! were submitted, after the fixed time per command and the time of their payload; what the device
//! returns crosses in the order of completion. Never: changes an outcome.
//!
//! Below a host FTL this is the drive's link: vector commands cross it. Payload of a write crosses
//! before the command arrives, content of a read after the device is done.
//!
//! The queue depth bounds commands in flight: one too many arrives when an earlier one is expected
//! to be done, as announced when it was submitted. Where announcements move later the bound is
//! loose by as much.

use crate::device::{ChunkInfo, Completion, Device, Op, Request, Ticket, Traits};
use crate::pipe::Pipe;
use crate::spec::LinkSpec;
use flashlane_base::{Geometry, Ns, PpaFormat, SECTOR_BYTES};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Poll;

pub struct Link {
    to_device: Pipe,
    to_host: Pipe,
    command: Ns,
    depth: usize,
}

impl Link {
    pub fn new(spec: &LinkSpec) -> Link {
        Link {
            to_device: Pipe::new(spec.to_device.get()),
            to_host: Pipe::new(spec.to_host.get()),
            command: spec.command,
            depth: spec.queue_depth as usize,
        }
    }

    /// When a command sent at `now` with `bytes` of payload has arrived.
    pub fn send(&self, now: Ns, bytes: u64) -> Ns {
        self.to_device.pass(now, bytes) + self.command
    }

    /// When `bytes` that the device has at `at` have reached the host.
    pub fn receive(&self, at: Ns, bytes: u64) -> Ns {
        self.to_host.pass(at, bytes)
    }
}

/// A command on its way.
struct Crossing {
    inner: Ticket,
    /// Its announced end, as the queue depth counts it.
    announced: (Ns, u64),
    /// Time on the way to the device.
    sent: Ns,
    bytes_back: u64,
    /// The device's completion, while content crosses.
    done: Option<Completion>,
}

#[derive(Default)]
struct Crossings {
    slots: Vec<Option<Crossing>>,
    free: Vec<u32>,
    announced: BTreeSet<(Ns, u64)>,
    count: u64,
}

pub struct LinkedDevice {
    inner: Arc<dyn Device>,
    link: Link,
    crossings: Mutex<Crossings>,
}

impl LinkedDevice {
    /// Puts `inner` behind a link.
    pub fn new(inner: Arc<dyn Device>, spec: &LinkSpec) -> LinkedDevice {
        LinkedDevice { inner, link: Link::new(spec), crossings: Mutex::default() }
    }

    /// When a queue entry is free for a command that comes at `now`.
    fn admitted(&self, now: Ns) -> Ns {
        let mut all = self.crossings.lock();
        if self.link.depth == 0 || all.announced.len() < self.link.depth {
            return now;
        }
        all.announced.pop_first().map_or(now, |(at, _)| now.max(at))
    }
}

impl Device for LinkedDevice {
    crate::as_below!(inner: geometry format traits chunk_report);

    fn expect(&self, first: flashlane_base::Ppa, n: u32) {
        self.inner.expect(first, n);
    }

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        let sectors = request.addrs.len() as u64 * SECTOR_BYTES as u64;
        let (there, back) = match request.op {
            Op::Write => (sectors, 0),
            Op::Read => (0, sectors),
            _ => (0, 0),
        };
        let from = self.admitted(arrives);
        let arrives = self.link.send(from, there);
        let sent = arrives.saturating_sub(cx.now());
        let inner = self.inner.submit_at(cx, request, arrives);
        let ask_at = inner.ask_at.max(arrives);
        let mut all = self.crossings.lock();
        all.count += 1;
        let announced = (ask_at, all.count);
        all.announced.insert(announced);
        let crossing = Some(Crossing { inner, announced, sent, bytes_back: back, done: None });
        let id = match all.free.pop() {
            Some(id) => {
                all.slots[id as usize] = crossing;
                id
            }
            None => {
                all.slots.push(crossing);
                (all.slots.len() - 1) as u32
            }
        };
        Ticket { id: id as u64, ask_at }
    }

    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let slot = ticket.id as usize;
        let taken = self.crossings.lock().slots[slot].take();
        let Some(mut crossing) = taken else {
            unreachable!("ticket {slot} was finished before");
        };
        if crossing.done.is_none() {
            match self.inner.finish(cx, &mut crossing.inner) {
                Poll::Pending => {
                    ticket.ask_at = crossing.inner.ask_at;
                    self.crossings.lock().slots[slot] = Some(crossing);
                    return Poll::Pending;
                }
                Poll::Ready(mut done) => {
                    let at = self.link.receive(done.finished, crossing.bytes_back);
                    done.breakdown.link += crossing.sent + (at - done.finished);
                    done.finished = at;
                    crossing.done = Some(done);
                }
            }
        }
        match crossing.done.take() {
            Some(done) if done.finished <= cx.now() => {
                let mut all = self.crossings.lock();
                all.announced.remove(&crossing.announced);
                all.free.push(slot as u32);
                Poll::Ready(done)
            }
            waiting => {
                ticket.ask_at = waiting.as_ref().map_or(cx.now(), |d| d.finished);
                crossing.done = waiting;
                self.crossings.lock().slots[slot] = Some(crossing);
                Poll::Pending
            }
        }
    }
}
