//! A stream of writes on chosen PUs: application-managed flash (L4).
//!
//! Owns: [`Stream`], the open chunks of one stream and its stock of free ones. Promises: units go
//! round its PUs, each to the chunk open there, and to no other PU; a chunk that fails is left and
//! the unit goes to the next one. Never: erases by itself, moves data or keeps a map; the caller
//! says which chunks are free again.

use crate::device::{Cause, ChunkState, Device, Gather, Op, Request, Status};
use flashlane_base::{Location, OOB_BYTES, Ppa, VECTOR_MAX};
use flashlane_rt::Cx;
use std::collections::VecDeque;
use std::sync::Arc;

/// Why a stream could not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// No PUs, a PU twice, or one that the device has not.
    #[error("PU {0} is listed twice or is none of the device's")]
    Pu(u32),
    /// No free chunk is left on any of the stream's PUs.
    #[error("no free chunk is left on the stream's {pus} PUs; erase some and give them back")]
    Full { pus: usize },
    #[error("{0} sectors are not 1 to 64 sectors in whole write units")]
    Length(usize),
}

/// What a PU of a stream has.
struct Lane {
    pu: u32,
    /// Open chunk, next sector, length.
    open: Option<(u32, u32, u32)>,
    free: VecDeque<u32>,
}

/// Where a unit is going: its addresses and the lane that gave them.
struct Placed {
    addrs: Vec<Ppa>,
    lanes: Vec<usize>,
}

/// Writes in order over chosen PUs.
pub struct Stream {
    device: Arc<dyn Device>,
    lanes: Vec<Lane>,
    next: usize,
    unit: u32,
}

impl Stream {
    /// A stream over these PUs, on the chunks that are free now.
    pub fn on_pus(device: Arc<dyn Device>, pus: &[u32]) -> Result<Stream, StreamError> {
        let geo = *device.geometry();
        let mut lanes: Vec<Lane> = Vec::new();
        for pu in pus {
            if *pu >= geo.pus() || lanes.iter().any(|l| l.pu == *pu) {
                return Err(StreamError::Pu(*pu));
            }
            let report = device.chunk_report(*pu, 0, geo.chunks_per_pu);
            let chunks = report.iter().zip(0u32..);
            let free = chunks.filter(|(c, _)| c.state == ChunkState::Free);
            lanes.push(Lane { pu: *pu, open: None, free: free.map(|(_, i)| i).collect() });
        }
        if lanes.is_empty() {
            return Err(StreamError::Pu(0));
        }
        Ok(Stream { device, lanes, next: 0, unit: geo.ws_opt })
    }

    /// A stream over all PUs of a channel.
    pub fn on_channel(device: Arc<dyn Device>, channel: u32) -> Result<Stream, StreamError> {
        let per = device.geometry().pus_per_channel;
        let pus: Vec<u32> = (channel.saturating_mul(per)..).take(per as usize).collect();
        Stream::on_pus(device, &pus)
    }

    /// Sectors of one unit: what goes to one PU at a time.
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// A chunk was erased by the caller and may be used again. Others' PUs are ignored.
    pub fn give_back(&mut self, pu: u32, chunk: u32) {
        if let Some(lane) = self.lanes.iter_mut().find(|l| l.pu == pu) {
            lane.free.push_back(chunk);
        }
    }

    /// The next unit's lane; opens a chunk where none is open.
    fn lane(&mut self) -> Result<usize, StreamError> {
        for _ in 0..self.lanes.len() {
            let i = self.next;
            self.next = (self.next + 1) % self.lanes.len();
            let lane = &mut self.lanes[i];
            if lane.open.is_none()
                && let Some(chunk) = lane.free.pop_front()
            {
                let report = self.device.chunk_report(lane.pu, chunk, 1);
                let length = report.first().map_or(0, |c| c.length);
                lane.open = Some((chunk, 0, length));
            }
            if lane.open.is_some() {
                return Ok(i);
            }
        }
        Err(StreamError::Full { pus: self.lanes.len() })
    }

    fn place(&mut self, units: usize) -> Result<Placed, StreamError> {
        let mut placed = Placed {
            addrs: Vec::with_capacity(units * self.unit as usize),
            lanes: Vec::with_capacity(units),
        };
        for _ in 0..units {
            let i = self.lane()?;
            let lane = &mut self.lanes[i];
            let Some((chunk, sector, length)) = lane.open else {
                continue;
            };
            let pu = lane.pu;
            let at = (sector..sector + self.unit).map(|sector| Location { pu, chunk, sector });
            let format = self.device.format();
            placed.addrs.extend(at.map(|at| format.pack(at)));
            placed.lanes.push(i);
            let end = sector + self.unit;
            lane.open = (end + self.unit <= length).then_some((chunk, end, length));
        }
        Ok(placed)
    }

    /// Writes whole units, 64 sectors at most, and says where each sector is. A unit that the
    /// medium refuses is written again elsewhere, until the stream is full.
    pub async fn append(
        &mut self,
        cx: &Cx,
        content: Gather<'_>,
        oob: &[[u8; OOB_BYTES]],
        cause: &[Cause],
    ) -> Result<Vec<Ppa>, StreamError> {
        let (n, unit) = (content.index().len(), self.unit as usize);
        let whole = n != 0 && n <= VECTOR_MAX && n.is_multiple_of(unit);
        if !whole || oob.len() < n || cause.len() < n {
            return Err(StreamError::Length(n));
        }
        let mut places = vec![Ppa(0); n];
        let mut left: Vec<usize> = (0..n / unit).collect();
        while !left.is_empty() {
            let placed = self.place(left.len())?;
            let sectors: Vec<usize> = left.iter().flat_map(|u| u * unit..(u + 1) * unit).collect();
            let index: Vec<u32> = sectors.iter().map(|s| content.index()[*s]).collect();
            let records: Vec<_> = sectors.iter().map(|s| oob[*s]).collect();
            let causes: Vec<_> = sectors.iter().map(|s| cause[*s]).collect();
            let content = content.with(&index);
            let request = Request::write(&placed.addrs, content, &records, &causes);
            let done = self.device.io(cx, request).await;
            let mut again = Vec::new();
            for (k, u) in left.iter().enumerate() {
                let mine = k * unit..(k + 1) * unit;
                let failed = mine.clone().find(|i| done.status(*i) != Status::Ok);
                if let Some(i) = failed {
                    self.leave(placed.lanes[k], placed.addrs[i], done.status(i));
                    again.push(*u);
                }
                places[u * unit..(u + 1) * unit].copy_from_slice(&placed.addrs[mine]);
            }
            left = again;
        }
        Ok(places)
    }

    /// A chunk that failed is left as it is, unless it only lost one unit.
    fn leave(&mut self, lane: usize, at: Ppa, status: Status) {
        let failed = self.device.format().unpack(at).map(|at| at.chunk);
        let open = &mut self.lanes[lane].open;
        if status != Status::WriteNextUnit && open.map(|(chunk, ..)| chunk) == failed {
            *open = None;
        }
    }

    /// Erases a chunk of this stream's PUs and takes it back when that worked.
    pub async fn erase(&mut self, cx: &Cx, pu: u32, chunk: u32) -> Status {
        let at = Location { pu, chunk, sector: 0 };
        let geo = self.device.geometry();
        if pu >= geo.pus() || chunk >= geo.chunks_per_pu {
            return Status::InvalidAddress;
        }
        let addrs = [self.device.format().pack(at)];
        let done = self.device.io(cx, Request::plain(Op::Reset, &addrs)).await;
        if done.status(0) == Status::Ok {
            self.give_back(pu, chunk);
        }
        done.status(0)
    }
}
