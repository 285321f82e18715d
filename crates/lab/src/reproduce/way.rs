//! Measurements of a figure that have nothing to do with each other, side by side.
//!
//! Owns: how a figure is measured, and what ends it. Promises: each part has a virtual time of its own, so the
//! numbers are the same on any number of threads; results come in the order of the parts, and of several
//! errors the first in that order. Never: begins a part after an interrupt, an error or a panic; those
//! that are under way go on to their end.

use super::ReproduceError;
use super::points::Placed;
use crate::kept::Kept;
use crate::parallel::{Then, side_by_side};
use crate::run::{Monitor, Unwatched};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Looks on while a figure is measured.
pub trait Watcher: Sync {
    /// Looks on while one part of it is measured, on the thread that measures it.
    fn part(&self, name: &str) -> Rc<dyn Monitor>;
    /// So many parts are done, of so many; from any thread.
    fn done(&self, _parts: usize, _of: usize) {}
    /// A part is done and can't be kept.
    fn trouble(&self, _why: &str) {}
}

impl Watcher for Unwatched {
    fn part(&self, _: &str) -> Rc<dyn Monitor> {
        Rc::new(Unwatched)
    }
}

/// How a figure is measured.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// Simulations at a time; a live figure is alone on the machine.
    pub jobs: usize,
    pub watch: &'a dyn Watcher,
    /// What other figures have measured.
    pub known: &'a Known,
}

/// Points of grids that several figures have, or earlier calls had: each is measured once.
#[derive(Default)]
pub struct Known {
    all: Mutex<BTreeMap<String, Vec<Placed>>>,
    kept: Kept,
}

impl Known {
    /// With what an earlier call has kept in a folder; what is measured is kept there, too.
    pub fn kept(kept: Kept) -> Known {
        Known { all: Mutex::default(), kept }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Placed>>> {
        // An entry is whole or not there.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has this description, measured unless it is there.
    pub(super) fn get(
        &self,
        description: Option<String>,
        watch: &dyn Watcher,
        measure: impl FnOnce() -> Result<Option<Vec<Placed>>, ReproduceError>,
    ) -> Result<Option<Vec<Placed>>, ReproduceError> {
        let Some(description) = description else { return measure() };
        let known = self.all().get(&description).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let name = self.kept.name_of(&description);
        let found = match self.kept.find(&name) {
            Some(found) => Some(found),
            None => {
                let measured = measure()?;
                if let Some(found) = &measured
                    && let Err(why) = self.kept.keep(&name, found)
                {
                    watch.trouble(&why);
                }
                measured
            }
        };
        if let Some(found) = &found {
            self.all().insert(description, found.clone());
        }
        Ok(found)
    }
}

impl Way<'_> {
    /// `measure` for each part; `None` for those that an interrupt cut short or left out.
    pub(super) fn each<P: Sync, T: Send>(
        &self,
        parts: &[P],
        measure: impl Fn(&P) -> Result<Option<T>, ReproduceError> + Sync,
    ) -> Result<Vec<Option<T>>, ReproduceError> {
        let done = AtomicUsize::new(0);
        self.watch.done(0, parts.len());
        let all = side_by_side(self.jobs, parts.len(), |i| {
            let result = measure(&parts[i]);
            self.watch.done(done.fetch_add(1, Ordering::Relaxed) + 1, parts.len());
            let then = if matches!(result, Ok(Some(_))) { Then::GoOn } else { Then::End };
            (Some(result), then)
        });
        all.into_iter().map(|result| result.unwrap_or(Ok(None))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;
    use std::time::Duration;

    fn way(jobs: usize) -> Way<'static> {
        static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
        Way { jobs, watch: &Unwatched, known: &KNOWN }
    }

    /// Whoever waits is told how many parts there are, and of each that is done.
    #[test]
    fn what_is_done_is_said() {
        #[derive(Default)]
        struct Told(Mutex<Vec<(usize, usize)>>);
        impl Watcher for Told {
            fn part(&self, _: &str) -> Rc<dyn Monitor> {
                Rc::new(Unwatched)
            }
            fn done(&self, parts: usize, of: usize) {
                self.0.lock().unwrap().push((parts, of));
            }
        }
        for jobs in [1, 3] {
            let told = Told::default();
            let way = Way { watch: &told, ..way(jobs) };
            way.each(&[1, 2, 3], |part: &u32| Ok(Some(*part))).unwrap();
            let mut told = told.0.into_inner().unwrap();
            told.sort_unstable();
            assert_eq!(told, [(0, 3), (1, 3), (2, 3), (3, 3)]);
        }
    }

    #[test]
    fn what_is_known_is_not_measured_again() {
        let (known, measured) = (Known::default(), AtomicUsize::new(0));
        let get = |name: &str, there: bool| {
            let measure = || {
                measured.fetch_add(1, Ordering::Relaxed);
                Ok(there.then(|| vec![Placed::default()]))
            };
            known.get(Some(name.into()), &Unwatched, measure).unwrap().is_some()
        };
        assert!(!get("a", false) && get("a", true) && get("a", true) && get("b", true));
        assert_eq!(measured.into_inner(), 3, "what was interrupted is not known");
    }

    #[test]
    fn parts_come_in_their_order_whoever_measures_them() {
        let parts: Vec<u32> = (0..40).collect();
        for jobs in [0, 1, 2, 7, 100] {
            let all = way(jobs).each(&parts, |part| Ok(Some(part * 2))).unwrap();
            assert_eq!(all, parts.iter().map(|part| Some(part * 2)).collect::<Vec<_>>());
        }
        assert_eq!(way(3).each(&[], |_: &u32| Ok(Some(1))).unwrap(), []);
    }

    #[test]
    fn nothing_begins_after_an_interrupt_or_an_error() {
        let parts: Vec<u32> = (0..40).collect();
        let cut = |part: &u32| Ok((*part < 5).then_some(*part));
        let all = way(1).each(&parts, cut).unwrap();
        assert_eq!(all.iter().flatten().count(), 5);
        let begun = AtomicUsize::new(0);
        let bad = |part: &u32| {
            begun.fetch_add(1, Ordering::Relaxed);
            match part {
                3 | 4 => Err(ReproduceError::Bad { figure: "x".into(), what: part.to_string() }),
                _ => Ok(Some(*part)),
            }
        };
        for jobs in [1, 2] {
            assert_eq!(way(jobs).each(&parts, bad).unwrap_err().to_string(), "x: 3");
        }
        assert!(begun.into_inner() < 12);
    }

    #[test]
    fn nothing_begins_after_a_panic() {
        let parts: Vec<u32> = (0..10_000).collect();
        let begun = AtomicUsize::new(0);
        let all = || {
            way(2).each(&parts, |part| {
                begun.fetch_add(1, Ordering::Relaxed);
                // Ten seconds for all, so that the one that fails is through with its message before.
                std::thread::park_timeout(Duration::from_millis(1));
                assert_ne!(*part, 3, "this panic is meant");
                Ok(Some(*part))
            })
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(all)).is_err());
        assert!(begun.into_inner() < parts.len());
    }
}
