//! The per-core context that every layer is handed.
//!
//! Owns: the answer to "what time is it, which core am I, who else runs here".
//! Promises: `now` never goes back; `sleep_until` never returns early; a spawned task stays on its
//! core. Never: crosses threads (`Cx` is neither `Send` nor `Sync`).

use crate::lateness::Lateness;
use crate::local::Local;
use crate::pooled::Pooled;
use crate::threads::ThreadCore;
use crate::virt::{Clock, CoreTime};
use flashlane_base::{Ns, Rng};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A core of the host, simulated or real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u32);

/// Who waits: a task on a core. What `Notify` and the device keep to wake somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub(crate) core: u32,
    pub(crate) task: u32,
}

#[derive(Clone)]
pub(crate) enum Mode {
    Virtual(Rc<Clock>),
    Threads(Rc<ThreadCore>),
}

/// The context of one core. Cheap to clone.
#[derive(Clone)]
pub struct Cx {
    pub(crate) core: CoreId,
    /// Its CPU work goes before what waits for a turn on the core.
    pub(crate) urgent: bool,
    pub(crate) local: Rc<Local>,
    pub(crate) mode: Mode,
}

impl Cx {
    /// The core this context belongs to.
    #[inline]
    pub fn core(&self) -> CoreId {
        self.core
    }

    /// Cores of this run.
    pub fn cores(&self) -> u32 {
        match &self.mode {
            Mode::Virtual(c) => c.cores(),
            Mode::Threads(t) => t.cores(),
        }
    }

    /// True when time is simulated.
    #[inline]
    pub fn is_virtual(&self) -> bool {
        matches!(self.mode, Mode::Virtual(_))
    }

    /// Time since the run began.
    #[inline]
    pub fn now(&self) -> Ns {
        Ns::from_ns(match &self.mode {
            Mode::Virtual(c) => c.now.get(),
            Mode::Threads(t) => t.now(),
        })
    }

    /// The same executor seen from another core; only the virtual executor has several in a thread.
    pub fn on_core(&self, core: CoreId) -> Cx {
        assert!(self.is_virtual() || core == self.core, "a real core is reached through its inbox");
        assert!(core.0 < self.cores(), "core {} of {}", core.0, self.cores());
        Cx { core, ..self.clone() }
    }

    /// How late the timers of this run's cores were until now; nothing in virtual time, where none is.
    pub fn lateness(&self) -> Lateness {
        match &self.mode {
            Mode::Virtual(_) => Lateness::default(),
            Mode::Threads(t) => t.lateness(),
        }
    }

    /// As a thread that sleeps most of the time and that the scheduler may put anywhere sees it: the
    /// core that has been idle longest, or else is free first, and there before the threads that wait. For a burst of work: ask again
    /// for the next. A real thread stays where it is.
    pub fn floating(&self) -> Cx {
        match &self.mode {
            Mode::Virtual(c) => self.on_core(c.first_free(self.core)).urgent(),
            Mode::Threads(_) => self.clone(),
        }
    }

    /// This core, and there before the threads that wait for it (whoever holds it, also to spin,
    /// keeps it): what an interrupt gets, and a scheduler gives a thread bound to its core that sleeps
    /// most of the time.
    pub fn urgent(mut self) -> Cx {
        self.urgent = true;
        self
    }

    /// What each simulated core has done until now; nothing on real threads, where the system knows.
    pub fn core_times(&self) -> Vec<CoreTime> {
        match &self.mode {
            Mode::Virtual(c) => c.core_times(),
            Mode::Threads(_) => Vec::new(),
        }
    }

    /// The random stream `name` of this run, one per core. The caller keeps it: asking twice gives
    /// the same numbers twice.
    pub fn stream(&self, name: &str) -> Rng {
        let seed = match &self.mode {
            Mode::Virtual(c) => c.seed(),
            Mode::Threads(t) => t.seed(),
        };
        Rng::stream(seed, name, self.core.0 as u64)
    }

    /// A sequentially consistent fence; nothing in virtual time, where one thread runs everything.
    #[inline]
    pub fn fence(&self) {
        if !self.is_virtual() {
            crate::platform::fence(crate::platform::Ordering::SeqCst);
        }
    }

    /// Who is running now, to be woken later.
    #[inline]
    pub fn waiter(&self) -> Waiter {
        Waiter { core: self.core.0, task: self.local.current.get() }
    }

    /// Makes a task run again, on whatever core it lives.
    #[inline]
    pub fn wake(&self, w: Waiter) {
        match &self.mode {
            Mode::Threads(t) if w.core != self.core.0 => t.send_wake(w),
            _ => self.local.wake(w.task),
        }
    }

    /// Has the current task polled again at `at` (or before, for another reason). [`Ns::MAX`] is
    /// never: it arms nothing, so a run in which everybody waits for it is seen to have stalled.
    #[inline]
    pub fn arm(&self, at: Ns) {
        if at == Ns::MAX {
            return;
        }
        self.local.timers.borrow_mut().arm(at.as_ns(), self.local.current.get());
    }

    /// As [`Cx::arm`], for who looks after something in idle time and whom nobody waits for: it keeps
    /// no run alive. A run in which nothing else is armed has stalled.
    pub fn arm_idle(&self, at: Ns) {
        if at != Ns::MAX {
            let at = at.max(self.now());
            self.local.arm_idle(at.as_ns(), self.local.current.get());
        }
    }

    /// Sleeps until the clock reads `at` or later.
    #[inline]
    pub fn sleep_until(&self, at: Ns) -> Sleep<'_> {
        Sleep { cx: self, at, armed: false }
    }

    /// Sleeps for a span; [`Ns::MAX`] is for ever.
    #[inline]
    pub fn sleep(&self, span: Ns) -> Sleep<'_> {
        let at = self.now().as_ns().saturating_add(span.as_ns());
        self.sleep_until(Ns::from_ns(at))
    }

    /// Lets other ready tasks run. Time does not pass. Real threads: each of them runs before this
    /// one. Virtual time: who is next is drawn, as always, so yield again until what you wait for
    /// has happened.
    pub fn yield_now(&self) -> Yield<'_> {
        Yield { cx: self, done: false }
    }

    /// Charges CPU work to this core, now; await the result to have it done. Virtual time: the core
    /// is busy until it is done, and what other tasks of the core ask for later waits behind it, in
    /// order. Real threads: the work costs what it costs. Zero costs nothing, not even a poll.
    #[inline]
    pub fn cpu(&self, cost: Ns) -> Cpu<'_> {
        let (turn, end) = match &self.mode {
            Mode::Virtual(c) if cost != Ns::ZERO => {
                match c.occupy(self.core, cost, self.urgent, &self.local) {
                    Some(end) => (None, end),
                    None => (Some(self.turn()), Ns::ZERO),
                }
            }
            _ => (None, Ns::ZERO),
        };
        Cpu { turn, cost, done: self.sleep_until(end) }
    }

    /// As [`Cx::cpu`], with a look at something at the moment when the core begins with the work, behind
    /// what it has to do before; returns what was seen.
    pub async fn cpu_seeing<R>(&self, cost: Ns, look: impl FnOnce() -> R) -> R {
        let (mut work, mut look, mut seen) = (self.cpu(cost), Some(look), None);
        std::future::poll_fn(|context| {
            let done = Pin::new(&mut work).poll(context);
            if work.turn.is_none()
                && let Some(look) = look.take()
            {
                seen = Some(look());
            }
            done
        })
        .await;
        seen.expect("work that is done had begun")
    }

    /// Waits until the simulated core gets to this task. Whoever has the turn says at once, in the
    /// same poll, how long it keeps the core: [`Cx::occupy_until`].
    #[inline]
    pub(crate) fn turn(&self) -> Turn<'_> {
        let ticket = match &self.mode {
            Mode::Virtual(c) if !c.is_idle(self.core) => {
                Some(c.queue_up(self.core, self.local.current.get(), self.urgent, &self.local))
            }
            _ => None,
        };
        Turn { cx: self, ticket }
    }

    /// Keeps the core, whose turn this task has, until `end`; `spun` of it was waiting for a lock.
    #[inline]
    pub(crate) fn occupy_until(&self, end: u64, spun: u64) {
        if let Mode::Virtual(c) = &self.mode {
            c.occupy_until(self.core, end, spun, &self.local);
        }
    }

    /// Starts a task on this core. It runs to its end, unless the run ends first.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.local.spawn(Pooled::new(future));
    }

    /// Starts a task that has nothing to do before `at`: it is polled then, as if it slept first.
    /// Like any other it tolerates being polled before.
    #[inline]
    pub fn spawn_at(&self, at: Ns, future: impl Future<Output = ()> + 'static) {
        let id = self.local.take_in(Pooled::new(future));
        if at <= self.now() {
            self.local.wake(id);
        } else if at != Ns::MAX {
            self.local.timers.borrow_mut().arm(at.as_ns(), id);
        }
    }

    /// Starts a task and lets the caller wait for what it returns.
    pub fn spawn_join<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Join<T> {
        let shared = Rc::new(JoinState { value: RefCell::new(None), waiter: Cell::new(None) });
        let (cx, theirs) = (self.clone(), shared.clone());
        self.spawn(async move {
            let value = future.await;
            *theirs.value.borrow_mut() = Some(value);
            if let Some(w) = theirs.waiter.take() {
                cx.wake(w);
            }
        });
        Join { cx: self.clone(), shared }
    }
}

/// Future of [`Cx::sleep_until`].
pub struct Sleep<'a> {
    cx: &'a Cx,
    at: Ns,
    armed: bool,
}

impl Future for Sleep<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.at == Ns::ZERO || self.cx.now() >= self.at {
            return Poll::Ready(());
        }
        if !self.armed {
            self.armed = true;
            self.cx.arm(self.at);
        }
        Poll::Pending
    }
}

/// A place in the queue for a simulated core.
pub(crate) struct Turn<'a> {
    cx: &'a Cx,
    /// `None` when the turn has come.
    ticket: Option<u64>,
}

impl Future for Turn<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if let (Some(ticket), Mode::Virtual(c)) = (self.ticket, &self.cx.mode)
            && !c.take_turn(self.cx.core, ticket)
        {
            return Poll::Pending;
        }
        self.ticket = None;
        Poll::Ready(())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A run that ends drops tasks that wait; a head that never comes would block its core.
        if let (Some(ticket), Mode::Virtual(c)) = (self.ticket, &self.cx.mode) {
            c.leave(self.cx.core, ticket, &self.cx.local);
        }
    }
}

/// Future of [`Cx::cpu`].
#[must_use = "work that is not awaited is done by nobody"]
pub struct Cpu<'a> {
    /// Set while somebody ahead does not know yet how long it will take.
    turn: Option<Turn<'a>>,
    cost: Ns,
    done: Sleep<'a>,
}

impl Future for Cpu<'_> {
    type Output = ();
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.turn.is_none() && this.done.at == Ns::ZERO {
            return Poll::Ready(()); // work that costs nothing
        }
        this.poll_work(context)
    }
}

impl Cpu<'_> {
    fn poll_work(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let this = self;
        if let Some(turn) = &mut this.turn {
            if Pin::new(turn).poll(context).is_pending() {
                return Poll::Pending;
            }
            this.turn = None;
            this.done.at = this.done.cx.now() + this.cost;
            this.done.cx.occupy_until(this.done.at.as_ns(), 0);
        }
        Pin::new(&mut this.done).poll(context)
    }
}

/// Future of [`Cx::yield_now`].
pub struct Yield<'a> {
    cx: &'a Cx,
    done: bool,
}

impl Future for Yield<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.done {
            return Poll::Ready(());
        }
        self.done = true;
        self.cx.wake(self.cx.waiter());
        Poll::Pending
    }
}

struct JoinState<T> {
    value: RefCell<Option<T>>,
    waiter: Cell<Option<Waiter>>,
}

/// Waits for a task of [`Cx::spawn_join`]. Dropping it lets the task run on unobserved.
#[must_use = "a join that is not awaited loses the task's result"]
pub struct Join<T> {
    cx: Cx,
    shared: Rc<JoinState<T>>,
}

impl<T> Future for Join<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match self.shared.value.borrow_mut().take() {
            Some(v) => Poll::Ready(v),
            None => {
                self.shared.waiter.set(Some(self.cx.waiter()));
                Poll::Pending
            }
        }
    }
}
