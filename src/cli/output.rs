//! Prints data to stdout in the requested format, and everything else to stderr.
//!
//! Text for people is escaped first. If the reader of stdout closes the pipe, the command exits
//! quietly.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use owo_colors::OwoColorize as _;
use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

use super::args::OutputForm;
use super::columns::{GAP, fit};
use super::error::CliError;
use super::wrap::{hang, terminal_width};
use crate::text::escape::{for_terminal, json_line, json_pretty, one_line};

/// Prints text for people to stdout, escaped.
pub(crate) fn text(text: &str) {
    raw(for_terminal(text).as_bytes());
}

/// Prints bytes to stdout unchanged. Exits the process if this fails: with 0 for a closed pipe,
/// with 1 otherwise.
pub(crate) fn raw(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) {
        // A reader that closed the pipe has what it wanted.
        if error.kind() == io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        note(&format!("error: cannot write to stdout: {error}"));
        std::process::exit(1);
    }
}

/// Prints a line to stderr, escaped.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", for_terminal(text));
}

/// Returns the path of this executable; `dutyd` if the system cannot tell.
pub(crate) fn own_path() -> String {
    std::env::current_exe().map_or_else(|_| "dutyd".to_owned(), |path| path.display().to_string())
}

/// Quotes a word for a POSIX shell, if needed.
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/-_.=:@,+".contains(&b);
    if !word.is_empty() && word.bytes().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Formats a count with its noun: `1 run`, `2 runs`.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

pub(crate) fn error(error: &CliError, color: bool) {
    let label = if color && io::stderr().is_terminal() {
        "error".red().bold().to_string()
    } else {
        "error".to_owned()
    };
    let _ = writeln!(io::stderr().lock(), "{label}{}", for_terminal(&explained(error)));
}

/// Returns the text after the label of an error: its message and its hints, without a line end.
pub(crate) fn explained(error: &CliError) -> String {
    let hints = error.hints.iter().map(|hint| format!("\n  help: {hint}"));
    format!(": {error}{}", hints.collect::<String>())
}

/// Prints a value in the requested format; `table` renders it for people.
///
/// *Errors*: the value cannot be serialized.
pub(crate) fn value<T: Serialize>(
    form: OutputForm,
    value: &T,
    table: impl FnOnce() -> String,
) -> Result<(), CliError> {
    let failed = |error: String| CliError::failed(format!("cannot serialize the output: {error}"));
    match form {
        OutputForm::Table => text(&table()),
        OutputForm::Json => {
            let json =
                serde_json::to_string_pretty(value).map_err(|error| failed(error.to_string()))?;
            raw(format!("{}\n", json_pretty(json)).as_bytes());
        }
        OutputForm::Jsonl => {
            let value = serde_json::to_value(value).map_err(|error| failed(error.to_string()))?;
            match value {
                serde_json::Value::Array(items) => items
                    .iter()
                    .for_each(|item| raw(format!("{}\n", json_line(item.to_string())).as_bytes())),
                other => raw(format!("{}\n", json_line(other.to_string())).as_bytes()),
            }
        }
        OutputForm::Yaml => {
            raw(super::yaml::render(value).map_err(failed)?.as_bytes());
        }
    }
    Ok(())
}

/// Escapes a text for people, and wraps its lines at the width of the terminal: what does not fit goes
/// on in column `margin`.
pub(crate) fn hanging(text: &str, margin: usize) -> String {
    hang(&for_terminal(text), margin, terminal_width())
}

/// Formats rows as aligned columns, at most as wide as the terminal.
pub(crate) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table_of_width(header, rows, terminal_width())
}

fn table_of_width(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    width: Option<usize>,
) -> String {
    let header = header.iter().map(|name| name.to_uppercase()).collect();
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| one_line(cell)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let table = lay_out(&rows, 2);
    let is_wide = |width: &usize| table.lines().any(|line| line.width() > *width);
    match width.filter(is_wide) {
        Some(width) => lay_out(&fit(&rows, width), GAP),
        None => table,
    }
}

/// Formats rows as columns that are `gap` apart. The first row is the header.
fn lay_out(rows: &[Vec<String>], gap: u16) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some((header, rows)) = rows.split_first() {
        table.set_header(header);
        for row in rows {
            table.add_row(row);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, gap));
    }
    let mut out: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    if out.is_empty() {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_terminal() {
        let header = ["run", "started", "outcome", "calls"];
        let row = || {
            ["01m83bb4q3a3z4e9e86m5xxpsb", "2026-11-23 04:41", "failed: preflight_failed", "12"]
                .map(str::to_owned)
                .to_vec()
        };
        let table = |width| table_of_width(&header, [row()], width);
        let whole = "\
RUN                         STARTED           OUTCOME                   CALLS
01m83bb4q3a3z4e9e86m5xxpsb  2026-11-23 04:41  failed: preflight_failed  12
";
        assert_eq!(table(None), whole);
        assert_eq!(table(Some(77)), whole);
        assert_eq!(
            table(Some(61)),
            "\
RUN                        STARTED    OUTCOME          CALLS
01m83bb4q3a3z4e9e86m5xxpsb 2026-11-23 failed:          12
                           04:41      preflight_failed
"
        );
        assert!(table(Some(44)).lines().all(|line| line.len() <= 44), "{}", table(Some(44)));
    }

    #[test]
    fn a_shell_reads_a_word_back() {
        for (word, expected) in
            [("a/b-c", "a/b-c"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(shell_word(word), expected);
        }
    }
}
