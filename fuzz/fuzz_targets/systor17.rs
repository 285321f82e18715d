//! libFuzzer's entry for the target `systor17`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("systor17", bytes);
});
