//! Real time: one thread per core, futures never migrate.
//!
//! Owns: the threads, their run queues and timers, and when a core looks at what has come for it
//! (its [`Inbox`], the files that it watches). Promises: a core polls its own tasks only; a wake-up
//! sent before a core goes to sleep is seen before it sleeps. Never: shares a future between threads.

use crate::cx::{CoreId, Cx, Mode, Waiter};
use crate::lateness::{Counted, Lateness};
use crate::local::Local;
use crate::outside::{Idle, Inbox};
use crate::platform::{
    AtomicBool, AtomicUsize, IDLE_SPINS, Ordering, RealClock, beside_threads, on_threads, spin_loop,
};
use crate::virt::Stalled;
use flashlane_base::Ns;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A core that is never idle looks at the files that it watches every so many turns.
const FILES_EVERY: u32 = 64;

struct Shared {
    clock: Arc<RealClock>,
    seed: u64,
    inboxes: Vec<Arc<Inbox>>,
    /// Of each core's timers.
    late: Vec<Counted>,
    /// Cores whose main task still runs; a core serves the others until all are done.
    running: AtomicUsize,
    /// A core panicked: the run is over.
    panicked: AtomicBool,
}

impl Shared {
    fn new(cores: u32, seed: u64) -> Arc<Shared> {
        let clock = Arc::new(RealClock::new(cores));
        let inbox = |core| Arc::new(Inbox::new(core, clock.clone()));
        Arc::new(Shared {
            seed,
            inboxes: (0..cores).map(inbox).collect(),
            late: (0..cores).map(|_| Counted::default()).collect(),
            clock: clock.clone(),
            running: AtomicUsize::new(cores as usize),
            panicked: AtomicBool::new(false),
        })
    }

    fn is_over(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0 || self.panicked.load(Ordering::SeqCst)
    }
}

/// What a context on a real core needs.
pub(crate) struct ThreadCore {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    /// The clock as of the last read: time never goes back within a core.
    last: Cell<u64>,
}

impl ThreadCore {
    pub(crate) fn now(&self) -> u64 {
        let t = self.shared.clock.now();
        self.last.set(self.last.get().max(t));
        self.last.get()
    }
    pub(crate) fn cores(&self) -> u32 {
        self.shared.inboxes.len() as u32
    }
    pub(crate) fn seed(&self) -> u64 {
        self.shared.seed
    }
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }
    pub(crate) fn inbox_of(&self, core: CoreId) -> &Arc<Inbox> {
        &self.shared.inboxes[core.0 as usize]
    }
    pub(crate) fn lateness(&self) -> Lateness {
        Lateness::of(self.shared.late.iter())
    }
    pub(crate) fn send_wake(&self, w: Waiter) {
        self.shared.inboxes[w.core as usize].wake(w.task);
    }
}

/// A run on real cores.
pub struct Threads {
    cores: u32,
    seed: u64,
}

impl Threads {
    /// On `cores` threads. The seed feeds the random streams only; real time is not repeatable.
    pub fn new(cores: u32, seed: u64) -> Threads {
        assert!(cores > 0, "a run needs a core");
        Threads { cores, seed }
    }

    /// Runs `main` once on each core and returns what each returned, in core order. A core whose
    /// main task has ended goes on serving its other tasks until every main task has ended.
    pub fn run<T, F, Fut>(&self, main: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Cx) -> Fut + Send + Sync,
        Fut: Future<Output = T> + 'static,
    {
        let shared = Shared::new(self.cores, self.seed);
        // All have ended before anything unwinds: a core that ended because another panicked has no
        // value, and the panic to report is the other's.
        let ended = on_threads(self.cores, |core| {
            let alone = false; // another core may wake this one, or a thread, whatever this one waits for
            run_core(CoreId(core), shared.clone(), alone, &main)
        });
        let values: Vec<_> = ended
            .into_iter()
            .map(|e| e.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        let all: Result<Vec<T>, Ended> = values.into_iter().collect();
        all.unwrap_or_else(|_| unreachable!("without a panic every main task ends"))
    }

    /// Runs `main` on the first core, which is this thread: nothing of it need be `Send`. The other cores do what
    /// they are sent ([`Cx::spawn_on`]), until `main` has ended. As in virtual time, a run of one core in which nothing
    /// can go on by itself asks its ports what to do.
    ///
    /// # Errors
    /// There is one core, every task waits, no timer is armed, and neither a port nor a file is waited for.
    pub fn run_here<T, Fut>(&self, main: impl FnOnce(Cx) -> Fut) -> Result<T, Stalled>
    where
        T: 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.run_here_until(main).map(|(value, _)| value)
    }

    /// As [`Threads::run_here`], with a time at which every core had ended.
    ///
    /// # Errors
    /// As there.
    pub fn run_here_until<T, Fut>(&self, main: impl FnOnce(Cx) -> Fut) -> Result<(T, Ns), Stalled>
    where
        T: 'static,
        Fut: Future<Output = T> + 'static,
    {
        let shared = Shared::new(self.cores, self.seed);
        let beside = |core| {
            let nothing = |_| std::future::ready(());
            let _: Result<(), Ended> = run_core(CoreId(core + 1), shared.clone(), false, nothing);
        };
        let (ended, others) = beside_threads(self.cores - 1, beside, || {
            run_core(CoreId(0), shared.clone(), self.cores == 1, main)
        });
        for other in others {
            other.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let over = Ns::from_ns(shared.clock.now());
        ended.map(|value| (value, over)).map_err(|ended| match ended {
            Ended::Stalled(stalled) => stalled,
            Ended::Panicked => unreachable!("a panic was passed on before"),
        })
    }
}

impl Cx {
    /// From here on each core of this run stays on a CPU of its own, and so do threads that they begin
    /// later; this thread does so beyond the end of the run. In virtual time there is nothing to do.
    ///
    /// # Errors
    /// This process may use fewer CPUs than the run has cores, or the kernel refuses.
    pub async fn pin_cores(&self) -> io::Result<()> {
        if self.is_virtual() {
            return Ok(());
        }
        for (core, cpu) in (0..self.cores()).zip(cpus_for(self.cores())?) {
            let pinned = self.spawn_join_on(CoreId(core), move |_| async move {
                let mut one = CpuSet::new();
                one.set(cpu);
                sched_setaffinity(None, &one)
            });
            pinned.await?;
        }
        Ok(())
    }
}

/// CPUs for so many cores, one each.
///
/// # Errors
/// This process may use fewer, or the kernel does not say.
pub fn cpus_for(cores: u32) -> io::Result<Vec<usize>> {
    let all = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    match cpus.len() {
        usable if usable < cores as usize => Err(io::Error::other(format!(
            "{cores} cores can't have a CPU each: this process may use {usable}"
        ))),
        _ => Ok(cpus),
    }
}

/// Why a core ended before its main task had.
enum Ended {
    /// A core panicked.
    Panicked,
    /// Nothing could go on.
    Stalled(Stalled),
}

/// Runs one core until every main task has ended. A core that is `alone` has no other to wait for.
fn run_core<T, Fut>(
    core: CoreId,
    shared: Arc<Shared>,
    alone: bool,
    main: impl FnOnce(Cx) -> Fut,
) -> Result<T, Ended>
where
    T: 'static,
    Fut: Future<Output = T> + 'static,
{
    let inbox = &shared.inboxes[core.0 as usize];
    inbox.owned_by_this_thread();
    let last = Cell::new(0);
    let thread = Rc::new(ThreadCore { shared: shared.clone(), inbox: inbox.clone(), last });
    let local = Rc::new(Local::default());
    let mode = Mode::Threads(thread.clone());
    let cx = Cx { core, urgent: false, local: local.clone(), mode };
    let _end = EndOfCore { shared: &shared, inbox, local: &local };
    let mut join = Box::pin(cx.spawn_join(main(cx.clone())));
    let mut value = None;
    let (mut idle, mut turns) = (0, 0u32);
    let mut batch = Vec::new();
    // Asked every turn: a task that is always ready must not keep a finished run alive.
    while !shared.is_over() {
        inbox.deliver(&local, || cx.clone());
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(FILES_EVERY)
            && let Some(reactor) = local.reactor.get()
        {
            reactor.look(&local);
        }
        if !local.timers.borrow().is_empty() || local.next_idle().is_some() {
            let late = &shared.late[core.0 as usize];
            local.fire_due(thread.now(), |ns| late.count(ns));
        }
        std::mem::swap(&mut batch, &mut *local.ready.borrow_mut());
        if batch.is_empty() {
            idle += 1;
            if idle < IDLE_SPINS {
                spin_loop();
            } else {
                let next = local.timers.borrow().next_at();
                if alone && next.is_none() && !inbox.is_rung() {
                    match local.ports.idle_or_files(&cx, &local) {
                        Idle::Changed => continue,
                        Idle::Waits => {}
                        Idle::Stalled => {
                            return Err(Ended::Stalled(Stalled {
                                now: Ns::from_ns(thread.now()),
                                tasks: local.alive(),
                                seed: shared.seed,
                            }));
                        }
                    }
                }
                inbox.sleep(&local, next.into_iter().chain(local.next_idle()).min());
            }
            continue;
        }
        idle = 0;
        local.ports.look_on(|| cx.clone());
        for task in batch.drain(..) {
            local.poll(task);
        }
        if value.is_none()
            && let Poll::Ready(v) = join.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            value = Some(v);
            shared.running.fetch_sub(1, Ordering::SeqCst);
            wake_all(&shared);
        }
    }
    value.ok_or(Ended::Panicked)
}

/// Ends a core, also by a panic: its tasks are dropped (they and their contexts hold each other),
/// and after a panic the others are told not to wait.
struct EndOfCore<'a> {
    shared: &'a Shared,
    inbox: &'a Inbox,
    local: &'a Local,
}

impl Drop for EndOfCore<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.panicked.store(true, Ordering::SeqCst);
            wake_all(self.shared);
        }
        // What is sent from now on is refused; what came before is dropped with the tasks.
        self.inbox.close();
        self.local.clear();
    }
}

fn wake_all(shared: &Shared) {
    shared.inboxes.iter().for_each(|inbox| inbox.wake_always());
}
