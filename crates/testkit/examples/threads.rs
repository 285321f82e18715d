//! Real threads for as long as somebody likes: `make soak-threads`.
//!
//! Owns: its flags. Promises: exit code 1 on a failure, with the command that tries it again. Never: is needed
//! by `cargo test`.
//!
//! ```text
//! threads [--target pblk|qblk|borrow|part|pftl] [--from SEED] [--seconds 60]     new seeds, for that long
//! threads --target qblk --seed 7 --times 200                                 one seed, so often
//! ```

// It runs for a span of real time.
#![allow(clippy::disallowed_methods)]

use clap::Parser;
use flashlane_testkit::threaded::{self, Done, Target};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Real threads, with new seeds or with one over and over.
#[derive(Parser)]
struct Args {
    /// One of pblk, qblk, borrow, part and pftl, in place of all
    #[arg(long, value_parser = target)]
    target: Option<Target>,
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value_t = 0)]
    from: u64,
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    #[arg(long, default_value_t = 1)]
    times: u64,
}

fn target(name: &str) -> Result<Target, String> {
    Target::find(name).ok_or(format!("no target `{name}`"))
}

fn run(args: Args) -> bool {
    let Args { seed, from, seconds, times, .. } = args;
    let all = Target::ALL.iter().map(|(_, target)| *target);
    let targets: Vec<Target> = all.filter(|one| args.target.is_none_or(|t| t == *one)).collect();
    if let Some(seed) = seed {
        for time in 1..=times {
            for target in &targets {
                if let Err(failed) = threaded::run_watched(*target, seed) {
                    println!("FAILED at time {time}: {failed}");
                    return false;
                }
            }
        }
        println!("seed {seed}: {times} times, no failure");
        return true;
    }
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
    let is_over = |_: &Done| begun.elapsed() >= limit;
    let (done, failed) = threaded::soak(&targets, from, is_over);
    println!("{done}, in {:.0} s", begun.elapsed().as_secs_f64());
    if let Some(failed) = &failed {
        println!("FAILED {failed}");
    }
    failed.is_none()
}

fn main() -> ExitCode {
    if run(Args::parse()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
