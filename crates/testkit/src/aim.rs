//! Aim: which moment of a life a power cut is meant for, and which command a fault.
//!
//! Owns: kinds of moments ([`Event`]), how often each kind was seen, the draw. Promises: a kind that
//! happens once in a life is aimed at as often as one that happens a thousand times; what is drawn is a
//! function of the seed and of what the lives before did, so the same seed is cut at the same times.
//! Never: changes a command or an outcome, but for the faults that it puts into the medium.
//!
//! Kinds are told from what passes above and below the layer: requests of the host, and commands with
//! the cause that the layer gives them. So no layer knows that it is aimed at.

use flashlane_base::{Geometry, Ns, Ppa, PpaFormat, Rng};
use flashlane_ftl::block::BlockOp;
use flashlane_ocssd::Ssd;
use flashlane_ocssd::device::{
    Cause, ChunkInfo, Completion, Data, Device, Op, Request, Ticket, Traits,
};
use flashlane_ocssd::spec::{Fault, FaultKind};
use flashlane_rt::Cx;
use flashlane_rt::sync::{Mutex, Notify};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A request of the host: it is asked for, or answered.
    Host {
        op: BlockOp,
        /// Durable when it is answered.
        fua: bool,
        answered: bool,
    },
    /// A command of the layer: it is sent, or done.
    Command {
        op: Op,
        /// The last of its causes in the order of reports: what is rare comes late there.
        cause: Cause,
        /// From the first sector of a chunk on.
        first: bool,
        done: bool,
        failed: bool,
    },
    /// A fault was put before a command.
    Struck,
}

/// A kind of moment: what, and whether the layer was still being brought up.
type Kind = (bool, Event);

/// How long behind its moment a cut comes at most: a program or an erase takes less.
const LATE_MAX_LOG2: u64 = 22;
/// As often as a layer tries to read at most: what fails so often is lost to who reads it now, and is there
/// for who reads it after a cut.
const READS_MAX: u64 = 8;
/// Faults that are aimed in all lives of a run, so that the spare outlasts them; of them, erases.
const STRIKES_MAX: u32 = 12;
const ERASES_MAX: u32 = 2;

/// What is waited for: so many moments of a kind, then perhaps some of another kind, and then so long.
#[derive(Clone, Copy)]
struct Shot {
    kind: Kind,
    left: u64,
    then: Option<(Kind, u64)>,
    late: Ns,
}

/// A fault that waits for its command.
#[derive(Clone, Copy)]
struct Strike {
    kind: Kind,
    nth: u64,
    fault: FaultKind,
    times: u64,
    /// So many such commands in a row: two copies of something, most of all.
    row: u64,
    /// Which of the command's sectors.
    which: u64,
}

struct State {
    rng: Rng,
    /// Per kind, the most of a life so far.
    known: BTreeMap<Kind, u64>,
    counts: BTreeMap<Kind, u64>,
    coming_up: bool,
    shot: Option<Shot>,
    cut_at: Option<Ns>,
    /// A cut has been set.
    changed: Arc<Notify>,
    strikes: Vec<Strike>,
    /// Faults and, of them, erases that may still be aimed.
    left: (u32, u32),
    /// Faults that were put in.
    struck: u64,
    under_way: BTreeMap<u64, Event>,
}

/// One for all lives of a run.
pub struct Aim {
    state: Mutex<State>,
}

/// What to aim at while nothing is known: what every layer does.
fn usual(host: bool) -> Vec<Event> {
    let host_event = |op: BlockOp, fua| Event::Host { op, fua, answered: true };
    let sent = |op, cause, first, done| Event::Command { op, cause, first, done, failed: false };
    match host {
        true => vec![
            host_event(BlockOp::Write, false),
            host_event(BlockOp::Write, true),
            host_event(BlockOp::Discard, false),
            host_event(BlockOp::Flush, false),
        ],
        false => vec![
            sent(Op::Write, Cause::User, false, false),
            sent(Op::Write, Cause::Gc, false, true),
            sent(Op::Write, Cause::Log, false, false),
            sent(Op::Write, Cause::Log, false, true),
            sent(Op::Write, Cause::Log, true, true),
            sent(Op::Write, Cause::Metadata, false, true),
            sent(Op::Write, Cause::Metadata, true, true),
            sent(Op::Reset, Cause::User, true, false),
            sent(Op::Reset, Cause::User, true, true),
        ],
    }
}

/// As likely between 1 and 2 as between 2 and 4, up to `most`.
fn spread(rng: &mut Rng, most: u64) -> u64 {
    let doublings = u64::BITS - most.max(1).leading_zeros();
    let top = 1 << rng.below(u64::from(doublings) + 1).min(62);
    (1 + rng.below(top)).min(most.max(1))
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| of[rng.below(of.len() as u64) as usize])
}

impl State {
    /// One of these kinds, each as likely, and how often it happened at most.
    fn known_kind(&mut self, wanted: impl Fn(&Kind) -> bool) -> Option<(Kind, u64)> {
        let of: Vec<_> =
            self.known.iter().filter(|(k, _)| wanted(k)).map(|(k, n)| (*k, *n)).collect();
        pick(&mut self.rng, &of)
    }

    /// A kind of moments of the host, of the live layer or of its recovery, and how many there were.
    fn draw_kind(&mut self, part: u64) -> (Kind, u64) {
        let found = match part {
            0..3 => self.known_kind(|(up, event)| !up && matches!(event, Event::Host { .. })),
            3..7 => self.known_kind(|(up, event)| !up && !matches!(event, Event::Host { .. })),
            _ => self.known_kind(|(up, _)| *up),
        };
        // Of a block device there are requests and no commands.
        let found = found.or_else(|| self.known_kind(|(up, _)| !up));
        found.unwrap_or_else(|| {
            let event = pick(&mut self.rng, &usual(part.is_multiple_of(2)));
            ((false, event.unwrap_or(Event::Struck)), 128)
        })
    }

    /// With a fault in this life, every second time soon behind it.
    fn draw_shot(&mut self) -> Shot {
        let part = self.rng.below(10);
        let (kind, most) = self.draw_kind(part);
        // Also a few more than there were: lives differ.
        let left = match self.rng.below(2) {
            0 => 1 + self.rng.below(most + most / 4),
            _ => spread(&mut self.rng, most),
        };
        let mut shot = Shot { kind, left, then: None, late: Ns::ZERO };
        if let Some(strike) = self.strikes.first()
            && self.rng.below(2) == 0
        {
            (shot.kind, shot.left) = ((strike.kind.0, Event::Struck), 1);
        }
        // What is durable by something else that has just happened: a flush behind it, most of all.
        if self.rng.below(2) == 0 {
            let fua = self.rng.below(4) == 0;
            let op = if fua { BlockOp::Write } else { BlockOp::Flush };
            let answered = ((false, Event::Host { op, fua, answered: true }), 4);
            let part = self.rng.below(20);
            let (kind, most) = if part < 10 { answered } else { self.draw_kind(part - 10) };
            shot.then = Some((kind, spread(&mut self.rng, most.min(16))));
        }
        if self.rng.below(5) > 1 {
            shot.late = Ns::from_ns(spread(&mut self.rng, 1 << LATE_MAX_LOG2));
        }
        shot
    }

    fn draw_strike(&mut self) -> Option<Strike> {
        let live = self.rng.below(5) > 0;
        let wanted = [Op::Write, Op::Write, Op::Write, Op::Read, Op::Read, Op::Reset];
        let wanted = pick(&mut self.rng, &wanted)?;
        let sent = |(up, event): &Kind| {
            *up != live && matches!(event, Event::Command { op, done: false, .. } if *op == wanted)
        };
        let (kind, most) = self.known_kind(sent)?;
        use FaultKind::{BitFlip, EarlyClose, EraseFail, ReadUncorrectable, WriteNextUnit};
        let r = &mut self.rng;
        let fault = match wanted {
            Op::Write => pick(r, &[WriteNextUnit, EarlyClose])?,
            Op::Read => pick(r, &[ReadUncorrectable, ReadUncorrectable, BitFlip])?,
            _ => EraseFail,
        };
        let times = match wanted {
            // Recovery finds in the end what can be found at all.
            Op::Read if live => pick(r, &[1, READS_MAX, READS_MAX])?,
            _ => 1,
        };
        if fault == EraseFail {
            self.left.1 = self.left.1.checked_sub(1)?;
        }
        let row = if wanted == Op::Write { pick(r, &[1, 1, 2, 3])? } else { 1 };
        self.left.0 = self.left.0.checked_sub(row as u32)?;
        let (nth, which) = (spread(r, most), r.next_u64());
        Some(Strike { kind, nth, fault, times, row, which })
    }

    fn happened(&mut self, cx: &Cx, event: Event) -> (Kind, u64) {
        let kind = (self.coming_up, event);
        let count = self.counts.entry(kind).or_insert(0);
        *count += 1;
        let count = *count;
        if let Some(shot) = self.shot.as_mut().filter(|shot| shot.kind == kind) {
            shot.left -= 1;
            if shot.left == 0 {
                match shot.then.take() {
                    Some(then) => (shot.kind, shot.left) = then,
                    None => {
                        self.cut_at = self.shot.take().map(|shot| cx.now() + shot.late);
                        self.changed.wake(cx);
                    }
                }
            }
        }
        (kind, count)
    }
}

impl Aim {
    /// For one run of this seed.
    pub fn new(seed: u64) -> Arc<Aim> {
        let state = State {
            rng: Rng::stream(seed, "testkit.aim", 0),
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
            coming_up: true,
            shot: None,
            cut_at: None,
            changed: Arc::default(),
            strikes: Vec::new(),
            left: (STRIKES_MAX, ERASES_MAX),
            struck: 0,
            under_way: BTreeMap::new(),
        };
        Arc::new(Aim { state: Mutex::new(state) })
    }

    /// A life begins, and is to be cut, or not. Who is to be told when a cut has been set.
    pub(crate) fn begin(&self, cut: bool) -> Arc<Notify> {
        let mut state = self.state.lock();
        let s = &mut *state;
        for (kind, n) in std::mem::take(&mut s.counts) {
            let known = s.known.entry(kind).or_insert(0);
            *known = n.max(*known);
        }
        (s.coming_up, s.cut_at, s.changed) = (true, None, Arc::default());
        s.under_way.clear();
        let strikes = [0, 1, 1, 2, 3][s.rng.below(5) as usize];
        s.strikes = (0..strikes).filter_map(|_| s.draw_strike()).collect();
        let shot = s.draw_shot();
        s.shot = cut.then_some(shot);
        s.changed.clone()
    }

    /// The layer is up.
    pub(crate) fn is_up(&self) {
        self.state.lock().coming_up = false;
    }

    /// Faults that were put in, in all lives so far.
    pub(crate) fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// When to cut, once that is known.
    pub(crate) fn cut_at(&self) -> Option<Ns> {
        self.state.lock().cut_at
    }

    /// The host asks, or has its answer.
    pub(crate) fn host(&self, cx: &Cx, op: BlockOp, fua: bool, answered: bool) {
        if op != BlockOp::Read {
            let event = Event::Host { op, fua, answered };
            self.state.lock().happened(cx, event);
        }
    }

    /// A command is sent. Where a fault is meant for it, the medium has it from now on.
    pub(crate) fn sent(
        &self,
        cx: &Cx,
        device: &dyn Device,
        medium: Option<&Ssd>,
        request: &Request<'_>,
    ) -> Event {
        let cause = match &request.data {
            Data::Write { cause, .. } => cause.iter().copied().max(),
            _ if request.whole_sectors => Some(Cause::Metadata),
            _ => None,
        };
        let place = |ppa: Ppa| device.format().unpack(ppa);
        let first =
            request.addrs.first().and_then(|ppa| place(*ppa)).is_some_and(|at| at.sector == 0);
        let cause = cause.unwrap_or(request.flags.cause);
        let event = Event::Command { op: request.op, cause, first, done: false, failed: false };
        let mut state = self.state.lock();
        let (kind, count) = state.happened(cx, event);
        let meant = |s: &Strike| s.kind == kind && s.nth == count;
        if let Some(medium) = medium
            && let Some(i) = state.strikes.iter().position(meant)
        {
            let Strike { fault, which, times, .. } = state.strikes[i];
            state.strikes[i].nth += 1;
            state.strikes[i].row -= 1;
            if state.strikes[i].row == 0 {
                state.strikes.swap_remove(i);
            }
            let ppa = request.addrs[(which % request.addrs.len() as u64) as usize];
            if let Some(at) = place(ppa) {
                let (pu, chunk, sector) = (Some(at.pu), Some(at.chunk), Some(at.sector));
                let (count, after, chance) = (1, Ns::ZERO, None);
                medium.fail(Fault { kind: fault, pu, chunk, sector, count, after, chance, times });
                state.struck += 1;
                state.happened(cx, Event::Struck);
            }
        }
        event
    }

    /// The command that was sent has this number.
    pub(crate) fn numbered(&self, id: u64, sent: Event) {
        self.state.lock().under_way.insert(id, sent);
    }

    pub(crate) fn done(&self, cx: &Cx, id: u64, failed: bool) {
        let mut s = self.state.lock();
        if let Some(Event::Command { op, cause, first, .. }) = s.under_way.remove(&id) {
            s.happened(cx, Event::Command { op, cause, first, done: true, failed });
        }
    }
}

/// Tells an aim of the commands that pass.
pub(crate) struct AimedDevice {
    inner: Arc<dyn Device>,
    aim: Arc<Aim>,
    /// The medium, where faults may be aimed.
    medium: Option<Arc<Ssd>>,
}

impl AimedDevice {
    pub(crate) fn new(
        inner: Arc<dyn Device>,
        aim: Arc<Aim>,
        medium: Option<Arc<Ssd>>,
    ) -> AimedDevice {
        AimedDevice { inner, aim, medium }
    }
}

impl Device for AimedDevice {
    flashlane_ocssd::as_below!(inner: geometry format traits expect chunk_report);

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        let event = self.aim.sent(cx, &*self.inner, self.medium.as_deref(), &request);
        let ticket = self.inner.submit_at(cx, request, arrives);
        self.aim.numbered(ticket.id, event);
        ticket
    }
    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let id = ticket.id;
        let polled = self.inner.finish(cx, ticket);
        if let Poll::Ready(done) = &polled {
            self.aim.done(cx, id, done.failed != 0);
        }
        polled
    }
}
