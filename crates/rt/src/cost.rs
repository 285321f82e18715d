//! What CPU work costs in virtual time, by the name of the stage, from a file.
//!
//! Owns: the table and its text form. Promises: an unknown key in a file is an error that lists the
//! known ones; a table without entries costs nothing. Never: measures anything.

use flashlane_base::Ns;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Every stage that charges CPU time, with what it covers. One list, so that a file can be checked.
pub const STAGES: &[(&str, &str)] = &[
    ("host.submit", "generator or application to the block layer, per request"),
    ("front.write", "write entry of a layer, per request"),
    ("front.read", "read entry of a layer, per request"),
    ("ring.reserve", "admission to a ring that all cores share, under its lock, per request"),
    ("ring.own", "admission to the ring of one's own core, per request"),
    ("copy.sector", "copy of one 4 KiB sector into a slot"),
    ("map.update", "map change under the map's lock, per sector"),
    ("map.exchange", "map change by one atomic exchange, per sector"),
    ("map.lookup", "map lookup, per sector"),
    ("map.copy", "copy of map entries in order, for a checkpoint, per sector"),
    (
        "pool.take",
        "taking positions for one drained request, under the lock of what they are taken from",
    ),
    ("drain.unit", "building one write unit into a request"),
    ("complete.unit", "completion of one write unit"),
    // Behind the others: what draws a price for each draws the same for those above.
    ("drain.request", "building and submitting one request of write units, beside its units"),
    (
        "complete.request",
        "interrupt and completion of one request, beside its units, on the core that submitted it",
    ),
];

/// CPU costs by stage and the behaviour of contended spin locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostTable {
    name: String,
    source: String,
    stages: BTreeMap<String, Ns>,
    /// Extra hold time per waiter when a contended lock changes hands (cache line transfers):
    /// a fair FIFO lock plateaus with more waiters, real spin locks fall.
    handoff_per_waiter: Ns,
}

/// Why a cost table was refused.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// Not TOML, or not of the shape of a cost table.
    #[error("cost table: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A stage that does not exist.
    #[error("cost table `{table}`: unknown stage `{stage}` (known: {known})")]
    Stage {
        /// Name of the table.
        table: String,
        /// The unknown key.
        stage: String,
        /// All known keys.
        known: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    handoff_per_waiter: Option<Ns>,
    #[serde(default)]
    stages: BTreeMap<String, Ns>,
}

impl CostTable {
    /// The host that costs nothing: device times only.
    pub fn zero() -> CostTable {
        CostTable {
            name: "zero".into(),
            source: "the host's own work costs nothing".into(),
            stages: BTreeMap::new(),
            handoff_per_waiter: Ns::ZERO,
        }
    }

    /// Reads a table.
    pub fn from_toml(text: &str) -> Result<CostTable, CostError> {
        let file: File = toml::from_str(text)?;
        let known = |k: &str| STAGES.iter().any(|(name, _)| *name == k);
        if let Some(stage) = file.stages.keys().find(|k| !known(k)) {
            return Err(CostError::Stage {
                table: file.name,
                stage: stage.clone(),
                known: STAGES.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "),
            });
        }
        Ok(CostTable {
            name: file.name,
            source: file.source,
            stages: file.stages,
            handoff_per_waiter: file.handoff_per_waiter.unwrap_or(Ns::ZERO),
        })
    }

    /// The same with another price of a hand-over; the name says so.
    pub fn with_handoff(self, per_waiter: Ns) -> CostTable {
        let name = format!("{}, hand-over {per_waiter} per waiter", self.name);
        CostTable { name, handoff_per_waiter: per_waiter, ..self }
    }

    /// The table's name, printed with every result that depends on it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its numbers are from, printed beside its name; empty where the file does not say.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Stages that the table says nothing of: they cost nothing.
    pub fn unsaid(&self) -> Vec<&'static str> {
        STAGES.iter().map(|(name, _)| *name).filter(|n| !self.stages.contains_key(*n)).collect()
    }

    /// Cost of a stage; asserts that the stage is one of [`STAGES`], so a typo in code shows.
    pub fn stage(&self, stage: &str) -> Ns {
        assert!(STAGES.iter().any(|(n, _)| *n == stage), "no stage `{stage}`");
        self.stages.get(stage).copied().unwrap_or(Ns::ZERO)
    }

    /// Extra hold time of a lock that changes hands among `waiters`.
    pub fn handoff(&self, waiters: u64) -> Ns {
        self.handoff_per_waiter.times(waiters)
    }
}

impl crate::Cx {
    /// CPU cost of a stage in this run; zero on real threads, where work costs what it costs.
    /// Layers ask once, when they are built.
    pub fn stage_cost(&self, stage: &str) -> Ns {
        match &self.mode {
            crate::cx::Mode::Virtual(c) => c.costs().stage(stage),
            crate::cx::Mode::Threads(_) => Ns::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_stage_is_named_with_the_known_ones() {
        let text = "name = \"x\"\n[stages]\n\"ring.resevre\" = \"1us\"";
        let said = CostTable::from_toml(text).unwrap_err().to_string();
        assert!(said.contains("ring.resevre") && said.contains("ring.reserve"), "{said}");
    }

    #[test]
    fn a_table_says_what_a_stage_costs() {
        let text =
            "name = \"x\"\nhandoff_per_waiter = \"20ns\"\n[stages]\n\"ring.reserve\" = \"1us\"";
        let t = CostTable::from_toml(text).unwrap();
        assert_eq!(t.stage("ring.reserve"), Ns::from_us(1));
        assert_eq!(t.stage("front.read"), Ns::ZERO);
        assert_eq!(t.handoff(3), Ns::from_ns(60));
    }
}
