//! A bounded fuzzing run that needs no nightly toolchain: mutations of the corpus by seed.
//!
//! Owns: what an input is made of (a file of the corpus, some mutations), the command that replays
//! a seed. Promises: an input is a function of target and seed and of the corpus in the tree.
//! Never: judges an input; that is the target's business.

use flashlane_base::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Where the corpus of a target lies.
pub(crate) fn corpus_folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// The files of a target's corpus, in order of their names.
pub(crate) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = corpus_folder(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|p| std::fs::read(p).expect("a file of the corpus")).collect()
}

/// What often lies on an edge: numbers, separators, words of some format.
const TOKENS: [&[u8]; 24] = [
    b"0",
    b"1",
    b"-1",
    b"255",
    b"65535",
    b"65536",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"18446744073709551615",
    b"18446744073709551616",
    b"1e9",
    b".",
    b",",
    b"\n",
    b"\r\n",
    b" ",
    b"\0",
    b"\xff\xff\xff\xff",
    b"read",
    b"W",
    b"[",
    b"=",
    b"\"",
];

pub(crate) fn input(target: &str, corpus: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut rng = Rng::stream(seed, target, 0);
    let mut below = |n: usize| rng.below(n.max(1) as u64) as usize;
    let mut bytes = corpus[below(corpus.len())].clone();
    for _ in 0..1 + below(3) {
        let at = below(bytes.len() + 1);
        let end = (at + 1 + below(16)).min(bytes.len());
        match below(9) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at.min(end)..end)),
            2 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << below(8);
                }
            }
            3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = below(256) as u8;
                }
            }
            4 | 5 => drop(bytes.splice(at..at, TOKENS[below(TOKENS.len())].iter().copied())),
            // A number becomes another one.
            6 => {
                if let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit) {
                    let start = at + start;
                    let len = bytes[start..].iter().take_while(|b| b.is_ascii_digit()).count();
                    let token = TOKENS[below(12)].iter().copied();
                    drop(bytes.splice(start..start + len, token));
                }
            }
            7 => {
                let copy = bytes[at.min(end)..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => {
                let other = &corpus[below(corpus.len())];
                let from = below(other.len() + 1);
                let to = (from + below(64)).min(other.len());
                let part = other[from..to].to_vec();
                drop(bytes.splice(at..at, part));
            }
        }
    }
    bytes
}

/// How a person runs one seed again.
pub(crate) fn command(target: &str, seed: u64) -> String {
    format!(
        "cargo run --release -p flashlane-lab --example fuzz -- --target {target} --seed {seed}"
    )
}

/// Runs a seed; an error holds the command that runs it again.
pub(crate) fn run_seed(
    target: &str,
    corpus: &[Vec<u8>],
    seed: u64,
    run: &dyn Fn(&str, &[u8]) -> bool,
) -> Result<bool, String> {
    let bytes = input(target, corpus, seed);
    catch_unwind(AssertUnwindSafe(|| run(target, &bytes))).map_err(|_| {
        format!("target {target}, seed {seed} panicked. Run it again:\n{}", command(target, seed))
    })
}
