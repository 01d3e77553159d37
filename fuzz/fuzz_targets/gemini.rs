//! An answer as `gemini` reads it.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Gemini;
