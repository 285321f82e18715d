//! A stack of somebody's own: their device, their layers, their faults; the swarm's workload.
//!
//! Owns: [`Own`], how it becomes a machine, the trial that says whether it can be built at all.
//! Promises: the device is what was asked for, never a larger one; only its seed is the run's.
//! Never: reads a file; who asks has done that.

use crate::devices::Size;
use crate::harness::{Boot, Machine, MediumSlot, OracleSlot, Source};
use crate::stacks::{self, OnSsd};
use flashlane_ocssd::SsdOptions;
use flashlane_rt::{CostTable, Virtual};
use flashlane_stack::Description;
use std::cell::RefCell;
use std::rc::Rc;

/// Lives of a run at most.
const LIVES: u64 = 4;

#[derive(Clone, Debug)]
pub struct Own {
    /// Name, for `--target`.
    pub name: String,
    /// Its device and its layers, of which there is one at least. The device's seed is the run's.
    pub stack: Description,
}

impl Own {
    /// Builds it once and throws it away: its capacity in sectors, or why it can't be built.
    pub fn try_out(&self, seed: u64) -> Result<u64, String> {
        let run = Virtual::new(1, seed, CostTable::zero());
        let (cx, machine) = (run.cx(), self.machine(seed, Size::Usual));
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
        LIVES
    }
    fn machine(&self, seed: u64, _: Size) -> Rc<dyn Machine> {
        let Description { device, pus, chunks, layers } = &self.stack;
        let on = OnSsd {
            spec: RefCell::new(device.spec.clone()),
            options: SsdOptions { seed, ..device.options.clone() },
            // A medium that may fail by itself needs the witness, too.
            aims: false,
            tight: false,
            faulty: !device.options.faults.is_empty() || device.spec.ecc.is_some(),
            link: self.stack.link().copied(),
            pus: *pus,
            chunks: *chunks,
            fixed: true,
            disk: None,
            journal: 0,
        };
        stacks::machine(on, layers.clone())
    }
}
