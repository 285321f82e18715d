//! Addresses into runs: neighbouring sectors of one chunk, in list order.
//!
//! Owns: [`Decoder`], [`Run`]. Promises: the runs of a command cover its addresses in their order;
//! a run lies in one chunk; a hole starts no run. Never: looks at the medium.

use flashlane_base::{FastDiv, Geometry, Ppa, PpaFormat, PpaStyle};

/// Neighbouring sectors of one chunk, named by neighbouring addresses of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Channel.
    pub channel: u32,
    /// Die on the channel.
    pub die: u32,
    /// Chunk of the die.
    pub chunk: u32,
    /// First sector in the chunk.
    pub sector: u32,
    /// Index of the first address in the command.
    pub first: usize,
    /// Sectors.
    pub n: u32,
}

/// Takes addresses apart.
#[derive(Debug)]
pub struct Decoder {
    format: PpaFormat,
    luns: FastDiv,
    chunk_sectors: u32,
    /// The address of the next sector in a chunk is the address plus one.
    linear: bool,
}

impl Decoder {
    /// A decoder of a device's layout.
    pub fn new(format: PpaFormat, geo: &Geometry) -> Decoder {
        // 1.2 packs (page, plane, sector): without holes in the two lower fields that is the
        // sector number itself.
        let dense = geo.sectors_per_page.is_power_of_two() && geo.planes.is_power_of_two();
        Decoder {
            luns: FastDiv::new(geo.pus_per_channel),
            chunk_sectors: geo.sectors_per_chunk(),
            linear: format.style() == PpaStyle::V20 || dense,
            format,
        }
    }

    /// The layout.
    #[inline]
    pub fn format(&self) -> &PpaFormat {
        &self.format
    }

    /// The run that starts at address `first`, or `None` for a hole.
    #[inline]
    pub fn run(&self, addrs: &[Ppa], first: usize) -> Option<Run> {
        let at = self.format.unpack(addrs[first])?;
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
            while n < most {
                let want = flashlane_base::Location { sector: at.sector + n as u32, ..at };
                if self.format.unpack(addrs[first + n]) != Some(want) {
                    break;
                }
                n += 1;
            }
        }
        let (channel, die) = self.luns.div_rem(at.pu);
        Some(Run { channel, die, chunk: at.chunk, sector: at.sector, first, n: n as u32 })
    }
}
