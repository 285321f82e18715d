//! Rows as text.
//!
//! Owns: the text of a cell. Promises: a cell with a comma, quote or newline is quoted (RFC 4180).
//! Never: chooses columns ([`super::columns`] does).

use super::columns::{Cell, Named};

/// Rows under a header; nothing without rows.
pub(super) fn csv(rows: &[Vec<Named>]) -> String {
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        if i == 0 {
            text += &line(row.iter().map(|(name, _)| name.clone()));
        }
        text += &line(row.iter().map(|(_, value)| shown(value)));
    }
    text
}

fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Int(n) => n.to_string(),
        Cell::Ratio(r) => r.map_or(String::new(), |r| format!("{r:.6}")),
        Cell::Text(t) => t.clone(),
        Cell::Bool(b) => b.to_string(),
    }
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let quoted: Vec<String> = cells
        .map(|c| match c.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", c.replace('"', "\"\"")),
            false => c,
        })
        .collect();
    quoted.join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn cells_that_would_break_a_line_are_quoted() {
        let cells = ["a,b", "say \"x\"", "plain"].map(String::from);
        assert_eq!(line(cells.into_iter()), "\"a,b\",\"say \"\"x\"\"\",plain\n");
    }
}
