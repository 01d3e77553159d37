//! Classifies arbitrary text as a command line, which must be quick. A destructive command on a
//! line of its own after the text must be found.
#![no_main]

use dutyd::gate::{CommandRules, Severity};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let rules = CommandRules::default();
    let alone = rules.classify(text);
    assert!(alone.blocked.is_none() || alone.severity == Severity::Destructive);
    // Text that cannot be parsed is destructive. After other text, the added command must be found,
    // unless the text contains a character that could quote the added line or make it a comment.
    if alone.severity == Severity::Plain && !text.contains(['\'', '"', '<', '#', '\\', '`', '$']) {
        let more = rules.classify(&format!("{text}\nrm x\n"));
        assert!(more.severity == Severity::Destructive, "{text:?} hides the line after it");
    }
});
