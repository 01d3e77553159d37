//! dutyd runs language-model agents on a schedule, unattended, on machines that matter.
//!
//! `ARCHITECTURE.md` describes how data flows through these modules. A module may import only from
//! the modules before it in this list: `domain`, `text`, `argv`, `schedule`, `catalogue`, `config`,
//! `gate`, `agent`, `provider`, `process`, `tools`, `store`, `sinks`, `run`, `daemon`, `server`, `cli`.
//! `tests/tidy.rs` enforces this order.

#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests write the files that they need")
)]

pub mod agent;
pub mod argv;
pub mod catalogue;
pub mod cli;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod domain;
pub mod gate;
pub mod process;
pub mod provider;
pub mod run;
pub mod schedule;
pub mod server;
pub mod sinks;
pub mod store;
pub mod text;
pub mod tools;
