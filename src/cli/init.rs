//! `dutyd init`: writes the starter files and their schemas. It never overwrites a starter file.

use std::process::ExitCode;

use super::args::InitArgs;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::config::{STARTER_FILES, SchemaName, json_schema};
use crate::store::{create_private_dir, write_atomic};

pub(crate) fn init(context: &Context, args: &InitArgs) -> Result<ExitCode, CliError> {
    let directory = args.directory.clone().unwrap_or_else(|| context.dirs.config.clone());
    let shown = directory.display();
    let present: Vec<&str> = STARTER_FILES
        .iter()
        .map(|file| file.name)
        .filter(|name| directory.join(name).exists())
        .collect();
    if !present.is_empty() {
        return Err(CliError::usage(format!(
            "{shown} already has {}; nothing was written",
            present.join(", ")
        ))
        .hint("`dutyd init DIR` writes to another directory"));
    }
    let failed = |error: std::io::Error| {
        CliError::failed(format!("cannot write to {shown}")).because(&error)
    };
    create_private_dir(&directory).map_err(failed)?;
    for file in STARTER_FILES {
        write_atomic(&directory.join(file.name), file.text.as_bytes()).map_err(failed)?;
        output::text(&format!("wrote {}\n", directory.join(file.name).display()));
    }
    // The first line of each file points editors to its schema.
    create_private_dir(&directory.join("schemas")).map_err(failed)?;
    for name in [SchemaName::Config, SchemaName::Jobs, SchemaName::Tools, SchemaName::Script] {
        let text = serde_json::to_string_pretty(&json_schema(name)).map_err(CliError::failed_by)?;
        write_atomic(
            &directory.join(format!("schemas/{}.json", name.as_str())),
            format!("{text}\n").as_bytes(),
        )
        .map_err(failed)?;
    }
    let flag = if directory == context.dirs.config {
        String::new()
    } else {
        format!(" --config-dir {shown}")
    };
    output::text(&format!(
        "\nNext:\n  dutyd{flag} validate          check the files\n  dutyd{flag} call disk_usage   try a tool, without a model\n  dutyd{flag} run disk-watch    run a job now; the scripted model needs no key\n\nThen put your own model into {shown}/config.yaml.\n"
    ));
    Ok(ExitCode::SUCCESS)
}
