//! Metrics: the state of a drive in use, for who watches it from outside.
//!
//! Owns: what there is to be known at one moment ([`Snapshot`]). Promises: a look changes nothing of the
//! run; every counter that is declared is in it, and in its text ([`text`]) and JSON. Never: sums over
//! time, or decides what a person sees (that is who asks).

pub mod latency;
mod look;
pub mod rates;
mod text;

pub use crate::words::short;
pub(crate) use latency::Meters;
pub use latency::{Latency, bound_ns};
pub(crate) use look::look;

use crate::drive::Endurance;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What the answer of HTTP calls the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counters by the names of their declaration, in their own units.
pub type Numbers = BTreeMap<String, u64>;

/// A drive in use, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The run's time: of the machine's clock or virtual.
    pub time_ns: u64,
    /// The image's name.
    pub device: String,
    pub process: u32,
    /// Those that are in use, in the order in which they were mounted.
    pub targets: Vec<TargetSnapshot>,
    /// The medium, since it was made.
    pub medium: Medium,
    /// As `drive smart --json`.
    pub smart: Value,
}

/// A target in use, at that moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetSnapshot {
    pub name: String,
    /// The target's type; empty before it is mounted, and for a raw one.
    pub layer: String,
    /// Nothing before it is mounted.
    pub capacity_bytes: u64,
    /// Why the target takes no writes any more.
    pub read_only: Option<String>,
    /// Programmed over written since the mount; nothing before the first write.
    pub write_amplification_ratio: Option<f64>,
    /// `FtlStats`, since the mount.
    pub stats: Numbers,
    /// Sectors that the target programmed since its mount, by cause.
    pub programmed: Numbers,
    /// Where reads of the target spent their time, ns.
    pub read_time: Numbers,
    /// Map entries that were exchanged.
    pub exchanges: Numbers,
    /// What the mount found lost; nothing before it, and for a raw one.
    pub lost: Option<MountLost>,
    /// What the layer counts beside what all do.
    pub counted: Numbers,
    /// What layers count that stand on it, by their names.
    pub layers: BTreeMap<String, Numbers>,
    /// What the sectors that the target holds are to the file system on it, where a layer follows one; nothing on
    /// large drives.
    pub pages: Numbers,
    pub room: Room,
    /// Lines by state.
    pub lines: Numbers,
    pub rings: Vec<Ring>,
    /// What cores waited for: locks by kind, then semaphores.
    pub locks: Vec<Waits>,
    pub semaphores: Waits,
    /// Busy channels that drainers passed by.
    pub channels_passed: u64,
    /// Requests at the target's top, since the mount.
    pub requests: Vec<Latency>,
    /// Names and values that `lnvm knobs` shows.
    pub knobs: BTreeMap<String, String>,
}

impl TargetSnapshot {
    /// The target's type, in a word.
    pub fn kind(&self) -> &str {
        if self.layer.is_empty() { "raw" } else { &self.layer }
    }

    /// A counter of the target.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats.get(name).copied().unwrap_or(0)
    }
}

/// The losses that a mount found. Writes and discards since do not change it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountLost {
    /// Logical sectors whose content is lost, by the names of all causes.
    pub sectors: Numbers,
    /// Sectors of the medium that can't be read.
    pub medium_sectors: u64,
    /// Units that can't be read and are taken for torn by a power cut.
    pub torn_units: u64,
}

/// What is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Room {
    /// Chunks (pblk, QBLK) or lines (block SSD) that are free for new data, of so many.
    pub free: u64,
    pub of: u64,
    /// Slots of the ring that the limiter gives users, of so many.
    pub user_slots: Option<(u64, u64)>,
}

/// A ring of a host FTL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ring {
    pub slots: u64,
    pub used: u64,
    /// Host writes that waited for room.
    pub full_waits: u64,
    pub full_wait_ns: u64,
    /// Host writes that waited for a share of the limiter's.
    pub limited_waits: u64,
    pub limited_wait_ns: u64,
}

/// What was waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    pub name: String,
    /// Times it was taken; zero where that is not counted.
    pub taken: u64,
    pub waits: u64,
    pub wait_ns: u64,
}

/// The medium and its image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Medium {
    pub name: String,
    pub raw_bytes: u64,
    pub pus_per_channel: u32,
    /// Counters of the medium.
    pub counters: Numbers,
    /// Sectors that it programmed, by cause.
    pub programmed: Numbers,
    /// Counters of the device's write buffer, where it has one.
    pub buffer: Option<Numbers>,
    /// Counters of what was done in SLC mode, on a device that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slc: Option<Numbers>,
    /// Time that each die read, programmed and erased, ns; in the order of PUs.
    pub dies_ns: Vec<[u64; 3]>,
    /// Time that each channel's bus was busy, ns.
    pub channels_ns: Vec<u64>,
    /// Erases of the chunks of each PU, summed.
    pub pu_erases: Vec<u64>,
    /// Chunks by state.
    pub chunks: Numbers,
    /// Chunks in SLC mode, on a device that has it.
    pub slc_chunks: Option<u64>,
    /// Erases of a chunk: least, mean, most.
    pub wear: [u64; 3],
    /// What is used up of the rated erases of each cell mode, on a device that has two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endurance: Option<Endurance>,
    pub violations: u64,
    /// Bytes of the process that contents take.
    pub store_bytes: u64,
    /// Lines of the fault plan, and how often they happened.
    pub faults: u64,
    pub faults_happened: u64,
}

impl Snapshot {
    /// For Prometheus, and for people who read that.
    pub fn to_text(&self) -> String {
        text::text(self)
    }

    /// As one JSON object with units in its keys.
    pub fn to_json(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        crate::words::text_of(&value)
    }

    /// What [`Snapshot::to_json`] wrote.
    ///
    /// # Errors
    /// It is something else.
    pub fn from_json(json: &str) -> Result<Snapshot, String> {
        serde_json::from_str(json).map_err(|e| format!("no metrics: {e}"))
    }

    /// A target by its name.
    pub fn target(&self, name: &str) -> Option<&TargetSnapshot> {
        self.targets.iter().find(|target| target.name == name)
    }
}
