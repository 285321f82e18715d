//! NBD: a disk over a socket (the fixed newstyle protocol, doc/proto.md of the NBD project).
//!
//! Owns: the listener, clients, their requests. The way of a request: [`input`] takes it off the socket,
//! [`session`] has the device do it, [`output`] sends the reply; [`handshake`] comes before all that, and
//! [`wire`] has the layouts. Promises: those of [`crate`]; several connections see one disk, and a flush
//! covers what any of them was told is written (`NBD_FLAG_CAN_MULTI_CONN`). Never: asks who a client is:
//! the socket's mode says who may connect.

mod handshake;
mod input;
mod output;
mod session;
#[cfg(test)]
mod tests;
mod wire;

use crate::room::{MOST, Pool};
use crate::seats::Seats;
use crate::stop::first;
use crate::{Client, Export, Listener, Stop};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_rt::{CoreId, Cx};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Longest read or write: what every client may assume of a server.
const BYTES_MAX: u32 = 32 << 20;
const _: () = assert!(BYTES_MAX as u64 == MOST * SECTOR_BYTES as u64, "there is room for it");
/// Shortest request that is served without a detour.
const PREFERRED_BYTES: u32 = SECTOR_BYTES as u32;
/// Clients at a time.
const CLIENTS_MAX: usize = 256;
/// Where all seats are taken a client that has asked nothing for so long gives its seat to the next
/// one.
const PATIENCE: Ns = Ns::from_secs(60);
/// So does one that has not chosen an export by then.
const CHOICE: Ns = Ns::from_secs(1);
/// A client that has no seat by then is told so.
const SEAT_MAX: Ns = Ns::from_secs(2);
/// And so long those behind it wait.
const NEXT_SEAT: Ns = Ns::from_ms(10);
/// Clients that are told so at a time; others hear nothing.
const REFUSALS_MAX: usize = 16;
/// A client that has not chosen an export by then is left.
const HANDSHAKE_MAX: Ns = Ns::from_secs(10);
/// At its end, or a stop, a client has so long to take a reply that is there.
const PARTING: Ns = Ns::from_secs(5);
/// Where no client can be accepted (descriptors have run out) it is tried again after this.
const AGAIN: Ns = Ns::from_ms(100);

/// Serves clients until the stop, and ends when the last one is gone. This core takes them in, and they are spread
/// over all cores of the run.
///
/// # Errors
/// The listener can't be watched.
pub async fn serve(
    cx: &Cx,
    listener: Listener,
    exports: Arc<[Arc<Export>]>,
    stop: Arc<Stop>,
) -> io::Result<()> {
    let listener = listener.watched(cx)?;
    let (seats, pool) = (Seats::new(CLIENTS_MAX, CHOICE, PATIENCE), Pool::new());
    let refusals = Arc::new(AtomicUsize::new(0));
    let mut cores = (0..cx.cores()).map(CoreId).cycle();
    let mut waits = SEAT_MAX;
    while let Some(accepted) = stop.unless_up(cx, listener.io(|listener| listener.accept())).await {
        let Ok(client) = accepted else {
            let _ = stop.unless_up(cx, cx.sleep(AGAIN)).await;
            continue;
        };
        let seat = first(seats.take(cx), cx.sleep(waits));
        let Some(seat) = stop.unless_up(cx, seat).await else { break };
        let Ok(number) = seat else {
            // Those that come before a seat is free need not wait for it.
            waits = NEXT_SEAT;
            turn_away(cx, client, &refusals);
            continue;
        };
        waits = SEAT_MAX;
        let core = cores.next().unwrap_or_else(|| cx.core());
        let (seats, stop, exports, pool) =
            (seats.clone(), stop.clone(), exports.clone(), pool.clone());
        cx.spawn_on(core, move |cx| async move {
            let seat = seats.sit(&cx, number);
            let _ = session::run(&cx, client, &exports, &stop, pool, Some(&seat)).await;
        });
    }
    drop(listener);
    seats.all(cx).await;
    Ok(())
}

/// Tells a client that there is no seat for it, if it listens and not too many are told so already.
fn turn_away(cx: &Cx, client: Client, refusals: &Arc<AtomicUsize>) {
    if refusals.load(Ordering::Relaxed) >= REFUSALS_MAX {
        return;
    }
    refusals.fetch_add(1, Ordering::Relaxed);
    let (theirs, refusals) = (cx.clone(), refusals.clone());
    cx.spawn(async move {
        let _ = first(session::refuse(&theirs, client), theirs.sleep(SEAT_MAX)).await;
        refusals.fetch_sub(1, Ordering::Relaxed);
    });
}

/// Serves one client, whose socket must not block, to its end or until the stop. What goes wrong with a
/// client ends that client.
pub async fn attend(cx: &Cx, client: Client, exports: &[Arc<Export>], stop: &Arc<Stop>) {
    let _ = session::run(cx, client, exports, stop, Pool::new(), None).await;
}
