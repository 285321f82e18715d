//! Hazards: commands under way at the same time whose order no device promises.
//!
//! Owns: which commands are under way at which chunk. Promises: a command that clashes with one whose
//! completion the host does not have yet is a violation ([`Rule::Hazard`]), whichever of them the
//! dies would have served first. Never: changes an outcome or a time: with and without it a run is
//! the same.
//!
//! Content changes hands when a command is submitted, and this device's dies keep the order of a
//! chunk's operations. So a host that erases what it still reads, or reads what it still programs, gets
//! what it hoped for here, and garbage from a device that serves its queues in another order. These
//! clash: a reset with everything at its chunk, a read with a write of the same sectors. Writes of a chunk
//! do not: a PU takes them in order, which QBLK's budget of programs per PU rests on, and the write
//! pointer tells. What a buffer has acknowledged is not under way any more.
//!
//! Payload has no such check: [`crate::device::Device::submit`] takes a copy, so it is the caller's again
//! when the call returns.

use super::Ssd;
use super::decode::Run;
use crate::device::{Op, Request, Ticket};
use crate::rules::{Rule, Violation};
use flashlane_base::{Location, Ns, Ppa};
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;

/// Channel, die and chunk.
type Chunk = (u32, u32, u32);

/// What a command under way does in a chunk.
#[derive(Clone, Copy)]
struct Claim {
    ticket: u64,
    op: Op,
    /// First sector, and the one behind the last.
    from: u32,
    end: u32,
}

impl Claim {
    fn clashes(&self, other: &Claim) -> bool {
        let same = self.from < other.end && other.from < self.end;
        match (self.op, other.op) {
            (Op::Read, Op::Read) | (Op::Write, Op::Write) => false,
            (Op::Read, Op::Write) | (Op::Write, Op::Read) => same,
            _ => true,
        }
    }
}

/// Commands under way, by chunk and by ticket.
#[derive(Default)]
pub(super) struct UnderWay {
    chunks: BTreeMap<Chunk, Vec<Claim>>,
    tickets: BTreeMap<u64, Vec<Chunk>>,
}

/// A device's commands under way, where they are looked at.
pub(super) type Hazards = Option<Box<Mutex<UnderWay>>>;

impl UnderWay {
    fn end(&mut self, ticket: u64) {
        for chunk in self.tickets.remove(&ticket).unwrap_or_default() {
            if let Some(claims) = self.chunks.get_mut(&chunk) {
                claims.retain(|claim| claim.ticket != ticket);
                if claims.is_empty() {
                    self.chunks.remove(&chunk);
                }
            }
        }
    }
}

impl Ssd {
    /// Carries a command out while nobody else submits, and looks at what it clashes with.
    #[cold]
    pub(super) fn carry_out_alone(
        &self,
        under_way: &Mutex<UnderWay>,
        now: Ns,
        request: Request<'_>,
    ) -> Ticket {
        let mut under_way = under_way.lock();
        let (op, addrs) = (request.op, request.addrs);
        let claims = self.claims(op, addrs);
        for (chunk, claim, first) in &claims {
            let others = under_way.chunks.get(chunk);
            if others.is_some_and(|others| others.iter().any(|other| claim.clashes(other))) {
                self.note_hazard(op, addrs[*first], now);
            }
        }
        let ticket = self.begin(now, request);
        // A name that is given again belongs to a command that is over.
        under_way.end(ticket.id);
        for (chunk, claim, _) in claims {
            let claim = Claim { ticket: ticket.id, ..claim };
            under_way.chunks.entry(chunk).or_default().push(claim);
            under_way.tickets.entry(ticket.id).or_default().push(chunk);
        }
        ticket
    }

    /// What a command does where, with the first address of each.
    fn claims(&self, op: Op, addrs: &[Ppa]) -> Vec<(Chunk, Claim, usize)> {
        let mut claims = Vec::new();
        let mut i = 0;
        while i < addrs.len() {
            let one = op == Op::Copy || op == Op::Reset;
            let until = if one { i + 1 } else { addrs.len() };
            let Some(Run { channel, die, chunk, sector, n, .. }) =
                self.decoder.run(&addrs[..until], i)
            else {
                i += 1;
                continue;
            };
            let op = match op {
                Op::Copy if i % 2 == 0 => Op::Read,
                Op::Copy => Op::Write,
                op => op,
            };
            let claim = Claim { ticket: 0, op, from: sector, end: sector + n };
            claims.push(((channel, die, chunk), claim, i));
            i += n as usize;
        }
        claims
    }

    fn note_hazard(&self, op: Op, ppa: Ppa, now: Ns) {
        let at: Option<Location> = self.decoder.format().unpack(ppa);
        self.violations.lock().note(Violation {
            rule: Rule::Hazard,
            op,
            ppa,
            at,
            found: None,
            last_op: Default::default(),
            submitted: self.device_time(now),
        });
    }

    /// The host has the completion of a command.
    #[cold]
    pub(super) fn ended(&self, under_way: &Mutex<UnderWay>, ticket: &Ticket) {
        under_way.lock().end(ticket.id);
    }

    /// The power has gone: nothing is under way.
    pub(super) fn forget_hazards(&self) {
        if let Some(under_way) = &self.hazards {
            *under_way.lock() = UnderWay::default();
        }
    }
}
