//! Lies on command: outcomes of chosen commands are replaced.
//!
//! Owns: [`ScriptedDevice`], [`Script`]. Promises: a command that no line names passes unchanged;
//! one that is named never reaches the medium (a write that fails here wrote nothing), and
//! completes after its delay with the given status at the given addresses; the other addresses of
//! the vector are sent on alone. Never: changes content.
//!
//! For failures that the medium itself should have, with the right state afterwards, there is the
//! fault plan ([`flashlane_media::fault`]); this is for answers that no medium would give.

use crate::device::{ChunkInfo, Completion, Data, Device, Op, Request, Status, Ticket, Traits};
use flashlane_base::{Geometry, Ns, Ppa, PpaFormat, VECTOR_MAX};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::sync::Arc;
use std::task::Poll;

/// One line: what to answer to which command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Commands of this kind are counted ...
    pub op: Op,
    /// ... and this one, from 0, is answered.
    pub nth: u64,
    /// Addresses of the command that get the status; a bit each.
    pub addrs: u64,
    pub status: Status,
    /// How long the answer takes, at least.
    pub delay: Ns,
}

#[derive(Default)]
struct State {
    lines: Vec<Script>,
    /// Commands seen, by kind.
    seen: [u64; 5],
    answered: u64,
    slots: Vec<Option<Answer>>,
    free: Vec<u32>,
}

/// A command that a line named.
struct Answer {
    inner: Option<Ticket>,
    /// Index in the whole command of each address that was sent on.
    sent: Vec<usize>,
    line: Script,
    addresses: usize,
    due: Ns,
    done: Option<Completion>,
}

/// Tickets of answered commands; others keep the inner device's name.
const OURS: u64 = 1 << 63;

/// A device that lies on command.
pub struct ScriptedDevice {
    inner: Arc<dyn Device>,
    state: Mutex<State>,
}

impl ScriptedDevice {
    /// Wraps `inner`; without lines nothing changes.
    pub fn new(inner: Arc<dyn Device>) -> ScriptedDevice {
        ScriptedDevice { inner, state: Mutex::default() }
    }

    /// Adds a line. Numbers count from the start of this device.
    pub fn add(&self, line: Script) {
        self.state.lock().lines.push(line);
    }

    /// Commands of a kind so far.
    pub fn seen(&self, op: Op) -> u64 {
        self.state.lock().seen[op as usize]
    }

    /// Lines that have happened.
    pub fn answered(&self) -> u64 {
        self.state.lock().answered
    }

    fn line_for(&self, op: Op) -> Option<Script> {
        let mut state = self.state.lock();
        let number = state.seen[op as usize];
        state.seen[op as usize] += 1;
        let at = state.lines.iter().position(|l| l.op == op && l.nth == number)?;
        state.answered += 1;
        Some(state.lines.remove(at))
    }

    /// Sends on the addresses that the line leaves alone.
    fn send_rest(
        &self,
        cx: &Cx,
        request: Request<'_>,
        line: &Script,
        arrives: Ns,
    ) -> (Option<Ticket>, Vec<usize>) {
        let n = request.addrs.len().min(VECTOR_MAX);
        let sent: Vec<usize> = (0..n).filter(|i| line.addrs >> i & 1 == 0).collect();
        if sent.is_empty() || request.op == Op::Copy {
            return (None, Vec::new());
        }
        (Some(send_some(&*self.inner, cx, request, &sent, arrives)), sent)
    }
}

/// Sends these of a command's addresses on.
fn send_some(
    inner: &dyn Device,
    cx: &Cx,
    request: Request<'_>,
    sent: &[usize],
    arrives: Ns,
) -> Ticket {
    fn some<T: Copy>(all: &[T], sent: &[usize]) -> Vec<T> {
        sent.iter().filter_map(|i| all.get(*i).copied()).collect()
    }
    let addrs = some(request.addrs, sent);
    let plain = Request::plain(request.op, &addrs).with(request.flags).whole(request.whole_sectors);
    match request.data {
        Data::None => inner.submit_at(cx, plain, arrives),
        Data::Write { content, oob, cause } => {
            let (index, oob, cause) =
                (some(content.index(), sent), some(oob, sent), some(cause, sent));
            let data = Data::Write { content: content.with(&index), oob: &oob, cause: &cause };
            inner.submit_at(cx, Request { data, ..plain }, arrives)
        }
        Data::Read { mut content, oob } => {
            let index = some(content.index, sent);
            let mut picked = vec![[0; flashlane_base::OOB_BYTES]; sent.len()];
            let data = Data::Read { content: content.with(&index), oob: &mut picked };
            let ticket = inner.submit_at(cx, Request { data, ..plain }, arrives);
            for (record, i) in picked.iter().zip(sent) {
                if let Some(place) = oob.get_mut(*i) {
                    *place = *record;
                }
            }
            ticket
        }
    }
}

impl Answer {
    /// The completion of the whole command: the line's status here, the device's there.
    fn merge(&self, rest: Option<Completion>) -> Completion {
        let mut status = vec![Status::Ok; self.addresses.max(1)];
        let mut finished = self.due;
        let mut breakdown = Default::default();
        if let Some(rest) = rest {
            for (k, i) in self.sent.iter().enumerate() {
                status[*i] = rest.status(k);
            }
            finished = finished.max(rest.finished);
            breakdown = rest.breakdown;
        }
        for (i, place) in status.iter_mut().enumerate() {
            if self.line.addrs >> i & 1 == 1 || self.line.op == Op::Copy {
                *place = self.line.status;
            }
        }
        let bit = |(i, s): (usize, &Status)| u64::from(*s != Status::Ok) << i;
        let failed = status.iter().enumerate().map(bit).fold(0, |a, b| a | b);
        Completion {
            failed,
            status: if failed == 0 { Vec::new() } else { status },
            finished,
            breakdown,
        }
    }
}

impl Device for ScriptedDevice {
    crate::as_below!(inner: geometry format traits expect chunk_report);

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        let Some(line) = self.line_for(request.op) else {
            return self.inner.submit_at(cx, request, arrives);
        };
        let addresses = request.addrs.len().min(VECTOR_MAX);
        let (inner, sent) = self.send_rest(cx, request, &line, arrives);
        let due = arrives.max(cx.now()) + line.delay;
        let ask_at = inner.as_ref().map_or(due, |t| t.ask_at.max(due));
        let answer = Some(Answer { inner, sent, line, addresses, due, done: None });
        let mut state = self.state.lock();
        let id = match state.free.pop() {
            Some(id) => {
                state.slots[id as usize] = answer;
                id
            }
            None => {
                state.slots.push(answer);
                (state.slots.len() - 1) as u32
            }
        };
        Ticket { id: OURS | id as u64, ask_at }
    }

    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        if ticket.id & OURS == 0 {
            return self.inner.finish(cx, ticket);
        }
        let slot = (ticket.id & !OURS) as usize;
        let taken = self.state.lock().slots[slot].take();
        let Some(mut answer) = taken else {
            unreachable!("ticket {slot} was finished before");
        };
        if let Some(mut inner) = answer.inner.take() {
            match self.inner.finish(cx, &mut inner) {
                Poll::Ready(done) => answer.done = Some(done),
                Poll::Pending => {
                    ticket.ask_at = inner.ask_at.max(answer.due);
                    answer.inner = Some(inner);
                    self.state.lock().slots[slot] = Some(answer);
                    return Poll::Pending;
                }
            }
        }
        if cx.now() < answer.due {
            ticket.ask_at = answer.due;
            self.state.lock().slots[slot] = Some(answer);
            return Poll::Pending;
        }
        let done = answer.done.take();
        let completion = answer.merge(done);
        self.state.lock().free.push(slot as u32);
        Poll::Ready(completion)
    }
}
