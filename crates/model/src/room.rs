//! The room that victims need (FORMAT.md, rule 18): rings, pools, victims and the barrier, when users
//! have no share any more.
//!
//! Owns: a transition system of counts (which sector is where does not matter), the margin's parts as
//! switches. Promises: every state of the given size in which the reserve covers what is buffered and
//! one victim, as it does when users lose their share, is a start. A violation is a state in which
//! something waits and nothing can happen: there is no room for a ring that a barrier waits for.
//! Never: shares a line of code with the engine.
//!
//! A unit is programmed in one step. Any pool takes any ring's units. Victims of a pool are admitted batch
//! by batch, one victim at a time; what is admitted comes into its ring later, in any order, and meanwhile the next
//! victim may be taken. A flush pads every ring's tail at any moment. With nothing on its way a victim is
//! taken without asking (engine: `fits`): the reserve covers it. Whether it does is left to create's
//! arithmetic: a state in which a victim is taken that it does not cover is an end of its own, so that what is
//! found is the rule's fault alone.

use crate::explore::System;
use crate::step::Step;

/// How large things are, in sectors but for `line`.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub rings: u8,
    pub pools: u8,
    /// Sectors of a write unit.
    pub unit: u8,
    pub line: u8,
    pub ring: u8,
    /// Sectors that a victim moves at a time, at most: a batch ends when another unit might not fit. A unit
    /// at least.
    pub batch: u8,
    /// Closed lines of a pool at the start.
    pub closed: u8,
    pub flushes: bool,
    /// Units that a barrier pads in the open line of a pool, so that no page pair is torn.
    pub pairs: u8,
}

/// Of the margin that is asked for when a victim is taken, what is in force.
#[derive(Clone, Copy, Debug)]
pub struct Margin {
    /// The tail that each ring has.
    pub tails: bool,
    /// And the one that each batch leaves that is still to be moved.
    pub batches: bool,
    /// And the one of each batch that is admitted and not in its ring yet.
    pub begun: bool,
    /// A line's sectors take no more units than they were in.
    pub cap: bool,
    /// Pads of page pairs that are counted, here and in the reserve: of how many barriers.
    pub pads: u8,
    /// What other pools' victims still have to move.
    pub claims: bool,
    /// What is in the rings.
    pub admitted: bool,
    /// What is on its way is asked of all pools, not of the victim's only.
    pub all_pools: bool,
    pub padded: bool,
    /// So many sectors less than that; below zero: more.
    pub less: i16,
}

impl Margin {
    /// The engine's: `victim.rs`, `has_room` and `fits`.
    pub const ENGINE: Margin = Margin {
        tails: true,
        batches: true,
        begun: true,
        cap: true,
        pads: 2,
        claims: true,
        admitted: true,
        all_pools: true,
        padded: true,
        less: 0,
    };
}

/// The transition system.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub size: Size,
    pub margin: Margin,
}

/// A state; the first ones only choose the start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Choices that have been made.
    chosen: u8,
    pools: Vec<Pool>,
    rings: Vec<Ring>,
    /// Lines wait behind a barrier.
    waits: bool,
    /// A victim was taken that the reserve does not cover: that is not this rule's business.
    beyond: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pool {
    free: u8,
    /// Units left in the open line, and valid sectors in it.
    open: (u8, u8),
    /// Valid sectors of each closed line, the fewest first.
    closed: Vec<u8>,
    /// Victims whose sectors are not all in the ring; one at most has a claim.
    victims: Vec<Victim>,
    /// Lines with nothing valid that no barrier has been taken for.
    emptied: u8,
    /// Lines behind the barrier.
    behind: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Victim {
    /// Sectors that are still to be admitted, and units that they may lie in.
    claim: u8,
    left: u8,
    /// Sectors of each batch that is admitted and not in the ring, the smallest first.
    begun: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Ring {
    slots: u8,
    /// Of them, those that the barrier waits for.
    covered: u8,
}

impl Pool {
    fn comes(&self) -> bool {
        !self.victims.is_empty() || self.emptied + self.behind > 0
    }

    fn claim(&self) -> u8 {
        self.victims.iter().map(|v| v.claim).sum()
    }

    fn begun(&self) -> impl Iterator<Item = u8> {
        self.victims.iter().flat_map(|v| v.begun.iter().copied())
    }

    /// Changes a victim; who has nothing left to move waits to be freed.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Victim)) {
        let victim = &mut self.victims[at];
        change(victim);
        victim.begun.sort_unstable();
        if victim.claim == 0 && victim.begun.is_empty() {
            self.victims.remove(at);
            self.emptied += 1;
        }
        self.victims.sort_unstable();
    }

    /// Puts a unit with so many valid sectors into the open line, or into one that is opened for it.
    fn take(&mut self, line: u8, valid: u8) -> bool {
        if self.open.0 == 0 {
            if self.free == 0 {
                return false;
            }
            (self.free, self.open) = (self.free - 1, (line, 0));
        }
        self.open = (self.open.0 - 1, self.open.1 + valid);
        if self.open.0 == 0 {
            self.closed.push(self.open.1);
            self.closed.sort_unstable();
            self.open = (0, 0);
        }
        true
    }
}

impl Room {
    fn data(&self) -> u8 {
        self.size.line * self.size.unit
    }

    /// Data sectors that free and open lines can still take.
    fn room(&self, s: &State) -> u16 {
        let units = s.pools.iter().map(|p| u16::from(p.free * self.size.line + p.open.0));
        units.sum::<u16>() * u16::from(self.size.unit)
    }

    /// The room that a victim of so many valid sectors needs, by this margin.
    fn need(&self, s: &State, valid: u8, m: &Margin) -> u16 {
        let Size { rings, pools, unit, pairs, batch, .. } = self.size;
        let padding = u16::from(unit - 1);
        let data = u16::from(self.data());
        let buffered = |r: &Ring| u16::from(r.slots);
        let begun = || s.pools.iter().flat_map(Pool::begun).map(u16::from);
        let admitted = s.rings.iter().map(buffered).chain(begun()).sum::<u16>();
        let moved = |n: u8| {
            let batches = if m.batches { n.div_ceil(batch + 1 - unit) } else { 0 };
            let moved = u16::from(n) + u16::from(batches) * padding;
            if m.cap { moved.min(data.max(u16::from(n))) } else { moved }
        };
        let claims = s.pools.iter().map(|p| if m.claims { moved(p.claim()) } else { 0 });
        let tails = if m.tails { u16::from(rings) } else { 0 };
        let tails = tails + if m.begun { begun().count() as u16 } else { 0 };
        let pads = u16::from(m.pads * pools * pairs * unit);
        let admitted = if m.admitted { admitted } else { 0 };
        let moves = claims.sum::<u16>() + moved(valid);
        (admitted + moves + tails * padding + pads).saturating_add_signed(-m.less)
    }

    /// May a pool's best line become a victim?
    fn fits(&self, s: &State, pool: usize, valid: u8) -> bool {
        let coming = match self.margin.all_pools {
            true => s.pools.iter().any(Pool::comes),
            false => s.pools[pool].comes(),
        };
        valid == 0 || !coming || self.room(s) >= self.need(s, valid, &self.margin)
    }

    /// What the reserve covers: what is buffered, one victim, and its padding.
    fn reserve(&self, s: &State, valid: u8) -> u16 {
        self.need(s, valid, &Margin { pads: self.margin.pads, ..Margin::ENGINE })
    }

    /// The choices of the start, one after the other: each pool's free and open room, its closed lines,
    /// each ring's slots.
    fn choose(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let Size { rings, pools, line, closed, ring, .. } = self.size;
        let (at, per) = (s.chosen, 1 + closed);
        let mut add = |step: Step, change: &dyn Fn(&mut State)| {
            let mut next = s.clone();
            next.chosen += 1;
            change(&mut next);
            if next.chosen < pools * per + rings || self.is_start(&next) {
                out.push((step, next));
            }
        };
        if at >= pools * per {
            let i = at - pools * per;
            for slots in 0..=ring {
                let step = Step("start: ring {} holds {} slots", [i, slots, 0]);
                add(step, &|s| s.rings[i as usize].slots = slots);
            }
            return;
        }
        let (i, part) = (at / per, at % per);
        let pool = i as usize;
        if part > 0 {
            let least = s.pools[pool].closed.last().map_or(1, |v| *v);
            for valid in least..=self.data() {
                let step = Step("start: pool {} has a line with {} valid sectors", [i, valid, 0]);
                add(step, &|s| s.pools[pool].closed.push(valid));
            }
            return;
        }
        let most = u16::from(self.size.rings * ring + self.data()) + 4 * u16::from(self.data());
        for units in 0..=(most / u16::from(self.size.unit)) as u8 {
            let (free, left) = (units / line, units % line);
            let step = Step("start: pool {} has {} free lines, room for {} units", [i, free, left]);
            add(step, &|s| (s.pools[pool].free, s.pools[pool].open.0) = (free, left));
        }
    }

    /// The edge: just so much room as the reserve promises for the worst line that is worth collecting.
    fn is_start(&self, s: &State) -> bool {
        let need = self.reserve(s, self.data() - 1);
        (need..need + u16::from(self.size.unit)).contains(&self.room(s))
    }

    fn drain(&self, s: &State, i: usize, out: &mut Vec<(Step, State)>) {
        let (unit, ring) = (self.size.unit, s.rings[i]);
        let pads = ring.covered > 0 && self.margin.padded || self.size.flushes;
        if ring.slots == 0 || ring.slots < unit && !pads {
            return;
        }
        let taken = ring.slots.min(unit);
        for pool in 0..s.pools.len() {
            let mut next = s.clone();
            if next.pools[pool].take(self.size.line, taken) {
                let ring = &mut next.rings[i];
                ring.slots -= taken;
                ring.covered = ring.covered.saturating_sub(taken);
                let step = Step(
                    "ring {}: a unit of {} sectors goes to pool {}",
                    [i as u8, taken, pool as u8],
                );
                out.push((step, next));
            }
        }
    }

    fn collect(&self, s: &State, pool: usize, out: &mut Vec<(Step, State)>) {
        let ring = pool % s.rings.len();
        let Size { unit, line, batch, .. } = self.size;
        let (at, p) = (pool as u8, &s.pools[pool]);
        // Pools share a ring where there are fewer rings.
        let others = s.pools.iter().skip(ring).step_by(s.rings.len());
        let used = s.rings[ring].slots + others.flat_map(Pool::begun).sum::<u8>();
        for (i, v) in p.victims.iter().enumerate() {
            for n in 1..=v.claim.min(batch) {
                let units = n.div_ceil(unit);
                let is_last = n == v.claim;
                let goes_on = n + unit > batch && units <= v.left;
                let fits = goes_on && v.claim - n <= (v.left - units) * unit;
                if used + n > self.size.ring || !is_last && !fits {
                    continue;
                }
                let mut next = s.clone();
                next.pools[pool].change(i, |v| {
                    (v.claim, v.left) = (v.claim - n, v.left.saturating_sub(units));
                    v.begun.push(n);
                });
                out.push((
                    Step("pool {}: {} sectors are admitted to ring {}", [at, n, ring as u8]),
                    next,
                ));
            }
            for (j, n) in v.begun.iter().copied().enumerate() {
                if v.begun[..j].contains(&n) {
                    continue;
                }
                let mut next = s.clone();
                next.rings[ring].slots += n;
                next.pools[pool].change(i, |v| _ = v.begun.remove(j));
                out.push((Step("pool {}: {} sectors are in ring {}", [at, n, ring as u8]), next));
            }
        }
        let Some(valid) = p.closed.first().copied().filter(|v| *v < self.data()) else { return };
        if p.claim() == 0 && self.fits(s, pool, valid) {
            let mut next = s.clone();
            let is_alone = valid > 0 && !s.pools.iter().any(Pool::comes);
            next.beyond = is_alone && self.room(s) < self.reserve(s, valid);
            let p = &mut next.pools[pool];
            p.closed.remove(0);
            p.victims.push(Victim::default());
            let last = p.victims.len() - 1;
            p.change(last, |v| (v.claim, v.left) = (valid, line));
            let step = Step("pool {}: a line with {} valid sectors is a victim", [at, valid, 0]);
            out.push((step, next));
        }
    }

    fn barrier(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if !s.waits && s.pools.iter().any(|p| p.emptied > 0) {
            let mut next = s.clone();
            next.waits = true;
            next.rings.iter_mut().for_each(|r| r.covered = r.slots);
            next.pools.iter_mut().for_each(|p| p.behind = std::mem::take(&mut p.emptied));
            out.push((Step("a barrier is taken", [0; 3]), next));
        }
        if s.waits && s.rings.iter().all(|r| r.covered == 0) {
            let mut next = s.clone();
            // Page pairs are closed by as much as the open lines still take.
            for p in &mut next.pools {
                let pads = self.size.pairs.min(p.open.0);
                (0..pads).for_each(|_| _ = p.take(self.size.line, 0));
            }
            next.waits = false;
            next.pools.iter_mut().for_each(|p| p.free += std::mem::take(&mut p.behind));
            out.push((Step("the barrier passes: the lines behind it are free", [0; 3]), next));
        }
    }

    /// How many choices make a start.
    fn choices(&self) -> u8 {
        self.size.pools * (1 + self.size.closed) + self.size.rings
    }
}

impl System for Room {
    type State = State;

    fn initial(&self) -> State {
        State {
            chosen: 0,
            pools: vec![Pool::default(); self.size.pools.into()],
            rings: vec![Ring::default(); self.size.rings.into()],
            waits: false,
            beyond: false,
        }
    }

    fn successors(&self, s: &State) -> Vec<(Step, State)> {
        let mut out = Vec::new();
        if s.chosen < self.choices() {
            self.choose(s, &mut out);
            return out;
        }
        if s.beyond {
            return out;
        }
        (0..s.rings.len()).for_each(|ring| self.drain(s, ring, &mut out));
        (0..s.pools.len()).for_each(|pool| self.collect(s, pool, &mut out));
        self.barrier(s, &mut out);
        out
    }

    fn violation(&self, s: &State) -> Option<String> {
        let waits =
            s.pools.iter().any(Pool::comes) || s.rings.iter().any(|r| r.slots >= self.size.unit);
        let is_stranded =
            s.chosen == self.choices() && !s.beyond && waits && self.successors(s).is_empty();
        is_stranded.then(|| format!("stranded: {s:?}"))
    }

    /// Nothing is on its way any more.
    fn finished(&self, s: &State) -> bool {
        s.chosen == self.choices() && !s.beyond && !s.pools.iter().any(Pool::comes)
    }
}
