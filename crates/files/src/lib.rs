//! Filebench's personalities: file server, mail server, web server, web proxy.
//!
//! Owns: what each personality does ([`Personality`], [`Settings`]), the set of files that it does it to
//! ([`Tree`], [`Rotation`]), what one of its threads does next ([`Actor`]), and threads that do it
//! ([`run`]) on a [`FileSystem`]. Promises: the same settings and seed give the same set, and each
//! thread a random stream of its own; what is done knows nothing of what it is done on, so an actor
//! works for threads on a directory and for tasks in virtual time alike. Never: looks at a clock.
//!
//! The numbers are those of Filebench's own files, `workloads/*.f` of version 1.5-alpha3; how a file is
//! picked and how a tree is drawn is as in its `fileset.c`.

mod actor;
mod personality;
mod run;
mod system;
mod tree;

pub use actor::{Actor, Call, Rotation};
pub use flashlane_base::Bytes;
pub use personality::{
    FILES_MAX, Kind, Personality, SIZE_MAX, Settings, SettingsError, Step, THREADS_MAX,
};
pub use run::{Count, Counts, FilesError, found, prepare, run};
pub use system::{Directory, FileSystem};
pub use tree::{Planned, Tree};

#[cfg(test)]
mod tests;
