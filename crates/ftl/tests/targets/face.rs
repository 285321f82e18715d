//! What a target sees in place of the SSD: its damage, and the moment at which the power goes off.
//!
//! Owns: the wrapper of one life ([`Face`]), what was written and what of it is damaged ([`Truth`], for all
//! lives), the moment of a cut ([`Stop`]). Promises: commands pass unchanged but for the damage in what is
//! read; none reaches the device when the power is off. Never: knows what a sector means.

use crate::prelude::*;
use flashlane_base::{OOB_BYTES, PpaFormat};
use flashlane_ocssd::device::{Completion, Data, Device, Request, Ticket, Traits};
use std::ops::Range;

/// Chunk of the target and sector in it.
pub(crate) type Spot = (u32, u32);

/// A sector as it was written; content of metadata only.
#[derive(Clone)]
pub(crate) struct Wrote {
    pub(crate) oob: [u8; OOB_BYTES],
    pub(crate) bytes: Vec<u8>,
}

impl Wrote {
    pub(crate) fn stamp(&self) -> u64 {
        Oob::decode_raw(&self.oob).1
    }
}

/// What is on the medium, and what is wrong with it.
#[derive(Default)]
pub(crate) struct Truth {
    pub(crate) written: BTreeMap<Spot, Wrote>,
    pub(crate) unreadable: BTreeSet<Spot>,
    /// These are unreadable, too, from this command of the life on, counted from 0.
    pub(crate) fades: Option<(u64, BTreeSet<Spot>)>,
    pub(crate) flipped: BTreeSet<Spot>,
    /// Their next read fails.
    pub(crate) fails_once: BTreeSet<Spot>,
    /// So many of their next reads fail.
    pub(crate) fails_often: BTreeMap<Spot, u64>,
    /// So many sectors fail that are read next, whichever they are.
    pub(crate) next_fail: u64,
    pub(crate) replaced: BTreeMap<Spot, Wrote>,
    pub(crate) geometry: Option<Geometry>,
}

/// When the power goes off by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Before the n-th command reaches the device.
    Before(u64),
    /// In the middle of the n-th command.
    Within(u64),
    /// At this time of the life, whatever is under way.
    At(Ns),
}

/// Before and within each of these commands.
pub(crate) fn stops(commands: Range<u64>) -> impl Iterator<Item = Stop> {
    commands.flat_map(|n| [Stop::Before(n), Stop::Within(n)])
}

#[derive(Default)]
struct Seen {
    commands: u64,
    /// The commands with their places.
    asked: Vec<(Op, Vec<Spot>)>,
    /// Where was written what need not be on the medium when the write completes.
    without_fua: BTreeSet<Spot>,
    /// Failures to be merged into completions.
    bad: BTreeMap<u64, Vec<usize>>,
    /// When the power goes off, once that is known.
    off_at: Option<Ns>,
}

/// The wrapper of one life.
pub(crate) struct Face {
    ssd: Arc<Ssd>,
    truth: Arc<Mutex<Truth>>,
    /// What it says of itself.
    geo: Geometry,
    seen: Mutex<Seen>,
    stop: Option<Stop>,
    /// Wakes whoever waits for that.
    pub(crate) stopped: Notify,
}

/// Ticket of a command that the power cut kept from the device.
const NEVER: u64 = 1 << 62;

impl Face {
    pub(crate) fn new(ssd: Arc<Ssd>, truth: Arc<Mutex<Truth>>, stop: Option<Stop>) -> Face {
        let geo = truth.lock().geometry.unwrap_or(*ssd.geometry());
        let off_at = match stop {
            Some(Stop::At(at)) => Some(at),
            _ => None,
        };
        let seen = Mutex::new(Seen { off_at, ..Seen::default() });
        Face { ssd, truth, geo, seen, stop, stopped: Notify::new() }
    }

    /// When the power goes off, once that is known.
    pub(crate) fn off_at(&self) -> Option<Ns> {
        self.seen.lock().off_at
    }

    fn spot(&self, addr: Ppa) -> Spot {
        let at = self.ssd.format().unpack(addr).unwrap_or(Location { pu: 0, chunk: 0, sector: 0 });
        (at.pu * self.ssd.geometry().chunks_per_pu + at.chunk, at.sector)
    }

    pub(crate) fn commands(&self) -> u64 {
        self.seen.lock().commands
    }

    /// All commands so far, with their places.
    pub(crate) fn everything(&self) -> Vec<(Op, Vec<Spot>)> {
        self.seen.lock().asked.clone()
    }

    /// The places of all commands of a kind.
    pub(crate) fn asked(&self, op: Op) -> Vec<Spot> {
        let seen = self.seen.lock();
        seen.asked.iter().filter(|(o, _)| *o == op).flat_map(|(_, s)| s.clone()).collect()
    }

    /// The places that were written without FUA, ever.
    pub(crate) fn without_fua(&self) -> BTreeSet<Spot> {
        self.seen.lock().without_fua.clone()
    }

    /// Commands of a kind.
    pub(crate) fn count(&self, op: Op) -> usize {
        self.seen.lock().asked.iter().filter(|(o, _)| *o == op).count()
    }

    fn note_write(&self, request: &Request<'_>, spots: &[Spot]) {
        let mut truth = self.truth.lock();
        match &request.data {
            Data::Write { content, oob, .. } => {
                for (i, spot) in spots.iter().enumerate() {
                    let bytes = match request.whole_sectors {
                        true => content.sector(i).to_vec(),
                        false => Vec::new(),
                    };
                    truth.written.insert(*spot, Wrote { oob: oob[i], bytes });
                }
            }
            _ => {
                for (chunk, _) in spots {
                    let whole = (*chunk, 0)..(*chunk + 1, 0);
                    let gone = |s: &Spot| !whole.contains(s);
                    truth.written.retain(|s, _| gone(s));
                    truth.unreadable.retain(gone);
                    truth.flipped.retain(gone);
                    truth.fails_once.retain(gone);
                    truth.replaced.retain(|s, _| gone(s));
                }
            }
        }
    }

    /// Reads, with the damage in what comes back.
    fn read(&self, cx: &Cx, request: Request<'_>, spots: &[Spot]) -> Ticket {
        let Data::Read { mut content, oob } = request.data else { unreachable!("a read") };
        let (index, unit) = (content.index, content.unit);
        let data = Data::Read { content: content.with(index), oob: &mut *oob };
        let ticket = self.ssd.submit(cx, Request { data, ..request });
        let mut truth = self.truth.lock();
        let mut bad = Vec::new();
        for (i, spot) in spots.iter().enumerate() {
            let content = content.sector(i);
            if let Some(other) = truth.replaced.get(spot) {
                oob[i] = other.oob;
                content.copy_from_slice(&other.bytes[..unit]);
            }
            if truth.flipped.contains(spot) && unit > 0 {
                content[unit / 2] ^= 0x10;
            }
            let mut in_burst = truth.next_fail > 0;
            truth.next_fail -= u64::from(in_burst);
            if let Some(left) = truth.fails_often.get_mut(spot).filter(|left| **left > 0) {
                *left -= 1;
                in_burst = true;
            }
            if truth.fails_once.remove(spot) || truth.unreadable.contains(spot) || in_burst {
                content.fill(0);
                oob[i].fill(0);
                bad.push(i);
            }
        }
        if !bad.is_empty() {
            self.seen.lock().bad.insert(ticket.id, bad);
        }
        ticket
    }
}

impl Device for Face {
    flashlane_ocssd::as_below!(ssd: format traits chunk_report);

    fn geometry(&self) -> &Geometry {
        &self.geo
    }
    fn expect(&self, _: Ppa, _: u32) {}
    fn submit_at(&self, cx: &Cx, request: Request<'_>, _: Ns) -> Ticket {
        let spots: Vec<Spot> = request.addrs.iter().map(|a| self.spot(*a)).collect();
        let number = {
            let mut seen = self.seen.lock();
            seen.commands += 1;
            seen.asked.push((request.op, spots.clone()));
            if request.op == Op::Write && !request.flags.fua {
                seen.without_fua.extend(&spots);
            }
            if self.stop == Some(Stop::Before(seen.commands - 1)) {
                seen.off_at = Some(cx.now());
            }
            seen.commands - 1
        };
        if self.seen.lock().off_at.is_some_and(|at| at <= cx.now()) {
            self.stopped.wake(cx);
            return Ticket { id: NEVER, ask_at: Ns::MAX };
        }
        {
            let mut truth = self.truth.lock();
            if let Some((_, faded)) = truth.fades.take_if(|(from, _)| *from <= number) {
                truth.unreadable.extend(faded);
            }
        }
        let ticket = match request.op {
            Op::Read => self.read(cx, request, &spots),
            _ => {
                self.note_write(&request, &spots);
                self.ssd.submit(cx, request)
            }
        };
        if self.stop == Some(Stop::Within(number)) {
            let span = ticket.ask_at.as_ns().saturating_sub(cx.now().as_ns());
            let at = cx.now() + Ns::from_ns(span - span / 3);
            self.seen.lock().off_at = Some(at);
            self.stopped.wake(cx);
        }
        ticket
    }
    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        if ticket.id == NEVER {
            return Poll::Pending;
        }
        let id = ticket.id;
        let Poll::Ready(mut done) = self.ssd.finish(cx, ticket) else { return Poll::Pending };
        if let Some(bad) = self.seen.lock().bad.remove(&id) {
            let most = bad.iter().copied().max().unwrap_or(0) + 1;
            done.status.resize(done.status.len().max(most).max(64), Status::Ok);
            for i in bad {
                done.failed |= 1 << i;
                done.status[i] = Status::Uncorrectable;
            }
        }
        Poll::Ready(done)
    }
}
