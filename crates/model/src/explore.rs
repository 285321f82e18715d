//! Breadth-first exploration: every state within the bounds once, the shortest trace to the first
//! broken promise.
//!
//! A state is remembered by a 128-bit fingerprint: with 10^7 states the chance that two differ in
//! none of its bits is below 10^-24.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::step::Step;

/// What can be explored: states, the steps between them, and what must not be.
pub trait System {
    /// A state; two that are equal have the same successors.
    type State: Clone + Hash;
    fn initial(&self) -> Self::State;
    /// All steps possible in a state.
    fn successors(&self, state: &Self::State) -> Vec<(Step, Self::State)>;
    /// What is broken in a state.
    fn violation(&self, state: &Self::State) -> Option<String>;
    /// Has it come to its end?
    fn finished(&self, state: &Self::State) -> bool;
}

/// What an exploration found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub states: usize,
    /// Steps of the longest shortest path.
    pub depth: usize,
    /// States in which all had come to its end: none would mean that nothing was tested.
    pub finished: usize,
    /// Was everything within the bounds visited?
    pub exhausted: bool,
    /// The shortest way to a broken promise.
    pub counterexample: Option<Trace>,
}

/// Numbered steps and what is broken then.
#[derive(Clone, Debug)]
pub struct Trace {
    pub steps: Vec<Step>,
    pub broken: String,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>3}. {step}", index + 1)?;
        }
        writeln!(f, "  => {}", self.broken)
    }
}

/// Visits at most `limit` states.
pub fn explore<S: System>(model: &S, limit: usize) -> Report {
    let initial = model.initial();
    let mut seen = Seen::new();
    seen.insert(fingerprint(&initial));
    // Per state how it was reached, so that a trace can be told.
    let mut parents: Vec<(u32, Step)> = vec![(0, Step("start", [0; 3]))];
    let mut queue = VecDeque::from([(0u32, 0usize, initial)]);
    let mut report = Report { exhausted: true, ..Report::default() };
    while let Some((id, depth, state)) = queue.pop_front() {
        report.states += 1;
        report.depth = depth;
        report.finished += usize::from(model.finished(&state));
        if let Some(broken) = model.violation(&state) {
            report.exhausted = false;
            report.counterexample = Some(Trace { steps: path(&parents, id), broken });
            return report;
        }
        if parents.len() >= limit {
            report.exhausted = false;
            return report;
        }
        for (step, next) in model.successors(&state) {
            if seen.insert(fingerprint(&next)) {
                parents.push((id, step));
                queue.push_back((parents.len() as u32 - 1, depth + 1, next));
            }
        }
    }
    report
}

fn path(parents: &[(u32, Step)], mut id: u32) -> Vec<Step> {
    let mut steps = Vec::new();
    while id != 0 {
        let (parent, step) = parents[id as usize];
        steps.push(step);
        id = parent;
    }
    steps.reverse();
    steps
}

/// Two independent 64-bit lanes of multiply and rotate, mixed at the end.
struct Lanes(u64, u64);

impl Hasher for Lanes {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        self.1 = (self.1.rotate_left(23) ^ value).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn fingerprint(state: &impl Hash) -> u128 {
    let mut lanes = Lanes(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
    state.hash(&mut lanes);
    let mix = |mut lane: u64| {
        lane = (lane ^ (lane >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        lane ^ (lane >> 29)
    };
    (u128::from(mix(lanes.0)) << 64 | u128::from(mix(lanes.1))).max(1)
}

/// A set of fingerprints: open addressing, 0 is an empty place.
struct Seen {
    table: Vec<u128>,
    count: usize,
}

impl Seen {
    fn new() -> Self {
        Seen { table: vec![0; 1 << 12], count: 0 }
    }

    /// Adds a fingerprint; was it new?
    fn insert(&mut self, print: u128) -> bool {
        if self.count * 2 >= self.table.len() {
            let larger = vec![0; self.table.len() * 2];
            let old = std::mem::replace(&mut self.table, larger);
            old.into_iter().filter(|print| *print != 0).for_each(|print| self.place(print));
        }
        let at = self.find(print);
        if self.table[at] == print {
            return false;
        }
        self.place(print);
        self.count += 1;
        true
    }

    fn find(&self, print: u128) -> usize {
        let mask = self.table.len() - 1;
        let mut at = print as usize & mask;
        while self.table[at] != 0 && self.table[at] != print {
            at = (at + 1) & mask;
        }
        at
    }

    fn place(&mut self, print: u128) {
        let at = self.find(print);
        self.table[at] = print;
    }
}

/// Follows `walks` random paths of at most `length` steps: for configurations that are too large to
/// exhaust. The same seed gives the same paths.
pub fn walk<S: System>(model: &S, seed: u64, walks: usize, length: usize) -> Report {
    let mut random = seed;
    let mut report = Report::default();
    for _ in 0..walks {
        let mut state = model.initial();
        let mut steps = Vec::new();
        for depth in 0..=length {
            report.states += 1;
            report.depth = report.depth.max(depth);
            if let Some(broken) = model.violation(&state) {
                report.counterexample = Some(Trace { steps, broken });
                return report;
            }
            let mut next = model.successors(&state);
            if next.is_empty() {
                break;
            }
            // xorshift64: any will do, but it must be the same everywhere.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (step, chosen) = next.swap_remove((random % next.len() as u64) as usize);
            steps.push(step);
            state = chosen;
        }
        report.finished += usize::from(model.finished(&state));
    }
    report
}
