//! Writes down every command.
//!
//! Owns: [`TracingDevice`], [`Traced`]. Promises: each command once, in the order of submission,
//! with the addresses as they came and the outcome as it went out; commands and outcomes pass
//! unchanged. Never: drops an entry (the caller takes them out).

use crate::device::{Breakdown, Completion, Device, Op, Request, Status, Ticket, Traits};
use crate::device::{Cause, ChunkInfo, Data, Flags};
use flashlane_base::{Geometry, Ns, OOB_BYTES, Ppa, PpaFormat};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CoreId, Cx};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::Poll;

/// A command as it was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// Number of the command on this device, from 0.
    pub number: u64,
    pub core: u32,
    pub op: Op,
    pub flags: Flags,
    pub addrs: Vec<Ppa>,
    pub causes: Vec<Cause>,
    /// Out-of-band records of a write.
    pub oob: Vec<[u8; OOB_BYTES]>,
    pub submitted: Ns,
    /// When it was done; `None` while it is under way.
    pub finished: Option<Ns>,
    /// Addresses that failed, with their status.
    pub failed: Vec<(usize, Status)>,
    /// Where the time went.
    pub breakdown: Breakdown,
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.finished {
            Some(at) => at.to_string(),
            None => "under way".into(),
        };
        write!(
            f,
            "#{} core {} {:?} x{} {}: {} .. {end}",
            self.number,
            self.core,
            self.op,
            self.addrs.len(),
            self.addrs.first().copied().unwrap_or_default(),
            self.submitted
        )?;
        match self.failed.first() {
            Some((i, status)) => write!(f, ", {} failed, [{i}] {status:?}", self.failed.len()),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
struct Book {
    entries: Vec<Traced>,
    /// Entry of each ticket under way.
    open: BTreeMap<u64, usize>,
    /// Entries taken out before; numbers go on.
    taken: u64,
}

/// A device whose commands are written down.
pub struct TracingDevice {
    inner: Arc<dyn Device>,
    book: Mutex<Book>,
}

impl TracingDevice {
    /// Writes down what `inner` is told.
    pub fn new(inner: Arc<dyn Device>) -> TracingDevice {
        TracingDevice { inner, book: Mutex::default() }
    }

    /// Everything so far, commands under way included.
    pub fn entries(&self) -> Vec<Traced> {
        self.book.lock().entries.clone()
    }

    /// Takes everything so far out. Commands that are under way then are not followed further.
    pub fn take(&self) -> Vec<Traced> {
        let mut book = self.book.lock();
        book.taken += book.entries.len() as u64;
        book.open.clear();
        std::mem::take(&mut book.entries)
    }

    /// Commands so far.
    pub fn count(&self) -> u64 {
        let book = self.book.lock();
        book.taken + book.entries.len() as u64
    }
}

fn entry(request: &Request<'_>, core: CoreId, submitted: Ns) -> Traced {
    let n = request.addrs.len();
    let (causes, oob) = match &request.data {
        Data::Write { cause, oob, .. } => {
            (cause[..n.min(cause.len())].to_vec(), oob[..n.min(oob.len())].to_vec())
        }
        _ => Default::default(),
    };
    Traced {
        number: 0,
        core: core.0,
        op: request.op,
        flags: request.flags,
        addrs: request.addrs.to_vec(),
        causes,
        oob,
        submitted,
        finished: None,
        failed: Vec::new(),
        breakdown: Breakdown::default(),
    }
}

impl Device for TracingDevice {
    crate::as_below!(inner: geometry format traits expect chunk_report);

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        let mut traced = entry(&request, cx.core(), cx.now());
        let ticket = self.inner.submit_at(cx, request, arrives);
        let mut book = self.book.lock();
        traced.number = book.taken + book.entries.len() as u64;
        let at = book.entries.len();
        book.entries.push(traced);
        book.open.insert(ticket.id, at);
        ticket
    }

    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let id = ticket.id;
        let polled = self.inner.finish(cx, ticket);
        if let Poll::Ready(done) = &polled {
            let mut book = self.book.lock();
            if let Some(at) = book.open.remove(&id) {
                let entry = &mut book.entries[at];
                entry.finished = Some(done.finished);
                entry.breakdown = done.breakdown;
                entry.failed = failures(done);
            }
        }
        polled
    }
}

fn failures(done: &Completion) -> Vec<(usize, Status)> {
    (0..done.status.len())
        .filter(|i| done.failed >> i & 1 == 1)
        .map(|i| (i, done.status[i]))
        .collect()
}
