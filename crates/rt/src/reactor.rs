//! Waiting for files: sockets, pipes, whatever the kernel says is ready.
//!
//! Owns: the epoll instance of a core, made when the core first watches a file, and who waits for
//! which file ([`Watched`]). Promises: a core sleeps in one place, where both the kernel and other
//! threads wake it; a core that watches nothing has none of this. Never: reads or writes a file (its
//! owner does, in [`Watched::io`]).
//!
//! Files are registered once, for edges: an owner tries first, and waits for the next edge only when
//! the kernel said that it would block.

use crate::cx::Cx;
use crate::local::Local;
use flashlane_base::Ns;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Events taken from the kernel at a time.
const EVENTS: usize = 64;
/// The alarm's number among the watched files.
const ALARM: u64 = 0;

/// Wakes a core that waits for files.
#[derive(Clone)]
pub(crate) struct Alarm(Arc<OwnedFd>);

impl Alarm {
    pub(crate) fn ring(&self) {
        // It can fail only where it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        // Nothing to read: somebody was faster.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// What is known of a watched file.
#[derive(Default)]
struct State {
    /// How often the kernel has said that it is ready.
    edges: Cell<u64>,
    /// Tasks that wait for the next edge.
    waiting: RefCell<Vec<u32>>,
}

/// A core's epoll instance.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    alarm: Alarm,
    files: RefCell<BTreeMap<u64, Rc<State>>>,
    next: Cell<u64>,
    events: RefCell<Vec<epoll::Event>>,
}

impl Reactor {
    fn new() -> io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let alarm = Alarm(Arc::new(alarm));
        epoll::add(&epoll, &alarm.0, EventData::new_u64(ALARM), EventFlags::IN)?;
        let events = RefCell::new(Vec::with_capacity(EVENTS));
        Ok(Reactor { epoll, alarm, files: RefCell::default(), next: Cell::new(ALARM + 1), events })
    }

    /// Does any task wait for a file?
    pub(crate) fn is_awaited(&self) -> bool {
        self.files.borrow().values().any(|file| !file.waiting.borrow().is_empty())
    }

    /// Sleeps until a file is ready, the alarm rings, or the time is over; then wakes who waits.
    pub(crate) fn wait(&self, local: &Local, at_most: Ns) {
        if at_most != Ns::ZERO {
            let span = Timespec {
                tv_sec: (at_most.as_ns() / 1_000_000_000) as i64,
                tv_nsec: (at_most.as_ns() % 1_000_000_000) as _,
            };
            // `epoll_wait` may know milliseconds only. An error is an interruption: then nothing is ready.
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&span));
        }
        self.look(local);
    }

    /// Wakes whoever waits for a file that is ready by now.
    pub(crate) fn look(&self, local: &Local) {
        let mut events = self.events.borrow_mut();
        events.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&now)).is_err() {
            return; // interrupted: they are there the next time
        }
        let files = self.files.borrow();
        for event in events.drain(..) {
            let number = event.data.u64();
            if number == ALARM {
                self.alarm.silence();
            } else if let Some(file) = files.get(&number) {
                file.edges.set(file.edges.get() + 1);
                file.waiting.borrow().iter().for_each(|task| local.wake(*task));
            }
        }
    }
}

/// A file that a core watches, until it is dropped.
pub struct Watched<F: AsFd> {
    file: F,
    cx: Cx,
    number: u64,
    state: Rc<State>,
}

impl Cx {
    /// Watches a file of the kind that can be waited for (socket, pipe, eventfd), which must not block.
    ///
    /// # Errors
    /// The kernel does not watch files of this kind, or no more of them.
    pub fn watch<F: AsFd>(&self, file: F) -> io::Result<Watched<F>> {
        let reactor = match self.local.reactor.get() {
            Some(reactor) => reactor,
            None => {
                let made = Reactor::new()?;
                self.inbox().wakes_by(made.alarm.clone());
                self.local.reactor.get_or_init(|| made)
            }
        };
        let number = reactor.next.get();
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&reactor.epoll, &file, EventData::new_u64(number), edges)?;
        reactor.next.set(number + 1);
        let state = Rc::new(State::default());
        reactor.files.borrow_mut().insert(number, state.clone());
        Ok(Watched { file, cx: self.clone(), number, state })
    }
}

impl<F: AsFd> Watched<F> {
    /// The file.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// Tries `what`, again and again as the file becomes ready, until it no longer says that it would block.
    ///
    /// # Errors
    /// Those of `what`.
    pub async fn io<R>(&self, mut what: impl FnMut(&F) -> io::Result<R>) -> io::Result<R> {
        loop {
            // Before the try: an edge that comes behind it counts.
            let seen = self.state.edges.get();
            match what(&self.file) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                done => return done,
            }
            Edge { cx: &self.cx, state: &self.state, seen, task: None }.await;
        }
    }
}

/// Waits until the kernel says that a file is ready, once more than it had when `seen` was read.
struct Edge<'a> {
    cx: &'a Cx,
    state: &'a State,
    seen: u64,
    /// Who waits.
    task: Option<u32>,
}

impl Edge<'_> {
    fn leave(&mut self) {
        if let Some(task) = self.task.take() {
            let mut waiting = self.state.waiting.borrow_mut();
            if let Some(at) = waiting.iter().position(|w| *w == task) {
                waiting.swap_remove(at);
            }
        }
    }
}

impl Future for Edge<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        self.leave();
        if self.state.edges.get() != self.seen {
            return Poll::Ready(());
        }
        let task = self.cx.local.current.get();
        self.task = Some(task);
        self.state.waiting.borrow_mut().push(task);
        Poll::Pending
    }
}

impl Drop for Edge<'_> {
    fn drop(&mut self) {
        // A wait that was given up keeps no run alive.
        self.leave();
    }
}

impl<F: AsFd> Drop for Watched<F> {
    fn drop(&mut self) {
        if let Some(reactor) = self.cx.local.reactor.get() {
            reactor.files.borrow_mut().remove(&self.number);
            match epoll::delete(&reactor.epoll, &self.file) {
                Ok(()) | Err(Errno::NOENT | Errno::BADF) => {}
                Err(e) => debug_assert!(false, "a file that was watched: {e}"),
            }
        }
    }
}
