//! Rows of a figure: what the paper prints, how ours is computed from the points, the rule.
//!
//! Owns: rules, the small language of [`Here`], the verdict. Promises: a number of the paper that has no rule of
//! its own is to be met within 15%, and another rule for it says why; what a calibration was fitted to is shown
//! and decides nothing; a row of which one point is missing has no value. Never: measures.

use super::points::{Points, Selector};
use crate::compare::{Estimate, estimate};
use flashlane_base::mutant;
use serde::Serialize;
use std::fmt;

/// How near a number of the paper has to be, in percent, where its row does not say.
const WITHIN_PERCENT: f64 = 15.0;

/// What comes of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every rule holds.
    Reproduced,
    /// Every order and direction holds, some size does not.
    ShapeOnly,
    /// An order or a direction fails.
    Differs,
    /// This machine, or this run, can't show it; or no row is off, and one is open.
    Inconclusive,
    /// The user ended it before every row with a rule was measured.
    Unfinished,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::ShapeOnly => "shape only",
            Verdict::Differs => "differs",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Unfinished => "none, interrupted",
        })
    }
}

/// When a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Shown only.
    None,
    /// This close to the paper, in percent of it.
    WithinPercent(f64),
    /// Between two values.
    Between(f64, f64),
    /// Not above.
    AtMost(f64),
    /// Not below.
    AtLeast(f64),
}

impl Rule {
    /// What it allows, from and to.
    fn allows(self, paper: Option<f64>) -> Option<(f64, f64)> {
        match self {
            Rule::None => None,
            Rule::WithinPercent(p) => {
                let (paper, far) = (paper?, paper?.abs() * p / 100.0);
                Some((paper - far, paper + far))
            }
            Rule::Between(low, high) => Some((low, high)),
            Rule::AtMost(high) => Some((f64::NEG_INFINITY, high)),
            Rule::AtLeast(low) => Some((low, f64::INFINITY)),
        }
    }

    /// Whether a value holds. Of one with an interval, all of that does or nothing: else it is open.
    fn judge(self, paper: Option<f64>, here: f64, half: f64) -> Judged {
        let Some((low, high)) = self.allows(paper) else { return Judged::Nothing };
        match (here - half, here + half) {
            (from, to) if from >= low && to <= high => Judged::Holds,
            (from, to) if to < low || from > high => Judged::Off,
            _ if half > 0.0 && !mutant!("lab.intervals-ignored") => Judged::Open,
            _ if here >= low && here <= high => Judged::Holds,
            _ => Judged::Off,
        }
    }
}

/// What a rule says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// It has none, or was not measured.
    Nothing,
    Holds,
    Off,
    /// Its interval has values that hold and values that do not.
    Open,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::None => Ok(()),
            Rule::WithinPercent(p) => write!(f, "within {p}%"),
            Rule::Between(low, high) => write!(f, "{low} to {high}"),
            Rule::AtMost(high) => write!(f, "<= {high}"),
            Rule::AtLeast(low) => write!(f, ">= {low}"),
        }
    }
}

/// One line of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub what: String,
    /// The paper's value, where it gives one.
    pub paper: Option<f64>,
    /// Ours; `None` when it was not measured before an interrupt.
    pub here: Option<f64>,
    /// Where `here` is a mean over an axis such as seeds: half of its 95% interval, by Student's t.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plus_minus: Option<f64>,
    /// Unit of both.
    pub unit: String,
    pub rule: Rule,
    pub judged: Judged,
    /// The rule is about an order or a direction, not about a size.
    pub order: bool,
    /// Something was fitted to it: that it is met says nothing.
    pub input: bool,
    /// Why the rule is another than within 15%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Where it lies in a plot, where it is one point.
    #[serde(skip)]
    pub place: Option<Selector>,
}

/// How a value is computed from points.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Here {
    /// The value of the one point.
    One(Selector),
    Max(Selector),
    Min(Selector),
    Mean(Selector),
    /// Where on its only free axis the largest value is.
    WhereMax(Selector),
    Number(f64),
    Ratio(Box<Here>, Box<Here>),
    Product(Box<Here>, Box<Here>),
    Difference(Box<Here>, Box<Here>),
    /// The smallest ratio of a point to the one before it on an axis: below 1 a curve falls.
    LeastStep(Selector, String),
    /// The largest such ratio: above 1 a curve rises.
    LargestStep(Selector, String),
    /// The smallest ratio of points of one choice to those of another at the same place, the largest one,
    /// and their mean.
    LeastRatio(Selector, Selector),
    MostRatio(Selector, Selector),
    MeanRatio(Selector, Selector),
    /// The largest distance of points from a value, in percent of it.
    Farthest(Selector, Box<Here>),
}

impl Here {
    /// Its value; `None` where a point that it needs was not measured.
    pub(super) fn value(&self, points: &Points) -> Option<f64> {
        let all = |of: &Selector| points.choose(of);
        let fold = |of: &Selector, fold: fn(f64, f64) -> f64| {
            all(of)?.into_iter().map(|(_, v)| v).reduce(fold)
        };
        match self {
            Here::One(of) => match all(of)?[..] {
                [(_, value)] => Some(value),
                _ => None,
            },
            Here::Max(of) => fold(of, f64::max),
            Here::Min(of) => fold(of, f64::min),
            Here::WhereMax(of) => {
                let all = all(of)?;
                // The first of several.
                let most = all.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1))?.0;
                let is_free = |(axis, _): &&(String, String)| points.values_of(axis, of).len() > 1;
                most.at.iter().find(is_free)?.1.parse().ok()
            }
            Here::Number(value) => Some(*value),
            Here::Ratio(a, b) => Some(a.value(points)? / b.value(points)?),
            Here::Product(a, b) => Some(a.value(points)? * b.value(points)?),
            Here::Difference(a, b) => Some(a.value(points)? - b.value(points)?),
            Here::LeastStep(of, axis) => steps(points, of, axis)?.into_iter().reduce(f64::min),
            Here::LargestStep(of, axis) => steps(points, of, axis)?.into_iter().reduce(f64::max),
            Here::Mean(of) => {
                let values: Vec<f64> = all(of)?.into_iter().map(|(_, v)| v).collect();
                Some(mean(&values))
            }
            Here::LeastRatio(a, b) => ratios(points, a, b)?.into_iter().reduce(f64::min),
            Here::MostRatio(a, b) => ratios(points, a, b)?.into_iter().reduce(f64::max),
            Here::MeanRatio(a, b) => Some(mean(&ratios(points, a, b)?)),
            Here::Farthest(of, from) => {
                let from = from.value(points)?;
                let far = |(_, v): (_, f64)| 100.0 * (v / from - 1.0).abs();
                all(of)?.into_iter().map(far).reduce(f64::max)
            }
        }
    }

    /// What it chooses.
    pub(super) fn selectors(&self) -> Vec<&Selector> {
        match self {
            Here::One(of) | Here::Max(of) | Here::Min(of) | Here::Mean(of) => vec![of],
            Here::WhereMax(of) => vec![of],
            Here::LeastStep(of, _) | Here::LargestStep(of, _) => vec![of],
            Here::LeastRatio(a, b) | Here::MostRatio(a, b) | Here::MeanRatio(a, b) => vec![a, b],
            Here::Number(_) => Vec::new(),
            Here::Ratio(a, b) | Here::Product(a, b) | Here::Difference(a, b) => {
                [a.selectors(), b.selectors()].concat()
            }
            Here::Farthest(of, from) => [vec![of], from.selectors()].concat(),
        }
    }

    /// The same of one value of an axis, wherever it leaves that open.
    fn at(&self, axis: &str, value: &str) -> Here {
        let at = |of: &Selector| of.at(axis, value);
        let deep = |here: &Here| Box::new(here.at(axis, value));
        match self {
            Here::One(of) => Here::One(at(of)),
            Here::Max(of) => Here::Max(at(of)),
            Here::Min(of) => Here::Min(at(of)),
            Here::Mean(of) => Here::Mean(at(of)),
            Here::WhereMax(of) => Here::WhereMax(at(of)),
            Here::Number(value) => Here::Number(*value),
            Here::Ratio(a, b) => Here::Ratio(deep(a), deep(b)),
            Here::Product(a, b) => Here::Product(deep(a), deep(b)),
            Here::Difference(a, b) => Here::Difference(deep(a), deep(b)),
            Here::LeastStep(of, along) => Here::LeastStep(at(of), along.clone()),
            Here::LargestStep(of, along) => Here::LargestStep(at(of), along.clone()),
            Here::LeastRatio(a, b) => Here::LeastRatio(at(a), at(b)),
            Here::MostRatio(a, b) => Here::MostRatio(at(a), at(b)),
            Here::MeanRatio(a, b) => Here::MeanRatio(at(a), at(b)),
            Here::Farthest(of, from) => Here::Farthest(at(of), deep(from)),
        }
    }
}

/// Of at least one value.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Ratios of the points of one choice to those of another at the same place.
fn ratios(points: &Points, a: &Selector, b: &Selector) -> Option<Vec<f64>> {
    let (a, b) = (points.choose(a)?, points.choose(b)?);
    let other = |at| b.iter().find(|(point, _)| point.at == at).map(|(_, v)| *v);
    a.iter().map(|(point, v)| Some(v / other(&point.at[..])?)).collect()
}

/// Ratios of points to the ones before them on an axis, over all curves of the choice.
fn steps(points: &Points, of: &Selector, axis: &str) -> Option<Vec<f64>> {
    let all = points.choose(of)?;
    let order = points.values_of(axis, of);
    let mut steps = Vec::new();
    for pair in order.windows(2) {
        for (point, value) in all.iter().filter(|(p, _)| p.on(axis) == Some(&pair[1])) {
            let rest = |p: &super::points::Point| {
                p.at.iter().filter(|(name, _)| name != axis).cloned().collect::<Vec<_>>()
            };
            let before =
                all.iter().find(|(p, _)| p.on(axis) == Some(&pair[0]) && rest(p) == rest(point));
            steps.extend(before.map(|(_, before)| value / before));
        }
    }
    Some(steps)
}

/// What a file says about rows.
#[derive(Clone, Debug)]
pub struct RowSpec {
    /// `{axis}` stands for its value.
    pub(super) what: String,
    /// One row for each value of these axes.
    pub(super) each: Vec<String>,
    /// The paper's values: of the row's place on `each`, values joined by a space; of all rows under "".
    pub(super) paper: Vec<(String, f64)>,
    pub(super) here: Here,
    /// Of the row's value at each place on this axis the mean is taken, with its interval.
    pub(super) over: Option<String>,
    pub(super) unit: String,
    pub(super) rule: Option<Rule>,
    pub(super) order: bool,
    pub(super) input: bool,
    pub(super) because: Option<String>,
}

impl RowSpec {
    /// Its rows. Where a size leaves points out, so are rows about them.
    ///
    /// # Errors
    /// It is about points that there are not.
    pub(super) fn rows(&self, points: &Points, leaves_out: bool) -> Result<Vec<Row>, String> {
        let mut all = vec![(self.what.clone(), self.here.clone(), Vec::new())];
        for axis in self.each.iter().chain(&self.over) {
            if let Some(of) = self.here.selectors().first() {
                points.have(of)?;
                points.lie_on(axis, of).map_err(|why| format!("`{}`: {why}", self.what))?;
            }
        }
        for axis in &self.each {
            all = all
                .into_iter()
                .flat_map(|(what, here, at): (String, Here, Vec<String>)| {
                    let first = here.selectors().first().map(|of| points.values_of(axis, of));
                    first.unwrap_or_default().into_iter().map(move |value| {
                        let what = what.replace(&format!("{{{axis}}}"), &value);
                        let here = here.at(axis, &value);
                        (what, here, [at.clone(), vec![value]].concat())
                    })
                })
                .collect();
        }
        let mut rows = Vec::new();
        for (what, here, at) in all {
            let mut is_there = true;
            for of in here.selectors() {
                is_there &= points.have(of)?;
            }
            match is_there || !leaves_out {
                true if !is_there => return Err(format!("`{what}`: no point is there")),
                true => {
                    self.is_one(&here, points).map_err(|why| format!("`{what}`: {why}"))?;
                    let row = self.row(what, &here, &at.join(" "), points);
                    if row.here.is_none() && !points.lack_some() {
                        return Err(format!(
                            "`{}`: {}",
                            row.what,
                            points.why_none(&here.selectors())
                        ));
                    }
                    rows.push(row);
                }
                false => {}
            }
        }
        Ok(rows)
    }

    /// Whether each choice that has to be one point is one.
    ///
    /// # Errors
    /// It says which one is not.
    fn is_one(&self, here: &Here, points: &Points) -> Result<(), String> {
        match here {
            Here::One(of) => {
                let axes = points.free_axes(of);
                match axes.iter().find(|axis| Some(*axis) != self.over.as_ref()) {
                    None => Ok(()),
                    Some(axis) => Err(format!(
                        "`{of}` is several points: say which one, as in `{of} {axis}=VALUE`, name the axis in \
                         `each`, or take their mean"
                    )),
                }
            }
            Here::Ratio(a, b) | Here::Product(a, b) | Here::Difference(a, b) => {
                self.is_one(a, points).and_then(|()| self.is_one(b, points))
            }
            Here::Farthest(_, from) => self.is_one(from, points),
            _ => Ok(()),
        }
    }

    fn row(&self, what: String, of: &Here, at: &str, points: &Points) -> Row {
        let paper = self.paper.iter().find(|(place, _)| place == at || place.is_empty());
        let paper = paper.map(|(_, value)| *value);
        let rule = match (self.rule, paper) {
            (Some(Rule::WithinPercent(_)), None) | (None, None) => Rule::None,
            (None, Some(_)) if self.input => Rule::None,
            (None, Some(_)) => Rule::WithinPercent(WITHIN_PERCENT),
            (Some(rule), _) => rule,
        };
        let estimate = self.estimate(of, points);
        let here = estimate.as_ref().map(|estimate| estimate.mean);
        let plus_minus = estimate.and_then(|estimate| estimate.half_width);
        let judge = |here| rule.judge(paper, here, plus_minus.unwrap_or_default());
        Row {
            what,
            paper,
            here,
            plus_minus,
            unit: self.unit.clone(),
            rule,
            judged: here.map_or(Judged::Nothing, judge),
            order: self.order,
            input: self.input,
            because: self.because.clone(),
            place: match of {
                Here::One(of) => Some(of.clone()),
                _ => None,
            },
        }
    }

    /// The value, or the mean of those at each place on the axis that it is taken over.
    fn estimate(&self, of: &Here, points: &Points) -> Option<Estimate> {
        let Some(axis) = &self.over else { return of.value(points).map(|v| estimate(&[v])) };
        // One that names its place on the axis has that one only.
        let places = of.selectors().into_iter().map(|of| points.values_of(axis, of));
        let places = places.max_by_key(Vec::len).unwrap_or_default();
        let values: Option<Vec<f64>> =
            places.iter().map(|value| of.at(axis, value).value(points)).collect();
        values.filter(|values| !values.is_empty()).map(|values| estimate(&values))
    }
}

/// What follows from the rows.
pub(super) fn verdict(rows: &[Row]) -> Verdict {
    let counts = || rows.iter().filter(|r| r.rule != Rule::None && !r.input);
    if counts().any(|r| r.here.is_none()) {
        return Verdict::Unfinished;
    }
    let fails = |order: bool| counts().any(|r| r.order == order && r.judged == Judged::Off);
    let open = |order: bool| counts().any(|r| r.order == order && r.judged == Judged::Open);
    match (fails(true), fails(false)) {
        (true, _) => Verdict::Differs,
        // What is open may be off.
        (false, true) if open(true) => Verdict::Inconclusive,
        (false, false) if open(true) || open(false) => Verdict::Inconclusive,
        (false, false) => Verdict::Reproduced,
        (false, true) if counts().any(|r| r.order) => Verdict::ShapeOnly,
        (false, true) => Verdict::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::super::points::Point;
    use super::*;

    fn points() -> Points {
        let of = |series: &str, n: u32, x: f64| {
            Point::new(series, [("n", n.to_string()), ("m", "0".to_string())]).with("x", x)
        };
        let values = [("a", 1, 2.0), ("a", 2, 6.0), ("a", 4, 3.0), ("b", 1, 1.0), ("b", 2, 2.0)];
        Points(values.map(|(series, n, x)| of(series, n, x)).into())
    }

    fn one(text: &str) -> Selector {
        text.parse().unwrap()
    }

    #[test]
    fn values_come_of_points() {
        let points = points();
        let value = |here: Here| here.value(&points);
        let at = |text: &str| Box::new(Here::One(one(text)));
        assert_eq!(value(Here::One(one("a x n=2"))), Some(6.0));
        assert_eq!(value(Here::One(one("a x"))), None, "three points are not one");
        assert_eq!(value(Here::Max(one("a x"))), Some(6.0));
        assert_eq!(value(Here::Min(one("a x"))), Some(2.0));
        assert_eq!(value(Here::WhereMax(one("a x"))), Some(2.0));
        assert_eq!(value(Here::Ratio(at("a x n=2"), at("b x n=2"))), Some(3.0));
        assert_eq!(value(Here::Difference(at("a x n=2"), at("b x n=2"))), Some(4.0));
        assert_eq!(value(Here::Product(at("a x n=2"), Here::Number(0.5).into())), Some(3.0));
        assert_eq!(value(Here::LeastStep(one("a x"), "n".into())), Some(0.5));
        assert_eq!(value(Here::LargestStep(one("a x"), "n".into())), Some(3.0));
        assert_eq!(value(Here::LeastRatio(one("a x n=1,2"), one("b x"))), Some(2.0));
        assert_eq!(value(Here::LeastRatio(one("a x"), one("b x"))), None, "b has no such point");
        assert_eq!(value(Here::MostRatio(one("a x n=1,2"), one("b x"))), Some(3.0));
        assert_eq!(value(Here::MeanRatio(one("a x n=1,2"), one("b x"))), Some(2.5));
        assert_eq!(value(Here::Mean(one("a x n=1,2"))), Some(4.0));
        assert_eq!(value(Here::Mean(one("a x n=9"))), None);
        assert_eq!(value(Here::Farthest(one("a x n=2,4"), at("a x n=1"))), Some(200.0));
        assert_eq!(value(Here::Ratio(at("a x n=2"), at("b x n=4"))), None);
    }

    fn spec(here: &str, paper: Option<f64>, rule: Option<Rule>) -> RowSpec {
        RowSpec {
            what: "a row".into(),
            each: Vec::new(),
            over: None,
            paper: paper.into_iter().map(|value| (String::new(), value)).collect(),
            here: Here::One(one(here)),
            unit: "x".into(),
            rule,
            order: false,
            input: false,
            because: None,
        }
    }

    fn row(spec: &RowSpec) -> Row {
        spec.rows(&points(), false).expect("points are there").remove(0)
    }

    #[test]
    fn a_number_of_the_paper_has_a_rule() {
        let judged = |paper: f64| row(&spec("a x n=2", Some(paper), None)).judged;
        assert_eq!((judged(6.9), judged(7.1)), (Judged::Holds, Judged::Off), "15% of it");
        let input = RowSpec { input: true, ..spec("a x n=2", Some(100.0), None) };
        assert_eq!((row(&input).rule, row(&input).judged), (Rule::None, Judged::Nothing));
        assert_eq!(row(&spec("a x n=2", None, None)).rule, Rule::None);
    }

    #[test]
    fn a_row_stands_for_each_value_of_an_axis() {
        let each = RowSpec {
            what: "n is {n}".into(),
            each: vec!["n".into()],
            paper: vec![("2".into(), 6.0)],
            ..spec("a x", None, None)
        };
        let rows = each.rows(&points(), false).unwrap();
        let said: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(said, ["n is 1", "n is 2", "n is 4"]);
        let judged: Vec<Judged> = rows.iter().map(|row| row.judged).collect();
        assert_eq!(judged, [Judged::Nothing, Judged::Holds, Judged::Nothing]);
        assert_eq!(rows[2].place, Some(one("a x n=4")));
    }

    /// Two samples, 4 and 6 around 5: Student's t of one degree of freedom, 12.706, times a standard error of 1.
    #[test]
    fn a_mean_over_an_axis_has_its_interval() {
        let over = RowSpec { over: Some("n".into()), ..spec("a x", None, None) };
        let two = |a: f64, b: f64| {
            let of = |n: u32, x: f64| Point::new("a", [("n", n.to_string())]).with("x", x);
            Points(vec![of(1, a), of(2, b)])
        };
        let row = over.rows(&two(4.0, 6.0), false).unwrap().remove(0);
        assert_eq!((row.here, row.plus_minus), (Some(5.0), Some(12.706)));
        // A ratio at each place, and not of means.
        let one_of = |text: &str| Box::new(Here::One(one(text)));
        let here = Here::Ratio(one_of("a x"), one_of("a x n=1"));
        let row = RowSpec { here, ..over.clone() }.rows(&two(4.0, 6.0), false).unwrap().remove(0);
        assert_eq!(row.here, Some(1.25));
        let here = Here::Ratio(one_of("a x n=1"), one_of("a x"));
        let row = RowSpec { here, ..over.clone() }.rows(&two(4.0, 8.0), false).unwrap().remove(0);
        assert_eq!(row.here, Some(0.75));
        let lost = Points([two(4.0, 6.0).0, vec![Point::new("a", [("n", "3".into())])]].concat());
        assert_eq!(over.rows(&lost, false).unwrap()[0].here, None, "one is not measured");
        let says = RowSpec { over: Some("seed".into()), ..over }.rows(&lost, false).unwrap_err();
        assert!(says.contains("has no axis `seed`"), "{says}");
    }

    #[test]
    fn a_row_about_nothing_is_refused_or_left_out() {
        let says = |here: &str| spec(here, None, None).rows(&points(), false).unwrap_err();
        assert!(says("c x n=1").contains("its series are a, b"));
        assert!(says("a y n=1").contains("there are x"));
        assert!(says("a x n=9").contains("no point is there"));
        assert!(spec("a x n=9", None, None).rows(&points(), true).unwrap().is_empty());
    }

    /// Two grids of one series have no axis in common; of two series one has more seeds.
    #[test]
    fn a_row_whose_points_do_not_fit_is_refused() {
        let of = |series: &str, axis: &str, n: u32| {
            Point::new(series, [(axis, n.to_string())]).with("x", 1.0)
        };
        let grids = Points(vec![of("a", "n", 1), of("a", "m", 1)]);
        let says = spec("a x", None, None).rows(&grids, false).unwrap_err();
        assert!(says.contains("do not fit: `a x` is 2 points"), "{says}");
        let seeds = Points(vec![of("a", "n", 1), of("a", "n", 2), of("b", "n", 1)]);
        let here = Here::Ratio(Here::One(one("a x")).into(), Here::One(one("b x")).into());
        let over = RowSpec { here, over: Some("n".into()), ..spec("a x", None, None) };
        let says = over.rows(&seeds, false).unwrap_err();
        assert!(says.contains("`a x` is 2 points, `b x` is 1 points"), "{says}");
    }

    #[test]
    fn the_verdict_follows_from_the_rules() {
        let of = |size: bool, order: bool| {
            let size = spec("a x n=2", Some(if size { 6.0 } else { 9.0 }), None);
            let rule = Some(Rule::AtLeast(if order { 1.0 } else { 9.0 }));
            let order = RowSpec { order: true, ..spec("a x n=1", None, rule) };
            verdict(&[row(&size), row(&order)])
        };
        assert_eq!(of(true, true), Verdict::Reproduced);
        assert_eq!(of(false, true), Verdict::ShapeOnly);
        assert_eq!(of(true, false), Verdict::Differs);
        // Without an order nothing says that the shape is there; an input decides nothing.
        let off = spec("a x n=2", Some(9.0), None);
        assert_eq!(verdict(&[row(&off)]), Verdict::Differs);
        let input = RowSpec { input: true, rule: Some(Rule::AtMost(0.0)), ..off };
        assert_eq!(verdict(&[row(&input)]), Verdict::Reproduced);
        let missing =
            Row { here: None, judged: Judged::Nothing, ..row(&spec("a x n=2", Some(6.0), None)) };
        assert_eq!(verdict(&[missing]), Verdict::Unfinished);
    }
    /// A value whose interval has both is open, and so is what follows from it.
    #[test]
    fn a_rule_asks_the_whole_interval() {
        let judge = |rule: Rule, here: f64, half: f64| rule.judge(Some(1.0), here, half);
        for rule in [Rule::AtLeast(0.9), Rule::WithinPercent(10.0), Rule::Between(0.9, 1.1)] {
            assert_eq!(judge(rule, 1.0, 0.05), Judged::Holds, "{rule}");
            assert_eq!(judge(rule, 0.8, 0.05), Judged::Off, "{rule}");
            assert_eq!(judge(rule, 0.8, 0.2), Judged::Open, "{rule}");
            assert_eq!(judge(rule, 1.0, 0.2), Judged::Open, "{rule}");
            assert_eq!(
                (judge(rule, 0.9, 0.0), judge(rule, 0.8, 0.0)),
                (Judged::Holds, Judged::Off)
            );
        }
        assert_eq!(judge(Rule::AtMost(1.0), 0.9, 0.2), Judged::Open);
        let size = row(&spec("a x n=2", Some(6.0), None));
        let order = RowSpec { order: true, ..spec("a x n=1", None, Some(Rule::AtLeast(1.0))) };
        let (order, judged) = (row(&order), |row: &Row, judged| Row { judged, ..row.clone() });
        let of = |a, b| verdict(&[judged(&size, a), judged(&order, b)]);
        assert_eq!(of(Judged::Open, Judged::Holds), Verdict::Inconclusive);
        assert_eq!(of(Judged::Holds, Judged::Open), Verdict::Inconclusive);
        assert_eq!(of(Judged::Off, Judged::Open), Verdict::Inconclusive);
        assert_eq!(of(Judged::Open, Judged::Off), Verdict::Differs);
    }
}
