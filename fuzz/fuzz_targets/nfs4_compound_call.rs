//! See `hither_fuzz::nfs4_compound_call`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nfs4_compound_call(data));
