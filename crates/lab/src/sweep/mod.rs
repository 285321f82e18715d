//! Many runs of one experiment: a grid of parameters, on all cores.
//!
//! Owns: the points of a sweep, the order of their rows, what is kept of them for the next time.
//! Promises: rows come in the order of the grid whatever core ran them, so the output of two cores
//! is that of one, byte for byte; a point that fails is a row with its error; a point that was kept
//! is not run again. Never: shares anything between points but the files that they read.
//!
//! Start reading at [`Plan::new`], then [`run`].

mod result;

pub use result::{Point, SweepResult};

use crate::execute::{How, execute};
use crate::experiment::{Change, Experiment, Vary};
use crate::input::{self, InputError};
use crate::kept::Kept;
use crate::naming;
use crate::parallel::{Then, side_by_side};
use crate::report::Report;
use crate::run::{Monitor, Progress};
use crate::shelf::Shelf;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Why a sweep can't begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// The experiment itself, with nothing varied, or every single point.
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(
        "there is nothing to vary: add `[[vary]]` with `key` and `values` to the experiment, or \
         `--vary target.0.active_pus=4,16`"
    )]
    Nothing,
    #[error("--vary: {0}")]
    Axis(String),
    #[error("{0}")]
    TooMany(String),
}

/// What is run: a file, what is changed about it, and the axes.
#[derive(Clone, Debug)]
pub struct Plan {
    file: Option<PathBuf>,
    changes: Vec<Change>,
    /// Axes in order; the last one varies fastest.
    pub axes: Vec<Vary>,
    pub name: String,
}

impl Plan {
    /// Reads the experiment; axes of the command line come behind its own, or replace them.
    pub fn new(
        file: Option<&Path>,
        changes: Vec<Change>,
        more: &[String],
    ) -> Result<Plan, SweepError> {
        let (_, experiment) = input::load(file, &changes)?;
        let mut axes = experiment.vary.clone();
        for text in more {
            let axis = Vary::parse(text, "write it `--vary target.0.active_pus=4,16,64`")
                .map_err(SweepError::Axis)?;
            match axes.iter_mut().find(|a| a.key == axis.key) {
                Some(own) => *own = axis,
                None => axes.push(axis),
            }
        }
        if axes.is_empty() {
            return Err(SweepError::Nothing);
        }
        if let Some((key, change)) = also_set(&axes, &changes) {
            let says = format!(
                "`{key}` is varied, and `{change}` would change nothing: leave one of them out \
                 (`--vary {key}=VALUE` replaces the values that an experiment varies it over)"
            );
            return Err(SweepError::Axis(says));
        }
        Vary::points(&axes).map_err(SweepError::TooMany)?;
        let plan = Plan { file: file.map(Path::to_path_buf), changes, axes, name: experiment.name };
        // A key that no point takes is wrong, not a row of errors.
        let mut first = None;
        for i in 0..plan.points() {
            match plan.experiment(i) {
                Ok(_) => return Ok(plan),
                Err(e) => first = first.or(Some(e)),
            }
        }
        Err(first.expect("a grid has a point").into())
    }

    /// Targets that each point runs on.
    pub fn targets(&self) -> usize {
        (0..self.points()).find_map(|i| self.experiment(i).ok()).map_or(0, |e| e.targets.len())
    }

    pub fn points(&self) -> usize {
        self.axes.iter().map(|a| a.values.len()).product()
    }

    /// The values of a point, one per axis.
    pub fn values(&self, mut point: usize) -> Vec<&str> {
        let mut values = Vec::new();
        for axis in self.axes.iter().rev() {
            let n = axis.values.len();
            values.push(axis.values[point % n].as_str());
            point /= n;
        }
        values.reverse();
        values
    }

    fn changes_of(&self, point: usize) -> Vec<Change> {
        let sets = self.axes.iter().zip(self.values(point));
        let sets = sets.map(|(axis, value)| Change::Set(format!("{}={value}", axis.key)));
        self.changes.iter().cloned().chain(sets).collect()
    }

    pub(crate) fn experiment(&self, point: usize) -> Result<Experiment, InputError> {
        let (_, experiment) = input::load(self.file.as_deref(), &self.changes_of(point))?;
        Ok(experiment)
    }
}

/// A key that is varied and set to one value besides.
fn also_set<'a>(axes: &[Vary], changes: &'a [Change]) -> Option<(&'a str, &'a Change)> {
    let key = |change: &'a Change| match change {
        Change::Set(set) | Change::Written(set, _) => {
            set.split_once('=').map(|(key, _)| key.trim())
        }
        Change::Seed(_) => Some("run.seed"),
        Change::Device(_) => Some("device.preset"),
        Change::Store(_) => Some("device.store"),
        Change::Targets(_) | Change::OnDrive(_) | Change::ScaleToDevice => None,
    };
    let mut set = changes.iter().filter_map(|change| Some((key(change)?, change)));
    set.find(|(key, _)| axes.iter().any(|axis| axis.key == *key))
}

/// Watches a sweep, from whatever core.
pub trait Watcher: Send + Sync {
    /// A point is done; `kept` when it was before.
    fn done(&self, point: usize, kept: bool);
    /// A point is done and can't be kept.
    fn trouble(&self, why: &str);
    /// The user wants it to end.
    fn interrupted(&self) -> bool;
}

/// Runs all points that are not kept, on `jobs` threads; with a shelf devices are prepared on that, once for
/// all points that prepare alike.
pub fn run(
    plan: &Plan,
    jobs: usize,
    kept: &Kept,
    shelf: Option<&Shelf>,
    watcher: &Arc<dyn Watcher>,
) -> SweepResult {
    let points = side_by_side(jobs, plan.points(), |i| {
        let done = (!watcher.interrupted()).then(|| point(plan, i, kept, shelf, watcher)).flatten();
        let Some((point, was_kept)) = done else { return (None, Then::End) };
        watcher.done(i, was_kept);
        (Some(point), Then::GoOn)
    });
    SweepResult::new(plan, points)
}

/// One point, and whether it was kept; `None` when interrupted.
fn point(
    plan: &Plan,
    i: usize,
    kept: &Kept,
    shelf: Option<&Shelf>,
    watcher: &Arc<dyn Watcher>,
) -> Option<(Point, bool)> {
    let experiment = plan.experiment(i).map_err(|e| e.to_string());
    let experiment = experiment.and_then(|experiment| match shelf {
        Some(_) => Shelf::check(&experiment).map(|()| experiment),
        None => Ok(experiment),
    });
    let experiment = match experiment {
        Ok(experiment) => experiment,
        Err(why) => return Some((Point::failed(why), false)),
    };
    // A run on prepared devices comes to other numbers; names are part of a point.
    let Experiment { name, description, .. } = &experiment;
    let kept_as = naming::experiment(&experiment).map(|decides| {
        kept.name_of(&format!("{name:?} {description:?} {decides} {}", shelf.is_some()))
    });
    if let Some(point) = kept_as.as_ref().and_then(|name| kept.find(name)) {
        return Some((point, true));
    }
    // A bug at one point must not take the others with it.
    let how = How { shelf, ..How::default() };
    let run = || execute(&experiment, how, &|_| watch(watcher));
    let ran = catch_unwind(AssertUnwindSafe(run));
    let point = match ran {
        Ok(Ok(outcome)) if outcome.interrupted => return None,
        Ok(Ok(outcome)) => Point::of(&Report::of(&outcome), outcome.is_bad()),
        Ok(Err(e)) => Point::failed(e.to_string()),
        Err(_) => {
            let sets: Vec<String> = plan.changes_of(i).iter().map(|c| c.to_string()).collect();
            let sets = sets.join(" ");
            Point::failed(format!("a bug: please report it with `flashlane run ... {sets}`"))
        }
    };
    // What kept a point from running may be mended the next time.
    if let Some(name) = kept_as.filter(|_| point.error.is_none())
        && let Err(why) = kept.keep(&name, &point)
    {
        watcher.trouble(&why);
    }
    Some((point, false))
}

/// Asks the watcher whether to go on; a run in progress draws nothing.
fn watch(watcher: &Arc<dyn Watcher>) -> Rc<dyn Monitor> {
    struct Quiet(Arc<dyn Watcher>);
    impl Progress for Quiet {
        fn progress(&self, _: &str, _: u64, _: Option<u64>) {}
        fn interrupted(&self) -> bool {
            self.0.interrupted()
        }
    }
    impl Monitor for Quiet {}
    Rc::new(Quiet(watcher.clone()))
}
