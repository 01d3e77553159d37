//! Parses arbitrary text as a YAML file. It must be parsed or rejected, quickly and in bounded
//! memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (document, errors) = dutyd::config::parse_yaml("fuzz.yaml", text);
    assert!(document.is_some() || !errors.is_empty(), "neither a document nor an error");
});
