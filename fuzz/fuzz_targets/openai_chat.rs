//! An answer as `openai_chat` reads it.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::OpenaiChat;
