//! What of the room a stop may use for a snapshot.
//!
//! Owns: which chunks are open and how far, and whether so many units can be spared. Promises: what
//! is granted here the host would be granted, and GC keeps what it needs to take one more victim.
//! Never: hands out a unit.

use super::{NIL, Place};

/// A chunk of an open line that has units left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pftl) struct OpenChunk {
    pub(in crate::pftl) stream: usize,
    pub(in crate::pftl) line: u32,
    pub(in crate::pftl) position: u32,
    /// Units programmed.
    pub(in crate::pftl) row: u32,
}

impl Place {
    /// Chunks of open lines that have units left.
    pub(in crate::pftl) fn open_chunks(&self) -> impl Iterator<Item = OpenChunk> {
        let streams = self.streams.iter().enumerate().filter(|(_, s)| s.line != NIL);
        streams.flat_map(|(stream, s)| {
            let positions = (0..self.layout.positions).filter(|p| s.room.has(*p));
            positions.map(move |position| {
                let row = s.row[position as usize];
                OpenChunk { stream, line: s.line, position, row }
            })
        })
    }

    /// May `host` units go where the host's data goes, and `gc` units to GC's line, without taking
    /// what GC needs?
    pub(in crate::pftl) fn can_spare(&self, host: u32, gc: u32) -> bool {
        let (unit, line) = (self.layout.unit as i64, self.layout.line_sectors as i64);
        let own = &self.streams[self.streams.len() - 1];
        let left = self.outlook(0) - line - self.reserve as i64;
        if self.streams.len() == 1 {
            return left >= (host + gc) as i64 * unit;
        }
        let left = left - gc.min(own.units_left) as i64 * unit;
        let here = match self.streams[0].line {
            NIL => 0,
            _ => self.streams[0].units_left,
        };
        let beyond = host.saturating_sub(here) as i64 * unit;
        let lines = (beyond as u64).div_ceil(line as u64);
        self.free.len() as u64 >= lines && left >= lines as i64 * line
    }
}
