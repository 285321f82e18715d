//! What is behind, as its caller sees it and as the host does.

use super::*;
use crate::host::memory::{FileOp, MemoryFile};
use flashlane_base::Rng;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A file in memory whose writes wait until it is opened, and may then fail.
#[derive(Default)]
struct Gate {
    file: MemoryFile,
    is_open: Mutex<bool>,
    opened: Condvar,
    /// The next write fails so.
    fails: Mutex<Option<io::ErrorKind>>,
}

impl Gate {
    fn behind() -> (Arc<Behind>, Opens) {
        let gate = Arc::new(Gate::default());
        gate.file.set_len(10_000).unwrap();
        gate.file.take_log();
        (Arc::new(Behind::new(gate.clone())), Opens(gate))
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    /// Opens it when whoever calls this has had time to go on.
    fn open_soon(self: &Arc<Gate>) -> JoinHandle<()> {
        let gate = self.clone();
        std::thread::spawn(move || {
            pause();
            gate.open();
        })
    }

    fn wait(&self) -> io::Result<()> {
        let mut is_open = self.is_open.lock().unwrap();
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
        self.fails.lock().unwrap().take().map_or(Ok(()), |kind| Err(kind.into()))
    }
}

/// Opens it before the file is dropped, which would wait for that.
struct Opens(Arc<Gate>);

impl std::ops::Deref for Opens {
    type Target = Arc<Gate>;
    fn deref(&self) -> &Arc<Gate> {
        &self.0
    }
}

impl Drop for Opens {
    fn drop(&mut self) {
        self.open();
    }
}

fn pause() {
    #[allow(clippy::disallowed_methods)] // so that a broken rule has time to show
    std::thread::sleep(Duration::from_millis(30));
}

impl HostFile for Gate {
    crate::host_file_as_below!(file: read_at allocate sync len set_len);

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.wait()?;
        self.file.write_at(at, bytes)
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.wait()?;
        self.file.punch(at, len)
    }
}

fn read<const N: usize>(file: &dyn HostFile, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    file.read_at(at, &mut bytes).unwrap();
    bytes
}

/// While it is on its way, in the batch that is filled and in the one that is written, whole and in parts.
#[test]
fn what_was_written_is_read() {
    let (file, gate) = Gate::behind();
    file.write_at(100, &[1; 50]).unwrap();
    assert_eq!(read::<10>(&*file, 120), [1; 10]);
    // The thread takes it after a while, and waits at the gate.
    while file.shared.state().writing.is_none() {
        pause();
    }
    file.write_at(150, &[2; 50]).unwrap();
    file.write_at(110, &[3; 5]).unwrap();
    assert_eq!(read::<5>(&*file, 110), [3; 5]);
    assert_eq!(read::<10>(&*file, 155), [2; 10]);
    assert_eq!(read::<10>(&*file, 130), [1; 10], "in the one that is written");
    drop(gate);
}

/// The same of one that must wait, since it is in two batches.
#[test]
fn what_was_written_in_parts_is_waited_for() {
    let (file, gate) = Gate::behind();
    file.write_at(100, &[1; 50]).unwrap();
    file.write_at(120, &[2; 5]).unwrap();
    let opener = gate.open_soon();
    assert_eq!(read::<10>(&*file, 118), [1, 1, 2, 2, 2, 2, 2, 1, 1, 1]);
    opener.join().unwrap();
}

#[test]
fn a_sync_waits_for_what_was_written_before() {
    let (file, gate) = Gate::behind();
    file.write_at(100, &[1; 5]).unwrap();
    let opener = gate.open_soon();
    file.sync().unwrap();
    assert_eq!(gate.file.log(), [FileOp::Write(100, vec![1; 5]), FileOp::Sync]);
    opener.join().unwrap();
}

/// By the next sync and every change from then on, and by reads of what was lost; what is in the file is read.
#[test]
fn a_failed_write_is_told_for_good() {
    let (file, gate) = Gate::behind();
    gate.open();
    *gate.fails.lock().unwrap() = Some(io::ErrorKind::QuotaExceeded);
    file.write_at(100, &[1; 50]).unwrap();
    let kind = io::ErrorKind::QuotaExceeded;
    let told = file.sync().unwrap_err();
    assert!(told.kind() == kind && told.to_string().contains("an earlier write"), "{told}");
    for _ in 0..2 {
        assert_eq!(file.sync().unwrap_err().kind(), kind);
        assert_eq!(file.write_at(0, &[2]).unwrap_err().kind(), kind);
        assert_eq!(file.write_through(0, &[2]).unwrap_err().kind(), kind);
        assert_eq!(file.punch(0, 1).unwrap_err().kind(), kind);
        assert_eq!(file.allocate(0, 1).unwrap_err().kind(), kind);
        assert_eq!(file.len().unwrap_err().kind(), kind);
        assert_eq!(file.read_at(149, &mut [0; 1]).unwrap_err().kind(), kind);
        assert_eq!(read::<50>(&*file, 150), [0; 50]);
    }
    drop(file);
    assert_eq!(gate.file.log(), []);
}

/// Nothing of what waits behind a write that failed reaches the host: it may name what was lost.
#[test]
fn nothing_is_written_behind_a_failure() {
    let (file, gate) = Gate::behind();
    *gate.fails.lock().unwrap() = Some(io::ErrorKind::Other);
    file.write_at(100, &[1; 50]).unwrap();
    while file.shared.state().writing.is_none() {
        pause();
    }
    file.write_at(300, &[2; 50]).unwrap();
    gate.open();
    assert!(file.sync().is_err());
    assert!(file.read_at(300, &mut [0; 1]).is_err(), "lost with it");
    drop(file);
    assert_eq!(gate.file.log(), []);
}

/// Two batches and no more, however slow the host is.
#[test]
fn what_waits_is_bounded() {
    const PIECE: usize = 64 << 10;
    let (file, gate) = Gate::behind();
    let all = 4 * BATCH_BYTES / PIECE;
    let pushed = Arc::new(AtomicUsize::new(0));
    let (theirs, count) = (file.clone(), pushed.clone());
    let pusher = std::thread::spawn(move || {
        for n in 0..all {
            theirs.write_at((n * PIECE) as u64, &[n as u8; PIECE]).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let (mut before, mut now) = (usize::MAX, 0);
    while now == 0 || before != now {
        before = now;
        pause();
        now = pushed.load(Ordering::SeqCst);
    }
    assert!(now * PIECE <= 2 * BATCH_BYTES, "{now} of {all} pieces wait");
    gate.open();
    pusher.join().unwrap();
    file.sync().unwrap();
    assert_eq!(read::<1>(&gate.file, ((all - 1) * PIECE) as u64), [all as u8 - 1]);
}

#[test]
fn dropping_it_waits_for_the_queue() {
    let (file, gate) = Gate::behind();
    gate.open();
    file.write_at(100, &[1; 5]).unwrap();
    drop(file);
    assert_eq!(gate.file.log(), [FileOp::Write(100, vec![1; 5])]);
    let (file, gate) = Gate::behind();
    gate.open();
    file.write_at(100, &[1; 5]).unwrap();
    file.abandon();
    assert!(gate.file.log().is_empty() && file.write_at(0, &[1]).is_err());
}

/// Room that is reserved is not given back by what was to be given back before.
#[test]
fn reserved_room_stays() {
    let (file, gate) = Gate::behind();
    file.punch(4096, 4096).unwrap();
    let opener = gate.open_soon();
    file.allocate(6000, 10).unwrap();
    assert_eq!(gate.file.log(), [FileOp::Punch(4096, 4096), FileOp::Allocate(6000, 10)]);
    file.allocate(0, 10).unwrap();
    opener.join().unwrap();
}

/// A disk that is full until something is given back that waits; then the room is there.
#[test]
fn room_that_is_given_back_counts() {
    struct Full(MemoryFile);
    impl HostFile for Full {
        crate::host_file_as_below!(0: read_at write_at allocate sync len set_len);

        fn punch(&self, at: u64, len: u64) -> io::Result<()> {
            self.0.limit(None);
            self.0.punch(at, len)
        }
    }
    let full = Arc::new(Full(MemoryFile::default()));
    full.0.limit(Some(10));
    let file = Behind::new(full);
    assert_eq!(file.allocate(0, 100).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.punch(0, 10).unwrap();
    file.allocate(0, 100).unwrap();
}

/// Room that is asked for ahead is reserved by the thread; room that the host refuses then is refused in earnest, too.
#[test]
fn room_is_made_ahead() {
    let (file, gate) = Gate::behind();
    gate.open();
    assert!(file.expect_room(20_000, 100));
    file.write_at(20_050, &[1; 5]).unwrap();
    assert_eq!(read::<5>(&*file, 20_050), [1; 5]);
    file.drain().unwrap();
    let log = gate.file.take_log();
    assert_eq!(log, [FileOp::Allocate(20_000, 100), FileOp::Write(20_050, vec![1; 5])]);
    file.allocate(20_000, 100).unwrap();
    assert_eq!(gate.file.take_log(), []);
    file.allocate(20_000, 100).unwrap();
    assert_eq!(gate.file.take_log(), [FileOp::Allocate(20_000, 100)], "it was taken");
    gate.file.limit(Some(25_000));
    assert!(file.expect_room(30_000, 100));
    file.drain().unwrap();
    let refused = file.allocate(30_000, 100).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    gate.file.limit(None);
}

/// Room that is not there yet is not waited for, and then the thread need not reserve it.
#[test]
fn room_is_reserved_once() {
    let (file, gate) = Gate::behind();
    file.write_at(0, &[1; 5]).unwrap();
    assert!(file.expect_room(30_000, 100));
    file.allocate(30_000, 100).unwrap();
    gate.open();
    file.drain().unwrap();
    assert_eq!(gate.file.log(), [FileOp::Allocate(30_000, 100), FileOp::Write(0, vec![1; 5])]);
}

/// Side by side goes in one go; what overlaps keeps its order; what must be there at once is.
#[test]
fn the_host_sees_few_writes() {
    let (file, gate) = Gate::behind();
    gate.open();
    for at in [300, 100, 104, 304, 108] {
        file.write_at(at, &[at as u8; 4]).unwrap();
    }
    file.sync().unwrap();
    let parts = |ats: &[u64]| ats.iter().flat_map(|at| [*at as u8; 4]).collect::<Vec<u8>>();
    let (first, second) = (parts(&[100, 104, 108]), parts(&[300, 304]));
    let expected = [FileOp::Write(100, first), FileOp::Write(300, second), FileOp::Sync];
    assert_eq!(gate.file.take_log(), expected);
    file.write_at(100, &[1; 50]).unwrap();
    file.write_at(90, &[2; 50]).unwrap();
    file.write_at(100, &[3; 5]).unwrap();
    file.sync().unwrap();
    assert_eq!(read::<8>(&gate.file, 98), [2, 2, 3, 3, 3, 3, 3, 2]);
    gate.file.take_log();
    file.write_at(500, &[1; 4]).unwrap();
    file.write_through(600, &[2; 4]).unwrap();
    assert_eq!(gate.file.log(), [FileOp::Write(600, vec![2; 4])]);
    file.write_through(502, &[3; 1]).unwrap();
    assert_eq!(read::<4>(&gate.file, 500), [1, 1, 3, 1]);
}

/// By seed: whatever is done, it reads as a file does, and what is on the disk behind a sync is the same.
#[test]
fn it_is_a_file() {
    for seed in 0..20 {
        let (plain, host) = (MemoryFile::default(), Arc::new(MemoryFile::default()));
        let behind = Behind::new(host.clone());
        let mut rng = Rng::new(seed);
        let mut below = |n: u64| rng.below(n);
        plain.set_len(400_000).unwrap();
        behind.set_len(400_000).unwrap();
        for _ in 0..400 {
            // Mostly near each other, and over a border of places.
            let at = if below(4) == 0 { below(300_000) } else { 65_000 + below(2000) };
            let len = if below(10) == 0 { below(90_000) } else { below(300) };
            match below(10) {
                0 => {
                    behind.sync().unwrap();
                    assert!(host.bytes() == plain.bytes(), "seed {seed}");
                }
                1 => {
                    plain.punch(at, len).unwrap();
                    behind.punch(at, len).unwrap();
                }
                2..6 => {
                    let (mut a, mut b) = (vec![0; len as usize], vec![1; len as usize]);
                    plain.read_at(at, &mut a).unwrap();
                    behind.read_at(at, &mut b).unwrap();
                    assert!(a == b, "seed {seed}: {len} bytes at {at}");
                }
                n => {
                    let bytes = vec![1 + below(255) as u8; len as usize];
                    plain.write_at(at, &bytes).unwrap();
                    match n {
                        6 => behind.write_through(at, &bytes).unwrap(),
                        _ => behind.write_at(at, &bytes).unwrap(),
                    }
                }
            }
        }
        drop(behind);
        assert!(host.bytes() == plain.bytes(), "seed {seed}");
    }
}
