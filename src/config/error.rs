//! The report on a configuration: every error and warning, each with its location.

use std::fmt::Write as _;

use serde::Serialize;

use crate::text::escape::one_line;

/// The most characters of a source line, or of a field name, that an error quotes.
pub(super) const LINE_CHARACTERS: usize = 400;

/// The most errors that a report shows; the same limit applies to warnings.
const MAX_SHOWN: usize = 500;

/// The most errors that are kept for sorting; further ones are only counted. The same limit
/// applies to warnings.
const MAX_KEPT: usize = 2000;

/// One error or warning of a configuration.
///
/// *Shape*:
/// ``{"file":"jobs.yaml","line":4,"column":5,"field":"jobs[0].shedule","message":"…",``
/// ``"hint":"did you mean `schedule`?","text":"…"}``
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    /// The path of the file, for display.
    pub file: String,
    /// The line, counted from 1; 0 if the error is about the whole file.
    pub line: usize,
    /// The column in characters, counted from 1; 0 if the error is about the whole file.
    pub column: usize,
    /// The path of the field, such as `jobs[0].limits.max_iterations`.
    pub field: String,
    /// A lower-case fragment that says what is wrong.
    pub message: String,
    /// A suggestion, such as a similar known name.
    pub hint: Option<String>,
    /// The first 400 characters of the line; empty if the error is about the whole file.
    #[serde(rename = "text")]
    pub source_line: String,
}

/// All errors and warnings of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Problems that prevent the configuration from being used.
    pub errors: Vec<ConfigError>,
    /// Problems that do not prevent the configuration from being used.
    pub warnings: Vec<ConfigError>,
    more_errors: usize,
    more_warnings: usize,
}

impl ConfigError {
    /// Returns the name of the file without its directory.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.file.rsplit_once('/').map_or(&self.file, |(_, name)| name)
    }

    /// Returns an error about a whole file, without a location.
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

    /// Adds a hint.
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
            // The column can be beyond the quoted part of the line.
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
    /// Returns the report as plain text; empty without errors and warnings.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        self.errors.iter().for_each(|error| error.render("error", &mut out));
        self.warnings.iter().for_each(|warning| warning.render("warning", &mut out));
        out
    }

    /// Returns one line for the log: the number of errors, and the first error.
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

    /// Returns a report of `errors`, without warnings.
    pub(crate) fn of_errors(errors: Vec<ConfigError>) -> Self {
        Self { errors, ..Self::default() }
    }

    pub(crate) fn add_error(&mut self, error: ConfigError) {
        keep(&mut self.errors, &mut self.more_errors, error);
    }

    pub(crate) fn add_warning(&mut self, warning: ConfigError) {
        keep(&mut self.warnings, &mut self.more_warnings, warning);
    }

    /// Adds the errors and warnings of another report.
    pub(crate) fn merge(&mut self, other: Self) {
        self.more_errors += other.more_errors;
        self.more_warnings += other.more_warnings;
        other.errors.into_iter().for_each(|error| self.add_error(error));
        other.warnings.into_iter().for_each(|warning| self.add_warning(warning));
    }

    /// Keeps the first 500 errors and replaces the rest with one error that tells their number.
    /// Does the same for warnings.
    pub(crate) fn shorten(&mut self) {
        cut(&mut self.errors, &mut self.more_errors, "errors are not shown: fix these first");
        cut(&mut self.warnings, &mut self.more_warnings, "warnings are not shown");
    }

    /// Returns the number of errors, including those that are not shown.
    #[must_use]
    pub fn error_count(&self) -> usize {
        self.errors.len().min(MAX_SHOWN) + self.more_errors
    }

    /// Returns the number of warnings, including those that are not shown.
    #[must_use]
    pub fn warning_count(&self) -> usize {
        self.warnings.len().min(MAX_SHOWN) + self.more_warnings
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
    if list.len() < MAX_KEPT { list.push(error) } else { *more += 1 }
}

fn cut(list: &mut Vec<ConfigError>, more: &mut usize, what: &str) {
    *more += list.len().saturating_sub(MAX_SHOWN);
    if *more > 0 {
        list.truncate(MAX_SHOWN);
        let file = list.last().map(|last| last.file.clone()).unwrap_or_default();
        list.push(ConfigError::of_file(file, format!("{more} more {what}")));
    }
}
