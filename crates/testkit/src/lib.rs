//! Simulation testing: an oracle, a swarm of workloads, canaries, and the stacks they run on.
//!
//! Owns: [`oracle`] (what each sector may contain), [`swarm`] (what a seed does), [`harness`] (one
//! seed on one stack, with replay command), [`torture`] (many seeds with power cuts at chosen moments,
//! on all cores), [`cuts`] (one seed, cut everywhere), [`canary`] (the
//! proof that a defect is noticed), [`ram`] (a correct device, the reference), [`overlay`] (one to
//! damage), [`witness`] (what
//! faults of the medium excuse), [`disk`] (what a host loses under an image), [`stacks`] (the table), [`own`] (a user's stack), [`files`] (file systems: their oracle, their lives, all
//! short sequences), `vanish` (dies, chunks and seconds that go away), [`guest`] (a
//! virtual machine with a virtio disk, without the machine). May know: every
//! layer that gives a block device. Promises: a failing seed prints the one command that replays it.
//! Never: is below anything; of the product only `flashlane torture` has it.
//!
//! Start reading at [`oracle`], then [`swarm`], then [`stacks`].
//!
//! A new stack: one row in [`stacks::STACKS`] and one line in `tests/stacks/swarm.rs`.

pub mod aim;
pub mod canary;
pub mod content;
pub mod cuts;
pub mod devices;
pub mod disk;
pub mod ext4;
pub mod files;
pub mod guest;
pub mod harness;
pub mod hinting;
pub mod host;
pub mod moments;
pub mod oracle;
pub mod overlay;
pub mod own;
pub mod ram;
mod skip;
pub mod stacks;
pub mod swarm;
pub mod threaded;
pub mod torture;
mod vanish;
pub mod witness;

pub use canary::{Canary, Cheat};
pub use content::{Found, Version};
pub use cuts::cut_everywhere;
pub use flashlane_base::{Ns, mutant};
pub use harness::{Boot, Done, Failed, Machine, Plan, Source, Stack, Subject, Up, run_seed};
pub use host::Host;
pub use oracle::{Oracle, Wrong};
pub use overlay::Overlay;
pub use own::Own;
pub use ram::{Keep, Ram};
pub use skip::skip;
pub use torture::{Failure, How, Mode, Outcome, Seeds, Tally, Watcher};
