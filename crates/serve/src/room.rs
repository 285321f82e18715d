//! Memory for what clients of a door have in flight.
//!
//! Owns: how much all clients of a door may have ([`Pool`]), and what one has of it ([`Share`]).
//! Promises: the sum over all clients is bounded, replies that they have not taken included; each
//! client has some of its own, so that it goes on whatever the others do; of the rest none has more
//! than is left when it has it, so that clients that take nothing never have all of it. Never:
//! makes a client wait for another one.

use flashlane_base::mutant;
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Credits, Cx, Notify};
use std::cell::Cell;
use std::sync::Arc;

/// Sectors that each client has of its own.
pub(crate) const OWN: u64 = 32;
/// Sectors that all clients of a door share: two of the longest requests of NBD.
const COMMON: u64 = 2 * MOST;
/// Sectors of the common ones that one client has at most: the longest request of NBD.
pub(crate) const MOST: u64 = 8192;
/// Work without data that a client may have in flight, in sectors of data that take as long.
pub(crate) const WORK: u64 = 8192;
/// Bytes of memory that is kept for later requests of all clients of a door.
const KEPT: usize = 32 << 20;

/// What all clients of a door share.
pub(crate) struct Pool {
    free: Mutex<u64>,
    /// Bytes that may still be kept for later requests.
    unkept: Mutex<usize>,
}

impl Pool {
    pub(crate) fn new() -> Arc<Pool> {
        Arc::new(Pool { free: Mutex::new(COMMON), unkept: Mutex::new(KEPT) })
    }

    /// Takes sectors for a client that has `mine` of them, or none.
    fn take(&self, mine: u64, want: u64) -> bool {
        let mut free = self.free.lock();
        let Some(left) = free.checked_sub(want) else { return false };
        let may = mine + want <= MOST.min(left) || mutant!("serve.pool-to-the-first");
        if may {
            *free = left;
        }
        may
    }

    fn give(&self, sectors: u64) {
        *self.free.lock() += sectors;
    }

    /// May so many bytes be kept for later requests?
    pub(crate) fn keep(&self, bytes: usize) -> bool {
        let mut unkept = self.unkept.lock();
        let left = unkept.checked_sub(bytes);
        *unkept = left.unwrap_or(*unkept);
        left.is_some()
    }

    /// So many are kept no longer.
    pub(crate) fn use_up(&self, bytes: usize) {
        *self.unkept.lock() += bytes;
    }

    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        *self.free.lock() == COMMON
    }
}

/// What a request has of the memory of its door.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "it has to be given back"]
pub(crate) struct Grant {
    own: u64,
    common: u64,
    work: u64,
}

impl Grant {
    /// Bytes of data that there is memory for.
    pub(crate) fn sectors(&self) -> u64 {
        self.own + self.common
    }
}

/// What one client has.
pub(crate) struct Share {
    pool: Arc<Pool>,
    own: Credits,
    work: Credits,
    /// Sectors of the common ones.
    common: Cell<u64>,
    /// Requests that have a grant.
    requests: Cell<u64>,
    emptied: Notify,
}

impl Share {
    pub(crate) fn new(pool: Arc<Pool>) -> Share {
        Share {
            pool,
            own: Credits::new(OWN),
            work: Credits::new(WORK),
            common: Cell::default(),
            requests: Cell::default(),
            emptied: Notify::new(),
        }
    }

    /// Memory for a request of so many sectors: all that it asks for, or [`OWN`] sectors where the
    /// door is short of it. It waits for requests of this client alone, which must not take its
    /// turn elsewhere meanwhile.
    pub(crate) async fn take(&self, cx: &Cx, sectors: u64) -> Grant {
        self.requests.set(self.requests.get() + 1);
        // Whoever gives this up while it waits has no request.
        let mut waits = Waits { share: self, cx, is_over: false };
        let grant = match () {
            () if mutant!("serve.room-unbounded") => Grant { own: 0, common: 0, work: 0 },
            () if self.own.try_acquire(sectors) => Grant { own: sectors, ..Grant::default() },
            () if self.pool.take(self.common.get(), sectors) => {
                self.common.set(self.common.get() + sectors);
                Grant { common: sectors, ..Grant::default() }
            }
            () => {
                let own = sectors.min(OWN);
                self.own.acquire(cx, own).await;
                Grant { own, ..Grant::default() }
            }
        };
        waits.is_over = true;
        grant
    }

    /// Leave for work that takes as long as so many sectors of data, and no memory.
    pub(crate) async fn take_work(&self, cx: &Cx, sectors: u64) -> Grant {
        self.requests.set(self.requests.get() + 1);
        let mut waits = Waits { share: self, cx, is_over: false };
        let work = if mutant!("serve.room-unbounded") { 0 } else { sectors.min(WORK) };
        self.work.acquire(cx, work).await;
        waits.is_over = true;
        Grant { work, ..Grant::default() }
    }

    /// A request is over.
    pub(crate) fn give(&self, cx: &Cx, grant: Grant) {
        let Grant { own, common, work } = grant;
        if own > 0 {
            self.own.release(cx, own);
        }
        if work > 0 {
            self.work.release(cx, work);
        }
        if common > 0 {
            self.common.set(self.common.get() - common);
            self.pool.give(common);
        }
        self.leave(cx);
    }

    fn leave(&self, cx: &Cx) {
        self.requests.set(self.requests.get() - 1);
        if self.requests.get() == 0 {
            self.emptied.wake(cx);
        }
    }

    /// Requests that have a grant.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Waits until no request has one.
    pub(crate) async fn all(&self, cx: &Cx) {
        self.emptied.wait(cx, || self.requests.get() == 0).await;
    }
}

struct Waits<'a> {
    share: &'a Share,
    cx: &'a Cx,
    is_over: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.share.leave(self.cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_base::Ns;
    use flashlane_rt::{CostTable, Virtual};

    fn run(main: impl AsyncFnOnce(&Cx) + 'static) {
        let virt = Virtual::new(1, 1, CostTable::zero());
        let cx = virt.cx();
        virt.run(async move { main(&cx).await }).expect("it ends");
    }

    /// Clients that ask for as much as they can and give nothing back: the sum is bounded, and each
    /// that comes later still has memory for any request, in pieces at worst.
    #[test]
    fn clients_that_give_nothing_back_never_have_everything() {
        run(async |cx: &Cx| {
            let pool = Pool::new();
            let (mut all, mut held) = (0, Vec::new());
            for client in 0..256 {
                let share = Share::new(pool.clone());
                let mut first = true;
                for want in [MOST, MOST, 4096, 1000, 100, OWN, OWN, 7, 1].repeat(2) {
                    let waits = crate::stop::first(share.take(cx, want), cx.sleep(Ns::from_ms(1)));
                    let Ok(grant) = waits.await else { continue };
                    assert!(grant.sectors() >= want.min(OWN), "{client}: {want}");
                    assert!(first || grant.sectors() == want || want > OWN);
                    first = false;
                    all += grant.sectors();
                    held.push((client, grant));
                }
                assert!(!first, "{client} has something");
                assert!(*pool.free.lock() > 0, "{client}: something is left");
                std::mem::forget(share);
            }
            assert!(all <= COMMON + 256 * OWN, "{all}");
        });
    }

    #[test]
    fn a_client_alone_has_the_longest_request_at_once() {
        run(async |cx: &Cx| {
            let pool = Pool::new();
            let share = Share::new(pool.clone());
            let small = share.take(cx, OWN).await;
            let long = share.take(cx, MOST).await;
            assert_eq!((small.sectors(), long.sectors()), (OWN, MOST));
            // What comes then waits for its own client, and a client that has gone leaves nothing
            // behind.
            let waits = crate::stop::first(share.take(cx, MOST), cx.sleep(Ns::from_ms(1)));
            assert_eq!(waits.await, Err(()));
            assert_eq!(share.requests(), 2);
            share.give(cx, small);
            let piece = share.take(cx, MOST).await;
            assert_eq!(piece.sectors(), OWN);
            share.give(cx, piece);
            share.give(cx, long);
            share.all(cx).await;
            assert!(pool.is_whole());
        });
    }

    #[test]
    fn what_is_kept_for_later_is_bounded_over_all_clients() {
        let pool = Pool::new();
        let kept = (0..1000).filter(|_| pool.keep(1 << 20)).count();
        assert_eq!(kept, KEPT >> 20);
        pool.use_up(1 << 20);
        assert!(pool.keep(1 << 20) && !pool.keep(1));
    }
}
