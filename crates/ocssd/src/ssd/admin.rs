//! What is asked about a device outside its data path: report, counters, bad blocks.
//!
//! Owns: the chunk report, the counters' sum, the bad-block marks. Promises: a report never waits
//! for commands and never fails; chunks outside the device are left out.
//! Never: is called on the data path.

use super::Ssd;
use super::decode::Run;
use crate::device::{ChunkInfo, ChunkState};
use crate::rules::Violation;
use flashlane_base::{Geometry, Location, Ns, Ppa, PpaStyle, Rng};
use flashlane_media::counters::{DieBusy, MediaCounters, SlcCount};
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bit of a factory bad block (OCSSD 1.2).
pub const FACTORY_BAD: u8 = 1;
/// Bit of a block that went bad in use.
pub const GROWN_BAD: u8 = 2;
/// Bit of a block that the device keeps for itself.
pub const DEVICE_RESERVED: u8 = 4;
/// Bit of a block that the host keeps.
pub const HOST_RESERVED: u8 = 8;
/// Bit of a block that the media manager keeps.
pub const MEDIA_MANAGER: u8 = 16;

/// Bad-block marks per (PU, chunk): one byte per plane, kept only where one is set.
#[derive(Debug)]
pub(super) struct Marks {
    planes: usize,
    marks: BTreeMap<(u32, u32), Vec<u8>>,
}

impl Marks {
    pub(super) fn new(geo: &Geometry) -> Marks {
        Marks { planes: geo.planes as usize, marks: BTreeMap::new() }
    }

    /// All marks, by PU and chunk.
    pub(super) fn all(&self) -> &BTreeMap<(u32, u32), Vec<u8>> {
        &self.marks
    }

    pub(super) fn of(&mut self, pu: u32, chunk: u32) -> &mut Vec<u8> {
        let planes = self.planes;
        self.marks.entry((pu, chunk)).or_insert_with(|| vec![0; planes])
    }
}

/// A PU's bad-block table (OCSSD 1.2): one byte per block and plane, planes side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlockTable {
    /// Marks: block 0 plane 0, block 0 plane 1, ...
    pub blocks: Vec<u8>,
    pub factory_bad: u32,
    pub grown_bad: u32,
    pub device_reserved: u32,
    pub host_reserved: u32,
}

/// What a notice is about (OCSSD 2.0, chunk notification log).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A read was corrected with effort.
    HighEcc,
    /// A read could not be corrected.
    Unrecoverable,
    /// A chunk went offline.
    Retired,
    /// A program failed behind its acknowledgement from the write buffer. The data is good, the device
    /// has it and the chunk has not: the host should move it and reset the chunk. In the log's
    /// terms of OCSSD 2.0: *high* error rate, logical blocks named.
    ProgramFailed,
}

/// An entry of the chunk notification log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    pub event: Event,
    pub at: Location,
    pub sectors: u32,
    /// When, device time.
    pub time: Ns,
}

/// The notification log: off until it is asked for, and bounded.
#[derive(Debug, Default)]
pub(super) struct Notices {
    enabled: AtomicBool,
    list: Mutex<VecDeque<Notice>>,
}

/// Entries that wait to be fetched; the oldest go first.
const NOTICES: usize = 1024;

impl Ssd {
    /// Marks the chunks that the seed has bad from the factory.
    pub(super) fn mark_factory_bad(&self) {
        let ppm = self.spec.limits.factory_bad_ppm as u64;
        if ppm == 0 {
            return;
        }
        let geo = &self.geo;
        let mut marks = self.marks.lock();
        for pu in 0..geo.pus() {
            let mut rng = Rng::stream(self.options.seed, "media.factory_bad", pu as u64);
            let mut chan = self.channels[geo.channel_of(pu) as usize].lock();
            for chunk in 0..geo.chunks_per_pu {
                if rng.below(1_000_000) >= ppm {
                    continue;
                }
                let plane = rng.below(geo.planes as u64) as usize;
                marks.of(pu, chunk)[plane] |= FACTORY_BAD;
                let index = chan.cells.index(pu % geo.pus_per_channel, chunk);
                chan.cells.retire(index, Ns::ZERO);
                chan.cells.chunk_mut(index).failed = false;
            }
        }
    }

    /// A chunk whose erase failed: all its blocks are marked.
    pub(super) fn mark_grown_bad(&self, run: &Run) {
        let pu = run.channel * self.geo.pus_per_channel + run.die;
        for byte in self.marks.lock().of(pu, run.chunk) {
            *byte |= GROWN_BAD;
        }
    }

    /// A PU's bad-block table; `None` when there is no such PU.
    pub fn bad_blocks(&self, pu: u32) -> Option<BadBlockTable> {
        if pu >= self.geo.pus() {
            return None;
        }
        let planes = self.geo.planes as usize;
        let mut blocks = vec![0; self.geo.chunks_per_pu as usize * planes];
        let marks = self.marks.lock();
        for ((_, chunk), bytes) in marks.marks.range((pu, 0)..=(pu, u32::MAX)) {
            let at = *chunk as usize * planes;
            blocks[at..at + planes].copy_from_slice(bytes);
        }
        let count = |bit: u8| blocks.iter().filter(|b| **b & bit != 0).count() as u32;
        Some(BadBlockTable {
            factory_bad: count(FACTORY_BAD),
            grown_bad: count(GROWN_BAD),
            device_reserved: count(DEVICE_RESERVED),
            host_reserved: count(HOST_RESERVED),
            blocks,
        })
    }

    /// Sets the mark of the blocks that `addrs` name (one address per plane; in the 2.0 layout,
    /// which names no plane, all planes of the chunk). A marked chunk is offline, whatever the
    /// mark; a chunk whose last mark goes becomes what its write pointer says. Returns false, and
    /// changes nothing, when an address names nothing or the mark is none of the five bits.
    pub fn set_bad_blocks(&self, addrs: &[Ppa], mark: u8) -> bool {
        let places: Option<Vec<Location>> =
            addrs.iter().map(|a| self.decoder.format().unpack(*a)).collect();
        let (Some(places), 0..32) = (places, mark) else {
            return false;
        };
        for at in places {
            let plane = match self.spec.ppa {
                PpaStyle::V20 => None,
                PpaStyle::V12 => {
                    let in_row = at.sector % self.geo.sectors_per_row();
                    Some((in_row / self.geo.sectors_per_page) as usize)
                }
            };
            let good = {
                let mut marks = self.marks.lock();
                for (i, byte) in marks.of(at.pu, at.chunk).iter_mut().enumerate() {
                    if plane.is_none_or(|p| p == i) {
                        *byte = mark;
                    }
                }
                let good = marks.of(at.pu, at.chunk).iter().all(|b| *b == 0);
                if good {
                    marks.marks.remove(&(at.pu, at.chunk));
                }
                good
            };
            self.fold_mark(at, good);
        }
        self.changed_outside();
        true
    }

    /// A chunk with a marked plane is offline; without one it is what it was.
    fn fold_mark(&self, at: Location, good: bool) {
        let mut chan = self.channels[self.geo.channel_of(at.pu) as usize].lock();
        let die = at.pu % self.geo.pus_per_channel;
        let index = chan.cells.index(die, at.chunk);
        let offline = chan.cells.chunk(index).state == ChunkState::Offline;
        let before = chan.cells.open_on(die);
        match (good, offline) {
            (false, false) => self.set_offline(&mut chan, index),
            (true, true) => chan.cells.set_online(index),
            _ => return,
        }
        self.note_open(&chan, die, before);
    }

    /// Turns the chunk notification log on or off.
    pub fn set_notices(&self, on: bool) {
        self.notices.enabled.store(on, Ordering::Relaxed);
    }

    /// Takes what the notification log has gathered.
    pub fn take_notices(&self) -> Vec<Notice> {
        self.notices.list.lock().drain(..).collect()
    }

    #[cold]
    pub(super) fn notify(&self, run: &Run, event: Event, now: Ns) {
        if !self.notices.enabled.load(Ordering::Relaxed) {
            return;
        }
        let mut list = self.notices.list.lock();
        if list.len() == NOTICES {
            list.pop_front();
        }
        list.push_back(Notice {
            event,
            at: Location {
                pu: run.channel * self.geo.pus_per_channel + run.die,
                chunk: run.chunk,
                sector: run.sector,
            },
            sectors: run.n,
            time: self.device_time(now),
        });
    }

    /// How often each line of the fault plan has happened.
    pub fn faults_happened(&self) -> Vec<u64> {
        self.faults.lock().happened()
    }

    pub(super) fn report(&self, pu: u32, first: u32, count: u32) -> Vec<ChunkInfo> {
        let geo = &self.geo;
        if pu >= geo.pus() || first >= geo.chunks_per_pu {
            return Vec::new();
        }
        let chan = self.channels[geo.channel_of(pu) as usize].lock();
        let end = first.saturating_add(count).min(geo.chunks_per_pu);
        (first..end)
            .map(|chunk| {
                let index = chan.cells.index(pu % geo.pus_per_channel, chunk);
                let c = chan.cells.chunk(index);
                let state = match chan.dead[(pu % geo.pus_per_channel) as usize] {
                    true => ChunkState::Offline,
                    false => c.state,
                };
                ChunkInfo {
                    state,
                    wear_index: chan.cells.wear_index(index),
                    erases: c.erases,
                    slc_erases: c.slc_erases,
                    length: chan.cells.length(index),
                    write_pointer: match state {
                        ChunkState::Offline => 0,
                        _ => c.wp,
                    },
                    cell: c.mode,
                }
            })
            .collect()
    }

    /// Everything the medium counted so far; busy times up to `now`.
    pub fn counters_at(&self, now: Ns) -> MediaCounters {
        for channel in &self.channels {
            let mut chan = channel.lock();
            chan.time.settle(now);
            chan.sweep();
        }
        self.sum_up(now)
    }

    /// Everything the medium counted so far; busy times include what is granted ahead.
    pub fn counters(&self) -> MediaCounters {
        self.sum_up(Ns::MAX)
    }

    fn sum_up(&self, until: Ns) -> MediaCounters {
        let mut all = MediaCounters {
            violations: self.violations.lock().count(),
            ..MediaCounters::default()
        };
        let mut slc = SlcCount::default();
        all.buffer = self.buffer.as_ref().map(|buffer| buffer.count());
        if let Some(pool) = &self.pool {
            all.store_bytes = pool.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        }
        for channel in &self.channels {
            let chan = channel.lock();
            all.all = all.all.and(&chan.count);
            slc = slc.and(&chan.slc);
            all.store_bytes += chan.cells.store().bytes() as u64;
            all.channels.push(chan.time.bus_busy());
            all.channel_erases.push(chan.count.erases);
            for die in 0..self.geo.pus_per_channel {
                let [read, program, erase] = chan.time.die_busy(die, until);
                all.dies.push(DieBusy { read, program, erase });
            }
        }
        all.slc = self.traits.slc.map(|_| slc);
        all
    }

    /// The first broken rules; how many there were in all is `counters().violations`.
    pub fn violations(&self) -> Vec<Violation> {
        self.violations.lock().list().to_vec()
    }
}
