//! Any text as a command: it is classified quickly, and a destructive command on a line of its own
//! after it is never overlooked.
#![no_main]

use dutyd::gate::{CommandRules, Severity};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let rules = CommandRules::default();
    let alone = rules.classify(text);
    assert!(alone.blocked.is_none() || alone.severity == Severity::Destructive);
    // Text that cannot be parsed is destructive. In other text, the added line must be found,
    // unless a quotation or comment encloses it.
    if alone.severity == Severity::Plain && !text.contains(['\'', '"', '<', '#', '\\', '`', '$']) {
        let more = rules.classify(&format!("{text}\nrm x\n"));
        assert!(more.severity == Severity::Destructive, "{text:?} hides the line after it");
    }
});
