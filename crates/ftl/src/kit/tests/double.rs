//! A device that is nothing but the rules: no timing model, no wear, faults by script.
//!
//! Owns: chunks with write pointers, 8 bytes of content per sector, one time per operation and PU.
//! Promises: refuses and counts every violation as the emulated device does; a scripted fault hits
//! the command with its number. Never: used outside these tests; it is here so that they can choose
//! times of zero and single faults.

use flashlane_base::{Geometry, Location, Ns, Ppa, PpaFormat, PpaStyle};
use flashlane_ocssd::device::*;
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;
use std::task::Poll;

#[derive(Clone)]
struct Chunk {
    state: ChunkState,
    erases: u32,
    sectors: Vec<([u8; 8], [u8; 16])>,
}

/// What goes wrong, by the number of the command of its kind, counted from 0.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) programs: BTreeMap<u64, Status>,
    pub(crate) erases: BTreeMap<u64, ()>,
    /// Reads of these addresses fail.
    pub(crate) reads: Vec<Ppa>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) violations: Vec<String>,
    pub(crate) programmed: [u64; flashlane_ocssd::device::CAUSES_MAX],
    pub(crate) erases: u64,
    pub(crate) programs: u64,
    open: i64,
    pub(crate) open_most: i64,
}

struct Inner {
    chunks: Vec<Chunk>,
    script: Script,
    seen: Seen,
    free_at: Vec<u64>,
    done: BTreeMap<u64, Completion>,
    next: u64,
}

pub(crate) struct Double {
    geo: Geometry,
    format: PpaFormat,
    traits: Traits,
    /// (read, program, erase).
    times: (u64, u64, u64),
    inner: Mutex<Inner>,
}

impl Double {
    pub(crate) fn new(geo: Geometry, times: (u64, u64, u64), script: Script) -> Double {
        geo.check().expect("test geometry");
        let chunk = Chunk { state: ChunkState::Free, erases: 0, sectors: Vec::new() };
        Double {
            geo,
            format: PpaFormat::new(PpaStyle::V20, &geo),
            traits: Traits {
                pair_damage: false,
                pair_sectors: 0,
                content_bytes: 8,
                max_open: (0, 0),
                dulbe: true,
                volatile: false,
                buffered: false,
                slc: None,
                reset_open: true,
                typical: (Ns::ZERO, Ns::ZERO, Ns::ZERO),
            },
            times,
            inner: Mutex::new(Inner {
                chunks: vec![chunk; geo.chunks() as usize],
                script,
                seen: Seen::default(),
                free_at: vec![0; geo.pus() as usize],
                done: BTreeMap::new(),
                next: 0,
            }),
        }
    }

    pub(crate) fn with_open_limits(mut self, device: u32, per_pu: u32) -> Double {
        self.traits.max_open = (device, per_pu);
        self
    }

    /// A torn program takes those up to so many sectors before it along.
    pub(crate) fn with_pairs(mut self, sectors: u32) -> Double {
        (self.traits.pair_damage, self.traits.pair_sectors) = (true, sectors);
        self
    }

    /// The host of an image can't sync its file: flushes of the device fail.
    pub(crate) fn with_failing_flushes(mut self) -> Double {
        self.traits.buffered = true;
        self
    }

    /// Marks a chunk bad, as the factory does.
    pub(crate) fn bad(self, pu: u32, chunk: u32) -> Double {
        let at = self.chunk_index(pu, chunk);
        self.inner.lock().chunks[at].state = ChunkState::Offline;
        self
    }

    pub(crate) fn fail_reads_of(&self, at: Vec<Ppa>) {
        self.inner.lock().script.reads = at;
    }

    /// The next program fails, but moves the pointer.
    pub(crate) fn fail_next_program(&self) {
        let mut inner = self.inner.lock();
        let next = inner.seen.programs;
        inner.script.programs.insert(next, Status::WriteNextUnit);
    }

    pub(crate) fn seen<R>(&self, look: impl FnOnce(&Seen) -> R) -> R {
        look(&self.inner.lock().seen)
    }

    /// The records of all sectors that are programmed, with their places.
    pub(crate) fn records(&self) -> Vec<(Location, [u8; 16])> {
        let inner = self.inner.lock();
        let all = (0u32..).zip(&inner.chunks).flat_map(|(index, chunk)| {
            let (pu, chunk_number) =
                (index / self.geo.chunks_per_pu, index % self.geo.chunks_per_pu);
            let at = move |sector| Location { pu, chunk: chunk_number, sector };
            (0u32..).zip(&chunk.sectors).map(move |(sector, (_, oob))| (at(sector), *oob))
        });
        all.collect()
    }

    fn chunk_index(&self, pu: u32, chunk: u32) -> usize {
        (pu * self.geo.chunks_per_pu + chunk) as usize
    }

    fn write(&self, inner: &mut Inner, request: &Request<'_>) -> Vec<Status> {
        let Data::Write { content, oob, cause } = &request.data else {
            return vec![Status::InvalidField; request.addrs.len()];
        };
        let number = inner.seen.programs;
        inner.seen.programs += 1;
        let fault = inner.script.programs.get(&number).copied();
        let at: Vec<Location> = request.addrs.iter().map(|p| self.place(*p)).collect();
        let first = at[0];
        let chunk = self.chunk_index(first.pu, first.chunk);
        let whole = (at.len() as u32).is_multiple_of(self.geo.ws_min)
            && first.sector.is_multiple_of(self.geo.ws_min);
        let c = &mut inner.chunks[chunk];
        let in_order = (0u32..).zip(&at).all(|(i, l)| {
            (l.pu, l.chunk) == (first.pu, first.chunk) && l.sector == c.sectors.len() as u32 + i
        });
        if !whole || !in_order || !matches!(c.state, ChunkState::Free | ChunkState::Open) {
            let (state, wp) = (c.state, c.sectors.len());
            let what = format!("write of {} at {first}: {state:?}, pointer {wp}", at.len());
            inner.seen.violations.push(what);
            return vec![Status::OutOfOrder; at.len()];
        }
        let early = fault == Some(Status::ChunkEarlyClose);
        let taken = !early && fault != Some(Status::HostFault);
        for (i, cause) in cause.iter().enumerate().filter(|_| taken) {
            inner.seen.programmed[*cause as usize] += 1;
            // Of a page, which has 4096, nothing else is ever asked for here.
            let word = content.sector(i).first_chunk().expect("8 bytes of content");
            c.sectors.push((*word, oob[i]));
        }
        let before = c.state;
        c.state = if c.sectors.len() as u32 == self.geo.sectors_per_chunk() || early {
            ChunkState::Closed
        } else if c.sectors.is_empty() {
            before
        } else {
            ChunkState::Open
        };
        inner.seen.open +=
            (c.state == ChunkState::Open) as i64 - (before == ChunkState::Open) as i64;
        inner.seen.open_most = inner.seen.open_most.max(inner.seen.open);
        vec![fault.unwrap_or(Status::Ok); at.len()]
    }

    fn read(&self, inner: &mut Inner, request: &mut Request<'_>) -> Vec<Status> {
        let Data::Read { content, oob } = &mut request.data else {
            return vec![Status::InvalidField; request.addrs.len()];
        };
        let mut out = Vec::new();
        for (i, ppa) in request.addrs.iter().enumerate() {
            let at = self.place(*ppa);
            let c = &inner.chunks[self.chunk_index(at.pu, at.chunk)];
            let wp = c.sectors.len() as u32;
            let closed = c.state == ChunkState::Closed;
            let readable = at.sector < wp && (closed || at.sector + self.geo.mw_cunits < wp);
            if !readable {
                let what = format!("read at {at}: {:?}, pointer {wp}", c.state);
                inner.seen.violations.push(what);
                out.push(Status::Empty);
                continue;
            }
            let (word, record) = c.sectors[at.sector as usize];
            content.sector(i).copy_from_slice(&word);
            oob[i] = record;
            let lost = inner.script.reads.contains(ppa);
            out.push(if lost { Status::Uncorrectable } else { Status::Ok });
        }
        out
    }

    fn reset(&self, inner: &mut Inner, request: &Request<'_>) -> Vec<Status> {
        let mut out = Vec::new();
        for ppa in request.addrs {
            let at = self.place(*ppa);
            let number = inner.seen.erases;
            inner.seen.erases += 1;
            let fails = inner.script.erases.contains_key(&number);
            let index = self.chunk_index(at.pu, at.chunk);
            let c = &mut inner.chunks[index];
            if c.state != ChunkState::Closed {
                inner.seen.violations.push(format!("reset at {at}: {:?}", c.state));
                out.push(Status::InvalidReset);
                continue;
            }
            inner.seen.open -= (c.state == ChunkState::Open) as i64;
            c.sectors.clear();
            c.erases += 1;
            c.state = if fails { ChunkState::Offline } else { ChunkState::Free };
            out.push(if fails { Status::OfflineChunk } else { Status::Ok });
        }
        out
    }

    fn place(&self, ppa: Ppa) -> Location {
        self.format.unpack(ppa).expect("an address of the device")
    }
}

impl Device for Double {
    fn geometry(&self) -> &Geometry {
        &self.geo
    }
    fn format(&self) -> &PpaFormat {
        &self.format
    }
    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn expect(&self, _: Ppa, _: u32) {}

    fn submit_at(&self, cx: &Cx, mut request: Request<'_>, _: Ns) -> Ticket {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (status, time) = match request.op {
            Op::Read => (self.read(inner, &mut request), self.times.0),
            Op::Write => (self.write(inner, &request), self.times.1),
            Op::Reset => (self.reset(inner, &request), self.times.2),
            Op::Flush => (vec![Status::HostFault], self.times.1),
            _ => unreachable!("not used"),
        };
        let now = cx.now().as_ns();
        let mut end = if request.op == Op::Flush { now + time } else { now };
        let mut last = u32::MAX;
        for ppa in request.addrs {
            let pu = self.place(*ppa).pu;
            if time > 0 && pu != last {
                inner.free_at[pu as usize] = inner.free_at[pu as usize].max(now) + time;
                end = end.max(inner.free_at[pu as usize]);
                last = pu;
            }
        }
        let failed = status
            .iter()
            .enumerate()
            .filter(|(_, s)| **s != Status::Ok)
            .fold(0, |bits, (i, _)| bits | 1 << i);
        let id = inner.next;
        inner.next += 1;
        let completion = Completion {
            failed,
            status: if failed == 0 { Vec::new() } else { status },
            finished: Ns::from_ns(end),
            breakdown: Breakdown::default(),
        };
        inner.done.insert(id, completion);
        Ticket { id, ask_at: Ns::from_ns(end) }
    }

    fn finish(&self, _: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let done = self.inner.lock().done.remove(&ticket.id);
        Poll::Ready(done.expect("finished once"))
    }

    fn chunk_report(&self, pu: u32, first: u32, count: u32) -> Vec<ChunkInfo> {
        let inner = self.inner.lock();
        let from = self.chunk_index(pu, first);
        inner.chunks[from..from + count as usize]
            .iter()
            .map(|c| ChunkInfo {
                state: c.state,
                wear_index: 0,
                erases: c.erases,
                slc_erases: 0,
                length: self.geo.sectors_per_chunk(),
                write_pointer: c.sectors.len() as u32,
                cell: CellMode::Native,
            })
            .collect()
    }
}
