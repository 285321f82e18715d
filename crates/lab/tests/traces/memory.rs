//! A large trace needs no more memory than a small one.
//!
//! Measured by an allocator that counts per thread, so that tests beside each other don't disturb.

use flashlane_lab::run::Unwatched;
use flashlane_lab::trace::convert::{Conversion, convert};
use flashlane_lab::trace::info::Info;
use flashlane_lab::trace::{Format, Reading, TraceSource, scan};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{BufWriter, Write};
use std::path::Path;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(by: isize) {
    // A thread that is ending has no counters any more.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + by);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments, whose promises
// hold there too; the counters are thread-local cells that allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes that `work` had allocated at most, beyond those that there were.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let done = work();
    (done, (PEAK.get() - before).max(0) as usize)
}

/// Enough for several row groups.
const SMALL: u64 = 300_000;
const LARGE: u64 = 2_400_000;

fn write_trace(path: &Path, requests: u64) {
    let mut out = BufWriter::new(std::fs::File::create(path).unwrap());
    for i in 0..requests {
        // The same 64 MiB over and over, in an order without a pattern.
        let sector = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 16_384 * 8;
        writeln!(out, "{} 0 {sector} 8 {}", i * 1000, i % 2).unwrap();
    }
    out.into_inner().unwrap().sync_all().unwrap();
}

fn info_peak(path: &Path, requests: u64) -> usize {
    let (info, peak) = peak_of(|| {
        let source = TraceSource::File(path.into());
        Info::of(&scan(&source, &Reading::default()).unwrap())
    });
    assert_eq!(info.actions[0].requests, requests);
    peak
}

fn convert_peak(from: &Path, to: &Path, format: Format) -> usize {
    let s = scan(&TraceSource::File(from.into()), &Reading::default()).unwrap();
    let what = Conversion { to: format, device: None, lossy: false };
    let (done, peak) =
        peak_of(|| convert(&s, &what, &Unwatched, || std::fs::File::create(to)).unwrap());
    assert_eq!(done.1.written, s.chosen().requests());
    peak
}

#[test]
fn eight_times_the_trace_needs_no_more_memory() {
    let folder = tempfile::tempdir().unwrap();
    let peaks = [SMALL, LARGE].map(|requests| {
        let text = folder.path().join(format!("{requests}.txt"));
        let own = folder.path().join(format!("{requests}.parquet"));
        let again = folder.path().join(format!("{requests}.again.txt"));
        write_trace(&text, requests);
        let read_text = info_peak(&text, requests);
        let to_own = convert_peak(&text, &own, Format::Parquet);
        let read_own = info_peak(&own, requests);
        let to_text = convert_peak(&own, &again, Format::Mqsim);
        assert!(
            std::fs::read(&text).unwrap() == std::fs::read(&again).unwrap(),
            "the same text comes back"
        );
        [read_text, to_own, read_own, to_text]
    });
    println!("peaks in bytes (read text, to Parquet, read Parquet, to text): {peaks:?}");
    let [small, large] = peaks;
    for (step, (small, large)) in small.iter().zip(large).enumerate() {
        // Beside the trace itself there is the list of row groups: some KiB for each half million.
        // Before a row group is full its columns still grow: at most the 22 MiB of one, with the
        // room that a growing list has to spare.
        let allowed = if step == 1 { small + (48 << 20) } else { small + small / 4 + (1 << 20) };
        assert!(large <= allowed, "step {step}: {large} bytes for 8 times of {small}");
        assert!(large < 96 << 20, "step {step}: {large} bytes");
    }
}

/// A file without a line's end is refused long before it fills the memory.
#[test]
fn an_endless_line_is_refused_in_little_memory() {
    let bytes = [b"0 0 0 8 0\n".to_vec(), vec![b'7'; 64 << 20]].concat();
    let source = TraceSource::Memory { name: "endless".into(), bytes: bytes.into() };
    let (said, peak) = peak_of(|| scan(&source, &Reading::default()).map(|_| ()).unwrap_err());
    assert!(said.to_string().contains("endless:2: the line is longer than 4096 bytes"), "{said}");
    assert!(peak < 1 << 20, "{peak} bytes");
}
