//! The short mutex of all layers, which costs a run in virtual time no locked instruction.
//!
//! Owns: [`Mutex`], and on which threads a run in virtual time is alive. Promises: a mutex that is
//! first taken on a thread with such a run belongs to that thread for good, and is a plain flag: a
//! sixth of a simulation's time went into uncontended locks. Any other mutex is `parking_lot`'s.
//! Never: lets another thread in. One that takes a mutex of a virtual run panics: a
//! [`crate::Virtual`] and its contexts never leave their thread, so it has no business there.

use parking_lot::lock_api::{self, GuardNoSend};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Nobody has taken the mutex yet.
const UNBOUND: u32 = 0;
/// It was first taken outside of a virtual run.
const SHARED: u32 = u32::MAX;
/// Name of a thread that never had a virtual run; no mutex belongs to it.
const NO_THREAD: u32 = u32::MAX - 1;

/// Names of threads that had a virtual run; used once each, also when a thread has ended.
static NEXT_THREAD: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(NO_THREAD) };
    static RUNS: Cell<u32> = const { Cell::new(0) };
}

/// A virtual run lives on this thread until this is dropped.
pub(crate) struct RunHere {
    /// Counted on the thread where it began, so it stays there.
    _stays: std::marker::PhantomData<*const ()>,
}

impl RunHere {
    pub(crate) fn begin() -> RunHere {
        if THREAD.get() == NO_THREAD {
            let name = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
            assert!(name < NO_THREAD, "2^32 threads with runs in virtual time");
            THREAD.set(name);
        }
        RUNS.set(RUNS.get() + 1);
        RunHere { _stays: std::marker::PhantomData }
    }
}

impl Drop for RunHere {
    fn drop(&mut self) {
        RUNS.set(RUNS.get() - 1);
    }
}

/// The lock of a [`Mutex`].
pub struct RawMutex {
    /// Whose it is: changes once, from [`UNBOUND`].
    home: AtomicU32,
    /// Held by its thread; only that one reads and writes it.
    held: AtomicBool,
    shared: parking_lot::RawMutex,
}

impl RawMutex {
    #[inline(always)]
    fn is_here(&self) -> bool {
        self.home.load(Ordering::Relaxed) == THREAD.get()
    }

    /// Takes the flag, or says that this thread has taken it already.
    #[inline(always)]
    fn take_flag(&self) -> bool {
        let free = !self.held.load(Ordering::Relaxed);
        self.held.store(true, Ordering::Relaxed);
        free
    }

    /// First use: to whom it belongs from now on. True when that is this thread.
    #[cold]
    fn bind(&self) -> bool {
        let to = if RUNS.get() > 0 { THREAD.get() } else { SHARED };
        let _ = self.home.compare_exchange(UNBOUND, to, Ordering::Relaxed, Ordering::Relaxed);
        let home = self.home.load(Ordering::Relaxed);
        assert!(
            home == SHARED || home == THREAD.get(),
            "a device or target that was used in a run in virtual time belongs to that run's thread"
        );
        home != SHARED
    }
}

// SAFETY: mutual exclusion holds. `home` changes once, by compare-exchange, so all threads agree on
// it. SHARED: the lock is parking_lot's. A thread's name, which no other thread has or ever gets:
// only that thread passes `is_here` or `bind`, all others panic, and `held` keeps it from entering
// twice. NO_THREAD, the name of all threads without runs, never becomes a home.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: RawMutex = RawMutex {
        home: AtomicU32::new(UNBOUND),
        held: AtomicBool::new(false),
        shared: parking_lot::RawMutex::INIT,
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.is_here() || self.home.load(Ordering::Relaxed) != SHARED && self.bind() {
            assert!(self.take_flag(), "a mutex was taken twice by one task");
        } else {
            self.shared.lock();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if self.is_here() || self.home.load(Ordering::Relaxed) != SHARED && self.bind() {
            self.take_flag()
        } else {
            self.shared.try_lock()
        }
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.home.load(Ordering::Relaxed) == SHARED {
            // SAFETY: the caller holds the lock, which is parking_lot's.
            unsafe { self.shared.unlock() }
        } else {
            self.held.store(false, Ordering::Relaxed);
        }
    }
}

/// A mutex for short sections: no await inside.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;

/// What keeps a [`Mutex`] taken.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn outside_of_a_virtual_run_threads_exclude_each_other() {
        let m = Arc::new(Mutex::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let m = m.clone();
                std::thread::spawn(move || {
                    for _ in 0..10_000 {
                        let mut at = m.lock();
                        let seen = *at;
                        std::hint::black_box(&mut *at);
                        *at = seen + 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*m.lock(), 40_000);
    }

    #[test]
    fn a_mutex_first_taken_in_a_virtual_run_belongs_to_its_thread() {
        let m = Arc::new(Mutex::new(1));
        let run = RunHere::begin();
        let guard = m.lock();
        assert!(m.try_lock().is_none(), "taken twice");
        drop(guard);
        let theirs = m.clone();
        let other = std::thread::spawn(move || *theirs.lock()).join();
        assert!(other.is_err(), "another thread came in");
        drop(run);
        // Its own thread may still look at what the run left.
        assert_eq!(*m.lock(), 1);
        // What is new is everybody's again.
        let m = Arc::new(Mutex::new(2));
        assert_eq!(*m.lock(), 2);
        let theirs = m.clone();
        assert_eq!(std::thread::spawn(move || *theirs.lock()).join().unwrap(), 2);
    }

    #[test]
    fn a_thread_that_is_not_there_first_panics_even_with_a_run_of_its_own() {
        let m = Arc::new(Mutex::new(1));
        let _run = RunHere::begin();
        drop(m.lock());
        let theirs = m.clone();
        let other = std::thread::spawn(move || {
            let _run = RunHere::begin();
            *theirs.lock()
        });
        assert!(other.join().is_err());
    }

    #[test]
    #[should_panic(expected = "taken twice")]
    fn taking_it_twice_is_a_panic_not_a_hang() {
        let _run = RunHere::begin();
        let m = Mutex::new(1);
        let _first = m.lock();
        let _second = m.lock();
    }
}
