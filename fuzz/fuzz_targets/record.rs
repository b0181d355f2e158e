//! See `hither_fuzz::record`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::record(data));
