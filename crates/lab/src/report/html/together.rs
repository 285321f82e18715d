//! What lies together in a flash block, as a picture.
//!
//! Owns: the figure. Promises: a row for each block of the sample; sectors of one segment of the file system have one
//! colour in a row. Never: counts.

use super::charts::{cells_of, ground};
use super::figures::{Figure, both, panel};
use super::page::{COLOURS, Table, legend};
use super::svg::{Axis, Size, open, x_axis};
use crate::report::numbers::Report;
use crate::together::{Held, Together};
use crate::words::grouped;
use std::fmt::Write;

/// Height of a row, in pixels.
const ROW: f64 = 6.0;

pub(super) fn figure(report: &Report) -> Option<Figure> {
    let mut body = String::new();
    let head = ["", "flash blocks", "segments in each", "files in each", "unused sectors"];
    let mut table = Table::new(&head);
    for r in &report.runs {
        let Some(t) = r.files.as_ref().and_then(|files| files.together.as_ref()) else { continue };
        let height = t.sample.len() as f64 * ROW + 60.0;
        body += &panel(&r.name, &both(height, height, |size| draw(size, t, &r.name)));
        let mut row = vec![r.name.clone(), grouped(t.blocks)];
        row.extend([t.segments_mean, t.files_mean].map(|mean| format!("{mean:.2}")));
        row.push(format!("{:.1}%", 100.0 * t.unused_ratio));
        table.rows.push(row);
    }
    let key = [
        ("f0", "a segment, one of six colours by its number"),
        ("c-metadata", "in place"),
        ("b0", "unused"),
    ];
    let key = legend(key.into_iter().map(|(class, name)| (class.into(), name.into())));
    (!body.is_empty()).then(|| Figure {
        title: "What lies together in a flash block",
        caption: "A row is a flash block at the end of the run, its sectors in the order in which they were \
                  written; a sample of the blocks that the log of the file system is in. A row of one \
                  colour is of one segment, or of some whose numbers differ by six; a row of many is what \
                  two logs, one above the other, have mixed."
            .into(),
        body: key + &body,
        tables: vec![table],
    })
}

fn draw(size: &Size, t: &Together, name: &str) -> String {
    let columns = t.sample.iter().map(Vec::len).max().unwrap_or(0);
    let alt = format!(
        "{name}: {:.1} segments of the file system in a flash block, {:.0}% of it unused",
        t.segments_mean,
        100.0 * t.unused_ratio
    );
    let mut s = open(size, "chart heat", &alt, "");
    let (ground, onto) = ground(size, (t.sample.len(), columns, 1.0));
    let _ = write!(s, "{ground}<g {onto}>{}</g>", cells_of(&t.sample, class));
    let x = Axis::exact(columns as f64, size.x_ticks, "sectors of the block, in written order", "");
    s += &x_axis(size, &x);
    s + "\n</svg>\n"
}

/// The class of what is drawn; nothing of what is unused.
fn class(held: Held) -> Option<String> {
    match held {
        Held::Unused => None,
        Held::InPlace => Some("c-metadata".into()),
        Held::Segment(n) => Some(format!("f{}", n as usize % COLOURS)),
    }
}
