//! The report as one HTML file.
//!
//! Owns: the document. Promises: nothing is loaded from anywhere; it works without scripts (one
//! shows values under the pointer), in light and dark, on a phone and on paper; every figure has a
//! text alternative and a table; the same report gives the same bytes, whatever time it took.
//! Never: computes a number.
//!
//! [`figures`], [`causes`], [`slc`], [`ghosts`], [`together`] and [`parts`] say what is drawn, [`charts`] how, [`svg`] has scales and axes,
//! [`page`] the text around them.

mod causes;
mod charts;
mod contention;
mod figures;
mod ghosts;
mod page;
mod parts;
mod slc;
pub(crate) mod svg;
mod together;

use super::numbers::Report;
use std::fmt::Write;
use svg::escape;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("pointer.js");

/// A page by itself, whose `meta` says something to programs.
pub(crate) fn document(title: &str, meta: &[(&str, &str)], main: &str) -> String {
    let mut s = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    for (name, content) in meta {
        let _ = writeln!(s, "<meta name=\"{name}\" content=\"{}\">", escape(content));
    }
    let _ = write!(
        s,
        "<link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{main}</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script>\n\
         {SCRIPT}</script>\n</body>\n</html>\n",
        escape(title)
    );
    s
}

pub(super) fn page(report: &Report) -> String {
    let mut s = page::head(report);
    let groups = report.groups();
    let mut n = 0;
    for (i, group) in groups.iter().enumerate() {
        let part = format!("part{}", i + 1);
        let _ = writeln!(s, "<div id=\"{part}\">");
        if groups.len() > 1 {
            s += &page::group_head(group);
        }
        s += &page::results(group);
        s += &page::jobs(group);
        s += &page::files(group);
        s += "<section>\n<h2>Figures</h2>\n";
        for figure in figures::all(group, &part) {
            n += 1;
            let _ = write!(
                s,
                "<figure id=\"figure{n}\">\n<figcaption><b>Figure {n}. {}.</b> {}</figcaption>\n{}\
                 <details class=\"data\"><summary>Data of figure {n}</summary>\n{}</details>\n\
                 </figure>\n",
                figure.title,
                figure.caption,
                figure.body,
                figure.tables.iter().map(page::Table::html).collect::<String>(),
            );
        }
        s += "</section>\n</div>\n";
    }
    s += &page::configuration(report);
    let generator = format!("flashlane {}", report.version);
    let meta = [("generator", &*generator), ("flashlane-fingerprint", &*report.fingerprint)];
    document(&report.experiment, &meta, &s)
}
