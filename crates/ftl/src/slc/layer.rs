//! The SLC/TLC SSD as a kind of layer.
//!
//! Owns: the keys of its settings. Promises: its settings are all in what a drive keeps. Never: on
//! the way of a request.

use super::{Scheme, SlcConfig};
use crate::kit::layer as kit;
use crate::layer::{
    Asked, Attribute, Built, Find, Kind, Later, MountHow, Needs, Pus, Seam, Settings, Side, Stands,
};
use flashlane_rt::Cx;
use serde_json::{Value, json};

/// The FTL inside a drive with an SLC part.
pub struct SlcKind;

/// The SLC/TLC SSD.
pub static SLC: SlcKind = SlcKind;

/// Settings that nobody has looked at.
fn config_of(settings: &Settings) -> SlcConfig {
    SlcConfig::from_settings(settings).unwrap_or_default()
}

impl SlcConfig {
    /// As a drive keeps them.
    pub fn to_settings(&self) -> Settings {
        serde_json::to_value(self).unwrap_or_else(|e| unreachable!("plain numbers and flags: {e}"))
    }

    /// From what a drive keeps.
    ///
    /// # Errors
    /// A key that there is not, or a value of the wrong type.
    pub fn from_settings(settings: &Settings) -> Result<SlcConfig, serde_json::Error> {
        serde_json::from_value(settings.clone())
    }
}

impl Kind for SlcKind {
    fn name(&self) -> &'static str {
        "slc-tlc"
    }

    fn title(&self, settings: &Settings) -> String {
        match config_of(settings).scheme {
            Scheme::Conventional => "SLC/TLC SSD, conventional".into(),
            Scheme::Journal => "SLC/TLC SSD, journal region".into(),
        }
    }

    fn stands(&self) -> Stands {
        let (on, side, pus) = (Needs::Device, Side::Drive, Pus::Whole);
        Stands { on, side, pus, needs_blank: true }
    }

    fn settings(&self, asked: &dyn Asked, base: &Settings) -> Settings {
        let mut c = config_of(base);
        c.scheme = asked.choice("scheme", &Scheme::NAMES).unwrap_or(c.scheme);
        c.slc_chunks = asked.small("slc_chunks", 2, u32::MAX).or(c.slc_chunks);
        c.journal_lines = asked.small("journal_lines", 1, u32::MAX).or(c.journal_lines);
        c.journal_line_pus = asked.small("journal_line_pus", 1, u32::MAX).or(c.journal_line_pus);
        if c.scheme == Scheme::Conventional {
            for key in ["journal_lines", "journal_line_pus"].into_iter().filter(|k| asked.has(k)) {
                asked.complain(key, format!("`{key}` is for `scheme = \"journal\"`"));
            }
        }
        c.idle = asked.time("idle").unwrap_or(c.idle);
        let rate = asked.small("migration_mib_per_s", 1, u32::MAX);
        c.migration_mib_per_s = rate.or(c.migration_mib_per_s);
        c.detect = asked.flag("detect").unwrap_or(c.detect);
        if let Some(percent) = asked.small("over_provisioning_percent", 1, 90) {
            c.over_provisioning_percent = percent;
        }
        c.buffer_sectors = asked.small("buffer_sectors", 1, u32::MAX).or(c.buffer_sectors);
        if let Some(lines) = asked.small("gc_low_water_lines", 1, u32::MAX) {
            c.gc_low_water_lines = lines;
        }
        c.gc_reads = asked.small("gc_reads", 1, u32::MAX).or(c.gc_reads);
        c.flush_records = asked.flag("flush_records").unwrap_or(c.flush_records);
        c.to_settings()
    }

    fn defaults(&self) -> Settings {
        SlcConfig::default().to_settings()
    }

    /// On an image flushes leave records, because a die can fail.
    fn on_image(&self, settings: Settings) -> Settings {
        SlcConfig { flush_records: true, ..config_of(&settings) }.to_settings()
    }

    fn on_small_image(&self, settings: &Settings) -> Option<Settings> {
        let config = config_of(settings);
        let fewer = |config| SlcConfig { flush_records: false, ..config }.to_settings();
        config.flush_records.then(|| fewer(config))
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        SlcConfig::from_settings(settings).map(drop).map_err(|e| e.to_string())
    }

    fn described(&self, settings: &Settings) -> Value {
        json!({ "kind": self.name(), "settings": settings })
    }

    fn attributes(&self) -> &'static [Attribute] {
        static ALL: [Attribute; 2] = [Attribute::shown("lines"), Attribute::shown("journals")];
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
        Box::pin(kit::create::<SlcConfig>(cx, below, settings))
    }

    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        find: &'a Find,
    ) -> Later<'a, Built> {
        Box::pin(kit::mount::<SlcConfig>(cx, below, settings, find))
    }
}
