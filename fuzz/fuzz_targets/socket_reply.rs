//! See `hither_fuzz::socket_reply`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::socket_reply(data));
