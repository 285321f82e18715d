//! What came out, for people and for programs.
//!
//! Owns: the numbers of an outcome ([`Report`]), the formats they are written in (table, HTML, JSON,
//! CSV, Parquet, fio's JSON, HdrHistogram log, Perfetto trace) and the sentences that say where a
//! difference comes from. Promises: names of keys end in their unit; the same
//! outcome gives the same bytes, except `wall_seconds`. Never: computes what the runner did not
//! record, and never calls an unsteady run steady.

pub(crate) mod columns;
mod config;
mod contention;
mod course;
mod csv;
mod explain;
mod files;
mod fio_json;
mod groups;
mod hdr;
pub(crate) mod html;
mod jobs;
mod numbers;
pub(crate) mod parquet;
mod perfetto;
pub mod plane;
pub(crate) mod png;
mod table;
#[cfg(test)]
mod tests;

pub use crate::contention::{ContentionReport, LockReport, PoolReport, QueueReport};
pub use config::Configuration;
pub use course::{DieReport, Figures, Heat, TimelineReport, WearReport};
pub(crate) use csv::line as csv_line;
pub use files::{CallReport, FilesReport};
pub use jobs::{JobOpReport, JobReport};
pub use numbers::{
    BreakdownNs, BusyRatio, FaultCounts, FillLevel, LatencySet, MountReport, Parts,
    ProgrammedSectors, Report, RunReport, Shown, SlipReport,
};
pub use perfetto::{PerfettoTrace, SPANS_MAX};

use crate::execute::Outcome;
use crate::words::aligned;

impl Report {
    pub fn of(outcome: &Outcome) -> Report {
        numbers::report(outcome)
    }

    /// One JSON object, with a newline.
    pub fn to_json(&self) -> String {
        let pretty = serde_json::to_string_pretty(self).expect("plain data");
        short_lists(&pretty)
    }

    /// One line per run, under a header.
    pub fn to_csv(&self) -> String {
        csv::csv(&self.rows())
    }

    pub fn to_parquet(&self) -> Vec<u8> {
        parquet::parquet(&self.rows())
    }

    /// The course of all runs: one line per run and span of time.
    pub fn timeline_csv(&self) -> String {
        csv::csv(&columns::timeline(self))
    }

    pub fn timeline_parquet(&self) -> Vec<u8> {
        parquet::parquet(&columns::timeline(self))
    }

    /// How busy each channel was with reads, programs and erases: one line per run, span of time and channel.
    pub fn channels_csv(&self) -> String {
        csv::csv(&columns::channels(self))
    }

    pub fn channels_parquet(&self) -> Vec<u8> {
        parquet::parquet(&columns::channels(self))
    }

    fn rows(&self) -> Vec<Vec<columns::Named>> {
        self.runs.iter().map(columns::run).collect()
    }

    /// One HTML file that needs nothing else.
    pub fn to_html(&self) -> String {
        html::page(self)
    }

    /// The names of the columns and, of each run, its cells: what [`Report::to_csv`] writes.
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        csv::table(&self.rows())
    }

    /// The table, the sentences and the notes.
    pub fn to_text(&self) -> String {
        let mut text = table::head(self);
        let groups = self.groups();
        for group in &groups {
            if groups.len() > 1 {
                text += &table::group_head(group);
            }
            text += &table::results(group);
            // Calls have latencies of their own, by kind.
            text += &match group.runs.iter().any(|run| run.files.is_some()) {
                true => files::tables(group),
                false => table::latencies(group),
            };
            text += &jobs::table(group).map_or_else(String::new, |rows| aligned(&rows) + "\n");
            text += &table::causes(group);
            text += &table::breakdowns(group);
            text += &table::occupancy(group);
            text += &table::cpu(group);
            text += &contention::table(group);
            text += &explain::sentences(group);
        }
        text += &table::mounts(self);
        text += &table::notes(self, &groups);
        text
    }
}

/// The results in the shape of fio's `--output-format=json+`.
pub fn fio_json(outcome: &Outcome) -> String {
    fio_json::text(outcome)
}

/// Latencies over time as an HdrHistogram log; empty but for its head unless the outcome was
/// observed with `intervals`.
pub fn hdr_log(outcome: &Outcome) -> Vec<u8> {
    hdr::log(outcome)
}

/// What dies and channels did, as a trace for Perfetto; empty unless the outcome was observed with
/// `spans`.
pub fn perfetto(outcome: &Outcome) -> PerfettoTrace {
    perfetto::trace(outcome)
}

/// Pretty JSON with each list of numbers on one line: a timeline has thousands of them.
fn short_lists(pretty: &str) -> String {
    let is_number = |item: &str| item.bytes().all(|b| b.is_ascii_digit() || b"-+.eE".contains(&b));
    let mut text = String::with_capacity(pretty.len() / 2);
    let mut lines = pretty.lines().peekable();
    while let Some(line) = lines.next() {
        text += line;
        // No string has a line break, so a line of digits is an item of a list.
        let mut any = false;
        while line.ends_with('[')
            && let Some(item) = lines.next_if(|l| is_number(l.trim().trim_end_matches(',')))
        {
            text += item.trim();
            text += if item.ends_with(',') { " " } else { "" };
            any = true;
        }
        if any && let Some(end) = lines.next_if(|l| l.trim().starts_with(']')) {
            text += end.trim();
        }
        text.push('\n');
    }
    text
}
