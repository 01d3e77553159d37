//! The command line: one file per verb. Data goes to stdout and everything else to stderr; the exit
//! code tells the outcome.

mod access;
mod approvals;
mod args;
mod backtest;
mod call;
mod call_view;
mod cancel;
mod check;
mod client;
mod columns;
mod complete;
mod context;
mod demo;
mod doctor;
mod error;
mod exit;
mod explain;
mod help;
mod init;
mod jobs;
mod live;
mod log;
mod mcp;
mod models;
mod next;
mod notify;
mod output;
mod pause;
mod plans;
mod progress;
mod prune;
mod reference;
mod reindex;
mod reload;
mod render;
mod run;
mod runs;
mod schema;
mod serve;
mod show;
mod slots;
mod source;
mod status;
mod texts;
mod time;
mod tools;
mod trial;
mod validate;
mod verify;
mod wrap;
mod yaml;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::domain::TextKind;
use args::{Cli, Verb};
use context::Context;
pub use error::{CliError, ErrorKind};
pub use exit::Exit;

/// Parses the arguments of this process, runs the verb and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    complete::answer_shell();
    let parsed = help::command().try_get_matches();
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { Exit::Usage } else { Exit::Success };
            let code = match error.print() {
                Ok(()) => code,
                Err(_) if error.use_stderr() => code,
                Err(failed) if failed.kind() == std::io::ErrorKind::BrokenPipe => Exit::Success,
                Err(_) => Exit::Failed,
            };
            return code.into();
        }
    };
    crate::process::share_heap();
    // Only the owner may access the files that we create (SEC-3), whatever umask we inherited.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let color = !cli.no_color;
    // Every HTTP client needs this TLS provider, even the client of the control socket.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            output::error(&error, color);
            error.exit().into()
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode, CliError> {
    let context = Context::new(&cli)?;
    match cli.verb {
        Verb::Init(args) => init::init(&context, &args),
        Verb::Validate(args) => validate::validate(&context, &args),
        Verb::Schema(args) => schema::schema(&args),
        Verb::Explain(args) => context.block_on(explain::explain(&context, &args))?,
        Verb::Tools(args) => context.block_on(tools::tools(&context, &args))?,
        Verb::Call(args) => context.block_on(call::call(&context, &args))?,
        Verb::Run(args) => context.block_on(run::run(&context, &args))?,
        Verb::Serve(_) => context.block_on(serve::serve(&context))?,
        Verb::Demo(args) => context.block_on(demo::demo(&context, &args))?,
        Verb::Models(args) => context.block_on(models::models(&context, &args))?,
        Verb::Doctor(args) => context.block_on(doctor::doctor(&context, &args))?,
        Verb::Status => context.block_on(status::status(&context))?,
        Verb::Jobs => context.block_on(jobs::jobs(&context))?,
        Verb::Next(args) => context.block_on(next::next(&context, &args))?,
        Verb::Slots(args) => context.block_on(slots::slots(&context, &args))?,
        Verb::Audit(args) => context.block_on(slots::audit(&context, &args))?,
        Verb::Ack(args) => context.block_on(pause::ack(&context, &args))?,
        Verb::Pause(args) => context.block_on(pause::pause(&context, &args))?,
        Verb::Unpause(args) => context.block_on(pause::unpause(&context, &args))?,
        Verb::Trigger(args) => context.block_on(run::trigger(&context, &args))?,
        Verb::Backfill(args) => context.block_on(pause::backfill(&context, &args))?,
        Verb::Runs(args) => context.block_on(runs::runs(&context, &args))?,
        Verb::Cancel(args) => context.block_on(cancel::cancel(&context, &args))?,
        Verb::Steer(args) => context.block_on(texts::give(&context, &args, TextKind::Steering))?,
        Verb::FollowUp(args) => {
            context.block_on(texts::give(&context, &args, TextKind::FollowUp))?
        }
        Verb::Mcp(args) => context.block_on(mcp::mcp(&context, &args))?,
        Verb::Notify(args) => context.block_on(notify::notify(&context, &args))?,
        Verb::Approvals(args) => context.block_on(approvals::approvals(&context, &args))?,
        Verb::Approve(args) => context.block_on(approvals::approve(&context, &args))?,
        Verb::Deny(args) => context.block_on(approvals::deny(&context, &args))?,
        Verb::Check(args) => context.block_on(check::check(&context, &args))?,
        Verb::Plans => context.block_on(plans::plans(&context))?,
        Verb::Plan(args) => context.block_on(plans::plan(&context, &args))?,
        Verb::Apply(args) => context.block_on(plans::apply(&context, &args))?,
        Verb::Discard(args) => context.block_on(plans::discard(&context, &args))?,
        Verb::Reindex => context.block_on(reindex::reindex(&context))?,
        Verb::Completions(args) => reference::completions(&args),
        Verb::Man => reference::man(),
        Verb::Show(args) => context.block_on(show::show(&context, &args))?,
        Verb::Verify(args) => context.block_on(verify::verify(&context, &args))?,
        Verb::Replay(args) => context.block_on(backtest::replay(&context, &args))?,
        Verb::Backtest(args) => context.block_on(backtest::backtest(&context, &args))?,
        Verb::Trial(args) => context.block_on(trial::trial(&context, &args))?,
        Verb::Prune(args) => context.block_on(prune::prune(&context, &args))?,
        Verb::Reload => context.block_on(reload::reload(&context))?,
    }
}
