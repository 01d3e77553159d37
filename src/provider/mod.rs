//! Models: one file or folder a wire format, and the scripted one.
//!
//! Wire types are private to their format; the loop knows only [`crate::agent::Model`]. What all formats share — sending, deadlines, caps, the
//! event stream, the classes of errors — stands beside them once. Nothing here knows tools or jobs.

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

/// Reads an answer as `format` does, for fuzz targets and benchmarks.
///
/// *Errors*: as any answer.
#[doc(hidden)]
pub use remote::read_as;

#[cfg(test)]
mod tests;
