//! When a door closes.
//!
//! Owns: the flag, who waits for it, and how long clients are waited for. Promises: what is given up
//! when the flag goes up is dropped where it waits; whoever asks later hears of it, too. Never: takes
//! the flag down.

use flashlane_base::mutant;
use flashlane_rt::sync::{AtomicBool, Ordering};
use flashlane_rt::{Cx, Notify};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// A flag that goes up once, for all cores.
#[derive(Default)]
pub struct Stop {
    up: AtomicBool,
    raised: Notify,
}

impl Stop {
    /// Doors take nothing more.
    pub fn raise(&self, cx: &Cx) {
        self.up.store(true, Ordering::SeqCst);
        self.raised.wake(cx);
    }

    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst)
    }

    /// Waits until it is up.
    pub async fn wait(&self, cx: &Cx) {
        self.raised.wait(cx, || self.is_up()).await;
    }

    /// What `work` comes to; nothing when the flag goes up before. `work` is dropped then, so it must be
    /// something that may be.
    pub(crate) async fn unless_up<T>(&self, cx: &Cx, work: impl Future<Output = T>) -> Option<T> {
        // Work that never has to wait would not let anybody see it.
        if self.is_up() && !mutant!("serve.stop-unheard") {
            None
        } else {
            first(work, self.wait(cx)).await.ok()
        }
    }
}

/// What ends first; the other is dropped.
pub(crate) async fn first<A, B>(
    a: impl Future<Output = A>,
    b: impl Future<Output = B>,
) -> Result<A, B> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| match a.as_mut().poll(context) {
        Poll::Ready(a) => Poll::Ready(Ok(a)),
        Poll::Pending => b.as_mut().poll(context).map(Err),
    })
    .await
}
