//! `dutyd reindex`: rebuilds the index from the transcripts.

use std::process::ExitCode;

use super::context::Context;
use super::error::CliError;
use super::output;
use crate::store::Index;

pub(crate) async fn reindex(context: &Context) -> Result<ExitCode, CliError> {
    let failed =
        |error: &dyn std::error::Error| CliError::failed("cannot rebuild the index").because(error);
    super::access::check_state_owner(&context.dirs)?;
    let state = context.state();
    state.create().map_err(|error| failed(&error))?;
    // Without a daemon, a damaged index may be set aside.
    let lock = state.lock().map_err(|error| failed(&error))?;
    let opened = Index::open(&context.dirs.state, lock.as_ref());
    let (index, _) = opened.map_err(|error| failed(&error))?;
    let count = index.rebuild(state).await.map_err(|error| failed(&error))?;
    output::text(&format!("{count} runs\n"));
    Ok(ExitCode::SUCCESS)
}
