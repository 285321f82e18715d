//! What a figure has measured: points on a grid.
//!
//! Owns: a point (series, place on the axes, values by metric), how points are chosen by a text ([`Selector`]).
//! Promises: axes and their values keep the order in which they were measured; a choice in which one point is
//! missing gives nothing, so that no number is computed from half of a curve. Never: measures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    pub series: String,
    /// (axis, value), in the order of the axes.
    pub at: Vec<(String, String)>,
    /// By metric; a name ends in its unit.
    pub values: BTreeMap<String, f64>,
}

impl Point {
    pub(super) fn new<const N: usize>(series: &str, at: [(&str, String); N]) -> Point {
        let at = at.map(|(axis, value)| (axis.to_string(), value)).into();
        Point { series: series.into(), at, values: BTreeMap::new() }
    }

    /// With this value.
    pub(super) fn with(mut self, metric: &str, value: f64) -> Point {
        self.values.insert(metric.into(), value);
        self
    }

    /// Where it is on an axis.
    pub fn on(&self, axis: &str) -> Option<&str> {
        self.at.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }
}

/// Values of a point by metric.
pub(super) type Values = BTreeMap<String, f64>;
/// Values, and where on an axis of its own a part of a run is.
pub(super) type Placed = (Option<(String, String)>, Values);

/// All points of a figure. One without values was to be measured, and was not.
#[derive(Clone, Debug, Default)]
pub struct Points(pub Vec<Point>);

impl Points {
    /// Points whose order is that of a grid: what was not measured is in its place, without values.
    pub(super) fn add(&mut self, point: Point) {
        self.0.push(point);
    }

    /// Any that was not measured?
    pub(super) fn lack_some(&self) -> bool {
        self.0.iter().any(|point| point.values.is_empty())
    }

    /// Values of an axis, in their order, among points of a choice.
    pub(super) fn values_of(&self, axis: &str, of: &Selector) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for value in self.0.iter().filter(|p| of.takes(p)).filter_map(|p| p.on(axis)) {
            if !all.iter().any(|known| known == value) {
                all.push(value.into());
            }
        }
        all
    }

    /// Axes on which the points of a choice have different places.
    pub(super) fn free_axes(&self, of: &Selector) -> Vec<String> {
        let mut axes: Vec<String> = Vec::new();
        for (axis, _) in self.0.iter().filter(|p| of.takes(p)).flat_map(|p| &p.at) {
            if !axes.contains(axis) && self.values_of(axis, of).len() > 1 {
                axes.push(axis.clone());
            }
        }
        axes
    }

    /// Whether the points of a series have a place on an axis.
    ///
    /// # Errors
    /// None has.
    pub(super) fn lie_on(&self, axis: &str, of: &Selector) -> Result<(), String> {
        let mut series = self.0.iter().filter(|point| point.series == of.series);
        match series.clone().any(|point| point.on(axis).is_some()) {
            true => Ok(()),
            false => {
                let known = series.next().map_or(&[][..], |point| &point.at).iter();
                let known: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(format!("`{}` has no axis `{axis}`: it has {known}", of.series))
            }
        }
    }

    /// Is there a point of this choice, measured or not?
    ///
    /// # Errors
    /// There is no such series, or none of its points has such a value.
    pub(super) fn have(&self, of: &Selector) -> Result<bool, String> {
        let mut series = self.0.iter().filter(|point| point.series == of.series).peekable();
        if series.peek().is_none() {
            let known: BTreeSet<&str> = self.0.iter().map(|p| p.series.as_str()).collect();
            let known: Vec<&str> = known.into_iter().collect();
            return Err(format!("no point has `{of}`: its series are {}", known.join(", ")));
        }
        let measured: Vec<&Point> = series.filter(|point| !point.values.is_empty()).collect();
        if !measured.is_empty() && !measured.iter().any(|p| p.values.contains_key(&of.metric)) {
            let known = measured[0].values.keys().map(String::as_str);
            let near = crate::suggest::hint(&of.metric, known.clone());
            let known: Vec<&str> = known.collect();
            return Err(format!("no point has `{of}`{near}: there are {}", known.join(", ")));
        }
        Ok(self.0.iter().any(|point| of.takes(point)))
    }

    /// Why choices of points, all of which were measured, give no value.
    pub(super) fn why_none(&self, chosen: &[&Selector]) -> String {
        let of = |of: &&Selector| {
            let taken = || self.0.iter().filter(|point| of.takes(point));
            let has = taken().filter(|point| point.values.contains_key(&of.metric)).count();
            match taken().count() {
                all if has < all => format!("`{of}` has a value at {has} of its {all} points"),
                all => format!("`{of}` is {all} points"),
            }
        };
        let said: Vec<String> = chosen.iter().map(of).collect();
        format!("it has no value, as its points do not fit: {}", said.join(", "))
    }

    /// The points of a choice, with what it asks of each; `None` where there are none, or one is missing.
    pub(super) fn choose<'a>(&'a self, of: &Selector) -> Option<Vec<(&'a Point, f64)>> {
        let taken = self.0.iter().filter(|point| of.takes(point));
        let all: Option<Vec<_>> =
            taken.map(|point| Some((point, *point.values.get(&of.metric)?))).collect();
        all.filter(|all| !all.is_empty())
    }
}

/// Which points, and which of their values: `SERIES METRIC AXIS=VALUE,VALUE ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pub series: String,
    pub metric: String,
    /// Values that are taken, by axis; all of an axis that is not here.
    pub at: Vec<(String, Vec<String>)>,
}

impl Selector {
    pub(super) fn takes(&self, point: &Point) -> bool {
        let on = |(axis, values): &(String, Vec<String>)| {
            point.on(axis).is_some_and(|value| values.iter().any(|v| v == value))
        };
        self.series == point.series && self.at.iter().all(on)
    }

    /// Only where an axis has this value; as it is where it has chosen already.
    pub(super) fn at(&self, axis: &str, value: &str) -> Selector {
        let mut chosen = self.clone();
        if !chosen.at.iter().any(|(name, _)| name == axis) {
            chosen.at.push((axis.into(), vec![value.into()]));
        }
        chosen
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Selector, String> {
        let mut words = text.split_whitespace();
        let (Some(series), Some(metric)) = (words.next(), words.next()) else {
            return Err(format!("`{text}` is no choice of points: `SERIES METRIC AXIS=VALUE ...`"));
        };
        let mut at: Vec<(String, Vec<String>)> = Vec::new();
        for word in words {
            let Some((axis, values)) = word.split_once('=') else {
                return Err(format!("`{word}` is no place on an axis: `AXIS=VALUE,VALUE`"));
            };
            if at.iter().any(|(known, _)| known == axis) {
                return Err(format!("the axis `{axis}` is there twice"));
            }
            at.push((axis.into(), values.split(',').map(str::to_string).collect()));
        }
        Ok(Selector { series: series.into(), metric: metric.into(), at })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.series, self.metric)?;
        self.at.iter().try_for_each(|(axis, values)| write!(f, " {axis}={}", values.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn points() -> Points {
        let of = |series: &str, n: u32| Point::new(series, [("threads", n.to_string())]);
        Points(vec![
            of("a", 1).with("x", 1.0),
            of("a", 16).with("x", 5.0),
            of("a", 2).with("x", 3.0),
            of("b", 1),
        ])
    }

    #[test]
    fn points_are_chosen_by_words() {
        let points = points();
        let chosen = |text: &str| {
            let of: Selector = text.parse().unwrap();
            assert_eq!(of.to_string(), text);
            points.choose(&of).map(|all| all.iter().map(|(_, v)| *v).collect::<Vec<_>>())
        };
        assert_eq!(chosen("a x"), Some(vec![1.0, 5.0, 3.0]));
        assert_eq!(chosen("a x threads=2,1"), Some(vec![1.0, 3.0]));
        for nothing in ["b x", "a y", "a x threads=3", "c x", "a x depth=1"] {
            assert_eq!(chosen(nothing), None, "{nothing}");
        }
        let all: Selector = "a x".parse().unwrap();
        assert_eq!(points.values_of("threads", &all), ["1", "16", "2"]);
        assert_eq!(points.choose(&all.at("threads", "2")).unwrap()[0].1, 3.0);
        let one: Selector = "a x threads=1".parse().unwrap();
        assert_eq!(one.at("threads", "2"), one, "it has chosen");
        assert!(points.lack_some());
        for bad in ["", "a", "a x threads", "a x t=1 t=2"] {
            assert!(bad.parse::<Selector>().is_err(), "{bad}");
        }
    }
}
