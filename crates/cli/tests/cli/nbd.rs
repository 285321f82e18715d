//! `flashlane serve` under clients that write at the same time, and under ends that nobody chose.
//!
//! Owns: clients on threads, what they were told is durable, how a server comes to its end. Promises: the
//! clients' log is the truth: of each sector the version that was flushed last is there, or one that was sent
//! after it. Never: looks at how long anything took.
//!
//! Kills: a round starts a server, looks at every sector, and has four clients write, discard and zero
//! sectors of their own, with FUA or a flush now and then. A flush covers what was acknowledged to any of
//! them. At a drawn number of acknowledged requests the server is killed (`kill -9`).
//! `FLASHLANE_SERVE_KILLS` is the number of rounds (8), `FLASHLANE_KILL_SEED` where everything is drawn from.
//!
//! The crowd: many clients that behave beside some that do not. `FLASHLANE_SERVE_SECONDS` is how long (3).

use crate::harness::{Here, KINDS, drive, pause, says};
use crate::kill::number;
use crate::serve::{
    Client, FLUSH, FUA, NO_HOLE, READ, SECTOR, TRIM, WRITE, WRITE_ZEROES, made, memory, pattern,
    served, stopped,
};
use flashlane_base::Rng;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::scope;
use std::time::Duration;

const WRITERS: u64 = 4;
/// Sectors of each of them: few, so that they are written again and again.
const OWN: u64 = 256;
/// Requests of a client at a time, of sectors that are not the same.
const AT_ONCE: u64 = 8;
/// Sectors of a request at most.
const LONGEST: u64 = OWN / AT_ONCE;

/// Versions of a sector.
#[derive(Clone, Default)]
struct Sector {
    /// Those that may be there, oldest first, and whether they are zeros: the first is durable.
    versions: Vec<(u64, bool)>,
    /// The newest that was acknowledged.
    acknowledged: u64,
}

impl Sector {
    /// This version is durable, or one that is newer.
    fn durable(&mut self, version: u64) {
        self.versions.retain(|(v, _)| *v >= version);
    }
}

/// What clients know of all sectors.
struct Log {
    sectors: Mutex<Vec<Sector>>,
    versions: AtomicU64,
    acknowledged: AtomicU64,
}

fn content(sector: u64, version: u64) -> Vec<u8> {
    let word = |k: u64| (version << 24 | sector).wrapping_mul(2 * k + 1).to_le_bytes();
    (0..SECTOR as u64 / 8).flat_map(word).collect()
}

impl Log {
    fn new() -> Log {
        let never = Sector { versions: vec![(0, true)], acknowledged: 0 };
        Log {
            sectors: Mutex::new(vec![never; (WRITERS * OWN) as usize]),
            versions: AtomicU64::new(1),
            acknowledged: AtomicU64::new(0),
        }
    }

    fn sectors(&self) -> MutexGuard<'_, Vec<Sector>> {
        self.sectors.lock().expect("no client panics with it")
    }

    /// What is found may be there, and does not go back any more.
    fn found(&self, all: &[u8]) {
        for (i, (sector, found)) in
            self.sectors().iter_mut().zip(all.chunks_exact(SECTOR)).enumerate()
        {
            let is = |(version, zeros): &&(u64, bool)| match zeros {
                true => found.iter().all(|b| *b == 0),
                false => found == content(i as u64, *version),
            };
            let version = sector.versions.iter().find(is).unwrap_or_else(|| {
                panic!("sector {i} begins {:?}, may have {:?}", &found[..16], sector.versions)
            });
            let version = version.0;
            sector.durable(version);
            // What was not there behind a cut does not come back, and of equal zeros any may be it.
            sector.versions.truncate(1);
            sector.acknowledged = version;
        }
    }
}

/// A request of a writer, from its first sector on.
struct Sent {
    fua: bool,
    sectors: std::ops::Range<u64>,
    version: u64,
}

fn head(flags: u16, command: u16, cookie: u64, sector: u64, sectors: u64) -> Vec<u8> {
    let bytes = |sectors: u64| sectors * SECTOR as u64;
    let mut head = 0x2560_9513u32.to_be_bytes().to_vec();
    head.extend(flags.to_be_bytes());
    head.extend(command.to_be_bytes());
    head.extend(cookie.to_be_bytes());
    head.extend(bytes(sector).to_be_bytes());
    head.extend((bytes(sectors) as u32).to_be_bytes());
    head
}

/// The cookie of a reply, which says that it went well.
fn reply(socket: &mut UnixStream) -> io::Result<u64> {
    let mut head = [0; 16];
    socket.read_exact(&mut head)?;
    assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "it went well");
    Ok(u64::from_be_bytes(head[8..].try_into().expect("eight bytes")))
}

/// Sends a batch; everything in it is a version that may be there from now on.
fn send_batch(me: u64, log: &Log, rng: &mut Rng, socket: &mut UnixStream) -> io::Result<Vec<Sent>> {
    let mut batch: Vec<Sent> = Vec::new();
    for i in 0..1 + rng.below(AT_ONCE) {
        let first = me * OWN + i * LONGEST + rng.below(LONGEST / 2);
        let sectors = first..first + 1 + rng.below(LONGEST / 2);
        let command = match rng.below(16) {
            0 => TRIM,
            1 => WRITE_ZEROES,
            _ => WRITE,
        };
        let (fua, hole) = (rng.below(5) == 0, command != WRITE_ZEROES || rng.below(2) == 0);
        let version = log.versions.fetch_add(1, Ordering::Relaxed);
        for sector in &mut log.sectors()[sectors.start as usize..sectors.end as usize] {
            sector.versions.push((version, command != WRITE));
        }
        let flags = if fua { FUA } else { 0 } | if hole { 0 } else { NO_HOLE };
        let count = sectors.end - sectors.start;
        let mut said = head(flags, command, batch.len() as u64, sectors.start, count);
        if command == WRITE {
            said.extend(sectors.clone().flat_map(|sector| content(sector, version)));
        }
        socket.write_all(&said)?;
        batch.push(Sent { fua, sectors, version });
    }
    Ok(batch)
}

/// Writes until the server is gone.
fn write_on(
    me: u64,
    log: &Log,
    rng: &mut Rng,
    socket: &mut UnixStream,
    kill_at: (u64, &Sender<()>),
) -> io::Result<()> {
    loop {
        let batch = send_batch(me, log, rng, socket)?;
        for _ in &batch {
            let sent = &batch[reply(socket)? as usize];
            let mut sectors = log.sectors();
            for sector in &mut sectors[sent.sectors.start as usize..sent.sectors.end as usize] {
                sector.acknowledged = sent.version;
                if sent.fua {
                    sector.durable(sent.version);
                }
            }
            drop(sectors);
            if log.acknowledged.fetch_add(1, Ordering::Relaxed) + 1 == kill_at.0 {
                let _ = kill_at.1.send(());
            }
        }
        if rng.below(3) == 0 {
            // It covers what any client has been told so far.
            let covered: Vec<u64> = log.sectors().iter().map(|s| s.acknowledged).collect();
            socket.write_all(&head(0, FLUSH, 0, 0, 0))?;
            reply(socket)?;
            let mut sectors = log.sectors();
            sectors.iter_mut().zip(covered).for_each(|(sector, version)| sector.durable(version));
        }
    }
}

/// Requests of a round at most: who asks for many rounds asks for long ones, too.
fn most() -> u64 {
    if number("FLASHLANE_SERVE_KILLS").is_some() { 3000 } else { 1000 }
}

/// Looks at every sector, then writes until the server ends, which `end` sees to when it is told.
fn round(path: &Path, log: &Log, seed: u64, number: u64, end: impl FnOnce(&Receiver<()>)) {
    let mut rng = Rng::stream(seed, "round", number);
    let mut first = Client::connect(path, "db");
    log.found(&first.read(0, (WRITERS * OWN) as usize * SECTOR));
    let at = log.acknowledged.load(Ordering::Relaxed) + 1 + rng.below(most());
    let (tell, told) = channel();
    scope(|s| {
        for me in 0..WRITERS {
            let mut socket = Client::connect(path, "db").socket;
            let (tell, mut rng) = (tell.clone(), Rng::stream(seed ^ number << 32, "writer", me));
            s.spawn(move || {
                let ended = write_on(me, log, &mut rng, &mut socket, (at, &tell));
                let why = ended.expect_err("it goes on without end").kind();
                let gone =
                    [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                assert!(gone.contains(&why), "{why}");
            });
        }
        drop(tell);
        end(&told);
    });
}

#[test]
fn what_clients_flushed_survives_kill_9_of_the_server() {
    let rounds = number("FLASHLANE_SERVE_KILLS").unwrap_or(8);
    let seed = number("FLASHLANE_KILL_SEED").unwrap_or(1);
    let kinds = KINDS;
    let mut places: Vec<(Here, Log)> = kinds.map(|kind| (made(kind), Log::new())).into();
    for i in 0..rounds {
        let which = i as usize % kinds.len();
        let (h, log) = &mut places[which];
        let server = served(h);
        round(&h.path("s"), log, seed, i, |told| {
            told.recv().expect("some writer comes so far");
            server.kill();
        });
        let (kind, acknowledged) = (kinds[which], log.acknowledged.load(Ordering::Relaxed));
        println!("kill {i} of seed {seed}, {kind}: {acknowledged} requests acknowledged so far");
    }
    for (h, log) in &places {
        h.run("drive check a.img").good();
        let server = served(h);
        let mut client = Client::connect(&h.path("s"), "db");
        log.found(&client.read(0, (WRITERS * OWN) as usize * SECTOR));
        stopped(server);
    }
}

#[test]
fn what_clients_flushed_survives_a_power_cut_of_the_drive() {
    for kind in KINDS {
        let (h, log) = (made(kind), Log::new());
        for i in 0..2 {
            let mut server = served(&h);
            round(&h.path("s"), &log, 3, i, |told| {
                told.recv().expect("some writer comes so far");
                h.run("drive inject a.img power_cut").good();
                let done = server.output();
                assert_eq!(done.code, 130, "{done:?}");
                says(&done.err, &["the power of ", "a.img", " was cut "]);
            });
            assert!(!h.path("s").exists(), "{kind}: the socket's name is given back");
        }
        let server = served(&h);
        let mut client = Client::connect(&h.path("s"), "db");
        log.found(&client.read(0, (WRITERS * OWN) as usize * SECTOR));
        stopped(server);
    }
}

/// What goes wrong on the medium without anything being lost: programs and erases that fail, reads with a notice.
const MISHAPS: [&str; 4] = [
    "write_next_unit --times 6",
    "early_close --times 1",
    "erase_fail --times 1",
    "read_high_ecc --times 20",
];

/// The same clients and both ends, while programs and erases fail below them.
#[test]
fn what_clients_flushed_survives_faults_and_either_end() {
    for kind in KINDS {
        // With room for what fails: a device without spare is read-only.
        let (h, log, mut happened) = (drive(), Log::new(), 0);
        h.run(&format!("lnvm create a.img -n db -t {kind} -o 30")).good();
        for i in 0..2 {
            let mut server = served(&h);
            round(&h.path("s"), &log, 5, i, |told| {
                for mishap in MISHAPS {
                    h.run(&format!("drive inject a.img {mishap}")).good();
                }
                told.recv().expect("some writer comes so far");
                let faults = h.run("drive inject a.img --list --json -").good().json();
                let faults = faults["faults"].as_array().expect("a list");
                let times = faults.iter().map(|fault| fault["happened"].as_u64());
                happened += times.map(|times| times.expect("a number")).sum::<u64>();
                if i == 0 {
                    return server.kill();
                }
                h.run("drive inject a.img power_cut").good();
                assert_eq!(server.output().code, 130);
            });
        }
        let server = served(&h);
        let mut client = Client::connect(&h.path("s"), "db");
        log.found(&client.read(0, (WRITERS * OWN) as usize * SECTOR));
        stopped(server);
        h.run("drive check a.img").good();
        assert!(happened >= 4, "{kind}: {happened} faults happened under the clients");
        println!("{kind}: {happened} faults under the clients");
    }
}

/// A client that behaves: one request at a time, and what it reads is what it wrote.
fn behave(path: &Path, me: u64, over: &AtomicBool) -> u64 {
    let (mut client, mut done) = (Client::connect(path, "db"), 0u64);
    let at = me * 16 * SECTOR as u64;
    while !over.load(Ordering::Relaxed) {
        let data = pattern((me * 31 + done) as u8, 8);
        assert_eq!(client.write((done % 2) as u16 * FUA, at, &data), 0);
        assert!(client.read(at, data.len()) == data, "client {me}");
        if done % 8 == 0 {
            client.flush();
        }
        done += 1;
    }
    done
}

/// Asks for much, and takes little of it at a time.
fn dawdle(path: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let mut client = Client::connect(path, "db");
        (0..40).for_each(|_| client.send(READ, 0, 0, 4 << 20, &[]));
        for _ in 0..50 {
            client.socket.read_exact(&mut [0; 4096]).expect("there is enough");
            pause();
        }
    }
}

/// Says what makes no sense, or goes in the middle of something.
fn misbehave(path: &Path, me: u64, over: &AtomicBool) {
    let mut rng = Rng::stream(me, "misbehave", 0);
    while !over.load(Ordering::Relaxed) {
        let garbage: Vec<u8> = (0..1 + rng.below(5000)).map(|_| rng.below(256) as u8).collect();
        // The server may have left already.
        match rng.below(4) {
            0 => drop(UnixStream::connect(path)),
            1 => drop(Client::greeted(path).write_all(&garbage)),
            2 => drop(Client::connect(path, "db").socket.write_all(&garbage)),
            _ => {
                let mut client = Client::connect(path, "db");
                client.send(READ, 0, 0, 8 << 20, &[]);
                // Never whole: others have what is there.
                let write = head(0, WRITE, 1, 0, 2 + rng.below(2000));
                let _ = client.socket.write_all(&[write, garbage].concat());
            }
        }
    }
}

#[test]
fn a_crowd_is_served_in_bounded_memory() {
    let seconds = number("FLASHLANE_SERVE_SECONDS").unwrap_or(3);
    let h = made("pblk");
    let server = served(&h);
    let (path, over) = (&h.path("s"), &AtomicBool::new(false));
    let shares: Vec<u64> = scope(|s| {
        let crowd: Vec<_> = (0..24).map(|me| s.spawn(move || behave(path, me, over))).collect();
        (0..4).for_each(|_| drop(s.spawn(move || dawdle(path, over))));
        (0..4).for_each(|me| drop(s.spawn(move || misbehave(path, me, over))));
        // What it has come to in the first third is what it keeps.
        let looks = 3 * seconds;
        let mut memories = Vec::new();
        for _ in 0..looks {
            #[allow(clippy::disallowed_methods)] // so long they go on
            std::thread::sleep(Duration::from_millis(1000 / 3));
            memories.push(memory(server.id()));
        }
        over.store(true, Ordering::Relaxed);
        let (early, late) = memories.split_at(memories.len() / 3);
        let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
        let (early, late) = (most(early), most(late));
        println!("{seconds} s: {early} KiB, then {late} KiB at most");
        assert!(late < early + (64 << 10), "{early} KiB, then {late} KiB");
        crowd.into_iter().map(|client| client.join().expect("it was served")).collect()
    });
    let (least, all) = (*shares.iter().min().expect("some"), shares.iter().sum::<u64>());
    println!("requests of each: {shares:?}");
    assert!(least * 20 * shares.len() as u64 >= all, "one has {least} of {all}");
    stopped(server);
}

/// Time on a CPU that a process has had, in hundredths of a second.
fn used(id: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).expect("it runs");
    let behind_name = stat.rsplit(')').next().expect("a name");
    let numbers = behind_name.split_whitespace().skip(11).take(2);
    numbers.map(|n| n.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_server_without_descriptors_waits_for_some() {
    let h = made("pblk");
    let mut command = std::process::Command::new("sh");
    let line = "ulimit -n 32; exec \"$0\" serve a.img --null-latency --nbd unix:s";
    command.args(["-c", line, env!("CARGO_BIN_EXE_flashlane")]);
    command.current_dir(h.path("")).stdin(std::process::Stdio::null());
    let mut server = h.hold_by(command, "s");
    let mut good = Client::connect(&h.path("s"), "db");
    // More than it has descriptors for, fewer than it has seats.
    let many: Vec<UnixStream> =
        (0..50).map(|_| UnixStream::connect(h.path("s")).expect("they may wait")).collect();
    let data = pattern(1, 4);
    assert_eq!(good.write(FUA, 0, &data), 0);
    let before = used(server.id());
    (0..40).for_each(|_| pause());
    // It neither ends nor spins: those 0.8 s and more would be 80 and more.
    let took = used(server.id()) - before;
    assert!(server.is_running() && took < 40, "{took} hundredths of a second");
    assert!(good.read(0, data.len()) == data);
    drop(many);
    let mut late = Client::connect(&h.path("s"), "db");
    assert!(late.read(0, data.len()) == data);
    // Nor does it when it is told to end.
    let many: Vec<UnixStream> =
        (0..50).map(|_| UnixStream::connect(h.path("s")).expect("they may wait")).collect();
    server.signal("-TERM");
    let ends = (0..3000).any(|_| {
        pause();
        !server.is_running()
    });
    assert!(ends, "it has had a minute");
    server.output().good();
    drop(many);
}

#[test]
fn a_server_that_ends_leaves_the_name_of_another_alone() {
    let h = made("pblk");
    h.run("drive create b.img --preset tiny").good();
    h.run("lnvm create b.img -n other -t pblk").good();
    let mut one = served(&h);
    // It takes nothing, so the server waits for it a while when it ends.
    let mut slow = Client::connect(&h.path("s"), "db");
    slow.send(READ, 0, 0, 8 << 20, &[]);
    let mut some = [0; 16];
    slow.socket.read_exact(&mut some).expect("a head");
    one.signal("-TERM");
    while UnixStream::connect(h.path("s")).is_ok() {
        pause();
    }
    // Nobody listens there any more, so the name may be taken.
    let other = h.hold_with("serve b.img --null-latency --nbd unix:s", "s");
    assert!(one.is_running(), "it waits");
    drop(slow);
    one.output().good();
    Client::connect(&h.path("s"), "other").flush();
    stopped(other);
}
