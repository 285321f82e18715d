//! Values that several commands take.
//!
//! Owns: how a word becomes a value, and what is said of a word that is none. Never: knows a command.

use clap::{Args as ClapArgs, ValueHint};
use flashlane_files::Bytes;
use flashlane_lab::lnvm::Ns;
use flashlane_lab::suggest;
use std::path::PathBuf;

/// Where a text for people goes as JSON.
#[derive(ClapArgs)]
pub(crate) struct AsJson {
    /// Write it as JSON; `-` prints it in place of the text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

/// There is nothing of that name, but there is this.
pub(super) fn no_such(what: &str, word: &str, names: &[&str]) -> String {
    let hint = suggest::hint(word, names.iter().copied());
    format!("no such {what}{hint}; there are: {}", names.join(", "))
}

/// One of a few words.
pub(super) fn one_of<T: Copy>(names: &[(&str, T)], word: &str) -> Result<T, String> {
    let known = || names.iter().map(|(name, _)| *name);
    let found = names.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let hint = suggest::hint(word, known());
        format!("there are {}{hint}", known().collect::<Vec<_>>().join(", "))
    })
}

pub(super) fn time_of(text: &str) -> Result<Ns, String> {
    text.parse::<Ns>().map_err(|e| e.to_string())
}

pub(super) fn bytes_of(text: &str) -> Result<Bytes, String> {
    text.parse::<Bytes>().map_err(|e| e.to_string())
}

pub(super) fn seed_of(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a seed is a whole number from 0 to 2^64 - 1".into())
}
