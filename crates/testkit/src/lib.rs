//! Simulation testing: an oracle, a swarm of workloads, canaries, and the stacks they run on.
//!
//! Owns: [`oracle`] (what each sector may contain), [`swarm`] (what a seed does), [`harness`] (one
//! seed on one stack, with replay command), [`cuts`] (a power cut at every moment), [`canary`] (the
//! proof that a defect is noticed), [`ram`] (a correct device, the reference), [`witness`] (what
//! faults of the medium excuse), [`stacks`] (the table). May know: every layer that gives a block
//! device. Promises: a failing seed prints the one command that replays it. Never: is part of the
//! product; other crates have it as a dev-dependency only.
//!
//! Start reading at [`oracle`], then [`swarm`], then [`stacks`].
//!
//! A new stack: one row in [`stacks::STACKS`] and one line in `tests/swarm.rs`.

pub mod canary;
pub mod content;
pub mod cuts;
pub mod devices;
pub mod harness;
pub mod host;
pub mod moments;
pub mod oracle;
pub mod ram;
pub mod stacks;
pub mod swarm;
pub mod witness;

pub use canary::{Canary, Cheat};
pub use content::{Found, Version};
pub use cuts::cut_everywhere;
pub use harness::{Boot, Done, Failed, Machine, Plan, Stack, Up, run_seed};
pub use host::Host;
pub use oracle::{Oracle, Wrong};
pub use ram::{Keep, Ram};
