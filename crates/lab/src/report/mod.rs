//! What came out, for people and for programs.
//!
//! Owns: the numbers of an outcome ([`Report`]), their JSON and CSV, the table and the sentences
//! that say where a difference comes from. Promises: names of keys end in their unit; the same
//! outcome gives the same bytes, except `wall_seconds`. Never: computes what the runner did not
//! record, and never calls an unsteady run steady.

mod config;
mod csv;
mod explain;
mod numbers;
mod table;

pub use config::Configuration;
pub use numbers::{
    BreakdownNs, BufferSectors, BusyRatio, FaultCounts, FillLevel, LatencyNs, LatencySet,
    ProgrammedSectors, ReadPartsNs, Report, RunReport, SlipReport, TimelineReport, WaitNs,
    WritePartsNs,
};
pub(crate) use table::{aligned, mb_per_s};

use crate::execute::Outcome;

impl Report {
    /// The numbers of an outcome.
    pub fn of(outcome: &Outcome) -> Report {
        numbers::report(outcome)
    }

    /// One JSON object, with a newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain data");
        text.push('\n');
        text
    }

    /// One line per run, under a header.
    pub fn to_csv(&self) -> String {
        csv::csv(self)
    }

    /// The table, the sentences and the notes.
    pub fn to_text(&self) -> String {
        let mut text = table::head(self);
        text += &table::results(self);
        text += &table::latencies(self);
        text += &table::causes(self);
        text += &table::breakdowns(self);
        text += &table::occupancy(self);
        text += &explain::sentences(self);
        text += &table::notes(self);
        text
    }
}
