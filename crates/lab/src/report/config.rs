//! The configuration as it was run, defaults and overrides filled in.
//!
//! Owns: the shape of `configuration` in the JSON. Promises: whoever has it can tell what was
//! simulated: geometry, times, spare, buffer, policy, workload, seed. Never: repeats results.

use crate::execute::{Clock, Outcome};
use crate::experiment::{Experiment, HostSpec, Target, Workload};
use crate::personality::{FileJob, Program};
use crate::trace::Scan;
use flashlane_base::Ns;
use flashlane_ocssd::DeviceSpec;
use flashlane_stack::kinds;
use serde::Serialize;
use serde_json::{Value, json};
use std::rc::Rc;

/// Everything that decides a run.
#[derive(Clone, Debug, Serialize)]
pub struct Configuration {
    /// One per target, in order: device, layer.
    pub targets: Vec<Value>,
    /// Which time it went by: `virtual` or `real`.
    pub clock: &'static str,
    /// What ran before the measured part, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_up: Vec<Value>,
    /// Workload, in order.
    pub workloads: Vec<Value>,
    /// Seed of every random stream.
    pub seed: u64,
    /// Name of the random generator.
    pub rng: &'static str,
    pub fill: Value,
    pub overwrite: Value,
    /// The host was idle for so long before the measured part.
    pub rest_ns: u64,
    /// Failed requests and a read-only device are what it is about.
    pub allow_errors: bool,
}

impl Configuration {
    pub(super) fn of(outcome: &Outcome) -> Configuration {
        let e = &outcome.experiment;
        let mut scans = outcome.scans.workloads.iter();
        let mut of_warm_up = outcome.scans.warm_up.iter();
        Configuration {
            clock: outcome.clock.name(),
            targets: e.targets.iter().map(|t| target(outcome.clock, e, t)).collect(),
            warm_up: e.warm_up.iter().map(|w| workload(w, &mut of_warm_up)).collect(),
            workloads: e.workloads.iter().map(|w| workload(w, &mut scans)).collect(),
            seed: e.run.seed,
            rng: flashlane_base::rng::RNG_NAME,
            fill: json!(e.run.fill),
            overwrite: json!(e.run.overwrite),
            rest_ns: e.run.rest.as_ns(),
            allow_errors: e.run.allow_errors,
        }
    }
}

fn workload<'a>(workload: &Workload, scans: &mut impl Iterator<Item = &'a Rc<Scan>>) -> Value {
    match workload {
        Workload::Job(job) => json!({ "job": job }),
        Workload::Files(job) => json!({ "files": files(job) }),
        Workload::Trace(spec) => {
            let scan = scans.next();
            json!({ "trace": {
                "source": spec.source.name(),
                "device": spec.device,
                "action": scan.map(|s| s.action.to_string()),
                "replay": spec.replay,
                "scale_to_device": spec.scale_to_device,
                "loops": spec.loops,
                "truth": spec.truth_file.as_ref().map(|file| file.name()),
                "hint": spec.hint,
            }})
        }
    }
}

/// A program on files, by its own words.
fn files(job: &FileJob) -> Value {
    let mut said = match &job.program {
        Program::Filebench(s) => json!({
            "personality": s.personality.word(),
            "nfiles": s.files,
            "filesize_bytes": s.mean.get(),
            "meandirwidth": s.width,
            "nthreads": s.threads,
            "iosize_bytes": s.io.get(),
            "meanappendsize_bytes": s.append.get(),
            "prealloc_percent": s.there_percent,
        }),
        Program::Postmark(s) => s.described(),
        Program::Mobibench(s) => s.described(),
        Program::Sqlite(s) => s.described(),
        Program::Ycsb(s) => s.described(),
    };
    said["name"] = json!(job.name);
    said["until"] = json!(job.until);
    said
}

fn target(clock: Clock, e: &Experiment, t: &Target) -> Value {
    let mut layers = t.stack.layers.iter().map(|l| l.kind.described(&l.settings));
    let layer = layers.next().unwrap_or_else(|| json!({ "kind": kinds::RAW }));
    let filters: Vec<Value> = layers.collect();
    let o = &t.stack.device.options;
    let queue = format!("{:?}", o.queue.unwrap_or(t.stack.device.spec.timing.queue));
    let mut said = json!({
        "name": t.name,
        "layer": layer,
        "pus": t.stack.pus,
        "faults": o.faults.faults.len(),
        "store": format!("{:?}", o.store).to_lowercase(),
        "timing": o.timing,
        "dulbe": o.dulbe,
        "limited_retry": o.limited_retry,
        "device": device(&t.stack.device.spec, &queue),
        "host": host(clock, &t.host),
        // Places in the list of workloads.
        "workloads": e.workloads_of(t).map(|(i, _)| i).collect::<Vec<usize>>(),
    });
    if !filters.is_empty() {
        said["filters"] = json!(filters);
    }
    if let Some(fs) = &t.fs {
        said["file_system"] = fs.described();
    }
    said
}

fn host(clock: Clock, h: &HostSpec) -> Value {
    let (costs, source) = costs_of(clock, h);
    json!({ "cores": h.cores, "costs": costs, "costs_source": source })
}

/// What the host's own work costs: the name of a table, and its source.
pub(super) fn costs_of(clock: Clock, h: &HostSpec) -> (&str, &str) {
    match (clock, h.costs.source()) {
        (Clock::Real, _) => ("real", "it takes what it takes on this machine"),
        (Clock::Virtual, "") => (h.costs.name(), "its file has no `source`"),
        (Clock::Virtual, source) => (h.costs.name(), source),
    }
}

fn device(d: &DeviceSpec, queue: &str) -> Value {
    let list = |times: &[Ns]| times.iter().map(|t| t.as_ns()).collect::<Vec<u64>>();
    let (g, t) = (&d.geometry, &d.timing);
    json!({
        "name": d.name,
        "source": d.source,
        "geometry": {
            "channels": g.channels, "pus_per_channel": g.pus_per_channel, "planes": g.planes,
            "chunks_per_pu": g.chunks_per_pu, "pages_per_block": g.pages_per_block,
            "sectors_per_page": g.sectors_per_page, "ws_min": g.ws_min, "ws_opt": g.ws_opt,
            "mw_cunits": g.mw_cunits,
        },
        "timing": {
            "command_ns": t.command.as_ns(),
            "read_ns": list(&t.read), "program_ns": list(&t.program),
            "erase_ns": t.erase.as_ns(), "transfer_4k_ns": d.transfer(1).as_ns(),
            "cache_read": t.cache_read, "cache_program": t.cache_program,
            "controller_write_bytes_per_s": t.controller_write.map(|b| b.get()),
            "controller_read_bytes_per_s": t.controller_read.map(|b| b.get()),
            "queue": queue,
        },
        "link": d.link.as_ref().map(|l| json!({
            "to_device_bytes_per_s": l.to_device.get(), "to_host_bytes_per_s": l.to_host.get(),
            "command_ns": l.command.as_ns(), "queue_depth": l.queue_depth,
        })),
        "cells": { "bits": d.cells.bits, "pair_damage": d.cells.pair_damage },
    })
}
