//! libFuzzer's entry for the target `fio-iolog2`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("fio-iolog2", bytes);
});
