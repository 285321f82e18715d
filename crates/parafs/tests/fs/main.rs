//! The file system through its public interface.

mod basic;
mod crash;
mod model;
mod world;
