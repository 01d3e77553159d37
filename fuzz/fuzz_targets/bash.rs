//! Any text as a command: it is classified, quickly; and a blocked command that follows it as a line of its own is never overlooked.
#![no_main]

use dutyd::gate::{CommandRules, Severity};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let rules = CommandRules::default();
    let alone = rules.classify(text);
    assert!(alone.blocked.is_none() || alone.severity == Severity::Destructive);
    // What cannot be parsed is destructive; what can must show the line that was added, unless it is taken in by a quotation or a comment.
    if alone.severity == Severity::Plain && !text.contains(['\'', '"', '<', '#', '\\', '`', '$']) {
        let more = rules.classify(&format!("{text}\nrm x\n"));
        assert!(more.severity == Severity::Destructive, "{text:?} hides what follows it");
    }
});
