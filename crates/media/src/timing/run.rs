//! What happens next: phase changes, one after the other.
//!
//! Owns: the life of an operation from its start to its end. Promises: the earliest change first,
//! ties in the order of submission; the bus to whoever asks first. Never: chooses (that is `queue`).

use super::die::{Die, Waiting};
use super::{ArrayOp, DieQueue, Kind, NONE, Phase, Running, Timing};
use flashlane_base::{Ns, mutant};

impl Timing {
    /// Time in the array: none for a read whose planes all have the row in their registers. Notes
    /// what the registers hold afterwards.
    #[inline]
    pub(super) fn sense_needed(&mut self, op: &ArrayOp) -> Ns {
        let die = &mut self.dies[op.die as usize];
        if op.kind != Kind::Read {
            die.void = true;
            return op.array;
        }
        let from = (op.die * self.p.planes) as usize;
        let registers = &mut self.registers[from..from + self.p.planes as usize];
        if std::mem::take(&mut die.void) {
            registers.fill(0);
        }
        let mut hit = true;
        for (plane, held) in registers.iter_mut().enumerate() {
            if op.planes >> plane & 1 == 1 && *held != op.row + 1 {
                hit = false;
                *held = op.row + 1;
            }
        }
        if hit { Ns::ZERO } else { op.array }
    }

    /// Plays the earliest phase change.
    pub(super) fn step(&mut self) {
        let die = self.first;
        let (at, _) = self.due[die as usize];
        if !self.gate.is_empty() && self.gate_due() <= at {
            let at = self.gate_due();
            self.open_gate(at);
            return self.refresh_next();
        }
        let d = &self.dies[die as usize];
        if d.sensing != NONE {
            self.end_sense(die);
        } else if d.active != NONE {
            self.step_active(die);
        } else if let Some((at, id)) = self.pick(d) {
            self.start_waiting(die, at, id);
        }
        self.refresh(die);
    }

    /// Takes a waiting operation out of its queue and starts it.
    pub(super) fn start_waiting(&mut self, die: u32, at: Ns, id: u32) {
        let w = &self.ops[id as usize];
        let (kind, part, seq, next) = (w.op.kind, w.op.part, w.seq, w.next);
        let apart = (self.p.queue != DieQueue::Fifo && kind == Kind::Read) as usize;
        let queues = &mut self.dies[die as usize].queues;
        debug_assert_eq!(queues[apart].head, id, "only the head of a queue starts");
        queues[apart].head = next;
        let other = queues[0].head;
        if apart == 1 && other != NONE && self.ops[other as usize].seq < seq {
            self.ops[other as usize].passed += 1;
        }
        if self.p.queue != DieQueue::Fifo {
            let op = self.ops[id as usize].op;
            self.ops[id as usize].op.array = self.sense_needed(&op);
        }
        self.parts[part as usize].waiting -= 1;
        self.start(id, at);
    }

    /// Starts a kept operation at `at`. Its slot is free again once its end is final.
    #[inline]
    pub(super) fn start(&mut self, id: u32, at: Ns) {
        let w = &mut self.ops[id as usize];
        let busy = &self.dies[w.op.die as usize];
        w.die = waited(&w.op, at, w.die, busy);
        match w.op.kind {
            Kind::Read if w.op.array == Ns::ZERO && w.op.retry == Ns::ZERO => {
                self.grant_read(id, at);
            }
            Kind::Read => self.start_sense(id, at),
            Kind::Program => self.start_program(id, at),
            Kind::Erase => self.start_erase(id, at),
        }
    }

    /// The array of a read's die is busy until the sense, retries included, is over.
    #[inline]
    fn start_sense(&mut self, id: u32, at: Ns) {
        let ArrayOp { die, part, transfer, array, retry, .. } = self.ops[id as usize].op;
        let end = at + array + retry;
        self.show_op(Phase::Sense, id, at, end);
        let die = &mut self.dies[die as usize];
        die.sensing = id;
        die.sense_end = end;
        // With a cache register the last transfer may still hold the die.
        let held = die.free[Kind::Erase as usize];
        die.busy[0] += end.saturating_sub(at.max(held));
        die.holder = Kind::Read;
        die.free = [end, end, end.max(held)];
        let sent = self.bus_behind(end) + transfer;
        let part = &mut self.parts[part as usize];
        part.bound = part.bound.max(end + transfer).max(sent);
    }

    fn start_program(&mut self, id: u32, at: Ns) {
        let w = &mut self.ops[id as usize];
        let granted = at.max(self.bus_free);
        let sent = granted + w.op.transfer;
        self.bus_free = sent;
        self.bus_busy += w.op.transfer;
        let from = sent.max(self.dies[w.op.die as usize].array_free);
        let end = from + w.op.array;
        w.channel = granted - at;
        w.die[Kind::Program as usize] += from - sent;
        let reload = if self.p.cache_program { from } else { end };
        let op = w.op;
        self.show_op(Phase::WriteTransfer, id, granted, sent);
        self.show_op(Phase::Program, id, from, end);
        self.hold(&op, at, from, end, reload);
        self.settle_end(id, end);
    }

    fn start_erase(&mut self, id: u32, at: Ns) {
        let op = self.ops[id as usize].op;
        if !mutant!("device.erase-never-begins") {
            self.destroyed.push(op.token);
        }
        let end = at + op.array;
        self.show_op(Phase::Erase, id, at, end);
        self.hold(&op, at, at, end, end);
        self.settle_end(id, end);
    }

    /// The die is taken from `at` to `end` by a program or an erase.
    #[inline]
    pub(super) fn hold(&mut self, op: &ArrayOp, at: Ns, from: Ns, end: Ns, reload: Ns) {
        let die = &mut self.dies[op.die as usize];
        let k = op.kind as usize;
        // With cache program `at` lies in the hold before this one: count each moment once.
        die.busy[k] += end - at.max(die.free[Kind::Erase as usize]);
        die.holder = op.kind;
        die.free = [end; 3];
        die.free[Kind::Program as usize] = reload;
        die.array_free = end;
        die.note(Running {
            kind: op.kind,
            chunk: op.chunk,
            sector: op.sector,
            count: op.count,
            from,
            end,
        });
    }

    /// The end of a program or erase is final, except under `suspend`.
    #[inline]
    pub(super) fn settle_end(&mut self, id: u32, end: Ns) {
        if self.p.queue != DieQueue::Suspend {
            return self.finalize(id, end);
        }
        let w = &mut self.ops[id as usize];
        w.passed = 0; // reads that interrupt it are counted apart from those it waited for
        let op = &w.op;
        let part = &mut self.parts[op.part as usize];
        part.bound = part.bound.max(end);
        let die = &mut self.dies[op.die as usize];
        die.active = id;
        die.active_from = end - op.array;
        die.active_end = end;
    }

    /// Puts an operation into a slot until its end is final. `seen`: the die's busy times by kind.
    #[inline]
    pub(super) fn keep(&mut self, op: &ArrayOp, seq: u64, seen: [Ns; 3]) -> u32 {
        let w = Waiting { op: *op, seq, next: NONE, passed: 0, die: seen, channel: Ns::ZERO };
        match self.free_ops.pop() {
            Some(id) => {
                self.ops[id as usize] = w;
                id
            }
            None => {
                self.ops.push(w);
                (self.ops.len() - 1) as u32
            }
        }
    }

    pub(super) fn end_sense(&mut self, die: u32) {
        let d = &mut self.dies[die as usize];
        let (id, at) = (d.sensing, d.sense_end);
        d.sensing = NONE;
        self.grant_read(id, at);
    }

    /// The read's data goes over the bus, asked for at `at`.
    #[inline]
    pub(super) fn grant_read(&mut self, id: u32, at: Ns) {
        let w = &mut self.ops[id as usize];
        let granted = at.max(self.bus_free);
        let end = granted + w.op.transfer;
        self.bus_free = end;
        self.bus_busy += w.op.transfer;
        w.channel = granted - at;
        let die = &mut self.dies[w.op.die as usize];
        let held = die.free[Kind::Erase as usize];
        die.busy[0] += end.saturating_sub(at.max(held));
        die.holder = Kind::Read;
        die.free = [end; 3];
        if self.p.cache_read {
            // The next sense may begin once the cache register has taken this row, which is when
            // it has sent the row before.
            die.free[0] = at.max(held);
        }
        self.show_op(Phase::ReadTransfer, id, granted, end);
        self.finalize(id, end);
    }

    /// `suspend`: the active operation ends, is interrupted, or goes on.
    pub(super) fn step_active(&mut self, die: u32) {
        let d = &self.dies[die as usize];
        let own = match d.halted {
            Some(_) => d.free[Kind::Erase as usize],
            None => d.active_end,
        };
        let interrupter = self.interrupter(d).filter(|(at, _)| *at <= own);
        let active = d.active as usize;
        match (interrupter, d.halted) {
            (Some((at, id)), halted) => {
                self.ops[active].passed += 1;
                let d = &mut self.dies[die as usize];
                if halted.is_none() {
                    let left = d.active_end - at;
                    d.halted = Some(left);
                    let k = self.ops[active].op.kind as usize;
                    d.busy[k] -= left;
                    d.free = [at; 3];
                    self.halt_span(die, at);
                }
                self.start_waiting(die, at, id);
            }
            (None, Some(left)) => self.resume(die, own, left),
            (None, None) => self.end_active(die),
        }
    }

    pub(super) fn resume(&mut self, die: u32, at: Ns, left: Ns) {
        let d = &mut self.dies[die as usize];
        let rest = left + self.p.suspend_cost;
        let op = self.ops[d.active as usize].op;
        d.halted = None;
        d.active_from = at;
        d.active_end = at + rest;
        d.busy[op.kind as usize] += rest;
        d.holder = op.kind;
        d.free = [d.active_end; 3];
        d.array_free = d.active_end;
        if let Some(last) = &mut d.last[d.turn] {
            last.end = d.active_end;
        }
        let active = d.active;
        let part = &mut self.parts[op.part as usize];
        part.bound = part.bound.max(at + rest);
        let phase = if op.kind == Kind::Erase { Phase::Erase } else { Phase::Program };
        self.show_op(phase, active, at, at + rest);
    }

    /// What a die did is interrupted.
    #[inline]
    fn halt_span(&mut self, die: u32, at: Ns) {
        if let Some(spans) = &mut self.spans {
            spans.halt(die, at);
        }
    }

    pub(super) fn end_active(&mut self, die: u32) {
        let d = &mut self.dies[die as usize];
        let (id, end) = (d.active, d.active_end);
        d.active = NONE;
        self.finalize(id, end);
    }

    /// The end of an operation is known: its part learns of it, its slot is free.
    #[inline]
    pub(super) fn finalize(&mut self, id: u32, end: Ns) {
        let w = &self.ops[id as usize];
        let p = &mut self.parts[w.op.part as usize];
        p.left -= 1;
        if end >= p.end {
            p.end = end;
            p.breakdown = w.breakdown(self.p.command);
            p.ended = true;
        }
        self.free_ops.push(id);
        if self.p.max_in_flight != 0 {
            self.unended -= 1;
            self.admitted.push(end);
        }
    }
}

/// How long an operation waited, by what held the die, between being ready and `at`.
#[inline]
fn waited(op: &ArrayOp, at: Ns, seen: [Ns; 3], die: &Die) -> [Ns; 3] {
    let mut rest = at.saturating_sub(op.ready);
    if rest == Ns::ZERO {
        return [Ns::ZERO; 3];
    }
    let busy = die.busy_at(at);
    let erase = busy[2].saturating_sub(seen[2]).min(rest);
    rest -= erase;
    let program = busy[1].saturating_sub(seen[1]).min(rest);
    [rest - program, program, erase]
}
