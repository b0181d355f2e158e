//! See `hither_fuzz::nfs3_reply`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nfs3_reply(data));
