//! What came of a sweep: a row per point and target.
//!
//! Owns: the rows as table, CSV and JSON. Promises: the same points give the same bytes, whichever
//! core ran them and whether they were kept; nothing in a row is a time of this machine.
//! Never: leaves a point out: one that did not run is a row that says so.

use super::Plan;
use crate::report::{Report, csv_line};
use crate::words::aligned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Why there are no runs.
    pub error: Option<String>,
    /// A rule of the medium was broken, data was wrong, or counters disagree.
    pub bad: bool,
    /// Names of the columns of `rows`.
    pub columns: Vec<String>,
    /// Per target, its cells: what `run --csv` writes.
    pub rows: Vec<Vec<String>>,
    /// Per target, its numbers: what `run --json` writes in `runs`, without the course over time.
    pub runs: Vec<Value>,
}

impl Point {
    pub(super) fn failed(error: String) -> Point {
        Point { error: Some(error), ..Point::default() }
    }

    pub(super) fn of(report: &Report, bad: bool) -> Point {
        let (columns, rows) = report.cells();
        let runs = report.runs.iter().map(|run| {
            let mut value = serde_json::to_value(run).expect("plain data");
            if let Value::Object(map) = &mut value {
                map.remove("timeline");
                // Which of several points makes a device for all is chance.
                let prepared = map.get_mut("prepared").and_then(Value::as_object_mut);
                prepared.map(|prepared| prepared.remove("shelf"));
            }
            value
        });
        Point { error: None, bad, columns, rows, runs: runs.collect() }
    }

    /// A cell of a row by the name of its column.
    fn cell(&self, row: &[String], name: &str) -> Option<String> {
        let at = self.columns.iter().position(|c| c == name)?;
        row.get(at).cloned()
    }
}

/// A sweep, as far as it came.
#[derive(Clone, Debug, Serialize)]
pub struct SweepResult {
    pub experiment: String,
    pub keys: Vec<String>,
    /// Points that were not run: the user ended it.
    pub missing: usize,
    pub failed: usize,
    pub bad: usize,
    /// All points in the order of the grid.
    pub points: Vec<PointReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PointReport {
    pub values: Vec<String>,
    /// What came of it; null when it was not run.
    pub result: Option<Point>,
}

/// Said of a point that was not run.
const NOT_RUN: &str = "not run: interrupted";

impl SweepResult {
    pub(super) fn new(plan: &Plan, points: Vec<Option<Point>>) -> SweepResult {
        let count = |of: &dyn Fn(&Point) -> bool| points.iter().flatten().filter(|p| of(p)).count();
        SweepResult {
            experiment: plan.name.clone(),
            keys: plan.axes.iter().map(|a| a.key.clone()).collect(),
            missing: points.iter().filter(|p| p.is_none()).count(),
            failed: count(&|p| p.error.is_some()),
            bad: count(&|p| p.bad),
            points: (points.into_iter().enumerate())
                .map(|(i, result)| PointReport {
                    values: plan.values(i).into_iter().map(unquoted).collect(),
                    result,
                })
                .collect(),
        }
    }

    /// One JSON object, with a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// One line per point and target, under a header: the values, the error, then the columns of
    /// `run --csv`.
    pub fn to_csv(&self) -> String {
        let results = || self.points.iter().filter_map(|p| p.result.as_ref());
        let columns = results().map(|r| &r.columns).find(|c| !c.is_empty());
        let columns: Vec<&str> = columns.into_iter().flatten().map(String::as_str).collect();
        // A key that is called as a column is the experiment's.
        let taken = |key: &String| key == "error" || columns.contains(&key.as_str());
        let name =
            |key: &String| if taken(key) { format!("experiment.{key}") } else { key.clone() };
        let keys: Vec<String> = self.keys.iter().map(name).collect();
        let keys = keys.iter().map(String::as_str);
        let mut text = csv_line(keys.chain(["error"]).chain(columns.iter().copied()));
        for point in &self.points {
            let values = || point.values.iter().map(String::as_str);
            let (rows, error) = rows_of(point);
            // A line of the table is a line of the file.
            let error = &in_line(error)[..];
            for row in &rows {
                text += &csv_line(values().chain([error]).chain(row.iter().map(String::as_str)));
            }
            if rows.is_empty() {
                let blank = columns.iter().map(|_| "");
                text += &csv_line(values().chain([error]).chain(blank));
            }
        }
        text
    }

    pub fn to_text(&self) -> String {
        let heads = ["target", "read MB/s", "write MB/s", "WA", "read p99", "write p99", "steady"];
        let heads = heads.map(str::to_string);
        let mut table = vec![self.keys.iter().cloned().chain(heads).collect::<Vec<String>>()];
        let mut errors: Vec<(&str, usize)> = Vec::new();
        for point in &self.points {
            let (rows, error) = rows_of(point);
            if rows.is_empty() {
                let failed = point.result.is_some();
                match errors.iter_mut().find(|(why, _)| *why == error) {
                    Some((_, n)) => *n += 1,
                    None if failed => errors.push((error, 1)),
                    None => {} // how many were not run is said below
                }
                let said = if failed { "FAILED" } else { error };
                let blank = (0..6).map(|_| String::new());
                table.push(
                    point
                        .values
                        .iter()
                        .map(|v| in_line(v))
                        .chain([said.into()])
                        .chain(blank)
                        .collect(),
                );
            }
            for row in rows {
                let result = point.result.as_ref().expect("it has rows");
                let cell = |name: &str| result.cell(row, name).unwrap_or_default();
                table.push(point.values.iter().map(|v| in_line(v)).chain(summary(cell)).collect());
            }
        }
        let mut text = format!("{}: {} points\n\n", self.experiment, self.points.len());
        text += &aligned(&table);
        for (why, n) in errors {
            text += &format!("\n{n} points: {why}\n");
        }
        if self.bad > 0 {
            text += &format!("\nBAD: {} points broke a rule, or read wrong data\n", self.bad);
        }
        if self.missing > 0 {
            text += &format!("\nINTERRUPTED: {} points were not run\n", self.missing);
        }
        text
    }
}

/// The rows of a point; where there are none, why.
fn rows_of(point: &PointReport) -> (Vec<&Vec<String>>, &str) {
    match &point.result {
        None => (Vec::new(), NOT_RUN),
        Some(result) => (result.rows.iter().collect(), result.error.as_deref().unwrap_or("")),
    }
}

/// A value as people write it: TOML's quotes are for the parser.
fn unquoted(value: &str) -> String {
    let toml = toml::from_str::<toml::Table>(&format!("value = {value}"));
    match toml.ok().and_then(|mut t| t.remove("value")) {
        Some(toml::Value::String(text)) => text,
        _ => value.to_string(),
    }
}

/// A value in a table, in one line.
fn in_line(value: &str) -> String {
    value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The cells of the table, of a row of the CSV.
fn summary(cell: impl Fn(&str) -> String) -> Vec<String> {
    let number = |name: &str| cell(name).parse::<f64>().ok();
    let seconds = number("runtime_ns").unwrap_or(0.0) / 1e9;
    let rate = |name: &str| match number(name) {
        Some(bytes) if bytes > 0.0 && seconds > 0.0 => format!("{:.1}", bytes / 1e6 / seconds),
        _ => "-".into(),
    };
    let us = |name: &str, bytes: &str| match number(name).filter(|_| number(bytes) > Some(0.0)) {
        Some(ns) => format!("{:.1}us", ns / 1e3),
        _ => "-".into(),
    };
    vec![
        cell("name"),
        rate("read_bytes"),
        rate("written_bytes"),
        number("write_amplification_ratio").map_or("-".into(), |w| format!("{w:.3}")),
        us("read_p99_ns", "read_bytes"),
        us("write_p99_ns", "written_bytes"),
        if cell("steady") == "true" { "yes".into() } else { "no".into() },
    ]
}
