//! Names of files that stand for what was computed from something.
//!
//! Owns: what such a something is in words: the program, workloads, traces. Promises: what would come out
//! otherwise has another name. Never: touches the files that are named.

use crate::experiment::{Experiment, Workload};
use crate::trace::TraceSource;
use flashlane_base::fresh::{Fresh, only_files};
use std::fs;
use std::io;
use std::path::Path;

/// Size and time of a file.
fn age_of(path: &Path) -> String {
    let Ok(meta) = fs::metadata(path) else { return String::new() };
    format!("{} {:?}", meta.len(), meta.modified().ok())
}

/// The program: its version, and length and sum of the file that runs.
///
/// # Errors
/// It can't be read.
pub(crate) fn program() -> io::Result<String> {
    // What runs, where the system has a name for that: the file may have been replaced since.
    let own = fs::read("/proc/self/exe");
    let own = own.or_else(|_| fs::read(std::env::current_exe()?))?;
    Ok(format!("{} {} {:08x}", env!("CARGO_PKG_VERSION"), own.len(), flashlane_base::crc32c(&own)))
}

/// A workload; its trace by name, size and time, being too large to be read for this.
pub(crate) fn workload(workload: &Workload) -> String {
    let Workload::Trace(trace) = workload else {
        return format!(" {workload:?}");
    };
    let nowhere = TraceSource::Bundled { name: "", bytes: &[] };
    let mut spec = trace.clone();
    let source = std::mem::replace(&mut spec.source, nowhere);
    spec.truth_file = None; // what it says is there
    let mut all = format!(" {spec:?} {}", source.name());
    // What can't be listed can't be read either: the run fails, and nothing is kept.
    for file in source.files().unwrap_or_default() {
        all += &format!(" {file:?} {}", age_of(&file));
    }
    all
}

/// All that decides what comes out of an experiment, but the program; nothing where it runs on a drive, which
/// each run changes.
pub(crate) fn experiment(experiment: &Experiment) -> Option<String> {
    // A name decides nothing; what is varied is in the rest.
    let Experiment {
        targets,
        warm_up,
        workloads,
        run,
        name: _,
        description: _,
        vary: _,
        remarks: _,
    } = experiment;
    if targets.iter().any(|target| target.drive.is_some()) {
        return None;
    }
    let mut all = format!("{targets:?} {run:?}");
    all.extend(warm_up.iter().map(workload));
    all += " then";
    all.extend(workloads.iter().map(workload));
    Some(all)
}

/// 32 digits that stand for a text: FNV-1a, 64 bits, twice over different beginnings. Names, not secrets.
pub(crate) fn digits(text: &str) -> String {
    let fold = |basis: u64| {
        let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        text.as_bytes().iter().fold(basis, step)
    };
    format!("{:016x}{:016x}", fold(0xcbf2_9ce4_8422_2325), fold(0x9e37_79b9_7f4a_7c15))
}

/// Makes a folder if need be, in which files can be made.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // It goes when it is dropped.
    Fresh::begin(&folder.join("probe"), only_files).map(drop).map_err(io::Error::from)
}
