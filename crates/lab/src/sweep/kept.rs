//! Points of earlier sweeps, kept in a folder.
//!
//! Owns: a file per point, named by what the point is: the program (version, size and time of its
//! file), everything that the experiment resolves to, size and time of the traces that it reads. Promises: a file is there whole
//! or not at all; a point that would come out otherwise has another name; a file that is not ours is
//! not read as a point. Never: deletes anything.

use super::Point;
use crate::experiment::{Experiment, Workload};
use crate::trace::TraceSource;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder of points, or none.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    folder: Option<PathBuf>,
    /// What the program is: another one may come to other numbers.
    program: String,
}

/// A point is some kilobytes per target; more is no file of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Size and time of a file.
fn age_of(path: &Path) -> String {
    let Ok(meta) = fs::metadata(path) else { return String::new() };
    format!("{} {:?}", meta.len(), meta.modified().ok())
}

impl Kept {
    /// Keeps nothing.
    pub fn nothing() -> Kept {
        Kept::default()
    }

    /// Keeps points in a folder, which is made if need be, and in which files can be made.
    pub fn in_folder(folder: &Path) -> std::io::Result<Kept> {
        fs::create_dir_all(folder)?;
        let probe = folder.join(format!(".{}.partial", std::process::id()));
        fs::File::create(&probe)?;
        fs::remove_file(&probe)?;
        let program = std::env::current_exe().ok().map(|path| age_of(&path)).unwrap_or_default();
        Ok(Kept { folder: Some(folder.to_path_buf()), program })
    }

    /// The name of what an experiment is.
    pub(super) fn name_of(&self, experiment: &Experiment) -> String {
        let Experiment { name, description, targets, workloads, run, vary: _ } = experiment;
        let version = env!("CARGO_PKG_VERSION");
        let program = &self.program;
        let mut all = format!("{version} {program} {name:?} {description:?} {targets:?} {run:?}");
        for workload in workloads {
            let Workload::Trace(trace) = workload else {
                all += &format!(" {workload:?}");
                continue;
            };
            // By its name and age: a trace is too large to be read for this.
            let nowhere = TraceSource::Bundled { name: "", bytes: &[] };
            let mut spec = trace.clone();
            let source = std::mem::replace(&mut spec.source, nowhere);
            all += &format!(" {spec:?} {}", source.name());
            // What can't be listed can't be read either: the point fails, and is not kept.
            for file in source.files().unwrap_or_default() {
                all += &format!(" {file:?} {}", age_of(&file));
            }
        }
        // FNV-1a, 64 bits, twice over different beginnings: names, not secrets.
        let fold = |basis: u64| {
            let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
            all.as_bytes().iter().fold(basis, step)
        };
        format!("{:016x}{:016x}", fold(0xcbf2_9ce4_8422_2325), fold(0x9e37_79b9_7f4a_7c15))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{name}.json")))
    }

    /// A point that was kept. A file that can't be read as one is as good as none.
    pub(super) fn find(&self, name: &str) -> Option<Point> {
        let path = self.path(name)?;
        let meta = fs::metadata(&path).ok()?;
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            return None;
        }
        serde_json::from_slice(&fs::read(&path).ok()?).ok()
    }

    /// Keeps a point, unless it failed: what kept it from running may be mended meanwhile.
    pub(super) fn keep(&self, name: &str, point: &Point) -> Result<(), String> {
        let Some(path) = self.path(name).filter(|_| point.error.is_none()) else {
            return Ok(());
        };
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_extension(format!("{}.{n}.partial", std::process::id()));
        let text = serde_json::to_vec_pretty(point).expect("plain data");
        let write = || {
            let mut file = fs::File::create(&beside)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&beside, &path)
        };
        write().map_err(|e| {
            let _ = fs::remove_file(&beside);
            format!("cannot keep the point in {}: {e}", path.display())
        })
    }
}
