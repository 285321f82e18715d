//! Flushes that are under way while a thread commits (`OpenImage::commits_behind`).
//!
//! The host is slow here: it syncs when the test lets it. What a flush promises does not depend on that.

use crate::common::*;
use std::io;
use std::sync::Condvar;
use std::time::Duration;

/// A file in memory whose syncs wait until they may.
struct Slow {
    file: MemoryFile,
    start: Vec<u8>,
    may: Mutex<bool>,
    changed: Condvar,
}

impl Slow {
    /// A new image, and its device.
    fn device() -> (Arc<Slow>, Arc<Ssd>) {
        let image = image_of(&spec());
        let (may, changed) = (Mutex::new(true), Condvar::new());
        let file = MemoryFile::new(image.bytes());
        let slow = Arc::new(Slow { file, start: image.bytes(), may, changed });
        let options = OpenImage { commits_behind: true, ..OpenImage::default() };
        let ssd = Ssd::open_on(slow.clone(), &options).expect("an image");
        (slow, ssd)
    }

    /// From now on syncs wait.
    fn hold(&self) {
        *self.may.lock().expect("no panic") = false;
    }

    fn let_go(&self) {
        *self.may.lock().expect("no panic") = true;
        self.changed.notify_all();
    }

    /// Syncs wait for a while, in which a flush that does not wait for them ends.
    fn hold_for_a_while(self: &Arc<Slow>) {
        self.hold();
        let slow = self.clone();
        std::thread::spawn(move || {
            #[allow(clippy::disallowed_methods)] // so that a broken rule has time to show
            std::thread::sleep(Duration::from_millis(30));
            slow.let_go();
        });
    }

    /// The device as a loss of the host's power leaves it now, in the worst case: the first write pointers.
    fn durable(&self) -> [u32; 2] {
        let log = self.file.log();
        let left = Moment::new(&self.start, &log, log.len()).nth(0);
        let file = Arc::new(MemoryFile::new(left));
        let ssd = open_on(file);
        [0, 1].map(|pu| ssd.chunk_report(pu, 0, 1)[0].write_pointer)
    }
}

impl HostFile for Slow {
    flashlane_media::host_file_as_below!(file: read_at write_at punch allocate len set_len);

    fn sync(&self) -> io::Result<()> {
        let mut may = self.may.lock().expect("no panic");
        while !*may {
            may = self.changed.wait(may).expect("no panic");
        }
        self.file.sync()
    }
}

fn spec() -> DeviceSpec {
    of_few_sectors(2, 3)
}

fn flush() -> Request<'static> {
    Request::plain(Op::Flush, &[])
}

async fn write_first(cx: &Cx, ssd: &Ssd, pu: u32, sector: u32) {
    let done = write(cx, ssd, &addrs(ssd, &[(pu, 0, sector, 2)]), 7).await;
    assert_eq!(done.failed, 0);
}

/// A flush ends when its commit is durable, also one that finds nothing new since the commit that is under way, and one
/// that finds more.
#[test]
fn a_flush_ends_behind_its_commit() {
    let (slow, ssd) = Slow::device();
    Bench::new(ssd.clone()).run(|cx, dev| async move {
        write_first(&cx, &ssd, 0, 0).await;
        slow.hold_for_a_while();
        assert_eq!(dev.io(&cx, flush()).await.status(0), Status::Ok);
        assert_eq!(slow.durable(), [2, 0]);
        write_first(&cx, &ssd, 0, 2).await;
        slow.hold_for_a_while();
        let (_first, second) = (dev.submit(&cx, flush()), dev.submit(&cx, flush()));
        assert_eq!(dev.wait(&cx, second).await.status(0), Status::Ok);
        assert_eq!(slow.durable(), [4, 0]);
        write_first(&cx, &ssd, 1, 0).await;
        slow.hold_for_a_while();
        let first = dev.submit(&cx, flush());
        write_first(&cx, &ssd, 1, 2).await;
        let second = dev.submit(&cx, flush());
        assert_eq!(dev.wait(&cx, second).await.status(0), Status::Ok);
        assert_eq!(slow.durable(), [4, 4]);
        assert_eq!(dev.wait(&cx, first).await.status(0), Status::Ok);
        assert_eq!(ssd.image_info().expect("an image").commits, 4);
    });
}

/// The flush of a commit that fails fails; when the host is well again the next one does not. A sync that fails is for good.
#[test]
fn a_flush_fails_with_its_commit() {
    let (slow, ssd) = Slow::device();
    Bench::new(ssd.clone()).run(|cx, dev| async move {
        write_first(&cx, &ssd, 0, 0).await;
        slow.file.fail_after(1, ErrorKind::StorageFull);
        let (first, second) = (dev.submit(&cx, flush()), dev.submit(&cx, flush()));
        assert_eq!(dev.wait(&cx, second).await.status(0), Status::HostFault);
        assert_eq!(dev.wait(&cx, first).await.status(0), Status::HostFault);
        assert!(ssd.host_trouble().expect("said").contains("make room"));
        slow.file.heal();
        assert_eq!(dev.io(&cx, flush()).await.status(0), Status::Ok);
        assert_eq!(slow.durable(), [2, 0]);
        write_first(&cx, &ssd, 0, 2).await;
        slow.file.fail_after(0, ErrorKind::Other);
        assert_eq!(dev.io(&cx, flush()).await.status(0), Status::HostFault);
        slow.file.heal();
        assert_eq!(dev.io(&cx, flush()).await.status(0), Status::HostFault);
        assert!(ssd.close().is_err());
    });
}

/// In virtual time a run does not depend on how fast the host is: the same times, the same fingerprint.
#[test]
fn a_slow_host_is_no_part_of_a_run() {
    let run = |is_slow: bool| {
        let (slow, ssd) = Slow::device();
        let run = Virtual::new(1, 7, CostTable::zero());
        let cx = run.cx();
        let main = async move {
            for round in 0..2 {
                write_first(&cx, &ssd, 0, 2 * round).await;
                if is_slow {
                    slow.hold_for_a_while();
                }
                let (theirs, dev) = (cx.clone(), ssd.clone());
                let flushed = cx.spawn_join(async move {
                    let dev: &dyn Device = &*dev;
                    (dev.io(&theirs, flush()).await.status(0), theirs.now())
                });
                write_first(&cx, &ssd, 1, 2 * round).await;
                assert_eq!(flushed.await.0, Status::Ok);
            }
            (cx.now(), ssd.image_info().expect("an image").commits)
        };
        (run.run(main).expect("no stall"), run.fingerprint())
    };
    assert_eq!(run(true), run(false));
}

/// On the real clock a core goes on while a flush of it is under way.
#[test]
fn a_real_core_goes_on_while_it_flushes() {
    let (slow, ssd) = Slow::device();
    let ended = Threads::new(1, 7).run_here(|cx| async move {
        write_first(&cx, &ssd, 0, 0).await;
        slow.hold();
        // A core that waits for the host is freed in the end, and is late.
        let (theirs, late) = (slow.clone(), Arc::new(Mutex::new(false)));
        let (is_late, over) = (late.clone(), Arc::new((Mutex::new(false), Condvar::new())));
        let ends = over.clone();
        let guard = std::thread::spawn(move || {
            let is_over = ends.0.lock().expect("no panic");
            let waited = ends.1.wait_timeout_while(is_over, Duration::from_secs(20), |over| !*over);
            *is_late.lock().expect("no panic") = waited.expect("no panic").1.timed_out();
            theirs.let_go();
        });
        let (their_cx, dev) = (cx.clone(), ssd.clone());
        let flushed = cx.spawn_join(async move {
            let dev: &dyn Device = &*dev;
            dev.io(&their_cx, flush()).await.status(0)
        });
        cx.sleep(Ns::from_ms(1)).await;
        write_first(&cx, &ssd, 1, 0).await;
        let got = read(&cx, &*ssd, &addrs(&*ssd, &[(0, 0, 0, 2)]), Flags::default()).await;
        assert!(got.holds(0, 7));
        *over.0.lock().expect("no panic") = true;
        over.1.notify_all();
        assert_eq!(flushed.await, Status::Ok);
        guard.join().expect("no panic");
        assert!(!*late.lock().expect("no panic"), "the core has waited for the host");
        assert_eq!(slow.durable(), [2, 0]);
    });
    assert_eq!(ended, Ok(()));
}
