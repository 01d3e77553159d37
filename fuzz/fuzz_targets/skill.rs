//! Parses arbitrary text as a skill. It must be parsed or rejected, and a parsed skill must have a
//! description.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(skill) = dutyd::config::Skill::parse("fuzz", text) {
        assert!(!skill.description.is_empty());
    }
});
