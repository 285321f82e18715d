//! What is exported: a block device in bytes.
//!
//! Owns: bytes against sectors, what is too long for one request below, zeros, what a failure is called.
//! Promises: a request is whole 4096-byte sectors inside the device, or is refused before anything is
//! done; a discarded and a zeroed range read as zeros; a flush covers what was acknowledged before it,
//! to whichever client. Never: keeps a request.

use flashlane_base::{Lba, SECTOR_BYTES, mutant};
use flashlane_ftl::block::{
    BlockDev, BlockError, BlockOp, BlockResult, Extent, Hint, Io, Payload, Sectors,
};
use flashlane_rt::Cx;
use std::io::IoSlice;
use std::sync::Arc;

/// Longest read or write of one request below; a longer one goes in pieces.
const PIECE_SECTORS: usize = (16 << 20) / SECTOR_BYTES;
/// Zeros that are written again and again.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Why a request failed, for a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("not a multiple of 4096 bytes")]
    Unaligned,
    #[error("beyond the end of the device")]
    Beyond,
    #[error("{0}")]
    Device(BlockError),
}

/// A device that clients may use.
pub struct Export {
    /// By which clients ask for it.
    pub name: String,
    device: Arc<dyn BlockDev>,
}

impl Export {
    /// # Panics
    /// The device keeps stamps in place of contents.
    pub fn new(name: &str, device: Arc<dyn BlockDev>) -> Export {
        assert_eq!(device.info().content_bytes, SECTOR_BYTES, "clients want their contents back");
        Export { name: name.into(), device }
    }

    pub fn bytes(&self) -> u64 {
        self.device.info().capacity * SECTOR_BYTES as u64
    }

    /// First sector, and how many.
    ///
    /// # Errors
    /// The range is no whole sectors of this device.
    pub(crate) fn sectors(&self, offset: u64, bytes: u64) -> Result<(u64, u32), Failure> {
        let sector = SECTOR_BYTES as u64;
        if !offset.is_multiple_of(sector) || !bytes.is_multiple_of(sector) {
            return Err(Failure::Unaligned);
        }
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes());
        end.ok_or(Failure::Beyond)?;
        let sectors = u32::try_from(bytes / sector).map_err(|_| Failure::Beyond)?;
        Ok((offset / sector, sectors))
    }

    /// Reads sectors from `lba` on.
    pub(crate) async fn read(&self, cx: &Cx, lba: u64, to: &mut [u8]) -> BlockResult {
        for (lba, piece) in pieces(lba).zip(to.chunks_mut(PIECE_SECTORS * SECTOR_BYTES)) {
            let sectors = (piece.len() / SECTOR_BYTES) as u32;
            self.device.start(cx, Io::read(lba, sectors, piece)).await?;
        }
        Ok(())
    }

    /// Writes sectors from `lba` on; with `fua` they are durable at the end.
    pub(crate) async fn write(&self, cx: &Cx, lba: u64, from: &[u8], fua: bool) -> BlockResult {
        let fua = fua && !mutant!("serve.fua-ignored");
        for (lba, piece) in pieces(lba).zip(from.chunks(PIECE_SECTORS * SECTOR_BYTES)) {
            let sectors = (piece.len() / SECTOR_BYTES) as u32;
            self.device.start(cx, Io::write(lba, sectors, fua, piece)).await?;
        }
        Ok(())
    }

    /// The content of sectors is not needed any more; they read as zeros.
    pub(crate) async fn discard(&self, cx: &Cx, lba: u64, sectors: u32) -> BlockResult {
        self.device.start(cx, Io::discard(Lba::new(lba), sectors)).await
    }

    /// Sectors read as zeros, and have a place on the medium.
    pub(crate) async fn write_zeros(&self, cx: &Cx, lba: u64, sectors: u32) -> BlockResult {
        let (mut lba, end) = (lba, lba + u64::from(sectors));
        let each = ZEROS.len() / SECTOR_BYTES;
        let all = [IoSlice::new(&ZEROS); PIECE_SECTORS * SECTOR_BYTES / ZEROS.len()];
        while lba < end {
            // Whole pieces of zeros as long as there are, and then what is left of one.
            let left = (end - lba) as usize;
            let payload = match (left / each).min(all.len()) {
                0 => Sectors::One(&ZEROS[..left * SECTOR_BYTES]),
                n => Sectors::Many(&all[..n]),
            };
            let sectors = if left < each { left } else { (left / each).min(all.len()) * each };
            let (op, hint, payload) = (BlockOp::Write, Hint::default(), Payload::Write(payload));
            let at = Lba::new(lba);
            let io = Io { op, lba: at, sectors: sectors as u32, fua: false, hint, payload };
            self.device.start(cx, io).await?;
            lba += sectors as u64;
        }
        Ok(())
    }

    /// How many of `most` sectors from `lba` on are alike, and whether they hold anything.
    pub(crate) fn extent(&self, lba: u64, most: u64) -> Extent {
        self.device.extent(Lba::new(lba), most)
    }

    /// Everything acknowledged so far becomes durable.
    pub(crate) async fn flush(&self, cx: &Cx) -> BlockResult {
        if mutant!("serve.flush-at-once") {
            return Ok(());
        }
        self.device.start(cx, Io::flush()).await
    }
}

/// Where pieces begin.
fn pieces(lba: u64) -> impl Iterator<Item = Lba> {
    (lba..).step_by(PIECE_SECTORS).map(Lba::new)
}
