//! Conversations of a server with clients that this file plays, in virtual time.
//!
//! Owns: a disk in memory that takes time, a client that says bytes and hears bytes. Promises: what
//! is heard is a function of what is said. Never: waits on the clock of the machine.

use super::wire::{can, command, error, flag, option, reply};
use super::{
    CHOICE, CLIENTS_MAX, HANDSHAKE_MAX, NEXT_SEAT, PARTING, PATIENCE, SEAT_MAX, attend, serve,
    session,
};
use crate::noting::Noting;
use crate::room::Pool;
use crate::{Client, Export, Listener, Stop};
use flashlane_base::{Lba, Ns, SECTOR_BYTES};
use flashlane_ftl::block::{
    BlockDev, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Started,
};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Cx, Virtual};
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

const SECTOR: u32 = SECTOR_BYTES as u32;

/// A disk whose sectors are kept where they were written. Each request takes some time.
struct Disk {
    info: BlockInfo,
    sectors: Mutex<Vec<Option<Vec<u8>>>>,
    takes: Ns,
}

impl Disk {
    fn new(capacity: u64, takes: Ns) -> Disk {
        let info = BlockInfo { capacity, content_bytes: SECTOR_BYTES, layer: "disk" };
        Disk { info, sectors: Mutex::new(vec![None; capacity as usize]), takes }
    }

    async fn perform(&self, cx: &Cx, mut io: Io<'_>) -> BlockResult {
        io.check(&self.info)?;
        cx.sleep(self.takes).await;
        let mut sectors = self.sectors.lock();
        for i in 0..io.sectors {
            let kept = &mut sectors[io.lba.get() as usize + i as usize];
            match &mut io.payload {
                Payload::Read(to) => match kept {
                    Some(content) => to.sector(i, SECTOR_BYTES).copy_from_slice(content),
                    None => to.sector(i, SECTOR_BYTES).fill(0),
                },
                Payload::Write(from) => {
                    *kept = from.from(i, SECTOR_BYTES).next().map(<[u8]>::to_vec);
                }
                Payload::None => *kept = None,
            }
        }
        Ok(())
    }
}

impl BlockDev for Disk {
    fn info(&self) -> &BlockInfo {
        &self.info
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(self.perform(cx, io))
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        let sectors = self.sectors.lock();
        Extent::of(&self.info, lba, most, |lba| sectors[lba as usize].is_some())
    }
}

/// Exports of a disk each of so many sectors.
fn exports(names: &[&str], capacity: u64, takes: Ns) -> Arc<[Arc<Export>]> {
    let one = |name: &&str| Arc::new(Export::new(name, Arc::new(Disk::new(capacity, takes))));
    names.iter().map(one).collect()
}

/// The client's side of a connection, which it looks at again and again: virtual time goes on.
struct Peer {
    socket: UnixStream,
    cx: Cx,
}

/// How often a peer looks.
const LOOK: Ns = Ns::from_us(1);

impl Peer {
    async fn hear(&self, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            match (&self.socket).read(&mut all[done..]) {
                Ok(0) => panic!("the server has ended behind {:?}", &all[..done]),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.cx.sleep(LOOK).await,
                Err(e) => panic!("{e}"),
            }
        }
        all
    }

    /// Everything up to the server's end.
    async fn rest(&self) -> Vec<u8> {
        let (mut all, mut some) = (Vec::new(), [0; 4096]);
        loop {
            match (&self.socket).read(&mut some) {
                Ok(0) => return all,
                Ok(n) => all.extend(&some[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.cx.sleep(LOOK).await,
                // It ended with something unread.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return all,
                Err(e) => panic!("{e}"),
            }
        }
    }

    async fn say(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match (&self.socket).write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.cx.sleep(LOOK).await,
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// The types of the replies to an option, and the data of the last that was asked for.
    async fn option(&self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.say(&said_option(number, data)).await;
        let mut replies = Vec::new();
        loop {
            let head = self.hear(20).await;
            assert_eq!(word(&head, 8), number);
            let kind = word(&head, 12);
            let data = self.hear(word(&head, 16) as usize).await;
            replies.push((kind, data));
            if kind == reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    /// Begins the transmission, with these options before it.
    async fn begin(&self, options: &[(u32, Vec<u8>)]) -> u16 {
        self.hear(18).await;
        self.say(&3u32.to_be_bytes()).await;
        for (number, data) in options {
            self.option(*number, data).await;
        }
        let replies = self.option(option::GO, &[0; 6]).await;
        assert_eq!(replies.last().map(|(kind, _)| *kind), Some(reply::ACK));
        flags_of(&replies)
    }

    async fn request(&self, flags: u16, command: u16, offset: u64, bytes: u32) {
        self.say(&said_request(flags, command, offset, bytes)).await;
    }

    /// The error of a simple reply.
    async fn simple(&self) -> u32 {
        let head = self.hear(16).await;
        assert_eq!((word(&head, 0), &head[8..]), (0x6744_6698, &COOKIE.to_be_bytes()[..]));
        word(&head, 4)
    }

    /// The next piece of a read's data, `done` bytes of which have come; none where it failed.
    async fn data(&self, structured: bool, done: usize) -> Option<Vec<u8>> {
        if !structured {
            if done == 0 {
                assert_eq!(self.simple().await, 0);
            }
            return Some(self.hear(SECTOR_BYTES).await);
        }
        let head = self.hear(20).await;
        assert_eq!((word(&head, 0), &head[8..16]), (0x668e_33ef, &COOKIE.to_be_bytes()[..]));
        let payload = self.hear(word(&head, 16) as usize).await;
        match u16::from_be_bytes([head[6], head[7]]) {
            1 => Some(payload[8..].to_vec()),
            _ => {
                assert_eq!((head[5], word(&payload, 0)), (1, error::IO), "it fails, and ends");
                None
            }
        }
    }

    /// Type and payload of a chunk, the only one of its reply.
    async fn chunk(&self) -> (u16, Vec<u8>) {
        let head = self.hear(20).await;
        assert_eq!((word(&head, 0), &head[8..16]), (0x668e_33ef, &COOKIE.to_be_bytes()[..]));
        assert_eq!(head[4..6], [0, 1], "the last of its reply");
        (u16::from_be_bytes([head[6], head[7]]), self.hear(word(&head, 16) as usize).await)
    }
}

const COOKIE: u64 = 0x0123_4567_89ab_cdef;

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(from[at..at + 4].try_into().expect("four bytes"))
}

fn said_option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &number.to_be_bytes()[..], &length, data].concat()
}

fn said_request(flags: u16, command: u16, offset: u64, bytes: u32) -> Vec<u8> {
    let magic = 0x2560_9513u32.to_be_bytes();
    let (flags, command) = (flags.to_be_bytes(), command.to_be_bytes());
    [
        &magic[..],
        &flags,
        &command,
        &COOKIE.to_be_bytes(),
        &offset.to_be_bytes(),
        &bytes.to_be_bytes(),
    ]
    .concat()
}

/// An export's name and queries of contexts.
fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let count = (queries.len() as u32).to_be_bytes().to_vec();
    let queries = queries.iter().flat_map(|query| text(query));
    [text(name), count, queries.collect()].concat()
}

/// Transmission flags among the replies to INFO or GO.
fn flags_of(replies: &[(u32, Vec<u8>)]) -> u16 {
    let of_export = |(kind, data): &&(u32, Vec<u8>)| *kind == reply::INFO && data[..2] == [0, 0];
    let (_, data) = replies.iter().find(of_export).expect("what the export can do");
    u16::from_be_bytes([data[10], data[11]])
}

/// A peer of a server that runs beside it, and when that has ended.
fn connected(
    cx: &Cx,
    exports: Arc<[Arc<Export>]>,
    stop: &Arc<Stop>,
) -> (Peer, impl Future<Output = ()> + use<>) {
    let (theirs, socket) = UnixStream::pair().expect("a pair");
    for end in [&socket, &theirs] {
        end.set_nonblocking(true).expect("a socket");
    }
    let (server, stop) = (cx.clone(), stop.clone());
    let served = cx.spawn_join(async move {
        attend(&server, Client::Unix(theirs), &exports, &stop).await;
    });
    (Peer { socket, cx: cx.clone() }, served)
}

/// A virtual run looks at its files once in a while: now it has.
async fn settled(cx: &Cx) {
    for _ in 0..200 {
        cx.sleep(LOOK).await;
    }
}

/// Runs `main` in virtual time.
fn run<F: Future<Output = ()> + 'static>(main: impl FnOnce(Cx) -> F) {
    let clock = Virtual::new(1, 1, CostTable::zero());
    clock.run(main(clock.cx())).expect("nothing stalls");
}

#[test]
fn every_reply_is_whole_whatever_came_before_it() {
    run(|cx| async move {
        let (peer, served) = connected(&cx, exports(&["a"], 16, LOOK), &Arc::default());
        let structured = (option::STRUCTURED_REPLY, vec![]);
        let allocation = (option::SET_META_CONTEXT, contexts("a", &["base:allocation"]));
        peer.begin(&[structured, allocation]).await;
        let data = vec![7; 2 * SECTOR_BYTES];
        for _ in 0..3 {
            peer.request(flag::FUA, command::WRITE, 4096, 2 * SECTOR).await;
            peer.say(&data).await;
            assert_eq!(peer.simple().await, 0);
            peer.request(flag::DF, command::READ, 4096, 2 * SECTOR).await;
            let (kind, read) = peer.chunk().await;
            assert_eq!((kind, &read[..8]), (1, &4096u64.to_be_bytes()[..]));
            assert!(read[8..] == data);
            peer.request(0, command::READ, 16 * 4096, SECTOR).await;
            let (kind, said) = peer.chunk().await;
            assert_eq!((kind, word(&said, 0)), (1 << 15 | 1, error::INVALID));
            for (one, extents) in
                [(0, &[(4096, 3), (8192, 0), (13 * 4096, 3)][..]), (flag::REQ_ONE, &[(4096, 3)])]
            {
                peer.request(one, command::BLOCK_STATUS, 0, 16 * SECTOR).await;
                let (kind, status) = peer.chunk().await;
                let extents = extents.iter().flat_map(|(bytes, is)| [*bytes, *is]);
                let words: Vec<u8> =
                    [1].into_iter().chain(extents).flat_map(u32::to_be_bytes).collect();
                assert_eq!((kind, status), (5, words));
            }
        }
        peer.request(0, command::DISCONNECT, 0, 0).await;
        assert!(peer.rest().await.is_empty());
        served.await;
    });
}

#[test]
fn what_needs_structured_replies_is_offered_only_with_them() {
    run(|cx| async move {
        let stop = Arc::default();
        let (peer, _) = connected(&cx, exports(&["a"], 16, LOOK), &stop);
        peer.hear(18).await;
        peer.say(&3u32.to_be_bytes()).await;
        // Not fragmented: a promise about chunks, of which there are none before.
        let flags = flags_of(&peer.option(option::INFO, &[0; 6]).await);
        assert_eq!(flags & can::DF, 0);
        peer.option(option::STRUCTURED_REPLY, &[]).await;
        let with = flags_of(&peer.option(option::INFO, &[0; 6]).await);
        assert_eq!(with, flags | can::DF);
        peer.say(&said_option(option::EXPORT_NAME, b"a")).await;
        let told = peer.hear(10).await;
        assert_eq!(told[8..], with.to_be_bytes());
        // Without them it makes no sense, and a read goes on without it.
        let (peer, _) = connected(&cx, exports(&["a"], 16, LOOK), &stop);
        assert_eq!(peer.begin(&[]).await, flags);
        peer.request(flag::DF, command::READ, 0, SECTOR).await;
        assert_eq!(peer.simple().await, error::INVALID);
        peer.request(0, command::READ, 0, SECTOR).await;
        assert_eq!(peer.simple().await, 0);
        assert!(peer.hear(SECTOR_BYTES).await == [0; SECTOR_BYTES]);
    });
}

#[test]
fn the_last_contexts_that_were_asked_for_count_also_when_that_failed() {
    let set = |data: Vec<u8>| (option::SET_META_CONTEXT, data);
    let good = || set(contexts("a", &["base:allocation"]));
    for (then, knows) in [
        (good(), true),
        (set(contexts("a", &["qemu:dirty-bitmap:b"])), false),
        (set(contexts("nothing", &["base:allocation"])), false),
        (set(vec![1, 2, 3]), false),
        (set(vec![0; 9 << 10]), false),
        (set(contexts("b", &["base:allocation"])), false),
    ] {
        let first = good();
        run(|cx| async move {
            let (peer, _) = connected(&cx, exports(&["a", "b"], 16, LOOK), &Arc::default());
            peer.hear(18).await;
            peer.say(&3u32.to_be_bytes()).await;
            peer.option(option::STRUCTURED_REPLY, &[]).await;
            for (number, data) in [first, then] {
                peer.option(number, &data).await;
            }
            peer.option(option::GO, &[0, 0, 0, 1, b'a', 0, 0]).await;
            peer.request(0, command::BLOCK_STATUS, 0, SECTOR).await;
            let (kind, _) = peer.chunk().await;
            assert_eq!(kind == 5, knows);
        });
    }
}

#[test]
fn a_name_that_can_t_be_refused_ends_the_connection() {
    for name in [vec![b'x'; 3], vec![b'x'; 9 << 10], vec![0xff; 2]] {
        run(|cx| async move {
            let (peer, served) = connected(&cx, exports(&["a"], 16, LOOK), &Arc::default());
            peer.hear(18).await;
            peer.say(&3u32.to_be_bytes()).await;
            peer.say(&said_option(option::EXPORT_NAME, &name)).await;
            // Whatever it said would be taken for the size of an export.
            assert!(peer.rest().await.is_empty());
            served.await;
        });
    }
}

/// A disk that keeps nothing. Each request takes some time.
struct Slow(BlockInfo, Ns);

impl BlockDev for Slow {
    fn info(&self) -> &BlockInfo {
        &self.0
    }
    fn start<'a>(&'a self, cx: &'a Cx, _: Io<'a>) -> Started<'a> {
        Started::later(async move {
            cx.sleep(self.1).await;
            Ok(())
        })
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        Extent::of(&self.0, lba, most, |_| true)
    }
}

/// A device of 4 GiB on which a request takes so long, of whatever length.
fn slow(takes: Ns) -> Arc<[Arc<Export>]> {
    let info = BlockInfo { capacity: 1 << 20, content_bytes: SECTOR_BYTES, layer: "slow" };
    [Arc::new(Export::new("a", Arc::new(Slow(info, takes))))].into()
}

#[test]
fn zeros_of_a_client_that_is_gone_are_not_written_to_their_end() {
    // Gone, and a server that is stopped under one that stays.
    for gone in [true, false] {
        run(|cx| async move {
            let stop = Arc::default();
            let (peer, served) = connected(&cx, slow(Ns::from_secs(1)), &stop);
            peer.begin(&[]).await;
            for _ in 0..20 {
                // 256 requests to the device each.
                peer.request(flag::NO_HOLE, command::WRITE_ZEROES, 0, u32::MAX - 4095).await;
            }
            settled(&cx).await;
            let begun = cx.now();
            match gone {
                true => drop(peer),
                false => stop.raise(&cx),
            }
            settled(&cx).await;
            served.await;
            let took = cx.now() - begun;
            assert!(took <= PARTING + Ns::from_secs(3), "gone: {gone}, {took}");
        });
    }
}

#[test]
fn long_requests_without_data_are_bounded_too() {
    run(|cx| async move {
        let (peer, _) = connected(&cx, slow(Ns::from_us(100)), &Arc::default());
        peer.begin(&[]).await;
        // A flush behind them waits for room, so it shows how many are done at a time.
        for (flags, command, at_once) in
            [(flag::NO_HOLE, command::WRITE_ZEROES, 1), (0, command::TRIM, 8)]
        {
            for _ in 0..20 {
                peer.request(flags, command, 0, 1 << 30).await;
            }
            let begun = cx.now();
            peer.request(0, command::FLUSH, 0, 0).await;
            for _ in 0..21 {
                assert_eq!(peer.simple().await, 0);
            }
            let took = cx.now() - begun;
            let each = if command == command::TRIM { 1 } else { 64 };
            let at_least = Ns::from_us(100 * 20 / at_once * each);
            assert!(took >= at_least, "{command}: {took}, not {at_least}");
        }
    });
}

/// A listener of a name that only this test knows.
fn listener(name: &str) -> (UnixListener, SocketAddr) {
    let name = format!("flashlane-{}-{name}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    (UnixListener::bind_addr(&address).expect("nobody has it"), address)
}

fn connect(to: &SocketAddr, says: &[u8]) -> UnixStream {
    let mut socket = UnixStream::connect_addr(to).expect("somebody listens");
    socket.write_all(says).expect("it fits");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// What a client says that chooses the export without a name, does something, and ends.
fn whole_client() -> Vec<u8> {
    let read = said_request(0, command::READ, 0, SECTOR);
    let end = said_request(0, command::DISCONNECT, 0, 0);
    [&3u32.to_be_bytes()[..], &said_option(option::GO, &[0; 6]), &read, &end].concat()
}

#[test]
fn whoever_does_not_choose_an_export_gives_the_seat_back() {
    run(|cx| async move {
        let ((listener, address), stop) = (listener("half"), Arc::new(Stop::default()));
        // Silent, in the middle of an option, and asking again and again for data that never comes.
        let option = said_option(option::GO, &[0; 6]);
        let in_option = [&3u32.to_be_bytes()[..], &option[..20]].concat();
        let says = [&[][..], &in_option, &[0, 0]];
        let of = |i: u64| connect(&address, says[i as usize % says.len()]);
        let half: Vec<UnixStream> = (0..CLIENTS_MAX as u64).map(of).collect();
        // Behind them waits somebody who behaves.
        let socket = connect(&address, &whole_client());
        let (server, theirs) = (cx.clone(), stop.clone());
        let served = cx.spawn_join(async move {
            serve(&server, Listener::Unix(listener), exports(&["a"], 16, LOOK), theirs).await
        });
        let waiting = Peer { socket, cx: cx.clone() };
        cx.sleep(CHOICE - Ns::from_ms(1)).await;
        assert_eq!(
            (&waiting.socket).read(&mut [0]).map_err(|e| e.kind()),
            Err(ErrorKind::WouldBlock)
        );
        cx.sleep(Ns::from_ms(2)).await;
        settled(&cx).await;
        assert_eq!((&waiting.socket).read(&mut [0; 18]).expect("a hello by now"), 18);
        assert!(waiting.rest().await.len() > SECTOR_BYTES);
        assert!(cx.now() < CHOICE + Ns::from_ms(100), "{}", cx.now());
        cx.sleep(HANDSHAKE_MAX - CHOICE).await;
        // Nobody wants the seats of the others, and they go in their time.
        cx.sleep(Ns::from_ms(100)).await;
        for mut socket in half {
            let mut rest = Vec::new();
            let ended = socket.read_to_end(&mut rest).map_err(|e| e.kind());
            assert_ne!(ended, Err(ErrorKind::WouldBlock), "it is left");
        }
        stop.raise(&cx);
        served.await.expect("it could listen");
    });
}

/// Hello, and three replies to the option.
const CHOSEN: usize = 18 + 20 + 12 + 20 + 14 + 20;

/// Clients may be idle for ever as long as there are seats. Then the one that was idle longest
/// makes room, when that is a minute; until then one that comes is told that there is none.
#[test]
fn whoever_idles_longest_makes_room_where_all_seats_are_taken() {
    run(|cx| async move {
        let ((listener, address), stop) = (listener("idle"), Arc::new(Stop::default()));
        let go = [&3u32.to_be_bytes()[..], &said_option(option::GO, &[0; 6])].concat();
        let peer = |says: &[u8]| Peer { socket: connect(&address, says), cx: cx.clone() };
        let (server, theirs) = (cx.clone(), stop.clone());
        let served = cx.spawn_join(async move {
            serve(&server, Listener::Unix(listener), exports(&["a"], 16, LOOK), theirs).await
        });
        let mut idle = Vec::new();
        for _ in 0..CLIENTS_MAX {
            idle.push(peer(&go));
            idle.last().expect("one").hear(CHOSEN).await;
        }
        // There is no seat, and it is said.
        for wait in [SEAT_MAX, NEXT_SEAT] {
            let begun = cx.now();
            let refused = peer(&go);
            let heard = refused.rest().await;
            let took = cx.now() - begun;
            assert!(took >= wait && took < wait + Ns::from_ms(10), "{took}");
            assert_eq!(word(&heard, 18 + 12), reply::SHUTDOWN);
            let words = String::from_utf8_lossy(&heard[18 + 20..]);
            assert!(words.contains("all 256 seats"), "{words}");
        }
        cx.sleep(PATIENCE).await;
        for peer in &idle[1..] {
            peer.request(0, command::READ, 0, SECTOR).await;
            assert_eq!(peer.simple().await, 0);
            peer.hear(SECTOR_BYTES).await;
        }
        assert!(peer(&whole_client()).rest().await.len() > SECTOR_BYTES);
        assert!(idle[0].rest().await.is_empty(), "it is left");
        for peer in &idle[1..] {
            peer.request(0, command::READ, 0, SECTOR).await;
            assert_eq!(peer.simple().await, 0);
        }
        stop.raise(&cx);
        served.await.expect("it could listen");
    });
}

/// A sector in the last piece of a read can't be read.
async fn fails_late(peer: Peer, structured: bool) {
    peer.request(0, command::READ, 15000 * 4096, 1001 * SECTOR).await;
    if !structured {
        assert!(peer.rest().await.len() < 1001 * SECTOR_BYTES, "it ends before");
        return;
    }
    let mut heard = 0;
    while let Some(more) = peer.data(true, heard).await {
        heard += more.len();
    }
    assert!(heard < 1001 * SECTOR_BYTES);
    peer.request(0, command::READ, 0, SECTOR).await;
    assert_eq!(peer.data(true, 0).await.map(|data| data.len()), Some(SECTOR_BYTES));
}

/// Clients that ask for the longest reads and take nothing: another has its long and its short ones
/// all the same, in chunks or in one piece, and what it reads is what it wrote.
#[test]
fn clients_that_take_nothing_keep_nobody_waiting() {
    run(|cx| async move {
        let pool = Pool::new();
        let disk = Noting::with_bad(16384, Some(16000));
        let exports: Arc<[Arc<Export>]> = [Arc::new(Export::new("a", disk.clone()))].into();
        let stop = Arc::new(Stop::default());
        let connected = || {
            let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
            for socket in [&ours, &theirs] {
                socket.set_nonblocking(true).expect("a socket");
            }
            let (server, exports, stop, pool) =
                (cx.clone(), exports.clone(), stop.clone(), pool.clone());
            let served = cx.spawn_join(async move {
                let client = Client::Unix(theirs);
                let _ = session::run(&server, client, &exports, &stop, pool, None).await;
            });
            (Peer { socket: ours, cx: cx.clone() }, served)
        };
        let mut greedy = Vec::new();
        for n in 0..20 {
            let (peer, served) = connected();
            peer.begin(&[]).await;
            // Each of them has half of what the ones before have left.
            for bytes in [((32 << 20) >> n).max(64 << 10), 32 << 20, 16 << 20] {
                peer.request(0, command::READ, 0, bytes).await;
            }
            settled(&cx).await;
            greedy.push((peer, served));
        }
        for structured in [false, true] {
            let (good, served) = connected();
            let options = structured.then(|| (option::STRUCTURED_REPLY, vec![]));
            good.begin(options.as_slice()).await;
            let begun = cx.now();
            let long: Vec<u8> = (0..4u32 << 20).map(|i| (i / 4096 + i) as u8).collect();
            disk.notes();
            good.request(flag::FUA, command::WRITE, 4096, 4 << 20).await;
            good.say(&long).await;
            assert_eq!(good.simple().await, 0);
            let notes = disk.notes();
            assert!(notes.len() > 1 && notes.iter().all(|n| n.op == BlockOp::Write && n.fua));
            for flags in [0, flag::DF] {
                if flags == flag::DF && !structured {
                    continue;
                }
                good.request(flags, command::READ, 4096, 4 << 20).await;
                let mut heard = Vec::new();
                while heard.len() < long.len() {
                    let Some(more) = good.data(structured, heard.len()).await else { break };
                    heard.extend(more);
                }
                assert!(heard == long, "{structured}: {} bytes", heard.len());
            }
            assert!(cx.now() - begun < Ns::from_secs(1), "{}", cx.now() - begun);
            fails_late(good, structured).await;
            served.await;
        }
        for (peer, served) in greedy {
            drop(peer);
            served.await;
        }
        assert!(pool.is_whole());
    });
}

#[test]
fn what_is_asked_to_be_durable_is_flushed_or_written_through() {
    run(|cx| async move {
        let disk = Noting::new(64);
        let exports: Arc<[Arc<Export>]> = [Arc::new(Export::new("a", disk.clone()))].into();
        let (peer, _) = connected(&cx, exports, &Arc::default());
        peer.begin(&[]).await;
        for (command, flags) in [
            (command::WRITE, 0),
            (command::TRIM, 0),
            (command::WRITE_ZEROES, 0),
            (command::WRITE_ZEROES, flag::NO_HOLE),
        ] {
            for fua in [flag::FUA, 0] {
                peer.request(flags | fua, command, 4096, SECTOR).await;
                if command == command::WRITE {
                    peer.say(&[1; SECTOR_BYTES]).await;
                }
                assert_eq!(peer.simple().await, 0);
                let notes = disk.notes();
                let last = notes.last().expect("it has begun something");
                let is_durable = last.fua || last.op == BlockOp::Flush;
                assert_eq!(is_durable, fua != 0, "{command} {flags}: {notes:?}");
            }
        }
    });
}

/// Past the end: what would need room lacks it, and anything else makes no sense.
#[test]
fn past_the_end_each_command_has_its_error() {
    run(|cx| async move {
        let (peer, _) = connected(&cx, exports(&["a"], 16, LOOK), &Arc::default());
        peer.begin(&[]).await;
        for (command, number) in [
            (command::READ, error::INVALID),
            (command::TRIM, error::INVALID),
            (command::WRITE, error::NO_SPACE),
            (command::WRITE_ZEROES, error::NO_SPACE),
        ] {
            for offset in [16 * 4096, 15 * 4096, u64::MAX - 4095] {
                peer.request(0, command, offset, 2 * SECTOR).await;
                if command == command::WRITE {
                    peer.say(&[1; 2 * SECTOR_BYTES]).await;
                }
                assert_eq!(peer.simple().await, number, "{command} at {offset}");
            }
        }
    });
}

#[test]
fn a_client_changes_nothing_of_an_export_that_is_read_only() {
    run(|cx| async move {
        let disk = Noting::new(16);
        let export = Export::new("a", disk.clone()).read_only(true);
        let (peer, _) = connected(&cx, [Arc::new(export)].into(), &Arc::default());
        let flags = peer.begin(&[]).await;
        assert_eq!(flags & can::READ_ONLY, can::READ_ONLY);
        assert_eq!(flags & (can::TRIM | can::WRITE_ZEROES), 0);
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            peer.request(0, command, 0, SECTOR).await;
            if command == command::WRITE {
                peer.say(&[1; SECTOR_BYTES]).await;
            }
            assert_eq!(peer.simple().await, error::NOT_PERMITTED, "{command}");
        }
        assert_eq!(disk.notes(), []);
        peer.request(0, command::READ, 0, SECTOR).await;
        assert_eq!(peer.simple().await, 0);
        peer.hear(SECTOR_BYTES).await;
        peer.request(0, command::FLUSH, 0, 0).await;
        assert_eq!(peer.simple().await, 0);
    });
}

#[test]
fn a_stop_is_heard_by_who_never_has_to_wait() {
    run(|cx| async move {
        let stop = Stop::default();
        assert_eq!(stop.unless_up(&cx, async { 1 }).await, Some(1));
        stop.raise(&cx);
        assert_eq!(stop.unless_up(&cx, async { 1 }).await, None);
    });
}

#[test]
fn a_stop_waits_for_the_device_and_not_for_the_client() {
    run(|cx| async move {
        let stop = Arc::default();
        let (peer, served) = connected(&cx, slow(PARTING + PARTING + PARTING), &stop);
        peer.begin(&[]).await;
        peer.request(0, command::READ, 0, SECTOR).await;
        settled(&cx).await;
        stop.raise(&cx);
        cx.sleep(PARTING + PARTING + PARTING).await;
        assert_eq!(peer.simple().await, 0);
        assert_eq!(peer.rest().await.len(), SECTOR_BYTES);
        served.await;
    });
}
