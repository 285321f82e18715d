//! libFuzzer's entry for the target `disksim`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("disksim", bytes);
});
