//! A range of a device's PUs, or of the chunks on them, as a device of its own.
//!
//! Owns: [`Partition`], the translation of addresses. Promises: a target's PUs and chunks count from
//! 0; no address of a target reaches a chunk outside it; a target over the whole device costs nothing.
//! Never: changes the caller's list (it translates a copy, so there is nothing to restore).

use crate::device::{Breakdown, ChunkInfo, Completion, Device, Request, Status, Ticket, Traits};
use flashlane_base::{Geometry, Location, Ns, Ppa, PpaFormat, VECTOR_MAX};
use flashlane_rt::Cx;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

/// Tickets of commands that a closed partition answered itself; the low bits count addresses.
const CLOSED: u64 = u64::MAX - 127;
/// Names nothing on any device: geometries stay below 2^48 sectors.
const NOWHERE: Ppa = Ppa(u64::MAX);

/// A range of PUs, and of the chunks on each of them.
pub struct Partition {
    device: Arc<dyn Device>,
    begin: u32,
    end: u32,
    first_chunk: u32,
    geo: Geometry,
    format: PpaFormat,
    /// Bits that are alike in both layouts: those below the PU's, or below the chunk's.
    low_bits: u32,
    whole: bool,
    balanced: bool,
    closed: AtomicBool,
    in_flight: AtomicU64,
}

impl Partition {
    /// PUs `begin..=end` of `device`, which must exist.
    pub fn new(device: Arc<dyn Device>, begin: u32, end: u32) -> Partition {
        let last = device.geometry().chunks_per_pu - 1;
        Partition::of_chunks(device, (begin, end), (0, last))
    }

    /// Chunks `first..=last` of each of the PUs `begin..=end` of `device`, which must exist.
    pub fn of_chunks(
        device: Arc<dyn Device>,
        (begin, end): (u32, u32),
        (first_chunk, last_chunk): (u32, u32),
    ) -> Partition {
        let all = *device.geometry();
        assert!(begin <= end && end < all.pus(), "PUs {begin} to {end}");
        let chunks = first_chunk <= last_chunk && last_chunk < all.chunks_per_pu;
        assert!(chunks, "chunks {first_chunk} to {last_chunk}");
        let channels = channel_counts(&all, begin, end);
        let balanced = channels.iter().all(|n| *n == channels[0]);
        // Uneven channels have no shape in a geometry: the PUs are listed as one, and
        // `Partition::channels` tells which of them share a bus.
        let (channels, pus) = match balanced {
            true => (channels.len() as u32, channels[0]),
            false => (1, end - begin + 1),
        };
        let chunks_per_pu = last_chunk - first_chunk + 1;
        let geo = Geometry { channels, pus_per_channel: pus, chunks_per_pu, ..all };
        let style = device.format().style();
        let fields = device.format().fields();
        let above: &[&str] = match chunks_per_pu == all.chunks_per_pu {
            true => &["pu", "group", "channel"],
            false => &["chunk", "block", "pu", "group", "channel"],
        };
        Partition {
            low_bits: fields
                .iter()
                .filter(|(name, _)| !above.contains(name))
                .map(|(_, bits)| bits)
                .sum(),
            format: PpaFormat::new(style, &geo),
            whole: geo == all,
            geo,
            begin,
            end,
            first_chunk,
            balanced,
            device,
            closed: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
        }
    }

    /// First and last PU on the device.
    pub fn range(&self) -> (u32, u32) {
        (self.begin, self.end)
    }

    /// First and last chunk of each PU on the device.
    pub fn chunks(&self) -> (u32, u32) {
        (self.first_chunk, self.first_chunk + self.geo.chunks_per_pu - 1)
    }

    /// Every channel that the range touches has the same number of its PUs.
    pub fn balanced(&self) -> bool {
        self.balanced
    }

    /// The PUs by the channel they hang on, numbered as this device numbers them: what shares a
    /// bus, even where the geometry cannot say it.
    pub fn channels(&self) -> Vec<Vec<u32>> {
        let all = self.device.geometry();
        let mut out: Vec<Vec<u32>> = Vec::new();
        let mut last = None;
        for pu in self.begin..=self.end {
            let channel = all.channel_of(pu);
            if last != Some(channel) {
                out.push(Vec::new());
                last = Some(channel);
            }
            if let Some(list) = out.last_mut() {
                list.push(pu - self.begin);
            }
        }
        out
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Commands under way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// From now on every command fails; those under way go on.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// An address of this device as the device below knows it.
    pub fn translate(&self, ppa: Ppa) -> Ppa {
        match self.format.unpack(ppa) {
            Some(Location { pu, chunk, sector }) => {
                let (pu, chunk) = (pu + self.begin, chunk + self.first_chunk);
                self.device.format().pack(Location { pu, chunk, sector })
            }
            None => NOWHERE,
        }
    }

    /// The reverse: `None` for what belongs to others.
    pub fn translate_back(&self, ppa: Ppa) -> Option<Ppa> {
        let Location { pu, chunk, sector } = self.device.format().unpack(ppa)?;
        let (pu, chunk) = (pu.checked_sub(self.begin)?, chunk.checked_sub(self.first_chunk)?);
        let ours = pu <= self.end - self.begin && chunk < self.geo.chunks_per_pu;
        ours.then(|| self.format.pack(Location { pu, chunk, sector }))
    }

    /// Translates a list. Neighbours share what is translated: once serves the run.
    fn translate_all(&self, from: &[Ppa], to: &mut [Ppa; VECTOR_MAX]) {
        let low = (1u64 << self.low_bits) - 1;
        let mut known = None;
        for (ppa, place) in from.iter().zip(to) {
            let high = ppa.0 & !low;
            *place = match known {
                Some((of, is)) if of == high => Ppa(is | ppa.0 & low),
                _ => {
                    let there = self.translate(*ppa);
                    if there != NOWHERE {
                        known = Some((high, there.0 & !low));
                    }
                    there
                }
            };
        }
    }
}

/// PUs of the range on each channel that it touches.
fn channel_counts(all: &Geometry, begin: u32, end: u32) -> Vec<u32> {
    let (first, last) = (all.channel_of(begin), all.channel_of(end));
    (first..=last)
        .map(|channel| {
            let from = begin.max(channel * all.pus_per_channel);
            let to = end.min((channel + 1) * all.pus_per_channel - 1);
            to - from + 1
        })
        .collect()
}

impl Device for Partition {
    fn geometry(&self) -> &Geometry {
        &self.geo
    }

    fn format(&self) -> &PpaFormat {
        &self.format
    }

    fn traits(&self) -> &Traits {
        self.device.traits()
    }

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        if self.closed.load(Ordering::Acquire) {
            let n = request.addrs.len().clamp(1, VECTOR_MAX) as u64;
            return Ticket { id: CLOSED + n, ask_at: cx.now() };
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        if self.whole || request.addrs.len() > VECTOR_MAX {
            // Too long a list is the device's to refuse, whatever it names.
            return self.device.submit_at(cx, request, arrives);
        }
        let mut there = [Ppa(0); VECTOR_MAX];
        self.translate_all(request.addrs, &mut there);
        let request = Request { addrs: &there[..request.addrs.len()], ..request };
        self.device.submit_at(cx, request, arrives)
    }

    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        if ticket.id > CLOSED {
            return Poll::Ready(gone(cx.now(), (ticket.id - CLOSED) as usize));
        }
        let polled = self.device.finish(cx, ticket);
        if polled.is_ready() {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
        polled
    }

    fn expect(&self, first: Ppa, n: u32) {
        self.device.expect(if self.whole { first } else { self.translate(first) }, n);
    }

    fn chunk_report(&self, pu: u32, first: u32, count: u32) -> Vec<ChunkInfo> {
        let chunks = self.geo.chunks_per_pu;
        match pu <= self.end - self.begin && first < chunks {
            true => {
                let count = count.min(chunks - first);
                self.device.chunk_report(pu + self.begin, first + self.first_chunk, count)
            }
            false => Vec::new(),
        }
    }
}

/// What a removed target answers.
fn gone(now: Ns, addresses: usize) -> Completion {
    Completion {
        failed: u64::MAX >> (VECTOR_MAX - addresses.clamp(1, VECTOR_MAX)),
        status: vec![Status::InvalidField; addresses],
        finished: now,
        breakdown: Breakdown::default(),
    }
}
