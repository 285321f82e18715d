//! A drive's FTL as a layer.
//!
//! Owns: what of an error tells a builder what to do, how a mount is told, what the cold side of a
//! drive's FTL answers. Promises: the same for all kinds that stand on the kit. Never: on the way of
//! a request.

use super::buffer::Stage;
use super::map::Entry;
use super::{CreateError, DriveConfig, DriveFtl, Dump, MountError, Recovery};
use crate::block::BlockError;
use crate::layer::{
    AttributeError, Built, Counted, Find, Kind, Later, Layer, LayerError, Recovered, Refusal,
    Saved, Seam, Settings, Stop,
};
use crate::stats::{FtlStats, Gauges};
use flashlane_base::Location;
use flashlane_rt::Cx;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;

/// Builds a new one of the kind whose settings `C` are.
pub(crate) async fn create<C: DeserializeOwned + Into<DriveConfig>>(
    cx: &Cx,
    below: Seam,
    settings: &Settings,
) -> Built {
    let config: C = serde_json::from_value(settings.clone())
        .map_err(|e| LayerError::create(Refusal::Settings, e))?;
    let config: DriveConfig = config.into();
    let name = config.kind.name();
    let made = DriveFtl::create(cx, below.device(), config);
    if let Ok(ftl) = &made {
        ftl.formatted(cx).await;
    }
    made.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
        let refusal = match &e {
            CreateError::TooSmall { .. } => Refusal::TooSmall,
            CreateError::Config { .. } | CreateError::Regions { .. } => Refusal::Settings,
            _ => Refusal::Device,
        };
        LayerError::create(refusal, format!("{name}: {e}"))
    })
}

/// Builds the one that is on the medium. An empty device is an empty one of it.
pub(crate) async fn mount<C: DeserializeOwned + Into<DriveConfig>>(
    cx: &Cx,
    below: Seam,
    settings: &Settings,
    find: &Find,
) -> Built {
    let config: C = serde_json::from_value(settings.clone())
        .map_err(|e| LayerError::mount(Refusal::Settings, e))?;
    let config: DriveConfig = config.into();
    let name = config.kind.name();
    let accept_lost_sectors = config.accept_lost_sectors || find.how.accept_lost;
    let config = DriveConfig { accept_lost_sectors, ..config };
    let dump = find.saved.as_ref().and_then(|saved| saved.downcast_ref::<Dump>());
    let found = DriveFtl::mount(cx, below.device(), config, dump).await;
    found.map(|ftl| ftl as Arc<dyn Layer>).map_err(|e| {
        let refusal = match &e {
            MountError::Lost { .. } | MountError::Superseded { .. } | MountError::Host { .. } => {
                Refusal::Lost
            }
            _ => Refusal::Damaged,
        };
        LayerError::mount(refusal, format!("{name}: {e}"))
    })
}

/// How a mount found it, for people and in numbers.
fn recovered(r: Recovery) -> Recovered {
    let how = match r.no_snapshot {
        None => "from the snapshot of a clean stop".to_string(),
        Some(why) => {
            let unnoted = match r.unnoted && r.scanned_sectors > 0 {
                true => "; no notes of erased chunks: an offline chunk counts as a bad one",
                false => "",
            };
            format!("no snapshot ({why}): {} sectors' records read{unnoted}", r.scanned_sectors)
        }
    };
    let numbers = [
        ("from_snapshot", json!(r.from_snapshot)),
        ("no_snapshot", json!(r.no_snapshot)),
        ("scanned_sectors", json!(r.scanned_sectors)),
        ("padded_sectors", json!(r.padded_sectors)),
        ("unnoted", json!(r.unnoted)),
    ];
    Recovered {
        found: r.from_snapshot || r.scanned_sectors > 0,
        clean: Some(r.from_snapshot),
        how,
        numbers: numbers.map(|(name, n)| (name.to_string(), n)).into_iter().collect(),
        lost: r.lost,
        lost_sectors: r.lost_sectors,
        torn_units: r.torn_units,
        host_failed: r.host_failed,
        steps: r.steps,
    }
}

impl Layer for DriveFtl {
    fn kind(&self) -> &'static dyn Kind {
        self.kind
    }

    fn above(self: Arc<Self>) -> Seam {
        Seam::Block(self)
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }

    fn recovered(&self) -> Option<Recovered> {
        self.recovery().map(recovered)
    }

    fn stats(&self) -> Option<FtlStats> {
        Some(DriveFtl::stats(self))
    }

    fn gauges(&self) -> Option<Gauges> {
        Some(DriveFtl::gauges(self))
    }

    fn line_states(&self) -> Vec<(String, u64)> {
        DriveFtl::line_states(self)
    }

    fn attribute(&self, name: &str) -> Result<String, AttributeError> {
        match (name, self.journals()) {
            ("lines", _) => Ok(self.lines()),
            ("journals", Some(text)) => Ok(text),
            _ => Err(AttributeError::unknown(name, self.kind.attributes())),
        }
    }

    fn counted(&self) -> Vec<Counted> {
        self.controller.lock().counted()
    }

    fn locate(&self, lba: u64) -> Option<Location> {
        let c = self.controller.lock();
        match c.map.get(lba as u32) {
            Entry::Media(at) => Some(self.layout.location(at)),
            Entry::Slot(slot) => {
                let slot = c.buffer.slot(slot);
                (slot.stage == Stage::Window).then(|| self.layout.location(slot.at))
            }
            Entry::Unmapped | Entry::Poisoned => None,
        }
    }

    fn measure(&self) {
        self.controller.lock().measure_tier();
    }

    fn acks_are_durable(&self) -> bool {
        self.capacitors
    }

    /// A barrier pads, and so does a mount behind a cut.
    fn cuts_take_room(&self) -> bool {
        !self.capacitors
    }

    /// Where a stop finds no room for a second root, it leaves one.
    fn outlives_a_pu(&self) -> bool {
        self.controller.lock().roots_left > 1
    }

    fn read_only(&self) -> Option<&'static str> {
        DriveFtl::read_only(self)
    }

    fn drain<'a>(&'a self, cx: &'a Cx) -> Later<'a, ()> {
        Box::pin(DriveFtl::drain(self, cx))
    }

    /// On capacitors everything is durable, also on a device that takes no more writes.
    fn stop<'a>(self: Arc<Self>, cx: &'a Cx, how: Stop) -> Later<'a, Result<(), BlockError>> {
        Box::pin(async move {
            match how {
                Stop::Clean => DriveFtl::stop(&self, cx).await,
                Stop::Quiet => self.quiesce(cx).await,
            }
            match DriveFtl::read_only(&self) {
                Some(why) if !self.capacitors => Err(BlockError::ReadOnly(why)),
                _ => Ok(()),
            }
        })
    }

    fn walk(&self) -> Result<(), String> {
        DriveFtl::walk(self)
    }

    fn state(&self) -> String {
        let standing = self.controller.lock().standing();
        format!("{standing}; {:?}", self.details())
    }

    fn power_lost(&self) -> Option<Saved> {
        DriveFtl::power_lost(self).map(|dump| Arc::new(dump) as Saved)
    }
}
