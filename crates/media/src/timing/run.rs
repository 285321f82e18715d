//! What happens next: phase changes, one after the other.
//!
//! Owns: the life of an operation from its start to its end. Promises: the earliest change first,
//! ties in the order of submission; the bus to whoever asks first. Never: chooses (that is `queue`).

use super::die::Waiting;
use super::{ArrayOp, DieQueue, Kind, NONE, Running, Timing};
use crate::outcome::Breakdown;
use flashlane_base::Ns;

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
        let mut die = 0;
        for (i, due) in self.due.iter().enumerate() {
            if *due < self.due[die] {
                die = i;
            }
        }
        let (at, _) = self.due[die];
        if !self.gate.is_empty() && self.gate_due() <= at {
            let at = self.gate_due();
            self.open_gate(at);
            return self.refresh_next();
        }
        let d = &self.dies[die];
        if d.sensing != NONE {
            self.end_sense(die as u32);
        } else if d.active != NONE {
            self.step_active(die as u32);
        } else if let Some((at, id)) = self.pick(d) {
            self.start_waiting(die as u32, at, id);
        }
        self.refresh(die as u32);
    }

    /// Takes a waiting operation out of its queue and starts it.
    pub(super) fn start_waiting(&mut self, die: u32, at: Ns, id: u32) {
        let w = self.ops[id as usize];
        let apart = (self.p.queue != DieQueue::Fifo && w.op.kind == Kind::Read) as usize;
        let queue = &mut self.dies[die as usize].queues[apart];
        debug_assert_eq!(queue.head, id, "only the head of a queue starts");
        queue.head = w.next;
        if apart == 1 {
            let other = self.dies[die as usize].queues[0].head;
            if other != NONE && self.ops[other as usize].seq < w.seq {
                self.ops[other as usize].passed += 1;
            }
        }
        let array = match self.p.queue {
            DieQueue::Fifo => w.op.array,
            _ => self.sense_needed(&w.op),
        };
        self.free_ops.push(id);
        self.parts[w.op.part as usize].waiting -= 1;
        self.start(w.op, array, at, w.seq, w.b);
    }

    /// Starts an operation at `at`.
    #[inline]
    pub(super) fn start(&mut self, op: ArrayOp, array: Ns, at: Ns, seq: u64, seen: Breakdown) {
        let waited = self.waited(&op, at, seen);
        match op.kind {
            Kind::Read if array == Ns::ZERO && op.retry == Ns::ZERO => {
                self.grant_read(&op, at, Breakdown { array, ..waited });
            }
            Kind::Read => {
                let op = ArrayOp { array, ..op };
                let waited = Breakdown { array, ..waited };
                let id = self.keep(op, seq, waited);
                let die = &mut self.dies[op.die as usize];
                let end = at + array + op.retry;
                die.sensing = id;
                die.sense_end = end;
                // With a cache register the last transfer may still hold the die.
                let held = die.free[Kind::Erase as usize];
                die.busy[0] += end.saturating_sub(at.max(held));
                die.holder = Kind::Read;
                die.free = [end, end, end.max(held)];
                let part = &mut self.parts[op.part as usize];
                part.bound = part.bound.max(end + op.transfer);
                let sent = self.bus_behind(end) + op.transfer;
                let part = &mut self.parts[op.part as usize];
                part.bound = part.bound.max(sent);
            }
            Kind::Program => self.start_program(op, at, seq, waited),
            Kind::Erase => {
                self.destroyed.push(op.token);
                let end = at + array;
                self.hold(&op, at, at, end, end);
                self.settle_end(op, end, seq, Breakdown { array, ..waited });
            }
        }
    }

    /// What the operation waited for between being ready and `at`.
    #[inline]
    pub(super) fn waited(&self, op: &ArrayOp, at: Ns, seen: Breakdown) -> Breakdown {
        let mut b = Breakdown { command: self.p.command, ..Breakdown::default() };
        let mut rest = at.saturating_sub(op.ready);
        if rest != Ns::ZERO {
            let busy = self.dies[op.die as usize].busy_at(at);
            b.die_erase = busy[2].saturating_sub(seen.die_erase).min(rest);
            rest -= b.die_erase;
            b.die_program = busy[1].saturating_sub(seen.die_program).min(rest);
            rest -= b.die_program;
            b.die_read = rest;
        }
        b
    }

    pub(super) fn start_program(&mut self, op: ArrayOp, at: Ns, seq: u64, waited: Breakdown) {
        let granted = at.max(self.bus_free);
        let sent = granted + op.transfer;
        self.bus_free = sent;
        self.bus_busy += op.transfer;
        let from = sent.max(self.dies[op.die as usize].array_free);
        let end = from + op.array;
        let reload = if self.p.cache_program { from } else { end };
        self.hold(&op, at, from, end, reload);
        let b = Breakdown {
            channel: granted - at,
            transfer: op.transfer,
            die_program: waited.die_program + (from - sent),
            array: op.array,
            ..waited
        };
        self.settle_end(op, end, seq, b);
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
    pub(super) fn settle_end(&mut self, op: ArrayOp, end: Ns, seq: u64, b: Breakdown) {
        if self.p.queue != DieQueue::Suspend {
            return self.finalize(op.part, end, b);
        }
        let part = &mut self.parts[op.part as usize];
        part.bound = part.bound.max(end);
        let id = self.keep(op, seq, b);
        let die = &mut self.dies[op.die as usize];
        die.active = id;
        die.active_from = end - op.array;
        die.active_end = end;
    }

    /// Puts an operation that waits, senses or may be interrupted into a slot.
    pub(super) fn keep(&mut self, op: ArrayOp, seq: u64, b: Breakdown) -> u32 {
        let w = Waiting { op, seq, next: NONE, passed: 0, b };
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
        let w = self.ops[id as usize];
        self.free_ops.push(id);
        self.grant_read(&w.op, at, w.b);
    }

    /// The read's data goes over the bus, asked for at `at`.
    #[inline]
    pub(super) fn grant_read(&mut self, op: &ArrayOp, at: Ns, waited: Breakdown) {
        let granted = at.max(self.bus_free);
        let end = granted + op.transfer;
        self.bus_free = end;
        self.bus_busy += op.transfer;
        let die = &mut self.dies[op.die as usize];
        let held = die.free[Kind::Erase as usize];
        die.busy[0] += end.saturating_sub(at.max(held));
        die.holder = Kind::Read;
        die.free = [end; 3];
        if self.p.cache_read {
            // The next sense may begin once the cache register has taken this row, which is when
            // it has sent the row before.
            die.free[0] = at.max(held);
        }
        let b =
            Breakdown { channel: granted - at, transfer: op.transfer, retry: op.retry, ..waited };
        self.finalize(op.part, end, b);
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
        let part = &mut self.parts[op.part as usize];
        part.bound = part.bound.max(at + rest);
    }

    pub(super) fn end_active(&mut self, die: u32) {
        let d = &mut self.dies[die as usize];
        let (id, end) = (d.active, d.active_end);
        d.active = NONE;
        let w = self.ops[id as usize];
        self.free_ops.push(id);
        self.finalize(w.op.part, end, w.b);
    }

    #[inline]
    pub(super) fn finalize(&mut self, part: u32, end: Ns, b: Breakdown) {
        let p = &mut self.parts[part as usize];
        p.left -= 1;
        if end >= p.end {
            p.end = end;
            p.breakdown = b;
            p.ended = true;
        }
        if self.p.max_in_flight != 0 {
            self.unended -= 1;
            self.admitted.push(end);
        }
    }
}
