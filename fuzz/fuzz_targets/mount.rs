//! See `hither_fuzz::mount`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::mount(data));
