//! A figure's file: what is measured, the paper's values, the rules, what is drawn, what is ours.
//!
//! Owns: the keys of all figures. Promises: everything wrong with a file is said at once, each with its place; an
//! experiment that no point of a grid can be run of is a complaint before anything runs. Never: measures.
//!
//! ```toml
//! title = "Bandwidth of random writes"
//! paper = "QBLK, Figure 7"
//! expected = "reproduced"          # a verdict; another one fails
//! mechanism = "lightnvm-fig4"      # how points are measured that [[grid]] can't
//! [experiment]                     # what `flashlane run` takes; or experiment = "slc-fig6": that figure's
//! # ...
//! [[grid]]                         # points: each target of the experiment at each place on the axes
//! axes = [{ name = "threads", key = "workload.0.numjobs", values = [1, 2, 4] }]
//! set = ["run.costs=zero"]         # changes for all of them; "{threads}" is the value of an axis, which needs no
//!                                  # `key` then
//! set_ci = ["workload.0.ops=9"]    # more of them at this size; set_small, set_full
//! targets = ["qblk"]               # of these alone
//! series = "{target}_free"         # what its points are called; else as the target
//! every = "500ms"                  # a point for each such span of the run, on the axis `seconds`
//! chunks = true                    # a point for each chunk with valid sectors at the end, on the axis `chunk`
//! percentiles = true               # a point for each 5 percent and 99, on the axis `percent`: a journal's latencies
//! [[recording]]                    # points: what `flashlane trace info` says of a trace, in the series "recording"
//! axes = [{ name = "mode", values = ["ordered", "data"] }]
//! trace = "bundled:fio-2-{mode}"   # or a file
//! warm_up = "bundled:fio-2-{mode}.warm"     # what came before it
//! truth = "bundled:fio-2-{mode}.truth"      # where the journals are
//! application = "bundled:oltp-{mode}.json"  # what wrote it: { "reads": { "count": 1 }, "writes": { "count": 1 } }
//! [size.full]                      # and [size.ci]: what other sizes change
//! set = ["workload.0.runtime=30s"]
//! causes = ["..."]                 # where what differs comes from at this size; else what the file says,
//!                                  # at the smallest size nothing
//! [[plot]]
//! title = "Bandwidth"
//! x = "threads"
//! y = "write_mib_per_s"
//! y_title = "MiB/s"
//! lines = ["pblk", "qblk"]
//! [[row]]
//! what = "pblk, {threads} threads"
//! each = ["threads"]               # a row for each value of the axis
//! over = "seed"                    # the mean of its value for each of this axis, with a 95% interval
//! here = "pblk write_mib_per_s"    # points: SERIES METRIC AXIS=VALUE,VALUE
//! unit = "MiB/s"
//! paper = { 1 = 335, 8 = 935 }     # to be met within 15%
//! [[row]]
//! what = "QBLK over pblk, 32 threads"
//! here = { ratio = ["qblk write_mib_per_s threads=32", "pblk write_mib_per_s threads=32"] }
//! paper = 1.974
//! at_least = 1.7                   # or at_most, between, within_percent
//! because = "..."                  # why not within 15%; `not_judged = "..."` is no rule, and why
//! input = true                     # what is measured was fitted to it, so it decides nothing
//! order = true                     # it is about an order, not about a size
//! ```

use super::Size;
use super::points::Selector;
use super::rows::{Here, RowSpec, Rule, Verdict};
use crate::experiment::document::{At, Document, Section};
use crate::experiment::{
    Base, Change, Complaint, DeviceChoice, Experiment, ExperimentErrors, Value, Vary, read_costs,
};
use crate::trace::TraceSource;
use crate::trace::truth::Truth;
use flashlane_base::Ns;
use flashlane_rt::CostTable;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Points of an experiment.
#[derive(Clone, Debug)]
pub struct Grid {
    /// The last one varies fastest.
    pub(super) axes: Vec<Axis>,
    set: Vec<Change>,
    /// And those of a size, by its name.
    set_of: BTreeMap<&'static str, Vec<Change>>,
    targets: Vec<String>,
    /// `{target}` stands for the target's name.
    series: String,
    pub(super) course: Course,
}

/// What one run of a grid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// A point.
    Whole,
    /// A point for each such span of time.
    Every(Ns),
    /// A point for each 5 percent, and 99, of a journal's latencies.
    Percentiles,
    /// A point for each chunk that holds valid sectors at the end.
    Chunks,
}

/// Points of recorded traces.
#[derive(Clone, Debug)]
pub(super) struct Recordings {
    pub(super) axes: Vec<Axis>,
    trace: String,
    warm_up: Option<String>,
    truth: Option<String>,
    application: Option<String>,
    at: At,
}

/// A recorded trace, and where on the axes it is.
pub(super) struct Recording {
    pub(super) at: Vec<(String, String)>,
    pub(super) trace: TraceSource,
    pub(super) warm_up: Option<TraceSource>,
    pub(super) truth: Option<Truth>,
    /// Reads and writes of the application, by count.
    pub(super) application: Option<[f64; 2]>,
}

impl Grid {
    pub(super) fn takes(&self, target: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|name| name == target)
    }

    pub(super) fn series_of(&self, target: &str) -> String {
        self.series.replace("{target}", target)
    }
}

/// What a grid varies.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// In the figure.
    pub(super) name: String,
    /// Of the experiment.
    pub(super) vary: Vary,
    /// Where the file says so.
    at: At,
}

/// Curves of a figure, as the paper draws them.
#[derive(Clone, Debug)]
pub struct Plot {
    pub(super) title: String,
    pub(super) x: String,
    pub(super) x_title: String,
    pub(super) y: String,
    pub(super) y_title: String,
    /// (series with places on other axes, name in the plot).
    pub(super) lines: Vec<(Selector, String)>,
    pub(super) log: bool,
}

/// What a size changes.
#[derive(Clone, Debug, Default)]
struct SizeChanges {
    set: Vec<Change>,
    /// Parameters with other values.
    parameters: Vec<(String, u64)>,
    /// Values of axes that are measured, where not all are.
    values: Vec<(String, Vec<String>)>,
    expected: Option<Verdict>,
    /// In place of those of the whole file, where there are any.
    causes: Vec<String>,
}

/// A figure's file.
#[derive(Debug)]
pub struct FigureFile {
    pub title: String,
    pub paper: String,
    expected: Verdict,
    pub ours: Vec<String>,
    /// Where a difference from the paper comes from, with the rows that show it.
    causes: Vec<String>,
    pub mechanism: Option<String>,
    devices: Vec<(String, DeviceChoice)>,
    /// What the host's CPU work costs, of a mechanism; nothing without `costs`.
    pub(super) costs: CostTable,
    pub(super) parameters: Vec<(String, u64)>,
    pub grids: Vec<Grid>,
    pub(super) recordings: Vec<Recordings>,
    sizes: BTreeMap<&'static str, SizeChanges>,
    pub plots: Vec<Plot>,
    pub rows: Vec<RowSpec>,
    /// Where it is, and what it says.
    source: (String, String),
    /// That of the figure that has its experiment.
    experiment: (String, String),
    base: Base,
    size: Size,
    /// What a user wants of it: only points that are there on these axes.
    only: Vec<Vary>,
}

const VERDICTS: [(&str, Verdict); 4] = [
    ("reproduced", Verdict::Reproduced),
    ("shape only", Verdict::ShapeOnly),
    ("differs", Verdict::Differs),
    ("inconclusive", Verdict::Inconclusive),
];

impl FigureFile {
    /// Reads a figure for a size; files that it names are looked for where `file` is.
    pub fn parse(file: &str, text: &str, size: Size) -> Result<FigureFile, ExperimentErrors> {
        let one = |c: Complaint| ExperimentErrors(vec![c]);
        let document = Document::parse(file, text, &[]).map_err(one)?;
        let base = Base::of(Path::new(file));
        let root = document.root();
        if (root.has("target") || root.has("workload")) && !root.has("row") {
            let says = "this is an experiment, which `flashlane run` takes; a figure has it below \
                        [experiment], and [[grid]] and [[row]]";
            root.complain("target", says);
            return Err(ExperimentErrors(document.complaints()));
        }
        let words = |key: &str| root.text(key).unwrap_or("").to_string();
        let sizes = sizes(&root);
        let figure = FigureFile {
            title: words("title"),
            paper: words("paper"),
            expected: root.word("expected", &VERDICTS).unwrap_or(Verdict::Differs),
            ours: root.texts("ours"),
            causes: root.texts("causes"),
            mechanism: root.text("mechanism").map(str::to_string),
            devices: devices(&root, &document, &base),
            costs: costs(&root, &base),
            parameters: parameters(&root),
            grids: root.tables("grid").into_iter().map(grid).collect(),
            recordings: root.tables("recording").into_iter().map(recordings).collect(),
            sizes,
            plots: root.tables("plot").into_iter().filter_map(plot).collect(),
            rows: root.tables("row").into_iter().filter_map(row).collect(),
            experiment: experiment_of(&root).unwrap_or_else(|| (file.into(), text.into())),
            source: (file.into(), text.into()),
            base,
            size,
            only: Vec::new(),
        };
        let experiment = root.item("experiment");
        if figure.rows.is_empty() {
            root.complain("row", "a figure needs rows");
        }
        let measures = figure.mechanism.is_some() || !figure.recordings.is_empty();
        match (&figure.mechanism, figure.grids.is_empty(), experiment) {
            (Some(name), ..) if !super::is_mechanism(name) => {
                root.complain("mechanism", format!("no mechanism is called `{name}`"));
            }
            (_, true, None) if measures => {}
            (_, false, Some(_)) => {}
            _ => root.complain(
                "grid",
                "a figure has an [experiment] and [[grid]], [[recording]], a `mechanism`, or several of them",
            ),
        }
        let all = figure.grids.iter().map(|grid| &grid.axes);
        let all = all.chain(figure.recordings.iter().map(|of| &of.axes));
        let all: Vec<Axis> = all.flat_map(|axes| figure.axes(axes)).collect();
        // A grid may have none of them, if another one has some.
        let has_some = |name: &str| all.iter().any(|a| a.name == name && !a.vary.values.is_empty());
        let names: BTreeSet<&str> = all.iter().map(|axis| axis.name.as_str()).collect();
        for name in names.into_iter().filter(|name| !has_some(name)) {
            let size = size.name();
            let says = format!(
                "[size.{size}] takes no value of the axis `{name}`: `values` names some as the axis does"
            );
            root.complain("size", says);
        }
        let of_grids = figure.grids.iter().flat_map(|grid| &grid.axes);
        let of_recordings = figure.recordings.iter().flat_map(|of| &of.axes);
        let known: Vec<&str> = of_grids.chain(of_recordings).map(|a| a.name.as_str()).collect();
        for (name, _) in figure.of_size().map_or(&[][..], |size| &size.values) {
            if figure.mechanism.is_none() && !known.contains(&name.as_str()) {
                let hint = crate::suggest::hint(name, known.iter().copied());
                root.complain("size", format!("there is no axis `{name}` to take values of{hint}"));
            }
        }
        root.finish();
        let complaints = document.complaints();
        if !complaints.is_empty() {
            return Err(ExperimentErrors(complaints));
        }
        for grid in figure.grids.iter().filter(|grid| figure.points(grid) > 0) {
            figure.experiment(grid, 0)?;
        }
        for recordings in &figure.recordings {
            figure.recordings_of(recordings)?;
        }
        Ok(figure)
    }

    /// Leaves the part of it that has these values on these axes.
    ///
    /// # Errors
    /// It has no such axis, or not all of the values, or no point that has them all.
    pub(super) fn take_part(&mut self, only: &[Vary]) -> Result<(), String> {
        let axes = || {
            let of_grids = self.grids.iter().flat_map(|grid| self.axes(&grid.axes));
            of_grids.chain(self.recordings.iter().flat_map(|of| self.axes(&of.axes)))
        };
        for Vary { key, values } in only {
            let of_it: Vec<Axis> = axes().filter(|axis| axis.name == *key).collect();
            if of_it.is_empty() {
                let all: BTreeSet<String> = axes().map(|axis| axis.name).collect();
                let hint = crate::suggest::hint(key, all.iter().map(String::as_str));
                let all: Vec<String> = all.into_iter().collect();
                return Err(match all.is_empty() {
                    true => "it has no axes that a part could be taken of".into(),
                    false => {
                        format!("it has no axis `{key}`{hint} (there are: {})", all.join(", "))
                    }
                });
            }
            let mut known: Vec<&str> = Vec::new();
            for value in of_it.iter().flat_map(|axis| &axis.vary.values).map(|v| plain(v)) {
                if !known.contains(&value) {
                    known.push(value);
                }
            }
            if let Some(value) = values.iter().map(|v| plain(v)).find(|v| !known.contains(v)) {
                let (size, known) = (self.size.name(), known.join(", "));
                return Err(format!(
                    "`{key}` is nowhere {value} at the {size} size: there are {known}"
                ));
            }
        }
        self.only = only.to_vec();
        let points = self.grids.iter().map(|grid| &grid.axes);
        let points = points.chain(self.recordings.iter().map(|of| &of.axes));
        match points.map(|axes| self.points_on(axes)).sum() {
            0 => Err("no point has all of these values".into()),
            1.. => Ok(()),
        }
    }

    /// The part of it that is measured, in words; nothing where it is all.
    pub(super) fn part(&self) -> Vec<String> {
        let said = |vary: &Vary| {
            let values: Vec<&str> = vary.values.iter().map(|v| plain(v)).collect();
            format!("{}={}", vary.key, values.join(","))
        };
        self.only.iter().map(said).collect()
    }

    /// Name of the table of CPU costs; `zero` is a host whose work costs nothing.
    pub(super) fn costs_name(&self) -> String {
        let first = self.grids.iter().find(|grid| self.points(grid) > 0);
        let of_grid = first.and_then(|grid| {
            let experiment = self.experiment(grid, 0).ok()?;
            Some(experiment.targets.first()?.host.costs.name().to_string())
        });
        of_grid.unwrap_or_else(|| self.costs.name().to_string())
    }

    /// Where it was read from.
    pub(super) fn name(&self) -> &str {
        &self.source.0
    }

    /// This size measures only some values of an axis.
    pub(super) fn leaves_out(&self) -> bool {
        let by_size = self.of_size().is_some_and(|size| !size.values.is_empty());
        by_size || !self.only.is_empty()
    }

    /// Series of which this size measures nothing, and another one does.
    pub(super) fn left_out(&self) -> BTreeSet<String> {
        let measured = self.grids.iter().find(|grid| self.points(grid) > 0);
        let targets = measured.and_then(|grid| self.experiment(grid, 0).ok());
        let targets = targets.map_or_else(Vec::new, |experiment| experiment.targets);
        let of = |grid: &Grid| -> Vec<String> {
            let taken = targets.iter().filter(|target| grid.takes(&target.name));
            taken.map(|target| grid.series_of(&target.name)).collect()
        };
        let (some, none): (Vec<_>, Vec<_>) =
            self.grids.iter().partition(|grid| self.points(grid) > 0);
        let mut left_out: BTreeSet<String> = none.into_iter().flat_map(of).collect();
        for series in some.into_iter().flat_map(of) {
            left_out.remove(&series);
        }
        left_out
    }

    fn of_size(&self) -> Option<&SizeChanges> {
        self.sizes.get(self.size.name())
    }

    /// This size differs from the small one.
    pub(super) fn has_own_size(&self) -> bool {
        self.of_size().is_some()
    }

    /// The verdict that is expected; a change of it fails.
    pub fn expected(&self) -> Verdict {
        self.of_size().and_then(|size| size.expected).unwrap_or(self.expected)
    }

    /// Where a difference from the paper comes from at this size. The smallest one has causes of its own.
    pub(super) fn causes(&self) -> &[String] {
        match self.of_size() {
            Some(size) if self.size == Size::Ci || !size.causes.is_empty() => &size.causes,
            _ => &self.causes,
        }
    }

    /// The device called so. Asserts that there is one: files with a mechanism are compiled in.
    pub(super) fn device(&self, name: &str) -> &DeviceChoice {
        let found = self.devices.iter().find(|(n, _)| n == name);
        &found.unwrap_or_else(|| panic!("the figure's file has no [device.{name}]")).1
    }

    /// The parameter called so, as its size has it. Asserts that there is one.
    pub(super) fn parameter(&self, name: &str) -> u64 {
        let of_size = self.of_size().map_or(&[][..], |size| &size.parameters);
        let found = of_size.iter().chain(&self.parameters).find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("the figure's file has no parameter `{name}`")).1
    }

    /// Values of an axis of a mechanism that this size measures: all, unless it names some.
    pub(super) fn values<T: Copy + ToString>(&self, axis: &str, all: &[T]) -> Vec<T> {
        let some = self.some_of(axis);
        let is_taken = |value: &&T| some.is_none_or(|some| some.contains(&value.to_string()));
        all.iter().filter(is_taken).copied().collect()
    }

    fn some_of(&self, axis: &str) -> Option<&Vec<String>> {
        let values = &self.of_size()?.values;
        values.iter().find(|(name, _)| name == axis).map(|(_, values)| values)
    }

    /// Axes with the values that this size measures.
    pub(super) fn axes(&self, axes: &[Axis]) -> Vec<Axis> {
        let mut axes = axes.to_vec();
        for axis in &mut axes {
            if let Some(some) = self.some_of(&axis.name) {
                axis.vary.values.retain(|value| some.contains(value));
            }
            if let Some(only) = self.only.iter().find(|only| only.key == axis.name) {
                let is_wanted =
                    |value: &String| only.values.iter().any(|v| plain(v) == plain(value));
                axis.vary.values.retain(is_wanted);
            }
        }
        axes
    }

    /// Where a point is, of this size: axis, value; the last axis varies fastest.
    fn at(&self, axes: &[Axis], mut point: usize) -> Vec<(Axis, String)> {
        let mut at = Vec::new();
        for axis in self.axes(axes).into_iter().rev() {
            let n = axis.vary.values.len().max(1);
            let value = axis.vary.values.get(point % n).cloned().unwrap_or_default();
            at.push((axis, value));
            point /= n;
        }
        at.reverse();
        at
    }

    /// Values of axes at a point.
    pub(super) fn place(&self, axes: &[Axis], point: usize) -> Vec<(String, String)> {
        let at = self.at(axes, point).into_iter();
        at.map(|(axis, value)| (axis.name, plain(&value).to_string())).collect()
    }

    /// How many points a grid has at this size.
    pub(super) fn points(&self, grid: &Grid) -> usize {
        self.points_on(&grid.axes)
    }

    /// How many points lie on these axes at this size: none if a part is wanted of an axis that is not
    /// among them.
    fn points_on(&self, axes: &[Axis]) -> usize {
        let axes = self.axes(axes);
        match self.only.iter().all(|only| axes.iter().any(|axis| axis.name == only.key)) {
            true => axes.iter().map(|axis| axis.vary.values.len()).product(),
            false => 0,
        }
    }

    /// What is run at a point of a grid, of this size.
    pub(super) fn experiment(
        &self,
        grid: &Grid,
        point: usize,
    ) -> Result<Experiment, ExperimentErrors> {
        // A place in this file is none in another.
        let here = |at: At| if self.experiment.0 == self.source.0 { at } else { At::Whole };
        let place = self.place(&grid.axes, point);
        let keyed = self.at(&grid.axes, point).into_iter();
        let of_axes = keyed.filter(|(axis, _)| !axis.vary.key.is_empty()).map(|(axis, value)| {
            Change::Written(format!("{}={value}", axis.vary.key), here(axis.at))
        });
        let of_size = self.of_size().map_or(&[][..], |size| &size.set);
        let of_grid =
            grid.set.iter().chain(grid.set_of.get(self.size.name()).into_iter().flatten());
        let placed = of_size.iter().chain(of_grid).map(|change| match change {
            Change::Written(set, at) => Change::Written(with_place(set, &place), here(*at)),
            other => other.clone(),
        });
        let changes: Vec<Change> = placed.chain(of_axes).collect();
        let (file, text) = &self.experiment;
        let document = Document::parse(file, text, &[]);
        let document = document.and_then(|whole| whole.below("experiment", &changes));
        Experiment::read(document, &self.base)
    }
}

impl FigureFile {
    /// The recorded traces of this size.
    pub(super) fn recordings_of(
        &self,
        of: &Recordings,
    ) -> Result<Vec<Recording>, ExperimentErrors> {
        let points = self.points_on(&of.axes);
        let one = |point| -> Result<Recording, String> {
            let at = self.place(&of.axes, point);
            let named = |text: &Option<String>| text.as_ref().map(|text| with_place(text, &at));
            let trace = self.base.trace(&with_place(&of.trace, &at))?;
            let warm_up = named(&of.warm_up).map(|name| self.base.trace(&name)).transpose()?;
            let truth = named(&of.truth).map(|name| self.base.truth(&name)).transpose()?;
            let application = named(&of.application).map(|name| self.base.text(&name));
            let application = application.transpose()?.map(|text| calls(&text)).transpose()?;
            Ok(Recording { at, trace, warm_up, truth, application })
        };
        (0..points).map(one).collect::<Result<_, _>>().map_err(|why| {
            let (file, text) = &self.source;
            let complaints = Document::parse(file, text, &[]).map(|document| {
                document.complain(of.at, why);
                document.complaints()
            });
            ExperimentErrors(complaints.unwrap_or_else(|c| vec![c]))
        })
    }
}

/// A value as one reads it: texts have quotes in a file.
fn plain(value: &str) -> &str {
    value.trim_matches('"')
}

/// The figure that has the experiment, where it is another one.
fn experiment_of(root: &Section<'_>) -> Option<(String, String)> {
    let Value::Text(name) = &root.item("experiment")?.value else { return None };
    match super::FIGURES.iter().find(|figure| figure.name == *name) {
        Some(figure) if !figure.text.contains("\n[experiment]") => {
            root.complain("experiment", format!("`{name}` has no [experiment] of its own"));
            None
        }
        Some(figure) => Some((figure.name.to_string(), figure.text.to_string())),
        None => {
            let hint = crate::suggest::hint(name, super::FIGURES.iter().map(|f| &*f.name));
            root.complain("experiment", format!("no figure is called `{name}`{hint}"));
            None
        }
    }
}

/// Reads and writes of an application, from the JSON beside a recording.
fn calls(text: &str) -> Result<[f64; 2], String> {
    let json: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let count = |kind: &str| json[kind]["count"].as_f64().ok_or(format!("no `{kind}.count` in it"));
    Ok([count("reads")?, count("writes")?])
}

/// A text in which `{axis}` stands for a value.
fn with_place(text: &str, place: &[(String, String)]) -> String {
    place
        .iter()
        .fold(text.to_string(), |text, (axis, value)| text.replace(&format!("{{{axis}}}"), value))
}

fn devices(root: &Section<'_>, document: &Document, base: &Base) -> Vec<(String, DeviceChoice)> {
    let Some(table) = root.table("device") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for name in table.keys() {
        if let Some(section) = table.table(name) {
            let choice = crate::experiment::read_device(&section, document, base);
            found.extend(choice.map(|c| (name.to_string(), c)));
            section.finish();
        }
    }
    table.finish();
    found
}

fn costs(root: &Section<'_>, base: &Base) -> CostTable {
    let table = read_costs(root.text("costs").unwrap_or("zero"), base);
    table.unwrap_or_else(|why| {
        root.complain("costs", why);
        CostTable::zero()
    })
}

fn parameters(of: &Section<'_>) -> Vec<(String, u64)> {
    let Some(table) = of.table("parameters") else {
        return Vec::new();
    };
    let found = table
        .keys()
        .filter_map(|key| Some((key.to_string(), table.number(key, 0, u32::MAX as u64)?)))
        .collect();
    table.finish();
    found
}

fn sizes(root: &Section<'_>) -> BTreeMap<&'static str, SizeChanges> {
    let Some(table) = root.table("size") else {
        return BTreeMap::new();
    };
    let mut found = BTreeMap::new();
    for size in [Size::Ci, Size::Small, Size::Full] {
        let Some(s) = table.table(size.name()) else { continue };
        let mut values = Vec::new();
        if let Some(axes) = s.table("values") {
            values.extend(axes.keys().map(|axis| (axis.to_string(), axes.scalars(axis))));
            axes.finish();
        }
        let (set, parameters) = (s.changes("set"), parameters(&s));
        let expected = s.word("expected", &VERDICTS);
        let causes = s.texts("causes");
        found.insert(size.name(), SizeChanges { set, parameters, values, expected, causes });
        s.finish();
    }
    table.finish();
    found
}

/// Axes; where `named` says so an axis may do without a key.
fn axes(s: &Section<'_>, named: impl Fn(&str) -> bool) -> Vec<Axis> {
    let mut axes = Vec::new();
    for axis in s.tables("axes") {
        let (name, key) = (axis.text("name").unwrap_or(""), axis.text("key").unwrap_or(""));
        let values = axis.scalars("values");
        if name.is_empty() || values.is_empty() {
            axis.complain("name", "an axis has `name`, `key` and `values`");
        } else if key.is_empty() && !named(&format!("{{{name}}}")) {
            axis.complain(
                "name",
                format!("the axis needs a `key`, or something that has `{{{name}}}`"),
            );
        }
        let at = axis.item("key").map_or(At::Whole, |key| key.at);
        let vary = Vary { key: key.into(), values };
        axes.push(Axis { name: name.to_string(), vary, at });
        axis.finish();
    }
    axes
}

fn grid(s: Section<'_>) -> Grid {
    let set = s.changes("set");
    let of = |size: Size| (size.name(), s.changes(&format!("set_{}", size.name())));
    let set_of = [Size::Ci, Size::Small, Size::Full].map(of).into();
    let named = |name: &str| {
        set.iter().any(|change| matches!(change, Change::Written(set, _) if set.contains(name)))
    };
    let flag = |key: &str| s.flag(key).unwrap_or(false);
    let course = match (s.parsed("every"), flag("percentiles"), flag("chunks")) {
        (None, false, false) => Course::Whole,
        (None, true, false) => Course::Percentiles,
        (None, false, true) => Course::Chunks,
        (Some(Ns::ZERO), ..) => {
            s.complain("every", "`every` is a time above 0");
            Course::Whole
        }
        (Some(every), false, false) => Course::Every(every),
        _ => {
            s.complain("every", "`every`, `percentiles` and `chunks`: give one");
            Course::Whole
        }
    };
    let grid = Grid {
        axes: axes(&s, named),
        targets: s.texts("targets"),
        series: s.text("series").unwrap_or("{target}").to_string(),
        course,
        set,
        set_of,
    };
    s.finish();
    grid
}

fn recordings(s: Section<'_>) -> Recordings {
    let trace = s.text("trace").unwrap_or("").to_string();
    if trace.is_empty() {
        s.complain("trace", "[[recording]] needs `trace`, a file or `bundled:NAME`");
    }
    let found = Recordings {
        axes: axes(&s, |name| trace.contains(name)),
        warm_up: s.text("warm_up").map(str::to_string),
        truth: s.text("truth").map(str::to_string),
        application: s.text("application").map(str::to_string),
        at: s.item("trace").map_or(At::Whole, |item| item.at),
        trace,
    };
    s.finish();
    found
}

fn plot(s: Section<'_>) -> Option<Plot> {
    let words = |key: &str| s.text(key).unwrap_or("").to_string();
    let (x, y) = (words("x"), words("y"));
    if x.is_empty() || y.is_empty() {
        s.complain("x", "a plot has `x`, an axis, and `y`, a metric");
    }
    let mut lines = Vec::new();
    for line in s.texts("lines") {
        // `qblk depth=1: QBLK`
        let (which, name) = line.split_once(": ").unwrap_or((&line, &line));
        let (series, places) = which.split_once(' ').unwrap_or((which, ""));
        match format!("{series} {y} {places}").parse::<Selector>() {
            Ok(of) => lines.push((of, name.to_string())),
            Err(why) => s.complain("lines", why),
        }
    }
    if lines.is_empty() {
        s.complain("lines", "a plot has `lines`: `SERIES AXIS=VALUE: name`");
    }
    let x_title = s.text("x_title").unwrap_or(&x).to_string();
    let plot = Plot {
        title: words("title"),
        x_title,
        y_title: words("y_title"),
        log: s.flag("log").unwrap_or(false),
        x,
        y,
        lines,
    };
    s.finish();
    Some(plot)
}

fn row(s: Section<'_>) -> Option<RowSpec> {
    let rules = ["within_percent", "between", "at_most", "at_least"];
    let given: Vec<&str> = rules.into_iter().filter(|r| s.has(r)).collect();
    let one = |key: &str| s.float(key).unwrap_or(0.0);
    let rule = match given[..] {
        [] => None,
        ["within_percent"] => Some(Rule::WithinPercent(one("within_percent"))),
        ["at_most"] => Some(Rule::AtMost(one("at_most"))),
        ["at_least"] => Some(Rule::AtLeast(one("at_least"))),
        ["between"] => match s.floats("between")[..] {
            [low, high] => Some(Rule::Between(low, high)),
            _ => {
                s.complain("between", "`between` is a list of two numbers");
                None
            }
        },
        _ => {
            s.complain(given[1], format!("one rule per row: `{}` or `{}`", given[0], given[1]));
            None
        }
    };
    let here = match s.item("here").map(|item| here(&item.value)) {
        Some(Ok(here)) => Some(here),
        Some(Err(why)) => {
            s.complain("here", why);
            None
        }
        None => {
            s.complain("here", "a row needs `here`: how its value comes of the points");
            None
        }
    };
    let paper = match s.item("paper").map(|item| (&item.value, item.value.number())) {
        Some((_, Some(value))) => vec![(String::new(), value)],
        Some((Value::Table(table), _)) => {
            let all = table.iter().filter_map(|(at, v)| Some((at.clone(), v.value.number()?)));
            all.collect()
        }
        Some(_) => {
            s.complain("paper", "`paper` is a number, or a table of them by the values of `each`");
            Vec::new()
        }
        None => Vec::new(),
    };
    let input = s.flag("input").unwrap_or(false);
    let not_judged = s.text("not_judged");
    let because = s.text("because").or(not_judged).map(str::to_string);
    if matches!(rule, Some(Rule::WithinPercent(_))) && paper.is_empty() {
        s.complain("within_percent", "`within_percent` needs the paper's value");
    }
    if rule.is_some() && !paper.is_empty() && because.is_none() {
        s.complain(given[0], "the paper prints a number: say `because`, or let it be within 15%");
    }
    let what = s.text("what").unwrap_or("").to_string();
    if what.is_empty() {
        s.complain("what", "a row needs `what`");
    }
    if rule.is_some() && not_judged.is_some() {
        s.complain("not_judged", format!("`{}` judges it", given[0]));
    }
    let rule = if not_judged.is_some() { Some(Rule::None) } else { rule };
    let spec = RowSpec {
        what,
        each: s.texts("each"),
        over: s.text("over").map(str::to_string),
        paper,
        here: here?,
        unit: s.text("unit").unwrap_or("").to_string(),
        rule,
        order: s.flag("order").unwrap_or(false),
        input,
        because,
    };
    s.finish();
    Some(spec)
}

/// A choice of points, or `{ ratio = [a, b] }` and the like.
fn here(value: &Value) -> Result<Here, String> {
    const KNOWN: &str = "max, min, mean, where_max, ratio, product, difference, least_step, \
                         largest_step, least_ratio, most_ratio, mean_ratio, farthest";
    let table = match value {
        Value::Text(text) => return Ok(Here::One(text.parse()?)),
        Value::Int(_) | Value::Float(_) => {
            return Ok(Here::Number(value.number().unwrap_or_default()));
        }
        Value::Table(table) => table,
        _ => return Err(format!("it is a choice of points, or a table with one of {KNOWN}")),
    };
    let choice = |value: &Value| -> Result<Selector, String> {
        match value {
            Value::Text(text) => text.parse(),
            _ => Err("a choice of points is a text".into()),
        }
    };
    let pair = |value: &'_ Value| -> Result<(Value, Value), String> {
        match value {
            Value::List(list) if list.len() == 2 => {
                Ok((list[0].value.clone(), list[1].value.clone()))
            }
            _ => Err("it needs a list of two".into()),
        }
    };
    let other = |key: &str| {
        table.get(key).map(|item| &item.value).ok_or(format!("it needs `{key}` beside it"))
    };
    let mut first = table.iter().filter(|(key, _)| !["along", "from"].contains(&key.as_str()));
    let (Some((key, item)), None) = (first.next(), first.next()) else {
        return Err(format!("one of {KNOWN}"));
    };
    let along = || match other("along")? {
        Value::Text(axis) => Ok(axis.clone()),
        _ => Err("`along` is an axis".to_string()),
    };
    let v = &item.value;
    Ok(match key.as_str() {
        "max" => Here::Max(choice(v)?),
        "min" => Here::Min(choice(v)?),
        "mean" => Here::Mean(choice(v)?),
        "where_max" => Here::WhereMax(choice(v)?),
        "ratio" => {
            let (a, b) = pair(v)?;
            Here::Ratio(here(&a)?.into(), here(&b)?.into())
        }
        "product" => {
            let (a, b) = pair(v)?;
            Here::Product(here(&a)?.into(), here(&b)?.into())
        }
        "difference" => {
            let (a, b) = pair(v)?;
            Here::Difference(here(&a)?.into(), here(&b)?.into())
        }
        "least_step" => Here::LeastStep(choice(v)?, along()?),
        "largest_step" => Here::LargestStep(choice(v)?, along()?),
        "least_ratio" | "most_ratio" | "mean_ratio" => {
            let (a, b) = pair(v)?;
            let (a, b) = (choice(&a)?, choice(&b)?);
            match key.as_str() {
                "least_ratio" => Here::LeastRatio(a, b),
                "most_ratio" => Here::MostRatio(a, b),
                _ => Here::MeanRatio(a, b),
            }
        }
        "farthest" => Here::Farthest(choice(v)?, here(other("from")?)?.into()),
        _ => return Err(format!("`{key}` is none of {KNOWN}")),
    })
}
