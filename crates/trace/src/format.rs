//! The formats by name.
//!
//! Owns: the list, names for people and for `--format`. Promises: a name given on the command line
//! is one of [`Format::ALL`]. Never: knows how a format looks inside.

use super::carries::Carries;
use super::tables;
use flashlane_base::listed;
use serde::{Deserialize, Serialize};
use std::fmt;

listed! {
    /// A format of traces: its name on the command line and in experiments, what its files are called behind
    /// the last dot, and its name for people.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Format: (&'static str, &'static str, &'static str) {
        /// Our own: Parquet, the interchange format.
        Parquet: "parquet", "parquet", "Parquet";
        /// Text of blkparse.
        Blkparse: "blkparse", "txt", "blkparse text";
        /// Binary of blktrace, a file per CPU.
        Blktrace: "blktrace", "blktrace", "blktrace binary";
        /// ASCII of MQSim.
        Mqsim: "mqsim", "txt", "MQSim ASCII";
        /// ASCII of DiskSim: as many numbers as MQSim's, in ms. Nothing in a file tells it from
        /// others, so that it has to be named.
        Disksim: "disksim", "ascii", "DiskSim ASCII";
        /// ASCII of SSDSim: MQSim's columns, always in ns.
        Ssdsim: "ssdsim", "txt", "SSDSim ASCII";
        /// MSR Cambridge.
        Msr: "msr", "csv", "MSR Cambridge CSV";
        /// SYSTOR '17.
        Systor: "systor17", "csv", "SYSTOR '17 CSV";
        /// Alibaba's block-traces.
        Alibaba: "alibaba", "csv", "Alibaba block-traces CSV";
        /// Tencent CBS.
        Tencent: "tencent", "csv", "Tencent CBS CSV";
        /// Storage Performance Council (UMass Financial, WebSearch).
        Spc: "spc", "csv", "SPC ASCII";
        /// fio's I/O log, version 2.
        Fio2: "fio-iolog2", "iolog", "fio I/O log 2";
        /// fio's I/O log, version 3.
        Fio3: "fio-iolog3", "iolog", "fio I/O log 3";
        /// Events of wiscsee.
        Wiscsee: "wiscsee", "txt", "wiscsee events";
        /// CSV of FEMU's replayer.
        Femu: "femu-replayer", "csv", "FEMU replayer CSV";
    }
}

impl Format {
    /// Name on the command line and in experiments.
    pub fn word(self) -> &'static str {
        self.row().0
    }

    /// The format of this name.
    pub fn named(word: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.word() == word)
    }

    /// All names, for messages.
    pub fn words() -> String {
        Format::ALL.map(Format::word).join(", ")
    }

    /// Whether a record is a piece of a binary file, not a line.
    pub fn is_binary(self) -> bool {
        matches!(self, Format::Parquet | Format::Blktrace)
    }

    /// What files of this format are called behind the last dot.
    pub fn suffix(self) -> &'static str {
        self.row().1
    }

    /// The formats that a file name's suffix speaks of; none where it speaks of no format.
    pub fn of_suffix(suffix: &str) -> Vec<Format> {
        let suffix = suffix.to_ascii_lowercase();
        let fits = |f: &Format| match suffix.as_str() {
            "txt" => !f.is_binary(),
            named => f.suffix() == named || f.word() == named,
        };
        Format::ALL.into_iter().filter(fits).collect()
    }

    /// What its parts are called in messages.
    pub fn part(self) -> &'static str {
        if self.is_binary() { "records" } else { "lines" }
    }

    /// What the format can say about a request.
    pub fn carries(self) -> Carries {
        match self {
            Format::Parquet => Carries::PARQUET,
            Format::Blkparse | Format::Blktrace => Carries::BLKTRACE,
            _ => tables::of(self).expect("the others are tables").carries(),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_is_found_by_its_word() {
        for format in Format::ALL {
            assert_eq!(Format::named(format.word()), Some(format));
            format.carries();
        }
        assert_eq!(Format::named("csv"), None);
    }

    #[test]
    fn a_suffix_speaks_of_the_formats_that_go_by_it() {
        for format in Format::ALL {
            assert!(Format::of_suffix(format.suffix()).contains(&format), "{format}");
        }
        assert_eq!(Format::of_suffix("PARQUET"), [Format::Parquet]);
        assert_eq!(Format::of_suffix("mqsim"), [Format::Mqsim]);
        let csv = Format::of_suffix("csv");
        assert!(csv.contains(&Format::Msr) && !csv.contains(&Format::Parquet));
        assert!(Format::of_suffix("txt").contains(&Format::Msr), "a table is text, too");
        assert!(Format::of_suffix("dat").is_empty());
    }
}
