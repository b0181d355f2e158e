//! See `hither_fuzz::nqnfs_reply`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::nqnfs_reply(data));
