//! The numbering of sectors in stripe order.
//!
//! Owns: [`Layout`], the arithmetic between physical sectors, lines, units and places on the device.
//! Promises: both ways give the same; a unit is one program. Never: knows the state of anything.

use flashlane_base::{FastDiv, Geometry, Location};

/// Addresses at most in one program: one vector command.
const UNIT_MAX: u32 = flashlane_base::VECTOR_MAX as u32;

/// The numbering of sectors, from the geometry alone.
#[derive(Clone, Debug)]
pub(in crate::pftl) struct Layout {
    /// Sectors per program: `ws_opt`, or the largest part of it that one command can carry.
    pub(in crate::pftl) unit: u32,
    pub(in crate::pftl) positions: u32,
    /// Units per chunk.
    pub(in crate::pftl) rows: u32,
    pub(in crate::pftl) lines: u32,
    /// Sectors of a line without bad chunks.
    pub(in crate::pftl) line_sectors: u32,
    pub(in crate::pftl) chunk_sectors: u32,
    /// Position in the stripe → PU.
    pu: Vec<u32>,
    by_line: FastDiv,
    by_unit: FastDiv,
    by_position: FastDiv,
}

impl Layout {
    pub(in crate::pftl) fn new(geo: &Geometry) -> Layout {
        let unit = (1..=geo.ws_opt / geo.ws_min)
            .filter(|n| geo.ws_opt.is_multiple_of(n * geo.ws_min) && n * geo.ws_min <= UNIT_MAX)
            .map(|n| n * geo.ws_min)
            .max()
            .unwrap_or(geo.ws_min);
        let chunk_sectors = geo.sectors_per_chunk();
        let line_sectors = chunk_sectors * geo.pus();
        Layout {
            unit,
            positions: geo.pus(),
            rows: chunk_sectors / unit,
            lines: geo.chunks_per_pu,
            line_sectors,
            chunk_sectors,
            pu: (0..geo.pus())
                .map(|at| at % geo.channels * geo.pus_per_channel + at / geo.channels)
                .collect(),
            by_line: FastDiv::new(line_sectors),
            by_unit: FastDiv::new(unit),
            by_position: FastDiv::new(geo.pus()),
        }
    }

    /// The line of a physical sector.
    #[inline]
    pub(in crate::pftl) fn line_of(&self, at: u32) -> u32 {
        self.by_line.div(at)
    }

    /// First physical sector of a unit.
    #[inline]
    pub(in crate::pftl) fn unit_at(&self, line: u32, row: u32, position: u32) -> u32 {
        line * self.line_sectors + (row * self.positions + position) * self.unit
    }

    /// Where a physical sector is on the device.
    #[inline]
    pub(in crate::pftl) fn location(&self, at: u32) -> Location {
        let (line, within) = self.by_line.div_rem(at);
        let (unit, sector) = self.by_unit.div_rem(within);
        let (row, position) = self.by_position.div_rem(unit);
        Location { pu: self.pu[position as usize], chunk: line, sector: row * self.unit + sector }
    }

    /// The unit that a physical sector is in, counted over the device.
    #[inline]
    pub(in crate::pftl) fn unit_of(&self, at: u32) -> u32 {
        self.by_unit.div(at)
    }

    /// Line, position, and sector in the chunk of a physical sector.
    pub(in crate::pftl) fn in_chunk(&self, at: u32) -> (u32, u32, u32) {
        let (line, within) = self.by_line.div_rem(at);
        let (unit, sector) = self.by_unit.div_rem(within);
        let (row, position) = self.by_position.div_rem(unit);
        (line, position, row * self.unit + sector)
    }

    /// The inverse of [`Layout::in_chunk`].
    pub(in crate::pftl) fn sector_at(&self, line: u32, position: u32, sector: u32) -> u32 {
        let (row, within) = self.by_unit.div_rem(sector);
        self.unit_at(line, row, position) + within
    }

    /// First sector of a chunk.
    #[inline]
    pub(in crate::pftl) fn chunk(&self, line: u32, position: u32) -> Location {
        Location { pu: self.pu[position as usize], chunk: line, sector: 0 }
    }

    pub(in crate::pftl) fn pu(&self, position: u32) -> u32 {
        self.pu[position as usize]
    }
}
