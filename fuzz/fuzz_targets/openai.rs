//! Decodes an answer in the `openai` format.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Openai;
