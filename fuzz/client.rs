//! How a client of a server behaves that only ever says bytes, in virtual time.
//!
//! Owns: how it cuts what it says into pieces, when it looks for answers, how it ends. Promises: the same bytes are
//! cut in the same way. Never: knows what they mean.

use flashlane_base::{Ns, Rng};
use flashlane_rt::Cx;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// How often the client looks whether the server has something for it.
const LOOK: Ns = Ns::from_us(1);
/// The device answers sooner.
const PAUSE: Ns = Ns::from_us(200);
/// A client that says nothing more is told so by then: handshake, parting and the device take no longer.
pub(crate) const END_MAX: Ns = Ns::from_secs(60);
/// A client that does not end by itself sees the server stopped then.
pub(crate) const STOPPED_AT: Ns = Ns::from_secs(20);

/// What a client does with its end of the connection once everything is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Says that nothing more comes, and reads to the end.
    Listens,
    /// Reads nothing, and goes.
    Goes,
    /// Reads nothing, and stays.
    Stays,
}

/// Says everything, in pieces, and hears what there is to hear.
pub(crate) async fn converse(cx: &Cx, socket: &UnixStream, said: &[u8], end: End) -> Vec<u8> {
    let (mut heard, mut left, mut refused) = (Vec::new(), said, 0);
    let mut pieces = Rng::stream(said.len() as u64, "pieces", 0);
    let mut is_over = false;
    let mut some = [0; 4096];
    while !left.is_empty() && !is_over {
        // Requests one by one, answered before the next, and many at a time.
        let longest = if pieces.below(3) == 0 { 2000 } else { 64 };
        let piece = (1 + pieces.below(longest) as usize).min(left.len());
        let pause = if pieces.below(3) == 0 { PAUSE } else { LOOK };
        match (&mut &*socket).write(&left[..piece]) {
            Ok(n) => (left, refused) = (&left[n..], 0),
            Err(e) if e.kind() == ErrorKind::WouldBlock => refused += 1,
            // The server has left.
            Err(_) => is_over = true,
        }
        if end == End::Listens {
            is_over |= hear(socket, &mut some, &mut heard);
        } else if refused > 10_000 {
            break; // who takes nothing is not listened to for ever
        }
        for _ in 0..pause.as_ns() / LOOK.as_ns() {
            cx.sleep(LOOK).await;
        }
    }
    if end == End::Listens {
        let _ = socket.shutdown(Shutdown::Write);
        while !hear(socket, &mut some, &mut heard) {
            assert!(cx.now() < END_MAX, "the server does not end");
            cx.sleep(LOOK).await;
        }
    }
    heard
}

/// Takes what is there; true where the server has ended.
fn hear(mut socket: &UnixStream, some: &mut [u8], heard: &mut Vec<u8>) -> bool {
    loop {
        match socket.read(some) {
            Ok(0) => return true,
            Ok(n) => heard.extend(&some[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}
