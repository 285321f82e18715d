//! A stack of somebody's own: their device, their layer, their faults; the swarm's workload.
//!
//! Owns: [`Own`], how it becomes a machine, the trial that says whether it can be built at all.
//! Promises: the device is what was asked for, never a larger one; only its seed is the run's.
//! Never: reads a file; who asks has done that.

use crate::devices::Size;
use crate::harness::{Boot, Machine, MediumSlot, OracleSlot, Source};
use crate::stacks::{self, OnSsd};
use flashlane_ftl::log::LogConfig;
use flashlane_ftl::pftl::PftlConfig;
use flashlane_ocssd::{DeviceSpec, SsdOptions};
use flashlane_rt::{CostTable, Virtual};
use std::cell::RefCell;
use std::rc::Rc;

/// The layer on the device.
#[derive(Clone, Debug)]
pub enum Layer {
    /// pblk.
    Pblk(LogConfig),
    /// The block SSD.
    Pftl(PftlConfig),
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Own {
    /// Name, for `--target`.
    pub name: String,
    /// The device.
    pub spec: DeviceSpec,
    /// Its options; the seed is the run's.
    pub options: SsdOptions,
    /// PUs that the layer has, first and last; all without it.
    pub pus: Option<(u32, u32)>,
    /// The layer.
    pub layer: Layer,
}

impl Own {
    fn on<C: Clone>(&self, seed: u64, config: &C) -> OnSsd<C> {
        OnSsd {
            spec: RefCell::new(self.spec.clone()),
            options: SsdOptions { seed, ..self.options.clone() },
            // A medium that may fail by itself needs the witness, too.
            aims: false,
            tight: false,
            faulty: !self.options.faults.is_empty() || self.spec.ecc.is_some(),
            link: self.spec.link.filter(|_| self.options.timing),
            pus: self.pus,
            fixed: true,
            disk: None,
            config: config.clone(),
        }
    }

    /// Builds it once and throws it away: its capacity in sectors, or why it can't be built.
    pub fn try_out(&self, seed: u64) -> Result<u64, String> {
        let run = Virtual::new(1, seed, CostTable::zero());
        let (cx, machine) = (run.cx(), self.machine(seed, Size::Usual)?);
        let boot = Boot {
            cx,
            oracle: OracleSlot::default(),
            moments: None,
            aim: None,
            medium: MediumSlot::default(),
        };
        let up = async move { machine.up(boot).await.map(|up| up.dev.info().capacity) };
        run.run(up).map_err(|stalled| stalled.to_string())?
    }
}

impl Source for Own {
    fn name(&self) -> &str {
        &self.name
    }
    fn lives(&self) -> u64 {
        let row = match &self.layer {
            Layer::Pblk(_) => "pblk",
            Layer::Pftl(_) => "pftl",
        };
        stacks::find(row).map_or(1, |stack| stack.lives)
    }
    fn machine(&self, seed: u64, _: Size) -> Result<Rc<dyn Machine>, String> {
        Ok(match &self.layer {
            Layer::Pblk(config) => stacks::pblk_machine(self.on(seed, config)),
            Layer::Pftl(config) => stacks::pftl_machine(self.on(seed, config)),
        })
    }
}
