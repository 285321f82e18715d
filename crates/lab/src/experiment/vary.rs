//! `[[vary]]`: the axes of a sweep.
//!
//! Owns: reading them, their size. Promises: a sweep has at least one point, and not more than a
//! machine does in days. Never: says what a key means; that is said point by point.

use super::document::Section;

/// Points of a sweep at most.
const POINTS_MAX: usize = 65_536;

/// One axis: a key of the experiment and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vary {
    /// Path of the key, `target.0.active_pus`.
    pub key: String,
    /// Values, as `--set KEY=VALUE` takes them.
    pub values: Vec<String>,
}

impl Vary {
    /// `KEY=V1,V2,...`, as the command line has it. `usage` answers what is written otherwise.
    pub fn parse(text: &str, usage: &str) -> Result<Vary, String> {
        let (key, values) = text.split_once('=').ok_or_else(|| usage.to_string())?;
        // As TOML if it is some, with commas inside of strings; bare words if not.
        let toml = toml::from_str::<toml::Table>(&format!("values = [{values}]"));
        let values: Vec<String> = match toml.ok().and_then(|mut t| t.remove("values")) {
            Some(toml::Value::Array(list)) => list.iter().map(toml::Value::to_string).collect(),
            _ if values.contains(['"', '\'']) => {
                return Err(format!("`{values}` has quotes: then each value must be TOML"));
            }
            _ => values.split(',').map(|v| v.trim().to_string()).collect(),
        };
        if key.trim().is_empty() || values.is_empty() || values.iter().any(String::is_empty) {
            return Err(usage.into());
        }
        let axis = Vary { key: key.trim().into(), values };
        match axis.twice() {
            Some(value) => Err(format!("`{}` takes the value {value} twice", axis.key)),
            None => Ok(axis),
        }
    }

    /// Points of a grid; why not, if they are too many.
    pub fn points(axes: &[Vary]) -> Result<usize, String> {
        let points = axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.values.len()));
        let few = points.filter(|n| *n <= POINTS_MAX);
        let many = || points.map_or("too many".into(), |n| n.to_string());
        few.ok_or_else(|| format!("{} points are more than {POINTS_MAX}", many()))
    }

    /// A value that is there twice: it would be one point in two rows.
    fn twice(&self) -> Option<&str> {
        let mut rest = self.values.iter().enumerate();
        rest.find(|(i, v)| self.values[..*i].contains(v)).map(|(_, v)| v.as_str())
    }
}

/// All axes of an experiment, in the order of the file.
pub(super) fn read_all(root: &Section<'_>) -> Vec<Vary> {
    let mut all: Vec<Vary> = Vec::new();
    for table in root.tables("vary") {
        let key = table.text("key").unwrap_or("").to_string();
        let values = table.scalars("values");
        if key.is_empty() || values.is_empty() {
            let says = "`[[vary]]` needs `key = \"target.0.active_pus\"` and `values = [4, 16]`";
            table.complain("key", says);
        } else if all.iter().any(|v| v.key == key) {
            table.complain("key", format!("`{key}` is varied twice"));
        } else {
            let axis = Vary { key, values };
            if let Some(value) = axis.twice() {
                table.complain("values", format!("the value {value} is there twice"));
            }
            all.push(axis);
        }
        table.finish();
    }
    if let Err(many) = Vary::points(&all) {
        root.complain("vary", many);
    }
    all
}
