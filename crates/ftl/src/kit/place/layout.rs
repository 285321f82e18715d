//! The numbering of physical sectors, in stripe order.
//!
//! Owns: [`Layout`] and its [`Region`]s, the arithmetic between physical sectors, lines, units and
//! places on the device. Promises: both ways give the same; a unit is one program at most. Never:
//! knows the state of anything.
//!
//! A region is a range of chunks on a range of PUs, all in one cell mode, cut into lines that are
//! alike. A line is one chunk on each of `width` PUs that are neighbours in the stripe. The sectors
//! of a region are numbered line by line, those of a line in stripe order.

use flashlane_base::{FastDiv, Geometry, Location, mutant};
use flashlane_ocssd::device::{CellMode, ChunkInfo};
use std::ops::Range;

/// Addresses at most in one program: one vector command.
const UNIT_MAX: u32 = flashlane_base::VECTOR_MAX as u32;

/// What a region is to be.
#[derive(Clone, Debug)]
pub(in crate::kit) struct RegionSpec {
    /// Which of the pools has its lines.
    pub(in crate::kit) pool: usize,
    pub(in crate::kit) mode: CellMode,
    /// Chunks of a PU.
    pub(in crate::kit) chunks: Range<u32>,
    /// Positions in the stripe.
    pub(in crate::kit) positions: Range<u32>,
    /// Positions of a line; it divides their number.
    pub(in crate::kit) width: u32,
    /// Sectors that one program holds at most, and at least; both divide a chunk.
    pub(in crate::kit) unit: u32,
    pub(in crate::kit) grain: u32,
    pub(in crate::kit) chunk_sectors: u32,
    /// Sectors that must be written behind one of an open chunk before it can be read.
    pub(in crate::kit) window: u32,
    /// Sectors that a torn program may take along behind it; 0 where it takes none.
    pub(in crate::kit) pairs: u32,
}

/// Lines that are alike.
#[derive(Clone, Debug)]
pub(in crate::kit) struct Region {
    pub(in crate::kit) pool: usize,
    pub(in crate::kit) mode: CellMode,
    /// Sectors per program: at most, and the parts of it that one may have.
    pub(in crate::kit) unit: u32,
    pub(in crate::kit) grain: u32,
    pub(in crate::kit) chunk_sectors: u32,
    /// Sectors of a line without bad chunks.
    pub(in crate::kit) line_sectors: u32,
    pub(in crate::kit) width: u32,
    pub(in crate::kit) window: u32,
    pub(in crate::kit) pairs: u32,
    pub(in crate::kit) lines: Range<u32>,
    /// Physical sectors.
    sectors: Range<u32>,
    first_chunk: u32,
    first_position: u32,
    /// Lines per chunk number.
    abreast: u32,
    by_line: FastDiv,
    by_unit: FastDiv,
    by_width: FastDiv,
}

impl Region {
    /// A chunk is in its mode. Where a cell holds one bit, chunks have one length in both.
    #[inline]
    pub(in crate::kit) fn is_mode_of(&self, info: &ChunkInfo) -> bool {
        match mutant!("slc.mode-by-length") {
            true => info.length == self.chunk_sectors,
            false => info.cell == self.mode,
        }
    }

    /// Sectors of a line over all positions of the region, or of the lines abreast that make one.
    pub(in crate::kit) fn stripe_sectors(&self) -> u32 {
        self.line_sectors * self.abreast
    }

    /// Positions of the region.
    pub(in crate::kit) fn positions(&self) -> u32 {
        self.width * self.abreast
    }

    /// Chunks on each of its positions.
    pub(in crate::kit) fn stripes(&self) -> u32 {
        self.lines.len() as u32 / self.abreast
    }

    /// Line, position, first sector of the unit in the chunk, sector in the unit.
    #[inline]
    fn split(&self, at: u32) -> (u32, u32, u32, u32) {
        let (line, within) = self.by_line.div_rem(at - self.sectors.start);
        let (unit, sector) = self.by_unit.div_rem(within);
        let (row, column) = self.by_width.div_rem(unit);
        let position = self.place_of(line).1 + column;
        (self.lines.start + line, position, row * self.unit, sector)
    }

    /// Chunk number and first position of the `i`-th line.
    #[inline]
    fn place_of(&self, i: u32) -> (u32, u32) {
        match self.abreast {
            1 => (self.first_chunk + i, self.first_position),
            n => (self.first_chunk + i / n, self.first_position + i % n * self.width),
        }
    }

    /// The part of a unit in front of a sector of a chunk.
    #[inline]
    pub(in crate::kit) fn in_unit(&self, sector: u32) -> u32 {
        self.by_unit.div_rem(sector).1
    }
}

/// The numbering of sectors.
#[derive(Clone, Debug)]
pub(in crate::kit) struct Layout {
    pub(in crate::kit) regions: Vec<Region>,
    /// PUs.
    pub(in crate::kit) positions: u32,
    pub(in crate::kit) lines: u32,
    /// Physical sectors.
    pub(in crate::kit) sectors: u32,
    /// The largest part that all grains are made of.
    pub(in crate::kit) grain: u32,
    /// Position in the stripe → PU.
    pu: Vec<u32>,
    channels: u32,
    by_grain: FastDiv,
}

/// Sectors per program: `ws_opt`, or the largest part of it in whole `ws_min` that one command can carry
/// and that is no more than `most`.
pub(in crate::kit) fn unit_of(ws_min: u32, ws_opt: u32, most: u32) -> u32 {
    let most = most.min(UNIT_MAX);
    (1..=ws_opt / ws_min)
        .map(|n| n * ws_min)
        .filter(|unit| ws_opt.is_multiple_of(*unit) && *unit <= most)
        .max()
        .unwrap_or(ws_min)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Layout {
    /// These regions of a device. The first one should be the one with most sectors: it is found
    /// first.
    pub(in crate::kit) fn new(geo: &Geometry, specs: &[RegionSpec]) -> Layout {
        let mut layout = Layout {
            regions: Vec::new(),
            positions: geo.pus(),
            lines: 0,
            sectors: 0,
            grain: 0,
            pu: (0..geo.pus())
                .map(|at| at % geo.channels * geo.pus_per_channel + at / geo.channels)
                .collect(),
            channels: geo.channels,
            by_grain: FastDiv::new(1),
        };
        for spec in specs {
            let abreast = spec.positions.len() as u32 / spec.width;
            let lines = spec.chunks.len() as u32 * abreast;
            let line_sectors = spec.chunk_sectors * spec.width;
            let sectors = layout.sectors..layout.sectors + lines * line_sectors;
            layout.regions.push(Region {
                pool: spec.pool,
                mode: spec.mode,
                unit: spec.unit,
                grain: spec.grain,
                chunk_sectors: spec.chunk_sectors,
                line_sectors,
                width: spec.width,
                window: spec.window,
                pairs: spec.pairs,
                lines: layout.lines..layout.lines + lines,
                sectors: sectors.clone(),
                first_chunk: spec.chunks.start,
                first_position: spec.positions.start,
                abreast,
                by_line: FastDiv::new(line_sectors),
                by_unit: FastDiv::new(spec.unit),
                by_width: FastDiv::new(spec.width),
            });
            (layout.lines, layout.sectors) = (layout.lines + lines, sectors.end);
        }
        layout.grain = layout.regions.iter().map(|r| r.grain).reduce(gcd).unwrap_or(1);
        layout.by_grain = FastDiv::new(layout.grain);
        layout
    }

    /// The region of the host's data at rest, where GC works.
    #[inline]
    pub(in crate::kit) fn main(&self) -> &Region {
        &self.regions[0]
    }

    /// The region of a line.
    #[inline]
    pub(in crate::kit) fn of(&self, line: u32) -> &Region {
        let mut regions = self.regions.iter();
        let found = regions.find(|r| line < r.lines.end);
        found.expect("each line is in a region")
    }

    /// The region of a physical sector.
    #[inline]
    fn region(&self, at: u32) -> &Region {
        let mut regions = self.regions.iter();
        let found = regions.find(|r| at < r.sectors.end);
        found.expect("each sector is in a region")
    }

    /// A line in SLC mode.
    #[inline]
    pub(in crate::kit) fn is_slc(&self, line: u32) -> bool {
        self.of(line).mode == CellMode::Slc
    }

    /// Lines of a pool.
    pub(in crate::kit) fn lines_of(&self, pool: usize) -> impl Iterator<Item = u32> {
        let regions = self.regions.iter().filter(move |r| r.pool == pool);
        regions.flat_map(|r| r.lines.clone())
    }

    /// Positions of a line.
    #[inline]
    pub(in crate::kit) fn positions_of(&self, line: u32) -> Range<u32> {
        let region = self.of(line);
        let (_, first) = region.place_of(line - region.lines.start);
        first..first + region.width
    }

    /// The chunks of a line, (line, position) each.
    pub(in crate::kit) fn chunks_of(&self, line: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        self.positions_of(line).map(move |position| (line, position))
    }

    /// Every chunk, as line and position, in the order of the lines.
    pub(in crate::kit) fn chunks(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.lines).flat_map(|line| self.positions_of(line).map(move |p| (line, p)))
    }

    /// Lines that have a chunk at this position.
    pub(in crate::kit) fn lines_at(&self, position: u32) -> impl Iterator<Item = u32> {
        (0..self.lines).filter(move |line| self.positions_of(*line).contains(&position))
    }

    /// A chunk of the device, counted over all chunk numbers and positions.
    #[inline]
    pub(in crate::kit) fn chunk_index(&self, line: u32, position: u32) -> usize {
        (self.chunk_number(line) * self.positions + position) as usize
    }

    /// The number on its PU of each chunk of a line.
    #[inline]
    pub(in crate::kit) fn chunk_number(&self, line: u32) -> u32 {
        let region = self.of(line);
        region.place_of(line - region.lines.start).0
    }

    /// Chunks of a PU, all regions together.
    pub(in crate::kit) fn chunk_numbers(&self) -> u32 {
        let ends = self.regions.iter();
        ends.map(|r| r.place_of(r.lines.len() as u32 - 1).0 + 1).max().unwrap_or(0)
    }

    /// Chunks, bad ones and those of no region too.
    pub(in crate::kit) fn chunk_count(&self) -> u32 {
        self.chunk_numbers() * self.positions
    }

    /// The chunk report, by [`Layout::chunk_index`]: `report` gives the chunks of a PU.
    pub(in crate::kit) fn by_number(
        &self,
        report: impl Fn(u32) -> Vec<ChunkInfo>,
    ) -> Vec<ChunkInfo> {
        let on_pus: Vec<Vec<ChunkInfo>> = self.pu.iter().map(|pu| report(*pu)).collect();
        let of = |number: u32| on_pus.iter().map(move |chunks| chunks[number as usize]);
        (0..self.chunk_numbers()).flat_map(of).collect()
    }

    /// The line of a physical sector.
    #[inline]
    pub(in crate::kit) fn line_of(&self, at: u32) -> u32 {
        let region = self.region(at);
        region.lines.start + region.by_line.div(at - region.sectors.start)
    }

    /// First physical sector of a line, and the end of them.
    #[inline]
    pub(in crate::kit) fn sectors_of(&self, line: u32) -> Range<u32> {
        let region = self.of(line);
        let first = region.sectors.start + (line - region.lines.start) * region.line_sectors;
        first..first + region.line_sectors
    }

    /// Where a physical sector is on the device.
    #[inline]
    pub(in crate::kit) fn location(&self, at: u32) -> Location {
        let region = self.region(at);
        let (line, position, unit, sector) = region.split(at);
        let chunk = region.place_of(line - region.lines.start).0;
        Location { pu: self.pu[position as usize], chunk, sector: unit + sector }
    }

    /// The smallest part of a program that a physical sector is in, counted over the device.
    #[inline]
    pub(in crate::kit) fn grain_of(&self, at: u32) -> u32 {
        self.by_grain.div(at)
    }

    /// The grains of a program of `n` sectors from `at`.
    pub(in crate::kit) fn grains_of(&self, at: u32, n: u32) -> Range<u32> {
        self.grain_of(at)..self.grain_of(at + n - 1) + 1
    }

    /// The grains of a chunk.
    pub(in crate::kit) fn each_grain(&self, line: u32, position: u32, mut see: impl FnMut(u32)) {
        let region = self.of(line);
        for from in (0..region.chunk_sectors).step_by(region.unit as usize) {
            let at = self.sector_at(line, position, from);
            self.grains_of(at, region.unit).for_each(&mut see);
        }
    }

    /// How many grains there are.
    pub(in crate::kit) fn grains(&self) -> u32 {
        self.sectors / self.grain
    }

    /// The unit that a physical sector is in: its first physical sector, and how many it has.
    #[inline]
    pub(in crate::kit) fn unit_around(&self, at: u32) -> (u32, u32) {
        let region = self.region(at);
        (at - region.by_unit.div_rem(at - region.sectors.start).1, region.unit)
    }

    /// Line, position, and sector in the chunk of a physical sector.
    pub(in crate::kit) fn in_chunk(&self, at: u32) -> (u32, u32, u32) {
        let (line, position, unit, sector) = self.region(at).split(at);
        (line, position, unit + sector)
    }

    /// The inverse of [`Layout::in_chunk`].
    #[inline]
    pub(in crate::kit) fn sector_at(&self, line: u32, position: u32, sector: u32) -> u32 {
        let region = self.of(line);
        let i = line - region.lines.start;
        let (row, within) = region.by_unit.div_rem(sector);
        let column = position - region.place_of(i).1;
        let unit = (row * region.width + column) * region.unit;
        region.sectors.start + i * region.line_sectors + unit + within
    }

    /// First sector of a chunk.
    #[inline]
    pub(in crate::kit) fn chunk(&self, line: u32, position: u32) -> Location {
        Location { pu: self.pu[position as usize], chunk: self.chunk_number(line), sector: 0 }
    }

    /// Both positions are on one channel: they may fail together.
    pub(in crate::kit) fn share_channel(&self, one: u32, other: u32) -> bool {
        one % self.channels == other % self.channels
    }

    pub(in crate::kit) fn pu(&self, position: u32) -> u32 {
        self.pu[position as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Regions of different width, length and unit over one device: each sector of each chunk has a
    /// number of its own, all numbers are used, and every way back agrees.
    #[test]
    fn numbers_and_places_are_one_to_one() {
        let geo = Geometry {
            channels: 2,
            pus_per_channel: 4,
            planes: 2,
            chunks_per_pu: 9,
            pages_per_block: 12,
            sectors_per_page: 2,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 0,
        };
        let native = RegionSpec {
            pool: 0,
            mode: CellMode::Native,
            chunks: 4..9,
            positions: 0..8,
            width: 8,
            unit: 4,
            grain: 4,
            chunk_sectors: 48,
            window: 8,
            pairs: 0,
        };
        let slc = RegionSpec {
            pool: 1,
            mode: CellMode::Slc,
            chunks: 2..4,
            grain: 2,
            chunk_sectors: 16,
            window: 0,
            ..native.clone()
        };
        let half = RegionSpec { chunks: 1..2, positions: 4..8, width: 4, ..slc.clone() };
        let first = RegionSpec { pool: 2, chunks: 0..1, width: 2, ..slc.clone() };
        let rest = RegionSpec { positions: 0..4, chunks: 1..2, ..first.clone() };
        let layout = Layout::new(&geo, &[native, slc, half, first, rest]);
        assert_eq!((layout.lines, layout.grain, layout.chunk_numbers()), (5 + 2 + 1 + 4 + 2, 2, 9));
        assert_eq!(layout.sectors, 5 * 8 * 48 + 4 * 8 * 16);
        let (mut numbers, mut places) = (BTreeSet::new(), BTreeSet::new());
        for (line, position) in layout.chunks() {
            assert!(layout.lines_at(position).any(|l| l == line));
            assert!(layout.lines_of(layout.of(line).pool).any(|l| l == line));
            for sector in 0..layout.of(line).chunk_sectors {
                let at = layout.sector_at(line, position, sector);
                assert!(numbers.insert(at) && at < layout.sectors);
                assert!(layout.sectors_of(line).contains(&at));
                assert_eq!(layout.in_chunk(at), (line, position, sector));
                assert_eq!(layout.line_of(at), line);
                let place = layout.location(at);
                let chunk = layout.chunk(line, position);
                assert_eq!((place.pu, place.chunk, place.sector), (chunk.pu, chunk.chunk, sector));
                assert!(places.insert((place.pu, place.chunk, place.sector)));
                let (unit, n) = layout.unit_around(at);
                assert!((unit..unit + n).contains(&at));
                assert_eq!(layout.in_chunk(unit), (line, position, sector / n * n));
            }
        }
        assert_eq!(numbers.len() as u32, layout.sectors);
    }
}
