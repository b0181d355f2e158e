//! See `hither_fuzz::nfs4_callback`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nfs4_callback(data));
