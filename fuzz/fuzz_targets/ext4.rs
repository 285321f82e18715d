//! libFuzzer's entry for the target `ext4`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("ext4", bytes);
});
