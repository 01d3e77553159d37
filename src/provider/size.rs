//! How large an answer may be: bytes, and values of JSON.

use crate::agent::{ErrorClass, ModelError};

/// Bytes of an answer: of a whole body, of one event of a stream, or of what a stream says in all. The longest answers that models give
/// have about 1 MiB.
pub(super) const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of a stream that may come before the size of the answer is looked at again.
const UNCHECKED_BYTES: usize = 256 * 1024;

/// Values that each event of a stream has for free: a long answer has many small events, and we keep little of each.
const EVENT_VALUES: usize = 100;

/// Values in the JSON of one answer.
const ANSWER_VALUES: usize = 300_000;

/// Checks the size of an answer, or of what came of it so far.
///
/// *Errors*: it has more than [`ANSWER_BYTES`].
pub(super) fn check_size(bytes: usize) -> Result<(), ModelError> {
    if bytes > ANSWER_BYTES { Err(too_large("answer", ANSWER_BYTES)) } else { Ok(()) }
}

/// Returns the error for an answer, or a part of one, that is too large.
pub(super) fn too_large(what: &str, most: usize) -> ModelError {
    ModelError::new(ErrorClass::MalformedResponse, format!("the {what} has more than {most} bytes"))
}

/// Checks that a JSON text is small once it is parsed.
///
/// *Errors*: it has too many values.
pub(super) fn check_values(data: &[u8]) -> Result<(), ModelError> {
    crate::text::json::check_values(data, ANSWER_VALUES).map_err(|_| too_many_values())
}

/// Bounds the memory that a stream takes.
#[derive(Default)]
pub(super) struct StreamSize {
    values: usize,
    /// Bytes of events since the size of the answer was last looked at.
    unchecked: usize,
}

impl StreamSize {
    /// Counts an event before it is parsed.
    ///
    /// *Errors*: the stream has too many values.
    pub(super) fn count(&mut self, data: &str) -> Result<(), ModelError> {
        self.unchecked += data.len();
        let values = crate::text::json::values(data.as_bytes());
        self.values = self.values.saturating_add(values.saturating_sub(EVENT_VALUES));
        if self.values > ANSWER_VALUES { Err(too_many_values()) } else { Ok(()) }
    }

    /// Checks what the reader holds after an event, in bytes.
    ///
    /// *Errors*: the stream says too much.
    pub(super) fn check(&mut self, held: impl FnOnce() -> usize) -> Result<(), ModelError> {
        // The reader adds up what it holds, which is too slow for each event.
        if self.unchecked > UNCHECKED_BYTES {
            self.unchecked = 0;
            check_size(held())?;
        }
        Ok(())
    }
}

fn too_many_values() -> ModelError {
    ModelError::new(
        ErrorClass::MalformedResponse,
        format!("the answer has more than {ANSWER_VALUES} values"),
    )
}
