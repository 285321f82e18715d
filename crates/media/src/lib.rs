//! The NAND: what it holds, how long it takes, how it goes wrong.
//!
//! Owns: chunk contents and states, die and channel timing, faults, wear, counters.
//! Promises: integers only; the same seed and the same commands give the same results.
//! Never: knows addresses of hosts, vector commands or translation layers.
pub mod cells;
pub mod compact;
pub mod counters;
pub mod errors;
pub mod fault;
pub mod host;
pub mod image;
pub mod outcome;
pub mod pairing;
pub mod payload;
pub mod store;
pub mod timing;
