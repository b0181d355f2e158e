//! See `hither_fuzz::socket_request`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::socket_request(data));
