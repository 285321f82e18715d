//! The outside world of a run: threads, sockets and processes that the run's clock does not drive.
//!
//! Owns: ports ([`Port`]) and the bells that call them ([`Bell`]), work that another thread sends to
//! a core ([`Remote`]), and the inbox of a core, through which everything reaches it. Promises: the
//! same on both clocks; whatever comes in is handled on its core, between two polls, when no lock is
//! held; a core to which nothing comes pays one load per turn; a port that only looks at things does
//! not change a virtual run, not even its fingerprint. Never: reads a socket (that is
//! [`crate::reactor`]'s, or a thread's of the owner).

use crate::cx::{CoreId, Cx, Mode};
use crate::local::Local;
use crate::platform::{AtomicBool, InboxMutex as Mutex, Ordering, RealClock, Thread, current};
use crate::reactor::Alarm;
use crate::reply::{self, Reply};
use crate::sync::Notify;
use flashlane_base::{Ns, mutant};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// A door to the outside world, on one core of a run.
pub trait Port {
    /// Its bell has been rung since the last call. Rings that come during this call lead to another one.
    fn serve(&mut self, cx: &Cx);

    /// Virtual time stops at this moment, behind all that happens then, for as long as this is not later. A port with a
    /// bound is served there and nowhere else, so that a run does not depend on when its bell was rung; whoever also
    /// wants to be heard at once opens another port. [`Ns::MAX`] is no bound. Asked when the port opens, and after
    /// each call of any port; it must not open or close ports. Real time does not stop.
    fn bound(&self) -> Ns;

    /// Every task waits, and no timer is armed. What should happen now? Asked in virtual time, and on a real core that
    /// is alone; among several real cores another one may go on.
    fn idle(&mut self, cx: &Cx) -> Idle;

    /// It only looks on: its bell wakes nobody. The port is served while others run, at most once per step of a virtual
    /// run and per turn of a real core; so it may ring itself again and again and does not keep a core from sleeping.
    /// Asked when the port opens. Such a port has no bound.
    fn looks_on(&self) -> bool {
        false
    }
}

/// What a port does about a run in which nothing can go on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Nothing. If all ports say so the run ends as stalled.
    Stalled,
    /// The port has changed something: the run goes on.
    Changed,
    /// The outside world may ring: the run sleeps until it does.
    Waits,
}

/// Calls one port. Any thread may ring it, at any time, also before its port is open.
#[derive(Clone, Default)]
pub struct Bell(Arc<BellState>);

#[derive(Default)]
struct BellState {
    rung: AtomicBool,
    /// Where its port is open.
    inbox: Mutex<Option<Door>>,
}

/// Where a port is open.
#[derive(Clone)]
struct Door {
    inbox: Arc<Inbox>,
    /// Its port only looks on.
    looks_on: bool,
}

impl Door {
    fn ring(&self) {
        if !self.looks_on || mutant!("rt.looker-keeps-awake") {
            self.inbox.ring();
        }
    }
}

impl Bell {
    /// Has the port served soon. Rings that come before it is served lead to one call. A ring that no port has heard
    /// is heard by the next one that is opened for this bell.
    pub fn ring(&self) {
        if mutant!("rt.bell-looked-at-first") {
            let before = self.0.inbox.lock().clone();
            let rung = self.0.rung.swap(true, Ordering::SeqCst);
            return before.filter(|_| !rung).iter().for_each(Door::ring);
        }
        // Rung first: a port that opens between the two steps finds that it was.
        if !self.0.rung.swap(true, Ordering::SeqCst)
            && let Some(door) = self.0.inbox.lock().as_ref()
        {
            door.ring();
        }
    }
}

/// Keeps a port open.
#[must_use = "dropping it closes the port"]
pub struct Opened {
    local: Rc<Local>,
    id: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.local.ports.close(self.id);
    }
}

impl Cx {
    /// Opens `port` on this core: it is served whenever `bell` is rung. Ports are served in the order in which they
    /// were opened.
    ///
    /// # Panics
    /// The bell has a port that is open.
    pub fn open_port(&self, bell: &Bell, port: impl Port + 'static) -> Opened {
        let inbox = self.inbox();
        inbox.owned_by_this_thread();
        let door = Door { inbox: inbox.clone(), looks_on: port.looks_on() };
        let before = bell.0.inbox.lock().replace(door.clone());
        assert!(before.is_none(), "a bell calls one port: close the other first");
        let id = self.local.ports.open(self.core(), bell.clone(), Box::new(port));
        // It may have been rung before it knew whom to tell.
        if bell.0.rung.load(Ordering::SeqCst) && !mutant!("rt.early-ring-unheard") {
            door.ring();
        }
        Opened { local: self.local.clone(), id }
    }

    /// A handle through which any thread can have this core do something.
    pub fn remote(&self) -> Remote {
        let inbox = self.inbox();
        inbox.owned_by_this_thread();
        Remote { core: self.core(), inbox: inbox.clone() }
    }

    /// A handle through which another core of this run can be had to do something.
    fn remote_of(&self, core: CoreId) -> Remote {
        let inbox = match &self.mode {
            Mode::Virtual(clock) => &clock.inbox,
            Mode::Threads(thread) => thread.inbox_of(core),
        };
        Remote { core, inbox: inbox.clone() }
    }

    /// Starts a task on a core of this run, which may be this one. The future is made there, and need not be
    /// `Send`. If the run ends before, the task is dropped.
    pub fn spawn_on<F>(&self, core: CoreId, start: impl FnOnce(Cx) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        if core == self.core() {
            return self.spawn(start(self.clone()));
        }
        // It is refused only when the run is over, and then nobody waits for it.
        let _ = self.remote_of(core).call(move |cx| cx.spawn(start(cx.clone())));
    }

    /// The same, and lets a task of this core wait for what it returns.
    pub fn spawn_join_on<T, F, S>(
        &self,
        core: CoreId,
        start: S,
    ) -> impl Future<Output = T> + use<T, F, S>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        S: FnOnce(Cx) -> F + Send + 'static,
    {
        let (value, done) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
        let (their_value, they_are_done) = (value.clone(), done.clone());
        let theirs = move |cx: Cx| async move {
            let returned = start(cx.clone()).await;
            *their_value.lock() = Some(returned);
            they_are_done.wake(&cx);
        };
        self.spawn_on(core, theirs);
        let cx = self.clone();
        async move {
            let mut returned = None;
            let take = || {
                returned = value.lock().take();
                returned.is_some()
            };
            done.wait(&cx, take).await;
            returned.expect("what was waited for")
        }
    }

    /// Through which the world reaches this core; in virtual time, this run.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        match &self.mode {
            Mode::Virtual(clock) => &clock.inbox,
            Mode::Threads(thread) => thread.inbox(),
        }
    }

    /// The same executor as that core sees it: real cores see their own only.
    fn seen_from(&self, core: CoreId) -> Cx {
        if core == self.core { self.clone() } else { self.on_core(core) }
    }
}

/// The run that was to do something has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run has ended")]
pub struct Gone;

/// What another thread has a core do.
type Job = Box<dyn FnOnce(&Cx) + Send>;

/// Has a core do something, from any thread.
#[derive(Clone)]
pub struct Remote {
    core: CoreId,
    inbox: Arc<Inbox>,
}

impl Remote {
    /// Calls `job` on the core, between two polls. Jobs of one thread are called in the order in which they
    /// were sent.
    ///
    /// # Errors
    /// The run has ended: on threads all main tasks have, in virtual time the last call of `Virtual::run` has
    /// returned. When it ends before the job was called, the job is dropped.
    pub fn call(&self, job: impl FnOnce(&Cx) + Send + 'static) -> Result<(), Gone> {
        let core = self.core;
        let job: Job = Box::new(move |cx| job(&cx.seen_from(core)));
        let early = mutant!("rt.flag-before-the-job");
        if early {
            self.inbox.ring();
        }
        {
            let mut letters = self.inbox.letters.lock();
            if letters.closed {
                return Err(Gone);
            }
            letters.jobs.push(job);
        }
        if !early {
            self.inbox.ring();
        }
        Ok(())
    }

    /// Starts a task on the core. The future is made there, and need not be `Send`.
    pub fn submit<T, F>(&self, start: impl FnOnce(Cx) -> F + Send + 'static) -> Pending<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, reply) = reply::pair();
        // If the run has ended, or ends before the task has, `sender` is dropped, and `wait` says so.
        let _ = self.call(move |cx| {
            let future = start(cx.clone());
            cx.spawn(async move { sender.send(future.await) });
        });
        Pending(reply)
    }
}

/// What a task of [`Remote::submit`] will return.
#[must_use = "without it nobody hears what came of the task"]
pub struct Pending<T>(Reply<T>);

impl<T> Pending<T> {
    /// Blocks this thread, which must not be a core's, until the task has ended.
    ///
    /// # Errors
    /// The run ended before, and its tasks were dropped: a `Virtual` keeps those that have begun until the next
    /// call of `run`, or its own end.
    pub fn wait(self) -> Result<T, Gone> {
        self.0.wait().ok_or(Gone)
    }
}

/// What has come for a core.
#[derive(Default)]
struct Letters {
    /// Tasks to wake.
    tasks: Vec<u32>,
    jobs: Vec<Job>,
    /// The run is over.
    closed: bool,
}

/// Whose core it is.
struct Owner {
    thread: Thread,
    /// Wakes it where it waits for files instead of sleeping.
    alarm: Option<Alarm>,
}

/// Through which everything reaches a core that does not come from the core itself. A virtual run has one for all its
/// simulated cores.
pub(crate) struct Inbox {
    core: u32,
    letters: Mutex<Letters>,
    /// Something has come: a letter, or the ring of a bell.
    any: AtomicBool,
    owner: Mutex<Option<Owner>>,
    clock: Arc<RealClock>,
}

impl Inbox {
    pub(crate) fn new(core: u32, clock: Arc<RealClock>) -> Inbox {
        Inbox {
            core,
            clock,
            letters: Mutex::default(),
            any: AtomicBool::new(false),
            owner: Mutex::new(None),
        }
    }

    /// From now on this thread is woken.
    pub(crate) fn owned_by_this_thread(&self) {
        let mut owner = self.owner.lock();
        if owner.is_none() {
            *owner = Some(Owner { thread: current(), alarm: None });
        }
    }

    /// The thread waits for files from now on.
    pub(crate) fn wakes_by(&self, alarm: Alarm) {
        self.owned_by_this_thread();
        if let Some(owner) = self.owner.lock().as_mut() {
            owner.alarm = Some(alarm);
        }
    }

    /// Another core wakes a task.
    pub(crate) fn wake(&self, task: u32) {
        let early = mutant!("rt.flag-before-the-task");
        if !early {
            self.letters.lock().tasks.push(task);
        }
        let was = self.any.swap(true, Ordering::SeqCst);
        if early {
            self.letters.lock().tasks.push(task);
        }
        if !was {
            self.wake_owner();
        }
    }

    /// Has the core look at what has come.
    pub(crate) fn ring(&self) {
        if !self.any.swap(true, Ordering::SeqCst) {
            self.wake_owner();
        }
    }

    /// The same, whether or not something has come before: it may be asleep all the same.
    pub(crate) fn wake_always(&self) {
        self.any.store(true, Ordering::SeqCst);
        self.wake_owner();
    }

    fn wake_owner(&self) {
        if let Some(owner) = self.owner.lock().as_ref() {
            self.clock.unpark(self.core, &owner.thread);
            if let Some(alarm) = &owner.alarm {
                alarm.ring();
            }
        }
    }

    /// Has anything come?
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Handles what has come; true if something had. The flag goes down before the letters are taken: one
    /// that comes between the two raises it again.
    #[inline]
    pub(crate) fn deliver(&self, local: &Local, cx: impl FnOnce() -> Cx) -> bool {
        if mutant!("rt.list-before-the-flag") {
            let came = self.take_letters(local, cx);
            self.any.store(false, Ordering::SeqCst);
            return came;
        }
        if self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::SeqCst) {
            return self.take_letters(local, cx);
        }
        false
    }

    fn take_letters(&self, local: &Local, cx: impl FnOnce() -> Cx) -> bool {
        let mut jobs = {
            let mut letters = self.letters.lock();
            letters.tasks.drain(..).for_each(|task| local.wake(task));
            std::mem::take(&mut letters.jobs)
        };
        if mutant!("rt.jobs-out-of-order") {
            jobs.reverse();
        }
        if !jobs.is_empty() || local.ports.are_open() {
            let cx = cx();
            jobs.into_iter().for_each(|job| job(&cx));
            local.ports.serve(&cx);
        }
        true
    }

    /// The core sleeps until something comes or its next timer is near: in real time.
    pub(crate) fn sleep(&self, local: &Local, next: Option<u64>) {
        if self.is_rung() {
            return;
        }
        match local.reactor.get() {
            Some(reactor) => reactor.wait(local, self.clock.nap(next)),
            None => self.clock.park(self.core, next),
        }
    }

    /// A virtual run goes on.
    pub(crate) fn reopen(&self) {
        self.letters.lock().closed = false;
    }

    /// The run is over: who sends something is told.
    pub(crate) fn close(&self) {
        if mutant!("rt.closed-in-two-steps") {
            let jobs = std::mem::take(&mut self.letters.lock().jobs);
            self.letters.lock().closed = true;
            return drop(jobs);
        }
        // In one step: a job is taken here, or refused.
        let jobs = {
            let mut letters = self.letters.lock();
            letters.closed = !mutant!("rt.jobs-behind-the-end");
            std::mem::take(&mut letters.jobs)
        };
        drop(jobs);
    }
}

/// The open ports of an executor.
pub(crate) struct Ports {
    /// In the order in which they were opened.
    open: RefCell<Vec<Entry>>,
    opened: Cell<u64>,
    /// The earliest time at which one of them stops the clock.
    bound: Cell<Ns>,
    /// How many of them only look on.
    lookers: Cell<u32>,
}

struct Entry {
    id: u64,
    core: CoreId,
    bell: Bell,
    looks_on: bool,
    /// Not here while it is being called.
    port: Option<Box<dyn Port>>,
}

impl Entry {
    fn is_bounded(&self) -> bool {
        let bounded = |port: &dyn Port| port.bound() != Ns::MAX;
        !mutant!("rt.bound-served-early") && self.port.as_deref().is_some_and(bounded)
    }
}

impl Default for Ports {
    fn default() -> Ports {
        Ports {
            open: RefCell::default(),
            opened: Cell::new(0),
            bound: Cell::new(Ns::MAX),
            lookers: Cell::new(0),
        }
    }
}

impl Ports {
    fn open(&self, core: CoreId, bell: Bell, port: Box<dyn Port>) -> u64 {
        let id = self.opened.get() + 1;
        self.opened.set(id);
        let looks_on = port.looks_on();
        self.lookers.set(self.lookers.get() + u32::from(looks_on));
        self.open.borrow_mut().push(Entry { id, core, bell, looks_on, port: Some(port) });
        self.find_bound();
        id
    }

    fn close(&self, id: u64) {
        let gone: Vec<Entry> = self.open.borrow_mut().extract_if(.., |e| e.id == id).collect();
        for entry in &gone {
            *entry.bell.0.inbox.lock() = None;
            self.lookers.set(self.lookers.get() - u32::from(entry.looks_on));
            if mutant!("rt.close-forgets-the-ring") {
                entry.bell.0.rung.store(false, Ordering::SeqCst);
            }
        }
        // Its end may open or close others.
        drop(gone);
        self.find_bound();
    }

    /// Drops all of them: they may hold contexts, and contexts hold this.
    pub(crate) fn clear(&self) {
        let gone = self.open.take();
        for entry in &gone {
            *entry.bell.0.inbox.lock() = None;
        }
        self.lookers.set(0);
        drop(gone);
        self.bound.set(Ns::MAX);
    }

    #[inline]
    pub(crate) fn are_open(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    /// The earliest time at which one of them stops a virtual clock.
    #[inline]
    pub(crate) fn bound(&self) -> Ns {
        self.bound.get()
    }

    fn find_bound(&self) {
        let open = self.open.borrow();
        let bounds = open.iter().filter_map(|e| e.port.as_ref()).map(|port| port.bound());
        self.bound.set(bounds.min().unwrap_or(Ns::MAX));
    }

    /// Serves those whose bells were rung.
    fn serve(&self, cx: &Cx) {
        let at_once = |e: &Entry| !e.looks_on && (!cx.is_virtual() || !e.is_bounded());
        self.serve_those(cx, at_once);
    }

    /// Others run: serves those that look on, where their bells were rung. True when one was.
    #[inline]
    pub(crate) fn look_on(&self, cx: impl FnOnce() -> Cx) -> bool {
        self.lookers.get() > 0 && self.serve_those(&cx(), |e| e.looks_on)
    }

    /// Virtual time stands at a bound: serves the ports that have stopped it, where their bells were rung.
    /// True when one was.
    pub(crate) fn serve_bounded(&self, cx: &Cx) -> bool {
        let now = cx.now();
        let stops = |e: &Entry| e.port.as_ref().is_some_and(|port| port.bound() <= now);
        self.serve_those(cx, |e| !e.looks_on && stops(e))
    }

    fn serve_those(&self, cx: &Cx, meant: impl Fn(&Entry) -> bool) -> bool {
        // Down before the call: a ring during it leads to another one.
        let rung = |e: &Entry| match mutant!("rt.bell-down-late") {
            true => e.bell.0.rung.load(Ordering::SeqCst),
            false => e.bell.0.rung.swap(false, Ordering::SeqCst),
        };
        let mut any = false;
        self.call(
            cx,
            |e| meant(e) && rung(e),
            |port, cx| {
                any = true;
                port.serve(cx);
                if mutant!("rt.bell-down-late") {
                    let open = self.open.borrow();
                    open.iter().for_each(|e| e.bell.0.rung.store(false, Ordering::SeqCst));
                }
                true
            },
        );
        any
    }

    /// Asks each of them what to do about a run that can't go on: the first that has changed something
    /// settles it.
    fn idle(&self, cx: &Cx) -> Idle {
        let mut said = Idle::Stalled;
        self.call(
            cx,
            |_| true,
            |port, cx| {
                match port.idle(cx) {
                    Idle::Stalled => {}
                    other => said = other,
                }
                said != Idle::Changed
            },
        );
        said
    }

    /// As [`Ports::idle`]; who waits for a file waits, whatever the ports say.
    #[cold]
    pub(crate) fn idle_or_files(&self, cx: &Cx, local: &Local) -> Idle {
        match self.idle(cx) {
            Idle::Stalled if local.reactor.get().is_some_and(|r| r.is_awaited()) => Idle::Waits,
            said => said,
        }
    }

    /// Calls those that are `meant`, in order, until `with` says that it is enough. A port may open and close
    /// ports, also itself.
    fn call(
        &self,
        cx: &Cx,
        meant: impl Fn(&Entry) -> bool,
        mut with: impl FnMut(&mut dyn Port, &Cx) -> bool,
    ) {
        let mut last = 0;
        loop {
            let taken = {
                let mut open = self.open.borrow_mut();
                let mut next = open.iter_mut().filter(|e| e.id > last && e.port.is_some());
                let found = next.find(|e| meant(e));
                found.map(|e| (e.id, e.core, e.port.take().expect("filtered")))
            };
            let Some((id, core, mut port)) = taken else { break };
            last = id;
            let more = with(&mut *port, &cx.seen_from(core));
            let mut open = self.open.borrow_mut();
            match open.iter_mut().find(|e| e.id == id) {
                Some(entry) => entry.port = Some(port),
                None => {
                    drop(open);
                    drop(port);
                }
            }
            if !more {
                break;
            }
        }
        self.find_bound();
    }
}
