//! Numbers and tables in words.
//!
//! Owns: how a number of things, a latency, a rate and rows of cells are written for people.
//! Never: knows what they are of.

/// A row of cells.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// Aligns columns: the first to the left, the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    aligned_left(rows, 1)
}

/// Aligns columns: so many to the left, the others to the right.
pub(crate) fn aligned_left(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            match c {
                0 => line += &format!("{cell}{pad}"),
                _ if c < left => line += &format!("  {cell}{pad}"),
                _ => line += &format!("  {pad}{cell}"),
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// JSON as it is printed.
pub(crate) fn text_of(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// A latency with three digits.
pub fn short(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let places = if value < 9.995 { 2 } else { (value < 99.95) as usize };
    format!("{value:.places$} {unit}")
}

/// Decimal megabytes per second, the unit of the papers and data sheets.
pub(crate) fn mb_per_s(bytes: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { bytes as f64 * 1e3 / ns as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(1234567), "1,234,567");
        assert_eq!(grouped(12), "12");
        for (ns, text) in
            [(7, "7 ns"), (1_500, "1.50 us"), (75_000, "75.0 us"), (999_000_000, "999 ms")]
        {
            assert_eq!(short(ns), text);
        }
        assert_eq!(mb_per_s(4096, 1000), 4096.0);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["a".to_string(), "1".into()], vec!["bcd".into(), "22".into()]];
        assert_eq!(aligned(&rows), "a     1\nbcd  22\n");
    }
}
