//! S-FTL as a kind of layer.
//!
//! Owns: the keys of its settings, what the cold side of it answers. Promises: its settings are all in
//! what a drive keeps. Never: on the way of a request.

use super::Sftl;
use super::create::{CreateError, SftlConfig};
use super::mount::{MountError, Recovery};
use super::unreadable::name_some;
use crate::block::BlockError;
use crate::kit;
use crate::layer::{
    Asked, Built, Counted, Find, Kind, Later, Layer, LayerError, MountHow, Needs, Pus, Recovered,
    Refusal, Saved, Seam, Settings, Side, Stands, Stop,
};
use crate::stats::{FtlStats, Gauges};
use flashlane_base::Location;
use flashlane_rt::Cx;
use serde_json::{Value, json};
use std::sync::Arc;

/// The simplified FTL inside a drive.
pub struct SftlKind;

/// What ParaFS stands on.
pub static SFTL: SftlKind = SftlKind;

/// Settings that nobody has looked at.
fn config_of(settings: &Settings) -> SftlConfig {
    SftlConfig::from_settings(settings).unwrap_or_default()
}

impl SftlConfig {
    /// As a drive keeps them.
    pub fn to_settings(&self) -> Settings {
        serde_json::to_value(self).unwrap_or_else(|e| unreachable!("plain numbers and flags: {e}"))
    }

    /// From what a drive keeps.
    ///
    /// # Errors
    /// A key that there is not, or a value of the wrong type.
    pub fn from_settings(settings: &Settings) -> Result<SftlConfig, serde_json::Error> {
        serde_json::from_value(settings.clone())
    }
}

impl Kind for SftlKind {
    fn name(&self) -> &'static str {
        "sftl"
    }

    fn title(&self, _: &Settings) -> String {
        "S-FTL (sftl)".into()
    }

    fn stands(&self) -> Stands {
        let (on, side, pus) = (Needs::Device, Side::Drive, Pus::Whole);
        Stands { on, side, pus, needs_blank: true }
    }

    fn settings(&self, asked: &dyn Asked, base: &Settings) -> Settings {
        let mut c = config_of(base);
        c.meta_percent = asked.small("meta_percent", 1, 50).unwrap_or(c.meta_percent);
        if let Some(percent) = asked.small("over_provisioning_percent", 0, 50) {
            c.over_provisioning_percent = percent;
        }
        c.flush_records = asked.flag("flush_records").unwrap_or(c.flush_records);
        c.to_settings()
    }

    fn defaults(&self) -> Settings {
        SftlConfig::default().to_settings()
    }

    /// A die of an image can fail, so flushes leave records. An image may be small.
    fn on_image(&self, settings: Settings) -> Settings {
        let (flush_records, small_spare) = (true, true);
        SftlConfig { flush_records, small_spare, ..config_of(&settings) }.to_settings()
    }

    fn on_small_image(&self, settings: &Settings) -> Option<Settings> {
        let config = config_of(settings);
        let fewer = |config| SftlConfig { flush_records: false, ..config }.to_settings();
        config.flush_records.then(|| fewer(config))
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        SftlConfig::from_settings(settings).map(drop).map_err(|e| e.to_string())
    }

    fn described(&self, settings: &Settings) -> Value {
        json!({ "kind": "sftl", "settings": settings })
    }

    /// What of its settings is on the medium is compared by the mount.
    fn differs(&self, _: &Settings, _: &Settings, _: u32) -> Option<(&'static str, String)> {
        None
    }

    fn lacks(&self, how: MountHow) -> Option<&'static str> {
        how.undo_discards.then_some("--undo-discards")
    }

    fn in_order(&self) -> bool {
        true
    }

    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built> {
        Box::pin(async move {
            let config = SftlConfig::from_settings(settings)
                .map_err(|e| LayerError::create(Refusal::Settings, e))?;
            let made = Sftl::create(cx, below.device(), config).await;
            made.map(|ftl| ftl as Arc<dyn Layer>)
                .map_err(|e| LayerError::create(refusal(&e), format!("sftl: {e}")))
        })
    }

    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        find: &'a Find,
    ) -> Later<'a, Built> {
        Box::pin(async move {
            let config = SftlConfig::from_settings(settings)
                .map_err(|e| LayerError::mount(Refusal::Settings, e))?;
            let accept_lost_sectors = config.accept_lost_sectors || find.how.accept_lost;
            let config = SftlConfig { accept_lost_sectors, ..config };
            let found = Sftl::mount(cx, below.device(), config).await;
            found.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
                let refusal = match &e {
                    MountError::Meta(
                        kit::MountError::Lost { .. }
                        | kit::MountError::Superseded { .. }
                        | kit::MountError::Host { .. },
                    ) => Refusal::Lost,
                    MountError::Nothing { .. } => Refusal::Nothing,
                    MountError::Create(e) => refusal(e),
                    _ => Refusal::Damaged,
                };
                LayerError::mount(refusal, format!("sftl: {e}"))
            })
        })
    }
}

fn refusal(error: &CreateError) -> Refusal {
    match error {
        CreateError::TooSmall { .. } => Refusal::TooSmall,
        CreateError::Meta(kit::CreateError::TooSmall { .. }) => Refusal::TooSmall,
        CreateError::Config { .. } => Refusal::Settings,
        _ => Refusal::Device,
    }
}

/// How a mount found it, for people and in numbers.
fn recovered(r: &Recovery) -> Recovered {
    let mut how = format!(
        "{} segments hold data: {} records read, {} chunks erased",
        r.segments, r.scanned_sectors, r.erased_chunks
    );
    if !r.unreadable.is_empty() {
        how += &format!("; not known what they hold: {}", name_some(&r.unreadable));
    }
    let numbers = [
        ("segments", json!(r.segments)),
        ("scanned_sectors", json!(r.scanned_sectors)),
        ("padded_sectors", json!(r.padded_sectors)),
        ("erased_chunks", json!(r.erased_chunks)),
        ("unreadable_chunks", json!(r.unreadable.len())),
    ];
    let meta = r.meta.as_ref();
    let lost = meta.map_or_else(Vec::new, |m| m.lost.clone());
    Recovered {
        found: r.found,
        clean: None,
        how,
        numbers: numbers.map(|(name, n)| (name.to_string(), n)).into_iter().collect(),
        steps: r.steps.clone(),
        lost,
        host_failed: meta.and_then(|m| m.host_failed),
        torn_units: r.unreadable.len() as u64,
        ..Recovered::default()
    }
}

impl Sftl {
    /// Waits until nothing is under way, and has it all durable.
    async fn come_to_rest(&self, cx: &Cx) {
        self.changed.wait(cx, || self.map.lock().is_still()).await;
        self.device.flush(cx).await;
    }
}

impl Layer for Sftl {
    fn kind(&self) -> &'static dyn Kind {
        &SFTL
    }

    fn above(self: Arc<Self>) -> Seam {
        Seam::Segments(self)
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }

    fn recovered(&self) -> Option<Recovered> {
        self.recovery().map(recovered)
    }

    fn stats(&self) -> Option<FtlStats> {
        Some(Sftl::stats(self))
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(Sftl::gauges(self))
    }

    fn counted(&self) -> Vec<Counted> {
        let map = self.map.lock();
        let all = || map.channels.iter().flat_map(|c| &c.segments);
        let count =
            |f: &dyn Fn(&super::map::Segment) -> bool| all().filter(|s| f(s)).count() as u64;
        let retired: u32 = (0..self.info.channels).map(|c| map.retired(c)).sum();
        vec![
            Counted { name: "segments", value: count(&|_| true) },
            Counted { name: "empty_segments", value: count(&|s| s.block.is_none()) },
            Counted { name: "failed_segments", value: count(&|s| s.failed) },
            Counted {
                name: "gone_segments",
                value: count(&|s| s.phase == super::map::Phase::Gone),
            },
            Counted { name: "retired_blocks", value: retired.into() },
        ]
    }

    fn locate(&self, lba: u64) -> Option<Location> {
        let skip = crate::block::BlockDev::info(&*self.behind).capacity;
        let Some(sector) = lba.checked_sub(skip) else {
            return Layer::locate(&*self.meta, lba + self.behind.skip());
        };
        let full = u64::from(self.info.segment_sectors);
        let (channel, segment) = self.info.of_number(sector / full);
        let at = self.map.lock().locate(channel, segment, (sector % full) as u32)?;
        Some(Location { chunk: at.chunk + self.first_chunk, ..at })
    }

    /// What an append has acknowledged is; what waits in the page-mapped region's buffer is not.
    fn acks_are_durable(&self) -> bool {
        false
    }

    /// A mount behind a cut pads the page-mapped region, and open segments where there is a window.
    fn cuts_take_room(&self) -> bool {
        true
    }

    fn read_only(&self) -> Option<&'static str> {
        Sftl::read_only(self)
    }

    fn drain<'a>(&'a self, cx: &'a Cx) -> Later<'a, ()> {
        Box::pin(async move {
            self.meta.drain(cx).await;
            self.come_to_rest(cx).await;
        })
    }

    fn stop<'a>(self: Arc<Self>, cx: &'a Cx, how: Stop) -> Later<'a, Result<(), BlockError>> {
        Box::pin(async move {
            self.come_to_rest(cx).await;
            Layer::stop(self.meta.clone(), cx, how).await
        })
    }

    fn walk(&self) -> Result<(), String> {
        Sftl::walk(self)
    }

    fn state(&self) -> String {
        let numbers = self.counted();
        let numbers: Vec<String> =
            numbers.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
        format!("{}; page-mapped region: {}", numbers.join(", "), Layer::state(&*self.meta))
    }

    /// The page-mapped region has no capacitors.
    fn power_lost(&self) -> Option<Saved> {
        None
    }
}
