//! How S-FTL is built: its settings, the division of the chunks, what is refused.
//!
//! Owns: [`SftlConfig`], the [`Division`] that follows from it. Promises: what is out of range, or does
//! not fit the device, is refused with the place and the remedy before anything is written. Never:
//! looks at what lies on the device, other than which chunks are bad or not erased.

use super::busy::Watched;
use super::ledger::{Behind, Ledger, Shape};
use super::map::{Block, BlockState, Channel, Map, OpenLimit, Segment};
use super::{Sftl, SftlInfo};
use crate::block::BlockError;
use crate::kit::{self, DriveConfig, DriveFtl, Need};
use crate::pftl::PftlConfig;
use flashlane_base::{Bytes, Geometry, SECTOR_BYTES, VECTOR_MAX};
use flashlane_ocssd::Partition;
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Device, Traits};
use flashlane_rt::sync::{AtomicBool, Mutex};
use flashlane_rt::{Cx, Notify};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// Spare lines of the page-mapped region beyond what its FTL needs: bad chunks come out of them, so that it
/// never runs out of room.
const META_SPARE_LINES: u64 = 3;
/// The same on a device with fewer chunks per PU than [`SMALL_CHUNKS`]
/// ([`SftlConfig::small_spare`]): one of eight PUs that is lost takes about as many chunks as a
/// line has.
const SMALL_SPARE_LINES: u64 = 1;
const SMALL_CHUNKS: u32 = 120;
/// Sectors of the page-mapped region, at least, that are the file system's.
const META_SECTORS_MIN: u64 = 64;
/// Blocks of a channel, at least, that are spare for bad ones.
const SPARE_BLOCKS_MIN: u32 = 2;

/// How it is built. In TOML every key may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SftlConfig {
    /// Share of each PU's chunks that is page-mapped, in percent, 1 to 50; more where its FTL needs more.
    /// A file system that needs more still does not take it: it is refused, with the percent that would do.
    pub meta_percent: u32,
    /// Share of the other chunks that is spare for bad blocks, in percent, 0 to 50; two blocks of each
    /// channel at least.
    pub over_provisioning_percent: u32,
    /// A flush also writes records of the page-mapped region on a second channel, so that a mount
    /// after a cut can tell which sectors a lost PU had ([`PftlConfig::flush_records`]).
    /// Not written if false, so that older programs can read the settings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub flush_records: bool,
    /// One spare line of the page-mapped region, not three, on a device with fewer than 120 chunks
    /// per PU. Not kept: the region stays as it came out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub small_spare: bool,
    /// Page-mapped chunks of each PU, as they came out: what is on the medium does not change with a
    /// formula.
    pub meta_chunks: Option<u32>,
    /// Over-provisioning of the page-mapped region, as it came out.
    pub meta_over_provisioning_percent: Option<u32>,
    /// Segments of each channel, as they came out.
    pub segments: Option<u32>,
    /// Mount although sectors of the page-mapped region can't be read that were good once. Chunks
    /// of segments that can't be read stay as they are; the first change through logical sectors
    /// ([`super::Face`]) gives them up.
    pub accept_lost_sectors: bool,
}

impl Default for SftlConfig {
    fn default() -> SftlConfig {
        SftlConfig {
            // ParaFS keeps its in-place metadata in "a small page-level FTL" and does not say how
            // small: about 12 of 256 blocks of its device.
            meta_percent: 5,
            // Data sheets allow 2% of a die's blocks to go bad.
            over_provisioning_percent: 2,
            flush_records: false,
            small_spare: false,
            meta_chunks: None,
            meta_over_provisioning_percent: None,
            segments: None,
            accept_lost_sectors: false,
        }
    }
}

/// Why S-FTL can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    #[error("{field} is {value}, it must be {range}")]
    Config { field: &'static str, value: u64, range: &'static str },
    #[error("{what}: the device has {has}, give it {needed} or more{}", or_a_capacity(capacity))]
    TooSmall {
        what: &'static str,
        has: u32,
        needed: u32,
        /// Of a device that has as many, where that is all that it needs.
        capacity: Option<Bytes>,
    },
    /// Nothing of the region could be the file system's.
    #[error(
        "a page pair reaches over {pairs} of the {chunk} sectors of a chunk: the page-mapped region \
         would be all padding; choose a device with longer chunks"
    )]
    Pairs { pairs: u32, chunk: u32 },
    #[error(
        "a write unit has {unit} sectors, a command at most {VECTOR_MAX}: choose another device"
    )]
    Unit { unit: u32 },
    #[error("{chunks} chunks are not blank; reset them first, their data would be lost")]
    NotBlank { chunks: u64 },
    #[error(
        "the device allows {limit} open chunks, {needed} are needed beside the page-mapped region: \
         raise limits.max_open"
    )]
    OpenLimit { limit: u32, needed: u32 },
    #[error("the page-mapped region: {0}")]
    Meta(#[from] kit::CreateError),
    #[error("the list of bad blocks could not be written: {0}")]
    Ledger(BlockError),
}

/// The chunks of the whole device, divided.
pub(super) struct Division {
    pub(super) config: SftlConfig,
    pub(super) meta: Arc<Watched>,
    pub(super) data: Arc<Partition>,
    pub(super) info: SftlInfo,
    pub(super) limit: OpenLimit,
    pub(super) shape: Shape,
    pub(super) first_chunk: u32,
}

impl Division {
    /// Of a new one, or of one that may be on the medium: then blocks may have gone bad since, and unless the
    /// settings say so it is not known yet how many segments there are.
    pub(super) fn of(
        device: Arc<dyn Device>,
        config: SftlConfig,
        new: bool,
    ) -> Result<Division, CreateError> {
        check(&config)?;
        let (geo, traits) = (*device.geometry(), *device.traits());
        if geo.ws_min as usize > VECTOR_MAX {
            return Err(CreateError::Unit { unit: geo.ws_min });
        }
        let limit = open_limit(&traits, geo.pus(), geo.channels)?;
        let mut config = config;
        let (meta_chunks, percent) =
            match (config.meta_chunks, config.meta_over_provisioning_percent) {
                (Some(chunks), Some(percent)) => (chunks, percent),
                _ => meta_region(&*device, &config)?,
            };
        let (pus, last) = ((0, geo.pus() - 1), geo.chunks_per_pu - 1);
        let per_channel = geo.pus_per_channel * geo.chunks_per_pu.saturating_sub(meta_chunks);
        let spare = (per_channel * config.over_provisioning_percent).div_ceil(100);
        let spare = spare.max(SPARE_BLOCKS_MIN);
        if meta_chunks > last || per_channel <= spare {
            let needed =
                meta_chunks + (spare.max(SPARE_BLOCKS_MIN) + 1).div_ceil(geo.pus_per_channel);
            let what =
                "chunks per PU: the page-mapped region and the spare blocks leave no segment";
            return Err(too_few_chunks(&geo, what, needed));
        }
        let meta = Partition::of_chunks(device.clone(), pus, (0, meta_chunks - 1));
        let data = Partition::of_chunks(device, pus, (meta_chunks, last));
        let segments = match config.segments {
            Some(segments) if segments <= per_channel => segments,
            Some(segments) => {
                let what = "blocks per channel: the settings say more segments";
                let (has, needed) = (per_channel, segments);
                return Err(CreateError::TooSmall { what, has, needed, capacity: None });
            }
            None if !new => per_channel - spare,
            None => {
                let good = |channel| good_blocks(&data, channel);
                let fewest = (0..geo.channels).map(good).min().unwrap_or(0);
                if fewest <= spare {
                    let what = "good blocks in a channel, bad ones aside";
                    let (has, needed) = (fewest, spare + 1);
                    return Err(CreateError::TooSmall { what, has, needed, capacity: None });
                }
                fewest - spare
            }
        };
        config.meta_chunks = Some(meta_chunks);
        config.meta_over_provisioning_percent = Some(percent);
        config.segments = Some(segments);
        let data_geo = data.geometry();
        let info = SftlInfo {
            channels: geo.channels,
            channel_pus: geo.pus_per_channel,
            segments,
            segment_sectors: geo.sectors_per_chunk(),
            page_sectors: geo.ws_min,
            content_bytes: traits.content_bytes,
            pair_sectors: if traits.pair_damage { traits.pair_sectors } else { 0 },
            open_segments: match (limit.all, limit.per_pu) {
                (0, 0) => 0,
                (0, per_pu) => per_pu * geo.pus_per_channel,
                (all, 0) => all / geo.channels,
                (all, per_pu) => (all / geo.channels).min(per_pu * geo.pus_per_channel),
            },
        };
        let shape = Shape::new(data_geo, meta_chunks, &info);
        let (meta, data) = (Arc::new(Watched::new(Arc::new(meta))), Arc::new(data));
        Ok(Division { config, meta, data, info, limit, shape, first_chunk: meta_chunks })
    }

    /// Settings of the FTL of the page-mapped region.
    pub(super) fn meta_config(&self) -> DriveConfig {
        let percent = self.config.meta_over_provisioning_percent.unwrap_or(90);
        let SftlConfig { accept_lost_sectors, flush_records, .. } = self.config;
        DriveConfig { accept_lost_sectors, ..meta_config(percent, flush_records) }
    }

    /// The blocks of each channel as the chunk report has them, none of them in use.
    pub(super) fn blocks(&self) -> (Vec<Channel>, Vec<Vec<ChunkInfo>>) {
        let geo = *self.data.geometry();
        let per_pu = geo.pus_per_channel;
        let mut channels = Vec::new();
        let mut reports = Vec::new();
        for channel in 0..self.info.channels {
            let (mut blocks, mut infos) = (Vec::new(), Vec::new());
            for pu in channel * per_pu..(channel + 1) * per_pu {
                let report = self.data.chunk_report(pu, 0, geo.chunks_per_pu);
                for (chunk, info) in (0..).zip(report) {
                    let state = match info.state {
                        ChunkState::Offline => BlockState::Retired,
                        _ => BlockState::Free,
                    };
                    blocks.push(Block { pu, chunk, erases: info.erases, state });
                    infos.push(info);
                }
            }
            let segments = (0..self.info.segments).map(|_| Segment::empty()).collect();
            channels.push(Channel { blocks, segments });
            reports.push(infos);
        }
        (channels, reports)
    }
}

impl Sftl {
    /// Builds it over all of `device`, which must be blank, and starts the tasks of the page-mapped region
    /// on the core of `cx`.
    pub async fn create(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: SftlConfig,
    ) -> Result<Arc<Sftl>, CreateError> {
        let division = Division::of(device, config, true)?;
        let (channels, reports) = division.blocks();
        let used = |i: &&ChunkInfo| !matches!(i.state, ChunkState::Free | ChunkState::Offline);
        let chunks = reports.iter().flatten().filter(used).count() as u64;
        if chunks > 0 {
            return Err(CreateError::NotBlank { chunks });
        }
        let meta = DriveFtl::create(cx, division.meta.clone(), division.meta_config())?;
        let ledger = Ledger::new(meta.clone(), division.shape);
        ledger.write_new(cx).await.map_err(CreateError::Ledger)?;
        let map = Map {
            channels,
            segment_sectors: division.info.segment_sectors,
            generation: 1,
            doubts: Vec::new(),
            limit: division.limit,
            stats: Default::default(),
        };
        Ok(Arc::new(Sftl::assemble(division, meta, ledger, map)))
    }

    pub(super) fn assemble(
        division: Division,
        meta: Arc<DriveFtl>,
        ledger: Ledger,
        map: Map,
    ) -> Sftl {
        let Division { config, meta: watched, data, info, shape, first_chunk, .. } = division;
        // What one mount was told to live with is no setting.
        let once = SftlConfig { accept_lost_sectors: false, small_spare: false, ..config.clone() };
        let settings = once.to_settings();
        Sftl {
            device: data,
            linked: OnceLock::new(),
            link: OnceLock::new(),
            info,
            first_chunk,
            watched,
            behind: Arc::new(Behind::new(meta.clone(), shape.sectors())),
            meta,
            ledger,
            map: Mutex::new(map),
            in_doubt: AtomicBool::new(false),
            accepts_lost: config.accept_lost_sectors,
            changed: Notify::new(),
            settings,
            recovery: OnceLock::new(),
        }
    }
}

fn check(config: &SftlConfig) -> Result<(), CreateError> {
    let within = |field, value: u32, least, most, range| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(CreateError::Config { field, value: value.into(), range }),
    };
    within("meta_percent", config.meta_percent, 1, 50, "1 to 50")?;
    let percent = config.over_provisioning_percent;
    within("over_provisioning_percent", percent, 0, 50, "0 to 50")?;
    within("meta_chunks", config.meta_chunks.unwrap_or(1), 1, u32::MAX, "at least 1")?;
    within("segments", config.segments.unwrap_or(1), 1, u32::MAX, "at least 1")?;
    let percent = config.meta_over_provisioning_percent.unwrap_or(1);
    within("meta_over_provisioning_percent", percent, 1, 90, "1 to 90")
}

/// A small block SSD whose flushes program: no capacitors.
fn meta_config(over_provisioning_percent: u32, flush_records: bool) -> DriveConfig {
    let capacitors = false;
    let others = PftlConfig::default();
    PftlConfig { over_provisioning_percent, capacitors, flush_records, ..others }.into()
}

/// Spare lines of the page-mapped region beyond what its FTL needs.
fn spare_lines(chunks_per_pu: u32, config: &SftlConfig) -> u64 {
    match config.small_spare && chunks_per_pu < SMALL_CHUNKS {
        true => SMALL_SPARE_LINES,
        false => META_SPARE_LINES,
    }
}

/// How many chunks of each PU are page-mapped, and how much of them is spare: what its FTL needs,
/// and some lines more.
fn meta_region(device: &dyn Device, config: &SftlConfig) -> Result<(u32, u32), CreateError> {
    let (geo, traits) = (device.geometry(), device.traits());
    let need = Need::of(device, meta_config(50, config.flush_records))?;
    let chunk = geo.sectors_per_chunk();
    // A barrier that pads more than two thirds of a chunk leaves no room to be made anything of.
    if need.per_line * 3 > need.line * 2 {
        return Err(CreateError::Pairs { pairs: traits.pair_sectors, chunk });
    }
    let least = (u64::from(geo.chunks_per_pu) * u64::from(config.meta_percent)).div_ceil(100);
    let ledger = Shape::sectors_at_most(geo, traits.content_bytes);
    let wanted = (ledger + META_SECTORS_MIN).max(need.line / 2);
    let fits = |chunks: u32| -> Option<u32> {
        let all = need.line * u64::from(chunks);
        let spare = need.lines(chunks) + spare_lines(geo.chunks_per_pu, config) * need.line;
        let percent = (spare * 100).div_ceil(all).max(1);
        let room = all * 100u64.saturating_sub(percent) / 100;
        (percent <= 90 && room >= wanted).then_some(percent as u32)
    };
    // Beyond this no device has chunks.
    let most = geo.chunks_per_pu.saturating_mul(16).max(1024);
    let found = (least.max(1) as u32..most).find_map(|chunks| Some((chunks, fits(chunks)?)));
    let (chunks, percent) =
        found.ok_or(CreateError::Pairs { pairs: traits.pair_sectors, chunk })?;
    if chunks >= geo.chunks_per_pu {
        let what = "chunks per PU: the page-mapped region alone needs more";
        let needed = chunks + (SPARE_BLOCKS_MIN + 1).div_ceil(geo.pus_per_channel);
        return Err(too_few_chunks(geo, what, needed));
    }
    Ok((chunks, percent))
}

fn too_few_chunks(geo: &Geometry, what: &'static str, needed: u32) -> CreateError {
    let sectors = geo.sectors() / u64::from(geo.chunks_per_pu) * u64::from(needed);
    let capacity = Some(Bytes::new(sectors * SECTOR_BYTES as u64));
    CreateError::TooSmall { what, has: geo.chunks_per_pu, needed, capacity }
}

fn or_a_capacity(capacity: &Option<Bytes>) -> String {
    capacity.map_or_else(String::new, |bytes| format!(", which is a capacity of {bytes}"))
}

fn good_blocks(data: &Partition, channel: u32) -> u32 {
    let geo = data.geometry();
    let pus = channel * geo.pus_per_channel..(channel + 1) * geo.pus_per_channel;
    let report = |pu| data.chunk_report(pu, 0, geo.chunks_per_pu);
    pus.flat_map(report).filter(|i| i.state != ChunkState::Offline).count() as u32
}

/// What the page-mapped region leaves of the open chunks that the device allows: it has up to two on each
/// PU.
fn open_limit(traits: &Traits, pus: u32, channels: u32) -> Result<OpenLimit, CreateError> {
    let (all, per_pu) = traits.max_open;
    let limit = OpenLimit { all: all.saturating_sub(2 * pus), per_pu: per_pu.saturating_sub(2) };
    if all != 0 && limit.all < channels {
        return Err(CreateError::OpenLimit { limit: all, needed: channels });
    }
    if per_pu != 0 && limit.per_pu == 0 {
        return Err(CreateError::OpenLimit { limit: per_pu, needed: 1 });
    }
    Ok(limit)
}
