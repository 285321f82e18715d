//! A caller of the file by FUSE, in place of the kernel: it speaks the kernel's protocol over a socket.
//!
//! Owns: what is asked (the input as a script of requests with any numbers, one by one and many at a time), a plain
//! reading of what comes of it. Promises: each request is answered once, with what the plain reading says; behind a
//! stop each is answered so or refused; at the end the disk holds what was acknowledged; the reading thread ends with
//! its caller. Never: mounts anything. What no kernel sends is not sent: the kernel is trusted.

use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, Io};
use flashlane_rt::{CostTable, Virtual};
use flashlane_serve::Export;
use flashlane_serve::fuse::Answers;
use flashlane_testkit::Ram;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub(crate) const NAMES: [&str; 1] = ["fuse"];

/// Sectors of the file: what is read of it fits into a message.
const SECTORS: u64 = 32;
const FILE: usize = SECTORS as usize * SECTOR_BYTES;
/// Of real time. An answer that has not come by then does not come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Who takes no answer goes when nothing is taken of it for so long: the answers are in the way.
const HURRY: Duration = Duration::from_millis(20);
/// Requests of the protocol.
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const READ: u32 = 15;
const WRITE: u32 = 16;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
const FALLOCATE: u32 = 43;
/// Others that have an answer, whatever is behind them.
const OTHERS: [u32; 16] = [1, 5, 8, 9, 10, 14, 17, 18, 22, 23, 27, 31, 34, 37, 46, 100];
const ENOSPC: i32 = 28;
const ENODEV: i32 = 19;
const EPERM: i32 = 1;
const EOPNOTSUPP: i32 = 95;

/// What a caller does besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Listens,
    /// The door closes when half of the script is done.
    IsStopped,
    /// It takes no answer, and goes.
    Goes,
}

/// Does with `bytes` what the target does, if it is this one.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    NAMES.contains(&target).then(|| {
        talk(bytes, How::Goes);
        talk(bytes, How::IsStopped);
        talk(bytes, How::Listens)
    })
}

/// A conversation. True when something was written and read.
fn talk(bytes: &[u8], how: How) -> bool {
    let clock = Virtual::new(1, 1, CostTable::zero());
    let (cx, script) = (clock.cx(), bytes.to_vec());
    let done = clock.run(async move {
        let pair =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (theirs, socket) = pair.expect("a pair of sockets");
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).expect("a socket");
        set_socket_timeout(&socket, Timeout::Send, Some(HURRY)).expect("a socket");
        let device = Arc::new(Ram::new(SECTORS, SECTOR_BYTES, Ns::from_us(20), 1));
        let export = Arc::new(Export::new("disk", device.clone()));
        let mut caller = Caller::new(socket, how);
        caller.begin();
        let answers =
            Answers::begin(&cx, theirs, SystemTime::UNIX_EPOCH, export).expect("a thread");
        let (told, tells) = UnixStream::pair().expect("a pair of sockets");
        told.set_nonblocking(true).expect("a socket");
        let caller = std::thread::spawn(move || caller.converse(&script, tells));
        let told = cx.watch(told).expect("a socket");
        let hears =
            || async { told.io(|mut told| told.read(&mut [0])).await.expect("it is heard") };
        if hears().await == 1 {
            answers.close(&cx).await;
            while hears().await == 1 {}
        }
        let caller = caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let Caller { socket, file, has_read, has_written, .. } = caller;
        drop(socket);
        answers.close(&cx).await;
        let ended = answers.join();
        assert!(ended.is_ok() || how == How::Goes, "the thread that reads: {ended:?}");
        let mut all = vec![0; FILE];
        let io = Io::read(Lba::new(0), SECTORS as u32, &mut all);
        device.start(&cx, io).await.expect("it reads");
        assert!(all == file || how == How::Goes, "the disk holds something else");
        has_read && has_written
    });
    done.expect("it ends")
}

/// What a request is to be answered with.
#[derive(Debug)]
enum Answer {
    Data(Vec<u8>),
    Written(u32),
    Done,
    Error(i32),
    AnyError,
    Any,
}

/// A request that is not answered.
#[derive(Debug)]
struct Asked {
    unique: u64,
    /// Bytes of the file that it is about.
    range: Range<usize>,
    answer: Answer,
    /// What it makes of them.
    becomes: Option<Vec<u8>>,
}

struct Caller {
    socket: OwnedFd,
    how: How,
    file: Vec<u8>,
    asked: Vec<Asked>,
    next: u64,
    /// As many are asked before an answer is waited for.
    at_once: usize,
    is_stopped: bool,
    is_gone: bool,
    has_written: bool,
    has_read: bool,
    /// Answers that came while something was said.
    came: VecDeque<Vec<u8>>,
    room: Vec<u8>,
}

impl Caller {
    fn new(socket: OwnedFd, how: How) -> Caller {
        Caller {
            socket,
            how,
            file: vec![0; FILE],
            asked: Vec::new(),
            next: 1,
            at_once: 1,
            is_stopped: false,
            is_gone: false,
            has_written: false,
            has_read: false,
            came: VecDeque::new(),
            room: vec![0; 2 * FILE],
        }
    }

    fn send(&mut self, number: u32, body: &[u8]) -> u64 {
        let unique = self.next;
        self.next += 1;
        let user = rustix::process::geteuid().as_raw();
        let words = [user, user, std::process::id(), 0].map(u32::to_ne_bytes).concat();
        let head = [(40 + body.len()) as u32, number].map(u32::to_ne_bytes).concat();
        let head = [head, [unique, 1].map(u64::to_ne_bytes).concat(), words].concat();
        let all = [&head, body].concat();
        loop {
            match rustix::io::write(&self.socket, &all) {
                Ok(sent) => assert_eq!(sent, all.len()),
                Err(Errno::AGAIN) if self.how == How::Goes => self.is_gone = true,
                // Whoever answers waits until an answer is taken.
                Err(Errno::AGAIN) => {
                    let answer = self.take();
                    self.came.push_back(answer);
                    continue;
                }
                Err(e) => panic!("a request can't be sent: {e}"),
            }
            return unique;
        }
    }

    /// The first words, which are heard when somebody listens.
    fn begin(&mut self) {
        let version = [7u32, 31, 128 << 10, u32::MAX >> 2, 0];
        let mut body = version.map(u32::to_ne_bytes).concat();
        body.resize(64, 0);
        self.send(INIT, &body);
    }

    /// The next answer from the socket.
    fn take(&mut self) -> Vec<u8> {
        let bytes = rustix::io::read(&self.socket, &mut self.room[..]);
        self.room[..bytes.expect("each request is answered")].to_vec()
    }

    /// The next answer: its number, error and body.
    fn hear(&mut self) -> (u64, i32, Vec<u8>) {
        let heard = self.came.pop_front().unwrap_or_else(|| self.take());
        assert!(heard.len() >= 16 && word(&heard, 0) as usize == heard.len(), "an answer is whole");
        let unique = u64::from_ne_bytes(heard[8..16].try_into().expect("eight bytes"));
        (unique, -(word(&heard, 4) as i32), heard[16..].to_vec())
    }

    /// Does the script, and says when it is half done.
    fn converse(mut self, script: &[u8], mut tells: UnixStream) -> Caller {
        assert_eq!(self.hear().1, 0, "it is taken in");
        let mut rest = script;
        while let Some((kind, more)) = rest.split_first().filter(|_| !self.is_gone) {
            rest = self.item(*kind, more);
            if self.how == How::IsStopped && !self.is_stopped && rest.len() <= script.len() / 2 {
                // Some are asked before it, and answered behind it.
                self.is_stopped = true;
                tells.write_all(b"s").expect("it is heard");
            }
        }
        if self.how == How::Goes {
            // The core may be waiting for room for an answer: nothing else would end that.
            rustix::net::shutdown(&self.socket, Shutdown::Both).expect("a socket");
            return self;
        }
        self.settle();
        let unique = self.send(DESTROY, &[]);
        assert_eq!((self.hear().0, self.asked.len()), (unique, 0));
        self
    }

    /// Every request is answered.
    fn settle(&mut self) {
        while !self.asked.is_empty() && self.how != How::Goes {
            let (unique, error, body) = self.hear();
            let at = self.asked.iter().position(|asked| asked.unique == unique);
            let asked = self.asked.swap_remove(at.expect("an answer that nobody waits for"));
            if self.is_stopped && error == ENODEV {
                continue;
            }
            let is_right = match &asked.answer {
                Answer::Data(data) => error == 0 && body == *data,
                Answer::Written(bytes) => error == 0 && word(&body, 0) == *bytes,
                Answer::Done => error == 0,
                Answer::Error(wanted) => error == *wanted,
                Answer::AnyError => error != 0,
                Answer::Any => true,
            };
            assert!(is_right, "{error}, {} bytes, on {asked:?}", body.len());
            self.has_read |= matches!(&asked.answer, Answer::Data(data) if !data.is_empty());
            if let Some(becomes) = asked.becomes {
                self.file[asked.range].copy_from_slice(&becomes);
                self.has_written = true;
            }
        }
        self.asked.clear();
    }

    /// Asks, as soon as nothing is under way that is about the same bytes.
    fn ask(&mut self, number: u32, body: &[u8], range: Range<usize>, what: What) {
        let overlaps =
            |asked: &Asked| asked.range.start < range.end && range.start < asked.range.end;
        if self.asked.len() >= self.at_once || self.asked.iter().any(overlaps) {
            self.settle();
        }
        let (answer, becomes) = what(&self.file[range.clone()]);
        let unique = self.send(number, body);
        self.asked.push(Asked { unique, range, answer, becomes });
    }

    /// Does an item of a script; what is left of it.
    fn item<'a>(&mut self, kind: u8, rest: &'a [u8]) -> &'a [u8] {
        match kind % 8 {
            kind @ 0..=3 => {
                let Some((&[at, bytes, cut, mode], rest)) = rest.split_first_chunk() else {
                    return &[];
                };
                // Sectors, and parts of them; behind the end, too.
                let at = u64::from(at % 40) * 4096 + u64::from(cut & 0xf) * 512;
                let bytes = u64::from(bytes % 16) * 4096 + u64::from(cut >> 4) * 300;
                match kind {
                    0 | 1 => self.write(at, bytes, mode),
                    2 => self.read(at, bytes as u32),
                    _ => self.allocate(at, bytes, mode),
                }
                rest
            }
            // Any numbers.
            4 => {
                let Some((words, rest)) = rest.split_first_chunk::<17>() else { return &[] };
                let long = |at: usize| {
                    u64::from_le_bytes(words[at..at + 8].try_into().expect("eight bytes"))
                };
                match words[16] % 3 {
                    0 => self.read(long(0), long(8) as u32),
                    1 => self.write(long(0), long(8) % 5000, words[8]),
                    _ => self.allocate(long(0), long(8), words[16] / 3),
                }
                rest
            }
            5 => {
                let Some((which, rest)) = rest.split_first() else { return rest };
                let number = if which % 2 == 0 { FSYNC } else { FLUSH };
                self.ask(number, &[0; 24], 0..0, Box::new(|_| (Answer::Done, None)));
                rest
            }
            6 => {
                let Some((how_many, rest)) = rest.split_first() else { return rest };
                self.at_once = 1 + usize::from(how_many % 16);
                rest
            }
            _ => {
                let Some((which, rest)) = rest.split_first() else { return rest };
                let count = rest.first().map_or(0, |n| usize::from(*n) + 1).min(rest.len());
                let (body, rest) = rest.split_at(count);
                self.other(*which, body.get(1..).unwrap_or_default());
                rest
            }
        }
    }

    /// What of a range the file has.
    fn inside(at: u64, bytes: u64) -> Range<usize> {
        let at = at.min(FILE as u64);
        at as usize..(at + bytes.min(FILE as u64 - at)) as usize
    }

    fn read(&mut self, at: u64, bytes: u32) {
        let head = [1u64.to_ne_bytes(), at.to_ne_bytes()].concat();
        let body = [head, bytes.to_ne_bytes().to_vec(), vec![0; 20]].concat();
        let is_number = at <= i64::MAX as u64;
        let what: What = match is_number {
            true => Box::new(|now| (Answer::Data(now.to_vec()), None)),
            false => Box::new(|_| (Answer::AnyError, None)),
        };
        self.ask(READ, &body, Self::inside(at, bytes.into()), what);
    }

    fn write(&mut self, at: u64, bytes: u64, fill: u8) {
        let data: Vec<u8> = (0..bytes).map(|i| fill.wrapping_add((i / 64) as u8)).collect();
        let head = [1u64.to_ne_bytes(), at.to_ne_bytes()].concat();
        // Durable when it is answered, now and then.
        let flags = if fill & 1 == 1 { rustix::fs::OFlags::DSYNC.bits() } else { 0 };
        let words = [bytes as u32, 0, 0, 0, flags, 0].map(u32::to_ne_bytes).concat();
        let body = [head, words, data.clone()].concat();
        let range = Self::inside(at, bytes);
        let becomes = data[..range.len()].to_vec();
        let what: What = Box::new(move |_| match becomes.len() {
            _ if at > i64::MAX as u64 => (Answer::AnyError, None),
            0 => (Answer::Error(ENOSPC), None),
            bytes => (Answer::Written(bytes as u32), Some(becomes)),
        });
        self.ask(WRITE, &body, range, what);
    }

    fn allocate(&mut self, at: u64, bytes: u64, mode: u8) {
        let mode = u32::from(mode) & 0x7f;
        let numbers = [1u64, at, bytes].map(u64::to_ne_bytes).concat();
        let body = [numbers, [mode, 0].map(u32::to_ne_bytes).concat()].concat();
        let range = Self::inside(at, bytes);
        let (is_whole, zeros) = (range.len() as u64 == bytes, vec![0; range.len()]);
        let is_number = at <= i64::MAX as u64 && bytes <= i64::MAX as u64;
        let what: What = Box::new(move |_| match mode & !1 {
            _ if !is_number => (Answer::AnyError, None),
            2 => (Answer::Done, Some(zeros)),
            0 | 0x10 if !is_whole => (Answer::Error(ENOSPC), None),
            0 => (Answer::Done, None),
            0x10 => (Answer::Done, Some(zeros)),
            _ => (Answer::Error(EOPNOTSUPP), None),
        });
        self.ask(FALLOCATE, &body, range, what);
    }

    /// What is not about contents.
    fn other(&mut self, which: u8, body: &[u8]) {
        let mut body = body.to_vec();
        match usize::from(which) % (OTHERS.len() + 2) {
            0 => {
                self.settle();
                let unique = self.send(GETATTR, &[0; 16]);
                if self.how == How::Goes {
                    return;
                }
                let (heard, error, body) = self.hear();
                let size = u64::from_ne_bytes(body[24..32].try_into().expect("eight bytes"));
                assert_eq!((heard, error, size), (unique, 0, FILE as u64));
            }
            1 => {
                // The file has the size that it has.
                body.resize(88, 0);
                let size = body.first().map_or(0, |n| u64::from(*n) * 4096);
                body[..4].copy_from_slice(&8u32.to_ne_bytes());
                body[16..24].copy_from_slice(&size.to_ne_bytes());
                let answer = match size == FILE as u64 {
                    true => Answer::Done,
                    false => Answer::Error(EPERM),
                };
                self.ask(SETATTR, &body, 0..0, Box::new(|_| (answer, None)));
            }
            n => self.ask(OTHERS[n - 2], &body, 0..0, Box::new(|_| (Answer::Any, None))),
        }
    }
}

/// What a request does to bytes of the file: its answer, and what becomes of them.
type What = Box<dyn FnOnce(&[u8]) -> (Answer, Option<Vec<u8>>)>;

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(from[at..at + 4].try_into().expect("four bytes"))
}
