//! `flashlane`: flags and glue. What a command does is in `flashlane-lab`.
//!
//! Owns: the command line, progress on the terminal, Ctrl-C, files that results go to, exit codes.
//! Promises: an error says what, where and what to do, never a panic; a closed pipe ends quietly;
//! nothing is drawn on a terminal that is none. Never: computes a result.

mod args;
mod commands;
mod draw;
mod machine;
mod output;
mod watch;

use clap::Parser;
use flashlane_testkit::mutant;
use std::process::ExitCode;

/// A simulation makes and drops a future per request, dozens in flight and larger than what the
/// system's allocator keeps at hand: 11 to 18% of a run in steady
/// state (`bench/runs/2026-11-22-x86_64-2c`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a command came to; the number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Done, and good.
    Good = 0,
    /// Done, but the result is bad: a broken rule, wrong data, a verdict that changed.
    Bad = 1,
    /// Not done: wrong usage, wrong input, a file that can't be read or written.
    Unusable = 2,
    /// Ended by Ctrl-C; what was done so far has been printed.
    Interrupted = 130,
}

fn main() -> ExitCode {
    let args = args::Args::parse();
    if std::env::var_os(mutant::VARIABLE).is_some() && !mutant::ARE_BUILT {
        let why = "is set, and this build has no mutants: build with --features mutants (docs/MUTANTS.md)";
        output::complain(&anyhow::anyhow!("{} {why}", mutant::VARIABLE));
        return ExitCode::from(Ending::Unusable as u8);
    }
    let ending = match commands::run(args) {
        Ok(ending) => ending,
        Err(error) if output::is_closed_pipe(&error) => Ending::Good,
        Err(error) => {
            output::complain(&error);
            commands::blame(&error)
        }
    };
    if let Some(name) = std::env::var_os(mutant::VARIABLE).filter(|_| mutant::ARE_BUILT) {
        eprintln!("mutant {}: struck {} times", name.display(), mutant::strikes());
    }
    ExitCode::from(ending as u8)
}
