//! stub
use crate::args::Args;
use crate::lab::*;
use std::process::ExitCode;
pub fn names(_l: &Lab) -> Res<Vec<String>> {
    Ok(vec![])
}
pub fn main(_l: &Lab, _a: &mut Args) -> Res<ExitCode> {
    Err(Fail("todo".into()))
}
