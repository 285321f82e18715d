//! A small model of the log FTL's order rules: it finds the scenario behind every rule of
//! `docs/FORMAT.md` when that rule is taken out, and nothing when all are in.
//!
//! Owns: one transition system (`config`, `step` and the actors behind it), its explorer
//! ([`explore`]), the rules as switches ([`rules`]) and a configuration per scenario
//! ([`scenarios`]). Promises: the same steps for every scenario, only bounds and the one switch
//! differ; the shortest trace, as a numbered list. Never: shares a line of code with the engine, so
//! that the two can disagree.
//!
//! The machine: 2 logical sectors, 2 cores with a script and a ring each, up to 4 slots, 3 lines of
//! 1 to 4 sectors, a log, GC, a checkpoint writer, clean stops, failing programs, sectors that go
//! bad. A write is four steps (load and stamp, compare-exchange, floor check, ring), a discard at
//! least three, a shard three. In *every* state every outcome of a power cut is tried: each program
//! under way is absent, torn or complete, the log ends anywhere behind its durable part, the newest
//! checkpoint may be unreadable. Recovery runs and what each sector reads is compared with what the
//! host was promised: the order in which operations took effect, from the last one a flush covered.
//!
//! What it leaves out, so what it can't find:
//! - One unit is one sector, a log block one record, an erase one step, closing metadata one step;
//!   torn log blocks are prefixes; mirrors, anchors and segment switches are not modelled.
//! - Records about lines are never cut from the log: the real log has to carry them forward.
//! - Sectors go bad only where a scan can tell that from a tear (not at an open line's frontier):
//!   there the format can't keep its promise, and `docs/FORMAT.md` says so.
//! - Every step is sequentially consistent. Weaker memory orders are for loom and shuttle.
//! - Rules 17 to 23 (progress) are not here: a state without a successor is not an error. Rule 18, the
//!   room that a victim needs, is a system of its own: [`room`].
//! - Some scenarios let actors that are not their subject act at once ([`config::Prompt`]); random
//!   walks through configurations without that, and far larger ones, are in `tests/walks.rs`.
//!
//! Start reading at [`scenarios`], then [`step`].

mod checkpoint;
pub mod config;
mod drain;
pub mod explore;
mod host;
mod reclaim;
mod recover;
pub mod room;
pub mod rules;
pub mod scenarios;
pub mod state;
pub mod step;
