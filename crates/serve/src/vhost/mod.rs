//! vhost-user-blk: a virtio disk for guests of QEMU and of user-mode Linux.
//!
//! Owns: the socket's front ends, one at a time. The way of a request: [`ring`] takes its chain of
//! descriptors where the guest has put it, [`chain`] finds its pieces in the guest's memory,
//! [`request`] says what it asks for and has the device do it, and [`ring`] tells the guest.
//! [`control`] does what front ends say over the socket, [`wire`] has how they say it, [`config`]
//! what guests are told of the disk, [`inflight`] what survives this process, and [`shared`] what
//! becomes of memory that a front end takes away. Promises: those of [`crate`]; nothing that a
//! guest writes into its memory does more than fail its own requests or end its own connection.
//! Never: makes a thread, polls, hands the guest's memory to the device.

mod chain;
mod config;
mod control;
mod inflight;
mod request;
mod ring;
mod shared;
#[cfg(test)]
mod tests;
mod wire;

use crate::{Client, Export, Listener, Stop};
use flashlane_base::Ns;
use flashlane_rt::Cx;
use std::io;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion};

/// The memory of a guest, as far as its front end shares it.
struct Memory {
    /// Of each part. They go before it does.
    guards: Vec<shared::Guard>,
    mapped: GuestMemoryMmap<()>,
}

impl Memory {
    /// Watches over memory that is mapped.
    ///
    /// # Errors
    /// It can't be watched over.
    fn new(mapped: GuestMemoryMmap<()>) -> io::Result<Memory> {
        let guard = |part: &vm_memory::GuestRegionMmap<()>| {
            let map: &MmapRegion = part;
            shared::Guard::new(map.as_ptr(), part.len() as usize)
        };
        let guards = mapped.iter().map(guard).collect::<Result<_, _>>()?;
        Ok(Memory { guards, mapped })
    }

    /// The front end has taken some of it away: nothing that was read of it counts.
    fn is_lost(&self) -> bool {
        self.guards.iter().any(shared::Guard::is_lost)
    }
}

impl Deref for Memory {
    type Target = GuestMemoryMmap<()>;

    fn deref(&self) -> &GuestMemoryMmap<()> {
        &self.mapped
    }
}

/// Queues that a guest may use; one that it does not use costs nothing.
const QUEUES: usize = 16;
/// Places of a queue at most.
const QUEUE_SIZE: u16 = 1024;
/// Longest read or write.
const BYTES_MAX: u64 = 32 << 20;
/// Bytes that a front end may have in flight.
const BUDGET: u64 = 64 << 20;
/// A front end that has said nothing by then is left.
const FIRST_WORD: Ns = Ns::from_secs(10);
/// Where nobody can be accepted (descriptors have run out) it is tried again after this.
const AGAIN: Ns = Ns::from_ms(100);

/// Serves one front end after another until the stop.
///
/// # Errors
/// The listener can't be watched.
pub async fn serve(
    cx: &Cx,
    listener: Listener,
    export: Arc<Export>,
    stop: Arc<Stop>,
) -> io::Result<()> {
    let listener = listener.watched(cx)?;
    while let Some(accepted) = stop.unless_up(cx, listener.io(|socket| socket.accept())).await {
        match accepted {
            // What goes wrong with a front end ends that front end.
            Ok(Client::Unix(socket)) => drop(attend(cx, socket, &export, &stop).await),
            Ok(Client::Tcp(_)) => {}
            Err(_) => drop(stop.unless_up(cx, cx.sleep(AGAIN)).await),
        }
    }
    Ok(())
}

/// Serves one front end, whose socket must not block, to its end or until the stop.
///
/// # Errors
/// The socket can't be watched.
pub async fn attend(
    cx: &Cx,
    socket: UnixStream,
    export: &Arc<Export>,
    stop: &Stop,
) -> io::Result<()> {
    control::attend(cx, socket, export, stop).await
}
