//! Layers on a device, put together and asked together.
//!
//! Owns: [`raise`], the place of the host's link, [`Layers`]. Promises: if one layer can't be built,
//! those below it are stopped; what counts for the whole stack is asked of every layer. Never: knows
//! which layers there are.

use crate::LayerSpec;
use flashlane_base::Ns;
use flashlane_ftl::block::{BlockDev, BlockError};
use flashlane_ftl::contention::Contention;
use flashlane_ftl::layer::{
    Counted, Find, Layer, LayerError, Refusal, Saved, Seam, Side, Stands, Stop,
};
use flashlane_ftl::link::LinkedBlock;
use flashlane_ftl::stats::{FtlStats, Gauges};
use flashlane_ocssd::Device;
use flashlane_ocssd::device::CAUSES_MAX;
use flashlane_ocssd::link::LinkedDevice;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_rt::Cx;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether layers are new.
#[derive(Clone, Default)]
pub enum Make {
    #[default]
    Create,
    /// They are what is on the medium.
    Mount {
        /// The lowest one is found so.
        find: Find,
        /// What each saved when the power went, the lowest first; nothing where the list ends.
        saved: Vec<Option<Saved>>,
    },
}

impl Make {
    /// Whatever is on the medium is mounted, if it is sound.
    pub fn mount() -> Make {
        Make::Mount { find: Find::default(), saved: Vec::new() }
    }
}

/// A seam as the host reaches it.
pub fn behind_link(seam: Seam, link: Option<&LinkSpec>) -> Seam {
    match (seam, link) {
        (seam, None) => seam,
        (Seam::Device(device), Some(link)) => {
            Seam::Device(Arc::new(LinkedDevice::new(device, link)))
        }
        (Seam::Block(block), Some(link)) => Seam::Block(Arc::new(LinkedBlock::new(block, link))),
        (Seam::Segments(sftl), Some(link)) => {
            sftl.behind_link(link);
            Seam::Segments(sftl)
        }
    }
}

/// Puts layers on `device`, which is the part of the medium that they have, behind the host's link.
/// Their background tasks start on the core of `cx`.
///
/// # Errors
/// A layer can't be built, for its own reason.
pub async fn raise(
    cx: &Cx,
    device: Arc<dyn Device>,
    specs: &[LayerSpec],
    mut link: Option<&LinkSpec>,
    make: &Make,
) -> Result<Layers, LayerError> {
    let mut all: Vec<Arc<dyn Layer>> = Vec::new();
    let mut seam = Seam::Device(device);
    for (at, LayerSpec { kind, settings }) in specs.iter().enumerate() {
        let Stands { on, side, .. } = kind.stands();
        if !on.are_met_by(&seam) {
            let _ = Layers { all, top: seam }.stop(cx, Stop::Clean).await;
            let why = format!("`{}` can't stand on what is below it", kind.name());
            return Err(LayerError::create(Refusal::Settings, why));
        }
        if side == Side::Host {
            seam = behind_link(seam, link.take());
        }
        let below = seam.clone();
        let built = match make {
            Make::Create => kind.create(cx, below, settings).await,
            Make::Mount { find, saved } => {
                let saved = saved.get(at).cloned().flatten();
                let find = if at == 0 { find.clone() } else { Find::default() };
                kind.mount(cx, below, settings, &Find { saved, ..find }).await
            }
        };
        match built {
            Ok(layer) => {
                seam = layer.clone().above();
                all.push(layer);
            }
            Err(e) => {
                // Why it could not be built matters more.
                let _ = Layers { all, top: seam }.stop(cx, Stop::Clean).await;
                return Err(e);
            }
        }
    }
    Ok(Layers { all, top: behind_link(seam, link) })
}

/// Sectors programmed, by cause, as the medium counts them.
pub type Programmed = [u64; CAUSES_MAX];

/// Layers that stand, the lowest first.
#[derive(Clone)]
pub struct Layers {
    all: Vec<Arc<dyn Layer>>,
    top: Seam,
}

impl Layers {
    pub fn all(&self) -> &[Arc<dyn Layer>] {
        &self.all
    }

    /// The layer that is the target: the lowest one.
    ///
    /// # Panics
    /// There are none.
    pub fn target(&self) -> &Arc<dyn Layer> {
        &self.all[0]
    }

    /// What a host sees.
    ///
    /// # Panics
    /// There are no layers.
    pub fn block(&self) -> Arc<dyn BlockDev> {
        self.top.clone().block()
    }

    /// Counters of the layer that programs flash.
    pub fn stats(&self) -> FtlStats {
        self.all.iter().find_map(|layer| layer.stats()).unwrap_or_default()
    }

    pub fn gauges(&self) -> Gauges {
        self.all.iter().find_map(|layer| layer.gauges()).unwrap_or_default()
    }

    /// What its cores have waited for.
    pub fn contention(&self, now: Ns) -> Option<Contention> {
        self.all.iter().find_map(|layer| layer.contention(now))
    }

    /// What each has counted beside what all layers do: its name, its numbers.
    pub fn counted(&self) -> Vec<(&'static str, Vec<Counted>)> {
        let counted = self.all.iter().map(|layer| (layer.kind().name(), layer.counted()));
        counted.filter(|(_, numbers)| !numbers.is_empty()).collect()
    }

    /// What the sectors that the stack holds are to a file system ([`Layer::pages`]).
    pub fn pages(&self) -> Vec<Counted> {
        self.all
            .iter()
            .map(|layer| layer.pages())
            .find(|pages| !pages.is_empty())
            .unwrap_or_default()
    }

    /// The same, when nobody uses it ([`Layer::pages_read`]).
    pub async fn pages_read(&self, cx: &Cx) -> Vec<Counted> {
        for layer in &self.all {
            let pages = layer.pages_read(cx).await;
            if !pages.is_empty() {
                return pages;
            }
        }
        Vec::new()
    }

    /// How many sectors' newest contents lie in which chunk of the stack's part of the device, by (PU,
    /// chunk).
    pub fn valid_by_chunk(&self) -> BTreeMap<(u32, u32), u32> {
        let mut valid = BTreeMap::new();
        let target = self.target();
        for lba in 0..self.block().info().capacity {
            if let Some(at) = target.locate(lba) {
                *valid.entry((at.pu, at.chunk)).or_default() += 1;
            }
        }
        valid
    }

    /// What each layer above the target has counted ([`Layer::counted`]): its name, its numbers.
    pub fn counted_above(&self) -> Vec<(&'static str, Vec<Counted>)> {
        self.counted()
            .into_iter()
            .filter(|(name, _)| *name != self.target().kind().name())
            .collect()
    }

    /// What they have to say to people since they were asked last.
    pub fn said(&self) -> Vec<String> {
        let of = |layer: &Arc<dyn Layer>| {
            let name = layer.kind().name();
            layer.said().into_iter().map(move |what| format!("{name}: {what}"))
        };
        self.all.iter().flat_map(of).collect()
    }

    /// The measured part of a run begins.
    pub fn measure(&self) {
        self.all.iter().for_each(|layer| layer.measure());
    }

    /// One of them discards sectors that the host has not discarded.
    pub fn discards(&self) -> bool {
        self.all.iter().any(|layer| layer.discards())
    }

    /// What the whole stack acknowledges is durable.
    pub fn acks_are_durable(&self) -> bool {
        self.all.iter().all(|layer| layer.acks_are_durable())
    }

    /// Power cuts in a row may leave it without room.
    pub fn cuts_take_room(&self) -> bool {
        self.all.iter().any(|layer| layer.cuts_take_room())
    }

    /// Nothing can be made durable any more, and why.
    pub fn read_only(&self) -> Option<&'static str> {
        self.all.iter().find_map(|layer| layer.read_only())
    }

    /// Has everything that was acknowledged on the medium, from the top down ([`Layer::drain`]).
    pub async fn drain(&self, cx: &Cx) {
        for layer in self.all.iter().rev() {
            layer.drain(cx).await;
        }
    }

    /// Stops all layers, from the top down.
    ///
    /// # Errors
    /// The first that could not make everything durable.
    pub async fn stop(&self, cx: &Cx, how: Stop) -> Result<(), BlockError> {
        let mut stopped = Ok(());
        for layer in self.all.iter().rev() {
            stopped = stopped.and(layer.clone().stop(cx, how).await);
        }
        stopped
    }

    /// Looks through the tables of all layers.
    ///
    /// # Errors
    /// Those of one do not agree.
    pub fn walk(&self) -> Result<(), String> {
        self.all.iter().try_for_each(|layer| layer.walk())
    }

    /// Both laws of the counters, for a life in which the medium has programmed so many sectors, by
    /// cause.
    ///
    /// # Errors
    /// One of them is broken.
    pub fn check_laws(&self, programmed: &Programmed) -> Result<(), String> {
        self.check_host_law()?;
        let mut all = self.all.iter().filter_map(|layer| layer.stats());
        all.try_for_each(|stats| {
            stats.check_media_law(programmed).map_err(|e| format!("media law: {e}"))
        })
    }

    /// The law that says where what the host wrote has gone.
    ///
    /// # Errors
    /// It is broken.
    pub fn check_host_law(&self) -> Result<(), String> {
        let mut all = self.all.iter().filter_map(|layer| layer.stats());
        all.try_for_each(|stats| stats.check_host_law().map_err(|e| format!("host law: {e}")))
    }

    /// The state of each in a line.
    pub fn state(&self) -> String {
        let states = self.all.iter().map(|l| format!("{}: {}", l.kind().name(), l.state()));
        states.collect::<Vec<_>>().join("; ")
    }

    /// The power goes: what each keeps of itself.
    pub fn power_lost(&self) -> Vec<Option<Saved>> {
        self.all.iter().map(|layer| layer.power_lost()).collect()
    }
}
