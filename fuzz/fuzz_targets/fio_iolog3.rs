//! libFuzzer's entry for the target `fio-iolog3`.
#![no_main]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    targets::run("fio-iolog3", bytes);
});
