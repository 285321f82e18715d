//! Blocking primitives of the data path, the same under both clocks.
//!
//! Owns: [`Lock`] (a spin lock whose price shows in virtual time), [`Credits`] (a counting
//! semaphore, first come first served), [`Notify`] (a condition), and what was waited for at the first two.
//! And the façade through which layers import atomics and the short mutex, so that a checker's versions
//! can be swapped in.
//! Promises: FIFO admission, no lost wake-up (the condition is read again after registering); counting
//! costs nothing where nobody waits.
//! Never: holds a lock across an await; a critical section is a closure.

use crate::cx::{Cx, Mode, Waiter};
use crate::platform::lock_or;
use crate::virt::Clock;
use flashlane_base::{Ns, mutant};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

#[cfg(feature = "shuttle")]
pub use crate::platform::hesitate_in_one_of;
#[cfg(all(debug_assertions, not(any(feature = "shuttle", feature = "loom"))))]
pub use crate::platform::rehearse;
pub use crate::platform::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering,
    copy_content, fence, hesitate, spin_loop, zeroed_u32, zeroed_u64,
};

/// What a lock went through. In virtual time what the table of costs says, on real threads what the real
/// clock says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Times taken through [`Lock::with`] or [`Lock::enter`].
    pub acquired: u64,
    /// Times somebody else held it.
    pub contended: u64,
    /// Time until it was theirs: in virtual time of a core that spun meanwhile.
    pub spun: Ns,
}

impl LockStats {
    /// Of both together.
    pub fn and(self, other: LockStats) -> LockStats {
        LockStats {
            acquired: self.acquired + other.acquired,
            contended: self.contended + other.contended,
            spun: self.spun + other.spun,
        }
    }

    /// What came since an earlier look.
    pub fn since(self, earlier: LockStats) -> LockStats {
        LockStats {
            acquired: self.acquired.saturating_sub(earlier.acquired),
            contended: self.contended.saturating_sub(earlier.contended),
            spun: self.spun.saturating_sub(earlier.spun),
        }
    }
}

/// Counts what is waited for at a mutex, on real threads: in virtual time nobody waits for a [`Mutex`].
/// Written only by who had to wait, and with the mutex taken: it costs nobody else anything.
pub struct Contended {
    times: AtomicU64,
    spun: AtomicU64,
}

impl Contended {
    /// Nobody has waited.
    #[cfg(not(feature = "loom"))]
    pub const fn new() -> Contended {
        Contended { times: AtomicU64::new(0), spun: AtomicU64::new(0) }
    }

    /// Nobody has waited; loom's atomics are made while a model runs.
    #[cfg(feature = "loom")]
    pub fn new() -> Contended {
        Contended { times: AtomicU64::new(0), spun: AtomicU64::new(0) }
    }

    /// Takes the mutex that this counts for.
    #[inline]
    pub fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        lock_or(mutex, |ns| self.add(ns))
    }

    fn add(&self, spun: u64) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.spun.fetch_add(spun, Ordering::Relaxed);
    }

    /// What was counted, of a mutex that was taken so many times.
    pub fn stats(&self, acquired: u64) -> LockStats {
        LockStats {
            acquired,
            contended: self.times.load(Ordering::Relaxed),
            spun: Ns::from_ns(self.spun.load(Ordering::Relaxed)),
        }
    }
}

impl Default for Contended {
    fn default() -> Contended {
        Contended::new()
    }
}

/// A spin lock around a value. In virtual time `with` charges the section's cost to the caller's
/// core and to the lock's own timeline; those who come meanwhile burn their cores until it is
/// theirs.
///
/// A hand-over costs `handoff_per_waiter` for each task at the lock: all of them poll one cache line,
/// and a release takes it from each. Whoever arrives pays for those ahead of it; that is the same in
/// sum as a price on each release for those who then wait, because a task with k ahead of it is there
/// for k releases. So a lock that more cores spin on passes less, where one that costs nothing to
/// hand over only stops growing.
///
/// With cost zero and nobody there it is a plain call. In virtual time a lock keeps points
/// of its run's clock: it must not outlive the run.
pub struct Lock<T> {
    free_at: AtomicU64,
    waiting: AtomicU64,
    contended: Contended,
    /// With the times it was taken through [`Lock::with`]: counted inside, where it costs nothing.
    value: Mutex<(T, u64)>,
}

impl<T> Lock<T> {
    /// A free lock.
    #[cfg(not(feature = "loom"))]
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            free_at: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            contended: Contended::new(),
            value: Mutex::new((value, 0)),
        }
    }

    /// A free lock; loom's are made while a model runs.
    #[cfg(feature = "loom")]
    pub fn new(value: T) -> Lock<T> {
        let zero = || AtomicU64::new(0);
        let (free_at, waiting, contended) = (zero(), zero(), Contended::new());
        Lock { free_at, waiting, contended, value: Mutex::new((value, 0)) }
    }

    /// Runs a straight-line section of the given CPU cost under the lock.
    #[inline]
    pub async fn with<R>(&self, cx: &Cx, cost: Ns, section: impl FnOnce(&mut T) -> R) -> R {
        if let Mode::Virtual(clock) = &cx.mode
            && (cost != Ns::ZERO || self.free_at.load(Ordering::Relaxed) > clock.now.get())
        {
            self.queue_virtually(cx, clock, cost).await;
        }
        self.enter(section)
    }

    /// What [`Lock::with`] does for a section that costs nothing while no section on this lock costs
    /// anything: there is nobody to wait for in virtual time.
    #[inline]
    pub fn enter<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
        let mut guard = self.contended.lock(&self.value);
        guard.1 += 1;
        section(&mut guard.0)
    }

    /// Waits for the core, then for the lock, then for the section's own time. The core comes
    /// first: a task whose core is still busy stands in nobody's way at the lock.
    async fn queue_virtually(&self, cx: &Cx, clock: &Clock, cost: Ns) {
        cx.turn().await;
        let now = clock.now.get();
        let free_at = self.free_at.load(Ordering::Relaxed);
        let waiting = self.waiting.load(Ordering::Relaxed);
        let contended = free_at > now;
        let handoff = if contended { clock.costs().handoff(waiting) } else { Ns::ZERO };
        let start = now.max(free_at);
        // Behind others even a free section ends 1 ns later: tasks that are ready at one instant
        // run in a drawn order, and sections must run in the order of arrival.
        let hold = (handoff + cost).as_ns().max((waiting > 0) as u64);
        let end = start + hold;
        self.free_at.store(end, Ordering::Relaxed);
        self.waiting.store(waiting + 1, Ordering::Relaxed);
        // Until the line that says so has reached it, a waiter spins although the lock is its own.
        let spun = start + handoff.as_ns() - now;
        if contended {
            self.contended.add(spun);
        }
        cx.occupy_until(end, spun);
        cx.sleep_until(Ns::from_ns(end)).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// A section that costs nothing in the model: statistics, set-up, tests, and steps whose cost
    /// the caller has charged already.
    #[inline]
    pub fn now<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
        section(&mut self.value.lock().0)
    }

    /// What the lock went through.
    pub fn stats(&self) -> LockStats {
        self.contended.stats(self.value.lock().1)
    }
}

/// Waiting for something that is no lock: how often, how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Times somebody had to wait.
    pub times: u64,
    /// How long those waited that got what they waited for.
    pub time: Ns,
}

impl Waits {
    /// Of both together.
    pub fn and(self, other: Waits) -> Waits {
        Waits { times: self.times + other.times, time: self.time + other.time }
    }

    /// What came since an earlier look.
    pub fn since(self, earlier: Waits) -> Waits {
        Waits {
            times: self.times.saturating_sub(earlier.times),
            time: self.time.saturating_sub(earlier.time),
        }
    }
}

/// Who waits for credits.
#[derive(Clone, Copy)]
struct Wanting {
    ticket: u64,
    credits: u64,
    who: Waiter,
    since: Ns,
}

struct CreditState {
    free: u64,
    /// Requests in order of arrival.
    queue: VecDeque<Wanting>,
    next_ticket: u64,
    /// Tickets below this have their credits.
    granted: u64,
    waits: Waits,
}

impl CreditState {
    const fn new(free: u64) -> CreditState {
        let waits = Waits { times: 0, time: Ns::ZERO };
        CreditState { free, queue: VecDeque::new(), next_ticket: 0, granted: 0, waits }
    }

    /// Serves the queue from its head for as long as the credits reach.
    fn grant(&mut self, cx: &Cx) {
        while let Some(next) = self.queue.front().copied() {
            if self.free < next.credits {
                break;
            }
            self.free -= next.credits;
            self.granted = next.ticket + 1;
            self.waits.time += cx.now().saturating_sub(next.since);
            self.queue.pop_front();
            cx.wake(next.who);
        }
    }
}

/// A counting semaphore: all or nothing, first come first served.
pub struct Credits {
    state: Mutex<CreditState>,
}

impl Credits {
    /// With `free` credits to begin with.
    #[cfg(not(feature = "loom"))]
    pub const fn new(free: u64) -> Credits {
        Credits { state: Mutex::new(CreditState::new(free)) }
    }

    /// With `free` credits to begin with; loom's are made while a model runs.
    #[cfg(feature = "loom")]
    pub fn new(free: u64) -> Credits {
        Credits { state: Mutex::new(CreditState::new(free)) }
    }

    /// Takes `n` credits now, or none; never overtakes somebody who waits.
    #[inline]
    pub fn try_acquire(&self, n: u64) -> bool {
        let mut s = self.state.lock();
        let ok = (s.queue.is_empty() || mutant!("rt.credits-overtake")) && s.free >= n;
        if ok {
            s.free -= n;
        }
        ok
    }

    /// Waits for `n` credits. Dropped before its end (a run that ends drops its tasks) it leaves
    /// the queue, or gives back what it had been granted.
    #[inline]
    pub fn acquire<'a>(&'a self, cx: &'a Cx, n: u64) -> Acquire<'a> {
        Acquire { credits: self, cx, n, ticket: None }
    }

    /// Gives credits back and wakes those whose turn it is.
    #[inline]
    pub fn release(&self, cx: &Cx, n: u64) {
        let mut s = self.state.lock();
        s.free += n;
        s.grant(cx);
    }

    /// Credits that nobody holds.
    pub fn free(&self) -> u64 {
        self.state.lock().free
    }

    /// How often credits were not there, and how long that took.
    pub fn waits(&self) -> Waits {
        self.state.lock().waits
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.state.lock().queue.len()
    }
}

/// Future of [`Credits::acquire`].
pub struct Acquire<'a> {
    credits: &'a Credits,
    cx: &'a Cx,
    n: u64,
    ticket: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let mut s = self.credits.state.lock();
        if let Some(ticket) = self.ticket {
            if s.granted <= ticket {
                return Poll::Pending;
            }
            drop(s);
            self.ticket = None;
            return Poll::Ready(());
        }
        if s.queue.is_empty() && s.free >= self.n {
            s.free -= self.n;
            return Poll::Ready(());
        }
        let ticket = s.next_ticket;
        s.next_ticket += 1;
        s.waits.times += 1;
        let (who, since) = (self.cx.waiter(), self.cx.now());
        s.queue.push_back(Wanting { ticket, credits: self.n, who, since });
        drop(s);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.leave(ticket);
        }
    }
}

impl Acquire<'_> {
    #[cold]
    fn leave(&self, ticket: u64) {
        let mut s = self.credits.state.lock();
        if s.granted > ticket && !mutant!("rt.credits-lost") {
            s.free += self.n;
        } else {
            s.queue.retain(|w| w.ticket != ticket);
        }
        s.grant(self.cx);
    }
}

/// A condition: tasks wait until a predicate holds, whoever may have changed it wakes them all.
#[derive(Default)]
pub struct Notify {
    waiters: Mutex<Vec<Waiter>>,
    any: AtomicBool,
}

impl Notify {
    /// Nobody waits.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Waits until `ready` holds. It is evaluated again after registering, so a wake-up between
    /// the check and the wait is not lost.
    #[inline]
    pub fn wait<'a, F: FnMut() -> bool>(&'a self, cx: &'a Cx, ready: F) -> Wait<'a, F> {
        Wait { notify: self, cx, ready }
    }

    /// Wakes everybody who waits. Cheap when nobody does.
    #[inline]
    pub fn wake(&self, cx: &Cx) {
        // Pairs with the one in `Wait::poll`: either we see the waiter, or it sees our change.
        if !mutant!("rt.wake-unfenced") {
            cx.fence();
        }
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        // Woken under the lock: `Cx::wake` takes no lock of a layer, and the list keeps its memory.
        let mut waiters = self.waiters.lock();
        self.any.store(false, Ordering::Relaxed);
        for w in waiters.drain(..) {
            cx.wake(w);
        }
    }
}

/// Future of [`Notify::wait`].
pub struct Wait<'a, F> {
    notify: &'a Notify,
    cx: &'a Cx,
    ready: F,
}

impl<F: FnMut() -> bool> Future for Wait<'_, F> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        // SAFETY: no field is structurally pinned: two references and a predicate that is only
        // called, never polled; nothing is moved out.
        let this = unsafe { self.get_unchecked_mut() };
        if (this.ready)() {
            return Poll::Ready(());
        }
        {
            let mut waiters = this.notify.waiters.lock();
            let me = this.cx.waiter();
            if !waiters.contains(&me) {
                waiters.push(me);
            }
            this.notify.any.store(true, Ordering::Relaxed);
        }
        if !mutant!("rt.wait-unfenced") {
            this.cx.fence();
        }
        let ready = !mutant!("rt.wait-looks-once") && (this.ready)();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }
}
