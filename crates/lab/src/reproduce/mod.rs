//! Figures and tables of the papers, beside what comes out here.
//!
//! Owns: the list of figures ([`FIGURES`]), the shape of their files (paper's values, rule, what is
//! ours, the expected verdict), the verdict. Promises: a figure is a file in `experiments/` that
//! can be argued with; the verdict follows from its rules alone; a verdict that is not the expected
//! one is told apart. Never: bends a constant to fit.
//!
//! Start reading at [`FigureFile`]: most figures are a file alone, whose points are measured by [`grid`]; the
//! others name a mechanism, which is a module here.

mod bench;
mod draw;
mod fig4;
mod fig5;
mod fig8;
mod file;
mod grid;
mod live;
mod page;
mod points;
mod recordings;
mod rows;
mod table1;
mod way;

pub use file::{FigureFile, Plot};
pub use page::{Drawing, to_html};
pub use points::{Point, Points, Selector};
pub use rows::{Judged, Row, Rule, Verdict};
pub use way::{Known, Watcher, Way};

use crate::bounded;
use crate::calibrate::Machine;
use crate::execute::ExecuteError;
use crate::experiment::{ExperimentErrors, Vary};
use crate::stack::StackError;
use crate::words::{aligned, row};
use flashlane_ocssd::SpecError;
use flashlane_rt::Stalled;
use serde::Serialize;
use std::borrow::Cow;
use std::path::Path;

/// How large a reproduction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Seconds: everything of it is done, at the smallest size.
    Ci,
    /// Minutes at most.
    Small,
    /// The paper's own sizes.
    Full,
}

impl Size {
    /// Its name in a figure's file.
    pub fn name(self) -> &'static str {
        match self {
            Size::Ci => "ci",
            Size::Small => "small",
            Size::Full => "full",
        }
    }
}

/// Of every random stream.
const SEED: u64 = 1;

/// What a figure's points come of.
struct Measured {
    points: Points,
    /// What has to be known beside the numbers, of this run.
    notes: Vec<String>,
    /// The verdict, where it does not follow from the rows.
    verdict: Option<Verdict>,
}

impl Measured {
    fn of(points: Points) -> Measured {
        Measured { points, notes: Vec::new(), verdict: None }
    }
}

type Measure = fn(&FigureFile, &Way<'_>, &Machine) -> Result<Measured, ReproduceError>;

/// How points are measured that no experiment describes.
struct Mechanism {
    /// In a figure's file.
    name: &'static str,
    /// It is measured on the machine at hand.
    is_live: bool,
    measure: Measure,
}

const MECHANISMS: &[Mechanism] = &[
    simulated("lightnvm-table1", table1::measure),
    simulated("lightnvm-fig4", fig4::measure),
    simulated("lightnvm-fig5", fig5::measure),
    simulated("lightnvm-fig8", fig8::measure),
    live("overhead", live::overhead::measure),
    live("scaling", live::scaling::measure),
];

const fn simulated(name: &'static str, measure: Measure) -> Mechanism {
    Mechanism { name, is_live: false, measure }
}

const fn live(name: &'static str, measure: Measure) -> Mechanism {
    Mechanism { name, is_live: true, measure }
}

fn is_mechanism(name: &str) -> bool {
    MECHANISMS.iter().any(|mechanism| mechanism.name == name)
}

/// A figure that can be reproduced.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: Cow<'static, str>,
    text: Cow<'static, str>,
    /// Values on axes that its points have; all points without any.
    only: Vec<Vary>,
}

/// A figure that comes with the program.
macro_rules! figure {
    ($name:literal, $path:literal) => {
        Figure {
            name: Cow::Borrowed($name),
            text: Cow::Borrowed(include_str!(concat!("../../../../experiments/", $path))),
            only: Vec::new(),
        }
    };
}

pub const FIGURES: &[Figure] = &[
    figure!("lightnvm-table1", "lightnvm/table1.toml"),
    figure!("lightnvm-overhead", "lightnvm/overhead.toml"),
    figure!("lightnvm-fig4", "lightnvm/fig4.toml"),
    figure!("lightnvm-fig5", "lightnvm/fig5.toml"),
    figure!("lightnvm-fig8", "lightnvm/fig8.toml"),
    figure!("qblk-fig6", "qblk/fig6.toml"),
    figure!("qblk-fig7", "qblk/fig7.toml"),
    figure!("qblk-fig7-sensitivity", "qblk/sensitivity.toml"),
    figure!("qblk-ablation", "qblk/ablation.toml"),
    figure!("qblk-scaling", "qblk/scaling.toml"),
    figure!("slc-table1", "slc/table1.toml"),
    figure!("slc-fig1", "slc/fig1.toml"),
    figure!("slc-fig2", "slc/fig2.toml"),
    figure!("slc-fig5", "slc/fig5.toml"),
    figure!("slc-fig6", "slc/fig6.toml"),
    figure!("slc-fig7", "slc/fig7.toml"),
    figure!("slc-fig8", "slc/fig8.toml"),
    figure!("slc-fig9", "slc/fig9.toml"),
    figure!("slc-fig10", "slc/fig10.toml"),
    figure!("slc-fig11", "slc/fig11.toml"),
    figure!("idiscard-fig2", "idiscard/fig2.toml"),
    figure!("idiscard-fig5", "idiscard/fig5.toml"),
    figure!("idiscard-table2", "idiscard/table2.toml"),
    figure!("idiscard-fig6", "idiscard/fig6.toml"),
    figure!("parafs-fig2", "parafs/fig2.toml"),
    figure!("parafs-table1", "parafs/table1.toml"),
    figure!("parafs-fig5", "parafs/fig5.toml"),
    figure!("parafs-fig6", "parafs/fig6.toml"),
    figure!("parafs-fig7", "parafs/fig7.toml"),
    figure!("parafs-fig8", "parafs/fig8.toml"),
    figure!("parafs-techniques", "parafs/techniques.toml"),
    figure!("all-on-one", "all-on-one.toml"),
    figure!("all-on-one-files", "all-on-one-files.toml"),
];

/// Why a figure could not be reproduced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReproduceError {
    #[error(
        "no figure `{name}`{hint} (there are: {known}; all of a paper: {papers}; all; a file of your \
         own ends in .toml)"
    )]
    Unknown {
        name: String,
        /// `; did you mean ...`, or nothing.
        hint: String,
        known: String,
        papers: String,
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
    #[error("cannot read {path}: {error}")]
    Unread { path: String, error: std::io::Error },
    #[error("{figure}: {what}")]
    Part { figure: String, what: String },
    /// Rows of a figure's file that fit none of its points.
    #[error("{figure}: {what}")]
    Row { figure: String, what: String },
    /// Something that must not happen in a figure: broken rules, wrong data, failed commands.
    #[error("{figure}: {what}")]
    Bad { figure: String, what: String },
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
    /// `ci`, `small` or `full`.
    pub size: &'static str,
    /// Values on axes, where no other points were measured: then the verdict is not the figure's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub part: Vec<String>,
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
    /// What was measured.
    #[serde(skip)]
    pub points: Points,
    /// What is drawn of it.
    #[serde(skip)]
    pub plots: Vec<Plot>,
}

/// Names and titles.
pub fn list() -> String {
    let mut rows = Vec::new();
    for figure in FIGURES {
        let title = match figure.file(Size::Small) {
            Ok(file) if file.is_live() => format!("{} ({}); live", file.title, file.paper),
            Ok(file) => format!("{} ({})", file.title, file.paper),
            Err(e) => e.to_string(),
        };
        rows.push(vec![figure.name.to_string(), title]);
    }
    // Titles read from the left: one column is enough.
    let width = rows.iter().map(|r| r[0].len()).max().unwrap_or(0);
    rows.iter().map(|r| format!("{:width$}  {}\n", r[0], r[1])).collect()
}

/// Papers with figures: the first word of the figures' names.
const PAPERS: [&str; 5] = ["lightnvm", "qblk", "slc", "idiscard", "parafs"];

/// The figure of a name, those of a paper, all of them, or one in a file of the user's own.
///
/// # Errors
/// There is none of that name, or the file can't be read.
pub fn find(name: &str) -> Result<Vec<Figure>, ReproduceError> {
    if name == "all" {
        return Ok(FIGURES.to_vec());
    }
    if PAPERS.contains(&name) {
        let of_it = |f: &&Figure| f.name.split_once('-').is_some_and(|(paper, _)| paper == name);
        return Ok(FIGURES.iter().filter(of_it).cloned().collect());
    }
    if name.ends_with(".toml") {
        let unread = |error| ReproduceError::Unread { path: name.into(), error };
        let text = bounded::text(Path::new(name), bounded::TEXT_MAX).map_err(unread)?;
        return Ok(vec![Figure {
            name: Cow::Owned(name.into()),
            text: Cow::Owned(text),
            only: vec![],
        }]);
    }
    let found = FIGURES.iter().find(|f| f.name == name);
    found.map(|f| vec![f.clone()]).ok_or_else(|| {
        let names: Vec<&str> = FIGURES.iter().map(|f| &*f.name).collect();
        ReproduceError::Unknown {
            name: name.into(),
            hint: crate::suggest::hint(name, names.iter().copied().chain(PAPERS)),
            known: names.join(", "),
            papers: PAPERS.join(", "),
        }
    })
}

/// One object, or a list where several were asked for.
pub fn to_json(results: &[FigureResult], several: bool) -> String {
    let text = match (several, results) {
        (false, [one]) => serde_json::to_string_pretty(one),
        _ => serde_json::to_string_pretty(results),
    };
    text.expect("plain data") + "\n"
}

impl Figure {
    /// The part of it that has these values on its axes.
    pub fn part(self, only: Vec<Vary>) -> Figure {
        Figure { only, ..self }
    }

    /// What its file says for a size.
    ///
    /// # Errors
    /// The file is wrong, or there is no such part.
    pub fn file(&self, size: Size) -> Result<FigureFile, ReproduceError> {
        let mut file = FigureFile::parse(&self.name, &self.text, size)?;
        if !self.only.is_empty() {
            let bad = |what| ReproduceError::Part { figure: self.name.to_string(), what };
            file.take_part(&self.only).map_err(bad)?;
        }
        Ok(file)
    }

    /// Reproduces it; a live one on `machine`.
    ///
    /// # Errors
    /// The file is wrong, or something happened that must not.
    pub fn run(
        &self,
        size: Size,
        way: &Way<'_>,
        machine: &Machine,
    ) -> Result<FigureResult, ReproduceError> {
        let file = self.file(size)?;
        let Measured { mut points, mut notes, verdict } = match file.of_mechanism() {
            Some(mechanism) => (mechanism.measure)(&file, way, machine)?,
            None => Measured::of(Points::default()),
        };
        recordings::measure(&file, way, &mut points)?;
        grid::measure(&file, way, &mut points)?;
        let rows = file.rows_of(&points)?;
        if size == Size::Ci && file.has_own_size() {
            let is = "`--ci` takes the smallest devices on which all of it is done";
            let ours = "what is said to be ours is of the small size, which runs without `--ci`";
            notes.push(format!("{is}: {ours}"));
        }
        let part = file.part();
        let is_part = !part.is_empty();
        Ok(FigureResult {
            interrupted: points.lack_some(),
            name: self.name.to_string(),
            verdict: match is_part {
                true => Verdict::Inconclusive,
                false => verdict.unwrap_or_else(|| rows::verdict(&rows)),
            },
            expected: file.expected(),
            size: size.name(),
            part,
            title: file.title.clone(),
            paper: file.paper.clone(),
            costs: file.costs_name(),
            ours: file.ours.clone(),
            // They are of the whole figure.
            causes: if is_part { Vec::new() } else { file.causes().to_vec() },
            machine: file.is_live().then(|| machine.to_string()),
            notes,
            rows,
            points,
            plots: file.plots,
        })
    }
}

impl FigureFile {
    /// Its rows, of what was measured.
    fn rows_of(&self, points: &Points) -> Result<Vec<Row>, ReproduceError> {
        let mut rows = Vec::new();
        let bad = |what| ReproduceError::Row { figure: self.name().into(), what };
        // A part has not all that is drawn, nor all that rows are about.
        let is_part = !self.part().is_empty();
        for plot in self.plots.iter().filter(|_| !is_part) {
            for (of, _) in &plot.lines {
                points.have(of).map_err(bad)?;
                points.lie_on(&plot.x, of).map_err(bad)?;
            }
        }
        let left_out = self.left_out();
        for spec in &self.rows {
            let chosen = spec.here.selectors().into_iter();
            let (gone, there): (Vec<_>, Vec<_>) =
                chosen.partition(|of| left_out.contains(&of.series));
            if !gone.is_empty() {
                // What this size has is looked at all the same.
                let looked = there.into_iter().try_for_each(|of| points.have(of).map(drop));
                looked.or_else(|why| if is_part { Ok(()) } else { Err(bad(why)) })?;
                continue;
            }
            match spec.rows(points, self.leaves_out()) {
                Ok(mut of_it) => rows.append(&mut of_it),
                Err(_) if is_part => {}
                Err(why) => return Err(bad(why)),
            }
        }
        Ok(rows)
    }

    fn of_mechanism(&self) -> Option<&'static Mechanism> {
        MECHANISMS.iter().find(|m| Some(m.name) == self.mechanism.as_deref())
    }

    /// It is measured on the machine at hand: no two runs give the same numbers, and its verdict is about
    /// the machine as well as about us.
    pub fn is_live(&self) -> bool {
        self.of_mechanism().is_some_and(|mechanism| mechanism.is_live)
    }
}

impl FigureResult {
    /// The verdict is the expected one, or this machine, these seeds or a part of the figure can't show it. Not so of a figure
    /// that was interrupted.
    pub fn as_expected(&self) -> bool {
        let open = self.rows.iter().any(|r| r.judged == Judged::Open);
        let cannot = self.verdict == Verdict::Inconclusive && (self.machine.is_some() || open);
        self.verdict == self.expected || cannot || !self.part.is_empty()
    }

    /// It was measured on this machine.
    pub fn is_live(&self) -> bool {
        self.machine.is_some()
    }

    /// How many rules hold.
    pub fn count(&self) -> String {
        let rules = || self.rows.iter().filter(|r| r.rule != Rule::None && !r.input);
        let of = |order: bool| {
            let all = rules().filter(|r| r.order == order).count();
            let hold = rules().filter(|r| r.order == order && r.judged == Judged::Holds).count();
            format!("{hold} of {all}")
        };
        if rules().next().is_none() {
            return "no row has a rule: nothing is judged".into();
        }
        let open = match rules().filter(|r| r.judged == Judged::Open).count() {
            0 => String::new(),
            n => format!("; {n} open"),
        };
        format!("{} sizes hold, {} orders and directions{open}", of(false), of(true))
    }

    /// The verdict, in words; none where nothing is judged, or not all was measured.
    pub(super) fn said(&self) -> String {
        let judged = self.rows.iter().any(|r| r.rule != Rule::None && !r.input);
        match judged && self.part.is_empty() {
            true => self.verdict.to_string(),
            false => "none".into(),
        }
    }

    /// The part that was measured, behind the size; nothing where it is all.
    pub(super) fn only(&self) -> String {
        let part = self.part.join(" ");
        if part.is_empty() { part } else { format!(", only {part}") }
    }

    /// The table and the verdict.
    pub fn to_text(&self) -> String {
        let mut rows = vec![row(["what", "paper", "here", "unit", "rule", "verdict"])];
        // Of one that was interrupted only what was measured.
        for r in self.rows.iter().filter(|r| r.here.is_some() || !self.interrupted) {
            rows.push(vec![
                r.what.clone(),
                r.paper.map_or("-".into(), number),
                r.shown(),
                r.unit.clone(),
                r.rule.to_string(),
                r.word().into(),
            ]);
        }
        let (name, title, paper, size) = (&self.name, &self.title, &self.paper, self.size);
        let mut text = format!("{name}: {title} ({paper}), {size} size{}\n\n", self.only());
        text += &aligned(&rows);
        text += &format!("\nverdict: {} ({})\n", self.said(), self.count());
        if self.interrupted {
            let lacking = self.rows.iter().filter(|r| r.here.is_none()).count();
            text += &format!("INTERRUPTED: {lacking} more rows were not measured\n");
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
        for cause in self.causes.iter().filter(|_| !self.interrupted) {
            text += &format!("cause: {cause}\n");
        }
        text + "\n"
    }
}

impl Row {
    /// What its rule says, in a word.
    fn word(&self) -> &'static str {
        match self.judged {
            _ if self.input => "input",
            Judged::Nothing => "",
            Judged::Holds => "ok",
            Judged::Off => "OFF",
            Judged::Open => "open",
        }
    }

    /// Its value, with its interval.
    fn shown(&self) -> String {
        let Some(here) = self.here else { return "-".into() };
        let interval = self.plus_minus.map_or(String::new(), |half| format!(" ±{}", number(half)));
        number(here) + &interval
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
mod tests;
