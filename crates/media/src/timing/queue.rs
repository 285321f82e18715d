//! Who is next: the queues of the dies, the gate of the channel, and lower bounds for callers.
//!
//! Owns: the three policies. Promises: a waiting program or erase is passed by at most `read_burst`
//! later reads; reads keep their order; a read waits for earlier operations on its chunk; a bound is
//! never above the end. Never: starts anything.

use super::{ArrayOp, Die, DieQueue, Kind, NEVER, NONE, Timing};
use flashlane_base::{Ns, mutant};

impl Timing {
    pub(super) fn admit_or_hold(&mut self, op: &ArrayOp, now: Ns) {
        self.admitted.retain(|end| *end > now);
        let held = !self.gate.is_empty();
        if held || self.unended + self.admitted.len() as u32 >= self.p.max_in_flight {
            let part = &mut self.parts[op.part as usize];
            part.die = NONE;
            self.gate.push_back((*op, self.seq));
            self.refresh_next();
        } else {
            self.unended += 1;
            self.enqueue(op, now, self.seq);
        }
    }

    /// When the gate opens for its first operation.
    pub(super) fn gate_due(&self) -> Ns {
        if self.gate.is_empty() || self.unended >= self.p.max_in_flight {
            return Ns::MAX; // an operation must get its end first
        }
        self.admitted.iter().copied().min().unwrap_or(Ns::MAX)
    }

    pub(super) fn open_gate(&mut self, at: Ns) {
        self.admitted.retain(|end| *end > at);
        if let Some((mut op, seq)) = self.gate.pop_front() {
            op.ready = op.ready.max(at);
            self.unended += 1;
            self.enqueue(&op, at, seq);
        }
    }

    /// Puts an operation behind what waits for its die.
    pub(super) fn enqueue(&mut self, op: &ArrayOp, now: Ns, seq: u64) {
        let fifo = self.p.queue == DieQueue::Fifo;
        // Under `fifo` the order of service is known, and with it what the registers will hold.
        let array = match fifo {
            true => self.sense_needed(op),
            false => op.array,
        };
        self.bound_of(op, array);
        let seen = self.dies[op.die as usize].busy_at(now.max(op.ready));
        let id = self.keep(&ArrayOp { array, ..*op }, seq, seen);
        let die = &mut self.dies[op.die as usize];
        let queue = &mut die.queues[(!fifo && op.kind == Kind::Read) as usize];
        let head = queue.head;
        match head {
            NONE => queue.head = id,
            _ => self.ops[queue.tail as usize].next = id,
        }
        queue.tail = id;
        // What comes next is known already: the end of the sense, or the start of the first.
        if die.sensing == NONE && !(fifo && head != NONE) {
            self.refresh(op.die);
        }
    }

    /// Lower bound of an operation's end, from what is known now, into its part.
    pub(super) fn bound_of(&mut self, op: &ArrayOp, array: Ns) {
        let die = &mut self.dies[op.die as usize];
        let k = op.kind as usize;
        let part = &mut self.parts[op.part as usize];
        part.joins(op.die, op.kind);
        if self.p.queue != DieQueue::Fifo && op.kind == Kind::Read {
            part.tail = op.transfer;
            part.bound = part.bound.max(op.ready + op.transfer);
            return;
        }
        part.tail = op.transfer + array;
        let start = op.ready.max(die.free[k]).max(die.bound[k]);
        let end = match op.kind {
            Kind::Program => {
                let sent = start.max(self.bus_free) + op.transfer;
                let end = sent.max(die.array_free) + array;
                die.bound = [end; 3];
                if self.p.cache_program {
                    die.bound[k] = end - array;
                }
                end
            }
            Kind::Erase => {
                die.bound = [start + array; 3];
                start + array
            }
            Kind::Read => {
                let sensed = start + array + op.retry;
                let end = sensed.max(self.bus_free) + op.transfer;
                die.bound = [end; 3];
                if self.p.cache_read {
                    die.bound[k] = sensed;
                }
                end
            }
        };
        part.bound = part.bound.max(end);
    }

    /// When the bus is free at the earliest for a read that asks for it at `at`: the reads that
    /// sense now and end before have asked by then, and are sent first.
    #[inline]
    pub(super) fn bus_behind(&self, at: Ns) -> Ns {
        let mut first = Ns::MAX;
        let mut before = Ns::ZERO;
        for (due, d) in self.due.iter().zip(&self.dies) {
            // A die that senses has something due when it ends; others are not looked at.
            if due.0 < at && d.sensing != NONE && d.sense_end < at {
                first = first.min(d.sense_end);
                before += self.ops[d.sensing as usize].op.transfer;
            }
        }
        match first {
            Ns::MAX => self.bus_free.max(at),
            first => (self.bus_free.max(first) + before).max(at),
        }
    }

    pub(super) fn due_of(&self, die: u32) -> (Ns, u64) {
        let d = &self.dies[die as usize];
        if d.sensing != NONE {
            return (d.sense_end, self.ops[d.sensing as usize].seq);
        }
        if d.active != NONE {
            return self.due_of_active(d);
        }
        match self.pick(d) {
            Some((at, id)) => (at, self.ops[id as usize].seq),
            None => NEVER,
        }
    }

    /// `suspend`: the end, an interruption, or the resumption of the active program or erase.
    pub(super) fn due_of_active(&self, d: &Die) -> (Ns, u64) {
        let active = &self.ops[d.active as usize];
        let own = match d.halted {
            Some(_) => d.free[Kind::Erase as usize],
            None => d.active_end,
        };
        match self.interrupter(d) {
            Some((at, id)) if at <= own => (at, self.ops[id as usize].seq),
            _ => (own, active.seq),
        }
    }

    /// The read that may interrupt the active operation (or follow one that did), and when.
    pub(super) fn interrupter(&self, d: &Die) -> Option<(Ns, u32)> {
        let id = d.queues[1].head;
        if id == NONE {
            return None;
        }
        let (active, read) = (&self.ops[d.active as usize], &self.ops[id as usize]);
        let allowed = read.op.suspend
            && active.passed < self.p.read_burst
            && active.op.chunk != read.op.chunk
            && !self.must_wait(d, id);
        if !allowed {
            return None;
        }
        let from = match d.halted {
            Some(_) => d.free[Kind::Read as usize],
            None => d.active_from,
        };
        let at = read.op.ready.max(from);
        (d.halted.is_some() || at < d.active_end).then_some((at, id))
    }

    /// True while an earlier operation on the read's chunk waits.
    pub(super) fn must_wait(&self, d: &Die, read: u32) -> bool {
        let read = &self.ops[read as usize];
        let mut id = d.queues[0].head;
        while id != NONE {
            let w = &self.ops[id as usize];
            let same = w.op.chunk == read.op.chunk && !mutant!("device.read-overtakes-its-chunk");
            if same && w.seq < read.seq {
                return true;
            }
            id = w.next;
        }
        false
    }

    /// The operation that a free die takes next, and when it starts.
    #[inline]
    pub(super) fn pick(&self, d: &Die) -> Option<(Ns, u32)> {
        let start = |id: u32| {
            let op = &self.ops[id as usize].op;
            (op.ready.max(d.free[op.kind as usize]), id)
        };
        let (other, read) = (d.queues[0].head, d.queues[1].head);
        if read == NONE || (other != NONE && self.must_wait(d, read)) {
            return (other != NONE).then(|| start(other));
        }
        if other == NONE {
            return Some(start(read));
        }
        let (o, r) = (&self.ops[other as usize], &self.ops[read as usize]);
        let starved = o.passed >= self.p.read_burst
            && o.seq < r.seq
            && !mutant!("device.reads-pass-for-ever");
        let (at_other, at_read) = (start(other), start(read));
        // A read that becomes ready in the moment in which the other can start comes too late.
        let late = r.op.ready >= at_other.0 && o.seq < r.seq;
        if starved || at_other.0 < at_read.0 || (late && at_other.0 == at_read.0) {
            Some(at_other)
        } else {
            Some(at_read)
        }
    }
}
