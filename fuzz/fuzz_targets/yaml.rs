//! Any text as a YAML file: it is read or refused, quickly and in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (document, errors) = dutyd::config::parse_yaml("fuzz.yaml", text);
    assert!(document.is_some() || !errors.is_empty(), "what is not read is an error");
});
