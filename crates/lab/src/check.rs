//! What an experiment amounts to, and what would go wrong, before anything runs.
//!
//! Owns: the findings: capacity, bandwidths, latency of a lone read, memory, and every target or
//! workload that does not fit. Promises: a target is really built (and thrown away), so that what
//! its layer refuses is refused here. Never: writes a sector.

use crate::execute::{plan_of, raw_jobs, scan_traces};
use crate::experiment::{Experiment, FileSystem, Target};
use crate::files::medium as medium_of;
use crate::personality::{FileError, FileJob, Files};
use crate::run::{Work, fits};
use crate::stack::{Stack, StackError, capacity, medium};
use crate::words::aligned;
use flashlane_base::{Bytes, Ns, SECTOR_BYTES};
use flashlane_ocssd::{DeviceSpec, StoreKind};
use flashlane_rt::{CostTable, Virtual};

pub struct Findings {
    /// What the experiment amounts to.
    pub summary: String,
    /// Everything that would keep it from running.
    pub problems: Vec<String>,
}

/// Checks an experiment that has been parsed.
pub fn check(experiment: &Experiment) -> Findings {
    let mut problems = Vec::new();
    let traces = match scan_traces(experiment) {
        Ok(traces) => Some(traces),
        Err(e) => {
            problems.push(e.to_string());
            None
        }
    };
    let scans = traces.iter().flat_map(|scans| scans.warm_up.iter().chain(&scans.workloads));
    let remarks: Vec<String> = scans.flat_map(|scan| scan.remarks()).collect();
    let mut rows = vec![header()];
    for target in &experiment.targets {
        let plan = traces.as_ref().map(|scans| plan_of(experiment, target, scans));
        let (warm_up, works) = plan.map(|plan| (plan.warm_up, plan.work)).unwrap_or_default();
        if target.stack.is_raw() {
            match medium(&target.stack, experiment.run.seed) {
                Ok((_, part)) => {
                    rows.push(row(target, part.geometry().sectors()));
                    let jobs = raw_jobs(&works, part.geometry());
                    problems.extend(jobs.err().map(|e| format!("target `{}`: {e}", target.name)));
                }
                Err(e) => problems.push(format!("target `{}`: {e}", target.name)),
            }
            continue;
        }
        if let Some(fs) = &target.fs {
            let jobs = works.iter().filter_map(|work| match work {
                Work::Files(job) => Some(job.clone()),
                _ => None,
            });
            match files_of(target, fs, jobs.collect(), experiment.run.seed) {
                Ok((capacity, fit)) => {
                    rows.push(row(target, capacity));
                    problems.extend(fit.err().map(|e| format!("target `{}`: {e}", target.name)));
                }
                Err(e) => problems.push(format!(
                    "target `{}` on device `{}`: {e}",
                    target.name, target.stack.device.spec.name
                )),
            }
            continue;
        }
        match capacity_of(experiment, target) {
            Ok(capacity) => {
                rows.push(row(target, capacity));
                for work in warm_up.iter().chain(&works) {
                    if let Err(e) = fits(work, experiment.run.seed, capacity) {
                        problems.push(format!("target `{}`: {e}", target.name));
                    }
                }
            }
            Err(e) => {
                problems.push(format!(
                    "target `{}` on device `{}`: {e}",
                    target.name, target.stack.device.spec.name
                ));
            }
        }
    }
    let mut summary = format!("{}\n", experiment.name);
    if !experiment.description.is_empty() {
        summary += &format!("{}\n", experiment.description);
    }
    if rows.len() > 1 {
        summary += &format!("\n{}", aligned(&rows));
    }
    summary += &format!(
        "\n{} target(s), {} workload(s), seed {}, CPU costs `{}`\n",
        experiment.targets.len(),
        experiment.workloads.len(),
        experiment.run.seed,
        costs_of(experiment).join("`, `")
    );
    for remark in experiment.remarks.iter().chain(&remarks) {
        summary += &format!("{remark}\n");
    }
    if problems.is_empty() {
        let guessed =
            traces.iter().flat_map(|t| t.warm_up.iter().chain(&t.workloads)).any(|s| s.guessed);
        summary += match guessed {
            true => "nothing else wrong found, if what was guessed is right\n",
            false => "nothing wrong found\n",
        };
    }
    Findings { summary, problems }
}

/// The tables of costs that its targets pay by, each once.
fn costs_of(experiment: &Experiment) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for target in &experiment.targets {
        let name = target.host.costs.name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn capacity_of(experiment: &Experiment, target: &Target) -> Result<u64, StackError> {
    capacity(target, experiment.run.seed, target.host.costs.clone())
}

/// Sectors that a target's file system has for files, and whether the first files of jobs fit: it
/// is really made, and thrown away.
fn files_of(
    target: &Target,
    fs: &FileSystem,
    jobs: Vec<FileJob>,
    seed: u64,
) -> Result<(u64, Result<(), FileError>), String> {
    let vm = Virtual::new(1, seed, CostTable::zero());
    let (cx, target, fs) = (vm.cx(), target.clone(), fs.clone());
    let made = vm.run(async move {
        let stack = Stack::build(&cx, &target, seed).await;
        let stack = stack.map_err(|e| e.on(&target, seed).to_string())?;
        let files = Files::make(&cx, medium_of(&stack), &fs).await;
        let files = files.map_err(|e| e.on(&target, &fs, seed).to_string())?;
        let jobs: Vec<&FileJob> = jobs.iter().collect();
        Ok((files.sectors().0, files.fits(&jobs, seed)))
    });
    made.map_err(|stalled| stalled.to_string())?
}

fn header() -> Vec<String> {
    ["target", "device", "raw", "logical", "peak write", "peak read", "4K read", "memory at most"]
        .map(str::to_string)
        .to_vec()
}

fn row(target: &Target, capacity: u64) -> Vec<String> {
    let spec = &target.stack.device.spec;
    let sector = SECTOR_BYTES as u64;
    let raw = spec.geometry().sectors();
    let per_second = |bytes: u64| match bytes {
        0 => "no limit".to_string(),
        b => format!("{:.0} MB/s", b as f64 / 1e6),
    };
    let peaks = Peaks::of(spec, target.stack.device.options.timing);
    vec![
        target.name.clone(),
        spec.name.clone(),
        Bytes::new(raw * sector).to_string(),
        Bytes::new(capacity * sector).to_string(),
        per_second(peaks.write),
        per_second(peaks.read),
        peaks.lone_read.to_string(),
        Bytes::new(memory(raw, capacity, target.stack.device.options.store)).to_string(),
    ]
}

/// What the medium can do at most. 0 is no limit.
struct Peaks {
    write: u64,
    read: u64,
    lone_read: Ns,
}

impl Peaks {
    fn of(spec: &DeviceSpec, timing: bool) -> Peaks {
        if !timing {
            return Peaks { write: 0, read: 0, lone_read: Ns::ZERO };
        }
        let geo = spec.geometry();
        let t = &spec.timing;
        let mean = |times: &[Ns]| {
            Ns::from_ns(times.iter().map(|t| t.as_ns()).sum::<u64>() / times.len().max(1) as u64)
        };
        let row = geo.sectors_per_row();
        let row_bytes = row as u64 * SECTOR_BYTES as u64;
        let transfer = spec.transfer(row);
        let rate = |bytes: u64, time: Ns| match time.as_ns() {
            0 => u64::MAX,
            ns => (bytes as u128 * 1_000_000_000 / ns as u128) as u64,
        };
        // A die is held for transfer and array time unless a cache register overlaps them.
        let held = |array: Ns, overlap: bool| match overlap {
            true => array.max(transfer),
            false => array + transfer,
        };
        let dies =
            |array, overlap| rate(row_bytes, held(array, overlap)).saturating_mul(geo.pus() as u64);
        let buses = rate(row_bytes, transfer).saturating_mul(geo.channels as u64);
        let limit = |b: Option<Bytes>| b.map_or(u64::MAX, Bytes::get);
        let link = spec.link.as_ref();
        let lone_link = link.map_or(Ns::ZERO, |l| {
            l.command + Ns::of_transfer(SECTOR_BYTES as u64, l.to_host.get())
        });
        let least = |values: [u64; 3]| match values.into_iter().min() {
            Some(u64::MAX) | None => 0,
            Some(v) => v,
        };
        Peaks {
            write: least([
                dies(mean(&t.program), t.cache_program),
                buses,
                limit(t.controller_write).min(limit(link.map(|l| l.to_device))),
            ]),
            read: least([
                dies(mean(&t.read), t.cache_read),
                buses,
                limit(t.controller_read).min(limit(link.map(|l| l.to_host))),
            ]),
            lone_read: t.command + mean(&t.read) + spec.transfer(1) + lone_link,
        }
    }
}

/// Memory when every sector is written: what the store keeps of each (content and out-of-band
/// record, 16 bytes) and the maps (4 to 8 bytes per logical sector, 8 per physical one).
fn memory(raw: u64, capacity: u64, store: StoreKind) -> u64 {
    raw * (store.content_bytes() as u64 + 16 + 8) + capacity * 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Base, Change};
    use std::path::Path;

    const TEXT: &str = "[device]\npreset = \"tiny\"\n[device.geometry]\nchunks_per_pu = 64\n[[target]]\nkind = \"pftl\"\n\
                        [[workload]]\nrw = \"randwrite\"\n";

    fn checked(sets: &[&str]) -> Findings {
        let changes: Vec<Change> = sets.iter().map(|s| Change::Set(s.to_string())).collect();
        let base = Base::of(Path::new(""));
        check(&Experiment::parse("e", TEXT, &base, &changes).unwrap())
    }

    #[test]
    fn what_it_amounts_to_is_said() {
        let f = checked(&[]);
        assert!(f.problems.is_empty(), "{:?}", f.problems);
        // 4 PUs x 64 chunks x 64 sectors; 16 KiB rows take 41 us + 500 us on each of 4 dies.
        for part in ["64 MiB", "121 MB/s", "60.2 us", "nothing wrong"] {
            assert!(f.summary.contains(part), "{part}: {}", f.summary);
        }
    }

    #[test]
    fn what_does_not_fit_is_found_without_running() {
        let f = checked(&["workload.0.size=1GiB"]);
        assert!(f.problems[0].contains("ends outside"), "{:?}", f.problems);
        let f = checked(&["device.geometry.chunks_per_pu=2"]);
        assert!(f.problems[0].contains("on device `tiny (changed)`"), "{:?}", f.problems);
    }
}
