//! What a host asks of a block device: jobs in fio's terms.
//!
//! Owns: the description of a job ([`Job`]), its places in order or at random ([`place`]) and the
//! stream of requests that it becomes ([`stream`]).
//! Promises: a stream depends on the seed, the job's name and nothing else; every request lies
//! inside the device on whole sectors. Never: knows time beyond its own pauses; `run` issues the
//! requests.
//!
//! Both fio job files (`fio`) and experiments (`experiment`) end up as [`Job`]s.

pub mod place;
pub mod stream;

pub use stream::{Planned, Request, Stream};

use flashlane_base::{Bytes, Ns, SECTOR_BYTES};
use serde::Serialize;

/// A size that may be a share of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    Bytes(u64),
    /// Hundredths of the device's (or the region's) size.
    Percent(u64),
}

impl Amount {
    /// In sectors, of a whole of so many; a share is rounded down.
    pub fn sectors(self, whole: u64) -> u64 {
        match self {
            Amount::Bytes(b) => b / SECTOR_BYTES as u64,
            Amount::Percent(p) => (whole as u128 * p as u128 / 100) as u64,
        }
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    Read,
    Write,
    /// Reads and writes by [`Job::rwmixread`].
    Mixed,
    Discard,
}

impl Mix {
    /// Whether the job writes.
    pub fn writes(self) -> bool {
        matches!(self, Mix::Write | Mix::Mixed)
    }
    /// Whether the job reads.
    pub fn reads(self) -> bool {
        matches!(self, Mix::Read | Mix::Mixed)
    }
}

/// Where random places lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Every place as likely as another.
    Uniform,
    /// Zipf with this exponent; ranks are scattered over the region as fio does.
    Zipf(f64),
    /// Pareto with this power, as fio defines it.
    Pareto(f64),
}

/// Request sizes of one direction: sectors and their weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes(pub Vec<(u32, u32)>);

impl Sizes {
    /// Always this many sectors.
    pub fn fixed(sectors: u32) -> Sizes {
        Sizes(vec![(sectors, 1)])
    }
    /// Smallest, in sectors.
    pub fn min(&self) -> u32 {
        self.0.iter().map(|(s, _)| *s).min().unwrap_or(1)
    }
    /// Largest, in sectors.
    pub fn max(&self) -> u32 {
        self.0.iter().map(|(s, _)| *s).max().unwrap_or(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As fast as the depth allows.
    Unlimited,
    BytesPerSecond(u64),
    /// Requests per second.
    Iops(u64),
}

/// One job: `numjobs` identical streams of requests. Field names and meanings are fio's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// Name, also of its random streams.
    pub name: String,
    pub rw: Mix,
    /// Of every hundred requests of a mixed job so many are reads.
    pub rwmixread: u8,
    /// Random places instead of ascending ones.
    pub random: bool,
    /// Of every hundred requests of a random job so many are random, the rest ascending.
    pub percentage_random: u8,
    /// Request sizes: read, write, discard.
    pub bs: [Sizes; 3],
    /// Start of the region.
    pub offset: Amount,
    /// The n-th of `numjobs` starts this much further, n times.
    pub offset_increment: Amount,
    /// Length of the region; the rest of the device without it.
    pub size: Option<Amount>,
    /// Bytes to move; the region's size without it.
    pub io_size: Option<Amount>,
    /// Requests to make at most.
    pub number_ios: Option<u64>,
    /// Requests in flight.
    pub iodepth: u32,
    pub numjobs: u32,
    /// Ends after this time.
    pub runtime: Option<Ns>,
    /// Goes on until `runtime`, whatever the size.
    pub time_based: bool,
    /// Not measured for this long from its start; other jobs are.
    pub ramp_time: Ns,
    /// Begins this late.
    pub startdelay: Ns,
    /// Waits until all jobs before it have ended.
    pub stonewall: bool,
    /// Times the region is gone through.
    pub loops: u32,
    /// Pause after `thinktime_blocks` requests.
    pub thinktime: Ns,
    /// See `thinktime`.
    pub thinktime_blocks: u32,
    /// Pace of reads and of writes.
    pub rate: [Pace; 2],
    /// Requests of a paced job come at random times (a Poisson process).
    pub poisson: bool,
    pub random_distribution: Distribution,
    /// Random places may repeat before all have been visited.
    pub norandommap: bool,
    /// A flush after so many writes; 0 for none.
    pub fsync: u32,
    pub end_fsync: bool,
    /// Every write is FUA.
    pub sync: bool,
    /// Everything it wrote is read back at its end.
    pub verify: bool,
    /// Seed of this job alone.
    pub randseed: Option<u64>,
    /// On a raw target: the PUs it works on, first and last. Not fio's.
    pub pus: Option<(u32, u32)>,
}

/// Default request size, as fio's.
const DEFAULT_SECTORS: u32 = 1;

impl Job {
    /// A job with fio's defaults: sequential reads of 4 KiB, one at a time.
    pub fn new(name: &str) -> Job {
        Job {
            name: name.into(),
            rw: Mix::Read,
            rwmixread: 50,
            random: false,
            percentage_random: 100,
            bs: std::array::from_fn(|_| Sizes::fixed(DEFAULT_SECTORS)),
            offset: Amount::Bytes(0),
            offset_increment: Amount::Bytes(0),
            size: None,
            io_size: None,
            number_ios: None,
            iodepth: 1,
            numjobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Ns::ZERO,
            startdelay: Ns::ZERO,
            stonewall: false,
            loops: 1,
            thinktime: Ns::ZERO,
            thinktime_blocks: 1,
            rate: [Pace::Unlimited; 2],
            poisson: false,
            random_distribution: Distribution::Uniform,
            norandommap: false,
            fsync: 0,
            end_fsync: false,
            sync: false,
            verify: false,
            randseed: None,
            pus: None,
        }
    }
}

/// Why a job does not fit a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    #[error(
        "job `{job}`: its region of {size} at {offset} ends outside the device's {capacity}: make \
         `size` or `offset` smaller (percentages work: `size=100%`), or choose a larger device"
    )]
    Outside { job: String, offset: Bytes, size: Bytes, capacity: Bytes },
    #[error("job `{job}`: its region of {size} does not hold one request of {request}")]
    TooSmall { job: String, size: Bytes, request: Bytes },
    #[error("job `{job}`: `time_based` needs a `runtime`")]
    Endless { job: String },
}
