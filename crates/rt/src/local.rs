//! Tasks of one executor: slots, the ready queue, timers.
//!
//! Owns: every future spawned on this executor until it is done. Promises: a task is in the ready
//! queue at most once; a slot is taken out while it is polled, so a poll may spawn.
//! Never: moves a future to another thread.

use crate::outside::Ports;
use crate::pooled::Pooled;
use crate::reactor::Reactor;
use crate::timers::{TASK_BITS, Timers};
use std::cell::{Cell, OnceCell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

pub(crate) type Task = Pooled<'static, ()>;

#[derive(Default)]
struct Slot {
    task: Option<Task>,
    queued: bool,
}

#[derive(Default)]
pub(crate) struct Local {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    pub(crate) ready: RefCell<Vec<u32>>,
    pub(crate) timers: RefCell<Timers>,
    /// (time, task) of who looks after something in idle time: they keep no run alive.
    idle: RefCell<BinaryHeap<Reverse<(u64, u32)>>>,
    pub(crate) current: Cell<u32>,
    alive: Cell<usize>,
    pub(crate) ports: Ports,
    /// Once a task has watched a file.
    pub(crate) reactor: OnceCell<Reactor>,
}

impl Local {
    /// Takes a task in and puts it into the ready queue.
    pub(crate) fn spawn(&self, task: Task) -> u32 {
        let id = self.take_in(task);
        self.wake(id);
        id
    }

    /// Takes a task in. Its last owner may have been woken in its last poll: then the slot is still
    /// in the ready queue.
    pub(crate) fn take_in(&self, task: Task) -> u32 {
        self.alive.set(self.alive.get() + 1);
        let mut slots = self.slots.borrow_mut();
        let id = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot::default());
            assert!(slots.len() <= 1 << TASK_BITS, "2^24 tasks at once");
            (slots.len() - 1) as u32
        });
        slots[id as usize].task = Some(task);
        id
    }

    /// Puts a task into the ready queue unless it is there.
    #[inline]
    pub(crate) fn wake(&self, id: u32) {
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(id as usize)
            && !slot.queued
        {
            slot.queued = true;
            self.ready.borrow_mut().push(id);
        }
    }

    /// Polls one task; true when it ended.
    #[inline]
    pub(crate) fn poll(&self, id: u32) -> bool {
        let task = {
            let slot = &mut self.slots.borrow_mut()[id as usize];
            slot.queued = false;
            slot.task.take()
        };
        let Some(mut task) = task else {
            return false; // woken after its end, before the slot was used again
        };
        self.current.set(id);
        let mut context = Context::from_waker(Waker::noop());
        if Pin::new(&mut task).poll(&mut context) == Poll::Ready(()) {
            self.free.borrow_mut().push(id);
            self.alive.set(self.alive.get() - 1);
            return true;
        }
        self.slots.borrow_mut()[id as usize].task = Some(task);
        false
    }

    /// Moves every task due at `now` into the ready queue; `late` is told how long each timer has been due.
    #[inline]
    pub(crate) fn fire_due(&self, now: u64, late: impl Fn(u64)) {
        loop {
            let Some((at, id)) = self.timers.borrow_mut().pop_due(now) else {
                break;
            };
            late(now - at);
            self.wake(id);
        }
        loop {
            let mut idle = self.idle.borrow_mut();
            let Some(due) = idle.peek_mut().filter(|next| next.0.0 <= now) else {
                break;
            };
            let Reverse((_, id)) = PeekMut::pop(due);
            drop(idle);
            self.wake(id);
        }
    }

    /// Has a task woken at `at`, if the run gets there.
    pub(crate) fn arm_idle(&self, at: u64, task: u32) {
        self.idle.borrow_mut().push(Reverse((at, task)));
    }

    /// When the next of them is due.
    #[inline]
    pub(crate) fn next_idle(&self) -> Option<u64> {
        self.idle.borrow().peek().map(|next| next.0.0)
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive.get()
    }

    /// Drops every port and every task. They hold contexts, contexts hold this: a cycle that ends here.
    pub(crate) fn clear(&self) {
        loop {
            self.ports.clear();
            let tasks: Vec<Task> =
                self.slots.borrow_mut().iter_mut().filter_map(|s| s.task.take()).collect();
            if tasks.is_empty() && !self.ports.are_open() {
                break;
            }
        }
    }
}
