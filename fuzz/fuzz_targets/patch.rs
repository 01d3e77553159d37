//! Parses arbitrary text as a patch and applies it to arbitrary content. Both steps must quickly
//! succeed or return an error, and a changed file must end with a newline.
#![no_main]

use dutyd::text::patch::{FilePatch, apply, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| {
    let (text, content) = input;
    for patch in parse(text).into_iter().flatten() {
        if let FilePatch::Update { path, hunks, .. } = patch {
            if let Ok(changed) = apply(&path, content, &hunks) {
                assert!(changed.ends_with('\n'), "the changed file does not end with a newline");
            }
        }
    }
});
