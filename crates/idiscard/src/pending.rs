//! What was found to be of no use, on its way to be discarded.
//!
//! Owns: the sectors of each kind between the write that said so and their discard, the requests that are under
//! way meanwhile. Promises: a sector that somebody has written to since the write that decided about it
//! began is in none of them; what has to be durable first waits for a flush that began behind it and went
//! well. Never: knows file systems.

use flashlane_base::{Runs, mutant};
use flashlane_ext4::Found;
use std::ops::Range;

/// Runs that are kept at most of one kind; what is found beyond them is left where it is.
const RUNS_MAX: usize = 1 << 20;

/// Why sectors are discarded that hold no inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Freed,
    Passed,
    ZeroBitmap,
}

impl Why {
    pub(crate) const ALL: [Why; 3] = [Why::Freed, Why::Passed, Why::ZeroBitmap];
}

type Kinds = [Runs; Why::ALL.len()];

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Free in a bitmap that may be followed by a newer one.
    fresh: Runs,
    /// To be discarded behind a flush.
    written: Kinds,
    /// To be discarded behind the flush that is under way.
    flushing: Option<Kinds>,
    ready: Kinds,
    /// Requests under way; writes among them.
    flight: Vec<(Range<u64>, bool)>,
    /// Writes under way that may decide about sectors.
    deciders: u32,
    /// What was written at a time when one of them was under way.
    recent: Runs,
    /// It was too much to remember: nothing is found until none of them is.
    all_recent: bool,
}

impl Pending {
    /// A request begins at these sectors. A write that `decides` says something about others when it
    /// ends.
    pub(crate) fn begin(&mut self, sectors: &Range<u64>, writes: bool, decides: bool) {
        self.flight.push((sectors.clone(), writes));
        if !writes {
            return;
        }
        self.touched(sectors);
        if decides {
            self.begin_deciding();
        }
    }

    /// What begins now may decide about sectors when it ends: what is written meanwhile is not discarded for it.
    pub(crate) fn begin_deciding(&mut self) {
        if self.deciders == 0 {
            let writes = self.flight.iter().filter(|(_, writes)| *writes);
            writes.for_each(|(sectors, _)| self.recent.insert(sectors.clone()));
        }
        self.deciders += 1;
    }

    /// It has ended.
    pub(crate) fn end_deciding(&mut self) {
        self.deciders -= 1;
        if self.deciders == 0 {
            self.recent.clear();
            self.all_recent = false;
        }
    }

    /// Somebody else has them from now on.
    fn touched(&mut self, sectors: &Range<u64>) {
        if mutant!("idiscard.written-since-ignored") {
            return;
        }
        self.forget(sectors);
        if self.deciders > 0 {
            self.recent.insert(sectors.clone());
            self.all_recent |= self.recent.len() >= RUNS_MAX;
        }
    }

    /// A request has ended.
    pub(crate) fn end(&mut self, sectors: &Range<u64>, writes: bool) {
        let at = self.flight.iter().position(|(s, w)| s == sectors && *w == writes);
        at.map(|at| self.flight.swap_remove(at));
    }

    /// The write that is ending has said so of the file system in these sectors.
    pub(crate) fn found(&mut self, volume: &Range<u64>, found: Found) {
        let first = volume.start;
        let at = |run: Range<u64>| run.start + first..(run.end + first).min(volume.end);
        match found {
            Found::Freed(_) | Found::Passed(_) if self.all_recent => {}
            Found::Freed(run) => Pending::add(&mut self.fresh, at(run), &self.recent),
            Found::Passed(run) => {
                let runs = Pending::waiting(&mut self.written, &mut self.ready, Why::Passed);
                Pending::add(runs, at(run), &self.recent);
            }
            Found::ZeroBitmap(sector) => {
                // It is the write itself that has said so.
                let run = at(sector..sector + 1);
                let ready = &mut self.ready[Why::ZeroBitmap as usize];
                Pending::add(ready, run, &Runs::default());
            }
            Found::Taken(run) => self.forget(&at(run)),
            // What another file system has found is none of it.
            Found::Settled => {
                let of = if mutant!("idiscard.settled-for-all") { &(0..u64::MAX) } else { volume };
                let met: Vec<Range<u64>> = self.fresh.meeting(of.clone()).collect();
                for run in met {
                    let run = run.start.max(of.start)..run.end.min(of.end);
                    self.fresh.remove(run.clone());
                    Pending::waiting(&mut self.written, &mut self.ready, Why::Freed).insert(run);
                }
            }
        }
    }

    /// Where what has to be durable first goes.
    fn waiting<'a>(written: &'a mut Kinds, ready: &'a mut Kinds, why: Why) -> &'a mut Runs {
        let to = if mutant!("idiscard.unflushed-is-durable") { ready } else { written };
        &mut to[why as usize]
    }

    fn add(runs: &mut Runs, run: Range<u64>, but: &Runs) {
        if runs.len() >= RUNS_MAX {
            return;
        }
        runs.insert(run.clone());
        if !mutant!("idiscard.written-beside-ignored") {
            but.meeting(run).for_each(|other| runs.remove(other));
        }
    }

    /// Something waits for a flush.
    pub(crate) fn waits_for_flush(&self) -> bool {
        self.flushing.is_none() && self.written.iter().any(|runs| !runs.is_empty())
    }

    /// A flush begins, which is the only one that is looked at until it ends.
    pub(crate) fn begin_flush(&mut self) -> bool {
        let begins = self.waits_for_flush();
        if begins {
            self.flushing = Some(std::mem::take(&mut self.written));
        }
        begins
    }

    /// It has ended.
    pub(crate) fn end_flush(&mut self, good: bool) {
        let Some(mut flushed) = self.flushing.take() else { return };
        let to = if good { &mut self.ready } else { &mut self.written };
        to.iter_mut().zip(&mut flushed).for_each(|(to, from)| to.append(from));
        if good && mutant!("idiscard.found-during-a-flush-is-durable") {
            self.ready.iter_mut().zip(&mut self.written).for_each(|(to, from)| to.append(from));
        }
    }

    /// What waits for a flush will wait for ever.
    pub(crate) fn give_up(&mut self) {
        self.written.iter_mut().for_each(Runs::clear);
    }

    /// The next sectors that follow each other, `most` at most, at which no request is; they are not given
    /// again.
    pub(crate) fn take(&mut self, most: u64) -> Option<(Why, Range<u64>)> {
        for why in Why::ALL {
            let ready = &mut self.ready[why as usize];
            let free = ready.iter().find_map(|run| {
                let mut start = run.start;
                loop {
                    let end = run.end.min(start + most);
                    let meets = |(other, _): &&(Range<u64>, bool)| {
                        other.start < end
                            && start < other.end
                            && !mutant!("idiscard.flight-ignored")
                    };
                    match self
                        .flight
                        .iter()
                        .filter(meets)
                        .map(|(other, _)| other)
                        .min_by_key(|o| o.start)
                    {
                        None => return Some(start..end),
                        Some(other) if other.start > start => return Some(start..other.start),
                        Some(other) if other.end < run.end => start = other.end,
                        Some(_) => return None,
                    }
                }
            });
            if let Some(run) = free {
                ready.remove(run.clone());
                return Some((why, run));
            }
        }
        None
    }

    /// Nothing is known of these sectors any more.
    pub(crate) fn forget(&mut self, sectors: &Range<u64>) {
        let stages = [&mut self.written, &mut self.ready].into_iter().chain(&mut self.flushing);
        stages.flatten().for_each(|runs| runs.remove(sectors.clone()));
        self.fresh.remove(sectors.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discard_goes_round_requests() {
        let mut pending = Pending::default();
        (3..7).for_each(|sector| pending.found(&(100..200), Found::ZeroBitmap(sector)));
        for (busy, runs) in [(104..105, vec![103..104, 105..107]), (100..107, Vec::new())] {
            let mut pending = Pending { ready: pending.ready.clone(), ..Pending::default() };
            pending.begin(&busy, false, false);
            let taken: Vec<_> = std::iter::from_fn(|| pending.take(9)).collect();
            assert_eq!(taken.into_iter().map(|(_, run)| run).collect::<Vec<_>>(), runs);
            pending.end(&busy, false);
            assert!(
                pending
                    .take(1)
                    .is_some_and(|(why, run)| why == Why::ZeroBitmap && run.end - run.start == 1)
            );
        }
    }

    /// What is settled in one file system says nothing of another one.
    #[test]
    fn a_file_system_settles_its_own() {
        let mut pending = Pending::default();
        pending.found(&(0..100), Found::Freed(10..20));
        pending.found(&(100..200), Found::Freed(10..20));
        pending.found(&(0..100), Found::Settled);
        assert!(pending.begin_flush());
        pending.end_flush(true);
        assert_eq!(pending.take(99), Some((Why::Freed, 10..20)));
        assert_eq!(pending.take(99), None);
        pending.found(&(100..200), Found::Taken(0..15));
        pending.found(&(100..200), Found::Settled);
        pending.begin_flush();
        pending.end_flush(false);
        assert!(pending.take(99).is_none() && pending.waits_for_flush());
        pending.begin_flush();
        pending.end_flush(true);
        assert_eq!(pending.take(99), Some((Why::Freed, 115..120)));
    }

    /// What is found while a flush is under way may have been written after the flush began: it
    /// waits for the next one.
    #[test]
    fn what_is_found_during_a_flush_waits_for_the_next() {
        let (all, mut pending) = (0..100, Pending::default());
        let freed = |pending: &mut Pending, run: Range<u64>| {
            pending.found(&all, Found::Freed(run));
            pending.found(&all, Found::Settled);
        };
        freed(&mut pending, 10..12);
        assert!(pending.begin_flush());
        freed(&mut pending, 20..22);
        pending.found(&all, Found::Passed(30..32));
        pending.end_flush(true);
        assert_eq!(pending.take(99), Some((Why::Freed, 10..12)));
        assert_eq!(pending.take(99), None, "the flush began before the others were found");
        assert!(pending.begin_flush());
        assert_eq!(pending.take(99), None, "the next flush has not ended");
        pending.end_flush(true);
        assert_eq!(pending.take(99), Some((Why::Freed, 20..22)));
        assert_eq!(pending.take(99), Some((Why::Passed, 30..32)));
    }
}
