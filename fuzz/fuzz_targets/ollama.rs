//! Decodes an answer in the `ollama` format.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::Ollama;
