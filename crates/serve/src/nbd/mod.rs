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

use crate::{Client, Export, Listener, Stop};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_rt::{CoreId, Credits, Cx};
use std::io;
use std::sync::Arc;

/// Longest read or write: what every client may assume of a server.
const BYTES_MAX: u32 = 32 << 20;
/// Shortest request that is served without a detour.
const PREFERRED_BYTES: u32 = SECTOR_BYTES as u32;
/// Sectors that a client may have in flight, replies that it has not taken included: the longest request.
const BUDGET: u64 = BYTES_MAX as u64 / SECTOR_BYTES as u64;
/// Clients at a time; others wait to be accepted.
const CLIENTS_MAX: u64 = 64;
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
    let seats = Arc::new(Credits::new(CLIENTS_MAX));
    let mut cores = (0..cx.cores()).map(CoreId).cycle();
    while stop.unless_up(cx, seats.acquire(cx, 1)).await.is_some() {
        let accepted = stop.unless_up(cx, listener.io(|listener| listener.accept())).await;
        let (seats, stop, exports, cx) = (seats.clone(), stop.clone(), exports.clone(), cx.clone());
        match accepted {
            None => {
                seats.release(&cx, 1);
                break;
            }
            Some(Err(_)) => {
                seats.release(&cx, 1);
                let _ = stop.unless_up(&cx, cx.sleep(AGAIN)).await;
            }
            Some(Ok(client)) => {
                let core = cores.next().unwrap_or_else(|| cx.core());
                cx.spawn_on(core, move |cx| async move {
                    attend(&cx, client, &exports, &stop).await;
                    seats.release(&cx, 1);
                });
            }
        }
    }
    drop(listener);
    seats.acquire(cx, CLIENTS_MAX).await;
    Ok(())
}

/// Serves one client, whose socket must not block, to its end or until the stop. What goes wrong with a
/// client ends that client.
pub async fn attend(cx: &Cx, client: Client, exports: &[Arc<Export>], stop: &Arc<Stop>) {
    let _ = session::run(cx, client, exports, stop).await;
}
