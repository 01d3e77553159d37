//! `dutyd prune`: removes old runs and merges old slots, as `retention` says.

use std::process::ExitCode;

use serde_json::json;

use super::args::PruneArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use super::source::{self, Source, Wanted};
use crate::config::Trust;
use crate::store::{Pruned, Retention, SharedIndex, SharedLedger, prune as prune_state};

pub(crate) async fn prune(context: &Context, args: &PruneArgs) -> Result<ExitCode, CliError> {
    let source = source::find(context, Wanted::Record).await?;
    let pruned: Pruned = match &source {
        Source::Daemon(daemon) => {
            // No timeout: there may be very many old runs.
            let body = json!({ "dry_run": args.dry_run });
            daemon.client.post_within("/prune", &body, None).await?
        }
        Source::Files(_) => of_files(context, args.dry_run).await?,
    };
    output::value(context.form, &pruned, || {
        let (remove, merge) =
            if args.dry_run { ("would remove", "would merge") } else { ("removed", "merged") };
        format!(
            "{remove} {} runs ({} bytes) and {merge} {} rows of slots\n",
            pruned.runs, pruned.bytes, pruned.slots
        )
    })?;
    if pruned.failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::failed(format!(
        "{} old runs could not be removed: the log of the daemon, or of this command, says why",
        pruned.failed
    )))
}

async fn of_files(context: &Context, is_dry: bool) -> Result<Pruned, CliError> {
    let failed = |error: &dyn std::error::Error| CliError::failed("cannot prune").because(error);
    super::access::check_state_owner(&context.dirs)?;
    let settings = &context.config(Trust::Required)?.settings;
    let retention = Retention { keep_runs: settings.keep_runs, keep_days: settings.keep_days };
    let state = context.state();
    let (ledger, index) = (SharedLedger::of(state.root()), SharedIndex::of(&state));
    let ledger = ledger.get().await.map_err(|error| failed(&error))?;
    let index = index.get().await.map_err(|error| failed(&error))?;
    let pruned = prune_state(&state, ledger, index, retention, context.clock.now(), is_dry).await;
    pruned.map_err(|error| failed(&error))
}
