//! Drawings of numbers: lines, stacked areas, bars, a heat map.
//!
//! Owns: how each kind of chart looks, at any size. Promises: colour is never the only difference
//! (labels at the lines, patterns of dashes, a table behind it); nothing is drawn outside its frame.
//! Never: computes what it draws.

use super::svg::{
    Axis, Kind, Size, apart, area, axes, c, cut, escape, open, text, text_at, x_axis,
};
use std::collections::BTreeMap;
use std::fmt::Write;

pub(super) struct Line {
    pub(super) name: String,
    /// Colour and dashes.
    pub(super) class: String,
    /// In the units of the axes, ascending in x.
    pub(super) points: Vec<(f64, f64)>,
    /// Each value holds from its place to the next.
    pub(super) steps: bool,
}

/// Where both axes lie, for the script that shows values under the pointer.
fn pointer(size: &Size, x: &Axis, y: &Axis) -> String {
    let axis = |a: &Axis, from: f64, to: f64| {
        let kind = match a.kind {
            Kind::Linear => "lin",
            Kind::Log => "log",
            Kind::Nines => "nines",
        };
        format!("{kind},{},{},{},{},{}", a.low, a.high, c(from), c(to), escape(a.unit))
    };
    let (x, y) = (axis(x, size.x0(), size.x1()), axis(y, size.y0(), size.y1()));
    format!(" data-x=\"{x}\" data-y=\"{y}\"")
}

/// Lines over a common axis, each with its name at its end.
pub(super) fn lines(size: &Size, x: &Axis, y: &Axis, lines: &[Line], alt: &str) -> String {
    let mut s = open(size, "chart lines", alt, &pointer(size, x, y));
    s += &axes(size, x, y);
    let mut labels: Vec<(f64, usize)> = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let mut d = String::new();
        let mut last = None;
        for (px, py) in line.points.iter().map(|p| (size.x(x, p.0), size.y(y, p.1))) {
            let _ = match last {
                None => write!(d, "M{} {}", c(px), c(py)),
                Some(_) if line.steps => write!(d, "H{}V{}", c(px), c(py)),
                Some(_) => write!(d, "L{} {}", c(px), c(py)),
            };
            last = Some((px, py));
        }
        let Some((_, end)) = last else {
            continue;
        };
        let _ = writeln!(
            s,
            "<path class=\"line {}\" d=\"{d}\" data-name=\"{}\"/>",
            line.class,
            escape(&line.name)
        );
        labels.push((end + 4.0, i));
    }
    apart(&mut labels, 14.0, size.y1() + 6.0, size.y0() + 4.0);
    for (at, i) in labels {
        let class = format!("label {}", lines[i].class);
        let name = cut(&lines[i].name, size.label);
        s += &(text(&class, (size.x1() + 6.0, at), &name) + "\n");
    }
    s + "</svg>\n"
}

/// A layer of a stack of areas.
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) class: String,
    /// One per span.
    pub(super) values: Vec<f64>,
}

/// Stacked steps: `ends` are the right ends of the spans, from 0 on; `note` stands at the right.
pub(super) fn areas(
    size: &Size,
    x: &Axis,
    y: &Axis,
    ends: &[f64],
    layers: &[Layer],
    note: &[String],
    alt: &str,
) -> String {
    let mut s = open(size, "chart", alt, "");
    s += &axes(size, x, y);
    let (right, up) = (|v: f64| size.x(x, v), |v: f64| size.y(y, v));
    let mut base = vec![0.0; ends.len()];
    for layer in layers {
        let top: Vec<f64> = base.iter().zip(&layer.values).map(|(b, v)| b + v).collect();
        let mut d = format!("M{} {}", c(right(0.0)), c(up(top.first().copied().unwrap_or(0.0))));
        for (i, end) in ends.iter().enumerate() {
            let _ = write!(d, "V{}H{}", c(up(top[i])), c(right(*end)));
        }
        for i in (0..ends.len()).rev() {
            let from = if i == 0 { 0.0 } else { ends[i - 1] };
            let _ = write!(d, "V{}H{}", c(up(base[i])), c(right(from)));
        }
        s += &(area(&layer.class, &(d + "Z"), &layer.name) + "\n");
        base = top;
    }
    for (i, height) in base.iter().enumerate().filter(|(_, height)| **height > y.high) {
        let at = (right(ends[i]) + 3.0, size.y1() + 12.0);
        s += &(text("note", at, &format!("▲ {}", c(*height))) + "\n");
    }
    for (i, note) in note.iter().enumerate() {
        let at = (size.x1() + 6.0, size.y1() + 12.0 + 15.0 * i as f64);
        s += &(text("note", at, note) + "\n");
    }
    s + "</svg>\n"
}

/// A bar of several parts.
pub(super) struct Bar {
    pub(super) name: String,
    /// Class, name, length.
    pub(super) parts: Vec<(&'static str, String, f64)>,
    /// Said at its end.
    pub(super) total: String,
}

/// Height of a horizontal bar with its name above it.
pub(super) const BAR: f64 = 44.0;

/// Horizontal bars, one below the other, each under its name.
pub(super) fn bars(size: &Size, x: &Axis, bars: &[Bar], alt: &str) -> String {
    let size =
        &Size { left: 8.0, height: size.top + size.bottom + BAR * bars.len() as f64, ..*size };
    let mut s = open(size, "chart", alt, "");
    for (v, _) in &x.ticks {
        let (at, top, bottom) = (size.x(x, *v), size.y1(), size.y0());
        let _ = write!(s, "<path class=\"grid\" d=\"M{} {}V{}\"/>", c(at), c(top), c(bottom));
    }
    s += &x_axis(size, x);
    for (i, bar) in bars.iter().enumerate() {
        let top = size.y1() + BAR * i as f64;
        s += &(text("head", (size.x0(), top + 13.0), &bar.name) + "\n");
        let mut from = 0.0;
        for (class, name, length) in &bar.parts {
            let at = size.x(x, from);
            from += length;
            let to = size.x(x, from);
            if to - at >= 0.05 {
                let d = format!("M{} {}H{}v20H{}Z", c(at), c(top + 18.0), c(to), c(at));
                s += &area(class, &d, name);
            }
        }
        s += &(text("note", (size.x(x, from) + 6.0, top + 33.0), &bar.total) + "\n");
    }
    s + "</svg>\n"
}

/// Wider than this a bar is an area.
const BAR_WIDTH_MAX: f64 = 44.0;

/// Upright bars side by side, each with a number below it where there is room.
pub(super) fn columns(
    size: &Size,
    y: &Axis,
    x_title: &str,
    columns: &[(String, f64)],
    class: &str,
    alt: &str,
) -> String {
    let n = columns.len().max(1) as f64;
    let each = (size.x1() - size.x0()) / n;
    // Every k-th label, so that they keep apart.
    let widest = columns.iter().map(|(l, _)| l.chars().count()).max().unwrap_or(1) as f64;
    let every = ((widest * 7.5 + 4.0) / each).ceil().max(1.0) as usize;
    let mut x = Axis::exact(n, 1, x_title, "");
    x.ticks = columns
        .iter()
        .enumerate()
        .step_by(every)
        .map(|(i, (label, _))| (i as f64 + 0.5, label.clone()))
        .collect();
    let mut s = open(size, "chart", alt, "");
    s += &axes(size, &x, y);
    for (i, (label, value)) in columns.iter().enumerate() {
        let left = size.x0() + each * i as f64;
        let gap = (each * 0.12).min(4.0).max((each - BAR_WIDTH_MAX) / 2.0);
        let (top, bottom) = (c(size.y(y, *value)), c(size.y0()));
        let (from, to) = (c(left + gap), c(left + each - gap));
        let d = format!("M{from} {bottom}V{top}H{to}V{bottom}Z");
        s += &area(class, &d, &format!("{label}: {}", c(*value)));
    }
    s + "</svg>\n"
}

/// Levels of a heat map above nothing.
pub(super) const LEVELS: usize = 8;

/// The level of a share of `top`: 0 is nothing at all.
pub(super) fn level(share: u16, top: u16) -> usize {
    (share as usize * LEVELS).div_ceil(top.max(1) as usize).min(LEVELS)
}

/// Cells of a heat map in a square of one unit per cell, to be stretched over a frame: one path per
/// level up to `top`, runs of equal cells of a row as one.
pub(super) fn cells(rows: &[Vec<u16>], top: u16) -> String {
    let class = |share| match level(share, top) {
        0 => None,
        l => Some(format!("h{l}")),
    };
    cells_of(rows, class)
}

/// Cells in a square of one unit per cell: one path per class, runs of equal cells of a row as one; what has no
/// class is not drawn.
pub(super) fn cells_of<T: Copy>(rows: &[Vec<T>], class: impl Fn(T) -> Option<String>) -> String {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    for (y, row) in rows.iter().enumerate() {
        let classes: Vec<Option<String>> = row.iter().map(|cell| class(*cell)).collect();
        let mut x = 0;
        for run in classes.chunk_by(|a, b| a == b) {
            if let Some(class) = &run[0] {
                let d = paths.entry(class.clone()).or_default();
                let _ = write!(d, "M{x} {y}h{0}v1h-{0}z", run.len());
            }
            x += run.len();
        }
    }
    paths.iter().map(|(class, d)| format!("<path class=\"{class}\" d=\"{d}\"/>")).collect()
}

/// The ground of cells, a share of the width, and what brings so many rows and columns of them onto it.
pub(super) fn ground(size: &Size, (rows, columns, share): (usize, usize, f64)) -> (String, String) {
    let (w, h) = ((size.x1() - size.x0()) * share, size.y0() - size.y1());
    let (x, y) = (c(size.x0()), c(size.y1()));
    let (across, down) = (w / columns.max(1) as f64, h / rows.max(1) as f64);
    (
        format!("<rect class=\"h0\" x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"/>", c(w), c(h)),
        format!("transform=\"translate({x} {y}) scale({across:.5} {down:.5})\""),
    )
}

/// A heat map of `rows` × `columns` cells that were drawn before under `id`, over a share of the
/// axis; `groups` rows belong together and are named by `group`.
pub(super) fn heat(
    size: &Size,
    x: &Axis,
    id: &str,
    (rows, columns, share): (usize, usize, f64),
    (groups, group): (usize, &str),
    alt: &str,
) -> String {
    let mut s = open(size, "chart heat", alt, "");
    let (w, h) = ((size.x1() - size.x0()) * share, size.y0() - size.y1());
    let (ground, onto) = ground(size, (rows, columns, share));
    let _ = write!(s, "{ground}<use href=\"#{id}\" {onto}/>");
    let n = rows.div_ceil(groups.max(1));
    let each = h / n.max(1) as f64;
    // Names keep a line apart.
    let every = (14.0 / each).ceil().max(1.0) as usize;
    for g in 0..n {
        let at = size.y1() + each * g as f64;
        if g > 0 {
            let _ = write!(s, "<path class=\"cut\" d=\"M{} {}h{}\"/>", c(size.x0()), c(at), c(w));
        }
        if g % every == 0 {
            let at = (size.x0() - 6.0, at + (each / 2.0).max(5.0) + 4.0);
            s += &text_at("tick", "end", at, &format!("{group}{g}"));
        }
    }
    s += &x_axis(size, x);
    s + "\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_tell_nothing_from_little() {
        let levels = [0, 1, 125, 126, 1000, 9000].map(|share| level(share, 1000));
        assert_eq!(levels, [0, 1, 1, 2, LEVELS, LEVELS]);
    }

    #[test]
    fn equal_neighbours_are_one_cell() {
        let drawn = cells(&[vec![0, 50, 50, 0], vec![100, 100, 100, 100]], 100);
        assert_eq!(
            drawn,
            "<path class=\"h4\" d=\"M1 0h2v1h-2z\"/><path class=\"h8\" d=\"M0 1h4v1h-4z\"/>"
        );
    }
}
