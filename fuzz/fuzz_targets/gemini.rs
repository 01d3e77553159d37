//! Decodes an answer in the `gemini` format.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Gemini;
