//! Reads: from memory what the medium can't give back yet, the rest from the medium.
//!
//! Owns: waiting for programs, pinning, reading, verifying, trying again. Promises: every sector is
//! the one asked for, by its own record (segment, sector, generation, CRC), or is named by the error
//! and handed out as zeros; the others are good; a segment that is read is not erased. Never: changes
//! the map.

use super::map::{Map, Phase};
use super::{Sftl, SftlError, TRIES};
use crate::block::SectorsMut;
use crate::kit;
use crate::log::format::Oob;
use flashlane_base::{Location, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Completion, Flags, InFlight, Request, Status};
use flashlane_rt::Cx;
use smallvec::SmallVec;
use std::ops::Range;

/// A read command and what its memory said at submit.
struct Part<'a> {
    flight: InFlight<'a>,
    /// Bit `i`: the content of address `i` is not what its record says.
    mismatch: u64,
}

/// Where the sectors of a read lie, and what their records must be.
#[derive(Clone, Copy)]
struct Place {
    chunk: Location,
    /// Sector of the segment that is the first of the request.
    first: u32,
    /// Number of the segment's first sector.
    base: u64,
    generation: u64,
}

impl Sftl {
    /// Reads sectors below the write pointer, as many as `into` has room for, of 4096 bytes each with
    /// `whole`, else of `content_bytes`: as they were appended. Padding reads as zeros.
    ///
    /// # Errors
    /// [`SftlError::Uncorrectable`] names exactly the sectors that could not be read.
    pub async fn read(
        &self,
        cx: &Cx,
        channel: u32,
        segment: u32,
        first_sector: u32,
        mut into: SectorsMut<'_>,
        whole: bool,
    ) -> Result<(), SftlError> {
        let unit = if whole { flashlane_base::SECTOR_BYTES } else { self.info.content_bytes };
        let bytes: usize = match &into {
            SectorsMut::One(bytes) => bytes.len(),
            SectorsMut::Many(pieces) => pieces.iter().map(|p| p.len()).sum(),
        };
        let (at, n) = ((channel, segment), (bytes / unit) as u32);
        if !into.are(n, unit) {
            return Err(self.invalid(at, first_sector, n, "its memory is no whole sectors"));
        }
        let end = first_sector.saturating_add(n);
        self.check_read(&self.map.lock(), at, first_sector, n)?;
        let landed = || {
            let map = self.map.lock();
            map.segment(channel, segment).is_none_or(|s| !s.is_flying(first_sector, end))
        };
        self.changed.wait(cx, landed).await;
        let mut wanted: SmallVec<[u32; VECTOR_MAX]> = SmallVec::new();
        let place = {
            let mut map = self.map.lock();
            // It may have failed, or been trimmed, meanwhile.
            self.check_read(&map, at, first_sector, n)?;
            if n == 0 {
                return Ok(());
            }
            map.stats.host_read += u64::from(n);
            let (_, block) = map.block_of(channel, segment);
            let s = map.segment_mut(channel, segment);
            let (mut kept, mut padding) = (0, 0);
            for i in 0..n {
                let sector = first_sector + i;
                let room = into.sector(i, unit);
                if s.is_padding(sector) {
                    room.fill(0);
                    padding += 1;
                } else if let Some(content) = s.window.get(sector).filter(|c| c.len() == unit) {
                    room.copy_from_slice(content);
                    kept += 1;
                } else {
                    wanted.push(i);
                }
            }
            s.readers += 1;
            let generation = s.generation;
            map.stats.read_from_buffer += kept;
            map.stats.read_unmapped += padding;
            let base = self.info.number(channel, segment) * u64::from(self.info.segment_sectors);
            let chunk = Location { pu: block.pu, chunk: block.chunk, sector: 0 };
            Place { chunk, first: first_sector, base, generation }
        };
        let lost = self.read_medium(cx, &place, wanted, &mut into, whole).await;
        {
            let mut map = self.map.lock();
            map.stats.read_failures += lost.len() as u64;
            map.segment_mut(channel, segment).readers -= 1;
        }
        self.changed.wake(cx);
        if lost.is_empty() {
            return Ok(());
        }
        lost.iter().for_each(|i| into.sector(*i, unit).fill(0));
        let sectors = ranges(lost.iter().map(|i| first_sector + i));
        Err(SftlError::Uncorrectable { channel, segment, sectors })
    }

    /// Reads these sectors of the request, again where it fails; those that could not be read.
    async fn read_medium(
        &self,
        cx: &Cx,
        place: &Place,
        mut wanted: SmallVec<[u32; VECTOR_MAX]>,
        into: &mut SectorsMut<'_>,
        whole: bool,
    ) -> SmallVec<[u32; VECTOR_MAX]> {
        let mut gone: SmallVec<[u32; VECTOR_MAX]> = SmallVec::new();
        for _ in 0..TRIES {
            let parts: SmallVec<[Part<'_>; 2]> = wanted
                .chunks(VECTOR_MAX)
                .map(|part| self.submit_read(cx, place, part, into, whole))
                .collect();
            let mut again = SmallVec::new();
            for (part, sectors) in parts.into_iter().zip(wanted.chunks(VECTOR_MAX)) {
                let done: Completion = part.flight.await;
                let mut map = self.map.lock();
                map.stats.read_breakdown += done.breakdown;
                for (i, sector) in sectors.iter().enumerate() {
                    let status = done.status(i);
                    map.stats.high_ecc += u64::from(status == Status::HighEcc);
                    let fits = part.mismatch >> i & 1 == 0 || mutant!("sftl.read-unverified");
                    match status {
                        status if status.is_ok() && fits => {}
                        Status::Ok | Status::HighEcc | Status::Uncorrectable => again.push(*sector),
                        _ => gone.push(*sector),
                    }
                }
            }
            wanted = again;
            if wanted.is_empty() {
                break;
            }
        }
        gone.extend(wanted);
        gone.sort_unstable();
        gone
    }

    fn submit_read<'a>(
        &'a self,
        cx: &'a Cx,
        place: &Place,
        sectors: &[u32],
        into: &mut SectorsMut<'_>,
        whole: bool,
    ) -> Part<'a> {
        let unit = if whole { flashlane_base::SECTOR_BYTES } else { self.info.content_bytes };
        let device = self.device();
        let format = device.format();
        let chunk = format.pack(place.chunk);
        let mut addrs = [Ppa(0); VECTOR_MAX];
        let mut oob = [[0; OOB_BYTES]; VECTOR_MAX];
        let n = sectors.len();
        for (addr, sector) in addrs.iter_mut().zip(sectors) {
            *addr = format.in_chunk(chunk, place.first + sector);
        }
        let content = into.scatter(sectors, unit);
        let request = Request::read(&addrs[..n], content, &mut oob[..n]);
        let flight = device.io(cx, request.with(Flags::READ).whole(whole));
        let mut mismatch = 0;
        for (i, sector) in sectors.iter().enumerate() {
            let (lba, generation, _) = Oob::decode_raw(&oob[i]);
            let is_ours = lba == place.base + u64::from(place.first + sector)
                && generation == place.generation;
            let crc = kit::content_crc(into.sector(*sector, unit));
            mismatch |= u64::from(!(is_ours && Oob::verify_crc(&oob[i], crc))) << i;
        }
        Part { flight, mismatch }
    }

    fn check_read(&self, map: &Map, at: (u32, u32), first: u32, n: u32) -> Result<(), SftlError> {
        let Some(s) = map.segment(at.0, at.1) else {
            return Err(self.invalid(at, first, n, "there is no such segment"));
        };
        match s.phase {
            Phase::Trimming => Err(self.invalid(at, first, n, "it is being erased")),
            _ if first.saturating_add(n) > s.pointer() => {
                Err(self.invalid(at, first, n, "a read ends at the write pointer"))
            }
            _ => Ok(()),
        }
    }
}

/// Numbers in order, as ranges.
fn ranges(numbers: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut all: Vec<Range<u32>> = Vec::new();
    for n in numbers {
        match all.last_mut() {
            Some(last) if last.end == n => last.end += 1,
            _ => all.push(n..n + 1),
        }
    }
    all
}
