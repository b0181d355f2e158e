//! The hither binary.
fn main() {}
