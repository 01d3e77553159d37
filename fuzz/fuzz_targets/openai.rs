//! An answer as `openai` reads it.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Openai;
