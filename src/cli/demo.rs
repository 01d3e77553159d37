//! `dutyd demo`

use std::process::ExitCode;

use super::args::DemoArgs;
use super::context::Context;
use super::error::CliError;

pub(crate) async fn demo(_context: &Context, _args: &DemoArgs) -> Result<ExitCode, CliError> {
    Err(CliError::failed("not yet"))
}
