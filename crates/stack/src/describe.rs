//! What a stack is to be, as a value.
//!
//! Owns: [`Description`] and its parts. Promises: it is all that decides about a stack, whoever made
//! it: an experiment, a drive's table of targets, a test. Never: is made into text to be read again.

use flashlane_ftl::layer::{Kind, Needs, Settings};
use flashlane_ocssd::spec::LinkSpec;
use flashlane_ocssd::{Device, DeviceSpec, Partition, Ssd, SsdOptions};
use std::sync::Arc;

/// A device with what an instance of it is like.
#[derive(Clone, Debug)]
pub struct DeviceChoice {
    /// Its spec, overrides included.
    pub spec: DeviceSpec,
    /// Options of the instance; the seed is the run's.
    pub options: SsdOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    pub kind: &'static dyn Kind,
    pub settings: Settings,
}

impl LayerSpec {
    /// A layer that nobody says anything of.
    pub fn new(kind: &'static dyn Kind) -> LayerSpec {
        LayerSpec { kind, settings: kind.defaults() }
    }

    pub fn with(kind: &'static dyn Kind, settings: Settings) -> LayerSpec {
        LayerSpec { kind, settings }
    }
}

/// A stack that is to be.
#[derive(Clone, Debug)]
pub struct Description {
    pub device: DeviceChoice,
    /// On which of its PUs, first and last; all without it.
    pub pus: Option<(u32, u32)>,
    /// On which chunks of each of them, first and last; all without it.
    pub chunks: Option<(u32, u32)>,
    /// Its layers, the lowest first; none where an application has the PUs.
    pub layers: Vec<LayerSpec>,
}

/// PUs that a device does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PusError {
    /// The last one that was asked for.
    pub end: u32,
    pub last: u32,
}

impl Description {
    pub fn new(device: DeviceChoice, layers: Vec<LayerSpec>) -> Description {
        Description { device, pus: None, chunks: None, layers }
    }

    /// Whether there are no layers.
    pub fn is_raw(&self) -> bool {
        self.layers.is_empty()
    }

    /// Its logical sectors are written in order: who writes anywhere is refused. Filters change nothing of
    /// that.
    pub fn in_order(&self) -> bool {
        let mut lowest_first = self.layers.iter();
        let places = lowest_first.rfind(|layer| layer.kind.stands().on != Needs::Block);
        places.is_some_and(|layer| layer.kind.in_order())
    }

    /// What it is called in a report: by its lowest layer, and what stands on that.
    pub fn title(&self) -> String {
        let titles = self.layers.iter().map(|layer| layer.kind.title(&layer.settings));
        let titles: Vec<String> = titles.collect();
        match titles.is_empty() {
            true => super::kinds::RAW.into(),
            false => titles.join(" + "),
        }
    }

    /// The host's link, unless the device is one that takes no time.
    pub fn link(&self) -> Option<&LinkSpec> {
        self.device.spec.link.as_ref().filter(|_| self.device.options.timing)
    }

    /// The part of a device that the stack stands on.
    ///
    /// # Errors
    /// The device does not have these PUs.
    pub fn part_of(&self, ssd: &Arc<Ssd>) -> Result<Arc<dyn Device>, PusError> {
        let geo = *ssd.geometry();
        let last = geo.pus() - 1;
        let all_chunks = (0, geo.chunks_per_pu - 1);
        match (self.pus, self.chunks) {
            (None, None) => Ok(ssd.clone()),
            (Some((_, end)), _) if end > last => Err(PusError { end, last }),
            (pus, chunks) => {
                let (pus, chunks) = (pus.unwrap_or((0, last)), chunks.unwrap_or(all_chunks));
                Ok(Arc::new(Partition::of_chunks(ssd.clone(), pus, chunks)))
            }
        }
    }
}
