//! What is fuzzed: every trace parser, fio's job files, experiments.
//!
//! Owns: one function per kind of input that does everything a user can do with such a file, and
//! what must hold whatever the bytes are. Promises: returns; an input is used or refused with a
//! message. Never: knows where bytes come from: libFuzzer (`fuzz/fuzz_targets`) or the seeded run
//! (`harness.rs`).

use flashlane_lab::experiment::{Base, Experiment};
use flashlane_lab::fio;
use flashlane_lab::run::Unwatched;
use flashlane_lab::trace::convert::{Conversion, convert};
use flashlane_lab::trace::info::Info;
use flashlane_lab::trace::{ConvertError, Format, Layout, Reading, TraceSource, scan};
use std::path::Path;

/// Names of the targets: the formats of traces, `fio` and `toml`.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Format::ALL.map(Format::word).to_vec();
    names.extend(["fio", "toml"]);
    names
}

/// Does with `bytes` what the target does; true when they were accepted.
///
/// # Panics
/// When something that must hold does not, or there is no such target.
pub(crate) fn run(target: &str, bytes: &[u8]) -> bool {
    let text = || String::from_utf8_lossy(bytes);
    match target {
        "fio" => {
            let _ = fio::looks_like(&text());
            said(fio::parse("fuzz", &text()))
        }
        "toml" => {
            let base = Base::of(Path::new("fuzz.toml"), None);
            said(Experiment::parse("fuzz.toml", &text(), &base, &[]))
        }
        word => {
            let format = Format::named(word).unwrap_or_else(|| panic!("no target `{word}`"));
            // By its content first: any format may come of it.
            trace(bytes, None);
            trace(bytes, Some(format))
        }
    }
}

/// An error has words.
fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> bool {
    if let Err(e) = &result {
        assert!(!e.to_string().trim().is_empty());
    }
    result.is_ok()
}

fn memory(bytes: Vec<u8>) -> TraceSource {
    TraceSource::Memory { name: "fuzz".into(), bytes: bytes.into() }
}

fn trace(bytes: &[u8], format: Option<Format>) -> bool {
    let reading = Reading { format, ..Reading::default() };
    let scanned = match scan(&memory(bytes.to_vec()), &reading) {
        Ok(scanned) => scanned,
        Err(e) => {
            assert!(e.to_string().contains("fuzz"), "the file is not named: {e}");
            return false;
        }
    };
    let info = Info::of(&scanned);
    assert!(info.to_text().contains("fuzz") && info.to_json().ends_with('\n'));
    assert!(info.verdict().contains("good"));
    // A layout of any trace fits when it may be packed.
    assert!(said(Layout::plan(&scanned, 1 << 20, None, true)));
    for to in [Format::Parquet, scanned.format] {
        let what = Conversion { to, device: None, lossy: true };
        match convert(&scanned, &what, &Unwatched, || Ok(Vec::new())) {
            Ok((written, done)) => {
                let again = Reading { format: Some(to), ..Reading::default() };
                let read = scan(&memory(written), &again).expect("what was written is read");
                assert_eq!(read.chosen().requests(), done.written, "{to}");
            }
            Err(e @ (ConvertError::Nothing { .. } | ConvertError::Devices { .. })) => {
                assert!(!e.to_string().is_empty());
            }
            Err(e) => panic!("a trace that was read can't be converted: {e}"),
        }
    }
    true
}
