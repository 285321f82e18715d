//! Runs that can be compared: those of the same workloads on the same host.
//!
//! Owns: which runs belong together, and what a group is called. Promises: every run is in one
//! group, groups and runs keep their order; an experiment whose targets all run the same is one group.
//! Never: adds anything up across groups.

use super::Configuration;
use super::numbers::Report;
use serde_json::Value;
use std::fmt;

impl Report {
    /// One report per group of runs; of the configuration each has what concerns it.
    pub(super) fn groups(&self) -> Vec<Report> {
        let key = |target: &Value| (target["workloads"].clone(), target["host"].clone());
        let mut keys: Vec<(Value, Value)> = Vec::new();
        let mut groups: Vec<Report> = Vec::new();
        for (target, run) in self.configuration.targets.iter().zip(&self.runs) {
            let key = key(target);
            let at = keys.iter().position(|k| *k == key).unwrap_or_else(|| {
                groups.push(self.empty_group(&key.0));
                keys.push(key);
                keys.len() - 1
            });
            groups[at].configuration.targets.push(target.clone());
            groups[at].runs.push(run.clone());
        }
        groups
    }

    /// A report of these workloads without a run.
    fn empty_group(&self, workloads: &Value) -> Report {
        let places = workloads.as_array().into_iter().flatten().filter_map(Value::as_u64);
        let all = &self.configuration.workloads;
        let workloads = places.filter_map(|i| all.get(i as usize)).cloned().collect();
        let configuration =
            Configuration { targets: Vec::new(), workloads, ..self.configuration.clone() };
        let (fingerprint, experiment) = (self.fingerprint.clone(), self.experiment.clone());
        let description = self.description.clone();
        let runs = Vec::new();
        Report { fingerprint, experiment, description, runs, configuration, ..*self }
    }

    /// The names of the workloads, each once: `trace ext4-sqlite-git`, `job fill, job overwrite`.
    pub(super) fn workload_names(&self) -> String {
        let name = |w: &Value| {
            let trace = w["trace"]["source"].as_str().map(|s| format!("trace {s}"));
            let job = w["job"]["name"].as_str().map(|s| format!("job {s}"));
            let files = w["files"]["name"].as_str().map(|s| format!("files {s}"));
            trace.or(job).or(files).unwrap_or_default()
        };
        let mut names: Vec<String> = self.configuration.workloads.iter().map(name).collect();
        names.dedup();
        names.join(", ")
    }

    /// The hosts of the runs, each once.
    pub(super) fn hosts(&self) -> Vec<Host> {
        let mut hosts: Vec<Host> = Vec::new();
        for target in &self.configuration.targets {
            let host = &target["host"];
            let text = |key: &str| host[key].as_str().unwrap_or("").to_string();
            let cores = host["cores"].as_u64().unwrap_or(0);
            let host = Host { costs: text("costs"), source: text("costs_source"), cores };
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }
}

/// What the CPU work of a run is paid by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// Name of the cost table.
    pub(super) costs: String,
    /// Where its numbers are from.
    pub(super) source: String,
    pub(super) cores: u64,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.cores == 1 { "" } else { "s" };
        let Host { costs, source, cores } = self;
        write!(f, "CPU costs `{costs}` on {cores} host core{s} ({source})")
    }
}
