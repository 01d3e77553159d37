//! Tests the real binary and real processes, in fresh directories, with a cleared environment.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "a failing test should panic immediately, and tests write their own files"
)]

mod answers;
mod approvals;
mod attacks;
mod backtest;
mod book;
mod budget;
mod builtin;
mod cli;
mod clock;
mod complete;
mod control;
mod crash;
mod cron;
mod daemon;
mod differential;
mod disk;
mod environment;
mod faults;
mod field_config;
mod follow;
mod formats;
mod handles;
mod hang;
mod help;
mod host;
mod invalid_configs;
mod lost;
mod mcp;
mod models;
mod notify;
mod old_formats;
mod operator;
mod outage;
mod outcome;
mod plan;
mod precheck;
mod process;
mod project;
mod provider;

mod recall;
mod record;
mod reload;
mod resume;
mod retention;
mod sandbox;
mod seen;
mod shown;
mod support;
mod texts;
mod unit;
mod views;
mod web;
