//! The real binary and real processes, in fresh directories, with a cleared environment.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "a test that fails is to stop at once, and writes the files that it needs"
)]

mod approvals;
mod attacks;
mod builtin;
mod cli;
mod cron;
mod daemon;
mod differential;
mod environment;
mod follow;
mod formats;
mod help;
mod invalid_configs;
mod mcp;
mod old_formats;
mod operator;
mod plan;
mod process;
mod project;
mod provider;
mod readme;
mod record;
mod sandbox;
mod support;
mod web;
