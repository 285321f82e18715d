//! Rows as text.
//!
//! Owns: the text of a cell. Promises: a cell with a comma, quote or newline is quoted (RFC 4180).
//! Never: chooses columns ([`super::columns`] does).

use super::columns::{Cell, Named};

/// Rows under a header; nothing without rows.
pub(super) fn csv(rows: &[Vec<Named>]) -> String {
    let (names, rows) = table(rows);
    let lines = std::iter::once(&names).filter(|_| !rows.is_empty()).chain(&rows);
    lines.map(|cells| line(cells.iter().map(String::as_str))).collect()
}

/// Names of the columns, and the cells of each row as text.
pub(super) fn table(rows: &[Vec<Named>]) -> (Vec<String>, Vec<Vec<String>>) {
    let names = rows.first().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let text = |row: &Vec<Named>| row.iter().map(|(_, value)| shown(value)).collect();
    (names, rows.iter().map(text).collect())
}

fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Int(n) => n.map_or(String::new(), |n| n.to_string()),
        Cell::Ratio(r) => r.map_or(String::new(), |r| format!("{r:.6}")),
        Cell::Text(t) => t.clone(),
        Cell::Bool(b) => b.to_string(),
    }
}

pub(crate) fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = cells
        .map(|c| match c.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", c.replace('"', "\"\"")),
            false => c.to_string(),
        })
        .collect();
    quoted.join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn cells_that_would_break_a_line_are_quoted() {
        let cells = ["a,b", "say \"x\"", "plain"];
        assert_eq!(line(cells.into_iter()), "\"a,b\",\"say \"\"x\"\"\",plain\n");
    }
}
