//! The tracks, and what of them every write looks at.
//!
//! Owns: where tracks are kept, who makes room for whom, the two searches (which heads are near a
//! block, which known tracks hold it). Promises: the first search looks at the heads that are near
//! alone, the second one at a few hundred bytes that lie side by side. Never: decides what a write
//! is.
//!
//! Three parts, in this order: requests at which nobody went on yet, which replace each other in turn;
//! tracks that were gone on with; those that are known.

use crate::Config;
use crate::track::{Kind, Pass, Track};
use std::ops::Range;

/// No head: nothing comes near it.
pub(crate) const NOWHERE: u64 = u64::MAX / 4 * 3;
/// Entries that are compared at once.
const LANES: usize = 16;
/// No track: the last one of a neighbourhood.
const NOBODY: u16 = u16::MAX;
/// Known tracks are searched in units of 16 blocks: 32 bits of them are 256 TiB.
const UNIT: u32 = 4;

/// One request; its head is its end. Random writes leave nothing else.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: u64,
    /// When it came.
    at: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    config: Config,
    seen: Box<[Seen]>,
    /// Behind these.
    tracks: Box<[Track]>,
    /// Of each track where it is written next.
    heads: Box<[u64]>,
    /// Heads by neighbourhood, as lists: of each track the next one of its neighbourhood, and
    /// behind these of each neighbourhood the first one.
    links: Box<[u16]>,
    /// A neighbourhood has two to the power of this blocks: what is near a block lies in two.
    near: u32,
    /// How many neighbourhoods there are, less one: each has many places.
    mask: usize,
    /// Of each known track its first unit and how many follow, from the first known one on.
    units: Box<[[u32; LANES]]>,
    spans: Box<[[u32; LANES]]>,
    /// Behind the last of these rows that a known track was in.
    rows: usize,
    /// All blocks of known tracks, headers before them included, lie in here.
    bounds: Range<u64>,
    /// Of each known track where the next one above it begins at the earliest, which its head may
    /// run into.
    limits: Box<[u64]>,
    /// The next of those seen to be replaced.
    next: usize,
}

/// How many units follow a known track's first one.
fn span(t: &Track, first: u64) -> u32 {
    if t.is_known() { ((t.end >> UNIT) - first).min(u32::MAX.into()) as u32 } else { 0 }
}

impl Table {
    /// Of a configuration within its limits.
    pub(crate) fn new(config: Config) -> Table {
        let known = config.tracks - config.fresh;
        let neighbourhoods = (8 * config.tracks).next_power_of_two();
        Table {
            config,
            seen: vec![Seen { first: NOWHERE, at: 0 }; config.fresh / 2].into(),
            tracks: vec![Track::FREE; config.tracks - config.fresh / 2].into(),
            heads: vec![NOWHERE; config.tracks].into(),
            links: vec![NOBODY; config.tracks + neighbourhoods].into(),
            near: (config.back + config.gap + 1).next_power_of_two().ilog2(),
            mask: neighbourhoods - 1,
            units: vec![[u32::MAX; LANES]; known.div_ceil(LANES)].into(),
            spans: vec![[0; LANES]; known.div_ceil(LANES)].into(),
            rows: 0,
            bounds: 0..0,
            limits: vec![u64::MAX; known].into(),
            next: 0,
        }
    }

    pub(crate) fn at(&self, at: usize) -> &Track {
        &self.tracks[at - self.seen.len()]
    }

    /// To change anything but where it lies.
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut Track {
        &mut self.tracks[at - self.seen.len()]
    }

    /// What was written in this round of a track.
    pub(crate) fn pass(&self, at: usize) -> Pass {
        match self.seen.get(at) {
            Some(seen) => {
                Pass::begin(seen.first, self.heads[at] - seen.first, seen.at, &self.config)
            }
            None => self.at(at).pass,
        }
    }

    /// Whether anything of it lies in this range.
    pub(crate) fn touches(&self, at: usize, first: u64, end: u64) -> bool {
        let (from, to) = match self.seen.get(at) {
            Some(_) if self.heads[at] == NOWHERE => return false,
            Some(seen) => (seen.first, self.heads[at]),
            None if self.at(at).kind == Kind::Free => return false,
            None => (self.at(at).first, self.at(at).end),
        };
        from < end && first < to
    }

    pub(crate) fn head(&self, at: usize) -> u64 {
        self.heads[at]
    }

    #[inline]
    pub(crate) fn set_head(&mut self, at: usize, head: u64) {
        let from = std::mem::replace(&mut self.heads[at], head);
        let (from, to) = (self.neighbourhood(from), self.neighbourhood(head));
        if from == to {
            return;
        }
        if from != usize::MAX {
            let mut place = from;
            while usize::from(self.links[place]) != at {
                place = self.links[place].into();
            }
            self.links[place] = self.links[at];
        }
        if to != usize::MAX {
            self.links[at] = self.links[to];
            self.links[to] = at as u16;
        }
    }

    /// Where the list of a block's neighbourhood begins; heads that are nowhere are in none.
    #[inline]
    fn neighbourhood(&self, block: u64) -> usize {
        if block == NOWHERE {
            return usize::MAX;
        }
        self.config.tracks + ((block >> self.near) as usize & self.mask)
    }

    /// Where a known track's head runs into the next one.
    pub(crate) fn limit(&self, at: usize) -> u64 {
        self.limits[at - self.config.fresh]
    }

    /// Where known tracks are.
    pub(crate) fn known(&self) -> Range<usize> {
        self.config.fresh..self.config.tracks
    }

    /// Tracks of one kind.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = usize> + '_ {
        (self.seen.len()..self.config.tracks).filter(move |at| self.at(*at).kind == kind)
    }

    /// The track at whose head a block is, or near it.
    #[inline]
    pub(crate) fn find(&self, block: u64) -> Option<usize> {
        let Config { gap, back, .. } = self.config;
        let near = [block.saturating_sub(gap), block + back].map(|at| self.neighbourhood(at));
        let is_empty = near.iter().all(|list| self.links[*list] == NOBODY);
        if is_empty { None } else { self.find_in(near, block) }
    }

    #[inline(never)]
    fn find_in(&self, near: [usize; 2], block: u64) -> Option<usize> {
        // Far from it, and of nobody.
        let mut best = (u64::MAX, usize::from(NOBODY));
        for list in &near[usize::from(near[0] == near[1])..] {
            let mut at = self.links[*list];
            while at != NOBODY {
                let (track, least) = (usize::from(at), best);
                if let Some(away) = self.away(track, block)
                    // As near as another one, the one that is known better: they come last.
                    && (away < least.0 || (away == least.0 && track > least.1))
                {
                    best = (away, track);
                }
                at = self.links[track];
            }
        }
        (best.0 != u64::MAX).then_some(best.1)
    }

    /// How far a block is from a head, if it is near enough to be written at it.
    fn away(&self, at: usize, block: u64) -> Option<u64> {
        let Config { gap, back, header, confirm, .. } = self.config;
        let near = block.wrapping_add(back).wrapping_sub(self.heads[at]);
        if near > back + gap {
            return None;
        }
        let away = near.abs_diff(back);
        // Behind the head of what is new there is little that could be written again.
        let again = near >= back
            || match self.seen.get(at) {
                Some(seen) => away <= confirm && block >= seen.first,
                None => {
                    let t = self.at(at);
                    (t.is_known() && block + header >= t.first)
                        || (away <= confirm && block >= t.pass.start)
                }
            };
        again.then_some(away)
    }

    /// The run or loop in which a block lies; a loop where there are both.
    #[inline]
    pub(crate) fn around(&self, block: u64) -> Option<usize> {
        if self.bounds.contains(&block) { self.search(block) } else { None }
    }

    #[inline(never)]
    fn search(&self, block: u64) -> Option<usize> {
        let unit = (block >> UNIT) as u32;
        let mut found = None;
        for row in 0..self.rows {
            let (units, spans) = (&self.units[row], &self.spans[row]);
            // Without a branch, so that all are compared at once.
            let hit = |lane: usize| unit.wrapping_sub(units[lane]) <= spans[lane];
            if !(0..LANES).fold(false, |any, lane| any | hit(lane)) {
                continue;
            }
            let first = self.config.fresh + row * LANES;
            for at in first..(first + LANES).min(self.config.tracks) {
                let t = self.at(at);
                if t.is_known() && t.holds(block, &self.config) {
                    if t.kind == Kind::Loop {
                        return Some(at);
                    }
                    found = Some(at);
                }
            }
        }
        found
    }

    /// A known track lies elsewhere than before.
    pub(crate) fn moved(&mut self, at: usize) {
        let (t, known) = (*self.at(at), at - self.config.fresh);
        let (row, lane) = (known / LANES, known % LANES);
        let first = t.first.saturating_sub(self.config.header) >> UNIT;
        self.units[row][lane] = if t.is_known() { first as u32 } else { u32::MAX };
        self.spans[row][lane] = span(&t, first);
        self.limits[known] = self.limit_of(at);
        let all = &self.tracks[self.config.fresh - self.seen.len()..];
        let known = || all.iter().filter(|t| t.is_known());
        let first = known().map(|t| t.first).min().unwrap_or(0);
        let end = known().map(|t| t.end).max().unwrap_or(0);
        self.bounds = first.saturating_sub(self.config.header)..end;
        if t.is_known() {
            self.rows = self.rows.max(row + 1);
            for (o, limit) in all.iter().zip(&mut self.limits) {
                if o.first < t.first {
                    *limit = t.first.min(*limit);
                }
            }
        }
    }

    /// A run's end is at its head.
    pub(crate) fn grown(&mut self, at: usize, end: u64) {
        let known = at - self.config.fresh;
        let t = &mut self.tracks[at - self.seen.len()];
        t.end = t.end.max(end);
        self.bounds.end = self.bounds.end.max(end);
        let first = t.first.saturating_sub(self.config.header) >> UNIT;
        self.spans[known / LANES][known % LANES] = span(t, first);
    }

    /// Looks anew what lies above a known track: what was there is gone, or it has passed it.
    pub(crate) fn look_up(&mut self, at: usize) {
        if at >= self.config.fresh {
            self.limits[at - self.config.fresh] = self.limit_of(at);
        }
    }

    /// Where the next known track above this one begins that its head has not passed.
    pub(crate) fn limit_of(&self, at: usize) -> u64 {
        let (t, head) = (self.at(at), self.heads[at]);
        let above = |o: &&Track| o.is_known() && o.first > t.first && o.end > head;
        let known = self.known().map(|o| self.at(o)).filter(above).map(|o| o.first);
        if t.kind == Kind::Free { u64::MAX } else { known.min().unwrap_or(u64::MAX) }
    }

    pub(crate) fn free(&mut self, at: usize) {
        self.set_head(at, NOWHERE);
        if at >= self.seen.len() {
            *self.at_mut(at) = Track::FREE;
        }
        if at >= self.config.fresh {
            self.moved(at);
        }
    }

    /// Remembers a request, in place of the one that has waited longest for its second one.
    #[inline]
    pub(crate) fn see(&mut self, first: u64, blocks: u64, now: u64) -> usize {
        let at = self.next;
        self.next = if at + 1 < self.seen.len() { at + 1 } else { 0 };
        self.seen[at] = Seen { first, at: now };
        self.set_head(at, first + blocks);
        at
    }

    /// What was seen has got its second request: it is a track, which has more time. Where it is now.
    pub(crate) fn keep(&mut self, at: usize) -> usize {
        let Some(Seen { first, at: began }) = self.seen.get(at).copied() else { return at };
        let kept = self.seen.len()..self.config.fresh;
        let oldest = kept.min_by_key(|at| self.at(*at).touched).expect("there are some");
        let (head, config) = (self.heads[at], self.config);
        *self.at_mut(oldest) = Track::begin(first, head - first, began, &config);
        self.set_head(oldest, head);
        self.set_head(at, NOWHERE);
        oldest
    }

    /// A track is long enough to be known: it goes there, in place of the run that is worth least.
    /// Where it is now.
    pub(crate) fn promote(&mut self, at: usize) -> usize {
        let room = self.room();
        let track = std::mem::replace(self.at_mut(at), Track::FREE);
        *self.at_mut(room) = track;
        self.set_head(room, self.heads[at]);
        self.set_head(at, NOWHERE);
        room
    }

    /// Room among the known: a free one, else that of the run that is worth least, else of the
    /// oldest loop.
    pub(crate) fn room(&mut self) -> usize {
        let rank = |at: &usize| {
            let t = self.at(*at);
            (t.kind, !t.pass.is_bulk(&self.config), t.touched)
        };
        let least = self.known().min_by_key(rank).expect("there are some");
        self.free(least);
        least
    }

    /// Its bounds.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let loops = self.of(Kind::Loop).count();
        let all = self.seen.len() + self.tracks.len();
        assert!(all == self.config.tracks && loops <= self.config.loops);
        for at in self.seen.len()..all {
            let t = self.at(at);
            let known = self.known().contains(&at);
            assert!(t.kind == Kind::Free || known == t.is_known(), "{at} {t:?}");
            assert!(t.first <= t.end && t.first <= t.pass.start.max(t.first), "{t:?}");
            let mut list = self.links.get(self.neighbourhood(self.heads[at])).copied();
            while list.is_some_and(|other| other != NOBODY && usize::from(other) != at) {
                list = list.map(|other| self.links[usize::from(other)]);
            }
            assert!(list != Some(NOBODY), "track {at} is in no list");
            if known {
                let next = self.of(Kind::Loop).map(|o| self.at(o).first);
                let next = next.filter(|o| *o > t.first && *o >= self.heads[at]).min();
                assert!(
                    t.kind == Kind::Free || next.is_none_or(|next| self.limit(at) <= next),
                    "{at} {t:?}"
                );
            }
            if t.is_known() {
                assert!(
                    [t.first, t.end - 1].iter().all(|block| self.around(*block).is_some()),
                    "{t:?}"
                );
            }
        }
    }
}
