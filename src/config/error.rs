//! What is wrong with a configuration: a report of all errors, each with its place.

use std::fmt::Write as _;

use serde::Serialize;

use super::document::LINE_CHARACTERS;
use crate::text::escape::one_line;

/// Errors of a configuration that are reported.
const MOST_ERRORS: usize = 500;

/// One error or warning of a configuration.
///
/// *Shape*: `{"file":"jobs.yaml","line":4,"column":5,"field":"jobs[0].shedule","message":"…","hint":"did you mean `schedule`?"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// The file as the operator would name it.
    pub file: String,
    /// From 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// From 1, in characters; 0 likewise.
    pub column: usize,
    /// The field, such as `jobs[0].limits.max_iterations`.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The line itself, its first 400 characters; empty where the file as a whole is meant.
    #[serde(rename = "text")]
    pub source_line: String,
}

/// All errors and warnings of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What must be mended.
    pub errors: Vec<ConfigError>,
    /// What should be looked at.
    pub warnings: Vec<ConfigError>,
}

impl ConfigError {
    /// Returns an error about a file as a whole.
    #[must_use]
    pub fn of_file(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: 0,
            column: 0,
            field: String::new(),
            message: message.into(),
            hint: None,
            source_line: String::new(),
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn render(&self, kind: &str, out: &mut String) {
        let _ = writeln!(out, "{kind}: {}", one_line(&self.message));
        if self.line == 0 {
            let _ = writeln!(out, "  --> {}", self.file);
        } else {
            let width = self.line.to_string().len();
            let pad = " ".repeat(width);
            let field = if self.field.is_empty() {
                String::new()
            } else {
                format!(" ({})", one_line(&self.field))
            };
            let _ = writeln!(out, "{pad} --> {}:{}:{}{field}", self.file, self.line, self.column);
            let _ = writeln!(out, "{pad} |");
            let _ = writeln!(out, "{} | {}", self.line, one_line(&self.source_line));
            // The column can lie beyond the part of the line that is shown.
            if self.column <= LINE_CHARACTERS {
                let _ = writeln!(out, "{pad} | {}^", " ".repeat(self.column.saturating_sub(1)));
            }
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(out, "  = help: {}", one_line(hint));
        }
    }
}

impl Report {
    /// Returns the report for people; empty if there is nothing to say.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.errors.iter().for_each(|error| error.render("error", &mut out));
        self.warnings.iter().for_each(|warning| warning.render("warning", &mut out));
        out
    }

    /// Returns one line for a log: how many errors, and the first.
    #[must_use]
    pub fn summary(&self) -> String {
        match self.errors.first() {
            None => "no errors".to_owned(),
            Some(first) => format!(
                "{} error(s), the first at {}:{}:{}: {}",
                self.errors.len(),
                first.file,
                first.line,
                first.column,
                one_line(&first.message)
            ),
        }
    }

    /// Replaces the errors beyond the first 500 with one error that counts them.
    pub(crate) fn shorten(&mut self) {
        let more = self.errors.len().saturating_sub(MOST_ERRORS);
        if more > 0 {
            self.errors.truncate(MOST_ERRORS);
            let message = format!("{more} more errors are not shown: fix these first");
            let file = self.errors.last().map(|last| last.file.clone()).unwrap_or_default();
            self.errors.push(ConfigError::of_file(file, message));
        }
    }

    pub(crate) fn sort(&mut self) {
        let key = |error: &ConfigError| (error.file.clone(), error.line, error.column);
        self.errors.sort_by_key(key);
        self.errors.dedup();
        self.warnings.sort_by_key(key);
        self.warnings.dedup();
    }
}
