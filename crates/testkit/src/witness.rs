//! A device that tells the oracle which sectors' media were damaged under it.
//!
//! Owns: what user content each physical sector was programmed with (content names its sector, so
//! no layer's format is needed). Promises: a read that the medium failed, or answered with wrong
//! bits, is told before the layer above sees it; so a read error of that layer is admissible for
//! exactly the sectors whose content was hit. Never: changes a command or an outcome.

use crate::content::{self, Found, Version};
use crate::harness::OracleSlot;
use flashlane_base::{Geometry, Lba, Ns, Ppa, PpaFormat};
use flashlane_ocssd::device::{ChunkInfo, Completion, Data, Device, Op, Request, Ticket, Traits};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// What a sector was programmed with.
type Known = (Lba, Version);

#[derive(Default)]
struct Book {
    programmed: BTreeMap<Ppa, Known>,
    /// Per read under way: what each address holds, and whether wrong bits came back for it.
    reads: BTreeMap<u64, Vec<(Option<Known>, bool)>>,
}

pub struct Witness {
    inner: Arc<dyn Device>,
    oracle: OracleSlot,
    book: Mutex<Book>,
}

impl Witness {
    /// Watches `inner`.
    pub fn new(inner: Arc<dyn Device>, oracle: OracleSlot) -> Witness {
        Witness { inner, oracle, book: Mutex::default() }
    }

    fn note_write(&self, request: &Request<'_>) {
        let Data::Write { content, .. } = &request.data else {
            return;
        };
        let mut book = self.book.lock();
        for (i, ppa) in request.addrs.iter().enumerate() {
            let found = match request.whole_sectors {
                true => Found::Zeros, // metadata
                false => content::name(content.sector(i)),
            };
            match found {
                Found::Sector(lba, version) => book.programmed.insert(*ppa, (lba, version)),
                _ => book.programmed.remove(ppa),
            };
        }
    }

    fn note_copy(&self, addrs: &[Ppa]) {
        let mut book = self.book.lock();
        for pair in addrs.chunks_exact(2) {
            match book.programmed.get(&pair[0]).copied() {
                Some(known) => book.programmed.insert(pair[1], known),
                None => book.programmed.remove(&pair[1]),
            };
        }
    }

    /// Submits a read and compares what came with what was programmed.
    fn read(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        let Request { op, flags, addrs, data, whole_sectors } = request;
        let Data::Read { mut content, oob } = data else {
            let data = Data::None;
            let request = Request { op, flags, addrs, data, whole_sectors };
            return self.inner.submit_at(cx, request, arrives);
        };
        let to = content.with(content.index);
        let request =
            Request { op, flags, addrs, data: Data::Read { content: to, oob }, whole_sectors };
        let ticket = self.inner.submit_at(cx, request, arrives);
        let mut book = self.book.lock();
        let each = addrs.iter().enumerate().map(|(i, ppa)| {
            let known = book.programmed.get(ppa).copied();
            let sector = content.sector(i);
            let wrong = known.is_some_and(|(lba, version)| !content::is(lba, version, sector));
            (known, wrong)
        });
        let each = each.collect();
        book.reads.insert(ticket.id, each);
        ticket
    }

    fn tell(&self, id: u64, done: &Completion) {
        let Some(read) = self.book.lock().reads.remove(&id) else {
            return;
        };
        let Some(oracle) = self.oracle.get() else {
            return;
        };
        for (i, (known, wrong)) in read.into_iter().enumerate() {
            if let Some((lba, version)) = known
                && (wrong || !done.status(i).is_ok())
            {
                oracle.admit_error(lba, version);
            }
        }
    }
}

impl Device for Witness {
    flashlane_ocssd::as_below!(inner: geometry format traits expect chunk_report);

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        match request.op {
            Op::Read => return self.read(cx, request, arrives),
            Op::Write => self.note_write(&request),
            Op::Copy => self.note_copy(request.addrs),
            Op::Reset | Op::Flush => {}
        }
        self.inner.submit_at(cx, request, arrives)
    }
    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let id = ticket.id;
        let polled = self.inner.finish(cx, ticket);
        if let Poll::Ready(done) = &polled {
            self.tell(id, done);
        }
        polled
    }
}
