//! S-FTL: the simplified translation layer of ParaFS, below a file system that knows the flash.
//!
//! Owns: the static block map, the programs, reads and erases of its segments. Promises: a segment
//! is one flash block, written once in order, and changes its block only when it was trimmed; `trim`
//! completes after the erase, also if a cut tore it; what an append has acknowledged is on the
//! medium; a read gives what was appended, or says exactly which sectors it could not; no rule of the
//! medium is broken. Never: moves data, knows which sector is valid, charges host CPU time.
//!
//! From the ParaFS paper (section 3.1): "S-FTL uses static block-level mapping ... S-FTL updates its
//! mapping entries only for wear leveling or bad block remapping", and "the S-FTL only needs to
//! erase the corresponding flash blocks".
//!
//! **Segments.** A segment is named by (channel, segment). Each channel has the same number of them,
//! less than it has blocks: the rest are spare, for bad blocks alone (`create`). A segment without
//! data has no block. Its first append takes the least worn free block of the channel, on the PU
//! that is open least (`map`).
//!
//! **Life of an append.** `append` reserves its sectors in the call, in order, and sends them in
//! pieces of one vector. Each sector's out-of-band record names segment and sector, and the
//! generation: one number for each time that a block was taken. It completes when they are
//! programmed.
//!
//! **Life of a read.** `read` waits for programs of its own sectors, takes what the medium can't give
//! back yet out of memory (`window`), pins the segment and reads the rest; each sector is compared
//! with its record, and tried again where it fails.
//!
//! **Life of a trim.** `trim` waits for reads and programs of the segment, erases the block, and frees
//! it. A block in which a program failed, or that could not be erased, is never used again; what the
//! device does not remember of that is in a list (`ledger`).
//!
//! **Life of a mount.** `mount` asks the first sector's record of each written block whose it is.
//! The highest generation wins; losers are erased. A block of which no record can be read is left
//! alone: its erase or first program was torn, or it holds a segment. Until that is settled no
//! segment changes, and the file system above says which segments must hold data (`unreadable`).
//!
//! **Metadata.** The first chunks of every PU are a small page-mapped block SSD ([`crate::kit`]) for
//! what the file system updates in place. The ledger has its first sectors.
//!
//! One mutex guards the map, never held across an await.

mod append;
mod busy;
mod create;
mod face;
mod layer;
mod ledger;
mod map;
mod mount;
mod read;
mod trim;
mod unreadable;
mod window;

use crate::block::{BlockDev, BlockError};
use crate::kit::DriveFtl;
use crate::link::LinkedBlock;
use crate::stats::{FtlStats, Gauges};
use flashlane_ocssd::device::Device;
use flashlane_ocssd::link::LinkedDevice;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_rt::sync::{AtomicBool, Mutex};
use flashlane_rt::{Cx, Notify};
use std::fmt::Write;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

pub use busy::Busy;
pub use create::{CreateError, SftlConfig};
pub use face::{Face, FaceLayout};
pub use layer::{SFTL, SftlKind};
pub use map::{LAG, SegmentState};
pub use mount::{MountError, Recovery};
pub use unreadable::{Cause as UnreadableCause, Settle, Unreadable, name_some};

use busy::Watched;
use ledger::{Behind, Ledger};
use map::Map;

/// Tries of a read before a sector counts as unreadable: a fault that comes and goes must not cost
/// data. As in a mount of the kit.
const TRIES: u32 = 8;

/// What a file system has to know of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SftlInfo {
    pub channels: u32,
    /// PUs of each channel.
    pub channel_pus: u32,
    /// Of each channel.
    pub segments: u32,
    pub segment_sectors: u32,
    /// The least that is programmed, a flash page: `ws_min`, in sectors.
    pub page_sectors: u32,
    /// Content bytes per sector of user data: 4096, or 8 when the medium's store is `stamps`.
    pub content_bytes: usize,
    /// 0, or how far behind a page its pair lies: until then a page is not durable.
    pub pair_sectors: u32,
    /// Segments of a channel that may be written in part at a time; 0 is no limit.
    pub open_segments: u32,
}

impl SftlInfo {
    /// Sectors of all segments.
    pub fn sectors(&self) -> u64 {
        u64::from(self.channels) * u64::from(self.segments) * u64::from(self.segment_sectors)
    }

    /// The number of a segment among all: they lie side by side over the channels.
    pub(super) fn number(&self, channel: u32, segment: u32) -> u64 {
        u64::from(segment) * u64::from(self.channels) + u64::from(channel)
    }

    /// The segment of that number: (channel, segment).
    pub(super) fn of_number(&self, number: u64) -> (u32, u32) {
        let channels = u64::from(self.channels);
        ((number % channels) as u32, (number / channels) as u32)
    }
}

/// What the sectors of the flash are for: together they are all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Page-mapped ones that a file system has.
    pub meta: u64,
    /// Page-mapped ones besides: over-provisioning, spare lines, the list of bad blocks.
    pub meta_spare: u64,
    /// Blocks that take the place of bad ones.
    pub spare: u64,
    /// Bad blocks.
    pub bad: u64,
    pub segments: u64,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SftlError {
    /// The request makes no sense for the segment as it is; nothing has happened.
    #[error("{sectors} sectors from {sector} of segment {segment}, channel {channel}: {why}")]
    Invalid { channel: u32, segment: u32, sector: u32, sectors: u32, why: &'static str },
    /// These sectors could not be read, or are not what their records say; the others were.
    #[error(
        "uncorrectable read error in segment {segment} of channel {channel} at sectors {}",
        list(.sectors)
    )]
    Uncorrectable { channel: u32, segment: u32, sectors: Vec<Range<u32>> },
    /// What was appended from this sector on is not all there, and the segment takes no more.
    #[error(
        "a program failed at sector {sector} of segment {segment}, channel {channel}: read what it \
         holds and append it to another one, then trim it"
    )]
    ProgramFailed { channel: u32, segment: u32, sector: u32 },
    /// A program in it has failed before.
    #[error(
        "segment {segment} of channel {channel} takes no more: a program in it failed; read what it \
         holds and append it to another one, then trim it"
    )]
    Failed { channel: u32, segment: u32 },
    /// The channel has no block for it any more.
    #[error(
        "segment {segment} of channel {channel} is gone for good: its block is bad and no spare one \
         is left; use others"
    )]
    Gone { channel: u32, segment: u32 },
    /// Nothing has happened ([`Sftl::settle`]).
    #[error(
        "segment {segment} of channel {channel} can't change: chunks were written that can't be read, \
         and one of them may hold it"
    )]
    InDoubt { channel: u32, segment: u32 },
    /// The device has a limit of open chunks.
    #[error(
        "channel {channel} has as many open segments as the device allows: fill one, or trim it"
    )]
    TooManyOpen { channel: u32 },
    /// Nothing has changed on the medium.
    #[error(
        "the host could not keep a change of segment {segment} of channel {channel}: its disk is full \
         or failing; try again when it has room"
    )]
    Host { channel: u32, segment: u32 },
    /// The list of bad blocks could not be written: the page-mapped region has trouble of its own.
    #[error("the list of bad blocks could not be kept: {0}")]
    Ledger(BlockError),
}

fn list(ranges: &[Range<u32>]) -> String {
    let mut text = String::new();
    for (i, r) in ranges.iter().enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        // A string takes everything.
        let _ = match r.len() {
            1 => write!(text, "{comma}{}", r.start),
            _ => write!(text, "{comma}{} to {}", r.start, r.end - 1),
        };
    }
    text
}

/// The simplified FTL, on a device.
pub struct Sftl {
    /// The chunks of the segments.
    device: Arc<dyn Device>,
    /// The same behind the host's link, once there is one.
    linked: OnceLock<LinkedDevice>,
    link: OnceLock<LinkSpec>,
    info: SftlInfo,
    /// First chunk of each PU that is the segments'.
    first_chunk: u32,
    meta: Arc<DriveFtl>,
    /// What that one stands on.
    watched: Arc<Watched>,
    /// The page-mapped region without the ledger's sectors.
    behind: Arc<Behind>,
    ledger: Ledger,
    map: Mutex<Map>,
    /// There are chunks of which it is not known what they hold ([`Map::doubts`]).
    in_doubt: AtomicBool,
    /// Woken when a program, a read or an erase has ended.
    changed: Notify,
    settings: crate::layer::Settings,
    recovery: OnceLock<Recovery>,
    /// True if the first change through logical sectors ([`Face`]) gives up chunks that can't be
    /// read.
    accepts_lost: bool,
}

impl Sftl {
    pub fn info(&self) -> &SftlInfo {
        &self.info
    }

    /// Sectors written so far of the segment, padding included.
    pub fn write_pointer(&self, channel: u32, segment: u32) -> u32 {
        self.map.lock().segment(channel, segment).map_or(0, |s| s.pointer())
    }

    /// Number of sectors at the start of the segment that no power cut can have torn. If one of
    /// them can't be read, it was written and is lost.
    pub fn surely_written(&self, channel: u32, segment: u32) -> u32 {
        let map = self.map.lock();
        map.segment(channel, segment)
            .map_or(0, |s| s.torn_from.unwrap_or(u32::MAX).min(s.pointer()))
    }

    /// The PU of its channel that the segment's block lies on, if it has one.
    pub fn pu(&self, channel: u32, segment: u32) -> Option<u32> {
        let map = self.map.lock();
        map.segment(channel, segment)?.block?;
        Some(map.block_of(channel, segment).1.pu % self.info.channel_pus)
    }

    /// What can be done with a segment.
    pub fn state(&self, channel: u32, segment: u32) -> SegmentState {
        let map = self.map.lock();
        map.segment(channel, segment).map_or(SegmentState::Gone, |s| s.state(map.segment_sectors))
    }

    /// Parts of a segment that hold padding: they read as zeros.
    pub fn padding(&self, channel: u32, segment: u32) -> Vec<Range<u32>> {
        self.map.lock().segment(channel, segment).map_or_else(Vec::new, |s| s.padded.clone())
    }

    /// The page-mapped region for what is updated in place.
    pub fn meta(&self) -> Arc<dyn BlockDev> {
        match self.link.get() {
            Some(link) => Arc::new(LinkedBlock::new(self.behind.clone(), link)),
            None => self.behind.clone(),
        }
    }

    /// What the page-mapped region has under way on a channel.
    pub fn meta_busy(&self, channel: u32) -> Busy {
        self.watched.busy(channel)
    }

    /// The segments and the page-mapped region as one block device.
    pub fn face(self: &Arc<Sftl>) -> Arc<Face> {
        Arc::new(Face::new(self.clone()))
    }

    /// Puts the host on the other side of a link. Only the first call counts.
    pub fn behind_link(&self, link: &LinkSpec) {
        let _ = self.link.set(*link);
        let _ = self.linked.set(LinkedDevice::new(self.device.clone(), link));
    }

    /// Has everything that completed survive the host too (volatile devices); false when the host
    /// failed.
    pub async fn flush(&self, cx: &Cx) -> bool {
        self.map.lock().stats.flushes += 1;
        self.device().flush(cx).await
    }

    /// Hint of static wear leveling: the segment of this channel that holds data on the least worn
    /// block, when that has [`LAG`] erases less than the channel's least worn free block. The file
    /// system moves its content and trims it.
    pub fn lags(&self, channel: u32) -> Option<u32> {
        self.map.lock().lags(channel)
    }

    /// The chunks of the segments as the host reaches them.
    fn device(&self) -> &(dyn Device + 'static) {
        match self.linked.get() {
            Some(linked) => linked,
            None => &*self.device,
        }
    }

    /// The counters of the segments and of the page-mapped region.
    pub fn stats(&self) -> FtlStats {
        self.map.lock().stats.and(&self.meta.stats())
    }

    /// Free blocks, of all.
    pub fn gauges(&self) -> Gauges {
        let (free, of) = self.map.lock().free_blocks();
        Gauges { free, of, user_slots: None, ring_slots: None }
    }

    /// Erases of each good block of a channel, the least worn first.
    pub fn wear(&self, channel: u32) -> Vec<u32> {
        self.map.lock().wear(channel)
    }

    /// Blocks never used again, of a channel.
    pub fn retired(&self, channel: u32) -> u32 {
        self.map.lock().retired(channel)
    }

    /// What the mount did; nothing for one that was created.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.get()
    }

    /// What the sectors of the flash are for.
    pub fn shares(&self) -> Shares {
        let geo = self.device.geometry();
        let chunk = u64::from(geo.sectors_per_chunk());
        let per_channel = geo.pus_per_channel * geo.chunks_per_pu;
        let beside = per_channel.saturating_sub(self.info.segments);
        let bad: u32 = (0..geo.channels).map(|channel| self.retired(channel).min(beside)).sum();
        let page_mapped = u64::from(self.first_chunk) * u64::from(geo.pus()) * chunk;
        let meta = self.meta().info().capacity;
        Shares {
            meta,
            meta_spare: page_mapped.saturating_sub(meta),
            spare: u64::from(geo.channels * beside - bad) * chunk,
            bad: u64::from(bad) * chunk,
            segments: self.info.sectors(),
        }
    }

    /// Why nothing of the page-mapped region can be made durable any more.
    pub fn read_only(&self) -> Option<&'static str> {
        self.meta.read_only()
    }

    /// Looks through map, blocks and ledger: whether they agree.
    ///
    /// # Errors
    /// They do not, and where.
    pub fn walk(&self) -> Result<(), String> {
        self.map.lock().walk()?;
        self.meta.walk()
    }
}
