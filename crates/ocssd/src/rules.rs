//! The rules of the medium, and a refusal that explains itself.
//!
//! Owns: [`Rule`], [`Violation`], the bounded list of violations. Promises: every refused address
//! is counted once, with what was found there and what happened to it last. Outcomes that the
//! caller could not foresee (injected faults, a chunk that a failure closed, reads of unwritten
//! sectors) are no violations: a correct layer ends every test at zero.
//! Never: decides an outcome of a program or an erase.

use crate::device::{ChunkState, Op, Status};
use flashlane_base::{Location, Ns, Ppa};
use flashlane_media::cells::LastOp;
use std::fmt;

/// What was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A command names 1 to 64 addresses and brings a payload of that many.
    Vector,
    /// An address names a sector of the device.
    Address,
    /// A sector is read as it was written: whole, or as the store's unit of user data.
    Content,
    /// A write is made of whole, aligned write units.
    WriteUnit,
    /// A write starts at the write pointer.
    WriteOrder,
    /// A chunk is erased before it is written again.
    EraseFirst,
    /// A write ends inside the chunk.
    WriteEnd,
    /// A bad chunk is not written.
    Offline,
    /// Not more chunks are open than the device allows.
    OpenLimit,
    /// A free chunk is not reset.
    ResetFree,
    /// An open chunk is not reset.
    ResetOpen,
    /// A bad chunk is not reset.
    ResetOffline,
    /// A copy names pairs of addresses, its sources hold data.
    Copy,
    /// A command does not clash with one under way: where the host asks for that
    /// ([`crate::spec::SsdOptions::hazards`]).
    Hazard,
}

impl Rule {
    /// The rule in a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Rule::Vector => "a command names 1 to 64 addresses and brings a payload for each",
            Rule::Address => "an address names a sector of the device",
            Rule::Content => "a sector is read in the unit in which it was written",
            Rule::WriteUnit => "a write is made of whole, aligned write units",
            Rule::WriteOrder => "a write starts at the write pointer",
            Rule::EraseFirst => "a full chunk is erased before it is written again",
            Rule::WriteEnd => "a write ends inside the chunk",
            Rule::Offline => "a bad chunk is not written",
            Rule::OpenLimit => "not more chunks are open than the device allows",
            Rule::ResetFree => "a free chunk is not reset on this device",
            Rule::ResetOpen => "an open chunk is not reset on this device",
            Rule::ResetOffline => "a bad chunk is not reset",
            Rule::Copy => "a copy names (source, destination) pairs, and its sources hold data",
            Rule::Hazard => "a command waits for those under way that it must not overtake",
        }
    }

    /// The status that an address gets for it.
    pub fn status(self) -> Status {
        match self {
            Rule::Vector | Rule::Content | Rule::WriteUnit | Rule::Copy | Rule::Hazard => {
                Status::InvalidField
            }
            Rule::Address => Status::InvalidAddress,
            Rule::WriteOrder => Status::OutOfOrder,
            Rule::EraseFirst | Rule::WriteEnd | Rule::Offline => Status::WriteFault,
            Rule::OpenLimit => Status::TooManyOpen,
            Rule::ResetFree | Rule::ResetOpen => Status::InvalidReset,
            Rule::ResetOffline => Status::OfflineChunk,
        }
    }
}

/// What was found where a rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundChunk {
    /// State of the chunk.
    pub state: ChunkState,
    /// Its write pointer.
    pub write_pointer: u32,
    /// Its length.
    pub length: u32,
    /// Its erases.
    pub erases: u32,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What the command was.
    pub op: Op,
    /// The address as it came.
    pub ppa: Ppa,
    /// What it names, where it names something.
    pub at: Option<Location>,
    /// What was found there.
    pub found: Option<FoundChunk>,
    /// What was done to the chunk last, and when.
    pub last_op: (LastOp, Ns),
    /// When the command came.
    pub submitted: Ns,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Reset => "reset",
            Op::Copy => "copy",
            Op::Flush => "flush",
        };
        write!(f, "{op} at {} of ", self.submitted)?;
        match self.at {
            Some(at) => write!(f, "{at}")?,
            None => write!(f, "address {}", self.ppa)?,
        }
        write!(f, ": {}", self.rule.text())?;
        if let Some(c) = self.found {
            let state = match c.state {
                ChunkState::Free => "free",
                ChunkState::Closed => "closed",
                ChunkState::Open => "open",
                ChunkState::Offline => "offline",
            };
            write!(
                f,
                "; the chunk is {state}, write pointer {} of {}, erased {} times, ",
                c.write_pointer, c.length, c.erases
            )?;
            let (last, at) = self.last_op;
            match last {
                LastOp::Nothing => write!(f, "never touched")?,
                LastOp::Program => write!(f, "last programmed at {at}")?,
                LastOp::Erase => write!(f, "last erased at {at}")?,
                LastOp::FailedProgram => write!(f, "last program failed at {at}")?,
                LastOp::FailedErase => write!(f, "last erase failed at {at}")?,
                LastOp::PowerCut => write!(f, "last hit by a power cut at {at}")?,
            }
        }
        Ok(())
    }
}

/// Violations kept for people; all are counted.
const KEPT: usize = 64;

/// All violations of a run.
#[derive(Debug, Default)]
pub struct Violations {
    list: Vec<Violation>,
    count: u64,
}

impl Violations {
    /// Notes one.
    pub fn note(&mut self, v: Violation) {
        self.count += 1;
        if self.list.len() < KEPT {
            self.list.push(v);
        }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first of them.
    pub fn list(&self) -> &[Violation] {
        &self.list
    }
}
