//! Any text as a patch: it is parsed or rejected, and a parsed patch is applied to a file or
//! rejected, quickly.
#![no_main]

use dutyd::text::patch::{FilePatch, apply, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| {
    let (text, content) = input;
    for patch in parse(text).into_iter().flatten() {
        if let FilePatch::Update { path, hunks, .. } = patch {
            if let Ok(changed) = apply(&path, content, &hunks) {
                assert!(changed.ends_with('\n'), "a file ends with a newline");
            }
        }
    }
});
