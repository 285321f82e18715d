//! What a device is: dimensions, times, limits, read from a preset or a file.
//!
//! Owns: [`DeviceSpec`], its TOML form, the presets built into the program, and the options of one
//! instance ([`SsdOptions`]). Promises: an unknown key, an impossible number or a missing one is an
//! error that names the place and what would do; a spec that passed [`DeviceSpec::check`] makes a
//! device without panic. Never: guesses a number (each preset names the source of its own).

use crate::device::{CellMode, SlcMode};
use flashlane_base::{Bytes, Geometry, GeometryError, Ns, PpaStyle, SECTOR_BYTES};
use flashlane_media::cells::slc_sectors;
pub use flashlane_media::errors::EccSpec;
pub use flashlane_media::fault::{Fault, FaultKind, FaultPlan};
use flashlane_media::pairing::PageMap;
pub use flashlane_media::pairing::Pairing;
pub use flashlane_media::store::StoreKind;
pub use flashlane_media::timing::DieQueue;
use serde::{Deserialize, Serialize};

/// Everything that is fixed about a device.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Name of the preset or of the user's own.
    pub name: String,
    /// Where the numbers are from, in a line, for reports.
    #[serde(default)]
    pub source: String,
    /// Address layout: `"1.2"` or `"2.0"`.
    pub ppa: PpaStyle,
    pub geometry: Geometry,
    pub timing: TimingSpec,
    #[serde(default)]
    pub cells: CellSpec,
    #[serde(default)]
    pub limits: LimitSpec,
    /// Bit errors and correction; without it reads never fail by themselves.
    pub ecc: Option<EccSpec>,
    /// The host's bus.
    pub link: Option<LinkSpec>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TimingSpec {
    /// Overhead of every command.
    #[serde(default)]
    pub command: Ns,
    /// Sense time per page type (lower, middle, upper); one entry serves all.
    pub read: Vec<Ns>,
    /// Program time per page type.
    pub program: Vec<Ns>,
    pub erase: Ns,
    /// Longest times for identify; what they are typically when absent.
    #[serde(default)]
    pub max: Option<MaxTimes>,
    /// Bus time of one page of one plane; alternative to `channel_bandwidth`.
    pub page_transfer: Option<Ns>,
    /// Bus bandwidth per second; alternative to `page_transfer`.
    pub channel_bandwidth: Option<Bytes>,
    /// The next sense overlaps the last transfer.
    #[serde(default)]
    pub cache_read: bool,
    /// The next program's transfer overlaps the running program; not under `suspend`.
    #[serde(default)]
    pub cache_program: bool,
    /// Bytes per second into the device over all channels; absent is no limit.
    pub controller_write: Option<Bytes>,
    /// Bytes per second out of the device over all channels; absent is no limit.
    pub controller_read: Option<Bytes>,
    /// Operations admitted per channel; 0 is no limit.
    #[serde(default)]
    pub max_in_flight: u32,
    /// Order of service on a die.
    #[serde(default)]
    pub queue: DieQueue,
    /// Reads that may pass a waiting program or erase under `read_first` and `suspend`.
    #[serde(default = "default_burst")]
    pub read_burst: u32,
    /// What a resumed program or erase takes longer.
    #[serde(default)]
    pub suspend_cost: Ns,
}

/// A waiting program is passed by at most this many reads. No source: it keeps the longest wait
/// of a program near one program time with reads of about 60 us each.
fn default_burst() -> u32 {
    16
}

/// Longest times (identify: TRDM, TWRM, TCRSM).
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MaxTimes {
    pub read: Ns,
    pub program: Ns,
    pub erase: Ns,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CellSpec {
    /// Bits per cell.
    pub bits: u32,
    /// Order of pages that share word lines; with one, it says what is readable, not `mw_cunits`.
    pub pairing: Pairing,
    /// A torn upper page may destroy its programmed lower page.
    pub pair_damage: bool,
    /// Erases a chunk is made for.
    pub rated_erases: u32,
    /// Single-bit mode, where chunks can be reset to it.
    pub slc: Option<SlcSpec>,
}

impl Default for CellSpec {
    fn default() -> CellSpec {
        CellSpec {
            bits: 1,
            pairing: Pairing::None,
            pair_damage: false,
            // Common rating of MLC parts; only the wear index and wear errors depend on it.
            rated_erases: 3000,
            slc: None,
        }
    }
}

impl CellSpec {
    /// Erases that a chunk is made for in a mode, at least one; where a mode has no number of its own, the native one.
    pub fn rated_erases_in(&self, mode: CellMode) -> u32 {
        let slc = self.slc.filter(|slc| mode == CellMode::Slc && slc.rated_erases > 0);
        slc.map_or(self.rated_erases, |slc| slc.rated_erases).max(1)
    }
}

/// Times and write unit of a chunk in single-bit mode.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SlcSpec {
    pub read: Ns,
    pub program: Ns,
    pub erase: Ns,
    /// Erases a chunk is made for in this mode; 0 is as in the native one.
    #[serde(default)]
    pub rated_erases: u32,
    /// Write unit in this mode, in sectors; absent is the native one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ws_min: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitSpec {
    /// Open chunks on the device; 0 is no limit.
    pub max_open: u32,
    /// Open chunks per PU; 0 is no limit.
    pub max_open_per_pu: u32,
    /// A free chunk may be reset (OCSSD 2.0 capability bit 1).
    pub reset_free: bool,
    /// An open chunk may be reset. Not in OCSSD 2.0; 1.2 devices and QEMU's model (bit 2) allow it.
    pub reset_open: bool,
    /// The medium needs no erase (phase change memory): a reset takes no time of a die, wears nothing
    /// and can't fail; the chunk is written from its start again (LightNVM paper 3.3: an erase is
    /// ignored where it is not needed).
    pub erase_ignored: bool,
    /// Chunks that are bad from the factory, per million.
    pub factory_bad_ppm: u32,
    /// What the device accepted is completed on capacitors when the power goes.
    pub capacitors: bool,
    /// RAM of the controller in which a write is acknowledged before it is programmed; absent is none.
    /// With `capacitors` a power cut loses nothing of it.
    pub write_buffer: Option<Bytes>,
    /// Chance in a million that a chunk closed early goes offline at its next reset.
    pub early_close_offline_ppm: u32,
}

/// The host's bus.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Bytes per second to the device; 0B is no limit.
    pub to_device: Bytes,
    /// Bytes per second to the host.
    pub to_host: Bytes,
    /// Fixed time per command.
    pub command: Ns,
    /// Commands in flight at once; 0 is no limit.
    pub queue_depth: u32,
}

/// Options of one instance of a device.
#[derive(Clone, Debug)]
pub struct SsdOptions {
    /// What is kept of contents.
    pub store: StoreKind,
    /// Seed of factory bad blocks and errors.
    pub seed: u64,
    /// In place of the spec's die queue.
    pub queue: Option<DieQueue>,
    /// What goes wrong on purpose.
    pub faults: FaultPlan,
    /// False: a null device, every command takes no time.
    pub timing: bool,
    /// Reads of unwritten sectors are errors.
    pub dulbe: bool,
    /// Reads of the host ([`crate::device::Cause::User`]) fail fast, whatever their own hint says:
    /// the device tries none again. What a layer reads for itself (mount, garbage collection,
    /// metadata) is tried as often as ever.
    pub limited_retry: bool,
    /// Commands that clash while they are under way are violations, see [`crate::rules::Rule::Hazard`].
    pub hazards: bool,
    /// `compact` only: bytes of contents that are kept in memory.
    pub compact_cap: u64,
}

impl Default for SsdOptions {
    fn default() -> SsdOptions {
        SsdOptions {
            store: StoreKind::Stamps,
            seed: 1,
            queue: None,
            faults: FaultPlan::default(),
            timing: true,
            dulbe: false,
            limited_retry: false,
            hazards: false,
            compact_cap: flashlane_media::compact::CAP_DEFAULT,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    #[error("no device preset `{name}` (there are: {known})")]
    Preset { name: String, known: String },
    /// Not TOML, or not of the shape of a device.
    #[error("device spec: {0}")]
    Syntax(#[from] toml::de::Error),
    #[error(transparent)]
    Fault(#[from] flashlane_media::fault::FaultError),
    #[error("device `{device}`, [geometry]: {source}")]
    Geometry { device: String, source: GeometryError },
    #[error("device `{device}`: `{key}` {problem}")]
    Value {
        device: String,
        key: &'static str,
        /// What is wrong and what would do.
        problem: String,
    },
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        const PRESETS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../presets/devices/", $name, ".toml")))),*
        ];
    };
}
presets![
    "tiny",
    "peers-16g",
    "peers-64g",
    "westlake",
    "p3700",
    "850pro",
    "femu-32ch",
    "parafs",
    "disksim",
    "slc-tlc",
    "tlc-modern",
    "qlc-modern",
];

impl DeviceSpec {
    pub fn preset(name: &str) -> Result<DeviceSpec, SpecError> {
        let found = PRESETS.iter().find(|(n, _)| *n == name);
        let Some((_, text)) = found else {
            return Err(SpecError::Preset {
                name: name.into(),
                known: DeviceSpec::preset_names().join(", "),
            });
        };
        DeviceSpec::from_toml(text)
    }

    pub fn preset_names() -> Vec<&'static str> {
        PRESETS.iter().map(|(n, _)| *n).collect()
    }

    /// The text of a preset, with the sources of its numbers.
    pub fn preset_text(name: &str) -> Option<&'static str> {
        PRESETS.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
    }

    /// Reads and checks a spec.
    pub fn from_toml(text: &str) -> Result<DeviceSpec, SpecError> {
        let spec: DeviceSpec = toml::from_str(text)?;
        spec.check()?;
        Ok(spec)
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The page map, where pages share word lines.
    pub fn page_map(&self) -> Option<PageMap> {
        let pairing = self.cells.pairing;
        (pairing != Pairing::None).then(|| PageMap::new(pairing, self.geometry.pages_per_block))
    }

    /// The single-bit mode, where chunks can be reset to it.
    pub fn slc_mode(&self) -> Option<SlcMode> {
        let (geo, row) = (&self.geometry, self.geometry.sectors_per_row());
        // Who may not reset a free chunk can't bring it into the mode.
        self.cells.slc.filter(|_| self.limits.reset_free).map(|slc| SlcMode {
            chunk_sectors: slc_sectors(geo.sectors_per_chunk(), row, self.cells.bits),
            ws_min: slc.ws_min.unwrap_or(geo.ws_min),
            ws_opt: row,
        })
    }

    /// Bus time of `sectors` sectors, rounded up.
    pub fn transfer(&self, sectors: u32) -> Ns {
        let per_page = self.geometry.sectors_per_page.max(1) as u64;
        match (self.timing.page_transfer, self.timing.channel_bandwidth) {
            (Some(page), _) => Ns::from_ns((page.as_ns() * sectors as u64).div_ceil(per_page)),
            (None, Some(bw)) => Ns::of_transfer(sectors as u64 * SECTOR_BYTES as u64, bw.get()),
            (None, None) => Ns::ZERO,
        }
    }

    /// The same device with another number of chunks per PU.
    pub fn with_chunks_per_pu(mut self, chunks: u32) -> DeviceSpec {
        self.geometry.chunks_per_pu = chunks;
        self
    }

    /// The same device with other channels and PUs per channel.
    pub fn with_parallelism(mut self, channels: u32, pus_per_channel: u32) -> DeviceSpec {
        self.geometry.channels = channels;
        self.geometry.pus_per_channel = pus_per_channel;
        self
    }

    /// The first of these that is so is wrong.
    fn refuse(&self, cases: &[(bool, &'static str, &str)]) -> Result<(), SpecError> {
        let wrong = cases.iter().find(|(is_wrong, ..)| *is_wrong);
        wrong.map_or(Ok(()), |(_, key, problem)| Err(self.value(key, *problem)))
    }

    fn value(&self, key: &'static str, problem: impl Into<String>) -> SpecError {
        SpecError::Value { device: self.name.clone(), key, problem: problem.into() }
    }

    /// Everything that would make the device impossible.
    pub fn check(&self) -> Result<(), SpecError> {
        let geo = self.geometry();
        geo.check().map_err(|source| SpecError::Geometry { device: self.name.clone(), source })?;
        self.refuse(&[
            (geo.planes > 32, "geometry.planes", "is at most 32"),
            (geo.channels > 4096, "geometry.channels", "is at most 4096"),
        ])?;
        // What is built per chunk, page and row is bounded: 64 bytes for each of 2^24 chunks.
        let chunks = geo.channels as u64 * geo.pus_per_channel as u64 * geo.chunks_per_pu as u64;
        if chunks > 1 << 24 {
            let says = format!("makes {chunks} chunks; at most 2^24 are simulated");
            return Err(self.value("geometry.chunks_per_pu", says));
        }
        self.refuse(&[
            (geo.pages_per_block > 1 << 16, "geometry.pages_per_block", "is at most 65536"),
            (geo.sectors_per_page > 256, "geometry.sectors_per_page", "is at most 256 (1 MiB)"),
        ])?;
        self.check_units(&geo)?;
        self.check_times()?;
        self.check_buffer(&geo)?;
        self.check_link()?;
        self.check_ecc()
    }

    /// Bytes above which a buffer is a typing error: no controller has so much.
    const BUFFER_MAX: u64 = 64 << 30;

    fn check_buffer(&self, geo: &Geometry) -> Result<(), SpecError> {
        let Some(size) = self.limits.write_buffer else {
            return Ok(());
        };
        let least = geo.ws_opt as u64 * SECTOR_BYTES as u64;
        if !(least..=DeviceSpec::BUFFER_MAX).contains(&size.get()) {
            let says = format!(
                "is {size}: it holds at least one write of `ws_opt` ({least} bytes) and at most 64 \
                 GiB; leave it out for a device without"
            );
            return Err(self.value("limits.write_buffer", says));
        }
        Ok(())
    }

    fn check_link(&self) -> Result<(), SpecError> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        let rates = [("link.to_device", link.to_device), ("link.to_host", link.to_host)];
        for (key, rate) in rates {
            if (1..64_000).contains(&rate.get()) {
                let says = "is below 64 kB per second (0B is no limit)";
                return Err(self.value(key, says));
            }
        }
        if link.command > Ns::from_secs(3600) {
            return Err(self.value("link.command", "is longer than an hour"));
        }
        Ok(())
    }

    fn check_units(&self, geo: &Geometry) -> Result<(), SpecError> {
        let (page, row) = (geo.sectors_per_page, geo.sectors_per_row());
        let in_slc = self.slc_mode().map(|slc| ("cells.slc.ws_min", slc.ws_min));
        for (key, unit) in [("geometry.ws_min", geo.ws_min)].into_iter().chain(in_slc) {
            if !unit.is_multiple_of(page) || !row.is_multiple_of(unit) {
                let says = format!(
                    "is {unit}: it must be whole pages ({page} sectors) and divide a row of all planes \
                     ({row} sectors)"
                );
                return Err(self.value(key, says));
            }
        }
        let short = self.cells.slc.is_some() && geo.pages_per_block < self.cells.bits;
        self.refuse(&[
            (!(1..=8).contains(&self.cells.bits), "cells.bits", "is 1 to 8"),
            (short, "cells.slc", "needs at least one page per bit of a cell"),
        ])?;
        let Some(pages) = self.page_map() else {
            return Ok(());
        };
        let needed = (pages.reach() + 1) * geo.sectors_per_row() - geo.ws_min;
        if geo.mw_cunits < needed {
            let says = format!(
                "is {}, but with this pairing a sector may have to wait for {needed} more",
                geo.mw_cunits
            );
            return Err(self.value("geometry.mw_cunits", says));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), SpecError> {
        let t = &self.timing;
        // An hour: far above any part, far below where sums of a vector could overflow.
        let limit = Ns::from_secs(3600);
        let named = [
            ("timing.command", t.command),
            ("timing.erase", t.erase),
            ("timing.suspend_cost", t.suspend_cost),
            ("timing.page_transfer", t.page_transfer.unwrap_or(Ns::ZERO)),
        ];
        if let Some((key, _)) = named.iter().find(|(_, v)| *v > limit) {
            return Err(self.value(key, "is longer than an hour"));
        }
        for (key, list) in [("timing.read", &t.read), ("timing.program", &t.program)] {
            let kinds = match self.cells.pairing {
                Pairing::None => 1,
                Pairing::Mlc | Pairing::MlcL95b => 2,
                Pairing::Tlc => 3,
                Pairing::Qlc => 4,
            };
            if list.len() != 1 && list.len() != kinds {
                let says = format!(
                    "has {} times; give one, or one per page type ({kinds} with this pairing)",
                    list.len()
                );
                return Err(self.value(key, says));
            }
            if list.iter().any(|v| *v > limit) {
                return Err(self.value(key, "is longer than an hour"));
            }
        }
        if t.page_transfer.is_some() && t.channel_bandwidth.is_some() {
            let says = "and `timing.channel_bandwidth` say the same thing; give one";
            return Err(self.value("timing.page_transfer", says));
        }
        let rates = [
            ("timing.channel_bandwidth", t.channel_bandwidth),
            ("timing.controller_read", t.controller_read),
            ("timing.controller_write", t.controller_write),
        ];
        for (key, rate) in rates {
            // Below 64 kB/s a vector would take longer than the hour above.
            if rate.is_some_and(|r| r.get() < 64_000) {
                return Err(self.value(key, "is below 64 kB per second"));
            }
        }
        Ok(())
    }

    fn check_ecc(&self) -> Result<(), SpecError> {
        let Some(e) = &self.ecc else {
            return Ok(());
        };
        let is_too_high = |rate: u64| rate > 1_000_000_000_000;
        let too_high = "counts errors per 10^12 bits and cannot exceed them";
        let no_gain = e.retry_gain < 2 && e.retries > 0;
        self.refuse(&[
            (!(64..=65536).contains(&e.codeword_bytes), "ecc.codeword_bytes", "is 64 to 65536"),
            (is_too_high(e.rber_fresh), "ecc.rber_fresh", too_high),
            (is_too_high(e.rber_worn), "ecc.rber_worn", too_high),
            (is_too_high(e.rber_per_day), "ecc.rber_per_day", too_high),
            (is_too_high(e.rber_per_1000_reads), "ecc.rber_per_1000_reads", too_high),
            (
                e.high_bits > e.correctable_bits,
                "ecc.high_bits",
                "is at most `ecc.correctable_bits`",
            ),
            (no_gain, "ecc.retry_gain", "is at least 2"),
            (e.retries > 64, "ecc.retries", "is at most 64"),
        ])
    }
}
