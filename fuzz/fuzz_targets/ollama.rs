//! An answer as `ollama` reads it.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Ollama;
