//! Virtual time: one thread, any number of simulated cores, time jumps from event to event.
//!
//! Owns: the clock, the cores' timelines, the seeded order of ready tasks, the fingerprint.
//! Promises: same seed and same program, same order of polls; tasks that are ready at one instant
//! run in a seeded random order, so nothing can come to depend on the order of wake-ups.
//! Never: looks at the machine's clock.

use crate::cost::CostTable;
use crate::cx::{CoreId, Cx, Mode};
use crate::local::Local;
use crate::mutex::RunHere;
use crate::outside::{Idle, Inbox};
use crate::platform::RealClock;
use crate::pooled::Pooled;
use flashlane_base::{Ns, Rng};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// Folds (time, task) of every poll: two runs that agree in it did the same things in the same
/// order. Printed by every report, compared by every test on a second run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Nothing can ever run again, yet the main task has not ended: a lost wake-up or a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the simulation stalled at {now}: {tasks} tasks wait and no timer is armed (a bug; please \
     report the seed {seed})"
)]
pub struct Stalled {
    /// When.
    pub now: Ns,
    /// Tasks that wait for something.
    pub tasks: usize,
    /// Seed of the run.
    pub seed: u64,
}

/// Polls after which the outside world is heard in the middle of a step: what costs no time can go on for
/// many.
const LOOK_EVERY: u64 = 4096;
/// Steps after which a run that watches files looks at them, and polls in a long step.
const FILES_EVERY: u64 = 64;

/// One simulated core: a timeline with a free-at, and those who wait for their turn on it.
#[derive(Default)]
struct Core {
    /// When its CPU is free again.
    free: u64,
    /// CPU time charged.
    busy: u64,
    /// Of that, spinning on locks.
    spun: u64,
    /// When the last spin on this core ends.
    spin_end: u64,
    /// Waiting for their turn, the urgent first, each kind in order of arrival. How long a spin lock
    /// will hold a core is known only when the core gets to it, so whoever comes behind such a claim
    /// can't be given an end yet and stands here. Empty as long as every claim knows its length.
    queue: VecDeque<Queued>,
    next_ticket: u64,
}

/// A task that waits for its turn on a core.
struct Queued {
    ticket: u64,
    task: u32,
    urgent: bool,
}

/// What a simulated core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// At work, spinning included.
    pub busy: Ns,
    /// Of that, spinning on locks.
    pub spun: Ns,
}

impl Core {
    /// What it has done by `now`. It is charged ahead: from now to `free` it will be busy without a
    /// break, and it spins, if at all, up to `spin_end`.
    fn time(&self, now: u64) -> CoreTime {
        CoreTime {
            busy: Ns::from_ns(self.busy - self.free.saturating_sub(now)),
            spun: Ns::from_ns(self.spun - self.spin_end.saturating_sub(now)),
        }
    }
}

/// State that all contexts of a virtual run share.
pub(crate) struct Clock {
    pub(crate) now: Cell<u64>,
    seed: u64,
    cores: RefCell<Vec<Core>>,
    costs: CostTable,
    /// Through which the outside world reaches the run.
    pub(crate) inbox: Arc<Inbox>,
}

impl Clock {
    pub(crate) fn cores(&self) -> u32 {
        self.cores.borrow().len() as u32
    }
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
    pub(crate) fn costs(&self) -> &CostTable {
        &self.costs
    }

    /// Takes the core for `cost` behind what it already owes; returns when that is done, or `None`
    /// when somebody ahead does not know yet how long it will take: then queue up. Urgent work goes
    /// before those.
    #[inline]
    pub(crate) fn occupy(&self, core: CoreId, cost: Ns, urgent: bool, local: &Local) -> Option<Ns> {
        let core = &mut self.cores.borrow_mut()[core.0 as usize];
        if !core.queue.is_empty() && !urgent {
            return None;
        }
        core.free = core.free.max(self.now.get()) + cost.as_ns();
        core.busy += cost.as_ns();
        self.call(core, local);
        Some(Ns::from_ns(core.free))
    }

    /// The core that has been idle longest, or else will be free first; of equals the one asking or
    /// the next behind it, round.
    pub(crate) fn first_free(&self, from: CoreId) -> CoreId {
        let cores = self.cores.borrow();
        let n = cores.len();
        let round = (0..n).map(|i| (from.0 as usize + i) % n);
        let first = round.min_by_key(|i| cores[*i].free);
        CoreId(first.expect("a run has a core") as u32)
    }

    /// What each core has done until now.
    pub(crate) fn core_times(&self) -> Vec<CoreTime> {
        self.cores.borrow().iter().map(|core| core.time(self.now.get())).collect()
    }

    /// True when the core has nothing to do and nobody waits for it.
    #[inline]
    pub(crate) fn is_idle(&self, core: CoreId) -> bool {
        let core = &self.cores.borrow()[core.0 as usize];
        core.queue.is_empty() && core.free <= self.now.get()
    }

    /// Queues `task` up for its core. The head of the queue is polled when the core is free.
    pub(crate) fn queue_up(&self, core: CoreId, task: u32, urgent: bool, local: &Local) -> u64 {
        let core = &mut self.cores.borrow_mut()[core.0 as usize];
        let ticket = core.next_ticket;
        core.next_ticket += 1;
        let ahead = |q: &Queued| q.urgent || !urgent;
        let at = core.queue.iter().rposition(ahead).map_or(0, |last| last + 1);
        core.queue.insert(at, Queued { ticket, task, urgent });
        if at == 0 {
            self.call(core, local);
        }
        ticket
    }

    /// Takes the turn if it is the ticket's; [`Clock::occupy_until`] must follow in the same poll.
    pub(crate) fn take_turn(&self, core: CoreId, ticket: u64) -> bool {
        let core = &mut self.cores.borrow_mut()[core.0 as usize];
        let mine = core.queue.front().is_some_and(|q| q.ticket == ticket);
        let turn = mine && core.free <= self.now.get();
        if turn {
            core.queue.pop_front();
        }
        turn
    }

    /// Gives a place in the queue up: the task was dropped before its turn.
    pub(crate) fn leave(&self, core: CoreId, ticket: u64, local: &Local) {
        let core = &mut self.cores.borrow_mut()[core.0 as usize];
        let was_head = core.queue.front().is_some_and(|q| q.ticket == ticket);
        core.queue.retain(|q| q.ticket != ticket);
        if was_head {
            self.call(core, local);
        }
    }

    /// The core, idle until now, spins and then works until `end`; `spun` of it was waiting for a
    /// lock.
    pub(crate) fn occupy_until(&self, core: CoreId, end: u64, spun: u64, local: &Local) {
        let core = &mut self.cores.borrow_mut()[core.0 as usize];
        debug_assert!(core.free <= self.now.get(), "a turn was taken on a busy core");
        core.busy += end - self.now.get();
        core.spun += spun;
        core.spin_end = self.now.get() + spun;
        core.free = end;
        self.call(core, local);
    }

    /// Has the head of the core's queue polled when the core is free.
    #[inline]
    fn call(&self, core: &Core, local: &Local) {
        if let Some(head) = core.queue.front() {
            let at = core.free.max(self.now.get());
            local.timers.borrow_mut().arm(at, head.task);
        }
    }
}

/// A virtual-time run.
pub struct Virtual {
    _here: RunHere,
    clock: Rc<Clock>,
    local: Rc<Local>,
    fingerprint: Cell<u64>,
    order: RefCell<Rng>,
    polls: Cell<u64>,
    /// Looks at the outside world while it watched files.
    looks: Cell<u64>,
}

impl Virtual {
    /// A run on `cores` simulated cores. `costs` says what CPU work costs ([`CostTable::zero`] for
    /// a host that costs nothing).
    pub fn new(cores: u32, seed: u64, costs: CostTable) -> Virtual {
        assert!(cores > 0, "a run needs a core");
        Virtual {
            _here: RunHere::begin(),
            clock: Rc::new(Clock {
                now: Cell::new(0),
                seed,
                cores: RefCell::new((0..cores).map(|_| Core::default()).collect()),
                costs,
                inbox: Arc::new(Inbox::new(0, Arc::new(RealClock::new(1)))),
            }),
            local: Rc::new(Local::default()),
            fingerprint: Cell::new(0xcbf2_9ce4_8422_2325),
            order: RefCell::new(Rng::stream(seed, "rt.order", 0)),
            polls: Cell::new(0),
            looks: Cell::new(0),
        }
    }

    /// The context of core 0.
    pub fn cx(&self) -> Cx {
        let mode = Mode::Virtual(self.clock.clone());
        Cx { core: CoreId(0), urgent: false, local: self.local.clone(), mode }
    }

    /// Runs until `main` returns; tasks that still wait then stay where they are and go on at the
    /// next call.
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> Result<T, Stalled> {
        let _ended = Ended::after(&self.clock.inbox);
        let out = Rc::new(RefCell::new(None));
        let theirs = out.clone();
        self.local.spawn(Pooled::new(async move {
            let value = main.await;
            *theirs.borrow_mut() = Some(value);
        }));
        let mut served = false;
        loop {
            while let Some(id) = self.next_ready() {
                self.note(id);
                if self.local.poll(id)
                    && let Some(value) = out.borrow_mut().take()
                {
                    return Ok(value);
                }
                if self.polls.get().is_multiple_of(LOOK_EVERY) {
                    self.hear();
                }
            }
            // Once per step: who rings without end does not keep time from passing.
            if !std::mem::replace(&mut served, true) && self.hear() {
                continue;
            }
            let now = self.clock.now.get();
            let next = self.local.timers.borrow().next_at();
            let bound = self.local.ports.bound().as_ns();
            if next.is_none() && bound == u64::MAX {
                // What came since this step was heard may be what the run waits for.
                if self.hear() && self.is_awake() {
                    continue;
                }
                match self.idle() {
                    Idle::Changed => {}
                    Idle::Waits => self.sleep(),
                    Idle::Stalled => {
                        return Err(Stalled {
                            now: Ns::from_ns(now),
                            tasks: self.local.alive(),
                            seed: self.clock.seed,
                        });
                    }
                }
                served = false;
                continue;
            }
            // What is due now comes first: a port stops time, not what happens at that time.
            if bound <= now && next.is_none_or(|at| at > now) {
                if !self.local.ports.serve_bounded(&self.cx()) {
                    self.sleep();
                }
                served = false;
                continue;
            }
            let at = next.unwrap_or(u64::MAX).min(bound);
            let at = self.local.next_idle().map_or(at, |idle| idle.min(at));
            debug_assert!(at >= now || bound < now, "time went back");
            self.clock.now.set(at.max(now));
            self.local.fire_due(self.clock.now.get(), |_| {});
            served = false;
        }
    }

    /// Lets the outside world in: true when something came, and tasks may be ready again.
    #[inline]
    fn hear(&self) -> bool {
        if let Some(reactor) = self.local.reactor.get() {
            self.looks.set(self.looks.get() + 1);
            if self.looks.get().is_multiple_of(FILES_EVERY) {
                reactor.look(&self.local);
            }
        }
        let came = self.clock.inbox.deliver(&self.local, || self.cx());
        self.local.ports.look_on(|| self.cx()) || came
    }

    fn is_awake(&self) -> bool {
        let is_ready = || !self.local.ready.borrow().is_empty();
        let is_armed = || self.local.timers.borrow().next_at().is_some();
        is_ready() || is_armed() || self.local.ports.bound() != Ns::MAX
    }

    /// Nothing is ready and no timer is armed.
    #[cold]
    fn idle(&self) -> Idle {
        self.local.ports.idle_or_files(&self.cx(), &self.local)
    }

    /// Until the outside world has something to say, in real time.
    #[cold]
    fn sleep(&self) {
        self.clock.inbox.sleep(&self.local, None);
    }

    #[inline]
    fn next_ready(&self) -> Option<u32> {
        let mut ready = self.local.ready.borrow_mut();
        match ready.len() {
            0 | 1 => ready.pop(),
            n => {
                let i = self.order.borrow_mut().below(n as u64) as usize;
                Some(ready.swap_remove(i))
            }
        }
    }

    #[inline]
    fn note(&self, task: u32) {
        // Task ids have 24 bits; the times below them rarely reach up there (2^40 ns are 18 min).
        let f = self.fingerprint.get() ^ self.clock.now.get() ^ (task as u64) << 40;
        self.fingerprint.set(f.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        self.polls.set(self.polls.get() + 1);
    }

    /// Fingerprint of everything that ran so far.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.fingerprint.get())
    }

    /// Virtual time.
    pub fn now(&self) -> Ns {
        Ns::from_ns(self.clock.now.get())
    }

    /// Task polls so far: the events of this simulation.
    pub fn polls(&self) -> u64 {
        self.polls.get()
    }

    /// CPU time charged per core, also what it will only be done with later: (busy, of which
    /// spinning on locks). What was done by now: [`Virtual::core_times`].
    pub fn core_busy(&self) -> Vec<(Ns, Ns)> {
        let cores = self.clock.cores.borrow();
        cores.iter().map(|c| (Ns::from_ns(c.busy), Ns::from_ns(c.spun))).collect()
    }

    /// What each core has done until now: never more than the time that has passed.
    pub fn core_times(&self) -> Vec<CoreTime> {
        self.clock.core_times()
    }
}

/// A run is under way until this is dropped: who sends it something afterwards is told.
struct Ended<'a>(&'a Inbox);

impl<'a> Ended<'a> {
    fn after(inbox: &'a Inbox) -> Ended<'a> {
        inbox.reopen();
        Ended(inbox)
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Drop for Virtual {
    fn drop(&mut self) {
        self.clock.inbox.close();
        self.local.clear();
    }
}
