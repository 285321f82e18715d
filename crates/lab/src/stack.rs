//! Builds the stacks: a fresh device, a layer on it. The only place that knows how.
//!
//! Owns: construction, drain and stop of every kind of target, the check of both counter laws.
//! Promises: a target that does not fit its device is an error with the layer's own reason.
//! Never: drives a stack.

use crate::experiment::{Target, TargetKind};
use crate::run::{Probe, Sample, Subject, Watch};
use flashlane_base::Geometry;
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::link::LinkedBlock;
use flashlane_ftl::log::Pblk;
use flashlane_ftl::pftl::Pftl;
use flashlane_ftl::stats::{FtlStats, Gauges};
use flashlane_ocssd::link::LinkedDevice;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_ocssd::{Device, MediaCounters, Partition, SpecError, Ssd, SsdOptions};
use flashlane_rt::{CostTable, Cx, Virtual};
use serde::Serialize;
use std::rc::Rc;
use std::sync::Arc;

/// Why a stack could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The device.
    #[error(transparent)]
    Device(#[from] SpecError),
    /// PUs that the device does not have.
    #[error("`pus` names PU {end}, the device has 0 to {last}")]
    Pus {
        /// What was asked for.
        end: u32,
        /// What there is.
        last: u32,
    },
    /// Lines of so few PUs hold too little.
    #[error("{pus} active PUs need {lines} more spare lines than there are")]
    Narrow {
        /// What was asked for.
        pus: u32,
        /// What is missing.
        lines: u64,
    },
    /// The host FTL.
    #[error("{0}")]
    Pblk(#[from] flashlane_ftl::log::CreateError),
    /// The device FTL.
    #[error("{0}")]
    Pftl(#[from] flashlane_ftl::pftl::CreateError),
}

#[derive(Clone)]
enum Layer {
    Pblk(Arc<Pblk>),
    Pftl(Arc<Pftl>),
}

/// A device with a layer on it.
#[derive(Clone)]
pub struct Stack {
    ssd: Arc<Ssd>,
    layer: Layer,
    /// What the host sees: the layer, behind the host's bus where the layer is inside the device.
    block: Arc<dyn BlockDev>,
    raw_sectors: u64,
}

/// How a host FTL's lines are divided, in lines at the width that it was created with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lines {
    /// Lines for data.
    pub all: u64,
    /// Of those, kept free in steady state: the reserve (what is in the buffer, a victim), the room
    /// of the limiter, the line opened beforehand.
    pub kept_free: u64,
    /// Spare that garbage collection has: the share of the other lines' room above the logical
    /// capacity. Theory's write amplification is of this spare.
    pub effective_spare_ratio: f64,
}

/// Sectors up to which the maps are walked after a run: some hundred bytes and 100 ns each.
const WALK_SECTORS_MAX: u64 = 1 << 21;

impl Stack {
    /// Builds a target on a fresh device; its background tasks start on the core of `cx`.
    pub async fn build(cx: &Cx, target: &Target, seed: u64) -> Result<Stack, StackError> {
        let (ssd, part) = medium(target, seed)?;
        let link = link_of(target);
        let raw_sectors = part.geometry().sectors();
        let (layer, block): (Layer, Arc<dyn BlockDev>) = match &target.kind {
            TargetKind::Pblk(config) => {
                let pblk = Pblk::create(cx, behind_link(part, target), config.clone()).await?;
                (Layer::Pblk(pblk.clone()), pblk)
            }
            TargetKind::Raw => unreachable!("raw targets have no layer; `raw::run` drives them"),
            TargetKind::Pftl(config) => {
                let pftl = Pftl::create(cx, part, config.clone())?;
                let block: Arc<dyn BlockDev> = match link {
                    Some(link) => Arc::new(LinkedBlock::new(pftl.clone(), link)),
                    None => pftl.clone(),
                };
                (Layer::Pftl(pftl), block)
            }
        };
        Ok(Stack { ssd, layer, block, raw_sectors })
    }

    /// What a workload sees.
    pub fn block(&self) -> Arc<dyn BlockDev> {
        self.block.clone()
    }

    /// Sectors of the PUs that the target has.
    pub fn raw_sectors(&self) -> u64 {
        self.raw_sectors
    }

    /// What the runner drives; `begin` is called when the measured part begins.
    ///
    /// With `intervals` latencies are also kept over time.
    pub fn subject(&self, begin: Rc<dyn Fn()>, intervals: bool) -> Subject {
        let (me, watched) = (self.clone(), self.clone());
        let probe: Probe =
            Rc::new(move |now| Sample::new(&watched.ssd.counters_at(now), watched.gauges()));
        Subject {
            device: self.block(),
            stats: Rc::new(move || me.stats()),
            begin,
            watch: Watch { probe: Some(probe), intervals },
        }
    }

    /// Where the layer stands.
    fn gauges(&self) -> Gauges {
        match &self.layer {
            Layer::Pblk(l) => l.gauges(),
            Layer::Pftl(l) => l.gauges(),
        }
    }

    /// How pblk's lines are divided; `None` where the layer says nothing of its own.
    pub fn lines(&self) -> Option<Lines> {
        let Layer::Pblk(pblk) = &self.layer else {
            return None;
        };
        let l = pblk.layout();
        // Garbage collection keeps `start_lines` free; one more is the spare, opened beforehand.
        let kept = l.start_lines + 1;
        let room = l.lines.saturating_sub(kept) * l.line_data;
        let spare = 1.0 - l.capacity as f64 / room.max(1) as f64;
        Some(Lines { all: l.lines, kept_free: kept, effective_spare_ratio: spare.max(0.0) })
    }

    /// Counters of the layer.
    pub fn stats(&self) -> FtlStats {
        match &self.layer {
            Layer::Pblk(l) => l.stats(),
            Layer::Pftl(l) => l.stats(),
        }
    }

    /// New data goes to so many PUs at a time from now on (pblk); 0 is all.
    pub fn set_active_pus(&self, cx: &Cx, pus: u32) -> Result<(), StackError> {
        match &self.layer {
            Layer::Pblk(pblk) => {
                pblk.set_active_pus(cx, pus).map_err(|lines| StackError::Narrow { pus, lines })
            }
            Layer::Pftl(_) => Ok(()),
        }
    }

    /// The medium below.
    pub fn ssd(&self) -> &Arc<Ssd> {
        &self.ssd
    }

    /// Has everything that was acknowledged programmed, after a flush. A device FTL takes no writes
    /// afterwards: its flush ends with the data in its power-safe buffer.
    pub async fn drain(&self, cx: &Cx) {
        if let Layer::Pftl(l) = &self.layer {
            l.stop(cx).await;
        }
    }

    /// Ends the layer's tasks, then checks that counters agree: the host's law, the medium's law,
    /// and, on devices that are not too large, the maps against a walk.
    pub async fn stop(&self, cx: &Cx) -> Result<(), String> {
        if let Layer::Pblk(l) = &self.layer {
            // Read-only targets can make nothing durable; that is known and reported.
            let _ = l.quiesce(cx).await;
        }
        let walk = match &self.layer {
            _ if self.raw_sectors > WALK_SECTORS_MAX => Ok(()),
            Layer::Pblk(l) => l.check_consistency(),
            Layer::Pftl(l) => l.walk(),
        };
        let stats = self.stats();
        let medium: MediaCounters = self.ssd.counters();
        stats.check_host_law().and_then(|()| stats.check_media_law(&medium.programmed)).and(walk)
    }
}

/// Sectors that a layer offers: it is really built, and thrown away.
pub(crate) fn capacity(target: &Target, seed: u64, costs: CostTable) -> Result<u64, StackError> {
    let vm = Virtual::new(1, seed, costs);
    let (cx, owned) = (vm.cx(), target.clone());
    let built = vm.run(async move { Stack::build(&cx, &owned, seed).await });
    // A stall while creating would be a bug; the run itself reports it with its seed.
    let stack = built.unwrap_or_else(|stalled| unreachable!("creating a target: {stalled}"))?;
    Ok(stack.block().info().capacity)
}

/// A fresh device, and the part of it that a target has.
pub(crate) fn medium(
    target: &Target,
    seed: u64,
) -> Result<(Arc<Ssd>, Arc<dyn Device>), StackError> {
    let options = SsdOptions { seed, ..target.device.options.clone() };
    let ssd = Ssd::new(&target.device.spec, options)?;
    let geo: Geometry = *ssd.geometry();
    let part: Arc<dyn Device> = match target.pus {
        None => ssd.clone(),
        Some((_, end)) if end >= geo.pus() => {
            return Err(StackError::Pus { end, last: geo.pus() - 1 });
        }
        Some((begin, end)) => Arc::new(Partition::new(ssd.clone(), begin, end)),
    };
    Ok((ssd, part))
}

/// The host's bus, unless the device is one that takes no time.
fn link_of(target: &Target) -> Option<&LinkSpec> {
    target.device.spec.link.as_ref().filter(|_| target.device.options.timing)
}

/// A device as the host reaches it.
pub(crate) fn behind_link(device: Arc<dyn Device>, target: &Target) -> Arc<dyn Device> {
    match link_of(target) {
        Some(link) => Arc::new(LinkedDevice::new(device, link)),
        None => device,
    }
}
