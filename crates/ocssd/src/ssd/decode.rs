//! Addresses into runs (neighbouring sectors of one chunk) or into parts of page rows.
//!
//! Owns: [`Decoder`], [`Run`], [`RowPart`]. Promises: the runs, or the row parts, of a command cover
//! its addresses in their order; a run lies in one chunk, a row part in one row; a hole starts
//! neither. Never: looks at the medium.

use flashlane_base::{FastDiv, Geometry, Location, Ppa, PpaFormat, PpaStyle};
use std::ops::Range;

/// Neighbouring sectors of one chunk, named by neighbouring addresses of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub channel: u32,
    pub die: u32,
    pub chunk: u32,
    /// Index of the chunk on its channel.
    pub index: u32,
    /// First sector in the chunk.
    pub sector: u32,
    /// Index of the first address in the command.
    pub first: usize,
    pub n: u32,
}

impl Run {
    /// `n` of its sectors at most, without the first so many.
    #[inline]
    pub fn piece(&self, skip: u32, n: u32) -> Run {
        let (sector, first) = (self.sector + skip, self.first + skip as usize);
        Run { sector, first, n: n.min(self.n - skip), ..*self }
    }

    /// Indices of its addresses in the command.
    #[inline]
    pub fn addresses(&self) -> Range<usize> {
        self.first..self.first + self.n as usize
    }
}

/// Sectors of one page row, named by neighbouring addresses of a command in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    pub channel: u32,
    pub die: u32,
    pub chunk: u32,
    /// Page row of the chunk.
    pub row: u32,
    /// First sector of the row in the chunk.
    pub sector: u32,
    pub base: Ppa,
    /// Index of the first address in the command.
    pub first: usize,
    pub n: usize,
    /// Sectors of the row that are named, one bit each.
    pub named: u64,
}

impl RowPart {
    /// The sector in the row that an address of this part names.
    #[inline(always)]
    pub fn place(&self, address: Ppa) -> usize {
        (address.0 - self.base.0) as usize
    }

    /// First sector in the chunk and number of sectors from the lowest one named to the highest.
    #[inline]
    pub fn span(&self) -> (u32, u32) {
        let lowest = self.named.trailing_zeros();
        (self.sector + lowest, u64::BITS - self.named.leading_zeros() - lowest)
    }
}

/// What an address names.
#[derive(Clone, Copy)]
pub struct Place {
    pub channel: u32,
    /// Die on the channel: the PU.
    pub die: u32,
    pub chunk: u32,
    pub sector: u32,
}

/// Takes addresses apart.
#[derive(Debug)]
pub struct Decoder {
    format: PpaFormat,
    geo: Geometry,
    luns: FastDiv,
    row: FastDiv,
    chunk_sectors: u32,
    /// The address of the next sector in a chunk is the address plus one.
    linear: bool,
    /// Bits of an address below the chunk, the die and the channel.
    below: [u32; 3],
}

impl Decoder {
    /// A decoder of a device's layout.
    pub fn new(format: PpaFormat, geo: &Geometry) -> Decoder {
        // 1.2 packs (page, plane, sector): without holes in the two lower fields that is the
        // sector number itself.
        let dense = geo.sectors_per_page.is_power_of_two() && geo.planes.is_power_of_two();
        let widths: Vec<u32> = format.fields().iter().map(|(_, bits)| *bits).collect();
        let below = |fields: usize| widths[..widths.len() - fields].iter().sum();
        Decoder {
            geo: *geo,
            luns: FastDiv::new(geo.pus_per_channel),
            row: FastDiv::new(geo.sectors_per_row()),
            chunk_sectors: geo.sectors_per_chunk(),
            linear: format.style() == PpaStyle::V20 || dense,
            below: [below(3), below(2), below(1)],
            format,
        }
    }

    #[inline]
    pub fn format(&self) -> &PpaFormat {
        &self.format
    }

    /// Addresses can be taken apart by rows ([`Decoder::row_part`]).
    pub fn has_rows(&self) -> bool {
        self.linear && self.row.divisor() < u64::BITS
    }

    /// What an address names, or `None` for a hole.
    #[inline]
    pub fn place(&self, address: Ppa) -> Option<Place> {
        if !self.linear {
            let at = self.format.unpack(address)?;
            let (channel, die) = self.luns.div_rem(at.pu);
            return Some(Place { channel, die, chunk: at.chunk, sector: at.sector });
        }
        let [chunk, die, channel] = self.below;
        let field = |from: u32, end: u32| (address.0 >> from & !(u64::MAX << (end - from))) as u32;
        let at = Place {
            channel: u32::try_from(address.0 >> channel).ok()?,
            die: field(die, channel),
            chunk: field(chunk, die),
            sector: field(0, chunk),
        };
        let named = (at.channel < self.geo.channels)
            & (at.die < self.geo.pus_per_channel)
            & (at.chunk < self.geo.chunks_per_pu)
            & (at.sector < self.chunk_sectors);
        named.then_some(at)
    }

    /// The addresses from `first` on that name sectors of one row, or `None` for a hole. Only
    /// where the layout has rows.
    #[inline]
    pub fn row_part(&self, addrs: &[Ppa], first: usize) -> Option<RowPart> {
        let Place { channel, die, chunk, sector } = self.place(addrs[first])?;
        let (row, in_row) = self.row.div_rem(sector);
        let base = addrs[first].0 - in_row as u64;
        let mut named = 0;
        let mut n = 0;
        for a in &addrs[first..] {
            let k = a.0.wrapping_sub(base);
            if k >= self.row.divisor() as u64 {
                break;
            }
            named |= 1 << k;
            n += 1;
        }
        let sector = sector - in_row;
        Some(RowPart { channel, die, chunk, row, sector, base: Ppa(base), first, n, named })
    }

    /// The run that starts at address `first`, or `None` for a hole.
    #[inline]
    pub fn run(&self, addrs: &[Ppa], first: usize) -> Option<Run> {
        let at = self.place(addrs[first])?;
        let most = (addrs.len() - first).min((self.chunk_sectors - at.sector) as usize);
        let mut n = 1;
        if self.linear {
            let base = addrs[first].0;
            let list = &addrs[first..first + most];
            // Without an exit in the inner loop it becomes a few wide compares. Not over the whole
            // list at once: a collection's has a run every few sectors.
            n = 0;
            for eight in list.chunks_exact(8) {
                let mut strays = 0;
                for (k, a) in eight.iter().enumerate() {
                    strays |= a.0.wrapping_sub(base) ^ (n + k) as u64;
                }
                if strays != 0 {
                    break;
                }
                n += 8;
            }
            let rest = list[n..].iter().zip(base + n as u64..);
            n += rest.take_while(|(a, want)| a.0 == *want).count();
        } else {
            let start = self.format.unpack(addrs[first])?;
            while n < most {
                let want = Location { sector: at.sector + n as u32, ..start };
                if self.format.unpack(addrs[first + n]) != Some(want) {
                    break;
                }
                n += 1;
            }
        }
        let Place { channel, die, chunk, sector } = at;
        let index = die * self.geo.chunks_per_pu + chunk;
        Some(Run { channel, die, chunk, index, sector, first, n: n as u32 })
    }
}
