//! Replays a seed of the swarm, or goes on with new seeds until stopped.
//!
//! Owns: its flags. Promises: exit code 1 on a failure, and the replay command in the message.
//! Never: is needed by `cargo test`.
//!
//! ```text
//! swarm --target pblk --seed 7 [--effort 100] [--lives 1] [--no-knobs] [--watch LBA] [--twice] [--options]
//! swarm --target pblk --seed 7 --aimed --lives 6       cut at moments that matter
//! swarm --target ram --seed 7 --cut NS [--cut NS]     power cuts at these times, one per life
//! swarm --target ram --seed 7 --everywhere 1000        1000 power cuts, spread over the run
//! swarm --target pblk --from 1000 --count 500 [--keep-going]
//! swarm --target all --seconds 3600          (0: until stopped)
//! ```

// A soak runs for a span of real time.
#![allow(clippy::disallowed_methods)]

use flashlane_base::{Lba, Ns};
use flashlane_testkit::stacks::{self, STACKS};
use flashlane_testkit::{Plan, Stack, cut_everywhere, run_seed, swarm};
use std::process::ExitCode;
use std::time::{Duration, Instant};

struct Args {
    target: String,
    seed: Option<u64>,
    from: u64,
    count: u64,
    seconds: Option<u64>,
    effort: u64,
    watch: Option<u64>,
    twice: bool,
    keep_going: bool,
    cut_at_end: bool,
    options: bool,
    no_knobs: bool,
    cuts: Vec<Ns>,
    lives: Option<u64>,
    aimed: bool,
    everywhere: Option<u64>,
}

fn parse() -> Result<Args, String> {
    let mut args = Args {
        target: "all".into(),
        seed: None,
        from: 0,
        count: u64::MAX,
        seconds: None,
        effort: 100,
        watch: None,
        twice: false,
        keep_going: false,
        cut_at_end: false,
        options: false,
        no_knobs: false,
        cuts: Vec::new(),
        lives: None,
        aimed: false,
        everywhere: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let mut number = || {
            let word = words.next().ok_or(format!("{flag} needs a number"))?;
            word.parse::<u64>().map_err(|_| format!("{flag}: `{word}` is not a number"))
        };
        match flag.as_str() {
            "--seed" => args.seed = Some(number()?),
            "--from" => args.from = number()?,
            "--count" => args.count = number()?,
            "--seconds" => args.seconds = Some(number()?),
            "--effort" => args.effort = number()?,
            "--watch" => args.watch = Some(number()?),
            "--twice" => args.twice = true,
            "--keep-going" => args.keep_going = true,
            "--cut-at-end" => args.cut_at_end = true,
            "--cut" => args.cuts.push(Ns::from_ns(number()?)),
            "--lives" => args.lives = Some(number()?),
            "--everywhere" => args.everywhere = Some(number()?),
            "--aimed" => args.aimed = true,
            "--no-knobs" => args.no_knobs = true,
            "--options" => args.options = true,
            "--target" => args.target = words.next().ok_or("--target needs a name")?,
            other => return Err(format!("unknown flag `{other}`; see the head of this file")),
        }
    }
    Ok(args)
}

fn targets(name: &str) -> Result<Vec<&'static Stack>, String> {
    match (name, stacks::find(name)) {
        ("all", _) => Ok(STACKS.iter().collect()),
        (_, Some(stack)) => Ok(vec![stack]),
        _ => {
            let known: Vec<_> = STACKS.iter().map(|s| s.name).collect();
            Err(format!("no target `{name}`; there are {} and all", known.join(", ")))
        }
    }
}

/// Runs a seed, a second time if asked; true when it was good.
fn one(stack: &Stack, seed: u64, args: &Args, quiet: bool) -> bool {
    let plan = Plan {
        effort: args.effort,
        watched: args.watch.map(Lba::new),
        cut_at_end: args.cut_at_end,
        knobs: !args.no_knobs,
        cuts: args.cuts.clone(),
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
            Ok(cuts) => println!("{}, seed {seed}: {cuts} cuts", stack.name),
            Err(failed) => println!("{failed}"),
        }
        return cuts.is_ok();
    }
    let first = run_seed(stack, seed, &plan);
    match &first {
        Ok(done) if !quiet => println!("{}, seed {seed}: {done:?}", stack.name),
        Ok(_) => {}
        Err(failed) => {
            println!("{failed}");
            return false;
        }
    }
    if args.twice && run_seed(stack, seed, &plan).ok() != first.ok() {
        println!("{}, seed {seed}: a second run did something else", stack.name);
        return false;
    }
    true
}

fn run() -> Result<bool, String> {
    let args = parse()?;
    let targets = targets(&args.target)?;
    if let Some(seed) = args.seed {
        return Ok(targets.iter().all(|stack| one(stack, seed, &args, false)));
    }
    let start = Instant::now();
    let (mut good, mut bad) = (0u64, 0u64);
    for seed in (args.from..).take(args.count.try_into().unwrap_or(usize::MAX)) {
        let over = |s: u64| s > 0 && start.elapsed() >= Duration::from_secs(s);
        if args.seconds.is_some_and(over) || (bad > 0 && !args.keep_going) {
            break;
        }
        for stack in &targets {
            match one(stack, seed, &args, true) {
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
