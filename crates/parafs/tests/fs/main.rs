//! The file system through its public interface.

mod basic;
mod crash;
mod crowd;
mod model;
mod moments;
