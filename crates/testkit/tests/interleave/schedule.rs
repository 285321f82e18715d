//! Schedules: who goes on at each point, from a seed.
//!
//! Owns: the scheduler, how many seeds are tried, what a failure prints. Promises: the same seed, the same
//! schedule. Never: lets a core spin alone for ever: whoever yields lets another on if there is one.

use flashlane_base::Rng;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Accesses of one run; ten times what the longest ordinary one takes. Beyond it nobody gets anywhere.
const STEPS_MAX: usize = 60_000_000;
/// A core's stack: recovery in a build for debugging is deep.
const STACK_BYTES: usize = 4 << 20;

/// How eagerly cores take turns, 1 in so many points: drawn per seed, since some defects need a core to
/// stop for long at one place, others want many changes.
const TURNS: [u64; 6] = [2, 4, 16, 64, 512, 4096];

struct Seeded {
    rng: Rng,
    seed: u64,
    turn: u64,
    begun: bool,
}

impl Seeded {
    fn new(seed: u64) -> Seeded {
        let mut rng = Rng::stream(seed, "interleave.schedule", 0);
        let turn = TURNS[rng.below(TURNS.len() as u64) as usize];
        Seeded { rng, seed, turn, begun: false }
    }
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        let first = !std::mem::replace(&mut self.begun, true);
        first.then(|| Schedule::new(self.seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        yields: bool,
    ) -> Option<TaskId> {
        if let [only] = runnable {
            return Some(only.id());
        }
        let at = current.and_then(|c| runnable.iter().position(|task| task.id() == c));
        match at {
            Some(at) if !yields && self.rng.below(self.turn) != 0 => Some(runnable[at].id()),
            Some(at) => {
                let step = 1 + self.rng.below(runnable.len() as u64 - 1) as usize;
                Some(runnable[(at + step) % runnable.len()].id())
            }
            None => Some(runnable[self.rng.below(runnable.len() as u64) as usize].id()),
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

pub(crate) fn number(name: &str) -> Option<u64> {
    #[allow(clippy::disallowed_methods)] // how a person says what to run
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: a whole number, please")))
}

/// Runs `body` for seeds from FLASHLANE_SEED (0): `count` of them, or FLASHLANE_SCHEDULES, or for as long as
/// FLASHLANE_SECONDS last. Returns how many there were.
pub(crate) fn explore(test: &'static str, count: u64, body: fn(u64)) -> u64 {
    let first = number("FLASHLANE_SEED").unwrap_or(0);
    let seconds = number("FLASHLANE_SECONDS").map(Duration::from_secs);
    let count = number("FLASHLANE_SCHEDULES").or(seconds.is_none().then_some(count));
    #[allow(clippy::disallowed_methods)] // how long to go on, no part of any run
    let begun = Instant::now();
    let is_over = |done| {
        count.is_some_and(|count| done >= count)
            || seconds.is_some_and(|most| begun.elapsed() > most)
    };
    let mut done = 0;
    while !is_over(done) {
        let seed = first + done;
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.failure_persistence = FailurePersistence::None;
        config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
        config.silence_warnings = true;
        let runner = Runner::new(Seeded::new(seed), config);
        let ran = catch_unwind(AssertUnwindSafe(|| runner.run(move || body(seed))));
        if let Err(panic) = ran {
            eprintln!(
                "schedule {seed} of {test} failed; again: FLASHLANE_SEED={seed} FLASHLANE_SCHEDULES=1 \
                 make interleave ONLY={test}"
            );
            resume_unwind(panic);
        }
        done += 1;
    }
    println!("{test}: {done} schedules from {first} in {:.1} s", begun.elapsed().as_secs_f64());
    assert!(done > 0, "no schedule was tried: FLASHLANE_SCHEDULES and FLASHLANE_SECONDS say none");
    done
}
