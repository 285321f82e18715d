//! The program as a person uses it: one test program for all commands. Each test has a folder of its own.

mod basic;
mod bench;
mod control;
mod drive;
mod errors;
mod figures;
mod filebench;
mod files;
mod fuse;
mod harness;
mod idiscard;
mod inject;
mod kill;
mod layers;
mod lnvm;
mod metrics;
mod mounted;
mod nbd;
mod parafs;
mod record;
mod serve;
mod several;
mod sweep;
mod torture;
mod vhost;
