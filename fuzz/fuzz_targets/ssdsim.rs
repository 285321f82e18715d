//! libFuzzer's entry for the target `ssdsim`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("ssdsim", bytes);
});
