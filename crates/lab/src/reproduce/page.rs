//! Figures as a page, and as files of their points.
//!
//! Owns: the page's text, the columns of the points. Promises: nothing is loaded from anywhere; each verdict
//! stands beside the rows that it follows from; the same results give the same bytes. Never: computes a number.

use super::draw;
use super::points::{Point, Points};
use super::rows::{Rule, Verdict};
use super::{FigureResult, ReproduceError, number};
use crate::report::columns::{Cell, Named};
use crate::report::csv_line;
use crate::report::html::document;
use crate::report::html::svg::{Size, escape};
use crate::report::parquet::parquet;
use crate::report::png::png;
use std::collections::BTreeSet;
use std::fmt::Write;

/// All figures on one page.
pub fn to_html(results: &[FigureResult]) -> String {
    let mut s = String::from("<h1>Figures of the papers, and what comes out here</h1>\n");
    s += "<table class=\"results\">\n<thead><tr><th>figure</th><th>paper</th><th>verdict</th>\
          <th>rules that hold</th></tr></thead>\n<tbody>\n";
    for figure in results {
        let name = escape(&figure.name);
        let _ = writeln!(
            s,
            "<tr><th><a href=\"#{name}\">{name}</a>: {}</th><td data-h=\"paper\">{}</td>\
             <td data-h=\"verdict\" class=\"{}\">{}</td><td data-h=\"rules that hold\">{}</td></tr>",
            escape(&figure.title),
            escape(&figure.paper),
            class(figure.verdict),
            figure.said(),
            figure.count()
        );
    }
    s += "</tbody>\n</table>\n";
    results.iter().for_each(|figure| s += &section(figure));
    let version = concat!("flashlane ", env!("CARGO_PKG_VERSION"));
    document("Figures of the papers", &[("generator", version)], &s)
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "ok",
        Verdict::Differs => "off",
        _ => "",
    }
}

fn section(figure: &FigureResult) -> String {
    let mut s = format!(
        "<section>\n<h2 id=\"{0}\">{0}: {1}</h2>\n<p class=\"lead\">{2}; verdict: <b>{3}</b> ({4}); size {5}{6}</p>\n",
        escape(&figure.name),
        escape(&figure.title),
        escape(&figure.paper),
        figure.said(),
        figure.count(),
        figure.size,
        escape(&figure.only())
    );
    if !figure.as_expected() {
        let _ = writeln!(s, "<p class=\"notice bad\">Expected was: {}</p>", figure.expected);
    }
    for plot in &figure.plots {
        let of = |size: &Size| draw::chart(plot, &figure.points, &figure.rows, size);
        let (wide, narrow) = (Size::wide(260.0), Size::narrow(220.0));
        let top = |size: Size| Size { top: 24.0, ..size };
        if let (Some(wide), Some(narrow)) = (of(&top(wide)), of(&top(narrow))) {
            let has_papers = draw::has_papers(plot, &figure.rows);
            let diamonds = if has_papers { " Diamonds are the paper's." } else { "" };
            let _ = writeln!(
                s,
                "<figure>\n<figcaption><b>{}.</b>{diamonds}</figcaption>\n\
                 <div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div>\n</figure>",
                escape(&plot.title)
            );
        }
    }
    s += &table(figure);
    let list = |s: &mut String, head: &str, all: &[String]| {
        if !all.is_empty() {
            let items: String = all.iter().map(|i| format!("<li>{}</li>\n", escape(i))).collect();
            let _ = write!(s, "<h3>{head}</h3>\n<ul>\n{items}</ul>\n");
        }
    };
    list(&mut s, "Where differences come from", &figure.causes);
    list(&mut s, "What is ours", &figure.ours);
    list(&mut s, "Of this run", &figure.notes);
    if let Some(machine) = &figure.machine {
        let _ =
            writeln!(s, "<p>Measured on {}: another run gives other numbers.</p>", escape(machine));
    }
    s + "</section>\n"
}

fn table(figure: &FigureResult) -> String {
    let heads = ["paper", "here", "unit", "rule", "verdict"];
    let head: String = heads.iter().map(|head| format!("<th>{head}</th>")).collect();
    let mut s = format!("<table>\n<thead><tr><th>what</th>{head}</tr></thead>\n<tbody>\n");
    for row in &figure.rows {
        let (verdict, class) = match row.word() {
            word @ ("ok" | "OFF") => (word, word.to_lowercase()),
            word => (word, String::new()),
        };
        let because = row.because.as_ref().map(|why| format!(" title=\"{}\"", escape(why)));
        let rule = match row.rule {
            Rule::None => String::new(),
            rule => format!("{rule}{}", if row.order { " (order)" } else { "" }),
        };
        let shown = |value: Option<f64>| value.map_or(String::new(), number);
        let here = if row.here.is_some() { row.shown() } else { String::new() };
        let cells = [shown(row.paper), here, row.unit.clone(), rule, verdict.into()];
        let _ = write!(s, "<tr{}><th>{}</th>", because.unwrap_or_default(), escape(&row.what));
        for (head, cell) in heads.iter().zip(cells) {
            let class = if *head == "verdict" { &class[..] } else { "" };
            let _ = write!(s, "<td data-h=\"{head}\" class=\"{class}\">{}</td>", escape(&cell));
        }
        s += "</tr>\n";
    }
    s + "</tbody>\n</table>\n"
}

/// A row for each point: series, axes, metrics.
fn rows(points: &Points) -> Vec<Vec<Named>> {
    let (axes, metrics) = columns(points);
    let row = |point: &Point| {
        let text = |name: &str, text: &str| (name.to_string(), Cell::Text(text.into()));
        let places = axes.iter().map(|axis| text(axis, point.on(axis).unwrap_or("")));
        let value =
            |metric: &String| (metric.clone(), Cell::Ratio(point.values.get(metric).copied()));
        let series = [text("series", &point.series)].into_iter();
        series.chain(places).chain(metrics.iter().map(value)).collect()
    };
    points.0.iter().map(row).collect()
}

/// Axes in the order in which they appear, and metrics by name.
fn columns(points: &Points) -> (Vec<String>, Vec<String>) {
    let (mut axes, mut metrics) = (Vec::new(), BTreeSet::new());
    for point in &points.0 {
        for (axis, _) in &point.at {
            if !axes.contains(axis) {
                axes.push(axis.clone());
            }
        }
        metrics.extend(point.values.keys().cloned());
    }
    (axes, metrics.into_iter().collect())
}

impl FigureResult {
    /// All points: a line each, under a header.
    pub fn to_csv(&self) -> String {
        let rows = rows(&self.points);
        let heads = rows.first().into_iter().flatten().map(|(name, _)| name.as_str());
        let mut s = csv_line(heads);
        for row in &rows {
            let cells: Vec<String> = row
                .iter()
                .map(|(_, cell)| match cell {
                    Cell::Text(text) => text.clone(),
                    Cell::Ratio(value) => value.map_or(String::new(), |value| value.to_string()),
                    Cell::Int(n) => n.map_or(String::new(), |n| n.to_string()),
                    Cell::Bool(b) => b.to_string(),
                })
                .collect();
            s += &csv_line(cells.iter().map(String::as_str));
        }
        s
    }

    /// All points as Parquet, with the columns of the CSV.
    pub fn to_parquet(&self) -> Vec<u8> {
        parquet(&rows(&self.points))
    }

    /// What its files are called: the figure's name, or that of its file.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default().trim_end_matches(".toml")
    }

    /// What is drawn of it.
    pub fn drawings(&self) -> Vec<Drawing> {
        let drawn = self.plots.iter().enumerate().filter_map(|(i, plot)| {
            let name = format!("{}-{}", self.short_name(), i + 1);
            Some(Drawing { name, svg: draw::file(plot, &self.points, &self.rows)? })
        });
        drawn.collect()
    }
}

/// A plot that is a file of its own.
pub struct Drawing {
    /// Of the file, without its ending.
    pub name: String,
    pub svg: String,
}

impl Drawing {
    /// The same as PNG, two pixels for each unit.
    ///
    /// # Errors
    /// A title has a character that no drawing can hold.
    pub fn png(&self) -> Result<Vec<u8>, ReproduceError> {
        let bad = |what| ReproduceError::Bad { figure: self.name.clone(), what };
        png(&self.svg).map_err(bad)
    }
}
