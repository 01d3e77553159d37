//! `dutyd schema`: prints a JSON Schema.

use std::process::ExitCode;

use super::args::{SchemaArgs, SchemaWord};
use super::error::CliError;
use super::output;
use crate::config::{SchemaName, json_schema};

pub(crate) fn schema(args: &SchemaArgs) -> Result<ExitCode, CliError> {
    let schema = json_schema(match args.name {
        SchemaWord::Config => SchemaName::Config,
        SchemaWord::Jobs => SchemaName::Jobs,
        SchemaWord::Tools => SchemaName::Tools,
        SchemaWord::Script => SchemaName::Script,
        SchemaWord::Models => SchemaName::Models,
        SchemaWord::Event => SchemaName::Event,
    });
    let text = serde_json::to_string_pretty(&schema).map_err(CliError::failed_by)?;
    output::raw(format!("{text}\n").as_bytes());
    Ok(ExitCode::SUCCESS)
}
