//! libFuzzer's entry for the target `line-closing`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("line-closing", bytes);
});
