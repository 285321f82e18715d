//! The shape of an Open-Channel SSD: how many of everything, and what may be written at once.
//!
//! Owns: [`Geometry`] and its derived counts. Promises: a value that passed [`Geometry::check`] has
//! no zero dimension and its sector count fits 48 bits. Never: says when something happens.

use serde::{Deserialize, Serialize};

/// Dimensions of a device or of a target's part of it (OCSSD 2.0 geometry page, 2.2 of the spec;
/// 1.2 identify group for the NAND terms). A chunk is one block in each plane of a PU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Channels (2.0: groups).
    pub channels: u32,
    /// Parallel units (LUNs, dies) per channel.
    pub pus_per_channel: u32,
    /// Planes per PU; a chunk spans them all.
    pub planes: u32,
    /// Chunks per PU (1.2: blocks per plane).
    pub chunks_per_pu: u32,
    /// Flash pages per block.
    pub pages_per_block: u32,
    /// 4 KiB sectors per flash page of one plane.
    pub sectors_per_page: u32,
    /// Smallest write, in sectors; a multiple of nothing smaller is accepted.
    pub ws_min: u32,
    /// Write size that uses all planes, in sectors; a multiple of `ws_min`.
    pub ws_opt: u32,
    /// Sectors that must be written behind a sector of an open chunk before it can be read.
    pub mw_cunits: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
    #[error(
        "write sizes: ws_min {ws_min} must divide ws_opt {ws_opt}, and ws_opt the chunk's {chunk} sectors"
    )]
    WriteSize {
        /// Smallest write, sectors.
        ws_min: u32,
        /// Optimal write, sectors.
        ws_opt: u32,
        /// Sectors per chunk.
        chunk: u64,
    },
    /// `mw_cunits` does not fit the chunk or is no multiple of `ws_min`.
    #[error("mw_cunits {0} must be a multiple of ws_min and below the chunk's sectors")]
    Window(u32),
    #[error("{0} sectors are more than the 2^40 this program addresses")]
    TooLarge(u128),
}

impl Geometry {
    /// Sectors per chunk in the native cell mode.
    #[inline]
    pub const fn sectors_per_chunk(&self) -> u32 {
        self.planes * self.pages_per_block * self.sectors_per_page
    }
    /// Sectors in one page row of a PU: one flash page in each plane.
    #[inline]
    pub const fn sectors_per_row(&self) -> u32 {
        self.planes * self.sectors_per_page
    }
    /// Parallel units of the whole device. PU numbers are channel × `pus_per_channel` + LUN.
    #[inline]
    pub const fn pus(&self) -> u32 {
        self.channels * self.pus_per_channel
    }
    /// Chunks of the whole device.
    #[inline]
    pub const fn chunks(&self) -> u32 {
        self.pus() * self.chunks_per_pu
    }
    /// Sectors of the whole device, bad chunks included.
    #[inline]
    pub const fn sectors(&self) -> u64 {
        self.chunks() as u64 * self.sectors_per_chunk() as u64
    }
    /// The channel that a PU hangs on.
    #[inline]
    pub const fn channel_of(&self, pu: u32) -> u32 {
        pu / self.pus_per_channel
    }

    /// Everything that would make the numbers above meaningless.
    pub fn check(&self) -> Result<(), GeometryError> {
        let dims = [
            ("channels", self.channels),
            ("pus_per_channel", self.pus_per_channel),
            ("planes", self.planes),
            ("chunks_per_pu", self.chunks_per_pu),
            ("pages_per_block", self.pages_per_block),
            ("sectors_per_page", self.sectors_per_page),
            ("ws_min", self.ws_min),
            ("ws_opt", self.ws_opt),
        ];
        if let Some((name, _)) = dims.iter().find(|(_, v)| *v == 0) {
            return Err(GeometryError::Zero(name));
        }
        let chunk: u128 = [self.planes, self.pages_per_block, self.sectors_per_page]
            .iter()
            .map(|v| *v as u128)
            .product();
        let chunks: u128 = [self.channels, self.pus_per_channel, self.chunks_per_pu]
            .iter()
            .map(|v| *v as u128)
            .product();
        if chunk * chunks > 1 << 40 || chunk > u32::MAX as u128 || chunks > u32::MAX as u128 {
            return Err(GeometryError::TooLarge(chunk.saturating_mul(chunks)));
        }
        let fits =
            self.ws_opt.is_multiple_of(self.ws_min) && chunk.is_multiple_of(self.ws_opt as u128);
        if !fits {
            return Err(GeometryError::WriteSize {
                ws_min: self.ws_min,
                ws_opt: self.ws_opt,
                chunk: chunk as u64,
            });
        }
        if !self.mw_cunits.is_multiple_of(self.ws_min) || self.mw_cunits as u128 >= chunk {
            return Err(GeometryError::Window(self.mw_cunits));
        }
        Ok(())
    }
}
