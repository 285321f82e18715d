//! `flashlane serve`: a target used as a disk, by a client of this file's own (`tests/serve.sh` has others').

use crate::harness::{Here, Holder, KINDS, drive, says};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const SECTOR: usize = 4096;

/// A client of the fixed newstyle protocol, without structured replies.
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    pub(crate) bytes: u64,
    pub(crate) flags: u16,
}

impl Client {
    /// The server's hello is read, and the client's said.
    pub(crate) fn greeted(path: &Path) -> UnixStream {
        let mut socket = UnixStream::connect(path).expect("somebody listens");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        let mut hello = [0; 18];
        socket.read_exact(&mut hello).expect("a hello");
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        socket.write_all(&3u32.to_be_bytes()).expect("it listens");
        socket
    }

    pub(crate) fn connect(path: &Path, export: &str) -> Client {
        let mut socket = Client::greeted(path);
        socket.write_all(b"IHAVEOPT").expect("it listens");
        socket.write_all(&1u32.to_be_bytes()).expect("it listens");
        socket.write_all(&(export.len() as u32).to_be_bytes()).expect("it listens");
        socket.write_all(export.as_bytes()).expect("it listens");
        let (mut bytes, mut flags) = ([0; 8], [0; 2]);
        socket.read_exact(&mut bytes).expect("a size");
        socket.read_exact(&mut flags).expect("flags");
        let (bytes, flags) = (u64::from_be_bytes(bytes), u16::from_be_bytes(flags));
        Client { socket, bytes, flags }
    }

    /// A client of each of these exports; of several none is without a name.
    pub(crate) fn connect_all(path: &Path, exports: &[&str]) -> Vec<Client> {
        let mut nobody = Client::greeted(path);
        nobody.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").expect("it listens");
        assert_eq!(nobody.read(&mut [0; 1]).unwrap_or(0), 0, "it is left");
        exports.iter().map(|export| Client::connect(path, export)).collect()
    }

    pub(crate) fn send(&mut self, command: u16, flags: u16, offset: u64, bytes: u32, data: &[u8]) {
        let mut head = 0x2560_9513u32.to_be_bytes().to_vec();
        head.extend(flags.to_be_bytes());
        head.extend(command.to_be_bytes());
        head.extend(77u64.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(bytes.to_be_bytes());
        self.socket.write_all(&[&head, data].concat()).expect("it listens");
    }

    /// The error of a reply.
    pub(crate) fn answer(&mut self) -> u32 {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head).expect("an answer");
        assert_eq!(head[..4], 0x6744_6698u32.to_be_bytes());
        assert_eq!(head[8..], 77u64.to_be_bytes());
        u32::from_be_bytes(head[4..8].try_into().expect("four bytes"))
    }

    pub(crate) fn ask(&mut self, command: u16, flags: u16, offset: u64, bytes: u32) -> u32 {
        self.send(command, flags, offset, bytes, &[]);
        self.answer()
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.send(WRITE, flags, offset, data.len() as u32, data);
        self.answer()
    }

    pub(crate) fn read(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        assert_eq!(self.ask(READ, 0, offset, bytes as u32), 0);
        let mut data = vec![0; bytes];
        self.socket.read_exact(&mut data).expect("as much as was asked for");
        data
    }

    pub(crate) fn flush(&mut self) {
        assert_eq!(self.ask(FLUSH, 0, 0, 0), 0);
    }
}

/// A drive with a target of this type, `db`.
pub(crate) fn made(kind: &str) -> Here {
    let h = drive();
    h.run(&format!("lnvm create a.img -n db -t {kind}")).good();
    h
}

pub(crate) fn served(h: &Here) -> Holder {
    h.hold_with("serve a.img --null-latency --nbd unix:s", "s")
}

pub(crate) fn pattern(seed: u8, sectors: usize) -> Vec<u8> {
    (0..sectors * SECTOR).map(|i| (i / 512) as u8 ^ (i as u8) ^ seed).collect()
}

/// Has the server end, as a service manager does.
pub(crate) fn stopped(mut server: Holder) -> String {
    server.signal("-TERM");
    server.output().good().err
}

#[test]
fn every_type_of_target_is_a_disk() {
    for kind in KINDS {
        let h = made(kind);
        let server = served(&h);
        let mut c = Client::connect(&h.path("s"), "db");
        assert!(c.bytes > 20 << 20 && c.bytes.is_multiple_of(4096), "{kind}: {}", c.bytes);
        assert_eq!(c.flags, 0x96d, "{kind}: what it can do");
        let (data, end) = (pattern(1, 300), c.bytes);
        assert_eq!(c.write(0, 8192, &data), 0);
        assert!(c.read(8192, data.len()) == data, "{kind}");
        assert!(c.read(0, 8192) == [0; 8192], "{kind}: what was never written is zeros");
        // Discarded and zeroed ranges read as zeros, whichever way.
        for (command, flags) in [(TRIM, 0), (TRIM, FUA), (WRITE_ZEROES, 0), (WRITE_ZEROES, NO_HOLE)]
        {
            assert_eq!(c.write(FUA, 8192, &data), 0);
            assert_eq!(c.ask(command, flags, 12288, 200 * 4096), 0, "{kind}: {command} {flags}");
            assert!(
                c.read(12288, 200 * SECTOR).iter().all(|b| *b == 0),
                "{kind}: {command} {flags}"
            );
            assert!(c.read(8192, SECTOR) == data[..SECTOR], "{kind}: what is beside it stays");
        }
        // Refused, and the connection goes on.
        assert_eq!(c.ask(READ, 0, 512, 4096), 22, "{kind}: not aligned");
        assert_eq!(c.ask(READ, 0, 0, 0), 22, "{kind}: nothing");
        assert_eq!(c.ask(READ, 0, end, 4096), 22, "{kind}: behind the end");
        assert_eq!(c.write(0, end, &data[..SECTOR]), 28, "{kind}: behind the end");
        assert_eq!(c.ask(WRITE_ZEROES, 0, end, 4096), 28, "{kind}: behind the end");
        assert_eq!(c.ask(TRIM, 0, end, 4096), 22, "{kind}: behind the end");
        assert_eq!(c.ask(TRIM, 0, u64::MAX - 4095, 4096), 22, "{kind}: it wraps");
        assert_eq!(c.ask(READ, 1 << 9, 0, 4096), 22, "{kind}: a flag of no meaning");
        assert_eq!(c.ask(99, 0, 0, 4096), 22, "{kind}: no command");
        assert_eq!(c.write(0, 0, &data), 0);
        // Verbs work while it is in use.
        h.run("drive smart a.img").good();
        c.send(DISCONNECT, 0, 0, 0, &[]);
        let said = stopped(server);
        says(&said, &["db: ", " written, ", "WA "]);
        assert!(!h.path("s").exists(), "{kind}: the socket's name is given back");
        // Nothing was flushed, but a stop leaves everything there.
        let server = served(&h);
        let mut c = Client::connect(&h.path("s"), "");
        assert!(c.read(0, data.len()) == data, "{kind}");
        drop(c);
        stopped(server);
    }
}

#[test]
fn sectors_of_512_bytes_are_there_on_request() {
    let h = made("pblk");
    let server = h.hold_with("serve a.img --null-latency --sector-size 512 --nbd unix:s", "s");
    let mut c = Client::connect(&h.path("s"), "db");
    let data = pattern(3, 2);
    assert_eq!(c.write(0, 0, &data), 0);
    assert_eq!(c.write(FUA, 3584, &[7; 1024]), 0);
    let mut want = data.clone();
    want[3584..4608].fill(7);
    assert!(c.read(0, data.len()) == want, "what is beside it stays");
    assert!(c.read(512, 4096) == want[512..4608]);
    for (command, flags) in [(TRIM, 0), (WRITE_ZEROES, 0), (WRITE_ZEROES, NO_HOLE)] {
        assert_eq!(c.write(0, 0, &data), 0);
        assert_eq!(c.ask(command, flags, 512, 4096), 0);
        want.copy_from_slice(&data);
        want[512..4608].fill(0);
        assert!(c.read(0, data.len()) == want, "{command} {flags}");
    }
    let end = c.bytes;
    assert_eq!(c.write(0, end - 512, &[9; 512]), 0);
    assert!(c.read(end - 512, 512) == [9; 512]);
    assert_eq!(c.ask(READ, 0, 100, 512), 22, "not aligned");
    assert_eq!(c.write(0, end - 512, &[9; 1024]), 28, "behind the end");
    stopped(server);
}

#[test]
fn what_was_flushed_or_written_through_survives_a_kill() {
    for (kind, flushes) in KINDS.map(|k| [(k, true), (k, false)]).concat() {
        let h = made(kind);
        let server = served(&h);
        let connect = || Client::connect(&h.path("s"), "db");
        let (mut one, mut other) = (connect(), connect());
        assert_eq!(one.write(if flushes { 0 } else { FUA }, 40960, &pattern(1, 3)), 0);
        if flushes {
            // It covers what any client was told is written.
            other.flush();
        }
        server.kill();
        h.run("drive check a.img").good();
        let server = served(&h);
        assert!(connect().read(40960, 3 * SECTOR) == pattern(1, 3), "{kind}, flushed: {flushes}");
        stopped(server);
    }
}

/// With FUA a discard, zeros of either kind and each part of a long write are durable when they are
/// answered.
#[test]
fn what_was_written_through_survives_a_kill_whatever_it_is() {
    for kind in KINDS {
        let h = made(kind);
        let server = served(&h);
        let mut c = Client::connect(&h.path("s"), "db");
        let (short, at) = (pattern(1, 8), 17 << 20);
        assert_eq!(c.write(0, at, &short), 0);
        c.flush();
        // Longer than a request below may be.
        let long = pattern(2, 4160);
        assert_eq!(c.write(FUA, 0, &long), 0);
        assert_eq!(c.ask(TRIM, FUA, at, 2 * SECTOR as u32), 0);
        assert_eq!(c.ask(WRITE_ZEROES, FUA, at + 2 * 4096, 2 * SECTOR as u32), 0);
        assert_eq!(c.ask(WRITE_ZEROES, FUA | NO_HOLE, at + 4 * 4096, 2 * SECTOR as u32), 0);
        server.kill();
        let server = served(&h);
        let mut c = Client::connect(&h.path("s"), "db");
        let mut want = short;
        want[..6 * SECTOR].fill(0);
        assert!(c.read(at, want.len()) == want, "{kind}");
        assert!(c.read(0, long.len()) == long, "{kind}: the long one");
        drop(c);
        stopped(server);
    }
}

/// An image that is removed, replaced or moved under its server: it is said, and the end is no good
/// one. Without a name no flush succeeds; with another one everything that was flushed is there.
#[test]
fn an_image_that_goes_is_missed() {
    for way in ["removed", "replaced", "moved"] {
        let h = made("pblk");
        let mut server = served(&h);
        let mut c = Client::connect(&h.path("s"), "db");
        assert_eq!(c.write(0, 0, &pattern(1, 3)), 0);
        c.flush();
        let image = h.path("a.img");
        match way {
            "removed" => std::fs::remove_file(&image).expect("it is there"),
            "moved" => std::fs::rename(&image, h.path("b.img")).expect("it is there"),
            _ => {
                h.run("drive create b.img --preset tiny").good();
                std::fs::rename(h.path("b.img"), &image).expect("it is there");
            }
        }
        assert_eq!(c.write(0, 0, &pattern(2, 3)), 0);
        assert_eq!(c.ask(FLUSH, 0, 0, 0) == 0, way == "moved", "{way}");
        drop(c);
        server.signal("-TERM");
        let done = server.output();
        assert_ne!(done.code, 0, "{way}: {done:?}");
        says(&done.err, &["a.img was", "while it was in use"]);
        if way == "moved" {
            let server = h.hold_with("serve b.img --null-latency --nbd unix:s", "s");
            let mut c = Client::connect(&h.path("s"), "db");
            assert!(c.read(0, 3 * SECTOR) == pattern(2, 3));
            drop(c);
            stopped(server);
        }
    }
}

/// A drive that a process has open is not replaced, and one that is being replaced is not opened.
#[test]
fn a_drive_in_use_is_not_replaced() {
    let h = made("pblk");
    let server = served(&h);
    let create = "drive create a.img --force --preset tiny";
    h.run(create).refused(2, &["in use by process"]);
    let mut c = Client::connect(&h.path("s"), "db");
    assert_eq!(c.write(0, 0, &pattern(1, 1)), 0);
    drop(c);
    stopped(server);
    h.run(create).good();
    says(&h.run("lnvm list a.img").good().out, &["Number of targets: 0"]);
}

/// Clients may read, and nothing else.
#[test]
fn a_disk_that_is_served_read_only_stays_as_it_is() {
    let h = made("pblk");
    let server = served(&h);
    let mut c = Client::connect(&h.path("s"), "db");
    assert_eq!(c.write(0, 0, &pattern(1, 3)), 0);
    drop(c);
    stopped(server);
    let server = h.hold_with("serve a.img --null-latency --read-only --nbd unix:s", "s");
    let mut c = Client::connect(&h.path("s"), "db");
    assert_eq!(c.flags & 0x6e, 0xe, "it says so: read-only, flush and FUA; no trim, no zeros");
    assert_eq!(c.write(0, 0, &pattern(2, 3)), 1);
    assert_eq!(c.ask(TRIM, 0, 0, 4096), 1);
    assert_eq!(c.ask(WRITE_ZEROES, 0, 0, 4096), 1);
    c.flush();
    assert!(c.read(0, 3 * SECTOR) == pattern(1, 3));
    drop(c);
    says(&stopped(server), &["db: 0 B written"]);
    h.run("serve a.img --read-only --idiscard --nbd unix:s").refused(2, &["cannot be used with"]);
}

/// Memory of a process, KiB.
pub(crate) fn memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn clients_that_misbehave_harm_nobody() {
    let h = made("pblk");
    let server = served(&h);
    let path = h.path("s");
    let before = memory(server.id());
    // Half a handshake, garbage in one and behind one, a write that nobody would take, an export that is none.
    let half = Client::greeted(&path);
    let mut garbage = Client::greeted(&path);
    garbage.write_all(&[0x5a; 4096]).expect("it listens");
    let mut behind = Client::connect(&path, "db");
    behind.socket.write_all(&[0x5a; 4096]).expect("it listens");
    let mut huge = Client::connect(&path, "db");
    huge.send(WRITE, 0, 0, u32::MAX - 4095, &[0; 4096]);
    for socket in [&mut garbage, &mut behind.socket, &mut huge.socket] {
        match socket.read(&mut [0; 16]) {
            Ok(n) => assert_eq!(n, 0, "it is left"),
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
    }
    // Asks for a gigabyte, and takes nothing; in the middle of a write; gone in the middle of one.
    let mut greedy = Client::connect(&path, "db");
    (0..64).for_each(|_| greedy.send(READ, 0, 0, 16 << 20, &[]));
    let mut slow = Client::connect(&path, "db");
    slow.send(WRITE, 0, 0, 1 << 20, &[0; 4096]);
    let mut gone = Client::connect(&path, "db");
    gone.send(WRITE, 0, 0, 1 << 20, &[0; 4096]);
    drop(gone);
    // Somebody who behaves is served, side by side with more of them.
    let mut clients: Vec<Client> = (0..24).map(|_| Client::connect(&path, "db")).collect();
    for (i, c) in clients.iter_mut().enumerate() {
        let (at, data) = ((i * 16 * SECTOR) as u64, pattern(i as u8, 16));
        assert_eq!(c.write(0, at, &data), 0);
        assert!(c.read(at, data.len()) == data);
    }
    let more = memory(server.id()) - before;
    assert!(more < 200 << 10, "{more} KiB more");
    // Nor do they keep it from ending.
    stopped(server);
    drop((half, greedy, slow));
}

#[test]
fn addresses_that_can_t_be_had_are_said() {
    let h = made("pblk");
    let server = served(&h);
    h.run("drive create b.img --preset tiny").good();
    h.run("lnvm create b.img -n other -t pblk").good();
    h.run("serve b.img --nbd unix:s").refused(2, &["unix:s", "somebody listens there already"]);
    h.run("serve a.img --nbd unix:t").refused(2, &["a.img"]);
    h.file("file", "mine");
    h.run("serve b.img --nbd unix:file").refused(2, &["unix:file"]);
    assert_eq!(std::fs::read(h.path("file")).expect("it is there"), b"mine");
    h.run("serve b.img --nbd unix:no/such/folder").refused(2, &["unix:no/such/folder"]);
    h.run("serve b.img --nbd nowhere").refused(2, &["unix:PATH or tcp:HOST:PORT"]);
    h.run("serve b.img --nbd tcp:127.0.0.1:99999").refused(2, &["tcp:127.0.0.1:99999"]);
    h.run("serve b.img").refused(2, &["--nbd", "--fuse-file"]);
    h.run("serve b.img --nbd unix:t --sector-size 1024").refused(2, &["4096 or 512 bytes"]);
    h.run("serve b.img --target db --nbd unix:t").refused(2, &["db", "other"]);
    h.run("drive create c.img --preset tiny").good();
    h.run("lnvm create c.img -n open -t raw").good();
    h.run("serve c.img --nbd unix:t").refused(2, &["open", "no block device"]);
    h.run("serve nothing.img --nbd unix:t").refused(2, &["nothing.img"]);
    server.kill();
    // The name that it left is taken again.
    let server = served(&h);
    stopped(server);
}
