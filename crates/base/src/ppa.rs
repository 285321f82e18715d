//! The physical page address: 64 bits whose layout each device chooses for itself.
//!
//! Owns: [`PpaFormat`], both published layouts (1.2: channel, PU, block, page, plane, sector;
//! 2.0: group, PU, chunk, sector), packing and unpacking.
//! Promises: `unpack(pack(x)) == x` for every location of the device; dimensions that are no power
//! of two leave holes, and a hole unpacks to `None`, never to an alias (LightNVM paper 3.1: 1067
//! blocks in 11 bits).
//! Never: knows what lies at an address.

use crate::{FastDiv, Geometry};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A physical page address in a device's own layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppa(pub u64);

impl fmt::Display for Ppa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Where a sector is, spelled out. `pu` counts over the device: channel × PUs per channel + LUN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Parallel unit of the device.
    pub pu: u32,
    /// Chunk within the PU.
    pub chunk: u32,
    /// Sector within the chunk, in the order in which it is written.
    pub sector: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pu {} chunk {} sector {}", self.pu, self.chunk, self.sector)
    }
}

/// Which of the two published layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PpaStyle {
    /// OCSSD 1.2: channel | PU | block | page | plane | sector.
    #[serde(rename = "1.2")]
    V12,
    /// OCSSD 2.0: group | PU | chunk | sector.
    #[serde(rename = "2.0")]
    V20,
}

/// A device's layout: field widths follow from the geometry, fields are packed from bit 0 up.
#[derive(Clone, Copy, Debug)]
pub struct PpaFormat {
    style: PpaStyle,
    geo: Geometry,
    sector_bits: u32,
    plane_bits: u32,
    page_bits: u32,
    chunk_shift: u32,
    lun_shift: u32,
    channel_shift: u32,
    per_row: FastDiv,
    per_page: FastDiv,
    luns: FastDiv,
}

/// Bits that hold 0..n.
const fn bits_for(n: u32) -> u32 {
    u32::BITS - (n - 1).leading_zeros()
}

impl PpaFormat {
    /// The layout of a device of this shape. The geometry must have passed its check.
    pub fn new(style: PpaStyle, geo: &Geometry) -> PpaFormat {
        let (sector_bits, plane_bits, page_bits) = match style {
            PpaStyle::V20 => (bits_for(geo.sectors_per_chunk()), 0, 0),
            PpaStyle::V12 => (
                bits_for(geo.sectors_per_page),
                bits_for(geo.planes),
                bits_for(geo.pages_per_block),
            ),
        };
        let chunk_shift = sector_bits + plane_bits + page_bits;
        let lun_shift = chunk_shift + bits_for(geo.chunks_per_pu);
        let channel_shift = lun_shift + bits_for(geo.pus_per_channel);
        PpaFormat {
            style,
            geo: *geo,
            sector_bits,
            plane_bits,
            page_bits,
            chunk_shift,
            lun_shift,
            channel_shift,
            per_row: FastDiv::new(geo.sectors_per_row()),
            per_page: FastDiv::new(geo.sectors_per_page),
            luns: FastDiv::new(geo.pus_per_channel),
        }
    }

    pub fn style(&self) -> PpaStyle {
        self.style
    }

    /// Bits that an address of this device uses.
    pub fn bits(&self) -> u32 {
        self.channel_shift + bits_for(self.geo.channels)
    }

    /// Field widths from the least significant: (name, bits), as `lnvm info` prints them.
    pub fn fields(&self) -> Vec<(&'static str, u32)> {
        let chunk = self.lun_shift - self.chunk_shift;
        let lun = self.channel_shift - self.lun_shift;
        let channel = bits_for(self.geo.channels);
        match self.style {
            PpaStyle::V20 => vec![
                ("sector", self.sector_bits),
                ("chunk", chunk),
                ("pu", lun),
                ("group", channel),
            ],
            PpaStyle::V12 => vec![
                ("sector", self.sector_bits),
                ("plane", self.plane_bits),
                ("page", self.page_bits),
                ("block", chunk),
                ("pu", lun),
                ("channel", channel),
            ],
        }
    }

    /// The address of a location. The location must lie in the geometry (debug-checked; the device
    /// checks again, since an address may come from outside).
    #[inline]
    pub fn pack(&self, at: Location) -> Ppa {
        debug_assert!(at.pu < self.geo.pus() && at.chunk < self.geo.chunks_per_pu);
        let (channel, lun) = self.luns.div_rem(at.pu);
        let high = (channel as u64) << self.channel_shift
            | (lun as u64) << self.lun_shift
            | (at.chunk as u64) << self.chunk_shift;
        Ppa(high | self.pack_sector(at.sector))
    }

    #[inline]
    fn pack_sector(&self, sector: u32) -> u64 {
        match self.style {
            PpaStyle::V20 => sector as u64,
            PpaStyle::V12 => {
                let (page, in_row) = self.per_row.div_rem(sector);
                let (plane, s) = self.per_page.div_rem(in_row);
                (page as u64) << (self.sector_bits + self.plane_bits)
                    | (plane as u64) << self.sector_bits
                    | s as u64
            }
        }
    }

    /// The address of `sector` in the chunk whose sector 0 has address `chunk`.
    #[inline(always)]
    pub fn in_chunk(&self, chunk: Ppa, sector: u32) -> Ppa {
        debug_assert!(sector < self.geo.sectors_per_chunk());
        Ppa(chunk.0 | self.pack_sector(sector))
    }

    /// Appends the addresses of `n` sectors from `sector` of the chunk whose sector 0 has address
    /// `chunk`.
    #[inline]
    pub fn extend_in_chunk(&self, chunk: Ppa, sector: u32, n: u32, out: &mut Vec<Ppa>) {
        match self.style {
            PpaStyle::V20 => {
                let first = self.in_chunk(chunk, sector).0;
                out.extend((first..first + n as u64).map(Ppa));
            }
            PpaStyle::V12 => out.extend((sector..sector + n).map(|s| self.in_chunk(chunk, s))),
        }
    }

    /// What an address names, or `None` for a hole or stray high bits.
    #[inline]
    pub fn unpack(&self, ppa: Ppa) -> Option<Location> {
        let field = |shift: u32, end: u32| (ppa.0 >> shift & ((1u64 << (end - shift)) - 1)) as u32;
        let channel = ppa.0 >> self.channel_shift;
        let lun = field(self.lun_shift, self.channel_shift);
        let chunk = field(self.chunk_shift, self.lun_shift);
        let sector = match self.style {
            PpaStyle::V20 => field(0, self.sector_bits),
            PpaStyle::V12 => {
                let s = field(0, self.sector_bits);
                let plane = field(self.sector_bits, self.sector_bits + self.plane_bits);
                let page = field(self.sector_bits + self.plane_bits, self.chunk_shift);
                let hole = s >= self.geo.sectors_per_page
                    || plane >= self.geo.planes
                    || page >= self.geo.pages_per_block;
                if hole {
                    return None;
                }
                page * self.per_row.divisor() + plane * self.per_page.divisor() + s
            }
        };
        let ok = channel < self.geo.channels as u64
            && lun < self.geo.pus_per_channel
            && chunk < self.geo.chunks_per_pu
            && sector < self.geo.sectors_per_chunk();
        ok.then(|| Location { pu: channel as u32 * self.luns.divisor() + lun, chunk, sector })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_geometry() -> impl Strategy<Value = Geometry> {
        (1u32..20, 1u32..9, 1u32..5, 1u32..1100, 1u32..300, 1u32..5).prop_map(
            |(channels, pus_per_channel, planes, chunks_per_pu, pages_per_block, spp)| Geometry {
                channels,
                pus_per_channel,
                planes,
                chunks_per_pu,
                pages_per_block,
                sectors_per_page: spp,
                ws_min: spp,
                ws_opt: spp * planes,
                mw_cunits: 0,
            },
        )
    }

    proptest! {
        /// Every location survives the trip in both styles, and no two share an address.
        #[test]
        fn round_trip_in_both_styles(geo in any_geometry(), a in any::<u64>(), b in any::<u64>()) {
            for style in [PpaStyle::V12, PpaStyle::V20] {
                let f = PpaFormat::new(style, &geo);
                let at = |n: u64| Location {
                    pu: (n % geo.pus() as u64) as u32,
                    chunk: ((n >> 16) % geo.chunks_per_pu as u64) as u32,
                    sector: ((n >> 32) % geo.sectors_per_chunk() as u64) as u32,
                };
                prop_assert_eq!(f.unpack(f.pack(at(a))), Some(at(a)));
                prop_assert_eq!(f.pack(at(a)) == f.pack(at(b)), at(a) == at(b));
            }
        }

        /// An arbitrary 64-bit value either is the packed form of what it unpacks to, or a hole.
        #[test]
        fn no_address_aliases_another(geo in any_geometry(), raw in any::<u64>(), cut in 0u32..64) {
            for style in [PpaStyle::V12, PpaStyle::V20] {
                let f = PpaFormat::new(style, &geo);
                let ppa = Ppa(raw >> cut);
                if let Some(at) = f.unpack(ppa) {
                    prop_assert_eq!(f.pack(at), ppa);
                }
            }
        }
    }

    /// D01: the paper's example, 1067 blocks in 11 bits: block 1066 exists, 1067 is a hole.
    #[test]
    fn block_1067_of_1067_is_a_hole() {
        let geo = Geometry {
            channels: 16,
            pus_per_channel: 8,
            planes: 4,
            chunks_per_pu: 1067,
            pages_per_block: 256,
            sectors_per_page: 4,
            ws_min: 16,
            ws_opt: 16,
            mw_cunits: 128,
        };
        for style in [PpaStyle::V12, PpaStyle::V20] {
            let f = PpaFormat::new(style, &geo);
            assert_eq!(f.lun_shift - f.chunk_shift, 11);
            let last = f.pack(Location { pu: 0, chunk: 1066, sector: 0 });
            assert!(f.unpack(last).is_some());
            let hole = Ppa(last.0 + (1 << f.chunk_shift));
            assert_eq!(f.unpack(hole), None);
            assert_eq!(f.unpack(Ppa(1 << f.bits())), None, "stray high bits");
        }
    }
}
