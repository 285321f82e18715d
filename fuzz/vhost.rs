//! A hostile front end of the vhost-user server with a hostile guest behind it, in virtual time.
//!
//! Owns: what the front end says (the input as it is, then as a script of messages, of bytes in the guest's memory
//! and of requests), a plain reading of what a chain of descriptors asks for. Promises: the server ends with its front
//! end, in bounded time, and serves the next one; as long as the guest's queue is what it was said to be, each chain
//! ends once, with the bytes in memory and on the disk that the plain reading says, and with no others. Never: opens a
//! listener, or knows how the server does it.

use super::client::{END_MAX, End, STOPPED_AT, converse};
use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, Io};
use flashlane_rt::{CostTable, Cx, Join, Virtual};
use flashlane_serve::{Export, Stop, vhost};
use flashlane_testkit::Ram;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::dup;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

pub(crate) const NAMES: [&str; 1] = ["vhost"];

/// Sectors of the disk.
const SECTORS: u64 = 32;
const DISK: usize = SECTORS as usize * SECTOR_BYTES;
/// The guest's memory: where it begins for the guest and for the front end, and its parts.
const BASE: u64 = 0x1_0000;
const THEIRS: u64 = 0x7000_0000;
const BYTES: usize = 0x2_0000;
const TABLE: usize = 0;
const AVAILABLE: usize = 0x400;
const USED: usize = 0x800;
const HEADS: usize = 0x1000;
const DATA: usize = 0x8000;
/// Places of the queue.
const SIZE: u16 = 16;
const RINGS: Range<usize> = AVAILABLE..USED + 6 + 8 * SIZE as usize;
/// Pieces of a chain at most.
const PIECES: usize = 134;
/// How often the front end looks.
const LOOK: Ns = Ns::from_us(5);
/// The device ends any request by then.
const SOON: Ns = Ns::from_ms(50);
/// What a queue that makes no sense gets.
const PAUSE: Ns = Ns::from_us(100);
/// As guests are told.
const TAKES_MAX: u64 = 32 << 20;
const DISCARDS_MAX: u64 = 4 << 30;
const RANGES_MAX: usize = 64;
/// What a request is answered with.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const UNKNOWN: u8 = 2;

/// Does with `bytes` what the target does, if it is this one.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    NAMES.contains(&target).then(|| {
        says(bytes, End::Listens);
        says(bytes, End::Stays);
        script(bytes, End::Stays);
        script(bytes, End::Goes)
    })
}

fn on_a_core<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce(Cx) -> F) -> T {
    let clock = Virtual::new(1, 1, CostTable::zero());
    clock.run(main(clock.cx())).expect("the server ends with its front end")
}

/// The input as it is.
fn says(bytes: &[u8], end: End) {
    let said = bytes.to_vec();
    on_a_core(|cx| async move {
        let mut front = Front::new(&cx);
        let socket = front.socket.take().expect("it is there");
        let _ = converse(&cx, &socket, &said, end).await;
        let socket = (end == End::Stays).then_some(socket);
        front.ended(socket).await;
        front.next_is_served().await;
    });
}

/// The input as a script: the first byte of an item says what it is. True when a request was done.
fn script(bytes: &[u8], end: End) -> bool {
    let script = bytes.to_vec();
    on_a_core(|cx| async move {
        let mut front = Front::new(&cx);
        let mut rest = &script[..];
        while let Some((kind, more)) = rest.split_first() {
            rest = front.item(*kind, more).await;
        }
        let socket = front.socket.take();
        front.ended(socket.filter(|_| end == End::Stays)).await;
        if front.is_disk_known {
            assert!(front.on_disk().await == front.disk, "the disk holds something else");
        }
        let was_done = front.was_done;
        front.next_is_served().await;
        was_done
    })
}

struct Front {
    cx: Cx,
    device: Arc<Ram>,
    export: Arc<Export>,
    /// The server of this connection.
    served: Option<Join<()>>,
    stop: Arc<Stop>,
    socket: Option<UnixStream>,
    memory: File,
    kick: OwnedFd,
    offered: u16,
    seen: u16,
    /// So is the queue, as far as it was said.
    is_set_up: bool,
    /// Nothing was said or done that makes no sense.
    is_sane: bool,
    /// What is heard and no whole message.
    heard: Vec<u8>,
    /// The last answer.
    answer: Option<(u32, Vec<u8>)>,
    disk: Vec<u8>,
    is_disk_known: bool,
    was_done: bool,
}

impl Front {
    fn new(cx: &Cx) -> Front {
        let device = Arc::new(Ram::new(SECTORS, SECTOR_BYTES, Ns::from_us(20), 1));
        let export = Arc::new(Export::new("disk", device.clone()));
        let mut front = Front {
            cx: cx.clone(),
            device,
            export,
            served: None,
            stop: Arc::default(),
            socket: None,
            memory: memory(BYTES),
            kick: event(),
            offered: 0,
            seen: 0,
            is_set_up: false,
            is_sane: true,
            heard: Vec::new(),
            answer: None,
            disk: vec![0; DISK],
            is_disk_known: true,
            was_done: false,
        };
        front.connect();
        front
    }

    /// Another connection to the same disk.
    fn connect(&mut self) {
        let (theirs, socket) = UnixStream::pair().expect("a pair of sockets");
        for end in [&theirs, &socket] {
            end.set_nonblocking(true).expect("a socket");
        }
        (self.stop, self.socket) = (Arc::default(), Some(socket));
        (self.is_set_up, self.is_sane) = (false, true);
        self.heard.clear();
        let (cx, export, stop) = (self.cx.clone(), self.export.clone(), self.stop.clone());
        self.served = Some(self.cx.spawn_join(async move {
            let _ = vhost::attend(&cx, theirs, &export, &stop).await;
        }));
    }

    /// The server ends with its front end, or at a stop where that stays.
    async fn ended(&mut self, stays: Option<UnixStream>) {
        if stays.is_some() {
            self.cx.sleep(STOPPED_AT).await;
            self.stop.raise(&self.cx);
        }
        let begun = self.cx.now();
        if let Some(served) = self.served.take() {
            served.await;
        }
        assert!(self.cx.now() - begun < Ns::from_secs(11), "it does not end");
        drop(stays);
    }

    /// Somebody who makes no trouble, on the same disk.
    async fn next_is_served(&mut self) {
        self.memory = memory(BYTES);
        self.connect();
        self.set_up(0).await;
        for (kind, sector) in [(1, 3), (4, 0), (0, 3)] {
            self.was_done = false;
            self.request(kind, sector, 1, 0).await;
            assert!(self.was_done && self.is_set_up, "request {kind} of somebody else");
        }
        assert!(self.get(DATA, SECTOR_BYTES) == [3; SECTOR_BYTES], "what it has written");
        let socket = self.socket.take();
        drop(socket);
        self.ended(None).await;
        assert!(self.cx.now() < END_MAX, "{}", self.cx.now());
    }

    async fn on_disk(&self) -> Vec<u8> {
        let mut all = vec![0; DISK];
        let io = Io::read(Lba::new(0), SECTORS as u32, &mut all);
        self.device.start(&self.cx, io).await.expect("it reads");
        all
    }

    /// From here on nobody knows what comes of it.
    fn spoil(&mut self, is_odd: bool) {
        self.is_set_up &= !is_odd;
        self.is_sane &= !is_odd;
        self.is_disk_known &= !is_odd;
    }

    /// Does an item of a script; what is left of it.
    async fn item<'a>(&mut self, kind: u8, rest: &'a [u8]) -> &'a [u8] {
        match kind % 8 {
            0 => {
                let (said, rest) = counted(rest);
                self.spoil(!said.is_empty());
                self.say(said, &[]).await;
                rest
            }
            1 => self.message(rest).await,
            2 => {
                let Some((how, rest)) = rest.split_first() else { return rest };
                self.set_up(*how).await;
                rest
            }
            3 => {
                let Some((at, rest)) = rest.split_first_chunk() else { return &[] };
                let (bytes, rest) = counted(rest);
                let at = usize::from(u16::from_le_bytes(*at)) * 2 % (BYTES - 256);
                self.spoil(at + bytes.len() > RINGS.start && at < RINGS.end);
                self.put(at, bytes);
                rest
            }
            4 => self.describe(rest),
            5 => {
                let Some((head, rest)) = rest.split_first() else { return rest };
                self.offer(u16::from(*head)).await;
                rest
            }
            6 => {
                let Some((&[kind, sector, sectors, cut], rest)) = rest.split_first_chunk() else {
                    return &[];
                };
                self.request(u32::from(kind), sector, sectors, cut).await;
                rest
            }
            _ => {
                let Some((&[what, value], rest)) = rest.split_first_chunk() else { return &[] };
                self.other(what, value).await;
                rest
            }
        }
    }

    /// Number, flags, which files, length, body.
    async fn message<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let Some((&[number, flags, files], rest)) = rest.split_first_chunk() else { return &[] };
        let (body, rest) = counted(rest);
        // Questions change nothing.
        let asks = matches!(number, 1 | 15 | 17) && flags & 0xf == 0 && files % 4 == 0;
        self.spoil(!asks);
        let which = |i: u8| match (files >> 2).wrapping_add(i) % 8 {
            0 | 1 => dup(&self.memory).expect("a descriptor"),
            2 => event(),
            3 => memory(4096).into(),
            4 => File::open("/dev/null").expect("it is there").into(),
            5 => UnixStream::pair().expect("a pair of sockets").0.into(),
            6 => std::io::pipe().expect("a pipe").1.into(),
            _ => dup(&self.kick).expect("a descriptor"),
        };
        let files: Vec<OwnedFd> = (0..files % 4).map(which).collect();
        // A version, a wish for an answer, and here and there what makes no sense.
        let flags = u32::from(flags & 0xf) ^ 1;
        self.send(u32::from(number), flags, body, &files).await;
        self.look().await;
        rest
    }

    /// Says everything that a queue needs.
    async fn set_up(&mut self, how: u8) {
        if self.is_set_up {
            self.halt().await;
        }
        self.put(RINGS.start, &[0; RINGS.end - RINGS.start]);
        (self.offered, self.seen) = (0, 0);
        let long = |words: &[u64]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>();
        let state = |value: u32| [0u32, value].map(u32::to_ne_bytes).concat();
        // Events by number, a cache to flush, chains in tables of their own.
        let all = 1u64 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 9;
        let without = u64::from(how & 1) << 29 | u64::from(how >> 1 & 1) << 9;
        let table = [1u32, 0].map(u32::to_ne_bytes).concat();
        let table = [table, long(&[BASE, BYTES as u64, THEIRS, 0])].concat();
        let at = |part: usize| THEIRS + part as u64;
        let places = [at(TABLE), at(USED), at(AVAILABLE), 0];
        let places = [state(0), long(&places)].concat();
        let memory = [dup(&self.memory).expect("a descriptor")];
        self.kick = event();
        let (kick, call) = ([dup(&self.kick).expect("a descriptor")], [event()]);
        self.send(3, 1, &[], &[]).await;
        self.send(2, 1, &long(&[all & !without]), &[]).await;
        self.send(5, 1, &table, &memory).await;
        self.send(8, 1, &state(SIZE.into()), &[]).await;
        self.send(9, 1, &places, &[]).await;
        self.send(10, 1, &state(0), &[]).await;
        self.send(13, 1, &long(&[0]), &call).await;
        self.send(12, 1, &long(&[0]), &kick).await;
        self.send(18, 1, &state(1), &[]).await;
        // Its answer comes when all of that is done.
        self.answer = None;
        self.send(1, 1, &[], &[]).await;
        let heard = self.until(|front| front.answer.is_some()).await;
        assert!(heard || !self.is_sane, "what makes sense is not answered");
        self.is_set_up = self.is_sane;
    }

    /// Place, where, length, flags, next.
    fn describe<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let Some((&[place, at, part, bytes, flags, next], rest)) = rest.split_first_chunk() else {
            return &[];
        };
        let part = u64::from(part) * 64;
        let at = match at % 8 {
            0..=2 => BASE + DATA as u64 + part,
            3 => BASE + HEADS as u64 + part / 4,
            4 => BASE + BYTES as u64 - 4096 + part,
            5 => BASE + part / 4,
            6 => part,
            _ => u64::MAX - part,
        };
        let bytes = match bytes {
            0..=99 => u32::from(bytes),
            100..=239 => u32::from(bytes - 99) * 512,
            _ => u32::MAX << (bytes - 224),
        };
        let [lo, hi] = [u16::from(flags & 7), u16::from(next)];
        let words = [at.to_le_bytes().to_vec(), bytes.to_le_bytes().to_vec()].concat();
        let words = [words, [lo, hi].map(u16::to_le_bytes).concat()].concat();
        self.put(TABLE + 16 * usize::from(place % SIZE as u8), &words);
        rest
    }

    /// A request as drivers make it, but for its numbers.
    async fn request(&mut self, kind: u32, sector: u8, sectors: u8, cut: u8) {
        let kind = match kind {
            0..=15 => kind,
            _ => kind % 2,
        };
        let bytes = u32::from(sectors % 16) * SECTOR_BYTES as u32;
        let bytes = bytes.saturating_sub(u32::from(cut & 1) * 512);
        let mut head = [0; 64];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[8..16].copy_from_slice(&(u64::from(sector) * 8).to_le_bytes());
        // A range, where the request is of that kind.
        head[16..24].copy_from_slice(&(u64::from(sector) * 8).to_le_bytes());
        head[24..28].copy_from_slice(&(bytes / 512).to_le_bytes());
        head[28..32].copy_from_slice(&u32::from(cut >> 1 & 1).to_le_bytes());
        self.put(HEADS, &head);
        if kind == 1 {
            self.put(DATA, &vec![sector; bytes as usize]);
        }
        let (data, length) = match kind {
            11 | 13 => (HEADS + 16, 16),
            _ => (DATA, bytes),
        };
        let writes = if matches!(kind, 1 | 11 | 13) { 0 } else { 2 };
        // Data in two pieces, where there is something to cut.
        let first = length.min(u32::from(cut) * 16);
        let pieces = [
            (HEADS, 16, 1),
            (data, first, 1 | writes),
            (data + first as usize, length - first, 1 | writes),
            (HEADS + 48, 1, 2),
        ];
        for (i, (at, bytes, flags)) in pieces.into_iter().enumerate() {
            let words = [(BASE + at as u64).to_le_bytes().to_vec(), bytes.to_le_bytes().to_vec()];
            let more = [flags, i as u16 + 1].map(u16::to_le_bytes).concat();
            self.put(TABLE + 16 * i, &[words.concat(), more].concat());
        }
        self.offer(0).await;
    }

    /// What else a front end does.
    async fn other(&mut self, what: u8, value: u8) {
        match what % 5 {
            0 => self.ring(),
            1 => {
                // So many more at once, of whatever is in the ring.
                self.offered = self.offered.wrapping_add(u16::from(value));
                self.spoil(value > 0);
                self.put(AVAILABLE + 2, &self.offered.to_le_bytes());
                self.ring();
            }
            2 => self.cx.sleep(Ns::from_us(u64::from(value))).await,
            3 => {
                drop(self.socket.take());
                self.ended(None).await;
                // Whatever became of it: nothing is under way.
                (self.disk, self.is_disk_known) = (self.on_disk().await, true);
                self.connect();
            }
            // It stops, says where it stands, and goes on there.
            _ if self.is_set_up => {
                self.halt().await;
                let kick = [dup(&self.kick).expect("a descriptor")];
                let place = [0, u32::from(self.offered)].map(u32::to_ne_bytes).concat();
                self.send(10, 1, &place, &[]).await;
                self.send(12, 1, &0u64.to_ne_bytes(), &kick).await;
            }
            _ => {}
        }
        self.look().await;
    }

    /// Stops the queue, which then has nothing under way.
    async fn halt(&mut self) {
        self.answer = None;
        self.send(11, 1, &[0; 8], &[]).await;
        self.until(|front| front.answer.is_some()).await;
        let (number, body) = self.answer.clone().expect("it says where it stands");
        assert_eq!((number, word(&body, 4)), (11, u32::from(self.offered)));
    }

    /// Makes a chain available, and looks at what came of it.
    async fn offer(&mut self, head: u16) {
        let place = AVAILABLE + 4 + 2 * usize::from(self.offered % SIZE);
        self.put(place, &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.offered.to_le_bytes());
        let before = self.get(0, BYTES);
        let mut chain = Chain::of(&before, head);
        let touches = |at: u64, bytes: u32| {
            let (from, end) = (BASE + RINGS.start as u64, BASE + RINGS.end as u64);
            at < end && at.saturating_add(u64::from(bytes)) > from
        };
        if let Some(pieces) = &chain.pieces {
            // What the queue itself is made of is no memory like any other.
            self.spoil(pieces.iter().any(|(at, bytes, _)| touches(*at, *bytes)));
        }
        if !self.is_set_up {
            self.ring();
            self.cx.sleep(PAUSE).await;
            self.look().await;
            return;
        }
        if head >= SIZE {
            self.ring();
            assert!(self.until(|front| front.socket.is_none()).await, "a head that is none");
            return self.spoil(true);
        }
        let mut after = before;
        let bytes = chain.done(&mut after, &mut self.disk);
        self.ring();
        let seen = self.seen;
        let told = self.until(|front| front.used() != seen).await;
        assert!(told, "no chain of a queue is forgotten");
        self.seen = seen.wrapping_add(1);
        assert_eq!(self.used(), self.seen, "each ends once");
        let place = USED + 4 + 8 * usize::from(seen % SIZE);
        after[place..place + 4].copy_from_slice(&u32::from(head).to_le_bytes());
        after[place + 4..place + 8].copy_from_slice(&bytes.to_le_bytes());
        after[USED + 2..USED + 4].copy_from_slice(&self.seen.to_le_bytes());
        // Whether it wants to be rung is the server's own.
        let mut now = self.get(0, BYTES);
        for own in [USED..USED + 2, RINGS.end - 2..RINGS.end] {
            now[own.clone()].fill(0);
            after[own].fill(0);
        }
        let wrong = now.iter().zip(&after).position(|(now, after)| now != after);
        assert_eq!(wrong, None, "a byte of the guest's memory, {chain:?}");
        self.was_done |= chain.status == Some(DONE);
    }

    /// How many have ended.
    fn used(&self) -> u16 {
        u16::from_le_bytes(self.get(USED + 2, 2).try_into().expect("two bytes"))
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at as u64).expect("memory");
    }

    fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut to = vec![0; bytes];
        self.memory.read_exact_at(&mut to, at as u64).expect("memory");
        to
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    async fn send(&mut self, number: u32, flags: u32, body: &[u8], files: &[OwnedFd]) {
        let head = [number, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
        self.say(&[&head, body].concat(), files).await;
    }

    /// Says it, as long as somebody hears it.
    async fn say(&mut self, bytes: &[u8], files: &[OwnedFd]) {
        let mut sent = 0;
        for _ in 0..1000 {
            let Some(socket) = self.socket.as_ref().filter(|_| sent < bytes.len()) else { return };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut more = SendAncillaryBuffer::new(&mut space);
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            if sent == 0 && !files.is_empty() {
                more.push(SendAncillaryMessage::ScmRights(&files));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(socket, &[IoSlice::new(&bytes[sent..])], &mut more, flags) {
                Ok(n) => sent += n,
                Err(rustix::io::Errno::AGAIN) => self.cx.sleep(LOOK).await,
                Err(_) => self.socket = None,
            }
            self.hear();
        }
    }

    /// Takes what was said. What the server says is whole messages.
    fn hear(&mut self) {
        let mut some = [0; 4096];
        while let Some(mut socket) = self.socket.as_ref() {
            match socket.read(&mut some) {
                Ok(n) if n > 0 => self.heard.extend(&some[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                _ => self.socket = None,
            }
        }
        while self.heard.len() >= 12 {
            let [number, flags, bytes] = [0, 4, 8].map(|at| word(&self.heard, at));
            assert!(flags == 5 && bytes <= 4096, "{number}: {flags:#x}, {bytes} bytes");
            let Some(body) = self.heard.get(12..12 + bytes as usize) else { break };
            self.answer = Some((number, body.to_vec()));
            self.heard.drain(..12 + bytes as usize);
        }
    }

    async fn look(&mut self) {
        self.cx.sleep(LOOK).await;
        self.hear();
    }

    /// Waits for something, not for ever. True where it came; the end of a connection may be what it waits for.
    async fn until(&mut self, seen: impl Fn(&Front) -> bool) -> bool {
        let end = self.cx.now() + SOON;
        while !seen(self) && self.cx.now() < end {
            self.look().await;
        }
        seen(self)
    }
}

/// What a chain asks for, read plainly off a copy of the guest's memory.
#[derive(Debug)]
struct Chain {
    /// Where, how long, whether the device may write there. Nothing where they make no chain.
    pieces: Option<Vec<(u64, u32, bool)>>,
    status: Option<u8>,
}

fn inside(at: u64, bytes: u64) -> bool {
    let end = at.checked_add(bytes);
    bytes == 0 || at >= BASE && end.is_some_and(|end| end <= BASE + BYTES as u64)
}

impl Chain {
    fn of(memory: &[u8], head: u16) -> Chain {
        let (mut table, mut size, mut next) =
            (BASE + TABLE as u64, u64::from(SIZE), u64::from(head));
        let (mut pieces, mut is_indirect) = (Vec::new(), false);
        let pieces = loop {
            let at = table.checked_add(next * 16).filter(|at| next < size && inside(*at, 16));
            let Some(at) = at.map(|at| (at - BASE) as usize) else { break None };
            let found = &memory[at..at + 16];
            let where_ = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
            let bytes = u32::from_le_bytes(found[8..12].try_into().expect("four bytes"));
            let [flags, link] = [12, 14].map(|at| u16::from_le_bytes([found[at], found[at + 1]]));
            if flags & 4 != 0 {
                if is_indirect || flags & 1 != 0 || bytes % 16 != 0 || bytes / 16 > 0xffff {
                    break None;
                }
                (table, size, next, is_indirect) = (where_, u64::from(bytes / 16), 0, true);
                continue;
            }
            let writes = flags & 2 != 0;
            let is_late = !writes && pieces.last().is_some_and(|(_, _, writes)| *writes);
            if is_late || pieces.len() == PIECES {
                break None;
            }
            pieces.push((where_, bytes, writes));
            if flags & 1 == 0 {
                break Some(pieces);
            }
            next = u64::from(link);
        };
        Chain { pieces, status: None }
    }

    /// Does it to the memory and to the disk: the bytes that a guest is told of.
    fn done(&mut self, memory: &mut [u8], disk: &mut [u8]) -> u32 {
        let Some(pieces) = self.pieces.clone() else { return 0 };
        let are_inside = pieces.iter().all(|(at, bytes, _)| inside(*at, u64::from(*bytes)));
        let sum = |writes| {
            let these = pieces.iter().filter(|piece| piece.2 == writes);
            these.map(|piece| u64::from(piece.1)).sum::<u64>()
        };
        let (given, room) = (sum(false), sum(true));
        let done = match are_inside && room > 0 && given >= 16 {
            true => {
                let given = pieces.iter().filter(|piece| !piece.2).flat_map(|(at, bytes, _)| {
                    let at = (at.saturating_sub(BASE) as usize).min(BYTES);
                    memory[at..at + *bytes as usize].to_vec()
                });
                ask(&given.collect::<Vec<_>>(), room - 1, disk)
            }
            false => Err(FAILED),
        };
        if let Ok(back) = &done {
            scatter(&pieces, 0, back, memory);
        }
        let status = done.as_ref().map_or_else(|status| *status, |_| DONE);
        self.status = Some(status);
        match room.checked_sub(1).is_some_and(|at| scatter(&pieces, at, &[status], memory)) {
            true => done.map_or(0, |back| back.len() as u32) + 1,
            false => 0,
        }
    }
}

/// Puts bytes where the device may write, from its byte `from` on; false where that is no memory.
fn scatter(pieces: &[(u64, u32, bool)], mut from: u64, bytes: &[u8], memory: &mut [u8]) -> bool {
    let mut left = bytes;
    for (at, has, _) in pieces.iter().filter(|piece| piece.2) {
        let has = u64::from(*has);
        let skipped = from.min(has);
        from -= skipped;
        let n = (has - skipped).min(left.len() as u64);
        if n > 0 {
            let Some(at) = at.checked_add(skipped).filter(|at| inside(*at, n)) else {
                return false;
            };
            let at = (at - BASE) as usize;
            memory[at..at + n as usize].copy_from_slice(&left[..n as usize]);
            left = &left[n as usize..];
        }
    }
    left.is_empty()
}

/// What a request asks of the disk: the bytes that come back, or a status.
fn ask(given: &[u8], room: u64, disk: &mut [u8]) -> Result<Vec<u8>, u8> {
    let (head, data) = given.split_at(16);
    let sector = u64::from_le_bytes(head[8..].try_into().expect("eight bytes"));
    let range = |sector: u64, bytes: u64| {
        let each = SECTOR_BYTES as u64;
        let at = sector.checked_mul(512).ok_or(FAILED)?;
        let end = at.checked_add(bytes).filter(|end| *end <= DISK as u64).ok_or(FAILED)?;
        let is_whole = at.is_multiple_of(each) && bytes.is_multiple_of(each);
        is_whole.then_some(at as usize..end as usize).ok_or(FAILED)
    };
    let of_data = |bytes: u64| match bytes {
        1..=TAKES_MAX => range(sector, bytes),
        _ => Err(FAILED),
    };
    match word(head, 0).to_le() {
        0 => Ok(disk[of_data(room)?].to_vec()),
        1 => {
            disk[of_data(data.len() as u64)?].copy_from_slice(data);
            Ok(Vec::new())
        }
        4 => Ok(Vec::new()),
        8 => {
            let mut name = b"disk".to_vec();
            name.resize(20, 0);
            name.truncate(room.min(20) as usize);
            Ok(name)
        }
        kind @ (11 | 13) => {
            if data.is_empty() || data.len() % 16 != 0 || data.len() > 16 * RANGES_MAX {
                return Err(FAILED);
            }
            let mut clears = Vec::new();
            for each in data.chunks(16) {
                let sector = u64::from_le_bytes(each[..8].try_into().expect("eight bytes"));
                let (bytes, flags) = (u64::from(word(each, 8)) * 512, word(each, 12));
                let (most, known) = if kind == 11 { (DISCARDS_MAX, 0) } else { (TAKES_MAX, 1) };
                if flags & !known != 0 {
                    return Err(UNKNOWN);
                }
                if bytes > most {
                    return Err(FAILED);
                }
                clears.push(range(sector, bytes)?);
            }
            clears.into_iter().for_each(|range| disk[range].fill(0));
            Ok(Vec::new())
        }
        _ => Err(UNKNOWN),
    }
}

fn memory(bytes: usize) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("fuzz", flags).expect("memory"));
    ftruncate(&file, bytes as u64).expect("memory");
    file
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event")
}

/// Bytes behind their number.
fn counted(from: &[u8]) -> (&[u8], &[u8]) {
    let Some((count, rest)) = from.split_first() else { return (from, from) };
    rest.split_at(rest.len().min(usize::from(*count)))
}

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(from[at..at + 4].try_into().expect("four bytes"))
}
