//! How the write buffer is divided between users and garbage collection.
//!
//! Owns: three controllers behind one interface: free chunks in, (user share, GC share) of the
//! ring's slots out. Promises: above `start` users have everything and GC nothing; at or below
//! `reserve` users have nothing and GC everything; between them the controllers' shares add up to
//! the ring (`Off` shares nothing out there: first come, first served). Integers only.
//! Never: admits anything itself (that is `ring`), nor starts GC (that is `gc`).

use crate::log::config::worded;
use flashlane_base::mutant;
use serde::{Deserialize, Serialize};

worded! {
    pub enum LimiterKind {
        /// The paper's: a PID loop over free chunks (LightNVM 4.2.4).
        #[default]
        Pid = "pid",
        /// The kernel's piecewise table (Linux 5.10, `pblk-rl.c`).
        KernelTable = "kernel_table",
        /// QBLK's three states with hysteresis.
        ChannelStates = "channel_states",
        /// No limit until the reserve: GC runs only below it. For factory-state measurements.
        Off = "off",
    }
}

impl LimiterKind {
    /// All kinds, by name.
    pub const ALL: [(&'static str, LimiterKind); LimiterKind::NAMES.len()] = LimiterKind::NAMES;

    pub fn named(name: &str) -> Option<LimiterKind> {
        LimiterKind::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

/// Free-chunk levels that a controller works between, in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// GC starts below this.
    pub start: u64,
    /// Users stop at or below this: what is admitted still fits, and one victim.
    pub reserve: u64,
    /// Chunks per line at its full width.
    pub line: u64,
}

/// Shares of the ring in slots, and whether GC should take victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Slots users may hold.
    pub users: u64,
    /// Slots GC may hold.
    pub gc: u64,
    /// GC takes victims.
    pub collect: bool,
}

/// A controller with its state.
#[derive(Clone, Debug)]
pub struct Limiter {
    kind: LimiterKind,
    levels: Levels,
    ring: u64,
    /// The smallest share of either side between the levels, slots.
    least: u64,
    /// PID: accumulated error in chunk-updates × `SCALE`, and the last error.
    integral: i64,
    last_error: i64,
    /// Channel states: where we are.
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    High,
    Mid,
    Low,
}

/// Fixed point of the PID gains.
const SCALE: i64 = 1 << 16;

/// Gains of the PID loop as shares of the ring per share of the span between the two levels. The
/// proportional part alone moves the share from half to nothing over half the span; the integral
/// takes out what is left in some ten line times (it is updated per line taken or freed); the
/// derivative damps the sawtooth of whole lines (test `pid_settles_without_oscillation`).
const KP: i64 = SCALE;
const KI: i64 = SCALE / 32;
const KD: i64 = SCALE / 8;

impl Limiter {
    /// A controller over a ring of `ring` slots, programmed in units of `unit` sectors.
    ///
    /// Between the levels neither side's share falls below a 64th of the ring (the kernel's window)
    /// nor below a unit: whoever fills a smaller share waits for a program that waits for company.
    pub fn new(kind: LimiterKind, levels: Levels, ring: u64, unit: u64) -> Limiter {
        assert!(levels.start > levels.reserve, "levels must leave room between them");
        let least = (ring / 64).max(unit).max(1);
        assert!(2 * least <= ring, "a ring holds a unit of either side");
        Limiter { kind, levels, ring, least, integral: 0, last_error: 0, state: State::High }
    }

    /// Other levels, because lines have another width now.
    pub fn set_levels(&mut self, levels: Levels) {
        *self = Limiter { levels, integral: 0, last_error: 0, state: State::High, ..self.clone() };
    }

    /// Another controller, from its beginning.
    pub fn set_kind(&mut self, kind: LimiterKind) {
        self.kind = kind;
        self.set_levels(self.levels);
    }

    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    pub fn levels(&self) -> Levels {
        self.levels
    }

    /// Shares at `free` chunks. Called for every line taken or freed, as pblk does.
    pub fn update(&mut self, free: u64) -> Shares {
        let Levels { start, reserve, .. } = self.levels;
        if free >= start {
            self.integral = 0;
            self.last_error = 0;
            self.state = State::High;
            return Shares { users: self.ring, gc: 0, collect: false };
        }
        if free <= reserve && !mutant!("log.users-in-reserve") {
            return Shares { users: 0, gc: self.ring, collect: true };
        }
        let users = match self.kind {
            LimiterKind::Off => {
                return Shares { users: self.ring, gc: self.ring, collect: false };
            }
            LimiterKind::Pid => self.pid(free),
            LimiterKind::KernelTable => self.kernel_table(free),
            LimiterKind::ChannelStates => self.channel_states(free),
        };
        // Between the levels both sides keep a foot in the door: a share of zero belongs to the
        // ends of the range.
        let users = users.clamp(self.least, self.ring - self.least);
        Shares { users, gc: self.ring - users, collect: true }
    }

    /// Equal shares in the middle of the span; less for users the fewer chunks are free.
    fn pid(&mut self, free: u64) -> u64 {
        let Levels { start, reserve, .. } = self.levels;
        let span = (start - reserve) as i64;
        let error = (free - reserve) as i64 - span / 2;
        let change = error - self.last_error;
        self.last_error = error;
        // Anti-windup: the integral alone never moves the share beyond the whole ring.
        let bound = SCALE / 2 * span / KI;
        self.integral = (self.integral + error).clamp(-bound, bound);
        let out = (KP * error + KI * self.integral + KD * change) / span;
        let ring = self.ring as i64;
        (ring / 2 + ring * out / SCALE).clamp(0, ring) as u64
    }

    /// Linux 5.10: the user share falls with free chunks in windows of 64 slots.
    fn kernel_table(&self, free: u64) -> u64 {
        let windows_pw = (self.ring / 64).max(1).next_power_of_two().trailing_zeros();
        let high_pw = self.levels.start.next_power_of_two().trailing_zeros();
        let shift = high_pw.saturating_sub(windows_pw);
        ((free >> shift) * 64).min(self.ring)
    }

    /// QBLK: high (users only), mid (GC gets a fixed share), low (users lose twice of it), with
    /// different levels up and down.
    fn channel_states(&mut self, free: u64) -> u64 {
        let Levels { start, reserve, line } = self.levels;
        let mid = reserve + (start - reserve) / 2;
        self.state = match self.state {
            State::High => State::Mid,
            State::Mid if free <= mid => State::Low,
            State::Low if free > mid + line.min((start - mid) / 2) => State::Mid,
            same => same,
        };
        match self.state {
            State::High | State::Mid => self.ring / 2,
            State::Low => self.ring / 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEVELS: Levels = Levels { start: 100, reserve: 20, line: 8 };

    /// G09 for every controller: at the levels and just beside them the shares are what they must
    /// be, also where the kernel's shift would be negative (small devices).
    #[test]
    fn shares_at_the_levels() {
        for kind in [LimiterKind::Pid, LimiterKind::KernelTable, LimiterKind::ChannelStates] {
            for levels in [LEVELS, Levels { start: 3, reserve: 2, line: 1 }] {
                let mut l = Limiter::new(kind, levels, 8192, 16);
                let at = |l: &mut Limiter, f| l.update(f);
                let s = at(&mut l, levels.start);
                assert_eq!((s.users, s.gc, s.collect), (8192, 0, false), "{kind:?}");
                let s = at(&mut l, levels.reserve);
                assert_eq!((s.users, s.gc, s.collect), (0, 8192, true), "{kind:?}");
                assert_eq!(at(&mut l, 0).users, 0);
                if levels.start - levels.reserve > 1 {
                    let s = at(&mut l, levels.reserve + 1);
                    assert!(s.users > 0 && s.gc > 0 && s.collect, "{kind:?}");
                }
            }
        }
    }

    proptest! {
        /// Shares add up to the ring, and between the levels each holds a unit, whatever happened
        /// before.
        #[test]
        fn shares_add_up(
            frees in prop::collection::vec(0u64..130, 1..200),
            ring in 128u64..100_000,
            unit in 1u64..=64,
        ) {
            for kind in [LimiterKind::Pid, LimiterKind::KernelTable, LimiterKind::ChannelStates] {
                let mut l = Limiter::new(kind, LEVELS, ring, unit);
                for f in &frees {
                    let s = l.update(*f);
                    prop_assert_eq!(s.users + s.gc, ring);
                    let between = *f > LEVELS.reserve && *f < LEVELS.start;
                    prop_assert!(!between || s.users.min(s.gc) >= unit);
                }
            }
        }
    }

    /// The loop settles: on a plant where GC must win 4 slots for each the users write, free
    /// chunks end up still, and stay within two lines of where they were.
    #[test]
    fn pid_settles_without_oscillation() {
        let mut l = Limiter::new(LimiterKind::Pid, LEVELS, 8192, 16);
        let mut free = 100.0f64;
        let mut late = Vec::new();
        for step in 0..4000 {
            let s = l.update(free as u64);
            let users = s.users as f64 / 8192.0;
            let gc = s.gc as f64 / 8192.0;
            // A victim is 80% live: five chunks collected give one.
            free += gc * 0.25 - users;
            if step > 2000 {
                late.push(free);
            }
        }
        let (lo, hi) = late.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
        assert!(hi - lo < 2.0 * LEVELS.line as f64, "free chunks swing between {lo} and {hi}");
    }
}
