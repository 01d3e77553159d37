//! Models: one file or folder per wire format, plus the scripted model.
//!
//! Wire types are private to their format; the loop knows only [`crate::agent::Model`]. Separate
//! modules hold what all formats share: sending, deadlines, size limits, event streams and the
//! classification of errors. This folder does not depend on tools or jobs.

mod address;
mod anthropic;
mod body;
mod claims;
mod clients;
mod failure;
mod format;
mod gemini;
mod http;
mod lessons;
mod metadata;
mod offline;
mod ollama;
mod openai;
mod openai_chat;
mod refusal;
mod remote;
mod scripted;
mod size;
mod think;
mod tls;

pub use clients::HttpClients;
pub use format::Probe;
pub use lessons::{Lesson, Lessons};
pub use remote::RemoteModel;
pub use scripted::{ScriptContext, ScriptedModel};

/// Reads a response in the wire format `format`, for fuzz targets and benchmarks.
///
/// *Errors*: the response is cut off, too large or malformed, or reports an error.
#[doc(hidden)]
pub use offline::{read_as, read_metadata, refused_parameter};

#[cfg(test)]
mod tests;
