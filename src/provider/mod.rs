//! Models: one file a wire format, and the scripted one.
//!
//! Wire types are private to their file; the loop knows only [`crate::agent::Model`]. Nothing here knows tools or jobs.

mod scripted;

pub use scripted::{ScriptContext, ScriptedModel};
