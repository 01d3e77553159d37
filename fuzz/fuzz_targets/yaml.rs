//! Any text as a YAML file: it is parsed or rejected, quickly and in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (document, errors) = dutyd::config::parse_yaml("fuzz.yaml", text);
    assert!(document.is_some() || !errors.is_empty(), "a file without a document has an error");
});
