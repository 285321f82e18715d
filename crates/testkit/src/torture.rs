//! Torture: seeds, faults and power cuts at chosen moments, on all cores, until somebody says stop.
//!
//! Owns: where a mode places cuts, the order of seeds, what is counted, how a failure is made
//! small. Promises: the same sources, seeds and mode give the same [`Outcome`] on any number of
//! threads; a failure names the one run that shows it, with the least effort and the earliest cut
//! that were found in [`SMALLER_RUNS_MAX`] tries; told to stop, the runs under way end where they are, within
//! [`LOOK_EVERY`] and a step. Never: reads a clock; [`Watcher::stop`] does.
//!
//! A cut is tried like this: a run of one life is recorded ([`Moments`]); the same run begins
//! again and loses its power at one of these times; the next life brings the device up, reads all
//! of it, uses it a little and stops. With two cuts that next life is recorded, too, and is cut in
//! its recovery or in what comes after.

use crate::harness::{self, Done, Plan, Subject, run_seed};
use crate::moments::Moments;
use flashlane_base::{Ns, Rng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Where the power goes off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Seeds and targets go through all ways in turn, in short runs, most of them aimed.
    Mixed,
    /// Many lives of a tight device, each cut at a moment that matters ([`crate::aim`]).
    Aimed,
    /// Each seed draws a way: lives that end anywhere (as the swarm has them), linear or log. Long runs.
    Drawn,
    /// No cut: one life to its end.
    None,
    /// Evenly spread over the run.
    Linear,
    /// Dense at the beginning: the first places, then ever wider apart.
    Log,
    /// Every place.
    Exhaustive,
}

impl Mode {
    /// All, with their names.
    pub const ALL: [(&str, Mode); 7] = [
        ("mixed", Mode::Mixed),
        ("aimed", Mode::Aimed),
        ("drawn", Mode::Drawn),
        ("none", Mode::None),
        ("linear", Mode::Linear),
        ("log", Mode::Log),
        ("exhaustive", Mode::Exhaustive),
    ];

    pub fn name(self) -> &'static str {
        let named = Mode::ALL.iter().find(|(_, mode)| *mode == self);
        named.map_or("", |(name, _)| name)
    }

    /// Which of `len` places are cut, in order; `most` at most unless all are.
    fn place(self, len: usize, most: usize) -> Vec<usize> {
        let spread = |all: &[usize]| {
            let kept = most.min(all.len());
            (0..kept).map(|i| all[i * all.len() / kept]).collect()
        };
        match self {
            Mode::Mixed | Mode::Aimed | Mode::Drawn | Mode::None => Vec::new(),
            Mode::Exhaustive => (0..len).collect(),
            Mode::Linear => spread(&(0..len).collect::<Vec<_>>()),
            Mode::Log => {
                // 0 to 8 one by one, then four in each doubling.
                let steps = std::iter::successors(Some(0), |at| Some(at + (at / 4).max(1)));
                spread(&steps.take_while(|at| *at < len).collect::<Vec<_>>())
            }
        }
    }
}

/// How each seed is tortured.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Where cuts are placed.
    pub mode: Mode,
    /// One or two; `None`: one, and with [`Mode::Drawn`] as the seed says.
    pub cuts: Option<u32>,
    /// How much is written before the first cut, 100 is normal; `None`: as the mode and seed say.
    pub effort: Option<u64>,
    /// Of the places that the mode chose for the first cut, every n-th.
    pub every: usize,
    /// The first failure is enough, as it was found.
    pub first: bool,
}

impl Default for How {
    fn default() -> How {
        How { mode: Mode::Mixed, cuts: None, effort: None, every: 1, first: false }
    }
}

/// What is done with one seed on one target.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Many lives on tight devices, all but the last of each cut where the aim says, until so many events
    /// have been simulated: a target that costs little has more of them.
    Aimed(u64),
    /// So many lives, cut anywhere.
    Lives(u64),
    /// A recorded run, cut at so many places of it, one after the other, and those in so many of its recovery.
    Hunt { mode: Mode, most: usize, second: usize },
}

/// First cuts of a seed in modes that choose.
const FIRST_MAX: usize = 32;
/// Second cuts for each of them.
const SECOND_MAX: usize = 6;
/// Events that are simulated for a seed and each share of a target ([`Subject::share`]) where it is aimed:
/// some milliseconds.
const EVENTS: u64 = 6_000;
/// The share of most targets.
pub const SHARE: u64 = 10;
/// How far apart the seeds of its runs are.
const NEXT: u64 = 1 << 32;
/// After so many seeds [`Mode::Mixed`] has gone through its ways.
const TURNS: u64 = 12;
/// Runs that may be spent on making a failure smaller.
pub const SMALLER_RUNS_MAX: u64 = 300;
/// After so many failures nothing new is begun: they have one cause more often than not.
pub const FAILURES_MAX: usize = 8;

/// How often somebody asks whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Seeds that were done to their end, over all sources.
    pub seeds: u64,
    /// Lives: from power-on to power-off; one that was left in its middle is none.
    pub lives: u64,
    /// Of those, ended by a cut.
    pub cuts: u64,
    /// Faults of fault plans that struck.
    pub faults: u64,
    /// As [`Done::vanished`].
    pub vanished: u64,
    /// As [`Done::refused`].
    pub refused: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.seeds += other.seeds;
        self.lives += other.lives;
        self.cuts += other.cuts;
        self.faults += other.faults;
        self.vanished += other.vanished;
        self.refused += other.refused;
    }
}

/// A run that showed a defect, as small as it could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub target: String,
    pub seed: u64,
    /// Times of the cuts, one per life.
    pub cuts: Vec<Ns>,
    /// Which place of the recorded run the last cut is, and how many places there are.
    pub place: Option<(usize, usize)>,
    /// Device, life and what was wrong.
    pub what: String,
    /// Flags that replay it, from `--target` on.
    pub flags: String,
    /// Flags of the run in which it was first seen.
    pub found: String,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub tally: Tally,
    /// Failures in the order of seeds.
    pub failures: Vec<Failure>,
}

/// Who looks on, from any thread.
pub trait Watcher: Sync {
    /// So much has been done; called after each seed.
    fn progress(&self, _: &Tally) {}
    /// A run has failed; what it is made to comes later.
    fn seen(&self) {}
    /// A failure, as soon as it is known.
    fn failed(&self, _: &Failure) {}
    /// It is to end: asked before every run, and while they run. Once it is so it stays so.
    fn stop(&self) -> bool {
        false
    }
}

pub struct Nobody;

impl Watcher for Nobody {}

#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    pub from: u64,
    /// How many; `None`: until stopped.
    pub count: Option<u64>,
}

/// Tortures every source with every seed on `jobs` threads.
pub fn torture(
    sources: &[&dyn Subject],
    how: &How,
    seeds: Seeds,
    jobs: usize,
    watcher: &dyn Watcher,
) -> Outcome {
    harness::say_where_it_panicked();
    let width = sources.len() as u64;
    let all = seeds.count.map_or(u64::MAX, |count| count.saturating_mul(width));
    let (next, enough) = (AtomicU64::new(0), AtomicBool::new(width == 0));
    let enough_is = if how.first { 1 } else { FAILURES_MAX };
    let ordered = Mutex::new(Ordered { most: enough_is, ..Ordered::default() });
    let work = |leave: &Arc<AtomicBool>| {
        while !enough.load(Ordering::Relaxed) && !watcher.stop() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= all {
                return;
            }
            let source = sources[(number % width) as usize];
            let seed = seeds.from.saturating_add(number / width);
            let mut one = One::new(source, seed, watcher, leave);
            let failure = match width == 1 || seeds.count == Some(1) || one.has_turn(how) {
                true => one.torture(how),
                false => None,
            };
            failure.iter().for_each(|f| watcher.failed(f));
            let mut ordered = ordered.lock().unwrap_or_else(PoisonError::into_inner);
            ordered.take(number, one.tally, failure);
            if ordered.outcome.failures.len() >= enough_is {
                enough.store(true, Ordering::Relaxed);
            }
            watcher.progress(&ordered.outcome.tally);
        }
    };
    watched(jobs.max(1), watcher, work);
    ordered.into_inner().unwrap_or_else(PoisonError::into_inner).end()
}

/// Does `work` on so many threads. When the watcher says stop, each is told by the flag that it was given,
/// again and again until all have ended.
fn watched(jobs: usize, watcher: &dyn Watcher, work: impl Fn(&Arc<AtomicBool>) + Sync) {
    let leave: Vec<Arc<AtomicBool>> = (0..jobs).map(|_| Arc::default()).collect();
    let (working, ended) = (Mutex::new(jobs), Condvar::new());
    std::thread::scope(|scope| {
        for leave in &leave {
            scope.spawn(|| {
                // Who panics has ended, too.
                let _gone = Gone(&working, &ended);
                work(leave);
            });
        }
        let mut left = working.lock().unwrap_or_else(PoisonError::into_inner);
        while *left > 0 {
            let waited = ended.wait_timeout(left, LOOK_EVERY);
            left = waited.unwrap_or_else(PoisonError::into_inner).0;
            if watcher.stop() {
                leave.iter().for_each(|leave| leave.store(true, Ordering::SeqCst));
            }
        }
    });
}

/// One thread less works when it goes.
struct Gone<'a>(&'a Mutex<usize>, &'a Condvar);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.1.notify_all();
    }
}

/// Runs exactly this plan on every source: what a failure's flags say.
pub fn replay(
    sources: &[&dyn Subject],
    seed: u64,
    plan: &Plan,
    watcher: &(dyn Watcher + '_),
) -> Outcome {
    harness::say_where_it_panicked();
    // A plan stays on the thread that made it; these are its parts.
    let (effort, lives, knobs, aimed) = (plan.effort, plan.lives, plan.knobs, plan.aimed);
    let cuts = plan.cuts.clone();
    let outcome = Mutex::new(Outcome::default());
    watched(1, watcher, |leave| {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        for source in sources {
            let mut one = One::new(*source, seed, watcher, leave);
            let plan = Plan { effort, lives, knobs, aimed, cuts: cuts.clone(), ..Plan::default() };
            let ran = one.run(plan, None);
            one.tally.seeds += u64::from(!one.left);
            outcome.tally.add(&one.tally);
            outcome.failures.extend(ran.err().map(|caught| {
                watcher.seen();
                let found = one.flags(&caught.plan);
                one.failure(caught, found)
            }));
        }
    });
    outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Results in the order of seeds: what follows the failure that was enough is as if never run.
#[derive(Default)]
struct Ordered {
    /// So many failures are enough.
    most: usize,
    next: u64,
    waiting: BTreeMap<u64, (Tally, Option<Failure>)>,
    outcome: Outcome,
}

impl Ordered {
    fn take(&mut self, number: u64, tally: Tally, failure: Option<Failure>) {
        self.waiting.insert(number, (tally, failure));
        while let Some(one) = self.waiting.remove(&self.next) {
            self.next += 1;
            self.add(one);
        }
    }

    fn add(&mut self, (tally, failure): (Tally, Option<Failure>)) {
        if self.outcome.failures.len() < self.most {
            self.outcome.tally.add(&tally);
            self.outcome.failures.extend(failure);
        }
    }

    fn end(mut self) -> Outcome {
        // Stopped in the middle: what was done behind a seed that was not counts, too.
        for one in std::mem::take(&mut self.waiting).into_values() {
            self.add(one);
        }
        self.outcome
    }
}

/// A run that failed.
struct Caught {
    plan: Box<Plan>,
    place: Option<(usize, usize)>,
    what: String,
}

/// One seed on one source.
struct One<'a> {
    source: &'a dyn Subject,
    seed: u64,
    tally: Tally,
    watcher: &'a dyn Watcher,
    /// Set when the run under way is to end.
    leave: &'a Arc<AtomicBool>,
    /// A run was left, or not begun.
    left: bool,
}

impl<'a> One<'a> {
    fn new(
        source: &'a dyn Subject,
        seed: u64,
        watcher: &'a dyn Watcher,
        leave: &'a Arc<AtomicBool>,
    ) -> One<'a> {
        One { source, seed, tally: Tally::default(), watcher, leave, left: false }
    }
    fn torture(&mut self, how: &How) -> Option<Failure> {
        let (way, effort) = self.way(how);
        let result = match way {
            Way::Aimed(budget) => self.aim(how, budget),
            Way::Lives(lives) => {
                let plan = Plan { effort, lives: Some(lives), ..Plan::default() };
                self.run(plan, None).map(drop)
            }
            Way::Hunt { mode, most, second } => self.hunt(mode, second, effort, most, how.every),
        };
        self.tally.seeds += u64::from(!self.left);
        let caught = result.err()?;
        self.watcher.seen();
        let found = self.flags(&caught.plan);
        if how.first {
            return Some(self.failure(caught, found));
        }
        // What is spent on it is no part of what was tried.
        let mut smaller = One { tally: Tally::default(), ..*self };
        let second = if let Way::Hunt { second, .. } = way { second } else { 0 };
        let caught = smaller.make_smaller(caught, second);
        Some(self.failure(caught, found))
    }

    fn failure(&self, caught: Caught, found: String) -> Failure {
        Failure {
            target: self.source.name().into(),
            seed: self.seed,
            place: caught.place,
            flags: self.flags(&caught.plan),
            cuts: caught.plan.cuts,
            what: caught.what,
            found,
        }
    }

    fn flags(&self, plan: &Plan) -> String {
        format!("{} --seed {}{}", self.source.flags(self.seed), self.seed, plan.flags())
    }

    /// What is done with this seed, and with which effort.
    fn way(&self, how: &How) -> (Way, u64) {
        let mut rng = Rng::stream(self.seed, "testkit.torture", 0);
        let way = [Mode::Drawn, Mode::Linear, Mode::Linear, Mode::Log][rng.below(4) as usize];
        let (two, effort) = (rng.below(2) == 0, [1, 2, 5, 10, 20][rng.below(5) as usize]);
        let drawn = how.mode == Mode::Drawn;
        let two = how.cuts.map_or(drawn && two, |cuts| cuts > 1);
        let second = if two { SECOND_MAX } else { 0 };
        let hunt = |mode| Way::Hunt { mode, most: FIRST_MAX, second };
        let lives = harness::drawn_lives(self.source, self.seed);
        // A short run where it is run again for each cut.
        let (way, effort) = match if drawn { way } else { how.mode } {
            Mode::Mixed => self.mixed(&mut rng),
            Mode::Aimed => (Way::Aimed(EVENTS * self.source.share()), 100),
            Mode::Drawn => (Way::Lives(lives), 100),
            Mode::None => (Way::Lives(1), 100),
            mode @ (Mode::Linear | Mode::Log) => (hunt(mode), effort),
            Mode::Exhaustive => (hunt(Mode::Exhaustive), 1),
        };
        (way, how.effort.unwrap_or(effort))
    }

    /// Where each target is in its turns.
    fn offset(&self) -> u64 {
        Rng::stream(0, self.source.name(), 0).below(TURNS)
    }

    /// Beside others, a target of a small share is left out with most seeds; not where there is only one.
    fn has_turn(&self, how: &How) -> bool {
        let share = self.source.share();
        let turn = self.seed.wrapping_add(self.offset()).wrapping_mul(share);
        how.mode != Mode::Mixed || turn % SHARE < share
    }

    /// All ways in turn, each target at another one, so that the first seeds have tried much of both.
    fn mixed(&self, rng: &mut Rng) -> (Way, u64) {
        let second = [0, 0, 3][rng.below(3) as usize];
        let short = [1, 2, 5, 10][rng.below(4) as usize];
        match self.seed.wrapping_mul(5).wrapping_add(self.offset()) % TURNS {
            0 => (Way::Lives(self.source.lives()), 100),
            1 => (Way::Lives(self.source.lives()), 25),
            2 => (Way::Hunt { mode: Mode::Linear, most: 8, second }, short),
            3 => (Way::Hunt { mode: Mode::Log, most: 8, second }, short),
            _ => (Way::Aimed(EVENTS * self.source.share()), 100),
        }
    }

    /// Runs of this seed, and of those that are so many times [`NEXT`] above it.
    fn aim(&mut self, how: &How, budget: u64) -> Result<(), Caught> {
        let mut events = 0;
        while events < budget && !self.left {
            let mut rng = Rng::stream(self.seed, "testkit.torture.aim", 0);
            let lives = if self.source.lives() < 2 { 1 } else { 4 + rng.below(7) };
            let effort = how.effort.unwrap_or([25, 50, 100, 100][rng.below(4) as usize]);
            let plan = Plan { effort, lives: Some(lives), aimed: true, ..Plan::default() };
            events += 1 + self.run(plan, None)?;
            self.seed = self.seed.wrapping_add(NEXT);
        }
        Ok(())
    }

    /// How many events it had.
    fn run(&mut self, plan: Plan, place: Option<(usize, usize)>) -> Result<u64, Caught> {
        if self.watcher.stop() {
            self.left = true;
            return Ok(0);
        }
        let plan = Plan { leave: Some(self.leave.clone()), ..plan };
        match run_seed(self.source, self.seed, &plan) {
            Ok(done) => {
                self.left |= done.left;
                let Done { lives, cuts, faults, vanished, refused, .. } = done;
                self.tally.add(&Tally { seeds: 0, lives, cuts, faults, vanished, refused });
                Ok(done.polls)
            }
            Err(failed) => {
                let cuts = plan.cuts.len() as u64;
                self.tally.add(&Tally { lives: cuts + 1, cuts, ..Tally::default() });
                Err(Caught {
                    plan: Box::new(Plan { moments: None, leave: None, ..plan }),
                    place,
                    what: failed.what,
                })
            }
        }
    }

    /// A life with these cuts before it; the places in it.
    fn record(
        &mut self,
        cuts: &[Ns],
        effort: u64,
        place: Option<(usize, usize)>,
    ) -> Result<Vec<Ns>, Caught> {
        let moments = Moments::default();
        let lives = cuts.is_empty().then_some(1);
        let recorded = Some(moments.clone());
        let cuts = cuts.to_vec();
        self.run(Plan { effort, lives, cuts, moments: recorded, ..Plan::default() }, place)?;
        Ok(moments.places())
    }

    /// Cuts as the mode says, `most` first ones at most, and `second` ones behind each; the first that fails.
    fn hunt(
        &mut self,
        mode: Mode,
        second_most: usize,
        effort: u64,
        most: usize,
        every: usize,
    ) -> Result<(), Caught> {
        let first = self.record(&[], effort, None)?;
        if self.source.lives() < 2 {
            return Ok(());
        }
        for i in mode.place(first.len(), most).into_iter().step_by(every) {
            if self.left {
                return Ok(());
            }
            let (at, place) = (first[i], Some((i, first.len())));
            if second_most == 0 {
                let cuts = vec![at];
                self.run(Plan { effort, cuts, ..Plan::default() }, place)?;
                continue;
            }
            let second = self.record(&[at], effort, place)?;
            for j in mode.place(second.len(), second_most) {
                // Another part of the places after each first cut.
                let j = if mode == Mode::Linear { (j + i) % second.len() } else { j };
                let cuts = vec![at, second[j]];
                let place = Some((j, second.len()));
                self.run(Plan { effort, cuts, ..Plan::default() }, place)?;
            }
        }
        Ok(())
    }

    /// The least effort, then the fewest lives or the earliest cut that still fail.
    fn make_smaller(&mut self, mut caught: Caught, second: usize) -> Caught {
        let most = 24;
        for effort in [1, 2, 5, 10, 20, 50] {
            if effort >= caught.plan.effort || self.is_spent() {
                break;
            }
            let tried = match caught.plan.cuts.len() {
                0 => self.run(Plan { effort, ..*caught.plan.clone() }, None).map(drop),
                _ => self.hunt(Mode::Linear, second, effort, most, 1),
            };
            if let Err(smaller) = tried {
                caught = smaller;
                break;
            }
        }
        if caught.plan.cuts.is_empty() {
            for lives in 1..caught.plan.lives.unwrap_or(1) {
                let plan = Plan { lives: Some(lives), ..*caught.plan.clone() };
                if let Err(smaller) = self.run(plan, None) {
                    return smaller;
                }
            }
            return caught;
        }
        self.earliest(caught)
    }

    /// The earliest last cut that still fails, found by trying some before it, then some between.
    fn earliest(&mut self, mut caught: Caught) -> Caught {
        let Some((_, before)) =
            caught.plan.cuts.clone().split_last().map(|(l, b)| (*l, b.to_vec()))
        else {
            return caught;
        };
        let effort = caught.plan.effort;
        let Ok(places) = self.record(&before, effort, None) else {
            return caught; // it fails without this cut; the run without it was not the first to
        };
        let (mut good, Some((mut bad, _))) = (0, caught.place) else {
            return caught;
        };
        bad = bad.min(places.len());
        while good < bad && !self.is_spent() {
            let step = ((bad - good) / 16).max(1);
            let tried = (good..bad).step_by(step).find_map(|i| {
                let mut cuts = before.clone();
                cuts.push(places[i]);
                let plan = Plan { effort, cuts, ..Plan::default() };
                match self.is_spent() {
                    true => None,
                    false => self.run(plan, Some((i, places.len()))).err().map(|c| (i, c)),
                }
            });
            match tried {
                None => break,
                Some((i, smaller)) => {
                    // What lies between two tries has not been tried yet.
                    good = if step == 1 { i } else { i.saturating_sub(step - 1).max(good) };
                    (bad, caught) = (i, smaller);
                }
            }
        }
        caught
    }

    /// Enough has been spent on making it smaller.
    fn is_spent(&self) -> bool {
        self.watcher.stop() || self.tally.lives > 2 * SMALLER_RUNS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Size;
    use crate::harness::{Boot, Machine, Source, Up};
    use crate::stacks;
    use crate::swarm::Boxed;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_mode_places_cuts_as_its_name_says() {
        assert_eq!(Mode::Linear.place(100, 4), [0, 25, 50, 75]);
        assert_eq!(Mode::Exhaustive.place(5, 2), [0, 1, 2, 3, 4]);
        assert!(Mode::None.place(5, 2).is_empty());
        let log = Mode::Log.place(1000, 100);
        assert_eq!(log[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]);
        assert!(log.len() < 40 && log[log.len() - 1] > 700, "{log:?}");
        assert_eq!(Mode::Log.place(1000, 6).len(), 6);
        assert!(Mode::Linear.place(0, 4).is_empty());
    }

    #[test]
    fn threads_change_nothing() {
        let ram = stacks::find("ram").expect("a row of the table");
        let run = |jobs| {
            let seeds = Seeds { from: 3, count: Some(3) };
            let how = How { mode: Mode::Log, effort: Some(2), ..How::default() };
            torture(&[ram], &how, seeds, jobs, &Nobody)
        };
        let one = run(1);
        assert_eq!(one, run(3));
        assert_eq!((one.tally.seeds, one.failures.len()), (3, 0));
        assert!(one.tally.cuts > 50, "{one:?}");
    }

    /// Whatever the way, and whoever runs it: the same seeds are the same runs, and they are cut.
    #[test]
    fn all_ways_are_the_same_on_any_number_of_threads() {
        let rows = ["pftl-faults", "pblk-faults", "ram"];
        let rows = rows.map(|name| stacks::find(name).expect("a row") as &dyn Subject);
        let run = |jobs| {
            let seeds = Seeds { from: 40, count: Some(4) };
            torture(&rows, &How::default(), seeds, jobs, &Nobody)
        };
        let one = run(1);
        assert_eq!(one, run(3));
        assert!(one.failures.is_empty() && one.tally.cuts > 100, "{one:?}");
    }

    /// A run that was aimed can be had again by its flags, and faults are aimed where a target has any.
    #[test]
    fn an_aimed_run_is_a_run_like_any_other() {
        let (pblk, faulty) = (stacks::find("pblk"), stacks::find("pblk-faults"));
        let (pblk, faulty) = (pblk.expect("a row"), faulty.expect("a row"));
        let plan = Plan { lives: Some(8), aimed: true, ..Plan::default() };
        assert_eq!(plan.flags(), " --aimed --lives 8");
        let run = |row, seed| run_seed(row, seed, &plan).unwrap_or_else(|f| panic!("{f}"));
        let one = run(pblk, 5);
        assert_eq!(one, run(pblk, 5));
        let tally = replay(&[pblk], 5, &plan, &Nobody).tally;
        assert_eq!((tally.lives, tally.cuts, tally.faults), (8, one.cuts, 0));
        let all = |row| -> Vec<_> { (0..6).map(|seed| run(row, seed)).collect() };
        let (pblk, faulty) = (all(pblk), all(faulty));
        for runs in [&pblk, &faulty] {
            let cuts: u64 = runs.iter().map(|run| run.cuts).sum();
            assert!(cuts > 20, "{cuts} of 48 lives");
        }
        assert!(pblk.iter().all(|run| run.aimed == 0), "no faults where a target has none");
        let aimed: u64 = faulty.iter().map(|run| run.aimed).sum();
        assert!(aimed > 20, "{aimed} faults were aimed");
    }

    /// Memory that does not come back from a cut behind its first 300 us.
    struct Brittle;

    struct Broken {
        inner: Rc<dyn Machine>,
        broken: Cell<bool>,
    }

    const FROM: Ns = Ns::from_us(300);

    impl Source for Brittle {
        fn name(&self) -> &str {
            "brittle one"
        }
        fn lives(&self) -> u64 {
            4
        }
        fn machine(&self, seed: u64, size: Size) -> Rc<dyn Machine> {
            let inner = stacks::find("ram").expect("a row of the table").machine(seed, size);
            Rc::new(Broken { inner, broken: Cell::new(false) })
        }
    }

    impl Machine for Broken {
        fn up(self: Rc<Self>, boot: Boot) -> Boxed<'static, Result<Up, String>> {
            match self.broken.get() {
                true => panic!("it broke"),
                false => self.inner.clone().up(boot),
            }
        }
        fn cut(&self, at: Ns, seed: u64) {
            self.broken.set(at >= FROM);
            self.inner.cut(at, seed);
        }
        fn describe(&self) -> String {
            "memory that breaks".into()
        }
    }

    #[test]
    fn a_failure_is_found_made_small_and_replayed() {
        let how = How { mode: Mode::Linear, effort: Some(2), ..How::default() };
        let run = |jobs| torture(&[&Brittle], &how, Seeds { from: 0, count: None }, jobs, &Nobody);
        let one = run(1);
        assert_eq!(one, run(3), "what is behind the last failure does not count");
        assert_eq!(one.failures.len(), FAILURES_MAX);
        for failure in &one.failures {
            let (at, place) = (failure.cuts[0], failure.place.expect("a place").0);
            let start = "--target 'brittle one' --seed ";
            assert!(
                failure.flags.starts_with(start) && failure.flags.contains(" --effort 1 --cut")
            );
            assert!(failure.what.contains("torture.rs:") && failure.what.ends_with(": it broke"));
            let (seed, leave) = (failure.seed, Arc::default());
            let mut again = One::new(&Brittle, seed, &Nobody, &leave);
            let places = again.record(&[], 1, None).unwrap_or_else(|c| panic!("{}", c.what));
            assert_eq!(places[place], at);
            assert!(at >= FROM && places[place - 1] < FROM, "not the earliest: {failure:?}");
            let plan = Plan { effort: 1, cuts: failure.cuts.clone(), ..Plan::default() };
            let replayed = replay(&[&Brittle], seed, &plan, &Nobody);
            assert_eq!(replayed.failures[0].what, failure.what);
        }
    }

    /// The first failure in the order of seeds, as it was found, and nothing behind it counts.
    #[test]
    fn the_first_failure_is_enough() {
        let how = How { mode: Mode::Linear, effort: Some(2), first: true, ..How::default() };
        let run = |jobs| torture(&[&Brittle], &how, Seeds { from: 0, count: None }, jobs, &Nobody);
        let one = run(1);
        assert_eq!(one, run(3));
        assert_eq!(one.failures.len(), 1);
        assert_eq!(one.failures[0].flags, one.failures[0].found);
    }

    /// Says stop when it is asked for the sixth time.
    struct Soon(AtomicU64);

    impl Watcher for Soon {
        fn stop(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst) >= 5
        }
    }

    #[test]
    fn a_run_under_way_ends_where_it_is() {
        let pblk = stacks::find("pblk").expect("a row of the table");
        let how = How { mode: Mode::None, effort: Some(10_000), ..How::default() };
        let soon = || Soon(AtomicU64::new(0));
        let seeds = Seeds { from: 1, count: Some(1) };
        let left = torture(&[pblk], &how, seeds, 1, &soon());
        assert_eq!(left, Outcome::default(), "neither a seed, nor a life, nor a failure");
        let plan = Plan { effort: 10_000, lives: Some(1), ..Plan::default() };
        assert_eq!(replay(&[pblk], 1, &plan, &soon()), Outcome::default());
    }

    /// A run that somebody may leave, and nobody does, is the same run.
    #[test]
    fn who_may_leave_and_does_not_changes_nothing() {
        let pblk = stacks::find("pblk").expect("a row of the table");
        let run = |leave| {
            let plan = Plan { effort: 5, leave, ..Plan::default() };
            run_seed(pblk, 7, &plan).unwrap_or_else(|f| panic!("{f}"))
        };
        assert_eq!(run(None), run(Some(Arc::default())));
    }
}
