//! Pure functions over text: escaping for terminals, near names, templates, truncation, redaction.
//!
//! Nothing here knows what a run is, and nothing reads a file.

pub(crate) mod diff;
pub(crate) mod escape;
pub mod html;
pub(crate) mod json;
pub mod patch;
pub(crate) mod quantity;
pub mod redact;
pub(crate) mod suggest;
pub mod template;
pub mod truncate;
