//! One line per run.
//!
//! Owns: the columns. Promises: a cell with a comma, quote or newline is quoted (RFC 4180).
//! Never: drops a column; a later version only adds some at the end.

use super::numbers::{LatencyNs, Report, RunReport};

/// A report as CSV.
pub(super) fn csv(report: &Report) -> String {
    let (names, runs) = table(report);
    let lines = std::iter::once(&names).filter(|_| !runs.is_empty()).chain(&runs);
    lines.map(|cells| line(cells.iter().map(String::as_str))).collect()
}

/// Names of the columns, and the cells of each run.
pub(super) fn table(report: &Report) -> (Vec<String>, Vec<Vec<String>>) {
    let runs: Vec<Vec<(String, String)>> = report.runs.iter().map(cells).collect();
    let names = runs.first().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    let values = |run: Vec<(String, String)>| run.into_iter().map(|(_, value)| value).collect();
    (names, runs.into_iter().map(values).collect())
}

/// A line of cells.
pub(crate) fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = cells
        .map(|c| match c.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", c.replace('"', "\"\"")),
            false => c.to_string(),
        })
        .collect();
    quoted.join(",") + "\n"
}

fn cells(r: &RunReport) -> Vec<(String, String)> {
    let mut cells: Vec<(String, String)> = vec![
        ("name".into(), r.name.clone()),
        ("requests".into(), r.requests.to_string()),
        ("read_bytes".into(), r.bytes_read.to_string()),
        ("written_bytes".into(), r.bytes_written.to_string()),
        ("discarded_bytes".into(), r.bytes_discarded.to_string()),
        ("runtime_ns".into(), r.runtime_ns.to_string()),
    ];
    let l = &r.latency_ns;
    let all = [("read", l.read), ("write", l.write), ("discard", l.discard), ("flush", l.flush)];
    for (op, latency) in all {
        latencies(op, &latency, &mut cells);
    }
    let ratio = r.write_amplification_ratio.map_or(String::new(), |w| format!("{w:.6}"));
    cells.push(("write_amplification_ratio".into(), ratio));
    for (cause, n) in r.programmed_sectors.named() {
        cells.push((format!("programmed_{cause}_sectors"), n.to_string()));
    }
    cells.push(("absorbed_sectors".into(), r.buffer_sectors.absorbed.to_string()));
    cells.push(("erases".into(), r.erases.to_string()));
    cells.push(("violations".into(), r.violations.to_string()));
    cells.push(("wrong_sectors".into(), r.wrong_sectors.to_string()));
    cells.push(("steady".into(), r.steady.to_string()));
    cells.push(("steady_reason".into(), r.steady_reason.clone()));
    cells.push(("fill_start_ratio".into(), format!("{:.6}", r.fill.at_start_ratio)));
    cells.push(("spare_ratio".into(), format!("{:.6}", r.fill.spare_ratio)));
    cells.push(("fingerprint".into(), r.fingerprint.clone()));
    // Columns that came later, at the end.
    let b = &r.latency_breakdown_ns;
    let parts = [("read", &b.read.named()[..]), ("write", &b.write.named()[..])];
    for (op, parts) in parts {
        for part in parts {
            cells.push((format!("{op}_{}_sum_ns", part.key), part.ns.to_string()));
        }
    }
    cells.push(("interrupted".into(), r.interrupted.to_string()));
    cells
}

fn latencies(op: &str, l: &LatencyNs, cells: &mut Vec<(String, String)>) {
    let named =
        [("mean", l.mean), ("p50", l.p50), ("p99", l.p99), ("p99_9", l.p99_9), ("max", l.max)];
    for (name, value) in named {
        cells.push((format!("{op}_{name}_ns"), value.to_string()));
    }
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
