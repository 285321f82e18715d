//! A die: what it is doing and what waits for it.
//!
//! Owns: the state of one die between phase changes. Promises: busy times count each moment once.
//! Never: acts.

use super::{ArrayOp, Kind, NONE, Running};
use crate::outcome::Breakdown;
use flashlane_base::Ns;

#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) op: ArrayOp,
    pub(super) seq: u64,
    pub(super) next: u32,
    /// Reads that went ahead of it.
    pub(super) passed: u32,
    /// Waiting: the die's busy times by kind when this arrived. Begun: how long it waited for each.
    pub(super) die: [Ns; 3],
    /// Begun: how long it waited for the bus.
    pub(super) channel: Ns,
}

impl Waiting {
    /// Where the time of an operation went that has begun.
    #[inline]
    pub(super) fn breakdown(&self, command: Ns) -> Breakdown {
        let [die_read, die_program, die_erase] = self.die;
        Breakdown {
            command,
            die_read,
            die_program,
            die_erase,
            channel: self.channel,
            transfer: self.op.transfer,
            array: self.op.array,
            retry: self.op.retry,
            ..Breakdown::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    pub(super) head: u32,
    pub(super) tail: u32,
}

#[derive(Clone)]
pub(super) struct Die {
    /// When an operation of each kind may start.
    pub(super) free: [Ns; 3],
    /// Lower bound of the same behind all that waits (`fifo` order).
    pub(super) bound: [Ns; 3],
    /// Array busy until then.
    pub(super) array_free: Ns,
    /// Busy time by kind, holds of the die included.
    pub(super) busy: [Ns; 3],
    /// Kind of the operation that holds the die last.
    pub(super) holder: Kind,
    /// A program or an erase has used the page registers.
    pub(super) void: bool,
    /// A read between start and end of its sense.
    pub(super) sensing: u32,
    pub(super) sense_end: Ns,
    /// Waiting: programs and erases (under `fifo` everything), reads.
    pub(super) queues: [Queue; 2],
    /// `suspend` only: program or erase in flight, or halted.
    pub(super) active: u32,
    pub(super) active_from: Ns,
    pub(super) active_end: Ns,
    /// What is left of a halted operation.
    pub(super) halted: Option<Ns>,
    /// The last two programs or erases, and which of them is the later one.
    pub(super) last: [Option<Running>; 2],
    pub(super) turn: usize,
}

impl Die {
    pub(super) fn new() -> Die {
        let empty = Queue { head: NONE, tail: NONE };
        Die {
            free: [Ns::ZERO; 3],
            bound: [Ns::ZERO; 3],
            array_free: Ns::ZERO,
            busy: [Ns::ZERO; 3],
            holder: Kind::Read,
            void: true,
            sensing: NONE,
            sense_end: Ns::ZERO,
            queues: [empty; 2],
            active: NONE,
            active_from: Ns::ZERO,
            active_end: Ns::ZERO,
            halted: None,
            last: [None; 2],
            turn: 0,
        }
    }

    /// Notes a program or an erase, for a power cut.
    #[inline(always)]
    pub(super) fn note(&mut self, running: Running) {
        self.turn ^= 1;
        self.last[self.turn] = Some(running);
    }

    #[inline]
    pub(super) fn idle(&self) -> bool {
        self.sensing == NONE
            && self.active == NONE
            && self.queues[0].head == NONE
            && self.queues[1].head == NONE
    }

    /// Busy times up to `at`; the present holder counts only its elapsed part.
    #[inline]
    pub(super) fn busy_at(&self, at: Ns) -> [Ns; 3] {
        let mut b = self.busy;
        let k = self.holder as usize;
        let ahead = self.free[Kind::Erase as usize].saturating_sub(at);
        b[k] = b[k].saturating_sub(ahead);
        b
    }
}
