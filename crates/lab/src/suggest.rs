//! "Did you mean ...?" for keys, options and names.
//!
//! Owns: the one similarity rule. Promises: suggests only a name that exists.
//! Never: decides anything, the caller's error stands without it.

/// The known name that `word` was probably meant to be.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&word, name), name))
        // Two slips in a word of six letters still leave it recognizable; more is guessing.
        .filter(|(distance, name)| *distance <= 1 + name.len().min(word.len()) / 5)
        .min()
        .map(|(_, name)| name)
}

/// `"; did you mean `x`?"`, or nothing.
pub fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(word, known) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognized_and_a_stranger_is_not() {
        let known = ["iodepth", "bs", "rwmixread", "size"];
        assert_eq!(nearest("io_depth", known), Some("iodepth"));
        assert_eq!(nearest("rwmixraed", known), Some("rwmixread"));
        assert_eq!(nearest("sise", known), Some("size"));
        assert_eq!(nearest("zzzz", known), None);
        assert_eq!(hint("xyzzyx", known), "");
    }
}
