//! Where clients come in.
//!
//! Owns: listeners and connections of both families, as files that a core watches. Promises: nothing
//! blocks; a client that was accepted has small packets sent at once, and ends some two minutes after its
//! machine has. Never: makes or removes a socket's name.

use flashlane_rt::{Cx, Watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// After so much silence of a client over TCP its kernel is asked whether it is there: so often, and
/// with so many questions without an answer it is not.
const SILENCE: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_secs(10);
const ASKED_TIMES: u32 = 6;

/// A socket that clients connect to.
pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(socket) => socket.as_fd(),
            Listener::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Listener {
    /// Watches it on this core.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub(crate) fn watched(self, cx: &Cx) -> io::Result<Watched<Listener>> {
        match &self {
            Listener::Unix(socket) => socket.set_nonblocking(true)?,
            Listener::Tcp(socket) => socket.set_nonblocking(true)?,
        }
        cx.watch(self)
    }

    /// The next client. An error of one that was gone already is none.
    pub(crate) fn accept(&self) -> io::Result<Client> {
        loop {
            let accepted = match self {
                Listener::Unix(socket) => socket.accept().map(|(client, _)| Client::Unix(client)),
                Listener::Tcp(socket) => socket.accept().map(|(client, _)| Client::Tcp(client)),
            };
            match accepted {
                Err(e) if e.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => {}
                Err(e) => return Err(e),
                Ok(client) => return client.prepared(),
            }
        }
    }
}

/// A connection.
pub enum Client {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Client::Unix(socket) => socket.as_fd(),
            Client::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Client {
    fn prepared(self) -> io::Result<Client> {
        match &self {
            Client::Unix(socket) => socket.set_nonblocking(true)?,
            Client::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                // A client may be idle for ever, but its machine must be there.
                set_socket_keepalive(socket, true)?;
                set_tcp_keepidle(socket, SILENCE)?;
                set_tcp_keepintvl(socket, ASKED_EVERY)?;
                set_tcp_keepcnt(socket, ASKED_TIMES)?;
            }
        }
        Ok(self)
    }

    /// Reads what is there; 0 bytes where the client has ended.
    pub(crate) fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Client::Unix(socket) => (&mut &*socket).read(to),
            Client::Tcp(socket) => (&mut &*socket).read(to),
        }
    }

    /// It neither sends nor takes anything any more. One that has only ended its requests may still take
    /// replies; over TCP that is all that is known of it until it is sent one.
    pub(crate) fn is_gone(&self) -> bool {
        let mut this = [PollFd::new(self, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let looked = poll(&mut this, Some(&now));
        looked.is_ok() && this[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Nothing more is sent to it.
    pub(crate) fn end_writing(&self) -> io::Result<()> {
        match self {
            Client::Unix(socket) => socket.shutdown(Shutdown::Write),
            Client::Tcp(socket) => socket.shutdown(Shutdown::Write),
        }
    }

    /// Writes what the kernel takes.
    pub(crate) fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Client::Unix(socket) => (&mut &*socket).write_vectored(from),
            Client::Tcp(socket) => (&mut &*socket).write_vectored(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{socket_keepalive, tcp_keepidle};

    #[test]
    fn a_client_over_tcp_whose_machine_is_gone_is_noticed() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("some port");
        let address = socket.local_addr().expect("its own");
        let _client = TcpStream::connect(address).expect("somebody listens");
        let Ok(Client::Tcp(taken)) = Listener::Tcp(socket).accept() else {
            panic!("there is a client");
        };
        assert!(socket_keepalive(&taken).expect("an option"));
        assert_eq!(tcp_keepidle(&taken).expect("an option"), SILENCE);
        assert!(taken.nodelay().expect("an option"));
    }
}
