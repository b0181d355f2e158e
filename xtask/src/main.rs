//! Chores: tidy checks.
fn main() {}
