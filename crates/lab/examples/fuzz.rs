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

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

/// Replays a seed of the fuzzing run, or goes on with new seeds.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "all")]
    target: String,
    #[arg(long, conflicts_with_all = ["from", "count"])]
    seed: Option<u64>,
    #[arg(long, default_value_t = 0)]
    from: u64,
    #[arg(long, default_value_t = 1000)]
    count: u64,
    #[arg(long, value_name = "FILE")]
    input: Option<String>,
    /// The input itself, in place of what becomes of it
    #[arg(long)]
    print: bool,
}

fn main() -> ExitCode {
    let Args { target, seed, from, count, input, print } = Args::parse();
    let (from, count) = seed.map_or((from, count), |seed| (seed, 1));
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
