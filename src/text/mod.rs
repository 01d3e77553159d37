//! Functions over text: escaping, did-you-mean, templates, patches, diffs, truncation, redaction,
//! web pages, the size of JSON, durations and sizes, addresses.
//!
//! Nothing here knows about runs or reads files.

pub(crate) mod address;
pub(crate) mod answer;
pub(crate) mod diff;
pub(crate) mod escape;
pub mod html;
pub(crate) mod json;
pub mod patch;
pub(crate) mod quantity;
pub mod redact;
pub(crate) mod strict_json;
pub(crate) mod suggest;
pub mod template;
pub mod truncate;
