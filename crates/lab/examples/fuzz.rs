//! Replays a seed of the fuzzing run, or goes on with new seeds.
//!
//! Owns: flags. Promises: the same seed is the same input. Never: knows a format; the targets are
//! in `fuzz/targets.rs`.
//!
//! ```text
//! cargo run --release -p flashlane-lab --example fuzz -- --target msr --seed 7     one seed
//! cargo run --release -p flashlane-lab --example fuzz -- --from 1000 --count 9000  all targets
//! cargo run --release -p flashlane-lab --example fuzz -- --target msr --seed 7 --print
//! cargo run --release -p flashlane-lab --example fuzz -- --target msr --input FILE    that input
//! ```

#[path = "../../../fuzz/harness.rs"]
mod harness;
#[path = "../../../fuzz/targets.rs"]
mod targets;

use std::io::Write;
use std::process::ExitCode;

const USAGE: &str =
    "--target NAME | all, --seed N | --from N --count M | --input FILE, --print (the input itself)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut target, mut from, mut count, mut print) = ("all".to_string(), 0, 1000, false);
    let mut input = None;
    while let Some(flag) = args.next() {
        print |= flag == "--print";
        let mut number = || args.next().and_then(|n| n.parse::<u64>().ok());
        let understood = match flag.as_str() {
            "--seed" => number().map(|n| (from, count) = (n, 1)),
            "--from" => number().map(|n| from = n),
            "--count" => number().map(|n| count = n),
            "--target" => args.next().map(|t| target = t),
            "--input" => args.next().map(|file| input = Some(file)),
            "--print" => Some(()),
            _ => None,
        };
        if understood.is_none() {
            eprintln!("fuzz: {flag}? {USAGE}");
            return ExitCode::from(2);
        }
    }
    let all = targets::names();
    let chosen: Vec<&str> =
        all.iter().copied().filter(|t| target == "all" || target == *t).collect();
    if chosen.is_empty() {
        eprintln!("fuzz: no target `{target}`; there are: all, {}", all.join(", "));
        return ExitCode::from(2);
    }
    if let Some(file) = input {
        let bytes = match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(e) => {
                eprintln!("fuzz: cannot read {file}: {e}");
                return ExitCode::from(2);
            }
        };
        for target in chosen {
            println!("{target}: {file}, accepted: {}", targets::run(target, &bytes));
        }
        return ExitCode::SUCCESS;
    }
    for target in chosen {
        let corpus = harness::corpus(target);
        let mut accepted = 0;
        for seed in from..from.saturating_add(count) {
            if print {
                // A closed pipe is the reader's wish.
                let _ = std::io::stdout().write_all(&harness::input(target, &corpus, seed));
                continue;
            }
            match harness::run_seed(target, &corpus, seed, &targets::run) {
                Ok(taken) => accepted += taken as u64,
                Err(e) => {
                    eprintln!("{e}");
                    return ExitCode::FAILURE;
                }
            }
        }
        if !print {
            println!("{target}: {count} seeds from {from}, {accepted} accepted");
        }
    }
    ExitCode::SUCCESS
}
