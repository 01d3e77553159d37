//! `dutyd prune`: removes old runs and merges old slots, as `retention` says.

use std::process::ExitCode;

use super::args::PruneArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::Trust;
use crate::store::{Retention, SharedIndex, SharedLedger, prune as prune_state};

pub(crate) async fn prune(context: &Context, args: &PruneArgs) -> Result<ExitCode, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::failed(format!("cannot prune: {error}"));
    let settings = &context.config(Trust::Required)?.settings;
    let retention = Retention { keep_runs: settings.keep_runs, keep_days: settings.keep_days };
    let state = context.state();
    state.create().map_err(|error| failed(&error))?;
    let (ledger, index) = (SharedLedger::of(state.root()), SharedIndex::of(&state));
    let ledger = ledger.get().await.map_err(|error| failed(&error))?;
    let index = index.get().await.map_err(|error| failed(&error))?;
    let now = context.clock.now();
    let pruned = prune_state(&state, (ledger, index), retention, now, args.dry_run).await;
    let pruned = pruned.map_err(|error| failed(&error))?;
    output::value(context.form, &pruned, || {
        let (remove, merge) =
            if args.dry_run { ("would remove", "would merge") } else { ("removed", "merged") };
        format!(
            "{remove} {} runs ({} bytes) and {merge} {} rows of slots\n",
            pruned.runs, pruned.bytes, pruned.slots
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
