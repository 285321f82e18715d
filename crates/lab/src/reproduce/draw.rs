//! Curves of a figure, as the paper draws them, with the paper's points among ours.
//!
//! Owns: which point goes where. Promises: values of the horizontal axis lie at equal distances in the order in
//! which they were measured, as in the papers; a number of the paper that is one point of a curve is a diamond of
//! its colour; the same points give the same bytes. Never: computes a number.

use super::file::Plot;
use super::points::{Points, Selector};
use super::rows::Row;
use crate::report::html::svg::{Axis, Size, apart, axes, c, cut, escape, open, text, text_at};
use std::fmt::Write;

/// Names on the horizontal axis at most; of more, each second or third has its own.
const TICKS: usize = 24;
/// Colours, and patterns of dashes.
const KINDS: usize = 6;

/// One curve.
struct Curve<'a> {
    name: &'a str,
    /// (place on the axis, value).
    ours: Vec<(usize, f64)>,
    papers: Vec<(usize, f64)>,
}

/// A drawing at some size; `None` where nothing of it was measured.
pub(super) fn chart(plot: &Plot, points: &Points, rows: &[Row], size: &Size) -> Option<String> {
    let names = names(plot, points);
    let place = |name: &str| names.iter().position(|known| known == name);
    let mut curves = Vec::new();
    for (of, name) in &plot.lines {
        let measured = points.0.iter().filter(|point| of.takes(point));
        let ours = measured.filter_map(|p| Some((place(p.on(&plot.x)?)?, *p.values.get(&plot.y)?)));
        let papers = rows.iter().filter_map(|row| {
            let at = value_on(row.place.as_ref()?, of, &plot.x)?;
            Some((place(at)?, row.paper?))
        });
        curves.push(Curve { name, ours: ours.collect(), papers: papers.collect() });
    }
    let all = || curves.iter().flat_map(|curve| curve.ours.iter().chain(&curve.papers));
    let values = || all().map(|(_, value)| *value).filter(|v| v.is_finite());
    if curves.iter().all(|curve| curve.ours.is_empty()) {
        return None;
    }
    let high = values().fold(0.0, f64::max);
    let mut x = Axis::names(&names, &plot.x_title);
    let each = names.len().div_ceil(TICKS).max(1) as f64;
    x.ticks.retain(|(place, _)| place % each == 0.0);
    let y = match plot.log {
        true => Axis::log(values().fold(high, f64::min), high, &plot.y_title),
        false => Axis::linear(high, 5, &plot.y_title, ""),
    };
    let alt = format!("{}: {} over {}", plot.title, plot.y_title, plot.x_title);
    Some(drawn(&curves, &names, (&x, &y), size, &alt))
}

/// A number of the paper is a point of one of its curves.
pub(super) fn has_papers(plot: &Plot, rows: &[Row]) -> bool {
    let is_of = |row: &Row, of: &Selector| {
        row.place.as_ref().is_some_and(|place| value_on(place, of, &plot.x).is_some())
    };
    let papers = rows.iter().filter(|row| row.paper.is_some());
    papers.into_iter().any(|row| plot.lines.iter().any(|(of, _)| is_of(row, of)))
}

/// Values of the horizontal axis, in the order of the points.
fn names(plot: &Plot, points: &Points) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (of, _) in &plot.lines {
        for name in points.values_of(&plot.x, of) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    // Numbers that came from several curves are in order, whichever way they go.
    let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
    if let Some(numbers) = numbers {
        let falls = numbers.len() > 1 && numbers[0] > numbers[1];
        let value = |name: &String| name.parse::<f64>().unwrap_or_default();
        names.sort_by(|a, b| value(a).total_cmp(&value(b)));
        if falls {
            names.reverse();
        }
    }
    names
}

/// Where on an axis a row lies that is one point of a curve.
fn value_on<'a>(row: &'a Selector, of: &Selector, axis: &str) -> Option<&'a str> {
    let on = |(name, _): &&(String, Vec<String>)| name == axis;
    let is_of = row.series == of.series
        && row.metric == of.metric
        && of.at.iter().all(|place| row.at.contains(place))
        && row.at.iter().filter(|place| !on(place)).all(|place| of.at.contains(place));
    match row.at.iter().find(on) {
        Some((_, values)) if is_of && values.len() == 1 => Some(&values[0]),
        _ => None,
    }
}

fn drawn(
    curves: &[Curve<'_>],
    names: &[String],
    (x, y): (&Axis, &Axis),
    size: &Size,
    alt: &str,
) -> String {
    let mut s = open(size, "chart", alt, "");
    s += &axes(size, x, y);
    s += &text_at("name", "start", (size.x0() - size.left + 2.0, size.y1() - 11.0), &y.title);
    let at = |(place, value): (usize, f64)| (size.x(x, place as f64), size.y(y, value));
    let mut labels = Vec::new();
    for (i, curve) in curves.iter().enumerate() {
        let kind = i % KINDS;
        let mut d = String::new();
        for (n, (px, py)) in curve.ours.iter().copied().map(at).enumerate() {
            let _ = write!(d, "{}{} {}", if n == 0 { "M" } else { "L" }, c(px), c(py));
        }
        let _ = writeln!(s, "<path class=\"line r{kind} d{kind}\" d=\"{d}\"/>");
        for (place, value) in &curve.ours {
            let (px, py) = at((*place, *value));
            let says = format!("{}, {}: {}", curve.name, names[*place], super::number(*value));
            let _ = writeln!(
                s,
                "<circle class=\"dot f{kind}\" cx=\"{}\" cy=\"{}\" r=\"2.8\"><title>{}</title></circle>",
                c(px),
                c(py),
                escape(&says)
            );
        }
        for (place, value) in &curve.papers {
            let (px, py) = at((*place, *value));
            let says = format!("the paper: {}", super::number(*value));
            let _ = writeln!(
                s,
                "<path class=\"paper r{kind}\" d=\"M{} {}l6 6l-6 6l-6 -6z\"><title>{}</title></path>",
                c(px),
                c(py - 6.0),
                escape(&says)
            );
        }
        if let Some(last) = curve.ours.last() {
            labels.push((at(*last).1 + 4.0, i));
        }
    }
    apart(&mut labels, 14.0, size.y1() + 6.0, size.y0() + 4.0);
    for (at, i) in labels {
        let class = format!("label r{}", i % KINDS);
        s += &(text(&class, (size.x1() + 6.0, at), &cut(curves[i].name, size.label)) + "\n");
    }
    s + "</svg>\n"
}

/// Literal colours and sizes, for a drawing that is a file of its own.
const STYLE: &str = "text{fill:#1a1c1e;font:12px 'DejaVu Sans',Arial,sans-serif}.tick,.name{fill:#5a6066}\
    .head{font-weight:600;font-size:14px}.label{font-weight:600}.grid{stroke:#e9ecef;fill:none}\
    .axis{stroke:#5a6066;fill:none}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}\
    .paper{fill:#fff;stroke-width:1.8}.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}\
    .d3{stroke-dasharray:9 3 2 3}.d4{stroke-dasharray:12 4}.d5{stroke-dasharray:4 4}";
const COLOURS: [&str; KINDS] = ["#0072b2", "#c44e00", "#007d5c", "#a6437f", "#7d6200", "#3f4347"];

/// A drawing as a file: the chart under its title, and what the diamonds are.
pub(super) fn file(plot: &Plot, points: &Points, rows: &[Row]) -> Option<String> {
    const HEAD: f64 = 34.0;
    let size = Size::wide(300.0);
    let chart = chart(plot, points, rows, &Size { top: 24.0, ..size })?;
    let mut style = STYLE.to_string();
    for (i, colour) in COLOURS.iter().enumerate() {
        let _ = write!(
            style,
            ".line.r{i},.paper.r{i}{{stroke:{colour}}}text.r{i},.f{i}{{fill:{colour}}}"
        );
    }
    let (width, height) = (c(size.width), c(size.height + HEAD));
    let inner = chart.replacen(
        "<svg ",
        &format!("<svg y=\"{HEAD}\" width=\"{width}\" height=\"{}\" ", c(size.height)),
        1,
    );
    let mut s = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<style>{style}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    s += &text("head", (8.0, 22.0), &plot.title);
    if chart.contains("class=\"paper") {
        s += &text_at("name", "end", (size.width - 8.0, 22.0), "diamonds: the paper");
    }
    Some(s + "\n" + &inner + "</svg>\n")
}
