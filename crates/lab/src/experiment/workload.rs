//! `[[workload]]`: jobs in fio's terms, fio job files, traces, personalities of Filebench.
//!
//! Owns: the four shapes of the table. Promises: a job's keys are fio's options with units that
//! say what they mean (`"4KiB"` is 4096 here, whatever fio makes of it). Never: opens a trace.

use super::Base;
use super::document::{Section, Value};
use super::files;
use super::target::{Gives, Target, read_pus};
use crate::bounded;
use crate::fio::{self, options, values::Units};
use crate::personality::FileJob;
use crate::run::Replay;
use crate::trace::number::Clock;
use crate::trace::truth::Truth;
use crate::trace::{Action, Format, Reading, TraceSource};
use crate::workload::Job;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSpec {
    pub source: TraceSource,
    /// Only the device of this name.
    pub device: Option<String>,
    pub reading: Reading,
    pub replay: Replay,
    /// May be packed to fit the device.
    pub scale_to_device: bool,
    /// How often, one after the other.
    pub loops: u32,
    /// Where its journals lie: how long their writes take to be durable is measured apart.
    pub truth: Option<Arc<Truth>>,
    /// The file that says so.
    pub truth_file: Option<Box<TraceSource>>,
    /// The device is told of their writes.
    pub hint: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    Job(Box<Job>),
    Trace(TraceSpec),
    Files(FileJob),
}

impl Workload {
    /// What it needs of a target.
    pub(crate) fn takes(&self) -> Gives {
        match self {
            Workload::Job(job) if job.pus.is_some() => Gives::Pus,
            Workload::Job(_) | Workload::Trace(_) => Gives::Sectors,
            Workload::Files(_) => Gives::Files,
        }
    }
}

/// Requests of a trace in flight in open loop: far more than any recorded queue had.
const OPEN_DEPTH: u32 = 4096;

/// Reads all workloads, and says each target which of them are for it; complaints go to the document.
pub(super) fn read_all(
    root: &Section<'_>,
    base: &Base,
    targets: &mut [Target],
    remarks: &mut Vec<String>,
) -> Vec<Workload> {
    let sections = root.tables("workload");
    if sections.is_empty() {
        let says = "no [[workload]]: name one, `[[workload]]` with `rw = \"randwrite\"`, \
                    `trace = \"FILE\"`, `fio = \"JOB.fio\"` or `files = \"fileserver\"`";
        root.complain("workload", says);
    }
    let mut all = Vec::new();
    // Of each workload the targets that it names; none names all.
    let mut named: Vec<Option<Vec<String>>> = Vec::new();
    for (index, s) in sections.into_iter().enumerate() {
        let whose = read_targets(&s, targets);
        all.extend(read_one(s, index, base, remarks));
        named.resize(all.len(), whose);
    }
    if named.iter().any(Option::is_some) {
        for target in targets.iter_mut() {
            let is_for = |whose: &Option<Vec<String>>| {
                whose.as_ref().is_none_or(|names| names.contains(&target.name))
            };
            let only: Vec<usize> = (0..named.len()).filter(|i| is_for(&named[*i])).collect();
            if only.is_empty() {
                let says = format!("no [[workload]] is for the target `{}`", target.name);
                root.complain("workload", says);
            }
            target.only = Some(only);
        }
    }
    all
}

/// `[[warm_up]]`: what runs on all targets before the measured part.
pub(super) fn read_warm_up(
    root: &Section<'_>,
    base: &Base,
    remarks: &mut Vec<String>,
) -> Vec<Workload> {
    let sections = root.tables("warm_up").into_iter().enumerate();
    let each = sections.flat_map(|(index, s)| {
        if s.has("targets") {
            s.complain("targets", "a [[warm_up]] is for all targets: leave `targets` out");
            let _ = s.item("targets");
        }
        read_one(s, index, base, remarks)
    });
    each.collect()
}

/// One table: a job, those of a job file, a trace, a personality.
fn read_one(s: Section<'_>, index: usize, base: &Base, remarks: &mut Vec<String>) -> Vec<Workload> {
    let shapes: Vec<&str> =
        ["trace", "fio", "files", "rw"].into_iter().filter(|key| s.has(key)).collect();
    let found = match shapes[..] {
        ["trace"] => read_trace(&s, base).map(Workload::Trace).into_iter().collect(),
        ["fio"] => {
            let jobs = read_fio(&s, base, remarks).into_iter();
            jobs.map(|job| Workload::Job(job.into())).collect()
        }
        ["files"] => files::read_jobs(&s, index).into_iter().map(Workload::Files).collect(),
        // Its keys are fio's, which says itself what it does not know.
        ["rw"] => return vec![Workload::Job(read_job(&s, index).into())],
        [] => {
            let says = "needs `rw` (a job), `trace` or `fio` (a file), or `files` (a personality of \
                        Filebench)";
            s.complain("rw", says);
            return Vec::new();
        }
        _ => {
            s.complain(shapes[1], format!("`{}` and `{}`: give one", shapes[0], shapes[1]));
            return Vec::new();
        }
    };
    s.finish();
    found
}

/// `targets = ["one", "other"]` of a workload.
fn read_targets(s: &Section<'_>, targets: &[Target]) -> Option<Vec<String>> {
    if !s.has("targets") {
        return None;
    }
    let names = s.texts("targets");
    if names.is_empty() {
        s.complain("targets", "`targets` names the targets that it is for; all without it");
    }
    for name in &names {
        if !targets.iter().any(|t| t.name == *name) {
            let known: Vec<String> = targets.iter().map(|t| format!("`{}`", t.name)).collect();
            let says = format!("no target is called `{name}`; there are {}", known.join(", "));
            s.complain("targets", says);
        }
    }
    Some(names)
}

fn read_job(s: &Section<'_>, index: usize) -> Job {
    let mut job = Job::new(s.text("name").unwrap_or(&format!("job{index}")));
    // IEC prefixes mean what they say: `KiB` 1024, `kB` 1000.
    let mut units = Units { kb_base: 1000 };
    if s.has("pus") {
        job.pus = read_pus(s);
    }
    for key in s.keys().filter(|k| !["name", "pus", "targets"].contains(k)) {
        let item = s.item(key).expect("it is one of its keys");
        let text = match &item.value {
            Value::Text(t) => t.clone(),
            Value::Int(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Flag(b) => (*b as u8).to_string(),
            Value::List(_) | Value::Table(_) => {
                s.complain(key, format!("`{key}` must be a string, a number, true or false"));
                continue;
            }
        };
        match options::apply(&mut job, &mut units, key, Some(&text)) {
            Ok(options::Applied::Set) => {}
            Ok(options::Applied::WithoutMeaning) => {
                s.complain(key, format!("`{key}` means nothing here: remove it"));
            }
            Err(problem) => s.complain(key, problem),
        }
    }
    if job.time_based && job.runtime.is_none() {
        s.complain("time_based", "`time_based` needs a `runtime`");
    }
    job
}

/// Bad lines of a job file that are said: a file that is something else has thousands.
const LINES_SAID: usize = 20;

fn read_fio(s: &Section<'_>, base: &Base, remarks: &mut Vec<String>) -> Vec<Job> {
    let Some(file) = s.text("fio") else {
        return Vec::new();
    };
    let path = base.path(file);
    let shown = path.display().to_string();
    let text = match bounded::text(&path, bounded::TEXT_MAX) {
        Ok(text) => text,
        Err(e) => {
            s.complain("fio", format!("cannot read job file {shown}: {e}"));
            return Vec::new();
        }
    };
    match fio::parse(&shown, &text) {
        Ok(file) => {
            remarks.extend(file.remark(&shown));
            return file.jobs;
        }
        // Each line by itself, for it has a place of its own.
        Err(fio::FioError::Lines { lines }) => {
            lines.iter().take(LINES_SAID).for_each(|line| s.complain("fio", line));
            if let Some(more @ 1..) = lines.len().checked_sub(LINES_SAID) {
                s.complain("fio", format!("{shown}: {more} more lines like these"));
            }
        }
        Err(other) => s.complain("fio", other),
    }
    Vec::new()
}

fn read_trace(s: &Section<'_>, base: &Base) -> Option<TraceSpec> {
    let name = s.text("trace")?;
    // All of it is read: what is wrong is said at once.
    let source = base.trace(name).map_err(|e| s.complain("trace", e)).ok();
    let device = s.text("device").map(str::to_string);
    let reading = read_reading(s);
    let kinds = [("open", Kind::Open), ("closed", Kind::Closed), ("dependent", Kind::Dependent)];
    let kind = s.word("replay", &kinds).unwrap_or(Kind::Open);
    let depth = s.number("iodepth", 1, 65536).map(|n| n as u32);
    let speed = s.number("speed_percent", 1, 1_000_000).map(|n| n as u32);
    if speed.is_some() && kind != Kind::Open {
        s.complain("speed_percent", "`speed_percent` is for `replay = \"open\"`");
    }
    let max_pause = s.parsed("max_pause");
    if max_pause.is_some() && kind != Kind::Dependent {
        s.complain("max_pause", "`max_pause` is for `replay = \"dependent\"`");
    }
    let depth_or = |default| depth.unwrap_or(default);
    let replay = match kind {
        Kind::Open => {
            Replay::Open { speed_percent: speed.unwrap_or(100), depth: depth_or(OPEN_DEPTH) }
        }
        Kind::Closed => Replay::Closed { depth: depth_or(32) },
        Kind::Dependent => Replay::Dependent { depth: depth_or(OPEN_DEPTH), max_pause },
    };
    let truth = s
        .text("truth")
        .and_then(|name| base.truth(name).map(Arc::new).map_err(|e| s.complain("truth", e)).ok());
    let truth_file = s.text("truth").and_then(|name| base.trace(name).ok().map(Box::new));
    let hint = s.flag("hint").unwrap_or(false);
    if hint && !s.has("truth") {
        s.complain("hint", "`hint` tells the device of a journal's writes: name a file that knows them with `truth`");
    }
    Some(TraceSpec {
        source: source?,
        device,
        reading,
        replay,
        scale_to_device: s.flag("scale_to_device").unwrap_or(false),
        loops: s.number("loops", 0, 1_000_000).unwrap_or(1) as u32,
        truth,
        truth_file,
        hint,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open,
    Closed,
    Dependent,
}

/// How a trace is read: `format`, `action`, `time_unit`, `wait`, `unwrap`, `take_as_is`.
fn read_reading(s: &Section<'_>) -> Reading {
    let formats = Format::ALL.map(|f| (f.word(), f));
    let units = ["ps", "ns", "us", "ms", "s"].map(|word| (word, word));
    let actions = [("queued", Action::Queued), ("issued", Action::Issued)];
    Reading {
        format: s.word("format", &formats),
        action: s.word("action", &actions),
        time_unit: s.word("time_unit", &units).and_then(Clock::named),
        wait_from_start: s.word("wait", &[("previous", false), ("start", true)]).unwrap_or(false),
        unwrap: s.flag("unwrap").unwrap_or(false),
        take_as_is: s.flag("take_as_is").unwrap_or(false),
        contents: false,
    }
}
