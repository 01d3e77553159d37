//! Judges arbitrary text as a path. An accepted path must lie in an allowed tree and in no closed
//! one.
#![no_main]

use std::path::Path;

use dutyd::gate::{Access, PathRules};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let rules = PathRules {
        working_dir: "/w".into(),
        writable: vec!["/w".into(), "/state/workspace/j".into()],
        readable: vec!["/r".into()],
        denied: vec!["/w/closed".into()],
        own: vec!["/state".into()],
        ..PathRules::default()
    };
    let Ok(path) = rules.absolute(text) else { return };
    assert!(path.is_absolute() && !path.components().any(|part| part.as_os_str() == ".."));
    for access in [Access::Read, Access::Write] {
        if rules.judge(&path, access).is_ok() {
            let root = rules.root_of(&path).unwrap_or(Path::new(""));
            assert!(!root.as_os_str().is_empty() && path.starts_with(root));
            assert!(!path.starts_with("/w/closed"));
            assert!(!path.starts_with("/state") || path.starts_with("/state/workspace/j"));
            assert!(access == Access::Read || !path.starts_with("/r"));
        }
    }
});
