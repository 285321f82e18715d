//! What of the room a stop may use for a snapshot.
//!
//! Owns: which chunks are open and how far, and whether so many units can be spared. Promises: what
//! is granted here the host would be granted, and GC keeps what it needs to take one more victim.
//! Never: hands out a unit.

use super::{MAIN, Place};

/// A chunk of an open line that has units left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kit) struct OpenChunk {
    pub(in crate::kit) stream: usize,
    pub(in crate::kit) line: u32,
    pub(in crate::kit) position: u32,
    /// Sectors programmed.
    pub(in crate::kit) next: u32,
}

impl Place {
    /// Lines that may be open at once.
    pub(in crate::kit) fn open_lines_max(&self) -> usize {
        self.streams.iter().map(|s| s.lines.len()).sum()
    }

    /// This stream writes lines of the main pool.
    pub(in crate::kit) fn is_of_main(&self, stream: usize) -> bool {
        self.streams[stream].pool == MAIN
    }

    /// An open line and an idle position with room in it that fits, of any stream of the main pool.
    pub(in crate::kit) fn next_open_that(
        &self,
        fits: impl Fn(u32) -> bool,
    ) -> Option<(usize, u32)> {
        let main = |stream: &usize| self.streams[*stream].pool == MAIN;
        let open = self.open_chunks().map(|chunk| (chunk.stream, chunk.position));
        let mut open = open.filter(|(stream, _)| main(stream));
        open.find(|(_, position)| fits(*position) && self.idle.has(*position))
    }

    /// Chunks of open lines that have units left.
    pub(in crate::kit) fn open_chunks(&self) -> impl Iterator<Item = OpenChunk> {
        let streams = self.streams.iter().enumerate();
        streams.flat_map(|(stream, s)| {
            let positions = (0..self.layout.positions).filter(|p| s.room.has(*p));
            positions.map(move |position| {
                let next = s.next[position as usize];
                OpenChunk { stream, line: s.line_at(position), position, next }
            })
        })
    }

    /// May `host` units go where the host's data goes, and `gc` units to GC's line, without taking
    /// what GC needs?
    pub(in crate::kit) fn can_spare(&self, host: u32, gc: u32) -> bool {
        let p = &self.pools[MAIN];
        let (unit, line) = (p.unit as i64, p.line_sectors as i64);
        let left = self.outlook(MAIN, 0) - line - p.reserve as i64;
        if p.spec.own == p.spec.host {
            return left >= (host + gc) as i64 * unit;
        }
        let own = self.streams[p.spec.own].left as i64;
        let left = left - (gc as i64 * unit).min(own);
        let here = self.streams[p.spec.host].left as i64;
        let beyond = (host as i64 * unit - here).max(0);
        let lines = (beyond as u64).div_ceil(line as u64);
        p.free_lines as u64 >= lines && left >= lines as i64 * line
    }
}
