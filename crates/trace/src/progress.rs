//! Who looks on while something takes long.
//!
//! Owns: [`Progress`], and nobody. Never: draws anything.

/// Told how far something is, asked whether to go on.
pub trait Progress {
    /// So many of (about) so many lines, requests or sectors of a stage are done.
    fn progress(&self, stage: &str, done: u64, total: Option<u64>);
    /// True once the user wants it to end.
    fn interrupted(&self) -> bool;
}

/// Nobody looks on.
pub struct Unwatched;

impl Progress for Unwatched {
    fn progress(&self, _: &str, _: u64, _: Option<u64>) {}
    fn interrupted(&self) -> bool {
        false
    }
}
