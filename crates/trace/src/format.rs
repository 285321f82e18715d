//! The formats by name.
//!
//! Owns: the list, names for people and for `--format`. Promises: a name given on the command line
//! is one of [`Format::ALL`]. Never: knows how a format looks inside.

use super::carries::Carries;
use super::tables;
use std::fmt;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Our own: Parquet, the interchange format.
    Parquet,
    /// Text of blkparse.
    Blkparse,
    /// Binary of blktrace, a file per CPU.
    Blktrace,
    /// ASCII of MQSim and DiskSim.
    Mqsim,
    /// ASCII of SSDSim: MQSim's columns, always in ns.
    Ssdsim,
    /// MSR Cambridge.
    Msr,
    /// SYSTOR '17.
    Systor,
    /// Alibaba's block-traces.
    Alibaba,
    /// Tencent CBS.
    Tencent,
    /// Storage Performance Council (UMass Financial, WebSearch).
    Spc,
    /// fio's I/O log, version 2.
    Fio2,
    /// fio's I/O log, version 3.
    Fio3,
    /// Events of wiscsee.
    Wiscsee,
    /// CSV of FEMU's replayer.
    Femu,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 14] = [
        Format::Parquet,
        Format::Blkparse,
        Format::Blktrace,
        Format::Mqsim,
        Format::Ssdsim,
        Format::Msr,
        Format::Systor,
        Format::Alibaba,
        Format::Tencent,
        Format::Spc,
        Format::Fio2,
        Format::Fio3,
        Format::Wiscsee,
        Format::Femu,
    ];

    /// Name on the command line and in experiments.
    pub fn word(self) -> &'static str {
        match self {
            Format::Parquet => "parquet",
            Format::Blkparse => "blkparse",
            Format::Blktrace => "blktrace",
            Format::Mqsim => "mqsim",
            Format::Ssdsim => "ssdsim",
            Format::Msr => "msr",
            Format::Systor => "systor17",
            Format::Alibaba => "alibaba",
            Format::Tencent => "tencent",
            Format::Spc => "spc",
            Format::Fio2 => "fio-iolog2",
            Format::Fio3 => "fio-iolog3",
            Format::Wiscsee => "wiscsee",
            Format::Femu => "femu-replayer",
        }
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
        match self {
            Format::Parquet => "parquet",
            Format::Blktrace => "blktrace",
            Format::Msr
            | Format::Systor
            | Format::Alibaba
            | Format::Tencent
            | Format::Spc
            | Format::Femu => "csv",
            Format::Fio2 | Format::Fio3 => "iolog",
            Format::Blkparse | Format::Mqsim | Format::Ssdsim | Format::Wiscsee => "txt",
        }
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
        f.write_str(match self {
            Format::Parquet => "Parquet",
            Format::Blkparse => "blkparse text",
            Format::Blktrace => "blktrace binary",
            Format::Mqsim => "MQSim/DiskSim ASCII",
            Format::Ssdsim => "SSDSim ASCII",
            Format::Msr => "MSR Cambridge CSV",
            Format::Systor => "SYSTOR '17 CSV",
            Format::Alibaba => "Alibaba block-traces CSV",
            Format::Tencent => "Tencent CBS CSV",
            Format::Spc => "SPC ASCII",
            Format::Fio2 => "fio I/O log 2",
            Format::Fio3 => "fio I/O log 3",
            Format::Wiscsee => "wiscsee events",
            Format::Femu => "FEMU replayer CSV",
        })
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
