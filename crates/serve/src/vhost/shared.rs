//! Memory that another process can take away while it is mapped here.
//!
//! Owns: the ranges of such memory in this process, and the handler of SIGBUS. Promises: an access
//! to memory that its owner has cut off ends neither this process nor another connection: it reads
//! as zeros from then on, what is written to it goes nowhere, and [`Guard::is_lost`] says so. Any
//! other SIGBUS does what it did before. Never: decides what comes of a connection whose memory is
//! lost.
//!
//! A file that is mapped and then cut short, or that finds no room for a page, gives SIGBUS at the
//! access. The alternative, copies by the kernel (`process_vm_readv`) that return an error, can't
//! do the atomic accesses that a queue needs.

use flashlane_base::mutant;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Ranges at a time: those of a hundred front ends, nine each.
const RANGES: usize = 1024;

/// A range of addresses. Its version is odd while it is changed, so that the handler, which can't
/// wait, sees two ends that belong together.
struct Range {
    version: AtomicU64,
    start: AtomicUsize,
    /// 0 where there is none.
    end: AtomicUsize,
    is_taken: AtomicBool,
    is_lost: AtomicBool,
}

static ALL: [Range; RANGES] = [const {
    Range {
        version: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_taken: AtomicBool::new(false),
        is_lost: AtomicBool::new(false),
    }
}; RANGES];

/// What SIGBUS did before, on the heap for good.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

impl Range {
    fn set(&self, start: usize, end: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Where it begins and ends, if this address lies in it. Called in a handler of signals: it
    /// waits for nobody.
    fn holds(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::SeqCst);
        let (start, end) = (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::SeqCst) == version;
        (is_whole && (start..end).contains(&address)).then_some((start, end))
    }
}

/// A range of mapped memory that may be taken away, for as long as it is mapped.
#[derive(Debug)]
pub(super) struct Guard(usize);

impl Guard {
    /// Begins to watch over `bytes` bytes from `start` on, which begin with a page. They must stay
    /// mapped until this is dropped, and only threads that run while it is there may touch them.
    ///
    /// # Errors
    /// Too much is watched over already, or the handler can't be had.
    pub(super) fn new(start: *const u8, bytes: usize) -> io::Result<Guard> {
        listen()?;
        let free = |range: &Range| {
            let (taken, done) = (Ordering::AcqRel, Ordering::Relaxed);
            range.is_taken.compare_exchange(false, true, taken, done).is_ok()
        };
        let at = ALL.iter().position(free).ok_or(io::ErrorKind::StorageFull)?;
        ALL[at].is_lost.store(false, Ordering::SeqCst);
        let start = start.expose_provenance();
        ALL[at].set(start, start + bytes);
        Ok(Guard(at))
    }

    /// Some of it was taken away: what was read of it since may be zeros.
    pub(super) fn is_lost(&self) -> bool {
        ALL[self.0].is_lost.load(Ordering::SeqCst) && !mutant!("serve.lost-memory-unseen")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        ALL[self.0].set(0, 0);
        ALL[self.0].is_taken.store(false, Ordering::Release);
    }
}

/// Has SIGBUS come here, once in this process.
fn listen() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    if mutant!("serve.sigbus-unheard") {
        return Ok(());
    }
    let begin = || {
        // SAFETY: a sigaction of zeros is one: the default action, no flags, an empty mask.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: without a new action nothing changes, and the old one goes into `before`, which
        // lives here.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        // The handler may come as soon as it is set, and wants this then.
        BEFORE.store(Box::into_raw(Box::new(before)), Ordering::SeqCst);
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_sigbus;
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // On the other stack, where a thread has one: that is what std does.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_sigbus` has the signature that SA_SIGINFO asks for, and does only what a
        // handler may: it reads and writes atomics, and calls mmap and sigaction, which are system
        // calls.
        match unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    };
    DONE.get_or_init(begin).map_err(io::Error::from_raw_os_error)
}

/// An access found no memory. In a range of ours there is fresh memory of this process from then
/// on, and the access is made again when this returns.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a siginfo_t that lives until it returns,
    // and that of a SIGBUS has an address; one that a process has sent has none of ours there,
    // which no range holds.
    let (address, is_fault) = unsafe { ((*info).si_addr().addr(), (*info).si_code > 0) };
    let found = ALL.iter().find_map(|range| Some((range, range.holds(address)?)));
    if let Some((range, (start, end))) = found.filter(|_| is_fault) {
        range.is_lost.store(true, Ordering::SeqCst);
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let can = libc::PROT_READ | libc::PROT_WRITE;
        let at = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is mapped and stays so while its guard lives ([`Guard::new`]), and its
        // guard lives: this thread is touching it. So the new mapping takes the place of that one
        // alone, and of all of it. All accesses to it are volatile or atomic, of plain integers:
        // any content will do. errno is the thread's, and mmap changes it only where it fails,
        // after which the process ends.
        let mapped = unsafe { libc::mmap(at, end - start, can, how, -1, 0) };
        if mapped == at {
            return;
        }
    }
    // SAFETY: the pointer was stored before this handler was set, and what it leads to is never
    // freed. With the old action the access, made again, does what it did before; a signal that was
    // sent is sent again.
    unsafe {
        libc::sigaction(signal, BEFORE.load(Ordering::SeqCst), std::ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

    const PAGE: usize = 4096;

    fn mapped(pages: usize) -> (File, MmapRegion, Guard) {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory"));
        ftruncate(&file, (pages * PAGE) as u64).expect("memory");
        let place = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
        let map = MmapRegion::from_file(place, pages * PAGE).expect("memory");
        let guard = Guard::new(map.as_ptr(), pages * PAGE).expect("a range");
        (file, map, guard)
    }

    #[test]
    fn memory_that_is_taken_away_reads_as_zeros_and_says_so() {
        let (cut, a, of_a) = mapped(8);
        let (_other, b, of_b) = mapped(8);
        for map in [&a, &b] {
            map.as_volatile_slice().write_slice(&[7; PAGE], 4 * PAGE).expect("room");
        }
        ftruncate(&cut, 2 * PAGE as u64).expect("it is cut");
        assert!(!of_a.is_lost(), "nobody has touched it yet");
        let mut some = [1; PAGE];
        a.as_volatile_slice().read_slice(&mut some, 4 * PAGE).expect("it is mapped");
        assert_eq!((some, of_a.is_lost()), ([0; PAGE], true));
        a.as_volatile_slice().store(9u16, 7 * PAGE, Ordering::Release).expect("it is mapped");
        assert_eq!(a.as_volatile_slice().load::<u16>(7 * PAGE, Ordering::Acquire).ok(), Some(9));
        b.as_volatile_slice().read_slice(&mut some, 4 * PAGE).expect("it is mapped");
        assert_eq!((some, of_b.is_lost()), ([7; PAGE], false));
        // Its place is another's when it is gone.
        drop((of_a, a));
        let (_file, c, of_c) = mapped(1);
        c.as_volatile_slice().write_slice(&[5; 8], 0).expect("room");
        assert!(!of_c.is_lost());
    }

    #[test]
    fn threads_lose_memory_side_by_side() {
        let threads = (0..4u8).map(|n| {
            std::thread::spawn(move || {
                for round in 0..50 {
                    let (file, map, guard) = mapped(3);
                    if (round + n) % 2 == 0 {
                        ftruncate(&file, 0).expect("it is cut");
                    }
                    let mut one = [1];
                    map.as_volatile_slice().read_slice(&mut one, 2 * PAGE).expect("it is mapped");
                    assert_eq!((one, guard.is_lost()), ([0], (round + n) % 2 == 0));
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|t| t.join().expect("no panic"));
    }
}
