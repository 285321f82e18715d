//! What the runtime takes from the system: atomics, the mutex, threads, the real clock. Or from a
//! checker of interleavings in their place.
//!
//! Owns: the choice, once for all layers. A normal build has std's and `parking_lot`'s themselves.
//! The feature `shuttle` puts shuttle's in their place: every access is a point where another core
//! may go on, and a schedule is a function of its seed. The feature `loom` puts loom's: small
//! models, all interleavings, weak memory too. Promises: no cost in a normal build. Under a checker
//! there is no real time: a clock counts how often it was read, and jumps to the next timer when
//! every core is idle. Never: decides anything else by the build.
//!
//! A checker does not see what goes past this façade: std's atomics and mutexes of the simulated
//! medium (they belong to the device, not to the host), and plain memory (shuttle; loom sees no
//! `UnsafeCell` of ours either).

#[cfg(all(feature = "shuttle", feature = "loom"))]
compile_error!("`shuttle` and `loom` are two checkers: one of them, and neither in a product");

#[cfg(not(any(feature = "shuttle", feature = "loom")))]
mod chosen {
    pub use crate::mutex::{Mutex, MutexGuard};
    use flashlane_base::Ns;
    pub(crate) use parking_lot::Mutex as InboxMutex;
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::thread::{Thread, current};

    /// Empty turns before a core parks: a device time is 10–100 us, parking costs about 5 us.
    pub(crate) const IDLE_SPINS: u32 = 200;

    /// Tells a thread that waits that what is in a mutex has changed. For threads that are no core's.
    #[derive(Default)]
    pub(crate) struct Changed(parking_lot::Condvar);

    impl Changed {
        /// Wakes the thread that waits, behind the change.
        pub(crate) fn tell(&self) {
            self.0.notify_one();
        }

        /// Blocks this thread until `done` finds what it wants in the mutex.
        pub(crate) fn wait<T, R>(
            &self,
            mutex: &InboxMutex<T>,
            mut done: impl FnMut(&mut T) -> Option<R>,
        ) -> R {
            let mut guard = mutex.lock();
            loop {
                match done(&mut guard) {
                    Some(found) => return found,
                    None => self.0.wait(&mut guard),
                }
            }
        }
    }

    /// Zeroed atomics without touching the pages: a fresh map of a 2 TB drive costs nothing.
    pub fn zeroed_u32(n: usize) -> Box<[AtomicU32]> {
        // SAFETY: AtomicU32 has the bit validity of u32 (documented in std).
        unsafe { zeroed(n) }
    }

    /// As [`zeroed_u32`].
    pub fn zeroed_u64(n: usize) -> Box<[AtomicU64]> {
        // SAFETY: AtomicU64 has the bit validity of u64 (documented in std).
        unsafe { zeroed(n) }
    }

    /// Asked of the allocator for `T` itself: on machines of 32 bits an `AtomicU64` wants more than a `u64` is
    /// aligned to.
    ///
    /// # Safety
    /// A `T` may be all zeros.
    unsafe fn zeroed<T>(n: usize) -> Box<[T]> {
        use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
        let layout = Layout::array::<T>(n).expect("memory has room for a map");
        if layout.size() == 0 {
            return Box::new([]);
        }
        // SAFETY: the layout has a size.
        let first = unsafe { alloc_zeroed(layout) };
        if first.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: `n` zeroed `T`s, allocated as a box of them is given back.
        unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(first.cast::<T>(), n)) }
    }

    /// A place at which an order of steps counts: a checker often stops here for long, and a test may take
    /// the step of another core here ([`rehearse`]).
    #[inline(always)]
    pub fn hesitate() {
        #[cfg(debug_assertions)]
        rehearsed();
    }

    #[cfg(debug_assertions)]
    type Step = Box<dyn FnMut() -> bool>;

    #[cfg(debug_assertions)]
    thread_local! {
        static STEP: std::cell::RefCell<Option<Step>> = const { std::cell::RefCell::new(None) };
    }

    /// For tests: each [`hesitate`] of this thread calls `step`, as long as that returns true.
    #[cfg(debug_assertions)]
    pub fn rehearse(step: impl FnMut() -> bool + 'static) {
        STEP.with(|kept| *kept.borrow_mut() = Some(Box::new(step)));
    }

    #[cfg(debug_assertions)]
    fn rehearsed() {
        // Taken out: a step may come by here itself.
        if let Some(mut step) = STEP.with(|kept| kept.borrow_mut().take())
            && step()
        {
            STEP.with(|kept| *kept.borrow_mut() = Some(step));
        }
    }

    /// Copies content between memory that cores share and a core's own.
    ///
    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    #[inline(always)]
    pub unsafe fn copy_content(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
    }

    /// Takes a mutex. If somebody else has it, `waited` is told how many ns of real time that took, with
    /// the mutex taken.
    #[inline]
    pub(crate) fn lock_or<'a, T>(
        mutex: &'a Mutex<T>,
        waited: impl FnOnce(u64),
    ) -> MutexGuard<'a, T> {
        match mutex.try_lock() {
            Some(guard) => guard,
            None => lock_late(mutex, waited),
        }
    }

    #[cold]
    fn lock_late<'a, T>(mutex: &'a Mutex<T>, waited: impl FnOnce(u64)) -> MutexGuard<'a, T> {
        let clock = RealClock::new(1);
        let guard = mutex.lock();
        waited(clock.now());
        guard
    }

    /// Runs `f` for 0 to `n` - 1, each on a thread of its own, and returns how each ended.
    pub(crate) fn on_threads<T: Send>(
        n: u32,
        f: impl Fn(u32) -> T + Sync,
    ) -> Vec<std::thread::Result<T>> {
        std::thread::scope(|scope| {
            let f = &f;
            let handles: Vec<_> = (0..n).map(|i| scope.spawn(move || f(i))).collect();
            handles.into_iter().map(|h| h.join()).collect()
        })
    }

    /// Runs `f` for 0 to `n` - 1, each on a thread of its own, beside `here` on this one. Returns what that
    /// returned, and how each of them ended.
    pub(crate) fn beside_threads<T: Send, R>(
        n: u32,
        f: impl Fn(u32) -> T + Sync,
        here: impl FnOnce() -> R,
    ) -> (R, Vec<std::thread::Result<T>>) {
        std::thread::scope(|scope| {
            let f = &f;
            let handles: Vec<_> = (0..n).map(|i| scope.spawn(move || f(i))).collect();
            let here = here();
            (here, handles.into_iter().map(|h| h.join()).collect())
        })
    }

    /// The real clock, since it was made.
    pub(crate) struct RealClock(std::time::Instant);

    impl RealClock {
        pub(crate) fn new(_cores: u32) -> RealClock {
            #[allow(clippy::disallowed_methods)] // this is where the real clock enters
            RealClock(std::time::Instant::now())
        }

        #[inline]
        pub(crate) fn now(&self) -> u64 {
            self.0.elapsed().as_nanos() as u64
        }

        /// Wakes a core, whose thread this is.
        #[inline]
        pub(crate) fn unpark(&self, _core: u32, thread: &Thread) {
            thread.unpark();
        }

        /// A core, which is the present thread, sleeps until it is unparked or its next timer is near.
        pub(crate) fn park(&self, _core: u32, next: Option<u64>) {
            let span = self.nap(next);
            if span != Ns::ZERO {
                std::thread::park_timeout(std::time::Duration::from_nanos(span.as_ns()));
            }
        }

        /// How long a core may sleep whose next timer is that one; zero when it should spin instead.
        pub(crate) fn nap(&self, next: Option<u64>) -> Ns {
            let Some(at) = next else {
                return Ns::from_ms(50);
            };
            let left = at.saturating_sub(self.now());
            // The kernel wakes some 50 us late: sleep short of the timer and spin the rest.
            if left > 100_000 { Ns::from_ns(left - 60_000) } else { Ns::ZERO }
        }
    }
}

#[cfg(any(feature = "shuttle", feature = "loom"))]
mod chosen {
    #[cfg(feature = "loom")]
    pub use loom::hint::spin_loop;
    #[cfg(feature = "loom")]
    use loom::sync as checked;
    #[cfg(feature = "loom")]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(feature = "loom")]
    pub(crate) use loom::thread::{Thread, current, park};
    #[cfg(feature = "shuttle")]
    pub use shuttle::hint::spin_loop;
    #[cfg(feature = "shuttle")]
    use shuttle::sync as checked;
    #[cfg(feature = "shuttle")]
    pub use shuttle::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(feature = "shuttle")]
    pub(crate) use shuttle::thread::{Thread, current, park};

    use std::sync::PoisonError;
    use std::sync::atomic::AtomicU64 as Plain;
    use std::sync::atomic::Ordering::SeqCst;

    pub(crate) use self::Mutex as InboxMutex;

    /// A core parks in its first empty turn.
    pub(crate) const IDLE_SPINS: u32 = 1;
    /// What a look at the clock takes: whoever looks again and again sees time pass.
    const LOOK_NS: u64 = 10;

    /// The checker's mutex with the face of the other build's.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(checked::Mutex<T>);

    /// What keeps a [`Mutex`] taken.
    pub type MutexGuard<'a, T> = checked::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        /// A free mutex.
        #[cfg(feature = "shuttle")]
        pub const fn new(value: T) -> Mutex<T> {
            Mutex(checked::Mutex::new(value))
        }

        /// A free mutex.
        #[cfg(feature = "loom")]
        pub fn new(value: T) -> Mutex<T> {
            Mutex(checked::Mutex::new(value))
        }

        /// Waits for it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Takes it if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        /// What is in it.
        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }

        /// The value, which nobody else can reach.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Tells a thread that waits that what is in a mutex has changed.
    pub(crate) struct Changed(checked::Condvar);

    impl Default for Changed {
        fn default() -> Changed {
            Changed(checked::Condvar::new())
        }
    }

    impl Changed {
        /// Wakes the thread that waits.
        pub(crate) fn tell(&self) {
            self.0.notify_one();
        }

        /// Blocks this thread until `done` finds what it wants in the mutex.
        pub(crate) fn wait<T, R>(
            &self,
            mutex: &Mutex<T>,
            mut done: impl FnMut(&mut T) -> Option<R>,
        ) -> R {
            let mut guard = mutex.lock();
            loop {
                match done(&mut guard) {
                    Some(found) => return found,
                    None => guard = self.0.wait(guard).unwrap_or_else(PoisonError::into_inner),
                }
            }
        }
    }

    /// Copies content between memory that cores share and a core's own: one half, then, often after others
    /// have gone on for long, the other. Whoever is there without a right to it tears a sector.
    ///
    /// # Safety
    /// As for [`std::ptr::copy_nonoverlapping`].
    pub unsafe fn copy_content(from: *const u8, to: *mut u8, bytes: usize) {
        let half = bytes / 2;
        // SAFETY: the caller's, for each half.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, half);
            hesitate();
            std::ptr::copy_nonoverlapping(from.add(half), to.add(half), bytes - half);
        }
    }

    #[cfg(feature = "shuttle")]
    thread_local! {
        /// All cores of a run are on one thread.
        static HESITATES: std::cell::Cell<u64> = const { std::cell::Cell::new(8) };
    }

    /// From now on [`hesitate`] stops in one of so many cases: 8, unless somebody says so.
    #[cfg(feature = "shuttle")]
    pub fn hesitate_in_one_of(cases: u64) {
        HESITATES.set(cases);
    }

    /// In one of eight cases others have their turns now, up to 256 of them.
    #[cfg(feature = "shuttle")]
    pub fn hesitate() {
        use shuttle::rand::{RngCore, thread_rng};
        let drawn = thread_rng().next_u64();
        if drawn.is_multiple_of(HESITATES.get()) {
            (0..1 << ((drawn >> 3) % 9)).for_each(|_| spin_loop());
        }
    }

    /// Loom tries everything anyhow.
    #[cfg(feature = "loom")]
    pub fn hesitate() {}

    /// Takes a mutex. Nobody is told of waiting: it would be one more point where another may go on, for
    /// a number that no model reads.
    pub(crate) fn lock_or<'a, T>(mutex: &'a Mutex<T>, _: impl FnOnce(u64)) -> MutexGuard<'a, T> {
        mutex.lock()
    }

    /// Zeroed atomics.
    pub fn zeroed_u32(n: usize) -> Box<[AtomicU32]> {
        (0..n).map(|_| AtomicU32::new(0)).collect()
    }

    /// Zeroed atomics.
    pub fn zeroed_u64(n: usize) -> Box<[AtomicU64]> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    /// Only what is on this thread: checkers have all their threads by [`on_threads`].
    pub(crate) fn beside_threads<T: Send, R>(
        n: u32,
        _: impl Fn(u32) -> T + Sync,
        here: impl FnOnce() -> R,
    ) -> (R, Vec<std::thread::Result<T>>) {
        assert_eq!(n, 0, "a checker runs cores by `Threads::run`");
        (here(), Vec::new())
    }

    /// Runs `f` for 0 to `n` - 1, each on a thread of its own, and returns how each ended.
    #[cfg(feature = "shuttle")]
    pub(crate) fn on_threads<T: Send>(
        n: u32,
        f: impl Fn(u32) -> T + Sync,
    ) -> Vec<std::thread::Result<T>> {
        shuttle::thread::scope(|scope| {
            let f = &f;
            let handles: Vec<_> = (0..n).map(|i| scope.spawn(move || f(i))).collect();
            handles.into_iter().map(|h| h.join()).collect()
        })
    }

    /// Runs `f` for 0 to `n` - 1, the first on this thread, since loom has few, and returns how each ended.
    #[cfg(feature = "loom")]
    pub(crate) fn on_threads<T: Send>(
        n: u32,
        f: impl Fn(u32) -> T + Sync,
    ) -> Vec<std::thread::Result<T>> {
        use std::sync::{Arc, Mutex};
        struct Erased(*const ());
        // SAFETY: what it points to is `Sync`, and lives until every thread has ended (below).
        unsafe impl Send for Erased {}
        fn call<T, F: Fn(u32) -> T>(f: *const (), i: u32) -> T {
            // SAFETY: `f` is the closure of `on_threads`, which has not returned.
            unsafe { (*f.cast::<F>())(i) }
        }
        fn caller<T, F: Fn(u32) -> T>(_: &F) -> fn(*const (), u32) -> T {
            call::<T, F>
        }
        let call = caller(&f);
        let values: Arc<Vec<Mutex<Option<T>>>> =
            Arc::new((0..n).map(|_| Mutex::new(None)).collect());
        let (ended, me) = (Arc::new(AtomicUsize::new(1)), current());
        let handles: Vec<_> = (1..n)
            .map(|i| {
                let (f, values) = (Erased((&raw const f).cast()), values.clone());
                let (ended, me) = (ended.clone(), me.clone());
                let work: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
                    let f = f;
                    let value = call(f.0, i);
                    *values[i as usize].lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(value);
                    ended.fetch_add(1, Ordering::SeqCst);
                    me.unpark();
                });
                // SAFETY: every handle is joined before this returns; a model that panics is over, and
                // loom runs no other thread of it then.
                let work: Box<dyn FnOnce() + Send> = unsafe { std::mem::transmute(work) };
                loom::thread::spawn(work)
            })
            .collect();
        let first = f(0);
        // Loom's `join` can't bear that somebody unparks who waits there, which a core that ends does.
        while ended.load(Ordering::SeqCst) < n as usize {
            park();
        }
        handles.into_iter().for_each(|h| h.join().expect("loom ends with the first panic"));
        *values[0].lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
        let take = |m: &Mutex<Option<T>>| m.lock().unwrap_or_else(PoisonError::into_inner).take();
        values.iter().map(|m| Ok(take(m).expect("joined"))).collect()
    }

    /// A core that sleeps.
    struct Sleeper {
        thread: Thread,
        /// When its next timer is due; `u64::MAX` is never.
        next: u64,
    }

    /// The clock of a run under a checker, which lets one thread run at a time: its own state is no
    /// part of what is checked.
    pub(crate) struct RealClock {
        now: Plain,
        /// By core.
        cores: std::sync::Mutex<Vec<Sleep>>,
    }

    /// How a core sleeps.
    #[derive(Default)]
    struct Sleep {
        asleep: Option<Sleeper>,
        /// It was woken and has not gone on yet.
        woken: bool,
    }

    impl RealClock {
        pub(crate) fn new(cores: u32) -> RealClock {
            let cores = (0..cores).map(|_| Sleep::default()).collect();
            RealClock { now: Plain::new(0), cores: std::sync::Mutex::new(cores) }
        }

        pub(crate) fn now(&self) -> u64 {
            self.now.fetch_add(LOOK_NS, SeqCst) + LOOK_NS
        }

        fn cores(&self) -> std::sync::MutexGuard<'_, Vec<Sleep>> {
            self.cores.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Wakes a core, whose thread this is.
        pub(crate) fn unpark(&self, core: u32, thread: &Thread) {
            self.cores()[core as usize] = Sleep { asleep: None, woken: true };
            thread.unpark();
        }

        /// A core, which is the present thread, sleeps until it is unparked. Without a timer anywhere the
        /// last to go to sleep sleeps, too: the checker says that nobody can go on.
        pub(crate) fn park(&self, core: u32, next: Option<u64>) {
            let sleeper = Sleeper { thread: current(), next: next.unwrap_or(u64::MAX) };
            let first = {
                let mut cores = self.cores();
                let mine = &mut cores[core as usize];
                // Woken before it slept: nobody's time passes.
                if !mine.woken {
                    mine.asleep = Some(sleeper);
                }
                self.jump(&cores)
            };
            match first {
                Some((first, _)) if first == core => {}
                other => {
                    if let Some((first, thread)) = other {
                        self.unpark(first, &thread);
                    }
                    park();
                }
            }
            self.cores()[core as usize] = Sleep::default();
        }

        /// A checker has no files to wait for: who watches some looks at them and goes on.
        pub(crate) fn nap(&self, _next: Option<u64>) -> flashlane_base::Ns {
            flashlane_base::Ns::ZERO
        }

        /// When all cores sleep it is the time of the first timer; returns whose that is.
        fn jump(&self, cores: &[Sleep]) -> Option<(u32, Thread)> {
            let mut first: Option<(u64, u32, &Thread)> = None;
            for (core, sleep) in (0..).zip(cores) {
                let sleeper = sleep.asleep.as_ref()?;
                if sleeper.next != u64::MAX && first.is_none_or(|(next, ..)| sleeper.next < next) {
                    first = Some((sleeper.next, core, &sleeper.thread));
                }
            }
            let (next, core, thread) = first?;
            self.now.fetch_max(next, SeqCst);
            Some((core, thread.clone()))
        }
    }
}

pub use chosen::*;
