//! `flashlane serve --vhost-user`: a target as a virtio disk, with a guest of the test kit (`tests/vhost.sh` has
//! kernels).

use crate::harness::{Here, Holder, KINDS, pause, says};
use crate::serve::{Client, SECTOR, made, pattern, stopped};
use flashlane_testkit::guest::{
    BASE, Guest, INDIRECT, NEXT, NO_STATUS, Shape, WRITES,
    blk::{
        VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
        VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_T_DISCARD as DISCARD,
        VIRTIO_BLK_T_GET_ID as NAME, VIRTIO_BLK_T_IN as READ, VIRTIO_BLK_T_OUT as WRITE,
        VIRTIO_BLK_T_WRITE_ZEROES as ZERO,
    },
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const OK: u8 = 0;
const FAILED: u8 = 1;
const UNKNOWN: u8 = 2;
const KIND_FLUSH: u32 = 4;

fn served(h: &Here) -> Holder {
    h.hold_with("serve a.img --null-latency --vhost-user v", "v")
}

fn guest(h: &Here, shape: Shape) -> Guest {
    Guest::connected(&h.path("v"), shape).expect("it is taken in")
}

fn long(config: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(config[at..at + 8].try_into().expect("eight bytes"))
}

fn word(config: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(config[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn every_type_of_target_is_a_virtio_disk() {
    for kind in KINDS {
        let h = made(kind);
        let server = h.hold_with("serve a.img --null-latency --vhost-user v --nbd unix:s", "s");
        let mut client = Client::connect(&h.path("s"), "db");
        let mut g = guest(&h, Shape { data: 2 << 20, ..Shape::default() });
        let config = g.config(60).expect("a configuration");
        let end = long(&config, 0) * 512;
        assert_eq!(end, client.bytes, "{kind}");
        assert_eq!(
            (word(&config, 12), word(&config, 20)),
            (126, 4096),
            "{kind}: seg_max, blk_size"
        );
        for feature in [
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
            VIRTIO_BLK_F_DISCARD,
            VIRTIO_BLK_F_WRITE_ZEROES,
        ] {
            assert_ne!(g.features & 1 << feature, 0, "{kind}: {feature}");
        }
        let data = pattern(1, 300);
        assert_eq!(g.write(0, 8192, &data), OK, "{kind}");
        assert!(g.read(0, 8192, data.len() as u32) == data, "{kind}");
        assert!(g.read(0, 0, 8192) == [0; 8192], "{kind}: what was never written is zeros");
        assert_eq!(g.flush(0), OK, "{kind}");
        // Both doors show one device.
        assert!(client.read(8192, data.len()) == data, "{kind}: over NBD");
        assert_eq!(client.write(0, 4096, &data[..SECTOR]), 0);
        assert!(g.read(0, 4096, 4096) == data[..SECTOR], "{kind}: what came over NBD");
        for (kind_of, flags) in [(DISCARD, 0), (ZERO, 0), (ZERO, 1)] {
            assert_eq!(g.write(0, 8192, &data), OK);
            let ranges = [(12288, 100 * 4096, flags), (12288 + 150 * 4096, 50 * 4096, flags)];
            assert_eq!(g.ranges(0, kind_of, &ranges), OK, "{kind}: {kind_of} {flags}");
            let mut want = data.clone();
            want[SECTOR..101 * SECTOR].fill(0);
            want[151 * SECTOR..201 * SECTOR].fill(0);
            assert!(g.read(0, 8192, data.len() as u32) == want, "{kind}: {kind_of} {flags}");
        }
        // Its name.
        let before = g.offered(0);
        let request = g.begin(0, NAME, 0, &[], 20, false).expect("one is free");
        g.ring(0, before);
        assert_eq!((g.wait(0).status, g.get(g.data_at(0, request), 3)), (OK, b"db\0".to_vec()));
        // Refused, and it goes on.
        assert_eq!(g.write(0, 512, &data[..SECTOR]), FAILED, "{kind}: not aligned");
        assert_eq!(g.write(0, 0, &data[..512]), FAILED, "{kind}: not aligned");
        assert_eq!(g.write(0, end, &data[..SECTOR]), FAILED, "{kind}: behind the end");
        assert_eq!(g.ask(0, WRITE, u64::MAX / 512, &data[..SECTOR]), FAILED, "{kind}: it wraps");
        assert_eq!(g.ask(0, WRITE, 0, &[]), FAILED, "{kind}: nothing");
        assert_eq!(g.ask(0, READ, 0, &[]), FAILED, "{kind}: nothing");
        assert_eq!(g.ask(0, 99, 0, &[]), UNKNOWN, "{kind}: no such request");
        assert_eq!(g.ask(0, DISCARD, 0, &[0; 24]), FAILED, "{kind}: a range and a half");
        assert_eq!(g.ranges(0, DISCARD, &[(0, 4096, 1)]), UNKNOWN, "{kind}: a flag of no meaning");
        assert_eq!(g.ranges(0, ZERO, &[(0, 4096, 2)]), UNKNOWN, "{kind}: a flag of no meaning");
        assert_eq!(g.ranges(0, DISCARD, &[(end, 4096, 0)]), FAILED, "{kind}: behind the end");
        assert_eq!(g.ranges(0, DISCARD, &[(0, 4096, 0); 65]), FAILED, "{kind}: too many ranges");
        assert_eq!(g.ranges(0, ZERO, &[(0, 64 << 20, 0)]), FAILED, "{kind}: too long");
        assert_eq!(g.write(0, 0, &data), OK);
        // Verbs work while it is in use.
        h.run("drive smart a.img").good();
        drop((g, client));
        says(&stopped(server), &["db: ", " written, ", " discarded", "WA "]);
        assert!(!h.path("v").exists(), "{kind}: the socket's name is given back");
        // Nothing was flushed behind it, but a stop leaves everything there.
        let server = served(&h);
        let mut g = guest(&h, Shape { data: 2 << 20, ..Shape::default() });
        assert!(g.read(0, 0, data.len() as u32) == data, "{kind}");
        drop(g);
        stopped(server);
    }
}

#[test]
fn guests_may_have_sectors_of_512_bytes() {
    let h = made("pblk");
    let line = "serve a.img --null-latency --sector-size 512 --vhost-user v";
    let server = h.hold_with(line, "v");
    let mut g = guest(&h, Shape::default());
    let config = g.config(60).expect("a configuration");
    assert_eq!((word(&config, 20), config[24]), (512, 3), "sectors of 512 bytes, eight in one");
    let data = pattern(3, 2);
    assert_eq!(g.write(0, 0, &data), OK);
    assert_eq!(g.write(0, 3584, &[7; 1024]), OK);
    let mut want = data.clone();
    want[3584..4608].fill(7);
    assert!(g.read(0, 0, 8192) == want, "what is beside it stays");
    assert_eq!(g.ranges(0, DISCARD, &[(512, 1024, 0)]), OK);
    want[512..1536].fill(0);
    assert!(g.read(0, 512, 4096) == want[512..4608]);
    drop(g);
    stopped(server);
}

fn content(queue: usize, i: u64, without: u64) -> [u8; 4096] {
    [(queue as u64 * 71 + i + without % 7 + 1) as u8; 4096]
}

#[test]
fn many_requests_of_many_queues_are_under_way() {
    let h = made("pblk");
    let server = served(&h);
    for without in [0, 1 << 29, 1 << 28 | 1 << 29] {
        let shape = Shape { queues: 4, size: 256, data: 4096, without, ..Shape::default() };
        let mut g = guest(&h, shape);
        let each = 85;
        // All of them are there before any is rung for: 340 at a time.
        for queue in 0..4 {
            for i in 0..each {
                let sector = (queue as u64 * each + i) * 8;
                let data = content(queue, i, without);
                let indirect = i % 2 == 0 && without & 1 << 28 == 0;
                g.begin(queue, WRITE, sector, &data, 0, indirect).expect("one is free");
            }
            assert!(g.begin(queue, WRITE, 0, &[0; 4096], 0, false).is_none(), "all are taken");
        }
        (0..4).for_each(|queue| g.ring(queue, g.offered(queue).wrapping_sub(each as u16)));
        for queue in 0..4 {
            (0..each).for_each(|_| assert_eq!(g.wait(queue).status, OK));
        }
        for queue in 0..4 {
            let mut sectors = vec![0; each as usize];
            for i in 0..each {
                let indirect = i % 3 == 0 && without & 1 << 28 == 0;
                let sector = (queue as u64 * each + i) * 8;
                let request = g.begin(queue, READ, sector, &[], 4096, indirect);
                sectors[usize::from(request.expect("one is free"))] = i;
            }
            g.ring(queue, g.offered(queue).wrapping_sub(each as u16));
            for _ in 0..each {
                let ended = g.wait(queue);
                assert_eq!((ended.status, ended.bytes), (OK, 4097));
                let i = sectors[usize::from(ended.request)];
                let got = g.get(g.data_at(queue, ended.request), 4096);
                let is_there = got == content(queue, i, without);
                assert!(is_there, "queue {queue}, {i}: it ended before its data was there");
            }
        }
        // Who wants to be called is.
        g.was_called(0);
        g.wants_call(0);
        assert_eq!(g.flush(0), OK);
        assert!(soon(|| g.was_called(0)), "it is called");
    }
    stopped(server);
}

#[test]
fn what_guests_flushed_survives_a_kill() {
    for (kind, flushes) in KINDS.map(|k| [(k, true), (k, false)]).concat() {
        let h = made(kind);
        let server = served(&h);
        // Who does not know of a cache has none.
        let without = if flushes { 0 } else { 1 << VIRTIO_BLK_F_FLUSH };
        let mut g = guest(&h, Shape { without, ..Shape::default() });
        assert_eq!(g.write(0, 40960, &pattern(1, 9)), OK);
        let gone = [(DISCARD, 0, 0), (ZERO, 2, 0), (ZERO, 4, 1)];
        for (kind_of, sector, flags) in gone {
            let ranges = [(40960 + sector * 4096, 2 * 4096, flags)];
            assert_eq!(g.ranges(0, kind_of, &ranges), OK);
        }
        if flushes {
            assert_eq!(g.flush(0), OK);
        }
        server.kill();
        h.run("drive check a.img").good();
        let server = served(&h);
        let mut g = guest(&h, Shape::default());
        let back = g.read(0, 40960, 9 * SECTOR as u32);
        let mut want = pattern(1, 9);
        want[..6 * SECTOR].fill(0);
        assert!(back == want, "{kind}, flushed: {flushes}");
        drop(g);
        stopped(server);
    }
}

/// A front end cuts its memory off, before or in the middle of what it asks: it is left, and others
/// are served.
#[test]
fn a_front_end_that_cuts_its_memory_off_ends_itself_alone() {
    let h = made("pblk");
    let server = h.hold_with("serve a.img --null-latency --vhost-user v --nbd unix:s", "s");
    let mut client = Client::connect(&h.path("s"), "db");
    let data = pattern(9, 4);
    assert_eq!(client.write(0, 0, &data), 0);
    for asks in [0, 1, 5] {
        let mut g = guest(&h, Shape::default());
        assert_eq!(g.write(0, 65536, &data), OK);
        for _ in 0..asks {
            g.begin(0, WRITE, 0, &pattern(3, 4), 0, false).expect("one is free");
        }
        // Everything, or all behind the queues.
        g.cut_memory(if asks == 5 { g.data_at(0, 0) - BASE } else { 0 });
        g.kick(0);
        for _ in 0..3000 {
            if g.is_left() {
                break;
            }
            pause();
        }
        assert!(g.is_left(), "{asks}");
        assert!(client.read(0, data.len()) == data, "{asks}: nothing of it reached the disk");
    }
    let mut g = guest(&h, Shape::default());
    assert!(g.read(0, 65536, data.len() as u32) == data, "the next one is served");
    drop((g, client));
    stopped(server);
}

/// Chains that no driver makes. Each is answered, or the connection ends; others are served.
#[test]
fn guests_that_misbehave_harm_nobody() {
    let h = made("pblk");
    let server = h.hold_with("serve a.img --null-latency --vhost-user v --nbd unix:s", "s");
    let mut client = Client::connect(&h.path("s"), "db");
    let data = pattern(9, 4);
    assert_eq!(client.write(0, 0, &data), 0);
    let mut g = guest(&h, Shape::default());
    let (table, _, _) = g.places(0);
    // Head and status of requests made by hand, in the room of the first one.
    let (head, status) = (BASE + (128 << 10), BASE + (128 << 10) + 16);
    let (room, behind) = (g.data_at(0, 0), BASE + g.bytes());
    let far = u64::MAX - 4095;
    let ask = |g: &mut Guest, first: u16, kind: u32| {
        let mut words = [0; 16];
        words[..4].copy_from_slice(&kind.to_le_bytes());
        g.put(head, &words);
        g.put(status, &[NO_STATUS]);
        let before = g.offered(0);
        g.offer(0, first);
        g.ring(0, before);
        let ended = (0..50_000_000).find_map(|_| {
            std::thread::yield_now();
            g.used(0)
        });
        let (used, bytes) = ended.expect("it is answered");
        assert_eq!(used, first);
        (g.get(status, 1)[0], bytes)
    };
    let chain = |g: &Guest, at: u64, bytes: u32, writes: u16| {
        g.describe(table, 0, head, 16, NEXT, 1);
        g.describe(table, 1, at, bytes, NEXT | writes, 2);
        g.describe(table, 2, status, 1, WRITES, 0);
    };
    // Data that is not in the guest's memory: behind it, before it, across its end, and too much of it.
    for (kind, writes) in [(READ, WRITES), (WRITE, 0)] {
        for (at, bytes) in [
            (behind, 4096),
            (0, 4096),
            (BASE - 4096, 4096),
            (behind - 2048, 4096),
            (far, 4096),
            (far, 8192),
            (room, u32::MAX - 4095),
        ] {
            chain(&g, at, bytes, writes);
            assert_eq!(ask(&mut g, 0, kind).0, FAILED, "{kind}: {bytes} bytes at {at:#x}");
        }
        // The wrong way round.
        chain(&g, room, 4096, WRITES - writes);
        assert_eq!(ask(&mut g, 0, kind).0, FAILED, "{kind}");
        chain(&g, room, 4096, writes);
        assert_eq!(ask(&mut g, 0, kind).0, OK, "{kind}: as it should be");
    }
    assert!(client.read(0, data.len())[SECTOR..] == data[SECTOR..]);
    // No status; half a head; nothing at all to read.
    g.describe(table, 0, head, 16, 0, 0);
    assert_eq!(ask(&mut g, 0, KIND_FLUSH), (NO_STATUS, 0));
    g.describe(table, 0, head, 8, NEXT, 1);
    g.describe(table, 1, status, 1, WRITES, 0);
    assert_eq!(ask(&mut g, 0, KIND_FLUSH).0, FAILED);
    g.describe(table, 0, status, 1, WRITES, 0);
    assert_eq!(ask(&mut g, 0, KIND_FLUSH).0, FAILED);
    // A head in pieces is one.
    g.describe(table, 0, head, 5, NEXT, 1);
    g.describe(table, 1, head + 5, 0, NEXT, 2);
    g.describe(table, 2, head + 5, 11, NEXT, 3);
    g.describe(table, 3, status, 1, WRITES, 0);
    assert_eq!(ask(&mut g, 0, KIND_FLUSH).0, OK);
    // Loops, and places behind the table.
    g.describe(table, 0, head, 16, NEXT, 0);
    assert_eq!(ask(&mut g, 0, WRITE), (NO_STATUS, 0));
    g.describe(table, 0, head, 16, NEXT, 1);
    g.describe(table, 1, room, 16, WRITES | NEXT, 0);
    assert_eq!(ask(&mut g, 0, READ), (NO_STATUS, 0));
    g.describe(table, 0, head, 16, NEXT, 128);
    assert_eq!(ask(&mut g, 0, WRITE), (NO_STATUS, 0));
    // Tables: in themselves, outside, of no whole places, with too many, with none.
    for (at, bytes, flags) in [
        (table, 16, INDIRECT),
        (behind, 16, INDIRECT),
        (far, 4096, INDIRECT),
        (room, 24, INDIRECT),
        (room, 0, INDIRECT),
        (room, 16, INDIRECT | NEXT),
        (room, u32::MAX, INDIRECT),
        (room, 65536 * 16, INDIRECT),
    ] {
        g.describe(table, 0, at, bytes, flags, 1);
        assert_eq!(ask(&mut g, 0, WRITE), (NO_STATUS, 0), "{bytes} bytes at {at:#x}, {flags}");
    }
    // A chain of a thousand pieces in a table of its own.
    for i in 0..1000 {
        g.describe(room, i, head, 1, NEXT, i + 1);
    }
    g.describe(room, 1000, status, 1, WRITES, 0);
    g.describe(table, 0, room, 16 * 1001, INDIRECT, 0);
    assert_eq!(ask(&mut g, 0, WRITE), (NO_STATUS, 0));
    // It still does what it should.
    chain(&g, room, 4096, WRITES);
    assert_eq!(ask(&mut g, 0, READ), (OK, 4097));
    // From here on nothing can be made sense of: the connection ends.
    g.leave();
    type Nonsense = fn(&mut Guest);
    let nonsense: [(&str, Nonsense); 6] = [
        ("a head that is none", |g| g.offer(0, 128)),
        ("more than there are places", |g| g.set_offered(0, g.offered(0).wrapping_add(129))),
        ("a step back", |g| g.set_offered(0, g.offered(0).wrapping_sub(1))),
        ("an odd size", |g| assert!(g.resize(0, 100).is_err())),
        ("memory that is not there", |g| assert!(g.share_too_much().is_err())),
        ("no queue", |g| assert!(g.resize(16, 128).is_err())),
    ];
    for (what, does) in nonsense {
        let mut g = guest(&h, Shape { without: 1 << 29, ..Shape::default() });
        assert_eq!(g.flush(0), OK);
        does(&mut g);
        g.ring(0, 0);
        assert!(soon(|| g.is_left()), "{what}: it is left");
    }
    // Messages: garbage, one that is too long, one of no known request, half of one.
    let message = |request: u32, bytes: u32| {
        [request.to_ne_bytes(), 1u32.to_ne_bytes(), bytes.to_ne_bytes()].concat()
    };
    for said in [vec![0x5a; 4096], message(1, 1 << 30), message(999, 0), message(5, 8)] {
        let mut socket = UnixStream::connect(h.path("v")).expect("somebody listens");
        socket.write_all(&said).expect("it listens");
        if said.len() > 12 || said[0] != 5 {
            let heard = socket.read(&mut [0; 16]);
            assert!(heard.is_err() || heard.is_ok_and(|bytes| bytes == 0), "it is left");
        }
    }
    let mut g = guest(&h, Shape::default());
    assert_eq!(g.flush(0), OK);
    g.leave();
    assert!(client.read(0, data.len())[SECTOR..] == data[SECTOR..]);
    // Half a message does not keep the server from ending.
    let mut half = UnixStream::connect(h.path("v")).expect("somebody listens");
    half.write_all(&message(5, 8)).expect("it listens");
    stopped(server);
}

fn soon(mut seen: impl FnMut() -> bool) -> bool {
    (0..500).any(|_| {
        let there = seen();
        if !there {
            pause();
        }
        there
    })
}

/// What a guest has in flight takes no more of the server's memory than it may.
#[test]
fn what_a_guest_has_in_flight_is_bounded() {
    let h = made("pblk");
    let server = h.hold_with("serve a.img --vhost-user v", "v");
    let before = memory(server.id());
    let mut g = guest(&h, Shape { size: 1024, data: 512 << 10, ..Shape::default() });
    let mut begun = 0;
    while g.begin(0, WRITE, begun % 32 * 1024, &[7; 512 << 10], 0, false).is_some() {
        begun += 1;
    }
    g.ring(0, 0);
    let mut most = 0;
    for _ in 0..begun {
        assert_eq!(g.wait(0).status, OK);
        most = memory(server.id()).max(most);
    }
    let more = (most - before) >> 10;
    assert!(begun * 512 > 160 << 10 && more < 110, "{more} MiB more for {begun} requests");
    drop(g);
    stopped(server);
}

/// Memory of a process without what it shares with others, KiB.
fn memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its memory");
    line.trim().split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn one_guest_follows_another() {
    let h = made("pblk");
    let server = h.hold_with("serve a.img --vhost-user v", "v");
    let shape = Shape { size: 256, data: 4096, ..Shape::default() };
    let data = |i: u64, round: u8| [i as u8 + round; 4096];
    for round in 0..5 {
        let mut g = guest(&h, shape);
        // A queue that is stopped has nothing under way, and says where it stands.
        for i in 0..85 {
            g.begin(0, WRITE, i * 8, &data(i, round), 0, false).expect("one is free");
        }
        g.ring(0, 0);
        if round % 2 == 0 {
            let base = g.halt(0).expect("it is told");
            assert_eq!(base, u32::from(g.used_index(0)), "what was taken has ended");
            continue; // and gone in the middle of it
        }
        (0..85).for_each(|_| assert_eq!(g.wait(0).status, OK));
        for i in 0..85 {
            assert!(g.read(0, i * 4096, 4096) == data(i, round), "{round}");
        }
        // Gone with requests under way.
        for i in 0..85 {
            g.begin(0, WRITE, i * 8, &data(i, round), 0, false).expect("one is free");
        }
        g.ring(0, g.offered(0).wrapping_sub(85));
        g.leave();
    }
    stopped(server);
}

/// A guest that lives on has every request done, whatever becomes of the server.
#[test]
fn requests_under_way_outlive_the_server() {
    const EACH: usize = 85;
    for kills in [true, false] {
        let h = made("pblk");
        let mut g = Guest::new(Shape { size: 256, data: 4096, tracked: true, ..Shape::default() });
        let mut server = h.hold_with("serve a.img --vhost-user v", "v");
        g.connect(&h.path("v")).expect("it is taken in");
        for round in 1..6 {
            let data = |i: usize| [(round * 40 + i) as u8; 4096];
            let mut sectors = [0; EACH];
            for i in 0..EACH {
                let request = g.begin(0, WRITE, i as u64 * 8, &data(i), 0, i % 2 == 0);
                sectors[usize::from(request.expect("one is free"))] = i;
            }
            g.ring(0, g.offered(0).wrapping_sub(EACH as u16));
            // Some have ended by then. A kill may cost what they have written: nobody has flushed.
            let mut lost = Vec::new();
            for _ in 0..10 {
                let ended = g.wait(0);
                assert_eq!(ended.status, OK);
                lost.push(sectors[usize::from(ended.request)]);
            }
            match kills {
                true => server.kill(),
                false => drop(stopped(server)),
            }
            while let Some(ended) = g.end(0) {
                lost.push(sectors[usize::from(ended.request)]);
            }
            server = h.hold_with("serve a.img --vhost-user v", "v");
            g.was_called(0);
            g.connect(&h.path("v")).expect("it is taken in");
            assert!(g.was_called(0), "it looks for what the last server had no time to call for");
            (lost.len()..EACH).for_each(|_| assert_eq!(g.wait(0).status, OK, "round {round}"));
            assert_eq!((g.end(0), g.flush(0)), (None, OK), "each of them ends once");
            for i in (0..EACH).filter(|i| !kills || !lost.contains(i)) {
                assert!(g.read(0, i as u64 * 4096, 4096) == data(i), "round {round}, request {i}");
            }
        }
        drop(g);
        stopped(server);
    }
}

#[test]
fn sockets_that_can_t_be_had_are_said() {
    let h = made("pblk");
    let server = served(&h);
    h.run("drive create b.img --preset tiny").good();
    h.run("lnvm create b.img -n other -t pblk").good();
    h.run("serve b.img --vhost-user v").refused(2, &["vhost-user:v", "somebody listens there"]);
    h.file("file", "mine");
    h.run("serve b.img --vhost-user file").refused(2, &["vhost-user:file"]);
    assert_eq!(std::fs::read(h.path("file")).expect("it is there"), b"mine");
    server.kill();
    // The name that it left is taken again.
    let server = served(&h);
    drop(guest(&h, Shape::default()));
    stopped(server);
}
