//! What is implausible about a trace, so that it is asked about in place of being believed.
//!
//! Owns: the questions, and the bounds beyond which there are some. Promises: a question says what
//! was read, why that can't be, and what the user says if it is so all the same; a trace of few
//! requests raises none. Never: guesses what was meant.
//!
//! A table of numbers has no words by which a wrong guess shows: DiskSim's milliseconds are good
//! nanoseconds of MQSim, MiDAS's types are good devices. So what was read is compared with what a
//! device can have done.

use crate::format::Format;
use crate::number::Clock;
use crate::record::TraceOp;
use crate::scan::Summary;
use flashlane_base::{Ns, mutant};
use std::fmt::Write as _;

/// Below this many requests chance explains everything.
const MANY: u64 = 20;
/// Requests and bytes per second that no device does: ten times the fastest drives of 2025 (3.3
/// million requests, 14 GB/s), and the faster of two numbers that a trace on a RAM disk reaches.
const REQUESTS_PER_S: u64 = 40_000_000;
const BYTES_PER_S: u64 = 250_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Values of a 32-bit clock.
const WRAP: u64 = 1 << 32;

/// How the records that are looked at were read.
pub(crate) struct Read {
    pub(crate) format: Format,
    /// Only the numbers said so, and the user did not.
    pub(crate) guessed: bool,
    /// Unit of its times, where they are a column of numbers.
    pub(crate) clock: Option<Clock>,
}

/// What is to be asked about these records; nothing where they are plausible.
pub(crate) fn question(of: &Summary, read: &Read) -> Option<String> {
    if of.requests() < MANY || mutant!("trace.believes") {
        return None;
    }
    time(of, read).or_else(|| wrapped(of, read)).or_else(|| columns(of, read))
}

/// All at one time, or sooner after each other than any device is.
fn time(of: &Summary, read: &Read) -> Option<String> {
    // A format without a clock has all requests at once unless the log waits.
    let clock = read.clock?;
    let (requests, span) = (of.requests(), of.duration_ns());
    let tick = clock.resolution_of_integers_ns();
    // A clock that ticks once a second says little about a short trace.
    if span == 0 && tick < SECOND {
        let mut text = format!("all its {requests} requests have the same time");
        hint(&mut text, read);
        return Some(text);
    }
    let bytes: u64 = of.ops.iter().map(|op| op.bytes).fold(0, u64::saturating_add);
    // Discards move no bytes.
    let bytes = bytes - of.ops[TraceOp::Discard as usize].bytes.min(bytes);
    let devices = of.devices.len().max(1) as u128;
    let per_s = |n: u64| u128::from(n) * u128::from(SECOND) / u128::from(span + tick) / devices;
    let (rate, flow) = (per_s(requests), per_s(bytes));
    if rate <= REQUESTS_PER_S.into() && flow <= BYTES_PER_S.into() {
        return None;
    }
    let mut text = format!(
        "its {requests} requests span {}: {rate} requests and {} MB per second and device, which none does",
        Ns::from_ns(span),
        flow / 1_000_000
    );
    hint(&mut text, read);
    Some(text)
}

/// What else the same five numbers may be.
fn hint(text: &mut String, read: &Read) {
    let unit = read.clock.map_or("", |clock| clock.name);
    let _ = write!(text, " (its times were read as {unit}: `--time-unit` says another unit)");
    if matches!(read.format, Format::Mqsim | Format::Ssdsim) {
        *text +=
            "; DiskSim's traces have the same five columns with times in ms: `--format disksim`";
    }
}

/// A clock of 32 bits that began anew: hours, or weeks, that never were.
fn wrapped(of: &Summary, read: &Read) -> Option<String> {
    let clock = read.clock?;
    let units = |ns: u64| u128::from(ns) * u128::from(clock.per) / u128::from(clock.ns);
    let back = units(of.backwards_max_ns);
    let is_one = back > u128::from(WRAP / 2) && units(of.last_ns) < u128::from(WRAP);
    is_one.then(|| {
        format!(
            "its time goes back once by {}, which is a clock of 32 bits that began anew: `--unwrap` goes on counting \
             there",
            Ns::from_ns(of.backwards_max_ns)
        )
    })
}

/// A column that never varies was perhaps another one's.
fn columns(of: &Summary, read: &Read) -> Option<String> {
    let requests = of.requests();
    if of.varies.is_some_and(|varies| !varies.offset) {
        return Some(format!("all its {requests} requests begin at the same byte"));
    }
    let only = TraceOp::ALL.into_iter().find(|op| of.ops[*op as usize].requests == requests);
    let only = only.filter(|_| read.guessed)?;
    Some(format!(
        "all its {requests} requests are {}s, and the format was guessed of numbers alone: `--format {}` says that it \
         is so",
        only.name(),
        read.format.word()
    ))
}
