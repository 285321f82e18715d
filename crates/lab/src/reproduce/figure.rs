//! A figure's file: the paper's values, the rule, what is ours.
//!
//! Owns: the keys common to all figures, rules, rows, the verdict. Promises: a row without a rule
//! is shown and decides nothing; a figure without rows is a complaint.
//! Never: measures.

use crate::experiment::document::{Document, Section};
use crate::experiment::{Base, DeviceChoice, ExperimentErrors, read_costs};
use flashlane_rt::CostTable;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// What comes of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every rule holds.
    Reproduced,
    /// The rules of shape hold, not all of size.
    ShapeOnly,
    /// Not even the shape.
    Differs,
    /// The user ended it before every row with a rule was measured.
    Unfinished,
    /// A figure about many cores, on a machine that has one.
    NothingToScale,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::ShapeOnly => "shape only",
            Verdict::Differs => "differs",
            Verdict::Unfinished => "none, interrupted",
            Verdict::NothingToScale => "none: one core, there is nothing to scale",
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
    fn holds(self, paper: Option<f64>, here: f64) -> Option<bool> {
        match self {
            Rule::None => None,
            Rule::WithinPercent(p) => {
                let paper = paper?;
                Some((here - paper).abs() <= paper.abs() * p / 100.0)
            }
            Rule::Between(low, high) => Some((low..=high).contains(&here)),
            Rule::AtMost(high) => Some(here <= high),
            Rule::AtLeast(low) => Some(here >= low),
        }
    }
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
    /// Unit of both.
    pub unit: String,
    pub rule: Rule,
    pub holds: Option<bool>,
    /// The rule is about shape, not size.
    pub shape: bool,
}

/// What a file says about a row.
#[derive(Clone, Debug)]
pub struct RowSpec {
    /// Name by which its module knows it.
    pub id: String,
    what: String,
    paper: Option<f64>,
    unit: String,
    rule: Rule,
    shape: bool,
}

impl RowSpec {
    /// The row for one of several numbers, which stands where `what` says `{n}`.
    pub(super) fn for_number(&self, n: u32, here: Option<f64>) -> Row {
        let what = self.what.replace("{n}", &n.to_string());
        Row { what, ..self.with(here) }
    }

    /// The row with our value.
    pub fn with(&self, here: Option<f64>) -> Row {
        Row {
            what: self.what.clone(),
            paper: self.paper,
            here,
            unit: self.unit.clone(),
            rule: self.rule,
            holds: here.and_then(|here| self.rule.holds(self.paper, here)),
            shape: self.shape,
        }
    }
}

#[derive(Clone, Debug)]
pub struct FigureFile {
    pub title: String,
    pub paper: String,
    pub rule: String,
    /// The verdict that is expected; a change of it fails.
    pub expected: Verdict,
    pub ours: Vec<String>,
    /// Where a difference from the paper comes from, with the experiment that isolates it.
    pub causes: Vec<String>,
    pub devices: Vec<(String, DeviceChoice)>,
    /// What the host's CPU work costs; nothing without `costs`.
    pub costs: CostTable,
    /// Numbers of the experiment by name (`[parameters]`).
    pub parameters: Vec<(String, u64)>,
    pub rows: Vec<RowSpec>,
}

impl FigureFile {
    pub fn parse(name: &str, text: &str) -> Result<FigureFile, ExperimentErrors> {
        let document = Document::parse(name, text, &[]).map_err(|c| ExperimentErrors(vec![c]))?;
        let root = document.root();
        let words = |key: &str| root.text(key).unwrap_or("").to_string();
        let verdicts = [
            ("reproduced", Verdict::Reproduced),
            ("shape only", Verdict::ShapeOnly),
            ("differs", Verdict::Differs),
        ];
        let file = FigureFile {
            title: words("title"),
            paper: words("paper"),
            rule: words("rule"),
            expected: root.word("expected", &verdicts).unwrap_or(Verdict::Differs),
            ours: root.texts("ours"),
            causes: root.texts("causes"),
            devices: devices(&root, &document),
            costs: costs(&root),
            parameters: parameters(&root),
            rows: root.tables("row").into_iter().map(row).collect(),
        };
        if file.rows.is_empty() {
            root.complain("row", "a figure needs rows");
        }
        root.finish();
        match document.complaints() {
            complaints if complaints.is_empty() => Ok(file),
            complaints => Err(ExperimentErrors(complaints)),
        }
    }

    /// The device called so. Asserts that there is one: files are compiled in.
    pub fn device(&self, name: &str) -> &DeviceChoice {
        let found = self.devices.iter().find(|(n, _)| n == name);
        &found.unwrap_or_else(|| panic!("the figure's file has no [device.{name}]")).1
    }

    /// The parameter called so. Asserts that there is one.
    pub fn parameter(&self, name: &str) -> u64 {
        let found = self.parameters.iter().find(|(n, _)| n == name);
        found.unwrap_or_else(|| panic!("the figure's file has no parameter `{name}`")).1
    }

    /// Rows with the values that `here` gives for their ids; `None` is not measured.
    pub fn fill(&self, here: impl Fn(&str) -> Option<f64>) -> Vec<Row> {
        self.rows.iter().map(|spec| spec.with(here(&spec.id))).collect()
    }
}

fn devices(root: &Section<'_>, document: &Document) -> Vec<(String, DeviceChoice)> {
    let Some(table) = root.table("device") else {
        return Vec::new();
    };
    let base = Base::of(Path::new(""), None);
    let mut found = Vec::new();
    for name in table.keys() {
        if let Some(section) = table.table(name) {
            let choice = crate::experiment::read_device(&section, document, &base);
            found.extend(choice.map(|c| (name.to_string(), c)));
            section.finish();
        }
    }
    table.finish();
    found
}

fn costs(root: &Section<'_>) -> CostTable {
    let name = root.text("costs").unwrap_or("zero");
    let table = read_costs(name, &Base::of(Path::new(""), None));
    table.unwrap_or_else(|why| {
        root.complain("costs", why);
        CostTable::zero()
    })
}

fn parameters(root: &Section<'_>) -> Vec<(String, u64)> {
    let Some(table) = root.table("parameters") else {
        return Vec::new();
    };
    let found = table
        .keys()
        .filter_map(|key| Some((key.to_string(), table.number(key, 0, u32::MAX as u64)?)))
        .collect();
    table.finish();
    found
}

fn row(s: Section<'_>) -> RowSpec {
    let rules = ["within_percent", "between", "at_most", "at_least"];
    let given: Vec<&str> = rules.into_iter().filter(|r| s.has(r)).collect();
    let one = |key: &str| s.float(key).unwrap_or(0.0);
    let rule = match given[..] {
        [] => Rule::None,
        ["within_percent"] => Rule::WithinPercent(one("within_percent")),
        ["at_most"] => Rule::AtMost(one("at_most")),
        ["at_least"] => Rule::AtLeast(one("at_least")),
        ["between"] => match s.floats("between")[..] {
            [low, high] => Rule::Between(low, high),
            _ => {
                s.complain("between", "`between` is a list of two numbers");
                Rule::None
            }
        },
        _ => {
            s.complain(given[1], format!("one rule per row: `{}` or `{}`", given[0], given[1]));
            Rule::None
        }
    };
    let spec = RowSpec {
        id: s.text("id").unwrap_or("").to_string(),
        what: s.text("what").unwrap_or("").to_string(),
        paper: s.float("paper"),
        unit: s.text("unit").unwrap_or("").to_string(),
        rule,
        shape: s.flag("shape").unwrap_or(false),
    };
    if matches!(rule, Rule::WithinPercent(_)) && spec.paper.is_none() {
        s.complain("within_percent", "`within_percent` needs the paper's value");
    }
    if spec.id.is_empty() || spec.what.is_empty() {
        s.complain("id", "a row needs `id` and `what`");
    }
    s.finish();
    spec
}

pub(super) fn verdict(rows: &[Row]) -> Verdict {
    if rows.iter().any(|r| r.rule != Rule::None && r.here.is_none()) {
        return Verdict::Unfinished;
    }
    let fails = |shape: bool| rows.iter().any(|r| r.shape == shape && r.holds == Some(false));
    let any_shape = rows.iter().any(|r| r.shape && r.holds.is_some());
    match (fails(true), fails(false)) {
        (true, _) => Verdict::Differs,
        (false, false) => Verdict::Reproduced,
        (false, true) if any_shape => Verdict::ShapeOnly,
        (false, true) => Verdict::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "title = \"t\"\npaper = \"p\"\nrule = \"r\"\nexpected = \"reproduced\"\n[device.a]\npreset = \"tiny\"\n\
                        [parameters]\ndepth = 3\n[[row]]\nid = \"x\"\nwhat = \"w\"\npaper = 100\nwithin_percent = 10\n\
                        [[row]]\nid = \"y\"\nwhat = \"v\"\nbetween = [0.7, 0.9]\nshape = true\n";

    #[test]
    fn the_verdict_follows_from_the_rules() {
        let file = FigureFile::parse("f", FILE).unwrap();
        assert_eq!(file.parameter("depth"), 3);
        assert_eq!(file.device("a").spec.name, "tiny");
        let of = |x: f64, y: f64| verdict(&file.fill(|id| Some(if id == "x" { x } else { y })));
        assert_eq!(of(109.0, 0.8), Verdict::Reproduced);
        assert_eq!(of(111.0, 0.8), Verdict::ShapeOnly);
        assert_eq!(of(100.0, 0.95), Verdict::Differs);
        let half = file.fill(|id| (id == "x").then_some(100.0));
        assert_eq!((verdict(&half), half[1].holds), (Verdict::Unfinished, None));
    }

    #[test]
    fn a_wrong_file_says_so() {
        let said = |text: &str| FigureFile::parse("f", text).unwrap_err().to_string();
        assert!(said("title = \"t\"").contains("needs rows"));
        let two = FILE.replace("within_percent = 10", "within_percent = 10\nat_most = 3");
        assert!(said(&two).contains("one rule per row"));
        let unknown = FILE.replace("shape = true", "shaep = true");
        assert!(said(&unknown).contains("did you mean `shape`"));
    }
}
