//! The SLC part of a drive over time.
//!
//! Owns: what the host wrote by whose it is, and what was programmed by where it went. Promises and
//! never: as in [`super::figures`].

use super::charts::{self, Layer};
use super::figures::{
    Figure, both, columns, course_table, ends, groups, longest, panel, rate, time_axis,
};
use super::page;
use super::svg::{Axis, Size};
use crate::report::numbers::{Report, RunReport};
use flashlane_base::SECTOR_BYTES;
use flashlane_ftl::layer::Kind;
use flashlane_ftl::slc::SLC;
use std::ops::Range;

/// A part of a stack: its class, what it is called, its sectors per span.
type Part = (&'static str, &'static str, Vec<u64>);

/// What the host wrote, where the drive has an SLC part.
fn written(r: &RunReport) -> Option<Vec<Part>> {
    let journal = r.timeline.layers.get(SLC.name())?.get("journal_sectors").cloned();
    let all = &r.timeline.host_written_sectors;
    let journal = journal.unwrap_or_else(|| vec![0; all.len()]);
    // A write is a journal's when it comes, and written when there was room for it.
    let others = all.iter().zip(&journal).map(|(all, part)| all.saturating_sub(*part)).collect();
    Some(vec![("c-log", "a journal's", journal), ("c-user", "other data", others)])
}

/// What was programmed, by where it went.
fn programmed(r: &RunReport) -> Option<Vec<Part>> {
    const PLACES: [(&str, &str, &str); 5] = [
        ("c-log", "journal region", "to_journal_sectors"),
        ("c-fold", "SLC buffer", "to_buffer_sectors"),
        ("c-user", "TLC, directly", "tlc_direct_sectors"),
        ("c-gc", "TLC, out of SLC", "tlc_migrated_sectors"),
        ("c-dead", "TLC, moved within", "tlc_gc_sectors"),
    ];
    let counted = r.timeline.layers.get(SLC.name())?;
    let part = |(class, name, key)| Some((class, name, counted.get(key)?.clone()));
    Some(PLACES.into_iter().filter_map(part).collect())
}

type Side = (&'static str, fn(&RunReport) -> Option<Vec<Part>>);
const SIDES: [Side; 2] = [("written by the host", written), ("programmed", programmed)];

fn bytes(sectors: &[u64]) -> Vec<u64> {
    sectors.iter().map(|n| n * SECTOR_BYTES as u64).collect()
}

pub(super) fn figure(report: &Report) -> Option<Figure> {
    let total = longest(report);
    let mut body = String::new();
    for (side, parts) in SIDES {
        let used = |part: &Part| part.2.iter().any(|n| *n > 0);
        let all: Vec<(&RunReport, Vec<Part>)> = report
            .runs
            .iter()
            .filter_map(|r| Some((r, parts(r)?.into_iter().filter(used).collect())))
            .collect();
        let mut names: Vec<(String, String)> = Vec::new();
        for (class, name, _) in all.iter().flat_map(|(_, parts)| parts) {
            if !names.iter().any(|(_, other)| other == name) {
                names.push((class.to_string(), name.to_string()));
            }
        }
        body += &page::legend(names.into_iter());
        for (r, parts) in &all {
            let draw = |size: &Size| {
                let (x, factor) = time_axis(total, size);
                let of_spans = ends(r);
                let groups = groups(of_spans.len(), size.points / 2);
                let layers: Vec<Layer> = parts
                    .iter()
                    .map(|(class, name, sectors)| {
                        let bytes = bytes(sectors);
                        let values = groups.iter().map(|g| rate(&bytes, &of_spans, g)).collect();
                        Layer { name: name.to_string(), class: class.to_string(), values }
                    })
                    .collect();
                let sum = |i: usize| layers.iter().map(|l| l.values[i]).sum::<f64>();
                let high = (0..groups.len()).map(sum).fold(0.0, f64::max);
                let y = Axis::linear(high, 3, "", "MB/s");
                let ends: Vec<f64> = groups.iter().map(|g| of_spans[g.end - 1] / factor).collect();
                let alt = format!("{}: {side} over time in MB/s", r.name);
                charts::areas(size, &x, &y, &ends, &layers, &[], &alt)
            };
            body += &panel(&format!("{}: {side}, MB/s", r.name), &both(190.0, 190.0, draw));
        }
    }
    let courses = columns(report, SIDES, |r, (_, parts)| {
        let parts = parts(r)?;
        let names: Vec<&str> = parts.iter().map(|part| part.1).collect();
        let ends = ends(r);
        let all: Vec<Vec<u64>> = parts.iter().map(|part| bytes(&part.2)).collect();
        let text = move |range: Range<usize>| {
            let rates = all.iter().map(|bytes| format!("{:.2}", rate(bytes, &ends, &range)));
            rates.collect::<Vec<_>>().join(" + ")
        };
        Some((format!("{}, MB/s", names.join(" + ")), Box::new(text)))
    });
    (!courses.is_empty()).then(|| Figure {
        title: "The SLC part over time",
        caption: "What the host wrote, by what the drive took it for, and what was programmed of it, by \
                  where it went. What lies in the SLC buffer leaves it in idle time, and goes to TLC \
                  directly while the buffer is full. MB is 10<sup>6</sup> bytes."
            .into(),
        body,
        tables: vec![course_table(report, courses)],
    })
}
