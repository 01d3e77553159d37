//! What a file tool says of a file that it cannot use.

use std::io;

use crate::domain::{CallError, ErrorKind};
use crate::gate::PathRefusal;

/// A refusal of the gate, for the model.
pub(super) fn refused(refusal: PathRefusal) -> CallError {
    let message = format!("Refused by the rule `{}`: {refusal}.", refusal.rule());
    CallError::new(ErrorKind::Denied, message)
}

/// Returns the error of an operation on the file that is shown as `name`.
pub(super) fn failed(name: &str, error: &io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            CallError::new(ErrorKind::NotFound, format!("`{name}` is not there."))
        }
        _ => CallError::new(ErrorKind::Io, format!("`{name}`: {error}.")),
    }
}

/// Returns why nothing is written through a link that leads to no file.
pub(super) fn nowhere(name: &str) -> String {
    format!("`{name}` is a link to a file that is not there: write that file by its own name.")
}
