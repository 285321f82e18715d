//! Writes of a trace by address and time, as a drawing.
//!
//! Owns: how a plane ([`Plane`]) is drawn. Promises: a file of its own, with literal colours; the same plane gives
//! the same bytes. Never: says what a journal's write is.

use super::html::svg::{Axis, Size, axes, c, open, text, text_at, time_unit};
use flashlane_trace::journals::Plane;
use std::fmt::Write;

const STYLE: &str = "text{fill:#1a1c1e;font:12px 'DejaVu Sans',Arial,sans-serif}.tick,.name{fill:#5a6066}\
    .head{font-weight:600;font-size:14px}.grid{stroke:#e9ecef;fill:none}.axis{stroke:#5a6066;fill:none}\
    .other{fill:#9aa5b1}.journal{fill:#c44e00}";

/// The plane under its title. Rows of one kind beside each other are one piece; where both were written a journal's
/// are on top.
pub fn svg(plane: &Plane, title: &str) -> String {
    let size = Size { top: 40.0, right: 12.0, left: 72.0, ..Size::wide(460.0) };
    let (unit_ns, unit) = time_unit(plane.duration_ns as f64);
    let x = Axis::exact(plane.duration_ns as f64 / unit_ns, 8, &format!("time ({unit})"), unit);
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let y = Axis::exact(mib(plane.bytes.end).max(1.0), 6, "address (MiB)", "MiB");
    let mut s = open(&size, "plane", &format!("{title}: writes by address and time"), "");
    s = s.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    let (width, height) = (c(size.width), c(size.height));
    let _ = writeln!(
        s,
        "<style>{STYLE}</style>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
    );
    s += &axes(&size, &x, &y);
    s += &text("head", (8.0, 20.0), title);
    s += &text_at("name", "end", (size.x1(), 20.0), "orange: a journal's");
    s += &text_at("name", "start", (8.0, 34.0), &y.title);
    let wide = (size.x1() - size.x0()) / Plane::WIDTH as f64;
    let bytes = (plane.bytes.end - plane.bytes.start) as f64 / (1 << 20) as f64;
    let low = |row: usize| mib(plane.bytes.start) + bytes * row as f64 / Plane::HEIGHT as f64;
    for kind in ["other", "journal"] {
        let mut d = String::new();
        for (row, cells) in plane.cells.chunks(Plane::WIDTH).enumerate() {
            let (top, bottom) = (size.y(&y, low(row + 1)), size.y(&y, low(row)));
            let is = |cell: &(u32, u32)| if kind == "journal" { cell.0 > 0 } else { cell.1 > 0 };
            let mut from = 0;
            while let Some(first) = cells[from..].iter().position(is).map(|at| from + at) {
                from = cells[first..]
                    .iter()
                    .position(|cell| !is(cell))
                    .map_or(cells.len(), |n| first + n);
                let (x0, x1) = (first as f64 * wide, from as f64 * wide);
                let (x0, wide, high) = (c(size.x0() + x0), c(x1 - x0), c((bottom - top).max(1.0)));
                let _ = write!(d, "M{x0} {}h{wide}v{high}h-{wide}z", c(top));
            }
        }
        let _ = writeln!(s, "<path class=\"{kind}\" d=\"{d}\"/>");
    }
    s + "</svg>\n"
}
