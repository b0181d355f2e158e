//! See `hither_fuzz::nqnfs_call`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nqnfs_call(data));
