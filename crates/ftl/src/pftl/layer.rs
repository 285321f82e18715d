//! The block SSD's FTL as a kind of layer.
//!
//! Owns: the keys of its settings, what of an error tells a builder what to do. Promises: its
//! settings are all in what a drive keeps. Never: on the way of a request.

use super::{CreateError, Dump, MountError, Pftl, PftlConfig, Recovery};
use crate::block::BlockError;
use crate::layer::{
    Asked, Built, Find, Kind, Later, Layer, LayerError, MountHow, Needs, Pus, Recovered, Refusal,
    Saved, Seam, Settings, Side, Stands, Stop,
};
use crate::stats::{FtlStats, Gauges};
use flashlane_rt::Cx;
use serde_json::{Value, json};
use std::sync::Arc;

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
        if let Some(lines) = asked.small("gc_low_water_lines", 1, u32::MAX) {
            c.gc_low_water_lines = lines;
        }
        c.gc_reads = asked.small("gc_reads", 1, u32::MAX).or(c.gc_reads);
        c.capacitors = asked.flag("capacitors").unwrap_or(c.capacitors);
        c.dirty_pages = asked.small("dirty_pages", 0, u32::MAX).or(c.dirty_pages);
        c.to_settings()
    }

    fn defaults(&self) -> Settings {
        PftlConfig::default().to_settings()
    }

    /// Capacitors end with the process: on an image a flush programs.
    fn on_image(&self, settings: Settings) -> Settings {
        PftlConfig { capacitors: false, ..config_of(&settings) }.to_settings()
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        PftlConfig::from_settings(settings).map(drop).map_err(|e| e.to_string())
    }

    fn described(&self, settings: &Settings) -> Value {
        json!({ "kind": "pftl", "settings": settings })
    }

    /// Its settings are not on the medium: they are what the drive says.
    fn differs(&self, _: &Settings, _: &Settings, _: u32) -> Option<(&'static str, String)> {
        None
    }

    fn lacks(&self, how: MountHow) -> Option<&'static str> {
        how.undo_discards.then_some("--undo-discards")
    }

    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built> {
        Box::pin(async move {
            let config = PftlConfig::from_settings(settings)
                .map_err(|e| LayerError::create(Refusal::Settings, e))?;
            let made = Pftl::create(cx, below.device(), config);
            made.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
                let refusal = match &e {
                    CreateError::TooSmall { .. } => Refusal::TooSmall,
                    CreateError::Config { .. } => Refusal::Settings,
                    _ => Refusal::Device,
                };
                LayerError::create(refusal, e)
            })
        })
    }

    /// An empty device is an empty one of it.
    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        find: &'a Find,
    ) -> Later<'a, Built> {
        Box::pin(async move {
            let config = PftlConfig::from_settings(settings)
                .map_err(|e| LayerError::mount(Refusal::Settings, e))?;
            let accept_lost_sectors = config.accept_lost_sectors || find.how.accept_lost;
            let config = PftlConfig { accept_lost_sectors, ..config };
            let dump = find.saved.as_ref().and_then(|saved| saved.downcast_ref::<Dump>());
            let found = Pftl::mount(cx, below.device(), config, dump).await;
            found.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
                let refusal = match &e {
                    MountError::Lost { .. } | MountError::Host { .. } => Refusal::Lost,
                    _ => Refusal::Damaged,
                };
                LayerError::mount(refusal, e)
            })
        })
    }
}

/// How a mount found it, for people and in numbers.
fn recovered(r: Recovery) -> Recovered {
    let how = match r.no_snapshot {
        None => "from the snapshot of a clean stop".to_string(),
        Some(why) => {
            format!("no snapshot ({why}): {} sectors' records read", r.scanned_sectors)
        }
    };
    let numbers = [
        ("from_snapshot", json!(r.from_snapshot)),
        ("no_snapshot", json!(r.no_snapshot)),
        ("scanned_sectors", json!(r.scanned_sectors)),
        ("padded_sectors", json!(r.padded_sectors)),
    ];
    Recovered {
        found: r.from_snapshot || r.scanned_sectors > 0,
        clean: r.from_snapshot,
        how,
        numbers: numbers.map(|(name, n)| (name.to_string(), n)).into_iter().collect(),
        lost: r.lost.iter().map(|at| (*at, 1)).collect(),
        host_failed: r.host_failed,
        steps: r.steps,
    }
}

impl Layer for Pftl {
    fn kind(&self) -> &'static dyn Kind {
        &PFTL
    }

    fn above(self: Arc<Self>) -> Seam {
        Seam::Block(self)
    }

    fn settings(&self) -> Settings {
        // What one mount was told to live with is no setting.
        PftlConfig { accept_lost_sectors: false, ..self.config.clone() }.to_settings()
    }

    fn recovered(&self) -> Option<Recovered> {
        self.recovery().map(recovered)
    }

    fn stats(&self) -> Option<FtlStats> {
        Some(Pftl::stats(self))
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(Pftl::gauges(self))
    }

    fn line_states(&self) -> Vec<(String, u64)> {
        Pftl::line_states(self)
    }

    fn acks_are_durable(&self) -> bool {
        self.capacitors
    }

    /// A barrier pads, and so does a mount behind a cut.
    fn cuts_take_room(&self) -> bool {
        !self.capacitors
    }

    fn read_only(&self) -> Option<&'static str> {
        Pftl::read_only(self)
    }

    fn drain<'a>(&'a self, cx: &'a Cx) -> Later<'a, ()> {
        Box::pin(Pftl::drain(self, cx))
    }

    /// On capacitors everything is durable, also on a device that takes no more writes.
    fn stop<'a>(self: Arc<Self>, cx: &'a Cx, how: Stop) -> Later<'a, Result<(), BlockError>> {
        Box::pin(async move {
            match how {
                Stop::Clean => Pftl::stop(&self, cx).await,
                Stop::Quiet => self.quiesce(cx).await,
            }
            match Pftl::read_only(&self) {
                Some(why) if !self.capacitors => Err(BlockError::ReadOnly(why)),
                _ => Ok(()),
            }
        })
    }

    fn walk(&self) -> Result<(), String> {
        Pftl::walk(self)
    }

    fn state(&self) -> String {
        format!("{:?}", self.details())
    }

    fn power_lost(&self) -> Option<Saved> {
        Pftl::power_lost(self).map(|dump| Arc::new(dump) as Saved)
    }
}
