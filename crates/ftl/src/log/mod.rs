//! The host FTL engine: pblk, and with other settings QBLK.
//!
//! Owns: a target's translation from logical sectors to flash, host-side. Stages, each a file, in folders:
//! [`path`] is the way of a request, [`place`] says where data goes, [`collect`] brings room back,
//! [`durable`] is what of a target is on the medium beside data, [`recover`] brings a target up from it. pblk and
//! QBLK differ in the switches of [`config`], each with its two arms in one stage: rings, pools, map, drain.
//!
//! Promises: those of `docs/FORMAT.md`: an acknowledged sector is readable at every instant; a
//! flush returns when everything acknowledged before it is on the medium; no rule of the medium is
//! broken. Never: awaits inside a critical section; cancels a data-path future.
//!
//! Start reading at [`path::front`] (the life of a write), then [`path::drain`], then [`collect::gc`].

mod collect;
pub(crate) mod config;
mod create;
mod durable;
mod layer;
#[cfg(feature = "loom")]
pub mod models;
mod path;
mod place;
pub mod recover;
mod sysfs;
mod walk;

pub use collect::limiter;
pub use config::{
    ChannelChoice, Drain, Drainers, LogConfig, MapAccess, PoolSet, QBLK_PU_BUDGET, RingSet,
};
pub use create::{CreateError, Layout};
pub use durable::format;
#[cfg(feature = "shuttle")]
pub use epoch::nothing_is_erased_under_an_operation;
pub use layer::{HostFtlKind, PBLK, QBLK};
pub use limiter::LimiterKind;
pub use path::map;
pub use pool::LineState;
pub use recover::{MountError, MountOptions, Recovery};
pub use scrub::{Scrub, ScrubConfig};
pub use sysfs::ATTRIBUTES;
pub use victim::{WearConfig, WearLeveling};

use crate::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Payload, Started};
use crate::stats::FtlStats;
use collect::{gc, scrub, verdict, victim};
use durable::{checkpoint, flash, journal, meta};
use epoch::Epochs;
use flash::Flash;
use flashlane_base::{Geometry, Ns, mutant};
use flashlane_ocssd::device::{Breakdown, Device, Traits};
use flashlane_rt::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use flashlane_rt::{Credits, Cx, Notify};
use journal::Journal;
use lines::Lines;
use map::Map;
use path::{contention, epoch, front, read, ring, rings, sections, slab, unit};
use place::{close, lines, pool, pools};
use pool::{Line, Shape};
use pools::Pools;
use rings::Rings;
use sections::Sections;
use slab::Slab;
use std::sync::{Arc, Weak};

/// CPU costs of the stages in this run.
struct Costs {
    front_write: Ns,
    front_read: Ns,
    reserve: Ns,
    copy: Ns,
    map_update: Ns,
    map_lookup: Ns,
    map_copy: Ns,
    drain_request: Ns,
    drain_unit: Ns,
    pool_take: Ns,
    complete_request: Ns,
    complete_unit: Ns,
    /// Nothing that happens under a lock costs anything, nor the copy between two such steps: real
    /// threads, or a host whose cost is charged as a whole.
    sections_are_free: bool,
}

impl Costs {
    /// `own_ring`: of each core; `locked`: the map has a lock.
    fn of(cx: &Cx, own_ring: bool, locked: bool) -> Costs {
        let reserve = if own_ring { "ring.own" } else { "ring.reserve" };
        let update = if locked { "map.update" } else { "map.exchange" };
        let sections = [reserve, "copy.sector", update, "map.lookup", "map.copy", "pool.take"];
        Costs {
            front_write: cx.stage_cost("front.write"),
            front_read: cx.stage_cost("front.read"),
            reserve: cx.stage_cost(reserve),
            copy: cx.stage_cost("copy.sector"),
            map_update: cx.stage_cost(update),
            map_lookup: cx.stage_cost("map.lookup"),
            map_copy: cx.stage_cost("map.copy"),
            drain_request: cx.stage_cost("drain.request"),
            drain_unit: cx.stage_cost("drain.unit"),
            pool_take: cx.stage_cost("pool.take"),
            complete_request: cx.stage_cost("complete.request"),
            complete_unit: cx.stage_cost("complete.unit"),
            sections_are_free: sections.iter().all(|stage| cx.stage_cost(stage) == Ns::ZERO),
        }
    }
}

/// Counters that no lock already covers: those that a snapshot has by the same name, and others.
macro_rules! counted {
    ($($name:ident)*; $($other:ident: $type:ty,)*) => {
        #[derive(Default)]
        struct Counters {
            $($name: AtomicU64,)*
            $($other: $type,)*
        }

        impl Counters {
            fn snapshot(&self) -> FtlStats {
                FtlStats { $($name: get(&self.$name),)* ..FtlStats::default() }
            }
        }
    };
}

counted! {
    host_read read_from_buffer read_unmapped host_discarded flushes
    gc_victims gc_victim_sectors gc_victim_invalid gc_moved gc_free_rides leveled_lines scrubbed_lines patrol_reads
    program_failures erase_failures read_failures gc_read_failures high_ecc;
    flush_wait_ns: AtomicU64,
    fua_wait_ns: AtomicU64,
    read_breakdown: Mutex<Breakdown>,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A target: pblk over the PUs of a device.
pub struct HostFtl {
    me: Weak<HostFtl>,
    flash: Flash,
    traits: Traits,
    shape: Shape,
    layout: Layout,
    /// The configuration as the log records it.
    config: Mutex<Vec<u8>>,
    /// What the mount did that this life began with.
    recovery: Mutex<Option<recover::Recovery>>,
    info: BlockInfo,
    map: Map,
    slab: Slab,
    rings: Rings,
    /// Who looks at the map without its lock.
    sections: Arc<Sections>,
    drain: Drain,
    /// Write units in a request at most.
    request_units: usize,
    /// The log tells what flushes have programmed.
    tells: bool,
    channel_choice: ChannelChoice,
    in_ring_order: bool,
    full_ring_retry: bool,
    drainers: Drainers,
    completion_cores: u32,
    borrow: bool,
    /// A ring's drainer is started by the first who writes to it, on that core: real ones can't be
    /// reached from another.
    starts_late: bool,
    /// A write unit of padding, whole sectors.
    zeros: Box<[u8]>,
    /// Units that are not in flight, for the next ones.
    #[expect(clippy::vec_box, reason = "a unit moves between tasks as one pointer")]
    units: Mutex<Vec<Box<unit::Unit>>>,
    lines: Lines,
    pools: Pools,
    /// Something about a pool changed: a line was opened, closed or freed.
    pool_changed: Notify,
    /// Programs in flight per PU (pblk's and QBLK's semaphore; padding of open pairs takes all of one).
    pu: Box<[Credits]>,
    pu_budget: u64,
    gc: gc::Control,
    care: victim::Care,
    scrub: scrub::Scrubber,
    epochs: Epochs,
    journal: Journal,
    checkpoints: checkpoint::Checkpoints,
    /// No stamp may be issued above this; durable (FORMAT.md rule 6).
    ceiling: AtomicU64,
    /// What a record in the log, durable or not, may have raised it to.
    ceiling_asked: AtomicU64,
    ceiling_raising: AtomicBool,
    ceiling_raised: Notify,
    /// Largest discard stamp; raised before the first entry of a discard is cleared (rule 4).
    floor: AtomicU64,
    /// Whoever works out new shares.
    sharing: Mutex<()>,
    /// One discard at a time where the map has no lock.
    discarding: Credits,
    /// Poisoned sectors with the stamp of the lost content.
    poisons: Mutex<std::collections::BTreeMap<u64, u64>>,
    costs: Costs,
    expected: read::Expected,
    counters: Counters,
    core_counts: Box<[contention::CoreCounts]>,
    /// Units padded for a flush, by the sectors of padding (pblk's `padding_dist`).
    padding_dist: Box<[AtomicU64]>,
    /// (user, GC, padding) sectors when `write_amp_trip` was reset.
    trip_start: Mutex<[u64; 3]>,
    /// Fewest data sectors per chunk over the line widths used so far, in 2^-16 sectors.
    least_chunk_data: AtomicU64,
    /// Most chunks in a line over the widths used so far.
    widest_line: AtomicU64,
    stopping: AtomicBool,
    /// Background tasks that have not ended.
    tasks: AtomicU64,
    tasks_ended: Notify,
    /// Nothing can be made durable any more, and why.
    read_only: AtomicBool,
    read_only_why: Mutex<Option<&'static str>>,
}

/// pblk, the physical block device target.
pub type Pblk = HostFtl;

impl HostFtl {
    /// The medium below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.flash.device
    }

    /// Dimensions of the target's part of the medium.
    pub fn geometry(&self) -> &Geometry {
        &self.flash.geo
    }

    /// The target's name among targets, drawn when it was created.
    pub fn uuid(&self) -> format::Uuid {
        self.journal.uuid
    }

    /// The settings that it runs with; those of a mounted target are in its log.
    pub fn settings(&self) -> LogConfig {
        let stored = create::Stored::decode(&self.config.lock());
        stored.map_or_else(
            |_| LogConfig::default(),
            |stored| LogConfig { active_pus: stored.active_pus, ..stored.config },
        )
    }

    /// How the target divides its chunks.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Changes how many PUs take new data; 0 is all. The open lines are padded and closed first
    /// (FORMAT.md, Line); where garbage collection is short of chunks they are filled first, since
    /// their rest is reserved for it (rule 18). `Err` with the number of spare lines that are missing at
    /// that width.
    pub fn set_active_pus(&self, cx: &Cx, pus: u32) -> Result<(), u64> {
        let width = self.shape.width(pus);
        let least = get(&self.least_chunk_data).min(create::chunk_data(&self.shape, width));
        let widest = width.max(get(&self.widest_line) as u32);
        let levels = self.layout.levels(&self.shape, width, least, widest)?;
        self.widest_line.store(widest as u64, Ordering::Relaxed);
        self.least_chunk_data.store(least, Ordering::Relaxed);
        self.pools.set_levels(levels);
        self.record_active_pus(pus);
        for pool in self.pools.iter() {
            let abandoned = {
                let mut p = pool.lock();
                let is_new = p.width() != width;
                p.set_width(width);
                // Their rest is lost until they are collected, and two others are opened instead.
                let affordable = p.free_chunks() >= levels.reserve + 2 * levels.line;
                let open = p.current.into_iter().chain(p.spare);
                let open: Vec<u32> = open.filter(|_| is_new && affordable).collect();
                for line in &open {
                    p.stop_filling(*line);
                }
                open
            };
            for line in abandoned {
                self.close_if_ready(cx, line);
            }
        }
        self.note_changes(1);
        self.pool_moved(cx);
        Ok(())
    }

    /// The next mount goes on with as many PUs; in the log with the next commit.
    fn record_active_pus(&self, pus: u32) {
        let mut bytes = self.config.lock();
        if let Ok(mut stored) = create::Stored::decode(&bytes) {
            stored.active_pus = pus;
            *bytes = stored.encode();
            self.journal.append(format::Record::Config { bytes: bytes.clone() });
        }
    }

    /// Lines of these widths hold data: the levels of the limiter cover them.
    fn note_widths(&self, widths: impl Iterator<Item = u32>) {
        let (mut least, mut widest) = (get(&self.least_chunk_data), get(&self.widest_line) as u32);
        for width in widths {
            least = least.min(create::chunk_data(&self.shape, width));
            widest = widest.max(width);
        }
        let width = self.pools.get(0).lock().width();
        // Where the spare does not cover them, what was planned at creation has to do.
        if let Ok(levels) = self.layout.levels(&self.shape, width, least, widest) {
            self.widest_line.store(widest as u64, Ordering::Relaxed);
            self.least_chunk_data.store(least, Ordering::Relaxed);
            self.pools.set_levels(levels);
        }
    }

    /// Turns garbage collection on or off; victims already taken are finished.
    pub fn set_gc(&self, cx: &Cx, on: bool) {
        self.gc.enabled.store(on, Ordering::SeqCst);
        self.wake_collectors(cx);
    }

    /// Collects the line with the fewest valid sectors now, whatever the limiter says (pblk's
    /// `gc_force`). Resolves when its chunks are free; false when there was no candidate.
    pub async fn gc_once(self: &Arc<Self>, cx: &Cx) -> bool {
        self.collect_one(cx).await
    }

    /// Counters since creation.
    pub fn stats(&self) -> FtlStats {
        let c = &self.counters;
        let [full, limited] = self.rings.waits();
        FtlStats {
            host_written: self.rings.sum(|r| r.host_written),
            absorbed: self.rings.sum(|r| r.absorbed),
            discarded_in_buffer: self.rings.sum(|r| r.discarded_in_buffer),
            buffered_now: self.rings.sum(|r| r.buffered_user(&self.slab)),
            programmed: self.pools.programmed(),
            erases: self.pools.sum(|p| p.erases_total),
            ring_full: full.time,
            limited: limited.time,
            flush_wait: Ns::from_ns(get(&c.flush_wait_ns)),
            fua_wait: Ns::from_ns(get(&c.fua_wait_ns)),
            read_breakdown: *c.read_breakdown.lock(),
            ..c.snapshot()
        }
    }

    /// A checkpoint with nothing behind it: the next start needs no replay.
    async fn snapshot(&self, cx: &Cx) -> crate::block::BlockResult {
        let checkpoint = self.checkpoint(cx).await?;
        let at = self.journal.append(format::Record::Stopped { checkpoint });
        self.commit(cx, at).await
    }

    #[inline]
    fn check_writable(&self) -> Result<(), crate::block::BlockError> {
        if !self.read_only() {
            return Ok(());
        }
        let why = self.read_only_why.lock().unwrap_or("nothing can be made durable any more");
        Err(crate::block::BlockError::ReadOnly(why))
    }

    #[inline]
    fn read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Nothing can be made durable any more: writers get errors, reads go on.
    fn give_up(&self, cx: &Cx, why: &'static str) -> crate::block::BlockError {
        // The first reason counts: where the host fails, chunks seem to run out behind it.
        let first = *self.read_only_why.lock().get_or_insert(why);
        self.read_only.store(true, Ordering::Release);
        self.rings.progress.wake(cx);
        self.pool_changed.wake(cx);
        self.wake_collectors(cx);
        self.scrub.work.wake(cx);
        // Whoever waits for room gets it, and an error right after.
        self.rings.open(cx);
        crate::block::BlockError::ReadOnly(first)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Starts a background task that `stop` waits for.
    fn background(
        self: &Arc<Self>,
        cx: &Cx,
        task: impl std::future::Future<Output = ()> + 'static,
    ) {
        self.task_began();
        let (me, their_cx) = (self.clone(), cx.clone());
        cx.spawn(async move {
            task.await;
            me.task_ended(&their_cx);
        });
    }

    /// Something begins that `stop` has to wait for.
    fn task_began(&self) {
        self.tasks.fetch_add(1, Ordering::AcqRel);
    }

    fn task_ended(&self, cx: &Cx) {
        self.tasks.fetch_sub(1, Ordering::AcqRel);
        self.tasks_ended.wake(cx);
    }

    /// Makes everything durable, closes the open lines, writes a snapshot and ends the background tasks:
    /// the next mount finds the map, and reads no line. The target takes no request afterwards.
    pub async fn stop(self: &Arc<Self>, cx: &Cx) -> crate::block::BlockResult {
        let stopped = match self.come_to_rest(cx).await {
            Ok(()) => self.put_away(cx).await,
            failed => failed,
        };
        self.end_tasks(cx).await;
        stopped?;
        // Only now does nobody write to the log any more.
        self.pad_metadata(cx).await;
        if mutant!("log.stop-unsettled") {
            return Ok(());
        }
        self.outlive_host(cx).await
    }

    /// Makes everything durable and ends the background tasks, without a snapshot: for who is not going
    /// to mount the target again. It takes no request afterwards.
    pub async fn quiesce(self: &Arc<Self>, cx: &Cx) -> crate::block::BlockResult {
        let rested = self.come_to_rest(cx).await;
        self.end_tasks(cx).await;
        rested
    }

    /// Finishes the victims that were taken, and flushes.
    async fn come_to_rest(&self, cx: &Cx) -> crate::block::BlockResult {
        self.gc.enabled.store(false, Ordering::SeqCst);
        self.gc.force(false);
        // Victims that were taken are finished: their barriers may pad from now on.
        self.rings.hurry(cx, 1);
        let collecting =
            || self.pools.any(|p| p.count(LineState::Victim) + p.count(LineState::Freeing) > 0);
        self.pool_changed.wait(cx, || !collecting() || self.read_only()).await;
        self.flush(cx).await
    }

    /// Closes the open lines, frees those that hold nothing, waits until nothing is in a slot any more
    /// (the snapshot is to be the map, and can't name slots), writes the snapshot.
    async fn put_away(&self, cx: &Cx) -> crate::block::BlockResult {
        let slots = self.layout.slots as usize;
        loop {
            self.close_all(cx).await?;
            self.check_writable()?;
            if self.rings.is_empty(slots) {
                let logged = || !self.pools.any_line(Line::is_unlogged);
                self.pool_changed.wait(cx, || logged() || self.read_only()).await;
                // Nobody else writes to the log from here on: a patrol that moves it, or a checkpoint that
                // was due, would stand behind `stopped`, and the next start would not be clean.
                if !mutant!("log.stopped-with-tasks") {
                    self.end_tasks(cx).await;
                }
                return self.snapshot(cx).await;
            }
            // A program failed while lines were closed, and what it held needs a line again.
            self.pools.iter().for_each(|pool| pool.lock().opens = true);
            self.pool_changed.wake(cx);
            self.wait_empty(cx).await?;
        }
    }

    /// Closes the open lines, and opens none until told otherwise.
    async fn close_all(&self, cx: &Cx) -> crate::block::BlockResult {
        self.pools.iter().for_each(|pool| pool.lock().opens = false);
        let busy = || self.pools.any(|p| p.is_opening() || p.count(LineState::Closing) > 0);
        let settled = || self.read_only() || !busy();
        self.pool_changed.wait(cx, settled).await;
        let (mut open, mut untouched) = (Vec::new(), Vec::new());
        for pool in self.pools.iter() {
            let (some, none) = pool.lock().take_open_lines();
            open.extend(some);
            untouched.extend(none);
        }
        // First: that waits for the rings, and what goes out again since a program fails while lines are
        // closed finds no line to go to before some are opened again.
        let close = || open.iter().for_each(|line| self.close_if_ready(cx, *line));
        if mutant!("qblk.untouched-freed-last") {
            close();
        }
        if !untouched.is_empty() {
            self.free_lines(cx, &untouched).await?;
            self.all_freed(cx);
        }
        close();
        self.pool_changed.wait(cx, settled).await;
        Ok(())
    }

    async fn end_tasks(&self, cx: &Cx) {
        self.stopping.store(true, Ordering::SeqCst);
        self.rings.iter().for_each(|ring| ring.work.wake(cx));
        for waiting in [&self.rings.progress, &self.pool_changed, &self.scrub.work] {
            waiting.wake(cx);
        }
        self.wake_collectors(cx);
        self.tasks_ended.wait(cx, || self.tasks.load(Ordering::Acquire) == 0).await;
    }
}

impl BlockDev for HostFtl {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if let Err(error) = io.check(&self.info) {
            return Started::Done(Err(error));
        }
        let (lba, sectors) = (io.lba.get(), io.sectors);
        match io.payload {
            Payload::Read(to) => self.read(cx, lba, sectors, to),
            Payload::Write(content) => {
                self.approach(lba);
                self.write(cx, lba, sectors, content, io.fua)
            }
            Payload::None if io.op == BlockOp::Flush => Started::later(self.flush(cx)),
            Payload::None => Started::later(self.discard(cx, lba, sectors.into())),
        }
    }

    #[inline]
    fn expect(&self, op: BlockOp, lba: flashlane_base::Lba) {
        self.map.view().prefetch(lba.get());
        if op == BlockOp::Read {
            self.expect_read(lba.get());
        }
    }

    fn extent(&self, lba: flashlane_base::Lba, most: u64) -> Extent {
        Extent::of(&self.info, lba, most, |lba| self.map.get(lba) != map::Entry::Unmapped)
    }
}
