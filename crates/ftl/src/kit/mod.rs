//! The FTL inside a drive, for all kinds of drives.
//!
//! Owns: everything between [`BlockDev`] and an Open-Channel device, as a drive's controller has it:
//! write buffer, map, placement, garbage collection, recovery. Promises: what [`BlockDev`] promises;
//! on capacitors a write is durable when acknowledged; no rule of the medium is broken; both counter
//! laws hold whenever no program is in flight. Never: charges host CPU time (its controller is not
//! the host's core), and never sees the host's link, which goes above
//! ([`crate::link::LinkedBlock`]).
//!
//! What a drive is made of follows from its [`DriveConfig`] (`create`): the block SSD
//! ([`crate::pftl`]) is one region of chunks, the SLC/TLC SSD ([`crate::slc`]) has an SLC part in front
//! of it (`tier`).
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
//! **Power.** With capacitors ([`DriveConfig::capacitors`]) the controller saves a
//! [`Dump`] when the power goes, so what is acknowledged is durable. Without, what is in the buffer
//! is lost, and a flush is a barrier (`sync`): it programs what was accepted before it, then the
//! pages. A line is erased behind such a barrier.
//!
//! One mutex guards the controller's state, never held across an await: it is one controller.

mod buffer;
mod cache;
mod create;
mod drain;
mod dump;
mod flush;
mod front;
mod gc;
pub(crate) mod layer;
mod map;
mod pages;
mod place;
mod read;
mod recover;
mod rest;
mod snapshot;
mod stamps;
mod stats;
mod sync;
#[cfg(test)]
mod tests;
mod tier;
mod witness;

use flashlane_base::mutant;
use flashlane_ocssd::device::Device;
use flashlane_rt::sync::{Mutex, MutexGuard};
use flashlane_rt::{Credits, Cx, Notify};
use std::sync::Arc;

pub use cache::MapStats;
pub(crate) use create::Need;
pub use create::{CreateError, DriveConfig, MapKind, Victim};
pub use dump::Dump;
pub(crate) use read::content_crc;
pub use recover::{MountError, Recovery};
pub use stats::{DriveStats, INVALID_CLASSES};
pub use tier::{TierConfig, TierStats};

use crate::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Payload, Started};
use crate::stats::{FtlStats, Gauges};
use buffer::{Buffer, Kind, Sizes, Stage};
use cache::MapCache;
use create::Frame;
use drain::{Scratch, Window, Worker};
use gc::Gc;
use map::{Entry, Map};
use pages::Pages;
use place::{Layout, LineState, MAIN, Place};
use rest::Writer;
use sync::Barriers;
use tier::Tier;

/// Pages that capacitors save: 4 MiB, which the dies of a drive program in about a millisecond.
const DIRTY_PAGES: u32 = 1024;
/// Bits of a stamp below the number of the life. So stamps of a life are above all that any life
/// before may have given out, whether the medium shows them or not: 2^42 writes of 4 KiB are 16 PiB
/// in a life, and there are 2^18 lives.
const LIFE_SHIFT: u32 = 42;
/// The last stamp that a life can come behind. Who finds a higher one has not found ours.
const STAMP_LAST: u64 = crate::log::format::STAMP_MAX - (1 << LIFE_SHIFT);

/// Why a device that has lost too many chunks takes no writes. What it holds is still read and
/// moved.
const NO_SPARE: &str = "too many chunks have failed, no spare is left";

/// Why nothing can be made durable on an image.
const HOST_TROUBLE: &str = "the host could not keep what was written: its disk is full or failing";

/// The FTL of a drive, on a device.
pub struct DriveFtl {
    device: Arc<dyn Device>,
    info: BlockInfo,
    layout: Layout,
    kind: &'static dyn crate::layer::Kind,
    settings: crate::layer::Settings,
    capacitors: bool,
    /// A part of it is SLC.
    has_slc: bool,
    /// Sectors of a write admitted at once.
    piece: u32,
    controller: Mutex<Controller>,
    /// Room for host sectors in the buffer.
    room: Credits,
    /// Woken while the device drains, or a barrier is under way, when something has ended.
    settled: Notify,
    /// Its map is on flash and cached.
    has_cached_map: bool,
    /// Woken when a translation page was written, or none will be.
    mapped: Notify,
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
        match kind.is_host() {
            true => self.user += 1,
            false => self.gc += 1,
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
    content_bytes: usize,
    scratch: Box<Scratch>,
    /// Of the last write; one order for all sectors.
    stamp: u64,
    capacitors: bool,
    barriers: Barriers,
    tier: Option<Box<Tier>>,
    cache: Option<Box<MapCache>>,
    /// Pages that may be dirty while the device runs.
    dirty_pages: u32,
    /// See [`reach`].
    reach: u32,
    /// A snapshot is being written.
    writer: Option<Writer>,
    /// A snapshot was left, and nothing came behind it.
    at_rest: bool,
    /// Roots of the snapshot that a stop has left, each on another PU, as the copies are that they
    /// name; 0 where some of these are on one PU.
    roots_left: usize,
    recovery: Option<Recovery>,
    phase: Phase,
    read_only: Option<&'static str>,
    /// The sizes, in sectors, of the host's writes that wait for room in the buffer.
    hosts_wait: Vec<u32>,
    /// Waiting writers have been told.
    told: bool,
    stats: DriveStats,
}

impl DriveFtl {
    /// Builds the FTL over all of `device` and starts its background tasks on the core of `cx`.
    /// The device must be blank: this never erases data unasked. What was created before is brought
    /// up by [`DriveFtl::mount`].
    pub fn create(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: impl Into<DriveConfig>,
    ) -> Result<Arc<DriveFtl>, CreateError> {
        let geo = *device.geometry();
        let Frame { config, plan, sizes, capacity, host } = Frame::of(&*device, config.into())?;
        let mut place = Place::new(plan, |pu| device.chunk_report(pu, 0, geo.chunks_per_pu))
            .map_err(|chunks| CreateError::NotBlank { chunks })?;
        let layout = &place.layout;
        let recorded = config.recorded(host);
        let reserve = match config.capacitors {
            true => 0,
            false => sync::reserve(layout, &sizes, recorded),
        };
        let line = layout.main().stripe_sectors() as u64;
        let mut needed = place::SPARE_LINES_MIN * line + reserve as u64;
        if !config.capacitors {
            needed += sync::spare_for_padding(layout);
            needed += sync::spare_for_stamps(layout, recorded);
        }
        place.set_reserve(reserve);
        if place.usable() < capacity + needed || capacity == 0 {
            return Err(CreateError::TooSmall {
                capacity,
                usable: place.usable(),
                spare: place.usable().saturating_sub(capacity),
                needed,
            });
        }
        let parts = Parts { sizes, place, capacity, host };
        let (ftl, movers) = parts.assemble(device, &config);
        if !config.capacitors && !mutant!("kit.first-life-unnoted") {
            ftl.controller.lock().pages.touch_notes();
        }
        let ftl = Arc::new(ftl);
        ftl.start_tasks(cx, movers);
        Ok(ftl)
    }

    /// Waits until chunks that are to be in another cell mode are.
    pub(crate) async fn formatted(&self, cx: &Cx) {
        self.settled.wait(cx, || self.controller.lock().place.is_settled()).await;
    }

    fn start_tasks(self: &Arc<DriveFtl>, cx: &Cx, movers: u32) {
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
        for _ in 0..self.mappers() {
            cx.spawn(cache::mapper(self.clone(), cx.clone()));
        }
        if self.has_slc {
            cx.spawn(tier::idler(self.clone(), cx.clone()));
        }
    }

    /// Ends a section of the controller: starts what has become due, then lets go of the state and
    /// tells whoever waits outside.
    #[inline]
    fn go_on(&self, cx: &Cx, mut c: MutexGuard<'_, Controller>, me: Option<u32>, room: Room) {
        c.buffer.give_gc_room(room.gc);
        c.leave_emptied(cx);
        c.dispatch(cx, me);
        c.call_mappers(cx);
        let mut user = room.user;
        if !self.capacitors {
            let denied = c.place.is_host_denied(MAIN);
            user = c.ration(user);
            if denied && !c.place.is_host_denied(MAIN) && !mutant!("kit.room-for-host-untold") {
                // The first dispatch left the host's sectors in the buffer, because the host had no
                // room. It has some now.
                c.dispatch(cx, me);
            }
            c.ask_for_erases(cx);
            c.ask_for_records(cx);
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
            self.mapped.wake(cx);
            // Nobody will ever get room again: let them all in, to be refused.
            self.room.release(cx, u32::MAX as u64);
        }
    }

    /// Programs what is in the buffer and waits for GC and erases under way. Reads go on; writes are
    /// refused from now on. [`DriveFtl::stop`] or [`DriveFtl::quiesce`] comes next.
    pub async fn drain(&self, cx: &Cx) {
        {
            let mut c = self.controller.lock();
            if c.phase == Phase::Running {
                c.phase = Phase::Draining;
            }
            self.go_on(cx, c, None, Room::default());
        }
        self.mapped.wake(cx);
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
        self.note_offline(cx).await;
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
        {
            let mut c = self.controller.lock();
            c.phase = Phase::Stopped;
            c.wake_workers(cx);
            c.wake_gc(cx);
            c.call_syncer(cx);
            c.call_idler(cx);
            c.wake_mappers(cx);
        }
        self.settled.wake(cx);
        // A barrier of the stop may have brought GC to work again.
        self.settled.wait(cx, || self.controller.lock().has_ended()).await;
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

    /// Free lines of the main pool, of all.
    pub fn gauges(&self) -> Gauges {
        let free = u64::from(self.controller.lock().place.free_lines(MAIN));
        let of = self.layout.main().lines.len() as u64;
        Gauges { free, of, user_slots: None, ring_slots: None }
    }

    /// How many lines are in which state.
    pub fn line_states(&self) -> Vec<(String, u64)> {
        let counts = self.controller.lock().place.line_states();
        counts.map(|(state, n)| (format!("{state:?}").to_lowercase(), n)).collect()
    }

    /// The lines of each pool by state, and what is live in them, a line each.
    pub(crate) fn lines(&self) -> String {
        let c = self.controller.lock();
        let of_pool = |(pool, name): (usize, &str)| c.place.lines_said(pool, name);
        let pools = [(MAIN, "data"), (tier::BUFFER, "buffer"), (tier::JOURNAL, "journal region")];
        pools.into_iter().filter_map(of_pool).collect()
    }

    pub fn details(&self) -> DriveStats {
        let c = self.controller.lock();
        let (erases_line_min, erases_line_max) = c.place.wear(MAIN);
        DriveStats {
            retired_chunks: c.place.retired(),
            free_lines: c.place.free_lines(MAIN),
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

/// What a controller is put together from.
struct Parts {
    sizes: Sizes,
    place: Place,
    capacity: u64,
    /// Of it, what the host sees.
    host: u64,
}

impl Parts {
    /// An FTL with nothing in it, and how many movers it has.
    fn assemble(self, device: Arc<dyn Device>, config: &DriveConfig) -> (DriveFtl, u32) {
        let Parts { sizes, place, capacity, host } = self;
        let (layout, traits) = (place.layout.clone(), *device.traits());
        let windows = place.streams() * layout.positions as usize;
        let movers = sizes.gc_room / flashlane_base::VECTOR_MAX as u32;
        let main = layout.main();
        let pairs = match config.capacitors {
            true => 0,
            false => main.pairs.next_multiple_of(main.unit),
        };
        let reach = reach(&*device, &layout);
        let recorded = config.recorded(host);
        let mut place = place;
        place.set_tells_erases(!config.capacitors);
        let mut controller = Controller {
            map: Map::new(capacity, layout.sectors.into()),
            pages: Pages::of(capacity as u32, &layout, recorded),
            buffer: Buffer::new(sizes),
            gc: Gc::new(config.gc_low_water_lines * place.abreast(MAIN), movers),
            workers: (0..layout.positions).map(|_| Worker::default()).collect(),
            windows: (0..windows).map(|_| Window::new()).collect(),
            content_bytes: traits.content_bytes,
            scratch: Scratch::new(),
            stamp: 1 << LIFE_SHIFT,
            capacitors: config.capacitors,
            barriers: Barriers::new(windows, pairs, sizes.user_room),
            tier: config.tier.clone().map(|tier| {
                let journal = layout.lines_of(tier::JOURNAL);
                let sectors = journal.map(|line| layout.of(line).line_sectors as u64);
                // Two lines are what it takes to wrap.
                let region = layout.regions.iter().any(|r| r.pool == tier::JOURNAL);
                Box::new(Tier::new(tier, region.then(|| sectors.skip(2).sum())))
            }),
            cache: (config.map == MapKind::Cached).then(|| {
                let fits = (host / 32).max(1024) as u32;
                Box::new(MapCache::new(host as u32, config.map_cache.unwrap_or(fits)))
            }),
            dirty_pages: config.dirty_pages.unwrap_or(DIRTY_PAGES),
            reach,
            writer: None,
            at_rest: false,
            roots_left: 0,
            recovery: None,
            phase: Phase::Running,
            read_only: None,
            hosts_wait: Vec::new(),
            told: false,
            stats: DriveStats::default(),
            place,
        };
        controller.set_low_water();
        let ftl = DriveFtl {
            info: BlockInfo {
                capacity: host,
                content_bytes: traits.content_bytes,
                layer: config.kind.name(),
            },
            kind: config.kind,
            settings: config.settings.clone(),
            capacitors: config.capacitors,
            has_slc: config.tier.is_some(),
            piece: sizes.user_room / 4,
            controller: Mutex::new(controller),
            room: Credits::new(sizes.user_room as u64),
            settled: Notify::new(),
            has_cached_map: config.map == MapKind::Cached,
            mapped: Notify::new(),
            device,
            layout,
        };
        (ftl, movers)
    }
}

/// Units that must be programmed behind one before it can be read, and before no torn program can
/// take it along.
fn reach(device: &dyn Device, layout: &Layout) -> u32 {
    let (main, traits) = (layout.main(), device.traits());
    let torn = if traits.pair_damage { traits.pair_sectors } else { 0 };
    main.window.max(torn).div_ceil(main.unit)
}

impl BlockDev for DriveFtl {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if let Err(error) = io.check(&self.info) {
            return Started::Done(Err(error));
        }
        let (lba, sectors) = (io.lba.get() as u32, io.sectors);
        match io.payload {
            Payload::Read(to) if self.has_cached_map && self.misses_entries(lba, sectors) => {
                Started::later(async move {
                    self.translate(cx, lba, sectors).await;
                    self.read(cx, lba, sectors, to).await
                })
            }
            Payload::Read(to) => self.read(cx, lba, sectors, to),
            Payload::Write(content) if self.has_cached_map && self.map_is_behind() => {
                let how = (io.fua, io.hint.journal);
                Started::later(async move {
                    self.wait_for_map(cx).await;
                    self.write(cx, lba, sectors, content, how).await
                })
            }
            Payload::Write(content) => {
                self.write(cx, lba, sectors, content, (io.fua, io.hint.journal))
            }
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
        let most = most.min(self.info.capacity.saturating_sub(lba.get()));
        let (sectors, holds) = self.controller.lock().map.alike(lba.get(), most);
        Extent { sectors, holds }
    }
}

impl Controller {
    /// What waits and what is free, for who looks at a hang.
    fn standing(&self) -> String {
        let waiting =
            Kind::ALL.map(|kind| (self.buffer.waiting(kind), self.buffer.covered_waiting(kind)));
        let pools = self.place.standing(self.moving());
        let gc = self.gc.standing();
        let barrier = self.barrier_standing();
        let (hosts, room) = (self.hosts_wait.len(), self.buffer.gc_room());
        let jobs = self.workers.iter().filter(|w| w.is_at_work()).count();
        format!(
            "waiting, covered {waiting:?}, barrier {barrier}, hosts that wait {hosts}, units under way {jobs}, \
             GC {gc} with {room} slots, pools {pools}"
        )
    }

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

    /// Nothing that a device which has stopped asked of the medium is under way: the counters say
    /// what the medium did only when the answers are known.
    fn has_ended(&self) -> bool {
        let ended = !self.workers.iter().any(Worker::is_awaited) && !self.gc.is_erasing();
        ended || mutant!("kit.stop-beside-programs")
    }

    /// The pages of a drained device are on the medium, or will never be.
    fn is_saved(&self) -> bool {
        let saved = self.capacitors || self.pages.is_saved() || self.read_only.is_some();
        saved || mutant!("kit.stop-without-pages")
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
        for (page, at) in self.pages.seconds() {
            if !self.map.is_valid(at) || self.map.owner(at) != self.pages.lba(page) {
                return Err(format!("page {page}: physical sector {at} is not its second copy"));
            }
            per_line[self.place.layout.line_of(at) as usize] += 1;
        }
        let mut live = 0;
        let layout = &self.place.layout;
        for (line, l) in self.place.lines() {
            let mut void = false;
            for position in layout.positions_of(line) {
                let good = !self.place.is_retired(line, position);
                layout
                    .each_grain(line, position, |grain| void |= good && self.pages.is_void(grain));
            }
            if l.state == LineState::Free && void {
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

/// Asks for a table entry that will be needed soon.
#[inline(always)]
fn prefetch<T>(table: &[T], at: usize) {
    table.get(at).into_iter().for_each(flashlane_base::prefetch);
}
