//! The lab: what is asked of a stack, what came out of it, and what that means.
//!
//! Owns: traces ([`trace`]), fio job files ([`fio`]), experiments ([`experiment`]), the generators
//! and the runner that drive a stack in virtual time ([`workload`], [`run`]), also with a file
//! system on it ([`personality`]), drives and the socket of those
//! in use ([`drive`], [`lnvm`], [`verbs`], [`control`]), what is to be seen of one ([`metrics`]), a target that kernels and programs use ([`serve`]), histograms, steady
//! state, reports ([`report`]) and the papers' figures ([`reproduce`]).
//! Promises: the same seed gives the same bytes of output; whatever is wrong with an input is said
//! with file, line and remedy before anything runs; every sector read is checked against what was
//! written. Never: prints, reads a clock, or knows how a stack works inside ([`stack`] builds
//! them).
//!
//! Start reading at [`experiment`] (what a run is), then [`run`] (how it is driven).

pub mod bundled;
pub mod calibrate;
pub mod check;
pub mod compare;
pub mod contention;
pub mod control;
pub mod drive;
pub mod execute;
pub mod experiment;
pub mod files;
pub mod fio;
pub mod fits;
pub mod input;
pub mod kept;
pub mod lnvm;
pub mod metrics;
mod naming;
mod parallel;
pub mod personality;
pub mod raw;
pub mod report;
pub mod reproduce;
pub mod room;
pub mod run;
pub mod serve;
pub mod shelf;
pub mod stack;

pub mod suggest;
pub mod sweep;
pub mod tap;
pub mod together;
pub mod verbs;
mod words;
pub mod workload;

/// Traces: a crate of its own.
pub use flashlane_trace as trace;
pub use flashlane_trace::{bounded, histogram};
