//! Tests that this machine can't run.
//!
//! Owns: how a test says so. Promises: `make test` lists it at its end, with the reason, and CI fails where
//! `tests/must-run` names it. Never: decides what can't run.

use std::fs::OpenOptions;
use std::io::Write;

/// Notes that the test `name` (a word) is skipped, and why. To be called before it returns early.
///
/// # Panics
/// The list that `make test` keeps can't be written.
pub fn skip(name: &str, reason: &str) {
    println!("skip  {name}: {reason}");
    // By hand, with `cargo test`, nobody keeps a list.
    let Some(list) = std::env::var_os("FLASHLANE_SKIPPED") else { return };
    let mut list = OpenOptions::new().append(true).create(true).open(list).expect("the list opens");
    list.write_all(format!("{name}: {reason}\n").as_bytes()).expect("the list takes a line");
}
