//! `flashlane torture`.

use crate::Ending;
use crate::args::Torture;
use crate::output::{self, Results};
use crate::watch::{Cpu, Interrupt, Torturer};
use anyhow::{Context, Result, bail};
use flashlane_lab::experiment::{Change, Experiment, Target};
use flashlane_lab::input::{self, Kind};
use flashlane_lab::suggest;
use flashlane_testkit::files::{FILES, Files, Way};
use flashlane_testkit::harness::quoted;
use flashlane_testkit::stacks::{named, subjects};
use flashlane_testkit::torture::FAILURES_MAX;
use flashlane_testkit::{
    Failure, How, Mode, Ns, Outcome, Own, Plan, Seeds, Subject, Tally, torture,
};
use serde_json::json;
use std::time::Duration;

/// A device is brought up and read whole after every cut.
const SECTORS_MAX: u64 = 4 << 20;
/// Sectors that the workload writes before the first cut on a device of somebody's own, about.
const OWN_SECTORS: u64 = 4_000;
/// How long, where nothing says it.
const SECONDS: u64 = 10;

pub(crate) fn torture(args: &Torture) -> Result<Ending> {
    if args.mode == Mode::None && args.cuts.is_some() {
        bail!("--mode none cuts nothing: leave --cuts out, or choose another mode");
    }
    if let Some(seeds) = args.seeds.filter(|seeds| args.from.checked_add(seeds - 1).is_none()) {
        bail!("--from {}: there are no {seeds} seeds from there on", args.from);
    }
    let own = match args.file {
        Some(_) => own_targets(args)?,
        None => Vec::new(),
    };
    let name = args.target.as_deref().unwrap_or("all");
    let files = args.policy.map_or(Ok(Vec::new()), |way| with_policy(name, way))?;
    let sources = match (&args.file, args.policy) {
        (Some(_), _) => own.iter().map(|own| own as &dyn Subject).collect(),
        (None, Some(_)) => files.iter().map(|files| files as &dyn Subject).collect(),
        (None, None) => rows(name)?,
    };
    let json = output::json_beside(args.file.as_slice(), args.json.as_ref())?;
    let interrupt = Interrupt::listen()?;
    let seconds = match (args.seeds, args.seed) {
        (None, None) => args.seconds.unwrap_or(SECONDS),
        _ => 0,
    };
    let span = (seconds > 0).then(|| Duration::from_secs(seconds));
    let watcher = Torturer::new(&interrupt, span, |failure| said(failure, ""));
    let exact = !args.cut.is_empty() || args.lives.is_some();
    let outcome = match args.seed {
        Some(seed) if exact => replay(&sources, seed, args, &watcher),
        one => {
            let effort = args.effort.or(own.iter().map(effort_of).min());
            let (mode, cuts, first) = (args.mode, args.cuts, args.first);
            let how = How { mode, cuts, effort, first, ..How::default() };
            let from = one.unwrap_or(args.from);
            let seeds = Seeds { from, count: one.map(|_| 1).or(args.seeds) };
            torture::torture(&sources, &how, seeds, super::jobs(args.jobs), &watcher)
        }
    };
    let cpu = watcher.cpu();
    drop(watcher);
    let targets = sources.iter().map(|source| source.name()).collect();
    let result = Report { args, targets, outcome, cpu, partial: interrupt.happened() };
    let results = Results::of(json, &result.to_json(), &result.to_text());
    results.end(match () {
        _ if !result.outcome.failures.is_empty() => Ending::Bad,
        _ if result.partial => Ending::Interrupted,
        _ => Ending::Good,
    })
}

/// The rows of the table that a name stands for.
fn rows(name: &str) -> Result<Vec<&'static dyn Subject>> {
    let named = named(name);
    if named.is_empty() {
        let names: Vec<_> = subjects().map(|s| s.name()).chain(["all"]).collect();
        let hint = suggest::hint(name, names.iter().copied());
        bail!("--target: no stack `{name}`{hint} (there are: {})", names.join(", "));
    }
    Ok(named)
}

/// The file systems that a name stands for, each with one policy.
fn with_policy(name: &str, way: Way) -> Result<Vec<Files>> {
    // `all` leaves out file systems below which failure units vanish: these are for ParaFS's own
    // policy, and run with another one only if they are named.
    let is_named = |files: &&Files| files.name == name || name == "all" && !files.vanishes;
    let named = FILES.iter().filter(is_named);
    let named: Vec<Files> = named.map(|files| files.of(way)).collect();
    if named.is_empty() {
        let names: Vec<&str> = FILES.iter().map(|files| files.name).collect();
        bail!(
            "--policy {} is of a file system: with --target {name} leave it out, or choose --target {}",
            way.word(),
            names.join(" or ")
        );
    }
    Ok(named)
}

/// The targets of the experiment, each tried out once.
fn own_targets(args: &Torture) -> Result<Vec<Own>> {
    let changes: Vec<Change> = args.set.iter().cloned().map(Change::Set).collect();
    let (kind, experiment) = input::load(args.file.as_deref(), &changes)?;
    if kind != Kind::Experiment {
        bail!(
            "torture brings its own workload: give it an experiment (TOML with [device] and \
             [[target]]), not a job file or a trace"
        );
    }
    let is_set = |key: &str| {
        let keys = args.set.iter().filter_map(|set| set.split_once('='));
        keys.map(|(own, _)| own.trim()).any(|own| own == key)
    };
    if let Some(axis) = experiment.vary.iter().find(|axis| !is_set(&axis.key)) {
        bail!("this experiment varies `{0}`: give it one value, `--set {0}=VALUE`", axis.key);
    }
    let chosen = chosen(args, &experiment)?;
    let own: Vec<Own> = chosen.into_iter().map(own).collect::<Result<_>>()?;
    for target in &own {
        let why = || format!("target `{}` can't be built", target.name);
        target.try_out(args.from).map_err(anyhow::Error::msg).with_context(why)?;
    }
    Ok(own)
}

fn chosen<'a>(args: &Torture, experiment: &'a Experiment) -> Result<Vec<&'a Target>> {
    let wanted = args.target.as_deref().filter(|name| *name != "all");
    let of = |t: &&Target| wanted.is_none_or(|name| t.name == name);
    let chosen: Vec<&Target> = experiment.targets.iter().filter(of).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = experiment.targets.iter().map(|t| t.name.as_str()).collect();
        let (name, names) = (wanted.unwrap_or_default(), names.join("`, `"));
        bail!("--target: the experiment has no target `{name}`; it has `{names}`");
    }
    Ok(chosen)
}

fn own(target: &Target) -> Result<Own> {
    if target.stack.is_raw() {
        bail!(
            "target `{}` is raw: there is no layer that promises anything; use `pblk` or `pftl`",
            target.name
        );
    }
    if target.stack.in_order() && target.fs.is_some() {
        let names: Vec<&str> = FILES.iter().map(|files| files.name).collect();
        bail!(
            "target `{}` has a file system, and a torture of an experiment's targets writes sectors: leave \
             the experiment out, and give `--target {}`, with `--policy` for another policy of it",
            target.name,
            names.join("` or `--target ")
        );
    }
    if target.stack.in_order() {
        bail!(
            "target `{}` is written in order, segment by segment, and a torture writes anywhere: put \
             a file system on it, or use another type",
            target.name
        );
    }
    let geometry = target.stack.device.spec.geometry();
    let (sectors, chunks) = (geometry.sectors(), geometry.chunks_per_pu as u64);
    if sectors > SECTORS_MAX {
        let fit = (chunks * SECTORS_MAX / sectors).max(1);
        bail!(
            "the device has {sectors} sectors, and is read whole after every cut: {SECTORS_MAX} are \
             the most; make it smaller, as with `--set device.geometry.chunks_per_pu={fit}`"
        );
    }
    Ok(Own { name: target.name.clone(), stack: target.stack.clone() })
}

/// Percent of twice the capacity, so that a short run is short on a large device, too.
fn effort_of(own: &Own) -> u64 {
    (OWN_SECTORS * 100 / own.stack.device.spec.geometry().sectors().max(1)).clamp(1, 100)
}

/// One run, exactly.
fn replay(sources: &[&dyn Subject], seed: u64, args: &Torture, watcher: &Torturer) -> Outcome {
    let plan = Plan {
        effort: args.effort.unwrap_or(Plan::default().effort),
        cuts: args.cut.iter().copied().map(Ns::from_ns).collect(),
        lives: args.lives,
        aimed: args.aimed,
        ..Plan::default()
    };
    torture::replay(sources, seed, &plan, watcher)
}

/// What came of it, and of what.
struct Report<'a> {
    args: &'a Torture,
    targets: Vec<&'a str>,
    outcome: Outcome,
    cpu: Cpu,
    /// Ended by Ctrl-C.
    partial: bool,
}

impl Report<'_> {
    /// The command that replays a failure.
    fn command(&self, flags: &str) -> String {
        let mut command = "flashlane torture".to_string();
        if let Some(file) = &self.args.file {
            command += &format!(" {}", quoted(&file.to_string_lossy()));
        }
        for set in &self.args.set {
            command += &format!(" --set {}", quoted(set));
        }
        format!("{command} {flags}")
    }

    /// Cuts of what was tried, by all the time there was: a failure that is made small takes some, too.
    fn cuts_per_second(&self) -> f64 {
        self.outcome.tally.cuts as f64 / self.cpu.used.as_secs_f64().max(1e-9)
    }

    fn to_json(&self) -> String {
        let Tally { seeds, lives, cuts, faults, vanished, refused } = self.outcome.tally;
        let failures = self.outcome.failures.iter().map(|f| {
            json!({
                "target": f.target,
                "seed": f.seed,
                "cuts": f.cuts.iter().map(|at| at.as_ns()).collect::<Vec<_>>(),
                "place": f.place.map(|(at, _)| at),
                "places": f.place.map(|(_, of)| of),
                "what": f.what,
                "replay": self.command(&f.flags),
                "found": self.command(&f.found),
            })
        });
        let mode = self.args.cut.is_empty().then(|| self.args.mode.name());
        let result = json!({
            "targets": self.targets,
            "policy": self.args.policy.map(Way::word),
            "mode": mode,
            "partial": self.partial,
            "seeds": seeds,
            "lives": lives,
            "cuts": cuts,
            "faults": faults,
            "vanished": vanished,
            "refused": refused,
            "cpu_seconds": self.cpu.used.as_secs_f64(),
            "cpu_seconds_to_failure": self.cpu.seen.map(|seen| seen.as_secs_f64()),
            "cuts_per_cpu_second": self.cuts_per_second(),
            "failures": failures.collect::<Vec<_>>(),
        });
        format!("{result:#}\n")
    }

    fn to_text(&self) -> String {
        let Tally { seeds, lives, cuts, faults, vanished, refused } = self.outcome.tally;
        let failures = &self.outcome.failures;
        let mut text = format!(
            "{}{}: {seeds} seeds, {lives} lives, {cuts} power cuts, {faults} faults{}\n",
            self.targets.join(", "),
            self.args.policy.map_or(String::new(), |way| format!(", policy {}", way.word())),
            if self.partial { ", interrupted" } else { "" },
        );
        if vanished > 0 {
            let share = 100.0 * refused as f64 / lives.max(1) as f64;
            text += &format!(
                "{vanished} failure units vanished or host disks failed; {refused} mounts were \
                 refused then (in {share:.1}% of the lives)\n"
            );
        }
        text += &format!("{:.2} CPU seconds", self.cpu.used.as_secs_f64());
        if let Some(seen) = self.cpu.seen {
            text += &format!(", the first failure after {:.2}", seen.as_secs_f64());
        }
        text += &format!("; {:.0} cuts per CPU second\n", self.cuts_per_second());
        for failure in failures {
            text += &said(failure, &self.command(&failure.flags));
        }
        text += &match failures.len() {
            0 => "No failure: all that was promised was there, no rule was broken.\n".into(),
            1 if self.args.first => "1 failure; stopped there\n".into(),
            1 => "1 failure\n".into(),
            FAILURES_MAX => format!("{FAILURES_MAX} failures; stopped there\n"),
            n => format!("{n} failures\n"),
        };
        text
    }
}

fn said(failure: &Failure, replay: &str) -> String {
    let mut text = format!("FAILED {}, seed {}", failure.target, failure.seed);
    let cuts: Vec<String> = failure.cuts.iter().map(|at| at.to_string()).collect();
    if !cuts.is_empty() {
        text += &format!(", power cut at {}", cuts.join(", then at "));
    }
    if let Some((at, of)) = failure.place {
        text += &format!(" (place {at} of {of})");
    }
    text += &format!(": {}\n", failure.what);
    match replay {
        "" => text,
        replay => text + &format!("  replay: {replay}\n"),
    }
}
