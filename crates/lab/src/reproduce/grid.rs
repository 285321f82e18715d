//! Points of experiments: each target at each place of a grid.
//!
//! Owns: the order of the points, the metrics of one. Promises: each point is run as `flashlane run` would run
//! it, by itself, so the numbers are the same on any number of threads; a run that broke a rule or read wrong
//! data is an error, not a point. Never: shares anything between points.

use super::file::{FigureFile, Grid};
use super::points::{Point, Points};
use super::{ReproduceError, Way};
use crate::execute::{How, Outcome, RunOutcome, execute};
use crate::experiment::Experiment;
use crate::report::Report;
use crate::words::mb_per_s;
use std::collections::BTreeMap;

/// One run.
struct Part {
    series: String,
    at: Vec<(String, String)>,
    experiment: Experiment,
}

impl Part {
    /// All that decides its values.
    fn description(&self) -> String {
        let (name, description) = (String::new(), String::new());
        format!("{:?}", Experiment { name, description, ..self.experiment.clone() })
    }

    fn name(&self) -> String {
        let places = self.at.iter().map(|(axis, value)| format!(", {axis} {value}"));
        self.series.clone() + &places.collect::<String>()
    }
}

/// Adds all points of a figure's grids.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    points: &mut Points,
) -> Result<(), ReproduceError> {
    let mut parts = Vec::new();
    for grid in &file.grids {
        parts_of(file, grid, &mut parts)?;
    }
    let values = way.each(&parts, |part| way.known.get(part.description(), || run(part, way)))?;
    for (part, values) in parts.into_iter().zip(values) {
        let values = values.unwrap_or_default();
        points.add(Point { series: part.series, at: part.at, values });
    }
    Ok(())
}

fn parts_of(file: &FigureFile, grid: &Grid, parts: &mut Vec<Part>) -> Result<(), ReproduceError> {
    let axes = file.axes(grid);
    let points: usize = axes.iter().map(|axis| axis.vary.values.len()).product();
    for point in 0..points {
        let experiment = file.experiment(grid, point)?;
        for target in experiment.targets.iter().filter(|target| grid.takes(&target.name)) {
            let one = Experiment { targets: vec![target.clone()], ..experiment.clone() };
            let series = grid.series_of(&target.name);
            parts.push(Part { series, at: file.place(grid, point), experiment: one });
        }
    }
    Ok(())
}

/// A point's values; `None` when it was interrupted.
fn run(part: &Part, way: &Way<'_>) -> Result<Option<Values>, ReproduceError> {
    let name = part.name();
    let outcome = execute(&part.experiment, How::default(), &|_| way.watch.part(&name))?;
    if outcome.is_bad() {
        let allowed = outcome.experiment.run.allow_errors;
        let of = |run: &RunOutcome| run.bad_because(allowed);
        let what = outcome.runs.iter().flat_map(of).collect::<Vec<_>>().join("; ");
        return Err(ReproduceError::Bad { figure: name, what });
    }
    Ok((!outcome.interrupted).then(|| values(&outcome)))
}

type Values = BTreeMap<String, f64>;

/// Every number that `run --csv` writes, and rates, latencies in microseconds, shares of the host's CPUs in percent.
fn values(outcome: &Outcome) -> Values {
    let report = Report::of(outcome);
    let mut values = Values::new();
    let (columns, rows) = report.cells();
    for (column, cell) in columns.iter().zip(rows.iter().flatten()) {
        let number = match cell.as_str() {
            "true" => Some(1.0),
            "false" => Some(0.0),
            number => number.parse().ok(),
        };
        let Some(value) = number else { continue };
        values.insert(column.clone(), value);
        if let Some(latency) = column.strip_suffix("_ns") {
            values.insert(format!("{latency}_us"), value / 1e3);
        }
        if let Some(share) = column.strip_suffix("_ratio").filter(|c| c.starts_with("cpu_")) {
            values.insert(format!("{share}_percent"), 100.0 * value);
        }
    }
    for run in &report.runs {
        for (op, bytes) in [("read", run.bytes_read), ("write", run.bytes_written)] {
            let rate = mb_per_s(bytes, run.runtime_ns);
            values.insert(format!("{op}_mb_per_s"), rate);
            values.insert(format!("{op}_mib_per_s"), rate * 1e6 / f64::from(1 << 20));
        }
        values.insert("cpu_idle_percent".into(), 100.0 * run.cpu.idle_ratio);
        media(outcome, &mut values);
    }
    values
}

/// What the medium did.
fn media(outcome: &Outcome, values: &mut Values) {
    for run in &outcome.runs {
        let (m, media) = (&run.measured, &run.media);
        let bytes = (m.after.programmed_total() - m.before.programmed_total())
            * flashlane_base::SECTOR_BYTES as u64;
        values.insert("programmed_mb_per_s".into(), mb_per_s(bytes, media.time.as_ns()));
        let whole = |of: u64| (media.time.as_ns() * of).max(1) as f64;
        let [read, program, erase] = media.die_busy;
        let busy = [
            ("channels_busy_percent", media.channel_busy, media.channels),
            ("dies_reading_percent", read, media.dies),
            ("dies_programming_percent", program, media.dies),
            ("dies_erasing_percent", erase, media.dies),
        ];
        for (name, time, of) in busy {
            values.insert(name.into(), 100.0 * time.as_ns() as f64 / whole(of));
        }
    }
}
