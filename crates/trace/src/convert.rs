//! From one format to another.
//!
//! Owns: the choice of the records, what would be lost and whether that is allowed. Promises: the
//! whole trace has been read and understood before the first byte is written; what a format can't
//! carry is an error unless allowed, and said in either case; bounded memory.
//! Never: merges devices into one.

use super::carries::{Losses, Naming, Shaper};
use super::layout::find_device;
use super::writer::Writer;
use crate::device::DeviceId;
use crate::format::Format;
use crate::layout::LayoutError;
use crate::progress::Progress;
use crate::record::TraceError;
use crate::scan::Scan;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Conversion<'a> {
    pub to: Format,
    pub device: Option<&'a str>,
    /// Requests, times and latencies may be left out or changed where the format can't carry them.
    pub lossy: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Converted {
    /// Format that was read.
    pub from: String,
    /// Format that was written.
    pub to: String,
    /// Requests read, of the event and device that were asked for.
    pub requests: u64,
    pub written: u64,
    pub losses: Losses,
    /// The same in words.
    pub changes: Vec<String>,
}

impl Converted {
    /// As JSON, with a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// For people: where it went and what was changed.
    pub fn to_text(&self, out: &str) -> String {
        let mut text =
            format!("{out}: {}, {} requests from {}\n", self.to, self.written, self.from);
        for change in &self.changes {
            text += &format!("  {change}\n");
        }
        text
    }
}

/// Why a trace can't be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    #[error(
        "{out}: the name says `.{suffix}`, and {format} would be written: choose a format of that \
         name (`--to` {}), or write {better}",
        words(others)
    )]
    Suffix {
        out: String,
        suffix: String,
        format: Format,
        /// Those that the suffix speaks of.
        others: Vec<Format>,
        /// A name that says what is written.
        better: String,
    },
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Device(#[from] LayoutError),
    #[error(
        "{file}: {format} can't carry all of it: {}; `--lossy` writes it anyway, `--to \
         parquet` carries everything",
        what.join("; ")
    )]
    Lossy { file: String, format: Format, what: Vec<String> },
    #[error(
        "{file} has {devices} devices and {format} names none: choose one, `--device {example}`"
    )]
    Devices { file: String, format: Format, devices: usize, example: String },
    #[error("{file}: none of its {requests} requests can be written as {format}")]
    Nothing { file: String, format: Format, requests: u64 },
    #[error("cannot write the converted trace: {0}")]
    Write(std::io::Error),
}

fn words(formats: &[Format]) -> String {
    formats.iter().map(|f| f.word()).collect::<Vec<_>>().join(", ")
}

/// Refuses a name whose suffix promises a format that is not the one to be written: Parquet in
/// `out.csv` is what nothing can read by its name.
pub fn check_name(out: &Path, format: Format) -> Result<(), ConvertError> {
    let suffix = out.extension().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let others = Format::of_suffix(&suffix);
    if others.is_empty() || others.contains(&format) {
        return Ok(());
    }
    let better = out.with_extension(format.suffix()).display().to_string();
    Err(ConvertError::Suffix { out: out.display().to_string(), suffix, format, others, better })
}

/// Records between two looks at the watcher.
const WATCH_EVERY: u64 = 1 << 16;

/// Writes the records of a scan in another format. `open` gives the place to write to, and is called
/// when nothing more can be wrong with the trace; the place comes back when all is written.
pub fn convert<W: Write + Send>(
    scan: &Scan,
    what: &Conversion<'_>,
    monitor: &dyn Progress,
    open: impl FnOnce() -> std::io::Result<W>,
) -> Result<(W, Converted), ConvertError> {
    let device = what.device.map(|name| find_device(scan, name)).transpose()?;
    let file = scan.source.name();
    let carries = what.to.carries();
    let devices = &scan.chosen().devices;
    if carries.devices == Naming::None && device.is_none() && devices.len() > 1 {
        return Err(ConvertError::Devices {
            file,
            format: what.to,
            devices: devices.len(),
            example: devices.keys().next().map(|d| scan.devices.name(*d)).unwrap_or_default(),
        });
    }
    if !what.lossy && carries.can_lose() {
        // Once without writing: to know what would be lost before anything is written.
        let mut judge = Shaper::new(carries, first_ns(scan));
        each(scan, device, "check", monitor, |r, out| {
            judge.shape(&r, out);
            Ok(())
        })?;
        if judge.losses.any() {
            let what_is = judge.losses.describe(what.to);
            return Err(ConvertError::Lossy { file, format: what.to, what: what_is });
        }
    }
    let names = match device {
        None => scan.devices.names().to_vec(),
        Some(one) => vec![scan.devices.name(one)],
    };
    let mut writer = Writer::new(open().map_err(ConvertError::Write)?, what.to, &names)
        .map_err(ConvertError::Write)?;
    let mut shaper = Shaper::new(carries, first_ns(scan));
    let mut written = 0;
    let read = each(scan, device, "convert", monitor, |mut r, out| {
        if device.is_some() {
            r.device = DeviceId(0);
        }
        shaper.shape(&r, out);
        written += out.len() as u64;
        out.iter().try_for_each(|r| writer.write(r)).map_err(ConvertError::Write)
    })?;
    if written == 0 {
        return Err(ConvertError::Nothing { file, format: what.to, requests: read });
    }
    let losses = shaper.losses;
    let mut changes = losses.describe(what.to);
    if writer.names() != names {
        let called = writer.names();
        let called = match (called.first(), called.last()) {
            (Some(first), Some(last)) if first != last => {
                format!("devices are called {first} to {last}")
            }
            (first, _) => format!("the device is called {}", first.map_or("", String::as_str)),
        };
        changes.push(format!("{called}: {} can't carry their names", what.to));
    }
    if scan.has_contents {
        changes.push("contents of writes are left out".into());
    }
    if carries.from_zero && first_ns(scan) > 0 {
        let first = first_ns(scan);
        changes.push(format!("times count from the first request, which was at {first} ns"));
    }
    let out = writer.finish().map_err(ConvertError::Write)?;
    let (from, to) = (scan.format.to_string(), what.to.to_string());
    Ok((out, Converted { from, to, requests: read, written, losses, changes }))
}

fn first_ns(scan: &Scan) -> u64 {
    scan.chosen().first_ns.unwrap_or(0)
}

/// Gives every record to `use_it`, with an empty list to fill. Returns how many there were.
fn each(
    scan: &Scan,
    device: Option<DeviceId>,
    stage: &str,
    monitor: &dyn Progress,
    mut use_it: impl FnMut(super::TraceRecord, &mut Vec<super::TraceRecord>) -> Result<(), ConvertError>,
) -> Result<u64, ConvertError> {
    let mut records = scan.timed(device, false)?;
    let (mut done, mut out) = (0u64, Vec::new());
    while let Some(record) = records.advance()? {
        out.clear();
        use_it(record, &mut out)?;
        done += 1;
        if done.is_multiple_of(WATCH_EVERY) {
            monitor.progress(stage, done, Some(scan.chosen().requests()));
            if monitor.interrupted() {
                return Err(TraceError::Interrupted { file: scan.source.name() }.into());
            }
        }
    }
    Ok(done)
}
