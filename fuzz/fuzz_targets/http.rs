//! libFuzzer's entry for the target `http`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("http", bytes);
});
