//! The tracks, and what of them every write looks at.
//!
//! Owns: where tracks are kept, who makes room for whom, the two searches (which heads are near a
//! block, which known tracks hold it). Promises: a search goes over a few hundred bytes that lie
//! side by side; of a hit the whole number is compared, too. Never: decides what a write is.
//!
//! Three parts, in this order: tracks of one request, which replace each other in turn; those that
//! were gone on with; those that are known.

use crate::Config;
use crate::track::{Kind, Track};
use std::ops::Range;

/// No head: nothing comes near it.
pub(crate) const NOWHERE: u64 = u64::MAX / 4 * 3;
/// Entries that are compared at once.
const LANES: usize = 16;
/// Known tracks are searched in units of 16 blocks: 32 bits of them are 256 TiB.
const UNIT: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Table {
    config: Config,
    tracks: Box<[Track]>,
    /// Of each track where it is written next.
    heads: Box<[u64]>,
    /// The low 32 bits of it.
    heads_low: Box<[u32]>,
    /// Of each known track its first unit and how many follow, from the first known one on.
    units: Box<[u32]>,
    spans: Box<[u32]>,
    /// Of each known track where the next one above it begins at the earliest, which its head may
    /// run into.
    limits: Box<[u64]>,
    /// The next track of one request to be replaced.
    next: usize,
}

/// Entries of a table of so many tracks, and some that never match behind them.
fn entries<T: Clone>(tracks: usize, value: T) -> Box<[T]> {
    vec![value; tracks.next_multiple_of(LANES)].into()
}

/// How many units follow a known track's first one.
fn span(t: &Track, first: u64) -> u32 {
    if t.is_known() { ((t.end >> UNIT) - first).min(u32::MAX.into()) as u32 } else { 0 }
}

impl Table {
    /// Of a configuration within its limits.
    pub(crate) fn new(config: Config) -> Table {
        let known = config.tracks - config.fresh;
        Table {
            config,
            tracks: vec![Track::FREE; config.tracks].into(),
            heads: entries(config.tracks, NOWHERE),
            heads_low: entries(config.tracks, NOWHERE as u32),
            units: entries(known, u32::MAX),
            spans: entries(known, 0),
            limits: vec![u64::MAX; known].into(),
            next: 0,
        }
    }

    pub(crate) fn at(&self, at: usize) -> &Track {
        &self.tracks[at]
    }

    /// To change anything but where it lies.
    pub(crate) fn at_mut(&mut self, at: usize) -> &mut Track {
        &mut self.tracks[at]
    }

    pub(crate) fn head(&self, at: usize) -> u64 {
        self.heads[at]
    }

    pub(crate) fn set_head(&mut self, at: usize, head: u64) {
        self.heads[at] = head;
        self.heads_low[at] = head as u32;
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
        (0..self.tracks.len()).filter(move |at| self.tracks[*at].kind == kind)
    }

    /// The track at whose head a block is, or near it.
    #[inline]
    pub(crate) fn find(&self, block: u64) -> Option<usize> {
        let Config { gap, back, .. } = self.config;
        let (from, width) = ((block as u32).wrapping_add(back as u32), (back + gap) as u32);
        let mut best: Option<(usize, u64)> = None;
        for (chunk, low) in self.heads_low.chunks_exact(LANES).enumerate() {
            // Without a branch, so that all are compared at once.
            if !low.iter().fold(false, |any, low| any | (from.wrapping_sub(*low) <= width)) {
                continue;
            }
            for at in chunk * LANES..(chunk + 1) * LANES {
                let away = self.away(at, block);
                // As near as another one, the one that is known better: they come last.
                if away.is_some_and(|away| best.is_none_or(|(_, least)| away <= least)) {
                    best = away.map(|away| (at, away));
                }
            }
        }
        best.map(|(at, _)| at)
    }

    /// How far a block is from a head, if it is near enough to be written at it.
    fn away(&self, at: usize, block: u64) -> Option<u64> {
        let Config { gap, back, header, confirm, .. } = self.config;
        let near = block.wrapping_add(back).wrapping_sub(self.heads[at]);
        if near > back + gap {
            return None;
        }
        let (t, away) = (&self.tracks[at], near.abs_diff(back));
        // Behind the head of what is new there is little that could be written again.
        let again = near >= back
            || (t.is_known() && block + header >= t.first)
            || (away <= confirm && block >= t.pass.start);
        again.then_some(away)
    }

    /// The run or loop in which a block lies; a loop where there are both.
    pub(crate) fn around(&self, block: u64) -> Option<usize> {
        let unit = (block >> UNIT) as u32;
        let mut found = None;
        let rows = self.units.chunks_exact(LANES).zip(self.spans.chunks_exact(LANES));
        for (chunk, (units, spans)) in rows.enumerate() {
            let holds = |(first, span): (&u32, &u32)| unit.wrapping_sub(*first) <= *span;
            if !units.iter().zip(spans).fold(false, |any, row| any | holds(row)) {
                continue;
            }
            let first = self.config.fresh + chunk * LANES;
            for at in first..(first + LANES).min(self.config.tracks) {
                let t = &self.tracks[at];
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
        let (t, row) = (self.tracks[at], at - self.config.fresh);
        let first = t.first.saturating_sub(self.config.header) >> UNIT;
        self.units[row] = if t.is_known() { first as u32 } else { u32::MAX };
        self.spans[row] = span(&t, first);
        self.limits[row] = self.limit_of(at);
        if t.is_known() {
            for (o, limit) in self.tracks[self.config.fresh..].iter().zip(&mut self.limits) {
                if o.first < t.first {
                    *limit = t.first.min(*limit);
                }
            }
        }
    }

    /// A run's end is at its head.
    pub(crate) fn grown(&mut self, at: usize, end: u64) {
        let (t, row) = (&mut self.tracks[at], at - self.config.fresh);
        t.end = t.end.max(end);
        let first = t.first.saturating_sub(self.config.header) >> UNIT;
        self.spans[row] = span(t, first);
    }

    /// Looks anew what lies above a known track: what was there is gone, or it has passed it.
    pub(crate) fn look_up(&mut self, at: usize) {
        if at >= self.config.fresh {
            self.limits[at - self.config.fresh] = self.limit_of(at);
        }
    }

    /// Where the next known track above this one begins that its head has not passed.
    pub(crate) fn limit_of(&self, at: usize) -> u64 {
        let (t, head) = (&self.tracks[at], self.heads[at]);
        let above = |o: &&Track| o.is_known() && o.first > t.first && o.end > head;
        let known = self.tracks[self.known()].iter().filter(above).map(|o| o.first);
        if t.kind == Kind::Free { u64::MAX } else { known.min().unwrap_or(u64::MAX) }
    }

    pub(crate) fn free(&mut self, at: usize) {
        self.tracks[at] = Track::FREE;
        self.set_head(at, NOWHERE);
        if at >= self.config.fresh {
            self.moved(at);
        }
    }

    /// Begins a track, in place of the one that has waited longest for its second request.
    pub(crate) fn begin(&mut self, track: Track) -> usize {
        let at = self.next;
        self.next = (at + 1) % (self.config.fresh / 2);
        self.set_head(at, track.end);
        self.tracks[at] = track;
        at
    }

    /// A track has got its second request: it goes where it has more time. Where it is now.
    pub(crate) fn keep(&mut self, at: usize) -> usize {
        let kept = self.config.fresh / 2..self.config.fresh;
        if at >= kept.start {
            return at;
        }
        let oldest = kept.min_by_key(|at| self.tracks[*at].touched);
        self.put(at, oldest.expect("there are some"))
    }

    /// A track is long enough to be known: it goes there, in place of the run that is worth least.
    /// Where it is now.
    pub(crate) fn promote(&mut self, at: usize) -> usize {
        let room = self.room();
        self.put(at, room)
    }

    /// Room among the known: a free one, else that of the run that is worth least, else of the
    /// oldest loop.
    pub(crate) fn room(&mut self) -> usize {
        let rank = |at: &usize| {
            let t = &self.tracks[*at];
            (t.kind, !t.pass.is_bulk(&self.config), t.touched)
        };
        let least = self.known().min_by_key(rank).expect("there are some");
        self.free(least);
        least
    }

    fn put(&mut self, from: usize, to: usize) -> usize {
        (self.tracks[to], self.tracks[from]) = (self.tracks[from], Track::FREE);
        self.set_head(to, self.heads[from]);
        self.set_head(from, NOWHERE);
        to
    }

    /// Its bounds.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let loops = self.of(Kind::Loop).count();
        assert!(self.tracks.len() == self.config.tracks && loops <= self.config.loops);
        for (at, t) in self.tracks.iter().enumerate() {
            let known = self.known().contains(&at);
            assert!(t.kind == Kind::Free || known == t.is_known(), "{at} {t:?}");
            assert!(t.first <= t.end && t.first <= t.pass.start.max(t.first), "{t:?}");
            assert_eq!(self.heads_low[at], self.heads[at] as u32);
            if known {
                let next = self.of(Kind::Loop).map(|o| self.tracks[o].first);
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
