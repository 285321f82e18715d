//! When: the bus of a channel, the dies on it, and what each of them is doing.
//!
//! Owns: the timelines of one channel, the queue of every die, the parts of commands that wait for
//! it. Promises: exact for the event order (time, submission) although nothing runs by itself:
//! [`Timing::advance`] plays all phase changes up to a time, in order. An announced finish only
//! moves later. Never: knows what is stored, or whether an operation was allowed.
//!
//! An operation takes the die, then the bus, then the array (a program), or the array, then the bus
//! (a read). The bus goes to whoever asked first. Since requests are played in time order, a
//! granted bus is a free-at time and not a queue; so a program costs one event (its start) and a
//! read two (start, end of the sense), and an operation that meets an idle die costs none.
//!
//! Later submissions cannot reach a die before `now + command`, because every operation carries the
//! command overhead. The channel may therefore be played up to that horizon, which is why most
//! programs know their end when they are submitted.
//!
//! Under `read_first` a waiting read goes before waiting programs and erases; under `suspend` it
//! also interrupts a running one, which goes on after it at an extra cost. Either way a program or
//! an erase is passed by at most `read_burst` reads that came after it: then it goes next, and runs
//! to its end. Reads keep their order among each other. An operation on a chunk waits for the
//! earlier operations on that chunk under every policy: state and content change at submission, and
//! a read must not be over before the program whose data it was given has begun to count.

mod cut;
mod die;
mod queue;
mod run;
mod spans;

use crate::outcome::{Breakdown, Cause};
use die::{Die, Waiting};
use flashlane_base::Ns;
use serde::{Deserialize, Serialize};
use spans::Spans;
pub use spans::{Phase, Span};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// In which order a die serves what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DieQueue {
    /// As it came.
    #[default]
    Fifo,
    /// Reads before programs and erases.
    ReadFirst,
    /// Reads also interrupt a running program or erase, when their command allows it.
    Suspend,
}

/// What an array operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Sense, then transfer.
    Read = 0,
    /// Transfer, then program.
    Program = 1,
    /// Erase.
    Erase = 2,
}

/// Fixed properties of the dies and the bus.
#[derive(Clone, Copy, Debug)]
pub struct TimingParams {
    /// Dies on the channel.
    pub dies: u32,
    /// Planes per die, at most 32.
    pub planes: u32,
    /// Overhead of every command before it reaches a die.
    pub command: Ns,
    /// Order of service.
    pub queue: DieQueue,
    /// Reads that may pass a waiting program or erase.
    pub read_burst: u32,
    /// What resuming a suspended program or erase adds to it.
    pub suspend_cost: Ns,
    /// The next sense overlaps the last transfer.
    pub cache_read: bool,
    /// The next program's transfer overlaps the running program; not under `suspend`.
    pub cache_program: bool,
    /// Operations admitted to the channel at once; 0 is no limit.
    pub max_in_flight: u32,
}

/// One operation on one page row (or chunk) of a die.
#[derive(Clone, Copy, Debug)]
pub struct ArrayOp {
    /// What.
    pub kind: Kind,
    /// May interrupt (reads only).
    pub suspend: bool,
    /// Die on this channel.
    pub die: u32,
    /// Part of a command that it belongs to.
    pub part: u32,
    /// Chunk, for order among operations on one chunk and for power cuts.
    pub chunk: u32,
    /// First sector in the chunk.
    pub sector: u32,
    /// Sectors.
    pub count: u32,
    /// Page row, counted over the die: what the page register would hold.
    pub row: u64,
    /// Planes taking part, one bit each.
    pub planes: u32,
    /// Names the old content that an erase destroys, for the caller.
    pub token: u32,
    /// Not before this.
    pub ready: Ns,
    /// Time on the bus.
    pub transfer: Ns,
    /// Time in the array, without retries.
    pub array: Ns,
    /// Read retries.
    pub retry: Ns,
}

/// A program, as far as [`Timing::program_now`] needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct ProgramNow {
    /// Die on this channel.
    pub die: u32,
    /// Part of a command that it belongs to.
    pub part: u32,
    /// Chunk of the die.
    pub chunk: u32,
    /// First sector.
    pub sector: u32,
    /// Sectors.
    pub count: u32,
    /// Not before this.
    pub ready: Ns,
    /// Time on the bus.
    pub transfer: Ns,
    /// Time in the array.
    pub array: Ns,
}

/// A command's share of this channel.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Operations that have not got their final end.
    pub left: u32,
    /// Latest end so far.
    pub end: Ns,
    /// Lower bound of the end while `left > 0`.
    pub bound: Ns,
    /// Where the time of the operation that ended last went; stale while `ended` is false.
    breakdown: Breakdown,
    /// An operation has ended.
    ended: bool,
    /// Counts reuses, so that a stale name is noticed.
    pub generation: u16,
    /// Operations in the queues of dies.
    waiting: u32,
    /// The die in whose queue they are, in the order of submission; none when there are several,
    /// or an operation is held back.
    die: u32,
    kind: Option<Kind>,
    /// Time from the start of the last of them to its end, at least.
    tail: Ns,
    /// For whom, while spans are kept.
    cause: Option<Cause>,
}

impl Part {
    /// An operation joins the queue of a die.
    #[inline]
    fn joins(&mut self, die: u32, kind: Kind) {
        let alone = self.waiting == 0 || (self.die == die && self.kind == Some(kind));
        self.die = if alone { die } else { NONE };
        self.kind = Some(kind);
        self.waiting += 1;
    }
}

/// An array operation that a power cut may hit.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// Program or erase.
    pub kind: Kind,
    /// Chunk of the die.
    pub chunk: u32,
    /// First sector of a program.
    pub sector: u32,
    /// Sectors of a program.
    pub count: u32,
    /// The array works from here ...
    pub from: Ns,
    /// ... to here.
    pub end: Ns,
}

/// An operation that a power cut hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Struck {
    /// Program or erase.
    pub kind: Kind,
    /// Die on the channel.
    pub die: u32,
    /// Chunk of the die.
    pub chunk: u32,
    /// First sector of a program.
    pub sector: u32,
    /// Sectors of a program.
    pub count: u32,
    /// The array was at work; otherwise nothing has happened.
    pub begun: bool,
    /// Names the old content of an erase that had not begun.
    pub token: u32,
}

impl Struck {
    fn waiting(op: &ArrayOp) -> Struck {
        Struck {
            kind: op.kind,
            die: op.die,
            chunk: op.chunk,
            sector: op.sector,
            count: op.count,
            begun: false,
            token: op.token,
        }
    }
}

const NONE: u32 = u32::MAX;

/// The timelines of one channel.
pub struct Timing {
    p: TimingParams,
    bus_free: Ns,
    bus_busy: Ns,
    dies: Vec<Die>,
    /// Next phase change per die, with the submission number that breaks ties.
    due: Vec<(Ns, u64)>,
    /// The die whose phase change comes first.
    first: u32,
    /// Minimum of `due` and of the admission gate.
    next: Ns,
    /// Page registers: row + 1 per die and plane, 0 for none; void while the die says so.
    registers: Vec<u64>,
    ops: Vec<Waiting>,
    free_ops: Vec<u32>,
    parts: Vec<Part>,
    free_parts: Vec<u32>,
    seq: u64,
    /// Operations held back by `max_in_flight`, and ends of those admitted.
    gate: std::collections::VecDeque<(ArrayOp, u64)>,
    admitted: Vec<Ns>,
    unended: u32,
    /// Tokens of erases that have begun: their old content is gone.
    destroyed: Vec<u32>,
    /// An operation that has begun has a final end, and none is held back.
    simple: bool,
    /// Who looks on.
    spans: Option<Box<Spans>>,
}

/// End of time for a die without work.
const NEVER: (Ns, u64) = (Ns::MAX, u64::MAX);

impl Timing {
    /// An idle channel.
    pub fn new(mut p: TimingParams) -> Timing {
        // A program that may be halted keeps the data register: nothing is loaded behind it.
        p.cache_program &= p.queue != DieQueue::Suspend;
        assert!(p.dies > 0 && (1..=32).contains(&p.planes), "die shape");
        Timing {
            bus_free: Ns::ZERO,
            bus_busy: Ns::ZERO,
            dies: vec![Die::new(); p.dies as usize],
            due: vec![NEVER; p.dies as usize],
            first: 0,
            next: Ns::MAX,
            registers: vec![0; (p.dies * p.planes) as usize],
            ops: Vec::new(),
            free_ops: Vec::new(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            seq: 0,
            gate: Default::default(),
            admitted: Vec::new(),
            unended: 0,
            destroyed: Vec::new(),
            simple: p.queue != DieQueue::Suspend && p.max_in_flight == 0,
            spans: None,
            p,
        }
    }

    /// Opens a command's share of this channel; it may not end before `at`.
    #[inline]
    pub fn open_part(&mut self, at: Ns) -> u32 {
        let id = match self.free_parts.pop() {
            Some(id) => id,
            None => {
                self.parts.push(Part::default());
                (self.parts.len() - 1) as u32
            }
        };
        let part = &mut self.parts[id as usize];
        part.end = at;
        part.bound = at;
        part.ended = false;
        debug_assert_eq!(part.left, 0);
        id
    }

    /// Where the time of a part went.
    #[inline]
    pub fn breakdown(&self, id: u32) -> Breakdown {
        let part = &self.parts[id as usize];
        match part.ended {
            true => part.breakdown,
            false => Breakdown { command: self.p.command, ..Breakdown::default() },
        }
    }

    /// A part, as far as it is known.
    #[inline]
    pub fn part(&self, id: u32) -> &Part {
        &self.parts[id as usize]
    }

    /// Parts ever opened at once; names below this are valid.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Ends a part: its name may be given out again.
    #[inline]
    pub fn close_part(&mut self, id: u32) {
        let part = &mut self.parts[id as usize];
        debug_assert!(part.left == 0, "a part closed with operations in flight");
        part.generation = part.generation.wrapping_add(1);
        self.free_parts.push(id);
    }

    /// Moves the end of a part that is done: what comes behind the channel takes until `at`.
    #[inline]
    pub fn delay_part(&mut self, id: u32, at: Ns) {
        let part = &mut self.parts[id as usize];
        debug_assert!(part.left == 0 && at >= part.end, "an end only moves later");
        part.end = at;
    }

    /// A part that is done waited until `at` for programs that are not its own.
    pub fn wait_for_programs(&mut self, id: u32, at: Ns) {
        let breakdown = self.breakdown(id);
        let part = &mut self.parts[id as usize];
        let waited = at.saturating_sub(part.end);
        if waited > Ns::ZERO {
            let die_program = breakdown.die_program + waited;
            self.take_end(id, at, Breakdown { die_program, ..breakdown });
        }
    }

    /// A part is not over before `at`, whatever its operations do.
    #[inline]
    pub fn not_before(&mut self, id: u32, at: Ns) {
        let part = &mut self.parts[id as usize];
        part.end = part.end.max(at);
        part.bound = part.bound.max(at);
    }

    /// A part that is done ends with another channel's, which ended later.
    pub fn take_end(&mut self, id: u32, at: Ns, breakdown: Breakdown) {
        self.delay_part(id, at);
        self.parts[id as usize].breakdown = breakdown;
        self.parts[id as usize].ended = true;
    }

    /// Keeps spans from here on, while there is room (a number of spans, shared with other
    /// channels); those kept before are forgotten.
    pub fn keep_spans(&mut self, room: Arc<AtomicUsize>) {
        self.spans = Some(Box::new(Spans::new(self.p.dies, room)));
    }

    /// The spans kept so far, in the order in which they began to be known, and the start of the
    /// earliest that found no room; nothing is kept from here on.
    pub fn take_spans(&mut self) -> (Vec<Span>, Option<Ns>) {
        self.spans.take().map(|spans| spans.into_parts()).unwrap_or_default()
    }

    /// Whether spans are kept, and a part's cause is worth saying.
    #[inline]
    pub fn keeps_spans(&self) -> bool {
        self.spans.is_some()
    }

    /// Says for whom a part is.
    pub fn set_cause(&mut self, id: u32, cause: Cause) {
        self.parts[id as usize].cause = Some(cause);
    }

    /// Keeps a span of an operation given as part, die, chunk, first sector and sectors.
    #[cold]
    fn show(&mut self, phase: Phase, op: (u32, u32, u32, u32, u32), from: Ns, to: Ns) {
        let (part, die, chunk, sector, count) = op;
        let cause = self.parts[part as usize].cause.unwrap_or(Cause::User);
        if let Some(spans) = &mut self.spans
            && from < to
        {
            spans.add(Span { phase, cause, die, chunk, sector, count, from, to });
        }
    }

    /// As `show`, for an operation as it is kept.
    #[inline]
    fn show_op(&mut self, phase: Phase, id: u32, from: Ns, to: Ns) {
        if self.spans.is_some() {
            let op = &self.ops[id as usize].op;
            let at = (op.part, op.die, op.chunk, op.sector, op.count);
            self.show(phase, at, from, to);
        }
    }

    /// Busy time of a die (read, program, erase) up to `now`.
    pub fn die_busy(&self, die: u32, now: Ns) -> [Ns; 3] {
        self.dies[die as usize].busy_at(now)
    }

    /// Busy time of the bus, transfers granted for the future included.
    pub fn bus_busy(&self) -> Ns {
        self.bus_busy
    }

    /// When it is worth asking for a part again: later than `now` unless the part is done.
    #[inline]
    pub fn ask_at(&self, id: u32, now: Ns) -> Ns {
        let part = &self.parts[id as usize];
        if part.left == 0 {
            return part.end;
        }
        let mut at = part.bound.max(part.end);
        if at <= now {
            // Nothing ends before something happens: on the one die where the part waits, or else
            // anywhere. An operation that has begun says its end itself when its sense is over.
            at = match self.due.get(part.die as usize) {
                Some((due, _)) if part.waiting > 0 && *due != Ns::MAX => *due + part.tail,
                _ => self.next,
            };
        }
        at.max(now + Ns::from_ns(1))
    }

    /// Erases that have begun since the last call: their tokens.
    #[inline]
    pub fn take_destroyed(&mut self) -> Option<u32> {
        self.destroyed.pop()
    }

    /// A program that meets an idle die and starts when it is ready, so that its end is known at
    /// once: what `submit` would do, without the general case's copies. False, and nothing done,
    /// when it is not so simple.
    #[inline]
    pub fn program_now(&mut self, op: &ProgramNow, now: Ns) -> bool {
        let k = Kind::Program as usize;
        let die = &mut self.dies[op.die as usize];
        let idle = self.due[op.die as usize].0 == Ns::MAX && die.free[k] <= op.ready;
        let alone = op.ready <= now + self.p.command && op.ready < self.next;
        if !(idle && alone && self.simple) {
            return false;
        }
        self.seq += 1;
        let granted = op.ready.max(self.bus_free);
        let sent = granted + op.transfer;
        let from = sent.max(die.array_free);
        let end = from + op.array;
        self.bus_free = sent;
        self.bus_busy += op.transfer;
        die.void = true;
        die.busy[k] += end - op.ready.max(die.free[Kind::Erase as usize]);
        die.holder = Kind::Program;
        die.free = [end; 3];
        if self.p.cache_program {
            die.free[k] = from;
        }
        die.array_free = end;
        die.note(Running {
            kind: Kind::Program,
            chunk: op.chunk,
            sector: op.sector,
            count: op.count,
            from,
            end,
        });
        if self.spans.is_some() {
            let at = (op.part, op.die, op.chunk, op.sector, op.count);
            self.show(Phase::WriteTransfer, at, granted, sent);
            self.show(Phase::Program, at, from, end);
        }
        let part = &mut self.parts[op.part as usize];
        if end >= part.end {
            part.end = end;
            part.ended = true;
            part.breakdown = Breakdown {
                command: self.p.command,
                die_program: from - sent,
                channel: granted - op.ready,
                transfer: op.transfer,
                array: op.array,
                ..Breakdown::default()
            };
        }
        true
    }

    /// Adds an operation. The channel must have been advanced to `now + command`.
    #[inline]
    pub fn submit(&mut self, op: &ArrayOp, now: Ns) {
        let horizon = now + self.p.command;
        self.parts[op.part as usize].left += 1;
        self.seq += 1;
        if self.p.max_in_flight != 0 {
            return self.admit_or_hold(op, now);
        }
        let die = &self.dies[op.die as usize];
        let at = op.ready.max(die.free[op.kind as usize]);
        if die.idle() && at <= horizon && self.next > at {
            // Nothing was waited for when the die is free at once: then `seen` is not looked at.
            let seen = match at > op.ready {
                true => die.busy_at(op.ready),
                false => [Ns::ZERO; 3],
            };
            let array = self.sense_needed(op);
            let id = self.keep(&ArrayOp { array, ..*op }, self.seq, seen);
            self.start(id, at);
            let die = &self.dies[op.die as usize];
            if die.sensing != NONE || die.active != NONE {
                self.refresh(op.die);
            }
        } else {
            self.enqueue(op, now, self.seq);
        }
    }

    /// Plays all phase changes up to `until`.
    #[inline]
    pub fn advance(&mut self, until: Ns) {
        while self.next <= until {
            self.step();
        }
    }

    /// Advances to where submissions at `now` and later cannot interfere.
    #[inline]
    pub fn settle(&mut self, now: Ns) {
        self.advance(now + self.p.command);
    }

    /// Notes the time of a die's next phase change.
    fn refresh(&mut self, die: u32) {
        let due = self.due_of(die);
        let first = self.first;
        self.due[die as usize] = due;
        if die != first && due < self.due[first as usize] && self.gate.is_empty() {
            self.first = die;
            self.next = due.0;
        } else if die == first || !self.gate.is_empty() {
            self.refresh_next();
        }
    }

    /// Finds what comes first.
    #[inline]
    fn refresh_next(&mut self) {
        let (mut first, mut next) = (0, NEVER);
        for (die, due) in self.due.iter().enumerate() {
            // A tuple's own order compares for equality first; ties are rare.
            if due.0 < next.0 || (due.0 == next.0 && due.1 < next.1) {
                (first, next) = (die, *due);
            }
        }
        self.first = first as u32;
        self.next = match self.gate.is_empty() {
            true => next.0,
            false => next.0.min(self.gate_due()),
        };
    }
}
