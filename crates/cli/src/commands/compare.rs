//! `flashlane compare`.

use crate::Ending;
use crate::args::Compare;
use crate::output::{self, Results};
use crate::watch::{Interrupt, Points};
use anyhow::{Context, Result, bail};
use flashlane_lab::bounded;
use flashlane_lab::compare::{self, Comparison, Series};
use flashlane_lab::experiment::Change;
use flashlane_lab::kept::Kept;
use flashlane_lab::sweep::{self, Plan, Watcher};
use flashlane_lab::trace::source;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Seeds, where nothing says how many.
const SEEDS: u16 = 5;
/// A result with a course over time is some megabytes.
const RESULT_BYTES_MAX: u64 = 256 << 20;

pub(crate) fn compare(args: &Compare) -> Result<Ending> {
    let json = output::json_beside(&args.runs, args.json.as_ref())?;
    let mut changes: Vec<Change> = args.device.clone().map(Change::Device).into_iter().collect();
    if !args.target.is_empty() {
        changes.push(Change::Targets(args.target.clone()));
    }
    // Everything that can be wrong is found before anything runs.
    let seeds = args.seeds.unwrap_or(SEEDS);
    let sources: Vec<Source> =
        args.runs.iter().map(|path| source_of(path, &changes, seeds)).collect::<Result<_>>()?;
    if sources.iter().all(|source| matches!(source, Source::Result { .. })) {
        refuse_options_of_runs(args)?;
    }
    let series: usize = sources.iter().map(Source::series).sum();
    if let ([path], 1) = (&args.runs[..], series) {
        bail!(
            "{}: one series is nothing to compare: give another run, or another --target",
            shown(path)
        );
    }
    let interrupt = Interrupt::listen()?;
    let jobs = super::jobs(args.jobs);
    let mut interrupted = false;
    let (mut all, mut bad): (Vec<Series>, bool) = (Vec::new(), false);
    let (mut lacks, mut unlike) = (Vec::new(), Vec::new());
    let mut first: Option<(String, Value)> = None;
    for (source, path) in sources.into_iter().zip(&args.runs) {
        match source {
            Source::Result { series, lack, failed, result } => {
                match &first {
                    None => first = Some((shown(path), result)),
                    Some((name, first)) => {
                        unlike.extend(compare::unlike((name, first), (&shown(path), &result)));
                    }
                }
                all.extend(series);
                lacks.extend(lack);
                bad |= failed;
            }
            Source::Plan(plan) => {
                let watcher: Arc<dyn Watcher> = Arc::new(Points::new(&interrupt, plan.points()));
                let result = sweep::run(&plan, jobs, &Kept::nothing(), None, &watcher);
                drop(watcher);
                interrupted |= result.missing > 0;
                if let Some(why) =
                    result.points.iter().find_map(|p| p.result.as_ref()?.error.clone())
                {
                    bail!("{}: {why}", path.display());
                }
                bad |= result.bad > 0;
                let value = serde_json::to_value(&result).context("a result is plain data")?;
                if interrupted {
                    output::remark("flashlane: INTERRUPTED: seeds that were not run are missing\n");
                    all.extend(compare::series_of(&shown(path), &value).unwrap_or_default());
                    break;
                }
                all.extend(compare::series_of(&shown(path), &value)?);
            }
        }
    }
    if interrupted && all.len() < 2 {
        return Ok(Ending::Interrupted);
    }
    let comparison = Comparison { lacks, unlike, ..compare::compare(&all)? };
    let results = Results::of(json, &comparison.to_json(), &comparison.to_text());
    results.end(match (bad, interrupted) {
        (true, _) => Ending::Bad,
        (false, true) => Ending::Interrupted,
        (false, false) => Ending::Good,
    })
}

/// Options that say how something runs, where nothing does.
fn refuse_options_of_runs(args: &Compare) -> Result<()> {
    let given = [
        ("--seeds", args.seeds.is_some()),
        ("--device", args.device.is_some()),
        ("--target", !args.target.is_empty()),
        ("--jobs", args.jobs.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!(
            "{option} is for what compare runs itself, and each RUN here is the result of an earlier \
             run: leave it out, or name the experiments"
        ),
        None => Ok(()),
    }
}

enum Source {
    /// Of an earlier run, with what is in no series, and whether some of that failed.
    Result {
        series: Vec<Series>,
        lack: Option<String>,
        failed: bool,
        result: Value,
    },
    Plan(Plan),
}

impl Source {
    fn series(&self) -> usize {
        match self {
            Source::Result { series, .. } => series.len(),
            Source::Plan(plan) => plan.targets(),
        }
    }
}

/// A file's name without its folder.
fn shown(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into())
}

/// A result if it is JSON, else something to be run under seeds.
fn source_of(path: &Path, changes: &[Change], seeds: u16) -> Result<Source> {
    let describe = || format!("cannot read {}", path.display());
    source::regular(path).with_context(describe)?;
    let mut file = File::open(path).with_context(describe)?;
    let mut first = [0u8; 1];
    // No experiment, job file or trace begins with a brace.
    let some = file.read(&mut first).with_context(describe)? == 1;
    if some && first == *b"<" {
        bail!(
            "{}: this is a page: compare reads the JSON of a run, write it with `flashlane run FILE \
             --json OUT.json`",
            path.display()
        );
    }
    if some && first == *b"{" {
        let bytes = bounded::bytes(path, RESULT_BYTES_MAX).with_context(describe)?;
        let value = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no JSON result", path.display()))?;
        let lack = compare::lacks(&value);
        let lack = lack.map(|lack| format!("{} is part of a result: {lack}", path.display()));
        if let Some(lack) = &lack {
            output::remark(&format!("flashlane: {lack}\n"));
        }
        let failed = compare::failed(&value) > 0;
        let series = compare::series_of(&shown(path), &value)?;
        return Ok(Source::Result { series, lack, failed, result: value });
    }
    let all: Vec<String> = (1..=seeds).map(|n| n.to_string()).collect();
    let axis = format!("run.seed={}", all.join(","));
    Ok(Source::Plan(Plan::new(Some(path), changes.to_vec(), &[axis])?))
}
