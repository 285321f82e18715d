//! Points of earlier sweeps, kept in a folder.
//!
//! Owns: a file per point, named by what the point is: the program (version, length and sum of its
//! file), everything that the experiment resolves to, size and time of the traces that it reads. Promises: a file is there whole
//! or not at all; a point that would come out otherwise has another name; a file that is not ours is
//! not read as a point. Never: deletes anything.

use super::Point;
use crate::bounded;
use crate::experiment::Experiment;
use crate::naming;
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

impl Kept {
    pub fn nothing() -> Kept {
        Kept::default()
    }

    /// Keeps points in a folder, which is made if need be, and in which files can be made.
    pub fn in_folder(folder: &Path) -> std::io::Result<Kept> {
        naming::make_folder(folder)?;
        let program = naming::program()?;
        Ok(Kept { folder: Some(folder.to_path_buf()), program })
    }

    /// The name of what an experiment is; a run on prepared devices comes to other numbers.
    pub(super) fn name_of(&self, experiment: &Experiment, prepared: bool) -> String {
        let Experiment { name, description, targets, warm_up, workloads, run, vary: _, remarks: _ } =
            experiment;
        let program = &self.program;
        let mut all = format!("{program} {name:?} {description:?} {targets:?} {run:?} {prepared}");
        warm_up.iter().for_each(|workload| all += &naming::workload(workload));
        all += " then";
        workloads.iter().for_each(|workload| all += &naming::workload(workload));
        naming::digits(&all)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{name}.json")))
    }

    /// A point that was kept. A file that can't be read as one is as good as none.
    pub(super) fn find(&self, name: &str) -> Option<Point> {
        let path = self.path(name)?;
        serde_json::from_slice(&bounded::bytes(&path, FILE_BYTES_MAX).ok()?).ok()
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
