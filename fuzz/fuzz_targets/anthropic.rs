//! An answer as `anthropic` reads it.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Anthropic;
