//! What earlier sweeps and figures came to, kept in a folder.
//!
//! Owns: a file per run, named by what it is: the program (version, length and sum of its file),
//! and all that decides about its numbers. Promises: a file is there whole or not at all; what
//! would come out otherwise has another name; a file that is not ours is not read as one. Never:
//! deletes anything.

use crate::bounded;
use crate::naming;
use flashlane_base::fresh::{Fresh, Unmade, only_files};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder of what runs came to, or none.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    folder: Option<PathBuf>,
    /// What the program is: another one may come to other numbers.
    program: String,
}

/// A run is some kilobytes per target; more is no file of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

impl Kept {
    pub fn nothing() -> Kept {
        Kept::default()
    }

    /// Keeps runs in a folder, which is made if need be, and in which files can be made.
    pub fn in_folder(folder: &Path) -> std::io::Result<Kept> {
        naming::make_folder(folder)?;
        let program = naming::program()?;
        Ok(Kept { folder: Some(folder.to_path_buf()), program })
    }

    /// The name of what has this description.
    pub(crate) fn name_of(&self, description: &str) -> String {
        naming::digits(&format!("{} {description}", self.program))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{name}.json")))
    }

    /// What was kept. A file that can't be read as that is as good as none.
    pub(crate) fn find<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let path = self.path(name)?;
        serde_json::from_slice(&bounded::bytes(&path, FILE_BYTES_MAX).ok()?).ok()
    }

    /// Keeps it.
    pub(crate) fn keep(&self, name: &str, what: &impl Serialize) -> Result<(), String> {
        let Some(path) = self.path(name) else { return Ok(()) };
        let text = serde_json::to_vec_pretty(what).expect("plain data");
        let write = || {
            let mut file = Fresh::begin(&path, only_files)?;
            file.write_all(&text)?;
            file.commit(only_files)
        };
        write().map_err(|e: Unmade| format!("cannot keep a run in {}: {e}", path.display()))
    }
}
