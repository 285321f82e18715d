//! Figures and tables of the papers, beside what comes out here.
//!
//! Owns: the list of figures ([`FIGURES`]), the shape of their files (paper's values, rule, what is
//! ours, the expected verdict), the verdict. Promises: a figure is a file in `experiments/` that
//! can be argued with; the verdict follows from its rules alone; a verdict that is not the expected
//! one is told apart. Never: bends a constant to fit.
//!
//! Start reading at [`FigureFile`], then a figure's own module.

mod bench;
mod fig4;
mod fig5;
mod fig8;
mod figure;
mod live;
mod parts;
mod qblk;
mod table1;

pub use figure::{FigureFile, Row, Rule, Verdict};
pub use parts::Way;

use crate::calibrate::Machine;
use crate::execute::{ExecuteError, How, RunOutcome, execute};
use crate::experiment::{Experiment, ExperimentErrors, RunSpec, Target, Workload};
use crate::run::{Fill, Monitor, Overwrite};
use crate::stack::StackError;
use crate::words::{aligned, row};
use crate::workload::Job;
use flashlane_ocssd::SpecError;
use flashlane_rt::Stalled;
use serde::Serialize;
use std::rc::Rc;

/// How large a reproduction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Minutes at most.
    Small,
    /// The paper's own sizes.
    Full,
}

/// Of every random stream.
const SEED: u64 = 1;

/// Gives the monitor of a part of a figure, on the thread that measures it.
pub type Watch<'a> = &'a (dyn Fn(&str) -> Rc<dyn Monitor> + Sync);

type Simulate = fn(&FigureFile, &Way<'_>) -> Result<Vec<Row>, ReproduceError>;
type Live = fn(&FigureFile, Size, Watch<'_>, u32) -> Result<live::Measured, ReproduceError>;

/// How a figure's rows are come by.
enum Measure {
    /// In virtual time: the same numbers each time, on any machine.
    Simulated(Simulate),
    /// On this machine, on so many cores at most.
    Live(Live),
}

/// A figure that can be reproduced.
pub struct Figure {
    pub name: &'static str,
    text: &'static str,
    measure: Measure,
}

/// The text of a figure's file.
macro_rules! file {
    ($path:literal) => {
        include_str!(concat!("../../../../experiments/", $path))
    };
}

pub const FIGURES: &[Figure] = &[
    simulated("lightnvm-table1", file!("lightnvm/table1.toml"), table1::measure),
    live("lightnvm-overhead", file!("lightnvm/overhead.toml"), live::overhead::measure),
    simulated("lightnvm-fig4", file!("lightnvm/fig4.toml"), fig4::measure),
    simulated("lightnvm-fig5", file!("lightnvm/fig5.toml"), fig5::measure),
    simulated("lightnvm-fig8", file!("lightnvm/fig8.toml"), fig8::measure),
    simulated("qblk-fig6", file!("qblk/fig6.toml"), qblk::fig6),
    simulated("qblk-fig7", file!("qblk/fig7.toml"), qblk::fig7),
    simulated("qblk-ablation", file!("qblk/ablation.toml"), qblk::ablation),
    live("qblk-scaling", file!("qblk/scaling.toml"), live::scaling::measure),
];

const fn simulated(name: &'static str, text: &'static str, measure: Simulate) -> Figure {
    Figure { name, text, measure: Measure::Simulated(measure) }
}

const fn live(name: &'static str, text: &'static str, measure: Live) -> Figure {
    Figure { name, text, measure: Measure::Live(measure) }
}

/// Why a figure could not be reproduced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReproduceError {
    #[error("no figure `{name}`{hint} (there are: {known}, all)")]
    Unknown {
        name: String,
        /// `; did you mean ...`, or nothing.
        hint: String,
        known: String,
    },
    #[error(transparent)]
    File(#[from] ExperimentErrors),
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    #[error(transparent)]
    Device(#[from] SpecError),
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error(transparent)]
    Stalled(#[from] Stalled),
    /// Something that must not happen in a figure: broken rules, wrong data, failed commands.
    #[error("{figure}: {what}")]
    Bad { figure: &'static str, what: String },
}

/// A figure, reproduced.
#[derive(Clone, Debug, Serialize)]
pub struct FigureResult {
    pub name: String,
    pub title: String,
    pub paper: String,
    pub verdict: Verdict,
    /// The verdict that its file expects.
    pub expected: Verdict,
    pub rule: String,
    /// Table of what the host's CPU work costs; `zero` is nothing.
    pub costs: String,
    /// What is ours: sizes, fill levels, policies that the paper does not state.
    pub ours: Vec<String>,
    /// Where differences from the paper come from, and the experiment that isolates each.
    pub causes: Vec<String>,
    /// The user ended it early: rows that were not measured have no value.
    pub interrupted: bool,
    /// The machine that it was measured on, where it was: then numbers differ from run to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// What has to be known beside the numbers of this run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Paper and here side by side.
    pub rows: Vec<Row>,
}

/// Names and titles.
pub fn list() -> String {
    let mut rows = Vec::new();
    for figure in FIGURES {
        let title = match FigureFile::parse(figure.name, figure.text) {
            Ok(file) if figure.is_live() => format!("{} ({}); live", file.title, file.paper),
            Ok(file) => format!("{} ({})", file.title, file.paper),
            Err(e) => e.to_string(),
        };
        rows.push(vec![figure.name.to_string(), title]);
    }
    // Titles read from the left: one column is enough.
    let width = rows.iter().map(|r| r[0].len()).max().unwrap_or(0);
    rows.iter().map(|r| format!("{:width$}  {}\n", r[0], r[1])).collect()
}

pub fn find(name: &str) -> Result<Vec<&'static Figure>, ReproduceError> {
    if name == "all" {
        return Ok(FIGURES.iter().collect());
    }
    let found = FIGURES.iter().find(|f| f.name == name);
    found.map(|f| vec![f]).ok_or_else(|| {
        let names: Vec<&str> = FIGURES.iter().map(|f| f.name).collect();
        ReproduceError::Unknown {
            name: name.into(),
            hint: crate::suggest::hint(name, names.iter().copied()),
            known: names.join(", "),
        }
    })
}

/// One object, or a list for `all`.
pub fn to_json(results: &[FigureResult], all: bool) -> String {
    let text = match (all, results) {
        (false, [one]) => serde_json::to_string_pretty(one),
        _ => serde_json::to_string_pretty(results),
    };
    text.expect("plain data") + "\n"
}

impl Figure {
    /// It is measured on the machine at hand: no two runs give the same numbers, and its verdict is about
    /// the machine as well as about us.
    pub fn is_live(&self) -> bool {
        matches!(self.measure, Measure::Live(_))
    }

    /// Reproduces it; a live one on `machine`.
    pub fn run(&self, way: &Way<'_>, machine: &Machine) -> Result<FigureResult, ReproduceError> {
        let file = FigureFile::parse(self.name, self.text)?;
        let live::Measured { rows, notes, verdict } = match self.measure {
            Measure::Simulated(measure) => {
                live::Measured { rows: measure(&file, way)?, notes: Vec::new(), verdict: None }
            }
            Measure::Live(measure) => measure(&file, way.size, way.watch, machine.cores)?,
        };
        Ok(FigureResult {
            interrupted: rows.iter().any(|r| r.here.is_none()),
            name: self.name.into(),
            verdict: verdict.unwrap_or_else(|| figure::verdict(&rows)),
            expected: file.expected,
            title: file.title.clone(),
            paper: file.paper.clone(),
            rule: file.rule.clone(),
            costs: file.costs.name().into(),
            ours: file.ours.clone(),
            causes: file.causes.clone(),
            machine: self.is_live().then(|| machine.to_string()),
            notes,
            rows,
        })
    }
}

/// Runs one job on one target that is new, if nothing bad comes out; `None` when it was interrupted.
fn run_one(
    figure: &'static str,
    way: &Way<'_>,
    target: Target,
    job: Job,
) -> Result<Option<RunOutcome>, ReproduceError> {
    let (fill, overwrite) = (Fill::None, Overwrite::None);
    let experiment = Experiment {
        name: figure.into(),
        description: String::new(),
        targets: vec![target],
        workloads: vec![Workload::Job(job.into())],
        run: RunSpec { seed: SEED, fill, overwrite, allow_errors: false },
        vary: Vec::new(),
        remarks: Vec::new(),
    };
    let mut outcome = execute(&experiment, How::default(), &|t| (way.watch)(&t.name))?;
    if outcome.is_bad() {
        let allowed = outcome.experiment.run.allow_errors;
        let of = |run: &RunOutcome| run.bad_because(allowed);
        let what = outcome.runs.iter().flat_map(of).collect::<Vec<_>>().join("; ");
        return Err(ReproduceError::Bad { figure, what });
    }
    Ok(outcome.runs.pop().filter(|run| !run.measured.interrupted))
}

impl FigureResult {
    /// The verdict is the expected one. Not so of a figure that was interrupted.
    pub fn as_expected(&self) -> bool {
        self.verdict == self.expected || self.verdict == Verdict::NothingToScale
    }

    /// The table and the verdict.
    pub fn to_text(&self) -> String {
        let mut rows = vec![row(["what", "paper", "here", "unit", "rule", "verdict"])];
        for r in &self.rows {
            rows.push(vec![
                r.what.clone(),
                r.paper.map_or("-".into(), number),
                r.here.map_or("-".into(), number),
                r.unit.clone(),
                r.rule.to_string(),
                match r.holds {
                    None => "",
                    Some(true) => "ok",
                    Some(false) => "OFF",
                }
                .into(),
            ]);
        }
        let mut text = format!("{}: {} ({})\n\n", self.name, self.title, self.paper);
        text += &aligned(&rows);
        text += &format!("\nverdict: {} (rule: {})\n", self.verdict, self.rule);
        if self.interrupted {
            text += "INTERRUPTED: rows without a value were not measured\n";
        } else if !self.as_expected() {
            text += &format!("EXPECTED: {}\n", self.expected);
        }
        if self.costs != "zero" {
            text += &format!("CPU costs: {}\n", self.costs);
        }
        if let Some(machine) = &self.machine {
            text += &format!("measured on {machine}: another run gives other numbers\n");
        }
        for note in &self.notes {
            text += &format!("here: {note}\n");
        }
        for ours in &self.ours {
            text += &format!("ours: {ours}\n");
        }
        for cause in &self.causes {
            text += &format!("cause: {cause}\n");
        }
        text + "\n"
    }
}

/// Three or four digits.
fn number(x: f64) -> String {
    match x.abs() {
        0.0..10.0 => format!("{x:.2}"),
        10.0..100.0 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each figure's file is complete; running them is `make test`'s slower part.
    #[test]
    fn every_figure_has_a_good_file() {
        for figure in FIGURES {
            let file = FigureFile::parse(figure.name, figure.text);
            assert!(file.is_ok(), "{}: {}", figure.name, file.unwrap_err());
        }
        assert!(list().contains("lightnvm-table1"));
        let said = find("lightnvm-table2").map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("did you mean `lightnvm-table1`"), "{said}");
        assert_eq!(find("all").unwrap().len(), FIGURES.len());
    }
}
