//! Pieces of a drawing: sizes, scales, ticks, axes, text.
//!
//! Owns: how a number becomes a place and a label. Promises: text is escaped; coordinates have one
//! decimal, so that the same numbers give the same bytes. Never: knows what is drawn.

use std::fmt::Write;

/// Dimensions of a drawing and the margins around its plot, in CSS pixels at natural size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
    /// Ticks wanted on the horizontal axis.
    pub(crate) x_ticks: usize,
    /// Points of a line over time at most.
    pub(crate) points: usize,
    /// Characters of a label beside the plot at most.
    pub(crate) label: usize,
}

impl Size {
    /// For screens and paper.
    pub(crate) const fn wide(height: f64) -> Size {
        Size {
            width: 860.0,
            height,
            left: 56.0,
            right: 148.0,
            top: 10.0,
            bottom: 40.0,
            x_ticks: 8,
            points: 172,
            label: 18,
        }
    }

    /// For a phone, 390 pixels wide: 358 between the page's margins.
    pub(crate) const fn narrow(height: f64) -> Size {
        let (width, left, right) = (358.0, 54.0, 86.0);
        Size { width, left, right, x_ticks: 4, points: 80, label: 10, ..Size::wide(height) }
    }

    /// Half of a wide page, without names at the right.
    pub(crate) const fn half(height: f64) -> Size {
        Size { width: 422.0, right: 8.0, x_ticks: 5, ..Size::wide(height) }
    }

    /// With room at the left for labels of eight characters.
    pub(crate) fn long_labels(self) -> Size {
        Size { left: self.left.max(72.0), ..self }
    }

    pub(crate) fn x0(&self) -> f64 {
        self.left
    }
    pub(crate) fn x1(&self) -> f64 {
        self.width - self.right
    }
    pub(crate) fn y0(&self) -> f64 {
        self.height - self.bottom
    }
    pub(crate) fn y1(&self) -> f64 {
        self.top
    }

    /// Where a value of the horizontal axis lies.
    pub(crate) fn x(&self, axis: &Axis, v: f64) -> f64 {
        self.x0() + axis.at(v) * (self.x1() - self.x0())
    }

    /// Where a value of the vertical axis lies.
    pub(crate) fn y(&self, axis: &Axis, v: f64) -> f64 {
        self.y0() - axis.at(v) * (self.y0() - self.y1())
    }
}

/// How values lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Linear,
    /// Powers of ten.
    Log,
    /// Shares below 1, each nine as long as the one before: 0, 0.9, 0.99, 0.999.
    Nines,
}

#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) kind: Kind,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<(f64, String)>,
    pub(crate) title: String,
    /// Said behind a value under the pointer.
    pub(crate) unit: &'static str,
}

fn spread(kind: Kind, v: f64) -> f64 {
    match kind {
        Kind::Linear => v,
        Kind::Log => v.max(1e-12).log10(),
        Kind::Nines => -(1.0 - v).max(1e-9).log10(),
    }
}

impl Axis {
    /// From 0 to at least `high`, with about so many ticks at round numbers.
    pub(crate) fn linear(high: f64, wanted: usize, title: &str, unit: &'static str) -> Axis {
        let high = if high > 0.0 && high.is_finite() { high } else { 1.0 };
        let step = round_step(high / wanted.max(1) as f64);
        let n = (high / step - 1e-9).ceil().max(1.0) as usize;
        let places = (-step.log10().floor()).max(0.0) as usize;
        let ticks = (0..=n).map(|i| (i as f64 * step, fixed(i as f64 * step, places)));
        Axis {
            kind: Kind::Linear,
            low: 0.0,
            high: n as f64 * step,
            ticks: ticks.collect(),
            title: title.into(),
            unit,
        }
    }

    /// As `linear`, but ends at `high` itself: time does not go on to a round number.
    pub(crate) fn exact(high: f64, wanted: usize, title: &str, unit: &'static str) -> Axis {
        let mut axis = Axis::linear(high, wanted, title, unit);
        if high > 0.0 {
            axis.high = high;
            axis.ticks.retain(|(v, _)| *v <= high * 1.0001);
        }
        axis
    }

    /// Times in ns from `low` to `high`, both above 0, on a logarithmic scale: ticks at powers of ten,
    /// over few of them also at 2 and 5 times those, at most `wanted` where that is possible.
    pub(crate) fn latency(low: f64, high: f64, wanted: usize, title: &str) -> Axis {
        let low = low.max(1.0);
        let high = high.max(low * 2.0);
        let (low, high) = (low / 1.15, high * 1.15);
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let ticks = |steps: &[f64]| -> Vec<(f64, String)> {
            let all = powers.clone().flat_map(|p| steps.iter().map(move |s| s * 10f64.powi(p)));
            let within = all.filter(|v| (low..=high).contains(v));
            within.map(|v| (v, time(v))).collect()
        };
        let finer = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]].map(ticks);
        let mut ticks = finer
            .iter()
            .find(|t| t.len() <= wanted)
            .unwrap_or_else(|| finer.last().expect("three ways"))
            .clone();
        while ticks.len() > wanted.max(2) {
            let mut at = 0;
            ticks.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        Axis { kind: Kind::Log, low, high, ticks, title: title.into(), unit: "ns" }
    }

    /// Powers of ten from below `low` to above `high`, both above 0.
    pub(crate) fn log(low: f64, high: f64, title: &str) -> Axis {
        let (from, to) =
            (low.max(1e-9).log10().floor() as i32, high.max(1e-9).log10().ceil() as i32);
        let to = to.max(from + 1);
        let ticks = (from..=to).map(|p| {
            let places = usize::try_from(-p).unwrap_or(0);
            (10f64.powi(p), fixed(10f64.powi(p), places))
        });
        let (low, high) = (10f64.powi(from), 10f64.powi(to));
        let ticks = ticks.collect();
        Axis { kind: Kind::Log, low, high, ticks, title: title.into(), unit: "" }
    }

    /// Names at equal distances, the first at 0, the second at 1.
    pub(crate) fn names(names: &[String], title: &str) -> Axis {
        let ticks = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone()));
        let (low, high) = (-0.2, names.len().max(2) as f64 - 0.8);
        let ticks = ticks.collect();
        Axis { kind: Kind::Linear, low, high, ticks, title: title.into(), unit: "" }
    }

    /// Shares, up to that many nines.
    pub(crate) fn nines(nines: usize, title: &str) -> Axis {
        let all = [
            (0.0, "0%"),
            (0.5, "50%"),
            (0.9, "90%"),
            (0.99, "99%"),
            (0.999, "99.9%"),
            (0.9999, "99.99%"),
            (0.99999, "99.999%"),
            (0.999999, "99.9999%"),
        ];
        let nines = nines.clamp(2, 6);
        let ticks: Vec<(f64, String)> =
            all[..nines + 2].iter().map(|(v, l)| (*v, (*l).to_string())).collect();
        Axis {
            kind: Kind::Nines,
            low: 0.0,
            high: ticks[nines + 1].0,
            ticks,
            title: title.into(),
            unit: "%",
        }
    }

    /// Where a value lies between the ends, 0 to 1.
    pub(crate) fn at(&self, v: f64) -> f64 {
        let (low, high) = (spread(self.kind, self.low), spread(self.kind, self.high));
        ((spread(self.kind, v) - low) / (high - low)).clamp(0.0, 1.0)
    }
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let mantissa = least / power;
    let step = [1.0, 2.0, 5.0].into_iter().find(|s| *s >= mantissa - 1e-9).unwrap_or(10.0);
    step * power
}

fn fixed(v: f64, places: usize) -> String {
    let text = format!("{v:.places$}");
    match v >= 10_000.0 {
        true => crate::words::grouped(v as u64),
        false => text,
    }
}

/// A duration in ns, with its unit.
pub(crate) fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let places =
        if value.fract() < 1e-9 || value >= 100.0 { 0 } else { 1 + (value < 10.0) as usize };
    format!("{value:.places$} {unit}")
}

/// The unit in which a span of ns reads best: factor and name.
pub(crate) fn time_unit(ns: f64) -> (f64, &'static str) {
    match ns {
        n if n < 2e3 => (1.0, "ns"),
        n if n < 2e6 => (1e3, "µs"),
        n if n < 2e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    }
}

/// Text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // Not allowed in HTML, and nothing to see.
            c if c.is_control() && c != '\n' => {}
            c => out.push(c),
        }
    }
    out
}

/// At most so many characters, the end cut where it is longer.
pub(crate) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most.saturating_sub(1)).collect::<String>() + "…"
}

/// Text of a class at a place.
pub(crate) fn text(class: &str, (x, y): (f64, f64), text: &str) -> String {
    format!("<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>", c(x), c(y), escape(text))
}

/// As [`text`], with its middle or its end there.
pub(crate) fn text_at(class: &str, anchor: &str, (x, y): (f64, f64), text: &str) -> String {
    let (x, y, text) = (c(x), c(y), escape(text));
    format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>")
}

/// An area, named under the pointer.
pub(crate) fn area(class: &str, d: &str, name: &str) -> String {
    format!("<path class=\"area {class}\" d=\"{d}\"><title>{}</title></path>", escape(name))
}

pub(crate) fn c(v: f64) -> String {
    let text = format!("{v:.1}");
    text.strip_suffix(".0").map(str::to_string).unwrap_or(text)
}

/// Opens a drawing that says what it is to those who do not see it; `data` is for the pointer.
pub(crate) fn open(size: &Size, class: &str, alt: &str, data: &str) -> String {
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"{data}>\n",
        c(size.width),
        c(size.height),
        escape(alt)
    )
}

/// Grid, ticks and titles of both axes.
pub(crate) fn axes(size: &Size, x: &Axis, y: &Axis) -> String {
    let mut s = String::new();
    for (v, label) in &y.ticks {
        let at = size.y(y, *v);
        let (x0, x1) = (size.x0(), size.x1());
        let _ = write!(s, "<path class=\"grid\" d=\"M{} {}H{}\"/>", c(x0), c(at), c(x1));
        s += &text_at("tick", "end", (x0 - 6.0, at + 4.0), label);
    }
    s += &x_axis(size, x);
    s.push('\n');
    s
}

/// Ticks and title of the horizontal axis.
pub(crate) fn x_axis(size: &Size, x: &Axis) -> String {
    let mut s =
        format!("<path class=\"axis\" d=\"M{} {}H{}\"/>", c(size.x0()), c(size.y0()), c(size.x1()));
    for (v, label) in &x.ticks {
        let at = size.x(x, *v);
        let _ = write!(s, "<path class=\"axis\" d=\"M{} {}v4\"/>", c(at), c(size.y0()));
        s += &text_at("tick", "middle", (at, size.y0() + 16.0), label);
    }
    let middle = (size.x0() + size.x1()) / 2.0;
    s + &text_at("name", "middle", (middle, size.y0() + 33.0), &x.title)
}

/// Moves labels apart that would lie on each other: `at` sorted by place, `gap` between them, all
/// within `low` to `high` as far as they fit.
pub(crate) fn apart(at: &mut [(f64, usize)], gap: f64, low: f64, high: f64) {
    at.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut least = low;
    for (place, _) in at.iter_mut() {
        *place = place.max(least);
        least = *place + gap;
    }
    let mut most = high;
    for (place, _) in at.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        let labels = |a: &Axis| a.ticks.iter().map(|t| t.1.clone()).collect::<Vec<_>>().join(" ");
        let a = Axis::linear(0.93, 4, "", "");
        assert_eq!((labels(&a).as_str(), a.high), ("0.0 0.5 1.0", 1.0));
        let a = Axis::linear(1234.0, 5, "", "");
        assert_eq!(labels(&a), "0 500 1000 1500");
        assert_eq!(labels(&Axis::linear(0.0, 4, "", "")), "0.0 0.5 1.0");
        let a = Axis::exact(65.3, 8, "", "s");
        assert_eq!((labels(&a).as_str(), a.high), ("0 10 20 30 40 50 60", 65.3));
        let a = Axis::latency(90.0, 3e6, 6, "");
        assert_eq!(labels(&a), "100 ns 1 µs 10 µs 100 µs 1 ms");
        assert!((a.at((a.low * a.high).sqrt()) - 0.5).abs() < 1e-9);
        assert_eq!(labels(&Axis::latency(90.0, 3e6, 3, "")), "100 ns 10 µs 1 ms");
        assert_eq!(labels(&Axis::latency(2e3, 9e3, 6, "")), "2 µs 5 µs 10 µs");
        assert!(!Axis::latency(7.0, 7.0, 6, "").ticks.is_empty(), "10 ns");
        let a = Axis::nines(4, "");
        assert!((a.at(0.99) - 0.5).abs() < 1e-9 && a.at(1.0) == 1.0, "{a:?}");
    }

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(escape("a<b>&\"c\"\u{7}"), "a&lt;b&gt;&amp;&quot;c&quot;");
        assert_eq!(cut("page-mapped", 6), "page-…");
        assert_eq!(cut("pblk", 6), "pblk");
    }

    #[test]
    fn labels_do_not_lie_on_each_other() {
        let mut at = [(10.0, 0), (11.0, 1), (95.0, 2), (99.0, 3)];
        apart(&mut at, 14.0, 5.0, 100.0);
        let gaps: Vec<f64> = at.windows(2).map(|w| w[1].0 - w[0].0).collect();
        assert!(gaps.iter().all(|g| *g >= 14.0) && at[3].0 <= 100.0 && at[0].0 >= 5.0, "{at:?}");
    }
}
