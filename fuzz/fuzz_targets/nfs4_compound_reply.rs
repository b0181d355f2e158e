//! See `hither_fuzz::nfs4_compound_reply`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nfs4_compound_reply(data));
