//! See `hither_fuzz::rpc_message`.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| hither_fuzz::rpc_message(data));
