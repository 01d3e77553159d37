//! The command line: one file a verb, data on stdout, everything else on stderr, an exit code that tells the outcome.

mod args;
mod call;
mod context;
mod error;
mod explain;
mod init;
mod output;
mod run;
mod schema;
mod show;
mod story;
mod tools;
mod validate;
mod verify;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Verb};
use context::Context;
pub use error::{CliError, ErrorKind};

/// Runs the command line of this process to its end.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let color = !cli.no_color;
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            output::error(&error, color);
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode, CliError> {
    let context = Context::new(&cli)?;
    match cli.verb {
        Verb::Init(args) => init::init(&context, &args),
        Verb::Validate(args) => validate::validate(&context, &args),
        Verb::Schema(args) => schema::schema(&args),
        Verb::Explain(args) => explain::explain(&context, &args),
        Verb::Tools(args) => tools::tools(&context, &args),
        Verb::Call(args) => context.block_on(call::call(&context, &args))?,
        Verb::Run(args) => context.block_on(run::run(&context, &args))?,
        Verb::Show(args) => show::show(&context, &args),
        Verb::Verify(args) => verify::verify(&context, &args),
    }
}
