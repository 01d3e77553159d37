//! Decodes an answer in the `openai_chat` format.
#![no_main]

include!("answer.rs");

const FORMAT: WireFormat = WireFormat::OpenaiChat;
