//! An SVG drawing as PNG.
//!
//! Owns: the font and the scale. Promises: text is set in the font that comes with the program, so a drawing looks
//! the same on every machine; the same drawing gives the same bytes. Never: reads a file.

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};
use std::sync::{Arc, LazyLock};

/// Pixels per unit of the drawing: sharp in print and on dense screens.
const SCALE: f32 = 2.0;

/// What drawings name first (DejaVu Sans), regular and bold.
static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    Arc::new(fonts)
});

/// A drawing as PNG, [`SCALE`] pixels for each of its units.
///
/// # Errors
/// It is not SVG: a text from outside has a character that XML does not allow.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>, String> {
    let options = Options { fontdb: FONTS.clone(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|e| e.to_string())?;
    let pixels = |units: f32| (units * SCALE).ceil() as u32;
    let (width, height) = (pixels(tree.size().width()), pixels(tree.size().height()));
    let mut image = Pixmap::new(width, height).ok_or("the drawing has no size")?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut image.as_mut());
    image.encode_png().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_there() {
        let draw = |inner: &str| {
            png(&format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"60\" height=\"20\">{inner}</svg>"
            ))
            .unwrap()
        };
        let text = |weight: &str| {
            draw(&format!("<text y=\"15\" font-family=\"DejaVu Sans\"{weight}>pblk µs</text>"))
        };
        let (empty, regular, bold) = (draw(""), text(""), text(" font-weight=\"600\""));
        assert_eq!(&empty[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(empty[16..24], [0, 0, 0, 120, 0, 0, 0, 40], "two pixels for each unit");
        assert!(empty != regular && regular != bold, "both fonts are there");
        assert_eq!(regular, text(""));
        assert!(png("<svg>\u{1}").is_err());
    }
}
