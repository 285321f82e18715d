//! What a power cut finds on the dies.
//!
//! Owns: the end of everything that had not ended. Promises: operations come in the order from the
//! latest submission to the earliest, so that each can be undone on what is left. Never: decides
//! what a torn page holds.

use super::Kind;
use super::{Die, NEVER, NONE, Struck, Timing};
use flashlane_base::{Ns, mutant};

impl Timing {
    /// The power goes at `now`: what had not ended, latest submission first, and an idle channel
    /// afterwards. Counted busy times stay; every part's name becomes stale.
    pub fn power_cut(&mut self, now: Ns) -> Vec<Struck> {
        self.advance(now);
        let mut struck = Vec::new();
        for die in 0..self.p.dies {
            self.strike_die(die, now, &mut struck);
        }
        for (op, _) in &self.gate {
            struck.push(Struck::waiting(op));
        }
        if !mutant!("device.cut-in-order-of-submission") {
            struck.reverse();
        }
        let busy: Vec<_> = self.dies.iter().map(|d| d.busy_at(now)).collect();
        self.free_parts.clear();
        for (i, part) in self.parts.iter_mut().enumerate() {
            part.generation = part.generation.wrapping_add(1);
            part.left = 0;
            part.waiting = 0;
            self.free_parts.push(i as u32);
        }
        for (die, busy) in self.dies.iter_mut().zip(busy) {
            *die = Die { busy, ..Die::new() };
        }
        self.bus_free = Ns::ZERO;
        self.due.fill(NEVER);
        self.first = 0;
        self.next = Ns::MAX;
        self.registers.fill(0);
        self.ops.clear();
        self.free_ops.clear();
        self.gate.clear();
        self.admitted.clear();
        self.unended = 0;
        struck
    }

    /// What a die was doing and had still to do, in the order of submission.
    pub(super) fn strike_die(&self, die: u32, now: Ns, struck: &mut Vec<Struck>) {
        let d = &self.dies[die as usize];
        for i in [d.turn ^ 1, d.turn] {
            let Some(r) = &d.last[i] else { continue };
            // A halted operation is always the latest one, and not over whatever its end says.
            let halted = i == d.turn && d.halted.is_some();
            if r.end > now || halted {
                // An erase that has been sent to the die counts as begun: its old content is gone.
                let begun = r.from <= now || halted || r.kind == Kind::Erase;
                let begun = begun && !(halted && mutant!("device.halted-not-begun"));
                struck.push(Struck {
                    kind: r.kind,
                    die,
                    chunk: r.chunk,
                    sector: r.sector,
                    count: r.count,
                    begun,
                    token: NONE,
                });
            }
        }
        let mut id = d.queues[0].head;
        while id != NONE {
            let w = &self.ops[id as usize];
            if w.op.kind != Kind::Read {
                struck.push(Struck::waiting(&w.op));
            }
            id = w.next;
        }
    }
}
