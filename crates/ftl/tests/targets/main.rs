//! The FTLs through their public interfaces, on emulated devices: one test program for all of them.
//!
//! Owns: what their tests share: a target and its device under a script ([`bench`]), what lies on the medium
//! ([`medium`]), stories that are cut and told again ([`story`]), the face that all targets show ([`face`]).

mod bench;
mod face;
mod image;
mod kept;
mod medium;
mod pblk;
mod pftl;
mod pftl_speed;
mod prelude;
mod qblk;
mod sftl;
mod slc;
mod story;
mod vanish;
