//! `dutyd completions` and `dutyd man`, generated from the same definitions as the help.

use std::process::ExitCode;

use super::args::CompletionsArgs;
use super::error::CliError;
use super::exit::Exit;
use super::{complete, help, output};

pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode, CliError> {
    let failed =
        |error: std::io::Error| CliError::failed("cannot write the script").because(&error);
    output::raw(&complete::script(args.shell).map_err(failed)?);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man() -> Result<ExitCode, CliError> {
    let failed =
        |error: std::io::Error| CliError::failed("cannot render the manual page").because(&error);
    let mut page = Vec::new();
    let command = help::command();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(&mut page).map_err(failed)?;
    man.render_name_section(&mut page).map_err(failed)?;
    man.render_synopsis_section(&mut page).map_err(failed)?;
    man.render_description_section(&mut page).map_err(failed)?;
    man.render_options_section(&mut page).map_err(failed)?;
    for verb in command.get_subcommands() {
        let name = verb.get_name().to_owned();
        page.extend(format!(".SH \"DUTYD {}\"\n", name.to_uppercase()).as_bytes());
        let verb = verb.clone().disable_help_flag(true).bin_name(format!("dutyd {name}"));
        let man = clap_mangen::Man::new(verb);
        man.render_synopsis_section(&mut page).map_err(failed)?;
        man.render_description_section(&mut page).map_err(failed)?;
        man.render_options_section(&mut page).map_err(failed)?;
    }
    page.extend(b".SH \"EXIT STATUS\"\n");
    for exit in Exit::ALL {
        let (code, meaning) = (exit.code(), exit.meaning());
        page.extend(format!(".TP\n\\fB{code}\\fR\n{meaning}\n").as_bytes());
    }
    output::raw(&page);
    Ok(ExitCode::SUCCESS)
}
