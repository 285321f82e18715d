//! How many clients a door has at a time, and who makes room for whom.
//!
//! Owns: the seats of a door. Promises: no more clients than seats; where all are taken a client
//! that comes waits at most until the one that has let the door wait the longest has done so for a
//! given time, and then has its seat. Never: cuts off what a
//! client has begun (its session ends that first).

use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Cx, Notify};
use std::sync::Arc;

/// The seats of a door.
pub(crate) struct Seats {
    most: usize,
    /// A client that lets the door wait for so long makes room, before it has settled and after
    /// that.
    first: Ns,
    patience: Ns,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    seats: Vec<Taken>,
    next: u64,
}

struct Taken {
    number: u64,
    /// The door waits for this client since then.
    idle_since: Option<Ns>,
    /// How long it may let the door wait.
    patience: Ns,
    /// It has to go.
    leaves: bool,
}

/// A seat that a client has, until it is dropped.
pub(crate) struct Seat {
    of: Arc<Seats>,
    cx: Cx,
    number: u64,
}

impl Seats {
    pub(crate) fn new(most: usize, first: Ns, patience: Ns) -> Arc<Seats> {
        Arc::new(Seats { most, first, patience, state: Mutex::default(), changed: Notify::new() })
    }

    /// Waits for a seat for a client that is there: its number.
    pub(crate) async fn take(&self, cx: &Cx) -> u64 {
        loop {
            let wait = match self.state.lock().take(self, cx.now()) {
                Ok(number) => return number,
                Err(wait) => wait,
            };
            // One that has to go hears of it, and is waited for until it is gone.
            self.changed.wake(cx);
            let left = self.changed.wait(cx, || self.state.lock().seats.len() < self.most);
            let _ = crate::stop::first(left, cx.sleep(wait)).await;
        }
    }

    /// The client with this number sits down, on the core where it is served.
    pub(crate) fn sit(self: &Arc<Self>, cx: &Cx, number: u64) -> Seat {
        Seat { of: self.clone(), cx: cx.clone(), number }
    }

    /// Waits until nobody has a seat.
    pub(crate) async fn all(&self, cx: &Cx) {
        self.changed.wait(cx, || self.state.lock().seats.is_empty()).await;
    }
}

impl State {
    /// A seat, or how long to wait before the next look; the client that has let the door wait for
    /// too long has to go then.
    fn take(&mut self, of: &Seats, now: Ns) -> Result<u64, Ns> {
        if self.seats.len() < of.most || mutant!("serve.http-seats-endless") {
            let number = self.next;
            self.next += 1;
            let (idle_since, patience) = (Some(now), of.first);
            self.seats.push(Taken { number, idle_since, patience, leaves: false });
            return Ok(number);
        }
        if self.seats.iter().any(|seat| seat.leaves) || mutant!("serve.seats-for-ever") {
            return Err(of.patience);
        }
        let due = |seat: &Taken| seat.idle_since.map(|since| since + seat.patience);
        let idle = self.seats.iter_mut().filter_map(|seat| Some((due(seat)?, seat)));
        match idle.min_by_key(|(due, _)| *due) {
            None => Err(of.patience),
            Some((due, seat)) => {
                seat.leaves = due <= now;
                Err(due.saturating_sub(now).max(Ns::from_us(1)))
            }
        }
    }

    fn seat(&mut self, number: u64) -> Option<&mut Taken> {
        self.seats.iter_mut().find(|seat| seat.number == number)
    }
}

impl Seat {
    /// From now on the door waits for this client, or no longer.
    pub(crate) fn idles(&self, idles: bool) {
        let now = self.cx.now();
        if let Some(seat) = self.of.state.lock().seat(self.number) {
            seat.idle_since = idles.then_some(now);
        }
    }

    /// It has said what it wants.
    pub(crate) fn settles(&self) {
        if let Some(seat) = self.of.state.lock().seat(self.number) {
            seat.patience = self.of.patience;
        }
    }

    /// Waits until this client has to go.
    pub(crate) async fn is_wanted(&self) {
        let leaves = || self.of.state.lock().seat(self.number).is_some_and(|seat| seat.leaves);
        self.of.changed.wait(&self.cx, leaves).await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.of.state.lock().seats.retain(|seat| seat.number != self.number);
        self.of.changed.wake(&self.cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_rt::{CostTable, Virtual};
    use std::cell::Cell;
    use std::rc::Rc;

    const PATIENCE: Ns = Ns::from_ms(10);

    /// A seat, which there is in time.
    async fn seat_of(seats: &Seats, cx: &Cx) -> u64 {
        let seat = crate::stop::first(seats.take(cx), cx.sleep(PATIENCE.times(10))).await;
        seat.expect("a client makes room")
    }

    #[test]
    fn whoever_lets_the_door_wait_longest_makes_room() {
        let virt = Virtual::new(1, 1, CostTable::zero());
        let cx = virt.cx();
        let main = async move {
            let seats = Seats::new(3, PATIENCE, PATIENCE);
            let gone = Rc::new(Cell::new(None));
            // The first is worked for, the second idles longer than the third.
            for n in 0..3 {
                let number = seats.take(&cx).await;
                let (seat, gone) = (seats.sit(&cx, number), gone.clone());
                cx.sleep(Ns::from_ms(1)).await;
                seat.idles(n > 0);
                cx.spawn(async move {
                    seat.is_wanted().await;
                    gone.set(Some(n));
                });
            }
            let began = cx.now();
            let late = seat_of(&seats, &cx).await;
            assert_eq!(gone.get(), Some(1));
            let waited = cx.now() - began;
            assert!(waited < PATIENCE && waited > Ns::from_ms(8), "{waited:?}");
            let late = seats.sit(&cx, late);
            late.idles(false);
            // Nobody idles but the third.
            let last = seat_of(&seats, &cx).await;
            assert_eq!(gone.get(), Some(2));
            drop((seats.sit(&cx, last), late));
            assert_eq!(seats.state.lock().seats.len(), 1);
        };
        virt.run(main).expect("it ends");
    }

    #[test]
    fn no_more_clients_than_seats() {
        let virt = Virtual::new(1, 1, CostTable::zero());
        let cx = virt.cx();
        let main = async move {
            let seats = Seats::new(2, PATIENCE, PATIENCE);
            let two = [(); 2].map(|()| ());
            let mut sitting = Vec::new();
            for () in two {
                let number = seats.take(&cx).await;
                sitting.push(seats.sit(&cx, number));
            }
            sitting.iter().for_each(|seat| seat.idles(false));
            let waits = crate::stop::first(seats.take(&cx), cx.sleep(PATIENCE.times(10))).await;
            assert!(waits.is_err(), "both are worked for");
            drop(sitting.pop());
            seats.take(&cx).await;
        };
        virt.run(main).expect("it ends");
    }
}
