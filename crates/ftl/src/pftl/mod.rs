//! PFTL: a page-mapped FTL inside the device. The block SSD of every comparison.
//!
//! Owns: everything between [`BlockDev`] and an Open-Channel device, as a drive's controller has
//! it: write buffer, map, placement, garbage collection, recovery. Promises: what [`BlockDev`]
//! promises; on capacitors a write is durable when acknowledged; no rule of the medium is broken; both counter laws hold whenever no program is in flight. Never: charges host CPU time
//! (its controller is not the host's core), and never sees the host's link, which goes above
//! ([`crate::link::LinkedBlock`]).
//!
//! From the ParaFS paper (section 4.1): "a page-level FTL, named PFTL, based on DFTL with lazy
//! indexing. PFTL stripes updates over different channels in a page size unit". The whole map is in
//! the drive's memory here; the demand-cached map is a later addition.
//!
//! **Life of a write.** `front` takes the sectors into slots of the `buffer` (or replaces what
//! waits there) and the host goes on. When a write unit (`ws_opt`) waits, `drain` gives it the next
//! idle PU in stripe order (`place`) and that PU's worker programs it. When the program has ended
//! and the chunk can give the sectors back, the `map` names the medium.
//!
//! **Life of a read.** `read` copies what is in the buffer, pins the lines of the rest, reads them
//! with vector commands, and verifies each sector against its out-of-band record.
//!
//! **Life of a GC.** Few free lines left: `gc` takes the closed line with most garbage, reads its
//! valid sectors into slots of its own, and erases it; the moved sectors are programmed like
//! others, first of all, to a line of their own.
//!
//! **Life of a mount.** `recover` takes the snapshot that a clean stop has left (`rest`). Where there
//! is none it reads the out-of-band records of all written sectors and keeps the highest stamp per
//! logical sector; every write has a stamp of its own, copies keep it. What the records can't say
//! (trims, lost sectors, units whose program failed) is in `pages` of the device's own, which lie
//! among the host's sectors and are found like them.
//!
//! **Power.** With capacitors ([`PftlConfig::capacitors`], the default) the controller saves a
//! [`Dump`] when the power goes, so what is acknowledged is durable. Without, what is in the buffer
//! is lost, and a flush is a barrier (`sync`): it programs what was accepted before it, then the
//! pages. A line is erased behind such a barrier.
//!
//! One mutex guards the controller's state, never held across an await: it is one controller.

mod buffer;
mod drain;
mod dump;
mod flush;
mod front;
mod gc;
mod layer;
mod map;
mod pages;
mod place;
mod read;
mod recover;
mod rest;
mod snapshot;
mod stats;
mod sync;
#[cfg(test)]
mod tests;

use flashlane_base::mutant;
use flashlane_ocssd::device::{Device, Traits};
use flashlane_rt::sync::{Mutex, MutexGuard};
use flashlane_rt::{Credits, Cx, Notify};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

pub use dump::Dump;
pub use layer::{PFTL, PftlKind};
pub use recover::{MountError, Recovery};
pub use stats::{INVALID_CLASSES, PftlStats};

use crate::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Payload, Started};
use crate::stats::{FtlStats, Gauges};
use buffer::{Buffer, Kind, Sizes, Stage};
use drain::{Scratch, Window, Worker};
use gc::Gc;
use map::{Entry, Map};
use pages::Pages;
use place::{Layout, LineState, Place};
use rest::Writer;
use sync::Barriers;

/// How a device FTL is built. In TOML every key may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PftlConfig {
    /// Share of the raw sectors (bad chunks included) that the host does not see, in percent,
    /// 1 to 90. Bad chunks come out of it.
    pub over_provisioning_percent: u32,
    /// Host sectors that the write buffer holds; `None` is two write units per PU, at least 128.
    pub buffer_sectors: Option<u32>,
    /// GC works while fewer lines are free, at least 2: one is kept for GC itself, so at 1 the host
    /// would stop before GC starts. More is more even and costs effective spare.
    pub gc_low_water_lines: u32,
    /// GC read commands (of up to 64 sectors) in flight; `None` reads about two units per PU ahead.
    pub gc_reads: Option<u32>,
    /// The buffer is on capacitors: what is acknowledged is durable, and a flush has nothing to
    /// wait for. Without, it is lost when the power goes, and a flush programs it.
    pub capacitors: bool,
    /// Mount although sectors can't be read that were good once: older copies of what they held may
    /// be taken for it.
    pub accept_lost_sectors: bool,
    /// Pages of trims (of 4 KiB, each for 16,128 logical sectors) that the capacitors keep
    /// unwritten at most; `None` is 1024. Without effect where there are no capacitors.
    pub dirty_pages: Option<u32>,
}

/// Pages that capacitors save: 4 MiB, which the dies of a drive program in about a millisecond.
const DIRTY_PAGES: u32 = 1024;
/// Bits of a stamp below the number of the life. So stamps of a life are above all that any life
/// before may have given out, whether the medium shows them or not: 2^42 writes of 4 KiB are 16 PiB
/// in a life, and there are 2^18 lives.
const LIFE_SHIFT: u32 = 42;
/// The last stamp that a life can come behind. Who finds a higher one has not found ours.
const STAMP_LAST: u64 = crate::log::format::STAMP_MAX - (1 << LIFE_SHIFT);

impl Default for PftlConfig {
    fn default() -> PftlConfig {
        PftlConfig {
            // As the simulators that we compare with (docs/DECISIONS.md): 12% of raw.
            over_provisioning_percent: 12,
            buffer_sectors: None,
            gc_low_water_lines: 2,
            gc_reads: None,
            capacitors: true,
            accept_lost_sectors: false,
            dirty_pages: None,
        }
    }
}

impl PftlConfig {
    /// Where the medium itself outlives its host only once it is flushed (an image), no capacitors
    /// save this process's memory: the buffer is volatile there.
    fn on(self, traits: &Traits) -> PftlConfig {
        PftlConfig { capacitors: self.capacitors && !traits.volatile, ..self }
    }
}

/// Why a device FTL can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error("pftl: {field} is {value}, it must be {range}")]
    Config { field: &'static str, value: u64, range: String },
    /// More sectors than a 32-bit map entry can name.
    #[error("pftl: {sectors} physical sectors are more than the {max} that its map can name")]
    TooLarge { sectors: u64, max: u64 },
    #[error(
        "pftl: {capacity} logical sectors leave {spare} of {usable} good physical sectors, \
         GC needs {needed}: raise over_provisioning_percent or give it more chunks per PU"
    )]
    TooSmall {
        /// Sectors the host would see.
        capacity: u64,
        usable: u64,
        spare: u64,
        /// What is needed: three lines.
        needed: u64,
    },
    /// The device holds data, or chunks in another cell mode.
    #[error("pftl: {chunks} chunks are not blank; reset them first, their data would be lost")]
    NotBlank {
        /// Chunks that are neither bad nor erased.
        chunks: u64,
    },
    #[error("pftl: the device allows {limit} open chunks, {needed} PUs need one each")]
    OpenLimit {
        /// Open chunks that the device allows.
        limit: u32,
        needed: u32,
    },
}

/// Why nothing can be made durable on an image.
const HOST_TROUBLE: &str = "the host could not keep what was written: its disk is full or failing";

/// A page-mapped device FTL on a device.
pub struct Pftl {
    device: Arc<dyn Device>,
    info: BlockInfo,
    layout: Layout,
    config: PftlConfig,
    capacitors: bool,
    /// Sectors of a write admitted at once.
    piece: u32,
    controller: Mutex<Controller>,
    /// Room for host sectors in the buffer.
    room: Credits,
    /// Woken while the device drains, or a barrier is under way, when something has ended.
    settled: Notify,
}

/// Whether background tasks go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// What a mount has found is made durable; no host yet, and no GC.
    Mounting,
    Running,
    /// No more host writes; what waits is programmed.
    Draining,
    Stopped,
}

/// Room in the buffer that became free, by owner, in sectors.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    user: u32,
    gc: u32,
}

impl Room {
    #[inline]
    fn add(&mut self, kind: Kind) {
        match kind {
            Kind::User => self.user += 1,
            Kind::Gc => self.gc += 1,
        }
    }
}

/// The state of the controller: everything that the mutex guards.
struct Controller {
    map: Map,
    pages: Pages,
    buffer: Buffer,
    place: Place,
    gc: Gc,
    /// One per position.
    workers: Vec<Worker>,
    /// Per stream × position.
    windows: Vec<Window>,
    /// Sectors that must be written behind one of an open chunk before it can be read.
    window_sectors: u32,
    content_bytes: usize,
    scratch: Box<Scratch>,
    /// Of the last write; one order for all sectors.
    stamp: u64,
    capacitors: bool,
    barriers: Barriers,
    /// Pages that may be dirty while the device runs.
    dirty_pages: u32,
    /// See [`reach`].
    reach: u32,
    /// A snapshot is being written.
    writer: Option<Writer>,
    /// A snapshot was left, and nothing came behind it.
    at_rest: bool,
    recovery: Option<Recovery>,
    phase: Phase,
    read_only: Option<&'static str>,
    /// Writes of the host that wait for room in the buffer.
    hosts_wait: u32,
    /// Waiting writers have been told.
    told: bool,
    stats: PftlStats,
}

impl Pftl {
    /// Builds the FTL over all of `device` and starts its background tasks on the core of `cx`.
    /// The device must be blank: this never erases data unasked. What was created before is brought
    /// up by [`Pftl::mount`].
    pub fn create(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: PftlConfig,
    ) -> Result<Arc<Pftl>, CreateError> {
        let (geo, traits) = (*device.geometry(), *device.traits());
        let Frame { config, layout, sizes, capacity } = Frame::of(&*device, config)?;
        let mut place = Place::new(layout.clone(), traits.max_open, |pu| {
            device.chunk_report(pu, 0, geo.chunks_per_pu)
        })
        .map_err(|chunks| CreateError::NotBlank { chunks })?;
        let reserve = if config.capacitors { 0 } else { sync::reserve(&layout, &sizes) };
        place.set_reserve(reserve);
        let mut needed = place::SPARE_LINES_MIN * layout.line_sectors as u64 + reserve as u64;
        if !config.capacitors {
            needed += sync::spare_for_padding(&layout, traits.pair_sectors);
        }
        if place.usable() < capacity + needed || capacity == 0 {
            return Err(CreateError::TooSmall {
                capacity,
                usable: place.usable(),
                spare: place.usable().saturating_sub(capacity),
                needed,
            });
        }
        let parts = Parts { layout, sizes, place, capacity };
        let (ftl, movers) = parts.assemble(device, &config);
        let ftl = Arc::new(ftl);
        ftl.start_tasks(cx, movers);
        Ok(ftl)
    }

    fn start_tasks(self: &Arc<Pftl>, cx: &Cx, movers: u32) {
        for position in 0..self.layout.positions {
            cx.spawn(drain::worker(self.clone(), cx.clone(), position));
        }
        for mover in 0..movers {
            cx.spawn(gc::mover(self.clone(), cx.clone(), mover));
        }
        cx.spawn(gc::eraser(self.clone(), cx.clone()));
        if !self.capacitors {
            cx.spawn(sync::syncer(self.clone(), cx.clone()));
        }
    }

    /// Ends a section of the controller: starts what has become due, then lets go of the state and
    /// tells whoever waits outside.
    #[inline]
    fn go_on(&self, cx: &Cx, mut c: MutexGuard<'_, Controller>, me: Option<u32>, room: Room) {
        c.buffer.give_gc_room(room.gc);
        c.dispatch(cx, me);
        let mut user = room.user;
        if !self.capacitors {
            user = c.ration(user);
            c.ask_for_erases(cx);
        }
        let awaited = c.phase != Phase::Running || c.barrier_is_active();
        let tell = c.is_verdict_untold();
        c.told |= tell;
        // The end of a barrier is told by whoever ends it.
        let awaited = awaited || tell || me.is_none() && !self.capacitors;
        drop(c);
        if user > 0 {
            self.room.release(cx, user as u64);
        }
        if awaited {
            self.settled.wake(cx);
        }
        if tell {
            // Nobody will ever get room again: let them all in, to be refused.
            self.room.release(cx, u32::MAX as u64);
        }
    }

    /// Programs what is in the buffer and waits for GC and erases under way. Reads go on; writes are
    /// refused from now on. [`Pftl::stop`] or [`Pftl::quiesce`] comes next.
    pub async fn drain(&self, cx: &Cx) {
        {
            let mut c = self.controller.lock();
            if c.phase == Phase::Running {
                c.phase = Phase::Draining;
            }
            self.go_on(cx, c, None, Room::default());
        }
        self.settle(cx).await;
        self.flush_device(cx).await;
    }

    /// Waits until a device that drains has drained, and its pages are saved.
    async fn settle(&self, cx: &Cx) {
        loop {
            self.settled.wait(cx, || self.controller.lock().is_drained()).await;
            if self.controller.lock().is_saved() {
                return;
            }
            self.sync(cx).await;
        }
    }

    /// Drains the device, leaves a snapshot where there is room for one, so that the next mount need
    /// not scan, and ends the background tasks.
    pub async fn stop(&self, cx: &Cx) {
        self.drain(cx).await;
        self.leave_snapshot(cx).await;
        self.end(cx).await;
    }

    /// Drains the device and ends the background tasks, for one that will not be mounted again: no
    /// snapshot.
    pub async fn quiesce(&self, cx: &Cx) {
        self.drain(cx).await;
        self.end(cx).await;
    }

    async fn flush_device(&self, cx: &Cx) {
        if !self.device.flush(cx).await {
            self.controller.lock().read_only.get_or_insert(HOST_TROUBLE);
        }
    }

    async fn end(&self, cx: &Cx) {
        self.flush_device(cx).await;
        let mut c = self.controller.lock();
        c.phase = Phase::Stopped;
        c.wake_workers(cx);
        c.wake_gc(cx);
        c.call_syncer(cx);
        drop(c);
        self.settled.wake(cx);
    }

    /// What the mount did; `None` for a device that was created.
    pub fn recovery(&self) -> Option<Recovery> {
        self.controller.lock().recovery.clone()
    }

    /// Why the device takes no more writes, if it does not. Without capacitors a read-only device
    /// can't make anything durable either, when it is stopped no more than when it is flushed.
    pub fn read_only(&self) -> Option<&'static str> {
        self.controller.lock().read_only
    }

    /// The counters that every layer keeps.
    pub fn stats(&self) -> FtlStats {
        self.controller.lock().stats.ftl
    }

    /// Free lines, of all.
    pub fn gauges(&self) -> Gauges {
        let free = u64::from(self.controller.lock().place.free_lines());
        Gauges { free, of: u64::from(self.layout.lines), user_slots: None, ring_slots: None }
    }

    /// How many lines are in which state.
    pub fn line_states(&self) -> Vec<(String, u64)> {
        let counts = self.controller.lock().place.line_states();
        counts.map(|(state, n)| (format!("{state:?}").to_lowercase(), n)).collect()
    }

    pub fn details(&self) -> PftlStats {
        let c = self.controller.lock();
        let (erases_line_min, erases_line_max) = c.place.wear();
        PftlStats {
            retired_chunks: c.place.retired(),
            free_lines: c.place.free_lines(),
            erases_line_min,
            erases_line_max,
            ..c.stats.clone()
        }
    }

    /// Walks map, buffer and lines and compares them: every entry's copy is there and is the only
    /// one, and each line counts as many valid sectors as the walk finds. For tests and `fsck`.
    pub fn walk(&self) -> Result<(), String> {
        self.controller.lock().walk()
    }
}

/// What follows from device and configuration alone.
struct Frame {
    config: PftlConfig,
    layout: Layout,
    sizes: Sizes,
    capacity: u64,
}

impl Frame {
    fn of(device: &dyn Device, config: PftlConfig) -> Result<Frame, CreateError> {
        let (geo, traits) = (device.geometry(), device.traits());
        let config = config.on(traits);
        let layout = Layout::new(geo);
        check_device(&layout, geo.sectors(), traits.max_open)?;
        let sizes = check_config(&config, &layout, geo.mw_cunits, traits.content_bytes)?;
        let capacity = capacity_of(&config, geo.sectors());
        Ok(Frame { config, layout, sizes, capacity })
    }
}

/// What a controller is put together from.
struct Parts {
    layout: Layout,
    sizes: Sizes,
    place: Place,
    capacity: u64,
}

impl Parts {
    /// An FTL with nothing in it, and how many movers it has.
    fn assemble(self, device: Arc<dyn Device>, config: &PftlConfig) -> (Pftl, u32) {
        let Parts { layout, sizes, place, capacity } = self;
        let (geo, traits) = (*device.geometry(), *device.traits());
        let windows = place.streams() * layout.positions as usize;
        let movers = sizes.gc_room / flashlane_base::VECTOR_MAX as u32;
        let units = (geo.sectors() / layout.unit as u64) as u32;
        let pair_units = match config.capacitors {
            true => 0,
            false => traits.pair_sectors.div_ceil(layout.unit),
        };
        let reach = reach(&*device, &layout);
        let controller = Controller {
            map: Map::new(capacity, geo.sectors()),
            pages: Pages::new(capacity as u32, units),
            buffer: Buffer::new(sizes),
            gc: Gc::new(config.gc_low_water_lines, movers),
            workers: (0..layout.positions).map(|_| Worker::default()).collect(),
            windows: (0..windows).map(|_| Window::new()).collect(),
            window_sectors: geo.mw_cunits,
            content_bytes: traits.content_bytes,
            scratch: Scratch::new(),
            stamp: 1 << LIFE_SHIFT,
            capacitors: config.capacitors,
            barriers: Barriers::new(windows, pair_units, sizes.user_room),
            dirty_pages: config.dirty_pages.unwrap_or(DIRTY_PAGES),
            reach,
            writer: None,
            at_rest: false,
            recovery: None,
            phase: Phase::Running,
            read_only: None,
            hosts_wait: 0,
            told: false,
            stats: PftlStats::default(),
            place,
        };
        let ftl = Pftl {
            info: BlockInfo { capacity, content_bytes: traits.content_bytes, layer: "pftl" },
            config: config.clone(),
            capacitors: config.capacitors,
            piece: sizes.user_room / 4,
            controller: Mutex::new(controller),
            room: Credits::new(sizes.user_room as u64),
            settled: Notify::new(),
            device,
            layout,
        };
        (ftl, movers)
    }
}

/// Units that must be programmed behind one before it can be read, and before no torn program can
/// take it along.
fn reach(device: &dyn Device, layout: &Layout) -> u32 {
    let (window, traits) = (device.geometry().mw_cunits, device.traits());
    let torn = if traits.pair_damage { traits.pair_sectors } else { 0 };
    window.max(torn).div_ceil(layout.unit)
}

/// Sectors that the host sees.
fn capacity_of(config: &PftlConfig, sectors: u64) -> u64 {
    let percent = 100 - config.over_provisioning_percent as u64;
    (sectors as u128 * percent as u128 / 100) as u64
}

impl BlockDev for Pftl {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if let Err(error) = io.check(&self.info) {
            return Started::Done(Err(error));
        }
        let (lba, sectors) = (io.lba.get() as u32, io.sectors);
        match io.payload {
            Payload::Read(to) => self.read(cx, lba, sectors, to),
            Payload::Write(content) => self.write(cx, lba, sectors, content, io.fua),
            Payload::None if io.op == BlockOp::Flush => self.flush_all(cx),
            Payload::None => Started::Done(self.discard(cx, lba, sectors)),
        }
    }

    fn expect(&self, _: BlockOp, lba: flashlane_base::Lba) {
        // Not worth a wait for others.
        if let Some(c) = self.controller.try_lock() {
            c.map.prefetch(lba.get() as u32);
        }
    }

    fn extent(&self, lba: flashlane_base::Lba, most: u64) -> Extent {
        let c = self.controller.lock();
        Extent::of(&self.info, lba, most, |lba| c.map.get(lba as u32) != Entry::Unmapped)
    }
}

impl Controller {
    /// It has become read-only, and who waits does not know.
    fn is_verdict_untold(&self) -> bool {
        self.read_only.is_some() && !self.told
    }

    /// Nothing waits or is under way; or nothing that waits can ever go.
    fn is_drained(&self) -> bool {
        let sectors = Kind::ALL.iter().any(|k| self.buffer.waiting(*k) > 0);
        let pages = self.capacitors && self.pages.dirty() > 0;
        let still = self.no_program_flies() && self.gc.is_quiet();
        if self.read_only.is_some() {
            // A victim may wait for ever for room, a line for a barrier.
            let still = self.no_program_flies() && self.gc_rests();
            return still && (self.place.is_settled() || !self.capacitors && !self.gc.is_erasing());
        }
        still && self.place.is_settled() && !sectors && !pages
    }

    /// The pages of a drained device are on the medium, or will never be.
    fn is_saved(&self) -> bool {
        let saved = self.capacitors || self.pages.waiting() == 0 || self.read_only.is_some();
        saved || mutant!("pftl.stop-without-pages")
    }

    fn walk(&self) -> Result<(), String> {
        let mut free = vec![false; self.buffer.slots()];
        for slot in self.buffer.free_slots() {
            if std::mem::replace(&mut free[slot as usize], true) {
                return Err(format!("slot {slot} is free twice"));
            }
        }
        let mut per_line = vec![0u32; self.place.layout.lines as usize];
        for lba in 0..self.map.capacity() {
            let at = match self.map.get(lba) {
                Entry::Unmapped | Entry::Poisoned => continue,
                Entry::Media(at) => at,
                Entry::Slot(slot) => {
                    let s = self.buffer.slot(slot);
                    if s.lba != lba || !s.live || free[slot as usize] {
                        return Err(format!("lba {lba}: its slot {slot} is {s:?}"));
                    }
                    if s.stage != Stage::Window {
                        continue;
                    }
                    s.at
                }
            };
            if !self.map.is_valid(at) || self.map.owner(at) != lba {
                return Err(format!("lba {lba}: physical sector {at} is not its copy"));
            }
            per_line[self.place.layout.line_of(at) as usize] += 1;
        }
        for page in 0..self.pages.count() {
            let Some(at) = self.pages.at(page) else {
                continue;
            };
            if !self.map.is_valid(at) || self.map.owner(at) != self.pages.lba(page) {
                return Err(format!("page {page}: physical sector {at} is not its copy"));
            }
            per_line[self.place.layout.line_of(at) as usize] += 1;
        }
        let mut live = 0;
        let layout = &self.place.layout;
        let void = |line: u32, position: u32, row: u32| {
            let unit = layout.unit_of(layout.unit_at(line, row, position));
            self.pages.is_void(unit) && !self.place.is_retired(line, position)
        };
        for (line, l) in self.place.lines() {
            let mut units =
                (0..layout.positions).flat_map(|p| (0..layout.rows).map(move |row| (p, row)));
            if l.state == LineState::Free && units.any(|(p, row)| void(line, p, row)) {
                return Err(format!("line {line} is free, and a unit of it void"));
            }
            let walked = per_line[line as usize];
            if l.valid != walked {
                let counted = l.valid;
                return Err(format!("line {line}: {counted} valid, the walk finds {walked}"));
            }
            live += walked as u64;
        }
        let bits = self.map.count_valid();
        if bits != live {
            return Err(format!("{bits} validity bits, {live} sectors named by the map"));
        }
        Ok(())
    }
}

fn check_device(layout: &Layout, sectors: u64, open: (u32, u32)) -> Result<(), CreateError> {
    if sectors > map::PHYSICAL_MAX {
        return Err(CreateError::TooLarge { sectors, max: map::PHYSICAL_MAX });
    }
    if open.0 != 0 && open.0 < layout.positions {
        return Err(CreateError::OpenLimit { limit: open.0, needed: layout.positions });
    }
    Ok(())
}

/// Refuses numbers out of range and works out the sizes of the buffer.
fn check_config(
    config: &PftlConfig,
    layout: &Layout,
    mw_cunits: u32,
    content_bytes: usize,
) -> Result<Sizes, CreateError> {
    let within = |field, value: u64, least: u64, most: u64| {
        if (least..=most).contains(&value) {
            return Ok(value as u32);
        }
        Err(CreateError::Config { field, value, range: format!("{least} to {most}") })
    };
    let percent = config.over_provisioning_percent as u64;
    within("over_provisioning_percent", percent, 1, 90)?;
    let water = config.gc_low_water_lines as u64;
    within("gc_low_water_lines", water, 2, layout.lines as u64)?;
    let all_units = layout.positions as u64 * layout.unit as u64;
    let buffer = config.buffer_sectors.map_or((2 * all_units).max(128), u64::from);
    // A rest too small for a unit may wait for ever; the largest piece must fit beside it.
    let buffer_least = 4 * layout.unit as u64;
    let user_room = within("buffer_sectors", buffer, buffer_least, 1 << 24)?;
    let vector = flashlane_base::VECTOR_MAX as u64;
    let reads = (2 * all_units).div_ceil(vector).clamp(1, 64);
    let reads = config.gc_reads.map_or(reads, u64::from);
    let reads = within("gc_reads", reads, 1, 1024)?;
    let window = (mw_cunits + layout.unit).min(layout.chunk_sectors);
    Ok(Sizes {
        user_room,
        gc_room: reads * vector as u32 + layout.unit,
        windows: 2 * layout.positions * window,
        content_bytes,
    })
}

/// Asks for a table entry that will be needed soon.
#[inline(always)]
fn prefetch<T>(table: &[T], at: usize) {
    table.get(at).into_iter().for_each(flashlane_base::prefetch);
}
