//! Limits on the size of a response, in bytes and in JSON values.

use crate::agent::{ErrorClass, ModelError};

/// Maximum bytes of a body, of one line or event of a stream, or of everything kept from a stream.
/// The longest answers of today's models are about 1 MiB long.
pub(super) const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of a stream that may arrive between two checks of the answer's size.
const UNCHECKED_BYTES: usize = 256 * 1024;

/// JSON values of each event that do not count towards [`ANSWER_VALUES`]: a long answer has many
/// small events, and we keep little of each.
const EVENT_VALUES: usize = 100;

/// Maximum number of JSON values in one response.
const ANSWER_VALUES: usize = 300_000;

/// Checks the size of a response, or of the part received so far.
///
/// *Errors*: the size exceeds [`ANSWER_BYTES`].
pub(super) fn check_size(bytes: usize) -> Result<(), ModelError> {
    if bytes > ANSWER_BYTES { Err(too_large("answer", ANSWER_BYTES)) } else { Ok(()) }
}

/// Returns the error for an answer, or a part of it (`what`), that has more than `most` bytes.
pub(super) fn too_large(what: &str, most: usize) -> ModelError {
    ModelError::new(ErrorClass::MalformedResponse, format!("the {what} has more than {most} bytes"))
}

/// Checks that a JSON text stays small in memory once parsed.
///
/// *Errors*: the text has more than [`ANSWER_VALUES`] values.
pub(super) fn check_values(data: &[u8]) -> Result<(), ModelError> {
    crate::text::json::check_values(data, ANSWER_VALUES).map_err(|_| too_many_values())
}

/// Bounds the memory that reading a stream takes.
#[derive(Default)]
pub(super) struct StreamSize {
    values: usize,
    /// Bytes of events since the last check of the answer's size.
    unchecked: usize,
}

impl StreamSize {
    /// Counts an event before it is parsed.
    ///
    /// *Errors*: the events so far have more than [`ANSWER_VALUES`] values that count.
    pub(super) fn count(&mut self, data: &str) -> Result<(), ModelError> {
        self.unchecked += data.len();
        let values = crate::text::json::values(data.as_bytes());
        self.values = self.values.saturating_add(values.saturating_sub(EVENT_VALUES));
        if self.values > ANSWER_VALUES { Err(too_many_values()) } else { Ok(()) }
    }

    /// Checks the size of what the reader holds, once per [`UNCHECKED_BYTES`] of events.
    ///
    /// *Errors*: the reader holds more than [`ANSWER_BYTES`].
    pub(super) fn check(&mut self, held: impl FnOnce() -> usize) -> Result<(), ModelError> {
        // Summing up what the reader holds is too slow for every event.
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
