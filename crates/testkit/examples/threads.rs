//! Real threads for as long as somebody likes: `make soak-threads`.
//!
//! Owns: its flags. Promises: exit code 1 on a failure, with the command that tries it again. Never: is needed
//! by `cargo test`.
//!
//! ```text
//! threads [--target pblk|qblk|borrow|part] [--from SEED] [--seconds 60]     new seeds, for that long
//! threads --target qblk --seed 7 --times 200                                 one seed, so often
//! ```

// It runs for a span of real time.
#![allow(clippy::disallowed_methods)]

use flashlane_testkit::threaded::{self, Done, Target};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn number(word: Option<String>, flag: &str) -> Result<u64, String> {
    let number = word.as_deref().and_then(|word| word.parse().ok());
    number.ok_or(format!("{flag} takes a whole number"))
}

fn run() -> Result<bool, String> {
    let mut targets: Vec<Target> = Target::ALL.iter().map(|(_, target)| *target).collect();
    let (mut seed, mut from, mut seconds, mut times) = (None, 0, 60, 1);
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        match flag.as_str() {
            "--target" => {
                let name = words.next().unwrap_or_default();
                targets = vec![Target::find(&name).ok_or(format!("no target `{name}`"))?];
            }
            "--seed" => seed = Some(number(words.next(), &flag)?),
            "--from" => from = number(words.next(), &flag)?,
            "--seconds" => seconds = number(words.next(), &flag)?,
            "--times" => times = number(words.next(), &flag)?,
            other => return Err(format!("no flag `{other}`")),
        }
    }
    if let Some(seed) = seed {
        for time in 1..=times {
            for target in &targets {
                if let Err(failed) = threaded::run_watched(*target, seed) {
                    println!("FAILED at time {time}: {failed}");
                    return Ok(false);
                }
            }
        }
        println!("seed {seed}: {times} times, no failure");
        return Ok(true);
    }
    let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
    let is_over = |_: &Done| begun.elapsed() >= limit;
    let (done, failed) = threaded::soak(&targets, from, is_over);
    println!("{done}, in {:.0} s", begun.elapsed().as_secs_f64());
    if let Some(failed) = &failed {
        println!("FAILED {failed}");
    }
    Ok(failed.is_none())
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
