//! States of a stack that are looked at while it runs, and who looks.
//!
//! Owns: [`Sample`], [`Watch`]. Promises: looking changes nothing, not even the order of events: a
//! sample is taken when a request ends, by whoever records that. Never: sums or averages.

use flashlane_base::Ns;
use flashlane_ftl::layer::Counted;
use flashlane_ftl::stats::Gauges;
use flashlane_ocssd::MediaCounters;
use std::rc::Rc;

/// Sums since the device was made, and states, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time that each die read, programmed, erased so far; PU order.
    pub dies: Vec<[Ns; 3]>,
    /// Erases begun on each channel so far.
    pub erases: Vec<u64>,
    /// Free room and the limiter's shares now.
    pub gauges: Gauges,
    /// What layers have counted that is theirs alone.
    pub counted: Vec<(&'static str, Vec<Counted>)>,
    /// What the sectors that the stack holds are to a file system, where a layer says it.
    pub pages: Vec<Counted>,
}

impl Sample {
    /// From what the medium counted up to now.
    pub fn new(
        medium: &MediaCounters,
        gauges: Gauges,
        counted: Vec<(&'static str, Vec<Counted>)>,
    ) -> Sample {
        Sample {
            dies: medium.dies.iter().map(|d| [d.read, d.program, d.erase]).collect(),
            erases: medium.channel_erases.clone(),
            gauges,
            counted,
            pages: Vec::new(),
        }
    }
}

/// A look at a stack at a time that has come.
pub type Probe = Rc<dyn Fn(Ns) -> Sample>;

/// What is kept of a run beside its sums.
#[derive(Clone, Default)]
pub struct Watch {
    /// States over time.
    pub probe: Option<Probe>,
    /// Latency histograms over time.
    pub intervals: bool,
}
