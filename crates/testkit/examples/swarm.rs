//! Replays a seed of the swarm, or goes on with new seeds until stopped.
//!
//! Owns: its flags. Promises: exit code 1 on a failure, and the replay command in the message.
//! Never: is needed by `cargo test`.
//!
//! ```text
//! swarm --target pblk --seed 7 [--effort 100] [--lives 1] [--no-knobs] [--watch LBA] [--twice] [--options]
//! swarm --target pblk --seed 7 --aimed --lives 6       cut at moments that matter
//! swarm --target parafs --policy f2fs-sb --seed 7      of a file system, who cleans and schedules
//! swarm --target ram --seed 7 --cut NS [--cut NS]     power cuts at these times, one per life
//! swarm --target ram --seed 7 --everywhere 1000        1000 power cuts, spread over the run
//! swarm --target pblk --from 1000 --count 500 [--keep-going]
//! swarm --target all --seconds 3600          (0: until stopped)
//! ```

// A soak runs for a span of real time.
#![allow(clippy::disallowed_methods)]

use clap::Parser;
use flashlane_base::{Lba, Ns};
use flashlane_testkit::files::{FILES, Files, Way};
use flashlane_testkit::stacks::subjects;
use flashlane_testkit::{Plan, Subject, cut_everywhere, run_seed, swarm};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Replays a seed of the swarm, or goes on with new seeds until stopped.
#[derive(Parser)]
struct Args {
    #[arg(long, default_value = "all")]
    target: String,
    /// Of a file system.
    #[arg(long)]
    policy: Option<String>,
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value_t = 0)]
    from: u64,
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
    #[arg(long)]
    seconds: Option<u64>,
    #[arg(long, default_value_t = 100)]
    effort: u64,
    #[arg(long)]
    watch: Option<u64>,
    #[arg(long)]
    twice: bool,
    #[arg(long)]
    keep_going: bool,
    #[arg(long)]
    cut_at_end: bool,
    #[arg(long)]
    options: bool,
    #[arg(long)]
    no_knobs: bool,
    #[arg(long)]
    cut: Vec<u64>,
    #[arg(long)]
    lives: Option<u64>,
    #[arg(long)]
    aimed: bool,
    #[arg(long)]
    everywhere: Option<u64>,
}

fn targets(name: &str, policy: Option<&str>) -> Result<Vec<&'static dyn Subject>, String> {
    let all = |of: &str| name == "all" || of == name;
    if let Some(word) = policy {
        let Some(way) = Way::all().find(|way| way.word() == word) else {
            let known: Vec<_> = Way::all().map(Way::word).collect();
            return Err(format!("no policy `{word}`; there are {}", known.join(", ")));
        };
        let files = FILES.iter().filter(|files| all(files.name));
        // As long-lived as those of the table.
        let of = |files: &Files| Box::leak(Box::new(files.of(way))) as &'static dyn Subject;
        let found: Vec<_> = files.map(of).collect();
        return match found.is_empty() {
            true => Err(format!("--policy is of a file system, and `{name}` is none")),
            false => Ok(found),
        };
    }
    let found: Vec<_> = subjects().filter(|s| all(s.name())).collect();
    if found.is_empty() {
        let known: Vec<_> = subjects().map(|s| s.name()).collect();
        return Err(format!("no target `{name}`; there are {} and all", known.join(", ")));
    }
    Ok(found)
}

/// Runs a seed, a second time if asked; true when it was good.
fn one(stack: &dyn Subject, seed: u64, args: &Args, quiet: bool) -> bool {
    let plan = Plan {
        effort: args.effort,
        watched: args.watch.map(Lba::new),
        cut_at_end: args.cut_at_end,
        knobs: !args.no_knobs,
        cuts: args.cut.iter().copied().map(Ns::from_ns).collect(),
        lives: args.lives,
        aimed: args.aimed,
        ..Plan::default()
    };
    if args.options {
        println!("{:#?}", swarm::Options::draw(seed, 4096, args.effort));
    }
    if let Some(most) = args.everywhere {
        let cuts = cut_everywhere(stack, seed, &plan, most as usize);
        match &cuts {
            Ok(cuts) => println!("{}, seed {seed}: {cuts} cuts", stack.name()),
            Err(failed) => println!("{failed}"),
        }
        return cuts.is_ok();
    }
    let first = run_seed(stack, seed, &plan);
    match &first {
        Ok(done) if !quiet => println!("{}, seed {seed}: {done:?}", stack.name()),
        Ok(_) => {}
        Err(failed) => {
            println!("{failed}");
            return false;
        }
    }
    if args.twice && run_seed(stack, seed, &plan).ok() != first.ok() {
        println!("{}, seed {seed}: a second run did something else", stack.name());
        return false;
    }
    true
}

fn run() -> Result<bool, String> {
    let args = Args::parse();
    let targets = targets(&args.target, args.policy.as_deref())?;
    if let Some(seed) = args.seed {
        return Ok(targets.iter().all(|stack| one(*stack, seed, &args, false)));
    }
    let start = Instant::now();
    let (mut good, mut bad) = (0u64, 0u64);
    for seed in (args.from..).take(args.count.try_into().unwrap_or(usize::MAX)) {
        let over = |s: u64| s > 0 && start.elapsed() >= Duration::from_secs(s);
        if args.seconds.is_some_and(over) || (bad > 0 && !args.keep_going) {
            break;
        }
        for stack in &targets {
            match one(*stack, seed, &args, true) {
                true => good += 1,
                false => bad += 1,
            }
        }
        if seed % 100 == 99 {
            println!("up to seed {seed}: {good} good, {bad} bad, {:?}", start.elapsed());
        }
    }
    println!("{good} runs good, {bad} bad, {:?}", start.elapsed());
    Ok(bad == 0)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("swarm: {message}");
            ExitCode::FAILURE
        }
    }
}
