//! `[[vary]]`: the axes of a sweep.
//!
//! Owns: reading them, their size. Promises: a sweep has at least one point, and not more than a
//! machine does in days. Never: says what a key means; that is said point by point.

use super::document::Section;

/// Points of a sweep at most.
pub const POINTS_MAX: usize = 65_536;

/// One axis: a key of the experiment and the values that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vary {
    /// Path of the key, `target.0.active_pus`.
    pub key: String,
    /// Values, as `--set KEY=VALUE` takes them.
    pub values: Vec<String>,
}

impl Vary {
    /// `KEY=V1,V2,...`, as the command line has it.
    pub fn parse(text: &str) -> Result<Vary, String> {
        let usage = "write it `--vary target.0.active_pus=4,16,64`";
        let (key, values) = text.split_once('=').ok_or_else(|| usage.to_string())?;
        let values: Vec<String> = values.split(',').map(|v| v.trim().to_string()).collect();
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err(usage.into());
        }
        Ok(Vary { key: key.trim().into(), values })
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
            all.push(Vary { key, values });
        }
        table.finish();
    }
    let points = all.iter().try_fold(1usize, |n, v| n.checked_mul(v.values.len()));
    if points.is_none_or(|n| n > POINTS_MAX) {
        root.complain("vary", format!("more than {POINTS_MAX} points"));
    }
    all
}
