//! The block SSD's FTL as a kind of layer.
//!
//! Owns: the keys of its settings. Promises: its settings are all in what a drive keeps. Never: on
//! the way of a request.

use super::{MapKind, PftlConfig, Victim};
use crate::kit::layer as kit;
use crate::layer::{
    Asked, Attribute, Built, Find, Kind, Later, MountHow, Needs, Pus, Seam, Settings, Side, Stands,
};
use flashlane_rt::Cx;
use serde_json::{Value, json};

/// The page-mapped FTL inside a drive.
pub struct PftlKind;

/// The block SSD of every comparison.
pub static PFTL: PftlKind = PftlKind;

/// Settings that nobody has looked at.
fn config_of(settings: &Settings) -> PftlConfig {
    PftlConfig::from_settings(settings).unwrap_or_default()
}

impl PftlConfig {
    /// As a drive keeps them.
    pub fn to_settings(&self) -> Settings {
        serde_json::to_value(self).unwrap_or_else(|e| unreachable!("plain numbers and flags: {e}"))
    }

    /// From what a drive keeps.
    ///
    /// # Errors
    /// A key that there is not, or a value of the wrong type.
    pub fn from_settings(settings: &Settings) -> Result<PftlConfig, serde_json::Error> {
        serde_json::from_value(settings.clone())
    }
}

impl Kind for PftlKind {
    fn name(&self) -> &'static str {
        "pftl"
    }

    fn title(&self, _: &Settings) -> String {
        "block SSD (pftl)".into()
    }

    fn stands(&self) -> Stands {
        let (on, side, pus) = (Needs::Device, Side::Drive, Pus::Whole);
        Stands { on, side, pus, needs_blank: true }
    }

    fn settings(&self, asked: &dyn Asked, base: &Settings) -> Settings {
        let mut c = config_of(base);
        if let Some(percent) = asked.small("over_provisioning_percent", 1, 90) {
            c.over_provisioning_percent = percent;
        }
        c.buffer_sectors = asked.small("buffer_sectors", 1, u32::MAX).or(c.buffer_sectors);
        c.map = asked.choice("map", &MapKind::NAMES).unwrap_or(c.map);
        c.map_cache = asked.small("map_cache", 1, u32::MAX).or(c.map_cache);
        if c.map == MapKind::Whole && asked.has("map_cache") {
            asked.complain("map_cache", "`map_cache` is for `map = \"cached\"`".into());
        }
        c.victim = asked.choice("victim", &Victim::NAMES).unwrap_or(c.victim);
        if let Some(lines) = asked.small("gc_low_water_lines", 1, u32::MAX) {
            c.gc_low_water_lines = lines;
        }
        c.gc_reads = asked.small("gc_reads", 1, u32::MAX).or(c.gc_reads);
        c.capacitors = asked.flag("capacitors").unwrap_or(c.capacitors);
        c.flush_records = asked.flag("flush_records").unwrap_or(c.flush_records);
        if c.capacitors && c.flush_records && asked.has("flush_records") {
            let why =
                "`flush_records` is for `capacitors = false`: with capacitors it has no effect";
            asked.complain("flush_records", why.into());
        }
        c.dirty_pages = asked.small("dirty_pages", 0, u32::MAX).or(c.dirty_pages);
        if !c.capacitors && asked.has("dirty_pages") {
            asked.complain("dirty_pages", "`dirty_pages` is for `capacitors = true`".into());
        }
        c.to_settings()
    }

    fn defaults(&self) -> Settings {
        PftlConfig::default().to_settings()
    }

    /// On an image capacitors would end with the process, so flushes program. They also leave
    /// records, because a die can fail.
    fn on_image(&self, settings: Settings) -> Settings {
        let config = config_of(&settings);
        PftlConfig { capacitors: false, flush_records: true, ..config }.to_settings()
    }

    fn on_small_image(&self, settings: &Settings) -> Option<Settings> {
        let config = config_of(settings);
        let fewer = |config| PftlConfig { flush_records: false, ..config }.to_settings();
        config.flush_records.then(|| fewer(config))
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        PftlConfig::from_settings(settings).map(drop).map_err(|e| e.to_string())
    }

    fn described(&self, settings: &Settings) -> Value {
        json!({ "kind": "pftl", "settings": settings })
    }

    fn attributes(&self) -> &'static [Attribute] {
        static ALL: [Attribute; 1] = [Attribute::shown("lines")];
        &ALL
    }

    /// Its settings are not on the medium: they are what the drive says.
    fn differs(&self, _: &Settings, _: &Settings, _: u32) -> Option<(&'static str, String)> {
        None
    }

    fn lacks(&self, how: MountHow) -> Option<&'static str> {
        how.undo_discards.then_some("--undo-discards")
    }

    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built> {
        Box::pin(kit::create::<PftlConfig>(cx, below, settings))
    }

    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        find: &'a Find,
    ) -> Later<'a, Built> {
        Box::pin(kit::mount::<PftlConfig>(cx, below, settings, find))
    }
}
