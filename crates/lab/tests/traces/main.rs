//! Traces through the lab's public interface: every format, damage, memory, conversion, fuzzing.

mod detector;
mod formats;
#[path = "../../../../fuzz/harness.rs"]
mod harness;
mod memory;
mod replayable;
#[path = "../../../../fuzz/targets.rs"]
mod targets;

mod fuzzing;

use std::path::PathBuf;

fn samples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../traces/samples")
}
