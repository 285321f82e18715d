//! An experiment: devices, targets, workloads, how to run them. One TOML file.
//!
//! Owns: the meaning of every key, their checks across tables, the defaults. Promises: everything
//! wrong with a file is said at once, each with its place; what is not said in the file is in
//! [`Experiment`] with its value, so that a report can print what was really run.
//! Never: runs anything.
//!
//! ```toml
//! name = "example"
//! [device]
//! preset = "peers-16g"        # or spec = "my-device.toml"; tables override: [device.geometry] ...
//! [[target]]
//! kind = "pblk"               # pblk, qblk, pftl, slc-tlc, sftl, parafs or raw
//! active_pus = 4             # and, of its own, what [run] says of the host, device, pus
//! [[workload]]
//! rw = "randwrite"            # fio's options, with units: bs = "4KiB"; or trace = "FILE", fio = ...
//!                             # files = "fileserver" on a target with a file system (`parafs = true`)
//! targets = ["pblk"]          # runs on these alone; on all without it
//! [[warm_up]]                 # as a workload: runs before the measured part, one after the other
//! trace = "prepared.parquet"
//! [run]
//! seed = 1
//! fill = "100%"
//! rest = "30s"                # the host is idle for so long before the measured part
//! costs = "zero"              # what the host's work costs; without it "lightnvm-fast17"
//! handoff_per_waiter = "20ns" # of a lock, in place of the table's
//! host_cores = 4
//! ```
//!
//! Start reading at [`Experiment::parse`].

mod device;
pub mod document;
mod effect;
mod files;
mod target;
mod vary;
mod workload;

pub use device::{DeviceChoice, default_preset, preset_names};
pub(crate) use document::{At, Item, Value};
pub use document::{Change, Complaint};
pub use files::{FileSystem, PARAFS};
pub use flashlane_parafs::Policy;
pub(crate) use target::Gives;
pub use target::{DriveTarget, Target};
pub use vary::Vary;
pub use workload::{TraceSpec, Workload};

use crate::run::{Fill, Overwrite};
use crate::trace::TraceSource;
use crate::trace::truth::Truth;
use crate::{bounded, bundled};
pub(crate) use document::Document;
use document::Section;
use flashlane_base::Ns;
use flashlane_rt::CostTable;
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Seed of every random stream.
    pub seed: u64,
    /// Sequential writes before.
    pub fill: Fill,
    /// Random writes before.
    pub overwrite: Overwrite,
    /// The host is idle for so long before the measured part.
    pub rest: Ns,
    /// Failed requests and a device that turns read-only are what the experiment is about: they are
    /// reported, and don't make its result bad.
    pub allow_errors: bool,
}

/// The host that a target runs on, simulated.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Cores; jobs are spread over them.
    pub cores: u32,
    /// What CPU work costs.
    pub costs: CostTable,
}

impl Default for HostSpec {
    /// One core, whose work costs nothing.
    fn default() -> HostSpec {
        HostSpec { cores: 1, costs: CostTable::zero() }
    }
}

/// An experiment, complete.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub name: String,
    /// What it is about.
    pub description: String,
    /// Stacks to compare; each gets a fresh device.
    pub targets: Vec<Target>,
    /// What runs on each before the measured part: one after the other, and in no result.
    pub warm_up: Vec<Workload>,
    /// What runs on them; on each all that does not name others.
    pub workloads: Vec<Workload>,
    pub run: RunSpec,
    /// What a sweep varies; nothing in most.
    pub vary: Vec<Vary>,
    /// What changes nothing, and whoever wrote it may think that it does.
    pub remarks: Vec<String>,
}

/// Everything that is wrong with an experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ExperimentErrors(pub Vec<Complaint>);

impl fmt::Display for ExperimentErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, complaint) in self.0.iter().enumerate() {
            let end = if i + 1 == self.0.len() { "" } else { "\n" };
            write!(f, "{complaint}{end}")?;
        }
        Ok(())
    }
}

/// Where files named in an experiment are looked for.
#[derive(Clone, Debug)]
pub struct Base {
    /// Folder that relative paths start from.
    pub folder: PathBuf,
}

impl Base {
    /// Relative to the file's own folder.
    pub fn of(file: &Path) -> Base {
        Base { folder: file.parent().unwrap_or(Path::new("")).to_path_buf() }
    }

    /// A trace: a file, or with `bundled:` one that comes with the program.
    pub(crate) fn trace(&self, name: &str) -> Result<TraceSource, String> {
        let Some(name) = name.strip_prefix("bundled:") else {
            return Ok(TraceSource::File(self.path(name)));
        };
        let (name, bytes) = bundled(name)?;
        Ok(TraceSource::Bundled { name, bytes })
    }

    /// A small text, as [`Base::trace`] names a file.
    pub(crate) fn text(&self, name: &str) -> Result<String, String> {
        let Some(name) = name.strip_prefix("bundled:") else {
            let path = self.path(name);
            let read = bounded::text(&path, bounded::TEXT_MAX);
            return read.map_err(|e| format!("cannot read {}: {e}", path.display()));
        };
        Ok(String::from_utf8_lossy(bundled(name)?.1).into())
    }

    /// Where journals lie, as [`Base::trace`] names a file.
    pub(crate) fn truth(&self, name: &str) -> Result<Truth, String> {
        let truth = match name.strip_prefix("bundled:") {
            None => Truth::read(&self.path(name)),
            Some(name) => {
                let (name, bytes) = bundled(name)?;
                Truth::parse(&String::from_utf8_lossy(bytes), name)
            }
        };
        truth.map_err(|e| e.to_string())
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.join(relative)
    }
}

fn bundled(name: &str) -> Result<bundled::File, String> {
    let found = bundled::files().find(|(known, _)| *known == name);
    found.ok_or_else(|| {
        let hint = crate::suggest::hint(name, bundled::files().map(|(known, _)| known));
        format!("no file that comes with the program is called `{name}`{hint}")
    })
}

/// A number of simulated cores that still fits a table of contention.
const CORES_MAX: u64 = 1024;

impl Experiment {
    /// Parses and checks; `changes` come from the command line and are applied in order.
    pub fn parse(
        file: &str,
        text: &str,
        base: &Base,
        changes: &[Change],
    ) -> Result<Experiment, ExperimentErrors> {
        Experiment::read(Document::parse(file, text, changes), base)
    }

    /// Checks what was parsed, or stands for a file.
    pub(crate) fn read(
        document: Result<Document, Complaint>,
        base: &Base,
    ) -> Result<Experiment, ExperimentErrors> {
        let document = document.map_err(|c| ExperimentErrors(vec![c]))?;
        let root = document.root();
        let name = root.text("name").unwrap_or("experiment").to_string();
        let description = root.text("description").unwrap_or("").trim().to_string();
        let device = root.table("device");
        let choice = device::read(device.as_ref(), &document, base);
        if let Some(device) = device {
            device.finish();
        }
        let (run, host) = read_run(root.table("run"), base);
        let mut targets = target::read_all(&root, choice.as_ref(), &host, base);
        let mut remarks = Vec::new();
        let warm_up = workload::read_warm_up(&root, base, &mut remarks);
        let workloads = workload::read_all(&root, base, &mut targets, &mut remarks);
        check_seams(&root, &targets, &warm_up, &workloads, &run);
        effect::check_device(&root, &targets);
        let vary = vary::read_all(&root);
        root.finish();
        let complaints = document.complaints();
        if !complaints.is_empty() {
            return Err(ExperimentErrors(complaints));
        }
        Ok(Experiment { name, description, targets, warm_up, workloads, run, vary, remarks })
    }

    /// What runs on a target: places in [`Experiment::workloads`], in order.
    pub fn workloads_of<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = (usize, &'a Workload)> {
        self.workloads.iter().enumerate().filter(|(i, _)| target.takes(*i))
    }
}

/// Each target is given workloads that it can take: a raw one jobs that name PUs, a file system
/// personalities, and a block device the rest.
fn check_seams(
    root: &Section<'_>,
    targets: &[Target],
    warm_up: &[Workload],
    workloads: &[Workload],
    run: &RunSpec,
) {
    let any = |gives: Gives| targets.iter().any(|t| t.gives() == gives);
    if !warm_up.is_empty() && any(Gives::Pus) {
        root.complain("warm_up", "[[warm_up]] is for block devices, and a target is raw");
    } else if !warm_up.is_empty() && any(Gives::Files) {
        root.complain(
            "warm_up",
            "[[warm_up]] is for block devices, and a target has a file system",
        );
    } else if warm_up.iter().any(|w| w.takes() == Gives::Pus) {
        root.complain(
            "warm_up",
            "`pus` is for targets of `kind = \"raw\"`, which have no [[warm_up]]",
        );
    } else if warm_up.iter().any(|w| w.takes() == Gives::Files) {
        root.complain("warm_up", "`files` is for a file system, which has no [[warm_up]]");
    }
    let is_prepared = run.overwrite != Overwrite::None || matches!(run.fill, Fill::Percent(_));
    if any(Gives::Files) && is_prepared {
        let says = "`fill` and `overwrite` are for block devices, and a target has a file system: its \
                    files are made first, say in the [[workload]] how many (`nfiles`, `prealloc`)";
        root.complain("run", says);
    }
    let wrong = |target: &Target| {
        let mut its = workloads.iter().enumerate().filter(|(i, _)| target.takes(*i));
        let wrong = its.find(|(_, w)| w.takes() != target.gives())?;
        Some(wrong.1.takes())
    };
    let Some((target, takes)) = targets.iter().find_map(|t| Some((t, wrong(t)?))) else { return };
    let several = targets.iter().any(|t| t.gives() != targets[0].gives());
    let (key, says) = match (target.gives(), takes) {
        (Gives::Pus, _) => (
            "workload",
            "a raw target takes jobs that name their PUs, as `pus = \"0-3\"` in a [[workload]] of \
             an experiment does",
        ),
        (_, Gives::Pus) => ("workload", "`pus` in a workload is for targets of `kind = \"raw\"`"),
        (Gives::Files, _) => (
            "workload",
            "a target with a file system takes `files = \"fileserver\"` and the like; jobs and \
             traces are for block devices: leave `parafs` out, or take `kind = \"pftl\"`",
        ),
        (Gives::Sectors, _) => (
            "workload",
            "`files` needs a file system: say `parafs = true` in the [[target]], or take `kind = \
             \"parafs\"`",
        ),
    };
    if several {
        let all = "raw targets, block devices and file systems take different workloads: say in each \
                   workload which `targets` it is for";
        root.complain("target", format!("target `{}`: {says}; {all}", target.name));
        return;
    }
    root.complain(key, says);
}

/// A device's table, for figures, which have several.
pub(crate) fn read_device(
    section: &Section<'_>,
    document: &Document,
    base: &Base,
) -> Option<DeviceChoice> {
    device::read(Some(section), document, base)
}

/// Longest rest: a year.
const REST_MAX: Ns = Ns::from_secs(365 * 86_400);

/// How to run, and the host of targets that have none of their own.
fn read_run(section: Option<Section<'_>>, base: &Base) -> (RunSpec, HostSpec) {
    let mut run = RunSpec {
        seed: 1,
        fill: Fill::Auto,
        overwrite: Overwrite::None,
        rest: Ns::ZERO,
        allow_errors: false,
    };
    // One default, whether a job file, a trace or an experiment is run.
    let costs = read_costs(bundled::DEFAULT_COSTS, base)
        .unwrap_or_else(|e| unreachable!("it comes with the program: {e}"));
    let default = HostSpec { costs, ..HostSpec::default() };
    let Some(s) = section else {
        return (run, default);
    };
    run.seed = s.number("seed", 0, i64::MAX as u64).unwrap_or(run.seed);
    run.allow_errors = s.flag("allow_errors").unwrap_or(false);
    run.rest = s.parsed("rest").unwrap_or(Ns::ZERO);
    if run.rest > REST_MAX {
        s.complain("rest", format!("`rest` is at most {REST_MAX}"));
    }
    let host = read_host(&s, &default, base);
    run.fill = match s.text("fill") {
        None | Some("auto") => Fill::Auto,
        Some("none") => Fill::None,
        Some(share) => percent(share, 100).map(Fill::Percent).unwrap_or_else(|| {
            s.complain("fill", "`fill` is \"auto\", \"none\" or a share like \"80%\"");
            Fill::Auto
        }),
    };
    run.overwrite = match s.text("overwrite") {
        None | Some("none") => Overwrite::None,
        Some("steady") => Overwrite::Steady,
        Some(share) => percent(share, 10_000).map(Overwrite::Percent).unwrap_or_else(|| {
            let says =
                "`overwrite` is \"none\", \"steady\" or a share of what was filled like \"200%\"";
            s.complain("overwrite", says);
            Overwrite::None
        }),
    };
    if run.overwrite != Overwrite::None && !matches!(run.fill, Fill::Percent(1..)) {
        s.complain("overwrite", "`overwrite` needs `fill` to be a share like \"100%\"");
    }
    s.finish();
    (run, host)
}

/// The keys `host_cores`, `costs` and `handoff_per_waiter` of `[run]` or a target; what is not said is as
/// `default` has it.
fn read_host(s: &Section<'_>, default: &HostSpec, base: &Base) -> HostSpec {
    let mut host = default.clone();
    if let Some(cores) = s.number("host_cores", 1, CORES_MAX) {
        host.cores = cores as u32;
    }
    if let Some(name) = s.text("costs") {
        match read_costs(name, base) {
            Ok(table) => host.costs = table,
            Err(why) => s.complain("costs", format!("`costs`: {why}")),
        }
    }
    if let Some(cost) = s.parsed("handoff_per_waiter") {
        host.costs = host.costs.with_handoff(cost);
    }
    host
}

/// A table that comes with the program, or a file.
pub(crate) fn read_costs(name: &str, base: &Base) -> Result<CostTable, String> {
    if name == "zero" {
        return Ok(CostTable::zero());
    }
    let bundled = bundled::COSTS.iter().find(|(known, _)| *known == name);
    if let Some((_, text)) = bundled {
        return CostTable::from_toml(text).map_err(|e| e.to_string());
    }
    let path = base.path(name);
    let shown = path.display();
    let known: Vec<&str> = bundled::COSTS.iter().map(|(known, _)| *known).collect();
    let text = bounded::text(&path, bounded::TEXT_MAX).map_err(|e| {
        let known = known.join(", ");
        format!("cannot read {shown}: {e} (tables that come with the program: zero, {known})")
    })?;
    CostTable::from_toml(&text).map_err(|e| format!("{shown}: {e}"))
}

/// `"80%"`, up to a largest share.
fn percent(text: &str, most: u64) -> Option<u64> {
    text.strip_suffix('%')?.trim().parse().ok().filter(|p| (1..=most).contains(p))
}

#[cfg(test)]
mod tests;
