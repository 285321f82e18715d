//! B6 of the speed goals: what a door costs, seen by a client that polls.
//!
//! Owns: the two clients and the measurement. Prints requests per second, at each size and depth, writes and reads
//! at random places of the first 64 MiB. Usage: `b6 nbd SOCKET MILLISECONDS [EXPORT [ROW]]` or `b6 vhost-user SOCKET
//! MILLISECONDS`; each row takes that time, and a ROW like `4/32/write` is the only one. `bench/doors.sh` runs it
//! against servers in turns.

#![allow(clippy::disallowed_methods)] // this machine's time is what is measured

use flashlane_base::Rng;
use flashlane_testkit::guest::{Guest, Shape, blk};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are written and read.
const SET: u64 = 64 << 20;
const DEPTHS: [u32; 2] = [1, 32];
const SIZES: [u32; 2] = [4 << 10, 1 << 20];

/// A disk whose requests are begun and looked after.
trait Disk {
    /// Begins one.
    fn begin(&mut self, write: bool, offset: u64, bytes: u32);
    /// How many have ended since.
    fn ended(&mut self) -> u32;
}

/// Requests per second.
fn measure(disk: &mut dyn Disk, write: bool, bytes: u32, depth: u32, time: Duration) -> f64 {
    let mut rng = Rng::stream(7, "b6", u64::from(bytes));
    let mut next = || rng.below(SET / u64::from(bytes)) * u64::from(bytes);
    (0..depth).for_each(|_| disk.begin(write, next(), bytes));
    let (began, mut done, mut open) = (Instant::now(), 0u64, depth);
    let mut looks = 0u32;
    while open > 0 {
        let ended = disk.ended();
        if ended == 0 {
            std::hint::spin_loop();
            // Where there are fewer cores than programs the server needs one of them.
            looks += 1;
            if looks.is_multiple_of(1 << 14) {
                std::thread::yield_now();
            }
            continue;
        }
        (done, open, looks) = (done + u64::from(ended), open - ended, 0);
        if began.elapsed() < time {
            (0..ended).for_each(|_| disk.begin(write, next(), bytes));
            open += ended;
        }
    }
    done as f64 / began.elapsed().as_secs_f64()
}

/// The oldest handshake, simple replies.
struct Nbd {
    socket: UnixStream,
    out: Vec<u8>,
    sent: usize,
    /// Bytes of a reply's data, and those of this one that are still to come.
    data: usize,
    left: usize,
    in_reply: bool,
    came: Vec<u8>,
    held: usize,
    content: Vec<u8>,
}

impl Nbd {
    fn connect(path: &Path, export: &str) -> std::io::Result<Nbd> {
        let mut socket = UnixStream::connect(path)?;
        let mut hello = [0; 18];
        socket.read_exact(&mut hello)?;
        assert_eq!(&hello[..8], b"NBDMAGIC");
        // Fixed newstyle, no zeros; then the export's name.
        socket.write_all(&3u32.to_be_bytes())?;
        let name = [&1u32.to_be_bytes()[..], &(export.len() as u32).to_be_bytes()].concat();
        socket.write_all(&[b"IHAVEOPT", &name[..], export.as_bytes()].concat())?;
        socket.read_exact(&mut [0; 10])?;
        socket.set_nonblocking(true)?;
        let (came, content) = (vec![0; 4 << 20], vec![0x5a; 1 << 20]);
        let (out, sent, data, left, in_reply, held) = (Vec::new(), 0, 0, 0, false, 0);
        Ok(Nbd { socket, out, sent, data, left, in_reply, came, held, content })
    }

    fn push(&mut self) {
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => panic!("the server is gone: {e}"),
            }
        }
        self.out.clear();
        self.sent = 0;
    }
}

impl Disk for Nbd {
    fn begin(&mut self, write: bool, offset: u64, bytes: u32) {
        let mut head = [0; 28];
        head[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
        head[7] = write as u8;
        head[16..24].copy_from_slice(&offset.to_be_bytes());
        head[24..].copy_from_slice(&bytes.to_be_bytes());
        self.out.extend(head);
        self.data = if write { 0 } else { bytes as usize };
        if write {
            self.out.extend_from_slice(&self.content[..bytes as usize]);
        }
        self.push();
    }

    fn ended(&mut self) -> u32 {
        self.push();
        match self.socket.read(&mut self.came[self.held..]) {
            Ok(0) => panic!("the server has ended"),
            Ok(n) => self.held += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return 0,
            Err(e) => panic!("the server is gone: {e}"),
        }
        let (mut at, mut ended) = (0, 0);
        loop {
            if self.in_reply {
                let skipped = self.left.min(self.held - at);
                (at, self.left) = (at + skipped, self.left - skipped);
                if self.left > 0 {
                    break;
                }
                (self.in_reply, ended) = (false, ended + 1);
            }
            if self.held - at < 16 {
                break;
            }
            assert_eq!(self.came[at..at + 8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a good reply");
            (at, self.left, self.in_reply) = (at + 16, self.data, true);
        }
        self.came.copy_within(at..self.held, 0);
        self.held -= at;
        ended
    }
}

/// One queue.
struct Vhost {
    guest: Guest,
    content: Vec<u8>,
}

impl Disk for Vhost {
    fn begin(&mut self, write: bool, offset: u64, bytes: u32) {
        let before = self.guest.offered(0);
        let (kind, gives, takes) = match write {
            true => (blk::VIRTIO_BLK_T_OUT, &self.content[..bytes as usize], 0),
            false => (blk::VIRTIO_BLK_T_IN, &[][..], bytes),
        };
        let begun = self.guest.begin(0, kind, offset / 512, gives, takes, false);
        assert!(begun.is_some(), "there are as many as the depth");
        self.guest.ring(0, before);
    }

    fn ended(&mut self) -> u32 {
        let mut ended = 0;
        while let Some(end) = self.guest.end(0) {
            assert_eq!(end.status, 0, "a good end");
            ended += 1;
        }
        ended
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (kind, path, ms) = match &args[..] {
        [kind, path, ms, ..] => (kind.as_str(), Path::new(path), ms.parse().expect("a number")),
        _ => panic!("b6 nbd SOCKET MILLISECONDS [EXPORT], or b6 vhost-user SOCKET MILLISECONDS"),
    };
    let mut disk: Box<dyn Disk> = match kind {
        "nbd" => {
            let export = args.get(3).map_or("", String::as_str);
            Box::new(Nbd::connect(path, export).expect("somebody listens"))
        }
        _ => {
            let shape = Shape { data: 1 << 20, ..Shape::default() };
            let guest = Guest::connected(path, shape).expect("somebody listens");
            Box::new(Vhost { guest, content: vec![0x5a; 1 << 20] })
        }
    };
    let time = Duration::from_millis(ms);
    // All of it is there before anything is measured.
    measure(&mut *disk, true, 1 << 20, 8, time);
    for bytes in SIZES {
        for depth in DEPTHS {
            for write in [true, false] {
                let word = if write { "write" } else { "read" };
                if args.get(4).is_some_and(|row| *row != format!("{}/{depth}/{word}", bytes / 1024))
                {
                    continue;
                }
                let rate = measure(&mut *disk, write, bytes, depth, time);
                println!("{} KiB depth {depth} {word} {rate:.0}", bytes / 1024);
            }
        }
    }
}
