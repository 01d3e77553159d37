//! What is wrong with a configuration: a report of all errors, each with its place.

use std::fmt::Write as _;

use serde::Serialize;

use crate::text::escape::one_line;

/// Characters of a line, or of the name of a field, that an error repeats.
pub(super) const LINE_CHARACTERS: usize = 400;

/// Errors, and warnings, of a configuration that are reported.
const MOST_SHOWN: usize = 500;

/// Errors, and warnings, of a configuration that are kept until they are sorted. The rest is counted.
const MOST_KEPT: usize = 2000;

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
    more_errors: usize,
    more_warnings: usize,
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
                self.error_count(),
                first.file,
                first.line,
                first.column,
                one_line(&first.message)
            ),
        }
    }

    /// Returns a report without warnings.
    pub(crate) fn of_errors(errors: Vec<ConfigError>) -> Self {
        Self { errors, ..Self::default() }
    }

    pub(crate) fn add_error(&mut self, error: ConfigError) {
        keep(&mut self.errors, &mut self.more_errors, error);
    }

    pub(crate) fn add_warning(&mut self, warning: ConfigError) {
        keep(&mut self.warnings, &mut self.more_warnings, warning);
    }

    /// Adds what another report says.
    pub(crate) fn merge(&mut self, other: Self) {
        self.more_errors += other.more_errors;
        self.more_warnings += other.more_warnings;
        other.errors.into_iter().for_each(|error| self.add_error(error));
        other.warnings.into_iter().for_each(|warning| self.add_warning(warning));
    }

    /// Shows 500 of the errors that were kept, and one that counts the rest; of the warnings likewise.
    pub(crate) fn shorten(&mut self) {
        cut(&mut self.errors, &mut self.more_errors, "errors are not shown: fix these first");
        cut(&mut self.warnings, &mut self.more_warnings, "warnings are not shown");
    }

    /// Returns the number of errors, those that are not shown included.
    #[must_use]
    pub fn error_count(&self) -> usize {
        self.errors.len().min(MOST_SHOWN) + self.more_errors
    }

    /// Returns the number of warnings, those that are not shown included.
    #[must_use]
    pub fn warning_count(&self) -> usize {
        self.warnings.len().min(MOST_SHOWN) + self.more_warnings
    }

    pub(crate) fn sort(&mut self) {
        let key = |error: &ConfigError| (error.file.clone(), error.line, error.column);
        self.errors.sort_by_key(key);
        self.errors.dedup();
        self.warnings.sort_by_key(key);
        self.warnings.dedup();
    }
}

fn keep(list: &mut Vec<ConfigError>, more: &mut usize, error: ConfigError) {
    if list.len() < MOST_KEPT { list.push(error) } else { *more += 1 }
}

fn cut(list: &mut Vec<ConfigError>, more: &mut usize, what: &str) {
    *more += list.len().saturating_sub(MOST_SHOWN);
    if *more > 0 {
        list.truncate(MOST_SHOWN);
        let file = list.last().map(|last| last.file.clone()).unwrap_or_default();
        list.push(ConfigError::of_file(file, format!("{more} more {what}")));
    }
}
