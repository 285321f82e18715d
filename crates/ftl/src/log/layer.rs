//! pblk and QBLK as kinds of layers.
//!
//! Owns: the keys of their settings in experiments and options, what of an error tells a builder
//! what to do, what a person may do to a target in use. Promises: settings that are written down
//! are all there are. Never: on the way of a request.

use super::map::Entry;
use super::sysfs::ATTRIBUTES;
use super::{
    ChannelChoice, CreateError, Drain, Drainers, HostFtl, LimiterKind, LineState, LogConfig,
    MapAccess, MountError, MountOptions, PoolSet, Recovery, RingSet, Scrub, ScrubConfig,
    WearConfig, WearLeveling,
};
use crate::block::{BlockDev, BlockError};
use crate::contention::Contention;
use crate::layer::{
    Asked, Attribute, AttributeError, Built, Find, Kind, Later, Layer, LayerError, Lines, MountHow,
    Needs, Pus, Recovered, Refusal, Saved, Seam, Settings, Side, Stands, Stop,
};
use crate::stats::{FtlStats, Gauges};
use flashlane_base::{Location, Ns};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A host FTL with the settings of one of the papers.
pub struct HostFtlKind {
    name: &'static str,
    config: fn() -> LogConfig,
}

/// pblk (LightNVM paper, section 4.2).
pub static PBLK: HostFtlKind = HostFtlKind { name: "pblk", config: LogConfig::default };

/// QBLK: the same engine with its four techniques on.
pub static QBLK: HostFtlKind = HostFtlKind { name: "qblk", config: LogConfig::qblk };

impl LogConfig {
    /// A host FTL with these settings is of this kind.
    pub fn kind(&self) -> &'static dyn Kind {
        if self.layer() == PBLK.name { &PBLK } else { &QBLK }
    }

    /// As a drive keeps them.
    pub fn to_settings(&self) -> Settings {
        serde_json::to_value(self).unwrap_or_else(|e| unreachable!("plain numbers and words: {e}"))
    }

    /// From what a drive keeps.
    ///
    /// # Errors
    /// A value is of the wrong type, or not one of those that there are.
    pub fn from_settings(settings: &Settings) -> Result<LogConfig, serde_json::Error> {
        serde_json::from_value(settings.clone())
    }
}

/// Settings that nobody has looked at; what can't be read is as nobody had said anything.
fn config_of(kind: &HostFtlKind, settings: &Settings) -> LogConfig {
    LogConfig::from_settings(settings).unwrap_or_else(|_| (kind.config)())
}

fn wear(asked: &dyn Asked, base: WearConfig) -> WearConfig {
    let spread = asked.small("wear_spread", 1, u32::MAX);
    let leveling = asked.choice("wear_leveling", &WearLeveling::NAMES).unwrap_or(base.leveling);
    if spread.is_some() && leveling != WearLeveling::Static {
        let says = "`wear_spread` is for `wear_leveling = \"static\"`";
        asked.complain("wear_spread", says.into());
    }
    WearConfig { leveling, spread: spread.unwrap_or(base.spread) }
}

fn scrub(asked: &dyn Asked, base: ScrubConfig) -> ScrubConfig {
    let mode = asked.choice("scrub", &Scrub::NAMES).unwrap_or(base.mode);
    let interval = asked.time("scrub_interval");
    let sectors = asked.small("scrub_sectors", 1, u32::MAX);
    if mode == Scrub::Off {
        for key in ["scrub_interval", "scrub_sectors"].into_iter().filter(|key| asked.has(key)) {
            let says = format!("`{key}` needs `scrub`: \"reads\" or \"patrol\"");
            asked.complain(key, says);
        }
    }
    ScrubConfig {
        mode,
        interval: interval.unwrap_or(base.interval),
        sectors: sectors.unwrap_or(base.sectors),
    }
}

/// Complains about keys that change nothing with what the other settings are.
fn refuse_idle(asked: &dyn Asked, c: &LogConfig) {
    if c.rings == RingSet::One {
        for key in ["cores", "drainers", "borrow"].into_iter().filter(|key| asked.has(key)) {
            let says = format!("`{key}` is for `rings = \"per_core\"`, which QBLK has");
            asked.complain(key, says);
        }
    }
    if c.pools == PoolSet::All && asked.has("channel_choice") {
        let says = "`channel_choice` is for `pools = \"per_channel\"`, which QBLK has";
        asked.complain("channel_choice", says.into());
    }
}

impl Kind for HostFtlKind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self, settings: &Settings) -> String {
        let config = config_of(self, settings);
        match config.active_pus {
            0 => config.layer().to_string(),
            n => format!("{}, {n} active PUs", config.layer()),
        }
    }

    fn stands(&self) -> Stands {
        let (on, side, pus) = (Needs::Device, Side::Host, Pus::Balanced);
        Stands { on, side, pus, needs_blank: false }
    }

    fn settings(&self, asked: &dyn Asked, base: &Settings) -> Settings {
        let mut c = config_of(self, base);
        if let Some(percent) = asked.small("over_provisioning_percent", 3, 80) {
            c.over_provisioning_percent = percent;
        }
        c.active_pus = asked.small("active_pus", 0, u32::MAX).unwrap_or(c.active_pus);
        c.ring_sectors = asked.small("ring_sectors", 1, u32::MAX).or(c.ring_sectors);
        c.limiter = asked.choice("limiter", &LimiterKind::ALL).unwrap_or(c.limiter);
        c.gc = asked.flag("gc").unwrap_or(c.gc);
        c.wear = wear(asked, c.wear);
        c.scrub = scrub(asked, c.scrub);
        c.rings = asked.choice("rings", &RingSet::NAMES).unwrap_or(c.rings);
        c.cores = asked.small("cores", 1, 65_535).unwrap_or(c.cores);
        c.pools = asked.choice("pools", &PoolSet::NAMES).unwrap_or(c.pools);
        c.map = asked.choice("map", &MapAccess::NAMES).unwrap_or(c.map);
        c.drain = asked.choice("drain", &Drain::NAMES).unwrap_or(c.drain);
        c.pu_budget = asked.small("pu_budget", 1, 64).unwrap_or(c.pu_budget);
        c.channel_choice =
            asked.choice("channel_choice", &ChannelChoice::NAMES).unwrap_or(c.channel_choice);
        c.in_ring_order = asked.flag("in_ring_order").unwrap_or(c.in_ring_order);
        c.full_ring_retry = asked.flag("full_ring_retry").unwrap_or(c.full_ring_retry);
        c.drainers = asked.choice("drainers", &Drainers::NAMES).unwrap_or(c.drainers);
        if let Some(cores) = asked.small("completion_cores", 0, 65_535) {
            c.completion_cores = cores;
        }
        c.borrow = asked.flag("borrow").unwrap_or(c.borrow);
        c.flush_records = asked.flag("flush_records").unwrap_or(c.flush_records);
        refuse_idle(asked, &c);
        c.to_settings()
    }

    fn defaults(&self) -> Settings {
        (self.config)().to_settings()
    }

    /// It keeps nothing in memory that a flush does not program. A drive can lose a die.
    fn on_image(&self, settings: Settings) -> Settings {
        LogConfig { flush_records: true, ..config_of(self, &settings) }.to_settings()
    }

    fn on_small_image(&self, settings: &Settings) -> Option<Settings> {
        let config = config_of(self, settings);
        config.flush_records.then(|| LogConfig { flush_records: false, ..config }.to_settings())
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        LogConfig::from_settings(settings).map(drop).map_err(|e| e.to_string())
    }

    fn described(&self, settings: &Settings) -> Value {
        let c = config_of(self, settings);
        let mut all = json!({
            "kind": c.layer(),
            // 0 is a default that adjusts itself; what came of it is in `fill.spare_ratio`.
            "over_provisioning_percent":
                Some(c.over_provisioning_percent).filter(|percent| *percent != 0),
            "active_pus": c.active_pus,
            "ring_sectors": c.ring_sectors,
            "limiter": c.limiter,
            "gc": c.gc,
        });
        if c.wear != WearConfig::default() {
            all["wear"] = json!(c.wear);
        }
        if c.scrub != ScrubConfig::default() {
            all["scrub"] = json!(c.scrub);
        }
        if c.flush_records {
            all["flush_records"] = json!(true);
        }
        if c.layer() != PBLK.name || c.pu_budget != 1 {
            let switches = json!({
                "rings": c.rings, "pools": c.pools, "map": c.map, "drain": c.drain,
                "pu_budget": c.pu_budget, "channel_choice": c.channel_choice,
                "in_ring_order": c.in_ring_order, "full_ring_retry": c.full_ring_retry,
                "drainers": c.drainers, "completion_cores": c.completion_cores, "borrow": c.borrow,
            });
            all["switches"] = switches;
        }
        all
    }

    fn differs(
        &self,
        asked: &Settings,
        found: &Settings,
        pus: u32,
    ) -> Option<(&'static str, String)> {
        let (asked, found) = (config_of(self, asked), config_of(self, found));
        let width = |active: u32| if active == 0 { pus } else { active };
        if width(asked.active_pus) != width(found.active_pus) {
            return Some(("active_pus", width(found.active_pus).to_string()));
        }
        if asked.limiter != found.limiter {
            return Some(("limiter", found.limiter.name().into()));
        }
        if asked.wear.leveling != found.wear.leveling {
            return Some(("wear_leveling", found.wear.leveling.name().into()));
        }
        if asked.wear.spread != found.wear.spread {
            return Some(("wear_spread", found.wear.spread.to_string()));
        }
        if asked.scrub.mode != found.scrub.mode {
            return Some(("scrub", found.scrub.mode.name().into()));
        }
        if asked.flush_records != found.flush_records {
            return Some(("flush_records", found.flush_records.to_string()));
        }
        // As it would be typed.
        let interval = found.scrub.interval.to_string().replace(' ', "");
        (asked.scrub.interval != found.scrub.interval).then_some(("scrub_interval", interval))
    }

    fn lacks(&self, _: MountHow) -> Option<&'static str> {
        None
    }

    fn attributes(&self) -> &'static [Attribute] {
        ATTRIBUTES
    }

    /// QBLK's were pblk's.
    fn folder(&self) -> &'static str {
        PBLK.name
    }

    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built> {
        Box::pin(async move {
            let config = LogConfig::from_settings(settings)
                .map_err(|e| LayerError::create(Refusal::Settings, e))?;
            let made = HostFtl::create(cx, below.device(), config).await;
            made.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
                let refusal = match &e {
                    CreateError::TooSmall { .. } => Refusal::TooSmall,
                    CreateError::Setting(_) => Refusal::Settings,
                    _ => Refusal::Device,
                };
                LayerError::create(refusal, e)
            })
        })
    }

    /// Its settings are in its log, and count.
    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        _: &'a Settings,
        find: &'a Find,
    ) -> Later<'a, Built> {
        Box::pin(async move {
            let MountHow { accept_lost, undo_discards } = find.how;
            let uuid = find.uuid;
            let options =
                MountOptions { uuid, accept_lost, undo_discards, ..MountOptions::default() };
            let found = HostFtl::mount(cx, below.device(), options).await;
            found.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
                let refusal = match &e {
                    MountError::NoTarget => Refusal::Nothing,
                    MountError::LogLost => Refusal::HalfMade,
                    MountError::LostUnits { .. } | MountError::Host { .. } => Refusal::Lost,
                    MountError::CheckpointsLost { .. } => Refusal::DiscardsLost,
                    _ => Refusal::Damaged,
                };
                LayerError::mount(refusal, e)
            })
        })
    }
}

/// How a mount found it, for people and in numbers.
fn recovered(r: Recovery, chunks_per_pu: u32) -> Recovered {
    let mut how = match r.clean {
        true => "it had been stopped cleanly".to_string(),
        false => format!(
            "it had NOT been stopped: {} lines replayed, {} looked through sector by sector",
            r.lines_replayed, r.lines_scanned
        ),
    };
    for (count, what) in [
        (r.torn_units.len() as u64, "torn write units"),
        (r.lost_units.len() as u64, "LOST write units"),
        (r.astray, "sectors astray"),
    ] {
        if count > 0 {
            how += &format!(", {count} {what}");
        }
    }
    how += &format!("; life {}", r.generation);
    let place = |(chunk, sector): (u32, u32)| Location {
        pu: chunk / chunks_per_pu,
        chunk: chunk % chunks_per_pu,
        sector,
    };
    let numbers = [
        ("clean", json!(r.clean)),
        ("generation", json!(r.generation)),
        ("log_records", json!(r.records)),
        ("lines_replayed", json!(r.lines_replayed)),
        ("lines_scanned", json!(r.lines_scanned)),
        ("torn_units", json!(r.torn_units.len())),
        ("lost_units", json!(r.lost_units.len())),
        ("astray_sectors", json!(r.astray)),
        ("padded_sectors", json!(r.padded_sectors)),
    ];
    Recovered {
        found: true,
        clean: Some(r.clean),
        how,
        numbers: numbers.map(|(name, n)| (name.to_string(), n)).into_iter().collect::<Map<_, _>>(),
        lost: r.lost_units.iter().map(|unit| (place(*unit), r.unit)).collect(),
        host_failed: r.host_failed.map(place),
        lost_sectors: r.lost_sectors,
        torn_units: r.torn_units.len() as u64,
        steps: r.steps,
    }
}

impl Layer for HostFtl {
    fn kind(&self) -> &'static dyn Kind {
        HostFtl::settings(self).kind()
    }

    fn above(self: Arc<Self>) -> Seam {
        Seam::Block(self)
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        Some(HostFtl::uuid(self))
    }

    fn settings(&self) -> Settings {
        HostFtl::settings(self).to_settings()
    }

    fn recovered(&self) -> Option<Recovered> {
        let chunks_per_pu = self.geometry().chunks_per_pu;
        self.recovery().map(|r| recovered(r, chunks_per_pu))
    }

    fn stats(&self) -> Option<FtlStats> {
        Some(HostFtl::stats(self))
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(HostFtl::gauges(self))
    }

    fn contention(&self, now: Ns) -> Option<Contention> {
        Some(HostFtl::contention(self, now))
    }

    fn lines(&self) -> Option<Lines> {
        let l = self.layout();
        // Garbage collection keeps `start_lines` free; one more is the spare, opened beforehand.
        let kept = l.start_lines + 1;
        let room = l.lines.saturating_sub(kept) * l.line_data;
        let spare = 1.0 - l.capacity as f64 / room.max(1) as f64;
        Some(Lines { all: l.lines, kept_free: kept, effective_spare_ratio: spare.max(0.0) })
    }

    /// Numbers of lines that are in no use are not lines: their chunks are free, and counted as that.
    fn line_states(&self) -> Vec<(String, u64)> {
        let counts = self.line_counts().0.into_iter();
        let used = counts.filter(|(state, _)| *state != LineState::Free);
        used.map(|(state, n)| (format!("{state:?}").to_lowercase(), n as u64)).collect()
    }

    fn measure(&self) {
        self.forget_peaks();
    }

    fn attribute(&self, name: &str) -> Result<String, AttributeError> {
        HostFtl::attribute(self, name)
    }

    fn set_attribute(&self, cx: &Cx, name: &str, value: &str) -> Result<(), AttributeError> {
        HostFtl::set_attribute(self, cx, name, value)
    }

    /// Garbage collection was switched off, and there is no room left.
    fn unstick(&self, cx: &Cx) -> Option<String> {
        if self.gc.enabled.load(Ordering::Relaxed) {
            return None;
        }
        self.set_gc(cx, true);
        Some("gc_enabled=0".into())
    }

    /// Another number of active PUs, no garbage collection for a while (longer, and a full device
    /// rightly stands still), or one collection now.
    fn meddle<'a>(self: Arc<Self>, cx: &'a Cx, draw: u64) -> Later<'a, ()> {
        Box::pin(async move {
            let pus = self.geometry().pus();
            match draw % 3 {
                // Refused where the spare does not cover lines of that width.
                0 => drop(self.set_active_pus(cx, (draw >> 8) as u32 % (pus + 1))),
                1 => {
                    self.set_gc(cx, false);
                    cx.sleep(Ns::from_ns((draw >> 8) % 20_000_000)).await;
                    self.set_gc(cx, true);
                }
                _ => drop(self.gc_once(cx).await),
            }
        })
    }

    fn acks_are_durable(&self) -> bool {
        false
    }

    fn cuts_take_room(&self) -> bool {
        false
    }

    fn read_only(&self) -> Option<&'static str> {
        match self.check_writable() {
            Err(BlockError::ReadOnly(why)) => Some(why),
            _ => None,
        }
    }

    /// A flush has done that.
    fn drain<'a>(&'a self, _: &'a Cx) -> Later<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn stop<'a>(self: Arc<Self>, cx: &'a Cx, how: Stop) -> Later<'a, Result<(), BlockError>> {
        Box::pin(async move {
            match how {
                Stop::Clean => HostFtl::stop(&self, cx).await,
                Stop::Quiet => self.quiesce(cx).await,
            }
        })
    }

    fn locate(&self, lba: u64) -> Option<Location> {
        let Entry::Media(at) = self.map.get(lba) else { return None };
        let (chunk, sector) = self.lines.chunk_of(at);
        let per_pu = self.geometry().chunks_per_pu;
        Some(Location { pu: chunk / per_pu, chunk: chunk % per_pu, sector })
    }

    fn walk(&self) -> Result<(), String> {
        self.check_consistency()
    }

    fn state(&self) -> String {
        let shown = ["lines", "lines_info", "rate_limiter", "write_buffer", "gc_state"];
        let shown = shown.map(|name| HostFtl::attribute(self, name).unwrap_or_default()).join(", ");
        format!(
            "{shown}, {:?}, consistent {:?}, {} sectors, buffered {}",
            self.layout(),
            self.check_consistency(),
            BlockDev::info(self).capacity,
            HostFtl::stats(self).buffered_now
        )
    }

    fn power_lost(&self) -> Option<Saved> {
        None
    }
}
