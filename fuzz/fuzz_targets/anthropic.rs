//! Decodes an answer in the `anthropic` format.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Anthropic;
