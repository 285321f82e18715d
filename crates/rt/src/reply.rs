//! One value from a core to a thread that waits for it.
//!
//! Owns: the place where the value is put, and who is told of it. Promises: whoever waits gets the value,
//! or hears that there will be none. Never: keeps a core waiting.

use crate::platform::{Changed, InboxMutex as Mutex};
use flashlane_base::mutant;
use std::sync::Arc;

enum State<T> {
    Awaited,
    Sent(T),
    /// The sender was dropped without a value.
    Dropped,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Changed,
}

/// The end at which the value is put in.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The end at which it is waited for.
pub(crate) struct Reply<T>(Arc<Shared<T>>);

/// Both ends.
pub(crate) fn pair<T>() -> (Sender<T>, Reply<T>) {
    let shared = Shared { state: Mutex::new(State::Awaited), changed: Changed::default() };
    let shared = Arc::new(shared);
    (Sender(shared.clone()), Reply(shared))
}

impl<T> Sender<T> {
    /// Sends it; nobody may want it any more.
    pub(crate) fn send(self, value: T) {
        if mutant!("rt.reply-told-early") {
            self.0.changed.tell();
        }
        *self.0.state.lock() = State::Sent(value);
        // Dropping this tells who waits.
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let is_sent = matches!(*state, State::Sent(_));
        if !is_sent {
            *state = State::Dropped;
        }
        drop(state);
        let untold = match is_sent {
            true => mutant!("rt.reply-told-early"),
            false => mutant!("rt.reply-dropped-untold"),
        };
        if !untold {
            self.0.changed.tell();
        }
    }
}

impl<T> Reply<T> {
    /// Blocks this thread until the value is there; `None` when none will come.
    pub(crate) fn wait(self) -> Option<T> {
        self.0.changed.wait(&self.0.state, |state| match std::mem::replace(state, State::Awaited) {
            State::Awaited => None,
            State::Sent(value) => Some(Some(value)),
            State::Dropped => Some(None),
        })
    }
}
