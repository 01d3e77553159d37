//! Models: one file or folder per wire format, plus the scripted model.
//!
//! Wire types are private to their format; the loop knows only [`crate::agent::Model`]. The shared
//! parts (sending, deadlines, size limits, the event stream, error classes) live once, in modules
//! of their own. Nothing here knows tools or jobs.

mod anthropic;
mod failure;
mod format;
mod gemini;
mod http;
mod ollama;
mod openai;
mod openai_chat;
mod remote;
mod scripted;
mod size;

pub use remote::RemoteModel;
pub use scripted::{ScriptContext, ScriptedModel};

/// Reads a response in the wire format `format`, for fuzz targets and benchmarks.
///
/// *Errors*: the same as for any response.
#[doc(hidden)]
pub use remote::read_as;

#[cfg(test)]
mod tests;
