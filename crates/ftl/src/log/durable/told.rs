//! Records in the log of what flushed units hold.
//!
//! Owns: when the log tells what was programmed into lines whose closing metadata does not count
//! yet. Promises: a sector is told on two dies before a flush that covers it ends, before the line
//! that held an older copy is freed, and before a checkpoint counts that names it (FORMAT.md rule
//! 25). So a unit that is lost in such a line, and of which nothing tells, held nothing that
//! anybody relies on. Never: waits.

use crate::log::HostFtl;
use crate::log::pool::{PoolState, Tell};
use flashlane_base::{VECTOR_MAX, mutant};

impl HostFtl {
    /// Appends records of all units that have been programmed and that the log does not tell yet.
    /// They are durable when the record appended next is.
    pub(in crate::log) fn tell(&self) {
        if !self.tells {
            return;
        }
        for pool in self.pools.iter() {
            let mut p = pool.lock();
            for line in p.unsaid() {
                self.tell_line(&mut p, line, Tell::New);
            }
        }
    }

    /// Appends records of the units of one line, whose pool the caller has locked. Returns the
    /// bytes of these records.
    pub(in crate::log) fn tell_line(&self, p: &mut PoolState, line: u32, what: Tell) -> usize {
        let is_uncarried = what == Tell::Again && mutant!("log.told-uncarried");
        if !self.tells || p.line(line).gone || is_uncarried {
            return 0;
        }
        let unit = self.shape.unit;
        let records = p.tell(line, what, VECTOR_MAX as u32 / unit * unit);
        let bytes = records.iter().map(|record| record.encoded_len()).sum();
        records.into_iter().for_each(|record| _ = self.journal.append(record));
        bytes
    }
}
