//! What is said over the socket (the vhost-user protocol of QEMU's documentation).
//!
//! Owns: layouts of messages, files that come with them, reading and writing both. Promises: a message is given whole
//! or not at all, and takes 4 KiB and [`FILES`] files at most; nobody waits for a front end with the core. Never:
//! knows what a message does.

use flashlane_rt::Watched;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Requests of a front end.
pub(super) mod request {
    pub(in super::super) const GET_FEATURES: u32 = 1;
    pub(in super::super) const SET_FEATURES: u32 = 2;
    pub(in super::super) const SET_OWNER: u32 = 3;
    pub(in super::super) const RESET_OWNER: u32 = 4;
    pub(in super::super) const SET_MEM_TABLE: u32 = 5;
    pub(in super::super) const SET_VRING_NUM: u32 = 8;
    pub(in super::super) const SET_VRING_ADDR: u32 = 9;
    pub(in super::super) const SET_VRING_BASE: u32 = 10;
    pub(in super::super) const GET_VRING_BASE: u32 = 11;
    pub(in super::super) const SET_VRING_KICK: u32 = 12;
    pub(in super::super) const SET_VRING_CALL: u32 = 13;
    pub(in super::super) const SET_VRING_ERR: u32 = 14;
    pub(in super::super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(in super::super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(in super::super) const GET_QUEUE_NUM: u32 = 17;
    pub(in super::super) const SET_VRING_ENABLE: u32 = 18;
    pub(in super::super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(in super::super) const GET_CONFIG: u32 = 24;
    pub(in super::super) const SET_CONFIG: u32 = 25;
    pub(in super::super) const GET_INFLIGHT_FD: u32 = 31;
    pub(in super::super) const SET_INFLIGHT_FD: u32 = 32;
}

/// Features of the protocol.
pub(super) mod can {
    /// More than one queue.
    pub(in super::super) const MQ: u64 = 1 << 0;
    /// A message may ask for a word about what came of it.
    pub(in super::super) const REPLY_ACK: u64 = 1 << 3;
    /// A second socket, for requests of the server. User-mode Linux has no interrupts without it.
    pub(in super::super) const BACKEND_REQ: u64 = 1 << 5;
    pub(in super::super) const CONFIG: u64 = 1 << 9;
    /// What is under way may outlive the server.
    pub(in super::super) const INFLIGHT: u64 = 1 << 12;
}

/// Request, flags, bytes that follow.
const HEAD_BYTES: usize = 12;
const BODY_BYTES: usize = 4096;
/// Files that come with a message at most: one for each part of the guest's memory.
pub(super) const FILES: usize = 8;
const VERSION: u32 = 1;
const VERSION_BITS: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEEDS_REPLY: u32 = 1 << 3;
/// With a queue's number: no file comes with it.
const NO_FILE: u64 = 1 << 8;

/// What makes no sense, or can't be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what a front end said makes no sense")]
pub(super) struct Nonsense;

impl From<io::Error> for Nonsense {
    fn from(_: io::Error) -> Nonsense {
        Nonsense
    }
}

/// A message.
pub(super) struct Message {
    pub(super) request: u32,
    flags: u32,
    pub(super) body: Vec<u8>,
    pub(super) files: Vec<File>,
}

/// What a message is answered with.
pub(super) enum Reply {
    /// Nothing, or that it was done where somebody asks.
    Done,
    Body(Vec<u8>),
    WithFile(Vec<u8>, File),
}

impl Message {
    /// The next message; nothing where the front end has ended.
    pub(super) async fn receive(socket: &Watched<UnixStream>) -> io::Result<Option<Message>> {
        let (mut head, mut files) = ([0; HEAD_BYTES], Vec::new());
        if !fill(socket, &mut head, &mut files).await? {
            return Ok(None);
        }
        let word = |at: usize| u32::from_ne_bytes(*head[at..].first_chunk().expect("four bytes"));
        let (request, flags, bytes) = (word(0), word(4), word(8) as usize);
        if flags & VERSION_BITS != VERSION || flags & REPLY != 0 || bytes > BODY_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; bytes];
        match fill(socket, &mut body, &mut files).await? {
            true => Ok(Some(Message { request, flags, body, files })),
            false => Ok(None),
        }
    }

    pub(super) fn needs_reply(&self) -> bool {
        self.flags & NEEDS_REPLY != 0
    }

    /// What its body says. It may be longer: some front ends send the room that they have.
    pub(super) fn words(&self) -> Words<'_> {
        Words(&self.body)
    }

    /// The only file that came with it.
    pub(super) fn file(&mut self) -> Result<File, Nonsense> {
        let file = self.files.pop().ok_or(Nonsense)?;
        if self.files.is_empty() { Ok(file) } else { Err(Nonsense) }
    }

    /// A queue, and the file that it gets, if any.
    pub(super) fn queue_and_file(&mut self) -> Result<(u32, Option<File>), Nonsense> {
        let said = self.words().long()?;
        let file = if said & NO_FILE == 0 { Some(self.file()?) } else { None };
        Ok(((said & 0xff) as u32, file))
    }

    /// Answers it.
    pub(super) async fn reply(
        &self,
        socket: &Watched<UnixStream>,
        body: &[u8],
        file: Option<&File>,
    ) -> io::Result<()> {
        let head = [self.request, VERSION | REPLY, body.len() as u32];
        let all = [&head.map(u32::to_ne_bytes).concat(), body].concat();
        let mut sent = 0;
        while sent < all.len() {
            sent += socket
                .io(|socket| {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut more = SendAncillaryBuffer::new(&mut space);
                    let files = [file.map_or_else(|| socket.as_fd(), AsFd::as_fd)];
                    if sent == 0 && file.is_some() {
                        more.push(SendAncillaryMessage::ScmRights(&files));
                    }
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    Ok(sendmsg(socket, &[IoSlice::new(&all[sent..])], &mut more, flags)?)
                })
                .await?;
        }
        Ok(())
    }
}

/// Fills `to`. False where the front end has ended before that.
async fn fill(
    socket: &Watched<UnixStream>,
    to: &mut [u8],
    files: &mut Vec<File>,
) -> io::Result<bool> {
    let mut done = 0;
    while done < to.len() {
        let read = socket.io(|socket| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
            let mut more = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let got = recvmsg(socket, &mut [IoSliceMut::new(&mut to[done..])], &mut more, flags)?;
            for message in more.drain() {
                if let RecvAncillaryMessage::ScmRights(came) = message {
                    files.extend(came.map(File::from));
                }
            }
            Ok(got.bytes)
        });
        match read.await? {
            0 => return Ok(false),
            _ if files.len() > FILES => return Err(io::ErrorKind::InvalidData.into()),
            bytes => done += bytes,
        }
    }
    Ok(true)
}

/// The words of a body, one after another.
pub(super) struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    pub(super) fn bytes(&mut self, bytes: usize) -> Result<&'a [u8], Nonsense> {
        let (these, rest) = self.0.split_at_checked(bytes).ok_or(Nonsense)?;
        self.0 = rest;
        Ok(these)
    }

    pub(super) fn short(&mut self) -> Result<u16, Nonsense> {
        Ok(u16::from_ne_bytes(*self.bytes(2)?.first_chunk().ok_or(Nonsense)?))
    }

    pub(super) fn word(&mut self) -> Result<u32, Nonsense> {
        Ok(u32::from_ne_bytes(*self.bytes(4)?.first_chunk().ok_or(Nonsense)?))
    }

    pub(super) fn long(&mut self) -> Result<u64, Nonsense> {
        Ok(u64::from_ne_bytes(*self.bytes(8)?.first_chunk().ok_or(Nonsense)?))
    }
}
