//! Devices around devices: one that writes down what happens, one that lies on command.
//!
//! [`trace`] records every command with its submission, completion and outcome; [`script`] changes
//! outcomes of commands named by their number, without touching the medium. Both take any device.

pub mod script;
pub mod trace;

pub use script::{Script, ScriptedDevice};
pub use trace::{Traced, TracingDevice};
