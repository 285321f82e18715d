//! The physical address space by plain sector numbers: read, write, trim.
//!
//! Owns: the order of sectors and the split into vector commands. Promises: the sectors of a chunk
//! are neighbours and chunks follow each other PU by PU, so that the numbers of a block are one
//! range and a trim of it is its erase (LightNVM paper 3.1). The rules of the medium hold: writes
//! in order, whole write units, trims of whole chunks. Never: remaps anything.

use crate::device::{Cause, Completion, Device, Gather, Op, Request, Scatter, Status};
use flashlane_base::{Lba, Location, OOB_BYTES, Ppa, VECTOR_MAX};
use flashlane_rt::Cx;
use std::sync::Arc;

/// Why a scalar request did not do all it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScalarError {
    #[error("{sectors} sectors at {lba} are not within the {capacity} of the device")]
    Range { lba: Lba, sectors: u64, capacity: u64 },
    #[error("a buffer of {bytes} bytes, where the request takes {expected}")]
    Buffer {
        bytes: usize,
        /// Sectors × content bytes per sector.
        expected: usize,
    },
    #[error("a trim of {sectors} sectors at {lba}: chunks of {chunk_sectors} are trimmed whole")]
    Partial { lba: Lba, sectors: u64, chunk_sectors: u32 },
    /// The device refused or failed a sector; those of later commands were not tried.
    #[error("sector {lba}: {status:?}")]
    Device { lba: Lba, status: Status },
}

/// A device by sector numbers.
pub struct Scalar {
    device: Arc<dyn Device>,
}

impl Scalar {
    /// Over a device or a target's part of one.
    pub fn new(device: Arc<dyn Device>) -> Scalar {
        Scalar { device }
    }

    /// Sectors of 4 KiB, bad chunks and metadata of nobody included.
    pub fn capacity(&self) -> u64 {
        self.device.geometry().sectors()
    }

    /// The address of a sector, `None` outside the device.
    pub fn address(&self, lba: Lba) -> Option<Ppa> {
        let geo = self.device.geometry();
        let per_chunk = geo.sectors_per_chunk() as u64;
        let (chunk, sector) = (lba.get() / per_chunk, (lba.get() % per_chunk) as u32);
        let (pu, chunk) = (chunk / geo.chunks_per_pu as u64, chunk % geo.chunks_per_pu as u64);
        let at = Location { pu: u32::try_from(pu).ok()?, chunk: chunk as u32, sector };
        (at.pu < geo.pus()).then(|| self.device.format().pack(at))
    }

    /// Reads sectors into `buf` (content bytes per sector: `Traits::content_bytes`).
    pub async fn read(&self, cx: &Cx, lba: Lba, buf: &mut [u8]) -> Result<(), ScalarError> {
        let unit = self.device.traits().content_bytes;
        let n = self.check(lba, buf.len())?;
        let mut done = 0;
        while done < n {
            let addrs = self.vector(lba, done, n);
            let bytes = &mut buf[done as usize * unit..][..addrs.len() * unit];
            let index: Vec<u32> = (0..addrs.len() as u32).collect();
            let mut oob = vec![[0; OOB_BYTES]; addrs.len()];
            let content = Scatter::new(bytes, &index, unit);
            let ended = self.device.io(cx, Request::read(&addrs, content, &mut oob)).await;
            done = self.check_ended(lba, done, addrs.len(), &ended)?;
        }
        Ok(())
    }

    /// Writes sectors: at the write pointer of their chunks, whole write units.
    pub async fn write(&self, cx: &Cx, lba: Lba, buf: &[u8]) -> Result<(), ScalarError> {
        let unit = self.device.traits().content_bytes;
        let n = self.check(lba, buf.len())?;
        let mut done = 0;
        while done < n {
            let addrs = self.vector(lba, done, n);
            let bytes = &buf[done as usize * unit..][..addrs.len() * unit];
            let index: Vec<u32> = (0..addrs.len() as u32).collect();
            let oob = vec![[0xff; OOB_BYTES]; addrs.len()];
            let cause = vec![Cause::User; addrs.len()];
            let content = Gather::new(bytes, &index, unit);
            let ended = self.device.io(cx, Request::write(&addrs, content, &oob, &cause)).await;
            done = self.check_ended(lba, done, addrs.len(), &ended)?;
        }
        Ok(())
    }

    /// Erases the chunks that the sectors are.
    pub async fn trim(&self, cx: &Cx, lba: Lba, sectors: u64) -> Result<(), ScalarError> {
        self.check_range(lba, sectors)?;
        let chunk_sectors = self.device.geometry().sectors_per_chunk();
        let per_chunk = chunk_sectors as u64;
        let whole = |n: u64| n.is_multiple_of(per_chunk);
        if !whole(lba.get()) || !whole(sectors) {
            return Err(ScalarError::Partial { lba, sectors, chunk_sectors });
        }
        let starts: Vec<u64> =
            (lba.get()..lba.get() + sectors).step_by(per_chunk as usize).collect();
        for part in starts.chunks(VECTOR_MAX) {
            let addrs: Vec<Ppa> = part.iter().filter_map(|s| self.address(Lba::new(*s))).collect();
            let ended = self.device.io(cx, Request::plain(Op::Reset, &addrs)).await;
            if let Some(i) = (0..part.len()).find(|i| !ended.status(*i).is_ok()) {
                return Err(ScalarError::Device {
                    lba: Lba::new(part[i]),
                    status: ended.status(i),
                });
            }
        }
        Ok(())
    }

    fn check_range(&self, lba: Lba, sectors: u64) -> Result<(), ScalarError> {
        let capacity = self.capacity();
        let inside = lba.get() <= capacity && sectors <= capacity - lba.get();
        if inside { Ok(()) } else { Err(ScalarError::Range { lba, sectors, capacity }) }
    }

    /// Sectors of a buffer that fits the device at `lba`.
    fn check(&self, lba: Lba, bytes: usize) -> Result<u64, ScalarError> {
        let unit = self.device.traits().content_bytes;
        let sectors = (bytes / unit) as u64;
        if !bytes.is_multiple_of(unit) {
            return Err(ScalarError::Buffer { bytes, expected: sectors as usize * unit });
        }
        self.check_range(lba, sectors).map(|()| sectors)
    }

    /// Addresses of the next command: no further than the end of a chunk.
    fn vector(&self, lba: Lba, done: u64, n: u64) -> Vec<Ppa> {
        let per_chunk = self.device.geometry().sectors_per_chunk() as u64;
        let from = lba.get() + done;
        let end =
            (lba.get() + n).min((from / per_chunk + 1) * per_chunk).min(from + VECTOR_MAX as u64);
        (from..end).filter_map(|s| self.address(Lba::new(s))).collect()
    }

    /// Sectors done so far, or the first that failed.
    fn check_ended(
        &self,
        lba: Lba,
        done: u64,
        n: usize,
        c: &Completion,
    ) -> Result<u64, ScalarError> {
        match (0..n).find(|i| !c.status(*i).is_ok()) {
            None => Ok(done + n as u64),
            Some(i) => {
                let at = Lba::new(lba.get() + done + i as u64);
                Err(ScalarError::Device { lba: at, status: c.status(i) })
            }
        }
    }
}
