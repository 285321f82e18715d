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
pub(crate) use csv::line as csv_line;
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
        let pretty = serde_json::to_string_pretty(self).expect("plain data");
        short_lists(&pretty)
    }

    /// One line per run, under a header.
    pub fn to_csv(&self) -> String {
        csv::csv(self)
    }

    /// The names of the columns and, of each run, its cells: what [`Report::to_csv`] writes.
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        csv::table(self)
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

#[cfg(test)]
mod tests {
    use super::short_lists;

    #[test]
    fn lists_of_numbers_take_one_line_each() {
        let value = serde_json::json!({
            "a": [1, -2.5, 1e22], "b": [], "c": [[7], ["x", 8]], "d": [{ "e": 1 }], "f": "[\n1"
        });
        let text = short_lists(&serde_json::to_string_pretty(&value).unwrap());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(text.contains("\"a\": [1, -2.5, 1e+22],\n"), "{text}");
    }
}
