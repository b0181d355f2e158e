//! stub
use crate::args::Args;
use crate::lab::*;
use std::process::ExitCode;
pub const WORKLOADS: [&str; 1] = ["x"];
pub fn main(_l: &Lab, _a: &mut Args) -> Res<ExitCode> {
    Err(Fail("todo".into()))
}
