//! See `hither_fuzz::nfs3_call`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nfs3_call(data));
