//! See `hither_fuzz::portmap`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::portmap(data));
