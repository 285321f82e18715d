//! What a client sends.
//!
//! Owns: the bytes that have come and are not used yet. Promises: many small requests cost one call of the
//! kernel; the data of a large write goes to its place without another copy but for what had come already.
//! Never: holds more than [`BUFFER_BYTES`].

use crate::Client;
use flashlane_rt::Watched;
use std::io::{self, IoSlice};
use std::rc::Rc;

/// Room for what has come.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) struct Input {
    socket: Rc<Watched<Client>>,
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Input {
    pub(super) fn new(socket: Rc<Watched<Client>>) -> Input {
        Input { socket, buffer: vec![0; BUFFER_BYTES].into(), from: 0, to: 0 }
    }

    /// The next bytes, [`BUFFER_BYTES`] at most. `None` where the client has ended before them.
    pub(super) async fn take(&mut self, bytes: usize) -> io::Result<Option<&[u8]>> {
        if self.to - self.from < bytes {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        while self.to - self.from < bytes {
            let (socket, room) = (&self.socket, &mut self.buffer[self.to..]);
            match socket.io(|client| client.read(room)).await? {
                0 => return Ok(None),
                n => self.to += n,
            }
        }
        self.from += bytes;
        Ok(Some(&self.buffer[self.from - bytes..self.from]))
    }

    /// Is another request here already?
    pub(super) fn has(&self, bytes: usize) -> bool {
        self.to - self.from >= bytes
    }

    /// Fills `to`. False where the client has ended before that.
    pub(super) async fn fill(&mut self, to: &mut [u8]) -> io::Result<bool> {
        let here = to.len().min(self.to - self.from);
        to[..here].copy_from_slice(&self.buffer[self.from..self.from + here]);
        self.from += here;
        let mut done = here;
        while done < to.len() {
            match self.socket.io(|client| client.read(&mut to[done..])).await? {
                0 => return Ok(false),
                n => done += n,
            }
        }
        Ok(true)
    }

    /// Drops the next bytes. False where the client has ended before them.
    pub(super) async fn pass_over(&mut self, mut bytes: usize) -> io::Result<bool> {
        while bytes > 0 {
            let some = bytes.min(BUFFER_BYTES);
            if self.take(some).await?.is_none() {
                return Ok(false);
            }
            bytes -= some;
        }
        Ok(true)
    }

    /// Sends all of it, before there is an output.
    pub(super) async fn say(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = self.socket.io(|client| client.write(&[IoSlice::new(bytes)])).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }
}
