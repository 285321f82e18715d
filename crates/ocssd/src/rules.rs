//! The rules of the medium, and a refusal that explains itself.
//!
//! Owns: [`Rule`], [`Violation`], the bounded list of violations. Promises: every refused address
//! is counted once, with what was found there and what happened to it last. Outcomes that the
//! caller could not foresee (injected faults, a chunk that a failure closed, reads of unwritten
//! sectors) are no violations: a correct layer ends every test at zero.
//! Never: decides an outcome of a program or an erase.

use crate::device::{ChunkState, Op, Status};
use flashlane_base::{Location, Ns, Ppa, listed};
use flashlane_media::cells::LastOp;
use std::fmt;

listed! {
    /// What was broken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Rule: (&'static str, Status) {
        /// A command names 1 to 64 addresses and brings a payload of that many.
        Vector: "a command names 1 to 64 addresses and brings a payload for each", Status::InvalidField;
        /// An address names a sector of the device.
        Address: "an address names a sector of the device", Status::InvalidAddress;
        /// A sector is read as it was written: whole, or as the store's unit of user data.
        Content: "a sector is read in the unit in which it was written", Status::InvalidField;
        /// A write is made of whole, aligned write units.
        WriteUnit: "a write is made of whole, aligned write units", Status::InvalidField;
        /// A write starts at the write pointer.
        WriteOrder: "a write starts at the write pointer", Status::OutOfOrder;
        /// A chunk is erased before it is written again.
        EraseFirst: "a full chunk is erased before it is written again", Status::WriteFault;
        /// A write ends inside the chunk.
        WriteEnd: "a write ends inside the chunk", Status::WriteFault;
        /// A bad chunk is not written.
        Offline: "a bad chunk is not written", Status::WriteFault;
        /// Not more chunks are open than the device allows.
        OpenLimit: "not more chunks are open than the device allows", Status::TooManyOpen;
        /// A free chunk is not reset.
        ResetFree: "a free chunk is not reset on this device", Status::InvalidReset;
        /// An open chunk is not reset.
        ResetOpen: "an open chunk is not reset on this device", Status::InvalidReset;
        /// A bad chunk is not reset.
        ResetOffline: "a bad chunk is not reset", Status::OfflineChunk;
        /// A copy names pairs of addresses, its sources hold data.
        Copy: "a copy names (source, destination) pairs, and its sources hold data", Status::InvalidField;
        /// A command does not clash with one under way: where the host asks for that
        /// ([`crate::spec::SsdOptions::hazards`]).
        Hazard: "a command waits for those under way that it must not overtake", Status::InvalidField;
    }
}

impl Rule {
    /// The rule in a sentence.
    pub fn text(self) -> &'static str {
        self.row().0
    }

    /// The status that an address gets for it.
    pub fn status(self) -> Status {
        self.row().1
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
