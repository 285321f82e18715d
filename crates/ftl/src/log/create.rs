//! Creating a target: what fits where, and the first records.
//!
//! Owns: the division of a target's chunks into data, reserve and metadata, the checks that refuse
//! what could not run for ever, the start of the background tasks.
//! Promises: a target that was created never runs out of room by itself: the reserve covers every
//! admitted sector, one padded unit, the padding of page pairs, closing metadata and one victim
//! (FORMAT.md rule 18), and the metadata reserve two full checkpoints, one being written, and the
//! log.
//! Never: recovers an older target (that is `recover`); chunks in use are taken over as free.

use super::checkpoint::Checkpoints;
use super::config::PU_BUDGET_MAX;
use super::epoch::Epochs;
use super::flash::Flash;
use super::format::{EntryWidth, Extent, PACKED_BYTES, Record, STAMP_MAX, ShardHeader};
use super::gc::Control;
use super::journal::{Journal, segment_bytes};
use super::limiter::{Levels, Limiter};
use super::lines::Lines;
use super::map::Map;
use super::pool::{PoolState, Shape};
use super::pools::{Pool, Pools};
use super::recover::{self, MountError};
use super::ring::Ring;
use super::rings::{Rings, idle_slots};
use super::scrub::Scrubber;
use super::sections::Sections;
use super::slab::{RING_BITS, Slab};
use super::victim::Care;
use super::{Costs, Counters, Drain, HostFtl, LogConfig, MapAccess, PoolSet, RingSet};
use crate::block::BlockInfo;
use flashlane_base::{SECTOR_BYTES, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Device};
use flashlane_rt::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use flashlane_rt::{CoreId, Credits, Cx, Notify};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// pblk's default over-provisioning, percent.
const DEFAULT_OVER_PROVISIONING: u32 = 11;
/// Sectors of a write that are admitted at once; longer writes go in pieces.
pub(super) const PIECE_MAX: u32 = VECTOR_MAX as u32;
/// Sectors of a discard that are cleared in one section.
pub(super) const DISCARD_PIECE: u64 = 1 << 16;
/// How far below the durable ceiling stamps keep, ns. A sector's stamp is ahead of the clock only
/// by the overwrites it had within one nanosecond.
pub(super) const STAMP_SLACK: u64 = 1_000_000_000;
/// How far a ceiling is raised at a time, ns: one log block a minute.
pub(super) const STAMP_LEASE: u64 = 60_000_000_000;
/// Log records that may wait to be written; discards wait for the log above it.
pub(super) const BACKLOG_MAX: usize = 4096;
/// Blocks that the log should hold: a line costs two commits, a checkpoint is taken at a quarter,
/// so one is written about once in 128 lines, or more.
const LOG_BLOCKS: u64 = 1024;
/// Lines for which it should hold a block: every checkpoint carries the records of all lines, so there may be
/// some dozens of them while the target is written once, however large it is.
const LINES_PER_BLOCK: u64 = 4;

/// Segment pairs of the log: for [`LOG_BLOCKS`], or more where there are more than 4096 lines, within a
/// two-hundredth of the chunks, at least 6 (one since the last checkpoint, one before, the current one,
/// and what comes meanwhile). Where flushes tell, each writes a block: four times as many, at least
/// 8.
fn log_segments(shape: &Shape, ws_min: u32, good: u64, width: u32, tells: bool) -> u32 {
    let blocks = LOG_BLOCKS.max(good / u64::from(width) / LINES_PER_BLOCK);
    let wanted = (blocks * u64::from(ws_min)).div_ceil(u64::from(shape.chunk_sectors));
    let (times, least) = if tells { (4, 8) } else { (1, 6) };
    (times * wanted).min(times * good / 400).max(least) as u32
}

/// A lane that writes no more need not be two: 6 MiB, which MLC takes a third of a second for.
pub(super) const LANE_SECTORS: u64 = 1536;

/// How many shards are written at a time: each lane has its own chunks, of which the last is not full.
/// What is reserved for three checkpoints of two copies is spare that GC has not, so lanes cost less
/// than a 160th of all chunks, and there are no more than a copy of `sectors` is long for. `per_copy`:
/// chunks of a copy on so many lanes.
fn checkpoint_lanes(shape: &Shape, good: u64, sectors: u64, per_copy: impl Fn(u64) -> u64) -> u64 {
    let price = |lanes: u64| 3 * 2 * per_copy(lanes).saturating_sub(per_copy(1));
    let most = (sectors / LANE_SECTORS).min(u64::from(shape.pus) / 2).clamp(1, 16);
    (1..=most).rev().find(|lanes| price(*lanes) <= good / 160).unwrap_or(1)
}

/// Segments that a checkpoint's own records begin: of its shards and of every line there is.
fn carried_segments(shape: &Shape, ws_min: u32, width: u32, lines: u64, shards: u64) -> u64 {
    let opened = Record::Opened { line: 0, sequence: 0, chunks: vec![0; width as usize] };
    let places = vec![Extent::default(); shape.closing_units(width) as usize];
    let closed = Record::Closed { line: 0, sequence: 0, places };
    let segment = segment_bytes(shape, ws_min) as u64;
    // A record of a shard that an older checkpoint wrote has 8 bytes more. That is not counted, so that
    // the layout of targets of before stays what it is: the lines that take metadata have no records.
    // Places too many for a log block are not recorded at all.
    let line = opened.encoded_len() as u64 + (closed.encoded_len() as u64).min(segment);
    (lines * line + shards * Record::SHARD_BYTES as u64).div_ceil(segment)
}

/// Segments that a checkpoint begins for what is told of lines that are open or being closed, four
/// per pool: 12 bytes for each sector, and what headers and the ends of blocks take.
fn told_segments(shape: &Shape, ws_min: u32) -> u64 {
    let sectors = u64::from(shape.pus) * u64::from(shape.chunk_sectors);
    (4 * sectors * 16).div_ceil(segment_bytes(shape, ws_min) as u64)
}

/// How a target divides what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub good_chunks: u64,
    /// Chunks kept for the log, its anchor, checkpoints, and two to replace failing ones.
    pub meta_chunks: u64,
    /// Pools of lines: one, or one per channel.
    pub pools: u32,
    /// Write buffers: one, or one per core.
    pub rings: u32,
    /// Chunks in a line, as created.
    pub width: u32,
    /// Data sectors in such a line.
    pub line_data: u64,
    /// Lines of that width that make up the data part, over all pools.
    pub lines: u64,
    /// Lines that users may never touch, over all pools.
    pub reserve_lines: u64,
    /// Free lines below which GC runs, over all pools.
    pub start_lines: u64,
    /// Slots of the rings, all together.
    pub ring_sectors: u64,
    /// Sectors that may be admitted and not yet programmed: the ring and two padded units.
    pub admitted: u64,
    /// Slots in all: ring, read-back windows, GC's own.
    pub slots: u32,
    /// Sectors admitted at once.
    pub piece_sectors: u32,
    pub log_segments: u32,
    /// Shards of a checkpoint that are written at a time, each on two PUs of its own.
    pub checkpoint_lanes: u32,
    /// Chunks that the two copies of a whole checkpoint may take.
    pub checkpoint_chunks: u64,
    /// Sectors that a shard takes at most, but for its listed stamps.
    pub shard_sectors: u32,
    /// Sectors that the listed stamps of all shards may take.
    pub listed_sectors: u32,
    /// Map entries in one checkpoint shard.
    pub shard_entries: u32,
    /// Bytes of a map entry, in memory and in shards.
    pub entry_width: EntryWidth,
    /// Logical sectors.
    pub capacity: u64,
}

/// The most that a target may keep from its host, percent.
const OVER_PROVISIONING_MAX: u32 = 80;

/// What would make room.
fn remedy(percent: u32) -> String {
    let always = "more chunks, a smaller ring, fewer active PUs";
    match percent {
        ..=OVER_PROVISIONING_MAX => {
            format!("over-provisioning of at least {percent}%, or {always}")
        }
        _ => format!("{always}; no over-provisioning would do"),
    }
}

/// Why a target was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error("over-provisioning of {0}% is outside 3..=80")]
    OverProvisioning(u32),
    #[error("{active} active PUs, but the target has {pus}")]
    ActivePus { active: u32, pus: u32 },
    /// The ring could never hold a unit and the request behind it.
    #[error("a ring of {ring} slots is too small: at least {least} (max(128, 4 × ws_opt))")]
    Ring { ring: u32, least: u32 },
    #[error("ws_opt of {0} sectors is above the 64 of one vector command")]
    WriteUnit(u32),
    #[error(
        "too small: {lines} lines of {line_data} sectors can't hold {need} lines of data and reserve; \
         use {}", remedy(*percent)
    )]
    TooSmall {
        lines: u64,
        /// Data sectors per line.
        line_data: u64,
        /// Lines that capacity and reserve need.
        need: u64,
        /// The smallest over-provisioning that works; above 80 when none does that one can have.
        percent: u32,
    },
    /// Lines hold so little beside what a flush pads in them that no over-provisioning would do.
    #[error(
        "chunks too short: a flush pads up to {pads} of a line's {line_data} data sectors, so that \
         no page pair is torn; use longer chunks, or a device whose pairs are safe \
         (pair_damage = false)"
    )]
    PairPadding {
        /// Data sectors per line.
        line_data: u64,
        /// Sectors that close all pairs of a line.
        pads: u64,
    },
    /// The device allows fewer open chunks than a line, its spare and the log need.
    #[error("the device allows {allowed} open chunks, the target needs {needed}")]
    OpenChunks { allowed: u32, needed: u32 },
    /// A setting that makes no sense, and what would do.
    #[error("{0}")]
    Setting(&'static str),
    #[error("the target could not be started: {0}")]
    Start(#[from] crate::block::BlockError),
}

/// pblk's ring: sectors to write before the first can be read, on every PU (golden example:
/// 64 KiB × 8 × 128 PUs = 64 MiB); eight units per PU where the medium needs no window.
fn default_ring(shape: &Shape) -> u32 {
    let per_pu = shape.window.max(8 * shape.unit);
    (per_pu * shape.pus).max(least_ring(shape))
}

fn least_ring(shape: &Shape) -> u32 {
    128.max(4 * shape.unit)
}

/// What the log keeps of a target's making: whoever mounts it plans the same layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    /// As created: the layout follows from it.
    pub(super) config: LogConfig,
    /// PUs that take new data at a time now; 0 is all.
    pub(super) active_pus: u32,
    /// Good chunks when it was created: its capacity follows from them.
    pub(super) good_chunks: u64,
    pus: u32,
    chunks_per_pu: u32,
    chunk_sectors: u32,
    unit: u32,
    /// Rings, as many as the host had cores then.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(super) rings: u32,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

impl Stored {
    fn new(config: &LogConfig, good_chunks: u64, shape: &Shape, rings: u32) -> Stored {
        let Shape { pus, chunks_per_pu, chunk_sectors, unit, .. } = *shape;
        let active_pus = config.active_pus;
        let config = config.clone();
        Stored { config, active_pus, good_chunks, pus, chunks_per_pu, chunk_sectors, unit, rings }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and names")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Stored, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// Is this the device that the target was created on?
    pub(super) fn check_device(&self, shape: &Shape) -> Result<(), MountError> {
        let mut here = Stored::new(&self.config, self.good_chunks, shape, self.rings);
        here.active_pus = self.active_pus;
        let chunks = u64::from(shape.pus) * u64::from(shape.chunks_per_pu);
        if *self == here && self.good_chunks <= chunks {
            return Ok(());
        }
        let text = |s: &Stored| {
            format!(
                "{} PUs of {} chunks of {} sectors, written {} at a time",
                s.pus, s.chunks_per_pu, s.chunk_sectors, s.unit
            )
        };
        Err(MountError::Device { created: text(self), found: text(&here) })
    }
}

/// Lines that there are, data sectors of each, lines that a layout would need.
#[derive(Debug)]
struct TooFew {
    lines: u64,
    line_data: u64,
    need: u64,
}

impl Layout {
    pub(super) fn plan(
        shape: &Shape,
        ws_min: u32,
        good: u64,
        c: &LogConfig,
        rings: u32,
    ) -> Result<Layout, CreateError> {
        let asked = c.over_provisioning_percent;
        if asked != 0 && !(3..=OVER_PROVISIONING_MAX).contains(&asked) {
            return Err(CreateError::OverProvisioning(asked));
        }
        if c.active_pus > shape.pus {
            return Err(CreateError::ActivePus { active: c.active_pus, pus: shape.pus });
        }
        if shape.unit > VECTOR_MAX as u32 {
            return Err(CreateError::WriteUnit(shape.unit));
        }
        c.check().map_err(CreateError::Setting)?;
        if rings == 0 || rings >= 1 << RING_BITS {
            return Err(CreateError::Setting(
                "a target has one ring, or one for each of 65535 cores",
            ));
        }
        let least = least_ring(shape);
        let ring = c.ring_sectors.unwrap_or(default_ring(shape));
        if ring < least {
            return Err(CreateError::Ring { ring, least });
        }
        let ring = (ring / rings).max(least);
        let physical = u64::from(shape.pus) * u64::from(shape.chunks_per_pu);
        let physical = physical * u64::from(shape.chunk_sectors);
        if slots_of(shape, rings, ring) > physical.min(1 << 30) {
            let why =
                "a write buffer that is larger than the medium: use fewer slots, or fewer cores";
            return Err(CreateError::Setting(why));
        }
        let width = shape.width(c.active_pus);
        let (line_data, pads) = (shape.line_data(width), (shape.pair_pads * width) as u64);
        // Lines that may hold a fifth take what 80% of over-provisioning leaves, never less.
        if pads > 0 && line_data.saturating_sub(pads) * 5 <= line_data {
            return Err(CreateError::PairPadding { line_data, pads });
        }
        let plan = |percent| Layout::try_plan(shape, ws_min, good, (rings, ring), c, percent);
        let percent = if asked == 0 { DEFAULT_OVER_PROVISIONING } else { asked };
        let smallest = || (percent..=OVER_PROVISIONING_MAX).find(|p| plan(*p).is_ok());
        plan(percent).or_else(|TooFew { lines, line_data, need }| match smallest() {
            Some(enough) if asked == 0 => Ok(plan(enough).expect("just planned")),
            enough => Err(CreateError::TooSmall {
                lines,
                line_data,
                need,
                percent: enough.unwrap_or(101),
            }),
        })
    }

    /// The layout at a given over-provisioning; `Err` with the lines it would need.
    fn try_plan(
        shape: &Shape,
        ws_min: u32,
        good: u64,
        (rings, ring): (u32, u32),
        c: &LogConfig,
        percent: u32,
    ) -> Result<Layout, TooFew> {
        let width = shape.width(c.active_pus);
        let line_data = shape.line_data(width);
        let chunk = shape.chunk_sectors as u64;
        // Metadata of lines is not the host's.
        let provisioned = good * (100 - percent as u64) / 100;
        let capacity = provisioned * line_data / width as u64;
        let slots = slots_of(shape, rings, ring) as u32;
        let physical = (shape.pus * shape.chunks_per_pu) as u64 * chunk;
        let entry_width = match Map::is_narrow(physical, slots + 1) {
            true => EntryWidth::Four,
            false => EntryWidth::Eight,
        };
        let shard_entries = match c.shard_entries {
            0 => shard_entries(shape, entry_width),
            most => shard_entries(shape, entry_width).min(most),
        };
        let shards = capacity.div_ceil(shard_entries as u64);
        let shard_sectors = shard_sectors(shard_entries, entry_width, ws_min);
        // Shards with the stamps of slots that they list, wherever those fall: each may round up to
        // one more write unit, and leave room at the end of a chunk that the next does not fit.
        // A shard always fits a chunk.
        let listed = (slots as u64 * PACKED_BYTES as u64).div_ceil(SECTOR_BYTES as u64);
        let longest = (shard_sectors + ws_min) as u64;
        let per_copy = |lanes: u64| {
            let per_lane = shards.div_ceil(lanes);
            let sectors = per_lane * longest + listed;
            let chunks = sectors.div_ceil(chunk.saturating_sub(longest).max(1));
            chunks.min(per_lane) * lanes.min(shards)
        };
        let lanes = checkpoint_lanes(shape, good, shards * longest, per_copy);
        let per_copy = per_copy(lanes);
        let log_segments = log_segments(shape, ws_min, good, width, c.flush_records);
        // The log reaches back over two checkpoints and the one that is being written, each of which
        // writes the records of all lines again.
        let carried = carried_segments(shape, ws_min, width, good / width as u64, shards);
        let carried = carried + if c.flush_records { told_segments(shape, ws_min) } else { 0 };
        let meta_chunks = 2 * (log_segments as u64 + 3 * carried) + 2 + 3 * 2 * per_copy + 2;
        let mut layout = Layout {
            good_chunks: good,
            meta_chunks,
            pools: shape.pools,
            rings,
            width,
            line_data,
            lines: good.saturating_sub(meta_chunks) / width as u64,
            reserve_lines: 0,
            start_lines: 0,
            ring_sectors: u64::from(rings * ring),
            admitted: u64::from(rings * (ring + 2 * shape.unit)),
            slots,
            piece_sectors: PIECE_MAX.min(ring / 4),
            log_segments,
            checkpoint_lanes: lanes as u32,
            checkpoint_chunks: 2 * per_copy,
            shard_sectors: longest as u32,
            listed_sectors: listed as u32,
            shard_entries,
            entry_width,
            capacity,
        };
        if capacity == 0 {
            return Err(TooFew { lines: layout.lines, line_data, need: u64::MAX });
        }
        match layout.levels(shape, width, u64::MAX, width) {
            Ok(levels) => {
                let pools = u64::from(shape.pools);
                layout.reserve_lines = pools * levels.reserve / width as u64;
                layout.start_lines = pools * levels.start / width as u64;
                Ok(layout)
            }
            Err(missing) => {
                let need = layout.lines + missing;
                Err(TooFew { lines: layout.lines, line_data, need })
            }
        }
    }

    /// Between which free chunks the limiter of each pool works when lines are `width` chunks wide: a
    /// pool has its part of everything. `Err` with the number of lines that are missing for that.
    /// `least`: the fewest data sectors per chunk ([`chunk_data`]) at any width used so far, since
    /// lines of all those widths may hold the data.
    /// `widest`: the most chunks in a line at any of those widths, since a victim may be as wide.
    pub(super) fn levels(
        &self,
        shape: &Shape,
        width: u32,
        least: u64,
        widest: u32,
    ) -> Result<Levels, u64> {
        let (line, pools) = (width as u64, u64::from(shape.pools));
        let lines = self.good_chunks.saturating_sub(self.meta_chunks) / (line * pools);
        let line_data = (least.min(chunk_data(shape, width)) * line).div_ceil(1 << 16).max(1);
        // An erase barrier pads the pairs of the chunks that the moves went to. A collection wins
        // room nevertheless if the lines hold that much less on average, the victim least of all.
        let pads = shape.pair_pads as u64;
        let held = line_data.saturating_sub(pads * line).max(1);
        let data = self.capacity.div_ceil(held * pools);
        // Each unit in the ring may be one that a flush pads for.
        let admitted = self.admitted.div_ceil(pools);
        let admitted = admitted + admitted.div_ceil(shape.unit as u64) * pads;
        // What is admitted, one victim, and the rest of a line that a stop in time leaves unused.
        let reserve = admitted.div_ceil(line_data) + (widest as u64).div_ceil(line) + 1;
        // Beyond data and reserve: the line being filled, its spare, one between the levels.
        let need = data + reserve + 3;
        if need > lines {
            return Err(pools * (need - lines));
        }
        // GC starts late, so that victims are as empty as can be, but with room for the limiter to
        // work in: up to four lines above the reserve.
        let start = reserve + (lines - data - reserve - 2).clamp(1, 4);
        Ok(Levels { start: start * line, reserve: reserve * line, line })
    }
}

/// Slots of so many rings: what each admits and may keep, and the read-back windows of the open lines,
/// at the widest they can be set to, with what ended there before a unit in front of it.
fn slots_of(shape: &Shape, rings: u32, ring: u32) -> u64 {
    let windows = 3 * u64::from(shape.pus) * u64::from(shape.window + shape.behind + shape.unit);
    u64::from(rings) * (u64::from(ring) + u64::from(PIECE_MAX + idle_slots(rings))) + windows
}

/// Data sectors per chunk in lines of a width, in 2^-16 sectors.
pub(super) fn chunk_data(shape: &Shape, width: u32) -> u64 {
    (shape.line_data(width) << 16) / width as u64
}

/// Entries of a shard: what fits one full vector, and even if every entry had a listed stamp, one
/// chunk.
fn shard_entries(shape: &Shape, width: EntryWidth) -> u32 {
    let header = ShardHeader::encoded_len(width, 0, 0);
    let vector = VECTOR_MAX * SECTOR_BYTES - header;
    // One write unit of the chunk is lost to rounding at most.
    let chunk = (shape.chunk_sectors - shape.unit) as usize * SECTOR_BYTES - header;
    (vector / width.bytes()).min(chunk / (width.bytes() + PACKED_BYTES)) as u32
}

fn shard_sectors(entries: u32, width: EntryWidth, ws_min: u32) -> u32 {
    let bytes = ShardHeader::encoded_len(width, entries as usize, 0);
    (bytes.div_ceil(SECTOR_BYTES) as u32).next_multiple_of(ws_min)
}

pub(super) fn shape_of(device: &dyn Device) -> Shape {
    let g = device.geometry();
    Shape {
        pus: g.pus(),
        channels: g.channels,
        pools: 1,
        behind: 0,
        chunks_per_pu: g.chunks_per_pu,
        chunk_sectors: g.sectors_per_chunk(),
        unit: g.ws_opt,
        window: g.mw_cunits,
        pair_pads: if device.traits().pair_damage { g.mw_cunits } else { 0 },
    }
}

/// A device's shape, divided into the pools that a target of this configuration has.
pub(super) fn divided(shape: Shape, config: &LogConfig) -> Shape {
    let pools = match config.pools {
        PoolSet::All => 1,
        PoolSet::PerChannel => shape.channels,
    };
    Shape {
        pools,
        behind: config.pu_budget.min(PU_BUDGET_MAX).saturating_sub(1) * shape.unit,
        ..shape
    }
}

/// Good chunks of a device, as it reports them.
fn good_chunks(device: &dyn Device, shape: &Shape) -> Vec<(u32, ChunkInfo)> {
    let mut good = Vec::new();
    for pu in 0..shape.pus {
        let report = device.chunk_report(pu, 0, shape.chunks_per_pu);
        for (chunk, info) in report.iter().enumerate() {
            let whole = info.length == shape.chunk_sectors || info.state != ChunkState::Free;
            if info.state != ChunkState::Offline && whole {
                let id = pu * shape.chunks_per_pu + chunk as u32;
                good.push((id, *info));
            }
        }
    }
    good
}

fn check_open_limits(device: &dyn Device, pus: u32) -> Result<(), CreateError> {
    let (device_max, pu_max) = device.traits().max_open;
    // A filling line, its spare, two being closed, at whatever width they can be set to; log, anchor
    // and checkpoint on two PUs each.
    let needed = 4 * pus + 6;
    if device_max != 0 && device_max < needed {
        return Err(CreateError::OpenChunks { allowed: device_max, needed });
    }
    let per_pu = 4 + 3;
    if pu_max != 0 && pu_max < per_pu {
        return Err(CreateError::OpenChunks { allowed: pu_max, needed: per_pu });
    }
    Ok(())
}

impl HostFtl {
    /// Creates a target over all PUs of `device` (give it a partition for fewer) and starts its
    /// background tasks on the caller's core. Everything that was on the chunks is gone.
    pub async fn create(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: LogConfig,
    ) -> Result<Arc<HostFtl>, CreateError> {
        let shape = divided(shape_of(&*device), &config);
        let good = good_chunks(&*device, &shape);
        let ws_min = device.geometry().ws_min;
        let rings = match config.rings {
            RingSet::One => 1,
            RingSet::PerCore if config.cores == 0 => cx.cores(),
            RingSet::PerCore => config.cores,
        };
        let layout = Layout::plan(&shape, ws_min, good.len() as u64, &config, rings)?;
        check_open_limits(&*device, shape.pus)?;
        let flash = Flash::new(device);
        if !mutant!("log.older-target-left") {
            recover::erase_older(cx, &flash, shape).await;
        }
        let mut uuid = [0u8; 16];
        let mut draw = cx.stream("ftl.uuid");
        uuid[..8].copy_from_slice(&draw.next_u64().to_le_bytes());
        uuid[8..].copy_from_slice(&draw.next_u64().to_le_bytes());
        let stored = Stored::new(&config, good.len() as u64, &shape, rings);
        let meta = layout.meta_chunks;
        let journal = Journal::new(uuid, config.flush_records);
        let ftl = HostFtl::build(cx, flash, stored, shape, layout, 1, journal);
        for (chunk, info) in &good_chunks(&*ftl.flash.device, &shape) {
            let mut p = ftl.pools.of_chunk(*chunk).lock();
            p.set_erases(*chunk, info.erases);
            p.put_chunk(*chunk, info.state != ChunkState::Free);
        }
        ftl.pools.reserve_meta(meta);
        ftl.begin_journal(cx).await?;
        ftl.raise_ceiling(cx).await?;
        if !mutant!("log.create-unsettled") {
            ftl.outlive_host(cx).await?;
        }
        ftl.start(cx);
        Ok(ftl)
    }

    /// Starts the background tasks.
    pub(super) fn start(self: &Arc<Self>, cx: &Cx) {
        self.pool_moved(cx);
        // Each of many pools and rings has a core of its own where cores can be reached.
        let home = |i: usize| match cx.is_virtual() {
            true => cx.on_core(CoreId(i as u32 % cx.cores())),
            false => cx.clone(),
        };
        for pool in 0..self.pools.len() {
            let cx = home(pool);
            self.background(&cx, self.clone().open_loop(cx.clone(), pool));
        }
        if !self.starts_late {
            for ring in self.rings.iter() {
                self.start_drainer(&home(ring.at), ring);
            }
        }
        for pool in 0..self.pools.len() {
            let cx = home(pool);
            self.background(&cx, self.clone().gc_loop(cx.clone(), pool));
        }
        self.background(cx, self.clone().free_loop(cx.clone()));
        self.background(cx, self.clone().checkpoint_loop(cx.clone()));
        if self.scrub.is_on() {
            self.background(cx, self.clone().scrub_loop(cx.clone()));
        }
    }

    /// Somebody is going to put something into a ring: it has a drainer from now on.
    #[inline]
    pub(super) fn serve(&self, cx: &Cx, ring: &Ring) {
        if self.starts_late && !ring.is_drained.load(Ordering::Relaxed) {
            self.start_drainer(cx, ring);
        }
    }

    #[cold]
    fn start_drainer(&self, cx: &Cx, ring: &Ring) {
        let Some(me) = self.me.upgrade() else { return };
        if !ring.is_drained.swap(true, Ordering::AcqRel) {
            me.background(cx, me.clone().drain_loop(cx.clone(), ring.at));
        }
    }

    pub(super) fn build(
        cx: &Cx,
        flash: Flash,
        stored: Stored,
        shape: Shape,
        layout: Layout,
        next_line: u64,
        journal: Journal,
    ) -> Arc<HostFtl> {
        let (geo, traits) = (flash.geo, *flash.device.traits());
        let (chunks, config) = (geo.chunks(), &stored.config);
        let exclusive = config.map == MapAccess::Locked;
        let is_shared = !exclusive && !cx.is_virtual() && cx.cores() > 1;
        let sections = Arc::new(Sections::new(if is_shared { cx.cores() } else { 0 }));
        let per_ring = layout.ring_sectors / u64::from(layout.rings);
        let next_line = Arc::new(AtomicU64::new(next_line));
        let levels =
            layout.levels(&shape, layout.width, u64::MAX, layout.width).expect("planned with it");
        Arc::new_cyclic(|me| HostFtl {
            me: me.clone(),
            info: BlockInfo {
                capacity: layout.capacity,
                content_bytes: traits.content_bytes,
                layer: config.layer(),
            },
            map: Map::new(layout.capacity, geo.sectors(), layout.slots + 1, exclusive)
                .in_shards(layout.shard_entries),
            // One slot more: zeros, the content of padding.
            slab: Slab::new(layout.slots + 1, traits.content_bytes, cx.is_virtual(), is_shared),
            rings: Rings::new(
                layout.rings,
                per_ring,
                (layout.slots, shape.unit),
                if cx.is_virtual() { shape.pools.min(cx.cores()) } else { 1 },
                sections.clone(),
            ),
            sections,
            drain: config.drain,
            tells: config.flush_records,
            request_units: match config.drain {
                Drain::Minimum => 1,
                Drain::Large => (VECTOR_MAX as u32 / shape.unit).min(shape.pool_pus()) as usize,
            },
            channel_choice: config.channel_choice,
            in_ring_order: config.in_ring_order,
            full_ring_retry: config.full_ring_retry,
            drainers: config.drainers,
            completion_cores: config.completion_cores,
            borrow: config.borrow && layout.rings > 1,
            starts_late: layout.rings > 1 && !cx.is_virtual(),
            zeros: vec![0; shape.unit as usize * SECTOR_BYTES].into(),
            units: Mutex::new(Vec::new()),
            lines: Lines::new(chunks, shape.chunk_sectors, exclusive),
            pools: Pools::new(
                &shape,
                next_line.clone(),
                (0..shape.pools).map(|pool| {
                    let (width, least_worn) =
                        (shape.width(stored.active_pus), config.wear.least_worn_first());
                    let unit = u64::from(shape.unit);
                    let limiter = Limiter::new(config.limiter, levels, layout.ring_sectors, unit);
                    let next_line = next_line.clone();
                    Pool::new(PoolState::new(shape, pool, width, least_worn, next_line), limiter)
                }),
            ),
            pool_changed: Notify::new(),
            pu: (0..shape.pus).map(|_| Credits::new(u64::from(config.pu_budget))).collect(),
            pu_budget: u64::from(config.pu_budget),
            gc: Control::new(config.gc),
            care: Care::new(config.wear),
            scrub: Scrubber::new(config.scrub, cx.now(), layout.lines),
            epochs: Epochs::new(cx.cores()),
            journal,
            checkpoints: Checkpoints::new(),
            ceiling: AtomicU64::new(0),
            ceiling_asked: AtomicU64::new(0),
            ceiling_raising: AtomicBool::new(false),
            ceiling_raised: Notify::new(),
            floor: AtomicU64::new(0),
            sharing: Mutex::new(()),
            discarding: Credits::new(1),
            poisons: Mutex::new(std::collections::BTreeMap::new()),
            costs: Costs::of(cx, layout.rings > 1, exclusive),
            expected: super::read::Expected::default(),
            counters: Counters::default(),
            core_counts: (0..cx.cores()).map(|_| Default::default()).collect(),
            padding_dist: (0..=VECTOR_MAX).map(|_| AtomicU64::new(0)).collect(),
            trip_start: Mutex::new([0; 3]),
            widest_line: AtomicU64::new(layout.width as u64),
            least_chunk_data: AtomicU64::new(chunk_data(&shape, layout.width)),
            stopping: AtomicBool::new(false),
            tasks: AtomicU64::new(0),
            tasks_ended: Notify::new(),
            read_only: AtomicBool::new(false),
            read_only_why: Mutex::new(None),
            flash,
            config: Mutex::new(stored.encode()),
            recovery: Mutex::new(None),
            traits,
            shape,
            layout,
        })
    }

    /// The durable bound of stamps, ns; nothing above it has been issued.
    pub fn stamp_ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Acquire).min(STAMP_MAX)
    }
}
