//! The help of `dutyd`: its verbs in groups, by what a person wants to do.

use clap::{Command, CommandFactory as _};

use super::args::Cli;

/// The verbs by group, in the order of the help. A test compares them with the verbs of [`Cli`].
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Configure and try",
        &[
            "init", "validate", "schema", "tools", "models", "explain", "call", "check", "notify",
            "replay", "backtest", "trial",
        ],
    ),
    ("Look", &["status", "jobs", "next", "slots", "audit", "runs", "show", "verify", "doctor"]),
    ("Decide", &["approvals", "approve", "deny", "plans", "plan", "apply", "discard", "mcp"]),
    (
        "Operate",
        &[
            "serve",
            "run",
            "trigger",
            "backfill",
            "cancel",
            "steer",
            "follow-up",
            "pause",
            "unpause",
            "ack",
            "reload",
            "demo",
        ],
    ),
    ("Repair", &["reindex", "prune"]),
    ("Help", &["help", "man", "completions"]),
];

/// Returns the definition of the command line, with the help in groups.
pub(super) fn command() -> Command {
    let command = Cli::command();
    let template = template(&command);
    command.help_template(template)
}

/// Returns the template of the help, with a line for each verb.
fn template(command: &Command) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let about = |verb: &str| match command.find_subcommand(verb).and_then(Command::get_about) {
        Some(about) => about.to_string(),
        None => "Show the help of a verb".to_owned(),
    };
    let mut text = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (name, verbs) in GROUPS {
        text.push_str(&format!("\n{header}{name}:{header:#}\n"));
        for verb in *verbs {
            let padding = " ".repeat(13_usize.saturating_sub(verb.len()));
            text.push_str(&format!("  {literal}{verb}{literal:#}{padding}{}\n", about(verb)));
        }
    }
    text + &format!("\n{header}Options:{header:#}\n{{options}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_in_one_group() {
        let mut grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        grouped.sort_unstable();
        let command = Cli::command();
        let mut verbs: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        verbs.push("help");
        verbs.sort_unstable();
        assert_eq!(grouped, verbs);
    }
}
