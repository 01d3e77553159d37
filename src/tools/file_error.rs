//! The errors of the file tools, as the model reads them.

use std::io;

use crate::domain::{CallError, ErrorKind};
use crate::gate::PathRefusal;

/// Returns the error for a path that the gate refuses.
pub(super) fn refused(refusal: PathRefusal) -> CallError {
    let message = format!("Refused by the rule `{}`: {refusal}.", refusal.rule());
    CallError::new(ErrorKind::Denied, message)
}

/// Returns the error of a failed operation; `name` is the file as the model sees it.
pub(super) fn failed(name: &str, error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            CallError::new(ErrorKind::NotFound, format!("`{name}` does not exist."))
        }
        _ => CallError::new(ErrorKind::Io, format!("`{name}`: {error}.")),
    }
}

/// Returns the text that refuses to write through a dangling link.
pub(super) fn dangling_link(name: &str) -> String {
    format!("`{name}` is a link to a file that does not exist: write that file by its own path.")
}
