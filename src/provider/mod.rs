//! Models: one file or folder a wire format, and the scripted one.
//!
//! Wire types are private to their format; the loop knows only [`crate::agent::Model`]. What all formats share — sending, deadlines, caps, the
//! event stream, the classes of errors — stands beside them once. Nothing here knows tools or jobs.

mod failure;
mod http;
mod openai_chat;
mod scripted;

pub use openai_chat::OpenaiChat;
pub use scripted::{ScriptContext, ScriptedModel};

#[doc(hidden)]
pub use openai_chat::read_chat_stream as fuzz_read_chat_stream;
